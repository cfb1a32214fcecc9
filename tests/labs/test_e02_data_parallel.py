"""The checks of lab e02: data parallelism, graded by what is sent, and when."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate as running

import torch

from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.parallel.ddp import bucket_groups
from minitrain.words import plural

from .probes import e02_data_parallel as probes

LAB = "e02_data_parallel"
SIZES = {
    "cpu": {
        "preset": "1M", "layers": 2, "batch": 4, "length": 64, "repeats": 5, "ranks": [1, 2, 4, 8],
        "emulated_repeats": 3, "parameters_each": 1800, "tokens_each": 64,
    },
    "test": {"layers": 1, "length": 32, "repeats": 1, "ranks": [1, 8], "emulated_repeats": 1},
    "gpu": {},  # the emulated ranks compute on the CPU, whatever else the machine has
    "multi": {},
}  # fmt: skip
REVEALS = {
    "step_bytes": Reveal(
        "measured",
        "2(N-1)/N · 4P, whatever the batch; counted in rank 0's trace, halved: the run was in float64",
        formula=lambda parameters, ranks: 2 * (ranks - 1) / ranks * 4 * parameters,
    ),
    "hidden": Reveal("emulated", "hidden / (hidden + exposed), of your overlapped step"),
}
DDP_FILE = "minitrain/parallel/ddp.py"
F64 = torch.float64
# Paths of the ranks through the layers: some left out on some ranks, one on all; other orders.
SOME = [probes.WHOLE_PATH, (0, 1, 3, 4), (4, 2, 1)]
NOBODY_USES_3 = [(0, 1, 2, 4), (2, 1, 4), (4, 2, 1, 0)]
OTHER_ORDERS = [probes.WHOLE_PATH, probes.WHOLE_PATH[::-1], (2, 0, 4, 1, 3)]


def call(ranks, *rest, width=6, dtype=F64, paths=None, old=False, again=False, other=False):
    """A call of probes.averaged: a batch of its own for each rank; old: the frozen parameter has a
    gradient from before; again: for the model of the call before; other: which by now trains other
    parameters."""
    batches = [torch.randn(3, width, dtype=dtype) for _ in range(ranks)]
    paths = paths or [probes.WHOLE_PATH] * ranks
    return {"width": width, "dtype": dtype, "batches": batches, "paths": paths, "rest": rest,
            "old": old, "again": again, "other": other}  # fmt: skip


def gradients_of(width, dtype, batches, paths, other=False):
    """Of the sum of these batches' losses, in one process; zeros for what no path uses."""
    model = probes.network(width, dtype, other)
    for batch, path in zip(batches, paths):
        probes.squared(model, batch, path=path).backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def mean_of(own):
    return {name: sum(g[name] for g in own) / len(own) for name in own[0]}


def equal_gradients(results, own, where):
    """Every rank's gradients are the mean of all ranks' own."""
    ranks = len(own)
    for rank, got in enumerate(results):
        for name, want in mean_of(own).items():
            what = f"{where}rank {rank} of {ranks}, gradient of {name}"
            expect.that(
                got.get(name) is not None,
                f"{what}: it is None. Where this rank did not use the parameter its part is zeros, "
                "and the average must be left in `.grad` all the same",
            )
            alone, mine = "that is the rank's own gradient", own[rank][name]
            hints = [
                (want * ranks, "that is the sum over ranks: divide by the number of ranks"),
                (mine, f"{alone}: it was not averaged, or the average was not copied back into `.grad`"),
                (mine / ranks, f"{alone}, divided: it was never added to the others'"),
                (want / ranks, "that is divided by the number of ranks twice (op='avg' divides already)"),
            ]  # fmt: skip
            expect.equal(got[name], want, what=what, hints=hints)


