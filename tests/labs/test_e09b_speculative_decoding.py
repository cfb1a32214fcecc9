"""The checks of lab e09b: speculative decoding, graded by what a draw is made from."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import cause, hints, variant
from minitrain.words import plural

from .probes import e09b_speculative_decoding as probes

LAB = "e09b_speculative_decoding"
SIZES = {
    "cpu": {
        "corpus": 1_000_000, "length": 96, "layers": 6, "width": 64, "steps": 150, "lessons": 96,
        "head_steps": 100, "stories": 4, "new": 48, "draws": 200_000, "largest": 512, "repeats": 2, "timed": 9,
    },
    "test": {
        "corpus": 400_000, "layers": 3, "steps": 70, "largest": 128, "lessons": 48, "head_steps": 50,
        "stories": 2, "new": 32, "repeats": 1, "timed": 3,
    },
}  # fmt: skip
REVEALS = {
    "five": Reveal("measured", "seconds of a pass over 5 tokens over those of one over 1 token"),
    "kept": Reveal("measured", "tokens a pass with 4 drafts of the small model"),
    "third": Reveal("measured", "percent of the right guesses of head 3, the token 4 places on"),
}
HIDDEN = (
    *(
        f"minitrain/inference/speculation/{name}.py"
        for name in ("plain", "verification", "answers", "length", "serving", "medusa", "ngram")
    ),
)
MARGIN = 5e-4  # from any tie: what rounding may turn


def pair(result, names):
    """The two parts of a result."""
    expect.that(
        isinstance(result, (list, tuple)) and len(result) == len(names),
        f"got {expect.show(result)}: return {' and '.join(names)}",
    )
    return result


def pairs_of(item, submission, cases):
    """The results of calls in a row, in the item's parts; its arguments stay as they are."""
    calls = submission.run(probes.in_turn, cases)
    found = [pair(call["out"], item.parts) for call in calls]
    expect.left_alone(calls, cases, item.arguments)
    return found


def compare_part(item, part, found, cases, tol=None):
    """One part of the results with the reference's."""
    place = item.parts.index(part)

    def by(f):
        return [f(*case)[place] for case in cases]

    got = [result[place] for result in found]
    words = cause(got, item.reference, item.MISTAKES, by, tol)
    for case, own, want in zip(cases, got, by(variant(item.reference))):
        given = ", ".join(f"{name} {listed(value)}" for name, value in zip(item.arguments, case))
        expect.equal(own, want, tol, [(own, words)], f"{part} ({given})")


def listed(value):
    if not isinstance(value, list):
        return expect.show(value)
    return f"[{', '.join(map(expect.show, value[:20]))}{', …' * (len(value) > 20)}]"


# ---- verification


def judged(f, case):
    """(tokens, kept) of one call, and the rows that `pick` was given."""
    found = probes.verified(f, [case])
    return found["calls"][0]["out"], found["notes"][0]["rows"]


def with_level(p, q, drafts, coins):
    """And the number that `pick` draws by, where rounding does not decide."""
    rows = torch.stack(judged(variant(TestVerify.reference), (p, q, drafts, coins, 0.5))[1])
    sums = rows.cumsum(1) / rows.sum(1, keepdim=True)
    while True:
        level = float(torch.rand(()))
        if (sums - level).abs().min() > MARGIN:
            return p, q, drafts, coins, level


def drawn_case(batch, length, size):
    """p, q, drafts, coins, level: far from every tie; among 12 requests each number of drafts is
    kept."""
    while True:
        p, q = ((1.5 * torch.randn(batch, n, size)).softmax(2) for n in (length + 1, length))
        drafts = torch.empty(batch, 0, dtype=torch.long)
        if length:
            drafts = torch.multinomial(q.flatten(0, 1), 1).view(batch, length)
        coins = torch.rand(batch, length)
        at = drafts[:, :, None]
        apart = (coins[:, :, None] * q.gather(2, at) - p[:, :-1].gather(2, at)).abs() > 1e-5
        (_, kept), rows = judged(variant(TestVerify.reference), (p, q, drafts, coins, 0.5))
        is_varied = batch < 12 or len(set(kept.tolist())) == length + 1
        if is_varied and apart.all() and min(row.sum() for row in rows) > 0.01:
            return with_level(p, q, drafts, coins)


def alike(row, want):
    """Whether draws from both are the same."""
    return len(row) == len(want) and (row / row.sum() - want / want.sum()).abs().max() < 1e-4


