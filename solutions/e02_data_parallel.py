# %% [markdown]
# # e02 · Data parallel
#
# **Every rank trains on its own part of the batch, and all ranks end with the same weights. You write it three times, from one
# all-reduce per tensor to all-reduces that run during backward, and read off a trace where the remaining time goes.**
#
# 90 minutes · CPU is enough · before: [e01 · Baseline](e01_baseline.ipynb) · next:
# [e02b · Tensor parallel](e02b_tensor_parallel.ipynb) · [map of the course](index.ipynb)
#
# You build naive DDP, buckets, overlap with backward, and gradient accumulation. By the end you will have made this picture:
# efficiency from one to eight ranks over four networks, with and without overlap.
#
# ![Efficiency from 1 to 8 ranks over four networks: NVLink stays high, Ethernet falls below one half](../labs/pictures/e02_data_parallel.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, ideas, show
from minitrain.ranks.launch import launch

lab = Lab("e02_data_parallel")

# %% [markdown]
# ## 1 · The same step, on more data
#
# One GPU computes the gradient of a batch. With N GPUs you want to process N times as many samples in the same time, and still
# make *exactly* the step that one huge GPU would make with all of them. So every rank holds the whole model and gets a batch of
# its own:

# %%
ideas.replicas()

# %% [markdown]
# Follow a column from the top. The batch differs from rank to rank (colours), but the weights W are the same (grey), so the
# gradients differ. Before the optimizer runs, the ranks average their gradients: this is the black row, the only one in which
# anything is sent. Starting from equal weights and equal gradients, the optimizer computes equal new weights (η is the learning
# rate). So the weights themselves never need to be sent again.

# %% [markdown]
# **Why an average?** Let rank r have b samples, sample i with the loss $\ell_i$. The loss of this rank is
# $L_r = \frac{1}{b} \sum_{i \in r} \ell_i$. One process with all N·b samples would have
#
# $$L = \frac{1}{N b} \sum_{i} \ell_i = \frac{1}{N} \sum_{r} L_r , \qquad \text{so} \qquad \nabla L = \frac{1}{N} \sum_{r} \nabla L_r .$$
#
# The gradient of a mean is the mean of the gradients, provided that all parts are *equally large*. With N = 4 ranks of b = 4
# sequences, four ranks make the step of one process with 16 sequences.
#
# The next cells define the model of e01 with two of its four layers, and the loss of one step on random tokens, which are
# different on each rank.

# %%
from minitrain.model.config import preset
from minitrain.model.transformer import build

config = preset(lab.size("preset"), layers=lab.size("layers"))
B, T = lab.size("batch"), lab.size("length")
P = sum(p.numel() for p in build(config).parameters())
print(f"{show.count_text(P)} parameters, {show.bytes_text(4 * P)} of gradients")


# %%
def loss_of(model, tokens):
    tokens = tokens.to(next(model.parameters()).device)
    logits = model(tokens[:, :-1])  # (B, T, V)
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), tokens[:, 1:].flatten()
    )


def tokens_of(rank):
    seeded = torch.Generator().manual_seed(rank)
    return torch.randint(config.vocab_size, (B, T + 1), generator=seeded)


# %% [markdown]
# **Predict**: four ranks all-reduce these gradients over the ring of e00. How many bytes does each rank send per step?

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
# After backward, average every gradient: `group.all_reduce(tensor, op="avg")` works in place (without `op` it sums). It is a
# collective: all ranks must call it equally often and in the same order, or they wait forever. Three kinds of parameter need
# care:
#
# - A parameter that this rank did not use has `grad is None`. The other ranks still wait for its part, which is zeros, and the
#   average must end up in its `.grad` here, too.
# - A *tied* parameter, one tensor under two names (embedding and head), is sent once.
# - A frozen parameter (`requires_grad` is False) is not sent, and its `.grad` is left as it is.


