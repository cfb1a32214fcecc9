# %% [markdown]
# # e05 · Activation memory
#
# **Backward needs what forward computed. You discard it and recompute it, choose what to keep, split a chain of layers for
# any byte budget, and write attention that never holds an L x L tensor: its memory falls from L² to L.**
#
# 165 minutes · CPU is enough · before: [e01 · Baseline](e01_baseline.ipynb) · [map of the course](index.ipynb)
#
# You build: checkpointing with replayed random numbers, a selective policy, the best checkpoints for a budget, and tiled
# attention with its backward. You end with this picture.
#
# ![Peak bytes of attention against length from 128 to 2048: the naive curve grows fourfold with each doubling, the tiled one twofold](../labs/pictures/e05_activation_memory.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, ideas, show

lab = Lab("e05_activation_memory")

# %% [markdown]
# ## 1 · Discard and recompute
#
# Backward needs numbers from the forward pass. Take a product $Y = XW$. The gradient of its weights is
# $\partial W = X^\top \, \partial Y$, so the *input* $X$ must still be in memory when $\partial Y$ arrives. A softmax,
# $p = \mathrm{softmax}(s)$, has $\partial s = p \odot (\partial p - \sum p \, \partial p)$, so its *output* must be.
#
# Autograd saves all the tensors that backward will use: the *activations*. Weights have a fixed size, but activations grow
# with the batch, the sequence length and the depth of the model, and they soon outweigh everything else.

# %% [markdown]
# We take the small Llama of [e01](e01_baseline.ipynb), with 8 blocks.

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
# **Predict**: a block of this model takes a vector of $D = 128$ numbers for each token: 512 bytes in float32. How many
# bytes does the block save for backward per token? Its attention is one fused operation, with 4 query heads and
# 2 key/value heads of 32 numbers each. Its MLP computes $\mathrm{down}(\mathrm{silu}(\mathrm{gate}(x)) \cdot
# \mathrm{up}(x))$ and is 448 numbers wide.

# %% tags=["question"]
### BEGIN SOLUTION
guess = 4 * (4 * 128 + 2 * 128 + 2 * 64 + 4 * 448)
### LAB guess = None  # bytes per token and block, your guess
### END SOLUTION
lab.predict("block_bytes", guess, unit="B")

# %% [markdown]
# The package's `MemoryLedger` knows which tensors are held, and what for. A block's bytes are those of a
# model with two blocks minus those of a model with one.


# %%
def saved_bytes(model, tokens):
    """What is held for backward when forward and loss are done."""
    with MemoryLedger(model) as ledger:
        _graph = loss_of(model, tokens)  # alive while we look
        return ledger.now["activations"]


one, two = (build(preset(lab.size("preset"), layers=n)) for n in (1, 2))
block_bytes = (saved_bytes(two, tokens) - saved_bytes(one, tokens)) / (B * T)
lab.reveal("block_bytes", block_bytes, config=config)

# %% [markdown]
# **Explain**: the block's own input is the smaller part. Nearly every operation inside the block
# saves its input, its output or both: 10,776 bytes per token, 21 times the block's input. Section 2 breaks this
# number down.
#
# *Checkpointing* ([Chen et al. 2016](https://arxiv.org/abs/1604.06174)) trades compute for memory. It keeps only a function's
# **inputs**. When backward needs more, it runs the function a second time, and then the backward of this second
# run. The picture shows a chain of six layers, each of which saves four units, one of them its input. The slider changes
# what is kept.

# %%
ideas.recomputation()

# %% [markdown]
# If everything is kept, each forward (blue) adds four units, and the peak is at the
# turn from forward to backward: $6 \cdot 4 = 24$.
#
# If only inputs are kept, each forward adds one unit. At the turn, the last layer runs again (orange) and makes the other
# three units that its backward (green) needs. Then all four are freed. No two layers ever hold
# their four units at the same time, and the peak is $5 \cdot 1 + 4 = 9$. The price is six orange bars: one
# more forward.

# %% [markdown]
# The second run must satisfy two conditions.
#
# First, its **gradients must be those of the first run**. The saved inputs still belong to the graph of the operations that
# made them. If the recomputation were connected to that graph, its backward would continue into it, and everything before the
# function would get its gradient twice. So the recomputation starts from detached inputs, and the gradients
# that arrive at them are returned.
#
# Second, its **random numbers must be those of the first run**. Dropout draws a mask. With a new mask, backward would
# differentiate a function other than the one whose loss was computed.

# %% [markdown]
# ### Exercise 1 · `Checkpoint`
#
# Difficulty 4 of 5 · 20 minutes · 14 points
#
# Inside `forward` autograd records nothing: keep the inputs with `ctx.save_for_backward`, and return the result. `backward`
# detaches the inputs, runs the function again with recording, and runs the backward of this second run as a whole, so that the weights
# inside the function get their gradients, too.
#
# Dropout must drop the same elements again: forward sets no seed of its own; backward restores the generator state of its forward,
# and afterwards leaves the generator as it found it. Several functions may be waiting for their backward at once. Do not use a
# ready-made checkpoint (`torch.utils.checkpoint`).


