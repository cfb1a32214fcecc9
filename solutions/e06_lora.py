# %% [markdown]
# # e06 · LoRA and its relatives
#
# **A trained model learns something new: its own weights stay frozen, and a few new ones are trained. You build four such methods, and
# measure what each of them learns, costs and forgets.**
#
# 120 minutes · CPU is enough · before: [e05 · Activation memory](e05_activation_memory.ipynb) · [map of the course](index.ipynb)
#
# You build LoRA for any layer, a merge that can be undone exactly, DoRA, the bottleneck adapter, a learned prefix, and a batch
# in which every row has its own adapter. By the end you will have made this picture: what each method learned, and what it forgot.
#
# ![Nats learned of new stories against nats forgotten of old ones, for full fine-tuning and six adapters: who learns more forgets more](../labs/pictures/e06_lora.png)

# %% tags=["setup"]
import torch
import torch.nn.functional as F
from minitrain.lab import Lab, ideas, show

lab = Lab("e06_lora")

# %% [markdown]
# ## 1 · A model that knows one world
#
# The stories of e01 are set in a village. The same language also has stories of the *sea*, with other characters, objects
# and places. Our base model is trained on the village, and sees a fortieth as much of the sea, as real base models have seen
# a little of everything. Then it has to learn the sea. Both worlds have an exact floor, the entropy that no model can go below,
# so "how well" and "how much was forgotten" are distances in nats.

# %% tags=["experiment"]
from minitrain.data.corpus import make_corpus
from minitrain.data.packing import pack
from minitrain.data.tokenizer import train_tokenizer

T, D, B = lab.size("length"), lab.size("width"), lab.size("batch")
old, new = make_corpus(800_000, seed=1), make_corpus(300_000, seed=1, domain="sea")
few = make_corpus(
    20_000, seed=3, domain="sea"
).documents  # all of it that the base sees
tested = lab.size("tested")
tests = {"old": make_corpus(tested, seed=2), "new": make_corpus(tested, 2, "sea")}
tokenizer = train_tokenizer(old.documents[:1000] + new.documents[:1000], 512)


def packed(documents):
    return pack(tokenizer.encode_batch(documents), T, tokenizer.end_token)


floors = {world: test.entropy_per_token(tokenizer) for world, test in tests.items()}
test_rows = {world: packed(test.documents) for world, test in tests.items()}
base_rows, new_rows = packed(old.documents + few), packed(new.documents)

# %% [markdown]
# The next cell is folded. It defines `train`, with AdamW over *the parameters that require a gradient*, and `distance`, the held-out loss
# above the floor.

# %% tags=["experiment", "folded"]
import copy
import math
import time

from minitrain.data.loader import Loader
from minitrain.training.loop import evaluate
from minitrain.training.loss import token_weighted_loss
from tqdm.auto import tqdm


