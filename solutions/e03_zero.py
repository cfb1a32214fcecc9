# %% [markdown]
# # e03 · ZeRO
#
# **Data parallel ranks all keep the same 16 bytes a parameter. You shard them, one kind after the other, and offload one, until
# a model that is four times too large for a rank trains on four.**
#
# 120 minutes · CPU is enough · before: [e02 · Data parallel](e02_data_parallel.ipynb) · [map of the course](index.ipynb)
#
# You build: ZeRO stages 1, 2 and 3, prefetch, and offload of optimizer state. You end with this picture: the bytes a rank
# holds, stage by stage, beside the formulas.
#
# ![Bytes a rank holds under DDP and ZeRO stages 1, 2 and 3, by category, measured beside the formula: 16 bytes a parameter shrink to 4](../labs/pictures/e03_zero.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, ideas, show
from minitrain.ranks.launch import launch

lab = Lab("e03_zero")

# %% [markdown]
# ## 1 · Who holds what
#
# Let $P$ be the number of parameters and $N$ the number of ranks. AdamW in float32 keeps, for each parameter, 4 bytes for
# the value, 4 for its gradient and 8 for two moments. A rank under DDP therefore holds
#
# $$M_\text{DDP} = (4 + 4 + 8)\,P = 16\,P \text{ bytes,}$$
#
# and every other rank holds the same bytes once more. For a model of 7 billion parameters that is 112 GB on each GPU, on
# one as on a thousand: data parallelism makes a step faster, and never makes a model fit.

# %% [markdown]
# These copies are equal (the gradients once they are averaged), so the whole group needs each number only once. ZeRO
# ([Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054)) gives each rank $1/N$ of them to look after. It does so in
# three stages, one kind of number after the other:

# %%
ideas.zero_stages()

# %% [markdown]
# The bars are the bytes that a rank holds for one parameter, computed for the paper's *mixed precision*: a BF16 value (2
# bytes) and a BF16 gradient (2), an FP32 master copy (4) and two FP32 moments (8). Each stage cuts more by
# $N$. Stage 1 cuts the three colours that only the optimizer reads, stage 2 the gradient too, stage 3 all five.
#
# You write the stages in float32. There the sum is 16 as well, and its parts are others: 4 for the value, 4 for the
# gradient, 8 for the moments. Section 8 sets both accounts, and a third, side by side.

# %%
from functools import partial
from minitrain.model.config import preset
from minitrain.model.transformer import build

config = preset(lab.size("preset"), layers=lab.size("layers"))
B, T, N = lab.size("batch"), lab.size("length"), lab.size("ranks")
P = sum(p.numel() for p in build(config).parameters())
make = partial(torch.optim.AdamW, lr=1e-3)
states = show.bytes_text(16 * P)
print(f"{show.count_text(P)} parameters: {states} on each rank")

# %% [markdown]
# The loss is that of a language model, and each rank draws its own tokens. B is the number of rows, T their length, V the
# size of the vocabulary.


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
# To shard a model parameter by parameter would send many small messages. So the parameters of one module are laid side by
# side in one flat tensor of $S$ elements, a **unit**, and *that* is cut into $N$ equal parts, wherever the cuts fall. Where
# $N$ does not divide the number of parameters, zeros fill the end.
#
# [`FlatUnit(module, group)`](../minitrain/parallel/zero/plain_unit.py) is given:
#
# - `full`, (S,): the module's parameters side by side;
# - `shard`, (S/N,): this rank's part as an `nn.Parameter`, **a view of `full`**: writing to one writes to the other;
# - `parameters`: a list of the module's own, views of `full` too;
# - `whole_gradient()`: their gradients as a new tensor, (S,), with zeros where one has none.

# %% tags=["nbval-check-output"]
from minitrain.parallel.zero.plain_unit import FlatUnit


def shapes(group):
    unit = FlatUnit(torch.nn.Linear(5, 7), group)
    return tuple(unit.full.shape), tuple(unit.shard.shape)


print("42 elements on 4 ranks, full and shard:", launch(shapes, ranks=4)[0])


# %% [markdown]
# 5 × 7 weights and 7 biases are 42 elements, which four ranks cannot share equally: two zeros make it 44, and 11 each. A
# model is cut into several units, because later only one or two of them will be whole at a time:


# %%
def units_of(model, group, kind=FlatUnit):
    """One unit for the embedding, each block, the last norm and the head."""
    modules = [model.embed, *model.blocks, model.norm, model.head]
    return [kind(module, group) for module in modules]


# %% [markdown]
# ## 2 · Stage 1: the optimizer state
#
# The two moments are half of the 16 bytes, and nobody but the update reads them. The update of an element needs this
# element's value, gradient and moments, and nothing of its neighbours. So rank $r$ can update the $r$-th shard alone, and
# needs moments for this shard alone: $8/N$ bytes a parameter instead of 8.

# %% [markdown]
# What must travel? Before the update, rank $r$ needs the *average over ranks* of the gradient, of its shard only. That is a
# **reduce-scatter**. After the update, everybody needs all new shards, for the next forward. That is an **all-gather**. Each
# of the two makes a rank send $(N-1)/N \cdot S$ elements of a unit, together
#
# $$2\,\frac{N-1}{N}\,S,$$
#
# which is exactly DDP's ring all-reduce: that one is a reduce-scatter followed by an all-gather, too. Stage 1 saves memory
# and sends not one byte more; it only does the update between the two halves.

