"""The checks of lab e14: three forms of one layer, a latent cache, a matrix step, a small memory."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import cause, variant
from minitrain.optimizers.muon import CONVERGENT, TUNED

from .probes import e14_architectures as probes

LAB = "e14_architectures"
SIZES = {
    "cpu": {
        "width": 64, "batch": 32, "steps": 200, "tested": 128,
        "recall": {"facts": 4, "asked": 12, "words": 12, "names": 8},
        "stretched": [[1, 1], [4, 1], [16, 1], [1, 2]], "lengths": [64, 128, 256, 512], "decoded": [192, 4096], "answers": 24,
    },
    "test": {
        "width": 16, "batch": 4, "steps": 4, "tested": 64, "lengths": [64, 128],
        "decoded": [32, 64], "answers": 4,
    },
}  # fmt: skip
REVEALS = {
    "hybrid_share": Reveal(
        "computed",
        "one layer in four keeps a cache; the others' states do not grow",
        formula=lambda layers, kept: kept / layers,
    ),
    "loop_over_chunks": Reveal("measured", "bytes kept for backward at the longest length"),
    "smallest_value": Reveal("measured", "after five steps of the tuned polynomial"),
}
ROOM = "minitrain/model/architectures/"
FILES = tuple(
    f"{ROOM}{name}.py" for name in ("linear_attention", "ssd", "delta", "latent", "recall")
)
MUON = ("minitrain/optimizers/muon.py",)
NAMES = ["q", "k", "v", "state", "size"]


def drawn(kind, length, keys=None, values=None, dtype=torch.float64, shared=False):
    """q, k, v and the gates of this kind; keys of length 1."""
    keys, values = keys or random.randint(2, 6), values or random.randint(2, 6)
    rows, heads = random.randint(1, 2), random.randint(2, 3)
    q, k = (
        F.normalize(torch.randn(rows, 1 if shared else heads, length, keys, dtype=dtype), dim=-1)
        for _ in range(2)
    )
    v = torch.randn(rows, heads, length, values, dtype=dtype)
    decay = -torch.rand(rows, heads, length, dtype=dtype) * random.choice((0.1, 1.0, 3.0))
    beta = torch.rand(rows, heads, length, dtype=dtype)
    state = torch.randn(rows, heads, keys, values, dtype=dtype)
    return (q, k, v, decay, beta)[: {"linear": 3, "ssd": 4, "delta": 5}[kind]], state


class Form:
    """What the three layers with a state are checked by."""

    hidden = FILES
    kind_of_layer = ""
    names = ("q", "k", "v", "state", "size")
    mistakes = ()

    def judge(self, submission, calls):
        """The output and the state of every call, and that calls leave all else alone."""
        found = submission.run(probes.in_turn, calls)
        expect.left_alone(found, calls, self.names)
        given = lambda f: [tuple(f(*call)) for call in calls]  # noqa: E731
        got = [tuple(call["out"]) for call in found]
        words = cause(got, self.reference, self.mistakes, given)
        for call, mine, want in zip(calls, got, given(variant(self.reference))):
            length, rest = call[0].shape[2], call[len(self.names) - 1 :]
            where = f"{length} tokens" + (f", chunks of {rest[0]}" if self.sized else "")
            where += ", from a state" if call[self.at_state] is not None else ", from no state"
            expect.that(len(mine) == 2, f"{where}: return two things, the output and the state")
            tol = 1e-4 if call[2].dtype == torch.float32 else 1e-9
            for part, a, b in zip(("output", "new state"), mine, want):
                expect.that(
                    a.dtype == b.dtype, f"{where}: the {part} is {a.dtype}, its inputs {b.dtype}"
                )
                expect.equal(
                    a, b, tol=tol, what=f"{where}: the {part}", hints=[(a, words)] if words else []
                )

    @property
    def sized(self):
        return self.names[-1] == "size"

    @property
    def at_state(self):
        return self.names.index("state")

    def call(self, length, size, from_state, **more):
        inputs, state = drawn(self.kind_of_layer, length, **more)
        call = (*inputs, state if from_state else None)
        return (*call, size) if self.sized else call

    def calls(self, from_state):
        """Tokens and chunks of any size, in any order; float32 too."""
        lengths = [1, 5, random.randint(6, 20), random.randint(20, 40), 12]
        sizes = [4, 1, 6, random.randint(3, 50), 12]
        dtypes = [torch.float64] * 4 + [torch.float32]
        calls = [
            self.call(length, size, from_state, dtype=dtype)
            for length, size, dtype in zip(lengths, sizes, dtypes)
        ]
        return random.sample(calls, len(calls))

    def judge_gradients(self, submission):
        call = self.call(9, 4, True)
        got = submission.run(probes.gradients, call)
        tensors = [name for name, a in zip(self.names, call) if isinstance(a, torch.Tensor)]
        for name, mine, want in zip(tensors, got, probes.gradients(variant(self.reference), call)):
            expect.that(mine is not None, f"no gradient reaches `{name}`: detach nothing")
            expect.equal(mine, want, tol=1e-8, what=f"the gradient of `{name}`")

    def judge_work(self, submission, call, operations):
        """Not more FLOPs than the reference, and nothing that grows with the tokens' square."""
        got = submission.run(probes.metered, [call])[0]
        want = probes.metered(variant(self.reference), [call])[0]
        length = call[0].shape[2]
        expect.that(
            got["operations"] <= operations,
            f"{got['operations']} operations for {length} tokens: that is a loop over tokens; inside a chunk all tokens "
            "go through the same few matmuls",
        )
        expect.that(
            got["largest"] <= 1.1 * want["largest"],
            f"the largest tensor has {got['largest']:,} numbers for {length} tokens, {want['largest']:,} are enough: scores "
            "are needed inside a chunk only",
        )
        expect.that(
            got["flops"] <= 1.3 * want["flops"],
            f"{got['flops']:,} FLOPs in matmuls, {want['flops']:,} are enough: what is before a chunk is read from the state",
        )


