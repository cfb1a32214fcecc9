# %% [markdown]
# # e04 · Mixed precision
#
# **Half the bytes of a number, or a quarter, or an eighth: what is lost, where it shows, and the three devices that win
# it back. You build all three.**
#
# 60 minutes · CPU is enough · before: [e03 · ZeRO](e03_zero.ipynb) · [map of the course](index.ipynb)
#
# You build: dynamic loss scaling, master weights, stochastic rounding, the cast to FP8, block scales and delayed scales.
# You end with this picture: one model trained in eight formats, over the floor that no model can beat.
#
# ![Held-out loss above the entropy floor of one small model in eight number formats: plain FP16 and plain BF16 stand far above the others](../labs/pictures/e04_mixed_precision.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, show

lab = Lab("e04_mixed_precision")

# %% [markdown]
# ## 1 · Too small to be written
#
# A float has a sign, exponent and mantissa. FP16 (5 and 10 bits) is precise, and ends at 6e-8 below and 65,504 above.
# BF16 (8 and 7 bits) reaches as far as float32, and is coarse.
#
# The stories of e01 again, with their exact floor:

# %%
from minitrain.data.corpus import make_corpus
from minitrain.data.packing import pack
from minitrain.data.tokenizer import train_tokenizer

T = lab.size("length")
texts = make_corpus(600_000, seed=1), make_corpus(25_000, seed=2)
tokenizer = train_tokenizer(texts[0].documents[:1500], 512)
floor = texts[1].entropy_per_token(tokenizer)
rows = [
    pack(tokenizer.encode_batch(t.documents), T, tokenizer.end_token) for t in texts
]
print(f"floor {floor:.3f} nats a token")

# %%
from minitrain.data.loader import Loader
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.training.loss import token_weighted_loss

D, B, steps = lab.size("width"), lab.size("batch"), lab.size("steps")
alike = lab.size("alike")  # microbatches of a step, of which one is computed
config = ModelConfig(512, D, lab.size("layers"), 4, 2, 2 * D, tied=True)


def share_of_loss(model, batch):
    """This microbatch's part of the mean over all tokens of the step."""
    logits = model(batch.tokens, batch.documents, batch.positions)  # (B, T, V)
    return token_weighted_loss(logits, batch.targets, batch.tokens_counted * alike)


# %% [markdown]
# The loss is a mean over *all* tokens of a step, 2 million here: 4,096 microbatches of 512 tokens, of which we compute one
# and divide its loss by 4,096 more. So gradients are tiny.
#
# **Predict**: which share of the gradients that arrive at the outputs of the linear layers would FP16 round to zero? (From
# 0 to 1.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.5
### LAB guess = None  # a share from 0 to 1
### END SOLUTION
lab.predict("lost", guess)

# %% tags=["experiment"]
model, caught = build(config), []
for module in model.modules():
    if isinstance(module, torch.nn.Linear):
        module.register_full_backward_hook(
            lambda m, ins, outs: caught.append(outs[0].flatten())
        )
share_of_loss(model, next(iter(Loader(rows[0], B, seed=0)))).backward()
gradients = torch.cat(caught)
gradients = gradients[gradients != 0]

underflow = []
for exponent in range(0, 45, 4):
    half = (gradients * 2.0**exponent).half()
    underflow.append({"scale": 2.0**exponent,
                      "zero": (half == 0).float().mean().item(),
                      "infinite": half.isinf().float().mean().item()})  # fmt: skip

lab.reveal("lost", underflow[0]["zero"], note="below 3e-8, half of FP16's smallest")
with show.canvas() as (figure, ax):
    ax.axvspan(-24, 16, color="#e8e8e8")
    words = ((0, "as they are"), (24, "times $2^{24}$"))
    for (power, word), color in zip(words, show.COLORS):
        heights = (gradients.abs().log2() + power).numpy()
        counts, *_ = ax.hist(heights, 65, range=(-45, 20), color=color)
        ax.text(power - 28, 1.02 * counts.max(), word, ha="center", fontweight="bold")
    ax.set(xlabel="size of a gradient, as a power of 2 (shaded: what FP16 can write)")
    ax.set(ylabel="gradients", ylim=(0, 1.15 * counts.max()))
    ax.yaxis.set_major_formatter("{x:,.0f}")