# %% [markdown]
# **Predict**: on *two* ranks, in float32, how many bytes does a rank hold in stage 1 for each parameter? (DDP: 16.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 8 + 8 / 2
### LAB guess = None  # bytes a parameter, your guess
### END SOLUTION
lab.predict("bytes_a_parameter", guess)

# %% [markdown]
# ### Exercise 1 · `Zero1`
#
# Difficulty 3 of 5 · 20 minutes · 12 points
#
# `unit.group.reduce_scatter(out, whole, op="avg")` fills `out` (S/N,) with this rank's part of the average of all `whole`
# (S,), both of one dtype (the checks use float64 and float32); without `op` it is the sum. `unit.group.all_gather(full,
# part)` is the way back.
#
# Two things are yours to decide. An optimizer makes state for whatever it is given: what do you give it? And it reads the
# `.grad` of exactly these: whose gradient do you fill, and whose must be gone when the step is over? Parameters and shards
# stay views of `full`.


# %% tags=["exercise"]
class Zero1:
    """Whole parameters and gradients, optimizer state of own shards only."""

    def __init__(self, units: list, make):
        """`make(parameters)` gives an optimizer of these. 1 line."""
        self.units = units
        ### BEGIN SOLUTION
        self.optimizer = make([unit.shard for unit in units])
        ### END SOLUTION

    def step(self) -> None:
        """Average into each `unit.shard.grad`, update, gather each
        `unit.full`; then no gradient is left, neither a parameter's nor a
        shard's. About 8 lines."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.parallel.zero.plain:Zero1.step
        ### END SOLUTION


# %% tags=["grade"]
Zero1 = lab.grade(Zero1)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `self.optimizer = make([unit.shard for unit in units])`: an optimizer makes state for what it is given, and for nothing
# else.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Three parts: a loop that reduces every unit, one `self.optimizer.step()`, a loop that gathers every unit and sets `.grad =
# None`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `unit.shard.grad = torch.empty_like(unit.shard)`, then `unit.group.reduce_scatter(unit.shard.grad, unit.whole_gradient(),
# op="avg")`. Later `unit.group.all_gather(unit.full, unit.shard.data)`.
#
# </details>

# %% [markdown]
# **Run**: two ranks, one step, inside a `memory_budget`: a ledger that knows what each tensor is for, and that raises
# `OutOfMemory` beyond its limit. Parameters and gradients are read before the step, the optimizer's state, which AdamW makes
# in its first step, after it.

# %%
from minitrain.measure.budget import memory_budget


def one_step(group):
    model = build(config)
    with memory_budget("1 GB") as ledger:
        zero = Zero1(units_of(model, group), make)
        loss_of(model, tokens_of(group.rank)).backward()
        before = ledger.now
        zero.step()
    return before["parameters"] + before["gradients"] + ledger.now["optimizer"]


# %%
held_each = launch(one_step, ranks=2)[0] / P
lab.reveal("bytes_a_parameter", held_each, ranks=2)

# %% [markdown]
# **Explain**: 4 bytes of values and 4 of gradients stay whole on every rank, and only the 8 of the moments are divided. With
# many ranks the moments vanish and 8 bytes remain, $8 + 8/N \to 8$: stage 1 alone can save one half, no more.

# %% [markdown]
# ## 3 · Stage 2: the gradients
#
# At the update a rank reads the averaged gradient of its own shard. Yet when backward is over, the whole gradient lies in
# memory: $4P$ bytes that are read once, for a reduce-scatter, and mostly thrown away.
#
# Backward makes gradients one unit after the other, from the last to the first. As soon as a unit's gradients are complete
# they can be reduced, and all but $1/N$ freed, before those of the next unit come. The gradients then take
#
# $$4\,P/N + 8\,S \text{ bytes at the peak}$$
#
# instead of $4P$, where $S$ is now the largest unit, the only one that is whole at that moment: 4 bytes for its gradients, 4
# for the flat copy that is sent.

# %% [markdown]
# The moment is given. `unit.when_complete(f)` puts a hook on each of the unit's parameters, which autograd calls when that
# parameter's `.grad` has been accumulated; at the last of them it calls `f(unit)`, in the middle of backward.

# %% [markdown]
# ### Exercise 2 · `reduce_unit`
#
# Difficulty 2 · 12 minutes · 10 points
#
# It is called once a backward. With several microbatches that is several times before a step, and their parts must add up,
# as `.grad` does in one process.
#
# One trap: a slice is a view, and a view keeps the whole storage alive. `whole[:n]` looks like $1/N$, and holds all of
# `whole`. What you keep needs memory of its own.


# %% tags=["exercise"]
def reduce_unit(unit) -> None:
    """Adds this rank's part (S/N,) of the averaged gradient to
    `unit.shard.grad` (None at first), by one reduce-scatter; no parameter of
    the unit keeps a gradient, and no parameter changes its value.
    About 6 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.parallel.zero.plain:reduce_unit
    ### END SOLUTION


