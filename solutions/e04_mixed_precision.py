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
from minitrain.parallel.launch import launch

lab = Lab("e04_mixed_precision")

# %% [markdown]
# ## 1 · Too small to be written
#
# A float has a sign, exponent and mantissa. FP16 (5 and 10 bits) is precise, and ends at 6e-8 below and 65,504 above.
# BF16 (8 and 7 bits) reaches as far as float32, and is coarse.
#
# A small model, the stories of e01, their exact floor:

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

# %%
from minitrain.data.loader import Loader
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

D, B, steps = lab.size("width"), lab.size("batch"), lab.size("steps")
config = ModelConfig(512, D, lab.size("layers"), 4, 2, 2 * D, tied=True)
P = sum(p.numel() for p in build(config).parameters())
print(f"{show.count_text(P)} parameters, floor {floor:.3f} nats a token")

# %% [markdown]
# The loss is a mean over *all* tokens of a step, and large runs take millions: each token's gradient is divided by so
# many. Our batch of 512 stands for one of 4,096 like it, 2 million tokens: its loss is divided by 4,096, and after
# backward, in float32, its gradient counts 4,096 times.

# %%
from minitrain.training.loop import token_weighted_loss

alike = lab.size("alike")  # microbatches of a step, of which one is computed


def share_of_loss(model, batch):
    """This microbatch's part of the mean over the whole step's tokens."""
    logits = model(batch.tokens, batch.documents, batch.positions)  # (B, T, V)
    return token_weighted_loss(logits, batch.targets, batch.tokens_counted * alike)


# %% [markdown]
# **Predict**: of all numbers that backward sends through the linear layers, which share would FP16 round to zero? (From 0
# to 1.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.5
### LAB guess = None  # a share from 0 to 1, your guess
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

# %% tags=["grade"]
lab.experiment("underflow", underflow)

# %%
lab.reveal("lost", underflow[0]["zero"], note="below 3e-8, half of FP16's smallest")
with show.canvas() as (figure, ax):
    ax.axvspan(-24, 16, color="#e8e8e8")
    words = ((0, "as they are"), (24, "times $2^{24}$"))
    for (power, word), color in zip(words, show.COLORS):
        heights = (gradients.abs().log2() + power).numpy()
        counts, *_ = ax.hist(heights, 60, range=(-45, 20), color=color)
        ax.text(power - 28, 1.02 * counts.max(), word, ha="center", fontweight="bold")
    ax.set(xlabel="gradient, power of 2 (shaded: FP16)", ylabel="numbers")
show.figure(
    figure,
    alt="Histogram of gradients by power of two: most lie below the shaded range of FP16, and times 2 to the 24 inside it.",
)

# %% [markdown]
# Multiply the *loss* by S and every gradient grows by S: backward is linear. Divide before use, and nothing but the
# rounding has changed ([Micikevicius et al. 2018](https://arxiv.org/abs/1710.03740)).
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
# Nobody knows S beforehand, and it changes. So: try. An inf or nan in a gradient: the step is skipped, S halves. After
# `interval` finite steps in a row: S doubles, and counting begins anew. **All ranks must skip together**, or their
# weights part.


# %% tags=["exercise"]
class LossScaler:
    """The scale of the loss. About 12 lines of yours."""

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        """Divides every gradient by `scale`, in place; True if all of them, on all
        ranks, are finite. `all_reduce(tensor)` sums a tensor over ranks, in place."""
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
# Finite means that it is still 0.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `found += (~p.grad.isfinite()).any()`. In `update`: count up or set to 0; not finite, `scale *= backoff`; count equal
# `interval`, `scale *= growth` and the count is 0 again.
#
# </details>


# %% tags=["nbval-check-output"]
# Run: two ranks, and rank 1 alone has an overflow. Both must say so.
def one_overflows(group):
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.grad = torch.tensor([1.0, 2.0, torch.inf if group.rank == 1 else 3.0])
    scaler = LossScaler(1024.0)
    scaler.update(scaler.unscale([weight], group.all_reduce))
    return scaler.scale


print("next scale on each rank:", list(launch(one_overflows, ranks=2)))

# %% [markdown]
# ## 2 · Too small to count
#
# BF16 needs no loss scale. It has another weakness: 8 bits of precision. Below 1 its numbers lie 2⁻⁸ apart, so a step
# under 2⁻⁹ ≈ 0.002 rounds back to 1, every time.
#
# **Predict**: BF16 weights, 100 steps of exactly 0.001 down from 1.0. Where does plain BF16 end?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.9
### LAB guess = None  # where the weight ends, your guess
### END SOLUTION
lab.predict("bf16_end", guess)

