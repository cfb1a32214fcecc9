# %% [markdown]
# # e02b · Tensor parallel
#
# **Every matrix of a layer is split over the ranks, and two sums per layer combine their results. You write the operators, the
# layer, its sequence-parallel form and the loss, and see why eight GPUs share a matrix and sixteen hardly ever do.**
#
# 105 minutes · CPU is enough · before: [e02 · Data parallel](e02_data_parallel.ipynb) · next:
# [e02c · Pipeline parallel](e02c_pipeline_parallel.ipynb) · [map of the course](index.ipynb)
#
# You build conjugate operators, a tensor-parallel MLP and attention, sequence parallelism, a vocabulary-parallel embedding and
# cross-entropy. By the end you will have made this picture: efficiency from 1 to 16 ranks, inside a node and past it.
#
# ![Efficiency of a layer over 1 to 16 ranks: high on NVLink up to 8; past the node it drops where the way out is narrow](../labs/pictures/e02b_tensor_parallel.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, ideas, show
from minitrain.ranks.launch import launch

lab = Lab("e02b_tensor_parallel")

# %% [markdown]
# ## 1 · Two ways to split a matrix, and operators in pairs
#
# In data parallelism every rank holds every weight. But one matrix of a large model, with its gradient and optimizer state, can
# fill a GPU by itself; and once the batch cannot grow any more, further copies of the model do not make training faster. **Tensor
# parallelism** splits the matrices themselves: all ranks work on the *same tokens*, each with its own piece of every weight.
# There are two ways to split a product $Y = X A$. The first splits $A$ by columns:

# %%
ideas.column_cut()

# %% [markdown]
# Rank $r$ needs all of $X$ and computes its own columns of $Y$, complete. Nothing has to be added, so forward sends nothing;
# backward will. The second way splits $A$ by rows:

# %%
ideas.row_cut()

# %% [markdown]
# Here rank $r$ needs only its columns of $X$. Its result has the full shape of $Y$, but is only one term of a sum:
# $Y = \sum_r X_r A_r$. The ranks have to add their terms, and all of them need the result: an all-reduce.
#
# So, over the ranks, a tensor is in one of three states: **whole** (the same numbers everywhere), **split** (each rank has its
# own piece), or a **part** (each rank has one term of the sum). Forward and backward both have to keep track of these states.

# %% [markdown]
# ### What backward has to do
#
# Let $x$ be whole, and let rank $r$ use it in its own way, $y_r = f_r(x)$, for $N$ ranks $r$. The loss $L$ depends on $x$ through
# every $y_r$, so the chain rule gives a sum:
#
# $$\frac{\partial L}{\partial x} = \sum_{r=0}^{N-1} \Big(\frac{\partial y_r}{\partial x}\Big)^{\!\top} \frac{\partial L}{\partial y_r}$$
#
# Autograd on rank $r$ computes its own term and knows nothing of the others: the gradient of $x$ on each rank is a *part*, and
# backward must sum the parts.
#
# Now let each rank have a part $y_r$, and let $y = \sum_r y_r$. Then $\partial y / \partial y_r$ is the identity, so
# $\partial L / \partial y_r = \partial L / \partial y$: the gradient is already *whole*, on every rank, and backward must send
# nothing.

# %% [markdown]
# The two cases form a pair, each the backward of the other ([Shoeybi et al. 2019](https://arxiv.org/abs/1909.08053)):
#
# | | where it is used | forward | backward |
# |---|---|---|---|
# | `copy` (Megatron's *f*) | a whole x enters the ranks' separate work | nothing | all-reduce |
# | `reduce` (*g*) | the ranks' parts become whole | all-reduce | nothing |
#
# Autograd knows nothing of ranks and cannot derive these backwards. You define them yourself, in an autograd Function. Here is
# one for something else, to show the form: `forward` and `backward` are static methods, `ctx` stores what backward needs, and
# `backward` gets the gradient `dy` of the output and returns that of the input.


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
# Difficulty 2 of 5 · 14 minutes · 10 points
#
# Write two Functions: the first does `there` in forward and `back` in backward, the second the other way round. Return the
# `.apply` of each. `there(x)` and `back(x)` return a tensor, perhaps of another shape, and may work **in place**, as
# `group.all_reduce` does: but neither x nor the gradient is yours to change. Several pairs may be in use at the same time.


