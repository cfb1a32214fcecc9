# %% [markdown]
# # e02c · Pipeline parallel
#
# **Cut a model into stages, one per rank, and keep all of them busy. You write three schedules as plain lists and the executor
# that runs them, and measure how much time they waste and how much memory they hold.**
#
# 90 minutes · CPU is enough · before: [e02 · Data parallel](e02_data_parallel.ipynb) · next:
# [e02d · Expert parallel](e02d_expert_parallel.ipynb) · [map of the course](index.ipynb)
#
# You build the split into stages, GPipe, 1F1B, the executor of one rank, and interleaved 1F1B. By the end you will have made this
# picture: four schedules of the same work, one below the other, with the idle time of each.
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
# Data parallelism needs the whole model on each rank. Tensor parallelism splits it, but sends four messages per layer. A third
# way is to cut *between* layers: each rank gets some of them, and hands its result to the next rank.

# %%
ideas.pipeline_stages()

# %% [markdown]
# A rank with its layers is a **stage**. Across each border between stages, one activation $x$ of $B \cdot T \cdot D$ numbers is
# sent in forward ($B$ sequences of $T$ tokens, $D$ numbers each), and its gradient in backward. That is all, however many layers
# a stage has. It is far less than tensor parallelism sends, and the reason why pipelines are used across the slow network between
# nodes.
#
# The price is waiting, and it is the subject of this lab. Every stage waits for its neighbour, so the slowest stage sets the pace
# for all: stages should be even. The two ends also hold the embedding and the head, as the picture shows. So where the layers do
# not divide evenly, the remainder goes to the middle.

# %% [markdown]
# ### Exercise 1 · `split_layers`
#
# Difficulty 1 of 5 · 4 minutes · 6 points
#
# How many layers does each stage get? As evenly as possible; the remaining layers go to stages in the middle, one each.
# `split_layers(10, 4)` is `[2, 3, 3, 2]`. You may choose which stages in the middle; there may be fewer layers than stages.


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
# `divmod(layers, stages)`: how many layers every stage has, and how many stages have one more.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The longer stages are next to each other, with as many shorter ones before them as after.
#
# </details>
# <details><summary>Hint 3</summary>
#
# With `base, more = divmod(layers, stages)`, there are `stages - more` shorter stages. Half of them come first.
#
# </details>

# %% [markdown]
# ## 2 · A schedule is a list
#
# If the batch went through the stages as a whole, only one rank would be busy at a time: rank 1 has nothing to do before rank 0
# is done. So the batch is cut into $m$ **microbatches**: while rank 1 computes one, rank 0 can already compute the next. The
# question is in which order.

# %% [markdown]
# We write the answer as plain data. `Operation("F", 3)` is the forward of microbatch 3 on this rank, `Operation("B", 3)` its
# backward. A `Schedule` has one list of operations for each rank, and that is all an executor needs. An operation waits for its
# *source*, the operation on a neighbouring rank whose result it needs. Only the first stage's F and the last stage's B have none:
# the first starts from the tokens, the second from the loss of its own forward.

# %% tags=["nbval-check-output"]
from minitrain.parallel.pipeline.operations import Operation, Schedule

order = [Operation(kind, i) for i in (0, 1) for kind in "FB"]  # F0 B0 F1 B1
naive = Schedule("naive", 2, 1, [order] * 3)  # 2 microbatches, 1 chunk, 3 ranks
print("source of rank 1's F0:", *naive.source(1, Operation("F", 0)))
print("source of rank 1's B0:", *naive.source(1, Operation("B", 0)))


# %%
show.draw_schedule(naive, title="One microbatch at a time: two ranks wait")


# %% [markdown]
# In this diagram a row is a rank, time goes to the right, a box is an operation with the number of its microbatch, and hatched
# time is idle (the *bubble*). An activation is *alive* from its forward to its backward. This first schedule finishes a
# microbatch before the next one begins, so it gains nothing from having two.
#
# **GPipe** ([Huang et al. 2019](https://arxiv.org/abs/1811.06965)) runs all forwards and then all backwards, here with three
# microbatches. Move the slider down to one and up to four, and watch the time per microbatch:

