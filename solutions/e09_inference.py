# %% [markdown]
# # e09 · Inference
#
# **One model, many users: a sampler, a KV cache, pages shared between requests, one rule for every step. You build the parts of a
# serving engine, and it generates the same tokens in ten modes.**
#
# 180 minutes · CPU is enough · before: [e08 · Quantization](e08_quantization.ipynb) · [map of the course](index.ipynb)
#
# You build a sampler, attention over a KV cache, a pool of blocks, block tables that share prefixes, the scheduler's step, and a
# quantized KV cache. By the end you will have made this picture: the same requests, served in four ways.
#
# ![Tokens told against seconds for naive generation, a cache, static batches and continuous batches: each of the four lines is steeper than the one before](../labs/pictures/e09_inference.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, ideas, show

lab = Lab("e09_inference")

# %% [markdown]
# ## 1 · From logits to a token
#
# Given a text, the model assigns each of V tokens a number, its **logit** $z_i$. Which token comes next is up to us. With a
# **temperature** $\tau$,
#
# $$p_i = \frac{e^{z_i / \tau}}{\sum_j e^{z_j / \tau}}.$$
#
# A small $\tau$ makes the likeliest token even likelier. In the limit, written $\tau = 0$, it is always chosen: **greedy** decoding. Two
# cut-offs remove unlikely tokens, because there are so many of them that together they are drawn often. **Top-k** keeps the k likeliest.
# **Top-p** renormalizes what top-k has left and, starting from the likeliest, keeps the fewest tokens whose probabilities add up to at
# least p ([Holtzman et al. 2020](https://arxiv.org/abs/1904.09751)).

# %%
ideas.token_cuts()

# %% [markdown]
# A server answers many requests in one batch. If all of them drew from one random generator, an answer would depend on who else is in
# the batch: a neighbour that draws first takes "your" random number. So each request has its own generator. Its seed alone then determines
# its answer, whatever else is in the batch, and even if it was interrupted.
#
# ### Exercise 1 · `sample`
#
# Difficulty 2 of 5 · 12 minutes · 9 points
#
# The order is temperature, top-k, top-p. The token with which the sum reaches p is kept, so at least one remains; `top_k` may exceed
# the vocabulary.


# %% tags=["exercise"]
def sample(logits: torch.Tensor, requests: list) -> list[int]:
    """logits (B, V) float32, unchanged, and B requests -> a token for each, as an int.
    A request has `temperature` (0 is greedy, and draws nothing), `top_k` and `top_p`
    (None: no cut) and `generator`, a torch.Generator. About 9 lines of yours."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.inference.plain.reference:sample
    ### END SOLUTION


# %% tags=["grade"]
sample = lab.grade(sample)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# A loop over the rows is fine. Sort a row once, likeliest first: then both cut-offs are positions in this order.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `ordered, order = (row / temperature).sort(descending=True)`. `ordered[:None]` is all of it. `p.cumsum(0) - p` is the sum over the
# likelier tokens.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Set p to 0 where the likelier tokens already reach top_p. `torch.multinomial(p, 1, generator=request.generator)` returns a position
# in the order, and does not need a sum of 1.
#
# </details>

# %% [markdown]
# ## 2 · What need not be computed twice
#
# The naive way to generate n tokens after a prompt of t tokens runs the model on the whole text for each of them:
# $t + (t + 1) + \dots \approx n\,(t + n/2)$ tokens in all. With $t = 24$ and $n = 24$ these are about 860.
#
# Most of that was computed before. A token attends only to what comes before it, so nothing about it changes as the text grows. Later
# tokens need just two things from it in each layer: its **key** and its **value**. Keep them, and every token is computed once:
# $t + n - 1 = 47$ in all, since nothing attends to the last one.

# %%
ideas.cache_steps()

# %% [markdown]
# Two things can go wrong. **Positions**: RoPE rotates queries and keys by their position in the text. A token that arrives alone is not
# at position 0, but after everything in the cache. Its key is rotated *before* it is stored, and never again. **The mask**: new token i of
# a chunk is at position length + i. It attends to everything in the cache, to the new tokens before it, and to itself.
#
# ### Exercise 2 · `cached_attention`
#
# Difficulty 3 · 15 minutes · 10 points
#
# You may use PyTorch's `scaled_dot_product_attention`. Beware of its `is_causal=True`: it aligns the *first* query with the *first* key.


# %% tags=["exercise"]
def cached_attention(layer, x, rope, keys, values, length: int):
    """x (B, T, D): T new tokens of each text, behind `length` that are kept -> (B, T, D).
    layer.q, .k, .v and .o are its projections, modules: call each, layer.q(x), on every
    token once. layer.split(z): (B, T, heads·C) -> (B, T, heads, C).
    rope(z, positions) turns z (B, T, heads, C) by positions (T,) int64.
    keys, values (B, K, S, C): write into them, at places length … length + T - 1. What
    lies behind is rubbish, NaN perhaps. Query head h of H reads key/value head
    h // (H/K). About 10 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.inference.plain.reference:cached_attention
    ### END SOLUTION


# %% tags=["grade"]
cached_attention = lab.grade(cached_attention)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Four steps: project x and split it into heads; rotate queries and keys by `torch.arange(length, length + T)`; write keys and values;
# attend to the first length + T positions only.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Heads are dimension 2 after `split`, and dimension 1 in the cache: `.transpose(1, 2)`. The mask (T, length + T), True where attention is
# allowed: `positions[:, None] >= torch.arange(length + T)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end], attn_mask=seen, enable_gqa=True)`, all (B, heads, …, C). Then
# `.transpose(1, 2).flatten(2)` and `layer.o`.
#
# </details>

# %% [markdown]
# ### Two kinds of work
#
# A prompt's tokens are computed together: **prefill**. An answer's tokens come one by one: **decode**. Both read all P weights once per
# pass. With n tokens in the pass and 4 bytes per weight, the **arithmetic intensity**, in FLOPs per byte, is about
#
# $$\frac{2 P n}{4 P + \text{bytes of keys and values}}.$$
#
# A machine has a peak in FLOP/s and a bandwidth in bytes/s. Below their ratio, the **ridge point**, memory is the limit; above it,
# arithmetic is. One decoded token has an intensity of 1/2. A prompt shares the weights, and one set of keys and values, among all its
# tokens. A *batch* of n answers shares the weights too, but each text has keys and values of its own.

# %%
ideas.roofline()

# %% [markdown]
# Now measure both on a model with random weights, since speed does not depend on their values. Every text has 256 tokens in its cache.

