"""The checks of lab e11: raw text to a stream of rows, graded by what each step decides."""

from __future__ import annotations

import math
import random
from functools import partial
from itertools import chain, pairwise, takewhile
from itertools import permutations as permutations_of

import numpy as np
import torch

from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.difference import difference
from minitrain.lab.grading.verdicts import ABOVE, as_above, in_a_row, told_above
from minitrain.words import plural

from .probes import e11_data_pipeline as probes

LAB = "e11_data_pipeline"
SIZES = {
    "cpu": {"pages": 400, "planted": 300, "corpus": 250_000, "width": 64, "steps": 160, "batch": 16},
    "test": {"pages": 120, "planted": 100, "corpus": 60_000, "width": 64, "steps": 110, "batch": 8},
}  # fmt: skip
REVEALS = {
    "short": Reveal("counted", "percent of the course's single stories under 50 words"),
    "five": Reveal(
        "measured",
        "share of pages with 5% of their words replaced that 16 bands of 8 rows find",
        formula=lambda similarity: 1 - (1 - similarity**8) ** 16,
    ),
    "unread": Reveal(
        "measured", "nats a token that the copies cost, on stories that neither model has read"
    ),
}
HIDDEN = tuple(
    f"minitrain/data/{name}.py"
    for name in (
        *("plain", "packing", "loader", "stream/order", "stream/mixture", "stream/token_files"),
        *("preparation/filters/rules", "preparation/deduplication/near"),
    )
)
EMPTY = 2**32 - 1
QUADRATIC = 22  # eight times as much: 8 x the time is linear, 64 x is every pair
SECONDS = 0.2  # under it no time is judged


def array_of(call, what):
    """The values of an array that came back."""
    expect.that(
        isinstance(call, dict) and "values" in call,
        f"{what} is {expect.show(call)}: return a NumPy array",
    )
    return call["values"]


def left_alone(calls, given, names):
    """`expect.left_alone`, of arguments as they come back."""
    expect.left_alone(calls, [probes.plain(each) for each in given], names)


def cause_of_all(gots, mistakes, tol=0.0):
    """The words of the first mistake that gives what every call gave; "" where none does.

    mistakes: (what each call would give, words).
    """
    return next((words for wrong, words in mistakes if difference(gots, wrong, tol) is None), "")


def all_equal(gots, wants, names, mistakes=(), tol=None):
    """`expect.equal` of each call, with the cause of all of them."""
    cause = cause_of_all(gots, mistakes, tol)
    for got, want, name in zip(gots, wants, names):
        expect.equal(got, want, tol, hints=[(got, cause)] if cause else [], what=name)


def held_at_once(got):
    """The peak of a call; an untouched meter is the condition."""
    expect.that(
        got["metered"], "held at once: not known, since the meter of Python's memory was touched"
    )
    return got["peak"]


def is_quadratic(small, large, factor=QUADRATIC):
    """Of two costs, the second of eight times as much."""
    return large["seconds"] > SECONDS and large["seconds"] > factor * small["seconds"]


# --- 1: a filter


TOWN = (
    "the people of this town have a road that goes to the river and it may be slow with rain in "
    "winter but many walk there each day for bread or fish while some old men sit under trees"
)
PROSE = TOWN.split()
STOP = {"the", "be", "to", "of", "and", "that", "have", "with"}
RULES = (
    "too_few_words",
    "unusual_word_length",
    "too_many_ellipses",
    "mostly_bullets",
    "lines_break_off",
    "words_without_letters",
    "no_stop_words",
)


def prose(count):
    """So many words of plain prose, stop words among them."""
    return ["the", "and", *random.choices(PROSE, k=count - 2)]


def rare(count):
    """So many words that are no stop words, nor hold one."""
    return random.choices([w for w in PROSE if not any(s in w for s in STOP)], k=count)


def lines_of(words, count):
    """In so many lines."""
    cuts = np.linspace(0, len(words), count + 1).astype(int)
    return [" ".join(words[a:b]) for a, b in pairwise(cuts)]