show.figure(
    figure,
    alt="Histogram of gradients by power of two: most lie below the shaded range of FP16, and times 2 to the 24 inside it.",
)

# %% tags=["grade"]
lab.experiment("underflow", underflow)

# %% [markdown]
# Multiply the *loss* by S and every gradient grows S times: backward is linear. Divide them by S before use, and nothing
# but the rounding has changed ([Micikevicius et al. 2018](https://arxiv.org/abs/1710.03740)).
#
# **Question**: the smallest scale in your table under which less than 1% becomes zero?

# %% tags=["question"]
### BEGIN SOLUTION
smallest_scale = next(row["scale"] for row in underflow if row["zero"] < 0.01)
### LAB smallest_scale = None  # your answer, a scale of the table
### END SOLUTION
show.table(underflow)

# %% tags=["grade"]
lab.answer("smallest_scale", smallest_scale)

# %% [markdown]
# ### Exercise 1 · `LossScaler`
#
# Difficulty 3 of 5 · 12 minutes · 14 points
#
# About 4,096, what the mean took away, was enough here; elsewhere nobody knows S. So: try. After an inf or nan in a
# gradient, skip the step, halve S (times `backoff`). After `interval` finite steps in a row double it (times `growth`),
# count anew. **All ranks must skip together**, or their weights part. Whatever it finds, `unscale` divides every gradient
# and sends its message.


# %% tags=["exercise"]
class LossScaler:
    """The scale of the loss. About 12 lines of yours."""

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        """Divides every gradient by `scale`, in place; True if all of them, on all
        ranks, are finite. `parameters` may be a generator: go through it once.
        `all_reduce(tensor)` sums a tensor over ranks, in place: one number a step."""
        ### BEGIN SOLUTION
        found = torch.zeros(())
        for p in parameters:
            if p.grad is not None:
                p.grad /= self.scale
                found += (~p.grad.isfinite()).any()
        all_reduce(found)
        return found.item() == 0
        ### END SOLUTION

    def update(self, finite: bool) -> None:
        """After each step, taken or skipped: the next scale."""
        ### BEGIN SOLUTION
        self.finite_steps = self.finite_steps + 1 if finite else 0
        if not finite:
            self.scale *= self.backoff
        elif self.finite_steps == self.interval:
            self.scale, self.finite_steps = self.scale * self.growth, 0
        ### END SOLUTION


# %% tags=["grade"]
LossScaler = lab.grade(LossScaler)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `unscale` does two things in one loop: divide, and note whether anything is not finite. A gradient may be None.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Keep the note in a tensor of one number, `found`, 0 or more; after the loop `all_reduce(found)`, always, on every rank.
# Finite means that it is still 0. (Counting what is *right* fails: the sum over ranks is above 0 if one rank is fine.)
#
# </details>
# <details><summary>Hint 3</summary>
#
# `found += (~p.grad.isfinite()).any()`. In `update`: count up or set to 0; not finite, `scale *= backoff`; count equal
# `interval`, `scale *= growth` and the count is 0 again.
#
# </details>


# %% [markdown]
# ## 2 · Too small to count
#
# BF16 needs no loss scale. Its weakness: 7 bits of mantissa. From ½ to 1 its numbers lie 2⁻⁸ ≈ 0.004 apart, from 1 to 2
# twice as far.
#
# ### Exercise 2 · `MasterWeights`
#
# Difficulty 3 · 10 minutes · 10 points
#
# Keep a float32 copy, the *master*, of each weight. The optimizer moves masters; weights are masters, rounded.


