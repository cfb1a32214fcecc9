"""The checks of lab e13: losses and estimators beside the reference, policies beside an optimum."""

from __future__ import annotations

import math
import random

import torch

from minitrain.alignment.exact import TablePolicy, WordChain, course_chain, frontier
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import cause, variant

from .probes import e13_alignment as probes

LAB = "e13_alignment"
SIZES = {
    "cpu": {"pairs": [100, 300, 1000], "steps": 100, "corpus": 1_000_000, "pretrain": 200, "rl_steps": 25},
    "test": {"pairs": [100, 1000], "steps": 50, "corpus": 200_000, "pretrain": 60, "rl_steps": 3},
}  # fmt: skip
REVEALS = {
    "gold": Reveal("computed", "the best policy for the proxy fitted to the fewest pairs, at β = 0.05"),
    "published": Reveal("computed", "J of the trained table, exact"),
    "best_of_16": Reveal(
        "computed",
        "it passes with r = 1 − 0.9¹⁶ and lies on the frontier: r log(r/q) + (1−r) log((1−r)/(1−q))",
        formula=lambda q, n: frontier(1 - (1 - q) ** n, q),
    ),
    "rollouts": Reveal("measured", "drawing, judging and scoring of all three runs, over all their time"),
}  # fmt: skip
HIDDEN = tuple(
    f"minitrain/alignment/{name}.py"
    for name in ("advantages", "kl", "policy_loss", "preference", "reward_model", "trainer", "rollouts")
)  # fmt: skip


def normal(*shape, scale=1.0, dtype=torch.float64):
    return (scale * torch.randn(*shape)).to(dtype)


def judged(item, submission, calls, names, mistakes, what, probe=probes.called, tol=None):
    """Equal to the reference call by call, with no input changed and no result aliased."""
    calls = random.sample(calls, len(calls))
    found = submission.run(probe, calls)
    expect.left_alone(found, calls, names)
    given = lambda f: [probe(f, [call])[0]["out"] for call in calls]  # noqa: E731
    got = [call["out"] for call in found]
    words = cause(got, item.reference, mistakes, given)
    for call, mine, want in zip(calls, got, given(variant(item.reference))):
        hints = [(mine, words)] if words else []
        expect.equal(mine, want, tol, hints, f"{what}, {shown(call)}")


def shown(call):
    parts = [f"{tuple(x.shape)}" if isinstance(x, torch.Tensor) else f"{x}" for x in call]
    return f"called with ({', '.join(parts)})"


def gradients(item, submission, calls, which, what, words=""):
    """Loss and gradient by one argument, beside the reference's."""
    found = submission.run(probes.with_gradient, calls, which)
    for call, got, want in zip(
        calls, found, probes.with_gradient(variant(item.reference), calls, which)
    ):
        expect.equal(
            got[1], want[1], what=f"{what}, {shown(call)}", hints=[(got[1], words)] if words else []
        )


# ---- preferences ----

LOGSIGMOID = "-F.logsigmoid(chosen - rejected - margin)"


class TestRewardModel(Exercise):
    """The reward model's loss"""

    name = "reward_model_loss"
    reference = "minitrain.alignment.reward_model:reward_model_loss"
    hidden = HIDDEN
    MISTAKES = (
        ((LOGSIGMOID, "-F.logsigmoid(rejected - chosen - margin)"), "chosen and rejected are swapped"),
        ((LOGSIGMOID, "-F.logsigmoid(chosen - rejected + margin)"), "the margin makes it harder: it is subtracted from the difference"),
        (("(chosen + rejected).square()", "(chosen.square() + rejected.square())"), "that centres each score: it is the square of their sum"),
        ((".mean()", ".sum()"), "that is the sum over pairs: the mean is asked for"),
    )  # fmt: skip

    def judge(self, submission, calls):
        names = ["chosen", "rejected", "margin"]
        judged(self, submission, calls, names, self.MISTAKES, "the loss")

    @check(points=3, title="the mean of −log σ(difference − margin), in the scores' dtype")
    def test_margin(self, submission):
        sizes = [random.randrange(2, 9) for _ in range(3)]
        calls = [(normal(n, scale=2), normal(n, scale=2)) for n in (*sizes, 1)]
        calls += [(normal(n), normal(n), random.random() + 0.1) for n in sizes]
        calls += [(normal(n), normal(n), normal(n).abs()) for n in sizes]
        calls += [(normal(4, dtype=torch.float32), normal(4, dtype=torch.float32))]
        self.judge(submission, calls)

    @check(points=2, title="large differences stay finite, and have a gradient")
    def test_large(self, submission):
        far = torch.tensor([-200.0, 200.0, -120.0, 3.0])
        calls = [(far, torch.zeros(4)), (far.double() * 5, torch.zeros(4).double())]
        self.judge(submission, calls)
        gradients(self, submission, calls, 0, "the gradient by the chosen scores")

    @check(points=2, title="with the squared sum of a pair's scores, weighted by `centering`")
    def test_centering(self, submission):
        calls = [
            (normal(n), normal(n), margin, random.random() + 0.1)
            for n, margin in ((3, 0.0), (5, 0.4), (1, 0.0), (4, 1.0))
        ]
        self.judge(submission, calls)


