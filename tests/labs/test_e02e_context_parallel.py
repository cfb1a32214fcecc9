"""The checks of lab e02e: context parallelism, graded by what is sent, computed and kept."""

from __future__ import annotations

from functools import partial
from random import randrange
from types import SimpleNamespace
from typing import ClassVar

import torch

from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import hints, variant
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


class Ring:
    """A rank's group in one process: what it receives are the other ranks' blocks, in turn."""

    def __init__(self, rank, blocks):
        self.rank, self.size, self.blocks, self.received = rank, len(blocks), blocks, 0

    def irecv(self, room, peer):
        self.received += 1
        block = self.blocks[(self.rank - self.received) % self.size]
        return SimpleNamespace(wait=lambda: block)

    def isend(self, tensor, peer):
        return SimpleNamespace(wait=lambda: None)


def on_ranks(submission, probe, calls, ranks):
    """What `probe` gives of calls[rank]: results[call][rank], with the messages of each."""
    lonely = "one rank alone has no neighbour: 0 messages, and nothing to wait for"
    with expect.because({"": lonely} if ranks == 1 else {}):
        results = submission.launch(probe, calls, ranks=ranks, timeout=10)
    for result, notes in zip(results, submission.notes):
        for call, run in zip(result, relayed.runs(notes, "call", len(result), ["backward"])):
            call["ops"], call["under way"] = relayed.operations(run), list(under_way(run))
            call["held"] = [n for what, *n in relayed.labels(run) if what == "held"]
    return list(zip(*results))


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


def to_the_right(what, call, rank, ranks, sizes, reason):
    """Messages of these sizes in bytes, from neighbour to neighbour, and nothing else."""
    others = {op.kind for op in call["ops"]} - {"send", "recv"}
    expect.that(
        not others,
        f"{what} used {', '.join(sorted(others))}: then a rank holds N blocks at once. In a ring it "
        "holds two, one here and one on its way",
    )
    for kind, way, word in (("send", 1, "sent to"), ("recv", -1, "received from")):
        peers = sorted({op.peer for op in call["ops"] if op.kind == kind})
        expect.that(
            peers in ([], [(rank + way) % ranks]),
            f"{what} {word} rank {' and '.join(map(str, peers))}: a rank of a ring sends to its right "
            "neighbour, rank + 1, and receives from its left one, rank - 1",
        )
    sent = [op.payload_bytes for op in call["ops"] if op.kind == "send"]
    expect.that(
        sorted(sent) == sorted(sizes),
        f"{what} sent {plural(len(sent), 'message')} of {sent} bytes, expected {len(sizes)} of "
        f"{sizes}: {reason}",
    )


def all_waited(submission):
    never = submission.never_waited()
    expect.that(never is None, f"{never}, or the result of pass_on")


def inputs(length, heads, kv_heads, dtype=torch.float64, batch=BATCH):
    """q, k, v, and a gradient of the output."""
    counts = (heads, kv_heads, kv_heads, heads)
    return [torch.randn(batch, n, length, SIZE, dtype=torch.float64).to(dtype) for n in counts]


