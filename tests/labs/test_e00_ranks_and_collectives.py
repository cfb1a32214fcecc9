"""The checks of lab e00: collectives built from send and recv, graded by their messages."""

from __future__ import annotations

import math

import torch

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, check
from minitrain.network.links import Sweep, fit

from .probes import e00_ranks_and_collectives as probes

LAB = "e00_ranks_and_collectives"
SIZES = {
    "cpu": {"ranks": 4, "sweep_ranks": 2, "sweep_exponents": list(range(12, 25, 2)), "repeats": 7},
    "gpu": {},
    "multi": {"sweep_exponents": list(range(12, 29, 2))},
}
COLLECTIVES = "minitrain/parallel/collectives/algorithms.py"
READY_MADE = ("all_reduce", "broadcast", "reduce_scatter", "all_gather", "all_to_all")


def inputs(ranks, n):
    """One float64 tensor a rank, drawn anew at each check."""
    return [torch.randn(n, dtype=torch.float64) for _ in range(ranks)]


def sends(trace):
    return [op for op in trace.ops if op.kind == "send"]


def only_messages(results):
    for rank, trace in enumerate(results.traces):
        used = sorted({op.kind for op in trace.ops if op.kind in READY_MADE})
        expect.that(
            not used,
            f"rank {rank} called the ready-made {', '.join(used)}: build it from send, recv and "
            "exchange, that is the exercise",
        )


def bytes_of(elements):
    return elements * 8  # float64


class TestRingShift(Exercise):
    """Send to the right, receive from the left"""

    name = "ring_shift"
    reference = "minitrain.parallel.collectives.algorithms:ring_shift"
    hidden = (COLLECTIVES,)

    @check(points=4, title="every rank holds what its left neighbour had (2, 3 and 5 ranks)")
    def test_values(self, submission):
        for ranks, n in [(2, 4), (3, 5), (5, 1)]:
            x = inputs(ranks, n)
            results = submission.launch(probes.on_tensor, x, ranks=ranks)
            for rank, result in enumerate(results):
                expect.equal(
                    result["out"],
                    x[(rank - 1) % ranks],
                    what=f"rank {rank} of {ranks}",
                    hints=[
                        (
                            x[(rank + 1) % ranks],
                            "that came from the right neighbour: the ring turns the other way",
                        ),
                        (
                            x[rank],
                            "that is the rank's own tensor: return what was received, not what was sent",
                        ),
                    ],
                )

    @check(points=2, title="one message out and one in, and the input is left alone")
    def test_messages(self, submission):
        x = inputs(4, 6)
        results = submission.launch(probes.on_tensor, x, ranks=4)
        only_messages(results)
        for rank, trace in enumerate(results.traces):
            sent, received = trace.count("send"), trace.count("recv")
            expect.that(
                (sent, received) == (1, 1),
                f"rank {rank} sent {sent} messages and received {received}: one of each is enough",
            )
            expect.that(
                results[rank]["kept"],
                "your input was overwritten by what arrived: receive into a new tensor (torch.empty_like)",
            )


