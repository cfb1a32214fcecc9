"""A model over a mesh of up to five axes, and the step that trains it as one process would.

    pp   the blocks are cut into stages           microbatches pass from stage to stage
    dp   rows of the batch                        gradients are added up
    ep   rows of the batch, and the experts       tokens travel to their experts
    cp   tokens of each row                       keys travel to queries
    tp   every matrix, and the vocabulary         activations are added up

Gradients that are parts are added up, and the norm counts every element once:

    sum     a parameter's gradient over the axes where its layout says that it is a part
    norm    sqrt( sum over all ranks and parameters of |gradient|² / copies )

with `copies` the number of ranks that hold the same elements. Cost: one all-reduce for each set of
axes, of the gradients that are parts over just that set, and one number for the norm. A norm that
adds up per rank counts replicated weights once per copy; one that stays on the rank misses the
other slices: either clips the model's parts by different factors, and they diverge.

The model is changed in the order experts, tensor, context, stages: each step expects the result of
the one before. One oracle checks everything: on every mesh the loss, all gradients, their norm and
the weights after a step are those of one process (with `batch_balance`, whose counts are a rank's
microbatch's, of one that cuts its batch alike). Papers: Narayanan et al., arXiv 2104.04473;
Llama 3, 2407.21783 (section 3.3). Lab: e02f_four_dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from minitrain.data.loader import Batch
from minitrain.errors import InputError
from minitrain.model.experts.moe import mixtures, set_step, update_biases
from minitrain.model.transformer import Transformer
from minitrain.optimizers.groups import clip_factor
from minitrain.parallel.context.model import context_parallel
from minitrain.parallel.context.split import split_sequence
from minitrain.parallel.ddp import Bucket
from minitrain.parallel.expert.exchange import expert_parallel
from minitrain.parallel.layout import Layout, lay_out, layout_of
from minitrain.parallel.mesh import Mesh
from minitrain.parallel.pipeline.executor import Pipeline
from minitrain.parallel.pipeline.plain import Loss, share_of_loss
from minitrain.parallel.pipeline.schedules import make_schedule
from minitrain.parallel.pipeline.stages import cut
from minitrain.parallel.tensor.layers import tensor_parallel
from minitrain.parallel.tensor.vocabulary import vocabulary_parallel_loss
from minitrain.parallel.zero.guards import elementwise_only, twin
from minitrain.ranks.group import Group
from minitrain.training.loop import StepResult, sizes_of

AXES = ("pp", "dp", "ep", "cp", "tp")  # from the least to the most traffic: tp inside a node
SUMMED = ("dp", "ep", "cp", "tp")  # what stages share over pp, the pipeline has already summed
PLANES = ("dp ep cp", "dp cp", "cp", "dp ep cp tp", "dp cp tp", "cp tp")


@dataclass(frozen=True)
class MeshOptions:
    """Options of a mesh. `sequence`: tensor parallelism also splits the tokens."""

    schedule: str = "1f1b"
    microbatches: int = 1
    chunks: int = 1
    sequence: bool = False
    autocast: torch.dtype | None = None  # what the matmuls compute in, if another


def full_mesh(**sizes: int) -> Mesh:
    """A mesh of all five axes, those with the most traffic last; size 1 if not given."""
    unknown = set(sizes) - set(AXES)
    if unknown:
        raise InputError(f"no axis is called {sorted(unknown)[0]!r}: there are {', '.join(AXES)}")
    return Mesh(**{axis: sizes.get(axis, 1) for axis in AXES})


class MeshModel:
    """This rank's part of `model`; pass the same whole model on every rank: it is consumed."""

    def __init__(
        self, model: Transformer, mesh: Mesh, group: Group, options: MeshOptions | None = None
    ) -> None:
        self.options = options or MeshOptions()
        self.config, self.axes = model.config, AxisGroups(mesh, group)
        self.schedule = make_schedule(
            self.options.schedule, mesh["pp"], self.options.microbatches, self.options.chunks
        )
        spread(model, self.axes, self.options.sequence)
        self.stages = cut(model, self.schedule, self.axes.here["pp"])
        for stage in self.stages:
            stage.autocast = self.options.autocast
        self.modules = nn.ModuleList(self.stages)
        self.parameters = list(self.modules.parameters())  # shared ones once
        self.pipeline = Pipeline(self.axes["pp"], self.schedule, self.stages)
        self.sum_gradients = GradientSums(self.parameters, self.axes)
        self.checked: torch.optim.Optimizer | None = None  # its rule moves each number by itself

    def share(self, batch: Batch) -> Batch:
        """This rank's rows and tokens of the whole step's batch (B, T)."""
        mesh, here = self.axes.mesh, self.axes.here
        size, place = mesh["dp"] * mesh["ep"], here["dp"] * mesh["ep"] + here["ep"]
        fields = (batch.tokens, batch.targets, batch.documents, batch.positions)
        rows = Batch(*(field.chunk(size)[place] for field in fields))
        return split_sequence(rows, here["cp"], mesh["cp"])

    def backward(self, microbatches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Whole gradients in every `.grad` -> the step's loss, and its number of targets.

        `microbatches` are this rank's: `share` of each whole one.
        """
        tokens, places = self._count(microbatches)
        set_step(self.modules, places)
        loss = self.pipeline.run(microbatches, self._loss(tokens))
        self.sum_gradients()
        return self._total(loss), tokens

    def update(self, optimizer: torch.optim.Optimizer, clip: float = 1.0) -> Tensor:
        """Clips by the whole model's norm, steps, clears gradients -> the norm before clipping."""
        if optimizer is not self.checked and self.axes.mesh["tp"] * self.axes.mesh["ep"] > 1:
            elementwise_only(partial(twin, getattr(optimizer, "inner", optimizer)))
        self.checked = optimizer
        norm = clip_on_mesh(self.parameters, clip, self.axes)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seeing = "dp ep cp tp" if self.options.sequence else "dp ep cp"  # other tokens
        update_biases(self.modules, self.axes[seeing].all_reduce)
        return norm

    def step(
        self, optimizer: torch.optim.Optimizer, microbatches: Sequence[Batch], clip: float = 1.0
    ) -> StepResult:
        """`training.loop.train_step`, on a mesh."""
        loss, tokens = self.backward(microbatches)
        norm = self.update(optimizer, clip)
        return StepResult(loss.item(), norm.item(), int(tokens))

    def evaluate(self, batches: Sequence[Batch]) -> Tensor:
        """The loss over the `batches` of all ranks, any number on each."""
        tokens, _ = self._count(batches)
        return self._total(self.pipeline.evaluate(batches, self._loss(tokens)))

    def _count(self, batches: Sequence[Batch]) -> Tensor:
        """(2,): counted targets, and all positions, over all ranks."""
        counts = torch.stack([sizes_of(batch) for batch in batches]).sum(dim=0)
        return self.axes["dp ep cp"].all_reduce(counts)

    def _total(self, share: Tensor) -> Tensor:
        """The sum of the ranks' shares of a loss."""
        loss = self.axes["pp"].all_reduce(share.detach().double())  # one dtype on every stage
        return self.axes["dp ep cp"].all_reduce(loss)

    def _loss(self, tokens: Tensor) -> Loss:
        group = self.axes["tp"]
        if group.size == 1:
            return share_of_loss(tokens)
        size = self.config.vocab_size
        return lambda logits, batch: vocabulary_parallel_loss(
            logits, batch.targets, tokens, group, size
        )


def spread(model: Transformer, axes: AxisGroups, sequence: bool) -> None:
    """Leaves this rank's part of every layer, and records each parameter's layout on the mesh."""
    mesh = axes.mesh
    if mesh["ep"] > 1:
        expert_parallel(model, axes["ep"])
    if mesh["tp"] > 1:
        tensor_parallel(model, axes["tp"], sequence)
    if mesh["cp"] > 1:
        context_parallel(model, axes["cp"])
    for parameter in model.parameters():
        lay_out(parameter, partial="dp cp")
    for layer in mixtures(model):
        along = "cp tp" if sequence else "cp"
        layer.router.sum_sequence = axes[along].all_reduce


# ---- gradients on a mesh ----


class AxisGroups:
    """A rank's groups along the axes of a mesh: `axes["tp"]`, or `axes["dp cp"]` for a plane.

    Axes of size 1 change nothing, so they get no group of their own.
    """

    def __init__(self, mesh: Mesh, group: Group) -> None:
        mesh.check(group.size)
        self.mesh, self.world = mesh, group
        self.here = mesh.coordinates(group.rank)
        self._groups: dict[tuple[str, ...], Group] = {}
        for axes in map(self._long, (*mesh.axes, *PLANES)):  # in the same order on every rank
            if axes not in self._groups:
                self._groups[axes] = mesh.group(group, axes)

    def __getitem__(self, axes: str) -> Group:
        return self._groups[self._long(axes)]

    def _long(self, axes: str) -> tuple[str, ...]:
        """The axes with more than one rank, in the mesh's order."""
        return tuple(a for a in self.mesh.axes if a in axes.split() and self.mesh[a] > 1)


class GradientSums:
    """Sums each parameter's gradient over the axes where it is a part; call it after backward.

    One flat bucket for each set of axes and dtype: few and large messages.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], axes: AxisGroups) -> None:
        alike: dict[tuple, list[nn.Parameter]] = {}
        for parameter in parameters:
            along = sharing_axes(parameter)
            if parameter.requires_grad and along:
                alike.setdefault((along, str(parameter.dtype)), []).append(parameter)
        self.sums = [(axes[along], Bucket(alike[along, dtype])) for along, dtype in sorted(alike)]

    def __call__(self) -> None:
        works = []
        for group, bucket in self.sums:
            for parameter in bucket.parameters:
                bucket.take(parameter, 1)  # a part is not divided: the loss has the global count
            works.append(group.all_reduce(bucket.buffer, async_op=True))
        for work in works:
            work.wait()


def sharing_axes(parameter: nn.Parameter) -> str:
    """The axes along which ranks hold this parameter alike, each with a part of its gradient."""
    return " ".join(axis for axis in SUMMED if axis in layout_of(parameter).partial)


def copies(layout: Layout, mesh: Mesh) -> int:
    """The number of ranks that hold the same elements; two for what pipeline stages share."""
    replicated = math.prod(mesh[a] for a in mesh.axes if a != "pp" and a not in layout.split)
    return replicated * (2 if "pp" in layout.partial else 1)


def gradient_norm(parameters: Iterable[nn.Parameter], axes: AxisGroups) -> Tensor:
    """The norm of the whole model's gradient as one vector, the same on every rank."""
    square = torch.zeros((), dtype=torch.float64, device=axes.world.device)
    for parameter in parameters:
        if parameter.grad is not None:
            layout = layout_of(parameter)
            part = layout.slice
            own = parameter.grad if part is None else part.counted(parameter.grad)
            exact = torch.promote_types(own.dtype, torch.float32)  # float16's squares overflow
            length = torch.linalg.vector_norm(own, dtype=exact).double()
            square += length**2 / copies(layout, axes.mesh)
    return axes.world.all_reduce(square).sqrt()


def clip_on_mesh(parameters: Iterable[nn.Parameter], limit: float, axes: AxisGroups) -> Tensor:
    """`clip_by_global_norm` where each rank holds a part: one global norm, one factor for all."""
    parameters = [p for p in parameters if p.grad is not None]
    norm = gradient_norm(parameters, axes)
    torch._foreach_mul_([p.grad for p in parameters], clip_factor(norm, limit).item())
    return norm
