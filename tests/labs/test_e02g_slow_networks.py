"""The checks of lab e02g: what is sent, what is kept, and what a byte is worth."""

from __future__ import annotations

import random

import torch

from minitrain.data.loader import Batch
from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import cause, variant
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.parallel.compressed.bits import Blocks
from minitrain.parallel.compressed.budget import LargestOnly, WaterFilling
from minitrain.parallel.compressed.federated import encode, masked
from minitrain.training.loss import token_weighted_loss

from .probes import e02g_slow_networks as probes

LAB = "e02g_slow_networks"
SIZES = {
    "cpu": {
        "steps": 300,
        "every": 50,
        "long": 600,
        "bytes": 2_000_000,
        "seconds": 200,
        "site_steps": 300,
        "waits": [1, 10, 50],
    },
    "test": {
        "steps": 60,
        "every": 10,
        "long": 60,
        "bytes": 400_000,
        "seconds": 100,
        "site_steps": 60,
        "waits": [1, 5, 30],
    },
}
REVEALS = {
    "one_step": Reveal(
        "emulated",
        "4 GB over 12.5 MB/s",
        formula=lambda parameters, bytes_per_second: 4 * parameters / bytes_per_second,
    ),
    "forgetful": Reveal("measured", "the same bytes; the rest is forgotten"),
    "mean_staleness": Reveal(
        "emulated", "n - 1: n gradients are under way", formula=lambda workers: workers - 1
    ),
}
ROOM = "minitrain/parallel/compressed"
HIDDEN = tuple(
    f"{ROOM}/{name}.py" for name in ("hook", "powersgd", "diloco", "server", "federated", "budget")
)


def operations_of(submission, ranks, calls):
    """[rank][call]: the operations of each call."""
    return [
        [relayed.operations(run) for run in relayed.runs(submission.notes[rank], "call", calls)]
        for rank in range(ranks)
    ]


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


# ---- error feedback ----

FORGETS = [
    (("self.keep(key, wanted, sent)", "self.keep(key, vector, sent)"),
     "the residual is what is left of a = g + e, and not of g alone"),
    (("self.keep(key, wanted, sent)", "self.keep(key, sent, wanted)"),
     "that residual has the wrong sign: it is what was wanted less what was sent"),
    (("wanted = self.add(key, vector)", "wanted = vector"), "the residual is not added to the gradient"),
    (("self.residuals.get(key)", "self.residuals.get('first')",
      "self.residuals[key] = wanted - sent", "self.residuals['first'] = self.residuals[key] = wanted - sent"),
     "every key has a residual of its own"),
    (("sent = compress(wanted)", "sent = compress(vector)"), "compress a = g + e, and not g"),
]  # fmt: skip


class TestErrorFeedback(Exercise):
    """What was not sent is not lost"""

    name = "ErrorFeedback"
    reference = f"{ROOM.replace('/', '.')}.hook:ErrorFeedback"
    hidden = HIDDEN

    @check(points=3, title="sends C(g + e), step after step")
    def test_one_key(self, submission):
        kinds = ["nothing", "largest", "signs", "halves", "everything", "largest"]
        steps = [(0, "first", double(9), kind) for kind in kinds]
        self.judge(submission, steps)

    @check(points=3, title="what was sent and the residual are the gradient, exactly, key by key")
    def test_keys(self, submission):
        keys = ["first", "second", 3, (1, "a")]
        sizes = {key: random.randrange(5, 12) for key in keys}
        drawn = [(random.randrange(2), random.choice(keys)) for _ in range(24)]
        whole = lambda key: torch.randint(-99, 99, (sizes[key],)).double()  # noqa: E731
        steps = [(w, key, whole(key), "largest") for w, key in drawn]
        found = self.judge(submission, steps)
        for which in (0, 1):
            for key in keys:
                own = [
                    (row, v) for (w, k, v, _), row in zip(steps, found) if (w, k) == (which, key)
                ]
                if own:
                    total = sum(row["out"] for row, _ in own) + own[-1][0]["residual"]
                    expect.identical(
                        total,
                        sum(v for _, v in own),
                        what=f"all that was sent for key {key!r} and the residual",
                    )

    @check(
        points=2,
        title="compresses once a step; the gradient stays, and what was sent is the caller's",
    )
    def test_alone(self, submission):
        steps = [(0, "first", double(7), kind) for kind in ("everything", "largest", "halves")]
        steps += [(1, "first", torch.randn(4, 3), "halves")]
        for (_, _, vector, kind), row in zip(steps, self.judge(submission, steps)):
            expect.that(
                len(row["seen"]) == 1,
                f"`compress` was called {len(row['seen'])} times in a step: once, since it may draw at random",
            )
            expect.identical(
                row["given"], vector, what="`vector` after the call, which stays as it was,"
            )
            expect.identical(
                row["kept"],
                row["residual"],
                what=f"the residual after the caller changed what was sent ({kind})",
            )
            expect.that(
                row["out"].dtype == vector.dtype, f"a {vector.dtype} was sent as {row['out'].dtype}"
            )

    def judge(self, submission, steps):
        found = submission.run(probes.fed_back, steps)
        seen = lambda rows: [(row["out"], row["residual"]) for row in rows]  # noqa: E731
        words = cause(
            seen(found), self.reference, FORGETS, lambda f: seen(probes.fed_back(f, steps))
        )
        want = probes.fed_back(variant(self.reference), steps)
        for number, ((_, key, _, kind), got, right) in enumerate(zip(steps, found, want), 1):
            for part, name in (("out", "what was sent"), ("residual", "the residual")):
                hints = [(got[part], words)] if words else []
                what = f"step {number}, key {key!r}, compressor '{kind}': {name}"
                expect.equal(got[part], right[part], what=what, hints=hints)
        return found


