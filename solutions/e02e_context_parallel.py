# %% [markdown]
# # e02e · Context parallel
#
# **A text too long for one GPU is split over ranks, and keys travel to the queries. You write ring attention forward and
# backward, the zig-zag order that balances it, and Ulysses, and measure how much each rank sends, keeps and computes.**
#
# 150 minutes · CPU is enough · before: [e02b · Tensor parallel](e02b_tensor_parallel.ipynb) · [map of the course](index.ipynb)
#
# You build the merge of partial attentions, two rings, an order of tokens, and two all-to-alls. By the end you will have made
# this picture: which rank computes which half-block of a causal mask, and in which step.
#
# ![Causal mask of 4 ranks, contiguous and zig-zag, each half-block in its rank's colour with the number of its step; bars of FLOPs below](../labs/pictures/e02e_context_parallel.png)

# %% tags=["setup"]
from functools import partial
import torch
from minitrain.lab import Lab, ideas, show
from minitrain.ranks.launch import launch

lab = Lab("e02e_context_parallel")

# %% [markdown]
# ## 1 · Merge two partial answers
#
# Activations grow with the length of the text. When those of one text no longer fit on a GPU, the text itself is split: each of
# $N$ ranks holds $T/N$ of its $T$ tokens. Norms, MLPs and the loss work on each token alone, so nothing changes for them.
# Attention is different: a query reads the keys of *all* earlier tokens, and most of them are now on other ranks.

# %% [markdown]
# A rank could gather all keys first. But if it can compute attention to one set of keys, then to the next, and **merge** the
# answers, it never needs them all at once. The picture shows this for one query and eight keys. The height of a bar is the
# exponential of a score; the key's value is below it. Move the cut: the two answers change, but the merged one does not.

# %%
ideas.merged_attention()

# %% [markdown]
# Why does it work? Let $s_j = q \cdot k_j / \sqrt C$ be the score of key $j$, with $C$ the size of a head, and $v_j$ its value.
# Over a set $A$ of keys, attention is the mean of their values, weighted by $e^{s_j}$:
#
# $$o_A = \frac{1}{Z_A} \sum_{j \in A} e^{s_j} v_j, \qquad Z_A = \sum_{j \in A} e^{s_j}.$$
#
# $Z_A$ is the total weight of the set. For two sets without a common key both sums just add up, so
#
# $$Z = Z_A + Z_B, \qquad o = \frac{Z_A}{Z}\, o_A + \frac{Z_B}{Z}\, o_B.$$
#
# In the picture, with the cut after three keys, the sets have the weights 3.5 and 4.5, so their answers count 3.5/8 and 4.5/8. Of
# each set you only need to keep its answer and its weight.

# %% [markdown]
# The weight is kept as a logarithm, $\text{lse}_A = \log Z_A$ (for log-sum-exp), because there are scores of 1,000, and
# $e^{1000}$ overflows: float32 ends near $e^{88.7}$. In logarithms
#
# $$\text{lse} = \log\left(e^{\text{lse}_A} + e^{\text{lse}_B}\right), \qquad \frac{Z_A}{Z} = e^{\text{lse}_A - \text{lse}},$$
#
# and the exponent of the share is never above 0. There is one special case: a query that may read no key of a set. For it
# $Z_A = 0$, lse is $-\infty$ and the answer is 0. If this holds for both sets, $-\infty - (-\infty)$ would be NaN.
#
# `attend` below returns both for one set of keys. Its `offset` is the position in the text of the first query minus that of the
# first key: its query $i$ may read keys 0 to $i$ + `offset`.


# %%
def attend(q, k, v, offset):
    """q (B, H, I, C), k, v (B, K, J, C) -> out, the values' mean weighted by
    softmax, and lse, log Σ exp(score): its weight. Query i reads keys 0
    to i + offset."""
    exact = torch.promote_types(q.dtype, torch.float32)
    readers = q.shape[1] // k.shape[1]  # query heads of one key head
    k, v = (z.repeat_interleave(readers, dim=1) for z in (k, v))
    scores = (q.to(exact) / q.shape[-1] ** 0.5) @ k.to(exact).mT  # (B, H, I, J)
    rows = torch.arange(q.shape[2])[:, None] + offset
    scores.masked_fill_(torch.arange(k.shape[2]) > rows, -torch.inf)
    lse = scores.logsumexp(dim=-1)  # (B, H, I)
    base = lse.masked_fill(lse == -torch.inf, 0)
    return scores.sub_(base[..., None]).exp_() @ v.to(exact), lse


# %% [markdown]
# ### Exercise 1 · `merge`
#
# Difficulty 2 of 5 · 8 minutes · 8 points
#
# Return the answer and the lse over both sets of keys. `torch.logaddexp` computes the logarithm above without overflow. A row
# that could read no key of either set must give `out` 0 and `lse` $-\infty$, not NaN.


