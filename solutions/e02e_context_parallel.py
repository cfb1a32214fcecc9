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
from minitrain.ranks.launch import launch

lab = Lab("e02e_context_parallel")

# %% [markdown]
# ## 1 · Half an answer, and half an answer
#
# Norms, MLPs and the loss work on each token alone. Attention reads *all* earlier tokens, on other ranks too.
#
# So compute attention to one set of keys, then to another, and **merge**. `attend` gives what that takes; `offset` is how
# many places the first query comes after the first key:


# %%
def attend(q, k, v, offset):
    """q (B, H, I, C), k, v (B, K, J, C) -> out, the values' mean weighed by softmax, and
    lse, log Σ exp(score): what it weighs. Query i reads keys 0 to i + offset."""
    exact = torch.promote_types(q.dtype, torch.float32)
    k, v = (z.repeat_interleave(q.shape[1] // z.shape[1], dim=1) for z in (k, v))
    scores = (q.to(exact) / q.shape[-1] ** 0.5) @ k.to(exact).mT  # (B, H, I, J)
    rows = torch.arange(q.shape[2])[:, None] + offset
    scores.masked_fill_(torch.arange(k.shape[2]) > rows, -torch.inf)
    lse = scores.logsumexp(dim=-1)  # (B, H, I)
    base = lse.masked_fill(lse == -torch.inf, 0)
    return scores.sub_(base[..., None]).exp_() @ v.to(exact), lse


# %% [markdown]
# ### Exercise 1 · `merge`
#
# Difficulty 2 of 5 · 6 minutes · 8 points
#
# Two sets together weigh `both = log(exp(lse) + exp(new_lse))`; each `out` counts with its share `exp(lse - both)`.
#
# Scores of 1,000 exist, exp(1000) does not: `torch.logaddexp` knows how. A row that read nothing has `lse = -inf`, out 0;
# two of them give 0 and -inf, not NaN.


# %% tags=["exercise"]
def merge(out, lse, new_out, new_lse) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to two sets of keys -> to both; out (B, H, T, C), lse (B, H, T), all of
    one dtype. It may write into its arguments; no other function of this lab may.
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
# N ranks form a ring ([Liu et al. 2023](https://arxiv.org/abs/2310.01889)). Each sends the keys and values it has to the
# right and takes the left one's, N-1 times. `pass_on` starts a message: it costs nothing if it travels *while* the rank
# computes with the block it has.
#
# ### Exercise 2 · `around`
#
# Difficulty 3 · 7 minutes · 10 points


# %%
def pass_on(group, tensor):
    """Starts `tensor` to the right; calling the result waits for what comes from the left."""
    arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    leaving = group.isend(tensor, (group.rank + 1) % group.size)
    return lambda: (leaving.wait(), arriving.wait())[1]


# %% tags=["exercise"]
def around(group, block: torch.Tensor):
    """A generator of (owner, block), N times: this rank's own, then the left neighbour's, …

    Each arrives from the left and goes on to the right, N-1 messages: the last block goes
    no further. Call `pass_on` *before* a block is yielded, and its result when the caller
    comes back for the next. About 5 lines."""
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
starts = torch.arange(4) / 4  # where each quarter of the text begins
pairs = (starts + 1 / 4) ** 2 - starts**2  # i + 1 keys, added up
lab.reveal("last_over_first", (pairs[3] / pairs[0]).item(), note="1 : 3 : 5 : 7")

# %% [markdown]
# ### Exercise 3 · `zigzag`
#
# Difficulty 2 · 6 minutes · 8 points
#
# All wait for the slowest. So **zig-zag** order ([Llama 3](https://arxiv.org/abs/2407.21783), section 3.3.2) cuts 2N chunks
# and gives rank r an early and a late one, r and 2N-1-r: of two ranks, one has chunks 0 and 3, the other 1 and 2.


# %% tags=["exercise"]
def zigzag(length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """-> places (N, T/N): the tokens that each rank holds, its early chunk first; and
    inverse (T,): all ranks' tokens side by side, then [inverse], are the text. Both int64.

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
# ### Exercise 4 · `ring_forward`
#
# Difficulty 4 · 10 minutes · 12 points
#
# For each block as it comes `around`, for each of its `halves` with yours: `attend(q, k, v, offset)` of those rows and keys,
# merged into those rows, while the next block travels. Where `offset < 0` every key comes after every query: compute
# **nothing**.


# %%
def halves(places, rank, owner):
    """Of a rank's two runs of tokens with the owner's two: rows, keys, offset in the text."""
    half = places.shape[1] // 2
    for rows in (slice(0, half), slice(half, 2 * half)):
        for keys in (slice(0, half), slice(half, 2 * half)):
            yield rows, keys, int(places[rank, rows][0] - places[owner, keys][0])


def nothing_read(q):
    """Where a merge begins, in float32: sums of N parts must not be rounded N times."""
    exact = torch.promote_types(q.dtype, torch.float32)
    lse = q.new_full(q.shape[:3], -torch.inf, dtype=exact)
    return torch.zeros_like(q, dtype=exact), lse


# %% tags=["exercise"]
def ring_forward(group, places, q, kv) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, H, T/N, C), kv (2, B, K, T/N, C), this rank's -> out, in q's dtype, and
    lse (B, H, T/N), in that of nothing_read. `places` (N, T/N): any two runs of tokens a
    rank. About 8 lines."""
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

# %% tags=["experiment", "nbval-check-output"]
from einops import rearrange
from minitrain.model.config import ModelConfig
from minitrain.model.rope import rotate, rotation

H, K, C = lab.size("heads"), lab.size("kv_heads"), lab.size("head_size")
config = ModelConfig(8, H * C, 1, H, K, ffn_size=8)  # for its angles of RoPE


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


def in_order(group, part, inverse):
    """All ranks' parts (B, H, T/N, C), in the order of the text."""
    whole = group.all_gather(part.new_empty(group.size, *part.shape), part)
    return rearrange(whole, "n b h t c -> b h (n t) c")[:, :, inverse]


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
    print(f"{positions}: equals one process:", torch.allclose(four, one, atol=1e-10))

# %% [markdown]
# ## 5 · The way back
#
# Keys and values go round once more. This rank's queries give a **part** of a block's gradient, which is its owner's. So
# the gradient follows its block, a step behind, gathers each rank's part, and is complete when it comes home.
#
# ### Exercise 5 · `ring_backward`
#
# Difficulty 5 · 15 minutes · 10 points


# %% tags=["exercise"]
def ring_backward(group, kv, gradients) -> tuple[torch.Tensor, torch.Tensor]:
    """kv (2, B, K, T/N, C), this rank's -> dq, summed over all blocks, and the complete
    gradient of kv. On rank r of 3:

        link      |  own kv  | kv of r-1 | dkv of r-1 | dkv of r-2 |
        compute   | own part | for r-1   |  for r-2   |

    `gradients(owner, block)`, called once as each block comes `around`, gives dq of this
    block and this rank's part of its dkv, both yours, in the dtypes of the results. The
    own part waits at home. To every other add what came from the left, if anything did
    yet, and `pass_on` the sum: N-1 messages. Each travels while the next block is
    computed: wait for it only to add. One rank alone sends nothing. About 11 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.parallel.context.plain:ring_backward
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
#
# **Run**: the gradients that it gives on four ranks, against plain attention in one process.

# %% tags=["experiment", "nbval-check-output"]
from minitrain.model.attention.mask import Mask
from minitrain.model.attention.tiled import tiled_backward
from torch.nn.functional import scaled_dot_product_attention


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


def ring_gradients(group):
    """Of the sum of squares of the answers, by q, k and v of the whole text."""
    places, inverse = zigzag(64, group.size)
    parts = [z[:, :, places[group.rank]] for z in inputs(64, torch.float64)]
    q, k, v = (part.requires_grad_() for part in parts)
    Ring.apply(q, torch.stack((k, v)), group, places).square().sum().backward()
    return [in_order(group, part.grad, inverse) for part in parts]


q, k, v = (z.requires_grad_() for z in inputs(64, torch.float64))
out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
out.square().sum().backward()
for name, z, gradient in zip("qkv", (q, k, v), launch(ring_gradients, ranks=4)[0]):
    is_equal = torch.allclose(gradient, z.grad, atol=1e-10)
    print(f"gradient of {name}: equals one process: {is_equal}")

# %% [markdown]
# ## 6 · Or exchange heads for tokens
#
# Heads never read each other. **Ulysses** ([Jacobs et al. 2023](https://arxiv.org/abs/2309.14509)) sends each rank *all*
# tokens of H/N heads, runs plain attention, and sends the answers back. Of K < N key heads, each goes to the N/K ranks
# whose query heads read it.
#
# ### Exercise 6 · `ulysses`
#
# Difficulty 4 · 10 minutes · 12 points


# %% tags=["exercise"]
def ulysses(q, k, v, size: int, exchange) -> torch.Tensor:
    """q (B, H, T/N, C), k and v (B, K, T/N, C) -> (B, H, T/N, C), on N = size ranks.

    `exchange` is a differentiable all-to-all: (N, …) in, piece r for rank r; (N, …) out,
    piece r from rank r; of q, k and v together or one by one. Rank r takes heads r·H/N to
    (r+1)·H/N; tokens are in the text's order. N divides K, or K divides N. A ValueError,
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

from minitrain.model.attention.grouped_query import attention_naive
from minitrain.parallel.collectives.differentiable import all_to_all
from minitrain.parallel.context.gather import gather_attention


def ring_attention(group, q, k, v):
    places, _ = zigzag(q.shape[2] * group.size, group.size)
    return Ring.apply(q, torch.stack((k, v)), group, places)


kinds = {
    "gather": lambda group, q, k, v: gather_attention(group, "contiguous", q, k, v),
    "ring": ring_attention,
    "ulysses": lambda group, q, k, v: ulysses(
        q, k, v, group.size, partial(all_to_all, group=group)
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

# %% tags=["experiment"]
forms = {  # in S, forward and backward
    "gather": lambda n: 2 * (n - 1),
    "ring": lambda n: 3 * (n - 1),
    "ulysses": lambda n: 2 * (n - 1) / n * (H + max(K, n)) / K,
}
whole_kv = 4 * 2 * K * T * C  # bytes of all keys and values: N·S
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
    alt="Bytes sent against ranks: gather near 2, ring near 3, Ulysses falls and ends at 16 ranks.",
)
of_ring = next(r for r in traffic if (r["kind"], r["ranks"]) == ("ring", 4))
measured = of_ring["backward_bytes"] / (whole_kv / 4)  # in S of four ranks
lab.reveal("ring_backward", measured, formula=6, note="2(N-1): block, gradient")

# %% [markdown]
# **Explain**, in S: *gather* N-1 each way; *ring* N-1, then 2(N-1), as the gradient goes with its block; *Ulysses*
# (N-1)/N·(H + max(K, N))/K each way, which falls with 1/N **until the heads run out**.
#
# **Question**: both ways together, from how many ranks on (of those measured) does Ulysses send fewer bytes than the ring?

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
# A fourth kind, *scores*: gathered keys, and e01's attention, which writes out T/N x T scores a head. `MemoryLedger` counts
# all tensors' bytes: at the peak of forward, on the rank with most, and what autograd keeps.
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
from minitrain.parallel.context.gather import gather_sequence


def with_scores(group, q, k, v):
    """The naive rank: all keys, and all its queries' scores at once."""
    whole = gather_sequence(group, "contiguous", torch.stack((k, v)).detach(), dim=-2)
    mine, length = q.shape[2], q.shape[2] * group.size
    places = group.rank * mine + torch.arange(mine)
    later = torch.arange(length) > places[:, None]
    mask = torch.zeros(mine, length).masked_fill_(later, -torch.inf)
    return attention_naive(q, *whole.requires_grad_(), mask)


def held(group, lengths):
    """Bytes of a layer's attention on this rank: at the peak, and kept for backward."""
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
results = launch(held, lengths, ranks=lab.size("held_ranks"), timeout=120)
memory = [max(rows, key=lambda row: row["peak_bytes"]) for rows in zip(*results)]

# %% tags=["grade"]
lab.experiment("memory", memory)

# %% tags=["experiment"]
per_token = {  # bytes kept for each token of the text, where no score is kept
    "gather": lambda n: 4 * ((2 * H * C + H) / n + 2 * K * C),
    "ring": lambda n: 4 * (2 * H * C + H + 2 * K * C) / n,
    "ulysses": lambda n: 4 * (2 * H * C + H + 2 * max(K, n) * C) / n,
}
N = lab.size("held_ranks")
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
            f"{kind}, closed form": (lengths, [form(N) * t / 1e6 for t in lengths])
            for kind, form in per_token.items()
        }
        ax.set_ylim(0.6 * min(megabytes), 1.6 * max(megabytes))
        show.lines(
            curves,
            theory=closed if column == "kept_bytes" else None,
            x="tokens of the text",
            y=f"MB a rank, of {N}",
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
    alt="Bytes against tokens, at the peak and kept: scores most, growing fourfold a doubling, then gather, Ulysses, and the ring least.",
)
peak = {(row["kind"], row["length"]): row["peak_bytes"] for row in memory}
ratio = peak["scores", lengths[-1]] / peak["ring", lengths[-1]]
lab.reveal(
    "peak", ratio, formula=4 * N, note="of scores alone: T/N x T against T/2N x T/2N"
)

# %% [markdown]
# **Explain**: *gather* keeps all keys and values on every rank: 2·K·C numbers a token that no N divides. *Ring* and
# *Ulysses* keep 1/N of everything; Ulysses N key heads instead of K (dashed: closed forms). Of scores, your ring holds one
# half-block's at a time, *gather* a tile's, Ulysses' kernel fewer still.

# %% [markdown]
# ## 9 · Who waits
#
# The FLOPs of your `ring_forward`, counted on each rank, in both orders. A matmul is counted however long it takes, and a
# block on the diagonal whole: `attend` computes it, then masks it.

# %% tags=["experiment"]
from itertools import product

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

# %% tags=["picture"]
N = 4


def mosaic(ax, places):
    """Each half-block of the mask: the colour of the rank that computes it, and its step."""
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
            ax.text(x, y, step + 1, color="white", ha="center", **style)
    for rank, row in enumerate(places):
        for at in {int(place) // half + 0.5 for place in row}:
            words = {"color": show.COLORS[rank], "ha": "right", **style}
            ax.text(-0.15, at, f"rank {rank}", **words)
    ax.set(xlim=(0, 2 * N), ylim=(2 * N, 0), xticks=[], yticks=[], aspect="equal")
    ax.set_xlabel("keys, in the order of the text")
    ax.set_ylabel("queries, by rank", labelpad=44)
    ax.grid(visible=False)


with show.canvas(columns=2, rows=2, width=10, height=8) as (figure, axes):
    for column, (order, places) in enumerate(orders(8 * N, N).items()):
        mosaic(axes[0, column], places)
        axes[0, column].set_title(f"{order}: who computes a block, in which step")
        rows = [r for r in balance if (r["order"], r["ranks"]) == (order, N)]
        own, ax = [r["flops"] / 1e6 for r in rows], axes[1, column]
        ax.bar([f"rank {rank}" for rank in range(N)], own, 0.64, color=show.COLORS[:N])
        labels = [f"{value:.1f}" for value in own]
        ax.bar_label(ax.containers[0], labels, label_type="center", color="white")
        share = sum(own) / N
        ax.axhline(share, linestyle="--", color="#222222", linewidth=1.3)
        ax.text(-0.4, share * 1.02, "an even share", va="bottom", fontsize=9)
        ax.set(ylabel="MFLOP, counted", ylim=(0, 1.05 * max(own)))
        ax.set_title(f"the busiest rank: {max(own) / share:.2f} x an even share")
        ax.grid(axis="x", visible=False)
    axes[1, 1].set_ylim(axes[1, 0].get_ylim())
show.figure(
    figure,
    alt="Causal masks of 4 ranks, contiguous and zig-zag, with the step of each block; FLOPs a rank.",
)

# %% [markdown]
# **Explain**: of half-blocks, T/2N x T/2N pairs, rank r computes 4r + 3 in contiguous order, and 2N + 1 in zig-zag,
# **whichever r**: 3 in the first step, 2 in each other.
#
# **Question**: a ring lasts as long as its busiest rank. On eight ranks, how many times as fast is zig-zag, by `balance`?

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
message_seconds = rank0["forward_bytes"] / 2 / 36.75e9  # 400 Gb/s InfiniBand, measured
### BEGIN SOLUTION
tokens_to_hide = t * message_seconds / compute_seconds
### LAB tokens_to_hide = None  # your answer, tokens a rank
### END SOLUTION
times = [show.seconds_text(z) for z in (compute_seconds, message_seconds)]
print(f"{t} tokens a rank: {times[0]} to compute, {times[1]} to send")

# %% tags=["grade"]
lab.answer("tokens_to_hide", tokens_to_hide)

# %% [markdown]
# **Takeaway**: a ring hides its messages behind some 9,000 tokens a rank there, and takes any N. (Liu et al. ask for FLOP/s
# over byte/s, 21,600; causality doubles that, 4 query heads a key head quarter it, and a rank's own block needs none.)
# Ulysses sends less from 4 ranks on, but hides nothing, and ends at H.

# %% [markdown]
# > **On GPUs.** Llama 3 trained on 131,072 tokens over 16 ranks in this order, and *gathers* keys: 8 key heads are small
# > beside the computing, and masks between documents easier (section 3.3.2). Ulysses inside a node and a ring between nodes
# > combine, too.
#
# Every cut so far can be one axis of a mesh. Next: [e02f · Four dimensions](e02f_four_dimensions.ipynb).

# %%
lab.score(read="minitrain/parallel/context/ring.py")
