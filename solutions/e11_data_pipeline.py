# %% [markdown]
# # e11 · Data pipeline
#
# **From raw text to the rows that a model reads: you filter pages, remove duplicates, mix sources, pack rows and deal them out, and
# measure what a mistake costs in nats above a known floor.**
#
# 180 minutes · CPU is enough · before: [e01 · Baseline](e01_baseline.ipynb) · [map of the course](index.ipynb)
#
# You build: a quality filter, MinHash signatures, locality-sensitive hashing, union-find, a suffix array, mixture weights, packed
# rows with their mask, and a stream that resumes at the exact row. You end with this picture: stories that occur many times in
# the corpus are memorised, and their loss falls below the floor that no model can beat without having seen them.
#
# ![Loss above the floor against the number of copies: one curve falls, the other stays level](../labs/pictures/e11_data_pipeline.png)

# %% tags=["setup"]
import numpy as np
import torch
from minitrain.lab import Lab, ideas, show

lab = Lab("e11_data_pipeline")

# %% [markdown]
# ## 1 · What is worth reading
#
# Most of a web crawl is not prose but menus, teasers, tables and lists of keywords. A language model trained on it
# learns to write them. An early step of nearly every published pipeline is therefore a **filter**: some ten rules, each of which
# counts something and compares it with a threshold.
#
# Many pipelines use the rules of Gopher ([Rae et al. 2021](https://arxiv.org/abs/2112.11446), A.1.1). A page is dropped by
# the *first* rule that it fails, and the reason is recorded: without it you could not see afterwards that one rule had dropped a
# whole language.

# %%
ideas.first_rule()

# %% [markdown]
# The rules in order (words are separated by white space; lines are stripped, and empty ones do not count):
#
# | reason | the page is dropped if |
# |---|---|
# | `too_few_words` | it has fewer than 50 words |
# | `unusual_word_length` | the mean length of a word is not in [3, 10] |
# | `too_many_ellipses` | it has more than 0.1 `...` and `…` together per word |
# | `mostly_bullets` | more than 0.9 of the lines begin with `•`, `-` or `*` |
# | `lines_break_off` | more than 0.3 of the lines end with `...` or `…` |
# | `words_without_letters` | fewer than 0.8 of the words contain a letter |
# | `no_stop_words` | it has fewer than two different ones of *the, be, to, of, and, that, have, with*, in upper or lower case; `that,` is not one |

# %% [markdown]
# **Predict**: the course's own stories are clean. What percentage of single stories does the first rule drop? Here is one:
#
# > One rainy morning, Anna the kind cook worked at the bakery with a huge green pie. Otto the young shepherd worked in the
# > kitchen with a big fresh rose. He read a short poem about a fox. That night, he rested in the kitchen.

# %% tags=["question"]
### BEGIN SOLUTION
guess = 5
### LAB guess = None  # percent
### END SOLUTION
lab.predict("short", guess, unit="%")

# %%
from minitrain.data.corpus import make_corpus

stories = make_corpus(600_000, seed=3).documents
short = sum(len(story.split()) < 50 for story in stories)
lab.reveal("short", 100 * short / len(stories))

# %% [markdown]
# A threshold suits one kind of text. Fifty words are few for a web page and many for one of these stories.
# From here on a *page* is three consecutive stories.
#
# ### Exercise 1 · `quality`
#
# Difficulty 2 of 5 · 15 minutes · 7 points
#
# The table says what happens exactly at a threshold: "fewer than 50" keeps 50. An empty page has no mean.


