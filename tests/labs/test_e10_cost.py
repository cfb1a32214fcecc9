"""The checks of lab e10: closed forms, a step on paper, plans searched, money and its range."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from numbers import Real
from typing import Any

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import hints, variant
from minitrain.paths import data_dir
from minitrain.planning.columns import run_from_row
from minitrain.planning.hardware import find_chip, number, read_table
from minitrain.planning.money.cost import PUE
from minitrain.planning.money.prices import price_of
from minitrain.planning.run import Model, Plan, Run, make_run
from minitrain.planning.step.network import IDEAL, fabric_of
from minitrain.planning.validate import published_steps

from .probes import e10_cost as probes

LAB = "e10_cost"
SIZES = {
    "cpu": {
        "chips": ["A100-SXM-80GB", "H100-SXM-80GB", "H200-SXM", "B200-SXM"],
        "gpus": [64, 128, 256, 512, 1024, 2048, 4096],
        "tokens": 2e12,
    }
}
H100 = price_of("H100-SXM-80GB")
REVEALS = {
    "chips": Reveal(
        "computed",
        "(2 + 4 + 12) bytes · N over 80 GB are 15.52, rounded up; no activation yet",
    ),
    "error": Reveal("computed", "the mean of |yours / published - 1| over the published steps"),
    "price_ratio": Reveal(
        "computed",
        f"{H100.high} over {H100.low} dollars, the dearest and the cheapest hour of data/prices.csv",
    ),
}
HIDDEN = tuple(
    f"minitrain/{name}.py"
    for name in (
        *("planning/closed_forms", "planning/step/step", "planning/step/memory"),
        *("planning/money/cost", "planning/search", "measure/parameters", "measure/flops"),
        "model/transformer",
    )
)
GIB = 2**30
TABLES = ("Korthikanti table 5", "SC21 table 1", "Llama 3 405B table 4", "MPT benchmarks")


# What the checks are made of.
def dense(gated=True) -> Model:
    heads = random.choice([16, 24, 32, 40, 64])
    hidden = random.choice([64, 80, 128] if gated else [80, 128]) * heads
    ffn = random.choice([11008, 14336, 28672]) if gated else 4 * hidden
    return Model(
        layers=random.choice([16, 32, 48, 80]),
        hidden=hidden,
        heads=heads,
        kv_heads=random.choice([4, 8]) if gated else heads,
        ffn=ffn,
        vocab=random.choice([32000, 50304, 128256]),
        gated=gated,
    )


def mixture(gated=True) -> Model:
    return replace(
        dense(gated),
        experts=random.choice([8, 16, 64]),
        experts_per_token=random.choice([1, 2, 4]),
        moe_ffn=random.choice([1408, 2048]),
        shared_experts=random.choice([0, 1, 2]),
        dense_layers=random.choice([0, 1, 3]),
    )


def run_of(model: Model, chip="A100-SXM-80GB", seq=2048, microbatches=16, **plan) -> Run:
    settled = Plan(software=plan.pop("software", "fused"), **plan)
    return make_run(chip, model, settled, seq, settled.dp * settled.micro_batch * microbatches)


def otherwise(run: Run) -> Iterator[tuple[Run, str]]:
    """Runs that differ in one thing, and what that is: a hint on numbers that are right for them."""
    plan, model = run.plan, run.model
    others: list[tuple[str, Any]] = [
        ("sp", not plan.sp),
        ("zero", 0),
        ("zero", 3),
        ("precision", "bf16"),
    ]
    others += [(name, 1) for name in ("cp", "pp", "vpp", "dp", "micro_batch")]
    others += [("recompute", kind) for kind in ("none", "selective", "full")]
    others += [("software", kind) for kind in ("2022", "fused")]
    for name, value in others:
        yield replace(run, plan=replace(plan, **{name: value})), f"{name} {value}"
    yield replace(run, model=replace(model, kv_heads=model.heads)), "kv_heads that are heads"
    yield replace(run, model=replace(model, gated=not model.gated)), f"gated {not model.gated}"
    yield replace(run, global_batch=plan.dp * plan.micro_batch), "one microbatch"


def in_words(run: Run) -> str:
    differs = {k: v for k, v in vars(run.plan).items() if v != vars(Plan())[k]}
    kind = "gated" if run.model.gated else "GPT"
    shown = ", ".join(f"{name} {value}" for name, value in differs.items())
    return f"{kind}, {run.model.layers} layers, {run.microbatches} microbatches, {shown}, {run.chip.name}"


def told(item, call, part=lambda made: made):
    """Hints: what is right for another run, and the likely mistakes."""
    if isinstance(call[0], Run):
        for run, words in otherwise(call[0]):
            other = part(variant(item.reference)(run, *call[1:]))
            yield other, f"that is right for {words}, and here it is not so"
    yield from hints(item.reference, item.MISTAKES, lambda f: part(f(*call)))


def results(item, submission, calls, count=None) -> Iterator[tuple]:
    """(call, what it gave, what the reference gives); none may change another's."""
    found = submission.run(probes.called_each, calls)
    expect.left_alone(found, calls, [])
    for call, ran in zip(calls, found):
        want, got = variant(item.reference)(*call), ran["out"]
        is_alike = not count or (
            isinstance(got, (tuple, list)) and len(got) == count and all(map(is_number, got))
        )
        expect.that(is_alike, f"got {got!r}: {count} numbers are asked for")
        yield call, got, want


