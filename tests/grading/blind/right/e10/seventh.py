# a reader's own answers, from the notebook alone
from itertools import product

from minitrain.planning.run import Model, Plan, Run, make_run
from minitrain.planning.step.layer_times import elementwise_seconds


def weights(model: Model) -> tuple[int, int]:
    h = model.hidden
    matrices = 3 if model.gated else 2
    mixtures = model.moe_layers
    attention = model.layers * 2 * h * model.head_size * (model.heads + model.kv_heads)
    dense = (model.layers - mixtures) * matrices * h * model.ffn
    head = h * model.vocab
    both = attention + dense + head
    held = active = 0
    if mixtures:
        expert = matrices * h * model.moe_ffn
        both += mixtures * h * model.experts
        held = mixtures * (model.experts + model.shared_experts) * expert
        active = mixtures * (model.experts_per_token + model.shared_experts) * expert
    norms = (2 * model.layers + 1) * h
    embedding = h * model.vocab
    return both + held + norms + embedding, both + active


def step_flops(run: Run) -> tuple[float, float]:
    model, plan = run.model, run.plan
    scores = 4 * model.layers * model.hidden * run.seq
    forward = 2 * weights(model)[1] + scores
    again = 0
    if plan.recompute == "full":
        again = forward - 2 * model.hidden * model.vocab
    elif plan.recompute == "selective" and not plan.modern:
        again = scores
    return 3 * forward * run.tokens, (3 * forward + again) * run.tokens


def state_bytes(
    parameters: float,
    zero: int,
    ranks: int,
    per: tuple[int, int, int] = (2, 4, 12),
) -> tuple[float, float, float]:
    first_stage = (3, 2, 1)
    return tuple(
        parameters * size / (ranks if zero >= stage else 1)
        for size, stage in zip(per, first_stage)
    )


def activation_bytes(run: Run) -> float:
    model, plan = run.model, run.plan
    h, heads = model.hidden, model.heads
    if plan.vpp > 1:
        alive = model.layers * (1 + (plan.pp - 1) / (plan.pp * plan.vpp))
    else:
        alive = model.layers * min(plan.pp, run.microbatches) / plan.pp
    if plan.recompute == "full":
        return alive * run.local_tokens * 2 * h
    whole = 8 * h if plan.modern else 10 * h
    if plan.sp:
        whole /= plan.tp
    split = 4 * model.head_size * (heads + model.kv_heads)
    split += (6 if model.gated else 4) * model.ffn
    if plan.modern:
        split += 4 * heads
    elif plan.recompute == "none":
        split += 5 * heads * run.seq / plan.cp
    return alive * run.local_tokens * (whole + split / plan.tp)


def step_parts(run: Run, fabric) -> dict[str, float]:
    model, plan, chip = run.model, run.plan, run.chip
    passes = 4 if plan.recompute == "full" else 3
    scores = 4 * model.layers * model.hidden * run.seq * run.tokens
    others = step_flops(run)[0] / 3 - scores
    work = others / chip.constants.matmul + scores / chip.constants.attention
    matmul = passes * work / (run.gpus * chip.peak(plan.precision))

    m = run.microbatches
    layers = m * model.layers / plan.pp
    elementwise = passes * layers * elementwise_seconds(run)

    sent = 2 * model.hidden * run.local_tokens
    names = ["reduce_scatter", "all_gather"] if plan.sp else ["all_reduce"]
    message = sum(fabric.seconds(name, sent, plan.tp) for name in names)
    tensor = 2 * (passes - 1) * layers * message

    busy = matmul + elementwise + tensor
    bubble = (plan.pp - 1) / (plan.vpp * m) * busy

    part = weights(model)[0] / (plan.tp * plan.pp)
    ranks = plan.dp * plan.cp
    if plan.zero == 3:
        gather = fabric.seconds("all_gather", 2 * part, ranks, plan.tp)
        scatter = fabric.seconds("reduce_scatter", 4 * part, ranks, plan.tp)
        data = max(0.0, m * (2 * gather + scatter) - matmul - elementwise)
    else:
        data = fabric.seconds("all_reduce", 4 * part, ranks, plan.tp)
    return {
        "matmul": matmul,
        "elementwise": elementwise,
        "tensor": tensor,
        "bubble": bubble,
        "data": data,
    }


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    fitting = []
    for tp, pp, zero, recompute, micro in product(
        [1, 2, 4, 8], [1, 2, 4, 8, 16], [1, 3], ["none", "full"], [1, 2, 4]
    ):
        if model.heads % tp or model.layers % pp or gpus % (tp * pp):
            continue
        dp = gpus // (tp * pp)
        if batch % (dp * micro):
            continue
        if zero == 3 and pp > 1:
            continue
        plan = Plan(
            tp=tp,
            sp=tp > 1,
            pp=pp,
            dp=dp,
            zero=zero,
            recompute=recompute,
            micro_batch=micro,
        )
        run = make_run(chip, model, plan, seq, batch)
        if memory_of(run) <= 0.92 * chip.memory:
            fitting.append(run)
    fitting.sort(key=seconds_of)
    return fitting[:best]


def pareto(choices: list) -> list:
    front = []
    for choice in sorted(choices, key=lambda one: (one.days, one.usd)):
        if not front or choice.usd < front[-1].usd:
            front.append(choice)
    return front