# ---- linear attention ----


class TestLinear(Form, Exercise):
    """Linear attention in chunks"""

    name = "linear_chunked"
    reference = "minitrain.model.architectures.linear_attention:linear_chunked"
    kind_of_layer = "linear"
    mistakes = (
        (("starts = ends - written", "starts = ends"), "a chunk also reads what it wrote itself: the scores have that already, so read the state from *before* it"),
        ((".tril()", ""), "tokens read those after them in their chunk: keep the lower triangle of the scores"),
        (("return out.flatten(2, 3)[:, :, :length], ends[:, :, -1]", "return out.flatten(2, 3)[:, :, :length], ends[:, :, 0]"), "the state is that after the first chunk: return the last one"),
        (("+ q @ starts", ""), "chunks do not read the state that the chunks before left"),
    )  # fmt: skip

    @check(points=4, title="equals the token loop, for any length and chunk")
    def test_values(self, submission):
        self.judge(submission, self.calls(False))

    @check(points=2, title="goes on from a state, and every gradient arrives")
    def test_state(self, submission):
        self.judge(submission, self.calls(True))
        self.judge_gradients(submission)

    @check(points=3, title="few matmuls, and scores inside a chunk only")
    def test_work(self, submission):
        inputs, state = drawn("linear", 256, keys=8, values=8)
        self.judge_work(submission, (*inputs, state, 16), operations=2 * 256)


