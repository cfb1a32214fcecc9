"""The checks of lab e02d: experts, graded by who gets which row, what travels, and every gradient."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from functools import partial

import torch
from torch.nn import functional as F

from minitrain.lab.failures import CheckFailed, SubmissionFailed
from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.verdicts import below, each
from minitrain.words import plural

from .probes import e02d_expert_parallel as probes

LAB = "e02d_expert_parallel"
SIZES = {
    "cpu": {
        "experts": 8,
        "k": 2,
        "width": 32,
        "inner": 64,
        "tokens": 1024,
        "ranks": [1, 2, 4, 8],
        "corpus_bytes": 1_000_000,
        "length": 64,
        "batch": 8,
        "steps": 80,
        "lr": 1e-2,
    },
    "test": {"steps": 40, "corpus_bytes": 500_000, "ranks": [1, 2, 4]},
    "gpu": {"steps": 300, "corpus_bytes": 4_000_000},
    "multi": {"batch": 32},
}
REVEALS = {
    "active": Reveal(
        "computed",
        "45.1 of the 46.7 billion lie in experts; a token uses a quarter of these, and all others",
    ),
    "dropped": Reveal("measured", "of random tokens; real text is less even"),
    "forward_bytes": Reveal(
        "measured",
        "2·M·K·(N-1)/N rows of 4·D bytes; your ranks are not quite even",
        formula=lambda ranks, tokens, k, width: 2 * tokens * k * (ranks - 1) / ranks * 4 * width,
    ),
}
HIDDEN = (
    "minitrain/parallel/expert/exchange.py",
    "minitrain/model/experts/router.py",
    "minitrain/model/experts/dispatch.py",
    "minitrain/model/experts/moe.py",
)
DOUBLE = {"dtype": torch.float64}
H100_FLOPS, NVLINK, INFINIBAND = 794.5e12, 362e9, 36.75e9


# ---- the router ----


def case_of(m, count, k, dtype=torch.float64, bias=0.0):
    x, weight = torch.randn(m, 6, **DOUBLE), torch.randn(count, 6, **DOUBLE)
    biases = (bias * torch.randn(count, **DOUBLE)).to(torch.promote_types(dtype, torch.float32))
    return x.to(dtype), weight.to(dtype), biases, k


def far_case(m, count, k):
    """Logits about a thousand, whose exponentials are infinite."""
    x, weight, bias, k = case_of(m, count, k)
    x[:, 0], weight[:, 0] = 1.0, 1000.0
    return x, weight, bias, k


def tied_case(m, count, k):
    """Two experts alike, which every token prefers."""
    x, weight, bias, k = case_of(m, count, k)
    weight[1] = weight[0]
    x[:, 0], weight[:2, 0] = 1.0, 9.0
    return x, weight, 0 * bias, k


def near_case(m, count, k, dtype):
    """Probabilities so near to one another that many tie in a narrow dtype, and not in float32."""
    x, weight, bias, k = case_of(m, count, k)
    return x.to(dtype), (0.01 * weight).to(dtype), bias.float(), k


def oracle(x, weight, bias, k, mine):
    """p, experts, weights as they should be; of experts that are as good, `mine`."""
    wide = torch.promote_types(x.dtype, torch.float32)
    p = F.softmax(F.linear(x.to(wide), weight.to(wide)), dim=-1)
    experts = (p + bias).topk(k).indices
    got, best = ((p + bias).gather(1, e).sort(1).values for e in (mine, experts))
    as_good = ((got - best).abs() <= 16 * torch.finfo(wide).eps * best.abs()).all(1, keepdim=True)
    experts = torch.where(as_good, mine, experts)
    chosen = torch.gather(p, 1, experts)
    return p, experts, chosen / chosen.sum(1, keepdim=True) if k > 1 else chosen


def routes(submission, cases, right):
    """right(words, case, p, experts, weights) of each call in a row, once types and shapes are."""

    run = partial(submission.run, probes.in_turn)

    def judge(case, call):
        x, weight, _, k = case
        words = f"x {tuple(x.shape)} in {str(x.dtype).removeprefix('torch.')}, k = {k}"
        out, chosen = call["out"], (len(x), k)
        is_three = isinstance(out, (list, tuple)) and [type(t) for t in out] == [torch.Tensor] * 3
        expect.that(
            is_three, f"{words}: got {expect.show(out)}: return three tensors, p, experts, weights"
        )
        for name, got, shape in zip(
            ("p", "experts", "weights"), out, ((len(x), len(weight)), chosen, chosen)
        ):
            expect.that(
                got.shape == shape,
                f"{words}: {name} has the shape {tuple(got.shape)}, {shape} is asked for",
            )
        experts = out[1]
        expect.that(
            experts.dtype == torch.int64 and ((experts >= 0) & (experts < len(weight))).all(),
            f"{words}: experts are numbers, int64, as `topk(k).indices` has them",
        )
        for token, own in enumerate(experts.tolist()):
            expect.that(
                len(set(own)) == k,
                f"{words}: token {token} has the experts {own}, one of them twice: the k largest of p + bias are k different "
                "experts, also where p + bias is equal for some, or below 0",
            )
        right(words, case, *out)

    expect.left_alone(each(cases, run, judge), cases, ("x", "weight", "bias", "k"))


def same_choice(got, want, what, hints=()):
    expect.equal(got.sort(1).values, want.sort(1).values, what=what, hints=hints)


def passed_over(p, k, expert):
    """The choice, sorted, if this expert were struck out with another one, which is alike."""
    return p.index_fill(1, torch.tensor([expert]), -1).topk(k).indices.sort(1).values


ONE = (
    "p / p is 1 and teaches the router nothing, as does a softmax over one number: with one expert the "
    "weight is p"
)


def alone(k, weights):
    """What a weight that is divided, or a softmax of the chosen, gives for one expert."""
    return [(torch.ones_like(weights), ONE)] if k == 1 else []


def by_expert(values, experts):
    """The values of each token in the order of its experts' numbers, whatever order they came in."""
    return values.gather(1, experts.argsort(1))


