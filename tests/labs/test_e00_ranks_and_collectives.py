"""The checks of lab e00: collectives built from send and recv, graded by their messages.

Every check makes many calls in one launch: other ranks, shapes and dtypes, one after the other in
the same processes (`calls_of`), so that what a function keeps from one call shows in the next.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from minitrain.lab.failures import CheckFailed, SubmissionFailed
from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.difference import difference
from minitrain.lab.grading.verdicts import told_above
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
AS_THEY_MUST_BE = "the messages are as they must be"
MISMATCH = (
    "both ends of a message have the same size and dtype: make the place for what arrives like the "
    "tensor that is coming, and anew in each call"
)
CHUNKS = {
    "mismatch": "both ends of a message have the same size and dtype: chunks may differ by one "
    "element, so make the place for what arrives like the chunk that is coming"
}
GATHERED = {
    "mismatch": "both ends of a message have the same size and dtype. In step s a rank passes on "
    "what came in the step before, first its own chunk, and receives the chunk of rank - 1 - s: "
    "make the place for what arrives like the chunk that is coming, `sizes` has its length"
}
NO_SUCH_RANK = (
    "ranks go from 0 to size - 1, and the last one's right neighbour is rank 0: take every sum "
    "modulo `group.size`, of the group that this call is given"
)
WAITING = re.compile(r"rank (\d+): waiting in (send to|recv from) rank (\d+) of float64 \[2\]")

UNEQUAL = {
    (
        "mismatch",
        "sizes [",
    ): "`sizes` holds the length of every rank's chunk, the same list on all ranks: "
    "the chunks that `tensor_split` cuts, and the first of them may be one element longer"
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

    def messages(self, rank, kind):
        """(the other rank, bytes) of each, in order."""
        return [(peer, size) for op, peer, size in self.rows[rank]["ops"] if op == kind]

    def peers(self, rank, kind):
        return [peer for peer, _ in self.messages(rank, kind)]


def calls_of(submission, cases, timeout=None, causes=None):
    """cases: (ranks, the arguments of each), all made in one launch; the widest first, so that a
    report of ranks that wait shows all of them in one call."""
    most = max(ranks for ranks, _ in cases)
    outside = {"cannot send to rank": NO_SUCH_RANK, "cannot receive from rank": NO_SUCH_RANK}
    with expect.because({**outside, "mismatch": MISMATCH, **(causes or {})}):
        results = submission.launch(probes.in_groups, cases, ranks=most, timeout=timeout)
    rows = [iter(with_ops(*each)) for each in zip(results, submission.notes)]
    return [
        Call(ranks, given, [next(rows[rank]) for rank in range(ranks)]) for ranks, given in cases
    ]


def with_ops(rows, notes):
    """A rank's calls, each with its operations: (kind, peer, bytes)."""
    runs = map(relayed.operations, relayed.runs(notes, "call", len(rows)))
    told = ([(op.kind, op.peer, op.payload_bytes) for op in ops] for ops in runs)
    return [{**row, "ops": ops} for row, ops in zip(rows, told)]


def left_alone(calls, *names, views=""):
    """On every rank: its arguments as they were, its results its own, and no call changes another's;
    views: told where an argument was changed."""
    for rank in range(max(call.ranks for call in calls)):
        mine = [call for call in calls if rank < call.ranks]
        rows, given = [call.rows[rank] for call in mine], [call.given[rank] for call in mine]
        try:
            expect.left_alone(rows, given, names, what=f"rank {rank}")
        except CheckFailed as failure:
            if not views or "changed its input" not in str(failure):
                raise
            raise CheckFailed(f"{failure}\n{views}") from None


def only_messages(submission, calls):
    """Every operation is a message between two ranks, and has been waited for."""
    for call in calls:
        for rank, row in enumerate(call.rows):
            used = sorted({kind for kind, peer, _ in row["ops"] if peer is None} - {"barrier"})
            expect.that(
                not used,
                f"rank {rank} called the ready-made {', '.join(used)}: build it from send, recv and "
                "exchange, that is the exercise",
            )
    unfinished = submission.never_waited()
    expect.that(not unfinished, unfinished)


def rounded(got: Any, want: torch.Tensor) -> list[tuple[Any, str]]:
    """A hint where the values are those of a shorter dtype, or of a float that stood for integers."""
    alike = isinstance(got, torch.Tensor) and (got.shape, got.dtype) == (want.shape, want.dtype)
    if alike and got.dtype == F64:
        for short in (F32, torch.bfloat16, torch.float16):
            near = difference(got.to(short), want.to(short)) is None
            if near and torch.equal(got, got.to(short).to(F64)):
                name = str(short).removeprefix("torch.")
                words = f"that is rounded to {name}: keep the tensor's dtype all the way"
                return [(got, words)]
    if alike and got.dtype == I64 and difference(got.to(F32), want.to(F32)) is None:
        words = "large integers are rounded, as in a float: keep the tensor's dtype all the way"
        return [(got, words)]
    return []