class TestMerge(Exercise):
    """Two answers become one"""

    name = "merge"
    reference = "minitrain.parallel.context.ring:merge"
    hidden = HIDDEN

    RETURN = "out * old_share + new_out * new_share, both"
    MISTAKES = (
        ((RETURN, "out + new_out, both"), "that is the sum: each out was divided by its own softmax's sum, so weigh it with its share exp(lse - both)"),
        ((RETURN, "(out + new_out) / 2, both"), "that is the mean: the sets weigh as exp(lse) of each"),
        ((RETURN, "out * new_share + new_out * old_share, both"), "the two shares are exchanged"),
        ((RETURN, "out * old_share + new_out * new_share, lse"), "lse is the old one: the next merge needs the weight of both sets"),
        (("both.masked_fill(both == -torch.inf, 0)", "both"), "NaN where neither set was read: -inf - -inf is NaN. Where `both` is -inf take the difference to 0 instead, row by row"),
    )  # fmt: skip

    def judge(self, submission, cases):
        """Of calls in a row; a call may write into its arguments."""
        calls = submission.run(probes.in_turn, cases)
        for number, (given, call) in enumerate(zip(cases, calls), 1):

            def of(f, given=given):
                return f(*(z.clone() for z in given))

            levels = [f"{z.min():.4g} to {z.max():.4g}" for z in given[1::2]]
            what = f"call {number}, lse of {levels[0]} and {levels[1]}: (out, lse)"
            told = hints(self.reference, self.MISTAKES, of)
            expect.equal(call["out"], of(variant(self.reference)), what=what, hints=told)
        expect.left_alone(calls, cases, [], own=False)

    @check(points=4, title="attention to two sets of keys is attention to both, of any shape")
    def test_union(self, submission):
        cases = []
        for shape, dtype in (
            ((BATCH, 4, 7), torch.float64),
            ((BATCH, 4, 7), torch.float64),
            ((1, 2, 2), torch.float64),
            ((3, 2, 9), torch.float32),
        ):
            out, new_out = torch.randn(2, *shape, SIZE, dtype=dtype)
            cases.append(
                (out, torch.randn(shape, dtype=dtype), new_out, torch.randn(shape, dtype=dtype))
            )
        self.judge(submission, cases)

    def judge_levels(self, submission, levels, dtypes):
        """lse and new_lse of each row; what read nothing has out 0."""
        cases = []
        for pair, dtype in zip(levels, dtypes):
            lse, new_lse = torch.tensor(pair, dtype=dtype).view(2, 1, 1, -1)
            outs = torch.randn(2, *lse.shape, SIZE, dtype=torch.float64).to(dtype)
            out, new_out = (
                o.masked_fill((z == -torch.inf)[..., None], 0) for o, z in zip(outs, (lse, new_lse))
            )
            cases.append((out, lse, new_out, new_lse))
        self.judge(submission, cases)

    @check(points=2, title="scores of 1,000 do not overflow, whatever the other rows have")
    def test_large(self, submission):
        levels = (
            ((1000, 1000), (1001, 999)),
            ((-1000, -1000), (-999, -1001)),
            ((1000, -1000, 3), (1001, -999, 4)),
            ((1000, -1000, 0), (-1000, 1000, 900)),
        )
        self.judge_levels(submission, levels, [torch.float64] * 4)

    @check(
        points=2,
        title="a row that read nothing has the other set's answer; in both: out 0, lse -inf",
    )
    def test_nothing(self, submission):
        none = -torch.inf
        levels = [((none, level, none), (level, none, none)) for level in (0.5, -20.0, 1000.0)]
        self.judge_levels(submission, levels, (torch.float64, torch.float32, torch.float64))


class TestAround(Exercise):
    """Blocks go round"""

    name = "around"
    reference = "minitrain.parallel.collectives.overlapped:around"
    hidden = HIDDEN
    F64 = torch.float64

    def walked(self, submission, ranks, shapes):
        """(where, rank, the ranks' blocks, what came of it), of calls in a row; shapes: (shape,
        dtype) of each block that a call sends round."""
        rings = [
            [torch.randn(ranks, *shape, dtype=self.F64).to(dtype) for shape, dtype in call]
            for call in shapes
        ]
        calls = [[tuple(ring[rank] for ring in call) for call in rings] for rank in range(ranks)]
        found = on_ranks(submission, probes.walk, calls, ranks)
        for number, (blocks, results) in enumerate(zip(rings, found), 1):
            for rank, call in enumerate(results):
                names = ["block"] * len(blocks)
                where = f"call {number}, rank {rank} of {ranks}"
                expect.left_alone([call], [calls[rank][number - 1]], names, what=where)
                yield where, rank, blocks, call

    @check(points=3, title="own block first, then the left neighbour's, … (1, 2 and 4 ranks)")
    def test_blocks(self, submission):
        shapes = (
            [((2, 3), self.F64)],
            [((5,), torch.float32)],
            [((), self.F64), ((1, 3, 2), torch.bfloat16)],  # two rings at a time
        )
        for ranks in (4, 2, 1):
            for where, rank, rings, call in self.walked(submission, ranks, shapes):
                for ring, blocks in enumerate(rings):
                    want = list(variant(self.reference)(Ring(rank, blocks), blocks[rank]))
                    got = [pairs[ring] for pairs in call["out"]["seen"]]
                    named = [((rank + step) % ranks, block) for step, (_, block) in enumerate(want)]
                    again = [want[0], *[(owner, want[1][1]) for owner, _ in want[1:]]]
                    told = (
                        (named, "blocks travel to the right: the next one is the left neighbour's, (rank - step) % N"),
                        (again, "the left neighbour's block came again: pass on the block that came, not the own one in each step"),
                    )  # fmt: skip
                    expect.identical(got, want, hints=told, what=f"{where}, (owner, block) by step")

    @check(points=4, title="N-1 messages of one block, to the right, and no other")
    def test_messages(self, submission):
        for ranks in (4, 1):
            shapes = ([((2, 3), self.F64)], [((7,), torch.float32)])
            for where, rank, (blocks,), call in self.walked(submission, ranks, shapes):
                sizes = [blocks[0].nbytes] * (ranks - 1)
                reason = "the last block has been everywhere, it goes no further"
                to_the_right(where, call, rank, ranks, sizes, reason)
            all_waited(submission)

    @check(points=3, title="the next block is under way while the caller has this one")
    def test_overlap(self, submission):
        for where, _, (blocks,), call in self.walked(submission, 4, [[((2, 3), self.F64)]] * 2):
            owners = [owner for ((owner, _),) in call["out"]["seen"]]
            expect.that(len(set(owners)) == len(blocks), f"{where}: owners {owners}, not N of them")
            for step, (sent, waited) in enumerate(call["under way"]):
                at, due = f"{where}, at yield {step + 1}", min(step + 1, len(blocks) - 1)
                expect.that(
                    sent in (due, step + 1),  # a last one too many: the check above says so
                    f"{at}: {sent} blocks had been sent off, expected {due}: call pass_on before each "
                    "yield, and yield each block as soon as it is here",
                )
                expect.that(
                    waited == step,
                    f"{at}: it had waited for {waited} blocks, needed are {step}: call the result of "
                    "pass_on after the yield, and before its block is yielded",
                )


