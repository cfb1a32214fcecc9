# %% [markdown]
# # e08 · Quantization
#
# **A trained model in 8, 4, 3 and 2 bits per weight: what each bit costs, and six methods that make rounding hurt less. You
# build them all.**
#
# 150 minutes · CPU is enough · before: [e04 · Mixed precision](e04_mixed_precision.ipynb) · [map of the course](index.ipynb)
#
# You build integer quantization with a scale per group, with and without a zero point; LLM.int8(); SmoothQuant; GPTQ; AWQ; and rounding
# that lets gradients through. Half-way you draw this picture: one model, rounded in four ways to four sizes, above the floor that no model
# can beat.
#
# ![Loss above the floor against bits a weight for rounding to nearest, AWQ, GPTQ and both: all meet at 8 bits and part at 3](../labs/pictures/e08_quantization.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, ideas, show

lab = Lab("e08_quantization")

# %% [markdown]
# ## 1 · A weight in four bits
#
# A model that answers one user reads all of its weights for every token. With 7 billion weights of 2 bytes that is 14 GB per token,
# and the time goes into memory traffic, not arithmetic. Fewer bits per weight therefore save memory *and* time.
#
# An integer of $b$ bits has $2^b$ codes. **Absmax** puts them symmetrically around zero. With $m = 2^{b-1} - 1$ (7 for 4 bits) a
# weight $w$ becomes the code $q$, under a scale $s$ that many weights share:
#
# $$s = \frac{\max |w|}{m}, \qquad q = \mathrm{round}\!\left(\frac{w}{s}\right), \qquad \hat w = s\, q.$$
#
# The error is at most half a step, $|w - \hat w| \le s/2$. So the *largest* weight decides how coarse the steps are for all.

# %%
ideas.integer_grids()

# %% [markdown]
# Hence **groups**: every $g$ weights along a row have their own scale. Smaller groups have smaller largest weights, but the
# scales cost $32/g$ bits per weight if each is a float32: with $g = 32$, 4 bits become 5.
#
# The sum of a matmul runs along a row of $W$ (F outputs, D inputs), and so do groups.
#
# ### Exercise 1 · `quantize_absmax`
#
# Difficulty 2 of 5 · 8 minutes · 8 points
#
# Watch out for groups of zeros, and for rows whose width is not a multiple of the group. Code −m − 1 is not used, so that w and −w have the
# same error. Ready-made quantization (`torch.fake_quantize_…`, `torch.quantize_…`) is refused in this lab.


# %% tags=["exercise"]
def quantize_absmax(w: torch.Tensor, bits: int, group: int):
    """w (F, D) float32, unchanged -> codes (F, D) int8 from -m to m, and scale
    (F, ⌈D/group⌉) float32, above 0 even for a group of zeros. The last group of a row
    may be smaller, or a group larger than the row. About 5 lines of yours."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.quantization.plain:quantize_absmax
    ### END SOLUTION


# %% tags=["grade"]
quantize_absmax = lab.grade(quantize_absmax)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Make groups a dimension: pad each row with zeros to a multiple of the group, then reshape to (F, G, g). Zeros do not change a largest
# magnitude.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.nn.functional.pad(w, (0, -width % group)).unflatten(1, (-1, group))`; the largest is `.abs().amax(dim=2)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `scale.clamp(min=torch.finfo(w.dtype).tiny)` keeps 0 / 0 away. Codes: `(tiles / scale[:, :, None]).round()`, then `.flatten(1)`, cut to
# the width, `.to(torch.int8)`.
#
# </details>

# %% [markdown]
# A symmetric grid wastes codes where weights lie on one side. The **zero point** $z$ shifts it. Let the range go from the smallest
# to the largest weight of the group, widened if necessary so that it contains 0. With $n = 2^b - 1$ steps,
#
# $$s = \frac{\max - \min}{n}, \qquad z = \mathrm{round}\!\left(\frac{-\min}{s}\right),$$
#
# $$q = \mathrm{clamp}\!\left(\mathrm{round}\!\left(\frac{w}{s}\right) + z,\; 0,\; n\right), \qquad \hat w = s\,(q - z).$$
#
# The clamp is needed, for example, if $\max = -\min$: then $\max/s$ and $z$ both end in a half, and both may be rounded up. $z$ is an integer,
# the code of 0. So 0 stays exactly 0, which padding and pruned weights rely on. For 2 bits the zero point matters most: absmax has 3 codes
# there, and with a zero point there are 4.

# %% [markdown]
# ### Exercise 2 · `quantize_zero_point`
#
# Difficulty 2 · 6 minutes · 8 points


# %% tags=["exercise"]
def quantize_zero_point(w: torch.Tensor, bits: int, group: int):
    """w (F, D) float32, unchanged -> codes (F, D) uint8 from 0 to 2^bits - 1; scale
    (F, ⌈D/group⌉) float32, above 0; zero of the same shape, uint8, the code of 0. A
    group of one sign only has 0 at its end. About 7 lines of yours."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.quantization.plain:quantize_zero_point
    ### END SOLUTION


# %% tags=["grade"]
quantize_zero_point = lab.grade(quantize_zero_point)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# The smallest and the largest of each group: `tiles.amin(dim=2)`, `tiles.amax(dim=2)`. Padding with zeros does no harm: 0 is in the
# range anyway.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `.clamp(max=0)` for the smallest, `.clamp(min=0)` for the largest: then the range holds 0.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `zero = (-low / scale).round()`; codes `((tiles / scale[:, :, None]).round() + zero[:, :, None]).clamp(0, 2**bits - 1)`.
#
# </details>

# %% [markdown]
# Now a model to quantize. The data are the stories of e01 with their exact floor, the entropy that no model can go below. The model
# trains in about ten seconds; the training loop is folded.

# %%
from minitrain.data.corpus import make_corpus
from minitrain.data.packing import pack
from minitrain.data.tokenizer import train_tokenizer

T = lab.size("length")
texts = make_corpus(lab.size("corpus"), seed=1), make_corpus(lab.size("tested"), seed=2)
tokenizer = train_tokenizer(texts[0].documents[:1500], 512)
floor = texts[1].entropy_per_token(tokenizer)
rows = [
    pack(tokenizer.encode_batch(t.documents), T, tokenizer.end_token) for t in texts
]
print(f"floor {floor:.3f} nats a token")

