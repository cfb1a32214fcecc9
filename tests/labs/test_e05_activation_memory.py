"""The checks of lab e05: activation memory, graded by what is saved, repeated and allocated."""

from __future__ import annotations

from functools import cache
from random import randint

import torch

from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import cause, hints, variant
from minitrain.measure.flops import model_flops
from minitrain.measure.predicted_memory import block_bytes_per_token
from minitrain.memory.placement import (
    Layer,
    least_budget,
    optimal_plan,
    plan_cost,
    plan_peak,
    sqrt_plan,
)
from minitrain.memory.placement import Segment as Planned
from minitrain.memory.segments import block_layers

from .probes import e05_activation_memory as probes

LAB = "e05_activation_memory"
SIZES = {
    "cpu": {
        "preset": "1M", "layers": 8, "batch": 2, "length": 128, "repeats": 3,
        "shapes": [[1, 32], [2, 48], [3, 20]],
        "heads": 2, "head_size": 64, "lengths": [128, 256, 512, 1024, 2048],
    },
    "test": {"repeats": 1, "shapes": [[1, 32], [2, 16]]},
    "gpu": {"batch": 16, "length": 512},
    "multi": {},
}  # fmt: skip
REVEALS = {
    "block_bytes": Reveal(
        "measured",
        "two layers' bytes less one layer's",
        formula=lambda config: block_bytes_per_token(config),
    ),
    "segment_length": Reveal(
        "measured",
        "√L, where a layer saves only its input",
        formula=lambda layers: layers**0.5,
    ),
    "extra_of_full": Reveal(
        "counted",
        "a forward of all blocks over a step: 1/3 less the head's share",
        formula=lambda config, length: (
            sum(b.cost for b in block_layers(config, 1, length)) / model_flops(config, 1, length)
        ),
    ),
}
RECOMPUTE = ("minitrain/memory/recompute.py",)
SELECTIVE = ("minitrain/memory/selective.py",)
PLACEMENT = ("minitrain/memory/placement.py",)
TILED = ("minitrain/model/attention/tiled.py",)
MOMENT = 2.0  # seconds for what the course does in a hundredth

LIKELY = {
    "One of the differentiated Tensors": "torch.autograd.backward(out, gradient) asks for no list of inputs; then take "
    "x.grad of each",
    "does not require grad and does not have": "nothing was recorded: repeat under torch.enable_grad(), from inputs "
    "x.detach().requires_grad_(x.requires_grad)",
    "incorrect number of gradients": "the function is an input of forward too: return None, *gradients",
    "only Tensors of floating point": "an integer tensor has no gradient: x.detach().requires_grad_(x.requires_grad)",
    "backward through the graph a second time": "a graph has been run backward twice: repeat the function in each "
    "backward, from detached inputs",
}  # fmt: skip
PARTS = {
    "out": "the output",
    "other": "the output of the second use",
    "x": "the gradient of x",
    "y": "the gradient of y",
    "weights": "the gradient of the function's weights",
    "others": "the gradient of the second function's weights",
}


def some_inputs(*shape):
    """x, y > 0, and the gradient of a result."""
    x, y, gradient = torch.randn(3, *shape, dtype=torch.float64)
    return x, y.abs() + 0.5, gradient


def is_repeated(ways, uses=1):
    """The technique itself: a node of the learner's, whose function runs once each way."""
    ready = "a ready-made checkpoint is not the exercise"
    expect.that(
        ways["node"] == ways["own"],
        f"the result's node is {ways['node'] or 'missing'}, not {ways['own']}: let Checkpoint.apply make it; {ready}",
    )
    expect.that(
        "torch.utils.checkpoint" not in ways["callers"],
        f"the function is run by torch.utils.checkpoint: {ready}",
    )
    want = [False] * uses + [True] * uses
    expect.that(
        ways["calls"] == want,
        f"used {uses} x, the function ran with recording {ways['calls']}, expected {want}: for each use once in forward, "
        "without, and once in backward, with. What a use needs later stays on its own ctx",
    )


