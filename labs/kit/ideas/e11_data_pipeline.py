"""Schematics of lab e11, data pipeline."""

from __future__ import annotations

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, COLORS, GREEN, ORANGE, PALE, lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, write
from minitrain.lab.ideas.schematic import schematic
from minitrain.words import plural

PAGES = {  # each rule's verdict
    "prose": (),
    "a menu": ("bullets", "stop words"),
    "a stub": ("words", "stop words"),
    "keywords": ("stop words",),
    "teasers": ("ellipses", "broken lines"),
}
RULES = {  # drops a page with
    "words": "fewer than 50",
    "ellipses": "over 0.1 a word",
    "bullets": "over 0.9 of lines",
    "broken lines": "over 0.3 of lines",
    "stop words": "fewer than 2",
}


def reason(page: str, order: str) -> str:
    """The first rule that the page fails, "" if none."""
    rules = list(RULES) if order == "as published" else list(RULES)[::-1]
    return next((rule for rule in rules if rule in PAGES[page]), "")


def alt_first_rule(order: str) -> str:
    counted = ", ".join(f"{page}: {reason(page, order)}" for page in PAGES if reason(page, order))
    return f"""Five pages and five of Gopher's rules, {order}: prose is kept, four pages are
    dropped. The reasons are {counted}. Another order drops the same pages for other reasons."""


@schematic(alt_first_rule, 9.5, 3.5, order=["as published", "turned round"])
def first_rule(ax: Axes, order: str) -> None:
    """Pages pass through rules: each is dropped at the first it fails, with that reason.

    The order changes the recorded reasons, never which pages are dropped.
    """
    left, wide, high = 1.7, 1.75, 0.62
    bare(ax, left + wide * len(RULES) + 1.5, 1.55 + high * len(PAGES))
    rules = list(RULES) if order == "as published" else list(RULES)[::-1]
    for column, rule in enumerate(rules):
        write(ax, left + wide * (column + 0.45), 0.4, rule, 9, fontweight="bold")
        write(ax, left + wide * (column + 0.45), 0.75, RULES[rule], 8.5)
    write(ax, left - 0.2, 0.75, "dropped if", 8.5, ha="right")
    for row, page in enumerate(PAGES):
        y, failed = 1.05 + high * row, reason(page, order)
        write(ax, left - 0.2, y + 0.22, page, 9, ha="right")
        for column, rule in enumerate(rules):
            gone = failed in rules[:column] and bool(failed)
            color = ORANGE if rule == failed else "white" if gone else lighter(GREEN, 0.55)
            words = "drop" if rule == failed else "" if gone else "pass"
            box(ax, left + wide * column, y, wide * 0.9, 0.45, color, words, 9,
                edgecolor=PALE if gone else "none")  # fmt: skip
        if not failed:
            end = left + wide * len(RULES)
            arrow(ax, (end - 0.1, y + 0.22), (end + 0.4, y + 0.22), GREEN)
            write(ax, end + 0.5, y + 0.22, "kept", 9, ha="left")
    write(ax, left, 1.25 + high * len(PAGES), "white: not asked any more", 9, ha="left")


ONE = {"the cat sat": 2, "cat sat on": 5, "sat on a": 9, "on a mat": 14}
OTHER = {"the cat sat": 2, "cat sat on": 5, "sat on the": 11, "on the mat": 16}
FUNCTIONS = ((3, 4), (7, 1), (5, 12), (11, 8))
MODULUS = 17


def value(function: int, x: int) -> int:
    a, b = FUNCTIONS[function]
    return (a * x + b) % MODULUS


def signature(page: dict[str, int], count: int) -> list[int]:
    return [min(value(k, x) for x in page.values()) for k in range(count)]


def similarity() -> float:
    """Jaccard similarity of the two pages."""
    return len(ONE.keys() & OTHER.keys()) / len(ONE.keys() | OTHER.keys())


def alt_smallest_values(hashes: int) -> str:
    one, other = signature(ONE, hashes), signature(OTHER, hashes)
    same = sum(a == b for a, b in zip(one, other))
    return f"""Two pages of four shingles through {hashes} hash functions, a x + b mod {MODULUS}:
    {same} of {hashes} smallest values agree. Two of six shingles are in both pages, a similarity of
    {similarity():.2f}. The signatures are {one} and {other}: where they agree, the smallest shingle
    is in both."""


