"""The checks of lab e02f: places on a mesh, a norm that counts once, bytes that leave a node."""

from __future__ import annotations

import random
from itertools import permutations

import torch

from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import cause, variant
from minitrain.parallel.hybrid.model import copies
from minitrain.parallel.layout import Layout
from minitrain.parallel.mesh import Mesh

from .probes import e02f_four_dimensions as probes

LAB = "e02f_four_dimensions"
SIZES = {
    "cpu": {
        "width": 16,
        "layers": 4,
        "rows": 8,
        "length": 16,
        "meshes": [  # pp, dp, ep, cp, tp
            (2, 2, 1, 1, 2),
            (2, 1, 2, 1, 2),
            (1, 2, 2, 1, 2),
            (2, 2, 2, 1, 1),
            (2, 1, 1, 2, 2),
        ],
        "traffic_batch": (8, 64),
        "tp": [1, 2, 4, 8, 16, 32],
        "gpus": [16384, 24576],
    },
    "test": {"meshes": [(1, 2, 2, 1, 2), (2, 1, 1, 2, 2)], "length": 8, "traffic_batch": (8, 16)},
}


def tp_share(layers, activations, gradients):
    """Of the elements that a rank sends, with two ranks on each axis and two microbatches."""
    tp, pp = 4 * layers * 2 * activations, 2 * activations
    return tp / (tp + pp + gradients)


REVEALS = {
    "norm_copies": Reveal(
        "measured",
        "dp · tp: neither cuts an RMSNorm, and pp gives it to one stage",
        formula=lambda dp, tp: dp * tp,
    ),
    "tp_share": Reveal(
        "measured",
        "16 A of 16 A + 2 A + 3,900: four sums in each of 2 layers for each of 2 microbatches",
        formula=tp_share,
    ),
}
FILES = tuple(f"minitrain/parallel/{name}.py" for name in ("mesh", "hybrid/model", "hybrid/state"))


# ---- the mesh ----

SHAPES = (
    {"dp": 2, "tp": 4},
    {"pp": 2, "dp": 3, "tp": 2},
    {"tp": 3},
    {"pp": 2, "dp": 1, "ep": 2, "cp": 1, "tp": 2},
    {"pp": 2, "ep": 4},  # the first one's sizes under other names
    {"dp": 4, "tp": 2},  # and its names with other sizes
    {"dp": 2, "edp": 3, "tp": 2},  # one name inside another
)


def shapes():
    """Those, and some that are drawn: of two to five axes, some of size 1."""
    drawn = []
    for number in (2, 3, 4, 5):
        names = random.sample(["pp", "dp", "ep", "cp", "tp"], number)
        drawn.append({name: random.choice((1, 2, 2, 3)) for name in names} | {names[0]: 2})
    return [*SHAPES, *drawn]


FIRST = "zip(reversed(self.axes), reversed(self.shape))", "zip(self.axes, self.shape)"
MESHES_BY = [
    (FIRST, "as if the first axis varied fastest, and the last one does"),
    (("here = self.coordinates(rank)", "here = self.coordinates(0)"), "those are along them from rank 0"),
    (("if a not in along", "if a in along"), "those share the coordinates along these axes, and differ in the others"),
    (("if all(", "if other != rank and all("), "the rank itself is a member of its line"),
]  # fmt: skip


