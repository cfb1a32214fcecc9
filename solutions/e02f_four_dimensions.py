# %% [markdown]
# # e02f · Four dimensions
#
# **Data, tensor, pipeline and expert parallelism, up to three at a time, with the result of one process to ten digits. You write
# the mesh, the gradient norm that counts every element once, and the order of ranks that keeps the axes with the most traffic
# inside a node.**
#
# 90 minutes · CPU is enough · before: [e02c · Pipeline parallel](e02c_pipeline_parallel.ipynb) · [map of the course](index.ipynb)
#
# You build a mesh, the count of a parameter's copies, the gradient norm and clipping, the count of traffic between nodes, and the
# placement of ranks. By the end you will have made this picture: the same eight ranks placed badly and well.
#
# ![Eight ranks on two nodes, twice: placed badly every tensor-parallel message leaves its node, placed well none does](../labs/pictures/e02f_four_dimensions.png)

# %% tags=["setup"]
import torch
from minitrain.lab import Lab, ideas, show, widgets
from minitrain.ranks.launch import launch

lab = Lab("e02f_four_dimensions")

# %% [markdown]
# ## 1 · Ranks on a grid
#
# Each way to split a step has its limit. Data parallelism ends where the batch has no more sequences to divide, tensor
# parallelism where its messages leave the node, and a pipeline where its bubble costs as much as another stage gains. No single
# way reaches 16,000 GPUs, but their *product* does: 128 × 8 × 16 = 16,384.
#
# A **mesh** gives every rank a place on named axes. Along **dp** the ranks have different sequences of the batch, along **tp**
# different heads and slices of matrices, along **pp** different layers, along **ep** different experts, and along **cp**
# different tokens of a sequence. Here are eight ranks on three axes of size 2:

# %%
ideas.mesh_lines()

# %% [markdown]
# A rank's number and its coordinates carry the same information. Let $n_\text{dp}$ and $n_\text{tp}$ be the sizes of two axes,
# and $i$ the coordinates, counted from 0. On `Mesh(dp=2, tp=4)` the **last** axis varies fastest, like the last digit of a
# number:
#
# $$\text{rank} = i_\text{dp} \cdot n_\text{tp} + i_\text{tp}, \qquad 5 = 1 \cdot 4 + 1 .$$
#
# With more axes it works the same way, digit by digit: a decimal number is a rank on a mesh whose axes all have size 10.

# %% [markdown]
# The ranks that differ along one axis only form a **line**. They are joined and have the same shade in the picture: they are the
# group that communicates when gradients are summed along dp, or activations along tp. The ranks that differ along two axes form a
# *plane*. Move the sliders: the order of the axes decides how far apart the members of a line are, and therefore whether the line
# leaves its node (dashed).

# %% [markdown]
# ### Exercise 1 · `Mesh`
#
# Difficulty 2 of 5 · 12 minutes · 14 points
#
# Write `coordinates` and `ranks`. On `Mesh(dp=2, tp=4)`, rank 5 has the coordinates dp 1, tp 1. Its line along tp is [4, 5, 6,
# 7], all ranks that share its other coordinates; its line along dp is [1, 5]; along ("dp", "tp") its plane has all eight ranks.
# The list is always in order of rank.


# %% tags=["exercise"]
class Mesh:
    """Ranks 0, 1, … on a grid with named axes. About 10 lines of yours."""

    def __init__(self, **sizes: int):  # in order: Mesh(dp=2, tp=4)
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:  # mesh["tp"]
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Those of a rank: {"dp": 1, "tp": 1}, axes in the mesh's order."""
        ### BEGIN SOLUTION
        places = {}
        for axis in reversed(self.axes):
            rank, places[axis] = divmod(rank, self[axis])
        return {axis: places[axis] for axis in self.axes}
        ### END SOLUTION

    def ranks(self, axes, rank: int) -> list[int]:
        """The ranks that differ from `rank` along `axes` only: one name, or a
        list or tuple of several, of one, or of none, which leaves the rank
        itself."""
        ### BEGIN SOLUTION
        axes = [axes] if isinstance(axes, str) else axes
        fixed, here = set(self.axes) - set(axes), self.coordinates(rank)
        every = range(torch.Size(self.shape).numel())
        where = [self.coordinates(other) for other in every]
        return [r for r in every if all(where[r][a] == here[a] for a in fixed)]
        ### END SOLUTION

    def group(self, group, axes):  # of this rank's line
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        size = torch.Size(self.shape).numel()
        assert size == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"


# %% tags=["grade"]
Mesh = lab.grade(Mesh)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Coordinates are the digits of a number whose bases are the sizes of the axes: `divmod(rank, size)` splits off the last digit.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `ranks`: go through all ranks, and keep those whose coordinates agree with this rank's on every axis that is *not* named.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `coordinates`: the digits come out from the last axis to the first, so reverse them for the mesh's order. `ranks`: a single name
# is a string; make a list of it first.
#
# </details>

