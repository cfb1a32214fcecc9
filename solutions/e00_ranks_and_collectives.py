# %% [markdown]
# # e00 · Ranks and collectives
#
# **In an hour you write the collective that trains every large model, from nothing but *send* and *receive*, and know
# what it costs before you run it.**
#
# 60 minutes · CPU is enough · next: [e01 · Baseline](e01_baseline.ipynb) · [map of the course](index.ipynb)
#
# You build: a ring shift, a broadcast tree, reduce-scatter, all-gather, all-reduce and all-to-all, and you repair a
# deadlock from its report. You end with this picture: the bandwidth of *your* machine, measured and predicted, beside
# eight A100s and eight H200s.
#
# ![Bus bandwidth against message size: a laptop far below 8 A100 and 8 H200, all of one shape](../labs/pictures/e00_ranks_and_collectives.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, show, widgets
from minitrain.ranks.launch import launch

lab = Lab("e00_ranks_and_collectives")

# %% [markdown]
# ## 1 · A rank is a process
#
# `launch(fn, ranks=4)` starts four processes. Each runs `fn(group)` with its own `group.rank`; nothing is shared. The
# four return values come back as a list; the lines that ranks print may come in any order.


# %%
def hello(group):
    print(f"I am one of {group.size}")
    return group.rank**2


launch(hello, ranks=4)

# %% [markdown]
# Two verbs move data: `group.send(tensor, to)` and `group.recv(tensor, source)`, which fills `tensor`. Each waits for
# the other side. `group.exchange(out, to, into, source)` does both at once.
#
# A whole ring, where everyone sends *first*, would wait for ever: nobody is left to receive.
#
# In every exercise N is 2 or more and tensors are contiguous; what you are given is left as it was, what you return is
# made anew in each call, and all that moves are these messages.

# %% [markdown]
# ### Exercise 1 · `ring_shift`
#
# Difficulty 1 of 5 · 5 minutes · 6 points
#
# Pass your tensor to the right neighbour (`rank + 1`, the last one to rank 0), and return what the left one sent you.


# %% tags=["exercise"]
def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    """The left neighbour's tensor. Any shape, the same on all ranks; `tensor` is left
    as it was. About 4 lines."""
    ### BEGIN SOLUTION
    right = (group.rank + 1) % group.size
    left = (group.rank - 1) % group.size
    return group.exchange(tensor, right, torch.empty_like(tensor), left)
    ### END SOLUTION


# %% tags=["grade"]
ring_shift = lab.grade(ring_shift)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# The modulo closes the ring: `(group.rank + 1) % group.size`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# What arrives needs a place: `torch.empty_like(tensor)`. If it were `tensor` itself, your input would be lost.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `group.exchange(tensor, right, into, left)` sends and receives at once, and returns `into`.
#
# </details>


# %% tags=["nbval-check-output"]
def turn(group):
    return ring_shift(group, torch.tensor([group.rank])).item()


print(list(launch(turn, ranks=4)))  # expected: [3, 0, 1, 2]

# %% [markdown]
# ## 2 · One to all
#
# Rank 0 has the weights, 7 others need them. Sending one by one takes 7 messages in a row. But whoever *has* them can send
# too: in each round, all that have them send to one other.
#
# **Predict**: how many rounds for 8 ranks?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 3
### LAB guess = None  # rounds, your guess
### END SOLUTION
lab.predict("rounds", guess)

# %% [markdown]
# ### Exercise 2 · `tree_broadcast`
#
# Difficulty 3 · 8 minutes · 10 points
#
# Count places from the root: `place = (rank - root) % size`. In the round of `distance` 1, 2, 4 …, places below
# `distance` have the tensor; each sends it `distance` further on.


# %% tags=["exercise"]
def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    """The root's values on every rank, in ceil(log2 N) rounds. On other ranks
    `tensor` gives shape and dtype; it is left as it was on all. Returns a new tensor.
    About 10 lines."""
    ### BEGIN SOLUTION
    out = tensor.clone()
    place = (group.rank - root) % group.size
    distance = 1
    while distance < group.size:
        if place < distance and place + distance < group.size:
            group.send(out, (group.rank + distance) % group.size)
        elif distance <= place < 2 * distance:
            group.recv(out, (group.rank - distance) % group.size)
        distance *= 2
    return out
    ### END SOLUTION


# %% tags=["grade"]
tree_broadcast = lab.grade(tree_broadcast)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# In each round a place is one of three: it has the tensor and sends, it receives, or it is not its turn yet.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Senders: `place < distance`, if `place + distance` exists. Receivers: `distance <= place < 2 * distance`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The partner of a sender is rank `(rank + distance) % size`, that of a receiver `(rank - distance) % size`. Double
# `distance` while it is below `size`.
#
# </details>