# %% tags=["experiment", "folded"]
from minitrain.inference.plain.loop import Cache, read_on
from minitrain.measure.clock import copy_bandwidth, matmul_peak, median_seconds
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

WIDE = lab.size("wide")
wide_config = ModelConfig(512, WIDE, lab.size("wide_layers"), 8, 4, 2 * WIDE)
wide = build(wide_config, seed=0)
in_blocks = sum(p.numel() for p in wide.blocks.parameters())
in_head = wide.head.weight.numel()
bandwidth, peak, KEPT = copy_bandwidth(), matmul_peak(), 256


def work_of(texts, new):
    """FLOPs and bytes of a pass: `new` tokens of each text, behind KEPT."""
    c, tokens = wide_config, texts * new
    pairs = tokens * (KEPT + (new + 1) / 2)  # of a query and a key that it reads
    matmuls = 2 * in_blocks * tokens + 2 * in_head * texts
    flops = matmuls + 4 * c.layers * c.heads * c.head_size * pairs
    kept = 2 * c.layers * c.kv_heads * c.head_size * texts * (KEPT + new)
    return flops, 4 * (in_blocks + in_head + kept)


def measured(texts, new):
    cache = Cache(wide, texts, KEPT + new)
    tokens = torch.randint(512, (texts, new))

    def once():
        cache.length = KEPT
        read_on(wide, tokens, cache, cached_attention)

    return median_seconds(once, lab.size("repeats"), 1)


roofline = []
for kind in ("prefill", "decode"):
    for n in (1, 4, 16, 64, 256):
        texts, new = (1, n) if kind == "prefill" else (n, 1)
        flops, size = work_of(texts, new)
        row = {"kind": kind, "tokens": n, "flops": flops, "bytes": size}
        row |= {"seconds": measured(texts, new), "peak": peak, "bandwidth": bandwidth}
        roofline.append(row)

# %%
show.table(
    [
        {
            "pass": f"{row['kind']}, {row['tokens']} tokens",
            "intensity (FLOPs/byte)": row["flops"] / row["bytes"],
            "measured (ms)": 1e3 * row["seconds"],
            "roofline (ms)": 1e3 * max(row["flops"] / peak, row["bytes"] / bandwidth),
            "a token (ms)": 1e3 * row["seconds"] / row["tokens"],
        }
        for row in roofline
    ],
    formats={"intensity (FLOPs/byte)": "{:.1f}".format}
    | dict.fromkeys(
        ["measured (ms)", "roofline (ms)", "a token (ms)"], "{:.2f}".format
    ),
)
print(f"the ridge of this machine: {peak / bandwidth:.1f} FLOPs a byte")

# %% tags=["grade"]
lab.experiment("roofline", roofline)

# %% [markdown]
# **Question**: from how many tokens on is a *prompt* above the ridge point of your machine? (The smallest such number in the table.)

# %% tags=["question"]
### BEGIN SOLUTION
ridge = min(
    row["tokens"]
    for row in roofline
    if row["kind"] == "prefill" and row["flops"] / row["bytes"] >= peak / bandwidth
)
### LAB ridge = None  # your answer, tokens
### END SOLUTION

# %% tags=["grade"]
lab.answer("ridge", ridge)

# %% [markdown]
# **Explain**: a prompt's intensity grows from 0.5 to 132 FLOPs per byte. A batch of answers shares only the weights. Its keys
# and values grow with it: each text's 12.6 MFLOPs per token come with 1.58 MB of its own, so *no* batch gets above 8 FLOPs per byte, or 16
# if all numbers had 2 bytes. The ridge of our CPUs was between 5 and 15: only the largest batches pass the lower one, and none the higher.

# %% [markdown]
# On an H100 in bfloat16 the ridge is at 295, so decoding this model would be memory bound there at any batch size. That is not a law: a 70B model
# with 8 key/value heads has 140 GFLOPs per token and, in 2-byte numbers, 84 MB for the 256 tokens of a text, a limit of 1,670 FLOPs per
# byte; it crosses the ridge at a batch of about 360, if 360 texts fit into memory. Section 5 makes them smaller.

# %% [markdown]
# Measured times are longer than the roofline allows, by a factor of 1.5 to 7 in our runs, most where few tokens are computed: a pass is a
# hundred small operations, and each has to be launched.
#
# **Takeaway**: a token in a batch of 256 answers cost nearly twice as much as one in a prompt of 256, and a token of a single answer 25 to
# 40 times as much.

# %% [markdown]
# ## 3 · Pages
#
# Where are keys and values stored? The plain cache reserves a row for each text, as long as the longest text may become. Nobody knows in
# advance how long an answer will be, so most of a row is reserved and empty.
#
# Operating systems solved this long ago. Divide memory into **blocks** of a few tokens, and give each text a **block table**, a list of
# blocks wherever they were free. At most one block per text is not full ([Kwon et al. 2023](https://arxiv.org/abs/2309.06180),
# PagedAttention).
#
# **Predict**: texts of some 300 tokens, rows of 2,048. What percentage of the reserved memory is empty on average?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 70
### LAB guess = None  # percent
### END SOLUTION
lab.predict("wasted", guess, unit="%")

# %%
ideas.block_tables()

# %% [markdown]
# Several tables may name the same block. If 100 requests start with the same instructions, their keys and values are stored once. So a
# block has a **reference count**: how many texts hold it. At 0 it is free, but its content is still valid, and the next request may
# want it. It can still be **found** by its **key** until someone needs the space. Then the block that has been free longest is taken, the
# *least recently used* one. Blocks without a key are taken before all others, because nothing is lost with them.

# %% [markdown]
# ### Exercise 3 · `Pool`
#
# Difficulty 3 · 18 minutes · 9 points
#
# Servers do this at every step, with 100,000 blocks, so nothing may search through a list. Python's `OrderedDict` is a dictionary with an
# order: `popitem(last=False)` removes the first entry, `del` any, `move_to_end(block, last=False)` moves one to the front, and each takes
# the same time at any size.

# %%
from collections import OrderedDict