def is_number(value) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def mixed(gated=True) -> Model:
    """Experts, and layers without them."""
    return replace(
        mixture(gated), shared_experts=random.choice([1, 2]), dense_layers=random.choice([1, 3])
    )


class TestWeights(Exercise):
    """The N of a model, and the N of 6ND"""

    name = "weights"
    reference = "minitrain.planning.closed_forms:weights"
    hidden = HIDDEN
    ALL, BOTH = "norms + embedding, active", "active = matmul_parameters(model)"
    MISTAKES = (
        (("active + model.moe_layers * idle + norms", "active + norms"), "that counts the experts of one token: all are held"),
        ((" + norms + embedding", " + embedding"), "the norms are missing: two a layer, one at the end"),
        ((" + embedding, active", ", active"), "embedding and head are two tables here (not tied)"),
        ((ALL, "norms + embedding, active + embedding"), "the embedding is looked up, it multiplies nothing"),
        ((BOTH, "active = matmul_parameters(Model(**{**vars(model), 'kv_heads': model.heads}))"), "k and v have kv_heads heads, not heads: h · head_size · kv_heads each"),
    )  # fmt: skip

    def are_counted(self, submission, which, *models):
        what = ("all parameters", "weights that multiply one token")[which]
        for call, got, want in results(self, submission, [(m,) for m in models], 2):
            wrong = told(self, call, lambda pair: pair[which])
            expect.equal(got[which], want[which], 1e-12, wrong, f"{what} of {call[0]}")

    @check(points=3, title="all parameters of a dense model, as its checkpoint has them")
    def test_total(self, submission):
        self.are_counted(submission, 0, dense(), dense(), dense(gated=False))

    @check(
        points=2, title="those that multiply a token: no embedding, no norms; GPT has two matrices"
    )
    def test_active(self, submission):
        self.are_counted(submission, 1, dense(), dense(gated=False), dense())

    @check(points=3, title="mixtures: all experts are held, a few multiply a token")
    def test_mixture(self, submission):
        models = [
            mixed(),
            replace(mixed(), shared_experts=2),
            replace(mixed(), shared_experts=0),
            mixed(gated=False),
        ]
        models.append(replace(mixed(), dense_layers=0))
        for which in (0, 1):
            self.are_counted(submission, which, *models)


class TestStepFlops(Exercise):
    """FLOPs of a step: the model's, and the hardware's"""

    name = "step_flops"
    reference = "minitrain.planning.closed_forms:step_flops"
    hidden = HIDDEN
    MISTAKES = (
        (("model_flops(run), ", "model_flops(run) / 3, "), "that is forward alone: backward is twice as much again"),
        (("model_flops(run), ", "model_flops(run) - 3 * run.tokens * attention_flops_per_token(run.model, run.seq), "), "attention's scores are missing: QKᵀ and AV, 4 l h s a token forward"),
        (("model_flops(run), ", "model_flops(run) / run.tokens, "), "that is one token's: a step has global_batch · seq"),
        (("model_flops(run), ", "model_flops(run) / run.gpus, "), "that is one chip's: the whole step is asked for"),
        ((", hardware_flops(run)", ", 4 * model_flops(run) / 3"), "full recomputation repeats each layer, but never the head"),
    )  # fmt: skip

    def are_counted(self, submission, which, runs):
        what = ("the model's FLOPs", "the hardware's FLOPs")[which]
        for call, got, want in results(self, submission, [(run,) for run in runs], 2):
            wrong = told(self, call, lambda pair: pair[which])
            expect.equal(
                got[which], want[which], 1e-13, wrong, f"{what} of a step, {in_words(call[0])}"
            )

    @check(points=4, title="6 N D and attention's 12 l h s D, however the step is cut")
    def test_model(self, submission):
        cut = {"tp": 2, "pp": 2, "cp": 2, "recompute": "full"}
        self.are_counted(submission, 0, [
            run_of(dense(), dp=4, micro_batch=2), run_of(mixture(), dp=2, seq=4096),
            run_of(dense(), dp=2, microbatches=8, **cut),
        ])  # fmt: skip

    @check(points=4, title="with what none, selective and full recomputation repeat")
    def test_hardware(self, submission):
        ways = product(("none", "selective", "full"), ("2022", "fused", "eager"))
        models = [dense(gated=False), dense(), mixture()]
        random.shuffle(models)
        self.are_counted(submission, 1, [
            *(run_of(m, recompute=again, software=software, dp=2) for (again, software), m in zip(ways, models * 3)),
            *(run_of(model, recompute="full", dp=2) for model in models),
        ])  # fmt: skip


