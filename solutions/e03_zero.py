# %% [markdown]
# # e03 · ZeRO
#
# **Data parallel ranks all keep the same 16 bytes a parameter. You shard them, one kind after the other, until a model
# that is four times too large for a rank trains on four.**
#
# 60 minutes · CPU is enough · before: [e02 · Data parallel](e02_data_parallel.ipynb) · [map of the course](index.ipynb)
#
# You build: ZeRO stages 1, 2 and 3, prefetch, and offload of optimizer state. You end with this picture: the bytes a rank
# holds, stage by stage, beside the formulas.
#
# ![Bytes a rank holds under DDP and ZeRO stages 1, 2 and 3, by category, measured beside the formula: 16 bytes a parameter shrink to 4](../labs/pictures/e03_zero.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, show
from minitrain.ranks.launch import launch

lab = Lab("e03_zero")

# %% [markdown]
# ## 1 · Who holds what
#
# AdamW in float32 needs, for each parameter, 4 bytes for it, 4 for its gradient and 8 for two moments: **16 bytes**.
# DDP keeps them on every rank, N times the same. ZeRO ([Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054)) gives
# each rank 1/N of them to look after.

# %%
from functools import partial
from minitrain.model.config import preset
from minitrain.model.transformer import build

config = preset(lab.size("preset"), layers=lab.size("layers"))
B, T, N = lab.size("batch"), lab.size("length"), lab.size("ranks")
P = sum(p.numel() for p in build(config).parameters())
make = partial(torch.optim.AdamW, lr=1e-3)
print(f"{show.count_text(P)} parameters: {show.bytes_text(16 * P)} on each rank")


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
# [`FlatUnit(module, group)`](../minitrain/parallel/zero/plain_unit.py) is given. It has `full`, (S,): the module's parameters
# side by side, with zeros at the end; `shard`, (S/N,): this rank's part as an `nn.Parameter`, **a view of `full`**;
# `parameters`: a list of the module's own, views too; and `whole_gradient()`: their gradients as a new tensor, (S,), zeros
# where one has none.

# %% tags=["nbval-check-output"]
from minitrain.parallel.zero.plain_unit import FlatUnit


def shapes(group):
    unit = FlatUnit(torch.nn.Linear(5, 7), group)
    return tuple(unit.full.shape), tuple(unit.shard.shape)


print("42 elements on 4 ranks, full and shard:", launch(shapes, ranks=4)[0])


# %%
def units_of(model, group, kind=FlatUnit):
    """One unit for the embedding, each block, the last norm and the head."""
    modules = [model.embed, *model.blocks, model.norm, model.head]
    return [kind(module, group) for module in modules]


# %% [markdown]
# ## 2 · Stage 1: the optimizer state
#
# The two moments are half of the 16 bytes, and only the update reads them: let each rank update **its shard only**.
#
# A rank then needs the averaged gradient of its shard only: a *reduce-scatter*. The new shards go to all: an *all-gather*.
# Together they are the two halves of DDP's all-reduce.

# %% [markdown]
# **Predict**: on four ranks, how many bytes does a rank hold in stage 1, for each parameter? (DDP: 16.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 8 + 8 / 4
### LAB guess = None  # bytes a parameter, your guess
### END SOLUTION
lab.predict("bytes_a_parameter", guess)

# %% [markdown]
# ### Exercise 1 · `Zero1`
#
# Difficulty 3 of 5 · 12 minutes · 12 points
#
# `unit.group.reduce_scatter(out, whole, op="avg")` fills `out` (S/N,) with this rank's part of the average of all `whole`
# (S,), both of one dtype (the checks use float64 and float32); without `op` it is the sum. `unit.group.all_gather(full,
# part)` is the way back. The optimizer reads `unit.shard.grad`. Parameters and shards stay views of `full`.


