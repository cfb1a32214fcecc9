# %% [markdown]
# # e05 · Activation memory
#
# **Backward needs what forward computed. You forget it and compute it again, choose what to keep, cut a chain of layers for
# any byte budget, and write the attention that never holds an L x L tensor: its memory falls from L² to L.**
#
# 75 minutes · CPU is enough · before: [e01 · Baseline](e01_baseline.ipynb) · [map of the course](index.ipynb)
#
# You build: checkpointing with replayed random numbers, a selective policy, the best placement for a budget, and tiled
# attention with its backward. You end with this picture.
#
# ![Peak bytes of attention against length from 128 to 2048: the naive curve grows fourfold with each doubling, the tiled one twofold](../labs/pictures/e05_activation_memory.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, show

lab = Lab("e05_activation_memory")

# %% [markdown]
# ## 1 · Forget, and compute again
#
# A matmul's backward needs its input, a softmax's its output. So autograd keeps nearly every tensor of the forward: the
# *activations*. Their bytes grow with batch, length and depth, and soon outweigh the weights.

# %%
from minitrain.measure.memory import MemoryLedger
from minitrain.model.config import preset
from minitrain.model.transformer import build

B, T = lab.size("batch"), lab.size("length")
config = preset(lab.size("preset"), layers=lab.size("layers"))
tokens = torch.randint(config.vocab_size, (B, T + 1))


def loss_of(model, tokens):
    logits = model(tokens[:, :-1]).float().flatten(0, 1)  # (B·T, V)
    return torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())


# %% [markdown]
# **Predict**: a block of this model takes a vector of D = 128 numbers for each token: 512 bytes in float32. How many bytes
# does it save for backward, for each token? Attention is fused and has 4 query and 2 key/value heads of 32; the MLP is 448
# wide.

# %% tags=["question"]
### BEGIN SOLUTION
guess = 4 * (4 * 128 + 2 * 128 + 2 * 64 + 4 * 448)
### LAB guess = None  # bytes a token and block, your guess
### END SOLUTION
lab.predict("block_bytes", guess, unit="B")


# %%
def saved_bytes(model, tokens):
    """What is held for backward when forward and loss are done."""
    with MemoryLedger(model) as ledger:
        _graph = loss_of(model, tokens)  # alive while we look
        return ledger.now["activations"]


one, two = (build(preset(lab.size("preset"), layers=n)) for n in (1, 2))
block_bytes = (saved_bytes(two, tokens) - saved_bytes(one, tokens)) / (B * T)
lab.reveal("block_bytes", block_bytes, note="two layers' bytes less one layer's")

# %% [markdown]
# **Explain**: most people guess too low. Each of the block's steps keeps its own input, output or both. Section 2 takes
# this number apart.
#
# *Checkpointing* keeps a function's **inputs** only. When backward comes by, it runs the function once more, and then its
# backward ([Chen et al. 2016](https://arxiv.org/abs/1604.06174)).

# %% [markdown]
# ### Exercise 1 · `Checkpoint`
#
# Difficulty 4 of 5 · 15 minutes · 14 points
#
# Inside `forward` autograd records nothing: return the result, hold the inputs by `ctx.save_for_backward`. `backward`
# detaches them, repeats the function with recording, and runs *its* backward.
#
# Dropout must drop the same elements again: forward draws as the function does; backward replays the generator's state,
# and leaves it afterwards as it found it. Several functions may wait for their backward at once, and a ready-made checkpoint
# (`torch.utils.checkpoint`) is not the exercise.


# %% tags=["exercise"]
class Checkpoint(torch.autograd.Function):
    """`Checkpoint.apply(function, *inputs)` gives `function(*inputs)`, one tensor, and
    keeps the inputs only: tensors, left as they were; integers and masks among them
    have no gradient. About 9 lines of yours."""

    @staticmethod
    def forward(ctx, function, *inputs):
        ### BEGIN SOLUTION
        ctx.function, ctx.generator = function, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return function(*inputs)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        """One gradient for each input of forward: None for the function itself."""
        ### BEGIN SOLUTION
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.generator)
            out = ctx.function(*inputs)
        torch.autograd.backward(out, gradient)
        return None, *(x.grad for x in inputs)
        ### END SOLUTION


