"""The checks of lab e02d: experts, graded by who gets which row, what travels, and every gradient."""

from __future__ import annotations

import torch

from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import cause, variant
from minitrain.lab.grading.variants import hints as hints_of
from minitrain.words import plural

from .probes import e02d_expert_parallel as probes
from .probes.in_turn import fresh

LAB = "e02d_expert_parallel"
SIZES = {
    "cpu": {
        "experts": 8, "k": 2, "width": 32, "inner": 64, "tokens": 1024, "ranks": [1, 2, 4, 8],
        "corpus_bytes": 1_000_000, "length": 64, "batch": 8, "steps": 80, "lr": 1e-2,
    },
    "test": {"steps": 24, "corpus_bytes": 250_000, "length": 32, "batch": 4, "ranks": [1, 2, 4]},
    "gpu": {"steps": 300, "corpus_bytes": 4_000_000},
    "multi": {"batch": 32},
}  # fmt: skip
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
    """Probabilities and biases so near to one another that many tie in a narrow dtype, and not in
    float32."""
    x, weight, _, k = case_of(m, count, k)
    return x.to(dtype), (0.01 * weight).to(dtype), 0.3 + 0.001 * torch.randn(count), k


LOGITS = "(x.to(wide) @ weight.to(wide).T)"
BIASED = "(p.detach() + bias).topk(k).indices"
SHARES = "chosen / chosen.sum(1, keepdim=True) if k > 1 else chosen"
GIVEN = (BIASED, "bias")  # the experts, in the bias's place
NO_SUM = ("chosen.sum(1, keepdim=True)", "chosen.sum(1, keepdim=True).detach()")
ONE = "p / p is 1 and teaches the router nothing, as does a softmax over one number: with one expert the weight is p"


class TestRoute(Exercise):
    """The top-k router"""

    name = "route"
    reference = "minitrain.parallel.expert.exchange:route"
    hidden = HIDDEN
    MISTAKES = (
        ((LOGITS, "(x @ weight.T).to(wide)"), "that was computed in x's dtype, in which experts tie that do not: convert x and weight before they are multiplied"),
        ((BIASED, "p.detach().topk(k).indices"), "the bias was not used: choose by p + bias"),
        ((BIASED, "(p.detach().log() + bias).topk(k).indices"), "the bias was added to the logits: add it to p, after the softmax"),
        (("p.gather(1, experts)", "(p + bias).gather(1, experts)"), "the bias weighs: it only chooses. The weights come from p.gather(1, experts)"),
        ((SHARES, SHARES.replace(" if k > 1 else chosen", "")), ONE),
    )  # fmt: skip

    def routed(self, submission, cases):
        """p, whom a token chooses, and each one's weight; experts that are as good are as right."""
        got = submission.run(probes.in_turn, cases)
        right = [variant(self.reference)(*case) for case in cases]
        for case, call in zip(cases, got):
            self.is_choice(case, call["out"])

        def seen(outs):
            return [self.seen(*both) for both in zip(cases, right, outs)]

        found = seen([call["out"] for call in got])
        why = cause(found, self.reference, self.MISTAKES, lambda f: seen([f(*c) for c in cases]))
        for (x, _, _, k), one, want in zip(cases, found, seen(right)):
            what = f"x {tuple(x.shape)} in {str(x.dtype).removeprefix('torch.')}, k = {k}"
            expect.equal(one, want, hints=[(one, why)] if why else [], what=what)
        expect.left_alone(got, cases, ("x", "weight", "bias", "k"))

    def is_choice(self, case, out):
        x, weight, _, k = case
        words = f"x {tuple(x.shape)} in {str(x.dtype).removeprefix('torch.')}, k = {k}"
        is_three = isinstance(out, (list, tuple)) and [type(t) for t in out] == [torch.Tensor] * 3
        told = f"{words}: got {expect.show(out)}: return three tensors, p, experts, weights"
        expect.that(is_three, told)
        mine = out[1]
        is_choice = mine.shape == (len(x), k) and mine.dtype == torch.int64
        message = f"{words}: experts are {expect.show(mine)}: ({len(x)}, {k}) numbers, int64, as `topk(k).indices` has them"
        expect.that(is_choice and ((mine >= 0) & (mine < len(weight))).all(), message)
        twice = [own for own in mine.tolist() if len(set(own)) < k]
        expect.that(
            not twice,
            f"{words}: a token has the experts {twice[:1]}, one of them twice: the k largest of p + bias are k "
            "different experts, also where p + bias is equal for some, or below 0",
        )

    def seen(self, case, right, out):
        """The weights in the order of the right p."""
        (_, _, bias, _), (right_p, *_), (p, experts, weights) = case, right, out
        own = right_p.gather(1, experts)
        order = own.argsort(1)
        chosen = (own + bias[experts]).sort(1).values
        is_plain = weights.shape == order.shape
        weights = weights.gather(1, order) if is_plain else weights
        return {"p": p, "p + bias of the chosen": chosen, "weights, lowest p first": weights}

    @check(points=3, title="the k most probable experts, weights of sum 1 (float64, k of 1 to E)")
    def test_choice(self, submission):
        cases = [case_of(7, 4, 2), case_of(5, 6, 3), case_of(7, 4, 2), far_case(4, 5, 2)]
        cases += [case_of(6, 5, 5), case_of(4, 3, 1), case_of(0, 4, 2), case_of(1, 1, 1)]
        self.routed(submission, [*cases, tied_case(7, 5, 3)])

    @check(points=2, title="logits and softmax in float32, whatever the activations are in")
    def test_float32(self, submission):
        cases = [case_of(64, 8, 2, torch.bfloat16), case_of(9, 4, 2, torch.float32)]
        cases += [near_case(64, 8, 2, torch.bfloat16), near_case(64, 4, 1, torch.float16)]
        self.routed(submission, cases)

    @check(points=3, title="the bias chooses, and does not weigh; what was given stays")
    def test_bias(self, submission):
        sizes = ((40, 5, 2, 0.5), (40, 5, 1, 0.5), (9, 7, 3, 0.2))
        cases = [case_of(*size, bias=bias) for *size, bias in sizes]
        x, weight, bias, k = case_of(9, 6, 3, bias=0.5)
        cases.append((x, weight, bias - 5, k))  # p + bias is below 0
        self.routed(submission, cases)

    @check(points=2, title="gradients flow to x and the router, by the weights and by p")
    def test_gradient(self, submission):
        cases = [
            (*case_of(6, 4, k, bias=0.3), *torch.randn(6, k + 4, **DOUBLE).split([k, 4], 1))
            for k in (2, 1, 2)
        ]
        got = submission.run(probes.routed, cases)
        given = [
            (x, weight, one["experts"], *rest) for (x, weight, _, *rest), one in zip(cases, got)
        ]
        wants = probes.routed(variant(self.reference, *GIVEN), given)
        others = probes.routed(variant(self.reference, *GIVEN, *NO_SUM), given)
        for (*_, k, _, _), one, want, other in zip(cases, got, wants, others):
            for number, by in enumerate(("the weights", "p")):
                grads, right = one["grads"][number], want["grads"][number]
                told = f"k = {k}: no gradient comes by {by}: the router learns by it. `detach` nothing on its way"
                expect.that(grads[0] is not None and grads[1] is not None, told)
                expect.that(k > 1 or grads[1].abs().max() > 1e-9, f"k = 1: {ONE}")
                words = "that is with a sum that has no gradient: the sum of the k chosen p is no constant"
                what = f"k = {k}, gradients of x and of the router that come by {by}"
                expect.equal(grads, right, hints=[(other["grads"][number], words)], what=what)