class TestDPO(Exercise):
    """DPO, and with doubted labels"""

    name = "dpo_loss"
    reference = "minitrain.alignment.preference:dpo_loss"
    hidden = HIDDEN
    H = "beta * margin(chosen, rejected, ref_chosen, ref_rejected)"
    MISTAKES = (
        ((H, "beta * (chosen - rejected)"), "the reference is missing: h is a difference of log *ratios*"),
        ((H, "beta * margin(ref_chosen, ref_rejected, chosen, rejected)"), "policy and reference are swapped"),
        ((H, "margin(chosen, rejected, ref_chosen, ref_rejected) / beta"), "β multiplies h"),
        (("-(1 - label_smoothing) * F.logsigmoid(h) - label_smoothing * F.logsigmoid(-h)", "-F.logsigmoid(h)"), "`label_smoothing` is not used"),
        (("F.logsigmoid(h) - label_smoothing * F.logsigmoid(-h)", "F.logsigmoid(h) + label_smoothing * F.logsigmoid(-h)"), "that subtracts the swapped pair, as robust DPO does: cDPO adds it"),
    )  # fmt: skip

    def calls(self, smoothings):
        found = []
        for n, smoothing in zip((1, 5, 3, 4), smoothings):
            four = [normal(n, scale=3) - 40 for _ in range(4)]
            found.append((*four, random.choice((0.05, 0.1, 0.5, 0.8)), smoothing))
        return found

    def judge(self, submission, calls):
        names = ["chosen", "rejected", "ref_chosen", "ref_rejected"]
        judged(self, submission, calls, names, self.MISTAKES, "the loss of each pair")

    @check(points=4, title="of each pair: log 2 where policy and reference are the same")
    def test_dpo(self, submission):
        start = [normal(3), normal(3)]
        far = [normal(3, scale=2000, dtype=torch.float32) for _ in range(4)]
        calls = [*self.calls((0.0,) * 4), (*start, *start), (*far, 0.1, 0.0)]
        self.judge(submission, calls)

    @check(points=2, title="cDPO: labels believed with 1 − e")
    def test_smoothing(self, submission):
        smoothings = [random.choice((0.1, 0.2, 0.35)) for _ in range(4)]
        self.judge(submission, self.calls(smoothings))

    @check(points=2, title="pulls the policy, and leaves the reference")
    def test_gradient(self, submission):
        calls = self.calls((0.0, 0.2, 0.1, 0.0))
        for which in (0, 1):
            side = ("chosen", "rejected")[which]
            gradients(
                self, submission, calls, which, f"the gradient by the policy's {side} answers"
            )


# ---- groups ----