# %% tags=["exercise"]
class Checkpoint(torch.autograd.Function):
    """`Checkpoint.apply(function, *inputs)` gives `function(*inputs)`, one
    tensor, and keeps the inputs only: tensors, left as they were; integers and
    masks among them have no gradient. About 9 lines of yours."""

    @staticmethod
    def forward(ctx, function, *inputs):
        ### BEGIN SOLUTION
        ctx.function, ctx.generator = function, torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return function(*inputs)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        """One gradient for each input of forward: None for the function."""
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
# `ctx` carries data to backward: `ctx.function = function`. Tensors go through `ctx.save_for_backward(*inputs)` and come
# back as `ctx.saved_tensors`. `torch.get_rng_state()` returns the generator's state.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x.detach().requires_grad_(x.requires_grad)` makes a fresh leaf: after `torch.autograd.backward(out, gradient)` its
# gradient is in `x.grad`, and the parameters inside the function have theirs, too.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `with torch.random.fork_rng(devices=[]), torch.enable_grad():` restores the generator at its end: set the saved state and run the
# function inside it. The function itself is an argument of forward, too: its gradient is `None`.
#
# </details>

# %% [markdown]
# Now every block of the model runs in *your* `Checkpoint`. The same operations run on the same numbers, so the gradients must
# agree bit for bit.


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
equal = all(torch.equal(p.grad, q.grad) for p, q in pairs)
print("all gradients bit-equal:", equal)
for name, each in [("plain", plain), ("yours", forgetful)]:
    held = show.bytes_text(saved_bytes(each, tokens))
    print(f"{name}: {held} saved for backward")

# %% [markdown]
# **Takeaway**: 22.9 MB saved for backward became 1.84 MB, 12 times less, with bit-identical gradients. The factor is not
# 21 because the logits and the loss, outside the blocks, are saved as before.

# %% [markdown]
# ## 2 · Keep what is expensive
#
# Section 1 discarded everything inside a block. But some of these tensors are expensive to compute, and others are only large. The
# picture lists them in the order of the forward pass. $D = 128$
# is the width of the residual stream. $HC$ is the width of all queries, $H = 4$ heads of $C = 32$ numbers;
# $KC$, with $K = 2$, that of all keys. $F = 448$ is the width of the MLP. Move the slider from `none` to `selective` and
# to `full`.

# %%
ideas.block_tensors()

# %% [markdown]
# With `none`, the blue bars add up to $4D + 2HC + 2KC + 4F$ numbers. There are $H + 2$ more in float32, too few for a
# bar: the log-sum-exp of each head's softmax, and one number for each of the two norms. At $4$ bytes each this gives the bytes of section 1:
#
# $$4\,(4 \cdot 128 + 2 \cdot 128 + 2 \cdot 64 + 4 \cdot 448) + 4\,(4 + 2) = 10{,}776 \text{ bytes per token.}$$
#
# Two thirds of it are the four tensors of width $F$. Two of these, $\mathrm{silu}(\mathrm{gate})$ and its product with
# $\mathrm{up}$, can be computed from the other two without any matmul, with a few operations per number.

# %% [markdown]
# How expensive is a tensor? Let an operation compute numbers of 4 bytes, each of them a sum of $n$
# products. A product and its addition are 2 FLOPs, so the operation costs
#
# $$\frac{2n \text{ FLOPs}}{4 \text{ bytes}} = \frac{n}{2} \text{ FLOPs per byte of its result.}$$
#
# A product with weights has $n = D$ or $n = F$: 64 or 224 FLOPs per byte. The scores $QK^\top$ sum over one head only,
# $n = C = 32$: 16 FLOPs per byte. An activation function has no such sum. The next cell counts what
# the operations of a block cost, once with fused attention and once with attention *written out*, where the scores
# are a tensor (`bmm` is a batched matrix product).

# %% tags=["experiment"]
from minitrain.measure.operations import operations_of
from minitrain.model.attention.grouped_query import attention, attention_naive
from minitrain.model.transformer import exchange_attention


def operations_of_block(kernel):
    """The operations of one block's forward, most FLOPs a byte first."""
    model = exchange_attention(build(config), kernel, lambda x, *_: None)
    x = model.embed(tokens[:, :-1])
    turns, mask = model.surroundings(x)
    return operations_of(lambda: model.blocks[0](x, turns, mask))


def in_words(row):
    return {
        "operation": row["operation"],
        "calls": row["calls"],
        "makes (kB)": row["bytes"] / 1e3,
        "matmul MFLOP": row["FLOPs"] / 1e6 or None,
        "matmul FLOPs a byte": row["FLOPs"] / row["bytes"] or None,
    }


def one_decimal(value):
    return "–" if value is None else f"{value:,.1f}"


# %% tags=["experiment"]
for name, kernel in [("fused", attention), ("written out", attention_naive)]:
    found = operations_of_block(kernel)
    dear = [row for row in found if row["FLOPs"]]
    large = sorted(found[len(dear) :], key=lambda row: -row["bytes"])[:4]
    show.table(
        [in_words(row) for row in dear + large],
        caption=f"Attention {name}: what is dear to compute, then what is only "
        "large; of FLOPs only those of matrix products are counted",
        formats=dict.fromkeys(
            ["makes (kB)", "matmul MFLOP", "matmul FLOPs a byte"], one_decimal
        ),
    )

