# %% [markdown]
# # e02d · Expert parallel
#
# **Give a layer eight MLPs instead of one, and send each token through two of them: more parameters at the same FLOPs. You write
# the router, balance its load, and put the experts on different ranks.**
#
# 105 minutes · CPU is enough · before: [e02 · Data parallel](e02_data_parallel.ipynb),
# [e02c · Pipeline parallel](e02c_pipeline_parallel.ipynb) · next: [e02e · Context parallel](e02e_context_parallel.ipynb) ·
# [map of the course](index.ipynb)
#
# You build the top-k router, the balance loss, the bias, dispatch and combine, and the all-to-all. By the end you will have made
# this picture: which experts got the tokens while three routers were trained.
#
# ![Share of the tokens that each of eight experts got over training steps: left alone they stay uneven, with a loss or a bias they come together](../labs/pictures/e02d_expert_parallel.png)

# %% tags=["setup"]
from functools import partial
import torch
from minitrain.lab import Lab, ideas, show, widgets
from minitrain.ranks.launch import launch

lab = Lab("e02d_expert_parallel")

# %% [markdown]
# ## 1 · A token needs two of eight
#
# In a transformer the MLP holds most of the weights, and every token passes through all of them. A **mixture of experts** (MoE)
# replaces this MLP by $E$ smaller ones, the *experts*, and for each token a *router* picks $K$ of them.
#
# The picture follows eight tokens through four experts, from left to right. For each token the router picks two experts, each
# with a probability $p$. The (token, expert) pairs are sorted so that the rows of one expert are adjacent, here from high to low
# $p$. Each expert computes its rows, and on the right each token gets a weighted sum of its two answers. (Dashed choices are
# those whose expert was full: see section 3.)

# %%
ideas.router()

# %% [markdown]
# Let a token have $D$ numbers, and $F$ numbers inside an expert. A gated MLP has three matrices of $D \times F$, and a weight
# costs two FLOPs for each token that passes through it, one multiplication and one addition. So a layer has
#
# $$P_\text{all} = E \cdot 3DF \text{ weights}, \qquad P_\text{active} = K \cdot 3DF \text{ weights per token},$$
#
# and a token costs $2\,P_\text{active}$ FLOPs forward.
#
# $P_\text{all}$ grows with $E$, the other two only with $K$. With the sizes of this lab, $D = 32$, $F = 32$, $E = 8$ and $K = 2$,
# the experts of a layer have 24,576 weights, of which a token uses 6,144, for 12,288 FLOPs.

# %% [markdown]
# **Predict**: Mixtral 8x7B has 46.7 billion parameters in all, with $E = 8$ and $K = 2$ in each of its 32 layers. How many of
# them does one token pass through?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 13e9
### LAB guess = None  # parameters, your guess
### END SOLUTION
lab.predict("active", guess, unit="parameters")

# %%
from minitrain.measure.parameters import active_parameter_count
from minitrain.model.config import preset

lab.reveal("active", active_parameter_count(preset("mixtral-8x7b")))

# %% [markdown]
# How does the router pick? It is one matrix $W$ of $E \times D$. For a token $x$ it computes one number per expert, and a softmax
# turns these into probabilities:
#
# $$p = \text{softmax}(W x), \qquad \mathcal T = \text{top}_K(p + b), \qquad
# w_e = \frac{p_e}{\sum_{j \in \mathcal T} p_j}, \qquad y = \sum_{e \in \mathcal T} w_e\, f_e(x).$$
#
# $\mathcal T$ is the set of chosen experts, $f_e(x)$ the answer of expert $e$, and $w_e$ its weight in the token's sum $y$. The
# weights add up to 1, so $y$ has the size of one MLP's answer, whichever experts were chosen.
#
# $b$ is a *bias*, one number per expert, zero for now. In section 2 it will push tokens away from crowded experts. It influences
# which experts are chosen, but not how much their answers count: that is why it appears in $\mathcal T$ and not in $w$.

# %% [markdown]
# Three things are easy to get wrong.
#
# - **K = 1.** Then $w = p/p = 1$ whatever the router computes. A constant has no gradient, so the router never learns. With one
#   expert per token, the weight is therefore $p$ itself, not divided.
# - **Precision.** The choice jumps: where two experts are nearly equal, rounding decides which of them computes. bfloat16 has
#   eight significant bits, so probabilities near 0.3 are 0.002 apart and many of them tie. The logits are therefore computed in
#   float32 even if the rest of the model is not.
# - **Gradient.** Choosing has no derivative. The router learns through $w$ alone, that is, from the chosen experts, and (section
#   2) through $p$.

# %% [markdown]
# ### Exercise 1 · `route`
#
# Difficulty 2 of 5 · 10 minutes · 10 points
#
# Write the formulas above for $M$ tokens at once. `p` is the softmax of `x Wᵀ`, in float32 at least: compute it in the type
# `torch.promote_types(x.dtype, torch.float32)`. Choose the `k` largest of `p + bias`, any of equal ones. Their weights are their
# `p`, divided by the sum of these `k`; for `k = 1` the weight is `p`.
#
# Here and in all that follows, do not change the arguments; the one exception is `bias` in exercise 3.


