# %% [markdown]
# # e01 · Baseline
#
# **One device, one model, and every number obtained twice: computed on paper and measured. Without this baseline no speed-up in the
# course would mean anything.**
#
# 105 minutes · CPU is enough · before: [e00 · Ranks and collectives](e00_ranks_and_collectives.ipynb) · next:
# [e02 · Data parallel](e02_data_parallel.ipynb) · [map of the course](index.ipynb)
#
# You build: attention with rotary position embedding, parameter and FLOP counts, a training step, a learning-rate schedule, and MFU. You
# end with this picture: a scaling law, fitted to small runs, predicts the loss of a run of yours, above a floor *that no
# model can beat*.
#
# ![Held-out loss against parameters for five token counts, all above a dashed floor; a star marks one more run](../labs/pictures/e01_baseline.png)

# %% tags=["setup"]
from textwrap import fill

import torch
from minitrain.lab import Lab, ideas, show

lab = Lab("e01_baseline")

# %% [markdown]
# ## 1 · Positions
#
# Attention compares each query with each key by their dot product, which does not depend on the order of the tokens:
# if you shuffle the tokens before it, a token attends to the same values with the same weights. So positions must be encoded in the
# vectors. Rotary position embedding, RoPE ([Su et al.](https://arxiv.org/abs/2104.09864)), splits the numbers of a head into pairs, treats each
# pair as a point in a plane, and rotates the point by an angle proportional to the token's position.
#
# Below is one such pair of a query and of a key, rotated by 0.2 radians per token. Move `position`: both turn further, and q·k stays the same. Move `distance`: q·k changes.

# %%
ideas.turning()

# %% [markdown]
# Let $\theta$ be the angle in radians by which a pair turns from one token to the next. A query at position $m$ is rotated by $m\theta$, a key at
# position $n$ by $n\theta$; write $R(\cdot)$ for the rotation by an angle. A dot product depends only on the two lengths, which do not change,
# and the angle between the vectors:
#
# $$R(m\theta)\,q \cdot R(n\theta)\,k \;=\; q \cdot R\big((n-m)\,\theta\big)\,k$$
#
# So attention depends on the distance $n - m$ alone. A head of $C$ numbers has $C/2$ pairs, and pair $i$ turns by $\theta_i = 10000^{-2i/C}$: from
# one radian per token, which distinguishes neighbours, down to nearly 1/10,000, which distinguishes distant passages. RoPE has no
# parameters to learn.

# %% [markdown]
# ### Exercise 1 · `rotate`
#
# Difficulty 2 of 5 · 6 minutes · 8 points
#
# Element i of the last dimension forms a pair with element i + C/2. A rotation by the angle $\varphi$ maps the pair $(a, b)$ to
#
# $$(a\cos\varphi - b\sin\varphi,\;\; b\cos\varphi + a\sin\varphi).$$
#
# The cosines and sines are given. The minus sign is already in `turns.sin`, so do not negate anything.