# %% tags=["exercise"]
class Zero1:
    """Parameters and gradients on every rank, optimizer state of the own shards only."""

    def __init__(self, units: list, make):
        """`make(parameters)` gives an optimizer of these parameters. 1 line."""
        self.units = units
        ### BEGIN SOLUTION
        self.optimizer = make([unit.shard for unit in units])
        ### END SOLUTION

    def step(self) -> None:
        """Average into each `unit.shard.grad`, update, gather each `unit.full`; then no
        gradient is left, neither a parameter's nor a shard's. About 8 lines."""
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
# **Run**: four ranks, one step, inside a `memory_budget`: a ledger that knows what each tensor is for, and that raises
# `OutOfMemory` beyond its limit.

# %%
from minitrain.measure.budget import memory_budget


def one_step(group):
    model = build(config)
    with memory_budget("1 GB") as ledger:
        zero = Zero1(units_of(model, group), make)
        loss_of(model, tokens_of(group.rank)).backward()
        before = ledger.now  # parameters and gradients; AdamW makes its state in step()
        zero.step()
    return before["parameters"] + before["gradients"] + ledger.now["optimizer"]


# %%
lab.reveal(
    "bytes_a_parameter",
    launch(one_step, ranks=4)[0] / P,
    formula=8 + 8 / 4,
    note="8 + 8/N, all in float32",
)

# %% [markdown]
# ## 3 · Stage 2: the gradients
#
# A rank needs the average of its own shard only, yet after backward all gradients lie there. So reduce each unit **as soon
# as backward has made its gradients**, keep 1/N, free the rest before the next unit's come.
#
# `unit.when_complete(f)` calls `f(unit)` at that moment.

# %% [markdown]
# ### Exercise 2 · `reduce_unit`
#
# Difficulty 2 · 8 minutes · 10 points
#
# With several microbatches it is called once for each: their parts add up in `shard.grad`. Beware of slices: `whole[:n]`
# keeps all of `whole` alive.


# %% tags=["exercise"]
def reduce_unit(unit) -> None:
    """Adds this rank's part (S/N,) of the averaged gradient to `unit.shard.grad` (None at
    first), by one reduce-scatter; no parameter of the unit keeps a gradient, and none
    changes. About 6 lines."""
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
# **Run**: after backward, gradients take P/N elements, not P.


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
# ## 4 · Stage 3: the parameters
#
# A block's parameters are idle outside its own forward and backward. So keep 1/N; gather a unit **before** it computes,
# free it **after**.
#
# To free means to shrink the *storage*: the tensor itself lives on, for autograd has saved it. Filled again, it is there
# again.

# %% [markdown]
# ### Exercise 3 · `ShardedUnit`
#
# Difficulty 4 · 15 minutes · 14 points
#
# `self.full.untyped_storage().resize_(n)` gives `full` n bytes; `self.full.nbytes` is what it needs, 0 frees it.
# `self.group.all_gather(…, async_op=True)` returns a work at once; `work.wait()` may be called twice.


# %% tags=["exercise"]
class ShardedUnit(FlatUnit):
    """A unit whose `full` has memory only between gather() and free()."""

    def __init__(self, module, group):
        super().__init__(module, group)
        self.shard = torch.nn.Parameter(self.shard.data.clone())  # no view any more
        self.work = None  # the gather under way, or over; None: `full` is freed
        self.free()

    def start_gather(self) -> None:
        """All shards are on their way into `full`; it does not wait. Does nothing where
        `full` is there, or under way. 3 lines."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.parallel.zero.plain:ShardedUnit.start_gather
        ### END SOLUTION

    def gather(self) -> None:
        """`full` is there: waits for it, whoever began. 2 lines."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.parallel.zero.plain:ShardedUnit.gather
        ### END SOLUTION

    def free(self) -> None:
        """`full` has 0 bytes; nothing is still arriving in it. It sends nothing, freed
        already or not. 4 lines."""
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
# A gather that begins when the unit is needed is all *exposed*. Begin it one unit earlier:
#
# ```
# compute  |- forward 0 -|- forward 1 -| … |- backward 1 -|- backward 0 -|
# network  |- gather 1 --|- gather 2 --|   |- gather 0 ---|- reduce 1 …
# ```
#
# Two units are full at a time: this one and the next. So in every forward and backward, and in evaluation.