class TestSsd(Form, Exercise):
    """The chunked scan of Mamba-2"""

    name = "ssd_chunked"
    reference = "minitrain.model.architectures.ssd:ssd_chunked"
    kind_of_layer = "ssd"
    names = ("q", "k", "v", "decay", "state", "size")
    mistakes = (
        (("since[:, :, chunk, -1:] * state", "state"), "the state does not fade from chunk to chunk: multiply it by the decay of the whole chunk"),
        (("since * (q @ torch.stack(starts, dim=2))", "(q @ torch.stack(starts, dim=2))"), "what is read from the state has not faded since the chunk began"),
        (("(k * between[..., -1, :, None]).mT @ v", "k.mT @ v"), "what a chunk writes has not faded up to the chunk's end"),
        (("decay.cumsum(dim=-1).exp()", "(decay.cumsum(dim=-1) - decay).exp()"), "a token's own decay comes before its own writing: S_t = a_t S_(t-1) + …, so since the state it counts too"),
        (("((q @ k.mT) * between)", "(q @ k.mT).tril()"), "inside a chunk nothing fades: multiply the scores by the decays between their two tokens"),
    )  # fmt: skip

    @check(points=4, title="equals the token loop, for any length and chunk")
    def test_values(self, submission):
        self.judge(submission, self.calls(False))

    @check(points=2, title="goes on from a state, and every gradient arrives")
    def test_state(self, submission):
        self.judge(submission, self.calls(True))
        self.judge_gradients(submission)

    @check(points=2, title="forgets at -inf, keeps its digits over long chunks, shares keys")
    def test_extremes(self, submission):
        forgets, long = self.call(20, 6, True), self.call(40, 40, True, dtype=torch.float32)
        forgets[3][..., [0, 7, 12]] = -torch.inf
        long[3][..., :30] = -4e4  # a difference of sums would lose all that follows
        with expect.because({"nan": "-inf - (-inf) is no number: add up masked terms"}):
            self.judge(submission, [forgets, long, self.call(11, 4, True, shared=True)])

    @check(points=3, title="few matmuls, and scores inside a chunk only")
    def test_work(self, submission):
        inputs, state = drawn("ssd", 256, keys=8, values=8)
        self.judge_work(submission, (*inputs, state, 16), operations=2 * 256)


class TestDelta(Form, Exercise):
    """The delta rule, a chunk at once"""

    name = "delta_parallel"
    reference = "minitrain.model.architectures.delta:delta_parallel"
    kind_of_layer = "delta"
    names = ("q", "k", "v", "decay", "beta", "state")
    mistakes = (
        (("u = solve(system, beta * (v - since * (k @ state)))", "u = beta * (v - since * (k @ state))"), "corrections do not see those before them in the chunk: solve the triangular system"),
        (("v - since * (k @ state)", "v - (k @ state)"), "the state has faded before a token reads it: S_0 counts times the decay since then"),
        (("system = beta * (k @ k.mT) * between", "system = (k @ k.mT) * between"), "row i of the system carries its own b_i"),
        (("((q @ k.mT) * between) @ u", "((q @ k.mT) * between) @ v"), "read and write the corrections u, not the values"),
        (("(k * to_end).mT @ u", "k.mT @ u"), "what is written fades up to the last token"),
    )  # fmt: skip

    @check(points=4, title="equals the token loop, from no state")
    def test_values(self, submission):
        self.judge(submission, self.calls(False))

    @check(points=3, title="goes on from a state, and every gradient arrives")
    def test_state(self, submission):
        self.judge(submission, self.calls(True))
        self.judge_gradients(submission)

    @check(points=4, title="as many operations for 64 tokens as for 8")
    def test_work(self, submission):
        counts = []
        for length in (8, 64):
            inputs, state = drawn("delta", length, keys=4, values=4)
            counts.append(submission.run(probes.metered, [(*inputs, state)])[0]["operations"])
        expect.that(
            counts[1] <= counts[0],
            f"{counts[0]} operations for 8 tokens, {counts[1]} for 64: no loop over tokens is needed, "
            "torch.linalg.solve_triangular solves for all corrections at once",
        )


# ---- a latent cache ----


def latent_call(new, cached, dtype=torch.float64, masked=True, scale=1.0):
    rows, heads, size, latent, rotary = 2, random.randint(2, 4), 6, 5, 4
    mask = torch.rand(1, 1, new, cached) < 0.6
    mask[..., 0] = True
    shapes = (
        (rows, heads, new, size),
        (rows, heads, new, rotary),
        (rows, cached, latent),
        (rows, cached, rotary),
    )
    tensors = [scale * torch.randn(shape, dtype=dtype) for shape in shapes]
    return (*tensors, torch.randn(heads, 2 * size, latent, dtype=dtype), mask if masked else None)