# %% [markdown]
# **Run**: every rank keeps a *trace* of its messages. Rank 0 of 8 sends three times, not seven.

# %% tags=["nbval-check-output"]
ranks = 8
results = launch(tree_broadcast, torch.zeros(1000), ranks=ranks)
print("sent by each rank:", [trace.count("send") for trace in results.traces])
rounds = results.traces[0].count("send")  # the root sends in every round
lab.reveal("rounds", rounds, formula=3, note="log₂N · 8 ranks: 3; 64 ranks: 6, not 63")

# %% [markdown]
# ## 3 · All to one, in pieces
#
# Training needs *sums*: every rank's gradient, added up. If one rank added them all, its link would carry everything.
#
# **The ring's idea**: cut the tensor into N chunks. Chunk c starts at rank c + 1 and goes once around; each rank adds its
# own part as it passes.


# %%
def draw_ring(ax, step, ranks=4):
    """How many ranks' parts are in each chunk on each rank, after `step` steps."""
    for rank in range(ranks):
        for chunk in range(ranks):
            parts = step + 1 if (rank - 1 - step) % ranks == chunk else 1
            ax.barh(rank, 0.92, left=chunk, color=show.COLORS[0], alpha=parts / ranks)
            ax.text(chunk + 0.46, rank, parts, ha="center", va="center")
    ax.set_xticks(
        [c + 0.46 for c in range(ranks)], [f"chunk {c}" for c in range(ranks)]
    )
    ax.set_yticks(range(ranks), [f"rank {r}" for r in range(ranks)])
    ax.set(title=f"Parts summed, {step} steps done", ylim=(ranks - 0.5, -0.5))


# %%
widgets.explore(
    draw_ring,
    alt="A grid of ranks and chunks: how many ranks' parts each cell sums.",
    step=(0, 3, 2),
)

# %% [markdown]
# After N - 1 steps, chunk r is complete at rank r: a **reduce-scatter**.
#
# **Predict**: 4 ranks, a tensor of 1,000,000 float32 (4 MB). How many bytes does one rank send?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 3e6
### LAB guess = None  # bytes, your guess
### END SOLUTION
lab.predict("scatter_bytes", guess, unit="B")

# %% [markdown]
# ### Exercise 3 · `ring_reduce_scatter`
#
# Difficulty 4 · 12 minutes · 12 points
#
# First send chunk `rank - 1` (as yet only your part). In step s = 0, 1, … receive chunk `rank - 2 - s`, add your part to
# it, and send *that* on. `tensor_split` cuts, whatever the size.


# %% tags=["exercise"]
def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    """Chunk `rank` of the sum over ranks: (n,) -> (n/N,), in N - 1 messages of one
    chunk to the right, for any n. `tensor` is left as it was. About 9 lines."""
    chunks = tensor.flatten().tensor_split(group.size)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    ### BEGIN SOLUTION
    travelling = chunks[left].clone()
    for step in range(group.size - 1):
        own = chunks[(group.rank - 2 - step) % group.size]
        arrived = group.exchange(travelling, right, torch.empty_like(own), left)
        travelling = arrived + own
    return travelling
    ### END SOLUTION


# %% tags=["grade"]
ring_reduce_scatter = lab.grade(ring_reduce_scatter)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# One variable travels: what you send in a step is what you received in the last one, with your part added.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Chunks may differ by one element: the place for what arrives is `torch.empty_like(own)`, where `own` is your part of the
# chunk that is coming.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `own = chunks[(group.rank - 2 - step) % group.size]`, then `travelling = group.exchange(travelling, right,
# torch.empty_like(own), left) + own`. The last `own` is chunk `rank`.
#
# </details>

# %% tags=["nbval-check-output"]
results = launch(ring_reduce_scatter, torch.ones(1_000_000), ranks=4)
print("rank 2 holds", tuple(results[2].shape), "all", results[2].unique().item())
print("sent by each rank:", [trace.bytes_sent() for trace in results.traces])

# %%
sent = results.traces[0].bytes_sent()
lab.reveal("scatter_bytes", sent, formula=3 / 4 * 4e6, note="(N-1)/N of the tensor")

# %% [markdown]
# Three quarters of the tensor, from every rank at the same time: no link carries more than another.
#
# ### Exercise 4 · `ring_all_gather`
#
# Difficulty 3 · 8 minutes · 8 points
#
# The way back: each rank has one chunk, all need all. Pass on what came last, N - 1 times.


