"""The checks of lab e09b: speculative decoding, graded by what a draw is made from."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from minitrain.lab.failures import CheckFailed, SubmissionFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.difference import difference
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
MARGIN = 1e-3  # from any tie: what rounding may turn


def pair(result, names):
    """The two parts of a result."""
    expect.that(
        isinstance(result, (list, tuple)) and len(result) == len(names),
        f"got {expect.show(result)}: return {' and '.join(names)}",
    )
    return result


def matching(got, hints):
    """The words of all hints that `got` is, as one: where several fit, none is certain."""
    found = list(dict.fromkeys(words for wrong, words in hints if difference(got, wrong) is None))
    return [(got, "\nor: ".join(found))] if found else []


# ---- verification


def accept_right(coin, p, q):
    return coin * q < p


ACCEPTING = [
    (lambda coin, p, q: p >= q, "that keeps a draft only where p ≥ q: a coin decides, and it is kept with probability min(1, p/q)"),
    (lambda coin, p, q: coin < p, "that keeps a draft with probability p: it was drawn from q, so it is kept with probability min(1, p/q)"),
    (lambda coin, p, q: coin * p < q, "that is q/p, upside down: keep with probability min(1, p/q)"),
    (lambda coin, p, q: coin * q >= p, "that is turned round: a draft is kept where its coin is *below* p/q"),
    (lambda coin, p, q: 1 - coin < p / q, "that keeps a draft where 1 - coin is below p/q: the coin itself is compared"),
]  # fmt: skip
NOT_PREFIX = "drafts behind the first rejected one were counted: they continue a text that is not there. The new text ends with the first rejection"
MULTIPLIED = "that compares a coin with the product of p/q up to its place: each draft's coin is for the p/q of its own place alone"
RESTS = [
    (lambda p, q: p, "the replacement was drawn from p itself: what q has given already counts twice then. Draw from (p - q)+"),
    (lambda p, q: q, "the replacement was drawn from q: draw it from (p - q)+"),
    (lambda p, q: (q - p).clamp(min=0), "the replacement was drawn from (q - p)+, where the draft model says too much: it is (p - q)+, what it has missed"),
    (lambda p, q: (p - q).abs(), "the replacement was drawn from |p - q|: where q is larger nothing is missing, so clamp at 0"),
    (lambda p, q: p / q.clamp(min=1e-30), "the replacement was drawn from p/q: draw it from (p - q)+"),
]  # fmt: skip


def told_of(p, q, drafts, coins, accept=accept_right, prefix=True, most=None):
    """How many drafts each request keeps, (B,); most: p/q are multiplied up to each place, none of
    them more than `most`."""
    kept = []
    for b in range(len(p)):
        count, product = 0, 1.0
        for i, token in enumerate(drafts[b].tolist()):
            coin, mine, its = float(coins[b, i]), float(p[b, i, token]), float(q[b, i, token])
            if most is not None:
                product *= min(most, mine / its)
                mine, its = product, 1.0
            if accept(coin, mine, its):
                count += 1
            elif prefix:
                break
        kept.append(count)
    return torch.tensor(kept)


def last_rows(p, q, kept):
    """What each request's last token is drawn from, (B, V) in float64."""
    p, q, rows = p.double(), q.double(), []
    for b, count in enumerate(kept.tolist()):
        if count == q.shape[1]:
            rows.append(p[b, count])
        else:
            rest = (p[b, count] - q[b, count]).clamp(min=0)
            rows.append(rest if rest.sum() > 0 else p[b, count])
    return torch.stack(rows)


def picked(rows, level):
    sums = rows.cumsum(dim=1)
    return torch.searchsorted(sums, level * sums[:, -1:], right=True)[:, 0]


def shares(row):
    return row / row.sum()


def text_of(drafts, kept, last):
    """tokens (B, g + 1), -1 behind."""
    tokens = torch.full((len(drafts), drafts.shape[1] + 1), -1)
    for b, count in enumerate(kept.tolist()):
        tokens[b, :count] = drafts[b, :count]
        tokens[b, count] = last[b]
    return tokens


def distributions(*shape, sharp=1.5):
    return (sharp * torch.randn(*shape)).softmax(dim=-1)


def drawn_case(batch, length, size):
    """p, q, drafts, coins, level: far from every tie, and told apart by every mistake."""
    while True:
        p, q = distributions(batch, length + 1, size), distributions(batch, length, size)
        drafts = torch.multinomial(q.flatten(0, 1), 1).view(batch, length) if length else torch.empty(batch, 0, dtype=torch.long)  # fmt: skip
        coins, level = torch.rand(batch, length), float(torch.rand(()))
        if clear(p, q, drafts, coins, level):
            return p, q, drafts, coins, level


def clear(p, q, drafts, coins, level):
    at = drafts[:, :, None]
    target, draft = p[:, :-1].gather(2, at), q.gather(2, at)
    near = (coins[:, :, None] * draft - target).abs()
    if near.numel() and near.min() < 1e-5:
        return False
    kept = told_of(p, q, drafts, coins)
    rows = last_rows(p, q, kept)
    sums = rows.cumsum(1) / rows.sum(1, keepdim=True)
    if (sums - level).abs().min() < MARGIN or rows.sum(1).min() < 0.02:
        return False
    most, wrong = drafts.shape[1], [accept for accept, _ in ACCEPTING]
    if len(p) >= 12 and most:
        if set(kept.tolist()) != set(range(most + 1)):
            return False
        told = [kept, *(told_of(p, q, drafts, coins, accept) for accept in wrong)]
        told += [told_of(p, q, drafts, coins, prefix=False)] if most > 1 else []
        if most > 1 and torch.equal(told_of(p, q, drafts, coins, most=1.0), kept):
            return False
        return len({tuple(each.tolist()) for each in told}) == len(told)
    return True