# %% tags=["exercise"]
class Pool:
    """Blocks 0, 1, …; `refs[block]`, a list, is how many texts hold each. About 20 lines."""

    def __init__(self, num_blocks: int):
        """At first nobody holds a block, and none has a key."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:Pool.__init__
        ### END SOLUTION

    def available(self) -> int:
        """How many blocks nobody holds."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:Pool.available
        ### END SOLUTION

    def take(self) -> int | None:
        """A block for new content, which is held once then, and not found by its old key
        any more: one without a key, or else the one that is free for the longest time.
        None where all are held."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:Pool.take
        ### END SOLUTION

    def name(self, block: int, key) -> None:
        """The content of a held block is found by this key from now on. Neither of the
        two has had another before."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:Pool.name
        ### END SOLUTION

    def find(self, key) -> int | None:
        """The block with this content, held or free; None where there is none."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:Pool.find
        ### END SOLUTION

    def hold(self, block: int) -> None:
        """One text more holds it; it may have been free."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:Pool.hold
        ### END SOLUTION

    def drop(self, block: int) -> None:
        """One text less holds it."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:Pool.drop
        ### END SOLUTION


# %% tags=["grade"]
Pool = lab.grade(Pool)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Keep three things: the counts; the free blocks, in the order in which they will be taken; and two dictionaries, key → block
# and block → key, so that the key of a block that is taken can be forgotten.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `drop`: at 0 the block goes to the end of the free blocks, or to the front if it has no key. `take` always takes the first.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `hold` removes a block from the free ones if its count was 0: `del self.free[block]`.
#
# </details>

# %% [markdown]
# ### By what key?
#
# Equal tokens are not enough: the keys and values of a token depend on *everything* before it. So a block's key is made from its own
# tokens and the key of the block before it: a **hash chain**, in which equal keys mean equal texts from the start. A request with an
# **adapter** (e06) has different keys and values for the same tokens, so the adapter is the first link of the chain. `digest` makes 32 bytes
# of anything, so that a key is not as long as its text.

# %% [markdown]
# Three rules. Only *full* blocks get a key, and only once they are computed. The *last* token of a text is always
# computed: its logits are what the step is for. (If all tokens were reused, there would be nothing left to compute.) And when a text ends,
# its *tail* is freed first: a tail whose beginning is gone can never be found.

# %% [markdown]
# A text may also **fork**: two answers to one prompt. Both hold all blocks, the last of which may not be full. Whichever writes to it
# first must not write into the other's text: it gets a copy, which replaces the block in its table (**copy on write**).
#
# ### Exercise 4 · `BlockManager`
#
# Difficulty 5 · 45 minutes · 12 points
#
# `pool` is a `Pool`; use only its seven public names. A table is a list of blocks, in the order of the text.

# %%
from minitrain.inference.plain.given import digest

print(digest("adapter", [1, 2, 3]).hex()[:16])


# %% tags=["exercise"]
class BlockManager:
    """Tables of texts over the blocks of a pool. About 40 lines."""

    def __init__(self, pool, size: int):
        """size: tokens a block."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:BlockManager.__init__
        ### END SOLUTION

    def admit(self, tokens: list[int], most: int, adapter=None):
        """Room for a text's beginning: all of it that is known, in full blocks, and up to
        `most` tokens more -> (table, number of known tokens). The last of `tokens` is
        never among the known. None where blocks are missing: then nothing has changed."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:BlockManager.admit
        ### END SOLUTION

    def grow(self, table: list[int], start: int, stop: int):
        """Tokens start … stop - 1 will be written next: add the blocks that they lack to
        `table`, in place. A block that they fall into and that another text holds too is
        exchanged in `table` for a new one -> the copies to be made, [(from, to), …]. None
        where blocks are missing: then nothing has changed."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:BlockManager.grow
        ### END SOLUTION

    def commit(self, table: list[int], tokens: list[int], computed: int, adapter=None):
        """The first `computed` tokens are computed: the content of each full block of them
        can be found afterwards. If its key finds another block already, it gets none.
        Called after every step: most full blocks have their key by then, and keep it."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:BlockManager.commit
        ### END SOLUTION

    def fork(self, table: list[int]) -> list[int]:
        """A second text's table, which holds the same blocks."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:BlockManager.fork
        ### END SOLUTION

    def release(self, table: list[int]) -> None:
        """The text has ended: all blocks are given back, and the table is empty."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:BlockManager.release
        ### END SOLUTION


# %% tags=["grade"]
BlockManager = lab.grade(BlockManager)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `admit`: from the first block on, key = digest(parent, the block's tokens), with the adapter as the first parent; hold each block
# found right away, so that nothing can take it; stop at the first that is missing. Then `grow` does the rest; if it cannot, `release`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `grow`: count first, then take. You need ⌈stop/size⌉ minus the table's length, and one more for each block that would be written to and
# whose `refs` is above 1. A block that was copied is dropped.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `commit`: keep each block's key in a dictionary of your own, so that no step computes one twice; delete the entry when a block is
# taken. If `pool.find(key)` finds another block, leave this one without a key.
#
# </details>

# %% [markdown]
# **Run**: texts grow token by token, with lengths as in chats: many short, a few long. Each gets a row of 2,048, or a row of
# the next power of two (when full, it is copied to one twice as long), or blocks from your manager. We count at every token, over all texts.

# %% tags=["experiment", "folded"]
import random


def drawn_lengths(count, seed=0):
    """Prompt and answer lengths, log-normal, 300 tokens together in the median."""
    draw = random.Random(seed)
    pairs = (
        (draw.lognormvariate(4.8, 0.7), draw.lognormvariate(5, 0.7))
        for _ in range(count)
    )
    return [(min(1000, 1 + int(p)), min(1000, 1 + int(a))) for p, a in pairs]


def held_in_pages(size, lengths, common=0):
    """Token places held, and of them used, summed over all moments of all texts."""
    pool = Pool(sum(-(-2048 // size) for _ in lengths))
    manager, held, used, live = BlockManager(pool, size), 0, 0, []
    for number, (prompt, answer) in enumerate(lengths):
        tokens = list(range(common)) + [number * 10_000 + k for k in range(prompt)]
        table, _ = manager.admit(tokens, 4096)
        manager.commit(table, tokens, len(tokens))
        live.append([table, tokens, answer])
    while live:
        for entry in list(live):
            table, tokens, left = entry
            manager.grow(table, len(tokens), len(tokens) + 1)
            tokens.append(-1 - len(tokens))
            entry[2] -= 1
            if left == 1:
                live.remove(entry)
                manager.release(table)
        held += (len(pool.refs) - pool.available()) * size
        used += sum(len(tokens) for _, tokens, _ in live)
    return held, used


lengths = drawn_lengths(lab.size("texts"))
moments = [p + k for p, a in lengths for k in range(1, a)]
waste = [
    {"way": "rows of 2,048", "size": 2048, "held": 2048 * len(moments)},
    {
        "way": "powers of 2",
        "size": 0,
        "held": sum(1 << n.bit_length() for n in moments),
    },
]
waste = [row | {"used": sum(moments)} for row in waste]
for size in (256, 64, 32, 16, 8, 1):
    held, used = held_in_pages(size, lengths)
    waste.append({"way": "pages", "size": size, "held": held, "used": used})
held, used = held_in_pages(16, lengths, common=96)
waste.append(
    {"way": "pages, 96 tokens in common", "size": 16, "held": held, "used": used}
)
lab.reveal("wasted", 100 * (1 - waste[0]["used"] / waste[0]["held"]))

# %%
show.table(
    [
        {
            "way": row["way"],
            "block (tokens)": row["size"] or "",
            "wasted of what is held (%)": 100 * (1 - row["used"] / row["held"]),
        }
        for row in waste
    ],
    formats={"wasted of what is held (%)": "{:.1f}".format},
)

# %% tags=["grade"]
lab.experiment("waste", waste)

# %% [markdown]
# **Question**: what is the largest block size in your table, without a shared prefix, that wastes less than 4%?

# %% tags=["question"]
### BEGIN SOLUTION
block = max(
    row["size"]
    for row in waste
    if row["way"] == "pages" and row["used"] / row["held"] > 0.96
)
### LAB block = None  # your answer, tokens
### END SOLUTION

# %% tags=["grade"]
lab.answer("block", block)

# %% [markdown]
# **Explain**: rows of 2,048 are 16.6% full; Kwon et al. measured 20.4 to 38.2% in the engines of their time. With blocks of b
# tokens, the last block of a text has $(b - 1)/2$ empty slots on average. Next to a mean of 340 tokens, $b = 16$ gives $7.5 / 347.5 = 2.2\%$,
# as measured. With a shared prefix the waste falls below 0, because one slot serves several texts.
#
# **Takeaway**: rows waste 83.4% of what they reserve, blocks of 16 tokens 2.2%; with a shared prefix of 96 tokens, a slot serves 1.22 tokens.

# %% [markdown]
# ## 4 · One rule for every step
#
# A batch reads the weights once for all its texts, so a server wants large batches. A **static** batch runs until its longest text has
# ended. A **continuous** one is composed anew at every step: finished requests leave, waiting ones join
# ([Yu et al. 2022](https://www.usenix.org/conference/osdi22/presentation/yu), Orca).

# %%
ideas.batches()

# %% [markdown]
# Prompts and answers do not need separate code. Each request has `tokens`, its prompt and the answer so far, of which the first `computed`
# are in its blocks. A step computes
#
# $$\text{count} = \min(\text{len(tokens)} - \text{computed},\; \text{what is left of the budget})$$
#
# of them. For a new prompt this is a large number, limited by the **budget**, the most tokens in a step: **chunked prefill**. For an answer
# it is 1. A prefix found in the cache counts as computed. A request that has lost its blocks has everything to compute again. When the step
# reaches the last token, its logits give the next one.

# %% [markdown]
# First come, first served: running requests are served first, oldest first. If a block is missing, the *youngest* running request is
# **preempted**: it gives back all its blocks, forgets what it computed, and waits again, ahead of all others. So the oldest always makes
# progress, and every request finishes.
#
# Then waiting requests are admitted in order, as long as there is budget, a free row and enough blocks. None overtakes another, or a long
# prompt might wait forever. And a step that preempts a request admits none: the blocks just gained would be lost at once.
#
# ### Exercise 5 · `schedule`
#
# Difficulty 4 · 35 minutes · 12 points


# %% tags=["exercise"]
def schedule(running: list, waiting, manager, budget: int, most_running: int):
    """running, the oldest first, and waiting, a deque, are changed in place; a request has
    tokens, computed, table and adapter. manager: a BlockManager -> work, a list of
    (request, count) with counts above 0, and all copies that `grow` asked for.
    Who is admitted gets the table of `admit(tokens, what is left of the budget, adapter)`
    and has computed what is known; who is preempted has computed 0; else `computed` stays.
    The youngest may be the very one that lacks a block. About 25 lines."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.inference.plain.reference:schedule
    ### END SOLUTION


