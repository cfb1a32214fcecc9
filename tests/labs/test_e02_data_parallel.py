"""The checks of lab e02: data parallelism, graded by what is sent, and when."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial, reduce
from itertools import accumulate as running

import torch

from minitrain.lab.failures import CheckFailed, SubmissionFailed
from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.verdicts import as_above, in_a_row, is_right
from minitrain.words import plural

from .probes import e02_data_parallel as probes

LAB = "e02_data_parallel"
SIZES = {
    "cpu": {
        "preset": "1M",
        "layers": 2,
        "batch": 4,
        "length": 64,
        "repeats": 5,
        "ranks": [1, 2, 4, 8],
        "emulated_repeats": 3,
        "parameters_each": 1800,
        "tokens_each": 64,
    },
    "test": {"layers": 1, "length": 32, "repeats": 1, "ranks": [1, 8], "emulated_repeats": 1},
    "gpu": {},  # the emulated ranks compute on the CPU, whatever else the machine has
    "multi": {},
}
REVEALS = {
    "step_bytes": Reveal(
        "measured",
        "2(N-1)/N · 4P, whatever the batch; counted in rank 0's trace, halved: the run was in float64",
        formula=lambda parameters, ranks: 2 * (ranks - 1) / ranks * 4 * parameters,
    ),
    "hidden": Reveal("emulated", "hidden / (hidden + exposed), of your overlapped step"),
}
DDP_FILE = "minitrain/parallel/ddp.py"
KEPT = (
    "each of these calls is right where it is alone: something is kept from one call to the next (a list of "
    "parameters, a plan, a buffer), and must be made anew in each"
)


def each_anew(right: Callable[[list], None], calls: list) -> None:
    """right(calls), all in one launch; a call alone is the first of its model."""

    def verdict(some: list) -> None:
        right([{**some[0], "again": False}, *some[1:]])

    in_a_row(verdict, calls, KEPT)


def call(ranks, *rest, width=6, dtype=torch.float64, paths=None, old=False, again=False,
         other=False):  # fmt: skip
    """A call of probes.averaged: a batch of its own for each rank; old: the frozen parameter has a
    gradient from before; again: for the model of the call before; other: which by now trains other
    parameters."""
    batches = [torch.randn(3, width, dtype=dtype) for _ in range(ranks)]
    paths = paths or [probes.WHOLE_PATH] * ranks
    return {"width": width, "dtype": dtype, "batches": batches, "paths": paths, "rest": rest,
            "old": old, "again": again, "other": other}  # fmt: skip


def trainable(width, dtype=torch.float64, other=False, frozen=False):
    """(name, bytes) of each, tied ones once, in order of registration; frozen: those too."""
    named = probes.network(width, dtype, other).named_parameters()
    return [(name, p.nbytes) for name, p in named if p.requires_grad or frozen]


def gradients_of(width, dtype, batches, paths, other=False):
    """Of the sum of these batches' losses, in one process; zeros for what no path uses."""
    model = probes.network(width, dtype, other)
    for batch, path in zip(batches, paths):
        probes.squared(model, batch, path=path).backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad
            for n, p in model.named_parameters() if p.requires_grad}  # fmt: skip


def own_gradients(made):
    """Each rank's, before any is averaged."""
    width, dtype = made["width"], made["dtype"]
    pairs = zip(made["batches"], made["paths"])
    return [gradients_of(width, dtype, [batch], [path], made["other"]) for batch, path in pairs]


def mean_of(own):
    return {name: sum(g[name] for g in own) / len(own) for name in own[0]}


def twins(results, mean, name):
    """In words: where another parameter has the same numbers for its gradient, and must not."""
    for rank, got in enumerate(results):
        mine = got.get(name)
        for other in mean if isinstance(mine, torch.Tensor) else ():
            same = expect.difference(got.get(other), mine, 0.0) is None
            if other != name and same and all(z.any() for z in (mine, mean[other], mean[name])):
                return f"on rank {rank} that of {other} has the same numbers: two share one tensor, each needs its own"
    return ""


def mixed_up(got, mean, name):
    """Whether gradients of one shape have gone to one another: only their sum is right."""
    alike = [other for other in mean if mean[other].shape == mean[name].shape]
    if not all(isinstance(got.get(other), torch.Tensor) for other in alike):
        return False
    total, want = sum(got[other] for other in alike), sum(mean[other] for other in alike)
    return len(alike) > 1 and expect.difference(total, want) is None


MIXED = (
    "gradients of different parameters were averaged with each other: all ranks must send in one "
    "order, whatever each of them used"
)
ROUNDED = (
    "right to 5 digits and not to 10, as where float32 is on the way: send the gradient in its own "
    "dtype"
)


STALE = (
    "that is as if each rank that did not use it had sent what its buffer held from the step before: what is missing "
    "when finish() comes goes through take(), which writes zeros there"
)
WIPED = (
    "that is all zeros after finish(): each `.grad` is a view of its bucket's buffer, so zeros written into the "
    "buffer are the gradient"
)


