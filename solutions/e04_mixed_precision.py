# %% [markdown]
# # e04 · Mixed precision
#
# **Numbers in half, a quarter or an eighth of the bytes: you see what precision is lost and where it hurts, and build the
# techniques that win it back.**
#
# 105 minutes · CPU is enough · before: [e03 · ZeRO](e03_zero.ipynb) · [map of the course](index.ipynb)
#
# You build: dynamic loss scaling, master weights, stochastic rounding, the cast to FP8, block scales and delayed scaling.
# You end with this picture: one model trained in eight formats, and how far each ends above the floor that no model can beat.
#
# ![Held-out loss above the entropy floor of one small model in eight number formats: plain FP16 and plain BF16 stand far above the others](../labs/pictures/e04_mixed_precision.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, ideas, show

lab = Lab("e04_mixed_precision")

# %% [markdown]
# ## 1 · Underflow and loss scaling
#
# A floating-point number has a sign, an exponent and a mantissa. With the exponent $e$ and the fraction $f$, which the
# mantissa's $m$ bits store, it is
#
# $$x = \pm\, 2^{e}\,(1 + f), \qquad f \in \left\{0, \tfrac{1}{2^m}, \tfrac{2}{2^m}, \dots\right\}.$$
#
# The exponent bits determine the *range* of a format, the mantissa bits its *precision*: from one power of two to
# the next there are $2^m$ equal steps. Below the smallest normal exponent the steps do not shrink further. These last numbers
# before zero are called *subnormal*.

# %%
ideas.number_lines()

# %% [markdown]
# The upper part shows the range of four formats, the lower part how closely their numbers are spaced between 1 and 2. FP16 (5 bits of
# exponent, 10 of mantissa) is precise, but its range is narrow: its smallest positive number is the subnormal $2^{-14} \cdot 2^{-10} = 2^{-24}
# \approx 6 \cdot 10^{-8}$, its largest 65,504. BF16 (8 and 7 bits) has the range of float32, but is coarse. Each
# weakness has its own remedy, in sections 1 and 2. E4M3 and E5M2 have eight bits: see section 3.
#
# The data are the stories of e01 again, with their exact floor: the entropy that no model can beat.

# %%
from minitrain.data.corpus import make_corpus
from minitrain.data.packing import pack
from minitrain.data.tokenizer import train_tokenizer

T = lab.size("length")
texts = make_corpus(600_000, seed=1), make_corpus(25_000, seed=2)
tokenizer = train_tokenizer(texts[0].documents[:1500], 512)
floor = texts[1].entropy_per_token(tokenizer)
stories = [tokenizer.encode_batch(text.documents) for text in texts]
rows = [pack(story, T, tokenizer.end_token) for story in stories]
print(f"floor {floor:.3f} nats a token")

# %%
from minitrain.data.loader import Loader
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.training.loss import token_weighted_loss

# alike: the microbatches of a step, of which one is computed
D, B, steps, alike = map(lab.size, ("width", "batch", "steps", "alike"))
config = ModelConfig(512, D, lab.size("layers"), 4, 2, 2 * D, tied=True)


def share_of_loss(model, batch):
    """This microbatch's part of the mean over all tokens of the step."""
    logits = model(batch.tokens, batch.documents, batch.positions)  # (B, T, V)
    counted = batch.tokens_counted * alike
    return token_weighted_loss(logits, batch.targets, counted)


# %% [markdown]
# The loss is a mean over *all* tokens of a step, 2 million here: 4,096 microbatches of 512 tokens, of which we compute one
# and divide its mean loss by 4,096. So each token's loss is divided by two million, and its gradients carry this factor all the way back
# through the model.
#
# **Predict**: what share of the gradients with respect to the outputs of the linear layers would FP16 round to zero? (From
# 0 to 1.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.5
### LAB guess = None  # a share from 0 to 1
### END SOLUTION
lab.predict("lost", guess, unit="share")

# %% tags=["experiment"]
import math

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
    row = {"scale": 2.0**exponent, "zero": (half == 0).float().mean().item()}
    underflow.append({**row, "infinite": half.isinf().float().mean().item()})

lab.reveal("lost", underflow[0]["zero"])

# %% [markdown]
# The next cell is folded: it draws a histogram of the magnitudes of all these gradients, as they are and multiplied by $2^{24}$.