# %% tags=["grade"]
Checkpoint = lab.grade(Checkpoint)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `ctx` is a notebook for backward: `ctx.function = function`. Tensors go through `ctx.save_for_backward(*inputs)` and come
# back as `ctx.saved_tensors`. `torch.get_rng_state()` says where the generator stands.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x.detach().requires_grad_(x.requires_grad)` makes a fresh leaf: after `torch.autograd.backward(out, gradient)` its
# gradient is `x.grad`, and the parameters inside the function have theirs too.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `with torch.random.fork_rng(devices=[]), torch.enable_grad():` around `torch.set_rng_state(…)` and the repetition: at its
# end the generator is back. Return `None, *(x.grad for x in inputs)`.
#
# </details>


# %% tags=["nbval-check-output"]
def stack_of_checkpoints(blocks, x, turns, mask):
    """Every block of the model in a `Checkpoint`."""
    for block in blocks:
        x = Checkpoint.apply(lambda x, block=block: block(x, turns, mask), x)
    return x


plain, forgetful = build(config), build(config)
forgetful.stack = stack_of_checkpoints
for model in (plain, forgetful):
    loss_of(model, tokens).backward()
pairs = zip(plain.parameters(), forgetful.parameters())
print("all gradients bit-equal:", all(torch.equal(p.grad, q.grad) for p, q in pairs))
for name, each in [("plain", plain), ("yours", forgetful)]:
    print(f"{name}: {show.bytes_text(saved_bytes(each, tokens))} saved for backward")

# %% [markdown]
# > **Note.** From here on the package's `checkpoint` runs your choices. It replaces the saved tensors only, as PyTorch's
# > non-reentrant one does: hooks then run once, and inputs may be anything.
#
# ## 2 · Keep what is dear
#
# What does each operation of a block cost per byte of its result? With fused attention, and written out (`bmm`):

# %% tags=["experiment"]
from minitrain.measure.flops import counted_flops
from minitrain.model.attention.grouped_query import attention, attention_naive
from minitrain.model.transformer import exchange_attention
from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Counts each operation's calls, the bytes that it makes, and its FLOPs."""

    def __init__(self):
        super().__init__()
        self.rows = {}

    def __torch_dispatch__(self, op, types, args=(), options=None):
        out = []
        flops = counted_flops(lambda: out.append(op(*args, **(options or {}))))
        made = out[0][0] if isinstance(out[0], tuple) else out[0]
        if isinstance(made, torch.Tensor) and "view" not in str(op) and not op.is_view:
            empty = {"operation": op.overloadpacket.__name__, "calls": 0, "bytes": 0}
            row = self.rows.setdefault(op, {**empty, "FLOPs": 0})
            row["calls"] += 1
            row["bytes"] += made.nbytes
            row["FLOPs"] += flops
        return out[0]


def operations_of(kernel):
    """The operations of one block's forward, most FLOPs a byte first."""
    model = exchange_attention(build(config), kernel, lambda x, *_: None)
    x = model.embed(tokens[:, :-1])
    turns, mask = model.surroundings(x)
    with Operations() as operations:
        model.blocks[0](x, turns, mask)
    rows = [
        {**r, "FLOPs/byte": r["FLOPs"] / r["bytes"]} for r in operations.rows.values()
    ]
    return sorted(rows, key=lambda row: -row["FLOPs/byte"])


for name, kernel in [("fused", attention), ("written out", attention_naive)]:
    rows = operations_of(kernel)
    show.table(
        [row for row in rows if row["FLOPs"]]
        + sorted((row for row in rows if not row["FLOPs"]), key=lambda r: -r["bytes"])[
            :4
        ],
        caption=f"Attention {name}: what is dear to compute, then what is only large",
        formats={"bytes": show.bytes_text, "FLOPs": show.count_text},
    )

# %% [markdown]
# **Explain**: element-wise steps hold half of the bytes and cost next to nothing: repeat them. Products with weights are
# dear: keep them. `bmm`, the T x T scores, makes the most bytes for its FLOPs: repeat it. The fused kernel never makes them:
# keep its result ([Korthikanti et al. 2022](https://arxiv.org/abs/2205.05198)).