class TestMesh(Exercise):
    """Ranks to coordinates and lines"""

    name = "Mesh"
    reference = "minitrain.parallel.mesh:Mesh"
    hidden = FILES

    @check(points=6, title="coordinates of every rank: the last axis varies fastest")
    def test_coordinates(self, submission):
        sizes = shapes()
        calls = [(n, r) for n, each in enumerate(sizes) for r in range(Mesh(**each).size)]
        for (mesh, rank), got in self.judged(submission, "coordinates", sizes, calls):
            expect.that(
                list(got) == list(mesh.axes),
                f"{mesh}, coordinates of rank {rank} come in the order {list(got)}; in the mesh's order they are "
                f"{list(mesh.axes)}",
            )

    @check(points=5, title="a line: who differs along one axis only, itself among them")
    def test_lines(self, submission):
        sizes = shapes()
        self.along(submission, sizes, [(n, axis) for n, each in enumerate(sizes) for axis in each])

    @check(points=3, title="a plane, along several axes named in any order, or none")
    def test_planes(self, submission):
        sizes, named = shapes(), [(0, ("dp", "tp")), (1, ("tp", "pp")), (3, ["tp", "dp", "ep"])]
        for n, each in enumerate(sizes):
            names = [random.sample(list(each), number) for number in range(len(each) + 1)]
            named += [(n, random.choice((list, tuple))(some)) for some in names]
        self.along(submission, sizes, named)

    def along(self, submission, sizes, named):
        numbers = [Mesh(**each).size for each in sizes]
        some = [random.sample(range(number), min(number, 12)) for number in numbers]
        calls = [(n, axes, rank) for n, axes in named for rank in some[n]]
        listed = "`axes` may be a list, which no set and no dict holds as a key: tuple(axes) can be"
        with expect.because({"unhashable type: 'list'": listed}):
            self.judged(submission, "ranks", sizes, calls)

    def judged(self, submission, method, sizes, calls):
        """((mesh, arguments …), what it gave) of each call, which come in any order."""
        calls = random.sample(calls, len(calls))
        found = submission.run(probes.on_meshes, sizes, method, calls)
        names = ["mesh", "axes", "rank"] if method == "ranks" else ["mesh", "rank"]
        expect.left_alone(found, calls, names, what=f"`{method}`")
        given = lambda f: [getattr(f(**sizes[n]), method)(*rest) for n, *rest in calls]  # noqa: E731
        got = [call["out"] for call in found]
        words = cause(got, self.reference, MESHES_BY, given)
        asked = []
        for (n, *rest), mine, want in zip(calls, got, given(variant(self.reference))):
            mesh = Mesh(**sizes[n])
            what = f"{mesh}, coordinates of rank {rest[-1]}"
            if method == "ranks":
                what = f"{mesh}, along {rest[0]!r} from rank {rest[1]}, in order of rank"
            expect.equal(mine, want, what=what, hints=[(mine, words)] if words else [])
            asked.append(((mesh, *rest), mine))
        return asked


# ---- copies ----

LAYOUTS = (  # split, partial
    ("pp tp", "dp cp"),
    ("pp ep tp", "dp"),
    ("pp", "dp ep cp"),
    ("pp", ""),
    ("tp", "dp pp"),
    ("", "dp pp"),
)


def large_meshes():
    """Where axes but pp have different odd primes: any product says which of them are in it."""
    a, b, c, d = random.sample((3, 5, 7, 11), 4)
    return (
        {"pp": 4, "dp": a, "ep": b, "cp": c, "tp": d},
        {"pp": 2, "dp": b, "ep": 1, "cp": 1, "tp": a},
        {"dp": a, "tp": c},
        {"tp": b, "dp": d, "pp": 1},
        {"pp": 8, "cp": d},
    )


OTHERS = 'if a != "pp" and a not in layout.split'
COPIES = [
    ((OTHERS, "if a not in layout.split"), "stages hold different parameters: pp makes no copies"),
    ((OTHERS, 'if a != "pp" and a in layout.split'), "axes of `split` hold different elements: leave them out"),
    ((OTHERS, 'if a != "pp" and a in layout.partial'), "copies are along every axis that neither splits it nor is the pipeline"),
    ((OTHERS, OTHERS + " | layout.partial"), "`partial` axes make copies too: the gradient was a part there until it was summed"),
    (('(2 if "pp" in layout.partial else 1)', "1"), "the first and the last stage both hold a tied table: two of them"),
]  # fmt: skip


class TestCopies(Exercise):
    """How often a parameter is held"""

    name = "copies"
    reference = "minitrain.parallel.hybrid.model:copies"
    hidden = FILES

    def judge(self, submission, tied):
        cases = [
            (split.split(), partial.split(), sizes)
            for sizes in large_meshes()
            for split, partial in LAYOUTS
            if ("pp" in partial.split()) == tied and (not tied or sizes.get("pp", 1) > 1)
        ]
        given = lambda f: [f(Layout(frozenset(s), frozenset(p)), Mesh(**m)) for s, p, m in cases]  # noqa: E731
        lacks = "a mesh may lack axes: `mesh[axis]` only where `axis in mesh.axes`, all others count once"
        with expect.because({"tuple.index(x)": lacks}):
            found = submission.run(probes.copies_of, cases)
        words = cause(found, self.reference, COPIES, given)
        for (split, partial, sizes), got, want in zip(cases, found, given(variant(self.reference))):
            what = f"{Mesh(**sizes)}: split along {split or 'nothing'}, partial along {partial}"
            expect.equal(got, want, what=what, hints=[(got, words)] if words else [])

    @check(points=5, title="along every axis that neither splits it nor is the pipeline")
    def test_copies(self, submission):
        self.judge(submission, tied=False)

    @check(points=3, title="a tied table: two stages hold it")
    def test_tied(self, submission):
        self.judge(submission, tied=True)


