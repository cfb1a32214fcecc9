# %% [markdown]
# # e00 · Ranks and collectives
#
# **You write all-reduce, the collective behind data-parallel training, from nothing but *send* and *receive*, and predict its
# cost before you run it.**
#
# 90 minutes · CPU is enough · next: [e01 · Baseline](e01_baseline.ipynb) · [map of the course](index.ipynb)
#
# You build a ring shift, a broadcast tree, reduce-scatter, all-gather, all-reduce and all-to-all, and repair a deadlock with the
# help of its report. By the end you will have made this picture: the bandwidth of *your* machine, measured and predicted, beside
# eight A100s and eight H200s.
#
# ![Bus bandwidth against message size: a laptop far below 8 A100 and 8 H200, all of one shape](../labs/pictures/e00_ranks_and_collectives.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, ideas, show
from minitrain.ranks.launch import launch

lab = Lab("e00_ranks_and_collectives")

# %% [markdown]
# ## 1 · A rank is a process
#
# A model that is too large or too slow for one GPU is trained by many *processes* at once. Each runs the same script, has its own
# Python interpreter and its own memory, and drives one GPU. Nothing is shared: if one process changes a tensor, no other sees the
# change.
#
# A process is called a **rank**, after its number: 0, 1, 2 … up to N - 1. N is the **world size**, and the ranks that communicate
# with each other form a **process group**.

# %% [markdown]
# In this course `launch(fn, ranks=4)` starts four processes on your machine. Each calls `fn(group)`, where `group` is its view of
# the process group: `group.rank` is its own number, `group.size` the number of ranks. The four return values come back as a list.
# Lines printed by the ranks may appear in any order, since they run at the same time.


# %%
def hello(group):
    print(f"I am one of {group.size}")
    return group.rank**2


launch(hello, ranks=4)

# %% [markdown]
# All four ran the same function; only `group.rank` made them differ. Every distributed program is written this way: *one* program
# for all ranks, which behaves according to its rank.
#
# **Two operations move data.** `group.send(tensor, to)` sends a tensor to rank `to`. `group.recv(tensor, source)` waits for one
# from rank `source` and overwrites `tensor` with it. The receiver must provide a tensor of the right shape and dtype, because
# only the bare bytes are sent. And both operations wait: neither returns before the other rank has made the matching call.

# %%
ideas.send_and_recv()

# %% [markdown]
# The upper half shows the normal case: the rank that is early waits (hatched), then the message travels, then both continue. Move
# the slider to make rank 1 early.
#
# The lower half shows the trap. Both ranks send first, so neither ever receives, and both wait forever: a **deadlock**. The same
# happens on a ring where every rank first sends to its right neighbour. That is why there is a third operation:
# `group.exchange(out, to, into, source)` sends `out` and receives `into` *at the same time*, and returns `into` when both are
# done.

# %% [markdown]
# **A collective** is an operation in which *every* rank of the group takes part, and from which no rank returns before its part
# is done. Training mostly uses the following five. A column is a rank, and shows the chunks of its tensor:

# %%
ideas.collectives()

# %% [markdown]
# Letters and colours show whose data it is; black is the sum over all ranks. All five have the same names in `torch.distributed`.
# The rest of this lab translates as follows:
#
# | here | in torch | used for |
# |---|---|---|
# | `launch(fn, ranks=4)` | `torchrun` and `dist.init_process_group` | starting N processes |
# | `group.rank`, `group.size` | `dist.get_rank()`, `dist.get_world_size()` | one's own rank, and how many there are |
# | `group.send`, `group.recv` | `dist.send`, `dist.recv` | one message |
# | `group.exchange` | `dist.batch_isend_irecv` | a message each way, at once |
# | `group.all_reduce(tensor)` | `dist.all_reduce(tensor)` | summing gradients |
#
# Torch hands the bytes to a *backend*: gloo between CPUs, as here, or NCCL between GPUs. In this lab you write the collectives
# yourself, from messages alone, and find out what they cost.