# %% tags=["experiment", "folded"]
import math
from copy import deepcopy
from itertools import chain

from minitrain.data.loader import Loader
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.training.loop import evaluate
from minitrain.training.loss import token_weighted_loss
from tqdm.auto import tqdm

D, B = lab.size("width"), lab.size("batch")
held_out = list(Loader(rows[1], 32, shuffle=False))
calibration = list(Loader(rows[0], 32, seed=5))[:4]


def train(model, steps, peak, seed=0):
    """AdamW, warmup and cosine, in place."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak)
    endless = chain.from_iterable(Loader(rows[0], B, seed=seed + k) for k in range(99))
    for step, batch in zip(tqdm(range(steps), leave=False), endless):
        share = min(1, (step + 1) / 20) * (1 + math.cos(math.pi * step / steps)) / 2
        for group in optimizer.param_groups:
            group["lr"] = peak * share
        logits = model(batch.tokens, batch.documents, batch.positions)  # (B, T, V)
        token_weighted_loss(logits, batch.targets, batch.tokens_counted).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model


def above(model):
    """Held-out loss above the floor, nats a token."""
    return evaluate(model, held_out) - floor


config = ModelConfig(512, D, lab.size("layers"), 4, 4, 2 * D, tied=True)
whole = train(build(config, seed=0), lab.size("steps"), 6e-3)
print(f"{above(whole):.3f} nats above the floor")

# %% [markdown]
# **Predict**: with 2 bits and one scale per row, how many nats above the floor will this model be? (A model that finds
# all 512 tokens equally likely is $\ln 512 - 0.73 = 5.5$ nats above.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 1.0
### LAB guess = None  # nats above the floor
### END SOLUTION
lab.predict("two_bits", guess)

# %% [markdown]
# The package's `quantize_model` goes through a model block by block. What it quantizes *with* is a `Method`: three functions, which are
# yours in this lab. The folded cell connects your functions to it; embedding, head and norms are not quantized.

# %% tags=["experiment", "folded"]
from minitrain.quantization.formats.names import named
from minitrain.quantization.methods.method import Method
from minitrain.quantization.model import quantize_model


def held(form, codes, scale, zero=None):
    """Your codes and scales as the package packs them: an absmax code from 0 on."""
    params = {"scale": scale.reshape(-1, 1)}
    if zero is not None:
        return form.hold(codes, params | {"zero": zero.reshape(-1, 1)})
    return form.hold((codes.int() + 2 ** (form.grid.bits - 1)).byte(), params)


def group_of(form, weight):
    """How many weights of a row share a scale; all of a matrix count as one row."""
    return min(getattr(form.tiling, "size", weight.numel()), weight.shape[1])


def nearest(weight, seen, form):
    """Your rounding to nearest, as a Method has it."""
    weight = weight.detach()
    if form.tiling.name == "tensor":
        codes, scale = quantize_absmax(
            weight.reshape(1, -1), form.grid.bits, weight.numel()
        )
        return held(form, codes.reshape(weight.shape), scale)
    has_zero = form.grid.name.endswith("z")
    function = quantize_zero_point if has_zero else quantize_absmax
    return held(form, *function(weight, form.grid.bits, group_of(form, weight)))


def rounded(model, form, method):
    """A copy of the model in this format, by this method."""
    return quantize_model(deepcopy(model), named(form), method, calibration)


def bits_of(model):
    """Bits a weight of the blocks' matrices, scales counted."""
    layers = [m.weight for m in model.blocks.modules() if hasattr(m, "format")]
    count = sum(layer.shape[0] * layer.shape[1] for layer in layers)
    return 8 * sum(layer.nbytes for layer in layers) / count


NEAREST = Method(round=nearest, calibrated=False)

# %% tags=["experiment"]
tilings = {"tensor": "-tensor", "row": "-row", "group": "-g32", "zero point": "z-g32"}
formats = [
    {"tiling": "float", "bits": 32, "bits_per_weight": 32.0, "above": above(whole)}
]
for tiling, ending in tilings.items():
    for bits in (8, 4, 3, 2):
        model = rounded(whole, f"int{bits}{ending}", NEAREST)
        row = {"tiling": tiling, "bits": bits, "bits_per_weight": bits_of(model)}
        formats.append({**row, "above": above(model)})

at = {(row["tiling"], row["bits"]): row["above"] for row in formats}
lab.reveal("two_bits", at["row", 2])

# %%
of = {"group": "group of 32", "zero point": "group of 32, zero point"}
show.table(
    [
        {"a scale for each": of.get(tiling, tiling)}
        | {f"{bits} bits": at[tiling, bits] for bits in (8, 4, 3, 2)}
        for tiling in tilings
    ],
    formats={f"{bits} bits": "{:.4f}".format for bits in (8, 4, 3, 2)},
)

# %% tags=["grade"]
lab.experiment("formats", formats)

# %% [markdown]
# **Explain**: these are nats above the floor; the float model is at 0.1337. Eight bits cost nothing measurable, four
# bits almost nothing. From 4 bits to 3 the step is $7/3$ times as wide, and the squared error grows 5.4 times; from 3 bits to 2
# the step triples, and the squared error grows 9 times. Measured, with a scale per row, 0.004 nats became 0.033, and then 1.8: the errors
# are no longer small compared with the weights, and the loss grows faster than the squared error.

# %% [markdown]
# At 2 bits the zero point wins by far. Absmax has the codes −1, 0 and 1, so all weights below half of the largest become 0:
# about three quarters of 32 normal numbers. A fourth code makes the step a third smaller.

# %% [markdown]
# **Takeaway**: 3 bits cost 0.033 nats with a scale per row, 0.023 with groups of 32, 0.012 with a zero point as well.

# %% [markdown]
# ## 2 · Activations have outliers
#
# To multiply in integers, and not only to store them, the activations $x$ (T tokens, D channels) need codes too. With one scale per
# token, $s_x$, and one per row of $W$, $s_w$, both can be factored out of the sum:
#
# $$y_{tf} = \sum_d x_{td}\, w_{fd} \;\approx\; s_{x,t}\; s_{w,f} \sum_d q^x_{td}\, q^w_{fd}.$$
#
# What remains is a sum of integers, which int8 units accumulate exactly in int32. A scale per *channel* of $x$ could not be factored out,
# because it changes with $d$, the index of the sum.

