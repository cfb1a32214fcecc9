# %% [markdown]
# # e02d · Expert parallel
#
# **Give a layer eight MLPs instead of one, and send each token through two of them: more parameters, the same FLOPs. You
# write the router, keep its load even, and put the experts on different ranks.**
#
# 60 minutes · CPU is enough · before: [e02 · Data parallel](e02_data_parallel.ipynb),
# [e02c · Pipeline parallel](e02c_pipeline_parallel.ipynb) · [map of the course](index.ipynb)
#
# You build: the top-k router, the balance loss, the bias, dispatch and combine, and the all-to-all. You end with this
# picture: who got the tokens while three routers were trained.
#
# ![Share of the tokens that each of eight experts got over training steps: left alone they drift apart, with a loss or a bias they stay together](../labs/pictures/e02d_expert_parallel.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, show, widgets
from minitrain.ranks.launch import launch

lab = Lab("e02d_expert_parallel")

# %% [markdown]
# ## 1 · A token needs two of eight
#
# A mixture of experts (**MoE**) has E small MLPs, the *experts*, in the place of one. A router picks K for each token.
# Parameters grow with E, FLOPs a token with K.
#
# **Predict**: Mixtral 8x7B has 46.7 billion parameters, with E = 8 and K = 2. How many does one token pass through?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 13e9
### LAB guess = None  # parameters, your guess
### END SOLUTION
lab.predict("active", guess)

# %%
from minitrain.measure.parameters import active_parameter_count
from minitrain.model.config import preset

mixtral = preset("mixtral-8x7b")
note = "not a quarter: attention and embeddings are not split"
lab.reveal("active", active_parameter_count(mixtral), note=note)

# %% [markdown]
# ### Exercise 1 · `route`
#
# Difficulty 2 of 5 · 8 minutes · 10 points
#
# p is the softmax of `x Wᵀ`, in float32 at least: `torch.promote_types(x.dtype, torch.float32)`. The k largest of
# p + bias are chosen; their weights are their p over the sum of these k, for k = 1 p itself. The bias chooses, it does
# not weigh. Here and below, what a function is given stays as it is, but for `bias` in exercise 3.