# %% tags=["exercise"]
def quality(text: str) -> str:
    """The name of the first rule of the table that the text fails; "" where it passes
    all. About 17 lines of yours."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.data.plain:quality
    ### END SOLUTION


# %% tags=["grade"]
quality = lab.grade(quality)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Return early for too few words: then no later rule divides by zero.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `words = text.split()`; `lines = [l.strip() for l in text.splitlines() if l.strip()]`. `startswith` and `endswith` take a tuple.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Make a dict from each reason to whether the page fails, in the table's order, and return the first reason that is true. Stop words
# are a set intersected with the set of the page's lower-case words.
#
# </details>

# %% [markdown]
# **Run**: pages of prose, six kinds of rubbish, and a seventh: pages of prose whose words are *shuffled*. Besides the rules we
# use a classifier, linear (as GPT-3's was) in words and pairs of words. It is trained on one half of the pages,
# prose against the rest, and classifies the other half.

# %% tags=["experiment", "folded"]
import random
from collections import Counter

from minitrain.data.preparation.filters.classifier import train_classifier

draw = random.Random(7)
pages = [" ".join(stories[i : i + 3]) for i in range(0, len(stories) - 2, 3)]
pages = pages[: lab.size("pages")]


def cut(words, size):
    return [" ".join(words[i : i + size]) for i in range(0, len(words), size)]


def menu(words):
    return "\n".join("- " + line for line in cut(words, 3))


def teasers(words):
    return "\n".join(line + " ..." for line in cut(words, 6))


def numbers(words):
    return " ".join(
        w if i % 3 else str(draw.randrange(10**5)) for i, w in enumerate(words)
    )


def keywords(words):
    return ", ".join(word for word in words if len(word) > 4) + ", cheap, best" * 30


def addresses(words):
    return " ".join("www." + "-".join(words[i : i + 3]) for i in range(len(words) - 2))


def shuffled(words):
    return " ".join(draw.sample(words, len(words)))


makers = [menu, teasers, numbers, keywords, addresses, shuffled]
kinds = {"prose": pages}
kinds |= {make.__name__: [make(page.split()) for page in pages] for make in makers}
kinds["stub"] = [" ".join(page.split()[:20]) for page in pages]
half = len(pages) // 2
seen = [(page, kind) for kind, own in kinds.items() for page in own[:half]]
learnt = train_classifier(
    [page for page, _ in seen],
    ["prose" if kind == "prose" else "rubbish" for _, kind in seen],
    epochs=5,
)

# %% tags=["experiment"]
filters = []
for kind, own in kinds.items():
    reasons = Counter(filter(None, map(quality, own)))
    rubbish = learnt.probabilities(own[half:])[:, 1] > 0.5
    row = {"kind": kind, "pages": len(own), "dropped": sum(reasons.values())}
    row["reason"] = reasons.most_common(1)[0][0] if reasons else ""
    filters.append(row | {"classifier": rubbish.float().mean().item()})
show.table(
    [
        {
            "kind of page": row["kind"],
            "pages": row["pages"],
            "dropped by a rule": row["dropped"],
            "mostly for": row["reason"].replace("_", " "),
            "dropped by the classifier (%)": 100 * row["classifier"],
        }
        for row in filters
    ],
    formats={"dropped by the classifier (%)": "{:.0f}".format},
)

# %% tags=["grade"]
lab.experiment("filters", filters)

# %% [markdown]
# **Explain**: each kind is caught by the rule that was made for it. Shuffled pages pass all rules, since shuffling changes nothing that
# the rules count. The classifier sees pairs of words, which differ from those of prose. But it misses menus and teasers: they consist of
# prose words in their original order, and it ignores line breaks and dots. That is why rules and classifiers are used together.
#
# Now on real text, the State of the Union addresses (`python -m minitrain assets sotu` fetches them; nothing here is graded):

# %% tags=["experiment", "folded"]
from minitrain.data.assets.fetch import is_cached
from minitrain.data.preparation.filters.rules import C4, GOPHER, shares_dropped
from minitrain.data.text import read_documents

if is_cached("sotu") and lab.tier != "test":
    speeches = [text.split() for text in read_documents("sotu")]
    pieces = [piece for words in speeches for piece in cut(words, 100)]
    pieces = random.Random(0).sample(pieces, 2000)
    shares = shares_dropped((*GOPHER, *C4), pieces)
    show.table(
        [
            {"rule, alone": name.replace("_", " "), "dropped (%)": 100 * share}
            for name, share in shares.items()
            if share
        ],
        formats={"dropped (%)": "{:.2f}".format},
        caption=f"{len(pieces):,} pieces of 100 words, by the rules of Gopher and C4; the other rules drop none",
    )
else:
    print("the addresses are not in the cache: this table is skipped")

# %% [markdown]
# **Explain**: in our run Gopher's rules pass nearly all pieces. One rule of C4 does not: here a page needs five sentences, and a hundred words of a
# speech usually have fewer. A threshold meant for web pages drops three quarters of these pieces.
#
# **Takeaway**: seven rules dropped 100% of six kinds of rubbish and no page of prose; it took a model to detect shuffled words. The rule of
# 50 words alone would have dropped half of the course's stories.

# %% [markdown]
# ## 2 · Near duplicates
#
# Crawls contain duplicates: mirrors, quotations, new versions of old pages. In RealNews 13.6% of the documents are near duplicates, in C4
# 3.0%; one sentence of C4 occurs 60,000 times ([Lee et al. 2022](https://arxiv.org/abs/2107.06499)). A hash of the whole text finds
# exact copies only: one changed word changes the hash.
#
# So compare *sets*. A page's **shingles** are all runs of 5 consecutive words. Two pages with the sets $A$ and $B$ have the
# **Jaccard similarity**
#
# $$s = \frac{|A \cap B|}{|A \cup B|}.$$
#
# If a share $e$ of the words is replaced, a run of 5 is unchanged with probability $p = (1-e)^5$. Of $n$ shingles each, the pages share
# $pn$ of $(2 - p)n$, so $s = p / (2 - p)$. For $e = 5\%$ that is $0.774 / 1.226 = 0.63$; for 15% it is 0.29, for 30% 0.09.

# %% [markdown]
# A page of 150 words has 146 shingles. **MinHash** ([Broder 1997](https://doi.org/10.1109/SEQUEN.1997.666900)) replaces them by a *signature*
# of K numbers. Each of K hash functions, $h_k(x) = (a_k x + b_k) \bmod 2^{32}$ with odd $a_k$, permutes all 32-bit numbers, and so orders the
# shingles in its own way. For each function, keep the *smallest* value over the page.

# %% [markdown]
# Why is that enough? In a random order each shingle of $A \cup B$ is equally likely to come first. If the first one is in
# both pages, both keep its value and agree; if only one page has it, they differ. So they agree in one place with probability $s$, and the
# share of K places in which they agree estimates $s$ with a standard error of $\sqrt{s(1-s)/K}$: for K = 128 and s = 0.63, 0.043.

# %%
ideas.smallest_values()

# %% [markdown]
# ### Exercise 2 · `minhash`
#
# Difficulty 3 · 15 minutes · 8 points
#
# The shingles of all pages are given in one array, hashed to 32 bits; page i has those from `bounds[i]` up to, but not including,
# `bounds[i + 1]`. K is 128 here, so do not hold K times as many numbers at once. NumPy's uint32 arrays wrap around by themselves. A page
# may have no shingles.


# %% tags=["exercise"]
def minhash(hashes, bounds, a, b):
    """hashes (S,) uint32, bounds (N + 1,) int64, a and b (K,) uint32, all unchanged
    -> signatures (N, K) uint32: of each function a x + b mod 2^32 the smallest value
    over the page's shingles; 2^32 - 1 in every place of a page without any.
    About 7 lines of yours."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.data.plain:minhash
    ### END SOLUTION


# %% tags=["grade"]
minhash = lab.grade(minhash)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Take one function at a time: `hashes * a[k] + b[k]` are its values for all shingles of all pages. Keep the smallest for each page.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `np.minimum.reduceat(values, starts)` gives the minimum of each piece, from one start to the next.
#
# </details>
# <details><summary>Hint 3</summary>
#
# An empty piece would get its neighbour's value, so pass only the starts of pages that have shingles:
# `filled = np.flatnonzero(np.diff(bounds))` are their numbers. Begin with an array full of 2^32 - 1.
#
# </details>

# %% [markdown]
# K numbers per page are few, but every pair of pages would still have to be compared: a billion pages have $5 \cdot 10^{17}$
# pairs. **Locality-sensitive hashing** avoids this. Divide the K places into $b$ *bands* of $r$ *rows*. Two pages *meet* if they agree in
# a whole band. A band agrees with probability $s^r$, and none of $b$ bands with $(1 - s^r)^b$, so
#
# $$P(\text{meet}) = 1 - (1 - s^r)^b.$$
#
# That is the **S-curve**. It passes one half at $s = (1 - 2^{-1/b})^{1/r} \approx (0.69/b)^{1/r}$. More rows push it to the right, more bands
# to the left.

# %%
ideas.s_curve()