def train(model, rows, steps, rate, seed=0, batch=B):
    """Warm-up and cosine. Returns the optimizer and the seconds."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, weight_decay=0.0)
    began = time.perf_counter()
    for step, part in zip(range(steps), Loader(rows, batch, seed=seed)):
        for group in optimizer.param_groups:
            wave = (1 + math.cos(math.pi * step / steps)) / 2
            group["lr"] = rate * min(1, (step + 1) / 10) * wave
        logits = model(part.tokens, part.documents, part.positions)  # (B, T, V)
        optimizer.zero_grad()
        token_weighted_loss(logits, part.targets, part.tokens_counted).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
    return optimizer, time.perf_counter() - began


def distance(model, world):
    """Nats a token above the floor."""
    return evaluate(model, Loader(test_rows[world], 64, shuffle=False)) - floors[world]


# %% tags=["experiment"]
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

config = ModelConfig(512, D, layers=2, heads=4, kv_heads=2, ffn_size=2 * D, tied=True)
base = build(config, seed=0)
train(base, base_rows, lab.size("pretrain"), 4e-3)
before = {world: distance(base, world) for world in tests}
P = sum(p.numel() for p in base.parameters())
print(
    f"{P:,} parameters; above the floor: village {before['old']:.2f}, sea {before['new']:.2f} nats"
)

# %% [markdown]
# ## 2 · A difference of low rank
#
# *Full* fine-tuning trains every weight. With Adam, each one then needs a gradient and two moments, and each
# task produces a whole new model. But the base already knows the language. Perhaps the change to be learned is small, not in its
# number of entries but in its *rank*.
#
# A layer has a matrix $W$ of $O$ rows and $I$ columns, for $I$ features in and $O$ out. What fine-tuning adds to it is another
# matrix, $\Delta W$. **LoRA** ([Hu et al. 2021](https://arxiv.org/abs/2106.09685)) makes it a product of a tall and a flat
# one:
#
# $$\Delta W = s \cdot B A, \qquad A \in \mathbb{R}^{R \times I}, \quad B \in \mathbb{R}^{O \times R}.$$

# %%
ideas.low_rank()

# %% [markdown]
# $R$ is the rank, and $s = \alpha / R$ a fixed scaling. Only $A$ and $B$ are trained: $R(I + O)$ numbers instead of $I \cdot O$.
# Take our matrix `up`, with $I = 64$, $O = 128$, and $R = 8$:
#
# $$8 \cdot (64 + 128) = 1{,}536 \quad \text{of} \quad 64 \cdot 128 = 8{,}192.$$
#
# Here that is a fifth. But $R(I+O)$ grows with the width, and $I \cdot O$ with its square. The comparison of methods by
# [PEFT](https://github.com/huggingface/peft), Hugging Face's library of adapters, adapts q (3,072 to
# 3,072 features) and v (3,072 to 1,024) in the 28 layers of Llama-3.2-3B, with rank 32:
#
# $$28 \cdot 32 \cdot \big((3072 + 3072) + (3072 + 1024)\big) = 9.18 \text{ million},$$
#
# exactly what its table says, of 3.21 billion: one in 350.

# %% [markdown]
# How should $A$ and $B$ be initialized? At first the model must equal the base, so $BA = 0$. But look at their gradients. With
# $y = W x + s B A x$ and the gradient $g = \partial\, \mathrm{loss} / \partial y$,
#
# $$\frac{\partial\, \mathrm{loss}}{\partial B} = s\, g\, (A x)^\top, \qquad \frac{\partial\, \mathrm{loss}}{\partial A} = s\, (B^\top g)\, x^\top.$$
#
# Each gradient contains the other matrix. If both were zero, neither would ever change. So one is random and one is zero: $A$ is drawn at
# random, $B = 0$. In the first step only $B$ changes, from the second on both do.

# %% [markdown]
# And in which order is $s B A x$ computed? From left to right, $BA$ is a matrix as large as $W$, computed at every step and
# multiplied with every token. From right to left, $A x$ has $R$ numbers per token, and both products together cost $2 R (I + O)$ FLOPs.
#
# > **One wrapper for all.** The adapter does not contain the layer. A wrapper, `Adapted(layer, adapter)`, freezes the layer, and
# > calls `adapter(layer, x)`. An adapter *calls* the layer and never looks inside: the layer may be quantized (e07), fused, or split over
# > ranks. It has `in_features` and `out_features`, but perhaps no `weight`.

# %% [markdown]
# ### Exercise 1 · `LoRA`
#
# Difficulty 2 of 5 · 12 minutes · 14 points
#
# The layer may compute in bfloat16. An adapter is small and can afford float32, in which small updates are not rounded away (e04):
# $x$ is converted to float32 on its way through $A$ and $B$, and what they add is converted to the dtype of the layer's output.


# %% tags=["exercise"]
class LoRA(torch.nn.Module):
    """What a layer learns beside itself. About 7 lines of yours."""

    def __init__(self, base, rank: int, scaling: float):
        """base: what can be called, with in_features I and out_features O; it is no part
        of the adapter. Makes the float32 parameters `lora_A` (R, I), random, its numbers
        about 1/√I, and `lora_B` (O, R)."""
        super().__init__()
        self.scaling = scaling
        ### BEGIN SOLUTION
        drawn = torch.randn(rank, base.in_features) / base.in_features**0.5
        self.lora_A = torch.nn.Parameter(drawn)
        self.lora_B = torch.nn.Parameter(torch.zeros(base.out_features, rank))
        ### END SOLUTION

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        """x (..., I) -> W x + s·B(A x), (..., O). Calls base once."""
        ### BEGIN SOLUTION
        y = base(x)
        inside = F.linear(x.to(self.lora_A.dtype), self.lora_A) * self.scaling
        return y + F.linear(inside, self.lora_B).to(y.dtype)
        ### END SOLUTION

    def delta(self) -> torch.Tensor:
        """s·B·A as one matrix, (O, I), without a gradient."""
        ### BEGIN SOLUTION
        return self.scaling * (self.lora_B.detach() @ self.lora_A.detach())
        ### END SOLUTION


# %% tags=["grade"]
LoRA = lab.grade(LoRA)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Put `torch.nn.Parameter(…)` around a random tensor and around zeros. Do not keep `base` in `self`: as a module it would become part
# of the adapter, weights and all.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `F.linear(x, A)` is $x A^\top$, for any leading shape: first with A, then with B.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `inside = F.linear(x.float(), self.lora_A) * self.scaling` has R numbers a token. Then
# `y + F.linear(inside, self.lora_B).to(y.dtype)`, where `y = base(x)`.
#
# </details>

# %% [markdown]
# `beside` puts one of your adapters beside linear layers in a copy of the base. There are seven kinds of them, `q k v o gate up down`.

# %% tags=["experiment"]
from minitrain.finetuning.layer import Adapted, dense_weight, find_layers
from minitrain.finetuning.methods import ALL_LINEAR


def beside(make, targets=ALL_LINEAR):
    """A copy of the base in which only adapters learn: make(layer) beside each target."""
    model = copy.deepcopy(base).requires_grad_(False)
    for path, layer in find_layers(model, targets):
        model.set_submodule(path, Adapted(layer, make(layer)))
    return model


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


example = beside(lambda layer: LoRA(layer, 8, 2.0))
share = sum(p.numel() for p in trained(example)) / P
print(
    f"rank 8 beside every linear layer: {share:.1%} of the base's numbers are trained"
)

# %% [markdown]
# ## 3 · Into the weights, and out again
#
# Beside the layer, $BA$ costs two more small products for every token. For serving, $W + \Delta W$ is one matrix of $W$'s own shape:
# once **merged**, the model is exactly as fast as before. That sets LoRA apart from most of its relatives.
#
# To switch to another task, the adapter has to come out again. It is tempting to write `W += delta`, and later `W -= delta`.

# %%
ideas.merging()

# %% [markdown]
# The picture keeps two significant decimal digits of each number, so that many change. bfloat16 keeps eight binary ones.
#
# **Predict**: $W$ is in bfloat16. An adapter whose $\Delta W$ is about a tenth of $W$ is added in place and subtracted again, once. What
# share of $W$'s entries has changed? (From 0 to 1.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.3
### LAB guess = None  # a share from 0 to 1
### END SOLUTION
lab.predict("moved", guess, unit="share")

# %% [markdown]
# Between $2^k$ and $2^{k+1}$ bfloat16 numbers are $2^{k-7}$ apart (e04). The sum is rounded to one of them, off by up to half
# of that. Subtracting $\Delta W$ again leads back to less than half a spacing from $W$, and the second rounding repairs the first,
# *if the spacing is still the same*. Where the sum has crossed a power of two, it was rounded to a coarser grid, and $W$ is lost.
# Numbers near zero suffer most.
#
# So merge into **a separate matrix** beside $W$, and drop it to unmerge. Add in float32 and round once. If $\Delta W$ were
# rounded to bfloat16 first, there would be two roundings again.

# %% [markdown]
# ### Exercise 2 · `merged_linear`
#
# Difficulty 2 · 8 minutes · 8 points
#
# `dense_weight(base)` returns $W$ in the layer's own dtype, dequantized if the layer is quantized. For an ordinary layer it *is* the weight,
# in the same memory. The merged weight needs memory of its own. A bias never changes here, so it may share base's memory, but it must be
# another `Parameter`: freezing base's own would freeze base.


# %% tags=["exercise"]
def merged_linear(base, delta: torch.Tensor) -> torch.nn.Linear:
    """A frozen torch.nn.Linear that computes W + delta, in W's dtype, with base's bias if it has
    one (`getattr(base, "bias", None)`). delta (O, I) float32; base and delta unchanged.
    About 7 lines of yours."""
    ### BEGIN SOLUTION
    weight, bias = dense_weight(base), getattr(base, "bias", None)
    outs, ins = weight.shape
    linear = torch.nn.Linear(ins, outs, bias=bias is not None, dtype=weight.dtype)
    linear.weight.data = (weight.float() + delta).to(weight.dtype)
    if bias is not None:
        linear.bias.data = bias.detach().clone()
    return linear.requires_grad_(False)
    ### END SOLUTION


# %% tags=["grade"]
merged_linear = lab.grade(merged_linear)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Make a new `torch.nn.Linear` with the same sizes and dtype, and give it the sum.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `(weight.float() + delta).to(weight.dtype)` is a new tensor, rounded once. `weight += delta` would be W itself.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `linear.weight.data = …`, the same for the bias, and at the end `linear.requires_grad_(False)`, which returns the layer.
#
# </details>

# %% [markdown]
# **Experiment**: adapters come and go over one bfloat16 matrix of 256 x 256, each a different one: in place, and by your
# `merged_linear`. A delta is about a tenth of $W$.

# %% tags=["experiment"]
draws = torch.Generator().manual_seed(0)
W = torch.randn(256, 256, generator=draws) / 16
kept = torch.nn.Linear(256, 256, bias=False).bfloat16().requires_grad_(False)
kept.weight.copy_(W)
original = kept.weight.clone()
in_place, drift = original.clone(), []
for merges in range(1, 101):
    b, a = (torch.randn(256, 8, generator=draws) for _ in range(2))
    delta = 0.1 / 16 / 8**0.5 * b @ a.T  # rank 8
    in_place += delta.bfloat16()  # what must not be done
    in_place -= delta.bfloat16()
    merged = merged_linear(kept, delta)
    if merges in (1, 3, 10, 30, 100):
        off = (in_place.float() - original.float()).square().mean().sqrt()
        row = {"merges": merges, "in_place_drift": (off / W.std()).item()}
        row["in_place_changed"] = (in_place != original).float().mean().item()
        row["beside_changed"] = (kept.weight != original).float().mean().item()
        drift.append(row)

# %% tags=["experiment"]
lab.reveal("moved", drift[0]["in_place_changed"])
counts = [row["merges"] for row in drift]
first = drift[0]["in_place_drift"]
show.lines(
    {"in place": (counts, [100 * row["in_place_drift"] for row in drift])},
    theory={"√n times the first": (counts, [100 * first * n**0.5 for n in counts])},
    x="adapters that came and went",
    y="W is off by (% of its size)",
    log="xy",
)

# %% tags=["grade"]
lab.experiment("drift", drift)

# %% [markdown]
# **Explain**: independent errors add up like a random walk, as $\sqrt{n}$. The measured curve falls below that, by 30% at the end: an
# entry that already lies on the coarser grid is hit less often. With a separate matrix none of this happens: $W$ is never written to.
#
# And the merged matrix itself is rounded. An entry of $\Delta W$ below half the spacing at that place is lost
# entirely: the same weakness as in e04. Unmerged, LoRA in float32 keeps it. So a merged model differs a little from the one
# that was trained.
#
# **Takeaway**: one adapter merged and unmerged in place changed 11% of $W$'s entries, a hundred of them 68% (`drift[-1]`). With a
# separate matrix, none changed any.

# %% [markdown]
# ## 4 · Length and direction
#
# LoRA with a small rank changes a matrix differently from full fine-tuning. [Liu et al. 2024](https://arxiv.org/abs/2402.09353) looked
# at each row of $W$ as a vector, which computes one output. It has a length and a direction. Full fine-tuning often changes one
# a lot and the other little; LoRA changes both together.

# %%
ideas.lengths()

# %% [markdown]
# **DoRA** learns them separately. With $V = W + s B A$, whose row $i$ has length $\lVert V_i \rVert$, and one learned magnitude $m_i$ for
# each row,
#
# $$y_i = m_i \, \frac{V_i \cdot x}{\lVert V_i \rVert}.$$
#
# At the start $m_i = \lVert W_i \rVert$, so that $y = W x$. The length is computed anew in each forward, since $V$ changes.
#
# Backward could go through $\lVert V \rVert$ too. That would compute a gradient of $V$'s full size, $O \cdot I$ numbers, in every layer, which
# is what LoRA is meant to avoid. The paper (section 4.3) treats the length **as a constant** in backward, and loses next to nothing.

# %% [markdown]
# ### Exercise 3 · `DoRA`
#
# Difficulty 3 · 12 minutes · 12 points
#
# Compose $y$ from $W x$ and $s B(A x)$, each times $m / \lVert V \rVert$: then no matrix of $W$'s size is saved for backward. To compute
# $\lVert V \rVert$ you may form $V$, from `dense_weight(base)` and `self.delta()`, without a gradient. A bias is not part of the row and is
# added unchanged; `base(x)` already includes it.


# %% tags=["exercise"]
class DoRA(LoRA):
    """LoRA turns the rows, `magnitude` (O,) are their lengths. About 8 lines of yours."""

    def __init__(self, base, rank: int, scaling: float):
        super().__init__(base, rank, scaling)  # lora_A, lora_B; self.delta() is s·B·A
        ### BEGIN SOLUTION
        lengths = torch.linalg.vector_norm(dense_weight(base), dim=1)
        self.magnitude = torch.nn.Parameter(lengths)
        ### END SOLUTION

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        """x (..., I) float32 -> m·(V x)/‖V‖ + bias, (..., O); `getattr(base, "bias", None)`."""
        ### BEGIN SOLUTION
        with torch.no_grad():
            V = dense_weight(base) + self.delta()
            lengths = torch.linalg.vector_norm(V, dim=1)  # (O,)
        bias = getattr(base, "bias", None)
        straight = base(x) if bias is None else base(x) - bias
        turned = F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scaling
        y = self.magnitude / lengths * (straight + turned)
        return y if bias is None else y + bias
        ### END SOLUTION


# %% tags=["grade"]
DoRA = lab.grade(DoRA)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `torch.linalg.vector_norm(matrix, dim=1)` gives the length of each row, (O,).
#
# </details>
# <details><summary>Hint 2</summary>
#
# Compute V = `dense_weight(base) + self.delta()` under `torch.no_grad()`: then its length is a constant for backward.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `base(x)` includes the bias. Subtract it, add `s·B(A x)`, multiply by `self.magnitude / lengths`, and add it back.
#
# </details>

# %% [markdown]
# ## 5 · The relatives
#
# LoRA is one of several places where a few new parameters can go. Look at a block, and choose a method.

# %%
ideas.adapter_places()

# %% [markdown]
# - **Houlsby's adapter** (2019, before LoRA) comes *after* a sublayer: down to $M$ features, a nonlinearity, up again, and
#   the result is added to its input. The nonlinearity is what LoRA left out. Because of it this adapter cannot be merged, and costs
#   time for every token that is ever generated.
# - **(IA)³** has one factor for each feature of the keys, the values and the input of `down`, and nothing else.
# - **BitFit** trains biases only.
# - A **prefix** adds keys and values that belong to no token.

# %% [markdown]
# ### Exercise 4 · `Houlsby`
#
# Difficulty 2 · 8 minutes · 6 points
#
# Return $y + U\,\mathrm{gelu}(D y + d) + u$, where $y$ is the layer's output. At first it must add nothing, and yet be
# able to learn: the same question as for $A$ and $B$.


# %% tags=["exercise"]
class Houlsby(torch.nn.Module):
    """A bottleneck after a layer. About 7 lines of yours."""

    def __init__(self, base, width: int, bottleneck: int):
        """Four parameters, called as you like: D (M, width), d (M,), U (width, M), u (width,).
        base is no part of the adapter."""
        super().__init__()
        ### BEGIN SOLUTION
        self.down = torch.nn.Linear(width, bottleneck)
        self.up = torch.nn.Linear(bottleneck, width)
        torch.nn.init.zeros_(self.up.weight)
        torch.nn.init.zeros_(self.up.bias)
        ### END SOLUTION

    def forward(self, base, x: torch.Tensor) -> torch.Tensor:
        """x (..., I) float32 -> (..., width), what base(x) has, too."""
        ### BEGIN SOLUTION
        y = base(x)
        return y + self.up(F.gelu(self.down(y)))
        ### END SOLUTION


# %% tags=["grade"]
Houlsby = lab.grade(Houlsby)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Two `torch.nn.Linear`, with biases, hold all four parameters.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The last one, `up`, starts at zero, weight and bias; `down` starts at random.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `y = base(x)`, then `y + self.up(F.gelu(self.down(y)))`.
#
# </details>

# %% [markdown]
# The last relative changes no layer at all. Attention reads the keys and values of tokens. A **prefix** puts $n$ learned ones
# before them in every layer, as if the text began with $n$ words that are in no vocabulary.

# %%
ideas.prefix_columns()

# %% [markdown]
# A key/value head has $C$ features, a layer has $K$ such heads, and the model $L$ layers. Keys and values together are
#
# $$n \cdot L \cdot 2 \cdot K \cdot C$$
#
# numbers: with $n = 16$, $L = 2$, $K = 2$, $C = 16$ these are 2,048. [Li and Liang 2021](https://arxiv.org/abs/2101.00190) found them
# hard to train directly. They computed all of them with one small MLP: $n$ vectors go in, and all layers' keys and values come out, so that
# what one layer learns helps the others. **After training the MLP is dropped**: only its output is kept. (The tables below give both: what
# was *trained*, MLP included, and what is *kept*.)
#
# Note that a prefix of zeros is not neutral: its keys get a score of 0, and with it a share of every softmax.

# %% [markdown]
# ### Exercise 5 · `Prefix`
#
# Difficulty 3 · 12 minutes · 10 points
#
# The sizes $L$, $K$ and $C$ are in `model.config` as `layers`, `kv_heads` and `head_size`. `drop_mlp` may be called a second time,
# and then does nothing.


# %% tags=["exercise"]
class Prefix(torch.nn.Module):
    """Learned keys and values of all layers. About 14 lines of yours."""

    def __init__(self, model, count: int, width: int):
        """count n: random vectors of any size you like. An MLP, one hidden layer of `width` and
        any bend, makes of each its keys and values for all layers. `enabled` is the package's
        switch: leave it."""
        super().__init__()
        self.config, self.count, self.enabled = model.config, count, True
        ### BEGIN SOLUTION
        c = self.config
        size = c.kv_heads * c.head_size
        self.vectors = torch.nn.Parameter(torch.randn(count, size))
        inner = torch.nn.Linear(size, width)
        outer = torch.nn.Linear(width, c.layers * 2 * size)
        self.mlp = torch.nn.Sequential(inner, torch.nn.Tanh(), outer)
        ### END SOLUTION

    def of_layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, each (K, n, C)."""
        ### BEGIN SOLUTION
        c = self.config
        table = self.table if self.mlp is None else self.mlp(self.vectors)
        table = table.view(self.count, c.layers, 2, c.kv_heads, c.head_size)
        keys, values = table[:, layer].unbind(1)  # (n, K, C) each
        return keys.transpose(0, 1), values.transpose(0, 1)
        ### END SOLUTION

    def drop_mlp(self) -> None:
        """Keeps what the MLP makes as a parameter, n·L·2·K·C numbers; MLP and vectors go."""
        ### BEGIN SOLUTION
        if self.mlp is not None:
            self.table = torch.nn.Parameter(self.mlp(self.vectors).detach())
            self.mlp = self.vectors = None
        ### END SOLUTION


