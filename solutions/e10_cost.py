# %% [markdown]
# # e10 · What a training run costs
#
# **Before the first chip is rented you will know what fits, how long a step takes, what it costs and in which range you
# may be wrong. You write the planner in closed forms, fit nothing, and hold it against 92 published steps.**
#
# 60 minutes · CPU is enough, and seconds of it · before: [e02 · Data parallel](e02_data_parallel.ipynb) ·
# [map of the course](index.ipynb)
#
# You build: weights and FLOPs, memory, a step's time, a search over plans, the Pareto front. You end with this picture:
#
# ![Dollars against days for training a 70B model on four chips, with the range of their prices](../labs/pictures/e10_cost.png)

# %% tags=["setup"]
from minitrain.lab import Lab, show, widgets
from minitrain.planning.step.network import fabric_of
from minitrain.planning.run import Model, Plan, Run, make_run

lab = Lab("e10_cost")

# %% [markdown]
# ## 1 · Two counts: N and the N of 6ND
#
# A weight costs memory whether it is used or not; it costs FLOPs only where it multiplies a token. In a mixture of
# experts the two differ by a factor: DeepSeek-V3 holds 671B parameters, and 37B of them multiply each token.

# %%
llama = Model(
    layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=32000
)  # Llama 2 70B
gpt = Model(96, 12288, 96, 96, 4 * 12288, 51200, gated=False)  # GPT-3's size
mixtral = Model(
    32, 4096, 32, 8, 14336, 32000, experts=8, experts_per_token=2, moe_ffn=14336
)

# %% [markdown]
# ### Exercise 1 · `weights`
#
# Difficulty 2 of 5 · 10 minutes · 8 points
#
# A layer: q, o are h x h; k, v h x `kv_heads · head_size`; the MLP has 3 matrices h x f (2 if not `gated`); two norms.
# In `moe_layers` a router h x E and E experts of `moe_ffn`, besides the shared ones, replace the MLP; an expert has as many
# matrices. Then a norm, embedding, head, each a table of its own. The model has `head_size` and `moe_layers` too.


# %% tags=["exercise"]
def weights(model: Model) -> tuple[int, int]:
    """(all parameters, those that multiply one token: matrices and head, no embedding, no
    norms). Shared experts multiply every token. About 12 lines."""
    ### BEGIN SOLUTION
    h, mixtures = model.hidden, model.moe_layers
    attention = 2 * h * model.head_size * (model.heads + model.kv_heads)
    matrices = 3 if model.gated else 2
    dense = (model.layers - mixtures) * matrices * h * model.ffn
    expert = matrices * h * model.moe_ffn
    router = mixtures * h * model.experts
    shared, chosen = model.shared_experts, model.experts_per_token
    same = model.layers * attention + dense + router + h * model.vocab
    norms = (2 * model.layers + 1) * h
    held = same + mixtures * (shared + model.experts) * expert
    return held + norms + h * model.vocab, same + mixtures * (shared + chosen) * expert
    ### END SOLUTION


# %% tags=["grade"]
weights = lab.grade(weights)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# What both counts share: attention of every layer, the dense MLPs, the routers, the head.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Attention is `2 · h · head_size · (heads + kv_heads)`: q and o, k and v. One expert is `3 · h · moe_ffn`, without a gate `2 · …`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# All: plus `experts + shared_experts` experts a mixture layer, norms `(2 · layers + 1) · h`, and the embedding. Active: plus
# `experts_per_token + shared_experts`.
#
# </details>

# %% tags=["nbval-check-output"]
for name, model in {
    "Llama 2 70B": llama,
    "GPT-3": gpt,
    "Mixtral 8x7B": mixtral,
}.items():
    held, active = weights(model)
    print(f"{name:12s} {held:15,d} parameters, {active:15,d} multiply a token")

# %% [markdown]
# ## 2 · FLOPs, the model's and the hardware's
#
# A weight is 2 FLOPs forward, 4 backward: 6 N a token. Attention's scores add 4·l·h·s forward. **MFU** counts these,
# **HFU** also what recomputation repeats: the "52% of peak" of a 2021 table is one.
#
# ### Exercise 2 · `step_flops`
#
# Difficulty 2 · 6 minutes · 8 points


