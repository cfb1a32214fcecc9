# %% [markdown]
# # e07 · QLoRA
#
# **A frozen model in little more than 4 bits a weight, with a small trained adapter beside it. Of three ways to fine-tune, only one
# fits the memory: you build it, and avoid the trap at its end.**
#
# 100 minutes · CPU is enough · before: [e04 · Mixed precision](e04_mixed_precision.ipynb) and
# [e05 · Activation memory](e05_activation_memory.ipynb) · [map of the course](index.ipynb)
#
# You build the NF4 levels, blockwise quantization, packed bytes, double quantization, a linear layer with its own backward, and a
# pager for optimizer state. By the end you will have made this picture.
#
# ![Memory to fine-tune Llama models of 7B to 405B in full, with LoRA and with QLoRA, beside the memory of one card, and of eight](../labs/pictures/e07_qlora.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, ideas, show

lab = Lab("e07_qlora")

# %% [markdown]
# ## 1 · Sixteen numbers
#
# Full fine-tuning needs 16 bytes per parameter: the weight, its gradient and Adam's two moments. *LoRA*
# ([Hu et al. 2021](https://arxiv.org/abs/2106.09685)) freezes the weight matrix $W$ and trains two thin matrices beside it,
#
# $$y = W x + s\, B A x,$$
#
# where $A$ has $r$ rows, $B$ has $r$ columns, and $s$ is a fixed scale. Now only $A$ and $B$ have gradients and optimizer state.
# What remains is the frozen $W$: at 2 bytes per parameter it takes most of the memory.
#
# *QLoRA* ([Dettmers et al. 2023](https://arxiv.org/abs/2305.14314)) stores $W$ in 4 bits.

# %% [markdown]
# Four bits select one of sixteen numbers, the *levels*. Which sixteen? The obvious choice, *INT4*, spaces them evenly: $-7, -6,
# \dots, 7$, divided by 7. (That makes 15. The sixteenth code, $-8$, is left out to keep the two sides symmetric.) Weights are
# handled in blocks of 64, and each block is divided by its largest magnitude, its *scale*, so that it lies between $-1$ and $1$.
#
# **Predict**: the weights of a trained model look much like normal random numbers. What share of them is rounded to the three
# middle levels of INT4, $-\tfrac17$, $0$ and $\tfrac17$? (From 0 to 1; if all 15 levels were used equally it would be 0.2.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.3
### LAB guess = None  # a share from 0 to 1
### END SOLUTION
lab.predict("middle_share", guess, unit="share")

# %% [markdown]
# We train a small Llama on the course's stories: many about a village and a few about a forest. Later it is fine-tuned on the
# forest stories alone. Their entropy is known: it is the *floor*, the loss that no model can beat.

# %% tags=["experiment"]
from minitrain.data.corpus import make_corpus
from minitrain.data.packing import pack as pack_rows
from minitrain.data.tokenizer import train_tokenizer

village, mixed_in = make_corpus(400_000, seed=1), make_corpus(120_000, 3, "forest")
forest = make_corpus(200_000, 1, "forest"), make_corpus(lab.size("tested"), 2, "forest")
tokenizer = train_tokenizer(village.documents[:1000] + forest[0].documents[:1000], 512)
floor = forest[1].entropy_per_token(tokenizer)


def rows_of(documents):
    """Rows of `length` tokens."""
    encoded = tokenizer.encode_batch(documents)
    return pack_rows(encoded, lab.size("length"), tokenizer.end_token)


before_rows = rows_of(village.documents + mixed_in.documents)
train_rows, held_out = (rows_of(texts.documents) for texts in forest)
print(f"floor of the forest's stories: {floor:.3f} nats a token")

# %% tags=["experiment"]
from minitrain.data.loader import Loader
from minitrain.training.loss import token_weighted_loss


def loss_of(model, batch):
    """The mean over the batch's tokens, in nats."""
    logits = model(batch.tokens, batch.documents, batch.positions)  # (B, T, V)
    return token_weighted_loss(logits.float(), batch.targets, batch.tokens_counted)


@torch.no_grad()
def held_out_loss(model):
    batches = list(Loader(held_out, 16, seed=0))
    nats = sum(loss_of(model, batch).item() * batch.tokens_counted for batch in batches)
    return nats / sum(batch.tokens_counted for batch in batches)


def learned(model):
    """What is trained."""
    return [p for p in model.parameters() if p.requires_grad]


# %% [markdown]
# The next cell is folded: the training loop of e01, over whichever parameters are trainable.

# %% tags=["experiment", "folded"]
from tqdm.auto import trange


def train(model, rows, steps, rate, words):
    """AdamW; the learning rate rises over a tenth of the steps and falls to zero."""
    optimizer = torch.optim.AdamW(learned(model), lr=rate, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.1
    )
    batches = iter(())
    for step in trange(steps, desc=words):
        batch = next(batches, None)
        if batch is None:
            batches = iter(Loader(rows, lab.size("batch"), seed=step))
            batch = next(batches)
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
    return model


# %% tags=["experiment"]
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.quantization.model import layer_names

D = lab.size("width")
config = ModelConfig(512, D, lab.size("layers"), 4, 2, 2 * D, tied=True)
base = train(build(config), before_rows, lab.size("pretrain"), 4e-3, "pretraining")

names = layer_names(base)  # the linear layers of all blocks
weights = [base.get_submodule(name).weight.detach() for name in names]
blocks = torch.cat([weight.view(-1, 64) for weight in weights])
fractions = blocks / blocks.abs().amax(dim=1, keepdim=True)
lab.reveal("middle_share", ((7 * fractions).round().abs() <= 1).float().mean().item())

# %% [markdown]
# The picture shows why. The curve is the density of normal weights in a block. INT4 puts many levels where there are few weights,
# and few where there are many. Move the slider.

# %%
ideas.quantile_levels()

# %% [markdown]
# A code carries the most information when all levels are used equally often. (That is not the least squared error: Lloyd's
# algorithm, with $-1$, $0$ and $1$ kept, finds levels of 8.96% where NF4 has 9.20%.) For a known
# distribution, equal use is easy: cut it into intervals of equal probability and take the middle of each. Let $Q(p)$ be the
# *quantile function* of the normal distribution: a fraction $p$ of all numbers lies below $Q(p)$. (In PyTorch it is
# `torch.special.ndtri`.) With $k$ equal intervals, the middle of the last one is $Q\big(1 - \tfrac{1}{2k}\big)$.

# %% [markdown]
# This alone has two flaws. With 16 intervals no level is **exactly zero**, and zeros in a weight matrix should stay zeros. And
# QLoRA wants each block's largest magnitude to be represented exactly, whatever its sign: the outermost levels have to be $\pm 1$.