def averaged(submission, calls):
    """The all-reduces of every call, [number][rank], of right averages that touched nothing else."""
    ranks = len(calls[0]["batches"])
    words = (
        "all ranks must make the same all-reduces in the same order and dtype, whatever each of "
        "them used: a parameter without a gradient here sends zeros, in its place"
    )
    with expect.because({expect.HANGS: words}):
        results = submission.launch(probes.averaged, calls, ranks=ranks, timeout=8)
    for number, made in enumerate(calls):
        found, kind = [result[number] for result in results], (made["width"], made["dtype"])
        own = [
            gradients_of(*kind, [batch], [path], made["other"])
            for batch, path in zip(made["batches"], made["paths"])
        ]
        where = f"buckets of {made['rest'][0]} bytes, " if made["rest"] else ""
        where += f"call {number + 1}, " if number else ""
        equal_gradients([one["gradients"] for one in found], own, where)
        is_used_again = any(later["again"] for later in calls[number + 1 : number + 2])
        for rank, one in enumerate(found):
            nothing_else_changed(one, rank, made["old"], is_used_again)
    runs = [relayed.runs(notes, "call", len(calls)) for notes in submission.notes]
    return [[all_reduces_in(run, rank) for rank, run in enumerate(of)] for of in zip(*runs)]


def nothing_else_changed(one, rank, old, is_used_again):
    expect.equal(
        one["weights after"],
        one["weights"],
        0.0,
        what=f"the weights of rank {rank} after the call (only the gradients are averaged)",
    )
    expect.that(
        not old or (one["frozen"] is not None and bool((one["frozen"] == rank).all())),
        f"rank {rank}: the `.grad` of a frozen parameter was changed: leave out what does not require a gradient",
    )
    expect.that(
        is_used_again or expect.difference(one["later"], one["gradients"], 0.0) is None,
        f"rank {rank}: a later call, for another model, changed the gradients of this one: keep no "
        "buffer from call to call",
    )


def all_reduces_in(run, rank):
    """Their bytes, in order."""
    sent = [(op.kind, op.payload_bytes) for op in relayed.operations(run) if op.payload_bytes]
    other = sorted({kind for kind, _ in sent} - {"all_reduce"})
    expect.that(
        not other,
        f"rank {rank} sent by {', '.join(other)}: gradients are averaged by group.all_reduce alone",
    )
    return [nbytes for _, nbytes in sent]


class TestAllReduceGradients(Exercise):
    """Naive data parallelism"""

    name = "all_reduce_gradients"
    reference = "minitrain.parallel.ddp:all_reduce_gradients"
    hidden = (DDP_FILE,)

    @staticmethod
    def one_each(sent, calls):
        for made, ranks in zip(calls, sent):
            model = probes.network(made["width"], made["dtype"], made["other"])
            want = [p.nbytes for p in model.parameters() if p.requires_grad]
            for rank, sizes in enumerate(ranks):
                expect.that(
                    Counter(sizes) == Counter(want),
                    f"rank {rank} made {plural(len(sizes), 'all-reduce')}, of {sizes} bytes; the "
                    f"{len(want)} trainable parameters have {want}\none for each, as it is, none for "
                    "frozen ones; model.parameters() names a tied one once",
                )

    @check(
        points=4, title="every gradient equals that of one process on the joined batch (2, 3 ranks)"
    )
    def test_gradients(self, submission):
        for ranks in (2, 3):
            again = call(ranks, again=True, other=True)
            averaged(submission, [call(ranks), again, call(ranks, width=4, dtype=torch.float32)])

    @check(points=5, title="one all-reduce for each trainable parameter, tied ones once")
    def test_messages(self, submission):
        calls = [call(2), call(2, again=True, other=True)]
        calls.append(call(2, width=5, dtype=torch.float32, old=True))
        self.one_each(averaged(submission, calls), calls)

    @check(points=3, title="a parameter that not every rank used is sent as zeros, in its place")
    def test_unused(self, submission):
        calls = [call(3, paths=paths) for paths in (SOME, NOBODY_USES_3, OTHER_ORDERS)]
        calls.append(call(3, paths=SOME, again=True, other=True))
        self.one_each(averaged(submission, calls), calls)