# %% [markdown]
# In every exercise N is 2 or more and tensors are contiguous. Never change the arguments, return a new tensor in each call, and
# move data with `send`, `recv` and `exchange` alone.
#
# ### Exercise 1 · `ring_shift`
#
# Difficulty 1 of 5 · 5 minutes · 6 points
#
# Arrange the ranks in a circle: the right neighbour of rank r is r + 1, and that of the last rank is rank 0. Pass your tensor to
# the right neighbour, and return the tensor of the left one. Every rank does so at the same moment, so they must not all wait in
# a send at once.


# %% tags=["exercise"]
def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    """The left neighbour's tensor. Any shape, the same on all ranks; `tensor`
    is left as it was. About 4 lines."""
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
# The incoming tensor needs memory of its own: `torch.empty_like(tensor)`. If you received into `tensor` itself, your input would
# be lost.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `exchange` sends and receives at once, and returns the tensor that it received.
#
# </details>


# %% tags=["nbval-check-output"]
def turn(group):
    mine = torch.tensor([group.rank], device=group.device)
    return ring_shift(group, mine).item()


print(list(launch(turn, ranks=4)))  # expected: [3, 0, 1, 2]

# %% [markdown]
# Rank 0 now has rank 3's number, and every other rank that of the rank before it.
#
# ## 2 · One to all
#
# Rank 0 has read a checkpoint, and the other ranks need the same weights: a **broadcast**. If rank 0 sends to one rank after the
# other, the last of N ranks waits for N - 1 messages in a row, and only one of them is under way at any time.
#
# But every rank that already *has* the weights can send them, too. After one round, two ranks have them; both send in the second
# round, so four have them; then eight. An arrow is a message, a row the state after a round:

# %%
ideas.tree_broadcast()

# %% [markdown]
# The number of ranks that have the tensor doubles in each round, so after $k$ rounds $2^k$ ranks have it. A round is over when
# all its messages, which travel in parallel, have arrived.
#
# **Predict**: the picture has 8 ranks. How many rounds do 9 ranks need?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 4
### LAB guess = None  # rounds, your guess
### END SOLUTION
lab.predict("rounds", guess)

# %% [markdown]
# Who sends to whom? Before a round, let `distance` be the number of ranks that have the tensor: 1, 2, 4 … In the picture these
# are always the *first* ranks, 0 to `distance - 1`, and each sends to the rank that is `distance` further on. So after the round
# the first `2 * distance` ranks have it, and the pattern repeats. A rank sends nothing if there is no rank `distance` further on.
#
# The root need not be rank 0. So count *places* from the root on, around the circle:
#
#     place = (rank - root) % size
#
# The root has place 0, and the picture applies to places.

# %% [markdown]
# ### Exercise 2 · `tree_broadcast`
#
# Difficulty 3 · 8 minutes · 10 points
#
# In the round with `distance` 1, 2, 4 …, the places below `distance` have the tensor; each sends it to the place `distance`
# further on.


# %% tags=["exercise"]
def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    """The root's values on every rank, in ceil(log2 N) rounds. On other ranks
    `tensor` gives shape and dtype; it is left as it was on all. Returns a new
    tensor. About 10 lines."""
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
# In each round there are three kinds of place: it has the tensor and sends, it receives, or it is not yet its turn.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Senders: `place < distance`, if `place + distance` exists. Receivers: `distance <= place < 2 * distance`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The partner of a sender is rank `(rank + distance) % size`, that of a receiver `(rank - distance) % size`. Double `distance`
# while it is below `size`.
#
# </details>

# %% [markdown]
# **Run**: every rank keeps a *trace* of its messages, so we can count them. The root sends in every round.

# %% tags=["nbval-check-output"]
ranks = 9
results = launch(tree_broadcast, torch.zeros(1000), ranks=ranks)
print("sent by each rank:", [trace.count("send") for trace in results.traces])

# %%
rounds = results.traces[0].count("send")  # the root sends in every round
lab.reveal("rounds", rounds, ranks=ranks)

# %% [markdown]
# **Explain**: $\lceil \log_2 9 \rceil = 4$, one more round than for 8, because of a single rank; 16 ranks would need no more. Of
# the 8 messages the root sends 4, and no other rank more than 2. For 1,024 ranks it is 10 rounds instead of 1,023.