class TestStateBytes(Exercise):
    """Weights, gradients, optimizer"""

    name = "state_bytes"
    reference = "minitrain.planning.step.memory:state_bytes"
    hidden = HIDDEN
    MISTAKES = (
        (("ranks if zero >= stage else 1", "1"), "nothing is sharded here"),
        (("zero >= stage", "zero"), "stage 1 shards the optimizer alone, 2 also the gradients: both leave the weights whole"),
        (("zip(per, sharded)", "zip((2, 4, 12), sharded)"), "those are the usual bytes: `per` says others here"),
        (("parameters * size / n for", "int(parameters * size / n) for"), "that is in whole bytes: divide, and round nothing, so that the ranks' parts add up"),
        (("(3, 2, 1)", "(1, 2, 3)"), "weights are cut from stage 3 on, gradients from 2 on, the optimizer from 1 on"),
    )  # fmt: skip

    @check(points=3, title="ZeRO's table 1, all 54 cells, to their printed digits")
    def test_published(self, submission):
        rows = [
            r for r in read_table(data_dir() / "published_runs.csv") if r["metric"] == "state_gb"
        ]
        calls = [(number(r, "parameters"), int(r["zero"]), int(r["dp"]), (2, 2, 12)) for r in rows]
        for row, (_, sizes, _) in zip(rows, results(self, submission, calls, 3)):
            got, printed = sum(sizes) / 1e9, number(row, "published")
            expect.that(
                abs(got - printed) <= 10 ** -len(f"{printed:g}".partition(".")[2]),
                f"{row['name']}: got {got:.4g} GB, the paper prints {row['published']}: stage 1 shards the optimizer's "
                "bytes, 2 also the gradients', 3 all. Here `per` is (2, 2, 12)",
            )

    @check(points=4, title="each of the three, sharded from its own stage on")
    def test_each(self, submission):
        calls = []
        for stage, per in enumerate([(2, 2, 12), (4, 4, 8), (1, 2, 8), (2, 4, 6)]):
            n, ranks = random.randrange(10**9, 10**11, 64), random.choice([3, 8, 64])
            calls += [
                (n, stage, ranks),
                (n, stage, ranks, per),
                (random.choice([5, 7, 11]), stage, 64, (2, 4, 12)),
            ]
        calls.append((random.randrange(10**9), 3, 1))
        for call, got, want in results(self, submission, calls, 3):
            what = f"(weights, gradients, optimizer) of parameters, stage, ranks, per = {call}"
            wrong = ((list(each), words) for each, words in told(self, call))
            expect.equal(list(got), list(want), 1e-9, wrong, what)


class TestActivationBytes(Exercise):
    """What forward keeps for backward"""

    name = "activation_bytes"
    reference = "minitrain.planning.closed_forms:activation_bytes"
    hidden = HIDDEN
    MISTAKES = (
        (("rank_memory(run, 0).activations", "rank_memory(run, 0).activations / run.plan.tp"), "all is cut by tp: only what tensor parallelism cuts, and with sp the rest"),
        (("rank_memory(run, 0).activations", "rank_memory(run, 0).activations * run.plan.cp"), "a context rank has seq / cp of the tokens: run.local_tokens"),
        (("rank_memory(run, 0).activations", "rank_memory(run, 0).activations / run.model.layers"), "that is one layer's: count the layers that are alive"),
        (("rank_memory(run, 0).activations", "rank_memory(run, 0).activations / min(run.plan.pp, run.microbatches)"), "that is one microbatch in flight: the first rank of 1F1B holds min(p, m)"),
        (("rank_memory(run, 0).activations", "rank_memory(run, 0).activations / min(run.plan.pp, run.microbatches) * run.microbatches"), "all m microbatches alive is GPipe: 1F1B holds min(p, m)"),
    )  # fmt: skip

    def are_kept(self, submission, runs):
        """Of each run."""
        for call, got, want in results(self, submission, [(run,) for run in runs]):
            what = f"activations of the first pipeline rank: {in_words(call[0])}"
            expect.equal(got, want, 1e-6, told(self, call), what)

    @check(
        points=5, title="one layer: gated or not, fused or not, cut by tp, sp and cp, recomputed"
    )
    def test_layer(self, submission):
        runs = []
        for gated, sp, recompute in product(
            (True, False), (False, True), ("none", "selective", "full")
        ):
            for software, cp in (("fused", 1), ("2022", 1), ("2022", 2), ("eager", 2)):
                plan = {
                    "tp": random.choice([2, 4]),
                    "sp": sp,
                    "cp": cp,
                    "recompute": recompute,
                    "software": software,
                }
                model = replace(dense(gated), layers=1)
                sizes = {"micro_batch": random.choice([2, 3]), "seq": random.choice([1024, 2048])}
                runs.append(run_of(model, microbatches=1, **plan, **sizes))
        self.are_kept(submission, runs)

    @check(points=3, title="the layers alive at once: of 1F1B p microbatches, interleaved more")
    def test_alive(self, submission):
        """In units of what the submission says of one layer alone, which another check looks at."""
        cuts = (
            (1, 1, 8),
            (4, 1, 12),
            (8, 1, 4),
            (2, 1, 1),
            (4, 2, 16),
            (8, 2, 32),
            (2, 4, 4),
            (8, 2, 8),
            (4, 2, 2),
        )
        runs = []
        for (pp, vpp, microbatches), recompute in product(cuts, ("none", "full")):
            schedule = "interleaved" if vpp > 1 else "1f1b"
            plan = {"tp": 2, "pp": pp, "vpp": vpp, "schedule": schedule, "recompute": recompute}
            runs.append(run_of(dense(), microbatches=microbatches, **plan))
        for run in [*runs]:
            plan = replace(run.plan, pp=1, vpp=1, schedule="1f1b")
            batch = plan.dp * plan.micro_batch
            runs.append(
                replace(run, model=replace(run.model, layers=1), plan=plan, global_batch=batch)
            )
        found = list(results(self, submission, [(run,) for run in runs]))
        half = len(runs) // 2
        for (call, *pair), (_, *ones) in zip(found[:half], found[half:]):
            expect.that(
                all(map(is_number, (*pair, *ones))) and ones[0],
                f"one layer keeps {ones[0]!r}, all {pair[0]!r}",
            )
            many = replace(call[0], global_batch=64 * call[0].global_batch)  # as the text has it
            pair[1] = variant(self.reference)(many) if many.plan.vpp > 1 else pair[1]
            got, want = (all_layers / one for all_layers, one in zip(pair, ones))
            wrong = ((kept / ones[1], words) for kept, words in told(self, call))
            words = "1F1B holds min(p, m) microbatches of layers / p, interleaved 1 + (p-1)/(p v) of all layers"
            expect.equal(
                got,
                want,
                1e-6,
                wrong,
                f"layers' worth that are alive ({words}): {in_words(call[0])}",
            )

    @check(points=2, title="the eight sizes of Korthikanti's figure 1")
    def test_published(self, submission):
        rows = [
            r
            for r in read_table(data_dir() / "published_runs.csv")
            if r["metric"] == "activation_gib"
        ]
        calls = [(replace(run_from_row(row), name="run"),) for row in rows]
        for row, (_, got, _) in zip(rows, results(self, submission, calls)):
            expect.close(got, GIB * number(row, "published"), 1e-3, what=f"bytes of {row['name']}")


