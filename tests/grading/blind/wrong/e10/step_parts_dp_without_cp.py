# exercise: step_parts
# says: dp · cp ranks have the same weights
# the gradients are reduced among dp ranks only; the text: "The dp · cp data ranks stand tp
# apart and all-reduce ...".

from minitrain.planning.run import Run
from minitrain.planning.step.layer_times import elementwise_seconds


def _counts(model):
    """(all parameters, those that multiply a token)"""
    h = model.hidden
    matrices = 3 if model.gated else 2
    attention = 2 * h * model.head_size * (model.heads + model.kv_heads)
    both = model.layers * attention + h * model.vocab
    both += (model.layers - model.moe_layers) * matrices * h * model.ffn
    held = both + (2 * model.layers + 1) * h + h * model.vocab
    if model.moe_layers:
        expert = matrices * h * model.moe_ffn
        shared = h * model.experts + model.shared_experts * expert
        held += model.moe_layers * (shared + model.experts * expert)
        both += model.moe_layers * (shared + model.experts_per_token * expert)
    return held, both


def step_parts(run: Run, fabric) -> dict[str, float]:
    model, plan, chip = run.model, run.plan, run.chip
    passes = 4 if plan.recompute == "full" else 3
    layers = run.microbatches * model.layers / plan.pp
    held, multiplying = _counts(model)
    flops = 2 * multiplying * run.tokens
    scores = 4 * model.layers * model.hidden * run.seq * run.tokens
    constants = chip.constants
    matmul = passes * (flops / constants.matmul + scores / constants.attention)
    matmul /= run.gpus * chip.peak(plan.precision)
    elementwise = passes * layers * elementwise_seconds(run)
    message = 2 * run.local_tokens * model.hidden
    tensor = 2 * (passes - 1) * layers * fabric.seconds("all_reduce", message, plan.tp, 1)
    bubble = (plan.pp - 1) / (plan.vpp * run.microbatches) * (matmul + elementwise + tensor)
    own = held / (plan.tp * plan.pp)
    ranks = plan.dp
    if plan.zero >= 3:
        gather = fabric.seconds("all_gather", 2 * own, ranks, plan.tp)
        scatter = fabric.seconds("reduce_scatter", 4 * own, ranks, plan.tp)
        data = run.microbatches * (2 * gather + scatter)
        data = max(0.0, data - matmul - elementwise)
    else:
        data = fabric.seconds("all_reduce", 4 * own, ranks, plan.tp)
    return {
        "matmul": matmul,
        "elementwise": elementwise,
        "tensor": tensor,
        "bubble": bubble,
        "data": data,
    }
