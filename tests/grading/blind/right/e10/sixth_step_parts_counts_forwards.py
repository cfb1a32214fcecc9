# exercise: step_parts
# differs: counts forwards, backwards and messages one by one instead of passes; starts from the
# weights, not from step_flops; the bubble from the time of one microbatch. activation_bytes lists
# what is kept with its cut, by chunks of layers.
from minitrain.planning.run import Run
from minitrain.planning.step.layer_times import elementwise_seconds


def activation_bytes(run: Run) -> float:
    model, plan = run.model, run.plan
    if plan.vpp == 1:
        chunks, forwards = plan.pp, min(run.microbatches, plan.pp)
    else:
        chunks, forwards = plan.pp * plan.vpp, plan.pp * plan.vpp + plan.pp - 1
    tokens = run.local_tokens * forwards * (model.layers / chunks)
    if plan.recompute == "full":
        return tokens * 2 * model.hidden
    along_tokens = plan.tp if plan.sp else 1
    masks = 0 if plan.modern else 2
    numbers_of_mlp = 3 if model.gated else 2
    kept = [
        (4 * 2 * model.hidden, along_tokens),
        (masks * model.hidden, along_tokens),
        (2 * 2 * model.heads * model.head_size, plan.tp),
        (2 * 2 * model.kv_heads * model.head_size, plan.tp),
        (2 * numbers_of_mlp * model.ffn, plan.tp),
    ]
    if plan.modern:
        kept.append((4 * model.heads, plan.tp))
    elif plan.recompute != "selective":
        kept.append((5 * model.heads * run.seq, plan.tp * plan.cp))
    return tokens * sum(nbytes / cut for nbytes, cut in kept)


def step_parts(run: Run, fabric) -> dict[str, float]:
    model, plan, shares = run.model, run.plan, run.chip.constants
    held, active = weights(model)
    forwards = 1 + (plan.recompute == "full")
    rate = run.gpus * run.chip.peak(plan.precision)

    per_token = 2 * active / shares.matmul
    per_token += 4 * model.layers * model.hidden * run.seq / shares.attention
    forward = per_token * run.tokens / rate
    parts = {"matmul": forwards * forward + 2 * forward}

    stage = model.layers / plan.pp
    kernels = stage * elementwise_seconds(run) * run.microbatches
    parts["elementwise"] = forwards * kernels + 2 * kernels

    nbytes = run.local_tokens * model.hidden * 2
    messages = stage * run.microbatches * (2 * forwards + 2)
    parts["tensor"] = messages * fabric.seconds("all_reduce", nbytes, plan.tp)

    of_one = sum(parts.values()) / run.microbatches
    parts["bubble"] = of_one / plan.vpp * (plan.pp - 1)

    def among_data_ranks(what, bytes_each):
        own = held / plan.pp / plan.tp
        ranks = plan.dp * plan.cp
        return fabric.seconds(what, bytes_each * own, ranks, stride=plan.tp)

    if plan.zero == 3:
        wire = 2 * among_data_ranks("all_gather", 2)
        wire += among_data_ranks("reduce_scatter", 4)
        late = run.microbatches * wire - parts["matmul"] - parts["elementwise"]
        parts["data"] = late if late > 0 else 0.0
    else:
        parts["data"] = among_data_ranks("all_reduce", 4)
    return parts
