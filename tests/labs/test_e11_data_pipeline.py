"""The checks of lab e11: raw text to a stream of rows, graded by what each step decides."""

from __future__ import annotations

import math
import random
from itertools import chain, pairwise, zip_longest
from itertools import permutations as permutations_of

import numpy as np
import torch

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import cause, variant

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


def unwrapped(out):
    """A list, of an array too."""
    out = out["values"] if isinstance(out, dict) and "values" in out else out
    return out.tolist() if isinstance(out, torch.Tensor) else out


def as_it_is(out):
    return out


def are_right(item, outs, cases, told, tol=None, taken=as_it_is):
    """Results as the reference's, both as `taken` has them."""
    outs = [taken(out) for out in outs]
    of_all = lambda f: [taken(probes.plain(f(*probes.own(case)))) for case in cases]  # noqa: E731
    why = cause(outs, item.reference, item.MISTAKES, of_all, tol)
    for out, want, case in zip(outs, of_all(variant(item.reference)), cases):
        expect.equal(out, want, tol, [(out, why)] if why else [], told(*case))


def compare(item, submission, cases, told, names, **more):
    """In turn, in one process; arguments of these names are left alone."""
    got = submission.run(probes.in_a_row, cases)
    are_right(item, [call["out"] for call in got], cases, told, **more)
    expect.left_alone(got, [probes.plain(case) for case in cases], names)


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
    """So many words of so many characters in all, two stop words first."""
    sizes = [3, 3, *([(total - 6) // (count - 2)] * (count - 2))]
    for place in range(total - sum(sizes)):
        sizes[2 + place % (count - 2)] += 1
    letters = "bcdfghklmnprstvwz"
    return " ".join(["the", "and", *("".join(random.choices(letters, k=n)) for n in sizes[2:])])


def bulleted(bullets, lines, mark="- "):
    texts = lines_of(prose(6 * lines), lines)
    return "\n".join(mark + text if i < bullets else text for i, text in enumerate(texts))


def breaking(broken, lines, mark="..."):
    """Long lines: the ellipses are few a word."""
    texts = lines_of(prose(14 * lines), lines)
    return "\n".join(text + (mark if i < broken else ".") for i, text in enumerate(texts))


def with_ellipses(count, words):
    """In one line; each "..." stands as a word of its own."""
    own = prose(words - count)
    for _ in range(count):
        own.insert(random.randrange(2, len(own) - 1), "...")
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
    MISTAKES = (
        (("< 50", "<= 50", "3 <= sum", "3 < sum", "<= 10", "< 10", "> 0.1", ">= 0.1", "> 0.9", ">= 0.9", "> 0.3", ">= 0.3", "< 0.8", "<= 0.8"),
         "exactly on the threshold passes: the rules say fewer than, more than"),
        (("[line.strip() for line in text.splitlines() if line.strip()]", "text.splitlines()"), "empty lines are no lines, and a line is stripped before it is looked at"),
        (("text.lower().split()", "words"), "The and AND are stop words too: lower case first"),
        (("len(stop_words.intersection(text.lower().split()))", "sum(word in text.lower() for word in stop_words)"), "stop words are whole words: the 'to' in 'town' is none"),
        ((' + text.count("…")', "", '("...", "…")', '"..."'), "'…' is an ellipsis as well as '...'"),
    )  # fmt: skip

    def compare(self, submission, pages):
        """pages: what it is -> the page."""
        told = {text: f"a page with {what}" for what, text in pages.items()}
        zero = "a page without a word has too few: ask that before you divide"
        with expect.because({"ZeroDivisionError": zero}):
            compare(self, submission, [(text,) for text in told], told.get, [])

    @check(points=2, title="each of the seven rules drops what it is for, and prose passes")
    def test_each(self, submission):
        n = random.randint(80, 200)
        self.compare(submission, {
            f"{n} words of prose": ". ".join(lines_of(prose(n), 6)),
            "under 50 words": " ".join(prose(random.randint(5, 40))),
            "words of 12 characters in the mean": of_lengths(n, 12 * n),
            "words of 2 characters in the mean": of_lengths(n, 2 * n + 6),
            "an ellipsis to each five words": with_ellipses(n // 5, n),
            "20 of 21 lines with a bullet": bulleted(20, 21),
            "half of its lines broken off": breaking(8, 16),
            "a third of its words numbers": lettered(n // 3, n),
            "no stop word": " ".join(rare(n)),
            "no stop word but inside of others": " ".join([*rare(n - 20), *["town", "there"] * 10]),
        })  # fmt: skip

    @check(points=2, title="a page exactly on a threshold passes")
    def test_edges(self, submission):
        n = 10 * random.randint(8, 20)
        pages = {}
        for far in (0, 1):  # on it, and just beyond it
            told = "just beyond" if far else "exactly on"
            pages |= {
                f"{50 - far} words": " ".join(prose(50 - far)),
                f"{told} a mean of 3 characters a word": of_lengths(n, 3 * n - far),
                f"{told} a mean of 10 characters a word": of_lengths(n, 10 * n + far),
                f"{n // 10 + far} ellipses in {n} words": with_ellipses(n // 10 + far, n),
                f"{18 + far} of 20 lines with a bullet": bulleted(18 + far, 20),
                f"{6 + far} of 20 lines broken off": breaking(6 + far, 20),
                f"{n // 5 + far} of {n} words without a letter": lettered(n // 5 + far, n),
                f"{2 - far} different stop words": " ".join([*rare(n), "of", "with"][: n + 2 - far]),
            }  # fmt: skip
        self.compare(submission, pages)

    @check(points=1, title="a page that fails several rules is dropped for the first of them")
    def test_order(self, submission):
        n = random.randint(80, 150)
        # each page fails the rule that it is for and the last one
        long_words = of_lengths(n, 12 * n).replace("the ", "bcd ", 1).replace("and ", "bcd ", 1)
        self.compare(submission, {
            "no character at all": "",
            "white space alone": " \n\t\n ",
            "27 words, all of them rubbish": "- 12 ...\n" * 9,
            "long words and no stop word": long_words,
            "numbers alone": " ".join(str(random.randrange(1000, 99999)) for _ in range(n)),
            "bullets, and all lines broken off": "\n".join(f"- {text}..." for text in lines_of(rare(6 * n), n)),
        })  # fmt: skip

    @check(points=2, title="what counts as a word, a line, a bullet, a stop word")
    def test_counting(self, submission):
        n = 10 * random.randint(8, 15)
        greek = ["".join(random.choices("αβγδεζηθκλμ", k=7)) for _ in range(n)]
        dotted = prose(n)  # a word in fourteen has two, so that they are more than one to ten
        dotted[2::14] = [f"{word}...so…{word}" for word in dotted[2::14]]
        digits = [w if w in STOP else w + "1" for w in prose(n)]
        stop = random.sample(sorted(STOP), 8)
        self.compare(submission, {
            "bullets and empty lines between": bulleted(20, 21).replace("\n", "\n\n"),
            "indented bullets": bulleted(20, 21, "   • "),
            "bullets of *": bulleted(20, 21, "* "),
            "bullets that stand at the word, as in -item": bulleted(20, 21, "-"),
            "lines that begin with **": bulleted(20, 21, "**"),
            "broken lines, white space behind them": breaking(8, 16).replace("\n", "  \n \n"),
            "half of its lines broken off with …": breaking(8, 16, "…"),
            "a … to each five words": with_ellipses(n // 5, n).replace(" ...", "…"),
            "two ellipses inside of each fourteenth word": " ".join(dotted),
            "one stop word, twice": " ".join([*rare(n), "the", "the"]),
            **{f"'{one}' and '{two}'": " ".join([*rare(n), one, two]) for one, two in zip(stop[::2], stop[1::2])},
            "stop words in capitals": " ".join(["The", *rare(n), "AND"]),
            "stop words with a comma": " ".join(["that,", *rare(n), "the", "of,"]),
            "Greek words of 7 letters": " ".join(["the", "and", *greek]),
            "words with digits in them": "\n".join(lines_of(digits, 8)),
            "'the' inside of words": " ".join(w + ("the", "of")[i % 2] for i, w in enumerate(rare(n))),
        })  # fmt: skip


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


class TestMinhash(Exercise):
    """MinHash signatures"""

    name = "minhash"
    reference = "minitrain.data.plain:minhash"
    hidden = HIDDEN
    MISTAKES = (
        ((f"signatures[k, filled] = {MINIMA}", "signatures[k] = np.minimum.reduceat(np.append(values, np.uint32(2**32 - 1)), bounds[:-1])"),
         "wrong are documents without shingles, where 2^32 - 1 belongs: `np.minimum.reduceat` gives such a document its neighbour's value"),
        ((HASHED, "values = hashes * b[k] + a[k]"), "a and b are exchanged: h = a x + b"),
        ((HASHED, "values = hashes.astype(np.uint64) * np.uint64(a[k]) + np.uint64(b[k])"),
         "the smallest was taken of numbers of 64 bits, and cut to 32 bits after it: first mod 2^32 (uint32 does), and then the smallest"),
        ((MINIMA, "np.minimum.reduceat(values, np.minimum(bounds[:-1], len(hashes) - 1))[filled]"),
         "where the last documents have no shingle, the one before them has lost its last: a start behind the end was moved onto it"),
        ((MINIMA, "[hashes[bounds[n] + values[bounds[n] : bounds[n + 1]].argmin()] for n in filled]"),
         "those are the shingles' own hashes: expected is the value of the function, a x + b mod 2^32, which is smallest"),
    )  # fmt: skip

    def told(self, hashes, bounds, a, b):
        return f"{len(bounds) - 1} documents of {np.diff(bounds).tolist()[:8]} shingles, {len(a)} hashes"

    def compare(self, submission, shapes):
        cases = [(*drawn_hashes(sizes), *permutations(count)) for sizes, count in shapes]
        compare(self, submission, cases, self.told, ["hashes", "bounds", "a", "b"])

    @check(points=1, title="of each hash function the smallest value over the document's shingles")
    def test_values(self, submission):
        shapes = [([5, 9, 4], 7), ([12], 16), ([1, 1, 30, 2], 3), ([6] * 9, 1)]
        self.compare(submission, shapes)

    @check(points=1, title="documents without shingles, first, in the middle, last, and alone")
    def test_empty(self, submission):
        shapes = [([0, 4, 3], 5), ([4, 0, 0, 3], 6), ([5, 2, 0], 4), ([0], 3), ([0, 0, 6, 0], 2)]
        words = "bounds[i] of a last empty document lies behind the end: leave such documents out, they have 2^32 - 1"
        with expect.because({"index": words}):
            self.compare(submission, shapes)

    @check(points=6, title="K passes over the shingles: no array of K times S numbers is held")
    def test_memory(self, submission):
        sizes = [random.randint(100, 500) for _ in range(200)]
        case = (*drawn_hashes(sizes), *permutations(64))
        (got,) = submission.run(probes.peak_of, [case])
        are_right(self, [got["out"]], [case], self.told)
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


class TestCandidatePairs(Exercise):
    """Bands: who meets whom"""

    name = "candidate_pairs"
    reference = "minitrain.data.plain:candidate_pairs"
    hidden = HIDDEN
    MISTAKES = (
        ((KEY, "signatures[j, band::bands]"), "those are pairs of every n-th hash; the hashes of a band lie side by side"),
        ((FILLED, "range(len(signatures))"), "one has no shingle (2^32 - 1 in every place): it is like no other"),
        (("pairs = set()", "pairs, first = set(), {}", "        first: dict[bytes, int] = {}", "        pass"), "what agrees is one band of the first and *another* band of the second: each band has buckets of its own"),
        ((f"{FIRST}\n            if i != j:\n                pairs.add((i, j))", "pairs.update((i, j) for i in first.setdefault(key, []))\n            first[key].append(j)"),
         "some are of two documents of a bucket, neither of which is its first. Pair each with the *first* of its bucket: the union is the same"),
        ((FIRST, "i = first.get(key) or j\n            first[key] = i"), "of all buckets only those that document 0 opened are wrong: 0 is a document's number, and no empty bucket; Python takes it for False"),
    )  # fmt: skip

    def draw(self, count, bands, rows, over=0):
        """Signatures of which no two agree anywhere."""
        places = bands * rows + over
        drawn = np.random.permutation(count * places * 3)[: count * places]
        return drawn.reshape(count, places).astype(np.uint32)

    def same(self, signatures, i, j, band, rows):
        """j agrees with i in this band."""
        own = slice(band * rows, (band + 1) * rows)
        signatures[j, own] = signatures[i, own]

    def told(self, signatures, bands, rows):
        return f"{len(signatures):,} documents, {bands} bands of {rows} rows: pairs"

    def pairs(self, out):
        """In order, each once."""
        is_list = isinstance(out, (list, tuple)) and all(
            isinstance(pair, (list, tuple)) and list(map(type, pair)) == [int, int] for pair in out
        )
        words = f"got {expect.show(out)}: return pairs (i, j), i < j, of documents' numbers"
        expect.that(is_list, words)
        return sorted(set(map(tuple, out)))

    def once(self, out):
        words = f"pairs {expect.show(out)}: a pair that meets in two bands comes once"
        expect.that(len(self.pairs(out)) == len(out), words)
        return self.pairs(out)

    def compare(self, submission, cases, taken):
        compare(self, submission, cases, self.told, ["signatures"], taken=taken)

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
            if rows > 1:  # the same values, in another order
                s[0, :rows] = s[6, :rows][::-1]
            if bands > 1:  # band 0 of one is band 1 of the other
                s[5, rows : 2 * rows] = s[0, :rows]
            if over:
                s[2, -over:] = s[0, -over:]
            cases.append((s, bands, rows))
        first = self.draw(5, 3, 2)  # document 0 is a first like any other
        for other, band in ((2, 0), (3, 0), (4, 1)):
            self.same(first, 0, other, band, 2)
        self.compare(submission, [*cases, (first, 3, 2)], self.pairs)

    @check(points=1, title="documents without shingles meet nobody, and no pair comes twice")
    def test_empty(self, submission):
        s = self.draw(10, 3, 4)
        s[[1, 4, 8]] = EMPTY
        self.same(s, 0, 5, 0, 4)
        self.same(s, 0, 5, 2, 4)
        part = self.draw(6, 2, 3)  # one band of 2^32 - 1 is a band like another
        part[2, :3] = part[5, :3] = EMPTY
        cases = [(s, 3, 4), (part, 2, 3), (self.draw(5, 2, 2), 2, 2), (self.draw(1, 2, 2), 2, 2)]
        self.compare(submission, cases, self.once)

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
        are_right(self, [call["out"] for call in got], calls, self.told, taken=self.pairs)
        _, small, large = (call["steps"] for call in got)
        told = f"200 documents took {small:,} steps, four times as many {large:,}, {words}"
        expect.that(large < QUADRATIC * small, told)


# --- 4: clusters


JOINED = "low, high = sorted((root(i), root(j)))"


class TestClusters(Exercise):
    """The union of pairs"""

    name = "clusters"
    reference = "minitrain.data.plain:clusters"
    hidden = HIDDEN
    MISTAKES = (
        (("parent[high] = low", "parent[low] = high"), "the groups are right, but each is named by its *first* document, the lowest number"),
        (("return [root(node) for node in range(count)]", "return parent"), "that is a step on the way to the first, and not yet the first itself: go on to the root of each"),
        ((JOINED, "low, high = sorted((i, j))"), "a ~ b and b ~ c make one cluster, though a and c never met. Join the *roots* of both, not the documents"),
    )  # fmt: skip

    def told(self, pairs, count):
        shown = pairs if len(pairs) < 9 else f"({len(pairs):,} of them)"
        return f"firsts, pairs {shown} of {count:,} documents"

    def compare(self, submission, cases):
        hint = {
            ("recursion", "RecursionError"): "a chain is longer than Python's stack: follow parents in a loop",
            ("timeout", "memory"): "a long chain takes too long: each pair joins two roots, and the way to a root is cut short as it is walked",
            ("networkx", "scipy"): "ready-made unions are not the exercise",
        }  # fmt: skip
        with expect.because(hint):
            got = submission.run(probes.as_union, cases, timeout=20)
        words = f"{got['ready'][:1]} was imported: ready-made unions are not here"
        expect.that(not got["ready"], words)
        for call, case in zip(got["calls"], cases):
            words = (
                f"the pairs were gone through {call['begun']} times, and come once, as from a file"
            )
            expect.that(call["begun"] == 1, f"{self.told(*case)}: {words}")
        outs = [call["out"] for call in got["calls"]]
        are_right(self, outs, cases, self.told, taken=unwrapped)
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
        cases = [(backward(n), n) for n in (150, 600, 2500)]
        cases += [(forward, 2501), (random.sample(twos, len(twos)), 64)]
        small, large, *_ = self.compare(submission, cases)
        expect.that(
            large < QUADRATIC * small,
            f"a chain of 150 took {small:,} steps, one of 600 {large:,}: whoever walks to a root has to cut "
            "the way to the root short, and hang what is passed nearer to the root",
        )
        count = 200
        held = submission.run(probes.union_of_all, count)
        drawn = count * (count - 1) // 2
        expect.that(
            held_at_once(held) < 16 * drawn,
            f"{held['peak'] / 1e6:.1f} MB were held at once for {drawn:,} pairs of {count} documents. The pairs' file is "
            "larger than memory: take each pair as it comes, and keep nothing of it but what the parents say",
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


class TestSuffixArray(Exercise):
    """All suffixes in order"""

    name = "suffix_array"
    reference = "minitrain.data.plain:suffix_array"
    hidden = HIDDEN
    MISTAKES = (
        (("return order", "return np.argsort(order)"), "those are the ranks of the suffixes, the inverse: expected is where the suffixes begin, in order"),
        ((WHILE, "while False:"), "that is the order of the first symbol. Go on doubling until no two ranks are equal"),
        ((WHILE, WHILE.replace(":", " and 4 * step <= 2 * n:")), "the last round is missing: n symbols need ⌈log2 n⌉ rounds, rounded up, unless no two ranks are equal before"),
        ((WHILE, BOUNDED, "np.zeros(n, np.int64)", "np.full(n, n + 1, np.int64)", "(n + 1)", "(n + 2)"), "a suffix that ends sorts *before* a longer one that begins with it"),
        ((WHILE, BOUNDED, "rank[step:] + 1", "rank[step:]"), "behind the end lies nothing, which sorts before every symbol, 0 too"),
    )  # fmt: skip

    def told(self, text):
        shown = text.tolist() if len(text) < 13 else f"{len(text):,} symbols up to {max(text)}"
        return f"suffixes of {shown}"

    def compare(self, submission, texts, **more):
        empty = "a text of no symbol has the empty suffix array"
        with expect.because({"timeout": ENDLESS, ("zero-size", "out of bounds", "empty"): empty}):
            compare(self, submission, [(text,) for text in texts], self.told, ["symbols"], **more)

    @check(points=1, title="equals the sorted suffixes, of few symbols and of many")
    def test_sorted(self, submission):
        sizes = [(6, 3), (40, 2), (200, 4), (90, 50_000), (300, 2)]
        texts = [np.random.randint(0, k, n) for n, k in sizes]
        short = [np.array(text) for n in (2, 3, 4) for text in permutations_of(range(n))]
        word = np.frombuffer(b"mississippi", np.uint8)
        self.compare(submission, [word, *texts, *short], taken=unwrapped)

    @check(points=1, title="nothing, one symbol, all equal, a period, symbol 0 at the end")
    def test_edges(self, submission):
        period = np.tile(np.random.randint(0, 3, 5), 9)[: random.randint(31, 44)]
        zeros = np.concatenate((np.random.randint(0, 2, 12), np.zeros(random.randint(2, 6), int)))
        texts = [np.zeros(0, np.int64), np.array([7]), np.full(33, 4), period, zeros]
        self.compare(submission, texts)

    @check(points=6, title="long repeats cost a few rounds more, and no suffix is written out")
    def test_long(self, submission):
        texts = [np.full(1000, 3), np.full(4000, 3), np.tile(np.random.randint(0, 9, 500), 8)]
        calls = [(text,) for text in texts]
        words = f"as where suffixes are compared as a whole: {ROUNDS}"
        with expect.because({"timeout": ENDLESS}):
            submission.run(probes.cost_of, [(np.full(33, 3),)], timeout=5)
        with expect.because({("timeout", "memory"): words}):
            got = submission.run(probes.cost_of, calls, timeout=20)
            (held,) = submission.run(probes.peak_of, calls[1:2], timeout=20)
        are_right(self, [call["out"] for call in got], calls, self.told, taken=unwrapped)
        expect.that(
            held_at_once(held) < 600 * 4000 + 2**20,
            f"{held['peak'] / 1e6:.0f} MB were held at once for 4,000 symbols: suffixes were written out, n of up to "
            f"n symbols. Hold a rank for each, {ROUNDS}",
        )
        small, large, _ = (call["steps"] for call in got)
        told = f"1,000 equal symbols took {small:,} steps, 4,000 {large:,}: {ROUNDS}"
        expect.that(large < QUADRATIC * small, told)


# --- 6: the mixture


CLIPPED = "[min(w, most_passes * s / budget) for w, s in zip(weights, sizes)]"
POWERS = "powers of large sizes overflow, and of numbers below 1 are rounded to 0: divide the sizes by the largest first, of those that are free, each time that you share out"


class TestMixtureWeights(Exercise):
    """Weights of several sources"""

    name = "mixture_weights"
    reference = "minitrain.data.plain:mixture_weights"
    hidden = HIDDEN
    MISTAKES = (
        (("if not over:", "if True:"), "a source is read more than most_passes times: its weight is at most most_passes · size / budget"),
        (("if not over:", f"weights = {CLIPPED}\n        if True:"), "those do not sum to 1: what a capped source gives up goes to the others"),
        (("if not over:", f"clipped = {CLIPPED}\n        weights = [w / sum(clipped) for w in clipped]\n        if True:"), "clipped, and then all divided by their sum: that lifts the capped ones above their cap again. Share among the others only"),
        (("free -= over", "free -= over\n        for i in free:\n            weights[i] = left * tempered[i] / sum(tempered[i] for i in free)\n        break"), "what the capped sources gave up has lifted another one above *its* cap: look again until none is"),
        (("** (1 / temperature)", "** min(temperature, 1e9)"), "that is size^T: the exponent is 1 / T, so that a high temperature makes sources alike"),
    )  # fmt: skip

    def weights(self, out):
        out = unwrapped(out)
        good = isinstance(out, (list, tuple)) and all(isinstance(w, (int, float)) for w in out)
        expect.that(good, f"got {expect.show(out)}, expected a list of weights")
        words = f"weights {expect.show(out)}: some are no finite numbers: {POWERS}"
        expect.that(all(map(math.isfinite, out)), words)
        return torch.tensor(out, dtype=torch.float64)

    def told(self, sizes, temperature, budget, most=4.0):
        return f"weights of sizes {sizes}, temperature {temperature:g}, {budget:.3g} tokens, at most {most:g} passes"

    def compare(self, submission, cases):
        with expect.because({("OverflowError", "ZeroDivisionError"): POWERS}):
            compare(self, submission, cases, self.told, ["sizes"], tol=1e-9, taken=self.weights)

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
                f"{self.told(*call)}: {got['error'] or expect.show(got['out'])}. What no weights can keep to: raise a ValueError "
                "that says so; only a larger budget is refused, not one of exactly so many passes",
            )
        self.compare(submission, exact)


# --- 7: packing


OUT = "return tokens, targets, positions, mask"
TAIL = "torch.full((len(rows), 1), -100)"
TRIL = "torch.ones(size, size).tril().bool()"
PARTS = ("tokens", "targets", "positions", "mask")


class TestLayOut(Exercise):
    """Whole documents in rows, and their mask"""

    name = "lay_out"
    reference = "minitrain.data.plain:lay_out"
    hidden = HIDDEN
    MISTAKES = (
        (("tokens[n, own] = torch.tensor([end, *document])", "tokens[n, own] = torch.tensor([*document, end])"), "each document is read with the end *before* it: [end] t1 t2 …, and asked for t1 t2 … [end]"),
        ((OUT, f"targets = torch.where(targets == -100, -100, torch.cat((tokens[:, 1:], {TAIL}), 1))\n    {OUT}"), "that is the row moved by one place: the last place of a full row loses its target"),
        (("torch.arange(size)", "torch.arange(at, at + size)"), "those go on through the row: each document begins at 0"),
        ((OUT, f"mask = torch.ones(length, length).tril().bool().expand_as(mask)\n    {OUT}"), "that is causal alone: a document looks at those before it in the row"),
        ((TRIL, "torch.ones(size, size).bool()"), "a place looks at what comes after it, which is what it is asked for: causal too"),
    )  # fmt: skip

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

    def told(self, rows, length, end):
        return f"documents of {[[len(d) for d in row] for row in rows]} tokens, rows of {length}, end {end}"

    def compare(self, submission, cases, *names):
        """Parts of these names; what padding has for positions is free, and its mask in bounds."""
        got = submission.run(probes.in_a_row, cases)
        outs = [call["out"] for call in got]
        wants = [variant(self.reference)(*case) for case in cases]
        for out in outs:
            words = f"got {expect.show(out)}: return tokens, targets, positions, mask"
            expect.that(isinstance(out, (tuple, list)) and len(out) == 4, words)
        found = [self.asked(out, want, names) for out, want in zip(outs, wants)]
        of_all = lambda f: [self.asked(f(*c), w, names) for c, w in zip(cases, wants)]  # noqa: E731
        why = cause(found, self.reference, self.MISTAKES, of_all)
        for one, right, case in zip(found, of_all(variant(self.reference)), cases):
            expect.equal(one, right, hints=[(one, why)] if why else [], what=self.told(*case))
        for out, want in zip(outs, wants):
            padding = want[1] == -100
            blind = padding & ~out[3].any(dim=2) if "mask" in names else padding[:0]
            expect.that(
                not blind.any(),
                f"places {blind.nonzero()[:3].tolist()} look at nothing, so that their softmax is nan, which reaches all "
                "gradients. Let padding look at itself",
            )
            crossed = (out[3] & ~want[3])[padding].any() if "mask" in names else False
            words = "padding looks into a document, or ahead: at padding alone, up to itself"
            expect.that(not crossed, words)
        expect.left_alone(got, [probes.plain(case) for case in cases], ["rows"])

    def asked(self, result, want, names):
        """Padding has no position and looks at nothing."""
        live = want[1] != -100
        parts = dict(zip(PARTS, result))
        for name, over in (("positions", live), ("mask", live[:, :, None])):
            if torch.is_tensor(parts[name]) and parts[name].shape[:2] == live.shape:
                parts[name] = parts[name] * over
        return {name: parts[name] for name in names}

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


DEALT = (
    "A step takes the next batch · ranks rows of the epoch's order, or what is left of it, and deals "
    "them out evenly. Order and place go on after `resume`; batch and ranks are those of the new stream"
)


def here(f):
    """As `submission.run`, of a function that is here."""
    return lambda probe, *given: probe(f, *given)


class TestStream(Exercise):
    """Shuffled, split over ranks, resumed"""

    name = "Stream"
    reference = "minitrain.data.plain:Stream"
    hidden = HIDDEN
    MISTAKES = (
        (("            self.consumed += len(step)\n", "", ".tolist()", ".tolist()\n            self.consumed += len(step)"),
         "the last step came again: it has been handed out when `state` is asked for; a generator stands still at its `yield`, and what is written behind it has not run"),
        (("+= len(step)", "+= self.batch"), "`consumed` counts the rows that *all* ranks have been given, a whole step at a time"),
        (('self.epoch, self.consumed = state["epoch"], state["consumed"]', 'self.epoch = state["epoch"]'), "the epoch began anew"),
        (("while self.consumed < self.rows:", "while self.consumed + self.batch * self.ranks <= self.rows:"), "an epoch's last, smaller step is a step too"),
        (("step[self.rank :: self.ranks]", "step"), "every rank has read all rows: each has its own part of a step"),
    )  # fmt: skip

    def orders(self, run, calls, count=4):
        """So many epochs' rows, as one rank gives them, of each (rows, seed)."""
        got = run(probes.epochs, [((rows, 4, seed), 1, count) for rows, seed in calls])
        return [[[*chain(*rank)] for (rank,) in epochs] for epochs in got]

    def steps(self, epochs, orders):
        """Places in the order of each epoch's rows, step by step, and how ranks share them."""
        found = []
        for epoch, order in zip(epochs, orders):
            place = {row: number for number, row in enumerate(order)}
            steps = [*zip_longest(*epoch, fillvalue=())]
            found.append({
                "steps of each rank": [len(rank) for rank in epoch],
                "places of the rows in the epoch's order, step by step": [sorted(place.get(row, -1) for row in chain(*step)) for step in steps],
                "how many rows the ranks get": [sorted(map(len, step)) for step in steps],
            })  # fmt: skip
        return found

    def dealt(self, run, cases):
        """cases: ((rows, batch, seed), ranks, epochs)."""
        orders = self.orders(run, [(rows, seed) for (rows, _, seed), *_ in cases])
        return [self.steps(*both) for both in zip(run(probes.epochs, cases), orders)]

    def went_on(self, run, cases):
        """cases: (rows, batch, ranks, seed, stop), then batch and ranks after it: two epochs, where
        the loop is broken off, and resumed in another process, as after a crash."""
        orders = self.orders(run, [(case[0], case[3]) for case in cases])
        stopped = run(probes.stopped, [case[:5] for case in cases])
        calls = [(c[0], *c[5:7], c[3], 3, one["state"]) for c, one in zip(cases, stopped)]
        found = []
        for case, order, one, after in zip(cases, orders, stopped, run(probes.gone_on, calls)):
            rows, batch, ranks, _, stop, *_ = case
            begun = stop // -(-rows // (batch * ranks))
            ways = {}
            for way, epochs in (("after a break", one["rest"]), ("resumed", after)):
                is_rest = any(chain(*chain(*epochs[0])))  # or an epoch of which nothing is left
                ways[way] = self.steps(epochs[0 if is_rest else 1 :][:2], order[begun:])
            found.append(ways)
        return found

    def compare(self, submission, way, cases, told):
        got, want = way(submission.run, cases), way(here(variant(self.reference)), cases)
        why = cause(got, self.reference, self.MISTAKES, lambda f: way(here(f), cases))
        for case, one, right in zip(cases, got, want):
            expect.equal(one, right, hints=[(one, why or DEALT)], what=told.format(*case))

    @check(
        points=1, title="an epoch has every row once, shuffled, and each epoch and seed its own way"
    )
    def test_epochs(self, submission):
        n, seed = random.randint(40, 60), random.randrange(1000)
        cases = [((n, 7, seed), 1, 3), ((5, 9, seed), 1, 1), ((24, 6, seed), 1, 2), ((1, 1, seed), 1, 2)]  # fmt: skip
        self.compare(submission, self.dealt, cases, "(rows, batch, seed) {}, each epoch's steps")
        pairs = [(n, own) for own in (0, 1, 2, 3, 7, 11, seed + 12)]
        epochs, again = (self.orders(submission.run, pairs, 12) for _ in range(2))
        words = "the same arguments gave another order the second time: draw it from the seed alone"
        expect.that(epochs == again, words)
        known = {tuple(range(n)): "rows that are not shuffled"}
        for (_, own), orders in zip(pairs, epochs):
            for number, order in enumerate(orders):
                told = f"epoch {number} of seed {own}"
                expect.equal(sorted(order), [*range(n)], what=f"{told}, its rows sorted")
                other = known.setdefault(tuple(order), told)
                words = "seed a generator with both numbers, the seed and the epoch, as they are"
                expect.that(other == told, f"{told} has the order of {other}: {words}")

    @check(points=1, title="N ranks see, step by step, what one rank sees with N times the batch")
    def test_ranks(self, submission):
        seed, n = random.randrange(1000), 12 * random.randint(2, 3) + random.randint(5, 9)
        cases = [((n, 12 // ranks, seed), ranks, 2) for ranks in (2, 3, 4)]
        cases += [((3, 1, seed), 4, 1), ((9, 2, seed), 4, 1)]
        self.compare(submission, self.dealt, cases, "(rows, batch, seed) {}, {} ranks")

    @check(
        points=5, title="resumed at any step, on as many ranks or others: the rows that are left"
    )
    def test_resume(self, submission):
        seed, n = random.randrange(1000), random.randint(50, 60)
        cases = [
            (n, 4, 1, seed, random.randint(2, 9), 4, 1),
            (n, 4, 2, seed, random.randint(1, 5), 4, 2),
            (n, 3, 2, seed, random.randint(1, 4), 2, 4),  # one rank's rows x 4 stay below n
            (n, 5, 3, seed, random.randint(1, 2), 7, 1),
            (24, 4, 2, seed, 3, 4, 2),  # the epoch's last step has been handed out
            (24, 4, 1, seed, 8, 3, 2),  # in the second epoch
            (n, 4, 1, seed, 0, 4, 2),
            (25, 4, 2, seed, 4, 4, 2),  # the ranks' shares of the last step differ
        ]
        told = "{} rows, batches of {} on {} ranks, seed {}, stopped after {} steps, and resumed with batches of {} on {} ranks"
        self.compare(submission, self.went_on, cases, told)

    @check(points=1, title="the state is a few numbers, and no generator of the process is used")
    def test_state(self, submission):
        seed = random.randrange(1000)
        cases = [(30_000, 10, 2, seed, 3), (25, 4, 2, seed, 4)]  # of the last, shares differ
        stopped = submission.run(probes.stopped, cases)
        longest = max(len(got["state"]) for got in stopped)
        one, other = submission.run(probes.alone, (40, 6, 0, 1, seed), [1, 2])
        for is_right, words in (
            (longest <= 200, f"of 30,000 rows the state has {longest:,} characters as JSON: the order is drawn again from (seed, epoch), so that the epoch and how many rows were consumed are enough"),
            (all(got["kept"] for got in stopped), "a state that was taken has changed when the stream went on: give a new dict each time"),
            (all(got["alike"] for got in stopped), "the ranks' states differ. Any one must do for all, since another number of ranks resumes from it"),
            (one["steps"] == other["steps"], "the order depends on the process's own random numbers: a rank that drew one number more would read other rows. Seed a generator of your own"),
            (not (one["moved"] or other["moved"]), "the process's own random numbers were moved: dropout after it would be another. Use a generator of your own, np.random.default_rng([seed, epoch])"),
        ):  # fmt: skip
            expect.that(is_right, words)
        self.compare(submission, self.went_on, [(*cases[0], 10, 2)], "{} rows, resumed")


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
        words = f"of {prose_row['pages']} pages of prose {prose_row['dropped']} were dropped"
        expect.that(prose_row["dropped"] <= 0.05 * prose_row["pages"], words)
        own = {
            "menu": "mostly_bullets", "teasers": "too_many_ellipses", "numbers": "words_without_letters",
            "keywords": "no_stop_words", "addresses": "unusual_word_length", "stub": "too_few_words",
        }  # fmt: skip
        for kind, rule in own.items():
            row = rows[kind]
            words = f"{kind}: {row['dropped']} of {row['pages']} dropped, mostly for {row['reason']}: expected {rule}"
            expect.that(row["dropped"] >= 0.95 * row["pages"] and row["reason"] == rule, words)

    @check(points=2, title="no rule sees that words are shuffled; the classifier does")
    def test_salad(self, table):
        row = expect.rows(table, "kind")["shuffled"]
        words = f"{row['dropped']} of {row['pages']} shuffled pages dropped: the rules count words, and have the same to count"
        expect.that(row["dropped"] <= 0.1 * row["pages"], words)
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
            words = f"{edited}% replaced: mean similarity {mean:.3f}; of shingles of 5 words {want:.3f} is expected"
            expect.that(abs(mean - want) < 0.04, words)
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
        words = f"MinHash joined {near['pages_found']} pages that share only a passage"
        expect.that(near["pages_found"] <= 0.15 * near["pages_planted"], words)
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
            words = f"{told}: weight {row['weight']:.4f}, drawn {row['drawn']:.4f} of {row['samples']:,} samples"
            expect.that(abs(row["drawn"] - row["weight"]) < spread, words)
            expect.that(row["passes"] <= 4.001, f"{told}: {row['passes']:.2f} passes")
        small = [row["weight"] for row in table if row["source"] == "small"]
        words = (
            f"the small source's weights are {small}: they rise with the temperature, up to its cap"
        )
        expect.that(small == sorted(small) and small[-1] > small[0], words)


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
        words = f"held-out loss above the floor: {dirty:.3f} with copies, {clean:.3f} without"
        expect.that(clean < dirty - 0.01, words)

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
        words = f"cleaned, the same stories: {', '.join(f'{x:.2f}' for x in clean)}: every one once, none by heart"
        expect.that(min(clean) > -0.1 and dirty[-1] < min(clean) - 0.3, words)


class TestContamination(Experiment):
    """A test set of which half had leaked"""

    name = "contamination"
    rests_on = ("clusters", "memorised")

    @check(points=2, title="the leaked half flatters the model that read it, and no other")
    def test_flattered(self, table):
        rows = expect.rows(table, "corpus")
        dirty, clean = rows["as it was"], rows["cleaned"]
        words = f"as it was: leaked half {dirty['leaked']:.3f}, fresh half {dirty['fresh']:.3f} above the floor"
        expect.that(dirty["leaked"] < dirty["fresh"] - 0.02, words)
        gap = clean["fresh"] - clean["leaked"]
        words = f"cleaned: the halves differ by {gap:.3f}, as it was by {dirty['fresh'] - dirty['leaked']:.3f}"
        expect.that(abs(gap) < 0.6 * (dirty["fresh"] - dirty["leaked"]), words)

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
        words = expect.first([
            (value in enough, "that finds enough, and so does one with more rows, which joins fewer strangers"),
            (value in five, f"that finds {five.get(value, 0):.2f} of them"),
            (value in {row["bands"] for row in rows}, "that is a number of bands: rows are asked for"),
            (True, f"the answer is one of {sorted(five)}"),
        ])  # fmt: skip
        expect.that(value == max(enough), f"got {value}: {words}")


class TestByHeart(Question):
    """From how many copies on"""

    name = "by_heart"
    rests_on = ("memorised",)

    @check(points=5, title="the smallest number of copies whose stories fall below their floor")
    def test_value(self, value, records):
        rows = expect.recorded(records, "memorised")
        dirty = [row for row in rows if row["corpus"] == "as it was" and row["copies"]]
        own = {row["copies"]: row["above"] for row in dirty}
        below = [copies for copies, above in own.items() if above < 0]
        expect.that(below, "no number of copies in your table falls below the floor")
        words = expect.first([
            (value in below, "those are below, and so are some with fewer copies"),
            (value in own, "those are still above their floor"),
            (True, "the answer is a number of copies in the table"),
        ])  # fmt: skip
        expect.that(value == min(below), f"got {expect.show(value)}: {words}")


class TestFlattered(Question):
    """What the leak is worth"""

    name = "flattered"
    rests_on = ("contamination",)

    @check(points=5, title="by how many nats the whole test set reads better than its fresh half")
    def test_value(self, value, records):
        rows = expect.rows(expect.recorded(records, "contamination"), "corpus")
        fresh, leaked = (rows["as it was"][half] for half in ("fresh", "leaked"))
        want = (fresh - leaked) / 2
        number = value if isinstance(value, (int, float)) else math.nan

        def is_near(other):
            return abs(number - other) <= 0.005 + 0.02 * abs(want)

        words = expect.first([
            (is_near(2 * want), "that is the difference of the halves: the whole set is half leaked, half fresh"),
            (is_near(fresh - rows["cleaned"]["fresh"]), "that is how much worse it is than the other model on the fresh half. Asked is, of the model that read the corpus as it was alone: fresh half minus whole"),
            (is_near(-want), "the sign: by how much is it *lower* than on the fresh half"),
            (True, "the whole set's loss is the mean of its two halves"),
        ])  # fmt: skip
        expect.that(is_near(want), f"got {expect.show(value)}: {words}")