# %% tags=["experiment", "folded"]
with show.canvas() as (figure, ax):
    ax.axvspan(-24, 16, color="#e8e8e8")
    words = ((0, "as they are"), (24, "times $2^{24}$"))
    for (power, word), color in zip(words, show.COLORS):
        heights = (gradients.abs().log2() + power).numpy()
        counts, *_ = ax.hist(heights, 65, range=(-45, 20), color=color)
        style = {"ha": "center", "fontweight": "bold"}
        ax.text(power - 28, 1.02 * counts.max(), word, **style)
    size = "size of a gradient, as a power of 2"
    ax.set(xlabel=f"{size} (shaded: what FP16 can write)")
    ax.set(ylabel="gradients", ylim=(0, 1.15 * counts.max()))
    ax.yaxis.set_major_formatter("{x:,.0f}")
show.figure(
    figure,
    alt="Histogram of gradients by power of two: most lie below the shaded "
    "range of FP16, and times 2 to the 24 inside it.",
)

# %% [markdown]
# **Explain**: a number below half of the smallest one, $2^{-25} \approx 3 \cdot 10^{-8}$, is rounded to zero, and 78% of the gradients are
# that small. The histogram also shows the remedy: the gradients span fewer powers of two than
# FP16 does, but lie too low, and can all be shifted at once.
#
# Backward is linear. If the *loss* is multiplied by a scale $S$, every gradient is multiplied by $S$:
#
# $$\frac{\partial (S \cdot \mathrm{loss})}{\partial w} = S \cdot \frac{\partial\, \mathrm{loss}}{\partial w}.$$
#
# Divide the gradients by $S$ in float32 before the optimizer uses them, and only the rounding has changed
# ([Micikevicius et al. 2018](https://arxiv.org/abs/1710.03740)).

# %% [markdown]
# How do you find $S$ during a run? A number that is too small disappears unnoticed. But one that is too large becomes inf, and an
# inf in the gradients is easy to detect. So the scale is raised **until it is too large**. After an inf or nan in any gradient, the step is
# useless and is skipped, and $S$ is halved. After 2,000 finite steps in a row $S$ is doubled again: if that was too much, it costs one
# step in 2,000.
#
# With several ranks there is one trap. An inf may appear on one rank only. If that rank skipped its step and the others did
# not, their weights would differ from then on. So all ranks must know of it: they sum one number.

# %% [markdown]
# ### Exercise 1 · `LossScaler`
#
# Difficulty 3 of 5 · 15 minutes · 14 points
#
# After an inf or nan in a gradient the step is skipped and $S$ is multiplied by `backoff`. After `interval` finite steps in a row $S$
# is multiplied by `growth`, and the count starts again. **All ranks must skip together**, or their weights diverge. Whatever it
# finds, `unscale` divides every gradient and calls `all_reduce` exactly once.


# %% tags=["exercise"]
class LossScaler:
    """The scale of the loss. About 12 lines of yours."""

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        """Divides every gradient by `scale`, in place; True if all of them, on
        all ranks, are finite. `parameters` may be a generator: go through it
        once. `all_reduce(tensor)` sums a tensor over ranks, in place: one
        number a step."""
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
# `unscale` does two things in one loop: divide, and record whether anything is not finite. A gradient may be None.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Record it in a tensor of one number, `found`, 0 or more; after the loop `all_reduce(found)`, always, on every rank.
# All is finite if it is still 0. (Counting *finite* ranks fails: the sum is above 0 if a single rank is fine.)
#
# </details>
# <details><summary>Hint 3</summary>
#
# `(~p.grad.isfinite()).any()` can be added to `found`. In `update` the count goes up or back to 0; it also returns to 0 when it has
# reached `interval`.
#
# </details>

# %% [markdown]
# Now record the table of scales measured above. It shows what your scaler has to find: a range that is limited on both
# sides.

# %% tags=["grade"]
lab.experiment("underflow", underflow)

# %% [markdown]
# **Question**: what is the smallest scale in your table with which less than 1% becomes zero?