class TestVerify(Exercise):
    """Exact verification"""

    name = "verify"
    reference = "minitrain.inference.speculation.plain:verify"
    hidden = HIDDEN
    MISTAKES = (
        (("coins * draft < target", "draft <= target"), "that keeps a draft only where p ≥ q: a coin decides, and it is kept with probability min(1, p/q)"),
        (("coins * draft < target", "coins < target"), "that keeps a draft with probability p: it was drawn from q, so it is kept with probability min(1, p/q)"),
        (("accepted.long().cumprod(dim=1)", "accepted.long()"), "drafts behind the first rejected one were counted: they continue a text that is not there. The new text ends with the first rejection"),
        (("(own - q[rows, kept]).clamp(min=0)", "own"), "the replacement was drawn from p itself: what q has given already counts twice then. Draw from (p - q)+"),
        (("torch.nn.functional.pad(q, (0, 0, 0, 1))", "torch.cat((q, q[:, -1:]), dim=1)"), "something was taken off the bonus token's p: no draft stood there, so nothing is"),
    )  # fmt: skip

    def compare(self, submission, cases):
        got = submission.run(probes.verified, cases)
        for case, call, note in zip(cases, got["calls"], got["notes"]):
            self.is_right(call["out"], note["rows"], case)
        expect.left_alone(got["calls"], cases, ["p", "q", "drafts", "coins"])
        return got["notes"]

    def is_right(self, result, given, case):
        batch, most, size = case[1].shape
        told = f"{plural(batch, 'request')}, {plural(most, 'draft')} each, {size} tokens"
        tokens, kept = pair(result, ("tokens", "kept"))
        (want, count), rows = judged(variant(self.reference), case)
        wrong = list(hints(self.reference, self.MISTAKES, lambda f: judged(f, case)))
        causes = [(out[1], words) for (out, _), words in wrong] * (batch >= 12)  # no chance
        expect.equal(kept, count, hints=causes, what=f"kept ({told})")
        expect.that(
            all(row.isfinite().all() and (row >= 0).all() and row.sum() > 0 for row in given),
            f"`pick` was given a row that holds nan or negative numbers, or only zeros ({told}): weights are ≥ 0, and their "
            "sum is over 0. Where q is larger than p nothing is missing; where nothing at all is left of (p - q)+, draw from p",
        )
        for b, row in enumerate(rows):
            self.is_given(b, row, given, int(count[b]), wrong, told, most)
        expect.equal(tokens, want, what=f"tokens ({told}), the new text and -1 behind it")

    def is_given(self, b, row, given, count, wrong, told, most):
        rule = "the bonus token, which is drawn from p's last place"
        if count < most:
            rule = "the replacement, which is drawn from (p - q)+ of the first rejected place"
        ones = given if len(given) == len(wrong[0][0][1]) else []  # one a request
        causes = (words for (_, rows), words in wrong if any(alike(own, rows[b]) for own in ones))
        expect.that(
            any(alike(own, row) for own in given),
            f"request {b} keeps {count} of {plural(most, 'draft')} ({told}), and `pick` was given no row for {rule}\n{next(causes, '')}".strip(),
        )

    @check(points=5, title="one draft: kept with min(1, p/q), else replaced from (p - q)+")
    def test_one(self, submission):
        sizes = ((12, 1, 6), (14, 1, 9), (1, 1, 4))
        self.compare(submission, [drawn_case(*each) for each in sizes])

    @check(points=4, title="several drafts: the text ends with the first that is not kept")
    def test_several(self, submission):
        sizes = ((16, 3, 7), (12, 2, 5), (2, 4, 6))
        p = (1.5 * torch.randn(24, 3, 6)).softmax(2)
        q = p[:, :2] * (1 + 0.02 * torch.randn(24, 2, 6))  # little is left of p - q
        q = q / q.sum(2, keepdim=True)
        drafts = torch.multinomial(q.flatten(0, 1), 1).view(24, 2)
        ratio = (p[:, :2] / q).gather(2, drafts[:, :, None])[:, :, 0]
        near = ratio * (1 + 1e-4 * torch.randn(24, 2).sign())
        coins = torch.where(ratio < 0.999, near, 0.5)
        cases = [drawn_case(*each) for each in sizes]
        self.compare(submission, [*cases, with_level(p, q, drafts, coins)])

    @check(points=3, title="all kept, or none drafted: a bonus token from p's last place")
    def test_bonus(self, submission):
        cases = []
        for batch, length, size in ((3, 2, 6), (1, 4, 5), (4, 1, 8)):
            p, q, drafts, coins, _ = drawn_case(batch, length, size)
            ratio = (p[:, :-1] / q).gather(2, drafts[:, :, None])[:, :, 0]
            cases.append(with_level(p, q, drafts, 0.2 * coins * ratio.clamp(max=1)))
        self.compare(submission, cases)
        words = "drafts may be none at all, g = 0: the bonus token comes all the same, from p's only place"
        with expect.because({"": words}):
            self.compare(submission, [drawn_case(3, 0, 6)])

    @check(points=3, title="many requests at once, without a loop over them")
    def test_at_once(self, submission):
        few, *parts = (drawn_case(each, 2, 6) for each in (3, 16, 16, 16, 16))
        many = with_level(*(torch.cat(tensors) for tensors in list(zip(*parts))[:4]))
        small, large = (note["operations"] for note in self.compare(submission, [few, many]))
        expect.that(
            small >= 4,
            "PyTorch was seen to do next to nothing: compute with its own operations, in its sight",
        )
        expect.that(
            large <= 1.5 * small + 10,
            f"{small} operations for 3 requests, {large} for 64: let each operation work on all requests. "
            "How many drafts each keeps is a cumprod and a sum along the drafts",
        )

    @check(points=3, title="p of 0, temperature 0, and a difference that rounding has left empty")
    def test_edges(self, submission):
        p, q, drafts, coins, _ = drawn_case(12, 2, 6)
        p[:, 0].scatter_(1, drafts[:, :1], 0.0)
        coins[:, 0] = 0.0  # the smallest coin, and a token that the target never says
        words = "the first draft of each request has p = 0, and its coin is 0: it is never kept"
        with expect.though(words):
            self.compare(submission, [with_level(p, q, drafts, coins)])
        tokens = torch.randint(7, (12, 4))
        drafts = torch.where(torch.rand(12, 3) < 0.6, tokens[:, :3], (tokens[:, :3] + 1) % 7)
        greedy = (F.one_hot(each, 7).float() for each in (tokens, drafts))
        with expect.though("at temperature 0 p and q are 1 for one token and 0 elsewhere"):
            self.compare(submission, [with_level(*greedy, drafts, torch.rand(12, 3))])
        same, own = ((1.5 * torch.randn(n, 2, 6)).softmax(2) for n in (3, 2))
        above, never = same[:, :1] * (1 + 1e-6), torch.full((3, 1), 1 - 2**-24)
        empty = (same, above, same[:, :1].argmax(2), never)
        other = own[:, :1].flip(2)
        usual = (own, other, (own[:, :1] / other).argmin(2), torch.full((2, 1), 0.999))
        with expect.though(
            "where rounding alone has rejected, all of (p - q)+ is 0 and p is drawn from"
        ):
            beside = (torch.cat(tensors) for tensors in zip(empty, usual))
            self.compare(submission, [with_level(*empty), with_level(*beside)])