# %% [markdown]
# That is a pity, because it is the channels that differ. In models of about 6.7 billion parameters and more, a few channels are 20 to 100
# times as large as all others ([Dettmers et al. 2022](https://arxiv.org/abs/2208.07339)). One of them sets a token's scale, and 127 steps
# are too few for the rest.

# %%
ideas.outlier_columns()

# %% [markdown]
# **LLM.int8()** removes the columns in which any $|x|$ reaches 6 from both matrices. They are few, and are multiplied in floating
# point; the two results are added.
#
# ### Exercise 3 · `llm_int8`
#
# Difficulty 3 · 10 minutes · 10 points
#
# `multiply` is the integer unit. Call it once, with int8 operands; whether outlier columns are 0 there or left out is your choice.


# %% tags=["exercise"]
def llm_int8(x, codes, scale, multiply, threshold=6.0):
    """x (T, D) float32; W as codes (F, D) int8 and scale (F, 1), as `quantize_absmax`
    gives them for 8 bits and a group a row -> y (T, F) float32; all unchanged.
    `multiply(a, b)`: a (T, K) and b (F, K) int8 -> a b^T (T, F) int32.
    A column of x is an outlier's where any |x| of it reaches the threshold; x's
    scales, one a token, are taken over the columns that are none. About 7 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.quantization.plain:llm_int8
    ### END SOLUTION


# %% tags=["grade"]
llm_int8 = lab.grade(llm_int8)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# First find the outlier columns, (D,) bool. Then everything about int8 happens on x without them.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `outlier = x.abs().amax(dim=0) >= threshold`; `regular = x.masked_fill(outlier, 0)`; a token's scale is the largest of
# `regular.abs()` along dim 1, over 127, kept above 0.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `multiply(x_codes, codes) * x_scale * scale.t()`, plus `x[:, outlier] @ (codes[:, outlier] * scale).t()`.
#
# </details>

# %% [markdown]
# **SmoothQuant** leaves no outliers to remove. The layers that read $x$ are linear, so a channel may be divided by $s_j$ if the column of
# $W$ that reads it is multiplied by it:
#
# $$y = W x = (W\, \mathrm{diag}(s))\,(\mathrm{diag}(s)^{-1} x), \qquad
# s_j = \frac{\max |x_j|^{\alpha}}{\max |w_j|^{1-\alpha}}.$$
#
# The division is free: $x$ is the output of a norm, whose weight absorbs it. With $\alpha = \tfrac12$ the channel $j$ of $x$ and the column
# $j$ of $W$ end with the same largest magnitude, $\sqrt{\max|x_j| \max|w_j|}$: the difficulty is shared
# ([Xiao et al. 2023](https://arxiv.org/abs/2211.10438)).

# %%
ideas.moved_scale()

# %% [markdown]
# ### Exercise 4 · `smooth`
#
# Difficulty 2 · 6 minutes · 6 points
#
# Queries, keys and values read the same $x$: they share one $s$. A channel that is always 0, or a column of zeros, must not make it
# 0 or infinite: clamp both magnitudes to at least 1e-5.


# %% tags=["exercise"]
@torch.no_grad()
def smooth(norm, linears, max_abs: torch.Tensor, alpha: float = 0.5):
    """`norm.weight` (D,) and the `weight` (F, D) of each of `linears`, which read what
    the norm gives, are changed in place: no output changes. max_abs (D,): the largest
    |x| of each channel. Returns s (D,). About 5 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.quantization.plain:smooth
    ### END SOLUTION


# %% tags=["grade"]
smooth = lab.grade(smooth)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# The largest of a column over *all* linear layers: stack their `weight.abs().amax(dim=0)` and take the maximum.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In place: `norm.weight /= s`, and `linear.weight *= s`, which multiplies column j by s[j].
#
# </details>
# <details><summary>Hint 3</summary>
#
# `s = max_abs.clamp(min=1e-5) ** alpha / columns.clamp(min=1e-5) ** (1 - alpha)`.
#
# </details>

# %% [markdown]
# Our small model has no outliers. `plant_outliers` gives it some: it multiplies 4 channels of each norm by a factor, and
# divides the columns that read them by it. The function stays the same; the activations become as hard to quantize as a large model's.
#
# **Predict**: outliers times 100, W8A8 (weights and activations in 8 bits), one fixed scale for all activations. How many nats does it cost?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.5
### LAB guess = None  # nats
### END SOLUTION
lab.predict("spoiled", guess)

# %% tags=["experiment", "folded"]
from minitrain.quantization.layers.int8 import Int8Linear, per_tensor
from minitrain.quantization.methods.scales import junctions, plant_outliers


def integer_unit(a, b):
    """int8 (T, K) and (F, K) -> int32 (T, F), by torch's own kernel."""
    return torch._int_mm(a.contiguous(), b.t())


class Mine(Int8Linear):
    """A linear layer that multiplies by your `llm_int8`."""

    def multiply(self, x):
        codes = (self.codes ^ 128).view(torch.int8).view(self.out_features, -1)
        scale = self.scale.view(-1, 1)
        return llm_int8(x.float(), codes, scale, integer_unit, self.threshold)


def layer_with(threshold):
    return lambda weight, bias, seen: Mine(weight, bias, threshold=threshold)


def smooth_block(block, statistics, formats):
    """Your `smooth` on both norms of a block."""
    for junction in junctions(block):
        if junction.after_norm:
            seen = statistics[next(iter(junction.consumers))]
            smooth(junction.producer, list(junction.consumers.values()), seen.max_abs)


schemes = {
    "per_tensor": Method(round=nearest, layer=per_tensor),
    "per_token": Method(round=nearest, layer=layer_with(math.inf), calibrated=False),
    "llm_int8": Method(round=nearest, layer=layer_with(6.0), calibrated=False),
    "smooth": Method(prepare=smooth_block, round=nearest, layer=per_tensor),
}

# %% tags=["experiment"]
outliers = []
for factor in (1, 3, 10, 30, 100, 300):
    planted = plant_outliers(deepcopy(whole), factor)
    row = {"factor": factor, "float": above(planted)}
    for name, scheme in schemes.items():
        row[name] = above(rounded(planted, "int8-row", scheme))
    outliers.append(row)

