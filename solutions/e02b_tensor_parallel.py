# %% [markdown]
# # e02b · Tensor parallel
#
# **Every matrix of a layer is cut over the ranks, and two sums a layer join what they make. You write the operators, the
# layer, its sequence-parallel form and the loss, and see why eight GPUs share a matrix and sixteen hardly ever do.**
#
# 60 minutes · CPU is enough · before: [e02 · Data parallel](e02_data_parallel.ipynb) · next:
# [e02c · Pipeline parallel](e02c_pipeline_parallel.ipynb) · [map of the course](index.ipynb)
#
# You build: conjugate operators, a tensor-parallel MLP and attention, sequence parallelism, a vocabulary-parallel
# embedding and cross-entropy. You end with this picture: efficiency from 1 to 16 ranks, inside a node and past it.
#
# ![Efficiency of a layer over 1 to 16 ranks: high on NVLink up to 8, and a cliff where the node ends](../labs/pictures/e02b_tensor_parallel.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, show
from minitrain.ranks.launch import launch

lab = Lab("e02b_tensor_parallel")

# %% [markdown]
# ## 1 · Operators in pairs
#
# A tensor is, over the ranks, **whole** (the same everywhere), **split**, or a **part** of a sum. Where each rank uses a
# whole x in its own way, each rank's gradient is a *part*: backward must sum. Where parts were summed, every rank's
# gradient is already *whole*.

# %% [markdown]
# So operators come in pairs, each the other's backward:
#
# | | forward | backward |
# |---|---|---|
# | `copy` (Megatron's *f*) | nothing | all-reduce |
# | `reduce` (*g*) | all-reduce | nothing |
#
# ([Shoeybi et al. 2019](https://arxiv.org/abs/1909.08053)). Autograd knows nothing of ranks: you tell it, by a Function of
# your own:


# %% tags=["nbval-check-output"]
class Tenfold(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 10 * x

    @staticmethod
    def backward(ctx, dy):
        return 10 * dy


x = torch.ones(1, requires_grad=True)
Tenfold.apply(x).backward()
print("the gradient that backward gave:", x.grad.item())

# %% [markdown]
# ### Exercise 1 · `conjugates`
#
# Difficulty 2 of 5 · 8 minutes · 10 points
#
# Two Functions: the first does `there` forward and `back` backward, the second the other way round; return the `.apply`
# of each. `there(x)` and `back(x)` return a tensor, perhaps of another shape, and may work **in place**, as
# `group.all_reduce` does: neither x nor the gradient is yours to change. Several pairs may be in use at the same time.


# %% tags=["exercise"]
def conjugates(there, back):
    """Two functions of one tensor, each the other's backward: the first is `there`, with
    `back` as its backward; the second is `back`, with `there`. About 16 lines."""
    ### BEGIN SOLUTION

    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return there(x.clone())

        @staticmethod
        def backward(ctx, dy):
            return back(dy.clone())

    class Second(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return back(x.clone())

        @staticmethod
        def backward(ctx, dy):
            return there(dy.clone())

    return First.apply, Second.apply
    ### END SOLUTION


# %% tags=["grade"]
conjugates = lab.grade(conjugates)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Write two classes like `Tenfold` *inside* the function, so that they see `there` and `back`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `there(x.clone())` leaves x as it was; the same for dy.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `First`: forward `there(x.clone())`, backward `back(dy.clone())`. `Second`: exchange the two. Return
# `First.apply, Second.apply`.
#
# </details>

# %% [markdown]
# `Operators` collects what a rank needs. `gathered` and `sum_sliced` are a second pair, for section 4: they join and cut
# the tokens, dimension 1.

# %%
from functools import partial
from einops import rearrange


def gathered(group, x):
    whole = x.new_empty(group.size, *x.shape)  # (N, B, T/N, D)
    return rearrange(group.all_gather(whole, x), "n b t d -> b (n t) d")


def sum_sliced(group, x):
    slices = rearrange(x, "b (n t) d -> n b t d", n=group.size).contiguous()
    return group.reduce_scatter(torch.empty_like(slices[0]), slices)


# %%
class Operators:
    """One rank's way to the others: two pairs, and a maximum without a gradient."""

    def __init__(self, group):
        self.group, self.rank, self.size = group, group.rank, group.size
        self.copy, self.reduce = conjugates(lambda x: x, group.all_reduce)
        self.all_gather, self.reduce_scatter = conjugates(
            partial(gathered, group), partial(sum_sliced, group)
        )
        self.max = lambda x: group.all_reduce(x.detach().clone(), op="max")


# %% [markdown]
# ## 2 · First by column, then by row
#
# `y = x·Wᵀ`. Cut W's rows over N ranks: each makes F/N features of a whole x (*column parallel*, after Wᵀ). SwiGLU works
# on each feature alone. Cut `down` along the features it reads (*row parallel*): each rank has a part of the output. One
# sum, and nothing sent in between.

# %%
from types import SimpleNamespace

D, FF, HEADS = lab.size("width"), lab.size("features"), lab.size("heads")
ROWS, COLUMNS = ("q", "k", "v", "gate", "up"), ("o", "down")


def whole_layer(D, FF, dtype=torch.float32):
    """A layer's matrices, the same on every rank."""
    seeded = torch.Generator().manual_seed(0)
    shapes = dict.fromkeys("qkvo", (D, D)) | {"norm1": (D,), "norm": (D,)}
    shapes |= {"gate": (FF, D), "up": (FF, D), "down": (D, FF), "bias": (D,)}
    return {
        n: torch.randn(s, generator=seeded).to(dtype) / 8 for n, s in shapes.items()
    }


# %%
def cut(whole, rank, size, head_size=D // HEADS):
    """This rank's slices: rows of what makes features, columns of what reads them."""
    w = SimpleNamespace(head_size=head_size)
    for name, matrix in whole.items():
        dim = 0 if name in ROWS else 1
        is_cut = name in ROWS + COLUMNS
        part = matrix.chunk(size, dim)[rank] if is_cut else matrix
        setattr(w, name, part.clone().requires_grad_())
    return w


# %% [markdown]
# **Predict**: a layer is attention and an MLP, each with one sum forward and one backward. x has S bytes (B·T·D numbers).
# How many times S does each of four ranks send in a step, by the ring of e00?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 6
### LAB guess = None  # times S, your guess
### END SOLUTION
lab.predict("layer_traffic", guess)

# %% [markdown]
# ### Exercise 2 · `parallel_mlp`
#
# Difficulty 2 · 8 minutes · 12 points
#
# x goes in through `enter` and the output out through `leave`: here `copy` and `reduce`, later others, with which x and the
# output have fewer tokens than what is in between. `silu(gate)·up`, then `down`, then the bias, which every rank holds
# whole: **once**. Here and below inputs stay as they were.

# %% tags=["exercise"]
from torch.nn.functional import scaled_dot_product_attention, silu


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    """x (B, T, D) -> (B, T, D). w.gate, w.up (F/N, D), w.down (D, F/N), w.bias (D,).
    About 3 lines."""
    ### BEGIN SOLUTION
    x = enter(x)
    inside = silu(x @ w.gate.T) * (x @ w.up.T)  # (B, T, F/N)
    return leave(inside @ w.down.T) + w.bias
    ### END SOLUTION


# %% tags=["grade"]
parallel_mlp = lab.grade(parallel_mlp)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `enter` sums in backward. Called for gate and again for up, it sums twice: let x enter once, and both read it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# What `down` gives is a part. A bias added to it is there N times after the sum.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `leave((silu(x @ w.gate.T) * (x @ w.up.T)) @ w.down.T) + w.bias`, after `x = enter(x)`.
#
# </details>

# %% [markdown]
# ## 3 · Attention: heads are features
#
# A head reads only its own queries, keys and values. Cut q, k and v by rows and each rank has H/N whole heads; cut o by
# columns, and the heads' sum is the output. It is the same sandwich: column, something of one's own, row.

# %% [markdown]
# ### Exercise 3 · `parallel_attention`
#
# Difficulty 2 · 8 minutes · 8 points
#
# Causal, each rank on its own heads of `w.head_size` numbers: `scaled_dot_product_attention(q, k, v, is_causal=True)`
# wants (B, heads, T, C). `enter` and `leave` as above.


# %% tags=["exercise"]
def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    """x (B, T, D) -> (B, T, D). w.q, w.k, w.v (D/N, D), w.o (D, D/N).
    About 5 lines."""
    ### BEGIN SOLUTION
    x = enter(x)
    q, k, v = (
        rearrange(x @ matrix.T, "b t (h c) -> b h t c", c=w.head_size)
        for matrix in (w.q, w.k, w.v)
    )
    out = scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H/N, T, C)
    return leave(rearrange(out, "b h t c -> b t (h c)") @ w.o.T)
    ### END SOLUTION


# %% tags=["grade"]
parallel_attention = lab.grade(parallel_attention)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# One `enter` for q, k and v together: one sum in backward, not three.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `rearrange(x @ w.q.T, "b t (h c) -> b h t c", c=w.head_size)`: how many heads there are, einops finds itself.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Back with `"b h t c -> b t (h c)"`, then `@ w.o.T`, and out through `leave`.
#
# </details>

# %% [markdown]
# **Run**: a whole layer on four ranks against one process, gradients too. RMSNorm and its input are whole on every rank:
# nothing to send.

# %%
from minitrain.model.norm import rms_norm


def tensor_layer(x, w, tp):
    n = rms_norm(x, w.norm1, 1e-6)
    x = x + parallel_attention(n, w, tp.copy, tp.reduce)
    n = rms_norm(x, w.norm, 1e-6)
    return x + parallel_mlp(n, w, tp.copy, tp.reduce)


# %% tags=["nbval-check-output"]
def run_layer(group):
    x = torch.linspace(-1, 1, 2 * 3 * D, dtype=torch.float64).view(2, 3, D)
    w = cut(whole_layer(D, FF, torch.float64), group.rank, group.size)
    y = tensor_layer(x.requires_grad_(), w, Operators(group))
    y.square().sum().backward()
    return y.detach(), x.grad, w.norm1.grad, w.bias.grad


one, four = (launch(run_layer, ranks=ranks)[0] for ranks in (1, 4))
same = [torch.allclose(a, b, rtol=1e-10, atol=1e-12) for a, b in zip(one, four)]
print("output and gradients of x, norm, bias equal one process:", same)

# %% [markdown]
# ## 4 · The stream, too
#
# Norms, residuals and dropout still run on all B·T·D numbers, N times over, and keep them. **Sequence parallelism** splits
# *tokens* there: all-gather before a block, reduce-scatter after it
# ([Korthikanti et al. 2022](https://arxiv.org/abs/2205.05198)). Together they send what one all-reduce does.

# %% [markdown]
# Attention needs no new code: `parallel_attention(x, w, tp.all_gather, tp.reduce_scatter)`.
#
# But norm and bias are whole, and now each rank uses them on **its own tokens**: their gradients are parts. You know the
# operator that sums a gradient.

# %% [markdown]
# ### Exercise 4 · `sequence_mlp`
#
# Difficulty 4 · 12 minutes · 12 points
#
# The whole half of a layer: x plus the MLP of x's norm, `rms_norm(x, weight, 1e-6)`. Norm on T/N tokens, gather once, MLP,
# scatter, bias on T/N tokens. The gradients of norm and bias may travel as one message or two.


# %% tags=["exercise"]
def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    """x (B, T/N, D) -> (B, T/N, D); w.norm and w.bias (D,) are whole on every rank.
    About 4 lines."""
    ### BEGIN SOLUTION
    n = tp.all_gather(rms_norm(x, tp.copy(w.norm), 1e-6))  # (B, T, D)
    inside = silu(n @ w.gate.T) * (n @ w.up.T)  # (B, T, F/N)
    return x + tp.reduce_scatter(inside @ w.down.T) + tp.copy(w.bias)
    ### END SOLUTION


# %% tags=["grade"]
sequence_mlp = lab.grade(sequence_mlp)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Norm first, gather after: a norm of all tokens would be kept on every rank, which is what you want to be rid of.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `tp.copy(w.norm)` is w.norm, with a gradient that is summed over ranks.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `n = tp.all_gather(rms_norm(x, tp.copy(w.norm), 1e-6))`, then
# `x + tp.reduce_scatter(inside @ w.down.T) + tp.copy(w.bias)`.
#
# </details>

# %% [markdown]
# ## 5 · Both ends
#
# A vocabulary of 128,256 makes embedding and head the largest matrices of all. Cut them by rows: V/N tokens a rank. A token
# is looked up where its row is, the others give **zeros**, and the sum is everybody's.

# %% [markdown]
# ### Exercise 5 · `embed`
#
# Difficulty 2 · 6 minutes · 8 points
#
# Rank r has rows r·V/N to (r+1)·V/N, not counting the last; N divides V. A token that is elsewhere adds zeros here: mind
# that Python takes a negative index from the end. `tokens` are the caller's: `-=` would change them.


# %% tags=["exercise"]
def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    """tokens (B, T), weight (V/N, D), this rank's rows -> (B, T, D), on every rank.
    About 4 lines."""
    ### BEGIN SOLUTION
    places = tokens - tp.rank * len(weight)
    elsewhere = (places < 0) | (places >= len(weight))  # (B, T)
    rows = torch.nn.functional.embedding(places.masked_fill(elsewhere, 0), weight)
    return tp.reduce(rows.masked_fill(elsewhere[..., None], 0))
    ### END SOLUTION


# %% tags=["grade"]
embed = lab.grade(embed)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `places = tokens - tp.rank * len(weight)`: what is below 0, or `len(weight)` and more, is elsewhere.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Look up row 0 for those (`masked_fill(elsewhere, 0)`), so that no index is out of range, and zero the result.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `tp.reduce(weight[places.masked_fill(elsewhere, 0)].masked_fill(elsewhere[..., None], 0))`
#
# </details>

# %% [markdown]
# ### The loss
#
# A token's cross-entropy is `log Σ exp(logits) - logit[target]`. Gathered, the logits of 8,192 tokens and 128,256 words
# take 4.2 GB in float32. Three numbers a token are enough: the **maximum** m over all ranks (exp must not overflow),
# **Σ exp(logit - m)**, and the **target's logit**.

# %% [markdown]
# ### Exercise 6 · `vocabulary_loss`
#
# Difficulty 4 · 12 minutes · 10 points
#
# `tp.max(x)` is the largest over ranks, element by element, and has no gradient (m cancels, it needs none). Backward comes
# by itself, from `tp.reduce`, and sends nothing. No rank makes a tensor of n·V numbers; of (n, V/N) it may, and the two
# sums may be one message. `logits` and `targets` stay as they were.


# %% tags=["exercise"]
def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    """logits (n, V/N), targets (n,) from 0 to V-1 -> the mean cross-entropy (), everywhere.
    About 8 lines."""
    ### BEGIN SOLUTION
    width = logits.shape[-1]
    top = tp.max(logits.amax(dim=-1))  # (n,)
    total = tp.reduce((logits - top[:, None]).exp().sum(dim=-1))  # (n,)
    places = targets - tp.rank * width
    elsewhere = (places < 0) | (places >= width)
    mine = logits.gather(-1, places.masked_fill(elsewhere, 0)[:, None])[:, 0]
    aim = tp.reduce(mine.masked_fill(elsewhere, 0))  # (n,)
    return (top + total.log() - aim).mean()
    ### END SOLUTION


# %% tags=["grade"]
vocabulary_loss = lab.grade(vocabulary_loss)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `top = tp.max(logits.amax(dim=-1))`, and `total = tp.reduce((logits - top[:, None]).exp().sum(dim=-1))`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The target's logit is on one rank, as a token's row was: zero elsewhere, then reduce.
# `logits.gather(-1, places[:, None])[:, 0]` picks one column a token.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `(top + total.log() - aim).mean()`.
#
# </details>

# %% [markdown]
# ## 6 · What a layer sends, and what it keeps
#
# Three variants: *tensor*, *sequence*, *gathered again*. In the second, autograd keeps all T tokens that were gathered. The
# third, of `minitrain/parallel`, keeps T/N and gathers again in backward: two more all-gathers a layer.
#
# **Predict**: how many times as much as the third does *tensor* keep, on four ranks?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 2
### LAB guess = None  # times, your guess
### END SOLUTION
lab.predict("kept", guess)

# %% tags=["experiment"]
from torch.autograd.graph import saved_tensors_hooks

from minitrain.parallel.tensor.linear import column_linears, row_linear

B, T = lab.size("batch"), lab.size("length")


def sequence_layer(x, w, tp):
    n = rms_norm(x, tp.copy(w.norm1), 1e-6)  # (B, T/N, D)
    x = x + parallel_attention(n, w, tp.all_gather, tp.reduce_scatter)
    return sequence_mlp(x, w, tp)


def gathered_again(x, w, tp):
    """The same with the linears of `minitrain/parallel`."""
    n = rms_norm(x, tp.copy(w.norm1), 1e-6)
    heads = column_linears(n, [(m, None) for m in (w.q, w.k, w.v)], tp.group, True)
    q, k, v = (rearrange(z, "b t (h c) -> b h t c", c=w.head_size) for z in heads)
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    out = rearrange(out, "b h t c -> b t (h c)")
    x = x + row_linear(out, w.o, None, tp.group, True)
    n = rms_norm(x, tp.copy(w.norm), 1e-6)
    gate, up = column_linears(n, [(w.gate, None), (w.up, None)], tp.group, True)
    down = row_linear(silu(gate) * up, w.down, None, tp.group, True)
    return x + down + tp.copy(w.bias)


def forward_and_kept(layer, x, w, tp):
    """The output, and the bytes that autograd keeps for backward beside the weights."""
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        y = layer(x, w, tp)
    for p in vars(w).values():
        if isinstance(p, torch.Tensor):
            kept.pop(p.untyped_storage().data_ptr(), None)
    return y, sum(kept.values())


layers = {
    "tensor": tensor_layer,
    "sequence": sequence_layer,
    "gathered again": gathered_again,
}


def measure(group):
    """Bytes sent and kept by one layer, forward and backward, in three variants."""
    rows, trace = [], group.trace
    for variant, layer in layers.items():
        w, tp = cut(whole_layer(D, FF), group.rank, group.size), Operators(group)
        x = torch.ones(B, T if variant == "tensor" else T // group.size, D)
        trace.ops.clear()
        y, kept = forward_and_kept(layer, x.requires_grad_(), w, tp)
        forward = trace.bytes_sent()
        y.sum().backward()
        row = {"variant": variant, "ranks": group.size, "kept_bytes": kept}
        row |= {"batch": B, "length": T, "width": D, "forward_bytes": forward}
        row["backward_bytes"] = trace.bytes_sent() - forward
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            row[f"{kind}s"] = trace.count(kind)
        rows.append(row)
    return rows


traffic = sum((launch(measure, ranks=ranks)[0] for ranks in lab.size("ranks")), [])

# %% tags=["grade"]
lab.experiment("traffic", traffic)

# %% [markdown]
# Closed form, S = 4·B·T·D bytes: *tensor* sends four all-reduces, 8(N-1)/N·S. *Sequence* sends the same as gathers and
# scatters, and its two norms and the bias, 3·D numbers. *Gathered again* adds 2(N-1)/N·S.

# %%
S = 4 * B * T * D
at4 = [row for row in traffic if row["ranks"] == 4]
total = [row["forward_bytes"] + row["backward_bytes"] for row in at4]
show.bars(
    [row["variant"] for row in at4],
    [sent / S for sent in total],
    theory=[8 * 3 / 4, 8 * 3 / 4, 10 * 3 / 4],
    y="bytes sent a layer / S",
    title="Four ranks: measured, and the closed form without norms",
    alt="Bytes that a rank sends a layer in three variants, beside 8 and 10 times (N-1)/N.",
    form="{:.2f}",
)
lab.reveal(
    "layer_traffic", total[0] / S, formula=6.0, note="8(N-1)/N, four all-reduces"
)

# %% [markdown]
# **Question**: on four ranks, how many times the bytes of the *tensor* layer does the *sequence* layer send, forward and
# backward together?

# %% tags=["question"]
### BEGIN SOLUTION
sequence_traffic = total[1] / total[0]
### LAB sequence_traffic = None  # your answer, 1 where both send as much
### END SOLUTION

# %% tags=["grade"]
lab.answer("sequence_traffic", sequence_traffic)

# %% [markdown]
# And memory. Of what *tensor* keeps, four tensors of B·T·D are whole on every rank: the inputs of both norms and of both
# blocks. *Sequence* keeps two whole, what it gathered; *gathered again* none. The rest is cut in N.

# %% tags=["experiment"]
columns = ("variant", "ranks", "kept_bytes", "batch", "length", "width")
activations = [{column: row[column] for column in columns} for row in traffic]

# %% tags=["grade"]
lab.experiment("activations", activations)

# %% tags=["experiment"]
kept = {(row["variant"], row["ranks"]): row["kept_bytes"] for row in activations}
measured, further = lab.size("ranks"), [1, 2, 4, 8, 16]
wholes = {"tensor": 4, "sequence": 2, "gathered again": 0}  # tensors of S bytes
with show.canvas() as (figure, axes):
    for i, (variant, whole) in enumerate(wholes.items()):
        style = {"color": show.COLORS[i], "marker": show.MARKERS[i]}
        sizes = [kept[variant, n] / 1e3 for n in measured]
        closed = [whole * S / 1e3 * (1 - 1 / n) + sizes[0] / n for n in further]
        axes.plot(measured, sizes, linestyle="", **style)
        axes.plot(further, closed, "--", color=show.COLORS[i], linewidth=1.3)
        axes.text(17, closed[-1], variant, color=show.COLORS[i], va="center")
    axes.set_xscale("log", base=2)
    axes.set_xticks(further, [str(n) for n in further])
    axes.set(xlabel="ranks", ylabel="kept for backward (kB a rank)", ylim=(0, None))
    axes.set_title("Activations of a layer: measured, and closed form (dashed)")
show.figure(
    figure,
    alt="Bytes kept against ranks: tensor flattens out, gathered again halves at each step.",
)
ratio = kept["tensor", 4] / kept["gathered again", 4]
lab.reveal("kept", ratio, note="on four ranks; with more the whole part weighs more")

# %% [markdown]
# **Question**: and on *eight* ranks, by the closed form? *Tensor* keeps `4·S + (one rank's - 4·S) / 8`, *gathered again*
# an eighth of its one rank's. How many times as much is the former? One rank's and S, in bytes, are in the table below.

# %% tags=["question"]
### BEGIN SOLUTION
tensor_on_eight = 4 * S + (kept["tensor", 1] - 4 * S) / 8
memory_saved = tensor_on_eight / (kept["gathered again", 1] / 8)
### LAB memory_saved = None  # your answer, 1 where both keep as much
### END SOLUTION
one_rank = [row | {"S": S} for row in activations if row["ranks"] == 1]
show.table([{c: row[c] for c in ("variant", "kept_bytes", "S")} for row in one_rank])

# %% tags=["grade"]
lab.answer("memory_saved", memory_saved)

# %% [markdown]
# ## 7 · Why eight
#
# Matrices shrink with N, messages do not: four times B·T·D numbers, whatever N. So efficiency falls, and the link decides
# how fast.
#
# **Emulated** from here: a layer of Llama 3 70B's width on H100s, 4,096 tokens, bfloat16. Your layer sends its messages;
# a clock charges full sizes, and FLOPs at 794 TFLOP/s.

# %% [markdown]
# **Predict**: eight ranks in one node, NVLink. What part of the time do they compute, from 0 to 1?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.7
### LAB guess = None  # a share from 0 to 1, your guess
### END SOLUTION
lab.predict("eight", guess)

# %% tags=["experiment"]
from dataclasses import replace

from minitrain.network.fabric import FABRICS, INFINIBAND_NDR
from minitrain.network.links import LinkModel
from minitrain.network.logical_clock import LogicalClock

wide, features = lab.size("real_width"), lab.size("real_features")
tokens = lab.size("real_tokens")
forward_flops = 2 * tokens * (4 * wide**2 + 3 * wide * features)  # the matrices
forward_flops += 2 * tokens**2 * wide  # and the causal half of q·k and of its use
payload = 2 * tokens * wide  # bytes of x in bfloat16
TINY = (1, 4, 64)  # B, T, D of what runs: 1,024 bytes that stand for those

fabric = FABRICS["h100-infiniband"]()  # nodes of 8, an InfiniBand card for each GPU
fabric = replace(fabric, compute_scale=1e-9, payload_scale=payload / 1024)
shared = LinkModel(replace(INFINIBAND_NDR, beta=8 * INFINIBAND_NDR.beta))
networks = {
    "NVLink for all 16": replace(fabric, ranks_per_node=16),
    "nodes of 8, a card each": fabric,
    "nodes of 8, one card": replace(fabric, between=shared),
    "no NVLink, a card each": replace(fabric, ranks_per_node=1),
}


def one_layer(group):
    """Seconds of forward and backward of your layer, on each network."""
    rows = []
    w = cut(whole_layer(64, 96), group.rank, group.size, head_size=4)
    compute = (
        3 * forward_flops / fabric.device.flops / group.size
    )  # backward is twice forward
    for name, network in networks.items():
        group.use(LogicalClock(network, group.rank))
        begin = group.now()
        group.clock.advance(compute / 3)
        y = tensor_layer(torch.ones(TINY, requires_grad=True), w, Operators(group))
        group.clock.advance(2 * compute / 3)
        y.sum().backward()
        step = group.now() - begin
        moved = network.seconds("all_reduce", 1024, range(group.size))
        rows.append(
            {"network": name, "ranks": group.size, "compute_seconds": compute,
             "all_reduce_seconds": moved, "step_seconds": step,
             "efficiency": compute / step}
        )  # fmt: skip
    return rows


degrees = sum((launch(one_layer, ranks=n)[0] for n in lab.size("degrees")), [])

# %% tags=["grade"]
lab.experiment("degrees", degrees)

# %% tags=["picture"]
with show.canvas(width=9, height=5.4) as (figure, axes):
    curves = {}
    for name in networks:
        own = [row for row in degrees if row["network"] == name]
        efficiency = [100 * row["efficiency"] for row in own]
        curves[name] = ([row["ranks"] for row in own], efficiency)
    show.lines(
        curves,
        x="ranks that share a layer",
        y="efficiency: computing / step (%)",
        title="One layer, tensor parallel on H100 (emulated)",
        log="x",
        ax=axes,
    )
    axes.lines[0].set(linewidth=6, alpha=0.35, markersize=9)
    axes.axvline(8, color="#888888", linestyle=":", linewidth=1.2)
    axes.text(7.7, 3, "the node ends", ha="right", color="#555555")
    axes.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.set_ylim(0, 105)
show.figure(
    figure,
    alt="Efficiency against ranks: NVLink falls slowly; past a node of 8 with one card it drops.",
)
at = {(row["network"], row["ranks"]): row for row in degrees}
node = at["nodes of 8, a card each", 8]
compute, waits = node["compute_seconds"], 4 * node["all_reduce_seconds"]
formula = compute / (compute + waits)
lab.reveal(
    "eight", node["efficiency"], formula=formula, note="emulated, nothing hidden"
)

# %% [markdown]
# **Explain**: eight ranks on NVLink compute 76% of the time, sixteen would 57%. With a card for each GPU the node's end
# itself costs almost nothing (large messages, a perfect pipeline of both levels); with one card for all it is a cliff,
# and with no NVLink two ranks are too many.

# %% [markdown]
# **Question**: nodes of 8 that share one card (a network made up for this question). How many times as fast is the step on 16 ranks
# as on 8?

# %% tags=["question"]
### BEGIN SOLUTION
one_card = "nodes of 8, one card"
past_the_node = at[one_card, 8]["step_seconds"] / at[one_card, 16]["step_seconds"]
### LAB past_the_node = None  # your answer: 2 would be perfect, below 1 is slower
### END SOLUTION
show.table([at["nodes of 8, one card", n] for n in (8, 16)])

# %% tags=["grade"]
lab.answer("past_the_node", past_the_node)

# %% [markdown]
# > **On GPUs.** The best case is emulated: both levels of an all-reduce across nodes run as one pipeline, at the measured
# > bandwidth of each. Megatron-LM, on nodes of 8 A100 with a card each, found the same rule by trying: tensor parallel up
# > to the node's size, pipeline past it ([Narayanan et al. 2021](https://arxiv.org/abs/2104.04473)).

# %%
lab.score(read="minitrain/parallel/tensor/linear.py")

# %% [markdown]
# Next, [e02c · Pipeline parallel](e02c_pipeline_parallel.ipynb) goes past the node instead: stages of layers, which send
# one tensor a microbatch, and not four a layer.