# %% [markdown]
# ### Exercise 2 · `keep`
#
# Difficulty 2 · 5 minutes · 8 points
#
# A *policy*: asked for each operation, such as `torch.ops.aten.mm.default`, whether its result is kept. `op.overloadpacket.__name__`
# is `"mm"`. The fused kernel's name begins with `_scaled_dot_product_`; what follows depends on the machine.


# %% tags=["exercise"]
def keep(op: torch._ops.OpOverload) -> bool:
    """Whether to keep an operation's result: products with weights (mm, addmm) and
    fused attention, of any machine; no other product (bmm), nor anything cheap. About
    2 lines."""
    ### BEGIN SOLUTION
    name = op.overloadpacket.__name__
    return name in ("mm", "addmm") or name.startswith("_scaled_dot_product_")
    ### END SOLUTION


# %% tags=["grade"]
keep = lab.grade(keep)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `op.overloadpacket.__name__` is a string. Compare it with the names you want, whole: `"mm"` is also a part of `"bmm"`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `name in ("mm", "addmm")`: a linear layer without and with a bias.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `return name in ("mm", "addmm") or name.startswith("_scaled_dot_product_")`
#
# </details>

# %% [markdown]
# **Experiment**: bytes saved a token and block, against the formula. Widths: D of the stream, HC and KC of queries and
# keys, F of the MLP.
#
# | | none | selective | full |
# |---|---|---|---|
# | norms | 4 D | 2 D | D |
# | attention | 2 HC + 2 KC | the same | 0 |
# | MLP | 4 F | 2 F | 0 |
# | float32 | H + 2 | H | 0 |

# %% tags=["experiment"]
from minitrain.measure.predicted_memory import block_bytes_per_token
from minitrain.memory.segments import recompute

saved = []
for dtype in (torch.float32, torch.bfloat16):
    for batch, length in lab.size("shapes"):
        text = torch.randint(config.vocab_size, (batch, length + 1))
        for how in ("none", "selective", "full"):
            total = {}
            for layers in (1, 2):
                model = build(preset(lab.size("preset"), layers=layers), dtype=dtype)
                total[layers] = saved_bytes(recompute(model, how, policy=keep), text)
            saved.append({
                "recompute": how, "dtype": str(dtype).removeprefix("torch."),
                "batch": batch, "length": length,
                "block_bytes": (total[2] - total[1]) / (batch * length),
                "formula_bytes": block_bytes_per_token(config, dtype, how),
            })  # fmt: skip

# %% tags=["grade"]
lab.experiment("saved", saved)

# %%
first = {row["recompute"]: row for row in reversed(saved) if row["dtype"] == "float32"}
ways = ["none", "selective", "full"]
show.bars(
    ways,
    [first[way]["block_bytes"] for way in ways],
    theory=[first[way]["formula_bytes"] for way in ways],
    y="bytes a token and block",
    title="Saved for backward, float32 (counted: any machine)",
    alt="Bytes saved a token and block: 10,776 with none, 6,160 selective, 512 full.",
    form="{:,.0f}",
)

# %% [markdown]
# **Takeaway**: selective repeats no matmul and saves over 40% of the bytes; full keeps 1/21. Korthikanti's `sbh (34 + 5as/h)`
# is this sum for GPT; fused attention drops `5as/h`.
#
# ## 3 · Where to cut
#
# A repeated *segment* of several layers holds one input, and for a moment all its layers save.

# %%
from typing import NamedTuple

from minitrain.memory.placement import Layer


class Segment(NamedTuple):
    """Layers start … stop - 1: "none" keeps all they save, "full" an input."""

    start: int
    stop: int
    mode: str  # "none" or "full"


print(Layer(input_bytes=1, saved_bytes=21, cost=1))

# %% [markdown]
# ### Exercise 3 · `plan_peak`
#
# Difficulty 2 · 6 minutes · 8 points
#
# Walk the segments. At a segment's own backward the ones behind it are gone, and *all* that its layers save is there, on
# top of what the ones before it hold. In the forward it leaves its first input ("full") or everything ("none").


# %% tags=["exercise"]
def plan_peak(plan: list[Segment], layers: list) -> float:
    """The most bytes held at once; a plan has one segment or more. Each layer has its own
    `input_bytes`, and `saved_bytes` (the input included). About 8 lines."""
    ### BEGIN SOLUTION
    held = peak = 0
    for start, stop, mode in plan:
        inside = layers[start:stop]
        everything = sum(layer.saved_bytes for layer in inside)
        peak = max(peak, held + everything)
        held += inside[0].input_bytes if mode == "full" else everything
    return peak
    ### END SOLUTION