class TestLatent(Exercise):
    """MLA's absorbed decoding"""

    name = "latent_attention_absorbed"
    reference = "minitrain.model.architectures.latent:latent_attention_absorbed"
    hidden = FILES
    mistakes = (
        (("scores = absorbed @ latents[:, None].mT + q_rotated @ keys[:, None].mT", "scores = absorbed @ latents[:, None].mT"), "positions are missing: add q_rotated·keys to the scores"),
        (("up_k, up_v = up.chunk(2, dim=1)", "up_v, up_k = up.chunk(2, dim=1)"), "`up` has each head's W_uk above its W_uv"),
        (("weigh(scores, q, q_rotated, mask)", "weigh(scores, q, q[..., :0], mask)"), "divide the scores by the root of C + S, the size of a whole head"),
        (("weigh(scores, q, q_rotated, mask)", "weigh(scores, absorbed, q_rotated, mask)"), "divide the scores by the root of C + S, as before absorbing: the latent's size does not matter"),
    )  # fmt: skip

    @check(points=5, title="equals the expanded attention, masked or not")
    def test_values(self, submission):
        calls = [
            latent_call(1, 9), latent_call(4, 7, masked=False), latent_call(3, 3),
            latent_call(1, 12, masked=False), latent_call(2, 5, torch.float32), latent_call(1, 1),
        ]  # fmt: skip
        found = submission.run(probes.in_turn, random.sample(calls, len(calls)) and calls)
        expect.left_alone(found, calls, ["q", "q_rotated", "latents", "keys", "up", "mask"])
        given = lambda f: [f(*call) for call in calls]  # noqa: E731
        got = [call["out"] for call in found]
        words = cause(got, self.reference, self.mistakes, given)
        for call, mine, want in zip(calls, got, given(variant(self.reference))):
            where = f"{call[0].shape[2]} new tokens over {call[2].shape[1]} cached ones"
            expect.that(mine.dtype == want.dtype, f"{where}: {mine.dtype} for {want.dtype}")
            tol = 1e-4 if want.dtype == torch.float32 else 1e-9
            hints = [(mine, words)] if words else []
            expect.equal(mine, want, tol=tol, what=where, hints=hints)

    @check(points=4, title="the cache is read as it is: no key and no value of a head is made")
    def test_work(self, submission):
        call = latent_call(1, 400, masked=False)
        got = submission.run(probes.metered, [call])[0]
        want = probes.metered(variant(self.reference), [call])[0]
        rows, heads, _, size = call[0].shape
        expect.that(
            got["largest"] < rows * heads * 400 * size and got["flops"] <= 1.2 * want["flops"],
            f"for one new token over 400 cached ones {got['flops']:,} FLOPs, {want['flops']:,} are enough, and the "
            f"largest tensor has {got['largest']:,} numbers: that expands the cache into keys or values; take W_uk to "
            "the query, and W_uv to the sum of latents",
        )


# ---- Newton-Schulz ----


