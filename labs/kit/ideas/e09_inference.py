"""Schematics of lab e09, inference."""

from __future__ import annotations

import math
from typing import NamedTuple

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, GREEN, INK, ORANGE, PALE, PINK, lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, hatched, write
from minitrain.lab.ideas.schematic import schematic

WORDS = ("dog", "cat", "bird", "fox", "pig", "cow")
LOGITS = (2.0, 1.6, 1.1, 0.4, -0.3, -1.0)
RULES: dict[str, tuple[float, int | None, float | None]] = {
    "as it is": (1.0, None, None),
    "temperature 0.4": (0.4, None, None),
    "temperature 2": (2.0, None, None),
    "top-k 3": (1.0, 3, None),
    "top-p 0.7": (1.0, None, 0.7),
    "top-k 3, then top-p 0.7": (1.0, 3, 0.7),
}


def stages(rule: str) -> dict[str, list[float]]:
    """The probabilities after the temperature and after each cut, renormalized."""
    temperature, top_k, top_p = RULES[rule]
    left = _scaled([math.exp(logit / temperature) for logit in LOGITS])
    found = {f"temperature {temperature:g}": left}
    if top_k is not None:
        left = _scaled([p if place < top_k else 0.0 for place, p in enumerate(left)])
        found[f"top-k {top_k}"] = left
    if top_p is not None:
        left = _scaled([p if sum(left[:place]) < top_p else 0.0 for place, p in enumerate(left)])
        found[f"top-p {top_p:g}"] = left
    return found


def _scaled(odds: list[float]) -> list[float]:
    return [one / sum(odds) for one in odds]


def kept(rule: str) -> tuple[list[float], list[float]]:
    """The probabilities after the temperature, and after both cuts."""
    every = list(stages(rule).values())
    return every[0], every[-1]


def alt_token_cuts(rule: str) -> str:
    *steps, (_, last) = stages(rule).items()
    between = "".join(f" {words.capitalize()} leaves {_named(p)}." for words, p in steps[1:])
    return f"""{rule[0].upper()}{rule[1:]}: {sum(p > 0 for p in last)} of {len(WORDS)} words can be
    drawn.{between} What is drawn from is {_named(last)}. A low temperature makes what is likely
    likelier; each cut takes words away at the unlikely end, and what is left is scaled up to a sum
    of 1 before the next."""


@schematic(alt_token_cuts, 9.5, 4.2, rule=(list(RULES), "top-k 3, then top-p 0.7"))
def token_cuts(ax: Axes, rule: str) -> None:
    """Temperature, top-k and top-p applied to a model's next-token probabilities.

    Fan et al. 2018 (top-k); Holtzman et al. 2020 (top-p): the smallest set left by top-k whose sum
    reaches p.
    """
    margin, across, ground, high = 2.1, 1.6, 3.4, 3.6  # of the bars
    bare(ax, 11.8, 5.4)
    before, after = kept(rule)
    for place, (word, old, new) in enumerate(zip(WORDS, before, after)):
        x = margin + across * place
        tall, left = (max(high * p, 0.05) for p in (old, new))  # thinner ones have no corners
        box(ax, x, ground - tall, 0.5, tall, PALE, edgecolor="#999999")
        if new:
            box(ax, x + 0.55, ground - left, 0.5, left, BLUE)
        write(ax, x + 0.52, ground + 0.28, word, 10, fontweight="bold")
    were = [1.0] * len(WORDS)
    for row, (words, left) in enumerate(stages(rule).items()):
        y = ground + 0.8 + 0.45 * row
        write(ax, margin - 0.3, y, words, 9, ha="right")
        for place, (was, p) in enumerate(zip(were, left)):
            if was:
                write(ax, margin + 0.52 + across * place, y, _percent(p) if p else "cut off", 9)
        were = left
    words = "grey: by temperature alone    blue: what is drawn from"
    write(ax, 11.6, 0.35, words, 9, ha="right")