# %% [markdown]
# No two pages need to be compared. Each band has its own buckets: a page goes into the bucket of its values in that band, and
# meets the pages already there. A bucket of $n$ pages has $n(n-1)/2$ pairs. They are not all needed: later we take the *union* of pairs, and
# $n - 1$ pairs, each with the bucket's first page, have the same union.
#
# ### Exercise 3 · `candidate_pairs`
#
# Difficulty 3 · 15 minutes · 8 points


# %% tags=["exercise"]
def candidate_pairs(signatures, bands: int, rows: int) -> list:
    """signatures (N, K) uint32, unchanged -> pairs (i, j) of numbers of pages, i < j,
    none twice. Band k has the places from k * rows on; places after the last band may be
    left over. In each bucket every page but the first is paired with the first. Pages
    without shingles (2^32 - 1 in every place) are in no pair. About 9 lines of yours."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.data.plain:candidate_pairs
    ### END SOLUTION


# %% tags=["grade"]
candidate_pairs = lab.grade(candidate_pairs)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# A bucket is an entry in a dict, from the band's values to the first page that had them. Each band needs its own dict: equal
# values in two different bands mean nothing.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A row of an array cannot be a key; `row.tobytes()` and `tuple(row.tolist())` can.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `dict.setdefault(key, j)` returns the first page of the bucket, which is j itself if the bucket was empty. A set holds each pair only
# once.
#
# </details>

# %% [markdown]
# **Predict**: 128 places form 16 bands of 8 rows. What share of the pages with 5% of their words replaced will meet their originals?

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.8
### LAB guess = None  # a share, from 0 to 1
### END SOLUTION
lab.predict("five", guess, unit="share")

# %% tags=["experiment", "folded"]
from minitrain.data.preparation.deduplication.exact import exact_duplicates
from minitrain.data.preparation.deduplication.words import (
    jaccard,
    shingle_hashes,
    shingles,
)

K = 128
generator = np.random.default_rng(5)
a, b = (generator.integers(0, 2**32, K, dtype=np.uint32) for _ in range(2))
a |= np.uint32(1)
known = sorted({word for page in pages for word in page.split()})


def edited(page, share):
    """A copy with this share of its words replaced."""
    words = page.split()
    for place in draw.sample(range(len(words)), round(share * len(words))):
        words[place] = draw.choice(known)
    return " ".join(words)


def signatures_of(texts):
    hashes, bounds = shingle_hashes(texts, 5)
    return minhash((hashes >> np.uint64(32)).astype(np.uint32), bounds, a, b)


def meet(one, other, bands, rows):
    """The share of pairs (one[i], other[i]) that your bands bring together."""
    pairs = [candidate_pairs(np.stack(two), bands, rows) for two in zip(one, other)]
    return sum(map(len, pairs)) / len(pairs)


# %% tags=["experiment"]
splits = [(64, 2), (32, 4), (16, 8), (8, 16)]
originals = pages[: lab.size("planted")]
own = signatures_of(originals)
duplicates, signed = [], {}
for percent in (0, 5, 15, 30):
    copies = [edited(page, percent / 100) for page in originals]
    theirs = signed[percent] = signatures_of(copies)
    s = np.array([jaccard(shingles(p), shingles(c)) for p, c in zip(originals, copies)])
    exact = [exact_duplicates(two)[1] == 0 for two in zip(originals, copies)]
    for bands, rows in splits:
        row = {"bands": bands, "rows": rows, "edited": percent, "pairs": len(s)}
        row |= {
            "similarity": s.mean(),
            "predicted": (1 - (1 - s**rows) ** bands).mean(),
        }
        row |= {"found": meet(own, theirs, bands, rows), "exact": int(all(exact))}
        duplicates.append(row)

at = {(row["rows"], row["edited"]): row for row in duplicates}
lab.reveal("five", at[8, 5]["found"], similarity=float(at[8, 5]["similarity"]))

# %% [markdown]
# The folded cell draws the formula as lines and your measured shares as marks.

# %% tags=["experiment", "folded"]
x = np.linspace(0, 1, 101)
with show.canvas() as (fig, ax):
    for (bands, rows), color, marker in zip(splits, show.COLORS, show.MARKERS):
        own_rows = [at[rows, e] for e in (30, 15, 5, 0)]
        points = [[row[key] for row in own_rows] for key in ("similarity", "found")]
        ax.plot(x, 1 - (1 - x**rows) ** bands, color=color, label=f"{bands} x {rows}")
        ax.plot(*points, marker, color=color, clip_on=False)
    ax.set(
        xlabel="Jaccard similarity of page and copy", ylabel="share of pairs that meet"
    )
    ax.legend(title="bands x rows")
    show.figure(
        fig,
        alt="Four S-curves and on them the measured shares: 2 rows a band are furthest to the left, 16 furthest to the right.",
        caption="lines: the formula; marks: measured",
    )

# %% tags=["grade"]
lab.experiment("duplicates", duplicates)

# %% [markdown]
# **Explain**: the points lie near the curves, but not on them. Each mark is a mean over pages of different similarity, which
# raises it where the curve is convex; and it is a mean of only 300 pages, with a standard error of up to 0.03. A hash
# of the whole page found the exact copies and none of the others.
#
# The number of rows decides what counts as a *duplicate*. FineWeb ([Penedo et al. 2024](https://arxiv.org/abs/2406.17557)) uses 14 bands
# of 8 rows, which find 56% of the pairs of similarity 0.7.
#
# **Question**: what is the largest number of rows in your table that still finds 95% of the copies with 5% replaced?

# %% tags=["question"]
show.table(
    [
        {"bands x rows": f"{b} x {r}"}
        | {f"{e}% replaced": at[r, e]["found"] for e in (0, 5, 15, 30)}
        for b, r in splits
    ],
    formats={f"{e}% replaced": "{:.3f}".format for e in (0, 5, 15, 30)},
)
### BEGIN SOLUTION
split = max(
    row["rows"] for row in duplicates if row["edited"] == 5 and row["found"] >= 0.95
)
### LAB split = None  # your answer, a number of rows
### END SOLUTION

# %% tags=["grade"]
lab.answer("split", split)

# %% [markdown]
# ### From pairs to groups
#
# If page 0 meets page 3, and page 3 meets page 7, then all three are one group, though 0 and 7 never met. One page of each
# group is kept: the first. So we need, for each page, the *first page of its group*.
#
# **Union-find** keeps a parent for each page, at first the page itself. Following parents leads to the page's *root*. A pair joins two
# roots: the lower becomes the parent of the higher. Every search for a root shortens the path that it takes (*path compression*), so that
# later searches are short: an amortised $O(\log n)$ steps per pair for $n$ pages
# ([Tarjan and van Leeuwen 1984](https://doi.org/10.1145/62.2160)).

# %%
ideas.union_of_pairs()

# %% [markdown]
# ### Exercise 4 · `clusters`
#
# Difficulty 3 · 10 minutes · 7 points
#
# Pairs come from a file that is larger than memory: go through them once, in the order given, and keep no list of them. Do not use a
# ready-made union-find (networkx, scipy).


# %% tags=["exercise"]
def clusters(pairs, count: int) -> list:
    """pairs: an iterable of (i, j), read once; i and j in any order, from 0 to
    count - 1 -> for each of `count` pages the first (lowest) page of its group.
    About 12 lines of yours."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.data.plain:clusters
    ### END SOLUTION