hundred = next(row for row in outliers if row["factor"] == 100)
lab.reveal("spoiled", hundred["per_tensor"] - hundred["float"])

# %%
names = {"per_tensor": "one scale for all", "per_token": "one a token"}
names |= {"llm_int8": "LLM.int8()", "smooth": "SmoothQuant, one scale"}
factors = [row["factor"] for row in outliers]
costs = {k: [max(r[k] - r["float"], 1e-4) for r in outliers] for k in names}
show.lines(
    {names[key]: (factors, costs[key]) for key in names},
    x="planted outliers, times",
    y="nats lost in W8A8 (drawn from 0.0001 on)",
    log="xy",
)

# %% tags=["grade"]
lab.experiment("outliers", outliers)

# %% [markdown]
# **Question**: what is the smallest factor in your table at which one scale per token costs more than 0.05 nats?

# %% tags=["question"]
show.table(
    [
        {"outliers, times": row["factor"]}
        | {f"{names[key]} (nats lost)": row[key] - row["float"] for key in names}
        for row in outliers
    ],
    formats={f"{name} (nats lost)": "{:.4f}".format for name in names.values()},
)
### BEGIN SOLUTION
first_spoiled = min(
    row["factor"] for row in outliers if row["per_token"] - row["float"] > 0.05
)
### LAB first_spoiled = None  # your answer, a factor of the table
### END SOLUTION

# %% tags=["grade"]
lab.answer("first_spoiled", first_spoiled)

# %% [markdown]
# **Explain**: a single scale starts to cost at 30 and has failed at 100. One per token starts to cost at 100 and fails at 300. LLM.int8() and
# SmoothQuant hold. The same pattern shows in a model trained on real stories, stories15M: its perplexity of 4.24 became, with outliers times
# 100 and in the order of your table, 3,197, 9.29, 4.25 and 4.38.
#
# LLM.int8() loses a little at 300, which its activations do not explain. Planting has *divided* columns of $W$ by 300, and beside
# the other weights of a row those codes are 0. A real model's weights are not so: the paper reports no loss.
#
# **Takeaway**: with outliers times 100, one scale costs more than a nat, one a token 0.09, LLM.int8() 0.005 and SmoothQuant less than 0.001.

# %% [markdown]
# ## 3 · Columns that make up for one another
#
# Rounding to nearest makes the error of each *weight* small. What counts is the error of the *output*. For a change $\Delta W$ of the
# matrix it is, over T calibration tokens,
#
# $$\frac1T \lVert X\, \Delta W^{\top} \rVert^2 = \mathrm{tr}\!\left(\Delta W\, H\, \Delta W^{\top}\right), \qquad H = \frac1T X^{\top} X \quad (D \times D).$$
#
# Inputs that rise and fall together have large entries in $H$. There, an error in one column can be compensated by an opposite one in
# another. **GPTQ** ([Frantar et al. 2023](https://arxiv.org/abs/2210.17323)) goes through the columns from left to right. It rounds
# one, and adjusts all columns not yet rounded so that the error of the output is smallest.

# %% [markdown]
# Which move is that? Columns before $j$ are fixed. Let $R = H_{\ge j,\,\ge j}$ be the rows and columns of $H$ from $j$ on. We minimise
# $\Delta w\, R\, \Delta w^{\top}$ under the one condition that $\Delta w_j = \hat w_j - w_j$. With a Lagrange multiplier $\lambda$ for it the derivative is
# zero where $\Delta w\, R = \lambda\, e_j$ ($e_j$ the unit vector), so that $\Delta w$ is $\lambda$ times row $j$ of $R^{-1}$. The condition gives $\lambda$:
#
# $$\Delta w_k = -\,\frac{w_j - \hat w_j}{(R^{-1})_{jj}}\; (R^{-1})_{jk} \qquad (k > j).$$

# %% [markdown]
# An inverse for each column would cost $D^4$. But $H^{-1} = U^{\top} U$, with $U$ the upper Cholesky factor, has them all: row $j$ of $U$
# is row $j$ of that column's $R^{-1}$ over the root of its diagonal entry. So
#
# $$e = \frac{w_j - \hat w_j}{U_{jj}}, \qquad w_k \leftarrow w_k - e\; U_{jk} \quad (k > j).$$

# %%
ideas.column_loop()

# %% [markdown]
# Updating all later columns after each column reads and writes the matrix D times. GPTQ collects the errors $e$ of a **block** of
# columns, corrects within the block at once, and corrects everything beyond it with *one* matmul after the block. The result must not depend
# on the block's size.
#
# One trap: a group's scale is computed when its first column is reached, and by then *all* columns of the group must contain every earlier
# correction. If a block extended across a group's start, the group's columns to the right of the block would not. (The published code has
# this bug even inside a block.) So start a new block at each group's start: a block ends after `block` columns, or where its group ends.

# %% [markdown]
# ### Exercise 5 · `gptq`
#
# Difficulty 5 · 35 minutes · 14 points
#
# First make $H$ invertible. An input that was always 0 has a 0 on the diagonal: give it the mean of the others (1 if all are 0). Then add
# `damping` times the diagonal's mean to the whole diagonal. Compute in float64: `h` is that already (`.double()` gives no copy of it), and stays as it was; `quantize_absmax`
# wants float32. `torch.linalg.cholesky(…, upper=True)` gives $U$ of $H^{-1}$.