# %% tags=["grade"]
schedule = lab.grade(schedule)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Two loops. The first goes through `running` by index, since the list may become shorter on the way; the second looks at
# `waiting[0]`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# If `manager.grow(table, computed, computed + count)` is None, pop the last of `running`, release its table, and try the same request
# again, unless it was the last one itself.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `manager.admit(tokens, left, adapter)` gives table and computed; count is the number of its tokens still missing, at most what is left.
# Stop at the first None.
#
# </details>

# %% [markdown]
# ### The same tokens in every mode
#
# Now your parts serve requests. They get a small model trained on the stories of e01, which takes a few seconds in a folded cell.
# The package's `Server` is the loop: your schedule, one forward pass over all new tokens, your sampler.

# %% tags=["experiment", "folded"]
import math
from itertools import chain

from minitrain.data.corpus import make_corpus
from minitrain.data.loader import Loader
from minitrain.data.packing import pack
from minitrain.data.tokenizer import train_tokenizer
from minitrain.training.loss import token_weighted_loss
from tqdm.auto import tqdm

T, D = lab.size("length"), lab.size("width")
texts = make_corpus(lab.size("corpus"), seed=1)
tokenizer = train_tokenizer(texts.documents[:1000], 512)
rows = pack(tokenizer.encode_batch(texts.documents), T, tokenizer.end_token)
config = ModelConfig(512, D, lab.size("layers"), 4, 2, 2 * D, tied=True)