class TestVerify(Exercise):
    """Exact verification"""

    name = "verify"
    reference = "minitrain.inference.speculation.plain:verify"
    hidden = HIDDEN

    def compare(self, submission, cases):
        got = submission.run(probes.verified, cases)
        for case, call, note in zip(cases, got["calls"], got["notes"]):
            self.is_right(call["out"], note, *case)
        expect.left_alone(got["calls"], cases, ["p", "q", "drafts", "coins"])
        return got["notes"]

    def is_right(self, result, note, p, q, drafts, coins, level, causes=True):
        batch, most = drafts.shape
        told = f"{plural(batch, 'request')}, {plural(most, 'draft')} each, {p.shape[2]} tokens"
        tokens, kept = pair(result, ("tokens", "kept"))
        want = told_of(p, q, drafts, coins)
        hints = [
            (want[:, None], "one number a request, (B,)"),
            (want.float(), "a count is a whole number: int64"),
        ]
        if batch >= 12 or bool((want == most).all()):
            hints.append((want + 1, "that counts the last token too: `kept` is how many *drafts* the text begins with"))  # fmt: skip
        if batch >= 12:  # fewer may agree by chance
            hints += [(told_of(p, q, drafts, coins, accept), words) for accept, words in ACCEPTING]
            hints.append((told_of(p, q, drafts, coins, prefix=False), NOT_PREFIX))
            hints += [(told_of(p, q, drafts, coins, most=m), MULTIPLIED) for m in (1.0, torch.inf)]
        hints = matching(kept, hints) or self.in_numbers(kept, want, p, q, drafts, coins)
        expect.equal(kept, want, what=f"kept ({told})", hints=hints)
        rows = last_rows(p, q, want)
        expect.that(
            note["picks"],
            f"`pick` was never called ({told}): after the kept drafts comes one token more, and `pick` draws it",
        )
        given = note["rows"]
        for b in range(batch):
            if not any(self.alike(row, rows[b]) for row in given):
                self.refuse(
                    given, p[b].double(), q[b].double(), drafts[b], int(want[b]), told, causes
                )
        wanted = text_of(drafts, want, picked(rows, level))
        expect.equal(tokens, wanted, what=f"tokens ({told})", hints=[
            (wanted[:, :-1], "the last column is missing: tokens are (B, g + 1), for all drafts may be kept and a bonus token comes"),
            (torch.where(wanted == -1, 0, wanted), "what is behind the new text is -1, not 0: 0 is a token"),
            (self.unmarked(drafts, wanted), "what is behind the new text must be -1: drafts that were not kept are dropped"),
            (wanted.to(torch.int32), "tokens are int64"),
        ])  # fmt: skip

    def in_numbers(self, kept, want, p, q, drafts, coins):
        """The coins and ratios of the first request whose count is wrong."""
        if not isinstance(kept, torch.Tensor) or kept.shape != want.shape or not want.numel():
            return []
        wrong = (kept != want).nonzero().flatten().tolist()
        if not wrong or drafts.shape[1] == 0:
            return []
        b = wrong[0]
        at = drafts[b][:, None]
        ratios = (p[b, :-1].gather(1, at) / q[b].gather(1, at))[:, 0]
        shown = [", ".join(f"{x:.2f}" for x in row.tolist()) for row in (coins[b], ratios)]
        return [(kept, f"request {b}: its drafts' coins are {shown[0]}, their p/q {shown[1]}: the text begins with {int(want[b])} of them")]  # fmt: skip

    def unmarked(self, drafts, wanted):
        return torch.where(wanted == -1, F.pad(drafts, (0, 1)), wanted)

    def alike(self, row, want):
        return len(row) == len(want) and bool(
            (row >= 0).all() and row.sum() > 0 and (shares(row) - shares(want)).abs().max() < 1e-4
        )

    def refuse(self, given, p, q, drafts, kept, told, causes):
        """Says from what the last token of a request was drawn instead."""
        all_kept = kept == len(q)
        what = f"{told}: where {kept} of {len(q)} drafts are kept, `pick` was given no row for the {'bonus token, which is drawn from p' if all_kept else 'replacement, which is drawn from (p - q)+'}"  # fmt: skip
        expect.that(all(row.isfinite().all() for row in given), f"{what}; a row given to it holds nan or inf")  # fmt: skip
        expect.that(
            not any(bool((row < -1e-6).any()) for row in given),
            f"{what}; rows with negative numbers were given: weights are ≥ 0. Where q is larger than p nothing is missing, so (p - q)+ is 0 there: clamp at 0",
        )  # fmt: skip
        expect.that(causes, what)
        if all_kept:
            variants = [(p[-2] if len(q) else p[-1], "the bonus token was drawn from p at the last *draft*'s place: p has g + 1 places, and its last one comes after all drafts")]  # fmt: skip
            if len(q):
                variants += [
                    ((p[-1] - q[-1]).clamp(min=0), "something was taken off the bonus token's p: no draft stood there, so nothing is"),
                    ((p[-2] - q[-1]).clamp(min=0), "where all drafts are kept nothing was rejected: the bonus token is drawn from p's last place itself"),
                    (q[-1], "the bonus token was drawn from q: it is the target's own, from p's last place"),
                ]  # fmt: skip
        else:
            variants = [(rest(p[kept], q[kept]), words) for rest, words in RESTS]
            struck = p[kept].index_fill(0, drafts[kept], 0.0)
            variants.append((struck, "the replacement was drawn from p without the rejected token: q has given the other tokens their shares, too. Take all of q off, (p - q)+"))  # fmt: skip
            for place in range(len(q)):
                if place != kept:
                    variants.append(((p[place] - q[place]).clamp(min=0), f"the replacement was drawn from the difference at place {place}: draft {kept} was the first that was not kept, so p and q of place {kept} count"))  # fmt: skip
            variants.append((p[kept + 1], "the replacement was drawn from p one place on: that is after the draft that was rejected"))  # fmt: skip
        for row, words in variants:
            if row.sum() > 0 and any(self.alike(other, row) for other in given):
                expect.that(False, f"{told}: {words}")
        expect.that(False, what)

    @check(points=5, title="one draft: kept with min(1, p/q), else replaced from (p - q)+")
    def test_one(self, submission):
        self.compare(submission, [drawn_case(*sizes) for sizes in ((12, 1, 6), (14, 1, 9), (1, 1, 4))])  # fmt: skip

    @check(points=4, title="several drafts: the text ends with the first that is not kept")
    def test_several(self, submission):
        sizes = ((16, 3, 7), (12, 2, 5), (2, 4, 6))
        self.compare(submission, [drawn_case(*each) for each in sizes])

    @check(points=3, title="all kept, or none drafted: a bonus token from p's last place")
    def test_bonus(self, submission):
        cases = []
        for batch, length, size in ((3, 2, 6), (1, 4, 5), (4, 1, 8)):
            p, q, drafts, coins, level = drawn_case(batch, length, size)
            coins = 0.2 * coins * (p[:, :-1] / q).gather(2, drafts[:, :, None])[:, :, 0].clamp(max=1)  # fmt: skip
            while not clear(p, q, drafts, coins, level):
                level = float(torch.rand(()))
            cases.append((p, q, drafts, coins, level))
        cases.append(drawn_case(3, 0, 6))
        try:
            self.compare(submission, cases)
        except SubmissionFailed as failure:
            self.compare(submission, cases[:-1])
            raise SubmissionFailed(failure.kind, f"{failure}\ndrafts may be none at all, g = 0: the bonus token comes all the same, from p's only place") from None  # fmt: skip

    @check(points=3, title="many requests at once, without a loop over them")
    def test_at_once(self, submission):
        few, many = drawn_case(3, 2, 6), self.many()
        notes = self.compare(submission, [few, many])
        small, large = (note["operations"] for note in notes)
        expect.that(
            small >= 4,
            "PyTorch was seen to do next to nothing: compute with its own operations, in its sight",
        )
        expect.that(
            large <= 1.5 * small + 10,
            f"{small} operations for 3 requests, {large} for 64: let each operation work on all requests. "
            "How many drafts each keeps is a cumprod and a sum along the drafts",
        )

    def many(self):
        parts = [drawn_case(16, 2, 6) for _ in range(4)]
        while True:
            level = float(torch.rand(()))
            case = (*(torch.cat(tensors) for tensors in zip(*(part[:4] for part in parts))), level)
            rows = last_rows(case[0], case[1], told_of(*case[:4]))
            if (rows.cumsum(1) / rows.sum(1, keepdim=True) - level).abs().min() > MARGIN / 5:
                return case

    @check(points=3, title="p of 0, temperature 0, and a difference that rounding has left empty")
    def test_edges(self, submission):
        p, q, drafts, coins, level = drawn_case(12, 2, 6)
        p[:, 0].scatter_(1, drafts[:, :1], 0.0)
        coins[:, 0] = 0.0  # the smallest coin, and a token that the target never says
        tokens = torch.randint(7, (12, 4))
        greedy = F.one_hot(tokens, 7).float()
        wanted = torch.where(torch.rand(12, 3) < 0.6, tokens[:, :3], (tokens[:, :3] + 1) % 7)
        same = distributions(3, 2, 6)
        above = same[:, :1] * (1 + 1e-6)
        never = torch.tensor([[1 - 2**-24]] * 3)
        likely = same[:, :1].argmax(dim=2)
        cases = [
            (p, q, drafts, coins, level),
            (greedy, F.one_hot(wanted, 7).float(), wanted, torch.rand(12, 3), 0.5),
            (same, above, likely, never, 0.37),
            self.beside(same, above, likely, never),
        ]
        got = submission.run(probes.verified, cases)
        first = pair(got["calls"][0]["out"], ("tokens", "kept"))[1]
        if isinstance(first, torch.Tensor) and first.any():
            raise CheckFailed(
                "a draft of p = 0 was kept by a coin of 0: 0 < p/q is false there. Either it was compared by <=, or "
                f"something was added to p\nthe first draft of each request has p = 0: kept is 0 for all, and was {first.tolist()}"
            )
        try:
            self.is_right(got["calls"][1]["out"], got["notes"][1], *cases[1], causes=False)
        except CheckFailed as failure:
            words = "at temperature 0, where p and q are 1 for one token and 0 elsewhere: "
            raise CheckFailed(words + str(failure), words + failure.secretive) from None
        self.nothing_left(got["calls"][2]["out"], got["notes"][2], same, above)
        rows = got["notes"][3]["rows"]
        expect.that(
            rows and all(bool(row.isfinite().all() and row.sum() > 0) for row in rows),
            "of five requests three have nothing left of (p - q)+ and two have: `pick` was given a row of zeros or nan. Each "
            "request's own row decides, not the sum over all of them",
        )

    def beside(self, p, q, drafts, coins):
        """The same requests in one batch with two whose draft is rejected in the usual way."""
        own, other = distributions(2, 2, 6), distributions(2, 1, 6)
        unlikely = (own[:, :1] / other).argmin(dim=2)
        joined = zip((p, q, drafts, coins), (own, other, unlikely, torch.full((2, 1), 0.999)))
        return *(torch.cat(pair) for pair in joined), 0.37

    def nothing_left(self, result, note, p, q):
        """q is above p by rounding alone, everywhere: all of (p - q)+ is 0."""
        _, kept = pair(result, ("tokens", "kept"))
        words = "p and q are equal but for rounding, a draft was rejected, and nothing is left of (p - q)+: draw from p itself then"  # fmt: skip
        rows = note["rows"]
        good = all(bool(row.isfinite().all() and (row >= 0).all() and row.sum() > 0) for row in rows)  # fmt: skip
        from_p = [any(self.alike(row, p[b, 0].double()) for row in rows) for b in range(len(p))]
        expect.that(
            good or not all(from_p),
            "p and q are equal but for rounding, a draft was rejected, and nothing is left of (p - q)+: `pick` was given p's "
            "own rows, as it must be, and others that sum to 0 or are no weights. It draws from every row that it is given, so "
            "put p in their places before",
        )
        expect.that(rows and good, f"{words}, not from zeros")
        if int(kept.sum()) == 0:
            near = [any(self.alike(row, p[b, 0].double()) for row in rows) for b in range(len(p))]
            level = any(self.alike(row, torch.ones_like(row)) for row in rows)
            more = ". `pick` was given equal weights, as the same small number in all of them makes; tokens of p = 0 would come"  # fmt: skip
            expect.that(all(near), words + (more if level else ""))