# ---- n-grams


def texts(most, longest, letters=3):
    """Texts in which most ends stood before, in several places; in every third that of two tokens
    did not."""
    for number in range(12):
        tokens = torch.randint(100, 100 + letters, (int(torch.randint(9, 26, ())),)).tolist()
        yield [7, *tokens, 9, tokens[-1]] if number % 3 == 2 else tokens, most, longest


class TestNgramDraft(Exercise):
    """Prompt lookup"""

    name = "ngram_draft"
    reference = "minitrain.inference.speculation.plain:ngram_draft"
    hidden = HIDDEN
    PLACES = "range(len(tokens) - size - 1, -1, -1)"
    MISTAKES = (
        ((PLACES, "range(len(tokens) - size)"), "that is what followed the *first* find: the latest one counts, it is the nearest to what is told now"),
        (("range(min(longest, len(tokens) - 1), 0, -1)", "range(1, min(longest, len(tokens) - 1) + 1)"), "that is a find of fewer tokens: look for `longest` tokens first, and for fewer only where those are nowhere"),
        (("tokens[after : after + most]", "tokens[start : start + most]"), "that begins with the n-gram that was found: what *followed* it is drafted"),
        ((PLACES, "range(len(tokens) - 2 * size, -1, -1)"), "that passes over a find that overlaps the text's end: only its start must be earlier, in 5 5 5 5 the find of three starts at 0"),
        ((PLACES, "range(len(tokens) - size - most, -1, -1)"), "that passes over a place that fewer than `most` tokens follow: those few are the draft"),
    )  # fmt: skip

    def compare(self, submission, cases):
        calls = submission.run(probes.in_turn, cases)
        outs = [list(c["out"]) if isinstance(c["out"], tuple) else c["out"] for c in calls]
        by = lambda f: [f(*case) for case in cases]  # noqa: E731
        words = cause(outs, self.reference, self.MISTAKES, by)
        for (tokens, most, *longest), got, want in zip(cases, outs, by(variant(self.reference))):
            shown = tokens if len(tokens) <= 12 else ["…", *tokens[-8:]]
            what = f"the draft of {most} after {shown}, n-grams of {(longest or [3])[0]} at most"
            expect.equal(got, want, what=what, hints=[(got, words)])
        expect.left_alone(calls, cases, ["tokens"])

    @check(points=3, title="what followed the latest place where the text's end stood before")
    def test_latest(self, submission):
        sizes = ((4, 2), (2, 1), (3, 2), (3, 3))
        self.compare(submission, [text for each in sizes for text in texts(*each)])

    @check(points=3, title="the longest n-gram that is found counts, a shorter one only then")
    def test_longest(self, submission):
        sizes = ((3, 3), (2, 4), (4, 2), (2, 1), (2, 5))
        self.compare(submission, [text for each in sizes for text in texts(*each, letters=2)])

    @check(points=2, title="nothing found, short texts, a find that runs into the text's end")
    def test_edges(self, submission):
        a, b, c = torch.randperm(90)[:3].tolist()
        d, e, f, g = (1 + torch.randperm(9)[:4]).tolist()
        tail = [f, 300, e, 400 + g, d, e]  # the end of two is nowhere before, but in the digits
        cases = [
            ([], 3), ([a], 4), ([a, b, c], 3), ([a, a], 3), ([a, a, a, a], 5), ([a, b, a], 4, 8),
            ([a, b, c, a, b], 9), ([a, b, a, b], 1), ([a, b, a, b], 0), ([c, a, b, a, b, a, b], 6),
            ([10 * f + d, e, *tail], 2), ([d, 10 * e + f, *tail], 2), ([f, 10 * d + e, *tail], 2),
        ]  # fmt: skip
        words = "a text may be shorter than the n-gram: look for fewer tokens then"
        with expect.because({("index", "empty"): words}):
            self.compare(submission, cases)