class TestCheckpoint(Exercise):
    """Forget, and compute again"""

    name = "Checkpoint"
    reference = "minitrain.memory.recompute:_Reentrant"
    hidden = RECOMPUTE

    def applied(self, submission, dropout, *shape):
        """(got, want): of functions used three times, all forwards before any backward."""
        given = some_inputs(*shape)
        with expect.because(LIKELY):
            got = submission.run(probes.applied, *given, dropout)
        is_repeated(got["one"], 2)
        is_repeated(got["two"])
        expect.left_alone([got], [given], ["x", "y", "gradient"])
        return got, probes.applied(None, *given, dropout)

    @check(
        points=4,
        title="run once more in backward: output and every gradient equal the plain functions' (float64)",
    )
    def test_gradients(self, submission):
        for shape in ((3, 6), (2, 5, 6)):
            got, want = self.applied(submission, 0.0, *shape)
            for part, name in PARTS.items():
                none = "return x.grad of each detached input"
                if part in ("weights", "others"):
                    none = "torch.autograd.backward(out, gradient) reaches all that the repetition used"
                expect.that(got[part] is not None, f"{name} is None: {none}")
                twice = "that is twice as much: detach the inputs, and add nothing up twice"
                expect.equal(got[part], want[part], what=name, hints=[(2 * want[part], twice)])

    @check(
        points=4,
        title="dropout drops the same elements again, bit for bit; the generator goes on as before",
    )
    def test_random_numbers(self, submission):
        got, want = self.applied(submission, 0.5, 4, 6)
        for part, name in PARTS.items():
            words = "forward draws as the function does, and sets no seed"
            if part not in ("out", "other"):
                words = (
                    "the repetition replays the generator's state of its own forward, kept on its ctx, so that the same "
                    "elements are dropped"
                )
            expect.identical(
                got[part], want[part], what=f"{name} with dropout", hints=[(got[part], words)]
            )
        words = "backward leaves the generator as it found it: torch.random.fork_rng(devices=[])"
        what = "random numbers drawn after backward"
        expect.identical(got["after"], want["after"], what=what, hints=[(got["after"], words)])

    @check(
        points=4,
        title="only the inputs are saved, and the function runs twice: without and with recording",
    )
    def test_mechanism(self, submission):
        x, y, _ = some_inputs(64, 6)
        with expect.because(LIKELY):
            found = submission.run(probes.what_it_saves, x, y)
        is_repeated(found)
        want = x.nbytes + y.nbytes
        expect.that(
            found["saved"] == want,
            f"{found['saved']} bytes were saved for backward, the two inputs have {want}: give exactly them to "
            "ctx.save_for_backward. What is put on ctx itself is not watched for changes in place, nor counted",
        )
        expect.that(
            found["held"] <= found["out"],
            f"after forward {found['held']} bytes more are held, the result has {found['out']}: "
            "save the inputs themselves, no copies, and nothing else",
        )

    @check(points=2, title="inputs without gradient, such as integers and a mask")
    def test_integers(self, submission):
        given = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 3, 3]), torch.tensor([True, False, True])  # fmt: skip
        with expect.because(LIKELY):
            got = submission.run(probes.looked_up, *given)
        what = "the gradient of a table that was looked up"
        expect.equal(got, probes.looked_up(None, *given), what=what)


ELSEWHERE = (  # operations of other models, and other machines' kernels
    "addmm.default", "baddbmm.default", "addbmm.default", "smm.default", "addmv.default",
    *(f"_scaled_dot_product_{kernel}_attention.default" for kernel in ("flash", "efficient", "cudnn")),
    f"{probes.INVENTED}.default",
)  # fmt: skip


@cache
def operations_in_a_block(fused):
    """The names of the operations that a policy is asked for, with fused attention or without."""
    from minitrain.memory.segments import recompute
    from minitrain.model.attention.grouped_query import attention, attention_naive
    from minitrain.model.config import ModelConfig
    from minitrain.model.transformer import build, exchange_attention

    seen = set()
    config = ModelConfig(16, 24, 2, heads=2, kv_heads=1, ffn_size=40)
    kernel = attention if fused else attention_naive
    model = exchange_attention(build(config), kernel, lambda x, *_: None)
    recompute(model, "selective", policy=lambda op: bool(seen.add(op)))
    model(torch.arange(2 * 32).view(2, 32) % 16)
    return sorted(f"{op.overloadpacket.__name__}.{op._overloadname}" for op in seen)


def is_dear(name):
    return name in ("mm.default", "addmm.default") or name.startswith("_scaled_dot_product_")


