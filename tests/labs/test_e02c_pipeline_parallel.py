"""The checks of lab e02c: schedules graded by their clock, the executor by what it does when."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from types import SimpleNamespace

import torch

from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import Mistake, cause, hints, variant
from minitrain.network.fabric import Device, Fabric
from minitrain.network.links import Link, LinkModel
from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.parallel.pipeline.schedules import one_forward_one_backward
from minitrain.parallel.pipeline.timeline import bubble_fraction, clocked, executed, peak_live
from minitrain.words import plural

from .probes import e02c_pipeline_parallel as probes

LAB = "e02c_pipeline_parallel"
SIZES = {
    "cpu": {
        "width": 64,
        "layers": 4,
        "rows": 2,
        "length": 64,
        "ranks": 4,
        "microbatches": [1, 2, 4, 8, 16, 32],
        "held": 8,
        "planned_ranks": 8,
        "planned": [8, 16, 32, 64, 128],
        "forward_ms": 36.0,
        "message_bytes": 2 * 4096 * 4096,
    },
    "test": {"width": 32, "rows": 1, "length": 16, "microbatches": [1, 2, 4, 32]},
    "gpu": {"width": 512, "length": 512},
    "multi": {"width": 1024, "length": 1024},
}
REVEALS = {
    "gpipe_bubble": Reveal(
        "computed",
        "(p-1)/(m+p-1) of the step, whatever a forward takes; (p-1)/m is the bubble over the work",
        formula=lambda p, m: (p - 1) / (m + p - 1),
    ),
    "held": Reveal(
        "measured",
        "the formula counts microbatches, p against one; in bytes rank 3 keeps the logits besides",
        formula=lambda p: float(p),
    ),
}
FILES = tuple(
    f"minitrain/parallel/pipeline/{name}.py" for name in ("plain", "schedules", "executor")
)


# ---- the stage split ----


def drawn(low, high):
    """A whole number from low to high, another one in each grading."""
    return int(torch.randint(low, high + 1, ()))


def cuts():
    """(layers, stages): nothing remains, a little, all but one; fewer layers than stages."""
    stages, each = drawn(5, 9), drawn(2, 9)
    rests = [0, 1, drawn(2, stages - 2), stages - 2, stages - 1]
    few = [(drawn(1, stages - 2), stages), (each, 1), (2 * each, 2), (2 * each + 1, 2)]
    return [(10, 4), *((each * stages + rest, stages) for rest in rests), *few]


class TestSplit(Exercise):
    """The cut into stages"""

    name = "split_layers"
    reference = "minitrain.parallel.pipeline.schedules:split_layers"
    hidden = FILES

    def even_splits(self, submission):
        """(what, layers, stages, counts) of each case: as many counts as stages, and even."""
        cases = cuts()
        calls = submission.run(probes.in_turn, cases)
        for (layers, stages), counts in zip(cases, (call["out"] for call in calls)):
            what = f"{layers} layers in {stages} stages: got {counts}"
            expect.that(
                isinstance(counts, (list, tuple)) and all(isinstance(n, int) for n in counts),
                f"{what}: return a list of whole numbers",
            )
            expect.that(
                len(counts) == stages,
                f"{what}, which are {len(counts)} numbers: give one for each stage, also if it is 0",
            )
            expect.that(
                sum(counts) == layers,
                f"{what}, which add up to {sum(counts)}: every layer is in one stage, also those that "
                "remain after layers // stages each",
            )
            expect.that(
                max(counts) - min(counts) <= 1,
                f"{what}: the slowest stage sets the pace of all, so the remainder is shared out, one "
                "layer to a stage",
            )
            yield what, layers, stages, counts
        expect.left_alone(calls, cases, ("layers", "stages"))

    @check(points=3, title="every layer once, stages that differ by one layer at most")
    def test_even(self, submission):
        list(self.even_splits(submission))

    @check(points=3, title="the ends, which also hold embedding and head, are not the longer ones")
    def test_ends(self, submission):
        for what, layers, stages, counts in self.even_splits(submission):
            more = layers % stages
            longer_ends = sum(counts[end] > layers // stages for end in (0, -1)[:stages])
            expect.that(
                more == 0 or longer_ends == max(0, more - (stages - 2)),
                f"{what}; {more} of them take one more, those in the middle first: the first stage has "
                "the embedding as well, the last one the head",
            )


# ---- schedules ----


def pairs():
    """(p, m): fewer microbatches than ranks, as many, more; one microbatch; one rank."""
    p = drawn(3, 6)
    more = [(p, p), (p, p + drawn(1, 8)), (2, drawn(3, 7)), (p, 1), (1, drawn(2, 5))]
    return [(p, drawn(2, p - 1)), (6, 3), *more]


class Lists:
    """A schedule, which the text settles to the last operation."""

    cases = staticmethod(pairs)
    called = rule = ""
    mistakes: Sequence[Mistake] = ()

    def made(self, submission):
        """(what, schedule, case) of each: every operation there exactly once."""
        cases = self.cases()
        calls = submission.run(probes.schedules_of, cases)
        for case, call in zip(cases, calls):
            (p, m, v), found = (*case, 1)[:3], call["out"]
            what = f"p={p}, m={m}" + (f", v={v}" if len(case) > 2 else "")
            expect.that(
                isinstance(found, dict),
                f"{what}: got a {found}; return Schedule(name, m, v, orders)",
            )
            expect.equal(
                found["kind"], (self.called, m, v), what=f"{what}, Schedule's name, m and v"
            )
            orders = found["orders"]
            words = f"{what}: {len(orders)} orders, one for each of {p} ranks is needed"
            expect.that(len(orders) == p, words)
            for rank, order in enumerate(orders):
                complete(f"{what}, rank {rank}", order, m, v)
            ranks = tuple(tuple(Operation(*op) for op in order) for order in orders)
            yield what, Schedule(self.called, m, v, ranks), case
        expect.left_alone(calls, (), ())

    def halts(self, submission):
        for what, schedule, case in self.made(submission):
            try:
                clocked(schedule)
            except AssertionError as waiting:
                words = f"{what}: {waiting}. A rank runs its list in order: {self.rule}"
                raise CheckFailed(words) from None
            yield what, schedule, case

    def judge_bubble(self, submission):
        for what, schedule, (p, m, *v) in self.halts(submission):
            got, want = bubble_fraction(schedule), (p - 1) / (m * (v or [1])[0])
            expect.that(
                abs(got - want) < 1e-9,
                f"{what}: the longest bubble is {got:.4g} of a rank's work, it can be {want:.4g}",
            )

    def judge_order(self, submission):
        for what, schedule, case in self.made(submission):

            def ranks_of(f, case=case):
                return f(*case).ranks

            known = cause(schedule.ranks, self.reference, self.mistakes, ranks_of)
            want = ranks_of(variant(self.reference))
            for rank, (order, wanted) in enumerate(zip(schedule.ranks, want)):
                place = next((i for i, op in enumerate(order) if op != wanted[i]), None)
                run = " ".join(map(str, order if place is None else order[: place + 1]))
                expect.that(
                    place is None,
                    f"{what}: rank {rank} runs {run}, where {wanted[place or 0]} is next: "
                    f"{known or self.rule}",
                )


def complete(what, order, m, v):
    wanted = {(kind, i, c) for kind, i, c in product("FB", range(m), range(v))}
    for found, words in (
        ([op for op in order if len(op) != 3], "is no Operation: make each by Operation(kind, i)"),
        ([op for op in order if op not in wanted], f"is none of it: there are {m} microbatches, 0 to {m - 1}, and {v} chunks, so never more than {m * v} forwards ahead"),
        ([op for op in order if order.count(op) > 1], "runs more than once"),
        (sorted(wanted - set(order)), "never runs: each microbatch goes forward and back through every chunk of a rank"),
    ):  # fmt: skip
        first = str(Operation(*found[0])) if found and len(found[0]) == 3 else str(found[:1])
        expect.that(not found, f"{what}: {first} {words}")


class TestGPipe(Lists, Exercise):
    """GPipe as data"""

    name = called = "gpipe"
    reference = "minitrain.parallel.pipeline.schedules:gpipe"
    hidden = FILES
    rule = (
        "all forwards, then all backwards, each from microbatch 0 on, the same list on every rank"
    )

    @check(points=2, title="every operation once, it halts, the bubble is (p-1)/m of the work")
    def test_bubble(self, submission):
        self.judge_bubble(submission)

    @check(points=4, title="all forwards, then all backwards, each from microbatch 0 on")
    def test_order(self, submission):
        self.judge_order(submission)


class Test1F1B(Lists, Exercise):
    """1F1B as data"""

    name = "one_forward_one_backward"
    called = "1f1b"
    reference = "minitrain.parallel.pipeline.schedules:one_forward_one_backward"
    hidden = FILES
    rule = (
        "p-1-r forwards ahead, never more than m, then one forward and one backward in turn, then "
        "the backwards that are left, each from microbatch 0 on"
    )
    mistakes = (
        (("p - r - 1", "m"), "that is GPipe's list, all forwards first"),
        (("p - r - 1", "p - r"), "yours are p-r ahead: the forward of the first turn is not one of them"),
        (("p - r - 1", "p - 1"), "yours are p-1 ahead on every rank"),
        (("p - r - 1", "r"), "yours are r ahead: the last rank is the one without any"),
        (("p - r - 1", "max(0, min(p - 1, m) - r)"), "yours are too few where m is small: take r off first, min(p-1-r, m)"),
    )  # fmt: skip

    @check(points=2, title="every operation once, and no rank waits for ever")
    def test_halts(self, submission):
        list(self.halts(submission))

    @check(points=2, title="the bubble is GPipe's")
    def test_bubble(self, submission):
        self.judge_bubble(submission)

    @check(
        points=10, title="one forward, one backward: rank r never holds more than p-r activations"
    )
    def test_live(self, submission):
        self.judge_order(submission)


# ---- the executor ----


def data_of(m, uneven=True):
    """Microbatches (B, T) of unequal length, and targets of which not all count."""
    made = []
    for i in range(m):
        shape = (2, 3 + i % 3) if uneven else (2, 3)
        tokens, targets = torch.randint(probes.WORDS, shape), torch.randint(probes.WORDS, shape)
        if uneven and i % 2:
            targets[:, 1:] = -100
        made.append((tokens, targets))
    return made


def one_process(f, steps, ranks):
    """Of each step: the loss, and what each stage's `.grad` then holds, with all stages in one."""
    stages = [probes.Toy(index, ranks) for index in range(ranks)]

    def whole(x, batch):
        for stage in stages:
            x = stage(x, batch)
        return x

    whole.device = torch.device("cpu")
    found = []
    for _, data in steps:
        order = [Operation(kind, i) for i in range(len(data)) for kind in "FB"]
        loss = f(SimpleNamespace(rank=0, size=1), order, whole, probes.batches_of(data))
        grads = [{n: p.grad.clone() for n, p in s.named_parameters()} for s in stages]
        found.append((loss.double(), grads))
    return found


