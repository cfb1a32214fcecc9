"""The checks of lab e11: raw text to a stream of rows, graded by what each step decides."""

from __future__ import annotations

import math
import random
from functools import partial
from itertools import chain, pairwise
from itertools import permutations as permutations_of

import numpy as np
import torch

from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import cause, variant
from minitrain.words import plural

from .probes import e11_data_pipeline as probes

LAB = "e11_data_pipeline"
SIZES = {
    "cpu": {
        "pages": 400, "planted": 300, "corpus": 250_000, "tested": 25_000, "width": 64, "steps": 160,
        "batch": 16,
    },
    "test": {
        "pages": 120, "planted": 100, "corpus": 60_000, "tested": 8_000, "width": 64, "steps": 80,
        "batch": 8,
    },
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
QUADRATIC = 9  # of four times as much: 4 x the steps is linear, 16 x is every pair


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


def held_at_once(got):
    """The peak of a call; an untouched meter is the condition."""
    expect.that(
        got["metered"], "held at once: not known, since the meter of Python's memory was touched"
    )
    return got["peak"]


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

    def compare(self, submission, cases):
        """cases: (text, expected, what it is, words by what came instead)."""
        zero = "a page without a word has too few: ask that before you divide"
        with expect.because({"ZeroDivisionError": zero}):
            got = submission.run(probes.in_a_row, [(text,) for text, *_ in cases])
        for (_, want, what, words), call in zip(cases, got):
            found = call["out"]
            hint = words.get(found, words.get(None)) if isinstance(found, str) else None
            if found is None and want == "":
                hint = "a page that passes all rules gives the empty text, not None"
            expect.equal(
                found, want, what=f"a page with {what}", hints=[(found, hint)] if hint else []
            )

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
        self.compare(submission, self.plain())

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
        ])  # fmt: skip

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
            (bullets, RULES[2], "bullets, and all lines broken off", {None: order}),
        ])  # fmt: skip

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
        ])  # fmt: skip


# --- 2: MinHash


def permutations(count):
    """a odd, b, (K,) uint32 each."""
    a = np.random.randint(0, 2**31, count).astype(np.uint32) * np.uint32(2) + np.uint32(1)
    return a, np.random.randint(0, 2**32, count, dtype=np.uint64).astype(np.uint32)


def drawn_hashes(sizes):
    """hashes (S,) uint32 and bounds (N + 1,) of documents with so many shingles."""
    hashes = np.random.randint(0, 2**32, sum(sizes), dtype=np.uint64).astype(np.uint32)
    return hashes, np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


MINIMA = "np.minimum.reduceat(values, bounds[filled])"
HASHED = "values = hashes * a[k] + b[k]"
AFTER = "the smallest was taken of numbers of 64 bits, and cut to 32 bits after it: first mod 2^32 (uint32 does), and then the smallest"
SIGNATURES = [
    ((f"signatures[k, filled] = {MINIMA}", "signatures[k] = np.minimum.reduceat(np.append(values, np.uint32(2**32 - 1)), bounds[:-1])"),
     "wrong are documents without shingles, where 2^32 - 1 belongs: `np.minimum.reduceat` gives such a document its neighbour's value"),
    ((MINIMA, MINIMA.replace("minimum", "maximum")), "those are the largest values"),
    ((HASHED, "values = hashes * b[k] + a[k]"), "a and b are exchanged: h = a x + b"),
    ((HASHED, "values = hashes * a[k]"), "b is not added"),
    ((f"signatures[k, filled] = {MINIMA}", "own = [np.unique(hashes[bounds[n] : bounds[n + 1]] * a[0] + b[0]) for n in filled]\n"
      "            signatures[k, filled] = [one[k] if k < len(one) else 2**32 - 1 for one in own]"),
     "those are the smallest values of one hash function: each of the K has its own"),
    ((HASHED, "values = hashes.astype(np.uint64) * np.uint64(a[k]) + np.uint64(b[k])"), AFTER),
    ((HASHED, "values = hashes.astype(np.int64) * np.int64(a[k]) + np.int64(b[k])"), AFTER),
    ((MINIMA, "np.minimum.reduceat(values, np.minimum(bounds[:-1], len(hashes) - 1))[filled]"),
     "where the last documents have no shingle, the one before them has lost its last: a start behind the end was moved onto it. "
     "Give `reduceat` the starts of documents that have shingles, and no others"),
    ((MINIMA, "[hashes[bounds[n] + values[bounds[n] : bounds[n + 1]].argmin()] for n in filled]"),
     "those are the shingles' own hashes: expected is the value of the function, a x + b mod 2^32, which is smallest"),
]  # fmt: skip