class TestRingShift(Exercise):
    """Send to the right, receive from the left"""

    name = "ring_shift"
    reference = "minitrain.parallel.collectives.algorithms:ring_shift"
    hidden = COLLECTIVES

    def calls(self, submission):
        cases = [(5, (4,)), (2, (3,)), (3, (2, 3)), (5, ()), (3, (2, 3)), (4, (1,), I64)]
        cases += [(3, (2, 1, 3), F32), (3, (0,)), (4, (3,), torch.bool)]
        return calls_of(submission, [one_each(*case) for case in cases])

    @check(
        points=2,
        title="every rank holds what its left neighbour had, any shape, and its own as it was",
    )
    def test_values(self, submission):
        calls = self.calls(submission)
        self.right(calls)
        left_alone(calls, "tensor")

    @staticmethod
    def right(calls):
        """The results, on every rank, whatever was sent."""
        for call in calls:
            x = [tensor for (tensor,) in call.given]
            for rank, row in enumerate(call.rows):
                expect.equal(
                    row["out"],
                    x[rank - 1],
                    what=f"rank {rank} of {call.ranks}",
                    hints=[
                        (
                            x[(rank + 1) % call.ranks],
                            "that came from the right neighbour: the ring turns the other way",
                        ),
                        (
                            x[rank],
                            "that is the rank's own tensor: return what was received, not what was sent",
                        ),
                        *rounded(row["out"], x[rank - 1]),
                    ],
                )

    @check(points=4, title="one message to the right and one from the left")
    def test_messages(self, submission):
        calls = self.calls(submission)
        only_messages(submission, calls)
        for call in calls:
            for rank in range(call.ranks):
                right, left = (rank + 1) % call.ranks, (rank - 1) % call.ranks
                sent, received = call.messages(rank, "send"), call.messages(rank, "recv")
                expect.that(
                    (len(sent), len(received)) == (1, 1),
                    f"rank {rank} sent {len(sent)} messages and received {len(received)}: one of "
                    "each is enough",
                )
                expect.that(
                    (sent[0][0], received[0][0]) == (right, left),
                    f"rank {rank} of {call.ranks} sent to rank {sent[0][0]} and received from rank "
                    f"{received[0][0]}: send to rank + 1 and receive from rank - 1",
                )
                expect.that(
                    sent[0][1] == call.given[rank][0].nbytes,
                    f"rank {rank} sent {sent[0][1]} bytes, its tensor has "
                    f"{call.given[rank][0].nbytes}: send the tensor as it is",
                )
        with expect.though(AS_THEY_MUST_BE), told_above():
            self.right(calls)


class TestTreeBroadcast(Exercise):
    """Broadcast along a binomial tree"""

    name = "tree_broadcast"
    reference = "minitrain.parallel.collectives.algorithms:tree_broadcast"
    hidden = COLLECTIVES

    def calls(self, submission):
        cases = [
            (9, (2,), F64, 4),
            (8, (5,), F64, 5),
            (2, (4,), F64, 0),
            (3, (2, 2), F64, 2),
            (6, (4,), F64),
        ]
        cases += [(5, (), F32, 1), (4, (5,), F64, 3), (6, (4,), F64, 4), (7, (1, 3), I64, 6)]
        cases += [(3, (0,), F64, 1)]
        made = [one_each(*case) for case in cases]
        self.fill_others(*made[6])
        with on_the_tree(ranks=9, root=4):
            return calls_of(submission, made)

    @staticmethod
    def fill_others(ranks, given):
        """Numbers that nothing is to be calculated with, on all ranks but the root."""
        for rank, (tensor, root) in enumerate(given):
            if rank != root:
                tensor.fill_([torch.nan, torch.inf][rank % 2])

    @check(
        points=3,
        title="every rank ends with the root's values, whoever is the root, in a new tensor",
    )
    def test_values(self, submission):
        calls = self.calls(submission)
        self.right(calls)
        left_alone(calls, "tensor")

    @staticmethod
    def right(calls):
        """The results, on every rank, whatever was sent."""
        for call in calls:
            x, root = [given[0] for given in call.given], root_of(call)
            spread = [rank for rank in range(call.ranks) if rank != root and all(
                difference(row["out"], x[rank]) is None for row in call.rows
            )]  # fmt: skip
            words = f"but the root is {root}: count ranks from the root, which has place 0, (rank - root) % size"
            for rank, row in enumerate(call.rows):
                place = (rank - root) % call.ranks
                if call.messages(rank, "recv"):
                    kept = "the rank received, and returned its own values: return what arrived"
                else:
                    kept = f"the rank kept its own values, it never received: counted from the root it is place {place} of {call.ranks}"
                expect.equal(
                    row["out"],
                    x[root],
                    what=f"rank {rank} of {call.ranks}, root {root}",
                    hints=[
                        *((x[j], f"all ranks have rank {j}'s values, {words}") for j in spread[:1]),
                        *leaked(row["out"], x[rank]),
                        (x[rank], kept),
                        *(
                            (
                                x[j],
                                f"that is rank {j}'s own tensor: pass on what you received, not what you were given",
                            )
                            for j in range(call.ranks)
                            if j not in (rank, root)
                        ),
                        *rounded(row["out"], x[root]),
                    ],
                )

    @check(points=7, title="ceil(log2 N) rounds, not N - 1, and each rank receives once")
    def test_rounds(self, submission):
        calls = self.calls(submission)
        only_messages(submission, calls)
        for call in calls:
            sent = [len(call.messages(rank, "send")) for rank in range(call.ranks)]
            one_way(call)
            depth, want = rounds(call), math.ceil(math.log2(call.ranks))
            expect.that(
                depth == want,
                f"{call.ranks} ranks took {depth} rounds, {want} are enough: {why_so_long(call)}; "
                "the number of ranks that have it doubles each round",
            )
            expect.that(
                sum(sent) == call.ranks - 1,
                f"{sum(sent)} messages on {call.ranks} ranks; a broadcast needs {call.ranks - 1}: "
                "each rank but the root receives once",
            )
            sizes = {size for rank in range(call.ranks) for _, size in call.messages(rank, "send")}
            expect.that(
                sizes == {call.given[0][0].nbytes},
                f"messages of {sorted(sizes)} bytes for a tensor of {call.given[0][0].nbytes}: "
                "send the tensor as it is",
            )
        with expect.though(AS_THEY_MUST_BE), told_above():
            self.right(calls)


