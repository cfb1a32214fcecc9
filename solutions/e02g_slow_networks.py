# %% [markdown]
# # e02g · Slow networks
#
# **One model on machines that can hardly talk to each other. You send a fraction of the bytes, or a fraction of the times, and
# see what each saving costs in loss over a floor that is known exactly.**
#
# 150 minutes · CPU is enough · before: [e02 · Data parallel](e02_data_parallel.ipynb) ·
# [map of the course](index.ipynb)
#
# You build: error feedback, a step of PowerSGD, DiLoCo's outer step, a parameter server, a sum that hides its parts, and a
# compressor of your own design. You end with this picture: loss against bytes, yours among the published methods.
#
# ![Held-out loss above the floor against bytes sent a step for twelve methods: FP32 sends most, DiLoCo least](../labs/pictures/e02g_slow_networks.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, ideas, show
from minitrain.ranks.launch import launch

lab = Lab("e02g_slow_networks")

# %% [markdown]
# ## 1 · The wire decides
#
# Data parallelism (e02) sends every gradient, every step. With $P$ parameters in float32 on $N$ ranks, each rank sends
#
# $$\frac{2(N-1)}{N} \cdot 4P \text{ bytes,}$$
#
# whatever the batch. For $P = 10^9$ and $N = 2$ these are 4 GB. NVLink carries 900 GB a second: 4 ms, nothing beside a step
# of one second. Between two data centres, or two offices, there may be 100 Mb/s, that is 12.5 MB/s.
#
# **Predict**: how many seconds does one step's all-reduce take there? (The folded cell sends a small tensor over such a link, emulated, and
# counts each byte a million times.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 300
### LAB guess = None  # seconds, your guess
### END SOLUTION
lab.predict("one_step", guess, unit="s")

# %% tags=["folded"]
from minitrain.network.fabric import A100, Fabric
from minitrain.network.links import Link, LinkModel

SLOW = LinkModel(Link(alpha=0.01, beta=1 / 12.5e6))  # seconds, seconds a byte
between_sites = Fabric("two sites", A100, SLOW, ranks_per_node=1, compute_scale=1e-9)


def one_all_reduce(group):
    """A small tensor; its bytes count a million times on the emulated link."""
    group.all_reduce(torch.zeros(1000))
    return group.now()


from dataclasses import replace

billion = replace(between_sites, payload_scale=1e6)
one_step = launch(one_all_reduce, ranks=2, fabric=billion)[0]
print(f"{one_step:.0f} s of the emulated network, for one step's gradients")
lab.reveal("one_step", one_step, parameters=1e9, bytes_per_second=12.5e6)

# %% [markdown]
# Five minutes of waiting for a second of work. Three things can be made smaller: the bits of a number, the numbers of a
# message, and the number of messages. After these three: what if nobody waits, and what if sites do not trust each other?
#
# All of it is measured on one task, the course's chain of words: each word draws the next from 32 followers, so the loss that
# no model can beat is known exactly. The folded cell reads it, and defines `train`, which trains a small Transformer on two
# ranks by a given method and returns the held-out loss above that floor, and everything that was sent.

# %% tags=["folded"]
from collections import Counter
from itertools import chain, pairwise

from minitrain.data.corpus import make_corpus
from minitrain.data.loader import Loader
from minitrain.data.packing import pack
from minitrain.data.tokenizer import train_tokenizer
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.optimizers.learning_rate import warmup_cosine
from minitrain.training.loop import evaluate
from minitrain.training.loss import token_weighted_loss

WIDTH, ROWS, LENGTH, VOCABULARY, PEAK = 16, 8, 64, 512, 0.02
steps, every = lab.size("steps"), lab.size("every")


def read(domains, size, seed):
    """Packed rows of each domain's text, and the floors in nats a token."""
    texts = [make_corpus(size, seed=seed, domain=domain) for domain in domains]
    packed = [
        pack(tokenizer.encode_batch(text.documents), LENGTH, tokenizer.end_token)
        for text in texts
    ]
    return packed, [text.entropy_per_token(tokenizer) for text in texts]


chains = make_corpus(300_000, seed=1, domain="chain").documents
tokenizer = train_tokenizer(chains, VOCABULARY)
(text,), _ = read(["chain"], lab.size("bytes"), seed=1)
(unseen,), (floor,) = read(["chain"], 25_000, seed=2)


def model_of(width=WIDTH):
    heads = {"layers": 1, "heads": 2, "kv_heads": 2, "ffn_size": 2 * width}
    return build(ModelConfig(VOCABULARY, width, tied=True, **heads), seed=1)


def loss_of(model, batch):
    logits = model(batch.tokens, batch.documents, batch.positions)  # (B, T, V)
    return token_weighted_loss(logits, batch.targets, batch.tokens_counted)