# %% tags=["grade"]
Prefix = lab.grade(Prefix)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# One row of L·2·K·C numbers for each of the n vectors: `torch.nn.Linear`, `Tanh`, `torch.nn.Linear`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `.view(n, L, 2, K, C)`, select the layer, separate keys from values, and move the heads to the front.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.nn.Parameter(made.detach())` is a leaf that does not depend on the MLP. Setting a module or a parameter of `self` to None removes it
# from `parameters()`.
#
# </details>

# %% [markdown]
# ## 6 · Who learns what, and what it costs
#
# Now everything comes together. Each method starts from the same base and sees the same batches of sea stories. For each we record the columns
# of PEFT's own comparison: what is trained, bytes, seconds, and quality, here the distance to the floor. We add one that it lacks: the
# distance for the *old* stories, before and after.
#
# **Predict**: the village was learned to 0.15 nats above its floor. By how many nats does *full* fine-tuning on the sea worsen it?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.5
### LAB guess = None  # nats a token
### END SOLUTION
lab.predict("forgotten", guess)

# %% [markdown]
# (IA)³ and BitFit come from the package, all others are yours. The learning rates come from a small search over powers of two, judged by the
# new stories alone: an adapter that starts at zero takes larger steps than a trained weight.

# %% tags=["experiment"]
from minitrain.finetuning import adapt
from minitrain.finetuning.prompts import add_prefix