def leaked(got, own):
    """A hint of nan and inf where the rank's own tensor had them, and the root's has none."""
    alike = isinstance(got, torch.Tensor) and got.shape == own.shape
    if not alike or own.isfinite().all() or got.isfinite().any():
        return []
    words = (
        "the rank's own tensor was nan or inf, and it is still in the result: only its shape and dtype "
        "count. Overwrite it, for 0 · nan is nan, too"
    )
    return [(got, words)]


def root_of(call):
    """Without a root it is rank 0."""
    return call.given[0][1] if len(call.given[0]) > 1 else 0


def children(rank, ranks, root):
    """To whom a rank sends on the lab's tree, in this order."""
    place = (rank - root) % ranks
    distances = [2**i for i in range(ranks.bit_length()) if 2**i > place]
    return [(rank + distance) % ranks for distance in distances if place + distance < ranks]


def why_so_long(call):
    """What the messages of a tree that takes too many rounds are, beside those of the lab's."""
    root = root_of(call)
    sent = [call.peers(rank, "send") for rank in range(call.ranks)]
    tree = [children(rank, call.ranks, root) for rank in range(call.ranks)]
    if sorted(sent[root]) == sorted(set(range(call.ranks)) - {root}):
        return "the root sends to all of them, one after the other"
    if max(map(len, sent)) == 1:
        return "that is a chain: each rank passes on to one other only"
    rank = min(range(call.ranks), key=lambda rank: (sent[rank] == tree[rank], rank))
    if [sorted(peers) for peers in sent] == [sorted(peers) for peers in tree]:
        return (
            f"rank {rank} sends to the ranks that it should, but to {sent[rank]} in this order. At "
            f"distance 1 first, then 2, 4, ...: {tree[rank]}"
        )
    return (
        f"with root {root}, rank {rank} sends to {sent[rank] or 'nobody'}, and on the lab's tree to "
        f"{tree[rank] or 'nobody'}: a rank that has the tensor sends in every round that is left"
    )


@contextmanager
def on_the_tree(ranks: int, root: int) -> Iterator[None]:
    """A deadlock of this call is told the first rank that waits for one that is not its own.

    The call is known by its tensors: no other has float64 [2].
    """
    try:
        yield
    except SubmissionFailed as failure:
        waiting = WAITING.findall(str(failure)) if failure.kind == "deadlock" else []
        told = filter(None, (astray(int(a), verb, int(b), ranks, root) for a, verb, b in waiting))
        words = next(told, None)
        if words is None:
            raise
        if taken_for_ranks([(int(a), verb, int(b)) for a, verb, b in waiting], ranks, root):
            words += (
                "\nall that wait to receive wait for a *place*: it was taken for a rank. Place p is rank "
                "(p + root) % size; with root 0 alone the two are the same number"
            )
        raise SubmissionFailed(failure.kind, f"{failure}\n{words}") from None


def taken_for_ranks(waiting: list[tuple[int, str, int]], ranks: int, root: int) -> bool:
    """Whether every rank that waits to receive, and more than one does, waits for its parent's place."""
    tree = {peer: rank for rank in range(ranks) for peer in children(rank, ranks, root)}
    places = {rank: (parent - root) % ranks for rank, parent in tree.items()}
    receive = [(rank, other) for rank, verb, other in waiting if verb == "recv from"]
    return len(receive) > 1 and all(places.get(rank) == other for rank, other in receive)


