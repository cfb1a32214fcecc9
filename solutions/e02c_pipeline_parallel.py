# %% [markdown]
# # e02c · Pipeline parallel
#
# **Cut a model into stages, one a rank, and keep all of them busy. You write three schedules as plain lists, the executor
# that runs them, and measure what they waste and what they hold.**
#
# 90 minutes · CPU is enough · before: [e02 · Data parallel](e02_data_parallel.ipynb) · next:
# [e02d · Expert parallel](e02d_expert_parallel.ipynb) · [map of the course](index.ipynb)
#
# You build: the stage split, GPipe, 1F1B, the executor of one rank, and interleaved 1F1B. You end with this picture: four
# schedules of the same work, one under another, with what each leaves idle.
#
# ![Timelines of GPipe, 1F1B, interleaved 1F1B and zero-bubble on 4 ranks: the hatched idle time shrinks from the first to the last](../labs/pictures/e02c_pipeline_parallel.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, ideas, show, widgets
from minitrain.ranks.launch import launch

lab = Lab("e02c_pipeline_parallel")

# %% [markdown]
# ## 1 · Cut the model
#
# Data parallel needs the whole model on each rank. Tensor parallel cuts it, and sends four messages a layer. A third way is to
# cut *between* layers: rank $r$ gets some of them, and hands what it made to the next rank.

# %%
ideas.pipeline_stages()

# %% [markdown]
# A rank with its layers is a **stage**. Across each border travels one activation $x$ of $B \cdot T \cdot D$ numbers ($B$
# sequences of $T$ tokens, $D$ numbers each) in forward, and its gradient in backward. However many layers a stage has,
# that is all: no other parallelism sends so little, which is why pipelines cross the slow network between nodes.
#
# The price is waiting, and it is this lab's subject. Every stage waits for its neighbour, so that the slowest sets
# everyone's pace: stages should be even. The ends hold embedding and head besides, as the picture shows. So the remainder,
# where the layers do not divide evenly, goes to the middle.

# %% [markdown]
# ### Exercise 1 · `split_layers`
#
# Difficulty 1 of 5 · 4 minutes · 6 points
#
# How many layers does each stage get? As even as possible; what remains goes to stages in the middle, one each.
# `split_layers(10, 4)` is `[2, 3, 3, 2]`. Which in the middle is yours to choose; there may be fewer layers than stages.


# %% tags=["exercise"]
def split_layers(layers: int, stages: int) -> list[int]:
    """Layers of each stage: they add up to `layers` and differ by one at most;
    the first and the last stage are longer only where all between are.
    About 6 lines."""
    ### BEGIN SOLUTION
    base, more = divmod(layers, stages)
    first = (stages - more) // 2
    return [base + (first <= i < first + more) for i in range(stages)]
    ### END SOLUTION


# %% tags=["grade"]
split_layers = lab.grade(split_layers)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `divmod(layers, stages)`: what every stage has, and how many have one more.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The longer stages stand together, with as many shorter ones before them as behind.
#
# </details>
# <details><summary>Hint 3</summary>
#
# With `base, more = divmod(layers, stages)` the first longer one is stage `(stages - more) // 2`.
#
# </details>

# %% [markdown]
# ## 2 · A schedule is a list
#
# One batch, sent through whole, would keep one rank busy at a time: rank 1 has nothing to do before rank 0 is done. So the
# batch is cut into $m$ **microbatches**, and while rank 1 computes one, rank 0 can compute the next. The question is in
# which order.

# %% [markdown]
# We write the answer as plain data. `Operation("F", 3)` is the forward of microbatch 3 on this rank, `Operation("B", 3)` its
# backward. A `Schedule` has one list of them for each rank, and that is all: whoever runs the list needs nothing else. An operation
# waits for its *source*, the neighbour's operation that it works on. Only the first stage's F and the last stage's B have
# none: one begins with the tokens, the other with the loss of its own forward.

# %% tags=["nbval-check-output"]
from minitrain.parallel.pipeline.operations import Operation, Schedule

order = [Operation(kind, i) for i in (0, 1) for kind in "FB"]  # F0 B0 F1 B1
naive = Schedule("naive", 2, 1, [order] * 3)  # 2 microbatches, 1 chunk, 3 ranks
print("source of rank 1's F0:", *naive.source(1, Operation("F", 0)))
print("source of rank 1's B0:", *naive.source(1, Operation("B", 0)))


# %%
show.draw_schedule(naive, title="One microbatch at a time: two ranks wait")


# %% [markdown]
# Read the grid as follows: a row is a rank, time goes to the right, a box is an operation with its microbatch's number, and
# what is hatched is idle (the *bubble*). An activation is *alive* from its forward until its backward. This first schedule
# finishes a microbatch before the next one begins. It has two microbatches, and gains nothing from it.
#
# **GPipe** ([Huang et al. 2019](https://arxiv.org/abs/1811.06965)) runs all forwards and then all backwards. Here with three
# microbatches; move the slider down to one and up to four, and watch what a microbatch costs:

# %%
ideas.pipeline_microbatches()