def with_prefix():
    model = copy.deepcopy(base).requires_grad_(False)
    add_prefix(model, Prefix(model, 16, width=64))
    return model


methods = {  # how it is made, and its rate
    "full": (lambda: copy.deepcopy(base), 4e-3),
    "LoRA": (lambda: beside(lambda layer: LoRA(layer, 8, 2.0)), 2e-2),
    "DoRA": (lambda: beside(lambda layer: DoRA(layer, 8, 2.0)), 2e-2),
    "Houlsby": (
        lambda: beside(lambda layer: Houlsby(layer, D, 16), ("o", "down")),
        4e-2,
    ),
    "prefix": (with_prefix, 4e-2),
    "IA3": (lambda: adapt(copy.deepcopy(base), "ia3"), 5e-2),
    "BitFit": (lambda: adapt(copy.deepcopy(base), "bitfit"), 6e-2),
}

# %% [markdown]
# **Run**: seven training runs. The ledger then reports what optimizer and gradients hold.

# %% tags=["experiment"]
from minitrain.measure.memory import MemoryLedger

learned, states, steps = [], [], lab.size("steps")
for name, (make, rate) in tqdm(methods.items(), leave=False):
    torch.manual_seed(0)
    model = make()
    optimizer, seconds = train(model, new_rows, steps, rate)
    held = MemoryLedger(model, optimizer).now
    sizes = [p.numel() for p in trained(model)]
    state = {"method": name, "trained": sum(sizes), "tensors": len(sizes)}
    state["gradient_bytes"] = held["gradients"]
    state["optimizer_bytes"] = held["optimizer"]
    states.append(state)
    if name == "prefix":
        model.soft_prompt.drop_mlp()
    row = {"method": name, "trained": sum(sizes), "train_seconds": seconds}
    row["kept"] = sum(p.numel() for p in trained(model))
    for world in tests:
        row[f"{world}_before"] = before[world]
        row[f"{world}_after"] = distance(model, world)
    learned.append(row)