# %% [markdown]
# **Run**: five axes at once, on your `Mesh`. A box is a rank. Its stripes show which layers, heads and sequences it holds, and
# which experts and tokens once ep or cp is above 1; stripes of one shade hold the same. Arrows join one rank's group along an
# axis, dashed where they leave the node. Move the sliders: what does each axis divide? Which group is the first to leave its
# node?

# %%
AXES = ("pp", "dp", "ep", "cp", "tp")


def draw(ax, pp, dp, ep, cp, tp, node_size, axis, rank):
    mesh = Mesh(**dict(zip(AXES, (pp, dp, ep, cp, tp))))
    rank %= pp * dp * ep * cp * tp
    show.draw_mesh(mesh, ranks_per_node=node_size, axis=axis, rank=rank, ax=ax)


# %%
sizes = {a: ([1, 2, 4, 8], 1 if a in ("ep", "cp") else 2) for a in AXES}
others = {
    "node_size": ([2, 4, 8, 16], 4),
    "axis": list(reversed(AXES)),
    "rank": (0, 31, 5),
}
widgets.explore(draw, **sizes, **others)

# %% [markdown]
# ## 2 · Who holds the same
#
# A real model on eight ranks, divided by the code of the other labs. Some parameters are split along an axis, others copied; most
# mistakes come from confusing the two. For each parameter, `layout_of` returns two sets of axes:
#
# - **split**: the ranks along these axes hold *different* elements. A layer is on one stage only, so "pp" splits it.
# - **partial**: the gradient on each rank is only a *part* of the sum along these axes, because each rank has processed other
#   sequences or tokens, until `MeshModel.backward` adds the parts up. After that, all ranks have the same sum.
#
# Along an axis that does not split it, a parameter is the same on every rank: these are its **copies**. The one exception, along
# pp, comes below.

# %% [markdown]
# **Predict**: pp = dp = tp = 2. How many of the eight ranks hold the weight of the first RMSNorm in block 0?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 4
### LAB guess = None  # ranks, your guess
### END SOLUTION
lab.predict("norm_copies", guess)

# %% [markdown]
# The folded cell defines a small model in float64, the same with four experts, two microbatches, and `part_of_model`, which
# returns a rank's part of the model on a mesh.

# %% tags=["folded"]
from minitrain.data.loader import Batch
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.parallel.layout import layout_of
from minitrain.parallel.hybrid.model import MeshModel, MeshOptions

width, layers = lab.size("width"), lab.size("layers")
dense = ModelConfig(61, width, layers, 4, 4, ffn_size=3 * width, tied=True)
moe = ModelConfig(61, width, layers, 4, 4, ffn_size=width, tied=True, experts=4)
EIGHT = {"pp": 2, "dp": 2, "ep": 1, "cp": 1, "tp": 2}


