# a reader's own answers, from the notebook alone
from itertools import product

from minitrain.planning.run import Model, Plan, Run, make_run
from minitrain.planning.step.layer_times import elementwise_seconds


def weights(model: Model) -> tuple[int, int]:
    h, mixtures = model.hidden, model.moe_layers
    matrices = 3 if model.gated else 2
    heads = model.heads + model.kv_heads
    attention = model.layers * 2 * h * model.head_size * heads
    dense = (model.layers - mixtures) * matrices * h * model.ffn
    head = h * model.vocab
    # what both counts have
    both = attention + dense + head
    always = chosen = held = 0
    if mixtures:
        router = h * model.experts
        expert = matrices * h * model.moe_ffn
        always = mixtures * (router + model.shared_experts * expert)
        held = mixtures * model.experts * expert
        chosen = mixtures * model.experts_per_token * expert
    norms = (2 * model.layers + 1) * h
    embedding = h * model.vocab
    return both + always + held + norms + embedding, both + always + chosen


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
    weight, gradient, optimizer = (parameters * each for each in per)
    if zero >= 1:
        optimizer = optimizer / ranks
    if zero >= 2:
        gradient = gradient / ranks
    if zero >= 3:
        weight = weight / ranks
    return weight, gradient, optimizer


def activation_bytes(run: Run) -> float:
    model, plan = run.model, run.plan
    h, p, t = model.hidden, plan.pp, plan.tp
    if plan.vpp > 1:
        alive = model.layers * (1 + (p - 1) / (p * plan.vpp))
    else:
        alive = min(p, run.microbatches) * model.layers / p
    if plan.recompute == "full":
        return alive * run.local_tokens * 2 * h
    whole = (8 if plan.modern else 10) * h
    split = 4 * model.head_size * (model.heads + model.kv_heads)
    split += (6 if model.gated else 4) * model.ffn
    if plan.modern:
        # fused attention: a log-sum for each head, recomputed or not
        split += 4 * model.heads
    elif plan.recompute == "none":
        split += 5 * model.heads * run.seq / plan.cp
    a_token = whole / (t if plan.sp else 1) + split / t
    return alive * run.local_tokens * a_token


def step_parts(run: Run, fabric) -> dict[str, float]:
    model, plan, chip = run.model, run.plan, run.chip
    m, p = run.microbatches, plan.pp
    passes = 4 if plan.recompute == "full" else 3
    scores = 4 * model.layers * model.hidden * run.seq * run.tokens
    others = step_flops(run)[0] / 3 - scores
    seconds = others / chip.constants.matmul + scores / chip.constants.attention
    matmul = passes * seconds / (run.gpus * chip.peak(plan.precision))

    layers = m * model.layers / p  # that a rank runs in a pass
    elementwise = passes * layers * elementwise_seconds(run)

    message = 2 * model.hidden * run.local_tokens
    one = fabric.seconds("all_reduce", message, plan.tp)
    # backward is two passes, but sends what one sends
    tensor = 2 * (passes - 1) * layers * one

    busy = matmul + elementwise + tensor
    bubble = (p - 1) / (plan.vpp * m) * busy

    own = weights(model)[0] / (plan.tp * p)
    ranks = plan.dp * plan.cp
    if plan.zero >= 3:
        gather = fabric.seconds("all_gather", 2 * own, ranks, plan.tp)
        scatter = fabric.seconds("reduce_scatter", 4 * own, ranks, plan.tp)
        hidden = matmul + elementwise
        data = max(0.0, m * (2 * gather + scatter) - hidden)
    else:
        data = fabric.seconds("all_reduce", 4 * own, ranks, plan.tp)
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
    cuts = (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 3), ("none", "full"), (1, 2, 4)
    for tp, pp, zero, recompute, micro in product(*cuts):
        if model.heads % tp or model.layers % pp or gpus % (tp * pp):
            continue
        if zero == 3 and pp > 1:
            continue
        dp = gpus // (tp * pp)
        if batch % (dp * micro):
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
    return sorted(fitting, key=seconds_of)[:best]


def pareto(choices: list) -> list:
    front = []
    for choice in sorted(choices, key=lambda c: (c.days, c.usd)):
        if not front or choice.usd < front[-1].usd:
            front.append(choice)
    return front
