# right: activations in three small functions; the search in nested loops over dp, with the fastest taken by a heap
import heapq

from minitrain.planning.run import Model, Plan, Run, make_run


def layers_alive(layers, p, v, m):
    if v > 1:
        return layers + layers * (p - 1) / (p * v)
    return layers if m >= p else layers * m / p


def bytes_by_place(model, plan, seq):
    """(whole, split) of a token and a layer."""
    h, fused = model.hidden, plan.modern
    qkvo = 4 * model.head_size * model.heads + 4 * model.head_size * model.kv_heads
    mlp = model.ffn * (6 if model.gated else 4)
    per_head = 4 if fused else 5 * seq / plan.cp
    if not fused and plan.recompute == "selective":
        per_head = 0
    return (8 if fused else 10) * h, qkvo + mlp + model.heads * per_head


def activation_bytes(run: Run) -> float:
    model, plan = run.model, run.plan
    if plan.recompute == "full":
        a_token = 2 * model.hidden
    else:
        whole, split = bytes_by_place(model, plan, run.seq)
        if plan.sp:
            a_token = (whole + split) / plan.tp
        else:
            a_token = whole + split / plan.tp
    alive = layers_alive(model.layers, plan.pp, plan.vpp, run.microbatches)
    return a_token * run.local_tokens * alive


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    limit, fitting = 0.92 * chip.memory, []
    for tp in (tp for tp in (1, 2, 4, 8) if model.heads % tp == 0):
        for pp in (pp for pp in (1, 2, 4, 8, 16) if model.layers % pp == 0):
            dp, rest = divmod(gpus, tp * pp)
            if rest:
                continue
            for micro in (micro for micro in (1, 2, 4) if batch % (dp * micro) == 0):
                for zero in (1, 3) if pp == 1 else (1,):
                    for recompute in ("none", "full"):
                        cut = {"tp": tp, "pp": pp, "dp": dp, "sp": tp > 1}
                        plan = Plan(
                            **cut, zero=zero, recompute=recompute, micro_batch=micro
                        )
                        run = make_run(chip, model, plan, seq, batch)
                        if memory_of(run) <= limit:
                            fitting.append(run)
    return heapq.nsmallest(best, fitting, key=seconds_of)