# %% tags=["exercise"]
class MasterWeights:
    """A fresh optimizer over BF16 weights, made to move float32 copies of them.
    About 8 lines of yours."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.masters = []  # a float32 parameter for each weight
        ### BEGIN SOLUTION
        self.masters = [p.detach().float().requires_grad_() for p in self.weights]
        ### END SOLUTION
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        """Gradients to the masters, one step, weights from masters; never the other way
        round. A weight without a gradient gives its master none, and no master keeps
        one. The weights' own gradients stay as they are."""
        ### BEGIN SOLUTION
        for weight, master in zip(self.weights, self.masters):
            master.grad = None if weight.grad is None else weight.grad.float()
        self.optimizer.step()
        for weight, master in zip(self.weights, self.masters):
            weight.copy_(master)  # rounds to the nearest
            master.grad = None
        ### END SOLUTION

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None


# %% tags=["grade"]
MasterWeights = lab.grade(MasterWeights)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# A copy that is a leaf of its own: `p.detach().float().requires_grad_()`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In `step`: every `master.grad` from `weight.grad.float()`, or None where that is None; then `self.optimizer.step()`; then
# the weights.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `weight.copy_(master)` rounds to the nearest BF16 number. Afterwards `master.grad = None`: 4 bytes a parameter less.
#
# </details>

# %% [markdown]
# ### Exercise 3 · `stochastic_round`
#
# Difficulty 3 · 8 minutes · 8 points
#
# Without the 4 bytes: round up or down *by chance*, so that the mean is exact
# ([Gupta et al. 2015](https://arxiv.org/abs/1502.02551)): ¾ of the way up, up 3 times in 4.
#
# BF16 is float32 without its last 16 bits: random bits added to these carry into the others just as often.


# %% tags=["exercise"]
def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    """x float32, any shape, unchanged -> a new bfloat16 tensor: one of x's two
    neighbours, right in the mean, each by itself; what BF16 has, inf and torch.nan
    stay. Draws from `generator`, or without one from torch's own. About 3 lines."""
    ### BEGIN SOLUTION
    noise = torch.randint(2**16, x.shape, dtype=torch.int32, generator=generator)
    bits = (x.view(torch.int32) + noise) & -(2**16)
    return bits.view(torch.float32).to(torch.bfloat16)
    ### END SOLUTION


# %% tags=["grade"]
stochastic_round = lab.grade(stochastic_round)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `x.view(torch.int32)` are the bits, as integers, in x's own memory: add noise in a new tensor, then clear the last 16.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.randint(2**16, x.shape, dtype=torch.int32, generator=generator)` is the noise; `& -(2**16)` clears.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Back by `.view(torch.float32).to(torch.bfloat16)`: the cut bits are 0, so this last step rounds nothing.
#
# </details>

# %% [markdown]
# **Predict**: BF16 weights, 100 steps of exactly 0.001 down from 1.0. Where does plain BF16 end?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.9
### LAB guess = None  # where the weight ends
### END SOLUTION
lab.predict("bf16_end", guess)

# %% tags=["experiment"]
# 100 steps of 0.001 down, in three ways, from seven weights (1,000 of each).
STEP, stall = 1e-3, []
for start in [2.0**k for k in range(-3, 4)]:
    plain = torch.full((1000,), start, dtype=torch.bfloat16)
    chance, copy = plain.clone(), plain.clone().requires_grad_()
    seeded = torch.Generator().manual_seed(0)
    master = MasterWeights(torch.optim.SGD([copy], lr=STEP))
    for _ in range(100):
        plain = (plain.float() - STEP).bfloat16()
        chance = stochastic_round(chance.float() - STEP, seeded)
        copy.grad = torch.ones_like(copy)
        master.step()
    stall.append({"start": start, "exact": start - 100 * STEP,
                  "bf16": plain.float().mean().item(),
                  "master": copy.detach().float().mean().item(),
                  "stochastic": chance.float().mean().item()})  # fmt: skip