# ---- n-grams


def lookup(tokens, most, longest, latest=True, descending=True, itself=False, after=True, overlap=True, full=False):  # fmt: skip
    """By comparing at every place; the flags are mistakes."""
    sizes = range(1, longest + 1)
    for size in reversed(sizes) if descending else sizes:
        if size >= len(tokens):
            continue
        stop = len(tokens) - size + (1 if itself else 0)
        places = [s for s in range(stop) if tokens[s : s + size] == tokens[-size:]]
        places = [s for s in places if overlap or s <= len(tokens) - 2 * size]
        places = [s for s in places if not full or s + size + most <= len(tokens)]
        if places:
            start = (places[-1] if latest else places[0]) + (size if after else 0)
            return tokens[start : start + most]
    return []


WRONG_LOOKUPS = [
    ({"latest": False}, "that is what followed the *first* find: the latest one counts, it is the nearest to what is told now"),
    ({"descending": False}, "that is a find of fewer tokens: look for `longest` tokens first, and for fewer only where those are nowhere"),
    ({"after": False}, "that begins with the n-gram that was found: what *followed* it is drafted"),
    ({"overlap": False}, "that passes over a find that overlaps the text's end: only its start must be earlier, in 5 5 5 5 the find of three starts at 0"),
    ({"full": True}, "that passes over a place that fewer than `most` tokens follow: those few are the draft"),
]  # fmt: skip


def by_digits(tokens, most, longest, joint=",", behind=","):
    """A find in the digits of all tokens, written one behind another."""
    text = joint.join(map(str, tokens))
    for size in range(min(longest, len(tokens) - 1), 0, -1):
        end = joint.join(map(str, tokens[-size:]))
        at = text.rfind(end + behind, 0, len(text) - 1)
        if at >= 0:
            start = text[:at].count(joint) + size
            return tokens[start : start + most]
    return []


def read_on(tokens, most, longest):
    """Behind the text's end the draft itself is read."""
    size, start = find(tokens, longest)
    text = list(tokens)
    if size:
        for place in range(start + size, start + size + most):
            text.append(text[place])
    return text[len(tokens) :]


def where_from(got, tokens, most, longest):
    """Of a wrong draft that stands in the text: what it followed."""
    size, start = find(tokens, longest)
    if not isinstance(got, list) or not got:
        return ""
    want = tokens[start + size : start + size + most]
    if got[: len(want)] == want and want and len(want) < most:
        return "nothing follows there any more in the text: where fewer than `most` tokens follow, those are the draft"
    places = [
        s for s in range(len(tokens) - size) if size and tokens[s : s + size] == tokens[-size:]
    ]
    for place in reversed(places):
        if got == tokens[place + size : place + size + most]:
            return f"that followed {tokens[-size:]} at place {place}, and place {start} is a later one: of equally long finds the latest counts, whatever follows"  # fmt: skip
    return ""


BY_DIGITS = "that is a find in tokens written out, where the digits of one are a part of another's, 2 of 12: compare tokens as numbers"
READ_ON = "that goes on in the draft itself where the text ends: where fewer than `most` tokens follow, those are the draft"


def find(tokens, longest):
    """Of the right find: its size, and where it begins."""
    for size in range(min(longest, len(tokens) - 1), 0, -1):
        places = [s for s in range(len(tokens) - size) if tokens[s : s + size] == tokens[-size:]]
        if places:
            return size, places[-1]
    return 0, 0


