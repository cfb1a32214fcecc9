# a reader's answer to `step_parts`, in which others made the mistakes of wrong/e10/step_parts_other_reader.diff

from minitrain.planning.run import Model, Plan, Run, make_run
from minitrain.planning.step.layer_times import elementwise_seconds


def weights(model: Model) -> tuple[int, int]:  # of exercise 1, right, so that this file runs alone
    h, matrices = model.hidden, 3 if model.gated else 2
    attention = 2 * h * model.head_size * (model.heads + model.kv_heads)
    dense, sparse = model.layers - model.moe_layers, model.moe_layers
    both = model.layers * attention + dense * matrices * h * model.ffn + h * model.vocab
    both += sparse * (h * model.experts)
    expert = matrices * h * model.moe_ffn
    held = both + sparse * (model.experts + model.shared_experts) * expert
    held += (2 * model.layers + 1) * h + h * model.vocab
    return held, both + sparse * (model.experts_per_token + model.shared_experts) * expert


def step_flops(run: Run) -> tuple[float, float]:  # of exercise 2, right
    model = run.model
    scores = 4 * model.layers * model.hidden * run.seq
    forward = 2 * weights(model)[1] + scores
    again = 0
    if run.plan.recompute == "full":
        again = forward - 2 * model.hidden * model.vocab
    elif run.plan.recompute == "selective" and not run.plan.modern:
        again = scores
    return 3 * forward * run.tokens, (3 * forward + again) * run.tokens


def step_parts(run: Run, fabric) -> dict[str, float]:
    model, plan, chip = run.model, run.plan, run.chip
    held, t, p, m = chip.constants, plan.tp, plan.pp, run.microbatches
    passes = 4 if plan.recompute == "full" else 3
    layers = m * model.layers / p
    scores = 4 * model.layers * model.hidden * run.seq * run.tokens
    flops = step_flops(run)[0] / 3 - scores
    matmul = passes * (flops / held.matmul + scores / held.attention)
    matmul /= run.gpus * chip.peak(plan.precision)
    elementwise = passes * layers * elementwise_seconds(run)
    nbytes = 2 * run.local_tokens * model.hidden
    one = fabric.seconds("all_reduce", nbytes, t, 1)
    tensor = 2 * (passes - 1) * layers * one
    bubble = (p - 1) / (plan.vpp * m) * (matmul + elementwise + tensor)
    own, ranks = weights(model)[0] / (t * p), plan.dp * plan.cp
    if plan.zero == 3:
        gather = fabric.seconds("all_gather", 2 * own, ranks, t)
        scatter = fabric.seconds("reduce_scatter", 4 * own, ranks, t)
        data = max(0.0, m * (2 * gather + scatter) - matmul - elementwise)
    else:
        data = fabric.seconds("all_reduce", 4 * own, ranks, t)
    parts = {"matmul": matmul, "elementwise": elementwise, "tensor": tensor}
    return parts | {"bubble": bubble, "data": data}