# %% tags=["exercise"]
def merge(out, lse, new_out, new_lse) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to two sets of keys -> to both; out (B, H, T, C) and
    lse (B, H, T), all of one dtype. It may write into its arguments; no other
    function of this lab may. About 5 lines."""
    ### BEGIN SOLUTION
    both = torch.logaddexp(lse, new_lse)
    base = both.masked_fill(both == -torch.inf, 0)
    share = (lse - base).exp()[..., None]
    new_share = (new_lse - base).exp()[..., None]
    return out * share + new_out * new_share, both
    ### END SOLUTION


# %% tags=["grade"]
merge = lab.grade(merge)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `both = torch.logaddexp(lse, new_lse)`. A share has shape (B, H, T), and `[..., None]` lets it multiply `out`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `-inf - -inf` is NaN. Where `both` is -inf, subtract 0 instead: exp(-inf - 0) is 0.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `masked_fill` makes this base from `both`. Each set's share is the exponential of its own lse minus the base; `both` itself is
# returned as it is.
#
# </details>

# %% [markdown]
# ## 2 · Keys travel around a ring
#
# Now the keys must travel. In **ring attention** ([Liu et al. 2023](https://arxiv.org/abs/2310.01889)) the $N$ ranks form a ring.
# Each starts with its own block of keys and values. In every step it computes attention of its queries to the block it has, sends
# the block on to the rank on its right, and receives the next from its left. After $N$ steps it has seen all blocks, and besides
# its own it never held more than two at a time.

# %% [markdown]
# In the picture rows are queries and columns are keys, for a text in eight pieces. Each rank has two pieces of both, so its block
# of keys is two columns wide. A square is a *half-block* of the mask. Coloured squares are computed in this step, by the rank of
# that colour; a number is the step that computes the square. Steps are counted from 0. Move `step`; the slider `order` is for
# section 3.

# %%
ideas.ring_attention()

# %% [markdown]
# In step $s$ a rank has the block of the rank $s$ places to its left. A block makes $N-1$ hops; one more would only bring it back
# to its owner, who no longer needs it.
#
# What does this communication cost? Let a step compute for $t_c$ seconds, and a message take $t_x$. One after the other they take
# $t_c + t_x$. But a block can already be on its way to the next rank while it is being read: if the message is started *before*
# the computation, and waited for *after* it, a step takes $\max(t_c, t_x)$. If $t_x \le t_c$, the ring costs no time.
#
# `pass_on` starts a message and returns a function that waits for the tensor from the left and returns it.


# %%
def pass_on(group, tensor):
    """Starts sending `tensor` to the right; calling the result waits for the
    tensor from the left, and returns it."""
    left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    arriving = group.irecv(torch.empty_like(tensor), left)
    leaving = group.isend(tensor, right)
    return lambda: (leaving.wait(), arriving.wait())[1]


# %% [markdown]
# ### Exercise 2 · `around`
#
# Difficulty 3 · 8 minutes · 10 points
#
# `around` is a generator: it yields one block after the other, and its caller computes between two of them. A message started
# before a `yield` travels during that time.


# %% tags=["exercise"]
def around(group, block: torch.Tensor):
    """A generator of (owner, block), N times: this rank's own, then the left
    neighbour's, …

    Each arrives from the left and goes on to the right, N-1 messages: the
    last block goes no further. Call `pass_on` *before* a block is yielded,
    and its result when the caller comes back for the next. About 5 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.parallel.collectives.overlapped:around
    ### END SOLUTION


# %% tags=["grade"]
around = lab.grade(around)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# In step s you hold the block of rank `(group.rank - s) % group.size`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A loop of N steps: start (except in the last), yield, finish.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `pass_on` returns a function. Call it only when the caller comes back, that is, after the `yield`; its result is the next block.
#
# </details>

# %% [markdown]
# ## 3 · Late tokens cost more
#
# Under a causal mask token $i$, counted from 0, reads $i + 1$ keys. If the text is cut into $N$ consecutive runs, the last rank
# has the longest rows of the mask.
#
# **Predict**: four ranks, a long text. For each rank, count the pairs (query of this rank, key that it may read). How many times
# the first rank's count is the last rank's?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 7
### LAB guess = None  # times, your guess
### END SOLUTION
lab.predict("last_over_first", guess)

# %%
i = torch.arange(4000).view(4, -1)  # the tokens of each rank
pairs = (i + 1).sum(1)
lab.reveal("last_over_first", (pairs[3] / pairs[0]).item(), ranks=4)

# %% [markdown]
# **Explain**: rank $r$ holds the tokens from $rT/N$ up to $(r+1)T/N$. For a long text the sum of $i + 1$ over them is the area
# under a line,
#
# $$\text{pairs}_r = \frac12 \left[ \left(\frac{(r+1)\,T}{N}\right)^{2} - \left(\frac{rT}{N}\right)^{2} \right]
# = (2r + 1) \cdot \frac{T^2}{2N^2},$$
#
# so the work of four ranks is as 1 : 3 : 5 : 7. The mean is 4, and since all wait for the slowest, the text takes 7/4 of the time
# of an even distribution.

# %% [markdown]
# The same formula shows the remedy. Cut the text into $2N$ chunks of $T/2N$ tokens; chunk $c$ costs $2c + 1$ units of $T^2/8N^2$.
# Give rank $r$ an early chunk and the late one that mirrors it, $r$ and $2N - 1 - r$:
#
# $$(2r + 1) + \big(2(2N - 1 - r) + 1\big) = 4N,$$
#
# the same for every $r$. This is **zig-zag** order ([Llama 3](https://arxiv.org/abs/2407.21783), section 3.3.2). Of two ranks,
# one has the chunks 0 and 3, the other 1 and 2. Set `order` in the picture of section 2 to zigzag: in every step all four ranks
# have equally much to do.

# %% [markdown]
# ### Exercise 3 · `zigzag`
#
# Difficulty 2 · 8 minutes · 8 points
#
# Return which tokens each rank holds, as positions in the text, and the index that brings all ranks' tokens back into the order
# of the text.


