# %% [markdown]
# # e02 · Data parallel
#
# **Every rank trains on its own part of the batch, and all end with the same weights. You write it three times, from one
# message a tensor to messages that travel while you compute, and read off a trace where the rest of the time goes.**
#
# 60 minutes · CPU is enough · before: [e01 · Baseline](e01_baseline.ipynb) · next:
# [e02b · Tensor parallel](e02b_tensor_parallel.ipynb) · [map of the course](index.ipynb)
#
# You build: naive DDP, buckets, overlap with backward, and accumulation. You end with this picture: efficiency from one to
# eight ranks over four networks, with and without overlap.
#
# ![Efficiency from 1 to 8 ranks over four networks: NVLink stays high, Ethernet falls below a half](../labs/pictures/e02_data_parallel.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, show
from minitrain.ranks.launch import launch

lab = Lab("e02_data_parallel")

# %% [markdown]
# ## 1 · The same step, on more data
#
# The gradient of a mean is the mean of the gradients. So if N ranks each take a batch of b and **average their
# gradients**, they make exactly the step of one process with a batch of N·b.
#
# The model of e01, and one step's loss on random tokens:

# %%
from minitrain.model.config import preset
from minitrain.model.transformer import build

config = preset(lab.size("preset"), layers=lab.size("layers"))
B, T = lab.size("batch"), lab.size("length")
P = sum(p.numel() for p in build(config).parameters())
print(f"{show.count_text(P)} parameters, {show.bytes_text(4 * P)} of gradients")


# %%
def loss_of(model, tokens):
    logits = model(tokens[:, :-1])  # (B, T, V)
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), tokens[:, 1:].flatten()
    )


def tokens_of(rank):
    seeded = torch.Generator().manual_seed(rank)
    return torch.randint(config.vocab_size, (B, T + 1), generator=seeded)


# %% [markdown]
# **Predict**: four ranks all-reduce these gradients by the ring of e00. How many bytes does each rank send in a step?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 2 * 3 / 4 * 4 * P
### LAB guess = None  # bytes, your guess
### END SOLUTION
lab.predict("step_bytes", guess, unit="B")

# %% [markdown]
# ### Exercise 1 · `all_reduce_gradients`
#
# Difficulty 2 of 5 · 8 minutes · 12 points
#
# After backward, average every gradient: `group.all_reduce(tensor, op="avg")` works in place (without `op` it sums). A
# parameter that this rank did not use has `grad is None`; the others still wait for its part. A *tied* parameter, one
# tensor under two names (embedding and head), is sent once; a frozen one (`requires_grad` is False) is left alone.


# %% tags=["exercise"]
def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    """Leaves the average over ranks in every `.grad`: one all-reduce for each trainable
    parameter, in one order on all ranks. Any model, any number of calls. About 5 lines."""
    ### BEGIN SOLUTION
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            group.all_reduce(parameter.grad, op="avg")
    ### END SOLUTION


# %% tags=["grade"]
all_reduce_gradients = lab.grade(all_reduce_gradients)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `model.parameters()` names a tied parameter once, in the same order on all ranks. Leave out what does not require a
# gradient.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Where `parameter.grad is None`, this rank's part of the sum is zero: put zeros there, then join the all-reduce.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `group.all_reduce(parameter.grad, op="avg")`: it writes into `.grad`, and divides by the number of ranks.
#
# </details>

# %% [markdown]
# **Run**: four ranks, four different batches, against one process with all. Never compare the loss alone: Adam hides a
# gradient that is N times too large.


# %% tags=["nbval-check-output"]
def data_parallel(group):
    model = build(config, dtype=torch.float64, seed=1)
    loss_of(model, tokens_of(group.rank)).backward()
    all_reduce_gradients(group, model)
    return [p.grad for p in model.parameters()]