# %% [markdown]
# So *NF4* treats the two sides separately. With $b = 4$ bits there are $2^{b-1} - 1 = 7$ levels below zero, zero itself, and
# $2^{b-1} = 8$ above. The larger side would start at the outermost probability for 16 intervals, the smaller at that for 15. QLoRA's
# authors chose the mean of the two for both sides:
#
# $$p_\text{out} = 1 - \frac12\left(\frac{1}{2 \cdot 2^b} + \frac{1}{2\,(2^b - 1)}\right) = 1 - \frac12\left(\frac1{32} +
# \frac1{30}\right) = 0.96771.$$
#
# Each side goes from $p_\text{out}$ to $\tfrac12$ (the zero, counted once) in *equal steps of probability*: 8 steps
# above, 7 below. The quantiles are then divided by the largest, $Q(p_\text{out}) = 1.848$. The largest magnitude among 64 normal numbers
# lies further out, at about 2.6. So the outer levels are still used less often than the middle ones, but far more evenly than INT4's.

# %% [markdown]
# ### Exercise 1 · `normal_levels`
#
# Difficulty 2 of 5 · 8 minutes · 8 points
#
# Compute the levels of NF4, and of NF2, NF3, … in the same way. There is one more level above zero than below.


# %% tags=["exercise"]
def normal_levels(bits: int) -> torch.Tensor:
    """2**bits levels, float32, in ascending order from -1 to 1, one of them exactly 0;
    bits is 2 or more. About 6 lines."""
    ### BEGIN SOLUTION
    shares = 2**bits
    outermost = 1 - (1 / (2 * shares) + 1 / (2 * (shares - 1))) / 2
    above = torch.linspace(outermost, 0.5, shares // 2 + 1, dtype=torch.float64)[:-1]
    below = torch.linspace(outermost, 0.5, shares // 2, dtype=torch.float64)[:-1]
    sides = torch.special.ndtri(above), -torch.special.ndtri(below), torch.zeros(1)
    quantiles = torch.cat(sides).sort().values
    return (quantiles / quantiles.max()).float()
    ### END SOLUTION


# %% tags=["grade"]
normal_levels = lab.grade(normal_levels)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `torch.linspace(p_out, 0.5, n + 1)` makes n steps. Its last value is ½, whose quantile is zero: leave it out on both sides,
# and add one zero yourself.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Above: n = 2^(b-1) steps. Below: one step fewer, with the opposite sign: $Q(1 - p) = -Q(p)$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.cat([ndtri(above), -ndtri(below), torch.zeros(1)]).sort().values`, then divide by the maximum.
#
# </details>

# %% tags=["nbval-check-output"]
NF4 = normal_levels(4)
print([round(level, 4) for level in NF4.tolist()])

# %% [markdown]
# ## 2 · Blocks, codes, bytes
#
# A single scale for a whole matrix would be set by its largest weight, and all others would crowd into a few levels. With a scale for
# each block of 64 weights, an outlier only coarsens its own block. The picture has blocks of 8, one weight per column.
# Move the sliders: first add an outlier, then make the blocks smaller.

# %%
ideas.packed_block()

# %% [markdown]
# Blocks are cut from the *flattened* matrix: they run across the ends of rows, and the last one may be shorter.

# %% [markdown]
# Four details separate right from almost right.
#
# - The code is that of the **nearest** level. Levels are not evenly spaced, so rounding to integers will not do. The border between two
#   neighbours is their midpoint: 16 levels have 15 borders.
# - In a block of zeros the largest magnitude is 0, and $0/0$ is not a number. Such a block gets the code of the level 0; its scale is 0
#   or the smallest normal number.
# - A scale that is attached to a parameter's graph keeps the float weight alive, which defeats the purpose.
# - The distances of every weight to every level would take 16 floats per weight, 32 times the memory of its 16 bits. A search among
#   the borders (`torch.bucketize`) needs no such table.

# %% [markdown]
# ### Exercise 2 · `quantize_blocks`
#
# Difficulty 3 · 12 minutes · 10 points
#
# Return a code for each number and a scale for each block. The function will quantize weights with 16 levels, and something else
# with 256 in section 3.


# %% tags=["exercise"]
def quantize_blocks(x, levels, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x: n floats in any shape and float dtype, left as it is, perhaps a parameter: the
    results hang on no graph. Blocks are `size` of the flattened x. `levels` ascend from
    -1 to 1 and have a 0. -> codes (n,) uint8, each the place of the nearest level, and
    scales (number of blocks,) float32. About 8 lines."""
    ### BEGIN SOLUTION
    flat = x.detach().float().flatten()
    tiles = torch.nn.functional.pad(flat, (0, -len(flat) % size)).view(-1, size)
    scales = tiles.abs().amax(dim=1)
    fractions = tiles / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    borders = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(fractions, borders, out_int32=True)
    return codes.flatten()[: len(flat)].to(torch.uint8), scales
    ### END SOLUTION


# %% tags=["grade"]
quantize_blocks = lab.grade(quantize_blocks)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Start with `x.detach()`. Pad the flattened numbers with zeros to whole blocks, and reshape to (blocks, size). Zeros do not change a
# block's largest magnitude. Drop the codes of the padding at the end.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `tiles.abs().amax(dim=1)` gives the scales. Divide by `scales.clamp(min=…)` with the smallest normal float, so that a block of
# zeros is not divided by zero.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.bucketize(fractions, (levels[1:] + levels[:-1]) / 2)` counts the borders below each number: that is its code.
#
# </details>

# %% [markdown]
# A code below 16 needs half a byte. The first of two goes into the *high* half, as in bitsandbytes: `0x3` and `0xA` become
# `0x3A`. If the number of codes is odd, the last low half is 0.

# %% [markdown]
# ### Exercise 3 · `pack`
#
# Difficulty 1 · 4 minutes · 4 points


# %% tags=["exercise"]
def pack(codes: torch.Tensor) -> torch.Tensor:
    """codes: n of uint8, each under 16, left as they are -> bytes ((n + 1) // 2,) uint8,
    two codes each, the first in the high half. About 3 lines."""
    ### BEGIN SOLUTION
    codes = codes.flatten()
    pairs = torch.nn.functional.pad(codes, (0, len(codes) % 2)).view(-1, 2)
    return pairs[:, 0] << 4 | pairs[:, 1]
    ### END SOLUTION


# %% tags=["grade"]
pack = lab.grade(pack)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `codes[0::2]` are the first of each pair, `codes[1::2]` the second.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Multiplying by 16, or `<< 4`, moves a code to the high half. `|` combines the halves.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.nn.functional.pad(codes, (0, n % 2))` makes an odd number of codes even, with a 0 at the end.
#
# </details>

# %% [markdown]
# The inverse is given. `unpack` splits the bytes, and `dequantize` looks up each level and multiplies it by its block's
# scale.


# %% tags=["nbval-check-output"]
def unpack(held, count):
    """bytes -> the first `count` codes"""
    return torch.stack([held >> 4, held & 15], dim=1).flatten()[:count]


def dequantize(codes, scales, levels, size):
    """codes (n,), scales (blocks,) -> n floats, float32"""
    values = levels.index_select(0, codes.int())
    padded = torch.nn.functional.pad(values, (0, -len(values) % size)).view(-1, size)
    return (padded * scales[:, None]).flatten()[: len(values)]


codes, scales = quantize_blocks(torch.tensor([0.3, -0.9, 0.0, 0.1, 0.6]), NF4, 64)
held = pack(codes)
print(codes.tolist(), "in bytes:", [f"{byte:08b}" for byte in held.tolist()])
print("unpacked:", torch.equal(unpack(held, 5), codes))

# %% [markdown]
# **Experiment**: four 4-bit datatypes and two 3-bit ones, on the same weights in the same blocks of 64. *E2M1* is a float with 2
# exponent bits and 1 mantissa bit, divided by its largest value, 6. *FP4* is the type of that name in bitsandbytes: E2M1 with a smallest
# level of 0.0052 instead of 0.0833. The error is the root mean square over the standard deviation of the weights. The *divergence*
# (Kullback-Leibler) says how far the model's predictions have moved, in nats per token.

# %% tags=["experiment"]
from minitrain.quantization.formats.grids import float4_levels

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]) / 6  # its levels from 0 on
DATATYPES = {
    "NF4": NF4,
    "E2M1": torch.cat([-E2M1, E2M1]).unique(),
    "INT4": torch.arange(-7, 8) / 7,
    "FP4": torch.tensor(float4_levels()).unique(),
    "NF3": normal_levels(3),
    "INT3": torch.arange(-3, 4) / 3,
}


def rounded(x, levels):
    """x as the datatype leaves it"""
    return dequantize(*quantize_blocks(x, levels, 64), levels, 64).view_as(x)


def log_probabilities(model):
    with torch.no_grad():
        batches = Loader(held_out, 16, seed=0)
        return torch.cat([model(b.tokens, b.documents, b.positions) for b in batches])


# %% tags=["experiment"]
import copy

sample = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
plain, datatypes = log_probabilities(base).log_softmax(-1), []
for name, levels in DATATYPES.items():
    model = copy.deepcopy(base)
    for path, weight in zip(names, weights):
        model.get_submodule(path).weight.data.copy_(rounded(weight, levels))
    errors = torch.cat([(rounded(w, levels) - w).flatten() for w in weights])
    row = {"datatype": name, "levels": len(levels)}
    row["normal_error"] = (rounded(sample, levels) - sample).std().item()
    row["weight_error"] = (errors.std() / blocks.std()).item()
    moved = log_probabilities(model).log_softmax(-1)
    row["divergence"] = (plain.exp() * (plain - moved)).sum(-1).mean().item()
    row["loss"] = held_out_loss(model)
    datatypes.append(row)

# %% tags=["grade"]
lab.experiment("datatypes", datatypes)

# %%
show.table(
    [
        {
            "datatype": row["datatype"],
            "error, normal numbers (%)": 100 * row["normal_error"],
            "error, our weights (%)": 100 * row["weight_error"],
            "divergence (millinats a token)": 1e3 * row["divergence"],
            "loss above the floor (nats)": f"{row['loss'] - floor:.3f}",
        }
        for row in datatypes
    ],
    formats=dict.fromkeys(
        ["error, normal numbers (%)", "error, our weights (%)"], "{:.1f}".format
    )
    | {"divergence (millinats a token)": "{:.2f}".format},
)
print(f"unquantized: {held_out_loss(base) - floor:.3f} nats above the floor")

# %% [markdown]
# **Explain**: the two columns of errors are almost the same, so our weights are indeed close to normal. Among the 4-bit datatypes
# NF4 has the smallest error (9.2%), then E2M1 (10.6%), INT4 (10.8%), and bitsandbytes' FP4 (12.2%): its smallest level is so close
# to zero that it hardly counts as a level of its own. NF4 costs the model 0.003 nats, FP4 0.011. With one bit less the error doubles, and
# the divergence, which grows with the *square* of the error, is four to six times as large.

# %% [markdown]
# QLoRA's table 2 gives the mean perplexity of models from 125M to 13B: INT4 34.34, E2M1 31.07, E3M0 29.48, NF4 with double quantization
# 27.41. NF4 wins there too, and E2M1 beats INT4. But E3M0, whose levels are powers of two, beats both, with an error of 19% on normal weights.
# The error of the weights ranks datatypes only roughly; the model has the last word.

# %% [markdown]
# If `stories15M` is in the course's cache, the next cell does the same to a model that others trained. (When we ran it, the errors
# matched those of our own model to a tenth of a percent.)

# %% tags=["experiment"]
from minitrain.data.assets.fetch import fetch, is_cached
from minitrain.model.hub.llama2c import load_llama2c

if is_cached("stories15M"):
    llama, _ = load_llama2c(fetch("stories15M"))
    real = [llama.get_submodule(name).weight.detach() for name in layer_names(llama)]
    size = torch.cat([weight.flatten() for weight in real]).std()
    for name in ("NF4", "INT4", "FP4"):
        wrong = [(rounded(w, DATATYPES[name]) - w).flatten() for w in real]
        print(f"{name}: error {torch.cat(wrong).std() / size:.1%} of the deviation")
else:
    print("to see a real model here: python -m minitrain assets stories15M")

# %% [markdown]
# ## 3 · Scales are numbers too
#
# Blocks of 64 with a scale in float32 cost
#
# $$4 + \frac{32}{64} = 4.5 \text{ bits a weight,}$$
#
# and one bit in nine belongs to a scale. Larger blocks would cost less, and be less exact. QLoRA quantizes the scales instead, to 8
# bits, in blocks of 256 scales with one float32 scale each. This is *double quantization*.
#
# **Predict**: how many bits per weight does it save?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.37
### LAB guess = None  # bits a weight
### END SOLUTION
lab.predict("spared_bits", guess, unit="bit")

# %% [markdown]
# Your `quantize_blocks` quantizes numbers in blocks. But scales are not distributed like weights.
# They are all **positive**, and cluster around their mean. Divided by the largest of their block, they would all
# fall on the upper half of the levels, and half of the codes would never be used.
#
# So their mean is subtracted first: one mean for all scales of a matrix, in float32. What remains is small and lies on both sides
# of zero. The 256 levels are those that 8-bit optimizers use
# ([Dettmers et al. 2022](https://arxiv.org/abs/2110.02861)): dense around zero, with a few far out.

# %% tags=["experiment"]
from minitrain.optimizers.adam8bit import dynamic_map

EIGHT_BITS = dynamic_map(signed=True)  # 256 levels, ascending, from -1 to 1
_, scales = quantize_blocks(weights[0], NF4, 64)
print(f"scales of one matrix: {scales.min():.3f} … {scales.max():.3f}", end=", ")
print(f"mean {scales.mean():.3f}, standard deviation {scales.std():.3f}")

# %% [markdown]
# ### Exercise 4 · `compress`
#
# Difficulty 2 · 6 minutes · 8 points
#
# Subtract the mean, and quantize the rest with the given levels and block size.


# %% tags=["exercise"]
def compress(scales: torch.Tensor, levels, size: int) -> dict[str, torch.Tensor]:
    """scales (G,) float32, none below 0, left as they are -> `scale_codes` (G,) uint8,
    `scale_outer` (blocks of `size` scales,) float32, and `scale_mean` () float32. No
    other bytes are held. About 3 lines."""
    ### BEGIN SOLUTION
    mean = scales.mean()
    codes, outer = quantize_blocks(scales - mean, levels, size)
    return {"scale_codes": codes, "scale_outer": outer, "scale_mean": mean}
    ### END SOLUTION


# %% tags=["grade"]
compress = lab.grade(compress)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `scales.mean()` is a tensor of shape (), as required.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `quantize_blocks(scales - mean, levels, size)` gives the other two tensors.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `return {"scale_codes": codes, "scale_outer": outer, "scale_mean": mean}`
#
# </details>

# %% [markdown]
# This is what a quantized matrix now holds: packed codes and compressed scales. No scale may come out below zero, since that would
# flip the signs of 64 weights.


# %% tags=["experiment"]
class Held:
    """A weight (F, D) in NF4, blocks of `size`; `dequantize()` is what it stands for."""

    def __init__(self, weight, size=64, double=True):
        self.shape, self.size, self.double = weight.shape, size, double
        codes, scales = quantize_blocks(weight, NF4, size)
        small = compress(scales, EIGHT_BITS, 256) if double else {"scales": scales}
        self.tensors = {"codes": pack(codes), **small}

    def scales(self):
        held = self.tensors
        if not self.double:
            return held["scales"]
        left = dequantize(held["scale_codes"], held["scale_outer"], EIGHT_BITS, 256)
        return (left + held["scale_mean"]).clamp(min=0)

    def dequantize(self):
        codes = unpack(self.tensors["codes"], self.shape.numel())
        return dequantize(codes, self.scales(), NF4, self.size).view(self.shape)


# %% [markdown]
# **Experiment**: the bits actually held per weight for four block sizes, and the error that remains.

# %% tags=["experiment"]
bits = []
for size in (32, 64, 128, 256):
    for double in (False, True):
        held = [Held(weight, size, double) for weight in weights]
        nbytes = sum(t.nbytes for h in held for t in h.tensors.values())
        wrong = torch.cat(
            [(h.dequantize() - w).flatten() for h, w in zip(held, weights)]
        )
        row = {"block": size, "double": double, "weights": blocks.numel()}
        row |= {"bytes": nbytes, "matrices": len(weights)}
        row |= {"bits": 8 * nbytes / blocks.numel(), "error": wrong.std().item()}
        bits.append(row)

at_64 = {row["double"]: row for row in bits if row["block"] == 64}
lab.reveal("spared_bits", at_64[False]["bits"] - at_64[True]["bits"])

# %% tags=["grade"]
lab.experiment("bits", bits)

# %%
ideas.scale_bits()

# %%
show.table(
    [
        {
            "block": row["block"],
            "scales in": "8 bits" if row["double"] else "float32",
            "bits a weight, measured": row["bits"],
            "error (% of the deviation)": 100 * row["error"] / blocks.std().item(),
        }
        for row in bits
    ],
    formats={
        "bits a weight, measured": "{:.3f}".format,
        "error (% of the deviation)": "{:.3f}".format,
    },
)

# %% [markdown]
# **Explain**: the formula gives 4.500 and 4.127 bits for blocks of 64; you hold 4.129, because our small matrices have at most 512
# scales, and each matrix has a mean. The error grows from 9.181% to 9.184%, which no one would notice. The other way
# to save as much, blocks of 256 with float32 scales, also has 4.125 bits, but an error of 9.9%.
#
# **Takeaway**: double quantization saves 0.371 bits per weight here (0.373 in the paper), for 0.03% more error.
#
# **Question**: a model of 65 billion weights is held in blocks of 64. By your two rows for this block size, how many GB
# ($10^9$ bytes) does double quantization save?

# %% tags=["question"]
### BEGIN SOLUTION
spared_65b = 65 * (at_64[False]["bits"] - at_64[True]["bits"]) / 8
### LAB spared_65b = None  # GB, your answer
### END SOLUTION

# %% tags=["grade"]
lab.answer("spared_65b", spared_65b)

# %% [markdown]
# ## 4 · A frozen layer with its own backward
#
# No processor multiplies NF4 directly. So the layer dequantizes its bytes to $\hat W$, the weight in floats, multiplies, and drops it:
#
# $$y = x\, \hat W^\top, \qquad \frac{\partial L}{\partial x} = \frac{\partial L}{\partial y}\, \hat W.$$
#
# $x$ is $T$ tokens by $D$ features, $y$ is $T$ by $F$, and $L$ is the loss. Backward needs $\hat W$ once more. It does **not**
# need $x$: only the gradient of the weight would, and the weight is frozen.
#
# Suppose we write `x @ held.dequantize().T` and leave backward to autograd. What does it keep until then?
#
# **Predict**: the bytes that this line saves for backward, for a 256 x 128 weight in 4 bits, computing in float32 on 32 tokens.

# %% tags=["question"]
### BEGIN SOLUTION
guess = 4 * 256 * 128
### LAB guess = None  # bytes
### END SOLUTION
lab.predict("kept_bytes", guess, unit="B")

# %% tags=["experiment"]
from minitrain.measure.kept import kept_for_backward

held = Held(torch.randn(256, 128))
x = torch.randn(32, 128, requires_grad=True)
y, kept_bytes = kept_for_backward(lambda x: x @ held.dequantize().T, x)
lab.reveal("kept_bytes", kept_bytes, outs=256, ins=128)

# %% [markdown]
# **Explain**: autograd keeps all of $\hat W$ in floats, in every layer of the model, until backward reaches that layer. When backward
# begins, the *whole model* is in memory in floats again, and all savings are lost.
#
# The remedy of [e05](e05_activation_memory.ipynb): recompute instead of keeping. The picture shows three layers.
# Move the slider.

# %%
ideas.made_again()

# %% [markdown]
# ### Exercise 5 · `DequantizedMatmul`
#
# Difficulty 3 · 12 minutes · 16 points
#
# Forward dequantizes, multiplies and drops $\hat W$; backward dequantizes again. `layer.weight.dequantize()` gives a new
# $\hat W$, $F$ x $D$, in float32. x is multiplied in its own dtype: cast $\hat W$ to it. Backward need only remember the layer.


# %% tags=["exercise"]
class DequantizedMatmul(torch.autograd.Function):
    """`DequantizedMatmul.apply(x, layer)`: x (..., D) -> x Ŵᵀ (..., F), in x's dtype.
    Nothing of the size of Ŵ, and no x, waits for backward. About 5 lines of yours."""

    @staticmethod
    def forward(ctx, x, layer):
        ### BEGIN SOLUTION
        ctx.layer = layer
        return x @ layer.weight.dequantize().to(x.dtype).T
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy):
        """dy (..., F) -> a gradient for each input of forward: None for the layer."""
        ### BEGIN SOLUTION
        return dy @ ctx.layer.weight.dequantize().to(dy.dtype), None
        ### END SOLUTION


# %% tags=["grade"]
DequantizedMatmul = lab.grade(DequantizedMatmul)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `ctx.layer = layer` remembers the layer, whose bytes are in memory anyway. `ctx.save_for_backward` is not needed at all.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A linear layer multiplies by the transpose: `x @ W.T`. Its backward multiplies by `W` itself. Cast Ŵ to x's dtype first.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `return dy @ ctx.layer.weight.dequantize().to(dy.dtype), None`
#
# </details>

# %% [markdown]
# Your parts become a layer. Its bytes are *buffers*: they belong to the model, and no optimizer touches them. (`Held` reads them from
# its own dict, which `model.to(…)` does not reach. So cast a model first, and swap its layers last.)


# %% tags=["experiment"]
class QLinear(torch.nn.Module):
    """A frozen linear layer: your bytes, and your backward."""

    def __init__(self, linear):
        super().__init__()
        self.weight = Held(linear.weight)
        self.out_features, self.in_features = self.weight.shape
        for name, tensor in self.weight.tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, x):
        return DequantizedMatmul.apply(x, self)


layer = QLinear(torch.nn.Linear(128, 256, bias=False))
y, kept_bytes = kept_for_backward(layer, x)
print(f"saved for backward: {kept_bytes} bytes")

# %% [markdown]
# ## 5 · Three ways in one budget
#
# Now the models. *Full*: everything is trained, in float32. *LoRA*: the base in bfloat16, with rank-8 adapters in float32 beside
# every linear layer of the blocks. *QLoRA*: the same adapters, beside your `QLinear`. Embedding and norms stay in bfloat16. In
# all three the blocks are recomputed in backward, as in e05, so that activations stay small.
#
# Let $P$ be the number of parameters, $M$ those in the blocks' matrices, and $A$ those of the adapters. Then weights, gradients and
# optimizer state, together the *states*, take these bytes:
#
# | | weights | gradients and Adam |
# |---|---|---|
# | full | $4P$ | $12P$ |
# | LoRA | $2P + 4A$ | $12A$ |
# | QLoRA | $\tfrac{4.127}{8} M + 2\,(P - M) + 4A$ | $12A$ |

# %% tags=["experiment"]
from minitrain.finetuning import adapt
from minitrain.memory.segments import recompute
from minitrain.model.swap import swap_linears


def made(way):
    """The pretrained model, ready to be fine-tuned: full, LoRA or QLoRA."""
    model = copy.deepcopy(base)
    if way != "full":
        model = model.bfloat16()
        if way == "QLoRA":
            swap_linears(model, QLinear, keep=("head",))
        adapt(model, "lora", rank=lab.size("rank"), alpha=2 * lab.size("rank"))
    return recompute(model, "full")


# %% [markdown]
# A `memory_budget` makes "does not fit" a measured fact: it counts the bytes of every tensor, and raises `OutOfMemory` at the
# operation that exceeds the limit. Each method takes three steps on one text of 64 tokens, first without a limit while a ledger
# records its memory, then with one.

# %% tags=["experiment", "folded"]
from minitrain.measure.budget import OutOfMemory, memory_budget
from minitrain.measure.memory import MemoryLedger

one_text = next(iter(Loader(train_rows, 1, seed=0)))
STATES = ("parameters", "buffers", "gradients", "optimizer")


def three_steps(model):
    optimizer = torch.optim.AdamW(learned(model), lr=1e-3, fused=True)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        loss_of(model, one_text).backward()
        optimizer.step()
    return optimizer


def fits(way):
    model = made(way)
    try:
        with memory_budget(lab.size("budget")):
            three_steps(model)
    except OutOfMemory:
        print(f"{way}: out of memory")
        return False
    print(f"{way}: fits")
    return True


# %% tags=["experiment"]
from minitrain.planning.finetuning_memory import Tuning, tuning_memory

rank, double_bits = lab.size("rank"), 4 + 8 / 64 + 32 / (64 * 256)
TUNINGS = {
    "full": Tuning(),
    "LoRA": Tuning(rank),
    "QLoRA": Tuning(rank, double_bits),
}
budget = []
for way, tuning in TUNINGS.items():
    model = made(way)
    with MemoryLedger(model) as ledger:
        ledger.optimizer = three_steps(model)
        states = sum(ledger.now[category] for category in STATES)
    theory = tuning_memory(config, tuning)
    row = {"way": way, "state_bytes": states, "peak_bytes": ledger.peak_bytes}
    row["formula_bytes"] = theory.total - theory.activations
    row["fits"] = fits(way)
    budget.append(row)

# %% [markdown]
# Now each method trains on the forest stories, whether it fits or not, so that we see what the other two would have reached.

# %% tags=["experiment"]
tuned = {}
for row in budget:
    way = row["way"]
    rate = 3e-3 if way == "full" else 1e-2
    row["before"] = held_out_loss(made(way))
    tuned[way] = train(made(way), train_rows, lab.size("steps"), rate, way)
    row["loss"] = held_out_loss(tuned[way])

# %% tags=["grade"]
lab.experiment("budget", budget)

# %%
show.table(
    [
        {
            "way": row["way"],
            "states (MB)": row["state_bytes"] / 1e6,
            "by the formula (MB)": row["formula_bytes"] / 1e6,
            "peak of three steps (MB)": row["peak_bytes"] / 1e6,
            f"fits {lab.size('budget')}": "yes" if row["fits"] else "no",
            "above the floor before (nats)": row["before"] - floor,
            "and after (nats)": row["loss"] - floor,
        }
        for row in budget
    ],
    formats=dict.fromkeys(
        ["states (MB)", "by the formula (MB)", "peak of three steps (MB)"],
        "{:.2f}".format,
    )
    | dict.fromkeys(
        ["above the floor before (nats)", "and after (nats)"], "{:.3f}".format
    ),
)

# %% [markdown]
# **Explain**: the closed form is within 0.1% of the measurement for all three methods. LoRA removes the base's gradients and Adam state:
# 10.50 MB become 2.36. QLoRA shrinks the base, which leaves 1.49. Of these the adapters take $16A = 1.05$ MB: a large share of a small
# model, but 8% of a 70B one. QLoRA's peak is 0.87 MB above its states. It occurs in backward: beside the states there are the logits,
# and what `dequantize` allocates for one layer, $\hat W$ and its intermediate results. In the first step Adam has no state yet at
# that moment, and the peak is lower: that one step fits proves nothing.

# %% [markdown]
# And the quality? All start near 0.54 nats above the floor. Full fine-tuning gets down to 0.24, LoRA and QLoRA both to 0.32. So rank
# 8 costs something here, where the base has much to learn. The **four bits cost 0.005 nats**; before fine-tuning they cost 0.004.
#
# QLoRA's table 4 finds the same for LLaMA models from 7B to 65B. Their mean accuracy on MMLU after fine-tuning is 53.0% with 16-bit
# LoRA, 53.1% with NF4 and double quantization, and 52.2% with FP4.
#
# **Takeaway**: within a budget of 2.6 MB only QLoRA keeps running, with 1.49 MB of states instead of 2.36 and 10.50, and it gains as much
# as LoRA: 0.22 nats.

# %% [markdown]
# > **Time.** Recomputing has its price: each weight is dequantized twice in forward here (blocks are recomputed) and once in backward,
# > whatever the number of tokens, so its share falls as a step gets longer. Do not read times off this lab: many CPUs lack units for
# > bfloat16, so that LoRA and QLoRA can be several times *slower* here than full fine-tuning in float32. On GPUs it is the other way
# > round, and bitsandbytes has kernels that unpack and multiply.

# %% [markdown]
# ## 6 · The merge trap
#
# An adapter costs a little at every token, so after training one would like to *merge* it: $W' = \hat W + s\,BA$, one matrix, no
# adapter. The base was in 4 bits, so why not store $W'$ in 4 bits as well?
#
# In the base, every weight lies **on a level**. If what training adds is small compared with the distance between levels, most
# weights, rounded to 4 bits again, fall back to their old level. Others move by a whole step. Move the slider.

# %%
ideas.rounded_away()

# %% [markdown]
# **Experiment**: QLoRA trains once more, at a tenth of section 5's learning rate, so that the adapter is small. Kept beside its base, it
# is compared with three merges: in 16 bits, into 4 bits, and onto the *original* weights, which are more exact than $\hat W$ but not
# those that the adapter was trained with. We measure how far the logits move (root mean square), and the loss. The last
# row has no adapter at all: the original weights against $\hat W$, before any fine-tuning.

# %% tags=["experiment"]
from minitrain.finetuning.layer import adapted_layers


def linear_of(weight):
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = torch.nn.Parameter(weight.to(torch.bfloat16))
    return linear


MERGES = {
    "beside the base": lambda adapted, original: adapted,
    "merged in 16 bits": lambda adapted, _: linear_of(
        adapted.base_layer.weight.dequantize() + adapted.adapter.delta()
    ),
    "merged into 4 bits": lambda adapted, _: QLinear(
        linear_of(adapted.base_layer.weight.dequantize() + adapted.adapter.delta())
    ),
    "onto the original": lambda adapted, original: linear_of(
        original + adapted.adapter.delta()
    ),
}


# %% tags=["experiment"]
def merged(model, way):
    """The model with its adapters merged this way, and the share of codes that stayed."""
    model, stayed = copy.deepcopy(model), []
    for path, adapted in adapted_layers(model).items():
        linear = MERGES[way](adapted, base.get_submodule(path).weight.detach())
        if isinstance(linear, QLinear):
            old, new = adapted.base_layer.weight, linear.weight
            count = old.shape.numel()
            codes = [unpack(held.tensors["codes"], count) for held in (old, new)]
            stayed.append(codes[0] == codes[1])
        model.set_submodule(path, linear)
    return model, torch.cat(stayed).float().mean().item() if stayed else None


def distance(logits, others):
    return (logits.float() - others.float()).square().mean().sqrt().item()


# %% tags=["experiment"]
small = train(made("QLoRA"), train_rows, lab.size("steps"), 1e-3, "QLoRA, small rate")
merge, reference_logits = [], log_probabilities(small)
for way in MERGES:
    model, stayed = merged(small, way)
    row = {"way": way, "moved": distance(log_probabilities(model), reference_logits)}
    row |= {"loss": held_out_loss(model), "codes_stayed": stayed}
    merge.append(row)

untrained = [log_probabilities(made(way)) for way in ("LoRA", "QLoRA")]
row = {"way": "no adapter, original", "moved": distance(*untrained)}
row |= {"loss": budget[1]["before"], "codes_stayed": None}
merge.append(row)
start, best = budget[-1]["before"], merge[0]["loss"]

# %% tags=["grade"]
lab.experiment("merge", merge)

# %%
show.table(
    [
        {
            "way": row["way"],
            "logits move by": row["moved"],
            "loss above the floor (nats)": row["loss"] - floor,
            "codes that stayed": ""
            if row["codes_stayed"] is None
            else f"{row['codes_stayed']:.0%}",
        }
        for row in merge
    ],
    formats={
        "logits move by": "{:.3f}".format,
        "loss above the floor (nats)": "{:.4f}".format,
    },
)
model, stayed = merged(tuned["QLoRA"], "merged into 4 bits")
rises = held_out_loss(model) - budget[-1]["loss"]
print(f"section 5's adapter: {stayed:.0%} of the codes stay, {rises:.4f} nats lost")

# %% [markdown]
# **Explain**: merged in 16 bits, the logits move by 0.01, the rounding of bfloat16. Merged into 4 bits, they move by 0.15: 92% of
# the codes are the old ones, and part of what was learned is gone. The adapter of section 5 is larger: only 36% of the codes stay, and
# 0.007 nats are lost out of a larger gain. The smaller the adapter, the deeper the trap.

# %% [markdown]
# "Onto the original" moves the logits by 0.126, about as far as the original weights do without any adapter. It removes the errors of
# $\hat W$, but the adapter was trained with them. Here that costs little loss, and still it is not the model that you evaluated.
#
# **Takeaway**: dequantize, add, and **keep 16 bits**. If you need 4 bits, keep the adapter beside them. The package's `merge`
# never goes back to 4 bits.

# %% [markdown]
# **Question**: fine-tuning at the small rate brought the loss from `start` to `best`. What share of this gain does merging into 4 bits
# lose? Use your table, `start` and `best`.

# %% tags=["question"]
### BEGIN SOLUTION
into_4_bits = next(row["loss"] for row in merge if row["way"] == "merged into 4 bits")
lost_share = (into_4_bits - best) / (start - best)
### LAB lost_share = None  # a fraction, your answer
### END SOLUTION

# %% tags=["grade"]
lab.answer("lost_share", lost_share)

# %% [markdown]
# ## 7 · A pager for the optimizer
#
# One thing can still end a run: a long text. Its activations are freed after the step, but they need memory for a moment, and one
# such moment is enough for an out-of-memory error. QLoRA keeps Adam's state in *unified memory*, divided into **pages**, which the driver
# may move to the CPU's memory when the GPU's runs short. When the optimizer touches a page that was moved away, that is a *page fault*,
# and the page is brought back.
#
# **Predict**: the state has 9 pages, and there is room for 8. Each optimizer step goes through all pages in order, and the page
# touched longest ago makes room. How many of the 9 pages fault in each step?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 1
### LAB guess = None  # pages a step
### END SOLUTION
lab.predict("faults", guess)

# %% [markdown]
# What a pager does at each touch:
#
# - A page touched for the **first time** is *created*: nothing is read, and it is not a fault.
# - A page that is **away** is a fault. Its bytes are brought in from the CPU.
# - If there is no free *frame* (room for one page), the page touched **longest ago** is evicted (*least recently used*, LRU). If
#   it has been written since it came in, it is *dirty*, and its bytes go out. A clean page is dropped: the CPU still has it, or it
#   was created and never written.
# - Touching a page makes it the most recently used one, even if it was resident already.

# %% [markdown]
# ### Exercise 6 · `PageTable`
#
# Difficulty 4 · 15 minutes · 14 points
#
# Write `touch` and `evict_to`. An `OrderedDict` remembers its order: `resident.popitem(last=False)` removes the first entry.


# %% tags=["exercise"]
from collections import OrderedDict


class PageTable:
    """Which pages are in memory, of which `capacity_bytes` are theirs. About 12 lines."""

    def __init__(self, capacity_bytes: int, page_bytes: int = 2**16):
        self.page_bytes, self.frames = page_bytes, capacity_bytes // page_bytes
        self.resident = OrderedDict()  # page -> is it dirty? The oldest touch first
        self.ranges = {}  # key -> its own page numbers, in order
        self.faults = self.bytes_in = self.bytes_out = 0

    def touch(self, key, nbytes: int, write: bool = True) -> None:
        """Reads all pages of `key` in order, and writes them if `write`. A new key gets
        pages of its own, as many as hold `nbytes`. A fault counts, and page_bytes come
        in; never are more than `frames` pages resident."""
        ### BEGIN SOLUTION
        new = key not in self.ranges
        if new:
            first = sum(map(len, self.ranges.values()))
            self.ranges[key] = range(first, first + -(-nbytes // self.page_bytes))
        for page in self.ranges[key]:
            if page not in self.resident and not new:
                self.faults += 1
                self.bytes_in += self.page_bytes
            dirty = self.resident.pop(page, False) or write
            self.evict_to(self.frames - 1)
            self.resident[page] = dirty
        ### END SOLUTION

    def evict_to(self, count: int) -> None:
        """Leaves at most `count` pages, the last touched; dirty ones that go: bytes out."""
        ### BEGIN SOLUTION
        while len(self.resident) > count:
            _, dirty = self.resident.popitem(last=False)
            self.bytes_out += self.page_bytes if dirty else 0
        ### END SOLUTION


# %% tags=["grade"]
PageTable = lab.grade(PageTable)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `-(-nbytes // page_bytes)` rounds up. The pages of a new key come after those of all earlier keys.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For each page: count a fault if it is not resident and the key is not new; `pop` it from `resident`, make room for one more,
# and put it back in, which places it at the end.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `dirty = self.resident.pop(page, False) or write`, then `self.evict_to(self.frames - 1)`, then
# `self.resident[page] = dirty`. A dirty page stays dirty when it is only read.
#
# </details>

# %% [markdown]
# Your table now stands behind a real optimizer: `paged` reports every access of AdamW to its state. The tensors themselves do
# not move here, so the steps are bit for bit those of plain AdamW. We count what a GPU would have moved.

# %% tags=["experiment"]
from minitrain.memory.paged_optimizer import paged
from minitrain.optimizers.adamw import NaiveAdamW

PAGE = 1024  # bytes; on a GPU 64 KiB


def run_paged(frames, steps=3):
    """Adapters of QLoRA under a table of so many frames: faults and bytes a step."""
    model = made("QLoRA")
    table = PageTable(frames * PAGE, PAGE)
    optimizer = paged(NaiveAdamW, learned(model), table, lr=1e-3)
    loss_of(model, one_text).backward()
    optimizer.step()  # makes the state
    made_so_far = table.faults, table.bytes_in, table.bytes_out
    for _ in range(steps):
        optimizer.step()
    moved = (table.faults, table.bytes_in, table.bytes_out)
    return table, [(now - then) / steps for now, then in zip(moved, made_so_far)]


# %% tags=["experiment"]
table, _ = run_paged(10**6)
count = len(table.resident)
pages = []
for frames in (count // 2, count - 1, count, count + 1):
    _, (faults, bytes_in, bytes_out) = run_paged(frames)
    row = {"frames": frames, "pages": count, "page_bytes": PAGE}
    row |= {"faults": faults, "bytes_in": bytes_in, "bytes_out": bytes_out}
    pages.append(row)

nine = PageTable(8 * PAGE, PAGE)
for _ in range(3):  # the first makes the pages
    for page in range(9):
        nine.touch(page, PAGE)
lab.reveal("faults", nine.faults / 2)

# %% tags=["grade"]
lab.experiment("pages", pages)

# %%
show.table(
    [
        {
            "frames": row["frames"],
            "pages of state": row["pages"],
            "faults a step": row["faults"],
            "in (kB a step)": row["bytes_in"] / 1e3,
            "out (kB a step)": row["bytes_out"] / 1e3,
        }
        for row in pages
    ],
    formats=dict.fromkeys(
        ["faults a step", "in (kB a step)", "out (kB a step)"], "{:,.0f}".format
    ),
)

# %%
ideas.page_table()

# %% [markdown]
# **Explain**: with as many frames as pages nothing ever moves. With *one* frame fewer, *every* page faults in every step: when
# its turn comes, it has just been evicted. It is a cliff, not a slope, and a well-known weakness of LRU under cyclic access.
#
# Adam's state for the adapters of a 7B model (rank 16, 40 million parameters) takes $8 \cdot 40\text{M} = 320$ MB. Over a
# 25 GB/s link it goes out and back in 26 ms, and only in steps with a long text. A step that is 26 ms late is better than a run
# that has ended.

# %% [markdown]
# ## 8 · Which card holds which model
#
# The formula of section 5 was right for your small models. Now apply it to large ones: Llama 2 with 7B, 13B and 70B,
# and Llama 3 with 405B, at rank 16, one text of 512 tokens, blocks recomputed, in 16-bit training (whose 2 + 2 + 12 bytes per parameter
# also add up to 16).

# %% tags=["experiment"]
from minitrain.model.config import preset

MODELS = {
    "7B": "llama2-7b",
    "13B": "llama2-13b",
    "70B": "llama2-70b",
    "405B": "llama3-405b",
}
LARGE = {"full": Tuning(), "LoRA": Tuning(16), "QLoRA": Tuning(16, double_bits)}
cards = []
for name, shape in MODELS.items():
    for way, tuning in LARGE.items():
        memory = tuning_memory(preset(shape), tuning)
        row = {"model": name, "way": way, "bytes": memory.total}
        row |= {"base_bytes": memory.base, "activation_bytes": memory.activations}
        cards.append(row)

# %% tags=["grade"]
lab.experiment("cards", cards)

# %% tags=["picture", "folded"]
CARDS = {
    "24 GB (RTX 4090)": 24e9,
    "48 GB (A6000)": 48e9,
    "80 GB (H100)": 80e9,
    "8 x H100": 640e9,
}
needed = {(row["model"], row["way"]): row["bytes"] / 1e9 for row in cards}
with show.canvas(width=8.4, height=4.6) as (figure, axes):
    show.bars(
        list(MODELS),
        {way: [needed[name, way] for name in MODELS] for way in LARGE},
        y="memory to fine-tune (GB)",
        x="parameters of the model",
        title="Which card holds which model",
        ax=axes,
    )
    axes.set_yscale("log")
    axes.set_ylim(3, 15e3)
    axes.set_xlim(-1.35, 3.5)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    for height in axes.texts:  # on the cards' lines, not under them
        height.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    for card, size in CARDS.items():
        axes.axhline(size / 1e9, color="#444444", linestyle="--", linewidth=1)
        axes.text(-1.3, size / 1e9 * 1.06, card, ha="left", fontsize=8)
show.figure(
    figure,
    alt="Memory to fine-tune models of 7B to 405B in full, with LoRA and with QLoRA, on a log axis, with the memory of four cards as lines.",
)

# %% [markdown]
# **Explain**: read along the dashed lines. A 24 GB card holds the 7B model with LoRA, and the 13B with QLoRA. The 70B needs 142 GB with
# LoRA and 40 GB with QLoRA: one 48 GB card, which is what the QLoRA paper promises for 65B. Full fine-tuning of even the 7B (108 GB) fits
# none of these cards alone.
#
# **Question**: suppose the texts have 8,192 tokens instead of 512, which makes activations 16 times as large. Each card works on its own
# text and holds its activations; everything else is split evenly over the cards. Eight H100s still hold the 405B with QLoRA. How many
# would 16-bit LoRA need at least? (80e9 bytes each. Your table has the bytes.)

# %%
show.table(
    [
        {
            "model": name,
            **{f"{way} (GB)": needed[name, way] for way in LARGE},
            "of these, activations (GB)": next(
                row["activation_bytes"] / 1e9 for row in cards if row["model"] == name
            ),
            "of QLoRA, the base (%)": next(
                100 * row["base_bytes"] / row["bytes"]
                for row in cards
                if (row["model"], row["way"]) == (name, "QLoRA")
            ),
        }
        for name in MODELS
    ],
    formats={f"{way} (GB)": "{:,.1f}".format for way in LARGE}
    | {"of these, activations (GB)": "{:.2f}".format}
    | {"of QLoRA, the base (%)": "{:.0f}".format},
)

# %% tags=["question"]
### BEGIN SOLUTION
lora = next(r for r in cards if (r["model"], r["way"]) == ("405B", "LoRA"))
cut = lora["bytes"] - lora["activation_bytes"]
h100s = int(-(-cut // (80e9 - 16 * lora["activation_bytes"])))
### LAB h100s = None  # cards, your answer
### END SOLUTION

# %% tags=["grade"]
lab.answer("h100s", h100s)

# %% [markdown]
# **Worked out: 405B on eight H100s.** They have $8 \cdot 80 = 640$ GB. Full fine-tuning needs 6,496 GB, ten times as much. LoRA's base
# alone takes 812 GB: no. QLoRA's base takes $\tfrac{4.127}{8} \cdot 401.6\text{B} = 207$ GB for its matrices, and 8.4 GB for embedding and
# head, which stay in 16 bits. Split over eight cards ([ZeRO-3](e03_zero.ipynb)), this is 27 GB per card.

# %% [markdown]
# The rank-16 adapters have 623 million parameters; at 16 bytes each they take 10 GB, 1.2 per card. A text of 512 tokens takes 2.4 GB
# of activations on *every* card. That makes 31 of 80 GB, and leaves room for texts ten times as long. Not counted is what lives only
# for a moment: $\hat W$ of one layer in 16 bits (1.7 GB for an MLP matrix), the logits, and the framework's own memory.
#
# **Takeaway**: 6,496 GB for full fine-tuning, 824 for LoRA, 228 for QLoRA. The eight cards hold the last, with room to spare.

# %%
lab.score(read="minitrain/quantization/layers/linear.py")

# %% [markdown]
# Next: [e08 · Quantization](e08_quantization.ipynb) rounds a trained model without training it again; or return to the
# [map of the course](index.ipynb).
