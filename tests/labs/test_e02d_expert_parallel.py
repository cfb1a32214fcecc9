"""The checks of lab e02d: experts, graded by who gets which row, what travels, and every gradient."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, check

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
HIDDEN = (
    "minitrain/parallel/expert/plain.py",
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
    return x.to(dtype), weight.to(dtype), biases, k, torch.randn(m, k, **DOUBLE)


def oracle(x, weight, bias, k):
    """p, experts, weights as they should be, and p over all."""
    wide = torch.promote_types(x.dtype, torch.float32)
    p = F.softmax(F.linear(x.to(wide), weight.to(wide)), dim=-1)
    experts = (p + bias).topk(k).indices
    chosen = torch.gather(p, 1, experts)
    return p, experts, chosen / chosen.sum(1, keepdim=True) if k > 1 else chosen


def same_choice(got, want, what, hints=()):
    expect.that(
        isinstance(got, torch.Tensor) and got.dtype == torch.int64,
        f"{what}: experts are numbers, int64, as `topk(k).indices` has them",
    )
    expect.equal(got.sort(1).values, want.sort(1).values, what=what, hints=hints)


class TestRoute(Exercise):
    """The top-k router"""

    name = "route"
    reference = "minitrain.parallel.expert.plain:route"
    hidden = HIDDEN

    @check(points=4, title="the k most probable experts, weights of sum 1 (float64, k of 2 and 3)")
    def test_choice(self, submission):
        cases = [case_of(7, 4, 2), case_of(5, 6, 3)]
        for case, found in zip(cases, submission.run(probes.routed, cases)):
            x, weight, bias, k, _ = case
            p, experts, weights = oracle(x, weight, bias, k)
            got = found["out"]
            logits = F.linear(x, weight)
            expect.that(
                got[0].dtype == p.dtype,
                f"x in float64 gave p in {got[0].dtype}: float32 *at least*, "
                "`torch.promote_types(x.dtype, torch.float32)`",
            )
            expect.equal(
                got[0],
                p,
                what="p",
                hints=[
                    (logits, "those are the logits: softmax over the experts"),
                    (
                        logits.softmax(0),
                        "that sums to 1 over tokens: softmax over the experts, dim=-1",
                    ),
                    (logits.sigmoid(), "that is a sigmoid; this router takes a softmax"),
                ],
            )
            same_choice(got[1], experts, f"the {k} experts of each token")
            order = got[1].argsort(1)
            full = p.gather(1, got[1])
            expect.equal(
                got[2].gather(1, order),
                weights.gather(1, experts.argsort(1)),
                what="weights, each beside its expert",
                hints=[
                    (
                        full.gather(1, order),
                        "those do not sum to 1: divide by the sum of the k chosen p",
                    ),
                    (
                        full.softmax(1).gather(1, order),
                        "that is a softmax of p: p is one already, divide by the sum",
                    ),
                ],
            )

    @check(points=2, title="logits and softmax in float32, whatever the activations are in")
    def test_float32(self, submission):
        cases = [case_of(64, 8, 2, torch.bfloat16), case_of(9, 4, 2, torch.float32)]
        for (x, weight, bias, k, _), found in zip(cases, submission.run(probes.routed, cases)):
            p, experts, _ = oracle(x, weight, bias, k)
            got = found["out"]
            low = F.linear(x, weight).softmax(-1)
            words = (
                "that was computed in bfloat16, in which experts tie that do not: convert x and weight "
                "before they are multiplied"
            )
            expect.that(
                got[0].dtype == p.dtype,
                f"x in {x.dtype}: p is in {got[0].dtype}, {p.dtype} is asked for: convert x and weight before they "
                "are multiplied",
            )
            expect.that(
                got[2].dtype == p.dtype,
                f"x in {x.dtype}: p is in {p.dtype}, the weights in {got[2].dtype}: leave them in the type of p",
            )
            expect.equal(
                got[0], p, what=f"p, x in {x.dtype}",
                hints=[(low.float(), words), (F.linear(x, weight).float().softmax(-1), words)],
            )  # fmt: skip
            same_choice(got[1], experts, f"experts, x in {x.dtype}")

    @check(points=2, title="the bias chooses, and does not weigh")
    def test_bias(self, submission):
        cases = [case_of(40, 5, 2, bias=0.5)]
        for (x, weight, bias, k, _), found in zip(cases, submission.run(probes.routed, cases)):
            p, experts, weights = oracle(x, weight, bias, k)
            none = oracle(x, weight, 0 * bias, k)[1].sort(1).values
            logits = (F.linear(x, weight) + bias).topk(k).indices.sort(1).values
            hints = [
                (none, "the bias was not used: choose by p + bias"),
                (logits, "the bias was added to the logits: add it to p, after the softmax"),
            ]
            same_choice(found["out"][1], experts, "experts with a bias", hints)
            order = found["out"][1].argsort(1)
            with_bias = (p + bias).gather(1, experts)
            with_bias = with_bias / with_bias.sum(1, keepdim=True)
            place = experts.argsort(1)
            hints = [
                (
                    with_bias.gather(1, place),
                    "the bias weighs: it only chooses. The weights come from p.gather(1, experts)",
                )
            ]
            expect.equal(
                found["out"][2].gather(1, order),
                weights.gather(1, place),
                what="weights with a bias",
                hints=hints,
            )
            expect.equal(found["bias"], bias, what="the bias that was given, afterwards")

    @check(points=2, title="gradients flow to the router, for one expert a token too")
    def test_gradient(self, submission):
        cases = [case_of(6, 4, 2), case_of(6, 4, 1)]
        for (x, weight, _bias, k, slope), found in zip(cases, submission.run(probes.routed, cases)):
            leaf = weight.clone().requires_grad_()
            mine = found["out"][1]
            p = F.softmax(F.linear(x, leaf), dim=-1).gather(1, mine)
            weights = p / p.sum(1, keepdim=True) if k > 1 else p
            (weights * slope).sum().backward()
            expect.that(
                found["grad"] is not None,
                "the weights have no gradient: the router learns by it. `detach` nothing on their way",
            )
            words = f"k = {k}: p / p is 1 and teaches the router nothing: with one expert the weight is p"
            hints = [(torch.zeros_like(weight), words)] if k == 1 else []
            if k == 1:
                expect.that(found["grad"].abs().max() > 1e-9, words)
            expect.equal(
                found["grad"], leaf.grad, what=f"k = {k}, gradient of the router", hints=hints
            )


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


def whole_loss(made):
    """The loss of one process over all, and its gradient with respect to each rank's p."""
    leaves = [p.clone().requires_grad_() for p, _ in made]
    p, experts = torch.cat(leaves), torch.cat([e for _, e in made])
    count = p.shape[1]
    f = torch.bincount(experts.flatten(), minlength=count).double() / experts.numel()
    loss = count * (f * p.mean(0)).sum()
    loss.backward()
    return loss.detach(), [leaf.grad for leaf in leaves]