at_one = next(row for row in stall if row["start"] == 1)
lab.reveal("bf16_end", at_one["bf16"], note="0.001 is under half a step of BF16 there")
powers = list(range(-3, 4))
ways = {"plain BF16": "bf16", "masters": "master", "stochastic rounding": "stochastic"}
show.lines(
    {
        name: (powers, [1e3 * (r["start"] - r[key]) for r in stall])
        for name, key in ways.items()
    },
    theory={"exact": (powers, [100] * len(stall))},
    x="weight at the start (power of 2)",
    y="moved by 100 steps (thousandths)",
    labels="legend",
    alt="How far 100 small steps moved a weight: plain BF16 too far below 1 and nothing from 1 on; the others about 100 thousandths.",
)

# %% tags=["grade"]
lab.experiment("stall", stall)

# %% [markdown]
# **Explain**: a step under half of the spacing rounds back, every time. Just below ½ it is a little more than half, and
# becomes a whole spacing: twice as far. Masters err by their last rounding only, stochastic rounding by noise that averages
# out.
#
# **Question**: the smallest start in your table that did not move at all?

# %% tags=["question"]
### BEGIN SOLUTION
first_stall = min(row["start"] for row in stall if row["bf16"] == row["start"])
### LAB first_stall = None  # your answer, a start of the table
### END SOLUTION
show.table(stall)

# %% tags=["grade"]
lab.answer("first_stall", first_stall)

# %% [markdown]
# ## 3 · Eight bits
#
# **E4M3** has 4 bits of exponent and m = 3 of mantissa, and ends at 448. **E5M2** is coarser, ends at 57,344, and serves
# gradients. **E2M1** has 0, ½, 1, 1½, 2, 3, 4, 6. From one power of two to the next there are 2^m equal steps.
#
# ### Exercise 4 · `round_to`
#
# Difficulty 4 · 12 minutes · 12 points

# %%
from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    mantissa_bits: int  # m
    smallest_exponent: int  # below 2^this the steps shrink no further: subnormal
    largest: float


E4M3, E5M2, E2M1 = Form(3, -6, 448.0), Form(2, -14, 57344.0), Form(1, 0, 6.0)


# %% tags=["exercise"]
def round_to(x: torch.Tensor, form) -> torch.Tensor:
    """The nearest number of `form` for each x, nan stays; x float32, any shape,
    unchanged -> a new float32 tensor. (Another way to the same bits is as good.)
    1. Clamp to ±form.largest: beyond it, a bare cast differs from device to device.
    2. The step is 2^(e - m): 2^e the largest power of two that is not above |x|, e at
       least form.smallest_exponent.
    3. x / step to a whole number, ties to even (as `torch.round` does), times the step.
    About 4 lines of yours, right bit for bit."""
    ### BEGIN SOLUTION
    x = x.clamp(-form.largest, form.largest)
    power = (x.view(torch.int32) & 0x7F800000).view(torch.float32)  # 2^e <= |x|
    step = power.clamp(min=2.0**form.smallest_exponent) * 2.0**-form.mantissa_bits
    return (x / step).round() * step
    ### END SOLUTION


# %% tags=["grade"]
round_to = lab.grade(round_to)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# The bits 0x7F800000 of a float32 are its exponent. With all others 0 it is 2^e itself:
# `(x.view(torch.int32) & 0x7F800000).view(torch.float32)`. (Or `torch.frexp`: it counts from ½, so e is one less.)
#
# </details>
# <details><summary>Hint 2</summary>
#
# Clamp 2^e from below by `2.0**form.smallest_exponent`: that makes the subnormal numbers, and 0.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `step = power * 2.0**-form.mantissa_bits`, then `(x / step).round() * step`. Dividing by a power of two rounds nothing.
#
# </details>

# %% [markdown]
# ## 4 · One scale, or many
#
# 448 is not far: divide by a scale that makes the largest number 448. **Block scaling**: one for each tile, 1 x 32 in
# MXFP8.
#
# ### Exercise 5 · `fake_quantize`
#
# Difficulty 4 · 12 minutes · 8 points
#
# amax is a tile's largest magnitude; scale = amax / form.largest, however small; 1 for a tile of zeros. Divide, `round_to`,
# multiply back.