# %% tags=["exercise"]
def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    """Leaves the average over ranks in every `.grad`: one all-reduce for each
    trainable parameter, in one order on all ranks. Any model, any number of
    calls. About 5 lines."""
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
# `model.parameters()` yields a tied parameter once, and in the same order on all ranks. Skip every parameter that does not
# require a gradient.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Where `parameter.grad is None`, the contribution of this rank to the sum is zero: put zeros there, then join the all-reduce.
#
# </details>
# <details><summary>Hint 3</summary>
#
# With `op="avg"` the all-reduce writes into `.grad` and divides by the number of ranks, so nothing remains to be copied or
# divided.
#
# </details>

# %% [markdown]
# **Run**: four ranks with four different batches, against one process with all 16 sequences. The check compares the gradient, not
# the loss after a few steps. Adam divides the gradient by its own size, so a gradient that is N times too large makes nearly the
# same step, and the mistake stays hidden until someone clips gradients or uses SGD.


# %% tags=["nbval-check-output"]
def data_parallel(group):
    model = build(config, group.device, torch.float64, seed=1)
    loss_of(model, tokens_of(group.rank)).backward()
    all_reduce_gradients(group, model)
    return [p.grad for p in model.parameters()]


one = build(config, dtype=torch.float64, seed=1)
loss_of(one, torch.cat([tokens_of(rank) for rank in range(4)])).backward()
four = launch(data_parallel, ranks=4)
worst = max((g - p.grad).abs().max() for g, p in zip(four[0], one.parameters()))
is_small = worst.item() < 1e-12
print("largest difference of any gradient is below 1e-12:", is_small)

# %%
sent = four.traces[0].bytes_sent() // 2  # float64 here, 8 bytes instead of 4
lab.reveal("step_bytes", sent, parameters=P, ranks=4)

# %% [markdown]
# **Explain**: in an all-reduce of S bytes each rank sends $\frac{2(N-1)}{N} S$ (e00), and the gradients of P parameters in
# float32 are S = 4 P bytes. With the 574,080 parameters of the default size this is
#
# $$\frac{2 \cdot 3}{4} \cdot 4 \cdot 574{,}080 = 3.44\ \text{MB per step.}$$
#
# The batch does not appear in this formula: a larger batch means more computation for the same bytes.

# %% [markdown]
# ## 2 · Fewer messages
#
# Your function calls one all-reduce for each parameter tensor, and e00 showed what a message costs: a latency α before its first
# byte moves, 30 µs on 25 Gb/s Ethernet. In the picture, a message is one transfer from one rank to another:

# %%
ideas.message_cost()

# %% [markdown]
# A ring all-reduce on N ranks takes 2(N-1) steps, so m all-reduces cost $m \cdot 2(N-1)\,\alpha$ of latency besides the time for
# their bytes. This model has 21 tensors with 2.3 MB of gradients. On 8 machines with Ethernet, where a byte takes 0.34 ns, this
# is on paper
#
# $$\underbrace{21 \cdot 14 \cdot 30\,\text{µs}}_{8.8\ \text{ms, latency}} +
# \underbrace{1.75 \cdot 2.3\,\text{MB} \cdot 0.34\,\text{ns/B}}_{1.4\ \text{ms, bytes}}$$
#
# A *single all-reduce* would have a latency of 14 · 30 µs = 0.4 ms instead of 8.8 ms.

# %% [markdown]
# So gradients share **buckets**: flat buffers, each filled with several gradients and sent in one all-reduce. PyTorch's default
# size is 25 MiB ([Li et al. 2020](https://arxiv.org/abs/2006.15704)).
#
# For large models, where a single matrix fills a bucket, this alone gains little, because the bytes outweigh the latency. But
# buckets make the next section possible, and there their *order* matters. Backward computes the gradient of the last layer first.
# A bucket is complete once its last gradient is there, so it should hold gradients that backward computes one after another.
# Hence the buckets are filled from the last parameter to the first.