PARTS = ("matmul", "elementwise", "tensor", "bubble", "data")


class TestStepParts(Exercise):
    """A step on paper"""

    name = "step_parts"
    reference = "minitrain.planning.closed_forms:step_parts"
    hidden = HIDDEN
    MISTAKES = (
        (("4 if plan.recompute == \"full\" else 3", "1"), "that is forward alone: a backward takes two forwards"),
        (("2 * (passes - 1) * layers", "2 * passes * layers"), "backward all-reduces as often as forward: 2, not 4 a layer"),
        (("run.microbatches * model.layers / plan.pp", "run.microbatches * model.layers"), "a rank runs layers / pp of the layers"),
        (("fabric) - matmul - elementwise)", "fabric))"), "what travels beside matmul and elementwise is hidden: take those off"),
        (("fabric) - matmul - elementwise)", "fabric) - matmul - elementwise - tensor)"), "only matmul and elementwise hide it, not the time that is waited in collectives"),
    )  # fmt: skip

    def parts(self, submission, runs, fabric=None):
        """(call, what came, what is expected) of each run."""
        calls = [(run, fabric or fabric_of(run.chip, run.per_node)) for run in runs]
        for call, got, want in results(self, submission, calls):
            shown = sorted(got) if isinstance(got, dict) else got
            is_parts = (
                isinstance(got, dict)
                and set(got) == set(PARTS)
                and all(map(is_number, got.values()))
            )
            expect.that(
                is_parts,
                f"got {shown!r}: a dictionary of the seconds {', '.join(PARTS)} is asked for",
            )
            yield call, got, want

    def are_alike(self, submission, runs, names, fabric=None):
        for call, got, want in self.parts(submission, runs, fabric):
            for name in names:
                wrong = told(self, call, lambda parts, name=name: parts[name])
                expect.equal(
                    got[name], want[name], 1e-6, wrong, f"{name} seconds: {in_words(call[0])}"
                )

    @check(
        points=3,
        title="compute: matmuls at the shares of the peak that they reach, memory-bound kernels",
    )
    def test_compute(self, submission):
        h100, a100 = "H100-SXM-80GB", "A100-SXM-80GB"
        runs = [
            run_of(dense(), chip, recompute=recompute, dp=5, micro_batch=2, microbatches=7)
            for recompute, chip in product(("none", "full", "selective"), (h100, a100))
        ]
        runs += [
            run_of(mixture(), h100, tp=4, pp=2, recompute="full", microbatches=8),
            run_of(dense(gated=False), "A100-SXM-40GB", cp=2, tp=2, software="eager"),
            run_of(dense(gated=False), a100, seq=1024, tp=2, software="2022"),
            run_of(dense(), h100, dp=2, precision="fp8", microbatches=2),
            run_of(dense(gated=False), a100, recompute="selective", software="2022"),
        ]
        self.are_alike(submission, runs, ("matmul", "elementwise"), IDEAL)

    @check(
        points=2, title="tensor parallelism: two all-reduces a layer forward, two backward, exposed"
    )
    def test_tensor(self, submission):
        cuts = [{"tp": 8, "pp": 4, "sp": True}, {"tp": 4, "pp": 1, "cp": 2, "dp": 2}]
        runs = [
            run_of(dense(), recompute=recompute, micro_batch=2, **cut)
            for recompute, cut in product(("full", "none", "selective"), cuts)
        ]
        runs += [run_of(dense()), run_of(dense(), dp=8), run_of(dense(), cp=8)]
        self.are_alike(submission, runs, ("tensor",))

    @check(points=2, title="the bubble: (p-1)/(v m) of what a rank computes and waits for")
    def test_bubble(self, submission):
        runs = []
        for pp, vpp, microbatches in ((1, 1, 16), (8, 1, 16), (8, 2, 16), (4, 1, 6)):
            plan = {"tp": 2, "pp": pp, "vpp": vpp, "schedule": "interleaved" if vpp > 1 else "1f1b"}
            runs.append(run_of(replace(dense(), layers=48), microbatches=microbatches, **plan))
        for (run, _), *both in self.parts(submission, runs):
            busy = [sum(parts[part] for part in PARTS[:3]) for parts in both]
            expect.that(busy[0] > 0, "matmul, elementwise and tensor are 0, so there is no bubble")
            got, want = (parts["bubble"] / seconds for parts, seconds in zip(both, busy))
            words = "(p-1)/(v m) of matmul, elementwise and tensor: a rank that waits in a collective is no further"
            expect.equal(got, want, 1e-6, what=f"bubble over busy time, {words}: {in_words(run)}")

    @check(points=2, title="data parallelism: one all-reduce of FP32 gradients, below ZeRO-3")
    def test_data(self, submission):
        cuts = [{"tp": 4, "pp": 2, "dp": 16}, {"tp": 2, "dp": 4, "cp": 4, "zero": 1}]
        cuts += [{"dp": 8, "zero": 2}, {"tp": 4}]
        runs = [run_of(model, **cut) for cut in cuts for model in (dense(), mixture())]
        self.are_alike(submission, runs, ("data",))

    @check(
        points=2,
        title="ZeRO-3: gathers twice, scatters once a microbatch; what is not hidden adds to the step",
    )
    def test_sharded(self, submission):
        cuts = [
            {"dp": 16},
            {"dp": 4, "tp": 4},
            {"dp": 4, "cp": 2},
            {"dp": 8, "tp": 2, "recompute": "full"},
        ]
        runs = [run_of(dense(), zero=3, microbatches=4, **cut) for cut in cuts]
        fabric = fabric_of(runs[0].chip, 8)
        slow = replace(fabric, between=replace(fabric.between, bandwidth=1e8), per_node=2)
        for call, got, want in self.parts(submission, runs, slow):  # beside its own computing
            work = got["matmul"] + got["elementwise"] - want["matmul"] - want["elementwise"]
            wrong = (
                (each - work, words)
                for each, words in told(self, call, lambda parts: parts["data"])
            )
            what = f"exposed seconds of ZeRO-3's traffic, slow network: {in_words(call[0])}"
            expect.equal(got["data"], want["data"] - work, 1e-6, wrong, what)
        for _, got, _ in self.parts(submission, runs, IDEAL):
            words = (
                f"on an ideal network all is hidden: 0 is exposed, not {got['data']:.3g}. max(0, …)"
            )
            expect.that(got["data"] == 0, words)

    @check(points=2, title="published steps: within 10% in the mean, MPT's within 14%")
    def test_published(self, submission):
        for table, most in zip(TABLES, (0.10, 0.10, 0.10, 0.14)):
            rows = [row for row in published_steps(table) if row.run.plan.precision != "fp8"]
            rows = rows if len(rows) < 20 else random.sample(rows, 20)
            runs = [replace(row.run, name="run") for row in rows]
            found = self.parts(submission, runs)
            errors = [sum(got.values()) / row.seconds - 1 for row, (_, got, _) in zip(rows, found)]
            mean, bias = sum(map(abs, errors)) / len(errors), sum(errors) / len(errors)
            expect.that(
                mean <= most,
                f"{table}: {mean:.1%} off in the mean, {abs(bias):.1%} too {'slow' if bias > 0 else 'fast'}; "
                f"at most {most:.0%}",
            )