def equal_gradients(results, own, where="", before=None):
    """Every rank's gradients are the mean of all ranks' own; before: of DDP, the averages of the
    step before, nothing in the first."""
    mean, ranks = mean_of(own), len(own)
    weights = dict(probes.network(len(mean["layers.0.bias"])).named_parameters())
    for rank, got in enumerate(results):
        for name, want in mean.items():
            unused = "A parameter that this rank did not use counts as zero in the average; the other ranks have a part of it, and the"
            expect.that(
                got.get(name) is not None,
                f"{where}rank {rank}, {name}: its gradient is None. {'The' if own[rank][name].any() else unused} average "
                "must be left in `.grad`",
            )
            if expect.difference(got[name], want) is None:
                continue
            users = sum(bool(gradients[name].any()) for gradients in own)
            hints = []
            if before is not None:
                stale = (ranks - users) * before.get(name, torch.zeros_like(want))
                hints = [(torch.zeros_like(want), WIPED), (want + stale, STALE)]
            hints += [
                (want * ranks, "that is the sum over ranks: divide by the number of ranks"),
                (
                    want * ranks / max(users, 1),
                    f"that is the mean of the {users} ranks that used it: one that did not counts as zero, so "
                    "divide by the number of all ranks",
                ),
                (
                    own[rank][name],
                    "that is the rank's own gradient: it was never averaged with the others', "
                    "or the average was not copied back into `.grad`",
                ),
                (
                    own[rank][name] / ranks,
                    "that is the rank's own gradient, divided: it was never added to the others'",
                ),
                (
                    want / ranks,
                    "that is divided by the number of ranks twice (op='avg' divides already)",
                ),
                (
                    weights[name].detach().to(want.dtype),
                    "those are the weights: a hook is handed the *parameter*, its gradient is parameter.grad",
                ),
            ]
            if expect.difference(got[name], want, 2e-5) is None:
                hints.append((got[name], ROUNDED))
            if words := twins(results, mean, name):
                hints.append((got[name], words))
            if mixed_up(got, mean, name):
                hints.append((got[name], MIXED))
            what = f"{where}rank {rank} of {ranks}, gradient of {name}"
            expect.equal(got[name], want, what=what, hints=hints)


ALL_REDUCE = r"is in all_reduce\(\w+\) of (\w+) (\[[^]]*\])"
TWO_ENDS = re.compile(rf"{ALL_REDUCE}, but rank \d+ {ALL_REDUCE}")


def in_two_dtypes(report, dtypes):
    """In words: where the two ends of a mismatch differ in nothing but the dtype; dtypes: of the
    models."""
    ends = TWO_ENDS.search(report)
    if ends is None or ends[1] == ends[3] or ends[2] != ends[4]:
        return ""
    here = f", here {str(*dtypes).removeprefix('torch.')}" if len(dtypes) == 1 else ""
    return (
        f"of one shape, but {ends[1]} on one rank and {ends[3]} on the other: all ranks send in the dtype "
        f"of the parameters{here}"
    )


def averaged(submission, calls):
    """results[rank][number of the call]; a hang is told its likely cause."""
    ranks = len(calls[0]["batches"])
    words = "all ranks must make the same all-reduces in the same order, whatever each of them used"
    missing = "a frozen parameter has no gradient: leave out what does not require one"
    zeros = ""
    if any(path != probes.WHOLE_PATH for made in calls for path in made["paths"]):
        missing = "a rank without this gradient must contribute zeros"
        words += f": {missing}, in the place that it has in this order"
        words += ", and they take their room in its bucket" if calls[0]["rest"] else ""
        zeros = ", also the zeros of a rank without this gradient: `torch.zeros_like(parameter)`"
    try:
        results = submission.launch(probes.averaged, calls, ranks=ranks, timeout=8)
    except SubmissionFailed as failure:
        other = in_two_dtypes(str(failure), {made["dtype"] for made in calls})
        with expect.because({expect.HANGS: other + zeros if other else words, "NoneType": missing}):
            raise
    for result, notes in zip(results, submission.notes):
        for one, run in zip(result, relayed.runs(notes, "call", len(calls))):
            one["sent"] = sent_in(run)
    return results


def sent_in(run):
    """(kind, bytes) of what it sent."""
    ops = relayed.operations(run)
    return [(op.kind, op.payload_bytes) for op in ops if op.payload_bytes]


def right_averages(results, calls):
    """Values of every call, and nothing touched but the gradients."""
    for number, made in enumerate(calls):
        own = own_gradients(made)
        found = [result[number] for result in results]
        where = "" if number == 0 else "called again, for another model: "
        if made["again"] and made["other"]:
            where = "called again, for a model whose trainable parameters are now others: "
        where = f"buckets of {made['rest'][0]} bytes, {where}" if made["rest"] else where
        equal_gradients([one["gradients"] for one in found], own, where)
        is_used_again = any(later["again"] for later in calls[number + 1 : number + 2])
        for rank, one in enumerate(found):
            nothing_else_changed(one, rank, made["old"], is_used_again)


def right_calls(submission, calls):
    right_averages(averaged(submission, calls), calls)


def nothing_else_changed(one, rank, old, is_used_again):
    for name, before in one["weights"].items():
        expect.that(
            torch.equal(one["weights after"][name], before),
            f"rank {rank}: the weights of {name} were changed: only the gradients are averaged",
        )
    expect.that(
        not old or (one["frozen"] is not None and bool((one["frozen"] == rank).all())),
        f"rank {rank}: the `.grad` of a frozen parameter was changed: leave out what does not require a gradient",
    )
    for name, before in one["gradients"].items():
        expect.that(
            is_used_again or expect.difference(one["later"][name], before, 0.0) is None,
            f"rank {rank}: a later call, for another model, changed the gradients of this one: "
            "keep no buffer from call to call",
        )


def listed(sent):
    return ", ".join(f"{kind} of {nbytes} bytes" for kind, nbytes in sent) or "nothing"


