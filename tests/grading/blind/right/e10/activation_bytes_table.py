# right: a table of kept tensors, each with its bytes and the ranks it is spread over; alive layers counted in chunks
from minitrain.planning.run import Run


def activation_bytes(run: Run) -> float:
    model, plan = run.model, run.plan
    h, ffn = model.hidden, model.ffn
    tp = plan.tp
    norm_ranks = tp if plan.sp else 1
    kept = []  # (bytes a token, ranks)
    if plan.recompute == "full":
        kept.append((2 * h, 1))
    else:
        kept += [(2 * h, norm_ranks)] * 4
        if not plan.modern:
            kept += [(h, norm_ranks)] * 2
        kept += [(2 * model.heads * model.head_size, tp)] * 2
        kept += [(2 * model.kv_heads * model.head_size, tp)] * 2
        kept += [(2 * ffn, tp)] * (3 if model.gated else 2)
        if plan.modern:
            kept.append((4 * model.heads, tp))
        elif plan.recompute == "none":
            keys = run.seq / plan.cp
            kept += [(2 * model.heads * keys, tp), (model.heads * keys, tp), (2 * model.heads * keys, tp)]
    a_token = sum(size / ranks for size, ranks in kept)
    chunk = model.layers / (plan.pp * plan.vpp)
    if plan.vpp == 1:
        chunks = plan.pp if run.microbatches > plan.pp else run.microbatches
    else:
        chunks = plan.pp * plan.vpp + plan.pp - 1
    return a_token * chunk * chunks * run.local_tokens