class TestGroups(Exercise):
    """Advantages within a group"""

    name = "grpo_advantages"
    reference = "minitrain.alignment.advantages:grpo_advantages"
    hidden = HIDDEN
    MISTAKES = (
        (("groups = grouped(rewards, group_size)", "groups = rewards.view(group_size, -1).T"), "a prompt's answers stand side by side: 0 0 0 1 1 1, not 0 1 0 1"),
        (("groups.std(dim=1, keepdim=True)", "groups.std(dim=1, keepdim=True, correction=0)"), "that divides by G: the unbiased standard deviation divides by G − 1"),
        (("spread + SMALL", "rewards.std() + SMALL"), "that is the whole batch's spread: each group has its own"),
        (("- groups.mean(dim=1, keepdim=True)", "- rewards.mean()"), "that is the whole batch's mean: each group has its own"),
        ((" / (spread + SMALL)", ""), "the division by the group's standard deviation is missing"),
    )  # fmt: skip

    def judge(self, submission, calls):
        judged(self, submission, calls, ["rewards"], self.MISTAKES, "the advantages")

    @check(points=4, title="(r − mean) / (std + 10⁻⁴), each group by itself, in the order given")
    def test_groups(self, submission):
        calls = []
        for _ in range(6):
            prompts, size = random.randrange(1, 6), random.randrange(2, 7)
            scale = 10 ** random.uniform(-3, 1)  # where 10⁻⁴ shows
            level = 5 * normal(prompts).repeat_interleave(size)
            calls.append((level + scale * normal(prompts * size), size))
        calls.append((normal(6, dtype=torch.float32), 3))
        self.judge(submission, calls)

    @check(points=3, title="rewards of 0 and 1; a group that agrees gets exactly 0")
    def test_binary(self, submission):
        calls = []
        for size in (2, 4, 5):
            groups = [torch.randint(2, (size,)) for _ in range(3)]
            groups += [torch.ones(size), torch.zeros(size)]
            random.shuffle(groups)
            calls.append((torch.cat(groups).double(), size))
        self.judge(submission, calls)


class TestExpected(Exercise):
    """KL estimators, by enumeration"""

    name = "expected"
    reference = "minitrain.alignment.kl:expected"
    hidden = HIDDEN
    MISTAKES = (
        (("weights = logp.detach().exp()", "weights = logp.exp()"), "the weights have a gradient too: a sample's probability is a constant, backward does not see it"),
        (("weights = logp.detach().exp()", "weights = torch.full_like(logp, 1 / len(logp))"), "that counts all outcomes alike: weight them by the policy's probabilities"),
        (("weights = logp.detach().exp()", "weights = ref_logp.exp()"), "samples come from the policy, not from the reference"),
        (("variance.sqrt().item()", "variance.item()"), "that is the variance: the standard deviation is its root"),
        (("(weights * (estimates - mean).square()).sum()", "(estimates - mean).square().mean()"), "the variance weights each outcome by its probability too"),
    )  # fmt: skip

    def judge(self, submission, kinds, part):
        calls = []
        for kind in kinds:
            size = random.randrange(2, 9)
            calls.append((kind, random.uniform(0.5, 2), normal(size), normal(size)))
        found = submission.run(probes.expected_of, calls)
        names = ["the estimator", "its factor", "logits", "ref_logits"]
        expect.left_alone(found, calls, names)
        given = lambda f: [call["out"] for call in probes.expected_of(f, calls)]  # noqa: E731
        got = [call["out"] for call in found]
        expect.that(
            all(isinstance(one, list) and len(one) == 4 for one in got),
            "three things are asked for: mean, standard deviation, gradient",
        )
        flagged = "the caller's `logits` ask for a gradient after the call: make a leaf of your own, by .detach()"
        expect.that(not any(one[3] for one in got), flagged)
        words = cause(got, self.reference, self.MISTAKES, given, tol=1e-9)
        for call, mine, want in zip(calls, got, given(variant(self.reference))):
            what = f"{('mean', 'standard deviation', 'mean gradient')[part]} of {call[1]:.3g} · {call[0]} over {len(call[2])} outcomes"
            mine = mine[part]
            if part < 2:
                expect.that(
                    isinstance(mine, float),
                    f"the {what} is a {type(mine).__name__}: a float is asked for, .item()",
                )
            right = want[part]
            if part == 2 and right.abs().max() < 1e-9 and isinstance(mine, torch.Tensor):
                mine, right = mine + 1, right + 1  # k1's, which is 0 up to rounding
                what += ", plus 1"
            hints = [(mine, words)] if words else []
            expect.equal(mine, right, tol=1e-9, what=what, hints=hints)

    @check(points=2, title="the mean over the policy's samples")
    def test_mean(self, submission):
        self.judge(submission, ("k1", "k2", "k3", "cube"), 0)

    @check(points=2, title="their standard deviation")
    def test_deviation(self, submission):
        self.judge(submission, ("k1", "k3", "k2", "cube"), 1)

    @check(points=4, title="the mean of backward's gradient, without that of the drawing")
    def test_gradient(self, submission):
        self.judge(submission, ("k1", "k2", "k3", "cube", "k1"), 2)


# ---- the clip ----

NEAR = "ratio.clamp(1 - clip, 1 + high)"