# %% tags=["exercise"]
def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    """x (R, K), finite, strided or not, unchanged -> a new tensor of what is left of it
    in `form`, float32. `tile` (r, c), or None: all of x. r and c may not divide R and
    K: pad with zeros, cut. `amax` (R/r, K/c), where it is given, stands for the tiles'
    own; it is 0 only for a tile of zeros. About 10 lines."""
    ### BEGIN SOLUTION
    R, K = x.shape
    r, c = tile or (R, K)
    padded = torch.nn.functional.pad(x, (0, -K % c, 0, -R % r))
    tiles = padded.unflatten(1, (-1, c)).unflatten(0, (-1, r))  # (R/r, r, K/c, c)
    own = tiles.abs().amax(dim=(1, 3)) if amax is None else amax  # (R/r, K/c)
    scale = torch.where(own > 0, own / form.largest, 1.0)[:, None, :, None]
    kept = round_to(tiles / scale, form) * scale
    return kept.flatten(2, 3).flatten(0, 1)[:R, :K]
    ### END SOLUTION


# %% tags=["grade"]
fake_quantize = lab.grade(fake_quantize)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Make tiles a shape: (R/r, r, K/c, c). `torch.nn.functional.pad(x, (0, -K % c, 0, -R % r))` fills the edge.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `padded.unflatten(1, (-1, c)).unflatten(0, (-1, r))`; the largest of each tile is `.abs().amax(dim=(1, 3))`, (R/r, K/c).
#
# </details>
# <details><summary>Hint 3</summary>
#
# `scale[:, None, :, None]` stands over its tile. Back: `.flatten(2, 3).flatten(0, 1)[:R, :K]`.
#
# </details>

# %% [markdown]
# **Predict**: 8 blocks of 32 numbers near 1; each row gets an outlier of 100,000 in block 0. With one scale for all, by
# which factor does the error in the *other* blocks grow? (1: not at all.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 10
### LAB guess = None  # a factor
### END SOLUTION
lab.predict("grows", guess)

# %% tags=["experiment"]
clean = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
sizes = [10.0**k for k in range(1, 8)]


def error(block, tile, size=None):
    """Of one block, in the mean; with outliers of this size in block 0."""
    x = clean.clone()
    if size:
        x[:, 0] = size
    wrong = fake_quantize(x, E4M3, tile) - x
    return wrong[:, 32 * block : 32 * block + 32].abs().mean().item()


tiles = {"tensor": None, "block": (1, 32)}
outlier = [
    {"scheme": scheme, "block": block,
     "error_before": error(block, tile), "error_after": error(block, tile, 1e5)}
    for scheme, tile in tiles.items() for block in range(8)
]  # fmt: skip
grown = {
    scheme: [error(1, tile, size) / error(1, tile) for size in sizes]
    for scheme, tile in tiles.items()
}
lab.reveal("grows", grown["tensor"][sizes.index(1e5)], note="E4M3, one scale for all")
show.lines(
    {"one scale": (sizes, grown["tensor"]), "1 x 32 blocks": (sizes, grown["block"])},
    x="size of the outlier (the others are near 1)",
    y="error in another block, after / before",
    log="xy",
    alt="Error in another block by the size of an outlier: with one scale it is the same up to about 10,000 and grows beyond, with block scales it never changes.",
    caption="E4M3 spans 2^18 from its smallest number to its largest: an outlier of 10,000 costs little. Beyond, the others fall among the subnormal numbers, then to zero. Integers have no such reserve. Blocks keep the damage in one tile.",
)

# %% tags=["grade"]
lab.experiment("outlier", outlier)

# %% [markdown]
# ## 5 · A scale from yesterday
#
# A scale needs the largest number: a tensor is read twice. **Delayed scaling** takes the largest of the last H steps, over
# all microbatches *and all ranks*, and clamps what grew since.
#
# ### Exercise 6 · `AmaxHistory`
#
# Difficulty 3 · 8 minutes · 8 points
#
# Evaluation (`record=False`) scales in the same way, and notes nothing. Zero counts as seen: it is a magnitude like others.


