# %% [markdown]
# # e02c · Pipeline parallel
#
# **Cut a model into stages, one a rank, and keep all of them busy. You write three schedules as plain lists, the executor
# that runs them, and measure what they waste and what they hold.**
#
# 60 minutes · CPU is enough · before: [e02 · Data parallel](e02_data_parallel.ipynb) · next:
# [e02d · Expert parallel](e02d_expert_parallel.ipynb) · [map of the course](index.ipynb)
#
# You build: the stage split, GPipe, 1F1B, the executor of one rank, and interleaved 1F1B. You end with this picture: four
# schedules of the same work, one under another, with what each leaves idle.
#
# ![Timelines of GPipe, 1F1B, interleaved 1F1B and zero-bubble on 4 ranks: the hatched idle time shrinks from the first to the last](../labs/pictures/e02c_pipeline_parallel.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, show, widgets
from minitrain.ranks.launch import launch

lab = Lab("e02c_pipeline_parallel")

# %% [markdown]
# ## 1 · Cut the model
#
# Data parallel needs the whole model on each rank. A pipeline gives rank r some *layers*: what travels is one activation
# (B, T, D) to the next rank, and its gradient back. No other parallelism sends so little.
#
# The slowest stage sets everyone's pace, so stages are even. The ends already hold embedding and head.

# %% [markdown]
# ### Exercise 1 · `split_layers`
#
# Difficulty 1 of 5 · 4 minutes · 6 points
#
# How many layers does each stage get? As even as possible; what remains goes to stages in the middle, one each.
# `split_layers(10, 4)` is `[2, 3, 3, 2]`. Which in the middle is yours to choose; there may be fewer layers than stages.


# %% tags=["exercise"]
def split_layers(layers: int, stages: int) -> list[int]:
    """Layers of each stage: they add up to `layers` and differ by one at most; the first
    and the last stage are longer only where all between are. About 6 lines."""
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
# The batch is cut into m **microbatches**, so that rank 1 computes one while rank 0 computes the next. `Operation("F", 3)`
# is the forward of microbatch 3 on this rank, `Operation("B", 3)` its backward. A `Schedule` is one list of them for each
# rank. Nothing else: who runs it needs no more.

# %% tags=["nbval-check-output"]
from minitrain.parallel.pipeline.operations import Operation, Schedule

order = [Operation("F", 0), Operation("B", 0), Operation("F", 1), Operation("B", 1)]
naive = Schedule("naive", 2, 1, [order] * 3)  # 2 microbatches, 1 chunk, 3 ranks
print("source of rank 1's F0:", *naive.source(1, Operation("F", 0)))
print("source of rank 1's B0:", *naive.source(1, Operation("B", 0)))

# %%
show.draw_schedule(naive, title="One microbatch at a time: two of three ranks wait")

# %% [markdown]
# **Predict**: GPipe runs all forwards, then all backwards. With p = 4 ranks, m = 8 microbatches, and a backward that takes
# twice a forward: what share of the step is a rank idle?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 3 / 11
### LAB guess = None  # a share from 0 to 1, your guess
### END SOLUTION
lab.predict("gpipe_bubble", guess)

# %% [markdown]
# ### Exercise 2 · `gpipe`
#
# Difficulty 1 · 4 minutes · 6 points
#
# [Huang et al. 2019](https://arxiv.org/abs/1811.06965): all forwards, then all backwards, each from microbatch 0 on, the
# same list on every rank.


# %% tags=["exercise"]
def gpipe(p: int, m: int) -> Schedule:
    """p ranks, m microbatches (0 to m-1); `Schedule("gpipe", m, 1, orders)` with one list
    for each rank. About 4 lines."""
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

clock = clocked(gpipe(4, 8))  # a forward takes 1, a backward 2
lab.reveal(
    "gpipe_bubble",
    clock.bubble(0) / clock.makespan,
    formula=3 / 11,
    note="(p-1) / (m + p-1), whatever a forward takes",
)
show.draw_schedule(gpipe(4, 8))

