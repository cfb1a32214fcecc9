"""The checks of lab e15: bytes of a stack, and three open tasks judged by their scores."""

from __future__ import annotations

import random
from itertools import pairwise

from minitrain.errors import InputError
from minitrain.lab.capstone import cases as public
from minitrain.lab.capstone import incidents, pipelines, plans
from minitrain.lab.capstone.board import geometric
from minitrain.lab.capstone.cases import EVEN, PIPELINES, PLANS, TRACES, chip
from minitrain.lab.capstone.pipelines import Pipeline
from minitrain.lab.capstone.plans import Case
from minitrain.lab.capstone.reference import held_bytes, lower_bound
from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import hints
from minitrain.planning.run import Model, Plan

from .probes import e15_capstone as probes

LAB = "e15_capstone"
SIZES = {"cpu": {"rows": 8, "length": 128, "layers": 4}, "test": {"length": 32, "layers": 2}}
REVEALS = {
    "within_budget": Reveal("counted", "only the last: offloaded state was what was too much"),
    "textbook": Reveal("computed", "27 seconds of 30: three of them are spent cooling down"),
    "hourly": Reveal("emulated", "waiting for nodes in repair takes most of the time"),
}
HIDDEN = ("labs/kit/capstone/reference.py",)
KINDS = ("parameters", "gradients", "optimizer", "activations")


# ---- bytes ----

BYTES = [
    (("stack.zero == 3", "stack.zero >= 2"), "only stage 3 cuts the parameters"),
    (("stack.zero >= 2", "stack.zero >= 1"), "stage 1 leaves the gradients whole"),
    (("size < 4096", "False"), "a tensor below 4,096 numbers stays in FP32"),
    (("-(-size // 256)", "size / 256"), "the last block is filled up to 256"),
    (("state += 4 + (", "state += ("), "each tensor has a step counter of 4 bytes"),
]


class TestHeldBytes(Exercise):
    """The bytes of a stack"""

    name = "held_bytes"
    reference = "minitrain.lab.capstone.reference:held_bytes"
    hidden = HIDDEN

    @check(points=5, title="parameters and gradients: ZeRO's stages, and BF16")
    def test_cut(self, submission):
        self.judge(submission, "parameters", "gradients")

    @check(points=5, title="Adam's state: FP32 or 8 bits, piece by piece, offloaded or not")
    def test_state(self, submission):
        self.judge(submission, "optimizer")

    @check(points=4, title="activations: this rank's rows, BF16, recomputation")
    def test_activations(self, submission):
        self.judge(submission, "activations")

    def judge(self, submission, *kinds):
        cases = []
        for zero in (0, 1, 2, 3) * 4:
            ranks = random.choice((2, 3, 8)) if zero else random.choice((1, 4))
            stack = {"ranks": ranks, "zero": zero, "adam_bits": random.choice((8, 32))}
            stack |= {"bf16": random.random() < 0.5, "offload": random.random() < 0.25}
            stack["recompute"] = random.choice(("none", "full"))
            pieces = [*random.sample(range(5, 9000), 4), 0, 256, 4095, 4096, 4097]
            random.shuffle(pieces)
            kept = [random.randrange(100, 900) for _ in range(2)] + [random.randrange(2, 9)]
            cases.append((stack, 24 * random.randrange(50, 999), pieces, kept, 24))
        calls = submission.run(probes.held, cases)
        expect.left_alone(calls, cases, ("stack", "parameters", "pieces", "saved", "rows"))
        given = lambda f: probes.held(f, cases)  # noqa: E731
        likely = list(hints(self.reference, BYTES, given))
        for number, (case, call, want) in enumerate(zip(cases, calls, given(held_bytes))):
            expect.that(isinstance(call["out"], dict), "give a dict with the four kinds of bytes")
            for kind in kinds:
                told = [(wrong[number]["out"][kind], words) for wrong, words in likely]
                said = ", ".join(f"{key} {value}" for key, value in case[0].items())
                expect.equal(
                    call["out"].get(kind), want["out"][kind], hints=told, what=f"{said}: {kind}"
                )