# %% [markdown]
# **Explain**: the elementwise operations (`mul`, `add`, `silu`) make over half of the bytes and contain no matrix product:
# *repeat* them. `mm`, the products with weights, cost 79 FLOPs per byte: *keep* them. The two
# `bmm` cost 26 on average (16 for the scores, 64 for weights times values), the least of all products, and the scores grow
# with the square of the length: *repeat* them. The fused kernel does the FLOPs
# of both `bmm` and writes only the result, 128 FLOPs per byte: *keep* it.
#
# This idea is [Korthikanti et al. 2022](https://arxiv.org/abs/2205.05198)'s *selective recomputation*. For each operation the package
# calls a function of yours to decide whether to keep its result, and repeats all others.

# %% [markdown]
# ### Exercise 2 · `keep`
#
# Difficulty 2 · 5 minutes · 8 points
#
# A *policy* decides for each operation, such as `torch.ops.aten.mm.default`, whether its result is kept. Its
# `op.overloadpacket.__name__` is `"mm"`. The fused kernel's name begins with `_scaled_dot_product_`; the rest depends on the machine.


# %% tags=["exercise"]
def keep(op: torch._ops.OpOverload) -> bool:
    """Whether to keep an operation's result: products with weights (mm, addmm)
    and fused attention, of any machine; no other product (bmm), nor anything
    cheap. About 2 lines."""
    ### BEGIN SOLUTION
    name = op.overloadpacket.__name__
    return name in ("mm", "addmm") or name.startswith("_scaled_dot_product_")
    ### END SOLUTION


# %% tags=["grade"]
keep = lab.grade(keep)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `op.overloadpacket.__name__` is a string. Compare whole names: `"mm"` is also a part of `"bmm"`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `name in ("mm", "addmm")`: a linear layer without and with a bias.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `name.startswith(…)` recognises every fused kernel. Keep nothing else.
#
# </details>

# %% [markdown]
# **Experiment**: the bytes saved per token and block, measured by the ledger, against the closed form for the picture's
# three positions:
#
# | recompute | numbers in the model's format | numbers in float32 |
# |---|---|---|
# | none | $4D + 2HC + 2KC + 4F$ | $H + 2$ |
# | selective | $2D + 2HC + 2KC + 2F$ | $H$ |
# | full | $D$ | 0 |

# %% tags=["experiment"]
from minitrain.measure.predicted_memory import block_bytes_per_token
from minitrain.memory.segments import recompute


def of_one_block(dtype, how, text):
    """Bytes saved of `text`: two layers' less one layer's, as in section 1."""
    total = {}
    for layers in (1, 2):
        model = build(preset(lab.size("preset"), layers=layers), dtype=dtype)
        total[layers] = saved_bytes(recompute(model, how, policy=keep), text)
    return total[2] - total[1]


ways_to_save = ["none", "selective", "full"]
saved = []

# %% tags=["experiment"]
for dtype in (torch.float32, torch.bfloat16):
    for batch, length in lab.size("shapes"):
        text = torch.randint(config.vocab_size, (batch, length + 1))
        for how in ways_to_save:
            row = {"recompute": how, "dtype": str(dtype).removeprefix("torch.")}
            row |= {"batch": batch, "length": length}
            total = of_one_block(dtype, how, text)
            row["block_bytes"] = total / (batch * length)
            row["formula_bytes"] = block_bytes_per_token(config, dtype, how)
            saved.append(row)

# %% tags=["grade"]
lab.experiment("saved", saved)

# %% tags=["experiment"]
in_float32 = [row for row in saved if row["dtype"] == "float32"]
first = {row["recompute"]: row for row in reversed(in_float32)}
show.bars(
    ways_to_save,
    [first[way]["block_bytes"] for way in ways_to_save],
    theory=[first[way]["formula_bytes"] for way in ways_to_save],
    y="bytes a token and block",
    title="Saved for backward, float32 (counted: any machine)",
)

# %% [markdown]
# **Takeaway**: selective recomputation repeats no matmul and saves 43% of the bytes (6,160 instead of 10,776); full keeps
# 512, one in 21.
#
# Korthikanti's formula for a GPT is the same kind of sum. With $b$ sequences of $s$ tokens, width $h$ and $a$ heads, a layer in 16 bits
# saves
#
# $$s\,b\,h \left(34 + \frac{5\,a\,s}{h}\right) \text{ bytes.}$$
#
# The second term is attention written out. For GPT-3 ($a = 96$, $s = 2{,}048$, $h = 12{,}288$) it is 80, compared with 34: 70% of
# the memory. Fused attention removes it, which is why our formula for a Llama has no term with the square of the
# length.

# %% [markdown]
# ## 3 · Where to put checkpoints
#
# So far each block was recomputed by itself. But a recomputed piece may be longer. A *segment* of $k$ layers keeps only the input of
# its first layer, so that a model of $L$ layers holds $L/k$ inputs after forward instead of $L$. But when
# backward reaches a segment, the whole segment runs again, and during that time *everything* that its $k$ layers save is held.
#
# **Predict**: 36 linear layers, each of which saves its input and nothing else, are divided into equal segments. How many layers
# per segment give the lowest peak?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 6
### LAB guess = None  # layers per segment, your guess
### END SOLUTION
lab.predict("segment_length", guess)

