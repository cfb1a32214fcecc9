# exercise: weights
# differs: lists all matrices of all layers by shape, each with how many are held and how many a
# token meets, and adds them up; step_flops adds layer by layer, with the head apart. state_bytes
# by powers of the number of ranks.
from minitrain.planning.run import Model, Run


def matrices_of(model):
    """(rows, columns, held, met by a token), layer by layer; no head."""
    h, inner = model.hidden, model.head_size
    per_mlp = 2 + bool(model.gated)
    for layer in range(model.layers):
        for columns in (model.heads, model.kv_heads):  # q and o, k and v
            yield h, columns * inner, 2, 2
        if layer >= model.moe_layers:
            yield h, model.ffn, per_mlp, per_mlp
            continue
        yield h, model.experts, 1, 1
        shared = model.shared_experts
        held = per_mlp * (model.experts + shared)
        met = per_mlp * (model.experts_per_token + shared)
        yield h, model.moe_ffn, held, met


def weights(model: Model) -> tuple[int, int]:
    table = model.hidden * model.vocab
    every, active = table + table + model.hidden, table
    for rows, columns, held, met in matrices_of(model):
        every += rows * columns * held
        active += rows * columns * met
    every += sum(2 * model.hidden for _ in range(model.layers))
    return every, active


def step_flops(run: Run) -> tuple[float, float]:
    model, how = run.model, run.plan.recompute
    head = 2 * model.hidden * model.vocab
    scores = model.layers * 2 * (2 * run.seq * model.hidden)
    stack = 2 * (weights(model)[1] - model.hidden * model.vocab) + scores
    repeated = {"none": 0, "selective": scores, "full": stack}[how]
    if how == "selective" and run.plan.modern:
        repeated = 0
    mine = run.tokens * 3.0 * (stack + head)
    return mine, mine + run.tokens * repeated


def state_bytes(
    parameters: float,
    zero: int,
    ranks: int,
    per: tuple[int, int, int] = (2, 4, 12),
) -> tuple[float, float, float]:
    stages = 3, 2, 1
    return tuple(
        each * parameters * ranks ** -float(zero >= stage)
        for each, stage in zip(per, stages, strict=True)
    )