# %% tags=["exercise"]
def route(x, weight, bias, k: int):
    """x (M, D), weight (E, D), bias (E,) -> p (M, E), experts (M, k) int64, in any order,
    and their weights (M, k), in the type of p; gradients flow through them to p, and
    through p. About 6 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.parallel.expert.plain:route
    ### END SOLUTION


# %% tags=["grade"]
route = lab.grade(route)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Convert `x` and `weight` before they are multiplied: a bfloat16 product has lost what decides between two experts.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `(p + bias).topk(k).indices` are the experts; their own p come from `p.gather(1, experts)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `chosen / chosen.sum(1, keepdim=True)`, but with k = 1 that is p / p = 1, whose gradient is zero: return `chosen`.
#
# </details>

# %%
x = torch.randn(512, 32, generator=torch.Generator().manual_seed(0))
W = torch.randn(8, 32, generator=torch.Generator().manual_seed(1)) / 32**0.5
p, experts, weights = route(x, W, torch.zeros(8), 2)
load = torch.bincount(experts.flatten(), minlength=8)
show.draw_load(load.tolist())

# %% [markdown]
# ## 2 · Keep the load even
#
# Who is chosen more learns more, and is chosen more. Against it: the **balance loss**
# ([Fedus et al. 2021](https://arxiv.org/abs/2101.03961)) E · Σ fᵢPᵢ, fᵢ the share of the *choices* that expert i got,
# Pᵢ the mean p, which alone has a gradient. Even load: 1.
#
# f counts **all** ranks' tokens, or the loss changes with N.

# %% [markdown]
# ### Exercise 2 · `balance_loss`
#
# Difficulty 3 · 8 minutes · 9 points
#
# Each rank gives its share, over its own p; ranks may have different numbers of tokens, one of them none.
# `torch.bincount(values, minlength=E)` counts. `group.all_reduce(counts)` sums a tensor over ranks, in place, and returns
# it; one, of E counts, is enough and all that is sent.


# %% tags=["exercise"]
def balance_loss(group, p, experts) -> torch.Tensor:
    """p (M, E), experts (M, K) of this rank -> its share of E · Σ fᵢPᵢ over the tokens of
    all ranks: the shares add up to the loss of one process. About 5 lines."""
    ### BEGIN SOLUTION
    counts = torch.bincount(experts.flatten(), minlength=p.shape[1])
    group.all_reduce(counts)
    f = counts / counts.sum()
    tokens = counts.sum() / experts.shape[1]
    return p.shape[1] * (f * p.sum(0)).sum() / tokens
    ### END SOLUTION


# %% tags=["grade"]
balance_loss = lab.grade(balance_loss)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# One all-reduce of E counts is enough: their sum is K times the number of all tokens.
#
# </details>
# <details><summary>Hint 2</summary>
#
# P is the mean over the tokens of all ranks. This rank's part of it is `p.sum(0) / tokens`, with `tokens` of all ranks.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `f = counts / counts.sum()`, `tokens = counts.sum() / experts.shape[1]`; return `E * (f * p.sum(0)).sum() / tokens`.
#
# </details>

# %% [markdown]
# ### Exercise 3 · `update_bias`
#
# Difficulty 2 · 5 minutes · 7 points
#
# **Bias** ([Wang et al. 2024](https://arxiv.org/abs/2408.15664), DeepSeek-V3): no loss at all. After each step the bias of
# an expert goes up by `rate` if it got less than the mean, down if more, unchanged if equal. Again, counts of all ranks,
# by one all-reduce.


# %% tags=["exercise"]
def update_bias(group, bias, experts, rate: float) -> None:
    """Changes `bias` (E,) in place, alike on all ranks; experts (M, K) are what this
    rank's tokens chose in the step. About 3 lines."""
    ### BEGIN SOLUTION
    counts = torch.bincount(experts.flatten(), minlength=len(bias))
    group.all_reduce(counts)
    bias += rate * torch.sign(counts.double().mean() - counts)
    ### END SOLUTION