# %% [markdown]
# ### Exercise 2 · `all_reduce_gradients_bucketed`
#
# Difficulty 3 · 15 minutes · 16 points
#
# Go through the trainable parameters **in reverse**. Fill a bucket until the next parameter does not fit, then open a new one and
# never return to an earlier one. A parameter that fills the bucket exactly still fits. Then, bucket by bucket in the order in
# which they were filled, join the gradients, average them, and copy the pieces back (`.grad` may be a view of the joined tensor).
#
# As in exercise 1, a gradient that is missing counts as zeros, a tied parameter is sent once, and frozen parameters are left
# alone. All parameters have one dtype. If the model has no trainable parameters, nothing is sent.


# %% tags=["exercise"]
def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    """The same average, with one all-reduce per bucket of at most
    `bucket_bytes`; a larger parameter gets a bucket to itself. About 16
    lines."""
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
# Use two loops: the first makes lists of parameters, the second sends list by list. `p.nbytes` is the size of a parameter.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Keep the `room` that is left in the last bucket. When the next parameter is larger than that, open a new bucket with
# `room = bucket_bytes`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.cat` joins the flattened gradients of a list. After the all-reduce, `Tensor.split` with the list of their `numel()` cuts
# the result at the same places, and each piece needs the shape of its parameter (`view_as`).
#
# </details>

# %% [markdown]
# ## 3 · Send while you compute
#
# So far the network idles during backward, and the processor idles during the all-reduce. But the gradient of the last layer is
# final while most of backward is still to come. Send it *now*:

# %%
ideas.buckets()

# %% [markdown]
# Time runs to the right. As soon as backward has filled a bucket (arrow), its all-reduce starts, and backward goes on.
# Communication to the left of the dashed line is **hidden**: it costs no time. Communication to the right of it is **exposed**:
# the rank does nothing but wait.
#
# Try the slider. Buckets of one layer pay the latency of eight all-reduces. A single bucket of eight layers is full only when
# backward is over, so nothing is hidden. The last bucket can never be hidden, because it is complete only when backward ends.

# %% [markdown]
# **How do you notice that a gradient is final?** A hook registered with `register_post_accumulate_grad_hook` on a parameter runs
# in the middle of backward, at the moment when `.grad` is complete. **Its argument is the parameter**, not the gradient.
#
# **How do you send without waiting?** `group.all_reduce(tensor, async_op=True)` starts the operation and at once returns a
# handle, which torch calls a *work*. `work.wait()` returns when the result is in `tensor`; until then, `tensor` must not be
# touched.

# %% [markdown]
# `Bucket` is given. `take(p, group.size)` copies the gradient of `p` (zeros if there is none), divided by the number of ranks,
# into the flat `buffer`, makes `p.grad` a view of it, and removes `p` from `missing`. A sum all-reduce of `buffer` then leaves
# the average in `p.grad`, without copying anything back.


# %%
class Bucket:
    def __init__(self, parameters):
        self.parameters, self.missing = list(parameters), set(parameters)
        self.buffer = torch.cat([p.new_zeros(p.numel()) for p in parameters])
        pieces = self.buffer.split([p.numel() for p in parameters])
        self.views = {p: v.view_as(p) for p, v in zip(parameters, pieces)}

    def take(self, p, ranks):
        self.views[p].copy_(0 * p.data if p.grad is None else p.grad / ranks)
        p.grad = self.views[p]
        self.missing.discard(p)


# %% [markdown]
# `make_buckets(model, bucket_bytes)` is given too, in a folded cell: it returns the buckets of a model, grouped as in your
# exercise 2.


# %% tags=["folded"]
def make_buckets(model, bucket_bytes):
    lists, room = [], 0
    for p in reversed([p for p in model.parameters() if p.requires_grad]):
        if p.nbytes > room or not lists:
            lists, room = [*lists, []], bucket_bytes
        lists[-1].append(p)
        room -= p.nbytes
    return [Bucket(bucket) for bucket in lists]