# ---- PowerSGD ----


def projected(mean, q):
    p = torch.linalg.qr(mean @ q).Q
    return p @ (p.T @ mean)


class TestPowerStep(Exercise):
    """A thin P and Q in place of a matrix"""

    name = "power_step"
    reference = f"{ROOM.replace('/', '.')}.powersgd:power_step"
    hidden = HIDDEN

    def launched(self, submission, ranks, shapes, make=None):
        """Of each call: (the ranks' matrices, q, the ranks' (P, Q)); and the ranks' results."""
        calls = [
            ([(make or double)(m, n) for _ in range(ranks)], double(n, r)) for m, n, r in shapes
        ]
        mine = [[(each[rank], q) for each, q in calls] for rank in range(ranks)]
        results = submission.launch(probes.on_ranks, mine, ranks=ranks)
        for rank, rows in enumerate(results):
            expect.left_alone(rows, mine[rank], ["matrix", "q"], what=f"rank {rank}")
        found = []
        for number, (each, q) in enumerate(calls):
            outs = [rows[number]["out"] for rows in results]
            m, n, r = (*each[0].shape, q.shape[1])
            for out in outs:
                kind = [tuple(t.shape) for t in out] if isinstance(out, (tuple, list)) else out
                expect.that(
                    kind == [(m, r), (n, r)],
                    f"a matrix {m} x {n} with q {n} x {r} came back as {kind}: return P {(m, r)} and Q {(n, r)}",
                )
            found.append((each, q, outs))
        return found

    @check(points=4, title="P Q^T is the mean matrix, projected onto the columns of P")
    def test_projection(self, submission):
        for ranks in (1, 3):
            for each, q, outs in self.launched(
                submission, ranks, [(9, 5, 2), (4, 11, 3), (6, 6, 1)]
            ):
                mean = sum(each) / ranks
                bare, own = mean @ q, torch.linalg.qr(each[0] @ q).Q
                hints = [
                    (projected(mean, q) * ranks, "that is the sum over ranks: `op=\"avg\"` gives the mean"),
                    (bare @ (mean.T @ bare).T, "the columns of P are not orthonormal: PP^T is then no projection"),
                    (projected(each[0], q), "that is this rank's own matrix: take the mean of both products"),
                    (own @ own.T @ mean, "P is orthonormalized before the mean: each rank then projects onto columns of its own"),
                    (torch.linalg.qr(bare).Q @ q.T, "Q is to be computed from P: mean(M^T P)"),
                ]  # fmt: skip
                hints = [] if ranks == 1 else hints
                for p, q_next in outs:
                    expect.equal(p @ q_next.T, projected(mean, q), what="P Q^T", hints=hints)

    @check(points=3, title="orthonormal columns, equal on all ranks, also where directions are few")
    def test_columns(self, submission):
        few = lambda m, n: torch.outer(double(m), double(n))  # noqa: E731
        none = lambda m, n: torch.zeros(m, n, dtype=torch.float64)  # noqa: E731
        for make, shape in ((None, (5, 3, 3)), (few, (8, 6, 4)), (none, (6, 5, 2))):
            for each, _, outs in self.launched(submission, 2, [shape], make):
                mean = sum(each) / 2
                for p, q_next in outs:
                    what = f"P^T P of a gradient with {int(torch.linalg.matrix_rank(mean))} directions and r = {shape[2]}"
                    expect.equal(p.T @ p, torch.eye(shape[2]).double(), what=what)
                    expect.identical(p, outs[0][0], what="P on rank 1 and on rank 0")
                    expect.identical(q_next, outs[0][1], what="Q on rank 1 and on rank 0")
                    if shape[2] >= 2 * bool(make):  # r directions hold all of the mean
                        expect.equal(
                            p @ q_next.T,
                            mean,
                            what="P Q^T, where r directions are enough for all of M,",
                        )

    @check(points=3, title="two all-reduces of r (m + n) numbers in all")
    def test_bytes(self, submission):
        shapes = [(40, 30, 2), (12, 7, 1)]
        self.launched(submission, 2, shapes)
        for calls in operations_of(submission, 2, len(shapes)):
            for ops, (m, n, r) in zip(calls, shapes):
                sent = sum(op.payload_bytes for op in ops) // 8
                expect.that(
                    [op.kind for op in ops] == ["all_reduce"] * 2 and sent == r * (m + n),
                    f"{m} x {n}, r = {r}: {len(ops)} operations of {sent} numbers; two all-reduces of "
                    f"r (m + n) = {r * (m + n)} are enough, and the matrix ({m * n} numbers) need not travel",
                )