# %% [markdown]
# ### Exercise 2 · `MasterWeights`
#
# Difficulty 3 · 10 minutes · 10 points
#
# Keep a float32 copy, the *master*, of each BF16 weight. The optimizer moves masters; weights are masters, rounded. Never
# read a master back from its weight: small steps must add up.


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
        """Gradients to the masters, one step, weights from masters. A weight without a
        gradient gives its master none. No master keeps its gradient."""
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
# Three lines in `step`: every `master.grad` from `weight.grad.float()`, then `self.optimizer.step()`, then the weights.
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
# Without the 4 bytes: round up or down *by chance*, up with the probability of the part that is cut. The mean is then
# exact ([Gupta et al. 2015](https://arxiv.org/abs/1502.02551)). BF16 is float32 without its last 16 bits: a random number
# in them carries just as often.


# %% tags=["exercise"]
def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    """x float32, any shape -> bfloat16, one of its two neighbours, right in the mean;
    what BF16 has, and inf and nan, stay. Draws from `generator`. About 3 lines."""
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
# `x.view(torch.int32)` are the bits, as integers. Add noise, then clear the last 16.
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

# %% tags=["experiment"]
# Run: 100 steps of 0.001 down, four ways, from different weights (1,000 of each).
STEP, stall = 1e-3, []
for start in [2.0**k for k in range(-3, 4)]:
    plain = torch.full((1000,), start, dtype=torch.bfloat16)
    chance, copy, seeded = (
        plain.clone(),
        plain.clone(),
        torch.Generator().manual_seed(0),
    )
    copy.requires_grad_()
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

# %% tags=["grade"]
lab.experiment("stall", stall)

# %%
at_one = next(row for row in stall if row["start"] == 1)
lab.reveal("bf16_end", at_one["bf16"], note="0.001 is under half a step of BF16 there")
powers = list(range(-3, 4))
ways = {"plain BF16": "bf16", "master": "master", "stochastic": "stochastic"}
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

# %% [markdown]
# **Explain**: plain BF16 also goes too *far* below 1, where 0.001 rounds up to a whole step. Masters err by their last
# rounding only; stochastic rounding by noise that averages out.
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
# **E4M3**: 4 bits of exponent, 3 of mantissa, up to 448. **E5M2**: coarser, up to 57,344, for gradients. **E2M1** has 4
# bits in all: 0, ½, 1, 1½, 2, 3, 4, 6.
#
# Between one power of two and the next lie 2^m equal steps. Below the smallest normal number the steps shrink no further.

# %%
from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    mantissa_bits: int
    smallest_exponent: int  # of normal numbers
    largest: float


E4M3, E5M2, E2M1 = Form(3, -6, 448.0), Form(2, -14, 57344.0), Form(1, 0, 6.0)

# %% [markdown]
# ### Exercise 4 · `round_to`
#
# Difficulty 4 · 12 minutes · 12 points
#
# Clamp to ±largest: what a bare cast does beyond differs between devices. Then the step: 2^(e - m), with 2^e ≤ |x| and e
# at least `smallest_exponent`. Round x/step to a whole number, **ties to even** (as `torch.round` does), and multiply back.


# %% tags=["exercise"]
def round_to(x: torch.Tensor, form) -> torch.Tensor:
    """The nearest number of `form` for each x, ties to even, clamped to
    ±form.largest, nan stays; float32 -> float32, bit for bit. About 4 lines."""
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
# `(x.view(torch.int32) & 0x7F800000).view(torch.float32)`. (`log2` errs beside powers of two; `torch.frexp` does not.)
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
# 448 is not far. So a tensor is divided by a scale that makes its largest number 448. One outlier, and all others move
# toward zero, where steps are coarse.
#
# **Block scaling**: one scale for each tile, 1 x 32 numbers in MXFP8, 1 x 128 in DeepSeek-V3.

# %% [markdown]
# ### Exercise 5 · `fake_quantize`
#
# Difficulty 4 · 12 minutes · 8 points
#
# For each tile: scale = amax / form.largest, where amax is its largest magnitude; divide, `round_to`, multiply back. A
# tile of zeros has scale 1. `amax` given: take it instead (one number a tile).


