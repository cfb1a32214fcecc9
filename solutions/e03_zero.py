# %% [markdown]
# # e03 · ZeRO
#
# **Under data parallelism, every rank keeps the same 16 bytes per parameter. You shard them, one kind after the other, and
# offload one of them, until a model that is four times too large for one rank trains on four.**
#
# 120 minutes · CPU is enough · before: [e02 · Data parallel](e02_data_parallel.ipynb) · [map of the course](index.ipynb)
#
# You build ZeRO stages 1, 2 and 3, prefetch, and offload of the optimizer state. By the end you will have made this picture: the
# bytes that a rank holds, stage by stage, beside the formulas.
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
# Let $P$ be the number of parameters and $N$ the number of ranks. In float32, training with AdamW keeps 4 bytes per parameter for
# its value, 4 for its gradient and 8 for two moments. A rank under DDP therefore holds
#
# $$M_\text{DDP} = (4 + 4 + 8)\,P = 16\,P \text{ bytes,}$$
#
# and every other rank holds the same bytes once more. For a model of 7 billion parameters that is 112 GB on each GPU, whether
# there is one or a thousand: data parallelism makes a step faster, but it never makes a model fit.

# %% [markdown]
# These copies are equal (the gradients once they have been averaged), so the group as a whole needs each number only once. ZeRO
# ([Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054)) makes each rank responsible for $1/N$ of them. It does so in three
# stages, sharding one more kind of number in each:

# %%
ideas.zero_stages()

# %% [markdown]
# The bars are the bytes that a rank holds per parameter, computed for the paper's *mixed precision*: a BF16 value (2 bytes) and a
# BF16 gradient (2), an FP32 master copy (4) and two FP32 moments (8). Each stage divides more of them by $N$: stage 1 the three
# kinds that only the optimizer reads, stage 2 the gradient too, stage 3 all five.
#
# You write the stages in float32. There the sum is also 16, but its parts are different: 4 for the value, 4 for the gradient, 8
# for the moments. Section 8 compares these two accounts and a third.

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
# The loss is that of a language model, and each rank draws its own tokens. B is the number of sequences, T their length, V the
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
# Sharding a model parameter by parameter would send many small messages. So the parameters of one module are laid side by side in
# one flat tensor of $S$ elements, a **unit**, and *that* is cut into $N$ equal parts, wherever the cuts fall. If $N$ does not
# divide the number of parameters, zeros fill the end.
#
# [`FlatUnit(module, group)`](../minitrain/parallel/zero/plain_unit.py) is given:
#
# - `full`, (S,): the parameters of the module, side by side;
# - `shard`, (S/N,): this rank's part as an `nn.Parameter`, **a view of `full`**: writing to one writes to the other;
# - `parameters`: a list of the module's own parameters, also views of `full`;
# - `whole_gradient()`: their gradients as a new tensor, (S,), with zeros where a parameter has none.

# %% tags=["nbval-check-output"]
from minitrain.parallel.zero.plain_unit import FlatUnit


def shapes(group):
    unit = FlatUnit(torch.nn.Linear(5, 7), group)
    return tuple(unit.full.shape), tuple(unit.shard.shape)


print("42 elements on 4 ranks, full and shard:", launch(shapes, ranks=4)[0])


# %% [markdown]
# 5 × 7 weights and 7 biases are 42 elements, which four ranks cannot share equally: two zeros make it 44, and 11 each. A model is
# divided into several units, because later only one or two of them will be whole at a time:


# %%
def units_of(model, group, kind=FlatUnit):
    """One unit for the embedding, each block, the last norm and the head."""
    modules = [model.embed, *model.blocks, model.norm, model.head]
    return [kind(module, group) for module in modules]


# %% [markdown]
# ## 2 · Stage 1: the optimizer state
#
# The two moments are half of the 16 bytes, and only the update reads them. The update of an element needs the value, gradient and
# moments of this element, and nothing of its neighbours. So rank $r$ can update the $r$-th shard alone, and then it needs moments
# for this shard alone: $8/N$ bytes per parameter instead of 8.