# %% [markdown]
# ### Exercise 4 · `Zero3`
#
# Difficulty 4 · 15 minutes · 14 points
#
# `watch` and `when_complete` call your four methods at the right moments. `self.units` are in forward order; backward goes
# the other way. The first and the last have one neighbour only, and `units[-1]` is not "nothing".


# %% tags=["exercise"]
class Zero3:
    """Gathers, prefetches, frees and reduces the units of a model while it runs."""

    def __init__(self, units: list):
        self.units = units
        for unit in units:
            unit.watch(self.before_forward, self.after_forward, self.before_backward)
            unit.when_complete(self.after_backward)

    def before_forward(self, unit) -> None:
        """`unit` is there, the next one is on its way. 4 lines."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.parallel.zero.plain:Zero3.before_forward
        ### END SOLUTION

    def after_forward(self, unit) -> None:
        """`unit` has 0 bytes until its backward. 1 line."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.parallel.zero.plain:Zero3.after_forward
        ### END SOLUTION

    def before_backward(self, unit) -> None:
        """`unit` is there, the one before it is on its way. 4 lines."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.parallel.zero.plain:Zero3.before_backward
        ### END SOLUTION

    def after_backward(self, unit) -> None:
        """Only 1/N is left, of its gradients and of its parameters. 2 lines."""
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
# **Run** it on four *emulated* nodes with InfiniBand, as in e02: each parameter stands for thousands. `OnDemand` is the same
# without prefetch.


# %%
class OnDemand(Zero3):
    def before_forward(self, unit):
        unit.gather()

    def before_backward(self, unit):
        unit.gather()


# %%
def forward_backward(group, wiring, repeats=3):
    """(exposed seconds, when it began, its messages) of the least disturbed pass."""
    model, trace, runs = build(config), group.trace, []
    wiring(units_of(model, group, ShardedUnit))
    for _ in range(repeats):
        group.barrier()
        trace.ops.clear()
        begin = group.now()
        loss_of(model, tokens_of(group.rank)).backward()
        runs.append((trace.exposed_seconds(), begin, list(trace.ops)))
    return min(runs, key=lambda run: run[0])


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
def spans_of(name, exposed, begin, ops):
    """(lane, start, end, label) in ms of the messages, and of waiting for them."""
    spans = []
    for op in ops:
        spans.append((f"{name}: network", op.issued, op.end, op.kind))
        if op.done > op.waited:
            spans.append((f"{name}: compute", op.waited, op.done, "waits"))
    return [(n, 1e3 * (a - begin), 1e3 * (b - begin), word) for n, a, b, word in spans]


# %%
spans = sum((spans_of(name, *run) for name, run in passes.items()), [])
show.timeline(
    spans,
    title="Forward and backward on 4 emulated nodes",
    alt="Messages and waiting, on demand and prefetched: prefetched, the rank waits less.",
)

# %% [markdown]
# **Explain**: prefetched gathers travel while the rank computes. The reduce-scatters of your `reduce_unit` are still waited
# for; the package's `Zero3` sends those in the background too.
#
# ## 6 · Offload
#
# The moments are needed once a step, one unit after the other. They can wait in CPU memory or on disk
# ([Ren et al. 2021](https://arxiv.org/abs/2101.06840)).

# %% [markdown]
# Given: a *store* has `write(key, tensors)`, `read(key, into)`, which fills tensors that have memory, and `commit()`, which
# makes all that was written since the last one valid at once. And:


# %%
def state_tensors(optimizer):
    """Every tensor of its state, in a fixed order; [] before the first step."""
    return [t for state in optimizer.state.values() for t in state.values()]


# %% [markdown]
# ### Exercise 5 · `offloaded_step`
#
# Difficulty 3 · 10 minutes · 10 points
#
# One optimizer a unit. For each: give its state memory (`resize_(t.nbytes)` of each storage, as in exercise 3), read it,
# step, write it, free it: one unit's state in memory at a time. Take any key that is a unit's own, such as `f"unit-{i}"`.
# Before the first step, or the first gradient, there is no state, and nothing to read.


# %% tags=["exercise"]
def offloaded_step(optimizers: list, store) -> None:
    """Steps each optimizer; outside its own turn its state has no memory. Commits at the
    end. About 11 lines."""
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
# All on two real ranks of this machine, beside PyTorch's FSDP2 (`fully_shard`), its stage 3. On two cores the network *is*
# the memory bus: bytes say more than seconds.

# %% tags=["experiment"]
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
    """Seconds of a step (median, half the range of the middle ones), and its bytes."""
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


variants, steps = ["DDP", "stage 1", "stage 2", "stage 3", "FSDP2"], []
for variant in variants:
    seconds, spread, sent = launch(timed, variant, lab.size("repeats"), ranks=2)[0]
    row = {"variant": variant, "ranks": 2, "parameters": P, "step_seconds": seconds}
    row["spread_seconds"] = spread
    steps.append({**row, "sent_bytes": sent})  # 0: FSDP2 does not send through `group`

# %% tags=["grade"]
lab.experiment("steps", steps)

# %%
show.bars(
    variants,
    [1e3 * row["step_seconds"] for row in steps],
    errors=[1e3 * row["spread_seconds"] for row in steps],
    y="step (ms)",
    title=f"A step on 2 ranks, {lab.device_name}",
    alt="Milliseconds of a step under DDP, ZeRO stages 1, 2, 3 and FSDP2, on two ranks.",
)

# %% [markdown]
# **Explain**: stages 1 and 2 send what DDP sends, and yet take longer: DDP hides its messages behind backward, yours are
# waited for. The package's stages hide theirs.
#
# **Question**: stage 3 gathers twice and reduces once. How many times DDP's bytes does it send, in your own table?

# %% tags=["question"]
### BEGIN SOLUTION
volume = steps[3]["sent_bytes"] / steps[0]["sent_bytes"]
### LAB volume = None  # your answer, 1 where both send as much
### END SOLUTION
show.table(steps)

# %% tags=["grade"]
lab.answer("volume", volume)

# %% [markdown]
# ## 8 · A model that does not fit
#
# A deeper model; each rank's budget is **4 P bytes, a quarter of the states' 16 P**.
#
# **Predict**: how many of five runs get through? One rank; four with DDP; four with your stage 3; the same offloaded to
# disk; four with the package's `Zero3` in mixed precision (14 P/N).

# %% tags=["question"]
### BEGIN SOLUTION
guess = 2
### LAB guess = None  # runs of five, your guess
### END SOLUTION
lab.predict("runs_that_fit", guess)

# %% tags=["experiment"]
import tempfile

from minitrain.ranks.errors import RankError
from minitrain.parallel.zero.stage_3 import Zero3 as MixedZero3
from minitrain.parallel.zero.optimizer import ZeroOptimizer
from minitrain.memory.stores import DiskStore

deep = preset(lab.size("preset"), layers=lab.size("deep"))
size = sum(p.numel() for p in build(deep, device="meta").parameters())
budget, few = 4 * size, tokens_of(0)[:1, :5]


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


lab_steps, folder, fits, tables = lab.size("steps"), tempfile.mkdtemp(), [], {}
free_loss, needed = launch(train_within, "DDP", "10 GB", ranks=1)[0]
plan = {
    "1 rank": (1, "DDP", None),
    "4 ranks, DDP": (4, "DDP", None),
    "4 ranks, stage 3": (4, "stage 3", None),
    "4 ranks, stage 3, offloaded": (4, "stage 3", folder),
    "4 ranks, package, mixed": (4, "mixed", None),
}
for run, (ranks, variant, place) in plan.items():
    row = {"run": run, "ranks": ranks, "parameters": size, "budget_bytes": budget}
    try:
        loss, peak = launch(train_within, variant, budget, place, ranks=ranks)[0]
    except RankError as error:
        tables[run] = str(error)
        loss, peak = 0.0, 0
    fits.append(
        {**row, "fits": peak > 0, "peak_bytes": peak, "loss": loss, "loss_without_budget": free_loss}
    )  # fmt: skip

# %% tags=["grade"]
lab.experiment("fits", fits)

# %%
text = tables["1 rank"]
print(text[text.index("out of memory") :].split("most are")[0])

# %%
lab.reveal("runs_that_fit", sum(row["fits"] for row in fits))


def outcome(row):
    return f"{row['peak_bytes'] / 1e6:.1f} MB" if row["fits"] else "out of memory"


show.table(
    [
        {"run": r["run"], "at the peak": outcome(r), "loss": r["loss"] or "-"}
        for r in fits
    ],
    caption=f"{show.count_text(size)} parameters, budget {budget / 1e6:.1f} MB a rank",
)

# %% [markdown]
# **Explain**: DDP on four ranks fails four times. Stage 3 in float32 needs 16 P/4, the whole budget: no room for the units
# that are full. Offload takes 8 P/4 away; mixed precision keeps gradients in 2 bytes. Both train to the loss of one
# process without a budget.

# %% [markdown]
# **Question**: a 70B model in stage 3 on 64 ranks, its moments on disks. Each rank's disk reads and writes at 5 GB/s. How
# many seconds a step does it move state, both ways, one after the other?

# %% tags=["question"]
### BEGIN SOLUTION
disk_seconds = 2 * 8 * 70e9 / 64 / 5e9
### LAB disk_seconds = None  # your answer, seconds a step
### END SOLUTION

# %% tags=["grade"]
lab.answer("disk_seconds", disk_seconds)

# %% [markdown]
# ## 9 · The bytes, stage by stage
#
# The moment between backward and the update, in the second step: parameters, gradients and optimizer state are all there.
# Four ranks, everything in float32.


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

# %% tags=["picture"]
formulas = [[4, 4, 8], [4, 4, 8 / N], [4, 4 / N, 8 / N], [4 / N, 4 / N, 8 / N]]
names = [
    "DDP\n16 P",
    "stage 1\n8 P + 8 P/N",
    "stage 2\n4 P + 12 P/N",
    "stage 3\n16 P/N",
]
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
    for word, y in (("parameters", 2), ("gradients", 6), ("optimizer", 12)):
        axes.text(-0.2, y, word, rotation=90, color="white", ha="center", va="center")
    axes.text(3, 10, "filled: measured\nhatched: formula", ha="center")
    axes.set_xticks(range(4), names)
    axes.set_ylabel("bytes a rank, for each parameter")
    axes.set_title(f"{N} ranks, float32, {show.count_text(P)} parameters")
show.figure(
    figure,
    alt="Stacked bars of the bytes a rank holds for each parameter: DDP 16, stage 1 10, stage 2 7, stage 3 4, measured beside formula.",
)

# %% [markdown]
# In mixed precision (2 + 2 bytes of bfloat16, 12 of float32 master weights and moments) the paper's table 1 has 16 P,
# 4 P + 12 P/N, 2 P + 14 P/N and 16 P/N.
#
# **Question**: the largest model, in billions of parameters, whose states fit on 8 GPUs of 80e9 bytes each, in stages 0
# to 3?

# %% tags=["question"]
### BEGIN SOLUTION
bytes_each = [16, 4 + 12 / 8, 2 + 14 / 8, 16 / 8]
largest = [80 / each for each in bytes_each]
### LAB largest = None  # your answer: a list of four numbers, billions
### END SOLUTION

# %% tags=["grade"]
lab.answer("largest", largest)

# %% [markdown]
# > **On GPUs.** With two or more, `launch` uses NCCL, and all of this runs as it is. The budget is then the card's own.
#
# Activations are not in these sums. They do not shrink with N; [e05](e05_activation_memory.ipynb) recomputes them.

# %%
lab.score(read="minitrain/parallel/zero/stage_3.py")

# %% [markdown]
# Next: [e04 · Mixed precision](e04_mixed_precision.ipynb) halves the bytes of a number. Read also [unit.py](../minitrain/parallel/zero/unit.py), your units with mixed
# precision, and [optimizer_offload.py](../minitrain/memory/optimizer_offload.py), where reads and writes overlap the update.