# %% tags=["exercise"]
def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    """x (R, K) -> what is left of it in `form`, float32. `tile` (r, c), or None: all
    of x. r and c may not divide R and K: pad with zeros, cut. About 10 lines."""
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
# **Predict**: 8 blocks of 32 numbers; an outlier of 100,000 is planted in block 0. With one scale for all, by
# which factor grows the error in the *other* blocks? (1: not at all.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 10
### LAB guess = None  # a factor, your guess
### END SOLUTION
lab.predict("grows", guess)

# %% tags=["experiment"]
clean = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
planted = clean.clone()
planted[:, 0] = 1e5
outlier = []
for scheme, tile in (("tensor", None), ("block", (1, 32))):
    for block in range(8):
        columns = slice(32 * block, 32 * block + 32)
        before, after = (
            (fake_quantize(x, E4M3, tile) - x)[:, columns].abs().mean().item()
            for x in (clean, planted)
        )
        outlier.append(
            {
                "scheme": scheme,
                "block": block,
                "error_before": before,
                "error_after": after,
            }
        )

# %% tags=["grade"]
lab.experiment("outlier", outlier)

# %%
growth = {s: [r["error_after"] / r["error_before"] for r in outlier if r["scheme"] == s] for s in ("tensor", "block")}  # fmt: skip
lab.reveal("grows", max(growth["tensor"][1:]), note="E4M3, one scale for all")
show.bars(
    [f"{block}" for block in range(1, 8)],
    {"one scale": growth["tensor"][1:], "1 x 32 blocks": growth["block"][1:]},
    x="block (the outlier is in block 0)",
    y="error after / before",
    alt="Error growth in seven blocks after an outlier in another one: several times with one scale, exactly one with block scales.",
)

# %% [markdown]
# **Explain**: E4M3 spans 2¹⁸ from its smallest number to its largest: an outlier of 10,000 costs little. At 100,000 the
# others fall among the subnormal numbers. Integers have no such reserve. Blocks keep the damage in one tile.

# %% [markdown]
# ## 5 · A scale from yesterday
#
# A scale needs the largest number, so a tensor is read twice. **Delayed scaling** takes the largest of the last H steps;
# what grew since is clamped. The magnitude to note is the maximum over all microbatches of the step, *and over ranks*.

# %% [markdown]
# ### Exercise 6 · `AmaxHistory`
#
# Difficulty 3 · 8 minutes · 8 points
#
# Columns of `past`: activation, weight, gradient. Evaluation (`record=False`) leaves no trace. A column that did not run
# is -1 in `seen` and must stay as it is.


# %% tags=["exercise"]
class AmaxHistory(torch.nn.Module):
    """Largest magnitudes of the last H steps. About 6 lines of yours."""

    def __init__(self, length: int, device="cpu"):
        super().__init__()
        self.register_buffer("past", torch.zeros(length, 3, device=device))  # (H, 3)
        self.seen = {}  # role -> largest since the last step

    def amax(self, role: int, now: torch.Tensor, record: bool = True) -> torch.Tensor:
        """Notes `now` () as seen, and returns the magnitude to scale by: the largest
        of the past, or `now` where there is none yet (all 0)."""
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
        """seen (3,) becomes row 0 of each column that ran; its oldest entry goes."""
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
# Each operand of a linear layer's three matmuls is rounded by *your* functions; products add up in float32, as in tensor
# cores. So FP16, FP8 and FP4 are **emulated**: their loss is real, their speed is not. BF16 is real where the processor has
# it.

# %% tags=["experiment"]
import math
import time

from minitrain.training.loop import evaluate
from minitrain.training.precision import emulate


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


def learning_rate(step):
    return 4e-3 * min(1, (step + 1) / 10) * (1 + math.cos(math.pi * step / steps)) / 2


def train(
    prepare=lambda model: None,
    dtype=torch.float32,
    wrap=lambda o: o,
    scaler=None,
    seed=0,
):
    """A run: what `formats` records of it, and the scale at each batch."""
    model = build(config, dtype=dtype, seed=seed)
    prepare(model)
    optimizer = wrap(torch.optim.AdamW(model.parameters()))
    batches, done, scales = iter(Loader(rows[0], B, seed=seed)), 0, []
    batch, began = next(batches), time.perf_counter()
    while done < steps:
        scales.append(scaler.scale if scaler else 1.0)
        (share_of_loss(model, batch) * scales[-1]).backward()
        finite = scaler.unscale(model.parameters()) if scaler else True
        if scaler:
            scaler.update(finite)
        if finite:  # a skipped step is none: neither weights nor schedule move
            torch._foreach_mul_([p.grad for p in model.parameters()], float(alike))
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