# %% [markdown]
# First the memory. A weight that is not trained has no gradient and no Adam moments. For $N$ trained parameters in $t$ tensors,
# in float32,
#
# $$\text{gradients} = 4N, \qquad \text{optimizer} = 8N + 4t \text{ bytes}$$
#
# (Adam keeps a 4-byte step count per tensor). The ledger must agree to the byte.

# %% tags=["grade"]
lab.experiment("states", states)

# %% [markdown]
# **Question**: how many times fewer bytes does LoRA's optimizer hold than that of full fine-tuning?

# %% tags=["question"]
show.table(
    [
        {
            "method": row["method"],
            "trained numbers": f"{row['trained']:,}",
            "gradients (kB)": row["gradient_bytes"] / 1e3,
            "optimizer (kB)": row["optimizer_bytes"] / 1e3,
        }
        for row in states
    ],
    formats=dict.fromkeys(["gradients (kB)", "optimizer (kB)"], "{:.1f}".format),
)
full_state, lora_state = (row for row in states if row["method"] in ("full", "LoRA"))
### BEGIN SOLUTION
fewer_bytes = full_state["optimizer_bytes"] / lora_state["optimizer_bytes"]
### LAB fewer_bytes = None  # how many times fewer optimizer bytes LoRA holds than full
### END SOLUTION

# %% tags=["grade"]
lab.answer("fewer_bytes", fewer_bytes)

# %% [markdown]
# What does that mean for a real model? The planner has it in closed form: 2 bytes per weight, 2 per gradient, 12 for Adam in mixed precision,
# and the base's activations, which are the same for all methods, since a frozen layer still passes gradients on.

# %% tags=["experiment"]
from minitrain.model.config import preset
from minitrain.planning.finetuning_memory import FULL, LORA, tuning_memory

names = ["llama2-7b", "llama2-13b", "llama2-70b"]
parts = {"weights": [], "gradients": [], "optimizer": [], "activations": []}
bars = [(name, way) for name in names for way in (FULL, LORA)]
for name, way in bars:
    memory = tuning_memory(preset(name), way, batch=1, length=2048)
    parts["weights"].append((memory.base + memory.adapter) / 1e9)
    for part in list(parts)[1:]:
        parts[part].append(getattr(memory, part) / 1e9)
show.bars(
    [f"{name[7:].upper()}\n{'full' if way is FULL else 'LoRA'}" for name, way in bars],
    parts,
    stacked=True,
    y="one device would hold (GB)",
)