# %% tags=["exercise"]
def gptq(w, h, bits: int, group: int, block: int = 128, damping: float = 0.01):
    """w (F, D) float32, h (D, D) float64, both unchanged -> codes int8 (F, D) and scale
    float32 (F, ⌈D/group⌉), as `quantize_absmax` gives them (it serves for a group's
    scale). What is beyond a block is written once a block. About 18 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.quantization.plain:gptq
    ### END SOLUTION


# %% tags=["grade"]
gptq = lab.grade(gptq)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Three loops: groups; blocks within the group; columns within the block. At a group's start, fit its scale on the weights as they
# are *now*.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In a block: round column j, `error = (column - rounded) / U[j, j]`, keep it as a column of `errors`, and
# `part -= torch.outer(error, U[j, start:stop])`. U is 0 left of its diagonal, so columns that are done stay.
#
# </details>
# <details><summary>Hint 3</summary>
#
# After a block: `w[:, stop:] -= errors @ U[start:stop, stop:]`. H: `d = h.diagonal()` is a view; `d[d == 0] = mean of the others`;
# `d += damping * d.mean()`; `U = torch.linalg.cholesky(torch.linalg.inv(h), upper=True)`.
#
# </details>

# %% [markdown]
# **AWQ** corrects nothing after rounding; it prepares the weights before. Columns that meet large inputs matter most: such a column
# is multiplied by $s_j > 1$, and its input divided by $s_j$. As long as another column holds the group's largest weight the step stays the same, and the error of column
# $j$, divided by $s_j$ again, shrinks. Which $s$? With $\overline{|x_j|}$ the mean magnitude of input $j$,
#
# $$s_j = \frac{\overline{|x_j|}^{\,r}}{\sqrt{\max_k \overline{|x_k|}^{\,r} \cdot \min_k \overline{|x_k|}^{\,r}}}, \qquad r = 0, \tfrac1{20}, \dots, \tfrac{19}{20},$$
#
# where the root puts $s$ around 1, so that columns with small inputs get less. All ratios $r$ are tried: the one with the least output error $\mathrm{tr}(\Delta W H \Delta W^{\top})$ wins, where $\Delta W = Q(W s)/s - W$
# ([Lin et al. 2024](https://arxiv.org/abs/2306.00978)). $r = 0$ leaves all as it was: on its calibration data AWQ never loses.


# %%
def dequantize(codes, scale, group):
    """codes (F, D), scale (F, G) -> (F, D) float32."""
    return codes * scale.repeat_interleave(group, dim=1)[:, : codes.shape[1]]


# %% [markdown]
# ### Exercise 6 · `awq`
#
# Difficulty 3 · 8 minutes · 7 points
#
# Clamp the mean magnitudes to at least 1e-4: an input that is always 0 must not scale the others away. Of equal errors the first wins.


# %% tags=["exercise"]
def awq(w, mean_abs, h, bits: int, group: int, steps: int = 20):
    """w (F, D), mean_abs (D,), h (D, D), all float32 and unchanged -> the best s (D,),
    and the list of the output errors of the ratios k / steps, k = 0, …, steps - 1, as
    floats. Rounds by `quantize_absmax`. About 8 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.quantization.plain:awq
    ### END SOLUTION


# %% tags=["grade"]
awq = lab.grade(awq)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# One loop over k. In it: s, the rounded weight, its change against w, the error.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `change = dequantize(*quantize_absmax(w * s, bits, group), group) / s - w`. Without `/ s` the input would have to be divided.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The trace is `((change @ h) * change).sum().item()`; the best is `errors.index(min(errors))`, the first of equals.
#
# </details>

# %% [markdown]
# ### Two tasks beside the loss
#
# A loss is a mean over all tokens, and most of them are easy. Two tasks are harder. **Accuracy**: how often is the likeliest next token the
# right one? **Consistency**: each held-out story has a twin in which one pronoun contradicts it ("Otto sat in the garden. *She* found
# an egg."). How often does the model find the true story likelier? Chance is one half.

# %% tags=["experiment", "folded"]
from minitrain.data.stories.storyteller import contradicted

stories = make_corpus(120_000, seed=3).documents
pairs = [(story, contradicted(story)) for story in stories]
pairs = [pair for pair in pairs if pair[1]][: lab.size("twins")]


@torch.no_grad()
def log_likelihoods(model, documents):
    """log p of each document (N,), by the model."""
    ids = [torch.tensor(d) for d in tokenizer.encode_batch(documents)]
    tokens = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=0)
    logits = torch.cat([model(part) for part in tokens.split(64)])  # (N, T, V)
    of_next = logits[:, :-1].log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
    lengths = torch.tensor([len(i) for i in ids])
    inside = torch.arange(tokens.shape[1] - 1) < lengths[:, None] - 1
    return (of_next * inside).sum(1)


@torch.no_grad()
def tasks(model):
    """Shares from 0 to 1."""
    right = counted = 0
    for batch in held_out:
        guesses = model(batch.tokens, batch.documents, batch.positions).argmax(-1)
        right += (guesses == batch.targets).sum().item()
        counted += batch.tokens_counted
    true, twin = (log_likelihoods(model, side) for side in zip(*pairs))
    consistent = (true > twin).float().mean().item()
    return {"accuracy": right / counted, "consistent": consistent}


# %% [markdown]
# The methods meet on a model with planted outliers of factor 10, for in a small model all inputs are alike, and AWQ would have
# nothing to protect. "AWQ + GPTQ" scales by the one and rounds by the other.


# %% tags=["experiment", "folded"]
def gptq_round(weight, seen, form):
    """Your `gptq`, as a Method has it."""
    given = weight.detach(), seen.second_moment, form.grid.bits
    return held(form, *gptq(*given, group_of(form, weight)))


def awq_block(block, statistics, formats):
    """Your `awq` for each junction: what reads the same input has one s."""
    for junction in junctions(block):
        seen = statistics[next(iter(junction.consumers))]
        joined = torch.cat([m.weight.detach() for m in junction.consumers.values()])
        form = formats[next(iter(junction.consumers))]
        h = seen.second_moment.float()
        group = group_of(form, joined)
        s, _ = awq(joined, seen.mean_abs, h, form.grid.bits, group)
        junction.rescale(s)


ways = {
    "nearest": NEAREST,
    "AWQ": Method(prepare=awq_block, round=nearest),
    "GPTQ": Method(round=gptq_round),
    "AWQ + GPTQ": Method(prepare=awq_block, round=gptq_round),
}

# %% tags=["experiment"]
planted = plant_outliers(deepcopy(whole), 10)
first = {"method": "float", "bits": 32, "above": above(planted)}
methods = [first | tasks(planted)]
for name, way in ways.items():
    for bits in (8, 4, 3, 2):
        model = rounded(planted, f"int{bits}-row", way)
        row = {"method": name, "bits": bits, "above": above(model)}
        methods.append(row | tasks(model))