# %% tags=["exercise"]
class AmaxHistory(torch.nn.Module):
    """Largest magnitudes of the last H steps. About 6 lines of yours."""

    def __init__(self, length: int, device="cpu"):
        super().__init__()
        self.register_buffer("past", torch.zeros(length, 3, device=device))  # (H, 3)
        self.seen = {}  # role -> largest since the last step

    def amax(self, role: int, now: torch.Tensor, record: bool = True) -> torch.Tensor:
        """role: 0 activation, 1 weight, 2 gradient, its column of `past`. Notes `now` ()
        as seen; returns the magnitude to scale by: the largest of the role's past, or
        `now` where there is none yet (all 0)."""
        ### BEGIN SOLUTION
        if record:
            self.seen[role] = torch.maximum(self.seen.get(role, now), now)
        past = self.past[:, role].max()
        return past if past > 0 else now
        ### END SOLUTION

    def take_seen(self) -> torch.Tensor:
        """(3,), -1 for what did not run. Ranks then take its maximum."""
        seen = [float(self.seen.get(role, -1.0)) for role in range(3)]
        self.seen = {}
        return torch.tensor(seen)

    def roll(self, seen: torch.Tensor) -> None:
        """seen (3,) becomes row 0 of each column that ran, and its oldest entry goes; a
        column that did not run (-1) stays as it is."""
        ### BEGIN SOLUTION
        for role in range(3):
            if seen[role] >= 0:
                self.past[1:, role] = self.past[:-1, role].clone()
                self.past[0, role] = seen[role]
        ### END SOLUTION


# %% tags=["grade"]
AmaxHistory = lab.grade(AmaxHistory)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Microbatches: `torch.maximum(self.seen.get(role, now), now)`, never simply `now`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The largest of the past is `self.past[:, role].max()`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In `roll`, column by column: `self.past[1:, role] = self.past[:-1, role].clone()`, then row 0.
#
# </details>

# %% [markdown]
# ## 6 · The same model in eight formats
#
# Both operands of a linear layer's three matmuls are rounded by *your* functions (for FP16 by the package's `emulate`);
# products add up in float32, as in tensor cores. So FP16, FP8 and FP4 are **emulated**: their loss is real, their speed is
# not.


# %% tags=["experiment"]
class Emulated(torch.autograd.Function):
    """x (T, D), W (F, D) -> x W^T of rounded operands. `keep(matrix, role)` rounds along
    the last dimension, the one that is summed over: so backward transposes first."""

    @staticmethod
    def forward(ctx, x, weight, keep):
        ctx.save_for_backward(x, weight)
        ctx.keep = keep
        return keep(x, 0) @ keep(weight, 1).t()

    @staticmethod
    def backward(ctx, dy):
        (x, weight), keep = ctx.saved_tensors, ctx.keep
        dx = keep(dy, 2) @ keep(weight.t(), 1).t()
        return dx, keep(dy.t(), 2) @ keep(x.t(), 0).t(), None


def emulated_forward(linear, keep):
    def forward(x):
        linear.recording = torch.is_grad_enabled()  # evaluation leaves no trace
        y = Emulated.apply(x.flatten(0, 1), linear.weight, keep)
        return y.unflatten(0, x.shape[:2])

    return forward


def emulate_blocks(model, make_keep):
    """The linear layers of the blocks; embedding and head stay as they are."""
    for linear in model.blocks.modules():
        if isinstance(linear, torch.nn.Linear):
            linear.forward = emulated_forward(linear, make_keep(linear))


def delayed(linear):
    """One scale a tensor, from the last 16 steps."""
    linear.history = AmaxHistory(16, "cpu")

    def keep(matrix, role):
        now, form = matrix.abs().max(), E5M2 if role == 2 else E4M3
        amax = linear.history.amax(role, now, linear.recording)
        return fake_quantize(matrix, form, None, amax.reshape(1, 1))

    return keep


def blocks_of(form, size):
    return lambda linear: lambda matrix, role: fake_quantize(matrix, form, (1, size))