def orders_of(schedule):
    return [[tuple(op) for op in order] for order in schedule.ranks]


def last_first(p, m):
    """Forwards first, then the backwards from the last microbatch to the first."""
    order = [Operation("F", i) for i in range(m)] + [Operation("B", i) for i in reversed(range(m))]
    return Schedule("last first", m, 1, (tuple(order),) * p)


def by_twos(p, m):
    """All forwards first, but on the last rank two by two; of two microbatches the later one's
    backward comes first. A rank that waits for a send in between waits for ever."""
    forwards = [Operation("F", i) for i in range(m)]
    backwards = [Operation("B", i ^ 1) for i in range(m)]  # 1 0 3 2
    last = [op for i in range(0, m, 2) for op in forwards[i : i + 2] + backwards[i : i + 2]]
    return Schedule("by twos", m, 1, (*[(*forwards, *backwards)] * (p - 1), tuple(last)))


def shuffled_1f1b(p, m):
    """1F1B with its microbatches in another order."""
    numbers = torch.randperm(m).tolist()
    ranks = one_forward_one_backward(p, m).ranks
    orders = (tuple(op._replace(microbatch=numbers[op.microbatch]) for op in o) for o in ranks)
    return Schedule("1f1b", m, 1, tuple(orders))


def steps_on(ranks):
    """Two steps in a row, each of its own list, number and lengths of microbatches."""
    first, second = drawn(4, 6), drawn(2, 3)
    return [
        (orders_of(shuffled_1f1b(ranks, first)), data_of(first, uneven=True)),
        (orders_of(last_first(ranks, second)), data_of(second, uneven=False)),
    ]