# ---- open tasks: their score decides ----


class Scored:
    """`ratios(submission)`: (the case's name, from 0 to 1, what is wrong with it) of each."""

    by_score = True
    hidden = HIDDEN

    def found(self, submission):
        kept = vars(submission).setdefault("ratios", {})
        if self.name not in kept:
            kept[self.name] = self.ratios(submission)
        return kept[self.name]

    def sound(self, submission):
        for name, ratio, wrong in self.found(submission):
            expect.that(not wrong and ratio > 0, f"{name}: {wrong or 'nothing is reached'}")

    def reach(self, submission, least):
        found = self.found(submission)
        score = geometric(ratio for _, ratio, _ in found)
        name, lowest, wrong = min(found, key=lambda row: row[1])
        expect.that(
            score >= least,
            f"your score on {len(found)} hidden cases is {score:.1f}, and these points begin at {least}; the lowest is "
            f"{100 * lowest:.0f}, {name}" + (f": {wrong}" if wrong else ""),
        )


A100, H100, LLAMA = public.A100, public.H100, public.LLAMA
SMALL, LARGE, MIXTURE = public.SMALL, public.LARGE, public.MIXTURE
GPT = Model(24, 4096, 32, 32, 16384, 50304, gated=False)
HIDDEN_PLANS = (
    Case("1.2B on 16 A100, a slow network", SMALL, chip(A100, network=6e8), 16, 4096, 32,
         Plan(pp=4, vpp=4, dp=4, zero=1, schedule="interleaved")),
    Case("32B on 64 H100, a slow network", LARGE, chip(H100, network=5e9), 64, 8192, 64,
         Plan(tp=4, sp=True, pp=4, vpp=8, dp=4, zero=1, schedule="interleaved")),
    Case("a mixture on 16 A100, a slow network", MIXTURE, chip(A100, network=2.5e9), 16, 4096, 64,
         Plan(pp=2, dp=8, zero=1)),
    Case("1.2B on 8 H100, sequences of 131,072", SMALL, chip(H100), 8, 131072, 4, Plan(cp=8, zero=1)),
    Case("8B on four A100", LLAMA, chip(A100), 4, 4096, 16, Plan(dp=4, zero=2)),
    Case("a GPT of 5B on 32 A100", GPT, chip(A100), 32, 2048, 96, Plan(dp=32, zero=1)),
    Case("32B on 64 H100, sequences of 32,768", LARGE, chip(H100), 64, 32768, 16,
         Plan(tp=4, sp=True, cp=4, dp=4, zero=2)),
    Case("8B on 24 H100", LLAMA, chip(H100), 24, 8192, 48, Plan(dp=24, zero=2)),
)  # fmt: skip


class TestPlan(Scored, Exercise):
    """A plan with twelve tries"""

    name = "plan"
    reference = "minitrain.lab.capstone.reference:plan"

    def ratios(self, submission):
        found = []
        for cases in (HIDDEN_PLANS[:3], HIDDEN_PLANS[3:6], HIDDEN_PLANS[6:]):
            told = submission.run(probes.planned, cases, timeout=10)
            found += [(case.name, *self.judged(case, *one)) for case, one in zip(cases, told)]
        return found

    def judged(self, case, fields, count):
        """(ratio, what is wrong)"""
        if not isinstance(fields, dict):
            return 0.0, f"it returned a {fields}: return one of case.plans"
        if count > plans.TIMINGS:
            return 0.0, f"{count} plans were timed: {plans.TIMINGS} may be, by case.seconds"
        plan = Plan(**fields)
        if plan not in case.plans:
            return 0.0, "it is none of case.plans"
        wrong = "" if case.fits(plan) else "the plan does not fit: see case.fits"
        return plans.ratio(case, plan), wrong

    @check(points=4, title="every hidden case: legal, fits, at most twelve timed")
    def test_sound(self, submission):
        self.sound(submission)

    @check(points=4, title="a score of 60 on the hidden cases")
    def test_60(self, submission):
        self.reach(submission, 60)

    @check(points=4, title="a score of 80")
    def test_80(self, submission):
        self.reach(submission, 80)

    @check(points=4, title="a score of 95")
    def test_95(self, submission):
        self.reach(submission, 95)