# %% tags=["exercise"]
def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """All ranks' chunks in order of rank: (sum(sizes),). `sizes[r]` is the number of
    elements of rank r's chunk, any number. N - 1 messages of one chunk to the right;
    `chunk` is left as it was. About 9 lines."""
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    ### BEGIN SOLUTION
    out = chunk.new_empty(sum(sizes))
    places = out.split(sizes)
    places[group.rank].copy_(chunk)
    for step in range(group.size - 1):
        have = places[(group.rank - step) % group.size]
        need = places[(group.rank - step - 1) % group.size]
        group.exchange(have, right, need, left)
    return out
    ### END SOLUTION


# %% tags=["grade"]
ring_all_gather = lab.grade(ring_all_gather)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# In step s you send chunk `rank - s` and receive chunk `rank - s - 1`, all modulo N.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Make the result first. `out.split(sizes)` gives N views of it: receive straight into them, nothing to sort at the end.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `places[group.rank].copy_(chunk)`, then in each step
# `group.exchange(places[(rank - s) % N], right, places[(rank - s - 1) % N], left)`.
#
# </details>

# %% [markdown]
# ## 4 · All-reduce
#
# Reduce-scatter, then all-gather: every rank ends with the whole sum. It is what data-parallel training calls after
# every backward pass ([Patarasuk & Yuan 2009](https://doi.org/10.1016/j.jpdc.2008.09.002)): no algorithm sends fewer
# bytes.
#
# ### Exercise 5 · `ring_all_reduce`
#
# Difficulty 2 · 5 minutes · 8 points


# %% tags=["exercise"]
def ring_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    """The sum over ranks, in the shape of `tensor`, any shape, the same bits on every
    rank. Made of the two functions above: what they send, nothing else. `tensor` is
    left as it was. About 3 lines."""
    ### BEGIN SOLUTION
    sizes = [c.numel() for c in tensor.flatten().tensor_split(group.size)]
    chunk = ring_reduce_scatter(group, tensor)
    return ring_all_gather(group, chunk, sizes).view(tensor.shape)
    ### END SOLUTION


# %% tags=["grade"]
ring_all_reduce = lab.grade(ring_all_reduce)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# The all-gather needs the sizes of all chunks: those that `tensor_split` makes.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `sizes = [c.numel() for c in tensor.flatten().tensor_split(group.size)]`
#
# </details>
# <details><summary>Hint 3</summary>
#
# Reduce-scatter, all-gather, and `.view(tensor.shape)` at the end, because the gather returns a flat tensor.
#
# </details>

# %% [markdown]
# **Question**: bytes that *each* of 8 ranks sends, for an all-reduce of 1 GB (10⁹ bytes).

# %% tags=["question"]
### BEGIN SOLUTION
bytes_per_rank = 2 * 7 / 8 * 1e9
### LAB bytes_per_rank = None  # your answer, in bytes
### END SOLUTION

# %% tags=["grade"]
lab.answer("bytes_per_rank", bytes_per_rank)

# %% [markdown]
# ## 5 · What a message costs
#
# A message takes `α + bytes · β`: a latency and a time per byte. The ring sends 2(N-1) messages and 2(N-1)/N of the
# tensor S, so **seconds = 2(N-1)·α + 2(N-1)/N · S · β**.
#
# Measure your own all-reduce over many sizes.