# %% tags=["grade"]
plan_peak = lab.grade(plan_peak)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `layers[segment.start : segment.stop]` are a segment's layers; the sum of their `saved_bytes` is what it has at its own
# backward.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `peak = max(peak, held + everything)` first, then let `held` grow by what the segment leaves behind.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `held += inside[0].input_bytes if segment.mode == "full" else everything`: one input a segment, not one a layer.
#
# </details>

# %% [markdown]
# **Predict**: 36 linear layers, each of which saves its input only. In segments of how many layers is the peak lowest?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 6
### LAB guess = None  # layers a segment, your guess
### END SOLUTION
lab.predict("segment_length", guess)

# %% tags=["experiment"]
depth, width, rows = 36, 64, 256
chain = torch.nn.Sequential(
    *(torch.nn.Linear(width, width, bias=False) for _ in range(depth))
)
layer = Layer(input_bytes=4 * rows * width, saved_bytes=4 * rows * width, cost=1)


def cut(layers, length):
    """Segments of `length` layers, all repeated."""
    starts = range(0, layers, length)
    return [Segment(i, min(i + length, layers), "full") for i in starts]


segments = []
for length in (1, 2, 3, 4, 6, 9, 12, 18, 36):
    x = torch.randn(rows, width, requires_grad=True)
    with MemoryLedger(chain) as ledger:
        h = x
        for start, stop, _ in cut(depth, length):
            h = Checkpoint.apply(chain[start:stop], h)
        h.sum().backward()
    predicted = plan_peak(cut(depth, length), [layer] * depth)
    segments.append({
        "layers": depth, "length": length, "input_bytes": layer.input_bytes,
        "peak_bytes": ledger.highest["activations"], "predicted_bytes": predicted,
    })  # fmt: skip

# %% tags=["grade"]
lab.experiment("segments", segments)

# %%
length = [row["length"] for row in segments]
show.lines(
    {"measured": (length, [r["peak_bytes"] / 1e6 for r in segments])},
    theory={"your plan_peak": (length, [r["predicted_bytes"] / 1e6 for r in segments])},
    x="layers a segment",
    y="peak of activations (MB)",
    title="36 layers that save their input only: √36 is best",
    alt="Peak of activations against segment length: a valley at six layers of 36.",
)
best = min(segments, key=lambda row: row["peak_bytes"])["length"]
lab.reveal(
    "segment_length", best, formula=6, note="√L, where a layer saves only its input"
)

# %% [markdown]
# **Explain**: L/k inputs plus k layers are least at k = √L. A Transformer block saves A = 21 times its input I: then it is
# √(L·I/A).
#
# **Question**: Llama 3 405B has 126 blocks. With the bytes of your float32 rows "full" (its input) and "none" in `saved`: in
# segments of how many is the peak lowest?

# %% tags=["question"]
### BEGIN SOLUTION
bytes_of = {r["recompute"]: r["block_bytes"] for r in saved if r["dtype"] == "float32"}
block = Layer(input_bytes=bytes_of["full"], saved_bytes=bytes_of["none"], cost=1)
peaks = {k: plan_peak(cut(126, k), [block] * 126) for k in range(1, 127)}
blocks_a_segment = min(peaks, key=peaks.get)
### LAB blocks_a_segment = None  # your answer, a whole number
### END SOLUTION

# %% tags=["grade"]
lab.answer("blocks_a_segment", blocks_a_segment)

# %% [markdown]
# ### Exercise 4 · `optimal_plan`
#
# Difficulty 5 · 15 minutes · 10 points
#
# Repeat as little as a budget allows. `best[i]` has partial plans of the first i layers, as `(cost, held, plan)`. Extend
# each by every next segment whose backward fits: repeated ones of any length, kept ones of one layer. Go on from
# `unbeaten(best[i])` only: all partial plans of 24 layers are too many.


# %% tags=["exercise"]
def unbeaten(partials: list[tuple]) -> list[tuple]:
    """Given: the cheapest first, each of which holds less than all before it."""
    kept = []
    for cost, held, plan in sorted(partials, key=lambda partial: partial[:2]):
        if not kept or held < kept[-1][1]:
            kept.append((cost, held, plan))
    return kept