# %% tags=["exercise"]
def conjugates(there, back):
    """Two functions of one tensor, each the other's backward: the first is
    `there`, with `back` as its backward; the second is `back`, with `there`.
    About 16 lines."""
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
# `there(x.clone())` leaves x as it was; the same goes for dy.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The second class is the first with `there` and `back` exchanged. `ctx` stays unused: neither backward needs anything from its
# forward.
#
# </details>

# %% [markdown]
# `Operators` collects the operators of a rank. It makes two pairs with your function. `copy` and `reduce` are those of the table.
# `all_gather` and `reduce_scatter` are for section 4; they join and split the tokens, which are dimension 1.

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
    """A rank's operators: two pairs, and a maximum (without gradient)."""

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
# Take the MLP of a modern layer, SwiGLU. Each token of $x$ has $D$ numbers, and matrices are stored as in PyTorch (one row per
# output, so a linear layer is $xW^\top$):
#
# $$y = \big(\mathrm{silu}(x W_\text{gate}^\top) \odot x W_\text{up}^\top\big)\, W_\text{down}^\top + b$$
#
# $W_\text{gate}$ and $W_\text{up}$ have shape $(F, D)$ and compute $F$ features; $W_\text{down}$ has shape $(D, F)$. Split the
# first two by features: that is the first picture, since rows of $W$ are columns of $A = W^\top$. Each rank then has $F/N$
# complete features of every token. $\mathrm{silu}$ and the elementwise product $\odot$ work on each feature alone, so a rank can
# continue without any communication.

# %% [markdown]
# $W_\text{down}$ then reads features, of which rank $r$ has only its own. This is the second picture: split $W_\text{down}$ along
# the features that it reads, and each rank computes a part of $y$:
#
# $$y = \sum_{r=0}^{N-1} h_r\, W_{\text{down},r}^\top + b, \qquad h_r = \mathrm{silu}(x W_{\text{gate},r}^\top) \odot x W_{\text{up},r}^\top$$
#
# There is one sum at the end, and nothing is sent in between. Had $W_\text{gate}$ been split the second way, the ranks would have
# to add *before* $\mathrm{silu}$, since $\mathrm{silu}(a + b) \neq \mathrm{silu}(a) + \mathrm{silu}(b).$ The whole trick is this
# order: column first, row second.
#
# The folded cell makes the matrices of one layer, and `cut` extracts the slices of one rank.

# %% tags=["folded"]
from types import SimpleNamespace

D, FF, HEADS = lab.size("width"), lab.size("features"), lab.size("heads")
ROWS, COLUMNS = ("q", "k", "v", "gate", "up"), ("o", "down")


def whole_layer(D, FF, dtype=torch.float32):
    """A layer's matrices, the same on every rank."""
    seeded = torch.Generator().manual_seed(0)
    shapes = dict.fromkeys("qkvo", (D, D)) | {"norm1": (D,), "norm": (D,)}
    shapes |= {"gate": (FF, D), "up": (FF, D), "down": (D, FF), "bias": (D,)}

    def made(shape):
        return torch.randn(shape, generator=seeded).to(dtype) / 8

    return {name: made(shape) for name, shape in shapes.items()}