# %% tags=["exercise"]
def route(x, weight, bias, k: int):
    """x (M, D), weight (E, D), bias (E,) -> p (M, E); the chosen experts
    (M, k), int64, in any order; their weights (M, k), in the type
    of p. Gradients flow from the weights to p, and from p to x and weight.
    About 6 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.parallel.expert.exchange:route
    ### END SOLUTION


# %% tags=["grade"]
route = lab.grade(route)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Convert `x` and `weight` before you multiply them: a bfloat16 product has already lost the difference between two nearly equal
# experts.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `(p + bias).topk(k).indices` are the experts; their own p come from `p.gather(1, experts)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Divide by the sum over the chosen, with `keepdim=True` so that the shapes match. With k = 1 this would be p / p = 1, whose
# gradient is zero.
#
# </details>

# %% [markdown]
# Here is your router on 512 random tokens, with a random $W$: $512 \cdot 2 = 1{,}024$ choices, 128 per expert if they were evenly
# spread (dashed). They are not, even before anything has been learned.

# %%
x = torch.randn(512, 32, generator=torch.Generator().manual_seed(0))
W = torch.randn(8, 32, generator=torch.Generator().manual_seed(1)) / 32**0.5
p, experts, weights = route(x, W, torch.zeros(8), 2)
load = torch.bincount(experts.flatten(), minlength=8)
show.draw_load(load.tolist())

# %% [markdown]
# ## 2 · Keep the load even
#
# An uneven load reinforces itself. An expert that gets more tokens gets more gradient and becomes better, so the router is
# rewarded for choosing it more. For $K > 1$ the weights $w$ are a softmax over the *chosen* logits alone, so the row of $W$ of an
# expert that was not chosen gets no gradient from this token, and no chance to win it back.
#
# It also costs time. If each expert is on a rank of its own, all ranks wait for the one with the most rows.
#
# Two remedies are in use. You write both, and train with them in section 6.

# %% [markdown]
# **The balance loss** ([Fedus et al. 2021](https://arxiv.org/abs/2101.03961)) is added to the model's loss:
#
# $$L = E \sum_{i=1}^{E} f_i P_i, \qquad f_i = \frac{c_i}{\sum_j c_j}, \qquad
# P_i = \frac{1}{M} \sum_{t=1}^{M} p_{t,i}.$$
#
# $c_i$ counts how often expert $i$ was chosen, so $f_i$ is its share of all choices. $P_i$ is its mean probability over the $M$
# tokens. If everything is even, $f_i = P_i = 1/E$ and $L = E \cdot E \cdot 1/E^2 = 1$. If one of eight experts gets every choice
# with probability 1, $L = 8$.
#
# A count has no derivative, so the gradient comes only through $P$: $\partial L / \partial p_{t,i} = E f_i / M$. It pushes every
# token away from an expert in proportion to the expert's load.

# %% [markdown]
# On $N$ ranks each rank sees only its own tokens, but $f$ must be counted over **all** of them. Two ranks and two experts show
# why, at $K = 1$. Rank 0 has only code and sends it all to expert 0, rank 1 has only prose for expert 1, each with $p = 1$. Over
# both ranks the load is perfectly even: $f = P = (\tfrac12, \tfrac12)$, and $L = 1$. A rank that counted only its own tokens
# would find $L = 2 \cdot 1 \cdot 1 = 2$ and would fight a harmless specialization.
#
# Once every rank knows $f$, $L$ is a sum over tokens, and so a sum over ranks. With $M_\text{all}$ tokens on all ranks, rank $r$
# has the share
#
# $$L_r = E \sum_i f_i \, \frac{1}{M_\text{all}} \sum_{t \text{ on } r} p_{t,i}, \qquad \sum_r L_r = L.$$

# %% [markdown]
# ### Exercise 2 · `balance_loss`
#
# Difficulty 3 · 12 minutes · 9 points
#
# Each rank returns its share $L_r$, over its own `p`. Ranks may have different numbers of tokens, and one of them may have none.
# `torch.bincount(values, minlength=E)` counts; `group.all_reduce(counts)` sums a tensor over the ranks, in place, and returns it.
# You may send only one all-reduce, of $E$ counts. It is enough: the sum of the counts over the experts also tells how many tokens
# all ranks have.


# %% tags=["exercise"]
def balance_loss(group, p, experts) -> torch.Tensor:
    """p (M, E), experts (M, K) of this rank -> its share of E · Σ fᵢPᵢ over
    the tokens of all ranks: the shares add up to the loss of one process.
    About 5 lines."""
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
# f comes from the counts of all ranks, and K is `experts.shape[1]`, also on a rank without tokens.
#
# </details>

# %% [markdown]
# **The bias** ([Wang et al. 2024](https://arxiv.org/abs/2408.15664), used in DeepSeek-V3) is another way. After each step, with
# $\bar c$ the mean count over the experts,
#
# $$b_i \leftarrow b_i + \gamma \,\text{sign}(\bar c - c_i).$$
#
# An expert that got less than the mean becomes a little easier to choose, a crowded one a little harder. $\gamma$ has the unit of
# $b$ and $p$, a probability. At $\gamma = 0.01$ a crowded expert that leads an idle one by $p = 0.05$ has lost its lead after
# three steps, since both biases move by 0.01 per step.

# %% [markdown]
# ### Exercise 3 · `update_bias`
#
# Difficulty 2 · 5 minutes · 7 points
#
# The bias of an expert goes up by `rate` ($\gamma$) if it got less than the mean, down if it got more, and stays if it got
# exactly the mean. The counts are again those of all ranks, from one all-reduce; otherwise the ranks' biases would differ.


# %% tags=["exercise"]
def update_bias(group, bias, experts, rate: float) -> None:
    """Changes `bias` (E,) in place, alike on all ranks; experts (M, K) are
    what this rank's tokens chose in the step. About 3 lines."""
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
# Count as in the loss, all-reduce, and compare with the mean, which need not be a whole number.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.sign` gives -1, 0 or 1. Less than the mean must give +1.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `bias += …` changes the tensor that was given; `bias = bias + …` makes a new one, which nobody sees.
#
# </details>

