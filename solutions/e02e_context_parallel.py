# %% [markdown]
# # e02e · Context parallel
#
# **A text too long for one GPU is cut over ranks, and keys travel to the queries. You write ring attention forward and
# backward, the zig-zag order that balances it, and Ulysses, and count who sends, keeps and computes how much.**
#
# 60 minutes · CPU is enough · before: [e02b · Tensor parallel](e02b_tensor_parallel.ipynb) ·
# [map of the course](index.ipynb)
#
# You build: the merge of partial attentions, two rings, an order of tokens, two all-to-alls. You end with this picture:
# which rank computes which block of a causal mask, and when.
#
# ![Causal mask of 4 ranks, contiguous and zig-zag, each block in its rank's colour with its step; bars of FLOPs below](../labs/pictures/e02e_context_parallel.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, show
from minitrain.parallel.launch import launch

lab = Lab("e02e_context_parallel")

# %% [markdown]
# ## 1 · Half an answer, and half an answer
#
# Norms, MLPs and the loss work on each token alone. Attention reads *all* earlier tokens, on other ranks too.
#
# So compute attention to one set of keys, then to another, and **merge**. `attend` gives what that takes; `offset` is how
# many places the first query stands behind the first key:


# %%
def attend(q, k, v, offset):
    """q (B, H, I, C), k, v (B, K, J, C) -> out, lse. Query i reads keys 0 to i + offset."""
    exact = torch.promote_types(q.dtype, torch.float32)
    k, v = (z.repeat_interleave(q.shape[1] // z.shape[1], dim=1) for z in (k, v))
    scores = (q.to(exact) / q.shape[-1] ** 0.5) @ k.to(exact).mT  # (B, H, I, J)
    rows = torch.arange(q.shape[2])[:, None] + offset
    scores.masked_fill_(torch.arange(k.shape[2]) > rows, -torch.inf)
    lse = scores.logsumexp(dim=-1)  # (B, H, I)
    base = lse.masked_fill(lse == -torch.inf, 0)
    return scores.sub_(base[..., None]).exp_() @ v.to(exact), lse


# %% [markdown]
# `out` is the softmax-weighted mean of the values that were read; `lse` is log Σ exp(score) over them: its weight. Of both
# sets together,
#
# `both = log(exp(lse) + exp(new_lse))`, and each `out` counts with its share `exp(lse - both)`.

# %% [markdown]
# ### Exercise 1 · `merge`
#
# Difficulty 2 of 5 · 7 minutes · 8 points
#
# Scores of 1,000 exist, and exp(1000) does not: `torch.logaddexp` knows how. A row that read nothing has `lse = -inf` and
# out 0; two of them give 0 and -inf, not NaN.


# %% tags=["exercise"]
def merge(out, lse, new_out, new_lse) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to two sets of keys -> to both; out (B, H, T, C), lse (B, H, T).
    About 5 lines."""
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
# `both = torch.logaddexp(lse, new_lse)`; a share is (B, H, T), `[..., None]` lets it multiply out.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `-inf - -inf` is NaN. Where `both` is -inf, subtract 0 instead: exp(-inf - 0) is 0.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `base = both.masked_fill(both == -torch.inf, 0)`, shares `(lse - base).exp()[..., None]` and the same of `new_lse`.
#
# </details>

# %% [markdown]
# ## 2 · Keys on their way
#
# N ranks form a ring. Each sends the keys and values that it has to the right and takes those of the left, N-1 times
# ([Liu et al. 2023](https://arxiv.org/abs/2310.01889)).
#
# A message costs nothing if it travels *while* the rank computes with the block it still has. `pass_on` starts one:


# %%
def pass_on(group, tensor):
    """Starts `tensor` to the right; calling the result waits for what comes from the left."""
    arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    leaving = group.isend(tensor, (group.rank + 1) % group.size)
    return lambda: (leaving.wait(), arriving.wait())[1]


# %% [markdown]
# ### Exercise 2 · `around`
#
# Difficulty 3 · 8 minutes · 10 points
#
# A generator: first your own block, then the left neighbour's, and so on. Call `pass_on` **before** you `yield` a block,
# and its result when the caller comes back for the next. The last block goes no further: N-1 messages.


# %% tags=["exercise"]
def around(group, block: torch.Tensor):
    """Yields (owner, block) N times: this rank's own, then the left neighbour's, …
    About 5 lines."""
    ### BEGIN SOLUTION
    for step in range(group.size):
        coming = pass_on(group, block) if step + 1 < group.size else None
        yield (group.rank - step) % group.size, block
        if coming is not None:
            block = coming()
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
# A loop of N steps: start (not in the last one), yield, finish.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `coming = pass_on(group, block) if step + 1 < group.size else None`, `yield owner, block`, then `block = coming()` where
# there is one.
#
# </details>

# %% [markdown]
# ## 3 · Late tokens cost more
#
# Token i reads i + 1 keys. Cut the text into N runs, and the last rank reads far more than the first.
#
# **Predict**: four ranks, a long text. How many times the first rank's pairs (query, key) does the last one compute?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 7
### LAB guess = None  # times, your guess
### END SOLUTION
lab.predict("last_over_first", guess)

# %%
starts = torch.arange(4) / 4  # where each quarter of the text begins
pairs = (starts + 1 / 4) ** 2 - starts**2  # i + 1 keys, added up
lab.reveal("last_over_first", (pairs[3] / pairs[0]).item(), note="1 : 3 : 5 : 7")

# %% [markdown]
# All wait for the slowest. **Zig-zag** cuts in 2N chunks and gives rank r an early and a late one, r and 2N-1-r
# ([Llama 3](https://arxiv.org/abs/2407.21783), 3.3.2):
#
# | | rank 0 | rank 1 |
# |---|---|---|
# | contiguous, N = 2 | 0, 1 | 2, 3 |
# | zig-zag | 0, 3 | 1, 2 |

# %% [markdown]
# ### Exercise 3 · `zigzag`
#
# Difficulty 2 · 8 minutes · 8 points
#
# `places[r]` says which tokens rank r holds, early chunk first. `inverse` undoes it: all ranks' tokens side by side, then
# `[inverse]`, are the text. A length that 2N does not divide raises a `ValueError`.


# %% tags=["exercise"]
def zigzag(length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """-> places (N, T/N) and inverse (T,), both int64. About 6 lines."""
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
# `torch.arange(length).view(2 * size, -1)` has one chunk a row.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The first N rows are the early chunks; the last N, turned round by `.flip(0)`, the late ones. Join them along dim 1.
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
# Two helpers. In both orders a rank holds two runs of consecutive tokens: `halves` says where queries and keys lie in a
# rank's tokens, and the `offset` between them in the text. `nothing_read` is where a merge begins, in float32: sums of N
# parts must not be rounded N times.


# %%
def halves(places, rank, owner):
    half = places.shape[1] // 2
    for rows in (slice(0, half), slice(half, 2 * half)):
        for keys in (slice(0, half), slice(half, 2 * half)):
            yield rows, keys, int(places[rank, rows][0] - places[owner, keys][0])


def nothing_read(q):
    exact = torch.promote_types(q.dtype, torch.float32)
    lse = q.new_full(q.shape[:3], -torch.inf, dtype=exact)
    return torch.zeros_like(q, dtype=exact), lse


# %% [markdown]
# ### Exercise 4 · `ring_forward`
#
# Difficulty 4 · 12 minutes · 12 points
#
# For each block that comes `around`, for each of `halves`: `attend(q, k, v, offset)` of those rows and keys, merged into
# those rows. Where `offset < 0` every key comes after every query: compute **nothing**.


# %% tags=["exercise"]
def ring_forward(group, places, q, kv) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, H, T/N, C), kv (2, B, K, T/N, C), this rank's -> out, in q's dtype, and
    lse (B, H, T/N). About 8 lines."""
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
# `out, lse = nothing_read(q)`, then `for owner, (k, v) in around(group, kv):`. Keys stay K heads wide: `attend` lets H/K
# query heads read one.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `for rows, keys, offset in halves(places, group.rank, owner):`, and in it `q[:, :, rows]`, `k[:, :, keys]`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `found = attend(…, offset)`, then
# `out[:, :, rows], lse[:, :, rows] = merge(out[:, :, rows], lse[:, :, rows], *found)`. At the end `out.to(q.dtype)`.
#
# </details>

# %% [markdown]
# RoPE turns q and k by their token's **place in the text**, not by where it lies on its rank: in zig-zag the last token of
# rank 0 is the text's last.
#
# **Run**: four ranks, turned by their `places`, against one process. Then with places 0 to 15 on every rank, a mistake that
# gives no error.

# %% tags=["experiment"]
from einops import rearrange
from minitrain.model.config import ModelConfig
from minitrain.model.rope import rotate, rotation

H, K, C = lab.size("heads"), lab.size("kv_heads"), lab.size("head_size")
config = ModelConfig(8, H * C, 1, H, K, ffn_size=8)


def inputs(length, dtype=torch.float32):
    """q, k, v of a whole text (1, H or K, T, C), the same on every rank."""
    seeded = torch.Generator().manual_seed(0)
    shapes = [(1, heads, length, C) for heads in (H, K, K)]
    return [
        torch.randn(s, generator=seeded, dtype=torch.float64).to(dtype) for s in shapes
    ]


def turned(x, places):
    turns = rotation(config, places, x.dtype)
    return rotate(x.transpose(1, 2), turns).transpose(1, 2)


# %% tags=["nbval-check-output"]
def with_rope(group, positions):
    places, inverse = zigzag(64, group.size)
    mine = places[group.rank]
    q, k, v = (z[:, :, mine] for z in inputs(64, torch.float64))
    turns = mine if positions == "places" else torch.arange(len(mine))
    q, k = turned(q, turns), turned(k, turns)
    out, _ = ring_forward(group, places, q, torch.stack((k, v)))
    whole = group.all_gather(out.new_empty(group.size, *out.shape), out)
    return rearrange(whole, "n b h t c -> b h (n t) c")[:, :, inverse]


one = launch(with_rope, "places", ranks=1)[0]
for positions in ("places", "0 to 15 on every rank"):
    four = launch(with_rope, positions, ranks=4)[0]
    print(f"{positions}: equals one process:", torch.allclose(four, one, atol=1e-10))

# %% [markdown]
# ## 5 · The way back
#
# Backward needs the blocks again: keys and values go round once more. This rank's queries give a **part** of a block's
# gradient, which belongs to its owner.
#
# So the gradient follows its block, a step behind, gathers each rank's part, and is complete when it comes home.

# %% [markdown]
# ### Exercise 5 · `ring_backward`
#
# Difficulty 5 · 15 minutes · 10 points
#
# `gradients(owner, block)` gives dq of this block, to be added up, and this rank's part of dkv. Your own part **waits at
# home**. To every other, add what came with it from the left, if anything did yet, and `pass_on` the sum: N-1 messages.


# %% tags=["exercise"]
def ring_backward(group, kv, gradients) -> tuple[torch.Tensor, torch.Tensor]:
    """kv (2, B, K, T/N, C), this rank's -> dq, summed over all blocks, and the complete
    gradient of kv. About 11 lines."""
    ### BEGIN SOLUTION
    dq, own, coming = 0, None, None
    for owner, block in around(group, kv):
        dq_part, d_block = gradients(owner, block)
        dq = dq + dq_part
        if owner == group.rank:
            own = d_block
            continue
        if coming is not None:
            d_block = d_block + coming()
        coming = pass_on(group, d_block)
    return dq, own if coming is None else own + coming()
    ### END SOLUTION


# %% tags=["grade"]
ring_backward = lab.grade(ring_backward)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# What arrives in step s + 1 from the left is the gradient of the block that arrives in step s + 1: add this rank's part.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Keep `coming`, what `pass_on` returned in the step before; it is None in the first two steps. One rank alone never sends.
#
# </details>
# <details><summary>Hint 3</summary>
#
# If `owner == group.rank`, `own = d_block`. Else `d_block = d_block + coming()` where there is one, then
# `coming = pass_on(group, d_block)`. After the loop `own + coming()`.
#
# </details>

# %% [markdown]
# Both rings make a `Function` for autograd. Saved are q, kv, out and lse of T/N tokens, and no score: `tiled_backward`, of
# the package, makes the weights again from lse, block by block.

# %% tags=["experiment"]
from minitrain.model.mask import Mask
from minitrain.model.tiled_attention import tiled_backward


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, group, places):
        out, lse = ring_forward(group, places, q, kv)
        ctx.save_for_backward(q, kv, out, lse)
        ctx.ring = group, places
        return out

    @staticmethod
    def backward(ctx, d_out):
        (q, kv, out, lse), (group, places) = ctx.saved_tensors, ctx.ring
        asked = d_out, lse, (d_out * out).to(lse.dtype).sum(-1)

        def gradients(owner, block):
            dq, d_block = (torch.zeros_like(z, dtype=lse.dtype) for z in (q, block))
            for rows, keys, offset in halves(places, group.rank, owner):
                if offset >= 0:
                    given = (q[:, :, rows], *block[:, :, :, keys])
                    given += tuple(z[:, :, rows] for z in asked)
                    d_rows, *d_keys = tiled_backward(*given, Mask(offset))
                    dq[:, :, rows] += d_rows
                    d_block[:, :, :, keys] += torch.stack(d_keys)
            return dq, d_block

        dq, d_kv = ring_backward(group, kv, gradients)
        return dq.to(q.dtype), d_kv.to(kv.dtype), None, None


# %% [markdown]
# ## 6 · Or exchange heads for tokens
#
# Heads never read each other. **Ulysses** ([Jacobs et al. 2023](https://arxiv.org/abs/2309.14509)) sends each rank *all*
# tokens of H/N heads, runs plain attention, and sends the answers back.
#
# Grouped queries: with K < N a key head goes to the N/K ranks whose query heads read it, and to no others.

# %% [markdown]
# ### Exercise 6 · `ulysses`
#
# Difficulty 4 · 12 minutes · 12 points
#
# `exchange` is a differentiable all-to-all: (N, …) in, piece r for rank r; (N, …) out, piece r from rank r. Rank r takes
# heads r·H/N to (r+1)·H/N. Tokens are in contiguous order. If N does not divide H: `ValueError`.

# %% tags=["exercise"]
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size: int, exchange) -> torch.Tensor:
    """q (B, H, T/N, C), k and v (B, K, T/N, C) -> (B, H, T/N, C), on N = size ranks.
    About 13 lines."""
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
# `rearrange(q, "b (n h) t c -> n b h t c", n=size)` has one piece a rank; after `exchange` it is
# `"n b h t c -> b h (n t) c"`. The answers take the same way back.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `copies = max(1, size // K)`; `k.repeat_interleave(copies, dim=1)` puts the copies side by side, where the query heads
# that read them are.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Join the pieces of q, k and v along dim 2, one `exchange`, `.split([…], dim=1)`, then
# `scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)`.
#
# </details>