class TestNewtonSchulz(Exercise):
    """Newton-Schulz, Muon's matrix step"""

    name = "newton_schulz"
    reference = "minitrain.optimizers.muon:newton_schulz"
    hidden = MUON
    mistakes = (
        (("x = x / x.norm().clamp(min=1e-7)", "x = x / x.abs().max()"), "divide by the Frobenius norm, which is at least the largest singular value; the largest element is less"),
        (("x = x / x.norm().clamp(min=1e-7)", "x = x"), "divide by the norm first: the polynomial is for singular values up to 1"),
        (("return x.T if g.shape[0] > g.shape[1] else x", "return x"), "turn a tall matrix back at the end"),
        (("for _ in range(steps)", "for _ in range(steps - 1)"), "that is one step too few"),
    )  # fmt: skip

    @check(points=5, title="the polynomial, `steps` times, of wide and tall matrices")
    def test_values(self, submission):
        calls = []
        for rows, columns, dtype in (
            (3, 7, 64),
            (9, 4, 64),
            (5, 5, 64),
            (6, 8, 32),
            (1, 4, 64),
            (4, 1, 64),
        ):
            dtype = torch.float64 if dtype == 64 else torch.float32
            g = random.choice((1e-3, 1.0, 50.0)) * torch.randn(rows, columns, dtype=dtype)
            calls.append((g, random.randint(1, 6), random.choice((TUNED, CONVERGENT))))
        tiny = torch.randn(3, 5, dtype=torch.float64)
        calls += [
            (torch.zeros(3, 5, dtype=torch.float64), 5, TUNED),
            (torch.randn(4, 3).double(), 0, TUNED),
            (1.5e-7 * tiny / tiny.norm(), 3, TUNED),
        ]
        found = submission.run(probes.in_turn, calls)
        expect.left_alone(found, calls, ["g", "steps", "coefficients"], own=False)
        given = lambda f: [f(*call) for call in calls]  # noqa: E731
        got = [call["out"] for call in found]
        words = cause(got, self.reference, self.mistakes, given)
        for (g, steps, _), mine, want in zip(calls, got, given(variant(self.reference))):
            where = f"{steps} steps on {tuple(g.shape)}"
            zero = "a gradient of zeros gives zeros: divide by at least 1e-7"
            expect.that(mine.isfinite().all(), f"{where}: not finite; {zero}")
            expect.that(mine.dtype == g.dtype, f"{where}: {mine.dtype} for {g.dtype}")
            tol = 1e-4 if g.dtype == torch.float32 else 1e-9
            expect.equal(mine, want, tol=tol, what=where, hints=[(mine, words)] if words else [])

    @check(points=3, title="works on the smaller side, and no SVD is taken")
    def test_work(self, submission):
        calls = [(torch.randn(8, 64).double(), 5, TUNED), (torch.randn(64, 8).double(), 5, TUNED)]
        want = probes.metered(variant(self.reference), calls)
        for (g, *_), got, least in zip(calls, submission.run(probes.metered, calls), want):
            decomposed = [
                name for name in got["names"] if any(z in name for z in ("svd", "eig", "qr"))
            ]
            expect.that(
                not decomposed,
                f"{', '.join(decomposed)} was called: Newton-Schulz needs matmuls only",
            )
            expect.that(
                0 < got["flops"] <= 1.05 * least["flops"],
                f"{got['flops']:,} FLOPs in matmuls for {tuple(g.shape)}, {least['flops']:,} are due: X X^T on the smaller "
                "side (turn tall matrices), then b G + c G² times X",
            )


# ---- the open task ----

MEMORIES = ((32, 16, 512), (24, 12, 291))  # sizes of key and value, and of the state
LOADS = (8, 16, 32)
DRAWS = 20