# ---- DiLoCo ----


def rounds_of(start, arrivals, lr, momentum, sign=1, damp=True, ahead=True):
    """(common, velocity) after each round; arrivals[rank][round]."""
    common, velocity, found = start.clone(), torch.zeros_like(start), []
    for arrived in zip(*arrivals):
        uphill = sign * (common - sum(arrived) / len(arrived))
        velocity = (momentum if damp else 1) * velocity + uphill
        common = common - lr * (uphill + momentum * velocity if ahead else velocity)
        found.append((common, velocity))
    return found


class TestOuterStep(Exercise):
    """DiLoCo's outer step"""

    name = "outer_step"
    reference = f"{ROOM.replace('/', '.')}.diloco:outer_step"
    hidden = HIDDEN

    def judge(self, submission, ranks, rounds, settings):
        size = random.randrange(5, 30)
        start, arrivals = (
            double(size),
            [[double(size) for _ in range(rounds)] for _ in range(ranks)],
        )
        results = submission.launch(probes.outer_rounds, start, arrivals, settings, ranks=ranks)
        lr, momentum = settings.get("lr", 0.7), settings.get("momentum", 0.9)
        want = rounds_of(start, arrivals, lr, momentum)
        wrong = {
            "the sign: θ minus the mean of where the ranks are points uphill, and the step goes down": {"sign": -1},
            "Nesterov's step is d plus momentum times the new velocity": {"ahead": False},
            "the old velocity is multiplied by the momentum before d is added": {"damp": False},
        }  # fmt: skip
        wrong = {
            words: rounds_of(start, arrivals, lr, momentum, **how) for words, how in wrong.items()
        }
        for rank, rows in enumerate(results):
            for number, (row, (common, velocity)) in enumerate(zip(rows, want)):
                where = f"rank {rank} of {ranks}, round {number + 1}, lr {lr}, momentum {momentum}"
                sum_of = (
                    start - ranks * (start - common),
                    "that is the sum over ranks: take the mean",
                )
                hints = [(each[number][0], words) for words, each in wrong.items()]
                hints += [sum_of] * (number == 0 and momentum == 0)
                expect.equal(row["common"], common, what=f"{where}: `common`", hints=hints)
                expect.equal(row["velocity"], velocity, what=f"{where}: `velocity`")
                expect.identical(
                    row["own"],
                    row["common"],
                    what=f"{where}: `own`, which goes on from the common weights,",
                )
        return results, size

    @check(
        points=4,
        title="one round: θ minus the mean, downhill; with rate 1 and no momentum, the mean",
    )
    def test_one_round(self, submission):
        for ranks, settings in ((2, {}), (3, {"lr": 1.0, "momentum": 0.0}), (1, {"lr": 0.3})):
            self.judge(submission, ranks, 1, settings)

    @check(points=3, title="several rounds: Nesterov's momentum, the same on all ranks")
    def test_momentum(self, submission):
        drawn = {"lr": random.randrange(2, 12) / 10, "momentum": random.randrange(2, 9) / 10}
        self.judge(submission, 2, 4, drawn)

    @check(
        points=3, title="one all-reduce of P numbers a round; the three vectors are moved in place"
    )
    def test_mechanism(self, submission):
        results, size = self.judge(submission, 2, 2, {})
        for calls in operations_of(submission, 2, 2):
            for ops in calls:
                sent = sum(op.payload_bytes for op in ops)
                expect.that(
                    [op.kind for op in ops] == ["all_reduce"] and sent == 8 * size,
                    f"a round sent {len(ops)} operations of {sent} bytes: one all-reduce of the {8 * size} of θ is enough, "
                    "since velocity and θ are the same on every rank",
                )
        for rows in results:
            for row in rows:
                expect.that(
                    row["placed"] and row["apart"],
                    "`common` shares its memory with `own`, or one of the three became another tensor: the next local "
                    "steps would move θ, too; copy the values",
                )