# %% [markdown]
# `Wrapper` is given as well. Inside `with ddp.no_sync():` its attribute `ddp.synchronize` is False, and the hook must then let
# gradients add up without sending them. Section 4 needs this.

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
# **In which order?** Ranks need not fill their buckets in the same order: where rank 0 skips a layer that rank 1 uses, its second
# bucket may be full before its first. If each rank sent whatever is full, rank 0's all-reduce of bucket 2 would meet rank 1's of
# bucket 1: they would add different things, or hang. So a bucket is sent when it is full *and all buckets before it have been
# sent*. The number of works is the number of buckets sent so far, and therefore the index of the next.
#
# A parameter that this rank did not use runs no hook. It counts as zeros, and `finish` takes it after backward.

# %% [markdown]
# ### Exercise 3 · `DDP`
#
# Difficulty 5 · 25 minutes · 20 points
#
# `hook` takes `p` into its bucket and calls `send_ready`. `send_ready` looks at the *next* bucket in line: as long as that bucket
# misses nothing, it starts its all-reduce (`async_op=True`), keeps the work and goes on to the next. It stops at the first bucket
# that misses something, or when all have been sent.
#
# `finish` takes what is still missing, sends the remaining buckets and waits for all works. Only then does it reset for the next
# step: no works, and every `missing` full again.
#
# Inside `no_sync` nothing is sent. The gradients that add up there stay in `.grad`, and are sent with the next backward.


# %% tags=["exercise"]
class DDP(Wrapper):
    """Backward leaves averaged gradients. About 14 lines of yours."""

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
        """Called when the gradient of `p` is complete; others may not be."""
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
        """After backward: sends and awaits the rest, resets for the next step."""
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
# The hook does two things: `bucket.take(p, self.group.size)`, then it tries to send.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The next in line is `self.buckets[len(self.works)]`. If it still misses a gradient, stop, even if a later one is full: on
# another rank they may fill in another order.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In `finish`, `take` changes the set `missing` while you go through it, so loop over a copy. Nothing may write to a buffer before
# its work has been waited for, so refill `missing` last.
#
# </details>

# %% [markdown]
# ## 4 · Accumulate, then communicate once
#
# A batch that does not fit into memory is cut into M **microbatches**, whose gradients add up in `.grad`. Should each of these
# gradients be sent? Only the sum is needed, and averaging is linear: the average of a sum is the sum of the averages.

# %%
ideas.accumulation()

# %% [markdown]
# Sending after each microbatch costs M times the bytes for the same result. So forward and backward of all microbatches but the
# last run inside `ddp.no_sync()`, where gradients only add up; the backward of the last one sends the sum.
#
# The scale has to be right, too: backward *adds*, but the loss of the whole batch is a mean. For M equally large microbatches it
# is $\frac{1}{M} \sum_m L_m$, so each loss is divided by M *before* its backward.

# %% [markdown]
# ### Exercise 4 · `accumulate`
#
# Difficulty 2 · 6 minutes · 12 points
#
# Run all microbatches but the last inside `ddp.no_sync()`, forward and backward, one after another, so that only one graph is in
# memory at a time. The M microbatches come as a list or a tuple and are equally large. Divide each loss by M before its backward.
# Do not call `ddp.finish()`: the caller does.

# %% tags=["exercise"]
from contextlib import nullcontext


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    """Forward and backward of `loss_of(ddp, microbatch)` for each, in order;
    the gradients of one large batch, synchronized once. Returns the mean loss,
    detached. About 8 lines."""
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
# The last microbatch needs a `with` that does nothing: `nullcontext()`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Choose between the two contexts in the `with` statement, and put both `loss_of` and `.backward()` inside it.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Divide by `len(microbatches)` before backward, and add up the detached losses: their sum is the mean.
#
# </details>

# %% [markdown]
# **Run**: two microbatches, one all-reduce (the whole model fits into one bucket of 25 MiB).


# %% tags=["nbval-check-output"]
def two_microbatches(group):
    ddp = DDP(build(config, group.device, seed=1), group)
    accumulate(ddp, tokens_of(group.rank).chunk(2), loss_of)
    ddp.finish()
    return group.trace.count("all_reduce")