class TestMinhash(Exercise):
    """MinHash signatures"""

    name = "minhash"
    reference = "minitrain.data.plain:minhash"
    hidden = HIDDEN

    def are_right(self, results, cases):
        """Of several calls."""
        of_all = lambda f: [probes.plain(f(*case)) for case in cases]  # noqa: E731
        words = cause(
            [{**probes.plain(np.zeros(0)), **got} if isinstance(got, dict) else got for got in results],
            self.reference, SIGNATURES, of_all,
        )  # fmt: skip
        for result, want, (_, bounds, a, _) in zip(results, of_all(variant(self.reference)), cases):
            told = f"{len(bounds) - 1} documents of {np.diff(bounds).tolist()[:8]} shingles, {len(a)} hashes"
            got = array_of(result, f"{told}: the signatures")
            shape = (
                f"{told}: a row a document, a column a hash function: the shape of the signatures"
            )
            expect.equal(result["shape"], want["shape"], what=shape)
            what = f"{told}: signatures"
            expect.equal(got, want["values"], what=what, hints=[(got, words)] if words else [])
            words_of_type = f"signatures of {result['dtype']}, expected uint32"
            expect.that(result["dtype"] == "uint32", words_of_type)

    def compare(self, submission, cases):
        got = submission.run(probes.in_a_row, cases)
        self.are_right([call["out"] for call in got], cases)
        left_alone(got, cases, ["hashes", "bounds", "a", "b"])

    @check(points=1, title="of each hash function the smallest value over the document's shingles")
    def test_values(self, submission):
        shapes = [([5, 9, 4], 7), ([12], 16), ([1, 1, 30, 2], 3), ([6] * 9, 1)]
        self.compare(submission, [(*drawn_hashes(s), *permutations(k)) for s, k in shapes])

    @check(points=1, title="documents without shingles, first, in the middle, last, and alone")
    def test_empty(self, submission):
        shapes = [([0, 4, 3], 5), ([4, 0, 0, 3], 6), ([5, 2, 0], 4), ([0], 3), ([0, 0, 6, 0], 2)]
        words = "bounds[i] of a last empty document lies behind the end: leave such documents out, they have 2^32 - 1"
        with expect.because({"index": words}):
            self.compare(submission, [(*drawn_hashes(s), *permutations(k)) for s, k in shapes])

    @check(points=6, title="K passes over the shingles: no array of K times S numbers is held")
    def test_memory(self, submission):
        sizes = [random.randint(100, 500) for _ in range(200)]
        case = (*drawn_hashes(sizes), *permutations(64))
        (got,) = submission.run(probes.peak_of, [case])
        self.are_right([got["out"]], [case])
        count = sum(sizes)
        expect.that(
            held_at_once(got) < 64 * count * 4 / 3,
            f"{got['peak'] / 1e6:.1f} MB were held at once for {count:,} shingles of 4 bytes and 64 hash functions: "
            f"all values of all functions are {64 * count * 4 / 1e6:.1f} MB. Go through the functions one by one, and "
            "keep of each the smallest values",
        )


# --- 3: bands