def mean_of_means(made):
    """f over all ranks, but each rank's own mean of p."""
    count = made[0][0].shape[1]
    f = torch.bincount(torch.cat([e for _, e in made]).flatten(), minlength=count).double()
    means = torch.stack([p.mean(0) for p, _ in made])
    return count * (f / f.sum() * means.mean(0)).sum()


def own_losses(made):
    """What each rank would compute with its own counts alone."""
    return [whole_loss([one])[0] for one in made]


COUNTED = 1e-6  # a share of whole numbers is a float32 in torch
WORLDS = (([5, 5], 5, 3), ([4, 7, 1], 6, 2), ([6], 4, 1))  # tokens, E, K


def shared(submission, made):
    words = "an expert that none of a rank's tokens chose has a count too, 0: `minlength=E`"
    with expect.because({("mismatch", "must match the size"): words}):
        return submission.launch(probes.shares, made, ranks=len(made))


class TestBalance(Exercise):
    """The load-balancing loss"""

    name = "balance_loss"
    reference = "minitrain.parallel.expert.plain:balance_loss"
    hidden = HIDDEN

    @check(
        points=5, title="the shares add up to the loss of one process (1, 2 and 3 ranks, float64)"
    )
    def test_sum(self, submission):
        for sizes, count, k in WORLDS:
            made = choices_of(sizes, count, k)
            results = shared(submission, made)
            want, _ = whole_loss(made)
            own, n = own_losses(made), len(sizes)
            hints = [
                (want / count, "that lacks the factor E: an even load has the loss 1"),
                (want * k, "that is K times too large: f is the share of the choices, M·K of them"),
                (want / k, "that is K times too small: the tokens are the choices over K"),
            ]
            if n > 1:
                hints += [
                    (want * n, f"that is {n} times too large: each rank gives the whole loss, not its share. Divide "
                     "p's sum by the tokens of all ranks"),
                    (sum(own), "those are the ranks' own losses, added: f counts the choices of all ranks"),
                    (sum(own) / n, "that is the mean of the ranks' own losses, another loss for each cut of the "
                     "batch: f counts the choices of all ranks"),
                    (mean_of_means(made), "that is the mean of the ranks' own means: a rank with few tokens counts too "
                     "much. Divide p's sum by the tokens of all ranks"),
                ]  # fmt: skip
            total = sum(result["share"] for result in results)
            words = f"sum over {n} ranks with {sizes} tokens"
            expect.equal(total.double(), want, tol=COUNTED, what=words, hints=hints)

    @check(points=3, title="the gradient of p is that of one process, on every rank")
    def test_gradient(self, submission):
        sizes, count, k = WORLDS[1]
        made = choices_of(sizes, count, k)
        results = shared(submission, made)
        _, grads = whole_loss(made)
        words = "divide p's sum by the tokens of all ranks, not by this rank's"
        for rank, (result, want) in enumerate(zip(results, grads)):
            own = whole_loss([made[rank]])[1][0]
            alone = want * sum(sizes) / sizes[rank]
            expect.that(
                result["grad"] is not None,
                "p has no gradient: only f is a constant. This rank's own `p.sum(0)` stays in the loss; no collective "
                "of the group is known to autograd",
            )
            expect.equal(
                result["grad"],
                want,
                tol=COUNTED,
                what=f"rank {rank}, gradient of p",
                hints=[
                    (own, "f was counted over this rank's tokens alone: all-reduce the counts"),
                    (want / count, "that lacks the factor E"),
                    (
                        want * k,
                        "f is the share of the choices, M·K of them: that is K times too large",
                    ),
                    (alone, words),
                    (alone / len(sizes), words),
                ],
            )

    @check(points=1, title="one all-reduce, of E counts")
    def test_message(self, submission):
        for rank, result in enumerate(shared(submission, choices_of([4, 3], 6, 2))):
            kinds = [kind for kind, _ in result["sent"]]
            expect.that(
                kinds == ["all_reduce"],
                f"rank {rank} communicated by {kinds}: one all-reduce of the counts says all, and their sum is "
                "K times the tokens",
            )
            nbytes = result["sent"][0][1]
            expect.that(
                nbytes <= 6 * 8,
                f"rank {rank} reduced {nbytes} bytes for 6 experts: only E counts travel",
            )