one = build(config, dtype=torch.float64, seed=1)
loss_of(one, torch.cat([tokens_of(rank) for rank in range(4)])).backward()
four = launch(data_parallel, ranks=4)
worst = max((g - p.grad).abs().max() for g, p in zip(four[0], one.parameters()))
print("largest difference of any gradient is below 1e-12:", worst.item() < 1e-12)

# %%
sent = four.traces[0].bytes_sent() // 2  # float64 here, 8 bytes instead of 4
lab.reveal(
    "step_bytes",
    sent,
    formula=2 * 3 / 4 * 4 * P,
    note="2(N-1)/N · 4P, whatever the batch",
)

# %% [markdown]
# ## 2 · Fewer messages
#
# e00 showed that a message costs α before its first byte. A 7B model has about 290 parameter tensors: 290 latencies in
# a row, 2(N-1) each.
#
# So gradients share **buckets**: flat buffers, one all-reduce each. PyTorch's default is 25 MiB
# ([Li et al. 2020](https://arxiv.org/abs/2006.15704)). With large tensors they alone gain little; they make section 3
# possible.

# %% [markdown]
# ### Exercise 2 · `all_reduce_gradients_bucketed`
#
# Difficulty 3 · 12 minutes · 16 points
#
# Walk the trainable parameters **in reverse**: backward makes the last layer's gradient first. Fill a bucket until the
# next one does not fit, and never go back to it; then join, average, and copy the pieces back (`.grad` may be a view of
# what was joined). Buckets are sent in the order in which they were filled; all parameters have one dtype.


# %% tags=["exercise"]
def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    """The same average with one all-reduce a bucket of at most `bucket_bytes`; a larger
    parameter gets a bucket to itself. About 16 lines."""
    ### BEGIN SOLUTION
    buckets, room = [], 0
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if p.nbytes > room or not buckets:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= p.nbytes
    for bucket in buckets:
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([part.flatten() for part in parts])
        group.all_reduce(flat, op="avg")
        for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad = piece.view_as(p)
    ### END SOLUTION


# %% tags=["grade"]
all_reduce_gradients_bucketed = lab.grade(all_reduce_gradients_bucketed)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Two loops: first make lists of parameters, then send list by list. `p.nbytes` is a parameter's size.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Keep the `room` that is left in the last bucket. Where the next parameter is larger than that, open a new one with
# `room = bucket_bytes`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `flat = torch.cat([g.flatten() for g in …])`, one all-reduce, then `flat.split([p.numel() for p in bucket])` gives the
# pieces; `piece.view_as(p)` is the gradient.
#
# </details>

# %% [markdown]
# ## 3 · Send while you compute
#
# Backward walks from the last layer to the first. The last layer's gradient is ready when most of the work is still to
# come: send it *now*.
#
# A parameter's hook, `register_post_accumulate_grad_hook`, runs the moment `.grad` is complete. **It is handed the
# parameter**, not the gradient.

# %% [markdown]
# `Bucket` is given: `take(p, n)` copies a gradient (zeros if there is none) divided by n into the flat `buffer`, makes
# `p.grad` a view of it, and strikes `p` off `missing`. A sum all-reduce of `buffer` then leaves the average in `p.grad`.


# %%
class Bucket:
    def __init__(self, parameters):
        self.parameters, self.missing = list(parameters), set(parameters)
        self.buffer = torch.cat([torch.zeros_like(p).flatten() for p in parameters])
        pieces = self.buffer.split([p.numel() for p in parameters])
        self.views = {p: v.view_as(p) for p, v in zip(parameters, pieces)}

    def take(self, p, ranks):
        self.views[p].copy_(0 * p.data if p.grad is None else p.grad / ranks)
        p.grad = self.views[p]
        self.missing.discard(p)


# %%
def make_buckets(model, bucket_bytes):
    lists, room = [], 0
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if p.nbytes > room or not lists:
            lists, room = [*lists, []], bucket_bytes
        lists[-1].append(p)
        room -= p.nbytes
    return [Bucket(bucket) for bucket in lists]