def train(model, steps, peak=6e-3):
    """AdamW, warmup and cosine, in place."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak)
    endless = chain.from_iterable(Loader(rows, 16, seed=k) for k in range(99))
    for step, batch in zip(tqdm(range(steps), leave=False), endless):
        share = min(1, (step + 1) / 20) * (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.param_groups[0]["lr"] = peak * share
        logits = model(batch.tokens, batch.documents, batch.positions)  # (B, T, V)
        token_weighted_loss(logits, batch.targets, batch.tokens_counted).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model


trained = train(build(config, seed=0), lab.size("steps"))

# %% [markdown]
# Sixteen requests start with the same 20 tokens (of a story that breaks off there), and are answered in ten modes, greedy and sampled. A
# hash stands for all answers of a mode. The model computes in float64 here, because in float32 a different order of additions can decide a
# near tie.

# %% tags=["experiment", "folded"]
import time
from copy import deepcopy

from minitrain.inference.plain.loop import Request, Server, generate_batch
from minitrain.inference.sampling import generate

exact = deepcopy(trained).double()
stories = tokenizer.encode_batch(make_corpus(40_000, seed=2).documents)[:16]
prompts = [stories[0][:20] + story[: 4 + k % 5] for k, story in enumerate(stories)]
NEW = lab.size("new")


def cached(model, prompt, wanted, times=None):
    """One text with a cache, by your attention; `times` gets the moment of each token."""
    cache, unread, answer = Cache(model, 1, len(prompt) + wanted), prompt, []
    while len(answer) < wanted:
        logits = read_on(model, torch.tensor([unread]), cache, cached_attention)
        unread = [int(logits.argmax())]
        answer += unread
        if times is not None:
            times.append(time.perf_counter())
    return answer


def serve(requests, blocks=400, size=8, most=64, chunks=None, apart=False):
    """-> answers, steps; chunks: budgets are drawn up to it, anew at every step."""
    server = Server(exact, BlockManager(Pool(blocks), size), schedule, sample)
    server.most_running, draw, steps = most, random.Random(7), 0
    for number, request in enumerate(requests):
        request.adapter = number if apart else None  # then no two share a block
    server.add(*requests)
    while server.running or server.waiting:
        if chunks:
            server.budget = draw.randint(1, chunks)
        server.step()
        steps += 1
    return [request.told for request in requests], steps


def asked(drawn):
    """The requests, greedy or drawn, each with its own seed."""
    how = {"temperature": 0.9, "top_k": 100, "top_p": 0.95} if drawn else {}
    return [Request(p, NEW, seed=k, **how) for k, p in enumerate(prompts)]


# %% tags=["experiment", "folded"]
def row_of(mode, kind, answers, steps=0, requests=()):
    return {
        "mode": mode, "tokens by": kind, "hash": digest(answers).hex()[:12], "steps": steps,
        "preemptions": sum(r.preemptions for r in requests),
        "reused": sum(r.reused for r in requests),
    }  # fmt: skip


naive = [generate(exact, p, NEW, temperature=0) for p in prompts]
modes = [
    row_of("naive", "greedy", naive),
    row_of("cached", "greedy", [cached(exact, p, NEW) for p in prompts]),
    row_of("static batch", "greedy", generate_batch(exact, prompts, [NEW] * 16)[0]),
]
settings = {
    "one by one": {"most": 1, "apart": True},
    "continuous": {"apart": True},
    "prefix shared": {"most": 4},
    "preempted": {"blocks": 10},
    "random chunks": {"chunks": 9},
    "preempted, random chunks": {"blocks": 10, "chunks": 9},
    "blocks of one token": {"blocks": 900, "size": 1, "most": 5},
}
for drawn in (False, True):
    for mode, options in settings.items():
        requests = asked(drawn)
        answers, steps = serve(requests, **options)
        kind = "a draw" if drawn else "greedy"
        modes.append(row_of(mode, kind, answers, steps, requests))

# %%
show.table(modes)
print(tokenizer.decode(prompts[3]), "…", tokenizer.decode(naive[3]))

# %% tags=["grade"]
lab.experiment("modes", modes)

# %% [markdown]
# **Explain**: all ten greedy modes have the same hash, and so do the seven that sample. (The first three do not use the server, so they
# have no steps to count.) Preempted requests lost their blocks, computed them again (or found them still in the pool: "reused"), and gave
# the same answers. So did prompts cut into chunks of 1 to 9 tokens. This is what an engine must promise, and what makes its
# other figures comparable.
#
# **Takeaway**: 24 preemptions, 219 steps instead of 28, 880 tokens reused from blocks that were still there, and not one token differs.

# %% [markdown]
# **Run**: the same requests once more, greedy, by the package's engine and by others: with speculative decoding (e09b), with tensor
# parallelism over two ranks (e02b), and with prefill on one rank and decode on another. `transformers` and vLLM take part if they are
# installed. Each row is a mode. Tokens reused were found in the cache; guesses kept were accepted draft tokens.

# %% tags=["experiment", "folded"]
import logging

from minitrain.bench.modes import drafts_of, every_mode
from minitrain.bench.serving import Workload

logging.disable(logging.WARNING)  # of libraries that transformers looks for
same_requests = Workload(tuple(map(tuple, prompts)), (NEW,) * len(prompts))
drafts = drafts_of(exact, prompts[0][:20], rows=16)
elsewhere = list(tqdm(every_mode(exact, same_requests, drafts, block=4), leave=False))
logging.disable(logging.NOTSET)

# %%
show.table(
    [
        {
            "mode": row.mode,
            "hash": row.hash,
            "steps": row.steps or "not counted",
            "preemptions": row.preemptions,
            "tokens reused": row.reused,
            "guesses kept": row.kept,
        }
        for row in elsewhere
    ]
)
hashes = {row.hash for row in elsewhere} | {modes[0]["hash"]}
print(f"hashes, with that of the greedy modes above: {len(hashes)}")

# %% [markdown]
# **Explain**: one hash again. Batching, chunking, sharing, guessing or sending keys and values over a wire: the answer is that of the naive
# loop. Accepted guesses save steps, and change no token. (A block has four tokens here, so counts differ from those in your own table. Steps
# of other engines, and of the two separate ranks, are not counted.) vLLM takes part only if heads have at least 32 dimensions: on stories15M
# its hash equals that of `transformers` and of all these modes.

# %% [markdown]
# ### What it is worth
#
# Now the clock, with the wide model of section 2. All requests arrive at once, with prompts of 8 to 39 tokens and answers of 6 to 60.
# Static and continuous batches have eight rows each.
#
# Answers have 6, 10, 16, 24 or 60 tokens, all equally likely. A static batch takes the next eight requests, and lasts as long as its
# longest answer.
#
# **Predict**: what percentage of a static batch's row steps is wasted, because that row's answer is complete already?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 50
### LAB guess = None  # percent
### END SOLUTION
lab.predict("idle", guess, unit="%")

# %% tags=["experiment", "folded"]
import numpy as np

draw = random.Random(3)
work = [
    ([draw.randrange(512) for _ in range(draw.randrange(8, 40))], wanted)
    for wanted in draw.choices((6, 10, 16, 24, 60), k=lab.size("requests"))
]


def naively():
    answers, times = [], []
    for prompt, wanted in tqdm(work, leave=False):
        answer, own = [], []
        for _ in range(wanted):
            answer += generate(wide, prompt + answer, 1, temperature=0)
            own.append(time.perf_counter())
        answers.append(answer)
        times.append(own)
    return answers, times


def with_a_cache():
    answers, times = [], []
    for prompt, wanted in work:
        times.append([])
        answers.append(cached(wide, prompt, wanted, times[-1]))
    return answers, times


def in_static_batches():
    answers, times = [], []
    for first in range(0, len(work), 8):
        prompts, wanted = zip(*work[first : first + 8])
        some = generate_batch(wide, prompts, wanted)
        answers += some[0]
        times += some[1]
    return answers, times


def continuously():
    server = Server(wide, BlockManager(Pool(200), 16), schedule, sample, 256, 8)
    requests = [Request(prompt, wanted) for prompt, wanted in work]
    server.add(*requests)
    server.run()
    return [r.told for r in requests], [r.times for r in requests]


# %% tags=["experiment"]
ways = {"naive": naively, "a cache": with_a_cache}
ways |= {"static batches": in_static_batches, "continuous": continuously}
throughput, moments_of, told_by = [], {}, {}
for way, run in ways.items():
    runs = []
    for _ in range(1 if way == "naive" else 3):  # the fastest counts
        began = time.perf_counter()
        told_by[way], times = run()
        runs.append((time.perf_counter() - began, began, times))
    seconds, began, times = min(runs)
    first, last = ([own[at] - began for own in times] for at in (0, -1))
    row = {"way": way, "tokens": sum(map(len, times)), "seconds": seconds}
    for name, values in {"first": first, "last": last}.items():
        row |= {f"{name}_{p}": float(np.percentile(values, p)) for p in (50, 99)}
    throughput.append(row)
    moments_of[way] = sorted(moment - began for own in times for moment in own)

speed = {row["way"]: row["tokens"] / row["seconds"] for row in throughput}
batches = [[wanted for _, wanted in work[k : k + 8]] for k in range(0, len(work), 8)]
row_steps = sum(len(batch) * max(batch) for batch in batches)
lab.reveal("idle", 100 * (1 - sum(map(sum, batches)) / row_steps))

# %% tags=["picture", "folded"]
with show.canvas(width=9) as (figure, ax):
    for (way, moments), color in zip(moments_of.items(), show.COLORS):
        words = f"{way}: {speed[way]:,.0f} tokens a second"
        ax.plot(moments, range(1, 1 + len(moments)), color=color, label=words)
    ax.set(xlabel="seconds since all requests arrived", ylabel="tokens told")
    ax.set_xlim(left=0)
    ax.legend(loc="lower right")
show.figure(
    figure,
    alt="Tokens told against seconds for naive generation, a cache, static batches and continuous batches: each of the four lines is steeper than the one before.",
)

# %%
show.table(
    [
        {"way": row["way"], "tokens a second": speed[row["way"]]}
        | {
            f"{words}, {p} of 100 within (s)": row[f"{name}_{p}"]
            for name, words in {"first": "first token", "last": "whole answer"}.items()
            for p in (50, 99)
        }
        for row in throughput
    ],
    formats={"tokens a second": "{:,.0f}".format},
)
alike = sum(told_by["continuous"][k] == told_by["naive"][k] for k in range(len(work)))
print(f"the same answers in float32: {alike} of {len(work)}")

# %% tags=["grade"]
lab.experiment("throughput", throughput)

# %% [markdown]
# **Explain**: a cache avoids the repeated work of naive generation. A static batch reads the weights once for eight rows, but most rows
# wait for the longest: answers here have 6 to 60 tokens. A continuous batch has no idle rows while requests wait. Kwon et al.
# report 2 to 4 times the throughput of the engines before theirs at equal latency, for the same two reasons: no idle rows, no idle memory.
#
# **Takeaway**: in our runs a cache generated about twice as many tokens per second as the naive loop, static batches about twice as many as
# the cache, and continuous batching two thirds more again: seven to eight times the naive loop in all.

# %% [markdown]
# ### A long prompt arrives
#
# Six answers are being generated when a prompt of 1,500 tokens arrives. Without chunks it is computed in one step, and six users see their
# texts stall ([Agrawal et al. 2023](https://arxiv.org/abs/2308.16369), Sarathi). Two latencies are at stake: the time between two tokens of
# a running answer, the **inter-token latency** (ITL; its mean over an answer is called TPOT), and how long the newcomer waits for its first
# token, the **time to first token** (TTFT). A budget shortens the pause, since a step of n tokens takes at least
# $2 P n / \text{peak}$ seconds. The prompt pays for it with more steps, each of which reads all weights and its part of the cache again.

# %% [markdown]
# **Predict**: the 99th percentile (p99) of the inter-token latency while the prompt is computed: how many times as long is it without chunks
# as with a budget of 64?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 10
### LAB guess = None  # a factor
### END SOLUTION
lab.predict("pause", guess)

# %% tags=["experiment", "folded"]
LONG = lab.size("long")


def while_it_is_read(budget):
    """Times between tokens of six texts, until a long prompt's first token; and its wait."""
    server = Server(wide, BlockManager(Pool(1000), 16), schedule, sample, budget)
    six = [Request([k] * 16, 1000) for k in range(6)]
    server.add(*six)
    while len(six[0].told) < 8:
        server.step()
    long = Request([draw.randrange(512) for _ in range(LONG)], 1)
    server.add(long)
    while not long.times:
        server.step()
    gaps = [
        after - before
        for request in six
        for before, after in zip(request.times, request.times[1:])
        if after > long.arrived
    ]
    return gaps, long.times[0] - long.arrived