# %% tags=["exercise"]
def zigzag(length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """-> places (N, T/N): the tokens that each rank holds, its early chunk
    first; and inverse (T,): all ranks' tokens side by side, indexed by it,
    are the text. Both int64.

    A length that 2N does not divide raises a ValueError. About 6 lines."""
    ### BEGIN SOLUTION
    if length % (2 * size):
        raise ValueError(f"{length} tokens are not {2 * size} equal chunks")
    chunks = torch.arange(length).view(2 * size, -1)  # (2N, T/2N)
    places = torch.cat([chunks[:size], chunks[size:].flip(0)], dim=1)
    return places, places.flatten().argsort()
    ### END SOLUTION


# %% tags=["grade"]
zigzag = lab.grade(zigzag)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `torch.arange(length).view(2 * size, -1)` has one chunk per row.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The first N rows are the early chunks; the last N, reversed by `.flip(0)`, are the late ones. Join them along dim 1.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `places.flatten()` is a permutation, and `argsort` of a permutation is its inverse.
#
# </details>

# %% [markdown]
# ## 4 · The ring
#
# A rank now holds two runs of tokens that are far apart in the text, and so does every block that it receives. That makes four
# pairs of *halves* per step, and each pair has its own `offset`: the position of its first query minus that of its first key. All
# halves are equally long, which leaves three cases.
#
# - `offset > 0`: all these keys come before all these queries. The whole half-block is computed.
# - `offset == 0`: the same half, on the diagonal. A triangle is read.
# - `offset < 0`: every key comes after every query. **Nothing** is computed.
#
# With two ranks, rank 0 (chunks 0 and 3) gets the block of rank 1 (chunks 1 and 2). Its chunk 3 reads both, its chunk 0 neither.

# %% [markdown]
# `halves` yields the four pairs, and `nothing_read` returns the answer before any key was read, from which merging starts.


# %%
def halves(places, rank, owner):
    """A rank's two runs of tokens with the owner's two: rows, keys, offset."""
    half = places.shape[1] // 2
    for rows in (slice(0, half), slice(half, 2 * half)):
        for keys in (slice(0, half), slice(half, 2 * half)):
            offset = places[rank, rows][0] - places[owner, keys][0]
            yield rows, keys, int(offset)


def nothing_read(q):
    """Where merging starts; in float32: N parts must not be rounded N times."""
    exact = torch.promote_types(q.dtype, torch.float32)
    lse = q.new_full(q.shape[:3], -torch.inf, dtype=exact)
    return torch.zeros_like(q, dtype=exact), lse


# %% [markdown]
# ### Exercise 4 · `ring_forward`
#
# Difficulty 4 · 15 minutes · 12 points
#
# Take each block as it comes `around`, and each pair of its `halves` with yours. Where there is something to read, call
# `attend(q, k, v, offset)` on those rows and keys, and merge the result into those rows, while the next block travels. Do not
# keep a partial result any longer: N of them would be as large as the answer for the whole text.


# %% tags=["exercise"]
def ring_forward(group, places, q, kv) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, H, T/N, C), kv (2, B, K, T/N, C), this rank's -> out, in q's
    dtype, and lse (B, H, T/N), in the dtype of nothing_read's.
    `places` (N, T/N): any two runs per rank. `kv` travels as it is, in
    its own dtype. About 8 lines."""
    ### BEGIN SOLUTION
    out, lse = nothing_read(q)
    for owner, (k, v) in around(group, kv):
        for rows, keys, offset in halves(places, group.rank, owner):
            if offset >= 0:
                own = out[:, :, rows], lse[:, :, rows]
                found = attend(q[:, :, rows], k[:, :, keys], v[:, :, keys], offset)
                out[:, :, rows], lse[:, :, rows] = merge(*own, *found)
    return out.to(q.dtype), lse
    ### END SOLUTION


# %% tags=["grade"]
ring_forward = lab.grade(ring_forward)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Start with `out, lse = nothing_read(q)`, then `for owner, (k, v) in around(group, kv):`. Keys keep their K heads: `attend` lets
# H/K query heads read each of them.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `for rows, keys, offset in halves(places, group.rank, owner):`, and inside it `q[:, :, rows]`, `k[:, :, keys]`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `merge` takes four tensors, of these rows only, and returns two, which are written back to `out[:, :, rows]` and
# `lse[:, :, rows]`. Convert to the dtype of q at the very end.
#
# </details>

# %% [markdown]
# One more operation depends on the order of tokens. RoPE rotates q and k by an angle that grows with their token's **position in
# the text**. On a rank the tokens have the indices 0, 1, 2, …, but these are not their positions: in zig-zag order the last token
# of rank 0 is the last of the text.
#
# **Run**: four ranks, with q and k rotated by their `places`, against one process. Then the same with the positions 0 to 15 on
# every rank. That mistake raises no error: only the numbers are wrong.

# %%
from einops import rearrange
from minitrain.model.config import ModelConfig
from minitrain.model.rope import rotate, rotation

H, K, C = lab.size("heads"), lab.size("kv_heads"), lab.size("head_size")
config = ModelConfig(8, H * C, 1, H, K, ffn_size=8)  # for its angles of RoPE


def turned(x, places):
    turns = rotation(config, places, x.dtype)
    return rotate(x.transpose(1, 2), turns).transpose(1, 2)


# %% tags=["experiment"]
def inputs(length, dtype=torch.float32):
    """q, k, v of a whole text (1, H or K, T, C), the same on every rank."""
    seeded = torch.Generator().manual_seed(0)
    drawn = {"generator": seeded, "dtype": torch.float64}
    shapes = [(1, heads, length, C) for heads in (H, K, K)]
    return [torch.randn(shape, **drawn).to(dtype) for shape in shapes]


def in_order(group, part, inverse):
    """All ranks' parts (B, H, T/N, C), in the order of the text."""
    whole = group.all_gather(part.new_empty(group.size, *part.shape), part)
    return rearrange(whole, "n b h t c -> b h (n t) c")[:, :, inverse]


# %% tags=["experiment", "nbval-check-output"]
def with_rope(group, positions):
    places, inverse = zigzag(64, group.size)
    mine = places[group.rank]
    q, k, v = (z[:, :, mine] for z in inputs(64, torch.float64))
    turns = mine if positions == "places" else torch.arange(len(mine))
    q, k = turned(q, turns), turned(k, turns)
    out, _ = ring_forward(group, places, q, torch.stack((k, v)))
    return in_order(group, out, inverse)


one = launch(with_rope, "places", ranks=1)[0]
for positions in ("places", "0 to 15 on every rank"):
    four = launch(with_rope, positions, ranks=4)[0]
    is_equal = torch.allclose(four, one, atol=1e-10)
    print(f"{positions}: equals one process: {is_equal}")

# %% [markdown]
# ## 5 · The way back
#
# What is the gradient of a key and its value? With $P_{ij} = e^{s_{ij} - \text{lse}_i}$ the weight of key $j$ for query $i$, and
# $\mathrm d$ before a name for the gradient of the loss with respect to it,
#
# $$\mathrm d v_j = \sum_i P_{ij}\, \mathrm d o_i, \qquad
# \mathrm d k_j = \frac{1}{\sqrt C} \sum_i \mathrm d s_{ij}\, q_i, \qquad
# \mathrm d q_i = \frac{1}{\sqrt C} \sum_j \mathrm d s_{ij}\, k_j.$$
#
# The last sum runs over keys: all of them pass through a rank, which adds up $\mathrm d q$ itself. The first two run over
# *queries*, and these are distributed over all ranks. Each rank can compute only a **part** of a block's gradient, and all parts
# must come together at the block's owner.

# %% [markdown]
# Let $S$ be the count of numbers in one block, the keys and values of one rank. In the forward pass each of four ranks sends
# three blocks, $3\,S$.
#
# **Predict**: how many $S$ does it send in the *backward* pass? No rank has kept the block of another.