def _percent(p: float) -> str:
    return f"{p:.0%}" if p >= 0.005 else "< 1%"


def _named(probabilities: list[float]) -> str:
    return ", ".join(f"{word} {_percent(p)}" for word, p in zip(WORDS, probabilities) if p)


PROMPT = 4


def computed(steps: int, cached: bool) -> list[list[int]]:
    """The tokens that each step computes; the first reads the prompt."""
    if cached:
        return [list(range(PROMPT)), *([PROMPT + step] for step in range(steps - 1))]
    return [list(range(PROMPT + step)) for step in range(steps)]


def total(steps: int, cached: bool) -> int:
    return sum(map(len, computed(steps, cached)))


def alt_cache_steps(tokens: int) -> str:
    without, with_one = total(tokens, False), total(tokens, True)
    return f"""{tokens} tokens after a prompt of {PROMPT}: {without} tokens computed without a
    cache, {with_one} with one. Without one every step computes the whole text so far again. With
    one the first step computes the prompt, and each later step one token; of those before it only
    keys and values are read."""


@schematic(alt_cache_steps, 9.5, 3.2, tokens=(1, 7, 6))
def cache_steps(ax: Axes, tokens: int) -> None:
    """The keys and values computed in each step, without a cache and with one."""
    side = 0.46
    bare(ax, 13.6, 1.1 + side * 7 + 0.4)
    for left, cached, title in ((1.3, False, "without a cache"), (8.1, True, "with a cache")):
        words = f"{title}: {total(tokens, cached)} tokens"
        write(ax, left, 0.35, words, 10, ha="left", fontweight="bold")
        for step, own in enumerate(computed(tokens, cached)):
            y = 0.7 + side * step
            write(ax, left - 0.15, y + 0.2, f"step {step + 1}", 8.5, ha="right")
            for token in range(PROMPT + step):
                hue = ORANGE if token in own else lighter(BLUE, 0.7)
                box(ax, left + side * token, y, side - 0.05, side - 0.05, hue)
    words = "orange: computed in this step    pale blue: only its keys and values are read"
    write(ax, 1.3, 1.1 + side * 7, words, 9, ha="left")


class Moment(NamedTuple):
    """Block tables by sequence, each block's contents, and the event."""

    tables: dict[str, list[int]]
    content: dict[int, str]
    words: str
    copied: tuple[int, int] | None = None


A, B = {"A": [3, 0, 5]}, {"B": [3, 0, 1]}
THREE = {3: "Once upon a time", 0: "there was a little", 5: "dog who"}
FOUR = {**THREE, 1: "cat"}
FIVE = {**FOUR, 2: "dog who ran"}
MOMENTS = {
    "A runs": Moment(A, THREE, "its table names three blocks, wherever they were free"),
    "B begins alike": Moment(
        {**A, **B}, FOUR, "two full blocks are found by their keys, and held twice"
    ),
    "C is A's fork": Moment(
        {**A, **B, "C": [3, 0, 5]}, FOUR, "C goes on from A's text, and holds all of its blocks"
    ),
    "C writes": Moment(
        {**A, **B, "C": [3, 0, 2]},
        FIVE,
        "A held block 5 too, so C wrote into a copy of it, block 2",
        copied=(5, 2),
    ),
    "A and C end": Moment(B, FIVE, "what nobody holds is free, and stays until it is needed"),
}


def refs(moment: str) -> list[int]:
    """Reference count of each block."""
    blocks = 6
    tables = MOMENTS[moment].tables.values()
    return [sum(block in table for table in tables) for block in range(blocks)]


def alt_block_tables(moment: str) -> str:
    held = sum(count > 0 for count in refs(moment))
    places = sum(map(len, MOMENTS[moment].tables.values()))
    return f"""{moment}: {MOMENTS[moment].words}. The tables name {places} blocks in all, and {held}
    are held: a block that several tables name is there once."""