class TestRoute(Exercise):
    """The top-k router"""

    name = "route"
    reference = "minitrain.parallel.expert.exchange:route"
    hidden = HIDDEN

    @check(points=3, title="the k most probable experts, weights of sum 1 (float64, k of 1 to E)")
    def test_choice(self, submission):
        cases = [case_of(7, 4, 2), case_of(5, 6, 3), case_of(7, 4, 2), far_case(4, 5, 2)]
        cases += [case_of(6, 5, 5), case_of(4, 3, 1), case_of(0, 4, 2), case_of(1, 1, 1)]
        cases += [tied_case(7, 5, 3)]
        routes(submission, cases, self.is_chosen)

    def is_chosen(self, words, case, p, mine, weights):
        x, weight, _, k = case
        want, experts, shares = oracle(*case, mine)
        logits = F.linear(x, weight)
        expect.that(
            p.dtype == want.dtype,
            f"x in float64 gave p in {p.dtype}: float32 *at least*, "
            "`torch.promote_types(x.dtype, torch.float32)`",
        )
        hints = [
            (logits, "those are the logits: softmax over the experts"),
            (logits.softmax(0), "that sums to 1 over tokens: softmax over the experts, dim=-1"),
            (logits.sigmoid(), "that is a sigmoid; this router takes a softmax"),
            (logits.exp() / logits.exp().sum(1, keepdim=True), "the exponentials of large logits are infinite: "
             "`softmax` takes off the largest one first"),
        ]  # fmt: skip
        expect.equal(p, want, what=f"p, {words}", hints=hints)
        least = want.topk(k, largest=False).indices.sort(1).values
        hints = [(least, "those are the k *least* probable")]
        if torch.equal(weight[:1], weight[1:2]):
            others = "of two experts with equal p one was passed over: an equal one is among the k largest, too"
            hints += [(passed_over(want, k, twin), others) for twin in (1, 0)]
        same_choice(mine, experts, f"the {k} experts of each token, {words}", hints)
        chosen = want.gather(1, mine)
        hints = [
            (chosen, "those do not sum to 1: divide by the sum of the k chosen p"),
            (chosen.softmax(1), "that is a softmax of p: p is one already, divide by the sum"),
        ]
        hints = [(by_expert(wrong, mine), told) for wrong, told in hints]
        hints = [*alone(k, chosen), *hints]
        ours, right = by_expert(weights, mine), by_expert(shares, experts)
        if k > 1 and len(x) and expect.difference(ours / ours.sum(1, keepdim=True), right) is None:
            sums = weights.sum(1)
            told = (
                f"a token's weights have the right proportions, and add up to {sums[(sums - 1).abs().argmax()]:.6g}: divide by the "
                "sum of the k chosen p, and by nothing more than that"
            )
            hints.append((ours, told))
        if expect.difference(ours.sort(1).values, right.sort(1).values) is None:
            hints = [(ours, "the right weights, beside other experts: order both in one way")]
        expect.equal(ours, right, what=f"weights, each beside its expert, {words}", hints=hints)

    @check(points=2, title="logits and softmax in float32, whatever the activations are in")
    def test_float32(self, submission):
        cases = [case_of(64, 8, 2, torch.bfloat16), case_of(9, 4, 2, torch.float32)]
        cases += [near_case(64, 8, 2, torch.bfloat16), near_case(64, 4, 1, torch.float16)]
        with below(self.test_choice, submission):
            routes(submission, cases, self.is_wide)

    def is_wide(self, words, case, p, mine, weights):
        x, weight, bias, k = case
        want, experts, shares = oracle(*case, mine)
        low = F.linear(x, weight)
        told = (
            f"that was computed in {x.dtype}, in which experts tie that do not: convert x and weight "
            "before they are multiplied"
        )
        expect.that(
            p.dtype == want.dtype,
            f"{words}: p is in {p.dtype}, {want.dtype} is asked for: convert x and weight to it before they "
            "are multiplied",
        )
        expect.that(
            weights.dtype == p.dtype,
            f"{words}: p is in {p.dtype}, the weights in {weights.dtype}: leave them in the type of p",
        )
        hints = [(low.softmax(-1).float(), told), (low.float().softmax(-1), told)]
        expect.equal(p, want, what=f"p, {words}", hints=hints)
        hints = [((low.softmax(-1) + bias).topk(k).indices.sort(1).values, told)]
        narrow = (want + bias).to(x.dtype)
        if torch.equal(
            *(narrow.gather(1, e).sort(1).values for e in (mine, narrow.topk(k).indices))
        ):
            told = (
                f"p is right, and those are the largest of p + bias rounded to {x.dtype}, in which experts tie that do not: choose "
                "in the type of p"
            )
            hints.insert(0, (mine.sort(1).values, told))
        same_choice(mine, experts, f"experts, {words}", hints)
        what, ours = f"weights, {words}", by_expert(weights, mine)
        expect.equal(ours, by_expert(shares, experts), what=what, hints=alone(k, shares))

    @check(points=3, title="the bias chooses, and does not weigh; what was given stays")
    def test_bias(self, submission):
        sizes = ((40, 5, 2, 0.5), (40, 5, 1, 0.5), (9, 7, 3, 0.2))
        cases = [case_of(*size, bias=bias) for *size, bias in sizes]
        x, weight, bias, k = case_of(9, 6, 3, bias=0.5)
        cases.append((x, weight, bias - 5, k))  # p + bias is below 0
        with below(self.test_choice, submission):
            routes(submission, cases, self.is_biased)

    def is_biased(self, words, case, p, mine, weights):
        x, weight, bias, k = case
        want, experts, shares = oracle(*case, mine)

        def best(scores):
            return scores.topk(k).indices.sort(1).values

        hints = [
            (best(want), "the bias was not used: choose by p + bias"),
            (best(F.linear(x, weight) + bias), "the bias was added to the logits: add it to p, after the softmax"),
            (best(want - bias), "the bias was subtracted: choose by p + bias"),
        ]  # fmt: skip
        same_choice(mine, experts, f"experts with a bias, {words}", hints)
        told = "the bias weighs: it only chooses. The weights come from p.gather(1, experts)"
        moved = (want + bias).gather(1, mine)
        mistakes = (moved, moved / moved.sum(1, keepdim=True), moved.softmax(1))
        hints = [*alone(k, shares), *((by_expert(wrong, mine), told) for wrong in mistakes)]
        what, ours = f"weights with a bias, {words}", by_expert(weights, mine)
        expect.equal(ours, by_expert(shares, experts), what=what, hints=hints)
        told = "the bias was added to the p that is returned: it only chooses"
        expect.equal(p, want, what=f"p with a bias, {words}", hints=[(want + bias, told)])

    @check(points=2, title="gradients flow to x and the router, by the weights and by p")
    def test_gradient(self, submission):
        cases = [case_of(m, e, k, bias=0.3) for m, e, k in ((6, 4, 2), (6, 4, 1), (6, 4, 2))]
        cases = [
            (*case, torch.randn(6, case[3], **DOUBLE), torch.randn(6, 4, **DOUBLE))
            for case in cases
        ]
        with below(self.test_bias, submission):
            each(cases, partial(submission.run, probes.routed), self.has_gradients)

    def has_gradients(self, case, found):
        x, weight, _, k, *slopes = case
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        p = F.softmax(F.linear(*leaves), dim=-1)
        chosen = p.gather(1, found["experts"])
        total = chosen.sum(1, keepdim=True)
        weights = chosen / total if k > 1 else chosen
        for by, out, slope, got in zip(("the weights", "p"), (weights, p), slopes, found["grads"]):
            for name, mine in zip(("x", "the router"), got):
                expect.that(
                    mine is not None,
                    f"k = {k}: no gradient of {name} comes by {by}: the router learns by it. `detach` nothing on "
                    "its way",
                )
            expect.that(k > 1 or got[1].abs().max() > 1e-9, f"k = 1: {ONE}")
            wants = probes.gradients(out, slope, leaves)
            others = wants
            if out is weights and k > 1:
                others = probes.gradients(chosen / total.detach(), slope, leaves)
            told = (
                "that is with a sum that has no gradient: the sum of the k chosen p is no constant"
            )
            for name, mine, want, other in zip(("x", "the router"), got, wants, others):
                what = f"k = {k}, gradient of {name} that comes by {by}"
                expect.equal(mine, want, what=what, hints=[(other, told)])


# ---- balance ----


def choices_of(sizes, count, k):
    """(p, experts) of each rank; on the last one nobody chooses the last expert."""
    made = []
    for m in sizes:
        p = torch.randn(m, count, **DOUBLE).softmax(-1)
        scores = p + 0.2 * torch.randn(m, count, **DOUBLE)
        scores[:, -1] += 1 if len(made) < len(sizes) - 1 else -9
        made.append((p, scores.topk(k).indices))
    return made


def by_rank(worlds):
    """Calls in a row, each of all ranks -> for each rank its own calls."""
    return [list(calls) for calls in zip(*worlds)]


def whole_loss(made):
    """The loss of one process over all, and its gradient with respect to each rank's p."""
    leaves = [p.clone().requires_grad_() for p, _ in made]
    p, experts = torch.cat(leaves), torch.cat([e for _, e in made])
    count = p.shape[1]
    f = torch.bincount(experts.flatten(), minlength=count).double() / experts.numel()
    loss = count * (f * p.mean(0)).sum()
    loss.backward()
    return loss.detach(), [leaf.grad for leaf in leaves]


COUNTED = 1e-6  # a share of whole numbers is a float32 in torch
# for each number of ranks calls in a row: (tokens of each rank, E, K)
WORLDS = {
    1: [([6], 4, 1), ([3], 5, 2)],
    2: [([5, 5], 5, 3), ([4, 7], 6, 2), ([5, 5], 5, 3), ([2601, 1500], 3, 2)],
    3: [([4, 7, 1], 6, 2), ([2, 0, 3], 4, 1)],
}
UNEVEN = re.compile(
    r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)|"
    r"all_reduce\(sum\) of int64 \[(\d+)\].* all_reduce\(sum\) of int64 \[(\d+)\]"
)


@contextmanager
def counting(numbers):
    """A run without a result is told what the counts of so many experts need, where they lack it."""
    try:
        yield
    except SubmissionFailed as failure:
        found = UNEVEN.search(str(failure))
        sizes = [int(size) for size in found.groups() if size] if found else []
        words = ""
        if sizes and min(sizes) < max(sizes) <= max(numbers):
            words = "an expert that none of a rank's tokens chose has a count too, 0: `minlength=E`"
        elif failure.kind in expect.HANGS:
            words = "every rank makes one all-reduce in each call, one without tokens too: its E counts are 0"
        raise SubmissionFailed(failure.kind, f"{failure}\n{words}".rstrip()) from None


def counts_travel(sent, count, rank, calls=1):
    """One all-reduce a call, of E numbers."""
    kinds = [kind for kind, *_ in sent]
    expect.that(
        kinds == ["all_reduce"] * calls,
        f"rank {rank} communicated by {kinds} in {plural(calls, 'call')}: one all-reduce of the counts says all, "
        "and their sum is K times the tokens",
    )
    most = max(nbytes for _, nbytes, *_ in sent)
    expect.that(
        most <= count * 8,
        f"rank {rank} reduced {most} bytes for {count} experts: only E counts travel",
    )