# %% [markdown]
# What has to be sent? Before the update, rank $r$ needs the gradient *averaged over the ranks*, but only for its shard. That is a
# **reduce-scatter**. After the update, every rank needs all new shards for the next forward. That is an **all-gather**. In each
# of the two, a rank sends $(N-1)/N \cdot S$ elements of a unit, together
#
# $$2\,\frac{N-1}{N}\,S,$$
#
# exactly as many as in DDP's ring all-reduce, which is also a reduce-scatter followed by an all-gather. Stage 1 saves memory and
# sends not one byte more; it only moves the update between the two halves.

# %% [markdown]
# **Predict**: on *two* ranks, in float32, how many bytes per parameter does a rank hold in stage 1? (DDP: 16.)

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
# `unit.group.reduce_scatter(out, whole, op="avg")` fills `out` (S/N,) with this rank's part of the average of all `whole` (S,);
# without `op` it is the sum. Both tensors need the same dtype (the checks use float64 and float32).
# `unit.group.all_gather(full, part)` goes the other way: it fills `full` (S,) with the parts of all ranks.
#
# You have two decisions to make. An optimizer creates state for the parameters it is given: which do you give it? And it reads
# the `.grad` of exactly these: whose gradient do you fill, and whose must be gone when the step is over? The parameters and
# shards must stay views of `full`.


# %% tags=["exercise"]
class Zero1:
    """Whole parameters and gradients, optimizer state of own shards only."""

    def __init__(self, units: list, make):
        """`make(parameters)` returns an optimizer for them. 1 line."""
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
# An optimizer creates state for the parameters it is given, and for nothing else: give it the `shard` of every unit.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `step` has three parts: a loop that reduces every unit, one `self.optimizer.step()`, and a loop that gathers every unit and sets
# `.grad = None`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A shard has no `.grad` yet: give it an empty tensor of its own shape, and reduce-scatter `unit.whole_gradient()` into it. The
# way back starts from `unit.shard.data`.
#
# </details>

# %% [markdown]
# **Run**: two ranks, one step, inside a `memory_budget`: a ledger that knows what each tensor is for and raises `OutOfMemory`
# beyond its limit. We read parameters and gradients before the step, and the optimizer state after it, since AdamW creates it in
# its first step.

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
# **Explain**: 4 bytes for the value and 4 for the gradient stay whole on every rank, and only the 8 of the moments are divided.
# With many ranks the share of the moments vanishes and 8 bytes remain, $8 + 8/N \to 8$: stage 1 alone saves at most one half.

# %% [markdown]
# ## 3 · Stage 2: the gradients
#
# In the update, a rank reads the averaged gradient of its own shard only. Yet when backward is over, the whole gradient is in
# memory: $4P$ bytes that are read once, for a reduce-scatter, and then mostly thrown away.
#
# Backward computes the gradients one unit after the other, from the last to the first. Once those of a unit are complete they can
# be reduced, and all but $1/N$ freed, before the next unit's are computed. The gradients then take at the peak
#
# $$4\,P/N + 8\,S \text{ bytes}$$
#
# instead of $4P$, where $S$ is now the size of the largest unit, the only one whose gradients are whole then: 4 bytes for each
# gradient, and 4 for the flat copy that is sent.

# %% [markdown]
# Finding that moment is given. `unit.when_complete(f)` registers a hook on each of the unit's parameters, which autograd calls
# when the `.grad` of that parameter has been accumulated; with the last of them, it calls `f(unit)`, in the middle of backward.

# %% [markdown]
# ### Exercise 2 · `reduce_unit`
#
# Difficulty 2 · 12 minutes · 10 points
#
# It is called once per backward. With several microbatches that is several times before a step, and their contributions must add
# up, as `.grad` does in one process.
#
# One trap: a slice is a view, and a view keeps the whole storage alive. `whole[:n]` looks like $1/N$, but holds all of `whole`.
# So the part that you keep needs memory of its own.


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
# Reduce-scatter into a new tensor of the shard's shape, `torch.empty_like(unit.shard.data)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Two cases: `unit.shard.grad` is None, or it already holds the sum of earlier microbatches. Afterwards none of `unit.parameters`
# may keep a `.grad`.
#
# </details>