class TestPolicyLoss(Exercise):
    """The clipped loss"""

    name = "policy_loss"
    reference = "minitrain.alignment.policy_loss:policy_loss"
    hidden = HIDDEN
    MISTAKES = (
        (("torch.maximum(-advantages * ratio", "torch.minimum(-advantages * ratio"), "the larger of the two losses counts: a bad token that became likely must be pulled back"),
        (("(-advantages * ratio, -advantages * " + NEAR + ")", "(-advantages * " + NEAR + ", -advantages * " + NEAR + ")"), "that clips every token: where clipping would make the loss smaller, the ratio stays as it is"),
        ((NEAR, "ratio.clamp(1 - high, 1 + high)"), "below 1 the bound is `clip`, also where `clip_high` is another"),
        (("loss.minimum(-advantages * dual_clip)", "loss.clamp(max=dual_clip)"), "the dual clip's bound is at most c·|A|, of each token"),
        (("(logp - old_logp).exp()", "(old_logp - logp).exp()"), "the ratio is new over old"),
    )  # fmt: skip
    QUADRANTS = (0.3, 0.79, 0.81, 1.0, 1.19, 1.21, 2.5, 40.0)

    def call(self, *rest, dtype=torch.float64):
        """All quadrants, in a drawn order and at drawn probabilities."""
        ratio = torch.tensor(self.QUADRANTS, dtype=dtype).repeat(2)
        signs = torch.tensor([1.0, -1.0], dtype=dtype).repeat_interleave(len(self.QUADRANTS))
        order = torch.randperm(len(ratio))
        old = -4 - normal(len(ratio), dtype=dtype).abs()
        advantages = signs * (0.1 + normal(len(ratio), dtype=dtype).abs())
        made = (old + ratio.log(), old, advantages)
        return *(x[order].view(4, -1) for x in made), *rest

    def judge(self, submission, calls):
        names = ["logp", "old_logp", "advantages"]
        judged(self, submission, calls, names, self.MISTAKES, "the loss of each token")

    @check(points=3, title="the larger of two losses, in all four quadrants")
    def test_quadrants(self, submission):
        shapes = [(1, 5), (3, 1), (2, 7)]
        zero = [tuple(normal(*shape) for _ in range(3)) for shape in shapes]
        single = self.call(0.2, dtype=torch.float32)
        self.judge(submission, [self.call(), self.call(random.choice((0.1, 0.3))), single, *zero])

    @check(points=3, title="a gradient where a token may still move, and none elsewhere")
    def test_gradient(self, submission):
        calls = [self.call(), self.call(0.3), self.call(0.2, 0.28)]
        gradients(self, submission, calls, 0, "the gradient by `logp`")
        logp = normal(2, 3)
        fresh = [(logp, logp.clone(), normal(2, 3))]
        gradients(
            self, submission, fresh, 0, "at a ratio of exactly 1, the gradient by `logp`, minus A"
        )

    @check(points=3, title="another bound above 1, and the dual clip for bad tokens")
    def test_dual(self, submission):
        calls = [
            self.call(0.2, high, dual)
            for high in (None, 0.0, 0.28, 0.5)
            for dual in (None, 2.0, 3.0)
        ]
        self.judge(submission, calls)
        gradients(self, submission, calls, 0, "the gradient by `logp`")


# ---- GAE ----