def astray(rank: int, verb: str, other: int, ranks: int, root: int) -> str | None:
    """What the tree says to a rank that waits for `other`; None where it is as on the tree."""
    place = (rank - root) % ranks
    own, what = (
        children(rank, ranks, root),
        f"{ranks} ranks, root {root}: rank {rank} is place {place}",
    )
    if verb == "recv from":
        if rank in children(other, ranks, root):
            return None
        for parent in range(ranks):
            if rank in children(parent, ranks, root):
                above = (parent - root) % ranks
                return f"{what}. On the tree it receives from place {above}, rank {parent}, and it waits for rank {other}"
        return f"{what}, the root: it receives from nobody, and waits for rank {other}"
    if other in own:
        return None
    beyond = [d for d in (1, 2, 4, 8) if d > place and (rank + d) % ranks == other]
    if beyond:
        return (
            f"{what} and waits to send to rank {other}, {beyond[0]} further on. But {place} + "
            f"{beyond[0]} is not below {ranks}: there is no such place, and nobody receives"
        )
    return f"{what}, on the tree it sends to ranks {own or 'nobody'}, and waits to send to rank {other}"


def one_way(call):
    """No two ranks send to each other."""
    for rank in range(call.ranks):
        both = [peer for peer in call.peers(rank, "send") if rank in call.peers(peer, "send")]
        expect.that(
            not both,
            f"{call.ranks} ranks, root {root_of(call)}: rank {rank} sends to rank {(both or [0])[0]}, and that one to rank "
            f"{rank}. A message goes one way only, from a rank that has the tensor to one that has not: "
            f"{call.ranks - 1} in all",
        )


def rounds(call):
    """The longest chain of messages, one after the other, when a rank sends one at a time."""
    root = root_of(call)
    arrived = arrivals(call, root)
    places = sorted((rank - root) % call.ranks for rank in set(range(call.ranks)) - set(arrived))
    other = [rank for rank in range(call.ranks) if len(arrivals(call, rank)) == call.ranks]
    expect.that(
        not places,
        f"the messages that start at the root, rank {root}, reach only ranks {sorted(arrived)} of "
        f"{call.ranks}: "
        + (f"those that start at rank {other[0]} reach all" if other else "")
        + ("" if other else f"counted from the root, places {places} get nothing"),
    )
    return max(arrived.values())


def arrivals(call, start):
    """The ranks that messages from `start` on reach, and after how many in a row."""
    arrived, before = {start: 0}, 0
    while len(arrived) > before:
        before = len(arrived)
        for rank in list(arrived):
            for index, peer in enumerate(call.peers(rank, "send")):
                arrived.setdefault(peer, arrived[rank] + index + 1)
    return arrived


def sizes_of(call):
    """The elements of each chunk: told, or of the tensor that is cut."""
    tensor, *sizes = call.given[0]
    chunks = tensor.flatten().tensor_split(call.ranks)
    return sizes[0] if sizes else [chunk.numel() for chunk in chunks]


def where_empty(call):
    """In words: that chunks are empty."""
    sizes = sizes_of(call)
    words = f" (here with chunks of {sizes}: an empty one goes round like any other)"
    return words if 0 in sizes else ""


class RingCheck:
    """What every ring obeys: N-1 messages (a round), all to the right, of one chunk each."""

    def one_neighbour(self, call):
        for rank in range(call.ranks):
            peers = sorted(set(call.peers(rank, "send")))
            expect.that(
                len(peers) <= 1,
                f"rank {rank} sent to ranks {peers}: on a ring each rank talks to one neighbour only"
                + where_empty(call),
            )

    def ring(self, call, laps, what):
        self.one_neighbour(call)
        count = laps * (call.ranks - 1)
        for rank in range(call.ranks):
            out, right = call.peers(rank, "send"), (rank + 1) % call.ranks
            peers = sorted(set(out))
            expect.that(
                len(out) == count,
                f"rank {rank} sent {len(out)} messages; {what} on {call.ranks} ranks takes "
                f"{laps} x (N - 1) = {count}{where_empty(call)}",
            )
            expect.that(
                peers == [right],
                f"rank {rank} of {call.ranks} sent to rank {peers[0]}: the ring turns to the right, "
                f"to (rank + 1) % size = {right}",
            )

    def one_chunk_each(self, call, first, sizes):
        """Message s of a rank is chunk `rank - first - s`; sizes: the elements of each chunk."""
        ranks = range(call.ranks)
        wide = call.given[0][0].element_size()
        sent = [[size for _, size in call.messages(rank, "send")] for rank in ranks]

        def turns(start):
            """The chunks that each rank sends, one a step."""
            return [[(rank - start - step) % call.ranks for step in ranks[:-1]] for rank in ranks]

        def in_bytes(order, element=wide):
            return [[element * sizes[chunk] for chunk in chunks] for chunks in order]

        want, order = in_bytes(turns(first)), turns(first)
        if sent == want:
            return
        rank = next(rank for rank in ranks if sent[rank] != want[rank])
        every = {size for messages in sent for size in messages}
        other = [width for width in (1, 2, 4, 8) if sent == in_bytes(order, width)]
        later = [start for start in ranks if sent == in_bytes(turns(start))]
        so_far = [[sum(row[: step + 1]) for step in ranks[:-1]] for row in want]
        if every == {wide * sum(sizes)}:
            reason = f"you sent the whole tensor at each step: send one chunk a step, chunks {order[rank]} in turn"
        elif other:
            reason = f"an element has {other[0]} bytes in the messages and {wide} in the tensor: keep its dtype"
        elif later:
            reason = f"those are chunks {turns(later[0])[rank]}, and on this ring it sends chunks {order[rank]} in turn"
        elif every == {wide * max(sizes)}:
            reason = f"each message is as long as the longest chunk: the chunks here have {list(sizes)} elements, nothing is added to them"
        elif sent == so_far:
            reason = f"a message holds all that has come so far: send one chunk a step, what came last, chunks {order[rank]} in turn"
        else:
            reason = f"one chunk a step, chunks {order[rank]} in turn"
        expect.that(
            False,
            f"rank {rank} sent messages of {sent[rank]} bytes, the ring sends {want[rank]}: {reason}",
        )