# ---- what it gains


class TestBestLength(Exercise):
    """Tokens a round over its cost"""

    name = "best_length"
    reference = "minitrain.inference.speculation.plain:best_length"
    hidden = HIDDEN
    parts, arguments = (
        ("the best length", "the list of speed-ups"),
        ("acceptance", "draft_cost", "passes"),
    )
    TOKENS = "sum(acceptance**i for i in range(length + 1))"
    MISTAKES = (
        ((TOKENS, "max(1, length) if acceptance == 1 else sum(acceptance**i for i in range(max(1, length)))"), "that is without the last token: a round writes 1 + a + … + a^g tokens, for one more comes after the kept ones"),
        (("+ seconds)", "+ 1.0)"), "that takes the target's pass to cost 1 whatever it reads: with g drafts it costs passes[g]"),
        (("length * draft_cost + seconds", "seconds"), "the drafts cost nothing there: g of them cost g · draft_cost"),
        ((TOKENS, "1 + length * acceptance"), "that is 1 + g·a tokens: a draft only counts if all before it were kept, so a + a² + … + a^g"),
        (("speeds.index(max(speeds))", "len(speeds) - 1 - speeds[::-1].index(max(speeds))"), "of equally fast lengths the shortest wins"),
    )  # fmt: skip

    def compare(self, submission, *cases):
        found = pairs_of(self, submission, cases)
        for (_, _, passes), (best, speeds) in zip(cases, found):
            expect.that(
                isinstance(speeds, (list, tuple)) and len(speeds) == len(passes),
                f"the speed-ups: got {expect.show(speeds)}, expected a list of {len(passes)}, for 0 to {len(passes) - 1} drafts",
            )
            is_whole = not isinstance(best, bool) and isinstance(best, int)
            expect.that(
                is_whole, f"the best length is {expect.show(best)}: a whole number of drafts"
            )
        for part in reversed(self.parts):
            compare_part(self, part, found, cases, 1e-4)

    def passes(self, count):
        steps = 0.05 + 0.3 * torch.rand(count - 1, dtype=torch.float64)
        return [1.0, *(1 + steps.cumsum(0)).tolist()]

    @check(points=3, title="1 + a + … + a^g tokens over g drafts and one pass")
    def test_speeds(self, submission):
        cases = []
        for count in (5, 8, 3):
            a, cost = (0.3 + 0.5 * torch.rand(2, dtype=torch.float64)).tolist()
            cases.append((a, cost / 4, self.passes(count)))
        self.compare(submission, *cases)

    @check(points=2, title="the fastest length; 0 where none pays; the shortest of equals")
    def test_best(self, submission):
        a, cost = (0.5 + 0.4 * torch.rand(2, dtype=torch.float64)).tolist()
        self.compare(
            submission,
            (a, 0.02, self.passes(7)),
            (a / 4, cost, self.passes(6)),
            (0.0, 0.0, [1.0] * 4),
            (0.5, 0.0, [1.0, 1.5, 1.75]),
            (a, 0.3, [1.0]),
            (0.9, 0.02, [1.0, 1.05, 1.8, 1.85, 1.9, 1.95, 4.0, 4.1]),  # passes grow in steps
            (0.9, 0.02, [1.0, 2.1, 2.15, 2.2, 2.25, 2.3, 5.0]),
        )

    @check(
        points=3,
        title="acceptance 0 and 1, drafts that are free or dear, a pass that alone costs more than 1",
    )
    def test_limits(self, submission):
        words = "at acceptance 1 the closed form is 0 / 0: the sum 1 + a + … + a^g is g + 1 there"
        with expect.because({("ZeroDivision", "division"): words}):
            self.compare(
                submission,
                (1.0, 0.1, self.passes(5)),
                (0.0, 0.2, self.passes(4)),
                (0.9, 0.0, self.passes(6)),
                (0.95, float(torch.rand(())) + 1.1, self.passes(5)),
                (1.0, 0.0, [1.0] * 6),
                (0.8, 0.1, [1.5, 1.6, 1.75]),
                (0.3, 0.5, [2.5, 2.6, 2.7]),  # all are below 1
            )


# ---- trees


def drawn_tree(count):
    """Parents that come before their children, in no special order, with rivals and depth."""
    while True:
        parents, depths = [-1], [1]
        for node in range(1, count):
            parents.append(-1 if torch.rand(()) < 0.25 else int(torch.randint(node, ())))
            depths.append(1 if parents[-1] < 0 else depths[parents[-1]] + 1)
        if max(depths) >= 3 and len(set(parents)) < count - 1 and parents.count(-1) >= 2:
            return parents