def drafted_nothing(tokens, most, longest):
    """What is there to be found, in words."""
    size, start = find(tokens, longest)
    follow = tokens[start + size : start + size + most]
    told = f"nothing was drafted, but the text's end {tokens[-size:]} stood before, from place {start} on, and {follow} followed"
    facts = [
        (size < min(longest, len(tokens) - 1), "longer ends of the text stand nowhere before"),
        (len(follow) < most, f"fewer than `most` = {most} follow"),
        (len(tokens) <= longest, f"the text has no more than `longest` = {longest} tokens"),
        (start + size > len(tokens) - size, "that place overlaps the end"),
    ]
    found = [words for is_so, words in facts if is_so]
    if found:
        return f"{told}: that is the draft, though {', and '.join(found)}"
    return f"{told}. Either the text's end has found itself, which nothing follows, or that place was not looked at"


def never_one(every):
    """Words where all ends of two tokens and more were found, and no single one, not even where
    `longest` is 1; every: (got, want, size of the right find, longest)."""
    ones = [got == [] for got, want, size, _ in every if want and size == 1]
    more = [got == want for got, want, size, _ in every if want and size > 1]
    rest = all(got == want for got, want, *_ in every if not want)
    asked = any(want and longest == 1 for _, want, _, longest in every)
    if rest and asked and more and all(more) and all(ones):
        return "every end of two tokens and more was found, and none of one token: go down to one"
    return ""


def telling_text(most, longest, letters=4, count=26):
    """A text on which every mistake gives something else."""
    while True:
        tokens = torch.randint(100, 100 + letters, (count,)).tolist()
        want = lookup(tokens, most, longest)
        size, start = find(tokens, longest)
        if len(want) < most or size < longest or start > count - 2 * size:
            continue
        told = mistaken(tokens, most, longest)
        if len(told) == (3 if longest > 1 else 2) and are_apart(told):
            return tokens


def mistaken(tokens, most, longest):
    """What the mistakes find that do not find the right tokens."""
    want = lookup(tokens, most, longest)
    told = [lookup(tokens, most, longest, **flags) for flags, _ in WRONG_LOOKUPS]
    return [each for each in told if each != want]


def are_apart(found):
    return len({tuple(each) for each in found}) == len(found)


class TestNgramDraft(Exercise):
    """Prompt lookup"""

    name = "ngram_draft"
    reference = "minitrain.inference.speculation.plain:ngram_draft"
    hidden = HIDDEN

    def compare(self, submission, cases):
        calls = submission.run(probes.in_a_row, cases)
        every = []
        for (tokens, most, *more), call in zip(cases, calls):
            longest, got = more[0] if more else 3, call["out"]
            got = list(got) if isinstance(got, tuple) else got
            want, (size, _) = lookup(tokens, most, longest), find(tokens, longest)
            every.append((got, want, size, longest))
        asked = [(got, (*case[:2], longest)) for case, (got, *_, longest) in zip(cases, every)]
        ways = [(partial(lookup, **flags), words) for flags, words in WRONG_LOOKUPS]
        ways += [
            (partial(by_digits, joint=joint, behind=behind), BY_DIGITS)
            for joint, behind in ((",", ","), (",", ""))
        ]
        ways.append((read_on, READ_ON))
        for (tokens, most, *_), (got, want, _, longest) in zip(cases, every):
            longer = lookup(tokens, most + 1, longest)
            hints = [
                (got, words) for way, words in ways if all(g == way(*case) for g, case in asked)
            ]
            hints = matching(got, hints)
            if not hints and got == longer and len(longer) > len(want):
                hints = [(got, f"that is one token too many: `most` is {most}")]
            if not hints and len(want) > 1 and got == want[:1]:
                hints = [(got, f"that is one token: up to `most` = {most} are drafted")]
            hints = hints or [(got, where_from(got, tokens, most, longest))]
            if got == [] and want:
                hints = [([], never_one(every) or drafted_nothing(tokens, most, longest))]
            shown = tokens if len(tokens) <= 12 else ["…", *tokens[-8:]]
            expect.equal(got, want, what=f"the draft of {most} after {shown}, n-grams of {longest} at most", hints=hints)  # fmt: skip
        expect.left_alone(calls, cases, ["tokens"])

    @check(points=3, title="what followed the latest place where the text's end stood before")
    def test_latest(self, submission):
        self.compare(submission, [
            *((telling_text(most, longest), most, longest) for most, longest in ((4, 2), (2, 1), (3, 2))),
            (telling_text(3, 3, letters=3), 3),
        ])  # fmt: skip

    @check(points=3, title="the longest n-gram that is found counts, a shorter one only then")
    def test_longest(self, submission):
        cases = []
        for most, longest in ((3, 3), (2, 4), (4, 2)):
            fresh = []
            while not (fresh and are_apart(mistaken(fresh, most, longest))):
                tokens = telling_text(most, longest, letters=3)
                fresh = [7, 8, *tokens, 9, tokens[-1]]  # the end of two is nowhere, that of one is
            cases += [(tokens, most, longest), (fresh, most, longest)]
        cases.append((telling_text(2, 1), 2, 1))
        self.compare(submission, cases)

    @check(points=2, title="nothing found, short texts, a find that runs into the text's end")
    def test_edges(self, submission):
        a, b, c = torch.randperm(90)[:3].tolist()
        cases = [
            ([a], 4), ([a, b, c], 3), ([a, a], 3), ([a, a, a, a], 5), ([a, b, a], 4, 8),
            ([a, b, c, a, b], 9), ([a, b, a, b], 1), ([a, b, a, b], 0), ([c, a, b, a, b, a, b], 6),
            (telling_text(2, 1), 2, 1),
        ]  # fmt: skip
        d, e, f, g = (1 + torch.randperm(9)[:4]).tolist()
        tail = [f, 300, e, 400 + g, d, e]  # the end of two is nowhere before, that of one is
        cases += [
            ([10 * f + d, e, *tail], 2),
            ([d, 10 * e + f, *tail], 2),
            ([f, 10 * d + e, *tail], 2),
        ]
        words = "a text may be shorter than the n-gram: look for fewer tokens then"
        with expect.because({("index", "empty"): words}):
            self.compare(submission, cases)


# ---- what it gains


def speeds_of(a, cost, passes, power=1, bare=False, shift=0, drafts_cost=True):
    found = []
    for g in range(len(passes)):
        tokens = sum(a**i for i in range(g + power))
        seconds = 1.0 if bare else passes[min(g + shift, len(passes) - 1)]
        found.append(tokens / ((g * cost if drafts_cost else 0.0) + seconds))
    return found


def first_peak(speeds):
    """The first length that the next one does not beat."""
    falls = [g for g in range(len(speeds) - 1) if speeds[g + 1] <= speeds[g]]
    return falls[0] if falls else len(speeds) - 1