def drawn_case():
    number = lambda: random.randrange(2, 40) / 8  # noqa: E731
    ranks = random.randrange(1, 6)
    seconds = tuple(tuple(number() for _ in "FBW") for _ in range(ranks))
    send = random.choice((0.0, number() / 4))
    return Pipeline("drawn", seconds, random.randrange(1, 20), random.randrange(1, 9), send)


WORK, BACK = "start + m * (f + b + w)", "start + m * (f + b) + max(0, m - live) * w + back"
LIFE = "start + m * life / live"
BOUNDS = [
    ((f"bounds.append({WORK})", "pass"), "the first bound, a rank's work, is missing"),
    ((f"bounds.append({BACK})", "pass"), "the second bound, the way back, is missing"),
    ((f"bounds.append({LIFE})", "pass"), "the third bound, memory, is missing"),
    (("+ seconds[0][2]", ""), "the way back ends with rank 0's W"),
    (("2 * send", "send"), "a microbatch crosses each border twice"),
]


class TestLowerBound(Exercise):
    """What no schedule beats"""

    name = "lower_bound"
    reference = "minitrain.lab.capstone.reference:lower_bound"
    hidden = HIDDEN

    @check(points=4, title="equal ranks, messages in no time, memory enough or little")
    def test_equal(self, submission):
        even = [
            Pipeline("", (EVEN,) * p, m, k) for p in (1, 4, 6) for m in (3, 8) for k in (1, 2, 6)
        ]
        self.judge(submission, even)

    @check(points=4, title="unequal ranks, and messages that take time")
    def test_unequal(self, submission):
        full = ((0.25, 0.25, 0.25), (1.0, 1.0, 4.0), (1.0, 2.0, 1.0))  # where rank 1 is the fullest
        room_for_one = Pipeline("", full, random.randrange(3, 9), 1, 0.125)
        back = ((0.5, 1.0, 1.0), (1.0, 1.0, 0.3))  # where the way back is the longest
        ways_back = [Pipeline("", back, 4, live, 0.5) for live in (2, 6)]
        drawn = [drawn_case() for _ in range(60)]
        self.judge(submission, [room_for_one, *ways_back, *drawn])

    def judge(self, submission, cases):
        got = submission.run(probes.bounds, cases)
        given = lambda f: [f(case) for case in cases]  # noqa: E731
        likely = list(hints(self.reference, BOUNDS, given))
        for number, (case, mine) in enumerate(zip(cases, got)):
            told = [(wrong[number], words) for wrong, words in likely]
            what = f"seconds {case.seconds}, {case.microbatches} microbatches, live {case.live}, send {case.send}"
            expect.equal(mine, lower_bound(case), hints=told, what=what)


HIDDEN_PIPELINES = (
    Pipeline("8 equal ranks", (EVEN,) * 8, 16, live=8),
    Pipeline("embedding and head, messages", ((1.5, 1.4, 1.2), (1, 1.1, 0.9), (1, 1.1, 0.9), (1.4, 1.3, 1.3)), 12, 5, 0.2),
    Pipeline("fewer microbatches than ranks", (EVEN,) * 6, 4, live=4),
    Pipeline("long attention", ((1, 1.4, 0.6),) * 4, 8, 5, 0.1),
    Pipeline("8 ranks, slow network", (EVEN,) * 8, 24, 16, 0.25),
    Pipeline("room for one", (EVEN,) * 3, 6, live=1),
)  # fmt: skip