class TestBucketed(Exercise):
    """Buckets"""

    name = "all_reduce_gradients_bucketed"
    reference = "minitrain.parallel.ddp:all_reduce_gradients_bucketed"
    hidden = (DDP_FILE,)

    @staticmethod
    def calls(ranks, paths=None, exactly=False):
        """Limits from a bucket a parameter to one for all. They are odd, so that no bucket is full
        to the last byte; exactly: two that the first bucket just fits, and just does not, though a
        frozen one lies within it."""
        drawn = [int(torch.randint(*of, ())) for of in ((28, 45), (150, 450))]
        limits = [1, *(2 * n + 1 for n in drawn), 10**6 + 1]
        if exactly:
            sizes = [p.nbytes for p in probes.network().parameters() if p.requires_grad]
            exact = list(running(sizes[::-1]))[int(torch.randint(5, 8, ()))]
            limits += [exact - 1, exact]
        calls = [call(ranks, limit, paths=paths) for limit in limits]
        for other in (False, True):
            calls.append(call(ranks, limits[-1], paths=paths, again=True, other=other))
        return [*calls, call(ranks, 2 * drawn[0] + 1, width=4, dtype=torch.float32, old=True)]

    @staticmethod
    def well_filled(sent, calls, in_order=False):
        """The bytes of every message are those of the buckets; in_order: from the last parameter
        on, and else from either end."""
        for made, ranks in zip(calls, sent):
            (limit,) = made["rest"]
            model = probes.network(made["width"], made["dtype"], made["other"])
            want = [sum(p.nbytes for p in group) for group in bucket_groups(model, limit)]
            forward = filled_forward(model, limit)
            for rank, got in enumerate(ranks):
                text = (
                    f"buckets of {limit} bytes: the all-reduces of rank {rank} were of {got} bytes"
                )
                expect.that(
                    sum(got) == sum(want),
                    f"{text}, {sum(got)} in all, and the gradients have {sum(want)}: each is sent once, "
                    "in its own dtype, a tied one once too, and no frozen one",
                )
                expect.that(
                    got == want
                    or (not in_order and sorted(got) in (sorted(want), sorted(forward))),
                    f"{text}, expected {want}\nfrom the last parameter to the first, fill a bucket until "
                    "the next does not fit (what fills it exactly still fits), and send them in that order",
                )

    @check(points=5, title="every gradient equals that of one process, for buckets of any size")
    def test_gradients(self, submission):
        for ranks in (2, 3):
            averaged(submission, self.calls(ranks, exactly=True))

    @check(points=5, title="as few all-reduces as the bucket size allows")
    def test_count(self, submission):
        calls = self.calls(2, exactly=True)
        self.well_filled(averaged(submission, calls), calls)

    @check(points=3, title="the first bucket holds the last parameters: backward makes those first")
    def test_order(self, submission):
        calls = self.calls(2)
        self.well_filled(averaged(submission, calls), calls, in_order=True)

    @check(points=3, title="a parameter that not every rank used counts as zero")
    def test_unused(self, submission):
        calls = [*self.calls(2, SOME[1:]), call(2, 401, paths=NOBODY_USES_3[:2], old=True)]
        self.well_filled(averaged(submission, calls), calls)


def filled_forward(model, limit):
    """The bytes of the buckets, were they filled from the first parameter on."""
    sizes = []
    for nbytes in (p.nbytes for p in model.parameters() if p.requires_grad):
        if not sizes or sizes[-1] + nbytes > limit:
            sizes.append(0)
        sizes[-1] += nbytes
    return sizes


def step(ranks, width, paths=None, set_to_none=True):
    """A step of probes.wrapped; paths: each rank's, one a microbatch."""
    paths = paths or [[probes.WHOLE_PATH]] * ranks
    batches = [[torch.randn(3, width, dtype=F64) for _ in own] for own in paths]
    return {"batches": batches, "paths": paths, "set_to_none": set_to_none}


def is_complete(name, path, place):
    """Whether a parameter's gradient is, when backward stands above path[place]."""
    if not name.startswith("layers"):
        return True
    users = {0, 1} if name == "layers.0.weight" else {int(name.split(".")[1])}
    uses = [where for where, index in enumerate(path) if index in users]
    return bool(uses) and min(uses) > place


def full_in_line(buckets, path, place):
    """How many buckets are full then, with all that stand before them."""
    full = [all(is_complete(name, path, place) for name, _ in bucket) for bucket in buckets]
    return full.index(False) if False in full else len(full)