# %% tags=["exercise"]
def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    """x (B, T, H, C) -> the same shape, turned. `turns.cos` (T, 1, C), in x's
    dtype, holds cos φ in both halves; `turns.sin`, of the same shape, holds
    -sin φ in its first half and +sin φ in its second. All three are left as
    they were. 1 to 3 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.model.rope:rotate
    ### END SOLUTION


# %% tags=["grade"]
rotate = lab.grade(rotate)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `x * turns.cos` is the first term for both halves. `turns.sin` multiplies the *other* half of x.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x.chunk(2, dim=-1)` gives a and b; you need them in the order b, a.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Rolling the last dimension by C/2 swaps the halves: see `torch.roll` with `dims=-1`.
#
# </details>

# %% [markdown]
# ## 2 · Many queries, few keys
#
# A model that generates text must keep the keys and values of every token so far: the KV cache. With $L$ layers, $K$ key/value heads of
# $C$ numbers, and 2 bytes per number (the leading 2 is for keys and values), a token takes
#
# $$2 \cdot L \cdot K \cdot C \cdot 2\ \text{bytes}.$$
#
# Llama 3 70B has 80 layers and 64 query heads of 128 numbers. With 64 key/value heads this would be 2.6 MB per token, and a cache of 8,192 tokens
# would take 21 GB. It has only 8 of them, so the cache takes 2.7 GB. *Grouped-query attention* ([Ainslie et
# al.](https://arxiv.org/abs/2305.13245)) lets neighbouring query heads share one key/value head:

# %%
ideas.grouped_heads()

# %% [markdown]
# With $H$ query heads, $H/K$ of them share one key/value head, so query head $h$ reads key/value head $\lfloor h / (H/K) \rfloor$. The rest is
# ordinary attention. Token $i$ compares its query with the keys of all tokens $j \le i$, and takes a weighted mean of their values:
#
# $$o_i = \sum_{j \le i} \operatorname{softmax}_j\!\Big(\frac{q_i \cdot k_j}{\sqrt{C}}\Big)\, v_j$$
#
# The square root keeps the scores of order one: the dot product of two vectors of $C$ independent random numbers with mean 0 and variance 1
# has standard deviation $\sqrt{C}$. Mask the future before the softmax: afterwards it would already have counted in the sum.
#
# ### Exercise 2 · `grouped_query_attention`
#
# Difficulty 3 · 10 minutes · 12 points


# %% tags=["exercise"]
def grouped_query_attention(q, k, v) -> torch.Tensor:
    """q (B, H, T, C), k and v (B, K, T, C) -> (B, H, T, C), causal. With
    plain matmuls and a softmax, not the fused
    `F.scaled_dot_product_attention`. q, k and v are left as they were. About
    6 lines."""
    ### BEGIN SOLUTION
    times, (T, C) = q.shape[1] // k.shape[1], q.shape[-2:]
    k, v = k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)
    scores = q @ k.transpose(-2, -1) / C**0.5  # (B, H, T, T)
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(dim=-1) @ v
    ### END SOLUTION


# %% tags=["grade"]
grouped_query_attention = lab.grade(grouped_query_attention)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# First repeat k and v so that they have H heads. Mind the order of the copies: neighbouring query heads share.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `repeat_interleave(H // K, dim=1)` gives heads 0 0 1 1; `repeat` would give 0 1 0 1.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.ones(T, T, dtype=torch.bool).triu(1)` marks the future; these scores become `-torch.inf` before the softmax.
#
# </details>

# %% [markdown]
# ## 3 · Counting parameters and FLOPs
#
# You can compute what a model costs from its shape alone: vocabulary $V$, hidden width $D$, number of layers $L$,
# query heads $H$, key/value heads $K$, numbers per head $C$, MLP width $F$. Below are all the matrices of a Llama, drawn to
# scale; move the slider to see where the 405B parameters of the largest are.

# %%
ideas.model_matrices()

# %% [markdown]
# "Ours" is the model that you will train in this lab:

# %%
from minitrain.model.config import PRESETS, preset

config = preset(lab.size("preset"))
symbols = {"vocab_size": "V", "hidden_size": "D", "layers": "L", "heads": "H"}
symbols |= {"kv_heads": "K", "head_size": "C", "ffn_size": "F"}
models = {"ours": config, "Llama 2 7B": PRESETS["llama2-7b"]}
models["Llama 3 405B"] = PRESETS["llama3-405b"]
show.table(
    [
        {"": f"{s}, {k}", **{name: getattr(m, k) for name, m in models.items()}}
        for k, s in symbols.items()
    ]
)

# %% [markdown]
# **Predict**: how many parameters does ours have? (Its head is not tied to the embedding.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 1_000_000
### LAB guess = None  # parameters, your guess
### END SOLUTION
lab.predict("parameters", guess)

# %% [markdown]
# Count as in the picture. q and o are matrices between $D$ and the $HC$ numbers of all heads, k and v between $D$ and $KC$. The MLP has gate,
# up and down, $DF$ weights each. Before attention and before the MLP is a norm of $D$ weights. So a layer has
#
# $$P_\text{layer} = 2DC\,(H + K) + 3DF + 2D.$$
#
# Outside the layers are the embedding, $VD$, a final norm, $D$, and the head, $VD$ again unless it is *tied*: then it is the embedding itself.
# Llama 2 7B, whose head is not tied, has $32 \cdot 202.4\,\text{M}$ in its layers and $2 \cdot 131.1\,\text{M}$ outside them, 6.74B in all.
#
# ### Exercise 3 · `parameter_count`
#
# Difficulty 2 · 8 minutes · 8 points
#
# The model has no biases, and $HC$ need not equal $D$.


# %% tags=["exercise"]
def parameter_count(config) -> int:
    """Of a Llama-family model: config.vocab_size, hidden_size, layers, heads,
    kv_heads, head_size, ffn_size, tied. About 5 lines."""
    ### BEGIN SOLUTION
    D, embedding = config.hidden_size, config.vocab_size * config.hidden_size
    attention = 2 * D * config.head_size * (config.heads + config.kv_heads)
    layer = attention + 3 * D * config.ffn_size + 2 * D
    heads = 0 if config.tied else embedding
    return embedding + config.layers * layer + D + heads
    ### END SOLUTION


# %% tags=["grade"]
parameter_count = lab.grade(parameter_count)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Four attention matrices: q and o are (D, H·C), k and v are (D, K·C).
#
# </details>
# <details><summary>Hint 2</summary>
#
# A layer: `2·D·C·(H + K) + 3·D·F + 2·D`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Outside the layers, do not forget the final norm; the head adds parameters only if it is not tied.
#
# </details>

# %% tags=["nbval-check-output"]
from minitrain.model.transformer import build

model = build(config, seed=0)
built = sum(p.numel() for p in model.parameters())
lab.reveal("parameters", built, config=config)

# %% [markdown]
# Now FLOPs, floating-point operations. For each token a weight in a matmul multiplies one number, and the product is added to a sum:
# 2 FLOPs. Backward does two such matmuls, one for the gradient of the input, one for the gradient of the weight. The picture shows the
# numbers of Llama 2 70B for one token in a sequence of 4,096. Its dashed row is empty here: e10 runs parts of forward a second time, to save
# memory.

# %%
ideas.step_passes.picture(recompute="none")

# %% [markdown]
# The embedding is a lookup and the norms scale: neither is a matmul. The head always multiplies, tied or not. With $P_m$ the parameters
# in matmuls, forward takes $2P_m$ per token. Attention adds two products without parameters: a query of $C$ numbers is multiplied with the
# keys of $T$ tokens, $2CT$ FLOPs per query head, and its $T$ softmax weights with the values, $2CT$ again. Over all layers and $H$ query heads
# that is $4LHCT$. It is usually counted in full, although a causal kernel may skip half. Altogether, forward and backward:
#
# $$\text{FLOPs per token} = 3\,\big(2P_m + 4LHCT\big)$$
#
# Llama 2 7B at $T = 4096$: $3\,(13.21 + 2.15) = 46.1$ GFLOP. The well-known $6P$ gives 40.4: it leaves attention out.
#
# ### Exercise 4 · `flops_per_token`
#
# Difficulty 3 · 8 minutes · 8 points


# %% tags=["exercise"]
def flops_per_token(config, length: int) -> int:
    """FLOPs to train on one token, forward and backward, with attention over
    `length` tokens counted in full. About 5 lines."""
    ### BEGIN SOLUTION
    D, C = config.hidden_size, config.head_size
    layer = 2 * D * C * (config.heads + config.kv_heads) + 3 * D * config.ffn_size
    weights = config.layers * layer + config.vocab_size * D
    attention = 4 * config.layers * config.heads * C * length
    return 3 * (2 * weights + attention)
    ### END SOLUTION


# %% tags=["grade"]
flops_per_token = lab.grade(flops_per_token)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Start from the parameters and leave out those that are not in a matmul: the embedding and the norms.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The head always counts, tied or not: its V·D weights multiply each token.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Three times the forward: two FLOPs per weight, and `4 * L * H * C * T` for attention. Mind H, the query heads, not K.
#
# </details>

# %% [markdown]
# **Run**: PyTorch counts the FLOPs of every matmul that a real step executes. They must equal your formula to the last digit.

# %% tags=["nbval-check-output"]
from minitrain.measure.flops import counted_flops

B, T = 2, lab.size("length")
tokens = torch.randint(config.vocab_size, (B, T))
counted = counted_flops(lambda: model(tokens).sum().backward())
print(f"counted {counted:,} · on paper {B * T * flops_per_token(config, T):,}")

# %% [markdown]
# ## 4 · A step that weights every token equally
#
# A batch too large for memory is split into microbatches, whose gradients are added up before the optimizer steps. The
# microbatches rarely have equally many targets: texts end, and the rest of a row is padding. How much weight does one token have then?

# %%
ideas.unequal_microbatches()

# %% [markdown]
# Let microbatch $b$ of $M$ have $n_b$ counted targets, $n$ in all, and let $\ell$ be a token's loss. One large batch would give
#
# $$\frac{1}{n}\sum_{b}\sum_{t}\ell_{b,t}, \qquad\text{and not}\qquad \frac{1}{M}\sum_{b}\frac{1}{n_b}\sum_{t}\ell_{b,t},$$
#
# the mean of means, in which a token of a short microbatch has more weight: with 12, 7 and 3 targets, four times as much in the last as in the
# first. `transformers` had [this bug](https://github.com/huggingface/transformers/issues/34242) until 2024. The gradient of a
# sum is the sum of the gradients, so each microbatch can run backward by itself if its *summed* loss is divided by the $n$ of
# all microbatches. Its backward must run right after its forward: then only one microbatch's activations are in memory.

# %% [markdown]
# Now and then a bad batch has a gradient many times as large as usual. *Clipping* keeps its direction and shortens it: with
# $\lVert g \rVert$ the norm of all gradients as one long vector and $c$ the limit, $g$ is multiplied by $\min(1, c / \lVert g \rVert)$. This is
# done once, on the finished sum.
#
# ### Exercise 5 · `train_step`
#
# Difficulty 3 · 12 minutes · 12 points
#
# Each microbatch has `.tokens`, `.targets`, `.documents`, `.positions`. `targets[:, t]` is already the token that follows
# `tokens[:, t]`, or -100 where no target counts. Several documents may share a row; `.documents` and `.positions` tell the model where each
# begins.


# %% tags=["exercise"]
def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    """One optimizer step, the same as on one batch that holds all
    microbatches, in any order. `model(b.tokens, b.documents, b.positions)`
    gives logits. Backward comes after each microbatch: one's activations at a
    time are in memory. A microbatch may have no counted target, but at least
    one of them has. There are no gradients when `train_step` is called, and
    none again when it returns; the batches are unchanged. About 9 lines."""
    ### BEGIN SOLUTION
    total = sum((b.targets != -100).sum() for b in microbatches)
    for b in microbatches:
        logits = model(b.tokens, b.documents, b.positions)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), b.targets.flatten(), reduction="sum"
        )
        (loss / total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    ### END SOLUTION


# %% tags=["grade"]
train_step = lab.grade(train_step)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Count first: `sum((b.targets != -100).sum() for b in microbatches)`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `cross_entropy(…, reduction="sum")` ignores -100 by default. For each microbatch divide by the total, then run backward.
#
# </details>
# <details><summary>Hint 3</summary>
#
# After the loop, once: clip with `torch.nn.utils.clip_grad_norm_`, step, and clear the gradients.
#
# </details>

# %% [markdown]
# How large should a step be? Adam divides by the root of a running average of squared gradients, and in the first steps this average has
# seen only a few gradients. So the learning rate $\eta$ rises to its peak over $w$ *warm-up* steps. Late in training large steps only
# jump around the minimum, so it falls again, along half a cosine, which is flat at both ends. With $s$ the step, $S$ the total and
# $t = (s - w)/(S - w)$:
#
# $$\eta(s) = \begin{cases} \eta_\text{peak}\,(s+1)/w & s < w\\
# \eta_\text{floor} + (\eta_\text{peak} - \eta_\text{floor})\,\tfrac{1 + \cos \pi t}{2} & w \le s < S \end{cases}$$
#
# In this lab $S = 160$, $w = 8$ and $\eta_\text{peak} = 0.004$: step 0 has 0.0005, step 84, halfway down, 0.002.
#
# ### Exercise 6 · `warmup_cosine`
#
# Difficulty 2 · 6 minutes · 6 points

# %% tags=["exercise"]
import math


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    """Step 0 has peak / warmup, step warmup - 1 the peak; from `warmup` on
    floor + (peak - floor)·(1 + cos πt)/2; from `total` on the floor. All for
    0 < warmup < total. About 6 lines."""
    ### BEGIN SOLUTION
    if step < warmup:
        return peak * (step + 1) / warmup
    if step >= total:
        return floor
    t = (step - warmup) / (total - warmup)
    return floor + (peak - floor) * (1 + math.cos(math.pi * t)) / 2
    ### END SOLUTION


# %% tags=["grade"]
warmup_cosine = lab.grade(warmup_cosine)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# There are three cases: during warm-up, during the descent, and after the end.
#
# </details>
# <details><summary>Hint 2</summary>
#
# t goes from 0 to 1 during the descent: `(step - warmup) / (total - warmup)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# From `total` on return the floor: the cosine would rise again after the end.
#
# </details>

# %%
rates = [warmup_cosine(step, 160, 8, 4e-3) for step in range(170)]
show.lines(
    {"yours": (range(170), rates)},
    x="step",
    y="learning rate",
    title="Eight steps up, half a cosine down, and nothing after step 160",
)

# %% [markdown]
# ## 5 · Training toward a known floor
#
# A model gives each next token a probability $q$, and its loss is the mean of $-\ln q$, in nats. If the tokens are drawn with probabilities $p$, the
# expected loss cannot be lower than the *entropy* of $p$:
#
# $$\mathbb{E}_p[-\ln q] = \underbrace{\mathbb{E}_p[-\ln p]}_{\text{entropy}} + \underbrace{\mathrm{KL}(p \,\|\, q)}_{\ge\, 0}$$
#
# Real text has such a floor, too, but nobody knows it. The course's corpus is a language of tiny stories in which every choice was drawn with a known
# probability. So the loss of a perfect model on it is known exactly, and **no model can do better on average**, unless it has seen the text.

# %%
from minitrain.data.corpus import make_corpus
from minitrain.data.loader import Loader
from minitrain.data.packing import pack
from minitrain.data.tokenizer import train_tokenizer

corpus = make_corpus(lab.size("corpus_bytes"), seed=1)
held_out = make_corpus(lab.size("held_out_bytes"), seed=2)
tokenizer = train_tokenizer(corpus.documents[:3000])
floor = held_out.entropy_per_token(tokenizer)
print(fill(corpus.documents[0], 80))
print(f"\nfloor: {floor:.3f} nats a token, computed from the probabilities")

# %% [markdown]
# **Predict**: after the training below, ten to thirty seconds on two cores, how far above the floor is the loss, as a share of the
# floor? (0.1 is 10%.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.3
### LAB guess = None  # a share, your guess
### END SOLUTION
lab.predict("above", guess, unit="share")

# %% [markdown]
# **Run**: your `train_step` with the learning rates of your `warmup_cosine`, 8 rows of 128 tokens per step. The loss on held-out text, which is
# never trained on, is measured now and then.

# %% tags=["experiment"]
import time

from minitrain.training.loop import evaluate
from minitrain.optimizers.adamw import adamw
from tqdm.auto import tqdm

encoded = [tokenizer.encode_batch(c.documents) for c in (corpus, held_out)]
rows, test_rows = (pack(e, T, tokenizer.end_token) for e in encoded)
model, training, tokens_seen = build(config, seed=0).to(lab.device), [], 0
optimizer = adamw(model, lr=4e-3)
batches, steps = Loader(rows, lab.size("batch"), seed=0), lab.size("steps")
start = time.perf_counter()


def note(tokens: int) -> None:
    """One more row of `training`: where the model is now."""
    loss = evaluate(model, Loader(test_rows, 32, shuffle=False))
    row = {"tokens": tokens, "loss": loss, "floor": floor}
    row |= {"seconds": time.perf_counter() - start}
    training.append(row | {"flops_per_token": flops_per_token(config, T)})


# %% tags=["experiment"]
for step, batch in tqdm(zip(range(steps), batches), total=steps, leave=False):
    for group in optimizer.param_groups:
        group["lr"] = warmup_cosine(step, steps, steps // 20, 4e-3)
    train_step(model, optimizer, [batch.to(lab.device)])
    tokens_seen += int(batch.tokens_counted)
    if step + 1 in {1, 2, 5, 10, 20, 40} or (step + 1) % (steps // 10) == 0:
        note(tokens_seen)

# %% tags=["grade"]
lab.experiment("training", training)

# %% tags=["experiment"]
xs, ys = [r["tokens"] for r in training], [r["loss"] for r in training]
took = f"{training[-1]['seconds']:.0f} s on {lab.device_name}"
show.lines(
    {"held-out loss": (xs, ys)},
    theory={f"floor {floor:.3f}": (xs, [floor] * len(xs))},
    x="tokens seen",
    y="loss (nats per token)",
    log="x",
    title=f"{show.count_text(built)} parameters, {took}",
)

# %% [markdown]
# **Explain**: such models usually learn first which words are frequent, then which word follows which. The loss that remains above the
# floor comes largely from who is where and who holds what, which is consistent over several sentences.
#
# **Question**: how far above the floor did it end, as a share (`loss / floor - 1`)? And what did the run cost in model
# FLOPs, for the tokens that count (`training[-1]["tokens"]`; padding costs FLOPs as well, but is left out)?

# %% tags=["question"]
### BEGIN SOLUTION
above_floor = training[-1]["loss"] / floor - 1
run_flops = tokens_seen * flops_per_token(config, T)
### LAB above_floor = None  # your answer, a share
### LAB run_flops = None  # your answer, in FLOPs
### END SOLUTION

# %% tags=["grade"]
lab.answer("above_floor", above_floor)
lab.reveal("above", ys[-1] / floor - 1)

# %% tags=["grade"]
lab.answer("run_flops", run_flops)

# %% [markdown]
# It has learned to tell a story. Read closely: is everyone where they went? Does anyone find an object that somebody already holds?

# %%
from minitrain.inference.sampling import generate

prompt = [tokenizer.end_token, *tokenizer.encode("One")]
seeded = torch.Generator().manual_seed(1)
options = {"end_token": tokenizer.end_token, "generator": seeded}
story = generate(model, prompt, 90, temperature=0.7, **options)
print(fill("One" + tokenizer.decode(story), 80))

# %% [markdown]
# ## 6 · What fills the memory
#
# Training with AdamW in float32 keeps four numbers of 4 bytes for each of the $P$ parameters: the weight, its gradient, and
# Adam's two moving averages, $16P$ bytes. Most of the rest is *saved activations*: tensors of the forward pass that backward will need.
# They are allocated and freed within each step. In the picture their size is invented; you will measure it.

# %%
ideas.step_lifetimes()

# %% [markdown]
# Activations grow with the number of tokens in a batch; the $16P$ bytes do not. With $A$ the bytes saved per token in
# all layers, $B$ rows and $T$ tokens per row, the ratio of the two is
#
# $$\frac{A\,B\,T}{16\,P}.$$
#
# For ours $16P = 16.3$ MB. To begin with one part of $A$: the MLP of each layer saves four vectors of $F$ numbers per token.
# Attention and the norms save some more.
#
# **Predict** the ratio for 8 rows of 128 tokens: activations / (16 bytes · parameters).

# %% tags=["question"]
### BEGIN SOLUTION
guess = 4
### LAB guess = None  # activations / model, your guess
### END SOLUTION
lab.predict("ratio", guess)

# %% [markdown]
# **Run**: the *ledger* watches every allocation of two training steps and records the peak of each category. We compare it with what
# `predict_memory` computes from the shape alone.

# %% tags=["experiment"]
from minitrain.measure.memory import MemoryLedger
from minitrain.measure.predicted_memory import predict_memory


def held(batch, length):
    """Bytes of one step by category, at their highest: measured, predicted."""
    model = build(config, seed=0)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(config.vocab_size, (batch, length + 1))
    with MemoryLedger(model, optimizer) as ledger:
        for _ in range(2):
            logits = model(tokens[:, :-1])
            torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), tokens[:, 1:].flatten()
            ).backward()
            optimizer.step()
            optimizer.zero_grad()
    return ledger.highest, predict_memory(config, batch, length)


# %% tags=["experiment"]
highest, predicted = held(lab.size("batch"), T)
memory = [
    {"category": name, "measured": highest[name], "predicted": predicted[name]}
    for name in ("parameters", "gradients", "optimizer", "activations")
]

# %% tags=["grade"]
lab.experiment("memory", memory)

# %%
kinds = ("measured", "predicted")
show.bars(
    [r["category"] for r in memory],
    {kind: [r[kind] / 1e6 for r in memory] for kind in kinds},
    y="MB",
    title=f"One step, batch {lab.size('batch')} x {T} tokens",
)
ratio = highest["activations"] / sum(r["measured"] for r in memory[:3])
lab.reveal("ratio", ratio, config=config, batch=lab.size("batch"), length=T)

# %% [markdown]
# **Question**: which category is the largest?

# %% tags=["question"]
### BEGIN SOLUTION
largest = "activations"
### LAB largest = None  # the name of a category, as under the bars
### END SOLUTION

# %% tags=["grade"]
lab.answer("largest", largest)

# %% [markdown]
# **Explain**: activations take nearly three times as much as the rest, 47 MB and 16 MB, although the model has a million parameters
# and the batch only a thousand tokens. Each token saves 46 kB, mostly in the MLPs: gate, its activation, up and the product
# have a width of 448 in each of four layers, $4 \cdot 4 \cdot 448 \cdot 4$ bytes = 29 kB. e05 recomputes such tensors instead of keeping
# them. Attention is fused here and saves no scores, so the bytes per token do not grow with the length; e05 shows what happens when they do.

# %% [markdown]
# ## 7 · How fast, and how fast could it be?
#
# Tokens per second compare runs of one model on one machine. To compare across models and machines, divide the useful FLOPs by those
# that were possible. This is *model FLOPs utilisation* ([PaLM, app. B](https://arxiv.org/abs/2204.02311)), with $r$
# the tokens per second and the device's peak in FLOP/s:
#
# $$\text{MFU} = \frac{r \cdot \text{FLOPs per token}}{\text{peak}}$$
#
# Ours needs 6.49 MFLOP per token at a length of 128. Then 20,000 tokens per second are 130 GFLOP/s, which on a device of 345 GFLOP/s is an MFU of 38%.
# Only the model's own FLOPs count: recomputation adds none.
#
# ### Exercise 7 · `mfu`
#
# Difficulty 1 · 4 minutes · 6 points
#
# Use your `flops_per_token`, which includes forward and backward.


# %% tags=["exercise"]
def mfu(tokens_per_second: float, config, length: int, peak: float) -> float:
    """A share from 0 to 1; `peak` in FLOP/s. 1 line."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.measure.flops:mfu
    ### END SOLUTION