class TestZigzag(Exercise):
    """An early chunk and a late one"""

    name = "zigzag"
    reference = "minitrain.parallel.context.ring:zigzag"
    hidden = HIDDEN

    MISTAKES = (
        ((".flip(0)", ""), "rank r has chunks r and N + r: the last rank then has the later one of both. Turn the late chunks round"),
        ((".flip(0)", ".flip(0, 1)"), "the tokens *inside* a late chunk stay in the text's order: .flip(0), not .flip(0, 1)"),
        (("torch.cat((chunks[:size], chunks[size:].flip(0)), dim=1)", "chunks.view(size, -1)"), "that is the contiguous order"),
        (("torch.cat((chunks[:size], chunks[size:].flip(0)), dim=1)", "chunks.flatten().view(-1, size).T"), "that deals tokens out one by one: a rank holds two *runs* of consecutive tokens"),
        (("return places, places.flatten().argsort()", "return places, places.flatten()"), "the inverse is the order itself: joined[inverse] must be the text, and that applies it twice"),
    )  # fmt: skip

    def judge(self, submission, item, name):
        """Item 0 or 1 of what comes back, of one text over several ranks, and chunks of a token."""
        both = 12 * randrange(1, 4)
        sizes = ((2, randrange(2, 9)), (1, randrange(2, 9)), (8, randrange(2, 9)), (5, 1), (3, 2))
        cases = [(both, 3), (both, 2), *((2 * size * chunk, size) for size, chunk in sizes)]
        calls = submission.run(probes.in_turn, cases)
        for (length, size), call in zip(cases, calls):
            is_pair = isinstance(call["out"], (tuple, list)) and len(call["out"]) == 2
            expect.that(is_pair, "return two tensors, places and inverse")

            def of(f, given=(length, size)):
                return f(*given)[item]

            what = f"{name} of {length} tokens on {plural(size, 'rank')}"
            told = hints(self.reference, self.MISTAKES, of)
            expect.equal(call["out"][item], of(variant(self.reference)), what=what, hints=told)
        expect.left_alone(calls, cases, [])

    @check(points=4, title="places: chunks r and 2N-1-r of 2N (1 to 8 ranks)")
    def test_places(self, submission):
        self.judge(submission, 0, "places")

    @check(points=2, title="inverse: all ranks' tokens, in the order of the text")
    def test_inverse(self, submission):
        self.judge(submission, 1, "inverse")

    @check(points=2, title="a length that 2N does not divide raises a ValueError")
    def test_refuses(self, submission):
        cases = ((25, 3), (9, 1), (30, 4), (4, 4), (12, 4), (3, 8))
        for (length, size), got in zip(cases, submission.run(probes.refusals, cases)):
            expect.that(
                got == "ValueError",
                f"{length} tokens on {plural(size, 'rank')} raised {got}, expected a ValueError: "
                f"{2 * size} equal chunks are needed",
            )