KEY = "signatures[j, band * rows : (band + 1) * rows]"
FIRST = "i = first.setdefault(key, j)"
FILLED = "np.flatnonzero((signatures != 2**32 - 1).any(axis=1)).tolist()"
PAIRS = [
    ((KEY, "signatures[j, band::bands]"), "those are pairs of every n-th hash; the hashes of a band lie side by side"),
    ((FIRST, "i = first.get(key) or j\n            first[key] = i"), "of all buckets only those that document 0 opened are wrong: 0 is a document's number, and no empty bucket; Python takes it for False"),
    (("if i != j:", "if True:"), "a document does not meet itself"),
    ((FILLED, "range(len(signatures))"), "one has no shingle (2^32 - 1 in every place): it is like no other"),
    ((FILLED, FILLED.replace("any(", "all(")), "2^32 - 1 in a band is a value like another: a document without shingles has it in *every* place"),
    (("pairs = set()", "pairs, first = set(), {}", "        first: dict[bytes, int] = {}", "        pass"), "what agrees is one band of the first and *another* band of the second: each band has buckets of its own"),
    (("in range(bands)", "in range(signatures.shape[1] // rows)"), "they agree only in hashes that none of the bands has: more places may be there than `bands` times `rows`"),
    ((KEY, "signatures[j, band * rows : band * rows + 1]"), "they agree in single hashes, and in no whole band"),
    ((f"{FIRST}\n            if i != j:\n                pairs.add((i, j))", "pairs.update((i, j) for i in first.setdefault(key, []))\n            first[key].append(j)"),
     "some are of two documents of a bucket, neither of which is its first. Pair each with the *first* of its bucket: the union is the same"),
]  # fmt: skip


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

    def are_right(self, results, cases, once=False):
        """once: no pair comes twice."""
        found = []
        for result in results:
            result = result["values"] if isinstance(result, dict) and "values" in result else result
            is_list = isinstance(result, (list, tuple))
            good = is_list and all(isinstance(p, (list, tuple)) and len(p) == 2 for p in result)
            good = good and all(isinstance(x, int) for p in result for x in p)
            words = f"got {expect.show(result)}: return pairs (i, j), i < j, of documents' numbers"
            expect.that(good, words)
            found.append([tuple(p) for p in result])
        of_all = lambda f: [sorted(set(f(*case))) for case in cases]  # noqa: E731
        words = cause([sorted(set(p)) for p in found], self.reference, PAIRS, of_all)
        for pairs, want, (signatures, bands, rows) in zip(found, of_all(variant(self.reference)), cases):  # fmt: skip
            told = f"{len(signatures):,} documents, {bands} bands of {rows} rows: pairs"
            hints = [(sorted(set(pairs)), words)] if words else []
            expect.equal(sorted(set(pairs)), want, what=told, hints=hints)
            told = f"{told} {pairs}: a pair that meets in two bands comes once"
            expect.that(not once or len(set(pairs)) == len(pairs), told)
        return found

    def compare(self, submission, cases, once=False):
        got = submission.run(probes.in_a_row, cases)
        self.are_right([call["out"] for call in got], cases, once)
        left_alone(got, cases, ["signatures"])

    @check(points=1, title="two documents meet where a whole band agrees, and only there")
    def test_bands(self, submission):
        cases = []
        # of the second one more band would fit in, and of the last
        for count, bands, rows, over in ((9, 4, 3, 0), (12, 3, 5, 9), (8, 6, 1, 0), (7, 1, 4, 4)):
            s = self.draw(count, bands, rows, over)
            self.same(s, 1, 4, random.randrange(bands), rows)
            self.same(s, 4, 6, random.randrange(bands), rows)
            for band in range(bands if rows > 1 else 0):  # all but the last of each band
                own = slice(band * rows, (band + 1) * rows - 1)
                s[3, own] = s[2, own]
            if bands > 1:  # band 0 of one is band 1 of the other
                s[5, rows : 2 * rows] = s[0, :rows]
            if over:
                s[2, -over:] = s[0, -over:]
            cases.append((s, bands, rows))
        first = self.draw(5, 3, 2)  # document 0 is a first like any other
        for band, others in enumerate(([2, 3], [4], [])):
            for other in others:
                self.same(first, 0, other, band, 2)
        expect.in_a_row(partial(self.compare, submission), [*cases, (first, 3, 2)])

    @check(points=1, title="documents without shingles meet nobody, and no pair comes twice")
    def test_empty(self, submission):
        s = self.draw(10, 3, 4)
        s[[1, 4, 8]] = EMPTY
        self.same(s, 0, 5, 0, 4)
        self.same(s, 0, 5, 2, 4)
        part = self.draw(6, 2, 3)  # one band of 2^32 - 1 is a band like another
        part[2, :3] = part[5, :3] = EMPTY
        cases = [(s, 3, 4), (part, 2, 3), (self.draw(5, 2, 2), 2, 2), (self.draw(1, 2, 2), 2, 2)]
        self.compare(submission, cases, once=True)

    @check(
        points=6, title="no two documents are compared: buckets, and n - 1 pairs for a heap of n"
    )
    def test_cost(self, submission):
        heap = self.draw(300, 2, 4)
        heap[20:220] = heap[20]
        calls = [(heap, 2, 4)]
        for count in (200, 800):
            s = self.draw(count, 8, 4)
            s[1::50] = s[::50]
            calls.append((s, 8, 4))
        words = "as where every document is compared with every other: put each band of each document into a bucket (a dict), once"
        with expect.because({("timeout", "memory"): words}):
            got = submission.run(probes.cost_of, calls, timeout=20)
        self.are_right([call["out"] for call in got], calls)
        _, small, large = (call["steps"] for call in got)
        told = f"200 documents took {small:,} steps, four times as many {large:,}, {words}"
        expect.that(large < QUADRATIC * small, told)


# --- 4: clusters


ROOTS = "return [root(node) for node in range(count)]"
JOINED = "low, high = sorted((root(i), root(j)))"
UNIONS = [
    (("parent[high] = low", "parent[low] = high"), "the groups are right, but each is named by its *first* document, the lowest number"),
    ((ROOTS, "return parent"), "that is a step on the way to the first, and not yet the first itself: go on to the root of each"),
    *(((JOINED, own, ROOTS, out), "a ~ b and b ~ c make one cluster, though a and c never met. Join the *roots* of both, not the documents")
      for own in ("low, high = sorted((i, j))", "low, high = sorted((i, j))\n        low = min(low, parent[high])") for out in (ROOTS, "return parent")),
]  # fmt: skip