print("all-reduces of each rank:", list(launch(two_microbatches, ranks=2)))

# %% [markdown]
# ## 5 · Measure
#
# Now run all three variants on this machine, which takes about ten seconds. The folded cell defines `steps`, which makes a few
# training steps of one variant on every rank. It returns the seconds of a step, of its forward and backward, of the waiting
# (*exposed*), and those in which a message travelled while the rank worked (*hidden*), and it counts the bytes sent and the
# all-reduces. Of the repeats it keeps the one that waited least, as the one least disturbed by other programs.

# %% tags=["folded"]
from minitrain.parallel.ddp import broadcast_parameters


def steps(group, variant, repeats, bucket_bytes=2**20):
    """Seconds, bytes, messages, waiting and hidden seconds of one step."""
    model, trace = build(config, group.device, seed=1), group.trace
    ddp = DDP(model, group, bucket_bytes) if variant == "overlapped" else model
    broadcast_parameters(group, model)
    optimizer, tokens = torch.optim.AdamW(model.parameters()), tokens_of(group.rank)
    rows, traced = [], []
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
            {
                "step_seconds": end - begin,
                "sent_bytes": trace.bytes_sent(),
                "all_reduces": trace.count("all_reduce"),
                "exposed_seconds": trace.exposed_seconds(),
                "hidden_seconds": trace.hidden_seconds(),
                "backward_seconds": computed - begin,  # forward and backward
            }
        )
        traced.append((trace.ops[:], trace.marks[:]))
    best = min(range(1, len(rows)), key=lambda i: rows[i]["exposed_seconds"])
    trace.ops[:], trace.marks[:] = traced[best]
    return rows[best]


def each(group, variants, *options):
    """The variants one after another, in one launch."""
    return [{"variant": v, **steps(group, v, *options)} for v in variants]


# %% tags=["experiment"]
variants, measured = ["naive", "bucketed", "overlapped"], []
for ranks in (1, 2):
    for row in launch(each, variants, lab.size("repeats"), ranks=ranks)[0]:
        measured.append({"ranks": ranks, "parameters": P, **row})

# %% tags=["grade"]
lab.experiment("measured", measured)


# %%
def for_people(rows, first, times):
    """Those of `first` as they are, `times` in ms, and what was sent."""
    return [
        {name: r[name] for name in first}
        | {f"{what} (ms)": round(1e3 * r[k], 1) for k, what in times.items()}
        | {"all-reduces": r["all_reduces"], "sent (MB)": r["sent_bytes"] / 1e6}
        for r in rows
    ]


times = {"step_seconds": "step", "exposed_seconds": "waiting, exposed"}
show.table(
    for_people(measured, ["ranks", "variant"], times),
    caption="One step, measured here: time of rank 0, bytes of each rank",
)

# %% tags=["folded"]
rate = {
    (r["variant"], r["ranks"]): r["ranks"] * B * T / r["step_seconds"] for r in measured
}
with show.canvas() as (figure, axes):
    show.bars(
        variants,
        {
            f"{n} rank{'s' * (n > 1)}": [rate[v, n] / 1e3 for v in variants]
            for n in (1, 2)
        },
        y="thousand tokens per second",
        title=f"Measured on {lab.device_name}",
        ax=axes,
    )
    for place, variant in enumerate(variants):
        ends, twice = [place - 0.4, place + 0.4], 2 * rate[variant, 1] / 1e3
        label = None if place else "twice one rank"
        axes.plot(ends, [twice, twice], "k--", linewidth=1.3, label=label)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
show.figure(
    figure,
    alt="Tokens per second of one and two ranks, naive, bucketed and overlapped.",
)

