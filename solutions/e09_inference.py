# %% [markdown]
# # e09 · Inference
#
# **One model, many readers: a sampler, a cache, pages that texts share, one rule for every step. You build the parts of a serving
# engine, and it tells the same tokens in ten modes.**
#
# 180 minutes · CPU is enough · before: [e08 · Quantization](e08_quantization.ipynb) · [map of the course](index.ipynb)
#
# You build: a sampler, attention over a KV cache, a pool of blocks, tables that share prefixes, the scheduler's step, and keys and
# values in few bits. You end with this picture: the same requests, told in four ways.
#
# ![Tokens told against seconds for naive generation, a cache, static batches and continuous batches: each of the four lines is steeper than the one before](../labs/pictures/e09_inference.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, ideas, show

lab = Lab("e09_inference")

# %% [markdown]
# ## 1 · From logits to a token
#
# For a text, the model gives each of V tokens a number, its **logit** $z_i$. Which token comes next is up to us. With the
# **temperature** $\tau$,
#
# $$p_i = \frac{e^{z_i / \tau}}{\sum_j e^{z_j / \tau}}.$$
#
# A small $\tau$ makes the likeliest token still likelier. In the limit, called $\tau = 0$, it is always taken: **greedy**. Two cuts take
# unlikely tokens away, because there are so many of them that together they are drawn often. **Top-k** keeps the k likeliest.
# **Top-p** goes through what top-k has left, from the likeliest on, with probabilities that sum to 1 again. It keeps the fewest tokens whose sum
# reaches p ([Holtzman et al. 2020](https://arxiv.org/abs/1904.09751)).

# %%
ideas.token_cuts()

# %% [markdown]
# A server answers many requests in one batch. If all drew from one random generator, a text would depend on who else is there: a
# neighbour that draws first takes "your" random number. So each request has a generator of its own. Its seed then decides its text,
# alone or in company, and also after it was interrupted.
#
# ### Exercise 1 · `sample`
#
# Difficulty 2 of 5 · 12 minutes · 9 points
#
# The order is temperature, top-k, top-p. The token with which the sum reaches p stays, so that at least one is left; `top_k` may be more than there are.


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
# A loop over the rows is fine. Sort a row once, the likeliest first: then both cuts are about places in this order.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `ordered, order = (row / temperature).sort(descending=True)`. `ordered[:None]` is all of it. `p.cumsum(0) - p` is the sum of those that are
# likelier.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Set p to 0 where the likelier ones reach top_p already. `torch.multinomial(p, 1, generator=request.generator)` gives a place in the
# order, and needs no sum of 1.
#
# </details>

# %% [markdown]
# ## 2 · What need not be computed twice
#
# The plain way to write n tokens after a prompt of t tokens runs the model on the whole text for each:
# $t + (t + 1) + \dots \approx n\,(t + n/2)$ tokens in all. With $t = 24$ and $n = 24$ these are about 860.
#
# Most of it was computed before. A token reads only what stands before it, so nothing of it changes when the text grows. Later
# tokens need just two things of it in each layer: its **key** and its **value**. Keep them, and every token is computed once: $t + n - 1 = 47$, for the last one is read by nobody.

# %%
ideas.cache_steps()

# %% [markdown]
# Two things can go wrong. **Positions**: RoPE turns queries and keys by their place in the text. A token that comes alone is not
# at position 0, but behind all that is kept. Its key is turned *before* it is kept, and never again. **The mask**: new token i of a chunk stands
# at place length + i. It reads all that is kept, the new ones before it, and itself.
#
# ### Exercise 2 · `cached_attention`
#
# Difficulty 3 · 15 minutes · 10 points
#
# PyTorch's `scaled_dot_product_attention` may be used. Mind its `is_causal=True`: it lines up the *first* query with the *first* key.


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
# Four steps: project x and split into heads; turn queries and keys by `torch.arange(length, length + T)`; write keys and values;
# attend to the first length + T places only.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Heads stand third after `split`, and second in the cache: `.transpose(1, 2)`. The mask (T, length + T), True where it may be read:
# `positions[:, None] >= torch.arange(length + T)`.
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
# A prompt's tokens are computed together: **prefill**. An answer's come one by one: **decode**. Both read all P weights once a pass.
# With n tokens in the pass and 4 bytes a weight, the **intensity**, FLOPs a byte, is about
#
# $$\frac{2 P n}{4 P + \text{bytes of keys and values}}.$$
#
# A machine has a peak in FLOP/s and a bandwidth in bytes/s. Below their quotient, the **ridge**, memory decides; above it
# arithmetic does. One decoded token has an intensity of 1/2. A prompt is read once for all its tokens. A *batch* of n answers also shares
# the weights, but each text has keys and values of its own.