class TestTreeAttention(Exercise):
    """A tree of drafts in one pass"""

    name = "tree_attention"
    reference = "minitrain.inference.speculation.plain:tree_attention"
    hidden = HIDDEN
    parts, arguments = ("seen", "positions"), ("parents", "read")
    EYE, ROW = "torch.eye(len(parents), dtype=torch.bool)", "seen[node] |= seen[parent]"
    MISTAKES = (
        ((EYE, "torch.ones(len(parents), len(parents), dtype=torch.bool).tril()"), "that is the causal mask: rivals must not read each other, they are other texts. A node reads itself and those on its way"),
        ((ROW, "seen[node, parent] = True"), "a node reads its parent, its parent's parent and so on, up to the text: that has the parent only"),
        (("if parent >= 0:", "if True:"), "-1 means the text, and used as an index it is the last node"),
        (("read + seen.sum(dim=1) - 1", "read + torch.arange(len(parents))"), "that is each node's number: rivals stand at the *same* place of their texts. A node's position is how many tokens are before it"),
        (("read + seen.sum(dim=1) - 1", "read + torch.tensor(parents) + 1"), "that is the parent's *number* and one more: a node's position is its parent's *position* and one more"),
    )  # fmt: skip

    def compare(self, submission, cases, *parts):
        found = pairs_of(self, submission, cases)
        for part in parts:
            compare_part(self, part, found, cases)

    @check(points=4, title="a node reads the text, its ancestors and itself, and no rival")
    def test_mask(self, submission):
        cases = [(drawn_tree(count), read) for count, read in ((7, 3), (9, 5), (6, 1), (7, 3))]
        self.compare(submission, cases, "seen")

    @check(points=3, title="its position is the text's length and its depth")
    def test_positions(self, submission):
        cases = [(drawn_tree(count), read) for count, read in ((8, 4), (6, 11), (10, 2), (8, 4))]
        self.compare(submission, cases, "positions")

    @check(points=2, title="chains, rivals only, one node, no text before")
    def test_edges(self, submission):
        n, deep = torch.randint(4, 8, ()).item(), torch.randint(35, 45, ()).item()
        cases = [(list(range(-1, n - 1)), 3), ([-1] * n, 2), ([-1], 6), (drawn_tree(7), 0)]
        self.compare(submission, [*cases, (list(range(-1, deep - 1)), 2)], *self.parts)


def walks(item, *lengths, each=6):
    """Tokens, parents and choices such that so many nodes are kept; no two children are alike."""
    for length in lengths * each:
        while True:
            parents = drawn_tree(int(torch.randint(6, 10, ())))
            tokens = torch.randint(4, (len(parents),)).tolist()
            choices = torch.randint(4, (len(parents) + 1,)).tolist()
            are_unlike = len(set(zip(parents, tokens))) == len(parents)
            if are_unlike and len(variant(item.reference)(tokens, parents, choices)[0]) == length:
                yield tokens, parents, choices
                break


class TestAcceptedPath(Exercise):
    """The branch that is kept"""

    name = "accepted_path"
    reference = "minitrain.inference.speculation.plain:accepted_path"
    hidden = HIDDEN
    parts, arguments = ("the path", "the new tokens"), ("tokens", "parents", "choices")
    WHILE, NEXT, LAST = (
        "(at, choices[at + 1]) in children",
        "children[at, choices[at + 1]]",
        "path), choices[at + 1]]",
    )
    MISTAKES = (
        ((WHILE, "(at, choices[max(at, 0)]) in children", NEXT, "children[at, choices[max(at, 0)]]", LAST, "path), choices[max(at, 0)]]"), "choices[0] is the target's own after the *text*, and choices[i + 1] after node i"),
        ((WHILE, "children.get((at, choices[at + 1]))"), "the walk has ended where node 0 is the child that has the target's own token: 0 is a node as any other, and only `None` is none"),
        (("return path, [", "return [tokens[node] for node in path], ["), "those are tokens: the path is of nodes, by number"),
        ((LAST, "path)]"), "the target's own token after the last kept node is missing: it was computed in the same pass, and one comes even where nothing is kept"),
        ((LAST, "path), choices[-1]]"), "the last one is the target's own after the last *kept* node: choices[node + 1]"),
    )  # fmt: skip

    def compare(self, submission, cases):
        found = pairs_of(self, submission, cases)
        found = [[list(part) if isinstance(part, tuple) else part for part in two] for two in found]
        for part in self.parts:
            compare_part(self, part, found, cases)

    @check(points=3, title="from the text on, to the child that is the target's own token")
    def test_way(self, submission):
        self.compare(submission, list(walks(self, 3, 2)))

    @check(points=2, title="one token more than nodes, also where no node is kept")
    def test_last(self, submission):
        self.compare(submission, list(walks(self, 0, 1, 3)))

    @check(points=2, title="no nodes, a chain that is kept whole, the last node")
    def test_edges(self, submission):
        a, b, c, d, *more = torch.randperm(50)[:16].tolist()
        cases = [
            ([a, b, c], [-1, 0, 1], [a, b, c, d]),
            (more, list(range(-1, len(more) - 1)), [*more, a]),
            ([a, b, c, d], [-1, -1, -1, -1], [d, a, b, c, a]),
            ([a, b, c, a], [-1, 0, 0, 2], [a, c, b, a, d]),
        ]
        self.compare(submission, cases)
        words = "a tree may have no nodes: the target's own token after the text comes all the same"
        with expect.because({"": words}):
            self.compare(submission, [([], [], [a])])