def on_their_way(found, buckets, path, where):
    """Each bucket was issued when it and all before it were full, and nobody waited for it."""
    for place in (*reversed(range(len(path))), -1):
        issued, waited = found["seen"].get(place, (0, 0))
        full = full_in_line(buckets, path, place)
        when = "when backward returned" if place < 0 else "while backward still had layers to go"
        expect.that(
            place < 0 or not waited,
            f"{where} waited in the hook for an all-reduce: backward stood still meanwhile, so nothing "
            "is hidden. Issue it with async_op=True, and wait in finish()",
        )
        expect.that(
            issued == full,
            f"{where}: {full} of {len(buckets)} buckets were full and next in line {when}, and "
            f"{issued} sent\nsend in the hook, not in finish(), *while* the next in line is full: a "
            "hook that fills one bucket may free full ones behind it",
        )
    sizes = [sum(nbytes for _, nbytes in bucket) for bucket in buckets]
    expect.that(
        found["sent"] == sizes,
        f"{where} sent {found['sent']} bytes in a step, the buckets in line have {sizes}: each is "
        "sent once, and all ranks send in the order of self.buckets",
    )


def wrapped(submission, plans, ranks, is_overlapped=True):
    """Steps of models that are alive together: right averages, all works waited for, nothing
    sent in no_sync or written into what was under way; is_overlapped: and every bucket sent when it
    was full."""
    words = (
        "all ranks must issue every bucket, in the order of self.buckets: send only the next in "
        "line, `self.buckets[len(self.works)]`; what is missing when finish() comes counts as zero"
    )
    without = "derive the class from Wrapper: it has no_sync"
    with expect.because({expect.HANGS: words, "attribute 'no_sync'": without}):
        results = submission.launch(probes.wrapped, plans, ranks=ranks, timeout=8)
    for rank, result in enumerate(results):
        add_what_was_sent(result, submission.notes[rank], rank)
    for number, plan in enumerate(plans):
        model = probes.network(plan["width"])
        names = {p: (name, p.nbytes) for name, p in model.named_parameters()}
        buckets = [[names[p] for p in g] for g in bucket_groups(model, plan["bucket_bytes"])]
        for index, made in enumerate(plan["steps"]):
            where = f"step {index + 1}, " if index else ""
            found = [result[number][index] for result in results]
            own = [
                gradients_of(plan["width"], F64, *pair)
                for pair in zip(made["batches"], made["paths"])
            ]
            equal_gradients([one["gradients"] for one in found], own, where)
            for rank, one in enumerate(found):
                expect.that(
                    not one["touched"],
                    f"{where}rank {rank}: a buffer that had been sent was written to before its "
                    "work.wait(): until then nothing may touch it; refill `missing` after the waits",
                )
                if is_overlapped:
                    on_their_way(one, buckets, made["paths"][rank][-1], f"{where}rank {rank}")


def add_what_was_sent(result, notes, rank):
    """To each step of each model of a rank, from the relay's notes."""
    steps = [found for turn in zip(*result) for found in turn]  # as the probe takes them
    names = ("no_sync", "backward", "finish")
    stages = (relayed.runs(notes, name, len(steps), names) for name in names)
    for found, alone, backward, finish in zip(steps, *stages):
        sent = len(all_reduces_in(alone, rank))
        expect.that(
            sent == 0,
            f"rank {rank}: {plural(sent, 'all-reduce')} inside `with ddp.no_sync():`, where gradients "
            "only add up: the hook does nothing while self.synchronize is False",
        )
        found["sent"] = all_reduces_in([*backward, *finish], rank)
        places = [*relayed.before_marks(backward)][::-1]
        found["seen"] = {int(place): under_way(run) for place, run in places}
        found["seen"][-1] = under_way(backward)
        expect.that(
            all(relayed.waits([*backward, *finish])),
            f"rank {rank}: finish() returned before all works had been waited for: the gradients may "
            "not have arrived. Call `work.wait()` for each",
        )


def under_way(run):
    """All-reduces issued, and waited for."""
    pairs = zip(relayed.operations(run), relayed.waits(run))
    waited = [is_waited for op, is_waited in pairs if op.payload_bytes]
    return len(waited), sum(waited)


def plan_of(width, bucket_bytes, *steps):
    return {"width": width, "bucket_bytes": bucket_bytes, "steps": steps}