# %% [markdown]
# **Run**: the bytes that the ledger finds for gradients after a backward on four ranks, as a share of DDP's $4P$.


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
# A quarter on each of four ranks, measured. Together with stage 1 that makes $4 + 4/4 + 8/4 = 7$ bytes per parameter, and the 4
# that are still whole are the values.
#
# ## 4 · Stage 3: the parameters
#
# The parameters of a block are read in its own forward and in its own backward, and are idle in between. So a rank keeps its
# shard, *gathers* the unit before it computes, and *frees* it afterwards. Here are three units in the course of a step:

# %%
ideas.unit_lifetimes()

# %% [markdown]
# Read the lower lanes first: they show the memory of each unit. Every unit is gathered twice, for its forward and for its
# backward, and freed in between; unit 3, the last, is gathered again at once. The upper lanes show the price. Each gather is an
# all-gather of $(N-1)/N \cdot S$ elements, and each backward ends with a reduce-scatter of as many. A step sends
#
# $$\underbrace{(1 + 1)}_\text{gathers}\frac{N-1}{N}P + \underbrace{1}_\text{reduce}\cdot\frac{N-1}{N}P =
# 3\,\frac{N-1}{N}\,P \text{ elements,}$$
#
# where DDP has a 2 in place of the 3. No all-gather follows the update, since the next forward gathers anyway.

# %% [markdown]
# How can a tensor be freed that autograd has saved for backward? If the weight of the block were *replaced*, autograd would still
# hold the old one, and its memory with it. So the tensor stays and only its *storage* shrinks, to 0 bytes. Filled again before
# backward, it is still the same tensor, and autograd finds the values where it expects them.
#
# `self.full.untyped_storage().resize_(n)` sets the storage of `full` to $n$ bytes, and its content is lost; `self.full.nbytes` is
# the size it needs in order to be whole.