# %% [markdown]
# **Explain**: of 16 bytes per parameter, 2 are left, an eighth. The LoRA paper's abstract says *a third*, for GPT-3, whose full fine-tuning
# took fewer than 16 bytes. PEFT measured 36.2 GiB for full fine-tuning and 20.8 for LoRA, with 3.21 billion parameters: it saves 15.4 GiB, or
# 5.2 bytes per parameter. What remains is what LoRA does not touch: the weights, which e07 shrinks, and activations, which e05 shrank.

# %% [markdown]
# Now the quality.

# %% tags=["experiment"]
show.table(
    [
        {
            "method": row["method"],
            "trained (%)": 100 * row["trained"] / P,
            "kept (%)": 100 * row["kept"] / P,
            "new stories, above the floor (nats)": row["new_after"],
            "old stories, above the floor (nats)": row["old_after"],
            "training (s)": row["train_seconds"],
        }
        for row in [
            {"method": "the base", "trained": 0, "kept": 0, "train_seconds": 0.0}
            | {f"{world}_after": before[world] for world in tests},
            *learned,
        ]
    ],
    formats={
        "trained (%)": "{:.2f}".format,
        "kept (%)": "{:.2f}".format,
        "new stories, above the floor (nats)": "{:.3f}".format,
        "old stories, above the floor (nats)": "{:.3f}".format,
        "training (s)": "{:.1f}".format,
    },
)
full_row = next(row for row in learned if row["method"] == "full")
lab.reveal("forgotten", full_row["old_after"] - full_row["old_before"])

# %% tags=["grade"]
lab.experiment("methods", learned)

# %% tags=["picture", "folded"]
below = ("IA3",)  # its words would lie on its neighbour's
with show.canvas() as (figure, ax):
    for row in learned:
        x = row["new_before"] - row["new_after"]
        y = row["old_after"] - row["old_before"]
        kind = 0 if row["method"] == "full" else 1
        style = {"color": show.COLORS[kind], "markersize": 9}
        ax.plot([x], [y], show.MARKERS[kind], **style)
        words = f"{row['method']} ({100 * row['trained'] / P:.1f}%)"
        shift = (0, -16) if row["method"] in below else (9, -4)
        ax.annotate(words, (x, y), xytext=shift, textcoords="offset points")
    ax.set(xlabel="learned of the new stories (nats a token)")
    ax.set(ylabel="forgotten of the old ones", yticklabels=[])  # asked in section 6
    ax.set_title("who learns more forgets more (in brackets: what is trained)")
    ax.margins(0.2)
show.figure(
    figure,
    alt="Nats learned of new stories against nats forgotten of old ones, for full fine-tuning and six adapters: who learns more forgets more.",
)

# %% [markdown]
# **Explain**: LoRA gained 85% of what full fine-tuning gained, with 15% of its parameters, and forgot 1.6 nats where full forgot 2.5. This is
# the finding of [Biderman et al. 2024](https://arxiv.org/abs/2405.09673), *LoRA learns less and forgets less*: all methods lie near one rising
# curve. Nothing in the new stories rewards keeping the old ones, so what moves the weights farther forgets more. (IA)³ forgets least, and
# learns least.

# %% [markdown]
# Beside PEFT's table (Llama-3.2-3B on mathematics, accuracy in percent): full 47.2, LoRA 47.8, DoRA 46.9; far below them (IA)³ 31.1 and the
# prefix 18.6. With better learning rates these two rose to 45.5 and 41.6: the rate matters as much as the method. Here, too, both are among the
# last three. DoRA ended within 0.01 nats of LoRA and forgot more, which with one seed says little. The real difference: there LoRA equals full
# fine-tuning, here it falls short. The next section finds out why.

# %% [markdown]
# **Takeaway**: full fine-tuning ended 0.18 nats above the new floor, LoRA 0.47, the bottleneck 0.73, (IA)³ 1.75; the base had started at 2.07.
#
# **Question**: how many nats of the old stories did Houlsby's adapter forget for each nat of the new ones that it learned? (Differences
# from the base.)

# %% tags=["question"]
row = next(row for row in learned if row["method"] == "Houlsby")
### BEGIN SOLUTION
forgot = row["old_after"] - row["old_before"]
price = forgot / (row["new_before"] - row["new_after"])
### LAB price = None  # nats forgotten for each nat learned
### END SOLUTION

# %% tags=["grade"]
lab.answer("price", price)

# %% [markdown]
# ## 7 · How much rank?
#
# LoRA's main setting is the rank. A matrix of 64 columns has rank 64 at most: then $BA$ can be *any* matrix, and LoRA should reach
# whatever training these matrices reaches.
#
# The runs of this section are shorter, with their own learning rates, so that three seeds per rank take seconds.
#
# **Predict**: what share of full fine-tuning's gain (from the base's distance to full's) will rank 64 achieve? (From 0 to 1.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 1.0
### LAB guess = None  # a share
### END SOLUTION
lab.predict("whole_rank", guess, unit="share")


# %% tags=["experiment"]
def blocks_only():
    """All weights of the blocks; embedding (which is the head, too) and last norm frozen."""
    model = copy.deepcopy(base).requires_grad_(False)
    model.blocks.requires_grad_(True)
    return model


def of_rank(rank):
    return lambda: beside(lambda layer: LoRA(layer, rank, 16 / rank))


ways = {("full", 0): (methods["full"][0], 8e-3), ("blocks", 0): (blocks_only, 8e-3)}
ways |= {("LoRA", rank): (of_rank(rank), 4e-2) for rank in lab.size("ranks")}
ranks = []
for (way, rank), (make, rate) in tqdm(ways.items(), leave=False):
    for seed in range(lab.size("seeds")):
        torch.manual_seed(seed)
        model = make()
        train(model, new_rows, lab.size("sweep_steps"), rate, seed)
        row = {"way": way, "rank": rank, "seed": seed}
        ranks.append({**row, "distance": distance(model, "new")})


# %% tags=["experiment", "folded"]
def found(way, rank=0):
    """Of its seeds: mean, least, most."""
    each = [r["distance"] for r in ranks if (r["way"], r["rank"]) == (way, rank)]
    return sum(each) / len(each), min(each), max(each)