# %% [markdown]
# **Explain**: the bytes are the same in all three variants, but the number of messages is not: 21 all-reduces, or 3 with buckets
# of 1 MiB.
#
# Two ranks usually stay below twice the rate of one; if yours do not, the machine was busy: run the cell again. One rank alone
# may already use all cores, so the second rank brings no new core. Two ranks may even be slower than one, above all the naive
# ones, whose 21 all-reduces can cost more than the second batch brings. Overlap can gain, since a core computes while its message
# waits, but the same cores also copy and add the data that is "sent". A cluster has network cards for that, so we emulate one.

# %% [markdown]
# ## 6 · A cluster on a laptop
#
# On a *fabric*, real ranks send real tensors, but each rank has an emulated clock. Computing takes your CPU seconds, scaled to
# the speed of a GPU; a message takes α + bytes · β, with α and β from the sources named in `minitrain/network/fabric.py`. As our
# model is tiny, each of its parameters stands for 1,800 and each token for 64: a model of 1.03 billion parameters on 16,384
# tokens per rank.
#
# On 4 nodes with 400 Gb/s InfiniBand (50 GB/s, of which 36.75 are reached), an all-reduce of its 4.13 GB of gradients takes, on
# paper,
#
# $$\frac{2 \cdot 3}{4} \cdot 4.13\ \text{GB} \cdot \frac{1}{36.75\ \text{GB/s}} = 169\ \text{ms}.$$
#
# All times from here on are **emulated**; only the bytes and messages are counted.

# %% [markdown]
# **Predict**: *suppose* that backward takes longer than these 169 ms (on a busy or a very fast CPU it may not, and the cell below
# says so), and that the gradients travel in ten equal buckets. What share of the communication is hidden, from 0 to 1?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.9
### LAB guess = None  # a share from 0 to 1, your guess
### END SOLUTION
lab.predict("hidden", guess, unit="share")

# %% tags=["experiment"]
from dataclasses import replace

from minitrain.network.fabric import FABRICS

weight, length = lab.size("parameters_each"), lab.size("tokens_each")


def stand_in(name, **changes):
    """The fabric, with a heavier model and batch than those that run."""
    fabric = replace(FABRICS[name](), **changes).resolved()
    scale = weight * length * fabric.compute_scale
    return replace(fabric, compute_scale=scale, payload_scale=weight)


infiniband = stand_in("h100-infiniband", ranks_per_node=1)
overlap, runs = [], {}
for variant in variants:
    runs[variant] = launch(steps, variant, 3, 2**18, ranks=4, fabric=infiniband)
    overlap.append({"variant": variant, **runs[variant][0]})

# %% tags=["grade"]
lab.experiment("overlap", overlap)

# %%
row = overlap[2]
hidden, exposed = row["hidden_seconds"], row["exposed_seconds"]
lab.reveal("hidden", hidden / (hidden + exposed))
backward = 2 / 3 * row["backward_seconds"]  # the rest is forward
if backward < 0.169:
    took = show.seconds_text(backward)
    print(f"Here backward took about {took}: too short to hide 169 ms behind.")

# %% [markdown]
# The folded cell draws the same three steps as timelines: rank 0's forward and backward, and below them the activity of its
# network.


# %% tags=["folded"]
def spans_of(variant, trace):
    """(lane, start, end, label) in ms: what a rank and its network did."""
    zero, computed, end = (1e3 * seconds for _, seconds in trace.marks)
    busy, network = 0.0, []
    for op in trace.select("all_reduce"):
        begin, busy = max(busy, 1e3 * op.issued - zero), 1e3 * op.end - zero
        network.append((f"{variant}: network", begin, busy, "all-reduce"))
    lane, after = f"{variant}: compute", end - zero
    step = [(lane, 0.0, computed - zero, "compute"), *network]
    return [*step, (lane, busy, after, "optimizer")]


spans = [spans_of(variant, runs[variant].traces[0]) for variant in variants]
show.timeline(
    sum(spans, []),
    alt="One step of three variants: computing, and all-reduces under way beside it.",
    title="One step on 4 emulated nodes, InfiniBand",
)

