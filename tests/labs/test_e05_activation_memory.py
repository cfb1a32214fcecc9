"""The checks of lab e05: activation memory, graded by what is saved, repeated and allocated."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from math import isqrt
from random import randint

import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.measure.flops import counted_flops, model_flops
from minitrain.measure.memory import MemoryLedger
from minitrain.measure.predicted_memory import block_bytes_per_token
from minitrain.memory.placement import Layer, optimal_plan
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
LONG = 18  # layers, of which there are 100 million plans


LIKELY = {
    "has no attribute 'parameters'": "a function need not be a module: torch.autograd.backward(out, gradient) reaches "
    "all that the repetition used, and needs no list of it",
    "One of the differentiated Tensors": "an input that needs no gradient was asked for one: use "
    "x.detach().requires_grad_(x.requires_grad), torch.autograd.backward(out, gradient), then x.grad",
    "does not require grad and does not have": "nothing was recorded: backward runs without recording (put `with torch."
    "enable_grad():` around the repetition), and what is detached requires no gradient (x.detach().requires_grad_(x.requires_grad))",
    "incorrect number of gradients": "backward returns one gradient for each input of forward, and the function "
    "is one of them: `return None, *gradients`",
    "only Tensors of floating point": "an integer tensor has no gradient: x.detach().requires_grad_(x.requires_grad)",
    "backward through the graph a second time": "a graph has been run backward twice: either the inputs are not detached "
    "(detach the inputs, or the repetition is joined to the first graph), or one repetition is run twice",
}
TWICE = (
    "that is twice as much: either the inputs are not detached (detach the inputs, or the repetition's backward "
    "goes on into the graph of the first forward), or it is added up twice"
)
DREW = "forward draws as the function does: it sets no seed, and leaves the generator where the function left it"
FLAGS = (
    "y has one. An input's flag is its own x.requires_grad; in ctx.needs_input_grad entry [0] is the "
    "function's, so the inputs' flags begin at [1]"
)
FOUND = "leave the generator as backward found it, with torch.random.fork_rng(devices=[]) or by setting it back"


OF_THE_FIRST = "that is without the gradients of all inputs behind the first: each input has its own, None, *(x.grad for x in inputs)"


class OfTheFirst:
    """Functions of which the first input alone gets a gradient."""

    @staticmethod
    def apply(function, x, *others):
        return function(x, *(other.detach() for other in others))


def itself(probe, *given):
    """What the probe finds with the plain functions."""
    return probe(None, *given)


def some_inputs(*shape):
    """x, y > 0, and the gradient of a result."""
    draw = lambda: torch.randn(shape, dtype=torch.float64)  # noqa: E731
    return draw(), draw().abs() + 0.5, draw()


RESULTS = {"out": "the output", "other": "the output of the second use"}
GRADIENTS = {
    "x": "the gradient of x",
    "y": "the gradient of y",
    "weights": "the gradient of the weights",
    "others": "the gradient of the second function's weights",
}


def is_repeated(ways, uses=1):
    """The technique itself: a node of the learner's, whose function runs once each way."""
    expect.that(
        ways["node"] == ways["own"],
        f"the result's node is {ways['node'] or 'missing'}, not {ways['own']}: write forward and backward, and let "
        "Checkpoint.apply make the node; a ready-made checkpoint is not the exercise",
    )
    expect.that(
        "torch.utils.checkpoint" not in ways["callers"],
        "the function is run by torch.utils.checkpoint: a ready-made checkpoint is not the exercise, call it yourself",
    )
    calls, want = ways["calls"], [False] * uses + [True] * uses
    expect.that(
        not any(calls[:uses]) and len(calls) > uses,
        f"used {uses} x, the function ran {len(calls)} time(s), recorded: {calls}. The first time nothing "
        "may be recorded, or all activations are kept after all; backward runs it again",
    )
    expect.that(
        calls == want,
        f"the function ran with recording {calls}, expected {want}: for each use once forward, once in backward. What a use needs later stays on its own ctx",
    )


class TestCheckpoint(Exercise):
    """Forget, and compute again"""

    name = "Checkpoint"
    reference = "minitrain.memory.recompute:_Reentrant"
    hidden = RECOMPUTE

    def applied(self, submission, dropout, *shape):
        """(got, want, given): of functions used three times, all forwards before any backward."""
        given = some_inputs(*shape)
        with expect.because(LIKELY):
            got = submission.run(probes.applied, *given, dropout)
        for function, uses in (("one", 2), ("two", 1)):
            is_repeated(got[function], uses)
        expect.left_alone([got], [given], ["x", "y", "gradient"])
        return got, probes.applied(None, *given, dropout), given

    @check(
        points=4,
        title="run once more in backward: output and every gradient equal the plain functions' (float64)",
    )
    def test_gradients(self, submission):
        for shape in ((3, 6), (2, 5, 6)):
            got, want, given = self.applied(submission, 0.0, *shape)
            for what, name in {**RESULTS, **GRADIENTS}.items():
                lost = f"{name} is None: return x.grad of each detached input, which must require a gradient, too"
                if what == "x" and got["y"] is not None:
                    lost += f". {FLAGS}"
                if what in ("weights", "others"):
                    lost = (
                        "the parameters inside the function got no gradient: torch.autograd.backward(out, gradient) "
                        "reaches all that the repetition used, torch.autograd.grad only what it is asked for"
                    )
                expect.that(got[what] is not None, lost)
                expect.equal(
                    got[what],
                    want[what],
                    what=name,
                    hints=self.hints(what, want, given),
                )

    @staticmethod
    def hints(what, want, given):
        yield 2 * want[what], TWICE
        yield probes.applied(OfTheFirst, *given, 0.0)[what], OF_THE_FIRST

    @check(
        points=4,
        title="dropout drops the same elements again, bit for bit; the generator goes on as before",
    )
    def test_random_numbers(self, submission):
        got, want, _ = self.applied(submission, 0.5, 4, 6)
        for what, name in RESULTS.items():
            hints = [(got[what], DREW)]
            expect.identical(got[what], want[what], what=f"{name} with dropout", hints=hints)
        for what, name in GRADIENTS.items():
            expect.that(got[what] is not None, f"as above: {name} is None")
            if not torch.equal(got[what], want[what]):
                raise CheckFailed(f"with dropout, {name} differs: {self.why(submission, what)}")
        expect.identical(
            got["after"],
            want["after"],
            what="random numbers drawn after backward",
            hints=[(got["after"], FOUND)],
        )

    @staticmethod
    def why(submission, what):
        """Of a gradient that is wrong with dropout, where a function is used several times."""
        given = some_inputs(4, 6)
        got, want = (run(probes.applied, *given, 0.0) for run in (submission.run, itself))
        if expect.difference(got[what], want[what]) is not None:
            return "as above, it differs without dropout too"
        alone, right = (run(probes.applied_once, *given, 0.5) for run in (submission.run, itself))
        if expect.difference(alone, right, 0.0) is None:
            return (
                "with one use it is right. Several wait for their backward at once, and each needs the generator's "
                "state of its own forward, on its own ctx"
            )
        return "the repetition dropped other elements. Keep torch.get_rng_state() in forward, set it before you repeat"

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
            + (
                "what is saved are not the inputs themselves, but others of their size, such as copies"
                if found["others"]
                else "something else is kept"
            ),
        )

    @check(points=2, title="inputs without gradient, such as integers and a mask")
    def test_integers(self, submission):
        given = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 3, 3]), torch.tensor([True, False, True])  # fmt: skip
        with expect.because(LIKELY):
            got = submission.run(probes.looked_up, *given)
        want, what = probes.looked_up(None, *given), "the gradient of a table that was looked up"
        expect.that(got is not None, f"{what} is None: return x.grad for each input")
        expect.equal(got, want, what=what, hints=[(2 * want, TWICE)])


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