def batches(rows, length):
    """Two microbatches, the second padded: targets of -100 do not count."""
    seeded = torch.Generator().manual_seed(0)
    text = torch.randint(61, (2, rows, length + 1), generator=seeded)
    text[1, ::2, length // 2 :] = -100
    places = torch.arange(length).expand(rows, length)
    one = torch.zeros_like(places)
    return [Batch(t[:, :-1].clamp(min=0), t[:, 1:], one, places) for t in text]


def part_of_model(group, sizes):
    """This rank's part, where every axis is named, those of size 1 too."""
    config = moe if sizes["ep"] > 1 else dense
    model = build(config, dtype=torch.float64, seed=1)
    return MeshModel(model, Mesh(**sizes), group, MeshOptions(microbatches=2))


# %% tags=["experiment"]
def layouts(group):
    """What each rank holds: name -> (shape, split, partial)."""
    found = {}
    for name, p in part_of_model(group, EIGHT).modules.named_parameters():
        layout = layout_of(p)
        split, partial = sorted(layout.split), sorted(layout.partial)
        name = name.split(".", 1)[1]  # without the stage's number
        found[name] = tuple(p.shape), " ".join(split), " ".join(partial)
    return found


held = launch(layouts, ranks=8)
found = sum("blocks.0.attention_norm.weight" in names for names in held)
lab.reveal("norm_copies", found, dp=2, tp=2)
columns = ("shape on this rank", "split along", "gradient partial along")
first_ten = [
    {"on rank 0": name, **dict(zip(columns, row))}
    for name, row in list(held[0].items())[:10]
]
show.table(
    first_ten,
    caption="The embedding, and the first block, on Mesh(pp=2, dp=2, tp=2). cp has "
    "size 1 here. 61 tokens, padded to 62, are cut in two",
)

# %% [markdown]
# Here are three kinds of parameter on these eight ranks. Ranks of one colour hold the same part:

# %%
ideas.counted_once()

# %% [markdown]
# The weight of an RMSNorm in block 0 is on the first stage only, and neither dp nor tp splits it: $2 \cdot 2 = 4$ ranks hold the
# same. Move the slider to a matrix: tp splits it in two, so each half has 2 copies.
#
# The third is the exception. The *tied table* is embedding and head in one. The first stage needs it to look tokens up, the last
# one to compute logits, and the stages between do not need it: it is always on exactly two stages. So "pp" does not split it. Its
# gradient has two parts, one from each use, on these two stages: "pp" is in `partial`. The last position of the slider has four
# stages.

# %% [markdown]
# In general, the number of copies is a product of the sizes of some axes, and you decide which.

# %% [markdown]
# ### Exercise 2 · `copies`
#
# Difficulty 3 · 10 minutes · 8 points
#
# Axes in `split` contribute a factor of 1, others their size. "pp" is always in one of the two sets: in `split` for a layer, or
# if there is a single stage; in `partial` for a tied table on several stages, of which exactly two hold it. For all other axes:
# does it matter whether the gradient was partial? A mesh may have fewer axes than `split` and `partial` name.


# %% tags=["exercise"]
def copies(layout, mesh) -> int:
    """How many ranks hold the same elements of a parameter; `layout.split`
    and `layout.partial` are frozensets of axes, "pp" is in one of them. About
    5 lines."""
    ### BEGIN SOLUTION
    count = 2 if "pp" in layout.partial else 1
    for axis in mesh.axes:
        if axis != "pp" and axis not in layout.split:
            count *= mesh[axis]
    return count
    ### END SOLUTION


# %% tags=["grade"]
copies = lab.grade(copies)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# It is a product over `mesh.axes` that leaves out two kinds of axes.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Leave out the axes in `layout.split`, and "pp", which is never an ordinary factor. `mesh[axis]` is the size of an axis.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The factor of "pp" is 1 or 2: two stages hold a tied table, however many stages there are.
#
# </details>

# %% [markdown]
# ## 3 · One norm
#
# Clipping by norm needs the length of *the whole model's* gradient as one vector $g$ with elements $g_e$, the same number on
# every rank:
#
# $$\lVert g \rVert = \sqrt{\textstyle\sum_e g_e^2}$$
#
# No rank has all of $g$, and two mistakes are easy to make. A norm computed on each rank alone misses the slices and stages of
# the others. A sum of squares over all ranks counts copies several times: the RMSNorm weight above four times, a matrix twice. In
# neither case does anything break. In the first, ranks clip too little, and by different factors, so that copies drift apart; in
# the second, all clip too much. The loss looks normal for a long time.

# %% [markdown]
# If $c_e$ ranks hold element $e$, let each of them add $1/c_e$ of its square:
#
# $$\lVert g \rVert^2 = \sum_r \;\sum_{e \text{ on rank } r} \frac{g_e^2}{c_e} .$$
#
# Each element then counts $c_e \cdot 1/c_e = 1$ time, and each rank has to send only one number.

# %% [markdown]
# ### Exercise 3 · `gradient_norm`
#
# Difficulty 4 · 12 minutes · 12 points
#
# Write the formula above. `layout_of(p)` is the layout of a parameter, as in section 2; `lines.mesh` is the mesh, and
# `lines.world` is the group of all ranks, whose `all_reduce(x)` returns the sum. A parameter whose `.grad` is None adds nothing.
# Which comes first, the root or the sum?


# %% tags=["exercise"]
def gradient_norm(parameters, lines) -> torch.Tensor:
    """Length of the whole gradient, a float64 scalar, equal on all ranks.
    `parameters`: a list of this rank's. Every rank sends one number, also a
    rank without gradients. Square in float64 (gradients may be float16) and
    change no `.grad`. About 6 lines."""
    ### BEGIN SOLUTION
    square = torch.zeros((), dtype=torch.float64)
    for p in parameters:
        if p.grad is not None:
            own = p.grad.double().square().sum()
            square += own / copies(layout_of(p), lines.mesh)
    return lines.world.all_reduce(square).sqrt()
    ### END SOLUTION


# %% tags=["grade"]
gradient_norm = lab.grade(gradient_norm)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Add up squares on this rank, then do one all-reduce over `lines.world`, then take the root.
#
# </details>
# <details><summary>Hint 2</summary>
#
# If c ranks add the same square, each of them adds 1/c of it: `copies(layout_of(p), lines.mesh)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Start from a float64 zero, so that a rank without gradients also has a number to send. Convert a gradient to float64 *before*
# you square it.
#
# </details>

# %% [markdown]
# ### Exercise 4 · `clip_on_mesh`
#
# Difficulty 2 · 5 minutes · 8 points
#
# Clipping shortens $g$ to at most a given `limit` and keeps its direction. So all elements, on all ranks, are multiplied by one
# factor, as in PyTorch
#
# $$f = \frac{\text{limit}}{\lVert g \rVert + 10^{-6}},$$
#
# and where $f$ is 1 or more nothing changes. Multiply every `.grad` that is not None, in place. `parameters` may be a generator,
# which can be iterated only once. Return the norm before clipping as `gradient_norm` gives it, a float64 scalar.


# %% tags=["exercise"]
def clip_on_mesh(parameters, limit: float, lines) -> torch.Tensor:
    """Scales this rank's gradients in place so that the whole one is at most
    `limit` long; returns the norm *before*. About 7 lines."""
    ### BEGIN SOLUTION
    parameters = [p for p in parameters if p.grad is not None]
    norm = gradient_norm(parameters, lines)
    factor = limit / (norm + 1e-6)
    if factor < 1:
        for p in parameters:
            p.grad *= factor
    return norm
    ### END SOLUTION


# %% tags=["grade"]
clip_on_mesh = lab.grade(clip_on_mesh)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# First `parameters = list(parameters)`: the norm iterates over them, and so do you afterwards.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Your `gradient_norm` is the same on every rank, so the factor is too: no rank clips alone.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Only a factor below 1 changes anything. Scale each `.grad` with an operation that works in place.
#
# </details>

# %% [markdown]
# ## 4 · Equal to one process
#
# The oracle of all parallel training is one process: the same model, the same batch, one step of clipped gradient descent. On
# five meshes, each with three axes, loss, norm and **every weight** must equal those of one process. The loss alone proves
# little, because it is computed before any gradient has been summed. (This takes about ten seconds on two cores.)
#
# The folded cell defines `one_process` and `on_meshes`, which make the same step and return the loss, the norm before clipping
# and the weights after it.

# %% tags=["folded"]
from minitrain.parallel.hybrid.state import whole_model
from minitrain.training.loss import token_weighted_loss

CLIP, RATE = 0.5, 0.1
rows, length = lab.size("rows"), lab.size("length")


def stepped(parameters):
    """Gradient descent, in place."""
    with torch.no_grad():
        for p in parameters:
            p -= RATE * p.grad


def one_process(config):
    """(loss, norm, weights after the step)."""
    model, parts = build(config, dtype=torch.float64, seed=1), batches(rows, length)
    total, loss = sum(b.tokens_counted for b in parts), 0.0
    for b in parts:
        logits = model(b.tokens, b.documents, b.positions)
        share = token_weighted_loss(logits, b.targets, total)
        share.backward()
        loss += share.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item()
    stepped(model.parameters())
    return loss, norm, model.state_dict()


def on_meshes(group, meshes):
    """The same on each mesh, by your Mesh and your clip_on_mesh."""
    found = []
    for sizes in meshes:
        model = part_of_model(group, sizes)
        loss, _ = model.backward([model.share(b) for b in batches(rows, length)])
        norm = clip_on_mesh(model.parameters, CLIP, model.axes)
        stepped(model.parameters)
        whole = whole_model(model)  # on rank 0, from all parts
        weights = None if whole is None else whole.state_dict()
        found.append((loss.item(), norm.item(), weights))
    return found


# %% tags=["experiment"]
meshes = [dict(zip(AXES, sizes)) for sizes in lab.size("meshes")]
ours = launch(on_meshes, meshes, ranks=8)[0]
one, equal = {True: one_process(moe), False: one_process(dense)}, []
for sizes, (loss, norm, weights) in zip(meshes, ours):
    want = one[sizes["ep"] > 1]
    worst = max((weights[n] - w).abs().max().item() for n, w in want[2].items())
    row = {**sizes, "loss_error": abs(loss - want[0])}
    row |= {"norm_error": abs(norm - want[1]), "weight_error": worst}
    equal.append(row)

show.table(
    [
        {
            "mesh": str(Mesh(**{a: row[a] for a in AXES if row[a] > 1})),
            "loss differs by": f"{row['loss_error']:.0g}",
            "norm differs by": f"{row['norm_error']:.0g}",
            "largest difference of a weight": f"{row['weight_error']:.0g}",
        }
        for row in equal
    ],
    caption="Measured: differences from one process, float64",
)

# %% tags=["grade"]
lab.experiment("equal", equal)

# %% [markdown]
# **Explain**: a step is a sum over tokens, and each axis only regroups that sum. The result of floating-point addition depends on
# the order, so the last digits may differ: near 1, neighbouring float64 numbers are $2 \cdot 10^{-16}$ apart, near 4 (the loss)
# $9 \cdot 10^{-16}$. The table shows at most a few such distances. Had one copy been counted twice, the first digits would
# differ.

# %% [markdown]
# ## 5 · Where ranks sit
#
# The weights are right on every mesh, for every order of its axes. So the order can be chosen for speed. Links inside a node are
# about ten times as fast as those between nodes, and ranks fill the nodes in order: here four share one. In the picture of
# section 1, the lines of the *first* axis leave the node, and those of the other two stay inside. So the question is how many
# bytes are sent along each axis.

# %% [markdown]
# Let $A$ be the number of elements in the activations of one microbatch on a rank: 4 sequences × 64 tokens × width 16 = 4,096.
# Each of 2 microbatches passes through the 2 layers of a stage. In a ring all-reduce between two ranks, each sends as many
# elements as the tensor has: $2(N-1)/N = 1$ for $N = 2$.

# %% [markdown]
# - **tp** sums activations four times per layer and microbatch: after attention and after the MLP, in forward and in backward.
#   That is 4 · 2 · 2 = 16 $A$ per rank.
# - **pp** passes them on once per microbatch: a rank of the first stage sends $A$ forward, one of the second sends as much back.
#   That is 2 $A$.
# - **dp** sums gradients once per step, about 3,900 elements on a rank, whatever the size of the microbatches.
#
# **Predict**, for pp = dp = tp = 2: what share of the bytes that a rank sends goes along tp?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.8
### LAB guess = None  # a share from 0 to 1, your guess
### END SOLUTION
lab.predict("tp_share", guess, unit="share")

# %% [markdown]
# The folded cell defines `talk`, which makes a step for each of several orders of axes and returns the bytes that a rank sent
# along each axis, and how many of them went to a receiver in the same node or in another.

# %% tags=["folded"]
from collections import Counter

from minitrain.parallel.mesh import node_traffic

PER_NODE = 4


def axes_of(mesh, members):
    """Along which axes the members of a group differ: "tp", or "dp ep"."""
    places = [mesh.coordinates(member) for member in members]
    return " ".join(a for a in mesh.axes if len({p[a] for p in places}) > 1)


def talk(group, orders):
    """Of a step in each order: bytes along each axis, in and between nodes."""
    found = []
    for order in orders:
        mesh = {axis: EIGHT[axis] for axis in order}
        model = part_of_model(group, mesh)
        group.trace.ops.clear()
        model.backward([model.share(b) for b in batches(*lab_sizes)])
        sent = Counter()
        for op in group.trace.ops:
            sent[axes_of(model.axes.mesh, op.members)] += op.sent_bytes
        edges = node_traffic([group.trace], PER_NODE)  # by sender and receiver
        found.append((dict(sent), edges.inside, edges.between))
    return found


# %% tags=["experiment"]
lab_sizes = lab.size("traffic_batch")  # rows, tokens
each = [found[0][0] for found in launch(talk, [AXES], ranks=8)]
sent = {a: sum(own.get(a, 0) for own in each) / 8 for a in ("pp", "dp", "tp")}
share = sent["tp"] / sum(sent.values())
activations = lab_sizes[0] // 2 * lab_sizes[1] * width  # on a rank
given = {"layers": layers // 2, "activations": activations, "gradients": 3900}
lab.reveal("tp_share", share, **given)

show.bars(
    list(sent),
    [nbytes / 1e3 for nbytes in sent.values()],
    y="a rank sends in one step (kB)",
    title="Width {}, two microbatches of {} × {} tokens: bytes, counted".format(
        width, *lab_sizes
    ),
    x="along this axis",
)

# %% [markdown]
# **Explain**: the counted share is a little higher, because tp also sums in the embedding, in the backward of the head and in the
# loss: it splits the vocabulary too. What matters is how the parts grow: the bytes of tp and pp with the tokens, those of dp only
# with the parameters.
#
# Now to the network. Along an axis $a$ every rank sends $s_a$ bytes per step to the next rank of its line, and the last to the
# first. If $x_a$ ranks have their next one on *another* node, then
#
# $$B = \sum_a x_a\,s_a$$
#
# bytes leave their node. For eight ranks in nodes of four, the picture of section 1 shows $x_a = 8$ for the first axis, whose
# four lines are each crossed in both directions, and 0 for the others.

# %% [markdown]
# ### Exercise 5 · `bytes_between`
#
# Difficulty 3 · 8 minutes · 8 points
#
# For meshes of any size, $x_a$ has to be counted. Along each axis the ranks of a line form a ring, in order of rank: each sends
# `sent[axis]` bytes to the next, the last to the first. Ranks r and s share a node if
# `r // ranks_per_node == s // ranks_per_node`. Which is the next rank on an axis of size 1?


# %% tags=["exercise"]
def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    """Bytes that leave their node, of all ranks and all axes of `sent`: axes
    of the mesh, but perhaps not all of them. About 7 lines."""
    ### BEGIN SOLUTION
    total = 0
    for axis, nbytes in sent.items():
        for rank in range(torch.Size(mesh.shape).numel()):
            line = mesh.ranks(axis, rank)
            after = line[(line.index(rank) + 1) % len(line)]
            if after // ranks_per_node != rank // ranks_per_node:
                total += nbytes
    return total
    ### END SOLUTION


# %% tags=["grade"]
bytes_between = lab.grade(bytes_between)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Use two loops, over the axes and over all ranks: to whom does this rank send?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `line = mesh.ranks(axis, rank)`; its own place in it is `line.index(rank)`. On an axis of size 1 a rank is its own next, and
# nothing leaves.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The place after the last is the first: take it modulo the length of the line. Add `sent[axis]` where the two `//` differ.
#
# </details>

# %% [markdown]
# ### Exercise 6 · `place`
#
# Difficulty 3 · 8 minutes · 10 points
#
# "The axis with the most traffic last" is a good rule of thumb, but wrong where that axis is longer than a node. Take dp = 2 and
# tp = 8 on nodes of four, where each rank sends 10 bytes along tp and 9 along dp. tp has to leave the node anyway. Placed last,
# it leaves on 2 of the 8 edges of each of its two rings, and dp on all 16 edges of its own: $4 \cdot 10 + 16 \cdot 9 = 184$.
# Placed first, tp leaves on 4 of 8 edges, and dp on none: $8 \cdot 10 = 80$.
#
# Counting never fails. $k$ axes have $k!$ orders, 120 for five: find the one whose `bytes_between` is smallest.


# %% tags=["exercise"]
def place(sizes: dict, sent: dict, ranks_per_node: int) -> Mesh:
    """The `Mesh` of these sizes whose order of axes sends the least between
    nodes; any, if several do. About 3 lines; `itertools.permutations`
    helps."""
    ### BEGIN SOLUTION
    from itertools import permutations

    meshes = [Mesh(**dict(order)) for order in permutations(sizes.items())]
    return min(meshes, key=lambda mesh: bytes_between(mesh, sent, ranks_per_node))
    ### END SOLUTION


# %% tags=["grade"]
place = lab.grade(place)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# A dict keeps its order, and `Mesh(**dict)` takes the axes in that order.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `permutations(sizes.items())` yields every order as pairs: `Mesh(**dict(order))`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `min` with `key=` finds the mesh whose `bytes_between` is smallest.
#
# </details>

# %% [markdown]
# **Run** the example. The rule of thumb puts dp first and tp last.

# %% tags=["nbval-check-output"]
chatty_tp = {"tp": 10, "dp": 9}  # bytes that a rank sends
rule, best = Mesh(dp=2, tp=8), place({"dp": 2, "tp": 8}, chatty_tp, 4)
for name, mesh in {"chattiest last": rule, "counted": best}.items():
    leaving = bytes_between(mesh, chatty_tp, 4)
    print(f"{name}: {mesh}, {leaving} bytes between nodes")

# %% [markdown]
# The order of the rule sends more than twice as much. Now the eight ranks: a real step for each of the six orders, with every
# message counted from its sender to its receiver, beside the prediction that your `bytes_between` makes from three numbers.

# %% tags=["experiment"]
from itertools import permutations

orders = [(*three, "ep", "cp") for three in permutations(("pp", "dp", "tp"))]
traffic = []
for order, *each in zip(orders, *launch(talk, orders, ranks=8)):
    mesh = Mesh(**{axis: EIGHT[axis] for axis in order})
    row = {"order": " ".join(order[:3])}
    row |= {f"{a}_bytes": sum(own[0].get(a, 0) for own in each) for a in sent}
    row["inside"] = sum(own[1] for own in each)
    row["between"] = sum(own[2] for own in each)
    traffic.append({**row, "predicted": bytes_between(mesh, sent, PER_NODE)})
traffic.sort(key=lambda row: row["between"])

# %%
show.bars(
    [row["order"].replace(" ", "\n") for row in traffic],
    [row["between"] / 1e3 for row in traffic],
    theory=[row["predicted"] / 1e3 for row in traffic],
    x="order of the axes, from the first to the last",
    y="leaves its node (kB a step)",
    title="What comes first leaves its node of 4 ranks",
    caption="Bars: counted, sender to receiver. Dashed: your bytes_between.",
)

# %% tags=["grade"]
lab.experiment("traffic", traffic)

# %%
show.table(
    [
        {
            "order of the axes": row["order"],
            "between nodes (bytes)": row["between"],
            "inside nodes (bytes)": row["inside"],
        }
        for row in traffic
    ],
    caption="Nodes of 4, all ranks, one step, counted; kept in `traffic`",
)

# %% [markdown]
# **Explain**: the lines of the first axis cross between nodes, those of the others stay inside, so the six orders fall into three
# pairs. The sum of all bytes is the same in each. Which of the two quieter axes should go first depends on the model: this one
# has few parameters compared with its batch, so pp sends more than dp. With a large model and few tokens it is the other way
# round.
#
# **Question**: now suppose that only **two** ranks share a node. How many times as many bytes leave their node in the order tp pp
# dp as in the best order for such nodes? Your functions and `sent` give the answer; nothing has to be measured again.

# %% tags=["question"]
### BEGIN SOLUTION
best_of_two = place({"pp": 2, "dp": 2, "tp": 2}, sent, 2)
naive_of_two = bytes_between(Mesh(tp=2, pp=2, dp=2), sent, 2)
times_as_much = naive_of_two / bytes_between(best_of_two, sent, 2)
### LAB times_as_much = None  # your answer, a factor
### END SOLUTION

# %% tags=["grade"]
lab.answer("times_as_much", times_as_much)

# %% [markdown]
# **Explain**: in a node of two, only the last axis stays inside. In the order tp pp dp, 4.75 + 0.56 MB leave; in the best, 0.56 +
# 0.25 MB: a factor of 6.6.

# %% [markdown]
# ## 6 · Past the node
#
# Now on paper: the planner of e10, the 405B model of [Llama 3](https://arxiv.org/abs/2407.21783), and 16,384 H100 in nodes of 8.
# Each of the dp pipelines has 16 stages and processes 16 sequences of 8,192 tokens per step. Only tp grows, and data parallelism
# gets the remaining ranks, dp = 16,384 / (16 · tp). So the batch of a step is
#
# $$\frac{16384}{16\,\text{tp}} \cdot 16 \cdot 8192 = \frac{134 \cdot 10^6}{\text{tp}} \text{ tokens.}$$
#
# A larger tp means smaller parts of each layer on a GPU, and so less memory; smaller batches; and more ranks that have to
# communicate in every layer. Everything from here on is **estimated**: nothing ran on such a machine for this lab.
#
# The folded cell defines `planned`, which asks the planner for one step.

# %% tags=["folded"]
from dataclasses import replace

from minitrain.planning.step.memory import GIB
from minitrain.planning.validate import published_steps
from minitrain.planning.run import make_run
from minitrain.planning.step.step import estimate

published = published_steps("Llama 3 405B table 4")
llama = published[1].run  # 16,384 GPUs, sequences of 8,192


def planned(gpus, tp, pp, sequences):
    """A step on paper: 1F1B, up to 8 chunks a GPU (e02c), ZeRO-2 (e03)."""
    dp, chunks = gpus // (tp * pp), min(8, 128 // pp)
    plan = replace(llama.plan, tp=tp, sp=tp > 1, pp=pp, dp=dp, vpp=chunks)
    run = make_run(llama.chip, llama.model, plan, llama.seq, sequences)
    step = estimate(run)
    row = {"gpus": gpus, "tp": tp, "pp": pp, "dp": dp, "sequences": sequences}
    waiting = {
        f"{k}_share": round(step.parts.get(k, 0) / step.seconds, 3)
        for k in ("tp", "bubble")
    }
    row |= {"tflops_per_gpu": step.tflops_per_gpu, **waiting}
    memory = step.memory.total
    return {**row, "memory_gib": memory / GIB, "fits": memory < llama.chip.memory}


# %% tags=["experiment"]
tps, gpus, pp = lab.size("tp"), 16384, 16
past_the_node = [planned(gpus, tp, pp, 16 * (gpus // (pp * tp))) for tp in tps]

# %% tags=["grade"]
lab.experiment("past_the_node", past_the_node)

# %% [markdown]
# The same rows as two curves (the cell that draws them is folded): speed on the left, memory on the right.

# %% tags=["folded"]
GIBS = [20, 50, 100, 200, 500]
ticks = {"yscale": "log", "yticks": GIBS, "yticklabels": GIBS}
beside = {"textcoords": "offset points", "fontsize": 9, "color": "#666666"}
UNITS = {"tflops_per_gpu": "TFLOP/s a GPU", "memory_gib": "memory a GPU (GiB)"}
with show.canvas(columns=2) as (figure, axes):
    for ax, name in zip(axes, UNITS):
        points = tps, [row[name] for row in past_the_node]
        show.lines(
            {"": points}, x="tensor-parallel ranks", y=UNITS[name], log="x", ax=ax
        )
        ax.axvline(8, color="#888888", linestyle=":")
        ax.set_xticks(tps, tps)
    axes[0].set(title="Llama 3 405B: speed (estimated)", ylim=(0, None))
    axes[1].set(title="Memory (estimated)", **ticks)
    axes[1].axhline(llama.chip.memory / GIB, color="#888888", linestyle="--")
    axes[1].annotate("one H100", (1, llama.chip.memory / GIB), (0, 4), **beside)
    axes[0].annotate("one node", (8, 0), (4, 6), **beside)
    axes[1].minorticks_off()
show.figure(
    figure,
    alt="Speed a GPU falls as tp grows past 8; memory fits an H100 from tp 8.",
)

# %% [markdown]
# **Explain**: below 8 the model does not fit an H100 (dashed), and at tp 4 a step would have 34 million tokens, twice the
# published 17 million.
#
# Speed falls faster and faster, because doubling tp halves the work of a GPU but not the bytes that it sends per layer. At tp 4,
# 8, 16 and 32 a GPU waits for tp in 4, 9, 17 and 31% of the step, and from 8 to 32 a third of the speed is lost. Past 8 the
# messages also leave the node; the planner lets all 8 network cards of a node share that traffic, so from 8 to 16 they take only
# a tenth longer. The published runs below have tp 8, the size of a node.

# %% [markdown]
# ## 7 · 25,000 GPUs on paper
#
# How far can you trust the planner? Here are the three published rows of Llama 3, as they ran, beside its estimates:

# %%
rows_published = []
for row in published:
    plan, step = row.run.plan, estimate(row.run)
    told = step.tflops_per_gpu * step.seconds / row.seconds
    mesh = Mesh(pp=plan.pp, dp=plan.dp, cp=plan.cp, tp=plan.tp)
    found = {"mesh": str(mesh), "published": round(told)}
    rows_published.append({**found, "estimated": round(step.tflops_per_gpu)})
show.table(rows_published, caption="Llama 3 405B, TFLOP/s a GPU")

# %% [markdown]
# The first two are within 2%; the third, the one with context parallelism, is 6% too low. Now
# [Meta's whole cluster](https://engineering.fb.com/2024/03/12/data-center-engineering/building-metas-genai-infrastructure/),
# 24,576 GPUs: all meshes with tp 2 to 32 and pp 4 to 32, and the batch as published, 1 sequence per 8 GPUs. Which is the fastest
# that fits?

# %% tags=["experiment"]
layouts_found = [
    planned(gpus, tp, pp, gpus // 8)
    for gpus in lab.size("gpus")
    for tp in (2, 4, 8, 16, 32)
    for pp in (4, 8, 16, 32)
]
every = [row for row in layouts_found if row["gpus"] == 24576]
every.sort(key=lambda row: -row["tflops_per_gpu"])
show.table(
    [
        {
            "tp": row["tp"],
            "pp": row["pp"],
            "dp": row["dp"],
            "TFLOP/s a GPU": round(row["tflops_per_gpu"]),
            "waits for tp (%)": round(100 * row["tp_share"], 1),
            "pipeline bubble (%)": round(100 * row["bubble_share"], 1),
            "memory a GPU (GiB)": round(row["memory_gib"], 1),
        }
        for row in every[:6]
    ],
    caption="Estimated: 24,576 GPUs, 3,072 sequences, the six fastest; "
    f"an H100 has {llama.chip.memory / GIB:.1f} GiB",
)

# %% tags=["grade"]
lab.experiment("layouts", layouts_found)

# %% [markdown]
# The check above also looks at 16,384 GPUs: there the fastest mesh that fits is the published one, tp 8 and pp 16.
#
# **Two questions** about the table for 24,576 GPUs. What is wrong with its first two meshes: `"memory"`, `"batch"` or
# `"network"`? And on the fastest mesh that can run, how many GPUs hold the same elements of an RMSNorm weight?

# %% tags=["question"]
### BEGIN SOLUTION
why_not = "memory"
able = next(row for row in every if row["fits"])
norm_holders = able["tp"] * able["dp"]
### LAB why_not = None  # your answer: "memory", "batch" or "network"
### LAB norm_holders = None  # your answer, GPUs
### END SOLUTION

# %% tags=["grade"]
lab.answer("why_not", why_not)

# %% tags=["grade"]
lab.answer("norm_holders", norm_holders)

# %% [markdown]
# The second mesh exceeds the memory by 0.2 GiB only, less than the planner's error. But a real run also needs some gigabytes
# free, so it does not fit. In the fastest mesh that fits, tp 8 · dp 192 = 1,536 GPUs hold that weight.
#
# Last, the picture that this lab promised (its cell is folded): your eight ranks in the naive order and in the one that your
# `place` finds, with the bytes that leave a node.

# %% tags=["picture", "folded"]
naive = Mesh(tp=2, pp=2, dp=2)
placed = place({"pp": 2, "dp": 2, "tp": 2}, sent, PER_NODE)
held_in_all = {"layers": layers, "heads": 4, "rows": rows}
with show.canvas(rows=2, width=8, height=9) as (figure, axes):
    for ax, mesh, word in zip(axes, (naive, placed), ("Placed badly", "Placed well")):
        leaves = bytes_between(mesh, sent, PER_NODE) / 1e6
        title = f"{word}: {leaves:.2f} MB a step between nodes\n{mesh}"
        words = {"ranks_per_node": PER_NODE, "axis": "tp", "title": title}
        show.draw_mesh(mesh, rank=1, holding=held_in_all, **words, ax=ax)
show.figure(
    figure,
    alt="Eight ranks on two nodes, placed badly and well: a pair of tp across "
    "nodes, and inside one.",
    caption="Your eight ranks in the naive order and in yours, with one "
    "tensor-parallel pair; bytes by your bytes_between. In the upper one every "
    "layer's activations leave their node.",
)

# %% [markdown]
# > **On GPUs.** With eight, `launch` starts one rank per GPU. This lab has not been run there yet.
#
# **Takeaway**: a mesh is arithmetic on rank numbers, and the order of its axes is free. Here 0.25 MB per step leave their node in
# the best order, 19 times less than in the naive one (counted), and on each of five meshes every weight agrees with one process
# to $10^{-15}$.
#
# A mesh divides the *work*. But the optimizer state is still there many times over, once on every rank along dp. Next,
# [e03 · ZeRO](e03_zero.ipynb) divides that, too.

# %%
lab.score(read="minitrain/parallel/hybrid/model.py")