class TestBalance(Exercise):
    """The load-balancing loss"""

    name = "balance_loss"
    reference = "minitrain.parallel.expert.exchange:balance_loss"
    hidden = HIDDEN

    @check(
        points=3, title="the shares add up to the loss of one process (1, 2 and 3 ranks, float64)"
    )
    def test_sum(self, submission):
        for ranks, worlds in WORLDS.items():
            made = [choices_of(*world) for world in worlds]

            def run(made, ranks=ranks):
                calls = by_rank(made)
                with counting([world[0][0].shape[1] for world in made]):
                    results = submission.launch(probes.in_turn_on_ranks, calls, ranks=ranks)
                for rank, found in enumerate(results):
                    expect.left_alone(found, calls[rank], ("p", "experts"))
                return list(zip(*results))

            each(made, run, self.adds_up)

    def adds_up(self, made, calls):
        shares = [call["out"] for call in calls]
        sizes = [len(p) for p, _ in made]
        for rank, share in enumerate(shares):
            expect.that(
                isinstance(share, torch.Tensor) and share.numel() == 1,
                f"got {expect.show(share)}: each rank returns its share, a tensor of one number",
            )
            expect.that(
                sizes[rank] or not share.isnan().any(),
                "a rank without tokens gave NaN: its share is 0. A mean over no token is 0 / 0: divide p's sum by "
                "the tokens of all ranks",
            )
        shares = [share.double().reshape(()) for share in shares]
        total, (want, _) = sum(shares), whole_loss(made)
        whole = "each rank returned the whole loss: it gives its share, of its own tokens' p"
        mistakes = [([want] * len(made), whole)]
        mistakes += [([*map(share_of, made, own)], words) for own, words in factors(made)]
        parts = [(torch.zeros_like(p).scatter(1, e, p.gather(1, e)), e) for p, e in made]
        chosen = "P lacks the p of the experts that a token did not choose: it is the mean of all tokens' p"
        mistakes.append(([*map(share_of, parts, own_factors(made))], chosen))
        if sum(sizes) > 1000 and abs(total - want) < 0.01 * want:
            mistakes.append((shares, ROUNDED.format("the loss is")))
        same = [w for wrong, w in mistakes if expect.difference(shares, wrong, COUNTED) is None]
        count, k = made[0][0].shape[1], made[0][1].shape[1]
        words = f"sum over ranks with {sizes} tokens, {count} experts, K = {k}"
        expect.equal(total, want, tol=COUNTED, what=words, hints=[(total, told) for told in same])

    @check(points=6, title="one all-reduce, of E counts, and the gradient of p is one process's")
    def test_gradient(self, submission):
        made = [choices_of(*world) for world in WORLDS[3]]

        def run(made):
            with counting([world[0][0].shape[1] for world in made]):
                results = submission.launch(probes.shares, by_rank(made), ranks=3)
            add_what_was_sent(results, submission.notes)
            return list(zip(*results))

        with below(self.test_sum, submission):
            each(made, run, self.is_share)

    def is_share(self, made, calls):
        sizes, (_, grads) = [len(p) for p, _ in made], whole_loss(made)
        for rank, (found, want) in enumerate(zip(calls, grads)):
            expect.that(
                found["grad"] is not None,
                "p has no gradient: only f is a constant. This rank's own `p.sum(0)` stays in the loss; no collective "
                "of the group is known to autograd",
            )
            hints = [(own[rank].expand_as(want), words) for own, words in factors(made)]
            what = f"rank {rank} of ranks with {sizes} tokens, gradient of p"
            expect.equal(found["grad"], want, tol=COUNTED, what=what, hints=hints)
            counts_travel(found["forward"] + found["backward"], want.shape[1], rank)


ROUNDED = (
    "with few choices {} right, and not with thousands: there counts were rounded. bfloat16 has all whole numbers up to "
    "256 only, float16 up to 2048: add the counts up as they are, int64"
)


def own_factors(made):
    """By what the sums of each rank's p are multiplied."""
    count, n = made[0][0].shape[1], len(made)
    counts = sum(torch.bincount(e.flatten(), minlength=count) for _, e in made)
    return [count * counts.double() / counts.sum() / sum(len(p) for p, _ in made)] * n


def share_of(made, factors):
    return (made[0].sum(0) * factors).sum()


def factors(made):
    """By what likely mistakes multiply the sums of each rank's p: (a factor a rank, words)."""
    count, k, n = made[0][0].shape[1], made[0][1].shape[1], len(made)
    own = [torch.bincount(e.flatten(), minlength=count).double() for _, e in made]
    sizes = [len(p) for p, _ in made]
    tokens, f, fs = sum(sizes), sum(own) / sum(own).sum(), [c / c.sum() for c in own]
    (right, *_), used = own_factors(made), int((f > 0).sum())
    both = "f is divided by the choices, M·K of them, and p's sum by the tokens, the choices over K"
    mine = "p's sum was divided by this rank's tokens, or by the ranks' mean: divide p's sum by the tokens of all ranks"
    alone = (
        "f was counted over a rank's tokens alone: it counts the choices of all ranks, all-reduced"
    )
    return [
        ([right / count] * n, "that lacks the factor E: an even load has the loss 1"),
        ([right * used / count] * n, "E is the number of all experts, of those that got no choice, too"),
        ([right * k] * n, f"that is K times too large: {both}"),
        ([right / k] * n, f"that is K times too small: {both}"),
        ([count * f / size for size in sizes], mine),
        ([right * n] * n, mine),
        ([count * f / size / n for size in sizes], "that is the mean of the ranks' own means: a rank with few tokens "
         "counts too much. Divide p's sum by the tokens of all ranks"),
        ([count * g / size for g, size in zip(fs, sizes)], f"those are the ranks' own losses: {alone}"),
        ([count * g / size / n for g, size in zip(fs, sizes)], f"that is the mean of the ranks' own losses: {alone}"),
        ([count * g / tokens for g in fs], alone),
    ]  # fmt: skip


def add_what_was_sent(results, notes):
    """To each call of each rank, by the relay's notes: (kind, payload, bytes on the wire)."""
    for calls, own in zip(results, notes):
        for way in (ways := ("forward", "backward")):
            for found, run in zip(calls, relayed.runs(own, way, len(calls), ways)):
                ops = relayed.operations(run)
                found[way] = [(op.kind, op.payload_bytes, op.sent_bytes) for op in ops]


def bias_case(experts, count, dtype=torch.float64):
    """Arguments of `update_bias` on each rank, alike but for the experts; the rate is drawn."""
    bias, rate = torch.randn(count, **DOUBLE).to(dtype), 0.1 + 0.4 * torch.rand(()).item()
    shape = -1, len(experts[0][0])
    return [(bias, torch.tensor(e, dtype=torch.int64).view(shape), rate) for e in experts]


class TestBias(Exercise):
    """The auxiliary-loss-free bias"""

    name = "update_bias"
    reference = "minitrain.parallel.expert.exchange:update_bias"
    hidden = HIDDEN

    @check(points=5, title="up where too few on all ranks, down where too many, by one all-reduce")
    def test_bias(self, submission):
        for ranks in (2, 3):
            worlds = self.uneven(ranks)
            results = self.updated(submission, worlds, moved)
            for rank, trace in enumerate(results.traces):
                sent = [(op.kind, op.payload_bytes) for op in trace.ops]
                counts_travel(sent, 6, rank, len(worlds) + 1)

    @check(points=2, title="an expert with exactly the mean stays as it is, and so do the choices")
    def test_even(self, submission):
        choices = [[0, 1], [2, 3], [0, 1], [0, 2]]
        with below(self.test_bias, submission):
            for parts in ([choices], [choices[:2], choices[2:]]):
                world = bias_case(parts, 4)
                self.updated(submission, [world, world], self.stays)

    def stays(self, world, calls):
        words = "they got neither less nor more than the mean, 2: `torch.sign` of 0 is 0"
        bias, _, rate = world[0]
        for call in calls:
            expect.equal(
                call["given"][0][1:3],
                bias[1:3],
                tol=COUNTED,
                what="the bias of experts 1 and 2 (all ranks' counts [3, 2, 2, 1])",
                hints=[(bias[1:3] + step, words) for step in (-rate, rate)],
            )

    def updated(self, submission, worlds, right):
        """right(world, the ranks' calls) of each, which changed no argument but the bias."""
        launched = []

        def run(worlds):
            calls = by_rank(worlds)
            with counting([len(world[0][0]) for world in worlds]):
                results = submission.launch(probes.updated, calls, ranks=len(worlds[0]))
            for rank, found in enumerate(results):
                rest = [
                    {**call, "given": call["given"][1:], "later": None, "out": None}
                    for call in found
                ]
                given = [arguments[1:] for arguments in calls[rank]]
                expect.left_alone(rest, given, ("experts", "rate"), own=False)
            launched.append(results)
            return list(zip(*results))

        self.goes_on(worlds, each(worlds, run, right)[0])
        return launched[0]

    @staticmethod
    def goes_on(worlds, calls):
        """A second step on the first bias, with the last experts."""
        counts = [load_of_all(world) for world in (worlds[0], worlds[-1])]
        for rank, call in enumerate(calls):
            (before, got), rate = call["second"], worlds[-1][rank][2]
            want = before + (rate * torch.sign(counts[1].double().mean() - counts[1])).to(
                before.dtype
            )
            told = "the first step was right: a step goes by its own counts, and nothing is kept of those before it"
            what = (
                f"rank {rank}, a second step on the same bias (all ranks' counts {counts[1].tolist()}, in its first step "
                f"{counts[0].tolist()})"
            )
            expect.equal(got, want, tol=COUNTED, what=what, hints=[(got, told)])

    def uneven(self, ranks):
        """Rank 0 likes expert 0, the others 1. On 2 ranks [5, 4, 2, 3], of mean 3.5: rounded down it
        is the count of expert 3, rounded up that of expert 1. Then six experts, of which nobody on rank
        0 chooses the last two, and the last rank, where there are three, has no token. Five whose
        counts, about 3000, a narrow dtype has not; and the first one turned round."""
        first = [[[0, 1], [0, 3], [0, 3], [0, 2]], *[[[1, 3], [1, 0], [1, 2]]] * (ranks - 1)]
        second = [[[0], [0], [2]], [[0], [5], [5], [3]], []][:ranks]
        worlds = [bias_case(first, 4), bias_case(second, 6, torch.float32)]
        third = [[[3 - e for e in row] for row in rows] for rows in first]
        large = [[1501, 1500, 1499, 0, 2500], [1500, 1500, 1500, 0, 3500], [0] * 5][:ranks]
        large = [[[e] for e, n in enumerate(own) for _ in range(n)] for own in large]
        return [*worlds, bias_case(large, 5), bias_case(third, 4)]