# %% [markdown]
# ## 3 · All to one, in pieces
#
# Training needs *sums*: each rank has a gradient, and we want the sum over all ranks. Suppose rank 0 received all of them and
# added them up. With S the size of the tensor in bytes, $(N-1) \cdot S$ bytes would arrive at rank 0 through its one link, while
# all other links would be idle nearly all the time. And the more ranks, the slower.
#
# **The idea of the ring** is that every rank finishes the sum for one part of the tensor. Cut the tensor into N **chunks**, and
# let each go once around the ring:

# %%
ideas.ring_reduce_scatter()

# %% [markdown]
# A column is a rank, a row a chunk; each box names the ranks whose parts it sums. An orange frame marks what is sent in the next
# step. Move the slider to the end: a rank adds its own part to what it receives, and sends the result on in the next step. After
# N - 1 steps the diagonal is green: rank r holds chunk r of the sum, and no other complete chunk. That is a **reduce-scatter**.
#
# **Predict**: 4 ranks, a tensor of 1,000,000 float32 (4 MB). How many bytes does one rank send, in all its messages together?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 3e6
### LAB guess = None  # bytes, your guess
### END SOLUTION
lab.predict("scatter_bytes", guess, unit="B")

# %% [markdown]
# **Which chunk, when?** Chunk c has to *end* at rank c with the parts of all ranks in it. So it must start one rank further, at
# c + 1, and go all the way around. It moves one rank to the right in each step, so before step s = 0, 1, … it is at rank c + 1 +
# s.
#
# Now look from a rank r: the chunk that it sends in step s is the one with c + 1 + s = r, which is chunk r - 1 - s. The chunk
# that it receives in the same step comes from rank r - 1, so it is chunk r - 2 - s. All of these numbers are modulo N.

# %% [markdown]
# Check the last step, s = N - 2: the incoming chunk is r - N, which is chunk r. It has come home, and lacks only the part of this
# rank.

# %% [markdown]
# ### Exercise 3 · `ring_reduce_scatter`
#
# Difficulty 4 · 12 minutes · 12 points
#
# First send chunk $r - 1$ (so far only your part). In step s = 0, 1, … receive chunk $r - 2 - s$, add your part to it, and send
# *that* on. `tensor_split` cuts a tensor of any size; if N does not divide the size, the first chunks are one element longer.


# %% tags=["exercise"]
def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    """Chunk `rank` of the sum over ranks: (n,) -> (n/N,), in N - 1 messages
    of one chunk to the right, for any n. `tensor` is left as it was. About 9
    lines."""
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
# One variable travels: in each step you send what you received in the step before, with your part added.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Chunks may differ by one element: receive into `torch.empty_like(own)`, where `own` is your part of the incoming chunk.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The index of `own` is the number of the incoming chunk, modulo N. Add `own` after the exchange, not in place: `chunks` are views
# of the input.
#
# </details>

# %% tags=["nbval-check-output"]
results = launch(ring_reduce_scatter, torch.ones(1_000_000), ranks=4)
mine = results[2]
print("rank 2 holds", tuple(mine.shape), "all", mine.unique().item())
print("sent by each rank:", [trace.bytes_sent() for trace in results.traces])

# %%
sent = results.traces[0].bytes_sent()
lab.reveal("scatter_bytes", sent, ranks=4, nbytes=4_000_000)

# %% [markdown]
# **Explain**: a rank sends N - 1 messages of S/N bytes each, in all
#
# $$\frac{N-1}{N}\,S = \frac{3}{4} \cdot 4\ \text{MB} = 3\ \text{MB}.$$
#
# Every rank sends the same amount, at the same time, so no link carries more than another. And for any number of ranks it is less
# than S.
#
# ### Exercise 4 · `ring_all_gather`
#
# Difficulty 3 · 8 minutes · 8 points
#
# Now each rank has one complete chunk, and all ranks need all of them. The same ring distributes them:

# %%
ideas.ring_all_gather()

# %% [markdown]
# Green is complete; move the slider to send it on. In the first step each rank sends its own chunk r to the right. From then on
# it passes on the chunk that arrived last. So in step s it sends chunk r - s, and receives chunk r - 1 - s from its left
# neighbour. Nothing is added on the way; after N - 1 steps every box is green.
#
# The chunks may have different lengths, and a rank can only receive into a tensor of the right length: that is why `sizes` is
# given.