# ---- balance ----


class Ranks:
    """A group of ranks that run one after the other: twice, the first time to see what they add."""

    def __init__(self, size):
        self.size, self.sent, self.rank, self.calls = size, [], 0, 0

    def all_reduce(self, tensor):
        self.calls += 1
        if len(self.sent[self.rank]) < self.calls:
            self.sent[self.rank].append(tensor.detach().clone())
            return tensor
        return sum(own[self.calls - 1] for own in self.sent)

    def run(self, f, arguments):
        """f(self, *arguments[rank]) of each rank."""
        self.sent = [[] for _ in arguments]
        for _ in range(2):
            found = []
            for self.rank, given in enumerate(arguments):
                self.calls = 0
                found.append(f(self, *fresh(given)))
        return found


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


COUNTED = 1e-6  # a share of whole numbers is a float32 in torch
# for each number of ranks calls in a row: (tokens of each rank, E, K)
WORLDS = {
    1: [([6], 4, 1), ([3], 5, 2)],
    2: [([5, 5], 5, 3), ([4, 7], 6, 2), ([5, 5], 5, 3), ([2601, 1500], 3, 2)],
    3: [([4, 7, 1], 6, 2), ([2, 0, 3], 4, 1)],
}
COUNTING = {
    ("size of tensor a", "all_reduce(sum) of int64"): "an expert that none of a rank's tokens chose has a count too, 0: `minlength=E`",
    expect.HANGS: "every rank makes one all-reduce in each call, one without tokens too: its E counts are 0",
}  # fmt: skip


def counts_travel(sent, count, rank, calls=1):
    """One all-reduce a call, of E numbers."""
    kinds = [kind for kind, *_ in sent]
    expect.that(
        kinds == ["all_reduce"] * calls,
        f"rank {rank} communicated by {kinds} in {plural(calls, 'call')}: one all-reduce of the counts says all, "
        "and their sum is K times the tokens",
    )
    most = max(nbytes for _, nbytes, *_ in sent)
    words = f"rank {rank} reduced {most} bytes for {count} experts: only E counts travel"
    expect.that(most <= count * 8, words)


OF_ALL = "group.all_reduce(torch.bincount(experts.flatten(), minlength=count))"


