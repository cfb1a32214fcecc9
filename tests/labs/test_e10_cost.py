"""The checks of lab e10: closed forms, a step on paper, plans searched, money and its range."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import product
from numbers import Real

from minitrain.lab.failures import CheckFailed, SubmissionFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.measure import flops, parameters
from minitrain.paths import data_dir
from minitrain.planning import closed_forms
from minitrain.planning.columns import run_from_row
from minitrain.planning.hardware import find_chip, number, read_table
from minitrain.planning.money.cost import PUE
from minitrain.planning.money.prices import price_of
from minitrain.planning.run import Model, Plan, Run, make_run
from minitrain.planning.step import memory
from minitrain.planning.step.network import IDEAL, fabric_of
from minitrain.planning.step.step import hardware_flops, model_flops
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


def in_words(run: Run) -> str:
    p = run.plan
    kind = "gated" if run.model.gated else "GPT"
    return (
        f"{kind}, {run.model.layers} layers, tp {p.tp}, sp {int(p.sp)}, pp {p.pp}, vpp {p.vpp}, "
        f"dp {p.dp}, cp {p.cp}, ZeRO {p.zero}, {run.microbatches} microbatches of {p.micro_batch}, "
        f"recompute {p.recompute}, {p.software}, {p.precision}, {run.chip.name}"
    )


def results(submission, calls) -> list:
    """What the calls in a row gave; none may change another's."""
    found = submission.run(probes.called_each, calls)
    expect.left_alone(found, calls, [])
    outs = [call["out"] for call in found]
    expect.that(
        len(outs) == 1 or outs[0] is None or any(out != outs[0] for out in outs),
        f"{len(outs)} calls with other arguments all gave the same, {outs[0]!r:.120}: count from the "
        "arguments, and keep nothing from one call to the next",
    )
    return outs


def of_models(submission, calls, words) -> list:
    """As `results`, of exercises that return two numbers."""
    found = results(submission, calls)
    for got in found:
        expect.that(are_numbers(got, 2), f"got {got!r}: return {words}")
    return found


def are_numbers(got, count) -> bool:
    is_list = isinstance(got, (tuple, list)) and len(got) == count
    return is_list and all(isinstance(x, Real) and not isinstance(x, bool) for x in got)


def held_weights(m: Model) -> int:
    """All parameters of the lab's model: without biases, its head a table of its own."""
    mlp = (m.layers - m.moe_layers) * parameters.mlp_weights(m, m.ffn)
    expert = parameters.mlp_weights(m, m.moe_ffn)
    experts = m.moe_layers * (m.experts + m.shared_experts) * expert
    routers = m.moe_layers * parameters.router_weights(m)
    attention = m.layers * parameters.attention_weights(m)
    norms = (2 * m.layers + 1) * m.hidden
    return attention + mlp + experts + routers + norms + 2 * m.hidden * m.vocab


