"""The checks of lab e02f: places on a mesh, a norm that counts once, bytes that leave a node."""

from __future__ import annotations

import math
import random
from itertools import permutations

import torch

from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.parallel.layout import layout_of

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
    "test": {"meshes": [(1, 2, 2, 1, 2), (2, 1, 1, 2, 2)]},
}


def tp_share(layers, activations, gradients):
    """Of the elements that a rank sends, with two ranks on each axis and two microbatches."""
    tp, pp = 4 * layers * 2 * activations, 2 * activations
    return tp / (tp + pp + gradients)


REVEALS = {
    "norm_copies": Reveal(
        "measured",
        "dp · tp: neither cuts a norm, and pp gives it to one stage",
        formula=lambda dp, tp: dp * tp,
    ),
    "tp_share": Reveal(
        "measured",
        "16 A of 16 A + 2 A + 3,900: four sums in each of 2 layers for each of 2 microbatches",
        formula=tp_share,
    ),
}
FILES = tuple(
    f"minitrain/parallel/{name}.py"
    for name in ("mesh", "hybrid/gradients", "hybrid/model", "hybrid/state", "hybrid/placement")
)


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


class TestMesh(Exercise):
    """Ranks to coordinates and lines"""

    name = "Mesh"
    reference = "minitrain.parallel.mesh:Mesh"
    hidden = FILES

    def asked(self, submission, method, sizes, calls, names):
        """(mesh, arguments, what it gave) of each call, which come in any order."""
        calls = random.sample(calls, len(calls))
        found = submission.run(probes.on_meshes, sizes, method, calls)
        expect.left_alone(found, calls, ["mesh", *names], what=f"`{method}`")
        meshes = [probes.Grid(**each) for each in sizes]
        return [(meshes[n], given, call["out"]) for (n, *given), call in zip(calls, found)]

    @check(points=6, title="coordinates of every rank: the last axis varies fastest")
    def test_coordinates(self, submission):
        sizes = shapes()
        calls = [(n, r) for n, each in enumerate(sizes) for r in range(math.prod(each.values()))]
        for mesh, (rank,), got in self.asked(submission, "coordinates", sizes, calls, ["rank"]):
            want = mesh.coordinates(rank)
            what = f"{mesh}, coordinates of rank {rank}"
            backwards = probes.Grid(**dict(reversed(list(zip(mesh.axes, mesh.shape)))))
            words = (
                "as if the first axis varied fastest. The last one does: take the digits off from the "
                "last axis on"
            )
            expect.equal(got, want, what=what, hints=[(backwards.coordinates(rank), words)])
            expect.that(
                list(got) == list(mesh.axes),
                f"{what} come in the order {list(got)}; in the mesh's order they are "
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
        numbers = [math.prod(each.values()) for each in sizes]
        some = [random.sample(range(number), min(number, 12)) for number in numbers]
        calls = [(n, axes, rank) for n, axes in named for rank in some[n]]
        for mesh, (axes, rank), got in self.asked(
            submission, "ranks", sizes, calls, ["axes", "rank"]
        ):
            want, what = mesh.ranks(axes, rank), f"{mesh}, along {axes} from rank {rank}"
            others = [a for a in mesh.axes if a not in ([axes] if isinstance(axes, str) else axes)]
            backwards = probes.Grid(**dict(reversed(list(zip(mesh.axes, mesh.shape)))))
            hints = [
                ([r for r in want if r != rank], "the rank itself is a member of its line"),
                *(
                    (mesh.ranks(a, rank), f"that is along {a} alone")
                    for a in axes
                    if a in mesh.axes
                ),
                (
                    mesh.ranks(others, rank),
                    "those share the coordinates along these axes; their line differs along them and "
                    "shares all others",
                ),
                (
                    backwards.ranks(axes, rank),
                    "as if the first axis varied fastest, and not the last one",
                ),
            ]
            is_list = isinstance(got, (list, tuple))
            expect.that(is_list, f"{what}: got {expect.show(got)}; return a list of ranks")
            expect.that(
                got == want or sorted(got) != want,
                f"{what}: got {got}, the right ranks in another order. Sort them: a list comes in order of rank",
            )
            expect.equal(got, want, what=what, hints=hints)


# ---- copies ----

LAYOUTS = (
    ("a matrix", "pp tp", "dp cp"),
    ("an expert", "pp ep tp", "dp"),
    ("a norm", "pp", "dp ep cp"),
    ("a bias", "pp", ""),
    ("the tied table", "tp", "dp pp"),
    ("a tied table, whole", "", "dp pp"),
)


def large_meshes():
    """With axes of different primes, so that no product is another's."""
    a, b, c, d = random.sample((2, 3, 5, 7), 4)
    return (
        {"pp": 4, "dp": a, "ep": b, "cp": c, "tp": d},
        {"pp": 2, "dp": b, "ep": 1, "cp": 1, "tp": a},
        {"dp": a, "tp": c},
        {"tp": b, "dp": d, "pp": 1},
        {"pp": 3, "cp": d},
    )


def copies(split, partial, mesh):
    """How many ranks hold the same."""
    along = [mesh[a] for a in mesh.axes if a != "pp" and a not in split]
    return math.prod(along) * (2 if "pp" in partial else 1)


class TestCopies(Exercise):
    """How often a parameter is held"""

    name = "copies"
    reference = "minitrain.parallel.hybrid.gradients:copies"
    hidden = FILES

    def judge(self, submission, tied):
        cases = [
            (words, split.split(), partial.split(), sizes)
            for sizes in large_meshes()
            for words, split, partial in LAYOUTS
            if ("pp" in partial.split()) == tied and (not tied or sizes.get("pp", 1) > 1)
        ]
        lacks = "a mesh may lack axes: `mesh[axis]` only where `axis in mesh.axes`, all others count once"
        frozen = (
            "`layout.split` and `layout.partial` are the parameter's own: read them, change nothing"
        )
        with expect.because({"tuple.index(x)": lacks, "'frozenset' object has no": frozen}):
            found = submission.run(probes.copies_of, [case[1:] for case in cases])
        for (words, split, partial, sizes), got in zip(cases, found):
            mesh = probes.Grid(**sizes)
            want = copies(split, partial, mesh)
            stages = mesh["pp"] if "pp" in mesh.axes else 1
            apart = math.prod(mesh[a] for a in mesh.axes if a in split)
            summed = math.prod(mesh[a] for a in mesh.axes if a in partial)
            twice = math.prod(mesh[a] for a in mesh.axes if a in partial and a != "pp") * (
                2 if tied else 1
            )
            absent = [a for a in mesh.axes if mesh[a] > 1 and a not in [*split, *partial, "pp"]]
            factors = (
                "copies are along every axis that neither splits it nor is the pipeline, not along `partial` alone: "
                f"here the factor of {' and '.join(absent)} is missing"
            )
            neither = math.prod(mesh[a] for a in mesh.axes if a not in [*split, *partial])
            expect.equal(
                got,
                want,
                what=f"{mesh}: {words}, split along {split or 'nothing'}, partial along {partial}",
                hints=[
                    (want // 2 if tied else -1, "the first and the last stage both hold a tied table: two of them"),
                    (want // 2 * stages if tied else -1, "two stages hold a tied table, however many stages there are"),
                    (want * stages, "stages hold different parameters: pp makes no copies"),
                    (neither, "`partial` axes make copies too: the gradient was a part there until it was summed"),
                    *((value, factors) for value in (twice, summed) if absent),
                    (apart // stages, "that is how many ranks share one copy: axes of `split` hold different elements, leave them out"),
                    (apart, "that is how many ranks share one copy: axes of `split` hold different elements, leave them out"),
                    (mesh.number, "that is all ranks: axes of `split` hold different elements"),
                ],
            )  # fmt: skip

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
    **dict.fromkeys(("norm", "bias", "gain"), torch.float32),
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


def squares(sizes, gradients):
    """{words: sum of squares} as each mistake counts them; "" is the right one."""
    mesh = probes.all_axes(sizes)
    pp, size = mesh["pp"], mesh.number
    found = dict.fromkeys(("", "copies", "table", "stages", "mean", "experts"), 0.0)
    for name, _shape, split, _partial, where in probes.PARTS:
        for stage in probes.stages_of(where, mesh):
            if (name, stage) not in gradients:
                continue
            whole = gradients[name, stage].double().square().sum().item()
            once = 0 if where == "ends" and stage else 1
            held = copies(split.split(), [], mesh)
            found[""] += once * whole
            found["copies"] += held * whole
            found["table"] += whole
            found["stages"] += whole / pp
            found["mean"] += held * whole / size
            found["experts"] += whole / (
                mesh["ep"] if name == "expert" and "ep" in mesh.axes else 1
            )
    return found


NORM_HINTS = {
    "copies": "that adds up every copy: a weight that c ranks hold is counted c times. Divide its square "
    "by copies(layout_of(p), lines.mesh)",
    "table": "the tied table is counted on both stages that hold it",
    "stages": "pp is counted as copies: its stages hold different parameters",
    "mean": "that is the mean over ranks: slices add up, and only copies are to be divided",
    "experts": "experts along ep are different ones: they add up",
}


def gradients_of(mesh, rank, gradients):
    """{name: this rank's part}"""
    return probes.gradients_on(mesh, mesh.coordinates(rank), gradients)


def of_ranks(mesh, gradients):
    """Each rank's own sums: of squares, of squares over their copies, and what mistakes add up."""
    found = {"own": [], "shared": [], "inside": [], "lengths": []}
    for rank in range(mesh.number):
        model = probes.model_on(mesh, mesh.coordinates(rank), {})
        held = [
            (g.double(), copies(layout_of(model[name]).split, layout_of(model[name]).partial, mesh))
            for name, g in gradients_of(mesh, rank, gradients).items()
        ]
        zero = torch.zeros((), dtype=torch.float64)
        found["own"].append(sum((g.square().sum() for g, _ in held), zero))
        found["shared"].append(sum((g.square().sum() / c for g, c in held), zero))
        found["inside"].append(sum(((g / c).square().sum() for g, c in held), zero))
        found["lengths"].append(sum((g.norm() / c for g, c in held), zero))
    return found


def rank_hints(mesh, rank, parts):
    """(value, words): mistakes that add up on too few ranks, or add up something else."""
    alone = "all-reduce the squares over `lines.world`"
    last = "added up: squares add up, and the root comes last"
    lengths = {"ranks": [s**0.5 for s in parts["shared"]], "parameters": parts["lengths"]}
    lines = {a: mesh.ranks(a, rank) for a in mesh.axes if mesh[a] < mesh.number}
    along = {a: sum(parts["shared"][other] for other in line) for a, line in lines.items()}
    return [
        (parts["own"][rank] ** 0.5, f"that is this rank's own part: the slices and stages of others are missing, {alone}"),
        (parts["shared"][rank] ** 0.5, f"copies are divided without having been added up: {alone}"),
        *((square**0.5, f"that is added up along {axis} alone: {alone}") for axis, square in along.items()),
        (sum(parts["inside"]) ** 0.5, "the number of copies is inside the square: divide the square by it, not the gradient"),
        *((sum(own) ** power, f"those are the {whose}' lengths, {last}") for whose, own in lengths.items() for power in (1, 0.5)),
    ]  # fmt: skip


def launched(submission, sizes, steps, dtypes=None):
    """(the mesh, each step's (gradients, limit, walked once?) and the ranks' results)."""
    mesh = probes.all_axes(sizes)
    joined = "every rank joins the all-reduce, also one that has no gradients: it adds 0"
    with expect.because({"have returned": joined}):
        results = submission.launch(
            probes.ran, sizes, dtypes or {}, steps, ranks=mesh.number, timeout=10
        )
    for own, notes in zip(results, submission.notes):
        for result, run in zip(own, relayed.runs(notes, "step", len(steps))):
            ops = relayed.operations(run)
            result["ops"] = [(op.kind, op.payload_bytes) for op in ops]
    for rank, result in enumerate(result for each in zip(*results) for result in each):
        words = f"rank {rank % mesh.number} returned"
        expect.that(result["kind"] != "NoneType", f"{words} None: return the norm")
        expect.that(
            result["kind"] == "torch.float64",
            f"{words} a {result['kind']}: the norm is a scalar tensor of float64, in which "
            "millions of squares keep their digits",
        )
        shape = tuple(result["value"].shape)
        expect.that(result["value"].numel() == 1, f"{words} a tensor of shape {shape}")
    return mesh, list(zip(steps, zip(*results)))


def norm_is(mesh, sizes, gradients, results):
    right, *wrong = squares(sizes, gradients).items()
    want = torch.tensor(right[1], dtype=torch.float64).sqrt()
    parts = of_ranks(mesh, gradients)
    is_narrow = any(g.dtype != torch.float64 for g in gradients.values())
    for rank, result in enumerate(results):
        hints = [
            *rank_hints(mesh, rank, parts),
            (want.square(), "that is the square: the root is missing"),
            *((torch.tensor(s, dtype=torch.float64).sqrt(), NORM_HINTS[k]) for k, s in wrong),
        ]
        got, what = result["value"].view(()), f"{mesh}, the norm on rank {rank}"
        if 1e-10 < (got / want - 1).abs() < (1e-2 if is_narrow else 1e-5):
            hints.append((got, "nearly: add the squares up in float64, `p.grad.double()`"))
        if is_narrow and not got.isfinite():
            hints.append((got, "squares of narrow dtypes overflow: square `p.grad.double()`"))
        expect.equal(got, want, what=what, hints=hints)


def pairs(mesh, rank, gradients, result):
    """(name, gradient before, and after) of what has one on this rank."""
    before = gradients_of(mesh, rank, gradients)
    lost = sorted(set(before) - set(result["gradients"]))
    expect.that(not lost, f"rank {rank}: the gradient of {', '.join(lost)} is None afterwards")
    return [(name, whole, result["gradients"][name]) for name, whole in before.items()]


def weights_stayed(rank, result):
    words = f"rank {rank}: the weights changed. Only their `.grad` is asked about"
    expect.that(result["weights"], words)


def nothing_stayed(mesh, rank, gradients, result):
    new = sorted(set(result["gradients"]) - set(gradients_of(mesh, rank, gradients)))
    expect.that(
        not new,
        f"rank {rank}: a parameter whose `.grad` was None ({', '.join(new)}) has one afterwards: "
        "leave it None",
    )


class TestNorm(Exercise):
    """The norm of the whole gradient"""

    name = "gradient_norm"
    reference = "minitrain.parallel.hybrid.gradients:gradient_norm"
    hidden = FILES

    @check(points=4, title="copies and slices: equals one process, step after step (dp = tp = 2)")
    def test_data(self, submission):
        sizes, first = MESHES[3], wholes(MESHES[3])
        some = wholes(sizes, lambda name, stage: name in ("matrix", "gain"))
        steps = [(gradients, None, False) for gradients in (first, some, first)]
        mesh, found = launched(submission, sizes, steps)
        for (gradients, *_), results in found:
            norm_is(mesh, sizes, gradients, results)

    @check(
        points=4, title="stages, slices, experts, a tied table: every element once (4 to 8 ranks)"
    )
    def test_once(self, submission):
        def of_stage_1(name, stage):
            return stage == 1 or name == "table"

        for sizes, others, dtypes in (
            (MESHES[0], [wholes(MESHES[0], of_stage_1)], {}),
            (MESHES[1], [], {}),
            (MESHES[3], [], NARROW),
        ):
            scale = 300.0 if dtypes else 1.0
            every = [wholes(sizes, scale=scale, dtypes=dtypes), *others]
            mesh, found = launched(submission, sizes, [(g, None, False) for g in every], dtypes)
            for (gradients, *_), results in found:
                for rank, result in enumerate(results):
                    little(mesh, rank, result["ops"])
                norm_is(mesh, sizes, gradients, results)

    @check(points=4, title="a number travels, no gradients; and they stay as they were")
    def test_sent(self, submission):
        sizes = MESHES[1]
        mesh, found = launched(submission, sizes, [(wholes(sizes), None, False)])
        for (gradients, *_), results in found:
            for rank, result in enumerate(results):
                little(mesh, rank, result["ops"])
                shape = tuple(result["value"].shape)
                expect.that(shape == (), f"the norm is a scalar, got a tensor of shape {shape}")
                weights_stayed(rank, result)
                nothing_stayed(mesh, rank, gradients, result)
                for name, whole, got in pairs(mesh, rank, gradients, result):
                    what = f"the gradient of {name} on rank {rank}, after the norm"
                    expect.identical(got, whole, what=what)


def little(mesh, rank, ops):
    """One small message, or one along each axis."""
    sent = sum(nbytes for _, nbytes in ops)
    expect.that(ops, f"rank {rank} sent nothing: without a message it cannot know the others' part")
    expect.that(
        len(ops) <= len(mesh.axes),
        f"rank {rank} sent {len(ops)} messages: add up this rank's squares first, one number is enough",
    )
    expect.that(
        sent <= 8 * len(ops),
        f"rank {rank} sent {sent} bytes: one number is enough, gradients themselves need not travel",
    )


class TestClip(Exercise):
    """Clipping by one factor"""

    name = "clip_on_mesh"
    reference = "minitrain.parallel.hybrid.gradients:clip_on_mesh"
    hidden = FILES

    @check(points=6, title="one factor on all ranks, so that the whole is as long as the limit")
    def test_clips(self, submission):
        some = wholes(MESHES[0], lambda name, stage: name == "matrix")
        steps = [
            (wholes(MESHES[0]), random.randrange(5, 15) / 16, False),
            (wholes(MESHES[0]), random.randrange(32, 80) / 16, True),
            (some, random.randrange(5, 15) / 16, True),
        ]
        whole = wholes(MESHES[0])  # its norm a hair below the limit: the factor is below 1
        steps.append((whole, squares(MESHES[0], whole)[""] ** 0.5 + 4e-7, False))
        steps.append((wholes(MESHES[0]), 0.0, False))  # a limit as good as any
        self.judge(submission, MESHES[0], steps, {})
        narrow = wholes(MESHES[3], scale=300.0, dtypes=NARROW)
        self.judge(submission, MESHES[3], [(narrow, 200.0, False)], NARROW)

    def judge(self, submission, sizes, steps, dtypes):
        mesh, found = launched(submission, sizes, steps, dtypes)
        for (gradients, limit, once), results in found:
            norm = squares(sizes, gradients)[""] ** 0.5
            for rank, result in enumerate(results):
                weights_stayed(rank, result)
                triples = pairs(mesh, rank, gradients, result)
                expect.that(
                    result["in_place"],
                    f"rank {rank}: a `.grad` is another tensor than before. In place, please: whoever "
                    "holds the old one, a bucket for example, would see nothing clipped",
                )
                mine = sum(whole.double().square().sum() for _, whole, _ in triples).item() ** 0.5
                for name, whole, got in triples:
                    what = f"{mesh}, the gradient of `{name}` on rank {rank} after clipping to {limit:.4g}, the whole one being {norm:.4g} long"
                    self.is_clipped(got, whole, limit, norm, mine, once, what)
                little(mesh, rank, result["ops"])
                returned_the_norm(rank, result, norm, limit)

    def is_clipped(self, got, whole, limit, norm, mine, once, what):
        words = "nothing was clipped. Multiply every `.grad` by limit / (norm + 1e-6)"
        if once:
            words = "nothing was clipped. `parameters` can be walked once: make a list of it first"
        foreign = "that is clipped by this rank's own norm: ranks clip by different factors, and train apart"
        if norm <= limit:
            words = "the factor decides, limit / (norm + 1e-6), also where the norm is a hair below the limit"
        wide = whole.double()
        hints = [
            (wide, words),
            (wide * limit / mine, foreign),
            (wide * limit / (mine + 1e-6), foreign),
            (wide.clamp(-limit, limit), "that clips each number: one factor for the whole keeps the direction"),
            (wide * limit / wide.norm(), "that clips each parameter by its own norm"),
            (wide * limit / (wide.norm() + 1e-6), "that clips each parameter by its own norm"),
            (wide * limit / norm, "nearly: limit / (norm + 1e-6), so that ours is PyTorch's to the last digit"),
            (wide / (norm + 1e-6), "the factor is limit / norm, not 1 / norm"),
            (wide * norm / limit, "turn the factor round: limit / norm"),
        ]  # fmt: skip
        want = (wide * (limit / (norm + 1e-6))).to(whole.dtype)
        hints = [(value.to(whole.dtype), words) for value, words in hints]
        expect.equal(got, want, what=what, hints=hints)

    @check(
        points=2, title="what is shorter than the limit stays as it is, and its norm is returned"
    )
    def test_short(self, submission):
        sizes = MESHES[2]
        nothing = {key: torch.zeros_like(whole) for key, whole in wholes(sizes).items()}
        steps = [(wholes(sizes), 1e4, True), (nothing, 1.0, False)]
        mesh, found = launched(submission, sizes, steps)
        for (gradients, limit, _), results in found:
            norm = squares(sizes, gradients)[""] ** 0.5
            for rank, result in enumerate(results):
                little(mesh, rank, result["ops"])
                nothing_stayed(mesh, rank, gradients, result)
                for _, whole, got in pairs(mesh, rank, gradients, result):
                    expect.that(
                        expect.difference(got, whole, 0.0) is None,
                        f"rank {rank}: the norm is below the limit of {limit:,.0f}, and the gradients "
                        "changed. Clipping only shortens: a factor above 1 is none",
                    )
                returned_the_norm(rank, result, norm, limit)


def returned_the_norm(rank, result, norm, limit):
    what = f"rank {rank}: what it returned, the norm before clipping"
    hints = [(limit, "that is the norm after it" if limit < norm else "that is the limit")]
    is_narrow = any(g.dtype != torch.float64 for g in result["gradients"].values())
    tol = 1e-6 if is_narrow else 1e-9
    expect.equal(result["value"].item(), norm, tol=tol, what=what, hints=hints)


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
    ({"tp": 2, "pp": 2, "dp": 2}, {"tp": 900, "pp": 30, "dp": 60}, 4),
    ({"a": 8, "b": 2}, {"a": 10, "b": 9}, 4),
    ({"tp": 3, "dp": 4}, {"tp": 7, "dp": 6}, 4),
    ({"tp": 2, "dp": 2, "pp": 4}, {"tp": 15, "dp": 2, "pp": 25}, 4),
)


def crossing(mesh, sent, per_node, ring=True, each=lambda rank, per_node: rank // per_node):
    total = 0
    for axis, nbytes in sent.items():
        stride = math.prod(mesh.shape[mesh.axes.index(axis) + 1 :])  # from a rank to its next
        for rank in range(mesh.number):
            place = rank // stride % mesh[axis] + 1
            after = rank + stride * (1 if place < mesh[axis] else 1 - mesh[axis])
            if ring or place < mesh[axis]:
                total += nbytes * (each(after, per_node) != each(rank, per_node))
    return total


class TestBytes(Exercise):
    """What leaves a node"""

    name = "bytes_between"
    reference = "minitrain.parallel.hybrid.placement:bytes_between"
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
        lacks = "`sent` may lack axes of the mesh: along those nothing goes, `sent.get(axis, 0)`"
        with expect.because({"KeyError": lacks}):
            calls = submission.run(probes.counted, cases)
        expect.left_alone(calls, cases, ["mesh", "sent", "ranks_per_node"])
        for case, call in zip(cases, calls):
            sizes, sent, per_node = case
            got, mesh = call["out"], probes.Grid(**sizes)
            want = crossing(mesh, sent, per_node)
            inside = sum(sent[a] * mesh.number for a in sent if mesh[a] > 1) - want
            lines = crossing(mesh, sent, per_node, ring=False)
            nodes = {
                axis: sum(
                    len({r // per_node for r in mesh.ranks(axis, rank)}) > 1
                    for rank in range(mesh.number)
                )
                for axis in sent
            }
            node = [rank // per_node for rank in range(mesh.number)]
            pairs = sum(
                nbytes * (node[other] != node[rank])
                for axis, nbytes in sent.items()
                for rank in range(mesh.number)
                for other in mesh.ranks(axis, rank)
            )
            first = alike = 0
            for axis, nbytes in sent.items():
                line = mesh.ranks(axis, 0)
                own = nbytes * sum(node[a] != node[b] for a, b in zip(line, line[1:] + line[:1]))
                first, alike = first + own, alike + own * mesh.number / mesh[axis]
            remainder = crossing(mesh, sent, per_node, each=lambda rank, n: rank % n)
            expect.equal(
                float(got) if isinstance(got, (int, float)) else got,
                float(want),
                what=f"{mesh} on nodes of {per_node}, sent {sent}: bytes between nodes",
                hints=[
                    (float(inside), "those stay inside: count where the nodes of sender and receiver differ"),
                    (float(lines), "the last of a line sends to the first: close the ring"),
                    (want / mesh.number, "that is the mean of a rank: add up over all ranks"),
                    (float(first), "those are rank 0's lines only: let each rank send, so that all lines count"),
                    (float(alike), "as if every line crossed as often as the one through rank 0: here they differ, go through all ranks"),
                    (float(pairs), "that lets each rank send to its whole line: on a ring it sends to its next only"),
                    (2.0 * want, "each rank sends to its next only: an edge is counted at its sender"),
                    (float(sum(sent[a] * n for a, n in nodes.items())), "a line over two nodes has edges inside them too: look at each sender and its next"),
                    (float(remainder), "a rank's node is rank // ranks_per_node: % is its place in it"),
                    (float(sum(n * (mesh[a] > 1) for a, n in nodes.items())), "that counts messages: each has sent[axis] bytes"),
                ],
            )  # fmt: skip


def orders_of(sizes):
    return [probes.Grid(**dict(order)) for order in permutations(sizes.items())]


def by_rule(sizes, sent):
    """The chattiest axis last."""
    return probes.Grid(**{a: sizes[a] for a in sorted(sizes, key=lambda a: sent.get(a, 0))})


def hard_choice(number):
    """Drawn until neither the order given, nor the chattiest last, nor the longest last is best."""
    while True:
        names = random.sample(["pp", "dp", "ep", "cp", "tp"], number)
        sizes = {name: random.choice((2, 3, 4) if number < 4 else (2, 2, 3)) for name in names}
        sent = {name: random.randrange(1, 100) for name in names}
        given = probes.Grid(**sizes)
        rules = given, by_rule(sizes, sent), by_rule(sizes, sizes)
        per_node = random.choice((2, 3, 4, 6))
        least = min(crossing(mesh, sent, per_node) for mesh in orders_of(sizes))
        if given.number <= 24 and all(crossing(m, sent, per_node) > least for m in rules):
            return sizes, sent, per_node


class TestPlace(Exercise):
    """The order of the axes"""

    name = "place"
    reference = "minitrain.parallel.hybrid.placement:place"
    hidden = FILES

    @check(points=5, title="a Mesh of the same sizes that keeps the chatty axis inside")
    def test_chatty(self, submission):
        self.judge(submission, CHOICES[:2])

    @check(points=5, title="counted, not guessed: where no rule of thumb is right")
    def test_counts(self, submission):
        silent = ({"tp": 2, "cp": 1, "dp": 4}, {"dp": 5, "tp": 6}, 4)  # nothing along cp
        hard = [hard_choice(number) for number in (3, 3, 3, 4)]
        self.judge(submission, [*CHOICES[2:], *hard])
        self.judge(submission, [silent, ({"dp": 6}, {"dp": 4}, 4)])

    def judge(self, submission, choices):
        factor = random.randrange(1, 50)
        cases = [
            (sizes, {axis: factor * nbytes for axis, nbytes in sent.items()}, per_node)
            for sizes, sent, per_node in choices
        ]
        calls = submission.run(probes.chosen, cases)
        expect.left_alone(calls, cases, ["sizes", "sent", "ranks_per_node"])
        for (sizes, sent, per_node), call in zip(cases, calls):
            got, words = call["out"], f"sizes {sizes}, sent {sent}, nodes of {per_node}"
            expect.that(
                isinstance(got, list),
                f"{words}: got a {got}; return the Mesh itself, of the best order",
            )
            mesh = probes.Grid(**dict(zip(*got)))
            expect.that(
                dict(zip(*got)) == sizes,
                f"{words}: got {mesh}; every axis keeps its own size, only their order changes",
            )
            costs = [crossing(each, sent, per_node) for each in orders_of(sizes)]
            mine, rule = crossing(mesh, sent, per_node), by_rule(sizes, sent)
            advice = "try every order, and keep the one that bytes_between says is least"
            if mine == max(costs) > min(costs):
                advice = f"no order sends more. {advice[0].upper()}{advice[1:]}"
            if rule.axes == mesh.axes:
                longer = (
                    ": here it is longer than a node" if sizes[rule.axes[-1]] > per_node else ""
                )
                advice = f"that is the chattiest axis last{longer}. {advice[0].upper()}{advice[1:]}"
            if list(mesh.axes) == list(sizes):
                advice = f"that is the order that was given; {advice}"
            expect.that(
                mine == min(costs),
                f"{words}: {mesh} sends {mine} bytes between nodes, {min(costs)} are possible: {advice}",
            )


# ---- experiments ----


class TestEqual(Experiment):
    """Meshes of 8 ranks against one process"""

    name = "equal"
    rests_on = ("Mesh", "clip_on_mesh")

    @check(points=3, title="meshes on which dp, tp, pp and ep are each cut, three at a time")
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

    @check(points=2, title="the best order leaves less than half of the naive one's")
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

    @check(points=2, title="past 8 the wait for tensor parallelism jumps")
    def test_cliff(self, table):
        share = {row["tp"]: row["tp_share"] for row in table}
        rate = {row["tp"]: row["tflops_per_gpu"] for row in table}
        expect.that({8, 16} <= set(share), "tp 8 and 16 are asked for")
        expect.that(
            share[16] > 1.5 * share[8] and rate[16] < rate[8],
            f"tp 16 waits {share[16]:.0%} of the step, tp 8 {share[8]:.0%}: the node has 8 GPUs",
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

    @check(points=5, title="GPUs that hold the same norm's weight in the fastest mesh")
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