def balanced(f, made):
    """Each rank's share, and its gradient with respect to p."""
    given = [(p.clone().requires_grad_(), experts) for p, experts in made]
    leaves = []

    def noted(group, p, experts):
        leaves.append(p)
        return f(group, p, experts)

    shares = Ranks(len(given)).run(noted, given)
    grads = [
        torch.autograd.grad(share, p, allow_unused=True)[0] if share.requires_grad else None
        for share, p in zip(shares, leaves[-len(given) :])
    ]
    return [share.detach().double() for share in shares], grads


class TestBalance(Exercise):
    """The load-balancing loss"""

    name = "balance_loss"
    reference = "minitrain.parallel.expert.exchange:balance_loss"
    hidden = HIDDEN
    MISTAKES = (
        (("return count * (", "return ("), "that lacks the factor E: an even load has the loss 1"),
        (("counts.sum() / experts.shape[1]", "counts.sum()"), "that is K times too small: f is divided by the choices, M·K of them, and p's sum by the tokens, the choices over K"),
        (("/ tokens", "/ len(p) / group.size"), "that is the mean of the ranks' own means: a rank with few tokens counts too much"),
        ((OF_ALL, OF_ALL.removeprefix("group.all_reduce")), "f was counted over a rank's tokens alone: it counts the choices of all ranks, all-reduced"),
        (("p.sum(dim=0)", "group.all_reduce(p.sum(dim=0))"), "each rank returned the whole loss: it gives its share, of its own tokens' p"),
    )  # fmt: skip

    @check(
        points=3, title="the shares add up to the loss of one process (1, 2 and 3 ranks, float64)"
    )
    def test_sum(self, submission):
        for ranks, worlds in WORLDS.items():
            self.add_up(submission, ranks, [choices_of(*world) for world in worlds])

    def add_up(self, submission, ranks, worlds):
        calls = by_rank(worlds)
        with expect.because(COUNTING):
            results = submission.launch(probes.in_turn_on_ranks, calls, ranks=ranks)
        for made, found in zip(worlds, zip(*results)):
            shares = [call["out"] for call in found]
            for share, (p, _) in zip(shares, made):
                is_number = isinstance(share, torch.Tensor) and share.numel() == 1
                words = (
                    f"got {expect.show(share)}: each rank returns its share, a tensor of one number"
                )
                expect.that(is_number, words)
                words = "a rank without tokens gave NaN: its share is 0, p's sum by the tokens of all ranks"
                expect.that(len(p) or not share.isnan().any(), words)
            shares = [share.double().reshape(()) for share in shares]
            ways = lambda f, made=made: balanced(f, made)[0]  # noqa: E731
            why = cause(shares, self.reference, self.MISTAKES, ways, COUNTED)
            words = f"sum over ranks with {[len(p) for p, _ in made]} tokens, {made[0][0].shape[1]} experts, K = {made[0][1].shape[1]}"
            hints = [(sum(shares), why)] if why else []
            want = sum(ways(variant(self.reference)))
            expect.equal(sum(shares), want, tol=COUNTED, what=words, hints=hints)
        for rank, found in enumerate(results):
            expect.left_alone(found, calls[rank], ("p", "experts"))

    @check(points=6, title="one all-reduce, of E counts, and the gradient of p is one process's")
    def test_gradient(self, submission):
        worlds = [choices_of(*world) for world in WORLDS[3]]
        with expect.because(COUNTING):
            results = submission.launch(probes.shares, by_rank(worlds), ranks=3)
        add_what_was_sent(results, submission.notes)
        for made, found in zip(worlds, zip(*results)):
            grads = lambda f, made=made: balanced(f, made)[1]  # noqa: E731
            wrong = list(hints_of(self.reference, self.MISTAKES, grads))
            for rank, (own, want) in enumerate(zip(found, grads(variant(self.reference)))):
                expect.that(
                    own["grad"] is not None,
                    "p has no gradient: only f is a constant. This rank's own `p.sum(0)` stays in the loss; no collective "
                    "of the group is known to autograd",
                )
                hints = [(every[rank], words) for every, words in wrong]
                what = f"rank {rank} of 3, gradient of p"
                expect.equal(own["grad"], want, tol=COUNTED, what=what, hints=hints)
                counts_travel(own["forward"] + own["backward"], want.shape[1], rank)


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


MEAN = "counts.double().mean()"
STEP = f"torch.sign({MEAN} - counts)"
BINS = "torch.bincount(experts.flatten(), minlength=len(bias))"


