"""The checks of lab e05: activation memory, graded by what is saved, repeated and allocated."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.lab.failures import CheckFailed, SubmissionFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, check
from minitrain.measure.flops import counted_flops
from minitrain.measure.memory import MemoryLedger

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
RECOMPUTE = ("minitrain/memory/recompute.py", "minitrain/memory/ambient.py")
SELECTIVE = ("minitrain/memory/selective.py",)
PLACEMENT = ("minitrain/memory/placement.py",)
TILED = ("minitrain/model/attention/tiled.py",)
MOMENT = 2.0  # seconds for what the course does in a hundredth


LIKELY = {
    "does not require grad": "the repetition was not recorded: backward runs without recording, put "
    "`with torch.enable_grad():` around the repetition",
    "incorrect number of gradients": "backward returns one gradient for each input of forward, and the function "
    "is one of them: `return None, *gradients`",
    "only Tensors of floating point": "an integer tensor has no gradient: x.detach().requires_grad_(x.requires_grad)",
    "One of the differentiated Tensors": "an input that needs no gradient was asked for one: use "
    "x.detach().requires_grad_(x.requires_grad), torch.autograd.backward(out, gradient), then x.grad",
    "backward through the graph a second time": "the repetition is joined to the first graph: detach the inputs",
}


def pairs_of(*shapes):
    return [(torch.randn(shape, dtype=torch.float64), torch.rand(shape, dtype=torch.float64) + 0.5) for shape in shapes]  # fmt: skip


class TestCheckpoint(Exercise):
    """Forget, and compute again"""

    name = "Checkpoint"
    reference = "minitrain.memory.recompute:_Reentrant"
    hidden = RECOMPUTE

    @check(points=4, title="output and every gradient equal the plain function's (float64)")
    def test_gradients(self, submission):
        for x, y in pairs_of((3, 6), (2, 5, 6)):
            with expect.because(LIKELY):
                got = submission.run(probes.applied, x, y, 0.0)
            want = probes.applied(None, x, y, 0.0)
            for what in ("out", "x", "y", "weights"):
                lost = "a gradient of None: return x.grad for each input"
                if what == "weights":
                    lost = (
                        "the parameters inside the function got no gradient: torch.autograd.backward(out, gradient) "
                        "reaches all that the repetition used, torch.autograd.grad only what it is asked for"
                    )
                expect.that(got[what] is not None, lost)
                name = "the output" if what == "out" else f"the gradient of {what}"
                expect.equal(
                    got[what],
                    want[what],
                    what=name,
                    hints=[(2 * want[what], "that is twice as much: detach the inputs before you repeat, or the "
                            "repetition's backward goes on into the graph of the first forward")],
                )  # fmt: skip

    @check(
        points=4,
        title="dropout drops the same elements again, bit for bit; the generator goes on as before",
    )
    def test_random_numbers(self, submission):
        ((x, y),) = pairs_of((4, 6))
        with expect.because(LIKELY):
            got = submission.run(probes.applied, x, y, 0.5)
        want = probes.applied(None, x, y, 0.5)
        expect.identical(got["out"], want["out"], what="the output with dropout")
        for what in ("x", "y", "weights"):
            expect.that(got[what] is not None, f"the gradient of {what} is None")
            if not torch.equal(got[what], want[what]):
                raise CheckFailed(
                    f"with dropout, the gradient of {what} differs: the repetition dropped other elements. Keep "
                    "torch.get_rng_state() in forward, set it before you repeat"
                )
        expect.identical(
            got["after"],
            want["after"],
            what="random numbers drawn after backward: leave the generator as backward found it, with "
            "torch.random.fork_rng(devices=[]) or by setting it back",
        )

    @check(
        points=4,
        title="only the inputs are saved, and the function runs twice: without and with recording",
    )
    def test_mechanism(self, submission):
        ((x, y),) = pairs_of((64, 6))
        with expect.because(LIKELY):
            found = submission.run(probes.what_it_saves, x, y)
        expect.that(
            found["name"] == found["own"],
            f"the result's node is {found['name'] or 'missing'}, not {found['own']}: write forward and backward, and let "
            "Checkpoint.apply make the node; a ready-made checkpoint is not the exercise",
        )
        expect.that(
            found["calls"][0] is False and len(found["calls"]) > 1,
            f"the function ran {len(found['calls'])} time(s), recorded: {found['calls']}. The first time nothing "
            "may be recorded, or all activations are kept after all; backward runs it again",
        )
        expect.that(
            found["calls"] == [False, True],
            f"the function ran with recording {found['calls']}, expected [False, True]: once forward, once in backward",
        )
        want = x.nbytes + y.nbytes
        expect.that(
            found["saved"] == want,
            f"{found['saved']} bytes were saved for backward, the two inputs have {want}: give exactly them to "
            "ctx.save_for_backward. What is put on ctx itself is not watched for changes in place, nor counted",
        )
        expect.that(
            found["held"] <= found["out"],
            f"after forward {found['held']} bytes more are held, the result has {found['out']}: something else is kept",
        )

    @check(points=2, title="an input without gradient, such as integers")
    def test_integers(self, submission):
        table, places = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 3, 3])
        with expect.because(LIKELY):
            got = submission.run(probes.looked_up, table, places)
        expect.equal(
            got,
            probes.looked_up(None, table, places),
            what="the gradient of a table that was looked up",
        )


def block_run(policy, kernel, how="selective"):
    """Bytes that a block saves with a policy, and the FLOPs of its step, measured here, outside."""
    from minitrain.memory.segments import recompute
    from minitrain.model.config import ModelConfig
    from minitrain.model.transformer import build, exchange_attention

    def run(layers):
        config = ModelConfig(16, 24, layers, heads=2, kv_heads=1, ffn_size=40)
        model = exchange_attention(build(config), kernel, lambda x, *_: None)
        recompute(model, how, policy=policy)
        tokens = torch.arange(2 * 32).view(2, 32) % 16
        with MemoryLedger(model) as ledger:
            loss = model(tokens).square().mean()
            saved = ledger.now["activations"]
            del loss
        return saved, counted_flops(lambda: model(tokens).square().mean().backward())

    (saved, flops), (less, fewer) = run(2), run(1)
    return saved - less, flops - fewer


def operations_in_a_block():
    """The names of all the operations that a policy is asked for, by either attention."""
    from minitrain.model.attention.grouped_query import attention, attention_naive

    seen = set()
    for kernel in (attention, attention_naive):
        block_run(lambda op: bool(seen.add(op)), kernel)
    return sorted(map(name_of, seen))


def name_of(op):
    return f"{op.overloadpacket.__name__}.{op._overloadname}"


class TestKeep(Exercise):
    """Keep what is dear: a policy"""

    name = "keep"
    reference = "minitrain.memory.selective:save_matmuls"
    hidden = SELECTIVE

    def answers(self, submission):
        names = sorted({*operations_in_a_block(), "addmm.default"})
        answers = submission.run(probes.asked, names)
        for name, answer in answers.items():
            expect.that(
                isinstance(answer, bool),
                f"for {name} the policy said {answer!r}: True or False is asked for",
            )
        return answers

    def measured(self, answers, kernel):
        """Bytes and FLOPs of a block by this policy."""
        try:
            return block_run(lambda op: answers.get(name_of(op), False), kernel)
        except InputError as error:  # a kept result was changed in place
            kept = ", ".join(self.needless(answers)[:6])
            raise CheckFailed(
                f"{error}\nkeep fewer: {kept} cost next to nothing to repeat"
            ) from None

    @staticmethod
    def needless(answers):
        good = ("mm.", "addmm.", "_scaled_dot", "bmm.")
        return [n for n, yes in answers.items() if yes and not n.startswith(good)]

    @check(points=3, title="no matmul runs twice: the FLOPs are those of no recomputation")
    def test_flops(self, submission):
        from minitrain.model.attention.grouped_query import attention

        answers = self.answers(submission)
        _, flops = self.measured(answers, attention)
        _, plain = block_run(None, attention, "none")
        dropped = [n for n in answers if n.startswith(("mm.", "_scaled_dot")) and not answers[n]]
        expect.that(
            flops == plain,
            f"a block's forward and backward take {flops} FLOPs, {plain} without recomputation: keep {', '.join(dropped)}",
        )
        expect.that(
            answers["addmm.default"],
            "addmm.default is a linear layer with a bias (Qwen2 has some): keep it too",
        )

    @check(points=3, title="a block saves 2 D + 2 HC + 2 KC + 2 F numbers and H a token, no more")
    def test_bytes(self, submission):
        from minitrain.model.attention.grouped_query import attention

        answers = self.answers(submission)
        saved, _ = self.measured(answers, attention)
        want = 2 * 32 * 4 * (2 * 24 + 2 * 24 + 2 * 12 + 2 * 40 + 2)
        kept = ", ".join(self.needless(answers)[:6])
        words = f"keep fewer: {kept} cost next to nothing to repeat"
        expect.that(saved <= want, f"a block saves {saved} bytes, {want} are enough: {words}")

    @check(points=2, title="attention written out: the T x T products are repeated")
    def test_scores(self, submission):
        from minitrain.model.attention.grouped_query import attention_naive

        answers = self.answers(submission)
        saved, _ = self.measured(answers, attention_naive)
        least, _ = block_run(lambda op: op.overloadpacket.__name__ == "mm", attention_naive)
        expect.that(
            saved <= least,
            f"with attention written out a block saves {saved} bytes, {least} without the T x T scores: bmm, the "
            'product of two activations, is not to be kept ("mm" is a part of "bmm": compare whole names)',
        )


class TestSaved(Experiment):
    """Bytes a token and block"""

    name = "saved"

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


def peak_of(plan, layers, every_input=False):
    """The peak; with `every_input` that of the mistake which holds an input a layer."""
    held = peak = 0
    for start, stop, mode in plan:
        everything = sum(saved for _, saved, _ in layers[start:stop])
        peak = max(peak, held + everything)
        inputs = sum(taken for taken, _, _ in layers[start : stop if every_input else start + 1])
        held += inputs if mode == "full" else everything
    return peak


def held_after(plan, layers):
    return sum(
        layers[a][0] if mode == "full" else sum(s for _, s, _ in layers[a:b]) for a, b, mode in plan
    )


def cost_of(plan, layers):
    return sum(cost for a, b, mode in plan if mode == "full" for _, _, cost in layers[a:b])


def every_plan(start, count):
    """All plans of layers start … count - 1: segments repeated, single layers kept."""
    if start == count:
        yield []
    for stop in range(start + 1, count + 1):
        for rest in every_plan(stop, count):
            yield [(start, stop, "full"), *rest]
            if stop == start + 1:
                yield [(start, stop, "none"), *rest]


def some_layers(count):
    """(input, saved, cost), all different."""
    draw = lambda low, high: int(torch.randint(low, high, (1,)))  # noqa: E731
    return [(i := draw(1, 9), i + draw(0, 30), draw(1, 20)) for _ in range(count)]


class TestPlanPeak(Exercise):
    """The peak of a plan"""

    name = "plan_peak"
    reference = "minitrain.memory.placement:plan_peak"
    hidden = PLACEMENT

    def equal(self, submission, plan, layers):
        got = submission.run(probes.peak_by, plan, layers)
        moments = [sum(s for _, s, _ in layers[a:b]) for a, b, _ in plan]
        leaves = [held_after([segment], layers) for segment in plan]
        behind = max(sum(leaves[: n + 1]) + moments[n] for n in range(len(plan)))
        expect.equal(
            float(got),
            float(peak_of(plan, layers)),
            what=f"the peak of {plan} for layers (input, saved, cost) {layers}",
            hints=[
                (float(held_after(plan, layers)), "that is what forward leaves behind: while a repeated segment's own "
                 "backward runs, all that its layers save is there for a moment"),
                (float(behind), "a segment's `saved_bytes` include its input: look for the peak before `held` grows, when the ones behind it are gone"),
                (float(held_after(plan, layers) + max(moments)), "that is everything left behind plus the largest "
                 "segment: at a segment's backward the ones behind it are gone"),
                (float(max(moments)), "that is the largest segment alone: those before it hold their inputs"),
                (float(peak_of(plan, layers, every_input=True)), "a repeated segment holds its first input only, not one a layer"),
                (float(sum(s for _, s, _ in layers)), "that is as if every layer were kept"),
            ],
        )  # fmt: skip

    @check(points=4, title="uniform plans: all kept, each repeated, segments of two")
    def test_uniform(self, submission):
        layers = [(2, 30, 1)] * 6
        for plan in (
            [(i, i + 1, "none") for i in range(6)],
            [(i, i + 1, "full") for i in range(6)],
            [(i, i + 2, "full") for i in range(0, 6, 2)],
        ):
            self.equal(submission, plan, layers)

    @check(points=4, title="mixed plans of unequal layers")
    def test_mixed(self, submission):
        for plan in (
            [(0, 2, "full"), (2, 3, "none"), (3, 6, "full")],
            [(0, 1, "none"), (1, 5, "full"), (5, 6, "none")],
            [(0, 4, "full"), (4, 5, "full"), (5, 6, "none")],
        ):
            self.equal(submission, plan, some_layers(6))


class TestSegments(Experiment):
    """How long a segment should be"""

    name = "segments"

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

    @check(points=5, title="of 126 blocks, by your own bytes")
    def test_value(self, value, records):
        found = {r["recompute"]: r["block_bytes"] for r in expect.recorded(records, "saved") if r["dtype"] == "float32"}  # fmt: skip
        for how in ("none", "full"):
            expect.that(how in found, f"your table has no row of '{how}' in float32")
        layers = [(found["full"], found["none"], 1)] * 126
        peaks = {}
        for k in range(1, 127):
            peaks[k] = peak_of([(i, min(i + k, 126), "full") for i in range(0, 126, k)], layers)
        words = "try every length from 1 to 126: plan_peak(cut(126, k), [layer] * 126)"
        if value in (11, 12):
            words = "that is √126, best where a layer saves its input only: a block saves A/I times as much"
        expect.that(
            peaks.get(value) == min(peaks.values()),
            f"got {value!r}, which has not the lowest peak: {words}",
        )


class TestOptimalPlan(Exercise):
    """The best plan for a budget"""

    name = "optimal_plan"
    reference = "minitrain.memory.placement:optimal_plan"
    hidden = PLACEMENT

    def plan(self, submission, layers, budget):
        plan = submission.run(probes.planned_by, layers, budget)
        expect.that(plan is not None, f"a plan of {layers} fits {budget} bytes, and it was refused")
        covered = [i for a, b, _ in plan for i in range(a, b)]
        expect.that(
            covered == list(range(len(layers))),
            f"the plan {plan} runs layers {covered} of {len(layers)}: each once, in order",
        )
        return plan

    def budgets(self, layers):
        """From what just fits to what holds everything."""
        peaks = sorted({peak_of(plan, layers) for plan in every_plan(0, len(layers))})
        return [peaks[0], peaks[len(peaks) // 4], peaks[len(peaks) // 2], peaks[-1]]

    @check(points=3, title="the plan fits its budget, down to the least that any plan needs")
    def test_fits(self, submission):
        for count in (3, 5):
            layers = some_layers(count)
            for budget in self.budgets(layers):
                plan = self.plan(submission, layers, budget)
                peak = peak_of(plan, layers)
                expect.that(
                    peak <= budget,
                    f"the plan {plan} peaks at {peak} bytes, the budget is {budget}: a repeated segment needs room for all "
                    "that its layers save, besides what is held before it",
                )

    @check(points=4, title="no plan that fits repeats less (against every plan there is)")
    def test_cheapest(self, submission):
        planted = [
            (1, 7, 7),
            (1, 2, 2),
            (1, 4, 4),
            (1, 2, 9),
        ]  # in 12 bytes, fewest is not cheapest
        drawn = [some_layers(count) for count in (1, 4, 5)]
        for layers in (planted, *drawn):
            for budget in [12] if layers is planted else self.budgets(layers):
                plan = self.plan(submission, layers, budget)
                every = every_plan(0, len(layers))
                fitting = [p for p in every if peak_of(p, layers) <= budget]
                best = min(fitting, key=lambda p: cost_of(p, layers))
                expect.that(
                    cost_of(plan, layers) <= cost_of(best, layers),
                    f"layers (input, saved, cost) {layers}, budget {budget}: the plan {plan} repeats "
                    f"{cost_of(plan, layers)}, {best} only {cost_of(best, layers)}. Weigh every next segment, repeated "
                    "ones of any length and kept single layers, by the layers' cost",
                )

    @check(points=2, title="24 layers in a moment: beaten partial plans are dropped")
    def test_many(self, submission):
        layers = [(1, 21, 10)] * 24
        words = "24 equal layers took too long: keep only `unbeaten(best[i])`, or the plans double with each layer"
        with expect.because({("timeout", "memory"): words}):
            plan = submission.run(probes.planned_by, layers, 24 * 21 // 2, timeout=MOMENT)
        expect.that(
            plan is not None, "24 equal layers fit half of their bytes, and the plan was refused"
        )
        expect.that(
            peak_of(plan, layers) <= 252, f"the plan peaks at {peak_of(plan, layers)} bytes of 252"
        )
        expect.that(
            cost_of(plan, layers) == 130,
            f"the plan repeats {cost_of(plan, layers)}, 130 are enough",
        )

    @check(points=1, title="a budget that nothing fits: ValueError")
    def test_refuses(self, submission):
        try:
            plan = submission.run(probes.planned_by, [(2, 10, 1)] * 3, 9)
        except SubmissionFailed as failure:
            if failure.kind != "exception":
                raise
            plan = str(failure)
        expect.that(
            plan is None, f"9 bytes for layers that save 10 each gave {plan}: raise ValueError"
        )


class TestTradeoff(Experiment):
    """Memory against compute"""

    name = "tradeoff"

    def row(self, table, name):
        rows = {row["way"]: row for row in table}
        expect.that(name in rows, f"there is no row of '{name}'")
        return rows[name]

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


def full_attention(q, k, v, lse=None):
    """(output, log-sum-exp, weights), all keys at once."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    length = q.shape[2]
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = scores.masked_fill(ahead, -torch.inf)
    lse = scores.logsumexp(dim=-1) if lse is None else lse
    weights = (scores - lse[..., None]).exp()
    return weights @ v, lse, weights