# %% tags=["exercise"]
def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """All ranks' chunks in order of rank: (sum(sizes),). `sizes[r]` is the
    number of elements of rank r's chunk, any number. N - 1 messages of one
    chunk to the right; `chunk` is left as it was. About 9 lines."""
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
# Make the result first. `out.split(sizes)` gives N views of it: receive straight into them, and nothing has to be sorted at the
# end.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Your own chunk is copied into its view before the first step. From then on every chunk that you send is already in one of the
# views.
#
# </details>

# %% [markdown]
# ## 4 · All-reduce
#
# Reduce-scatter, then all-gather: every rank ends with the whole sum. This **all-reduce** is what data-parallel training calls
# after every backward pass. As the sum of each element is computed on one rank only and then copied, all ranks get the same bits,
# and so their weights stay equal.
#
# ### Exercise 5 · `ring_all_reduce`
#
# Difficulty 2 · 5 minutes · 8 points
#
# Combine your two functions, and give the result the shape of the input. The second function needs the sizes of the chunks that
# the first one made.


# %% tags=["exercise"]
def ring_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    """The sum over ranks, in the shape of `tensor`, any shape, the same bits on
    every rank. Uses the two functions above, and sends nothing else.
    `tensor` is left as it was. About 3 lines."""
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
# The gather returns a flat tensor: `.view(tensor.shape)` at the end.
#
# </details>

# %% [markdown]
# **Question**: how many bytes does *each* of 8 ranks send in an all-reduce of 1 GB (10⁹ bytes), in both halves together?

# %% tags=["question"]
### BEGIN SOLUTION
bytes_per_rank = 2 * 7 / 8 * 1e9
### LAB bytes_per_rank = None  # your answer, in bytes
### END SOLUTION

# %% tags=["grade"]
lab.answer("bytes_per_rank", bytes_per_rank)

# %% [markdown]
# **Explain**: can another algorithm send less? Consider one element. N numbers on N ranks must become one, and every message
# joins two partial sums, so N - 1 messages are needed. Then the result must reach the N - 1 ranks that do not have it, which
# takes N - 1 more. That is 2(N-1) messages per element, shared by N ranks:
#
# $$\text{bytes sent by a rank} = \frac{2(N-1)}{N}\,S .$$
#
# The ring sends exactly this, and no algorithm made of messages can send less, on average over the ranks
# ([Patarasuk & Yuan 2009](https://doi.org/10.1016/j.jpdc.2008.09.002)). With many ranks it approaches 2 S.

# %% [markdown]
# ## 5 · What a message costs
#
# Bytes are not everything. A message of $b$ bytes takes
#
# $$t = \alpha + b\,\beta ,$$
#
# where $\alpha$ is the **latency** in seconds, which even an empty message pays, and $\beta$ is the time per byte in seconds; 1/β
# is the **bandwidth** in bytes per second. The network cards in the next picture have $\alpha = 30\ \text{µs}$ and
# $1/\beta = 2.94\ \text{GB/s}$ (25 Gb/s are 3.125 GB/s, of which 94% is left for data):

# %%
ideas.message_cost()

# %% [markdown]
# The same 256 kB take 2.8 times as long in eight messages as in one. Move the slider to larger tensors, and latency matters less
# and less.
#
# The ring all-reduce takes 2(N-1) steps, one after the other, and in each of them every rank sends S/N bytes. So it takes
#
# $$t = 2(N-1)\,\alpha + \frac{2(N-1)}{N}\,S\,\beta .$$
#
# With 8 such machines and S = 1 MB: 14 · 30 µs + 1.75 · 10⁶ · 0.34 ns = 420 µs + 595 µs, on paper. Now measure *your* all-reduce
# on this machine, on N ranks (two on a small CPU), for many sizes. The fastest of several repeats counts, since other programs
# can only make a run slower.