# %% [markdown]
# **Explain**: every rank waits p-1 forwards and p-1 backwards in all, and works m of each. This **bubble** is
# (p-1)/m of its *work*, the caption's 38%, and (p-1)/(m+p-1) of the *step*, 27%. More microbatches make it smaller.
#
# But the caption says the price: 8 activations alive on every rank. More microbatches, more memory.

# %% [markdown]
# ## 3 · Backward as soon as you can
#
# A backward frees what its forward saved. **1F1B** ([Narayanan et al. 2019](https://arxiv.org/abs/1806.03377)) runs it
# at the first chance. The last rank alternates at once: F0 B0 F1 B1. A rank above it runs a few forwards ahead, so that
# the ranks below have work until its first gradient is back.

# %% [markdown]
# ### Exercise 3 · `one_forward_one_backward`
#
# Difficulty 3 · 12 minutes · 14 points
#
# Rank r: p-1-r forwards ahead (never more than m); then one forward, one backward, in turn; then the backwards that are
# left; each kind from microbatch 0 on. With p = 2, m = 3, rank 0 runs F0 F1 B0 F2 B1 B2.


# %% tags=["exercise"]
def one_forward_one_backward(p: int, m: int) -> Schedule:
    """1F1B for p ranks and m microbatches, `Schedule("1f1b", m, 1, orders)`: rank r never
    holds more than p-r activations. About 10 lines."""
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
show.draw_schedule(one_forward_one_backward(4, 8))

# %% [markdown]
# ## 4 · Run the list
#
# The executor of one rank walks its list of tuples `(kind, microbatch, chunk)`. F: receive x from the rank before, compute
# `out`, send it on, and keep both. B: receive the gradient from the rank behind, `out.backward(it)`, send `x.grad` back,
# and let go of both.
#
# Stages come from `cut`, a model's blocks with your numbers of layers:

# %%
from minitrain.data.loader import Batch
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.parallel.pipeline.stages import cut

width, layers = lab.size("width"), lab.size("layers")
config = ModelConfig(256, width, layers, heads=4, kv_heads=4, ffn_size=3 * width)
p = lab.size("ranks")


# %%
rows, length = lab.size("rows"), lab.size("length")


def microbatches(m):
    """Every second one has only half of its targets: the rest is padding, -100."""
    shape = (m, rows, length + 1)
    text = torch.randint(256, shape, generator=torch.Generator().manual_seed(0))
    text[1::2, :, length // 2 :] = -100
    places = torch.arange(length).expand(rows, length)
    one = torch.zeros_like(places)
    return [Batch(t[:, :-1].clamp(min=0), t[:, 1:], one, places) for t in text]


print([batch.tokens_counted for batch in microbatches(4)], "targets that count")

# %% [markdown]
# The loss is the mean over **all** tokens of the step. A microbatch's share is its *summed* loss over the count of all
# microbatches: `token_weighted_loss(logits, targets, total)` of e01. Its own mean would weigh tokens of a half-empty
# microbatch twice.

# %% [markdown]
# ### Exercise 4 · `run_operations`
#
# Difficulty 5 · 20 minutes · 20 points
#
# `group.recv(buffer, source)` fills a buffer and returns it; `stage.message(batch)` makes one. `group.isend(tensor, to)`
# returns a work and goes on; `wait` for all works at the very end. Nothing else travels. `stage(x, batch)` takes `x=None` on
# rank 0, and gives logits on the last rank; a single rank is both. Every `batch` knows its `tokens_counted`.

# %% tags=["exercise"]
from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    """Runs this rank's `order`; gradients of the mean over the tokens of all `batches` add
    up in `.grad`, to what is there. Returns that loss on the last rank, 0 (a tensor or a
    number) on others; `order` and `batches` stay as they are. About 19 lines."""
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
    model, counts = build(config, dtype=torch.float64), split_layers(layers, group.size)
    (stage,) = cut(model, schedule, group.rank, counts)
    run_operations(group, schedule.ranks[group.rank], stage, microbatches(m))
    return {name: parameter.grad for name, parameter in stage.named_parameters()}


# %% tags=["nbval-check-output"]
one, batches = build(config, dtype=torch.float64), microbatches(6)
total = sum(batch.tokens_counted for batch in batches)
for b in batches:
    logits = one(b.tokens, b.documents, b.positions)
    token_weighted_loss(logits, b.targets, total).backward()
want = {name: parameter.grad for name, parameter in one.named_parameters()}
four = launch(pipelined, 6, ranks=p)
worst = max((g - want[name]).abs().max() for part in four for name, g in part.items())
print("largest difference of any gradient is below 1e-12:", worst.item() < 1e-12)

# %% [markdown]
# ## 5 · What is idle
#
# Real ranks on two cores cannot show a pipeline of four. So your executor runs on an **emulated** clock: real tensors, real
# messages, but each forward is *said* to take 36 ms, each backward 72 ms, and a message 33 MB over InfiniBand: a quarter
# of a 7B model, 4,096 tokens, H100.

# %% tags=["experiment"]
from dataclasses import replace

from minitrain.network.fabric import FABRICS
from minitrain.network.logical_clock import LogicalClock

UNITS = {"F": 1, "B": 2}
forward_seconds = lab.size("forward_ms") / 1e3
message_bytes = 4 * rows * length * width  # of ours; each stands for a large one
infiniband = replace(
    FABRICS["h100-infiniband"](),
    ranks_per_node=1,
    compute_scale=1e-12,  # this machine's own seconds do not count
    payload_scale=lab.size("message_bytes") / message_bytes,
)


class Timed(torch.nn.Module):
    """A stage with known times: `forward_seconds`, and twice as much for a backward."""

    def __init__(self, stage, clock):
        super().__init__()
        self.stage, self.clock = stage, clock
        self.message, self.device = stage.message, stage.device

    def forward(self, x, batch):
        out = self.stage(x, batch)
        self.clock.advance(forward_seconds)
        return Backward.apply(out, self.clock)


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out, clock):
        ctx.clock = clock
        return out.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock.advance(2 * forward_seconds)
        return gradient, None