class TestGAE(Exercise):
    """GAE, through tokens that do not count"""

    name = "gae"
    reference = "minitrain.alignment.advantages:gae"
    hidden = HIDDEN
    CARRY = "m * (delta + gamma * lam * advantage) + (1 - m) * advantage"
    MISTAKES = (
        ((CARRY, "delta + gamma * lam * advantage"), "the recursion runs on over tokens that do not count: carry advantage and value through them unchanged"),
        ((CARRY, "m * (delta + gamma * lam * advantage) + (1 - m) * gamma * lam * advantage"), "the advantage fades over tokens that do not count: they are as if not there"),
        (("next_value = m * v + (1 - m) * next_value", "next_value = v"), "the next value is that of the next token that *counts*"),
        (("delta + gamma * lam * advantage", "delta + lam * advantage"), "A fades by γλ a token"),
        (("return advantages, (advantages + values) * counts", "return advantages, advantages * counts"), "the returns are A + V"),
    )  # fmt: skip

    def call(self, rows, length, kind, *rest):
        mask = torch.ones(rows, length, dtype=torch.float64)
        if kind == "padded":
            lengths = torch.randint(1, length + 1, (rows, 1))
            mask = (torch.arange(length) < lengths).double()
        if kind == "holes":
            mask = (torch.rand(rows, length) < 0.6).double()
            mask[:, 0], mask[0] = 1, 0  # and a row in which nothing counts
        rewards, values = normal(rows, length), normal(rows, length)
        junk = 1 - mask  # what does not count may hold anything
        return rewards + 50 * junk, values - 30 * junk, mask, *rest

    def judge(self, submission, calls):
        names = ["rewards", "values", "mask"]
        words = "advantages and returns"
        judged(self, submission, calls, names, self.MISTAKES, words)

    @check(points=3, title="whole rows: from the one-step error (λ = 0) to the return (λ = 1)")
    def test_whole(self, submission):
        settings = [(), (1.0, 0.0), (1.0, 1.0), (0.9, 0.8), (random.uniform(0.5, 0.99), 0.95)]
        sizes = [(2, 5), (1, 1), (3, 4), (4, 7), (2, 2)]
        calls = [self.call(*size, "whole", *rest) for size, rest in zip(sizes, settings)]
        single = [x.float() for x in self.call(2, 4, "whole")]
        self.judge(submission, [*calls, tuple(single)])

    @check(points=2, title="rows of unequal length")
    def test_padded(self, submission):
        settings = [(), (0.9, 0.8), (1.0, 1.0)]
        self.judge(submission, [self.call(4, 6, "padded", *rest) for rest in settings])

    @check(points=4, title="holes in the mask are passed through, undiminished")
    def test_holes(self, submission):
        settings = [(), (0.9, 0.8), (1.0, 0.0), (0.7, 1.0)]
        self.judge(submission, [self.call(5, 8, "holes", *rest) for rest in settings])


# ---- an update of one's own ----

STEPS, BATCH, RATE = 60, 64, 0.1


def hidden_chains():
    """Three, the same for everybody, so that a verdict does not depend on luck."""
    found = []
    for seed, price in ((101, 0.7), (202, 1.0), (303, 1.4)):
        dice = torch.Generator().manual_seed(seed)
        reference = (1.2 * torch.randn(24, 24, generator=dice, dtype=torch.float64)).softmax(1)
        rewards = (torch.rand(24, generator=dice) < 0.25).double()
        found.append((reference, rewards, 8, price, seed))
    return found


class TestTilting(Exercise):
    """An update of your own"""

    name = "tilting_loss"
    reference = "minitrain.alignment.exact:tilting_loss"
    hidden = HIDDEN

    def share(self, submission):
        """Of the way from the reference to J*, the mean over the hidden chains."""
        shares = []
        found = submission.run(probes.trained, hidden_chains(), STEPS, BATCH, RATE)
        for (reference, rewards, length, beta, _), run in zip(hidden_chains(), found):
            kinds = ", ".join(run["kinds"])
            expect.that(
                run["kinds"] == ["()"], f"the loss is a {kinds}: a scalar tensor is asked for"
            )
            chain = WordChain(reference, rewards, length)
            policy = TablePolicy(chain)
            expect.that(
                bool(run["logits"].isfinite().all()),
                "the policy has numbers that are none (NaN or infinite)",
            )
            start = policy.evaluate(beta).J
            policy.logits.data = run["logits"]
            shares.append((policy.evaluate(beta).J - start) / (chain.optimum(beta).J - start))
        return sum(shares) / len(shares)

    def reaches(self, submission, least, advice):
        share = self.share(submission)
        expect.that(
            share >= least,
            f"{share:.1%} of the way from the reference to J* on hidden chains, {least:.0%} are asked for. {advice}",
        )

    @check(points=4, title="half of the way to J*")
    def test_half(self, submission):
        advice = "Rewards alone overshoot by far: the KL has to be in the loss or in the reward"
        self.reaches(submission, 0.5, advice)

    @check(points=4, title="80% of the way")
    def test_most(self, submission):
        advice = "A KL term in the loss misses what a word does to the KL of later words"
        self.reaches(submission, 0.8, advice)

    @check(points=4, title="88% of the way")
    def test_nearly_all(self, submission):
        advice = (
            "Is β still the price, or divided by something? And what noise is left at the optimum?"
        )
        self.reaches(submission, 0.88, advice)