# %% [markdown]
# The picture shows 16 such layers: what is held after forward, and during the backward of the last segment. Two
# segments of 8 hold $1 + 8 = 9$ boxes: the first one's input and the second's 8 layers.
# Move the slider from no segments to 16.

# %%
ideas.checkpoints()

# %% [markdown]
# A *plan* is a list of segments. A segment's mode is `"full"` if it is recomputed, and
# `"none"` if everything its layers save is kept. A `Layer` has the costs of one layer: the bytes of its
# input, the bytes that it saves (its input included), and the work of its forward in any unit. (The last three fields are not needed
# here.)

# %%
from textwrap import fill
from typing import NamedTuple

from minitrain.memory.placement import Layer


class Segment(NamedTuple):
    """Layers start … stop - 1: "none" keeps all they save, "full" an input."""

    start: int
    stop: int
    mode: str  # "none" or "full"


print(fill(str(Layer(input_bytes=1, saved_bytes=21, cost=1)), 80))

# %% [markdown]
# What is the peak of such a plan? Backward goes through the segments from the last to the first. Take any one of them: what
# is held at its backward? The segments *after* it have had their backward, and their memory is free. The segments *before*
# it still hold what they keep. And the segment itself holds everything that its layers save, whether this was kept
# or has just been recomputed. The peak of the plan is the largest of these sums over all segments.

# %% [markdown]
# ### Exercise 3 · `plan_peak`
#
# Difficulty 2 · 10 minutes · 8 points
#
# Go through the segments with a running sum of what they hold after forward: a segment keeps its first input ("full") or
# everything ("none").


# %% tags=["exercise"]
def plan_peak(plan: list[Segment], layers: list) -> float:
    """The most bytes held at once; a plan has one segment or more. Each layer
    has its own `input_bytes`, and `saved_bytes` (the input included). About 8
    lines."""
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
# `layers[segment.start : segment.stop]` are a segment's layers; at its own backward it holds the sum of their `saved_bytes`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `peak = max(peak, held + everything)` first, then add what the segment keeps to `held`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A "full" segment adds one input to `held`, its first layer's, and not one for each layer.
#
# </details>

# %% [markdown]
# Now 36 linear layers run in your `Checkpoint`, in segments of every length that divides 36. The ledger measures the peak, and
# your `plan_peak` predicts it. A layer's input has 256 rows of 64 numbers: 65.5 kB.

# %% tags=["experiment"]
depth, width, rows = 36, 64, 256
linears = [torch.nn.Linear(width, width, bias=False) for _ in range(depth)]
chain = torch.nn.Sequential(*linears)
input_bytes = 4 * rows * width
layer = Layer(input_bytes, saved_bytes=input_bytes, cost=1)


def cut(layers, length):
    """Segments of `length` layers, all repeated."""
    starts = range(0, layers, length)
    return [Segment(i, min(i + length, layers), "full") for i in starts]


def measured_peak(plan):
    x = torch.randn(rows, width, requires_grad=True)
    with MemoryLedger(chain) as ledger:
        for start, stop, _ in plan:
            x = Checkpoint.apply(chain[start:stop], x)
        x.sum().backward()
    return ledger.highest["activations"]


# %% tags=["experiment"]
segments = []
for length in (1, 2, 3, 4, 6, 9, 12, 18, 36):
    plan = cut(depth, length)
    row = {"layers": depth, "length": length, "input_bytes": layer.input_bytes}
    row["peak_bytes"] = measured_peak(plan)
    row["predicted_bytes"] = plan_peak(plan, [layer] * depth)
    segments.append(row)

# %% tags=["grade"]
lab.experiment("segments", segments)

# %%
length = [row["length"] for row in segments]
predicted = [row["predicted_bytes"] / 1e6 for row in segments]
show.lines(
    {"measured": (length, [row["peak_bytes"] / 1e6 for row in segments])},
    theory={"your plan_peak": (length, predicted)},
    x="layers a segment",
    y="peak of activations (MB)",
    title="36 layers that save their input only",
)
best = min(segments, key=lambda row: row["peak_bytes"])["length"]
lab.reveal("segment_length", best, layers=depth)

# %% [markdown]
# **Explain**: let $L$ be the number of layers, $k$ the layers per segment, $I$ the bytes of an input and $A$ the bytes that
# a layer saves. There are about $L/k$ inputs, and at worst, in addition, what $k$ layers save:
#
# $$M(k) \approx I\,\frac{L}{k} + A\,k, \qquad M'(k) = -\frac{I L}{k^2} + A = 0
# \quad\Rightarrow\quad k = \sqrt{\frac{L\,I}{A}}.$$
#
# Our linear layers have $A = I$, so $k = \sqrt{36} = 6$, and the peak falls from 36 inputs to $5 + 6 = 11$. A Transformer
# block saves much more than its input, so its best $k$ is far below $\sqrt{L}$.

# %% [markdown]
# **Question**: Llama 3 405B has 126 blocks. Suppose that a block's input and what it saves have the same ratio as in our small
# model: rows "full" (its input) and "none" (all it saves) of the next table, in float32. How many blocks per segment give the
# lowest peak, by your `plan_peak`?