class TestDDP(Exercise):
    """Overlapped with backward"""

    name = "DDP"
    reference = "minitrain.parallel.ddp:DDP"
    hidden = (DDP_FILE,)

    @check(
        points=4, title="every gradient equals that of one process, step after step, of two models"
    )
    def test_gradients(self, submission):
        for ranks in (2, 3):
            plans = []
            for width, limit in ((6, 400), (4, 1)):
                steps = (step(ranks, width, set_to_none=way) for way in (True, True, False))
                plans.append(plan_of(width, limit, *steps))
            wrapped(submission, plans, ranks, is_overlapped=False)

    @check(points=7, title="every full bucket is sent, once, while backward still computes")
    def test_overlap(self, submission):
        limit = int(torch.randint(300, 700, ()))
        kinds = [(6, limit), (6, 10**6), (4, 1)]
        plans = [plan_of(width, nbytes, step(2, width), step(2, width)) for width, nbytes in kinds]
        wrapped(submission, plans, 2)

    @check(points=6, title="ranks that use different layers still send their buckets in one order")
    def test_unused(self, submission):
        for ranks, limit in ((3, 1), (2, 400)):
            paths = [
                [[path] for path in way[:ranks]] for way in (SOME, NOBODY_USES_3, OTHER_ORDERS)
            ]
            steps = [step(ranks, 6), *(step(ranks, 6, way) for way in paths)]
            wrapped(submission, [plan_of(6, limit, *steps)], ranks)

    @check(points=3, title="inside no_sync gradients add up, and nothing is sent")
    def test_no_sync(self, submission):
        whole, short = probes.WHOLE_PATH, (0, 1, 3)
        ways = [[whole, whole, short], [short, whole, whole]], [[whole, short], [whole, whole]]
        plan = plan_of(6, 400, *(step(2, 6, paths) for paths in ways), step(2, 6))
        wrapped(submission, [plan], 2)


class TestAccumulate(Exercise):
    """Accumulation without needless messages"""

    name = "accumulate"
    reference = "minitrain.parallel.ddp:accumulate"
    hidden = (DDP_FILE,)

    @staticmethod
    def accumulated(submission, *counts):
        """(microbatches, what came back), for that many microbatches in each call; the first and
        the last are one tensor, and one call has a tuple: place decides, not what it is."""
        made = [[torch.randn(3 + m, 6, dtype=F64) for _ in range(m)] for m in counts]
        calls = [[*each[:-1], each[0]] for each in made]
        calls[1] = tuple(calls[1])
        words = (
            "the microbatches may come as a list or a tuple, as `chunk` makes it: do not change it"
        )
        with expect.because({"'tuple'": words}):
            (results,) = submission.launch(probes.accumulated, calls, ranks=1)
        for found, run in zip(results, relayed.runs(submission.notes[0], "call", len(calls))):
            found["log"], found["messages"] = relayed.labels(run), all_reduces_in(run, 0)
        return zip(calls, results)

    @check(points=3, title="the gradients are those of one large batch")
    def test_gradients(self, submission):
        for microbatches, found in self.accumulated(submission, 4, 3, 1):
            many, whole = len(microbatches), [probes.WHOLE_PATH]
            expect.that(
                found["length"] == (many, many),
                "microbatches were taken out: the list is the caller's",
            )
            own = [gradients_of(6, F64, [m], whole) for m in microbatches]
            for name, want in mean_of(own).items():
                large = f"that is {many} times too large: divide each loss by the number of microbatches"
                last = "that is the last microbatch's alone: gradients must add up"
                hints = [(want * many, large), (own[-1][name], last), (own[-1][name] / many, last)]
                what = f"microbatches: {many}, gradient of {name}"
                expect.equal(found["gradients"][name], want, what=what, hints=hints)
                if found["sent"][name] is not None:
                    words = "it was divided after backward, when DDP's hooks had sent it already"
                    what = f"gradient of {name}, as it was when the hook sent it"
                    expect.equal(found["sent"][name], want, hints=[(want * many, words)], what=what)

    @check(points=8, title="one after another; only the last of the microbatches synchronizes")
    def test_sync(self, submission):
        for microbatches, found in self.accumulated(submission, 1, 2, 4):
            log, many = found["log"], len(microbatches)
            expect.that(
                "finish" not in log and not found["messages"],
                "it called ddp.finish() or sent something itself: only the hooks of ddp send, in the "
                "last backward, and the caller runs finish()",
            )
            want = [f"{way} {m}" for m in range(many) for way in ("forward", "backward")]
            ran = [f"{way} {which}" for way, which, *_ in log]
            expect.that(
                ran == want,
                f"{many} microbatches ran as {', '.join(ran)}; expected {', '.join(want)}: "
                "loss_of(ddp, microbatch) once for each, in order, and its backward right after it",
            )
            expect.that(
                not any(alive for entry in log for alive in entry[3:]),
                "when a forward began, the graph of the one before was still in memory: let each "
                "microbatch's backward free its graph, and keep no loss that has one",
            )
            sends = [is_sent for _, _, is_sent, *_ in log]
            want = [False] * (2 * many - 2) + [True] * 2
            expect.that(
                sends == want,
                f"outside of no_sync, {', '.join(ran)}: {sends}, expected {want}\nall but the last "
                "microbatch, by its place, run inside ddp.no_sync(), forward and backward",
            )

    @check(points=1, title="it returns the mean loss, without a graph")
    def test_loss(self, submission):
        for microbatches, found in self.accumulated(submission, 3, 4, 1):
            with torch.no_grad():
                losses = [probes.squared(probes.network(), batch) for batch in microbatches]
            got, mean = found["loss"], sum(losses) / len(losses)
            expect.equal(
                torch.tensor(got, dtype=F64) if isinstance(got, float) else got,
                mean,
                what="the loss",
                hints=[
                    (mean * len(losses), "that is the sum: return the mean"),
                    (mean / len(losses), "that is divided by the number of microbatches twice"),
                ],
            )
            expect.that(not found["has graph"], "the loss still has a graph: add up loss.detach()")


