"""The checks of lab e02f: places on a mesh, a norm that counts once, bytes that leave a node."""

from __future__ import annotations

import math
import random
from itertools import permutations

import torch

from minitrain.lab.failures import CheckFailed, SubmissionFailed
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


class TestMesh(Exercise):
    """Ranks to coordinates and lines"""

    name = "Mesh"
    reference = "minitrain.parallel.mesh:Mesh"
    hidden = FILES

    @check(points=6, title="coordinates of every rank: the last axis varies fastest")
    def test_coordinates(self, submission):
        sizes = shapes()
        calls = [(n, r) for n, each in enumerate(sizes) for r in range(math.prod(each.values()))]
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
        numbers = [math.prod(each.values()) for each in sizes]
        some = [random.sample(range(number), min(number, 12)) for number in numbers]
        calls = [(n, axes, rank) for n, axes in named for rank in some[n]]
        listed = "`axes` may be a list, which no set and no dict holds as a key: tuple(axes) can be"
        with expect.because({"unhashable type: 'list'": listed}):
            self.judged(submission, "ranks", sizes, calls)

    def judged(self, submission, method, sizes, calls):
        """((mesh, arguments …), what it gave) of each call, which come in any order."""
        calls = random.sample(calls, len(calls))
        try:
            found = submission.run(probes.on_meshes, sizes, method, calls)
        except SubmissionFailed as failure:
            if method == "ranks" and not self.has_coordinates(submission, sizes):
                raise SubmissionFailed(failure.kind, f"{failure}\n{AS_ABOVE}") from None
            raise
        names = ["mesh", "axes", "rank"] if method == "ranks" else ["mesh", "rank"]
        expect.left_alone(found, calls, names, what=f"`{method}`")
        meshes = [probes.Grid(**each) for each in sizes]
        asked = [((meshes[n], *given), call["out"]) for (n, *given), call in zip(calls, found)]
        wrong = [(each, got) for each, got in asked if not is_right(method, *each, got)]
        for (mesh, *given, rank), got in wrong:
            want, what = getattr(mesh, method)(*given, rank), f"{mesh}, coordinates of rank {rank}"
            if method == "ranks":
                places = [f"{axis} {place}" for axis, place in mesh.coordinates(rank).items()]
                what = f"{mesh}, along {given[0]} from rank {rank}, which is {', '.join(places)}"
                is_list = isinstance(got, (list, tuple))
                expect.that(is_list, f"{what}: got {expect.show(got)}; return a list of ranks")
                expect.that(
                    sorted(map(str, got)) != sorted(map(str, want)),
                    f"{what}: got {got}, the right ranks in another order. Sort them: a list comes in order of rank",
                )
            words = self.cause(submission, method, sizes, wrong)
            expect.equal(got, want, what=what, hints=[(got, words)] if words else [])
        return asked

    def cause(self, submission, method, sizes, wrong):
        """What gives all that is wrong, "" where nothing known does."""
        if method == "ranks" and not self.has_coordinates(submission, sizes):
            return AS_ABOVE
        ((mesh, *given), _), words = wrong[0], cause_of(wrong, MISTAKES[method])
        if not words and self.is_right_alone(submission, method, mesh, *given):
            words = "on a mesh that is alone it is right: what belongs to one mesh must stand on its own `self`"
        if not words and isinstance(given[0], str):
            name, rank = given
            if self.is_right_alone(submission, method, mesh, [name], rank):
                words = f"along {[name]}, a list of one, it is right. A name alone is a string, a row of letters: "
                words += (
                    'list("tp") is ["t", "p"], and "p" in "tp" is true. Make it a list of one first'
                )
        return words

    def is_right_alone(self, submission, method, mesh, *given):
        sizes = dict(zip(mesh.axes, mesh.shape))
        (call,) = submission.run(probes.on_meshes, [sizes], method, [(0, *given)])
        return is_right(method, mesh, *given, call["out"])

    def has_coordinates(self, submission, sizes):
        calls = [(n, r) for n, each in enumerate(sizes) for r in range(math.prod(each.values()))]
        try:
            found = submission.run(probes.on_meshes, sizes, "coordinates", calls)
        except SubmissionFailed:
            return False
        meshes, got = [probes.Grid(**each) for each in sizes], [call["later"] for call in found]
        return all(is_right("coordinates", meshes[n], r, g) for (n, r), g in zip(calls, got))