def drawn(batch, heads, length, size, count=3, scale=1.0):
    return [
        scale * torch.randn(batch, heads, length, size, dtype=torch.float64) for _ in range(count)
    ]


SHAPES = [(2, 3, 5, 4), (1, 2, 300, 6), (1, 1, 700, 2)]
WEIGHED = (768, 1536)  # tokens: tiles of 128 are a small part of either square


def holds_no_square(submission, backward):
    """Twice the length: tiles stay as they are, and the peak grows like q."""
    one, two = WEIGHED
    short, long = (submission.run(probes.weighed, length, backward) for length in WEIGHED)
    for found in (short, long):
        ready = [name for name in found["names"] if "scaled_dot_product" in name]
        expect.that(not ready, f"{ready} is PyTorch's own kernel: write the tiles yourself")
    grown = long["largest"] / short["largest"]
    expect.that(
        grown < 3,
        f"the largest tensor has {short['largest']} numbers for {one} tokens and {long['largest']} for {two}: it grows as "
        "L². No tensor may be L x L: one tile of scores at a time",
    )
    expect.that(
        grown < 1.5,
        f"the largest tensor has {short['largest']} numbers for {one} tokens and {long['largest']} for {two}: a tile's "
        "queries meet all keys at once. Cut the keys too, and go on from tile to tile",
    )
    expect.that(
        long["peak"] < 2.6 * short["peak"],
        f"the peak is {short['peak']} bytes for {one} tokens and {long['peak']} for {two}: it grows as L², though no "
        "tensor does. Do not collect the tiles: each is gone when the next one comes",
    )


