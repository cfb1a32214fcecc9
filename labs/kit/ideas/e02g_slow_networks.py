"""Schematics of lab e02g, slow networks."""

from __future__ import annotations

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, GREEN, INK, ORANGE, PALE, lighter
from minitrain.lab.drawing.shapes import bare, box, write
from minitrain.lab.ideas.schematic import schematic

GRADIENT, KEPT_NUMBERS = (5, 1, 3, 2, 4, 1), 2  # the same each step; top-2 is sent
ROWS, COLUMNS = 12, 18
WORKERS, TICKS = 3, 9
MASKS = {(0, 1): 7, (0, 2): 11, (1, 2): 5}
VALUES, MODULUS = (3, 4, 2), 16


def fed_back(step: int) -> tuple[list[int], list[int], list[int]]:
    """(kept before, sent, kept after) of a step, the first being 1."""
    kept, sent = [0] * len(GRADIENT), [0] * len(GRADIENT)
    for _ in range(step):
        before = kept
        wanted = [g + e for g, e in zip(GRADIENT, kept)]
        largest = sorted(range(len(wanted)), key=lambda i: (-wanted[i], i))[:KEPT_NUMBERS]
        sent = [a if i in largest else 0 for i, a in enumerate(wanted)]
        kept = [a - s for a, s in zip(wanted, sent)]
    return before, sent, kept


def alt_sent_and_kept(step: int) -> str:
    before, sent, kept = fed_back(step)
    return f"""Step {step} of top-2 with error feedback. Six numbers of a gradient,
    {", ".join(map(str, GRADIENT))} in every step; kept from before: {", ".join(map(str, before))}.
    Sent: {", ".join(map(str, sent))}; kept: {", ".join(map(str, kept))}. What is small waits, adds
    up, and is sent once it is among the largest."""


@schematic(alt_sent_and_kept, 9.0, 3.4, step=(1, 6, 1))
def sent_and_kept(ax: Axes, step: int) -> None:
    before, sent, _ = fed_back(step)
    unit, base, left = 0.2, 3.0, 0.6
    bare(ax, 10.2, 3.6)
    for i, (g, e, s) in enumerate(zip(GRADIENT, before, sent)):
        x = left + 1.2 * i
        blue, orange = (c if s else lighter(c, 0.55) for c in (BLUE, ORANGE))
        box(ax, x, base - unit * g, 0.8, unit * g, blue, str(g), 8.5)
        if e:
            box(ax, x, base - unit * (g + e), 0.8, unit * e, orange, str(e), 8.5)
        write(ax, x + 0.4, base + 0.25, f"sends {s}" if s else "waits", 9)
    for y, color, words in ((0.6, BLUE, "gradient g"), (1.1, ORANGE, "kept before, e")):
        box(ax, 7.9, y, 0.3, 0.3, color)
        write(ax, 8.35, y + 0.15, words, ha="left")
    write(ax, 7.9, 1.85, "strong: sent now", ha="left")
    write(ax, 7.9, 2.25, "pale: kept for later", ha="left")


def alt_thin_matrices(rank: int) -> str:
    thin = rank * (ROWS + COLUMNS)
    return f"""A gradient of {ROWS} x {COLUMNS}, and its P and Q of rank {rank}. The matrix has
    {ROWS * COLUMNS} numbers; P, {ROWS} x {rank}, and Q transposed, {rank} x {COLUMNS}, have {thin}
    together, {ROWS * COLUMNS / thin:.1f} times fewer. Each rank multiplies its own matrix; only P
    and Q are averaged."""


@schematic(alt_thin_matrices, 9.0, 3.2, rank=([1, 2, 4], 2))
def thin_matrices(ax: Axes, rank: int) -> None:
    s = 0.17
    bare(ax, 10.2, 3.5)
    write(ax, 1.9, 0.35, f"own gradient M, {ROWS} x {COLUMNS}: stays here", 9)
    box(ax, 0.4, 0.7, s * COLUMNS, s * ROWS, PALE, edgecolor="#bbbbbb")
    write(ax, 4.0, 0.7 + s * ROWS / 2, "≈", 16)
    box(ax, 4.5, 0.7, s * rank, s * ROWS, BLUE)
    write(ax, 4.5 + s * rank / 2, 0.85 + s * ROWS, f"P, {ROWS} x {rank}", 9)
    box(ax, 5.6, 0.7, s * COLUMNS, s * rank, ORANGE)
    write(ax, 5.6 + s * COLUMNS / 2, 0.95 + s * rank, f"Q transposed, {rank} x {COLUMNS}", 9)
    thin = rank * (ROWS + COLUMNS)
    words = f"sent: {thin} numbers in place of {ROWS * COLUMNS}"
    write(ax, 5.6, 2.3, words, ha="left")


def alt_outer_rounds(local_steps: int) -> str:
    return f"""Two ranks in rounds of {local_steps} local steps. From common weights each rank goes
    {local_steps} steps on its own data, the lower curve and the upper one. Then one message each:
    the mean of where they arrived, and the outer step goes on in that direction, beyond the mean
    when momentum has built up. After {local_steps * 2} steps each rank has sent twice."""