@cache
def operations_in_a_block():
    """The names of all the operations that a policy is asked for, by either attention."""
    from minitrain.model.attention.grouped_query import attention, attention_naive

    seen = set()
    for kernel in (attention, attention_naive):
        block_run(lambda op: bool(seen.add(op)), kernel)
    return sorted(map(name_of, seen))


def name_of(op):
    return f"{op.overloadpacket.__name__}.{op._overloadname}"


PART_OF_A_NAME = "smm.default"  # a product that no model here has
BEGINS = (
    "keep every name that begins with `_scaled_dot_product_` (compare the beginning: what follows "
    "depends on the machine)"
)
ELSEWHERE = (  # operations of other models, and other machines' kernels
    "addmm.default",
    "baddbmm.default",
    *(
        f"_scaled_dot_product_{kernel}.default"
        for kernel in ("flash_attention", "efficient_attention", "cudnn_attention")
    ),
    f"{probes.INVENTED}.default",
)


class TestKeep(Exercise):
    """Keep what is dear: a policy"""

    name = "keep"
    reference = "minitrain.memory.selective:save_matmuls"
    hidden = SELECTIVE

    def answers(self, submission):
        names = sorted({*operations_in_a_block(), *ELSEWHERE})
        answers, again = submission.run(probes.asked, names)
        for name, answer in answers.items():
            expect.that(
                isinstance(answer, bool),
                f"for {name} the policy said {answer!r}: True or False is asked for",
            )
            expect.that(
                answer == again[name],
                f"asked twice for {name}, the policy said {answer} and {again[name]}: its answer depends on the "
                "operation alone, whatever was asked before",
            )
        return answers

    def measured(self, answers, kernel):
        """Bytes and FLOPs of a block by this policy."""
        try:
            return block_run(lambda op: answers.get(name_of(op), False), kernel)
        except InputError:  # a kept result was changed in place
            kept = ", ".join(self.needless(answers)[:6])
            raise CheckFailed(
                f"keep fewer: {kept} cost next to nothing to repeat (and as one of them is changed in place later, this "
                "block cannot even be repeated from what is kept)"
            ) from None

    @staticmethod
    def needless(answers):
        good = ("mm.", "addmm.", "_scaled_dot", "bmm.", "baddbmm.")
        return [n for n, yes in answers.items() if yes and not n.startswith(good)]

    def keeps_products(self, answers):
        """Without which nothing else says anything of a policy."""
        expect.that(
            answers["mm.default"], "mm, a linear layer, is repeated: keep products with weights"
        )

    @check(points=2, title="no matmul runs twice: the FLOPs are those of no recomputation")
    def test_flops(self, submission):
        from minitrain.model.attention.grouped_query import attention

        answers = self.answers(submission)
        _, flops = self.measured(answers, attention)
        _, plain = block_run(None, attention, "none")
        dropped = [n for n, yes in answers.items() if n.startswith("_scaled_dot") and not yes]
        words = [] if answers["mm.default"] else ["keep mm.default, a linear layer"]
        here = [name for name in dropped if name in operations_in_a_block()]
        words += [f"fused attention, here {here[0]}, runs twice: {BEGINS}"] if here else []
        expect.that(
            flops == plain,
            f"a block's forward and backward take {flops} FLOPs, {plain} without recomputation: {'; '.join(words)}",
        )
        expect.that(
            answers["addmm.default"],
            "addmm.default is a linear layer with a bias (Qwen2 has some): keep it too",
        )
        listed = [name for name in dropped if probes.INVENTED not in name]
        words = f"a kernel may be called {probes.INVENTED} (an invented one, in no list)"
        if listed:
            words = f"on another machine the fused kernel is {listed[0]}"
        expect.that(not dropped, f"{words}, and it is not kept: {BEGINS}")

    @check(points=3, title="a block saves 2 D + 2 HC + 2 KC + 2 F numbers and H a token, no more")
    def test_bytes(self, submission):
        from minitrain.model.attention.grouped_query import attention

        answers = self.answers(submission)
        self.keeps_products(answers)
        saved, _ = self.measured(answers, attention)
        want = 2 * 32 * 4 * (2 * 24 + 2 * 24 + 2 * 12 + 2 * 40 + 2)
        kept = ", ".join(self.needless(answers)[:6])
        words = f"keep fewer: {kept} cost next to nothing to repeat"
        expect.that(saved <= want, f"a block saves {saved} bytes, {want} are enough: {words}")

    @check(points=3, title="attention written out: its batched products (bmm) are repeated")
    def test_scores(self, submission):
        from minitrain.model.attention.grouped_query import attention_naive

        answers = self.answers(submission)
        self.keeps_products(answers)
        words = "a batched product of two activations, is kept: repeat it"
        (by_part, _) = submission.run(probes.asked, [PART_OF_A_NAME])
        if by_part[PART_OF_A_NAME]:
            words += '. "mm" is a part of its name and of many others: compare whole names'
        if all(answers.values()):
            words = "as all operations, is kept: repeat the batched products"
        for name in ("bmm.default", "baddbmm.default"):
            expect.that(not answers[name], f"{name}, {words}")
        saved, _ = self.measured(answers, attention_naive)
        least, _ = block_run(lambda op: op.overloadpacket.__name__ == "mm", attention_naive)
        expect.that(
            saved <= least,
            f"with attention written out a block saves {saved} bytes, {least} with the products of weights alone: "
            f"keep fewer, {', '.join(self.needless(answers)[:6])} cost next to nothing to repeat",
        )


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