class TestBias(Exercise):
    """The auxiliary-loss-free bias"""

    name = "update_bias"
    reference = "minitrain.parallel.expert.exchange:update_bias"
    hidden = HIDDEN
    MISTAKES = (
        ((STEP, f"torch.sign(counts - {MEAN})"), "the wrong way round: who got too little goes up"),
        ((f"group.all_reduce({BINS})", BINS), "from this rank's own counts the ranks' biases drift apart: add up the counts of all ranks"),
        ((MEAN, "(experts.numel() * group.size / len(bias))"), "the mean was reckoned from this rank's own choices, and ranks have different numbers of them: take the mean of the counts of all ranks"),
        ((MEAN, f"{MEAN}.floor()"), "the mean of the counts is no whole number: `counts.double().mean()`"),
        ((STEP, f"({MEAN} - counts)"), "the step is `rate` whatever the gap: take its sign"),
    )  # fmt: skip

    @check(points=5, title="up where too few on all ranks, down where too many, by one all-reduce")
    def test_bias(self, submission):
        for ranks in (2, 3):
            worlds = self.uneven(ranks)
            results = self.updated(submission, worlds)
            for rank, trace in enumerate(results.traces):
                sent = [(op.kind, op.payload_bytes) for op in trace.ops]
                counts_travel(sent, 6, rank, len(worlds) + 1)

    @check(points=2, title="an expert with exactly the mean stays as it is, and so do the choices")
    def test_even(self, submission):
        choices = [[0, 1], [2, 3], [0, 1], [0, 2]]
        for parts in ([choices], [choices[:2], choices[2:]]):
            world = bias_case(parts, 4)
            self.updated(submission, [world, world], even=slice(1, 3))

    def updated(self, submission, worlds, even=slice(None)):
        """Each bias after its call, of the experts that have exactly the mean or of all."""
        calls = by_rank(worlds)
        with expect.because(COUNTING):
            results = submission.launch(probes.updated, calls, ranks=len(worlds[0]))
        for found, given in zip(results, calls):
            rest = [{**c, "given": c["given"][1:], "later": None, "out": None} for c in found]
            expect.left_alone(rest, [own[1:] for own in given], ("experts", "rate"), own=False)
        # last, the first bias once more, by the choices of the last call
        first = next(zip(*results))
        again = [(call["second"][0], *own[1:]) for call, own in zip(first, worlds[-1])]
        moved = [[call["given"][0] for call in found] for found in zip(*results)]
        worlds = [*worlds, again]
        moved.append([call["second"][1] for call in first])
        why = cause(moved, self.reference, self.MISTAKES, lambda f: [self.stepped(f, w) for w in worlds], COUNTED)  # fmt: skip
        for world, got in zip(worlds, moved):
            wants = self.stepped(variant(self.reference), world)
            counts = sum(torch.bincount(e.flatten(), minlength=len(b)) for b, e, _ in world)
            for rank, (own, want, (bias, *_)) in enumerate(zip(got, wants, world)):
                told = (
                    f"rank {rank}: the bias that was given is unchanged: write into it, `bias += …`"
                )
                expect.that(even != slice(None) or not torch.equal(own, bias), told)
                words = (
                    why
                    if even == slice(None)
                    else "they got neither less nor more than the mean: `torch.sign` of 0 is 0"
                )
                what = (
                    f"rank {rank} of {len(world)}, the bias (all ranks' counts {counts.tolist()})"
                )
                hints = [(own[even], words)] if words else []
                expect.equal(own[even], want[even], tol=COUNTED, what=what, hints=hints)
        return results

    def stepped(self, f, world):
        """The biases after a step on all ranks."""
        return Ranks(len(world)).run(
            lambda group, bias, *rest: f(group, bias, *rest) or bias, world
        )

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


# ---- rows ----


def plan_case(m, count, k, factor, levels=0):
    experts = torch.randn(m, max(1, count - 1)).topk(k).indices  # the last expert gets nothing
    priority = torch.rand(m, k, **DOUBLE)
    priority = (priority * levels).round() / levels if levels else priority
    return experts, count, priority, factor


def with_priority(case, change):
    experts, count, priority, factor = case
    return experts, count, change(priority), factor


FIRST = "priority.flatten().argsort(descending=True, stable=True)"
CAPACITY = "math.ceil(factor * len(flat) / count)"