# %% [markdown]
# **Explain**: the naive and the bucketed step leave the network idle until backward ends. The overlapped step uses it during
# backward, and exposes only the last bucket and whatever is still queued before it. In our run 45.0 ms were exposed and 76%
# hidden, not 90%: when backward ended, more than two buckets of 17 ms were still to arrive. White space in a compute lane is
# waiting, or the joining and copying of gradients.
#
# The overlapped *backward* can take longer. Its hooks and copies are Python, whose CPU seconds the emulation scales like those of
# matrix products; on a GPU they would cost microseconds. Naive and bucketed run the same backward: where their times differ
# below, that is noise of your CPU, and the speed-up contains it.

# %%
times = {"step_seconds": "step", "backward_seconds": "forward and backward"}
times |= {"hidden_seconds": "hidden", "exposed_seconds": "waiting, exposed"}
show.table(
    for_people(overlap, ["variant"], times),
    caption="One step of 4 ranks: time emulated, bytes counted",
)

# %% [markdown]
# The column of bytes counts the small tensors that were really sent; each byte stands for 1,800. *Hidden* includes the time in
# which a message queues or waits for the slowest rank, so hidden and exposed together may exceed 169 ms. Read a *hidden* below 1
# ms as zero.
#
# **Question**: how many times as fast as the naive step is the overlapped one? `overlap` has the unrounded rows, with the key
# `"step_seconds"`.

# %% tags=["question"]
### BEGIN SOLUTION
overlap_speedup = overlap[0]["step_seconds"] / overlap[2]["step_seconds"]
### LAB overlap_speedup = None  # your answer, 1 where both take as long
### END SOLUTION

# %% tags=["grade"]
lab.answer("overlap_speedup", overlap_speedup)

# %% [markdown]
# ## 7 · From one to eight
#
# Now vary the ranks and the network. Each rank keeps its batch, so more ranks mean a larger total batch: *weak scaling*. Let C be
# the seconds that a rank computes in a step, and T those of an all-reduce of all gradients. **Efficiency** is the share of the
# step in which a rank computes:
#
# $$\text{efficiency} = 1 - \frac{\text{exposed}}{\text{step}} .$$
#
# A naive step exposes all of T, so its efficiency is $\frac{C}{C + T}$. An overlapped step hides up to $C_b$, the part of C spent
# in backward. If nothing else disturbs it, it exposes $\max(0,\, T - C_b)$, but at least its last bucket. The next cell takes
# half a minute.

# %% tags=["experiment"]
clusters = {
    "8 H100, NVLink": stand_in("h100-nvlink"),
    "8 A100, NVLink": stand_in("a100-nvlink"),
    "H100, InfiniBand": infiniband,
    "A100, 25G Ethernet": stand_in("ethernet-25g"),
}
pair, repeats = ["naive", "overlapped"], lab.size("emulated_repeats")
scaling = []
for name, fabric in clusters.items():
    for ranks in lab.size("ranks"):
        run = launch(each, pair, repeats, 2**18, ranks=ranks, fabric=fabric)
        moved = fabric.seconds("all_reduce", 4 * P, range(ranks))
        latency = fabric.seconds("all_reduce", 0, range(ranks))
        for row in run[0]:
            row["communication_seconds"] = moved
            row["latency_seconds"] = row["all_reduces"] * latency
            row["efficiency"] = 1 - row["exposed_seconds"] / row["step_seconds"]
            row |= {"fabric": name, "ranks": ranks, "tokens": B * T}
            scaling.append(row)

# %% tags=["grade"]
lab.experiment("scaling", scaling)