# %%
ideas.roofline()

# %% [markdown]
# Now measure both on a model with random weights: speed does not ask what weights say. Every text has 256 tokens in its cache.

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
# **Question**: from how many tokens on does a *prompt* stand above the ridge of your machine? (The smallest number of the table.)

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
# **Explain**: a prompt's intensity grows from 0.5 to 132 FLOPs a byte. A batch of answers shares only the weights. Its keys
# and values grow with it: a text's 12.6 MFLOPs a token stand against its own 1.58 MB, so that *no* batch comes above 8 FLOPs a byte.
# The ridge of our CPUs lay between 5 and 15: only the largest batches pass the lower one, and none the higher. On an H100 it is at 295:
# decoding is memory bound there, whatever the batch. Section 5 has the way out.

# %% [markdown]
# Measured times lie above the roof, in our runs by 1.5 to 7 times, the most where few tokens are computed: a pass is a hundred small
# operations, and each must be started.
#
# **Takeaway**: in a batch of 256 answers a token cost nearly twice as much as in a prompt of 256, and in a single answer 25 to 40
# times as much.

# %% [markdown]
# ## 3 · Pages
#
# Where do keys and values lie? The plain cache reserves a row for each text, as long as the longest text may become. Nobody knows in
# advance how long an answer will be, so most of a row is paid for and empty.
#
# Operating systems solved this long ago. Cut memory into **blocks** of some tokens, and give each text a **table** of blocks, wherever they are
# free. At most one block a text is not full ([Kwon et al. 2023](https://arxiv.org/abs/2309.06180), PagedAttention).
#
# **Predict**: texts of some 300 tokens, rows of 2,048. How many percent of the reserved memory are empty in the mean?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 70
### LAB guess = None  # percent
### END SOLUTION
lab.predict("wasted", guess, unit="%")

# %%
ideas.block_tables()

# %% [markdown]
# Tables can name the same block. If 100 requests begin with the same instructions, their keys and values are there once. So a block
# has a **reference count**: how many texts hold it. At 0 it is free, but its content is still right, and the next request may
# want it. It stays **findable** by a **key** until someone needs the room. Then the block that has been free for the longest time is taken: *least
# recently used*. Blocks without a key go before all others: nothing is lost with them.

# %% [markdown]
# ### Exercise 3 · `Pool`
#
# Difficulty 3 · 18 minutes · 9 points
#
# Servers do this at every step, with 100,000 blocks, so nothing may search through a list. Python's `OrderedDict` is a dictionary whose
# entries stand in order: `popitem(last=False)` takes the first, `del` any, `move_to_end(block, last=False)` puts one in front, and each takes the same time at any size.

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
# Three things to keep: the counts; the free blocks, in the order in which they will be taken; and two dictionaries, key → block
# and block → key, so that a block that is taken can be forgotten.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `drop`: at 0 the block goes to the end of the free ones, or to their front if it has no key. `take` always takes the first.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `hold` takes a block out of the free ones if its count was 0: `del self.free[block]`.
#
# </details>

# %% [markdown]
# ### By what key?
#
# Equal tokens are not enough. Keys and values of a token depend on *everything* before it. So a block's key is made of its own tokens and
# of the key of the block before: a **chain**, in which equal keys mean equal texts from the start. A request with an **adapter** (e06) has other keys and values for
# the same tokens; the adapter is the chain's first link. `digest` makes 32 bytes of anything, so that a key is not as long as its text.