# %% tags=["grade"]
reduce_unit = lab.grade(reduce_unit)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# The first half is that of `Zero1.step`, with a tensor of its own in place of `shard.grad`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `part = torch.empty_like(unit.shard.data)`, reduce-scatter into it.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `unit.shard.grad = part if unit.shard.grad is None else unit.shard.grad + part`, then `parameter.grad = None` for each of
# `unit.parameters`.
#
# </details>

# %% [markdown]
# **Run**: what the ledger finds of gradients after a backward on four ranks, as a share of DDP's $4P$.


# %% tags=["nbval-check-output"]
def gradient_bytes(group):
    model = build(config)
    with memory_budget("1 GB") as ledger:
        for unit in units_of(model, group):
            unit.when_complete(reduce_unit)
        loss_of(model, tokens_of(group.rank)).backward()
    return ledger.now["gradients"]


share = launch(gradient_bytes, ranks=4)[0] / (4 * P)
print(f"share of the gradients on each of 4 ranks: {share:.3f}")

# %% [markdown]
# A quarter on each of four ranks, measured: together with stage 1 that makes $4 + 4/4 + 8/4 = 7$ bytes a parameter, and the
# 4 that are left are the values.
#
# ## 4 · Stage 3: the parameters
#
# A block's parameters are read in its own forward and in its own backward, and lie idle in between. So a rank keeps its
# shard, *gathers* the unit before it computes, and *frees* it after. Here are three units on their way through a step:

# %%
ideas.unit_lifetimes()

# %% [markdown]
# Read the lower lanes first: they are the memory of each unit. Every unit comes twice, for its forward and for its
# backward, and is freed in between; unit 3, the last, comes back at once. The lanes above show the price. Each arrival is a gather, an
# all-gather of $(N-1)/N \cdot S$ elements, and each backward ends with a reduce-scatter of as many. A step sends
#
# $$\underbrace{(1 + 1)}_\text{gathers}\frac{N-1}{N}P + \underbrace{1}_\text{reduce}\cdot\frac{N-1}{N}P =
# 3\,\frac{N-1}{N}\,P \text{ elements,}$$
#
# beside DDP's 2. No all-gather follows the update: the next forward gathers anyway.

# %% [markdown]
# How does one free a tensor that autograd has saved for backward? If the block's weight were *replaced*, backward would
# still hold the old one, and its memory with it. So the tensor lives on and only its *storage* shrinks, to 0 bytes. Filled
# again before backward, it is the same object, and autograd finds its values where it left them.
#
# `self.full.untyped_storage().resize_(n)` sets the storage of `full` to $n$ bytes, and what was in it is lost; `self.full.nbytes` is
# what it needs to be whole.

# %% [markdown]
# ### Exercise 3 · `ShardedUnit`
#
# Difficulty 4 · 20 minutes · 14 points
#
# A unit is in one of three states: *freed*, *arriving* or *there*. Its methods are called in any of them: somebody may have
# begun the gather already, or not; a unit may be freed that nobody has used. Three methods in three states are nine cases.
# Decide before you write:
#
# - What tells the states apart? (One attribute is enough.)
# - In which states must a method send nothing, and in which must it wait?
# - What goes wrong if memory shrinks while a message still writes into it?
#
# `self.group.all_gather(full, part, async_op=True)` returns a handle at once, which torch calls a *work*. `work.wait()` returns when the message is
# there, and may be called again.