# %%
ideas.pipeline_microbatches()

# %% [markdown]
# The idle time of a rank stays the same, while the work that it is compared with grows.
#
# **Predict**: with $p = 4$ ranks, $m = 16$ microbatches, and a backward that takes twice as long as a forward: for what share of
# the step is a rank idle under GPipe?

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
# [Huang et al. 2019](https://arxiv.org/abs/1811.06965): all forwards, then all backwards, each in the order of the microbatches,
# starting from 0; the list is the same on every rank. The third argument of `Schedule`, here 1, is the number of chunks of the
# model that a rank has: one, until section 7 uses more.


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
# Use two list comprehensions, one after the other.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `[Operation("F", i) for i in range(m)]`, and the same with `"B"`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# All p ranks have the same order: `[order] * p` is a list of p of them.
#
# </details>

# %%
from minitrain.parallel.pipeline.timeline import clocked, peak_live

clock = clocked(gpipe(4, 16))  # a forward takes 1, a backward 2
lab.reveal("gpipe_bubble", clock.bubble(0) / clock.makespan, p=4, m=16)
show.draw_schedule(gpipe(4, 8), title="GPipe, 4 ranks and 8 microbatches")

# %% [markdown]
# **Explain**: let the forward of one microbatch on one rank take $t_F$ seconds, and its backward $t_B$. Microbatch 0 reaches the
# last rank after $p - 1$ forwards. That rank then works through its $m$ microbatches, and is done with the forwards at
# $(m + p - 1)\,t_F$. The backwards return in the same way, so
#
# $$\text{step} = (m + p - 1)(t_F + t_B), \qquad \text{work of a rank} = m\,(t_F + t_B)$$
#
# The difference is the **bubble**, $(p-1)(t_F + t_B)$ on every rank, for any $m$. With $p = 4$ and the $m = 8$ of the picture:
#
# $$\frac{\text{bubble}}{\text{step}} = \frac{p-1}{m+p-1} = \frac{3}{11} = 27\%, \qquad \frac{\text{bubble}}{\text{work}} = \frac{p-1}{m} = \frac{3}{8} = 38\%$$

# %% [markdown]
# Papers quote both ratios. You guessed the first, $3/19 = 16\%$ with $m = 16$; the caption under the picture gives the second.
# Neither depends on how long a forward takes. More microbatches reduce both.
#
# But the caption also states the price: 8 activations alive on every rank. A forward saves the tensors that its backward will
# need. GPipe runs all forwards first, so every rank holds all $m$ at once. If you cut the model because memory is short, that is
# the wrong price to pay.

# %% [markdown]
# ## 3 · Backward as soon as you can
#
# A backward frees the tensors that its forward saved. So run it as early as possible. **1F1B** alternates one forward and one
# backward (PipeDream, [Harlap et al. 2018](https://arxiv.org/abs/1806.03377)). Here all gradients of a step are used at its end,
# as in GPipe. Compare the two with the slider:

# %%
ideas.pipeline_order()

# %% [markdown]
# The last rank can alternate at once: it has the loss of microbatch 0 right after its forward, and runs F0 B0 F1 B1. The other
# ranks wait for their first gradient. Meanwhile they should run forwards, but how many?
#
# After rank $r$ come $p - 1 - r$ ranks. To keep all of them supplied until the first gradient is back, it needs one microbatch
# under way in each: $p - 1 - r$ forwards **ahead**, framed in the picture. Then one forward and one backward alternate, starting
# with a forward. So there are $p - r$ forwards before the first backward, and at most $p - r$ activations are alive. When no
# forward is left, the remaining backwards follow.

