"""Schematics of lab e09b, speculative decoding."""

from __future__ import annotations

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, GREEN, INK, ORANGE, PALE, lighter
from minitrain.lab.drawing.shapes import IDLE, arrow, bare, box, hatched, write
from minitrain.lab.ideas.schematic import schematic
from minitrain.words import plural

DRAFTS = ["there", "was", "a", "little"]


def told(kept: int) -> list[str]:
    """The generated tokens: the accepted drafts, and one of the target's."""
    instead = ["in", "lived", "once", "young", "girl"]  # the target's own, after so many drafts
    return [*DRAFTS[:kept], instead[kept]]


def verdict(place: int, kept: int) -> str:
    """The target's verdict on the draft at this place; "" after a rejected one."""
    if place >= len(DRAFTS) or place > kept:
        return ""
    return "keeps" if place < kept else "rejects"


def alt_speculative_round(kept: int) -> str:
    last = "a bonus token" if kept == len(DRAFTS) else "a replacement"
    return f"""{kept} of 4 drafts are kept: {plural(kept + 1, "token")} by one pass of the target. A
    small model drafts 4 tokens one after the other; the target reads all of them at once, after the
    text's last token. What it makes of a token is its distribution of the next, by which that draft
    is kept or rejected. The new text is {" ".join(told(kept))}, whose last token is {last} of the
    target's own."""


@schematic(alt_speculative_round, 9.5, 4.0, kept=(0, 4, 2))
def speculative_round(ax: Axes, kept: int) -> None:
    """A round of speculation: sequential drafts, one pass of the target, and the accepted
    tokens."""
    left, across, wide, high = 4.2, 1.65, 1.4, 0.72
    bare(ax, left + 5 * across + 0.1, 5.2)
    rows = "draft model:\n4 passes, cheap", "target: one pass\nover 5 tokens", "new text"
    for y, words in zip((0.3, 1.9, 3.5), rows):
        write(ax, left - across - 0.2, y + high / 2, words, 9, ha="right")
    style = {"edgecolor": "#999999", "linestyle": "--"}
    box(ax, left - across, 0.3, wide, high, "white", "the text's\nlast token", **style)
    for place, word in enumerate(["", *DRAFTS]):
        x = left + across * (place - 1)
        if place:
            box(ax, x, 0.3, wide, high, PALE, word)
            arrow(ax, (x - across + wide, 0.3 + high / 2), (x, 0.3 + high / 2))
        arrow(ax, (x + wide / 2, 0.3 + high), (x + across + wide / 2, 1.9), "#8a8a8a")
    words = "each token gives $p$,\nof the token after it"
    write(ax, left - across - 0.2, 1.45, words, 8.5, ha="right")
    for place in range(len(DRAFTS) + 1):
        words, said = f"$p_{place + 1}$", verdict(place, kept)
        words += f" {said}\n“{DRAFTS[place]}”" if said else ""
        box(ax, left + across * place, 1.9, wide, high, BLUE, words)
    text = told(kept)
    for place in range(len(DRAFTS) + 1):
        x = left + across * place
        if place < len(text):
            color = GREEN if place < kept else ORANGE
            box(ax, x, 3.5, wide, high, color, text[place])
            arrow(ax, (x + wide / 2, 1.9 + high), (x + wide / 2, 3.5))
        else:
            hatched(ax, x, 3.5, wide, high)
    last = "bonus" if kept == len(DRAFTS) else "replacement"
    names = {"kept draft": GREEN, last: ORANGE, "dropped, and cut from the caches": None}
    for n, (name, color) in enumerate(names.items()):
        x = left + 2.2 * n
        box(ax, x, 4.6, 0.3, 0.3, color) if color else hatched(ax, x, 4.6, 0.3, 0.3)
        write(ax, x + 0.42, 4.75, name, 9, ha="left")


TARGET = [0.40, 0.25, 0.15, 0.10, 0.06, 0.04]
FAR = [0.10, 0.15, 0.10, 0.05, 0.30, 0.30]  # a weak draft model
LIKE = ["25%", "50%", "75%", "100%"]


def draft(like: str) -> list[float]:
    """q: a mixture of p and FAR."""
    share = int(like[:-1]) / 100
    return [share * p + (1 - share) * far for p, far in zip(TARGET, FAR)]


def kept(like: str) -> list[float]:
    return [min(p, q) for p, q in zip(TARGET, draft(like))]


def replaced(like: str) -> list[float]:
    return [p - least for p, least in zip(TARGET, kept(like))]


def rejected(like: str) -> list[float]:
    return [q - least for q, least in zip(draft(like), kept(like))]