CAUSES = {
    "stage: x is": "on rank 0 a stage begins with the tokens of its batch, `stage(None, batch)`; on "
    "every other rank F computes on what rank - 1 has sent",
    "send takes a tensor, not NoneType": "B sends `x.grad`, which is None unless x is a leaf that "
    "required a gradient: `x.requires_grad_()` before the forward",
    "can be implicitly created only for scalar": "the last rank's backward starts from a loss; on "
    "any other rank `out.backward` is given the gradient that rank + 1 sends back",
    " of 1: use a rank from 0 to 0": "a single rank is the first and the last at once: it has no "
    "neighbour, and nothing travels",
    expect.HANGS: "F receives from rank - 1 and sends to rank + 1, B the other way round; both ends "
    "of a message are of the operation's microbatch. Send with `isend`, and wait after the last "
    "operation: a rank that waits for its send may wait for one that is sending itself",
}
MESSAGE_BYTES = 2 * 3 * probes.WIDTH * 8  # of microbatches of equal length
UNITS = Fabric(
    "units",
    Device("any"),
    LinkModel(Link(0.0, 0.25 / MESSAGE_BYTES)),
    compute_scale=1e-12,
)


class TestRun(Exercise):
    """The executor"""

    name = "run_operations"
    reference = "minitrain.parallel.pipeline.plain:run_operations"
    hidden = FILES

    SHARE, COUNTED = "share(out, batches[i])", "sum(batch.tokens_counted for batch in batches)"
    MISTAKES = (
        ((COUNTED, "sum(batch.targets.numel() for batch in batches)"), "padding was counted: a target of -100 is none, `batch.tokens_counted` leaves it out"),
        ((SHARE, "share_of_loss(batches[i].tokens_counted * len(batches))(out, batches[i])"), "that is the mean of the microbatches' means, in which a token of a half-empty one counts more: divide each summed loss by the tokens of all"),
        ((COUNTED, "1"), "that is the sum over tokens: divide by the count of all of them"),
        ((COUNTED, "len(batches)"), "that is divided by the number of microbatches: `total` is the tokens that count in all of them"),
        (("loss + out.detach()", "out.detach()"), "that is the last microbatch's share alone: add up all shares"),
    )  # fmt: skip

    def launched(self, submission, steps, **options):
        """results[rank][step]; steps: (orders of all ranks, data)."""
        ranks = len(steps[0][0])
        with expect.because(CAUSES):
            return submission.launch(probes.ran, steps, ranks=ranks, timeout=10, **options)

    @check(points=4, title="gradients equal one process (1, 2 and 3 ranks, two steps, float64)")
    def test_gradients(self, submission):
        for ranks in (2, 3, 1):
            steps = steps_on(ranks)
            results = self.launched(submission, steps)
            for rank, calls in enumerate(results):

                def held(f, of=steps, rank=rank, ranks=ranks):
                    return [grads[rank] for _, grads in one_process(f, of, ranks)]

                got, want = [call["gradients"] for call in calls], held(variant(self.reference))
                afresh = [want[0], *held(variant(self.reference), steps[1:])]
                told = [
                    (afresh, "what `.grad` held before the call is gone: gradients add up in it"),
                    *hints(self.reference, self.MISTAKES, held),
                ]
                what = f"rank {rank} of {ranks}, `.grad` after each of two steps"
                expect.equal(got, want, what=what, hints=told)
                given = [(orders[rank], data) for orders, data in steps]
                expect.left_alone(calls, given, ("order", "batches"))

    @check(points=2, title="the last rank returns the mean loss over all tokens, the others zero")
    def test_loss(self, submission):
        steps = steps_on(2)
        first, last = self.launched(submission, steps)

        def losses(f):
            return [loss for loss, _ in one_process(f, steps, 2)]

        told = hints(self.reference, self.MISTAKES, losses)
        want, got = losses(variant(self.reference)), [call["out"] for call in last]
        expect.equal(got, want, what="the last rank's loss of two steps", hints=told)
        zeros = [torch.zeros((), dtype=torch.float64)] * 2
        expect.equal([call["out"] for call in first], zeros, what="rank 0's, which is not the last")

    @check(points=7, title="it runs the list, and waits for nothing that the list does not need")
    def test_clock(self, submission):
        for schedule in (shuffled_1f1b(3, 5), by_twos(2, 4)):
            self.on_time(submission, schedule)

    @check(points=7, title="on time, a microbatch's activations are freed by its backward")
    def test_live(self, submission):
        schedule = shuffled_1f1b(3, 7)
        results = self.on_time(submission, schedule)
        for rank, ((result,), most) in enumerate(zip(results, peak_live(schedule))):
            expect.that(
                result["peak"] == most,
                f"rank {rank} held what {result['peak']} forwards saved for backward, the schedule needs "
                f"{most}: a backward frees what its forward saved, unless it retains its graph (`retain_graph`)",
            )
            expect.that(
                result["held"] <= most + 2,
                f"rank {rank} held inputs or outputs of {result['held']} forwards at once, the schedule "
                f"needs {most}: `pop` a microbatch's notes in its B, and send `out.detach()`, since a "
                "send under way keeps its tensor, with its graph",
            )

    def on_time(self, submission, schedule):
        """The results of a step on an emulated clock, where every operation began as soon as the
        list allows it and nothing but its messages travelled."""
        steps = [(orders_of(schedule), data_of(schedule.microbatches, uneven=False))]
        results = self.launched(submission, steps, fabric=UNITS)
        try:
            clock = executed(results.traces)
        except AssertionError as wrong:
            words = f"{wrong}: each F is the stage's forward, each B a backward through all of it"
            raise CheckFailed(words) from None
        planned = clocked(schedule, send=0.25)
        for rank, (events, want) in enumerate(zip(clock.ranks, planned.ranks)):
            run, given = (" ".join(str(e.operation) for e in each) for each in (events, want))
            words = (
                f"rank {rank} was given {given}, and ran {run}: run the list in order, each once"
            )
            expect.that(run == given, words)
            messages_are(rank, results.traces[rank], schedule)
        late = [
            (theirs.start, rank, theirs.operation, ours.start)
            for rank, pair in enumerate(zip(clock.ranks, planned.ranks))
            for theirs, ours in zip(*pair)
            if theirs.start > ours.start + 1e-3
        ]
        start, rank, operation, due = min(late, default=(0.0, 0, None, 0.0))
        expect.that(
            not late,
            f"a forward takes 1, a backward 2, a message 0.25: rank {rank} began {operation} at "
            f"{start:.2f}, it could have at {due:.2f}. Receive just before the operation that needs it, "
            "send right after the one that made it (`isend`), and wait for nothing else before the end",
        )
        forgotten = submission.never_waited()
        expect.that(forgotten is None, f"{forgotten}, for every `isend`, after the last operation")
        return results