# %% [markdown]
# ### Exercise 3 · `ShardedUnit`
#
# Difficulty 4 · 20 minutes · 14 points
#
# A unit is in one of three states: *freed*, *arriving* or *there*. Its methods are called in any of them: the gather may have
# been started already, or not, and a unit may be freed that was never used. Three methods in three states make nine cases. Decide
# before you write:
#
# - How do you tell the states apart? (One attribute is enough.)
# - In which states must a method send nothing, and in which must it wait?
# - What goes wrong if the memory shrinks while a message is still writing into it?
#
# `self.group.all_gather(full, part, async_op=True)` returns a handle at once, which torch calls a *work*. `work.wait()` returns
# when the data has arrived, and may be called again.


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
        """Starts to gather all shards into `full`, without waiting. Does
        nothing if `full` is there, or under way."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.parallel.zero.plain:ShardedUnit.start_gather
        ### END SOLUTION

    def gather(self) -> None:
        """Returns when `full` is there, whoever started the gather."""
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
# `self.work` is enough: it is None where `full` is freed. Only then does `start_gather` act, and only `free` sets it to None.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `start_gather`: `full` needs its memory back *before* the all-gather of `self.shard.data` is issued. `gather` need not ask who
# started.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `free` is the one that must be careful: wait if there is a work, whether anybody used the unit or not; only then forget it and
# shrink the storage to 0.
#
# </details>

# %% [markdown]
# ## 5 · Prefetch
#
# A gather that starts when its unit is needed is fully **exposed**: the rank does nothing but wait. With three units, the rank
# then waits for six gathers. In the picture above (move its slider to *on demand* and back) a gather starts one unit *earlier*
# and travels while that unit computes. The rank waits only for the first gather of forward and of backward, which have nothing to
# hide behind, and for the three reduce-scatters, which `reduce_unit` waits for.
#
# The price is memory: while one unit computes, its neighbour is arriving. At most two units are full at a time, if each is freed
# as soon as it has computed. Beside its shards, stage 3 in float32 then holds at most
#
# $$\underbrace{2 \cdot 4\,S}_\text{two units} + \underbrace{8\,S}_\text{gradients of one, and their flat copy} \text{ bytes.}$$

# %% [markdown]
# Who calls your methods, and when? PyTorch lets you register functions, *hooks*, on modules and tensors.
# `unit.watch(before_forward, after_forward, before_backward)` registers three, and `unit.when_complete(after_backward)` the
# fourth; the dotted lines in the picture are those of unit 2.
#
# | method | the hook that calls it |
# |---|---|
# | `before_forward` | the module's forward pre-hook: it is called, and has not computed yet |
# | `after_forward` | the module's forward hook: its output is there |
# | `before_backward` | a hook on that output: *its gradient* has just arrived, and the module's own backward is next |
# | `after_backward` | the hooks on its parameters: the last of their gradients is complete |
#
# In evaluation there is no backward, so the last two are never called.

# %% [markdown]
# ### Exercise 4 · `Zero3`
#
# Difficulty 4 · 20 minutes · 14 points
#
# You have the tools: `gather`, `start_gather`, `free` and `reduce_unit`. Put each where it belongs. For each of the four moments:
# what must be *true* of this unit and of its neighbour when your method returns? What may still be *under way*?
#
# `self.units` are in the order of the forward. Ask which unit comes next in a backward, and what "next" is at either end of the
# list: in Python, `units[-1]` is not "nothing".


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
# Use `gather()` for the unit that computes now, and `start_gather()` for its neighbour.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `place = self.units.index(unit)`; in forward the neighbour is at `place + 1`, if the list goes that far.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In backward the neighbour is on the other side. `after_backward` has two things to shrink: the gradients first, then the
# parameters.
#
# </details>

# %% [markdown]
# **Run** it on four *emulated* nodes with InfiniBand, as in e02: the messages are real, and a logical clock computes how long
# they would take if each parameter stood for 3,600 and each token for 64. There are two variants: your `Zero3`, and the same
# without prefetch.


# %%
class OnDemand(Zero3):
    def before_forward(self, unit):
        unit.gather()

    def before_backward(self, unit):
        unit.gather()


# %% [markdown]
# The next cell, folded, runs forward and backward five times and keeps the shortest pass, as the one least disturbed by other
# processes. It returns the seconds in which the rank did nothing but wait, its start and end, and every message.


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
# **Explain**: on demand, below every gather there is a wait of the same length. Prefetched, the gathers overlap with the
# computation, and in our run the exposed time fell from 1,097 to 496 ms. (Both variants compute the same: their times for it
# differ only by the noise of this machine, scaled up.) Not everything is saved. The first gather of either direction has nothing
# to hide behind. Where a gather lasts longer than the unit before it computes, the rank waits for the rest. And `reduce_unit`
# waits for its reduce-scatters; the package's `Zero3` sends those in the background too.

# %% [markdown]
# ## 6 · Offload
#
# Even divided by $N$, the moments are still $8P/N$ bytes, the largest part of what a rank holds, and they are read *once* per
# step, one unit after the other. They can wait in CPU memory or on a disk ([Ren et al. 2021](https://arxiv.org/abs/2101.06840)),
# and the device then holds those of one unit only, $8S/N$ bytes.
#
# The price is time. Every step reads them and writes them back, at a bandwidth of $b$ bytes per second:
#
# $$t = \frac{2 \cdot 8\,P/N}{b}$$
#
# This time does not depend on the batch. So offload pays off where a step computes for long, as with large batches. It does not
# on a laptop, where the model is small, a step takes milliseconds, and the "device" is the same CPU that offload is meant to
# relieve.

# %% [markdown]
# Given is a *store* with three methods: `write(key, tensors)`; `read(key, into)`, which fills tensors that have memory; and
# `commit()`, which makes everything written since the last commit valid at once. Until then the state of the step before is the
# valid one, so a run that is killed halfway through a step never finds a mixture of two steps. Also given:


# %%
def state_tensors(optimizer):
    """Its state's tensors, in a fixed order; [] before the first step."""
    return [t for state in optimizer.state.values() for t in state.values()]


