"""Gradients on a mesh: parts are added up, and the norm counts every element once.

    sum     a parameter's gradient over the axes where its layout says that it is a part
    norm    sqrt( sum over all ranks and parameters of |gradient|² / copies )

with `copies` the number of ranks that hold the same elements. Cost: one all-reduce for each set of
axes, of the gradients that are parts over just that set, and one number for the norm. A norm that
adds up per rank counts replicated weights once a copy; one that does not leave the rank misses the
other slices: either clips the model's parts by different factors, and they train apart.
Lab: e02f_four_dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from minitrain.optimizers.groups import clip_factor
from minitrain.parallel.ddp import Bucket
from minitrain.parallel.layout import Layout, layout_of
from minitrain.parallel.mesh import Mesh
from minitrain.ranks.group import Group

SUMMED = ("dp", "ep", "cp", "tp")  # what the pipeline shares, over pp, it has summed itself


PLANES = ("dp ep cp", "dp cp", "cp", "dp ep cp tp", "dp cp tp", "cp tp")


class AxisGroups:
    """A rank's groups along the axes of a mesh: `axes["tp"]`, or `axes["dp cp"]` for a plane.

    Axes of size 1 make no difference, so that they cost no group of their own.
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
        """Those of more than one rank, in the mesh's order."""
        return tuple(a for a in self.mesh.axes if a in axes.split() and self.mesh[a] > 1)


class GradientSums:
    """Adds up each parameter's gradient over the axes where it is a part; call it after backward.

    One flat bucket for each set of axes and dtype, so few and large messages.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], axes: AxisGroups) -> None:
        alike: dict[tuple, list[nn.Parameter]] = {}
        for parameter in parameters:
            along = " ".join(axis for axis in SUMMED if axis in layout_of(parameter).partial)
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


def copies(layout: Layout, mesh: Mesh) -> int:
    """The number of ranks that hold the same elements; what pipeline stages share, two hold."""
    replicated = math.prod(mesh[a] for a in mesh.axes if a != "pp" and a not in layout.split)
    return replicated * (2 if "pp" in layout.partial else 1)


def gradient_norm(parameters: Iterable[nn.Parameter], axes: AxisGroups) -> Tensor:
    """The length of the whole model's gradient as one vector, the same on every rank."""
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
    """`clip_by_global_norm` where each rank holds a part: one factor for all, by the one norm."""
    parameters = [p for p in parameters if p.grad is not None]
    norm = gradient_norm(parameters, axes)
    torch._foreach_mul_([p.grad for p in parameters], clip_factor(norm, limit).item())
    return norm