# %% [markdown]
# How long does it take? The last rank begins after $(p-1)\,t_F$, alternates without a gap for $m\,(t_F + t_B)$, and its last
# gradient returns through $p - 1$ backwards: together $(m + p - 1)(t_F + t_B)$, exactly the step of GPipe. The idle time has not
# changed, but memory is freed earlier: rank 0 of 4 holds 4 activations instead of $m$, however large $m$ is.

# %% [markdown]
# ### Exercise 3 · `one_forward_one_backward`
#
# Difficulty 3 · 12 minutes · 14 points
#
# Rank r runs p-1-r forwards ahead (but never more than m), then alternates one forward and one backward, then runs the remaining
# backwards. Both kinds run in the order of the microbatches, starting from 0. With p = 2 and m = 3, rank 0 runs F0 F1 B0 F2 B1
# B2.


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
# Each rank has three parts: `ahead` forwards, pairs, and as many backwards as there were forwards ahead.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The i-th pair is F(ahead + i) and B(i). How many pairs are there until the forwards run out?
#
# </details>
# <details><summary>Hint 3</summary>
#
# There are m - ahead pairs, so the last part begins with B(m - ahead).
#
# </details>

# %%
show.draw_schedule(one_forward_one_backward(4, 8), title="1F1B, the same work")

# %% [markdown]
# ## 4 · Run the list
#
# Now a real executor. A rank goes through its list of tuples `(kind, microbatch, chunk)`:
#
# - **F**: receive $x$ from the previous rank, compute `out`, send it to the next, and keep both. Send `out.detach()`, the numbers
#   alone: a send under way keeps its tensor alive, and `out` would keep the whole graph alive with it.
# - **B**: receive the gradient of `out` from the next rank, call `out.backward(…)` with it, send `x.grad` to the previous rank,
#   and drop both tensors.
#
# No autograd graph crosses the border between ranks: you apply the chain rule there by hand. So $x$, which came out of a buffer,
# has to become a leaf that requires a gradient.

# %% [markdown]
# Why must a send not wait? In 1F1B on two ranks, rank 0 sends the activation of F1 while rank 1 sends the gradient of B0. If both
# waited until the other had received, neither would ever get to its receive. So a send is only *started*, with `isend`, and
# waited for after the last operation.
#
# Stages come from `cut`, which gives a rank its blocks according to your numbers of layers:

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
# The data is chosen to reveal a common mistake: every second microbatch is half empty.


# %%
rows, length = lab.size("rows"), lab.size("length")