# %% tags=["question"]
### BEGIN SOLUTION
smallest_scale = next(row["scale"] for row in underflow if row["zero"] < 0.01)
### LAB smallest_scale = None  # your answer, a scale of the table
### END SOLUTION
show.table(
    [
        {
            "power of 2": round(math.log2(row["scale"])),
            "scale": row["scale"],
            "become zero (%)": 100 * row["zero"],
            "become infinite (%)": 100 * row["infinite"],
        }
        for row in underflow
    ],
    formats={
        "scale": "{:,.0f}".format,
        "become zero (%)": "{:.2f}".format,
        "become infinite (%)": "{:.2f}".format,
    },
)

# %% tags=["grade"]
lab.answer("smallest_scale", smallest_scale)

# %% [markdown]
# ## 2 · Updates lost to rounding
#
# BF16 has the range of float32 and needs no loss scale. Its weakness is a different one.
#
# **Predict**: a BF16 weight starts at 1.0 and takes 100 steps of exactly -0.001. Where does it end in plain BF16?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.9
### LAB guess = None  # where the weight ends
### END SOLUTION
lab.predict("bf16_end", guess)

# %% [markdown]
# With 7 bits of mantissa there are 128 steps from one power of two to the next. So the spacing of BF16 numbers between $2^k$ and
# $2^{k+1}$ is
#
# $$\Delta = 2^{k-7},$$
#
# 0.0039 between ½ and 1, 0.0078 between 1 and 2. After an optimizer's update the weight is somewhere between two of these numbers
# and must be rounded to one of them. Training takes many small steps, and as the learning rate decays, each step becomes a smaller and
# smaller fraction of the spacing. There are two ways to keep such steps.

# %% [markdown]
# The first way keeps what rounding would lose. Store a float32 copy of each weight, the *master weight*. With 23 bits of mantissa
# its spacing is $2^{16} = 65{,}536$ times finer, so small steps add up in it. The optimizer updates the masters. Forward and
# backward use BF16 weights, which are the masters, rounded again after each step. If these were ever copied back to the masters, the
# small steps accumulated there would be lost. The price is 4 bytes per parameter.

# %% [markdown]
# ### Exercise 2 · `MasterWeights`
#
# Difficulty 3 · 10 minutes · 10 points
#
# Keep a float32 copy, the *master*, of each weight. The optimizer updates the masters; the weights are the masters, rounded.


# %% tags=["exercise"]
class MasterWeights:
    """A fresh optimizer over BF16 weights, made to move float32 copies of them.
    About 8 lines of yours."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        groups = self.param_groups
        self.weights = [p for group in groups for p in group["params"]]
        self.masters = []  # a float32 parameter for each weight
        ### BEGIN SOLUTION
        self.masters = [p.detach().float().requires_grad_() for p in self.weights]
        ### END SOLUTION
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        """Gradients to the masters, one step, weights from masters; never the
        other way round. A weight without a gradient gives its master none, and
        no master keeps one. The weights' own gradients stay as they are."""
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
# `p.detach().float().requires_grad_()` is a float32 copy and a leaf of its own.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In `step`: set every `master.grad` to `weight.grad.float()`, or to None if that is None; then `self.optimizer.step()`; then update
# the weights.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `weight.copy_(master)` rounds to the nearest BF16 number. Afterwards set `master.grad` to None, which frees 4 bytes per parameter.
#
# </details>

# %% [markdown]
# The second way needs no extra memory: round up or down *at random*. Let $x$ lie between the neighbours $a$ and $a + \Delta$.

# %%
ideas.rounding()

# %% [markdown]
# With rounding to the nearest, all sixteen roundings of the same $x$ go to the same side, and their errors add up. *Stochastic rounding*
# goes up with the probability $p = (x - a)/\Delta$. Then the mean is
#
# $$(1 - p)\,a + p\,(a + \Delta) = a + p\,\Delta = x.$$
#
# A single rounding may be worse than the nearest, but the errors cancel on average ([Gupta et al. 2015](https://arxiv.org/abs/1502.02551)).
#
# With bits this is easy. BF16 is float32 without its last 16 bits. Read as an integer $r$, these bits are the distance from
# $a$ in units of $\Delta/2^{16}$, so $p = r/2^{16}$. Add a random integer $u$ from $0$ to $2^{16} - 1$ to them. The sum carries into the
# remaining bits if $r + u \ge 2^{16}$, which holds for exactly $r$ of the $2^{16}$ values of $u$.