# %% [markdown]
# So is `Wrapper`: inside `with ddp.no_sync():`, `ddp.synchronize` is False, and the hook lets gradients add up.

# %%
from contextlib import contextmanager


class Wrapper(torch.nn.Module):
    synchronize = True

    def forward(self, *inputs, **options):
        return self.module(*inputs, **options)

    @contextmanager
    def no_sync(self):
        self.synchronize = False
        yield
        self.synchronize = True


# %% [markdown]
# ### Exercise 3 · `DDP`
#
# Difficulty 5 · 20 minutes · 20 points
#
# `hook`: take `p`, then `send_ready`: while the *next* bucket in line misses nothing, issue its all-reduce
# (`async_op=True`), keep the work; stop when all are sent. In line, because ranks must send in one order.
#
# `finish`: take what is missing, send the rest, wait, and reset: no works, every `missing` full.
#
# Inside `no_sync` nothing is sent; what added up there is in `.grad`, and goes out with the next backward.


# %% tags=["exercise"]
class DDP(Wrapper):
    """A model whose backward leaves averaged gradients. About 14 lines of yours."""

    def __init__(self, model, group, bucket_bytes=25 * 2**20):
        super().__init__()
        self.module, self.group, self.works = model, group, []
        self.buckets = make_buckets(model, bucket_bytes)
        for bucket in self.buckets:
            for p in bucket.parameters:
                p.register_post_accumulate_grad_hook(
                    lambda p, b=bucket: self.hook(p, b)
                )

    def hook(self, p, bucket):
        """The gradient of `p` is complete; others may not be."""
        if self.synchronize:
            ### BEGIN SOLUTION
            bucket.take(p, self.group.size)
            self.send_ready()
            ### END SOLUTION

    def send_ready(self):
        """Issues the buckets that are next in line and full."""
        ### BEGIN SOLUTION
        while len(self.works) < len(self.buckets):
            bucket = self.buckets[len(self.works)]
            if bucket.missing:
                break
            self.works.append(self.group.all_reduce(bucket.buffer, async_op=True))
        ### END SOLUTION

    def finish(self):
        """After backward: everything sent and arrived, and ready for the next step."""
        ### BEGIN SOLUTION
        for bucket in self.buckets:
            for p in list(bucket.missing):
                bucket.take(p, self.group.size)
        self.send_ready()
        for work in self.works:
            work.wait()
        self.works = []
        for bucket in self.buckets:
            bucket.missing = set(bucket.parameters)
        ### END SOLUTION


# %% tags=["grade"]
DDP = lab.grade(DDP)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# The hook does two things: `bucket.take(p, self.group.size)`, then try to send.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The next in line is `self.buckets[len(self.works)]`. If it still misses a gradient, stop, even if a later one is full:
# on another rank they may fill in another order.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `finish`: take every parameter in each `bucket.missing` (copy the set first), `send_ready()`, `wait()` for each work, then
# empty `works` and refill each `missing` with `set(bucket.parameters)`.
#
# </details>

# %% [markdown]
# ## 4 · Accumulate, then talk once
#
# A batch that does not fit is cut into M microbatches whose gradients add up. Sending after each would cost M times the
# bytes for nothing: forward and backward inside `ddp.no_sync()` only accumulate.

# %% [markdown]
# ### Exercise 4 · `accumulate`
#
# Difficulty 2 · 6 minutes · 12 points
#
# All but the last microbatch run inside `ddp.no_sync()`, forward and backward, one after another: only one graph is in
# memory at a time. The M microbatches, a list or a tuple, are equally large; each loss is divided by M, before its
# backward. The caller runs `ddp.finish()`.

# %% tags=["exercise"]
from contextlib import nullcontext


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    """Forward and backward of `loss_of(ddp, microbatch)` for each, in order; gradients as
    of one large batch, synchronized once. Returns the mean loss, detached. About 8 lines."""
    ### BEGIN SOLUTION
    total = 0.0
    for index, microbatch in enumerate(microbatches):
        last = index == len(microbatches) - 1
        with nullcontext() if last else ddp.no_sync():
            loss = loss_of(ddp, microbatch) / len(microbatches)
            loss.backward()
        total = total + loss.detach()
    return total
    ### END SOLUTION