# %% tags=["grade"]
clusters = lab.grade(clusters)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `parent = list(range(count))`, and an inner function `root(page)` that follows parents in a `while` loop until a page is its own.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Join `root(i)` and `root(j)`, never i and j themselves. If the lower root becomes the parent, a root is the first page of its group.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Inside the loop, before you move on to the parent, `parent[page] = parent[parent[page]]` halves the path. At the end, look up the root of
# every page.
#
# </details>

# %% [markdown]
# **Run**: the originals and all their copies together, 5 texts for each page. **Recall** is the share of the copies with 0 and 5% replaced that are
# dropped. **Precision** is the share of the dropped texts whose group's first text comes from the same page, as the original or a copy.

# %% tags=["experiment"]
heap = np.concatenate([own, *signed.values()])
origin = np.tile(np.arange(len(own)), 5)
groups = []
for bands, rows in splits[:3]:
    first = np.array(clusters(candidate_pairs(heap, bands, rows), len(heap)))
    dropped = first != np.arange(len(heap))
    right = dropped & (origin[first] == origin)
    row = {
        "bands": bands,
        "rows": rows,
        "texts": len(heap),
        "kept": int((~dropped).sum()),
    }
    row["recall"] = dropped[len(own) : 3 * len(own)].mean()
    groups.append(row | {"precision": right.sum() / dropped.sum()})
show.table(
    [
        {"bands x rows": f"{row['bands']} x {row['rows']}"}
        | {"texts": row["texts"], "kept": row["kept"]}
        | {"recall (%)": 100 * row["recall"], "precision (%)": 100 * row["precision"]}
        for row in groups
    ],
    formats=dict.fromkeys(["recall (%)", "precision (%)"], "{:.1f}".format),
)

# %% tags=["grade"]
lab.experiment("groups", groups)

# %% [markdown]
# **Explain**: two rows join unrelated pages. Pages of different stories share set phrases; at a similarity of 0.02, $1 - (1 - 0.02^2)^{64} = 2.5\%$
# of such pairs meet, and 1,500 texts have a million pairs. The union then merges whole groups: 168 texts are left, and only 3% of the
# dropped ones were dropped rightly. Eight rows join no unrelated pages, but miss 70% of the copies with 5% replaced. Choose by what a lost
# page costs, compared with a kept copy.
#
# **Takeaway**: with 32 bands of 4 rows, 99% of the pages with 5% of their words replaced met their originals, 22% of those with 15%, and 1% of those
# with 30%; the S-curve predicts 99, 20 and 0.3%. No two pages were compared.

# %% [markdown]
# ## 3 · Repeated passages
#
# Two pages may share a licence, a menu or a quotation and differ otherwise. Their similarity is small, and no band finds it. Now we look
# for a *run of symbols* that occurs twice, anywhere.
#
# Keeping every window of 50 tokens in a hash table would take 50 times the memory of the text. A **suffix array** takes one number per
# symbol: the positions where the suffixes of the text begin, in alphabetical order. Suffixes that begin with the same passage are
# *adjacent* in it, however long the passage is.

# %%
ideas.sorted_suffixes()

# %% [markdown]
# Sorting suffixes directly compares up to $n$ symbols at a time. **Prefix doubling** ([Manber and Myers 1993](https://doi.org/10.1137/0222058))
# compares two numbers. Let rank$_k$(i) be the rank of suffix $i$ by its first $k$ symbols only; suffixes that are equal
# in these share a rank. Then the pair
#
# $$\big(\mathrm{rank}_k(i),\; \mathrm{rank}_k(i + k)\big)$$
#
# orders them by $2k$ symbols. Starting from $k = 1$ (the symbols themselves), at most $\lceil \log_2 n \rceil$ rounds are needed, fewer if all
# ranks differ earlier. The position after the end of the text ranks below every symbol: "a" comes before "ab".

# %% [markdown]
# ### Exercise 5 · `suffix_array`
#
# Difficulty 4 · 25 minutes · 8 points
#
# A text of $n$ equal symbols is the hardest: its first two suffixes differ only in the last round. Do not copy suffixes out of the text.