# %% [markdown]
# ## 7 · What travels
#
# Let S be a rank's keys and values: 2·B·K·T/N·C numbers. A naive rank *gathers* all of them. Now all three, forward and
# backward, with 16 query and 4 key heads.
#
# **Predict**: how many S does a rank of four send in the *backward* of a ring?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 6
### LAB guess = None  # times S, your guess
### END SOLUTION
lab.predict("ring_backward", guess)

# %% tags=["experiment"]
from functools import partial

from minitrain.model.attention import attention_naive
from minitrain.parallel.context import gather_attention
from minitrain.parallel.ulysses import AllToAll


def ring_attention(group, q, k, v):
    places, _ = zigzag(q.shape[2] * group.size, group.size)
    return Ring.apply(q, torch.stack((k, v)), group, places)


kinds = {
    "gather": lambda group, q, k, v: gather_attention(group, "contiguous", q, k, v),
    "ring": ring_attention,
    "ulysses": lambda group, q, k, v: ulysses(
        q, k, v, group.size, partial(AllToAll.apply, group)
    ),
}


def part_of(group, length):
    """This rank's q, k and v: how many, not which, is what counts here."""
    mine = length // group.size
    return [z[:, :, :mine].clone().requires_grad_() for z in inputs(length)]


def sent(group, length):
    """Bytes that a rank sends for a layer, forward and backward, three ways."""
    rows, trace = [], group.trace
    for kind, attention in kinds.items():
        trace.ops.clear()
        out = attention(group, *part_of(group, length))
        forward = trace.bytes_sent()
        out.sum().backward()
        rows.append(
            {"kind": kind, "ranks": group.size, "length": length, "heads": H,
             "kv_heads": K, "head_size": C, "forward_bytes": forward,
             "backward_bytes": trace.bytes_sent() - forward}
        )  # fmt: skip
    return rows