makers = {"gpipe": gpipe, "1f1b": one_forward_one_backward}
titles = {"gpipe": "GPipe", "1f1b": "1F1B"}
cases = [(name, m) for name in makers for m in lab.size("microbatches")]


def step_seconds(group, cases):
    """The emulated seconds of one step, for each schedule and number of microbatches."""
    found = []
    for name, m in cases:
        group.barrier()
        group.use(LogicalClock(group.clock.fabric, group.rank))  # at 0
        schedule = makers[name](group.size, m)
        (stage,) = cut(build(config), schedule, group.rank)
        timed = Timed(stage, group.clock)
        run_operations(group, schedule.ranks[group.rank], timed, microbatches(m))
        found.append(group.now())
    return found


def planned_seconds(name, m):
    """What the validator's clock says of the list, with this fabric's messages."""
    message = infiniband.seconds("send", message_bytes, (0, 1))
    own = lambda rank, operation: UNITS[operation.kind] * forward_seconds  # noqa: E731
    return clocked(makers[name](p, m), own, send=message).makespan


bubble = []
times = launch(step_seconds, cases, ranks=p, fabric=infiniband)
for (name, m), seconds in zip(cases, zip(*times)):
    step, busy = 1e3 * max(seconds), 1e3 * m * 3 * forward_seconds
    row = {"schedule": name, "ranks": p, "microbatches": m, "step_ms": step}
    row |= {
        "busy_ms": busy,
        "bubble": 1 - busy / step,
        "formula": (p - 1) / (m + p - 1),
    }
    bubble.append({**row, "planned": 1 - busy / (1e3 * planned_seconds(name, m))})

counts = lab.size("microbatches")
of = {name: [r for r in bubble if r["schedule"] == name] for name in makers}


def over(column, less="none"):
    """{title: (m, percent)}, of a column or of what it has more than another."""
    return {
        titles[name]: (counts, [100 * (r[column] - r.get(less, 0)) for r in own])
        for name, own in of.items()
    }


formula = {"(p-1)/(m+p-1)": (counts, [100 * r["formula"] for r in of["gpipe"]])}

# %% tags=["grade"]
lab.experiment("bubble", bubble)