# %% [markdown]
# Three rules. Only *full* blocks get a key, and only when they are computed. The *last* token of a text is always
# computed: its logits are what one wants (an engine that took all of them had nothing left to compute). And of a text that ends, the *tail* is freed first: nothing finds a tail whose beginning is gone.

# %% [markdown]
# A text may also **fork**: two answers to one prompt. Both hold all blocks, the last of which is not full. Whoever writes into it
# first must not write into the other's text: it gets a copy, and its table names that (**copy on write**).
#
# ### Exercise 4 · `BlockManager`
#
# Difficulty 5 · 45 minutes · 12 points
#
# `pool` is a `Pool`; use its seven names only. A table is a list of blocks, in the text's order.

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
# `admit`: from the first block on, key = digest(parent, the block's tokens), with the adapter as the first parent; hold what is
# found, first of all, so that nothing takes it away; stop at the first that is not. Then `grow` does the rest, and where it cannot, `release`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `grow`: count first, take then. Missing are ⌈stop/size⌉ minus the table's length, and one for each block that would be written and
# whose `refs` is above 1. A block that was copied is dropped.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `commit`: keep each block's key in a dictionary of your own, so that a step computes none twice; delete the entry when a block is
# taken. If `pool.find(key)` finds another block, leave this one without a name.
#
# </details>

# %% [markdown]
# **Run**: texts grow token by token, with lengths as in chats: many short ones, a few long. A row of 2,048 is reserved, or rows of
# the next power of two (filled, then copied to one twice as long), or pages by your manager. Counted at every token, over all texts.

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
# **Question**: the largest block of your table, without a common beginning, with which less than 4% are wasted?

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
# **Explain**: of rows of 2,048 places 16.6% are used; Kwon et al. measured 20.4 to 38.2% in engines of their time. With blocks of b
# tokens, the last one of a text is empty by $(b - 1)/2$ in the mean. Beside a mean of 340 tokens, $b = 16$ gives $7.5 / 347.5 = 2.2\%$, as measured. Less
# than 0 is wasted where a beginning is common: one place serves several texts.
#
# **Takeaway**: rows waste 83.4% of what they hold, blocks of 16 tokens 2.2%; with 96 tokens in common, a place serves 1.22 tokens.

# %% [markdown]
# ## 4 · One rule for every step
#
# A batch shares the reading of the weights, so a server wants large batches. A **static** batch waits until its longest text has ended.
# A **continuous** one is made anew at every step: who has ended leaves, who waits comes in
# ([Yu et al. 2022](https://www.usenix.org/conference/osdi22/presentation/yu), Orca).

# %%
ideas.batches()

# %% [markdown]
# Prompts and answers need no two kinds of code. Each request has `tokens`, prompt and answer so far, of which the first `computed` are in
# its blocks. A step computes
#
# $$\text{count} = \min(\text{len(tokens)} - \text{computed},\; \text{what is left of the budget})$$
#
# tokens of it. For a new prompt this is long, and cut by the **budget**, the most tokens of a step: **chunked prefill**. For an answer it is 1. A known
# prefix counts as computed. A request that has lost its blocks has all to compute again. When count reaches the end, the step's logits give the
# next token.

# %% [markdown]
# First come, first served: those that run are served first, the oldest of them before the others. Where a block is missing, the *youngest* that runs is **preempted**: it gives
# back all its blocks, forgets what it computed, and waits again, in front of all others. So the oldest always goes on, and everyone gets to the end.
#
# Then those that wait are admitted in order, as long as there are budget, places and blocks. Nobody overtakes: else a long prompt might wait for ever. And a
# step that preempts somebody admits nobody: the blocks just won would be lost at once.
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
# Two loops. The first goes through `running` by an index, for the list may become shorter while you go; the second looks at
# `waiting[0]`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `manager.grow(table, computed, computed + count)` is None: pop the last of `running`, release its table, and try the same request
# again, unless it was itself the last.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `manager.admit(tokens, left, adapter)` gives table and computed; count is what is missing of its tokens, at most what is left. Stop at
# the first None.
#
# </details>