# %% tags=["grade"]
mfu = lab.grade(mfu)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# FLOPs per second are tokens per second times FLOPs per token.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `flops_per_token(config, length)` is the one you wrote: forward and backward, nothing recomputed.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Divide by `peak`. The result is a share, not a percentage.
#
# </details>

# %% [markdown]
# **Run**: here the peak is *measured*: it is the fastest matmul of many sizes. Then we time steps of several batches and lengths (a
# quarter of a minute).

# %% tags=["experiment"]
from functools import partial

from minitrain.measure.clock import copy_bandwidth, matmul_peak, median_seconds

peak = matmul_peak(torch.float32, "cpu")


def step_seconds(config, batch, length):
    """Median seconds of one training step."""
    model = build(config, seed=0)
    optimizer = adamw(model, lr=1e-3)
    tokens = torch.randint(config.vocab_size, (batch, length + 1))

    def step():
        logits = model(tokens[:, :-1]).flatten(0, 1)
        targets = tokens[:, 1:].flatten()
        torch.nn.functional.cross_entropy(logits, targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return median_seconds(step, repeats=3, warmup=1)


# %% tags=["experiment"]
throughput = []
for batch, length in lab.size("grid"):
    rate = batch * length / step_seconds(config, batch, length)
    bytes_of = predict_memory(config, batch, length)
    row = {"batch": batch, "length": length, "tokens_per_second": rate}
    row["mfu"] = mfu(rate, config, length, peak)
    row["activation_bytes"] = bytes_of.pop("activations")
    throughput.append(row | {"model_bytes": sum(bytes_of.values())})

# %% tags=["grade"]
lab.experiment("throughput", throughput)

# %% tags=["folded"]
table = []
for row in throughput:
    shown = {"rows": row["batch"], "tokens a row": row["length"]}
    shown["tokens a second"] = round(row["tokens_per_second"])
    shown["MFU (%)"] = round(100 * row["mfu"])
    shown["activations, predicted (MB)"] = round(row["activation_bytes"] / 1e6)
    table.append(shown)
caption = (
    f"{show.count_text(built)} parameters; peak {peak / 1e9:.0f} GFLOP/s, measured on"
)
show.table(table, f"{caption} {lab.device_name}", highlight="MFU (%)")

# %% [markdown]
# **Explain**: small batches lose time to costs that do not depend on their size: launching operations, and AdamW, which updates all
# parameters once per step. Beyond a few thousand tokens more rows gain little, and may even cost speed: what remains is the work between
# the matmuls (norms, softmax, the activation function), which does few FLOPs per byte that it moves, and larger tensors no longer fit in the
# caches. The next picture shows how bytes limit FLOPs:

# %%
ideas.roofline()

# %% [markdown]
# The *roofline* ([Williams et al. 2009](https://doi.org/10.1145/1498765.1498785)) is an upper bound on the speed of an operation.
# Let $I$ be its arithmetic intensity, the FLOPs that it does per byte it moves, and $W$ the memory bandwidth in bytes per second:
#
# $$\text{FLOP/s} \le \min(\text{peak},\; W\,I)$$
#
# The product of $(m \times k)$ and $(k \times n)$ in float32 does $2mkn$ FLOPs and moves $4(mk + kn + mn)$ bytes. With one row,
# $m = 1$, the intensity is about one half for any large $k$ and $n$: each weight of 4 bytes is read for one multiplication and one addition.
# The picture shows an H100 according to its data sheet. Now we measure your machine; a folded cell draws the result:

# %%
bandwidth, points = copy_bandwidth(), {}
shapes = {"one token": (1, 384, 1024), "MLP of 1M": (2048, 128, 448)}
shapes["square 2048"] = (2048, 2048, 2048)
for name, (m, k, n) in shapes.items():
    operands = torch.randn(m, k), torch.randn(k, n)
    seconds = median_seconds(partial(torch.matmul, *operands))
    flops, moved = 2 * m * k * n, 4 * (m * k + k * n + m * n)
    points[name] = ([flops / moved], [flops / seconds / 1e9])

# %% tags=["folded"]
kink = peak / bandwidth  # FLOPs a byte from which the matmul units are the limit
intensity = sorted([*(2.0**e for e in range(-2, 10)), kink])
roof = [min(peak, i * bandwidth) / 1e9 for i in intensity]
with show.canvas() as (figure, axes):
    axes.plot(intensity, roof, "--", color="#222222", linewidth=1.3)
    axes.text(intensity[-1], 1.1 * roof[-1], "roof", ha="right", va="bottom")
    style = {"textcoords": "offset points", "ha": "left", "va": "top"}
    for (name, (at, rate)), color, marker in zip(
        points.items(), show.COLORS, show.MARKERS
    ):
        axes.plot(at, rate, marker, color=color)
        axes.annotate(name, (at[0], rate[0]), (7, -5), color=color, **style)
    axes.set(xlabel="FLOPs per byte moved", ylabel="GFLOP/s")
    axes.set(xscale="log", yscale="log", ylim=(min(roof) / 2, 2 * max(roof)))
    axes.set_title(f"Roofline of {lab.device_name}, float32")
show.figure(
    figure,
    alt="Log-log roofline: operations with few FLOPs a byte lie low on the slope.",
)

# %% [markdown]
# A point above the slope is not a mistake: its operands were in the caches, which are faster than the memory that `copy_bandwidth` measures. The single
# token's product is small enough for that. A 70B model is not: generating one token at a time (e09) is limited by the slope.
# "MLP of 1M" is a matmul of your model. If a step consisted only of such matmuls, your MFU would be this point's share of the peak;
# the work between the matmuls makes it lower.

# %% [markdown]
# ## 8 · A scaling law whose limit is known
#
# Loss falls with parameters $N$ and training tokens $D$ ([Hoffmann et al. 2022](https://arxiv.org/abs/2203.15556)) as
#
# $$L(N, D) = E + \frac{A}{N^{\alpha}} + \frac{B}{D^{\beta}} \quad\text{nats per token}.$$
#
# The second term is the cost of too small a model, the third that of too few tokens; $E$ remains with infinitely many parameters and
# tokens: it is the entropy of the text. The letters are the paper's: $D$, $L$, $A$ and $B$ are not those of the sections above, nor α and
# β those of e00.

# %% [markdown]
# Nobody can check the $E = 1.69$ that the authors of this law (Chinchilla) found for their text. *Here it is known.* The runs recorded in
# `data/scaling_runs.csv` were trained on a simpler language: a Markov chain of words, in which each word determines the probabilities of the
# next. We fit the law to them, predict a run that is not among them, train it, and compare.

# %% tags=["experiment"]
from minitrain.paths import data_dir
from minitrain.planning.scaling.laws import fit
from minitrain.planning.scaling.runs import make_texts, read_runs
from minitrain.planning.scaling.runs import shape, train_one


def law_of(runs):
    return fit(*zip(*((r.parameters, r.tokens, r.loss) for r in runs)))


recorded = read_runs(data_dir() / "scaling_runs.csv")
count = lab.size("own_tokens")
small = shape(lab.size("own_width"), lab.size("own_layers"))
own = train_one(small, make_texts(count), count)
before, law = law_of(recorded), law_of([*recorded, own])
row = {"parameters": own.parameters, "tokens": own.tokens, "measured": own.loss}
row["predicted"] = before.loss(own.parameters, own.tokens)
scaling_law = [row | {"E": law.E, "floor": recorded[0].floor}]

# %% tags=["grade"]
lab.experiment("scaling_law", scaling_law)

# %% [markdown]
# The folded cell draws all runs, including yours, and the true floor.

# %% tags=["picture", "folded"]
curves = {}
for count in sorted({125_000 * round(r.tokens / 125_000) for r in recorded}):
    same = sorted(
        (r.parameters, r.loss) for r in recorded if abs(r.tokens / count - 1) < 0.3
    )
    curves[f"{count / 1e6:g}M tokens"] = tuple(zip(*same))
sizes, floor = sorted({r.parameters for r in recorded}), recorded[0].floor
told = f"predicted {scaling_law[0]['predicted']:.2f}, measured {own.loss:.2f}"
with show.canvas() as (figure, axes):
    show.lines(
        curves,
        theory={f"true floor {floor:.2f}": (sizes, [floor] * len(sizes))},
        x="parameters N",
        y="held-out loss (nats per token)",
        log="x",
        title=f"Your run: {told}",
        ax=axes,
    )
    at, ink = (own.parameters, own.loss), "#222222"
    axes.plot(*at, "*", color=ink, markersize=13, zorder=3)
    words = f"yours, {own.tokens / 1e6:.2f}M tokens"
    style = {"textcoords": "offset points", "weight": "bold"}
    axes.annotate(words, at, (40, 90), arrowprops={"arrowstyle": "-"}, **style)
show.figure(
    figure,
    alt="Loss against parameters for several token counts, above the true floor.",
)
print(f"E by the fit: {law.E:.3f}; the truth: {floor:.3f} nats a token")

# %% [markdown]
# **Explain**: the fit did not know the floor, but found it: 3.145 nats in our run, where the truth is 3.157. It
# works because the loss on this language falls as a power law throughout. In the stories of section 5, who holds what is learned late
# and suddenly, which a law fitted to small runs cannot predict. A scaling law extrapolates what has been
# learned so far.

# %% [markdown]
# > **Takeaway.** One device, and every number obtained twice. FLOPs agree to the last digit, memory within 5%, the floor of the
# > chain within 1%. Only speed must be measured: in the run shown here the MFU was 54 to 66% of the measured peak of two CPU cores,
# > depending on the batch, compared with 23 to 61% of the data sheet's peak in the 72 MPT runs that llm-foundry published.
#
# > **On a GPU.** This lab has not been run on one yet. The training of section 5 would use the GPU and a model of 30M
# > parameters; sections 6 and 7 always measure the CPU.

# %%
lab.score(read="minitrain/training/loop.py")

# %% [markdown]
# Read [minitrain/model/transformer.py](../minitrain/model/transformer.py), too: its attention is yours. To train for two minutes
# instead of the seconds of section 5, run
#
#     python -m minitrain train
#
# Next, [e02 · Data parallel](e02_data_parallel.ipynb) divides the step among several ranks, and measures how efficient they are.
