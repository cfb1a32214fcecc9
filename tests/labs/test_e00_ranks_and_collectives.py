"""The checks of lab e00: collectives built from send and recv, graded by their messages.

Every check makes many calls in one launch: other ranks, shapes and dtypes, one after the other in
the same processes (`calls_of`), so that what a function keeps from one call shows in the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.network.links import Sweep, fit

from .probes import e00_ranks_and_collectives as probes

LAB = "e00_ranks_and_collectives"
SIZES = {
    "cpu": {"ranks": 4, "sweep_ranks": 2, "sweep_exponents": list(range(12, 25, 2)), "repeats": 7},
    "gpu": {},
    "multi": {"sweep_exponents": list(range(12, 29, 2))},
}
REVEALS = {
    "rounds": Reveal(
        "measured",
        "⌈log₂N⌉ rounds; counted: the messages of the root, which sends in each",
        formula=lambda ranks: math.ceil(math.log2(ranks)),
    ),
    "scatter_bytes": Reveal(
        "measured",
        "(N-1)/N of the tensor; counted in rank 0's trace",
        formula=lambda ranks, nbytes: (ranks - 1) / ranks * nbytes,
    ),
}
COLLECTIVES = tuple(
    f"minitrain/parallel/collectives/{name}.py" for name in ("algorithms", "overlapped")
)
F64, F32, I64 = torch.float64, torch.float32, torch.int64
CAUSES = {
    "mismatch": "both ends of a message have the same size and dtype: make the place for what arrives "
    "like the tensor that is coming, and anew in each call; chunks may differ by one element",
    (
        "cannot send to rank",
        "cannot receive from rank",
    ): "ranks go from 0 to size - 1, and the last "
    "one's right neighbour is rank 0: take every sum modulo `group.size`, of this call's group",
}


def drawn(shape, dtype=F64):
    """Values that no shorter dtype holds."""
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(-(2**60), 2**60, shape).to(dtype)


def one_each(ranks, shape, dtype=F64, *rest):
    """A call in which every rank has a tensor of its own, and `rest`."""
    return ranks, [(drawn(shape, dtype), *rest) for _ in range(ranks)]


@dataclass(frozen=True)
class Call:
    """One call, on all ranks of its group."""

    ranks: int
    given: list[tuple]  # the arguments, rank by rank
    rows: list[dict[str, Any]]  # what became of it, rank by rank: see probes.in_groups

    @property
    def firsts(self):
        """The first argument of every rank."""
        return [given[0] for given in self.given]

    def messages(self, rank, kind="send"):
        """(the other rank, bytes) of each, in order."""
        return [(peer, size) for op, peer, size in self.rows[rank]["ops"] if op == kind]

    def next_to(self, rank, steps=1):
        return (rank + steps) % self.ranks


def calls_of(submission, cases):
    """cases: (ranks, the arguments of each), all made in one launch."""
    most = max(ranks for ranks, _ in cases)
    with expect.because(CAUSES):
        results = submission.launch(probes.in_groups, cases, ranks=most)
    rows = []
    for result, notes in zip(results, submission.notes):
        runs = map(relayed.operations, relayed.runs(notes, "call", len(result)))
        told = ([(op.kind, op.peer, op.payload_bytes) for op in ops] for ops in runs)
        rows.append(iter([{**row, "ops": ops} for row, ops in zip(result, told)]))
    return [Call(n, given, [next(rows[rank]) for rank in range(n)]) for n, given in cases]


class Collective:
    """Calls on several ranks: what each rank must return, and what it must send.

    An exercise defines `cases`, `want(call, rank)`, `sends(call, rank)`, and `likely(call, rank)`:
    what likely mistakes give, and their words.
    """

    hidden = COLLECTIVES
    arguments = ("tensor",)
    plan = ""  # what the messages are, in words

    def likely(self, call, rank):
        return []

    def right(self, calls):
        for call in calls:
            for rank, row in enumerate(call.rows):
                what, likely = f"rank {rank} of {call.ranks}", self.likely(call, rank)
                expect.equal(row["out"], self.want(call, rank), what=what, hints=likely)

    def values(self, submission):
        """Right on every rank, whatever was sent, and nothing else was changed."""
        calls = calls_of(submission, self.cases())
        self.right(calls)
        for rank in range(max(call.ranks for call in calls)):
            mine = [call for call in calls if rank < call.ranks]
            rows, given = [call.rows[rank] for call in mine], [call.given[rank] for call in mine]
            expect.left_alone(rows, given, self.arguments, what=f"rank {rank}")
        return calls

    def messages(self, submission):
        """Every operation is one of the messages that the exercise asks for, and all are waited for."""
        calls = calls_of(submission, self.cases())
        for call in calls:
            for rank, row in enumerate(call.rows):
                used = sorted({kind for kind, peer, _ in row["ops"] if peer is None} - {"barrier"})
                expect.that(
                    not used,
                    f"rank {rank} called the ready-made {', '.join(used)}: build it from send, recv "
                    "and exchange, that is the exercise",
                )
                self.sent_right(call, rank)
        unfinished = submission.never_waited()
        expect.that(not unfinished, unfinished)
        with expect.though("the messages are as they must be"):
            self.right(calls)

    def sent_right(self, call, rank):
        got, want = call.messages(rank), self.sends(call, rank)
        expect.that(
            self.order(got) == self.order(want),
            f"rank {rank} of {call.ranks} sent (to rank, bytes) {got}, expected {want}\n{self.plan}",
        )

    @staticmethod
    def order(messages):
        """Where their order is free, sorted."""
        return messages


class TestRingShift(Collective, Exercise):
    """Send to the right, receive from the left"""

    name = "ring_shift"
    reference = "minitrain.parallel.collectives.algorithms:ring_shift"
    plan = "one message is enough: to rank + 1, while rank - 1 sends to you"

    def cases(self):
        cases = [(5, (4,)), (2, (3,)), (3, (2, 3)), (5, ()), (3, (2, 3)), (4, (1,), I64)]
        cases += [(3, (2, 1, 3), F32), (3, (0,)), (4, (3,), torch.bool)]
        return [one_each(*case) for case in cases]

    def want(self, call, rank):
        return call.firsts[rank - 1]

    def sends(self, call, rank):
        return [(call.next_to(rank), call.firsts[rank].nbytes)]

    def likely(self, call, rank):
        right = "that came from the right neighbour: the ring turns the other way"
        own = "that is the rank's own tensor: return what was received, not what was sent"
        return [(call.firsts[call.next_to(rank)], right), (call.firsts[rank], own)]

    @check(
        points=2,
        title="every rank holds what its left neighbour had, any shape, and its own as it was",
    )
    def test_values(self, submission):
        self.values(submission)

    @check(points=4, title="one message to the right and one from the left")
    def test_messages(self, submission):
        self.messages(submission)


class TestTreeBroadcast(Collective, Exercise):
    """Broadcast along a binomial tree"""

    name = "tree_broadcast"
    reference = "minitrain.parallel.collectives.algorithms:tree_broadcast"
    plan = (
        "in the round of distance 1, then 2, 4, …, each place below distance sends that much further "
        "on; place p is rank (p + root) % size"
    )

    def cases(self):
        cases = [(9, (2,), F64, 4), (8, (5,), F64, 5), (2, (4,), F64, 0), (3, (2, 2), F64, 2)]
        cases += [(6, (4,), F64), (5, (), F32, 1), (4, (5,), F64, 3), (6, (4,), F64, 4)]
        made = [one_each(*case) for case in [*cases, (7, (1, 3), I64, 6), (3, (0,), F64, 1)]]
        for rank, (tensor, root) in enumerate(made[6][1]):
            if rank != root:  # nothing is to be calculated with these
                tensor.fill_([torch.nan, torch.inf][rank % 2])
        return made

    @staticmethod
    def root_of(call):
        """Without a root it is rank 0."""
        return call.given[0][1] if len(call.given[0]) > 1 else 0

    def want(self, call, rank):
        return call.firsts[self.root_of(call)]

    def sends(self, call, rank):
        place = (rank - self.root_of(call)) % call.ranks
        distances = [2**i for i in range(call.ranks.bit_length()) if 2**i > place]
        to = [call.next_to(rank, each) for each in distances if place + each < call.ranks]
        return [(peer, call.firsts[rank].nbytes) for peer in to]

    def likely(self, call, rank):
        own = "that is the rank's own tensor: return what arrived"
        yield call.firsts[rank], own
        for other in set(range(call.ranks)) - {rank, self.root_of(call)}:
            words = (
                f"that is rank {other}'s own tensor: the root's is passed on, from place to place"
            )
            yield call.firsts[other], words

    @check(
        points=3,
        title="every rank ends with the root's values, whoever is the root, in a new tensor",
    )
    def test_values(self, submission):
        self.values(submission)

    @check(points=7, title="ceil(log2 N) rounds, not N - 1, and each rank receives once")
    def test_rounds(self, submission):
        self.messages(submission)


class Ring(Collective):
    """N - 1 messages, all to the right, of one chunk each: message s of a rank is chunk
    rank - first - s."""

    first = 0

    def sizes_of(self, call):
        """Each chunk's elements."""
        return [len(part) for part in call.firsts[0].flatten().tensor_split(call.ranks)]

    def sends(self, call, rank):
        chunks = [call.next_to(rank, -self.first - step) for step in range(call.ranks - 1)]
        sizes, wide = self.sizes_of(call), call.firsts[0].element_size()
        return [(call.next_to(rank), wide * sizes[chunk]) for chunk in chunks]