BF16, FP32 = torch.bfloat16, torch.float32
settings = {
    "FP32": (),
    "FP16": (emulate,),
    "FP16, scaled": (emulate, FP32, lambda o: o, LossScaler(2.0**40, interval=25)),
    "BF16": (lambda model: None, BF16),
    "BF16, master": (lambda model: None, BF16, MasterWeights),
    "FP8, delayed": (lambda model: emulate_blocks(model, delayed),),
    "FP8, block": (lambda model: emulate_blocks(model, blocks_of(E4M3, 32)),),
    "FP4, block": (lambda model: emulate_blocks(model, blocks_of(E2M1, 16)),),
}
formats, scales = [], {}
for name, setting in settings.items():
    row, scales[name] = train(*setting)
    formats.append({"format": name, "emulated": name[:3] not in ("FP3", "BF1"), "floor": floor, **row})  # fmt: skip

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
    axes[0].set_title(f"{show.count_text(P)} parameters, {steps} steps")
    axes[1].set_title("in percent of FP32 (FP16, FP8, FP4 emulated)")
show.figure(
    figure,
    alt="Loss above the floor in eight formats, and in percent of FP32's: plain FP16 is far off, plain BF16 and FP4 several percent, the others about one.",
)

# %% [markdown]
# **Explain**: FP16 without a scale loses most gradients and ends 4.4 nats above the floor; with one 0.76, as FP32. Plain
# BF16 stalls as the learning rate falls: 16% farther. FP8 in blocks costs 0.7%, FP4 7%.
#
# The scale falls from 2⁴⁰, skipping (the same batch is tried again; real runs drop it), then tries upward every 25 steps.

# %%
show.lines(
    {"scale": (range(len(scales["FP16, scaled"])), scales["FP16, scaled"])},
    x="batch tried",
    y="loss scale",
    log="y",
    alt="Loss scale over batches: it falls from 2 to the 40 in a few skipped steps, then doubles now and then.",
)
show.table(formats)

# %% [markdown]
# DeepSeek-V3 reports a relative loss error of FP8 under 0.25% against BF16 ([2412.19437](https://arxiv.org/abs/2412.19437),
# 3.3), after a trillion tokens.
#
# **Question**: yours, in percent of the *distance to the floor*: how much farther from it does block FP8 end than BF16 with
# masters? (Eight seeds gave us 0.0 to 1.2, mean 0.5; four of 150 steps, nearer the floor, 0.3 to 1.8.)

# %% tags=["question"]
### BEGIN SOLUTION
fp8_gap = 100 * (above["FP8, block"] / above["BF16, master"] - 1)
### LAB fp8_gap = None  # your answer, percent
### END SOLUTION

# %% tags=["grade"]
lab.answer("fp8_gap", fp8_gap)

# %% [markdown]
# ## 7 · What is won
#
# Memory, measured by the ledger: what one forward keeps for backward, under autocast to BF16 and with the package's FP8 and
# FP4 layers, which really keep bytes and half bytes. Weights, gradients and moments stay in float32.

# %% tags=["experiment"]
from minitrain.measure.memory import MemoryLedger
from minitrain.training.fp8_linear import MXFP8, NVFP4, convert


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

# %% tags=["grade"]
lab.experiment("memory", memory)

# %%
show.bars(
    [row["format"] for row in memory],
    [row["activation_bytes"] / 1e6 for row in memory],
    y="kept for backward (MB)",
    alt="Megabytes of activations kept for backward in FP32, BF16, and BF16 with FP8 or FP4 linear layers, each less than the one before.",
)

# %% [markdown]
# **Explain**: not a half and a quarter. Norms, logits and the stream stay in float32: sensitive, and few FLOPs.
#
# > **On GPUs.** Tensor cores multiply BF16 twice as fast as TF32, FP8 twice as fast again (Hopper), FP4 on Blackwell.
# > The package's `QuantizedLinear` calls FP8 units where it can.
#
# Next, [e05 · Activation memory](e05_activation_memory.ipynb): what no format shrinks enough is computed twice.

# %%
lab.score(read="minitrain/training/precision.py")