class TestBias(Exercise):
    """The auxiliary-loss-free bias"""

    name = "update_bias"
    reference = "minitrain.parallel.expert.plain:update_bias"
    hidden = HIDDEN

    @check(points=5, title="up where an expert got too little on all ranks, down where too much")
    def test_bias(self, submission):
        for ranks in (2, 3):
            made = self.uneven(ranks)
            bias = torch.randn(4, **DOUBLE)
            results = submission.launch(probes.updated, made, bias, 0.25, ranks=ranks)
            counts = [torch.bincount(e.flatten(), minlength=4) for _, e in made]
            total = sum(counts)
            step = torch.sign(total.double().mean() - total)
            gap = total.double().mean() - total
            floor = torch.sign(total.sum() // 4 - total)
            words = "the step is `rate` whatever the gap: take its sign"
            for rank, result in enumerate(results):
                own = torch.sign(counts[rank].double().mean() - counts[rank])
                expect.that(
                    not torch.equal(result["bias"], bias),
                    f"rank {rank}: the bias that was given is unchanged: write into it, `bias += …`",
                )
                expect.equal(
                    result["bias"],
                    bias + 0.25 * step,
                    tol=COUNTED,
                    what=f"rank {rank} of {ranks}, the bias (all ranks' counts {total.tolist()})",
                    hints=[
                        (bias - 0.25 * step, "the wrong way round: who got too little goes up"),
                        (
                            bias + 0.25 * own,
                            "from this rank's own counts the ranks' biases drift apart: add up the counts of all ranks",
                        ),
                        (bias + 0.25 * gap, words),
                        (bias + 0.25 * gap / total.double().mean(), words),
                        (bias + 0.25 * gap / total.sum(), words),
                        (
                            bias + 0.25 * floor,
                            f"the mean is {total.double().mean():g}, no whole number: `counts.double().mean()`",
                        ),
                        (0.25 * step, "what the bias was is lost: add to it"),
                    ],
                )

    @check(points=2, title="an expert with exactly the mean stays; one all-reduce, nothing else")
    def test_even(self, submission):
        made = [(None, torch.tensor(e)) for e in ([[0, 1], [2, 3]], [[0, 1], [0, 2]])]
        bias = torch.randn(4, **DOUBLE)
        results = submission.launch(probes.updated, made, bias, 0.25, ranks=2)
        words = "they got neither less nor more than the mean, 2: `torch.sign` of 0 is 0"
        for result in results:
            expect.equal(
                result["bias"][1:3],
                bias[1:3],
                what="the bias of experts 1 and 2 (all ranks' counts [3, 2, 2, 1])",
                hints=[(bias[1:3] + step, words) for step in (-0.25, 0.25)],
            )
            expect.that(
                result["kinds"] == ["all_reduce"],
                f"communicated by {result['kinds']}: one all-reduce of the counts",
            )

    def uneven(self, ranks):
        """Rank 0 likes expert 0, the others 1. On 2 ranks [5, 4, 2, 3], of mean 3.5: rounded down it
        is the count of expert 3, rounded up that of expert 1."""
        made = [(None, torch.tensor([[0, 1], [0, 3], [0, 3], [0, 2]]))]
        made += [(None, torch.tensor([[1, 3], [1, 0], [1, 2]]))] * (ranks - 1)
        return made


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
    experts = torch.randn(m, count).topk(k).indices % (count - 1)  # the last expert gets nothing
    priority = torch.rand(m, k, **DOUBLE)
    priority = (priority * levels).round() / levels if levels else priority
    return experts, count, priority, factor


class TestPlan(Exercise):
    """Choices to rows: dropless, and with a capacity"""

    name = "plan"
    reference = "minitrain.parallel.expert.plain:plan"
    hidden = HIDDEN

    @check(points=4, title="dropless: every choice once, by expert, and the rows of each")
    def test_dropless(self, submission):
        cases = [plan_case(7, 5, 2, None), plan_case(9, 4, 3, None), plan_case(1, 3, 1, None)]
        for case, (order, counts) in zip(cases, submission.run(probes.planned, cases)):
            experts = case[0]
            _, each = order_of(*case)
            flat = experts.flatten()
            whole(order, counts, case)
            expect.that(
                len(order) == len(flat),
                f"{len(order)} rows for {len(flat)} choices: without a factor none is dropped",
            )
            expect.equal(counts.tolist(), each, what="rows of each expert")
            expect.that(
                sorted(order.tolist()) == list(range(len(flat))),
                f"order {order.tolist()} does not have each choice once: it has the number of the choice "
                "in each row, not the row of each choice",
            )
            by = flat[order].tolist()
            expect.that(
                by == sorted(by),
                f"the experts of the rows are {by}: rows of one expert stand together, 0 first. "
                "`order[i]` is the choice in row i",
            )

    @check(points=3, title="within an expert from high to low priority, equals in their order")
    def test_order(self, submission):
        cases = [plan_case(8, 4, 2, None), plan_case(20, 4, 2, None, levels=3)]
        for case, (order, counts) in zip(cases, submission.run(probes.planned, cases)):
            whole(order, counts, case)
            experts, count, priority, _ = case
            want, _ = order_of(*case)
            plain, _ = order_of(experts, count, 0 * priority)
            low, _ = order_of(experts, count, -priority)
            words = "equal priorities: the earlier choice comes first, `stable=True` in both sorts"
            ties = priority.unique().numel() < priority.numel()
            hints = [
                (plain, "that is in order of token: sort by priority first, then stably by expert"),
                (low, "that is from low to high: `descending=True`"),
            ]
            same = [priority.flatten()[c].item() for c in order.tolist()]
            if ties and same == [priority.flatten()[c].item() for c in want]:
                hints.append((order.tolist(), words))
            by = experts.flatten()[order].tolist()
            expect.that(
                by == sorted(by),
                f"the experts of the rows are {by}: rows of one expert stand together. Sort twice, by priority and then "
                "by expert: a number that mixes both can tie",
            )
            expect.equal(order.tolist(), want, what="the choice in each row", hints=hints)

    @check(points=3, title="a capacity keeps the highest priority, ceil(factor·M·K/E) at most")
    def test_capacity(self, submission):
        cases = [plan_case(11, 4, 2, 1.0), plan_case(13, 5, 2, 1.25), plan_case(7, 4, 3, 0.5)]
        for case, (order, counts) in zip(cases, submission.run(probes.planned, cases)):
            experts, count, priority, factor = case
            want, each = order_of(*case)
            whole(order, counts, case, "counts are those of the *kept* rows: clamp them too")
            most, limit = max(counts.tolist()), max(each)
            exact = factor * experts.numel() / count
            advice = {
                math.floor(exact): "it is rounded up, not down",
                math.ceil(factor * len(experts) / count): "M tokens make M·K choices",
            }.get(most, "it is each expert's own: drop what lies over it, expert by expert")
            expect.that(
                most == limit,
                f"the busiest expert keeps {most} rows; with a factor of {factor:g}, {experts.numel()} choices and "
                f"{count} experts its capacity is ceil({exact:g}) = {math.ceil(exact)}: {advice}",
            )
            first, _ = order_of(experts, count, 0 * priority, factor)
            hints = [(sorted(first), "the first tokens were kept: those of highest priority are")]
            low, _ = order_of(experts, count, -priority, factor)
            hints += [(sorted(low), "those of lowest priority were kept: sort from high to low")]
            expect.equal(sorted(order.tolist()), sorted(want), what="choices kept", hints=hints)
            expect.equal(order.tolist(), want, what="the choice in each row")

    @check(points=2, title="kept and dropped add up: an expert's overflow costs no other expert")
    def test_conserved(self, submission):
        experts = torch.tensor([[0, 1], [0, 2], [0, 1], [0, 3], [0, 3], [0, 2]])
        case = (experts, 4, torch.rand(6, 2, **DOUBLE), 1.0)
        order, counts = submission.run(probes.planned, [case])[0]
        whole(order, counts, case)
        expect.equal(
            counts.tolist(),
            [3, 2, 2, 2],
            what="rows of 4 experts of capacity 3 that 6, 2, 2 and 2 choices name",
            hints=[([6, 2, 2, 2], "expert 0 has more than its capacity: drop its overflow")],
        )


def whole(order, counts, case, advice="order has one entry a kept row"):
    """Shapes, before anything is compared."""
    _, count, _, _ = case
    for name, t in (("order", order), ("counts", counts)):
        expect.that(
            isinstance(t, torch.Tensor) and not t.is_floating_point() and t.dim() == 1,
            f"{name} is {expect.show(t)}: a tensor of whole numbers, of one dimension, is asked for",
        )
    expect.that(
        len(counts) == count,
        f"{len(counts)} counts for {count} experts: an expert that nobody chose has 0, `minlength=count`",
    )
    expect.that(
        int(counts.sum()) == len(order),
        f"counts add up to {int(counts.sum())}, order has {len(order)} rows: {advice}",
    )


# ---- dispatch and combine ----


def mix_case(m, count, k, factor):
    x, matrices = torch.randn(m, 5, **DOUBLE), list(torch.randn(count, 5, 5, **DOUBLE))
    weights = torch.rand(m, k, **DOUBLE)
    weights = weights / weights.sum(1, keepdim=True)
    experts, _, priority, _ = plan_case(m, count, k, factor)
    order, counts = order_of(experts, count, priority, factor)
    slope = torch.randn(m, 5, **DOUBLE)
    case = (x, weights, torch.tensor(order), torch.tensor(counts), matrices, slope)
    return case, experts


def by_token(case, experts, how="after"):
    """Token by token, choice by choice."""
    x, weights, order, _, matrices, _ = case
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
            elif how == "renormalised":
                y = y + w / weights[t, mine].sum() * torch.tanh(x[t] @ m)
            else:
                y = y + w * torch.tanh(x[t] @ m)
        if how == "passed" and not mine:
            y = x[t]
        rows.append(y)
    return torch.stack(rows)


def added(case, tokens, places, residual=False):
    """Rows i of x[tokens[i]], weighed by weights[places[i]], added to y[tokens[i]]."""
    x, weights, _, counts, matrices, _ = case
    answers = probes.Bank(matrices)(x[tokens], counts).detach()
    weighed = answers * weights.flatten()[places].unsqueeze(1)
    return (x if residual else 0 * x).index_add(0, tokens, weighed)


def one_answer(case, y):
    """Nothing is dropped, and each token has one of its answers where several are to be added?"""
    x, weights, order, counts, matrices, _ = case
    if y.shape != x.shape or weights.shape[1] == 1 or len(order) < weights.numel():
        return False
    tokens = order // weights.shape[1]
    weighed = probes.Bank(matrices)(x[tokens], counts).detach() * weights.flatten()[
        order
    ].unsqueeze(1)
    same = [(weighed[tokens == t] - y[t]).abs().amax(1).min() < 1e-9 for t in tokens.unique()]
    return all(same)


def mixes(submission, made):
    words = "`order[i]` is the number of a choice: its token is `order[i] // K`"
    with expect.because({"out of bounds": words}):
        return submission.run(probes.mixed, [case for case, _ in made])


class TestMix(Exercise):
    """Dispatch and combine"""

    name = "mix"
    reference = "minitrain.parallel.expert.plain:mix"
    hidden = HIDDEN

    @check(points=4, title="each token's answers, weighed and added (float64, dropped ones too)")
    def test_value(self, submission):
        made = [mix_case(7, 5, 2, None), mix_case(6, 4, 3, 0.5), mix_case(8, 4, 1, 0.5)]
        for (case, experts), got in zip(made, mixes(submission, made)):
            m, k, order = len(case[0]), experts.shape[1], case[2]
            expect.that(
                not one_answer(case, got["y"]),
                "each token has one of its answers only: `y[tokens] += …` writes the last one where a number comes "
                "twice, `index_add` adds",
            )
            expect.equal(
                got["y"],
                by_token(case, experts),
                what=f"y of {len(case[0])} tokens, {experts.numel() - len(case[2])} choices dropped",
                hints=[
                    (
                        by_token(case, experts, "before"),
                        "the weights were multiplied before the experts, which are not linear: weigh the answers",
                    ),
                    (
                        by_token(case, experts, "both"),
                        "the weights were multiplied twice, before the experts and after: weigh the answers",
                    ),
                    (
                        by_token(case, experts, "none"),
                        "the answers were added without their weights",
                    ),
                    (
                        by_token(case, experts, "renormalised"),
                        "the weights of what was kept were divided by their sum: they stay as they are",
                    ),
                    (
                        by_token(case, experts, "passed"),
                        "a token whose choices were all dropped gets 0 here: the residual stream around the layer "
                        "carries it on",
                    ),
                    (
                        added(case, order // k, order, residual=True),
                        "x was added: the residual stream goes around the layer, start from zeros",
                    ),
                    (
                        added(case, order % m, order),
                        "choice c belongs to token c // K: a token's choices are side by side",
                    ),
                    (
                        added(case, order // k, torch.arange(len(order))),
                        "row i has the weight of choice `order[i]`, not the i-th weight",
                    ),
                ],
            )

    @check(points=2, title="gradients of x and of the weights; a dropped choice has none")
    def test_gradient(self, submission):
        made = [mix_case(7, 5, 2, 0.5)]
        for (case, experts), got in zip(made, mixes(submission, made)):
            x, weights, *rest, slope = case
            x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
            y = by_token((x, weights, *rest, slope), experts)
            want = torch.autograd.grad((y * slope).sum(), [x, weights])
            for name, mine, theirs in zip(("x", "the weights"), got["grads"], want):
                expect.that(
                    got["y"].shape == x.shape,
                    f"y is {expect.show(got['y'])} for x of {tuple(x.shape)}",
                )
                expect.that(
                    mine is not None,
                    f"{name} got no gradient: nothing on the way may be detached, the router learns by it",
                )
                expect.equal(mine, theirs, what=f"gradient of {name}")

    @check(points=2, title="the experts are called once, with one row for each kept choice")
    def test_rows(self, submission):
        made = [mix_case(9, 4, 2, 0.5)]
        for (case, _), got in zip(made, mixes(submission, made)):
            calls, rows = got["calls"], len(case[2])
            expect.that(
                len(calls) == 1, f"experts was called {len(calls)} times: once, with all rows"
            )
            expect.that(
                len(calls[0][0]) == rows,
                f"experts computed {len(calls[0][0])} rows for {rows} kept choices of {len(case[0])} tokens: only "
                "what a token chose is computed, that is the point of a mixture",
            )


# ---- all-to-all ----


def exchange_case(counts, width=3):
    """counts of each rank's rows for each expert -> what each rank is given; and the experts."""
    made = []
    for own in counts:
        rows = torch.randn(sum(own), width, **DOUBLE)
        made.append((rows, torch.tensor(own), torch.randn(sum(own), width, **DOUBLE)))
    return made, list(torch.randn(len(counts[0]), width, width, **DOUBLE))


def all_here(made, matrices):
    """(answers, gradients of rows) of each rank, and gradients of all experts, in one process."""
    bank = probes.Bank(matrices)
    leaves = [rows.clone().requires_grad_() for rows, _, _ in made]
    ys = [bank(rows, counts) for rows, (_, counts, _) in zip(leaves, made)]
    sum((y * slope).sum() for y, (_, _, slope) in zip(ys, made)).backward()
    return [y.detach() for y in ys], [r.grad for r in leaves], [m.grad for m in bank.matrices]


def with_mistake(made, matrices, how):
    """The answers of each rank, in one process, if what arrived is sorted and put back as `how` says."""
    n, held = len(made), len(matrices) // len(made)
    load = torch.stack([counts for _, counts, _ in made]).view(n, n, held)  # from, to, expert
    blocks = [rows.split(load[source].sum(1).tolist()) for source, (rows, _, _) in enumerate(made)]
    home = [[] for _ in range(n)]
    for rank in range(n):
        arrived = torch.cat([blocks[source][rank] for source in range(n)])
        expert = torch.arange(held).repeat(n).repeat_interleave(load[:, rank].flatten())
        order = expert.argsort(stable=True)
        bank = probes.Bank(matrices[rank * held : (rank + 1) * held])
        answers = bank(arrived if how == "unsorted" else arrived[order], load[:, rank].sum(0))
        answers = answers[order].detach() if how == "by order" else answers.detach()
        for source, part in enumerate(answers.split(load[:, rank].sum(1).tolist())):
            home[source].append(part)
    return [torch.cat(parts) for parts in home]


EXCHANGE_MISTAKES = {
    "unsorted": "rows were answered by the wrong expert. What arrives is sorted by source, then by expert: sort it "
    "by expert (`argsort(stable=True)` of each row's expert) before `experts` is called",
    "left": "the right answers in the wrong order: undo the sort by expert before the answers go home, "
    "`answers[order.argsort()]`",
    "by order": "the right answers in the wrong order: `answers[order]` sorts a second time. To undo the sort take "
    "`answers[order.argsort()]`",
}
COUNTS = (
    [[2, 1, 0, 3], [1, 0, 2, 2]],
    [[1, 2, 0, 1, 0, 3], [0, 0, 0, 0, 2, 1], [2, 1, 3, 0, 1, 1]],
    [[3, 0, 0, 0], [2, 1, 0, 0]],  # all to one rank: the other experts get nothing
)


LIKELY = {
    expect.HANGS: "every rank makes the same all-to-alls in the same order, also one without rows to send",
    "experts was given": "`experts` takes the counts of its own E/N experts, what *arrived* for each: column "
    "sums of `arriving`",
    (
        "died",
        "alltoall",
    ): "a rank got another number of rows than it was sent: exchange the counts first; `got` are "
    "row sums of what arrives, `sent` of what leaves",
    (
        "splits",
        "split_with_sizes",
    ): "what a rank sends are row sums of `leaving`, what it gets row sums of "
    "`arriving`; on the way back the two lists are exchanged",
}


def launched(submission, made, matrices):
    with expect.because(LIKELY):
        return submission.launch(probes.exchanged, made, matrices, ranks=len(made), timeout=5)


class TestExchange(Exercise):
    """Experts on other ranks"""

    name = "exchange"
    reference = "minitrain.parallel.expert.plain:exchange"
    hidden = HIDDEN

    @check(points=5, title="answers as if all experts were here (2 and 3 ranks, float64)")
    def test_answers(self, submission):
        for counts in COUNTS:
            made, matrices = exchange_case(counts)
            results = launched(submission, made, matrices)
            want, _, _ = all_here(made, matrices)
            mistaken = [
                (with_mistake(made, matrices, how), told) for how, told in EXCHANGE_MISTAKES.items()
            ]
            for rank, (result, y) in enumerate(zip(results, want)):
                expect.that(
                    result["y"].shape == y.shape,
                    f"rank {rank}: {tuple(result['y'].shape)} came home for rows of {tuple(y.shape)}",
                )
                words = f"the answers of rank {rank} of {len(made)}"
                hints = [(y[rank], told) for y, told in mistaken]
                expect.equal(result["y"], y, what=words, hints=hints)

    @check(points=4, title="gradients of rows and experts: the sum over all ranks, nothing divided")
    def test_gradients(self, submission):
        for counts in COUNTS[:2]:
            made, matrices = exchange_case(counts)
            results = launched(submission, made, matrices)
            _, rows, experts = all_here(made, matrices)
            n = len(made)
            for rank, result in enumerate(results):
                expect.that(
                    result["rows"] is not None,
                    f"rank {rank}: its rows got no gradient: `group.all_to_all` is none of autograd's, send rows "
                    "with `all_to_all(rows, group, sent, got)`",
                )
                held = len(matrices) // n
                for e, got in enumerate(result["experts"]):
                    want = experts[rank * held + e]
                    got = torch.zeros_like(want) if got is None else got
                    words = "that is divided by the number of ranks: what came by the all-to-all is the whole sum already"
                    expect.equal(
                        got,
                        want,
                        what=f"rank {rank} of {n}, gradient of its expert {e}",
                        hints=[
                            (want / n, words),
                            (want * n, f"that is {n} times too large: it is added up already"),
                            (0 * want, "none came: experts learn from the rows of other ranks"),
                        ],
                    )
                expect.equal(result["rows"], rows[rank], what=f"rank {rank}, gradient of its rows")

    @check(points=3, title="three all-to-alls forward, two backward; a row goes to one rank only")
    def test_bytes(self, submission):
        for counts in COUNTS[:2]:
            made, matrices = exchange_case(counts)
            n = len(made)
            results = launched(submission, made, matrices)
            load = torch.tensor(counts).view(n, n, -1).sum(2)  # from, to
            for rank, result in enumerate(results):
                kinds = [kind for kind, _ in result["forward"] + result["backward"]]
                others = [kind for kind in kinds if kind != "all_to_all"]
                expect.that(
                    not others,
                    f"rank {rank} also used {sorted(set(others))}: counts and rows go by all-to-alls, each to the "
                    "one rank that needs it",
                )
                out = int(load[rank].sum() - load[rank, rank])
                back = int(load[:, rank].sum() - load[rank, rank])
                row = made[0][0].shape[1] * 8
                sent = sum(b for _, b in result["forward"])
                least = (out + back) * row
                most = least + len(counts[0]) * 8
                expect.that(
                    least <= sent <= most,
                    f"rank {rank} of {n} sent {sent} bytes forward; {out} rows leave and {back} answers go home, of "
                    f"{row} bytes, and counts: {least} to {most}. A row goes to the one rank that has its expert",
                )
                expect.that(
                    (len(result["forward"]), len(result["backward"])) == (3, 2),
                    f"rank {rank}: {len(result['forward'])} all-to-alls forward and {len(result['backward'])} "
                    "backward: counts, rows, answers; and the gradients of the last two",
                )

    @check(points=2, title="each rank answers for its own experts, in one call, rows by expert")
    def test_calls(self, submission):
        made, matrices = exchange_case(COUNTS[1])
        results = launched(submission, made, matrices)
        total = torch.tensor(COUNTS[1]).sum(0).view(len(made), -1)
        for rank, result in enumerate(results):
            sizes = [sizes for _, sizes in result["calls"]]
            expect.that(
                sizes == [total[rank].tolist()],
                f"rank {rank}: experts was called with counts {sizes}, its experts get {total[rank].tolist()} rows "
                "from all ranks: one call, rows of its first expert, then of the second",
            )
            blocks = [rows.split(counts.tolist()) for rows, counts, _ in made]  # by source, expert
            parts = result["calls"][0][0].split(sizes[0])
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

    @check(points=5, title="which remedy has a gradient: loss, bias, both or neither")
    def test_value(self, value, records):
        expect.among(value, ["loss", "bias", "both", "neither"])
        expect.that(
            value == "loss",
            f"got {value!r}: the loss goes backwards through p to the router and to all below it; a bias that "
            "is moved by hand and only chooses appears in no derivative",
        )