# %% [markdown]
# ### The same tokens in every mode
#
# Your parts now serve. For their texts they get a small model, which reads the stories of e01; it trains in some seconds, in a folded cell.
# `Server` of the package is the loop: your schedule, one forward pass over all new tokens, your sampler.

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
# Sixteen requests begin with the same 20 tokens (of a story that breaks off there), and are told in ten modes, greedy and drawn. One number stands for all answers of a mode: a hash. The model
# computes in float64 here, for in float32 another order of additions may turn a near tie.

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
# **Explain**: ten greedy modes have one hash, and the seven that draw have one. (The first three do without the server, so that none of its
# steps are counted.) Preempted requests lost their blocks, computed them again (or
# found them still there: "reused"), and told the same. So did texts cut into chunks of 1 to 9 tokens. This is what an engine must promise, and what makes its
# other numbers comparable.
#
# **Takeaway**: 24 preemptions, 219 steps in place of 28, 880 tokens found again in blocks that were still there, and not one token is another.

# %% [markdown]
# **Run**: the same requests once more, greedy, by the package's engine and by others: with guesses that are read ahead (e09b), with a model that two
# ranks share (e02b), and with one rank that reads the prompts and another that answers. `transformers` and vLLM are asked where they are
# installed. A row is a mode. Tokens reused were found and not computed again; guesses kept became text.

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
# **Explain**: one hash again. Whoever batches, cuts, shares, guesses or sends keys and values over a wire tells what the naive loop tells. Guesses that
# are kept save steps, and change no token. (A block has four tokens here, so that counts differ from those of your own table. Steps of other engines, and
# of the two ranks apart, are not counted.) vLLM is asked where a head has 32 numbers or more: on stories15M its hash is that of `transformers`
# and of all these modes too.

# %% [markdown]
# ### What it is worth
#
# Now the clock, with the wide model of section 2. All requests arrive at once, with 8 to 39 tokens of prompt and 6 to 60 of answer.
# Static and continuous batches have eight rows each.
#
# Answers have 6, 10, 16, 24 or 60 tokens, each as likely. A static batch takes the next eight requests, and lasts as long as its
# longest answer.
#
# **Predict**: how many percent of a static batch's row steps are for nobody, because that row's answer is complete?

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
# **Explain**: a cache saves the naive way's repeated work. A static batch reads the weights once for eight rows, but most rows wait for the
# longest: the batches here have answers of 6 to 60 tokens. A continuous batch has no such rows, and half of all answers are complete well before. Kwon et al.
# report 2 to 4 times the throughput of the engines before theirs at equal latency, for the same two reasons: no row for nobody, no memory for nobody.
#
# **Takeaway**: in our runs a cache told about twice as many tokens a second as the naive way, static batches about twice as many as the cache, and
# the continuous one two thirds more again: seven to eight times the naive way in all.

# %% [markdown]
# ### A long prompt arrives
#
# Six texts are being told when a prompt of 1,500 tokens comes. Without chunks it is computed in one step, and six readers see their texts stand
# still ([Agrawal et al. 2023](https://arxiv.org/abs/2308.16369), Sarathi). A budget cuts the pause, for a step of n tokens lasts at least
# $2 P n / \text{peak}$ seconds. It costs the prompt something: more steps, each of which reads all weights and what is kept.
#
# **Predict**: the 99th percentile of the time between two tokens, while the prompt is read: how many times as long is it without chunks
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
# **Question**: the largest budget of your table whose 99th percentile is at most a third of that without chunks (4,096)?

# %% tags=["question"]
### BEGIN SOLUTION
chunk = max(row["budget"] for row in chunks if row["gap_99"] <= gap[4096] / 3)
### LAB chunk = None  # your answer, tokens
### END SOLUTION