# %% tags=["exercise"]
def step_flops(run: Run) -> tuple[float, float]:
    """FLOPs of one step of run.tokens, over all chips: (the model's, the hardware's).
    `full` repeats forward without the head; `selective` the scores, unless attention
    is fused (plan.modern), which keeps none. About 9 lines."""
    ### BEGIN SOLUTION
    model = run.model
    scores = 4 * model.layers * model.hidden * run.seq
    forward = 2 * weights(model)[1] + scores
    again = {
        "none": 0,
        "selective": 0 if run.plan.modern else scores,
        "full": forward - 2 * model.hidden * model.vocab,
    }[run.plan.recompute]
    return 3 * forward * run.tokens, (3 * forward + again) * run.tokens
    ### END SOLUTION


# %% tags=["grade"]
step_flops = lab.grade(step_flops)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Forward, of one token: `2 · weights(model)[1]` and the scores. Backward is twice that.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `run.tokens` is a step's; `run.plan.recompute` is "none", "selective" or "full".
#
# </details>
# <details><summary>Hint 3</summary>
#
# With `full`, forward runs once more except for the head's `2 · hidden · vocab`; the hardware does `3 · forward + again`.
#
# </details>

# %% [markdown]
# ## 3 · Memory
#
# Adam in mixed precision keeps 2 bytes of weight, 4 of FP32 gradient, and 12 of optimizer (FP32 weights, two moments).
# ZeRO shards the optimizer over the data ranks (stage 1), then gradients (2), then weights (3).
#
# **Predict**: how many 80 GB chips hold a 70B's 18 bytes a parameter, and nothing else?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 16
### LAB guess = None  # chips, your guess
### END SOLUTION
lab.predict("chips", guess)

# %% [markdown]
# ### Exercise 3 · `state_bytes`
#
# Difficulty 1 · 4 minutes · 7 points
#
# Checked against all 54 cells of the ZeRO paper's table 1, which has 2-byte gradients: `per` says how many bytes.


# %% tags=["exercise"]
def state_bytes(
    parameters: float, zero: int, ranks: int, per: tuple[int, int, int] = (2, 4, 12)
) -> tuple[float, float, float]:
    """Bytes on one rank of (weights, gradients, optimizer), which have `per` bytes a
    parameter. About 3 lines."""
    ### BEGIN SOLUTION
    shards = [ranks if zero >= stage else 1 for stage in (3, 2, 1)]
    return tuple(parameters * size / n for size, n in zip(per, shards))
    ### END SOLUTION


# %% tags=["grade"]
state_bytes = lab.grade(state_bytes)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Three numbers, each `parameters · per[i]`, divided by `ranks` or not.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The optimizer is divided from stage 1 on, gradients from stage 2, weights in stage 3.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `ranks if zero >= 3 else 1` divides the weights.
#
# </details>

# %%
held = sum(state_bytes(weights(llama)[0], 0, 1))
lab.reveal("chips", held / 80e9, note=f"{show.bytes_text(held)} before any activation")

# %% [markdown]
# ### Exercise 4 · `activation_bytes`
#
# Difficulty 4 · 15 minutes · 10 points
#
# Per token and layer forward keeps, in bytes: `full`: 2h. Else **whole** 8h (not fused: 10h, dropout's masks), which `sp`
# divides by t; and **split** by t always: 4·head_size·(heads + kv_heads), MLP 6f (no gate: 4f; the model is dense), and if
# fused 4·heads, else the scores, 5·heads·seq/cp, which `selective` drops and nothing else. Fused is `plan.modern`.

# %% [markdown]
# Then count the layers alive on the first pipeline rank. Of 1F1B it holds min(p, m) microbatches of l/p layers: p cancels.
# Interleaved, of 2p microbatches or more: l·(1 + (p-1)/(p·v)). m is `run.microbatches`.


# %% tags=["exercise"]
def activation_bytes(run: Run) -> float:
    """What the first pipeline rank keeps for backward at its fullest. About 15 lines."""
    ### BEGIN SOLUTION
    plan, model, h = run.plan, run.model, run.model.hidden
    alive = min(plan.pp, run.microbatches) / plan.pp
    if plan.vpp > 1:
        alive = 1 + (plan.pp - 1) / (plan.pp * plan.vpp)
    if plan.recompute == "full":
        return alive * model.layers * run.local_tokens * 2 * h
    whole = (8 if plan.modern else 10) * h / (plan.tp if plan.sp else 1)
    split = 4 * model.head_size * (model.heads + model.kv_heads)
    split += (6 if model.gated else 4) * model.ffn
    if plan.modern:
        split += 4 * model.heads
    elif plan.recompute == "none":
        split += 5 * model.heads * run.seq / plan.cp
    return alive * model.layers * run.local_tokens * (whole + split / plan.tp)
    ### END SOLUTION