def saved_by(inside):
    return sum(saved for _, saved, _ in inside)


def left_by(inside, mode):
    return inside[0][0] if mode == "full" else saved_by(inside)


def peak_of(plan, layers, moment=saved_by, left=left_by):
    """The peak, or that of a mistake: other bytes at a segment's backward, or left behind it."""
    held = peak = 0
    for start, stop, mode in plan:
        inside = layers[start:stop]
        peak = max(peak, held + moment(inside))
        held += left(inside, mode)
    return peak


def held_after(plan, layers):
    return sum(left_by(layers[start:stop], mode) for start, stop, mode in plan)


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
    return [(i := randint(1, 8), i + randint(0, 29), randint(1, 19)) for _ in range(count)]


def some_plan(count):
    """Any segments, repeated or kept, of one layer or several."""
    ends = [stop for stop in range(1, count) if torch.rand(()) < 0.5]
    modes = ["full" if torch.rand(()) < 0.6 else "none" for _ in range(len(ends) + 1)]
    return list(zip([0, *ends], [*ends, count], modes))


def mixed_plans():
    """(plan, layers)"""
    plans = [
        [(0, 2, "full"), (2, 3, "none"), (3, 6, "full")],
        [(0, 1, "none"), (1, 5, "full"), (5, 6, "none")],
        [(0, 4, "full"), (4, 5, "full"), (5, 6, "none")],
        [(0, 3, "none"), (3, 6, "full")],
    ]
    drawn = [(some_plan(count), some_layers(count)) for count in (2, 5, 7, 8, 9, 12)]
    return [*((plan, some_layers(6)) for plan in plans), *drawn]


def fits(mistaken, wrong):
    """Whether a mistake gives all that is wrong."""
    return all(expect.difference(got, float(mistaken(*given))) is None for given, got, _ in wrong)


def moments(plan, layers):
    return [saved_by(layers[start:stop]) for start, stop, _ in plan]


def behind(plan, layers, modes):
    """The peak where what a segment of these modes leaves counts before its own backward."""
    ends = [held_after(plan[: n + (mode in modes)], layers) for n, (*_, mode) in enumerate(plan)]
    return max(end + moment for end, moment in zip(ends, moments(plan, layers)))


PEAKS = [
    ("that is what is held at the last segment's backward: the peak is the largest of such sums, one for each segment "
     "with all that its layers save", lambda plan, layers: held_after(plan[:-1], layers) + moments(plan, layers)[-1]),
    ("that is what forward leaves behind: while a repeated segment's own backward runs, all that its layers save is "
     "there for a moment", held_after),
    *(("a segment's `saved_bytes` include its input: look for the peak before `held` grows",
       lambda plan, layers, modes=modes: behind(plan, layers, modes)) for modes in (("none", "full"), ("full",))),
    ("that is everything left behind plus the largest segment: at a segment's backward the ones behind it are gone",
     lambda plan, layers: held_after(plan, layers) + max(moments(plan, layers))),
    ("that is what all but the last leave plus the largest segment: what lies behind a segment is gone at its backward, "
     "and what lies before it is there", lambda plan, layers: held_after(plan[:-1], layers) + max(moments(plan, layers))),
    ("that is the largest segment alone: those before it hold their inputs", lambda plan, layers: max(moments(plan, layers))),
    ("a repeated segment holds its first input only, not one a layer",
     lambda plan, layers: peak_of(plan, layers, left=lambda inside, mode: sum(i for i, _, _ in inside) if mode == "full" else saved_by(inside))),
    ("a kept segment leaves all that its layers save, not the first one's alone",
     lambda plan, layers: peak_of(plan, layers, left=lambda inside, mode: inside[0][mode != "full"])),
    ("at a segment's backward all that its layers save is there, not the largest one's alone",
     lambda plan, layers: peak_of(plan, layers, moment=lambda inside: max(saved for _, saved, _ in inside))),
    ("that is as if a repeated segment ran back layer by layer: it runs again as a whole, and all that its layers save is there",
     lambda plan, layers: layer_by_layer(plan, layers)),
    ("that is with the input of a repeated segment's last layer: to run again it needs that of its first",
     lambda plan, layers: peak_of(plan, layers, left=lambda inside, mode: inside[-1][0] if mode == "full" else saved_by(inside))),
    ("that is as if every layer were kept", lambda plan, layers: saved_by(layers)),
    ("that is as if every layer were like the first: each has its own bytes", lambda plan, layers: peak_of(plan, layers[:1] * len(layers))),
    ("that is as if every layer were like the last: each has its own bytes", lambda plan, layers: peak_of(plan, layers[-1:] * len(layers))),
    ("that is as if a segment's layers were all like its first: each has its own bytes",
     lambda plan, layers: peak_of(plan, [layers[start] for start, stop, _ in plan for _ in range(start, stop)])),
]  # fmt: skip


def layer_by_layer(plan, layers):
    """The peak where a repeated segment has its inputs, and what one layer saves beside its own."""
    held = peak = 0
    for start, stop, mode in plan:
        inside, own = layers[start:stop], saved_by(layers[start:stop])
        if mode == "full":
            own = sum(i for i, _, _ in inside) + max(saved - i for i, saved, _ in inside)
        peak, held = max(peak, held + own), held + left_by(inside, mode)
    return peak