class TestTiledForward(Exercise):
    """Tiled attention, forward"""

    name = "tiled_forward"
    reference = "minitrain.model.attention.tiled:tiled_forward"
    hidden = TILED

    @check(points=4, title="the output is softmax attention's, for any length (float64)")
    def test_output(self, submission):
        for shape in SHAPES:
            q, k, v = drawn(*shape)
            want, _, _ = full_attention(q, k, v)
            got = submission.run(probes.attended, q, k, v)
            expect.that(
                isinstance(got, (tuple, list)) and len(got) == 2, "return two tensors: out, lse"
            )
            scores = q @ k.mT / shape[-1] ** 0.5
            expect.equal(
                got[0],
                want,
                what=f"the output for q of {shape}",
                hints=[
                    (full_attention(q * shape[-1] ** 0.5, k, v)[0], "that is without the division by √C"),
                    (scores.softmax(-1) @ v, "every token reads the ones after it too: use mask.tile"),
                    (scores.tril().softmax(-1) @ v, "what may not be read must have a score of -inf, not 0"),
                    (want * weights_mass(q, k), "`total` was never divided by `mass`"),
                    (never_shrunk(q, k, v), "a tile was summed under a smaller maximum than the next: shrink `total` by exp(top - new), as `mass`"),
                    (last_tile(q, k, v), "only the last tile of keys counts: shrink and add, do not overwrite"),
                ],
            )  # fmt: skip

    @check(points=2, title="the log-sum-exp of each row; scores of a thousand do not overflow")
    def test_lse(self, submission):
        q, k, v = drawn(1, 2, 300, 4)
        for scale in (1.0, 600.0):
            want, lse, _ = full_attention(scale * q, k, v)
            out, got = submission.run(probes.attended, scale * q, k, v)
            expect.that(
                bool(torch.isfinite(got).all() and torch.isfinite(out).all()),
                f"with scores up to {lse.abs().max():.0f} the result is not finite: take the greatest score off before exp",
            )
            expect.equal(
                got,
                lse,
                what="the log-sum-exp",
                hints=[(lse.exp(), "that is the sum itself: its logarithm is asked for")],
            )
            expect.equal(out, want, what="the output")

    @check(
        points=3,
        title="no L x L tensor, and a peak that grows with L: largest tensor and peak bytes at 768 and 1536",
    )
    def test_memory(self, submission):
        holds_no_square(submission, backward=False)

    @check(points=1, title="tiles above the diagonal cost nothing")
    def test_flops(self, submission):
        length = WEIGHED[-1]
        flops, full = submission.run(probes.flops_of, length, False), 4 * length**2 * 2
        expect.that(
            flops < 0.75 * full,
            f"{flops} FLOPs for {length} tokens, {full} read every key: go through mask.keys(rows, L) only",
        )