xs = lab.size("ranks")
middle, low, high = zip(*(found("LoRA", rank) for rank in xs))
won = [before["new"] - found(*key)[0] for key in (("LoRA", xs[-1]), ("full", 0))]
lab.reveal("whole_rank", won[0] / won[1])
show.lines(
    {"LoRA": (xs, middle)},
    theory={
        "all weights": (xs, [found("full")[0]] * len(xs)),
        "all weights of the blocks": (xs, [found("blocks")[0]] * len(xs)),
    },
    x="rank",
    y="new stories: loss above the floor (nats)",
    log="x",
    caption=f"three seeds a rank; they lie within {max(b - a for a, b in zip(low, high)):.3f} nats of each other",
    alt="Distance to the floor against LoRA's rank: it falls with each doubling, ever less, to that of training all weights of the blocks, and stays above that of training all weights.",
)

# %% tags=["grade"]
lab.experiment("ranks", ranks)

# %% [markdown]
# **Explain**: each doubling gains less than the one before. At rank 64 LoRA ends 0.495 nats above the floor, and training *all weights of the
# blocks* ends at 0.50: as the theory says, at full rank there is no restriction left. But training all weights ends at 0.29. So what LoRA lacks
# here is not rank: it is what lies **outside** the matrices that it adapts, the embedding (here also the head) and the last norm. Sailors have
# words that villagers hardly use. PEFT's Llama already knew the words of mathematics.

# %% [markdown]
# The scaling matters, too. With $s = \alpha / R$ a larger rank takes smaller steps; rsLoRA ([Kalajdzievski 2023](https://arxiv.org/abs/2312.03732))
# takes $\alpha / \sqrt{R}$. In PEFT's table this raised the accuracy at rank 64 from 47.4% to 51.3%.
#
# **Takeaway**: in these shorter runs (section 6 gave LoRA 85%) rank 8 gained 76% of what all weights gain, and rank 64 88%; the rest is
# not a matter of rank.

# %% [markdown]
# **Question**: what is the smallest rank in your table whose mean distance is at most 20% above that of the largest rank?

# %% tags=["question"]
show.table(
    [
        {"rank": rank, "mean of the seeds (nats)": found("LoRA", rank)[0]}
        for rank in lab.size("ranks")
    ],
    formats={"mean of the seeds (nats)": "{:.4f}".format},
)
### BEGIN SOLUTION
enough = 1.2 * found("LoRA", max(xs))[0]
enough_rank = min(rank for rank in xs if found("LoRA", rank)[0] <= enough)
### LAB enough_rank = None  # a rank of the table
### END SOLUTION

# %% tags=["grade"]
lab.answer("enough_rank", enough_rank)

# %% [markdown]
# ## 8 · Everybody's adapter in one batch
#
# An adapter is small, so a server can hold hundreds of them for one base. Requests for different adapters arrive together. A loop over
# adapters would run the base for each separately; in decoding, a row is *one token*, and reading $W$ from memory costs more than
# multiplying. So $W x$ is computed for all rows at once, and only the added term is each row's own:
#
# $$y_b = W x_b + s_b\, B_b (A_b x_b).$$

# %%
ideas.adapter_pages()

# %% [markdown]
# Adapters are stored in **pages** of one rank each ([S-LoRA, Sheng et al. 2023](https://arxiv.org/abs/2311.03285)): a row of $A$ with its
# column of $B$. An adapter of rank $R$ has $R$ of them, wherever they were free: its *page table*. To gather a batch, shorter tables are padded
# to the length of the longest. With what? With **page 0, which holds zeros**, and so adds nothing.
#
# A row without an adapter has an empty table, and gets only zeros. This is where a server once went wrong: it marked "none" by -1, and -1 is a
# valid index, that of the last adapter. Requests for the base were answered with somebody else's.

# %% [markdown]
# ### Exercise 6 · `Rows`
#
# Difficulty 3 · 10 minutes · 10 points
#
# Two batched products for the whole batch, however many adapters are in it: `torch.bmm` multiplies (B, T, I) by (B, I, R). The same
# `Rows` serves every layer of the model, each with its own pages.