class TestKeep(Exercise):
    """Keep what is dear: a policy"""

    name = "keep"
    reference = "minitrain.memory.selective:save_matmuls"
    hidden = SELECTIVE

    def answers(self, submission):
        names = {*operations_in_a_block(True), *operations_in_a_block(False), *ELSEWHERE}
        answers, again = submission.run(probes.asked, sorted(names))
        for name, answer in answers.items():
            expect.that(
                isinstance(answer, bool),
                f"for {name} the policy said {answer!r}: True or False is asked for",
            )
            expect.that(
                answer == again[name],
                f"asked twice for {name}, the policy said {answer} and {again[name]}: the answer depends on the "
                "operation alone",
            )
        expect.that(
            answers["mm.default"], "mm, a linear layer, is repeated: keep products with weights"
        )
        return answers

    @check(points=2, title="no matmul runs twice: the FLOPs are those of no recomputation")
    def test_flops(self, submission):
        for name, answer in self.answers(submission).items():
            words = "keep every name that begins with `_scaled_dot_product_`, whatever follows"
            if name == "addmm.default":
                words = "a linear layer with a bias is a product with weights"
            expect.that(answer or not is_dear(name), f"{name} would run twice: {words}")

    @check(points=3, title="a block saves 2 D + 2 HC + 2 KC + 2 F numbers and H a token, no more")
    def test_bytes(self, submission):
        self.repeats(submission, operations_in_a_block(True))

    @check(points=3, title="attention written out: its batched products (bmm) are repeated")
    def test_scores(self, submission):
        self.repeats(submission, (*operations_in_a_block(False), *ELSEWHERE))

    def repeats(self, submission, names):
        answers = self.answers(submission)
        kept = [name for name in names if answers[name] and not is_dear(name)]
        words = "repeat all but mm, addmm and fused attention (compare whole names)"
        expect.that(not kept, f"{', '.join(kept[:6])}: kept, more than is asked for; {words}")


def some_layers(count):
    """(input, saved, cost), all different."""
    return [(i := randint(1, 8), i + randint(0, 29), randint(1, 19)) for _ in range(count)]


def some_plan(count):
    """Any segments, repeated or kept, of one layer or several."""
    ends = [stop for stop in range(1, count) if torch.rand(()) < 0.5]
    modes = ["full" if torch.rand(()) < 0.6 else "none" for _ in range(len(ends) + 1)]
    return list(zip([0, *ends], [*ends, count], modes))


GROWS = "peak = max(peak, held + step.most)  # its backward, when later segments are freed", "held += step.held"  # fmt: skip
PEAKS = [
    (("return peak", "return held"),
     "that is what forward leaves behind: while a segment's own backward runs, all that its layers save is there"),
    (("\n        ".join(GROWS), "\n        ".join(GROWS[::-1])),
     "a segment's `saved_bytes` include its input: look for the peak before `held` grows"),
    (("held + step.most", "step.most"), "that is the largest segment alone: those before it hold something, too"),
    (("held += step.held", "held += step.most"), "that is as if every layer were kept"),
    (("held += step.held", "held += sum(z.input_bytes for z in layers[segment.start:segment.stop]) "
      "if segment.mode == 'full' else step.held"), "a repeated segment holds its first input only, not one a layer"),
]  # fmt: skip


class TestPlanPeak(Exercise):
    """The peak of a plan"""

    name = "plan_peak"
    reference = "minitrain.memory.placement:plan_peak"
    hidden = PLACEMENT

    def equal(self, submission, calls):
        def peaks(f):
            return [call["out"] for call in probes.peaks_by(f, calls)]

        found = submission.run(probes.peaks_by, calls)
        expect.left_alone(found, calls, ["plan", "layers"])
        got = [call["out"] for call in found]
        words = cause(got, self.reference, PEAKS, peaks)
        for (plan, layers), mine, want in zip(calls, got, peaks(variant(self.reference))):
            what = f"the peak of {plan} for layers (input, saved, cost) {layers}"
            expect.equal(mine, want, what=what, hints=[(mine, words)] if words else [])

    @check(points=4, title="uniform plans: all kept, each repeated, segments of two; one layer")
    def test_uniform(self, submission):
        plans = [
            [(i, i + 1, "none") for i in range(6)],
            [(i, i + 1, "full") for i in range(6)],
            [(i, i + 2, "full") for i in range(0, 6, 2)],
            [(0, 6, "none")],
        ]
        one = [([(0, 1, mode)], [(3, 7, 1)]) for mode in ("none", "full")]
        self.equal(submission, [*((plan, [(2, 30, 1)] * 6) for plan in plans), *one])

    @check(points=4, title="mixed plans of unequal layers")
    def test_mixed(self, submission):
        plans = [
            [(0, 2, "full"), (2, 3, "none"), (3, 6, "full")],
            [(0, 1, "none"), (1, 5, "full"), (5, 6, "none")],
            [(0, 3, "none"), (3, 6, "full")],
        ]
        drawn = [(some_plan(count), some_layers(count)) for count in (2, 5, 7, 8, 9, 12)]
        self.equal(submission, [*((plan, some_layers(6)) for plan in plans), *drawn])


class TestSaved(Experiment):
    """Bytes a token and block"""

    name = "saved"
    rests_on = ("Checkpoint", "keep")

    @check(points=4, title="measured bytes are the closed form's, exactly")
    def test_formula(self, table):
        for row in table:
            expect.equal(
                row["block_bytes"],
                float(row["formula_bytes"]),
                what=f"{row['recompute']}, {row['dtype']}, {row['batch']} x {row['length']}: bytes a token and block",
            )

    @check(points=2, title="three ways, two dtypes, whatever the shape")
    def test_rows(self, table):
        found = {(row["recompute"], row["dtype"]) for row in table}
        for how in ("none", "selective", "full"):
            for dtype in ("float32", "bfloat16"):
                expect.that((how, dtype) in found, f"there is no row of '{how}' in {dtype}")
        expect.that(
            len({(row["batch"], row["length"]) for row in table}) > 1, "measure more than one shape"
        )