# %% [markdown]
# ### Exercise 3 · `stochastic_round`
#
# Difficulty 3 · 12 minutes · 8 points
#
# Round up or down at random: a number ¾ of the way up goes up 3 times in 4. Random bits added to the last 16 carry into the others
# exactly as often. (`x.view(torch.int32)` reads a float's bits. Before the cast to BF16 the last 16 bits must be 0.)


# %% tags=["exercise"]
def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    """x float32, any shape, unchanged -> a new bfloat16 tensor: one of x's two
    neighbours, x on average, every element drawn independently. Numbers
    that BF16 has, inf and torch.nan stay as they are. Draws from `generator`,
    or without one from torch's own. About 3 lines."""
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
# `x.view(torch.int32)` are the bits as integers, in x's own memory: add the noise into a new tensor, then clear the last 16 bits.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.randint(2**16, x.shape, dtype=torch.int32, generator=generator)` is the noise; `& -(2**16)` clears.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Read the integers as float32 again with `view`, then cast. The cleared bits are 0, so this cast rounds nothing.
#
# </details>

# %% [markdown]
# **Experiment**: 100 steps of -0.001 in three ways, from seven starting weights (1,000 copies of each).

# %% tags=["experiment"]
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
    row = {"start": start, "exact": start - 100 * STEP}
    row["bf16"] = plain.float().mean().item()
    row["master"] = copy.detach().float().mean().item()
    row["stochastic"] = chance.float().mean().item()
    stall.append(row)

# %% tags=["experiment"]
at_one = next(row for row in stall if row["start"] == 1)
lab.reveal("bf16_end", at_one["bf16"])
powers = list(range(-3, 4))
ways = {"plain BF16": "bf16", "masters": "master"}
ways["stochastic rounding"] = "stochastic"
show.lines(
    {
        name: (powers, [1e3 * (r["start"] - r[key]) for r in stall])
        for name, key in ways.items()
    },
    theory={"exact": (powers, [100] * len(stall))},
    x="weight at the start (power of 2)",
    y="moved by 100 steps (thousandths)",
)

# %% tags=["grade"]
lab.experiment("stall", stall)

# %% [markdown]
# **Question**: what is the smallest start in your table from which plain BF16 did not move at all?

# %% tags=["question"]
### BEGIN SOLUTION
first_stall = min(row["start"] for row in stall if row["bf16"] == row["start"])
### LAB first_stall = None  # your answer, a start of the table
### END SOLUTION
headings = {"exact": "exact end", "bf16": "plain BF16", "master": "masters"}
headings |= {"start": "start", "stochastic": "by chance (mean)"}
show.table(
    [{headings[key]: row[key] for key in row} for row in stall],
    formats=dict.fromkeys(headings.values(), "{:.4f}".format)
    | {"start": "{:g}".format},
)

# %% tags=["grade"]
lab.answer("first_stall", first_stall)

# %% [markdown]
# **Explain**: just below 1.0 the spacing is $\Delta = 0.0039$. A step of 0.001 is less than half of it, so the result is rounded back to
# 1.0, a hundred times. The weight does not move, however long you train.
#
# Just below ½ the spacing is 0.00195. Half of it is 0.00098, a little less than 0.001, so each step is rounded to a whole
# spacing: the weight moves twice as far as it should. With masters the only error is the last rounding; stochastic rounding has noise that
# averages out.

# %% [markdown]
# **Takeaway**: of 100 steps down from 1.0, plain BF16 took none; masters ended at 0.8984 and stochastic rounding at 0.8996 on
# average, where 0.9 is exact.
#
# ## 3 · Eight bits
#
# Three formats are narrower still. **E4M3** has 4 bits of exponent and $m = 3$ of mantissa, and its largest number is 448. **E5M2** is
# coarser, reaches 57,344, and is used for gradients. **E2M1**, with four bits, has only 0, ½, 1, 1½, 2, 3, 4, 6 and their
# negatives. Ordinary CPUs do not compute with them. But what a number *loses* when it is cast to such a format can be computed anywhere, by
# rounding float32 numbers. This is what *emulated* means in this lab.