# %%
show.table(
    [
        {"recompute": way, "bytes a token and block": first[way]["block_bytes"]}
        for way in ways_to_save
    ],
    formats={"bytes a token and block": "{:,.0f}".format},
)

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
# In practice there is a *budget* of free bytes, and the plan should fit it and recompute **as little as possible**. If a
# segment is one kept layer, or any number of recomputed ones, 24 layers have 7.8 billion plans.
#
# Suppose that two plans of the first $i$ layers fit the budget. How they are divided does not
# matter to the layers that follow. Only the bytes that they *hold* do: during the backward of each later segment these bytes
# are still held, in addition to the segment's own. So if one of the two recomputes no less and holds no less than the other, no
# continuation can make it better: it is beaten, and can be dropped.

# %% [markdown]
# This gives an algorithm from left to right. For each $i$, keep the *unbeaten* partial plans of the first $i$ layers: sorted
# by cost, each must hold less than all before it. Extend each by every possible next segment whose backward fits
# into the budget with what is held, and store the longer plan under its number of layers. When all layers are
# covered, the cheapest plan is the answer.

# %% [markdown]
# ### Exercise 4 · `optimal_plan`
#
# Difficulty 5 · 25 minutes · 10 points
#
# Recompute as little as a budget allows. `best[i]` has partial plans of the first i layers, as `(cost, held, plan)`. Extend
# each by every next segment whose backward fits: recomputed ones of any length, kept ones of one layer. Continue only from
# `unbeaten(best[i])`: all partial plans of 24 layers are too many.


# %% tags=["exercise"]
def unbeaten(partials: list[tuple]) -> list[tuple]:
    """Given: the cheapest first, each of which holds less than all before."""
    kept = []
    for cost, held, plan in sorted(partials, key=lambda partial: partial[:2]):
        if not kept or held < kept[-1][1]:
            kept.append((cost, held, plan))
    return kept


def optimal_plan(layers: list, budget_bytes: float) -> list[Segment]:
    """The plan that fits whose recomputed layers have the least `cost` in all
    (of several, any); ValueError if none fits. About 15 lines."""
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
# A recomputed segment adds the cost of its layers, and `layers[start].input_bytes` to what is held. A kept layer adds no cost, but
# all of its `saved_bytes`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Each extension appends a triple to `best[stop]`, with a new list `[*plan, Segment(…)]`. At the end `unbeaten(best[-1])` begins with
# the cheapest plan; an empty `best[-1]` means that nothing fits.
#
# </details>

# %% [markdown]
# ## 4 · Memory against compute
#
# We run one model of 8 blocks in seven ways. Bytes and FLOPs are counted, so they are exact on every machine. The seconds are
# this machine's.
#
# For each product $Y = XW$ of forward, backward computes two of the same size: $\partial X = \partial Y\, W^\top$ and
# $\partial W = X^\top \partial Y$.
#
# **Predict**: what fraction of a plain step's FLOPs does full recomputation add, if each block is run again from beginning to
# end?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.33
### LAB guess = None  # a fraction: 0.1 for 10%
### END SOLUTION
lab.predict("extra_of_full", guess, unit="share")

# %% tags=["experiment"]
from minitrain.memory.placement import uniform_plan
from minitrain.memory.segments import Segmented, block_layers

chosen = block_layers(config, B, T)[0]  # a block as a Layer, in closed form
block = Layer(chosen.input_bytes, chosen.saved_bytes, chosen.cost)
blocks = [block] * config.layers
budget = 0.4 * sum(block.saved_bytes for block in blocks)
plans = [uniform_plan(config.layers, how) for how in ways_to_save]
none, selective, full = plans
ways = {
    "none": Segmented(none),
    "selective": Segmented(selective, policy=keep),
    "optimal, 40%": Segmented(optimal_plan(blocks, budget)),
    "√L": Segmented(cut(config.layers, 3)),
    "full": Segmented(full),
    "full, to its end": Segmented(full, stop_early=False),
    "your Checkpoint": stack_of_checkpoints,
}

# %% [markdown]
# The next cell is folded. It runs each way under the ledger and under the FLOP counter, and times it a few times, keeping the
# fastest.

# %% tags=["experiment", "folded"]
import time

from minitrain.measure.flops import counted_flops, model_flops

model, tradeoff = build(config), []


def step():
    model.zero_grad(set_to_none=True)
    loss_of(model, tokens).backward()


def seconds_of_step():
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


for name, way in ways.items():
    model.stack = way
    model.zero_grad(set_to_none=True)
    with MemoryLedger(model) as ledger:
        loss = loss_of(model, tokens)
        held = ledger.now["activations"]
        loss.backward()
    row = {"way": name, "saved_bytes": held}
    row["peak_bytes"] = ledger.peak["activations"] + ledger.peak["temporaries"]
    row["extra_flops"] = counted_flops(step) / model_flops(config, B, T) - 1
    again = range(lab.size("repeats"))
    row["step_seconds"] = min(seconds_of_step() for _ in again)
    tradeoff.append(row)

# %% tags=["grade"]
lab.experiment("tradeoff", tradeoff)