# %%
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
    validator = over("planned", less="formula")
    show.lines(
        over("bubble", less="formula"),
        theory={f"{title}, validator": line for title, line in validator.items()},
        x="microbatches m",
        y="bubble above the formula (points)",
        title="What messages add (dashed: the validator)",
        ax=axes[1],
    )
    for measured in axes[1].lines[: len(titles)]:
        measured.set_linestyle("")  # markers, on the validator's dashes
show.figure(
    figure,
    alt="Bubble against microbatches on the formula, and what messages add: more in 1F1B.",
)
# %% [markdown]
# **Explain**: the formula knows no messages. GPipe pays for them on the way down and back; 1F1B in every round as well,
# since a rank's next forward waits for a gradient that travelled. Given the time of a message, the validator (dashed,
# right) knows the step beforehand. Real stages add that they are not quite even.

# %% [markdown]
# ## 6 · What is held
#
# **Predict**: eight microbatches on four ranks. How many times as many bytes of activations does rank 3 hold under GPipe as
# under 1F1B?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 8.0
### LAB guess = None  # a factor, your guess
### END SOLUTION
lab.predict("held", guess)

# %% tags=["experiment"]
from minitrain.measure.memory import MemoryLedger
from minitrain.parallel.pipeline.timeline import peak_of

m = lab.size("held")


def held(group):
    """The most bytes that autograd keeps for backward at once, under each schedule."""
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
lab.reveal(
    "held", at["gpipe", 3] / at["1f1b", 3], formula=m, note="m against p - r = 1"
)
show.bars(
    [f"rank {rank}" for rank in range(p)],
    {titles[name]: [at[name, rank] / 1e6 for rank in range(p)] for name in makers},
    y="activations at most (MB)",
    title=f"{m} microbatches, measured on {lab.device_name}",
    alt="Megabytes of activations on each rank: GPipe holds all microbatches, 1F1B four to one.",
    form="{:.2f}",
)

# %% [markdown]
# **Question**: what does 1F1B improve over GPipe: `"time"`, `"memory"`, `"both"` or `"neither"`? Your two tables say.

# %% tags=["question"]
### BEGIN SOLUTION
same_bubble = "memory"
### LAB same_bubble = None  # your answer: "time", "memory", "both" or "neither"
### END SOLUTION

# %% tags=["grade"]
lab.answer("same_bubble", same_bubble)

# %% [markdown]
# ## 7 · Smaller pieces
#
# The bubble is p-1 *stages* long. Give each rank v **chunks** instead of one stage: chunk c of rank r is stage c·p + r, so
# a microbatch winds v times around the ranks. A stage is v times shorter, and so is the bubble
# ([Narayanan et al. 2021](https://arxiv.org/abs/2104.04473)).

# %% [markdown]
# ### Exercise 5 · `interleaved`
#
# Difficulty 4 · 14 minutes · 14 points
#
# `Operation("F", i, c)`: microbatch i, chunk c. Forwards: p microbatches through chunk 0, the same p through chunk 1, …,
# then the next p (p divides m). Backwards: the same, last chunk first. Rank r runs (v-1)·p + 2·(p-1-r) forwards ahead,
# never more than m·v; with v = 1, p-1-r. Then, as before, one forward, one backward, in turn, and what is left.


# %% tags=["exercise"]
def interleaved(p: int, m: int, v: int) -> Schedule:
    """1F1B over v chunks a rank, `Schedule("interleaved", m, v, orders)`; p divides m.
    About 14 lines."""
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
show.draw_schedule(interleaved(4, 8, 2), unit="forwards of a chunk")

# %% [markdown]
# Light boxes are the second chunk. What does it cost? For your schedules on 8 ranks, count the messages between
# ranks, and the most activations that a rank holds (`stages_held`: a chunk's count as 1/v).

# %% tags=["experiment"]
from minitrain.words import plural

ranks, planned = lab.size("planned_ranks"), []


def messages(schedule):
    """How many tensors travel between ranks in a step."""
    targets = (
        (rank, schedule.target(rank, operation))
        for rank, order in enumerate(schedule.ranks)
        for operation in order
    )
    return sum(target is not None and target[0] != rank for rank, target in targets)