# %% [markdown]
# How is $x$ rounded to $m$ bits of mantissa? Find the largest power of two $2^e$ that is at most $|x|$. Up to the next power there are
# $2^m$ equal steps, so one step is $2^{e-m}$. Divide $x$ by the step, round, and multiply back. Take $x = 0.3$ in E4M3:
#
# $$e = -2, \quad \text{step} = 2^{-2-3} = \tfrac{1}{32}, \quad \frac{0.3}{1/32} = 9.6 \to 10, \quad \frac{10}{32} = 0.3125.$$
#
# The error is at most half a step, which is at most $2^{-m-1} = 1/16$ or 6% of $|x|$. Below the smallest normal number, $2^{-6}$ in E4M3,
# $e$ stays at -6: the steps do not shrink further, and the error can exceed 6%.

# %%
from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    mantissa_bits: int  # m
    smallest_exponent: int  # below 2^this the steps shrink no further
    largest: float


E4M3, E5M2, E2M1 = Form(3, -6, 448.0), Form(2, -14, 57344.0), Form(1, 0, 6.0)

# %% [markdown]
# ### Exercise 4 · `round_to`
#
# Difficulty 2 · 8 minutes · 12 points
#
# Write one function for all three formats: they differ only in the three numbers of a `Form`.


# %% tags=["exercise"]
def round_to(x: torch.Tensor, form) -> torch.Tensor:
    """The nearest number of `form` for each x, nan stays; x float32, any shape,
    unchanged -> a new float32 tensor. (Another way to the same bits is fine.)
    1. Clamp to ±form.largest: beyond it, a bare cast differs from device to
       device.
    2. The step is 2^(e - m): 2^e the largest power of two that is not above
       |x|, e at least form.smallest_exponent.
    3. x / step to a whole number, ties to even (as `torch.round` does), times
       the step.
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
# The bits 0x7F800000 of a float32 are its exponent. With all other bits 0 the number is 2^e itself:
# `(x.view(torch.int32) & 0x7F800000).view(torch.float32)`. (Or use `torch.frexp`, whose exponent is e + 1.)
#
# </details>
# <details><summary>Hint 2</summary>
#
# Clamp 2^e from below at `2.0**form.smallest_exponent`: that takes care of the subnormal numbers and of 0.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The step is that power times `2.0**-form.mantissa_bits`. Division by a power of two is exact, so `round` is the only rounding.
#
# </details>

# %% [markdown]
# ## 4 · One scale, or many
#
# 448 is not large, and a tensor's numbers may have any magnitude. So each tensor is divided by a scale $s$ before the cast, and the
# product is multiplied by it afterwards. The scale that makes the best use of the format maps the largest magnitude, amax, to the format's
# largest number:
#
# $$s = \frac{\mathrm{amax}}{448}, \qquad x \approx s \cdot \mathrm{round}\!\left(\frac{x}{s}\right).$$
#
# Then a single outlier determines the scale of all numbers. **Block scaling** keeps one scale for each tile, such as the 1 x 32 numbers of
# MXFP8. The picture shows which other numbers share the outlier's scale.

# %%
ideas.block_scales()

# %% [markdown]
# With one scale, all 63 other numbers are divided by the outlier's scale. With blocks of 1 x 4, only three are. The price is the
# memory for the scales: in MXFP8 one byte for 32 bytes of numbers, 3%.
#
# ### Exercise 5 · `fake_quantize`
#
# Difficulty 4 · 15 minutes · 8 points
#
# A tile's amax is its largest magnitude. The scale of a tile is amax / form.largest, however small that is, and 1 for a tile of
# zeros. Divide by it, call `round_to`, multiply back.


# %% tags=["exercise"]
def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    """x (R, K), finite, strided or not, unchanged -> a new tensor of what is
    left of it in `form`, float32. `tile` (r, c), or None: all of x. r and c may
    not divide R and K: pad with zeros, cut. `amax` (R/r, K/c), where it is
    given, stands for the tiles' own; it is 0 only for a tile of zeros. About 10
    lines."""
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
# View the matrix as tiles, with the shape (R/r, r, K/c, c). `torch.nn.functional.pad(x, (0, -K % c, 0, -R % r))` pads the edges first.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `padded.unflatten(1, (-1, c)).unflatten(0, (-1, r))` makes the tiles; `.abs().amax(dim=(1, 3))` is the amax of each, (R/r, K/c).
#
# </details>
# <details><summary>Hint 3</summary>
#
# `scale[:, None, :, None]` broadcasts over the tiles. Two calls of `flatten` undo the two of `unflatten`; then cut off the padding.
#
# </details>

# %% [markdown]
# **Predict**: 64 rows have 8 blocks of 32 normal random numbers each (mean 0, standard deviation 1); each row gets an outlier of 100,000 in
# block 0. With one scale for all, by what factor does the mean error in the *other* blocks grow? (1: not at all.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 10
### LAB guess = None  # a factor
### END SOLUTION
lab.predict("grows", guess)

# %% tags=["experiment"]
clean = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
sizes = [10.0**k for k in range(1, 8)]
tiles = {"tensor": None, "block": (1, 32)}


def error(block, tile, size=None):
    """The mean of one block; with outliers of this size in block 0."""
    x = clean.clone()
    if size:
        x[:, 0] = size
    wrong = fake_quantize(x, E4M3, tile) - x
    return wrong[:, 32 * block : 32 * block + 32].abs().mean().item()


outlier = []
for scheme, tile in tiles.items():
    for block in range(8):
        row = {"scheme": scheme, "block": block}
        row["error_before"] = error(block, tile)
        row["error_after"] = error(block, tile, 1e5)
        outlier.append(row)

# %% tags=["experiment", "folded"]
grown = {
    scheme: [error(1, tile, size) / error(1, tile) for size in sizes]
    for scheme, tile in tiles.items()
}
lab.reveal("grows", grown["tensor"][sizes.index(1e5)])
names = {"one scale": "tensor", "1 x 32 blocks": "block"}
show.lines(
    {name: (sizes, grown[scheme]) for name, scheme in names.items()},
    x="size of the outlier (the others: mean 0, deviation 1)",
    y="error in another block, after / before",
    log="xy",
    alt="Error in another block by the size of an outlier: with one scale it "
    "is the same up to about 10,000 and grows beyond, with block scales it "
    "never changes.",
)

# %% tags=["grade"]
lab.experiment("outlier", outlier)

# %% [markdown]
# **Explain**: an outlier of 10,000 costs little, which is surprising if you know integer quantization. A float keeps its *relative* error
# when it is divided by a scale, as long as it stays normal, and E4M3's normal numbers span a factor of
# $448 / 2^{-6} = 28{,}672$: 10,000 is within it, 100,000 is not.
#
# An outlier of 100,000 makes $s = 10^5/448 = 223$. A number of size 1 becomes $1/223 = 0.0045$, below the smallest normal number
# $2^{-6} = 0.0156$. There the steps are $2^{-9}$, which is $223 \cdot 2^{-9} = 0.44$ after multiplying back. With an outlier of a million the
# step is 4.4, and nearly all other numbers become zero. Integers have no such reserve: all of their steps are equal.

# %% [markdown]
# **Takeaway**: an outlier of 100,000 made the error of the other blocks 6.1 times as large with one scale; with block scales not a single
# bit outside its own block changed.

# %% [markdown]
# ## 5 · Delayed scaling
#
# To scale a tensor you must know its largest magnitude, and for this the whole tensor must have been computed and read. Only then
# can it be cast, which reads it a second time. **Delayed scaling** avoids the first pass. It uses the largest
# magnitude of the last $H$ steps, over all microbatches *and all ranks*, and casts immediately. Magnitudes change slowly from
# step to step; numbers that have outgrown the scale are clamped to the format's largest.
#
# Activations, weights and gradients differ in magnitude, so each of these *roles* has its own history.

# %% [markdown]
# ### Exercise 6 · `AmaxHistory`
#
# Difficulty 3 · 8 minutes · 8 points
#
# Write `amax`, which records a magnitude and returns the one to scale by, and `roll`, which moves the history by one step.
# Evaluation (`record=False`) scales in the same way, but records nothing. A magnitude of zero takes a row like any other; only
# a role that did not run takes none. If the past has only zeros, it gives no scale: use `now`.


# %% tags=["exercise"]
class AmaxHistory(torch.nn.Module):
    """Largest magnitudes of the last H steps. About 6 lines of yours."""

    def __init__(self, length: int, device="cpu"):
        super().__init__()
        past = torch.zeros(length, 3, device=device)  # (H, 3)
        self.register_buffer("past", past)
        self.seen = {}  # role -> largest since the last step

    def amax(self, role: int, now: torch.Tensor, record=True) -> torch.Tensor:
        """role: 0 activation, 1 weight, 2 gradient, its column of `past`. Notes
        `now` () as seen; returns the magnitude to scale by: the largest of the
        role's past, or `now` where there is none yet (all 0)."""
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
        """seen (3,) becomes row 0 of each column that ran, and its oldest entry
        goes; a column that did not run (-1) stays as it is."""
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
# A step has several microbatches: record `torch.maximum(self.seen.get(role, now), now)`, not simply `now`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The largest magnitude of the past is `self.past[:, role].max()`. Return it if it is above 0.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In `roll` go column by column: the rows move down by one (copy them with `clone` first, since source and target overlap), then set
# row 0.
#
# </details>