# ---- the parameter server ----

SERVES = [
    (("return self.weights.clone(), self.version", "return self.weights, self.version"),
     "a pulled copy must not move when the weights do: clone it"),
    (("staleness = self.version - version", "staleness = self.version - version + 1"),
     "this push itself does not count: nothing has overtaken a gradient of staleness 0"),
    (("self.lr * self.rule(staleness)", "self.lr"), "the rate is to be multiplied by `self.rule(staleness)`"),
    (("self.version += 1", "self.version = version + 1"),
     "`version` counts all pushes, not those since this worker's pull"),
    (("-= self.lr", "+= self.lr"), "a step goes against the gradient"),
]  # fmt: skip


class TestParameterServer(Exercise):
    """Pull and push"""

    name = "ParameterServer"
    reference = f"{ROOM.replace('/', '.')}.server:ParameterServer"
    hidden = HIDDEN

    def judge(self, submission, rule, events):
        given = double(5), random.randrange(1, 9) / 16, rule, events
        found = submission.run(probes.served, *given)
        want = probes.served(variant(self.reference), *given)
        words = cause(found, self.reference, SERVES, lambda f: probes.served(f, *given))
        for number, (got, right) in enumerate(zip(found["steps"], want["steps"]), 1):
            for name, value in right.items():
                hints = [(got[name], words)] if words else []
                what = f"event {number}, a {right['kind']}, rule {rule}: {name}"
                if name == "out":
                    what += " (of a pull the version, of a push the staleness)"
                expect.equal(got[name], value, what=what, hints=hints)
        moved = "a copy that had been pulled moved with the weights: `pull` returns a clone"
        expect.that(not found["moved"], moved)

    def traffic(self, workers, count):
        """Every worker pulls first; then who pushes is drawn, and pulls again, or rests."""
        events, ready = [("pull", w) for w in range(workers)], list(range(workers))
        for _ in range(count):
            worker = random.choice(ready)
            events.append(("push", worker, double(5)))
            events.append(("pull", worker))
        return events

    @check(points=3, title="a pull is a copy and its version, a push of staleness 0 a plain step")
    def test_one_worker(self, submission):
        for rule in ("whole", None):
            self.judge(submission, rule, self.traffic(1, 4))

    @check(
        points=4,
        title="several workers: staleness counts the pushes since the pull, and scales the step",
    )
    def test_stale(self, submission):
        twice = [
            ("pull", 0),
            ("push", 0, double(5)),
            ("push", 0, double(5)),
        ]  # one pull, two pushes
        for rule in ("divided", "quadratic", None):
            self.judge(submission, rule, [*self.traffic(4, 12), *twice])


# ---- secure sum ----