chunks = []
while_it_is_read(256)  # warm up
for budget in (4096, 512, 256, 128, 64, 32):
    gaps, wait = while_it_is_read(budget)
    row = {"budget": budget, "wait": wait, "gaps": len(gaps)}
    chunks.append(row | {f"gap_{p}": float(np.percentile(gaps, p)) for p in (50, 99)})

gap = {row["budget"]: row["gap_99"] for row in chunks}
lab.reveal("pause", gap[4096] / gap[64])

# %% tags=["experiment"]
show.lines(
    {
        words: ([row["budget"] for row in chunks], [1e3 * row[name] for row in chunks])
        for name, words in {
            "wait": "the long prompt's first token",
            "gap_99": "between tokens of the others, 99th percentile",
            "gap_50": "between tokens of the others, median",
        }.items()
    },
    x="budget (tokens a step)",
    y="milliseconds",
    log="xy",
)
show.table(
    [
        {
            "budget (tokens a step)": row["budget"],
            "between tokens, median (ms)": 1e3 * row["gap_50"],
            "99th percentile (ms)": 1e3 * row["gap_99"],
            "the prompt's first token (ms)": 1e3 * row["wait"],
        }
        for row in chunks
    ],
    formats=dict.fromkeys(
        [
            "between tokens, median (ms)",
            "99th percentile (ms)",
            "the prompt's first token (ms)",
        ],
        "{:.1f}".format,
    ),
)

# %% tags=["grade"]
lab.experiment("chunks", chunks)

# %% [markdown]
# **Question**: what is the largest budget in your table whose 99th percentile is at most a third of that without chunks (4,096)?