# %% tags=["picture", "folded"]
of = {(row["method"], row["bits"]): row for row in methods}
with show.canvas(width=9) as (figure, ax):
    sizes = [8, 4, 3, 2]
    for name, color, marker in zip(ways, show.COLORS, show.MARKERS):
        heights = [of[name, bits]["above"] for bits in sizes]
        ax.plot(range(4), heights, marker=marker, color=color, label=name)
    ax.axhline(first["above"], color="black", linestyle="--", linewidth=1)
    ax.text(2.3, first["above"] * 0.97, "float32", va="top", fontsize=9)
    ax.set_yscale("log")
    ticks = [0.1, 0.2, 0.5, 1, 2]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set_xticks(range(4), [f"{bits} bits" for bits in sizes])
    ax.set(
        ylabel="loss above the floor (nats)", xlabel="a scale a row; outliers times 10"
    )
    ax.legend(loc="upper left")
show.figure(
    figure,
    alt="Loss above the floor against bits a weight for rounding to nearest, AWQ, GPTQ and both: all meet at 8 bits and part at 3.",
)

# %% tags=["grade"]
lab.experiment("methods", methods)

# %% [markdown]
# **Question**: at 3 bits, what percentage of the loss that rounding to nearest *adds* to the float model does your GPTQ recover?

# %% tags=["question"]
show.table(
    [
        {
            "method": row["method"],
            "bits": row["bits"],
            "above the floor (nats)": row["above"],
            "next token right (%)": 100 * row["accuracy"],
            "true story likelier (%)": 100 * row["consistent"],
        }
        for row in methods
    ],
    formats={"above the floor (nats)": "{:.4f}".format}
    | dict.fromkeys(
        ["next token right (%)", "true story likelier (%)"], "{:.1f}".format
    ),
)
### BEGIN SOLUTION
added = of["nearest", 3]["above"] - of["float", 32]["above"]
closed = 100 * (of["nearest", 3]["above"] - of["GPTQ", 3]["above"]) / added
### LAB closed = None  # your answer, percent
### END SOLUTION

# %% tags=["grade"]
lab.answer("closed", closed)

# %% [markdown]
# **Explain**: at 3 bits GPTQ recovers about three fifths of the added loss. For LLaMA-7B its authors report perplexities of 5.68 in 16 bits,
# 25.54 rounded to nearest and 8.07 with GPTQ. Their logarithms are nats: 1.50 lost, 1.15 recovered, 77%. Our layers have 64 inputs,
# theirs 4,096: the more columns are still to come, the more can be compensated.

# %% [markdown]
# AWQ does here what it was made for, and a little more than GPTQ alone; at 2 bits it gains nothing, for with three codes every
# column is coarse. Both tasks hardly see 3 bits. At 2 bits, rounded to nearest, consistency falls to chance.
#
# **Takeaway**: 3 bits, outliers times 10: nearest ends 0.2345 nats above the floor, GPTQ 0.1725, AWQ 0.1668, both 0.1505, and the float
# model 0.1337.

# %% [markdown]
# ## 4 · Which layer needs the bits
#
# A model need not use a single format. `sensitivities` quantizes each layer alone, with all others in floats, and records what that costs. If
# costs add up, the best assignment is the one whose total cost is smallest while all bytes stay within a budget. This is a knapsack problem,
# and `deal_bits` solves it exactly.

# %% tags=["experiment"]
from minitrain.quantization.sensitivity import deal_bits, sensitivities

two, three = named("int2-row"), named("int3-row")
alone = sensitivities(whole, [two, three], calibration)
layers = [
    {
        "layer": name.removeprefix("blocks."),
        "bytes": cost[three].nbytes - cost[two].nbytes,
        "int2": cost[two].loss,
        "int3": cost[three].loss,
    }
    for name, cost in alone.items()
]

# %%
show.bars(
    [row["layer"][0] + "\n" + row["layer"].split(".")[-1] for row in layers],
    [1000 * row["int2"] for row in layers],
    x="block and layer",
    y="alone in 2 bits (thousandths of a nat)",
)

# %% tags=["grade"]
lab.experiment("layers", layers)

# %% [markdown]
# **Question**: a third bit costs a layer the bytes in your table. For which layer does it save the most loss *a byte*? (Both costs
# are in thousandths of a nat.)

# %% tags=["question"]
show.table(
    [
        {
            "layer": row["layer"],
            "2 bits cost (thousandths of a nat)": 1000 * row["int2"],
            "3 bits cost (the same)": 1000 * row["int3"],
            "the third bit (bytes)": row["bytes"],
        }
        for row in layers
    ],
    formats=dict.fromkeys(
        ["2 bits cost (thousandths of a nat)", "3 bits cost (the same)"],
        "{:.2f}".format,
    ),
)
### BEGIN SOLUTION
worth = {row["layer"]: (row["int2"] - row["int3"]) / row["bytes"] for row in layers}
dearest = max(worth, key=worth.get)
### LAB dearest = None  # your answer, a layer of the table, as text
### END SOLUTION

# %% tags=["grade"]
lab.answer("dearest", dearest)

# %%
budget = sum(c[two].nbytes + c[three].nbytes for c in alone.values()) // 2
dealt = deal_bits(alone, budget)
turned = {name: two if form == three else three for name, form in dealt.items()}
for words, chosen in {"dealt out": dealt, "the other way round": turned}.items():
    size = sum(alone[name][form].nbytes for name, form in chosen.items())
    summed = sum(alone[name][form].loss for name, form in chosen.items())
    lost = above(quantize_model(deepcopy(whole), chosen, NEAREST)) - above(whole)
    print(f"{words}: {size:,} bytes, {summed:.3f} nats in sum, {lost:.3f} together")

# %% [markdown]
# **Explain**: in each block the down projection suffers most; of all, the queries and keys of the last block suffer least. A byte, though, may be worth most where
# a layer is small. Both deals have the same bytes; the order of the layers makes all the difference.
#
# The sum is the theory, and it is wrong by a factor of four to five here: each cost was measured with clean inputs, while in a model that is rounded whole, a
# layer's inputs bear the errors of all before it. For a ranking the sum is good enough. For a promise it is not.
#
# **Takeaway**: 30,208 bytes cost 0.344 nats dealt out by sensitivity, and 1.335 the other way round.