for v in (1, 2, 4):
    for m in lab.size("planned"):
        schedule = interleaved(ranks, m, v)
        clock = clocked(schedule)
        share = clock.bubble(0) / clock.makespan
        row = {"ranks": ranks, "chunks": v, "microbatches": m, "bubble": share}
        stages_held = max(peak_live(schedule)) / v
        planned.append(
            {**row, "messages": messages(schedule), "stages_held": stages_held}
        )

# %% tags=["grade"]
lab.experiment("planned", planned)

# %%
curves = {
    plural(v, "chunk"): (
        [r["microbatches"] for r in own],
        [100 * r["bubble"] for r in own],
    )
    for v in (1, 2, 4)
    for own in [[r for r in planned if r["chunks"] == v]]
}
show.lines(
    curves,
    theory={"10%": (lab.size("planned"), [10] * len(lab.size("planned")))},
    x="microbatches m",
    y="bubble (% of the step)",
    title=f"{ranks} ranks, on the validator's clock",
    alt="Bubble against microbatches for 1, 2 and 4 chunks a rank, and the line at ten percent.",
    log="x",
)
show.table(planned)

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
# **Question**: GPipe would also reach that bubble with the m of your first answer. How many bytes of activations would it
# hold on rank 0, each microbatch as large as in your table `live`?

# %% tags=["question"]
### BEGIN SOLUTION
gpipe_bytes = at["gpipe", 0] / live[0]["microbatches"] * enough_microbatches
### LAB gpipe_bytes = None  # your answer, bytes
### END SOLUTION
show.table([row for row in live if row["rank"] == 0])

# %% tags=["grade"]
lab.answer("gpipe_bytes", gpipe_bytes)

# %% [markdown]
# ## 8 · No bubble
#
# A backward does two things: the *input's* gradient, for which the rank before waits, and the *weights'*, for which nobody
# does. **Zero-bubble** ([Qi et al. 2024](https://arxiv.org/abs/2401.10241)) splits them into B and W, and puts W where
# the rank would idle.
#
# **Stretch, ungraded**: change `orders` below. Can you lose less than `zero_bubble` does? Under it, explore all four.

# %%
from minitrain.parallel.pipeline.schedules import zero_bubble

orders = [list(order) for order in zero_bubble(4, 8).ranks]  # yours to change
mine = Schedule("yours", 8, 1, orders)
show.draw_schedule(mine, title="Zero-bubble (ZB-H1): F = B = W = 1")

every = {**makers, "interleaved": lambda p, m: interleaved(p, m, 2), "zb": zero_bubble}


def idle(clock):
    """The share of the step in which rank 0 waits."""
    return clock.bubble(0) / clock.makespan


# %%
def draw(ax, schedule, ranks, rounds):
    clock = clocked(every[schedule](ranks, ranks * rounds))
    show.draw_schedule(clock, ax=ax, title=f"{schedule}: {idle(clock):.0%} idle")
    ax.get_legend().remove()


widgets.explore(
    draw,
    alt="Timeline of one schedule, forwards blue, backwards orange, idle time hatched.",
    schedule=["1f1b", "gpipe", "interleaved", "zb"],
    ranks=(2, 8, 4),
    rounds=(1, 4, 2),
)

# %% [markdown]
# **The picture**: the same work four times, on one axis. A chunk of the interleaved one is half a stage.

# %% tags=["picture"]
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
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.3), "ncols": 4}
    axes[-1].legend(handles, labels, **place)
show.figure(
    figure,
    alt="Timelines of GPipe, 1F1B, interleaved and zero-bubble on 4 ranks, with their idle time.",
)

# %% [markdown]
# **Takeaway**: on 4 ranks with 8 microbatches GPipe and 1F1B idle 27% of the step, interleaving with two chunks 16%,
# zero-bubble 11%. 1F1B holds p microbatches instead of m for next to nothing; interleaving pays in messages and memory,
# zero-bubble in code.

# %%
lab.score(read="minitrain/parallel/pipeline/executor.py")

# %% [markdown]
# A pipeline cuts between layers. Next, [e02d · Expert parallel](e02d_expert_parallel.ipynb) gives a layer eight MLPs, and
# puts them on different ranks. The [map of the course](index.ipynb) has the cuts *inside* a matrix, and all of them together.