# %% tags=["grade"]
update_bias = lab.grade(update_bias)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Count as in the loss, all-reduce, compare with the mean, which need not be a whole number.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.sign` gives -1, 0 or 1. Less than the mean must give +1.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `bias += rate * torch.sign(counts.double().mean() - counts)`: `+=` changes the tensor that was given.
#
# </details>

# %% [markdown]
# ## 3 · Tokens to rows
#
# The M·K *choices* are numbered as in `experts.flatten()`. Each becomes a *row*; rows of one expert stand together, and
# it multiplies them at once.
#
# With a **capacity** an expert takes ⌈factor · M·K / E⌉ rows at most, those of highest p: buffers of fixed size. The rest
# is *dropped*. **Dropless** takes all.

# %% [markdown]
# ### Exercise 4 · `plan`
#
# Difficulty 4 · 12 minutes · 12 points
#
# `order[i]` is the number of the choice in row i, sorted by expert, in one expert from high to low `priority`; where two
# are equal the earlier choice first. `argsort(stable=True)` keeps equals in their order.


# %% tags=["exercise"]
import math


def plan(experts, count: int, priority, factor: float | None = None):
    """experts and priority (M, K) -> order (R,), and the rows of each of `count` experts
    (count,). A `factor` of None drops nothing, 0.0 all; `priority` may be any number.
    About 10 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.parallel.expert.plain:plan
    ### END SOLUTION


# %% tags=["grade"]
plan = lab.grade(plan)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Sort twice: first all choices by priority, then these, stably, by expert. The second sort keeps the first one's order
# within each expert.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `first = priority.flatten().argsort(descending=True, stable=True)`; then `first[flat[first].argsort(stable=True)]`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A row's place within its expert is `torch.arange(len(flat)) - starts[flat[order]]` with
# `starts = counts.cumsum(0) - counts`. Keep places below the capacity, and `counts.clamp(max=capacity)`.
#
# </details>

# %% [markdown]
# ### Exercise 5 · `mix`
#
# Difficulty 2 · 8 minutes · 8 points
#
# Bring the tokens to their rows, call `experts(rows, counts)`, a function here, once (without rows too: in exercise 6 other
# ranks wait for it), and add each answer, times its weight, to its token. A dropped choice adds nothing, and the other
# weight stays as it is: around the layer goes the residual stream, so such a token just passes by.


# %% tags=["exercise"]
def mix(x, weights, order, counts, experts) -> torch.Tensor:
    """x (M, D), weights (M, K) of the same type, order (R,) and counts (E,) from plan ->
    (M, D); experts maps rows (R, D) and counts to answers (R, D). About 4 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.parallel.expert.plain:mix
    ### END SOLUTION


# %% tags=["grade"]
mix = lab.grade(mix)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Choice c belongs to token `c // K`; its weight is `weights.flatten()[c]`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Weigh the answers, not the inputs: an expert is not linear, so w·f(x) is not f(w·x).
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.zeros_like(x).index_add(0, tokens, weighed)` adds row i to token `tokens[i]`; `y[tokens] += weighed` would keep
# only the last of a token's rows.
#
# </details>

# %% [markdown]
# **Predict**: the random router of section 1, 512 tokens and 8 experts, K = 2. What share of the choices does a capacity
# factor of 1.0 drop?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.1
### LAB guess = None  # a share from 0 to 1, your guess
### END SOLUTION
lab.predict("dropped", guess)

# %%
priority = p.gather(1, experts)
dropped = {c: 1 - len(plan(experts, 8, priority, c)[0]) / experts.numel()
           for c in (0.5, 1.0, 1.25, 1.5, 2.0)}  # fmt: skip
lab.reveal("dropped", dropped[1.0], note="before any training; it gets worse")
show.table(
    [{"capacity factor": c, "dropped": share} for c, share in dropped.items()],
    formats={"dropped": "{:.1%}".format},
)

# %% [markdown]
# **Explore** what "worse" is: a router whose logits are noise plus favourites (`skew`), untrained. At `skew` 0 a capacity
# of 1.25 drops nothing. At 1 even twice the even load still drops 5%, and costs every expert a buffer of that size; the
# bias drops nothing at 1.25.

# %%
from minitrain.lab.drawing.expert_load import skewed_load


def draw(ax, skew, bias, capacity):
    show.draw_load(skewed_load(skew, bias == "on"), factor=capacity, ax=ax)


widgets.explore(
    draw,
    alt="Bars of the choices of eight experts: filled what is kept, hatched what is dropped.",
    skew=(0.0, 2.0, 1.0),
    bias=["off", "on"],
    capacity=[1.25, 1.0, 1.5, 2.0],
)

# %% [markdown]
# ## 4 · Experts on other ranks
#
# **Expert parallelism** ([GShard](https://arxiv.org/abs/2006.16668)): rank r of N holds experts r·E/N to (r+1)·E/N, and
# has its own tokens. Rows travel there and back, by an **all-to-all**.
#
# An expert's gradient is then already the sum over the tokens of *all* ranks. Averaging it, as data parallelism would,
# is wrong by N.

# %% [markdown]
# ### Exercise 6 · `exchange`
#
# Difficulty 5 · 18 minutes · 14 points
#
# First counts: `group.all_to_all(output, input)` cuts `input` into N = `group.size` pieces, one for each rank, and returns
# `output`. Then `all_to_all(rows, group, sent, got)`, with row counts to and from each rank; autograd knows it. What
# arrives is by source, then by expert; `experts` wants it by expert, in one call. Undo that before answers go home, by a
# third all-to-all. Nothing else travels.

# %% tags=["exercise"]
from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts) -> torch.Tensor:
    """rows (R, D) by expert, counts (E,) -> answers (R, D) in the same order. `experts` is
    this rank's E/N, and takes their rows by expert, and E/N counts. About 9 lines."""
    ### BEGIN SOLUTION
    leaving = counts.view(group.size, -1)
    arriving = group.all_to_all(torch.empty_like(leaving), leaving)
    there, here = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, there, here)
    expert = torch.arange(arriving.shape[1]).repeat(group.size)
    order = expert.repeat_interleave(arriving.flatten()).argsort(stable=True)
    answers = experts(arrived[order], arriving.sum(0))
    return all_to_all(answers[order.argsort()], group, here, there)
    ### END SOLUTION


# %% tags=["grade"]
exchange = lab.grade(exchange)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `leaving = counts.view(N, E/N)` is what goes to each rank, for each of its experts. After the all-to-all, `arriving`
# (N, E/N) is what comes from each rank, for each of yours.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Row sums are the two lists, column sums the counts for your experts. The expert of each row that arrived:
# `torch.arange(E/N).repeat(N).repeat_interleave(arriving.flatten())`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# With `order = expert.argsort(stable=True)` call `experts(arrived[order], arriving.sum(0))`; `answers[order.argsort()]`
# puts them back. The second `all_to_all` has its lists exchanged.
#
# </details>

# %% [markdown]
# **Run**: your functions as a layer, made of a whole one (`moe`) of which each rank keeps its own experts; in a model on
# four ranks, a quarter of the rows each, against the course's own on one, in float64.

# %% tags=["experiment"]
from functools import partial

from minitrain.model.experts.grouped import Experts


class Mixture(torch.nn.Module):
    """route, plan, exchange, mix. It counts what it would drop with a capacity of 1.25."""

    def __init__(self, group, moe):
        super().__init__()
        self.group, self.k = group, moe.router.per_token
        self.router = moe.router.weight
        E, D, F = moe.experts.gate.shape
        self.register_buffer("bias", torch.zeros(E))
        self.experts = Experts(E // group.size, D, F).to(self.router.dtype)
        for own, whole in zip(self.experts.parameters(), moe.experts.parameters()):
            own.data.copy_(whole.data.chunk(group.size)[group.rank])

    def forward(self, x):
        flat, E = x.flatten(0, 1), len(self.bias)
        self.p, self.chosen, weights = route(flat, self.router, self.bias, self.k)
        priority = self.p.gather(1, self.chosen).detach()
        kept, _ = plan(self.chosen, E, priority, 1.25)
        self.dropped = self.chosen.numel() - len(kept)
        order, counts = plan(self.chosen, E, priority)
        far = partial(exchange, self.group, self.experts)
        return mix(flat, weights, order, counts, far).view(x.shape)


# %% tags=["nbval-check-output"]
from minitrain.model.transformer import build

E, K, width, inner = (lab.size(n) for n in ("experts", "k", "width", "inner"))
dense = preset("1M", hidden_size=width, ffn_size=inner, layers=1)
sparse = preset("1M-moe", hidden_size=width, layers=1, expert_ffn_size=inner // K,
                experts=E, sequence_balance=0.0, z_loss=0.0)  # fmt: skip
text = torch.randint(512, (8, 16), generator=torch.Generator().manual_seed(0))


def gradients(group):
    model = build(sparse, dtype=torch.float64)
    model.blocks[0].mlp = Mixture(group, model.blocks[0].mlp)
    model(text.chunk(group.size)[group.rank]).square().sum().backward()
    return model.blocks[0].mlp.experts.down.grad


one = build(sparse, dtype=torch.float64)
one(text).square().sum().backward()
four = torch.cat(list(launch(gradients, ranks=4)))
worst = (four - one.blocks[0].mlp.experts.down.grad).abs().max().item()
print("largest difference of an expert's gradient is below 1e-10:", worst < 1e-10)

# %% [markdown]
# ## 5 · What travels
#
# **Predict**: 8 ranks, 1,024 tokens each, K = 2, D = 32 in float32, even load. How many bytes does a rank send in a
# *forward*?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 2 * 2048 * 7 / 8 * 32 * 4
### LAB guess = None  # bytes, your guess
### END SOLUTION
lab.predict("forward_bytes", guess, unit="B")

# %% tags=["experiment"]
M = lab.size("tokens")


def layer_bytes(group):
    """Bytes of a layer, forward and backward, and the rows that left and that came."""
    torch.manual_seed(group.rank)
    moe = build(sparse).blocks[0].mlp
    layer, x = Mixture(group, moe), torch.randn(1, M, width, requires_grad=True)
    y = layer(x)
    ops = group.trace.select("all_to_all")
    forward = [op.sent_bytes for op in ops]
    y.sum().backward()
    backward = [op.sent_bytes for op in group.trace.select("all_to_all")[len(ops) :]]
    load = torch.bincount(layer.chosen.flatten(), minlength=E)
    to = load.view(group.size, -1).sum(1)  # rows for each rank
    came = group.all_to_all(torch.empty_like(to), to)
    r = group.rank
    return {
        "rows_out": int(to.sum() - to[r]),
        "rows_in": int(came.sum() - came[r]),
        "count_bytes": forward[0],
        "forward_bytes": sum(forward[1:]),
        "backward_bytes": sum(backward),
        "messages": len(forward) + len(backward),
    }


traffic = []
for n in lab.size("ranks"):
    for rank, row in enumerate(launch(layer_bytes, ranks=n)):
        sizes = {"ranks": n, "rank": rank, "tokens": M, "k": K, "width": width}
        traffic.append({**sizes, **row})

# %% tags=["grade"]
lab.experiment("traffic", traffic)

# %%
ns = lab.size("ranks")
of = {n: [r["forward_bytes"] / 1e3 for r in traffic if r["ranks"] == n] for n in ns}
mean = [sum(of[n]) / n for n in ns]
even = [2 * M * K * (n - 1) / n * width * 4 / 1e3 for n in ns]
lab.reveal("forward_bytes", 1e3 * mean[-1], formula=1e3 * even[-1],
           note="2·M·K·(N-1)/N rows; your ranks are not quite even")  # fmt: skip
show.lines(
    {"mean of the ranks": (ns, mean)},
    theory={"even load": (ns, even), "all to everyone": (ns, [n * b for n, b in zip(ns, even)])},
    band={"mean of the ranks": ([min(of[n]) for n in ns], [max(of[n]) for n in ns])},
    x="ranks",
    y="sent in a forward (kB a rank)",
    title=f"{M:,} tokens a rank, D = {width}, K = {K}, counted",
    alt="Kilobytes a rank sends in one forward against ranks: measured on the even-load formula, far below sending all rows to everyone.",
    caption=f"On {ns[-1]} ranks from {min(of[ns[-1]]):.0f} to {max(of[ns[-1]]):.0f} kB (shaded).",
)  # fmt: skip

# %% [markdown]
# **Explain**: a row leaves with probability (N-1)/N, goes there and back: 2·M·K·(N-1)/N rows, which hardly grows with N.
# Sending every row to everyone grows with N. Backward sends as much again.
#
# Does it fit behind the computation? On paper, for H100s:

# %%
from minitrain.network.fabric import H100

LINKS = {"NVLink": 362e9, "InfiniBand": 36.75e9}  # bytes/s a GPU, as in e02


def ratio(inner, link, n=64):
    """Seconds of two all-to-alls over those of the experts, for one number of one row: there
    and back 2 bytes each, and 6·F FLOPs in an expert's three matrices."""
    return (2 * 2 * (n - 1) / n / LINKS[link]) / (6 * inner / H100.flops)


models = {"Mixtral 8x7B": 14336, "DeepSeek-V3": 2048}  # the width F in an expert
show.table([{"model": m, "F": F, **{link: ratio(F, link) for link in LINKS}}
            for m, F in models.items()], caption="all-to-all over experts' time, 64 ranks on one such network")  # fmt: skip

# %% [markdown]
# M, K and D cancel: only the expert's width F is left. Over InfiniBand, Mixtral's is just enough. Fine experts pay with
# their network: DeepSeek-V3 sends a token to at most 4 nodes, in FP8, while it computes.
#
# **Question**: from which F on do the experts take at least as long as the all-to-alls over **NVLink**, 64 ranks?

# %% tags=["question"]
### BEGIN SOLUTION
enough_width = ratio(1, "NVLink")
### LAB enough_width = None  # your answer, a width F
### END SOLUTION

# %% tags=["grade"]
lab.answer("enough_width", enough_width)

# %% [markdown]
# ## 6 · Train it
#
# Tiny models on the course's corpus, on two real ranks with half of the experts each: left **alone**, with the **loss**,
# with the **bias**; and a **dense** one whose MLP has the FLOPs of K experts.
#
# Experts have no data parallelism here: only the *other* gradients are summed over ranks. 15 to 30 seconds.

# %%
from minitrain.data.corpus import make_corpus
from minitrain.data.loader import Loader
from minitrain.data.packing import pack
from minitrain.data.tokenizer import train_tokenizer

corpora = make_corpus(lab.size("corpus_bytes"), seed=1), make_corpus(25_000, seed=2)
tokenizer = train_tokenizer(corpora[0].documents[:1500])
floor = corpora[1].entropy_per_token(tokenizer)
packed = [pack(tokenizer.encode_batch(c.documents), lab.size("length"), tokenizer.end_token)
          for c in corpora]  # fmt: skip

# %% tags=["experiment"]
from minitrain.training.loss import token_weighted_loss
from minitrain.optimizers.adamw import adamw
from minitrain.optimizers.learning_rate import warmup_cosine

steps, rate, rows = (lab.size(n) for n in ("steps", "lr", "batch"))


def loss_of(model, batch, tokens):
    logits = model(batch.tokens, batch.documents, batch.positions)
    return token_weighted_loss(logits, batch.targets, tokens)


def trained(group, how):
    """The load of each expert after each step, what 1.25 drops, and the held-out loss."""
    model, loads = build(dense if how == "dense" else sparse, seed=0), []
    layer = model.blocks[0].mlp = (
        model.blocks[0].mlp if how == "dense" else Mixture(group, model.blocks[0].mlp)
    )
    optimizer = adamw(model, lr=rate)
    loader = Loader(packed[0], rows, group.rank, group.size, seed=0)
    for step, batch in zip(range(steps), loader):
        for settings in optimizer.param_groups:
            settings["lr"] = warmup_cosine(step, steps, steps // 20, rate)
        tokens = group.all_reduce(torch.tensor(batch.tokens_counted))
        loss = loss_of(model, batch, tokens)
        if how == "loss":
            loss = loss + 0.05 * balance_loss(group, layer.p, layer.chosen)
        loss.backward()
        for name, parameter in model.named_parameters():
            if ".experts." not in name:
                group.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        if how == "bias":
            update_bias(group, layer.bias, layer.chosen, 0.01)
        if how != "dense":
            load = torch.bincount(layer.chosen.flatten(), minlength=E)
            dropped = group.all_reduce(torch.tensor(layer.dropped)).item()
            loads.append((group.all_reduce(load).tolist(), dropped))
    return loads, held_out_loss(group, model)


@torch.no_grad()
def held_out_loss(group, model):
    total = torch.zeros(2, dtype=torch.float64)
    for batch in Loader(packed[1], 16, group.rank, group.size, shuffle=False):
        summed = loss_of(model, batch, 1).double()
        total += torch.stack([summed, torch.tensor(batch.tokens_counted)])
    group.all_reduce(total)
    return (total[0] / total[1]).item()


runs = {how: launch(trained, how, ranks=2)[0] for how in ("dense", "alone", "loss", "bias")}  # fmt: skip
balance = [
    {"router": how, "step": step, "choices": sum(load), "most": max(load) * E / sum(load),
     "idle": load.count(0), "dropped": dropped / sum(load)}
    for how, (loads, _) in runs.items() for step, (load, dropped) in enumerate(loads)
]  # fmt: skip

# %% tags=["grade"]
lab.experiment("balance", balance)


# %% tags=["picture"]
def panel(ax, how):
    """The shares of each expert's choices, means of four steps."""
    loads = torch.tensor([load for load, _ in runs[how][0]], dtype=torch.float64)
    shares = 100 * loads / loads.sum(1, keepdim=True)  # (steps, E)
    means = shares.unflatten(0, (-1, 4)).mean(1)
    for e, line in enumerate(means.T):
        ax.plot([4 * i + 1.5 for i in range(len(line))], line, linewidth=1.5,
                color=show.COLORS[e % 7], linestyle="--" if e == 7 else "-")  # fmt: skip
    ends = [row["dropped"] for row in balance if row["router"] == how][-10:]
    words = {"alone": "Left alone", "loss": "Balance loss", "bias": "Bias"}[how]
    ax.set_title(f"{words}: {sum(ends) / len(ends):.1%} dropped")
    ax.axhline(100 / E, color="#222222", linestyle=":", linewidth=1.2)
    ax.axhline(125 / E, color="#222222", linewidth=1.2)
    ax.set(xlabel="step", ylim=(0, 34))


with show.canvas(columns=3, width=12, height=4.2) as (figure, axes):
    for ax, how in zip(axes, ("alone", "loss", "bias")):
        panel(ax, how)
    axes[0].set_ylabel("choices that an expert got (%)")
    for word, height in (("even", 100 / E), ("capacity\n1.25", 125 / E + 0.5)):
        axes[2].annotate(word, (1.02, height), xycoords=("axes fraction", "data"),
                         va="center", annotation_clip=False)  # fmt: skip
show.figure(
    figure,
    alt="Percent of the choices that each of eight experts got, over steps: left alone half of them stay above the capacity, with the balance loss or the bias all come together at an even share.",
    caption="A line is an expert, means of four steps. Dropped: what lies over the capacity on a rank, mean of the last ten steps.",
)

# %% [markdown]
# **Question**: with a dropless layer the slowest rank waits for the busiest expert. In the last ten steps of your table,
# how many times an even load did the busiest expert get (`most`), on average, left alone?

# %% tags=["question"]
### BEGIN SOLUTION
most = [row["most"] for row in balance if row["router"] == "alone"][-10:]
busiest = sum(most) / len(most)
### LAB busiest = None  # your answer, a factor
### END SOLUTION
show.table([row for row in balance if row["step"] == steps - 1])

# %% tags=["grade"]
lab.answer("busiest", busiest)

# %% [markdown]
# **Question**: which of the two remedies gives the weights of the *model* a gradient of its own, beside that of the
# language loss: `"loss"`, `"bias"`, `"both"` or `"neither"`?

# %% tags=["question"]
### BEGIN SOLUTION
interferes = "loss"
### LAB interferes = None  # your answer: "loss", "bias", "both" or "neither"
### END SOLUTION

# %% tags=["grade"]
lab.answer("interferes", interferes)

# %% [markdown]
# ## 7 · At equal FLOPs
#
# The same steps, tokens and active FLOPs: four losses on text that no model has seen, above its known entropy, the floor.

# %% tags=["experiment"]
from minitrain.measure.flops import flops_per_token
from minitrain.measure.parameters import parameter_count

equal_flops = []
for how, (_, loss) in runs.items():
    config = dense if how == "dense" else sparse
    row = {"model": how, "parameters": parameter_count(config)}
    row["active"] = active_parameter_count(config)
    row["flops_per_token"] = flops_per_token(config, lab.size("length"))
    equal_flops.append({**row, "loss": loss, "floor": floor})

show.bars(
    [row["model"] for row in equal_flops],
    [row["loss"] - floor for row in equal_flops],
    y="held-out loss above the floor (nats per token)",
    title=f"{steps} steps, one seed, on {lab.device_name}",
    alt="Held-out loss above the entropy floor for a dense model and three mixtures of experts.",
)
show.table(equal_flops)

# %% tags=["grade"]
lab.experiment("equal_flops", equal_flops)

# %% [markdown]
# **Explain**: for the same FLOPs the mixture has 1.4 times the parameters, and came about a tenth nearer to the floor.
# Differences among the three are one seed's luck. Each expert saw only K/E of the tokens, so gains grow with the run: Switch
# Transformer reports T5-Base's quality in a seventh of the time.

# %% [markdown]
# **Takeaway**: experts buy parameters for bytes, 2·M·K·(N-1)/N rows a forward. Left alone, a tenth of the choices were
# over a capacity of 1.25; with the loss or the bias nearly none.
#
# > **On GPUs.** One GPU makes the run longer. With more, `launch` uses NCCL, and section 5's bytes can be timed.

# %%
lab.score(read="minitrain/parallel/expert/exchange.py")

# %% [markdown]
# Next: [e02e · Context parallel](e02e_context_parallel.ipynb) cuts the text itself, where it is too long for one rank. The
# [map of the course](index.ipynb) has the rest.
