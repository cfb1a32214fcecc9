"""The checks of lab e02c: schedules graded by their clock, the executor by what it does when."""

from __future__ import annotations

from functools import partial
from itertools import product

import torch

from minitrain.lab.failures import CheckFailed, SubmissionFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.verdicts import in_a_row, told_above
from minitrain.network.fabric import Device, Fabric
from minitrain.network.links import Link, LinkModel
from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.parallel.pipeline.schedules import (
    alternate,
    gpipe,
    interleaved,
    one_forward_one_backward,
)
from minitrain.parallel.pipeline.timeline import bubble_fraction, clocked, executed, peak_live
from minitrain.training.loss import token_weighted_loss
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

    @check(points=3, title="every layer once, stages that differ by one layer at most")
    def test_even(self, submission):
        self.even_splits(submission)

    @check(points=3, title="the ends, which also hold embedding and head, are not the longer ones")
    def test_ends(self, submission):
        with told_above():
            found = self.even_splits(submission)
        for layers, stages, counts in found:
            more = layers % stages
            longer_ends = sum(counts[end] > layers // stages for end in (0, -1)[:stages])
            expect.that(
                more == 0 or longer_ends == max(0, more - (stages - 2)),
                f"{layers} layers in {stages} stages: got {counts}; {more} of them take one more, those in the "
                "middle first: the first stage has the embedding as well, the last one the head",
            )

    def even_splits(self, submission):
        """(layers, stages, counts) of each case: as many counts as stages, and even."""
        cases = cuts()
        calls = submission.run(probes.in_turn, cases)
        found = [(*case, call["out"]) for case, call in zip(cases, calls)]
        for layers, stages, counts in found:
            what = f"{layers} layers in {stages} stages: got {counts}"
            expect.that(
                isinstance(counts, (list, tuple)) and all(isinstance(n, int) for n in counts),
                f"{what}: return a list of whole numbers",
            )
            expect.that(
                len(counts) == stages,
                f"{what}, which are {len(counts)} numbers: give one for each stage, the number of its layers, also if "
                "it has none",
            )
            expect.that(
                sum(counts) >= layers,
                f"{what}, which add up to {sum(counts)}: every layer is in one stage, also those "
                "that remain after layers // stages each",
            )
            expect.that(
                sum(counts) <= layers,
                f"{what}, which add up to {sum(counts)}, {sum(counts) - layers} too many: {plural(layers % stages, 'stage')} with "
                f"{layers // stages + 1}, the others with {layers // stages}",
            )
            expect.that(
                max(counts) - min(counts) <= 1,
                f"{what}: the slowest stage sets the pace of all, so the remainder is shared out, one "
                "layer to a stage",
            )
        expect.left_alone(calls, cases, ("layers", "stages"))
        return found


# ---- schedules ----


def named(case):
    p, m, *v = case
    return f"p={p}, m={m}" + (f", v={v[0]}" if v else "")


def made(submission, cases, ahead=None, name=None):
    """(words, case, schedule) of each case: every operation there exactly once, of this name.

    ahead(p, m, v, rank): the forwards ahead that the text asks for, before they are limited to m·v.
    """
    calls = submission.run(probes.schedules_of, cases)
    for case, call in zip(cases, calls):
        (p, m, v), words, found = (*case, 1)[:3], named(case), call["out"]
        expect.that(
            isinstance(found, dict),
            f"{words}: got a {found}; return Schedule(name, m, v, orders)",
        )
        orders = found["orders"]
        expect.that(
            len(orders) == p,
            f"{words}: orders for {len(orders)} of {p} ranks: one order for each rank",
        )
        for rank, order in enumerate(orders):
            complete(f"{words}, rank {rank}", order, m, v, ahead(p, m, v, rank) if ahead else 0)
        expect.that(
            name is None or tuple(found["kind"]) == (name, m, v),
            f"{words}: got Schedule{tuple(found['kind'])} with its orders: it begins with Schedule{(name, m, v)}, the name, "
            "the microbatches and the chunks of a rank",
        )
        orders = tuple(tuple(Operation(*op) for op in order) for order in orders)
        yield words, case, Schedule("yours", m, v, orders)
    expect.left_alone(calls, (), ())


def complete(words, order, m, v, ahead):
    wanted = {(kind, i, c) for kind, i, c in product("FB", range(m), range(v))}
    first = next((i for i, op in enumerate(order) if op[0] != "F"), len(order))
    bare = [op for op in order if len(op) != 3]
    expect.that(not bare, f"{words}: {bare[:1]} is no Operation: make each by Operation(kind, i)")
    twice = [op for op in order if order.count(op) > 1]
    missing, foreign = sorted(wanted - set(order)), [op for op in order if op not in wanted]
    chunks = f", chunks 0 to {v - 1}" if v > 1 or any(op[2] for op in foreign) else ""
    limit = f". Never more than {m * v} forwards ahead: there are no more"
    expect.that(
        not foreign,
        f"{words}: its list has {listed(foreign)}, which is no operation of it: microbatches are 0 to {m - 1}{chunks}"
        f"{limit if first > m * v else ''}",
    )
    if ahead > m * v and len(missing) == 2 * m * v - ahead:  # as slices from m·v - ahead on leave
        reason = f"{limit}, and the rule gives {ahead}"
    elif v > 1 and missing == [op for op in sorted(wanted) if op[2]]:
        reason = ": each microbatch goes through every chunk of a rank, Operation(kind, i, chunk)"
    elif ahead and missing and all(op[0] == "B" for op in missing):
        reason = ". When no forward is left, the backwards that remain follow"
    else:
        reason = ""
    expect.that(
        not missing, f"{words}: {listed(missing)} never runs; {len(missing)} are missing{reason}"
    )
    kinds, rest = "".join(op[0] for op in order), order[2 * m * v :]
    again = ""
    if kinds == m * v * "FB" + m * v * "B" and rest == order[1 : 2 * m * v : 2]:
        again = ", and so does every backward: with 0 forwards ahead nothing is left after the turns (`list[-0:]` is all of the list)"
    expect.that(not twice, f"{words}: {listed(twice)} runs twice{again}")


def listed(operations):
    return str(Operation(*operations[0])) if operations else ""


def halts(words, schedule, told, *case):
    """It runs to its end; an AssertionError of the clock becomes words for the learner."""
    try:
        clocked(schedule)
    except AssertionError:
        waits = "; ".join(waits_of(schedule)[:4])
        raise CheckFailed(
            f"{words}: deadlock: {waits}. A rank runs its list in order: {told}"
        ) from None


def waits_of(schedule):
    """Of each rank that hangs: its operation, and what that needs; own ones that come later first."""
    done, over, moved = [0] * len(schedule.ranks), set(), True
    while moved:
        moved = False
        for rank, order in enumerate(schedule.ranks):
            while done[rank] < len(order) and over.issuperset(
                schedule.needs(rank, order[done[rank]])
            ):
                over.add((rank, order[done[rank]]))
                done[rank] += 1
                moved = True
    own, others = [], []
    for rank, order in enumerate(schedule.ranks):
        if done[rank] < len(order):
            operation = order[done[rank]]
            whose, what = min(
                set(schedule.needs(rank, operation)) - over, key=lambda n: n[0] != rank
            )
            says = f"rank {rank} is before {operation}, which needs "
            if whose == rank:
                own.append(f"{says}its own {what}, and that comes later in its list")
            else:
                others.append(f"{says}rank {whose}'s {what}")
    return own + others


def bubble_is(words, schedule, told, p, m, v=1):
    try:
        halts(words, schedule, told)
    except CheckFailed:
        raise CheckFailed(f"as above: {words}: deadlock. {told}") from None
    got, want = bubble_fraction(schedule), (p - 1) / (m * v)
    expect.that(
        abs(got - want) < 1e-9,
        f"{words}: the longest bubble is {got:.4g} of a rank's work, it can be {want:.4g}: {told}",
    )


def is_as_told(words, schedule, told, *case):
    expect.that(told is None, f"{words}: {told}")


def ahead_of(order):
    """The forwards before the first backward."""
    return [op.kind for op in order].index("B")


def astray(schedule, want, ahead, turns, others=()):
    """Where a rank's list leaves the one of the text, in words; None where all are the same.

    others: (of rank r another number of forwards ahead, its words); told where they give this very
    schedule.
    """
    forwards, backwards = ([op for op in want.ranks[0] if op.kind == kind] for kind in "FB")

    def is_this(other):
        lists = (alternate(forwards, backwards, max(0, other(r))) for r in range(len(want.ranks)))
        return tuple(map(tuple, lists)) == schedule.ranks

    for rank, (order, wanted) in enumerate(zip(schedule.ranks, want.ranks)):
        place = next((i for i, pair in enumerate(zip(order, wanted)) if pair[0] != pair[1]), None)
        if place is None:
            continue
        got, right = ahead_of(order), ahead_of(wanted)
        if got == right:
            run = " ".join(map(str, order[: place + 1]))
            return f"rank {rank} runs {run}, where {wanted[place]} is next: {turns}"
        known = list(dict.fromkeys(words for other, words in others if is_this(other)))
        mine = f" ({'either ' * (len(known) > 1)}{', or '.join(known)})" if known else ""
        return (
            f"rank {rank}'s list has {plural(got, 'forward')} before its first backward{mine}, expected {right}: "
            f"{ahead}"
        )
    return None


class Lists:
    """A schedule beside that of the text, case after case."""

    ahead, cases = None, staticmethod(lambda: pairs())

    def each(self, submission, right, name=None):
        """right(words, schedule, where it leaves the text's, p, m and v)."""

        def verdict(cases):
            for words, case, schedule in made(submission, cases, self.ahead, name):
                right(words, schedule, self.astray(schedule, *case), *case)

        in_a_row(verdict, self.cases())


def pairs():
    """(p, m): fewer microbatches than ranks, as many, more; one microbatch; one rank."""
    p = drawn(3, 6)
    more = [(p, p), (p, p + drawn(1, 8)), (2, drawn(3, 7)), (p, 1), (1, drawn(2, 5))]
    return [(p, drawn(2, p - 1)), (6, 3), *more]


class TestGPipe(Lists, Exercise):
    """GPipe as data"""

    name = "gpipe"
    reference = "minitrain.parallel.pipeline.schedules:gpipe"
    hidden = FILES

    @check(points=2, title="every operation once, it halts, the bubble is (p-1)/m of the work")
    def test_bubble(self, submission):
        self.each(submission, bubble_is, "gpipe")

    @check(points=4, title="all forwards, then all backwards, each from microbatch 0 on")
    def test_order(self, submission):
        self.each(submission, is_as_told)

    @staticmethod
    def astray(schedule, p, m):
        ahead = f"in GPipe all {m} forwards come first, on every rank"
        turns = "all forwards, then all backwards, each from microbatch 0 on, the same list on every rank"
        return astray(schedule, gpipe(p, m), ahead, turns)


class Test1F1B(Lists, Exercise):
    """1F1B as data"""

    name = "one_forward_one_backward"
    reference = "minitrain.parallel.pipeline.schedules:one_forward_one_backward"
    hidden = FILES

    @check(points=2, title="every operation once, and no rank waits for ever")
    def test_halts(self, submission):
        self.each(submission, halts, "1f1b")

    @check(points=2, title="the bubble is GPipe's")
    def test_bubble(self, submission):
        self.each(submission, bubble_is)

    @check(
        points=10, title="one forward, one backward: rank r never holds more than p-r activations"
    )
    def test_live(self, submission):
        self.each(submission, self.held)

    @staticmethod
    def held(words, schedule, told, p, m):
        got, want = peak_live(schedule), [min(m, p - r) for r in range(p)]
        expect.that(
            got == want,
            f"{words}: at most {got} activations are alive at once, rank by rank; expected {want}: {told}",
        )
        is_as_told(words, schedule, told)

    @staticmethod
    def ahead(p, m, v, rank):
        return p - 1 - rank

    @staticmethod
    def astray(schedule, p, m):
        ahead = "p-1-r forwards ahead, never more than m, and the forward of the first turn"
        turns = (
            "p-1-r forwards ahead, then one forward and one backward in turn, then the backwards that are left, each "
            "from microbatch 0 on"
        )
        limit = "yours are too few where m is small: take r off first, min(p-1-r, m)"
        others = [
            (lambda r: m, "that is GPipe's list, all forwards first"),
            (lambda r: p - r, "yours are p-r: the forward of the first turn is not one of them"),
            (lambda r: p - 2 - r, "yours are p-2-r"),
            (lambda r: p - 1, "yours are p-1 on every rank"),
            (lambda r: r, "yours are r: the last rank is the one without any"),
            (lambda r: min(p, m) - 1 - r, limit),
            (lambda r: min(p - 1, m) - r, limit),
        ]
        return astray(schedule, one_forward_one_backward(p, m), ahead, turns, others)


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


def one_process(data, ranks):
    """Of each microbatch: its summed loss, and each stage's gradients of it."""
    stages = [probes.Toy(index, ranks) for index in range(ranks)]
    found = []
    for batch in probes.batches_of(data):
        x = None
        for stage in stages:
            stage.zero_grad()
            x = stage(x, batch)
        loss = token_weighted_loss(x, batch.targets, 1)
        loss.backward()
        grads = [{n: p.grad for n, p in stage.named_parameters()} for stage in stages]
        found.append((loss.detach(), grads))
    return found


def loss_of(parts, weights):
    return sum(weight * loss for weight, (loss, _) in zip(weights, parts))


def gradient_of(parts, weights, rank, name):
    return sum(weight * grads[rank][name] for weight, (_, grads) in zip(weights, parts))


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


SEND = (
    "send with `isend`, keep what it returns and wait for it after the last operation, since a rank that waits for its "
    "send may wait for one that is sending itself"
)
NEIGHBOURS = (
    "F receives from rank - 1 and sends to rank + 1, B the other way round; the first and the last rank skip what they "
    "have no neighbour for"
)
CAUSES = {
    "stage: x is NoneType": "only rank 0 has nobody to receive from: on every other rank F computes on what "
    "rank - 1 has sent",
    "stage: x is": "on rank 0 a stage begins with the tokens of its batch: `stage(None, batch)`",
    "send takes a tensor, not NoneType": "B sends `x.grad`, which is None unless x is a leaf that required a gradient: "
    "`x.requires_grad_()` before the forward",
    "'NoneType' object has no attribute 'grad'": "on rank 0 the input is None: it has no gradient, and nobody to send it to",
    "'NoneType' object has no attribute 'requires_grad_'": "on rank 0 the input is None",
    "can be implicitly created only for scalar": "the last rank's backward starts from a loss; on any other rank "
    "`out.backward` is given the gradient that rank + 1 sends back",
    " of 1: use a rank from 0 to 0": "a single rank is the first and the last at once: it has no neighbour, and nothing "
    "travels",
}


def launched(submission, steps, **options):
    """Of each rank, step by step; steps: (orders of all ranks, data)."""
    ranks = len(steps[0][0])
    try:
        with expect.because(CAUSES):
            return submission.launch(probes.ran, steps, ranks=ranks, timeout=5, **options)
    except SubmissionFailed as failure:
        text = str(failure)
        if failure.kind not in expect.HANGS or text.splitlines()[-1] in CAUSES.values():
            raise
        if failure.kind == "mismatch":
            words = (
                "both ends of a message are of one microbatch, that of the operation: F of microbatch i receives into a new "
                "`stage.message(batches[i])`, B of microbatch i works on the `x` and `out` of i. Nothing else travels"
            )
        elif "waiting in recv" not in text:
            words = f"all of them wait for a send: {SEND}"
        else:
            words = f"{NEIGHBOURS}; {SEND}" if "waiting in send" in text else NEIGHBOURS
        raise SubmissionFailed(failure.kind, f"{text}\n{words}") from None


def weights_of(data):
    """{words: what microbatch i's summed loss is multiplied by, if that is the mistake}."""
    counts = [int((targets != -100).sum()) for _, targets in data]
    places, m, total = sum(targets.numel() for _, targets in data), len(data), sum(counts)
    return {
        "": [1 / total] * m,
        "padding was counted: a target of -100 is none, `batch.tokens_counted` leaves it out": [1 / places] * m,
        "each microbatch's loss is divided by its own tokens: divide by the count of all microbatches'": [
            1 / n for n in counts
        ],
        "that is the mean of the microbatches' means, in which a token of a half-empty one counts more: "
        "divide each summed loss by the tokens of all": [1 / (m * n) for n in counts],
        "that is the sum over tokens: divide by the count of all of them": [1.0] * m,
        "that is divided by the count of all tokens, and by the number of microbatches, too": [1 / (m * total)] * m,
        "that is divided by the number of microbatches: `total` is the tokens that count in all of them": [1 / m] * m,
        "that is divided by the first microbatch's tokens times their number: microbatches are not equally full": [
            1 / (m * counts[0])
        ] * m,
    }  # fmt: skip


def steps_on(ranks):
    """Two steps in a row, each of its own list, number and lengths of microbatches."""
    first, second = drawn(4, 6), drawn(2, 3)
    return [
        (orders_of(shuffled_1f1b(ranks, first)), data_of(first, uneven=True)),
        (orders_of(last_first(ranks, second)), data_of(second, uneven=False)),
    ]


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

    @check(points=4, title="gradients equal one process (1, 2 and 3 ranks, two steps, float64)")
    def test_gradients(self, submission):
        for ranks in (2, 3, 1):
            gradients = partial(self.gradients_are, submission, ranks)
            in_a_row(gradients, steps_on(ranks), but=(GONE, SCALED))

    @staticmethod
    def gradients_are(submission, ranks, steps):
        results = launched(submission, steps)
        gradients_are(results, steps, ranks)
        for rank, calls in enumerate(results):
            given = [(orders[rank], data) for orders, data in steps]
            for call, (order, _) in zip(calls, given):
                expect.that(
                    call["given"][0] == order,
                    f"rank {rank}: the call changed its `order`, which is the caller's: take nothing out of it",
                )
            expect.left_alone(calls, given, ("order", "batches"))

    @check(points=2, title="the last rank returns the mean loss over all tokens, the others zero")
    def test_loss(self, submission):
        in_a_row(partial(self.losses_are, submission), steps_on(2), but=(BOTH,))

    @staticmethod
    def losses_are(submission, steps):
        first, last = launched(submission, steps)
        wants = []
        for number, (orders, data) in enumerate(steps):
            parts, weights = one_process(data, 2), weights_of(data)
            wants.append(loss_of(parts, weights[""]))
            mine, theirs = last[number]["out"], first[number]["out"]
            expect.that(
                mine is not None and theirs is not None,
                "got None: return the loss, 0 where this rank is not the last one",
            )
            hints = [(loss_of(parts, each), words) for words, each in weights.items() if words]
            share = loss_of(parts, last_alone(data, orders[1], "F"))
            hints.append((share, "that is the last microbatch's share alone: add up all shares"))
            hints.append((wants[number].float().double(), "that is rounded to float32"))
            hints.append((sum(wants), BOTH))
            expect.equal(mine, wants[number], what="the last rank's loss", hints=hints)
            expect.that(theirs == 0, "rank 0 is not the last of 2: it returns zero")

    @check(points=7, title="it runs the list, and waits for nothing that the list does not need")
    def test_clock(self, submission):
        for schedule in (shuffled_1f1b(3, 5), by_twos(2, 4)):
            on_time(submission, schedule)

    @check(points=7, title="on time, a microbatch's activations are freed by its backward")
    def test_live(self, submission):
        schedule = shuffled_1f1b(3, 7)
        with told_above():
            results = on_time(submission, schedule)
        for rank, ((result,), most) in enumerate(zip(results, peak_live(schedule))):
            expect.that(
                result["peak"] >= most,
                f"rank {rank} is noted to hold what {result['peak']} forwards saved, and no way to run the list needs "
                f"less than {most}: leave the stage's own notes as they are",
            )
            expect.that(
                result["peak"] <= most,
                f"rank {rank} held what {result['peak']} forwards saved for backward, the schedule needs "
                f"{most}: a backward frees what its forward saved, unless it retains its graph (`retain_graph`)",
            )
            expect.that(
                result["held"] <= most + 2,
                f"rank {rank} held inputs or outputs of {result['held']} forwards at once, the schedule needs {most}. Either "
                "they are still in your notes after their backward: `pop` a microbatch in its B. Or they are in a send: "
                "send `out.detach()`, since a send under way keeps its tensor, with its graph",
            )


def last_alone(data, order, kind):
    """The weights where only the microbatch counts whose F, or B, is the last of `order`."""
    last = [i for k, i, _ in order if k == kind][-1]
    return [weight * (i == last) for i, weight in enumerate(weights_of(data)[""])]


BOTH = "that has the loss of the call before in it: begin at zero"
GONE = "what `.grad` held before the call is gone: gradients add up in it"
SCALED = "what `.grad` held before the call is scaled with the rest: divide the loss, not what is in `.grad`"
OVERWRITTEN = (
    "the layer's bias has the right gradient, and its weight, whose gradient needs the layer's input, has not: an `x` was "
    "overwritten before its backward. Each microbatch is received into a buffer of its own"
)


def gradients_are(results, steps, ranks):
    """After each step, what came before and this step's mean: gradients add up."""
    before = [{} for _ in range(ranks)]
    for number, (orders, data) in enumerate(steps):
        parts, weights = one_process(data, ranks), weights_of(data)
        last = last_alone(data, orders[0], "B")
        wants = [
            {n: before[rank].get(n, 0.0) + gradient_of(parts, weights[""], rank, n) for n in own}
            for rank, own in enumerate(parts[0][1])
        ]
        found = [calls[number]["gradients"] for calls in results]
        right = [
            {n for n in want if got[n] is not None and expect.difference(got[n], want[n]) is None}
            for got, want in zip(found, wants)
        ]
        for rank, want in enumerate(wants):
            for name in want:
                got = found[rank][name]
                expect.that(
                    got is not None,
                    f"rank {rank}, {name}: no gradient came. B starts from what rank + 1 sends back, and sends "
                    "the gradient of its own input `x` on: `x.requires_grad_()` before the forward",
                )
                given = {w: gradient_of(parts, each, rank, name) for w, each in weights.items()}
                own = given.pop("")
                hints = [(want[name] - own + wrong, words) for words, wrong in given.items()]
                words = "that is the last microbatch's gradient alone: gradients add up in `.grad`"
                hints.append((gradient_of(parts, last, rank, name), words))
                if number:
                    hints.append((own, GONE))
                    hints.append((own + part_of(got - own, before[rank][name]), SCALED))
                if rank and name == "layer.weight" and "layer.bias" in right[rank]:
                    hints.append((got, OVERWRITTEN))
                if rank + 1 < ranks and right[rank + 1 :] == [set(w) for w in wants[rank + 1 :]]:
                    words = (
                        f"the gradients of the ranks behind are right: look at what B of rank {rank} receives, and what "
                        "`out.backward` is given"
                    )
                    hints.append((got, words))
                what = f"rank {rank} of {ranks}, gradient of {name}"
                expect.equal(got, want[name], what=what, hints=hints)
        before = wants


def part_of(got, whole):
    """The multiple of `whole` that is nearest to `got`."""
    return whole * ((got * whole).sum() / whole.square().sum().clamp(min=1e-30))


def on_time(submission, schedule):
    """The results of a step on an emulated clock, where every operation began as soon as the list
    allows it and nothing but its messages travelled."""
    steps = [(orders_of(schedule), data_of(schedule.microbatches, uneven=False))]
    results = launched(submission, steps, fabric=UNITS)
    try:
        clock = executed(results.traces)
    except AssertionError as wrong:
        words = f"{wrong}: each F is the stage's forward, each B a backward through all of it"
        raise CheckFailed(words) from None
    planned = clocked(schedule, send=0.25)
    for rank, (got, want) in enumerate(zip(clock.ranks, planned.ranks)):
        given, run = ([event.operation for event in events] for events in (want, got))
        place = next((i for i, pair in enumerate(zip(given, run)) if pair[0] != pair[1]), len(run))
        reason, twice = (
            "run the list in order",
            [op for op in run if run.count(op) > given.count(op)],
        )
        if twice and set(run) == set(given):
            reason = f"{twice[0]} ran {run.count(twice[0])} times, and B works on the `x` and `out` that F has kept"
        elif place < len(run) and run[place].kind == given[place].kind == "B":
            reason += ". B takes the `x` and `out` of the microbatch that the list names"
        expect.that(
            run == given,
            f"rank {rank} was given {' '.join(map(str, given))}, and ran {' '.join(map(str, run))}: {reason}",
        )
    messages_are(results.traces, schedule)
    late = [
        (theirs.start, rank, theirs, ours)
        for rank, pair in enumerate(zip(clock.ranks, planned.ranks))
        for theirs, ours in zip(*pair)
        if theirs.start > ours.start + 1e-3
    ]
    if late:
        _, rank, theirs, ours = min(late, key=lambda found: found[0])
        raise CheckFailed(
            f"a forward takes 1, a backward 2, a message 0.25: rank {rank} began {ours.operation} at "
            f"{theirs.start:.2f}, it could have at {ours.start:.2f}. {why_late(submission.notes)}"
        )
    forgotten = submission.never_waited()
    expect.that(forgotten is None, f"{forgotten}, for every `isend`, after the last operation")
    return results


def why_late(notes):
    """What the ranks wait for beside what the list needs."""
    for rank, own in enumerate(notes):
        marks = [place for place, note in enumerate(own) if note.label not in (None, "pipeline")]
        within = own[marks[0] : marks[-1]]
        sends = {note.number for note in within if note.kind == "send"}
        if any(note.kind == "barrier" for note in within):
            return f"Rank {rank} waits for all ranks in a `barrier`, which the list does not need"
        if any(note.kind == "wait" and note.number in sends for note in within):
            return (
                f"Rank {rank} waits for a send before its last operation: issue it (`isend`) and wait for it after the "
                "last operation"
            )
    return "Receive just before the operation that needs it, send right after the one that made it, and wait for nothing else"


def messages_are(traces, schedule):
    """One tensor for each operation with a neighbour to work on its result."""
    for rank, trace in enumerate(traces):
        targets = [schedule.target(rank, op) for op in schedule.ranks[rank]]
        want = [target[0] for target in targets if target is not None]
        sent = [op for op in trace.ops if op.kind not in ("recv", "barrier")]
        other = sorted({op.kind for op in sent if op.kind != "send"})
        sizes = sorted({op.payload_bytes for op in sent} - {MESSAGE_BYTES})
        if other:
            known = f" Among them: {', '.join(other)}."
        elif sizes:
            known = f" Some have {sizes[0]} bytes, `out` and `x.grad` have {MESSAGE_BYTES}."
        else:
            known = (
                f" They went to ranks {[op.peer for op in sent]} in turn, the list's go to {want}."
            )
        expect.that(
            [op.peer for op in sent] == want and not sizes,
            f"rank {rank} sent {plural(len(sent), 'message')}; its list asks for {len(want)}, `out` to rank + 1 after F and "
            f"`x.grad` to rank - 1 after B. Nothing else travels.{known}",
        )


# ---- interleaving ----


def triples():
    """(p, m, v): as many microbatches as ranks and more, one chunk, one rank; ahead up to m·v."""
    p, v = drawn(2, 5), drawn(2, 4)
    more = [(p, p, v), (p, p * drawn(2, 3), v), (p, p * drawn(2, 3), 1), (1, drawn(2, 4), v)]
    return [(4, 4, 2), (8, 8, 2), (2, 4, 4), *more]


class TestInterleaved(Lists, Exercise):
    """Interleaved 1F1B as data"""

    name = "interleaved"
    reference = "minitrain.parallel.pipeline.schedules:interleaved"
    hidden = FILES

    cases = staticmethod(triples)

    @check(points=2, title="every operation of every chunk once, and no rank waits for ever")
    def test_halts(self, submission):
        self.each(submission, self.last_chunk_first, "interleaved")

    @staticmethod
    def last_chunk_first(words, schedule, told, p, m, v):
        for rank, order in enumerate(schedule.ranks):
            chunk = order[ahead_of(order)].chunk
            expect.that(
                chunk == v - 1,
                f"{words}, rank {rank}: the first backward is of chunk {chunk}, but gradients "
                f"come from the last stage: chunk {v - 1} goes first",
            )
        halts(words, schedule, told)

    @check(points=2, title="the bubble is (p-1)/(m v) of the work: v times smaller than 1F1B's")
    def test_bubble(self, submission):
        self.each(submission, bubble_is)

    @check(points=10, title="1F1B over chunks: as many forwards ahead as the way there and back")
    def test_order(self, submission):
        self.each(submission, is_as_told)

    @staticmethod
    def ahead(p, m, v, rank):
        return (v - 1) * p + 2 * (p - 1 - rank) if v > 1 else p - 1 - rank

    @classmethod
    def astray(cls, schedule, p, m, v):
        ahead = (
            "rank r runs (v-1)·p + 2·(p-1-r) forwards ahead with v > 1, there and back, p-1-r with v = 1, and never "
            "more than m·v; then comes the forward of the first turn, counted here"
        )
        turns = (
            "p microbatches go through chunk 0, the same p through chunk 1, and so on, backwards the same with the "
            "last chunk first; ahead, then a forward and a backward in turn, then what is left"
        )
        right = partial(cls.ahead, p, m, v)
        others = [
            (lambda r: m * v, "that is all forwards first"),
            (lambda r: (v - 1) * p + p - 1 - r, "yours are (v-1)·p + p-1-r, the way there alone"),
            (lambda r: 2 * (p - 1 - r), "yours are 2·(p-1-r)"),
            (lambda r: v * p + 2 * (p - 1 - r), "yours are v·p + 2·(p-1-r)"),
            (lambda r: p - 1 - r, "yours are p-1-r, as with one chunk"),
            (lambda r: min(right(r), m), "yours are never more than m: a rank has m·v forwards"),
            (lambda r: right(r) + 1, "yours are one more: the forward of the first turn is not one of them"),
        ]  # fmt: skip
        return astray(schedule, interleaved(p, m, v), ahead, turns, others)


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
            expect.that(
                row["live"] == want,
                f"{row['schedule']}, rank {rank}: {row['live']} alive at once, expected {want}",
            )

    @check(points=4, title="the bytes follow the count")
    def test_bytes(self, table):
        held = {(row["schedule"], row["rank"]): row["activation_bytes"] for row in table}
        live = {(row["schedule"], row["rank"]): row["live"] for row in table}
        expect.that(("gpipe", 0) in held and ("1f1b", 0) in held, "both schedules are asked for")
        for (name, rank), nbytes in held.items():
            if name == "1f1b" and ("gpipe", rank) in held:
                want = live["gpipe", rank] / live["1f1b", rank]
                expect.close(
                    held["gpipe", rank] / nbytes,
                    want,
                    tol=0.15,
                    what=f"rank {rank}: bytes that GPipe held over those that 1F1B held",
                )


class TestPlanned(Experiment):
    """What interleaving buys, and its price"""

    name = "planned"
    rests_on = ("gpipe", "one_forward_one_backward", "interleaved")

    @check(points=4, title="the bubble is (p-1)/(v·m+p-1) of the step")
    def test_bubble(self, table):
        expect.that(
            {row["chunks"] for row in table} >= {1, 2, 4}, "1, 2 and 4 chunks are asked for"
        )
        for row in table:
            p, m, v = row["ranks"], row["microbatches"], row["chunks"]
            want = (p - 1) / (v * m + p - 1)
            expect.close(row["bubble"], want, tol=0.01, what=f"bubble of {v} chunks, m={m}")

    @check(points=4, title="a message for every border of stages, there and back")
    def test_messages(self, table):
        for row in table:
            p, m, v = row["ranks"], row["microbatches"], row["chunks"]
            expect.equal(
                row["messages"],
                2 * m * (v * p - 1),
                what=f"messages of {v} chunks, m={m}",
                hints=[(2 * m * (p - 1), "that is without the borders between chunks")],
            )


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
        rows = planned_rows(records, 1)
        want = first_below(rows)
        words = "too many: a smaller m of the table will do" if value > want else "too few"
        if value == first_below(planned_rows(records, 4)):
            words = "that is enough with 4 chunks a rank; the question is about v = 1"
        expect.that(value == want, f"got {value}: {words}")


class TestPrice(Question):
    """The price of interleaving"""

    name = "message_ratio"
    rests_on = ("planned",)

    @check(points=4, title="messages with 4 chunks a rank over those with 1")
    def test_value(self, value, records):
        one, four = planned_rows(records, 1), planned_rows(records, 4)
        want = four[0]["messages"] / one[0]["messages"]
        expect.close(
            value,
            want,
            tol=0.01,
            what="messages with v = 4 over messages with v = 1, at the same m",
            hints=[
                (4, "not quite: the stages have v·p - 1 borders, not v·p. Divide the two rows"),
                (1 / want, "turn the fraction round"),
            ],
        )


class TestMemory(Question):
    """What GPipe would hold"""

    name = "gpipe_bytes"
    rests_on = ("live",)

    @check(points=4, title="activation bytes of rank 0 under GPipe at that many microbatches")
    def test_value(self, value, records):
        m = first_below(planned_rows(records, 1))
        rows = {r["schedule"]: r for r in expect.recorded(records, "live") if r["rank"] == 0}
        expect.that("gpipe" in rows, "the experiment 'live' has no row of gpipe: run it again")
        row = rows["gpipe"]
        each = row["activation_bytes"] / row["microbatches"]
        expect.close(
            value,
            each * m,
            tol=0.05,
            what=f"bytes on rank 0 with {m} microbatches",
            hints=[
                (each, "that is one microbatch's: GPipe holds all of them"),
                (row["activation_bytes"], f"that is with {row['microbatches']} microbatches"),
                (row["activation_bytes"] * m, "that row already holds several microbatches"),
                *[
                    (
                        rows[name]["activation_bytes"] / rows[name]["microbatches"] * m,
                        "that is from 1F1B's row, which never holds all microbatches at once: GPipe does, take its row",
                    )
                    for name in rows
                    if name == "1f1b"
                ],
            ],
        )


class TestSame(Question):
    """What 1F1B's memory buys"""

    name = "same_memory"
    rests_on = ("bubble", "live")

    @check(points=3, title="GPipe's bubble at m = 4 over 1F1B's at m = 32, which hold as much")
    def test_value(self, value, records):
        rows = expect.recorded(records, "bubble")
        share = {(row["schedule"], row["microbatches"]): row["bubble"] for row in rows}
        asked = [("gpipe", 4), ("1f1b", 32)]
        expect.that(
            all(key in share for key in asked),
            "the experiment 'bubble' lacks a row of GPipe with 4 or of 1F1B with 32: run it again",
        )
        few, many = (share[key] for key in asked)
        expect.close(
            value,
            few / many,
            tol=0.02,
            what="GPipe's share with 4 microbatches over 1F1B's with 32",
            hints=[
                (many / few, "turn the fraction round"),
                (few, "that is GPipe's share alone: divide by 1F1B's"),
                (few - many, "that is the difference: how many *times* as large is it?"),
                (
                    1.0,
                    "at the same m the two are alike; here each has the m that its memory allows",
                ),
            ],
        )
