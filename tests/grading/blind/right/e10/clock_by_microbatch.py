# right: a step is put together from the seconds of one microbatch; all-reduces are counted one by one; the search keeps pairs of seconds and run
from itertools import product

from minitrain.planning.run import Model, Plan, Run, make_run
from minitrain.planning.step.layer_times import elementwise_seconds


def weights(model: Model) -> tuple[int, int]:
    h, factor = model.hidden, 3 if model.gated else 2
    attention = 2 * h * h + 2 * h * model.kv_heads * model.head_size
    moe = model.moe_layers
    active = model.layers * attention + h * model.vocab
    if model.layers > moe:
        active += (model.layers - moe) * factor * h * model.ffn
    idle = h * model.vocab + h + 2 * h * model.layers
    if moe:
        expert = factor * h * model.moe_ffn
        chosen = model.experts_per_token
        active += moe * (h * model.experts + (chosen + model.shared_experts) * expert)
        idle += moe * (model.experts - chosen) * expert
    return active + idle, active


def step_flops(run: Run) -> tuple[float, float]:
    model, plan = run.model, run.plan
    scores = 4 * model.layers * model.hidden * run.seq
    forward = 2 * weights(model)[1] + scores
    repeated = 0
    if plan.recompute == "selective":
        repeated = 0 if plan.modern else scores
    if plan.recompute == "full":
        repeated = forward - 2 * model.hidden * model.vocab
    flops = 6 * weights(model)[1] + 3 * scores
    return flops * run.tokens, (flops + repeated) * run.tokens


def step_parts(run: Run, fabric) -> dict[str, float]:
    model, plan, chip = run.model, run.plan, run.chip
    count, full = run.microbatches, plan.recompute == "full"
    rate = run.gpus * chip.peak(plan.precision)
    scores = 4 * model.layers * model.hidden * run.seq * run.tokens
    others = 2 * weights(model)[1] * run.tokens
    forward = scores / (rate * chip.constants.attention)
    forward += others / (rate * chip.constants.matmul)
    own_layers = model.layers / plan.pp
    memory_bound = own_layers * elementwise_seconds(run)  # of a microbatch's forward
    message = 2 * run.local_tokens * model.hidden
    calls = own_layers * (2 + 2 + (2 if full else 0))  # forward, backward, again
    parts = {"matmul": forward * (3 + full)}
    parts["elementwise"] = count * memory_bound * (3 + full)
    parts["tensor"] = count * calls * fabric.seconds("all_reduce", message, plan.tp, 1)
    work = sum(parts.values())
    parts["bubble"] = work * (plan.pp - 1) / (plan.vpp * count)
    mine = weights(model)[0] / (plan.tp * plan.pp)
    among = plan.dp * plan.cp, plan.tp
    if plan.zero < 3:
        parts["data"] = fabric.seconds("all_reduce", 4 * mine, *among)
    else:
        a_microbatch = 2 * fabric.seconds("all_gather", 2 * mine, *among)
        a_microbatch += fabric.seconds("reduce_scatter", 4 * mine, *among)
        hidden = parts["matmul"] + parts["elementwise"]
        parts["data"] = max(count * a_microbatch - hidden, 0.0)
    return parts


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    timed = []
    cuts = product((8, 4, 2, 1), (16, 8, 4, 2, 1))
    rest = list(product((4, 2, 1), ("full", "none"), (3, 1)))
    for (tp, pp), (micro, recompute, zero) in product(cuts, rest):
        dp = gpus // (tp * pp)
        legal = tp * pp * dp == gpus and model.heads % tp == model.layers % pp == 0
        if not legal or batch % (dp * micro) != 0 or (zero, pp > 1) == (3, True):
            continue
        plan = Plan(
            tp=tp, sp=tp > 1, pp=pp, dp=dp, zero=zero, recompute=recompute, micro_batch=micro
        )
        run = make_run(chip, model, plan, seq, batch)
        if memory_of(run) <= 0.92 * chip.memory:
            timed.append((seconds_of(run), run))
    timed.sort(key=lambda pair: pair[0])
    return [run for _, run in timed[:best]]