class TestWeights(Exercise):
    """The N of a model, and the N of 6ND"""

    name = "weights"
    reference = "minitrain.planning.closed_forms:weights"
    hidden = HIDDEN

    def counts(self, submission, *models):
        words = "(all parameters, those that multiply one token)"
        found = of_models(submission, [(m,) for m in models], words)
        return [(m, *got) for m, got in zip(models, found)]

    def of_a_layer(self, m, want):
        """Hints, of either count: what is wrong in the matrices of all layers."""
        h, both = m.hidden, m.heads + m.kv_heads
        head = 2 * m.layers * h  # times the size of a head: two of its matrices in each layer
        mistakes = [
            (head * m.head_size * (m.heads - m.kv_heads), "k and v have kv_heads heads, not heads: h · head_size · kv_heads each"),
            (head * (128 - m.head_size) * both, f"a head has model.head_size numbers, here {m.head_size}, not always 128"),
            (-head * m.head_size * m.kv_heads, "k and v are missing: each has h · head_size · kv_heads"),
            (-head // 2 * m.head_size * m.heads, "attention has four matrices: q, k, v, and o, which has as many weights as q"),
        ]  # fmt: skip
        if m.gated:
            gate = (-m.layers * h * m.ffn, "a gated MLP has three matrices: gate, up, down")
        else:
            gate = (m.layers * h * m.ffn, "without a gate an MLP has two matrices")
        return [(want + more, words) for more, words in [*mistakes, gate]]

    @check(points=3, title="all parameters of a dense model, as its checkpoint has them")
    def test_total(self, submission):
        for m, got, _ in self.counts(submission, dense(), dense(), dense(gated=False)):
            h, layers, want = m.hidden, m.layers, held_weights(m)
            expect.equal(
                got,
                want,
                tol=1e-12,
                what=f"all parameters of {m}",
                hints=[
                    *self.of_a_layer(m, want),
                    (parameters.matmul_parameters(m), "that is the second number: all parameters come first"),
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
        for m, _, got in self.counts(submission, dense(), dense(gated=False), dense()):
            want = parameters.matmul_parameters(m)
            table, norms = m.hidden * m.vocab, m.hidden * (2 * m.layers + 1)
            expect.close(
                got,
                want,
                tol=1e-9,
                what=f"weights that multiply one token of {'a gated model' if m.gated else 'GPT'}",
                hints=[
                    *self.of_a_layer(m, want),
                    (want + table, "the embedding is looked up, it multiplies nothing"),
                    (want + table + norms, "those are all parameters: an embedding multiplies nothing"),
                    (want - table, "the head multiplies every token: hidden · vocab"),
                    (want + norms, "norms scale, they are no matmul: leave them out here"),
                ],
            )  # fmt: skip

    @check(points=3, title="mixtures: all experts are held, a few multiply a token")
    def test_mixture(self, submission):
        models = [mixture(), mixture(), mixture(), mixture(gated=False)]
        models[0] = replace(models[0], shared_experts=1, dense_layers=2)
        models[1] = replace(models[1], shared_experts=2)
        alone = {"experts": 0, "experts_per_token": 0, "moe_ffn": 0, "shared_experts": 0}
        without = [replace(m, **alone, dense_layers=0) for m in models]
        for m, held, met in self.counts(submission, *without):
            active = parameters.matmul_parameters(m)
            expect.that(
                [held, met] == [held_weights(m), active],
                f"as above: the same model without experts is counted wrong already, got {(held, met)}, "
                f"expected {(held_weights(m), active)}",
            )
        for m, held, met in self.counts(submission, *models):
            one = parameters.mlp_weights(m, m.moe_ffn)
            total, active = held_weights(m), parameters.matmul_parameters(m)
            router, idle = m.moe_layers * m.hidden * m.experts, m.experts - m.experts_per_token
            no_dense = m.dense_layers * parameters.mlp_weights(m, m.ffn)
            shared = m.moe_layers * m.shared_experts * one
            third = m.moe_layers * m.hidden * m.moe_ffn * (0 if m.gated else 1)
            expect.equal(
                held,
                total,
                tol=1e-12,
                what=f"all parameters of {m}",
                hints=[
                    (total - m.moe_layers * idle * one, "that counts the experts of one token: all are held"),
                    (total + m.moe_layers * parameters.mlp_weights(m, m.ffn), "in a mixture layer the experts take the place of the MLP: those of ffn are counted beside them"),
                    (total - router, "the router of a layer, hidden x experts, is missing"),
                    (total + m.dense_layers * m.hidden * m.experts, "only the moe_layers have a router"),
                    (total + m.moe_layers * m.hidden * m.shared_experts, "a router is hidden x experts: nobody chooses the shared ones"),
                    (total + m.moe_layers * (m.experts + m.shared_experts) * (parameters.mlp_weights(m, m.ffn) - one), "an expert has the width moe_ffn"),
                    (total - shared, "shared experts are missing: every token passes them"),
                    (total + m.moe_layers * (1 - m.shared_experts) * one, f"each mixture layer has shared_experts shared ones, here {m.shared_experts}, not 1"),
                    (total - no_dense, "the MLPs of ffn are missing that the first dense_layers layers have"),
                    (total - no_dense + m.dense_layers * (m.hidden * m.experts + (m.experts + m.shared_experts) * one),
                     "only `moe_layers` layers are mixtures: the first dense_layers keep their MLP of ffn"),
                    (total + third * (m.experts + m.shared_experts), "without a gate an expert has two matrices, as the MLP"),
                ],
            )  # fmt: skip
            expect.equal(
                met,
                active,
                tol=1e-12,
                what=f"weights that multiply one token of {m}",
                hints=[
                    (active + m.moe_layers * idle * one, "that is all experts: a token meets experts_per_token"),
                    (active - router, "the router multiplies every token: hidden x experts a layer"),
                    (active + (m.experts_per_token - 1) * router, "a token meets the router once, whatever experts_per_token is"),
                    (active + m.moe_layers * m.hidden * m.shared_experts, "a router is hidden x experts: nobody chooses the shared ones"),
                    (active - shared, "shared experts are missing: every token passes them"),
                    (active + m.moe_layers * (1 - m.shared_experts) * one, f"each mixture layer has shared_experts shared ones, here {m.shared_experts}, not 1"),
                    (active + third * (m.experts_per_token + m.shared_experts), "without a gate an expert has two matrices, as the MLP"),
                ],
            )  # fmt: skip


class TestStepFlops(Exercise):
    """FLOPs of a step: the model's, and the hardware's"""

    name = "step_flops"
    reference = "minitrain.planning.closed_forms:step_flops"
    hidden = HIDDEN

    def counts(self, submission, runs):
        words = "(the model's FLOPs, the hardware's)"
        return zip(runs, of_models(submission, [(run,) for run in runs], words))

    @check(points=4, title="6 N D and attention's 12 l h s D, however the step is cut")
    def test_model(self, submission):
        cut = {"tp": 2, "pp": 2, "cp": 2, "recompute": "full"}
        runs = [
            run_of(dense(), dp=4, micro_batch=2),
            run_of(mixture(), dp=2, seq=4096),
            run_of(dense(), dp=2, microbatches=8, **cut),
        ]
        for run, (got, _) in self.counts(submission, runs):
            model, want = run.model, model_flops(run)
            scores = 3 * run.tokens * flops.attention_flops_per_token(model, run.seq)
            held = held_weights(model) - parameters.matmul_parameters(model)  # and do not multiply
            norms = (2 * model.layers + 1) * model.hidden
            idle = held - norms - model.hidden * model.vocab  # experts
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
                    (want + 6 * run.tokens * held, "N counts what multiplies a token, the second that `weights` gives"),
                    (want + 6 * run.tokens * idle, "that is with all experts: a token meets experts_per_token of them"),
                    (hardware_flops(run), "that is with what is repeated: the hardware's, the second number"),
                ],
            )  # fmt: skip

    @check(points=4, title="with what none, selective and full recomputation repeat")
    def test_hardware(self, submission):
        ways = product(("none", "selective", "full"), ("2022", "fused", "eager"))
        models = [dense(gated=False), dense(), mixture()]
        runs = [
            run_of(model, recompute=recompute, software=software, dp=2)
            for (recompute, software), model in zip(ways, models * 3)
        ]
        random.shuffle(models)
        runs += [run_of(model, recompute="full", dp=2) for model in models]
        for run, (first, got) in self.counts(submission, runs):
            want, model = hardware_flops(run), model_flops(run)
            is_above = expect.difference(first, model, 1e-6) is not None
            scores = run.tokens * flops.attention_flops_per_token(run.model, run.seq)
            head = 2 * run.tokens * parameters.head_weights(run.model)
            recompute, software = run.plan.recompute, run.plan.software
            expect.close(
                got,
                want,
                tol=1e-6,
                what=f"the hardware's FLOPs, recompute {recompute}, software {software}",
                hints=[
                    *[(model + scores, "that repeats the scores, and this plan recomputes nothing: the hardware's FLOPs are the model's")] * (recompute == "none"),
                    *[(want + more, "that repeats forward, and this plan recomputes nothing: the hardware's FLOPs are the model's")
                      for more in (model / 3, model / 3 - head)] * (recompute == "none"),
                    (model, f"that is the model's: {recompute} recomputation runs a part of forward again"),
                    (want + head, "full recomputation repeats each layer, but never the head"),
                    (want - scores, "the scores are part of a layer that is run again"),
                    (model + scores, "fused attention keeps no scores, so selective has none to repeat: test plan.modern"),
                    (2 * model, "full recomputation is one forward more, a third: not another step"),
                    *[(got, f"as above: the model's FLOPs of this run are {first:.6g}, expected {model:.6g}")] * is_above,
                ],
            )  # fmt: skip


class TestStateBytes(Exercise):
    """Weights, gradients, optimizer"""

    name = "state_bytes"
    reference = "minitrain.planning.step.memory:state_bytes"
    hidden = HIDDEN

    def sizes(self, submission, calls):
        """Three numbers for each call."""
        found = results(submission, calls)
        for got in found:
            words = f"got {got!r}: return (weights, gradients, optimizer)"
            expect.that(are_numbers(got, 3), words)
        return found

    @check(points=3, title="ZeRO's table 1, all 54 cells, to their printed digits")
    def test_published(self, submission):
        rows = read_table(data_dir() / "published_runs.csv")
        rows = [row for row in rows if row["metric"] == "state_gb"]
        calls = [(number(r, "parameters"), int(r["zero"]), int(r["dp"]), (2, 2, 12)) for r in rows]
        for row, sizes in zip(rows, self.sizes(submission, calls)):
            got, printed = sum(sizes) / 1e9, number(row, "published")
            digit = 10 ** -len(f"{printed:g}".partition(".")[2])
            words = "stage 1 shards the optimizer's bytes, 2 also the gradients', 3 all"
            if int(row["dp"]) == 1:
                words = "on one rank nothing is cut, so it is the sum of `per`, here (2, 2, 12), a parameter"
            expect.that(
                abs(got - printed) <= digit,
                f"{row['name']}: got {got:.4g} GB, the paper prints {row['published']}: {words}",
            )

    @check(points=4, title="each of the three, sharded from its own stage on")
    def test_each(self, submission):
        draw = lambda: (random.randrange(10**9, 10**11, 64), random.choice([3, 8, 64]))  # noqa: E731
        calls = [
            (n, stage, ranks) for stage in range(4) for n, ranks in [draw()]
        ]  # the usual `per`
        calls += [
            (*call, per) for call, per in zip(calls, [(2, 2, 12), (4, 4, 8), (1, 2, 8), (2, 4, 6)])
        ]
        calls += [(draw()[0], 3, 1)]
        calls += [(random.choice([5, 7, 11]), stage, 64, (2, 4, 12)) for stage in (1, 2, 3)]
        for call, got in zip(calls, self.sizes(submission, calls)):
            n, stage, ranks, (w, g, o) = *call[:3], (*call, (2, 4, 12))[3]
            want = list(memory.state_bytes(n, stage, ranks, (w, g, o)))
            weights, gradients, optimizer = want
            expect.close(
                list(got),
                want,
                tol=1e-9,
                what=f"(weights, gradients, optimizer) of {n} parameters, stage {stage} of {ranks} ranks, per {(w, g, o)}",
                hints=[
                    ([w * n, g * n, o * n], "nothing is sharded here"),
                    ([x * n / (ranks if stage else 1) for x in (w, g, o)], "stage 1 shards the optimizer alone, 2 also the gradients: both leave the weights whole"),
                    (list(memory.state_bytes(n, stage, ranks, (w, 2, o))), f"gradients have the bytes that `per` says, here {g}"),
                    ([optimizer, gradients, weights], "in the order weights, gradients, optimizer"),
                    (list(memory.state_bytes(n, stage, ranks, (w, g, 8))), f"the optimizer has {o}: the third that `per` says"),
                    (list(memory.state_bytes(n, stage, ranks)), "those are the usual bytes: `per` says others here"),
                    ([x / n for x in want], "that is of one parameter"),
                    *[([whole(x) for x in want], "that is in whole bytes: divide, and round nothing, so that the ranks' parts add up")
                      for whole in (math.floor, math.ceil, round)],
                    self.why(list(got), want, stage, ranks, (w, g, o)),
                ],
            )  # fmt: skip

    @staticmethod
    def why(got, want, stage, ranks, per):
        """What is always true, as a hint: of the cuts where only they differ, or of `per`."""
        cuts = tuple(ranks if stage >= first else 1 for first in (3, 2, 1))
        ratios = [a / b if b else 0 for a, b in zip(got, want)]
        if all(min(abs(r - x) for x in (1, ranks, 1 / ranks)) < 1e-9 for r in ratios):
            return (
                got,
                f"weights are cut from stage 3 on, gradients from 2 on, the optimizer from 1 on: here by {cuts}",
            )
        return (
            got,
            f"weights, gradients and optimizer have {per} bytes a parameter, as `per` says, here cut by {cuts}",
        )


class TestActivationBytes(Exercise):
    """What forward keeps for backward"""

    name = "activation_bytes"
    reference = "minitrain.planning.closed_forms:activation_bytes"
    hidden = HIDDEN

    @check(
        points=5, title="one layer: gated or not, fused or not, cut by tp, sp and cp, recomputed"
    )
    def test_layer(self, submission):
        runs = []
        for gated, sp, recompute in product((1, 0), (0, 1), ("none", "selective", "full")):
            for software, cp in (("fused", 1), ("2022", 1), ("2022", 2), ("eager", 2)):
                plan = {"tp": random.choice([2, 4]), "sp": bool(sp), "cp": cp}
                plan["recompute"] = recompute
                model = replace(dense(bool(gated)), layers=1)
                sizes = {"micro_batch": random.choice([2, 3]), "seq": random.choice([1024, 2048])}
                runs.append(run_of(model, microbatches=1, software=software, **plan, **sizes))
        for run, got in zip(runs, results(submission, [(run,) for run in runs])):
            self.compare(run, got)

    def compare(self, run, got):
        want = closed_forms.activation_bytes(run)
        tokens, m, t = run.local_tokens, run.model, run.plan.tp
        kept = tokens * m.layers
        modern, is_full = run.plan.modern, run.plan.recompute == "full"
        scores = kept * 5 * m.heads * run.seq / run.plan.cp / t
        whole = kept * (8 if run.plan.modern else 10) * m.hidden
        sharp = replace(run, plan=replace(run.plan, sp=not run.plan.sp))
        batch = run.global_batch // run.plan.micro_batch
        one = replace(run, plan=replace(run.plan, micro_batch=1), global_batch=batch)
        if modern or run.plan.recompute != "none":
            more = "the scores are counted where attention is fused or recomputed: it keeps none"
        else:  # only with cp 2 are they once more
            more = "a rank has seq / cp of the keys at a time: the scores are 5 · heads · seq / cp"
        expect.close(
            got,
            want,
            tol=1e-6,
            what=f"activations of the first pipeline rank: {in_words(run)}",
            hints=[
                (want + scores, more),
                (want - scores, "the scores, 5 · heads · seq / (cp · t) a token, are missing"),
                (want + whole * (1 - 1 / t), "with sp the norms' and dropouts' tensors are cut by tp too"),
                (want - whole * (1 - 1 / t), "without sp the norms' and dropouts' tensors are whole on each tensor rank"),
                (want - whole / t, "the inputs of norms, attention and MLP are missing: (8 or 10) h"),
                (closed_forms.activation_bytes(sharp), "you have sp the wrong way round"),
                *[(want + kept * more, words) for more, words in self.in_parts(run)] * (not is_full),
                *[(kept * 2 * m.hidden / t, "the kept input of a layer is whole: 2 h a token with recompute full, with sp too")] * is_full,
                (closed_forms.activation_bytes(one), "a microbatch has micro_batch sequences: run.local_tokens"),
                (want * run.plan.cp, "a context rank has seq / cp of the tokens: run.local_tokens"),
            ],
        )  # fmt: skip

    @staticmethod
    def in_parts(run):
        """(bytes a token that a mistake in one of the parts adds, words), without full recomputation."""
        m, t, modern = run.model, run.plan.tp, run.plan.modern
        masks = 2 * m.hidden / (t if run.plan.sp else 1)
        heads, mlp = 4 * m.head_size * (m.heads + m.kv_heads), (6 if m.gated else 4) * m.ffn
        cut, logs = 1 - 1 / t, 4 * m.heads
        return [
            (masks, "10 h counts dropout's masks: where plan.modern is true there is no dropout, 8 h" if modern
             else "the masks of dropout are counted twice: 10 h is with them"),
            (-masks, "8 h is without dropout's masks: where plan.modern is false they are kept, 10 h"),
            (4 * m.head_size * (m.heads - m.kv_heads) / t, "k and v have kv_heads heads: 4 · head_size · (heads + kv_heads)"),
            (-heads / t, "the heads' part is missing, 4 · head_size · (heads + kv_heads) / t"),
            (heads * cut, "the heads' part is not cut: 4 · head_size · (heads + kv_heads) / t"),
            (2 * m.ffn / t * (-1 if m.gated else 1), "a gated MLP keeps gate, up and their product: 6 f" if m.gated else "without a gate an MLP keeps 4 f"),
            (-mlp / t, "the MLP's part is missing, 6 f with a gate, 4 f without, cut by t"),
            (mlp * cut, "the MLP's part is not cut: tensor parallelism divides it by t"),
            ((heads + mlp) * cut, "heads and MLP are not cut: tensor parallelism divides both by t"),
            *[(-logs / t, "fused attention keeps 4 bytes a head, with selective recomputation, too: 4 · heads / t")] * modern,
            *[(logs * cut, "the 4 bytes a head of fused attention are cut by tp, too: 4 · heads / t")] * modern,
            *[((heads + mlp + logs) * cut, "heads and MLP are not cut: tensor parallelism divides both by t")] * modern,
        ]  # fmt: skip

    @check(points=3, title="the layers alive at once: of 1F1B p microbatches, interleaved more")
    def test_alive(self, submission):
        runs = []
        for pp, vpp, microbatches in ((1, 1, 8), (4, 1, 12), (8, 1, 4), (2, 1, 1), (4, 2, 16), (8, 2, 32), (2, 4, 4), (8, 2, 8), (4, 2, 2)):  # fmt: skip
            for recompute in ("none", "full"):
                schedule = "interleaved" if vpp > 1 else "1f1b"
                plan = {"tp": 2, "pp": pp, "vpp": vpp, "schedule": schedule, "recompute": recompute}
                runs.append(run_of(dense(), microbatches=microbatches, **plan))
        single = []
        for run in runs:
            plan = replace(run.plan, pp=1, vpp=1, schedule="1f1b")
            model, batch = replace(run.model, layers=1), plan.dp * plan.micro_batch
            single.append(replace(run, model=model, plan=plan, global_batch=batch))
        found = results(submission, [(run,) for run in [*runs, *single]])
        for run, got, layer in zip(runs, found, found[len(runs) :]):
            words = (
                f"one layer on one pipeline rank keeps {layer!r} bytes, and more of them {got!r}"
            )
            expect.that(are_numbers([got, layer], 2) and layer, words)
            self.compare_alive(run, got / layer)

    def compare_alive(self, run, got):
        """got: in units of what the submission says of one layer alone, which another check looks at."""
        pp, vpp, layers, m = run.plan.pp, run.plan.vpp, run.model.layers, run.microbatches
        want = layers * (1 + (pp - 1) / (pp * vpp)) if vpp > 1 else layers * min(pp, m) / pp
        words = "with fewer microbatches than stages only m are in flight: min(p, m)"
        if vpp > 1:
            words = "interleaved holds more, whatever m is: layers · (1 + (p-1)/(p v))"
        expect.close(
            got,
            want,
            tol=1e-6,
            what=f"layers' worth that are alive: {in_words(run)}",
            hints=[
                (1.0, "that is one layer's: count the layers that are alive"),
                (layers / pp, "that is one microbatch in flight: the first rank of 1F1B holds min(p, m)"),
                *[(layers / pp * m, "all m microbatches alive is GPipe: 1F1B holds min(p, m)")] * (m > pp),
                (layers * pp, "a rank has layers / p of them, p microbatches deep: p cancels"),
                (layers, words),
                *[(layers * m / pp, words)] * (vpp > 1 and m < pp),
                (layers * (1 + (pp - 1) / pp), "a chunk has layers / (p v): 1 + (p-1)/(p v), not 1 + (p-1)/p" if vpp > 1
                 else "that is the interleaved line, and vpp is 1 here"),
            ],
        )  # fmt: skip

    @check(points=2, title="the eight sizes of Korthikanti's figure 1")
    def test_published(self, submission):
        rows = read_table(data_dir() / "published_runs.csv")
        rows = [row for row in rows if row["metric"] == "activation_gib"]
        calls = [(replace(run_from_row(row), name="run"),) for row in rows]
        for row, got in zip(rows, results(submission, calls)):
            what, want = f"bytes of {row['name']}", GIB * number(row, "published")
            words = "tokens of a microbatch · bytes a token and layer · layers alive; a check above that fails says which"
            expect.close(got, want, tol=1e-3, what=what, hints=[(got, words)])


PARTS = ("matmul", "elementwise", "tensor", "bubble", "data")


def parts_of(submission, calls) -> list[dict]:
    """The seconds by part, of calls (run, fabric)."""
    found = results(submission, calls)
    for got in found:
        expect.that(
            isinstance(got, dict) and set(got) == set(PARTS),
            f"got {sorted(got) if isinstance(got, dict) else got!r}: a dictionary of the seconds "
            f"{', '.join(PARTS)} is asked for",
        )
        for part, seconds in got.items():
            is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
            expect.that(is_number, f"{part} is {seconds!r}: a number of seconds is asked for")
    return found


class TestStepParts(Exercise):
    """A step on paper"""

    name = "step_parts"
    reference = "minitrain.planning.closed_forms:step_parts"
    hidden = HIDDEN

    def parts(self, submission, runs, fabric=None):
        """(run, its fabric, what came, what is expected) of each run."""
        calls = [(run, fabric or fabric_of(run.chip, 8)) for run in runs]
        wants = [closed_forms.step_parts(*call) for call in calls]
        return [(*c, got, want) for c, got, want in zip(calls, parts_of(submission, calls), wants)]

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
        for run, _, got, want in self.parts(submission, runs, IDEAL):
            held, chip, plan = run.chip.constants, run.chip, run.plan
            passes = 4 if plan.recompute == "full" else 3
            near, kernels = want["matmul"], want["elementwise"]
            scores = run.tokens * flops.attention_flops_per_token(run.model, run.seq) * passes
            rate = run.gpus * chip.peak(plan.precision)
            alike = scores * (1 / held.matmul - 1 / held.attention) / rate
            again = "`full` recomputation runs forward again: four passes, not three"
            only = f"recompute {plan.recompute}: three passes, only `full` has a fourth"
            three = model_flops(run) * passes / rate  # C in place of C / 3
            expect.close(
                got["matmul"],
                near,
                tol=1e-6,
                what=f"matmul seconds: {in_words(run)}",
                hints=[
                    (model_flops(run) * passes / 3 / rate, "that is at the chip's peak: matmuls reach chip.constants.matmul of it"),
                    (near * held.matmul, "that is at the chip's peak: matmuls reach chip.constants.matmul of it"),
                    (near + alike, "the scores run at another rate than the other matmuls: chip.constants.attention"),
                    (near - scores / rate / held.attention, "attention's scores are missing"),
                    (near / passes, "that is forward alone: a backward takes two forwards"),
                    (near * 3 / 4, again) if passes == 4 else (near * 4 / 3, only),
                    *[(near + scores / passes / rate / share, "the scores that selective recomputation repeats are left out here: three passes of all")
                      for share in (held.matmul, held.attention)] * (plan.recompute == "selective"),
                    (near + (three * 2 / 3) / held.matmul, "C of exercise 2 is three forwards: F is C / 3 less the scores"),
                    (3 * near, "C of exercise 2 is three forwards: F is C / 3 less the scores"),
                    (near + scores / held.matmul / rate, "the scores are counted twice: F is C / 3 less the scores"),
                    (near + (hardware_flops(run) - model_flops(run)) * passes / 3 / held.matmul / rate,
                     "C is the model's FLOPs, the first that `step_flops` gives"),
                    (near * run.gpus, "the chips share the work: divide by run.gpus"),
                    (near / run.microbatches, "that is one microbatch: a step has run.microbatches"),
                    (near * chip.peak(plan.precision) / chip.peak("bf16"), "the peak is that of plan.precision"),
                ],
            )  # fmt: skip
            expect.close(
                got["elementwise"],
                kernels,
                tol=1e-6,
                what=f"elementwise seconds: {in_words(run)}",
                hints=[
                    (kernels / run.microbatches, "that is one microbatch: a step has run.microbatches"),
                    (kernels / run.model.layers * plan.pp, "that is one layer: a rank has layers / pp"),
                    (kernels * plan.pp, "a rank runs layers / pp of the layers"),
                    (kernels / passes, "that is forward alone: a backward takes two forwards"),
                    (kernels * 3 / 4, again) if passes == 4 else (kernels * 4 / 3, only),
                ],
            )  # fmt: skip

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
        for run, fabric, got, parts in self.parts(submission, runs):
            want, plan = parts["tensor"], run.plan
            if plan.tp == 1:
                words = f"tp is 1, so nothing is all-reduced, but tensor is {got['tensor']:.3g}"
                expect.that(got["tensor"] == 0, words)
                continue
            forward = want / (3 if plan.recompute == "full" else 2)
            messages = 6 if plan.recompute == "full" else 4
            count = messages * run.microbatches * run.model.layers / plan.pp

            def at(tokens, bytes_each=2, run=run, fabric=fabric, count=count):
                nbytes = bytes_each * tokens * run.model.hidden
                return count * fabric.seconds("all_reduce", nbytes, run.plan.tp)

            twice = "backward all-reduces as often as forward: 2, not 4 a layer"
            if plan.recompute == "selective":  # what recomputes nothing was right before
                twice = "recompute selective: four a layer, only `full` repeats forward's two"
            expect.close(
                got["tensor"],
                want,
                tol=1e-6,
                what=f"seconds of tensor-parallel all-reduces: {in_words(run)}",
                hints=[
                    (forward, "that is forward's: backward has as many, and recomputation again"),
                    (2 * forward, "recomputed layers are all-reduced again: six a layer, not four"),
                    (want / 2, "two all-reduces a layer in each pass: after attention and after the MLP"),
                    (want * plan.pp, "a rank runs layers / pp of the layers"),
                    (want / run.microbatches, "that is one microbatch: a step has run.microbatches"),
                    (want * 4 / 3 if plan.recompute == "full" else want * 1.5, twice),
                    (0.0, f"nothing is all-reduced here, and tp is {plan.tp}: two a layer in forward, two in backward"),
                    (at(run.local_tokens * plan.cp), "a message has run.local_tokens tokens: cp cuts the sequence"),
                    *[(at(run.local_tokens, size), "a message has 2 bytes a number") for size in (1, 4)],
                    (at(run.local_tokens / plan.tp), "each rank has a sum of the whole width, not finished: a message is not cut by tp"),
                    (at(run.seq / plan.cp), "a microbatch has micro_batch sequences: run.local_tokens"),
                ],
            )  # fmt: skip

    @check(points=2, title="the bubble: (p-1)/(v m) of what a rank computes and waits for")
    def test_bubble(self, submission):
        runs = []
        for pp, vpp, microbatches in ((1, 1, 16), (8, 1, 16), (8, 2, 16), (4, 1, 6)):
            schedule = "interleaved" if vpp > 1 else "1f1b"
            plan = {"tp": 2, "pp": pp, "vpp": vpp, "schedule": schedule}
            runs.append(run_of(replace(dense(), layers=48), microbatches=microbatches, **plan))
        for run, _, got, _ in self.parts(submission, runs):
            pp, vpp, busy = run.plan.pp, run.plan.vpp, sum(got[part] for part in PARTS[:3])
            expect.that(busy > 0, "matmul, elementwise and tensor are 0, so there is no bubble")
            share = (pp - 1) / (vpp * run.microbatches)
            computed = got["matmul"] + got["elementwise"]
            expect.close(
                got["bubble"] / busy,
                share,
                tol=1e-6,
                what=f"bubble / (matmul + elementwise + tensor), pp {pp}, vpp {vpp}, m {run.microbatches}",
                hints=[
                    (share * vpp, "v chunks a rank make the bubble v times smaller"),
                    ((pp - 1) / (run.microbatches + pp - 1), "(p-1)/(m+p-1) is its share of the whole step; of the work it is (p-1)/m"),
                    (share * got["matmul"] / busy, "a rank that waits in a collective is no further: the bubble scales with all three"),
                    (share * computed / busy, "a rank that waits in a collective is no further: the bubble scales with all three"),
                    (pp / (vpp * run.microbatches), "p - 1 passes fill and drain the pipeline, not p"),
                ],
            )  # fmt: skip

    @check(points=2, title="data parallelism: one all-reduce of FP32 gradients, below ZeRO-3")
    def test_data(self, submission):
        cuts = [{"tp": 4, "pp": 2, "dp": 16}, {"tp": 2, "dp": 4, "cp": 4, "zero": 1}]
        cuts += [{"dp": 8, "zero": 2}, {"tp": 4}]
        runs = [run_of(model, **cut) for cut in cuts for model in (dense(), mixture())]
        for run, fabric, got, want in self.parts(submission, runs):
            plan, n = run.plan, held_weights(run.model)
            owned, ranks = n / (plan.tp * plan.pp), plan.dp * plan.cp
            active = parameters.matmul_parameters(run.model) / (plan.tp * plan.pp)
            at = lambda size, ranks=ranks, stride=plan.tp: fabric.seconds("all_reduce", size, ranks, stride=stride)  # noqa: E731, B023 # fmt: skip
            expect.close(
                got["data"],
                want["data"],
                tol=1e-6,
                what=f"seconds of the gradients' all-reduce: {in_words(run)}",
                hints=[
                    (at(2 * owned), "gradients add up in FP32: 4 bytes each"),
                    (at(4 * n), "a rank holds N / (tp · pp) of the parameters"),
                    (at(4 * n / plan.tp), "a rank holds N / (tp · pp) of the parameters"),
                    (at(4 * owned, ranks=plan.dp), "with context parallelism dp · cp ranks have the same weights"),
                    (at(4 * owned, stride=1), "data ranks stand tp apart: give stride=plan.tp, or they seem to share a node"),
                    (at(4 * owned) * run.microbatches, "once a step, not once a microbatch"),
                    (at(4 * active), "all N parameters have gradients, not only those that multiply a token: weights(model)[0]"),
                    (max(0.0, at(4 * owned) - got["matmul"] - got["elementwise"]), f"only ZeRO-3's traffic hides beside the computation: with ZeRO {plan.zero} it is one all-reduce, seen in full"),
                    (0.0, f"only ZeRO-3's traffic hides beside the computation: with ZeRO {plan.zero} it is one all-reduce, seen in full"),
                ],
            )  # fmt: skip

    @check(
        points=2,
        title="ZeRO-3: gathers twice, scatters once a microbatch; what is not hidden adds to the step",
    )
    def test_sharded(self, submission):
        cuts = [{"dp": 16}, {"dp": 4, "tp": 4}, {"dp": 4, "cp": 2}, {"dp": 8, "tp": 2, "recompute": "full"}]  # fmt: skip
        runs = [run_of(dense(), zero=3, microbatches=4, **cut) for cut in cuts]
        fabric = fabric_of(runs[0].chip, 8)
        slow = replace(fabric, between=replace(fabric.between, bandwidth=1e8))
        for run, fabric, got, _ in self.parts(submission, runs, replace(slow, per_node=2)):
            self.compare_sharded(run, fabric, got)
        for _, _, got, _ in self.parts(submission, runs, IDEAL):
            words = f"on an ideal network all is hidden: 0 is exposed, not {got['data']:.3g}"
            if got["data"] < 0:
                words += ": what is hidden is not taken off twice, max(0, …)"
            expect.that(got["data"] == 0, words)

    def compare_sharded(self, run, fabric, got):
        """Beside the submission's own seconds of computing, which another check looks at."""
        plan, work = run.plan, got["matmul"] + got["elementwise"]
        owned, ranks = held_weights(run.model) / plan.tp, plan.dp * plan.cp

        def times(owned=owned, ranks=ranks, stride=plan.tp):
            return (
                fabric.seconds(kind, size * owned, ranks, stride=stride)
                for kind, size in (("all_gather", 2), ("reduce_scatter", 4))
            )

        def shown(**other):
            gather, scatter = times(**other)
            return run.microbatches * (2 * gather + scatter) - work

        gather, scatter = times()
        want = max(0.0, shown())
        expect.close(
            got["data"],
            want,
            tol=1e-6,
            what=f"exposed seconds of ZeRO-3's traffic, slow network: {in_words(run)}",
            hints=[
                (want + work, "what travels beside matmul and elementwise is hidden: take those off"),
                (want - got["tensor"], "only matmul and elementwise hide it, not the time that is waited in collectives"),
                (want - got["tensor"] - got["bubble"], "only matmul and elementwise hide it, not the time that is waited in collectives"),
                (run.microbatches * (gather + scatter) - work, "weights are gathered twice, for forward and for backward"),
                (2 * gather + scatter - work, "each microbatch gathers again: times run.microbatches"),
                (max(0.0, 2 * gather + scatter - work), "each microbatch gathers again: times run.microbatches"),
                (run.microbatches * (2 * gather + fabric.seconds("reduce_scatter", 2 * owned, ranks, stride=plan.tp)) - work, "gradients are scattered in FP32: 4 bytes each"),
                (want + fabric.seconds("all_reduce", 4 * owned, ranks, stride=plan.tp), "gathers and scatters take the place of the all-reduce"),
                (fabric.seconds("all_reduce", 4 * owned, ranks, stride=plan.tp), "that is stage 1's all-reduce: ZeRO-3 gathers weights and scatters gradients"),
                (shown(stride=1), "data ranks stand tp apart, for ZeRO-3 too: stride=plan.tp"),
                (shown(ranks=plan.dp), "with context parallelism dp · cp ranks have the same weights, for ZeRO-3 too"),
                (shown(owned=owned * plan.tp), "a rank's share is N / (tp · pp), for ZeRO-3 too"),
                (shown(owned=owned / ranks), "a gather's bytes are those of the whole result, N / (tp · pp), not of one rank's shard"),
                (shown(ranks=plan.dp, stride=1), "dp · cp ranks have the same weights, and stand tp apart, for ZeRO-3 too"),
                (0.0, "only what fits beside the computation is hidden, not all of it"),
            ],
        )  # fmt: skip

    @check(points=2, title="published steps: within 10% in the mean, MPT's within 14%")
    def test_published(self, submission):
        drawn = []
        for table in TABLES:
            rows = [row for row in published_steps(table) if row.run.plan.precision != "fp8"]
            drawn.append(rows if len(rows) < 20 else random.sample(rows, 20))
        runs = [replace(row.run, name="run") for rows in drawn for row in rows]
        found = iter(parts_of(submission, [(r, fabric_of(r.chip, r.per_node)) for r in runs]))
        for table, rows, most in zip(TABLES, drawn, (0.10, 0.10, 0.10, 0.14)):
            errors = [sum(next(found).values()) / row.seconds - 1 for row in rows]
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


def why_missing(missing, search) -> str:
    """What the legal plans that were passed over are, where it is these and no other."""

    def are(kind) -> bool:
        return set(missing) == set(filter(kind, search.legal()))

    kinds = {
        "a tp that does not divide kv_heads: it has to divide heads, no more": lambda p: search.model.kv_heads % p[0],
        "fewer microbatches than stages, which is slow, not forbidden": lambda p: search.batch // (p[2] * p[5]) < p[1],
        "a dp that is no power of two: dp is the rest, gpus / (tp · pp), where that divides": lambda p: p[2] & (p[2] - 1),
        "no data parallelism: dp may be 1": lambda p: p[2] == 1,
        **{f"{name} {value}, which is legal": lambda p, at=at, value=value: p[at] == value
           for at, name in enumerate(probes.CUT) for value in {p[at] for p in missing}},
    }  # fmt: skip
    told = [f"these are all with {words}" for words, kind in kinds.items() if are(kind)]
    return told[0] if told else "every plan's memory is asked for, in each search"


@dataclass(frozen=True)
class Search:
    """What best_plans is given, but for the two functions, which are drawn by `seed`."""

    model: Model
    chip: str
    gpus: int
    seq: int
    batch: int
    best: tuple[int, ...] = ()  # () is the default, 5
    heavy: float = 1.0  # a factor on what every plan needs
    seed: int = field(default_factory=lambda: random.randrange(10**9))

    @property
    def sent(self) -> tuple:
        given = (self.model, find_chip(self.chip), self.gpus, self.seq, self.batch)
        return given, self.seed, self.heavy, self.best

    def legal(self) -> set[tuple]:
        return expected_plans(self.model, self.gpus, self.batch)

    def fitting(self, share=0.92, below=False) -> set[tuple]:
        """below: without those that need exactly so much."""
        size = find_chip(self.chip).memory
        need = {p: self.heavy * probes.memory_by(self.seed, p, size) for p in self.legal()}
        most = share * size
        return {p for p in need if need[p] < most or (need[p] == most and not below)}

    def why_over(self, timed) -> str:
        """Of plans timed that do not fit, all of them legal."""
        size = find_chip(self.chip).memory
        if set(timed) in (self.fitting(1.0), self.fitting(1.0, below=True)):
            return "these fit in all of chip.memory: leave room for what the formula does not know"
        if size != 80e9 and set(timed) == self.fitting(0.92 * 80e9 / size):  # right for 80 GB
            return "these fit in 92% of 80 GB, and this chip has less: chip.memory"
        if set(timed) == self.legal():
            return "that is every plan: filter by memory_of first, it is the cheap one"
        return "time only runs whose memory_of is at most 0.92 · chip.memory"

    def seconds(self, plans) -> list[float]:
        return [probes.seconds_by(self.seed, plan) for plan in plans]

    def __str__(self) -> str:
        return f"{self.gpus} {self.chip}, a batch of {self.batch} sequences"


class TestBestPlans(Exercise):
    """Every legal plan, the fitting ones, the fastest"""

    name = "best_plans"
    reference = "minitrain.planning.closed_forms:best_plans"
    hidden = HIDDEN

    def searches(self, submission):
        """(search, what it did) on clusters on which some rules bite, one after the other."""
        layers = random.choice([28, 36])
        odd = replace(dense(), layers=layers, heads=20, kv_heads=4, hidden=2560)
        searches = [
            Search(odd, "H100-SXM-80GB", 72, 2048, 144),
            Search(
                replace(dense(), layers=32, kv_heads=4), "A100-SXM-40GB", 64, 4096, 96, best=(1,)
            ),
            Search(odd, "A100-SXM-80GB", 72, 1024, 144, best=(3,)),
            Search(odd, "H100-SXM-80GB", 2, 1024, 2, best=(1000,)),
            Search(odd, "H100-SXM-80GB", 72, 2048, 144, heavy=100.0),
        ]
        words = "runs have no order: sort them with key=seconds_of (tuples of equal seconds compare their runs)"
        uneven = "dp · micro_batch must divide the batch: pass over such a plan before make_run"
        causes = {"not supported between instances of 'Run' and 'Run'": words}
        causes["not a multiple of dp"] = uneven
        with expect.because(causes):
            found = submission.run(probes.searched, [search.sent for search in searches])
        return [
            (search, {key: as_tuples(rows) for key, rows in got.items()})
            for search, got in zip(searches, found)
        ]

    @check(points=3, title="all legal plans and no other are asked for their memory, once each")
    def test_legal(self, submission):
        for search, got in self.searches(submission):
            plans, asked = search.legal(), Counter(got["asked"])
            for plan in asked:
                expect.that(
                    plan in plans,
                    f"{search}: tp {plan[0]}, pp {plan[1]}, dp {plan[2]}, ZeRO {plan[3]}, {plan[4]}, micro_batch {plan[5]}: "
                    f"{why_illegal(plan, search.model, search.gpus, search.batch)}",
                )
            missing = sorted(plans - set(asked))
            expect.that(
                not missing,
                f"{search}: {len(missing)} of {len(plans)} legal plans were never looked at, (tp, pp, dp, zero, "
                f"recompute, micro_batch) = {missing[:1]} for one; {why_missing(missing, search)}",
            )
            twice = [plan for plan, times in asked.items() if times > 1]
            expect.that(not twice, f"{len(twice)} plans were asked for their memory more than once")
            for plan, run in zip(got["asked"], got["rest"]):
                self.is_as_given(search, plan, *run)

    def is_as_given(self, search, plan, sp, seq, batch, chip, model, others):
        """What of a run is not a matter of choice."""
        expect.that(sp == (plan[0] > 1), f"tp {plan[0]} with sp {sp}: sp wherever tp is over 1")
        given = [search.seq, search.batch, search.chip]
        expect.that(
            [seq, batch, chip] == given,
            f"a run of seq, batch, chip {[seq, batch, chip]}, not {given}",
        )
        expect.that(
            list(model) == list(astuple(search.model)), "a run of another model than the given"
        )
        usual = {name: value for name, value in asdict(Plan()).items() if name in others}
        changed = [name for name in usual if others[name] != usual[name]]
        expect.that(
            not changed, f"{changed[:1]} of the plan is not asked for: leave it as Plan() has it"
        )

    @check(points=3, title="pruned by memory: what does not fit is never timed")
    def test_pruned(self, submission):
        for search, got in self.searches(submission):
            fitting, timed = search.fitting(), Counter(got["timed"])
            strange = sorted(set(timed) - set(got["asked"]))
            expect.that(
                not strange,
                f"{search}: {len(strange)} plans were timed whose memory this search did not ask for: make the list of "
                "those that fit anew in each call",
            )
            illegal, unseen = set(timed) - search.legal(), fitting - set(got["asked"])
            expect.that(
                not illegal,
                f"{search}: as above, {len(illegal)} plans that are not legal were timed",
            )
            over = sorted(set(timed) - fitting)
            expect.that(
                not over,
                f"{search}: {len(over)} plans over 92% of the memory were timed: {search.why_over(timed)}",
            )
            expect.that(
                not unseen,
                f"{search}: as above, {len(unseen)} plans that fit were never looked at",
            )
            is_asked = timed or not fitting
            expect.that(
                is_asked, f"{search}: seconds_of was asked for no plan, and the fastest are wanted"
            )
            words = "every one that fits in 0.92 · chip.memory is a candidate"
            if set(timed) == search.fitting(below=True):
                words += ", and so is one that needs exactly so much: at most, <="
            expect.that(
                set(timed) == fitting,
                f"{search}: {len(timed)} plans were timed, {len(fitting)} fit: {words}",
            )
            twice = [plan for plan, times in timed.items() if times > 1]
            expect.that(not twice, f"{len(twice)} plans were timed more than once")

    @check(points=2, title="the fastest first, `best` of them; of equal ones any")
    def test_ranked(self, submission):
        for search, got in self.searches(submission):
            fitting, found = search.fitting(), got["found"]
            (best,) = search.best or (5,)
            want, seconds = sorted(search.seconds(fitting)), search.seconds(found)
            words = "fastest first, by seconds_of"
            of_timed = sorted(search.seconds(set(got["timed"])))
            if set(got["timed"]) != fitting and seconds == of_timed[:best]:
                words = (
                    "as above: the order is right, but not exactly the plans that fit were timed"
                )
            elif set(found) - fitting:
                words = "a plan that does not fit, or is not legal, came back"
            elif len(found) != len(want[:best]):
                words = f"{len(found)} came back, best={best} of the {len(fitting)} that fit are asked for"
            elif len(set(found)) < len(found):
                words = "a plan came back twice"
            elif want[:best] != want[::-1][:best] and seconds == want[::-1][:best]:
                words = "those are the slowest: sort by seconds, ascending"
            is_right = (
                seconds == want[:best] and set(found) <= fitting and len(set(found)) == len(found)
            )
            expect.that(is_right, f"{search}: got {found[:2]}…: {words}")


def as_tuples(rows) -> list[tuple]:
    return [tuple(row) for row in rows]


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

    def fronts(self, submission, *choices, **limit):
        """(points, those that came back, as tuples) of each list of choices."""
        found = submission.run(probes.fronts_of, list(choices), **limit)
        for call, points in zip(found, choices):
            expect.that(
                call["given"][0] == as_lists(points),
                "the call changed its input `choices`, which is the caller's: sorted(choices) makes a new list, "
                "choices.sort() changes this one",
            )
        expect.left_alone(found, [(points,) for points in map(as_lists, choices)], ["choices"])
        return [(points, as_tuples(call["out"])) for points, call in zip(choices, found)]

    @check(points=3, title="exactly those that no other beats in both days and dollars")
    def test_front(self, submission):
        lists = [on_a_front(30), [(3, 4)], [(3, 4), (3, 4)], [(2, 5), (1, 5)], [(1, 6), (1, 5)]]
        for size in (7, 60, 60):
            points = [(random.randrange(1, 20), random.randrange(1, 20)) for _ in range(size)]
            points += [*TRADES, *points[:3]]  # some twice
            random.shuffle(points)
            lists.append(points)
        lists.append([(days / 7 - 5, -usd / 3) for days, usd in lists[-1]])
        for points, kept in self.fronts(submission, *lists):
            got, best = set(kept), {p for p in points if not any(beats(q, p) for q in points)}
            for point in sorted(got - best, key=lambda p: (not is_dearer(p, points), p)):
                rivals = [q for q in points if beats(q, point)]
                other = next((q for q in rivals if is_dearer(point, [q])), next(iter(rivals), None))
                expect.that(other, f"{point} (days, dollars) is on your front, and was not among the choices of this call")  # fmt: skip
                words = "keep a choice only if it is cheaper than all that are as fast or faster"
                if other[0] == point[0]:
                    words += "; of equally fast ones the cheaper must come first when you sort"
                elif other[1] == point[1]:
                    words += ", and as cheap is not cheaper"
                expect.that(
                    False,
                    f"{point} (days, dollars) is on your front, but {other} is at least as good in "
                    f"both: {words}",
                )
            lost = sorted(best - got)
            words = "nothing beats it in both"
            if all(points.count(point) > 1 for point in lost):
                words = (
                    "of equal choices one is kept, and only those are missing that are there twice"
                )
            elif len(got) == 1:
                words += ", since it is cheaper than all that are as fast or faster. The front is every trade, not the one cheapest or fastest choice"
            expect.that(not lost, f"{lost[:1]} (days, dollars) is missing: {words}")

    @check(points=1, title="fastest first; of no choice none")
    def test_order(self, submission):
        points = [(random.uniform(1, 100), random.uniform(1, 100)) for _ in range(40)]
        scattered = random.sample(front := on_a_front(20), len(front))
        for given, kept in self.fronts(submission, [*points, *TRADES], scattered, []):
            expect.that(
                bool(kept) == bool(given),
                f"{len(kept)} on the front of {len(given)} choices: of some at least one, of none none; begin "
                "with an empty front in each call",
            )
            days = [point[0] for point in kept]
            expect.that(
                days == sorted(days), "the front goes from the fastest to the cheapest: by days"
            )

    @check(points=2, title="30,000 choices, most on the front: sorted once, swept once")
    def test_sweep(self, submission):
        front = on_a_front(24_000)
        beaten = [(days + 1, usd + 1) for days, usd in random.sample(front, 6_000)]
        points = random.sample([*front, *beaten], 30_000)
        words = "every choice against every other, or against all kept so far, is n²: sort by days, then one sweep that keeps what is cheaper than all before"
        try:
            ((_, kept),) = self.fronts(submission, points, timeout=6)
        except SubmissionFailed as failure:
            if failure.kind != "timeout":
                raise
            _, at, where = str(failure).partition("It was at ")
            raise CheckFailed(f"not finished after 6 s: {words}. {at}{where}".strip()) from None
        expect.that(
            set(kept) == set(front),
            f"{len(set(kept))} of 30,000 choices came back, {len(front)} are on the front: few choices, above, show which",
        )


def as_lists(points) -> list[list]:
    return [list(point) for point in points]


def beats(one, other) -> bool:
    return one != other and one[0] <= other[0] and one[1] <= other[1]


def is_dearer(one, points) -> bool:
    """Than one of them, and slower: it ties in neither."""
    return any(one[0] > days and one[1] > usd for days, usd in points)


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