# %% [markdown]
# ### Exercise 5 · `offloaded_step`
#
# Difficulty 3 · 18 minutes · 10 points
#
# There is one optimizer per unit, so that the units can take turns. In a turn, the state gets memory (`resize_` of each tensor's
# storage, as in exercise 3), is read from the store, used, written back, and freed. Only one unit's state may be in memory at a
# time. Use any key that is unique to the unit, such as `f"unit-{i}"`.
#
# Optimizers create their state when they first need it. What does `state_tensors` return before the first step, what after it,
# and what for a unit that has had no gradient yet? A key that was never written cannot be read, not even for an empty list.
# Writing an empty list is allowed.


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
# Loop over `enumerate(optimizers)`, with everything but the commit inside.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `tensor.untyped_storage().resize_(tensor.nbytes)` before the read, `resize_(0)` after the write.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The first `step()` creates the state: call `state_tensors(optimizer)` again after it, and read only where there were tensors
# before it.
#
# </details>

# %% [markdown]
# ## 7 · Every stage, one step
#
# Now all variants on two *real* ranks of this machine, beside PyTorch's own stage 3, FSDP2 (`fully_shard`). On two cores the
# network *is* the memory bus, and the ranks compete for cores: the bytes mean more than the seconds.
#
# The folded cell builds trainers from your parts: `trainer(group, model, variant)` returns a function to call with tokens and one
# to call after backward. `timed` returns the median time of a step, half its interquartile range, and the bytes that the rank
# sent.

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
# **Explain**: stages 1 and 2 send as much as DDP, yet took 1.5 to 1.6 times as long in our run, probably because DDP hides its
# messages behind backward and yours are waited for; the package's stages hide theirs. Stage 3 sends 1.5 times as much, and took
# only 12 to 18% longer than these two, as its gathers travel while it computes. FSDP2 was made for GPUs: on two CPU ranks and so
# small a model its overhead per unit probably dominates. Only the times were measured, not their causes.
#
# **Question**: how many times DDP's bytes does stage 3 send, in your own table? Compare with the formula of section 4.
#
# (FSDP2 sends through PyTorch's own process group, unseen by our meter. A recorded 0 means: not counted.)

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
# Now a deeper model, where the budget of each rank is $4P$ bytes, **a quarter** of the $16P$ that its states take. Four ranks
# together have exactly as much memory as the states need.
#
# One of the runs will be the package's `Zero3` in mixed precision, whose sum differs from the paper's. Here are the three
# accounts, in bytes per parameter over all ranks:

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
# Both mixed accounts reduce gradients in BF16, 2 bytes instead of 4. The paper keeps a BF16 *shard* of the values beside the FP32
# master, which brings the sum back to $16\,P/N$. The package keeps none: to gather a unit, each rank rounds its part of the
# master to BF16 and sends that. Hence $14\,P/N$. Either way BF16 is gathered, so a gather sends half the bytes of yours.
#
# **Predict**: how many of these five runs fit into $4P$ bytes per rank? One rank; four with DDP; four with your stage 3; the same
# offloaded to disk; four with the package's `Zero3` in mixed precision. (Besides its shards a rank needs room for the units that
# are full, and for activations.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 2
### LAB guess = None  # runs of five, your guess
### END SOLUTION
lab.predict("runs_that_fit", guess)

# %% [markdown]
# The folded cell defines the model, its budget, and `train_within`, which trains it for some steps and returns the loss and the
# bytes at the peak. All ranks see the *same* five tokens, so the average of their gradients is the gradient of one process.

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
# The first run stops in its very first forward, in one of the last blocks: the parameters used so far (each is counted when it is
# first used) and the activations exceed the budget. The ledger reports (in MiB, 1 MiB = 1.049 MB):

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
# **Explain**: DDP on four ranks is the same failure four times. Stage 3 in float32 needs $16P/4 = 4P$ for its shards, which is
# the whole budget, and leaves no room for a unit that is full. Offload takes $8P/4 = 2P$ away. Mixed precision needs
# $14P/4 = 3.5P$ and just fits.
#
# The offloaded run has the loss of one process to all digits shown: it does the same float32 arithmetic, and a store returns
# exactly the bits it was given. Mixed precision does not. It computes in BF16, with 8 bits of precision, and its loss differs in
# the second decimal. That is rounding, not an error in the sharding; [e04](e04_mixed_precision.ipynb) is about the effect of such
# rounding on training.