# %% tags=["experiment"]
def timed(group, sizes, repeats):
    """(seconds, bytes sent) of each size, the median over repeats."""
    rows = []
    for size in sizes:
        x, seconds = torch.ones(size // 4), []
        for _ in range(repeats):
            group.barrier()
            start, before = group.now(), group.trace.bytes_sent("send")
            ring_all_reduce(group, x)
            seconds.append(group.now() - start)
        sent = group.trace.bytes_sent("send") - before
        rows.append((sorted(seconds)[repeats // 2], sent))
    return rows


N, sizes = lab.size("sweep_ranks"), [2**e for e in lab.size("sweep_exponents")]
rows = launch(timed, sizes, lab.size("repeats"), ranks=N)[0]
sweep = [
    {"bytes": size, "ranks": N, "seconds": seconds, "sent_bytes": sent}
    for size, (seconds, sent) in zip(sizes, rows)
]

# %% tags=["grade"]
lab.experiment("sweep", sweep)

# %% [markdown]
# **Explain**: two numbers describe all of it. Least squares on relative errors gives α and β; the line is the formula.

# %%
from minitrain.network.links import Sweep, fit, published_sweep

link = fit(Sweep("all_reduce", N, tuple((r["bytes"], r["seconds"]) for r in sweep)))
line = [link.seconds("all_reduce", size, N) for size in sizes]
show.lines(
    {"measured": (sizes, [r["seconds"] for r in sweep])},
    theory={"2(N-1)·α + 2(N-1)/N·S·β": (sizes, line)},
    x="tensor S (bytes)",
    y="all-reduce (s)",
    log="xy",
    title=f"{N} ranks here: α = {link.alpha * 1e6:.0f} µs, 1/β = {1e-9 / link.beta:.1f} GB/s",
    alt="Seconds of the ring all-reduce against bytes: flat at first, then straight up.",
)

# %% [markdown]
# A model is worth what it predicts. Take a size that is *not* in the sweep: predict first, then measure.

# %% tags=["experiment"]
unseen = 3 * 2**20
predicted = link.seconds("all_reduce", unseen, N)
measured = launch(timed, [unseen], lab.size("repeats"), ranks=N)[0][0][0]
prediction = [{"bytes": unseen, "predicted": predicted, "measured": measured}]

# %% tags=["grade"]
lab.experiment("prediction", prediction)

# %% [markdown]
# **Question**: at which tensor size is half of the time latency? Solve `2(N-1)·α = 2(N-1)/N · S · β` with your own α
# (`link.alpha`) and β (`link.beta`). Below it, a faster network buys nothing.

# %% tags=["question"]
### BEGIN SOLUTION
half_size = N * link.alpha / link.beta
### LAB half_size = None  # your answer, in bytes
### END SOLUTION

# %% tags=["grade"]
lab.answer("half_size", half_size)

# %% [markdown]
# ## 6 · When the ring loses
#
# For small tensors only the *number* of messages counts. **Recursive doubling** swaps the whole tensor with partners at
# distance 1, 2, 4 …: log₂N messages instead of 2(N-1), but log₂N·S bytes.
#
# You have no eight machines on a network; the *emulated fabric* runs eight real ranks beside a clock of 25 Gb/s Ethernet.

# %% tags=["experiment"]
from minitrain.parallel.collectives.algorithms import recursive_doubling_all_reduce


def both(group, sizes):
    """Emulated seconds and bytes of both algorithms, at each size."""
    rows = []
    for size in sizes:
        for algorithm in (ring_all_reduce, recursive_doubling_all_reduce):
            x = torch.ones(size // 4)
            group.barrier()
            start, before = group.now(), group.trace.bytes_sent("send")
            algorithm(group, x)
            sent = group.trace.bytes_sent("send") - before
            rows.append((group.now() - start, sent))
    return rows


sizes8 = [2**e for e in range(8, 23, 2)]
flat = launch(both, sizes8, ranks=8, fabric="ethernet-25g")[0]
ring_or_doubling = [
    {"bytes": size, "ring_seconds": r[0], "ring_bytes": r[1],
     "doubling_seconds": d[0], "doubling_bytes": d[1]}
    for size, r, d in zip(sizes8, flat[::2], flat[1::2])
]  # fmt: skip

# %% tags=["grade"]
lab.experiment("ring_or_doubling", ring_or_doubling)

# %%
show.lines(
    {
        "ring": (sizes8, [r["ring_seconds"] for r in ring_or_doubling]),
        "doubling": (sizes8, [r["doubling_seconds"] for r in ring_or_doubling]),
    },
    x="tensor S (bytes)",
    y="all-reduce (s, emulated)",
    log="xy",
    title="8 ranks, emulated 25 Gb/s Ethernet",
    alt="Two curves cross: doubling is faster for small tensors, the ring for large ones.",
)

# %% [markdown]
# **Question**: from how many bytes on does the ring win here? Any size between the two neighbours in your table counts.

# %% tags=["question"]
### BEGIN SOLUTION
crossover = min(
    r["bytes"]
    for r in ring_or_doubling
    if all(
        s["ring_seconds"] < s["doubling_seconds"]
        for s in ring_or_doubling
        if s["bytes"] >= r["bytes"]
    )
)
### LAB crossover = None  # your answer, in bytes
### END SOLUTION
show.table(ring_or_doubling)

# %% tags=["grade"]
lab.answer("crossover", crossover)

# %% [markdown]
# ## 7 · Everyone to everyone
#
# Experts and long sequences need one more: rank i has a *different* chunk for each rank j.
#
# ### Exercise 6 · `pairwise_all_to_all`
#
# Difficulty 3 · 7 minutes · 9 points
#
# In step s = 1, 2, … send to `rank + s` and receive from `rank - s`, in this order: every link is used once a step.


# %% tags=["exercise"]
def pairwise_all_to_all(group, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    """Sends chunks[j] to rank j; returns what each rank had for me, in order of rank.
    All chunks have the same shape, any shape, and are left as they were. Your own one
    is copied. About 6 lines."""
    ### BEGIN SOLUTION
    out = [torch.empty_like(chunk) for chunk in chunks]
    out[group.rank].copy_(chunks[group.rank])
    for step in range(1, group.size):
        to, source = (group.rank + step) % group.size, (group.rank - step) % group.size
        group.exchange(chunks[to], to, out[source], source)
    return out
    ### END SOLUTION


# %% tags=["grade"]
pairwise_all_to_all = lab.grade(pairwise_all_to_all)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# The result has N places, place j for what rank j sends you. Your own chunk goes straight to place `rank`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For `step` in 1 … N-1: `to = (rank + step) % size`, `source = (rank - step) % size`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `group.exchange(chunks[to], to, out[source], source)` in each step.
#
# </details>

# %% [markdown]
# ## 8 · When it hangs
#
# A collective that one rank does not join waits for ever; on 16,000 GPUs that is the night. Here the launcher notices
# that nobody can go on, and each rank says where it stood. Run this broken all-reduce and read the report.


# %%
def broken_all_reduce(group, total):
    if group.rank == 0:
        for rank in range(1, group.size):
            total += group.recv(torch.empty_like(total), rank)
    else:
        group.recv(total, 0)
        group.send(total, 0)


# %%
try:
    launch(broken_all_reduce, torch.ones(3), ranks=3, timeout=5)
except RuntimeError as report:
    print(report)

# %% [markdown]
# ### Exercise 7 · `naive_all_reduce`
#
# Difficulty 2 · 5 minutes · 7 points
#
# Everyone waits to receive, nobody sends. Move one line.


# %% tags=["exercise"]
def naive_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    """The sum over ranks on every rank: to rank 0, added up there, and out again.
    Repair it, with the same messages: the report names the two lines that wait for
    each other. `tensor` is left as it was."""
    total = tensor.clone()
    if group.rank == 0:
        for rank in range(1, group.size):
            total += group.recv(torch.empty_like(total), rank)
        for rank in range(1, group.size):
            group.send(total, rank)
    else:
        ### BEGIN SOLUTION
        group.send(tensor, 0)
        group.recv(total, 0)
        ### LAB group.recv(total, 0)
        ### LAB group.send(tensor, 0)
        ### END SOLUTION
    return total


# %% tags=["grade"]
naive_all_reduce = lab.grade(naive_all_reduce)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Rank 0 waits in `recv` for rank 1's part. What does rank 1 wait for?
#
# </details>
# <details><summary>Hint 2</summary>
#
# A send and a recv must meet: where rank 0 first receives, the others must first send.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Swap the last two lines of the `else` branch.
#
# </details>

# %% [markdown]
# ## 9 · Your laptop beside a DGX
#
# *Bus bandwidth* is the bytes on the busiest link over the seconds: it compares clusters of any size. On 8 GPUs those bytes
# are 2(N-1)/N · S = 1.75 S. The A100 and H200 points are [published
# sweeps](https://github.com/stas00/ml-engineering/tree/master/network) of NCCL on 8 GPUs.

# %%
curves, theory = {}, {}
for name, label in [("a100_8gpu_nvlink3", "8 x A100"), ("h200_8gpu_nvls", "8 x H200")]:
    points = published_sweep(name).points
    curves[label] = ([s for s, _ in points], [1.75 * s / t / 1e9 for s, t in points])
bus = [r["sent_bytes"] / r["seconds"] / 1e9 for r in sweep]
curves["this machine"] = (sizes, bus)
theory["α, β of your fit"] = (
    sizes,
    [r["sent_bytes"] / t / 1e9 for r, t in zip(sweep, line)],
)

# %% tags=["picture"]
show.lines(
    curves,
    theory=theory,
    x="tensor S (bytes)",
    y="bus bandwidth (GB/s)",
    log="xy",
    title=f"All-reduce: {N} ranks of {lab.device_name} beside 8 GPUs",
    alt="Bus bandwidth against size, log-log: all three rise with size and then flatten.",
)

# %% [markdown]
# All three curves have one shape: latency on the left, bandwidth on the right. So every framework joins small gradients
# into *buckets* before it sends them, as you will in [e02](e02_data_parallel.ipynb).
#
# > **On GPUs.** With as many GPUs as ranks, `launch` uses NCCL and the sweep goes on to 256 MB. `torchrun` runs the same
# > functions on a cluster.

# %%
lab.score(read="minitrain/parallel/collectives/algorithms.py")

# %% [markdown]
# Next, [e01 · Baseline](e01_baseline.ipynb) builds the model whose gradients will travel this ring.