T = lab.size("sent_length")
traffic = sum((launch(sent, T, ranks=n)[0] for n in lab.size("ranks")), [])

# %% tags=["grade"]
lab.experiment("traffic", traffic)

# %% [markdown]
# Closed forms, in S: *gather* N-1 forward and N-1 back; *ring* N-1 and 2(N-1), as the gradient goes with its block;
# *Ulysses* (N-1)/N·(H + max(K, N))/K each way. A ring's bytes approach a constant; Ulysses' fall with 1/N, **until the
# heads run out**: N ≤ H.


# %% tags=["experiment"]
def in_S(row):
    """A row's forward and backward bytes in S of that row."""
    S = 4 * 2 * K * row["length"] // row["ranks"] * C
    return row["forward_bytes"] / S, row["backward_bytes"] / S


whole_kv = 4 * 2 * K * T * C  # bytes of all keys and values: N·S
forms = {
    "gather": lambda n: 2 * (n - 1),
    "ring": lambda n: 3 * (n - 1),
    "ulysses": lambda n: 2 * (n - 1) / n * (H + max(K, n)) / K,
}
with show.canvas() as (figure, axes):
    for i, (kind, form) in enumerate(forms.items()):
        style = {"color": show.COLORS[i], "marker": show.MARKERS[i]}
        own = [row for row in traffic if row["kind"] == kind]
        total = [row["forward_bytes"] + row["backward_bytes"] for row in own]
        axes.plot(
            [r["ranks"] for r in own],
            [t / whole_kv for t in total],
            linestyle="",
            **style,
        )
        ranks = [n for n in (2, 4, 8, 16, 32, 64) if kind != "ulysses" or n <= H]
        sizes = [form(n) / n for n in ranks]
        axes.plot(ranks, sizes, "--", color=show.COLORS[i], linewidth=1.3)
        words = f"{kind}, ends at {H} heads" if kind == "ulysses" else kind
        axes.text(ranks[-1] * 1.1, sizes[-1], words, color=show.COLORS[i], va="center")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks := [2, 4, 8, 16, 32, 64], [str(n) for n in ranks])
    axes.set(
        xlabel="ranks", ylabel="bytes sent a layer / all keys and values", ylim=(0, 3.6)
    )
    axes.set_title("Forward and backward: measured, and closed form (dashed)")