@schematic(alt_smallest_values, 9.5, 4.6, hashes=(1, len(FUNCTIONS), len(FUNCTIONS)))
def smallest_values(ax: Axes, hashes: int) -> None:
    """MinHash: for two pages, each of four hash functions keeps its smallest shingle hash.

    The functions are h(x) = (a x + b) mod 17, permutations of 0 to 16; the real ones permute 2^32
    values.
    """
    left, wide, high = 2.1, 1.5, 0.46
    bare(ax, 11.6, 6.3)
    same = [a == b for a, b in zip(signature(ONE, hashes), signature(OTHER, hashes))]
    for number, page in enumerate((ONE, OTHER)):
        top = 0.75 + 2.7 * number
        write(ax, 0.1, top - 0.3, f"page {number + 1}", 9, ha="left", fontweight="bold")
        for k in range(hashes):
            if not number:
                words = f"{FUNCTIONS[k][0]}x + {FUNCTIONS[k][1]}"
                write(ax, left + wide * (k + 0.45), top - 0.3, words, 9)
        for row, (shingle, x) in enumerate(page.items()):
            y = top + high * row
            shared = shingle in ONE and shingle in OTHER
            style = {"fontweight": "bold"} if shared else {}
            write(ax, left - 0.2, y + 0.2, f"{shingle}   {x}", 8.5, ha="right", **style)
            for k in range(hashes):
                is_least = value(k, x) == signature(page, hashes)[k]
                color = ORANGE if is_least else lighter(BLUE, 0.85)
                box(ax, left + wide * k, y, wide * 0.9, high - 0.06, color, str(value(k, x)), 9)
    write(ax, left - 0.2, 0.45, "shingle   x", 9, ha="right")
    for k, agree in enumerate(same):
        words = "agree" if agree else "differ"
        color = lighter(GREEN, 0.4) if agree else "white"
        box(ax, left + wide * k, 5.75, wide * 0.9, 0.42, color, words, 9, edgecolor="#cccccc")
    words = f"x: a shingle as a number\neach hash: a x + b mod {MODULUS}\n\n"
    words += "orange: the smallest,\nall that is kept\n\nbold: in both pages"
    write(ax, 8.4, 1.85, words, 9, ha="left")
    words = f"share that agree: {sum(same)} of {hashes}\nJaccard similarity: 2 of 6"
    write(ax, 8.4, 5.7, words, 9, ha="left")


PLACES = 128
LEFT, TOP, WIDE, HIGH = 1.0, 0.5, 7.0, 4.0
COPIES = {"5%": 0.63, "15%": 0.285, "30%": 0.09}  # share of words replaced: similarity