# %% tags=["question"]
### BEGIN SOLUTION
chunk = max(row["budget"] for row in chunks if row["gap_99"] <= gap[4096] / 3)
### LAB chunk = None  # your answer, tokens
### END SOLUTION

# %% tags=["grade"]
lab.answer("chunk", chunk)

# %% [markdown]
# **Explain**: without chunks six users wait for the whole prompt. With a budget of n the pause is one step of n tokens, and falls with n
# until reading the weights dominates: below the ridge point a smaller step is not much shorter. The time to first token is shortest in
# between: a single step scores every pair of the prompt's tokens, including those that the mask hides; many small steps read all weights
# many times. It is the trade-off of Sarathi's authors.
#
# **Takeaway**: without chunks six users waited about half a second for a token; with a budget of 128 only one token in a hundred took longer
# than a fifteenth of that, and the time to first token was a third to a half shorter.

# %% [markdown]
# ## 5 · Fewer bytes a token
#
# For each token, L layers store keys and values of K heads with C numbers of b bytes each:
#
# $$\text{bytes} = 2\, L\, K\, C\, b.$$
#
# Llama-2-7B needs $2 \cdot 32 \cdot 32 \cdot 128 \cdot 2$ bytes: 512 KiB per token, 2 GiB for a text of 4,096. There are three ways to less:
# fewer heads (grouped-query, K < H, or multi-query, K = 1), a window of W tokens, and fewer bits.
#
# Bits first. A few *channels* of the keys are large for every token; those of the values are not
# ([Liu et al. 2024](https://arxiv.org/abs/2402.02750), KIVI). If all numbers of a key shared one range, the large channel would leave too few
# levels for the others. So keys share a range *per channel*, over a group of tokens, and values *per token*.

# %%
ideas.kv_ranges()

# %% [markdown]
# A channel's range is known once its group is complete; until then the newest tokens are kept unrounded, values along with
# their keys. Each group of each head has its own range, however many tokens arrive at once. A group is rounded once, when it is complete:
# rounding it again would change nothing, and cost time at every token.
#
# `to_codes` does the rounding (e08). Numbers that share a range lie along `dim`.

# %%
from minitrain.inference.plain.given import from_codes, to_codes

x = torch.tensor([[0.0, 100.0], [1.0, 200.0]])
codes, step, low = to_codes(x, 0, bits=8)
print(codes.dtype, tuple(step.shape), from_codes(codes, step, low))

# %% [markdown]
# ### Exercise 6 · `QuantizedKV`
#
# Difficulty 3 · 15 minutes · 8 points
#
# The bytes held are measured. Beware: a slice of a tensor keeps *all* of the tensor's memory alive.


# %% tags=["exercise"]
class QuantizedKV:
    """Keys and values of one text in one layer, the newest whole. About 18 lines."""

    def __init__(self, bits: int = 8, group: int = 32):
        """A group is rounded as soon as it has `group` tokens."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:QuantizedKV.__init__
        ### END SOLUTION

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """k and v (K, T, C) float32, unchanged: T more tokens, 1 or many. Held from now on
        are codes, steps and lowest values of full groups, and the newest tokens."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:QuantizedKV.append
        ### END SOLUTION

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all n tokens so far, (K, n, C) float32 each."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.inference.plain.reference:QuantizedKV.read
        ### END SOLUTION


# %% tags=["grade"]
QuantizedKV = lab.grade(QuantizedKV)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Two lists of rounded groups, one for keys and one for values, and the newest tokens as they are. `append` concatenates the newest with
# what arrives, and rounds as long as there are `group` tokens.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In (K, T, C) tokens are dimension 1, so keys are `to_codes(part, 1, bits)`; a token's channels are dimension 2.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The rest is a slice: keep `k.clone()`. `read` concatenates `from_codes(*one)` of all groups with the newest.
#
# </details>

# %% [markdown]
# **Run**: a text of 1,024 tokens in six caches, the bytes of their tensors beside the formula. The window has 256 tokens.

# %% tags=["experiment", "folded"]
from dataclasses import replace

from minitrain.inference.cache.dense import DenseCache
from minitrain.inference.cache.quantized import QuantizedCache
from minitrain.inference.cache.ring import RingCache
from minitrain.inference.plain.given import held_bytes

N, L, C, G = 1024, 4, 32, 32
many = ModelConfig(512, 8 * C, L, 8, 8, 512)
grouped, single = replace(many, kv_heads=2), replace(many, kv_heads=1)


def number_of(cache):
    return held_bytes([cache.keys, cache.values])


def in_eight_bits(config):
    """Your cache, one for each layer, filled with random numbers in parts."""
    layers = [QuantizedKV(8, G) for _ in range(config.layers)]
    for layer in layers:
        for part in torch.randn(2, config.kv_heads, N, C).split(96, dim=2):
            layer.append(*part)
    return held_bytes(layers)


def in_four_bits(config):
    """The package's, whose codes are packed."""
    cache = QuantizedCache(config, 1, 4, G, residual=0)
    for layer in range(config.layers):
        cache.append(layer, *torch.randn(2, 1, config.kv_heads, N, C))
    cache.grow(N)
    return cache.nbytes


def formula(kv_heads, tokens=N, bits=32.0):
    return 2 * L * kv_heads * C * tokens * bits / 8


eight = 8 + 64 * (1 / G + 1 / C) / 2  # a step and a lowest value for G or C codes
four = 4 + 68 * (1 / G + 1 / C) / 2  # and a zero point of 4 bits
kv_bytes = [
    {"cache": "multi-head, 8 of 8 heads", "formula": formula(8), "held": number_of(DenseCache(many, 1, N))},
    {"cache": "grouped-query, 2 of 8", "formula": formula(2), "held": number_of(DenseCache(grouped, 1, N))},
    {"cache": "multi-query, 1 of 8", "formula": formula(1), "held": number_of(DenseCache(single, 1, N))},
    {"cache": "grouped, window of 256", "formula": formula(2, 256), "held": number_of(RingCache(grouped, 1, 256))},
    {"cache": "grouped, 8 bits (yours)", "formula": formula(2, bits=eight), "held": in_eight_bits(grouped)},
    {"cache": "grouped, 4 bits, packed", "formula": formula(2, bits=four), "held": in_four_bits(grouped)},
]  # fmt: skip

# %%
show.table(
    [
        {
            "cache": row["cache"],
            "formula (KiB)": row["formula"] / 1024,
            "held (KiB)": row["held"] / 1024,
            "texts in 1 GiB": 2**30 // row["held"],
        }
        for row in kv_bytes
    ],
    formats=dict.fromkeys(["formula (KiB)", "held (KiB)"], "{:,.0f}".format),
)