def cut(whole, rank, size, head_size=D // HEADS):
    """A rank's slices: rows of matrices that make features, columns of readers."""
    w = SimpleNamespace(head_size=head_size)
    for name, matrix in whole.items():
        dim = 0 if name in ROWS else 1
        is_cut = name in ROWS + COLUMNS
        part = matrix.chunk(size, dim)[rank] if is_cut else matrix
        setattr(w, name, part.clone().requires_grad_())
    return w


# %% [markdown]
# **Predict**: a layer is attention and an MLP. In each, x enters through `copy`, and the output leaves through `reduce`. Let $S$
# be the bytes of x, which has $B \cdot T \cdot D$ numbers ($B$ sequences of $T$ tokens). How many times $S$ does each of *four*
# ranks send in a step, forward and backward, over the ring of e00?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 6
### LAB guess = None  # times S, your guess
### END SOLUTION
lab.predict("layer_traffic", guess, unit="× S")

# %% [markdown]
# ### Exercise 2 · `parallel_mlp`
#
# Difficulty 2 · 12 minutes · 12 points
#
# x goes in through `enter`, **once** for gate and up together, and the output goes out through `leave`, once. Here these are
# `copy` and `reduce`, later `all_gather` and `reduce_scatter`, so do not read the number of tokens off x before `enter`: there it
# may be T/N. In between, compute `silu(gate)·up`, then `down`. The bias is whole on every rank, and must be added to the output
# **once**. Here and below, do not change the inputs in place.

# %% tags=["exercise"]
from torch.nn.functional import scaled_dot_product_attention, silu


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    """x (B, T, D) -> (B, T, D). w.gate, w.up (F/N, D), w.down (D, F/N),
    w.bias (D,). About 3 lines."""
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
# `enter` sums in backward. If you call it for gate and again for up, backward sends two sums where one for both together is
# enough.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The product with `down` is a part. A bias added to a part is in the sum N times.
#
# </details>
# <details><summary>Hint 3</summary>
#
# So the bias comes after `leave`, and `silu` multiplies two products of the same entered x.
#
# </details>

# %% [markdown]
# ## 3 · Attention: heads are features
#
# A head $h$ reads only its own queries, keys and values: $a_h = \mathrm{softmax}(q_h k_h^\top / \sqrt{C})\, v_h$, with $C$
# numbers per head. The rows of $W_q$, $W_k$ and $W_v$ belong to the heads, one head after another. Split those matrices by rows,
# and if $N$ divides the number of heads $H$, each rank has $H/N$ whole heads and can compute attention with them alone.
#
# The output matrix reads all heads: $y = \sum_h a_h W_{o,h}^\top$, a sum over heads. Split $W_o$ by the columns that it reads,
# and each rank sums over its own heads. The pattern is the same: column, separate work, row.

# %% [markdown]
# ### Exercise 3 · `parallel_attention`
#
# Difficulty 2 · 10 minutes · 8 points
#
# Attention is causal, and each rank computes it for its own heads of `w.head_size` numbers.
# `scaled_dot_product_attention(q, k, v, is_causal=True)` expects the shape (B, heads, T, C). Use `enter` and `leave` as in
# exercise 2.


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
# `rearrange(x @ w.q.T, "b t (h c) -> b h t c", c=w.head_size)`: einops finds the number of heads itself.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The way back is the same pattern reversed; then multiply by the output matrix, which gives a part.
#
# </details>

# %% [markdown]
# Put both blocks together, and a layer on four ranks looks like this:

# %%
ideas.layer_stream()

# %% [markdown]
# Colours mark work that only one rank does: its heads, its features. In the grey boxes, RMSNorm and the residual addition, every
# rank has the whole x and computes the same, so there is nothing to send. The tall boxes at the entrance and exit of a block are
# your operators. Below each stands what it sends, forward and backward; a dashed one sends nothing forward.
#
# **Run**: this layer on four ranks against one process, gradients included.

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
# Four ranks agree with one process up to rounding, here in float64. The last bits differ, since four parts are added in another
# order than one matmul adds them.
#
# ## 4 · Split the tokens, too
#
# It is wasteful that every rank computes the same. Between the blocks each rank applies the same norm to the same
# $B \cdot T \cdot D$ numbers, and keeps them for backward. **Sequence parallelism**
# ([Korthikanti et al. 2022](https://arxiv.org/abs/2205.05198)) splits the *tokens* there:

# %%
ideas.layer_stream.picture(split="sequence")

# %% [markdown]
# The boxes that were grey are now coloured: norm and addition work on each token alone, so $T/N$ tokens per rank are enough.
# Inside a block nothing changes: attention still reads all tokens, for the rank's own heads.
#
# Entrance and exit change. At the entrance, the tokens are joined (all-gather). At the exit, the ranks' parts are summed, and
# each rank needs only its own tokens of the sum: a reduce-scatter.

# %% [markdown]
# What does it cost? The ring all-reduce of e00 *is* a reduce-scatter followed by an all-gather, in each of which a rank sends
# $\frac{N-1}{N} S$ bytes. Sequence parallelism takes the all-reduce apart and puts the norm between its halves. In backward the
# two are exchanged: the backward of an all-gather is a reduce-scatter, and the other way round. That is why `Operators` builds
# them with your `conjugates`.
#
# Attention needs no new code:
#
#     parallel_attention(x, w, tp.all_gather, tp.reduce_scatter)

# %% [markdown]
# One thing is easily overlooked. The norm's weight and the bias are whole on every rank, and now each rank uses them on **its own
# tokens**. By the chain rule of section 1 their gradients are parts: with $g$ the norm's weight and $L$ the loss,
# $\partial L/\partial g = \sum_r (\partial L/\partial g)_{\text{tokens of } r}$. Without that sum each rank would train its own
# norm, the copies would drift apart, and no error would be raised. You already have the operator that leaves a tensor as it is
# and sums its gradient.

# %% [markdown]
# ### Exercise 4 · `sequence_mlp`
#
# Difficulty 4 · 16 minutes · 12 points
#
# Write the second half of a layer: x plus the MLP of x's norm, `rms_norm(x, weight, 1e-6)`. The norm works on T/N tokens, its
# output is gathered once, the MLP's parts are reduce-scattered, and the bias is added to T/N tokens. The gradients of norm and
# bias may be sent as one message or two. If you call `parallel_mlp`, note that it adds `w.bias` as it is, while here the gradient
# of the bias must be summed.


# %% tags=["exercise"]
def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    """x (B, T/N, D) -> (B, T/N, D); w.norm and w.bias (D,) are whole on
    every rank. About 4 lines."""
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
# Norm first, gather afterwards: a norm of all tokens would be kept on every rank, which is exactly what you want to avoid.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `tp.copy(w.norm)` is w.norm, with a gradient that is summed over ranks.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Three tensors enter through an operator: the norm's weight, its output, and the bias. The sum with x and the bias happens on T/N
# tokens, after the reduce-scatter.
#
# </details>

# %% [markdown]
# ## 5 · Embedding and loss
#
# Llama 3 has a vocabulary of $V = 128{,}256$ tokens; we call them words here. At width $D = 8{,}192$ the embedding alone has
# $V D = 1.05 \cdot 10^9$ numbers, and the head as many: they are the largest matrices of all. Split both by rows, $V/N$ words per
# rank. Then a rank is asked for words whose rows it does not have:

# %%
ideas.vocabulary_cut()

# %% [markdown]
# The word is looked up where its row is. Every other rank contributes **zeros**, and since adding zeros changes nothing, the
# all-reduce gives the row to every rank. Move the slider: word 7 is row 1 of rank 2, because rank 2 begins at word
# $2 \cdot V/N = 6$.

# %% [markdown]
# ### Exercise 5 · `embed`
#
# Difficulty 2 · 8 minutes · 8 points
#
# Rank r has the rows from r·V/N up to, but not including, (r+1)·V/N; N divides V. A token whose row is elsewhere adds zeros here;
# beware that Python counts a negative index from the end. `tokens` belongs to the caller: `-=` would change it.


# %% tags=["exercise"]
def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    """tokens (B, T), weight (V/N, D), this rank's rows -> (B, T, D), on
    every rank. About 4 lines."""
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
# `places = tokens - tp.rank * len(weight)`: a place below 0, or `len(weight)` and more, is elsewhere.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Look up row 0 for those (`masked_fill(elsewhere, 0)`), so that no index is out of range, and zero the result.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The mask has shape (B, T), the rows (B, T, D): `elsewhere[..., None]` lines them up. The result is a part.
#
# </details>

# %% [markdown]
# ### The loss
#
# At the other end, rank $r$ has the logits $z_v$ of its own words $v$. The cross-entropy of a token whose next word is $t$ is
#
# $$\ell = \log \sum_{v} e^{z_v} - z_t$$
#
# The naive way gathers all logits first. For 8,192 tokens in float32 that is
# $8{,}192 \cdot 128{,}256 \cdot 4\ \text{bytes} = 4.2\ \text{GB}$ on every rank, and as much again for their gradient. But $\ell$
# needs no individual logit of another rank except $z_t$, only a *sum* over them. And $e^{z}$ must not overflow, so factor out the
# largest, $m = \max_v z_v$:

# %% [markdown]
# $$\ell = m + \log \sum_{r=0}^{N-1} \Big(\sum_{v \text{ of } r} e^{z_v - m}\Big) - z_t$$
#
# Three numbers per token are sent between the ranks: the **maximum** $m$ over all ranks, the **sum** in brackets, and the
# **target's logit** $z_t$, which one rank has and the others replace by zero, as with a row of the embedding. For 8,192 tokens
# that is 98 kB instead of 4.2 GB.
#
# $m$ may be treated as a constant: the loss does not depend on it, since the factor $e^{-m}$ of the sum becomes $-m$ outside the
# logarithm and cancels.

# %% [markdown]
# ### Exercise 6 · `vocabulary_loss`
#
# Difficulty 4 · 14 minutes · 10 points
#
# Rank r has the logits of words r·V/N up to (r+1)·V/N. `tp.max(x)` is the elementwise maximum over the ranks. It has no gradient,
# and needs none, as m cancels. Backward follows by itself from `tp.reduce`, and sends nothing. No rank may make a tensor of n·V
# numbers; one of shape (n, V/N) is allowed. The two sums may be one message. Do not change `logits` and `targets`.


# %% tags=["exercise"]
def vocabulary_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    tp,
) -> torch.Tensor:
    """logits (n, V/N), targets (n,) from 0 to V-1 -> the mean cross-entropy (),
    on every rank. About 8 lines."""
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
# `top = tp.max(logits.amax(dim=-1))`, and then the sum of the exponentials of this rank's logits minus `top[:, None]`, reduced.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The target's logit is on one rank, as a token's row was: zero elsewhere, then reduce. `logits.gather(-1, places[:, None])[:, 0]`
# picks one column per token.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Put the three numbers per token together as in the formula, and take the mean over tokens last.
#
# </details>