# %% [markdown]
# ## 6 · The same model in eight formats
#
# Now you combine everything. One small model is trained eight times from the same start on the same batches. Both operands of a
# linear layer's three matmuls are rounded by *your* functions (for FP16 by the package's `emulate`), and products are summed in
# float32, as in tensor cores. So FP16, FP8 and FP4 are **emulated**: their loss is meaningful, their speed is not. FP32 and BF16 are
# computed by the CPU itself.
#
# The next cell is folded. It has the linear layer that rounds its operands along the dimension that is summed over (for which
# backward transposes them first), and the two ways to choose scales: delayed, or by blocks.


# %% tags=["experiment", "folded"]
class Emulated(torch.autograd.Function):
    """x (T, D), W (F, D) -> x W^T of rounded operands. `keep(matrix, role)`
    rounds along the last dimension, the one that is summed over: so backward
    transposes first."""

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
    def keep(matrix, role):
        return fake_quantize(matrix, form, (1, size))

    return lambda linear: keep


# %% [markdown]
# One `train`, folded as well, serves all formats. It uses your scaler where a format needs one, your masters around the optimizer, and a
# learning-rate schedule in which a skipped step does not count.

# %% tags=["experiment", "folded"]
import time

from minitrain.training.loop import evaluate


def learning_rate(step):
    falling = (1 + math.cos(math.pi * step / steps)) / 2
    return 4e-3 * min(1, (step + 1) / 10) * falling


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
        if finite:  # a skipped step moves neither weights nor schedule
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
    row = {"loss": loss, "tokens_per_second": speed}
    return {**row, "skipped": len(scales) - done}, scales