def writings(keys, values, load):
    """Keys of length 1, half of them written again later; what is asked, and which is right."""
    directions = F.normalize(torch.randn(load, keys), dim=-1)
    order = [*range(load), *random.sample(range(load), load // 2)]
    told = torch.randn(len(order), values)
    last = {key: place for place, key in enumerate(order)}
    pairs = [(directions[key], value) for key, value in zip(order, told)]
    return pairs, directions, told, [last[key] for key in range(load)]


class TestMemory(Exercise):
    """A memory of your own design"""

    name = "Memory"
    reference = "minitrain.model.architectures.recall:Memory"
    hidden = FILES

    def recalled(self, submission):
        """The share of right answers over hidden sequences; the states are checked on the way."""
        right = asked = 0
        for sizes in MEMORIES:
            keys, values, _ = sizes
            cases = [writings(keys, values, load) for load in LOADS for _ in range(DRAWS)]
            states = submission.run(probes.written, sizes, [pairs for pairs, *_ in cases])
            for state, kept in states:
                expect.that(kept, "`write` changed the state that it was given: make a new one")
                expect.that(
                    state.shape == (sizes[-1],) and state.dtype == torch.float32,
                    f"`write` returned a state {tuple(state.shape)} of {state.dtype}: it is ({sizes[-1]},) in float32",
                )
                expect.that(state.isfinite().all(), "a state is not finite")
            # in another process: nothing but the state gets there
            asked_for = [directions for _, directions, *_ in cases]
            held = [state for state, _ in states]
            read = submission.run(probes.readings, sizes, held, asked_for)
            for (_, _, told, wanted), answers in zip(cases, read):
                expect.that(
                    answers.shape == (len(wanted), values),
                    f"`read` gave {tuple(answers.shape[1:])} for a value of ({values},)",
                )
                nearest = F.cosine_similarity(answers[:, None], told, dim=-1).argmax(dim=1)
                right += sum(int(a) == b for a, b in zip(nearest, wanted))
                asked += len(wanted)
        return right / asked

    def reach(self, submission, least, words):
        share = self.recalled(submission)
        expect.that(
            share >= least,
            f"{share:.0%} of hidden reads were right, {least:.0%} are asked: {words}",
        )

    @check(points=4, title="recalls 60% of hidden pairs: more than a plain sum")
    def test_some(self, submission):
        self.reach(
            submission,
            0.60,
            "a sum of outer products has about 54%, and never forgets an old value",
        )

    @check(points=4, title="recalls 65%: what was written again replaces the old")
    def test_more(self, submission):
        self.reach(submission, 0.65, "take away what the state has under the key before you write")

    @check(points=4, title="recalls 72%: a design of your own")
    def test_most(self, submission):
        self.reach(
            submission,
            0.73,
            "the delta rule at rate 1 has about 68%: what does each write do to the others?",
        )


# ---- experiments ----


class TestLoopMemory(Experiment):
    """Bytes kept for backward"""

    name = "loop_memory"
    rests_on = ("ssd_chunked",)

    @check(points=3, title="the token loop keeps a state for every token, within 10%")
    def test_loop(self, table):
        for row in table:
            expect.close(
                row["loop"],
                row["a_state_per_token"],
                tol=0.1,
                what=f"{row['tokens']} tokens: the loop",
            )

    @check(
        points=3, title="chunks keep less than a third, and grow with the tokens, not their square"
    )
    def test_chunks(self, table):
        first, last = min(table, key=lambda r: r["tokens"]), max(table, key=lambda r: r["tokens"])
        expect.that(last["tokens"] > first["tokens"], "two lengths or more are asked for")
        expect.that(
            3 * last["chunked"] < last["loop"],
            f"chunks keep {last['chunked']:,} bytes, the loop {last['loop']:,}: less than a third is enough",
        )
        grown, longer = last["chunked"] / first["chunked"], last["tokens"] / first["tokens"]
        expect.that(
            grown < 1.3 * longer, f"{longer:g} times the tokens keep {grown:.1f} times the bytes"
        )


class TestHeld(Experiment):
    """What one sequence holds"""

    name = "held"
    rests_on = ("latent_attention_absorbed",)

    @check(points=3, title="the cache grows in proportion, states stay")
    def test_growth(self, table):
        by = held_by(table)
        for name, ratio in (("attention", 32), ("latent", 32), ("Mamba-2", 1), ("DeltaNet", 1)):
            got = by[name, 131_072] / by[name, 4096]
            expect.close(
                got, ratio, tol=1e-6, what=f"{name}: bytes at 131,072 over those at 4,096 tokens"
            )

    @check(
        points=3, title="the published shares: a hybrid's quarter, the latent's 576 numbers a layer"
    )
    def test_published(self, table):
        by = held_by(table)
        share = by["hybrid, 3 to 1", 131_072] / by["attention", 131_072]
        expect.close(share, 0.25, tol=0.01, what="the hybrid's share of attention's bytes")
        latent = by["latent", 4096] / 4096 / 32 / 2
        expect.close(latent, 576, tol=1e-6, what="numbers a token and layer of the latent cache")


def held_by(table):
    return {(row["layers"], row["tokens"]): row["bytes"] for row in table}


NAMES_OF_MODELS = ("attention", "Mamba-2", "DeltaNet", "hybrid DA")


class TestEqualBudget(Experiment):
    """Four models on an equal budget"""

    name = "equal_budget"
    rests_on = ("ssd_chunked", "delta_parallel")

    @check(points=3, title="four models, parameters within 2%, none below a floor")
    def test_rows(self, table):
        by = {row["layers"]: row for row in table}
        missing = [name for name in NAMES_OF_MODELS if name not in by]
        expect.that(not missing, f"no row for {', '.join(missing)}")
        counts = [by[name]["parameters"] for name in NAMES_OF_MODELS]
        expect.that(
            max(counts) <= 1.02 * min(counts), f"parameters {counts} differ by more than 2%"
        )
        for row in table:
            expect.that(
                row["words"] > -0.1 and row["recalled"] >= 0,
                f"{row['layers']}: {row['words']:.3f} and {row['recalled']:.3f} nats over the floors; no model is below",
            )

    @check(points=3, title="the bytes of state are those of the formulas")
    def test_bytes(self, table):
        by = {row["layers"]: row for row in table}
        grows = by["attention"]["bytes_131072"] - by["attention"]["bytes_4096"]
        mixed = by["hybrid DA"]["bytes_131072"] - by["hybrid DA"]["bytes_4096"]
        expect.close(
            mixed, grows / 2, tol=1e-6, what="what the hybrid's cache grows by, one layer of two"
        )
        for name in ("Mamba-2", "DeltaNet"):
            row = by[name]
            expect.that(row["bytes_192"] == row["bytes_131072"], f"{name}: a state does not grow")

    @check(points=3, title="with attention among its layers a model recalls no worse than without")
    def test_recall(self, table):
        right = {row["layers"]: row["right"] for row in table}
        least = max(right["Mamba-2"], right["DeltaNet"])
        expect.that(
            max(right["attention"], right["hybrid DA"]) >= least - 0.05,
            f"recalled things that are right: {right}; attention forgets nothing, so train it as long as the others",
        )


class TestStretched(Experiment):
    """Facts further apart, and more of them"""

    name = "stretched"
    rests_on = ("equal_budget",)

    @check(points=4, title="every model in every test, the first as in the table before")
    def test_rows(self, table, records):
        known = {row["layers"]: row["right"] for row in expect.recorded(records, "equal_budget")}
        tests = {(row["stretch"], row["load"]) for row in table}
        found = {(row["layers"], row["stretch"], row["load"]) for row in table}
        expect.that(
            len(tests) > 2 and len(found) == len(known) * len(tests),
            "a row for each model and each of the tests is asked for",
        )
        for row in table:
            if row["stretch"] == row["load"] == 1:
                what = f"{row['layers']}: right, as trained"
                expect.close(row["right"], known[row["layers"]], tol=1e-6, what=what)


# ---- questions ----


class TestCrossing(Question):
    """Where a state pays off"""

    name = "crossing"
    rests_on = ("held",)

    @check(points=5, title="tokens at which a cache outgrows a state")
    def test_value(self, value, records):
        by = held_by(expect.recorded(records, "held"))
        per_token = by["attention", 4096] / 4096
        want, delta = (by[name, 4096] / per_token for name in ("Mamba-2", "DeltaNet"))
        hints = [
            (delta, "that is DeltaNet's"),
            (want / 32, "both have 32 layers: that cancels"),
            (1 / want, "turn the fraction round"),
        ]
        expect.close(
            value,
            want,
            tol=0.01,
            what="tokens at which attention holds more than Mamba-2",
            hints=hints,
        )


class TestMore(Question):
    """Sequences in 40 GB"""

    name = "more_sequences"
    rests_on = ("held",)

    @check(points=5, title="how many more sequences fit")
    def test_value(self, value, records):
        by = held_by(expect.recorded(records, "held"))
        hybrid, whole = (by[name, 131_072] for name in ("hybrid, 3 to 1", "attention"))
        want = 40e9 // hybrid - 40e9 // whole
        hints = [
            (40e9 // hybrid, "that is how many fit: how many *more* than with attention?"),
            (40e9 / hybrid - 40e9 / whole, "whole sequences only: round each of the two down"),
            (40 * 2**30 // hybrid - 40 * 2**30 // whole, "a GB is 10^9 bytes"),
        ]
        expect.close(value, want, tol=1e-9, what="how many more sequences fit", hints=hints)


class TestWorth(Question):
    """Recall for bytes"""

    name = "best_worth"
    rests_on = ("equal_budget",)

    @check(points=5, title="the most recall for a byte at 131,072 tokens")
    def test_value(self, value, records):
        table = expect.recorded(records, "equal_budget")
        worth = {row["layers"]: row["right"] / row["bytes_131072"] for row in table}
        expect.among(value, worth)
        chosen = next(name for name in worth if value == name)
        bytes_of = {row["layers"]: row["bytes_131072"] for row in table}
        expect.that(
            worth[chosen] == max(worth.values()),
            f"{chosen} holds {bytes_of[chosen]:,} bytes: another model recalls more for each byte of its own",
        )