def of_lengths(count, total):
    """So many words of so many signs in all, two stop words first."""
    sizes = [3, 3, *([(total - 6) // (count - 2)] * (count - 2))]
    for place in range(total - sum(sizes)):
        sizes[2 + place % (count - 2)] += 1
    letters = "bcdfghklmnprstvwz"
    return " ".join(["the", "and", *("".join(random.choices(letters, k=n)) for n in sizes[2:])])


def bulleted(bullets, lines, sign="-"):
    texts = lines_of(prose(6 * lines), lines)
    marked = [f"{sign} {text}" if i < bullets else text for i, text in enumerate(texts)]
    return "\n".join(marked)


def breaking(broken, lines, sign="..."):
    """Long lines: the ellipses are few a word."""
    texts = lines_of(prose(14 * lines), lines)
    return "\n".join(text + (sign if i < broken else ".") for i, text in enumerate(texts))


def with_ellipses(count, words, sign=" ... "):
    """In one line, inside of it; each "..." stands as a word of its own."""
    own = prose(words - count if sign.strip() == "..." else words)
    for _ in range(count):
        place = random.randrange(2, len(own) - 1)
        own.insert(place, "...") if sign.strip() == "..." else own.__setitem__(
            place, own[place] + "…"
        )
    return " ".join(own)


def lettered(without, words):
    """`without` of the words are numbers, of the length of words."""
    own = prose(words)
    for place in random.sample(range(2, words), without):
        own[place] = str(random.randrange(100, 99999))
    return " ".join(own)


class TestQuality(Exercise):
    """A quality filter, with the reason of each drop"""

    name = "quality"
    reference = "minitrain.data.plain:quality"
    hidden = HIDDEN

    def wrong(self, submission, cases):
        """((found, expected), words) of each page that is judged wrongly.

        cases: (text, expected, what it is, words by what came instead).
        """
        with expect.because(
            {"ZeroDivisionError": "a page without a word has too few: ask that before you divide"}
        ):
            got = submission.run(probes.in_a_row, [(text,) for text, *_ in cases])
        wrong = []
        for (_, want, what, words), call in zip(cases, got):
            found = call["out"]
            told = f"a page with {what}: got {expect.show(found)}, expected {want!r}"
            if found is None and want == "":
                told += "\na page that passes all rules gives the empty text, not None"
            elif isinstance(found, str) and (hint := words.get(found, words.get(None))):
                told += f"\n{hint}"
            if not (isinstance(found, str) and found == want):
                wrong.append(((repr(found), want), told))
        return wrong

    def compare(self, submission, cases, plain=()):
        """plain: pages of the check above; where one of them is judged wrongly in the same way,
        it is not for what is special here."""
        wrong = self.wrong(submission, cases)
        if wrong:
            above = dict(reversed(self.wrong(submission, plain)))
            way, told = wrong[0]
            expect.that(False, ABOVE + above[way] if way in above else told)

    def plain(self):
        n = random.randint(80, 200)
        inside = [*rare(n - 20), *["town", "there"] * 10]
        return [
            (". ".join(lines_of(prose(n), 6)), "", f"{n} words of prose", {}),
            (" ".join(prose(random.randint(5, 40))), RULES[0], "under 50 words", {}),
            (of_lengths(n, 12 * n), RULES[1], "words of 12 signs in the mean", {}),
            (of_lengths(n, 2 * n + 6), RULES[1], "words of 2 signs in the mean", {"": "the mean is in [3, 10]: too short words fail as well"}),
            (with_ellipses(n // 5, n), RULES[2], "an ellipsis to each five words", {}),
            (bulleted(20, 21), RULES[3], "20 of 21 lines with a bullet", {}),
            (breaking(8, 16), RULES[4], "half of its lines broken off", {RULES[2]: "its ellipses are few a word: one to 28"}),
            (lettered(n // 3, n), RULES[5], "a third of its words numbers", {}),
            (" ".join(rare(n)), RULES[6], "no stop word", {}),
            (" ".join(inside), RULES[6], "no stop word but inside of others", {"": "stop words are whole words: the 'to' in 'town' is none"}),
        ]  # fmt: skip

    @check(points=2, title="each of the seven rules drops what it is for, and prose passes")
    def test_each(self, submission):
        in_a_row(partial(self.compare, submission), self.plain())

    @check(points=2, title="a page exactly on a threshold passes")
    def test_edges(self, submission):
        edge = "exactly on the threshold passes: the rules say fewer than, more than"
        n = 10 * random.randint(8, 20)
        two = [*rare(n), "of", "with"]
        self.compare(submission, [
            (" ".join(prose(50)), "", "exactly 50 words", {RULES[0]: edge}),
            (" ".join(prose(49)), RULES[0], "49 words", {"": "fewer than 50 fail"}),
            (of_lengths(n, 3 * n), "", "words of 3 signs in the mean", {RULES[1]: edge}),
            (of_lengths(n, 10 * n), "", "words of 10 signs in the mean", {RULES[1]: edge}),
            (with_ellipses(n // 10, n), "", "an ellipsis to each ten words", {RULES[2]: edge}),
            (bulleted(18, 20), "", "18 of 20 lines with a bullet", {RULES[3]: edge}),
            (breaking(6, 20), "", "6 of 20 lines broken off", {RULES[4]: edge}),
            (lettered(n // 5, n), "", "four fifths of its words with letters", {RULES[5]: edge}),
            (" ".join(two), "", "two different stop words", {RULES[6]: edge}),
        ], self.plain())  # fmt: skip

    @check(points=1, title="a page that fails several rules is dropped for the first of them")
    def test_order(self, submission):
        n = random.randint(80, 150)
        order = "the first rule of the table that fails is the reason"
        # each text fails the rule that it is for and the one that comes last
        numbers = " ".join(str(random.randrange(1000, 99999)) for _ in range(n))
        long_words = of_lengths(n, 12 * n).replace("the ", "bcd ", 1).replace("and ", "bcd ", 1)
        bullets = "\n".join(f"- {text}..." for text in lines_of(rare(6 * n), n))
        self.compare(submission, [
            ("", RULES[0], "no sign at all", {None: "it has no word"}),
            (" \n\t\n ", RULES[0], "white space alone", {None: "it has no word"}),
            ("- 12 ...\n" * 9, RULES[0], "27 words, all of them rubbish", {None: order}),
            (long_words, RULES[1], "long words and no stop word", {None: order}),
            (numbers, RULES[5], "numbers alone", {None: order}),
            (bullets, RULES[2] if bullets.count("...") / len(bullets.split()) > 0.1 else RULES[3], "bullets, and all lines broken off", {None: order}),
        ], self.plain())  # fmt: skip

    @check(points=2, title="what counts as a word, a line, a bullet, a stop word")
    def test_counting(self, submission):
        n = 10 * random.randint(8, 15)
        blank = "empty lines are no lines: they make shares smaller than they are"
        indented = "a bullet may be indented: strip the line first"
        same = "the same stop word twice is one: two *different* ones are asked for"
        case = "The and AND are stop words too: lower case first"
        signs = "'…' is an ellipsis as well as '...'"
        digits = [w if w in STOP else w + "1" for w in prose(n)]
        inside = [w + ("the", "of")[i % 2] for i, w in enumerate(rare(n))]
        glued = "a line begins with a bullet where its first sign is one, whatever stands behind it"
        often = "every ellipsis counts: inside of a word too, and twice where a word has two"
        length = "a word is as long as it has signs, whatever bytes or letters they are: len(word)"
        greek = ["".join(random.choices("αβγδεζηθκλμ", k=7)) for _ in range(n)]
        dotted = prose(n)  # a word in fourteen has two, so that they are more than one to ten
        dotted[2::14] = [f"{word}...so…{word}" for word in dotted[2::14]]
        self.compare(submission, [
            (bulleted(20, 21).replace("\n", "\n\n"), RULES[3], "bullets and empty lines between", {"": blank}),
            (bulleted(20, 21, "   •"), RULES[3], "indented bullets", {"": indented}),
            (bulleted(20, 21, "*"), RULES[3], "bullets of *", {"": "•, - and * are bullets"}),
            (bulleted(20, 21).replace("- ", "-"), RULES[3], "bullets that stand at the word, as in -item", {"": glued}),
            (bulleted(20, 21, "*").replace("* ", "**"), RULES[3], "lines that begin with **", {"": glued}),
            (breaking(8, 16).replace("\n", "  \n \n"), RULES[4], "broken lines, white space behind them", {"": "strip the lines, and leave empty ones out"}),
            (breaking(8, 16, "…"), RULES[4], "half of its lines broken off with …", {"": signs}),
            (with_ellipses(n // 5, n, "…"), RULES[2], "a … to each five words", {"": signs}),
            (" ".join(dotted), RULES[2], "two ellipses inside of each fourteenth word", {"": often}),
            (" ".join([*rare(n), "the", "the"]), RULES[6], "one stop word, twice", {"": same}),
            (" ".join(["The", *rare(n), "AND"]), "", "stop words in capitals", {RULES[6]: case}),
            (" ".join(["the", "and", *greek]), "", "Greek words of 7 letters", {RULES[5]: "α is a letter, too: `str.isalpha` knows those of all alphabets", RULES[1]: length}),
            ("\n".join(lines_of(digits, 8)), "", "words with digits in them", {RULES[5]: "a word with any letter counts"}),
            (" ".join(inside), RULES[6], "'the' inside of words", {"": "stop words are whole words"}),
        ], self.plain())  # fmt: skip


# --- 2: MinHash


def permutations(count):
    """a odd, b, (K,) uint32 each."""
    a = np.random.randint(0, 2**31, count).astype(np.uint32) * np.uint32(2) + np.uint32(1)
    return a, np.random.randint(0, 2**32, count, dtype=np.uint64).astype(np.uint32)


def drawn_hashes(sizes):
    """hashes (S,) uint32 and bounds (N + 1,) of documents with so many shingles."""
    hashes = np.random.randint(0, 2**32, sum(sizes), dtype=np.uint64).astype(np.uint32)
    return hashes, np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def permuted(hashes, a, b):
    """(S, K) uint64, below 2^32."""
    product = hashes[:, None].astype(np.uint64) * a.astype(np.uint64) + b.astype(np.uint64)
    return product % 2**32


def signatures_of(hashes, bounds, a, b, smallest=np.min, values=permuted):
    values = values(hashes, a, b)
    rows = [
        smallest(values[start:stop], axis=0) if stop > start else np.full(len(a), EMPTY)
        for start, stop in pairwise(bounds)
    ]
    return np.array([row.astype(np.uint32) for row in rows], np.int64).reshape(-1, len(a))


def of_64_bits(kind):
    """a x + b of every shingle, which nothing takes mod 2^32."""
    return lambda hashes, a, b: hashes[:, None].astype(kind) * a.astype(kind) + b.astype(kind)


class TestMinhash(Exercise):
    """MinHash signatures"""

    name = "minhash"
    reference = "minitrain.data.plain:minhash"
    hidden = HIDDEN

    def are_right(self, results, cases):
        """Of several calls."""
        wants = [signatures_of(*case) for case in cases]
        tolds = [
            f"{len(bounds) - 1} documents of {np.diff(bounds).tolist()[:8]} shingles, {len(a)} hashes"
            for _, bounds, a, _ in cases
        ]
        gots = []
        for told, result, want in zip(tolds, results, wants):
            expect.that(
                isinstance(result, dict) and result.get("shape") == list(want.shape),
                f"{told}: got {expect.show(result.get('shape', result) if isinstance(result, dict) else result)}, "
                f"expected signatures of shape {list(want.shape)}: a row a document, a column a hash function",
            )
            gots.append(np.array(array_of(result, what="the signatures")).reshape(want.shape))
        for told, got, want in zip(tolds, gots, wants):
            if not np.array_equal(got, want):
                n, k = np.argwhere(got != want)[0]
                expect.that(
                    False,
                    f"{told}: {int((got != want).sum())} of {want.size} places differ, the first of document {n}, hash {k}: "
                    f"got {got[n, k]}, expected {want[n, k]}{self.mistake(gots, wants, cases)}",
                )
        for result in results:
            expect.that(
                result["dtype"] == "uint32", f"signatures of {result['dtype']}, expected uint32"
            )

    def mistake(self, gots, wants, cases):
        """The cause of all calls."""
        filled = [np.diff(bounds) > 0 for _, bounds, *_ in cases]
        live = lambda rows: [row[own].tolist() for row, own in zip(rows, filled)]  # noqa: E731
        if live(gots) == live(wants):
            words = ": those of documents without shingles, where 2^32 - 1 belongs"
            if all(map(np.array_equal, gots, (self.reduced(*case) for case in cases))):
                words += ". `np.minimum.reduceat` gives such a document its neighbour's value"
            return words
        last = "Put all shingles through each function, take the result mod 2^32 (uint32 does), and then the smallest"
        mistakes = [
            (partial(signatures_of, smallest=np.max), "those are the largest values"),
            (lambda x, at, a, b: signatures_of(x, at, b, a), "a and b are exchanged: h = a x + b"),
            (lambda x, at, a, b: signatures_of(x, at, a, 0 * b), "b is not added"),
            (self.of_one_function, "those are the smallest values of one hash function: each of the K has its own"),
            (partial(signatures_of, values=of_64_bits(np.uint64)), f"in every function the page's smallest shingle has won. {last}"),
            (partial(signatures_of, values=of_64_bits(np.int64)), f"the smallest was taken of numbers of 64 bits, and cut to 32 bits after it. {last}"),
            (lambda x, at, a, b: signatures_of(x, np.minimum(at, len(x) - 1), a, b), "the last document's last shingle is missing"),
            (self.of_moved_starts, "where the last documents have no shingle, the one before them has lost its last: a start behind "
             "the end was moved onto it. Give `reduceat` the starts of documents that have shingles, and no others"),
            (self.of_shingles, "those are the shingles' own hashes: expected is the value of the function, a x + b mod 2^32, which is smallest"),
        ]  # fmt: skip
        for wrong, words in mistakes:
            if live(gots) == live([wrong(*case) for case in cases]):
                return f": {words}"
        if any((got > EMPTY).any() or (got < 0).any() for got in gots):
            return ". Some are no numbers of 32 bits: a x + b is taken mod 2^32, which uint32 arrays do by themselves"
        return ""

    def of_moved_starts(self, hashes, bounds, a, b):
        """With starts behind the end moved onto the last shingle, and all ends but the last too."""
        moved = np.append(np.minimum(bounds[:-1], max(len(hashes) - 1, 0)), bounds[-1])
        return signatures_of(hashes, moved, a, b)

    def of_shingles(self, hashes, bounds, a, b):
        """The hashes whose values are the smallest."""
        values = permuted(hashes, a, b)
        rows = [
            hashes[start + values[start:stop].argmin(axis=0)] if stop > start else EMPTY + 0 * a
            for start, stop in pairwise(bounds)
        ]
        return np.array(rows, dtype=np.int64).reshape(-1, len(a))

    def reduced(self, hashes, bounds, a, b):
        """By `np.minimum.reduceat`, with 2^32 - 1 behind the end."""
        rows = signatures_of(hashes, bounds, a, b)
        values = [*permuted(hashes, a, b).astype(np.int64), np.full(len(a), EMPTY)]
        empty = np.flatnonzero(np.diff(bounds) == 0)
        rows[empty] = [values[bounds[n]] for n in empty]
        return rows

    def of_one_function(self, hashes, bounds, a, b):
        values = permuted(hashes, a[:1], b[:1])[:, 0]
        rows = []
        for start, stop in pairwise(bounds):
            own = np.unique(values[start:stop])[: len(a)]
            rows.append([*own.tolist(), *[EMPTY] * (len(a) - len(own))])
        return np.array(rows, dtype=np.int64).reshape(-1, len(a))

    def compare(self, submission, cases):
        got = submission.run(probes.in_a_row, cases)
        self.are_right([call["out"] for call in got], cases)
        left_alone(got, cases, ["hashes", "bounds", "a", "b"])

    @check(points=1, title="of each hash function the smallest value over the document's shingles")
    def test_values(self, submission):
        shapes = [([5, 9, 4], 7), ([12], 16), ([1, 1, 30, 2], 3), ([6] * 9, 1)]
        cases = [(*drawn_hashes(s), *permutations(k)) for s, k in shapes]
        in_a_row(partial(self.compare, submission), cases)

    @check(points=1, title="documents without shingles, first, in the middle, last, and alone")
    def test_empty(self, submission):
        shapes = [([0, 4, 3], 5), ([4, 0, 0, 3], 6), ([5, 2, 0], 4), ([0], 3), ([0, 0, 6, 0], 2)]
        cases = [(*drawn_hashes(s), *permutations(k)) for s, k in shapes]
        hint = {
            "index": "bounds[i] of a last empty document lies behind the end: leave such documents out, they have 2^32 - 1"
        }
        with as_above(self.test_values, submission), expect.because(hint):
            in_a_row(partial(self.compare, submission), cases)

    @check(points=6, title="K passes over the shingles: no array of K times S numbers is held")
    def test_memory(self, submission):
        sizes = [random.randint(100, 500) for _ in range(200)]
        case = (*drawn_hashes(sizes), *permutations(64))
        (got,) = submission.run(probes.peak_of, [case])
        with as_above(self.test_values, submission):
            self.are_right([got["out"]], [case])
        count = sum(sizes)
        expect.that(
            held_at_once(got) < 64 * count * 4 / 3,
            f"{got['peak'] / 1e6:.1f} MB were held at once for {count:,} shingles of 4 bytes and 64 hash functions: "
            f"all values of all functions are {64 * count * 4 / 1e6:.1f} MB. Go through the functions one by one, and "
            "keep of each the smallest values",
        )


# --- 3: bands


class TestCandidatePairs(Exercise):
    """Bands: who meets whom"""

    name = "candidate_pairs"
    reference = "minitrain.data.plain:candidate_pairs"
    hidden = HIDDEN

    def draw(self, count, bands, rows, over=0):
        """Signatures of which no two agree anywhere."""
        places = bands * rows + over
        drawn = np.random.permutation(count * places * 3)[: count * places]
        return drawn.reshape(count, places).astype(np.uint32)

    def same(self, signatures, i, j, band, rows):
        """j agrees with i in this band."""
        own = slice(band * rows, (band + 1) * rows)
        signatures[j, own] = signatures[i, own]

    def pairs_of(self, result, told):
        """As tuples of two."""
        if isinstance(result, dict) and "values" in result:
            result = result["values"]
        is_list = isinstance(result, (list, tuple))
        pairs = result if is_list else [None]
        good = all(isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs)
        expect.that(
            good, f"{told}: got {expect.show(result)}: return pairs (i, j) of documents' numbers"
        )
        expect.that(
            all(isinstance(x, int) for p in pairs for x in p),
            f"{told}: the numbers of documents are integers, got {expect.show(result)}",
        )
        return [tuple(p) for p in pairs]

    def are_right(self, results, cases):
        """The pairs of several calls."""
        found = [self.pairs_of(result, self.told(*case)) for result, case in zip(results, cases)]
        for pairs, case in zip(found, cases):
            try:
                self.is_right(pairs, *case)
            except CheckFailed as failure:
                mistakes = [
                    (self.of_every_nth, ": those are pairs of every n-th hash; the hashes of a band lie side by side"),
                    (self.without_page_0, ". Of all buckets only those that document 0 opened are wrong: 0 is a document's number, "
                     "and no empty bucket; Python takes it for False"),
                ]  # fmt: skip
                of_all = (words for ways, words in mistakes if all(map(ways, found, cases)))
                raise CheckFailed(f"{failure}{next(of_all, '')}") from None
        return found

    def without_page_0(self, pairs, case):
        """Whether they are those where a bucket that document 0 opened counts as empty."""
        signatures, bands, rows = case
        bucket_of = lambda band: slice(band * rows, (band + 1) * rows)  # noqa: E731
        return set(pairs) == self.with_firsts(signatures, map(bucket_of, range(bands)), 0)

    def of_every_nth(self, pairs, case):
        signatures, bands, _ = case
        return set(pairs) == self.with_firsts(
            signatures, [slice(band, None, bands) for band in range(bands)]
        )

    def told(self, signatures, bands, rows):
        empty = (signatures == EMPTY).all(axis=1).sum()
        own = f", {empty} of them without shingles" if empty else ""
        return f"{len(signatures):,} documents{own}, {bands} bands of {rows} rows"

    def is_right(self, pairs, signatures, bands, rows):
        told = self.told(signatures, bands, rows)
        for i, j in pairs:
            words = (
                "a document does not meet itself" if i == j else "the smaller number comes first"
            )
            expect.that(i < j, f"{told}: the pair {(i, j)} is not i < j: {words}")
        agree = self.agreement(signatures, bands, rows)
        chance = [pair for pair in pairs if pair not in agree]
        if chance:
            i, j = chance[0]
            expect.that(
                False,
                f"{told}: documents {i} and {j} meet, but {self.why(signatures, i, j, bands, rows)}",
            )
        got = firsts(pairs, len(signatures))
        want = firsts(agree, len(signatures))
        missed = [n for n in range(len(signatures)) if got[n] != want[n]]
        if missed:
            n = missed[0]
            other = next(pair for pair in sorted(agree) if n in pair)
            band = agree[other]
            words = ""
            if (signatures[n, band * rows : (band + 1) * rows] == EMPTY).all():
                words = (
                    ". It is 2^32 - 1 throughout, a value like another: a document without "
                    "shingles has it in *every* place"
                )
            expect.that(
                False,
                f"{told}: documents {other[0]} and {other[1]} agree in the whole of band {band}, and no pair brings them together{words}",
            )
        side_by_side = [slice(band * rows, (band + 1) * rows) for band in range(bands)]
        extra = sorted(set(pairs) - self.with_firsts(signatures, side_by_side))
        if extra:
            expect.that(
                False,
                f"{told}: the pair {extra[0]} is of two pages of a bucket, neither of which is its first. Pair each with "
                "the *first* of its bucket: the union is the same, and there are no more pairs than pages",
            )

    def with_firsts(self, signatures, bands, lost=None):
        """The pairs that are asked for; bands: the columns of each; lost: whose buckets count as
        empty."""
        found = set()
        for band in bands:
            first = {}
            for n in range(len(signatures)):
                key = tuple(signatures[n, band].tolist())
                if first.get(key) == lost:
                    first.pop(key, None)
                if (signatures[n] != EMPTY).any() and first.setdefault(key, n) != n:
                    found.add((first[key], n))
        return found

    def compare(self, submission, cases, once=False):
        """once: no pair comes twice."""
        got = submission.run(probes.in_a_row, cases)
        found = self.are_right([call["out"] for call in got], cases)
        for pairs, case in zip(found, cases):
            expect.that(
                not once or len(set(pairs)) == len(pairs),
                f"{self.told(*case)}: {pairs}: a pair that meets in two bands comes once",
            )
        left_alone(got, cases, ["signatures"])

    def agreement(self, signatures, bands, rows):
        """{(i, j): a band in which both agree}, of documents with shingles."""
        found = {}
        live = [n for n in range(len(signatures)) if (signatures[n] != EMPTY).any()]
        for band in range(bands):
            own = {}
            for n in live:
                key = tuple(signatures[n, band * rows : (band + 1) * rows].tolist())
                for i in own.setdefault(key, []):
                    found.setdefault((i, n), band)
                own[key].append(n)
        return found

    def why(self, signatures, i, j, bands, rows):
        one, other = signatures[i], signatures[j]
        if (one == EMPTY).all() or (other == EMPTY).all():
            return "one has no shingle (2^32 - 1 in every place): it is like no other"
        keys = [
            {tuple(x[b * rows : (b + 1) * rows].tolist()): b for b in range(bands)}
            for x in (one, other)
        ]
        if set(keys[0]) & set(keys[1]):
            return "what agrees is one band of the first and *another* band of the second: each band has buckets of its own"
        used = bands * rows
        if (one[:used] == other[:used]).any():
            return "they agree in single hashes, and in no whole band"
        if (one[used:] == other[used:]).any():
            return (
                f"they agree only behind the first {used} hashes, which none of the {bands} bands has: more places may be "
                "there than `bands` times `rows`"
            )
        return "they agree in no band"

    @check(points=1, title="two documents meet where a whole band agrees, and only there")
    def test_bands(self, submission):
        cases = []
        # of the second one more band would fit in, and of the last
        for count, bands, rows, over in ((9, 4, 3, 0), (12, 3, 5, 9), (8, 6, 1, 0), (7, 1, 4, 4)):
            s = self.draw(count, bands, rows, over)
            self.same(s, 1, 4, random.randrange(bands), rows)
            self.same(s, 4, 6, random.randrange(bands), rows)
            if rows > 1:  # all but the last of each band
                for band in range(bands):
                    s[3, band * rows : (band + 1) * rows - 1] = s[
                        2, band * rows : (band + 1) * rows - 1
                    ]
            if bands > 1:  # band 0 of one is band 1 of the other
                s[5, rows : 2 * rows] = s[0, :rows]
            if over:
                s[2, -over:] = s[0, -over:]
            cases.append((s, bands, rows))
        first = self.draw(5, 3, 2)  # document 0 is a first like any other
        for band, others in enumerate(([2, 3], [4], [])):
            for other in others:
                self.same(first, 0, other, band, 2)
        in_a_row(partial(self.compare, submission), [*cases, (first, 3, 2)])

    @check(points=1, title="documents without shingles meet nobody, and no pair comes twice")
    def test_empty(self, submission):
        s = self.draw(10, 3, 4)
        s[[1, 4, 8]] = EMPTY
        self.same(s, 0, 5, 0, 4)
        self.same(s, 0, 5, 2, 4)
        part = self.draw(6, 2, 3)  # one band of 2^32 - 1 is a band like another
        part[2, :3] = part[5, :3] = EMPTY
        cases = [(s, 3, 4), (part, 2, 3), (self.draw(5, 2, 2), 2, 2), (self.draw(1, 2, 2), 2, 2)]
        with as_above(self.test_bands, submission):
            in_a_row(partial(self.compare, submission, once=True), cases)

    @check(
        points=6, title="no two documents are compared: buckets, and n - 1 pairs for a heap of n"
    )
    def test_cost(self, submission):
        heap = self.draw(300, 2, 4)
        heap[20:220] = heap[20]
        calls = [(heap, 2, 4)]
        for count in (500, 4000):
            s = self.draw(count, 8, 4)
            s[1::50] = s[::50]
            calls.append((s, 8, 4))
        hint = {
            (
                "timeout",
                "memory",
            ): "as where every document is compared with every other: put each band of each document into a bucket (a dict), once"
        }
        with expect.because(hint):  # fmt: skip
            got = submission.run(probes.cost_of, calls, timeout=6)
        with as_above(self.test_bands, submission):
            pairs, *_ = self.are_right([call["out"] for call in got], calls)
        expect.that(
            len(pairs) <= 199 * 2,
            f"200 equal documents gave {len(pairs):,} pairs: 199 have the same union. Pair each with the *first* of "
            "its bucket",
        )
        expect.that(
            not is_quadratic(got[1], got[2]),
            f"500 documents took {got[1]['seconds']:.2f} s, eight times as many {got[2]['seconds']:.2f} s, as where every "
            "document is compared with every other. Put each band into a bucket (a dict), once",
        )


def firsts(pairs, count):
    """The first of each one's cluster."""
    parent = list(range(count))

    def root(n):
        while parent[n] != n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    for i, j in pairs:
        low, high = sorted((root(i), root(j)))
        parent[high] = low
    return [root(n) for n in range(count)]


# --- 4: clusters


class TestClusters(Exercise):
    """The union of pairs"""

    name = "clusters"
    reference = "minitrain.data.plain:clusters"
    hidden = HIDDEN
    small = (
        ([(0, 3), (3, 7), (2, 5)], 8),
        ([(2, 3), (0, 1), (1, 2)], 5),
        ([(1, 4), (4, 5), (0, 5)], 6),
    )

    def compare(self, submission, cases, timeout=None):
        hint = {
            "recursion": "a chain is longer than Python's stack: follow parents in a loop",
            "RecursionError": "a chain is longer than Python's stack: follow parents in a loop",
            ("timeout", "memory"): "a long chain takes too long: each pair joins two roots, and the way to a root is cut short as it is walked",
            ("networkx", "scipy"): "ready-made unions are not the exercise",
        }  # fmt: skip
        with expect.because(hint):
            got = submission.run(probes.as_union, cases, timeout=timeout)
        expect.that(
            not got["ready"], f"{got['ready'][:1]} was imported: ready-made unions are not here"
        )
        self.are_right(got["calls"], [(list(pairs), count) for pairs, count in cases])
        return got["calls"]

    def are_right(self, calls, cases):
        """Of several calls."""
        gots, wants = [], [firsts(*case) for case in cases]
        for call, case in zip(calls, cases):
            got = call["out"]
            got = got["values"] if isinstance(got, dict) and "values" in got else got
            expect.that(
                isinstance(got, (list, tuple)) and len(got) == case[1],
                f"{self.told(*case)}: got {expect.show(got)}, expected {case[1]:,} numbers",
            )
            gots.append(list(got))
        for call, case, got, want in zip(calls, cases, gots, wants):
            if got == want:
                continue
            at = next(n for n in range(case[1]) if got[n] != want[n])
            words = f"{self.told(*case)}: document {at} has first {got[at]!r}, expected {want[at]}"
            cause = self.mistake(gots, wants, cases)
            if call["begun"] > 1:
                words += f". The pairs were gone through {call['begun']} times, and come once, as from a file"
            elif cause:
                words += f": {cause}"
            elif len(set(got)) > len(set(want)):
                words += f": {len(set(got)):,} clusters, expected {len(set(want)):,}. Two clusters that a later pair joins become one, as wholes"
            expect.that(False, words)

    def told(self, pairs, count):
        return f"pairs {pairs if len(pairs) < 9 else f'({len(pairs):,} of them)'} of {count:,} documents"

    def mistake(self, gots, wants, cases):
        """The cause of all calls."""
        if all(map(self.same_groups, gots, wants)):
            return (
                "the groups are right, but each is named by its *first* document, the lowest number"
            )
        if [self.followed(got) for got in gots] == wants:
            return "that is a step on the way to the first, and not yet the first itself: go on to the root of each"
        for of_pairs in (self.last_met, self.lowest_met):
            parents = [of_pairs(*case) for case in cases]
            if gots in (parents, list(map(self.followed, parents))):
                return "a ~ b and b ~ c make one cluster, though a and c never met. Join the *roots* of both, not the documents"
        return ""

    def same_groups(self, got, want):
        try:
            return len(set(zip(got, want))) == len(set(got)) == len(set(want))
        except TypeError:
            return False

    def followed(self, parent):
        """To where each one's parents lead; as it is where they lead nowhere."""
        own, size = list(parent), len(parent)
        is_tree = all(isinstance(p, int) and 0 <= p <= n for n, p in enumerate(own))
        for n in range(size if is_tree else 0):
            own[n] = own[own[n]]
        return own

    def last_met(self, pairs, count):
        parent = list(range(count))
        for i, j in pairs:
            parent[max(i, j)] = min(i, j)
        return parent

    def lowest_met(self, pairs, count):
        parent = list(range(count))
        for i, j in pairs:
            parent[max(i, j)] = min(parent[max(i, j)], i, j)
        return parent

    def drawn(self, count, edges):
        return [tuple(random.sample(range(count), 2)) for _ in range(edges)]

    @check(points=1, title="a ~ b and b ~ c make one cluster, named by its first document")
    def test_groups(self, submission):
        drawn = [(self.drawn(n, e), n) for n, e in ((12, 7), (30, 20), (30, 45), (9, 3))]
        in_a_row(partial(self.compare, submission), [*self.small, *drawn])

    @check(points=1, title="pairs in any order, turned, repeated, of one document, or none")
    def test_order(self, submission):
        pairs = [(5, 2), (2, 5), (4, 4), (7, 5), (1, 0), (5, 2)]
        shuffled = random.sample(pairs, len(pairs))
        cases = [(pairs, 8), (shuffled, 8), ([], 4), ([], 0), ([(0, 0)], 1)]
        with as_above(partial(self.compare, submission, self.small)):
            in_a_row(partial(self.compare, submission), cases)

    @check(points=5, title="each pair is read once, and long chains cost no more than short ones")
    def test_chains(self, submission):
        def backward(n):
            return [*((i, i + 1) for i in reversed(range(n - 1))), (0, n - 1)]

        cases = [(backward(750), 750), (backward(6000), 6000)]
        forward = [(i, i + 1) for i in range(2500)]
        twos = [(i, i + half) for half in (1, 2, 4, 8, 16) for i in range(0, 64, 2 * half)]
        cases += [(forward, 2501), (random.sample(twos, len(twos)), 64)]
        with as_above(partial(self.compare, submission, self.small)):
            got = self.compare(submission, cases, timeout=6)
        expect.that(
            not is_quadratic(*got[:2]),
            f"a chain of 750 took {got[0]['seconds']:.2f} s, one of 6,000 {got[1]['seconds']:.2f} s, so that a pair or a document "
            "costs more, the longer the chain. With a parent for each, the pair joins two roots, and whoever walks to a root "
            "has to cut the way to the root short: hang what is passed nearer to the root",
        )
        count = 200
        held = submission.run(probes.union_of_all, count)
        drawn = count * (count - 1) // 2
        expect.that(
            held_at_once(held) < 16 * drawn,
            f"{held['peak'] / 1e6:.1f} MB were held at once for {drawn:,} pairs of {count} documents. The pairs' file is larger than "
            "memory: take each pair as it comes, in whatever order, and keep nothing of it but what the parents say",
        )


# --- 5: the suffix array


ENDLESS = (
    "if it never ends: two suffixes keep one rank for ever unless what lies behind the end of the "
    "text is lower than every symbol, 0 too"
)


def sorted_suffixes(symbols):
    return sorted(range(len(symbols)), key=lambda start: symbols[start:])


def doubled(text, behind):
    """The order with another rank behind the end."""
    rank = list(text)
    for step in [1 << k for k in range(len(text).bit_length() + 1)]:
        dense = {value: place for place, value in enumerate(sorted(set(rank)))}
        rank = [dense[value] for value in rank]
        rank = list(zip(rank, [*rank[step:], *[behind] * step]))
    return sorted(range(len(text)), key=lambda i: rank[i])


class TestSuffixArray(Exercise):
    """All suffixes in order"""

    name = "suffix_array"
    reference = "minitrain.data.plain:suffix_array"
    hidden = HIDDEN
    word = np.frombuffer(b"mississippi", np.uint8)
    edges = (np.full(33, 3), np.tile([0, 1, 0, 2, 1], 7)[:33], np.array([1, 0, 1, 1, 0, 0]))

    def are_right(self, results, texts, wants):
        """Of several calls."""
        tolds = [str(text) if len(text) < 13 else f"{len(text):,} symbols" for text in texts]
        gots = []
        for result, text, told in zip(results, texts, tolds):
            got = array_of(result, what=f"the suffix array of {told}")
            expect.that(
                result["dtype"].startswith("int") or not text,
                f"places are integers, got {result['dtype']}",
            )
            expect.that(
                sorted(got) == list(range(len(text))),
                f"{told}: got {expect.show(got)}: each of the {len(text):,} suffixes comes once",
            )
            gots.append(got)
        for got, want, text, told in zip(gots, wants, texts, tolds):
            if got != want:
                at = next(n for n in range(len(want)) if got[n] != want[n])
                words = f"{told}: at place {at} stands suffix {got[at]}, expected {want[at]}"
                both = zip(text[got[at] :], text[want[at] :])
                alike = len(list(takewhile(lambda pair: pair[0] == pair[1], both)))
                words += f" (they differ after {plural(alike, 'symbol')})" if alike > 1 else ""
                expect.that(False, words + self.mistake(gots, texts, wants))

    def mistake(self, gots, texts, wants):
        """The cause of all calls."""
        mistakes = [
            (lambda text, want: np.argsort(want).tolist(), "those are the ranks of the suffixes, the inverse: expected is where the suffixes begin, in order"),
            (lambda text, want: want[::-1], "that is the order from the largest to the smallest"),
            *((partial(self.of_firsts, k), f"that is the order of the first {'symbol' if k == 1 else f'{k} symbols'}. Go on doubling until no two ranks are equal") for k in (1, 2, 4, 8, 16)),
            (self.of_rounds_rounded_down, "the last round is missing: after k rounds 2^k symbols count, so that n symbols need ⌈log2 n⌉ "
             "rounds, rounded up, unless no two ranks are equal before"),
            (lambda text, want: doubled(text, len(text)), "a suffix that ends sorts *before* a longer one that begins with it"),
            (lambda text, want: doubled(text, 0), "behind the end lies nothing, which sorts before every symbol, 0 too"),
        ]  # fmt: skip
        for wrong, words in mistakes:
            if gots == list(map(wrong, texts, wants)):
                return f": {words}"
        failed = [text for got, text, want in zip(gots, texts, wants) if got != want]
        if all(max(text) > len(text) for text in failed):
            return (
                f". The symbols go up to {max(failed[0]):,}, more than n = {len(failed[0])}: if a pair of ranks is one number, "
                "as in rank · (n + 1) + next, ranks must be below n. Number the symbols without gaps first"
            )
        if all(len(set(text)) == len(text) for text in failed):
            return (
                ". Wrong are only texts whose symbols all differ: of a pair of ranks the second goes from 0, the end, to n. If the "
                "pair is one number, as in rank · n + next, then (r, n) and (r + 1, 0) are the same: multiply by n + 1"
            )
        return ""

    def of_rounds_rounded_down(self, text, want):
        return self.of_firsts(2 ** (len(text).bit_length() - 1) if text else 1, text, want)

    def of_firsts(self, k, text, want):
        return sorted(range(len(text)), key=lambda i: text[i : i + k])

    def compare(self, submission, texts):
        calls = [(text,) for text in texts]
        hint = {
            "timeout": ENDLESS,
            (
                "zero-size",
                "out of bounds",
                "empty",
            ): "a text of no symbol has the empty suffix array",
        }
        with expect.because(hint):
            got = submission.run(probes.in_a_row, calls, timeout=3)
        plain = [text.tolist() for text in texts]
        self.are_right([call["out"] for call in got], plain, list(map(sorted_suffixes, plain)))
        left_alone(got, calls, ["symbols"])

    @check(points=1, title="equals the sorted suffixes, of few symbols and of many")
    def test_sorted(self, submission):
        sizes = [(6, 3), (40, 2), (200, 4), (90, 50_000), (300, 2)]
        texts = [np.random.randint(0, k, n) for n, k in sizes]
        short = [np.array(text) for n in (2, 3, 4) for text in permutations_of(range(n))]
        in_a_row(partial(self.compare, submission), [self.word, *texts, *short])

    @check(points=1, title="nothing, one symbol, all equal, a period, symbol 0 at the end")
    def test_edges(self, submission):
        period = np.tile(np.random.randint(0, 3, 5), 9)[: random.randint(31, 44)]
        zeros = np.concatenate((np.random.randint(0, 2, 12), np.zeros(random.randint(2, 6), int)))
        texts = [np.zeros(0, np.int64), np.array([7]), np.full(33, 4), period, zeros]
        with as_above(partial(self.compare, submission, [self.word])):
            in_a_row(partial(self.compare, submission), texts)

    @check(points=6, title="long repeats cost a few rounds more, and no suffix is written out")
    def test_long(self, submission):
        small, large = 1000, 8000
        periodic = np.tile(np.random.randint(0, 9, 500), 8)
        texts = [np.full(small, 3), np.full(large, 3), periodic]
        plain = [text.tolist() for text in texts]
        wants = [list(range(small))[::-1], list(range(large))[::-1], sorted_suffixes(plain[2])]
        words = "each round sorts by twice as many symbols as the one before: 2, 4, 8, …, so that {} rounds are enough here"
        hint = {
            ("timeout", "memory"): "as where suffixes are compared as a whole: " + words.format(13),
        }
        with expect.because({"timeout": ABOVE + ENDLESS}):
            submission.run(probes.cost_of, [(np.full(33, 3),)], timeout=3)
        with expect.because(hint):
            got = submission.run(probes.cost_of, [(text,) for text in texts], timeout=6)
            peaks = submission.run(probes.peak_of, [(texts[1],)], timeout=6)
        above = partial(self.compare, submission)
        with as_above(partial(above, [self.word])), as_above(partial(above, self.edges)):
            self.are_right([call["out"] for call in got], plain, wants)
        expect.that(
            held_at_once(peaks[0]) < 600 * large + 2**20,
            f"{peaks[0]['peak'] / 1e6:.0f} MB were held at once for {large:,} symbols: suffixes were written out, n of up to "
            f"n symbols. Hold a rank for each, {words.format(13)}",
        )
        expect.that(
            not is_quadratic(*got[:2], factor=16),  # a call that is short has costs of its own
            f"{small:,} equal symbols took {got[0]['seconds']:.2f} s, {large:,} {got[1]['seconds']:.2f} s: {words.format(13)}",
        )


# --- 6: the mixture


def tempered(sizes, temperature):
    logs = [math.log(size / max(sizes)) / temperature for size in sizes]
    values = [math.exp(x) for x in logs]
    return [value / sum(values) for value in values]


def inverse(sizes, temperature):
    return tempered(sizes, 1 / min(temperature, 1e9))


def softmaxed(sizes, temperature):
    shares = [math.exp(size / sum(sizes) / temperature) for size in sizes]
    return [share / sum(shares) for share in shares]


def proportional(sizes, temperature):
    return [size / sum(sizes) for size in sizes]


def filled(
    sizes, temperature, budget, most, shared=tempered, whole=False, forgets=False, later=None
):
    """Tempered weights, capped; what is over goes to the others, as often as it must.

    Likely mistakes: `whole`, a part of a pass is none; `forgets`, what is left is less the last
    round's caps alone; `later`, how it is shared once a source is capped.
    """
    caps = [most * size / budget for size in sizes]
    fixed: set[int] = set()
    last: set[int] = set()
    while True:
        left = 1 - sum(caps[i] for i in (last if forgets else fixed))
        free = [i for i in range(len(sizes)) if i not in fixed]
        share = later if later and fixed else shared
        shares = dict(zip(free, share([sizes[i] for i in free], temperature) if free else []))
        weights = [caps[i] if i in fixed else left * shares[i] for i in range(len(sizes))]
        last = {i for i in free if weights[i] > caps[i] * (1 + 1e-12)}
        if whole:
            last = {i for i in last if weights[i] * budget // sizes[i] > most}
        if not last:
            return weights
        fixed |= last


def numbers(values):
    return torch.tensor(values, dtype=torch.float64)


class TestMixtureWeights(Exercise):
    """Weights of several sources"""

    name = "mixture_weights"
    reference = "minitrain.data.plain:mixture_weights"
    hidden = HIDDEN

    def compare(self, submission, cases):
        got = submission.run(probes.in_a_row, cases)
        cases = [case if len(case) == 4 else (*case, 4.0) for case in cases]
        tolds = [
            f"sizes {', '.join(f'{s:.3g}' for s in sizes)}, temperature {temperature:g}, {budget:.3g} tokens, "
            f"at most {most:g} passes"
            for sizes, temperature, budget, most in cases
        ]
        gots = [self.weights(call["out"], *given) for call, *given in zip(got, cases, tolds)]
        wants = [numbers(filled(*case)) for case in cases]
        names = [f"weights ({told})" for told in tolds]
        mistakes = self.mistakes(cases)
        if all(
            abs(sum(own) - 1) > 1e-9
            for own, want in zip(gots, wants)
            if difference(own, want, 1e-9)
        ):
            mistakes.append((gots, "those do not sum to 1"))
        all_equal(gots, wants, names, mistakes, tol=1e-9)
        left_alone(got, cases, ["sizes"])

    def weights(self, got, case, told):
        if isinstance(got, dict) and "values" in got:
            got = got["values"]
        if isinstance(got, torch.Tensor):
            got = got.tolist()
        is_list = isinstance(got, (list, tuple)) and all(isinstance(w, (int, float)) for w in got)
        expect.that(is_list, f"got {expect.show(got)}, expected {len(case[0])} weights ({told})")
        expect.that(
            all(map(math.isfinite, got)),
            f"weights {got} ({told}): some are no finite numbers. Powers of large sizes overflow, and powers of numbers below 1 are "
            "rounded to 0: divide by the largest that is still free, each time that you share out, whose power is 1",
        )
        return numbers(got)

    def mistakes(self, cases):
        """(what each call would give, words)."""
        bases = [tempered(sizes, temperature) for sizes, temperature, *_ in cases]
        caps = [[most * size / budget for size in sizes] for sizes, _, budget, most in cases]
        clipped = [list(map(min, base, cap)) for base, cap in zip(bases, caps)]
        wrong = [
            (bases, "a source is read more than most_passes times: its weight is at most most_passes · size / budget"),
            (clipped, "those do not sum to 1: what a capped source gives up goes to the others"),
            ([[w / sum(own) for w in own] for own in clipped], "clipped, and then all divided by their sum: that lifts the capped ones above their cap again. Share among the others only"),
            ([filled(*case, whole=True) for case in cases], "a source may be read not even a part of a pass more than most_passes times: its weight is at most most_passes · size / budget"),
            ([filled(*case, forgets=True) for case in cases], "what is left for the others is 1 less the weights of *all* that are capped, those of earlier rounds too"),
            ([filled(*case, later=proportional) for case in cases], "once a source is capped the others are shared by size there: they keep their size^(1/T)"),
            (list(map(self.one_round, bases, caps)), "what the capped sources gave up has lifted another one above *its* cap: look again until none is"),
            (list(map(self.spread_evenly, bases, caps)), "what is over is shared in proportion to the others' tempered weights, not evenly"),
        ]  # fmt: skip
        for shared, words in (
            (inverse, "that is size^T: the exponent is 1 / T, so that a high temperature makes sources alike"),
            (softmaxed, "that is a softmax of the sizes: p ~ size^(1/T)"),
            (proportional, "that is proportional to the sizes: the temperature is not used"),
        ):  # fmt: skip
            wrong.append(([filled(*case, shared) for case in cases], words))
            wrong.append(([shared(*case[:2]) for case in cases], words))
        return [(list(map(numbers, weights)), words) for weights, words in wrong]

    def one_round(self, base, caps):
        over = [i for i in range(len(base)) if base[i] > caps[i]]
        left = 1 - sum(caps[i] for i in over)
        total = sum(w for i, w in enumerate(base) if i not in over)
        if not total:
            return []
        return [caps[i] if i in over else left * w / total for i, w in enumerate(base)]

    def spread_evenly(self, base, caps):
        over = [i for i in range(len(base)) if base[i] > caps[i]]
        if not over or len(over) == len(base):
            return []
        spare = sum(base[i] - caps[i] for i in over) / (len(base) - len(over))
        return [caps[i] if i in over else w + spare for i, w in enumerate(base)]

    @check(
        points=2, title="size to the power 1/T, from far below 1 to infinity, of sizes of any order"
    )
    def test_temperature(self, submission):
        sizes = [random.randint(10**k, 9 * 10**k) for k in (9, 10, 11)]
        huge = [random.randint(10**k, 9 * 10**k) for k in (12, 13)]
        # the largest is capped, beside which the powers of the others are 0
        tiny = [random.randint(2_700_000, 3_300_000), 5 * 10**6, 10**13]
        alike = [random.randint(10**12, 10**14)] * 3  # of shares of their sum the powers are 0
        cases = [(sizes, t, 10**6) for t in (1.0, 2.0, 5.0, math.inf, 0.5)]
        with expect.because(
            {
                "OverflowError": "size^(1/T) is too large for a float: divide the sizes by the largest first",
                "ZeroDivisionError": "at so low a T the powers of numbers below 1 may all be rounded to 0, and so their sum: divide by the "
                "largest that is still free, each time that you share out, whose power is 1",
            }
        ):
            in_a_row(partial(self.compare, submission), [*cases, (huge, 0.04, 10**6), ([7], 2.0, 3), (tiny, 0.015, 40_000_015_000_000), (alike, 0.001, 10**6)])  # fmt: skip

    @check(
        points=3, title="no source is read more than `most_passes` times; the others take its share"
    )
    def test_cap(self, submission):
        x = random.randint(800, 1200)
        cases = [
            ([x * 10**6, 10**11, 2 * 10**11], 5.0, 10**11, 4.0),
            ([10**8, x * 10**6, 10**12], math.inf, 10**12, 4.0),
            # the first is capped, and only what it gives up lifts the second above its cap
            ([1, random.randint(31, 35), 1000], math.inf, 300, 4.0),
            ([1, random.randint(26, 29), 1000], math.inf, 300, 4.0),  # by more than a pass
            ([10_000, 50_000, 55 * x], 1.0, 100 * x, 1.0),
            ([10**9, 2 * 10**9, 4 * 10**9, 3 * 10**12], 3.0, 2 * 10**12, 2.0),
        ]
        free = [([3 * 10**9, 4 * 10**10, 5 * 10**11], 2.0, 10**6)]  # no cap
        with as_above(partial(self.compare, submission, free)):
            in_a_row(partial(self.compare, submission), cases)

    @check(
        points=1, title="a budget of exactly so many passes is met, a larger one is a ValueError"
    )
    def test_budget(self, submission):
        sizes = [random.randint(2, 9) for _ in range(3)]
        calls = [(sizes, 2.0, 4 * sum(sizes) + 1), (sizes, 1.0, 2 * sum(sizes) + 1, 2.0)]
        for call, got in zip(calls, submission.run(probes.refused, calls)):
            expect.that(
                got["error"] == "ValueError",
                f"{call[2]:g} tokens of sources of {sizes}: {got['error'] or expect.show(got['out'])}, and no weights can "
                f"keep to {call[3] if len(call) > 3 else 4:g} passes: raise a ValueError that says so",
            )
        exact = [(sizes, 3.0, 4 * sum(sizes)), (sizes, 1.0, sum(sizes), 1.0)]
        for call, got in zip(exact, submission.run(probes.refused, exact)):
            expect.that(
                got["error"] != "ValueError",
                f"{call[2]:g} tokens of sources of {sizes}: ValueError: {got.get('words')}. That is exactly "
                f"{call[2] / sum(sizes):g} times all of them, which weights can keep to: only a larger budget is refused",
            )
        with as_above(self.test_cap, submission):
            self.compare(submission, exact)


# --- 7: packing


def laid_out(rows, length, end, known=False):
    """known: documents are known by their tokens, a likely mistake."""
    shape = (len(rows), length)
    tokens, targets = torch.full(shape, end), torch.full(shape, -100)
    positions, owners = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -1)
    for n, row in enumerate(rows):
        at = 0
        for owner, document in enumerate(row):
            owner = row.index(document) if known else owner
            for place, (token, target) in enumerate(zip([end, *document], [*document, end])):
                tokens[n, at], targets[n, at] = token, target
                positions[n, at], owners[n, at] = place, owner
                at += 1
        positions[n, at:] = torch.arange(length - at)
    causal = torch.ones(length, length).tril().bool()
    mask = (owners[:, :, None] == owners[:, None, :]) & causal
    return tokens, targets, positions, mask, owners


class TestLayOut(Exercise):
    """Whole documents in rows, and their mask"""

    name = "lay_out"
    reference = "minitrain.data.plain:lay_out"
    hidden = HIDDEN

    def draw(self, length, sizes, end=None):
        """sizes: of each row's documents, without the end."""
        end = random.randint(0, 9) if end is None else end
        ids, rows = range(10, 60), []
        for row in sizes:  # no two documents of a row are equal, but where they are empty
            begins = random.sample(ids, len(row))
            rest = [random.choices(ids, k=size) for size in row]
            rows.append([[begin, *own[1:]][: len(own)] for begin, own in zip(begins, rest)])
        return rows, length, end

    def parts(self, submission, cases):
        got = submission.run(probes.in_a_row, cases)
        for case, call in zip(cases, got):
            told = f"{len(case[0])} rows of {case[1]}"
            expect.that(
                isinstance(call["out"], (tuple, list)) and len(call["out"]) == 4,
                f"{told}: got {expect.show(call['out'])}: return tokens, targets, positions, mask",
            )
        left_alone(got, cases, ["rows"])
        return [call["out"] for call in got]

    def usual(self):
        return [
            self.draw(10, [[3, 4], [2, 1, 0], [9]]),
            self.draw(7, [[6], [1, 1, 1]]),
            self.draw(12, [[2, 3]]),
        ]

    def told(self, case):
        rows, length, end = case
        return f"documents of {[[len(d) for d in row] for row in rows]} tokens, rows of {length}, end {end}"

    @check(points=2, title="tokens and targets: each token asked for once, the end too")
    def test_targets(self, submission):
        in_a_row(partial(self.judge, submission, self.are_asked), self.usual())

    def judge(self, submission, are_right, cases):
        are_right(self.parts(submission, cases), cases)

    def are_asked(self, parts, cases):
        """The tokens and targets of several calls."""
        tokens, targets, *_ = zip(*parts)
        rights = [laid_out(*case) for case in cases]
        wrong = lambda give: [give(x, y, p >= 0, c[2]) for (x, y, *_, p), c in zip(rights, cases)]  # noqa: E731
        moved = lambda x: torch.cat((x[:, 1:], torch.full((len(x), 1), -100)), 1)  # noqa: E731
        all_equal(tokens, [right[0] for right in rights], self.names("tokens", cases), [
            (wrong(lambda x, y, live, end: torch.where(live, y, end)), "each document is read with the end *before* it: [end] t1 t2 …, and asked for t1 t2 … [end]"),
            (wrong(lambda x, y, live, end: torch.where(live, x, 0)), "padding holds the end token"),
            (wrong(lambda x, y, live, end: x.int()), "int64 is what an embedding wants"),
        ])  # fmt: skip
        itself = "those are the tokens themselves: the target of a place is the *next* token"
        all_equal(targets, [right[1] for right in rights], self.names("targets", cases), [
            (wrong(lambda x, y, live, end: torch.where(live, y, end)), "nothing is asked of padding: -100, which cross-entropy skips"),
            (wrong(lambda x, y, live, end: y.where(y != end, -100)), "the end of each document is asked for too: it is a token, and in the floor"),
            (wrong(lambda x, y, live, end: x.where(live, -100)), itself),
            (wrong(lambda x, y, live, end: x), itself),
            (wrong(lambda x, y, live, end: moved(x)), "that is the row moved by one place: so the last place of a row has no target, and padding has one"),
            (wrong(lambda x, y, live, end: moved(x).where(live, -100)), "that is the row moved by one place: the last place of a full row loses its target"),
        ])  # fmt: skip

    def names(self, what, cases):
        return [f"{what} ({self.told(case)})" for case in cases]

    @check(points=1, title="positions begin at 0 with each document")
    def test_positions(self, submission):
        cases = self.usual()
        with told_above():
            self.parts(submission, cases)
        in_a_row(partial(self.judge, submission, self.are_places), cases)

    def are_places(self, parts, cases):
        """The positions of several calls; padding's are nobody's business."""
        positions = [part[2] for part in parts]
        rights = [laid_out(*case) for case in cases]
        names, lives = self.names("positions", cases), [owners >= 0 for *_, owners in rights]
        for got, (*_, owners), name in zip(positions, rights, names):
            expect.that(
                isinstance(got, torch.Tensor) and got.shape == owners.shape,
                f"{name}: got {expect.show(got)}, expected a tensor of shape {tuple(owners.shape)}",
            )
        wants = [right[2] for right in rights]
        own = lambda all_of: [x.where(live, 0) for x, live in zip(all_of, lives)]  # noqa: E731
        rows = [torch.arange(want.shape[1]).expand(want.shape) for want in wants]
        all_equal(own(positions), own(wants), names, [
            (own(rows), "those go on through the row: each document begins at 0"),
            (own(want + 1 for want in wants), "positions begin at 0, at the end token before a document"),
        ])  # fmt: skip

    @check(
        points=3, title="the mask: a place looks at its own document, up to itself, and no further"
    )
    def test_mask(self, submission):
        cases = self.usual()
        with told_above():
            self.parts(submission, cases)
        in_a_row(partial(self.judge, submission, self.are_masks), cases)

    def are_masks(self, parts, cases):
        """The masks of several calls."""
        masks = [part[3] for part in parts]
        rights = [laid_out(*case)[3:] for case in cases]
        names = self.names("the mask", cases)
        for mask, (want, _), name in zip(masks, rights, names):
            expect.that(
                isinstance(mask, torch.Tensor) and mask.shape == want.shape,
                f"{name}: got {expect.show(mask)}, expected a tensor of shape {tuple(want.shape)}: (N, T, T), who looks at whom",
            )
            expect.that(
                mask.dtype == torch.bool,
                f"{name} is of {mask.dtype}, expected bool: True where a place may look",
            )
        lives = [owners >= 0 for _, owners in rights]
        wants = [want for want, _ in rights]
        causal = [torch.ones(want.shape[1:]).tril().bool().expand_as(want) for want in wants]
        same = [owners[:, :, None] == owners[:, None, :] for _, owners in rights]
        alike = [laid_out(*case, known=True)[3] for case in cases]
        own = lambda all_of: [x & live[:, :, None] for x, live in zip(all_of, lives)]  # noqa: E731
        all_equal(own(masks), own(wants), names, [
            (own(causal), "that is causal alone: a document looks at those before it in the row"),
            (own(alike), "two documents of a row that are equal look at each other: a document is known by its place, not by its tokens"),
            (own(same), "a place looks at what comes after it, which is what it is asked for: causal too"),
            (own(~want for want in wants), "that is turned round: True where a place *may* look"),
            (own(want.mT for want in wants), "that is mirrored: mask[n, t, s] says whether place t looks at place s, s ≤ t"),
            (own(want & ~torch.eye(want.shape[1], dtype=torch.bool) for want in wants), "a place looks at itself too"),
        ])  # fmt: skip
        for mask, live, name in zip(masks, lives, names):
            blind = ~mask.any(dim=2)
            expect.that(
                not blind.any(),
                f"{name}: place {blind.nonzero()[0].tolist() if blind.any() else ''} looks at nothing, so that its softmax is "
                "nan, which reaches all gradients. Let padding look at itself",
            )
            crossed = (mask & ~live[:, :, None] & live[:, None, :]).any()
            expect.that(not crossed, f"{name}: padding looks into a document: keep it to itself")

    @check(
        points=2, title="empty documents, rows without any, full rows, and documents of one token"
    )
    def test_edges(self, submission):
        cases = [
            self.draw(5, [[0, 0], [4], []]),
            self.draw(4, [[1, 1], [0, 2], [3]]),
            self.draw(1, [[0], []]),
            self.draw(6, [[5], [0, 0, 0, 0, 0, 0]], end=3),
        ]
        # the same document twice in a row: two documents
        rows, *rest = self.draw(11, [[3]])
        cases.append(([[rows[0][0], rows[0][0], []]], *rest))
        with as_above(partial(self.parts, submission, self.usual())):
            parts = self.parts(submission, cases)
        with as_above(self.test_targets, submission):
            self.are_asked(parts, cases)
        with as_above(self.test_positions, submission):
            self.are_places(parts, cases)
        with as_above(self.test_mask, submission):
            self.are_masks(parts, cases)


# --- 8: the stream


AGAIN = "the same arguments gave another order the second time: draw it from the seed alone"


class TestStream(Exercise):
    """Shuffled, split over ranks, resumed"""

    name = "Stream"
    reference = "minitrain.data.plain:Stream"
    hidden = HIDDEN

    def steps(self, epoch, told):
        """Of an epoch's ranks the steps, each with all ranks' rows; as many on every rank."""
        counts = [len(rank) for rank in epoch]
        expect.that(
            len(set(counts)) == 1,
            f"{told}: the ranks make {counts} steps. Each rank makes every step, with an empty list where it has no row: "
            "the others wait in vain, in an all-reduce, for a rank that makes none",
        )
        return [[rank[step] for rank in epoch] for step in range(counts[0])]

    def rows_of(self, epoch):
        return [row for rank in epoch for step in rank for row in step]

    def once(self, rows, count, size, told):
        """size: of a step, of all ranks."""
        expect.that(
            all(isinstance(row, int) for row in rows),
            f"{told}: rows are integers, got {expect.show(rows[:3])}",
        )
        seen = sorted(rows)
        missing = sorted(set(range(count)) - set(seen))
        double = sorted({row for row in seen if seen.count(row) > 1})
        words = ""
        if len(missing) == count % size and not double:
            words = ": as many as an epoch's last, smaller step has. It is a step too"
        expect.that(
            seen == list(range(count)),
            f"{told}: {len(missing)} of {count} rows never came{f' (row {missing[0]})' if missing else ''}, "
            f"{len(double)} came more than once{f' (row {double[0]})' if double else ''}{words}",
        )

    def whole(self, submission, ranks, seed):
        """The ranks together read each row once, in the order of (seed, epoch)."""
        calls = [((30, 4, seed), count, 1) for count in (1, 1, ranks)]
        first, again, split = [epoch for (epoch,) in submission.run(probes.epochs, calls)]
        expect.that(first == again, AGAIN)
        self.once(self.rows_of(first), 30, 4, "30 rows in batches of 4, epoch 0")
        told = f"30 rows, {ranks} ranks, batches of 4, epoch 0"
        rows = self.rows_of(split)
        expect.that(
            len(rows) != 30 * ranks or ranks == 1,
            f"{told}: every rank has read all rows: each has its own part of a step",
        )
        self.once(rows, 30, 4 * ranks, told)

    @check(
        points=1, title="an epoch has every row once, shuffled, and each epoch and seed its own way"
    )
    def test_epochs(self, submission):
        n = random.randint(40, 60)
        seed = random.randrange(1000)
        calls = [((n, 7, seed), 1, 3), ((n, 7, seed), 1, 2), ((n, 7, seed + 1), 1, 1)]
        calls += [((5, 9, seed), 1, 1), ((24, 6, seed), 1, 2), ((1, 1, seed), 1, 2)]
        got = submission.run(probes.epochs, calls)
        for (arguments, ranks, _), epochs in zip(calls, got):
            for number, epoch in enumerate(epochs):
                told = f"{arguments[0]} rows in batches of {arguments[1]}, epoch {number}"
                self.once(self.rows_of(epoch), arguments[0], arguments[1], told)
                self.are_full(self.steps(epoch, told), arguments[0], arguments[1] * ranks, told)
        first, second, third = (self.rows_of(epoch) for epoch in got[0])
        expect.that(
            first != sorted(first), f"the first epoch of {n} rows is not shuffled: {first[:6]} …"
        )
        expect.that(
            first != second and second != third,
            "all epochs have one order: draw it from the seed *and* the number of the epoch",
        )
        expect.that(got[1] == got[0][:2], AGAIN)
        other = self.rows_of(got[2][0])
        expect.that(other != first, "another seed gives the same order")
        expect.that(
            second != other, "epoch 1 of one seed is epoch 0 of the next: seed + epoch is no pair. Seed a generator with both numbers"
        )  # fmt: skip
        self.are_pairs(submission)

    def are_pairs(self, submission):
        """Each pair of a seed and an epoch has an order of its own."""
        seeds, count, n = (0, 1, 2, 3, 7), 12, 40
        found = submission.run(probes.epochs, [((n, n, seed), 1, count) for seed in seeds])
        known = {}
        for seed, epochs in zip(seeds, found):
            for number, epoch in enumerate(epochs):
                one = f"epoch {number} of seed {seed}"
                other = known.setdefault(tuple(self.rows_of(epoch)), one)
                expect.that(
                    other == one,
                    f"{one} has the order of {other}: where one number is made of both, other pairs give it, too. Seed a "
                    "generator with both numbers, as they are",
                )

    def are_full(self, steps, count, size, told):
        sizes = [sum(map(len, step)) for step in steps]
        want = [min(size, count - start) for start in range(0, count, size)]
        expect.that(
            sizes == want,
            f"{told}: the steps have {sizes} rows, expected {want}: all but the last are full",
        )

    @check(points=1, title="N ranks see, step by step, what one rank sees with N times the batch")
    def test_ranks(self, submission):
        seed, n = random.randrange(1000), 12 * random.randint(2, 3) + random.randint(5, 9)
        calls = [((n, 4 * 3, seed), 1, 2)]
        calls += [((n, 12 // ranks, seed), ranks, 2) for ranks in (2, 3, 4)]
        calls += [((3, 1, seed), 4, 1), ((9, 2, seed), 4, 1)]
        got = submission.run(probes.epochs, calls)
        with as_above(partial(self.whole, submission, 1, seed)):
            self.are_split(calls, got)

    def are_split(self, calls, got):
        """calls: the first is one rank's; of those with as many rows each step is to be the same."""
        (n, _, _), _, _ = calls[0]
        whole = [[sorted(step[0]) for step in self.steps(epoch, "1 rank")] for epoch in got[0]]
        for (arguments, ranks, _), epochs in zip(calls[1:], got[1:]):
            for number, epoch in enumerate(epochs):
                told = (
                    f"{arguments[0]} rows, {ranks} ranks, batches of {arguments[1]}, epoch {number}"
                )
                steps = self.steps(epoch, told)
                rows = self.rows_of(epoch)
                if len(rows) == arguments[0] * ranks:
                    expect.that(
                        False,
                        f"{told}: every rank has read all rows: each has its own part of a step",
                    )
                self.once(rows, arguments[0], arguments[1] * ranks, told)
                for step in steps:
                    sizes = [len(rank) for rank in step]
                    expect.that(
                        max(sizes) <= arguments[1],
                        f"{told}: a step gives the ranks {sizes} rows, at most {arguments[1]} each",
                    )
                    expect.that(
                        max(sizes) - min(sizes) <= 1,
                        f"{told}: a step gives the ranks {sizes} rows: share a last, smaller step evenly",
                    )
                if arguments[0] == n:
                    joined = [sorted(chain(*step)) for step in steps]
                    expect.that(
                        joined == whole[number],
                        f"{told}: its first step has rows {joined[0]}, one rank with a batch of 12 has {whole[number][0]}: cut "
                        "the order into steps of batch · ranks rows first, then each step into ranks",
                    )  # fmt: skip

    @check(
        points=5, title="resumed at any step, on as many ranks or others: the rows that are left"
    )
    def test_resume(self, submission):
        seed, n = random.randrange(1000), random.randint(50, 60)
        cases = [
            (n, 4, 1, seed, random.randint(2, 9), 4, 1, 2),
            (n, 4, 2, seed, random.randint(1, 5), 4, 2, 2),
            (n, 3, 2, seed, random.randint(1, 4), 2, 4, 2),  # one rank's rows x 4 stay below n
            (n, 5, 3, seed, random.randint(1, 2), 7, 1, 2),
            (24, 4, 2, seed, 3, 4, 2, 2),  # the epoch's last step has been handed out
            (24, 4, 1, seed, 8, 3, 2, 1),  # in the second epoch
            (n, 4, 1, seed, 0, 4, 2, 1),
            (25, 4, 2, seed, 4, 4, 2, 2),  # the ranks' shares of the last step differ
        ]
        with as_above(partial(self.whole, submission, 2, seed)):
            self.go_on(submission, cases)

    def go_on(self, submission, cases):
        """cases: (rows, batch, ranks, seed, stop), then batch, ranks and epochs after it."""
        fresh = submission.run(probes.epochs, [((case[0], 4, case[3]), 1, 4) for case in cases])
        stopped = submission.run(probes.stopped, [case[:5] for case in cases])
        # in another process, as after a crash: whatever is not in the state is gone
        on = [(c[0], c[5], c[6], c[3], c[7], s["state"]) for c, s in zip(cases, stopped)]
        after = submission.run(probes.gone_on, on)
        wrong = []
        for case, order, *found in zip(cases, fresh, stopped, after):
            try:
                wrong += self.goes_on(case, [self.rows_of(epoch) for epoch in order], *found)
            except CheckFailed:
                if not wrong:  # which say more
                    raise
        if wrong:
            told, causes = wrong[0]
            of_all = [kind for kind in causes if all(kind in others for _, others in wrong)]
            expect.that(False, told + (causes[of_all[0]] if of_all else ""))

    def goes_on(self, case, order, got, after):
        """What is wrong with the rows: nothing, or [(told, {kind: a cause that fits})]."""
        n, batch, ranks, _, stop, _, after_ranks, _ = case
        told = (
            f"{n} rows, stopped after {plural(stop, 'step')} on {plural(ranks, 'rank')} with batches of {batch}, "
            f"resumed on {after_ranks} with batches of {case[5]}"
        )
        expect.that(
            got["kept"],
            f"{told}: a state that was taken has changed when the stream went on: give a new dict each time",
        )
        expect.that(
            got["alike"],
            f"{told}: the ranks' states differ. Any one must do for all, since another number of ranks resumes from it",
        )
        done = [row for step in got["before"] for rank in step for row in rank]
        epoch, consumed = divmod(len(done), n)
        if consumed == 0 and epoch and sorted(self.rows_of(after[0])) != sorted(order[epoch]):
            epoch, consumed = epoch - 1, n  # the rest of an epoch of which nothing is left
        for number, found in enumerate(after):
            rows = self.rows_of(found)
            left = order[epoch + number][consumed if number == 0 else 0 :]
            if sorted(rows) == sorted(left):
                continue
            if number:
                told += f": epoch {epoch + number} after it has {len(rows)} rows, expected {len(left)} in that epoch's own order"
                return [(told, {})]
            told += f": {len(rows)} rows came in the rest of epoch {epoch}, expected {len(left)}"
            return [(told, self.place(rows, order[epoch], consumed, got["before"], case))]
        return []

    def place(self, rows, order, consumed, before, case):
        """{kind: words}: where in the order the rows begin that came after a stop."""
        ranks, after_ranks = case[2], case[6]
        start = len(order) - len(rows)
        if start < 0 or sorted(rows) != sorted(order[start:]):
            if len(rows) == len(order) - consumed:
                words = (
                    ": as many, but in another order than this epoch has where nothing is resumed. A new stream has the state "
                    "alone: the order must follow from (seed, epoch), and the epoch from the state"
                )
                return {"order": words}
            again, left = set(rows) & set(order[:consumed]), set(order[consumed:]) - set(rows)
            if ranks != after_ranks and not again and (len(rows) > len(set(rows)) or left):
                seen = f"{len(left)} that were left did not come, and {len(rows) - len(set(rows))} came more than once"
                words = (
                    f": {seen}. What the ranks take of a step does not make up the step: after `resume` batch and ranks are those "
                    "of the new stream, and what it takes over is the place alone"
                )
                return {"ranks": words}
            words = (
                f": {len(again)} of them had come before, and {len(left)} that were left did not come. The rest is order[consumed:] of "
                "the order of (seed, epoch), where `consumed` counts the rows of *all* ranks"
            )
            return {"rest": words}
        last = sum(map(len, before[-1])) if before else 0
        own = seen = 0  # of rank 0 and of all, in this epoch
        for step in reversed(before):
            own += len(step[0]) if seen < consumed else 0
            seen += sum(map(len, step))
        told = f": they are those from place {start} of the order on, and all ranks together had been given {consumed}"
        causes = {}
        if start == 0 and consumed:
            causes["anew"] = ": the epoch began anew"
        if start == consumed - last:
            causes["last"] = (
                f"{told}: exactly the last step came again. It has been handed out when `state` is asked for; a generator stands "
                "still at its `yield`, and what is written behind it has not run"
            )
        if start in (own, min(len(order), own * after_ranks)):
            causes["own"] = (
                f"{told}. One rank alone had {own}: count the rows that *all* ranks have been given, whatever their number"
            )
        if start < consumed:
            causes["few"] = (
                f"{told}. Count the rows that *all* ranks have been given, a whole step at a time"
            )
        else:
            causes["lost"] = (
                f"{told}: {start - consumed} rows are lost. A step counts once it is handed out, with the rows that it had then"
            )
        return causes

    @check(points=1, title="the state is a few numbers, and no generator of the process is used")
    def test_state(self, submission):
        seed = random.randrange(1000)
        (got,) = submission.run(probes.stopped, [(30_000, 10, 2, seed, 3)])
        (after,) = submission.run(probes.gone_on, [(30_000, 10, 2, seed, 1, got["state"])])
        left = 30_000 - 3 * 2 * 10
        with as_above(self.test_resume, submission):
            expect.that(
                len(self.rows_of(after[0])) == left,
                f"resumed in another process from {got['state'][:80]}: {len(self.rows_of(after[0])):,} rows, expected {left:,}: "
                "the rows that are left come, as the card above asks",
            )
        expect.that(
            len(got["state"]) <= 200,
            f"of 30,000 rows the state has {len(got['state']):,} characters as JSON: the order is drawn again from (seed, epoch), "
            "so that the epoch and how many rows were consumed are enough",
        )
        one, other = submission.run(probes.alone, (40, 6, 0, 1, seed), [1, 2])
        expect.that(
            one["steps"] == other["steps"],
            "the order depends on the process's own random numbers: a rank that drew one number more would read other rows. Seed a generator of your own",
        )
        expect.that(
            not (one["moved"] or other["moved"]),
            "the process's own random numbers were moved: dropout after it would be another. Use a generator of your own, np.random.default_rng([seed, epoch])",
        )  # fmt: skip


# --- what was measured


def by(table, *columns):
    return {tuple(row[c] for c in columns) if len(columns) > 1 else row[columns[0]]: row for row in table}  # fmt: skip


def found(rows, key):
    """A row of the table by its key, or words that it is missing."""
    expect.that(key in rows, f"the table has no row for {key}: it has {list(rows)[:12]}")
    return rows[key]


def noise(share, count):
    """Three standard deviations of a share of so many, and two points."""
    return 0.02 + 3 * math.sqrt(max(share * (1 - share), 1e-4) / max(count, 1))


class TestFilters(Experiment):
    """What the rules drop of prose and of planted rubbish"""

    name = "filters"
    rests_on = ("quality",)

    @check(points=2, title="each planted kind is dropped by its own rule, prose is not")
    def test_kinds(self, table):
        rows = by(table, "kind")
        prose_row = found(rows, "prose")
        expect.that(
            prose_row["dropped"] <= 0.05 * prose_row["pages"],
            f"of {prose_row['pages']} pages of prose {prose_row['dropped']} were dropped",
        )
        own = {
            "menu": "mostly_bullets", "teasers": "too_many_ellipses", "numbers": "words_without_letters",
            "keywords": "no_stop_words", "addresses": "unusual_word_length", "stub": "too_few_words",
        }  # fmt: skip
        for kind, rule in own.items():
            row = found(rows, kind)
            expect.that(
                row["dropped"] >= 0.95 * row["pages"] and row["reason"] == rule,
                f"{kind}: {row['dropped']} of {row['pages']} dropped, mostly for {row['reason']}: expected {rule}",
            )

    @check(points=2, title="no rule sees that words are shuffled; the classifier does")
    def test_salad(self, table):
        row = found(by(table, "kind"), "shuffled")
        expect.that(
            row["dropped"] <= 0.1 * row["pages"],
            f"{row['dropped']} of {row['pages']} shuffled pages dropped: the rules count words, and have the same to count",
        )
        expect.that(
            row["classifier"] >= 0.9 and found(by(table, "kind"), "prose")["classifier"] <= 0.1,
            f"the classifier drops {row['classifier']:.2f} of the shuffled pages and {by(table, 'kind')['prose']['classifier']:.2f} of prose",
        )


class TestDuplicates(Experiment):
    """Planted duplicates against the S-curve"""

    name = "duplicates"
    rests_on = ("minhash", "candidate_pairs")

    @check(points=3, title="found as often as the S-curve says, at every split and edit")
    def test_curve(self, table):
        rows = by(table, "rows", "edited")
        for r, bands in ((2, 64), (4, 32), (8, 16), (16, 8)):
            for edited in (0, 5, 15, 30):
                row = found(rows, (r, edited))
                told = f"{bands} bands of {r} rows, {edited}% of the words replaced"
                expect.that(row["bands"] == bands, f"{told}: the table says {row['bands']} bands")
                expect.that(
                    abs(row["found"] - row["predicted"]) <= noise(row["predicted"], row["pairs"]),
                    f"{told}: {row['found']:.3f} of {row['pairs']} pairs found, the S-curve says {row['predicted']:.3f}",
                )

    @check(
        points=1, title="similarity falls with the edits, and exact hashing finds exact copies only"
    )
    def test_similarity(self, table):
        rows = by(table, "rows", "edited")
        means = [found(rows, (4, edited))["similarity"] for edited in (0, 5, 15, 30)]
        expect.that(means[0] == 1, f"copies have similarity {means[0]}")
        for edited, mean in zip((5, 15, 30), means[1:]):
            kept = (1 - edited / 100) ** 5
            want = kept / (2 - kept)
            expect.that(
                abs(mean - want) < 0.04,
                f"{edited}% replaced: mean similarity {mean:.3f}; of shingles of 5 words {want:.3f} is expected",
            )
        exact = [found(rows, (4, edited))["exact"] for edited in (0, 5, 15, 30)]
        expect.that(exact == [1, 0, 0, 0], f"exact hashing found {exact} of copies with 0, 5, 15, 30% replaced")  # fmt: skip


class TestGroups(Experiment):
    """Recall and precision of whole groups"""

    name = "groups"
    rests_on = ("minhash", "candidate_pairs", "clusters")

    @check(points=2, title="more rows: fewer copies are found, and fewer strangers are joined")
    def test_trade(self, table):
        rows = by(table, "rows")
        two, four, eight = (found(rows, r) for r in (2, 4, 8))
        told = ", ".join(
            f"{r['rows']} rows: recall {r['recall']:.3f}, precision {r['precision']:.3f}"
            for r in (two, four, eight)
        )
        expect.that(two["recall"] >= four["recall"] > eight["recall"] >= 0.5, told)
        expect.that(two["precision"] < 0.5 < four["precision"] and eight["precision"] > 0.99, told)
        expect.that(two["kept"] < four["kept"] < eight["kept"] <= eight["texts"], told)


class TestPassages(Experiment):
    """A passage planted in pages that are otherwise unlike"""

    name = "passages"
    rests_on = ("suffix_array",)

    @check(points=3, title="MinHash sees next to none of it, the suffix array finds every copy")
    def test_found(self, table):
        rows = by(table, "method")
        near, suffix = found(rows, "MinHash"), found(rows, "suffix array")
        expect.that(
            near["pages_found"] <= 0.15 * near["pages_planted"],
            f"MinHash joined {near['pages_found']} pages that share only a passage",
        )
        expect.that(
            suffix["pages_found"] == suffix["pages_planted"] - 1,
            f"the passage was cut in {suffix['pages_found']} of {suffix['pages_planted']} pages: expected in all but the first",
        )
        expect.that(
            suffix["signs_cut"] >= suffix["signs_planted"] * (1 - 1 / suffix["pages_planted"]) - 1,
            f"{suffix['signs_cut']} signs were cut of {suffix['signs_planted']} planted",
        )


class TestMixture(Experiment):
    """Weights by temperature, and what is drawn by them"""

    name = "mixture"
    rests_on = ("mixture_weights",)

    @check(points=2, title="drawn as often as the weights say; nothing read more than four times")
    def test_drawn(self, table):
        expect.that(len(table) >= 9, f"{len(table)} rows: three sources at three temperatures")
        for row in table:
            told = f"temperature {row['temperature']:g}, {row['source']}"
            spread = 4 * math.sqrt(row["weight"] * (1 - row["weight"]) / row["samples"]) + 1e-3
            expect.that(
                abs(row["drawn"] - row["weight"]) < spread,
                f"{told}: weight {row['weight']:.4f}, drawn {row['drawn']:.4f} of {row['samples']:,} samples",
            )
            expect.that(row["passes"] <= 4.001, f"{told}: {row['passes']:.2f} passes")
        small = [row["weight"] for row in table if row["source"] == "small"]
        expect.that(
            small == sorted(small) and small[-1] > small[0],
            f"the small source's weights are {small}: they rise with the temperature, up to its cap",
        )


class TestMemorised(Experiment):
    """One budget of steps, with and without the copies"""

    name = "memorised"
    rests_on = ("minhash", "candidate_pairs", "clusters")

    @check(
        points=2, title="without copies the model ends nearer to the floor, on stories it never saw"
    )
    def test_held_out(self, table):
        rows = by(table, "corpus", "copies")
        dirty, clean = (found(rows, (name, 0))["above"] for name in ("as it was", "cleaned"))
        expect.that(
            clean < dirty - 0.01,
            f"held-out loss above the floor: {dirty:.3f} with copies, {clean:.3f} without",
        )

    @check(
        points=3,
        title="stories with many copies fall below their own floor, and once each they do not",
    )
    def test_below(self, table):
        rows = by(table, "corpus", "copies")
        counts = sorted({row["copies"] for row in table if row["copies"]})
        expect.that(len(counts) >= 6, f"{counts}: six numbers of copies or more")
        dirty = [found(rows, ("as it was", n))["above"] for n in counts]
        clean = [found(rows, ("cleaned", n))["above"] for n in counts]
        expect.that(
            dirty[-1] < 0 < dirty[0],
            f"above their floor, with 1 to {counts[-1]} copies: {', '.join(f'{x:.2f}' for x in dirty)}. No model can beat "
            "the floor but by heart",
        )
        expect.that(
            min(clean) > -0.1 and dirty[-1] < min(clean) - 0.3,
            f"cleaned, the same stories: {', '.join(f'{x:.2f}' for x in clean)}: every one once, none by heart",
        )


class TestContamination(Experiment):
    """A test set of which half had leaked"""

    name = "contamination"
    rests_on = ("clusters", "memorised")

    @check(points=2, title="the leaked half flatters the model that read it, and no other")
    def test_flattered(self, table):
        rows = by(table, "corpus")
        dirty, clean = found(rows, "as it was"), found(rows, "cleaned")
        expect.that(
            dirty["leaked"] < dirty["fresh"] - 0.02,
            f"as it was: leaked half {dirty['leaked']:.3f}, fresh half {dirty['fresh']:.3f} above the floor",
        )
        gap = clean["fresh"] - clean["leaked"]
        expect.that(
            abs(gap) < 0.6 * (dirty["fresh"] - dirty["leaked"]),
            f"cleaned: the halves differ by {gap:.3f}, as it was by {dirty['fresh'] - dirty['leaked']:.3f}",
        )

    @check(points=1, title="13 words in a row find every leaked story")
    def test_found(self, table):
        row = found(by(table, "corpus"), "as it was")
        expect.that(
            row["missed"] == 0, f"{row['missed']} of {row['planted']} leaked stories were missed"
        )


class TestLoader(Experiment):
    """Tokens a second: what the loader gives, what the model eats"""

    name = "loader"
    rests_on = ("Stream",)

    @check(points=2, title="rows that are packed beforehand outrun the model many times")
    def test_appetite(self, table):
        rows = {row["source"]: row["tokens_per_second"] for row in table}
        for name in ("text, at each step", "packed rows", "token files", "the model"):
            expect.that(name in rows and rows[name] > 0, f"there is no row '{name}'")
        expect.that(
            rows["packed rows"] > 2 * rows["the model"],
            f"packed rows {rows['packed rows']:,.0f} tokens/s, the model eats {rows['the model']:,.0f}",
        )


# --- questions


class TestSplit(Question):
    """Bands and rows for pages of which 5% was replaced"""

    name = "split"
    rests_on = ("duplicates",)

    @check(points=5, title="the most rows a band that still find 95% of them")
    def test_value(self, value, records):
        rows = expect.recorded(records, "duplicates")
        five = {row["rows"]: row["found"] for row in rows if row["edited"] == 5}
        enough = [r for r, share in five.items() if share >= 0.95]
        expect.that(enough, "no split of your table finds 95% of them")
        words = ""
        if value in enough:
            words = (
                ": that finds enough, and so does one with more rows, which joins fewer strangers"
            )
        elif value in five:
            words = f": that finds {five[value]:.2f} of them"
        elif value in {row["bands"] for row in rows}:
            words = ": that is a number of bands: rows are asked for"
        expect.that(value == max(enough), f"got {value}{words or ': the answer is one of ' + str(sorted(five))}")  # fmt: skip


class TestByHeart(Question):
    """From how many copies on"""

    name = "by_heart"
    rests_on = ("memorised",)

    @check(points=5, title="the smallest number of copies whose stories fall below their floor")
    def test_value(self, value, records):
        rows = expect.recorded(records, "memorised")
        own = {
            row["copies"]: row["above"]
            for row in rows
            if row["corpus"] == "as it was" and row["copies"]
        }
        below = [copies for copies, above in own.items() if above < 0]
        expect.that(below, "no number of copies in your table falls below the floor")
        words = ": the answer is a number of copies in the table"
        if value in below:
            words = ": those are below, and so are some with fewer copies"
        elif value in own:
            words = ": those are still above their floor"
        expect.that(value == min(below), f"got {expect.show(value)}{words}")


class TestFlattered(Question):
    """What the leak is worth"""

    name = "flattered"
    rests_on = ("contamination",)

    @check(points=5, title="by how many nats the whole test set reads better than its fresh half")
    def test_value(self, value, records):
        rows = by(expect.recorded(records, "contamination"), "corpus")
        row = found(rows, "as it was")
        fresh, leaked = row["fresh"], row["leaked"]
        want = (fresh - leaked) / 2
        tol = 0.005 + 0.02 * abs(want)
        words = "the whole set's loss is the mean of its two halves"
        if isinstance(value, (int, float)) and abs(value - 2 * want) <= tol:
            words = "that is the difference of the halves: the whole set is half leaked, half fresh"
        elif (
            isinstance(value, (int, float))
            and abs(value - (fresh - found(rows, "cleaned")["fresh"])) <= tol
        ):
            words = (
                "that is how much worse it is than the other model on the fresh half. Asked is, of the model that read the corpus as it "
                "was alone: fresh half minus whole"
            )
        elif isinstance(value, (int, float)) and abs(value + want) <= tol:
            words = "the sign: by how much is it *lower* than on the fresh half"
        expect.that(
            isinstance(value, (int, float)) and abs(value - want) <= tol, f"got {expect.show(value)}: {words}"
        )  # fmt: skip