def load_of_all(world):
    """How often each expert was chosen on all ranks."""
    return sum(torch.bincount(e.flatten(), minlength=len(world[0][0])) for _, e, _ in world)


def moved(world, calls):
    """The bias after the call: a step of `rate` by the counts of all ranks."""
    mistaken = [step_hints(world, rank) for rank in range(len(world))]
    total = load_of_all(world)
    mean = total.double().mean()
    found = [call["given"][0] for call in calls]
    told = {  # on all ranks
        rows[0][1]: None
        for rows in zip(*mistaken)
        if all(
            expect.difference(got, wrong.to(got.dtype), COUNTED) is None
            for got, (wrong, _) in zip(found, rows)
        )
    }
    for rank, ((bias, _, rate), got) in enumerate(zip(world, found)):
        want = (bias + rate * torch.sign(mean - total)).to(bias.dtype)
        expect.that(
            not torch.equal(got, bias),
            f"rank {rank}: the bias that was given is unchanged: write into it, `bias += …`",
        )
        if got.shape == bias.shape and is_multiple(got - bias, mean - total):
            told["the step is `rate` whatever the gap: take its sign"] = None
        if total.max() > 1000 and is_step(got - bias, rate):
            told = {ROUNDED.format("the steps are"): None}
        hints = [(got, "; or: ".join(told))] if told else []
        expect.equal(
            got,
            want,
            tol=COUNTED,
            what=f"rank {rank} of {len(world)}, the bias (all ranks' counts {total.tolist()})",
            hints=hints,
        )


def step_hints(world, rank):
    """What likely mistakes make of a rank's bias, in words."""
    bias, own, rate = world[rank]
    total = load_of_all(world)
    mean, each = total.double().mean(), own.numel() * len(world) / len(bias)
    counts = [torch.bincount(e.flatten(), minlength=len(bias)) for _, e, _ in world]
    step, votes = torch.sign(mean - total), [torch.sign(c.double().mean() - c) for c in counts]
    want = bias + rate * step
    whole = f"the mean is {mean:g}, no whole number: `counts.double().mean()`"
    vote = "each rank took the sign by its own counts, and the signs were added: add up the counts first"
    return [
        (bias - rate * step, "the wrong way round: who got too little goes up"),
        (bias + rate * votes[rank], "from this rank's own counts the ranks' biases drift apart: add up the counts of all ranks"),
        (bias + rate * sum(votes), vote),
        (bias + rate * torch.sign(sum(votes)), vote),
        (
            bias + rate * torch.sign(each - total),
            "the mean was reckoned from this rank's own choices, and ranks have different numbers of them: take the mean of the "
            "counts of all ranks",
        ),
        (bias + rate * torch.sign(mean.floor() - total), whole),
        (bias + rate * torch.sign(mean.ceil() - total), whole),
        (bias + rate * step.clamp(min=0), "who got too much goes down as well"),
        (bias + rate * step.clamp(max=0), "who got too little goes up as well"),
        (want - want.mean(), "then its mean was taken off: an expert moves by `rate`, or stays as it is"),
        (rate * step, "what the bias was is lost: add to it"),
    ]  # fmt: skip


def is_step(steps, rate):
    """Whether each is up, down or nothing, by `rate`."""
    return expect.difference((steps / rate).abs().round() * rate, steps.abs(), COUNTED) is None


def is_multiple(steps, gaps):
    """Whether steps are so many times gaps, which are not all of one size."""
    steps, gaps = steps.double(), gaps.double()
    factor = (steps * gaps).sum() / gaps.square().sum()
    alike = (steps - factor * gaps).abs().max() < 1e-5 * steps.abs().max()
    return bool(alike) and len(gaps.abs().unique()) > 1


# ---- rows ----


def order_of(experts, count, priority, factor=None):
    """The rows by a plain loop."""
    limit = math.inf if factor is None else math.ceil(factor * experts.numel() / count)
    flat, high = experts.flatten().tolist(), priority.flatten().tolist()
    rows, counts = [], []
    for e in range(count):
        own = sorted((c for c, x in enumerate(flat) if x == e), key=lambda c: (-high[c], c))
        kept = own if limit is math.inf else own[:limit]
        rows += kept
        counts.append(len(kept))
    return rows, counts


def plan_case(m, count, k, factor, levels=0):
    experts = torch.randn(m, max(1, count - 1)).topk(k).indices  # the last expert gets nothing
    priority = torch.rand(m, k, **DOUBLE)
    priority = (priority * levels).round() / levels if levels else priority
    return experts, count, priority, factor


def with_priority(case, change):
    experts, count, priority, factor = case
    return experts, count, change(priority), factor


def plans(submission, cases, right):
    """right(case, order, counts) of each call in a row, once they are whole."""

    run = partial(submission.run, probes.in_turn)

    def judge(case, call):
        expect.that(
            isinstance(call["out"], (list, tuple)) and len(call["out"]) == 2,
            f"got {expect.show(call['out'])}: return order and counts",
        )
        order, counts = call["out"]
        whole(order, counts, case)
        right(case, order.long(), counts)

    expect.left_alone(each(cases, run, judge), cases, ("experts", "count", "priority", "factor"))


def whole(order, counts, case):
    """Shapes, before anything is compared."""
    experts, count, *_ = case
    for name, t in (("order", order), ("counts", counts)):
        numbers = isinstance(t, torch.Tensor) and (not t.is_floating_point() or t.numel() == 0)
        expect.that(
            numbers and t.dim() == 1,
            f"{name} is {expect.show(t)}: a tensor of whole numbers, of one dimension, is asked for",
        )
    few = len(counts) < count
    words = "an expert that nobody chose has 0, `minlength=count`" if few else "one an expert"
    expect.that(len(counts) == count, f"{len(counts)} counts for {count} experts: {words}")
    choices = experts.numel()
    expect.that(
        all(0 <= c < choices for c in order.tolist()),
        f"order {order.tolist()}: it has the number of the choice in each row, and {choices} choices "
        f"have the numbers 0 to {choices - 1}",
    )
    if int(counts.sum()) != len(order):
        stand_together(case, order)  # else places within an expert mean nothing
        rows = torch.bincount(experts.flatten()[order], minlength=count).tolist()
        _, want = order_of(*case)
        words = ": drop from order what lies over the capacity, expert by expert"
        if counts.tolist() != want:
            words = ": counts are those of the *kept* rows: clamp them too" if rows == want else ""
        told = f"counts are {counts.tolist()}, of each expert order has {rows} rows{words}"
        raise CheckFailed(told)


def stand_together(case, order):
    flat, priority = case[0].flatten(), case[2]
    by = flat[order].tolist()
    words = "sort by priority first, then stably by expert"
    if (
        sorted(order.tolist()) == list(range(len(flat)))
        and sorted(by) == flat[order.argsort()].tolist()
    ):
        words = "that is the row of each choice, the inverse of what is asked for"
    elif priority.numel() and not 0 <= priority.min() <= priority.max() < 1:
        words = (
            f"{words}. (Here priorities go from {priority.min():.3g} to {priority.max():.3g}, both included: in "
            "one key of expert and priority, added or subtracted, they reach the next expert's)"
        )
    expect.that(
        by == sorted(by),
        f"the experts of the rows are {by}: rows of one expert stand together, 0 first. "
        f"`order[i]` is the choice in row i; {words}",
    )