def microbatches(m):
    """In every second one, half of the targets are padding, -100."""
    shape = (m, rows, length + 1)
    text = torch.randint(256, shape, generator=torch.Generator().manual_seed(0))
    text[1::2, :, length // 2 :] = -100
    places = torch.arange(length).expand(rows, length)
    one = torch.zeros_like(places)
    return [Batch(t[:, :-1].clamp(min=0), t[:, 1:], one, places) for t in text]


print([batch.tokens_counted for batch in microbatches(4)], "targets that count")


# %% [markdown]
# The loss $L$ of the step is the mean over **all** $n = \sum_i n_i$ targets, where microbatch $i$ has $n_i$ of them, and $\ell_t$
# is the cross-entropy of target $t$:
#
# $$L = \frac{1}{n} \sum_{i} \sum_{t \in i} \ell_t = \sum_i L_i, \qquad L_i = \frac{1}{n} \sum_{t \in i} \ell_t$$
#
# The gradient of a sum is the sum of the gradients, and `.grad` accumulates by itself. So the last rank starts each backward from
# $L_i$, the *summed* loss of the microbatch divided by the number of **all** targets. That is
# `token_weighted_loss(logits, targets, total)` of e01. With the mean of each microbatch instead, a target in a half-empty
# microbatch would count about twice as much, 1/62 instead of 1/128.

# %% [markdown]
# ### Exercise 4 · `run_operations`
#
# Difficulty 5 · 25 minutes · 20 points
#
# `group.recv(buffer, source)` fills a buffer and returns it. `stage.message(batch)` makes such a buffer on any rank: $x$ and all
# gradients sent have its size. `group.isend(tensor, to)` returns a handle at once (torch calls it a *work*); `wait` for all of
# these at the very end, for none before. Nothing else is sent. (A barrier sends no tensor, so it does not count as a message, but
# no rank may wait for another where its list does not.)
#
# `stage(x, batch)` takes `x=None` on rank 0, and returns logits on the last rank; a single rank is both. Every `batch` has
# `tokens_counted`. The returned loss may carry a graph.


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
# On the last rank `out` becomes this microbatch's share of the loss, and its backward needs no gradient: `out.backward(None)` is
# `out.backward()`. Call `x.requires_grad_()` before the forward, or `x.grad` stays None.
#
# </details>
# <details><summary>Hint 3</summary>
#
# B mirrors F: a receive unless this is the last rank, the backward, and a send of `x.grad` unless this is rank 0. The gradient
# received has the shape of `out`. Collect the works of both kinds of send.
#
# </details>

# %% [markdown]
# **Run**: 1F1B on four ranks against one process, in float64.


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
# The ranks have computed the same gradients as one process, up to rounding, although each of them holds only a quarter of the
# model.

# %% [markdown]
# ## 5 · Idle time
#
# Four ranks compete for the cores of a laptop, and their seconds would say nothing about a pipeline. So your executor runs on an
# **emulated** clock: tensors, messages and their order are real, but each forward is *charged* 36 ms, each backward 72 ms, and
# each message the time of 34 MB on InfiniBand.
#
# These numbers stand for a 7B model: a quarter of it has 1.75 billion weights; 4,096 tokens take 2 FLOPs per weight and token,
# $1.4 \cdot 10^{13}$, which is 36 ms at 400 TFLOP/s, half of what an H100 reaches in its best matmul. A message has
# $4{,}096 \cdot 4{,}096$ numbers of 2 bytes, and takes 0.9 ms.

# %% [markdown]
# `Timed` wraps a stage and advances the clock by these times.

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
# Beside the time of your executor, the table gets two predictions: the formula, and the *validator*, which runs the list on a
# clock without any model, but with the time of a message. It needs no executor, and so can reject a bad list before anyone rents
# a GPU.


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
# The folded cell draws the bubble of both schedules against the number of microbatches: on the left the whole bubble, with the
# formula; on the right the excess over the formula, with the validator's prediction.

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
# **Explain**: on the left both schedules lie on the formula, from 75% with one microbatch to 8.7% (GPipe) and 9.7% (1F1B)
# with 32. The effect of the messages is visible only on the right, where one *point* is 1% of the step.
#
# GPipe pays for messages on the way there and back, $2(p-1)$ times 0.9 ms per step, whatever $m$ is: at most 0.4 points, and a
# falling share of the step from $m = 4$ on. 1F1B also pays in every round, as a rank's next forward waits for a gradient that had
# to be sent: 1.1 points with 32 microbatches. The validator, given the time of a message, predicts all this: markers and dashes
# agree. On real GPUs stages are also not quite even, which adds more.

# %% [markdown]
# ## 6 · Memory held
#
# **Predict**: under 1F1B, rank 0 of four holds at most four microbatches and rank 3 only one. Each rank has one block of the
# model, and rank 3 also the head. How many times as many *bytes* of activations does rank 0 hold as rank 3?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 3.2
### LAB guess = None  # a factor, your guess
### END SOLUTION
lab.predict("held", guess)


# %% [markdown]
# This is **measured**: on each of four real ranks, a `MemoryLedger` records every tensor that autograd saves and when it is
# freed. `peak_of` computes the same from the list, in microbatches.

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
# **Explain**: GPipe holds $m = 8$ microbatches on each rank, 1F1B holds $p - r$, from four on rank 0 to one on rank 3. Under
# GPipe, rank 3 holds more than the others, since it keeps the logits as well. Note that 1F1B is uneven: rank 0 holds four times
# as many microbatches as rank 3, and still 3.1 times as many bytes. To balance this, the first stage can get fewer layers, or
# recompute more.

# %% [markdown]
# At the same $m$, 1F1B is no faster than GPipe. But the memory that it saves can be spent on more microbatches.
#
# **Question**: rank 0 has room for the activations of four microbatches. GPipe has to stop at $m = 4$, while 1F1B may run
# $m = 32$. How many times as large a share of the step is GPipe's bubble then? Take both from your table `bubble`.


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
# 1F1B frees memory, but the bubble remains: $p - 1$ *stages* long. So make the stages shorter. Give each rank $v$ **chunks** of
# the model instead of one stage. Chunk $c$ of rank $r$ is stage $c \cdot p + r$ of $v \cdot p$, so a microbatch passes $v$ times
# through all the ranks ([Narayanan et al. 2021](https://arxiv.org/abs/2104.04473)). Here with two ranks:

# %%
ideas.pipeline_chunks()

# %% [markdown]
# Dark boxes are a rank's first chunk, light ones its second, and a box is half as long as with one chunk. A rank still waits for
# $p - 1$ stages, but a stage takes only $(t_F + t_B)/v$, and the work is the same as before, $m\,(t_F + t_B)$:
#
# $$\frac{\text{bubble}}{\text{step}} = \frac{(p-1)/v}{m + (p-1)/v} = \frac{p-1}{v\,m + p - 1}, \qquad \frac{3}{2 \cdot 8 + 3} = 16\%$$
#
# for $p = 4$, $m = 8$, $v = 2$, where 1F1B had 27%. Interleaving reduces the bubble as much as $v$ times as many microbatches.

# %% [markdown]
# In which order? Rank 0 should not wait for a microbatch that is still under way, so it sends $p$ microbatches through chunk 0.
# By then the first of them has returned, and the same $p$ go through chunk 1. Then come the next $p$.
#
# How many forwards ahead? Microbatch 0 reaches the last chunk of rank $r$ after the $(v-1)\,p$ forwards of the chunks before it.
# From there its activation passes the $p - 1 - r$ ranks that follow, and its gradient comes back over as many. For each of these
# steps rank $r$ runs one more forward ahead. Together that is $(v-1)\,p + 2\,(p - 1 - r)$ forwards ahead.

# %% [markdown]
# Why there *and back*, when $p - 1 - r$ was enough for 1F1B? If messages took no time, the way there would be enough here too.
# But with $v$ chunks there are about $v$ times as many messages, and a rank with forwards in hand can work while they travel.
# With $p = 4$, $m = 8$, $v = 2$ and messages that take a tenth of a chunk's forward, the step takes as long as 58.4 forwards of a
# chunk with $2\,(p - 1 - r)$, and 60.0 with $p - 1 - r$ (computed). The price: rank 0 holds the activations of 11 chunks instead
# of 8. Plain 1F1B keeps to $p - 1 - r$, and saves the memory.

# %% [markdown]
# ### Exercise 5 · `interleaved`
#
# Difficulty 4 · 16 minutes · 14 points
#
# `Operation("F", i, c)` is the forward of microbatch i through chunk c. Forwards take p microbatches through chunk 0, the same p
# through chunk 1, …, then the next p (p divides m). Backwards take the same groups of p, each in the order of the microbatches,
# but through chunk v-1 first and chunk 0 last. Rank r runs $(v-1)\,p + 2\,(p-1-r)$ forwards ahead, but never more than $m\,v$;
# with $v = 1$ it runs $p-1-r$ ahead. Then, as before, it alternates one forward and one backward, and runs the remaining
# backwards.


# %% tags=["exercise"]
def interleaved(p: int, m: int, v: int) -> Schedule:
    """1F1B over v chunks per rank, `Schedule("interleaved", m, v, orders)`;
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
# First make the two complete lists, `forwards` and `backwards`, which are the same on every rank. Then take the three parts of
# 1F1B as slices of them.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `[Operation("F", i, c) for group in groups for c in range(v) for i in group]`, where `groups` are ranges of p microbatches; for
# backwards the chunk is `v - 1 - c`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `zip(forwards[ahead:], backwards)` ends by itself when the forwards run out. There are m·v - ahead pairs.
#
# </details>

# %%
show.draw_schedule(
    interleaved(4, 8, 2),
    unit="forwards of a chunk",
    title="Interleaved, 2 chunks a rank",
)

# %% [markdown]
# What does it cost? The next cell **computes** this from your schedules, without running anything: on 8 ranks, the bubble on the
# validator's clock, the messages between ranks, and the most activations that a rank holds, in whole stages (a chunk counts as
# $1/v$).


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
# **Question**: with one chunk per rank, what is the smallest m *in your table* for which the bubble is under 10% of the step?


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
# a gradient: $2\,m\,(v\,p - 1)$ messages. That is a little more than $v$ times as many, since going around adds the borders from
# the last rank back to the first. Nor is the memory free. Rank 0 holds one more chunk than it has forwards ahead,
# $(v-1)\,p + 2\,(p-1) + 1$: with $p = 8$ and $v = 2$ these are 23 halves, 11.5 stages instead of 8, and with $v = 4$ 39 quarters,
# 9.75. Eight microbatches hold less only because there are no more to run.

# %% [markdown]
# **Question**: with the m of `enough_microbatches`, GPipe also has a bubble under 10%. How many bytes of activations would rank 0
# then hold, if each microbatch were as large as in your table `live` (4 ranks)?


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
# A backward does two things. It computes the gradient of the *input*, $\partial L/\partial x$, for which the previous rank waits,
# and that of the *weights*, $\partial L/\partial W$, which nobody needs before the optimizer step. **Zero-bubble**
# ([Qi et al. 2024](https://arxiv.org/abs/2401.10241)) splits the backward into these two, B and W, and puts W where the rank
# would be idle. An activation now stays alive until its W, which needs it too: every rank holds four, where 1F1B held 4, 3, 2 and
# 1.

# %% [markdown]
# From here on $t_B$ is the time of B alone and $t_W$ that of W: the backward used to take $t_B + t_W$. The bubble falls from
# $(p-1)(t_F + t_B + t_W)$ to $(p-1)(t_F + t_B - t_W)$. If each takes 1, four ranks with eight microbatches work 24 and are idle
# 3: $3/27 = 11\%$ of the step.
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
# Here you can explore all four schedules with other numbers of ranks; `rounds` is $m/p$.


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
# **The picture**: the same work four times, on one time axis, computed by the validator's clock. A chunk of the interleaved
# schedule is half a stage.

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
# **Takeaway**: on 4 ranks with 8 microbatches, GPipe and 1F1B are idle for 27% of the step (computed; 28% on the emulated
# cluster, with messages), interleaving with two chunks for 16%, zero-bubble for 11%. 1F1B holds $p$ microbatches instead of $m$
# at almost no cost: half the bytes on rank 0, an eighth on rank 3 (measured). Interleaving costs messages and memory; zero-bubble
# costs code, and memory on the later ranks.
#
# > **On GPUs.** This lab has not been run on several GPUs yet: its times are emulated or computed, its bytes and gradients
# > are real.

# %%
lab.score(read="minitrain/parallel/pipeline/executor.py")

# %% [markdown]
# A pipeline cuts between layers; [e02b · Tensor parallel](e02b_tensor_parallel.ipynb) cuts *inside* a matrix. Next,
# [e02d · Expert parallel](e02d_expert_parallel.ipynb) gives a layer eight MLPs, and distributes them over the ranks.