# ---- the norm, and clipping ----

MESHES = (
    {"pp": 2, "dp": 2, "tp": 2},
    {"pp": 1, "ep": 2, "tp": 3},
    {"dp": 4},
    {"dp": 2, "tp": 2},
)
NARROW = {
    **dict.fromkeys(("norm.weight", "bias", "gain"), torch.float32),
    **dict.fromkeys(("matrix", "table"), torch.float16),
    "expert": torch.bfloat16,
}


def wholes(sizes, without=lambda name, stage: False, scale=1.0, dtypes=None):
    """{(name, stage): the whole gradient}; a table has one for both stages that hold it."""
    mesh, found = probes.all_axes(sizes), {}
    for i, (name, shape, _, _, where) in enumerate(probes.PARTS):
        for stage in probes.stages_of(where, mesh):
            made = scale * torch.randn(shape, dtype=torch.float64) * (1 + i)
            made = made.to((dtypes or {}).get(name, torch.float64))
            if not without(name, stage):
                found[name, stage] = found[name, 0] if where == "ends" and stage else made
    return found


def length_of(sizes, gradients, every_copy=False):
    """The norm of the whole gradient; every_copy: as if no copy were divided."""
    mesh, total = probes.all_axes(sizes), 0.0
    for name, _, split, _, where in probes.PARTS:
        held = copies(Layout(frozenset(split.split())), mesh) if every_copy else 1
        for stage in probes.stages_of(where, mesh):
            if (name, stage) in gradients and (every_copy or where != "ends" or stage == 0):
                total += held * gradients[name, stage].double().square().sum().item()
    return total**0.5


def launched(submission, sizes, steps, dtypes=None):
    """(the mesh, each step's (gradients, limit, walked once?) and the ranks' results)."""
    mesh = probes.all_axes(sizes)
    joined = "each rank joins one all-reduce of one number, whatever gradients it has; one without adds 0"
    with expect.because({("deadlock", "mismatch"): joined}):
        results = submission.launch(
            probes.ran, sizes, dtypes or {}, steps, ranks=mesh.number, timeout=10
        )
    for rank, (own, notes) in enumerate(zip(results, submission.notes)):
        for result, run in zip(own, relayed.runs(notes, "step", len(steps))):
            little(mesh, rank, relayed.operations(run))
            kind = result["kind"]
            expect.that(
                kind == "torch.float64 ()",
                f"rank {rank} returned a {kind}: the norm is a scalar tensor of float64",
            )
            expect.that(result["weights"], f"rank {rank}: the weights changed, not only `.grad`")
    return mesh, list(zip(steps, zip(*results)))


def little(mesh, rank, ops):
    """One small message, or one along each axis."""
    sent = sum(op.payload_bytes for op in ops)
    expect.that(
        0 < len(ops) <= len(mesh.axes) and sent <= 8 * len(ops),
        f"rank {rank} sent {len(ops)} messages of {sent} bytes: add up this rank's squares, then all-reduce one number "
        "over `lines.world`; gradients need not travel",
    )


def norms_are(sizes, found):
    """Of all steps, on all ranks."""
    mesh = probes.all_axes(sizes)
    for call, ((gradients, *_), results) in enumerate(found, 1):
        norm, every = length_of(sizes, gradients), length_of(sizes, gradients, every_copy=True)
        hints = [
            (every, "that counts a weight that c ranks hold c times: divide its square by copies(layout_of(p), lines.mesh)"),
            (norm**2, "that is the square: the root is missing"),
            (norm + 1e-6, "that is with 1e-6 more, which belongs to clipping"),
        ]  # fmt: skip
        for rank, result in enumerate(results):
            got = result["value"].item()
            own = sum(g.double().square().sum() for g in result["gradients"].values())
            mine = [(float(own) ** 0.5, "that is this rank's own part: all-reduce the squares")]
            what = f"{mesh}, call {call}, the norm on rank {rank}"
            expect.equal(got, norm, what=what, hints=[*hints, *mine])