# %% [markdown]
# ## 6 · What a layer sends, and what it keeps
#
# You have two forms of the layer, *tensor* and *sequence*. The second has a flaw: its all-gather produces all $T$ tokens, which
# the matmuls after it need in backward, and so autograd keeps them. A third variant, *gathered again*, is the one in
# `minitrain/parallel`: it keeps the $T/N$ tokens and gathers them once more in backward, at the cost of two more all-gathers per
# layer.
#
# **Predict**: on one rank every variant keeps about $14\,S$ for backward (measured). On four ranks *gathered again* divides all
# of it by four. *Tensor* divides only what is inside the blocks, and keeps the inputs of norms and blocks whole: count those. How
# many times the bytes of *gathered again* does *tensor* keep?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 2
### LAB guess = None  # times, your guess
### END SOLUTION
lab.predict("kept", guess)


# %% [markdown]
# The sequence-parallel layer is assembled from your pieces. The folded cell below it has the third variant: the same layer with
# the linear layers of `minitrain/parallel`, which gather again.

# %%
from minitrain.measure.kept import kept_for_backward
from minitrain.parallel.tensor.linear import column_linears, row_linear

B, T = lab.size("batch"), lab.size("length")


def sequence_layer(x, w, tp):
    n = rms_norm(x, tp.copy(w.norm1), 1e-6)  # (B, T/N, D)
    x = x + parallel_attention(n, w, tp.all_gather, tp.reduce_scatter)
    return sequence_mlp(x, w, tp)