def messages_are(rank, trace, schedule):
    """One tensor for each operation with a neighbour to work on its result."""
    targets = [schedule.target(rank, op) for op in schedule.ranks[rank]]
    want = [("send", target[0], MESSAGE_BYTES) for target in targets if target is not None]
    ops = [op for op in trace.ops if op.kind not in ("recv", "barrier")]
    got = [(op.kind, op.peer, op.payload_bytes) for op in ops]
    odd = next((message for message in got if message not in want), "")
    expect.that(
        got == want,
        f"rank {rank} sent {plural(len(got), 'message')}; its list asks for {len(want)}, `out` to "
        f"rank + 1 after F and `x.grad` to rank - 1 after B. Nothing else travels{odd and f': {odd}'}",
    )


# ---- interleaving ----


def triples():
    """(p, m, v): as many microbatches as ranks and more, one chunk, one rank; ahead up to m·v."""
    p, v = drawn(2, 5), drawn(2, 4)
    more = [(p, p, v), (p, p * drawn(2, 3), v), (p, p * drawn(2, 3), 1), (1, drawn(2, 4), v)]
    return [(4, 4, 2), (8, 8, 2), (2, 4, 4), *more]


class TestInterleaved(Lists, Exercise):
    """Interleaved 1F1B as data"""

    name = called = "interleaved"
    reference = "minitrain.parallel.pipeline.schedules:interleaved"
    hidden = FILES
    cases = staticmethod(triples)
    rule = (
        "p microbatches go through chunk 0, the same p through chunk 1, and so on, backwards the same "
        "with the last chunk first; (v-1)·p + 2·(p-1-r) forwards ahead with v > 1, p-1-r with v = 1, "
        "never more than m·v, then a forward and a backward in turn, then what is left"
    )
    AHEAD = "ahead + 2 * (p - r - 1)"
    mistakes = (
        ((AHEAD, "m * v"), "that is all forwards first"),
        ((AHEAD, "ahead + p - r - 1"), "yours are (v-1)·p + p-1-r ahead, the way there alone"),
        ((AHEAD, "2 * (p - r - 1)"), "yours are 2·(p-1-r) ahead"),
        ((AHEAD, "p - r - 1"), "yours are p-1-r ahead, as with one chunk"),
        ((AHEAD, "ahead + 2 * (p - r - 1) + 1"), "yours are one more ahead: the forward of the first turn is not one of them"),
    )  # fmt: skip

    @check(points=2, title="every operation of every chunk once, and no rank waits for ever")
    def test_halts(self, submission):
        list(self.halts(submission))

    @check(points=2, title="the bubble is (p-1)/(m v) of the work: v times smaller than 1F1B's")
    def test_bubble(self, submission):
        self.judge_bubble(submission)

    @check(points=10, title="1F1B over chunks: as many forwards ahead as the way there and back")
    def test_order(self, submission):
        self.judge_order(submission)