class TestPlan(Exercise):
    """Choices to rows: dropless, and with a capacity"""

    name = "plan"
    reference = "minitrain.parallel.expert.exchange:plan"
    hidden = HIDDEN

    @check(points=4, title="dropless: every choice once, by expert, and the rows of each")
    def test_dropless(self, submission):
        cases = [plan_case(7, 5, 2, None), plan_case(9, 4, 3, None), plan_case(1, 3, 1, None)]
        cases += [plan_case(7, 5, 2, None)[:3], plan_case(0, 4, 2, None), plan_case(3, 1, 1, None)]
        plans(submission, cases, self.is_dropless)

    def is_dropless(self, case, order, counts):
        experts = case[0]
        want, rows = order_of(*case)
        flat, k = experts.flatten(), experts.shape[1]
        expect.that(
            len(order) == len(flat),
            f"{len(order)} rows for {len(flat)} choices: without a factor none is dropped",
        )
        expect.equal(counts.tolist(), rows, what="rows of each expert")
        words = "a row has the number of its choice"
        if sorted(order.tolist()) == sorted(c // k for c in want):
            words = f"those are tokens, choice // K: {words}"
        expect.that(
            sorted(order.tolist()) == list(range(len(flat))),
            f"order {order.tolist()} does not have each of the choices 0 to {len(flat) - 1} once: {words}",
        )
        stand_together(case, order)

    @check(points=3, title="within an expert from high to low priority, equals in their order")
    def test_order(self, submission):
        plain = [plan_case(8, 4, 2, None), plan_case(20, 4, 2, None, levels=3)]
        changes = (torch.Tensor.float, lambda p: 20 * p - 10, lambda p: 10 ** (-30 * p))
        changes += (lambda p: 1 + 1e-10 * p,)  # all of them 1 in float32
        cases = plain + [with_priority(plan_case(12, 4, 2, None), change) for change in changes]
        with below(self.test_dropless, submission):
            plans(submission, cases, self.is_ordered)

    def is_ordered(self, case, order, counts):
        stand_together(case, order)
        want, _ = order_of(*case)
        expect.equal(
            order.tolist(), want, what="the choice in each row", hints=order_hints(case, order)
        )

    @check(points=3, title="a capacity keeps the highest priority, ceil(factor·M·K/E) at most")
    def test_capacity(self, submission):
        cases = [plan_case(11, 4, 2, 1.0), plan_case(13, 5, 2, 1.25), plan_case(7, 4, 3, 0.5)]
        cases += [
            plan_case(6, 4, 2, 4.0),
            plan_case(12, 4, 2, 1.0, levels=2),
            plan_case(0, 4, 2, 1.25),
        ]
        cases += [plan_case(6, 4, 2, 0.0)]
        cases += [with_priority(plan_case(12, 4, 2, 1.0), lambda p: 20 * p - 10)]
        with below(self.test_order, submission):
            plans(submission, cases, self.is_kept)

    def is_kept(self, case, order, counts):
        experts, count, priority, factor = case
        (want, rows), (_, uncut) = order_of(*case), order_of(experts, count, priority)
        most, limit = max(counts.tolist()), max(rows)
        exact = factor * experts.numel() / count
        expect.that(
            factor > 0 or len(order) < experts.numel(),
            f"a factor of 0.0 leaves room for nothing, {len(order)} rows were kept: only None drops nothing, "
            "`factor is not None`",
        )
        k = experts.shape[1]
        full = [c for c in want if all(t in want for t in range(c // k * k, c // k * k + k))]
        apart = (
            "a token lost all of its choices where one was dropped: each choice stands for itself"
        )
        capped = {
            "it is rounded up, not down": math.floor(exact),
            "M tokens make M·K choices": math.ceil(factor * len(experts) / count),
        }
        likely = {words: [min(n, room) for n in uncut] for words, room in capped.items()}
        likely["nothing was dropped, and an expert's own rows are what is limited"] = uncut
        found = [words for words, own in likely.items() if own == counts.tolist()]
        if sorted(order.tolist()) == sorted(full):
            found = [apart]
        told = (
            " or ".join(found) or "each expert keeps so many of its own, whatever the others have"
        )
        expect.that(
            most == limit,
            f"the busiest expert keeps {most} rows, and should keep {limit}; with a factor of {factor:g}, "
            f"{experts.numel()} choices and {count} experts its capacity is ceil({exact:g}) = {math.ceil(exact)}: {told}",
        )
        first, _ = order_of(experts, count, 0 * priority, factor)
        low, _ = order_of(experts, count, -priority, factor)
        hints = [
            (sorted(first), "the first tokens were kept: those of highest priority are"),
            (sorted(low), "those of lowest priority were kept: sort from high to low"),
            (sorted(full), apart),
        ]
        if as_high(experts, priority, order) == as_high(experts, priority, want):
            hints.insert(0, (sorted(order.tolist()), EQUALS))
        expect.equal(sorted(order.tolist()), sorted(want), what="choices kept", hints=hints)
        stand_together(case, order)
        expect.equal(order.tolist(), want, what="the right choices are kept; the one in each row")

    @check(points=2, title="kept and dropped add up: an expert's overflow costs no other expert")
    def test_conserved(self, submission):
        experts = torch.tensor([[0, 1], [0, 2], [0, 1], [0, 3], [0, 3], [0, 2]])
        cases = [(experts, 4, torch.rand(6, 2, **DOUBLE), 1.0)]
        with below(self.test_capacity, submission):
            plans(submission, cases, self.is_conserved)

    def is_conserved(self, case, order, counts):
        expect.equal(
            counts.tolist(),
            [3, 2, 2, 2],
            what="rows of 4 experts of capacity 3 that 6, 2, 2 and 2 choices name",
            hints=[([6, 2, 2, 2], "expert 0 has more than its capacity: drop its overflow")],
        )


EQUALS = (
    "equal priorities: the earlier choice comes first. `stable=True` in both sorts, and `descending=True` in the "
    "first: a flip afterwards turns equals round"
)


def as_high(experts, priority, choices):
    """(expert, priority) of these choices, sorted: alike where they differ among equals alone."""
    flat, high = experts.flatten().tolist(), priority.flatten().tolist()
    return sorted((flat[c], high[c]) for c in torch.as_tensor(choices).tolist())


def order_hints(case, order):
    """Words for what is wrong with the order within an expert."""
    experts, count, priority, _ = case
    want, _ = order_of(experts, count, priority)
    first, _ = order_of(experts, count, 0 * priority)
    low, _ = order_of(experts, count, -priority)
    hints = [
        (first, "that is in order of token: sort by priority first, then stably by expert"),
        (low, "that is from low to high: `descending=True`"),
    ]
    got, right = priority.flatten()[order].double(), priority.flatten()[want].double()
    if torch.equal(got, right):
        hints.insert(0, (order.tolist(), EQUALS))
    elif got.shape == right.shape and (got - right).abs().max() < 1e-3 * right.abs().max():
        told = (
            "priorities that differ little are not in order: sort by the priority itself, which neither is "
            "rounded nor mixed with the expert's number"
        )
        is_near = priority.max() - priority.min() < 1e-3 * priority.abs().max()
        hints.insert(0 if is_near else len(hints), (order.tolist(), told))
    return hints


# ---- dispatch and combine ----


def mix_case(m, count, k, factor):
    """(x, weights, order, counts, matrices) of a call of `mix`, and the experts of each token."""
    x, matrices = torch.randn(m, 5, **DOUBLE), list(torch.randn(count, 5, 5, **DOUBLE))
    weights = torch.rand(m, k, **DOUBLE)
    weights = weights / weights.sum(1, keepdim=True)
    experts, _, priority, _ = plan_case(m, count, k, factor)
    order, counts = order_of(experts, count, priority, factor)
    return (x, weights, torch.tensor(order).long(), torch.tensor(counts), matrices), experts


def by_token(case, experts, how="after"):
    """Token by token, choice by choice."""
    x, weights, order, _, matrices = case
    kept, k = set(order.tolist()), experts.shape[1]
    rows = []
    for t in range(len(x)):
        y, mine = 0 * x[t], [j for j in range(k) if t * k + j in kept]
        for j in mine:
            w, m = weights[t, j], matrices[experts[t, j]]
            if how == "before":
                y = y + torch.tanh((w * x[t]) @ m)
            elif how == "none":
                y = y + torch.tanh(x[t] @ m)
            elif how == "both":
                y = y + w * torch.tanh((w * x[t]) @ m)
            elif how == "scaled":
                y = y + k / len(mine) * w * torch.tanh(x[t] @ m)
            elif how == "renormalised":
                y = y + w / weights[t, mine].sum() * torch.tanh(x[t] @ m)
            else:
                y = y + w * torch.tanh(x[t] @ m)
        if how == "passed" and not mine:
            y = x[t]
        rows.append(y)
    return torch.stack(rows)


def added(case, tokens, places, residual=False, to=None):
    """Rows i of x[tokens[i]], weighted by weights[places[i]], added to y[tokens[i]] or y[to[i]]."""
    x, weights, _, counts, matrices = case
    answers = probes.Bank(matrices)(x[tokens], counts).detach()
    weighed = answers * weights.flatten()[places].unsqueeze(1)
    return (x if residual else 0 * x).index_add(0, tokens if to is None else to, weighed)


def one_answer(case, y):
    """Nothing is dropped, and each token has one of its answers where several are to be added?"""
    x, weights, order, counts, matrices = case
    if (
        not isinstance(y, torch.Tensor)
        or y.shape != x.shape
        or weights.shape[1] == 1
        or len(order) < weights.numel()
    ):
        return False
    tokens = order // weights.shape[1]
    answers = probes.Bank(matrices)(x[tokens], counts).detach()
    weighed = answers * weights.flatten()[order].unsqueeze(1)
    same = [(weighed[tokens == t] - y[t]).abs().amax(1).min() < 1e-9 for t in tokens.unique()]
    return all(same)


OUT_OF_BOUNDS = {
    "out of bounds": "`order[i]` is the number of a choice, 0 to M·K - 1: its token is `order[i] // K`, its weight "
    "`weights.flatten()[order[i]]`",
    "a leaf Variable": "an argument was written into, which is the caller's",
    "modified by an inplace": "autograd keeps a tensor that was changed in place, such as an answer: `answers * weights` "
    "makes a new one, `answers *= weights` does not",
}


def mixes(submission, made, right):
    """right((case, experts of each token), y, calls of the experts) of each call in a row."""

    def run(made):
        with expect.because(OUT_OF_BOUNDS):
            return submission.run(probes.mixed, [case for case, _ in made])

    def judge(one, call):
        right(*one, call["out"]["y"], call["out"]["calls"])

    cases = [case for case, _ in made]
    expect.left_alone(each(made, run, judge), cases, ("x", "weights", "order", "counts"))


def tokens_of_others(case, calls):
    """[words] where the rows that the experts were given are tokens, and not those of the choices."""
    x, weights, order, *_ = case
    rows, k = calls[0][0] if calls else x[:0], weights.shape[1]
    if len(rows) != len(order) or rows.shape[1:] != x.shape[1:]:
        return []
    found = [[t for t in range(len(x)) if torch.equal(row, x[t])] for row in rows]
    wrong = [i for i, c in enumerate(order.tolist()) if c // k not in found[i]]
    if not wrong or not all(found):
        return []
    i, choice = wrong[0], int(order[wrong[0]])
    return [
        f"row {i} is choice {choice}, of token {choice // k} ({choice} // K), but the experts got token {found[i][0]} in "
        "it: `x[order // K]`"
    ]


def one_row_a_choice(case, calls):
    """The experts were called once, with the rows that were chosen."""
    kept = len(case[2])
    expect.that(
        len(calls) == 1,
        f"experts was called {len(calls)} times for {kept} rows: once, with all rows, also where there is none",
    )
    expect.that(
        len(calls[0][0]) == kept,
        f"experts computed {len(calls[0][0])} rows for {kept} kept choices of {len(case[0])} tokens: only "
        "what a token chose is computed, that is the point of a mixture",
    )


class TestMix(Exercise):
    """Dispatch and combine"""

    name = "mix"
    reference = "minitrain.parallel.expert.exchange:mix"
    hidden = HIDDEN

    @check(points=4, title="each token's answers, computed once, weighted and added (float64)")
    def test_value(self, submission):
        sizes = ((7, 5, 2, None), (6, 4, 3, 0.5), (8, 4, 1, 0.5), (7, 5, 2, None), (5, 4, 2, 0.0))
        mixes(submission, [mix_case(*size) for size in sizes], self.is_mixed)

    def is_mixed(self, case, experts, y, calls):
        m, k, order = len(case[0]), experts.shape[1], case[2]
        expect.that(
            not one_answer(case, y),
            "each token has one of its answers only: `y[tokens] += …` writes the last one where a number comes "
            "twice, `index_add` adds",
        )
        hints = [
            (by_token(case, experts, "before"), "the weights were multiplied before the experts, which are not linear: weigh the answers"),
            (by_token(case, experts, "both"), "the weights were multiplied twice, before the experts and after: weigh the answers"),
            (by_token(case, experts, "none"), "the answers were added without their weights"),
            (by_token(case, experts, "renormalised"), "the weights of what was kept were made to add up to 1 again: they stay as they are"),
            (by_token(case, experts, "scaled"), "the sum of a token that lost a choice was made larger for it: the others keep their "
             "weights, and get no more"),
            (added(case, order // k, order, residual=True), "x was added: the residual stream goes around the layer, start from zeros"),
            (by_token(case, experts, "passed"), "a token whose choices were all dropped gets 0 here: the residual stream around the "
             "layer carries it on"),
            (added(case, order % m, order), "choice c belongs to token c // K: a token's choices are side by side"),
            (added(case, order // k, torch.arange(len(order))), "row i has the weight of choice `order[i]`, not the i-th weight"),
            (added(case, order // k, order, to=order % m), "the answers are right, and come to other tokens: add row i to token `order[i] // K`"),
        ]  # fmt: skip
        hints += [(y, words) for words in tokens_of_others(case, calls)]
        what = f"y of {m} tokens, {experts.numel() - len(order)} choices dropped"
        expect.equal(y, by_token(case, experts), what=what, hints=hints)
        one_row_a_choice(case, calls)

    @check(points=2, title="gradients of x and of the weights; a dropped choice has none")
    def test_gradient(self, submission):
        made = [mix_case(7, 5, 2, 0.5), mix_case(7, 5, 2, None)]
        made = [((*case, torch.randn(7, 5, **DOUBLE)), experts) for case, experts in made]

        def run(made):
            with expect.because(OUT_OF_BOUNDS):
                return submission.run(probes.mixed_gradients, [case for case, _ in made])

        with below(self.test_value, submission):
            each(made, run, self.has_gradients)

    def has_gradients(self, made, found):
        (*case, slope), experts = made
        leaves = [case[0].clone().requires_grad_(), case[1].clone().requires_grad_()]
        y = by_token((*leaves, *case[2:]), experts)
        wants = probes.gradients(y, slope, leaves)
        for name, mine, want in zip(("x", "the weights"), found, wants):
            expect.that(
                mine is not None,
                f"{name} got no gradient: nothing on the way may be detached, the router learns by it",
            )
            expect.equal(mine, want, what=f"gradient of {name}")

    @check(points=2, title="the experts are called once, with one row for each kept choice")
    def test_rows(self, submission):
        sizes = ((9, 4, 2, 0.5), (3, 6, 2, None), (4, 4, 2, 0.0))
        mixes(submission, [mix_case(*size) for size in sizes], self.has_rows)

    def has_rows(self, case, experts, y, calls):
        one_row_a_choice(case, calls)
        words = tokens_of_others(case, calls)
        expect.that(not words, "".join(words))


# ---- all-to-all ----


def exchange_case(counts, width=3):
    """counts of each rank's rows for each expert -> (rows, counts, slope, experts) of each rank."""
    matrices = list(torch.randn(len(counts[0]), width, width, **DOUBLE))
    made = []
    for own in counts:
        rows, slope = torch.randn(2, sum(own), width, **DOUBLE)
        made.append((rows, torch.tensor(own), slope, matrices))
    return made


def all_here(made):
    """(answers, gradients of rows) of each rank, and gradients of all experts, in one process."""
    bank = probes.Bank(made[0][3])
    leaves = [rows.clone().requires_grad_() for rows, *_ in made]
    ys = [bank(rows, counts) for rows, (_, counts, *_) in zip(leaves, made)]
    sum((y * slope).sum() for y, (_, _, slope, _) in zip(ys, made)).backward()
    return [y.detach() for y in ys], [r.grad for r in leaves], [m.grad for m in bank.matrices]


def with_mistake(made, how):
    """The answers of each rank, in one process, if what arrived is sorted and put back as `how` says."""
    matrices = made[0][3]
    n, held = len(made), len(matrices) // len(made)
    load = torch.stack([counts for _, counts, *_ in made]).view(n, n, held)  # from, to, expert
    blocks = [rows.split(load[source].sum(1).tolist()) for source, (rows, *_) in enumerate(made)]
    home = [[] for _ in range(n)]
    for rank in range(n):
        arrived = torch.cat([blocks[source][rank] for source in range(n)])
        expert = torch.arange(held).repeat(n).repeat_interleave(load[:, rank].flatten())
        order = expert.argsort(stable=True)
        bank = probes.Bank(matrices[rank * held : (rank + 1) * held])
        sizes = load[:, rank].sum(1 if how == "row sums" and held == n else 0)
        answers = bank(arrived if how == "unsorted" else arrived[order], sizes)
        put_back = {"by order": order, "row sums": order.argsort()}
        answers = answers[put_back[how]].detach() if how in put_back else answers.detach()
        for source, part in enumerate(answers.split(load[:, rank].sum(1).tolist())):
            home[source].append(part)
    return [torch.cat(parts) for parts in home]


EXCHANGE_MISTAKES = {
    "unsorted": "rows were answered by the wrong expert. What arrives is sorted by source, then by expert: sort it "
    "by expert (`argsort(stable=True)` of each row's expert) before `experts` is called",
    "left": "the right answers in the wrong order: undo the sort by expert before the answers go home, "
    "`answers[order.argsort()]`",
    "row sums": "`experts` was given row sums of `arriving`, how many rows came from each rank: column sums are the rows "
    "of each of its experts",
    "by order": "the right answers in the wrong order: with `order` what the rows were sorted by, `answers[order]` sorts a "
    "second time. To undo the sort take `answers[order.argsort()]`",
}
# for each number of ranks calls in a row: the rows that each rank has for each expert
COUNTS = {
    2: (
        [[2, 1, 0, 3], [1, 0, 2, 2]],
        [[3, 0, 0, 0], [2, 1, 0, 0]],  # all to one rank: the other experts get nothing
        [[1, 2, 0, 3, 1, 0, 2, 1], [0, 1, 2, 0, 3, 1, 0, 1]],  # four experts a rank
        [[2, 3], [1, 0]],  # one
        [[0, 0, 0, 0], [1, 2, 0, 1]],  # a rank without rows of its own
    ),
    3: (
        [[1, 2, 0, 1, 0, 3], [0, 0, 0, 0, 2, 1], [2, 1, 3, 0, 1, 1]],
        [[2, 0, 1], [0, 1, 1], [1, 2, 2]],
    ),
    1: ([[3, 0, 2]], [[1, 1]]),
}


SENT_AND_GOT = (
    "in an all-to-all of rows, what a rank says that it `got` from another is what that one `sent` to it: exchange "
    "the counts first (`all_to_all(output, input)` fills the first), `sent` are row sums of what leaves, `got` of "
    "what arrives"
)
LIKELY = {
    "no rank had gone on": f"every rank waits for others: {SENT_AND_GOT}",
    expect.HANGS: "every rank makes the same all-to-alls in the same order, also one without rows to send",
    "experts was given": "`experts` takes the counts of its own E/N experts, what *arrived* for each: column "
    "sums of `arriving`",
    "repeats must have the same size": "of what arrives there are N · E/N counts, and `torch.arange(E/N).repeat(N)` has as "
    "many numbers: E/N differs from call to call",
    ("died", "alltoall"): SENT_AND_GOT,
    (
        "splits",
        "split_with_sizes",
    ): "`sent` is how many rows leave for each rank, `got` how many come from each, and what is handed over has as many "
    "rows as the first list adds up to; on the way back the two lists are exchanged, `all_to_all(…, group, got, sent)`",
}


def exchanges(submission, ranks, right):
    """right(what each rank was given, what is known of it) of each call in a row."""

    def run(made):
        with expect.because(LIKELY):
            results = submission.launch(probes.exchanged, by_rank(made), ranks=ranks, timeout=5)
        add_what_was_sent(results, submission.notes)
        for rank, found in enumerate(results):
            given = [world[rank][:2] for world in made]
            expect.left_alone(found, given, ("rows", "counts"), what=f"rank {rank}")
        return list(zip(*results))

    each([exchange_case(counts) for counts in COUNTS[ranks]], run, right)


def load_of(made):
    """(N, N) rows: from a rank, to a rank."""
    n = len(made)
    return torch.stack([counts for _, counts, *_ in made]).view(n, n, -1).sum(2)


NEEDED = {
    "counts": "a rank is told the counts of its own experts alone",
    "rows": "a row goes to the one rank that has its expert",
    "answers": "an answer goes to the one rank that has its token",
    "gradients of answers": "each goes to the one rank that computed the answer",
    "gradients of rows": "each goes to the one rank that has the token",
}


def rows_travel(made, found):
    """A row goes to the one rank that has its expert, and so does its gradient."""
    load, row = load_of(made), made[0][0].shape[1] * 8
    for rank, one in enumerate(found):
        has_gradient(rank, one)
        others = {kind for kind, *_ in one["forward"] + one["backward"]} - {"all_to_all"}
        expect.that(
            not others,
            f"rank {rank} also used {sorted(others)}: counts and rows go by all-to-alls, each to the "
            "one rank that needs it",
        )
        out = int(load[rank].sum() - load[rank, rank]) * row
        back = int(load[:, rank].sum() - load[rank, rank]) * row
        most = len(made[rank][1]) * 8
        for way, limits in (("forward", (most, out, back)), ("backward", (0, out, back))):
            sent = [b for *_, b in one[way]]
            if out + back <= sum(sent) <= sum(limits):
                continue
            told = f"rank {rank} of {len(made)} sent {sent} bytes {way}"
            names = list(NEEDED)[:3] if way == "forward" else list(NEEDED)[3:]
            if len(sent) != len(names):
                raise CheckFailed(
                    f"{told}, in {len(sent)} all-to-alls: {', '.join(names)} take one each"
                )
            for name, got, limit in zip(names, sent, limits[-len(names) :]):
                expect.that(
                    got <= limit,
                    f"{told}, where {name} need {limit}{' at most' if name == 'counts' else ''}: {NEEDED[name]}",
                )
            raise CheckFailed(f"{told}, in all {out + back} at least: {row} for each row")


def has_gradient(rank, one):
    expect.that(
        one["rows"] is not None,
        f"rank {rank}: its rows got no gradient: `group.all_to_all` is none of autograd's, send rows and answers "
        "with `all_to_all(rows, group, sent, got)`, and detach nothing",
    )


class TestExchange(Exercise):
    """Experts on other ranks"""

    name = "exchange"
    reference = "minitrain.parallel.expert.exchange:exchange_naive"
    hidden = HIDDEN

    @check(points=5, title="answers as if all experts were here, by all-to-alls (1 to 3 ranks)")
    def test_answers(self, submission):
        for ranks in COUNTS:
            exchanges(submission, ranks, self.is_answered)

    def is_answered(self, made, found):
        want, _, _ = all_here(made)
        mistaken = [(with_mistake(made, how), t) for how, t in EXCHANGE_MISTAKES.items()]
        for rank, (one, y) in enumerate(zip(found, want)):
            expect.that(
                one["out"].shape == y.shape,
                f"rank {rank}: {tuple(one['out'].shape)} came home for rows of {tuple(y.shape)}",
            )
            words = f"the answers of rank {rank} of {len(made)}, {len(made[0][1])} experts"
            hints = [(ys[rank], told) for ys, told in mistaken]
            if expect.difference(one["out"], y, 0.02) is None:
                told = "those are nearly the answers: rows and answers keep their dtype, nothing is rounded on the way"
                hints.append((one["out"], told))
            expect.equal(one["out"], y, what=words, hints=hints)
        rows_travel(made, found)

    @check(points=4, title="backward of rows and experts: nothing divided, a row to one rank only")
    def test_gradients(self, submission):
        with below(self.test_answers, submission):
            for ranks in (2, 3):
                exchanges(submission, ranks, self.has_gradients)

    def has_gradients(self, made, found):
        ranks, (_, rows, experts) = len(made), all_here(made)
        for rank, one in enumerate(found):
            has_gradient(rank, one)
            held = len(experts) // ranks
            own = experts[rank * held : (rank + 1) * held]
            for e, (got, want) in enumerate(zip(one["experts"], own)):
                told = "that is divided by the number of ranks: what came by the all-to-all is the whole sum already"
                hints = [
                    (want / ranks, told),
                    (want * ranks, f"that is {ranks} times too large: it is added up already"),
                    (0 * want, "none came: experts learn from the rows of other ranks"),
                ]
                got = torch.zeros_like(want) if got is None else got
                what = f"rank {rank} of {ranks}, gradient of its expert {e}"
                expect.equal(got, want, what=what, hints=hints)
            want = rows[rank]
            hints = [(want / ranks, "that is divided by the number of ranks")]
            what = f"rank {rank} of {ranks}, gradient of its rows"
            expect.equal(one["rows"], want, what=what, hints=hints)
        with expect.though("every gradient is right"):
            rows_travel(made, found)

    @check(points=3, title="three all-to-alls forward, two backward; a row goes to one rank only")
    def test_bytes(self, submission):
        for ranks in (2, 3):
            exchanges(submission, ranks, self.has_bytes)

    def has_bytes(self, made, found):
        for rank, one in enumerate(found):
            has_gradient(rank, one)
            kinds = {kind for kind, *_ in one["forward"] + one["backward"]}
            times = len(one["forward"]), len(one["backward"])
            expect.that(
                times == (3, 2) or kinds != {"all_to_all"},
                f"rank {rank}: {times[0]} all-to-alls forward and {times[1]} "
                "backward: counts, rows, answers; and the gradients of the last two",
            )
        rows_travel(made, found)

    @check(points=2, title="each rank answers for its own experts, in one call, rows by expert")
    def test_calls(self, submission):
        with below(self.test_answers, submission):
            exchanges(submission, 3, self.is_called)

    def is_called(self, made, found):
        total = torch.stack([counts for _, counts, *_ in made]).sum(0).view(3, -1)
        blocks = [rows.split(counts.tolist()) for rows, counts, *_ in made]  # by source, expert
        for rank, one in enumerate(found):
            sizes = [sizes for _, sizes in one["calls"]]
            expect.that(
                sizes == [total[rank].tolist()],
                f"rank {rank}: experts was called with counts {sizes}, its experts get {total[rank].tolist()} rows "
                "from all ranks: one call, rows of its first expert, then of the second",
            )
            parts = one["calls"][0][0].split(sizes[0])
            for expert, part in enumerate(parts, start=rank * len(parts)):
                want = torch.cat([own[expert] for own in blocks])
                expect.that(
                    part.shape == want.shape
                    and torch.equal(part[part[:, 0].argsort()], want[want[:, 0].argsort()]),
                    f"rank {rank}: among the {len(part)} rows for expert {expert} are some of another expert: sort "
                    "what arrived by expert",
                )


# ---- experiments ----


class TestTraffic(Experiment):
    """What travels"""

    name = "traffic"
    rests_on = ("route", "plan", "mix", "exchange")

    @check(points=5, title="bytes are those of the rows that leave and come, to the byte")
    def test_bytes(self, table):
        for row in table:
            n, what = row["ranks"], f"{row['ranks']} ranks, rank {row['rank']}"
            moved = (row["rows_out"] + row["rows_in"]) * row["width"] * 4
            expect.equal(row["forward_bytes"], moved, what=f"{what}: bytes forward, (out + in)·D·4")
            expect.equal(row["backward_bytes"], moved, what=f"{what}: bytes backward, the same")
            expect.that(
                row["messages"] == 5,
                f"{what}: {row['messages']} all-to-alls: counts, rows, answers, and two gradients",
            )
            expect.that(n > 1 or moved == 0, "one rank sends nothing to others")

    @check(points=3, title="over all ranks near 2·M·K·(N-1)/N rows, on 1 to 8 ranks")
    def test_even(self, table):
        ranks = sorted({row["ranks"] for row in table})
        expect.that(max(ranks) >= 4 and len(ranks) >= 3, f"measured on {ranks} ranks: 1, 2, 4, 8")
        for n in ranks:
            own = [row for row in table if row["ranks"] == n]
            expect.that(len(own) == n, f"{len(own)} rows of the table for {n} ranks: one each")
            rows = sum(row["rows_out"] for row in own)
            came = sum(row["rows_in"] for row in own)
            expect.that(rows == came, f"{n} ranks: {rows} rows left, {came} came: none may be lost")
            even = own[0]["tokens"] * own[0]["k"] * (n - 1)
            expect.that(
                abs(rows - even) <= 0.25 * even,
                f"{n} ranks: {rows} rows left, N·M·K·(N-1)/N is {even:.0f}: was the router's choice used?",
            )


ROUTERS = ("alone", "loss", "bias")


def ends(table, router, column):
    rows = [row for row in table if row["router"] == router]
    expect.that(len(rows) >= 20, f"'{router}' has {len(rows)} steps: 20 at least are asked for")
    return sum(row[column] for row in rows[-10:]) / 10


class TestLoads(Experiment):
    """The load over experts, three routers"""

    name = "balance"
    rests_on = ("route", "balance_loss", "update_bias")

    @check(points=4, title="no choice is lost: every step counts all tokens K times")
    def test_conserved(self, table):
        for router in ROUTERS:
            counts = {row["choices"] for row in table if row["router"] == router}
            expect.that(
                len(counts) == 1,
                f"'{router}': choices a step {sorted(counts)[:5]}, they are the same in each step",
            )
        for row in table:
            expect.that(
                row["most"] >= 1 and 0 <= row["dropped"] < 1,
                f"'{row['router']}', step {row['step']}: most {row['most']}, dropped {row['dropped']}: the busiest "
                "expert has an even load at least, and a share is below 1",
            )

    @check(points=5, title="the loss and the bias leave less to drop than a router left alone")
    def test_order(self, table):
        dropped = {router: ends(table, router, "dropped") for router in ROUTERS}
        most = {router: ends(table, router, "most") for router in ROUTERS}
        told = ", ".join(f"{r} {d:.1%} (busiest {most[r]:.2f}x)" for r, d in dropped.items())
        for router in ("loss", "bias"):
            expect.that(
                dropped[router] < 0.8 * dropped["alone"] and most[router] < most["alone"],
                f"dropped at 1.25 in the last ten steps: {told}. '{router}' should hold the load together",
            )


class TestEqualFlops(Experiment):
    """Dense against mixture at equal active FLOPs"""

    name = "equal_flops"
    rests_on = ("route", "plan", "mix", "balance_loss")

    @check(points=4, title="the same FLOPs a token but the router's, more parameters")
    def test_flops(self, table):
        rows = {row["model"]: row for row in table}
        expect.that(
            "dense" in rows and len(rows) >= 4, f"models {sorted(rows)}: dense and three mixtures"
        )
        dense = rows["dense"]
        for name, row in rows.items():
            expect.close(
                row["flops_per_token"],
                dense["flops_per_token"],
                tol=0.05,
                what=f"FLOPs a token of '{name}' against dense",
            )
            if name != "dense":
                expect.that(
                    row["parameters"] > 1.2 * dense["parameters"]
                    and row["active"] < row["parameters"],
                    f"'{name}' has {row['parameters']} parameters, {row['active']} active, the dense model "
                    f"{dense['parameters']}: a mixture has more, and uses as many",
                )

    @check(points=4, title="every loss is above the floor, and training lowered it")
    def test_loss(self, table):
        for row in table:
            expect.that(
                row["floor"] < row["loss"] < 4.0,
                f"'{row['model']}': held-out loss {row['loss']:.3f}, between the floor {row['floor']:.3f} and 4.0 "
                "is what these steps give",
            )
        losses = [row["loss"] for row in table]
        expect.that(
            max(losses) - min(losses) < 0.5,
            f"losses {[round(x, 3) for x in losses]} differ by more than FLOPs explain: same steps, same data?",
        )


# ---- questions ----


class TestWidth(Question):
    """How wide an expert must be"""

    name = "enough_width"
    rests_on = ("traffic",)

    @check(points=5, title="F at which experts take as long as the all-to-alls, NVLink, 64 ranks")
    def test_value(self, value, records):
        want = 2 * 2 * 63 / 64 / NVLINK * H100_FLOPS / 6
        expect.close(
            value,
            want,
            tol=0.03,
            what="the width F",
            hints=[
                (want * NVLINK / INFINIBAND, "that is over InfiniBand"),
                (
                    2048,
                    "DeepSeek-V3's all-to-alls take 0.70 of the time: a narrower expert would do",
                ),
                (want / 2, "rows go there and back: two all-to-alls"),
                (want * 2, "2 bytes a number, there and back: 4 bytes for 6·F FLOPs"),
                (1 / want, "turn the fraction round: the ratio falls as 1/F"),
            ],
        )


class TestBusiest(Question):
    """What a dropless layer waits for"""

    name = "busiest"
    rests_on = ("balance",)

    @check(points=5, title="the busiest expert of a router left alone, last ten steps")
    def test_value(self, value, records):
        table = expect.recorded(records, "balance")
        want = ends(table, "alone", "most")
        own = [row["most"] for row in table if row["router"] == "alone"]
        others = [
            (own[-1], "that is the last step alone: take the mean of the last ten"),
            (sum(own) / len(own), "that is the mean of all steps: take the last ten"),
        ]
        others += [
            (ends(table, name, "most"), f"that is with the {name}") for name in ("loss", "bias")
        ]
        expect.close(
            value, want, tol=0.02, what="the busiest expert's load over an even one", hints=others
        )


class TestInterferes(Question):
    """What the remedies do to the gradient"""

    name = "interferes"
    rests_on = ("balance",)

    @check(points=5, title="which remedy has a gradient: loss, bias, both or neither")
    def test_value(self, value, records):
        expect.among(value, ["loss", "bias", "both", "neither"])
        expect.that(
            value == "loss",
            f"got {value!r}: the loss goes backwards through p to the router and to all below it; a bias that "
            "is moved by hand and only chooses appears in no derivative",
        )