def meets(similarity: float, rows: int) -> float:
    """1 - (1 - s^r)^b, with as many bands as fit."""
    return 1 - (1 - similarity**rows) ** (PLACES // rows)


def half(rows: int) -> float:
    """The similarity at which a pair collides with probability one half."""
    return (1 - 0.5 ** (rows / PLACES)) ** (1 / rows)


def cut_in(rows: int) -> str:
    return f"{PLACES // rows} bands of {plural(rows, 'row')}"


def at(similarity: float, probability: float) -> tuple[float, float]:
    return LEFT + WIDE * similarity, TOP + HIGH * (1 - probability)


def alt_s_curve(rows: int) -> str:
    above = [words for words, s in COPIES.items() if s > half(rows)]
    below = [words for words in COPIES if words not in above]
    parts = [(" or ".join(w), side) for w, side in ((above, "above"), (below, "below")) if w]
    sides = [f"with {words} of their words replaced are {side}" for words, side in parts]
    return f"""{cut_in(rows)}: half of the pairs of similarity {half(rows):.2f} meet. The
    probability of meeting rises from 0 to 1 as an S. Of the copies, those {", those ".join(sides)}
    that similarity."""


@schematic(alt_s_curve, 9.5, 4.4, rows=([1, 2, 4, 8, 16, 32], 4))
def s_curve(ax: Axes, rows: int) -> None:
    """The S-curve: the probability that two documents collide, by similarity, for b bands of r
    rows."""
    bare(ax, 11.2, 5.5)
    steps = [i / 200 for i in range(201)]
    for other in (1, 2, 4, 8, 16, 32):
        points = [at(s, meets(s, other)) for s in steps]
        style = {"color": BLUE, "linewidth": 2.4} if other == rows else {"color": "#d0d0d0"}
        ax.plot(*zip(*points), **style)
    for start, end in (((0.0, 0.0), (0.0, 1.0)), ((1.0, 0.0), (0, 0))):
        ax.plot(*zip(at(*start), at(*end)), color="#666666")
    ax.plot(*zip(at(0, 0.5), at(half(rows), 0.5), at(half(rows), 0)), ":", color="#666666")
    write(ax, *at(0.5, -0.17), "Jaccard similarity", 9)
    write(ax, *at(-0.1, 0.5), "probability of meeting", 9, rotation=90)
    for s in (0, 0.5, 1):
        write(ax, *at(s, -0.06), f"{s:g}", 8)
        write(ax, *at(-0.04, s), f"{s:g}", 8)
    for (words, s), color in zip(COPIES.items(), (ORANGE, GREEN, lighter(BLUE, 0.2))):
        ax.plot(*at(s, meets(s, rows)), "o", color=color, markersize=8)
        x, y = LEFT + WIDE + 0.5, TOP + 2.2 + 0.5 * list(COPIES).index(words)
        ax.plot([x], [y], "o", color=color, markersize=7)
        write(ax, x + 0.2, y, f"{words} of the words replaced", 9, ha="left")
    words = f"{cut_in(rows)}\nhalf of the pairs at {half(rows):.2f}"
    write(ax, LEFT + WIDE + 0.4, TOP + 0.25, words, 9.5, ha="left", fontweight="bold")
    words = "meeting: all rows of a band agree"
    write(ax, LEFT + WIDE + 0.4, TOP + 0.85, words, 8.5, ha="left")
    write(ax, LEFT + WIDE + 0.4, TOP + 1.7, "a page and its copy, with", 9, ha="left")
    words = f"grey: {PLACES} places in other bands"
    write(ax, LEFT + WIDE + 0.4, TOP + 3.9, words, 8.5, ha="left")


PAIRS = ((3, 7), (2, 5), (0, 3), (5, 6), (7, 1))
COUNT = 8


def parents(read: int) -> list[int]:
    """The parent of each page after `read` pairs."""
    parent = list(range(COUNT))
    for pair in PAIRS[:read]:
        low, high = sorted(root(parent, page) for page in pair)
        parent[high] = low
    return parent


def root(parent: list[int], page: int) -> int:
    while parent[page] != page:
        page = parent[page]
    return page


def depth(parent: list[int], page: int) -> int:
    return 0 if parent[page] == page else 1 + depth(parent, parent[page])


def alt_union_of_pairs(pairs_read: int) -> str:
    parent = parents(pairs_read)
    firsts = [root(parent, page) for page in range(COUNT)]
    return f"""After {pairs_read} of {len(PAIRS)} pairs there are {len(set(firsts))} groups of
    pages. Each page points to a parent, a root to itself; the first pages are {firsts}. A pair
    joins the roots of its two pages, the higher below the lower."""


@schematic(alt_union_of_pairs, 9.5, 4.0, pairs_read=(0, len(PAIRS), 4))
def union_of_pairs(ax: Axes, pairs_read: int) -> None:
    """Union-find: pairs merge groups, each represented by its first page."""
    bare(ax, 11.4, 5.0)
    parent = parents(pairs_read)
    for number, (i, j) in enumerate(PAIRS):
        color, words = lighter(GREEN, 0.6) if number < pairs_read else "white", f"{i} ~ {j}"
        box(ax, 0.2 + 1.5 * number, 0.15, 1.3, 0.5, color, words, 9, edgecolor="#cccccc")
    write(ax, 7.8, 0.4, "pairs, as they come\ngreen: they are read", 9, ha="left")
    groups = sorted({root(parent, page) for page in range(COUNT)})
    for page in range(COUNT):
        x, y = 0.3 + 1.05 * page, 1.3 + 0.95 * depth(parent, page)
        hue = COLORS[groups.index(root(parent, page)) % 4]
        is_root = parent[page] == page
        box(ax, x, y, 0.7, 0.55, hue if is_root else lighter(hue, 0.65), str(page), 10)
        if not is_root:
            above = parent[page]
            end = 0.65 + 1.05 * above, 1.87 + 0.95 * depth(parent, above)
            arrow(ax, (x + 0.35, y), end, "#777777")
    firsts = [root(parent, page) for page in range(COUNT)]
    write(ax, 0.3, 4.7, f"first of each page's group: {firsts}", 9.5, ha="left")
    write(ax, 8.9, 1.6, "full colour: a root,\nwhich is kept\npale: dropped", 9, ha="left")


WORD = "abracadabra"


def ordered(symbols: int) -> list[tuple[int, int]]:
    """(start, rank) of the suffixes in their order; suffixes still equal share a rank."""
    starts = sorted(range(len(WORD)), key=lambda start: WORD[start : start + symbols])
    keys = [WORD[start : start + symbols] for start in starts]
    return [(start, keys.index(key)) for start, key in zip(starts, keys)]


def undecided(symbols: int) -> int:
    """The number of suffixes that share their rank with another."""
    ranks = [rank for _, rank in ordered(symbols)]
    return sum(ranks.count(rank) > 1 for rank in ranks)


def alt_sorted_suffixes(symbols: int) -> str:
    starts = [start for start, _ in ordered(symbols)]
    left = undecided(symbols)
    state = f"{left} of them still share a rank" if left else "all are decided"
    following = " The next round sorts by pairs of ranks, which is twice as many symbols."
    following = following if left else ""
    first = plural(symbols, "symbol")
    return f"""The {len(WORD)} suffixes of {WORD}, sorted by their first {first}: {state}. They
    begin at {starts}.{following}"""


@schematic(alt_sorted_suffixes, 9.5, 4.3, symbols=([1, 2, 4, 8], 2))
def sorted_suffixes(ax: Axes, symbols: int) -> None:
    """Prefix doubling on a word: the order of its suffixes by 1, 2, 4 and 8 symbols."""
    left, wide, high = 2.6, 0.62, 0.44
    bare(ax, left + wide * len(WORD) + 2.4, 0.8 + high * len(WORD))
    for x, words in ((0.6, "rank"), (1.8, "begins at")):
        write(ax, x, 0.35, words, 9, fontweight="bold")
    ranks = [rank for _, rank in ordered(symbols)]
    for row, (start, rank) in enumerate(ordered(symbols)):
        y = 0.65 + high * row
        color = ORANGE if ranks.count(rank) > 1 else lighter(BLUE, 0.7)
        box(ax, 0.25, y, 0.7, high - 0.06, color, str(rank), 9)
        write(ax, 1.8, y + (high - 0.06) / 2, str(start), 9)
        for place, sign in enumerate(WORD[start:]):
            shade = lighter(BLUE, 0.75) if place < symbols else PALE
            box(ax, left + wide * place, y, wide - 0.05, high - 0.06, shade, sign, 9)
    words = f"sorted by {plural(symbols, 'symbol')}"
    if undecided(symbols):
        words += "\norange: a rank that is\nshared, not decided\n"
        words += f"next, by {2 * symbols} symbols: by the\nranks of i and of i + {symbols}"
    write(ax, left + wide * len(WORD) - 0.6, 4.5, words, 9, ha="left")


SOURCES = {"good": 2.0, "books": 30.0, "crawl": 1000.0}  # billions of tokens
BUDGET, MOST = 500.0, 4.0  # billions of tokens, passes over a source
MARGIN, SCALE, WIDEST = 8.6, 0.3, 3.0  # of the bars on the right: start, width per pass, longest
TEMPERATURES = {"1": 1.0, "2": 2.0, "5": 5.0, "inf": float("inf")}


def shares(temperature: str) -> list[float]:
    values = [size ** (1 / TEMPERATURES[temperature]) for size in SOURCES.values()]
    return [value / sum(values) for value in values]


def passes(temperature: str) -> list[float]:
    return [BUDGET * p / size for p, size in zip(shares(temperature), SOURCES.values())]


def alt_tempered_shares(temperature: str) -> str:
    told = zip(SOURCES, shares(temperature), passes(temperature))
    words = "; ".join(f"{n} {p:.1%} and {times:.2g} passes" for n, p, times in told)
    over = sum(times > MOST for times in passes(temperature))
    verb = "is" if over == 1 else "are"
    return f"""Temperature {temperature}: {over} of 3 sources {verb} read more than {MOST:g} times.
    Of a run of {BUDGET:g} billion tokens: {words}. Shares grow as size^(1/T). Bars of more than
    {WIDEST / SCALE:.0f} passes are cut short."""


@schematic(alt_tempered_shares, 9.5, 3.6, temperature=(list(TEMPERATURES), "2"))
def tempered_shares(ax: Axes, temperature: str) -> None:
    """Weights of three sources by the temperature, and the resulting passes over each."""
    bare(ax, 12.2, 4.9)
    for x, words in ((1.9, "share of the tokens read"), (MARGIN, "passes over the source")):
        write(ax, x, 0.35, words, 9.5, ha="left", fontweight="bold")
    rows = zip(SOURCES, shares(temperature), passes(temperature), (ORANGE, GREEN, BLUE))
    for row, (name, share, times, color) in enumerate(rows):
        y = 0.8 + 1.05 * row
        write(ax, 1.7, y + 0.35, f"{name}\n{SOURCES[name]:g} billion", 8.5, ha="right")
        box(ax, 1.9, y, max(0.04, 5.0 * share), 0.7, color)
        write(ax, 2.0 + 5.0 * share, y + 0.35, f"{share:.1%}", 9, ha="left")
        many = times > MOST
        wide = min(max(0.04, SCALE * times), WIDEST)
        box(ax, MARGIN, y, wide, 0.7, lighter(color, 0 if many else 0.6))
        gaps = (WIDEST - 0.4, WIDEST - 0.28) if SCALE * times > WIDEST else ()  # it is cut short
        for x in gaps:
            ends = [MARGIN + x, MARGIN + x + 0.12]
            ax.plot(ends, [y + 0.76, y - 0.06], color="white", linewidth=3)
        write(ax, MARGIN + 0.1 + wide, y + 0.35, f"{times:.2g}", 9, ha="left")
    ax.plot([MARGIN + SCALE * MOST] * 2, [0.7, 3.8], ":", color="#444444")
    write(ax, MARGIN + SCALE * MOST, 4.1, f"{MOST:g} passes", 9)
    words = f"pale: up to {MOST:g}"
    if SCALE * max(passes(temperature)) > WIDEST:
        words += "    two gaps: cut short"
    write(ax, MARGIN, 4.55, words, 9, ha="left")
    words = f"a run of {BUDGET:g} billion tokens, T = {temperature}"
    write(ax, 1.9, 4.1, words, 9, ha="left")
    write(ax, 1.9, 4.55, "shares in proportion to size$^{1/T}$", 9, ha="left")


DOCUMENTS = (3, 3, 2)  # tokens, each preceded by an end token
LENGTH = 13
CAUSAL, PACKED = "causal alone", "documents apart"


def owners() -> list[int]:
    """The document at each position; -1 is padding."""
    own = [number for number, size in enumerate(DOCUMENTS) for _ in range(size + 1)]
    return own + [-1] * (LENGTH - len(own))


def positions() -> list[int]:
    own = owners()
    return [place - own.index(owner) for place, owner in enumerate(own)]


def looks(place: int, other: int, mask: str) -> bool:
    own = owners()
    return other <= place and (mask == CAUSAL or own[place] == own[other])


def token(place: int) -> str:
    owner, at = owners()[place], positions()[place]
    return "end" if at == 0 or owner < 0 else f"{'abc'[owner]}{at}"


def wrong(mask: str) -> int:
    """The number of visible pairs that cross a document boundary."""
    own, places = owners(), range(LENGTH)
    return sum(looks(p, q, mask) and own[p] != own[q] for p in places for q in places)


def alt_document_mask(mask: str) -> str:
    return f"""Three documents in a row, {mask}: {wrong(mask)} looks reach into another document.
    Each is read after an end and asked for its own end; positions are {positions()}. Padding, at
    the end of the row, is asked for nothing and looks at itself."""


@schematic(alt_document_mask, 9.5, 5.0, mask=([CAUSAL, PACKED], PACKED))
def document_mask(ax: Axes, mask: str) -> None:
    """Three documents and padding in a row of thirteen positions: attention mask and position
    ids."""
    side, margin, top = 0.42, 3.2, 1.75
    bare(ax, 13.4, top + side * LENGTH + 0.4)
    targets = [token(p + 1) if p + 1 < LENGTH else "–" for p in range(LENGTH)]
    rows = {
        "read": [token(place) for place in range(LENGTH)],
        "asked for": ["–" if o < 0 else t for o, t in zip(owners(), targets)],
        "position": [str(p) for p in positions()],
    }
    for row, (name, texts) in enumerate(rows.items()):
        write(ax, margin - 0.2, 0.3 + 0.45 * row, name, 9, ha="right", fontweight="bold")
        for place, text in enumerate(texts):
            hue = PALE if owners()[place] < 0 else lighter(COLORS[owners()[place]], 0.6)
            box(ax, margin + 0.72 * place, 0.1 + 0.45 * row, 0.68, 0.4, hue, text, 8)
    left = margin + 1.4
    for place in range(LENGTH):
        owner = owners()[place]
        write(ax, left - 0.2, top + side * (place + 0.5), token(place), 8, ha="right")
        for other in range(LENGTH):
            may = looks(place, other, mask)
            across = may and owner != owners()[other]
            hue = "#777777" if across else "#bbbbbb" if owner < 0 else COLORS[owner]
            color = hue if may else "white"
            box(ax, left + side * other, top + side * place, side - 0.04, side - 0.04, color,
                edgecolor="#dddddd")  # fmt: skip
    another = "dark grey: another\ndocument's place\n" if wrong(mask) else ""
    words = f"each row: a place\ncolumns: what it looks at\n\n{another}"
    words += "light grey: padding,\nasked for nothing: –"
    write(ax, left + side * LENGTH + 0.3, top + 1.6, words, 9, ha="left")


ORDER = (7, 2, 9, 4, 11, 1, 8, 0, 5, 10, 3, 6)
BATCH, BEFORE = 2, 2


def consumed(steps: int) -> int:
    """Rows dealt to all ranks before the stop."""
    return min(len(ORDER), steps * BATCH * BEFORE)


def dealt(steps: int, after: int) -> list[tuple[int, int]]:
    """(rank, step) of each position in the order; steps restart from 0 after the stop."""
    start, found = consumed(steps), []
    for place in range(len(ORDER)):
        ranks, at = (BEFORE, place) if place < start else (after, place - start)
        found.append((at % (BATCH * ranks) % ranks, at // (BATCH * ranks)))
    return found


def idle(steps: int, after: int) -> str:
    """Describes the ranks without a row in the last step."""
    last = dealt(steps, after)[-1][1]
    at_work = {rank for rank, step in dealt(steps, after)[consumed(steps) :] if step == last}
    without = [f"rank {rank}" for rank in range(after) if rank not in at_work]
    return f"the last step has no row for {' and '.join(without)}" if without else ""


def alt_resumed_stream(ranks_after: int, steps: int) -> str:
    left = len(ORDER) - consumed(steps)
    rest = f" {words[0].upper()}{words[1:]}." if (words := idle(steps, ranks_after)) else ""
    stopped = f"Stopped after {plural(steps, 'step')} on {BEFORE} ranks"
    return f"""{stopped}, resumed on {ranks_after}: {left} rows are left. The order is
    {list(ORDER)}, drawn from seed and epoch; {consumed(steps)} rows of it were consumed, and each
    row comes once.{rest}"""


@schematic(alt_resumed_stream, 9.5, 3.2, ranks_after=(1, 3, 3), steps=(1, 2, 1))
def resumed_stream(ax: Axes, ranks_after: int, steps: int) -> None:
    """A shuffled epoch dealt to two ranks, stopped, and resumed on three."""
    left, wide = 1.6, 0.82
    bare(ax, left + wide * len(ORDER) + 1.0, 4.1)
    start = consumed(steps)
    write(ax, left - 0.2, 1.15, "rows, in order", 9, ha="right")
    for place, (row, (rank, _)) in enumerate(zip(ORDER, dealt(steps, ranks_after))):
        x = left + wide * place
        box(ax, x, 0.85, wide - 0.08, 0.6, lighter(COLORS[rank], 0.35), str(row), 10)
        write(ax, x + wide / 2 - 0.04, 1.75, f"rank {rank}", 7)
    steps_of = [step for _, step in dealt(steps, ranks_after)]
    edges = [p for p in range(1, len(ORDER)) if p == start or steps_of[p] != steps_of[p - 1]]
    for place in edges:
        x = left + wide * place - 0.04
        style = {"color": "#222222", "linewidth": 2.5} if place == start else {"color": "#aaaaaa"}
        ax.plot([x, x], [0.5, 2.0], **style)
    x = left + wide * start - 0.04
    write(ax, x, 0.25, "stopped here", 9, fontweight="bold")
    arrow(ax, (x, 2.9), (x, 2.1), "#222222")
    write(ax, x, 3.2, f"state: epoch 0, consumed {start}", 9)
    words = f"before: {BEFORE} ranks, after: {ranks_after}; a batch of {BATCH} each"
    words += "; grey line: a step ends" if any(place != start for place in edges) else ""
    write(ax, left, 3.8, words, 8.5, ha="left")
    write(ax, left + wide * len(ORDER) - 0.08, 2.2, idle(steps, ranks_after), 8.5, ha="right")