class TestMeasured(Experiment):
    """One and two ranks, measured here"""

    name = "measured"
    rests_on = ("all_reduce_gradients", "all_reduce_gradients_bucketed", "DDP")

    @check(points=5, title="each rank sent exactly 2(N-1)/N of its gradients' bytes")
    def test_bytes(self, table):
        for row in table:
            want = 2 * (row["ranks"] - 1) * 4 * row["parameters"] // row["ranks"]
            expect.that(
                abs(row["sent_bytes"] - want) <= 8 * row["all_reduces"] + 8,
                f"{row['variant']} on {row['ranks']} ranks sent {row['sent_bytes']} bytes a step, "
                f"2(N-1)/N · 4 · {row['parameters']} is {want}",
            )

    @check(points=3, title="buckets mean fewer messages than parameters")
    def test_messages(self, table):
        rows, variants = expect.rows(table, "variant", "ranks"), ("naive", "bucketed", "overlapped")
        count = {variant: rows[variant, 2]["all_reduces"] for variant in variants}
        expect.that(
            count["bucketed"] < count["naive"] and count["overlapped"] < count["naive"],
            f"all-reduces a step on 2 ranks: {count}; a bucket should hold several gradients",
        )


class TestOverlap(Experiment):
    """What is exposed, what is hidden"""

    name = "overlap"
    rests_on = ("DDP",)

    @check(points=4, title="naive hides nothing; overlapped sends before backward ends")
    def test_hidden(self, table):
        rows = expect.rows(table, "variant")
        for variant in ("naive", "bucketed"):
            hidden, exposed = rows[variant]["hidden_seconds"], rows[variant]["exposed_seconds"]
            expect.that(
                hidden <= 0.1 * exposed,
                f"{variant} hid {hidden:.2e} s of communication, yet it sends after backward",
            )
        hidden = rows["overlapped"]["hidden_seconds"]
        expect.that(hidden > 0, "overlapped hid nothing: was it measured with your DDP?")

    @check(points=4, title="overlapped waits less than naive")
    def test_exposed(self, table):
        exposed = {row["variant"]: row["exposed_seconds"] for row in table}
        expect.that(
            exposed["overlapped"] < exposed["naive"],
            f"exposed seconds: {exposed}; overlap should leave less of it to wait for. Run the cell again",
        )