def pairs(mesh, rank, gradients, result):
    """(name, gradient before, and after) of what has one on this rank; None stays None."""
    before = probes.gradients_on(mesh, mesh.coordinates(rank), gradients)
    after = result["gradients"]
    other = ", ".join(sorted(set(before) ^ set(after)))
    expect.that(not other, f"rank {rank}: {other}: a `.grad` that was None has one, or is lost")
    return [(name, whole, after[name]) for name, whole in before.items()]


class TestNorm(Exercise):
    """The norm of the whole gradient"""

    name = "gradient_norm"
    reference = "minitrain.parallel.hybrid.model:gradient_norm"
    hidden = FILES

    @check(points=4, title="copies and slices: equals one process, step after step (dp = tp = 2)")
    def test_data(self, submission):
        sizes, first = MESHES[3], wholes(MESHES[3])
        some = wholes(sizes, lambda name, stage: name in ("matrix", "gain"))
        steps = [(gradients, None, False) for gradients in (first, some, first)]
        norms_are(sizes, launched(submission, sizes, steps)[1])

    @check(
        points=4,
        title="stages, slices, experts, a tied table: every element once, by one number a rank (4 to 8 ranks)",
    )
    def test_once(self, submission):
        some = wholes(MESHES[0], lambda name, stage: stage == 1 or name == "table")
        narrow = wholes(MESHES[3], scale=300.0, dtypes=NARROW)  # squares overflow float16
        for sizes, every, dtypes in (
            (MESHES[0], [wholes(MESHES[0]), some], {}),
            (MESHES[1], [wholes(MESHES[1])], {}),
            (MESHES[3], [narrow], NARROW),
        ):
            steps = [(gradients, None, False) for gradients in every]
            norms_are(sizes, launched(submission, sizes, steps, dtypes)[1])

    @check(points=4, title="a number travels, no gradients; and they stay as they were")
    def test_sent(self, submission):
        some = wholes(MESHES[1], lambda name, stage: name == "matrix")
        mesh, found = launched(submission, MESHES[1], [(some, None, False)])
        norms_are(MESHES[1], found)
        for (gradients, *_), results in found:
            for rank, result in enumerate(results):
                for name, whole, got in pairs(mesh, rank, gradients, result):
                    what = f"the gradient of `{name}` on rank {rank}, which computing the norm leaves as it is,"
                    in_place = "a method that ends in _ writes into its tensor (and .double() of float64 is no copy)"
                    expect.identical(got, whole, what=what, hints=[(whole.square(), in_place)])