def alt_kept_mass(like: str) -> str:
    most = sum(kept(like))
    return f"""Where q is {like} p and {100 - int(like[:-1])}% something else, {100 * most:.0f}% of
    the drafts are kept. Each coloured bar is p, the target's probability of a token. Its lower
    part, up to q, comes from drafts that are kept; the upper parts, {100 * (1 - most):.0f}% in all,
    from replacements. What q has above a bar, hatched, is as much: drafted and rejected."""


@schematic(alt_kept_mass, 8.0, 4.2, like=(LIKE, "50%"))
def kept_mass(ax: Axes, like: str) -> None:
    """The parts of each token's probability in exact verification: min(p, q), and (p - q)+."""
    tokens = ["a", "the", "his", "some", "no", "two"]
    places = range(len(tokens))
    low, rest, q = kept(like), replaced(like), draft(like)
    ax.bar(places, low, 0.6, color=lighter(GREEN, 0.35), label="min(p, q): drafted and kept")
    above = {"bottom": low, "color": lighter(ORANGE, 0.35)}
    ax.bar(places, rest, 0.6, label="(p - q)+: replacements", **above)
    label = "(q - p)+: drafted and rejected"
    ax.bar(places, rejected(like), 0.6, bottom=[*TARGET], label=label, **IDLE)
    xs = [place + side for place in places for side in (-0.42, 0.42)]
    style = {"where": "post", "color": INK, "linewidth": 1.4}
    ax.step(xs, [value for value in q for _ in range(2)], label="q: what is drafted", **style)
    ax.set_xticks(places, tokens)
    ax.set(ylabel="probability", ylim=(0, 0.5))
    ax.legend(loc="upper right", title="a whole coloured bar: p", alignment="left")


STORY = [
    "Ella",
    "saw",
    "a",
    "red",
    "pot",
    "and",
    "went",
    "home",
    ".",
    "Ben",
    "saw",
    "a",
    "red",
    "pot",
]
LONGEST, MOST = 3, 3
ENDS = {"Ben": 10, "saw": 11, "a": 12, "pot": 14}  # number of words shown


def found(count: int) -> tuple[int, int]:
    """Start and length of the latest earlier n-gram that ends the first `count` tokens."""
    text = STORY[:count]
    for size in range(LONGEST, 0, -1):
        for start in range(count - size - 1, -1, -1):
            if text[start : start + size] == text[-size:]:
                return start, size
    return 0, 0


def drafted(count: int) -> list[str]:
    start, size = found(count)
    return STORY[:count][start + size : start + size + MOST] if size else []


def alt_found_again(end: str) -> str:
    start, size = found(ENDS[end])
    last = STORY[: ENDS[end]][-3:]
    told = " ".join(last[last.index(".") + 1 :] if "." in last else last)  # a title ends at a dot
    if not size:
        return f"After “{told}”: nothing is drafted. “{end}” has not stood in the text before."
    again = " ".join(STORY[start : start + size])
    drafts = " ".join(drafted(ENDS[end]))
    return f"""After “{told}”: the last {plural(size, "token")} stood before. The longest end of the
    text that is found again is “{again}”; what followed it is drafted: “{drafts}”. Nothing is
    computed for it."""


@schematic(alt_found_again, 10.5, 2.4, end=(list(ENDS), "a"))
def found_again(ax: Axes, end: str) -> None:
    """Prompt lookup: drafts the continuation of an earlier occurrence of the last tokens."""
    wide = 0.86
    count = ENDS[end]
    start, size = found(count)
    bare(ax, 15.9, 3.0)
    for place, word in enumerate(STORY[:count]):
        again = size and (start <= place < start + size or place >= count - size)
        follows = size and start + size <= place < start + size + MOST
        color = BLUE if again else GREEN if follows else PALE
        box(ax, 0.3 + 0.9 * place, 1.2, wide, 0.6, color, word, 9)
    write(ax, 0.3, 0.7, f"the text: {count} tokens", 9, ha="left")
    drafts = drafted(count)
    for place, word in enumerate(drafts):
        style = {"edgecolor": "#222222", "linestyle": "--"}
        box(ax, 0.3 + 0.9 * (count + place), 1.2, wide, 0.6, lighter(GREEN, 0.6), word, 9, **style)
    if size:
        x, y = 0.3 + 0.9 * (count - size / 2), 0.3 + 0.9 * (start + size / 2)
        arrow(ax, (x, 1.15), (y, 1.15), bend=0.25)
        x, y = (0.3 + 0.9 * (at + len(drafts) / 2) for at in (start + size, count))
        arrow(ax, (x, 1.85), (y, 1.85), bend=0.15)
    words = f"dashed: drafts, what followed there, at most {MOST}"
    write(ax, 0.3, 2.75, words if size else "found nowhere: no draft", 9, ha="left")