# %% tags=["experiment"]
show.table(
    [
        {
            "way": row["way"],
            "held after forward (MB)": row["saved_bytes"] / 1e6,
            "peak (MB)": row["peak_bytes"] / 1e6,
            "extra FLOPs (% of a step)": 100 * row["extra_flops"],
            "a step (ms)": 1e3 * row["step_seconds"],
        }
        for row in tradeoff
    ],
    formats=dict.fromkeys(
        ["held after forward (MB)", "peak (MB)", "extra FLOPs (% of a step)"],
        "{:.2f}".format,
    )
    | {"a step (ms)": "{:.0f}".format},
)
by_way = {row["way"]: row["extra_flops"] for row in tradeoff}
lab.reveal("extra_of_full", by_way["full, to its end"], config=config, length=T)

# %% [markdown]
# **Explain**: backward costs twice as much as forward, so forward is a third of a step. Full recomputation adds one more
# forward: the well-known 33%. We count 32.3%, because the model's head is not recomputed.
#
# Now as a picture. The line is *your* `optimal_plan` for many budgets, predicted for the blocks alone;
# the dots are counted, with all activations.

# %% tags=["experiment", "folded"]
frontier = []  # for every budget, the peak and the cost of your optimal plan
for share in range(20, 105, 4):
    most = share / 100 * config.layers * blocks[0].saved_bytes
    plan = optimal_plan(blocks, most)
    ends = [s for s in plan if s.mode == "full"]  # each spares its last matmul
    again = chosen.cost * sum(s.stop - s.start for s in ends)
    again -= chosen.spared_cost * len(ends)
    percent = 100 * again / model_flops(config, B, T)
    frontier.append((plan_peak(plan, blocks) / 1e6, percent))

with show.canvas() as (figure, axes):
    axes.step(*zip(*frontier), where="post", color=show.COLORS[0])
    label = {"xytext": (9, 6), "textcoords": "offset points"}
    words = "your optimal_plan, every budget"
    axes.annotate(words, frontier[-9], color=show.COLORS[0], **label)
    for row in tradeoff[:5] + tradeoff[6:]:
        at = row["peak_bytes"] / 1e6, 100 * row["extra_flops"]
        axes.plot(*at, "o", color=show.COLORS[1])
        axes.annotate(row["way"], at, xytext=(7, 8), textcoords="offset points")
    axes.set_xlabel("peak of activations (MB)")
    axes.set_ylabel("extra FLOPs (% of a step)")
    most = tradeoff[0]["peak_bytes"] / 1e6
    axes.set(xlim=(0, 1.17 * most), ylim=(-2, 37))
    axes.set_title("Memory against compute (counted)")
show.figure(figure, alt="Extra FLOPs against peak bytes: six ways, a frontier.")

# %% [markdown]
# - **Selective lies below the line.** The line's plans keep or recompute whole blocks; selective chooses inside each block.
# - **The line ends below full.** The last block's backward follows its forward immediately, so recomputing it would save nothing, and
#   an optimal plan keeps it.
# - **√L holds least after forward, but has a higher peak than full** (9.4 MB, compared with 3.8): it holds what three blocks save
#   at once. By section 3, the best length here is $\sqrt{8/21} < 1$, so one block.
# - **Selective adds no FLOPs, but takes much longer than none**: in our run longer than full.

# %% [markdown]
# To keep some results and repeat others, the package intercepts *every operation* in Python, in forward
# and again in the recomputation (so does PyTorch's own selective checkpoint). The 8 blocks run about 530 operations in a forward,
# so this happens about 1,060 times per step. Our run's extra 20 ms are at most 19 µs for each, an overhead that does not depend on the size of the
# tensors. Ours are tiny: 256 tokens. The order of the other ways is noise.
#
# With 16 times the tokens (8 sequences of 512) we measured, on one CPU thread, 0.81 s for none, 0.85 s for
# selective and 0.99 s for full: 5% and 22% more, the order that the FLOPs suggest.

# %% [markdown]
# "Full, to its end" recomputes a block from its first operation to its last. PyTorch
# and the package **stop early**: as soon as the last tensor that backward needs is there. What remains is
# the block's last matmul, `down`, whose *result* no backward needs.
#
# **Question**: what share of the recomputed FLOPs does that save? Read it off your two "full" rows, from 0 to 1.

# %% tags=["question"]
### BEGIN SOLUTION
spared = 1 - by_way["full"] / by_way["full, to its end"]
### LAB spared = None  # a fraction, your answer
### END SOLUTION

# %% tags=["grade"]
lab.answer("spared", spared)

# %% [markdown]
# **Takeaway**: the peak fell from 23.9 MB to 15.2 MB with selective recomputation and no repeated matmul, or to 3.8 MB with full
# recomputation for 25% more FLOPs if it stops early (32% if not).

# %% [markdown]
# ## 5 · Attention without an L x L tensor
#
# Now $L$ is the number of *tokens*, as in the literature on attention. Written out, attention keeps a softmax weight for each
# head and pair of tokens: $H L^2$ numbers. With $H = 2$ heads and
# $L = 2048$ tokens, one such tensor has
#
# $$4 \cdot 2 \cdot 2048^2 = 33.6 \text{ MB},$$
#
# and several of them exist at once. The queries, keys and values that it is computed from have $4 \cdot 3 \cdot H C L$
# bytes: 3.1 MB with $C = 64$ numbers per head. Recomputing it does not lower the peak of this one layer, since backward makes the
# same tensor again. We need a way that never makes it.