# %% [markdown]
# One `train` for all: your scaler, where a format needs one, your masters around the optimizer, and a schedule that only
# good steps move.

# %% tags=["experiment"]
import math
import time

from minitrain.training.loop import evaluate


def learning_rate(step):
    return 4e-3 * min(1, (step + 1) / 10) * (1 + math.cos(math.pi * step / steps)) / 2


def same(x):
    return x


def train(prepare=same, dtype=torch.float32, wrap=same, scaler=None):
    """A run: what `formats` records of it, and the scale at each batch."""
    model = build(config, dtype=dtype, seed=0)
    prepare(model)
    optimizer = wrap(torch.optim.AdamW(model.parameters()))
    batches, done, scales = iter(Loader(rows[0], B, seed=0)), 0, []
    batch, began = next(batches), time.perf_counter()
    while done < steps:
        scales.append(scaler.scale if scaler else 1.0)
        (share_of_loss(model, batch) * scales[-1]).backward()
        finite = scaler.unscale(model.parameters()) if scaler else True
        if scaler:
            scaler.update(finite)
        if finite:  # a skipped step is none: neither weights nor schedule move
            for p in model.parameters():
                p.grad *= alike  # the other microbatches are like this one
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(done)
            optimizer.step()
            done, batch = done + 1, next(batches)
        optimizer.zero_grad()
        for module in model.modules():
            if hasattr(module, "history"):
                module.history.roll(module.history.take_seen())
    speed = len(scales) * B * T / (time.perf_counter() - began)
    loss = evaluate(model, Loader(rows[1], 32, shuffle=False))
    row = {"loss": loss, "tokens_per_second": speed, "skipped": len(scales) - done}
    return row, scales


# %% [markdown]
# **Run**: eight trainings from one start, about a minute.

# %% tags=["experiment"]
from minitrain.precision.emulated import emulate
from tqdm.auto import tqdm

BF16, FP32 = torch.bfloat16, torch.float32
settings = {
    "FP32": (),
    "FP16": (emulate,),
    "FP16, scaled": (emulate, FP32, same, LossScaler(2.0**40, interval=25)),
    "BF16": (same, BF16),
    "BF16, master": (same, BF16, MasterWeights),
    "FP8, delayed": (lambda model: emulate_blocks(model, delayed),),
    "FP8, block": (lambda model: emulate_blocks(model, blocks_of(E4M3, 32)),),
    "FP4, block": (lambda model: emulate_blocks(model, blocks_of(E2M1, 16)),),
}
formats, scales = [], {}
for name, setting in tqdm(settings.items(), leave=False):
    row, scales[name] = train(*setting)
    formats.append({"format": name, "emulated": name[:3] not in ("FP3", "BF1"), "floor": floor, **row})  # fmt: skip

powers = [math.log2(scale) for scale in scales["FP16, scaled"]]
falls = [i for i in range(len(powers) - 1) if powers[i + 1] < powers[i]]
with show.canvas() as (figure, ax):
    blue, orange, *_ = show.COLORS
    ax.step(range(len(powers)), powers, color=blue, where="post", label="scale")
    skipped = [powers[i] for i in falls]
    ax.plot(falls, skipped, "s", color=orange, label="overflow: step skipped")
    ax.set(xlabel="batch tried", ylabel="loss scale (power of 2)")
    ax.legend()
show.figure(
    figure,
    alt="Loss scale over batches: it falls from 2 to the 40 in a few skipped steps, then doubles now and then.",
    caption="Down from 2 to the 40 while steps overflow, then upward after 25 good ones. A skipped batch is tried again; real runs drop it.",
)

# %% tags=["grade"]
lab.experiment("formats", formats)