@schematic(alt_outer_rounds, 9.0, 3.2, local_steps=([2, 4, 8], 4))
def outer_rounds(ax: Axes, local_steps: int) -> None:
    bare(ax, 10.2, 3.5)
    x, width = 0.5, 4.2
    for turn in range(2):
        for sign, color in ((1, BLUE), (-1, ORANGE)):
            points = [
                (x + width * k / local_steps * 0.85, 1.75 - sign * 1.0 * (k / local_steps) ** 0.8)
                for k in range(local_steps + 1)
            ]
            ax.plot(*zip(*points), marker="o", color=color, markersize=4)
            end = points[-1]
            ax.annotate("", (x + width * 0.86, 1.75), end, arrowprops={"arrowstyle": "->"})
        ax.annotate("", (x + width, 1.75), (x + 0.85 * width, 1.75),
                    arrowprops={"arrowstyle": "-|>", "color": GREEN, "lw": 3})  # fmt: skip
        ax.plot(x, 1.75, "s", color=INK, markersize=8)
        write(ax, x + 0.1, 2.35, f"θ, round {turn + 1}", 9)
        x += width
    ax.plot(x, 1.75, "s", color=INK, markersize=8)
    words = f"{local_steps} local steps each, then one message; green: the outer step"
    write(ax, 0.5, 3.2, words, ha="left")


def pushes(slow: int) -> list[tuple[int, int, int, int]]:
    """(worker, pull, push, staleness) of each push; worker 0 takes `slow` ticks a step."""
    spans = []
    for worker, took in enumerate((slow, 2, 2)):
        begin = worker * 0.5
        while begin + took <= TICKS:
            spans.append((worker, begin, begin + took))
            begin += took
    ends = sorted((end, worker) for worker, _, end in spans)
    return [
        (w, begin, end, sum(begin < e < end or (e == begin and o > w) for e, o in ends if o != w))
        for w, begin, end in spans
    ]  # fmt: skip


def alt_stale_pushes(slow: str) -> str:
    ticks = 4 if slow == "yes" else 2
    each = [s for w, *_, s in pushes(ticks) if w == 0]
    who = ", one worker at half the speed" if slow == "yes" else ""
    return f"""Three workers and a server{who}.
    Each bar is a step from pull to push, the number in it its staleness: how many other pushes
    moved the weights in the meantime. Worker 0 has {", ".join(map(str, each))}. Nobody waits."""


@schematic(alt_stale_pushes, 9.0, 3.0, slow=(["no", "yes"], "no"))
def stale_pushes(ax: Axes, slow: str) -> None:
    bare(ax, 10.4, 3.3)
    for worker, begin, end, age in pushes(4 if slow == "yes" else 2):
        y = 0.5 + 0.85 * worker
        color = (BLUE, ORANGE, GREEN)[worker]
        box(ax, 1.1 + begin, y, end - begin - 0.06, 0.6, lighter(color, 0.12 * age), str(age), 10)
    for worker in range(WORKERS):
        write(ax, 0.5, 0.8 + 0.85 * worker, f"worker {worker}", 9)
    write(ax, 1.1, 3.1, "time →      in each bar: its staleness when it is pushed", ha="left")


def hidden_value(site: int) -> int:
    signed = [m if site == i else -m for (i, j), m in MASKS.items() if site in (i, j)]
    return (VALUES[site] + sum(signed)) % MODULUS


def alt_pair_masks() -> str:
    sent = [hidden_value(site) for site in range(3)]
    values = ", ".join(map(str, VALUES))
    return f"""Three sites sum {values} modulo {MODULUS}. Each pair shares a mask: the lower site
    adds it, the other subtracts it. Sent: {", ".join(map(str, sent))}, which say nothing about the
    values. Their sum modulo {MODULUS} is {sum(sent) % MODULUS}: all masks have cancelled."""


@schematic(alt_pair_masks, 9.0, 3.2)
def pair_masks(ax: Axes) -> None:
    bare(ax, 10.4, 3.4)
    for site, value in enumerate(VALUES):
        x = 0.4 + 2.55 * site
        box(ax, x, 0.3, 2.2, 0.6, BLUE, f"site {site} has {value}", 9.5)
        for row, ((i, j), mask) in enumerate(m for m in MASKS.items() if site in m[0]):
            sign, color = ("+", GREEN) if site == i else ("−", ORANGE)
            pair = f"{sign} {mask}  (mask {i}-{j})"
            box(ax, x, 1.05 + 0.5 * row, 2.2, 0.42, lighter(color, 0.3), pair, 9)
        box(ax, x, 2.15, 2.2, 0.6, PALE, f"sends {hidden_value(site)}", 9.5, edgecolor="#bbbbbb")
    total = sum(map(hidden_value, range(3))) % MODULUS
    write(ax, 8.2, 2.45, f"sum mod {MODULUS} = {total}", 10, ha="left")
    write(ax, 0.4, 3.1, f"all arithmetic modulo {MODULUS}", 9, ha="left")