class TestPlan(Exercise):
    """Choices to rows: dropless, and with a capacity"""

    name = "plan"
    reference = "minitrain.parallel.expert.exchange:plan"
    hidden = HIDDEN
    MISTAKES = (
        ((FIRST, "torch.arange(len(flat))"), "that is in order of token: sort by priority first, then stably by expert; of a capacity the first tokens were kept, not those of highest priority"),
        ((FIRST, FIRST.replace("True, ", "False, ", 1)), "that is from low to high: `descending=True`"),
        (("return order, counts", "return order.argsort(), counts"), "that is the row of each choice, the inverse: each choice once, by the experts of the rows"),
        (("return order, counts", "return order // experts.shape[1], counts"), "those are tokens, choice // K: a row has the number of its choice"),
        (("counts = counts.clamp(max=capacity)", "pass"), "counts are those of the *kept* rows: clamp them too"),
    )  # fmt: skip

    def compare(self, submission, cases):
        got = submission.run(probes.in_turn, cases)
        outs = [call["out"] for call in got]
        for out in outs:
            is_pair = isinstance(out, (list, tuple)) and len(out) == 2
            is_pair = is_pair and all(isinstance(part, torch.Tensor) for part in out)
            expect.that(is_pair, f"got {expect.show(out)}: return order and counts, two tensors")

        def listed(outs):
            return [{"counts": c.tolist(), "order": o.tolist()} for o, c in outs]

        found = listed(outs)
        ways = lambda f: listed([f(*case) for case in cases])  # noqa: E731
        why = cause(found, self.reference, self.MISTAKES, ways)
        why = why or (
            "`counts` are the rows of each expert, `order` the choice in each row, by expert and then from high to low "
            "priority, equals in their order. Each expert keeps so many of its own, whatever the others have"
        )
        for (experts, count, _, *factor), one, want in zip(cases, found, ways(variant(self.reference))):  # fmt: skip
            told = f"{experts.numel()} choices of {len(experts)} tokens, {count} experts, factor {(*factor, None)[0]}"
            expect.equal(one, want, hints=[(one, why)], what=told)
        expect.left_alone(got, cases, ("experts", "count", "priority", "factor"))

    @check(points=4, title="dropless: every choice once, by expert, and the rows of each")
    def test_dropless(self, submission):
        cases = [plan_case(7, 5, 2, None), plan_case(9, 4, 3, None), plan_case(1, 3, 1, None)]
        cases += [plan_case(7, 5, 2, None)[:3], plan_case(0, 4, 2, None), plan_case(3, 1, 1, None)]
        self.compare(submission, cases)

    @check(points=3, title="within an expert from high to low priority, equals in their order")
    def test_order(self, submission):
        plain = [plan_case(8, 4, 2, None), plan_case(20, 4, 2, None, levels=3)]
        changes = (
            torch.Tensor.float,
            lambda p: 20 * p - 10,
            lambda p: 10 ** (-30 * p),
            lambda p: 1e300 * (p - 0.5),
        )
        changes += (lambda p: 1 + 1e-10 * p,)  # all of them 1 in float32
        cases = plain + [with_priority(plan_case(12, 4, 2, None), change) for change in changes]
        self.compare(submission, cases)

    @check(points=3, title="a capacity keeps the highest priority, ceil(factor·M·K/E) at most")
    def test_capacity(self, submission):
        cases = [plan_case(11, 4, 2, 1.0), plan_case(13, 5, 2, 1.25), plan_case(7, 4, 3, 0.5)]
        cases += [plan_case(6, 4, 2, 4.0), plan_case(12, 4, 2, 1.0, levels=2)]
        cases += [plan_case(0, 4, 2, 1.25), plan_case(6, 4, 2, 0.0)]
        cases += [with_priority(plan_case(12, 4, 2, 1.0), lambda p: 20 * p - 10)]
        self.compare(submission, cases)

    @check(points=2, title="kept and dropped add up: an expert's overflow costs no other expert")
    def test_conserved(self, submission):
        experts = torch.tensor([[0, 1], [0, 2], [0, 1], [0, 3], [0, 3], [0, 2]])
        self.compare(submission, [(experts, 4, torch.rand(6, 2, **DOUBLE), 1.0)])


# ---- dispatch and combine ----


def mix_case(m, count, k, factor):
    """(x, weights, order, counts, matrices) of a call of `mix`."""
    x, matrices = torch.randn(m, 5, **DOUBLE), list(torch.randn(count, 5, 5, **DOUBLE))
    weights = torch.rand(m, k, **DOUBLE)
    weights = weights / weights.sum(1, keepdim=True)
    order, counts = variant(TestPlan.reference)(*plan_case(m, count, k, factor))
    return x, weights, order, counts, matrices


ROWS = "experts(x[tokens], counts)"
OWN = "weights.flatten()[order]"
WEIGHED = f"answers * {OWN}.unsqueeze(1).to(answers.dtype)"
KEPT = "torch.zeros_like(weights).flatten().index_fill(0, order, 1.0).view_as(weights)"
OUT_OF_BOUNDS = {
    "out of bounds": "`order[i]` is the number of a choice, 0 to M·K - 1: its token is `order[i] // K`, its weight "
    "`weights.flatten()[order[i]]`",
    "a leaf Variable": "an argument was written into, which is the caller's",
    "modified by an inplace": "autograd keeps a tensor that was changed in place, such as an answer: `answers * weights` "
    "makes a new one, `answers *= weights` does not",
}