# %% tags=["picture"]
above = {row["format"]: row["loss"] - floor for row in formats}
near = [name for name in above if name not in ("FP32", "FP16", "FP16, scaled")]
farther = [100 * (above[name] / above["FP32"] - 1) for name in near]
with show.canvas(columns=2, width=11) as (figure, axes):
    for ax, names, heights, y, form in (
        (
            axes[0],
            list(above),
            list(above.values()),
            "loss above the floor (nats)",
            "{:.2f}",
        ),
        (axes[1], near, farther, "farther from the floor than FP32 (%)", "{:.1f}"),
    ):
        wrapped = [name.replace(", ", "\n") for name in names]
        show.bars(wrapped, heights, y=y, form=form, ax=ax)
        ax.tick_params(axis="x", labelsize=8)
        for bar, name in zip(ax.patches, names):
            bar.set_facecolor(blue if name[:3] in ("FP3", "BF1") else orange)
    P = sum(p.numel() for p in build(config).parameters())
    axes[0].set_title(f"{show.count_text(P)} parameters, {steps} steps")
    axes[1].set_title("in percent of FP32 (orange: emulated)")
show.figure(
    figure,
    alt="Loss above the floor in eight formats, and in percent of FP32's: plain FP16 is far off, plain BF16 and FP4 several percent, the others about one.",
)

# %% [markdown]
# **Explain**: FP16 without a scale stays 4.4 nats above the floor, with one 0.76, as FP32. Plain BF16 stalls as the learning
# rate falls: 16% more. FP4 costs 7%.
#
# **Question**: FP8 cost DeepSeek-V3 under 0.25% of the *loss* ([2412.19437](https://arxiv.org/abs/2412.19437), 3.3). How
# many percent farther from the *floor* is your block FP8 than BF16 with masters? (We saw 0.0 to 1.2.)

# %% tags=["question"]
show.table(
    [{"above the floor": above[row["format"]], **row} for row in formats],
    formats={"above the floor": "{:.4f}".format, "loss": "{:.4f}".format},
)
### BEGIN SOLUTION
fp8_gap = 100 * (above["FP8, block"] / above["BF16, master"] - 1)
### LAB fp8_gap = None  # your answer, percent
### END SOLUTION

# %% tags=["grade"]
lab.answer("fp8_gap", fp8_gap)

# %% [markdown]
# ## 7 · What is won
#
# Memory, measured by the ledger: what one forward keeps for backward, under autocast to BF16, and with the package's FP8
# and FP4 layers, which really keep bytes and half bytes. (Weights, gradients and moments stay in float32.)

# %% tags=["experiment"]
from minitrain.measure.memory import MemoryLedger
from minitrain.precision.low_bit_linear import MXFP8, NVFP4, convert


def kept_bytes(autocast, recipe=None):
    """Of one forward: the activations that wait for backward."""
    model, batch = build(config), next(iter(Loader(rows[0], B, seed=0)))
    model = convert(model, recipe) if recipe else model
    with MemoryLedger(model) as ledger:
        with torch.autocast("cpu", BF16, enabled=autocast):
            loss = share_of_loss(model, batch)
        kept = ledger.now["activations"]
    loss.backward()
    return kept


memory = [
    {"format": name, "tokens": B * T, "activation_bytes": kept_bytes(*setting)}
    for name, setting in {
        "FP32": (False,),
        "BF16": (True,),
        "BF16, FP8 linear": (True, MXFP8),
        "BF16, FP4 linear": (True, NVFP4),
    }.items()
]

show.bars(
    [row["format"] for row in memory],
    [row["activation_bytes"] / 1e6 for row in memory],
    y="kept for backward (MB)",
    alt="Megabytes of activations kept for backward in FP32, BF16, and BF16 with FP8 or FP4 linear layers, each less than the one before.",
)

# %% tags=["grade"]
lab.experiment("memory", memory)

# %% [markdown]
# **Explain**: not a half and a quarter. Norms, logits and the sums from block to block stay in float32.
#
# > **On GPUs.** Tensor cores multiply BF16 twice as fast as TF32, FP8 twice as fast again (Hopper), FP4 on Blackwell.
# > The package's `QuantizedLinear` calls FP8 units where it can.
#
# Next, [e05 · Activation memory](e05_activation_memory.ipynb): what no format shrinks enough is computed twice.

# %%
lab.score(read="minitrain/precision/loss_scaling.py")