class TestBestPlans(Exercise):
    """Every legal plan, the fitting ones, the fastest"""

    name = "best_plans"
    reference = "minitrain.planning.closed_forms:best_plans"
    hidden = HIDDEN

    def searches(self, submission):
        """(in words, what the submission did, what the reference does) on clusters where some rules bite."""
        odd = replace(dense(), layers=random.choice([28, 36]), heads=20, kv_heads=4, hidden=2560)
        other = replace(dense(), layers=32, kv_heads=4)
        searches = [  # model, chip, gpus, seq, batch; a factor on all memory; best, () is the default
            ((odd, find_chip("H100-SXM-80GB"), 72, 2048, 144), 1.0, ()),
            ((other, find_chip("A100-SXM-40GB"), 64, 4096, 96), 1.0, (1,)),
            ((odd, find_chip("A100-SXM-80GB"), 72, 1024, 144), 1.0, (3,)),
            ((odd, find_chip("H100-SXM-80GB"), 2, 1024, 2), 1.0, (1000,)),
            ((odd, find_chip("H100-SXM-80GB"), 72, 2048, 144), 100.0, ()),
        ]
        sent = [(given, random.randrange(10**9), heavy, best) for given, heavy, best in searches]
        with expect.because({
            "not supported between instances of 'Run' and 'Run'": "runs have no order: sort them with key=seconds_of",
            "not a multiple of dp": "dp · micro_batch must divide the batch: pass over such a plan before make_run",
        }):  # fmt: skip
            found = submission.run(probes.searched, sent)
        for (given, *_), got, want in zip(
            sent, found, probes.searched(variant(self.reference), sent)
        ):
            yield (
                f"{given[2]} {given[1].name}, a batch of {given[4]} sequences",
                as_tuples(got),
                as_tuples(want),
            )

    @check(points=3, title="all legal plans and no other are asked for their memory, once each")
    def test_legal(self, submission):
        for what, got, want in self.searches(submission):
            self.are_once(
                what,
                got["asked"],
                want["asked"],
                "is not legal, and memory_of was asked for it",
                "is legal, and memory_of was not asked for it",
            )
            rest = dict(zip(want["asked"], want["rest"]))
            for plan, given in zip(got["asked"], got["rest"]):
                changed = [name for name in given if given[name] != rest[plan][name]]
                expect.that(
                    not changed,
                    f"{what}: {changed} of the run of {named(plan)} is not as asked for: sp where tp is over 1, seq, batch, chip "
                    "and model as given, the rest as Plan() has it",
                )

    def are_once(self, what, got, want, more, less):
        """Which of the plans, each once."""
        counts = Counter(got)
        for plan in sorted(set(got) ^ set(want)):
            expect.that(False, f"{what}: {named(plan)} {more if plan in counts else less}")
        twice = [plan for plan, times in counts.items() if times > 1]
        expect.that(
            not twice,
            f"{what}: {len(twice)} plans were asked for more than once, such as {twice[:1]}",
        )

    @check(points=3, title="pruned by memory: what does not fit is never timed")
    def test_pruned(self, submission):
        for what, got, want in self.searches(submission):
            self.are_once(
                what,
                got["timed"],
                want["timed"],
                "needs more than 92% of chip.memory, or is not legal, and was timed",
                "needs at most 92% of chip.memory, and was not timed",
            )

    @check(points=2, title="the fastest first, `best` of them; of equal ones any")
    def test_ranked(self, submission):
        for what, got, want in self.searches(submission):
            seconds = [dict(zip(z["timed"], z["seconds"])) for z in (got, want)]
            expect.that(
                set(got["found"]) <= set(want["timed"]),
                f"{what}: a plan came back that does not fit, or is not legal",
            )
            expect.that(
                len(set(got["found"])) == len(got["found"]), f"{what}: a plan came back twice"
            )
            ranked = [[seconds[1][plan] for plan in z["found"]] for z in (got, want)]
            expect.equal(
                *ranked,
                what=f"{what}: seconds_of the plans that came back, the fastest first, `best` of them",
            )