# %% tags=["folded"]
def gathered_again(x, w, tp):
    """The same with the linears of `minitrain/parallel`."""
    n = rms_norm(x, tp.copy(w.norm1), 1e-6)
    three = [(matrix, None) for matrix in (w.q, w.k, w.v)]
    apart = partial(rearrange, pattern="b t (h c) -> b h t c", c=w.head_size)
    q, k, v = map(apart, column_linears(n, three, tp.group, True))
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    out = rearrange(out, "b h t c -> b t (h c)")
    x = x + row_linear(out, w.o, None, tp.group, True)
    n = rms_norm(x, tp.copy(w.norm), 1e-6)
    gate, up = column_linears(n, [(w.gate, None), (w.up, None)], tp.group, True)
    down = row_linear(silu(gate) * up, w.down, None, tp.group, True)
    return x + down + tp.copy(w.bias)


layers = {
    "tensor": tensor_layer,
    "sequence": sequence_layer,
    "gathered again": gathered_again,
}

# %% [markdown]
# Each variant runs on 1, 2 and 4 real ranks of this machine. The trace counts the bytes that rank 0 sends; `kept_for_backward`
# records every tensor that autograd saves, each storage once and without the weights.


# %% tags=["experiment"]
def measure(group):
    """Bytes that a layer sends and keeps, both ways, in three variants."""
    rows, trace = [], group.trace
    for variant, layer in layers.items():
        w = cut(whole_layer(D, FF), group.rank, group.size)
        tp = Operators(group)
        x = torch.ones(B, T if variant == "tensor" else T // group.size, D)
        trace.ops.clear()
        x.requires_grad_()
        y, kept = kept_for_backward(layer, x, w, tp, but=vars(w).values())
        forward = trace.bytes_sent()
        y.sum().backward()
        row = {"variant": variant, "ranks": group.size, "kept_bytes": kept}
        row |= {"batch": B, "length": T, "width": D, "forward_bytes": forward}
        row["backward_bytes"] = trace.bytes_sent() - forward
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            row[f"{kind}s"] = trace.count(kind)
        rows.append(row)
    return rows


traffic = sum((launch(measure, ranks=n)[0] for n in lab.size("ranks")), [])

# %% tags=["grade"]
lab.experiment("traffic", traffic)

# %%
S = 4 * B * T * D  # bytes of x in float32
at4 = [row for row in traffic if row["ranks"] == 4]
total = [row["forward_bytes"] + row["backward_bytes"] for row in at4]
lab.reveal("layer_traffic", total[0] / S, ranks=4)

# %% [markdown]
# **Explain**: *tensor* sends four all-reduces, one for each `reduce` in forward and one for each `copy` in backward. In an
# all-reduce a rank sends $2\,\frac{N-1}{N} S$ bytes, so for a layer it sends
#
# $$4 \cdot 2\,\frac{N-1}{N}\, S = 8 \cdot \tfrac{3}{4} \cdot 16{,}384\ \text{bytes} = 98{,}304\ \text{bytes}$$
#
# with $N = 4$ and the sizes of the CPU tier, $S = 4 B T D = 4 \cdot 2 \cdot 32 \cdot 64 = 16{,}384$. Note what is missing: the
# features $F$. The wider the matrices, the more is computed for the same messages.

# %% [markdown]
# **Question**: on four ranks, how many times the bytes of the *tensor* layer does the *sequence* layer send, forward and backward
# together? Recall section 4 first; `total` has the bytes of your three layers, in the order of `layers`.

# %% tags=["question"]
### BEGIN SOLUTION
sequence_traffic = total[1] / total[0]
### LAB sequence_traffic = None  # your answer, a factor
### END SOLUTION

# %% tags=["grade"]
lab.answer("sequence_traffic", sequence_traffic)

# %% [markdown]
# Here are all three variants:

# %%
show.bars(
    [row["variant"] for row in at4],
    [sent / S for sent in total],
    theory=[8 * 3 / 4, 8 * 3 / 4, 10 * 3 / 4],
    y="bytes a rank sends for a layer, in S",
    title="Four ranks: measured, and predicted without norms",
)

# %% [markdown]
# *Sequence* sends four all-gathers and four reduce-scatters, $8\,\frac{N-1}{N} S$ again, and a little more: the gradients of two
# norms and of the bias, $3 D$ numbers, by which the bar exceeds the prediction. *Gathered again* adds two all-gathers,
# $2\,\frac{N-1}{N} S$. What does it gain?

# %% tags=["experiment"]
columns = ("variant", "ranks", "kept_bytes", "batch", "length", "width")
activations = [{column: row[column] for column in columns} for row in traffic]
kept = {(r["variant"], r["ranks"]): r["kept_bytes"] for r in activations}

# %% tags=["grade"]
lab.experiment("activations", activations)

# %%
ratio = kept["tensor", 4] / kept["gathered again", 4]
one, again = kept["tensor", 1], kept["gathered again", 1]
lab.reveal("kept", ratio, one_rank=one, again_one_rank=again, stream=S, ranks=4)

# %% [markdown]
# **Explain**: four tensors of $S$ bytes that *tensor* keeps are whole on every rank: the inputs of both norms and of both blocks.
# *Sequence* keeps two whole tensors, those it has gathered; *gathered again* keeps none. The rest (heads, features, the tensors
# that attention saves) is divided by $N$. With $K_1$ the bytes that a single rank keeps, and $u$ the number of whole tensors,
#
# $$K(N) = u S + \frac{K_1 - u S}{N}, \qquad u = 4,\ 2,\ 0$$
#
# For *tensor* on four ranks this is $65{,}536 + (231{,}936 - 65{,}536)/4 = 107{,}136$ bytes. We measured 107,520: 512 bytes that
# the norms keep are not divided either. The folded cell draws the formula (dashed) with the measured points, and on to 16 ranks,
# where nothing was measured.

# %% tags=["folded"]
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
    axes.set(xlabel="ranks", ylabel="kept for backward (kB a rank)")
    axes.set_ylim(0, None)
    axes.set_title("Activations of a layer: measured, and closed form (dashed)")
show.figure(
    figure,
    alt="Bytes kept against ranks: tensor levels off, gathered again halves.",
)

# %% [markdown]
# **Question**: and on *eight* ranks, by the closed form? How many times as many bytes as *gathered again* does *tensor* keep? The
# table below has the bytes that each keeps on one rank, and $S$.

# %% tags=["question"]
one_rank = [row for row in activations if row["ranks"] == 1]
show.table(
    [
        {
            "variant": row["variant"],
            "kept on 1 rank (bytes)": row["kept_bytes"],
            "S (bytes)": S,
        }
        for row in one_rank
    ]
)
### BEGIN SOLUTION
tensor_on_eight = 4 * S + (kept["tensor", 1] - 4 * S) / 8
memory_saved = tensor_on_eight / (kept["gathered again", 1] / 8)
### LAB memory_saved = None  # your answer, 1 where both keep as much
### END SOLUTION

# %% tags=["grade"]
lab.answer("memory_saved", memory_saved)

# %% [markdown]
# (On one rank *sequence* and *gathered again* keep 512 bytes more than *tensor*: `copy` clones the weights of the two norms, and
# the clones are saved.)
#
# **Takeaway**: for nearly the same bytes sent (1.2% more here, a share that falls as tokens grow) sequence parallelism divides
# two of the four tensors that *tensor* keeps whole. With a quarter more traffic next to nothing stays whole: on four ranks
# *tensor* keeps 1.84 times as much as *gathered again* (measured).

# %% [markdown]
# ## 7 · Why eight
#
# Matrices shrink with $N$, messages do not. Let $t_C$ be the seconds that one GPU computes for a layer, forward and backward, and
# $t_N$ the seconds of one all-reduce over $N$ ranks. Your layer waits for each of its four all-reduces. (In backward a framework
# computes the gradients of the weights meanwhile, and does better than this formula.) So the step and its efficiency $E$, the
# share of the step that is spent computing, are
#
# $$\text{step}(N) = \frac{t_C}{N} + 4\,t_N, \qquad E(N) = \frac{t_C/N}{t_C/N + 4\,t_N} = \frac{1}{1 + 4 N t_N / t_C}$$
#
# Even if $t_N$ did not grow at all, $E$ would fall with each additional rank. How fast it falls depends on the link, through
# $t_N$.

# %% [markdown]
# Now with numbers: a layer with the width of Llama 3 70B, $D = 8{,}192$ and $F = 28{,}672$ (but with as many key heads as query
# heads, like yours), and $n = 4{,}096$ tokens in bfloat16. A matmul takes 2 FLOPs per weight and token, causal attention
# $2 n^2 D$, and backward twice as many as forward:
#
# $$t_C = \frac{3\,\big(2 n\,(4 D^2 + 3 D F) + 2 n^2 D\big)}{794 \cdot 10^{12}\ \text{FLOP/s}} = \frac{24.7 \cdot 10^{12}}{794 \cdot 10^{12}}\ \text{s} = 31\ \text{ms}$$
#
# 794 TFLOP/s is the best rate measured on an H100 for a matmul ([ml-engineering](https://github.com/stas00/ml-engineering)). A
# message has $S = 2 n D = 67$ MB.

# %% [markdown]
# No GPU runs here: from now on times are **emulated**. Your layer does run, on 1 to 16 ranks of this machine, with a tiny $x$ of
# 1,024 bytes. A logical clock charges each of its messages as if it had 67 MB, at the measured bandwidths of the links, and
# charges $t_C/N$ for the computing.
#
# **Predict**: eight ranks in one node. According to its data sheet, NVLink gives each H100 450 GB/s in each direction; the
# measured rate is somewhat lower. How many milliseconds does one all-reduce of these 67 MB take?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.26
### LAB guess = None  # milliseconds, your guess
### END SOLUTION
lab.predict("node_message", guess, unit="ms")

# %% [markdown]
# We compare four networks: NVLink for all 16 ranks (an NVLink rack), nodes of 8 with an InfiniBand card for each GPU (the usual
# cluster), nodes of 8 that share *one* card (made up), and InfiniBand alone.

# %% tags=["experiment"]
from dataclasses import replace

from minitrain.network.fabric import FABRICS, INFINIBAND_NDR
from minitrain.network.links import LinkModel
from minitrain.network.logical_clock import LogicalClock

wide, features = lab.size("real_width"), lab.size("real_features")
tokens = lab.size("real_tokens")
payload = 2 * tokens * wide  # bytes of x in bfloat16
matmul_flops = 2 * tokens * (4 * wide**2 + 3 * wide * features)
forward_flops = matmul_flops + 2 * tokens**2 * wide  # causal attention
fabric = FABRICS["h100-infiniband"]()  # nodes of 8, a card for each GPU
fabric = replace(fabric, compute_scale=1e-9, payload_scale=payload / 1024)
shared = LinkModel(replace(INFINIBAND_NDR, beta=8 * INFINIBAND_NDR.beta))
networks = {
    "NVLink for all 16": replace(fabric, ranks_per_node=16),
    "nodes of 8, a card each": fabric,
    "nodes of 8, one card": replace(fabric, between=shared),
    "no NVLink, a card each": replace(fabric, ranks_per_node=1),
}


# %% tags=["experiment"]
def one_layer(group):
    """Seconds of forward and backward of your layer, on each network."""
    rows = []
    w = cut(whole_layer(64, 96), group.rank, group.size, head_size=4)
    compute = 3 * forward_flops / fabric.device.flops / group.size
    for name, network in networks.items():
        group.use(LogicalClock(network, group.rank))
        begin = group.now()
        group.clock.advance(compute / 3)
        x = torch.ones(1, 4, 64, requires_grad=True)  # 1,024 bytes
        y = tensor_layer(x, w, Operators(group))
        group.clock.advance(2 * compute / 3)  # backward is twice forward
        y.sum().backward()
        step = group.now() - begin
        row = {"network": name, "ranks": group.size, "compute_seconds": compute}
        row["all_reduce_seconds"] = network.seconds(
            "all_reduce", 1024, range(group.size)
        )
        rows.append({**row, "step_seconds": step, "efficiency": compute / step})
    return rows


degrees = sum((launch(one_layer, ranks=n)[0] for n in lab.size("degrees")), [])

# %% tags=["grade"]
lab.experiment("degrees", degrees)

# %%
at = {(row["network"], row["ranks"]): row for row in degrees}
node = at["nodes of 8, a card each", 8]
milliseconds = 1e3 * node["all_reduce_seconds"]
lab.reveal("node_message", milliseconds, nbytes=payload, ranks=8)

# %% tags=["picture", "folded"]
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
    alt="Efficiency against ranks: falls slowly; with one card a drop at 16.",
)