show.figure(
    figure,
    alt="Bytes sent against ranks: gather near 2, ring near 3, Ulysses falls and ends at 16 ranks.",
)
of_ring = next(r for r in traffic if (r["kind"], r["ranks"]) == ("ring", 4))
lab.reveal("ring_backward", in_S(of_ring)[1], formula=6, note="2(N-1): block, gradient")

# %% [markdown]
# **Question**: forward and backward together, from how many ranks on (of those measured) does Ulysses send fewer bytes than
# the ring?

# %% tags=["question"]
### BEGIN SOLUTION
ulysses_from = 4
### LAB ulysses_from = None  # your answer, a number of ranks
### END SOLUTION
show.table(traffic)

# %% tags=["grade"]
lab.answer("ulysses_from", ulysses_from)

# %% [markdown]
# ## 8 · What is kept
#
# A fourth kind, *scores*: gathered keys, and e01's attention, which writes out T/N x T scores a head. `MemoryLedger` enters
# every tensor: at the peak of forward, and what autograd keeps after it.
#
# **Predict**: 1,024 tokens, 8 ranks. How many times your ring's peak is that of *scores*?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 32
### LAB guess = None  # times, your guess
### END SOLUTION
lab.predict("peak", guess)

# %% tags=["experiment"]
from minitrain.measure.memory import MemoryLedger
from minitrain.parallel.context import gather_sequence