def weights_mass(q, k):
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(
        torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1), -torch.inf
    )
    return (scores - scores.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)


def never_shrunk(q, k, v, columns=128):
    """What comes out where `mass` is shrunk and `total` is not."""
    length, short = q.shape[2], -q.shape[2] % columns
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(ahead, -torch.inf)
    padded = nn.functional.pad(scores, (0, short), value=-torch.inf)
    tops = padded.unflatten(-1, (-1, columns)).amax(-1).cummax(-1).values  # (B, H, L, tiles)
    weights = (scores - tops.repeat_interleave(columns, dim=-1)[..., :length]).exp()
    mass = (scores - tops[..., -1:]).exp().sum(-1, keepdim=True)
    return weights @ v / mass


def last_tile(q, k, v, columns=128):
    """What is left where each tile of keys overwrites the one before it."""
    length = q.shape[2]
    row, column = torch.arange(length)[:, None], torch.arange(length)
    read = (column <= row) & (column >= row // columns * columns)
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~read, -torch.inf)
    return scores.softmax(-1) @ v


class TestTiledBackward(Exercise):
    """Tiled attention, backward"""

    name = "tiled_backward"
    reference = "minitrain.model.attention.tiled:tiled_backward"
    hidden = TILED

    def gradients(self, q, k, v, d_out, lse, delta, future=False):
        """dq, dk, dv by the full softmax; with `future` of tokens that read those after them too."""
        scale = q.shape[-1] ** -0.5
        weights = full_attention(q, k, v, lse)[2]
        if future:
            weights = (q @ k.mT * scale - lse[..., None]).exp()
        d_scores = weights * (d_out @ v.mT - delta[..., None])
        return d_scores @ k * scale, d_scores.mT @ q * scale, weights.mT @ d_out

    @check(points=5, title="dq, dk and dv equal autograd's through the full softmax (float64)")
    def test_gradients(self, submission):
        for shape in SHAPES:
            q, k, v, d_out = drawn(*shape, count=4)
            leaves = [z.clone().requires_grad_() for z in (q, k, v)]
            out, lse, weights = full_attention(*leaves)
            want = torch.autograd.grad(out, leaves, d_out)
            out, lse, weights = (z.detach() for z in (out, lse, weights))
            delta = (d_out * out).sum(-1)
            got = submission.run(probes.pulled_back, q, k, v, d_out, lse, delta)
            expect.that(
                isinstance(got, (tuple, list)) and len(got) == 3, "return three tensors: dq, dk, dv"
            )
            root = shape[-1] ** 0.5
            plain = self.gradients(q, k, v, d_out, lse, 0 * delta)
            ahead = self.gradients(q, k, v, d_out, lse, delta, future=True)
            cases = zip(("dq", "dk", "dv"), got, want, plain, ahead)
            for name, mine, theirs, without, unmasked in cases:
                expect.equal(
                    mine,
                    theirs,
                    what=f"{name} for q of {shape}",
                    hints=[
                        (theirs * root, "that is √C too large: the scores were divided by √C, so is this gradient"),
                        (theirs / root, "that is √C too small: it was divided twice"),
                        (unmasked, "a key that may not be read has a weight too: make it 0, by mask.tile"),
                        (without, "`delta` is missing: softmax's derivative takes it off the whole row"),
                        (last_rows(name, q, k, v, d_out, lse, delta), "only the last tile is in it: add up with +="),
                    ],
                )  # fmt: skip

    @check(
        points=2,
        title="the saved lse and delta are used, not made again: they may count other keys",
    )
    def test_saved(self, submission):
        q, k, v, d_out = drawn(1, 2, 200, 4, count=4)
        lse = full_attention(q, k, v)[1] + 0.7
        delta = torch.randn(1, 2, 200, dtype=torch.float64)
        got = submission.run(probes.pulled_back, q, k, v, d_out, lse, delta)
        for name, mine, theirs in zip(
            ("dq", "dk", "dv"), got, self.gradients(q, k, v, d_out, lse, delta)
        ):
            expect.equal(
                mine,
                theirs,
                what=f"{name} with an lse that counts keys of another rank: weights are exp(scores - lse), take lse and "
                "delta as they are given",
            )

    @check(
        points=2,
        title="no L x L tensor, and a peak that grows with L: largest tensor and peak bytes at 768 and 1536",
    )
    def test_memory(self, submission):
        holds_no_square(submission, backward=True)

    @check(points=1, title="five products a tile, none above the diagonal")
    def test_flops(self, submission):
        length = WEIGHED[-1]
        flops, full = submission.run(probes.flops_of, length, True), 10 * length**2 * 2
        expect.that(
            flops < 0.75 * full,
            f"{flops} FLOPs for {length} tokens, five products of every pair are {full}: go through mask.keys(rows, L) only, "
            "and make the scores once",
        )


def last_rows(name, q, k, v, d_out, lse, delta, size=128):
    """What is left of dq where each tile of keys overwrites the one before, of dk and dv of rows."""
    scale, length = q.shape[-1] ** -0.5, q.shape[2]
    tile = torch.arange(length) // size
    last = tile[:, None] == (tile if name == "dq" else (length - 1) // size)
    weights = full_attention(q, k, v, lse)[2] * last
    d_scores = weights * (d_out @ v.mT - delta[..., None])
    made = {
        "dq": lambda: d_scores @ k * scale,
        "dk": lambda: d_scores.mT @ q * scale,
        "dv": lambda: weights.mT @ d_out,
    }
    return made[name]()


class TestLengths(Experiment):
    """L² against L"""

    name = "lengths"

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
