"""The probes of lab e02f: what runs in the sandbox, beside a submission on meshes.

Nothing here knows what is expected: the verdicts, in test_e02f_four_dimensions.py, are made from
what comes back.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from minitrain.parallel.layout import Layout, lay_out


class Grid:
    """A mesh of the grader's own."""

    def __init__(self, **sizes):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis):
        return self.shape[self.axes.index(axis)]

    @property
    def number(self):
        return math.prod(self.shape)

    def coordinates(self, rank):
        places = {}
        for axis in reversed(self.axes):
            rank, places[axis] = divmod(rank, self[axis])
        return {axis: places[axis] for axis in self.axes}

    def ranks(self, axes, rank):
        axes = [axes] if isinstance(axes, str) else axes
        here = self.coordinates(rank)
        where = [self.coordinates(other) for other in range(self.number)]
        return [
            other
            for other in range(self.number)
            if all(where[other][a] == here[a] for a in self.axes if a not in axes)
        ]

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={n}' for a, n in zip(self.axes, self.shape))})"


class Lines:
    """What `lines` of the lab is: the mesh, this rank's place, and groups along the axes."""

    def __init__(self, mesh, world):
        self.mesh, self.world, self.here = mesh, world, mesh.coordinates(world.rank)
        self.groups = {a: world.split(mesh.ranks(a, world.rank)[0]) for a in mesh.axes}

    def __getitem__(self, axis):
        return self.groups[axis]


def places_of(f, shapes):
    """Each rank's coordinates, as pairs in their order."""
    return [
        [list(f(**sizes).coordinates(rank).items()) for rank in range(math.prod(sizes.values()))]
        for sizes in shapes
    ]


def lines_of(f, calls):
    return [list(f(**sizes).ranks(axes, rank)) for sizes, axes, rank in calls]


def copies_of(f, cases):
    return [f(Layout(frozenset(s), frozenset(p)), Grid(**sizes)) for s, p, sizes in cases]


PARTS = (  # name, split, partial, on which stages: all of them (None) or these
    ("norm", "", "dp ep", None),
    ("matrix", "tp", "dp", None),
    ("expert", "ep tp", "dp", None),
    ("bias", "", "dp", None),
    ("table", "tp", "dp pp", "ends"),
    ("first", "", "dp", (0,)),
)


def stages_of(where, mesh):
    count = mesh["pp"]
    if where == "ends":
        return sorted({0, count - 1})
    return list(range(count)) if where is None else list(where)


def share_of(whole, split, mesh, here):
    """This rank's slice: along dim 0, by its place on the plane of the axes that split it."""
    place, parts = 0, 1
    for axis in split.split():
        if axis != "pp":
            place, parts = place * mesh[axis] + here[axis], parts * mesh[axis]
    return whole.chunk(parts)[place].clone()


def model_on(mesh, here, gradients):
    """This rank's parameters with their gradients, and one that has none."""
    stage, found = here["pp"], []
    for name, split, partial, where in PARTS:
        if stage in stages_of(where, mesh):
            part = share_of(gradients[name, stage], split, mesh, here)
            p = nn.Parameter(torch.ones_like(part))
            p.grad = part
            one_stage = len(stages_of(where, mesh)) == 1 or where is None
            lay_out(p, split=f"{split} pp" if one_stage else split)
            lay_out(p, partial=partial.replace("pp", "") if one_stage else partial)
            found.append(p)
    return [*found, nn.Parameter(torch.zeros(3, dtype=torch.float64))]


def all_axes(sizes):
    return Grid(**({"pp": 1, "dp": 1, "ep": 1, "cp": 1, "tp": 1} | sizes))


def ran(group, f, sizes, gradients, limit):
    """The norm, or with a limit the clipping; what it returned, the gradients, what it sent."""
    mesh = all_axes(sizes)
    lines = Lines(mesh, group)
    parameters = model_on(mesh, lines.here, gradients)
    group.trace.ops.clear()
    given, old = iter(parameters), [p.grad for p in parameters]
    value = f(given, lines) if limit is None else f(given, limit, lines)
    ops = [(op.kind, op.payload_bytes) for op in group.trace.ops]
    return {
        "kind": str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__,
        "value": value.detach().double().clone() if isinstance(value, torch.Tensor) else None,
        "gradients": [p.grad for p in parameters[:-1]],
        "in_place": all(p.grad is g for p, g in zip(parameters, old)),
        "weights": all(torch.equal(p, torch.ones_like(p)) for p in parameters[:-1]),
        "ops": ops,
    }


def counted(f, cases):
    return [f(Grid(**sizes), sent, per_node) for sizes, sent, per_node in cases]


def chosen(f, cases):
    found = []
    for case in cases:
        mesh = f(*case)
        is_mesh = hasattr(mesh, "axes") and hasattr(mesh, "shape")
        found.append([list(mesh.axes), list(mesh.shape)] if is_mesh else type(mesh).__name__)
    return found