def with_scores(group, q, k, v):
    """The naive rank: all keys, and all its queries' scores at once."""
    whole = gather_sequence(group, "contiguous", torch.stack((k, v)).detach(), dim=-2)
    mine, length = q.shape[2], q.shape[2] * group.size
    places = group.rank * mine + torch.arange(mine)
    later = torch.arange(length) > places[:, None]
    mask = torch.zeros(mine, length).masked_fill_(later, -torch.inf)
    return attention_naive(q, *whole.requires_grad_(), mask)


def held(group, lengths):
    """Bytes of a layer's attention on one rank: at the peak, and kept for backward."""
    rows = []
    for kind, attention in {**kinds, "scores": with_scores}.items():
        for length in lengths:
            given = part_of(group, length)
            with MemoryLedger(torch.nn.Module(), device="cpu") as ledger:
                out = attention(group, *given)
                kept = ledger.now["activations"]
            rows.append(
                {"kind": kind, "ranks": group.size, "length": length, "heads": H,
                 "kv_heads": K, "head_size": C, "peak_bytes": ledger.peak_bytes,
                 "kept_bytes": kept}
            )  # fmt: skip
            del out
    return rows


lengths = lab.size("lengths")
memory = launch(held, lengths, ranks=lab.size("held_ranks"), timeout=120)[0]