class TestRingForward(Exercise):
    """Ring attention"""

    name = "ring_forward"
    reference = "minitrain.parallel.context.ring:ring_forward"
    hidden = HIDDEN

    MISTAKES = (
        (("offset >= 0", "offset > 0"), "the blocks on the diagonal are missing: at offset 0 query i reads keys 0 to i"),
        (("Mask(offset)", "Mask(10**6)", "offset >= 0", "True"), "that reads later keys, too: give attend the offset of the two halves, it masks what comes later"),
        (("offset >= 0", "offset >= 0 and owner == group.rank"), "that is this rank's own keys alone: each block that comes around must be merged, whichever rank it is of"),
    )  # fmt: skip

    def rung(self, submission, ranks, cases):
        """(where, the ranks' arguments, rank, what came of it), of calls in a row; cases: an order
        of the tokens, and q, k, v of the whole text."""
        texts = []
        for order, (q, k, v, *_) in cases:
            places = places_of(order, q.shape[2], ranks)
            texts.append(
                [(places, q[:, :, own], torch.stack((k, v))[:, :, :, own]) for own in places]
            )
        found = on_ranks(submission, probes.ring, list(zip(*texts)), ranks)
        for number, (given, results) in enumerate(zip(texts, found), 1):
            for rank, call in enumerate(results):
                where = f"call {number}, {cases[number - 1][0]} order, rank {rank} of {ranks}"
                expect.left_alone([call], [given[rank]], ["places", "q", "kv"], what=where)
                yield where, given, rank, call

    @staticmethod
    def of(f, given, rank):
        return f(Ring(rank, [kv for *_, kv in given]), *given[rank])

    @check(points=3, title="out and lse equal one process, in any order of two runs (1 to 3 ranks)")
    def test_values(self, submission):
        for ranks, cases in {  # each size in zig-zag order first
            3: ((18, 6, 3), (12, 4, 4, "contiguous"), (18, 4, 1, "drawn")),
            2: ((20, 6, 3), (4, 2, 2, "drawn")),
            1: ((8, 2, 1),),
        }.items():
            texts = [
                (order, inputs(*numbers[:3]))
                for numbers in cases
                for order in ("zigzag", *numbers[3:])
            ]
            for where, given, rank, call in self.rung(submission, ranks, texts):
                of = partial(self.of, given=given, rank=rank)
                told = hints(self.reference, self.MISTAKES, of)
                got, want = call["out"]["got"], of(variant(self.reference))
                expect.equal(got, want, what=f"{where}, (out, lse)", hints=told)

    @check(points=4, title="half-blocks that the causal mask empties are never computed")
    def test_skips(self, submission):
        cases = [(order, inputs(96, 4, 2)) for order in ("zigzag", "contiguous", "drawn")]
        for where, given, rank, call in self.rung(submission, 3, cases):
            (places, q, _), half = given[rank], given[rank][1].shape[2] // 2
            computed = call["out"]["flops"] / (4 * BATCH * q.shape[1] * SIZE * half**2)
            runs = places[rank].view(2, half)[:, 0] // half  # which of the text's 2N
            want = int(runs.sum()) + 2
            expect.that(
                computed < want + 0.9,  # a merge may be products as well, of a few FLOPs each
                f"{where} computed {computed:.3g} half-blocks, {want} of {4 * len(places)} hold "
                "anything that may be read: skip those with offset < 0, all of whose keys come after "
                "all of their queries, and give attend q[:, :, rows] and k[:, :, keys], not whole blocks",
            )
            self.judge_ring(where, given, rank, call)

    @check(points=4, title="N-1 messages of K heads, each on its way while the rank computes")
    def test_messages(self, submission):
        sizes = ((24, 8, 1, torch.float64), (12, 4, 4, torch.float32), (12, 6, 2, torch.bfloat16))
        cases = [("zigzag", inputs(*each)) for each in sizes]
        for where, given, rank, call in self.rung(submission, 3, cases):
            self.judge_ring(where, given, rank, call)
            _, q, kv = given[rank]
            if q.shape[1] >= 4 * kv.shape[2]:  # answers are larger than blocks, which come and go
                self.judge_held(where, q.nbytes // 2, call)
        all_waited(submission)

    @staticmethod
    def judge_ring(where, given, rank, call):
        """Blocks go to the right, each while the rank computes with the one before."""
        (places, _, kv), ranks = given[rank], len(given)
        reason = (
            "keys and values of K heads, in their own dtype: `attend` repeats and widens itself"
        )
        to_the_right(where, call, rank, ranks, [kv.nbytes] * (ranks - 1), reason)
        first = places[:, :: places.shape[1] // 2]  # of each run
        steps = [(min(step + 1, ranks - 1), step) for step in range(ranks)]
        needed = {
            pair for pair in steps if first[rank].max() >= first[(rank - pair[1]) % ranks].min()
        }
        found = list(dict.fromkeys(call["under way"]))
        expect.that(
            needed <= set(found) <= set(steps),
            f"{where}: (blocks sent off, waited for) was {found} as it computed, expected {steps}: "
            "compute with each block inside the loop over `around`, while the next one travels",
        )

    @staticmethod
    def judge_held(where, half_answer, call):
        """As it computes with the last block, as much as with the second."""
        held = {}  # step -> the least of it
        for (_, step), (nbytes,) in zip(call["under way"], call["held"]):
            held[step] = min(nbytes, held.get(step, nbytes))
        more = held[max(held)] - held[1]
        expect.that(
            more < half_answer,
            f"{where}: as it computed with the last block it held {more} bytes more than with the "
            f"second, and a half-block's answer has {half_answer}: merge each answer into its rows "
            "before the next one, and keep no part",
        )

    @check(points=1, title="large scores; bfloat16: parts are merged in float32, and rounded once")
    def test_rounding(self, submission):
        q, k, v, _ = inputs(12, 2, 2)
        cases = [("zigzag", (40 * q.abs(), sign * 40 * k.abs(), v)) for sign in (1, -1)]
        cases.append(("zigzag", inputs(96, 4, 2, torch.bfloat16)))
        for where, given, rank, call in self.rung(submission, 3, cases):
            wide = [(places, q.double(), kv.double()) for places, q, kv in given]
            out, lse = self.of(variant(self.reference), wide, rank)
            got, got_lse = call["out"]["got"]
            if given[rank][1].dtype == torch.float64:
                expect.equal((got, got_lse), (out, lse), what=f"{where}, large scores, (out, lse)")
                continue
            expect.equal(got_lse, lse.float(), what=f"{where}, lse, in float32 for a q in bfloat16")
            expect.that(
                got.dtype == torch.bfloat16, f"out is {got.dtype}: give it back in q's dtype"
            )
            ulps = ((got.double() - out).abs() / out.abs().clamp(min=1e-2)).max() * 2**8
            expect.that(
                ulps < 1.1,
                f"{where}: an error of {ulps:.2f} half-units in the last place of bfloat16, 1 is "
                "what rounding once costs: begin with nothing_read(q), in float32, round at the end",
            )


def places_of(order, length, size):
    """(N, T/N), two runs a rank; "drawn": any two, in any order."""
    chunks = torch.arange(length).view(2 * size, -1)
    if order == "zigzag":
        return torch.cat([chunks[:size], chunks[size:].flip(0)], dim=1)
    if order == "drawn":
        chunks = chunks[torch.randperm(2 * size)]
    return chunks.reshape(size, -1)


class TestRingBackward(Exercise):
    """Gradients come home"""

    name = "ring_backward"
    reference = "minitrain.parallel.context.ring:ring_backward"
    hidden = HIDDEN

    def rung(self, submission, ranks):
        """(where, kv of all ranks, parts[rank, owner], rank, what came of it), of calls in a row;
        `gradients` was asked in turn."""
        cases = []
        for length, kv_heads, narrow, wide in (
            (3, 2, torch.float32, torch.float64),
            (4, 1, torch.bfloat16, torch.float32),
        ):
            shape = (ranks, 2, 1, kv_heads, length, SIZE)
            cases.append((torch.randn(shape).to(narrow), torch.randn(shape, dtype=wide)))
        calls = [[(kv[rank], factor[rank]) for kv, factor in cases] for rank in range(ranks)]
        found = on_ranks(submission, probes.back, calls, ranks)
        for number, ((kv, factor), results) in enumerate(zip(cases, found)):
            for rank, call in enumerate(results):
                where = f"call {number + 1}, rank {rank} of {ranks}"
                expect.left_alone([call], [calls[rank][number]], ["kv", "factor"], what=where)
                want = [((rank - step) % ranks, kv[(rank - step) % ranks]) for step in range(ranks)]
                what = (
                    f"{where}: what `gradients` was asked, once for each block as it comes around"
                )
                expect.identical(call["out"]["log"], want, what=what)
                yield where, kv, factor[:, None] * kv, rank, call

    @check(points=3, title="dq of all blocks, and all ranks' parts of the own dkv (1 to 4 ranks)")
    def test_values(self, submission):
        for ranks in (4, 3, 2, 1):
            for where, _, parts, rank, call in self.rung(submission, ranks):
                dq, dkv, own = parts[rank].sum((0, 1)), parts[:, rank].sum(0), parts[rank, rank]
                left = (rank - 1) % ranks
                told = (
                    ((dq, own), "dkv is this rank's own part: the others' queries read these keys, too"),
                    ((dq, dkv - own), "dkv lacks this rank's own part, which waited at home"),
                    ((dq, parts[rank].sum(0)), "dkv adds this rank's parts for *all* owners: each belongs to one of them, and travels there"),
                    ((dq, own + parts[left].sum(0) - parts[left, left]), "dkv adds all that the left neighbour computed to the own part: what arrives is the next block's, add it to this rank's part of that and pass both on"),
                    ((dq, own + parts[(rank + 1) % ranks, rank]), "dkv has only one other rank's part: add the sum that came from the left to the own part, and pass both on"),
                )  # fmt: skip
                what = f"{where}, (dq, dkv), in the dtype of `gradients`"
                expect.equal(call["out"]["got"], (dq, dkv), what=what, hints=told)

    @check(points=4, title="N-1 messages of kv and N-1 of its gradient, to the right")
    def test_messages(self, submission):
        for ranks in (4, 1):
            for where, kv, parts, rank, call in self.rung(submission, ranks):
                self.judge_ring(where, kv, parts, rank, call)
            all_waited(submission)

    @staticmethod
    def judge_ring(where, kv, parts, rank, call):
        """Blocks and gradients go to the right, each block while the one before is computed with."""
        ranks, pair = len(kv), (kv[0].nbytes, parts[0, 0].nbytes)
        reason = (
            "N-1 of kv and N-1 of its gradient, keys and values together, in the dtype that "
            "`gradients` gives. The own part need not travel, it waits at home"
        )
        to_the_right(where, call, rank, ranks, [*pair] * (ranks - 1), reason)
        blocks = [blocks for blocks, _ in call["under way"]]
        want = [(min(step + 1, ranks - 1), step) for step in range(ranks)]
        expect.that(
            blocks == want,
            f"{where}: (blocks sent off, waited for) was {blocks} at each call of `gradients`, expected "
            f"{want}: call it inside the loop over `around`, while the next block travels",
        )

    @check(points=3, title="a gradient travels while the next block is computed")
    def test_overlap(self, submission):
        for where, kv, parts, rank, call in self.rung(submission, 4):
            self.judge_ring(where, kv, parts, rank, call)
            for step, (_, (sent, waited)) in enumerate(call["under way"]):
                due = max(0, step - 1)
                expect.that(
                    sent == due,
                    f"{where}, step {step}: {plural(sent, 'gradient')} had been sent off before this "
                    f"block was computed, expected {due}: pass one on as soon as this rank's part is in it",
                )
                expect.that(
                    waited <= max(0, step - 2),
                    f"{where}, step {step}: it had already waited for gradient {waited}. Keep what "
                    "pass_on returned, and call it when the next part is there to be added",
                )


class TestUlysses(Exercise):
    """Heads for tokens"""

    name = "ulysses"
    reference = "minitrain.parallel.context.gather:ulysses"
    hidden = HIDDEN
    CASES: ClassVar = {  # ranks: tokens, heads, key heads, in a row
        2: ((14, 12, 2), (4, 2, 1), (6, 8, 4)),
        3: ((15, 6, 3), (3, 6, 1)),
        4: ((8, 8, 2), (12, 4, 1), (8, 8, 8)),
        1: ((5, 4, 2),),
    }
    UNLIKE = (
        "an axis is cut into N parts that N does not divide: of K < N key heads N need size // K "
        "copies of each, by this call's k"
    )
    MISTAKES = (
        (("mask or Mask(0)", "Mask(10**6)"), "that reads later tokens, too: is_causal=True"),
        (("whole.split(heads, dim=1)", "[whole.split(heads, dim=1)[i] for i in (0, 2, 1)]"), "keys and values have changed places"),
    )  # fmt: skip

    def exchanged(self, submission, sizes):
        """(where, whole q, k, v and d_out, rank, ranks, what came of it), of calls in a row."""
        for ranks in sizes:
            wholes = [inputs(*case) for case in self.CASES[ranks]]
            wholes.append([z.float() for z in inputs(2 * ranks, ranks, ranks, batch=1)])
            parts = [
                [[z.chunk(ranks, 2)[r] for z in whole] for whole in wholes] for r in range(ranks)
            ]
            with expect.because({"can't divide axis": self.UNLIKE}):
                found = on_ranks(submission, probes.heads_for_tokens, parts, ranks)
            for number, (whole, results) in enumerate(zip(wholes, found)):
                heads = f"{whole[0].shape[1]} heads, {whole[1].shape[1]} key heads"
                for rank, call in enumerate(results):
                    where = f"{heads}, rank {rank} of {ranks}"
                    given = [parts[rank][number][:3]]
                    expect.left_alone([call], given, ["q", "k", "v"], ranks > 1, where)
                    yield where, whole, rank, ranks, call

    @staticmethod
    def of(f, q, k, v):
        return f(q, k, v, 1, lambda pieces: pieces)

    @check(points=2, title="equals one process with more, as many and fewer key heads than ranks")
    def test_values(self, submission):
        for where, (q, k, v, _), rank, ranks, call in self.exchanged(submission, (2, 3, 4, 1)):

            def mine(f, given=(q, k, v), rank=rank, ranks=ranks):
                return self.of(f, *given).chunk(ranks, 2)[rank]

            tiled = [z.repeat(1, max(1, ranks // k.shape[1]), 1, 1) for z in (k, v)]
            local = self.of(variant(self.reference), *(z.chunk(ranks, 2)[rank] for z in (q, k, v)))
            told = [
                (mine(variant(self.reference), (q, *tiled)), "query heads read the wrong key heads: copies stand side by side, 0 0 1 1 (repeat_interleave), not 0 1 0 1 (repeat)"),
                (local, "that is attention to this rank's own tokens: `exchange` first"),
                *hints(self.reference, self.MISTAKES, mine),
            ]  # fmt: skip
            expect.equal(call["out"], mine(variant(self.reference)), what=where, hints=told)

    @check(
        points=1, title="gradients equal one process, also where backward runs after several calls"
    )
    def test_gradients(self, submission):
        for where, (*given, d_out), rank, ranks, call in self.exchanged(submission, (2, 4)):
            leaves = [z.clone().requires_grad_() for z in given]
            self.of(variant(self.reference), *leaves).backward(d_out)
            for name, leaf, got in zip("qkv", leaves, call["gradients"]):
                what = f"{where}, gradient of {name}"
                expect.that(got is not None, f"{what}: there is none. `exchange` is autograd's")
                expect.equal(got, leaf.grad.chunk(ranks, 2)[rank], what=what)

    @check(points=8, title="sent: (N-1)/N · B·T/N·C · (2H + 2·max(K, N)) numbers")
    def test_bytes(self, submission):
        for where, (q, k, *_), _, ranks, call in self.exchanged(submission, (2, 3, 4)):
            kinds = sorted({op.kind for op in call["ops"]})
            expect.equal(kinds, ["all_to_all"], what=f"{where}, what it used: only `exchange`")
            heads, kv_heads = q.shape[1], k.shape[1]
            sent = sum(op.sent_bytes for op in call["ops"]) / (q[:, 0].nbytes // ranks)
            want = (2 * heads + 2 * max(kv_heads, ranks)) * (ranks - 1) / ranks
            gathered, repeated = (
                (heads + 2 * kv_heads) * (ranks - 1),
                4 * heads * (ranks - 1) / ranks,
            )
            told = {
                gathered: "that gathers all heads on every rank: a rank needs all tokens of H/N heads",
                repeated: "keys and values were repeated for all H query heads before they travelled",
            }
            expect.that(
                abs(sent - want) < 1e-6,
                f"{where} sent {sent:.4g} heads of T/N tokens, expected {want:.4g}: "
                f"{told.get(sent, 'one way for q, k and v, one back for the answers')}",
            )

    @check(points=1, title="ranks that do not divide the heads: a ValueError, and nothing is sent")
    def test_refuses(self, submission):
        q, k, v, _ = inputs(5, 6, 2)
        cases = [(q, k, v, size) for size in (4, 5, 12)]
        for (*_, size), got in zip(cases, submission.run(probes.refused_heads, cases)):
            expect.that(
                got == "ValueError",
                f"6 heads on {size} ranks: {got}, expected a ValueError before anything is sent, since "
                "a head is not cut",
            )


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
            expect.among(row["kind"], KINDS)
            what = f"{row['kind']} on {row['ranks']} ranks, bytes of forward and backward"
            expect.equal((row["forward_bytes"], row["backward_bytes"]), wire(row), what=what)

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
        for row in (row for row in table if row["kind"] in KINDS):
            where = f"{row['kind']}, {row['length']} tokens, {row['ranks']} ranks"
            what = f"{where}: bytes kept, of q, k, v, out and lse"
            expect.equal(row["kept_bytes"], kept(row), what=what)

    @check(points=4, title="scores grow with T², the ring holds less than gather")
    def test_peak(self, table):
        rows = expect.rows(table, "kind", "length")
        lengths = sorted({length for _, length in rows})
        expect.that(len(lengths) >= 2, "at least two lengths of the text are asked for")
        before, last = lengths[-2:]
        peaks = {kind: rows[kind, last]["peak_bytes"] for kind in ("scores", *KINDS)}
        growth = peaks["scores"] / rows["scores", before]["peak_bytes"] / (last / before)
        expect.that(
            growth > 1.5,
            f"'scores' grew only {growth:.2f} times as fast as the text: does it write out T/N x T?",
        )
        expect.that(
            peaks["ring"] < peaks["gather"] < peaks["scores"],
            f"peaks at {last} tokens: {peaks}; the ring should hold less than gather, and that less "
            "than the scores",
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
            one = 4 * row["heads"] * row["head_size"] * (row["length"] // (2 * row["ranks"])) ** 2
            what = f"{row['order']}, rank {row['rank']} of {row['ranks']}: half-blocks counted"
            expect.equal(row["flops"] / one, float(half_blocks(row)), what=what)

    @check(points=3, title="both orders on 2, 4 and 8 ranks, the same work in all, and bytes")
    def test_same(self, table):
        for ranks in (2, 4, 8):
            rows = [row for row in table if row["ranks"] == ranks]
            total = [
                sum(row["flops"] for row in rows if row["order"] == order)
                for order in ("contiguous", "zigzag")
            ]
            expect.that(
                0 < total[0] == total[1],
                f"{ranks} ranks compute {total[0]} FLOPs in all contiguously and {total[1]} in "
                "zig-zag: the order moves work, it makes none",
            )
            sent = {row["forward_bytes"] for row in rows}
            words = f"{ranks} ranks sent {sorted(sent)} bytes: all send the same"
            expect.that(len(sent) == 1, words)


# ---- questions ----


class TestUlyssesFrom(Question):
    """Where Ulysses sends less"""

    name = "ulysses_from"
    rests_on = ("traffic",)

    @check(points=5, title="the smallest number of ranks, forward and backward together")
    def test_value(self, value, records):
        rows = expect.rows(expect.recorded(records, "traffic"), "kind", "ranks")
        ranks = sorted({n for _, n in rows})

        def first(*ways):
            sent = {key: sum(row[f"{way}_bytes"] for way in ways) for key, row in rows.items()}
            return next((n for n in ranks if sent["ulysses", n] < sent["ring", n]), None)

        want = first("forward", "backward")
        expect.that(want is not None, "in your table Ulysses never sends less than the ring")
        told = [
            (first("forward"), "that is forward alone: a ring's backward sends twice as much"),
            (rows["ulysses", ranks[0]]["heads"], "that is where the heads run out"),
        ]
        expect.equal(value, want, what="ranks", hints=told)


class TestZigzagGain(Question):
    """What the order is worth"""

    name = "zigzag_gain"
    rests_on = ("balance",)

    @check(points=5, title="busiest rank, contiguous over zig-zag, 8 ranks")
    def test_value(self, value, records):
        rows = [row for row in expect.recorded(records, "balance") if row["ranks"] == 8]
        most, zigzag = (
            max((row["flops"] for row in rows if row["order"] == order), default=0)
            for order in ("contiguous", "zigzag")
        )
        expect.that(most and zigzag, "your table lacks an order on 8 ranks")
        told = [
            (zigzag / most, "that is the time that is left; turn the fraction round"),
            (2.0, "2 is what it approaches with more ranks"),
            (1.0, "all ranks together compute as much in both orders; a ring waits for the busiest"),
            (most / min(row["flops"] for row in rows), "that is the busiest over the idlest contiguous rank"),
            (15 / 9, "that is on four ranks: eight are asked for"),
        ]  # fmt: skip
        expect.close(value, most / zigzag, tol=0.01, what="contiguous over zig-zag", hints=told)


class TestTokensToHide(Question):
    """When a ring hides its messages"""

    name = "tokens_to_hide"
    rests_on = ("traffic",)

    @check(points=5, title="tokens a rank at which compute equals messages, 8 H100s on InfiniBand")
    def test_value(self, value, records):
        row = expect.rows(expect.recorded(records, "balance"), "order", "ranks")["zigzag", 8]
        tokens = row["length"] // row["ranks"]
        compute, message = row["flops"] / 794e12, row["forward_bytes"] / 2 / 36.75e9
        want = tokens * message / compute
        told = [
            (tokens * compute / message, "that is upside down: more to send needs more tokens"),
            (want / tokens, "that is how many times as many: multiply by the tokens a rank has now"),
            (want * row["ranks"], "those are the tokens of the text: a rank's are asked for"),
            (tokens * (message / compute) ** 0.5, "compute over messages grows as t²/t: no root"),
            (2 * want, "those are float32's bytes: message_seconds has half of them already"),
        ]  # fmt: skip
        expect.close(value, want, tol=0.02, what="tokens a rank", hints=told)