class TestTreeBroadcast(Exercise):
    """Broadcast along a binomial tree"""

    name = "tree_broadcast"
    reference = "minitrain.parallel.collectives.algorithms:tree_broadcast"
    hidden = (COLLECTIVES,)

    @check(points=5, title="every rank ends with the root's values, whoever is the root")
    def test_values(self, submission):
        for ranks, root in [(2, 0), (3, 2), (5, 1), (6, 0)]:
            x = inputs(ranks, 5)
            results = submission.launch(probes.on_tensor, x, root, ranks=ranks)
            for rank, result in enumerate(results):
                expect.equal(
                    result["out"],
                    x[root],
                    what=f"rank {rank} of {ranks}, root {root}",
                    hints=[
                        (
                            x[0],
                            f"those are rank 0's values, but the root is {root}: count ranks from the root, (rank - root) % size",
                        ),
                        (
                            x[rank],
                            "the rank kept its own values: it never received, or returns the wrong tensor",
                        ),
                    ],
                )

    @check(points=2, title="each rank receives once: size - 1 messages in all")
    def test_count(self, submission):
        results = submission.launch(probes.on_tensor, inputs(6, 4), 0, ranks=6)
        only_messages(results)
        total = sum(trace.count("send") for trace in results.traces)
        expect.that(
            total == 5, f"{total} messages on 6 ranks; a broadcast needs 5: each rank receives once"
        )

    @check(points=3, title="it takes ceil(log2 N) rounds, not N - 1")
    def test_rounds(self, submission):
        for ranks in (4, 6):
            results = submission.launch(probes.on_tensor, inputs(ranks, 4), 0, ranks=ranks)
            only_messages(results)
            most = max(trace.count("send") for trace in results.traces)
            depth = rounds(results.traces)
            want = math.ceil(math.log2(ranks))
            if most == ranks - 1:
                reason = "the root sends to all of them, one after the other"
            elif depth == ranks - 1:
                reason = "that is a chain: each rank passes on to one other only"
            else:
                reason = "a rank that has the tensor should send in every round that is left"
            expect.that(
                depth == want,
                f"{ranks} ranks took {depth} rounds, {want} are enough: {reason}; "
                "let the number of ranks that have it double each round",
            )


def rounds(traces, root=0):
    """The longest chain of messages, one after the other, when a rank sends one at a time."""
    arrived = {root: 0}
    while len(arrived) < len(traces):
        before = len(arrived)
        for rank in list(arrived):
            for index, op in enumerate(sends(traces[rank])):
                arrived.setdefault(op.peer, arrived[rank] + index + 1)
        expect.that(
            len(arrived) > before, f"only ranks {sorted(arrived)} were ever sent the tensor"
        )
    return max(arrived.values())


def of_unequal_chunks(submission, *tensors, ranks):
    """A launch whose chunks may differ by one element; a mismatch is told its likely cause."""
    words = "chunks may differ by one element: size the receive buffer for the chunk that is coming"
    with expect.because({"mismatch": words}):
        return submission.launch(probes.on_tensor, *tensors, ranks=ranks)