AS_ABOVE = "as above: `coordinates` are not right on all meshes. Mend them first, `ranks` may rest on them"  # fmt: skip


def is_right(method, mesh, *given_and_got):
    *given, got = given_and_got
    return expect.difference(got, getattr(mesh, method)(*given)) is None


def cause_of(wrong, mistakes):
    """The words of the first mistake that gives all that is wrong: (what was asked, what came)."""
    for words, mistaken in mistakes:
        if all(expect.difference(got, mistaken(*asked)) is None for asked, got in wrong):
            return words
    return ""


def backwards(mesh):
    return probes.Grid(**dict(reversed(list(zip(mesh.axes, mesh.shape)))))


def names_of(axes):
    return [axes] if isinstance(axes, str) else list(axes)


MISTAKES = {
    "coordinates": [
        ("as if the first axis varied fastest. The last one does: take the digits off from the last axis on", lambda mesh, rank: backwards(mesh).coordinates(rank)),
        ("that is rank % size on every axis: after each digit go on with rank // size", lambda mesh, rank: {axis: rank % mesh[axis] for axis in mesh.axes}),
        ("every axis has a coordinate: on those of size 1 it is 0", lambda mesh, rank: {a: p for a, p in mesh.coordinates(rank).items() if mesh[a] > 1}),
    ],
    "ranks": [
        ("those are all ranks: along no axis a rank is alone", lambda mesh, axes, rank: [*range(mesh.number)]),
        ("the rank itself is a member of its line", lambda mesh, axes, rank: [r for r in mesh.ranks(axes, rank) if r != rank]),
        ("those share the coordinates along these axes; their line differs along them and shares all others",
         lambda mesh, axes, rank: mesh.ranks([a for a in mesh.axes if a not in names_of(axes)], rank)),
        ("those are along the first of the axes alone", lambda mesh, axes, rank: mesh.ranks(names_of(axes)[:1], rank)),
        ("those are along the last of the axes alone", lambda mesh, axes, rank: mesh.ranks(names_of(axes)[-1:], rank)),
        ("those are along them from rank 0: start from the rank that is given", lambda mesh, axes, rank: mesh.ranks(axes, 0)),
        ("as if the first axis varied fastest, and not the last one", lambda mesh, axes, rank: backwards(mesh).ranks(axes, rank)),
        ("those are the lines along each of the axes: a plane has also the ranks that differ along several of them at once",
         lambda mesh, axes, rank: sorted({rank}.union(*(mesh.ranks(axis, rank) for axis in names_of(axes))))),
    ],
}  # fmt: skip


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
    """Where axes but pp have different odd primes: any product says which of them are in it."""
    a, b, c, d = random.sample((3, 5, 7, 11), 4)
    return (
        {"pp": 4, "dp": a, "ep": b, "cp": c, "tp": d},
        {"pp": 2, "dp": b, "ep": 1, "cp": 1, "tp": a},
        {"dp": a, "tp": c},
        {"tp": b, "dp": d, "pp": 1},
        {"pp": 8, "cp": d},
    )


def product(mesh, axes):
    return math.prod(mesh[a] for a in mesh.axes if a in axes and a != "pp")


def as_product(number, mesh):
    """30 on Mesh(dp=3, tp=5): "2 · dp · tp"; "" for what is no product of whole numbers."""
    if not isinstance(number, int) or number < 1:
        return ""
    factors = [a for a in mesh.axes if a != "pp" and mesh[a] > 1 and number % mesh[a] == 0]
    rest = number // product(mesh, factors)
    return " · ".join([str(rest)] * (rest > 1 or not factors) + factors)