# %% tags=["grade"]
accumulate = lab.grade(accumulate)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `nullcontext()` is a `with` that does nothing: what the last microbatch needs.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `with nullcontext() if last else ddp.no_sync():` around both `loss_of` and `.backward()`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Divide by `len(microbatches)` before backward, and add up `loss.detach()`: the sum is the mean.
#
# </details>

# %% [markdown]
# **Run**: two microbatches, one all-reduce (the whole model fits one bucket of 25 MiB).


# %% tags=["nbval-check-output"]
def two_microbatches(group):
    ddp = DDP(build(config, seed=1), group)
    accumulate(ddp, tokens_of(group.rank).chunk(2), loss_of)
    ddp.finish()
    return group.trace.count("all_reduce")


print("all-reduces of each rank:", list(launch(two_microbatches, ranks=2)))

# %% [markdown]
# ## 5 · Measure
#
# One training step, three ways, on this machine, in about ten seconds. `group.trace` keeps every message.
#
# Communication is **exposed** while the rank does nothing but wait for it, and **hidden** while it travels and the rank
# computes.

# %% tags=["experiment"]
from minitrain.parallel.ddp import broadcast_parameters


def steps(group, variant, repeats, bucket_bytes=2**20):
    """Seconds, bytes, messages, waiting and hidden seconds of one step."""
    model, trace = build(config, seed=1), group.trace
    ddp = DDP(model, group, bucket_bytes) if variant == "overlapped" else model
    broadcast_parameters(group, model)
    optimizer, tokens = torch.optim.AdamW(model.parameters()), tokens_of(group.rank)
    rows = []
    for _ in range(repeats + 1):
        group.barrier()
        trace.ops.clear()
        trace.marks.clear()
        trace.mark("start")
        loss_of(ddp, tokens).backward()
        trace.mark("backward done")
        if variant == "naive":
            all_reduce_gradients(group, model)
        elif variant == "bucketed":
            all_reduce_gradients_bucketed(group, model, bucket_bytes)
        else:
            ddp.finish()
        optimizer.step()
        optimizer.zero_grad()
        trace.mark("end")
        begin, computed, end = (at for _, at in trace.marks)
        rows.append(
            (end - begin, trace.bytes_sent(), trace.count("all_reduce"),
             trace.exposed_seconds(), trace.hidden_seconds(), computed - begin)
        )  # fmt: skip
    return min(rows[1:], key=lambda row: row[3])  # the least disturbed one


def each(group, variants, *options):
    """The variants one after another, in one launch."""
    return [
        {"variant": v, **dict(zip(columns, steps(group, v, *options)))}
        for v in variants
    ]


columns = ["step_seconds", "sent_bytes", "all_reduces", "exposed_seconds", "hidden_seconds", "backward_seconds"]  # fmt: skip
variants, measured = ["naive", "bucketed", "overlapped"], []
for ranks in (1, 2):
    for row in launch(each, variants, lab.size("repeats"), ranks=ranks)[0]:
        measured.append({"ranks": ranks, "parameters": P, **row})

# %% tags=["grade"]
lab.experiment("measured", measured)

# %%
rate = {
    (r["variant"], r["ranks"]): r["ranks"] * B * T / r["step_seconds"] for r in measured
}
show.bars(
    variants,
    {f"{n} rank{'s' * (n > 1)}": [rate[v, n] for v in variants] for n in (1, 2)},
    theory=[2 * rate[v, 1] for v in variants],
    y="tokens per second",
    title=f"Measured on {lab.device_name}; predicted: twice one rank",
    alt="Tokens per second of one and two ranks, naive, bucketed and overlapped.",
    form="{:.0f}",
)