class TestBestLength(Exercise):
    """Tokens a round over its cost"""

    name = "best_length"
    reference = "minitrain.inference.speculation.plain:best_length"
    hidden = HIDDEN

    def compare(self, submission, cases):
        calls = submission.run(probes.in_a_row, cases)
        for case, call in zip(cases, calls):
            a, cost, passes = case
            want = speeds_of(a, cost, passes)
            best, speeds = pair(call["out"], ("the best length", "the list of speed-ups"))
            told = f"acceptance {a:.3g}, a draft costs {cost:.3g}, passes {[round(v, 2) for v in passes]}"
            expect.that(
                isinstance(speeds, (list, tuple)) and len(speeds) == len(passes),
                f"the speed-ups: got {expect.show(speeds)}, expected a list of {len(passes)}, for 0 to {len(passes) - 1} drafts ({told})",
            )
            speeds = [float(speed) for speed in speeds]
            without_bonus = speeds_of(a, cost, passes, power=0)
            if a < 1 and speeds[0]:  # without drafts it is there
                without_bonus[0] = want[0]
            hints = [
                ([1.0, *want[1:]], "the speed-up of length 0 was taken for 1: the formula holds for it too, its one token costs passes[0]"),
                ([1 / v for v in want], "that is cost over tokens, upside down: how many *times as fast* is tokens over cost"),
                (without_bonus, "that is without the last token: a round writes 1 + a + … + a^g tokens, for one more comes after the kept ones"),
                (speeds_of(a, cost, passes, power=2), "that is one token too many: 1 + a + … + a^g"),
                (speeds_of(a, cost, passes, bare=True), "that takes the target's pass to cost 1 whatever it reads: with g drafts it costs passes[g]"),
                (speeds_of(a, cost, passes, shift=1), "that is the cost of a pass over one token more: passes[g] is the pass with g drafts"),
                (speeds_of(a, cost, passes, drafts_cost=False), "the drafts cost nothing there: g of them cost g · draft_cost"),
                ([sum(a**i for i in range(g + 1)) / (cost + v) for g, v in enumerate(passes)], "that counts one draft, however many there are: g of them cost g · draft_cost"),
                ([(1 + g * a) / (g * cost + v) for g, v in enumerate(passes)], "that is 1 + g·a tokens: a draft only counts if all before it were kept, so a + a² + … + a^g"),
            ]  # fmt: skip
            if a == 1:
                without_last = [speed * max(g, 1) / (g + 1) for g, speed in enumerate(want)]
                hints.append((without_last, "at acceptance 1 all g drafts are kept and the target's own token comes too: g + 1 tokens a round, not g"))  # fmt: skip
            if passes[0] != 1:
                relative = speeds_of(a, cost, [seconds / passes[0] for seconds in passes])
                hints.append((relative, "the passes were divided by passes[0], and drafts not: all are counted in passes over one token of a lone text already, take them as they are"))  # fmt: skip
                hints.append(([speed * passes[0] for speed in want], "all were multiplied by passes[0]: the speed-up is tokens over cost, and length 0 is no exception"))  # fmt: skip
            less = [speed / right for speed, right in zip(speeds, want)]
            if a == 1 and all(0.9 < one < 1 + 1e-6 for one in less) and less[-1] < less[0]:
                hints.append((speeds, "that is a little less than g + 1 tokens over the cost, as of an acceptance just below 1: at 1 a round writes exactly g + 1"))  # fmt: skip
            if a == 1 and max(speeds, default=0) < 1e-3:
                hints = [(speeds, "at acceptance 1 the closed form is 0/0, and 0 where a small number is added below: the sum 1 + a + … + a^g is g + 1 there")]  # fmt: skip
            expect.equal(speeds, want, tol=1e-4, what=f"the speed-ups ({told})", hints=hints)
            top = want.index(max(want))
            last = len(want) - 1 - want[::-1].index(max(want))
            expect.that(
                not isinstance(best, bool) and isinstance(best, int),
                f"the best length is {expect.show(best)}: a whole number of drafts",
            )
            hints = matching(best, [
                (want.index(min(want)), "that is the slowest"),
                (last, "of equally fast lengths the shortest wins"),
                (first_peak(want), "that is faster than its neighbours, and a longer one is faster still: compare the speed-ups of all lengths"),
                (top + 1, "that is one more than the fastest: how many *drafts*, without the target's own token: passes[0] has no drafts"),
                (max(range(len(want)), key=lambda g: want[g] * (g * cost + passes[g])), "that writes the most tokens a round, and is not the fastest: tokens over cost"),
            ])  # fmt: skip
            if last > top and best == speeds.index(max(speeds)):
                hints = [(best, f"by your speed-ups it is the fastest, but {top} is as fast, and yours differ from that by {abs(speeds[best] - speeds[top]):.0e}: the sum 1 + a + … + a^g is exact here")]  # fmt: skip
            expect.equal(best, top, what=f"the best length ({told})", hints=hints)
        expect.left_alone(calls, cases, ["acceptance", "draft_cost", "passes"])

    def passes(self, count):
        steps = 0.05 + 0.3 * torch.rand(count - 1, dtype=torch.float64)
        return [1.0, *(1 + steps.cumsum(0)).tolist()]

    @check(points=3, title="1 + a + … + a^g tokens over g drafts and one pass")
    def test_speeds(self, submission):
        cases = []
        for count in (5, 8, 3):
            a, cost = (0.3 + 0.5 * torch.rand(2, dtype=torch.float64)).tolist()
            cases.append((a, cost / 4, self.passes(count)))
        self.compare(submission, cases)

    @check(points=2, title="the fastest length; 0 where none pays; the shortest of equals")
    def test_best(self, submission):
        a, cost = (0.5 + 0.4 * torch.rand(2, dtype=torch.float64)).tolist()
        cases = [
            (a, 0.02, self.passes(7)),
            (a / 4, cost, self.passes(6)),
            (0.0, 0.0, [1.0] * 4),
            (0.5, 0.0, [1.0, 1.5, 1.75]),
            (a, 0.3, [1.0]),
            (0.9, 0.02, [1.0, 1.05, 1.8, 1.85, 1.9, 1.95, 4.0, 4.1]),  # passes grow in steps
            (0.9, 0.02, [1.0, 2.1, 2.15, 2.2, 2.25, 2.3, 5.0]),
        ]
        self.compare(submission, cases)

    @check(
        points=3,
        title="acceptance 0 and 1, drafts that are free or dear, a pass that alone costs more than 1",
    )
    def test_limits(self, submission):
        cost = float(torch.rand(())) + 1.1
        cases = [(1.0, 0.1, self.passes(5)), (0.0, 0.2, self.passes(4)), (0.9, 0.0, self.passes(6)), (0.95, cost, self.passes(5)), (1.0, 0.0, [1.0] * 6), (0.8, 0.1, [1.5, 1.6, 1.75])]  # fmt: skip
        with expect.because({("ZeroDivision", "division"): "at acceptance 1 the closed form is 0 / 0: the sum 1 + a + … + a^g is g + 1 there"}):  # fmt: skip
            self.compare(submission, cases)


# ---- trees


def ways(parents):
    """Of each node, the nodes from the text to it, itself last."""
    found = []
    for node, parent in enumerate(parents):
        found.append([*(found[parent] if parent >= 0 else []), node])
    return found