# %% [markdown]
# **Explain**: on eight ranks an all-reduce over NVLink takes 0.31 ms and $t_C/N$ is 3.9 ms:
# $E = 3.9 / (3.9 + 4 \cdot 0.31) = 76\%$. On sixteen it would be 57%, although there is no slower link: each rank computes half
# as much, and its messages take even a little longer, 0.37 ms. Without NVLink two ranks already wait for a third of the step (68%
# computing), and eight compute for 23% of it.

# %% [markdown]
# The surprise is the second curve, which hides behind the first: past the node, with a card for each GPU, almost nothing is lost
# against NVLink for all 16. An all-reduce over two nodes has two levels. Inside the node the ranks reduce-scatter, so that each
# has an eighth of the sum, 8.4 MB. Each sends this eighth to the other node over its *own* card, 0.23 ms at 36.8 GB/s; then they
# gather. Both levels run as a pipeline, so the slower one determines the time: inside the node the two halves take 0.32 ms (more
# than the 0.31 ms above: for an all-reduce inside one node, the NVLink switch does the adding). With all latencies it is 0.37 ms,
# as much as over NVLink alone.

# %% [markdown]
# The clock assumes a perfect pipeline; a real network has other traffic, and stragglers. And where eight GPUs share one card, it
# has to carry eight such eighths.
#
# **Question**: nodes of 8 that share one card (a network made up for this question). How many times as fast is the step on 16
# ranks as on 8? Compute both steps from the table, by the formula above.