class TestSchedule(Scored, Exercise):
    """A schedule near its bound"""

    name = "schedule"
    reference = "minitrain.lab.capstone.reference:schedule"

    def ratios(self, submission):
        found = []
        for case, ranks in zip(HIDDEN_PIPELINES, submission.run(probes.ordered, HIDDEN_PIPELINES)):
            try:
                row = pipelines.ratio(case, ranks, lower_bound(case)), ""
            except InputError as wrong:
                row = 0.0, str(wrong)
            found.append((case.name, *row))
        return found

    @check(points=2, title="every hidden case: complete, without deadlock, within memory")
    def test_sound(self, submission):
        self.sound(submission)

    @check(points=4, title="a score of 70 on the hidden cases")
    def test_70(self, submission):
        self.reach(submission, 70)

    @check(points=4, title="a score of 85")
    def test_85(self, submission):
        self.reach(submission, 85)

    @check(points=4, title="a score of 95")
    def test_95(self, submission):
        self.reach(submission, 95)


HIDDEN_TRACES = {
    "as promised": incidents.make_trace(101),
    "a third of the failures": incidents.make_trace(102, rate=0.3, save=60),
    "twice as many": incidents.make_trace(103, rate=2, save=30, slow_every=12),
    "four times as many": incidents.make_trace(104, rate=4),
    "long saves": incidents.make_trace(105, save=120),
    "many slow nodes": incidents.make_trace(106, rate=0.5, save=30, slow_every=5),
}


class TestPolicy(Scored, Exercise):
    """Fifty-four days"""

    name = "policy"
    reference = "minitrain.lab.capstone.reference:policy"

    def ratios(self, submission):
        found = []
        told = submission.run(probes.decided, list(HIDDEN_TRACES.values()), timeout=10)
        for (name, trace), decisions in zip(HIDDEN_TRACES.items(), told):
            coming = iter(decisions.tolist())
            again = lambda view, coming=coming: next(coming)  # noqa: E731
            try:
                found.append((name, incidents.ratio(trace, again), ""))
            except StopIteration:
                raise CheckFailed("its decisions do not lead through the 54 days") from None
        return found

    @check(points=2, title="runs through every hidden trace")
    def test_sound(self, submission):
        self.sound(submission)

    @check(points=4, title="a score of 50 on the hidden traces")
    def test_50(self, submission):
        self.reach(submission, 50)

    @check(points=4, title="a score of 75")
    def test_75(self, submission):
        self.reach(submission, 75)

    @check(points=4, title="a score of 85")
    def test_85(self, submission):
        self.reach(submission, 85)


# ---- experiments and questions ----


def total(row, word="counted"):
    return sum(row[f"{kind}_{word}"] for kind in KINDS)


class TestStaircase(Experiment):
    """Nine stairs"""

    name = "staircase"
    rests_on = ("held_bytes",)

    @check(points=4, title="your bytes are the counted ones (activations: to 1%), on every stair")
    def test_bytes(self, table):
        expect.that(len(table) == 9, f"{len(table)} rows: the staircase has nine runs")
        for row in table:
            for kind in KINDS:
                counted, tol = row[f"{kind}_counted"], 0.01 if kind == "activations" else 1e-9
                what = f"{row['stair']}: {kind}"
                expect.close(row[f"{kind}_predicted"], counted, tol=tol, what=what)

    @check(points=4, title="no stair goes up, and the loss stays that of one process")
    def test_loss(self, table):
        for above, row in pairwise(table):
            expect.that(
                total(row) <= total(above), f"{row['stair']} holds more than the stair before"
            )
            rounds = row["stair"] in ("8-bit Adam", "BF16", "offload")
            expect.close(
                row["loss"], table[0]["loss"], tol=2e-3 if rounds else 1e-6, what=row["stair"]
            )