class TestSecureSum(Exercise):
    """A sum of hidden parts"""

    name = "secure_sum"
    reference = f"{ROOM.replace('/', '.')}.federated:secure_sum"
    hidden = HIDDEN

    def launched(self, submission, ranks, cases):
        """cases: (count, turn, bits, dtype); (the ranks' vectors, seeds, turn, bits, rows) of each."""
        secrets = torch.randint(2**40, (ranks, ranks)).tolist()
        seeds = [
            {o: secrets[min(r, o)][max(r, o)] for o in random.sample(range(ranks), ranks) if o != r}
            for r in range(ranks)
        ]
        drawn = [
            [(10 * torch.randn(count)).to(dtype) for _ in range(ranks)]
            for count, _, _, dtype in cases
        ]
        mine = [
            [
                (vectors[rank], seeds[rank], turn, bits)
                for vectors, (_, turn, bits, _) in zip(drawn, cases)
            ]
            for rank in range(ranks)
        ]
        results = submission.launch(probes.summed, mine, ranks=ranks)
        for rank, rows in enumerate(results):
            for row, (vector, *_) in zip(rows, mine[rank]):
                expect.identical(
                    row["given"][0],
                    vector,
                    what=f"rank {rank}: `vector` after the call, which stays,",
                )
        return [
            (vectors, seeds, turn, bits, [rows[number] for rows in results])
            for number, (vectors, (_, turn, bits, _)) in enumerate(zip(drawn, cases))
        ]

    @check(points=4, title="the sum, rounded to 2^-bits, for 1 to 4 sites")
    def test_sum(self, submission):
        cases = [(7, 1, 16, torch.float32), (3, 2, 20, torch.float64), (1, 5, 8, torch.float64)]
        for ranks in (1, 2, 4):
            for vectors, _, turn, bits, rows in self.launched(submission, ranks, cases):
                codes = sum(encode(v, ranks, bits) for v in vectors)
                want = (codes.double() / 2**bits).to(vectors[0].dtype)
                floors = sum((v.double() * 2**bits).floor() for v in vectors) / 2**bits
                truncated = sum((v.double() * 2**bits).trunc() for v in vectors) / 2**bits
                hints = [
                    (
                        x.to(want.dtype),
                        "round to the nearest integer: round(), before .to(torch.int32), which cuts off",
                    )
                    for x in (truncated, floors)
                ]
                hints += [(want / ranks, "that is the mean: the sum is asked for")]
                for row in rows:
                    what = f"{ranks} sites, turn {turn}, {bits} bits: the sum"
                    expect.equal(row["out"], want, what=what, hints=hints)

    @check(points=3, title="what a site sends is masked by every other site, and anew in each turn")
    def test_masked(self, submission):
        cases = [(6, turn, 16, torch.float32) for turn in random.sample(range(1, 99), 3)]
        for vectors, seeds, turn, bits, rows in self.launched(submission, 3, cases):
            for rank, row in enumerate(rows):
                expect.that(
                    len(row["heard"]) == 1,
                    "one all-reduce on the group that came is all that is sent",
                )
                codes = encode(vectors[rank], 3, bits)
                sent = row["heard"][0].flatten()
                hints = [
                    (codes, "that is not masked: everyone on the wire can read it"),
                    (masked(codes, rank, seeds[rank], 1), "the mask is another one in each turn"),
                    (masked(codes, 3, seeds[rank], turn), "a site adds the masks that it shares with higher sites, and subtracts the others"),
                ]  # fmt: skip
                what = (
                    f"site {rank} of 3, turn {turn}: what it sends, its codes with all its masks,"
                )
                expect.equal(sent, masked(codes, rank, seeds[rank], turn), what=what, hints=hints)

    @check(points=2, title="one all-reduce of as many int32 numbers as the vector has")
    def test_bytes(self, submission):
        cases = [(50, 3, 16, torch.float32), (9, 4, 16, torch.float64)]
        for vectors, *_, rows in self.launched(submission, 2, cases):
            for row in rows:
                heard = [(str(t.dtype), t.numel()) for t in row["heard"]]
                expect.that(
                    heard == [("torch.int32", vectors[0].numel())],
                    f"of {vectors[0].numel()} values {heard} was summed: as many int32 numbers, in one all-reduce",
                )
        for calls in operations_of(submission, 2, len(cases)):
            for ops in calls:
                expect.that(
                    len(ops) == 1, f"{len(ops)} operations: one all-reduce is all that is sent"
                )


# ---- the open task ----


def hidden_gradients():
    """float32 vectors: of a small model in training, heavy-tailed ones, noise, sparse rows."""
    seed = random.randrange(10_000)
    model = build(ModelConfig(200, 16, 1, 2, 2, 32, tied=True), seed=seed)
    adam, found = torch.optim.Adam(model.parameters(), lr=0.01), []
    ones, places = torch.zeros(4, 32, dtype=torch.int64), torch.arange(32).expand(4, 32)
    for step in range(9):
        tokens = (torch.rand(4, 33).square() * 150).long()  # some are frequent, some never seen
        batch = Batch(tokens[:, :-1], tokens[:, 1:], ones, places)
        logits = model(batch.tokens, batch.documents, batch.positions)
        adam.zero_grad()
        token_weighted_loss(logits, batch.targets, 128).backward()
        if step % 4 == 0:
            found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        adam.step()
    rows = torch.randn(60, 50) * torch.logspace(0, -4, 60)[torch.randperm(60), None]
    heavy = torch.distributions.StudentT(4.0).sample((random.randrange(2000, 3000),))
    return [*found, rows.flatten(), heavy, 1e-6 * torch.randn(random.randrange(1000, 2000))]