# %% [markdown]
# ## 3 · Tokens to rows
#
# The router has chosen the experts. To compute expert by expert, the tokens of each must be adjacent in memory: then an expert is
# one large matmul instead of a small one per token.
#
# Token $t$ makes $K$ *choices*, numbered as in `experts.flatten()`. Three tokens with `experts = [[0, 2], [1, 0], [0, 1]]` make
# the choices 0 to 5, for the experts 0, 2, 1, 0, 0, 1. Each choice becomes a *row*. Sorted by expert the rows are the choices 0,
# 3, 4 (expert 0), then 2, 5 (expert 1), then 1 (expert 2), and the experts have 3, 2 and 1 rows. Within an expert you will sort
# by priority, as in the middle of the picture in section 1.

# %% [markdown]
# How many rows may an expert get?
#
# **Dropless** layers accept all of them. Buffers then change size with every step, and the busiest expert sets the pace.
#
# With a **capacity**, an expert takes at most
#
# $$C = \left\lceil \text{factor} \cdot \frac{M K}{E} \right\rceil \text{ rows},$$
#
# the even load $MK/E$ times a *capacity factor*. For the 512 tokens above, 1.25 gives 160 rows. Buffers then have a fixed size.
# An expert with too many choices keeps those of highest *priority*, here the highest $p$, and the rest is *dropped*. In the
# picture of section 1 the busiest expert keeps five of its seven rows: tokens 4 and 7 chose it with the lowest $p$.

# %% [markdown]
# ### Exercise 4 · `plan`
#
# Difficulty 4 · 16 minutes · 12 points
#
# `order[i]` is the number of the choice in row `i`. Rows are sorted by expert; within an expert they go from high to low
# `priority`, and of two equal ones the earlier choice comes first. `argsort(stable=True)` keeps equal elements in their order.
# With a `factor` each expert keeps at most its first $\lceil \text{factor} \cdot MK/E \rceil$ rows.


# %% tags=["exercise"]
import math


def plan(experts, count: int, priority, factor: float | None = None):
    """experts and priority (M, K) -> order (R,), and the rows of each of
    `count` experts (count,). A `factor` of None drops nothing, 0.0 all;
    `priority` may be any number. About 10 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.parallel.expert.exchange:plan
    ### END SOLUTION


# %% tags=["grade"]
plan = lab.grade(plan)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Sort twice: first all choices by priority, then these, stably, by expert. The second sort keeps the order of the first within
# each expert.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `first = priority.flatten().argsort(descending=True, stable=True)` is the first sort. The second sorts the experts of these
# choices, and gives positions in `first`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A row's place within its expert is its position in the whole order minus the position where its expert starts,
# `counts.cumsum(0) - counts`. Keep the places below the capacity; the counts shrink, too.
#
# </details>

# %% [markdown]
# Now the way through the layer: tokens to rows (*dispatch*), rows through the experts, answers back to tokens (*combine*). Row
# $i$ is choice $c = \text{order}_i$, and belongs to one token. The expert's answer is multiplied by the weight of that choice and
# **added** to the token, since up to $K$ rows belong to the same token:
#
# $$y_t = \sum_{c \,\text{kept, of token } t} w_c \, f_{e(c)}(x_t).$$
#
# A dropped choice is simply missing from the sum: the token's other choice keeps its weight and gets no more. The residual stream
# bypasses the layer, $x + y$, so a token whose choices were all dropped passes unchanged.

# %% [markdown]
# ### Exercise 5 · `mix`
#
# Difficulty 2 · 8 minutes · 8 points
#
# Copy the tokens to their rows, call `experts(rows, counts)` once, and add each answer, times its weight, to its token. `experts`
# is a function here, so that in exercise 6 it can be one that sends rows to other ranks. Call it even if there are no rows: the
# other ranks wait for it.


# %% tags=["exercise"]
def mix(x, weights, order, counts, experts) -> torch.Tensor:
    """x (M, D), weights (M, K) of the same type, order (R,) and counts (E,)
    from plan -> (M, D); experts maps rows (R, D) and counts to answers (R, D).
    About 4 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.parallel.expert.exchange:mix
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
# Weight the answers, not the inputs: an expert is not linear, so w·f(x) is not f(w·x).
#
# </details>
# <details><summary>Hint 3</summary>
#
# `y[tokens] += …` would keep only the last of a token's rows; `index_add` along dimension 0 adds them all.
#
# </details>