def optimal_plan(layers: list, budget_bytes: float) -> list[Segment]:
    """The plan whose repeated layers' `cost` is least, of those that fit (of several,
    any); ValueError if none does. About 15 lines."""
    ### BEGIN SOLUTION
    best = [[(0, 0, [])], *([] for _ in layers)]
    for start in range(len(layers)):
        for cost, held, plan in unbeaten(best[start]):
            everything = again = 0
            for stop in range(start + 1, len(layers) + 1):
                everything += layers[stop - 1].saved_bytes
                again += layers[stop - 1].cost
                if held + everything > budget_bytes:
                    break
                left = held + layers[start].input_bytes
                longer = [*plan, Segment(start, stop, "full")]
                best[stop].append((cost + again, left, longer))
                if stop == start + 1:
                    kept = [*plan, Segment(start, stop, "none")]
                    best[stop].append((cost, held + everything, kept))
    if not best[-1]:
        raise ValueError(f"no plan fits {budget_bytes} bytes: give more")
    return unbeaten(best[-1])[0][2]
    ### END SOLUTION


# %% tags=["grade"]
optimal_plan = lab.grade(optimal_plan)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Three loops: `start` over layers, the partial plans in `unbeaten(best[start])`, and `stop` from `start + 1`. The sum of
# `saved_bytes` grows with `stop`: as soon as `held` plus it exceeds the budget, `break`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A repeated segment adds the cost of its layers, and holds `layers[start].input_bytes` more. A kept layer adds no cost, and
# holds all of its `saved_bytes`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `best[stop].append((cost + again, held + layers[start].input_bytes, [*plan, Segment(start, stop, "full")]))`. At the end
# `unbeaten(best[-1])[0][2]` is the cheapest plan; an empty `best[-1]` means that nothing fits.
#
# </details>

# %% [markdown]
# ## 4 · Memory against compute
#
# Seven ways through one model of 8 blocks: yours, torch's manner, and the corners. Bytes and FLOPs are counted, so they
# are exact; seconds are this machine's.
#
# **Predict**: forward is a third of a step's FLOPs. By what fraction of a step's FLOPs does full recomputation add to it?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.33
### LAB guess = None  # a fraction: 0.1 for 10%
### END SOLUTION
lab.predict("extra_of_full", guess)

# %% tags=["experiment"]
import time

from minitrain.measure.flops import model_flops
from minitrain.memory.placement import uniform_plan
from minitrain.memory.segments import Segmented
from minitrain.memory.segments import block_layers

chosen = block_layers(config, B, T)[0]  # closed form, as in section 2
blocks = [Layer(chosen.input_bytes, chosen.saved_bytes, chosen.cost)] * config.layers
budget = 0.4 * sum(block.saved_bytes for block in blocks)
full = uniform_plan(config.layers, "full")
ways = {
    "none": Segmented(uniform_plan(config.layers, "none")),
    "selective": Segmented(uniform_plan(config.layers, "selective"), policy=keep),
    "optimal, 40%": Segmented(optimal_plan(blocks, budget)),
    "√L": Segmented(cut(config.layers, 3)),
    "full": Segmented(full),
    "full, to its end": Segmented(full, stop_early=False),
    "your Checkpoint": stack_of_checkpoints,
}
model, tradeoff = build(config), []


def step():
    model.zero_grad(set_to_none=True)
    loss_of(model, tokens).backward()


for name, way in ways.items():
    model.stack = way
    model.zero_grad(set_to_none=True)
    with MemoryLedger(model) as ledger:
        loss = loss_of(model, tokens)
        held = ledger.now["activations"]
        loss.backward()
    extra = counted_flops(step) / model_flops(config, B, T) - 1
    seconds = []
    for _ in range(lab.size("repeats")):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    peak = ledger.peak["activations"] + ledger.peak["temporaries"]
    tradeoff.append({"way": name, "saved_bytes": held, "peak_bytes": peak,
                     "extra_flops": extra, "step_seconds": min(seconds)})  # fmt: skip