def drawn_tree(count, chance=0.25):
    """Parents that come before their children, in no special order, with rivals and depth."""
    while True:
        parents = [-1]
        for node in range(1, count):
            parents.append(-1 if float(torch.rand(())) < chance else int(torch.randint(node, ())))
        deep = max(map(len, ways(parents)))
        if count < 5 or (deep >= 3 and len(set(parents)) < count - 1 and parents.count(-1) >= 2):
            return parents


def seen_of(parents, read, self_too=True, only_parent=False, text=True, earlier=False):
    n = len(parents)
    seen = torch.zeros(n, read + n, dtype=torch.bool)
    seen[:, :read] = text
    for node, way in enumerate(ways(parents)):
        nodes = list(range(node + 1)) if earlier else way[-2:] if only_parent else list(way)
        if not self_too:
            nodes = [one for one in nodes if one != node]
        seen[node, [read + one for one in nodes]] = True
    return seen


class TestTreeAttention(Exercise):
    """A tree of drafts in one pass"""

    name = "tree_attention"
    reference = "minitrain.inference.speculation.plain:tree_attention"
    hidden = HIDDEN

    def results(self, submission, cases):
        calls = submission.run(probes.in_a_row, cases)
        found = [pair(call["out"], ("seen", "positions")) for call in calls]
        expect.left_alone(calls, cases, ["parents"])
        return found

    def masks(self, submission, cases):
        for (seen, _), case in zip(self.results(submission, cases), cases):
            self.right_mask(seen, *case)

    def places(self, submission, cases):
        for (seen, positions), case in zip(self.results(submission, cases), cases):
            self.right_positions(positions, *case, seen)

    def both(self, submission, cases):
        for (seen, positions), case in zip(self.results(submission, cases), cases):
            self.right_mask(seen, *case)
            self.right_positions(positions, *case)

    def shown(self, parents):
        is_long = len(parents) > 20  # a chain
        return f"a chain of {len(parents)}" if is_long else f"parents {parents}"

    def right_mask(self, seen, parents, read):
        want = seen_of(parents, read)
        told = f"{self.shown(parents)}, {plural(read, 'token')} before"
        hints = [
            (seen_of(parents, read, earlier=True), "that is the causal mask: rivals must not read each other, they are other texts. A node reads itself and those on its way"),
            (seen_of(parents, read, only_parent=True), "a node reads its parent, its parent's parent and so on, up to the text: that has the parent only"),
            (seen_of(parents, read, self_too=False), "a node reads itself too: it is a token of its own text"),
            (seen_of(parents, read, text=False), "the text before the tree is read by every node"),
            (torch.cat([want[:, :read], want[:, read:].t()], dim=1), "that is turned over: row i says what node i reads, its ancestors and not its descendants"),
            (torch.cat([want[:, read:], want[:, :read]], dim=1), "the text comes first: `read` columns of it, then one for each node"),
            (want[:, read:], "the columns of the text are missing: (n, read + n)"),
            (~want, "that is turned round: True is what a node reads"),
            (want.float(), "seen is of bools: `dtype=torch.bool`"),
            (want.long(), "seen is of bools: `dtype=torch.bool`"),
        ]  # fmt: skip
        alike = isinstance(seen, torch.Tensor) and seen.shape == want.shape and seen.dtype == want.dtype  # fmt: skip
        hints = hints[:1] + matching(seen, hints[1:])
        if alike and torch.equal(seen[:, :read], want[:, :read]):
            hints.append((seen, self.one_edge(seen[:, read:], parents)))
        expect.equal(seen, want, what=f"seen ({told})", hints=hints)

    def one_edge(self, seen, parents):
        """What a wrong mask says of one node; of all rows behind the text, if it is the last's."""
        last, chains = len(parents) - 1, ways(parents)
        roots = [node for node, parent in enumerate(parents) if parent < 0 and node != last]
        if roots and not seen.all() and all(bool(seen[node, last]) for node in roots):
            return "nodes whose parent is -1 read the last node: -1 means the text there, and used as an index it is the last node"  # fmt: skip
        for node, way in enumerate(chains):
            steps = way if len(way) < 9 else [*way[:3], "…", *way[-2:]]
            through = " -> ".join(["the text", *map(str, steps)])
            for other in range(len(parents)):
                if bool(seen[node, other]) == (other in way):
                    continue
                if other in way:
                    return f"node {node} does not read node {other}, though its way is {through}: a node reads all its ancestors, however far, and itself"  # fmt: skip
                return f"node {node} reads node {other}, which is not on its way, {through}"
        return ""

    def right_positions(self, positions, parents, read, seen=None):
        n = len(parents)
        want = torch.tensor([read + len(way) - 1 for way in ways(parents)], dtype=torch.long)
        told = f"{self.shown(parents)}, {plural(read, 'token')} before"
        hints = [
            (read + torch.arange(n), "that is each node's number: rivals stand at the *same* place of their texts. A node's position is how many tokens are before it"),
            (want + 1, "that is one too many: the text has the positions 0 to read - 1, so a node that follows it stands at `read`"),
            (want - 1, "that is one too few: the text has the positions 0 to read - 1, so a node that follows it stands at `read`"),
            (want - read, "the text's tokens are missing: a node that follows it stands at `read`"),
            (want.float(), "positions are whole numbers: int64"),
            (read + torch.tensor(parents) + 1, "that is the parent's *number* and one more: a node's position is its parent's *position* and one more"),
        ]  # fmt: skip
        counted = seen.sum(dim=1) - 1 if isinstance(seen, torch.Tensor) and seen.dim() == 2 else None  # fmt: skip
        if counted is not None and not torch.equal(seen, seen_of(parents, read)):
            hints.append((counted, "as above: they are the numbers of True in the rows of `seen`, less one, and `seen` is not right yet"))  # fmt: skip
        hints.append((positions, self.one_place(positions, want, parents, read)))
        expect.equal(positions, want, what=f"positions ({told})", hints=hints)

    def one_place(self, positions, want, parents, read):
        """What is certain of the first node whose position is wrong: those before it are right."""
        if not isinstance(positions, torch.Tensor) or positions.shape != want.shape:
            return ""
        node = next((i for i in range(len(want)) if positions[i] != want[i]), 0)
        if parents[node] < 0:
            return f"node {node} has the parent -1: it stands right behind the text, at `read` = {read}, however many nodes come before it"
        return f"node {node} stands right behind its parent, node {parents[node]}, whose position is {int(want[parents[node]])}"

    @check(points=4, title="a node reads the text, its ancestors and itself, and no rival")
    def test_mask(self, submission):
        cases = [(drawn_tree(count), read) for count, read in ((7, 3), (9, 5), (6, 1), (7, 3))]
        expect.in_a_row(partial(self.masks, submission), cases)

    @check(points=3, title="its position is the text's length and its depth")
    def test_positions(self, submission):
        cases = [(drawn_tree(count), read) for count, read in ((8, 4), (6, 11), (10, 2), (8, 4))]
        expect.in_a_row(partial(self.places, submission), cases)

    @check(points=2, title="chains, rivals only, one node, no text before")
    def test_edges(self, submission):
        n, deep = torch.randint(4, 8, ()).item(), torch.randint(35, 45, ()).item()
        cases = [(list(range(-1, n - 1)), 3), ([-1] * n, 2), ([-1], 6), (drawn_tree(7), 0)]
        cases.append((list(range(-1, deep - 1)), 2))
        expect.in_a_row(partial(self.both, submission), cases)