# %% [markdown]
# **Predict**: the random router of section 1 makes $512 \cdot 2$ choices among 8 experts. What share of them does a capacity
# factor of 1.0 drop? (The bars above show how uneven it is.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.1
### LAB guess = None  # a share from 0 to 1, your guess
### END SOLUTION
lab.predict("dropped", guess, unit="share")

# %%
priority = p.gather(1, experts)
dropped = {}
for factor in (0.5, 1.0, 1.25, 1.5, 2.0):
    order, _ = plan(experts, 8, priority, factor)
    dropped[factor] = 1 - len(order) / experts.numel()
lab.reveal("dropped", dropped[1.0])

# %% [markdown]
# With a factor of 1.0 there is room for every choice, but not always at its own expert: one expert has rows to spare while
# another drops choices.

# %%
rows = [
    {"capacity factor": c, "choices dropped (%)": round(100 * share, 1)}
    for c, share in dropped.items()
]
show.table(rows)

# %% [markdown]
# A quarter more room is enough here, because the tokens are random. Real text is less even, as section 6 shows.
#
# **Explore** a router that has favourites. Nothing is trained here: its logits are noise plus a preference, from `+skew` for the
# favourite expert to `-skew` for the least favoured. At a skew of 0 a capacity of 1.25 drops nothing. At a skew of 1 a capacity
# of 2 still drops 5%, and every expert pays for such a buffer. Turn the bias on, and 1.25 drops nothing.

# %%
from minitrain.lab.drawing.expert_load import skewed_load


def draw(ax, skew, bias, capacity):
    show.draw_load(skewed_load(skew, bias == "on"), factor=capacity, ax=ax)


widgets.explore(
    draw,
    skew=(0.0, 2.0, 1.0),
    bias=["off", "on"],
    capacity=([1.0, 1.25, 1.5, 2.0], 1.25),
)

# %% [markdown]
# ## 4 · Experts on other ranks
#
# $E$ experts have $E$ times the weights, gradients and optimizer states of one. So they are distributed: in **expert
# parallelism** ([GShard](https://arxiv.org/abs/2006.16668)) rank $r$ of $N$ holds the experts $rE/N$ to $(r+1)E/N - 1$. Each rank
# also has its own tokens, as in data parallelism. A row whose expert is on another rank must be sent there, and its answer back.
# Every rank has something for every other: an **all-to-all**.
#
# In the picture a colour is an expert. Follow one row through the five columns.

# %%
ideas.expert_exchange()

# %% [markdown]
# In the first column the rows are sorted by expert, so those for one rank are contiguous. The first all-to-all sends these
# pieces. In the second column a rank has the rows from rank 0, by expert, then those from rank 1, so expert 0 appears twice. To
# give each expert *one* matmul, the rank sorts its rows (third column), computes, and undoes the sorting (fourth). The last
# all-to-all returns the answers, each to where its row was.

# %% [markdown]
# The picture omits that a rank does not know how many rows will arrive, or for which of its experts. So the counts are sent
# first, in a small all-to-all of their own. Now move the slider to an uneven load: rank 0 computes 9 of 12 rows, while rank 1
# waits.

# %% [markdown]
# **What about the gradients?** The backward of an all-to-all is an all-to-all in the other direction, and autograd does it for
# us. An expert's rows came from all ranks, and so do the gradients of its answers. Its weight gradient
#
# $$\frac{\partial \ell}{\partial \theta_e} = \sum_{\text{ranks } r} \; \sum_{t \text{ on } r,\; e \in \mathcal T_t}
# \frac{\partial \ell}{\partial f_e(x_t)} \frac{\partial f_e(x_t)}{\partial \theta_e}$$
#
# is then already the sum over the tokens of *all* ranks, without any all-reduce. ($\ell$ is the model's loss over all tokens, of
# which each rank computes its share; $\theta_e$ are the weights of expert $e$.) Averaging it over the ranks, as in data
# parallelism, would make it $N$ times too small.

# %% [markdown]
# ### Exercise 6 · `exchange`
#
# Difficulty 5 · 22 minutes · 14 points
#
# First the counts: `group.all_to_all(output, input)` cuts `input` into `group.size` equal pieces, one for each rank, and returns
# `output`. Then the rows: `all_to_all(rows, group, sent, got)` takes two lists, the numbers of rows sent to and received from
# each rank; gradients flow through it. The rows arrive sorted by source, then by expert; `experts` needs them sorted by expert,
# in one call. Undo the sorting; then a third all-to-all returns the answers. Nothing else is sent.