# %% [markdown]
# The idle time of a rank stays what it is, and more and more work shares it.
#
# **Predict**: with $p = 4$ ranks, $m = 16$ microbatches, and a backward that takes twice a forward: what share of the step is
# a rank idle under GPipe?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 3 / 19
### LAB guess = None  # a share from 0 to 1, your guess
### END SOLUTION
lab.predict("gpipe_bubble", guess, unit="share")


# %% [markdown]
# ### Exercise 2 · `gpipe`
#
# Difficulty 1 · 4 minutes · 6 points
#
# [Huang et al. 2019](https://arxiv.org/abs/1811.06965): all forwards, then all backwards, each from microbatch 0 on, the
# same list on every rank. The third argument of `Schedule`, here 1, is the number of chunks of the model that a rank has:
# one, until section 7 cuts smaller.


# %% tags=["exercise"]
def gpipe(p: int, m: int) -> Schedule:
    """p ranks, m microbatches (0 to m-1); `Schedule("gpipe", m, 1, orders)`
    with one list for each rank. About 4 lines."""
    ### BEGIN SOLUTION
    forwards = [Operation("F", i) for i in range(m)]
    backwards = [Operation("B", i) for i in range(m)]
    return Schedule("gpipe", m, 1, [forwards + backwards] * p)
    ### END SOLUTION


# %% tags=["grade"]
gpipe = lab.grade(gpipe)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Two list comprehensions, one after the other.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `[Operation("F", i) for i in range(m)]`, and the same with `"B"`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `[order] * p` is a list of p orders.
#
# </details>

# %%
from minitrain.parallel.pipeline.timeline import clocked, peak_live

clock = clocked(gpipe(4, 16))  # a forward takes 1, a backward 2
lab.reveal("gpipe_bubble", clock.bubble(0) / clock.makespan, p=4, m=16)
show.draw_schedule(gpipe(4, 8), title="GPipe, 4 ranks and 8 microbatches")

# %% [markdown]
# **Explain**: let a forward of one microbatch on one rank take $t_F$ seconds, a backward $t_B$. Microbatch 0 reaches the last
# rank after $p - 1$ forwards, which then works through its $m$; the last rank is done with forwards at
# $(m + p - 1)\,t_F$. Backwards come back in the same way, and so
#
# $$\text{step} = (m + p - 1)(t_F + t_B), \qquad \text{work of a rank} = m\,(t_F + t_B)$$
#
# The difference is the **bubble**, $(p-1)(t_F + t_B)$ on every rank, whatever $m$ is. With $p = 4$ and the $m = 8$ of the
# picture:
#
# $$\frac{\text{bubble}}{\text{step}} = \frac{p-1}{m+p-1} = \frac{3}{11} = 27\%, \qquad \frac{\text{bubble}}{\text{work}} = \frac{p-1}{m} = \frac{3}{8} = 38\%$$

# %% [markdown]
# Papers quote both. Your guess was of the first, $3/19 = 16\%$ with $m = 16$; the caption under the picture has the second.
# Neither depends on how long a forward takes. More microbatches make the bubble a smaller share.
#
# But the caption also says the price: 8 activations alive on every rank. A forward saves what its backward will need, GPipe
# runs all forwards first, and so every rank holds all $m$ at once. Where memory is what made you cut the model, that is
# the wrong thing to pay with.

# %% [markdown]
# ## 3 · Backward as soon as you can
#
# A backward frees what its forward saved. So run it at the first chance: **1F1B**, one forward and one backward in turn
# ([Narayanan et al. 2019](https://arxiv.org/abs/1806.03377)). Compare it with GPipe by the handle:

# %%
ideas.pipeline_order()

# %% [markdown]
# The last rank can alternate at once: it has microbatch 0's loss after its forward, and runs F0 B0 F1 B1. The ranks above wait
# for their first gradient. Meanwhile they should run forwards, but how many?
#
# Rank $r$ has $p - 1 - r$ ranks below it. To keep all of them supplied until the first gradient is back, it needs one
# microbatch under way in each: $p - 1 - r$ forwards **ahead**, framed in the picture. Then come turns of one forward and
# one backward. A turn begins with its forward, so that the picture shows $p - r$ forwards before the first backward, and
# $p - r$ are alive at most. When no forward is left, the backwards that remain follow.

# %% [markdown]
# How long does it take? The last rank begins after $(p-1)\,t_F$, alternates without a gap for $m\,(t_F + t_B)$, and its last
# gradient climbs through $p - 1$ backwards: together $(m + p - 1)(t_F + t_B)$, GPipe's step to the second. What is moved is
# not the idle time but the moment when memory is given back: rank 0 of 4 holds 4 activations instead of $m$, and $m$ may
# grow as it likes.

# %% [markdown]
# ### Exercise 3 · `one_forward_one_backward`
#
# Difficulty 3 · 12 minutes · 14 points
#
# Rank r runs p-1-r forwards ahead (never more than m), then one forward and one backward in turn, then the backwards that are
# left; each kind begins with microbatch 0. With p = 2, m = 3, rank 0 runs F0 F1 B0 F2 B1 B2.