class TestClip(Exercise):
    """Clipping by one factor"""

    name = "clip_on_mesh"
    reference = "minitrain.parallel.hybrid.model:clip_on_mesh"
    hidden = FILES

    @check(
        points=6,
        title="every `.grad` times one factor, in place: the whole is as long as the limit",
    )
    def test_clips(self, submission):
        some = wholes(MESHES[0], lambda name, stage: name == "matrix")
        whole = wholes(MESHES[0])  # its norm a hair below the limit: the factor is below 1
        steps = [
            (wholes(MESHES[0]), random.randrange(5, 15) / 16, False),
            (wholes(MESHES[0]), random.randrange(32, 80) / 16, True),
            (some, random.randrange(5, 15) / 16, True),
            (whole, length_of(MESHES[0], whole) + 4e-7, False),
            (wholes(MESHES[0]), 0.0, False),  # a limit as good as any
        ]
        self.judge(submission, MESHES[0], steps, {})
        narrow = wholes(MESHES[3], scale=300.0, dtypes=NARROW)
        self.judge(submission, MESHES[3], [(narrow, 200.0, False)], NARROW)

    @check(
        points=2, title="what is shorter than the limit stays as it is, and its norm is returned"
    )
    def test_short(self, submission):
        sizes = MESHES[2]
        nothing = {key: torch.zeros_like(whole) for key, whole in wholes(sizes).items()}
        whole = wholes(sizes)  # half as long again would be the limit
        steps = [(wholes(sizes), 1e4, True), (nothing, 1.0, False)]
        self.judge(submission, sizes, [*steps, (whole, 1.5 * length_of(sizes, whole), False)], {})

    def judge(self, submission, sizes, steps, dtypes):
        mesh, found = launched(submission, sizes, steps, dtypes)
        for (gradients, limit, once), results in found:
            norm = length_of(sizes, gradients)
            for rank, result in enumerate(results):
                for name, whole, got in pairs(mesh, rank, gradients, result):
                    what = (
                        f"{mesh}, the gradient of `{name}` on rank {rank} after clipping to {limit:.4g}, the whole one being "
                        f"{norm:.4g} long"
                    )
                    self.is_clipped(what, got, whole, limit, norm, once)
                expect.that(
                    result["in_place"],
                    f"rank {rank}: a `.grad` is another tensor than before: multiply in place, others hold the old one",
                )
                is_narrow = any(g.dtype != torch.float64 for g in result["gradients"].values())
                what = f"rank {rank}: what it returned, the norm before clipping to {limit:.4g}"
                tol = 1e-6 if is_narrow else 1e-9
                expect.equal(result["value"].item(), norm, tol=tol, what=what)

    def is_clipped(self, what, got, whole, limit, norm, once):
        wide, factor = whole.double(), limit / (norm + 1e-6)
        if factor >= 1:
            stays = "the factor is above 1: clipping only shortens"
            expect.identical(got, whole, what=what, hints=[(got, stays)])
            return
        words = "it was not clipped: the factor is limit / (norm + 1e-6), whatever the limit, for every `.grad` there is"
        words += ". `parameters` can be walked once here" if once else ""
        hints = [
            (wide, words),
            (wide.clamp(-limit, limit), "that clips each number: one factor for the whole keeps the direction"),
            (wide * limit / wide.norm(), "that clips each parameter by its own norm"),
            (wide * limit / norm, "nearly: limit / (norm + 1e-6), as PyTorch has it"),
            (wide / factor, "turn the factor round: limit / norm"),
        ]  # fmt: skip
        hints = [(value.to(whole.dtype), words) for value, words in hints]
        expect.equal(got, (wide * factor).to(whole.dtype), what=what, hints=hints)


# ---- placement ----

EDGES = (  # the mesh, the axes that send, ranks a node
    ({"dp": 3, "tp": 4}, "dp tp", 6),
    ({"dp": 2, "tp": 4}, "dp tp", 4),
    ({"tp": 4, "dp": 2}, "dp tp", 4),
    ({"pp": 2, "dp": 1, "tp": 6}, "pp dp tp", 4),
    ({"dp": 2, "tp": 4}, "tp dp", 1),
    ({"dp": 8}, "dp", 8),
    ({"tp": 2, "pp": 2, "ep": 1, "dp": 2}, "dp pp", 2),  # nothing along tp
    ({"dp": 3, "cp": 2, "tp": 2}, "tp cp dp", 5),  # the last node is not full
    ({"ep": 2, "pp": 3}, "ep pp", 16),
)
CHOICES = (  # sizes, bytes, ranks a node
    ({"dp": 2, "tp": 4}, {"dp": 50, "tp": 3}, 2),
    ({"dp": 2, "tp": 2, "pp": 2}, {"tp": 900, "pp": 30, "dp": 60}, 4),
    ({"a": 8, "b": 2}, {"a": 10, "b": 9}, 4),
    ({"tp": 3, "dp": 4}, {"tp": 7, "dp": 6}, 4),
    ({"tp": 2, "dp": 2, "pp": 4}, {"tp": 15, "dp": 2, "pp": 25}, 4),
)
NODES = "after // ranks_per_node != rank // ranks_per_node"
TRAFFIC = [
    ((NODES, "after != rank and after // ranks_per_node == rank // ranks_per_node"),
     "those stay inside: count where the nodes of sender and receiver differ"),
    (("line[(line.index(rank) + 1) % len(line)]", "line[min(line.index(rank) + 1, len(line) - 1)]"),
     "the last of a line sends to the first: close the ring"),
    (("return total", "return total / mesh.size"), "that is the mean of a rank: add up over all ranks"),
    (("range(mesh.size)", "mesh.ranks(axis, 0)"), "those are rank 0's lines only: let each rank send"),
    (("total += nbytes", "total += nbytes / (1 + (len(line) == 2))"),
     "on an axis of size 2 the two ranks send to each other, and that is two messages"),
]  # fmt: skip