class TestSegments(Experiment):
    """How long a segment should be"""

    name = "segments"
    rests_on = ("Checkpoint", "plan_peak")

    @check(points=4, title="the measured peak is your plan_peak's, within one input")
    def test_peak(self, table):
        for row in table:
            expect.that(
                abs(row["peak_bytes"] - row["predicted_bytes"]) <= 1.01 * row["input_bytes"],
                f"segments of {row['length']}: {row['peak_bytes']} bytes measured, {row['predicted_bytes']} predicted; "
                "run the cell again with your Checkpoint and your plan_peak",
            )

    @check(points=2, title="the best length is √L")
    def test_best(self, table):
        best = min(table, key=lambda row: row["peak_bytes"])
        expect.that(
            best["length"] ** 2 == best["layers"],
            f"of {best['layers']} layers, segments of {best['length']} have the lowest peak in your table",
        )


class TestBlocksASegment(Question):
    """The best segment of a real model"""

    name = "blocks_a_segment"
    rests_on = ("segments",)

    @check(points=5, title="of 126 blocks, by your own bytes")
    def test_value(self, value, records):
        found = {r["recompute"]: r["block_bytes"] for r in expect.recorded(records, "saved") if r["dtype"] == "float32"}  # fmt: skip
        for how in ("none", "full"):
            expect.that(how in found, f"your table has no row of '{how}' in float32")
        layers = [Layer(found["full"], found["none"], 1)] * 126
        peaks = {k: plan_peak(sqrt_plan(126, k), layers) for k in range(1, 127)}
        words = "try every length from 1 to 126: plan_peak(cut(126, k), [layer] * 126)"
        if value in peaks and peaks[value] < 1.01 * min(peaks.values()):
            words = f"close: {peaks[value] / min(peaks.values()) - 1:.2%} more than the lowest"
        if value in (11, 12):
            words = "that is √126, best where a layer saves its input only: a block saves A/I times as much"
        expect.that(
            peaks.get(value) == min(peaks.values()),
            f"got {value!r}, which has not the lowest peak: {words}",
        )


def as_layers(layers):
    return [Layer(*layer) for layer in layers]


def as_plan(plan):
    return tuple(Planned(*segment) for segment in plan)


def flaw_of(plan, layers, budget):
    """What a plan is not, in words; "" for one that runs each layer once within the budget."""
    if plan is None:
        return "was refused, and a plan fits"
    for segment in plan:
        start, stop, mode = segment if len(segment) == 3 else (None, None, None)
        is_range = isinstance(start, int) and isinstance(stop, int) and start < stop
        if not is_range or mode not in ("none", "full"):
            return f'has a segment {segment}: Segment(start, stop, "none" or "full") is asked for'
        if mode == "none" and stop - start > 1:
            return f"has a kept segment {segment}: each kept layer is a segment of its own"
    covered = [i for start, stop, _ in plan for i in range(start, stop)]
    if covered != list(range(len(layers))):
        return f"gave {str(plan)[:300]}: each layer runs once, in order ([*plan, segment] makes a new list)"
    peak = plan_peak(as_plan(plan), as_layers(layers))
    over = f"gave {plan}, which peaks at {peak:g}: a segment's backward needs all that its layers save, besides what is held"
    return over if peak > budget else ""


NEXT = "best[step.segment.stop].append(partial.then(step))"
PLANS = [
    (("budget_bytes - partial.held", "budget_bytes - partial.held - 1e-9"), "what needs exactly the budget fits"),
    (("_unbeaten(best[-1])[0].plan", "_unbeaten(best[-1])[-1].plan"),
     "each time the fewest bytes are left behind: at the end take the cheapest of the plans that fit"),
    ((NEXT, NEXT.replace("(step)", "(_Step(step.segment, step.held, step.most, (step.cost > 0) * "
      "(step.segment.stop - step.segment.start)))")),
     "each time the fewest layers are repeated: weigh them by the layers' cost"),
    ((NEXT, f"if step.segment.stop == start + 1: {NEXT}"), "a repeated segment may have any number of layers"),
]  # fmt: skip