# %% tags=["exercise"]
def one_forward_one_backward(p: int, m: int) -> Schedule:
    """1F1B for p ranks and m microbatches, `Schedule("1f1b", m, 1, orders)`:
    rank r never holds more than p-r activations. About 10 lines."""
    ### BEGIN SOLUTION
    orders = []
    for r in range(p):
        ahead = min(p - 1 - r, m)
        order = [Operation("F", i) for i in range(ahead)]
        for i in range(m - ahead):
            order += [Operation("F", ahead + i), Operation("B", i)]
        order += [Operation("B", i) for i in range(m - ahead, m)]
        orders.append(order)
    return Schedule("1f1b", m, 1, orders)
    ### END SOLUTION


# %% tags=["grade"]
one_forward_one_backward = lab.grade(one_forward_one_backward)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Three parts for each rank: `ahead` forwards, pairs, and as many backwards as there were forwards ahead.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The i-th pair is F(ahead + i) and B(i). How many pairs are there, until the forwards run out?
#
# </details>
# <details><summary>Hint 3</summary>
#
# `for i in range(m - ahead): order += [Operation("F", ahead + i), Operation("B", i)]`, then B(m - ahead) to B(m - 1).
#
# </details>

# %%
show.draw_schedule(one_forward_one_backward(4, 8), title="1F1B, the same work")

# %% [markdown]
# ## 4 · Run the list
#
# Now a real executor. A rank walks its list of tuples `(kind, microbatch, chunk)`:
#
# - **F**: receive $x$ from the previous rank, compute `out`, send it on, and keep both. Send `out.detach()`, the numbers alone:
#   a send under way keeps its tensor alive, and `out` would keep the whole graph alive with it.
# - **B**: receive the gradient of `out` from the next rank, call `out.backward(…)` with it, send `x.grad` back, and let go of
#   both.
#
# Between ranks there is no autograd graph: you carry the chain rule across each border by hand. So $x$, which came out
# of a buffer, has to be made a leaf that requires a gradient.

# %% [markdown]
# Why must a send not wait? In 1F1B on two ranks rank 0 sends the activation of F1 down while rank 1 sends the gradient of B0 up. If both
# waited until the other had received, neither would ever come to its receive. So a send is only *begun*, with `isend`, and
# waited for after the last operation.
#
# Stages come from `cut`, which gives a rank its blocks by your numbers of layers:

# %%
from minitrain.data.loader import Batch
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.parallel.pipeline.stages import cut

width, layers = lab.size("width"), lab.size("layers")
sizes = {"heads": 4, "kv_heads": 4, "ffn_size": 3 * width}
config = ModelConfig(256, width, layers, **sizes)
p = lab.size("ranks")

# %% [markdown]
# The data makes one mistake visible: every second microbatch is half empty.


# %%
rows, length = lab.size("rows"), lab.size("length")