def walked(tokens, parents, choices, shift=1, by_depth=False, from_last=False):
    """The way from the text on; the flags are mistakes."""
    path, at = [], -1
    while True:
        own = choices[at] if from_last else choices[max(at + shift, 0)]
        allowed = [n for n in range(len(tokens)) if tokens[n] == own and n > at and (by_depth or parents[n] == at)]  # fmt: skip
        if not allowed:
            return path, [*(tokens[n] for n in path), own]
        at = allowed[0]
        path.append(at)


def first_child(tokens, parents, choices):
    path, at = [], -1
    while True:
        children = [n for n in range(len(tokens)) if parents[n] == at]
        if not children or tokens[children[0]] != choices[at + 1]:
            return path, [*(tokens[n] for n in path), choices[at + 1]]
        at = children[0]
        path.append(at)


def drawn_walk(count, length):
    """Tokens, parents and choices such that `length` nodes are kept; no two children are alike,
    and every mistake goes another way."""
    while True:
        parents = drawn_tree(count)
        tokens = torch.randint(4, (count,)).tolist()
        alike = {(p, t) for p, t in zip(parents, tokens)}
        if len(alike) < count:
            continue
        choices = torch.randint(4, (count + 1,)).tolist()
        want = walked(tokens, parents, choices)
        if len(want[0]) != length:
            continue
        flags = ({}, {"shift": 0}, {"by_depth": True}, {"from_last": True})
        told = [walked(tokens, parents, choices, **each) for each in flags]
        told.append(first_child(tokens, parents, choices))
        apart = all(one != other for i, one in enumerate(told) for other in told[:i])
        if length < 2 or (apart and len(told[-1][0]) == length - 2):
            return tokens, parents, choices


def without_0(tokens, parents, choices):
    """The walk ends where node 0 is the child."""
    path, text = walked(tokens, parents, choices)
    return (path, text) if 0 not in path else ([], text[:1])


def wrong_walks(tokens, parents, choices):
    """(words, what a mistake returns: one or more pairs of nodes and new tokens)."""
    path, text = walked(tokens, parents, choices)
    kept, own = text[:-1], text[-1:]
    shifted = "choices[0] is the target's own after the *text*, and choices[i + 1] after node i"
    after = [choices[path[-1]]] if path else [choices[0], choices[-1]]
    return [
        (shifted, [walked(tokens, parents, choices, shift=0)]),
        (f"{shifted}; choices[-1] is the last one", [walked(tokens, parents, choices, from_last=True)]),
        ("only the first child of a node was looked at: any of them may be the target's own", [first_child(tokens, parents, choices)]),
        ("the walk has ended where node 0 is the child that has the target's own token: 0 is a node as any other, and only `None` is none", [without_0(tokens, parents, choices)]),
        ("those are tokens: the path is of nodes, by number", [(kept, text), (kept, kept)]),
        ("the text itself is no node: the path begins with the first node that is kept", [([-1, *path], text), ([-1, *path], [*tokens[-1:], *text])]),
        ("that is the path from its end: it goes from the text on", [(path[::-1], text), (path[::-1], kept[::-1] + own), (path[::-1], text[::-1])]),
        ("the target's own token after the last kept node is missing: it was computed in the same pass, and one comes even where nothing is kept", [(path, kept), (path, text)]),
        ("the last one is the target's own after the last *kept* node: choices[node + 1]", [(path, [*kept, choices[-1]])]),
        ("after node i the target's own is choices[i + 1]: choices[0] comes after the text", [(path, [*kept, one]) for one in after]),
    ]  # fmt: skip


def walk_in_words(every):
    """The mistakes that give both lists of every call; every: (case, nodes and new tokens)."""
    left = None
    for case, got in every:
        fits = [
            words
            for words, pairs in wrong_walks(*case)
            if any(difference(list(got), list(wrong)) is None for wrong in pairs)
        ]
        left = fits if left is None else [words for words in left if words in fits]
    return "; or: ".join(left or [])


class TestAcceptedPath(Exercise):
    """The branch that is kept"""

    name = "accepted_path"
    reference = "minitrain.inference.speculation.plain:accepted_path"
    hidden = HIDDEN

    def compare(self, submission, cases):
        calls = submission.run(probes.in_a_row, cases)
        parts = [pair(call["out"], ("the path", "the new tokens")) for call in calls]
        every = [(case, [list(part) for part in two]) for case, two in zip(cases, parts)]
        cause = walk_in_words(every)
        for (tokens, parents, choices), (got_path, got_text) in every:
            path, text = walked(tokens, parents, choices)
            told = f"tokens {tokens}, parents {parents}, the target's own {choices}"
            hints = [(got_path, cause or self.one_step(got_path, tokens, parents, choices))]
            expect.equal(got_path, path, what=f"the nodes that are kept ({told})", hints=hints)
            place = f"node {path[-1]}" if path else "the text"
            facts = f"one for each kept node, then the target's own after {place}, {text[-1]}"
            hints = [(got_text, cause or facts)]
            expect.equal(got_text, text, what=f"the new tokens ({told})", hints=hints)
        expect.left_alone(calls, cases, ["tokens", "parents", "choices"])

    def one_step(self, path, tokens, parents, choices):
        """The first step of a wrong path that is not the target's."""
        at, place = -1, "the text"
        for node in path:
            if not isinstance(node, int) or not 0 <= node < len(tokens):
                return f"{expect.show(node)} is no node: they are numbered 0 to {len(tokens) - 1}"
            if parents[node] != at:
                return f"node {node} is kept behind {place}, but its parent is {parents[node]}: a node counts only as a child of the one that was kept before it: another branch has the same token, after another text"  # fmt: skip
            if tokens[node] != choices[at + 1]:
                return f"node {node} is kept behind {place}: its token is {tokens[node]}, and the target's own there is choices[{at + 1}] = {choices[at + 1]}"  # fmt: skip
            at, place = node, f"node {node}"
        return f"the path ends at {place}, where the target's own is choices[{at + 1}] = {choices[at + 1]}: a child of {place} has that token, so go on there"  # fmt: skip

    @check(points=3, title="from the text on, to the child that is the target's own token")
    def test_way(self, submission):
        self.compare(submission, [drawn_walk(9, 3), drawn_walk(8, 2), drawn_walk(7, 2)])

    @check(points=2, title="one token more than nodes, also where no node is kept")
    def test_last(self, submission):
        self.compare(submission, [drawn_walk(6, 0), drawn_walk(8, 1), drawn_walk(8, 0), drawn_walk(9, 3)])  # fmt: skip

    @check(points=2, title="no nodes, a chain that is kept whole, the last node")
    def test_edges(self, submission):
        a, b, c, d = torch.randperm(50)[:4].tolist()
        cases = [
            ([], [], [a]),
            ([a, b, c], [-1, 0, 1], [a, b, c, d]),
            ([a, b, c, d], [-1, -1, -1, -1], [d, a, b, c, a]),
            ([a, b, c, a], [-1, 0, 0, 2], [a, c, b, a, d]),
        ]
        try:
            self.compare(submission, cases)
        except SubmissionFailed as failure:
            self.compare(submission, cases[1:])
            raise SubmissionFailed(failure.kind, f"{failure}\na tree may have no nodes: the target's own token after the text comes all the same") from None  # fmt: skip


