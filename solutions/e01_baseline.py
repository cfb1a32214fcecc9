# %% [markdown]
# # e01 · Baseline
#
# **One device, one model, and every number known twice: on paper and measured. Without it no speed-up in this course
# would mean anything.**
#
# 60 minutes · CPU is enough · before: [e00 · Ranks and collectives](e00_ranks_and_collectives.ipynb) · next:
# [e02 · Data parallel](e02_data_parallel.ipynb) · [map of the course](index.ipynb)
#
# You build: attention with rotary positions, the counts of parameters and FLOPs, a training step, its schedule, MFU. You
# end with this picture: your model's loss falling toward the floor *that no model can beat*.
#
# ![Held-out loss of a small model over tokens, falling toward a dashed floor](../labs/pictures/e01_baseline.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, show

lab = Lab("e01_baseline")

# %% [markdown]
# ## 1 · Where is a token?
#
# Attention compares queries with keys; by itself it cannot tell *order*. RoPE ([Su et al.](https://arxiv.org/abs/2104.09864))
# turns pairs of numbers by an angle that grows with the position, so that q·k depends on the distance alone.

# %% [markdown]
# ### Exercise 1 · `rotate`
#
# Difficulty 2 of 5 · 6 minutes · 8 points
#
# Element i of the last dimension is paired with element i + C/2. Each pair (a, b) becomes
# (a·cos - b·sin, b·cos + a·sin). The minus sign is already in `turns.sin`: multiply by it as it is.