class TestOptimalPlan(Exercise):
    """The best plan for a budget"""

    name = "optimal_plan"
    reference = "minitrain.memory.placement:optimal_plan"
    hidden = PLACEMENT

    def plans(self, submission, calls, **limit):
        """A plan for each call (layers, budget), within its budget."""
        found = submission.run(probes.planned_by, calls, **limit)
        expect.left_alone(found, calls, ["layers", "budget"])
        plans = [call["out"] for call in found]
        for (layers, budget), plan in zip(calls, plans):
            flaw = flaw_of(plan, layers, budget)
            words = self.why(plans, calls) if flaw else ""
            expect.that(not flaw, f"{given(layers, budget)} {flaw}{words}")
        return plans

    def repeats_least(self, submission, calls, **limit):
        plans = self.plans(submission, calls, **limit)
        for (layers, budget), plan in zip(calls, plans):
            own = as_layers(layers)
            best = optimal_plan(own, budget)
            cost, least = plan_cost(as_plan(plan), own), plan_cost(best, own)
            if cost > least:
                best = [(s.start, s.stop, s.mode) for s in best]
                raise CheckFailed(
                    f"{given(layers, budget)} gave {plan}, which repeats {cost:g}; {best} repeats only {least:g}"
                    f"{self.why(plans, calls)}"
                )

    def why(self, plans, calls):
        """The mistake that explains every call, if one does."""

        def costs(plans):
            return [
                None if plan is None else sum(layers[i][2] for a, b, mode in plan if mode == "full" for i in range(a, b))
                for (layers, _), plan in zip(calls, plans)
            ]  # fmt: skip

        if max(len(layers) for layers, _ in calls) > 18 or any(
            plan is not None and flaw_of(plan, layers, 1e9)
            for (layers, _), plan in zip(calls, plans)
        ):
            return ""
        planned = lambda f: costs([c["out"] for c in probes.planned_by(f, calls)])  # noqa: E731
        words = cause(costs(plans), self.reference, PLANS, planned)
        return f"\n{words}" if words else ""

    def calls(self, *counts):
        """From what just fits to what holds everything, not always whole bytes."""
        for layers in map(some_layers, counts):
            least, most = least_budget(as_layers(layers)), sum(saved for _, saved, _ in layers)
            yield from ((layers, least + share * (most - least)) for share in (0, 0.2, 0.5, 0.8, 1))

    @check(points=2, title="the plan fits its budget, down to the least that any plan needs")
    def test_fits(self, submission):
        self.plans(submission, [*self.calls(3, 5, 4, 3), only_one(6)])

    @check(points=4, title="no plan that fits repeats less (against every plan there is)")
    def test_cheapest(self, submission):
        fewest_is_not_cheapest = ([(1, 7, 7), (1, 2, 2), (1, 4, 4), (1, 2, 9)], 12)
        calls = [fewest_is_not_cheapest, *self.calls(1, 4, 5, 5, 4, 8)]
        self.repeats_least(submission, calls)
        layers = [(1, 1 + randint(0, 5), randint(1, 4)) for _ in range(18)]
        self.repeats_least(submission, [(layers, sum(saved for _, saved, _ in layers) // 2)])

    @check(points=3, title="24 layers in a moment: beaten partial plans are dropped")
    def test_many(self, submission):
        words = "24 layers took too long: keep only `unbeaten(best[i])`, or the plans double with each layer"
        with expect.because({("timeout", "memory"): words}):
            calls = [([(1, 21, 10)] * 24, 24 * 21 // 2), only_one(23)]
            self.repeats_least(submission, calls, timeout=MOMENT)

    @check(points=1, title="a budget that nothing fits: ValueError")
    def test_refuses(self, submission):
        chains = [[(2, 10, 1)] * 3, *map(some_layers, (1, 2, 4, 5))]
        calls = [(layers, least_budget(as_layers(layers)) - 1) for layers in chains]
        for call, found in zip(calls, submission.run(probes.planned_by, calls)):
            plan = found["out"]
            expect.that(
                plan is None,
                f"{given(*call)} gave {plan}, and no plan fits so few bytes: raise ValueError",
            )


def given(layers, budget):
    shown = f"{len(layers)} x {layers[0]}" if len({*layers}) == 1 else layers
    return f"layers (input, saved, cost) {shown}, budget {budget:g}:"


def only_one(count):
    """(layers, budget): `count` layers must be one segment, or the last one finds no room."""
    size = randint(2, 9)
    layers = [(size, size, randint(1, 9)) for _ in range(count)]
    return [*layers, (size, count * size, 1)], (count + 1) * size


class TestTradeoff(Experiment):
    """Memory against compute"""

    name = "tradeoff"
    rests_on = ("Checkpoint", "keep", "optimal_plan")

    def row(self, table, name):
        return expect.rows(table, "way")[name]

    @check(
        points=3, title="FLOPs: none and selective repeat no matmul, full about a third of a step"
    )
    def test_flops(self, table):
        for name in ("none", "selective"):
            extra = self.row(table, name)["extra_flops"]
            expect.that(
                abs(extra) < 1e-9,
                f"{name} repeats {extra:.1%} of a step's FLOPs: no matmul should be repeated",
            )
        whole, early = (self.row(table, n)["extra_flops"] for n in ("full, to its end", "full"))
        own = self.row(table, "your Checkpoint")["extra_flops"]
        expect.that(
            0.3 < whole < 1 / 3,
            f"full to its end repeats {whole:.1%}: a third, less the head's share",
        )
        expect.that(
            abs(own - whole) < 1e-9,
            f"your Checkpoint repeats {own:.1%}, full to its end {whole:.1%}: the same",
        )
        expect.that(early < whole, "stopping early should repeat less than running to the end")

    @check(points=2, title="bytes saved: none > selective > full")
    def test_saved(self, table):
        none, selective, full = (
            self.row(table, n)["saved_bytes"] for n in ("none", "selective", "full")
        )
        expect.that(
            none > 1.5 * selective > 3 * full, f"saved bytes are {none}, {selective}, {full}"
        )

    @check(points=2, title="√L saves less than full at the end of forward, and peaks higher")
    def test_peak(self, table):
        root, full = self.row(table, "√L"), self.row(table, "full")
        expect.that(
            root["saved_bytes"] < full["saved_bytes"], "√L should hold fewer inputs than full"
        )
        expect.that(
            root["peak_bytes"] > full["peak_bytes"],
            "√L should peak higher: three blocks' bytes at a time",
        )
        best = self.row(table, "optimal, 40%")
        expect.that(
            best["peak_bytes"] < self.row(table, "none")["peak_bytes"],
            "the optimal plan peaks no lower than none",
        )


class TestSpared(Question):
    """What stopping early spares"""

    name = "spared"
    rests_on = ("tradeoff",)

    @check(points=5, title="share of the repeated forward")
    def test_value(self, value, records):
        extra = {row["way"]: row["extra_flops"] for row in expect.recorded(records, "tradeoff")}
        for name in ("full", "full, to its end"):
            expect.that(name in extra, f"your table has no row of '{name}'")
        early, whole = extra["full"], extra["full, to its end"]
        expect.close(
            value,
            1 - early / whole,
            tol=0.02,
            what="the share that is spared",
            hints=[
                (early / whole, "that is the share that is still repeated"),
                (
                    whole - early,
                    "that is a share of the whole step: divide by what is repeated to the end",
                ),
                (whole / early - 1, "divide by what is repeated to the end, not by what is left"),
                (100 * (1 - early / whole), "a fraction is asked for, not percent"),
            ],
        )


def drawn(batch, heads, length, size, count=3, dtype=torch.float64):
    """(B, L, H, …): the probe turns them into the views (B, H, L, …) that a model's heads are."""
    return list(torch.randn(count, batch, length, heads, size, dtype=dtype))


# B, H, L, C, and a window; the lengths around those of one tile and two
SHAPES = [
    ((2, 3, 5, 4), None),
    ((1, 2, 300, 6), None),
    ((2, 1, 129, 1), None),
    ((1, 2, 256, 4), None),
    ((2, 2, 300, 4), 40),
    ((1, 1, 400, 2), 200),
    ((1, 1, 1, 3), None),  # a row reads one key: its weight is 1
    ((1, 2, 30, 2), 1),
]
IN_TILES = "ROWS = COLUMNS = 128\n    kv_heads, exact"  # the notebook's tiles, not the package's
WINDOW = "_read_tiles(mask, rows, k)", "_read_tiles(Mask(0), rows, k)"


def is_tiled(submission, backward, *more, short=384):
    """No ready-made kernel, nothing made twice, no tensor that grows; what came of `more` calls."""
    products = 5 if backward else 2
    calls = [(64, 8, None), (short, 2, None), (2 * short, 2, None), *more]
    one, small, large, *others = found = submission.run(probes.weighed, calls, backward)
    ready = sorted({name for each in found for name in each["names"] if "scaled_dot" in name})
    expect.that(not ready, f"{ready} is PyTorch's own kernel: write the tiles yourself")
    expect.that(
        large["largest"] < 1.5 * small["largest"],
        f"the largest tensor has {small['largest']} numbers for {short} tokens and {large['largest']} for {2 * short}. No "
        "tensor may be L x L or have all keys: one tile of scores at a time, of some queries and some keys",
    )
    made = one["flops"] / (2 * 8 * 64**2)
    expect.that(
        made < products + 0.5,
        f"one tile of 64 tokens takes {made:.1f} products, {products} are enough, each made once",
    )
    return others


def holds_no_square(submission, backward):
    is_tiled(submission, backward, short=768)
    one, two = submission.run(probes.peaks, (768, 1536), backward)
    expect.that(
        two < 2.6 * one,
        f"the peak is {one} bytes for 768 tokens and {two} for 1536: it grows as L², though no "
        "tensor does. Do not collect the tiles: each is gone when the next one comes",
    )


def reads_what_it_may(submission, backward):
    """In tiles of 128 (256) queries 9/16 (5/8) of 1024² pairs are met, with a window of 80 a fifth."""
    causal, near = is_tiled(submission, backward, (1024, 8, None), (1024, 8, 80))
    full = (5 if backward else 2) * 2 * 8 * 1024**2
    for flops, share, window in (
        (causal["flops"], 0.65, ""),
        (near["flops"], 0.4, " and a window of 80"),
    ):
        expect.that(
            flops < share * full,
            f"1024 tokens{window} take {flops} FLOPs, {flops / full:.0%} of what all keys would: make each tile once, of "
            "the keys that mask.keys(rows, L) names",
        )  # fmt: skip


def equal_in_tiles(exercise, submission, calls, inputs, outputs, mistakes, where=""):
    """Every result is the package's, and no call touches what is the caller's."""
    found = submission.run(probes.attended, calls)
    for call in found:
        is_all = isinstance(call["out"], (tuple, list)) and len(call["out"]) == len(outputs)
        expect.that(is_all, f"return {len(outputs)} tensors: {', '.join(outputs)}")
    turned = [[*(z.transpose(1, 2) for z in call[:-1]), call[-1]] for call in calls]
    expect.left_alone(found, turned, inputs)
    right = probes.attended(variant(exercise.reference), calls)
    for call, (q, *_, window), made, want in zip(calls, turned, found, right):
        for n, name in enumerate(outputs):
            what = (
                f"{name} for q of {tuple(q.shape)}{f', window {window}' if window else ''}{where}"
            )
            mistaken = lambda f, n=n, call=call: probes.attended(f, [call])[0]["out"][n]  # noqa: E731
            seen = hints(exercise.reference, mistakes, mistaken)
            expect.equal(made["out"][n], want["out"][n], what=what, hints=seen)


FORWARD = [
    (("/ q.shape[-1] ** 0.5", ""), "that is without the division by √C"),
    (WINDOW, "that is without the window: mask.tile says what may be read"),
    (("kv_heads, exact", IN_TILES, "total.mul_(shrink[..., None])", "total"),
     "a tile was summed under a smaller maximum than the next: shrink `total` by exp(top - new), as `mass`"),
    (("total /= mass.masked_fill(mass == 0, 1)[..., None]", "pass"), "`total` was never divided by `mass`"),
    (("_by_query_head(top + mass.log()", "_by_query_head(mass.log()"),
     "that is log(mass) alone: add `top`, which was taken off each score before exp"),
]  # fmt: skip


class TestTiledForward(Exercise):
    """Tiled attention, forward"""

    name = "tiled_forward"
    reference = "minitrain.model.attention.tiled:tiled_forward"
    hidden = TILED

    def attends(self, submission, calls):
        equal_in_tiles(self, submission, calls, ["q", "k", "v"], ["out", "lse"], FORWARD)

    @check(points=3, title="in tiles, the output is softmax attention's for any length and mask")
    def test_output(self, submission):
        is_tiled(submission, backward=False)
        single = (*drawn(1, 2, 150, 8, dtype=torch.float32), None)
        self.attends(submission, [*((*drawn(*shape), window) for shape, window in SHAPES), single])

    @check(
        points=1,
        title="the log-sum-exp of each row; scores of thousands overflow neither it nor the output",
    )
    def test_lse(self, submission):
        q, k, v = drawn(1, 2, 300, 4)
        large = 30 + 30 * torch.rand_like(q)
        calls = [(q, k, v, None), (large, large, v, None), (-large, large, v, None), (q, k, v, 50)]
        self.attends(submission, calls)

    @check(
        points=4,
        title="no L x L tensor, and a peak that grows with L: largest tensor and peak bytes at 768 and 1536",
    )
    def test_memory(self, submission):
        holds_no_square(submission, backward=False)

    @check(points=2, title="two products a tile; what no query may read costs nothing")
    def test_flops(self, submission):
        reads_what_it_may(submission, backward=False)


BACKWARD = [
    (("dq_rows.mul_(scale)", "dq_rows"), "that is √C too large: the scores were divided by √C, so is this gradient"),
    (("d_scores.mT @ queries", "d_scores.mT @ queries * scale"), "that is √C too small: it was divided twice"),
    ((".sub_(row_delta[..., None])", ""), "`delta` is missing: softmax's derivative takes it off the whole row"),
    (("kv_heads, exact", IN_TILES, "dv[:, :, columns] +=", "dv[:, :, columns] =", "dk[:, :, columns] +=", "dk[:, :, columns] ="),
     "only the last tile is in it: add up with +="),
    (WINDOW, "that is without the window: mask.tile says what may be read"),
]  # fmt: skip


class TestTiledBackward(Exercise):
    """Tiled attention, backward"""

    name = "tiled_backward"
    reference = "minitrain.model.attention.tiled:tiled_backward"
    hidden = TILED

    def pulls_back(self, submission, calls, where=""):
        inputs = ["q", "k", "v", "d_out", "lse", "delta"]
        equal_in_tiles(self, submission, calls, inputs, ["dq", "dk", "dv"], BACKWARD, where)

    def saved(self, q, k, v, d_out, window):
        """A call, with the lse and delta of forward."""
        forward = variant(TestTiledForward.reference)
        ((out, lse),) = (c["out"] for c in probes.attended(forward, [(q, k, v, window)]))
        lse, out = lse.transpose(1, 2), out.transpose(1, 2)
        return q, k, v, d_out, lse.contiguous(), (d_out * out).sum(-1), window

    @check(points=3, title="in tiles, dq, dk and dv equal autograd's through the full softmax")
    def test_gradients(self, submission):
        is_tiled(submission, backward=True)
        calls = [self.saved(*drawn(*shape, count=4), window) for shape, window in SHAPES]
        single = self.saved(*drawn(1, 2, 150, 8, count=4, dtype=torch.float32), None)
        q, *rest = drawn(1, 2, 140, 4, count=4)  # exp(score - lse) of what is not read overflows
        self.pulls_back(submission, [*calls, single, self.saved(900 * q, *rest, None)])

    @check(
        points=2,
        title="the saved lse and delta are used, not made again: they may count other keys",
    )
    def test_saved(self, submission):
        *given, lse, delta, _ = self.saved(*drawn(1, 2, 200, 4, count=4), None)
        others = lse + 0.7, torch.randn_like(delta)
        calls = [(*given, a, b, None) for a in (lse, others[0]) for b in (delta, others[1])]
        where = ", with an lse and a delta that count other keys (take both as they are given)"
        self.pulls_back(submission, calls, where)

    @check(
        points=3,
        title="no L x L tensor, and a peak that grows with L: largest tensor and peak bytes at 768 and 1536",
    )
    def test_memory(self, submission):
        holds_no_square(submission, backward=True)

    @check(points=2, title="five products a tile; what no query may read costs nothing")
    def test_flops(self, submission):
        reads_what_it_may(submission, backward=True)


class TestLengths(Experiment):
    """L² against L"""

    name = "lengths"
    rests_on = ("tiled_forward", "tiled_backward")

    def peaks(self, table, kernel):
        peaks = {row["length"]: row["peak_bytes"] for row in table if row["kernel"] == kernel}
        expect.that(
            len(peaks) >= 3, f"'{kernel}' has {len(peaks)} lengths: three or more are asked for"
        )
        return peaks

    @check(points=3, title="written out, twice the length is four times the bytes")
    def test_naive(self, table):
        peaks = self.peaks(table, "naive")
        longest = max(peaks)
        ratio = peaks[longest] / peaks.get(longest // 2, float("nan"))
        expect.that(
            3.7 < ratio < 4.2,
            f"from {longest // 2} to {longest} tokens the naive peak grows {ratio:.2f} x, not 4 x",
        )

    @check(points=3, title="in tiles it is twice, and far less at the longest")
    def test_tiled(self, table):
        peaks, naive = self.peaks(table, "tiled"), self.peaks(table, "naive")
        longest = max(peaks)
        ratio = peaks[longest] / peaks.get(longest // 2, float("nan"))
        expect.that(
            ratio < 2.3,
            f"from {longest // 2} to {longest} tokens the tiled peak grows {ratio:.2f} x, not 2 x",
        )
        expect.that(
            10 * peaks[longest] < naive.get(longest, 0),
            f"at {longest} tokens tiles hold {peaks[longest]} bytes, naive {naive.get(longest)}: less than a tenth is expected",
        )


class TestLongestNaive(Question):
    """How long a text may be"""

    name = "longest_naive"
    rests_on = ("lengths",)

    @check(points=5, title="80 GB of naive attention, from your own row")
    def test_value(self, value, records):
        rows = [r for r in expect.recorded(records, "lengths") if r["kernel"] == "naive"]
        expect.that(rows, "your table has no row of the naive kernel")
        row = max(rows, key=lambda r: r["length"])
        factor = 80e9 / row["peak_bytes"]
        expect.close(
            value,
            row["length"] * factor**0.5,
            tol=0.05,
            what="tokens",
            hints=[
                (
                    row["length"] * factor,
                    "that is as if bytes grew as L: twice the length is four times the bytes",
                ),
                (factor**0.5, "that is how many times as long: multiply by the length of your row"),
            ],
        )