class TestPlanPeak(Exercise):
    """The peak of a plan"""

    name = "plan_peak"
    reference = "minitrain.memory.placement:plan_peak"
    hidden = PLACEMENT

    def equal(self, submission, calls):
        found = submission.run(probes.peaks_by, calls)
        expect.left_alone(found, calls, ["plan", "layers"])
        wrong = self.wrong(calls, found)
        words = self.causes(wrong) if wrong else []
        if len(words) > 1:  # plans of which two mistakes make different peaks
            with suppress(CheckFailed):  # whatever else is wrong there is not this check's
                more = mixed_plans()
                wrong_too = self.wrong(more, submission.run(probes.peaks_by, more))
                words = self.causes(wrong + wrong_too) or words
        for (plan, layers), got, want in wrong:
            hints = [(got, "; or ".join(words))] if words else []
            what = f"the peak of {plan} for layers (input, saved, cost) {layers}"
            expect.equal(got, want, what=what, hints=hints)

    @staticmethod
    def wrong(calls, found):
        """(what was given, what came, the peak) where they differ."""
        peaks = [float(peak_of(*given)) for given in calls]
        each = [(given, call["out"], want) for given, call, want in zip(calls, found, peaks)]
        return [case for case in each if expect.difference(*case[1:]) is not None]

    @staticmethod
    def causes(wrong):
        return list(dict.fromkeys(words for words, mistaken in PEAKS if fits(mistaken, wrong)))

    @check(points=4, title="uniform plans: all kept, each repeated, segments of two; one layer")
    def test_uniform(self, submission):
        layers = [(2, 30, 1)] * 6
        plans = [
            [(i, i + 1, "none") for i in range(6)],
            [(i, i + 1, "full") for i in range(6)],
            [(i, i + 2, "full") for i in range(0, 6, 2)],
            [(0, 6, "none")],
        ]
        one = [([(0, 1, mode)], [(3, 7, 1)]) for mode in ("none", "full")]
        self.equal(submission, [*((plan, layers) for plan in plans), *one])

    @check(points=4, title="mixed plans of unequal layers")
    def test_mixed(self, submission):
        self.equal(submission, mixed_plans())


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
        layers = [(found["full"], found["none"], 1)] * 126
        peaks = {}
        for k in range(1, 127):
            peaks[k] = peak_of([(i, min(i + k, 126), "full") for i in range(0, 126, k)], layers)
        words = "try every length from 1 to 126: plan_peak(cut(126, k), [layer] * 126)"
        if value in peaks and peaks[value] < 1.01 * min(peaks.values()):
            words = f"close: {peaks[value] / min(peaks.values()) - 1:.2%} more than the lowest"
        if value in (11, 12):
            words = "that is √126, best where a layer saves its input only: a block saves A/I times as much"
        expect.that(
            peaks.get(value) == min(peaks.values()),
            f"got {value!r}, which has not the lowest peak: {words}",
        )


def flaw_of(plan, layers):
    """What a plan is not: triples that run each layer once, in order; "" for one that does."""
    for segment in plan:
        start, stop, mode = segment if len(segment) == 3 else (None, None, None)
        if not (isinstance(start, int) and isinstance(stop, int) and mode in ("none", "full")):
            return f'a segment of the plan is {segment}: Segment(start, stop, "none" or "full") is asked for'
    covered = [i for start, stop, _ in plan for i in range(start, stop)]
    if covered == list(range(len(layers))):
        return ""
    flaw = f"a plan of {len(plan)} segments, {first_of(plan)}, runs layers {first_of(covered)} of {len(layers)}: each once, in order"
    if len(plan) > len(set(covered)):
        flaw += ". Is one list shared by several plans? `[*plan, segment]` makes a new one, plan.append changes all"
    return flaw


def first_of(items, most=8):
    """A long list's beginning."""
    return str(items) if len(items) <= most else f"{str(items[:most])[:-1]}, …]"


def told(layers):
    is_long = len(layers) > 8 and len(set(layers)) == 1
    given = f"{layers[0]}, {len(layers)} times" if is_long else layers
    return f"layers (input, saved, cost) {given}"