# %% tags=["grade"]
lab.experiment("memory", memory)

# %% tags=["experiment"]
per_token = {  # bytes kept for each token of the text, where no score is kept
    "gather": lambda n: 4 * ((2 * H * C + H) / n + 2 * K * C),
    "ring": lambda n: 4 * (2 * H * C + H + 2 * K * C) / n,
    "ulysses": lambda n: 4 * (2 * H * C + H + 2 * max(K, n) * C) / n,
}
N = lab.size("held_ranks")
with show.canvas(columns=2, width=10.5, height=4.2) as (figure, axes):
    for ax, column, words in zip(
        axes,
        ("peak_bytes", "kept_bytes"),
        ("at the peak of forward", "kept for backward"),
    ):
        curves = {}
        for kind in (*kinds, "scores"):
            own = [row for row in memory if row["kind"] == kind]
            curves[kind] = (lengths, [row[column] / 1e6 for row in own])
        closed = {
            f"{kind}, closed form": (lengths, [form(N) * t / 1e6 for t in lengths])
            for kind, form in per_token.items()
        }
        show.lines(
            curves,
            theory=closed if column == "kept_bytes" else None,
            x="tokens of the text",
            y="MB a rank",
            title=f"{words}, {N} ranks",
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
    alt="Bytes against tokens: scores grow fourfold a doubling, the ring about twofold and least.",
)
peak = {(row["kind"], row["length"]): row["peak_bytes"] for row in memory}
ratio = peak["scores", lengths[-1]] / peak["ring", lengths[-1]]
lab.reveal(
    "peak", ratio, formula=4 * N, note="of scores alone: T/N x T against T/2N x T/2N"
)