class TestBytes(Exercise):
    """What leaves a node"""

    name = "bytes_between"
    reference = "minitrain.parallel.mesh:bytes_between"
    hidden = FILES

    @check(points=5, title="every edge of every ring, on two nodes")
    def test_two(self, submission):
        self.judge(submission, EDGES[:3])

    @check(points=3, title="axes of size 1, axes that send nothing, nodes of one rank, one node")
    def test_more(self, submission):
        self.judge(submission, EDGES[3:])

    def judge(self, submission, edges):
        """The bytes are drawn, and no whole numbers."""
        cases = [
            (sizes, {axis: random.randrange(4, 400) / 4 for axis in axes.split()}, per_node)
            for sizes, axes, per_node in edges
        ]
        given = lambda f: [float(f(Mesh(**sizes), *rest)) for sizes, *rest in cases]  # noqa: E731
        lacks = "`sent` may lack axes of the mesh: along those nothing goes, `sent.get(axis, 0)`"
        with expect.because({"KeyError": lacks}):
            calls = submission.run(probes.counted, cases)
        expect.left_alone(calls, cases, ["mesh", "sent", "ranks_per_node"])
        found = [call["out"] for call in calls]
        words = cause(found, self.reference, TRAFFIC, given)
        for (sizes, sent, n), got, want in zip(cases, found, given(variant(self.reference))):
            what = f"{Mesh(**sizes)} on nodes of {n}, sent {sent}: bytes between nodes"
            expect.equal(got, want, what=what, hints=[(got, words)] if words else [])