# %% tags=["question"]
shown = [at["nodes of 8, one card", n] for n in (8, 16)]
show.table(
    {
        "ranks": [r["ranks"] for r in shown],
        "computing (ms)": [1e3 * r["compute_seconds"] for r in shown],
        "one all-reduce (ms)": [1e3 * r["all_reduce_seconds"] for r in shown],
    }
)
### BEGIN SOLUTION
eight, sixteen = (row["step_seconds"] for row in shown)
past_the_node = eight / sixteen
### LAB past_the_node = None  # your answer: 2 would be perfect, below 1 is slower
### END SOLUTION

# %% tags=["grade"]
lab.answer("past_the_node", past_the_node)

# %% [markdown]
# **Takeaway**: eight GPUs of a node compute for 76% of the time (emulated), sixteen for 57% even with a card each and a perfect
# pipeline: twice the GPUs, 1.49 times as fast. That is the price of more ranks, not of leaving the node; where eight GPUs share
# one card, sixteen are slower than eight. On real nodes of 8 A100 with a card each, Megatron-LM arrived at this rule by
# measurement: tensor parallelism up to the size of the node, other kinds of parallelism past it
# ([Narayanan et al. 2021](https://arxiv.org/abs/2104.04473)).
#
# > **On GPUs.** This lab has not been run on several GPUs yet. The picture of efficiency is emulated; bytes sent and kept
# > are measured, and do not depend on the device.

# %%
lab.score(read="minitrain/parallel/tensor/linear.py")

# %% [markdown]
# Next, [e02c · Pipeline parallel](e02c_pipeline_parallel.ipynb) goes past the node in another way: with stages of layers, which
# send one tensor per microbatch instead of four per layer.