# %% [markdown]
# **Explain**: two ranks on two cores usually stay below twice one rank; if yours do not, the machine was busy: run the
# cell again. One rank alone may use all cores, so the second core is not new; and here the network *is* the memory bus. A
# cluster is neither: emulate one.

# %% [markdown]
# ## 6 · A cluster on a laptop
#
# A *fabric* runs real tensors beside a clock: compute is your CPU seconds scaled to a GPU, messages cost `α + bytes·β` of
# published sweeps. Each parameter stands for 1,800 and each token for 64: a 1B model on 16,384 tokens.
#
# Everything from here on is **emulated**.

# %% tags=["experiment"]
from dataclasses import replace

from minitrain.network.fabric import FABRICS

weight, length = lab.size("parameters_each"), lab.size("tokens_each")


def stand_in(name, **changes):
    """The fabric, with a model and a batch that are heavier than the ones that run."""
    fabric = replace(FABRICS[name](), **changes).resolved()
    scale = weight * length * fabric.compute_scale
    return replace(fabric, compute_scale=scale, payload_scale=weight)


infiniband = stand_in("h100-infiniband", ranks_per_node=1)
overlap, runs = [], {}
for variant in variants:
    runs[variant] = launch(steps, variant, 3, 2**18, ranks=4, fabric=infiniband)
    overlap.append({"variant": variant, **dict(zip(columns, runs[variant][0]))})

# %% tags=["grade"]
lab.experiment("overlap", overlap)

# %% [markdown]
# **Predict** before you look: of a step of your overlapped DDP on 4 nodes with InfiniBand, what share of the
# communication is hidden, from 0 to 1?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.5
### LAB guess = None  # a share from 0 to 1, your guess
### END SOLUTION
lab.predict("hidden", guess)


# %%
def spans_of(variant, trace):
    """(lane, start, end, label) in ms of what a rank and its network did in one step."""
    zero, computed, end = (1e3 * seconds for _, seconds in trace.marks)
    busy, network = 0.0, []
    for op in trace.select("all_reduce"):
        begin, busy = max(busy, 1e3 * op.issued - zero), 1e3 * op.end - zero
        network.append((f"{variant}: network", begin, busy, "all-reduce"))
    lane, after = f"{variant}: compute", end - zero
    step = [(lane, 0.0, computed - zero, "compute"), *network]
    return [*step, (lane, busy, after, "optimizer")]


# %%
spans = [spans_of(variant, runs[variant].traces[0]) for variant in variants]
show.timeline(
    sum(spans, []),
    alt="One step of three variants: computing, and all-reduces under way beside it.",
    title="One step on 4 emulated nodes, InfiniBand",
)

# %%
row = overlap[2]
hidden = row["hidden_seconds"] / (row["hidden_seconds"] + row["exposed_seconds"])
lab.reveal("hidden", hidden, note="hidden / (hidden + exposed), emulated")

# %% [markdown]
# **Question**: how many times as fast as the naive step is the overlapped one, in the table `overlap`? The timeline shows
# why.

# %% tags=["question"]
### BEGIN SOLUTION
overlap_speedup = overlap[0]["step_seconds"] / overlap[2]["step_seconds"]
### LAB overlap_speedup = None  # your answer, 1 where both take as long
### END SOLUTION
show.table(overlap)

# %% tags=["grade"]
lab.answer("overlap_speedup", overlap_speedup)

# %% [markdown]
# ## 7 · From one to eight
#
# Each rank keeps its batch; more ranks mean a larger one (*weak scaling*). **Efficiency** is the part of the step in which
# a rank computes: `1 - exposed / step`. The next cell takes half a minute.