class TestMix(Exercise):
    """Dispatch and combine"""

    name = "mix"
    reference = "minitrain.parallel.expert.exchange:mix"
    hidden = HIDDEN
    MISTAKES = (
        ((ROWS, f"experts(x[tokens] * {OWN}.unsqueeze(1), counts)", WEIGHED, "answers"), "the weights were multiplied before the experts: weigh the answers, the experts are not linear"),
        ((OWN, f"(weights / ({KEPT} * weights).sum(1, keepdim=True)).flatten()[order]"), "the weights of what was kept were made to add up to 1 again: they stay as they are"),
        (("torch.zeros_like(x).index_add", "x.index_add"), "x was added: the residual stream goes around the layer, start from zeros"),
        (("index_add(0, tokens, weighed)", "index_copy(0, tokens, weighed)"), "each token has one of its answers only: `y[tokens] += …` writes the last one where a number comes twice, `index_add` adds"),
        ((OWN, "weights.flatten()[: len(order)]"), "row i has the weight of choice `order[i]`, not the i-th weight"),
    )  # fmt: skip

    def mixed(self, submission, sizes, with_values):
        cases = [mix_case(*size) for size in sizes]
        with expect.because(OUT_OF_BOUNDS):
            got = submission.run(probes.mixed, cases)
        for case, call in zip(cases, got):
            if with_values:
                answered = lambda f, case=case: probes.answered(f, *case)["y"].detach()  # noqa: E731
                hints = hints_of(self.reference, self.MISTAKES, answered)
                dropped = case[1].numel() - len(case[2])
                what = f"y of {len(case[0])} tokens, {dropped} choices dropped"
                want = answered(variant(self.reference))
                expect.equal(call["out"]["y"], want, what=what, hints=hints)
            self.one_row_a_choice(case, call["out"]["calls"])
        expect.left_alone(got, cases, ("x", "weights", "order", "counts"))

    def one_row_a_choice(self, case, calls):
        """The experts were called once, with the rows that were chosen."""
        x, weights, order, *_ = case
        words = f"experts was called {len(calls)} times for {len(order)} rows: once, with all rows, also where there is none"
        expect.that(len(calls) == 1, words)
        rows = calls[0][0]
        expect.that(
            rows.shape == (len(order), x.shape[1]),
            f"experts computed {len(rows)} rows for {len(order)} kept choices of {len(x)} tokens: only what a token "
            "chose is computed, that is the point of a mixture",
        )
        what = "the rows that experts got, `x[order // K]`"
        expect.equal(rows, x[order // weights.shape[1]], what=what)

    @check(points=4, title="each token's answers, computed once, weighted and added (float64)")
    def test_value(self, submission):
        sizes = ((7, 5, 2, None), (6, 4, 3, 0.5), (8, 4, 1, 0.5), (7, 5, 2, None), (5, 4, 2, 0.0))
        self.mixed(submission, sizes, True)

    @check(points=2, title="gradients of x and of the weights; a dropped choice has none")
    def test_gradient(self, submission):
        made = [mix_case(7, 5, 2, 0.5), mix_case(7, 5, 2, None)]
        made = [(*case, torch.randn(7, 5, **DOUBLE)) for case in made]
        with expect.because(OUT_OF_BOUNDS):
            got = submission.run(probes.mixed_gradients, made)
        wants = probes.mixed_gradients(variant(self.reference), made)
        for grads, want in zip(got, wants):
            words = "x or weights got no gradient: nothing on the way may be detached, the router learns by it"
            expect.that(all(grad is not None for grad in grads), words)
            expect.equal(grads, want, what="gradients of x and weights")

    @check(points=2, title="the experts are called once, with one row for each kept choice")
    def test_rows(self, submission):
        self.mixed(submission, ((9, 4, 2, 0.5), (3, 6, 2, None), (4, 4, 2, 0.0)), False)


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
    "what arrives; on the way back the two lists are exchanged, `all_to_all(…, group, got, sent)`"
)
LIKELY = {
    "no rank had gone on": f"every rank waits for others: {SENT_AND_GOT}",
    expect.HANGS: "every rank makes the same all-to-alls in the same order, also one without rows to send",
    "experts was given": "`experts` takes the counts of its own E/N experts, what *arrived* for each: column "
    "sums of `arriving`",
    "repeats must have the same size": "of what arrives there are N · E/N counts, and `torch.arange(E/N).repeat(N)` has as "
    "many numbers: E/N differs from call to call",
    ("died", "alltoall", "splits", "split_with_sizes"): SENT_AND_GOT,
}


class TestExchange(Exercise):
    """Experts on other ranks"""

    name = "exchange"
    reference = "minitrain.parallel.expert.exchange:exchange_naive"
    hidden = HIDDEN

    def exchanged(self, submission, rank_counts, right):
        """right(what each rank was given, what is known of it) of each call in a row."""
        for ranks in rank_counts:
            made = [exchange_case(counts) for counts in COUNTS[ranks]]
            with expect.because(LIKELY):
                results = submission.launch(probes.exchanged, by_rank(made), ranks=ranks, timeout=5)
            add_what_was_sent(results, submission.notes)
            for world, found in zip(made, zip(*results)):
                for rank, one in enumerate(found):
                    expect.that(
                        one["rows"] is not None,
                        f"rank {rank}: its rows got no gradient: `group.all_to_all` is none of autograd's, send rows and "
                        "answers with `all_to_all(rows, group, sent, got)`, and detach nothing",
                    )
                right(world, found)
            for rank, found in enumerate(results):
                given = [world[rank][:2] for world in made]
                expect.left_alone(found, given, ("rows", "counts"), what=f"rank {rank}")

    def rows_travel(self, made, found):
        """A row goes to the one rank that has its expert, and so does its gradient."""
        n, row = len(made), made[0][0].shape[1] * 8
        load = torch.stack([counts for _, counts, *_ in made]).view(n, n, -1).sum(2)  # from, to
        for rank, one in enumerate(found):
            others = {kind for kind, *_ in one["forward"] + one["backward"]} - {"all_to_all"}
            expect.that(
                not others,
                f"rank {rank} also used {sorted(others)}: counts and rows go by all-to-alls, each to the "
                "one rank that needs it",
            )
            moved = int(load[rank].sum() + load[:, rank].sum() - 2 * load[rank, rank]) * row
            counts = len(made[rank][1]) * 8
            for way, most in (("forward", moved + counts), ("backward", moved)):
                sent = [b for *_, b in one[way]]
                expect.that(
                    moved <= sum(sent) <= most,
                    f"rank {rank} of {n} sent {sent} bytes {way}, and {moved} are needed, {row} for each row"
                    f"{f', {counts} at most for counts' if way == 'forward' else ''}: a rank is told the counts of its "
                    "own experts alone, a row goes to the one rank that has its expert, an answer or gradient to the one that needs it",
                )

    @check(points=5, title="answers as if all experts were here, by all-to-alls (1 to 3 ranks)")
    def test_answers(self, submission):
        self.exchanged(submission, COUNTS, self.is_answered)

    def is_answered(self, made, found):
        for rank, (one, want) in enumerate(zip(found, all_here(made)[0])):
            y = one["out"]
            if expect.difference(y, want) is not None:
                self.is_called(made, found)
            hints = []
            if y.shape == want.shape and y.dtype == want.dtype:
                by_value = (z[z[:, 0].argsort()] for z in (y, want))
                if expect.difference(*by_value) is None:
                    words = "the right answers in the wrong order: undo the sort by expert before they go home, `answers[order.argsort()]`"
                    hints.append((y, words))
            what = f"the answers of rank {rank} of {len(made)}, {len(made[0][1])} experts"
            expect.equal(y, want, what=what, hints=hints)
        self.rows_travel(made, found)

    @check(points=4, title="backward of rows and experts: nothing divided, a row to one rank only")
    def test_gradients(self, submission):
        self.exchanged(submission, (2, 3), self.has_gradients)

    def has_gradients(self, made, found):
        ranks, (_, rows, experts) = len(made), all_here(made)
        held = len(experts) // ranks
        told = "that is divided by the number of ranks: what came by the all-to-all is the whole sum already"
        for rank, one in enumerate(found):
            wants = experts[rank * held : (rank + 1) * held]
            got = [torch.zeros_like(m) if g is None else g for g, m in zip(one["experts"], wants)]
            for which, own, want in (("its rows", [one["rows"]], rows[rank : rank + 1]), ("its experts", got, wants)):  # fmt: skip
                hints = [([w / ranks for w in want], told)]
                what = f"rank {rank} of {ranks}, gradient of {which}"
                expect.equal(own, want, what=what, hints=hints)
        with expect.though("every gradient is right"):
            self.rows_travel(made, found)

    @check(points=3, title="three all-to-alls forward, two backward; a row goes to one rank only")
    def test_bytes(self, submission):
        self.exchanged(submission, (2, 3), self.has_bytes)

    def has_bytes(self, made, found):
        self.rows_travel(made, found)
        for rank, one in enumerate(found):
            times = len(one["forward"]), len(one["backward"])
            expect.that(
                times == (3, 2),
                f"rank {rank}: {times[0]} all-to-alls forward and {times[1]} backward: counts, rows, "
                "answers; and the gradients of the last two",
            )

    @check(points=2, title="each rank answers for its own experts, in one call, rows by expert")
    def test_calls(self, submission):
        self.exchanged(submission, (3,), self.is_called)

    def is_called(self, made, found):
        total = torch.stack([counts for _, counts, *_ in made]).sum(0).view(len(made), -1)
        blocks = [rows.split(counts.tolist()) for rows, counts, *_ in made]  # by source, expert
        for rank, one in enumerate(found):
            sizes = [sizes for _, sizes in one["calls"]]
            expect.that(
                sizes == [total[rank].tolist()],
                f"rank {rank}: experts was called with counts {sizes}, its experts get {total[rank].tolist()} rows "
                "from all ranks, column sums of what arrives: one call, rows of its first expert, then of the second",
            )
            parts = one["calls"][0][0].split(sizes[0])
            for expert, part in enumerate(parts, start=rank * len(parts)):
                want = torch.cat([own[expert] for own in blocks])
                expect.that(
                    part.shape == want.shape
                    and torch.equal(part[part[:, 0].argsort()], want[want[:, 0].argsort()]),
                    f"rank {rank}: the {len(part)} rows for expert {expert} are not those that it was sent, bit for bit. What "
                    "arrives stands by source: sort it by expert",
                )


# ---- experiments ----


class TestTraffic(Experiment):
    """What travels"""

    name = "traffic"
    rests_on = ("route", "plan", "mix", "exchange")

    @check(points=5, title="bytes are those of the rows that leave and come, to the byte")
    def test_bytes(self, table):
        for row in table:
            what = f"{row['ranks']} ranks, rank {row['rank']}"
            moved = (row["rows_out"] + row["rows_in"]) * row["width"] * 4
            expect.equal(row["forward_bytes"], moved, what=f"{what}: bytes forward, (out + in)·D·4")
            expect.equal(row["backward_bytes"], moved, what=f"{what}: bytes backward, the same")
            words = (
                f"{what}: {row['messages']} all-to-alls: counts, rows, answers, and two gradients"
            )
            expect.that(row["messages"] == 5, words)
            expect.that(row["ranks"] > 1 or moved == 0, "one rank sends nothing to others")

    @check(points=3, title="over all ranks near 2·M·K·(N-1)/N rows, on 1 to 8 ranks")
    def test_even(self, table):
        ranks = sorted({row["ranks"] for row in table})
        expect.that(max(ranks) >= 4 and len(ranks) >= 3, f"measured on {ranks} ranks: 1, 2, 4, 8")
        for n in ranks:
            own = [row for row in table if row["ranks"] == n]
            expect.that(len(own) == n, f"{len(own)} rows of the table for {n} ranks: one each")
            rows, came = (sum(row[way] for row in own) for way in ("rows_out", "rows_in"))
            expect.that(rows == came, f"{n} ranks: {rows} rows left, {came} came: none may be lost")
            even = own[0]["tokens"] * own[0]["k"] * (n - 1)
            words = f"{n} ranks: {rows} rows left, N·M·K·(N-1)/N is {even:.0f}: was the router's choice used?"
            expect.that(abs(rows - even) <= 0.25 * even, words)


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
            words = (
                f"'{router}': choices a step {sorted(counts)[:5]}, they are the same in each step"
            )
            expect.that(len(counts) == 1, words)
        for row in table:
            told = f"'{row['router']}', step {row['step']}: most {row['most']}, dropped {row['dropped']}: "
            told += "the busiest expert has an even load at least, and a share is below 1"
            expect.that(row["most"] >= 1 and 0 <= row["dropped"] < 1, told)

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
        words = f"models {sorted(rows)}: dense and three mixtures"
        expect.that("dense" in rows and len(rows) >= 4, words)
        dense = rows["dense"]
        for name, row in rows.items():
            what = f"FLOPs a token of '{name}' against dense"
            expect.close(row["flops_per_token"], dense["flops_per_token"], tol=0.05, what=what)
            is_more = row["parameters"] > 1.2 * dense["parameters"]
            expect.that(
                name == "dense" or (is_more and row["active"] < row["parameters"]),
                f"'{name}' has {row['parameters']} parameters, {row['active']} active, the dense model "
                f"{dense['parameters']}: a mixture has more, and uses as many",
            )

    @check(points=4, title="every loss is above the floor, and training lowered it")
    def test_loss(self, table):
        for row in table:
            words = f"'{row['model']}': held-out loss {row['loss']:.3f}, between the floor {row['floor']:.3f} and 4.0 is what these steps give"
            expect.that(row["floor"] < row["loss"] < 4.0, words)
        losses = [row["loss"] for row in table]
        told = f"losses {[round(x, 3) for x in losses]} differ by more than FLOPs explain: same steps, same data?"
        expect.that(max(losses) - min(losses) < 0.5, told)


# ---- questions ----


class TestWidth(Question):
    """How wide an expert must be"""

    name = "enough_width"
    rests_on = ("traffic",)

    @check(points=5, title="F at which experts take as long as the all-to-alls, NVLink, 64 ranks")
    def test_value(self, value, records):
        want = 2 * 2 * 63 / 64 / NVLINK * H100_FLOPS / 6
        expect.close(value, want, tol=0.03, what="the width F", hints=[
            (want * NVLINK / INFINIBAND, "that is over InfiniBand"),
            (2048, "DeepSeek-V3's all-to-alls take 0.70 of the time: a narrower expert would do"),
            (want / 2, "rows go there and back: two all-to-alls"),
            (want * 2, "2 bytes a number, there and back: 4 bytes for 6·F FLOPs"),
            (1 / want, "turn the fraction round: the ratio falls as 1/F"),
        ])  # fmt: skip


class TestBusiest(Question):
    """What a dropless layer waits for"""

    name = "busiest"
    rests_on = ("balance",)

    @check(points=5, title="the busiest expert of a router left alone, last ten steps")
    def test_value(self, value, records):
        table = expect.recorded(records, "balance")
        own = [row["most"] for row in table if row["router"] == "alone"]
        what = "the busiest expert's load over an even one"
        expect.close(value, ends(table, "alone", "most"), tol=0.02, what=what, hints=[
            (own[-1], "that is the last step alone: take the mean of the last ten"),
            (sum(own) / len(own), "that is the mean of all steps: take the last ten"),
            *((ends(table, name, "most"), f"that is with the {name}") for name in ("loss", "bias")),
        ])  # fmt: skip


class TestInterferes(Question):
    """What the remedies do to the gradient"""

    name = "interferes"
    rests_on = ("balance",)

    @check(points=5, title="which remedy has a gradient: loss, bias, both or neither")
    def test_value(self, value, records):
        expect.among(value, ["loss", "bias", "both", "neither"])
        words = f"got {value!r}: the loss goes backwards through p to the router and to all below it; a bias that is moved by hand and only chooses appears in no derivative"
        expect.that(value == "loss", words)