def named(plan) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(probes.CUT, plan))


def as_tuples(search) -> dict:
    """The plans in it."""
    return {
        key: [tuple(row) for row in rows] if key in ("asked", "timed", "found") else rows
        for key, rows in search.items()
    }


# Whatever is drawn beside them: two on the front, and each has one that ties with it and is beaten.
TRADES = [(0, 30), (0, 31), (30, 0), (31, 0)]


def on_a_front(count) -> list[tuple]:
    """(days, dollars), of which none beats another."""
    days = sorted(random.sample(range(10 * count), count))
    usd = sorted(random.sample(range(10 * count), count), reverse=True)
    return list(zip(days, usd))


class TestPareto(Exercise):
    """The front: what no other choice beats"""

    name = "pareto"
    reference = "minitrain.planning.money.cost:pareto"
    hidden = HIDDEN

    def fronts(self, submission, choices):
        """(points, what came back, the front of them) of each list of choices, as tuples."""
        found = submission.run(probes.fronts_of, choices)
        expect.left_alone(found, [([list(p) for p in points],) for points in choices], ["choices"])
        right = probes.fronts_of(variant(self.reference), choices)
        return [
            (points, *([tuple(p) for p in z["out"]] for z in pair))
            for points, *pair in zip(choices, found, right)
        ]

    def is_front(self, _, got, want):
        more, less = set(got) - set(want), set(want) - set(got)
        rival = next(
            (
                q
                for point in sorted(more)[:1]
                for q in want
                if q[0] <= point[0] and q[1] <= point[1]
            ),
            None,
        )
        expect.that(
            not more,
            f"{sorted(more)[:1]} (days, dollars) is on your front, but {rival} is at least as good in both: keep a choice "
            "only if it is cheaper than all that are as fast or faster",
        )
        expect.that(
            not less,
            f"{sorted(less)[:1]} (days, dollars) is missing, {len(less)} of {len(want)}: nothing beats it in both, and of "
            "equal choices one is kept",
        )

    @check(points=3, title="exactly those that no other beats in both days and dollars")
    def test_front(self, submission):
        lists = [on_a_front(30), [(3, 4)], [(3, 4), (3, 4)], [(2, 5), (1, 5)], [(1, 6), (1, 5)]]
        for size in (7, 60, 60):
            points = [(random.randrange(1, 20), random.randrange(1, 20)) for _ in range(size)]
            points += [*TRADES, *points[:3]]  # some twice
            random.shuffle(points)
            lists.append(points)
        lists.append([(days / 7 - 5, -usd / 3) for days, usd in lists[-1]])
        lists.append([(days / 40, usd / 40) for days, usd in on_a_front(30)])
        for row in self.fronts(submission, lists):
            self.is_front(*row)

    @check(points=1, title="fastest first; of no choice none")
    def test_order(self, submission):
        points = [(random.uniform(1, 100), random.uniform(1, 100)) for _ in range(40)]
        front = on_a_front(20)
        for given, kept, _ in self.fronts(
            submission, [[*points, *TRADES], random.sample(front, len(front)), []]
        ):
            words = f"{len(kept)} on the front of {len(given)} choices: of some at least one, of none none"
            expect.that(bool(kept) == bool(given), words)
            is_sorted = all(a[0] <= b[0] for a, b in pairwise(kept))
            expect.that(is_sorted, "the front goes from the fastest to the cheapest: by days")

    @check(points=2, title="30,000 choices, most on the front: sorted once, swept once")
    def test_sweep(self, submission):
        front = on_a_front(24_000)
        beaten = [(days + 1, usd + 1) for days, usd in random.sample(front, 6_000)]
        points = random.sample([*front, *beaten], 30_000)
        words = (
            "every choice against every other, or against all kept so far, is n²: sort by days, then one sweep that keeps "
            "what is cheaper than all before"
        )
        with expect.because({"comparisons": words, "timeout": words}):
            kept = submission.run(probes.front_by_comparisons, points, 40 * len(points), timeout=15)
        self.is_front(points, [tuple(p) for p in kept], front)