# %% [markdown]
# The output $o$ for query $i$ is a weighted mean of the values $v_j$. With the scores $s_j = q_i \cdot k_j / \sqrt{C}$,
#
# $$o = \frac{\sum_j e^{s_j - m}\, v_j}{\sum_j e^{s_j - m}}, \qquad m = \max_j s_j.$$
#
# The maximum cancels; it only keeps the exponentials from overflowing. Both sums could be computed piece by piece if $m$ were
# known from the start. It is not. But suppose that both were computed with the largest score *so far*, $m$, and that a tile of
# new keys has a larger one, $m'$. Since $e^{s - m'} = e^{s - m}\, e^{m - m'}$, **one** multiplication by $e^{m - m'}$ corrects each
# old sum. This is the *online softmax* ([Milakov and Gimelshein 2018](https://arxiv.org/abs/1805.02867)), on which FlashAttention
# ([Dao et al. 2022](https://arxiv.org/abs/2205.14135)) is built.

# %%
ideas.attention_tiles()

# %% [markdown]
# The grid has a tile of queries in each row and a tile of keys in each column. Only the orange tile is in memory. White tiles
# lie after the query and are never computed. The table on the right follows one query through the last row: the largest score
# so far ($m$), the sum of exponentials (the denominator), and the factor $e^{m - m'}$ by which the earlier sums were
# multiplied.
#
# Move the slider. A tile with no larger score leaves the factor at 1. At the end of the row, numerator over denominator is
# exact attention, not an approximation.

# %% [markdown]
# Backward needs the weights again. For this it is enough to save one number per row, the *log-sum-exp*
#
# $$\mathrm{lse} = \log \sum_j e^{s_j} = m + \log \sum_j e^{s_j - m}, \qquad\text{since then}\quad p_j = e^{s_j -
# \mathrm{lse}}.$$
#
# `Mask` knows which tiles are needed. In `Mask(0)`, a token reads itself and all tokens before it. Here is what it
# returns.

# %%
from minitrain.model.attention.mask import Mask

ROWS = 128  # of a tile
COLUMNS = 128


def tiles(places, size):
    """range(0, 300), 128 -> slices 0:128, 128:256, 256:300"""
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


# of 300 keys, those that queries 128 to 255 may read
print(Mask(0).keys(slice(128, 256), 300))
# the same, where each reads only the last 100, its own among them
print(Mask(0, window=100).keys(slice(128, 256), 300))
# a row for queries 2 and 3, a column for keys 2 and 3: True where one may read
print(Mask(0).tile(slice(2, 4), slice(2, 4), "cpu"))
# queries 2 and 3, keys 0 and 1: None, since every query may read every key
print(Mask(0).tile(slice(2, 4), slice(0, 2), "cpu"))

# %% [markdown]
# ### Exercise 5 · `tiled_forward`
#
# Difficulty 4 · 20 minutes · 10 points
#
# For each tile of r queries, divided by √C:
#
# 1. Begin with `total` = 0, of shape (B, H, r, C), and with `top` = -inf and `mass` = 0, both of shape (B, H, r).
# 2. For each tile of keys, compute the scores (-inf where a query may not read a key), the maximum so far, `new`, and
#    `weights = exp(scores - new)`.
# 3. Multiply `mass` and `total` by `exp(top - new)`, add this tile's sums, and continue with `new` as `top`.
# 4. After the last tile of keys, `out = total / mass` and `lse = top + log(mass)`.
#
# Use plain matrix products of tiles, not `F.scaled_dot_product_attention`; compute each tile of scores once.