class TestRingReduceScatter(Ring, Exercise):
    """Ring reduce-scatter"""

    name = "ring_reduce_scatter"
    reference = "minitrain.parallel.collectives.algorithms:ring_reduce_scatter"
    plan = "N - 1 messages to rank + 1, of one chunk each as `tensor_split` cuts: r - 1, r - 2, …"
    first = 1

    def cases(self):
        cases = [(5, 11), (2, 8), (3, 7), (4, 6), (4, 2), (3, 7), (2, 5, I64), (4, 7, F32)]
        cases += [(3, 0), (3, 1), (4, 24), (3, 8), (1, 5)]
        return [one_each(ranks, (n,), *dtype) for ranks, n, *dtype in cases]

    def want(self, call, rank):
        return sum(call.firsts).tensor_split(call.ranks)[rank]

    def likely(self, call, rank):
        whole, own = sum(call.firsts), call.firsts[rank].tensor_split(call.ranks)[rank]
        chunks = whole.tensor_split(call.ranks)
        longest = -(-len(whole) // call.ranks)
        return [
            (whole, "that is the whole sum: keep only this rank's chunk"),
            (chunks[call.next_to(rank)], "that is the next rank's chunk: start one chunk earlier"),
            (chunks[rank - 1], "that is the previous rank's chunk: start one chunk later"),
            (chunks[rank] - own, "your own part is missing: add it to what arrives last, too"),
            (whole[rank * longest : (rank + 1) * longest], "those are equal chunks: cut by `tensor_split`"),
        ]  # fmt: skip

    @check(points=4, title="rank r ends with chunk r of the sum, any size, and its input as it was")
    def test_values(self, submission):
        self.values(submission)

    @check(points=8, title="N - 1 messages of one chunk each, to the right")
    def test_ring(self, submission):
        self.messages(submission)


class TestRingAllGather(Ring, Exercise):
    """Ring all-gather"""

    name = "ring_all_gather"
    reference = "minitrain.parallel.collectives.algorithms:ring_all_gather"
    plan = (
        "N - 1 messages to rank + 1, of one chunk each: first your own, then what came in the step "
        "before; an empty one goes round like any other"
    )
    arguments = ("chunk", "sizes")

    def cases(self):
        cases = [([3, 3, 2, 2, 2],), ([3, 3],), ([1, 4, 0, 2],), ([2, 5, 1],), ([3, 3],)]
        cases += [([2, 5, 1, 4, 3],), ([6, 6, 6, 6],), ([3, 2, 2],), ([1, 0, 0],)]
        cases += [([3, 2, 2], I64), ([0, 0],), ([1, 1, 1], F32), ([4],)]
        return [
            (len(sizes), [(drawn((n,), *dtype), list(sizes)) for n in sizes])
            for sizes, *dtype in cases
        ]

    def sizes_of(self, call):
        return call.given[0][1]

    def want(self, call, rank):
        return torch.cat(call.firsts)

    def likely(self, call, rank):
        words = "the chunks are all there, but in another order: put each at its own rank's place"
        rolled = torch.cat(call.firsts[rank:] + call.firsts[:rank])
        arrival = torch.cat([call.firsts[rank - step] for step in range(call.ranks)])
        return [(rolled, words), (arrival, words)]

    @check(
        points=2,
        title="every rank ends with all chunks, in order of rank, and its own is left as it was",
    )
    def test_values(self, submission):
        self.values(submission)

    @check(points=6, title="N - 1 messages of one chunk each, to the right")
    def test_ring(self, submission):
        self.messages(submission)


class TestRingAllReduce(Ring, Exercise):
    """Ring all-reduce"""

    name = "ring_all_reduce"
    reference = "minitrain.parallel.collectives.algorithms:ring_all_reduce"
    plan = (
        "2 (N - 1) messages to rank + 1, of one chunk each: those of your two functions, no others"
    )

    def cases(self):
        cases = [(5, (12,)), (2, (8,)), (3, (7,)), (4, (3, 5)), (3, (1,)), (5, ()), (1, (2, 2))]
        cases += [(3, (2, 1, 4), F32), (2, (3,), I64), (3, (0, 2)), (4, (3, 5)), (2, (3, 5))]
        return [one_each(*case) for case in [*cases, (5, (10,)), (4, (24,)), (5, (3,))]]

    def want(self, call, rank):
        return sum(call.firsts)

    def sends(self, call, rank):
        """Each lap may begin with any chunk."""
        return []

    def sent_right(self, call, rank):
        got, right = call.messages(rank), call.next_to(rank)
        sizes, wide = self.sizes_of(call), call.firsts[0].element_size()
        every = [size for each in range(call.ranks) for _, size in call.messages(each)]
        expect.that(
            [peer for peer, _ in got] == [right] * (2 * call.ranks - 2)
            and sorted(every) == sorted(wide * n for n in sizes * (2 * call.ranks - 2)),
            f"rank {rank} of {call.ranks} sent (to rank, bytes) {got}; the chunks have "
            f"{[wide * n for n in sizes]} bytes\n{self.plan}",
        )

    def likely(self, call, rank):
        whole = sum(call.firsts)
        return [
            (whole / call.ranks, "that is the average: an all-reduce sums, the caller divides"),
            (whole.flatten(), "the values are right, the shape is lost: end with .view(tensor.shape)"),
            (call.firsts[rank], "that is the input: nothing was reduced"),
        ]  # fmt: skip

    @check(
        points=2,
        title="every rank ends with the sum, the same bits in the input's shape, any shape",
    )
    def test_values(self, submission):
        for call in self.values(submission):
            for rank, row in enumerate(call.rows):
                what = f"rank {rank} beside rank 0, whose sums are to be handed out"
                expect.identical(row["out"], call.rows[0]["out"], what=what)

    @check(points=6, title="the messages of reduce-scatter and all-gather, and nothing else")
    def test_ring(self, submission):
        self.messages(submission)


class TestPairwiseAllToAll(Collective, Exercise):
    """All-to-all"""

    name = "pairwise_all_to_all"
    reference = "minitrain.parallel.collectives.algorithms:pairwise_all_to_all"
    plan = "in step s send chunk rank + s to its rank and receive from rank - s: one chunk to each"
    arguments = ("chunks",)

    def cases(self):
        cases = [(5, (2,)), (2, (3,)), (3, (2, 2)), (4, (3,)), (5, ()), (4, (3,)), (3, (2,), I64)]
        cases += [(2, (1, 3), F32), (3, (0,)), (1, (2,))]
        return [
            (ranks, [([drawn(shape, *dtype) for _ in range(ranks)],) for _ in range(ranks)])
            for ranks, shape, *dtype in cases
        ]

    def want(self, call, rank):
        return [chunks[rank] for chunks in call.firsts]

    def sends(self, call, rank):
        to = [call.next_to(rank, step) for step in range(1, call.ranks)]
        return [(peer, call.firsts[rank][peer].nbytes) for peer in to]

    def sent_right(self, call, rank):
        super().sent_right(call, rank)
        sources = [peer for peer, _ in call.messages(rank, "recv")]
        want = [call.next_to(rank, -step) for step in range(1, call.ranks)]
        words = f"rank {rank} received from ranks {sources}, expected {want}\n{self.plan}"
        expect.that(sources == want, words)

    def likely(self, call, rank):
        turned = [call.firsts[rank - step][rank] for step in range(call.ranks)]
        words = "all are there, in order of arrival: put what rank j sent at place j"
        return [
            (call.firsts[rank], "those are the rank's own chunks: nothing moved"),
            (turned, words),
        ]

    @check(
        points=3, title="chunk j of rank i becomes chunk i of rank j; what is given stays as it was"
    )
    def test_values(self, submission):
        self.values(submission)

    @check(points=6, title="step by step: to rank + s, from rank - s, one chunk each")
    def test_messages(self, submission):
        self.messages(submission)


class TestNaiveAllReduce(Collective, Exercise):
    """Repair the deadlock"""

    name = "naive_all_reduce"
    reference = "minitrain.parallel.collectives.algorithms:naive_all_reduce"
    plan = (
        "keep the plan of the broken one: each rank sends its tensor to rank 0, rank 0 adds up and "
        "the total goes out again. Only their order was wrong"
    )
    order = staticmethod(sorted)

    def cases(self):
        cases = [(5, (3,)), (2, (3,)), (4, (2, 3)), (3, ()), (4, (2, 3)), (5, (2,), I64)]
        return [one_each(*case) for case in [*cases, (3, (4,), F32)]]

    def want(self, call, rank):
        return sum(call.firsts)

    def sends(self, call, rank):
        return [(to, call.firsts[0].nbytes) for to in ([0] if rank else range(1, call.ranks))]

    def likely(self, call, rank):
        own = "that is the rank's own tensor: return the total"
        first = "that is rank 0's own tensor, sent before the others' were added to it"
        lost = "rank 0's own part is missing from the sum"
        x = call.firsts
        return [(x[rank], own), (x[0], first), (sum(x) - x[0], lost)]

    @check(points=2, title="it ends, and every rank holds the sum (2 to 5 ranks)")
    def test_values(self, submission):
        self.values(submission)

    @check(points=5, title="rank 0 collects and hands out: N - 1 messages in, N - 1 out")
    def test_messages(self, submission):
        self.messages(submission)


class TestSweep(Experiment):
    """All-reduce over sizes, on this machine"""

    name = "sweep"
    rests_on = ("ring_all_reduce",)

    @check(
        points=4, title="five sizes or more, over a factor of 1,000, and the bytes sent are exact"
    )
    def test_bytes(self, table):
        sizes = [row["bytes"] for row in table]
        expect.that(
            len(set(sizes)) >= 5 and max(sizes) >= 1000 * min(sizes),
            f"the sizes {sorted(set(sizes))} are too few or too close: take five or more, from 4 KB to 4 MB or further",
        )
        for row in table:
            want = 2 * (row["ranks"] - 1) * row["bytes"] // row["ranks"]
            expect.that(
                row["sent_bytes"] == want,
                f"{row['bytes']} bytes on {row['ranks']} ranks sent {row['sent_bytes']}, the ring sends {want}",
            )

    @check(points=4, title="small messages cost the latency, large ones the bandwidth")
    def test_times(self, table):
        rows = sorted(table, key=lambda row: row["bytes"])
        expect.that(all(row["seconds"] > 0 for row in rows), "a time of 0 s or less was recorded")
        small, large = rows[0], rows[-1]
        expect.that(
            large["seconds"] > 2 * small["seconds"],
            f"{large['bytes']} bytes took {large['seconds']:.2e} s, {small['bytes']} bytes {small['seconds']:.2e} s: "
            "a message 1,000 times as long should take visibly longer; measure the median of several repeats",
        )
        rate = [row["bytes"] / row["seconds"] for row in (small, large)]
        expect.that(
            rate[1] > rate[0],
            "the smallest size has the highest bandwidth: are bytes and seconds of the same row?",
        )


class TestPrediction(Experiment):
    """A size that the fit has not seen"""

    name = "prediction"
    rests_on = ("sweep",)

    @check(
        points=8,
        title="a new size, predicted by your own fit, within a factor of 2 of the measured time",
    )
    def test_prediction(self, table, records):
        row = table[0]
        sweep = records.get("sweep") or []
        expect.that(sweep, "record the sweep first: the prediction is made from its fit")
        expect.that(
            row["bytes"] not in {r["bytes"] for r in sweep},
            f"{row['bytes']} bytes is in the sweep: predict a size that the fit has not seen",
        )
        link = fit_of(sweep)
        want = link.seconds("all_reduce", row["bytes"], sweep[0]["ranks"])
        expect.close(
            row["predicted"], want, tol=0.02, what="the predicted seconds, by the fit of your sweep"
        )
        ratio = row["measured"] / row["predicted"]
        expect.that(
            0.5 <= ratio <= 2,
            f"measured is {ratio:.2f} x predicted: close other programs, and run all cells again from the sweep to this one",
        )


def fit_of(sweep):
    """Alpha and beta from the learner's own rows."""
    points = tuple((float(row["bytes"]), float(row["seconds"])) for row in sweep)
    return fit(Sweep("all_reduce", int(sweep[0]["ranks"]), points))


class TestTreeOrRing(Experiment):
    """Ring against recursive doubling on 8 emulated ranks"""

    name = "ring_or_doubling"
    rests_on = ("ring_all_reduce",)

    @check(points=4, title="doubling wins the smallest size, the ring the largest")
    def test_order(self, table):
        rows = sorted(table, key=lambda row: row["bytes"])
        first, last = rows[0], rows[-1]
        expect.that(
            first["doubling_seconds"] < first["ring_seconds"],
            f"at {first['bytes']} bytes 3 messages should beat 14; start with a smaller size",
        )
        expect.that(
            last["ring_seconds"] < last["doubling_seconds"],
            f"at {last['bytes']} bytes 1.75 S should beat 3 S; go on to a larger size",
        )

    @check(points=5, title="the bytes on the wire are 2(N-1)/N·S and log2 N·S, exactly")
    def test_bytes(self, table):
        for row in table:
            size, at = row["bytes"], f"at {row['bytes']} bytes"
            expect.equal(row["ring_bytes"], size * 14 // 8, what=f"the ring {at}")
            expect.equal(row["doubling_bytes"], size * 3, what=f"doubling {at}")


class TestBytesPerRank(Question):
    """Bytes a rank sends"""

    name = "bytes_per_rank"
    rests_on = ("ring_all_reduce",)

    @check(points=5, title="for a 1 GB all-reduce on 8 ranks, by the ring")
    def test_value(self, value):
        hints = [
            (2e9, "that is 2 S: a rank never sends its own finished chunk to itself, so it is 2(N-1)/N"),
            (0.875e9, "that is one half, the reduce-scatter; the all-gather sends as much again"),
            (7e9, "that is (N-1)·S, what naive sending to everyone takes"),
            (1.75, "that looks like gigabytes: the answer is in bytes"),
        ]  # fmt: skip
        expect.close(value, 1.75e9, tol=0.001, what="bytes", hints=hints)


class TestHalfSize(Question):
    """Where latency ends"""

    name = "half_size"
    rests_on = ("sweep",)

    @check(points=5, title="the size at which half the time is latency, by your own fit")
    def test_value(self, value, records):
        sweep = expect.recorded(records, "sweep")
        link, ranks = fit_of(sweep), sweep[0]["ranks"]
        expect.that(
            link.beta > 0, "the sweep's fit saw no bandwidth: add larger sizes and run it again"
        )
        want = ranks * link.alpha / link.beta
        one = (
            "that is alpha/beta, for one message; the ring has 2(N-1) of them and sends 2(N-1)/N·S"
        )
        mega = "that looks like megabytes: the answer is in bytes"
        hints = [(link.alpha / link.beta, one), (want * 1e-6, mega)]
        expect.close(value, want, tol=0.05, what="bytes", hints=hints)


class TestCrossover(Question):
    """Where the ring begins to win"""

    name = "crossover"
    rests_on = ("ring_or_doubling",)

    @check(points=5, title="between the two neighbouring sizes of your own table")
    def test_value(self, value, records):
        rows = sorted(expect.recorded(records, "ring_or_doubling"), key=lambda row: row["bytes"])
        slower = [row["bytes"] for row in rows if row["ring_seconds"] >= row["doubling_seconds"]]
        faster = [row["bytes"] for row in rows if row["bytes"] > max(slower, default=0)]
        expect.that(slower and faster, "your table has no crossover: add smaller or larger sizes")
        expect.that(
            value >= max(slower),
            f"got {value}: at a larger size of your table doubling still wins, look further down",
        )
        expect.that(
            value <= min(faster),
            f"got {value}: from a smaller size of your table on the ring wins, look further up",
        )