# %% tags=["grade"]
activation_bytes = lab.grade(activation_bytes)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `run.local_tokens` are the tokens of a microbatch here. Three factors: layers alive, tokens, bytes per token and layer.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `alive = min(p, m) / p` times the layers; interleaved (`plan.vpp > 1`) another line. `full` returns early.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `whole / (t if plan.sp else 1) + split / t`; scores only if `not plan.modern and plan.recompute == "none"`.
#
# </details>

# %% [markdown]
# **Run**: figure 1 of [Korthikanti et al. 2022](https://arxiv.org/abs/2205.05198). Without sequence parallelism and
# selective recomputation none of the four models fits an 80 GB A100; with them, all do.

# %% tags=["experiment"]
from minitrain.planning.columns import run_from_row
from minitrain.planning.hardware import read_table
from minitrain.paths import data_dir

memory = []
for row in read_table(data_dir() / "published_runs.csv"):
    if row["metric"] == "activation_gib":
        run = run_from_row(row)
        m, plan = run.model, run.plan
        inner = weights(m)[0] - 2 * m.hidden * m.vocab  # without embedding and head
        states = sum(state_bytes(inner / (plan.tp * plan.pp), plan.zero, plan.dp))
        own = {
            "states_gib": states / 2**30,
            "activations_gib": activation_bytes(run) / 2**30,
        }
        memory.append({"run": run.name, **own})

names = [row["run"].replace(" selective", "\nselective") for row in memory]
with show.canvas(width=9.6, height=4.2) as (figure, ax):
    show.bars(
        names,
        {
            part: [row[key] for row in memory]
            for part, key in (
                ("states", "states_gib"),
                ("activations", "activations_gib"),
            )
        },
        y="GiB on the fullest chip",
        stacked=True,
        title="Your formulas; the activations are the paper's own to four digits",
        ax=ax,
    )
    ax.axhline(80e9 / 2**30, linestyle="--", color="#222222")
    ax.annotate("80 GB", (7.45, 76), va="bottom", ha="left", annotation_clip=False)
show.figure(
    figure,
    alt="Stacked bars of states and activations for four models, plain and with selective recomputation.",
)

# %% tags=["grade"]
lab.experiment("memory", memory)