# %% tags=["experiment"]
clusters = {
    "8 H100, NVLink": stand_in("h100-nvlink"),
    "8 A100, NVLink": stand_in("a100-nvlink"),
    "H100, InfiniBand": infiniband,
    "A100, 25G Ethernet": stand_in("ethernet-25g"),
}
scaling = []
for name, fabric in clusters.items():
    for ranks in lab.size("ranks"):
        pair = ["naive", "overlapped"]
        run = launch(
            each, pair, lab.size("emulated_repeats"), 2**18, ranks=ranks, fabric=fabric
        )
        moved = fabric.seconds("all_reduce", 4 * P, range(ranks))
        latency = fabric.seconds("all_reduce", 0, range(ranks))
        for row in run[0]:
            row["communication_seconds"] = moved
            row["latency_seconds"] = row["all_reduces"] * latency
            row["efficiency"] = 1 - row["exposed_seconds"] / row["step_seconds"]
            scaling.append({"fabric": name, "ranks": ranks, "tokens": B * T, **row})

# %% tags=["grade"]
lab.experiment("scaling", scaling)

# %% [markdown]
# Theory (dashed): with compute C and communication T a naive step keeps C / (C + T). Measured points lie lower, since
# *exposed* also counts waiting for slower ranks.
#
# An overlapped step hides up to the backward's part of C. NVLink hides nearly all of it. Ethernet cannot: T is a multiple
# of C, and no overlap mends that.

# %% tags=["picture"]
with show.canvas(columns=2) as (figure, axes):
    for ax, variant in zip(axes, ("naive", "overlapped")):
        curves, theory = {}, {}
        for name in clusters:
            own = [r for r in scaling if (r["fabric"], r["variant"]) == (name, variant)]
            ranks = [r["ranks"] for r in own]
            curves[name] = (ranks, [100 * r["efficiency"] for r in own])
            C = [r["step_seconds"] - r["exposed_seconds"] for r in own]
            T = [r["communication_seconds"] for r in own]
            theory[f"{name}, theory"] = (
                ranks,
                [100 * c / (c + t) for c, t in zip(C, T)],
            )
        show.lines(
            curves,
            theory=theory if variant == "naive" else None,
            x="ranks",
            y="efficiency (%)",
            title=f"{variant} (emulated)",
            ax=ax,
        )
        ax.set_ylim(0, 105)
show.figure(
    figure,
    alt="Efficiency against ranks over four networks, naive with theory, and overlapped.",
)

# %% [markdown]
# **Question**: on the slowest network, 8 ranks, what is the bottleneck: `"compute"`, `"latency"` (more than half of the
# waiting is α) or `"bandwidth"`? Read it off your own rows.

# %% tags=["question"]
slowest = min(
    (r for r in scaling if r["ranks"] == 8 and r["variant"] == "overlapped"),
    key=lambda r: r["efficiency"],
)
### BEGIN SOLUTION
waiting = slowest["exposed_seconds"]
bottleneck = "compute" if slowest["step_seconds"] > 2 * waiting else "bandwidth"
### LAB bottleneck = None  # your answer: "compute", "latency" or "bandwidth"
### END SOLUTION
show.table([slowest])

# %% tags=["grade"]
lab.answer("bottleneck", bottleneck)

# %% [markdown]
# **Question**: compute grows with the tokens of a rank, communication does not. How many tokens a rank would make compute
# (`step - exposed`) as long as `communication_seconds` there? In tokens as in the column `tokens` (not times 64).

# %% tags=["question"]
### BEGIN SOLUTION
compute = slowest["step_seconds"] - slowest["exposed_seconds"]
tokens_to_hide = slowest["tokens"] * slowest["communication_seconds"] / compute
### LAB tokens_to_hide = None  # your answer, tokens a rank
### END SOLUTION

# %% tags=["grade"]
lab.answer("tokens_to_hide", tokens_to_hide)

# %% [markdown]
# > **On GPUs.** One GPU changes the sizes only. With two or more, `launch` uses NCCL and section 5 becomes the real
# > experiment: `torchrun` runs the same functions on a cluster.
#
# Every rank still holds *all* parameters, gradients and optimizer state: 16 bytes a parameter, N times over. That waste is
# what [e03 · ZeRO](e03_zero.ipynb) removes.

# %%
lab.score(read="minitrain/parallel/ddp.py")