# %% [markdown]
# **Explain**: *gather* keeps all keys and values on every rank: 2·K·C numbers a token that no N divides. *Ring* and
# *Ulysses* keep 1/N of everything; Ulysses N key heads instead of K (dashed: closed forms). At its peak the ring holds one
# half-block's scores, which a tiled kernel would bound, too.

# %% [markdown]
# ## 9 · Who waits
#
# The FLOPs of your `ring_forward`, counted on each rank, in both orders. A matmul is counted however long it takes.

# %% tags=["experiment"]
from minitrain.measure.flops import counted_flops


def orders(length, size):
    return {
        "contiguous": torch.arange(length).view(size, -1),
        "zigzag": zigzag(length, size)[0],
    }


def work(group, length):
    """FLOPs that this rank computes, and bytes that it sends, in one forward ring."""
    rows = []
    for order, places in orders(length, group.size).items():
        q, k, v = (z.detach() for z in part_of(group, length))
        kv = torch.stack((k, v))
        group.trace.ops.clear()
        flops = counted_flops(lambda: ring_forward(group, places, q, kv))  # noqa: B023
        rows.append(
            {"order": order, "ranks": group.size, "rank": group.rank, "length": length,
             "heads": H, "head_size": C, "flops": flops,
             "forward_bytes": group.trace.bytes_sent()}
        )  # fmt: skip
    return rows


balance = []
for ranks in lab.size("balance_ranks"):
    balance += sum(launch(work, lab.size("balance_length"), ranks=ranks), [])

# %% tags=["grade"]
lab.experiment("balance", balance)

# %% [markdown]
# Closed form: a half-block is T/2N x T/2N pairs, 4·H·C FLOPs each. Rank r computes 4r + 3 of them contiguously, and
# 2N + 1 in zig-zag, **whichever r**. In every step of the ring, too: 3 in the first, 2 in each other. (`attend` computes a
# block on the diagonal whole, then masks it.)

# %% tags=["picture"]
N = 4


def mosaic(ax, places):
    """Each half-block of the mask: the colour of the rank that computes it, and its step."""
    half = places.shape[1] // 2
    for rank in range(N):
        for step in range(N):
            owner = (rank - step) % N
            for rows, keys, offset in halves(places, rank, owner):
                if offset < 0:
                    continue
                y, x = (
                    int(places[r, s][0]) / half
                    for r, s in ((rank, rows), (owner, keys))
                )
                corners = [(x, y), (x, y + 1), (x + 1, y + 1), (x + 1, y)][
                    : 4 if offset else 3
                ]
                ax.fill(
                    *zip(*corners),
                    color=show.COLORS[rank],
                    edgecolor="white",
                    linewidth=1.5,
                )
                shift = 0.5 if offset else 0.33
                ax.text(
                    x + shift,
                    y + 1.02 - shift,
                    step + 1,
                    color="white",
                    ha="center",
                    va="center",
                    fontsize=9,
                )
    for rank in range(N):
        for rows in (slice(0, half), slice(half, 2 * half)):
            at = int(places[rank, rows][0]) / half + 0.5
            ax.text(
                -0.15,
                at,
                f"rank {rank}",
                color=show.COLORS[rank],
                ha="right",
                va="center",
                fontsize=9,
            )
    ax.set(xlim=(0, 2 * N), ylim=(2 * N, 0), xticks=[], yticks=[], aspect="equal")
    ax.set_xlabel("keys, in the order of the text")
    ax.grid(visible=False)