frontier = []  # for every budget, the peak and the cost of your optimal plan
for share in range(20, 105, 4):
    plan = optimal_plan(blocks, share / 100 * config.layers * blocks[0].saved_bytes)
    ends = [s for s in plan if s.mode == "full"]  # each spares its last matmul
    again = sum(chosen.cost * (s.stop - s.start) - chosen.spared_cost for s in ends)
    percent = 100 * again / model_flops(config, B, T)
    frontier.append((plan_peak(plan, blocks) / 1e6, percent))

# %% tags=["grade"]
lab.experiment("tradeoff", tradeoff)

# %% [markdown]
# Line: *your* `optimal_plan` for every budget, predicted for the blocks. Dots: measured, all activations. Selective is below
# the line, whose plans keep or repeat whole blocks. The line ends below full: the last block's backward comes at once, so
# repeating it spares nothing. √L saves least after forward, yet peaks higher: three blocks at a time.

# %% tags=["experiment"]
show.table(
    tradeoff, formats={"saved_bytes": show.bytes_text, "peak_bytes": show.bytes_text}
)
with show.canvas() as (figure, axes):
    axes.step(*zip(*frontier), where="post", color=show.COLORS[0])
    label = {"xytext": (9, 6), "textcoords": "offset points", "color": show.COLORS[0]}
    axes.annotate("your optimal_plan, every budget", frontier[-9], **label)
    for row in tradeoff[:5] + tradeoff[6:]:
        at = row["peak_bytes"] / 1e6, 100 * row["extra_flops"]
        axes.plot(*at, "o", color=show.COLORS[1])
        axes.annotate(row["way"], at, xytext=(7, 3), textcoords="offset points")
    axes.set(xlabel="peak of activations (MB)", ylabel="extra FLOPs (% of a step)")
    most = tradeoff[0]["peak_bytes"] / 1e6
    axes.set(xlim=(0, 1.17 * most), ylim=(-2, 37))
    axes.set_title("Memory against compute (counted)")
show.figure(figure, alt="Extra FLOPs against peak bytes: seven ways and the frontier.")
by_way = {row["way"]: row["extra_flops"] for row in tradeoff}
lab.reveal(
    "extra_of_full", by_way["full, to its end"], 1 / 3, "1/3 less the head's share"
)

# %% [markdown]
# **Explain**: the famous 33% is a whole forward more. PyTorch and the package **stop early**, at the last tensor that
# backward needs: nobody needs the *result* of a block's last matmul, `down`.
#
# **Question**: what share of the repeated forward does that spare? Read it off your two "full" rows, from 0 to 1.

# %% tags=["question"]
### BEGIN SOLUTION
spared = 1 - by_way["full"] / by_way["full, to its end"]
### LAB spared = None  # a fraction, your answer
### END SOLUTION

# %% tags=["grade"]
lab.answer("spared", spared)

# %% [markdown]
# **Takeaway**: selective costs no matmul, full 25% or 33%.
#
# ## 5 · Never an L x L tensor
#
# Written out, attention saves H·L numbers *a token*. But softmax needs no whole row at once: sum exp(score - m), m
# the greatest *so far*. A greater one shrinks the sum by exp(m - new): the *online softmax*
# ([Dao et al. 2022](https://arxiv.org/abs/2205.14135)).

# %%
from minitrain.model.attention.mask import Mask

ROWS = 128  # of a tile
COLUMNS = 128


def tiles(places, size):
    """range(0, 300), 128 -> slices 0:128, 128:256, 256:300"""
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


# Mask(0): query and key 0 stand at the same place, so a token reads itself and all before
# the keys of 300 that queries 128 … 255 may read at all, and those with a window of 100
print(Mask(0).keys(slice(128, 256), 300))
print(Mask(0, window=100).keys(slice(128, 256), 300))
# which of keys 2 and 3 queries 2 and 3 may read: True where they may; None where all do
print(Mask(0).tile(slice(2, 4), slice(2, 4), "cpu"))
print(Mask(0).tile(slice(2, 4), slice(0, 2), "cpu"))

# %% [markdown]
# ### Exercise 5 · `tiled_forward`
#
# Difficulty 5 · 15 minutes · 10 points
#
# A tile of queries, divided by √C, begins with `total` 0, `top` -inf, `mass` 0. For each tile of keys: scores, -inf where
# unreadable; the `new` maximum; `weights = exp(scores - new)`; shrink `mass` and `total` by `exp(top - new)`, then add.
#
# At the end `out = total / mass`, `lse = top + log(mass)`. Plain products of tiles, not `F.scaled_dot_product_attention`; each
# tile of scores is made once.