# %% tags=["grade"]
lab.experiment("kv_bytes", kv_bytes)

# %% [markdown]
# What do fewer bits cost? The trained model reads held-out stories, 16 tokens at a time, through your cache. A model this small does not
# develop large channels. So we plant some: in each key head a pair of channels that RoPE rotates together is multiplied by 10, and the
# queries' are divided by 10. No score changes. "The other way round" swaps the roles of keys and values.

# %% tags=["experiment", "folded"]
from minitrain.inference.forward import forward_new

judged = [
    row[: T + 1]
    for row in tokenizer.encode_batch(make_corpus(60_000, seed=4).documents)
]
judged = [row for row in judged if len(row) > 33][: lab.size("judged")]


class Rounding:
    """One pass over new tokens, as the package's forward wants it, over caches of yours."""

    def __init__(self, caches, start, new, turned):
        self.caches, self.turned = caches, turned
        self.positions = torch.arange(start, start + new)[None]  # (1, T)

    def attend(self, layer, q, k, v):
        cache, pair = self.caches[layer], (k[0], v[0])
        cache.append(*(pair[::-1] if self.turned else pair))
        keys, values = cache.read()[:: -1 if self.turned else 1]
        seen = self.positions[0][:, None] >= torch.arange(keys.shape[1])
        return torch.nn.functional.scaled_dot_product_attention(
            q, keys[None], values[None], attn_mask=seen, enable_gqa=True
        )


@torch.no_grad()
def loss_with(model, bits, turned=False):
    """Nats a token over all stories, in groups of 16; None bits: as they are."""
    lost, count = 0.0, 0
    for text in judged:
        caches = [QuantizedKV(bits or 8, 16 if bits else 10**6) for _ in model.blocks]
        for start in range(0, len(text) - 1, 16):
            tokens = torch.tensor(text[start : start + 17])
            reader = Rounding(caches, start, len(tokens) - 1, turned)
            logits = model.head(forward_new(model, tokens[None, :-1], reader))[0]
            lost += torch.nn.functional.cross_entropy(
                logits, tokens[1:], reduction="sum"
            ).item()
            count += len(tokens) - 1
    return lost / count


@torch.no_grad()
def planted(model, factor):
    """A copy with large channels in its keys; RoPE turns 1 and 1 + C/2 together."""
    model = deepcopy(model)
    for block in model.blocks:
        c = model.config.head_size
        for matrix, by in (
            (block.attention.k, factor),
            (block.attention.q, 1 / factor),
        ):
            matrix.weight.view(-1, c, matrix.in_features)[:, [1, 1 + c // 2]] *= by
    return model


rounding = []
for factor in (1, 10):
    model = planted(trained, factor)
    whole = loss_with(model, None)
    for bits in (8, 4, 3, 2):
        row = {"planted": factor, "bits": bits, "whole": whole}
        row |= {
            "by_channel": loss_with(model, bits),
            "by_token": loss_with(model, bits, True),
        }
        rounding.append(row)

# %%
show.table(
    [
        {
            "large channels, times": row["planted"],
            "bits": row["bits"],
            "keys by channel (nats lost)": row["by_channel"] - row["whole"],
            "the other way round": row["by_token"] - row["whole"],
        }
        for row in rounding
    ],
    formats=dict.fromkeys(
        ["keys by channel (nats lost)", "the other way round"], "{:.4f}".format
    ),
)

# %% tags=["grade"]
lab.experiment("rounding", rounding)

# %% [markdown]
# **Explain**: with ranges per channel, the planted channels cost nothing: each has its own range. The other way round they set the range of
# every token. Without planted channels the two hardly differ, so a small model alone would not have shown the problem. KIVI's authors
# find such channels in the keys of published models, and none in the values.
#
# **Takeaway**: 8 bits cost nothing measurable, for 31% of the bytes. With large channels, 3 bits cost 0.001 nats per channel and 0.18 the
# other way round.

# %% [markdown]
# ## 6 · A model that others trained, beside an engine that others wrote
#
# The same on stories15M, if it is in the course's cache (`python -m minitrain assets stories15M` fetches it), beside `transformers`, if that
# is installed. Nothing in this section is graded.

# %% tags=["experiment", "folded"]
import logging
from importlib.util import find_spec

from minitrain.data.assets.fetch import fetch, is_cached
from minitrain.model.hub.llama2c import load_llama2c

beside = []
if is_cached("stories15M") and lab.tier != "test":
    pretrained, words = load_llama2c(fetch("stories15M", progress=False))
    names = ("Lily", "Tom", "Anna", "Ben", "Mia", "Sam", "Zoe", "Max")
    begun = [words.encode(f"Once upon a time, {name} found a") for name in names]
    server = Server(pretrained, BlockManager(Pool(400), 16), schedule, sample)
    requests = [Request(prompt, 40) for prompt in begun]
    server.add(*requests)
    began = time.perf_counter()
    server.run()
    seconds = time.perf_counter() - began
    beside.append({"engine": "yours, continuous", "tokens a second": 320 / seconds})
    print(words.decode(requests[0].tokens))

if beside and find_spec("transformers"):
    logging.disable(logging.WARNING)  # of libraries that it looks for
    from minitrain.bench.training import as_llama

    peer, theirs, began = as_llama(pretrained).eval(), [], time.perf_counter()
    for prompt in tqdm(begun, leave=False):
        ids, past, answer = torch.tensor([prompt]), None, []
        while len(answer) < 40:
            with torch.no_grad():
                out = peer(ids, past_key_values=past, use_cache=True)
            ids, past = out.logits[:, -1:].argmax(-1), out.past_key_values
            answer.append(int(ids))
        theirs.append(answer)
    seconds = time.perf_counter() - began
    logging.disable(logging.NOTSET)
    beside.append(
        {"engine": "transformers, one by one", "tokens a second": 320 / seconds}
    )
    alike = sum(one.told == other for one, other in zip(requests, theirs))
    print(f"the same answers: {alike} of 8")

if beside:
    show.table(beside, formats={"tokens a second": "{:,.0f}".format})
else:
    print("stories15M is not in the cache: this section is skipped")

# %% [markdown]
# **Explain**: the same answers, token for token. Eight texts in a batch read the 61 MB of weights once between them; one by one, each reads
# them all. vLLM is built from the parts that you have written, this one rule and these blocks, and from a part that you have not: kernels
# that read keys and values where the blocks lie.
#
# Next: the [map of the course](index.ipynb), or [e09b · Speculative decoding](e09b_speculative_decoding.ipynb), which generates several
# tokens in one pass.

# %%
lab.score(read="minitrain/inference/engine/scheduler.py")