class TestPlanned(Experiment):
    """Plans of the public cases"""

    name = "planned"
    rests_on = ("plan",)

    @check(points=4, title="at most twelve timed, and none faster than the best of all")
    def test_rows(self, table):
        expect.that(len(table) == len(PLANS), f"{len(table)} rows: one for each public case")
        for row, case in zip(table, PLANS):
            expect.that(row["timed"] <= plans.TIMINGS, f"{row['case']}: {row['timed']} plans timed")
            best = plans.seconds_of(case, case.best)
            expect.close(row["best_seconds"], best, tol=1e-9, what=f"{row['case']}: the best")
            expect.that(
                row["seconds"] >= best * (1 - 1e-9), f"{row['case']}: faster than all legal plans"
            )


class TestExecuted(Experiment):
    """Schedules run by the executor"""

    name = "executed"
    rests_on = ("lower_bound", "schedule")

    @check(points=4, title="gradients of one process to 1e-10, and no makespan below the bound")
    def test_rows(self, table):
        expect.that(len(table) == len(PIPELINES), f"{len(table)} rows: one a public case")
        for row, case in zip(table, PIPELINES):
            off = row["gradients_off"]
            expect.that(off < 1e-10, f"{case.name}: a gradient is off by {off:.2g}")
            expect.close(row["bound"], lower_bound(case), tol=1e-9, what=f"{case.name}: bound")
            expect.that(row["makespan"] >= row["bound"] - 1e-9, f"{case.name}: below the bound")


class TestOperated(Experiment):
    """Three policies"""

    name = "operated"
    rests_on = ("policy",)

    @check(points=4, title="yours is ahead of both others on every trace, and of no clairvoyant")
    def test_rows(self, table):
        rows = expect.rows(table, "trace", "policy")
        for name, trace in TRACES.items():
            mine = rows[name, "yours"]["goodput"]
            most = max(rows[name, other]["goodput"] for other in ("hourly", "trusting"))
            expect.that(mine > most, f"{name}: your goodput {mine:.3f}, another's {most:.3f}")
            expect.that(mine <= incidents.clairvoyant(trace), f"{name}: above the clairvoyant's")


class TestTallest(Question):
    """The tallest stair"""

    name = "tallest"
    rests_on = ("staircase",)

    @check(points=4, title="its share of the first run's bytes")
    def test_value(self, value, records):
        totals = [total(row) for row in expect.recorded(records, "staircase")]
        falls = [before - after for before, after in pairwise(totals)]
        want = max(falls) / totals[0]
        told = [
            (max(falls), "those are the bytes: divide by the first run's"),
            (100 * want, "a share, not percent"),
        ]
        expect.close(value, want, tol=0.01, what="the tallest stair", hints=told)


class TestMovedPlan(Question):
    """A plan on another cluster"""

    name = "moved_plan"
    rests_on = ("planned",)

    @check(points=5, title="how many times as long the fast network's plan takes on the slow one")
    def test_value(self, value):
        slow, moved = PLANS[1], PLANS[0].best
        own, best = (plans.seconds_of(slow, plan) for plan in (moved, slow.best))
        told = [
            (best / own, "that is upside down"),
            (own / best - 1, "that is by how much it is longer"),
        ]
        expect.close(value, own / best, tol=0.01, what="moved / best", hints=told)


class TestTrustCosts(Question):
    """What trust costs"""

    name = "trust_costs"
    rests_on = ("operated",)

    @check(points=5, title="goodput lost by believing the vendor")
    def test_value(self, value, records):
        rows = expect.rows(expect.recorded(records, "operated"), "trace", "policy")
        mine, other = (
            rows["three times as many failures", who]["goodput"] for who in ("yours", "trusting")
        )
        told = [
            (other - mine, "the sign"),
            (100 * (mine - other), "a difference of shares, not percent"),
        ]
        expect.close(value, mine - other, tol=0.01, what="the difference", hints=told)