class TestScaling(Experiment):
    """Efficiency from 1 to 8 ranks"""

    name = "scaling"
    rests_on = ("DDP",)

    @check(
        points=4,
        title="four fabrics, 1 to 8 ranks; efficiency is the part of the step that computes",
    )
    def test_rows(self, table):
        fabrics = {row["fabric"] for row in table}
        expect.that(len(fabrics) >= 4, f"fabrics {sorted(fabrics)}: four are asked for")
        for row in table:
            want, got = 1 - row["exposed_seconds"] / row["step_seconds"], row["efficiency"]
            what = f"{row['fabric']}, {row['ranks']} ranks: 1 - exposed/step"
            expect.close(got, want, tol=0.01, what=what)
            alone = row["ranks"] > 1 or got > 0.99
            expect.that(alone, f"one rank has nobody to wait for, efficiency {got:.2f}")

    @check(points=5, title="NVLink keeps what Ethernet loses, and overlap never hurts much")
    def test_order(self, table):
        pairs = expect.rows([row for row in table if row["ranks"] == 8], "fabric", "variant")
        at8 = {pair: row["efficiency"] for pair, row in pairs.items()}
        kept = {fabric: value for (fabric, way), value in at8.items() if way == "overlapped"}
        expect.that(
            max(kept.values()) > min(kept.values()) + 0.1,
            f"on 8 ranks the fabrics keep {kept}: they should differ",
        )
        for fabric, value in kept.items():
            naive = at8.get((fabric, "naive"), 0.0)
            expect.that(
                value > naive - 0.1,
                f"{fabric}: {value:.0%} overlapped, {naive:.0%} naive. Close other programs and run it again",
            )


class TestOverlapSpeedup(Question):
    """What overlap is worth"""

    name = "overlap_speedup"
    rests_on = ("overlap",)

    @check(points=5, title="naive step over overlapped step")
    def test_value(self, value, records):
        rows = expect.rows(expect.recorded(records, "overlap"), "variant")
        speedup = rows["naive"]["step_seconds"] / rows["overlapped"]["step_seconds"]
        expect.that(
            abs(value / speedup - 1) < 0.02,
            f"got {value:.3g}: divide the naive row's step_seconds by the overlapped row's",
        )


def slowest(records):
    """The recorded row of 8 overlapped ranks that waits most, and the seconds that it computes."""
    table = expect.recorded(records, "scaling")
    rows = [r for r in table if r["ranks"] == 8 and r["variant"] == "overlapped"]
    expect.that(rows, "your table has no overlapped row with 8 ranks")
    row = min(rows, key=lambda r: r["efficiency"])
    return row, row["step_seconds"] - row["exposed_seconds"]


class TestBottleneck(Question):
    """The bottleneck, from your own trace"""

    name = "bottleneck"
    rests_on = ("scaling",)

    @check(points=5, title="of the slowest fabric on 8 ranks")
    def test_value(self, value, records):
        row, compute = slowest(records)
        is_latency = row["latency_seconds"] > 0.5 * row["exposed_seconds"]
        want = "latency" if is_latency else "bandwidth"
        want = "compute" if compute > row["exposed_seconds"] else want
        expect.that(
            value == want,
            f"got {value!r}. In the row of {row['fabric']} compare compute (step - exposed) with waiting (exposed), "
            "and latency_seconds with half of the waiting",
        )


class TestTokensToHide(Question):
    """Where compute equals communication"""

    name = "tokens_to_hide"
    rests_on = ("scaling",)

    @check(
        points=5, title="tokens a rank at which compute equals communication on the slowest fabric"
    )
    def test_value(self, value, records):
        row, compute = slowest(records)
        times, each = row["communication_seconds"] / compute, SIZES["cpu"]["tokens_each"]
        want = row["tokens"] * times
        hints = [
            (row["tokens"] / times, "that is upside down: more communication needs more tokens"),
            (want * each, f"that is {each} times too many: count as the column `tokens` does"),
            (times, "that is how many times as many: multiply by the tokens that a rank has now"),
        ]
        expect.close(value, want, tol=0.05, what="tokens a rank", hints=hints)