class TestClusters(Exercise):
    """The union of pairs"""

    name = "clusters"
    reference = "minitrain.data.plain:clusters"
    hidden = HIDDEN

    def compare(self, submission, cases):
        chain = "a chain is longer than Python's stack: follow parents in a loop"
        hint = {
            ("recursion", "RecursionError"): chain,
            ("timeout", "memory"): "a long chain takes too long: each pair joins two roots, and the way to a root is cut short as it is walked",
            ("networkx", "scipy"): "ready-made unions are not the exercise",
        }  # fmt: skip
        with expect.because(hint):
            got = submission.run(probes.as_union, cases, timeout=20)
        words = f"{got['ready'][:1]} was imported: ready-made unions are not here"
        expect.that(not got["ready"], words)
        outs = []
        for call in got["calls"]:
            out = call["out"]
            outs.append(out["values"] if isinstance(out, dict) and "values" in out else out)
        of_all = lambda f: [f(*case) for case in cases]  # noqa: E731
        words = cause(outs, self.reference, UNIONS, of_all)
        words = words or "two clusters that a later pair joins become one, as wholes"
        for call, out, want, (pairs, count) in zip(got["calls"], outs, of_all(variant(self.reference)), cases):  # fmt: skip
            told = f"pairs {pairs if len(pairs) < 9 else f'({len(pairs):,} of them)'} of {count:,} documents"
            times = call["begun"]
            again = f"the pairs were gone through {times} times, and come once, as from a file"
            hints = [(out, again if times > 1 else words)]
            expect.equal(out, want, what=f"firsts, {told}", hints=hints)
        return [call["steps"] for call in got["calls"]]

    def drawn(self, count, edges):
        return [tuple(random.sample(range(count), 2)) for _ in range(edges)]

    @check(points=1, title="a ~ b and b ~ c make one cluster, named by its first document")
    def test_groups(self, submission):
        small = [([(0, 3), (3, 7), (2, 5)], 8), ([(2, 3), (0, 1), (1, 2)], 5)]
        drawn = [(self.drawn(n, e), n) for n, e in ((12, 7), (30, 20), (30, 45), (9, 3))]
        self.compare(submission, [*small, ([(1, 4), (4, 5), (0, 5)], 6), *drawn])

    @check(points=1, title="pairs in any order, turned, repeated, of one document, or none")
    def test_order(self, submission):
        pairs = [(5, 2), (2, 5), (4, 4), (7, 5), (1, 0), (5, 2)]
        shuffled = random.sample(pairs, len(pairs))
        self.compare(submission, [(pairs, 8), (shuffled, 8), ([], 4), ([], 0), ([(0, 0)], 1)])

    @check(points=5, title="each pair is read once, and long chains cost no more than short ones")
    def test_chains(self, submission):
        def backward(n):
            return [*((i, i + 1) for i in reversed(range(n - 1))), (0, n - 1)]

        forward = [(i, i + 1) for i in range(2500)]
        twos = [(i, i + half) for half in (1, 2, 4, 8, 16) for i in range(0, 64, 2 * half)]
        cases = [
            (backward(150), 150),
            (backward(600), 600),
            (backward(2500), 2500),
            (forward, 2501),
        ]
        small, large, *_ = self.compare(submission, [*cases, (random.sample(twos, len(twos)), 64)])
        expect.that(
            large < QUADRATIC * small,
            f"a chain of 150 took {small:,} steps, one of 600 {large:,}, so that a pair or a document "
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
ROUNDS = (
    "each round sorts by twice as many symbols as the one before: 2, 4, 8, …, so that 12 are enough"
)
WHILE = "while n and rank.max() < n - 1:"
BOUNDED = "while n and rank.max() < n - 1 and step < 4 * n:"
SUFFIXES = [
    (("return order", "return np.argsort(order)"), "those are the ranks of the suffixes, the inverse: expected is where the suffixes begin, in order"),
    (("return order", "return order[::-1]"), "that is the order from the largest to the smallest"),
    *(((WHILE, WHILE.replace(":", f" and step < {k}:")), f"that is the order of the first {k} symbols. Go on doubling until no two ranks are equal") for k in (1, 2, 4, 8, 16)),
    ((WHILE, WHILE.replace(":", " and 4 * step <= 2 * n:")), "the last round is missing: n symbols need ⌈log2 n⌉ rounds, rounded up, unless no two ranks are equal before"),
    ((WHILE, BOUNDED, "np.zeros(n, np.int64)", "np.full(n, n + 1, np.int64)", "(n + 1)", "(n + 2)"), "a suffix that ends sorts *before* a longer one that begins with it"),
    ((WHILE, BOUNDED, "rank[step:] + 1", "rank[step:]"), "behind the end lies nothing, which sorts before every symbol, 0 too"),
]  # fmt: skip


class TestSuffixArray(Exercise):
    """All suffixes in order"""

    name = "suffix_array"
    reference = "minitrain.data.plain:suffix_array"
    hidden = HIDDEN

    def are_right(self, results, texts):
        """Of several calls."""
        gots = []
        for result, text in zip(results, texts):
            got = array_of(result, what=f"the suffix array of {len(text):,} symbols")
            words = f"places are integers, got {result['dtype']}"
            expect.that(result["dtype"].startswith("int") or not len(text), words)
            gots.append(got)
        of_all = lambda f: [f(text).tolist() for text in texts]  # noqa: E731
        wants = of_all(variant(self.reference))
        failed = [text for got, want, text in zip(gots, wants, texts) if got != want]
        words = cause(gots, self.reference, SUFFIXES, of_all) or expect.first(
            [
                (all(max(text) > len(text) for text in failed), "the symbols go up to more than n: if a pair of ranks is one number, as in rank · (n + 1) + next, ranks must be below n. Number the symbols without gaps first"),
                (all(len(set(text.tolist())) == len(text) for text in failed), "wrong are only texts whose symbols all differ: of a pair of ranks the second goes from 0, the end, to n, so multiply the first by n + 1"),
            ]
        )  # fmt: skip
        for got, want, text in zip(gots, wants, texts):
            told = f"suffixes of {text.tolist() if len(text) < 13 else f'{len(text):,} symbols'}"
            expect.equal(got, want, what=told, hints=[(got, words)] if words else [])

    def compare(self, submission, texts):
        calls = [(text,) for text in texts]
        empty = "a text of no symbol has the empty suffix array"
        with expect.because({"timeout": ENDLESS, ("zero-size", "out of bounds", "empty"): empty}):
            got = submission.run(probes.in_a_row, calls, timeout=5)
        self.are_right([call["out"] for call in got], texts)
        left_alone(got, calls, ["symbols"])

    @check(points=1, title="equals the sorted suffixes, of few symbols and of many")
    def test_sorted(self, submission):
        sizes = [(6, 3), (40, 2), (200, 4), (90, 50_000), (300, 2)]
        texts = [np.random.randint(0, k, n) for n, k in sizes]
        short = [np.array(text) for n in (2, 3, 4) for text in permutations_of(range(n))]
        word = np.frombuffer(b"mississippi", np.uint8)
        self.compare(submission, [word, *texts, *short])

    @check(points=1, title="nothing, one symbol, all equal, a period, symbol 0 at the end")
    def test_edges(self, submission):
        period = np.tile(np.random.randint(0, 3, 5), 9)[: random.randint(31, 44)]
        zeros = np.concatenate((np.random.randint(0, 2, 12), np.zeros(random.randint(2, 6), int)))
        texts = [np.zeros(0, np.int64), np.array([7]), np.full(33, 4), period, zeros]
        self.compare(submission, texts)

    @check(points=6, title="long repeats cost a few rounds more, and no suffix is written out")
    def test_long(self, submission):
        texts = [np.full(1000, 3), np.full(4000, 3), np.tile(np.random.randint(0, 9, 500), 8)]
        words = f"as where suffixes are compared as a whole: {ROUNDS}"
        with expect.because({"timeout": ENDLESS}):
            submission.run(probes.cost_of, [(np.full(33, 3),)], timeout=5)
        with expect.because({("timeout", "memory"): words}):
            got = submission.run(probes.cost_of, [(text,) for text in texts], timeout=20)
            (held,) = submission.run(probes.peak_of, [(texts[1],)], timeout=20)
        self.are_right([call["out"] for call in got], texts)
        expect.that(
            held_at_once(held) < 600 * 4000 + 2**20,
            f"{held['peak'] / 1e6:.0f} MB were held at once for 4,000 symbols: suffixes were written out, n of up to "
            f"n symbols. Hold a rank for each, {ROUNDS}",
        )
        small, large, _ = (call["steps"] for call in got)
        told = f"1,000 equal symbols took {small:,} steps, 4,000 {large:,}: {ROUNDS}"
        expect.that(large < QUADRATIC * small, told)


# --- 6: the mixture


SHARED = "** (1 / temperature)"
LEFT = "for i in over:"
CLIPPED = "[min(w, most_passes * s / budget) for w, s in zip(weights, sizes)]"
MIXTURES = [
    (("if not over:", "if True:"), "a source is read more than most_passes times: its weight is at most most_passes · size / budget"),
    (("if not over:", f"weights = {CLIPPED}\n        if True:"), "those do not sum to 1: what a capped source gives up goes to the others"),
    (("if not over:", f"clipped = {CLIPPED}\n        weights = [w / sum(clipped) for w in clipped]\n        if True:"), "clipped, and then all divided by their sum: that lifts the capped ones above their cap again. Share among the others only"),
    (("* budget > most_passes * sizes[i]", "* budget // sizes[i] > most_passes"), "a source may be read not even a part of a pass more than most_passes times: its weight is at most most_passes · size / budget"),
    ((LEFT, f"left = 1.0\n        {LEFT}"), "what is left for the others is 1 less the weights of *all* that are capped, those of earlier rounds too"),
    ((SHARED, "** (1 / temperature if len(free) == len(sizes) else 1)"), "once a source is capped the others are shared by size there: they keep their size^(1/T)"),
    (("free -= over", "free -= over\n        for i in free:\n            weights[i] = left * tempered[i] / sum(tempered[i] for i in free)\n        break"), "what the capped sources gave up has lifted another one above *its* cap: look again until none is"),
    ((SHARED, "** min(temperature, 1e9)"), "that is size^T: the exponent is 1 / T, so that a high temperature makes sources alike"),
    ((SHARED, "** 1"), "that is proportional to the sizes: the temperature is not used"),
]  # fmt: skip
POWERS = "powers of large sizes overflow, and of numbers below 1 are rounded to 0: divide the sizes by the largest first, of those that are free, each time that you share out"


class TestMixtureWeights(Exercise):
    """Weights of several sources"""

    name = "mixture_weights"
    reference = "minitrain.data.plain:mixture_weights"
    hidden = HIDDEN

    def compare(self, submission, cases):
        with expect.because({("OverflowError", "ZeroDivisionError"): POWERS}):
            got = submission.run(probes.in_a_row, cases)
        outs = []
        for call in got:
            out = call["out"]
            out = out["values"] if isinstance(out, dict) and "values" in out else out
            out = out.tolist() if isinstance(out, torch.Tensor) else out
            good = isinstance(out, (list, tuple)) and all(isinstance(w, (int, float)) for w in out)
            expect.that(good, f"got {expect.show(out)}, expected a list of weights")
            words = f"weights {expect.show(out)}: some are no finite numbers: {POWERS}"
            expect.that(all(map(math.isfinite, out)), words)
            outs.append(torch.tensor(out, dtype=torch.float64))
        of_all = lambda f: [torch.tensor(f(*case), dtype=torch.float64) for case in cases]  # noqa: E731
        words = cause(outs, self.reference, MIXTURES, of_all, 1e-9)
        for out, want, case in zip(outs, of_all(variant(self.reference)), cases):
            sizes, temperature, budget, *most = case
            told = f"weights of sizes {sizes}, temperature {temperature:g}, {budget:.3g} tokens, at most {(*most, 4.0)[0]:g} passes"
            expect.equal(out, want, tol=1e-9, what=told, hints=[(out, words)] if words else [])
        left_alone(got, cases, ["sizes"])

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
        cases += [(huge, 0.04, 10**6), ([7], 2.0, 3), (tiny, 0.015, 40_000_015_000_000)]
        self.compare(submission, [*cases, (alike, 0.001, 10**6)])

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
        self.compare(submission, cases)

    @check(
        points=1, title="a budget of exactly so many passes is met, a larger one is a ValueError"
    )
    def test_budget(self, submission):
        sizes = [random.randint(2, 9) for _ in range(3)]
        over = [(sizes, 2.0, 4 * sum(sizes) + 1), (sizes, 1.0, 2 * sum(sizes) + 1, 2.0)]
        exact = [(sizes, 3.0, 4 * sum(sizes)), (sizes, 1.0, sum(sizes), 1.0)]
        for call, got in zip([*over, *exact], submission.run(probes.refused, [*over, *exact])):
            refused = got["error"] == "ValueError"
            expect.that(
                refused == (call in over),
                f"{call[2]:g} tokens of sources of {sizes}, at most {(*call, 4)[3]:g} passes: {got['error'] or expect.show(got['out'])}. "
                "What no weights can keep to: raise a ValueError that says so; only a larger budget is refused, not "
                "one of exactly so many passes",
            )
        self.compare(submission, exact)


# --- 7: packing


OUT = "return tokens, targets, positions, mask"
TAIL = "torch.full((len(rows), 1), -100)"
TRIL = "torch.ones(size, size).tril().bool()"
ASKED = "torch.tensor([*document, end])"
ITSELF = "those are the tokens themselves: the target of a place is the *next* token"
LAYOUTS = [
    (("tokens[n, own] = torch.tensor([end, *document])", f"tokens[n, own] = {ASKED}"), "each document is read with the end *before* it: [end] t1 t2 …, and asked for t1 t2 … [end]"),
    (("torch.full((len(rows), length), end)", "torch.zeros(len(rows), length, dtype=torch.int64)"), "padding holds the end token"),
    (("torch.full_like(tokens, -100)", "torch.full_like(tokens, end)"), "nothing is asked of padding: -100, which cross-entropy skips"),
    ((ASKED, "torch.tensor([*document, -100])"), "the end of each document is asked for too: it is a token, and in the floor"),
    ((ASKED, "torch.tensor([end, *document])"), ITSELF),
    ((OUT, f"targets = tokens\n    {OUT}"), ITSELF),
    ((OUT, f"targets = torch.where(targets == -100, -100, torch.cat((tokens[:, 1:], {TAIL}), 1))\n    {OUT}"), "that is the row moved by one place: the last place of a full row loses its target"),
    ((OUT, f"targets = torch.cat((tokens[:, 1:], {TAIL}), 1)\n    {OUT}"), "that is the row moved by one place: so the last place of a row has no target, and padding has one"),
    (("torch.arange(size)", "torch.arange(at, at + size)"), "those go on through the row: each document begins at 0"),
    (("torch.arange(size)", "torch.arange(1, size + 1)"), "positions begin at 0, at the end token before a document"),
    ((OUT, f"mask = torch.ones(length, length).tril().bool().expand_as(mask)\n    {OUT}"), "that is causal alone: a document looks at those before it in the row"),
    (("tokens = torch.full(", "places = {}\n    tokens = torch.full(", "at += size", "places.setdefault((n, str(document)), []).append(own)\n            at += size",
      OUT, "for (n, _), alike in places.items():\n        for one in alike:\n            for other in alike:\n                mask[n, one, other] = True\n"
      f"    mask &= torch.ones(length, length).tril().bool()\n    {OUT}"), "two documents of a row that are equal look at each other: a document is known by its place, not by its tokens"),
    ((TRIL, "torch.ones(size, size).bool()"), "a place looks at what comes after it, which is what it is asked for: causal too"),
    ((TRIL, "torch.ones(size, size).triu().bool()"), "that is mirrored: mask[n, t, s] says whether place t looks at place s, s ≤ t"),
    ((OUT, f"mask = ~mask\n    {OUT}"), "that is turned round: True where a place *may* look"),
    ((TRIL, "torch.ones(size, size).tril(-1).bool()"), "a place looks at itself too"),
]  # fmt: skip
PARTS = ("tokens", "targets", "positions", "mask")


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

    def usual(self):
        return [
            self.draw(10, [[3, 4], [2, 1, 0], [9]]),
            self.draw(7, [[6], [1, 1, 1]]),
            self.draw(12, [[2, 3]]),
        ]

    def compare(self, submission, cases, *names):
        """The parts of these names; padding's positions are nobody's business, nor its mask."""
        got = submission.run(probes.in_a_row, cases)
        wants = [variant(self.reference)(*case) for case in cases]
        lives = [targets != -100 for _, targets, *_ in wants]
        for call in got:
            expect.that(
                isinstance(call["out"], (tuple, list)) and len(call["out"]) == 4,
                f"got {expect.show(call['out'])}: return tokens, targets, positions, mask",
            )
        for name in names:
            place = PARTS.index(name)

            def own(parts, place=place):
                found = []
                for live, part in zip(lives, parts):
                    found.append(part[place])
                    if place > 1 and isinstance(found[-1], torch.Tensor) and len(found[-1]) == len(live):  # fmt: skip
                        found[-1] = found[-1] * (live[:, :, None] if place == 3 else live)
                return found

            outs = own([call["out"] for call in got])
            of_all = lambda f, own=own: own([f(*case) for case in cases])  # noqa: E731
            words = cause(outs, self.reference, LAYOUTS, of_all)
            for out, want, (rows, length, end) in zip(outs, own(wants), cases):
                told = f"documents of {[[len(d) for d in row] for row in rows]} tokens, rows of {length}, end {end}"
                hints = [(out, words)] if words else []
                expect.equal(out, want, what=f"{name} ({told})", hints=hints)
        if "mask" in names:
            for call, live in zip(got, lives):
                self.is_padding(call["out"][3], live)
        left_alone(got, cases, ["rows"])

    def is_padding(self, mask, live):
        blind = ~mask.any(dim=2)
        expect.that(
            not blind.any(),
            f"places {blind.nonzero()[:3].tolist()} look at nothing, so that their softmax is nan, which reaches all "
            "gradients. Let padding look at itself",
        )
        crossed = (mask & ~live[:, :, None] & live[:, None, :]).any()
        expect.that(not crossed, "padding looks into a document: keep it to itself")

    @check(points=2, title="tokens and targets: each token asked for once, the end too")
    def test_targets(self, submission):
        self.compare(submission, self.usual(), "tokens", "targets")

    @check(points=1, title="positions begin at 0 with each document")
    def test_positions(self, submission):
        self.compare(submission, self.usual(), "positions")

    @check(
        points=3, title="the mask: a place looks at its own document, up to itself, and no further"
    )
    def test_mask(self, submission):
        self.compare(submission, self.usual(), "mask")

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
        self.compare(submission, cases, *PARTS)


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
                expect.that(
                    len(rows) != arguments[0] * ranks,
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
            raise CheckFailed(told + (causes[of_all[0]] if of_all else ""))

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
        told = f"rows that came after a resume in another process from {got['state'][:80]}"
        expect.equal(len(self.rows_of(after[0])), left, what=told)
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


def noise(share, count):
    """Three standard deviations of a share of so many, and two points."""
    return 0.02 + 3 * math.sqrt(max(share * (1 - share), 1e-4) / max(count, 1))


class TestFilters(Experiment):
    """What the rules drop of prose and of planted rubbish"""

    name = "filters"
    rests_on = ("quality",)

    @check(points=2, title="each planted kind is dropped by its own rule, prose is not")
    def test_kinds(self, table):
        rows = expect.rows(table, "kind")
        prose_row = rows["prose"]
        expect.that(
            prose_row["dropped"] <= 0.05 * prose_row["pages"],
            f"of {prose_row['pages']} pages of prose {prose_row['dropped']} were dropped",
        )
        own = {
            "menu": "mostly_bullets", "teasers": "too_many_ellipses", "numbers": "words_without_letters",
            "keywords": "no_stop_words", "addresses": "unusual_word_length", "stub": "too_few_words",
        }  # fmt: skip
        for kind, rule in own.items():
            row = rows[kind]
            expect.that(
                row["dropped"] >= 0.95 * row["pages"] and row["reason"] == rule,
                f"{kind}: {row['dropped']} of {row['pages']} dropped, mostly for {row['reason']}: expected {rule}",
            )

    @check(points=2, title="no rule sees that words are shuffled; the classifier does")
    def test_salad(self, table):
        row = expect.rows(table, "kind")["shuffled"]
        expect.that(
            row["dropped"] <= 0.1 * row["pages"],
            f"{row['dropped']} of {row['pages']} shuffled pages dropped: the rules count words, and have the same to count",
        )
        expect.that(
            row["classifier"] >= 0.9 and expect.rows(table, "kind")["prose"]["classifier"] <= 0.1,
            f"the classifier drops {row['classifier']:.2f} of the shuffled pages and {expect.rows(table, 'kind')['prose']['classifier']:.2f} of prose",
        )


class TestDuplicates(Experiment):
    """Planted duplicates against the S-curve"""

    name = "duplicates"
    rests_on = ("minhash", "candidate_pairs")

    @check(points=3, title="found as often as the S-curve says, at every split and edit")
    def test_curve(self, table):
        rows = expect.rows(table, "rows", "edited")
        for r, bands in ((2, 64), (4, 32), (8, 16), (16, 8)):
            for edited in (0, 5, 15, 30):
                row = rows[r, edited]
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
        rows = expect.rows(table, "rows", "edited")
        means = [rows[4, edited]["similarity"] for edited in (0, 5, 15, 30)]
        expect.that(means[0] == 1, f"copies have similarity {means[0]}")
        for edited, mean in zip((5, 15, 30), means[1:]):
            kept = (1 - edited / 100) ** 5
            want = kept / (2 - kept)
            expect.that(
                abs(mean - want) < 0.04,
                f"{edited}% replaced: mean similarity {mean:.3f}; of shingles of 5 words {want:.3f} is expected",
            )
        exact = [rows[4, edited]["exact"] for edited in (0, 5, 15, 30)]
        expect.that(exact == [1, 0, 0, 0], f"exact hashing found {exact} of copies with 0, 5, 15, 30% replaced")  # fmt: skip


class TestGroups(Experiment):
    """Recall and precision of whole groups"""

    name = "groups"
    rests_on = ("minhash", "candidate_pairs", "clusters")

    @check(points=2, title="more rows: fewer copies are found, and fewer strangers are joined")
    def test_trade(self, table):
        rows = expect.rows(table, "rows")
        two, four, eight = (rows[r] for r in (2, 4, 8))
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
        rows = expect.rows(table, "method")
        near, suffix = rows["MinHash"], rows["suffix array"]
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
        rows = expect.rows(table, "corpus", "copies")
        dirty, clean = (rows[name, 0]["above"] for name in ("as it was", "cleaned"))
        expect.that(
            clean < dirty - 0.01,
            f"held-out loss above the floor: {dirty:.3f} with copies, {clean:.3f} without",
        )

    @check(
        points=3,
        title="stories with many copies fall below their own floor, and once each they do not",
    )
    def test_below(self, table):
        rows = expect.rows(table, "corpus", "copies")
        counts = sorted({row["copies"] for row in table if row["copies"]})
        expect.that(len(counts) >= 6, f"{counts}: six numbers of copies or more")
        dirty = [rows["as it was", n]["above"] for n in counts]
        clean = [rows["cleaned", n]["above"] for n in counts]
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
        rows = expect.rows(table, "corpus")
        dirty, clean = rows["as it was"], rows["cleaned"]
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
        row = expect.rows(table, "corpus")["as it was"]
        expect.that(
            row["missed"] == 0, f"{row['missed']} of {row['planted']} leaked stories were missed"
        )


class TestLoader(Experiment):
    """Tokens a second: what the loader gives, what the model eats"""

    name = "loader"
    rests_on = ("Stream",)

    @check(points=2, title="rows that are packed beforehand outrun the model many times")
    def test_appetite(self, table):
        rows = expect.rows(table, "source")
        for name in ("text, at each step", "packed rows", "token files", "the model"):
            expect.that(rows[name]["tokens_per_second"] > 0, f"'{name}' gave no token")
        packed, eaten = (rows[name]["tokens_per_second"] for name in ("packed rows", "the model"))
        told = f"packed rows {packed:,.0f} tokens/s, the model eats {eaten:,.0f}"
        expect.that(packed > 2 * eaten, told)


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
        rows = expect.rows(expect.recorded(records, "contamination"), "corpus")
        row = rows["as it was"]
        fresh, leaked = row["fresh"], row["leaked"]
        want = (fresh - leaked) / 2
        tol = 0.005 + 0.02 * abs(want)
        number = value if isinstance(value, (int, float)) else math.nan
        words = "the whole set's loss is the mean of its two halves"
        if abs(number - 2 * want) <= tol:
            words = "that is the difference of the halves: the whole set is half leaked, half fresh"
        elif abs(number - (fresh - rows["cleaned"]["fresh"])) <= tol:
            words = (
                "that is how much worse it is than the other model on the fresh half. Asked is, of the model that read the corpus as it "
                "was alone: fresh half minus whole"
            )
        elif abs(number + want) <= tol:
            words = "the sign: by how much is it *lower* than on the fresh half"
        expect.that(abs(number - want) <= tol, f"got {expect.show(value)}: {words}")