# %% tags=["exercise"]
def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    """x (B, T, H, C) -> the same shape, turned. `turns.cos` and `turns.sin` are
    (T, 1, C) in x's dtype, each angle in both halves; in the *first* half of
    `turns.sin` the sign is already negative. All three are left as they were.
    1 to 3 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.model.rope:rotate
    ### END SOLUTION


# %% tags=["grade"]
rotate = lab.grade(rotate)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `x * turns.cos` is the first term of both halves. What multiplies `turns.sin` is the *other* half of x.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `x.chunk(2, dim=-1)` gives a and b; you need them in the order b, a.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Rolling the last dimension by C/2 swaps the halves: `x.roll(C // 2, dims=-1)`.
#
# </details>

# %% [markdown]
# ## 2 · Many questions, few keys
#
# A server must keep keys and values of every token. Grouped-query attention
# ([Ainslie et al.](https://arxiv.org/abs/2305.13245)) lets H/K query heads share one of K key/value heads: Llama 3 70B has
# 64 and 8, so its KV cache, what is kept, is 8 times smaller.

# %% [markdown]
# ### Exercise 2 · `grouped_query_attention`
#
# Difficulty 3 · 10 minutes · 12 points
#
# Query head h reads key/value head h // (H/K). Token i sees tokens j ≤ i. Softmax of q·k / √C weighs the values.


# %% tags=["exercise"]
def grouped_query_attention(q, k, v) -> torch.Tensor:
    """q (B, H, T, C), k and v (B, K, T, C) -> (B, H, T, C), causal. With plain
    matmuls and a softmax, not the fused `F.scaled_dot_product_attention`. q, k and v
    are left as they were. About 6 lines."""
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
# First make k and v have H heads. Which copy stands beside which: neighbours share.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `repeat_interleave(H // K, dim=1)` gives heads 0 0 1 1; `repeat` would give 0 1 0 1.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.ones(T, T, dtype=torch.bool).triu(1)` marks the future; fill those scores with `-torch.inf` before the softmax.
#
# </details>

# %% [markdown]
# ## 3 · Counted on paper
#
# A shape says what a model costs before it exists. V is `vocab_size`, D `hidden_size`, L `layers`, H `heads`, K `kv_heads`,
# C `head_size`, F `ffn_size`, T the length in tokens. Ours, and two that are large:

# %%
from minitrain.model.config import PRESETS, preset

config = preset(lab.size("preset"))
columns = ["vocab_size", "hidden_size", "layers", "heads", "kv_heads", "head_size", "ffn_size"]  # fmt: skip
models = {
    "ours": config,
    **{name: PRESETS[name] for name in ("llama2-7b", "llama3-405b")},
}
show.table(
    [
        {"model": name, **{column: getattr(shape, column) for column in columns}}
        for name, shape in models.items()
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
# ### Exercise 3 · `parameter_count`
#
# Difficulty 2 · 8 minutes · 8 points
#
# Embedding V·D. In each layer: q and o with H·C (which need not be D), k and v with K·C, three MLP matrices D·F, two norms
# of D. A last norm, and a head V·D unless it is `tied`. No biases.


# %% tags=["exercise"]
def parameter_count(config) -> int:
    """Of a Llama-family model: config.vocab_size, hidden_size, layers, heads, kv_heads,
    head_size, ffn_size, tied. About 5 lines."""
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
# `V·D + L·layer + D`, and once more `V·D` where the head is not tied.
#
# </details>

# %% tags=["nbval-check-output"]
from minitrain.model.transformer import build

model = build(config, seed=0)
built = sum(p.numel() for p in model.parameters())
lab.reveal("parameters", built, formula=parameter_count(config))

# %% [markdown]
# ### Exercise 4 · `flops_per_token`
#
# Difficulty 3 · 8 minutes · 8 points
#
# Forward: 2 FLOPs for each *matmul* parameter (the head yes, embedding lookup and norms no), plus QKᵀ and AV,
# 2·L·H·C·T each. Backward: twice that.


# %% tags=["exercise"]
def flops_per_token(config, length: int) -> int:
    """FLOPs to train on one token, forward and backward, with attention over `length`
    tokens counted in full. About 5 lines."""
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
# Start from `parameter_count` and leave out what multiplies nothing: the embedding's lookup and the norms.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The head always counts, tied or not: V·D weights multiply each token.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `3 * (2 * weights + 4 * L * H * C * T)`: for large models the well-known 6·P.
#
# </details>

# %% tags=["nbval-check-output"]
# Run: count the FLOPs that a real step executes, and compare.
from minitrain.measure.flops import counted_flops

B, T = 2, lab.size("length")
tokens = torch.randint(config.vocab_size, (B, T))
counted = counted_flops(lambda: model(tokens).sum().backward())
print(f"counted {counted:,} · on paper {B * T * flops_per_token(config, T):,}")

# %% [markdown]
# ## 4 · A step that weighs every token alike
#
# A batch too large for memory is cut into microbatches whose gradients add up. They hold unequal numbers of targets, so the
# mean of their means is *wrong*; [transformers had this bug](https://github.com/huggingface/transformers/issues/34242) until 2024.

# %% [markdown]
# ### Exercise 5 · `train_step`
#
# Difficulty 3 · 12 minutes · 12 points
#
# Each microbatch has `.tokens`, `.targets`, `.documents`, `.positions`. `targets[:, t]` is already the token that comes after
# `tokens[:, t]`, or -100 where nothing counts. Divide each *summed* loss by the counted targets of *all* microbatches. Then
# once: clip by the global norm, step, zero.


# %% tags=["exercise"]
def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    """One optimizer step, the same as on one batch that holds all microbatches, in
    any order. `model(b.tokens, b.documents, b.positions)` gives logits. Backward
    comes after each microbatch: one's activations at a time are in memory. A
    microbatch may have no counted target, but one of them has. It finds no gradients
    and leaves none; the batches stay as they were. About 9 lines."""
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
# `cross_entropy(…, reduction="sum")` leaves -100 out by itself. Divide by the total, then backward, for each microbatch.
#
# </details>
# <details><summary>Hint 3</summary>
#
# After the loop, once: `torch.nn.utils.clip_grad_norm_(model.parameters(), clip)`, `optimizer.step()`,
# `optimizer.zero_grad()`.
#
# </details>

# %% [markdown]
# ### Exercise 6 · `warmup_cosine`
#
# Difficulty 2 · 6 minutes · 6 points
#
# Adam's averages are poor in the first steps: begin gently. Rise to the peak over `warmup` steps, then half a cosine down
# to the floor at `total`.

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
# Three cases: rising, falling, over.
#
# </details>
# <details><summary>Hint 2</summary>
#
# t goes from 0 to 1: `(step - warmup) / (total - warmup)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Without `if step >= total: return floor` the cosine climbs again after the end.
#
# </details>

# %% [markdown]
# ## 5 · Toward a floor that is known
#
# The course's corpus is a language of tiny stories. Every choice in it was drawn with a known probability, so its entropy
# is exact: **no model can have a lower loss**. Real text has such a floor too, but nobody knows it.

# %%
from minitrain.data.corpus import make_corpus
from minitrain.data.loader import Loader
from minitrain.data.packing import pack
from minitrain.data.tokenizer import train_tokenizer

corpus = make_corpus(lab.size("corpus_bytes"), seed=1)
held_out = make_corpus(lab.size("held_out_bytes"), seed=2)
tokenizer = train_tokenizer(corpus.documents[:3000])
floor = held_out.entropy_per_token(tokenizer)
print(corpus.documents[0])
print(f"\nfloor: {floor:.3f} nats a token")

# %% [markdown]
# **Predict**: after the steps below, half a minute on two cores, how far above the floor is the loss, as a share of the
# floor? (0.1 is 10%.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.3
### LAB guess = None  # a share, your guess
### END SOLUTION
lab.predict("above", guess)

# %% tags=["experiment"]
import time

from minitrain.training.loop import evaluate
from minitrain.optimizers.adamw import adamw
from tqdm.auto import tqdm

rows = [
    pack(tokenizer.encode_batch(c.documents), T, tokenizer.end_token)
    for c in (corpus, held_out)
]
model, training, tokens_seen = build(config, seed=0).to(lab.device), [], 0
optimizer = adamw(model, lr=4e-3)
loader, steps, start = (
    Loader(rows[0], lab.size("batch"), seed=0),
    lab.size("steps"),
    time.perf_counter(),
)
for step, batch in tqdm(zip(range(steps), loader), total=steps, leave=False):
    for group in optimizer.param_groups:
        group["lr"] = warmup_cosine(step, steps, steps // 20, 4e-3)
    train_step(model, optimizer, [batch.to(lab.device)])
    tokens_seen += int(batch.tokens_counted)
    if step + 1 in {1, 2, 5, 10, 20, 40} or (step + 1) % (steps // 10) == 0:
        loss = evaluate(model, Loader(rows[1], 32, shuffle=False))
        training.append({"tokens": tokens_seen, "loss": loss, "floor": floor,
                         "seconds": time.perf_counter() - start,
                         "flops_per_token": flops_per_token(config, T)})  # fmt: skip

# %% tags=["grade"]
lab.experiment("training", training)

# %% tags=["picture"]
xs, ys = [r["tokens"] for r in training], [r["loss"] for r in training]
show.lines(
    {"held-out loss": (xs, ys)},
    theory={f"floor {floor:.3f}": (xs, [floor] * len(xs))},
    x="tokens seen",
    y="loss (nats per token)",
    log="x",
    title=f"{show.count_text(built)} parameters, {training[-1]['seconds']:.0f} s on {lab.device_name}",
    alt="Held-out loss falling toward the dashed entropy floor, over tokens on a log axis.",
)
lab.reveal(
    "above",
    ys[-1] / floor - 1,
    note="loss / floor - 1; `python -m minitrain train` brings it below 0.1 in two minutes",
)

# %% [markdown]
# **Question**: how far above the floor did it end, as a share (`loss / floor - 1`)? And what did the run cost in model
# FLOPs, for the tokens that count (`training[-1]["tokens"]`; padding costs too, and is left out)?

# %% tags=["question"]
### BEGIN SOLUTION
above_floor = training[-1]["loss"] / floor - 1
run_flops = tokens_seen * flops_per_token(config, T)
### LAB above_floor = None  # your answer, a share
### LAB run_flops = None  # your answer, in FLOPs
### END SOLUTION

# %% tags=["grade"]
lab.answer("above_floor", above_floor)

# %% tags=["grade"]
lab.answer("run_flops", run_flops)

# %% [markdown]
# It has learned to tell a story. Who is where, and who has what, it mostly keeps straight:

# %%
from minitrain.inference.sampling import generate

prompt = [tokenizer.end_token, *tokenizer.encode("One")]
seeded = torch.Generator().manual_seed(1)
story = generate(
    model, prompt, 90, temperature=0.7, end_token=tokenizer.end_token, generator=seeded
)
print("One" + tokenizer.decode(story))

# %% [markdown]
# ## 6 · What fills the memory
#
# The ledger counts bytes by who holds them. Training with AdamW keeps four float32 numbers a parameter: weight, gradient,
# two averages. The rest is *saved activations*: what forward keeps for backward.
#
# **Predict** their ratio at batch 8 and 128 tokens: activations / (16 bytes · parameters).

# %% tags=["question"]
### BEGIN SOLUTION
guess = 4
### LAB guess = None  # activations / model, your guess
### END SOLUTION
lab.predict("ratio", guess)

# %% tags=["experiment"]
from minitrain.measure.memory import MemoryLedger
from minitrain.measure.predicted_memory import predict_memory


def held(batch, length):
    """Bytes of one step by category, each at its highest: measured and predicted."""
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


highest, predicted = held(lab.size("batch"), T)
memory = [
    {"category": name, "measured": highest[name], "predicted": predicted[name]}
    for name in ("parameters", "gradients", "optimizer", "activations")
]

# %% tags=["grade"]
lab.experiment("memory", memory)

# %%
show.bars(
    [r["category"] for r in memory],
    {kind: [r[kind] / 1e6 for r in memory] for kind in ("measured", "predicted")},
    y="MB",
    title=f"One step, batch {lab.size('batch')} x {T} tokens",
    alt="Measured and predicted megabytes of parameters, gradients, optimizer, activations.",
)
lab.reveal("ratio", highest["activations"] / sum(r["measured"] for r in memory[:3]))

# %% [markdown]
# **Question**: which category is the largest? Recomputing it instead of keeping it is what e05 is about.

# %% tags=["question"]
### BEGIN SOLUTION
largest = "activations"
### LAB largest = None  # "parameters", "gradients", "optimizer" or "activations"
### END SOLUTION

# %% tags=["grade"]
lab.answer("largest", largest)

# %% [markdown]
# ## 7 · How fast, of how fast it could be
#
# ### Exercise 7 · `mfu`
#
# Difficulty 1 · 4 minutes · 6 points
#
# Model FLOPs utilisation ([PaLM, app. B](https://arxiv.org/abs/2204.02311)): the model's FLOPs per second, over the peak of
# the device. `flops_per_token` is per token already.


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
# FLOPs a second are tokens a second times FLOPs a token.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `flops_per_token(config, length)` is the one you wrote: forward and backward, nothing recomputed.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `tokens_per_second * flops_per_token(config, length) / peak`
#
# </details>

# %% [markdown]
# **Run**: the peak is *measured* here, with the best matmul of many sizes. Then steps of several batches and lengths (a
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
        logits = model(tokens[:, :-1])
        torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, 1:].flatten()
        ).backward()
        optimizer.step()
        optimizer.zero_grad()

    return median_seconds(step, repeats=3, warmup=1)


throughput = []
for batch, length in lab.size("grid"):
    rate = batch * length / step_seconds(config, batch, length)
    bytes_of = predict_memory(config, batch, length)
    throughput.append({"batch": batch, "length": length, "tokens_per_second": rate,
                       "mfu": mfu(rate, config, length, peak),
                       "activation_bytes": bytes_of.pop("activations"),
                       "model_bytes": sum(bytes_of.values())})  # fmt: skip

# %% tags=["grade"]
lab.experiment("throughput", throughput)

# %%
show.table(
    throughput,
    caption=f"{show.count_text(built)} parameters; peak {peak / 1e9:.0f} GFLOP/s, measured on {lab.device_name}",
    formats={
        "tokens_per_second": "{:,.0f}".format,
        "activation_bytes": show.bytes_text,
        "model_bytes": show.bytes_text,
        "mfu": "{:.0%}".format,
    },
    highlight="mfu",
)

# %% [markdown]
# **Explain**: a *roofline* ([Williams et al. 2009](https://doi.org/10.1145/1498765.1498785)). An operation that does few
# FLOPs for each byte it moves is held by the memory, not by the matmul units. A point above the slope had its operands in
# the caches, which are faster.

# %%
bandwidth, points = copy_bandwidth(), {}
shapes = {"one token": (1, 384, 1024), "MLP of 1M": (2048, 128, 448),
          "square 2048": (2048, 2048, 2048)}  # fmt: skip
for name, (m, k, n) in shapes.items():
    operands = torch.randn(m, k), torch.randn(k, n)
    seconds = median_seconds(partial(torch.matmul, *operands))
    flops, moved = 2 * m * k * n, 4 * (m * k + k * n + m * n)
    points[name] = ([flops / moved], [flops / seconds / 1e9])

# %%
kink = peak / bandwidth  # FLOPs a byte from which the matmul units are the limit
intensity = sorted([*(2.0**e for e in range(-2, 10)), kink])
roof = [min(peak, i * bandwidth) / 1e9 for i in intensity]
show.lines(
    points,
    theory={"roof": (intensity, roof)},
    x="FLOPs per byte moved",
    y="GFLOP/s",
    log="xy",
    title=f"Roofline of {lab.device_name}, float32",
    alt="Log-log roofline: operations with few FLOPs a byte lie low on the slope.",
)

# %% [markdown]
# ## 8 · A law whose end is known
#
# Loss falls with parameters N and tokens D as **L = E + A/N^α + B/D^β** ([Hoffmann et al. 2022](https://arxiv.org/abs/2203.15556)).
# Nobody can check Chinchilla's E of 1.69. *Here it is known*: the runs in `data/` read a chain of words, each drawing the
# next. Fit them, predict another, make it.

# %% tags=["experiment"]
from minitrain.paths import data_dir
from minitrain.planning.scaling.laws import fit
from minitrain.planning.scaling.runs import make_texts, read_runs, shape, train_one


def law_of(runs):
    return fit(*zip(*((r.parameters, r.tokens, r.loss) for r in runs)))


recorded = read_runs(data_dir() / "scaling_runs.csv")
count = lab.size("own_tokens")
own = train_one(
    shape(lab.size("own_width"), lab.size("own_layers")), make_texts(count), count
)
before, law = law_of(recorded), law_of([*recorded, own])
scaling_law = [
    {
        "parameters": own.parameters,
        "tokens": own.tokens,
        "predicted": before.loss(own.parameters, own.tokens),
        "measured": own.loss,
        "E": law.E,
        "floor": recorded[0].floor,
    }
]

# %% tags=["grade"]
lab.experiment("scaling_law", scaling_law)

# %%
curves = {}
for count in sorted({125_000 * round(r.tokens / 125_000) for r in recorded}):
    same = sorted(
        (r.parameters, r.loss) for r in recorded if abs(r.tokens / count - 1) < 0.3
    )
    curves[f"{count / 1e6:g}M tokens"] = tuple(zip(*same))
curves["yours"] = ([own.parameters], [own.loss])
sizes, floor = sorted({r.parameters for r in recorded}), recorded[0].floor
show.lines(
    curves,
    theory={f"true floor {floor:.2f}": (sizes, [floor] * len(sizes))},
    x="parameters N",
    y="held-out loss (nats per token)",
    log="x",
    title=f"Your run: predicted {scaling_law[0]['predicted']:.2f}, measured {own.loss:.2f}",
    alt="Loss against parameters for several token counts, above the true floor.",
)
print(f"E by the fit: {law.E:.3f}; the truth: {floor:.3f} nats a token")

# %% [markdown]
# **Explain**: the fit was not told the floor, and found it. It works since this language is learned evenly. The stories are
# not: who holds what is learned late and at once, and a law fitted to small runs does not see it coming.

# %% [markdown]
# > **On a GPU.** The sizes grow to 30M and the peak is the GPU's; then raise the batch until memory is full and watch MFU.
# > The 72 MPT runs published by llm-foundry reach 23 to 61%.
#
# One device is the baseline. [e02](e02_data_parallel.ipynb) takes eight, and asks what each of them is still worth.

# %%
lab.score(read="minitrain/training/loop.py")

# %% [markdown]
# And [minitrain/model/transformer.py](../minitrain/model/transformer.py), whose attention is yours. For the whole two minutes:
# `python -m minitrain train`. Next, [e02 · Data parallel](e02_data_parallel.ipynb) gives the step to several ranks.