def only_all_reduces(sent, rank):
    """Their bytes, one after the other."""
    other = [op for op in sent if op[0] != "all_reduce"]
    expect.that(
        not other,
        f"rank {rank} sent by other ways than all-reduce: {listed(other)}. Gradients are averaged by "
        "group.all_reduce alone",
    )
    return [nbytes for _, nbytes in sent]


# Paths of the ranks through the layers: some left out on some ranks, one on all; other orders.
SOME = [probes.WHOLE_PATH, (0, 1, 3, 4), (4, 2, 1)]
NOBODY_USES_3 = [(0, 1, 2, 4), (2, 1, 4), (4, 2, 1, 0)]
OTHER_ORDERS = [probes.WHOLE_PATH, probes.WHOLE_PATH[::-1], (2, 0, 4, 1, 3)]


class TestAllReduceGradients(Exercise):
    """Naive data parallelism"""

    name = "all_reduce_gradients"
    reference = "minitrain.parallel.ddp:all_reduce_gradients"
    hidden = (DDP_FILE,)

    @staticmethod
    def one_each(results, calls, more=False):
        """more: a message too many, as of a frozen parameter, is another check's."""
        for number, made in enumerate(calls):
            kind = made["width"], made["dtype"], made["other"]
            want = [nbytes for _, nbytes in trainable(*kind)]
            for rank, result in enumerate(results):
                sizes = only_all_reduces(result[number]["sent"], rank)
                extra, lacking = Counter(sizes) - Counter(want), Counter(want) - Counter(sizes)
                if more and not lacking:
                    continue
                beyond = "" if lacking else f", those of {sorted(extra.elements())} bytes too many"
                expect.that(
                    len(sizes) == len(want),
                    f"rank {rank} made {plural(len(sizes), 'all-reduce')} for {len(want)} trainable parameters{beyond}: "
                    "one each, none for frozen ones, and model.parameters() names a tied one once",
                )
                expect.that(
                    not extra,
                    f"rank {rank} made all-reduces of {sizes} bytes, the gradients have {want}\n"
                    "send each one as it is",
                )

    @check(
        points=4, title="every gradient equals that of one process on the joined batch (2, 3 ranks)"
    )
    def test_gradients(self, submission):
        for ranks in (2, 3):
            calls = [call(ranks), call(ranks, again=True, other=True)]
            calls += [call(ranks, width=4), call(ranks, dtype=torch.float32)]
            each_anew(partial(right_calls, submission), calls)

    @check(points=5, title="one all-reduce for each trainable parameter, tied ones once")
    def test_messages(self, submission):
        calls = [call(2), call(2, again=True, other=True)]
        calls.append(call(2, width=5, dtype=torch.float32, old=True))
        each_anew(lambda some: self.one_each(averaged(submission, some), some), calls)
        with as_above(self.test_gradients, submission):
            right_calls(submission, calls)

    @check(points=3, title="a parameter that not every rank used is sent as zeros, in its place")
    def test_unused(self, submission):
        calls = [call(3, paths=paths) for paths in (SOME, NOBODY_USES_3, OTHER_ORDERS)]
        calls.append(call(3, paths=SOME, again=True, other=True))
        with as_above(self.test_gradients, submission):
            right_calls(submission, calls)
        with as_above(self.test_messages, submission):
            self.one_each(averaged(submission, calls), calls, more=True)


def filled(sizes, limit, spare=0):
    """Items of (name, bytes) in buckets, each filled until the next item, and so many bytes to
    spare, do not fit."""
    buckets, room = [], 0
    for name, nbytes in sizes:
        if nbytes + spare > room or not buckets:
            buckets, room = [*buckets, []], limit
        buckets[-1].append((name, nbytes))
        room -= nbytes
    return buckets


def few(sizes):
    """The first ones, where there are many."""
    return sizes if len(sizes) <= 16 else f"[{', '.join(map(str, sizes[:8]))}, …]"


def bytes_of(buckets):
    return [sum(nbytes for _, nbytes in bucket) for bucket in buckets]


def first_fit(sizes, limit):
    """Each item goes into the first bucket that has room for it."""
    buckets = []
    for item in sizes:
        room = [bucket for bucket in buckets if bytes_of([bucket])[0] + item[1] <= limit]
        room[0].append(item) if room else buckets.append([item])
    return buckets


def around_the_large(sizes, limit):
    """A large item has one to itself, and the one before it stays open."""
    buckets, still_open = [], None
    for item in sizes:
        if item[1] > limit or still_open is None or bytes_of([still_open])[0] + item[1] > limit:
            buckets.append([])
            still_open = buckets[-1] if item[1] <= limit else still_open
        (still_open if item[1] <= limit else buckets[-1]).append(item)
    return buckets


def overfull(sizes, limit):
    """Closed when they are full or over."""
    buckets = []
    for item in sizes:
        if not buckets or bytes_of(buckets)[-1] >= limit:
            buckets.append([])
        buckets[-1].append(item)
    return buckets