ACCEPTANCE, DRAFT = 0.8, 0.25  # per draft token; a draft step's time, in target passes
GROWTH = 0.05  # of a pass's time, for each token beyond the first


def tokens(drafts: int) -> float:
    """The expected number, 1 + a + … + a^g."""
    return sum(ACCEPTANCE**i for i in range(drafts + 1))


def seconds(drafts: int) -> float:
    """Time in units of a one-token pass of the target."""
    return drafts * DRAFT + 1 + GROWTH * drafts


def summands(drafts: int) -> str:
    """1 + 0.8 + 0.8², with dots if there are many."""
    powers = ["1", f"{ACCEPTANCE:g}", *(f"{ACCEPTANCE:g}{'²³⁴⁵⁶⁷⁸'[i]}" for i in range(drafts - 1))]
    powers = powers[: drafts + 1]
    return " + ".join(powers if drafts < 4 else [*powers[:3], "…", powers[-1]])


def alt_round_cost(drafts: int) -> str:
    gain = tokens(drafts) / seconds(drafts)
    count = f"{summands(drafts)} = {tokens(drafts):.2f}" if drafts else "1.00"
    return f"""{plural(drafts, "draft")} a round: {gain:.2f} times as fast. With an acceptance of
    0.8 a round writes {count} tokens in the mean and takes {seconds(drafts):.2f} passes of the
    target: 0.25 for each draft, and a pass over all of them that takes 0.05 longer for each."""


@schematic(alt_round_cost, 9.5, 3.4, drafts=(0, 8, 4))
def round_cost(ax: Axes, drafts: int) -> None:
    """Cost and yield of a round of speculation, compared with the target alone, on one time
    axis."""
    left, unit = 2.2, 2.1
    bare(ax, 13.2, 4.9)
    for n in range(drafts):
        box(ax, left + unit * DRAFT * n, 0.7, unit * DRAFT - 0.05, 0.7, ORANGE, f"{DRAFT:g}", 8.5)
    x = left + unit * DRAFT * drafts
    width = unit * (1 + GROWTH * drafts)
    box(ax, x, 0.7, width - 0.05, 0.7, BLUE, f"{1 + GROWTH * drafts:.2f}" if drafts else "1")
    write(ax, left - 0.2, 1.05, "a round", 9, ha="right")
    count = tokens(drafts)
    words = f"{summands(drafts)} = {count:.2f} tokens in {seconds(drafts):.2f} passes"
    write(ax, left, 0.35, words if drafts else "1 token in 1 pass", 9, ha="left")
    at = left
    for n in range(int(count) + 1):
        part = min(1.0, count - n)
        if part > 0.02:
            words = "1" if part == 1.0 else f"{part:.2f}"
            box(ax, at, 2.4, unit * part - 0.05, 0.7, BLUE, words if part > 0.2 else "")
            at += unit * part
    write(ax, left - 0.2, 2.75, "target alone", 9, ha="right")
    write(ax, left, 2.05, f"as many tokens in {count:.2f} passes", 9, ha="left")
    arrow(ax, (left, 3.6), (left + 4.9 * unit, 3.6))
    words = "time; 1 is the target's pass over one token"
    write(
        ax, left, 3.95, f"{words}    a = {ACCEPTANCE:g}: how likely a draft is kept", 9, ha="left"
    )
    words = f"orange: c = {DRAFT:g}, a pass of the draft model"
    cost = f"{1 + GROWTH * drafts:.2f}"
    words += (
        f"    blue, in a round: v = {cost}, the target's pass over all drafts" if drafts else ""
    )
    write(ax, left, 4.4, words, 9, ha="left")


TEXT = ["Once", "upon"]
NODES = ["a", "the", "time", "day", "day", "there"]
PARENTS = [-1, -1, 0, 0, 1, 2]


def way(node: int) -> list[int]:
    """The path of nodes from the root to this one, inclusive."""
    before = way(PARENTS[node]) if PARENTS[node] >= 0 else []
    return [*before, node]


def position(node: int) -> int:
    return len(TEXT) + len(way(node)) - 1


def _spot(node: int) -> tuple[float, float]:
    heights = [1.5, 3.6, 0.9, 2.2, 3.6, 0.9]  # of the nodes' boxes
    return 2.9 + 1.6 * (len(way(node)) - 1), heights[node]


def alt_draft_tree(node: int) -> str:
    words = " ".join([*TEXT, *(NODES[at] for at in way(node))])
    return f"""Node {node} reads “{words}” and stands at position {position(node)}. Six drafts,
    three ways to go on, are read in one pass: each sees the text, its ancestors and itself, and no
    rival. Rivals stand at the same position of different texts."""