# %% tags=["question"]
### BEGIN SOLUTION
guess = 6
### LAB guess = None  # times S, your guess
### END SOLUTION
lab.predict("ring_backward", guess)

# %% [markdown]
# The keys and values go around once more, and the gradient follows its block, one step behind. Each rank adds its part as the
# gradient passes.
#
# In the picture a column is a rank and a colour the owner of a block. In step 0 each rank computes its part of its own block's
# gradient, and keeps it. From step 1 on, a gradient travels behind its block. Move `step` to the end: the sum comes home from the
# left, and only there is the rank's own part added.

# %%
ideas.ring_gradients()

# %% [markdown]
# A gradient leaves a rank after that rank has added its part. The next rank needs it only after computing its own part for the
# same block. Between the two is one step of computation, during which the message can travel: so wait for it as late as possible.
#
# ### Exercise 5 · `ring_backward`
#
# Difficulty 5 · 25 minutes · 10 points
#
# Write what the picture shows. The blocks come `around` as in the forward pass; their gradients you `pass_on` yourself, one step
# behind.


# %% tags=["exercise"]
def ring_backward(group, kv, gradients) -> tuple[torch.Tensor, torch.Tensor]:
    """kv (2, B, K, T/N, C), this rank's -> dq, summed over all blocks, and
    the complete gradient of kv. On rank r of 3:

        sends     |  own kv  | kv of r-1 | dkv of r-1 | dkv of r-2 |
        computes  | own part | for r-1   |  for r-2   |

    Call `gradients(owner, block)` once for each block that comes `around`: it
    gives dq from this block and this rank's part of the block's dkv, in the
    dtypes of the results; you may write into both. Keep the part for your own
    block. To any other part add the sum that came from the left (the first
    has none), and `pass_on` it: N-1 messages. Each travels while the next
    block is computed: wait for it only when you add. One rank alone sends
    nothing. About 11 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.parallel.context.ring:ring_backward
    ### END SOLUTION


# %% tags=["grade"]
ring_backward = lab.grade(ring_backward)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# The gradient that arrives from the left in step s + 1 belongs to the block that arrives in step s + 1: add this rank's part.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Keep `coming`, the function that `pass_on` returned in the step before; it is None in the first two steps. One rank alone never
# sends.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Three kinds of step: your own block (keep the part, send nothing), the first foreign block (send the part), all others (add
# `coming()`, then send). After the loop the last `coming()` brings the sum for your own block.
#
# </details>

# %% [markdown]
# Together both rings make an autograd `Function`. It saves q, kv, the answers and lse of a rank's $T/N$ tokens, but no scores:
# since $P_{ij} = e^{s_{ij} - \text{lse}_i}$, the weights can be recomputed from q, k and lse, block by block. The package's
# `tiled_backward` does that for one pair of halves; `part_of_gradient` does it for a block that comes around.

# %% tags=["experiment"]
from minitrain.model.attention.mask import Mask
from minitrain.model.attention.tiled import tiled_backward


def part_of_gradient(group, places, q, asked, owner, block):
    """dq from this block, and this rank's part of the block's gradient."""
    lse = asked[1]
    dq, d_block = (torch.zeros_like(z, dtype=lse.dtype) for z in (q, block))
    for rows, keys, offset in halves(places, group.rank, owner):
        if offset >= 0:
            given = (q[:, :, rows], *block[:, :, :, keys])
            given += tuple(z[:, :, rows] for z in asked)
            d_rows, *d_keys = tiled_backward(*given, Mask(offset))
            dq[:, :, rows] += d_rows
            d_block[:, :, :, keys] += torch.stack(d_keys)
    return dq, d_block


# %% tags=["experiment"]
class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, group, places):
        out, lse = ring_forward(group, places, q, kv)
        ctx.save_for_backward(q, kv, out, lse)
        ctx.ring = group, places
        return out

    @staticmethod
    def backward(ctx, d_out):
        q, kv, out, lse = ctx.saved_tensors
        asked = d_out, lse, (d_out * out).to(lse.dtype).sum(-1)
        gradients = partial(part_of_gradient, *ctx.ring, q, asked)
        dq, d_kv = ring_backward(ctx.ring[0], kv, gradients)
        return dq.to(q.dtype), d_kv.to(kv.dtype), None, None


# %% [markdown]
# **Run**: its gradients on four ranks, against plain attention in one process.

# %% tags=["experiment", "nbval-check-output"]
from torch.nn.functional import scaled_dot_product_attention


def ring_gradients(group):
    """Of the answers' sum of squares, by q, k and v of the whole text."""
    places, inverse = zigzag(64, group.size)
    parts = [z[:, :, places[group.rank]] for z in inputs(64, torch.float64)]
    q, k, v = (part.requires_grad_() for part in parts)
    Ring.apply(q, torch.stack((k, v)), group, places).square().sum().backward()
    return [in_order(group, part.grad, inverse) for part in parts]


q, k, v = (z.requires_grad_() for z in inputs(64, torch.float64))
out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
out.square().sum().backward()
found = launch(ring_gradients, ranks=4)[0]
for name, z, gradient in zip("qkv", (q, k, v), found):
    is_equal = torch.allclose(gradient, z.grad, atol=1e-10)
    print(f"gradient of {name}: equals one process: {is_equal}")

# %% [markdown]
# ## 6 · Or exchange heads for tokens
#
# There is another way to split. Heads never read each other: head $h$ of the answer needs only head $h$ of q, and the key head
# that it reads. So **Ulysses** ([Jacobs et al. 2023](https://arxiv.org/abs/2309.14509)) converts the split by tokens into a split
# by heads, and back. An all-to-all gives each rank *all* tokens of $H/N$ of the $H$ query heads. Attention runs there as in one
# process, and a second all-to-all returns the answers to the ranks of their tokens. Attention cannot start before the first has
# ended, nor the second before attention has: a rank waits for both.

# %%
ideas.heads_for_tokens()

# %% [markdown]
# Each box is one head of one rank's tokens. On the left a rank has a row, and the number is the rank to which a box goes. On the
# right a rank has two columns, and the number is the rank from which a box came.
#
# Grouped queries need care: the $K$ key heads are fewer than the $H$ query heads, and may be fewer than the $N$ ranks. If $N$
# divides $K$, each rank gets $K/N$ of them. If $K < N$, each key head goes to the $N/K$ ranks whose query heads read it: with 16
# query heads, 4 key heads and 8 ranks, ranks 0 and 1 both need key head 0. There cannot be more than $H$ ranks.