# %% tags=["exercise"]
from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts) -> torch.Tensor:
    """rows (R, D) by expert, counts (E,) -> answers (R, D) in the same order.
    `experts(rows, counts)` computes this rank's E/N experts, from all ranks' rows
    by expert and the number of rows of each (E/N,). About 9 lines."""
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
# `leaving = counts.view(N, E/N)` is what goes to each rank, for each of its experts. After the all-to-all, `arriving` (N, E/N) is
# what comes from each rank, for each of yours.
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
# Sort the arrived rows stably by their expert, and undo an order with its own `argsort()`. On the way back the two lists of
# `all_to_all` are exchanged.
#
# </details>

# %% [markdown]
# **Run** your functions as a layer. `Mixture` takes a whole layer of the course (`moe`) and keeps only this rank's experts. Its
# `forward` is `route`, `plan`, `exchange`, `mix`. It is dropless, and only counts the choices that a capacity of 1.25 would have
# dropped.

# %% tags=["experiment"]
from minitrain.model.experts.grouped import Experts


class Mixture(torch.nn.Module):
    def __init__(self, group, moe):
        super().__init__()
        self.group, self.k = group, moe.router.per_token
        self.router = moe.router.weight
        E, D, F = moe.experts.gate.shape
        self.register_buffer("bias", torch.zeros(E))
        self.experts = mine = Experts(E // group.size, D, F).to(self.router)
        for own, whole in zip(mine.parameters(), moe.experts.parameters()):
            own.data.copy_(whole.data.chunk(group.size)[group.rank])

    def forward(self, x):
        flat, E = x.flatten(0, 1), len(self.bias)
        self.p, self.chosen, w = route(flat, self.router, self.bias, self.k)
        priority = self.p.gather(1, self.chosen).detach()
        kept, _ = plan(self.chosen, E, priority, 1.25)
        self.dropped = self.chosen.numel() - len(kept)
        order, counts = plan(self.chosen, E, priority)
        far = partial(exchange, self.group, self.experts)
        return mix(flat, w, order, counts, far).view(x.shape)


# %% [markdown]
# Two small models of one layer: `sparse` has the experts, and `dense` an MLP with the FLOPs of $K$ experts, for section 7.

# %%
from minitrain.model.transformer import build

E, K, width, inner = (lab.size(n) for n in ("experts", "k", "width", "inner"))
dense = preset("1M", hidden_size=width, ffn_size=inner, layers=1)
mixture = {"experts": E, "expert_ffn_size": inner // K}
no_losses = {"sequence_balance": 0.0, "z_loss": 0.0}  # none but yours
sparse = preset("1M-moe", hidden_size=width, layers=1, **mixture, **no_losses)

# %% [markdown]
# Eight texts pass through your layer on four ranks, two on each, and through the course's own layer on one rank, in float64. The
# gradients of all experts must agree, though they were never reduced over the ranks.

# %% tags=["nbval-check-output"]
text = torch.randint(512, (8, 16), generator=torch.Generator().manual_seed(0))


def gradients_of(experts):
    """(experts, numbers): those of gate, up and down, side by side."""
    return torch.cat([w.grad.flatten(1) for w in experts.parameters()], dim=1)


def gradients(group):
    model = build(sparse, dtype=torch.float64)
    model.blocks[0].mlp = Mixture(group, model.blocks[0].mlp)
    model(text.chunk(group.size)[group.rank]).square().sum().backward()
    return gradients_of(model.blocks[0].mlp.experts)


one = build(sparse, dtype=torch.float64)
one(text).square().sum().backward()
four = torch.cat(list(launch(gradients, ranks=4)))
gap = (four - gradients_of(one.blocks[0].mlp.experts)).abs().max().item()
print("largest difference of an expert's gradient is below 1e-10:", gap < 1e-10)

# %% [markdown]
# ## 5 · Bytes sent
#
# Experts pay for their parameters with communication. How much?
#
# **Predict**: 4 ranks have 1,024 tokens each, $K = 2$, and a row is $D = 32$ numbers of float32, 4 bytes each. The load is even.
# How many bytes does a rank send to *other* ranks in one *forward*?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 2 * 2048 * 3 / 4 * 32 * 4
### LAB guess = None  # bytes, your guess
### END SOLUTION
lab.predict("forward_bytes", guess, unit="B")

# %% [markdown]
# The next cell runs your layer on random tokens, forward and backward. `group.trace` has counted every message, so the bytes are
# measured. The function also counts the rows that left the rank and those that arrived.

# %% tags=["experiment"]
M = lab.size("tokens")


def layer_bytes(group):
    torch.manual_seed(group.rank)
    layer = Mixture(group, build(sparse).blocks[0].mlp)
    y = layer(torch.randn(1, M, width, requires_grad=True))
    forward = [op.sent_bytes for op in group.trace.select("all_to_all")]
    y.sum().backward()
    both = [op.sent_bytes for op in group.trace.select("all_to_all")]
    load = torch.bincount(layer.chosen.flatten(), minlength=E)
    to = load.view(group.size, -1).sum(1)  # rows for each rank
    came = group.all_to_all(torch.empty_like(to), to)
    return {
        "rows_out": int(to.sum() - to[group.rank]),
        "rows_in": int(came.sum() - came[group.rank]),
        "count_bytes": forward[0],
        "forward_bytes": sum(forward[1:]),
        "backward_bytes": sum(both) - sum(forward),
        "messages": len(both),
    }


# %% tags=["experiment"]
traffic = []
for n in lab.size("ranks"):
    for rank, row in enumerate(launch(layer_bytes, ranks=n)):
        sizes = {"ranks": n, "rank": rank, "tokens": M, "k": K, "width": width}
        traffic.append({**sizes, **row})

# %% tags=["grade"]
lab.experiment("traffic", traffic)

# %%
ns = lab.size("ranks")
sent = {n: [] for n in ns}  # kB
for row in traffic:
    sent[row["ranks"]].append(row["forward_bytes"] / 1e3)
mean = [sum(sent[n]) / n for n in ns]
on_four = 1e3 * mean[ns.index(4)]
lab.reveal("forward_bytes", on_four, ranks=4, tokens=M, k=K, width=width)

# %% [markdown]
# **Explain**: a rank has $MK$ rows, with $M$ its own tokens. If the load is even, a row's expert is on the same rank with
# probability $1/N$, and elsewhere with $(N-1)/N$. The rank sends these rows, and the *answers* to the rows it received, as many
# on average. With $s$ bytes per number, a rank sends
#
# $$B = 2 \cdot M K \cdot \frac{N-1}{N} \cdot D \cdot s \text{ bytes}, \qquad
# 2 \cdot 1{,}024 \cdot 2 \cdot \tfrac34 \cdot 32 \cdot 4 = 393{,}216$$
#
# for $N = 4$, and 458,752 for $N = 8$. The fraction tends to 1: from 8 ranks to 1,000 the bytes grow by a seventh. A layer that
# sent every row to *every rank* would grow with $N$. Backward sends the same bytes again, the gradients of answers and rows.
#
# The folded cell draws your bytes, $B$ (even load), and every row sent to every rank (all to everyone).

# %% tags=["folded"]
even = [2 * M * K * (n - 1) / n * width * 4 / 1e3 for n in ns]
low, high = ([f(sent[n]) for n in ns] for f in (min, max))
evenly = {"even load": (ns, even)}
everyone = {"all to everyone": (ns, [n * b for n, b in zip(ns, even)])}
sizes = f"D = {width}, K = {K}, {M:,} tokens a rank"
with show.canvas(columns=2) as (figure, axes):
    for ax, theory, title in (
        (axes[0], evenly | everyone, sizes),
        (axes[1], evenly, "Enlarged (shaded: the ranks' range)"),
    ):
        show.lines(
            {"mean of the ranks": (ns, mean)},
            theory=theory,
            band={"mean of the ranks": (low, high)},
            x="ranks",
            y="sent in a forward (kB a rank)",
            title=title,
            ax=ax,
        )
        ax.lines[0].set_linestyle("")  # markers, on the dashes
        ax.set_xticks(ns)
        ax.set_ylim(0, None)
show.figure(
    figure,
    alt="Kilobytes a rank sends against ranks: on the formula for even loads.",
    caption=f"On {ns[-1]} ranks {low[-1]:.0f} to {high[-1]:.0f} kB, counted.",
)

# %% [markdown]
# Ranks differ, since a rank with popular experts sends more answers.
#
# **Can the exchange hide behind the computation?** Compare times, on paper. A GPU of $\Phi$ FLOP/s computes $MK$ rows in
# $t_c = MK \cdot 6DF / \Phi$, as an expert has $3DF$ weights of two FLOPs each. A link of $\beta$ bytes/s needs $t_x = B / \beta$
# for the two all-to-alls. In the ratio, $M$, $K$ and $D$ cancel:
#
# $$\frac{t_x}{t_c} = \frac{2 s \,(N-1)/N}{6F} \cdot \frac{\Phi}{\beta}.$$
#
# Of the model only $F$ remains, the width inside an expert. An expert that is wide enough computes for as long as its rows are
# sent.

# %% [markdown]
# The next cell computes this ratio for H100s and bfloat16 ($s = 2$). $\Phi$ and $\beta$ are published measurements, 794.5
# TFLOP/s, 362 GB/s (NVLink) and 36.75 GB/s (InfiniBand); the ratio itself has not been measured.

# %%
from minitrain.network.fabric import H100

LINKS = {"NVLink": 362e9, "InfiniBand": 36.75e9}  # bytes/s a GPU, as in e02


def ratio(inner, link, n=64):
    """Seconds of two all-to-alls over those of the experts, for one number of
    one row: there and back 2 bytes each, and 6·F FLOPs in an expert."""
    return (2 * 2 * (n - 1) / n / LINKS[link]) / (6 * inner / H100.flops)


# %%
rows = []
for model, inner_width in {"Mixtral 8x7B": 14336, "DeepSeek-V3": 2048}.items():
    row = {"model": model, "F": inner_width}
    for link in LINKS:
        row[f"exchange / compute, {link}"] = f"{ratio(inner_width, link):.2f}"
    rows.append(row)
show.table(rows, caption="64 ranks, all on one such network, computed")

# %% [markdown]
# Below 1 the exchange can hide, above 1 the GPUs wait. Over InfiniBand, Mixtral's experts are just wide enough. DeepSeek-V3's are
# seven times narrower, since many fine-grained experts can specialize better. So it has to reduce communication: it sends each
# token to at most four nodes, in FP8, and computes another microbatch meanwhile.
#
# **Question**: from which $F$ on do the experts take at least as long as the all-to-alls over **NVLink**, on 64 ranks?

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
# Now a real training run: does an uneven load stay uneven? Tiny models learn the course's corpus on two real ranks, each with
# half of the experts. Three are mixtures: one is left **alone**, one has the balance **loss**, one the **bias**. A fourth is
# **dense**: its MLP has the FLOPs of $K$ experts.
#
# `floor` is the known entropy of the held-out text: no model can have a lower loss.

# %%
from minitrain.data.corpus import make_corpus
from minitrain.data.loader import Loader
from minitrain.data.packing import pack
from minitrain.data.tokenizer import train_tokenizer

size = lab.size("corpus_bytes")
corpora = make_corpus(size, seed=1), make_corpus(25_000, seed=2)
tokenizer = train_tokenizer(corpora[0].documents[:1500])
floor = corpora[1].entropy_per_token(tokenizer)
ids = [tokenizer.encode_batch(corpus.documents) for corpus in corpora]
packed = [pack(texts, lab.size("length"), tokenizer.end_token) for texts in ids]

# %% [markdown]
# The next cell computes the gradients of one step. The loss is divided by the tokens of *all* ranks, so the ranks' gradients add
# up to those of one process. For the router, attention and embeddings, that sum is an all-reduce. For an expert the exchange has
# already made it (section 4), so `.experts.` is left out.

# %% tags=["experiment"]
from minitrain.training.loss import token_weighted_loss


def loss_of(model, batch, tokens):
    logits = model(batch.tokens, batch.documents, batch.positions)
    return token_weighted_loss(logits, batch.targets, tokens)


def backward(group, model, batch, how):
    tokens = group.all_reduce(torch.tensor(batch.tokens_counted))
    loss = loss_of(model, batch, tokens)
    if how == "loss":
        layer = model.blocks[0].mlp
        loss = loss + 0.05 * balance_loss(group, layer.p, layer.chosen)
    loss.backward()
    for name, parameter in model.named_parameters():
        if ".experts." not in name:
            group.all_reduce(parameter.grad)


# %% [markdown]
# The folded cell has the loop around it, the same for all four: AdamW with warm-up and cosine, and after each step `update_bias`
# with $\gamma = 0.01$ where the bias is used. It makes the table `balance`, one row per router and step: `most` is the busiest
# expert's load over an even one, `idle` how many experts got nothing, and `dropped` the share of choices that a capacity of 1.25
# would drop. The cell takes 15 to 30 seconds.

# %% tags=["experiment", "folded"]
from minitrain.optimizers.adamw import adamw
from minitrain.optimizers.learning_rate import warmup_cosine

steps, rate, batch_rows = (lab.size(n) for n in ("steps", "lr", "batch"))


def trained(group, how):
    """Each expert's load and what 1.25 drops, by step; the held-out loss."""
    model, loads = build(dense if how == "dense" else sparse, seed=0), []
    if how != "dense":
        model.blocks[0].mlp = Mixture(group, model.blocks[0].mlp)
    layer, optimizer = model.blocks[0].mlp, adamw(model, lr=rate)
    loader = Loader(packed[0], batch_rows, group.rank, group.size, seed=0)
    for step, batch in zip(range(steps), loader):
        for settings in optimizer.param_groups:
            settings["lr"] = warmup_cosine(step, steps, steps // 20, rate)
        backward(group, model, batch, how)
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


kinds = ("dense", "alone", "loss", "bias")
runs = {how: launch(trained, how, ranks=2)[0] for how in kinds}
balance = [
    {
        "router": how,
        "step": step,
        "choices": sum(load),
        "most": max(load) * E / sum(load),
        "idle": load.count(0),
        "dropped": dropped / sum(load),
    }
    for how, (loads, _) in runs.items()
    for step, (load, dropped) in enumerate(loads)
]

# %% tags=["grade"]
lab.experiment("balance", balance)


# %% [markdown]
# The picture of the title, with your own numbers: a line is an expert. On real text the random router starts uneven. Left alone
# it stays so, though it gets no worse in so few steps: in our run four of eight experts end above the capacity, and one gets 2%.
# With the loss or the bias all come together, and only 0.2% of the choices exceed the capacity, instead of 12%.


# %% tags=["picture", "folded"]
def panel(ax, how):
    """The shares of each expert's choices, means of four steps."""
    loads = torch.tensor([load for load, _ in runs[how][0]]).double()
    shares = 100 * loads / loads.sum(1, keepdim=True)  # (steps, E)
    means = shares.unflatten(0, (-1, 4)).mean(1)
    for e, line in enumerate(means.T):
        style = {"linewidth": 1.5, "linestyle": "--" if e == 7 else "-"}
        ax.plot(
            [4 * i + 1.5 for i in range(len(line))],
            line,
            color=show.COLORS[e % 7],
            **style,
        )
    ends = [row["dropped"] for row in balance if row["router"] == how][-10:]
    words = {"alone": "Left alone", "loss": "Balance loss", "bias": "Bias"}[how]
    ax.set_title(f"{words}: {sum(ends) / len(ends):.1%} dropped")
    ax.axhline(100 / E, color="#222222", linestyle=":", linewidth=1.2)
    ax.axhline(125 / E, color="#222222", linewidth=1.2)
    ax.set(xlabel="step", ylim=(0, 34))


with show.canvas(columns=3, width=9.6, height=4) as (figure, axes):
    for ax, how in zip(axes, ("alone", "loss", "bias")):
        panel(ax, how)
    axes[0].set_ylabel("choices that an expert got (%)")
    beside = {
        "xycoords": ("axes fraction", "data"),
        "va": "center",
        "annotation_clip": False,
    }
    for word, height in (("even", 100 / E), ("capacity\n1.25", 125 / E + 0.5)):
        axes[2].annotate(word, (1.02, height), **beside)
show.figure(
    figure,
    alt="Percent of the choices that each of eight experts got, over steps: "
    "left alone they stay apart, with the loss or the bias they come together.",
    caption="A line is an expert, means of four steps. Dropped: what lies over "
    "the capacity on a rank, mean of the last ten steps.",
)

# %% [markdown]
# A dropless layer also computes the rows above the capacity, and all other ranks wait for the one with the busiest expert. These
# are the last ten steps.

# %%
ends = []
for step in range(steps - 10, steps):
    here = [row for row in balance if row["step"] == step]
    times = {row["router"]: round(row["most"], 3) for row in here}
    ends.append({"step": step, **times})
show.table(ends, caption="busiest expert's choices over an even load (times)")

# %% [markdown]
# **Question**: in the last ten steps, how many times an even load did the busiest expert get, on average, left **alone**? (In
# your table `balance` that is the column `most`.)

# %% tags=["question"]
### BEGIN SOLUTION
most = [row["most"] for row in balance if row["router"] == "alone"][-10:]
busiest = sum(most) / len(most)
### LAB busiest = None  # your answer, a factor
### END SOLUTION

# %% tags=["grade"]
lab.answer("busiest", busiest)

# %% [markdown]
# **Question**: which of the two remedies gives the weights of the *model* a gradient of its own, besides that of the language
# loss: `"loss"`, `"bias"`, `"both"` or `"neither"`?

# %% tags=["question"]
### BEGIN SOLUTION
interferes = "loss"
### LAB interferes = None  # your answer: "loss", "bias", "both" or "neither"
### END SOLUTION

# %% tags=["grade"]
lab.answer("interferes", interferes)

# %% [markdown]
# The balance loss has a price: its gradient goes through $p$ to $W$ and into the rest of the model. The bias appears in no
# derivative.

# %% [markdown]
# ## 7 · At equal FLOPs
#
# All four models saw the same text in the same number of steps, and each token cost the same FLOPs up to the router's own 1%.
# What did the additional parameters bring? The loss is measured on held-out text, and drawn as its distance to the floor.

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
)

# %%
rows = []
for row in equal_flops:
    shown = {"model": row["model"], "parameters": row["parameters"]}
    shown["active parameters"] = row["active"]
    kflop, distance = row["flops_per_token"] / 1e3, row["loss"] - floor
    shown["kFLOP a token, forward and backward"] = round(kflop, 1)
    shown["loss above the floor (nats per token)"] = round(distance, 3)
    rows.append(shown)
show.table(rows)

# %% tags=["grade"]
lab.experiment("equal_flops", equal_flops)

# %% [markdown]
# **Explain**: for the same FLOPs the mixture has 1.4 times the parameters of the dense model, and in our run its loss came 10 to
# 14% closer to the floor. The three mixtures are within 0.03 nats of each other, and this is one seed: no reason to prefer a
# remedy.
#
# Why so little, with eight experts? Each expert saw only $K/E$, a quarter, of the tokens, and 80 steps are few. Longer runs found
# more: [Switch Transformer](https://arxiv.org/abs/2101.03961) reports the quality of T5-Base in a seventh of the time.

# %% [markdown]
# **Takeaway**: experts pay for parameters with bytes. On eight ranks a rank of your layer sent 460 kB in a forward, where
# $2MK\,D\,s\,(N-1)/N$ gives 459 kB. Left alone, the router sent 12% of all choices over a capacity of 1.25; with the loss or the
# bias, 0.2%.
#
# > **On GPUs.** With a GPU this lab trains 300 steps instead of 80; the bytes stay the same. It has not been run over
# > several GPUs yet, and the ratios in section 5 are computed.

# %%
lab.score(read="minitrain/parallel/expert/exchange.py")

# %% [markdown]
# Next: [e02e · Context parallel](e02e_context_parallel.ipynb) splits the text itself, where it is too long for one rank.