class RingCheck:
    """What every ring obeys: N-1 messages (a round), to one neighbour, of one chunk each."""

    def ring(self, results, laps, elements, what):
        only_messages(results)
        ranks = len(results)
        for rank, trace in enumerate(results.traces):
            out = sends(trace)
            peers = sorted({op.peer for op in out})
            expect.that(
                len(peers) <= 1,
                f"rank {rank} sent to ranks {peers}: on a ring each rank talks to one neighbour only",
            )
            expect.that(
                len(out) == laps * (ranks - 1),
                f"rank {rank} sent {len(out)} messages; {what} on {ranks} ranks takes "
                f"{laps} x (N - 1) = {laps * (ranks - 1)}",
            )
            sent, want = (
                sum(op.sent_bytes for op in out),
                bytes_of(elements * laps * (ranks - 1) // ranks),
            )
            whole = bytes_of(elements * laps * (ranks - 1))
            reason = (
                "you sent the whole tensor at each step: send one chunk"
                if sent == whole
                else "send one chunk a step"
            )
            expect.that(
                sent == want,
                f"rank {rank} sent {sent} bytes, the ring sends {want} = {laps}·(N-1)/N of {bytes_of(elements)}: {reason}",
            )


class TestRingReduceScatter(RingCheck, Exercise):
    """Ring reduce-scatter"""

    name = "ring_reduce_scatter"
    reference = "minitrain.parallel.collectives.algorithms:ring_reduce_scatter"
    hidden = (COLLECTIVES,)

    @check(
        points=7,
        title="rank r ends with chunk r of the sum (2, 3 and 4 ranks, sizes that do not divide)",
    )
    def test_values(self, submission):
        for ranks, n in [(2, 8), (3, 7), (4, 6), (4, 2)]:
            x = inputs(ranks, n)
            total = sum(x)
            want = total.tensor_split(ranks)
            results = of_unequal_chunks(submission, x, ranks=ranks)
            for rank, result in enumerate(results):
                right = (rank + 1) % ranks
                expect.equal(
                    result["out"],
                    want[rank],
                    what=f"rank {rank} of {ranks}, {n} elements",
                    hints=[
                        (total, "that is the whole sum: keep only this rank's chunk"),
                        (
                            want[right],
                            "that is the next rank's chunk: start one chunk earlier, so that the last to arrive is your own",
                        ),
                        (
                            want[(rank - 1) % ranks],
                            "that is the previous rank's chunk: start one chunk later, so that the last to arrive is your own",
                        ),
                        (want[rank] / ranks, "that is the average: a reduce-scatter sums"),
                        (
                            x[rank].tensor_split(ranks)[rank],
                            "that is your own part alone: add what arrives to it",
                        ),
                        (
                            x[(rank - 1) % ranks].tensor_split(ranks)[rank]
                            + x[rank].tensor_split(ranks)[rank],
                            "that holds only two ranks' parts: pass on the running sum, not your own chunk",
                        ),
                    ],
                )

    @check(points=4, title="N - 1 messages of one chunk each, to one neighbour")
    def test_ring(self, submission):
        results = submission.launch(probes.on_tensor, inputs(4, 24), ranks=4)
        self.ring(results, laps=1, elements=24, what="a reduce-scatter")

    @check(points=1, title="the input is left as it was")
    def test_input(self, submission):
        results = submission.launch(probes.on_tensor, inputs(3, 9), ranks=3)
        for result in results:
            expect.that(
                result["kept"],
                "the input changed: the chunks are views of it, so add into what arrived, or clone first",
            )
            expect.that(
                not result["aliased"],
                "the result is a view of the input: return a tensor of its own",
            )


class TestRingAllGather(RingCheck, Exercise):
    """Ring all-gather"""

    name = "ring_all_gather"
    reference = "minitrain.parallel.collectives.algorithms:ring_all_gather"
    hidden = (COLLECTIVES,)

    @check(points=5, title="every rank ends with all chunks, in order of rank")
    def test_values(self, submission):
        for ranks, total in [(2, 6), (3, 7), (4, 6)]:
            whole = torch.randn(total, dtype=torch.float64)
            chunks = [chunk.clone() for chunk in whole.tensor_split(ranks)]
            sizes = [chunk.numel() for chunk in chunks]
            results = of_unequal_chunks(submission, chunks, sizes, ranks=ranks)
            for rank, result in enumerate(results):
                rolled = torch.cat(chunks[rank:] + chunks[:rank])
                arrival = torch.cat([chunks[(rank - s) % ranks] for s in range(ranks)])
                words = "the chunks are all there, but in another order: put each at its own rank's place"
                expect.equal(
                    result["out"],
                    whole,
                    what=f"rank {rank} of {ranks}",
                    hints=[(rolled, words), (arrival, words)],
                )

    @check(points=3, title="N - 1 messages of one chunk each, to one neighbour")
    def test_ring(self, submission):
        chunks = inputs(4, 6)
        results = submission.launch(probes.on_tensor, chunks, [6] * 4, ranks=4)
        self.ring(results, laps=1, elements=24, what="an all-gather")


class TestRingAllReduce(RingCheck, Exercise):
    """Ring all-reduce"""

    name = "ring_all_reduce"
    reference = "minitrain.parallel.collectives.algorithms:ring_all_reduce"
    hidden = (COLLECTIVES,)

    @check(points=4, title="every rank ends with the sum, in the input's shape")
    def test_values(self, submission):
        for ranks, shape in [(2, (8,)), (3, (7,)), (4, (3, 5)), (3, (1,))]:
            x = inputs(ranks, shape)
            results = submission.launch(probes.on_tensor, x, ranks=ranks)
            for rank, result in enumerate(results):
                expect.equal(
                    result["out"],
                    sum(x),
                    what=f"rank {rank} of {ranks}",
                    hints=[
                        (
                            sum(x) / ranks,
                            "that is the average: an all-reduce sums, the caller divides",
                        ),
                        (
                            sum(x).flatten(),
                            "the values are right, the shape is lost: end with .view(tensor.shape)",
                        ),
                        (x[rank], "that is the input: nothing was reduced"),
                    ],
                )

    @check(points=3, title="2(N-1)/N of the tensor's bytes, in 2(N-1) messages")
    def test_ring(self, submission):
        results = submission.launch(probes.on_tensor, inputs(4, 24), ranks=4)
        self.ring(results, laps=2, elements=24, what="an all-reduce")

    @check(points=1, title="all ranks hold the same bits")
    def test_bits(self, submission):
        x = [torch.randn(50, dtype=torch.float32) for _ in range(4)]
        results = submission.launch(probes.on_tensor, x, ranks=4)
        for rank in range(1, 4):
            expect.identical(
                results[rank]["out"],
                results[0]["out"],
                what=f"rank {rank} beside rank 0",
            )


class TestPairwiseAllToAll(Exercise):
    """All-to-all"""

    name = "pairwise_all_to_all"
    reference = "minitrain.parallel.collectives.algorithms:pairwise_all_to_all"
    hidden = (COLLECTIVES,)

    @check(points=5, title="chunk j of rank i becomes chunk i of rank j")
    def test_values(self, submission):
        for ranks in (2, 3, 4):
            x = [[torch.randn(3, dtype=torch.float64) for _ in range(ranks)] for _ in range(ranks)]
            results = submission.launch(probes.on_chunks, x, ranks=ranks)
            for rank, result in enumerate(results):
                want = [x[source][rank] for source in range(ranks)]
                turned = [x[(rank - step) % ranks][rank] for step in range(ranks)]
                kept = [
                    x[source][rank] if source != rank else torch.zeros_like(x[0][0])
                    for source in range(ranks)
                ]
                expect.equal(
                    result,
                    want,
                    what=f"rank {rank} of {ranks}",
                    hints=[
                        (x[rank], "those are the rank's own chunks: nothing moved"),
                        (
                            turned,
                            "all are there, in order of arrival: put what rank j sent at place j",
                        ),
                        (kept, "your own chunk is missing: copy it, it is not sent"),
                    ],
                )

    @check(points=4, title="one message to each other rank, none to itself")
    def test_messages(self, submission):
        x = [[torch.randn(2, dtype=torch.float64) for _ in range(4)] for _ in range(4)]
        results = submission.launch(probes.on_chunks, x, ranks=4)
        only_messages(results)
        for rank, trace in enumerate(results.traces):
            peers = sorted(op.peer for op in sends(trace))
            want = [peer for peer in range(4) if peer != rank]
            expect.that(
                peers == want,
                f"rank {rank} sent to {peers}, needed are {want}: one chunk to each other rank, straight",
            )
            sent = trace.bytes_sent("send")
            expect.that(
                sent == bytes_of(6),
                f"rank {rank} sent {sent} bytes, {bytes_of(6)} are enough: each peer gets its own chunk only",
            )


class TestNaiveAllReduce(Exercise):
    """Repair the deadlock"""

    name = "naive_all_reduce"
    reference = "minitrain.parallel.collectives.algorithms:naive_all_reduce"
    hidden = (COLLECTIVES,)

    @check(points=4, title="it ends, and every rank holds the sum (2 and 4 ranks)")
    def test_values(self, submission):
        for ranks in (2, 4):
            x = inputs(ranks, 3)
            results = submission.launch(probes.on_tensor, x, ranks=ranks, timeout=5)
            for rank, result in enumerate(results):
                expect.equal(
                    result["out"],
                    sum(x),
                    what=f"rank {rank} of {ranks}",
                    hints=[
                        (
                            x[rank],
                            "that is the rank's own tensor: it must return the total that it receives",
                        ),
                        (sum(x) - x[0], "rank 0's own part is missing from the sum"),
                        (sum(x) - x[0] + x[rank], "rank 0's own part is missing from the sum"),
                    ],
                )

    @check(points=3, title="rank 0 collects and hands out: N - 1 messages in, N - 1 out")
    def test_messages(self, submission):
        results = submission.launch(probes.on_tensor, inputs(4, 3), ranks=4, timeout=5)
        only_messages(results)
        counts = [(trace.count("recv"), trace.count("send")) for trace in results.traces]
        expect.that(
            sum(sent for _, sent in counts) == 6 and counts[0][0] == 3,
            f"(received, sent) by rank: {counts}; keep the plan of the broken one: each rank sends to "
            "rank 0, rank 0 adds up and the total goes out again, 6 messages in all. Only their order was wrong",
        )


class TestSweep(Experiment):
    """All-reduce over sizes, on this machine"""

    name = "sweep"

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
            f"measured is {ratio:.2f} x predicted: close other programs, run the sweep and this cell again",
        )