# %% tags=["exercise"]
def suffix_array(symbols):
    """symbols (n,) integers from 0 on, unchanged; n may be 0 -> (n,) int64: where the
    suffixes begin, in their order. A pair of ranks can be one number, and
    `np.argsort` sorts it. About 13 lines of yours."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.data.plain:suffix_array
    ### END SOLUTION


# %% tags=["grade"]
suffix_array = lab.grade(suffix_array)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Begin with ranks without gaps: `np.unique(symbols, return_inverse=True)[1]` are numbers from 0 to at most n - 1.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `behind` is rank[i + step] + 1 where i + step < n, and 0 past the end of the text. Then `rank * (n + 1) + behind` orders like the pair.
#
# </details>
# <details><summary>Hint 3</summary>
#
# After `order = np.argsort(key, kind="stable")` the new rank rises by one wherever two adjacent sorted keys differ: a cumulative sum,
# written to `rank[order]`. Stop when the largest rank is n - 1.
#
# </details>

# %% [markdown]
# **Run**: a notice of 30 words is inserted in every third page. Windows of 100 characters shared by two neighbours in the suffix array are
# cut, except for the first occurrence. We compare with MinHash, 32 bands of 4 rows. (Lee et al. 2022 cut repeats of 50 tokens or more.)

# %% tags=["experiment", "folded"]
notice = " ".join(draw.sample(known, 30))
some = pages[:60]
planted = [
    f"{page[:90]} {notice} {page[90:]}" if i % 3 == 0 else page
    for i, page in enumerate(some)
]


def later_copies(text, order, length):
    """(n,) bool: is this character in a window of `length` that occurred before?"""
    again, first = np.zeros(len(text), bool), {}
    run = None
    for before, start in zip([None, *order[:-1]], order):
        window = text[start : start + length]
        if (
            before is None
            or len(window) < length
            or text[before : before + length] != window
        ):
            run = int(start)
            continue
        first.setdefault(run, [run]).append(int(start))
    for starts in first.values():
        for start in sorted(starts)[1:]:
            again[start : start + length] = True
    return again


def cut_passages(pages, length=100):
    """Repeated characters of each page; NULs and a number separate the pages."""
    text = "".join(page + f"\0{i}\0" for i, page in enumerate(pages))
    symbols = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    again = later_copies(text, suffix_array(symbols), length)
    stops = np.cumsum([len(page) + len(f"\0{i}\0") for i, page in enumerate(pages)])
    return [int(own.sum()) for own in np.split(again, stops[:-1])]


# %% tags=["experiment"]
cut_signs = cut_passages(planted)
joined = clusters(candidate_pairs(signatures_of(planted), 32, 4), len(planted))
truth = {
    "pages_planted": len(planted[::3]),
    "signs_planted": len(planted[::3]) * len(notice),
}
passages = [
    {
        "method": "MinHash",
        "pages_found": sum(f != i for i, f in enumerate(joined)),
        "signs_cut": 0,
    },
    {
        "method": "suffix array",
        "pages_found": sum(size >= len(notice) for size in cut_signs[::3]),
        "signs_cut": sum(cut_signs),
    },
]
passages = [row | truth for row in passages]
show.table(
    [
        {
            "method": row["method"],
            "pages with the notice": row["pages_planted"],
            "found": row["pages_found"],
            "characters planted": row["signs_planted"],
            "characters cut": row["signs_cut"],
        }
        for row in passages
    ]
)

# %% tags=["grade"]
lab.experiment("passages", passages)

# %% [markdown]
# **Explain**: with 30 of some 180 words in common, two pages share 26 of 326 shingles. At a similarity of 0.08, 32 bands of 4 rows find one
# pair in a thousand. The suffix array finds the notice in every page except the first, where it is kept: 19 · 160 = 3,040 characters. The 89
# characters cut beyond these are next to a notice, and happen to be equal.
#
# **Takeaway**: near duplicates and repeated passages are different problems, and need different tools.

# %% [markdown]
# ## 4 · Mixing sources
#
# Suppose there are several sources: a huge crawl, some books, a little good text. What share of the tokens should come from each? In
# proportion to size, the small one is hardly seen. With a **temperature** $T$,
#
# $$p_i \propto n_i^{1/T},$$
#
# where $n_i$ is the size of source $i$ in tokens and $p_i$ its share. $T = 1$ reads in proportion to size, $T \to \infty$ gives all sources
# equal shares ([Arivazhagan et al. 2019](https://arxiv.org/abs/1907.05019)).

# %%
ideas.tempered_shares()

# %% [markdown]
# But a small source is then read many times: $p_i B / n_i$ **passes** in a run of $B$ tokens. Up to 4 passes are worth nearly as much as new
# text; further passes are worth less and less ([Muennighoff et al. 2023](https://arxiv.org/abs/2305.16264)). So limit the passes to $m = 4$:
# $p_i \le m\, n_i / B$. What a capped source gives up goes to the others, in proportion to their $n_j^{1/T}$. That may push another one
# above *its* cap.

# %% [markdown]
# An example with $T \to \infty$, $B = 300$ and $m = 4$: sources of 1, 26 and 1,000 tokens would get a third each. The first is capped at
# $4/300 = 0.013$. Half of the remaining 0.987 is 0.493; the second's cap is $104/300 = 0.347$, so it is capped as well, and 0.64 is left for
# the third.
#
# ### Exercise 6 · `mixture_weights`
#
# Difficulty 3 · 20 minutes · 6 points
#
# Sizes go up to $10^{14}$, and $T$ may be far below 1: powers of them may overflow, or underflow to 0.


# %% tags=["exercise"]
def mixture_weights(sizes, temperature, budget, most_passes=4.0) -> list:
    """sizes: tokens of each source, unchanged; temperature > 0, may be inf; budget: tokens
    of the run -> a share for each source, sum 1. No source is read more than
    `most_passes` times. ValueError, in words, where that is impossible.
    About 14 lines of yours."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.data.plain:mixture_weights
    ### END SOLUTION


# %% tags=["grade"]
mixture_weights = lab.grade(mixture_weights)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Divide the sizes by the largest *that is still free*, each time. A constant factor changes no share, a power of a number up to 1 cannot
# overflow, and the largest remains 1.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Keep a set of the free sources and what is left of 1 for them. Divide it among them; each that is above its cap is fixed there and leaves
# the set; divide again.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The loop ends when no source is above its cap, or when none is free: a budget of exactly `most_passes * sum(sizes)` fixes all.
#
# </details>

# %% [markdown]
# **Run**: the package's `Mixture` draws each row's source at random with your weights.

# %% tags=["experiment"]
from minitrain.data.stream.mixture import Mixture

names, sizes, budget = ["small", "books", "crawl"], [50, 1_000, 40_000], 20_000
mixture = []
for temperature in (1.0, 1.3, 3.0):
    weights = mixture_weights(sizes, temperature, budget)
    order = Mixture(tuple(sizes), tuple(weights), budget)
    drawn = np.bincount(order.sources(seed=0, epoch=0), minlength=3) / budget
    for i, name in enumerate(names):
        row = {"temperature": temperature, "source": name, "weight": weights[i]}
        row |= {"drawn": drawn[i], "passes": order.passes()[i], "samples": budget}
        mixture.append(row)
show.table(
    [
        {
            "temperature": row["temperature"],
            "source": row["source"],
            "your weight (%)": 100 * row["weight"],
            "drawn (%)": 100 * row["drawn"],
            "passes": row["passes"],
        }
        for row in mixture
    ],
    formats={
        "your weight (%)": "{:.2f}".format,
        "drawn (%)": "{:.2f}".format,
        "passes": "{:.2f}".format,
    },
)