# %% tags=["exercise"]
class ShardedUnit(FlatUnit):
    """A unit whose `full` has memory only between gather() and free().
    About 9 lines."""

    def __init__(self, module, group):
        super().__init__(module, group)
        own = self.shard.data.clone()  # in memory of its own
        self.shard = torch.nn.Parameter(own)
        self.work = None  # of an all-gather
        self.free()

    def start_gather(self) -> None:
        """All shards are on their way into `full`; it does not wait. Does
        nothing where `full` is there, or under way."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.parallel.zero.plain:ShardedUnit.start_gather
        ### END SOLUTION

    def gather(self) -> None:
        """`full` is there: waits for it, whoever began."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.parallel.zero.plain:ShardedUnit.gather
        ### END SOLUTION

    def free(self) -> None:
        """`full` has 0 bytes; nothing is still arriving in it. It sends
        nothing, freed already or not."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.parallel.zero.plain:ShardedUnit.free
        ### END SOLUTION


# %% tags=["grade"]
ShardedUnit = lab.grade(ShardedUnit)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `self.work` says it all: None where `full` is freed. Only then does `start_gather` act, and only `free` sets it to None.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `start_gather`: first the memory, `resize_(self.full.nbytes)`, then `self.work = self.group.all_gather(self.full,
# self.shard.data, async_op=True)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `gather`: `self.start_gather()`, `self.work.wait()`. `free`: wait if there is a work, `self.work = None`, `resize_(0)`.
#
# </details>

# %% [markdown]
# ## 5 · Prefetch
#
# A gather that begins when its unit is needed is all **exposed**: the rank does nothing but wait. Six gathers of three units
# are then waited for. In the picture above (move its handle to *on demand* and back) a gather begins one unit *earlier* and
# travels while that unit computes. The rank waits for the first gather of forward and of backward, which have nothing to hide
# behind, and for each of the three reduces, which `reduce_unit` waits for where it sends them.
#
# The price is memory: while a unit computes, its neighbour is arriving. Two units are full at a time, never three, if each is
# freed as soon as it has computed. Beside its shards, stage 3 in float32 then holds at most
#
# $$\underbrace{2 \cdot 4\,S}_\text{two units} + \underbrace{8\,S}_\text{gradients of one, and their flat copy} \text{ bytes.}$$

# %% [markdown]
# Who calls whom, and when? PyTorch lets one hang functions, *hooks*, on modules and tensors.
# `unit.watch(before_forward, after_forward, before_backward)` hangs three, and `unit.when_complete(after_backward)` the
# fourth; the dotted lines of the picture are those of unit 2.
#
# | moment | which hook fires it |
# |---|---|
# | `before_forward` | the module's forward pre-hook: it is called, and has not computed yet |
# | `after_forward` | the module's forward hook: its output is there |
# | `before_backward` | a hook on that output: *its gradient* has just arrived, and the module's own backward is next |
# | `after_backward` | the hooks on its parameters: the last of their gradients is complete |
#
# In evaluation no output has a gradient, and the last two never fire.

# %% [markdown]
# ### Exercise 4 · `Zero3`
#
# Difficulty 4 · 20 minutes · 14 points
#
# You have the tools: `gather`, `start_gather`, `free` and `reduce_unit`. Put each where it belongs: for every one of the
# four moments, what must be *true* when your method returns, of this unit and of its neighbour? What may be *under way*?
#
# `self.units` are in the order of the forward. Ask which unit comes next in a backward, and what "next" is at either end of
# the list: in Python `units[-1]` is not "nothing".


# %% tags=["exercise"]
class Zero3:
    """Gathers, prefetches, frees and reduces the units of a model while it
    runs. About 11 lines."""

    def __init__(self, units: list):
        self.units = units
        for unit in units:
            unit.watch(
                self.before_forward,
                self.after_forward,
                self.before_backward,
            )
            unit.when_complete(self.after_backward)

    def before_forward(self, unit) -> None:
        """`unit` is there, the next one is on its way."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.parallel.zero.plain:Zero3.before_forward
        ### END SOLUTION

    def after_forward(self, unit) -> None:
        """`unit` has 0 bytes until its backward."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.parallel.zero.plain:Zero3.after_forward
        ### END SOLUTION

    def before_backward(self, unit) -> None:
        """`unit` is there, the one before it is on its way."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.parallel.zero.plain:Zero3.before_backward
        ### END SOLUTION

    def after_backward(self, unit) -> None:
        """Only 1/N is left, of its gradients and of its parameters."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.parallel.zero.plain:Zero3.after_backward
        ### END SOLUTION


# %% tags=["grade"]
Zero3 = lab.grade(Zero3)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `gather()` for the unit that computes now, `start_gather()` for its neighbour.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `place = self.units.index(unit)`; in forward the neighbour is at `place + 1`, if that is below `len(self.units)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In backward it is at `place - 1`, if `place > 0`. `after_backward`: `reduce_unit(unit)`, then `unit.free()`.
#
# </details>

# %% [markdown]
# **Run** it on four *emulated* nodes with InfiniBand, as in e02: the messages are real, and a logical clock says how long
# they would take there if each parameter stood for 3,600 and each token for 64. Two variants: your `Zero3`, and the same
# without prefetch.


# %%
class OnDemand(Zero3):
    def before_forward(self, unit):
        unit.gather()

    def before_backward(self, unit):
        unit.gather()


# %% [markdown]
# The next cell, folded, runs a forward and backward five times and takes the shortest pass, the one that other processes
# disturbed least. It gives the seconds in which the rank did nothing but wait, the beginning, the end, and every message.


# %% tags=["folded"]
def forward_backward(group, wiring, repeats=5):
    """(exposed seconds, begin, end, its messages) of the shortest pass."""
    model, trace, runs = build(config), group.trace, []
    wiring(units_of(model, group, ShardedUnit))
    for _ in range(repeats):
        group.barrier()
        trace.ops.clear()
        begin = group.now()
        loss_of(model, tokens_of(group.rank)).backward()
        runs.append((trace.exposed_seconds(), begin, group.now(), list(trace.ops)))
    return min(runs, key=lambda run: run[2] - run[1])  # end - begin


def spans_of(name, exposed, begin, end, ops):
    """(lane, start, end, label) in ms: messages, and what the rank does."""
    spans, now = [], begin
    for op in ops:
        spans.append((f"{name}: network", op.issued, op.end, op.kind))
    for op in sorted(ops, key=lambda op: op.waited):
        if op.done > max(now, op.waited):
            spans.append((f"{name}: rank", now, max(now, op.waited), "computes"))
            spans.append((f"{name}: rank", max(now, op.waited), op.done, "waits"))
            now = op.done
    spans.append((f"{name}: rank", now, end, "computes"))
    return [
        (n, 1e3 * (a - begin), 1e3 * (b - begin), word)
        for n, a, b, word in spans
        if b > a
    ]


# %%
from dataclasses import replace
from minitrain.network.fabric import FABRICS

weight, length = lab.size("parameters_each"), lab.size("tokens_each")
fabric = replace(FABRICS["h100-infiniband"](), ranks_per_node=1).resolved()
scale = weight * length * fabric.compute_scale
fabric = replace(fabric, compute_scale=scale, payload_scale=weight)
passes = {}
for name, wiring in (("on demand", OnDemand), ("prefetched", Zero3)):
    passes[name] = launch(forward_backward, wiring, ranks=4, fabric=fabric)[0]


# %%
spans = sum((spans_of(name, *run) for name, run in passes.items()), [])
show.timeline(
    spans,
    title="Forward and backward on 4 emulated nodes",
)
show.table(
    [
        {
            "gathers": name,
            "forward and backward (ms)": round(1e3 * (end - begin)),
            "waits (exposed, ms)": round(1e3 * exposed),
            "computes (ms)": round(1e3 * (end - begin - exposed)),
        }
        for name, (exposed, begin, end, _) in passes.items()
    ],
    caption="Emulated: 4 nodes of one H100 each, InfiniBand between them",
)

# %% [markdown]
# **Explain**: on demand, every gather has a wait of its own length below it. Prefetched, the gathers lie above the
# computation, and the table says how many of the exposed milliseconds that saves. (Both variants compute the same. That time
# is measured on this machine, and scaled, so a difference there is its noise.) Not all is saved. The first gather of either
# direction has nothing to hide behind. Where a gather lasts longer than the unit before it computes, the rank waits for the
# rest. And `reduce_unit` waits for its reduce-scatters. The package's `Zero3` sends those in the background too.

# %% [markdown]
# ## 6 · Offload
#
# Cut by $N$, the moments are still $8P/N$ bytes, the largest part of what a rank holds, and they are read *once* a step, one
# unit after the other. They can wait in CPU memory or on a disk
# ([Ren et al. 2021](https://arxiv.org/abs/2101.06840)); on the device one unit's are enough, $8S/N$.
#
# The price is time. Every step reads them and writes them back, with $b$ bytes a second between the two places:
#
# $$t = \frac{2 \cdot 8\,P/N}{b}$$
#
# That is the same however small the batch. So offload pays where a step computes long, on large batches, and loses on a
# laptop, whose model is small, whose step takes milliseconds, and whose "device" is the very CPU that offload should relieve.

# %% [markdown]
# Given: a *store* has `write(key, tensors)`, `read(key, into)`, which fills tensors that have memory, and `commit()`, which
# makes all that was written since the last one valid at once. Until then the state of the step before is the valid one: a run
# that is killed halfway through a step finds no mixture of two steps. Given too:


# %%
def state_tensors(optimizer):
    """Its state's tensors, in a fixed order; [] before the first step."""
    return [t for state in optimizer.state.values() for t in state.values()]