# ---- experiments ----


class TestBubble(Experiment):
    """The bubble on the emulated clock"""

    name = "bubble"
    rests_on = ("gpipe", "one_forward_one_backward", "run_operations")

    @check(points=4, title="both schedules on 4 ranks, 1 to 16 microbatches or more")
    def test_rows(self, table):
        for row in table:
            want = 1 - row["busy_ms"] / row["step_ms"]
            expect.close(row["bubble"], want, tol=0.01, what="the bubble, 1 - busy/step")
        for name in ("gpipe", "1f1b"):
            counts = {row["microbatches"] for row in table if row["schedule"] == name}
            expect.that(
                len(counts) >= 4 and max(counts, default=0) >= 16,
                f"'{name}' was measured with {sorted(counts)} microbatches: 1, 2, 4, 8 and 16 at least",
            )

    @check(points=5, title="never below (p-1)/(m+p-1), and near it: messages cost the rest")
    def test_formula(self, table):
        for row in table:
            p, m = row["ranks"], row["microbatches"]
            formula = (p - 1) / (m + p - 1)
            words = f"{row['schedule']}, {m} microbatches: bubble {row['bubble']:.3f}, (p-1)/(m+p-1) is {formula:.3f}"
            expect.that(
                row["bubble"] > formula - 0.005,
                f"{words}. No schedule of these two can be faster: is every microbatch in it?",
            )
            expect.that(
                row["bubble"] < formula + 0.08,
                f"{words}: the rest is more than messages cost here. Was your executor measured?",
            )