# %% [markdown]
# ## 5 · Training that sees the rounding
#
# So far we have rounded a model that was trained without knowing it. **Quantization-aware training** (QAT) puts the rounding into the forward
# pass: $y = x\, Q(w)^{\top}$, and lets the float weights adapt to it. One thing is in the way. $Q$ is a staircase,
# whose derivative is 0 almost everywhere, so no gradient would arrive.
#
# The **straight-through estimator** lets the gradient pass as if $Q$ were the identity, where it follows $w$ at all: where a code was *clamped*, no
# small step of $w$ changes anything, and the gradient is 0 ([Bengio et al. 2013](https://arxiv.org/abs/1308.3432)).
#
# $$\frac{\partial Q(w)}{\partial w} := \begin{cases} 1 & |\mathrm{round}(w/s)| \le m \\ 0 & \text{else.} \end{cases}$$

# %%
ideas.straight_through()

# %% [markdown]
# ### Exercise 7 · `fake_quantize`
#
# Difficulty 3 · 8 minutes · 7 points
#
# What comes out must be *bit for bit* what will be deployed, code times scale. `w + (rounded - w)` is not, in floats. All that backward
# needs is where codes were clamped. A `torch.autograd.Function` or a trick with `detach` are both fine.


# %% tags=["exercise"]
def fake_quantize(w: torch.Tensor, scale: torch.Tensor, bits: int) -> torch.Tensor:
    """w (F, D) and scale (F, 1), both unchanged -> what is left of w, float32. Its
    gradient reaches w as it is where no code was clamped to ±m, and is 0 elsewhere. A mask
    of a byte a weight at most waits for backward, beside w itself. `scale` gets no
    gradient. About 4 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.quantization.plain:fake_quantize
    ### END SOLUTION


# %% tags=["grade"]
fake_quantize = lab.grade(fake_quantize)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Two parts: the rounded weight, which needs no graph; and something whose value is 0 and whose gradient is the mask.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.where(inside, w, w.detach())` has w's values, and w's gradient only inside; it keeps the mask alone.
#
# </details>
# <details><summary>Hint 3</summary>
#
# With `through` from hint 2: `rounded + (through - through.detach())`. The bracket is exactly 0, so no bit of `rounded` changes.
#
# </details>

# %% [markdown]
# **Run**: the trained model is trained for a hundred more steps with its weights rounded to 3 bits, with a scale per row that is computed anew
# at every step. For a fair comparison the float model is trained for the same hundred steps too, and quantized by GPTQ afterwards.


# %% tags=["experiment", "folded"]
class Rounded(torch.nn.Module):
    """A linear layer over a rounded copy of another one's weight."""

    def __init__(self, linear, bits):
        super().__init__()
        self.weight, self.bits = linear.weight, bits

    def forward(self, x):
        w = self.weight
        _, scale = quantize_absmax(w.detach(), self.bits, w.shape[1])
        return x @ fake_quantize(w, scale, self.bits).t()


def prepared(model, bits):
    """A copy whose blocks' layers are rounded as they run."""
    model = deepcopy(model)
    linears = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    for name, linear in linears.items():
        if name.startswith("blocks."):
            model.set_submodule(name, Rounded(linear, bits))
    return model


def deployed(trained, bits):
    """A float model with these weights, rounded for good."""
    model = build(config)
    model.load_state_dict(trained.state_dict())
    return rounded(model, f"int{bits}-row", NEAREST)


# %% tags=["experiment"]
tuning, peak = lab.size("tuning"), 1e-3
learned = train(prepared(whole, 3), tuning, peak, seed=50)
longer = train(deepcopy(whole), tuning, peak, seed=50)
losses = {
    "float": above(whole),
    "nearest": above(rounded(whole, "int3-row", NEAREST)),
    "GPTQ": above(rounded(whole, "int3-row", ways["GPTQ"])),
    "more training": above(longer),
    "more training, nearest": above(rounded(longer, "int3-row", NEAREST)),
    "more training, GPTQ": above(rounded(longer, "int3-row", ways["GPTQ"])),
    "QAT": above(learned),
    "QAT, deployed": above(deployed(learned, 3)),
}
qat = [{"way": way, "above": loss} for way, loss in losses.items()]
show.bars(
    [way.replace(" ", "\n") for way in losses],
    list(losses.values()),
    y="above the floor (nats)",
)

# %% tags=["grade"]
lab.experiment("qat", qat)

# %% [markdown]
# **Explain**: QAT ends below the best rounding after training, and even below the float model that it started from. But it has trained for a
# hundred more steps, so the fair comparison is with a float model that has, too: against that, QAT is 0.004 nats worse, GPTQ 0.014.
#
# torchao reports that QAT recovers up to 96% of what 4 bits cost Llama-3-8B in a benchmark's accuracy (README of torchao). Your
# bars give such a number for 3 bits: of what nearest rounding adds to the longer training, QAT takes back this share.

# %%
lost = losses["more training, nearest"] - losses["more training"]
back = losses["more training, nearest"] - losses["QAT"]
print(f"QAT takes back {100 * back / lost:.0f}% of {lost:.3f} nats")

# %% [markdown]
# **Takeaway**: in 3 bits, a hundred steps of QAT end 0.13 nats above the floor, GPTQ after the same hundred steps 0.14. What is
# deployed equals what was trained to the last bit.

# %% [markdown]
# ## 6 · What is won
#
# Bytes can be counted. Time has to be measured. A linear layer for T tokens needs at least
#
# $$\text{seconds} \ge \max\!\left( \frac{\text{bytes of } W}{\text{bandwidth}},\; \frac{2\, T F D}{\text{peak}} \right),$$
#
# with the bandwidth in bytes and the peak in operations a second, both measured on this machine. For one token the left side decides:
# a quarter of the bytes is a quarter of the time. For many tokens the right side does, and unpacking comes on top. Before each
# call 64 MB are written, so that $W$ is not found in a small cache.
#
# **Predict**: one token, a matrix of 4,096 x 4,096: how many times as fast is 4 bits as BF16? (Below 1: slower.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 3
### LAB guess = None  # a factor
### END SOLUTION
lab.predict("faster", guess)

# %% tags=["experiment", "folded"]
from functools import partial

from minitrain.measure.clock import compare, copy_bandwidth, matmul_peak
from minitrain.quantization.layers.linear import QuantLinear
from minitrain.quantization.layers.packed_kernels import kernel_for, roofline_seconds