# ---- heads

LENGTHS = {
    "to match target batch_size": "the last k + 1 places have no token for head k: cut `hidden` there, and the first k + 1 tokens off the targets, so that both have as many places",
    "Expected target size": "`cross_entropy` takes (N, V) and (N,), so flatten texts and places; and both have as many places: the last k + 1 of a text have no token for head k",
    "shapes cannot be multiplied": "rows x are multiplied by a transpose: W x is `x @ W.t()`, with W (D, D) and U (V, D)",
}  # fmt: skip


class TestMedusaLoss(Exercise):
    """Heads for the tokens behind the next"""

    name = "medusa_loss"
    reference = "minitrain.inference.speculation.plain:medusa_loss"
    hidden = HIDDEN
    MISTAKES = (
        ((": -k - 1]", ": -k]", "k + 1 :]", "k :]"), "head 1 was taught the token after its place: the target's own head guesses that. Head k guesses tokens[t + k + 1]"),
        (("x = x + torch", "x = torch"), "h itself is missing: the head reads h + silu(W h)"),
        (("first.t()", "first"), "W was multiplied from the other side: W h is `x @ W.t()` for rows x"),
        (("decay**k", "decay ** (k - 1)"), "the weights are decay^k with k from 1: head 1 has `decay`, not 1"),
        (("decay**k * loss", "loss"), "decay is missing: head k counts decay^k times"),
    )  # fmt: skip

    def draw(self, texts, length, width, vocabulary, heads, *decay):
        hidden = torch.randn(texts, length, width)
        inner = torch.randn(heads, width, width) / width**0.5
        outer = 2 * torch.randn(heads, vocabulary, width) / width**0.5
        tokens = torch.randint(vocabulary, (texts, length))
        tokens[0, -1] = 0  # every head is taught it
        return hidden, inner, outer, tokens, *decay

    def compare(self, submission, cases):
        """Pairs of what came and of the reference's."""
        with expect.because(LENGTHS):
            found = submission.run(probes.learned, cases)
        for result in found:
            loss = result["loss"]
            expect.that(
                isinstance(loss, torch.Tensor) and loss.shape == (),
                f"the loss is {expect.show(loss)}: return one number, a tensor without dimensions",
            )
            expect.that(
                result["unchanged"],
                "an input was changed: hidden, inner, outer and tokens are the caller's",
            )
        by = lambda f: [one["loss"].float() for one in probes.learned(f, cases)]  # noqa: E731
        losses = [result["loss"].float() for result in found]
        words = cause(losses, self.reference, self.MISTAKES, by, 2e-4)
        wants = probes.learned(variant(self.reference), cases)
        for case, loss, want in zip(cases, losses, wants):
            decay = (case[4:] or [0.8])[0]
            told = f"{plural(len(case[1]), 'head')}, {plural(len(case[3]), 'text')} of {case[3].shape[1]} tokens, decay {decay:g}"
            expect.equal(loss, want["loss"], 2e-4, [(loss, words)], f"the loss ({told})")
        return zip(found, wants)

    @check(points=4, title="head k guesses tokens[t + k + 1]; its loss is the mean over places")
    def test_shift(self, submission):
        sizes = ((2, 9, 6, 11, 1), (3, 8, 5, 7, 3), (1, 12, 4, 9, 2))
        self.compare(submission, [self.draw(*each, 1.0) for each in sizes])

    @check(points=3, title="heads are summed, head k with the weight decay^k")
    def test_decay(self, submission):
        decay = float(0.3 + 0.5 * torch.rand(()))
        sizes = ((2, 9, 6, 8, 3), (2, 7, 5, 6, 4, decay), (1, 5, 4, 6, 3, decay / 2))
        self.compare(submission, [self.draw(*each) for each in sizes])

    @check(
        points=3,
        title="gradients for both matrices of every head, and none for the target's vectors",
    )
    def test_gradients(self, submission):
        cases = [self.draw(2, 8, 6, 9, 3), self.draw(3, 6, 4, 7, 2, 0.5)]
        for result, want in self.compare(submission, cases):
            expect.that(
                result["backward"],
                "the loss has no graph: the heads' matrices are to be trained by it",
            )
            of_hidden, *own = result["gradients"]
            expect.that(
                of_hidden is None or not of_hidden.any(),
                "a gradient has reached `hidden`: the target is frozen, its text must stay as it is. `.detach()` first",
            )
            for name, got, wanted in zip(("inner", "outer"), own, want["gradients"][1:]):
                expect.equal(got, wanted, tol=1e-3, what=f"the gradient of `{name}`")