# %% tags=["picture", "folded"]
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
        ax.set_ylim(0, 112)
        is_naive = variant == "naive"
        show.lines(
            curves,
            theory=theory if is_naive else None,
            x="ranks",
            y="efficiency (%)" if is_naive else "",
            title=f"{variant} (emulated)" + "; dashed: C / (C + T)" * is_naive,
            labels="none",
            ax=ax,
        )
        ax.lines[0].set(linewidth=3.6, markersize=8)  # seen where another lies on it
    axes[1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
show.figure(
    figure,
    alt="Efficiency against ranks over four networks, naive with theory, and overlapped.",
)

# %% [markdown]
# **Explain**: the naive points lie on the theory or below it, since *exposed* also counts waiting for slower ranks. Overlap lifts
# InfiniBand toward NVLink, in our run from 60% to 79% on 8 ranks. The two NVLink curves lie close together.
#
# The naive curves of the two slower networks fall steeply up to 2 ranks and then flatten: $2(N-1)/N$ is 1 for two ranks, 1.5 for
# four, 1.75 for eight, and never reaches 2. That is why data parallelism scales to thousands of GPUs. Only the latency keeps
# growing, by 2α for each further rank of a ring; with a tree (e00) it grows with $\log_2 N$.

# %% [markdown]
# **Question**: on the slowest network with 8 ranks, what is the bottleneck: `"compute"` (the rank waits for less than half of the
# step), `"latency"` (more than half of the waiting is α) or `"bandwidth"`? Read it off your own rows.

# %%
slowest = min(
    (r for r in scaling if r["ranks"] == 8 and r["variant"] == "overlapped"),
    key=lambda r: r["efficiency"],
)
names = {"step_seconds": "step (emulated)"}
names |= {"exposed_seconds": "waiting, exposed (emulated)"}
names |= {"latency_seconds": "α of all its messages (computed)"}
names |= {"communication_seconds": "all-reduce of all gradients (computed)"}
show.table(
    [{"key": k, "what": w, "ms": 1e3 * slowest[k]} for k, w in names.items()],
    caption=f"`slowest`: {slowest['fabric']}; {slowest['tokens']} tokens each",
)

# %% tags=["question"]
### BEGIN SOLUTION
waiting = slowest["exposed_seconds"]
bottleneck = "compute" if slowest["step_seconds"] > 2 * waiting else "bandwidth"
### LAB bottleneck = None  # your answer: "compute", "latency" or "bandwidth"
### END SOLUTION

# %% tags=["grade"]
lab.answer("bottleneck", bottleneck)

# %% [markdown]
# **Explain**: on Ethernet the 4.13 GB take
#
# $$\frac{2 \cdot 7}{8} \cdot 4.13\ \text{GB} \cdot \frac{1}{2.94\ \text{GB/s}} = 2.46\ \text{s},$$
#
# longer than the backward that should hide them: a step computed for only 0.83 s in our run. The latency of its 10 all-reduces is
# 10 · 14 · 30 µs = 4.2 ms.

# %% [markdown]
# **Question**: computing grows in proportion to the tokens of a rank; communication does not grow at all. With how many tokens
# per rank would its computing (step minus waiting) take as long as the all-reduce of all gradients? Count tokens as
# `slowest["tokens"]` does, without the factor 64.

# %% tags=["question"]
### BEGIN SOLUTION
compute = slowest["step_seconds"] - slowest["exposed_seconds"]
tokens_to_hide = slowest["tokens"] * slowest["communication_seconds"] / compute
### LAB tokens_to_hide = None  # your answer, tokens a rank
### END SOLUTION

# %% tags=["grade"]
lab.answer("tokens_to_hide", tokens_to_hide)

# %% [markdown]
# > **Takeaway.** Data parallelism sends 2(N-1)/N of the gradients per step, whatever the batch: 3.44 MB for this model on 4
# > ranks, counted. Buckets save latency, and overlap hides all but the last bucket as long as T is shorter than backward; beyond that only a
# > larger batch or a faster network helps.
#
# > **On GPUs.** With two or more GPUs, `launch` uses NCCL in section 5, and the rest stays emulated. This lab has not been
# > run there yet.
#
# Every rank still holds *all* parameters, gradients and optimizer state: 16 bytes per parameter, on each of N ranks. That
# redundancy is what [e03 · ZeRO](e03_zero.ipynb) removes.

# %%
lab.score(read="minitrain/parallel/ddp.py")