# %% [markdown]
# **Question**: a 70B model in stage 3 on 64 ranks, with its moments on disks. The disk of each rank reads and writes at 5 GB/s.
# For how many seconds per step does it move state, reading and writing, one after the other? (Section 6 has the formula.)

# %% tags=["question"]
### BEGIN SOLUTION
disk_seconds = 2 * 8 * 70e9 / 64 / 5e9
### LAB disk_seconds = None  # your answer, seconds a step
### END SOLUTION

# %% tags=["grade"]
lab.answer("disk_seconds", disk_seconds)

# %% [markdown]
# Is 3.5 s a lot? Not beside a step of 4 million tokens: $6 \cdot 70\cdot10^9 \cdot 4\cdot10^6$ floating-point operations on 64
# GPUs that reach 400 TFLOP/s each take 66 s (computed), and most of the reading and writing can happen meanwhile. Of a step of 5
# s it would be most.

# %% [markdown]
# ## 9 · The bytes, stage by stage
#
# Now the picture that this lab promised. In float32 the formulas that you have derived are, in bytes per rank,
#
# $$16P, \qquad 8P + \frac{8P}{N}, \qquad 4P + \frac{12P}{N}, \qquad \frac{16P}{N}.$$
#
# They hold at one moment, between backward and the update of the second step: parameters, gradients and optimizer state all
# exist, and no unit of stage 3 is full. Here are four ranks, measured by the ledger:


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
# The folded cell draws the stacks: the bytes that the ledger found, beside the formulas.

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
# In mixed precision the sum is the same but its parts are different: 2 + 2 bytes of BF16, and 12 bytes of FP32 for the optimizer,
# master and moments. So stage 1 divides 12 of the 16, not 8, as the first picture showed: $16P$, $4P + 12P/N$, $2P + 14P/N$ and
# $16P/N$ (the paper's table 1).
#
# **Question**: by these formulas, what is the largest model, in billions of parameters, whose states fit on 8 GPUs of 80 GB each,
# in stages 0 to 3? (Stage 0 is DDP.)

# %% tags=["question"]
### BEGIN SOLUTION
bytes_each = [16, 4 + 12 / 8, 2 + 14 / 8, 16 / 8]
largest = [80 / each for each in bytes_each]
### LAB largest = None  # your answer: a list of four numbers, billions
### END SOLUTION

# %% tags=["grade"]
lab.answer("largest", largest)

# %% [markdown]
# **Explain**: 80 GB hold the states of 5 billion parameters at 16 bytes each, and of 14.5, 21.3 and 40 billion at 5.5, 3.75 and 2
# bytes.

# %% [markdown]
# > **On GPUs.** With two or more, `launch` starts one rank per GPU with NCCL. This lab as a whole has not been run there yet.
#
# **Takeaway**: on four ranks, measured, a parameter costs a rank 16 bytes under DDP and 10, 7 and 4 in the three stages. The
# first two stages send as much as DDP; the third sends 1.5 times as much.
#
# Activations are in none of these sums. They belong to a rank's own sequences, and more ranks do not make them smaller:
# [e05](e05_activation_memory.ipynb) recomputes them.

# %%
lab.score(read="minitrain/parallel/zero/stage_3.py")

# %% [markdown]
# Next: [e04 · Mixed precision](e04_mixed_precision.ipynb) halves the bytes of a number. See also
# [unit.py](../minitrain/parallel/zero/unit.py), your units with mixed precision, and
# [optimizer_offload.py](../minitrain/memory/optimizer_offload.py), where reads and writes overlap the update.