# %% tags=["grade"]
lab.experiment("mixture", mixture)

# %% [markdown]
# **Explain**: the drawn share of 20,000 rows has a standard deviation of $\sqrt{p(1-p)/20000}$ around its weight $p$, here at most 0.3
# percentage points. At $T = 3$ two sources are at their cap, and what they gave up went to the third.
#
# **Takeaway**: the 50 rows of the small source are read 0.49 times at $T = 1$, 2.2 times at $T = 1.3$ and 4.0 times at $T = 3$; without the
# cap it would be 31 times.

# %% [markdown]
# ## 5 · Packing rows
#
# A model reads rows of equal length, but stories differ in length. If they are padded to the longest, half of the compute may go to
# padding; if rows are cut from one long sequence, a row may begin in the middle of a story. **Packing** places whole documents one after the
# other in a row: the longest first, each into the fullest row that has room for it (best fit).
#
# The model must then not see that there is another document before, nor where in the row a document begins. So **attention stays
# inside a document**, and **positions begin at 0** in each.

# %%
ideas.document_mask()

# %% [markdown]
# A document $t_1 \dots t_n$ takes $n + 1$ places. Its input is `end` $t_1 \dots t_n$ and its targets are $t_1 \dots t_n$ `end`: each of its
# tokens, including the end, is predicted once. That makes the loss comparable with the floor, an entropy that counts the end as well.
#
# ### Exercise 7 · `lay_out`
#
# Difficulty 3 · 15 minutes · 8 points
#
# Which documents share a row has been decided, and they fit. For padding the input is `end` and the target -100, which the loss ignores. A
# softmax over nothing is nan, even at ignored places: let padding attend to padding, up to itself. Its positions are arbitrary.


# %% tags=["exercise"]
def lay_out(rows, length: int, end: int):
    """rows: of each row its documents, lists of token ids without the end -> tokens,
    targets, positions (N, T) int64 and mask (N, T, T) bool: mask[n, t, s] where place t of
    row n may look at place s. About 13 lines of yours."""
    ### BEGIN SOLUTION
    ### SOLUTION minitrain.data.plain:lay_out
    ### END SOLUTION


# %% tags=["grade"]
lay_out = lab.grade(lay_out)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# Go through a row with `at`, the place where the next document begins. All four results are filled slice by slice.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `tokens[n, at:to] = torch.tensor([end, *document])`, `targets[n, at:to] = torch.tensor([*document, end])`, with `to = at + len(document) + 1`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Each document has one lower-triangular block on the diagonal of `mask[n]`. Padding is like one more document, from the last `to` to
# the end, whose targets stay at -100.
#
# </details>

# %% [markdown]
# Is that so? A small attention layer reads three random documents separately and packed; the outputs must be equal.

# %% tags=["experiment"]
from torch.nn.functional import scaled_dot_product_attention as attend

ids = [
    [int(x) for x in np.random.default_rng(i).integers(1, 50, 5 + i)] for i in range(3)
]
table = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))


def read(rows, length, masked=True):
    tokens, _, positions, mask = lay_out(rows, length, 0)
    x = table[tokens] + torch.sin(positions[..., None] * torch.arange(1, 17) / 9)
    causal = torch.ones(length, length).tril().bool().expand_as(mask)
    return attend(x, x, x, attn_mask=mask if masked else causal)


packed_rows, naive = read([ids], 24), read([ids], 24, masked=False)
alone = torch.cat([read([[d]], len(d) + 1)[0] for d in ids])
print(
    f"packed with the mask: largest difference {(packed_rows[0, :21] - alone).abs().max():.0e}"
)
print(
    f"causal mask only:     largest difference {(naive[0, :21] - alone).abs().max():.1f}"
)

# %% [markdown]
# **Takeaway**: with the mask a document in a packed row gives the same output as on its own, up to rounding. With only a causal mask,
# outputs of magnitude 1 are off by as much as 0.5.

# %% [markdown]
# ## 6 · A stream that resumes
#
# Rows are shuffled and distributed over ranks, and a run may be stopped and resumed: after a crash, or with fewer machines. Every row must still
# be read exactly once per epoch. The trick is to keep *two numbers only*: the epoch, and how many of its rows **all ranks
# together** have been given. The order itself is not saved: each rank computes it again from (seed, epoch).

# %%
ideas.resumed_stream()

# %% [markdown]
# A step takes the next batch × ranks rows of the order and distributes them in any way you like. So N ranks together see in each step what
# one rank with N times the batch sees, and a different number of ranks can continue from the same two numbers. The last step may be
# smaller; still every rank takes part in it, if necessary with an empty list, or the others would wait for it forever.
#
# ### Exercise 8 · `Stream`
#
# Difficulty 3 · 20 minutes · 8 points
#
# Draw from a generator of your own: seeding the global one would change the run's dropout. If the caller breaks off at an epoch's last
# step, the next iteration may either be empty (the rest of that epoch) or the next epoch.


# %% tags=["exercise"]
class Stream:
    """Rows 0 to rows - 1, shuffled anew in each epoch; this is one rank's view.
    About 9 lines of yours."""

    def __init__(self, rows, batch, rank=0, ranks=1, seed=0):
        self.rows, self.batch, self.rank, self.ranks, self.seed = (
            rows,
            batch,
            rank,
            ranks,
            seed,
        )
        self.epoch = self.consumed = 0

    def __iter__(self):
        """Yields this rank's rows of each step, a list of at most `batch` integers, to the
        end of the epoch; the next iteration is the next epoch, and after a break or a
        resume it goes on where it stood. Shares differ by at most 1."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.data.plain:Stream.__iter__
        ### END SOLUTION

    def state(self) -> dict:
        """A few plain numbers, the same on every rank: a step counts once it is yielded."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.data.plain:Stream.state
        ### END SOLUTION

    def resume(self, state: dict) -> None:
        """Goes on where a stream of any batch and any number of ranks stood."""
        ### BEGIN SOLUTION
        ### SOLUTION minitrain.data.plain:Stream.resume
        ### END SOLUTION


# %% tags=["grade"]
Stream = lab.grade(Stream)