def leaving(mesh, sent, per_node):
    """bytes_between of the course, for many meshes in a moment."""
    grid, total = torch.arange(mesh.size).view(mesh.shape), 0
    for axis, nbytes in sent.items():
        after = grid.roll(-1, dims=mesh.axes.index(axis))
        total += nbytes * int((grid // per_node != after // per_node).sum())
    return total


def orders_of(sizes):
    return [Mesh(**dict(order)) for order in permutations(sizes.items())]


def hard_choice(number):
    """Drawn until neither the order given, nor the chattiest last, nor the longest last is best."""
    while True:
        names = random.sample(["pp", "dp", "ep", "cp", "tp"], number)
        sizes = {name: random.choice((2, 3, 4) if number < 4 else (2, 2, 3)) for name in names}
        sent = {name: random.randrange(1, 100) for name in names}
        per_node = random.choice((2, 3, 4, 6))
        rules = [sizes, *({a: sizes[a] for a in sorted(sizes, key=by.get)} for by in (sent, sizes))]
        least = min(leaving(mesh, sent, per_node) for mesh in orders_of(sizes))
        worse = [leaving(Mesh(**rule), sent, per_node) > least for rule in rules]
        if Mesh(**sizes).size <= 24 and all(worse):
            return sizes, sent, per_node


class TestPlace(Exercise):
    """The order of the axes"""

    name = "place"
    reference = "minitrain.parallel.mesh:place"
    hidden = FILES

    @check(points=5, title="a Mesh of the same sizes that keeps the chatty axis inside")
    def test_chatty(self, submission):
        self.judge(submission, CHOICES[:2])

    @check(points=5, title="counted, not guessed: where no rule of thumb is right")
    def test_counts(self, submission):
        silent = ({"tp": 2, "cp": 1, "dp": 4}, {"dp": 5, "tp": 6}, 4)  # nothing along cp
        hard = [hard_choice(number) for number in (3, 3, 3, 4)]
        self.judge(submission, [*CHOICES[2:], *hard, silent, ({"dp": 6}, {"dp": 4}, 4)])

    def judge(self, submission, choices):
        factor = random.randrange(1, 50)
        cases = [
            (sizes, {axis: factor * nbytes for axis, nbytes in sent.items()}, per_node)
            for sizes, sent, per_node in choices
        ]
        calls = submission.run(probes.chosen, cases)
        expect.left_alone(calls, cases, ["sizes", "sent", "ranks_per_node"])
        for (sizes, sent, per_node), call in zip(cases, calls):
            got, told = call["out"], f"sizes {sizes}, sent {sent}, nodes of {per_node}"
            expect.that(isinstance(got, list), f"{told}: got a {got}; return the Mesh itself")
            expect.equal(dict(zip(*got)), sizes, what=f"{told}: the axes of the mesh that came")
            mesh = Mesh(**dict(zip(*got)))
            mine = leaving(mesh, sent, per_node)
            least = min(leaving(other, sent, per_node) for other in orders_of(sizes))
            expect.that(
                mine <= least,
                f"{told}: {mesh} sends {mine} bytes between nodes, {least} are possible: of all orders, keep the one that "
                "bytes_between says is least",
            )


# ---- experiments ----


class TestEqual(Experiment):
    """Meshes of 8 ranks against one process"""

    name = "equal"
    rests_on = ("Mesh", "clip_on_mesh")

    @check(points=3, title="meshes in which each of dp, tp, pp and ep is above 1, three at a time")
    def test_rows(self, table):
        for axis in ("dp", "tp", "pp", "ep"):
            expect.that(
                any(row[axis] > 1 for row in table), f"no mesh of your table cuts along {axis}"
            )
        most = max(sum(row[a] > 1 for a in ("dp", "tp", "pp", "ep", "cp")) for row in table)
        expect.that(most >= 3, f"your meshes cut along {most} axes at most: three on one of them")

    @check(points=5, title="loss, norm and weights after a step to 1e-10, in float64")
    def test_errors(self, table):
        for row in table:
            mesh = " ".join(f"{a} {row[a]}" for a in ("pp", "dp", "ep", "cp", "tp") if row[a] > 1)
            for what in ("loss", "norm", "weight"):
                error = row[f"{what}_error"]
                expect.that(
                    error < 1e-10,
                    f"{mesh}: the {what} is off by {error:.3g}; rounding in float64 is below 1e-10, so something "
                    "is counted twice or left out",
                )


class TestTraffic(Experiment):
    """Six orders of the axes"""

    name = "traffic"
    rests_on = ("Mesh", "bytes_between", "place")

    @check(points=2, title="all six orders, and the same bytes in each")
    def test_rows(self, table):
        orders = {row["order"] for row in table}
        expect.that(len(orders) == 6, f"{len(orders)} orders are in the table: there are six")
        totals = {row["inside"] + row["between"] for row in table}
        expect.that(
            len(totals) == 1, f"totals {sorted(totals)}: the order changes nothing that is sent"
        )
        for row in table:
            along = sum(value for name, value in row.items() if name.endswith("_bytes"))
            expect.that(
                along == row["inside"] + row["between"],
                f"{row['order']}: {along} bytes along the axes, {row['inside'] + row['between']} edge by edge",
            )

    @check(points=2, title="edge by edge as predicted, and tp is the chattiest")
    def test_predicted(self, table):
        for row in table:
            expect.close(
                row["between"], row["predicted"], tol=1e-6, what=f"{row['order']}: between"
            )
            expect.that(
                row["tp_bytes"] > row["dp_bytes"] + row["pp_bytes"],
                f"{row['order']}: tp sends most here, an activation at each of four places a layer",
            )

    @check(
        points=2,
        title="in the best order less than half as many bytes leave their node as in the naive one",
    )
    def test_half(self, table):
        between = {row["order"]: row["between"] for row in table}
        least = min(between.values())
        expect.that(
            "tp pp dp" in between and 0 < least < 0.5 * between["tp pp dp"],
            f"the best order sends {least} between nodes, tp pp dp {between.get('tp pp dp')}: less than half",
        )


class TestPast(Experiment):
    """Tensor parallelism past the node"""

    name = "past_the_node"
    rests_on = ("bytes_between", "place")

    @check(points=3, title="memory falls with tp; at 8 it fits, at 4 not")
    def test_memory(self, table):
        rows = sorted(table, key=lambda row: row["tp"])
        sizes = [row["memory_gib"] for row in rows]
        expect.that(sizes == sorted(sizes, reverse=True), "memory falls as tp grows")
        fits = {row["tp"]: row["fits"] for row in rows}
        expect.that(fits.get(8) and not fits.get(4, True), f"does it fit? {fits}: 8 does, 4 not")

    @check(points=2, title="from tp 8 to 16 the wait for tensor parallelism grows by half or more")
    def test_cliff(self, table):
        share = {row["tp"]: row["tp_share"] for row in table}
        rate = {row["tp"]: row["tflops_per_gpu"] for row in table}
        expect.that({8, 16} <= set(share), "tp 8 and 16 are asked for")
        expect.that(
            share[16] > 1.5 * share[8] and rate[16] < rate[8],
            f"tp 16 waits {share[16]:.0%} of the step, tp 8 {share[8]:.0%}: half as much again, or more, is due",
        )


class TestLayouts(Experiment):
    """16,384 and 24,576 GPUs"""

    name = "layouts"
    rests_on = ("Mesh", "place")

    @check(points=3, title="every mesh uses all GPUs of its cluster")
    def test_rows(self, table):
        for row in table:
            mesh = f"tp {row['tp']} · pp {row['pp']} · dp {row['dp']}"
            expect.that(
                row["tp"] * row["pp"] * row["dp"] == row["gpus"],
                f"{mesh} are {row['tp'] * row['pp'] * row['dp']} GPUs, not {row['gpus']}",
            )
        expect.that({row["gpus"] for row in table} >= {16384, 24576}, "two clusters are asked for")

    @check(points=3, title="the fastest that fits 16,384 is the published one: tp 8, pp 16")
    def test_best(self, table):
        row = fastest(table, 16384)
        expect.that(
            (row["tp"], row["pp"]) == (8, 16),
            f"your fastest that fits is tp {row['tp']} · pp {row['pp']}; published are tp 8 · pp 16",
        )
        expect.close(row["tflops_per_gpu"], 400, tol=0.08, what="TFLOP/s a GPU, published 400")


def fastest(table, gpus):
    able = [row for row in table if row["fits"] and row["gpus"] == gpus]
    expect.that(able, f"no mesh of your table fits on {gpus} GPUs")
    return max(able, key=lambda row: row["tflops_per_gpu"])


# ---- questions ----


class TestTimes(Question):
    """What the naive order costs"""

    name = "times_as_much"
    rests_on = ("traffic",)

    @check(points=5, title="bytes between nodes of two ranks, the naive order over the best")
    def test_value(self, value, records):
        table = expect.recorded(records, "traffic")
        naive = [row for row in table if row["order"] == "tp pp dp"]
        expect.that(naive, "your table has no row of the order tp pp dp")
        tp, pp, dp = (naive[0][f"{axis}_bytes"] for axis in ("tp", "pp", "dp"))
        worst, best = tp + pp, sum(sorted((tp, pp, dp))[:2])  # all but the last axis leave
        of_four = naive[0]["between"] / min(row["between"] for row in table)
        expect.close(
            value,
            worst / best,
            tol=0.01,
            what="bytes between nodes of two ranks in the naive order over the best",
            hints=[
                (of_four, "that is for nodes of four: with two ranks a node, two of the three axes leave"),
                (best / worst, "turn the fraction round"),
                (worst - best, "a factor, no difference"),
            ],
        )  # fmt: skip


class TestWhyNot(Question):
    """Faster, and not chosen"""

    name = "why_not"
    rests_on = ("layouts",)

    @check(points=5, title="what is wrong with the faster ones")
    def test_value(self, value, records):
        expect.among(value, ["memory", "batch", "network"])
        table = expect.recorded(records, "layouts")
        best = fastest(table, 24576)
        faster = [
            r for r in table if r["gpus"] == 24576 and r["tflops_per_gpu"] > best["tflops_per_gpu"]
        ]
        expect.that(faster, "your table has no faster mesh: are all of tp 8 in it?")
        expect.that(
            value == "memory",
            "not that: all have the same batch, and their tp stays in the node. Compare their memory with an H100's",
        )


class TestHolders(Question):
    """Copies of a norm on 24,576 GPUs"""

    name = "norm_holders"
    rests_on = ("gradient_norm",)

    @check(points=5, title="GPUs that hold the same norm's weight in the fastest mesh that fits")
    def test_value(self, value, records):
        row = fastest(expect.recorded(records, "layouts"), 24576)
        tp, pp, dp = row["tp"], row["pp"], row["dp"]
        expect.close(
            value,
            tp * dp,
            tol=1e-9,
            what="GPUs that hold the same elements of a norm's weight",
            hints=[
                (dp, "that is for a matrix, which tp splits: a norm is whole on every rank of tp"),
                (tp * pp * dp, "that is all: stages have norms of their own"),
                (tp, "that is one data-parallel replica: all of dp hold it too"),
                (pp * dp, "stages hold different norms, and ranks of tp the same ones"),
            ],
        )