# %% [markdown]
# ### Exercise 5 · `offloaded_step`
#
# Difficulty 3 · 18 minutes · 10 points
#
# One optimizer a unit, so that the units can take turns. A turn is: the state gets memory (`resize_` of each tensor's
# storage, as in exercise 3), comes from the store, is used, goes back, and is freed. Only one unit's state may be in memory
# at a time. Take any key that is a unit's own, such as `f"unit-{i}"`.
#
# Optimizers make their state when they first need it. What does `state_tensors` give before the first step, what after it,
# and what for a unit that has had no gradient yet? A key that was never written cannot be read, not even for an empty list.


# %% tags=["exercise"]
def offloaded_step(optimizers: list, store) -> None:
    """Steps each optimizer; outside its own turn its state has no memory.
    Commits at the end. About 11 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.parallel.zero.plain:offloaded_step
    ### END SOLUTION


# %% tags=["grade"]
offloaded_step = lab.grade(offloaded_step)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `for number, optimizer in enumerate(optimizers):` and everything but the commit inside.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `tensor.untyped_storage().resize_(tensor.nbytes)` before the read, `resize_(0)` after the write.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The first `step()` makes the state: call `state_tensors(optimizer)` again after it. Read only `if tensors:`.
#
# </details>

# %% [markdown]
# ## 7 · Every stage, one step
#
# All variants on two *real* ranks of this machine, beside PyTorch's own stage 3, FSDP2 (`fully_shard`). On two
# cores the network *is* the memory bus, and the ranks take each other's cores: the bytes say more than the seconds.
#
# The folded cell joins your parts to trainers: `trainer(group, model, variant)` gives what to call with tokens and what to
# call after backward. `timed` gives the median time of a step, half the distance between the quartiles, and the bytes that the
# rank sent.

# %% tags=["folded"]
from time import perf_counter

from minitrain.parallel.ddp import DDP


def trainer(group, model, variant, store=None):
    """What to call with tokens, and what to call after backward."""
    if variant == "DDP":
        return ddp_trainer(DDP(model, group), make(model.parameters()))
    if variant == "FSDP2":
        return fsdp_trainer(group, model)
    kind = ShardedUnit if variant == "stage 3" else FlatUnit
    units = units_of(model, group, kind)
    if variant == "stage 1":
        return model, Zero1(units, make).step
    if variant == "stage 2":
        for unit in units:
            unit.when_complete(reduce_unit)
    else:
        Zero3(units)
    optimizers = [make([unit.shard]) for unit in units]

    def step():
        if store is not None:
            offloaded_step(optimizers, store)
        for unit, optimizer in zip(units, optimizers):
            if store is None:
                optimizer.step()
            unit.shard.grad = None
            if variant == "stage 2":
                group.all_gather(unit.full, unit.shard.data)

    return model, step


def ddp_trainer(ddp, optimizer):
    def step():
        ddp.finish()
        optimizer.step()
        optimizer.zero_grad()

    return ddp, step


def fsdp_trainer(group, model):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group.process_group, group.device.type)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh)
    optimizer = make(model.parameters())

    def step():
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def timed(group, variant, repeats):
    """A step's seconds (median, half the middle ones' range) and bytes."""
    called, step = trainer(group, build(config, seed=1), variant)
    tokens, seconds = tokens_of(group.rank), []
    for _ in range(repeats + 1):
        group.barrier()
        group.trace.ops.clear()
        begin = perf_counter()
        loss_of(called, tokens).backward()
        step()
        seconds.append(perf_counter() - begin)
    low, median, high = (sorted(seconds[1:])[q * repeats // 4] for q in (1, 2, 3))
    return median, (high - low) / 2, group.trace.bytes_sent()


# %% tags=["experiment"]
variants, steps = ["DDP", "stage 1", "stage 2", "stage 3", "FSDP2"], []
repeats = lab.size("repeats")
for variant in variants:
    seconds, spread, sent = launch(timed, variant, repeats, ranks=2)[0]
    row = {"variant": variant, "ranks": 2, "parameters": P}
    row |= {"step_seconds": seconds, "spread_seconds": spread}
    steps.append({**row, "sent_bytes": sent})

# %% tags=["grade"]
lab.experiment("steps", steps)

# %%
show.bars(
    variants,
    [1e3 * row["step_seconds"] for row in steps],
    errors=[1e3 * row["spread_seconds"] for row in steps],
    y="step (ms)",
    title=f"A step on 2 ranks, {lab.device_name}",
)

# %% [markdown]
# **Explain**: stages 1 and 2 send what DDP sends, and yet took half as long again in our run, probably because DDP hides its
# messages behind backward and yours are waited for; the package's stages hide theirs. Stage 3 sends half as much again, and
# took only about a sixth longer than they: its gathers travel while it computes. FSDP2 is made for GPUs: on two CPU ranks and
# so small a model its own work for each unit probably weighs more. Only the times are measured, not their causes.
#
# **Question**: how many times DDP's bytes does stage 3 send, in your own table? Compare with the formula of section 4.
#
# (FSDP2 sends through PyTorch's own process group, which our meter does not see. A recorded 0 means:
# not counted.)

# %% tags=["question"]
### BEGIN SOLUTION
volume = steps[3]["sent_bytes"] / steps[0]["sent_bytes"]
### LAB volume = None  # your answer, 1 where both send as much
### END SOLUTION
count = show.count_text(P)
show.table(
    [
        {
            "variant": r["variant"],
            "step, median (ms)": round(1e3 * r["step_seconds"], 1),
            "± (ms)": round(1e3 * r["spread_seconds"], 1),
            "a rank sends (bytes a step)": r["sent_bytes"] or None,
        }
        for r in steps
    ],
    caption=f"Measured on 2 ranks, {count} parameters; –: not metered",
)

# %% tags=["grade"]
lab.answer("volume", volume)

# %% [markdown]
# ## 8 · A model that does not fit
#
# A deeper model, and each rank's budget is $4P$ bytes, **a quarter** of the $16P$ that its states take. Four ranks together
# have exactly as much as there is to hold.
#
# One of the runs will be the package's `Zero3` in mixed precision, and its sum is not the paper's. The accounts, as bytes a
# parameter over all ranks:

# %%
accounts = {
    "value, FP32": [4, 4, 4],
    "gradient": [4, 2, 2],
    "moments, FP32": [8, 8, 8],
    "BF16 copy": [0, 2, 0],
}
names = "yours\nFP32: 16", "the paper's\nmixed: 16", "the package's\nmixed: 14"
show.bars(
    names,
    accounts,
    stacked=True,
    y="bytes for each parameter, over all ranks",
    title="The same stage 3, three accounts (computed)",
)

# %% [markdown]
# Both mixed ones reduce gradients in BF16, 2 bytes instead of 4. The paper keeps a BF16 *shard* of the values beside the
# FP32 master, which brings the sum back to $16\,P/N$. The package keeps none: when a unit is gathered, it rounds its part
# of the master to BF16 and sends that. Hence $14\,P/N$. What is gathered is BF16 either way, and so a gather sends half the
# bytes of yours.
#
# **Predict**: how many of these five runs fit into $4P$ bytes a rank? One rank; four with DDP; four with your stage 3; the same
# offloaded to disk; four with the package's `Zero3` in mixed precision. (Beside its shards a rank needs room for the units
# that are full, and for activations.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 2
### LAB guess = None  # runs of five, your guess
### END SOLUTION
lab.predict("runs_that_fit", guess)

# %% [markdown]
# The folded cell has the model, its budget, and `train_within`, which trains it for some steps and gives the loss and the bytes at the
# peak. All ranks see the *same* five tokens, so that the average of their gradients is the gradient of one process.

# %% tags=["folded"]
import tempfile

from minitrain.ranks.errors import RankError
from minitrain.parallel.zero.stage_3 import Zero3 as MixedZero3
from minitrain.parallel.zero.optimizer import ZeroOptimizer
from minitrain.memory.stores import DiskStore

deep = preset(lab.size("preset"), layers=lab.size("deep"))
size = sum(p.numel() for p in build(deep, device="meta").parameters())
budget, few, lab_steps = 4 * size, tokens_of(0)[:1, :5], lab.size("steps")


def mixed_trainer(group, model):
    zero = MixedZero3(model, group, compute_dtype=torch.bfloat16)
    optimizer = ZeroOptimizer(zero, [{"params": list(model.parameters())}], make)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    return zero, step


def train_within(group, variant, limit, folder=None):
    """The loss after some steps, and the bytes at the peak."""
    model = build(deep, seed=1)
    store = DiskStore(f"{folder}/{group.rank}") if folder else None
    if variant == "mixed":
        called, step = mixed_trainer(group, model)
    else:
        called, step = trainer(group, model, variant, store)
    with memory_budget(limit) as ledger:
        for _ in range(lab_steps):
            loss = loss_of(called, few)
            loss.backward()
            step()
    return loss.item(), ledger.peak_bytes


# %% tags=["experiment"]
folder, fits, tables = tempfile.mkdtemp(), [], {}
plan = {
    "1 rank": (1, "DDP", None),
    "4 ranks, DDP": (4, "DDP", None),
    "4 ranks, stage 3": (4, "stage 3", None),
    "4 ranks, stage 3, offloaded": (4, "stage 3", folder),
    "4 ranks, package, mixed": (4, "mixed", None),
}
free_loss, needed = launch(train_within, "DDP", "10 GB", ranks=1)[0]
for run, (ranks, variant, place) in plan.items():
    given = variant, budget, place
    try:
        loss, peak = launch(train_within, *given, ranks=ranks)[0]
    except RankError as error:
        if "out of memory" not in str(error):
            raise
        loss, peak, tables[run] = 0.0, 0, str(error)
    row = {"run": run, "ranks": ranks, "parameters": size}
    row |= {"budget_bytes": budget, "fits": peak > 0, "peak_bytes": peak}
    fits.append({**row, "loss": loss, "loss_without_budget": free_loss})

# %% tags=["grade"]
lab.experiment("fits", fits)

# %% [markdown]
# The first run breaks off in its very first forward, in a late block: the values used so far (each is counted when it is
# used) and the activations are more than the budget. The ledger says (in MiB, 1 MiB = 1.049 MB):

# %%
text = tables["1 rank"]
print(text[text.index("out of memory") :].split("most are")[0])

# %%
lab.reveal("runs_that_fit", sum(row["fits"] for row in fits), budget=4)
heads = "at the peak (MB)", "loss", "loss minus that of one process"
shown = []
for r in fits:
    numbers = f"{r['peak_bytes'] / 1e6:.1f}", f"{r['loss']:.4f}"
    numbers += (f"{r['loss'] - free_loss:+.4f}",)
    told = numbers if r["fits"] else ("out of memory", "–", "–")
    shown.append({"run": r["run"], **dict(zip(heads, told))})
show.table(
    shown,
    caption=f"Measured: {show.count_text(size)} parameters, budget "
    f"{budget / 1e6:.1f} MB a rank; one process without a budget: "
    f"{needed / 1e6:.1f} MB, loss {free_loss:.4f}",
)

# %% [markdown]
# **Explain**: DDP on four ranks is four times the same failure. Stage 3 in float32 needs $16P/4 = 4P$ for its shards, which
# is the whole budget, and has no room left for a unit that is full. Offload takes $8P/4 = 2P$ away. Mixed precision needs
# $14P/4 = 3.5P$ and fits with little to spare.
#
# The offloaded run has the loss of one process to the digits shown: it does the same float32 arithmetic, and a store gives
# back the bits that it was given. Mixed precision does not. It computes in BF16, 8 bits of precision, and its loss differs
# in the second decimal. That is rounding, not a mistake in the sharding; [e04](e04_mixed_precision.ipynb) is about what such
# rounding does to training.

# %% [markdown]
# **Question**: a 70B model in stage 3 on 64 ranks, its moments on disks. Each rank's disk reads and writes at 5 GB/s. How
# many seconds a step does it move state, both ways, one after the other? (Section 6 has the formula.)

# %% tags=["question"]
### BEGIN SOLUTION
disk_seconds = 2 * 8 * 70e9 / 64 / 5e9
### LAB disk_seconds = None  # your answer, seconds a step
### END SOLUTION

# %% tags=["grade"]
lab.answer("disk_seconds", disk_seconds)

# %% [markdown]
# Are 3.5 s much? Beside a step of 4 million tokens they are not: $6 \cdot 70\cdot10^9 \cdot 4\cdot10^6$ floating-point operations on
# 64 GPUs that reach 400 TFLOP/s each take 66 s (computed), and most of the reading and writing can happen meanwhile. Of a step
# of 5 s they would be most.

# %% [markdown]
# ## 9 · The bytes, stage by stage
#
# Now the picture that the lab promised. In float32 the formulas that you have derived are, in bytes a rank:
#
# $$16P, \qquad 8P + \frac{8P}{N}, \qquad 4P + \frac{12P}{N}, \qquad \frac{16P}{N}.$$
#
# They hold at one moment, the one between backward and the update of the second step: parameters, gradients and optimizer
# state are all there, and no unit of stage 3 is full. Four ranks, measured by the ledger:


# %% tags=["experiment"]
def held_bytes(group, variant):
    """Bytes by category between backward and the update of a second step."""
    model = build(config)
    with memory_budget("10 GB") as ledger:
        called, step = trainer(group, model, variant)
        for _ in range(2):
            loss_of(called, tokens_of(group.rank)).backward()
            now = ledger.now
            step()
    return [now[name] for name in ("parameters", "gradients", "optimizer")]


held, categories = [], ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
for stage, variant in enumerate(variants[:4]):
    own = launch(held_bytes, variant, ranks=N)[0]
    row = {"stage": stage, "ranks": N, "parameters": P}
    held.append({**row, **dict(zip(categories, own))})

# %% tags=["grade"]
lab.experiment("held", held)

# %% [markdown]
# The folded cell draws the stacks: what the ledger found beside what the formula says.

# %% tags=["picture", "folded"]
from minitrain.lab.drawing.shapes import ink_on

formulas = [[4, 4, 8], [4, 4, 8 / N], [4, 4 / N, 8 / N], [4 / N, 4 / N, 8 / N]]
names = ["DDP", "stage 1", "stage 2", "stage 3"]
with show.canvas() as (figure, axes):
    for stage, (row, theory) in enumerate(zip(held, formulas)):
        measured = [row[name] / P for name in categories]
        for x, parts, hatch in (
            (stage - 0.2, measured, None),
            (stage + 0.2, theory, "//"),
        ):
            base = 0.0
            for part, color in zip(parts, show.COLORS):
                face = color if hatch is None else "white"
                axes.bar(x, part, 0.36, base, color=face, edgecolor=color, hatch=hatch)
                base += part
            axes.text(x, base + 0.2, f"{base:.3g}", ha="center")
    middles = {"parameters": 2, "gradients": 6, "optimizer": 12}
    for (word, y), color in zip(middles.items(), show.COLORS):
        style = {"rotation": 90, "color": ink_on(color)}
        axes.text(-0.2, y, word, ha="center", va="center", **style)
    words = {"ha": "center", "bbox": {"facecolor": "white", "edgecolor": "none"}}
    axes.text(3, 10, "filled: measured\nhatched: formula", **words)
    axes.set_xticks(range(4), names)
    axes.set_ylabel("bytes a rank, for each parameter")
    axes.set_title(f"{N} ranks, float32, {show.count_text(P)} parameters")
show.figure(
    figure,
    alt="Stacked bars of the bytes a rank holds for each parameter: DDP 16, "
    "stage 1 10, stage 2 7, stage 3 4, measured beside formula.",
)

# %% [markdown]
# In mixed precision the sum is the same and its parts are others: 2 + 2 bytes of BF16, and 12 of FP32 for the optimizer,
# master and moments. So stage 1 cuts 12 of the 16, not 8, as the first picture showed: $16P$, $4P + 12P/N$,
# $2P + 14P/N$ and $16P/N$ (the paper's table 1).
#
# **Question**: by these formulas, what is the largest model, in billions of parameters, whose states fit on 8 GPUs of 80 GB
# each, in stages 0 to 3?

# %% tags=["question"]
### BEGIN SOLUTION
bytes_each = [16, 4 + 12 / 8, 2 + 14 / 8, 16 / 8]
largest = [80 / each for each in bytes_each]
### LAB largest = None  # your answer: a list of four numbers, billions
### END SOLUTION

# %% tags=["grade"]
lab.answer("largest", largest)

# %% [markdown]
# **Explain**: 80 GB hold 5 billion parameters of 16 bytes, and 14.5, 21.3 and 40 billion of 5.5, 3.75 and 2 bytes.

# %% [markdown]
# > **On GPUs.** With two or more, `launch` starts one rank a GPU with NCCL. This lab as a whole has not been run there yet.
#
# **Takeaway**: on four ranks, measured, a parameter costs a rank 16 bytes under DDP and 10, 7 and 4 in the three stages. The
# first two send what DDP sends; the third sends 1.5 times as much.
#
# Activations are in none of these sums. They belong to a rank's own rows, and more ranks do not make them smaller:
# [e05](e05_activation_memory.ipynb) recomputes them.

# %%
lab.score(read="minitrain/parallel/zero/stage_3.py")

# %% [markdown]
# Next: [e04 · Mixed precision](e04_mixed_precision.ipynb) halves the bytes of a number. Read also
# [unit.py](../minitrain/parallel/zero/unit.py), your units with mixed precision, and
# [optimizer_offload.py](../minitrain/memory/optimizer_offload.py), where reads and writes overlap the update.