class TestLive(Experiment):
    """Activations held, GPipe against 1F1B"""

    name = "live"
    rests_on = ("gpipe", "one_forward_one_backward", "run_operations")

    @check(points=4, title="GPipe holds every microbatch on every rank, 1F1B p-r of them")
    def test_count(self, table):
        for row in table:
            p, m, rank = row["ranks"], row["microbatches"], row["rank"]
            want = m if row["schedule"] == "gpipe" else min(m, p - rank)
            what = f"{row['schedule']}, rank {rank}: alive at once"
            expect.equal(row["live"], want, what=what)

    @check(points=4, title="the bytes follow the count")
    def test_bytes(self, table):
        rows = expect.rows(table, "schedule", "rank")
        for rank in sorted({0} | {row["rank"] for row in table if row["schedule"] == "1f1b"}):
            many, few = rows["gpipe", rank], rows["1f1b", rank]
            ratio = many["activation_bytes"] / few["activation_bytes"]
            what = f"rank {rank}: bytes that GPipe held over those that 1F1B held"
            expect.close(ratio, many["live"] / few["live"], tol=0.15, what=what)


class TestPlanned(Experiment):
    """What interleaving buys, and its price"""

    name = "planned"
    rests_on = ("gpipe", "one_forward_one_backward", "interleaved")

    @check(points=4, title="the bubble is (p-1)/(v·m+p-1) of the step")
    def test_bubble(self, table):
        chunks = {row["chunks"] for row in table}
        expect.that(chunks >= {1, 2, 4}, "1, 2 and 4 chunks are asked for")
        for row in table:
            p, m, v = row["ranks"], row["microbatches"], row["chunks"]
            want = (p - 1) / (v * m + p - 1)
            expect.close(row["bubble"], want, tol=0.01, what=f"bubble of {v} chunks, m={m}")

    @check(points=4, title="a message for every border of stages, there and back")
    def test_messages(self, table):
        for row in table:
            p, m, v = row["ranks"], row["microbatches"], row["chunks"]
            told = [(2 * m * (p - 1), "that is without the borders between chunks")]
            what = f"messages of {v} chunks, m={m}"
            expect.equal(row["messages"], 2 * m * (v * p - 1), what=what, hints=told)