# %% [markdown] tags=["hint"]
# <details><summary>Hint 1</summary>
#
# `np.random.default_rng([seed, epoch]).permutation(rows)` depends on both numbers. Do not use seed + epoch: epoch 1 of seed 0 would
# equal epoch 0 of seed 1.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A step is `order[consumed : consumed + batch * ranks]`, and a rank's share of it `step[rank :: ranks]`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Count the whole step *before* you yield: a generator pauses at its `yield`, and that is when `state` is called.
#
# </details>

# %% [markdown]
# ## 7 · What the pipeline is worth
#
# Now we put everything together. The entropy of the course's stories is known: it is the *floor* $H$ of the loss, in nats per token. We
# plant groups of stories that occur 1, 2, 4, … 128 times, and half of a test set, each story 8 times. One model is trained on the corpus as
# it is, another on what your pipeline leaves of it, for the same number of steps.
#
# Apart from chance, there is only one way for a model to be *below* the floor on a text: it has seen it.

# %% [markdown]
# **Predict**: more than half of what the first model reads are copies. On stories that *neither* model has read, by how many nats per token is
# its final loss above the second's? (The floor is 0.73.)

# %% tags=["question"]
### BEGIN SOLUTION
guess = 0.2
### LAB guess = None  # nats per token
### END SOLUTION
lab.predict("unread", guess)

# %% tags=["experiment"]
from minitrain.data.preparation.contamination import TestSet
from minitrain.data.tokenizer import train_tokenizer

COPIES, EACH = (1, 2, 4, 8, 16, 32, 64, 128), 4
corpus = make_corpus(lab.size("corpus"), seed=1)
test = make_corpus(12_000, seed=2)
leaked, fresh = test.documents[::2], test.documents[1::2]
repeated = {n: slice(EACH * i, EACH * (i + 1)) for i, n in enumerate(COPIES)}
raw = [*corpus.documents, *leaked * 8]
for n, group in repeated.items():
    raw += corpus.documents[group] * (n - 1)
draw.shuffle(raw)

pairs = candidate_pairs(signatures_of(raw), 16, 8)
kept = [raw[i] for i, first in enumerate(clusters(pairs, len(raw))) if i == first]
touches = TestSet(test.documents).overlaps
cleaned = [story for story, runs in zip(kept, touches(kept)) if not runs]
print(
    f"{len(raw):,} stories, {len(kept):,} without duplicates, {len(cleaned):,} without the test set"
)

# %% [markdown]
# The training loop is folded. It uses your `Stream`, here with one rank.

# %% tags=["experiment", "folded"]
import math
import time

from minitrain.data.loader import Loader
from minitrain.data.packing import pack
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.training.loop import evaluate
from minitrain.training.loss import token_weighted_loss
from tqdm.auto import tqdm

tokenizer = train_tokenizer(corpus.documents[:1500], 512)
T, D, B, STEPS = 96, lab.size("width"), lab.size("batch"), lab.size("steps")


def packed(stories):
    return pack(tokenizer.encode_batch(stories), T, tokenizer.end_token)


def steps_of(rows):
    """Batches without end, in the order of your stream."""
    stream = Stream(len(rows), B, seed=3)
    while True:
        for step in stream:
            yield rows[step]


def train(stories):
    """A model from the same start, the same number of steps; and seconds."""
    model = build(ModelConfig(512, D, 2, 4, 4, 2 * D, tied=True), seed=0)
    optimizer, start = torch.optim.AdamW(model.parameters()), time.perf_counter()
    batches = zip(range(STEPS), steps_of(packed(stories)))
    for step, own in tqdm(batches, total=STEPS, leave=False):
        share = min(1, (step + 1) / 20) * (1 + math.cos(math.pi * step / STEPS)) / 2
        for group in optimizer.param_groups:
            group["lr"] = 6e-3 * share
        logits = model(own.tokens.long(), own.documents.long(), own.positions())
        token_weighted_loss(logits, own.targets.long(), int(own.valid.sum())).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model, time.perf_counter() - start


def above(model, stories, nats):
    """The loss above these stories' own floor, nats a token."""
    tokens = sum(len(ids) + 1 for ids in tokenizer.encode_batch(stories))
    loss = evaluate(model, list(Loader(packed(stories), 32, shuffle=False)))
    return loss - nats.sum() / tokens


# %% tags=["experiment"]
held_out = make_corpus(lab.size("tested"), seed=4)
models = {"as it was": train(raw)[0]}
models["cleaned"], seconds = train(cleaned)
memorised = []
for name, model in models.items():
    row = {"corpus": name, "copies": 0}
    memorised.append(row | {"above": above(model, held_out.documents, held_out.nats)})
    for n, group in repeated.items():
        row = {"corpus": name, "copies": n}
        value = above(model, corpus.documents[group], corpus.nats[group])
        memorised.append(row | {"above": value})
found = {(row["corpus"], row["copies"]): row["above"] for row in memorised}
lab.reveal("unread", found["as it was", 0] - found["cleaned", 0])

# %% [markdown]
# The folded cell draws both models, and prints the loss of each on stories that neither has read.

# %% tags=["experiment", "picture", "folded"]
with show.canvas() as (fig, ax):
    curves = {name: (COPIES, [found[name, n] for n in COPIES]) for name in models}
    words = "how often these stories came in the corpus as it was"
    show.lines(curves, x=words, y="loss above their floor (nats a token)", ax=ax)
    ax.axhline(0, color="#444444", linestyle="--")
    ax.annotate("the floor", (1, 0), xytext=(0, 5), textcoords="offset points")
    ax.set_xscale("log", base=2)
    ax.set_xticks(COPIES, COPIES)
    ax.set_xlim(0.9, 400)
    show.figure(
        fig,
        alt="Loss above the floor against the number of copies: one curve falls, the other stays level.",
    )
for name in models:
    print(
        f"{name}: {found[name, 0]:.3f} nats above the floor on stories that no model has seen"
    )

# %% tags=["grade"]
lab.experiment("memorised", memorised)

# %% [markdown]
# **Question**: from how many copies on is the first model, trained on the corpus as it was, below these stories' own floor?

# %% tags=["question"]
show.table(
    [
        {"copies": n}
        | {f"{name} (nats above the floor)": found[name, n] for name in models}
        for n in COPIES
    ],
    formats={f"{name} (nats above the floor)": "{:.3f}".format for name in models},
)
### BEGIN SOLUTION
by_heart = min(n for n in COPIES if found["as it was", n] < 0)
### LAB by_heart = None  # your answer, a number of copies
### END SOLUTION