# %% tags=["grade"]
lab.answer("chunk", chunk)

# %% [markdown]
# **Explain**: without chunks six readers wait for the whole prompt. With a budget of n the pause is a step of n tokens, and falls with n until
# reading the weights decides: below the ridge a smaller step is not much shorter. The prompt's own
# wait is the shortest in between: one step for all scores every pair of its tokens, also those that the mask hides; many small steps read all weights many
# times. Sarathi's authors trade the same two.
#
# **Takeaway**: without chunks six readers waited about half a second for a token; with a budget of 128 only one token in a hundred took longer
# than a fifteenth of that, and the prompt's own wait was a third to a half shorter.

# %% [markdown]
# ## 5 · Fewer bytes a token
#
# For a token, L layers keep keys and values of K heads with C numbers of b bytes each:
#
# $$\text{bytes} = 2\, L\, K\, C\, b.$$
#
# Llama-2-7B has $2 \cdot 32 \cdot 32 \cdot 128 \cdot 2$ bytes: 512 KiB a token, 2 GiB for a text of 4,096. Four ways to less: fewer heads (grouped-query, K < H, or
# multi-query, K = 1), a window of W tokens, and fewer bits.
#
# Bits first. A few *channels* of keys are large in every token; none of the values' is
# ([Liu et al. 2024](https://arxiv.org/abs/2402.02750), KIVI). If a key's numbers shared one range, the large channel would take the levels from all others. So
# keys share a range *by the channel*, over a group of tokens, and values *by the token*.

# %%
ideas.kv_ranges()

# %% [markdown]
# A channel's range is known when its group is complete; until then the newest tokens stay whole, and values wait
# with their keys. Each group of each head has its own range, however many tokens come at once. A group is rounded once, and never again: its
# error does not grow with the text.
#
# `to_codes` does the rounding (e08). What shares a range lies along `dim`.

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
# What is held is counted. A slice of a tensor keeps *all* of its memory alive.


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
# Two lists of rounded groups, one for keys and one for values, and the newest tokens as they are. `append` joins the newest with
# what comes, and rounds while there are `group` tokens.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In (K, T, C) the tokens lie along dim 1, so keys are `to_codes(part, 1, bits)`; a token's channels lie along dim 2.
#
# </details>
# <details><summary>Hint 3</summary>
#
# What is left is a slice: keep `k.clone()`. `read` joins `from_codes(*one)` of all groups and the newest.
#
# </details>

# %% [markdown]
# **Run**: a text of 1,024 tokens in six caches, their tensors counted, beside the formula. Window: 256 tokens.

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
# What do bits cost? The trained model reads held-out stories, 16 tokens at a time, through your cache. A small model grows no large
# channels of its own. So we plant some: in each key head a pair of channels that RoPE turns together is multiplied by 10, and the queries' are
# divided. No score changes. "The other way round" hands keys in as values, and values as keys.

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
# **Explain**: by the channel, planted channels cost nothing: each has its own range. The other way round they set the range of every token.
# Without planted ones the two ways hardly differ, which is why a small model would not have told you. KIVI's authors
# see such channels in the keys of published models, and none in the values.
#
# **Takeaway**: 8 bits cost nothing that can be seen, for 31% of the bytes. With large channels, 3 bits cost 0.001 nats by the channel and 0.18 the other way round.

# %% [markdown]
# ## 6 · A model that others trained, beside an engine that others wrote
#
# The same on stories15M, where it is in the course's cache (`python -m minitrain assets stories15M` fetches it), beside `transformers`, where that is
# installed. Nothing of this section is graded.

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
# **Explain**: the same tokens, token for token. Eight texts at once share the reading of 61 MB of weights, one by one they do not. vLLM is
# built of the parts that you have written: this one rule, these blocks, and kernels that read pages directly.
#
# Next: the [map of the course](index.ipynb), or [e09b · Speculative decoding](e09b_speculative_decoding.ipynb), which writes several
# tokens in one pass.

# %%
lab.score(read="minitrain/inference/engine/scheduler.py")