# %% [markdown]
# **Run**: eight trainings from one start, about a minute.

# %% tags=["experiment"]
from minitrain.precision.loss_scaling import emulate
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
    row |= {"emulated": name[:3] not in ("FP3", "BF1"), "floor": floor}
    formats.append({"format": name, **row})

# %% [markdown]
# First the scale of your `LossScaler`. It began at $2^{40}$, far too high. It falls while steps overflow, halved for each
# skipped step, and then rises after every 25 finite ones until it is too high again. (Here a skipped batch is tried again; real
# runs drop it.)

# %% tags=["experiment", "folded"]
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
    alt="Loss scale over batches: it falls from 2 to the 40 in a few skipped "
    "steps, then doubles now and then.",
)

# %% tags=["grade"]
lab.experiment("formats", formats)

# %% tags=["picture", "folded"]
above = {row["format"]: row["loss"] - floor for row in formats}
far = ("FP32", "FP16", "FP16, scaled", "FP8, block")
near = [name for name in above if name not in far]
farther = [100 * (above[name] / above["FP32"] - 1) for name in near]
with show.canvas(rows=2, width=8, height=8) as (figure, axes):
    nats = list(above.values())
    for ax, names, heights, y in (
        (axes[0], above, nats, "above the floor (nats)"),
        (axes[1], near, farther, "farther than FP32 (%)"),
    ):
        wrapped = [name.replace(", ", "\n") for name in names]
        show.bars(wrapped, heights, y=y, ax=ax)
        for label in ax.texts:
            label.set_fontsize(10)
        for bar, name in zip(ax.patches, names):
            bar.set_facecolor(blue if name[:3] in ("FP3", "BF1") else orange)
    P = sum(p.numel() for p in build(config).parameters())
    size = f"{show.count_text(P)} parameters, {steps} steps (orange: emulated)"
    axes[0].set_title(f"Loss above the floor: {size}")
    axes[1].set_title("Farther from the floor than FP32 (block FP8: your question)")