# %% tags=["grade"]
lab.answer("by_heart", by_heart)

# %% [markdown]
# **Explain**: a loss below the floor means memorisation. More than half of what the model read were copies of 53 stories, and that part of
# training did not help with others: on stories that neither model has seen its loss is 0.11 nats higher after the same number of steps.
#
# Lee et al. (2022) report the same for C4: their model of 1.5 billion parameters, trained without duplicates, emits memorised
# training text ten times less often, and needs fewer steps for the same accuracy. Ours memorises a story between its 8th and its 16th copy.
#
# **Contamination** is the same problem with a different effect: the memorised text is the test.

# %% tags=["experiment"]
halves = {"leaked": leaked, "fresh": fresh}
nats = {"leaked": test.nats[::2], "fresh": test.nats[1::2]}
sees = {"as it was": raw, "cleaned": cleaned}
contamination = []
for (name, seen), model in zip(sees.items(), models.values()):
    row = {half: above(model, own, nats[half]) for half, own in halves.items()}
    there = sum(story in seen for story in leaked)
    missed = sum(story in leaked for story in cleaned)
    contamination.append({"corpus": name, "planted": there, "missed": missed, **row})
show.table(
    [
        {
            "corpus": row["corpus"],
            "test stories in it": row["planted"],
            "leaked half": row["leaked"],
            "fresh half": row["fresh"],
            "the whole test": (row["leaked"] + row["fresh"]) / 2,
        }
        for row in contamination
    ],
    formats=dict.fromkeys(
        ["leaked half", "fresh half", "the whole test"],
        "{:.3f}".format,
    ),
    caption="loss on the test set, nats above the floor",
)

# %% tags=["grade"]
lab.experiment("contamination", contamination)

# %% [markdown]
# **Question**: for the first model, trained on the corpus as it was, by how many nats is the loss on the *whole* test set lower than on its
# fresh half? (Take the whole as the mean of its halves.)

# %% tags=["question"]
### BEGIN SOLUTION
row = contamination[0]
flattered = (row["fresh"] - row["leaked"]) / 2
### LAB flattered = None  # your answer, nats per token
### END SOLUTION

# %% tags=["grade"]
lab.answer("flattered", flattered)

# %% [markdown]
# **Explain**: by the whole test the two models are equal, though one is 0.11 nats worse on stories that are new to it. The leak
# hides it. The fresh half shows it. The overlap of 13 consecutive words
# ([Brown et al. 2020](https://arxiv.org/abs/2005.14165), appendix C) found every leaked story here, and two more that share 13 words with the
# test by chance.
#
# **Takeaway**: the uncleaned corpus made the model 0.11 nats worse on new stories, but with half of the test in it, it scored about the
# same on the test: 0.197 and 0.195 nats above the floor.

# %% [markdown]
# ## 8 · Does the model wait for data?
#
# If a loader delivers fewer tokens per second than a model consumes, the model waits, and a waiting accelerator costs as much as a busy
# one. We compare three loaders: one that tokenizes and packs the text at each step, one over rows that were packed beforehand, one over
# token files on disk.

# %% tags=["experiment", "folded"]
import tempfile
from pathlib import Path

from minitrain.data.stream.token_files import TokenRows, write_token_files


def rate(batches, least=0.3):
    """Tokens a second of what comes, for at least so many seconds."""
    count, start = 0, time.perf_counter()
    for own in batches:
        count += own.tokens.numel()
        if time.perf_counter() - start > least:
            break
    return count / (time.perf_counter() - start)


def from_text():
    while True:
        stories = draw.sample(cleaned, B)
        yield packed(stories)


def endless(rows):
    return (batch for epoch in range(10**6) for batch in Loader(rows, B, seed=epoch))


folder = Path(tempfile.mkdtemp())
_ = write_token_files(folder, tokenizer.encode_batch(cleaned), 512, tokenizer.end_token)

# %% tags=["experiment"]
loader = [
    {"source": "text, at each step", "tokens_per_second": rate(from_text())},
    {"source": "packed rows", "tokens_per_second": rate(endless(packed(cleaned)))},
    {"source": "token files", "tokens_per_second": rate(endless(TokenRows(folder, T)))},
    {"source": "the model", "tokens_per_second": STEPS * B * T / seconds},
]
show.table(
    [
        {
            "what": "the model eats" if row["source"] == "the model" else row["source"],
            "thousand tokens a second": row["tokens_per_second"] / 1e3,
            "times the model's appetite": row["tokens_per_second"]
            / loader[-1]["tokens_per_second"],
        }
        for row in loader
    ],
    formats={
        "thousand tokens a second": "{:,.0f}".format,
        "times the model's appetite": "{:.1f}".format,
    },
)

# %% tags=["grade"]
lab.experiment("loader", loader)

# %% [markdown]
# **Explain**: the model consumes little on this machine, so even text is fast enough. An H100 that trains a model of 1 billion parameters at
# 40% of its peak consumes
#
# $$\frac{0.4 \cdot 989 \cdot 10^{12}}{6 \cdot 10^9} = 66{,}000\ \text{tokens per second},$$
#
# and a server with eight of them half a million.
#
# The order of rows need not be random. A curriculum begins with easy examples ([Platanios et al. 2019](https://arxiv.org/abs/1903.09848)); in the
# package it is another function of (seed, epoch), and resumes as yours does.

# %%
from minitrain.data.stream.order import Curriculum, Shuffled, mean_length

rows = packed(cleaned)
lengths = mean_length(rows)  # tokens a story, of each row
orders = {"shuffled": Shuffled(len(rows)), "curriculum": Curriculum(lengths)}
for name, order in orders.items():
    came = lengths[order(seed=0, epoch=0)]
    first, *_, last = (part.mean() for part in np.array_split(came, 4))
    print(
        f"{name}: {first:.0f} tokens a story in the first quarter, {last:.0f} in the last"
    )

# %% [markdown]
# **Takeaway**: packed beforehand, tokens were loaded hundreds of times as fast as this model consumes them, and several times as fast as from
# text. Do everything slow before the run, so that during it the loader only computes an order and reads.
#
# Next: the [map of the course](index.ipynb), or [e12 · Reliability](e12_reliability.ipynb), which keeps a run alive.

# %%
lab.score(read="minitrain/data/preparation/deduplication/near.py")