# ---- experiments


WRONG = ("kept where p ≥ q", "replaced from p", "typical acceptance")
BLIND = ("drafts behind a rejection", "bonus from q")


class TestExact(Experiment):
    """Seven rules, two tests"""

    name = "exact"
    rests_on = ("verify",)

    @check(points=3, title="200,000 draws of your rule are the target's, one by one and in pairs")
    def test_yours(self, table):
        rows = expect.rows(table, "rule", "test")
        for test in ("one token", "pairs"):
            chance = rows["yours", test]["chance"]
            expect.that(chance > 1e-5, f"yours, {test}: a chance of {chance:.1e} that they are the target's")  # fmt: skip

    @check(points=3, title="wrong rules are found out, two of them by pairs alone")
    def test_wrong(self, table):
        rows = expect.rows(table, "rule", "test")
        for rule in WRONG:
            chance = rows[rule, "one token"]["chance"]
            expect.that(chance < 1e-6, f"'{rule}' passes the test of one token with {chance:.1e}")
        for rule in BLIND:
            single, both = (rows[rule, test]["chance"] for test in ("one token", "pairs"))
            expect.that(
                single > 1e-5 and both < 1e-6,
                f"'{rule}': one token {single:.1e}, pairs {both:.1e}; pairs alone must find it out",
            )
        whole, less = rows["yours", "pairs"], rows["no bonus", "pairs"]
        expect.that(
            less["chance"] > 1e-5 and less["tokens_a_pass"] < whole["tokens_a_pass"],
            f"no bonus: {less['tokens_a_pass']:.2f} tokens a pass with a chance of {less['chance']:.1e}; yours "
            f"{whole['tokens_a_pass']:.2f}. It loses tokens, not exactness",
        )


class TestDrafts(Experiment):
    """Drafts against the formula"""

    name = "drafts"
    rests_on = ("verify", "ngram_draft", "best_length")

    @check(points=3, title="tokens a pass are near what the acceptance says")
    def test_tokens(self, table):
        expect.that(len({row["draft"] for row in table}) >= 4, "at least 4 drafts")
        for row in table:
            a, g = row["acceptance"], row["length"]
            told = f"{row['draft']}, {g} drafts"
            expect.that(0 <= a <= 1, f"{told}: an acceptance of {a}")
            want, got = sum(a**i for i in range(g + 1)), row["tokens_a_pass"]
            expect.that(
                1 <= got <= g + 1 and abs(got / want - 1) < 0.4,
                f"{told}: {got:.2f} tokens a pass, where an acceptance of {a:.2f} promises {want:.2f}",
            )

    @check(points=2, title="the expected speed-up is your formula's, at the costs measured")
    def test_expected(self, table):
        for row in table:
            a, g = row["acceptance"], row["length"]
            tokens = sum(a**i for i in range(g + 1))
            want = tokens / (g * row["draft_cost"] + row["pass_cost"])
            what = f"{row['draft']}, {g} drafts: the expected speed-up"
            expect.close(row["expected"], want, tol=0.01, what=what)
            expect.that(row["speed_up"] > 0, f"{row['draft']}: a speed-up of {row['speed_up']}")


class TestPasses(Experiment):
    """What a pass costs, by batch and tokens"""

    name = "passes"
    rests_on = ("best_length",)

    @check(
        points=3,
        title="a pass over more tokens, and a larger batch, costs more; a lone one little more",
    )
    def test_costs(self, table):
        rows = expect.rows(table, "batch", "tokens")
        sizes = sorted({batch for batch, _ in rows})
        expect.that(len(sizes) >= 3, f"batches {sizes}: at least 3")
        for batch in sizes:
            expect.that(rows[batch, 1]["seconds"] > 0, f"batch {batch}: no seconds")
        one, five = rows[sizes[0], 1], rows[sizes[0], 5]
        expect.that(
            five["seconds"] < 5 * one["seconds"],
            f"batch {sizes[0]}: {five['seconds']:.2e} s for 5 tokens, {one['seconds']:.2e} for one: measure again",
        )
        expect.that(
            rows[sizes[-1], 5]["seconds"] > five["seconds"],
            f"5 tokens of {sizes[-1]} requests took no longer than of {sizes[0]}: measure again",
        )


class TestHeads(Experiment):
    """Heads, and how far they see"""

    name = "heads"
    rests_on = ("medusa_loss",)

    @check(points=1, title="each further head is right less often")
    def test_heads(self, table):
        right = [row["right"] for row in table]
        expect.that(len(right) >= 3, f"{len(right)} heads are in the table: at least 3")
        expect.that(
            right[0] > right[-1] and all(0 < share < 1 for share in right),
            f"heads are right in {', '.join(f'{100 * share:.0f}%' for share in right)}",
        )