N = lab.size("matrix")
matrix = torch.nn.Linear(N, N, bias=False, dtype=torch.bfloat16)
kernels = {"bfloat16": matrix}
for form in ("int8-row", "int4-g64"):
    layer = QuantLinear(nearest(matrix.weight.float(), None, named(form)))
    kernels[form] = kernel_for(layer.weight)(layer)
kernels["int4, unpacked first"] = layer
bandwidth, peak_flops = copy_bandwidth(), matmul_peak(torch.bfloat16)

scratch = torch.zeros(16_000_000)


def other_work():
    scratch.add_(1)


speed = []
for tokens in (1, 32):
    x = torch.randn(tokens, N).bfloat16()
    with torch.no_grad():
        runs = {name: partial(kernel, x) for name, kernel in kernels.items()}
        slow = {"int4, unpacked first": runs.pop("int4, unpacked first")}
        times = compare(runs, lab.size("repeats"), 2, before=other_work).timings
        times |= compare(slow, 3, 1, before=other_work).timings
    for name, kernel in kernels.items():
        size = sum(tensor.nbytes for tensor in kernel.state_dict().values())
        least = roofline_seconds(size, N * N, tokens, bandwidth, peak_flops)
        row = {"format": name, "tokens": tokens, "bytes": size, "roofline": least}
        speed.append(row | {"seconds": times[name].median})

sixteen, four = (
    next(r for r in speed if r["format"] == name and r["tokens"] == 1)
    for name in ("bfloat16", "int4-g64")
)
lab.reveal("faster", sixteen["seconds"] / four["seconds"])

# %% tags=["experiment"]
show.table(
    [
        {
            "format": row["format"],
            "tokens": row["tokens"],
            "W (MB)": row["bytes"] / 1e6,
            "measured (ms)": 1e3 * row["seconds"],
            "roofline (ms)": 1e3 * row["roofline"],
            "measured / roofline": row["seconds"] / row["roofline"],
        }
        for row in speed
    ],
    formats=dict.fromkeys(
        ["W (MB)", "measured (ms)", "roofline (ms)", "measured / roofline"],
        "{:.2f}".format,
    ),
)

# %% tags=["grade"]
lab.experiment("speed", speed)

# %% [markdown]
# **Explain**: the bytes are what was promised: a half, and with a scale and a shift of 16 bits each for 64 weights, 28%. For one token
# fewer bytes are less time. The roofline promises 0.50 and 0.28 of BF16's; measured were 0.4 to 0.6 and 0.2 to 0.4 in our runs. Where
# PyTorch's BF16 stays far above its own roof (last column) the gain is larger than promised; where it comes near, the gain is
# smaller, since unpacking takes a part of what is won. (With a large cache the last column may fall under 1: the bandwidth is that of a
# copy through memory.)

# %% [markdown]
# With 32 tokens the packed kernels are *slower* than BF16, in our runs by a factor of 1.4 to
# 3: every weight has to be unpacked, which now costs more than the memory traffic it saves. And if $\hat W$ is written
# out before it is multiplied ("unpacked first"), a call takes many times as long, for one token and for 32. "Why is 4-bit slower than
# 16-bit?" is among the most frequent questions to quantization libraries.
#
# **Takeaway**: on two cores one token in 4 bits took a fifth to two fifths of BF16's time, and 32 tokens took 1.4 to 3 times as long as
# in BF16. Quantize weights when few tokens are computed at a time. For many, multiply in int8 (section 2), or use BF16.

# %% [markdown]
# ## 7 · A model that others trained
#
# The same on stories15M, 15 million weights trained on TinyStories, if it is in the course's cache (`python -m minitrain assets
# stories15M` fetches it). Nothing in this section is graded. The model generates 32 short stories itself: it is calibrated on 20 of
# them, and evaluated on the others. On text that it generated, no other model can be better on average: its own perplexity is a floor.

# %% tags=["experiment", "folded"]
from minitrain.data.assets.fetch import fetch, is_cached
from minitrain.data.loader import Batch
from minitrain.model.hub.llama2c import load_llama2c


@torch.no_grad()
def told(model, first, length, count):
    """Stories (N, T) that the model samples from itself, all at once."""
    tokens = torch.full((count, 1), first)
    generator = torch.Generator().manual_seed(0)
    for _ in tqdm(range(length), leave=False):
        x = model.embed(tokens)
        last = model.stack(model.blocks, x, *model.surroundings(x))[:, -1]
        odds = model.head(model.norm(last)).softmax(-1)  # (N, V)
        drawn = torch.multinomial(odds, 1, generator=generator)
        tokens = torch.cat([tokens, drawn], dim=1)
    return tokens


def as_batch(tokens):
    """Whole rows, of one document each."""
    documents = torch.zeros_like(tokens[:, 1:])
    positions = torch.arange(documents.shape[1]).expand_as(documents)
    return Batch(tokens[:, :-1], tokens[:, 1:], documents, positions)


stories15m = []
if is_cached("stories15M") and lab.tier != "test":
    pretrained, words = load_llama2c(fetch("stories15M", progress=False))
    own = told(pretrained, words.bos_id, 48, 32)
    calibration, judged = [as_batch(own[:20])], [as_batch(own[20:])]
    loss = evaluate(pretrained, judged)
    stories15m.append({"method": "float32", "bits": 32, "perplexity": math.exp(loss)})
    for bits in (4, 3):
        for name in ("nearest", "GPTQ"):
            model = rounded(pretrained, f"int{bits}-g96", ways[name])
            row = {"method": name, "bits": bits}
            loss = evaluate(model, judged)
            stories15m.append(row | {"perplexity": math.exp(loss)})

if stories15m:
    show.table(stories15m, formats={"perplexity": "{:.2f}".format})
else:
    print("stories15M is not in the cache: this section is skipped")

# %% [markdown]
# **Explain**: in our run, with groups of 96, perplexity rose from 3.12 to 3.53 in 4 bits and to 9.01 in 3 bits; with GPTQ to 3.31 and 6.1. In
# nats, GPTQ recovers half of the loss at 4 bits and a good third at 3. It saw 960 calibration tokens here, its authors used 262,144:
# an $H$ of 768 inputs needs more.
#
# Next: the [map of the course](index.ipynb), or [e09 · Inference](e09_inference.ipynb), where the small model answers many users.

# %%
lab.score(read="minitrain/quantization/methods/gptq.py")