def best_naive(vector, budget):
    """The error of the better of top-k and one bit a number with the smallest blocks that fit."""
    length = len(vector)
    errors = [error(vector, LargestOnly().decode(LargestOnly().encode(vector, budget), length))]
    for block in range(8, length, 8):
        form = Blocks(1, block)
        if form.padded(length) * (1 / 8 + 4 / block) <= budget:
            row = torch.nn.functional.pad(vector, (0, form.padded(length) - length))[None]
            errors.append(error(vector, form.decode(form.encode(row))[0, :length]))
            break
    return min(errors)


def error(vector, decoded):
    return ((decoded - vector).norm() / vector.norm()).item()


class TestMyCompressor(Exercise):
    """Open task: a compressor under a byte budget"""

    name = "MyCompressor"
    reference = f"{ROOM.replace('/', '.')}.budget:WaterFilling"
    hidden = HIDDEN

    def round_trips(self, submission, vectors):
        """(vector, budget, decoded) of each; encoded and decoded in processes of their own."""
        calls = [(v, int(len(v) * random.uniform(1.25, 3) / 8)) for v in vectors]
        sent = submission.run(probes.encoded, calls)
        expect.left_alone(sent, calls, ["vector", "budget"], what="encode")
        for (vector, budget), row in zip(calls, sent):
            message = row["out"]
            kind = isinstance(message, torch.Tensor) and (str(message.dtype), message.ndim)
            expect.that(
                kind == ("torch.uint8", 1),
                "`encode` returns a message of bytes, a 1-D tensor of uint8",
            )
            expect.that(
                len(message) <= budget,
                f"a message of {len(message)} bytes for {len(vector)} numbers: the budget is {budget}",
            )
        back = [(row["out"], len(v)) for (v, _), row in zip(calls, sent)]
        order = random.sample(range(len(back)), len(back))
        came = submission.run(probes.decoded, [back[i] for i in order])
        expect.left_alone(
            came, [back[i] for i in order], ["message", "length"], own=False, what="decode"
        )
        decoded = {i: row["out"] for i, row in zip(order, came)}
        for i, (vector, _) in enumerate(calls):
            got = decoded[i]
            expect.that(
                isinstance(got, torch.Tensor)
                and got.dtype == torch.float32
                and got.shape == vector.shape
                and bool(got.isfinite().all()),
                f"`decode` of {len(vector)} numbers gave {getattr(got, 'shape', type(got))}: float32, finite, of that length",
            )
        return [(v, budget, decoded[i]) for i, (v, budget) in enumerate(calls)]

    def means(self, submission):
        """The mean errors of the submission, of the naive ones, and of the course's."""
        rows = self.round_trips(submission, hidden_gradients())
        course = WaterFilling()
        each = [
            (
                error(vector, got),
                best_naive(vector, budget),
                error(vector, course.decode(course.encode(vector, budget), len(vector))),
            )
            for vector, budget, got in rows
        ]
        return [sum(column) / len(column) for column in zip(*each)]

    @check(points=4, title="messages fit the budget, and are decoded from their bytes alone")
    def test_fits(self, submission):
        sizes = [512, 777, random.randrange(500, 4000), random.randrange(500, 4000)]
        vectors = [torch.randn(size) * 10 ** random.uniform(-8, 4) for size in sizes]
        vectors.append(torch.zeros(640))
        for vector, budget, got in self.round_trips(submission, vectors):
            expect.that(
                got.norm() == 0 if vector.norm() == 0 else error(vector, got) < 1,
                f"{len(vector)} numbers in {budget} bytes: the error is as large as if nothing had been sent",
            )

    @check(points=4, title="less error than the better of top-k and one bit with block scales")
    def test_better(self, submission):
        mine, naive, _ = self.means(submission)
        expect.that(
            mine < naive,
            f"a mean error of {mine:.3f} on hidden gradients; the naive ones leave {naive:.3f}",
        )

    @check(points=4, title="at most 0.75 of their error")
    def test_much_better(self, submission):
        mine, naive, _ = self.means(submission)
        expect.that(
            mine <= 0.75 * naive,
            f"a mean error of {mine:.3f} on hidden gradients, {mine / naive:.2f} of the naive ones': 0.75 is asked for",
        )

    @check(points=4, title="at most 1.15 times the error of bits by water-filling")
    def test_filled(self, submission):
        mine, _, course = self.means(submission)
        expect.that(
            mine <= 1.15 * course,
            f"a mean error of {mine:.3f} on hidden gradients, {mine / course:.2f} times the course's: 1.15 is asked for",
        )