# %% tags=["exercise"]
def tiled_forward(q, k, v, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention: q, k, v (B, H, L, C), left as they are, -> out (B, H, L, C) and
    the log-sum-exp of each row's scores (B, H, L), in q's dtype. A query reads what
    `mask` says: all before it, or a window of that. About 16 lines."""
    ### BEGIN SOLUTION
    out, lse = torch.empty_like(q), torch.empty_like(q[..., 0])
    for rows in tiles(range(q.shape[2]), ROWS):
        queries = q[:, :, rows] / q.shape[-1] ** 0.5  # (B, H, i, C)
        total, mass = torch.zeros_like(queries), torch.zeros_like(queries[..., 0])
        top = torch.full_like(mass, -torch.inf)
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            scores = queries @ k[:, :, columns].mT  # (B, H, i, j)
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = scores.masked_fill(~readable, -torch.inf)
            new = torch.maximum(top, scores.amax(dim=-1))
            weights, shrink = (scores - new[..., None]).exp(), (top - new).exp()
            mass = mass * shrink + weights.sum(dim=-1)
            total = total * shrink[..., None] + weights @ v[:, :, columns]
            top = new
        out[:, :, rows], lse[:, :, rows] = total / mass[..., None], top + mass.log()
    return out, lse
    ### END SOLUTION


# %% tags=["grade"]
tiled_forward = lab.grade(tiled_forward)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `scores.amax(dim=-1)` is a tile's maximum of each row, (B, H, i); `torch.maximum(top, …)` the greatest so far.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `shrink = (top - new).exp()` is 0 for the first tile (exp(-inf)) and 1 where the maximum stays. `total` needs it with one
# more dimension: `shrink[..., None]`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `mass = mass * shrink + weights.sum(-1)`, `total = total * shrink[..., None] + weights @ v[:, :, columns]`, `top = new`; after
# the last tile write `out[:, :, rows]` and `lse[:, :, rows]`.
#
# </details>

# %% [markdown]
# **Backward.** With the log-sum-exp saved, each tile of weights is made again in one step: `P = exp(scores - lse)`. With
# dO the gradient of the output and `delta = rowsum(dO · O)`, given as (B, H, L):
#
# ```
# dV += Pᵀ dO       dS = P * (dO Vᵀ - delta)       dQ += dS K / √C       dK += dSᵀ Q / √C
# ```

# %% [markdown]
# ### Exercise 6 · `tiled_backward`
#
# Difficulty 4 · 12 minutes · 10 points
#
# The same two loops, each tile of weights made once. Use `lse` and `delta` as they come: in e02e · Context parallel they
# count keys that other ranks hold.


# %% tags=["exercise"]
def tiled_backward(q, k, v, d_out, lse, delta, mask: Mask) -> tuple[torch.Tensor, ...]:
    """dq, dk, dv, new tensors shaped as q, k, v, by tiles: the formulas above. What is
    given stays as it is. About 15 lines."""
    ### BEGIN SOLUTION
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    scale = q.shape[-1] ** -0.5
    for rows in tiles(range(q.shape[2]), ROWS):
        queries, d_rows = q[:, :, rows] * scale, d_out[:, :, rows]
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            keys, values = k[:, :, columns], v[:, :, columns]
            weights = (queries @ keys.mT - lse[:, :, rows, None]).exp()  # (B, H, i, j)
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                weights = weights.masked_fill(~readable, 0)
            d_scores = weights * (d_rows @ values.mT - delta[:, :, rows, None])
            dv[:, :, columns] += weights.mT @ d_rows
            dq[:, :, rows] += d_scores @ keys * scale
            dk[:, :, columns] += d_scores.mT @ queries
    return dq, dk, dv
    ### END SOLUTION


# %% tags=["grade"]
tiled_backward = lab.grade(tiled_backward)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Where a key may not be read its weight is 0: `masked_fill(~readable, 0)` after the exp, or -inf before it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `lse[:, :, rows, None]` has the shape (B, H, i, 1). Softmax's derivative takes `delta` off the whole row:
# `d_scores = weights * (d_out_rows @ values.mT - delta[:, :, rows, None])`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A key is read by many rows: `dk[:, :, columns] += …` adds up, never `=`. With `queries` already divided by √C, `dk` needs no
# further scale, `dq` does.
#
# </details>

# %% tags=["nbval-check-output"]
from minitrain.model.attention.tiled import Tiled


def tiled(q, k, v, mask=None):
    """Your pair as a differentiable function: `Tiled` saves q, k, v, out and lse."""
    k, v = (z.repeat_interleave(q.shape[1] // z.shape[1], dim=1) for z in (k, v))
    return Tiled.apply(q, k, v, Mask(0), tiled_forward, tiled_backward)


model = exchange_attention(build(config, dtype=torch.float64), tiled, Mask.of)
other = build(config, dtype=torch.float64)
for each in (model, other):
    loss_of(each, tokens).backward()
worst = max(
    (p.grad - r.grad).abs().max()
    for p, r in zip(model.parameters(), other.parameters())
)
print("all gradients as with PyTorch's kernel, to 1e-6:", worst.item() < 1e-6)

# %% tags=["experiment"]
heads, size = lab.size("heads"), lab.size("head_size")


def peak_of(attend, length):
    """Bytes at the peak of forward and backward, beyond q, k, v and the gradient."""
    shape = (1, heads, length, size)
    q, k, v = (torch.nn.Parameter(torch.randn(shape)) for _ in range(3))
    with MemoryLedger(torch.nn.ParameterList((q, k, v))) as ledger:
        d_out = torch.randn(shape)
        given = ledger.now_bytes
        ledger.reset_peak()
        torch.autograd.grad(attend(q, k, v, None), (q, k, v), d_out)
    return ledger.peak_bytes - given


kernels = {"naive": attention_naive, "tiled": tiled, "fused": attention}
lengths = [
    {"kernel": name, "length": length, "heads": heads, "head_size": size,
     "peak_bytes": peak_of(attend, length)}
    for name, attend in kernels.items() for length in lab.size("lengths")
]  # fmt: skip

# %% tags=["grade"]
lab.experiment("lengths", lengths)

# %% tags=["picture"]
at = {(r["kernel"], r["length"]): r["peak_bytes"] / 1e6 for r in lengths}
Ls = lab.size("lengths")
with show.canvas() as (figure, axes):
    show.lines(
        {name: (Ls, [at[name, length] for length in Ls]) for name in kernels},
        x="tokens L",
        y="peak of forward and backward (MB)",
        title="Attention: L² written out, L in tiles (2 heads, float32)",
        log="xy",
        ax=axes,
    )
    axes.set_xticks(Ls, [str(length) for length in Ls])
    axes.minorticks_off()
    low, high = at["tiled", Ls[-1]], at["naive", Ls[-1]]
    axes.annotate(
        "", (Ls[-1], low * 1.15), (Ls[-1], high / 1.15), arrowprops={"arrowstyle": "->"}
    )
    axes.text(
        Ls[-1] / 1.06,
        (low * high) ** 0.5,
        f"{high / low:.0f} x less",
        ha="right",
        weight="bold",
    )
show.figure(
    figure,
    alt="Peak bytes of attention against length, naive, tiled and fused, on log axes.",
)

# %% [markdown]
# **Question**: written out, the peak grows as L². From your row at the longest length: how many tokens long may a text be
# until this one layer's attention fills a GPU of 80 GB (80e9 bytes)?

# %% tags=["question"]
### BEGIN SOLUTION
longest_naive = Ls[-1] * (80e9 / (1e6 * at["naive", Ls[-1]])) ** 0.5
### LAB longest_naive = None  # tokens, your answer
### END SOLUTION

# %% tags=["grade"]
lab.answer("longest_naive", longest_naive)

# %%
lab.score(read="minitrain/memory/recompute.py")

# %% [markdown]
# > **On GPUs.** Kernels do the same with tiles in on-chip memory, so they are faster too: see
# > [triton.py](../minitrain/model/attention/triton.py). What does not fit even so can wait in the CPU's memory:
# > [activation_offload.py](../minitrain/memory/activation_offload.py).
#
# Next: [e10 · Cost](e10_cost.ipynb) turns bytes and FLOPs into days and dollars, or go by the
# [map of the course](index.ipynb).