def counted(sizes, limit, itemsize, each):
    """Where a number counts as so many bytes."""
    told = filled([(name, nbytes // itemsize * each) for name, nbytes in sizes], limit)
    actual = dict(sizes)
    return [[(name, actual[name]) for name, _ in bucket] for bucket in told]


def beside_the_frozen(sizes, limit, everything):
    """Where what is frozen takes room, and is not sent."""
    sent = dict(sizes)
    buckets = filled(everything[:: 1 if everything[0] == sizes[0] else -1], limit)
    left = [[item for item in bucket if item[0] in sent] for bucket in buckets]
    return [bucket for bucket in left if bucket]


FILLED = "fill a bucket until the next gradient does not fit; one that is larger has one to itself"
OVER = "start a new bucket before one overflows"


class TestBucketed(Exercise):
    """Buckets"""

    name = "all_reduce_gradients_bucketed"
    reference = "minitrain.parallel.ddp:all_reduce_gradients_bucketed"
    hidden = (DDP_FILE,)

    @staticmethod
    def calls(ranks, paths=None):
        """Limits from a bucket a parameter to one for all; two that the first bucket just fits,
        and just does not, though a frozen one lies within it."""
        plain = [nbytes for _, nbytes in trainable(6)][::-1]
        exact = list(running(plain))[int(torch.randint(5, 8, ()))]
        between = int(torch.randint(56, 90, ()))  # small ones fit, large ones stand alone
        limits = [1, between, exact, exact - 1, int(torch.randint(300, 900, ())), 10**6]
        calls = [call(ranks, limit, paths=paths) for limit in limits]
        calls += [
            call(ranks, exact, paths=paths, again=True, other=other) for other in (False, True)
        ]
        small = call(ranks, int(torch.randint(100, 300, ())), width=4, dtype=torch.float32)
        return [*calls, small]

    @staticmethod
    def well_filled(results, calls, in_order=True, full=True):
        """The bytes of every message are those of the buckets, from the last parameter on; full
        is False: whether the last byte of a bucket is used, or twice as many, is another check's."""
        for number, made in enumerate(calls):
            (limit,) = made["rest"]
            sizes = trainable(made["width"], made["dtype"], made["other"])
            want, forward = (bytes_of(filled(way, limit)) for way in (sizes[::-1], sizes))
            nearly = [] if full else [(limit, 1), (2 * limit, 0)]
            taken = [bytes_of(filled(sizes[::-1], *rule)) for rule in nearly]
            if not in_order:
                taken += [want[::-1], forward, forward[::-1]]
            for rank, result in enumerate(results):
                got = only_all_reduces(result[number]["sent"], rank)
                if got == want or got in taken:
                    continue
                words = TestBucketed.mistakes(results, calls)
                TestBucketed.of_the_right_size(got, want, limit, sizes, words)
                expect.that(
                    sorted(got) != sorted(want),
                    f"with buckets of {limit} bytes the all-reduces were of {got} bytes, and they are {want}, in another "
                    "order: walk reversed(parameters), and send the buckets in the order in which they were filled",
                )
                expect.that(
                    False,
                    f"with buckets of {limit} bytes the all-reduces were of {got} bytes; from the last parameter "
                    f"to the first, each bucket filled until the next does not fit, they are {want}: walk "
                    "reversed(parameters), and send the buckets in that order",
                )

    @staticmethod
    def of_the_right_size(got, want, limit, sizes, words):
        """As many as asked for, and as large; words: of the mistake that gives just these."""
        whole, ways = sum(want), (sizes[::-1], sizes)
        expect.that(
            sum(got) == whole,
            f"{sum(got)} bytes were sent in all, the trainable gradients have {whole}: each once and in its own dtype, "
            "a tied one once too, and no frozen one",
        )
        if got in [bytes_of(filled(way, limit))[::turn] for way in ways for turn in (1, -1)]:
            return
        over = max(got) > max(limit, *dict(sizes).values())
        expect.that(
            len(got) == len(want) and not over and not words,
            f"buckets of {limit} bytes for gradients of {whole} bytes: {len(got)} all-reduces of {few(got)} bytes, "
            f"expected {len(want)} of {few(want)}\n{words or (OVER if over else FILLED)}",
        )

    @staticmethod
    def mistakes(results, calls):
        """In words: what gives just the messages of every call."""
        plans = {
            "those are buckets of so many numbers: count bytes, `p.nbytes`": {"each": 1},
            "those are buckets in which a number has 4 bytes: here it has those of its own dtype, "
            "`p.nbytes`": {"each": 4},
            "a gradient that fills a bucket to the last byte still fits": partial(filled, spare=1),
            "a bucket is never gone back to, also after a gradient that is larger": around_the_large,
            "a bucket is never gone back to: where the next does not fit, it is closed": first_fit,
            "a frozen parameter takes no room in a bucket, as it is not sent": {"frozen": True},
            OVER: overfull,
        }

        def explains(plan, made, got):
            kind = made["width"], made["dtype"], made["other"]
            sizes, (limit,) = trainable(*kind), made["rest"]
            if plan == {"frozen": True}:
                plan = partial(beside_the_frozen, everything=trainable(*kind, frozen=True))
            elif isinstance(plan, dict):
                plan = partial(counted, itemsize=made["dtype"].itemsize, **plan)
            return got in [bytes_of(plan(way, limit)) for way in (sizes[::-1], sizes)]

        sent = [
            (made, [nbytes for _, nbytes in result[number]["sent"]])
            for number, made in enumerate(calls)
            for result in results
        ]
        found = [
            words for words, plan in plans.items() if all(explains(plan, *each) for each in sent)
        ]
        return "; or: ".join(found)

    @check(points=5, title="every gradient equals that of one process, for buckets of any size")
    def test_gradients(self, submission):
        for ranks in (2, 3):
            each_anew(partial(right_calls, submission), self.calls(ranks))

    @check(points=5, title="as few all-reduces as the bucket size allows")
    def test_count(self, submission):
        each_anew(partial(self.well_sent, submission, in_order=False), self.calls(2))

    @check(points=3, title="the first bucket holds the last parameters: backward makes those first")
    def test_order(self, submission):
        with as_above(self.test_count, submission):
            each_anew(partial(self.well_sent, submission, full=False), self.calls(2))

    @check(points=3, title="a parameter that not every rank used counts as zero")
    def test_unused(self, submission):
        calls = [*self.calls(2, SOME[1:]), call(2, 400, paths=NOBODY_USES_3[:2], old=True)]
        with as_above(self.test_gradients, submission):
            right_calls(submission, calls)
        with as_above(self.test_count, submission):
            self.well_sent(submission, calls, in_order=False, full=False)

    def well_sent(self, submission, calls, **which):
        self.well_filled(averaged(submission, calls), calls, **which)


# ---- DDP ----


def step(ranks, width, paths=None, set_to_none=True):
    """A step of probes.wrapped; paths: each rank's, one a microbatch."""
    paths = paths or [[probes.WHOLE_PATH]] * ranks
    batches = [[torch.randn(3, width, dtype=torch.float64) for _ in own] for own in paths]
    return {"batches": batches, "paths": paths, "set_to_none": set_to_none}


def one_path(paths):
    return [[path] for path in paths]


def own_of_step(width, made):
    pairs = zip(made["batches"], made["paths"])
    return [gradients_of(width, torch.float64, *pair) for pair in pairs]


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


def on_their_way(found, buckets, path, rank):
    """Each bucket was issued when it and all before it were full, and nobody waited for it."""
    total = len(buckets)
    for place in (*reversed(range(len(path))), -1):
        issued, waited = found["seen"].get(place, (0, 0))
        full = full_in_line(buckets, path, place)
        when = "when backward returned" if place < 0 else "while backward still had layers to go"
        expect.that(
            place < 0 or not waited,
            f"rank {rank} waited in the hook for its first all-reduce: backward stood still meanwhile, so nothing "
            "is hidden. Issue it with async_op=True, and wait in finish()",
        )
        expect.that(
            issued >= full,
            f"rank {rank}: {full} of {total} buckets were full {when}, and {issued} sent\n"
            + (
                "nothing is overlapped. Send a bucket in the hook that fills it, not in finish()"
                if issued == 0
                else "send in the hook, not in finish(), and *while* the next in line is full: a hook that "
                "fills one bucket may free full ones behind it"
            ),
        )
        expect.that(
            issued <= full,
            f"rank {rank}: {full} of {total} buckets were full and next in line {when}, and {plural(issued, 'all-reduce')} "
            "sent\none for one bucket, when it is full and all before it are sent",
        )


def sent_once(found, buckets, rank):
    sizes, want = only_all_reduces(found["sent"], rank), bytes_of(buckets)
    expect.that(
        len(sizes) == len(want),
        f"rank {rank} made {plural(len(sizes), 'all-reduce')} in a step for {plural(len(want), 'bucket')}: send each once, when it is full",
    )
    expect.that(
        sizes == want,
        f"rank {rank} sent {sizes} bytes, the buckets in line have {want}: all ranks send in the order of self.buckets",
    )


def all_overlapped(results, plans):
    for number, plan in enumerate(plans):
        overlapped(results, plan, number)


def overlapped(results, plan, number):
    """The mechanism, in every step of the plan."""
    buckets = filled(trainable(plan["width"])[::-1], plan["bucket_bytes"])
    for rank, result in enumerate(results):
        for made, found in zip(plan["steps"], result[number]):
            on_their_way(found, buckets, made["paths"][rank][-1], rank)
            sent_once(found, buckets, rank)


def wrapped(submission, plans, ranks):
    """results[rank][plan][step] of ranks that waited for everything that they began."""
    words = (
        "all ranks must issue every bucket, in the order of self.buckets: send only the next in line, "
        "`self.buckets[len(self.works)]`; what is missing when finish() comes counts as zero, and before it "
        "waits there are as many works as buckets"
    )
    without = "derive the class from Wrapper: it has no_sync"
    with expect.because({expect.HANGS: words, "attribute 'no_sync'": without}):
        results = submission.launch(probes.wrapped, plans, ranks=ranks, timeout=8)
    for rank, notes in enumerate(submission.notes):
        expect.that(
            all(relayed.waits(notes)),
            f"rank {rank}: a work was never waited for: call `work.wait()` in finish()",
        )
    for rank, result in enumerate(results):
        add_what_was_sent(result, submission.notes[rank])
        expect.that(
            all(found["all waited"] for steps in result for found in steps),
            f"rank {rank}: finish() returned before all works had been waited for: the gradients may not have arrived",
        )
    return results


def add_what_was_sent(result, notes):
    """To each step of each model of a rank, from the relay's notes."""
    steps = [found for turn in zip(*result) for found in turn]  # as the probe takes them
    names = ("no_sync", "backward", "finish")
    stages = (relayed.runs(notes, name, len(steps), names) for name in names)
    for found, alone, backward, finish in zip(steps, *stages):
        found["in no_sync"] = len(sent_in(alone))
        found["seen"] = seen_in(backward)
        found["sent"] = sent_in([*backward, *finish])
        found["all waited"] = all(relayed.waits([*backward, *finish]))


def seen_in(backward):
    """{place on the path: all-reduces issued, and waited for, when backward first came there}; -1
    is when it returned."""
    seen = {int(place): under_way(run) for place, run in [*relayed.before_marks(backward)][::-1]}
    return {**seen, -1: under_way(backward)}


def under_way(run):
    waited = [is_waited for op, is_waited in zip(relayed.operations(run), relayed.waits(run))
              if op.payload_bytes]  # fmt: skip
    return len(waited), sum(waited)


def plan_of(width, bucket_bytes, *steps):
    return {"width": width, "bucket_bytes": bucket_bytes, "steps": steps}


def right_steps(results, plans):
    for number, plan in enumerate(plans):
        before = {}
        for index, made in enumerate(plan["steps"]):
            own = own_of_step(plan["width"], made)
            gradients = [result[number][index]["gradients"] for result in results]
            equal_gradients(gradients, own, "" if index == 0 else f"step {index + 1}: ", before)
            before = mean_of(own)


def untouched(results):
    """Nothing was written into what was under way."""
    for rank, result in enumerate(results):
        changed = max(len(found["touched"]) for steps in result for found in steps)
        expect.that(
            not changed,
            f"rank {rank}: {plural(changed, 'buffer')} that had been sent were written to before their work.wait(): until then "
            "nothing may touch them. A bucket that is on its way is not taken again: refill `missing` after the waits",
        )


def right_and_untouched(submission, plans, ranks):
    results = wrapped(submission, plans, ranks)
    right_steps(results, plans)
    untouched(results)


def judged(right, plans):
    """right(plans): of models that are alive together, each step by step; where one model alone is right, or
    one step, that is the cause."""
    try:
        right(plans)
    except CheckFailed as failure:
        steps = [{**plan, "steps": [made]} for plan in plans for made in plan["steps"]]
        set_to_none = [
            {**plan, "steps": [{**made, "set_to_none": True} for made in plan["steps"]]}
            for plan in plans
        ]
        words = ""
        if len(plans) > 1 and all(is_right(right, [plan]) for plan in plans):
            words = "each of these models is right where it is alone: keep what is a model's in `self`, nothing in the class"
        elif all(is_right(right, [plan]) for plan in steps):
            words = (
                "each of these steps is right as a model's first: finish() must end by emptying the works and refilling "
                "each `missing`, with a new set; and what is missing when it comes goes through take(), which writes zeros over "
                "what the buffer held"
            )
            if "were full and next in line" in str(failure):
                words = (
                    "each of these steps is right as a model's first, and this one sends buckets that it has not filled: "
                    "finish() must end by refilling each `missing`, with a new set"
                )
            kept = any(not made["set_to_none"] for plan in plans for made in plan["steps"])
            if kept and is_right(right, set_to_none):
                words = (
                    "every step is right that follows zero_grad(set_to_none=True), and this one followed False: `.grad` "
                    "may still be a view of the buffer when backward begins"
                )
        first = str(failure).splitlines()[0]
        raise (CheckFailed(f"{first}\n{words}") if words else failure) from None


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
            plans = [
                plan_of(width, limit, *(step(ranks, width, set_to_none=way) for way in (True, True, False)))
                for width, limit in ((6, 400), (4, 1))
            ]  # fmt: skip
            judged(lambda some, n=ranks: right_and_untouched(submission, some, n), plans)

    @check(points=7, title="every full bucket is sent, once, while backward still computes")
    def test_overlap(self, submission):
        limit = int(torch.randint(300, 700, ()))
        plans = [
            plan_of(width, nbytes, step(2, width), step(2, width))
            for width, nbytes in ((6, limit), (6, 10**6), (4, 1))
        ]
        judged(lambda some: all_overlapped(wrapped(submission, some, 2), some), plans)

    @check(points=6, title="ranks that use different layers still send their buckets in one order")
    def test_unused(self, submission):
        for ranks, limit in ((3, 1), (2, 400)):
            orders = (one_path(paths[:ranks]) for paths in (SOME, NOBODY_USES_3, OTHER_ORDERS))
            plan = plan_of(6, limit, step(ranks, 6), *(step(ranks, 6, paths) for paths in orders))
            self.right(submission, [plan], ranks)

    def right(self, submission, plans, ranks):
        def both(some):
            results = wrapped(submission, some, ranks)
            right_steps(results, some)
            all_overlapped(results, some)

        with as_above(self.test_gradients, submission), as_above(self.test_overlap, submission):
            judged(both, plans)

    @check(points=3, title="inside no_sync gradients add up, and nothing is sent")
    def test_no_sync(self, submission):
        whole, short = probes.WHOLE_PATH, (0, 1, 3)
        plan = plan_of(
            6,
            400,
            step(2, 6, [[whole, whole, short], [short, whole, whole]]),
            step(2, 6, [[whole, short], [whole, whole]]),
            step(2, 6),
        )
        results = wrapped(submission, [plan], 2)
        for rank, result in enumerate(results):
            for found in result[0]:
                sent = found["in no_sync"]
                expect.that(
                    sent == 0,
                    f"rank {rank} made {plural(sent, 'all-reduce')} inside `with ddp.no_sync():`, where gradients only "
                    "add up: the hook does nothing while self.synchronize is False",
                )
        with as_above(self.test_gradients, submission):
            self.nothing_dropped(results, plan)
        self.right(submission, [plan], 2)

    @staticmethod
    def nothing_dropped(results, plan):
        """What the first microbatches left is sent too."""
        for index, made in enumerate(plan["steps"]):
            right, last = own_of_step(6, made), own_of_step(6, last_of(made))
            used = [
                {name: whole * bool(alone[name].any()) for name, whole in own.items()}
                for own, alone in zip(right, last)
            ]
            right, wrong = mean_of(right), [mean_of(last), mean_of(used)]
            for rank, result in enumerate(results):
                for name, got in result[0][index]["gradients"].items():
                    expect.that(
                        expect.difference(got, right[name]) is None
                        or all(expect.difference(got, way[name]) for way in wrong),
                        f"rank {rank}, gradient of {name}: a part of it is missing. What was added up inside "
                        "no_sync is in `.grad`, and is sent with it",
                    )


def last_of(made):
    """The step without the microbatches inside no_sync."""
    return {key: [own[-1:] for own in made[key]] for key in ("batches", "paths")}


# ---- accumulation ----


class TestAccumulate(Exercise):
    """Accumulation without needless messages"""

    name = "accumulate"
    reference = "minitrain.parallel.ddp:accumulate"
    hidden = (DDP_FILE,)

    @staticmethod
    def calls(*counts):
        """That many microbatches in each call."""
        width = probes.network().head.in_features
        return [[torch.randn(3 + m, width, dtype=torch.float64) for _ in range(m)] for m in counts]

    @staticmethod
    def accumulated(submission, calls):
        words = (
            "the microbatches may come as a list or a tuple, as `chunk` makes it: do not change it"
        )
        with expect.because({"'tuple'": words}):
            (results,) = submission.launch(probes.accumulated, calls, ranks=1)
        for found, run in zip(results, relayed.runs(submission.notes[0], "call", len(calls))):
            found["log"] = relayed.labels(run)
            found["messages"] = sent_in(run)
        return results

    @check(points=3, title="the gradients are those of one large batch")
    def test_gradients(self, submission):
        calls = self.calls(4, 3, 1)
        calls[1] = tuple(calls[1])
        for microbatches, found in zip(calls, self.accumulated(submission, calls)):
            before, after = found["length"]
            expect.that(
                before == after,
                f"{before} microbatches were given, and {after} are left: the list is the caller's",
            )
            self.equal_mean(found, microbatches)

    @staticmethod
    def equal_mean(found, microbatches):
        many, whole = len(microbatches), [probes.WHOLE_PATH]
        own = [gradients_of(6, torch.float64, [m], whole) for m in microbatches]
        backwards = sum(way == "backward" for way, *_ in found["log"])
        alone = "that is the last microbatch's alone: " + (
            f"backward ran {backwards} x for {many} microbatches, each needs one"
            if backwards < many
            else "gradients must add up, do not zero them in between"
        )
        for name, want in mean_of(own).items():
            hints = [
                (
                    want * many,
                    f"that is {many} times too large: divide each loss by the number of microbatches",
                ),
                (own[-1][name], alone),
                (own[-1][name] / many, alone),
            ]
            what = f"microbatches: {many}, gradient of {name}"
            expect.equal(found["gradients"][name], want, what=what, hints=hints)
            if found["sent"][name] is not None:
                hints = [
                    (
                        want * many,
                        "it was divided after backward: DDP's hooks had sent it by then. Divide each loss "
                        "by the number of microbatches before backward",
                    )
                ]
                what = f"gradient of {name}, as it was when the hook sent it"
                expect.equal(found["sent"][name], want, what=what, hints=hints)

    @check(points=8, title="one after another; only the last of the microbatches synchronizes")
    def test_sync(self, submission):
        calls = self.calls(1, 2, 4)
        calls[2][0] = calls[2][-1]  # one batch twice: its place decides, not what it is
        for microbatches, found in zip(calls, self.accumulated(submission, calls)):
            log, many = found["log"], len(microbatches)
            expect.that(
                "finish" not in log,
                "ddp.finish() was called: the caller does that",
            )
            expect.that(
                not found["messages"],
                f"it sent something itself, {listed(found['messages'])}: only the hooks of ddp send, in the last backward, and "
                "the loss that it returns is this rank's own mean",
            )
            self.one_after_another(log, many)
            self.only_the_last(log, many)

    @staticmethod
    def one_after_another(log, many):
        forwards = [(which, alive) for way, which, _, *alive in log if way == "forward"]
        order = [which for which, _ in forwards]
        expect.that(
            len(order) == many and None not in order,
            f"{many} microbatches, and {len(order)} forwards through ddp, of microbatches {order}: call "
            "loss_of(ddp, microbatch) once for each",
        )
        expect.that(
            order == list(range(many)),
            f"the microbatches came in the order {order}: take them as they are given, the last one synchronizes",
        )
        expect.that(
            not any(alive[0] for _, alive in forwards),
            "when a forward began, the graph of the one before was still in memory: run each microbatch's "
            "backward right after its forward, and let it free the graph",
        )
        backwards = [which for way, which, *_ in log if way == "backward"]
        expect.that(
            backwards == list(range(many)),
            f"{many} microbatches, and backward ran for {backwards}: once for each",
        )

    @staticmethod
    def only_the_last(log, many):
        want = [False] * (many - 1) + [True]
        inside = {
            "forward": "all but the last run inside ddp.no_sync(), and forward must be inside too",
            "backward": "all but the last run inside ddp.no_sync(), backward too: its hooks send",
        }
        for way, words in inside.items():
            sends = [is_sent for each, _, is_sent, *_ in log if each == way]
            if not sends[-1]:
                words = "the last one runs outside of ddp.no_sync(), so that its hooks send"
            elif sends == [True, False, False, True]:
                words = "0 and 3 are the same tensor, and its place says which is the last"
            expect.that(
                sends == want,
                f"microbatches: {many}; outside of no_sync in {way}: {sends}, expected {want}: {words}",
            )

    @check(points=1, title="it returns the mean loss, without a graph")
    def test_loss(self, submission):
        calls = self.calls(3, 4, 1)
        for microbatches, found in zip(calls, self.accumulated(submission, calls)):
            got = found["loss"]
            with torch.no_grad():
                losses = [probes.squared(probes.network(), batch) for batch in microbatches]
            total, many = sum(losses), len(losses)
            expect.equal(
                got if isinstance(got, torch.Tensor) or got is None else torch.tensor(got, dtype=torch.float64),
                total / many,
                what="the loss",
                hints=[
                    (total, "that is the sum: return the mean"),
                    (losses[-1], "that is the last one's"),
                    (losses[-1] / many, "that is the last one's, divided"),
                    (
                        reduce(lambda mean, loss: (mean + loss) / 2, losses),
                        "that is the mean of the last one and the mean of those before: each counts 1/M",
                    ),
                    (total / many**2, "that is divided by the number of microbatches twice"),
                ],
            )  # fmt: skip
            expect.that(
                not found["has graph"],
                "the loss still has a graph, though backward is over: add up loss.detach()",
            )


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
            row = rows[variant]
            expect.that(
                row["hidden_seconds"] <= 0.1 * row["exposed_seconds"],
                f"{variant} hid {row['hidden_seconds']:.2e} s of communication, yet it sends after backward",
            )
        row = rows["overlapped"]
        expect.that(
            row["hidden_seconds"] > 0, "overlapped hid nothing: was it measured with your DDP?"
        )

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
            want = 1 - row["exposed_seconds"] / row["step_seconds"]
            expect.close(
                row["efficiency"],
                want,
                tol=0.01,
                what=f"{row['fabric']}, {row['ranks']} ranks: 1 - exposed/step",
            )
            if row["ranks"] == 1:
                expect.that(
                    row["efficiency"] > 0.99,
                    f"one rank has nobody to wait for, efficiency {row['efficiency']:.2f}",
                )

    @check(points=5, title="NVLink keeps what Ethernet loses, and overlap never hurts much")
    def test_order(self, table):
        at8 = {
            (row["fabric"], row["variant"]): row["efficiency"] for row in table if row["ranks"] == 8
        }
        fast = max(value for (_, variant), value in at8.items() if variant == "overlapped")
        slow = min(value for (_, variant), value in at8.items() if variant == "overlapped")
        expect.that(
            fast > slow + 0.1,
            f"all fabrics keep {slow:.0%} to {fast:.0%} on 8 ranks: they should differ",
        )
        for (fabric, variant), value in at8.items():
            other = at8.get((fabric, "naive"))
            if variant == "overlapped" and other is not None:
                expect.that(
                    value > other - 0.1,
                    f"{fabric}: {value:.0%} overlapped, {other:.0%} naive. Close other programs and run it again",
                )


class TestOverlapSpeedup(Question):
    """What overlap is worth"""

    name = "overlap_speedup"
    rests_on = ("overlap",)

    @check(points=5, title="naive step over overlapped step")
    def test_value(self, value, records):
        seconds = {
            row["variant"]: row["step_seconds"] for row in expect.recorded(records, "overlap")
        }
        for variant in ("naive", "overlapped"):
            expect.that(variant in seconds, f"your table has no row of '{variant}'")
        speedup = seconds["naive"] / seconds["overlapped"]
        words = "divide the naive row's step_seconds by the overlapped row's"
        if abs(value * speedup - 1) < 0.02:
            words = "that is the time that is left; turn the fraction round"
        expect.that(abs(value / speedup - 1) < 0.02, f"got {value:.3g}: {words}")


class TestBottleneck(Question):
    """The bottleneck, from your own trace"""

    name = "bottleneck"
    rests_on = ("scaling",)

    @check(points=5, title="of the slowest fabric on 8 ranks")
    def test_value(self, value, records):
        rows = [
            r
            for r in expect.recorded(records, "scaling")
            if r["ranks"] == 8 and r["variant"] == "overlapped"
        ]
        expect.that(rows, "your table has no overlapped row with 8 ranks")
        row = min(rows, key=lambda r: r["efficiency"])
        compute = row["step_seconds"] - row["exposed_seconds"]
        if compute > row["exposed_seconds"]:
            want = "compute"
        else:
            latency = row["latency_seconds"]
            want = "latency" if latency > 0.5 * row["exposed_seconds"] else "bandwidth"
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
        rows = [
            r
            for r in expect.recorded(records, "scaling")
            if r["ranks"] == 8 and r["variant"] == "overlapped"
        ]
        expect.that(rows, "your table has no overlapped row with 8 ranks")
        row = min(rows, key=lambda r: r["efficiency"])
        compute = row["step_seconds"] - row["exposed_seconds"]
        want = row["tokens"] * row["communication_seconds"] / compute
        each = SIZES["cpu"]["tokens_each"]
        expect.close(
            value,
            want,
            tol=0.05,
            what="tokens a rank",
            hints=[
                (
                    row["tokens"] * compute / row["communication_seconds"],
                    "that is upside down: more communication needs more tokens",
                ),
                (
                    want * each,
                    f"that is {each} times too many: count tokens as the column `tokens` does",
                ),
                (
                    want / row["tokens"],
                    "that is how many times as many: multiply by the tokens that a rank has now",
                ),
            ],
        )