class TestMemory(Experiment):
    """Figure 1 of Korthikanti et al. again"""

    name = "memory"
    rests_on = ("weights", "state_bytes", "activation_bytes")

    @check(points=4, title="eight bars: activations exact, states within 4%")
    def test_rows(self, table):
        rows = read_table(data_dir() / "published_runs.csv")
        printed = {
            r["name"]: number(r, "published") for r in rows if r["metric"] == "activation_gib"
        }
        states = {r["name"]: number(r, "published") for r in rows if r["metric"] == "state_gib"}
        expect.that(
            {row["run"] for row in table} == set(printed),
            f"runs {sorted({row['run'] for row in table})}: the figure has {sorted(printed)}",
        )
        for row in table:
            name = row["run"]
            expect.close(
                row["activations_gib"], printed[name], tol=1e-3, what=f"activations, {name}"
            )
            want = states[name.split()[0]]
            expect.close(row["states_gib"], want, tol=0.04, what=f"weights to optimizer, {name}")


class TestErrors(Experiment):
    """Your step against published ones"""

    name = "errors"
    rests_on = ("step_parts",)

    @check(points=3, title="the seconds that were published, and yours as the sum of their parts")
    def test_sums(self, table):
        known = {row.run.name: row.seconds for name in TABLES for row in published_steps(name)}
        tables = {row["table"] for row in table}
        expect.that(set(TABLES) <= tables, f"tables {sorted(tables)}: four are asked for")
        expect.that(len(table) >= 90, f"{len(table)} rows: all runs in 16 bits are 92")
        for row in table:
            want = known.get(row["run"])
            expect.that(want is not None, f"{row['run']} is no published run")
            expect.close(row["published_seconds"], want, tol=1e-6, what=f"{row['run']}, published")
            parts = ("matmul", "elementwise", "tensor", "bubble", "data")
            total = sum(row[part] for part in parts)
            expect.close(
                row["yours_seconds"], total, tol=1e-6, what=f"{row['run']}, your parts' sum"
            )

    @check(points=5, title="in the mean within 10% of each table (MPT: 14%)")
    def test_errors(self, table):
        errors = defaultdict(list)
        for row in table:
            errors[row["table"]].append(abs(row["yours_seconds"] / row["published_seconds"] - 1))
        for name, most in zip(TABLES, (0.10, 0.10, 0.10, 0.14)):
            mean = sum(errors[name]) / len(errors[name])
            expect.that(mean <= most, f"{name}: {mean:.1%} off in the mean, at most {most:.0%}")


class TestClouds(Experiment):
    """Chips, clouds, energy, carbon"""

    name = "clouds"
    rests_on = ("best_plans",)

    @check(points=4, title="money is a range: chip-hours times the prices of data/prices.csv")
    def test_money(self, table):
        chips = {row["chip"] for row in table}
        expect.that(len(chips) >= 3, f"chips {sorted(chips)}: at least three are asked for")
        for row in table:
            price, name = price_of(row["chip"]), f"{row['gpus']} {row['chip']}"
            hours = row["days"] * 24 * row["gpus"]
            expect.close(row["chip_hours"], hours, tol=1e-6, what=f"{name}: days · 24 · gpus")
            for key, usd in (
                ("usd_low", price.low),
                ("usd", price.typical),
                ("usd_high", price.high),
            ):
                expect.close(row[key], hours * usd, tol=1e-6, what=f"{name}: {key}")

    @check(points=3, title="energy is hours times watts times PUE, carbon follows the grid")
    def test_energy(self, table):
        for row in table:
            watts = find_chip(row["chip"]).watts
            kwh, name = row["chip_hours"] * watts / 1000 * PUE, f"{row['gpus']} {row['chip']}"
            hints = [(kwh, "that is kWh"), (kwh / 1000 / PUE, "all power is PUE times the chips'")]
            expect.close(row["mwh"], kwh / 1000, tol=1e-6, what=f"{name}: MWh", hints=hints)
            ratio = row["tonnes_coal"] / row["tonnes_france"]
            expect.close(
                ratio, 820 / 57, tol=0.01, what=f"{name}: coal (820 g/kWh) over France (57)"
            )
            expect.close(
                row["tonnes_france"], kwh * 57e-6, tol=1e-6, what=f"{name}: tonnes, France"
            )