def fit_of(sweep):
    """Alpha and beta from the learner's own rows."""
    points = tuple((float(row["bytes"]), float(row["seconds"])) for row in sweep)
    return fit(Sweep("all_reduce", int(sweep[0]["ranks"]), points))


class TestTreeOrRing(Experiment):
    """Ring against recursive doubling on 8 emulated ranks"""

    name = "ring_or_doubling"

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
            expect.equal(
                row["ring_bytes"], row["bytes"] * 14 // 8, what=f"the ring at {row['bytes']} bytes"
            )
            expect.equal(
                row["doubling_bytes"], row["bytes"] * 3, what=f"doubling at {row['bytes']} bytes"
            )


class TestBytesPerRank(Question):
    """Bytes a rank sends"""

    name = "bytes_per_rank"

    @check(points=5, title="for a 1 GB all-reduce on 8 ranks, by the ring")
    def test_value(self, value):
        expect.close(
            value,
            1.75e9,
            tol=0.001,
            what="bytes",
            hints=[
                (
                    2e9,
                    "that is 2 S: a rank never sends its own finished chunk to itself, so it is 2(N-1)/N",
                ),
                (
                    0.875e9,
                    "that is one half of it, the reduce-scatter; the all-gather sends as much again",
                ),
                (7e9, "that is (N-1)·S, what naive sending to everyone takes"),
                (1e9, "that is S: each byte goes out twice but for 1/N of it"),
                (1.75, "that looks like gigabytes: the answer is in bytes"),
            ],
        )