# ---- experiments ----


class TestOveroptimised(Experiment):
    """Gold reward against KL"""

    name = "overoptimised"
    rests_on = ("reward_model_loss",)

    def curves(self, table):
        found = {}
        for row in sorted(table, key=lambda row: row["kl"]):
            found.setdefault(row["pairs"], []).append(row)
        expect.that(len(found) >= 2, "proxies of two or more numbers of pairs are asked for")
        return found

    @check(points=2, title="the proxy rises all the way")
    def test_proxy(self, table):
        for pairs, rows in self.curves(table).items():
            proxies = [row["proxy"] for row in rows]
            expect.that(proxies == sorted(proxies), f"{pairs} pairs: with more KL the proxy's best policy earns more of its own reward")  # fmt: skip

    @check(points=3, title="with few pairs the gold turns, with many it does not")
    def test_turn(self, table):
        curves = self.curves(table)
        few, many = curves[min(curves)], curves[max(curves)]
        top, end = max(row["gold"] for row in few), few[-1]["gold"]
        expect.that(end < 0.95 * top, f"{min(curves)} pairs: gold {end:.3g} at the end, {top:.3g} at its best: it falls past the top")  # fmt: skip
        expect.that(many[-1]["gold"] > 1.2 * top, f"{max(curves)} pairs end at {many[-1]['gold']:.3g}: well above what few pairs ever reach")  # fmt: skip


class TestPreferences(Experiment):
    """Minimisers of losses on pairs"""

    name = "preferences"
    rests_on = ("dpo_loss",)

    @check(points=2, title="with true labels DPO ends at π*")
    def test_true(self, table):
        found = expect.rows(table, "loss", "swapped")["DPO", 0.0]["distance"]
        expect.that(found < 1e-6, f"DPO ends {found:.2g} from π*: below 1e-6 with true labels")

    @check(points=2, title="with swapped labels DPO and cDPO do not, robust DPO does")
    def test_swapped(self, table):
        rows = expect.rows(table, "loss", "swapped")
        far = {name: rows[name, 0.1]["distance"] for name in ("DPO", "cDPO", "robust DPO")}
        expect.that(
            min(far["DPO"], far["cDPO"]) > 0.02,
            f"distances {far}: swapped labels move DPO and cDPO away",
        )
        expect.that(
            far["robust DPO"] < 1e-6, f"robust DPO ends {far['robust DPO']:.2g} from π*: below 1e-6"
        )


class TestEstimators(Experiment):
    """Gaps to J*"""

    name = "estimators"
    rests_on = ("grpo_advantages", "expected")

    @check(points=3, title="k1 in the reward ends within 3% of J*, and no run above it")
    def test_reward(self, table):
        gaps = {row["run"]: row["gap"] for row in table}
        expect.that("k1 in the reward" in gaps, "a run with k1 in the reward is asked for")
        best = course_chain().optimum(1.0).J
        expect.that(0 < gaps["k1 in the reward"] < 0.03 * best, f"k1 in the reward: a gap of {gaps['k1 in the reward']:.3g}, 3% of J* are {0.03 * best:.3g}")  # fmt: skip
        expect.that(min(gaps.values()) > -1e-6, "no policy is above J*")

    @check(points=3, title="KL in the loss ends farther away, k3 without the ratio farthest")
    def test_loss(self, table):
        gap = {row["run"]: row["gap"] for row in table}
        in_loss = [name for name in gap if "in the loss" in name]
        expect.that(len(in_loss) >= 3, "three runs with the KL in the loss are asked for")
        nearest = min(gap[name] for name in in_loss)
        expect.that(nearest > 2 * gap["k1 in the reward"], f"in the loss {nearest:.3g} at best, in the reward {gap['k1 in the reward']:.3g}: more than twice as much")  # fmt: skip
        expect.that(
            gap["k3 in the loss"] > gap["ratio · k3 in the loss"],
            "k3 without the ratio is the farther of the two",
        )