show.figure(
    figure,
    alt="Loss above the floor in eight formats, and in percent of FP32's: "
    "plain FP16 is far off, plain BF16 and FP4 several percent, the others "
    "about one.",
)

# %% [markdown]
# **Explain**: FP16 without a scale loses most of its gradients and stays 4.4 nats above the floor; with one it ends at 0.765, like
# FP32. Plain BF16 stalls as the learning rate falls, and ends 16% farther from the floor. With masters it equals FP32. FP4 costs about 7.5%.

# %% [markdown]
# **Question**: FP8 cost DeepSeek-V3 under 0.25% of the *loss* ([2412.19437](https://arxiv.org/abs/2412.19437), 3.3). By what
# percentage is your block FP8 farther from the *floor* than BF16 with masters?

# %% tags=["question"]
show.table(
    [
        {
            "format": row["format"],
            "emulated": "yes" if row["emulated"] else "no",
            "above the floor (nats)": above[row["format"]],
            "loss (nats a token)": row["loss"],
            "skipped steps": row["skipped"],
            "speed here (1,000 tokens/s)": row["tokens_per_second"] / 1e3,
        }
        for row in formats
    ],
    formats=dict.fromkeys(
        ["above the floor (nats)", "loss (nats a token)"], "{:.4f}".format
    )
    | {"speed here (1,000 tokens/s)": "{:.1f}".format},
)
### BEGIN SOLUTION
fp8_gap = 100 * (above["FP8, block"] / above["BF16, master"] - 1)
### LAB fp8_gap = None  # your answer, percent
### END SOLUTION

# %% tags=["grade"]
lab.answer("fp8_gap", fp8_gap)

# %% [markdown]
# Over eight seeds we saw 0.0 to 1.2 percent. As a percentage of the loss it is about half as much, since half of the loss is
# the floor.
#
# One column may surprise you: BF16 can be *slower* than FP32 here. A CPU without BF16 units converts every operand to float32, multiplies,
# and rounds again; and even with them, matrix products are not all that takes time in so small a model. BF16 saves memory here (section 7), not time.
#
# **Takeaway**: in our run, scaled FP16, BF16 with masters and both kinds of FP8 ended within about 1% of FP32's distance
# to the floor, 0.765 nats. Plain FP16 ended 4.4 nats above the floor, plain BF16 16% farther than FP32; loss scaling cures the first, master
# weights the second.

# %% [markdown]
# ## 7 · Memory saved
#
# The package's `MemoryLedger` counts what one forward keeps for backward: under autocast to BF16, and with the package's FP8
# and FP4 layers, which really store one byte or half a byte per number. (Weights, gradients and moments stay in float32.)

# %% tags=["experiment"]
from minitrain.measure.memory import MemoryLedger
from minitrain.precision.low_bit_linear import MXFP8, NVFP4, convert


def kept_bytes(autocast, recipe=None):
    """The activations that one forward keeps for backward."""
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

# %%
show.bars(
    [row["format"] for row in memory],
    [row["activation_bytes"] / 1e6 for row in memory],
    y="kept for backward (MB)",
)

# %% tags=["grade"]
lab.experiment("memory", memory)

# %% [markdown]
# **Explain**: 5.47 MB in FP32 became 4.31 under autocast to BF16, 3.86 with FP8 layers and 3.58 with FP4: not a half, a
# quarter and an eighth. Only the operands of products are narrow. Norms, logits and the residual stream stay in
# float32, and this model's logits alone (512 per token, compared with a width of 64) take a megabyte.
#
# > **On GPUs.** By the vendors' figures tensor cores multiply BF16 twice as fast as TF32, FP8 twice as fast as BF16 (since
# > Hopper), FP4 faster still (Blackwell). This lab runs on the CPU, whatever the machine has. The package's `QuantizedLinear` uses FP8 units
# > if there are any.
#
# Next, [e05 · Activation memory](e05_activation_memory.ipynb): tensors that no format makes small enough are recomputed instead of kept.

# %%
lab.score(read="minitrain/precision/loss_scaling.py")