# %% [markdown]
# ### Exercise 6 · `ulysses`
#
# Difficulty 4 · 20 minutes · 12 points
#
# It works with any differentiable all-to-all, which is passed in as `exchange`. Within a rank attention is plain:
# `scaled_dot_product_attention` with `is_causal=True` and `enable_gqa=True`, imported above.


# %% tags=["exercise"]
def ulysses(q, k, v, size: int, exchange) -> torch.Tensor:
    """q (B, H, T/N, C), k and v (B, K, T/N, C) -> (B, H, T/N, C), on N = size
    ranks.

    `exchange` is a differentiable all-to-all: (N, …) in, contiguous or not,
    piece r for rank r; (N, …) out, piece r from rank r. You may send q, k and
    v in one exchange or in three. Rank r takes heads r·H/N to (r+1)·H/N;
    tokens are in the text's order. N divides K, or K divides N. A ValueError,
    before anything is sent, if N does not divide H. About 13 lines."""
    ### BEGIN SOLUTION
    if q.shape[1] % size:
        raise ValueError(f"{q.shape[1]} heads cannot be shared by {size} ranks")
    copies = max(1, size // k.shape[1])
    k, v = (z.repeat_interleave(copies, dim=1) for z in (k, v))
    pieces = [rearrange(z, "b (n h) t c -> n b h t c", n=size) for z in (q, k, v)]
    count = [piece.shape[2] for piece in pieces]
    parts = exchange(torch.cat(pieces, dim=2))  # (N, B, …, T/N, C)
    q, k, v = rearrange(parts, "n b h t c -> b h (n t) c").split(count, dim=1)
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    parts = exchange(rearrange(out, "b h (n t) c -> n b h t c", n=size))
    return rearrange(parts, "n b h t c -> b (n h) t c")
    ### END SOLUTION


# %% tags=["grade"]
ulysses = lab.grade(ulysses)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `rearrange(q, "b (n h) t c -> n b h t c", n=size)` has one piece per rank; after `exchange` it becomes
# `"n b h t c -> b h (n t) c"`. The answers take the same way back.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `copies = max(1, size // K)`; `k.repeat_interleave(copies, dim=1)` puts the copies side by side, where the query heads that read
# them are.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Pieces of q, k and v have different numbers of heads but all other sizes equal: join them along the heads for a single exchange,
# and split the result at the same counts.
#
# </details>

# %% [markdown]
# ## 7 · Bytes sent
#
# We compare three ways: a rank can *gather* all keys and values, pass them around a *ring*, or exchange heads with *Ulysses*. The
# unit is again the keys and values of one rank,
#
# $$S = 2 \cdot B \cdot K \cdot \frac TN \cdot C \text{ numbers},$$
#
# with $B$ texts in the batch, here 1. There are $H = 16$ query heads, $K = 4$ key heads, and a head has $C = 16$ numbers.
#
# The course's own `gather_attention` is compared with your two. Each runs forward and backward, and the group's trace counts the
# bytes. Then your guess of section 5 is revealed.

# %% tags=["experiment"]
from minitrain.parallel.collectives.differentiable import all_to_all
from minitrain.parallel.context.gather import gather_attention


def ring_attention(group, q, k, v):
    places, _ = zigzag(q.shape[2] * group.size, group.size)
    return Ring.apply(q, torch.stack((k, v)), group, places)


kinds = {
    "gather": lambda group, *qkv: gather_attention(group, "contiguous", *qkv),
    "ring": ring_attention,
    "ulysses": lambda group, q, k, v: ulysses(
        q, k, v, group.size, partial(all_to_all, group=group)
    ),
}


def part_of(group, length):
    """This rank's q, k and v: only their number of tokens matters here."""
    mine = length // group.size
    return [z[:, :, :mine].clone().requires_grad_() for z in inputs(length)]


# %% tags=["experiment"]
def sent(group, length):
    """Bytes that a rank sends for a layer, forward and backward, by kind."""
    rows, trace = [], group.trace
    setting = {"ranks": group.size, "length": length}
    setting |= {"heads": H, "kv_heads": K, "head_size": C}
    for kind, attention in kinds.items():
        trace.ops.clear()
        out = attention(group, *part_of(group, length))
        forward = trace.bytes_sent()
        out.sum().backward()
        bytes_sent = {"forward_bytes": forward}
        bytes_sent["backward_bytes"] = trace.bytes_sent() - forward
        rows.append({"kind": kind, **setting, **bytes_sent})
    return rows


T = lab.size("sent_length")
traffic = sum((launch(sent, T, ranks=n)[0] for n in lab.size("ranks")), [])

# %% tags=["grade"]
lab.experiment("traffic", traffic)

# %%
whole_kv = 4 * 2 * K * T * C  # bytes of all keys and values: N·S
of_ring = next(r for r in traffic if (r["kind"], r["ranks"]) == ("ring", 4))
measured = of_ring["backward_bytes"] / (whole_kv / 4)  # in S of four ranks
lab.reveal("ring_backward", measured, ranks=4)

# %% [markdown]
# **Explain**, in units of $S$. *Gather* sends $N-1$ in forward, the keys, and $N-1$ in backward, their gradients. The *ring*
# sends $N-1$ in forward, and in backward $N-1$ for blocks and $N-1$ for gradients. In *Ulysses* a rank keeps $1/N$ of its tensors
# and sends the rest: $H$ heads of q, $H$ of answers, and $\max(K, N)$ each of keys and of values (copies where $K < N$). $S$
# counts $K$ heads of keys with their values, so one head of both is $S/K$ numbers, and so is one head of q with its answer:
#
# $$\text{Ulysses} = \frac{N-1}{N} \cdot \frac{H + \max(K, N)}{K} \; S \quad \text{in each direction}.$$
#
# On 16 ranks this is $\tfrac{15}{16} \cdot \tfrac{16 + 16}{4} = 7.5$ in each direction, 15 in all, against 45 for the ring and 30
# for gathering.

# %% [markdown]
# The picture divides all of this by $N \cdot S$, the keys and values of the whole text, since $S$ itself shrinks with more ranks.
# Gather and ring approach 2 and 3 and stay there. Ulysses falls, **until the heads run out**. (The code that draws it is folded.)

# %% tags=["experiment", "folded"]
forms = {  # in S, forward and backward
    "gather": lambda n: 2 * (n - 1),
    "ring": lambda n: 3 * (n - 1),
    "ulysses": lambda n: 2 * (n - 1) / n * (H + max(K, n)) / K,
}
every = [2, 4, 8, 16, 32, 64]
with show.canvas() as (figure, axes):
    for (kind, form), color, marker in zip(forms.items(), show.COLORS, show.MARKERS):
        own = [row for row in traffic if row["kind"] == kind]
        sizes = [(r["forward_bytes"] + r["backward_bytes"]) / whole_kv for r in own]
        axes.plot([r["ranks"] for r in own], sizes, marker, color=color)
        ranks = [n for n in every if kind != "ulysses" or n <= H]
        closed = [form(n) / n for n in ranks]
        axes.plot(ranks, closed, "--", color=color, linewidth=1.3)
        words = f"{kind}, ends at {H} heads" if kind == "ulysses" else kind
        axes.text(ranks[-1] * 1.1, closed[-1], words, color=color, va="center")
    axes.set_xscale("log", base=2)
    axes.set_xticks(every, [str(n) for n in every])
    axes.set(xlabel="ranks", ylabel="bytes sent a layer / all keys and values")
    axes.set_ylim(0, 3.2)
    axes.set_title("Forward and backward: measured, and closed form (dashed)")
show.figure(
    figure,
    alt="Bytes sent against ranks: gather near 2, ring near 3, Ulysses falls and "
    "ends at 16 ranks.",
)

# %%
both_ways = []
for n in lab.size("ranks"):
    row = {"ranks": n}
    for r in [r for r in traffic if r["ranks"] == n]:
        sent_bytes = r["forward_bytes"] + r["backward_bytes"]
        row[f"{r['kind']}, both ways (kB)"] = round(sent_bytes / 1e3, 1)
    both_ways.append(row)
show.table(both_ways, caption=f"sent by a rank, {T} tokens, float32, counted")

# %% [markdown]
# **Question**: forward and backward together, from how many ranks on (of those measured) does Ulysses send fewer bytes than the
# ring?

# %% tags=["question"]
### BEGIN SOLUTION
ulysses_from = 4
### LAB ulysses_from = None  # your answer, a number of ranks
### END SOLUTION

# %% tags=["grade"]
lab.answer("ulysses_from", ulysses_from)

# %% [markdown]
# ## 8 · Bytes kept
#
# The text was split to save memory. How much does each way save? A fourth is added, *scores*: it gathers the keys and then uses
# the attention of e01, which materializes all scores of its queries, $T/N \times T$ numbers per head.
#
# `MemoryLedger` counts the bytes of all tensors. We take two numbers: the *peak* during forward, on the rank with the highest,
# and the bytes that autograd *keeps* for backward.
#
# **Predict**: 1,024 tokens, 8 ranks. By what factor is the peak of *scores* higher than that of your ring?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 32
### LAB guess = None  # times, your guess
### END SOLUTION
lab.predict("peak", guess)

# %% tags=["experiment"]
from minitrain.model.attention.grouped_query import attention_naive
from minitrain.parallel.context.gather import gather_sequence


def with_scores(group, q, k, v):
    """The naive rank: all keys, and all its queries' scores at once."""
    kv = torch.stack((k, v)).detach()
    whole = gather_sequence(group, "contiguous", kv, dim=-2)
    mine, length = q.shape[2], q.shape[2] * group.size
    places = group.rank * mine + torch.arange(mine)
    later = torch.arange(length) > places[:, None]
    mask = torch.zeros(mine, length).masked_fill_(later, -torch.inf)
    return attention_naive(q, *whole.requires_grad_(), mask)


# %% tags=["experiment"]
from minitrain.measure.memory import MemoryLedger


def held(group, lengths):
    """Bytes of a layer's attention on this rank: at the peak, and kept."""
    rows, sizes = [], {"heads": H, "kv_heads": K, "head_size": C}
    for kind, attention in {**kinds, "scores": with_scores}.items():
        for length in lengths:
            given = part_of(group, length)
            with MemoryLedger(torch.nn.Module(), device="cpu") as ledger:
                out = attention(group, *given)
                kept = ledger.now["activations"]
            row = {"kind": kind, "ranks": group.size, "length": length, **sizes}
            row |= {"peak_bytes": ledger.peak_bytes, "kept_bytes": kept}
            rows.append(row)
            del out
    return rows


lengths, held_ranks = lab.size("lengths"), lab.size("held_ranks")
results = launch(held, lengths, ranks=held_ranks, timeout=120)
memory = [max(rows, key=lambda r: r["peak_bytes"]) for rows in zip(*results)]

# %% tags=["grade"]
lab.experiment("memory", memory)

# %%
peak = {(row["kind"], row["length"]): row["peak_bytes"] for row in memory}
ratio = peak["scores", lengths[-1]] / peak["ring", lengths[-1]]
lab.reveal("peak", ratio, ranks=held_ranks)

# %% [markdown]
# **Explain** the peak: a matrix of scores has $T/N \times T$ numbers per head, and *scores* holds three at once: the scores, the
# scores with the mask, and the weights. Your ring holds only one, for a pair of halves, $T/2N \times T/2N$, which it changes in
# place:
#
# $$3 \cdot \frac{T/N \cdot T}{(T/2N)^2} = 12N, \qquad 12 \cdot 8 = 96.$$
#
# The measured ratio is smaller, since both also hold q, keys, values and answers. These grow with $T$, scores with $T^2$, so the
# ratio rises toward 96: from less than 8 at 128 tokens to 26 at 1,024. Gather works in tiles of at most 256 x 512 scores per
# head. The 128 queries of a rank do not fill a tile, so gather still grows almost as fast as *scores*; Ulysses, with
# `scaled_dot_product_attention`, works in smaller tiles.

# %% [markdown]
# The folded cell draws both numbers against the length of the text, on logarithmic axes: a slope of 1 means growth with $T$, a
# slope of 2 with $T^2$. The dashed lines are the closed forms of the bytes kept, explained below.

# %% tags=["experiment", "folded"]
per_token = {  # bytes kept for each token of the text, where no score is kept
    "gather": lambda n: 4 * ((2 * H * C + H) / n + 2 * K * C),
    "ring": lambda n: 4 * (2 * H * C + H + 2 * K * C) / n,
    "ulysses": lambda n: 4 * (2 * H * C + H + 2 * max(K, n) * C) / n,
}
titles = {
    "peak_bytes": "at the peak of forward, on the rank with most",
    "kept_bytes": "kept for backward",
}
megabytes = [row[column] / 1e6 for row in memory for column in titles]
with show.canvas(columns=2, width=10.5, height=4.2) as (figure, axes):
    for ax, (column, words) in zip(axes, titles.items()):
        curves = {}
        for kind in (*kinds, "scores"):
            own = [row for row in memory if row["kind"] == kind]
            curves[kind] = (lengths, [row[column] / 1e6 for row in own])
        closed = {
            f"{kind}, closed form": (
                lengths,
                [form(held_ranks) * t / 1e6 for t in lengths],
            )
            for kind, form in per_token.items()
        }
        ax.set_ylim(0.6 * min(megabytes), 1.6 * max(megabytes))
        show.lines(
            curves,
            theory=closed if column == "kept_bytes" else None,
            x="tokens of the text",
            y=f"MB on one of {held_ranks} ranks",
            title=words,
            log="xy",
            ax=ax,
        )
        if column == "kept_bytes":  # the closed forms pass through the points
            for line in ax.lines[: len(per_token)]:
                line.set_linestyle("")
        ax.set_xticks(lengths, [str(t) for t in lengths])
        ax.minorticks_off()
show.figure(
    figure,
    alt="Bytes against tokens, at the peak and kept: scores most, growing fastest, "
    "then gather, Ulysses, and the ring least.",
)

# %% [markdown]
# **Explain** the bytes kept: for each of its tokens a rank needs q and the answer, $HC$ numbers each, $H$ numbers of lse, and
# keys and values. In float32, per token of the *text*, that is
#
# $$\text{ring: } \frac{4\,(2HC + H + 2KC)}{N}, \qquad
# \text{gather: } \frac{4\,(2HC + H)}{N} + 4 \cdot 2KC \text{ bytes}.$$
#
# With the lab's sizes on 8 ranks these are 328 and 776 bytes. More ranks shrink all terms of the ring. Gather keeps all keys and
# values on every rank, a term that more ranks do not shrink. Ulysses keeps as much as the ring, with $\max(K, N)$ in place of $K$
# key heads.

# %% [markdown]
# ## 9 · Who waits
#
# Back to the order of tokens. The next cells count the FLOPs of your `ring_forward` on each rank, in both orders. The counter
# adds up the FLOPs of matmuls; it does not time them. A half-block on the diagonal counts in full: `attend` computes all of it
# and masks it afterwards.

# %% tags=["experiment"]
from minitrain.measure.flops import counted_flops


def orders(length, size):
    contiguous = torch.arange(length).view(size, -1)
    return {"contiguous": contiguous, "zigzag": zigzag(length, size)[0]}


def work(group, length):
    """This rank's FLOPs, and the bytes that it sends, in a forward ring."""
    rows, sizes = [], {"length": length, "heads": H, "head_size": C}
    q, k, v = (z.detach() for z in part_of(group, length))
    kv = torch.stack((k, v))
    for order, places in orders(length, group.size).items():
        group.trace.ops.clear()
        flops = counted_flops(partial(ring_forward, group, places, q, kv))
        row = {"order": order, "ranks": group.size, "rank": group.rank, **sizes}
        sent_bytes = group.trace.bytes_sent()
        rows.append({**row, "flops": flops, "forward_bytes": sent_bytes})
    return rows


balance = []
for ranks in lab.size("balance_ranks"):
    balance += sum(launch(work, lab.size("balance_length"), ranks=ranks), [])

# %% tags=["grade"]
lab.experiment("balance", balance)

# %% [markdown]
# The picture of the title, with your own numbers below it: above, which rank (colour) computes which half-block of the mask, and
# in which step (number, from 0 as in section 2); below, the counted FLOPs. In contiguous order rank 0 has nothing to do after
# step 0.

# %% tags=["picture", "folded"]
from itertools import product

from minitrain.lab.drawing.shapes import ink_on

N = 4


def mosaic(ax, places):
    """Each half-block of the mask: its rank's colour, and its step."""
    half, style = places.shape[1] // 2, {"va": "center", "fontsize": 9}
    for rank, step in product(range(N), repeat=2):
        owner, color = (rank - step) % N, show.COLORS[rank]
        for rows, keys, offset in halves(places, rank, owner):
            if offset < 0:
                continue
            y, x = int(places[rank, rows][0]) / half, int(places[owner, keys][0]) / half
            corners = [(x, y), (x, y + 1), (x + 1, y + 1), (x + 1, y)]
            corners = corners if offset else corners[:3]  # a triangle on the diagonal
            ax.fill(*zip(*corners), color=color, edgecolor="white", linewidth=1.5)
            x, y = (x + 0.5, y + 0.52) if offset else (x + 0.33, y + 0.69)
            ax.text(x, y, step, color=ink_on(color), ha="center", **style)
    for rank, row in enumerate(places):
        for at in {int(place) // half + 0.5 for place in row}:
            ax.plot(-0.2, at, "s", color=show.COLORS[rank], clip_on=False)
            ax.text(-0.45, at, f"rank {rank}", ha="right", **style)
    ax.set(xlim=(0, 2 * N), ylim=(2 * N, 0), xticks=[], yticks=[], aspect="equal")
    ax.set_xlabel("keys, in the order of the text")
    ax.set_ylabel("queries, by rank", labelpad=58)
    ax.grid(visible=False)


with show.canvas(columns=2, rows=2, width=10, height=8) as (figure, axes):
    for column, (order, places) in enumerate(orders(8 * N, N).items()):
        mosaic(axes[0, column], places)
        axes[0, column].set_title(f"{order}: rank (colour), step (number)")
        rows = [r for r in balance if (r["order"], r["ranks"]) == (order, N)]
        own, ax = [r["flops"] / 1e6 for r in rows], axes[1, column]
        ax.bar([f"rank {rank}" for rank in range(N)], own, 0.64, color=show.COLORS[:N])
        for rank, value in enumerate(own):
            words = {"ha": "center", "va": "center", "color": ink_on(show.COLORS[rank])}
            ax.text(rank, value / 2, f"{value:.1f}", **words)
        share = sum(own) / N
        ax.axhline(share, linestyle="--", color="#222222", linewidth=1.3)
        ax.text(-0.4, share * 1.02, "an even share", va="bottom", fontsize=9)
        ax.set(ylabel="MFLOP, counted", ylim=(0, 1.05 * max(own)))
        ax.set_title(f"the busiest rank: {max(own) / share:.2f} x an even share")
        ax.grid(axis="x", visible=False)
    axes[1, 1].set_ylim(axes[1, 0].get_ylim())
show.figure(
    figure,
    alt="Causal masks of 4 ranks, contiguous and zig-zag, with the step of each "
    "half-block; FLOPs a rank.",
)

# %% [markdown]
# **Explain**: count half-blocks of $T/2N \times T/2N$ pairs, with those on the diagonal in full. In contiguous order rank $r$ has
# the chunks $2r$ and $2r + 1$. Chunk $c$ reads itself and the $c$ chunks before it, which makes $c + 1$ half-blocks. So
#
# $$\text{contiguous: } (2r + 1) + (2r + 2) = 4r + 3, \qquad
# \text{zig-zag: } (r + 1) + (2N - r) = 2N + 1,$$
#
# the second **for every $r$**: 3 half-blocks in the first step, 2 in each other. On four ranks contiguous order gives 3, 7, 11
# and 15, a mean of 9; zig-zag gives 9 to each. (Section 3 found 1 : 7, and this is 3 : 15: there, a triangle on the diagonal
# counted half.)

# %% [markdown]
# **Question**: a ring takes as long as its busiest rank. On eight ranks, how many times as fast is zig-zag, by `balance`?

# %% tags=["question"]
of_eight = [row for row in balance if row["ranks"] == 8]
at8 = {
    order: [row["flops"] for row in of_eight if row["order"] == order]
    for order in ("contiguous", "zigzag")
}
### BEGIN SOLUTION
zigzag_gain = max(at8["contiguous"]) / max(at8["zigzag"])
### LAB zigzag_gain = None  # your answer, 1 where both take as long
### END SOLUTION

# %% tags=["grade"]
lab.answer("zigzag_gain", zigzag_gain)

# %%
shown = []
for order, flops in at8.items():
    own = {f"rank {r}": round(n / 1e6, 2) for r, n in enumerate(flops)}
    shown.append({"order": order, **own})
show.table(shown, caption="MFLOP of eight ranks in one forward ring, counted")

# %% [markdown]
# **When is the ring free?** Section 2 found that messages cost no time as long as $t_x \le t_c$. With $t$ tokens per rank, the
# pairs to compute grow as $t^2$, the keys and values to send as $t$. So there is a length from which on a ring hides all its
# messages.
#
# **Question**: with how many tokens per rank does a ring of eight compute for as long as it sends, on H100s with InfiniBand? The
# cell takes your counted FLOPs and half of your bytes, as bfloat16 has half the bytes of float32, and *computes* seconds from two
# rates of [ml-engineering](https://github.com/stas00/ml-engineering): 794 TFLOP/s, and the 36.75 GB/s reached over InfiniBand of
# 400 Gb/s. The seconds that it prints were not measured.

# %% tags=["question"]
rank0 = next(r for r in balance if (r["order"], r["ranks"]) == ("zigzag", 8))
t = rank0["length"] // rank0["ranks"]
compute_seconds = rank0["flops"] / 794e12  # published: H100, large matmuls
message_seconds = rank0["forward_bytes"] / 2 / 36.75e9  # published: InfiniBand
### BEGIN SOLUTION
tokens_to_hide = t * message_seconds / compute_seconds
### LAB tokens_to_hide = None  # your answer, tokens a rank
### END SOLUTION
times = [show.seconds_text(z) for z in (compute_seconds, message_seconds)]
print(f"{t} tokens a rank: {times[0]} to compute, {times[1]} to send")

# %% tags=["grade"]
lab.answer("tokens_to_hide", tokens_to_hide)

# %% [markdown]
# **Explain**: a pair of query and key costs $4C$ FLOPs per head, $2C$ for the score and $2C$ for the value. In one step a rank of
# a zig-zag ring computes two half-blocks, $2 \cdot 4HC\,(t/2)^2 = 2HC\,t^2$ FLOPs, and sends $2KC\,t$ numbers of 2 bytes. With
# $R$ FLOP/s and $\beta$ bytes/s the two take equally long at
#
# $$t = \frac{4KC}{2HC} \cdot \frac{R}{\beta} = 2\,\frac{K}{H} \cdot \frac{R}{\beta}, \qquad
# 2 \cdot \frac14 \cdot \frac{794 \cdot 10^{12}}{36.75 \cdot 10^9} = 10{,}800 \text{ tokens.}$$
#
# Few key heads make a ring cheap: only they are sent. The first step computes three half-blocks and the last sends nothing, so a
# ring of eight has 17/16 of this computation and 7/8 of the messages: 18% fewer tokens, the 8,900 of your answer. Liu et al. find
# $R/\beta$, with as many key heads as query heads and no causal mask.

# %% [markdown]
# **Takeaway**: with a text of 1,024 tokens on eight ranks, your ring held at its peak 26 times fewer bytes than written-out
# scores. In zig-zag order the busiest of four ranks computed 1.00 times an even share of the FLOPs, in contiguous order 1.67
# times. A ring takes any $N$, and hides its messages once texts are long; Ulysses sends less from some $N$ on, but waits for all
# of it, and ends at $H$ ranks.

# %% [markdown]
# > **On GPUs.** This lab has not been run over several GPUs yet. Llama 3 trained on 131,072 tokens over 16 ranks in this
# > order, but *gathers* keys: 8 key heads are small beside the computation, and masks between documents are easier (section 3.3.2).
# > Ulysses inside a node and a ring between nodes can be combined, too.
#
# Every kind of parallelism so far can be one axis of a mesh. Next: [e02f · Four dimensions](e02f_four_dimensions.ipynb).

# %%
lab.score(read="minitrain/parallel/context/ring.py")