@schematic(alt_draft_tree, 10.5, 4.2, node=(0, 5, 3))
def draft_tree(ax: Axes, node: int) -> None:
    """A tree of drafts: what each node attends to, and its position."""
    cell = 0.52
    bare(ax, 13.4, 5.3)
    for place, word in enumerate(TEXT):
        box(ax, 0.2 + 1.15 * place, 2.2, 1.0, 0.5, GREEN, word, 9)
        write(ax, 0.7 + 1.15 * place, 2.95, f"{place}", 8.5)
    for at, word in enumerate(NODES):
        x, y = _spot(at)
        parent = PARENTS[at]
        start = (_spot(parent)[0] + 1.0, _spot(parent)[1] + 0.25) if parent >= 0 else (2.35, 2.45)
        arrow(ax, start, (x, y + 0.25))
        color = BLUE if at == node else GREEN if at in way(node) else PALE
        box(ax, x, y, 1.0, 0.5, color, word, 9)
        write(ax, x + 0.5, y + 0.72, f"node {at}, position {position(at)}", 8.5)
    left, top, count = 8.1, 1.0, len(NODES)
    heads = [*TEXT, *(str(at) for at in range(count))]
    for column, word in enumerate(heads):
        x = left + cell * column + (0.15 if column >= len(TEXT) else 0)
        write(ax, x + cell / 2, top - 0.25, word, 8.5, rotation=45 if column < len(TEXT) else 0)
        for row in range(count):
            read = column < len(TEXT) or column - len(TEXT) in way(row)
            ink = BLUE if row == node else lighter(GREEN, 0.5)
            box(ax, x, top + cell * row, cell - 0.05, cell - 0.05, ink if read else PALE)
    middle = left + 0.15 + cell * (len(TEXT) + count / 2)
    write(ax, middle, top - 0.6, "nodes", 8.5)
    for row in range(count):
        write(ax, left - 0.15, top + cell * (row + 0.5), f"node {row}", 8.5, ha="right")
    write(ax, left, top + cell * count + 0.45, "coloured: what a node reads", 9, ha="left")
    words = f"blue: node {node}    green: what it reads beside itself"
    write(ax, 0.2, 4.95, words, 9, ha="left")


SENTENCE = ["Ella", "found", "a", "red", "pot", "at", "home"]
HEADS = ["the target's own", "head 1", "head 2", "head 3"]


def target_of(place: int, head: int) -> int | None:
    """The target token of this head at this position; head 0 is the model's own head."""
    at = place + head + 1
    return at if at < len(SENTENCE) else None


def _full(number: int) -> str:
    return HEADS[number] if number else f"{HEADS[0]} head"


def alt_further_heads(head: str) -> str:
    number = HEADS.index(head)
    lacking = sum(target_of(place, number) is None for place in range(len(SENTENCE)))
    return f"""What {_full(number)} is taught at each place: the token {number + 1} further on. It
    guesses from the hidden vector of a token; the last {lacking} of {len(SENTENCE)} places have
    none."""


@schematic(alt_further_heads, 9.5, 3.6, head=(HEADS, "head 1"))
def further_heads(ax: Axes, head: str) -> None:
    """Medusa's heads: each predicts a different future token from one hidden vector, trained on the
    text."""
    across, wide = 1.45, 1.3
    number = HEADS.index(head)
    bare(ax, 12.4, 4.6)
    for place, word in enumerate(SENTENCE):
        x = 1.9 + across * place
        box(ax, x, 0.4, wide, 0.55, BLUE, word)
        wanted = target_of(place, number)
        if wanted is None:
            hatched(ax, x, 2.9, wide, 0.55)
        else:
            box(ax, x, 2.9, wide, 0.55, ORANGE, SENTENCE[wanted])
        box(ax, x, 1.65, wide, 0.55, PALE, f"$h_{place}$")
        arrow(ax, (x + wide / 2, 0.95), (x + wide / 2, 1.65))
        if wanted is not None:
            arrow(ax, (x + wide / 2, 2.2), (x + wide / 2, 2.9))
    for y, words in ((0.67, "text"), (1.92, "hidden"), (3.17, "is taught")):
        write(ax, 1.7, y, words, 9, ha="right")
    for y, words in ((1.3, "the target reads\nall up to here"), (2.55, _full(number))):
        write(ax, 1.7, y, words, 8, ha="right")
    words = f"{_full(number)}: the token {number + 1} further on    hatched: there is none"
    if number:
        words += f"    ({_full(0)}: 1 further on)"
    write(ax, 1.9, 4.1, words, 9, ha="left")