# ---- heads


def head_losses(hidden, inner, outer, tokens, shift=1, same=False, residual=True, turned=False, common=False, gate=F.silu, stacked=False, ignored=-100):  # fmt: skip
    """The mean cross-entropy of each head, in float64."""
    losses, vectors = [], hidden
    for k, (first, second) in enumerate(zip(inner, outer), start=1):
        step = 2 if same else k + shift
        step = max(step, 0)
        places = hidden.shape[1] - (len(inner) + 1 if common else step)
        x = vectors[:, :places]
        if stacked:
            vectors = vectors + gate(vectors @ first.t())
        moved = gate(x @ (first if turned else first.t()))
        logits = ((x + moved) if residual else moved) @ second.t()
        losses.append(
            F.cross_entropy(
                logits.flatten(0, 1),
                tokens[:, step : step + places].flatten(),
                ignore_index=ignored,
            )
        )
    return torch.stack(losses)


def weights_of(count, decay, first=1):
    return torch.tensor([decay ** (k + first) for k in range(count)], dtype=torch.float64)


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

    def draw(self, texts, length, width, vocabulary, heads, decay=None):
        hidden = torch.randn(texts, length, width)
        inner = torch.randn(heads, width, width) / width**0.5
        outer = 2 * torch.randn(heads, vocabulary, width) / width**0.5
        tokens = torch.randint(vocabulary, (texts, length))
        tokens[0, -1] = 0  # every head is taught it
        return hidden, inner, outer, tokens, *(() if decay is None else (decay,))

    def results(self, submission, cases):
        with expect.because(LENGTHS):
            found = submission.run(probes.learned, cases)
        for result in found:
            loss = result["loss"]
            expect.that(
                isinstance(loss, torch.Tensor) and loss.numel() == 1,
                f"the loss is {expect.show(loss)}: return one number, a tensor",
            )
            expect.that(
                result["unchanged"],
                "an input was changed: hidden, inner, outer and tokens are the caller's",
            )
        return found

    def right_loss(self, result, hidden, inner, outer, tokens, decay=0.8):
        given = hidden.double(), inner.double(), outer.double(), tokens
        count = len(inner)
        told = f"{plural(count, 'head')}, {plural(len(tokens), 'text')} of {tokens.shape[1]} tokens, decay {decay:g}"
        losses, weights = head_losses(*given), weights_of(count, decay)
        want = float(losses @ weights)

        def of(**flags):
            return float(head_losses(*given, **flags) @ weights)

        got = float(result["loss"])
        places = torch.tensor([float(len(tokens) * (tokens.shape[1] - k - 2)) for k in range(count)])  # fmt: skip
        hints = [
            (of(shift=0), "head 1 was taught the token after its place: the target's own head guesses that. Head k guesses tokens[t + k + 1]"),
            (of(shift=-1), "head 1 was taught its own place's token: head k guesses tokens[t + k + 1]"),
            (of(same=True), "all heads were taught the same token: each goes one further, tokens[t + k + 1] for head k"),
            (of(common=True), "all heads were taught at the places of the last one: head k has T - k - 1 places of its own"),
            (of(residual=False), "h itself is missing: the head reads h + silu(W h)"),
            (of(turned=True), "W was multiplied from the other side: W h is `x @ W.t()` for rows x"),
            (of(gate=F.relu), "that is relu: the head has silu"),
            (of(gate=F.gelu), "that is gelu: the head has silu"),
            (of(gate=lambda x: x), "the silu is missing: h + silu(W h)"),
            (of(stacked=True), "a head was built upon what the one before it has made of h: every head begins with the target's own h"),
            (of(ignored=0), "places whose token is 0 were left out: nothing here is padding, 0 is a token as any other"),
            (float(losses @ weights) / count, "that is the mean over heads: the sum of decay^k L_k"),
            (float(losses @ weights / weights.sum()), "that is divided by the sum of weights: just the sum of decay^k L_k"),
            (float(losses @ weights_of(count, decay, 0)), "the weights are decay^k with k from 1: head 1 has `decay`, not 1"),
            (float(losses.sum()), "decay is missing: head k counts decay^k times"),
            (float(losses.sum()) * decay, "every head has the weight decay: head k counts decay^k times"),
            (float(losses.mean()), "decay is missing, and heads are summed, not averaged: Σ decay^k L_k"),
            (float((losses * places.double()) @ weights), "that sums over places: L_k is the *mean* cross-entropy over all places that have a target"),
        ]  # fmt: skip
        if tokens.shape[1] > count + 2:
            hints.insert(0, (of(shift=2), "head 1 was taught one token too far: head k at place t guesses tokens[t + k + 1]"))  # fmt: skip
        expect.equal(got, want, tol=2e-4, what=f"the loss ({told})", hints=hints)

    @check(points=4, title="head k guesses tokens[t + k + 1]; its loss is the mean over places")
    def test_shift(self, submission):
        sizes = ((2, 9, 6, 11, 1), (3, 8, 5, 7, 3), (1, 12, 4, 9, 2))
        cases = [self.draw(*each, 1.0) for each in sizes]
        for result, case in zip(self.results(submission, cases), cases):
            self.right_loss(result, *case)

    @check(points=3, title="heads are summed, head k with the weight decay^k")
    def test_decay(self, submission):
        decay = float(0.3 + 0.5 * torch.rand(()))
        cases = [self.draw(2, 9, 6, 8, 3), self.draw(2, 7, 5, 6, 4, decay), self.draw(1, 5, 4, 6, 3, decay / 2)]  # fmt: skip
        for result, case in zip(self.results(submission, cases), cases):
            self.right_loss(result, *case)

    @check(
        points=3,
        title="gradients for both matrices of every head, and none for the target's vectors",
    )
    def test_gradients(self, submission):
        cases = [self.draw(2, 8, 6, 9, 3), self.draw(3, 6, 4, 7, 2, 0.5)]
        results = self.results(submission, cases)
        for result, case in zip(results, cases):
            self.right_loss(result, *case)
        for result, case in zip(results, cases):
            hidden, inner, outer, tokens, *more = case
            expect.that(
                result["backward"],
                "the loss has no graph: the heads' matrices are to be trained by it",
            )
            of_hidden, of_inner, of_outer = result["gradients"]
            expect.that(
                of_hidden is None or not of_hidden.any(),
                "a gradient has reached `hidden`: the target is frozen, its text must stay as it is. `.detach()` first",
            )
            first, second = (t.double().requires_grad_() for t in (inner, outer))
            losses = head_losses(hidden.double(), first, second, tokens)
            (losses @ weights_of(len(inner), *(more or [0.8]))).backward()
            for name, got, want in (("inner", of_inner, first), ("outer", of_outer, second)):
                expect.that(got is not None, f"`{name}` got no gradient: it is to be trained")
                expect.equal(got, want.grad.float(), tol=1e-3, what=f"the gradient of `{name}`")


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