# %% tags=["exercise"]
def tiled_forward(q, k, v, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention: q, k, v (B, H, L, C), left as they are, -> out (B, H,
    L, C) and the log-sum-exp of each row's scores (B, H, L), in q's dtype. A
    query reads what `mask` says: all before it, or a window of that. About 16
    lines."""
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
# `scores.amax(dim=-1)` is the maximum of each row in a tile, (B, H, r); `torch.maximum(top, …)` the largest so far.
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
# A tile adds `weights.sum(-1)` to `mass` and `weights @ v[:, :, columns]` to `total`, each after the multiplication by `shrink`. After
# the last tile write `out[:, :, rows]` and `lse[:, :, rows]`.
#
# </details>

# %% [markdown]
# **Backward.** Let $S$ be the scores of a tile, $P = e^{S - \mathrm{lse}}$ its weights, recomputed in one step, and
# $dO$ the gradient of the output $O = PV$. By the product rule,
#
# $$dV = P^\top dO, \qquad dP = dO\,V^\top.$$
#
# Through the softmax, a row $p$ of $P$ gets $ds = p \odot (dp - \sum_j p_j\, dp_j)$. The sum is over *all* keys of
# the row, so a single tile does not seem to be enough. But
#
# $$\sum_j p_j\, dp_j = \sum_j p_j\; (dO \cdot v_j) = dO \cdot \sum_j p_j v_j = dO \cdot O.$$
#
# Both $dO$ and $O$ are known: $\delta = \mathrm{rowsum}(dO \odot O)$.

# %% [markdown]
# With $S = QK^\top/\sqrt{C}$, the rest is the product rule once more. Each tile of queries and keys adds to
#
# $$dV \mathrel{+}= P^\top dO, \quad dS = P \odot (dO\,V^\top - \delta), \quad
# dQ \mathrel{+}= \frac{dS\,K}{\sqrt{C}}, \quad dK \mathrel{+}= \frac{dS^\top Q}{\sqrt{C}}.$$
#
# You are given $dO$ as `d_out` (B, H, L, C), and $\mathrm{lse}$ and $\delta$ as `lse` and `delta` (B, H, L).

# %% [markdown]
# ### Exercise 6 · `tiled_backward`
#
# Difficulty 4 · 20 minutes · 10 points
#
# Use the same two loops, and compute each tile of weights once. Use `lse` and `delta` as given: in
# [e02e · Context parallel](e02e_context_parallel.ipynb) they include keys that other ranks hold.


# %% tags=["exercise"]
def tiled_backward(
    q, k, v, d_out, lse, delta, mask: Mask
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk, dv, new tensors shaped as q, k, v, by tiles: the formulas above.
    What is given stays as it is. About 15 lines."""
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
# `lse[:, :, rows, None]` has the shape (B, H, r, 1). The derivative of softmax subtracts `delta` from the whole row:
# `d_scores = weights * (d_out_rows @ values.mT - delta[:, :, rows, None])`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A key is read by many rows: `dk[:, :, columns] += …` adds up, never `=`. With `queries` already divided by √C, `dk` needs no
# further scale, `dq` does.
#
# </details>

# %% [markdown]
# Your two functions now become the model's attention, in float64 so that rounding hides nothing.

# %% tags=["nbval-check-output"]
from minitrain.model.attention.tiled import Tiled


def tiled(q, k, v, mask=None):
    """Your pair, differentiable: `Tiled` saves q, k, v, out and lse."""
    times = q.shape[1] // k.shape[1]
    k, v = (z.repeat_interleave(times, dim=1) for z in (k, v))
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

# %% [markdown]
# **Experiment**: the peak of one forward and backward, not counting the inputs, for lengths from 128 to 2048: attention written out
# ("naive"), yours ("tiled") and PyTorch's kernel ("fused").

# %% tags=["experiment"]
heads, size = lab.size("heads"), lab.size("head_size")


def peak_of(attend, length):
    """Bytes at the peak of both passes, beyond q, k, v and the gradient."""
    shape = (1, heads, length, size)
    q, k, v = (torch.nn.Parameter(torch.randn(shape)) for _ in range(3))
    with MemoryLedger(torch.nn.ParameterList((q, k, v))) as ledger:
        d_out = torch.randn(shape)
        given = ledger.now_bytes
        ledger.reset_peak()
        torch.autograd.grad(attend(q, k, v, None), (q, k, v), d_out)
    return ledger.peak_bytes - given


# %% tags=["experiment"]
kernels = {"naive": attention_naive, "tiled": tiled, "fused": attention}
lengths = []
for name, attend in kernels.items():
    for length in lab.size("lengths"):
        row = {"kernel": name, "length": length, "heads": heads}
        row |= {"head_size": size, "peak_bytes": peak_of(attend, length)}
        lengths.append(row)

# %% tags=["grade"]
lab.experiment("lengths", lengths)

# %% tags=["picture", "folded"]
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
    ends = (Ls[-1], low * 1.15), (Ls[-1], high / 1.15)
    axes.annotate("", *ends, arrowprops={"arrowstyle": "->"})
    axes.text(
        Ls[-1] / 1.06,
        (low * high) ** 0.5,
        f"{high / low:.0f} x less",
        ha="right",
        weight="bold",
    )
show.figure(
    figure,
    alt="Peak bytes of attention against length, naive, tiled, fused; log axes",
)

# %% [markdown]
# **Explain**: from 256 tokens on, "naive" grows fourfold with each doubling of the length, "fused" twofold. "tiled" comes close
# to twofold only at the end, since the bytes of one tile do not grow. At 128 tokens there is only one tile, and tiling costs more
# than it saves.
#
# **Question**: written out, the peak grows as L². From your row at the longest length: at how many tokens does this one layer's
# attention fill a GPU of 80 GB (80e9 bytes)?

# %%
show.table(
    [
        {"tokens": L, **{f"{name}, peak (MB)": at[name, L] for name in kernels}}
        for L in Ls
    ],
    formats={f"{name}, peak (MB)": "{:.1f}".format for name in kernels},
)

# %% tags=["question"]
### BEGIN SOLUTION
longest_naive = Ls[-1] * (80e9 / (1e6 * at["naive", Ls[-1]])) ** 0.5
### LAB longest_naive = None  # tokens, your answer
### END SOLUTION

# %% tags=["grade"]
lab.answer("longest_naive", longest_naive)

# %% [markdown]
# **Takeaway**: at 2048 tokens tiled attention needs 17 times less memory than attention written out, with the same result. L² is gone
# from memory only: the FLOPs still grow with it.
#
# > **On GPUs.** Kernels do the same with tiles in on-chip memory, and so are faster, too: see
# > [triton.py](../minitrain/model/attention/triton.py). Activations that still do not fit can be moved to the CPU's memory:
# > [activation_offload.py](../minitrain/memory/activation_offload.py). All seconds in this lab were measured on a CPU.

# %%
lab.score(read="minitrain/memory/recompute.py")

# %% [markdown]
# Next: [e06 · LoRA](e06_lora.ipynb) teaches a trained model something new with a few new weights, or follow the
# [map of the course](index.ipynb).
