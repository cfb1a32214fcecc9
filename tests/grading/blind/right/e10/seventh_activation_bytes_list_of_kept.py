# exercise: activation_bytes
# differs: a list of kept tensors with their bytes and whether tp, sp or nobody cuts them; layers
# alive as chunks times a chunk's layers
from minitrain.planning.run import Run


def activation_bytes(run: Run) -> float:
    model, plan = run.model, run.plan
    h, f, a, d = model.hidden, model.ffn, model.heads, model.head_size
    p, v, t = plan.pp, plan.vpp, plan.tp
    chunks = p * v + p - 1 if v > 1 else min(p, run.microbatches)
    layers_alive = chunks * model.layers / (p * v)

    if plan.recompute == "full":
        kept = [("input", 2 * h, 1)]
    else:
        along_tokens = t if plan.sp else 1
        kept = [("norms, q/k/v, mlp inputs", 4 * 2 * h, along_tokens)]
        if not plan.modern:
            kept.append(("two dropout masks", 2 * h, along_tokens))
        kept.append(("q and result", 2 * 2 * a * d, t))
        kept.append(("k and v", 2 * 2 * model.kv_heads * d, t))
        kept.append(("mlp", 2 * f * (3 if model.gated else 2), t))
        if plan.modern:
            kept.append(("log of the softmax's sum", 4 * a, t))
        elif plan.recompute != "selective":
            keys = run.seq / plan.cp
            kept += [(name, size * a * keys, t) for name, size in
                     (("softmax", 2), ("mask", 1), ("dropped", 2))]
    a_token = sum(size / cut for _, size, cut in kept)
    return layers_alive * run.local_tokens * a_token