# ---- experiments ----


class TestMethods(Experiment):
    """Loss against bytes"""

    name = "methods"
    rests_on = ("ErrorFeedback", "power_step", "outer_step")

    @check(points=3, title="bytes a step as the formulas say")
    def test_bytes(self, table):
        rows = expect.rows(table, "method")
        P, every = rows["FP32"]["parameters"], rows["FP32"]["every"]
        whole = 4 * P  # 2 (N - 1) / N is 1 on two ranks
        for name, want in {
            "FP32": whole,
            "BF16": whole / 2,
            "vote": P / 8,
            "DiLoCo": whole / every,
        }.items():
            expect.close(
                rows[name]["bytes"], want, tol=0.01, what=f"{name}: bytes that a rank sends a step"
            )
        expect.that(
            whole / 4 < rows["INT8"]["bytes"] < whole / 3.5 and rows["1 bit"]["bytes"] < whole / 20,
            "INT8 sends a quarter of FP32's bytes and its scales, one bit less than a twentieth",
        )
        few = rows["DiLoCo, 4 bits"]["bytes"]
        expect.that(
            few < rows["DiLoCo"]["bytes"] / 4, "4 bits for 32: DiLoCo's bytes fall by more than 4"
        )

    @check(points=3, title="memory pays; 8 bits are free; rounds cost little")
    def test_above(self, table):
        above = {row["method"]: row["above"] for row in table}
        worse = above["top 5%, forgetful"] / above["top 5%"]
        expect.that(worse > 1, f"top 5% without memory ends {worse:.2f} times as far as with it")
        expect.close(above["INT8"], above["FP32"], tol=0.05, what="INT8's distance beside FP32's")
        expect.that(
            0 < above["FP32"] < 1.05 * min(above.values())
            and above["DiLoCo"] < 1.5 * above["FP32"],
            f"FP32 ends {above['FP32']:.3f} above the floor, DiLoCo {above['DiLoCo']:.3f}: no method gets far below "
            "FP32, and DiLoCo stays near it",
        )


class TestBandwidths(Experiment):
    """The cheapest method for each network"""

    name = "bandwidths"
    rests_on = ("methods",)

    @check(points=2, title="hours are steps needed times seconds a step, and fall with bandwidth")
    def test_rows(self, table):
        for name in {row["method"] for row in table}:
            own = sorted(
                (row for row in table if row["method"] == name), key=lambda row: row["bandwidth"]
            )
            seconds = [row["step_seconds"] for row in own]
            expect.that(
                len(own) >= 4 and seconds == sorted(seconds, reverse=True) and seconds[-1] >= 1,
                f"{name}: {len(own)} networks; a step takes its second, and less the faster the network is",
            )
            for row in own:
                hours = row["needed"] * 10_000 * row["step_seconds"] / 3600
                expect.close(
                    row["hours"], hours, tol=1e-6, what=f"{name} on {row['network']}: hours"
                )

    @check(points=3, title="FP32 is near the best on NVLink, and rarely sending by far on 100 Mb/s")
    def test_cheapest(self, table):
        fast, slow = max(r["bandwidth"] for r in table), min(r["bandwidth"] for r in table)
        hours = {(r["method"], r["bandwidth"]): r["hours"] for r in table}
        names = {r["method"] for r in table}
        best = {width: min(hours[name, width] for name in names) for width in (fast, slow)}
        expect.that(
            hours["FP32", fast] < 1.1 * best[fast] and hours["FP32", slow] > 10 * best[slow],
            "on the fastest network FP32 is within a tenth of the best, on the slowest more than ten times as slow",
        )
        rare = min(hours["DiLoCo", slow], hours["DiLoCo, 4 bits", slow])
        expect.that(rare == best[slow], "on the slowest network the rarest sender is the fastest")


class TestStaleness(Experiment):
    """Little's law"""

    name = "staleness"
    rests_on = ("ParameterServer",)

    @check(points=4, title="mean staleness is workers - 1, at equal and at unequal speeds")
    def test_mean(self, table):
        expect.that(len({row["workers"] for row in table}) >= 3, "three numbers of workers or more")
        for row in table:
            n = row["workers"]
            expect.that(
                abs(row["mean"] - (n - 1)) <= 0.03 * n,
                f"{n} workers: a mean staleness of {row['mean']:.2f}; n gradients are under way, so it is n - 1",
            )
            expect.that(row["most"] >= row["mean"], "the largest staleness is at least the mean")