def microbatches(m):
    """Every second one has half of its targets: the rest is padding, -100."""
    shape = (m, rows, length + 1)
    text = torch.randint(256, shape, generator=torch.Generator().manual_seed(0))
    text[1::2, :, length // 2 :] = -100
    places = torch.arange(length).expand(rows, length)
    one = torch.zeros_like(places)
    return [Batch(t[:, :-1].clamp(min=0), t[:, 1:], one, places) for t in text]


print([batch.tokens_counted for batch in microbatches(4)], "targets that count")


# %% [markdown]
# The loss $L$ of the step is the mean over **all** $n = \sum_i n_i$ targets, where microbatch $i$ has $n_i$ of them, and
# $\ell_t$ is the cross-entropy of target $t$:
#
# $$L = \frac{1}{n} \sum_{i} \sum_{t \in i} \ell_t = \sum_i L_i, \qquad L_i = \frac{1}{n} \sum_{t \in i} \ell_t$$
#
# A gradient of a sum is the sum of gradients, and `.grad` adds up by itself: so the last rank runs each backward from $L_i$,
# the microbatch's *summed* loss over the count of **all**. That is `token_weighted_loss(logits, targets, total)` of e01.
# Each microbatch's own mean would weigh a target of a half-empty microbatch about twice, 1/62 instead of 1/128.

# %% [markdown]
# ### Exercise 4 · `run_operations`
#
# Difficulty 5 · 25 minutes · 20 points
#
# `group.recv(buffer, source)` fills a buffer and returns it; `stage.message(batch)` makes such a buffer on any rank: $x$ and
# every gradient that travels have its size. `group.isend(tensor, to)` returns a handle at once (torch calls it a *work*);
# `wait` for all of these at the very end, none before. Nothing else travels. `stage(x, batch)` takes `x=None` on rank 0, and gives logits
# on the last rank; a single rank is both. Every `batch` knows its `tokens_counted`.


# %% tags=["exercise"]
from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    """Runs this rank's `order`; adds the gradients of the mean loss over the
    tokens of all `batches` to what `.grad` holds. Returns that loss on the last
    rank, 0 (a tensor or a number) on others; `order` and `batches` stay as they
    are. About 19 lines."""
    ### BEGIN SOLUTION
    total = sum(batch.tokens_counted for batch in batches)
    loss, last, passes, works = torch.zeros(()), group.size - 1, {}, []
    for kind, i, _ in order:
        if kind == "F":
            x = None
            if group.rank > 0:
                x = group.recv(stage.message(batches[i]), group.rank - 1)
                x.requires_grad_()
            out = stage(x, batches[i])
            if group.rank < last:
                works.append(group.isend(out.detach(), group.rank + 1))
            else:
                out = token_weighted_loss(out, batches[i].targets, total)
                loss = loss + out.detach()
            passes[i] = x, out
        else:
            x, out = passes.pop(i)
            dy = None
            if group.rank < last:
                dy = group.recv(torch.empty_like(out), group.rank + 1)
            out.backward(dy)
            if x is not None:
                works.append(group.isend(x.grad, group.rank - 1))
    for work in works:
        work.wait()
    return loss
    ### END SOLUTION


# %% tags=["grade"]
run_operations = lab.grade(run_operations)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Keep `passes[i] = x, out` in F and `pop` it in B. An operation is a tuple: `for kind, i, _ in order:`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# On the last rank `out` becomes the loss's share, and its backward needs no gradient: `out.backward(None)` is
# `out.backward()`. `x.requires_grad_()` before the forward, else `x.grad` stays None.
#
# </details>
# <details><summary>Hint 3</summary>
#
# B: `dy = group.recv(torch.empty_like(out), group.rank + 1)` unless this is the last rank; `out.backward(dy)`;
# `works.append(group.isend(x.grad, group.rank - 1))` unless it is rank 0. Send `out.detach()`: the graph stays here.
#
# </details>

# %% [markdown]
# **Run**: 1F1B over four ranks against one process, in float64.


# %% tags=["nbval-check-output"]
def pipelined(group, m):
    schedule = one_forward_one_backward(group.size, m)
    model = build(config, dtype=torch.float64)
    counts = split_layers(layers, group.size)
    (stage,) = cut(model, schedule, group.rank, counts)
    run_operations(group, schedule.ranks[group.rank], stage, microbatches(m))
    return {name: weight.grad for name, weight in stage.named_parameters()}


# %% tags=["nbval-check-output"]
one, batches = build(config, dtype=torch.float64), microbatches(6)
total = sum(batch.tokens_counted for batch in batches)
for b in batches:
    logits = one(b.tokens, b.documents, b.positions)
    token_weighted_loss(logits, b.targets, total).backward()
want = {name: parameter.grad for name, parameter in one.named_parameters()}
four = launch(pipelined, 6, ranks=p)
gaps = [(part[n] - want[n]).abs().max() for part in four for n in part]
worst = max(gaps).item()
print("largest difference of any gradient is below 1e-12:", worst < 1e-12)


# %% [markdown]
# The ranks have computed the same gradients as one process, to rounding, although each of them has seen a quarter of the
# model only.

# %% [markdown]
# ## 5 · What is idle
#
# Four ranks on a laptop's cores get in each other's way, and their seconds would say nothing about a pipeline. So your executor
# runs on an **emulated** clock: tensors, messages and their order are real, but each forward is *said* to take 36 ms, each
# backward 72 ms, and each message is charged as 34 MB on InfiniBand.
#
# Where these come from: a quarter of a 7B model has 1.75 billion weights; 4,096 tokens take 2 FLOPs a weight and token,
# $1.4 \cdot 10^{13}$, which is 36 ms at 400 TFLOP/s, half of what an H100 reaches in its best matmul. A message has
# $4{,}096 \cdot 4{,}096$ numbers of 2 bytes, and takes 0.9 ms.

# %% [markdown]
# `Timed` wraps a stage, and advances the clock by these times.

# %%
from dataclasses import replace

from minitrain.network.fabric import FABRICS
from minitrain.network.logical_clock import LogicalClock
from minitrain.parallel.pipeline.stages import Timed

UNITS = {"F": 1, "B": 2}
forward_seconds = lab.size("forward_ms") / 1e3
message_bytes = 4 * rows * length * width  # ours; each stands for a large one

# %%
infiniband = replace(
    FABRICS["h100-infiniband"](),
    ranks_per_node=1,
    compute_scale=1e-12,  # this machine's own seconds do not count
    payload_scale=lab.size("message_bytes") / message_bytes,
)
makers = {"gpipe": gpipe, "1f1b": one_forward_one_backward}
titles = {"gpipe": "GPipe", "1f1b": "1F1B"}


# %% tags=["experiment"]
def step_seconds(group, cases):
    """Emulated seconds of one step, for each schedule and number m."""
    found = []
    for name, m in cases:
        group.barrier()
        group.use(LogicalClock(group.clock.fabric, group.rank))  # at 0
        schedule = makers[name](group.size, m)
        order = schedule.ranks[group.rank]
        (stage,) = cut(build(config), schedule, group.rank)
        timed = Timed(stage, group.clock, forward_seconds)
        run_operations(group, order, timed, microbatches(m))
        found.append(group.now())
    return found


cases = [(name, m) for name in makers for m in lab.size("microbatches")]
times = launch(step_seconds, cases, ranks=p, fabric=infiniband)

# %% [markdown]
# Beside what your executor took, the table gets two predictions: the formula, and the *validator*, which runs the list on a
# clock without any model, and knows how long a message takes. It needs no executor, and so can tell a bad list before a GPU
# is rented.


# %% tags=["experiment"]
def planned_seconds(name, m):
    """What the validator's clock says, with this fabric's messages."""

    def own(rank, operation):
        return UNITS[operation.kind] * forward_seconds

    message = infiniband.seconds("send", message_bytes, (0, 1))
    return clocked(makers[name](p, m), own, send=message).makespan


bubble = []
for (name, m), seconds in zip(cases, zip(*times)):
    step, busy = 1e3 * max(seconds), 1e3 * m * 3 * forward_seconds
    row = {"schedule": name, "ranks": p, "microbatches": m, "step_ms": step}
    row |= {"busy_ms": busy, "bubble": 1 - busy / step}
    row["formula"] = (p - 1) / (m + p - 1)
    row["planned"] = 1 - busy / (1e3 * planned_seconds(name, m))
    bubble.append(row)

# %% tags=["grade"]
lab.experiment("bubble", bubble)

# %% [markdown]
# The folded cell draws the bubble of both schedules against the number of microbatches: on the left all of it, with the
# formula; on the right what lies above the formula, with the validator's prediction.

# %% tags=["folded"]
counts = lab.size("microbatches")
of = {name: [r for r in bubble if r["schedule"] == name] for name in makers}


def over(column, less="none"):
    """{title: (m, percent)}, of a column or of what it has above another."""
    return {
        titles[n]: (counts, [100 * (r[column] - r.get(less, 0)) for r in own])
        for n, own in of.items()
    }


formula = {"(p-1)/(m+p-1)": (counts, [100 * r["formula"] for r in of["gpipe"]])}
with show.canvas(columns=2) as (figure, axes):
    show.lines(
        over("bubble"),
        theory=formula,
        x="microbatches m",
        y="bubble (% of the step)",
        title=f"{p} H100, InfiniBand (emulated)",
        labels="legend",
        ax=axes[0],
    )
    above = over("planned", less="formula")
    validator = {f"{title}, validator": line for title, line in above.items()}
    show.lines(
        over("bubble", less="formula"),
        theory=validator,
        x="microbatches m",
        y="bubble above the formula (points)",
        title="What messages add (dashed: the validator)",
        ax=axes[1],
    )
    for measured in axes[1].lines[: len(titles)]:
        measured.set_linestyle("")  # markers, on the validator's dashes
show.figure(
    figure,
    alt="Bubble against microbatches, and what messages add: more in 1F1B.",
)

# %% [markdown]
# **Explain**: on the left both schedules lie on the formula: 75% with one microbatch, 9 to 10% with 32. What messages add is
# visible only on the right, where one *point* is 1% of the step.
#
# GPipe pays for messages on the way down and back, $2(p-1)$ times 0.9 ms a step, whatever $m$ is: at most 0.4 points, and
# from $m = 4$ on less and less of the step. 1F1B pays in every round as well: a rank's next forward waits for a gradient that
# has travelled, and with 32 microbatches that is one point. Given the time of a message, the validator knows all this
# beforehand; markers and dashes agree. On real GPUs stages are also not quite even, which adds more.

# %% [markdown]
# ## 6 · What is held
#
# **Predict**: under 1F1B rank 0 of four holds four microbatches at most, rank 3 holds one. Each has one block of the model, and
# rank 3 the head besides. How many times as many *bytes* of activations does rank 0 hold as rank 3?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 3.2
### LAB guess = None  # a factor, your guess
### END SOLUTION
lab.predict("held", guess)


# %% [markdown]
# This is **measured**: a `MemoryLedger` notes every tensor that autograd saves on each of four real ranks, and when it is
# freed. `peak_of` counts the same in the list, in microbatches.

# %% tags=["experiment"]
from minitrain.measure.memory import MemoryLedger
from minitrain.parallel.pipeline.timeline import peak_of

m = lab.size("held")


def held(group):
    """The most bytes that autograd keeps at once, under each schedule."""
    found = []
    for make in makers.values():
        schedule = make(group.size, m)
        order = schedule.ranks[group.rank]
        (stage,) = cut(build(config), schedule, group.rank)
        with MemoryLedger(stage) as ledger:
            run_operations(group, order, stage, microbatches(m))
        found.append((ledger.highest["activations"], peak_of(order)))
    return found


live = []
for rank, found in enumerate(launch(held, ranks=p)):
    for name, (nbytes, count) in zip(makers, found):
        row = {"schedule": name, "ranks": p, "microbatches": m, "rank": rank}
        live.append({**row, "live": count, "activation_bytes": nbytes})


# %% tags=["grade"]
lab.experiment("live", live)

# %%
at = {(row["schedule"], row["rank"]): row["activation_bytes"] for row in live}
lab.reveal("held", at["1f1b", 0] / at["1f1b", 3], p=p)
show.bars(
    [f"rank {rank}" for rank in range(p)],
    {titles[n]: [at[n, r] / 1e6 for r in range(p)] for n in makers},
    y="activations at most (MB)",
    title=f"{m} microbatches, measured on {lab.device_name}",
)

# %% [markdown]
# **Explain**: GPipe holds $m = 8$ microbatches on each rank, 1F1B holds $p - r$, from four on rank 0 to one on rank 3. Rank 3
# is higher than the others under GPipe, since it keeps the logits as well. Note that 1F1B is uneven: rank 0 holds four
# times as many microbatches as rank 3, and in bytes still three times as much. Planners give the first stage fewer layers, or
# let it recompute more.

# %% [markdown]
# At the same $m$ 1F1B is no faster than GPipe. But memory that it saves can be spent on more microbatches.
#
# **Question**: rank 0 has room for the activations of four microbatches. GPipe has to stop at $m = 4$, 1F1B may run $m = 32$.
# How many times as large a share of the step is GPipe's bubble then? Take both from your table `bubble`.


# %% tags=["question"]
share = {(r["schedule"], r["microbatches"]): r["bubble"] for r in bubble}
### BEGIN SOLUTION
same_memory = share["gpipe", 4] / share["1f1b", 32]
### LAB same_memory = None  # your answer, a factor
### END SOLUTION


# %% tags=["grade"]
lab.answer("same_memory", same_memory)

# %% [markdown]
# ## 7 · Smaller pieces
#
# 1F1B has freed memory, but the bubble stays: $p - 1$ *stages* long. So make the stages shorter. Give each rank $v$ **chunks**
# of the model instead of one stage. Chunk $c$ of rank $r$ is stage $c \cdot p + r$ of $v \cdot p$, so that a microbatch winds
# $v$ times around the ranks ([Narayanan et al. 2021](https://arxiv.org/abs/2104.04473)). Here with two ranks:

# %%
ideas.pipeline_chunks()

# %% [markdown]
# Dark boxes are a rank's first chunk, light ones its second, and the boxes are half as long as with one chunk. A rank still waits
# for $p - 1$ stages, but a stage takes $(t_F + t_B)/v$, and the work is what it was, $m\,(t_F + t_B)$:
#
# $$\frac{\text{bubble}}{\text{step}} = \frac{(p-1)/v}{m + (p-1)/v} = \frac{p-1}{v\,m + p - 1}, \qquad \frac{3}{2 \cdot 8 + 3} = 16\%$$
#
# for $p = 4$, $m = 8$, $v = 2$, where 1F1B had 27%. Interleaving is as good for the bubble as $v$ times as many microbatches.

# %% [markdown]
# In which order? Rank 0 should not wait for a microbatch that is still under way, so it sends $p$ microbatches through chunk 0;
# by then the first of them has been around, and the same $p$ go through chunk 1. Then come the next $p$.
#
# How many forwards ahead? Microbatch 0 reaches the last chunk of rank $r$ after the $(v-1)\,p$ forwards of the chunks
# before. From there it has $p - 1 - r$ ranks to go down and as many to come back up, and for each of these steps rank $r$
# takes one more forward in hand. Together that is $(v-1)\,p + 2\,(p - 1 - r)$ forwards ahead.

# %% [markdown]
# Why there *and back*, where 1F1B was content with $p - 1 - r$? If messages took no time, the way down would be enough here
# too. But $v$ chunks send about $v$ times as many messages, and a rank with forwards in hand can work while they travel. With
# $p = 4$, $m = 8$, $v = 2$ and a message of a tenth of a chunk's forward, the step takes as long as 58.4 forwards of a
# chunk with $2\,(p - 1 - r)$, and 60.0 with $p - 1 - r$ (computed). The price: rank 0 holds 11 chunks' activations instead of 8. Plain
# 1F1B keeps to $p - 1 - r$, and saves the memory.

# %% [markdown]
# ### Exercise 5 · `interleaved`
#
# Difficulty 4 · 16 minutes · 14 points
#
# `Operation("F", i, c)` is the forward of microbatch i through chunk c. Forwards take p microbatches through chunk 0, the same p
# through chunk 1, …, then the next p (p divides m). Backwards take the same groups of p, each from its first microbatch on, but
# chunk v-1 first and chunk 0 last. Rank r runs $(v-1)\,p + 2\,(p-1-r)$ forwards ahead, never more than $m\,v$; with $v = 1$ it
# runs $p-1-r$. Then, as before, come one forward and one backward in turn, and what is left.


# %% tags=["exercise"]
def interleaved(p: int, m: int, v: int) -> Schedule:
    """1F1B over v chunks a rank, `Schedule("interleaved", m, v, orders)`;
    p divides m. About 14 lines."""
    ### BEGIN SOLUTION
    groups = [range(first, first + p) for first in range(0, m, p)]
    places = [(i, c) for group in groups for c in range(v) for i in group]
    forwards = [Operation("F", i, c) for i, c in places]
    backwards = [Operation("B", i, v - 1 - c) for i, c in places]
    orders = []
    for r in range(p):
        ahead = (v - 1) * p + 2 * (p - 1 - r) if v > 1 else p - 1 - r
        ahead = min(ahead, m * v)
        order = forwards[:ahead]
        for forward, backward in zip(forwards[ahead:], backwards):
            order += [forward, backward]
        orders.append(order + backwards[m * v - ahead :])
    return Schedule("interleaved", m, v, orders)
    ### END SOLUTION


# %% tags=["grade"]
interleaved = lab.grade(interleaved)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# First make the two whole lists, `forwards` and `backwards`, alike on every rank. Then the three parts of 1F1B, by slices.
# 2·(p-1-r) is the way to the last rank, there and back.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `[Operation("F", i, c) for group in groups for c in range(v) for i in group]`, where `groups` are ranges of p
# microbatches; for backwards the chunk is `v - 1 - c`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `order = forwards[:ahead]`, then a forward and a backward from `zip(forwards[ahead:], backwards)`, then
# `backwards[m * v - ahead:]`.
#
# </details>

# %%
show.draw_schedule(
    interleaved(4, 8, 2),
    unit="forwards of a chunk",
    title="Interleaved, 2 chunks a rank",
)

# %% [markdown]
# What does it cost? This is **computed** from your schedules, with nothing run: on 8 ranks, the bubble on the validator's
# clock, the messages between ranks, and the most activations that a rank holds, in whole stages (a chunk's count as $1/v$).


# %% tags=["experiment"]
def messages(schedule):
    """How many tensors travel between ranks in a step."""
    targets = (
        (rank, schedule.target(rank, operation))
        for rank, order in enumerate(schedule.ranks)
        for operation in order
    )
    return sum(to is not None and to[0] != rank for rank, to in targets)


ranks, planned = lab.size("planned_ranks"), []
for v in (1, 2, 4):
    for m in lab.size("planned"):
        schedule = interleaved(ranks, m, v)
        clock = clocked(schedule)
        row = {"ranks": ranks, "chunks": v, "microbatches": m}
        row["bubble"] = clock.bubble(0) / clock.makespan
        row["messages"] = messages(schedule)
        row["stages_held"] = max(peak_live(schedule)) / v
        planned.append(row)

# %% tags=["grade"]
lab.experiment("planned", planned)

# %% tags=["folded"]
from minitrain.words import plural

curves = {
    plural(v, "chunk"): (
        [r["microbatches"] for r in own],
        [100 * r["bubble"] for r in own],
    )
    for v in (1, 2, 4)
    for own in [[r for r in planned if r["chunks"] == v]]
}
ms = lab.size("planned")
with show.canvas() as (figure, axes):
    show.lines(
        curves,
        theory={"10%": (ms, [10] * len(ms))},
        x="microbatches m",
        y="bubble (% of the step)",
        title=f"{ranks} ranks, on the validator's clock",
        log="x",
        ax=axes,
    )
    axes.set_xticks(ms, [str(m) for m in ms])
    axes.minorticks_off()
show.figure(
    figure,
    alt="Bubble against microbatches for 1, 2 and 4 chunks; a line at 10%.",
)

# %%
percent = [round(100 * row["bubble"], 1) for row in planned]
show.table(
    {
        "chunks a rank": [row["chunks"] for row in planned],
        "microbatches": [row["microbatches"] for row in planned],
        "bubble (% of the step)": percent,
        "messages a step": [row["messages"] for row in planned],
        "held (stages' activations)": [row["stages_held"] for row in planned],
    },
    caption=f"{ranks} ranks, computed",
)

# %% [markdown]
# **Question**: with one chunk a rank, what is the smallest m *of your table* that brings the bubble under 10% of the step?


# %% tags=["question"]
### BEGIN SOLUTION
enough_microbatches = min(
    r["microbatches"] for r in planned if r["chunks"] == 1 and r["bubble"] < 0.1
)
### LAB enough_microbatches = None  # your answer, microbatches
### END SOLUTION


# %% tags=["grade"]
lab.answer("enough_microbatches", enough_microbatches)

# %% [markdown]
# **Question**: at the same m, how many times as many messages does v = 4 send as v = 1?


# %% tags=["question"]
### BEGIN SOLUTION
count = {(r["chunks"], r["microbatches"]): r["messages"] for r in planned}
message_ratio = count[4, 8] / count[1, 8]
### LAB message_ratio = None  # your answer, a factor
### END SOLUTION


# %% tags=["grade"]
lab.answer("message_ratio", message_ratio)

# %% [markdown]
# There are $v\,p$ stages, and each of $m$ microbatches crosses the $v\,p - 1$ borders between them twice, once as $x$ and once as
# a gradient: $2\,m\,(v\,p - 1)$ messages. A little more than $v$ times as many, since winding around adds the borders from
# the last rank back to the first. And the memory is not free either: with 16 microbatches two chunks hold 11.5 stages'
# activations instead of 8, because the first ranks run further ahead. Four chunks hold less, 9.75: their way there and back
# is as many forwards, each of half the size.

# %% [markdown]
# **Question**: with the m of `enough_microbatches` GPipe, too, has a bubble under 10%. How many bytes of activations would
# rank 0 then hold, if each microbatch were as large as in your table `live` (4 ranks)?


# %% tags=["question"]
first = [row for row in live if row["rank"] == 0]
show.table(
    {
        "schedule": [titles[row["schedule"]] for row in first],
        "microbatches": [row["microbatches"] for row in first],
        "alive at once": [row["live"] for row in first],
        "activations (bytes)": [row["activation_bytes"] for row in first],
    },
    caption="rank 0 of 4, measured",
)
### BEGIN SOLUTION
gpipe_bytes = at["gpipe", 0] / live[0]["microbatches"] * enough_microbatches
### LAB gpipe_bytes = None  # your answer, bytes
### END SOLUTION

# %% tags=["grade"]
lab.answer("gpipe_bytes", gpipe_bytes)

# %% [markdown]
# ## 8 · Almost no bubble
#
# A backward does two things. It computes the *input's* gradient, $\partial L/\partial x$, for which the rank before waits, and
# the *weights'*, $\partial L/\partial W$, for which nobody waits until the optimizer's step. **Zero-bubble**
# ([Qi et al. 2024](https://arxiv.org/abs/2401.10241)) splits the backward into B and W, and puts W where the rank would
# idle. An activation is alive until its W now, which needs it too: every rank holds four, where 1F1B held 4, 3, 2 and 1.

# %% [markdown]
# From here on $t_B$ is the time of B alone and $t_W$ that of W: the backward of before took $t_B + t_W$. The bubble falls
# from $(p-1)(t_F + t_B + t_W)$ to $(p-1)(t_F + t_B - t_W)$. If each takes 1, four ranks with eight microbatches work 24 and
# idle 3: $3/27 = 11\%$.
#
# **Stretch, ungraded**: change `orders` below. Can you lose less than `zero_bubble` does?

# %%
from minitrain.parallel.pipeline.schedules import zero_bubble

orders = [list(order) for order in zero_bubble(4, 8).ranks]  # yours to change
show.draw_schedule(
    Schedule("yours", 8, 1, orders),
    title="Zero-bubble, F = B = W = 1",
)

every = {
    "1F1B": one_forward_one_backward,
    "GPipe": gpipe,
    "Interleaved": lambda p, m: interleaved(p, m, 2),
    "Zero-bubble": zero_bubble,
}


def idle(clock):
    """The share of the step in which rank 0 waits."""
    return clock.bubble(0) / clock.makespan


# %% [markdown]
# Here you may explore all four, at other numbers of ranks; `rounds` is $m/p$.


# %%
def draw(ax, schedule, ranks, rounds):
    clock = clocked(every[schedule](ranks, ranks * rounds))
    show.draw_schedule(
        clock,
        ax=ax,
        title=f"{schedule}: {idle(clock):.0%} idle",
    )


widgets.explore(
    draw,
    inches=(10, 3.6),
    schedule=list(every),
    ranks=(2, 8, 4),
    rounds=(1, 4, 2),
)


# %% [markdown]
# **The picture**: the same work four times, on one axis, computed by the validator's clock. A chunk of the interleaved one is
# half a stage.

# %% tags=["picture", "folded"]
made = {
    "GPipe": gpipe(4, 8),
    "1F1B": one_forward_one_backward(4, 8),
    "Interleaved, 2 chunks a rank": interleaved(4, 8, 2),
    "Zero-bubble": zero_bubble(4, 8),
}


def stacked(ax, name, schedule):
    units = {"F": 1, "B": 1 if schedule.splits_backward else 2, "W": 1}
    clock = clocked(schedule, lambda _, op: units[op.kind] / schedule.chunks)
    most = max(peak_live(schedule)) / schedule.chunks
    words = f"{name}: {idle(clock):.0%} idle, holds {most:g} microbatches"
    show.draw_schedule(clock, ax=ax, title=words)
    ax.get_legend().remove()
    ax.set_xlim(0, 33)


with show.canvas(rows=4, width=10, height=9.6) as (figure, axes):
    for ax, (name, schedule) in zip(axes, made.items()):
        stacked(ax, name, schedule)
        ax.set_xlabel("")
    axes[-1].set_xlabel("time (forwards)")
    handles, labels = axes[-1].get_legend_handles_labels()
    labels[1] = "backward (in zero-bubble: of the input)"
    light, names = axes[2].get_legend_handles_labels()  # of a second chunk
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.3), "ncols": 3}
    axes[-1].legend([*handles, light[-1]], [*labels, names[-1]], **place)
show.figure(
    figure,
    alt="Timelines of four schedules on 4 ranks, with what each leaves idle.",
)

# %% [markdown]
# **Takeaway**: on 4 ranks with 8 microbatches GPipe and 1F1B idle 27% of the step (computed; 28% on the emulated cluster, with
# messages), interleaving with two chunks 16%, zero-bubble 11%. 1F1B holds $p$ microbatches instead of $m$ for next to
# nothing: half the bytes on rank 0, an eighth on rank 3 (measured). Interleaving pays in messages and memory, zero-bubble in
# code, and in memory on the later ranks.
#
# > **On GPUs.** This lab has not been run on several GPUs yet: its times are emulated or computed, its bytes and gradients
# > are real.

# %%
lab.score(read="minitrain/parallel/pipeline/executor.py")

# %% [markdown]
# A pipeline cuts between layers; [e02b · Tensor parallel](e02b_tensor_parallel.ipynb) cuts *inside* a matrix. Next,
# [e02d · Expert parallel](e02d_expert_parallel.ipynb) gives a layer eight MLPs, and puts them on different ranks.
