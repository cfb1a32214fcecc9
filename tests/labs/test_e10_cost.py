"""The checks of lab e10: closed forms, a step on paper, plans searched, money and its range."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise, product

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, check
from minitrain.measure import flops, parameters
from minitrain.paths import data_dir
from minitrain.planning import closed_forms
from minitrain.planning.columns import run_from_row
from minitrain.planning.hardware import find_chip, number, read_table
from minitrain.planning.money.cost import PUE
from minitrain.planning.money.prices import price_of
from minitrain.planning.run import Model, Plan, Run, make_run
from minitrain.planning.step import memory, workload
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
HIDDEN = tuple(
    f"minitrain/{name}.py"
    for name in (
        *("planning/closed_forms", "planning/step/workload", "planning/step/memory"),
        *("planning/money/cost", "planning/search", "measure/parameters", "measure/flops"),
    )
)
GIB = 2**30
TABLES = ("Korthikanti table 5", "SC21 table 1", "Llama 3 405B table 4", "MPT benchmarks")


# What the checks are made of.
def dense(gated=True) -> Model:
    heads = random.choice([16, 24, 32, 40, 64])
    hidden = 128 * heads
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


def mixture() -> Model:
    return replace(
        dense(),
        experts=random.choice([8, 16, 64]),
        experts_per_token=random.choice([2, 4]),
        moe_ffn=random.choice([1408, 2048]),
        shared_experts=1,
        dense_layers=random.choice([1, 2, 3]),
    )


def run_of(model: Model, chip="A100-SXM-80GB", seq=2048, microbatches=16, **plan) -> Run:
    settled = Plan(software=plan.pop("software", "fused"), **plan)
    return make_run(chip, model, settled, seq, settled.dp * settled.micro_batch * microbatches)


def in_words(run: Run) -> str:
    p = run.plan
    kind = "gated" if run.model.gated else "GPT"
    return (
        f"{kind}, {run.model.layers} layers, tp {p.tp}, sp {int(p.sp)}, pp {p.pp}, vpp {p.vpp}, "
        f"dp {p.dp}, {run.microbatches} microbatches, recompute {p.recompute}, {p.software}"
    )


class TestWeights(Exercise):
    """The N of a model, and the N of 6ND"""

    name = "weights"
    reference = "minitrain.planning.closed_forms:weights"
    hidden = HIDDEN

    @check(points=3, title="all parameters of a dense model, as its checkpoint has them")
    def test_total(self, submission):
        for _ in range(2):
            m = dense()
            h, layers = m.hidden, m.layers
            want = parameters.parameter_count(m, 0)
            full_kv = layers * 2 * h * (h - m.kv_heads * m.head_size)
            got = submission.run(probes.called, m)[0]
            expect.equal(
                got,
                want,
                tol=1e-12,
                what=f"all parameters of {m}",
                hints=[
                    (want + full_kv, "k and v have kv_heads heads, not heads: h · head_size · kv"),
                    (want - layers * h * m.ffn, "a gated MLP has three matrices: gate, up, down"),
                    (want - h * m.vocab, "embedding and head are two tables here (not tied)"),
                    (want - h * (2 * layers + 1), "the norms are missing: two a layer, one at the end"),
                    (want - h, "the last norm, after all layers, is missing"),
                    (want - layers * h, "a layer has two norms, before attention and before the MLP"),
                ],
            )  # fmt: skip

    @check(
        points=2, title="those that multiply a token: no embedding, no norms; GPT has two matrices"
    )
    def test_active(self, submission):
        for m in (dense(), dense(gated=False)):
            want = parameters.matmul_parameters(m)
            table, norms = m.hidden * m.vocab, m.hidden * (2 * m.layers + 1)
            expect.close(
                submission.run(probes.called, m)[1],
                want,
                tol=1e-9,
                what=f"weights that multiply one token of {'a gated model' if m.gated else 'GPT'}",
                hints=[
                    (want + table, "the embedding is looked up, it multiplies nothing"),
                    (want + table + norms, "those are all parameters: an embedding multiplies nothing"),
                    (want - table, "the head multiplies every token: hidden · vocab"),
                    (want + norms, "norms scale, they are no matmul: leave them out here"),
                    (want + m.layers * m.hidden * m.ffn, "without a gate an MLP has two matrices"),
                ],
            )  # fmt: skip

    @check(points=3, title="a mixture: all experts are held, a few multiply a token")
    def test_mixture(self, submission):
        m = mixture()
        one = parameters.mlp_weights(m, m.moe_ffn)
        total, active = parameters.parameter_count(m, 0), parameters.matmul_parameters(m)
        router, idle = m.moe_layers * m.hidden * m.experts, m.experts - m.experts_per_token
        got = submission.run(probes.called, m)
        no_dense = m.dense_layers * (parameters.mlp_weights(m, m.ffn))
        expect.equal(
            got[0],
            total,
            tol=1e-12,
            what=f"all parameters of {m}",
            hints=[
                (total - m.moe_layers * idle * one, "that counts the experts of one token: all are held"),
                (total - router, "the router of a layer, hidden x experts, is missing"),
                (total - m.moe_layers * one, "shared experts are missing: every token passes them"),
                (total - no_dense, "the first dense_layers have an MLP of ffn"),
            ],
        )  # fmt: skip
        expect.equal(
            got[1],
            active,
            tol=1e-12,
            what="weights of the mixture that multiply one token",
            hints=[
                (active + m.moe_layers * idle * one, "that is all experts: a token meets experts_per_token"),
                (active - router, "the router multiplies every token: hidden x experts a layer"),
                (active - m.moe_layers * one, "shared experts are missing: every token passes them"),
            ],
        )  # fmt: skip


class TestStepFlops(Exercise):
    """FLOPs of a step: the model's, and the hardware's"""

    name = "step_flops"
    reference = "minitrain.planning.closed_forms:step_flops"
    hidden = HIDDEN

    @check(points=4, title="6 N D and attention's 12 l h s D")
    def test_model(self, submission):
        for model in (dense(), mixture()):
            run = run_of(model, dp=4, micro_batch=2)
            want = workload.model_flops(run)
            scores = 3 * run.tokens * flops.attention_flops_per_token(model, run.seq)
            total = parameters.parameter_count(model, 0)
            got = submission.run(probes.called, run)[0]
            expect.close(
                got,
                want,
                tol=1e-6,
                what=f"the model's FLOPs of a step of {run.tokens:,} tokens",
                hints=[
                    (want / 3, "that is forward alone: backward is twice as much again"),
                    (want * 2 / 3, "backward has two matmuls for each of forward: 4 N, not 2 N"),
                    (want - scores, "attention's scores are missing: QKᵀ and AV, 4 l h s a token forward"),
                    (want - scores / 2, "half of the scores: here they count in full, as in MFU by its usual definition"),
                    (want / run.tokens, "that is one token's: a step has global_batch · seq"),
                    (want / run.gpus, "that is one chip's: the whole step is asked for"),
                    (want / 2, "a multiply-add is two FLOPs"),
                    (want + 6 * run.tokens * (total - parameters.matmul_parameters(model)), "N counts what multiplies a token, the second that `weights` gives"),
                ],
            )  # fmt: skip

    @check(points=4, title="with what none, selective and full recomputation repeat")
    def test_hardware(self, submission):
        for recompute, software in product(("none", "selective", "full"), ("2022", "fused")):
            run = run_of(dense(gated=False), recompute=recompute, software=software, dp=2)
            want, model = workload.hardware_flops(run), workload.model_flops(run)
            scores = run.tokens * flops.attention_flops_per_token(run.model, run.seq)
            head = 2 * run.tokens * parameters.head_weights(run.model)
            expect.close(
                submission.run(probes.called, run)[1],
                want,
                tol=1e-6,
                what=f"the hardware's FLOPs, recompute {recompute}, software {software}",
                hints=[
                    (model, f"that is the model's: {recompute} recomputation runs a part of forward again"),
                    (want + head, "full recomputation repeats each layer, but never the head"),
                    (want - scores, "the scores are part of a layer that is run again"),
                    (model + scores, "fused attention keeps no scores, so selective has none to repeat: test plan.modern"),
                    (2 * model, "full recomputation is one forward more, a third: not another step"),
                ],
            )  # fmt: skip


class TestStateBytes(Exercise):
    """Weights, gradients, optimizer"""

    name = "state_bytes"
    reference = "minitrain.planning.step.memory:state_bytes"
    hidden = HIDDEN

    @check(points=3, title="ZeRO's table 1, all 54 cells, to their printed digits")
    def test_published(self, submission):
        rows = read_table(data_dir() / "published_runs.csv")
        rows = [row for row in rows if row["metric"] == "state_gb"]
        calls = [(number(r, "parameters"), int(r["zero"]), int(r["dp"]), (2, 2, 12)) for r in rows]
        for row, sizes in zip(rows, submission.run(probes.called_each, calls)):
            got, printed = sum(sizes) / 1e9, number(row, "published")
            digit = 10 ** -len(f"{printed:g}".partition(".")[2])
            expect.that(
                abs(got - printed) <= digit,
                f"{row['name']}: got {got:.4g} GB, the paper prints {row['published']}: "
                "stage 1 shards the optimizer's bytes, 2 also the gradients', 3 all",
            )

    @check(points=4, title="each of the three, sharded from its own stage on")
    def test_each(self, submission):
        n, ranks = random.randrange(10**9, 10**11, 64), random.choice([3, 8, 64])
        for stage in range(4):
            want = list(memory.state_bytes(n, stage, ranks, (2, 4, 12)))
            weights, gradients, optimizer = want
            got = list(submission.run(probes.called, n, stage, ranks, (2, 4, 12)))
            expect.close(
                got,
                want,
                tol=1e-9,
                what=f"(weights, gradients, optimizer) of {n} parameters, stage {stage} of {ranks} ranks",
                hints=[
                    ([2 * n, 4 * n, 12 * n], "nothing is sharded here"),
                    ([x * n / (ranks if stage else 1) for x in (2, 4, 12)], "stage 1 shards the optimizer alone, 2 also the gradients: both leave the weights whole"),
                    (memory.state_bytes(n, stage, ranks, (2, 2, 12)), "gradients have the bytes that `per` says, here 4"),
                    ([optimizer, gradients, weights], "in the order weights, gradients, optimizer"),
                    (list(memory.state_bytes(n, stage, ranks, (2, 4, 8))), "the optimizer has 12: FP32 weights, and two moments"),
                    ([w / n for w in want], "that is of one parameter"),
                ],
            )  # fmt: skip


class TestActivationBytes(Exercise):
    """What forward keeps for backward"""

    name = "activation_bytes"
    reference = "minitrain.planning.closed_forms:activation_bytes"
    hidden = HIDDEN

    @check(points=5, title="one layer: gated or not, fused or not, cut by tp, by sp, recomputed")
    def test_layer(self, submission):
        runs = []
        for gated, sp, recompute in product((1, 0), (0, 1), ("none", "selective", "full")):
            for software in ("fused", "2022"):
                plan = {"tp": 4, "sp": bool(sp), "recompute": recompute, "software": software}
                model = replace(dense(bool(gated)), layers=1)
                runs.append(run_of(model, micro_batch=2, microbatches=1, **plan))
        for run, got in zip(runs, submission.run(probes.called_each, [(run,) for run in runs])):
            self.compare(run, got)

    def compare(self, run, got):
        want = closed_forms.activation_bytes(run)
        tokens, m, t = run.local_tokens, run.model, run.plan.tp
        kept = tokens * m.layers
        scores = kept * 5 * m.heads * run.seq / t
        whole = kept * (8 if run.plan.modern else 10) * m.hidden
        sharp = replace(run, plan=replace(run.plan, sp=not run.plan.sp))
        one = replace(
            run,
            plan=replace(run.plan, micro_batch=1),
            global_batch=run.global_batch // run.plan.micro_batch,
        )
        expect.close(
            got,
            want,
            tol=1e-6,
            what=f"activations of the first pipeline rank: {in_words(run)}",
            hints=[
                (want + scores, "the scores are counted where attention is fused or recomputed: it keeps none"),
                (want - scores, "the scores, 5 · heads · seq / t a token, are missing"),
                (want + whole * (1 - 1 / t), "with sp the norms' and dropouts' tensors are cut by tp too"),
                (want - whole * (1 - 1 / t), "without sp the norms' and dropouts' tensors are whole on each tensor rank"),
                (want - whole / t, "the inputs of norms, attention and MLP are missing: (8 or 10) h"),
                (closed_forms.activation_bytes(sharp), "you have sp the wrong way round"),
                (kept * 2 * m.hidden / t, "the kept input of a layer is whole: 2 h a token, as recompute full keeps it"),
                (closed_forms.activation_bytes(one), "a microbatch has micro_batch sequences: run.local_tokens"),
            ],
        )  # fmt: skip

    @check(points=3, title="the layers alive at once: of 1F1B p microbatches, interleaved more")
    def test_alive(self, submission):
        for pp, vpp, microbatches in ((1, 1, 8), (4, 1, 16), (8, 1, 4), (4, 2, 16), (8, 2, 32)):
            schedule = "interleaved" if vpp > 1 else "1f1b"
            plan = {"tp": 2, "pp": pp, "vpp": vpp, "schedule": schedule}
            run = run_of(dense(), microbatches=microbatches, **plan)
            want = closed_forms.activation_bytes(run)
            layer = memory.layer_activations(run)
            layers = run.model.layers
            expect.close(
                submission.run(probes.called, run),
                want,
                tol=1e-6,
                what=f"activations of the first pipeline rank: {in_words(run)}",
                hints=[
                    (layer, "that is one layer's: count the layers that are alive"),
                    (layer * layers / pp, "that is one microbatch in flight: the first rank of 1F1B holds min(p, m)"),
                    (layer * layers / pp * microbatches, "all m microbatches alive is GPipe: 1F1B holds min(p, m)"),
                    (layer * layers * pp, "a rank has layers / p of them, p microbatches deep: p cancels"),
                    (layer * layers, "interleaved holds more: layers · (1 + (p-1)/(p v))" if vpp > 1 else "with fewer microbatches than stages only m are in flight: min(p, m)"),
                ],
            )  # fmt: skip

    @check(points=2, title="the eight sizes of Korthikanti's figure 1")
    def test_published(self, submission):
        rows = read_table(data_dir() / "published_runs.csv")
        rows = [row for row in rows if row["metric"] == "activation_gib"]
        found = submission.run(
            probes.called_each, [(replace(run_from_row(row), name="run"),) for row in rows]
        )
        for row, got in zip(rows, found):
            want = number(row, "published")
            expect.close(got / GIB, want, tol=1e-3, what=f"GiB of {row['name']}")


def parts_of(submission, run, fabric) -> dict:
    return checked_parts(submission.run(probes.called, run, fabric))


def checked_parts(got) -> dict:
    names = ["matmul", "elementwise", "tensor", "bubble", "data"]
    expect.that(
        isinstance(got, dict) and sorted(got) == sorted(names),
        f"got {sorted(got) if isinstance(got, dict) else got!r}: a dictionary of the seconds "
        f"{', '.join(names)} is asked for",
    )
    return got


class TestStepParts(Exercise):
    """A step on paper"""

    name = "step_parts"
    reference = "minitrain.planning.closed_forms:step_parts"
    hidden = HIDDEN

    @check(points=3, title="compute: matmuls at the rates that are held, memory-bound kernels")
    def test_compute(self, submission):
        for recompute, chip in product(("none", "full"), ("H100-SXM-80GB", "A100-SXM-80GB")):
            run = run_of(dense(), chip, recompute=recompute, dp=2, micro_batch=2, microbatches=4)
            got = parts_of(submission, run, IDEAL)
            want = closed_forms.step_parts(run, IDEAL)
            held = run.chip.constants
            passes = 4 if recompute == "full" else 3
            near = want["matmul"]
            expect.close(
                got["matmul"],
                near,
                tol=0.05,
                what=f"matmul seconds on {chip}, recompute {recompute}",
                hints=[
                    (near * held.matmul, "that is at the chip's peak: matmuls hold chip.constants.matmul of it"),
                    (near / passes, "that is forward alone: a backward takes two forwards"),
                    (near * 3 / 4, "full recomputation runs forward again: four passes, not three"),
                    (near * run.gpus, "the chips share the work: divide by run.gpus"),
                    (near / run.microbatches, "that is one microbatch: a step has run.microbatches"),
                ],
            )  # fmt: skip
            kernels = want["elementwise"]
            expect.close(
                got["elementwise"],
                kernels,
                tol=0.01,
                what=f"elementwise seconds on {chip}, recompute {recompute}",
                hints=[
                    (kernels / run.microbatches, "that is one microbatch: a step has run.microbatches"),
                    (kernels / run.model.layers, "that is one layer: a rank has layers / pp"),
                    (kernels / passes, "that is forward alone: a backward takes two forwards"),
                    (kernels * 3 / 4, "full recomputation runs forward again: four passes, not three"),
                ],
            )  # fmt: skip

    @check(points=2, title="tensor parallelism: two all-reduces a layer and pass, exposed")
    def test_tensor(self, submission):
        for recompute in ("full", "none"):
            run = run_of(dense(), recompute=recompute, tp=8, pp=2, sp=True)
            fabric = fabric_of(run.chip, 8)
            want = closed_forms.step_parts(run, fabric)["tensor"]
            forward = want / (3 if recompute == "full" else 2)
            expect.close(
                parts_of(submission, run, fabric)["tensor"],
                want,
                tol=0.02,
                what=f"seconds of tensor-parallel all-reduces, recompute {recompute}, pp 2",
                hints=[
                    (forward, "that is forward's: backward has as many, and recomputation again"),
                    (2 * forward, "recomputed layers are all-reduced again: six a layer, not four"),
                    (want / 2, "two all-reduces a layer in each pass: after attention and after the MLP"),
                    (want * 2, "a rank runs layers / pp of the layers"),
                    (want / run.microbatches, "that is one microbatch: a step has run.microbatches"),
                    (want * 1.5, "backward all-reduces as often as forward: 2, not 4 a layer"),
                ],
            )  # fmt: skip
        for run in (run_of(dense()), run_of(dense(), dp=8)):
            alone = parts_of(submission, run, fabric_of(run.chip, 8))["tensor"]
            expect.that(
                alone == 0, f"tp is 1, so nothing is all-reduced, but tensor is {alone:.3g}"
            )

    @check(points=2, title="the bubble: (p-1)/(v m) of what a rank computes and waits for")
    def test_bubble(self, submission):
        for pp, vpp in ((1, 1), (8, 1), (8, 2)):
            schedule = "interleaved" if vpp > 1 else "1f1b"
            run = run_of(replace(dense(), layers=48), tp=2, pp=pp, vpp=vpp, schedule=schedule)
            got = parts_of(submission, run, fabric_of(run.chip, 8))
            busy = got["matmul"] + got["elementwise"] + got["tensor"]
            share = (pp - 1) / (vpp * run.microbatches)
            expect.close(
                got["bubble"] / busy,
                share,
                tol=0.01,
                what=f"bubble / (matmul + elementwise + tensor), pp {pp}, vpp {vpp}, m {run.microbatches}",
                hints=[
                    (share * vpp, "v chunks a rank make the bubble v times smaller"),
                    ((pp - 1) / (run.microbatches + pp - 1), "(p-1)/(m+p-1) is its share of the whole step; of the work it is (p-1)/m"),
                    (share * got["matmul"] / busy, "a rank that waits in a collective is no further: the bubble scales with all three"),
                    (share * (got["matmul"] + got["elementwise"]) / busy, "a rank that waits in a collective is no further: the bubble scales with all three"),
                    (pp / (vpp * run.microbatches), "p - 1 passes fill and drain the pipeline, not p"),
                ],
            )  # fmt: skip

    @check(
        points=2, title="data parallelism: one all-reduce of FP32 gradients, none to see in ZeRO-3"
    )
    def test_data(self, submission):
        run = run_of(dense(), tp=4, pp=2, dp=16)
        fabric = fabric_of(run.chip, 8)
        n, d = closed_forms.weights(run.model)[0], run.plan.dp
        at = lambda nbytes, stride=4: fabric.seconds("all_reduce", nbytes, d, stride=stride)  # noqa: E731
        expect.close(
            parts_of(submission, run, fabric)["data"],
            at(4 * n / 8),
            tol=0.02,
            what="seconds of the gradients' all-reduce, tp 4, pp 2, dp 16",
            hints=[
                (at(2 * n / 8), "gradients add up in FP32: 4 bytes each"),
                (at(4 * n), "a rank holds N / (tp · pp) of the parameters"),
                (at(4 * n / 4), "a rank holds N / (tp · pp) of the parameters"),
                (at(4 * n / 8, 1), "data ranks stand tp apart: give stride=plan.tp, or they seem to share a node"),
                (at(4 * n / 8) * run.microbatches, "once a step, not once a microbatch"),
            ],
        )  # fmt: skip

    @check(
        points=2,
        title="ZeRO-3: gathers twice, scatters once a microbatch; what is not hidden shows",
    )
    def test_sharded(self, submission):
        run = run_of(dense(), dp=16, zero=3, microbatches=4)
        fabric = fabric_of(run.chip, 8)
        slow = replace(fabric, between=replace(fabric.between, bandwidth=1e9))
        want = closed_forms.step_parts(run, slow)
        n, work = closed_forms.weights(run.model)[0], want["matmul"] + want["elementwise"]
        gather, scatter = (
            slow.seconds(kind, size * n, 16)
            for kind, size in (("all_gather", 2), ("reduce_scatter", 4))
        )
        expect.close(
            parts_of(submission, run, slow)["data"],
            want["data"],
            tol=0.05,
            what="exposed seconds of ZeRO-3's traffic, slow network",
            hints=[
                (want["data"] + work, "what travels beside matmul and elementwise is hidden: take those off"),
                (4 * (gather + scatter) - work, "weights are gathered twice, for forward and for backward"),
                (2 * gather + scatter - work, "each microbatch gathers again: times run.microbatches"),
                (slow.seconds("all_reduce", 4 * n, 16), "that is stage 1's all-reduce: ZeRO-3 gathers weights and scatters gradients"),
                (0.0, "only what fits beside the computation is hidden, not all of it"),
            ],
        )  # fmt: skip
        hidden = parts_of(submission, run, IDEAL)["data"]
        expect.that(
            hidden == 0, f"on an ideal network all is hidden: 0 is exposed, not {hidden:.3g}"
        )

    @check(points=2, title="published steps: within 10% in the mean, MPT's within 14%")
    def test_published(self, submission):
        for table, most in zip(TABLES, (0.10, 0.10, 0.10, 0.14)):
            rows = [r for r in published_steps(table) if r.run.plan.precision != "fp8"]
            rows = rows if len(rows) < 20 else random.sample(rows, 20)
            calls = [
                (replace(r.run, name="run"), fabric_of(r.run.chip, r.run.per_node)) for r in rows
            ]
            found = submission.run(probes.called_each, calls)
            errors = [
                sum(checked_parts(got).values()) / r.seconds - 1 for got, r in zip(found, rows)
            ]
            mean = sum(map(abs, errors)) / len(errors)
            bias = sum(errors) / len(errors)
            expect.that(
                mean <= most,
                f"{table}: {mean:.1%} off in the mean, {abs(bias):.1%} too {'slow' if bias > 0 else 'fast'}; "
                f"at most {most:.0%}. The parts that fail above are where to look",
            )


def expected_plans(model, gpus, batch) -> set[tuple]:
    found = set()
    sizes = (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 3), ("none", "full"), (1, 2, 4)
    for tp, pp, zero, again, micro in product(*sizes):
        legal = not gpus % (tp * pp) and not model.heads % tp and not model.layers % pp
        if legal and not batch % (gpus // (tp * pp) * micro) and not (zero == 3 and pp > 1):
            found.add((tp, pp, gpus // (tp * pp), zero, again, micro))
    return found


def why_illegal(plan, model, gpus, batch) -> str:
    tp, pp, dp, zero, _, micro = plan
    if model.heads % tp:
        return f"tp {tp} does not divide {model.heads} heads"
    if model.layers % pp:
        return f"pp {pp} does not divide {model.layers} layers"
    if tp * pp * dp != gpus:
        return f"tp {tp} · pp {pp} · dp {dp} is not all of {gpus} chips"
    if batch % (dp * micro):
        return f"dp {dp} · micro_batch {micro} does not divide the batch of {batch}"
    if zero == 3 and pp > 1:
        return "ZeRO-3 in a pipeline would gather the weights for every microbatch"
    return "it is none of the values that the docstring names"


class TestBestPlans(Exercise):
    """Every legal plan, the fitting ones, the fastest"""

    name = "best_plans"
    reference = "minitrain.planning.closed_forms:best_plans"
    hidden = HIDDEN

    def search(self, submission, best=5):
        """A cluster on which some rules bite; random memory and time for each plan."""
        model = replace(dense(), layers=random.choice([28, 36]), heads=20, kv_heads=4, hidden=2560)
        chip, gpus, batch = find_chip("H100-SXM-80GB"), 72, 144
        plans = sorted(expected_plans(model, gpus, batch))
        memories = {plan: random.uniform(0.3, 0.9) * chip.memory for plan in plans}
        for plan in random.sample(plans, len(plans) // 3):  # a half of these fit by a hair, too
            memories[plan] = random.uniform(*random.choice([(0.93, 1), (1, 1.5)])) * chip.memory
        seconds = {plan: random.uniform(1, 9) for plan in plans}
        given = (model, chip, gpus, 2048, batch, memories, seconds, best)
        return plans, memories, seconds, given, submission.run(probes.searched, *given)

    @check(points=3, title="all legal plans and no other are asked for their memory, once each")
    def test_legal(self, submission):
        plans, _, _, (model, _, gpus, seq, batch, *_), got = self.search(submission)
        asked = Counter(tuple(row[:6]) for row in got["asked"])
        for plan in asked:
            expect.that(
                plan in plans,
                f"tp {plan[0]}, pp {plan[1]}, dp {plan[2]}, ZeRO {plan[3]}, {plan[4]}: "
                f"{why_illegal(plan, model, gpus, batch)}",
            )
        missing = [plan for plan in plans if plan not in asked]
        expect.that(
            not missing,
            f"{len(missing)} of {len(plans)} legal plans were never looked at, (tp, pp, dp, zero, "
            f"recompute, micro_batch) = {missing[:1]} for one; every plan's memory is asked for",
        )
        twice = [plan for plan, times in asked.items() if times > 1]
        expect.that(not twice, f"{len(twice)} plans were asked for their memory more than once")
        for row in got["asked"]:
            expect.that(
                row[6] == (row[0] > 1), f"tp {row[0]} with sp {row[6]}: sp wherever tp is over 1"
            )
            expect.that(
                row[7:] == [seq, batch], f"a run of seq, batch {row[7:]}, not {[seq, batch]}"
            )

    @check(points=3, title="pruned by memory: what does not fit is never timed")
    def test_pruned(self, submission):
        plans, memories, _, (_, chip, *_), got = self.search(submission)
        limit = 0.92 * chip.memory
        fitting = {plan for plan in plans if memories[plan] <= limit}
        timed = {tuple(plan) for plan in got["timed"]}
        over = sorted(timed - fitting)
        expect.that(
            not over,
            f"{len(over)} plans over 92% of the memory were timed: filter by memory_of first, it is "
            "the cheap one, and leave room for what the formula does not know",
        )
        expect.that(
            timed == fitting,
            f"{len(timed)} plans were timed, {len(fitting)} fit: every one that fits in 0.92 · "
            "chip.memory is a candidate",
        )

    @check(points=2, title="the fastest first, `best` of them")
    def test_ranked(self, submission):
        for best in (1, 5):
            plans, memories, seconds, (_, chip, *_), got = self.search(submission, best)
            fitting = [plan for plan in plans if memories[plan] <= 0.92 * chip.memory]
            want = sorted(fitting, key=seconds.get)[:best]
            found = [tuple(plan) for plan in got["found"]]
            words = "fastest first, by seconds_of"
            if len(found) != len(want):
                words = f"{len(found)} came back, best={best} are asked for"
            elif found == sorted(fitting, key=seconds.get, reverse=True)[:best]:
                words = "those are the slowest: sort by seconds, ascending"
            elif set(found) - set(fitting):
                words = "a plan that does not fit came back"
            expect.that(found == want, f"got {found[:2]}…: {words}")


# Whatever is drawn beside them: two on the front, and each has one that ties with it and is beaten.
TRADES = [(0, 30), (0, 31), (30, 0), (31, 0)]


class TestPareto(Exercise):
    """The front: what no other choice beats"""

    name = "pareto"
    reference = "minitrain.planning.money.cost:pareto"
    hidden = HIDDEN

    @check(points=3, title="exactly those that no other beats in both days and dollars")
    def test_front(self, submission):
        for size in (1, 7, 60):
            points = [(random.randrange(1, 20), random.randrange(1, 20)) for _ in range(size)]
            points += TRADES if size > 1 else []
            random.shuffle(points)
            got = {tuple(point) for point in submission.run(probes.front_of, points)}
            best = {p for p in points if not any(beats(q, p) for q in points)}
            for point in sorted(got - best):
                other = next(q for q in points if beats(q, point))
                expect.that(
                    False,
                    f"{point} (days, dollars) is on your front, but {other} is at least as good in "
                    "both: keep a choice only if it is cheaper than all that are as fast",
                )
            lost = sorted(best - got)
            expect.that(
                not lost,
                f"{lost[:1]} (days, dollars) is missing: nothing beats it in both. The front is "
                "every trade, not the one cheapest or fastest choice",
            )

    @check(points=1, title="fastest first")
    def test_order(self, submission):
        points = [(random.uniform(1, 100), random.uniform(1, 100)) for _ in range(40)]
        points += TRADES
        days = [point[0] for point in submission.run(probes.front_of, points)]
        expect.that(
            days == sorted(days), "the front goes from the fastest to the cheapest: by days"
        )

    @check(points=2, title="20,000 choices: sorted once, swept once")
    def test_sweep(self, submission):
        points = [(random.random(), random.random()) for _ in range(20_000)]
        words = "every choice against every other is n²: sort by days, then one sweep that keeps what is cheaper than all before"
        with expect.because({"timeout": words}):
            got = submission.run(probes.front_of, points, timeout=3)
        kept = sorted(map(tuple, got))
        expect.that(
            all(a[1] > b[1] for a, b in pairwise(kept)) and kept,
            "on a front each slower choice is cheaper than the one before",
        )


def beats(one, other) -> bool:
    return one != other and one[0] <= other[0] and one[1] <= other[1]


class TestMemory(Experiment):
    """Figure 1 of Korthikanti et al. again"""

    name = "memory"

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

    @check(points=5, title="in the mean within 10% of each table (MPT: 14%), nothing fitted")
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
            expect.close(
                row["mwh"],
                kwh / 1000,
                tol=1e-6,
                what=f"{name}: MWh",
                hints=[
                    (kwh, "that is kWh"),
                    (kwh / 1000 / PUE, "all power is PUE times the chips'"),
                ],
            )
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
                (
                    row["bubble"] / row["published_seconds"],
                    "over your own step, not the published one",
                ),
            ],
        )


class TestDeadline(Question):
    """The cheapest that is done in time"""

    name = "deadline"

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