class TestStragglers(Experiment):
    """Stragglers, in three ways"""

    name = "stragglers"
    rests_on = ("ParameterServer",)

    @check(
        points=3,
        title="in the same time rounds of all use the fewest gradients; a bound limits staleness",
    )
    def test_counts(self, table):
        rows = expect.rows(table, "kind")
        counts = {kind: row["gradients"] for kind, row in rows.items()}
        expect.that(
            2 * counts["synchronous"] < min(counts["with 2 backups"], counts["asynchronous"]),
            f"gradients used: {counts}; rounds of all wait for a straggler more often than not",
        )
        expect.that(
            rows["synchronous"]["staleness"] == 0 and rows["bounded, s = 2"]["most"] <= 5 * 7,
            "a round has staleness 0; a bound of s limits it to (2 s + 1)(n - 1)",
        )

    @check(points=2, title="stale steps at the full rate end worse than scaled ones")
    def test_scaled(self, table):
        above = {row["kind"]: row["above"] for row in table}
        expect.that(
            above["asynchronous"] < above["asynchronous, unscaled"],
            f"asynchronous ends {above['asynchronous']:.3f} above the floor, at the full rate "
            f"{above['asynchronous, unscaled']:.3f}: steps of stale gradients overshoot",
        )


class TestSites(Experiment):
    """Sites with a domain each"""

    name = "sites"
    rests_on = ("outer_step",)

    @check(points=3, title="the longer they are apart the farther they drift, if their data differ")
    def test_drift(self, table):
        apart = {row["every"]: row["above"] for row in table if row["apart"]}
        mixed = {
            row["every"]: row["above"] for row in table if not row["apart"] and not row["away"]
        }
        expect.that(
            len(apart) >= 3 and set(apart) == set(mixed), "the same three H or more for both"
        )
        least, most = min(apart), max(apart)
        expect.that(
            apart[most] > apart[least] and apart[most] / mixed[most] > apart[least] / mixed[least],
            f"a domain each: {apart}; both: {mixed}. The price of long waits is larger where data differ",
        )

    @check(points=2, title="a site that was away costs something, and breaks nothing")
    def test_away(self, table):
        away = [row for row in table if row["away"]]
        expect.that(away, "a row with a site away is missing")
        whole = {
            row["every"]: row["above"] for row in table if not row["apart"] and not row["away"]
        }
        for row in away:
            expect.that(
                0.8 < row["above"] / whole[row["every"]] < 2,
                f"with a site away {row['above']:.3f}, else {whole[row['every']]:.3f}: it went on from the others' weights",
            )


# ---- questions ----


class TestOneGigabit(Question):
    """The gain on 1 Gb/s"""

    name = "one_gigabit"
    rests_on = ("bandwidths",)

    @check(points=5, title="FP32's hours over the cheapest method's at 1 Gb/s")
    def test_value(self, value, records):
        table = [
            row for row in expect.recorded(records, "bandwidths") if row["network"] == "1 Gb/s"
        ]
        expect.that(table, "your table has no rows of 1 Gb/s")
        hours = {row["method"]: row["hours"] for row in table}
        want = hours["FP32"] / min(hours.values())
        hints = [(1 / want, "turn the fraction round")]
        expect.close(value, want, tol=0.02, what="how many times as fast", hints=hints)


class TestWith32(Question):
    """Little's law again"""

    name = "with_32_workers"
    rests_on = ("staleness",)

    @check(points=5, title="mean staleness of 32 asynchronous workers")
    def test_value(self, value, records):
        expect.recorded(records, "staleness")
        hints = [(32, "of the 32 pushes between a pull and its push one is the worker's own")]
        expect.close(value, 31, tol=0.01, what="mean staleness", hints=hints)


class TestDrift(Question):
    """The price of one's own domain"""

    name = "drift"
    rests_on = ("sites",)

    @check(
        points=5,
        title="the distance of sites with a domain each over those with both, at the largest H",
    )
    def test_value(self, value, records):
        table = expect.recorded(records, "sites")
        most = max(row["every"] for row in table)
        rows = {
            row["apart"]: row["above"] for row in table if row["every"] == most and not row["away"]
        }
        hints = [
            (rows[False] / rows[True], "turn the fraction round"),
            (rows[True] - rows[False], "a factor, no difference"),
        ]
        expect.close(
            value, rows[True] / rows[False], tol=0.02, what="how many times as far", hints=hints
        )