class TestRingReduceScatter(RingCheck, Exercise):
    """Ring reduce-scatter"""

    name = "ring_reduce_scatter"
    reference = "minitrain.parallel.collectives.algorithms:ring_reduce_scatter"
    hidden = COLLECTIVES

    def calls(self, submission):
        cases = [(5, 11), (2, 8), (3, 7), (4, 6), (4, 2), (3, 7), (2, 5, I64), (4, 7, F32)]
        cases += [(3, 0), (3, 1), (4, 24), (3, 8), (1, 5)]
        made = [one_each(ranks, (n,), *dtype) for ranks, n, *dtype in cases]
        return calls_of(submission, made, causes=CHUNKS)

    @check(points=4, title="rank r ends with chunk r of the sum, any size, and its input as it was")
    def test_values(self, submission):
        calls = self.calls(submission)
        self.right(calls)
        views = "what `tensor_split` cuts are views: a chunk shares the memory of `tensor`"
        left_alone(calls, "tensor", views=views)

    @staticmethod
    def right(calls):
        """The results, on every rank, whatever was sent."""
        for call in calls:
            x, ranks = [tensor for (tensor,) in call.given], call.ranks
            parts, total = [tensor.tensor_split(ranks) for tensor in x], sum(x)
            want = total.tensor_split(ranks)
            longest = -(-len(total) // ranks)
            padded = torch.cat([total, total.new_zeros(longest * ranks - len(total))])
            lengths = ", ".join(str(len(chunk)) for chunk in want)
            equal = (
                f"that is cut into chunks of {longest} elements, the last ones padded or shorter: "
                f"`tensor_split` cuts {len(total)} elements on {ranks} ranks into {lengths}"
            )
            for rank, row in enumerate(call.rows):
                expect.equal(
                    row["out"],
                    want[rank],
                    what=f"rank {rank} of {ranks}, {len(total)} elements",
                    hints=[
                        (total, "that is the whole sum: keep only this rank's chunk"),
                        (
                            want[(rank + 1) % ranks],
                            "that is the next rank's chunk: start one chunk earlier, so that the last to arrive is your own",
                        ),
                        (
                            want[rank - 1],
                            "that is the previous rank's chunk: start one chunk later, so that the last to arrive is your own",
                        ),
                        (want[rank] / ranks, "that is the average: a reduce-scatter sums"),
                        (
                            parts[rank][rank],
                            "that is your own part alone: add what arrives to it",
                        ),
                        (
                            parts[rank - 1][rank] + parts[rank][rank],
                            "that holds only two ranks' parts: pass on the running sum, not your own chunk",
                        ),
                        (
                            want[rank] - parts[rank][rank],
                            "your own part is missing: add it to what arrives last, too",
                        ),
                        (padded[rank * longest : (rank + 1) * longest], equal),
                        (total[rank * longest : (rank + 1) * longest], equal),
                        *rounded(row["out"], want[rank]),
                    ],
                )

    @check(points=8, title="N - 1 messages of one chunk each, to the right")
    def test_ring(self, submission):
        made = [one_each(5, (11,)), one_each(4, (24,)), one_each(3, (8,)), one_each(4, (2,))]
        calls = calls_of(submission, made, causes=CHUNKS)
        only_messages(submission, calls)
        for call in calls:
            self.ring(call, laps=1, what="a reduce-scatter")
            self.one_chunk_each(call, first=1, sizes=sizes_of(call))
        with expect.though(AS_THEY_MUST_BE), told_above():
            self.right(calls)


class TestRingAllGather(RingCheck, Exercise):
    """Ring all-gather"""

    name = "ring_all_gather"
    reference = "minitrain.parallel.collectives.algorithms:ring_all_gather"
    hidden = COLLECTIVES

    def calls(self, submission, *cases):
        """cases: the sizes of the chunks, and a dtype where it is not float64."""
        made = [
            (len(sizes), [(drawn((n,), *dtype), list(sizes)) for n in sizes])
            for sizes, *dtype in cases
        ]
        return calls_of(submission, made, causes=GATHERED)

    @check(
        points=2,
        title="every rank ends with all chunks, in order of rank, and its own is left as it was",
    )
    def test_values(self, submission):
        cases = [([3, 3, 2, 2, 2],), ([3, 3],), ([1, 4, 0, 2],), ([2, 5, 1],), ([3, 3],)]
        cases += [([2, 5, 1, 4, 3],), ([6, 6, 6, 6],), ([3, 2, 2],)]  # those of the ring, below
        cases += [([1, 0, 0],)]
        calls = self.calls(submission, *cases, ([3, 2, 2], I64), ([0, 0],), ([1, 1, 1], F32))
        self.right(calls)
        left_alone(calls, "chunk", "sizes")

    @staticmethod
    def right(calls):
        """The results, on every rank, whatever was sent."""
        for call in calls:
            chunks = [chunk for chunk, _ in call.given]
            for rank, row in enumerate(call.rows):
                rolled = torch.cat(chunks[rank:] + chunks[:rank])
                arrival = torch.cat([chunks[rank - step] for step in range(call.ranks)])
                words = "the chunks are all there, but in another order: put each at its own rank's place"
                expect.equal(
                    row["out"],
                    torch.cat(chunks),
                    what=f"rank {rank} of {call.ranks}",
                    hints=[(rolled, words), (arrival, words), *misplaced(row["out"], chunks, rank)],
                )

    @check(points=6, title="N - 1 messages of one chunk each, to the right")
    def test_ring(self, submission):
        cases = ([2, 5, 1, 4, 3],), ([6, 6, 6, 6],), ([3, 2, 2],), ([1, 4, 0, 2],), ([1, 0, 0],)
        calls = self.calls(submission, *cases)
        only_messages(submission, calls)
        for call in calls:
            self.ring(call, laps=1, what="an all-gather")
            self.one_chunk_each(call, first=0, sizes=sizes_of(call))
        with expect.though(AS_THEY_MUST_BE), told_above():
            self.right(calls)


def misplaced(got, chunks, rank):
    """A hint of a gathered tensor whose values are at other places, or which lacks the own chunk."""
    want, own = torch.cat(chunks), chunks[rank]
    alike = isinstance(got, torch.Tensor) and (got.shape, got.dtype) == (want.shape, want.dtype)
    if not alike:
        return []
    starts = [sum(map(len, chunks[:place])) for place in range(len(chunks))]
    if torch.equal(got.sort().values, want.sort().values):
        words = "the values are all there, at other places: with these `sizes` the chunks begin at"
        return [(got, f"{words} {starts}")]
    begins = range(len(got) - len(own) + 1)
    if not any(torch.equal(got[begin : begin + len(own)], own) for begin in begins):
        end = starts[rank] + len(own)
        words = f"rank {rank}'s own chunk is nowhere in it: copy it to its place, elements"
        lost = [(got, f"{words} {starts[rank]} to {end}, before the first message")]
        return rounded(got, want) or lost
    return rounded(got, want)


class TestRingAllReduce(RingCheck, Exercise):
    """Ring all-reduce"""

    name = "ring_all_reduce"
    reference = "minitrain.parallel.collectives.algorithms:ring_all_reduce"
    hidden = COLLECTIVES

    @check(
        points=2,
        title="every rank ends with the sum, the same bits in the input's shape, any shape",
    )
    def test_values(self, submission):
        cases = [(5, (12,)), (2, (8,)), (3, (7,)), (4, (3, 5)), (3, (1,)), (5, ())]
        cases += [(3, (2, 1, 4), F32), (2, (3,), I64), (3, (0, 2)), (4, (3, 5))]
        cases += [(5, (10,)), (4, (24,)), (2, (3, 5))]
        calls = calls_of(submission, [one_each(*case) for case in cases], causes=UNEQUAL)
        self.right(calls)
        left_alone(calls, "tensor")

    @staticmethod
    def right(calls):
        """The results, on every rank, whatever was sent."""
        for call in calls:
            x = [tensor for (tensor,) in call.given]
            parts = zip(*(tensor.flatten().tensor_split(call.ranks) for tensor in x))
            twice = torch.cat([sum(chunk) + chunk[rank] for rank, chunk in enumerate(parts)])
            for rank, row in enumerate(call.rows):
                expect.equal(
                    row["out"],
                    sum(x),
                    what=f"rank {rank} of {call.ranks}",
                    hints=[
                        (
                            sum(x) / call.ranks,
                            "that is the average: an all-reduce sums, the caller divides",
                        ),
                        (
                            sum(x).flatten(),
                            "the values are right, the shape is lost: end with .view(tensor.shape)",
                        ),
                        (x[rank], "that is the input: nothing was reduced"),
                        (
                            twice.view(x[0].shape),
                            "chunk r of it holds rank r's part twice: the reduce-scatter has added it",
                        ),
                        *rounded(row["out"], sum(x)),
                    ],
                )
                what = f"rank {rank} beside rank 0"
                words = (
                    "right up to rounding, but not the same bits: once each chunk is added up on "
                    "one rank, and that sum is handed out, all ranks have the same"
                )
                expect.identical(
                    row["out"], call.rows[0]["out"], what=what, hints=[(row["out"], words)]
                )

    @check(points=6, title="the messages of reduce-scatter and all-gather, and nothing else")
    def test_ring(self, submission):
        cases = [(5, (10,)), (4, (24,)), (3, (7,)), (2, (3, 5)), (5, (3,)), (3, (1,))]
        calls = calls_of(submission, [one_each(*case) for case in cases], causes=UNEQUAL)
        only_messages(submission, calls)
        for call in calls:
            self.one_neighbour(call)
            x = call.given[0][0]
            chunk = x.element_size() * math.ceil(x.numel() / call.ranks)
            for rank in range(call.ranks):
                largest = max((size for _, size in call.messages(rank, "send")), default=0)
                whole = "you sent the whole tensor: " if largest == x.nbytes else ""
                expect.that(
                    largest <= chunk,
                    f"rank {rank} sent a message of {largest} bytes, a chunk has at most {chunk}, "
                    f"one {call.ranks}th of the tensor: {whole}send one chunk a step",
                )
            self.ring(call, laps=2, what="an all-reduce")
            self.two_laps_of_chunks(call)
        with expect.though(AS_THEY_MUST_BE), told_above():
            self.right(calls)

    @staticmethod
    def two_laps_of_chunks(call):
        """All ranks together send every chunk 2 (N - 1) times, in whatever order."""
        sizes, ranks = sizes_of(call), range(call.ranks)
        wide, laps = call.given[0][0].element_size(), 2 * (call.ranks - 1)
        sent = sorted(size for rank in ranks for _, size in call.messages(rank, "send"))
        want = sorted(sizes * laps)
        if sent == [wide * n for n in want]:
            return
        other = [width for width in (1, 2, 4, 8) if sent == [width * n for n in want]]
        expect.that(
            not other,
            f"an element has {other[0] if other else wide} bytes in the messages and {wide} in the tensor: keep its dtype",
        )
        expect.that(
            False,
            f"{call.ranks} ranks sent messages of {sorted(set(sent))} bytes, {sum(sent)} in all; the chunks have "
            f"{[wide * n for n in sizes]} bytes, and each is sent {laps} times, {wide * sum(want)} in all",
        )


class TestPairwiseAllToAll(Exercise):
    """All-to-all"""

    name = "pairwise_all_to_all"
    reference = "minitrain.parallel.collectives.algorithms:pairwise_all_to_all"
    hidden = COLLECTIVES

    def calls(self, submission):
        cases = [(5, (2,)), (2, (3,)), (3, (2, 2)), (4, (3,)), (5, ()), (4, (3,)), (3, (2,), I64)]
        cases += [(2, (1, 3), F32), (3, (0,))]
        return calls_of(
            submission,
            [
                (ranks, [([drawn(shape, *dtype) for _ in range(ranks)],) for _ in range(ranks)])
                for ranks, shape, *dtype in cases
            ],
        )

    @check(
        points=3, title="chunk j of rank i becomes chunk i of rank j; what is given stays as it was"
    )
    def test_values(self, submission):
        calls = self.calls(submission)
        self.right(calls)
        left_alone(calls, "chunks")

    @staticmethod
    def right(calls):
        """The results, on every rank, whatever was sent."""
        for call in calls:
            x, ranks = [chunks for (chunks,) in call.given], call.ranks
            for rank, row in enumerate(call.rows):
                want = [x[source][rank] for source in range(ranks)]
                turned = [x[rank - step][rank] for step in range(ranks)]
                got = row["out"]
                whole = isinstance(got, (list, tuple)) and len(got) == ranks
                others = enumerate(zip(got, want)) if whole else []
                bad = [j for j, pair in others if difference(*pair) is not None]
                expect.equal(
                    got,
                    want,
                    what=f"rank {rank} of {ranks}",
                    hints=[
                        (x[rank], "those are the rank's own chunks: nothing moved"),
                        (
                            turned,
                            "all are there, in order of arrival: put what rank j sent at place j",
                        ),
                        *(TestPairwiseAllToAll.why(got, x, rank, bad) if bad else []),
                    ],
                )

    @staticmethod
    def why(got, x, rank, bad):
        """bad: the places of `got` that do not hold what they must; x: all ranks' chunks."""
        if bad == [rank]:
            return [(got, f"your own chunk is missing at place {rank}: copy it, it is not sent")]
        others = [j for j in bad if j != rank]
        j = others[0]
        for k, chunk in enumerate(x[j]):
            if difference(got[j], chunk) is None:
                words = f"place {j} holds rank {j}'s chunk {k}, and not its chunk {rank}"
                return [(got, f"{words}: a rank sends to rank j its chunk j")]
        for source, chunks in enumerate(x):
            if difference(got[j], chunks[rank]) is None:
                words = f"place {j} holds what rank {source} sent"
                return [(got, f"{words}: put what rank j sent at place j")]
        return [(got, words) for _, words in rounded(got[j], x[j][rank])]

    @check(points=6, title="step by step: to rank + s, from rank - s, one chunk each")
    def test_messages(self, submission):
        calls = self.calls(submission)
        only_messages(submission, calls)
        for call in calls:
            for rank in range(call.ranks):
                to = [(rank + step) % call.ranks for step in range(1, call.ranks)]
                source = [(rank - step) % call.ranks for step in range(1, call.ranks)]
                sent, received = call.peers(rank, "send"), call.peers(rank, "recv")
                expect.that(
                    sorted(sent) == sorted(to),
                    f"rank {rank} sent to {sorted(sent)}, needed are {sorted(to)}: one chunk to "
                    "each other rank, straight",
                )
                expect.that(
                    (sent, received) == (to, source),
                    f"rank {rank} of {call.ranks} sent to {sent} and received from {received}, in "
                    f"this order: in step s send to rank + s and receive from rank - s, so to {to} "
                    f"and from {source}, and no two send to one rank at once",
                )
                bytes_sent = sum(size for _, size in call.messages(rank, "send"))
                enough = (call.ranks - 1) * call.given[rank][0][0].nbytes
                expect.that(
                    bytes_sent == enough,
                    f"rank {rank} sent {bytes_sent} bytes, the chunks for the others have {enough}: "
                    "each peer gets its own chunk only, as it is",
                )
        with expect.though(AS_THEY_MUST_BE), told_above():
            self.right(calls)


class TestNaiveAllReduce(Exercise):
    """Repair the deadlock"""

    name = "naive_all_reduce"
    reference = "minitrain.parallel.collectives.algorithms:naive_all_reduce"
    hidden = COLLECTIVES

    def calls(self, submission):
        cases = [
            (5, (3,)),
            (2, (3,)),
            (4, (2, 3)),
            (3, ()),
            (4, (2, 3)),
            (5, (2,), I64),
            (3, (4,), F32),
        ]
        return calls_of(submission, [one_each(*case) for case in cases], timeout=5)

    @check(points=2, title="it ends, and every rank holds the sum (2 to 5 ranks)")
    def test_values(self, submission):
        calls = self.calls(submission)
        self.right(calls)
        left_alone(calls, "tensor")

    @staticmethod
    def right(calls):
        """The results, on every rank, whatever was sent."""
        for call in calls:
            x = [tensor for (tensor,) in call.given]
            total = sum(x)
            for rank, row in enumerate(call.rows):
                expect.equal(
                    row["out"],
                    total,
                    what=f"rank {rank} of {call.ranks}",
                    hints=[
                        (
                            x[rank],
                            "that is the rank's own tensor: "
                            + (
                                "it must return the total that it receives"
                                if rank
                                else "it must return the total that it adds up"
                            ),
                        ),
                        *([(x[0], TestNaiveAllReduce.too_little(call, rank))] if rank else []),
                        (total - x[0], "rank 0's own part is missing from the sum"),
                        (
                            total / call.ranks,
                            "that is the average: it is the sum that is asked for",
                        ),
                        *TestNaiveAllReduce.partial(x),
                        *rounded(row["out"], total),
                    ],
                )

    @staticmethod
    def too_little(call, rank):
        """To a rank that got rank 0's own tensor: when that was sent."""
        ops = [(kind, peer) for kind, peer, _ in call.rows[0]["ops"]]
        before = ops[: ops.index(("send", rank))] if ("send", rank) in ops else ops
        if any(kind == "recv" for kind, _ in before):
            return "that is rank 0's own tensor: the others' must be added to what it hands out"
        return (
            "that is rank 0's own tensor, sent before rank 0 had received anything: first the others "
            "send, and rank 0 adds up; then the total goes out"
        )

    @staticmethod
    def partial(x):
        """The sum of some ranks' tensors only."""
        for count in range(2, len(x)):
            for some in combinations(range(len(x)), count):
                words = f"that is the sum of ranks {', '.join(map(str, some))} only: rank 0 has every part before it hands out the first total"
                yield sum(x[rank] for rank in some), words

    @check(points=5, title="rank 0 collects and hands out: N - 1 messages in, N - 1 out")
    def test_messages(self, submission):
        calls = self.calls(submission)
        only_messages(submission, calls)
        for call in calls:
            size = call.given[0][0].nbytes
            for rank in range(call.ranks):
                want = [(peer, size) for peer in (range(1, call.ranks) if rank == 0 else [0])]
                sent, received = call.messages(rank, "send"), call.messages(rank, "recv")
                expect.that(
                    sorted(sent) == sorted(received) == want,
                    f"rank {rank} of {call.ranks} sent (rank, bytes) {sent} and received {received}; "
                    "keep the plan of the broken one: each rank sends its tensor to rank 0, rank 0 "
                    "adds up and the total goes out again. Only their order was wrong",
                )
        with expect.though("the messages are as many and as long as they must be"), told_above():
            self.right(calls)


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
            expect.equal(
                row["ring_bytes"], row["bytes"] * 14 // 8, what=f"the ring at {row['bytes']} bytes"
            )
            expect.equal(
                row["doubling_bytes"], row["bytes"] * 3, what=f"doubling at {row['bytes']} bytes"
            )


class TestBytesPerRank(Question):
    """Bytes a rank sends"""

    name = "bytes_per_rank"
    rests_on = ("ring_all_reduce",)

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
    rests_on = ("sweep",)

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