def copies(split, partial, mesh):
    """How many ranks hold the same."""
    return product(mesh, set(mesh.axes) - set(split)) * (2 if "pp" in partial else 1)


def stages(mesh):
    return mesh["pp"] if "pp" in mesh.axes else 1


SHARE = "that is how many ranks share one copy: axes of `split` hold different elements, leave them out"  # fmt: skip
SUMMED = "`partial` axes make copies too: the gradient was a part there until it was summed"
ALL_AXES = "copies are along every axis that neither splits it nor is the pipeline, not along `partial` alone"
COPIES = [
    (SHARE, lambda split, partial, mesh: product(mesh, split)),
    (SHARE, lambda split, partial, mesh: product(mesh, split) * (stages(mesh) if "pp" in split else 2)),
    *((SUMMED, lambda split, partial, mesh, two=two: two * product(mesh, {*mesh.axes} - {*split, *partial})) for two in (1, 2)),
    (ALL_AXES, lambda split, partial, mesh: product(mesh, partial)),
    (ALL_AXES, lambda split, partial, mesh: product(mesh, partial) * (2 if "pp" in partial else 1)),
    (ALL_AXES, lambda split, partial, mesh: product(mesh, partial) * (stages(mesh) if "pp" in partial else 1)),
    ("that is all ranks: those along axes of `split` hold different elements", lambda split, partial, mesh: mesh.number),
    *((f"{axis} is left out: where it is not in `split`, all ranks along it hold the same",
       lambda split, partial, mesh, axis=axis: copies({*split, axis}, partial, mesh)) for axis in ("dp", "ep", "cp", "tp")),
]  # fmt: skip
OF_STAGES = [
    ("stages hold different parameters: pp makes no copies", lambda split, partial, mesh: copies(split, partial, mesh) * stages(mesh)),
]  # fmt: skip
TIED = [
    ("the first and the last stage both hold a tied table: two of them", lambda split, partial, mesh: copies(split, partial, mesh) // 2),
    ("two stages hold a tied table, however many stages there are", lambda split, partial, mesh: copies(split, partial, mesh) // 2 * stages(mesh)),
    ("that is the stages alone: each holds the table on as many ranks as the axes that are not in `split` say", lambda split, partial, mesh: 2),
    ("two stages hold a tied table: the factor of pp is 2, and not the number of stages as well", lambda split, partial, mesh: copies(split, partial, mesh) * stages(mesh)),
]  # fmt: skip


class TestCopies(Exercise):
    """How often a parameter is held"""

    name = "copies"
    reference = "minitrain.parallel.hybrid.model:copies"
    hidden = FILES

    def judge(self, submission, tied):
        cases = [
            (words, split.split(), partial.split(), sizes)
            for sizes in large_meshes()
            for words, split, partial in LAYOUTS
            if ("pp" in partial.split()) == tied and (not tied or sizes.get("pp", 1) > 1)
        ]
        lacks = "a mesh may lack axes: `mesh[axis]` only where `axis in mesh.axes`, all others count once"
        frozen = "`split` and `partial` are the parameter's own: read them, change nothing"
        with expect.because({"tuple.index(x)": lacks, "'frozenset' object has no": frozen}):
            found = submission.run(probes.copies_of, [case[1:] for case in cases])
        meshes = [probes.Grid(**sizes) for *_, sizes in cases]
        asked = [((s, p, mesh), got) for (_, s, p, _), mesh, got in zip(cases, meshes, found)]
        wrong = [(a, got) for a, got in asked if expect.difference(got, copies(*a)) is not None]
        words = cause_of(wrong, [*(TIED if tied else OF_STAGES), *COPIES])
        for (name, *_), (a, got) in zip(cases, asked):
            split, partial, mesh = a
            want = copies(*a)
            factors = as_product(got, mesh)
            factors = factors and (factors if factors == str(got) else f"{got} = {factors}")
            told = ": ".join(filter(None, [factors, words]))
            told += f"; {want} = {as_product(want, mesh)}" if factors else ""
            expect.equal(
                got,
                want,
                what=f"{mesh}: {name}, split along {split or 'nothing'}, partial along {partial}",
                hints=[(got, told)] if told else [],
            )

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
        found["own"].append(sum(g.square().sum().item() for g, _ in held))
        found["shared"].append(sum(g.square().sum().item() / c for g, c in held))
        found["inside"].append(sum((g / c).square().sum().item() for g, c in held))
        found["lengths"].append(sum(g.norm().item() / c for g, c in held))
    return found


ALONE = "all-reduce the squares over `lines.world`"
LAST = "added up: squares add up, and the root comes last"
NORMS = [  # (words, the norm): of `sums`, those of `squares` and `of_ranks`, and a rank
    (f"that is this rank's own part: the slices and stages of others are missing, {ALONE}", lambda sums, rank: sums["own"][rank] ** 0.5),
    (f"copies are divided without having been added up: {ALONE}", lambda sums, rank: sums["shared"][rank] ** 0.5),
    *((f"that is added up along {axis} alone: {ALONE}",
       lambda sums, rank, axis=axis: sum(sums["shared"][other] for other in sums["mesh"].ranks(axis, rank)) ** 0.5)
      for axis in ("pp", "dp", "ep", "cp", "tp")),
    ("the number of copies is inside the square: divide the square by it, not the gradient", lambda sums, _: sum(sums["inside"]) ** 0.5),
    *((f"those are the ranks' lengths, {LAST}", lambda sums, _, power=power: sum(s**0.5 for s in sums["shared"]) ** power) for power in (1, 0.5)),
    *((f"those are the parameters' lengths, {LAST}", lambda sums, _, power=power: sum(sums["lengths"]) ** power) for power in (1, 0.5)),
    ("that is the square: the root is missing", lambda sums, _: sums[""]),
    ("that is with 1e-6 more, and this belongs to clipping", lambda sums, _: sums[""] ** 0.5 + 1e-6),
    *(("that is with the squares of the calls before: start from 0 in each", lambda sums, _, way=way: sums["kept"][way] ** 0.5) for way in (0, 1)),
    *((words, lambda sums, _, key=key: sums[key] ** 0.5) for key, words in (
        ("copies", "that adds up every copy: a weight that c ranks hold is counted c times. Divide its square by copies(layout_of(p), lines.mesh)"),
        ("table", "the tied table is counted on both stages that hold it: divide each parameter's square by its own copies(layout_of(p), lines.mesh)"),
        ("stages", "pp is counted as copies: its stages hold different parameters"),
        ("mean", "that is the mean over ranks: slices add up, and only copies are to be divided"),
        ("experts", "experts along ep are different ones: they add up"),
    )),
]  # fmt: skip


def launched(submission, sizes, steps, dtypes=None):
    """(the mesh, each step's (gradients, limit, walked once?) and the ranks' results)."""
    mesh = probes.all_axes(sizes)
    joined = "ranks have different parameters, some of them no gradient: whatever it has, each rank joins one "
    joined += "all-reduce of one number; one without gradients adds 0"
    try:
        results = submission.launch(
            probes.ran, sizes, dtypes or {}, steps, ranks=mesh.number, timeout=10
        )
    except SubmissionFailed as failure:
        if failure.kind not in ("deadlock", "mismatch"):
            raise
        what, *ranks = str(failure).split("\n")  # a line for each rank, up to eight
        raise SubmissionFailed(failure.kind, "\n".join([what, joined, *ranks])) from None
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


def norms_are(sizes, found):
    """Of all steps, on all ranks: a cause is named where it gives all that is wrong."""
    mesh, wrong, kept = probes.all_axes(sizes), [], [0.0, 0.0]
    for call, ((gradients, *_), results) in enumerate(found, 1):
        sums = squares(sizes, gradients) | {"mesh": mesh}
        each = 1, mesh.number  # kept between calls: a rank's own sum, or on every rank the whole
        kept = sums["kept"] = [n * before + sums[""] for n, before in zip(each, kept)]
        for rank, result in enumerate(results):
            got = result["value"].item()
            if expect.difference(got, sums[""] ** 0.5) is not None:
                wrong.append(((sums, rank), got))
                if len(wrong) == 1:
                    what = f"{mesh}, call {call}, the norm on rank {rank}"
                    same = [torch.equal(*two) for _, *two in pairs(mesh, rank, gradients, result)]
                sums |= {} if "own" in sums else of_ranks(mesh, gradients)
    if not wrong:
        return
    ((sums, _), got), words = wrong[0], cause_of(wrong, NORMS)
    is_narrow = any(g.dtype != torch.float64 for g in found[0][0][0].values())
    ratios = [got / sums[""] ** 0.5 for (sums, _), got in wrong]
    if not words and not all(same):
        words = "a `.grad` was changed on the way: gradients stay as they are"
    elif not words and is_narrow and not math.isfinite(got):
        words = "squares of narrow dtypes overflow: square `p.grad.double()`"
    elif not words and all(abs(ratio - 1) < (1e-2 if is_narrow else 1e-5) for ratio in ratios):
        words = "nearly: something is rounded on the way. Square `p.grad.double()`, add up and take the root in float64"
    expect.equal(got, sums[""] ** 0.5, what=what, hints=[(got, words)] if words else [])


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
            for _, results in found:
                for rank, result in enumerate(results):
                    little(mesh, rank, result["ops"])
            norms_are(sizes, found)

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
                    what = f"the gradient of `{name}` on rank {rank}, which computing the norm leaves as it is,"
                    expect.identical(got, whole, what=what, hints=[(whole.square(), SQUARED)])


SQUARED = (
    "its elements are squared now: a method that ends in _ writes into its tensor, and `.double()` of "
    "what is float64 is the same tensor, no copy"
)


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
    reference = "minitrain.parallel.hybrid.model:clip_on_mesh"
    hidden = FILES

    @check(
        points=6,
        title="every `.grad` times one factor, in place: the whole is as long as the limit",
    )
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
        earlier = set()
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
                same = [name for name, whole, got in triples if torch.equal(got, whole)]
                unclipped = self.unclipped(rank, result, triples, same, limit, norm, once, earlier)
                for name, whole, got in triples:
                    what = f"{mesh}, the gradient of `{name}` on rank {rank} after clipping to {limit:.4g}, the whole one being {norm:.4g} long"
                    self.is_clipped(got, whole, limit, norm, mine, unclipped, earlier, what)
                little(mesh, rank, result["ops"])
                returned_the_norm(rank, result, norm, limit, mine)
            earlier.add(limit)

    def unclipped(self, rank, result, triples, same, limit, norm, once, earlier):
        """Words for a gradient that stayed as it was; `same`: the names of those on this rank."""
        if norm <= limit:
            return "the factor decides, limit / (norm + 1e-6), also where the norm is a hair below the limit"
        if len(same) < len(triples):
            clipped = ", ".join(f"`{name}`" for name, *_ in triples if name not in same)
            words = f"it was not clipped, but {clipped} on the same rank: every `.grad` that is not None is multiplied"
            names = list(result["parameters"])
            first = names.index(next((n for n in names if n not in result["gradients"]), names[-1]))
            if {n for n in names[first:] if n in result["gradients"]} == set(same):
                words += f". Those that stayed all come after `{names[first]}`, which has no gradient: pass over such a parameter, and go on"
            return words
        if once:
            return "nothing was clipped. `parameters` can be walked once: make a list of it first"
        if limit == 0 and earlier:
            return "nothing was clipped, though with other limits it was: 0 is a limit like any other, its factor is 0"
        return "nothing was clipped. Multiply every `.grad` by limit / (norm + 1e-6)"

    def is_clipped(self, got, whole, limit, norm, mine, unclipped, earlier, what):
        foreign = "that is clipped by this rank's own norm: ranks clip by different factors, and train apart"
        wide = whole.double()
        hints = [
            (wide, unclipped),
            (wide * limit / mine, foreign),
            (wide * limit / (mine + 1e-6), foreign),
            (wide.clamp(-limit, limit), "that clips each number: one factor for the whole keeps the direction"),
            (wide * limit / wide.norm(), "that clips each parameter by its own norm"),
            (wide * limit / (wide.norm() + 1e-6), "that clips each parameter by its own norm"),
            (wide * limit / norm, "nearly: limit / (norm + 1e-6), so that ours is PyTorch's to the last digit"),
            (wide / (norm + 1e-6), "the factor is limit / norm, not 1 / norm"),
            (wide * norm / limit, "turn the factor round: limit / norm"),
            *((wide * other / (norm + 1e-6), f"that is clipped to {other:.4g}, the limit of an earlier call") for other in earlier),
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
        whole = wholes(sizes)  # half as long again would be the limit
        steps.append((whole, 1.5 * squares(sizes, whole)[""] ** 0.5, False))
        mesh, found = launched(submission, sizes, steps)
        for (gradients, limit, _), results in found:
            norm = squares(sizes, gradients)[""] ** 0.5
            for rank, result in enumerate(results):
                nothing_stayed(mesh, rank, gradients, result)
                for _, whole, got in pairs(mesh, rank, gradients, result):
                    expect.that(
                        expect.difference(got, whole, 0.0) is None,
                        f"rank {rank}: the norm is below the limit of {limit:,.0f}, and the gradients "
                        "changed. Clipping only shortens: a factor above 1 is none",
                    )
                returned_the_norm(rank, result, norm, limit)
                little(mesh, rank, result["ops"])


def returned_the_norm(rank, result, norm, limit, mine=None):
    what = f"rank {rank}: what it returned, the norm before clipping"
    after = "that is the norm after it" if limit < norm + 1e-6 else "that is the limit"
    hints = [
        (limit, after),
        (norm * limit / (norm + 1e-6), after),
        (norm + 1e-6, "that is with the 1e-6 of the factor: return the norm itself"),
        (limit / (norm + 1e-6), "that is the factor"),
        (mine, "that is this rank's own norm: return the whole one's"),
    ]
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
    ({"dp": 2, "tp": 2, "pp": 2}, {"tp": 900, "pp": 30, "dp": 60}, 4),
    ({"a": 8, "b": 2}, {"a": 10, "b": 9}, 4),
    ({"tp": 3, "dp": 4}, {"tp": 7, "dp": 6}, 4),
    ({"tp": 2, "dp": 2, "pp": 4}, {"tp": 15, "dp": 2, "pp": 25}, 4),
)


def edges(mesh, axis):
    """(rank, its next one on the ring) of all ranks."""
    stride = math.prod(mesh.shape[mesh.axes.index(axis) + 1 :])  # from a rank to its next
    for rank in range(mesh.number):
        is_last = rank // stride % mesh[axis] == mesh[axis] - 1
        yield rank, rank + stride * (1 - mesh[axis] if is_last else 1)


def is_far(rank, after, per_node):
    return rank // per_node != after // per_node


def crossing(mesh, sent, per_node, leaves=is_far):
    return sum(s * leaves(*edge, per_node) for axis, s in sent.items() for edge in edges(mesh, axis))  # fmt: skip


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
        lacks = "`sent` may lack axes of the mesh: along those nothing goes, `sent.get(axis, 0)`"
        with expect.because({"KeyError": lacks}):
            calls = submission.run(probes.counted, cases)
        expect.left_alone(calls, cases, ["mesh", "sent", "ranks_per_node"])
        meshes = [probes.Grid(**sizes) for sizes, *_ in cases]
        asked = [((m, *given), c["out"]) for m, (_, *given), c in zip(meshes, cases, calls)]
        wrong = [(a, got) for a, got in asked if expect.difference(got, crossing(*a)) is not None]
        for (mesh, sent, per_node), got in wrong:
            words = cause_of(wrong, TRAFFIC) or self.by_axis(submission, mesh, sent, per_node)
            expect.equal(
                got,
                crossing(mesh, sent, per_node),
                what=f"{mesh} on nodes of {per_node}, sent {sent}: bytes between nodes",
                hints=[(got, words)],
            )

    def by_axis(self, submission, mesh, sent, per_node):
        """Along which axis ranks are miscounted, by what comes for one byte along each alone."""
        sizes = dict(zip(mesh.axes, mesh.shape))
        alone = [{other: float(other == axis) for other in sent} for axis in sent]
        calls = submission.run(probes.counted, [(sizes, each, per_node) for each in alone])
        for axis, call in zip(sent, calls):
            want = crossing(mesh, {axis: 1.0}, per_node)
            if expect.difference(call["out"], want) is not None:
                return (
                    f"with 1 byte along {axis} and 0 along others: got {expect.show(call['out'])}, and {want:.0f} ranks have their next "
                    f"one on another node: {', '.join(str(e[0]) for e in edges(mesh, axis) if is_far(*e, per_node))}"
                )
        return "along each axis alone it is right: they are added up, each with its own sent[axis]"


def first_lines(mesh, sent, per_node):
    """{axis: bytes that leave a node on the line through rank 0}"""
    lines = {axis: mesh.ranks(axis, 0) for axis in sent}
    return {
        axis: s * sum(is_far(*edge, per_node) for edge in edges(mesh, axis) if edge[0] in lines[axis])
        for axis, s in sent.items()
    }  # fmt: skip


def by_line(mesh, sent, count):
    """Where along each axis every rank has `count(its line, rank)` messages that leave."""
    ranks = range(mesh.number)
    return sum(s * count(mesh.ranks(axis, rank), rank) for axis, s in sent.items() for rank in ranks)  # fmt: skip


TRAFFIC = [
    ("on an axis of size 2 the two ranks send to each other, and that is two messages",
     lambda mesh, sent, n: crossing(mesh, {a: s / (1 + (mesh[a] == 2)) for a, s in sent.items()}, n)),
    ("those stay inside: count where the nodes of sender and receiver differ",
     lambda *case: crossing(*case, lambda rank, after, n: rank != after and rank // n == after // n)),
    ("the last of a line sends to the first: close the ring", lambda *case: crossing(*case, lambda rank, after, n: after > rank and is_far(rank, after, n))),
    ("that is the mean of a rank: add up over all ranks", lambda mesh, *rest: crossing(mesh, *rest) / mesh.number),
    ("those are rank 0's lines only: let each rank send, so that all lines count", lambda *case: sum(first_lines(*case).values())),
    ("as if every line crossed as often as the one through rank 0: here they differ, go through all ranks",
     lambda mesh, *rest: sum(own * mesh.number / mesh[axis] for axis, own in first_lines(mesh, *rest).items())),
    ("that lets each rank send to its whole line: on a ring it sends to its next only",
     lambda mesh, sent, n: by_line(mesh, sent, lambda line, rank: sum(is_far(rank, other, n) for other in line))),
    ("each rank sends to its next only: an edge is counted at its sender", lambda *case: 2.0 * crossing(*case)),
    ("a line over two nodes has edges inside them too: look at each sender and its next",
     lambda mesh, sent, n: by_line(mesh, sent, lambda line, rank: any(is_far(rank, other, n) for other in line))),
    ("a rank's node is rank // ranks_per_node: % is its place in it", lambda *case: crossing(*case, lambda rank, after, n: rank % n != after % n)),
    ("there may be more than two nodes: a rank's node is rank // ranks_per_node", lambda *case: crossing(*case, lambda rank, after, n: (rank < n) != (after < n))),
    ("that asks how far apart two ranks are: near ones may sit on two nodes, rank // ranks_per_node says on which",
     lambda *case: crossing(*case, lambda rank, after, n: abs(rank - after) >= n)),
    ("that counts messages: each has sent[axis] bytes", lambda mesh, sent, n: crossing(mesh, dict.fromkeys(sent, 1.0), n)),
    ("that is rounded to whole numbers: sent[axis] need not be one, and counts as it is", lambda mesh, sent, n: crossing(mesh, {a: int(s) for a, s in sent.items()}, n)),
    ("that takes the numbers of `sent` in the order of the mesh's axes: each belongs to its name, sent[axis]",
     lambda mesh, sent, n: crossing(mesh, dict(zip(mesh.axes, sent.values())), n)),
]  # fmt: skip


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
    reference = "minitrain.parallel.mesh:place"
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
        asked = []
        for (sizes, sent, per_node), call in zip(cases, calls):
            got, told = call["out"], f"sizes {sizes}, sent {sent}, nodes of {per_node}"
            is_mesh = isinstance(got, list)
            expect.that(is_mesh, f"{told}: got a {got}; return the Mesh itself, of the best order")
            mesh = probes.Grid(**dict(zip(*got)))
            lost = ", ".join(axis for axis in sizes if axis not in mesh.axes)
            wish = "every axis keeps its own size, only their order changes"
            wish = f"{lost} is missing: the mesh has every axis of `sizes`" if lost else wish
            expect.that(dict(zip(*got)) == sizes, f"{told}: got {mesh}; {wish}")
            asked.append((told, mesh, sizes, sent, per_node))
        for case, (told, mesh, *given) in zip(cases, asked):
            mine, least = crossing(mesh, *given[1:]), min(costs(*given))
            if mine > least:
                (alone,) = submission.run(probes.chosen, [case])
                out = alone["out"]
                is_best = isinstance(out, list) and crossing(probes.Grid(**dict(zip(*out))), *given[1:]) == least  # fmt: skip
                rules = [rule for rule, fits in RULES if all(fits(*each) for _, *each in asked)]
                words = f"each time that is {' and '.join(rules)}; {LEAST}" if rules else LEAST
                raise CheckFailed(
                    f"{told}: {mesh} sends {mine} bytes between nodes, {least} are possible: {KEPT if is_best else words}"
                )


LEAST = "of all orders, keep the one that bytes_between says is least"
KEPT = "this call alone is right: nothing may be kept from one call to the next"


def costs(sizes, sent, per_node):
    return [crossing(mesh, sent, per_node) for mesh in orders_of(sizes)]


def largest(mesh, sent, per_node):
    return max(crossing(mesh, {axis: nbytes}, per_node) for axis, nbytes in sent.items())


def is_sorted(*values):
    return list(values) == sorted(values)


RULES = [  # which all meshes that came follow, the right ones too
    ("the order that was given", lambda mesh, sizes, *_: list(mesh.axes) == list(sizes)),
    ("the chattiest axis last, also where it is longer than a node", lambda mesh, sizes, sent, n: is_sorted(*(sent.get(a, 0) for a in mesh.axes))),
    ("the chattiest axis first", lambda mesh, sizes, sent, n: is_sorted(*(-sent.get(a, 0) for a in mesh.axes))),
    ("first the axes longer than a node, and of the others the chattiest last", lambda mesh, sizes, sent, n: is_sorted(*((sizes[a] <= n, sent.get(a, 0)) for a in mesh.axes))),
    ("the order whose largest axis sends least, but bytes of all axes count together", lambda mesh, *given: largest(mesh, *given[1:]) == min(largest(other, *given[1:]) for other in orders_of(given[0]))),
    ("the order that sends most", lambda mesh, *given: crossing(mesh, *given[1:]) == max(costs(*given))),
]  # fmt: skip


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