@schematic(alt_block_tables, 9.5, 3.4, moment=(list(MOMENTS), "C writes"))
def block_tables(ax: Axes, moment: str) -> None:
    """Block tables of sequences with a shared prefix: the owners of each block over time.

    Blocks of 4 tokens, as in Kwon et al. 2023, section 4; six blocks in all.
    """
    hues = {"A": lighter(BLUE, 0.5), "B": lighter(ORANGE, 0.5), "C": lighter(GREEN, 0.5)}
    bare(ax, 14.2, 4.6)
    now = MOMENTS[moment]
    write(ax, 0.2, 0.35, "the pool", 10, ha="left", fontweight="bold")
    write(ax, 1.7, 0.36, "a block: keys and values of 4 tokens", 9, ha="left")
    for block, count in enumerate(refs(moment)):
        x, hue = 0.2 + 2.33 * block, lighter(BLUE, 0.7) if count else PALE
        words = now.content.get(block, "").replace(" upon", " upon\n").replace(" was", " was\n")
        box(ax, x, 0.95, 2.2, 0.9, hue, words, 9, edgecolor="#999999")
        write(ax, x + 1.1, 0.72, f"block {block}: held {count}x", 9)
    write(ax, 0.2, 2.3, "the tables", 10, ha="left", fontweight="bold")
    for row, (name, table) in enumerate(now.tables.items()):
        write(ax, 1.5, 2.85 + 0.62 * row, f"text {name}", 9, ha="right")
        for place, block in enumerate(table):
            x = 1.7 + 1.0 * place
            box(ax, x, 2.6 + 0.62 * row, 0.9, 0.5, hues[name], str(block), 9)
    if now.copied:
        start, end = (1.3 + 2.33 * block for block in now.copied)
        arrow(ax, (start, 1.9), (end, 1.9), bend=-0.12)
        write(ax, (start + end) / 2, 2.65, "copied", 9)


ROWS = 3
ANSWERS = {"A": 3, "B": 8, "C": 5, "D": 4, "E": 2}  # steps, the first of which is the prefill


def static() -> list[list[str]]:
    """The request in each row at each step; "" is an empty row."""
    rows: list[list[str]] = [[] for _ in range(ROWS)]
    names = list(ANSWERS)
    for first in range(0, len(names), ROWS):
        batch = names[first : first + ROWS]
        longest = max(ANSWERS[name] for name in batch)
        for row in range(ROWS):
            name = batch[row] if row < len(batch) else ""
            steps = ANSWERS.get(name, 0)
            rows[row] += [name] * steps + [""] * (longest - steps)
    return rows


def continuous() -> list[list[str]]:
    """The same if a free row takes the next request at once."""
    rows: list[list[str]] = [[] for _ in range(ROWS)]
    for name, steps in ANSWERS.items():
        row = min(rows, key=len)
        row += [name] * steps
    longest = max(map(len, rows))
    return [row + [""] * (longest - len(row)) for row in rows]


KINDS = {"static": static, "continuous": continuous}


def alt_batches(kind: str) -> str:
    rows = KINDS[kind]()
    empty = sum(name == "" for row in rows for name in row)
    return f"""{kind.capitalize()} batches: {len(rows[0])} steps of {ROWS} rows, {empty} of these
    {ROWS * len(rows[0])} for nobody. {len(ANSWERS)} texts of
    {", ".join(map(str, ANSWERS.values()))} steps are served in {ROWS} rows. A static batch lasts as
    long as its longest text; in a continuous one the next text takes a row as soon as it is
    free."""