def train(group, method, steps):
    """(nats above the floor, bytes this rank sent a step, messages a step)."""
    model = model_of()
    wrapped, optimizer, after = method(model, group)
    peaks = [each["lr"] for each in optimizer.param_groups]
    loaders = (Loader(text, ROWS, group.rank, group.size, seed=k) for k in range(99))
    group.trace.ops.clear()
    for step, batch in zip(range(steps), chain.from_iterable(loaders)):
        for each, peak in zip(optimizer.param_groups, peaks):
            each["lr"] = warmup_cosine(step, steps, steps / 10, peak)
        loss_of(wrapped, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        after(step)
    sent = Counter((op.kind, op.payload_bytes) for op in group.trace.ops)
    each_step = {kind: count / steps for kind, count in sent.items()}
    above = evaluate(model, Loader(unseen, 32)) - floor
    return above, group.trace.bytes_sent() / steps, each_step


P = sum(p.numel() for p in model_of().parameters())
print(f"floor {floor:.3f} nats a token, {P:,} parameters")

# %% [markdown]
# A **hook** is where methods differ. Our DDP calls `hook(group, bucket)` in place of a bucket's all-reduce. On arrival
# `bucket.buffer` holds this rank's own gradients; the hook sends what it likes and returns an object whose `wait()` leaves
# the ranks' mean, or something near it, in the buffer. The model, the optimizer and overlap with backward stay as they were.
#
# In the cell `hooked(make)` makes a method of a hook: `make()` is called on each rank, since a hook may keep state.


# %%
from minitrain.parallel.ddp import DDP


def adam(model):
    options = {"lr": PEAK, "betas": (0.9, 0.95), "weight_decay": 0.0}
    return torch.optim.AdamW(model.parameters(), **options)


def nothing(step):
    pass


def hooked(make):
    def method(model, group):
        return DDP(model, group, hook=make()), adam(model), nothing

    return method


# %% [markdown]
# ## 2 · Fewer bits
#
# In BF16 a gradient takes 2 bytes, in INT8 one. But an all-reduce *sums*, and a sum of two INT8 codes with different scales is no
# INT8 code. On a ring (e00) each rank would decode, add, and quantize a partial sum again, $N-1$ times.
#
# [ZeRO++](https://arxiv.org/abs/2306.10209) leaves the ring: an all-to-all brings every rank all ranks' codes of *its* part;
# it sums in float32, quantizes the sum once, and an all-gather hands it round. The bytes are the same, $2(N-1)/N \cdot P$ and
# the scales, but every number was quantized twice, however many ranks there are. With a scale for each block of 256, no code is
# off by more than half a step, $\max|x| / (2 \cdot 127)$ of its block.

# %% tags=["experiment"]
from minitrain.parallel.compressed.bits import Blocks
from minitrain.parallel.compressed.quantized import (
    Quantized,
    all_reduce_at_each_hop,
)


def quantized_both_ways(group):
    """Relative errors of the mean: quantized at each hop, and once."""
    torch.manual_seed(group.rank)
    vector = torch.randn(2**14)
    mean = group.all_reduce(vector.clone(), op="avg")
    hops = all_reduce_at_each_hop(group, vector, Blocks(bits=8))
    once = Quantized(bits=8).start(group, "gradient", vector).wait()
    return [((each - mean).norm() / mean.norm()).item() for each in (hops, once)]


ways = [(n, *launch(quantized_both_ways, ranks=n)[0]) for n in (2, 4, 8)]
show.table(
    [
        {"ranks": n, "at each hop (%)": 100 * hops, "once (%)": 100 * once}
        for n, hops, once in ways
    ],
    caption="Error of an INT8 mean of random numbers, relative to its length",
)

# %% [markdown]
# **Explain**: quantized once, the error of a mean falls as $1/\sqrt N$, and so does the mean of random numbers itself: their ratio
# stays. On the ring a partial sum of $k$ ranks is $\sqrt k$ times as large as one rank's numbers, and so are the steps of its codes; all
# $N-1$ errors add up. The longer the ring, the larger the error.

# %% [markdown]
# ## 3 · Fewer numbers, and what is left over
#
# Most numbers of a gradient are small. **Top-k** sends the $k$ largest of each rank with their places, 8 bytes each. What
# becomes of the rest? If it is dropped, a coordinate that is never among the largest never moves, however long its gradient
# points the same way.
#
# **Error feedback** keeps it. Each rank has a residual $e$, zero at first; $C$ is any compressor, $g$ the gradient:
#
# $$a = g + e, \qquad \text{send } C(a), \qquad e \leftarrow a - C(a).$$
#
# Add up all steps: everything sent plus the last residual is the sum of all gradients, exactly. Nothing is lost; it is late.

# %%
ideas.sent_and_kept()

# %% [markdown]
# Each column is a number of the gradient: what came in this step, and what had been kept. Move the handle: the small ones
# wait, add up, and are sent when they are the largest.

# %% [markdown]
# ### Exercise 1 · `ErrorFeedback`
#
# Difficulty 2 of 5 · 10 minutes · 8 points
#
# A call is one step for one vector: compress $g + e$, keep what is left, return what was sent. Every `key` has a residual of
# its own, in `self.residuals`. `compress` is called once a step and returns a new tensor, which the caller may change later;
# `vector` stays as it is.


# %% tags=["exercise"]
class ErrorFeedback:
    """What has not been sent yet. About 5 lines of yours."""

    def __init__(self):
        self.residuals = {}  # key -> e, as large as the vector

    def __call__(self, key, vector, compress):
        """C(g + e); `compress` is C, `vector` g."""
        ### BEGIN SOLUTION
        residual = self.residuals.get(key)
        wanted = vector.clone() if residual is None else vector + residual
        sent = compress(wanted)
        self.residuals[key] = wanted - sent
        return sent
        ### END SOLUTION


# %% tags=["grade"]
ErrorFeedback = lab.grade(ErrorFeedback)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# The residual is of what you wanted to send, $g + e$, not of $g$ alone.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In the first call of a key there is no residual: `self.residuals.get(key)` is None, and $a$ is the vector itself.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Four lines: the residual or nothing, `wanted`, what `compress` makes of it, and their difference stored under the key.
#
# </details>

# %% [markdown]
# **Run**: the smallest example that fails without it ([Karimireddy et al. 2019](https://arxiv.org/abs/1901.09847)): minimise
# $\tfrac12|x + y| + |x - y|$ by the sign of the gradient times its mean magnitude. Both signs are always opposite, $(1, -1)$ or
# $(-1, 1)$: a step never changes $x + y$.

# %% tags=["nbval-check-output"]
from minitrain.parallel.compressed.hook import without_feedback


def signs(vector):
    return vector.abs().mean() * vector.sign()


def descend(send):
    x, y = 1.0, 1.3
    for step in range(4000):
        plus, minus = (1 if z >= 0 else -1 for z in (x + y, x - y))
        gradient = torch.tensor([plus / 2 + minus, plus / 2 - minus])
        dx, dy = send("xy", gradient.double(), signs).tolist()
        x, y = x - 0.5 * dx / (step + 1) ** 0.5, y - 0.5 * dy / (step + 1) ** 0.5
    return x + y


print(f"x + y from 2.3 to {descend(without_feedback):.2f} without feedback,")
print(f"and to {abs(descend(ErrorFeedback())):.2f} with yours")

# %% [markdown]
# In the cell below, `Largest` is top-k with your memory or without one. `TopK` of the package sends the entries that are left;
# feedback is yours.


# %% tags=["folded"]
from minitrain.parallel.compressed.hook import Compressor
from minitrain.parallel.compressed.sparse import TopK


class Largest(Compressor):
    def __init__(self, fraction, memory):
        self.memory, self.sparse = memory, TopK(fraction, feedback=False)

    def keep(self, vector):
        k = round(self.sparse.fraction * vector.numel())
        least = vector.abs().topk(k).values[-1]
        return torch.where(vector.abs() >= least, vector, 0)

    def start(self, group, key, vector):
        sent = self.memory(key, vector, self.keep)
        return self.sparse.start(group, key, sent)


# %% [markdown]
# ## 4 · Thin matrices
#
# A gradient is a list of matrices, and the gradient $M$ of a weight ($m \times n$) is nearly of low rank: a few directions
# hold most of it. The best approximation of rank $r$ is known, a truncated SVD, but of the *mean* matrix, which no rank has.
# **PowerSGD** ([Vogels et al. 2019](https://arxiv.org/abs/1905.13727)) makes one step of power iteration instead, with a thin $Q$ ($n \times r$), equal on all ranks:
#
# $$P = \operatorname{mean}(M_i Q), \quad P \leftarrow \text{orthonormal columns of } P, \quad
# Q \leftarrow \operatorname{mean}(M_i^\top P), \quad \text{gradient} = P Q^\top .$$

# %%
ideas.thin_matrices()

# %% [markdown]
# Why may one average $P$ and $Q$, and not the matrices? A product with a fixed $Q$ is linear:
# $\operatorname{mean}(M_i Q) = \operatorname{mean}(M_i)\,Q$. With $\bar M$ for the mean matrix, $PQ^\top = PP^\top \bar M$, the projection of $\bar M$ onto the
# columns of $P$. Two conclusions: with $r = \min(m, n)$ it is $\bar M$ itself, and $P$ has to be made orthonormal *after* the
# mean, or the ranks would project onto different columns.
#
# In bytes, $4r(m + n)$ take the place of $4mn$. The next step starts from this step's $Q$, nearly right already, so that
# power iteration goes on from step to step.

# %% [markdown]
# ### Exercise 2 · `power_step`
#
# Difficulty 3 · 12 minutes · 10 points
#
# Write the formula for one matrix. `group.all_reduce(x, op="avg")` replaces `x` by the mean over ranks, and returns it.
# `matrix` and `q` stay as they are. Some gradients have fewer than $r$ directions: a column of $MQ$ is then zero, or rounding error,
# and must not be divided by its length. `torch.linalg.qr` takes care of that.


# %% tags=["exercise"]
def power_step(group, matrix, q):
    """Own matrix (m, n), q (n, r) -> P (m, r), orthonormal, and the next Q
    (n, r), equal on all ranks. Two all-reduces. About 4 lines."""
    ### BEGIN SOLUTION
    p = group.all_reduce(matrix @ q, op="avg")
    p = torch.linalg.qr(p).Q
    return p, group.all_reduce(matrix.T @ p, op="avg")
    ### END SOLUTION


# %% tags=["grade"]
power_step = lab.grade(power_step)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Four operations in the order of the formula: product, mean, orthonormal columns; product, mean.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.linalg.qr(x)` returns a pair; its `Q` has orthonormal columns that span those of `x`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The second product is with `matrix.T`, and with the orthonormal $P$ that all ranks share, not with your own one.
#
# </details>

# %% [markdown]
# `LowRank` is given: a hook that calls your `power_step` for each matrix, with your `ErrorFeedback` for what the $r$ directions
# leave out. Vectors are sent whole.


# %% tags=["folded"]
from minitrain.parallel.compressed.hook import Then


class LowRank:
    def __init__(self, rank):
        self.rank, self.qs, self.memory = rank, {}, ErrorFeedback()
        self.dice = torch.Generator().manual_seed(0)  # equal on all ranks

    @torch.no_grad()
    def __call__(self, group, bucket):
        for p in bucket.parameters:
            gradient = bucket.views[p]
            if p.ndim < 2:
                group.all_reduce(gradient, op="avg")
                continue
            if p not in self.qs:
                shape = p.shape[1], self.rank
                self.qs[p] = torch.randn(shape, generator=self.dice)

            def approximate(matrix, p=p):
                columns, self.qs[p] = power_step(group, matrix, self.qs[p])
                return columns @ self.qs[p].T

            gradient.copy_(self.memory(p, gradient, approximate))
        return Then(lambda: bucket.buffer)


# %% [markdown]
# ## 5 · Fewer times
#
# All that still talks every step, and on a line with 20 ms of delay that alone hurts. **Local SGD** lets every rank go on its
# own for $H$ steps from common weights $\theta$ to its own $\theta_i$, and then averages the weights. **DiLoCo**
# ([Douillard et al. 2023](https://arxiv.org/abs/2311.08105)) does more with the average. It treats
#
# $$d = \theta - \operatorname{mean}_i(\theta_i)$$
#
# as a *gradient*, and hands it to an outer optimizer, SGD with Nesterov momentum: with velocity $v$, momentum $\mu$ and rate
# $\eta$,
#
# $$v \leftarrow \mu v + d, \qquad \theta \leftarrow \theta - \eta\,(d + \mu v).$$
#
# Mind the sign: $d$ points *uphill*, from where the ranks arrived to where they began, as gradients do.

# %%
ideas.outer_rounds()

# %% [markdown]
# Two limits prove an implementation. With $\eta = 1$, $\mu = 0$ the new $\theta$ is the mean of the $\theta_i$: federated averaging. If
# also $H = 1$ and the inner steps are SGD, it is data parallelism. In between, each rank's inner Adam keeps its moments to itself:
# they are never sent.
#
# The paper uses $\eta = 0.7$, $\mu = 0.9$, $H = 500$ over many rounds. A run of six rounds, as ours, ends before a momentum of
# 0.9 has come up to speed; so we take $\eta = 1$, $\mu = 0.5$.

# %% [markdown]
# ### Exercise 3 · `outer_step`
#
# Difficulty 3 · 10 minutes · 10 points
#
# Write one synchronization. All three vectors (P,) are changed **in place**: `common` and `velocity` are the outer optimizer's, equal
# on all ranks, `own` is where this rank arrived, and afterwards where it goes on from. One all-reduce.


# %% tags=["exercise"]
def outer_step(group, common, own, velocity, lr=0.7, momentum=0.9) -> None:
    """DiLoCo's outer step. About 4 lines."""
    ### BEGIN SOLUTION
    uphill = group.all_reduce(common - own, op="avg")
    velocity.mul_(momentum).add_(uphill)
    common.sub_(uphill + momentum * velocity, alpha=lr)
    own.copy_(common)
    ### END SOLUTION


# %% tags=["grade"]
outer_step = lab.grade(outer_step)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# First $d$: the mean over ranks of `common - own`, a new tensor.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Methods that end in `_` change their tensor: `mul_`, `add_`, `sub_`, `copy_`. An assignment such as `common = …` does not.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The velocity is updated before it is used; the step is $d$ *and* $\mu$ times the new velocity; then `own` becomes a copy.
#
# </details>

# %% [markdown]
# **Run** it within training. `rounds` calls your `outer_step` after every `every` inner steps. `few_bits` is the package's DiLoCo
# with outer gradients in 4 bits and error feedback, as in [Streaming DiLoCo](https://arxiv.org/abs/2501.18512), which also splits the model into fragments that are sent one
# after another while training goes on.


# %% tags=["folded"]
from minitrain.parallel.compressed.diloco import DiLoCo, OuterConfig
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def rounds(model, group):
    common = parameters_to_vector(model.parameters()).detach()
    velocity = torch.zeros_like(common)

    @torch.no_grad()
    def after(step):
        if (step + 1) % every == 0:
            own = parameters_to_vector(model.parameters())
            outer_step(group, common, own, velocity, lr=1.0, momentum=0.5)
            vector_to_parameters(own, model.parameters())

    return model, adam(model), after


def few_bits(model, group):
    config = OuterConfig(every=every, lr=1.0, momentum=0.5)
    diloco = DiLoCo(model, group, config, Quantized(bits=4, feedback=True))
    return model, adam(model), lambda step: diloco.step()


# %% [markdown]
# ## 6 · What a byte is worth
#
# Two methods of one bit come from the package. In **signSGD with majority vote** each rank sends the sign of every number, and the step
# is what most ranks voted for. **1-bit Adam** ([arXiv:2102.02888](https://arxiv.org/abs/2102.02888)) is Adam for some steps; then it freezes the second
# moment, since a compression error would enter it squared, where no feedback reaches it, and sends its momentum in one bit, with
# feedback. The folded cell lists all methods.

# %% tags=["folded"]
from minitrain.parallel.compressed.hook import Cast
from minitrain.parallel.compressed.signs import MajorityVote, OneBitAdam


def voted(model, group):
    sgd = torch.optim.SGD(model.parameters(), lr=PEAK / 2)
    return DDP(model, group, hook=MajorityVote()), sgd, nothing


def one_bit_adam(model, group):
    options = {"lr": PEAK, "betas": (0.9, 0.95), "freeze": steps // 6}
    return model, OneBitAdam(model.parameters(), group, **options), nothing


METHODS = {
    "FP32": hooked(lambda: None),
    "BF16": hooked(lambda: Cast(torch.bfloat16)),
    "INT8": hooked(lambda: Quantized(bits=8)),
    "1 bit": hooked(lambda: Quantized(bits=1, feedback=True)),
    "top 5%, forgetful": hooked(lambda: Largest(0.05, without_feedback)),
    "top 5%": hooked(lambda: Largest(0.05, ErrorFeedback())),
    "PowerSGD": hooked(lambda: LowRank(rank=4)),
    "vote": voted,
    "1-bit Adam": one_bit_adam,
    "DiLoCo": rounds,
    "DiLoCo, 4 bits": few_bits,
}

# %% [markdown]
# **Predict**: top 5% *without* feedback sends the same bytes as with it. How many times as far above the floor does it end?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 2
### LAB guess = None  # a factor, your guess
### END SOLUTION
lab.predict("forgetful", guess, unit="times")


# %% [markdown]
# Now all of them, on two ranks, with the same data and the same number of steps (half a minute).


# %% tags=["experiment"]
def train_all(group, names):
    return {name: train(group, METHODS[name], steps) for name in names}


found = launch(train_all, list(METHODS), ranks=2, timeout=300)[0]
methods = [
    {"method": name, "parameters": P, "every": every, "bytes": sent, "above": above}
    for name, (above, sent, _) in found.items()
]

# %% tags=["grade"]
lab.experiment("methods", methods)

# %%
above = {row["method"]: row["above"] for row in methods}
lab.reveal("forgetful", above["top 5%, forgetful"] / above["top 5%"])
show.table(
    [
        {
            "method": row["method"],
            "bytes a step": round(row["bytes"]),
            "of FP32's": f"1/{4 * P / row['bytes']:.1f}",
            "above the floor (nats)": row["above"],
            "of FP32's (%)": 100 * row["above"] / above["FP32"],
        }
        for row in methods
    ],
    caption=f"Measured: two ranks, {steps} steps, DiLoCo with H = {every}",
)

# %% [markdown]
# **Explain**: BF16 and INT8 cost nothing here. Below that each saving has its price, and memory decides how high it is: with the same
# 5% of the numbers, 47% farther from the floor if the rest is forgotten, 8% if it is kept. The vote throws all lengths away, and a scale for
# 256 numbers is coarse for one bit: both end far above.
#
# DiLoCo sends 1/50 of the bytes and ends 9% farther. With 4 bits on top it is 1/371, and 10%: outer gradients bear it well, for they
# are sums of 50 steps, in which noise has partly cancelled.

# %% [markdown]
# ### Which method, on which network?
#
# Bytes are not seconds, and the methods did not end equally far from the floor. So let us ask for *equal loss*. The next cell
# trains FP32 over shorter runs and fits how its distance falls with steps, a power law
#
# $$\text{distance} = a \cdot \text{steps}^{-b}.$$
#
# Read backwards it says how many steps of FP32 a run was *worth*. A method whose $s$ steps were worth $w$ of FP32's needs about
# $s/w$ times as many for the same loss.

# %% tags=["experiment"]
import math

shares = (0.5, 0.7, 0.85)


def train_shorter(group):
    return [train(group, METHODS["FP32"], round(x * steps))[0] for x in shares]


shorter = launch(train_shorter, ranks=2, timeout=300)[0]
curve = [(round(x * steps), y) for x, y in zip(shares, shorter)]
curve.append((steps, above["FP32"]))
xs, ys = [torch.tensor(v).double().log() for v in zip(*curve)]
slope = ((xs - xs.mean()) * (ys - ys.mean())).sum() / (xs - xs.mean()).square().sum()
worth = {
    name: math.exp(xs.mean() + (math.log(y) - ys.mean()) / slope)
    for name, y in above.items()
}
needed = {name: steps / each for name, each in worth.items()}
print(f"FP32: distance falls as steps to the power of {slope:.2f}")

# %% [markdown]
# Now the network. The emulated fabric gives the seconds of each message that the methods sent, with its latency, as if the model
# had a billion parameters (`payload_scale`), and a step's computing took one second, about 65,000 tokens on an H100. Nothing overlaps here:
# with e02's overlap up to a second of communication a step would be hidden. (The cell is folded.)

# %% tags=["experiment", "folded"]
NETWORKS = {  # bytes a second, seconds of latency
    "NVLink, 900 GB/s": (900e9, 2e-6),
    "400 Gb/s": (50e9, 5e-6),
    "25 Gb/s": (25e9 / 8, 30e-6),
    "1 Gb/s": (1e9 / 8, 1e-3),
    "100 Mb/s": (0.1e9 / 8, 1e-2),
}
COMPUTE = 1.0  # seconds a step


def step_seconds(name, bandwidth, latency):
    link = LinkModel(Link(alpha=latency, beta=1 / bandwidth))
    fabric = Fabric("", A100, link, ranks_per_node=1, payload_scale=1e9 / P)
    messages = found[name][2].items()
    return COMPUTE + sum(
        count * fabric.seconds(kind, nbytes, (0, 1))
        for (kind, nbytes), count in messages
    )


bandwidths = [
    {
        "network": network,
        "bandwidth": link[0],
        "method": name,
        "needed": needed[name],
        "step_seconds": (each := step_seconds(name, *link)),
        "hours": needed[name] * 10_000 * each / 3600,
    }
    for network, link in NETWORKS.items()
    for name in METHODS
]

# %% tags=["grade"]
lab.experiment("bandwidths", bandwidths)

# %%
cheapest = {}
for row in bandwidths:
    best = cheapest.setdefault(row["network"], row)
    cheapest[row["network"]] = min(row, best, key=lambda each: each["hours"])
plain = {row["network"]: row["hours"] for row in bandwidths if row["method"] == "FP32"}
show.table(
    [
        {
            "network": network,
            "cheapest": row["method"],
            "hours": row["hours"],
            "FP32, hours": plain[network],
            "times as fast": plain[network] / row["hours"],
        }
        for network, row in cheapest.items()
    ],
    caption="Emulated: hours to the loss that FP32 has after 10,000 steps of 1 s",
)

# %% tags=["folded"]
shown = ("FP32", "INT8", "PowerSGD", "1-bit Adam", "DiLoCo", "DiLoCo, 4 bits")
lines = {
    name: zip(
        *[(r["bandwidth"], r["hours"]) for r in bandwidths if r["method"] == name]
    )
    for name in shown
}
show.lines(
    {name: tuple(points) for name, points in lines.items()},
    x="bandwidth (bytes/s)",
    y="hours to equal loss (emulated)",
    log="xy",
    title="Where each method pays",
    alt="Hours to equal loss against bandwidth: flat for DiLoCo, rising steeply "
    "for FP32 below a gigabyte a second.",
)

# %% [markdown]
# **Explain**: on NVLink communication is less than 1% of a step. What costs loss costs time, and FP32, BF16 and INT8 are within 3% of each
# other, which is noise (one seed). At 25 Gb/s FP32 waits longer than it computes. Each method pays from the bandwidth on at which its bytes save more
# time than its loss costs. At the slow end only sending rarely helps: at 100 Mb/s FP32 would need 911 hours, DiLoCo with 4 bits 6.4.
#
# **Question**: at 1 Gb/s, how many times as fast as FP32 is the cheapest method? Your table knows.

# %% tags=["question"]
### BEGIN SOLUTION
one_gigabit = plain["1 Gb/s"] / cheapest["1 Gb/s"]["hours"]
### LAB one_gigabit = None  # your answer, a factor
### END SOLUTION

# %% tags=["grade"]
lab.answer("one_gigabit", one_gigabit)

# %% [markdown]
# ### Where both end
#
# Six rounds from random weights are not the paper's case. It starts from a model that was trained synchronously for a while, when weights no
# longer change by leaps and a mean of two models is a good model. `later` does so: as many steps as before, synchronous, then DiLoCo
# for twice as many, twelve rounds. FP32 makes all of these steps together.


# %% tags=["experiment"]
long = lab.size("long")


def later(model, group):
    ddp, outer = DDP(model, group), []

    def after(step):
        for each in outer:
            each(step)
        if step + 1 == steps:  # from here on each rank goes on alone
            ddp.synchronize = False
            outer.append(rounds(model, group)[2])

    return ddp, adam(model), after


def train_longer(group):
    ways = {"FP32": METHODS["FP32"], "DiLoCo": later}
    return {name: train(group, way, steps + long) for name, way in ways.items()}


longer = launch(train_longer, ranks=2, timeout=300)[0]
farther = longer["DiLoCo"][0] / longer["FP32"][0] - 1
rest = {n: sent * (steps + long) - steps * 4 * P for n, (_, sent, _) in longer.items()}
print(f"DiLoCo ends {100 * farther:+.1f}% from FP32's distance to the floor,")
print(f"by 1/{rest['FP32'] / rest['DiLoCo']:.0f} of the bytes since it began")

# %% [markdown]
# **Explain**: from there on DiLoCo ends where FP32 ends: 0.6% nearer to the floor in our run, and 0.3% to 1.5% nearer in three others,
# by 1/50 of the bytes. From random weights it was 9% farther, and 1% to 7% in longer runs.

# %% [markdown]
# ## 7 · Nobody waits
#
# So far all ranks met at every synchronization, and the slowest decided when. A **parameter server** ([Dean et al. 2012](https://papers.nips.cc/paper/4687-large-scale-distributed-deep-networks)) ends that: it
# holds the weights; each worker *pulls* a copy, computes a gradient, *pushes* it, and the server takes a step at once. Nobody waits,
# and the price is this: when a gradient arrives, the weights are no longer those it was computed for.

# %%
ideas.stale_pushes()

# %% [markdown]
# The **staleness** of a push is the number of other pushes since its pull. How large is it on average? Little's law: in a
# steady state, things under way = rate × time under way. With $n$ workers always $n$ gradients are under way. Between a worker's pull and its push $n$ pushes happen on
# average, one of them its own. So the mean staleness is $n - 1$, whatever the speeds.
#
# A step along a stale gradient may overshoot: it does not know of the $n - 1$ steps just taken. The usual remedy is to divide the rate
# by the staleness ([Zhang et al. 2016](https://arxiv.org/abs/1511.05950)). Both rules are given:


# %%
def unscaled(staleness):
    return 1.0


def staleness_aware(staleness):
    return 1 / max(1, staleness)


# %% [markdown]
# ### Exercise 4 · `ParameterServer`
#
# Difficulty 2 · 8 minutes · 7 points
#
# Write `pull` and `push`. A pulled copy must not move when the weights do; `version` counts pushes, and a push says which
# version its gradient was computed for. The step is `self.lr * self.rule(staleness) * gradient`, and `gradient` stays as it is.


# %% tags=["exercise"]
class ParameterServer:
    """Weights (P,), and the number of pushes that moved them. About 6 lines of
    yours."""

    def __init__(self, weights, lr, rule=staleness_aware):
        self.weights, self.lr, self.rule = weights.clone(), lr, rule
        self.version = 0

    def pull(self):
        """A copy of the weights, and their version."""
        ### BEGIN SOLUTION
        return self.weights.clone(), self.version
        ### END SOLUTION

    def push(self, gradient, version):
        """Takes a step, counts it, and returns the gradient's staleness."""
        ### BEGIN SOLUTION
        staleness = self.version - version
        self.weights -= self.lr * self.rule(staleness) * gradient
        self.version += 1
        return staleness
        ### END SOLUTION


# %% tags=["grade"]
ParameterServer = lab.grade(ParameterServer)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `pull` returns two things, and the first must be a tensor of its own: `clone`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Staleness is the version now, before this push is counted, less the version of the pull.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In `push`: staleness, step, count, return, in this order. A gradient that nothing has overtaken has staleness 0.
#
# </details>

# %% [markdown]
# **Predict**: eight workers, each step takes a random time, exponential with mean 1 s. What is the mean staleness?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 7
### LAB guess = None  # pushes, your guess
### END SOLUTION
lab.predict("mean_staleness", guess, unit="pushes")

# %% [markdown]
# `asynchronous` of the package plays the workers: it keeps an emulated clock with the end of each worker's step, and calls your
# server in that order. The gradients are real. In this cell one worker in the second row is four times as slow as the others.

# %% tags=["experiment"]
import random

from minitrain.parallel.compressed.server import asynchronous, synchronous


def drawn(seed, least=0.0, mean=1.0, slow=1.0):
    """Seconds of each step: `least` and an exponential time; worker 0 is slow."""
    dice = random.Random(seed)

    def seconds(worker, step):
        return (least + dice.expovariate(1 / mean)) * (slow if worker == 0 else 1)

    return seconds


staleness = []
for workers in (1, 2, 4, 8, 16):
    for slow in (1.0, 4.0):
        server = ParameterServer(torch.ones(2), lr=1e-3)
        times = drawn(workers, slow=slow)
        pushes = asynchronous(server, lambda w, *_: w, times, workers, 3000)
        ages = [each.staleness for each in pushes]
        row = {"workers": workers, "slow": slow, "mean": sum(ages) / len(ages)}
        staleness.append({**row, "most": max(ages)})

# %% tags=["grade"]
lab.experiment("staleness", staleness)

# %%
equal = [row for row in staleness if row["slow"] == 1.0]
lab.reveal("mean_staleness", equal[3]["mean"], workers=8)
show.table(
    [
        {
            "workers": row["workers"],
            "worker 0 slower": f"{row['slow']:.0f} times",
            "mean staleness": round(row["mean"], 2),
            "largest": row["most"],
        }
        for row in staleness
    ],
    caption="3,000 pushes, emulated seconds",
)

# %% [markdown]
# **Explain**: the mean is $n - 1$ in each row, also with a slow worker; but the *largest* staleness explodes, for the slow one's gradients
# are the old ones. **Bounded staleness** ([SSP](https://papers.nips.cc/paper/4894-more-effective-distributed-ml-via-a-stale-synchronous-parallel-parameter-server)) makes workers wait that are more than $s$ steps ahead of the slowest.
#
# The other remedy keeps rounds, and starts a few workers more than needed: with $b$ **backup workers** a round takes the first $n$ gradients of $n + b$
# ([Chen et al. 2016](https://arxiv.org/abs/1604.00981)). If a step takes $t_0$ and an exponential time of mean $t_1$, the $n$-th fastest of $n + b$ needs, on average,
#
# $$t_0 + t_1 \left( \frac{1}{b+1} + \dots + \frac{1}{n+b} \right).$$

# %% [markdown]
# **Run**: eight workers learn the table of the chain's followers, a softmax regression of the next word on the word before, by
# plain SGD. All have the same emulated time. One in ten steps is a straggler's, ten times as long.

# %% tags=["folded"]
words = sorted({i for row in tokenizer.encode_batch(chains[:400]) for i in row})
place_of = {token: place for place, token in enumerate(words)}
V, EACH = len(words), 256
documents = tokenizer.encode_batch(
    make_corpus(600_000, seed=3, domain="chain").documents
)
pairs = torch.tensor(
    [[place_of[a], place_of[b]] for d in documents for a, b in pairwise(d)]
)
training, held_out = pairs[:-10_000], pairs[-10_000:]
per_word = make_corpus(600_000, seed=3, domain="chain")
word_floor = per_word.nats.sum() / sum(len(d) for d in documents)


def table_loss(weights, sample):
    before, after = sample.T
    return torch.nn.functional.cross_entropy(weights.view(V, V)[before], after)


def table_gradient(weights, worker, step):
    """Of 256 pairs, others for each worker and step."""
    dice = torch.Generator().manual_seed(1000 * step + worker)
    sample = training[torch.randint(len(training), (EACH,), generator=dice)]
    weights = weights.requires_grad_()
    return torch.autograd.grad(table_loss(weights, sample), weights)[0]


def with_stragglers(seed):
    dice = random.Random(seed)
    return lambda worker, step: (
        (1 + 0.2 * dice.expovariate(1)) * (10 if dice.random() < 0.1 else 1)
    )


# %% tags=["experiment", "folded"]
BUDGET, RATE = lab.size("seconds"), 240.0


def play(kind, server, gradient_of, count):
    times = with_stragglers(seed=7)
    if kind == "synchronous":
        return synchronous(server, gradient_of, times, 8, count)
    if kind == "with 2 backups":
        return synchronous(server, gradient_of, times, 8, count, backups=2)
    bound = 2 if kind == "bounded, s = 2" else None
    return asynchronous(server, gradient_of, times, 8, count, bound)


def updates_within(kind):
    """As many as fit into the time: seen in a run without gradients."""
    idle = ParameterServer(torch.zeros(1), 0.0)
    every = play(kind, idle, lambda *_: torch.zeros(1), 12 * BUDGET)
    return sum(each.seconds <= BUDGET for each in every)


KINDS = (
    "synchronous",
    "with 2 backups",
    "asynchronous",
    "asynchronous, unscaled",
    "bounded, s = 2",
)
stragglers = []
for kind in KINDS:
    rule = unscaled if kind.endswith("unscaled") else staleness_aware
    server = ParameterServer(torch.zeros(V * V), RATE, rule)
    updates = play(kind, server, table_gradient, updates_within(kind))
    distance = table_loss(server.weights, held_out).item() - word_floor
    ages = [each.staleness for each in updates]
    gradients = len(updates) * (8 if updates[0].worker < 0 else 1)
    row = {"kind": kind, "updates": len(updates), "gradients": gradients}
    row |= {"staleness": sum(ages) / len(ages), "most": max(ages)}
    stragglers.append({**row, "budget": BUDGET, "above": distance})

# %% tags=["grade"]
lab.experiment("stragglers", stragglers)

# %%
show.table(
    [
        {
            "workers": row["kind"],
            "gradients used": row["gradients"],
            "mean staleness": round(row["staleness"], 1),
            "largest": row["most"],
            "above the floor (nats)": row["above"],
        }
        for row in stragglers
    ],
    caption=f"The same {BUDGET} emulated seconds",
)

# %% [markdown]
# **Explain**: a round of eight has a straggler in it more often than not: the chance of none is $0.9^8 = 43\%$. With two backups, ten machines in
# all, three stragglers are needed to delay a round, and three times as many gradients arrive in the same time. Asynchronous workers use about as
# many with eight machines. At the full rate their steps, each blind to the seven before it, overshoot: 1.81 nats above the floor. Divided
# by the staleness they come to 0.19. The bound halves the number of gradients: it makes seven workers wait for one.
#
# **Question**: what mean staleness would 32 asynchronous workers have?

# %% tags=["question"]
### BEGIN SOLUTION
with_32_workers = 32 - 1
### LAB with_32_workers = None  # your answer, pushes
### END SOLUTION

# %% tags=["grade"]
lab.answer("with_32_workers", with_32_workers)

# %% [markdown]
# ## 8 · Sites with data of their own
#
# Two hospitals, two phones: the data stay where they are, and differ. **Federated averaging**
# ([McMahan et al. 2017](https://arxiv.org/abs/1602.05629)) is local SGD with weights: a site with $n_i$ examples counts $n_i$ times,
#
# $$\theta \leftarrow \frac{\sum_i n_i \theta_i}{\sum_i n_i},$$
#
# so that one local step of SGD is a step on all data joined. With $H$ steps it is not: each site moves toward the optimum of its *own* data,
# and the mean of two optima need not be good for either.
#
# **Run**: two sites, one with stories of a village, one with stories of a forest; beside them two with both. After every $H$ steps
# the models are averaged. Last, both domains, with site 1 away in the middle third of the run.

# %% tags=["folded"]
DOMAINS = ("village", "forest")
stories = [make_corpus(300_000, seed=1, domain=d).documents for d in DOMAINS]
tokenizer = train_tokenizer(stories[0][:400] + stories[1][:400], VOCABULARY)
(own, floors), (tests, test_floors) = (
    read(DOMAINS, size, seed)
    for size, seed in ((lab.size("bytes") // 2, 1), (20_000, 2))
)


def endless(rows, seed):
    return chain.from_iterable(Loader(rows, ROWS, seed=2 * k + seed) for k in range(99))


def train_sites(group, apart, every, away=False):
    """Nats above the floor, the mean of both domains, after federated rounds."""
    model = model_of(32)
    config = OuterConfig(every=every, lr=1.0, momentum=0.0)
    outer, inner = DiLoCo(model, group, config), adam(model)
    loaders = [endless(rows, seed=group.rank) for rows in own]
    for step in range(site_steps):
        for each in inner.param_groups:
            each["lr"] = warmup_cosine(step, site_steps, site_steps / 10, PEAK)
        which = group.rank if apart else (step + group.rank) % 2
        loss_of(model, next(loaders[which])).backward()
        inner.step()
        inner.zero_grad()
        is_away = away and group.rank == 1 and 1 / 3 <= step / site_steps < 2 / 3
        outer.step(weight=0.0 if is_away else 1.0)
    losses = [evaluate(model, Loader(rows, 32)) for rows in tests]
    return sum(losses) / 2 - sum(test_floors) / 2


# %% tags=["experiment"]
site_steps, waits = lab.size("site_steps"), lab.size("waits")


def all_sites(group):
    ways = [(apart, h, False) for apart in (False, True) for h in waits]
    return [
        (*way, train_sites(group, *way)) for way in [*ways, (False, waits[1], True)]
    ]


sites = [
    {"apart": apart, "every": h, "away": away, "above": distance}
    for apart, h, away, distance in launch(all_sites, ranks=2, timeout=300)[0]
]

# %% tags=["grade"]
lab.experiment("sites", sites)

# %% tags=["folded"]
together = {
    row["every"]: row["above"] for row in sites if not row["apart"] and not row["away"]
}
apart = {row["every"]: row["above"] for row in sites if row["apart"]}
show.lines(
    {"a domain each": (list(apart), list(apart.values())),
     "both domains": (list(together), list(together.values()))},
    x="local steps between averages, H",
    y="above the floor (nats)",
    log="x",
    title="The drift of two sites",
    alt="Distance to the floor against H: it rises for both, and more for sites that "
    "have a domain each.",
)  # fmt: skip
print(
    f"with site 1 away for a third: {sites[-1]['above']:.3f}, else {together[waits[1]]:.3f}"
)

# %% [markdown]
# **Explain**: with both domains at each site, waiting 50 steps costs little: 0.56 in place of 0.48. With a domain each it is 1.10 in place of
# 0.71: each site pulls its model toward its own stories, and the mean is good at neither. Even $H = 1$ is worse there, for each
# site's Adam divides its own gradient by its own mean size, and the mean of two such steps is not Adam's step on the mean gradient. A site that
# was away for a third of the run costs 6%; it simply goes on from the others' weights.
#
# **Question**: take the largest $H$. How many times as far from the floor do the sites with a domain each end as those with both?

# %% tags=["question"]
### BEGIN SOLUTION
drift = apart[waits[-1]] / together[waits[-1]]
### LAB drift = None  # your answer, a factor
### END SOLUTION

# %% tags=["grade"]
lab.answer("drift", drift)

# %% [markdown]
# ### A sum that hides its parts
#
# Data that never leave a site can still leak: a model update says much about the examples behind it. But averaging needs only the
# *sum*. In **secure aggregation** ([Bonawitz et al. 2017](https://doi.org/10.1145/3133956.3133982)) each pair of sites shares a secret seed. Of a pair
# $i < j$, site $i$ adds the random mask made from it, and site $j$ subtracts it. What a site sends is noise; in the sum all masks cancel.

# %%
ideas.pair_masks()

# %% [markdown]
# They cancel *exactly* only if nothing is rounded, and hide *everything* only if a masked number may be any number, equally likely. Both
# hold for integers that wrap around: int32 arithmetic is modulo $2^{32}$. So $x$ becomes the integer nearest to
# $x \cdot 2^{b}$; masks are drawn evenly over all $2^{32}$ values; the sum is divided by $2^b$. It is right as long as the
# *sum* fits, however often parts wrapped around.
#
# A mask is used once: if it served two rounds, the difference of a site's two messages would be that of its updates. So masks depend on
# the seed and on a number, `turn`, that never comes twice. `pair_mask` is given:


# %%
def pair_mask(seed, count, turn):
    """(count,) int32, uniform over all 2^32 values, other ones each turn."""
    dice = torch.Generator().manual_seed((seed * 1_000_003 + turn) % 2**63)
    return torch.randint(-(2**31), 2**31, (count,), generator=dice).int()


# %% [markdown]
# ### Exercise 5 · `secure_sum`
#
# Difficulty 3 · 12 minutes · 9 points
#
# `seeds` holds this site's seed with each other site; `group.rank` is the site's number. One all-reduce of int32 numbers, as many as the
# vector has, is all that is sent. Round $x \cdot 2^b$ to the nearest integer (`round()`). The sum is divided in float64: it may have more digits
# than float32 holds. All values fit.


# %% tags=["exercise"]
def secure_sum(group, vector, seeds: dict, turn: int, bits: int = 16):
    """The sum over ranks of values rounded to 2^-bits, in the vector's dtype;
    `vector` stays as it is. About 6 lines."""
    ### BEGIN SOLUTION
    hidden = (vector.double() * 2**bits).round().to(torch.int32)
    for other, seed in seeds.items():
        mask = pair_mask(seed, vector.numel(), turn)
        hidden = hidden + mask if group.rank < other else hidden - mask
    return (group.all_reduce(hidden).double() / 2**bits).to(vector.dtype)
    ### END SOLUTION


# %% tags=["grade"]
secure_sum = lab.grade(secure_sum)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Three parts: to int32, a loop over `seeds.items()`, the sum and back.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `hidden + mask` of two int32 tensors wraps around by itself: do not widen to int64.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The sign of a mask is decided by `group.rank < other`: one of the two sites has it the other way round.
#
# </details>

# %% [markdown]
# **Run**: three sites sum small numbers, and an eavesdropper reads what site 0 sends.


# %% tags=["folded"]
def eavesdropped(group):
    seeds = {
        other: 10 + group.rank + other for other in range(3) if other != group.rank
    }
    heard = []

    class Tapped:
        rank, size = group.rank, group.size

        def all_reduce(self, tensor, **options):
            heard.append(tensor.clone())
            return group.all_reduce(tensor, **options)

    total = secure_sum(Tapped(), torch.tensor([0.5, -0.25, 0.0]), seeds, turn=1)
    return total.tolist(), heard[0].tolist()


total, heard = launch(eavesdropped, ranks=3)[0]
print(f"the sum is {total}; site 0 sent {heard}")

# %% [markdown]
# If a site is lost after the others have masked, its masks stay in the sum. The others then reveal the seeds that they shared with it.

# %% [markdown]
# ## 9 · Your own compressor
#
# ### Open task · `Compressor`
#
# Difficulty 5 · 40 minutes · 16 points
#
# Everything so far was somebody's design. Here is a budget, and the design is yours: at most `budget` bytes for a vector of 500 or more
# float32 numbers, between 1.25 and 3 bits a number. `encode` makes the message; `decode` has nothing but the message and the length. What
# counts is the error, $\lVert x - \hat x \rVert / \lVert x \rVert$, on gradients that you have not seen: of models in training, heavy-tailed ones, plain noise.

# %% [markdown]
# **Points**: 4 for messages that fit and can be decoded; 4 if the mean error is below that of the better of top-k and one bit with block
# scales; 4 if it is at most 0.75 of it; 4 if it is at most 1.15 times that of the course's own design, which you may
# read afterwards: `minitrain/parallel/compressed/budget.py`.

# %% [markdown]
# Some directions. Blocks of a gradient differ in size by orders of magnitude: what does a scale for each cost, what does it bring? Where
# should levels lie if numbers are roughly normal: evenly up to the largest, or where the numbers are? Must all blocks have as many bits?
#
# `packed(codes, bits)` packs rows of codes (R, n), from 0 to $2^b - 1$ with $b$ = 1, 2, 4 or 8, into uint8 (R, n·b/8); `unpacked(data, bits)` is the way back.
# A float32 scale becomes four bytes by `scale.view(torch.uint8)`; on the way back the bytes need `clone()` first.

# %%
from minitrain.parallel.compressed.bits import packed, unpacked


# %% tags=["exercise"]
class MyCompressor:
    """A design of your own."""

    ### BEGIN SOLUTION
    # bits a number, the variance that they leave, and Max's levels above zero
    widths = (0, 1, 2, 4)
    left = torch.tensor([1.0, 0.3634, 0.1175, 0.0095])
    above = (
        (),
        (0.798,),
        (0.4528, 1.51),
        (0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733),
    )

    def levels(self, step):
        above = torch.tensor(self.above[step])
        return torch.cat([-above.flip(0), above])

    def plan(self, sizes, room):
        """The bits of each block: the best error removed a byte, first."""
        costs = torch.tensor([9, 8, 16]).repeat(len(sizes))  # a scale with the first
        gains = (sizes.square()[:, None] * -self.left.diff()).flatten()
        order = (gains / costs).argsort(descending=True, stable=True)
        fits = costs[order].cumsum(0) <= room
        taken = order[fits & (gains[order] > 0)]
        return (taken // 3).bincount(minlength=len(sizes))

    ### END SOLUTION

    def encode(self, vector, budget: int):
        """float32 (P,) -> at most `budget` bytes, a 1-D uint8 tensor."""
        ### BEGIN SOLUTION
        pad = torch.nn.functional.pad
        blocks = pad(vector, (0, -len(vector) % 64)).view(-1, 64)
        sizes = blocks.square().mean(dim=1).sqrt()
        top = sizes.max().clamp(min=1e-30)
        logs = (8 * torch.log2(top / sizes)).round().clamp(max=255)
        plan = self.plan(sizes, budget - 4 - -(-len(sizes) // 4))
        codes = packed(pad(plan, (0, -len(plan) % 4))[None], 2)[0]
        parts = [top.view(1).view(torch.uint8), codes]
        for step in (1, 2, 3):
            own, levels = logs[plan == step], self.levels(step)
            scaled = blocks[plan == step] / (top * 2 ** (-own / 8))[:, None]
            codes = torch.bucketize(scaled, (levels[1:] + levels[:-1]) / 2)
            codes = packed(codes.view(1, -1), self.widths[step])[0]
            parts += [own.to(torch.uint8), codes]
        return torch.cat(parts)
        ### END SOLUTION

    def decode(self, message, length: int):
        """The bytes -> float32 (length,)."""
        ### BEGIN SOLUTION
        count = -(-length // 64)
        at = 4 + -(-count // 4)
        top = message[:4].clone().view(torch.float32)
        plan = unpacked(message[None, 4:at], 2)[0, :count]
        blocks = torch.zeros(count, 64)
        for step in (1, 2, 3):
            number = int((plan == step).sum())
            sizes = [number, number * 8 * self.widths[step]]
            own, codes = message[at : at + sum(sizes)].split(sizes)
            at += sum(sizes)
            codes = unpacked(codes[None], self.widths[step])[0].long()
            scales = top * 2 ** (-own.float() / 8)
            blocks[plan == step] = (
                self.levels(step)[codes].view(-1, 64) * scales[:, None]
            )
        return blocks.flatten()[:length]
        ### END SOLUTION


# %% tags=["grade"]
MyCompressor = lab.grade(MyCompressor)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Begin with what fits: a sign a number, and each block's mean magnitude. At 1.25 bits there is room for four bytes every 128 numbers.
#
# </details>
# <details><summary>Hint 2</summary>
#
# With two bits, the best levels for normal numbers are $\pm 0.453$ and $\pm 1.510$ standard deviations: they leave
# 12% of the variance, one bit 36%. A scale fits in a byte, as a power of $2^{1/8}$ relative to the largest.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Give each block its own bits. A block of variance $s^2$ gains $0.64\,s^2$ a number by the first bit, $0.25\,s^2$ by the second: take
# the best gains a byte until the budget is spent.
#
# </details>

# %% [markdown]
# **Run**: your compressor trains the model, with your error feedback, at 2 bits a number, and joins the picture. Its messages are handed round by an all-gather (folded).


# %% tags=["experiment", "folded"]
class Mine(Compressor):
    def __init__(self):
        self.memory, self.compressor = ErrorFeedback(), MyCompressor()

    def start(self, group, key, vector):
        budget = len(vector) // 4
        own = torch.zeros(budget, dtype=torch.uint8)

        def round_trip(wanted):
            message = self.compressor.encode(wanted, budget)
            own[: len(message)] = message
            return self.compressor.decode(own, len(wanted))

        self.memory(key, vector, round_trip)
        everyone = own.new_empty(group.size, budget)
        work = group.all_gather(everyone, own, async_op=True)

        def mean():
            each = [self.compressor.decode(m, len(vector)) for m in work.wait()]
            return torch.stack(each).mean(dim=0)

        return Then(mean)


METHODS["yours"] = hooked(Mine)
found |= launch(train_all, ["yours"], ranks=2, timeout=300)[0]
mine = {"method": "yours", "bytes": found["yours"][1], "above": found["yours"][0]}
print(f"yours: {mine['bytes']:.0f} bytes a step, {mine['above']:.3f} above the floor")

# %% [markdown]
# Here is the picture that the lab promised (its cell is folded).

# %% tags=["picture", "folded"]
every_row = [*methods, mine]
beside = {"textcoords": "offset points", "fontsize": 9}
with show.canvas(width=8) as (figure, ax):
    for row in every_row:
        is_mine = row["method"] == "yours"
        color = show.COLORS[1] if is_mine else show.COLORS[0]
        ax.plot(row["bytes"], row["above"], "D" if is_mine else "o", color=color)
        up = -14 if row["method"] in ("INT8", "BF16", "FP32", "yours") else 8
        beside["ha"] = "left" if row["method"] == "PowerSGD" else "center"
        ax.annotate(row["method"], (row["bytes"], row["above"]), (0, up), **beside)
    ax.axhline(above["FP32"], color="#888888", linestyle=":")
    ax.set(xscale="log", xlabel="bytes that a rank sends a step")
    ax.set(ylabel="held-out loss above the floor (nats)")
    ax.margins(x=0.1, y=0.1)
    ax.set_title(f"{steps} steps on two ranks: what each method sends, and loses")
show.figure(
    figure,
    alt="Held-out loss above the floor against bytes sent a step for twelve methods: "
    "FP32 sends most, DiLoCo least, and the forgetful one ends far above.",
    caption="Measured. The dotted line is FP32: everything above it is lost by compression.",
)

# %% [markdown]
# > **On GPUs.** The hooks run on GPU tensors as they are; packing bits then wants a kernel of its own. This lab has not been run there yet.
#
# **Takeaway**: 8 bits cost nothing, and keeping what was not sent turns 47% into 8%. Sending one time in fifty, in four bits, costs 10% of the
# distance to the floor after six rounds from random weights, sending one time in fifty nothing from a trained model; and on a link of
# 1 Gb/s training is 25 times as fast.
#
# A network of one gigabit, or of a continent, is a choice of algorithm before it is a choice of cable. Next,
# [e12 · Reliability](e12_reliability.ipynb): machines that do not only wait, but fail.

# %%
lab.score(read="minitrain/parallel/compressed/diloco.py")