class TestHalfSize(Question):
    """Where latency ends"""

    name = "half_size"

    @check(points=5, title="the size at which half the time is latency, by your own fit")
    def test_value(self, value, records):
        sweep = expect.recorded(records, "sweep")
        link, ranks = fit_of(sweep), sweep[0]["ranks"]
        expect.that(
            link.beta > 0, "the sweep's fit saw no bandwidth: add larger sizes and run it again"
        )
        want = ranks * link.alpha / link.beta
        expect.close(
            value,
            want,
            tol=0.05,
            what="bytes",
            hints=[
                (
                    link.alpha / link.beta,
                    "that is alpha/beta, for one message; the ring has 2(N-1) of them and sends 2(N-1)/N·S",
                ),
                (want * 1e-6, "that looks like megabytes: the answer is in bytes"),
            ],
        )


class TestCrossover(Question):
    """Where the ring begins to win"""

    name = "crossover"

    @check(points=5, title="between the two neighbouring sizes of your own table")
    def test_value(self, value, records):
        rows = sorted(expect.recorded(records, "ring_or_doubling"), key=lambda row: row["bytes"])
        slower = [row["bytes"] for row in rows if row["ring_seconds"] >= row["doubling_seconds"]]
        faster = [row["bytes"] for row in rows if row["bytes"] > max(slower)]
        expect.that(slower and faster, "your table has no crossover: add smaller or larger sizes")
        expect.that(
            value >= max(slower),
            f"got {value}: at a larger size of your table doubling still wins, look further down",
        )
        expect.that(
            value <= min(faster),
            f"got {value}: from a smaller size of your table on the ring wins, look further up",
        )