@schematic(alt_batches, 9.5, 2.6, kind=(list(KINDS), "static"))
def batches(ax: Axes, kind: str) -> None:
    """Static and continuous batches, step by step: five requests, three rows.

    After Orca (Yu et al. 2022), figure 3 and Sarathi (Agrawal et al. 2023) for chunks. A prompt's
    chunk is one step here; its length is written on it.
    """
    hues = dict(zip(ANSWERS, (BLUE, ORANGE, GREEN, PINK, "#666666")))
    side = 0.62
    rows = KINDS[kind]()
    bare(ax, 1.4 + side * len(static()[0]) + 0.4, 2.9)
    for row, steps in enumerate(rows):
        y = 0.65 + side * row
        write(ax, 1.2, y + 0.28, f"row {row}", 9, ha="right")
        for step, name in enumerate(steps):
            x = 1.4 + side * step
            if not name:
                hatched(ax, x, y, side - 0.06, side - 0.06)
                continue
            begins = step == 0 or steps[step - 1] != name
            hue = hues[name] if begins else lighter(hues[name], 0.6)
            box(ax, x, y, side - 0.06, side - 0.06, hue, name, 9)
    write(ax, 1.4, 0.35, "steps", 9, ha="left", fontweight="bold")
    words = "dark: reads its prompt    pale: writes    hatched: a row for nobody"
    write(ax, 1.4, 2.72, words, 9, ha="left")


GROUPS, GROUP, CHANNELS, NEW = 2, 4, 8, 3
LARGE = (2, 6)  # channels of the keys


def ranges(along: str) -> int:
    """The number of ranges of the quantized keys, grouped by `along`."""
    return GROUPS * CHANNELS if along == "channel" else GROUPS * GROUP


def spoiled(along: str) -> int:
    """The number of ranges in which a large channel coarsens the others."""
    return 0 if along == "channel" else GROUPS * GROUP


def alt_kv_ranges(keys: str) -> str:
    mixed = spoiled(keys)
    return f"""Keys by the {keys}: {ranges(keys)} ranges, {mixed or "none"} of which
    {"mix" if mixed else "mixes"} large and small numbers. Rows are tokens, columns channels, a
    frame is what shares a range; orange channels are large in every token. The newest {NEW} tokens
    fill no group yet and stay as they are."""


@schematic(alt_kv_ranges, 9.5, 4.1, keys=(["channel", "token"], "channel"))
def kv_ranges(ax: Axes, keys: str) -> None:
    """KV quantization: keys share a range by channel, values by token.

    Liu et al. 2024 (KIVI): some key channels are large in every token, no value channels are.
    """
    side = 0.38
    bare(ax, 13.4, 5.8)
    for left, what, along in ((1.0, "keys", keys), (7.6, "values", "token")):
        write(ax, left, 0.3, f"{what} by the {along}", 10, ha="left", fontweight="bold")
        large = LARGE if what == "keys" else ()
        for token in range(GROUPS * GROUP + NEW):
            y = 0.6 + side * token + 0.12 * (token // GROUP)
            for channel in range(CHANNELS):
                hue = ORANGE if channel in large else lighter(BLUE, 0.55)
                hue = PALE if token >= GROUPS * GROUP and channel not in large else hue
                box(ax, left + side * channel, y, side - 0.05, side - 0.05, hue)
        for group in range(GROUPS):
            top = 0.6 + (side * GROUP + 0.12) * group
            down = along == "channel"
            for n in range(CHANNELS if down else GROUP):
                x, y = (left + side * n, top) if down else (left, top + side * n)
                wide, high = (side, side * GROUP) if down else (side * CHANNELS, side)
                place = x - 0.02, y - 0.02, wide - 0.02, high - 0.02
                box(ax, *place, "none", edgecolor=INK, linewidth=1.2)
            write(ax, left + side * CHANNELS + 0.15, top + 0.75, f"group {group}", 9, ha="left")
        y = 0.6 + side * (GROUPS * GROUP + 1.5) + 0.24
        write(ax, left + side * CHANNELS + 0.15, y, "newest: not\nrounded yet", 9, ha="left")
    legend = "rows: tokens    columns: channels    orange: large    frame: what shares a range"
    write(ax, 1.0, 5.5, legend, 9, ha="left")
