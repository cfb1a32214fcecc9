"""The checks of lab e02e: context parallelism, graded by what is sent, computed and kept."""

from __future__ import annotations

from functools import partial
from random import randrange
from typing import ClassVar

import torch

from minitrain.lab.failures import SubmissionFailed
from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.verdicts import below, each, told_above
from minitrain.words import plural

from .probes import e02e_context_parallel as probes

LAB = "e02e_context_parallel"
SIZES = {
    "cpu": {
        "heads": 16,
        "kv_heads": 4,
        "head_size": 16,
        "ranks": [2, 4, 8, 16],
        "sent_length": 64,
        "held_ranks": 8,
        "lengths": [128, 256, 512, 1024],
        "balance_ranks": [2, 4, 8],
        "balance_length": 256,
    },
    "test": {"ranks": [2, 4, 16], "held_ranks": 4, "lengths": [128, 256], "balance_length": 64},
    "gpu": {"head_size": 64},
    "multi": {"head_size": 64},
}
REVEALS = {
    "last_over_first": Reveal(
        "computed", "1 : 3 : 5 : 7, of 4,000 tokens", formula=lambda ranks: 2 * ranks - 1
    ),
    "ring_backward": Reveal(
        "measured", "N-1 blocks and N-1 gradients", formula=lambda ranks: 2 * (ranks - 1)
    ),
    "peak": Reveal(
        "measured",
        "of scores alone, as in a very long text: three of T/N x T against one of T/2N x T/2N",
        formula=lambda ranks: 12 * ranks,
    ),
}
HIDDEN = tuple(
    f"minitrain/parallel/{name}.py"
    for name in (
        *("collectives/overlapped", "collectives/differentiable"),
        *("context/ring", "context/gather", "context/split", "context/model"),
    )
)
BATCH, SIZE = 2, 4  # sequences, head size


def alone(call, more):
    """What `call` gives on one rank, which has no neighbour; where it sends, in words."""
    try:
        return call()
    except SubmissionFailed as failure:
        words = f"one rank alone has no neighbour: 0 messages, and nothing to wait for{more}"
        raise SubmissionFailed(failure.kind, f"{words}\n{failure}") from None


def on_ranks(submission, probe, calls, ranks, more=""):
    """What `probe` gives, call by call: [(the ranks' arguments, the ranks' results), …]; more: in
    the words for one rank alone."""
    if ranks == 1:
        results = alone(lambda: submission.launch(probe, calls, ranks=1, timeout=10), more)
    else:
        results = submission.launch(probe, calls, ranks=ranks, timeout=10)
    for result, notes in zip(results, submission.notes):
        for call, run in zip(result, relayed.runs(notes, "call", len(result), ["backward"])):
            call["ops"], call["under way"] = told(run), list(under_way(run))
            call["held"] = [n for what, *n in relayed.labels(run) if what == "held"]
    return list(zip(zip(*calls), zip(*results)))


def told(run):
    """(kind, bytes, peer, bytes on the wire) of each operation."""
    ops = relayed.operations(run)
    return [(op.kind, op.payload_bytes, op.peer, op.sent_bytes) for op in ops]


def under_way(run):
    """At each mark, how many messages were sent off and how many waited for; where the mark has
    sizes, of each of these."""
    for (what, *sizes), before in relayed.before_marks(run):
        if what == "held":
            continue
        pairs = list(zip(relayed.operations(before), relayed.waits(before)))
        counts = []
        for nbytes in sizes or (None,):
            own = [pair for pair in pairs if nbytes in (None, pair[0].payload_bytes)]
            arrived = sum(op.kind == "recv" and is_waited for op, is_waited in own)
            counts.append((sum(op.kind == "send" for op, _ in own), arrived))
        yield counts if sizes else counts[0]


def to_the_right(ops, rank, ranks, instead):
    """Messages from neighbour to neighbour, and nothing else; instead: what others mean."""
    others = {kind for kind, *_ in ops} - {"send", "recv"}
    expect.that(not others, f"it used {', '.join(sorted(others))}: {instead}")
    for kind, way, word in (("send", 1, "sent to"), ("recv", -1, "received from")):
        peers = sorted({peer for name, _, peer, _ in ops if name == kind})
        expect.that(
            peers in ([], [(rank + way) % ranks]),
            f"rank {rank} of {ranks} {word} rank {' and '.join(map(str, peers))}: a rank of a ring "
            "sends to its right neighbour, rank + 1, and receives from its left one, rank - 1",
        )


def all_waited(submission):
    never = submission.never_waited()
    expect.that(never is None, f"{never}, or the result of pass_on")