class TestStaleness(Experiment):
    """Answers of an older policy"""

    name = "staleness"
    rests_on = ("policy_loss",)

    @check(points=2, title="fresh answers, and some of one, four and sixteen steps ago")
    def test_rows(self, table):
        rows = expect.rows(table, "lag", "way")
        for way in ("as if fresh", "with the ratio", "a fresh penalty"):
            gaps = [rows[lag, way]["gap"] for lag in (0, 1, 4, 16)]
            expect.that(min(gaps) > -1e-6, f"{way}: gaps of {gaps}; no policy is above J*")
            expect.close(gaps[0], rows[0, "as if fresh"]["gap"], tol=1e-3, what=f"the gap of fresh answers, {way}, where all ways are one")  # fmt: skip
            expect.that(gaps[1] < gaps[0] + 0.1, f"{way}: a step of age costs {gaps[1] - gaps[0]:.3g}, little")  # fmt: skip

    @check(points=2, title="at sixteen steps the ratio saves most, and a fresh penalty more")
    def test_age(self, table):
        rows = expect.rows(table, "lag", "way")
        fresh, ratio, penalty = (
            rows[16, way]["gap"] for way in ("as if fresh", "with the ratio", "a fresh penalty")
        )
        expect.that(
            fresh > 2 * ratio, f"sixteen steps: {fresh:.3g} as if fresh, {ratio:.3g} with the ratio"
        )
        expect.that(
            ratio > 1.5 * penalty,
            f"sixteen steps: {ratio:.3g} with the ratio, {penalty:.3g} with a fresh penalty",
        )


class TestLanguage(Experiment):
    """A language model and its KL"""

    name = "language"
    rests_on = ("grpo_advantages", "policy_loss")

    @check(points=3, title="KL efficiency by the formula, between 0 and 1")
    def test_efficiency(self, table):
        for row in table:
            least = frontier(row["passes"], row["base"])
            if row["kl"] > 0.3:  # below it is an estimate of few nats
                expect.close(
                    row["efficiency"],
                    least / row["kl"],
                    tol=1e-6,
                    what=f"{row['run']}: KL efficiency",
                )
                expect.that(
                    row["efficiency"] < 1.1,
                    f"{row['run']}: {row['efficiency']:.0%}; no policy is above the frontier",
                )

    @check(points=3, title="three runs, each passing more often than the base model")
    def test_learns(self, table):
        expect.that(len({row["run"] for row in table}) >= 3, "three runs are asked for")
        for row in table:
            expect.that(
                row["passes"] > row["base"],
                f"{row['run']} passes {row['passes']:.1%}, the base model {row['base']:.1%}",
            )


# ---- questions ----


class TestStillRight(Question):
    """Swapped labels"""

    name = "still_right"
    rests_on = ("preferences",)

    @check(points=5, title="the loss that ends at π* where labels are swapped")
    def test_value(self, value, records):
        rows = [row for row in expect.recorded(records, "preferences") if row["swapped"] > 0]
        expect.among(value, [row["loss"] for row in rows])
        (distance,) = (row["distance"] for row in rows if value == row["loss"])
        expect.that(
            distance < 1e-6,
            f"{value} ends {distance:.2g} from π* there: see the rows with swapped labels",
        )


class TestTimes(Question):
    """Side by side"""

    name = "times_as_fast"
    rests_on = ("language",)

    @check(points=5, title="how many times as fast steps are that overlap")
    def test_value(self, value, records):
        table = expect.recorded(records, "language")
        rolled = sum(row["rollout_seconds"] for row in table)
        trained = sum(row["train_seconds"] for row in table)
        whole, longest = rolled + trained, max(rolled, trained)
        expect.close(
            value,
            whole / longest,
            tol=0.01,
            what="the time of all steps in turn over that side by side",
            hints=[
                (2.0, "that is as if both took the same time: the longer of the two decides"),
                (longest / whole, "turn the fraction round"),
                (whole / min(rolled, trained), "a step lasts as long as the *longer* part"),
            ],
        )


class TestBestN(Question):
    """Best-of-n instead"""

    name = "best_n"
    rests_on = ("language",)

    @check(points=5, title="the smallest n that passes more often")
    def test_value(self, value, records):
        row = expect.recorded(records, "language")[0]
        expect.that(value == int(value), f"got {value}: n is a whole number")
        rate = lambda n: 1 - (1 - row["base"]) ** n  # noqa: E731
        passes = min(row["passes"], 1 - 1e-9)
        expect.that(
            rate(value) > passes,
            f"best of {value:g} passes {rate(value):.1%}, no more than the first run of your table",
        )
        expect.that(
            value == 1 or rate(value - 1) <= passes * (1 + 1e-9),
            "a smaller n passes more often too: which is the first?",
        )
        expect.that(math.isfinite(value), "n is finite")