# %% tags=["experiment"]
def timed(group, sizes, repeats):
    """(seconds, bytes sent) of each size, the fastest repeat after a first."""
    rows = []
    for size in sizes:
        x, seconds = torch.ones(size // 4, device=group.device), []
        for _ in range(1 + repeats):
            group.barrier()
            start, before = group.now(), group.trace.bytes_sent("send")
            ring_all_reduce(group, x)
            seconds.append(group.now() - start)
        sent = group.trace.bytes_sent("send") - before
        rows.append((min(seconds[1:]), sent))
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
# `fit` finds the α and β whose formula comes closest to your points, by least squares on *relative* errors, so that small sizes
# count as much as large ones. The dots are measured; the dashed line is the formula with these two numbers.

# %% tags=["folded"]
from minitrain.network.links import Sweep, fit, published_sweep

link = fit(Sweep("all_reduce", N, tuple((r["bytes"], r["seconds"]) for r in sweep)))
fine = [sizes[0] * (sizes[-1] / sizes[0]) ** (i / 60) for i in range(61)]
line = [link.seconds("all_reduce", size, N) for size in fine]
show.lines(
    {"measured": (sizes, [1e6 * r["seconds"] for r in sweep])},
    theory={"α, β of your fit": (fine, [1e6 * seconds for seconds in line])},
    x="tensor S (bytes)",
    y="all-reduce (µs)",
    log="xy",
    title=f"{N} ranks here: α = {link.alpha * 1e6:.0f} µs, 1/β = {1e-9 / link.beta:.1f} GB/s",
    alt="Microseconds of the ring all-reduce against bytes: nearly flat, then straight up.",
)

# %% [markdown]
# **Explain**: on the left the curve is nearly flat: almost all of the time is latency, and its ups and downs are noise. On the
# right it rises roughly in proportion to S, and more steeply where a tensor no longer fits into a cache. If another point is far
# above the line, other programs kept the processor busy in every repeat: run the cells again from the sweep on.
#
# Your α (144 µs in our run) is longer than that of a network card, although these messages never leave the machine: each passes
# through the operating system, Python and a process that has to wake up first. 1/β (1.5 GB/s) is low for a memory, too, because
# the same cores copy and add.

# %% [markdown]
# A model is worth what it predicts. Take a size that is *not* in the sweep: predict first, then measure.

# %% tags=["experiment"]
unseen = 3 * 2**20
predicted = link.seconds("all_reduce", unseen, N)
measured = launch(timed, [unseen], lab.size("repeats"), ranks=N)[0][0][0]
prediction = [{"bytes": unseen, "predicted": predicted, "measured": measured}]

# %% tags=["grade"]
lab.experiment("prediction", prediction)

# %%
show.table(
    [
        {
            "tensor (MB)": round(row["bytes"] / 1e6, 2),
            "predicted (ms)": round(1e3 * row["predicted"], 2),
            "measured (ms)": round(1e3 * row["measured"], 2),
        }
        for row in prediction
    ]
)

# %% [markdown]
# Expect to be right within a factor of two: the ranks share a processor and its caches, and α and β are averages over all sizes.
#
# **Question**: at which tensor size is half of the time latency? Below it, a faster network gains little. Set the two terms
# equal,
#
# $$2(N-1)\,\alpha = \frac{2(N-1)}{N}\,S\,\beta ,$$
#
# and solve for S with your own α (`link.alpha`, in seconds) and β (`link.beta`, in seconds per byte).

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
# For small tensors the second term vanishes, and only the *number* of messages counts: 2(N-1) of them, one after the other.
# **Recursive doubling** needs fewer. In each swap, partners at distance 1, 2, 4 … send each other their *whole* tensor, and each
# adds the received one to its own:

# %%
ideas.recursive_doubling()

# %% [markdown]
# After swap k each box sums the tensors of $2^k$ ranks, so $\log_2 N$ messages from each rank are enough (for N a power of two).
# But each has S bytes, not S/N:
#
# $$t = \log_2 N \cdot (\alpha + S\,\beta) .$$
#
# For 8 ranks that is 3α + 3 Sβ, against the ring's 14α + 1.75 Sβ: fewer messages, more bytes. Which is faster depends on S.
#
# You do not have eight machines on a network, so the next cell *emulates* them. Eight real ranks send real tensors, but each has
# an emulated clock, on which a message takes α + bytes · β, with the α and β of 25 Gb/s Ethernet. Computing takes as long as on
# your processor, scaled to the speed of a GPU. **The seconds are emulated; the bytes are counted.**

# %% tags=["experiment"]
from minitrain.parallel.collectives.algorithms import (
    recursive_doubling_all_reduce as doubling,
)


def compared(group, sizes):
    """Emulated seconds and bytes that a rank sends, by size and algorithm."""
    algorithms = {"ring": ring_all_reduce, "doubling": doubling}
    rows = []
    for size in sizes:
        row = {"bytes": size}
        for name, algorithm in algorithms.items():
            group.barrier()
            start, before = group.now(), group.trace.bytes_sent("send")
            algorithm(group, torch.ones(size // 4))
            row[f"{name}_seconds"] = group.now() - start
            row[f"{name}_bytes"] = group.trace.bytes_sent("send") - before
        rows.append(row)
    return rows


sizes8 = [2**e for e in range(8, 23, 2)]
ring_or_doubling = launch(compared, sizes8, ranks=8, fabric="ethernet-25g")[0]

# %% tags=["grade"]
lab.experiment("ring_or_doubling", ring_or_doubling)

# %%
times = {
    name: (sizes8, [1e6 * row[f"{name}_seconds"] for row in ring_or_doubling])
    for name in ("ring", "doubling")
}
show.lines(
    times,
    x="tensor S (bytes)",
    y="all-reduce (µs, emulated)",
    log="xy",
    title="8 ranks, emulated 25 Gb/s Ethernet",
)

# %%
show.table(
    [
        {
            "tensor S (bytes)": row["bytes"],
            "ring (µs)": round(1e6 * row["ring_seconds"]),
            "doubling (µs)": round(1e6 * row["doubling_seconds"]),
            "ring sends (× S)": row["ring_bytes"] / row["bytes"],
            "doubling sends (× S)": row["doubling_bytes"] / row["bytes"],
        }
        for row in ring_or_doubling
    ],
    caption="One rank of 8: time emulated, bytes counted",
)

# %% [markdown]
# **Question**: from how many bytes on does the ring win here? Any size between the two neighbours in your table is accepted. You
# may also set the two formulas equal, with $\alpha = 30\ \text{µs}$ and $1/\beta = 2.94\ \text{GB/s}$.

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

# %% tags=["grade"]
lab.answer("crossover", crossover)

# %% [markdown]
# **Explain**: at 256 bytes the ring takes 14 latencies, doubling three. At 4 MiB the ring's 1.75 S beats 3 S. The formulas are
# equal at 11α = 1.25 Sβ, or S = 776 kB. NCCL chooses among several algorithms for every call, by this comparison.
#
# ## 7 · Everyone to everyone
#
# Mixture-of-experts models (e02d) and long sequences (e02e) need one more collective, the last column of the picture in section
# 1: rank i has a *different* chunk for each rank j. Each rank sends N - 1 messages, and their order matters. If all send to rank
# 0 first, then to rank 1, one link is crowded and the others idle. So in step s each rank sends to the rank *s places* to its
# right: every rank then sends and receives one chunk.

# %% [markdown]
# ### Exercise 6 · `pairwise_all_to_all`
#
# Difficulty 3 · 7 minutes · 9 points
#
# In step s = 1, 2, … send to `rank + s` and receive from `rank - s`, in this order, so that every link is used once per step.


# %% tags=["exercise"]
def pairwise_all_to_all(group, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    """Sends chunks[j] to rank j; returns what each rank had for me, in order
    of rank. All chunks have the same shape, any shape, and are left as they
    were. Your own one is copied. About 6 lines."""
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
# The result has N places, place j for the chunk that rank j sends you. Your own chunk is copied straight to place `rank`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For `step` in 1 … N-1: `to = (rank + step) % size`, `source = (rank - step) % size`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In each step, `exchange` sends the chunk for `to` and receives into the place of `source`.
#
# </details>

# %% [markdown]
# ## 8 · When it hangs
#
# A collective that one rank does not join waits forever. Here is the deadlock of section 1 with more ranks, and this time all of
# them wait in `recv`. The launcher notices that no rank can continue, and reports where each one stands. Run this broken
# all-reduce and read the report.


# %%
def broken_all_reduce(group, total):
    if group.rank == 0:
        for rank in range(1, group.size):
            total += group.recv(torch.empty_like(total), rank)
        for rank in range(1, group.size):
            group.send(total, rank)
    else:
        group.recv(total, 0)
        group.send(total, 0)


# %%
import re

try:
    launch(broken_all_reduce, torch.ones(3), ranks=3, timeout=5)
except RuntimeError as report:  # the code on a line of its own
    print(re.sub(r"(line \d+): ", r"\1:\n      ", str(report)))

# %% [markdown]
# Read it line by line. For whom does rank 0 wait? And ranks 1 and 2? Draw an arrow from each rank to the one it waits for: where
# do the arrows lead?
#
# ### Exercise 7 · `naive_all_reduce`
#
# Difficulty 2 · 5 minutes · 7 points
#
# Which ranks must not wait first? Move one line.


# %% tags=["exercise"]
def naive_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    """The sum over ranks on every rank: to rank 0, added up there, and out
    again. Repair it, with the same messages: the report names the two lines
    that wait for each other. `tensor` is left as it was."""
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
# The two lines of the `else` branch are the right ones. Only one thing about them is wrong.
#
# </details>

# %% [markdown]
# It works, but it is the slow way of section 3: on 8 ranks, 7 S come in and 7 S go out through rank 0's link. In the ring 1.75 S
# come in and as much goes out, on every link.
#
# ## 9 · Your laptop beside a DGX
#
# To compare clusters of any size, divide the bytes that each rank sends in a ring by the seconds $t$ that the all-reduce took:
#
# $$\text{bus bandwidth} = \frac{2(N-1)}{N} \cdot \frac{S}{t} \quad \text{in bytes per second.}$$
#
# It approaches 1/β as S grows. The A100 and H200 points are
# [published sweeps](https://github.com/stas00/ml-engineering/tree/master/network) of NCCL on 8 GPUs, where the factor is 1.75;
# yours are those that you measured in section 5.

# %% tags=["folded"]
curves, theory = {}, {}
for name, label in [("a100_8gpu_nvlink3", "8 x A100"), ("h200_8gpu_nvls", "8 x H200")]:
    points = published_sweep(name).points
    curves[label] = ([s for s, _ in points], [1.75 * s / t / 1e9 for s, t in points])
bus = [r["sent_bytes"] / r["seconds"] / 1e9 for r in sweep]
curves["this machine"] = (sizes, bus)
sent = [2 * (N - 1) / N * size for size in fine]
theory["α, β of your fit"] = (fine, [b / t / 1e9 for b, t in zip(sent, line)])

# %% tags=["picture"]
show.lines(
    curves,
    theory=theory,
    x="tensor S (bytes)",
    y="bus bandwidth (GB/s)",
    log="xy",
    title=f"All-reduce: {N} ranks on {lab.device_name} beside 8 GPUs",
)

# %% [markdown]
# **Explain**: all three rise, from latency on the left to bandwidth on the right. (Yours may fall again where a tensor no longer
# fits into a cache.) Even eight A100s reach only 1.3 GB/s at 32 KiB, against 235 GB/s at 16 GiB: each byte takes 180 times as
# long.
#
# One number is surprising: the H200s reach 482 GB/s, although the NVLink 4 of a GPU carries 450 GB/s in one direction. No law is
# broken. Here the *switch* does the adding (NVLS), so a GPU sends each byte about once instead of 1.75 times, but the formula
# still counts the bytes of a ring. With the ring, the same machine reaches 368 GB/s.

# %% [markdown]
# > **Takeaway.** A ring all-reduce costs 2(N-1) latencies and 2(N-1)/N of the tensor's bytes. On 8 emulated Ethernet machines
# > 256 bytes take 0.42 ms and 4 MiB, 16,384 times as much, only seven times as long: 2.9 ms. So frameworks combine small
# > gradients into *buckets* before they send them, as you will in [e02](e02_data_parallel.ipynb).
#
# > **On GPUs.** With as many GPUs as ranks, `launch` starts one process per GPU with NCCL, and the sweep goes on to 256 MiB. This
# > lab has not been run there yet.

# %%
lab.score(read="minitrain/parallel/collectives/algorithms.py")

# %% [markdown]
# Next, [e01 · Baseline](e01_baseline.ipynb) builds the model whose gradients will be sent around this ring.