with show.canvas(columns=2, rows=2, width=10, height=8) as (figure, axes):
    for column, (order, places) in enumerate(orders(8 * N, N).items()):
        mosaic(axes[0, column], places)
        axes[0, column].set_title(f"{order}: blocks, by rank and step of the ring")
        own = [
            r["flops"] / 1e6 for r in balance if (r["order"], r["ranks"]) == (order, N)
        ]
        names = [f"rank {rank}" for rank in range(N)]
        ax = axes[1, column]
        ax.bar(names, own, 0.64, color=show.COLORS[:N])
        labels = [f"{value:.1f}" for value in own]
        ax.bar_label(ax.containers[0], labels, label_type="center", color="white")
        ax.axhline(sum(own) / N, linestyle="--", color="#222222", linewidth=1.3)
        ax.text(-0.4, sum(own) / N * 1.02, "an even share", va="bottom", fontsize=9)
        ax.set(ylabel="MFLOP a rank, counted", ylim=(0, 1.05 * max(own)))
        words = f"the busiest rank: {max(own) * N / sum(own):.2f} x an even share"
        ax.set_title(words)
        ax.grid(axis="x", visible=False)
    axes[1, 1].set_ylim(axes[1, 0].get_ylim())
show.figure(
    figure,
    alt="Causal masks of 4 ranks, contiguous and zig-zag, with the step of each block; FLOPs a rank.",
)

# %% [markdown]
# **Question**: a ring lasts as long as its busiest rank. On eight ranks, how many times as fast is zig-zag as contiguous, by
# the FLOPs in `balance`?

# %% tags=["question"]
at8 = {
    order: [r["flops"] for r in balance if (r["order"], r["ranks"]) == (order, 8)]
    for order in ("contiguous", "zigzag")
}
### BEGIN SOLUTION
zigzag_gain = max(at8["contiguous"]) / max(at8["zigzag"])
### LAB zigzag_gain = None  # your answer, 1 where both take as long
### END SOLUTION

# %% tags=["grade"]
lab.answer("zigzag_gain", zigzag_gain)

# %% [markdown]
# **Question**: with t tokens a rank, compute grows as t², messages as t. On H100s with InfiniBand, from how many tokens a
# rank does a ring of eight compute as long as it sends? Numbers of bfloat16 have half the bytes you counted.

# %% tags=["question"]
rank0 = next(r for r in balance if (r["order"], r["ranks"]) == ("zigzag", 8))
t = rank0["length"] // rank0["ranks"]
compute_seconds = rank0["flops"] / 794e12  # measured on H100, large matmuls
message_seconds = rank0["forward_bytes"] / 2 / 36.75e9  # an NDR card, measured
### BEGIN SOLUTION
tokens_to_hide = t * message_seconds / compute_seconds
### LAB tokens_to_hide = None  # your answer, tokens a rank
### END SOLUTION
print(
    f"{t} tokens a rank: {show.seconds_text(compute_seconds)} to compute, {show.seconds_text(message_seconds)} to send"
)

# %% tags=["grade"]
lab.answer("tokens_to_hide", tokens_to_hide)

# %% [markdown]
# **Takeaway**: a ring hides behind some 9,000 tokens a rank there, and takes any N. Liu et al. ask for F/B tokens a block,
# 21,600 on this card: causality doubles that, 4 query heads a key head divide it by 4. Ulysses sends less from 4 ranks on,
# but none of it under attention, and ends at H.

# %% [markdown]
# > **On GPUs.** Llama 3 trained on 131,072 tokens over 16 ranks in this order, and *gathers* keys: with 8 key heads they
# > are small beside the computing, and document masks are easier so (3.3.2). Ulysses inside a node and a ring between nodes
# > combine, too.

# %%
lab.score(read="minitrain/parallel/context.py")

# %% [markdown]
# Every cut so far, of batch, matrices, layers and tokens, can be one axis of a mesh. Next,
# [e02f · Four dimensions](e02f_four_dimensions.ipynb) joins them.