class TestChinchilla(Experiment):
    """The best N and D, with and without serving"""

    name = "chinchilla"
    rests_on = ("step_flops",)

    @check(points=3, title="training and serving spend the whole budget: 6 N D + 2 N served")
    def test_budget(self, table):
        for row in table:
            n, d = row["parameters"], row["tokens"]
            spent = 6 * n * d + 2 * n * row["served"]
            expect.close(spent, row["flops"], tol=1e-3, what=f"FLOPs of the row {row['flops']:.0e}")

    @check(
        points=3,
        title="alone about 20 tokens a parameter; served models are smaller, trained longer",
    )
    def test_ratio(self, table):
        plain = {row["flops"]: row for row in table if row["served"] == 0}
        expect.that(len(plain) >= 3, f"{len(plain)} budgets without serving: three or more")
        for row in plain.values():
            ratio = row["tokens"] / row["parameters"]
            expect.that(10 < ratio < 40, f"{ratio:.0f} tokens a parameter at {row['flops']:.0e}")
        served = [row for row in table if row["served"] > 0]
        expect.that(served, "no row serves the model: record some")
        for row in served:
            alone = plain.get(row["flops"])
            expect.that(alone, f"the budget {row['flops']:.0e} has no row without serving")
            expect.that(
                row["parameters"] < alone["parameters"]
                and row["tokens"] / row["parameters"] > alone["tokens"] / alone["parameters"],
                f"at {row['flops']:.0e} the served model should be smaller, on more tokens a parameter",
            )


class TestBubbleShare(Question):
    """What a deep pipeline wastes"""

    name = "bubble_share"
    rests_on = ("errors",)

    @check(points=5, title="the bubble's share of your step of '1T full'")
    def test_value(self, value, records):
        rows = [r for r in expect.recorded(records, "errors") if r["run"] == "1T full"]
        expect.that(rows, "your table has no row '1T full'")
        row = rows[0]
        want = row["bubble"] / row["yours_seconds"]
        work = row["matmul"] + row["elementwise"] + row["tensor"]
        expect.close(
            value,
            want,
            tol=0.02,
            what="bubble / step",
            hints=[
                (row["bubble"] / work, "that is over the work: the whole step is asked for"),
                (row["bubble"], "those are the seconds: divide by yours_seconds"),
                (100 * want, "a share between 0 and 1, not percent"),
                (row["bubble"] / row["published_seconds"], "over your own step, not the published one"),
            ],
        )  # fmt: skip


class TestDeadline(Question):
    """The cheapest that is done in time"""

    name = "deadline"
    rests_on = ("clouds", "pareto")

    @check(points=5, title="the cheapest within 30 days, by the typical price")
    def test_value(self, value, records):
        rows = expect.recorded(records, "clouds")
        labels = {f"{row['gpus']} {row['chip']}": row for row in rows}
        chosen = [row for label, row in labels.items() if value == label]
        expect.that(chosen, f"got {value!r}: an answer reads like {next(iter(labels))!r}")
        in_time = [row for row in rows if row["days"] <= 30]
        expect.that(in_time, "no row of your table is done in 30 days: try more chips")
        want = min(in_time, key=lambda row: row["usd"])
        mine = chosen[0]
        words = "there is a cheaper one that is done in time"
        if mine["days"] > 30:
            words = f"it takes {mine['days']:.0f} days"
        expect.that(
            mine["usd"] <= want["usd"] * (1 + 1e-9) and mine["days"] <= 30, f"{value}: {words}"
        )


class TestServedSize(Question):
    """How much smaller"""

    name = "served_size"
    rests_on = ("chinchilla",)

    @check(points=5, title="N with serving over N without, for the largest budget and service")
    def test_value(self, value, records):
        rows = expect.recorded(records, "chinchilla")
        flops = max(row["flops"] for row in rows)
        most = max(row["served"] for row in rows if row["flops"] == flops)
        at = {row["served"]: row["parameters"] for row in rows if row["flops"] == flops}
        expect.that(0 in at and most > 0, "your table lacks that budget with and without serving")
        want = at[most] / at[0]
        expect.close(
            value,
            want,
            tol=0.02,
            what="N with serving / N without",
            hints=[
                (1 / want, "that is upside down"),
                (1 - want, "that is by how much it shrinks: the ratio is asked for"),
                (at[most], "that is N itself: divide by N without serving"),
            ],
        )
