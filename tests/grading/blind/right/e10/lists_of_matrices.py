# right: weights are a list of matrix shapes with how often each is held and used; states are a power of the ranks; the front is swept from the cheapest side
from minitrain.planning.run import Model, Plan, Run, make_run


def weights(model: Model) -> tuple[int, int]:
    h, own = model.hidden, model.head_size
    sparse = model.moe_layers
    mlp = 3 if model.gated else 2
    kinds = [  # numbers in one, how many are held, how many multiply a token
        (h * own * model.heads, 2 * model.layers, 2 * model.layers),  # q, o
        (h * own * model.kv_heads, 2 * model.layers, 2 * model.layers),  # k, v
        (h * model.vocab, 2, 1),  # embedding and head
        (h, 2 * model.layers + 1, 0),  # norms
    ]
    dense = model.layers - sparse
    if dense:
        kinds.append((h * model.ffn, mlp * dense, mlp * dense))
    if sparse:
        held = model.experts + model.shared_experts
        used = model.experts_per_token + model.shared_experts
        kinds.append((h * model.experts, sparse, sparse))  # routers
        kinds.append((h * model.moe_ffn, mlp * sparse * held, mlp * sparse * used))
    every = sum(size * held for size, held, _ in kinds)
    return every, sum(size * used for size, _, used in kinds)


def step_flops(run: Run) -> tuple[float, float]:
    model, how = run.model, run.plan.recompute
    head = 2 * model.hidden * model.vocab
    body = 2 * weights(model)[1] - head
    scores = 4 * model.layers * model.hidden * run.seq
    mine = 3 * (body + head + scores)
    if how == "full":
        hardware = mine + body + scores
    elif how == "selective" and not run.plan.modern:
        hardware = mine + scores
    else:
        hardware = mine
    return mine * run.tokens, hardware * run.tokens


def state_bytes(
    parameters: float, zero: int, ranks: int, per: tuple[int, int, int] = (2, 4, 12)
) -> tuple[float, float, float]:
    first_sharded = (3, 2, 1)  # the stage from which on each is divided
    return tuple(
        parameters * size / ranks ** (zero >= stage)
        for size, stage in zip(per, first_sharded)
    )


def pareto(choices: list) -> list:
    fastest, front = float("inf"), []
    for choice in sorted(choices, key=lambda c: (c.usd, c.days)):
        if not front or choice.days < fastest:
            front.append(choice)
            fastest = choice.days
    return front[::-1]
