"""The probes of lab e02f: what runs in the sandbox, beside a submission on meshes.

Nothing here knows what is expected: the verdicts, in test_e02f_four_dimensions.py, are made from
what comes back.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from minitrain.parallel.layout import Layout, lay_out

from .in_turn import in_turn


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

    def group(self, group, axes):
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks):
        assert self.number == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={n}' for a, n in zip(self.axes, self.shape))})"


class Lines:
    """What `lines` of the lab is: the mesh, this rank's place, and groups along the axes."""

    def __init__(self, mesh, world):
        self.mesh, self.world, self.here = mesh, world, mesh.coordinates(world.rank)
        self.groups = {a: mesh.group(world, a) for a in mesh.axes}

    def __getitem__(self, axis):
        return self.groups[axis]


def on_meshes(f, shapes, method, calls):
    """A method of several meshes, all alive; calls: (which of them, its arguments), in turn."""
    meshes = [f(**sizes) for sizes in shapes]
    return in_turn(lambda which, *given: getattr(meshes[which], method)(*given), calls)


def copies_of(f, cases):
    return [f(Layout(frozenset(s), frozenset(p)), Grid(**sizes)) for s, p, sizes in cases]


PARTS = (  # name, shape, split, partial, on which stages: all of them (None) or these
    ("norm.weight", (12,), "", "dp ep", None),
    ("matrix", (12, 3), "tp", "dp", None),
    ("expert", (12, 3, 2), "ep tp", "dp", None),
    ("bias", (12,), "", "dp", None),
    ("table", (12, 3), "tp", "dp pp", "ends"),
    ("gain", (), "", "dp", (0,)),
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
    return whole.clone() if parts == 1 else whole.chunk(parts)[place].clone()


def model_on(mesh, here, dtypes):
    """This rank's parameters, by name; "frozen" never has a gradient."""
    stage, found = here["pp"], {}
    for name, shape, split, partial, where in PARTS:
        if stage in stages_of(where, mesh):
            whole = torch.ones(shape, dtype=dtypes.get(name, torch.float64))
            p = found[name] = nn.Parameter(share_of(whole, split, mesh, here))
            one_stage = len(stages_of(where, mesh)) == 1 or where is None
            lay_out(p, split=f"{split} pp" if one_stage else split)
            lay_out(p, partial=partial.replace("pp", "") if one_stage else partial)
        if name == "norm.weight":  # in the middle
            found["frozen"] = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    return found


def gradients_on(mesh, here, wholes):
    """{name: this rank's part of its gradient}; wholes: by name and stage, where there is one."""
    parts = {name: split for name, _, split, *_ in PARTS}
    mine = {name: whole for (name, stage), whole in wholes.items() if stage == here["pp"]}
    return {name: share_of(whole, parts[name], mesh, here) for name, whole in mine.items()}


def all_axes(sizes):
    return Grid(**({"pp": 1, "dp": 1, "ep": 1, "cp": 1, "tp": 1} | sizes))


def ran(group, f, sizes, dtypes, steps):
    """Steps of one model, in turn: (whole gradients, a limit where it clips, once to be walked?)"""
    mesh = all_axes(sizes)
    lines = Lines(mesh, group)
    parameters = model_on(mesh, lines.here, dtypes)
    return [stepped(group, f, lines, parameters, *step) for step in steps]


def stepped(group, f, lines, parameters, wholes, limit, once):
    """What it returned, the gradients and weights."""
    mine = gradients_on(lines.mesh, lines.here, wholes)
    for name, p in parameters.items():
        p.grad = mine.get(name)
    given, arguments = list(parameters.values()), [lines] if limit is None else [limit, lines]
    group.trace.mark("step")
    value = f(iter(given) if once else given, *arguments)
    group.trace.mark(("over", "step"))
    is_tensor, named = isinstance(value, torch.Tensor), parameters.items()
    return {
        "kind": f"{value.dtype} {tuple(value.shape)}" if is_tensor else type(value).__name__,
        "value": value.detach().clone() if is_tensor else None,
        "gradients": {name: p.grad.clone() for name, p in named if p.grad is not None},
        "in_place": all(parameters[name].grad is given for name, given in mine.items()),
        "weights": all(bool((p == (name != "frozen")).all()) for name, p in named),
    }


def counted(f, cases):
    return in_turn(lambda sizes, sent, per_node: f(Grid(**sizes), sent, per_node), cases)


def chosen(f, cases):
    return in_turn(lambda *case: described(f(*case)), cases)


def described(mesh):
    """Axes and sizes of a mesh, or the name of what is none."""
    is_mesh = hasattr(mesh, "axes") and hasattr(mesh, "shape")
    return [list(mesh.axes), list(mesh.shape)] if is_mesh else type(mesh).__name__