# ---- questions ----


def planned_rows(records, chunks):
    return [row for row in expect.recorded(records, "planned") if row["chunks"] == chunks]


def first_below(rows):
    below = [row["microbatches"] for row in rows if row["bubble"] < 0.1]
    expect.that(below, "no row of your table has a bubble under 10%")
    return min(below)


class TestEnough(Question):
    """Enough microbatches"""

    name = "enough_microbatches"
    rests_on = ("bubble",)

    @check(points=4, title="the smallest m of your table with a bubble under 10%, v = 1")
    def test_value(self, value, records):
        want, of_four = (first_below(planned_rows(records, chunks)) for chunks in (1, 4))
        words = "too many: a smaller m of the table will do" if value > want else "too few"
        if value == of_four:
            words = "that is enough with 4 chunks a rank; the question is about v = 1"
        expect.that(value == want, f"got {value}: {words}")


class TestPrice(Question):
    """The price of interleaving"""

    name = "message_ratio"
    rests_on = ("planned",)

    @check(points=4, title="messages with 4 chunks a rank over those with 1")
    def test_value(self, value, records):
        one, four = planned_rows(records, 1), planned_rows(records, 4)
        expect.that(one and four, "the experiment 'planned' has no row of 1 or of 4 chunks")
        want = four[0]["messages"] / one[0]["messages"]
        told = [
            (4, "not quite: the stages have v·p - 1 borders, not v·p. Divide the two rows"),
            (1 / want, "turn the fraction round"),
        ]
        what = "messages with v = 4 over messages with v = 1, at the same m"
        expect.close(value, want, tol=0.01, what=what, hints=told)


class TestMemory(Question):
    """What GPipe would hold"""

    name = "gpipe_bytes"
    rests_on = ("live",)

    @check(points=4, title="activation bytes of rank 0 under GPipe at that many microbatches")
    def test_value(self, value, records):
        m = first_below(planned_rows(records, 1))
        rows = expect.rows(expect.recorded(records, "live"), "schedule", "rank")
        gpipe, other = (
            rows[name, 0]["activation_bytes"] / rows[name, 0]["microbatches"]
            for name in ("gpipe", "1f1b")
        )
        whole = rows["gpipe", 0]["activation_bytes"]
        told = [
            (gpipe, "that is one microbatch's: GPipe holds all of them"),
            (whole, f"that is with {rows['gpipe', 0]['microbatches']} microbatches"),
            (whole * m, "that row already holds several microbatches"),
            (other * m, "that is from 1F1B's row, which never holds all microbatches at once: take GPipe's"),
        ]  # fmt: skip
        what = f"bytes on rank 0 with {m} microbatches"
        expect.close(value, gpipe * m, tol=0.05, what=what, hints=told)


class TestSame(Question):
    """What 1F1B's memory buys"""

    name = "same_memory"
    rests_on = ("bubble", "live")

    @check(points=3, title="GPipe's bubble at m = 4 over 1F1B's at m = 32, which hold as much")
    def test_value(self, value, records):
        rows = expect.rows(expect.recorded(records, "bubble"), "schedule", "microbatches")
        few, many = rows["gpipe", 4]["bubble"], rows["1f1b", 32]["bubble"]
        told = [
            (many / few, "turn the fraction round"),
            (few, "that is GPipe's share alone: divide by 1F1B's"),
            (few - many, "that is the difference: how many *times* as large is it?"),
            (1.0, "at the same m the two are alike; here each has the m that its memory allows"),
        ]
        what = "GPipe's share with 4 microbatches over 1F1B's with 32"
        expect.close(value, few / many, tol=0.02, what=what, hints=told)