# %% tags=["exercise"]
class Rows:
    """A batch of B rows, each with its own adapter or none. About 7 lines of yours."""

    def __init__(self, tables: list[list[int]], scalings: list[float]):
        """tables: a row's pages, [] for no adapter; scalings: s of each row."""
        ### BEGIN SOLUTION
        longest = max(len(table) for table in tables)
        filled = [table + [0] * (longest - len(table)) for table in tables]
        self.pages = torch.tensor(filled, dtype=torch.long)  # (B, R)
        self.scaling = torch.tensor(scalings)[:, None, None]  # (B, 1, 1)
        ### END SOLUTION

    def added(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """s·B(A x) of each row: x (B, T, I), pages a (P, I), b (P, O) of one layer, page 0
        zeros -> (B, T, O). Inputs unchanged."""
        ### BEGIN SOLUTION
        own_a, own_b = a[self.pages], b[self.pages]  # (B, R, I), (B, R, O)
        inside = torch.bmm(x, own_a.transpose(1, 2)) * self.scaling  # (B, T, R)
        return torch.bmm(inside, own_b)
        ### END SOLUTION


# %% tags=["grade"]
Rows = lab.grade(Rows)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Pad each table with zeros (the number of the zero page) to the longest, and make one tensor of them, (B, R).
#
# </details>
# <details><summary>Hint 2</summary>
#
# `a[pages]` with pages (B, R) is (B, R, I): each row's own A. The same for b.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.bmm(x, own_a.transpose(1, 2))` is A x for each row, (B, T, R). Times the scalings as (B, 1, 1), then `torch.bmm(…, own_b)`. A batch
# without any adapter has R = 0; give `torch.tensor` its dtype, `torch.long`.
#
# </details>

# %% [markdown]
# **Experiment**: one token per row, a layer of 1,024 features, adapters of rank 4, 8 and 16 in turn, computed in one
# batch and in a loop over rows.

# %% tags=["experiment"]
from minitrain.measure.clock import compare
from minitrain.measure.flops import counted_flops

size, pool = lab.size("served_width"), 1 + 16 * max(lab.size("served"))
layer = torch.nn.Linear(size, size, bias=False).requires_grad_(False)
a, b = (torch.randn(pool, size) / size**0.5 for _ in range(2))
a[0], b[0] = 0, 0


def in_pages(ranks):
    """A table for each rank, page after page."""
    starts = [1 + sum(ranks[:row]) for row in range(len(ranks))]
    return [list(range(start, start + rank)) for start, rank in zip(starts, ranks)]


# %% tags=["experiment"]
mixed = []
for count in lab.size("served"):
    ranks_here = [(4, 8, 16)[row % 3] for row in range(count)]
    tables, x = in_pages(ranks_here), torch.randn(count, 1, size)
    rows = Rows(tables, [2.0] * count)

    def batch(x=x, rows=rows):
        return layer(x) + rows.added(x, a, b)

    def loop(x=x, tables=tables):
        each = [layer(row) + 2 * (row @ a[t].T) @ b[t] for row, t in zip(x, tables)]
        return torch.stack(each)

    times = compare({"mixed": batch, "loop": loop}, lab.size("repeats")).timings
    row = {"rows": count, "width": size, "ranks": ranks_here}
    row["difference"] = (batch() - loop()).abs().max().item()
    for way, run in {"mixed": batch, "loop": loop}.items():
        row[f"{way}_seconds"] = times[way].median
        row[f"{way}_flops"] = counted_flops(run)
    mixed.append(row)

# %% tags=["experiment"]
counts = [row["rows"] for row in mixed]
show.lines(
    {
        "loop over rows": (counts, [1e3 * row["loop_seconds"] for row in mixed]),
        "one batch": (counts, [1e3 * row["mixed_seconds"] for row in mixed]),
    },
    x="rows, each with an adapter of its own",
    y="one layer (ms)",
    log="xy",
)

# %% tags=["grade"]
lab.experiment("mixed", mixed)

# %% [markdown]
# **Explain**: both do nearly the same arithmetic. A row costs $2 \cdot 1024^2 = 2.1$ MFLOPs for $W$, and at rank 16 only 0.07 more for its
# adapter; padding tables to the longest adds 1% at 32 rows. But the loop reads the 4 MB of $W$ 32 times, 134 MB in all, and launches 32 times as
# many kernels. S-LoRA reports up to 30 times the throughput of serving adapters one by one, on GPUs with thousands of them. On two cores
# the batch was two to four times as fast from 8 rows on.
#
# **Takeaway**: at 16 rows one mixed batch took about a third of the loop's time, for the same numbers.

# %% [markdown]
# ## 9 · A model that talks (nothing is graded here)
#
# If stories15M (15 million parameters, trained on children's stories) and the State of the Union addresses are on this machine, the same
# comparison follows in *perplexity*, the exponential of the loss: the number of words among which the model seems to choose.
# `python -m minitrain assets` says what is here and fetches the rest.

# %% tags=["folded"]
from minitrain.data.assets.fetch import fetch, is_cached
from minitrain.data.packing import pack_stream
from minitrain.data.text import sotu
from minitrain.model.hub.llama2c import load_llama2c


def speech_rows(tokenizer, texts):
    lines = [
        line[:600] for text in texts for line in text.split("\n") if len(line) > 80
    ]
    return pack_stream([tokenizer.encode(line) for line in lines], 128, 1)


def perplexity(model, rows):
    return math.exp(evaluate(model, Loader(rows, 4, shuffle=False)))


def on_speeches():
    """A row for each method; none where an asset is missing, or at a size without steps."""
    steps = lab.size("speech_steps")
    if not (steps and is_cached("stories15M") and is_cached("sotu")):
        return []
    talker, words = load_llama2c(fetch("stories15M", progress=False))
    texts = sotu(progress=False)
    held_out = speech_rows(words, [text[:1500] for text in texts[-6:]])
    rows = speech_rows(words, [text[2000:5000] for text in texts[-30:-6]])
    start, found = perplexity(talker, held_out), []
    for name, rate in (("full", 3e-4), ("lora", 4e-3), ("ia3", 2e-2)):
        model = adapt(copy.deepcopy(talker), name)
        sizes = [p.numel() for p in trained(model)]
        _, seconds = train(model, rows, steps, rate, batch=4)
        row = {"method": name, "trained numbers": f"{sum(sizes):,}"}
        row["optimizer (MB)"] = 8 * sum(sizes) / 1e6
        row |= {
            "perplexity before": start,
            "perplexity after": perplexity(model, held_out),
        }
        found.append({**row, "training (s)": seconds})
    return found


# %%
speeches = on_speeches()
if speeches:
    show.table(speeches, formats=dict.fromkeys(list(speeches[0])[2:], "{:.1f}".format))
else:
    print("not run: it needs stories15M and sotu, see python -m minitrain assets")

# %% [markdown]
# **Explain**: in our run LoRA gained, in nats, some seven eighths of what training all weights gained, with 1.7% of the parameters, and (IA)³ a
# quarter with 0.05%.
#
# We also made section 7's table there once: 24 steps of 4 rows of 64 tokens, three seeds, each method at the best of a few rates. In these
# shorter rows the perplexity of held-out speeches is 833 before, 341 after training all weights, and with LoRA
#
# | rank | 1 | 2 | 4 | 8 | 16 | 32 | 64 |
# |---|---|---|---|---|---|---|---|
# | perplexity | 427 | 397 | 386 | 376 | 371 | 370 | 370 |
#
# In nats rank 8 gains 89% of what all weights gain, and rank 64 91%: again rank is not what is missing.

# %% [markdown]
# Next: [e07 · QLoRA](e07_qlora.ipynb) puts four bits under the adapter; or return to the [map of the course](index.ipynb). In the package,
# [many.py](../minitrain/finetuning/many.py) pages adapters in and out within a budget of bytes.

# %%
lab.score(read="minitrain/finetuning/adapters/lora.py")
