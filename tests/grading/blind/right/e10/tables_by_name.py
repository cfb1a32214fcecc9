# right: what is divided is looked up in tables; the front keeps the running least price in a variable and takes any iterable
from minitrain.planning.run import Model, Plan, Run, make_run


def state_bytes(
    parameters: float, zero: int, ranks: int, per: tuple[int, int, int] = (2, 4, 12)
) -> tuple[float, float, float]:
    sharded = {0: (), 1: (2,), 2: (1, 2), 3: (0, 1, 2)}[zero]
    sizes = [parameters * one for one in per]
    for part in sharded:
        sizes[part] /= ranks
    weight, gradient, optimizer = sizes
    return weight, gradient, optimizer


def activation_bytes(run: Run) -> float:
    model, plan = run.model, run.plan
    t = plan.tp
    terms = []  # bytes of a token and a layer, and by what they are divided
    if plan.recompute == "full":
        terms.append((2 * model.hidden, 1))
    else:
        terms.append((8 * model.hidden, t if plan.sp else 1))
        terms.append((4 * model.head_size * model.heads, t))
        terms.append((4 * model.head_size * model.kv_heads, t))
        terms.append((4 * model.ffn, t))
        if model.gated:
            terms.append((2 * model.ffn, t))
        if plan.modern:
            terms.append((4 * model.heads, t))
        else:
            terms.append((2 * model.hidden, t if plan.sp else 1))  # dropout's masks
            if plan.recompute != "selective":
                terms.append((5 * model.heads * run.seq / plan.cp, t))
    a_token = sum(size / by for size, by in terms)
    if plan.vpp == 1:
        alive = min(plan.pp, run.microbatches) * (model.layers / plan.pp)
    else:
        alive = model.layers * (1 + (plan.pp - 1) / (plan.pp * plan.vpp))
    return alive * run.local_tokens * a_token


def pareto(choices: list) -> list:
    kept, least = [], None
    for choice in sorted(choices, key=lambda c: (c.days, c.usd)):
        if least is None or choice.usd < least:
            kept.append(choice)
            least = choice.usd
    return kept