# What one process does.
def attend(q, k, v, readable=None):
    """(B, H, I, C), (B, K, J, C) -> out (B, H, I, C), lse (B, H, I), all keys or those readable."""
    k, v = (z.repeat_interleave(q.shape[1] // z.shape[1], dim=1) for z in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if readable is not None:
        scores = scores.masked_fill(~readable, -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def causal(q, k, v):
    length = q.shape[2]
    return attend(q, k, v, torch.ones(length, length).tril().bool())


def inputs(length, heads, kv_heads, dtype=torch.float64, batch=BATCH):
    """q, k, v, and a gradient of the output."""
    counts = (heads, kv_heads, kv_heads, heads)
    return [torch.randn(batch, n, length, SIZE, dtype=torch.float64).to(dtype) for n in counts]


def zigzag_of(length, size):
    chunks = torch.arange(length).view(2 * size, -1)
    places = torch.cat([chunks[:size], chunks[size:].flip(0)], dim=1)
    return places, places.flatten().argsort()


def places_of(order, length, size):
    """(N, T/N), two runs a rank; "drawn": any two, in any order."""
    if order == "zigzag":
        return zigzag_of(length, size)[0]
    chunks = torch.arange(length).view(2 * size, -1)
    if order == "drawn":
        chunks = chunks[torch.randperm(2 * size)]
    return chunks.reshape(size, -1)


class TestMerge(Exercise):
    """Two answers become one"""

    name = "merge"
    reference = "minitrain.parallel.context.ring:merge"
    hidden = HIDDEN

    def merged(self, submission, cases, right):
        """right(*case, out, lse) of each case: what it is given, and what it should give."""

        def run(cases):
            return submission.run(probes.in_turn, [given for given, _ in cases])

        calls = each(cases, run, lambda case, call: right(*case, *pair_of(call["out"])))
        given = [given for given, _ in cases]
        expect.left_alone(calls, given, [], own=False)  # it may write into its arguments

    @check(points=4, title="attention to two sets of keys is attention to both, of any shape")
    def test_union(self, submission):
        cases = []
        for cut, length, heads, batch, dtype in (
            (2, 7, 4, BATCH, torch.float64),
            (5, 7, 4, BATCH, torch.float64),
            (1, 2, 2, 1, torch.float64),
            (3, 9, 2, 3, torch.float32),
        ):
            q, k, v, _ = inputs(length, heads, 2, dtype, batch)
            first, second = (
                attend(q, k[:, :, s], v[:, :, s]) for s in (slice(cut), slice(cut, None))
            )
            cases.append(((*first, *second), attend(q, k, v)))
        self.merged(submission, cases, self.is_union)

    def is_union(self, given, want, found, both):
        out, lse, new_out, new_lse = given
        part = (lse / (lse + new_lse))[..., None]
        share, new_share = shares_of(lse, new_lse)
        expect.equal(
            found,
            want[0],
            what="out",
            hints=[
                (out + new_out, "that is the sum: each out was divided by its own softmax's "
                 "sum, so weigh it with its share exp(lse - both)"),
                ((out + new_out) / 2, "that is the mean: the sets weigh as exp(lse) of each"),
                (part * out + (1 - part) * new_out, "shares of lse itself: lse is a logarithm, "
                 "the weights are exp(lse)"),
                (out * new_share + new_out * share, "the two shares are exchanged"),
                (out * lse.exp()[..., None] + new_out * new_lse.exp()[..., None], "those are weighed with "
                 "exp(lse) itself: the shares exp(lse - both) add up to 1"),
            ],
        )  # fmt: skip
        expect.equal(
            both,
            want[1],
            what="lse",
            hints=[
                (lse + new_lse, "that is the sum of logarithms: the weights add up, so it is "
                 "log(exp(lse) + exp(new_lse))"),
                (torch.maximum(lse, new_lse), "that is the larger one: torch.logaddexp adds "
                 "what both weigh"),
                (lse, "that is the old one: the next merge needs the weight of both sets"),
                (new_lse, "that is the new set's: the next merge needs the weight of both sets"),
            ],
        )  # fmt: skip

    @check(points=2, title="scores of 1,000 do not overflow, whatever the other rows have")
    def test_large(self, submission):
        cases = []
        for levels in (  # lse and new_lse of each row
            ((1000, 1000), (1001, 999)),
            ((-1000, -1000), (-999, -1001)),
            ((1000, -1000, 3), (1001, -999, 4)),
            ((1000, -1000, 0), (-1000, 1000, 900)),
        ):
            lse, new_lse = torch.tensor(levels, dtype=torch.float64).view(2, 1, 1, -1)
            out, new_out = torch.randn(2, *lse.shape, SIZE, dtype=torch.float64)
            share, new_share = shares_of(lse, new_lse)
            want = out * share + new_out * new_share, torch.logaddexp(lse, new_lse)
            cases.append(((out, lse, new_out, new_lse), want))
        with below(self.test_union, submission):
            self.merged(submission, cases, self.is_large)

    def is_large(self, given, want, found, both):
        _, lse, _, new_lse = given
        levels = f"with lse of {expect.show(lse.flatten().tolist())}"
        levels += f" and {expect.show(new_lse.flatten().tolist())}"
        expect.that(
            both.isfinite().all(),
            f"{levels} the new lse is {both[~both.isfinite()][:1].tolist()}: "
            "torch.logaddexp takes the larger one out before exp, row by row",
        )
        bad = ~found.isfinite().all(-1) | ~found.any(-1)
        shown = [f"{z[bad][0].item():.2g}" for z in shares_of(lse, new_lse) if bad.any()]
        expect.that(
            not bad.any(),
            f"{levels} out is {found[bad].flatten()[:1].tolist()} in a row whose shares are {' and '.join(shown)}: exp "
            "of too large or too low a number is inf or 0. Take the difference to `both` first, row by row, then exp; "
            "-1000 is a logarithm like any other, only -inf weighs nothing",
        )
        expect.equal(found, want[0], what=f"{levels}: out")
        expect.equal(both, want[1], what=f"{levels}: lse")

    @check(
        points=2,
        title="a row that read nothing has the other set's answer; in both: out 0, lse -inf",
    )
    def test_nothing(self, submission):
        cases = []
        for dtype, level in ((torch.float64, 0.5), (torch.float32, -20.0), (torch.float64, 1000.0)):
            out, new_out = torch.randn(2, 1, 1, 3, SIZE, dtype=torch.float64).to(dtype)
            lse = torch.tensor([-torch.inf, level, -torch.inf], dtype=dtype).view(1, 1, 3)
            new_lse = torch.tensor([level, -torch.inf, -torch.inf], dtype=dtype).view(1, 1, 3)
            out = out.masked_fill(lse[..., None] == -torch.inf, 0)
            new_out = new_out.masked_fill(new_lse[..., None] == -torch.inf, 0)
            want = out + new_out, torch.maximum(lse, new_lse)
            cases.append(((out, lse, new_out, new_lse), want))
        with below(self.test_large, submission):
            self.merged(submission, cases, self.is_nothing)

    def is_nothing(self, given, want, found, both):
        out, lse, new_out, new_lse = given
        unread = (lse == -torch.inf) & (new_lse == -torch.inf)
        is_nan = found.isnan().any(-1) | both.isnan()
        expect.that(
            not (is_nan & unread).any(),
            "NaN where neither set was read: -inf - -inf is NaN, and 0 / 0 is, too. Where `both` "
            "is -inf take the difference to 0 instead, row by row",
        )
        words = "a set that read nothing has lse -inf and weighs exp(-inf), 0"
        expect.that(
            not is_nan.any(), f"NaN where one set was read, with lse {lse.max():.4g}: {words}"
        )
        whole = "that is one set's for all rows: only the rows that a set did not read weigh nothing in it"
        hints = [(out, whole), (new_out, whole)]
        what = "out of rows that one set, or none, was read by"
        expect.equal(found, want[0], what=what, hints=hints)
        words = "lse stays -inf where neither set was read: only what is subtracted is replaced"
        hints = [(both, words)] if torch.equal(both[~unread], want[1][~unread]) else []
        expect.equal(both, want[1], what="lse of such rows", hints=hints)


def shares_of(lse, new_lse):
    return torch.sigmoid(lse - new_lse)[..., None], torch.sigmoid(new_lse - lse)[..., None]


def pair_of(got, names="out and lse"):
    words = f"return two tensors, {names}"
    expect.that(isinstance(got, (tuple, list)) and len(got) == 2, words)
    expect.that(all(isinstance(z, torch.Tensor) for z in got), words)
    return got


class TestAround(Exercise):
    """Blocks go round"""

    name = "around"
    reference = "minitrain.parallel.collectives.overlapped:around"
    hidden = HIDDEN
    instead = (
        "then a rank holds N blocks at once. In a ring it holds two, one here and one on its way"
    )

    def walked(self, submission, ranks, shapes, right):
        """right(the ranks' blocks, what they saw) of calls in a row; shapes: (shape, dtype) of each
        block that a call sends round."""
        rings = [
            [torch.randn(ranks, *shape, dtype=torch.float64).to(dtype) for shape, dtype in call]
            for call in shapes
        ]

        def run(rings):
            calls = [
                [tuple(ring[rank] for ring in call) for call in rings] for rank in range(ranks)
            ]
            return on_ranks(submission, probes.walk, calls, ranks)

        each(rings, run, lambda _, call: right(*call))

    @check(points=3, title="own block first, then the left neighbour's, … (1, 2 and 4 ranks)")
    def test_blocks(self, submission):
        shapes = (
            [((2, 3), torch.float64)],
            [((5,), torch.float32)],
            [((), torch.float64), ((1, 3, 2), torch.bfloat16)],  # two rings at a time
        )
        for ranks in (4, 2, 1):
            try:
                self.walked(submission, ranks, shapes, self.are_blocks)
            except SubmissionFailed as failure:
                if failure.kind in ("deadlock", "mismatch"):
                    # side by side one ring waits for another: alone it tells why
                    self.walked(submission, ranks, shapes[:2], self.are_blocks)
                raise

    def are_blocks(self, given, results):
        for rank, (mine, call) in enumerate(zip(given, results)):
            for ring in range(len(mine)):
                steps = [pairs[ring] for pairs in call["out"]["seen"]]
                self.judge(steps, [every[ring] for every in given], rank, len(given))
            expect.left_alone([call], [mine], ["block"] * len(mine), what=f"rank {rank}")

    def judge(self, steps, blocks, rank, ranks):
        """What one ring yielded: pairs of an owner and its block, in their order."""
        is_pairs = all(isinstance(step, (tuple, list)) and len(step) == 2 for step in steps)
        steps = [step for step in steps if step is not None]  # shorter than the ring beside it
        expect.that(is_pairs or len(steps) < ranks, "yield pairs: the owner's rank, and its block")
        owners = [owner for owner, _ in steps]
        words = (
            "blocks travel to the right, so the next one is the left neighbour's: (rank - step) % N"
        )
        if len(owners) != ranks:
            words = "yield N times, the own block among them"
        expect.that(
            owners == [(rank - step) % ranks for step in range(ranks)],
            f"rank {rank} of {ranks}: owners {owners}, expected "
            f"{[(rank - step) % ranks for step in range(ranks)]}: {words}",
        )
        came = [
            [r for r in range(ranks) if expect.difference(block, blocks[r], 0.0) is None]
            for _, block in steps
        ]
        for owner, whose in zip(owners, came):
            words = "nobody's: yield each one as it came, and once it is here"
            if whose:
                words = f"rank {whose[0]}'s: name and block must go together"
            if whose and ranks > 2 and came[1:] == [[(rank - 1) % ranks]] * (ranks - 1):
                words = f"rank {whose[0]}'s again: pass on the block that came, not the own one in each step"
            expect.that(
                whose == [owner],
                f"rank {rank} of {ranks}: the block said to be of rank {owner} is {words}",
            )

    @check(points=4, title="N-1 messages of one block, to the right, and no other")
    def test_messages(self, submission):
        shapes = ([((2, 3), torch.float64)], [((7,), torch.float32)])
        for ranks in (4, 1):
            self.walked(submission, ranks, shapes, self.are_messages)
            all_waited(submission)

    def are_messages(self, given, results):
        ranks, nbytes = len(given), given[0][0].nbytes
        for rank, call in enumerate(results):
            to_the_right(call["ops"], rank, ranks, self.instead)
            sends = [sent for kind, sent, *_ in call["ops"] if kind == "send"]
            words = ": the last one has been everywhere, it goes no further"
            expect.that(
                sends == [nbytes] * (ranks - 1),
                f"rank {rank} of {ranks} sent {plural(len(sends), 'message')} of {sends} "
                f"bytes, expected {ranks - 1}, each of one block, {nbytes} "
                f"bytes{words if sends == [nbytes] * ranks else ''}",
            )

    @check(points=3, title="the next block is under way while the caller has this one")
    def test_overlap(self, submission):
        with below(self.test_blocks, submission):
            self.walked(submission, 4, [[((2, 3), torch.float64)]] * 2, self.are_under_way)

    def are_under_way(self, given, results):
        ranks = len(given)
        for rank, call in enumerate(results):
            with told_above():
                to_the_right(call["ops"], rank, ranks, self.instead)
            for step, (sends, waited) in enumerate(call["under way"]):
                where = f"rank {rank}, at yield {step + 1} of {ranks}"
                want = min(step + 1, ranks - 1)
                words = (
                    "call pass_on before the yield, or nothing travels while the caller computes"
                )
                if sends > want:
                    words = (
                        "yield each block as soon as it is here, before the one after it is sent"
                    )
                expect.that(
                    sends in (want, step + 1),  # a last one too many: the check above says so
                    f"{where}: {sends} blocks had been sent off, expected {want}: {words}",
                )
                words = "call the result of pass_on after the yield"
                if waited < step:
                    words = "before that what is yielded may not have come yet"
                expect.that(
                    waited == step,
                    f"{where}: it had waited for {waited} blocks, needed are {step}: {words}",
                )


class TestZigzag(Exercise):
    """An early chunk and a late one"""

    name = "zigzag"
    reference = "minitrain.parallel.context.ring:zigzag"
    hidden = HIDDEN

    def cut(self, submission, right):
        """right((tokens, ranks), places, inverse) in one process, chunks of one token among them."""
        both = 12 * randrange(1, 4)  # one text over 3 ranks, and over 2
        sizes = ((2, randrange(2, 9)), (1, randrange(2, 9)), (8, randrange(2, 9)), (5, 1), (3, 2))
        cases = [(both, 3), (both, 2), *((2 * size * chunk, size) for size, chunk in sizes)]

        run = partial(submission.run, probes.in_turn)

        def judge(case, call):
            right(case, *pair_of(call["out"], "places and inverse"))

        expect.left_alone(each(cases, run, judge), cases, [])

    @check(points=4, title="places: chunks r and 2N-1-r of 2N (1 to 8 ranks)")
    def test_places(self, submission):
        self.cut(submission, self.are_places)

    def are_places(self, case, got, _):
        length, size = case
        want, _ = zigzag_of(length, size)
        chunks = torch.arange(length).view(2 * size, -1)
        early, late = chunks[:size], chunks[size:]
        flipped = (torch.arange(size) ^ (2 * size - 1))[:, None] * len(chunks[0])
        expect.equal(
            got,
            want,
            what=f"places of {length} tokens on {plural(size, 'rank')}",
            hints=[
                (torch.arange(length).view(size, -1), "that is the contiguous order"),
                (torch.arange(length).view(-1, size).T.contiguous(), "that deals tokens out one "
                 "by one: a rank holds two *runs* of consecutive tokens"),
                (torch.cat([early, late], dim=1), "rank r has chunks r and N + r: the last rank "
                 "then has the later one of both. Turn the late chunks round"),
                (torch.cat([late.flip(0), early], dim=1), "the early chunk comes first"),
                (torch.cat([early, late.flip(0).flip(1)], dim=1), "the tokens *inside* a late "
                 "chunk stay in the text's order: .flip(0), not .flip(0, 1)"),
                (torch.cat([early, flipped + chunks[0]], dim=1), "the late chunk is 2N-1-r, which r XOR (2N-1) is only "
                 "where N is a power of two"),
                (torch.stack([torch.arange(size), torch.arange(2 * size - 1, size - 1, -1)], 1),
                 "those are the chunks' numbers: the places of their tokens are asked for"),
                *self.of_chunks(got, want),
            ],
        )  # fmt: skip

    @staticmethod
    def of_chunks(got, want):
        """A hint that says which chunks the ranks have, or that they have none."""
        if got.shape != want.shape:
            return []
        size, half = len(want), want.shape[1] // 2
        runs = got.reshape(2 * size, half)
        if not (runs.diff(dim=1) == 1).all():
            words = "a rank holds two *runs* of T/2N tokens that follow each other in the text, and here is none: "
            return [(got, words + "cut the text into 2N chunks first, then give each rank two")]
        if (runs[:, 0] % half).any():
            return []
        chunks = (runs[:, 0] // half).view(size, 2).tolist()
        mirrored = [[rank, 2 * size - 1 - rank] for rank in range(size)]
        return [(got, f"those are the chunks {chunks}, expected {mirrored}: r and 2N-1-r")]

    @check(points=2, title="inverse: all ranks' tokens, in the order of the text")
    def test_inverse(self, submission):
        with below(self.test_places, submission):
            self.cut(submission, self.is_inverse)

    def is_inverse(self, case, own, inverse):
        length, size = case
        places, want = zigzag_of(length, size)
        if is_order(own, length):  # another order than asked for has its own inverse
            places, want = own, own.flatten().argsort()
        expect.equal(
            inverse,
            want,
            what=f"inverse for {length} tokens on {plural(size, 'rank')}",
            hints=[
                (places.flatten(), "that is the order itself: joined[inverse] must be the text, "
                 "and that applies it twice"),
                (torch.arange(length), "that leaves the tokens as the ranks hold them"),
                *([(inverse, "that is the inverse of another order: side by side stand rank 0's early and late "
                    "chunk, then rank 1's, as in places.flatten()")] if is_order(inverse, length) else []),
            ],
        )  # fmt: skip

    @check(points=2, title="a length that 2N does not divide raises a ValueError")
    def test_refuses(self, submission):
        cases = ((25, 3), (9, 1), (30, 4), (4, 4), (12, 4), (3, 8))
        for (length, size), got in zip(cases, submission.run(probes.refusals, cases)):
            expect.that(
                got == "ValueError",
                f"{length} tokens on {plural(size, 'rank')} raised {got}, expected a ValueError: "
                f"{2 * size} equal chunks are needed",
            )


def is_order(places, length):
    """Whether it holds each token of the text once."""
    return places.dtype == torch.int64 and torch.equal(
        places.flatten().sort().values, torch.arange(length)
    )


def found_last(places, rank, q, k, v):
    """(B, H, T/N, C): out of each half of a rank's rows from the last half-block it reads."""
    mine, half = places[rank], places.shape[1] // 2
    out = torch.zeros_like(q[:, :, mine])
    for step in range(len(places)):
        theirs = places[(rank - step) % len(places)]
        for rows in (slice(half), slice(half, None)):
            for keys in (slice(half), slice(half, None)):
                queries, read = mine[rows], theirs[keys]
                if queries[0] >= read[0]:
                    readable = queries[:, None] >= read
                    found = attend(q[:, :, queries], k[:, :, read], v[:, :, read], readable)
                    out[:, :, rows] = found[0]
    return out


class TestRingForward(Exercise):
    """Ring attention"""

    name = "ring_forward"
    reference = "minitrain.parallel.context.ring:ring_forward"
    hidden = HIDDEN
    instead = "blocks come `around`, one after another: a rank holds two at once, not all of them"

    def rung(self, submission, ranks, cases, right):
        """right(what, inputs, places, rank, results) of calls in a row; cases: an order of the tokens, and
        q, k, v of the whole text."""
        cases = [
            (order, given, places_of(order, given[0].shape[2], ranks)) for order, given in cases
        ]

        def run(cases):
            calls = [
                [
                    (places, q[:, :, places[rank]], torch.stack((k, v))[:, :, :, places[rank]])
                    for _, (q, k, v, *_), places in cases
                ]
                for rank in range(ranks)
            ]
            return on_ranks(submission, probes.ring, calls, ranks)

        def judge(case, call):
            order, given, places = case
            for rank, (mine, got) in enumerate(zip(*call)):
                what = f"{order} order, rank {rank} of {ranks}"
                right(what, given, places, rank, got | got["out"] | {"call": got, "mine": mine})

        each(cases, run, judge)

    def is_ring(self, what, places, rank, got):
        """Blocks go to the right, and each is computed with while the next one travels."""
        ranks, half = len(places), places.shape[1] // 2
        to_the_right(got["ops"], rank, ranks, self.instead)
        first = places[:, ::half]  # of each run
        steps = [(min(step + 1, ranks - 1), step) for step in range(ranks)]
        needed = {
            pair for pair in steps if first[rank].max() >= first[(rank - pair[1]) % ranks].min()
        }
        words = "compute with each block inside the loop over `around`, while the next one travels"
        found = list(dict.fromkeys(got["under way"]))
        if found[:1] == steps[-1:] != steps[:1]:
            words = f"all {ranks} blocks were here before the first was read: {words}"
        expect.that(
            needed <= set(found) <= set(steps),
            f"{what}: (sent off, waited for) was {found} as it computed, expected {steps}, "
            f"block by block: {words}",
        )

    @check(points=3, title="out and lse equal one process, in any order of two runs (1 to 3 ranks)")
    def test_values(self, submission):
        orders = {  # each size in zig-zag order first
            3: ((18, 6, 3), (12, 4, 4, "contiguous"), (18, 4, 1, "drawn")),
            2: ((20, 6, 3), (4, 2, 2, "drawn")),
            1: ((8, 2, 1),),
        }
        for ranks, cases in orders.items():
            given = [
                (order, inputs(length, heads, kv_heads))
                for length, heads, kv_heads, *others in cases
                for order in ("zigzag", *others)
            ]
            self.rung(submission, ranks, given, self.are_values)

    def are_values(self, what, given, places, rank, got):
        q, k, v, _ = given
        expect.left_alone([got["call"]], [got["mine"]], ["places", "q", "kv"], what=what)
        out, lse = pair_of(got["got"])
        want, want_lse = causal(q, k, v)
        length, mine, ranks = q.shape[2], places[rank], len(places)
        half = torch.arange(length) // (length // (2 * ranks))  # of each token
        earlier = attend(q, k, v, half[:, None] > half)[0].nan_to_num(0)
        own = attend(*(z[:, :, mine] for z in (q, k, v)), mine[:, None] >= mine)[0]
        hints = [
            (attend(q, k, v)[0][:, :, mine], "that reads later keys, too: give attend the "
             "offset of the two halves, it masks what comes later"),
            (own, "that is this rank's own keys alone: each block that comes around must be "
             "merged, whichever rank it is of. What is read of it follows from the offsets of `halves` alone"),
            (earlier[:, :, mine], "the blocks on the diagonal are missing: at offset 0 query "
             "i reads keys 0 to i"),
            (found_last(places, rank, q, k, v), "that is what was found last: merge it "
             "with what these rows had found before, and keep both, out and lse"),
            ((want * want_lse.sigmoid()[..., None])[:, :, mine], "that is merged with a first set of lse 0: what "
             "read nothing has lse -inf, begin with nothing_read(q)"),
        ]  # fmt: skip
        most = 4 * ranks
        if got["flops"] > 1.5 * most * self.half_block(q, places):
            told = (
                f"a rank has {most} half-blocks, and more was computed: for each offset attend to "
                "q[:, :, rows] and k[:, :, keys], not to the whole block"
            )
            hints.append((out, told))
        elif not torch.equal(places, zigzag_of(length, ranks)[0]):
            told = (
                f"zig-zag order was right, this one is not: here the ranks have {places.tolist()}. What is read "
                "follows from the offsets of `halves(places, …)`, not from ranks' numbers"
            )
            hints.append((out, told))
        expect.equal(out, want[:, :, mine], what=f"{what}, out", hints=hints)
        expect.equal(lse, want_lse[:, :, mine], what=f"{what}, lse")

    def half_block(self, q, places):
        """Its FLOPs."""
        return 4 * BATCH * q.shape[1] * SIZE * (places.shape[1] // 2) ** 2

    @check(points=4, title="half-blocks that the causal mask empties are never computed")
    def test_skips(self, submission):
        cases = [(order, inputs(96, 4, 2)) for order in ("zigzag", "contiguous", "drawn")]
        with below(self.test_values, submission):
            self.rung(submission, 3, cases, self.skips)

    def skips(self, what, given, places, rank, got):
        half = places.shape[1] // 2
        runs = places[rank].view(2, half)[:, 0] // half  # which of the text's 2N
        computed, want = got["flops"] / self.half_block(given[0], places), int(runs.sum()) + 2
        words = "skip those with offset < 0, all of whose keys come after all of their queries"
        if computed > 4 * len(places) + 0.9:
            words = (
                f"a rank has {4 * len(places)} in all. An offset is that of two halves: "
                "attend to q[:, :, rows] and k[:, :, keys], not to the whole block each time"
            )
        expect.that(
            computed < want + 0.9,  # a merge may be products as well, of a few FLOPs each
            f"{what} computed {computed:.3g} half-blocks, {want} hold anything that may be "
            f"read: {words}",
        )
        with expect.though("no empty half-block is computed"):
            self.is_ring(what, places, rank, got)

    @check(points=4, title="N-1 messages of K heads, each on its way while the rank computes")
    def test_messages(self, submission):
        sizes = ((24, 8, 1, torch.float64), (12, 4, 4, torch.float32), (12, 6, 2, torch.bfloat16))
        cases = [("zigzag", inputs(*each)) for each in sizes]
        with below(self.test_values, submission):
            self.rung(submission, 3, cases, self.are_messages)
        all_waited(submission)

    def are_messages(self, what, given, places, rank, got):
        with told_above():
            self.is_ring(what, places, rank, got)
        ranks, (q, k, *_) = len(places), given
        want = 2 * k.nbytes // ranks
        sends = [nbytes for kind, nbytes, *_ in got["ops"] if kind == "send"]
        words = f"expected {ranks - 1} of {want}, this rank's keys and values"
        if sends and sends[0] == want * q.shape[1] // k.shape[1] != want:
            words += ": they were repeated for the query heads *before* they travelled"
        elif k.dtype == torch.bfloat16 and sends and sends[0] in (2 * want, 4 * want):
            words += f" in {k.dtype}: they travelled in a wider dtype. Let kv go round as it is, `attend` computes in float32 by itself"
        expect.that(
            sends == [want] * (ranks - 1), f"{what} sent messages of {sends} bytes: {words}"
        )
        if q.shape[1] >= 4 * k.shape[1]:  # answers are larger than blocks, which come and go
            self.holds_as_much(what, ranks, q.nbytes // ranks // 2, got)

    def holds_as_much(self, what, ranks, half_answer, got):
        """As it computes with the last block, as with the second."""
        held = {}  # step -> the least of it
        for (_, step), (nbytes,) in zip(got["under way"], got["held"]):
            held[step] = min(nbytes, held.get(step, nbytes))
        last = ranks - 1
        expect.that(
            held[last] < held[1] + half_answer,
            f"{what}: as it computed with the block of step {last} it held {held[last] - held[1]} bytes more than in step 1, "
            f"and a half-block's answer has {half_answer}: answers pile up, N of them in the end. Merge each into its rows "
            "before the next one, and keep no part",
        )

    @check(points=1, title="large scores; bfloat16: parts are merged in float32, and rounded once")
    def test_rounding(self, submission):
        q, k, v, _ = inputs(12, 2, 2)
        cases = [("zigzag", (40 * q.abs(), sign * 40 * k.abs(), v)) for sign in (1, -1)]
        cases.append(("zigzag", inputs(96, 4, 2, torch.bfloat16)))
        with below(self.test_values, submission):
            self.rung(submission, 3, cases, self.is_rounded_once)

    def is_rounded_once(self, what, given, places, rank, got):
        q, k, v, *_ = given
        out, lse = pair_of(got["got"])
        exact, exact_lse = causal(*(z.double() for z in (q, k, v)))
        exact, exact_lse = exact[:, :, places[rank]], exact_lse[:, :, places[rank]]
        if q.dtype == torch.float64:
            expect.equal(out, exact, what=f"{what}, out of scores of {exact_lse.mean():.0f}")
            expect.equal(lse, exact_lse, what=f"{what}, lse of such scores")
            return
        expect.that(
            out.dtype == torch.bfloat16,
            f"out is {out.dtype}: give it back in q's dtype, bfloat16",
        )
        error = (out.double() - exact).abs()
        expect.that(
            error.max() < 0.2,
            f"rank {rank}: the largest error is {error.max():.2g}, and no rounding makes that",
        )
        ulps = (error / exact.abs().clamp(min=1e-2)).max() * 2**8
        expect.that(
            ulps < 1.1,
            f"rank {rank}: an error of {ulps:.2f} half-units in the last place of bfloat16, 1 is "
            "what rounding once costs: begin with nothing_read(q), in float32, and round at the end",
        )
        what = f"{what}, lse, in float32 for a q in bfloat16"
        expect.equal(lse, exact_lse.float(), what=what)


class TestRingBackward(Exercise):
    """Gradients come home"""

    name = "ring_backward"
    reference = "minitrain.parallel.context.ring:ring_backward"
    hidden = HIDDEN
    instead = (
        "then a rank holds the gradients of all N blocks. Let each go on with its block, by pass_on"
    )
    alone = ", and its own part never travels"

    def rung(self, submission, ranks, right):
        """right(kv of all ranks, parts[rank, owner], rank, its result) of calls in a row."""
        cases = []
        for length, kv_heads, narrow, wide in (
            (3, 2, torch.float32, torch.float64),
            (4, 1, torch.bfloat16, torch.float32),
        ):
            shape = (ranks, 2, 1, kv_heads, length, SIZE)
            cases.append((torch.randn(shape).to(narrow), torch.randn(shape, dtype=wide)))

        def run(cases):
            calls = [[(kv[r], factor[r]) for kv, factor in cases] for r in range(ranks)]
            return on_ranks(submission, probes.back, calls, ranks, self.alone)

        def judge(case, call):
            kv, factor = case
            for rank, (mine, got) in enumerate(zip(*call)):
                found = got | got["out"] | {"call": got, "mine": mine}
                right(kv, factor[:, None] * kv, rank, found)

        each(cases, run, judge)

    def asks_in_turn(self, kv, rank, got):
        """`gradients` is asked once for each block, as it comes around."""
        ranks, what = len(kv), f"rank {rank} of {len(kv)}"
        owners = [owner for owner, _ in got["log"]]
        expect.that(
            owners == [(rank - step) % ranks for step in range(ranks)],
            f"{what}: `gradients` was asked for the blocks of ranks {owners}: once for each, as they "
            "come around",
        )
        for owner, block in got["log"]:
            is_right = torch.equal(block, kv[owner])
            expect.that(is_right, f"{what}: gradients({owner}, …) got another rank's block")

    def is_ring(self, kv, parts, rank, got):
        """Blocks and gradients go to the right, each while the next block is computed with."""
        ranks = len(kv)
        self.asks_in_turn(kv, rank, got)
        to_the_right(got["ops"], rank, ranks, self.instead)
        sends = [nbytes for kind, nbytes, *_ in got["ops"] if kind == "send"]
        counts = sends.count(kv[0].nbytes), sends.count(parts[0, 0].nbytes)
        total = (ranks - 1) * (kv[0].nbytes + parts[0, 0].nbytes)
        expect.that(
            sum(sends) != total or len(sends) <= 2 * (ranks - 1),
            f"rank {rank} of {ranks} sent as many bytes as it should, in {len(sends)} messages, expected "
            f"{2 * (ranks - 1)}: a block, its keys and values together, is one message, and so is its gradient",
        )
        words = "as many as kv's"
        if counts[1] == ranks:
            words = "the own part need not travel, it waits at home for the others"
        expect.that(
            counts == (ranks - 1, ranks - 1) and len(sends) == sum(counts),
            f"rank {rank} of {ranks} sent {plural(counts[0], 'message')} of kv's size and {counts[1]} "
            f"of its gradient's, {len(sends)} in all; expected {ranks - 1} of each, in the dtype that "
            f"`gradients` gives: {words}",
        )
        for step, (blocks, _) in enumerate(got["under way"]):
            due = min(step + 1, ranks - 1), step
            expect.that(
                blocks == due,
                f"rank {rank}, step {step}: {plural(blocks[0], 'block')} of keys had been sent off and "
                f"{blocks[1]} waited for, expected {due[0]} and {due[1]}: call `gradients` inside the "
                "loop over `around`, while the next block travels",
            )

    @check(points=3, title="dq of all blocks, and all ranks' parts of the own dkv (1 to 4 ranks)")
    def test_values(self, submission):
        for ranks in (4, 3, 2, 1):
            self.rung(submission, ranks, self.are_values)

    def are_values(self, kv, parts, rank, got):
        ranks, dq = len(parts), parts[rank].sum(1)  # (N, B, K, T/N, C), a rank's from each block
        what, (got_dq, got_dkv) = f"rank {rank} of {ranks}", pair_of(got["got"], "dq and dkv")
        self.asks_in_turn(kv, rank, got)
        expect.left_alone([got["call"]], [got["mine"]], ["kv"], what=what)
        for name, got_one in (("dq", got_dq), ("dkv", got_dkv)):
            expect.that(
                got_one.dtype == dq.dtype,
                f"{what}, {name}: got {got_one.dtype}, and `gradients` gave {dq.dtype}: sum, send and return in "
                "its dtype, not in that of kv",
            )
        expect.equal(
            got_dq,
            dq.sum(0),
            what=f"{what}, dq",
            hints=[(dq[owner], "that is of one block: they add up") for owner in range(ranks)],
        )
        own, want = parts[rank, rank], parts[:, rank].sum(0)
        left = (rank - 1) % ranks  # sent on in each step: its parts, for all other owners
        passed = own + parts[left].sum(0) - parts[left, left]
        rounding = 2 * ranks * torch.finfo(kv.dtype).eps * parts.abs().max()
        is_near = got_dkv.shape == want.shape and (got_dkv - want).abs().max() < rounding
        name = str(kv.dtype).removeprefix("torch.")
        nearly = f"nearly: an error as of rounding to {name}, kv's dtype. Add up, send and return in that of `gradients`"
        expect.equal(
            got_dkv,
            want,
            what=f"{what}, dkv",
            hints=[
                (own, "that is this rank's own part: the others' queries read these keys, too"),
                (want - own, "this rank's own part is missing, which waited at home"),
                (want + own, "this rank's own part is in it twice"),
                (parts[rank].sum(0), "that adds this rank's parts for *all* owners: each "
                 "belongs to one of them, and travels there"),
                (passed, "that adds all that the left neighbour computed to the own part: "
                 "what arrives is the next block's, add it to this rank's part of that and "
                 "pass both on"),
                (parts.sum((0, 1)), "that adds all parts of all blocks: a part belongs to "
                 "its block's owner alone"),
                *[(parts[:, other].sum(0), f"that is the gradient of rank {other}'s block: it "
                   "is not home yet") for other in range(ranks)],
                *[(own + parts[other, rank], f"only the part of rank {other} came: add the sum "
                   "that came from the left to the own part, and pass both on")
                  for other in range(ranks)],
                *([(got_dkv, nearly)] if is_near else []),
            ],
        )  # fmt: skip

    @check(points=4, title="N-1 messages of kv and N-1 of its gradient, to the right")
    def test_messages(self, submission):
        for ranks in (4, 1):
            with below(self.test_values, submission):
                self.rung(submission, ranks, self.is_ring)
            all_waited(submission)

    @check(points=3, title="a gradient travels while the next block is computed")
    def test_overlap(self, submission):
        with below(self.test_values, submission):
            self.rung(submission, 4, self.is_under_way)

    def is_under_way(self, kv, parts, rank, got):
        with told_above():
            self.is_ring(kv, parts, rank, got)
        for step, (_, (sends, waited)) in enumerate(got["under way"]):
            due, where = max(0, step - 1), f"rank {rank}, step {step}"
            words = "pass one on as soon as this rank's part is in it"
            if sends > due:
                words = "the own part waits at home, it is never passed on"
            expect.that(
                sends == due,
                f"{where}: {plural(sends, 'gradient')} had been sent off before "
                f"this block was computed, expected {due}: {words}",
            )
            expect.that(
                waited <= max(0, step - 2),
                f"{where}: it had already waited for gradient {waited}. Keep what "
                "pass_on returned, and call it when the next part is there to be added",
            )


def keys_tiled(ranks, q, k, v):
    """Causal attention where the keys that came to a rank are tiled for its query heads, 0 1 0 1."""
    copies = max(1, ranks // k.shape[1])
    own = [z.repeat_interleave(copies, dim=1).unflatten(1, (ranks, -1)) for z in (k, v)]
    times = q.shape[1] // own[0].shape[1:3].numel()
    k, v = (z.repeat(1, 1, times, 1, 1).flatten(1, 2) for z in own)
    return causal(q, k, v)[0]


def heads_dealt(ranks, q, k, v):
    """Causal attention where rank r takes heads r, r + N, r + 2N, … of q, and of k and v."""
    k, v = (z.repeat_interleave(max(1, ranks // z.shape[1]), dim=1) for z in (k, v))
    orders = [torch.arange(z.shape[1]).view(-1, ranks).T.flatten() for z in (q, k, v)]
    out, _ = causal(*(z[:, order] for z, order in zip((q, k, v), orders)))
    return out[:, orders[0].argsort()]


UNLIKE_HEADS = {
    "can't divide axis": "an axis is cut into N parts that N does not divide. Each call has its own numbers of heads and "
    "key heads: of K < N key heads N need size // K copies of each, by this call's k",
}


class TestUlysses(Exercise):
    """Heads for tokens"""

    name = "ulysses"
    reference = "minitrain.parallel.context.gather:ulysses"
    hidden = HIDDEN
    cases: ClassVar = {  # ranks: tokens, heads, key heads, in a row
        2: ((14, 12, 2), (4, 2, 1), (6, 8, 4)),
        3: ((15, 6, 3), (3, 6, 1)),
        4: ((8, 8, 2), (12, 4, 1), (8, 8, 8)),
        1: ((5, 4, 2),),
    }

    def exchanged(self, submission, sizes, right):
        """right(what, q k v and d_out, rank, result, ranks) of calls in a row."""
        for ranks in sizes:
            wholes = [inputs(*case) for case in self.cases[ranks]]
            wholes.append([z.float() for z in inputs(2 * ranks, ranks, ranks, batch=1)])

            def run(wholes, ranks=ranks):
                parts = [
                    [[z.chunk(ranks, 2)[r] for z in whole] for whole in wholes]
                    for r in range(ranks)
                ]
                with expect.because(UNLIKE_HEADS):
                    return on_ranks(submission, probes.heads_for_tokens, parts, ranks)

            def judge(whole, call, ranks=ranks):
                q, k, *_ = whole
                what = f"{q.shape[1]} heads, {k.shape[1]} key heads, {plural(ranks, 'rank')}"
                for rank, (mine, got) in enumerate(zip(*call)):
                    right(f"{what}, rank {rank}", whole, rank, got | {"mine": mine}, ranks)

            each(wholes, run, judge)

    @check(points=2, title="equals one process with more, as many and fewer key heads than ranks")
    def test_values(self, submission):
        self.exchanged(submission, (2, 3, 4, 1), self.are_values)

    def are_values(self, where, given, rank, got, ranks):
        q, k, v, _ = given
        whole, _ = causal(q, k, v)
        copies = max(1, ranks // k.shape[1])
        in_turn = (z.repeat(1, copies, 1, 1) for z in (k, v))
        mixed = torch.arange(q.shape[2]).view(ranks, -1).T.flatten()
        tokens = causal(*(z[:, :, mixed] for z in (q, k, v)))[0]
        back = torch.arange(q.shape[1]).view(ranks, -1).T.flatten()
        unsent = "where K > N, size // K is 0 copies of each key head, and 1 is needed"
        expect.left_alone([got], [got["mine"]], ["q", "k", "v"], ranks > 1, where)
        mistakes = [
            (causal(q, *in_turn)[0], "query heads read the wrong key heads: copies stand side by "
             "side, 0 0 1 1 (repeat_interleave), not 0 1 0 1 (repeat)"),
            (keys_tiled(ranks, q, k, v), "on a rank with several key heads neighbours read one of them: query heads "
             "0 0 1 1 (enable_gqa), not 0 1 0 1"),
            (attend(q, k, v)[0], "that reads later tokens, too: is_causal=True"),
            (causal(q, v, k)[0], "keys and values have changed places"),
            (heads_dealt(ranks, q, k, v), "heads were dealt out one by one: rank r takes heads r·H/N to "
             "(r+1)·H/N, (n h)"),
            (tokens, "tokens are mixed: all of rank 0's come first, then all of "
             "rank 1's, (n t)"),
            (whole[:, back], "the answers' heads are mixed: all of rank 0's come first, "
             "then all of rank 1's, (n h)"),
            (whole[:, :, mixed.argsort()], "the answers' tokens are mixed: rank r gets T/N in a row, "
             "(n t)"),
            *([(0 * whole, unsent)] if k.shape[1] > ranks else []),
        ]  # fmt: skip
        hints = [(wrong.chunk(ranks, 2)[rank], words) for wrong, words in mistakes]
        local = causal(*(z.chunk(ranks, 2)[rank] for z in (q, k, v)))[0]
        words = "that is attention to this rank's own tokens: `exchange` first"
        want = whole.chunk(ranks, 2)[rank]
        expect.equal(got["out"], want, what=where, hints=[*hints, (local, words)])

    @check(
        points=1, title="gradients equal one process, also where backward runs after several calls"
    )
    def test_gradients(self, submission):
        with below(self.test_values, submission):
            self.exchanged(submission, (2, 4), self.are_gradients)

    def are_gradients(self, where, given, rank, got, ranks):
        *given, d_out = given
        leaves = [z.clone().requires_grad_() for z in given]
        causal(*leaves)[0].backward(d_out)
        for name, leaf, gradient in zip("qkv", leaves, got["gradients"]):
            expect.that(
                gradient is not None,
                f"{where}: {name} got no gradient. `exchange` is autograd's: detach nothing on the way, and write into "
                "no tensor that it does not see",
            )
            want = leaf.grad.chunk(ranks, 2)[rank]
            expect.equal(gradient, want, what=f"{where}, gradient of {name}")

    @check(points=8, title="sent: (N-1)/N · B·T/N·C · (2H + 2·max(K, N)) numbers")
    def test_bytes(self, submission):
        with below(self.test_values, submission):
            self.exchanged(submission, (2, 3, 4), self.is_ulysses)

    def is_ulysses(self, where, given, rank, got, ranks):
        """Each rank gets its heads' tokens, and no more."""
        q, k, *_ = given
        kinds = sorted({kind for kind, *_ in got["ops"]})
        expect.that(
            kinds == ["all_to_all"],
            f"{where}: it used {', '.join(kinds) or 'no message'}: only `exchange` is needed, on the "
            "way there and on the way back",
        )
        heads, kv_heads = q.shape[1], k.shape[1]
        head = q[:, 0].nbytes // ranks  # bytes of one head's T/N tokens
        sent = sum(nbytes for *_, nbytes in got["ops"]) / head
        want = (2 * heads + 2 * max(kv_heads, ranks)) * (ranks - 1) / ranks
        hints = {
            (heads + 2 * kv_heads) * (ranks - 1): "that gathers all heads on every rank: a rank "
            "needs all tokens of H/N heads",
            2 * heads * (ranks - 1) / ranks: "no key or value travelled"
            + ("; where K > N, size // K is 0, and 1 is needed" if kv_heads > ranks else ""),
            4
            * heads
            * (ranks - 1)
            / ranks: "as many as if keys and values were repeated for all H query "
            "heads before they travelled",
        }
        expect.that(
            abs(sent - want) < 1e-6,
            f"{where} sent {sent:.4g} heads of T/N tokens, expected {want:.4g}: "
            f"{hints.get(sent, 'one way for q, k and v, one back for the answers')}",
        )

    @check(points=1, title="ranks that do not divide the heads: a ValueError, and nothing is sent")
    def test_refuses(self, submission):
        q, k, v, _ = inputs(5, 6, 2)
        sizes = (4, 5, 12)
        cases = [(q, k, v, size) for size in sizes]
        for size, got in zip(sizes, submission.run(probes.refused_heads, cases)):
            words = f"raised {got}, expected a ValueError: a head is not cut"
            if got == "Sent":
                words = "called `exchange`, where nothing may be sent: a head is not cut, raise the ValueError first"
            expect.that(got == "ValueError", f"6 heads on {size} ranks {words}")


# ---- experiments ----

KINDS = ("gather", "ring", "ulysses")


def wire(row):
    """Bytes a rank sends in a layer by the closed form: (forward, backward)."""
    ranks, heads, kv_heads = row["ranks"], row["heads"], row["kv_heads"]
    own = 4 * row["length"] // ranks * row["head_size"]  # bytes of one head's T/N tokens
    if row["kind"] == "ulysses":
        each = own * (2 * heads + 2 * max(kv_heads, ranks)) * (ranks - 1) // ranks
        return each, each
    hops = (ranks - 1) * 2 * kv_heads * own
    return hops, (2 if row["kind"] == "ring" else 1) * hops


def kept(row):
    """Bytes that autograd keeps, where no score is kept."""
    ranks, heads, kv_heads, size = (row[n] for n in ("ranks", "heads", "kv_heads", "head_size"))
    own = 2 * heads * size + heads  # q, out and lse
    keys = {"gather": kv_heads * ranks, "ring": kv_heads, "ulysses": max(kv_heads, ranks)}
    return 4 * row["length"] * (own + 2 * keys[row["kind"]] * size) // ranks


class TestTraffic(Experiment):
    """Bytes on the wire"""

    name = "traffic"
    rests_on = ("ring_forward", "ring_backward", "ulysses")

    @check(points=6, title="gather, ring and Ulysses send exactly what the closed forms say")
    def test_bytes(self, table):
        for row in table:
            expect.that(row["kind"] in KINDS, f"kind {row['kind']!r}: expected {', '.join(KINDS)}")
            for way, want in zip(("forward", "backward"), wire(row)):
                got = row[f"{way}_bytes"]
                expect.that(
                    got == want,
                    f"{row['kind']} on {row['ranks']} ranks, {way}: {got} bytes measured, the closed "
                    f"form gives {want}",
                )

    @check(points=3, title="three ways on 2 to 16 ranks; only Ulysses' bytes fall")
    def test_order(self, table):
        rows = expect.rows(table, "kind", "ranks")
        asked = [rows[kind, ranks] for kind in KINDS for ranks in (2, 16)]
        at = {(r["kind"], r["ranks"]): r["forward_bytes"] + r["backward_bytes"] for r in asked}
        expect.that(
            at["ulysses", 16] < at["ulysses", 2] / 2 and at["ring", 16] > at["ring", 2],
            f"bytes a layer: {at}; with more ranks Ulysses sends less, a ring never does",
        )


class TestMemory(Experiment):
    """Bytes held"""

    name = "memory"
    rests_on = ("ring_forward", "ulysses")

    @check(
        points=4, title="kept for backward: exactly the closed forms of gather, ring and Ulysses"
    )
    def test_kept(self, table):
        for row in table:
            if row["kind"] in KINDS:
                want = kept(row)
                expect.that(
                    row["kept_bytes"] == want,
                    f"{row['kind']}, {row['length']} tokens, {row['ranks']} ranks: {row['kept_bytes']} "
                    f"bytes kept, q, k, v, out and lse are {want}",
                )

    @check(points=4, title="scores grow with T², the ring holds less than gather")
    def test_peak(self, table):
        rows = expect.rows(table, "kind", "length")
        lengths = sorted({length for _, length in rows})
        expect.that(len(lengths) >= 2, "at least two lengths of the text are asked for")
        kinds = ("scores", *KINDS)
        peak = {(kind, n): rows[kind, n]["peak_bytes"] for kind in kinds for n in lengths}
        last, before = lengths[-1], lengths[-2]
        growth = peak["scores", last] / peak["scores", before] / (last / before)
        expect.that(
            growth > 1.5,
            f"'scores' grew only {growth:.2f} times as fast as the text: does it write out T/N x T?",
        )
        expect.that(
            peak["ring", last] < peak["gather", last] < peak["scores", last],
            f"peaks at {last} tokens: { ({k: peak[k, last] for k in kinds}) }; the ring "
            "should hold less than gather, and that less than the scores",
        )


def half_blocks(row):
    """How many half-blocks a rank computes by the closed form."""
    return 2 * row["ranks"] + 1 if row["order"] == "zigzag" else 4 * row["rank"] + 3


class TestBalance(Experiment):
    """FLOPs of each rank"""

    name = "balance"
    rests_on = ("zigzag", "ring_forward")

    @check(points=5, title="exactly 4r + 3 half-blocks contiguously, and 2N + 1 in zig-zag")
    def test_flops(self, table):
        for row in table:
            half = row["length"] // (2 * row["ranks"])
            one = 4 * row["heads"] * row["head_size"] * half**2
            expect.that(
                row["flops"] == half_blocks(row) * one,
                f"{row['order']}, rank {row['rank']} of {row['ranks']}: {row['flops'] / one:.4g} "
                f"half-blocks counted, the closed form gives {half_blocks(row)}",
            )

    @check(points=3, title="both orders on 2, 4 and 8 ranks, the same work in all, and bytes")
    def test_same(self, table):
        total = {}
        for row in table:
            key = row["order"], row["ranks"]
            total[key] = total.get(key, 0) + row["flops"]
        for ranks in (2, 4, 8):
            pair = [total.get((order, ranks)) for order in ("contiguous", "zigzag")]
            expect.that(None not in pair, f"both orders are asked for on {ranks} ranks")
            expect.that(
                pair[0] == pair[1],
                f"{ranks} ranks compute {pair[0]} FLOPs in all contiguously and {pair[1]} in zig-zag: "
                "the order moves work, it makes none",
            )
            sent = {row["forward_bytes"] for row in table if row["ranks"] == ranks}
            expect.that(
                len(sent) == 1, f"{ranks} ranks sent {sorted(sent)} bytes: all send the same"
            )


# ---- questions ----


class TestUlyssesFrom(Question):
    """Where Ulysses sends less"""

    name = "ulysses_from"
    rests_on = ("traffic",)

    @check(points=5, title="the smallest number of ranks, forward and backward together")
    def test_value(self, value, records):
        rows = {(row["kind"], row["ranks"]): row for row in expect.recorded(records, "traffic")}
        ranks = sorted({n for _, n in rows})

        def first(*ways):
            sent = {key: sum(row[f"{way}_bytes"] for way in ways) for key, row in rows.items()}
            less = [n for n in ranks if sent["ulysses", n] < sent["ring", n]]
            return less[0] if less else None

        want = first("forward", "backward")
        expect.that(want is not None, "in your table Ulysses never sends less than the ring")
        expect.equal(
            value,
            want,
            what="ranks",
            hints=[
                (first("forward"), "that is forward alone: a ring's backward sends twice as much"),
                (rows["ulysses", ranks[0]]["heads"], "that is where the heads run out"),
            ],
        )


def busiest(records):
    """Order -> FLOPs of the busiest of eight ranks."""
    rows = [row for row in expect.recorded(records, "balance") if row["ranks"] == 8]
    most = {}
    for row in rows:
        most[row["order"]] = max(most.get(row["order"], 0), row["flops"])
    for order in ("contiguous", "zigzag"):
        expect.that(order in most, f"your table has no row of '{order}' on 8 ranks")
    return most


class TestZigzagGain(Question):
    """What the order is worth"""

    name = "zigzag_gain"
    rests_on = ("balance",)

    @check(points=5, title="busiest rank, contiguous over zig-zag, 8 ranks")
    def test_value(self, value, records):
        most = busiest(records)
        want = most["contiguous"] / most["zigzag"]
        least = min(row["flops"] for row in records["balance"] if row["ranks"] == 8)
        hints = [
            (1 / want, "that is the time that is left; turn the fraction round"),
            (2.0, "2 is what it approaches with more ranks"),
            (
                1.0,
                "all ranks together compute as much in both orders; a ring waits for the busiest",
            ),
            (most["contiguous"] / least, "that is the busiest over the idlest contiguous rank"),
            (15 / 9, "that is on four ranks: eight are asked for"),
        ]
        expect.close(value, want, tol=0.01, what="contiguous over zig-zag", hints=hints)


class TestTokensToHide(Question):
    """When a ring hides its messages"""

    name = "tokens_to_hide"
    rests_on = ("traffic",)

    @check(points=5, title="tokens a rank at which compute equals messages, 8 H100s on InfiniBand")
    def test_value(self, value, records):
        rows = [
            r
            for r in expect.recorded(records, "balance")
            if (r["order"], r["ranks"]) == ("zigzag", 8)
        ]
        expect.that(rows, "your table has no row of 'zigzag' on 8 ranks")
        row = rows[0]
        tokens = row["length"] // row["ranks"]
        compute, message = row["flops"] / 794e12, row["forward_bytes"] / 2 / 36.75e9
        want = tokens * message / compute
        hints = [
            (tokens * compute / message, "that is upside down: more to send needs more tokens"),
            (
                want / tokens,
                "that is how many times as many: multiply by the tokens a rank has now",
            ),
            (want * row["ranks"], "those are the tokens of the text: a rank's are asked for"),
            (want * tokens, "t comes in once: messages over compute is how many times as many"),
            (tokens * (message / compute) ** 0.5, "compute over messages grows as t²/t: no root"),
            (2 * want, "those are float32's bytes: message_seconds has half of them already"),
        ]
        expect.close(value, want, tol=0.02, what="tokens a rank", hints=hints)