class TestMedusa(Experiment):
    """A chain of guesses, and trees of them"""

    name = "medusa"
    rests_on = ("tree_attention", "accepted_path", "medusa_loss")

    @check(points=3, title="a tree keeps more than a chain; training has taught the heads")
    def test_trees(self, table):
        rows = expect.rows(table, "way")
        chain, tree, raw = (rows[way] for way in ("chain", "tree", "tree, untrained"))
        expect.that(
            tree["tokens_a_pass"] > chain["tokens_a_pass"] - 0.1,
            f"chain {chain['tokens_a_pass']:.2f} tokens a pass, tree {tree['tokens_a_pass']:.2f}",
        )
        expect.that(
            tree["tokens_a_pass"] > raw["tokens_a_pass"],
            f"tree {tree['tokens_a_pass']:.2f} tokens a pass, before training {raw['tokens_a_pass']:.2f}",
        )


class TestGreedy(Experiment):
    """Every draft, one text"""

    name = "greedy"
    rests_on = ("verify", "ngram_draft", "tree_attention", "accepted_path")

    @check(
        points=4, title="at temperature 0 every draft writes the target's own text, token for token"
    )
    def test_same(self, table):
        expect.that(len(table) >= 6, f"{len(table)} rows: the target alone and every draft")
        texts = {row["text"] for row in table}
        told = ", ".join(f"{row['draft']} {row['text']}" for row in table)
        expect.that(len(texts) == 1, f"not all texts are the same: {told}")
        rows = expect.rows(table, "draft")
        alone = rows["none"]["passes"]
        fewer = sum(row["passes"] < alone for row in rows.values())
        expect.that(fewer >= 4, f"only {fewer} drafts needed fewer passes than {alone}")


class TestAdaptive(Experiment):
    """A length for each draft"""

    name = "adaptive"
    rests_on = ("best_length", "verify")

    @check(
        points=3,
        title="the adapted length costs little more than the best fixed one, for every draft",
    )
    def test_adapted(self, table):
        rows = expect.rows(table, "draft", "length")
        names = sorted({draft for draft, _ in rows})
        expect.that(len(names) >= 3, f"drafts {names}: at least 3")
        for name in names:
            fixed = [row["cost"] for (draft, length), row in rows.items() if draft == name and length != "adaptive"]  # fmt: skip
            expect.that(len(fixed) >= 3, f"{name}: {len(fixed)} fixed lengths, at least 3")
            adapted, best = rows[name, "adaptive"]["cost"], min(fixed)
            expect.that(
                adapted <= 1.35 * best,
                f"{name}: {adapted:.2f} passes a token adapted, {best:.2f} with the best fixed length",
            )


# ---- questions


class TestUnseen(Question):
    """What one token does not see"""

    name = "unseen"
    rests_on = ("exact",)

    @check(points=5, title="how many of the six other rules pass the test of one token")
    def test_value(self, value, records):
        rows = expect.recorded(records, "exact")
        want = sum(row["test"] == "one token" and row["rule"] != "yours" and row["chance"] > 1e-3 for row in rows)  # fmt: skip
        expect.equal(value, want, what="other rules that pass the test of one token")


def least_acceptance(needed, length):
    """Percent: where 1 + a + … + a^g reaches `needed`; 100 where it never does."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        enough = sum(middle**i for i in range(length + 1)) >= needed
        low, high = (low, middle) if enough else (middle, high)
    return 100 * high


class TestBreakEven(Question):
    """Where drafts begin to pay"""

    name = "break_even"
    rests_on = ("drafts",)

    @check(
        points=5, title="the acceptance from which four drafts of the small model pay, in percent"
    )
    def test_value(self, value, records):
        rows = expect.rows(expect.recorded(records, "drafts"), "draft", "length")
        row = rows["small model", 4]
        want = least_acceptance(4 * row["draft_cost"] + row["pass_cost"], 4)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        expect.that(number, f"got {expect.show(value)}: a number, in percent")
        words = "solve 1 + a + a² + a³ + a⁴ = 4·c + v, with the small model's costs of your table"
        if abs(value - want / 100) < 0.01 and want > 2:
            words = "that is a share: in percent it is 100 times as much"
        expect.that(abs(value - want) <= 1.5, f"got {value:.3g}: {words}")


class TestLosesAt(Question):
    """The batch that is too large"""

    name = "loses_at"
    rests_on = ("passes", "drafts")

    @check(
        points=5, title="the smallest batch at which four drafts of the small model no longer pay"
    )
    def test_value(self, value, records):
        rows = expect.rows(expect.recorded(records, "passes"), "batch", "tokens")
        drafts = expect.rows(expect.recorded(records, "drafts"), "draft", "length")
        row = drafts["small model", 4]
        tokens = sum(row["acceptance"] ** i for i in range(5))
        losing = [0]
        for batch in sorted({batch for batch, _ in rows}, reverse=True):
            one, five = rows[batch, 1], rows[batch, 5]
            if tokens * one["seconds"] < 4 * one["draft_seconds"] + five["seconds"]:
                losing.append(batch)
        want = losing[-1]
        expect.that(
            value == want,
            f"got {expect.show(value)}: at which batches of your table do 4 drafts and a pass over 5 tokens take longer "
            "than that many single passes as tokens come of them? The smallest, 0 if none",
        )