# %% tags=["experiment"]
def draw(ax, tp, pp, zero, recompute, micro_batch):
    plan = Plan(tp=tp, sp=tp > 1, pp=pp, dp=64 // tp // pp, zero=zero, recompute=recompute, micro_batch=micro_batch)  # fmt: skip
    run = make_run("H100-SXM-80GB", llama, plan, seq=4096, global_batch=512)
    states = state_bytes(weights(llama)[0] / (tp * pp), zero, plan.dp)
    sizes = {**dict(zip(("weights", "gradients", "optimizer"), states)), "activations": activation_bytes(run)}  # fmt: skip
    start = 0.0
    for (name, size), color in zip(sizes.items(), show.COLORS):
        ax.barh(name, size / 1e9, left=start / 1e9, color=color)
        ax.annotate(
            f" {show.bytes_text(size)}", ((start + size) / 1e9, name), va="center"
        )
        start += size
    ax.axvline(80, linestyle="--", color="#222222")
    ax.invert_yaxis()
    ax.set(xlabel="GB on one chip, dashed: 80 GB", xlim=(0, max(100, 1.25e-9 * start)))
    ax.set_title(
        f"{show.bytes_text(start)}: {'fits' if start < 0.92 * 80e9 else 'does not fit'}"
    )


widgets.explore(
    draw,
    alt="Weights, gradients, optimizer and activations of a 70B on one of 64 chips, against 80 GB.",
    tp=[8, 4, 2, 1],
    pp=[4, 2, 1],
    zero=(0, 3, 1),
    recompute=["none", "selective", "full"],
    micro_batch=[1, 2, 4],
    caption="A 70B on 64 chips, by your functions. Set ZeRO to 0: which knob makes it fit again?",
)

# %% [markdown]
# ## 4 · A step on paper
#
# A chip holds a share of its peak: `chip.constants.matmul` (A100 0.75, H100 0.60) and `.attention`, given for a chip,
# never for a run. The rest: memory-bound kernels, collectives that are waited for, the bubble.
#
# **Predict**: how far off is such a model in the mean over 92 published runs, in percent?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 15
### LAB guess = None  # percent, your guess
### END SOLUTION
lab.predict("error", guess, unit="%")

# %% [markdown]
# ### Exercise 5 · `step_parts`
#
# Difficulty 4 · 15 minutes · 13 points
#
# A pass is a forward's worth: 3 a step, 4 with `full`. A rank runs `microbatches · layers / pp` layers a pass.
# Tensor ranks, which are neighbours, all-reduce 2·tokens·h bytes, twice a layer: forward, backward (once, though two
# passes), and again if `full` recomputes.

# %% [markdown]
# Given: `elementwise_seconds(run)`, of a layer's forward, one microbatch; `fabric.seconds("all_reduce", nbytes, ranks,
# stride)`, 0 for one rank. The dp · cp data ranks stand tp apart and all-reduce 4 bytes of each of their N/(t·p) gradients,
# which all shows. ZeRO-3 in its place: each microbatch two `all_gather` of 2 bytes of each of the N/(t·p), one
# `reduce_scatter` of 4; of this only what exceeds matmul + elementwise shows. The bubble: (p-1)/(v·m) of matmul +
# elementwise + tensor.

# %% tags=["exercise"]
from minitrain.planning.step.layer_times import elementwise_seconds


def step_parts(run: Run, fabric) -> dict[str, float]:
    """Seconds of a step on one rank: matmul, elementwise, tensor, bubble, data.
    Matmul FLOPs run at .matmul of chip.peak(precision), the scores' at .attention,
    over run.gpus chips. About 19 lines."""
    ### BEGIN SOLUTION
    plan, model, chip, held = run.plan, run.model, run.chip, run.chip.constants
    passes = 4 if plan.recompute == "full" else 3
    scores = 4 * model.layers * model.hidden * run.seq * run.tokens
    flops = step_flops(run)[0] / 3 - scores
    forward = flops / held.matmul + scores / held.attention
    matmul = passes * forward / (run.gpus * chip.peak(plan.precision))
    layers = run.microbatches * model.layers / plan.pp
    elementwise = passes * layers * elementwise_seconds(run)
    message = 2 * run.local_tokens * model.hidden
    tensor = 2 * (passes - 1) * layers * fabric.seconds("all_reduce", message, plan.tp)
    work = matmul + elementwise + tensor
    bubble = work * (plan.pp - 1) / (plan.vpp * run.microbatches)
    owned, across = (
        weights(model)[0] / (plan.tp * plan.pp),
        (plan.dp * plan.cp, plan.tp),
    )
    data = fabric.seconds("all_reduce", 4 * owned, *across)
    if plan.zero == 3:
        gather = fabric.seconds("all_gather", 2 * owned, *across)
        scatter = fabric.seconds("reduce_scatter", 4 * owned, *across)
        data = run.microbatches * (2 * gather + scatter)
        data = max(0.0, data - matmul - elementwise)
    parts = {"matmul": matmul, "elementwise": elementwise, "tensor": tensor}
    return {**parts, "bubble": bubble, "data": data}
    ### END SOLUTION


# %% tags=["grade"]
step_parts = lab.grade(step_parts)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Forward's FLOPs are a third of `step_flops(run)[0]`; take the scores out, since they run at another rate.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `elementwise = passes · layers · elementwise_seconds(run)`; `tensor = 2 · (passes - 1) · layers · all-reduce`: backward
# counts as two passes, but all-reduces as often as forward.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `matmul = passes · (flops / held.matmul + scores / held.attention) / (run.gpus · chip.peak(plan.precision))`, with
# `scores = 4 · layers · hidden · seq · run.tokens`.
#
# </details>

# %% [markdown]
# **Run**: every published step that is known here in 16 bits, and the course's own planner beside yours: an event-driven
# clock over the pipeline's operations, with the same constants.

# %% tags=["experiment"]
from minitrain.planning.validate import published_steps
from minitrain.planning.step.step import estimate

tables = [
    "Korthikanti table 5",
    "SC21 table 1",
    "Llama 3 405B table 4",
    "MPT benchmarks",
]
errors = []
for found in published_steps():
    run = found.run
    if found.table in tables and run.plan.precision != "fp8":
        parts = step_parts(run, fabric_of(run.chip, run.per_node))
        seconds = {
            "published_seconds": found.seconds,
            "yours_seconds": sum(parts.values()),
            "planner_seconds": estimate(run).seconds,
        }
        errors.append({"table": found.table, "run": run.name, **seconds, **parts})


def mean_error(rows, seconds) -> float:
    """In percent, of |seconds(row) / published - 1|."""
    off = [abs(seconds(row) / row["published_seconds"] - 1) for row in rows]
    return 100 * sum(off) / len(off)


with show.canvas(columns=2, height=4.0) as (figure, (left, right)):
    parts, curves = ["matmul", "elementwise", "tensor", "bubble", "data"], {}
    for table, color, marker in zip(tables, show.COLORS, show.MARKERS):
        rows = [row for row in errors if row["table"] == table]
        x, y = (
            [row[key] for row in rows] for key in ("published_seconds", "yours_seconds")
        )
        left.plot(x, y, marker, color=color, alpha=0.8, label=table)
        curves[table] = (
            range(1, 6),
            [
                mean_error(rows, lambda row, n=n: sum(row[p] for p in parts[:n]))
                for n in range(1, 6)
            ],
        )
    low, high = 0.1, 200
    left.plot([low, high], [low, high], color="#222222", linewidth=1)
    left.fill_between(
        [low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color="#dddddd"
    )
    left.set(
        xscale="log", yscale="log", xlabel="published step (s)", ylabel="your step (s)"
    )
    left.set_title("Yours against published, grey: 10%")
    left.legend(fontsize=8)
    show.lines(
        curves,
        x="",
        y="mean error (%)",
        title="… as parts are added",
        labels="none",
        ax=right,
    )
    right.get_legend().remove()
    right.set_xticks(
        range(1, 6), ["matmul", "+ element-\nwise", "+ tensor", "+ bubble", "+ data"]
    )
    right.set_ylim(0)
show.figure(
    figure,
    alt="Left: your step time against the published one, near the diagonal. Right: the error falls as parts are added.",
)
lab.reveal(
    "error",
    mean_error(errors, lambda row: row["yours_seconds"]),
    note=f"the event-driven planner: {mean_error(errors, lambda r: r['planner_seconds']):.1f}%",
)

# %% tags=["grade"]
lab.experiment("errors", errors)

# %% [markdown]
# **Explain**: matmuls alone miss 21% (MPT) to 37% (SC21). Each table needs another part: MPT the memory-bound kernels,
# Korthikanti the collectives, Llama 3 the bubble and the gradients. None was fitted to a run. What yours lacks: sends
# between stages, small kernels, overlap that is not free.

# %% [markdown]
# **Question**: "1T full" of Korthikanti's table 5 runs 64 stages with 512 microbatches. What share of *your* step is its
# bubble?

# %% tags=["question"]
deep = next((row for row in errors if row["run"] == "1T full"), None)
### BEGIN SOLUTION
bubble_share = deep["bubble"] / deep["yours_seconds"]
### LAB bubble_share = None  # your answer, between 0 and 1
### END SOLUTION
show.table([deep])

# %% tags=["grade"]
lab.answer("bubble_share", bubble_share)

# %% [markdown]
# ## 5 · Search
#
# Which cut of the model over the cluster is best? Nobody knows by heart, and nobody needs to: a formula costs
# microseconds. Make every legal plan, drop what does not fit, time the rest.
#
# ### Exercise 6 · `best_plans`
#
# Difficulty 3 · 10 minutes · 8 points

# %% tags=["exercise"]
from itertools import product


def best_plans(
    model, chip, gpus, seq, batch, memory_of, seconds_of, best=5
) -> list[Run]:
    """The fastest runs that fit, fastest first. tp of 1 2 4 8 dividing heads, pp of 1 2 4
    8 16 dividing layers, dp the rest, dp · micro_batch dividing batch, zero 1 or 3 (no 3 with pp > 1),
    recompute none or full, micro_batch 1 2 4, sp where tp > 1, the rest as Plan() has it. Fits:
    memory_of(run) is at most 92% of chip.memory. Each run is asked for its memory once, and what fits, only
    that, timed once. Of equally fast ones any. About 13 lines."""
    ### BEGIN SOLUTION
    fitting = []
    sizes = (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 3), ("none", "full"), (1, 2, 4)
    for tp, pp, zero, recompute, micro in product(*sizes):
        if gpus % (tp * pp) or model.heads % tp or model.layers % pp:
            continue
        dp = gpus // (tp * pp)
        if batch % (dp * micro) or (zero == 3 and pp > 1):
            continue
        plan = Plan(tp=tp, sp=tp > 1, pp=pp, dp=dp, zero=zero, recompute=recompute, micro_batch=micro)  # fmt: skip
        run = make_run(chip, model, plan, seq, batch)
        if memory_of(run) <= 0.92 * chip.memory:
            fitting.append(run)
    return sorted(fitting, key=seconds_of)[:best]
    ### END SOLUTION


# %% tags=["grade"]
best_plans = lab.grade(best_plans)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `product(tps, pps, zeros, recomputes, micros)` gives every combination; `continue` past those that are not legal.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `dp = gpus // (tp * pp)`, where that divides; then `batch % (dp * micro)` must be 0. `make_run(chip, model, plan, seq, batch)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Collect the runs with `memory_of(run) <= 0.92 * chip.memory`, then `sorted(fitting, key=seconds_of)[:best]`.
#
# </details>


# %%
def memory_of(run):
    part = weights(run.model)[0] / (run.plan.tp * run.plan.pp)
    return sum(state_bytes(part, run.plan.zero, run.plan.dp)) + activation_bytes(run)


def seconds_of(run):
    return sum(step_parts(run, fabric_of(run.chip, run.per_node)).values())


from minitrain.planning.hardware import find_chip

H100 = find_chip("H100-SXM-80GB")
shown = ("tp", "pp", "dp", "zero", "recompute", "micro_batch")
plans = best_plans(llama, H100, 512, 4096, 1024, memory_of, seconds_of)
show.table(
    [
        {k: getattr(run.plan, k) for k in shown}
        | {"step": seconds_of(run), "memory": memory_of(run)}
        for run in plans
    ],
    caption="The best plans of a 70B on 512 H100, 4M tokens a step",
    formats={"step": show.seconds_text, "memory": show.bytes_text},
)

# %% [markdown]
# ## 6 · Money is a range
#
# Time and power follow from physics; a price is an agreement. `data/prices.csv` holds what pages printed, each with its
# date and source.
#
# **Predict**: how many times the cheapest on-demand hour of an H100 does the dearest cost?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 3
### LAB guess = None  # a factor, your guess
### END SOLUTION
lab.predict("price_ratio", guess, unit="x")

# %% [markdown]
# **Run**: Llama 2 70B's two trillion tokens, on four chips and 64 to 4,096 of them, each with the best plan of your
# search. B200 and H200 have constants of their kin: no run on them was fitted.

# %% tags=["experiment"]
from minitrain.planning.money.cost import Site, energy_kwh
from minitrain.planning.money.goodput import Failures, goodput
from minitrain.planning.money.prices import offers, price_of

tokens, clouds = lab.size("tokens"), []
for name, gpus in product(lab.size("chips"), lab.size("gpus")):
    chip, price = find_chip(name), price_of(name)
    for run in best_plans(llama, chip, gpus, 4096, 1024, memory_of, seconds_of, 1):
        hours = tokens / run.tokens * seconds_of(run) / 3600 * gpus
        hours /= goodput(Failures(), gpus)  # failures as often as Llama 3's
        kwh = energy_kwh(hours, chip, Site())  # PUE 1.2, chips at their power limit
        clouds.append(
            {
                "chip": name,
                "gpus": gpus,
                "days": hours / gpus / 24,
                "chip_hours": hours,
                "usd_low": hours * price.low,
                "usd": hours * price.typical,
                "usd_high": hours * price.high,
                "mwh": kwh / 1000,
                "tonnes_france": kwh * 57e-6,  # grams of CO2 per kWh: 57 ...
                "tonnes_coal": kwh * 820e-6,  # ... and 820
            }
        )
thousands = {
    key: lambda v: f"{v / 1e3:,.0f}k"
    for key in ("chip_hours", "usd_low", "usd", "usd_high")
}
show.table(
    [row for row in clouds if row["gpus"] == 512], formats=thousands, highlight="usd"
)
price = price_of("H100-SXM-80GB")
lab.reveal(
    "price_ratio", price.high / price.low, note=f"{price.low} to {price.high} dollars"
)

# %% tags=["grade"]
lab.experiment("clouds", clouds)

# %% [markdown]
# **Explain**: your step is off by a tenth, the price by a factor of eight. Meta reports 1,720,320 A100-hours for this
# model, half again as many as yours: a plan of 2023, and all that a formula leaves out. Its 291 tonnes of CO2 are hours
# times 400 W times a grid's grams, no measurement.

# %% [markdown]
# ### Exercise 7 · `pareto`
#
# Difficulty 2 · 5 minutes · 6 points
#
# A choice is worth a look only if no other is at least as good in days *and* dollars. Sort once, sweep once.


# %% tags=["exercise"]
def pareto(choices: list) -> list:
    """Those that no other beats, fastest first; `choices`, perhaps empty, stays as it is.
    A choice has .days and .usd; of two that are equal, one is enough. About 5 lines."""
    ### BEGIN SOLUTION
    front = []
    for choice in sorted(choices, key=lambda c: (c.days, c.usd)):
        if not front or choice.usd < front[-1].usd:
            front.append(choice)
    return front
    ### END SOLUTION


# %% tags=["grade"]
pareto = lab.grade(pareto)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Walk from the fastest to the slowest: who comes later is slower, so it must be cheaper.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Cheaper than what? Than the cheapest so far, which is the last one kept.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `for choice in sorted(choices, key=lambda c: (c.days, c.usd))`: keep it if `choice.usd < front[-1].usd`.
#
# </details>

# %% tags=["picture"]
from minitrain.planning.money.cost import Choice

choices = [
    Choice(f"{row['gpus']} {row['chip'].partition('-')[0]}, {offer.seller[:14]}",
           row["days"], row["chip_hours"] * offer.usd / 1e6)
    for row in clouds
    for offer in offers(row["chip"], "on-demand")
]  # fmt: skip
front = pareto(choices)
with show.canvas(width=8.6, height=5.2) as (figure, ax):
    for name, color, marker in zip(lab.size("chips"), show.COLORS, show.MARKERS):
        short = name.partition("-")[0]
        own = [c for c in choices if f" {short}," in c.label]
        x, y = [c.days for c in own], [c.usd for c in own]
        ax.plot(x, y, marker, color=color, alpha=0.75, label=short)
    ax.step(
        [c.days for c in front],
        [c.usd for c in front],
        where="post",
        color="#222222",
        label="front",
    )
    for choice in (front[0], front[len(front) // 2], front[-1]):
        below = choice is not front[0]
        ax.annotate(choice.label.replace(", ", ",\n"), (choice.days, choice.usd), xytext=(6, -24) if below else (-6, 8), textcoords="offset points", fontsize=9)  # fmt: skip
    ax.set(
        xscale="log", yscale="log", xlabel="days of training", ylabel="million dollars"
    )
    ax.set_yticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
    ax.set_xticks([3, 10, 30, 100, 300], ["3", "10", "30", "100", "300"])
    ax.set_title("Llama 2 70B on 2T tokens: each point one offer of data/prices.csv")
    ax.legend()
show.figure(
    figure,
    alt="Million dollars against days, both logarithmic: every offer for four chips, with the Pareto front.",
)

# %% [markdown]
# Nobody rents 2,048 chips at a marketplace's price for eight: the lower edge says where to ask.
#
# **Question**: the run must be done in 30 days. Which row of `clouds` is the cheapest at the typical price, `usd`? Answer
# as "512 H100-SXM-80GB".

# %% tags=["question"]
### BEGIN SOLUTION
in_time = [row for row in clouds if row["days"] <= 30]
best = min(in_time, key=lambda row: row["usd"])
deadline = f"{best['gpus']} {best['chip']}"
### LAB deadline = None  # your answer: "gpus chip"
### END SOLUTION

# %% tags=["grade"]
lab.answer("deadline", deadline)


# %% tags=["experiment"]
def draw_front(ax, deadline_days, price, trillion_tokens):
    key = {"low": "usd_low", "typical": "usd", "high": "usd_high"}[price]
    scale = trillion_tokens / 2
    options = [
        Choice(f"{r['gpus']} {r['chip']}", scale * r["days"], scale * r[key] / 1e6)
        for r in clouds
    ]
    kept = pareto(options)
    ax.plot([c.days for c in options], [c.usd for c in options], "o", color="#bbbbbb")
    ax.plot([c.days for c in kept], [c.usd for c in kept], "o-", color=show.COLORS[0])
    ax.axvline(deadline_days, linestyle="--", color=show.COLORS[1])
    in_time = [c for c in kept if c.days <= deadline_days]
    best = min(in_time, key=lambda c: c.usd).label if in_time else "nothing is done"
    ax.set(xscale="log", xlabel="days", ylabel="million dollars", ylim=(0, None))
    ax.set_title(f"in {deadline_days} days: {best}")


widgets.explore(
    draw_front,
    alt="The front of dollars against days, with a deadline, at a price and a number of tokens.",
    deadline_days=(5, 365, 30),
    price=["typical", "low", "high"],
    trillion_tokens=[2, 1, 5, 15],
    caption="Grey: every chip and size at this price. In a hurry you pay for waiting and bubbles.",
)

# %% [markdown]
# ## 7 · How large a model at all?
#
# For C FLOPs: Kaplan (2020) said large models, few tokens; Chinchilla (2022), about 20 tokens a parameter. But who
# *serves* the model pays 2 N for each token again. So a smaller one, trained longer, is better
# ([Sardana et al. 2024](https://arxiv.org/abs/2401.00448)).

# %% tags=["experiment"]
from minitrain.planning.scaling.frontier import KAPLAN, within_budget

budgets, services = [1e21, 1e22, 1e23, 1e24, 1e25], [0, 1e12, 1e13]
chinchilla = []
for flops, served in product(budgets, services):
    best = within_budget(flops, served)
    sizes = {"parameters": best.parameters, "tokens": best.tokens, "loss": best.loss}
    ratio = best.tokens / best.parameters
    chinchilla.append(
        {"flops": flops, "served": served, **sizes, "tokens_a_parameter": ratio}
    )

named = {0: "Chinchilla", 1e12: "1T served", 1e13: "10T served"}
curves = {
    name: (
        budgets,
        [row["parameters"] for row in chinchilla if row["served"] == served],
    )
    for served, name in named.items()
}
with show.canvas(width=8.0, height=4.6) as (figure, ax):
    kaplan = {"Kaplan": (budgets, [KAPLAN.parameters(flops) for flops in budgets])}
    show.lines(
        curves,
        theory=kaplan,
        x="FLOPs, of training and serving",
        y="parameters",
        log="xy",
        ax=ax,
    )
    models = {
        "GPT-3": (175e9, 3e11),
        "Chinchilla 70B": (70e9, 1.4e12),
        "Llama 3 8B": (8e9, 15e12),
    }
    for name, (n, d) in models.items():
        ax.plot(6 * n * d, n, "*", markersize=11, color="#222222")
        ax.annotate(name, (6 * n * d, n), xytext=(9, -4), textcoords="offset points")
    ax.set_title("The best size for a budget; stars: what was trained")
show.figure(
    figure,
    alt="Best parameters against FLOPs by Kaplan and Chinchilla, with and without serving; three real models.",
)

# %% tags=["grade"]
lab.experiment("chinchilla", chinchilla)

# %% [markdown]
# **Explain**: GPT-3 lies between Kaplan's line and Chinchilla's, Chinchilla on its own. Llama 3 8B lies far below both:
# 1,900 tokens a parameter is the choice of someone who serves.
#
# **Question**: at 1e25 FLOPs with ten trillion tokens served, how large is the best model, relative to the one without
# serving?

# %% tags=["question"]
### BEGIN SOLUTION
last = {r["served"]: r["parameters"] for r in chinchilla if r["flops"] == 1e25}
served_size = last[1e13] / last[0]
### LAB served_size = None  # your answer: N with serving / N without
### END SOLUTION
show.table(
    chinchilla[-3:], formats={"parameters": show.count_text, "tokens": show.count_text}
)

# %% tags=["grade"]
lab.answer("served_size", served_size)

# %% [markdown]
# > **On GPUs.** Nothing here changes. With one, run e01's roofline and set your own `matmul` share beside 0.75 and 0.60.
#
# On the command line: `python -m minitrain plan`, `plan front`, `plan own`. After closed_forms.py read
# [step.py](../minitrain/planning/step/step.py), where a clock replaces your bubble and your overlap.

# %%
lab.score(read="minitrain/planning/closed_forms.py")