EQUAL = ([(1, 21, 10)] * 24, 24 * 21 // 2)  # layers, and a budget of half of what they save


def only_one(count):
    """(layers, budget): `count` layers must be one segment, or the last one finds no room."""
    size = randint(2, 9)
    layers = [(size, size, randint(1, 9)) for _ in range(count)]
    return [*layers, (size, count * size, 1)], (count + 1) * size


WEIGH = (
    "Behind every unbeaten partial plan weigh every next segment, repeated ones of any length and kept single layers, "
    "by the layers' cost"
)
KEPT = "This call alone is right: nothing may be kept from one call to the next"
EXACTLY = (
    "With a byte more it comes: what needs exactly the budget fits, what needs more is dropped"
)
REFUSALS = [  # which calls are not refused
    (EXACTLY, lambda layers, budget: any(peak_of(p, layers) < budget for p in every_plan(0, len(layers)))),
    *(("It is as if every layer were like the first: each has its own bytes",
       lambda layers, budget, like=like: any(peak_of(p, like(layers)) <= budget for p in every_plan(0, len(layers))))
      for like in (lambda layers: layers[:1] * len(layers), lambda layers: [(i, layers[0][1], c) for i, _, c in layers])),
    *(("It is as if the layers of a segment were limited: repeated ones may have any number",
       lambda layers, budget, longest=longest: any(peak_of(p, layers) <= budget and all(b - a <= longest(layers) for a, b, _ in p)
                                                   for p in every_plan(0, len(layers))))
      for longest in (lambda layers: 1, lambda layers: max(1, isqrt(len(layers))), lambda layers: 2, lambda layers: 3)),
]  # fmt: skip


def repeated_in(plan):
    return sum(stop - start for start, stop, mode in plan if mode == "full")


DEARER = [  # what a plan has least of, instead of the cost
    ("Each time it repeats the fewest layers there can be: weigh them by the layers' cost", lambda plan, layers: repeated_in(plan)),
    ("Each time it leaves the fewest bytes behind: at the end take the cheapest of the plans that fit", held_after),
    ("Each time it has the lowest peak: of all plans that fit take the cheapest", peak_of),
    ("Each time it has the fewest segments: of all plans that fit take the cheapest", lambda plan, layers: len(plan)),
    *((f"Each time it is the cheapest as if a repeated segment cost what its {word} layer does: it costs all that its layers do together",
       lambda plan, layers, at=at: sum(layers[stop - 1 if at else start][2] for start, stop, mode in plan if mode == "full"))
      for at, word in enumerate(("first", "last"))),
]  # fmt: skip


class TestOptimalPlan(Exercise):
    """The best plan for a budget"""

    name = "optimal_plan"
    reference = "minitrain.memory.placement:optimal_plan"
    hidden = PLACEMENT

    def plans(self, submission, calls, **limit):
        """Of calls (layers, budget) that a plan fits: what came for each, plans within the budget."""
        found = submission.run(probes.planned_by, calls, **limit)
        expect.left_alone(found, calls, ["layers"])
        refused = [call["out"] is None for call in found]
        for (layers, budget), call in zip(calls, found):
            flaw = self.flaw(layers, budget, call["out"])
            if flaw:
                (alone,) = submission.run(probes.planned_by, [(layers, budget)], **limit)
                if not self.flaw(layers, budget, alone["out"]):
                    flaw += f". {KEPT}"
                elif call["out"] is None:
                    flaw += f". {self.why_refused(submission, layers, budget, calls, refused)}"
                raise CheckFailed(flaw)
        return [(*given, call["out"]) for given, call in zip(calls, found)]

    @staticmethod
    def flaw(layers, budget, plan):
        if plan is not None:
            flaw = flaw_of(plan, layers)
            peak = 0 if flaw else peak_of(plan, layers)
            if peak <= budget:
                return flaw
            at = max(range(len(plan)), key=lambda n: peak_of(plan[: n + 1], layers) == peak)
            return (
                f"{told(layers)}: the plan {plan} peaks at {peak} bytes, the budget is {budget}: at the backward of {plan[at]} "
                f"its layers need room for all that they save, besides the {held_after(plan[:at], layers)} held before it"
            )
        if len(layers) >= LONG:
            return f"{told(layers)}: a plan fits a budget of {budget} bytes, and it was refused"
        least = min(every_plan(0, len(layers)), key=lambda plan: peak_of(plan, layers))
        peak = peak_of(least, layers)
        return f"{told(layers)}: {least} peaks at {peak} bytes, and it was refused for a budget of {budget}"

    @staticmethod
    def why_refused(submission, layers, budget, calls, refused):
        """A cause, where it gives every refusal, and no other."""
        is_short = max(len(layers) for layers, _ in calls) < LONG
        known = [w for w, able in REFUSALS if is_short and refused == [not able(*c) for c in calls]]
        (more,) = submission.run(probes.planned_by, [(layers, budget + 1)])
        if known and (known[0] != EXACTLY or more["out"] is not None):
            return known[0]
        return (
            "Go on from every unbeaten partial plan, to every `stop` that fits: a dearer one that holds less may be the only "
            "one behind which the rest fits"
        )

    def long_plans(self, submission, calls):
        words = f"{len(calls[0][0])} layers took too long: keep only `unbeaten(best[i])`, or the plans double with each layer"
        with expect.because({("timeout", "memory"): words}):
            return self.plans(submission, calls, timeout=MOMENT)

    def budgets(self, layers):
        """From what just fits to what holds everything."""
        peaks = sorted({peak_of(plan, layers) for plan in every_plan(0, len(layers))})
        return [peaks[0], peaks[len(peaks) // 4], peaks[len(peaks) // 2], peaks[-1]]

    def calls(self, counts):
        chains = [some_layers(count) for count in counts]
        return [(layers, budget) for layers in chains for budget in self.budgets(layers)]

    @check(points=2, title="the plan fits its budget, down to the least that any plan needs")
    def test_fits(self, submission):
        calls = self.calls((3, 5, 4, 3))
        self.plans(submission, [*calls, only_one(6)])

    @check(points=4, title="no plan that fits repeats less (against every plan there is)")
    def test_cheapest(self, submission):
        fewest_is_not_cheapest = ([(1, 7, 7), (1, 2, 2), (1, 4, 4), (1, 2, 9)], 12)
        calls = [fewest_is_not_cheapest, *self.calls((1, 4, 5, 5, 4))]
        found = self.plans(submission, calls)
        fitting = [
            [p for p in every_plan(0, len(layers)) if peak_of(p, layers) <= budget]
            for layers, budget, _ in found
        ]
        words = [
            words
            for words, size in DEARER
            if all(size(plan, layers) == min(size(p, layers) for p in plans)
                   for (layers, _, plan), plans in zip(found, fitting))
        ]  # fmt: skip
        for (layers, budget, plan), plans in zip(found, fitting):
            best = min(plans, key=lambda p: cost_of(p, layers))
            if cost_of(plan, layers) > cost_of(best, layers):
                (alone,) = submission.run(probes.planned_by, [(layers, budget)])
                is_best = alone["out"] and cost_of(alone["out"], layers) == cost_of(best, layers)
                words = [KEPT] if is_best else words
            self.repeats_no_more(layers, budget, plan, best, *words[:1])
        layers = [(1, 1 + randint(0, 5), randint(1, 4)) for _ in range(LONG)]
        budget = sum(saved for _, saved, _ in layers) // 2
        ((*_, plan),) = self.long_plans(submission, [(layers, budget)])
        best = optimal_plan([Layer(*layer) for layer in layers], budget)
        best = [(segment.start, segment.stop, segment.mode) for segment in best]
        self.repeats_no_more(layers, budget, plan, best)

    @staticmethod
    def repeats_no_more(layers, budget, plan, best, words=WEIGH):
        expect.that(
            cost_of(plan, layers) <= cost_of(best, layers),
            f"{told(layers)}, budget {budget}: the plan {plan} repeats {cost_of(plan, layers)}, {best} only "
            f"{cost_of(best, layers)}. {words}",
        )

    @check(points=3, title="24 layers in a moment: beaten partial plans are dropped")
    def test_many(self, submission):
        (layers, _, plan), _ = self.long_plans(submission, [EQUAL, only_one(23)])
        expect.that(
            cost_of(plan, layers) == 130,
            f"the plan repeats {cost_of(plan, layers)}, 130 are enough. {WEIGH}",
        )

    @check(points=1, title="a budget that nothing fits: ValueError")
    def test_refuses(self, submission):
        chains = [some_layers(count) for count in (2, 4, 5)]
        calls = [
            ([(2, 10, 1)] * 3, 9),
            *((layers, self.budgets(layers)[0] - 1) for layers in chains),
        ]
        for (layers, budget), call in zip(calls, submission.run(probes.planned_by, calls)):
            plan = call["out"]
            is_plan = plan is not None and plan and not flaw_of(plan, layers)
            peak = f", which peaks at {peak_of(plan, layers)}" if is_plan else ""
            expect.that(
                plan is None,
                f"no plan fits {budget} bytes for {told(layers)}, and this came: {plan}{peak}. Raise ValueError",
            )


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


def out_of_reach(length, window=None):
    """(L, L) bool: keys after the query, or further back than the window."""
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return (distance < 0) | (distance >= (window or length))


def full_attention(q, k, v, lse=None, window=None):
    """(output, log-sum-exp, weights), all keys at once."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    scores = scores.masked_fill(out_of_reach(q.shape[2], window), -torch.inf)
    lse = scores.logsumexp(dim=-1) if lse is None else lse
    weights = (scores - lse[..., None]).exp()
    return weights @ v, lse, weights


def drawn(batch, heads, length, size, count=3, dtype=torch.float64):
    return [torch.randn(batch, heads, length, size, dtype=dtype) for _ in range(count)]


def in_heads(calls):
    """With the tensors as the probe is given them, (B, L, H, …)."""
    return [(*(z.transpose(1, 2).contiguous() for z in call[:-1]), call[-1]) for call in calls]


IN_FLOAT32 = "float32 is at work, and q is float64: torch.zeros, empty and full make float32 where they are not given q's dtype"
BEFORE = "shrink and add, do not overwrite; and a tile whose mask is None is one to read as a whole"
WINDOWED = "mask.tile says what may be read, here less than all before"

# B, H, L, C, and a window; the lengths around those of one tile and two
SHAPES = [
    ((2, 3, 5, 4), None),
    ((1, 2, 300, 6), None),
    ((2, 1, 129, 1), None),
    ((1, 2, 256, 4), None),
    ((1, 1, 400, 2), None),
    ((2, 2, 300, 4), 40),
    ((1, 1, 400, 2), 200),
]
ALONE = [((1, 1, 1, 3), None), ((1, 2, 30, 2), 1)]  # a row reads one key: its weight is 1
WEIGHED = (768, 1536)  # tokens: tiles of 128 are a small part of either square
BRIEFLY = (384, 768)  # where the largest tensor alone is looked at


def in_tiles(submission, backward, lengths=WEIGHED):
    """What `probes.weighed` found of both lengths: no ready-made kernel, no tensor that grows with L."""
    one, two = lengths
    short, long = submission.run(probes.weighed, lengths, backward)
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
    return short, long


def holds_no_square(submission, backward):
    """Twice the length: tiles stay as they are, and the peak grows like q."""
    one, two = WEIGHED
    short, long = in_tiles(submission, backward)
    expect.that(
        long["peak"] < 2.6 * short["peak"],
        f"the peak is {short['peak']} bytes for {one} tokens and {long['peak']} for {two}: it grows as L², though no "
        "tensor does. Do not collect the tiles: each is gone when the next one comes",
    )


def makes_once(submission, backward, products):
    """64 tokens are a single tile, of which nothing is made a second time."""
    needed = "scores, dP, dV, dQ and dK" if backward else "the scores, and the weights times v"
    (tile,) = submission.run(probes.flops_of, [(64, 8, None)], backward)
    made = tile / (2 * 8 * 64**2)
    expect.that(
        made < products + 0.5,
        f"one tile of 64 tokens takes {made:.1f} products, {products} are enough, each made once: {needed}",
    )


def reads_what_it_may(submission, backward, products):
    """Of 1024 tokens a half is readable, with a window a twelfth."""
    size, length, window = 8, 1024, 80
    calls = [(length, size, None), (length, size, window)]
    causal, near = submission.run(probes.flops_of, calls, backward)
    full = products * 2 * size * length**2
    expect.that(
        causal < 0.75 * full,
        f"{causal} FLOPs for {length} tokens, {full} read every key: go through mask.keys(rows, L) only",
    )
    expect.that(
        near < 0.4 * full,
        f"{near} FLOPs for {length} tokens with a window of {window}, {full} read every key: mask.keys(rows, L) begins "
        "later, too",
    )


class TestTiledForward(Exercise):
    """Tiled attention, forward"""

    name = "tiled_forward"
    reference = "minitrain.model.attention.tiled:tiled_forward"
    hidden = TILED

    def attended(self, submission, calls):
        """(q, k, v, window, out, lse) of each call."""
        given = in_heads(calls)
        found = submission.run(probes.attended, given)
        for call in found:
            is_pair = isinstance(call["out"], (tuple, list)) and len(call["out"]) == 2
            expect.that(is_pair, "return two tensors: out, lse")
        expect.left_alone(found, calls, ["q", "k", "v"])
        return [(*call, *made["out"]) for call, made in zip(calls, found)]

    @check(points=3, title="in tiles, the output is softmax attention's for any length and mask")
    def test_output(self, submission):
        in_tiles(submission, backward=False, lengths=BRIEFLY)
        makes_once(submission, backward=False, products=2)
        calls = [(*drawn(*shape), window) for shape, window in [*SHAPES, *ALONE]]
        single = tuple(drawn(1, 2, 150, 8, dtype=torch.float32))
        for q, k, v, window, out, _ in self.attended(submission, [*calls, (*single, None)]):
            self.is_output(out, q, k, v, window)

    def is_output(self, out, q, k, v, window):
        want, _, weights = full_attention(q, k, v, window=window)
        self.has_no_nan(out, window)
        what = f"the output for q of {tuple(q.shape)}" + (f", window {window}" if window else "")
        hints = [(mistaken, words) for words, mistaken, _ in self.mistakes(q, k, v, window)]
        hints.append((want / weights.amax(-1, keepdim=True), "`total` was never divided by `mass`"))
        if expect.difference(out, want, 1e-5) is None and q.dtype == torch.float64:
            hints.append((out, IN_FLOAT32))
        expect.equal(out, want, what=what, hints=hints)

    @staticmethod
    def has_no_nan(out, window):
        if not (window and isinstance(out, torch.Tensor) and out.dim() == 4 and out.isnan().any()):
            return
        rows = out.isnan().any(-1).any(0).any(0)
        words = f"row r reads keys r - {window - 1} to r"
        if rows.equal(
            torch.arange(len(rows)) >= window + 127
        ):  # all keys lie behind the first tile
            words = (
                "where a row may read nothing of the first tile, top and new are both -inf, and -inf less -inf is NaN. "
                "mask.keys(rows, L) begins where every row reads a key of its first tile"
            )
        first = rows.int().argmax()
        raise CheckFailed(
            f"with a window of {window} there is a NaN, first in row {first}: {words}"
        )

    @staticmethod
    def mistakes(q, k, v, window):
        """(words, the output, the log-sum-exp)"""
        scores, root = q @ k.mT / q.shape[-1] ** 0.5, q.shape[-1] ** 0.5
        lse, place = full_attention(q, k, v, window=window)[1], torch.arange(q.shape[2])
        behind = place >= (place[:, None] // 128 + 1) * 128  # the tiles that no row reads
        zeroed = scores.tril().masked_fill(behind, -torch.inf)
        of_scores = {
            "every token reads the ones after it too: use mask.tile": scores,
            "what may not be read must have a score of -inf, not 0": zeroed,
            f"only the last tile of keys counts: {BEFORE}": last_tile(q, k),
        }
        return [
            ("that is without the division by √C", *full_attention(q * root, k, v, window=window)[:2]),
            (f"that is without the window: {WINDOWED}", *full_attention(q, k, v)[:2]),
            ("a tile was summed under a smaller maximum than the next: shrink `total` by exp(top - new), as `mass`",
             never_shrunk(q, k, v), lse),
            *((words, z.softmax(-1) @ v, z.logsumexp(-1)) for words, z in of_scores.items()),
        ]  # fmt: skip

    @check(
        points=1,
        title="the log-sum-exp of each row; scores of thousands overflow neither it nor the output",
    )
    def test_lse(self, submission):
        q, k, v = drawn(1, 2, 300, 4)
        large = 30 + 30 * torch.rand(1, 2, 300, 4, dtype=torch.float64)
        calls = [(q, k, v, None), (large, large, v, None), (-large, large, v, None), (q, k, v, 50)]
        for q, k, v, window, out, got in self.attended(submission, calls):
            _, lse, _ = full_attention(q, k, v, window=window)
            unread = out_of_reach(q.shape[2], window)
            top = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(unread, -torch.inf).amax(-1)
            self.has_no_nan(out, window)
            finite = all(isinstance(z, torch.Tensor) and z.isfinite().all() for z in (out, got))
            words = ""
            if lse.abs().max() > 700:
                words = ": take the greatest score off before exp, each row its own"
            if lse.max() < -700:
                words += ": here all are negative, so it begins at -inf, not at 0"
            expect.that(
                finite, f"with scores around {lse.mean():.0f} the result is not finite{words}"
            )
            hints = [
                (lse.exp(), "that is the sum itself: its logarithm is asked for"),
                (
                    lse - top,
                    "that is log(mass) alone: add `top`, which was taken off each score before exp",
                ),
                (top, "that is `top` alone: add log(mass)"),
                *((mistaken, words) for words, _, mistaken in self.mistakes(q, k, v, window)),
            ]
            if isinstance(got, torch.Tensor) and got.dtype == torch.float32:
                hints.append((got, IN_FLOAT32))
            expect.equal(got, lse, what="the log-sum-exp", hints=hints)
            self.is_output(out, q, k, v, window)

    @check(
        points=4,
        title="no L x L tensor, and a peak that grows with L: largest tensor and peak bytes at 768 and 1536",
    )
    def test_memory(self, submission):
        holds_no_square(submission, backward=False)

    @check(points=2, title="two products a tile; what no query may read costs nothing")
    def test_flops(self, submission):
        makes_once(submission, backward=False, products=2)
        reads_what_it_may(submission, backward=False, products=2)


def never_shrunk(q, k, v, columns=128):
    """What comes out where `mass` is shrunk and `total` is not."""
    length, short = q.shape[2], -q.shape[2] % columns
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(out_of_reach(length), -torch.inf)
    padded = nn.functional.pad(scores, (0, short), value=-torch.inf)
    tops = padded.unflatten(-1, (-1, columns)).amax(-1).cummax(-1).values  # (B, H, L, tiles)
    weights = (scores - tops.repeat_interleave(columns, dim=-1)[..., :length]).exp()
    mass = (scores - tops[..., -1:]).exp().sum(-1, keepdim=True)
    return weights @ v / mass


def last_tile(q, k, columns=128):
    """The scores that are left where each tile of keys overwrites the one before it."""
    length = q.shape[2]
    row, column = torch.arange(length)[:, None], torch.arange(length)
    read = (column <= row) & (column >= row // columns * columns)
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~read, -torch.inf)


ALONG_KEYS = {
    (
        "lse[:, :, None, rows]",
        "delta[:, :, None, rows]",
    ): "lse and delta are one number a query, and queries are the "
    "tile's rows: lse[:, :, rows, None], delta[:, :, rows, None]",
}


AS_GIVEN = "weights are exp(scores - lse), take lse and delta as they are given"
TILES = "that is a softmax of each tile: weights are exp(scores - lse), lse being the whole row's"
OVERFLOWS = (
    ": exp(score - lse) of a key that may not be read can be inf, and inf * 0 is NaN. Make it 0 by masked_fill, or its "
    "score -inf before exp"
)


def softmax_of_tiles(unread, hides, columns=128):
    """Weights that a softmax makes of each tile; what is not read is left out before, or after."""

    def weigh(scores, _):
        scores = scores.masked_fill(unread, -torch.inf) if hides else scores
        tiles = [tile.softmax(-1).nan_to_num(0) for tile in scores.split(columns, -1)]
        return torch.cat(tiles, -1).masked_fill(unread, 0)

    return weigh


class TestTiledBackward(Exercise):
    """Tiled attention, backward"""

    name = "tiled_backward"
    reference = "minitrain.model.attention.tiled:tiled_backward"
    hidden = TILED

    def gradients(self, q, k, v, d_out, lse, delta, window=None, weigh=None):
        """dq, dk, dv by the full softmax, or by the weights that `weigh` makes of scores and lse."""
        scale = q.shape[-1] ** -0.5
        weights = full_attention(q, k, v, lse, window)[2]
        if weigh:
            weights = weigh(q @ k.mT * scale, lse[..., None])
        off = delta if delta.dim() == 4 else delta[..., None]
        d_scores = weights * (d_out @ v.mT - off)
        return d_scores @ k * scale, d_scores.mT @ q * scale, weights.mT @ d_out

    def pulled_back(self, submission, calls):
        """(q, k, v, d_out, lse, delta, window, the three gradients) of each call."""
        with expect.because(ALONG_KEYS):
            found = submission.run(probes.attended, in_heads(calls))
        for call in found:
            is_triple = isinstance(call["out"], (tuple, list)) and len(call["out"]) == 3
            expect.that(is_triple, "return three tensors: dq, dk, dv")
        expect.left_alone(found, calls, ["q", "k", "v", "d_out", "lse", "delta"])
        return [(*call, made["out"]) for call, made in zip(calls, found)]

    def some_calls(self):
        """With the lse and delta of forward; the last ones in float32, and of scores so large that
        exp(score - lse) overflows where a key may not be read."""
        for shape, window in SHAPES:
            yield self.some_call(*drawn(*shape, count=4), window)
        yield self.some_call(*drawn(1, 2, 150, 8, count=4, dtype=torch.float32), None)
        q, *rest = drawn(1, 2, 140, 4, count=4)
        yield self.some_call(900 * q, *rest, None)

    def some_call(self, q, k, v, d_out, window):
        out, lse, _ = full_attention(q, k, v, window=window)
        return q, k, v, d_out, lse, (d_out * out).sum(-1), window

    @check(points=3, title="in tiles, dq, dk and dv equal autograd's through the full softmax")
    def test_gradients(self, submission):
        try:
            in_tiles(submission, backward=True, lengths=BRIEFLY)
        except CheckFailed as failure:
            if "keys at once" in str(failure):  # or somebody else's tiles, larger than these
                makes_once(submission, backward=True, products=5)
            raise
        for *given, window, got in self.pulled_back(submission, list(self.some_calls())):
            q, k, v, d_out, lse, _ = given
            leaves = [z.clone().requires_grad_() for z in (q, k, v)]
            want = torch.autograd.grad(full_attention(*leaves, window=window)[0], leaves, d_out)
            for name, mine, theirs in zip(("dq", "dk", "dv"), got, want):
                expect.that(
                    not (isinstance(mine, torch.Tensor) and mine.isnan().any()),
                    f"{name} has a NaN" + (OVERFLOWS if lse.abs().max() > 100 else ""),
                )
                expect.equal(
                    mine,
                    theirs,
                    what=f"{name} for q of {tuple(q.shape)}" + (f", window {window}" if window else ""),
                    hints=self.hints(name, theirs, given, window),
                )  # fmt: skip

    def hints(self, name, want, given, window):
        root, part = given[0].shape[-1] ** 0.5, ("dq", "dk", "dv").index(name)
        *others, delta = given
        made = lambda *arguments, **ways: self.gradients(*arguments, **ways)[part]  # noqa: E731
        yield (
            want * root,
            "that is √C too large: the scores were divided by √C, so is this gradient",
        )
        yield want / root, "that is √C too small: it was divided twice"
        unread = out_of_reach(given[0].shape[2], window)
        yield (
            made(*given, weigh=lambda scores, lse: (scores - lse).exp()),
            "a key that may not be read has a weight too: make it 0, by mask.tile",
        )
        for hides in (False, True):
            yield made(*given, weigh=softmax_of_tiles(unread, hides)), TILES
        yield made(*given), f"that is without the window: {WINDOWED}"
        yield (
            made(*others, 0 * delta, window),
            "`delta` is missing: softmax's derivative takes it off the whole row",
        )
        q, k, v, d_out, lse = others
        weighed = full_attention(q, k, v, lse, window)[2] * (d_out @ v.mT)
        sums = [part.sum(-1, keepdim=True).expand_as(part) for part in weighed.split(128, -1)]
        yield (
            made(*others, torch.cat(sums, -1), window),
            "that is with a delta of each tile's keys alone: it is the whole row's, take it as it is given",
        )
        yield last_rows(name, *given), "only the last tile is in it: add up with +="
        if name != "dv" and window is None:
            yield (
                divided_again(name, *given),
                (
                    "the sum so far was divided by √C again at each tile: divide each tile's part, or the sum once, at its end"
                ),
            )

    @check(
        points=2,
        title="the saved lse and delta are used, not made again: they may count other keys",
    )
    def test_saved(self, submission):
        usual = self.some_call(*drawn(1, 2, 200, 4, count=4), None)
        q, k, v, d_out, here, *_ = usual
        lse, delta = here + 0.7, torch.randn(1, 2, 200, dtype=torch.float64)
        (*_, once), (*given, _, got) = self.pulled_back(
            submission, [usual, (q, k, v, d_out, lse, delta, None)]
        )
        of_lse = (full_attention(q, k, v, lse)[2] * (d_out @ v.mT)).sum(-1)
        own = [
            ((here, delta), "as if lse was made again, of these keys alone: take it as it is given"),
            ((lse, of_lse), "as if delta was made again, of these keys alone: take it as it is given"),
            ((here, usual[5]), "as if lse and delta were made again, of these keys alone: take them as they are given"),
        ]  # fmt: skip
        right, want = self.gradients(*usual[:-1]), self.gradients(*given)
        for n, name in enumerate(("dq", "dk", "dv")):
            above = "as above: with the lse and delta of these very keys a gradient is wrong, too"
            is_wrong_too = any(expect.difference(*pair) is not None for pair in zip(once, right))
            hints = [(self.gradients(q, k, v, d_out, *pair)[n], words) for pair, words in own]
            expect.equal(
                got[n],
                want[n],
                what=f"{name} with an lse and a delta that count keys of another rank",
                hints=[(got[n], above)] if is_wrong_too else [*hints, (got[n], AS_GIVEN)],
            )

    @check(
        points=3,
        title="no L x L tensor, and a peak that grows with L: largest tensor and peak bytes at 768 and 1536",
    )
    def test_memory(self, submission):
        holds_no_square(submission, backward=True)

    @check(points=2, title="five products a tile; what no query may read costs nothing")
    def test_flops(self, submission):
        makes_once(submission, backward=True, products=5)
        reads_what_it_may(submission, backward=True, products=5)


def divided_again(name, q, k, v, d_out, lse, delta, size=128):
    """What dq or dk is where a tile's sum is divided whenever a part is added."""
    root, length = q.shape[-1] ** 0.5, q.shape[2]
    weights = full_attention(q, k, v, lse)[2]
    d_scores = weights * (d_out @ v.mT - delta[..., None])
    tile = torch.arange(length) // size
    total = torch.zeros_like(q)
    for number in range(tile[-1] + 1):
        if name == "dq":
            part = d_scores * (tile == number) @ k
            is_met = tile >= number
        else:
            part = (d_scores * (tile == number)[:, None]).mT @ q
            is_met = tile <= number
        total = torch.where(is_met[:, None], (total + part) / root, total)
    return total


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
