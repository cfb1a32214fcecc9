"""Schematics of lab e02g, slow networks."""

from __future__ import annotations

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, GREEN, INK, ORANGE, PALE, lighter
from minitrain.lab.drawing.shapes import bare, box, write
from minitrain.lab.ideas.schematic import schematic

GRADIENT, SENT = (5, 1, 3, 2, 4, 1), 2  # the same each step; the largest two are sent
ROWS, COLUMNS, CELL = 12, 18, 0.17
MASKS = {(0, 1): 7, (0, 2): 11, (1, 2): 5}
VALUES, MODULUS = (3, 4, 2), 16


def listed(numbers: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def fed_back(step: int) -> tuple[list[int], list[int], list[int]]:
    """(kept before, sent, kept after) of a step, the first being 1."""
    before = fed_back(step - 1)[2] if step > 1 else [0] * len(GRADIENT)
    wanted = [g + e for g, e in zip(GRADIENT, before)]
    largest = sorted(range(len(wanted)), key=lambda i: (-wanted[i], i))[:SENT]
    sent = [a if i in largest else 0 for i, a in enumerate(wanted)]
    return before, sent, [a - s for a, s in zip(wanted, sent)]


def alt_sent_and_kept(step: int) -> str:
    before, sent, kept = fed_back(step)
    return f"""Step {step} of top-2 with error feedback. Six numbers of a gradient,
    {listed(GRADIENT)} in every step; kept from before: {listed(before)}. Sent: {listed(sent)};
    kept: {listed(kept)}. What is small waits, adds up, and is sent once it is among the largest."""


@schematic(alt_sent_and_kept, 9.0, 3.4, step=(1, 6, 3))
def sent_and_kept(ax: Axes, step: int) -> None:
    before, sent, _ = fed_back(step)
    bare(ax, 10.2, 3.6)
    for i, (g, e, s) in enumerate(zip(GRADIENT, before, sent)):
        x, blue, orange = 0.6 + 1.2 * i, *(c if s else lighter(c, 0.55) for c in (BLUE, ORANGE))
        box(ax, x, 3.0 - 0.2 * g, 0.8, 0.2 * g, blue, str(g), 8.5)
        if e:
            box(ax, x, 3.0 - 0.2 * (g + e), 0.8, 0.2 * e, orange, str(e), 8.5)
        write(ax, x + 0.4, 3.25, f"sends {s}" if s else "waits", 9)
    for y, color, words in ((0.6, BLUE, "gradient g"), (1.1, ORANGE, "kept before, e")):
        box(ax, 7.9, y, 0.3, 0.3, color)
        write(ax, 8.35, y + 0.15, words, ha="left")
    write(ax, 7.9, 2.0, "strong: sent now\n\npale: kept for later", ha="left")


def alt_thin_matrices(rank: int) -> str:
    thin = rank * (ROWS + COLUMNS)
    return f"""A gradient of {ROWS} x {COLUMNS}, and its P and Q of rank {rank}. The matrix has
    {ROWS * COLUMNS} numbers; P, {ROWS} x {rank}, and Q transposed, {rank} x {COLUMNS}, have {thin}
    together, {ROWS * COLUMNS / thin:.1f} times fewer. Only these two are averaged over ranks."""


@schematic(alt_thin_matrices, 9.0, 3.0, rank=([1, 2, 4], 2))
def thin_matrices(ax: Axes, rank: int) -> None:
    bare(ax, 10.2, 3.4)
    write(ax, 1.9, 0.35, f"own M, {ROWS} x {COLUMNS}: stays here", 9)
    box(ax, 0.4, 0.7, CELL * COLUMNS, CELL * ROWS, PALE, edgecolor="#bbbbbb")
    write(ax, 4.0, 1.7, "≈", 16)
    box(ax, 4.5, 0.7, CELL * rank, CELL * ROWS, BLUE)
    write(ax, 4.5 + CELL * rank / 2, 0.85 + CELL * ROWS, f"P, {ROWS} x {rank}", 9)
    box(ax, 5.6, 0.7, CELL * COLUMNS, CELL * rank, ORANGE)
    write(ax, 7.1, 0.95 + CELL * rank, f"Q transposed, {rank} x {COLUMNS}", 9)
    words = f"sent: {rank * (ROWS + COLUMNS)} numbers in place of {ROWS * COLUMNS}"
    write(ax, 5.6, 2.3, words, ha="left")


def alt_outer_rounds(local_steps: int) -> str:
    return f"""Two ranks in rounds of {local_steps} local steps. From common weights each goes
    {local_steps} steps on its own data, along the upper or the lower curve. Then one message: the
    mean of where they arrived, and an outer step in that direction, here beyond the mean."""


@schematic(alt_outer_rounds, 9.0, 3.0, local_steps=([2, 4, 8], 4))
def outer_rounds(ax: Axes, local_steps: int) -> None:
    bare(ax, 10.2, 3.4)
    for x in (0.5, 4.7):
        for up, color in ((1, BLUE), (-1, ORANGE)):
            shares = [k / local_steps for k in range(local_steps + 1)]
            path = [(x + 3.57 * share, 1.6 - up * share**0.8) for share in shares]
            ax.plot(*zip(*path), marker="o", color=color, markersize=4)
            ax.annotate("", (x + 3.6, 1.6), path[-1], arrowprops={"arrowstyle": "->"})
        wide = {"arrowstyle": "-|>", "color": GREEN, "lw": 3}
        ax.annotate("", (x + 4.2, 1.6), (x + 3.57, 1.6), arrowprops=wide)
    ax.plot([0.5, 4.7, 8.9], [1.6] * 3, "s", color=INK, markersize=8)
    words = f"squares: common θ    curves: {local_steps} local steps each    "
    words += "black arrows: one message    green: the outer step"
    write(ax, 0.5, 3.1, words, ha="left")


def pushes(slow: str) -> list[tuple[int, float, float, int]]:
    """(worker, pull, push, staleness) of each step; worker 0 may take twice as long."""
    ticks = 4 if slow == "yes" else 2
    spans = [(0, ticks * k, ticks * (k + 1)) for k in range(8 // ticks)]
    spans += [(w, w / 2 + 2 * k, w / 2 + 2 * (k + 1)) for w in (1, 2) for k in range(4)]
    return [(w, a, b, sum(a < e < b for o, _, e in spans if o != w)) for w, a, b in spans]


def alt_stale_pushes(slow: str) -> str:
    who = ", one of them half as fast" if slow == "yes" else ""
    ages = [age for worker, *_, age in pushes(slow) if worker == 0]
    return f"""Three workers{who}, and a server that moves the weights at each push. A bar is a step
    from pull to push, the number in it its staleness: how many other pushes moved the weights in
    the meantime. Worker 0 has {listed(ages)}. Nobody waits."""


@schematic(alt_stale_pushes, 9.0, 3.0, slow=(["no", "yes"], "no"))
def stale_pushes(ax: Axes, slow: str) -> None:
    bare(ax, 10.4, 3.3)
    for worker, begin, end, age in pushes(slow):
        color = lighter((BLUE, ORANGE, GREEN)[worker], 0.12 * age)
        box(ax, 1.1 + begin, 0.5 + 0.85 * worker, end - begin - 0.06, 0.6, color, str(age), 10)
    for worker in range(3):
        write(ax, 0.5, 0.8 + 0.85 * worker, f"worker {worker}", 9)
    write(ax, 1.1, 3.1, "time →      in each bar: its staleness when it is pushed", ha="left")


def sends(site: int) -> int:
    signed = [m if site == i else -m for (i, j), m in MASKS.items() if site in (i, j)]
    return (VALUES[site] + sum(signed)) % MODULUS


def alt_pair_masks() -> str:
    sent = [sends(site) for site in range(3)]
    return f"""Three sites sum {listed(VALUES)} modulo {MODULUS}. Each pair shares a mask: the lower
    site adds it, the other subtracts it. Sent: {listed(sent)}, which say nothing about the values.
    Their sum modulo {MODULUS} is {sum(sent) % MODULUS}: all masks have cancelled."""


@schematic(alt_pair_masks, 9.0, 3.0)
def pair_masks(ax: Axes) -> None:
    bare(ax, 10.4, 3.0)
    for site, value in enumerate(VALUES):
        x = 0.4 + 2.55 * site
        box(ax, x, 0.3, 2.2, 0.6, BLUE, f"site {site} has {value}", 9.5)
        for row, ((i, j), mask) in enumerate(m for m in MASKS.items() if site in m[0]):
            sign, color = ("+", GREEN) if site == i else ("−", ORANGE)
            pair = f"{sign} {mask}  (mask {i}-{j})"
            box(ax, x, 1.05 + 0.5 * row, 2.2, 0.42, lighter(color, 0.3), pair, 9)
        box(ax, x, 2.15, 2.2, 0.6, PALE, f"sends {sends(site)}", 9.5, edgecolor="#bbbbbb")
    total = sum(map(sends, range(3))) % MODULUS
    write(ax, 8.2, 2.45, f"sum mod {MODULUS} = {total}", 10, ha="left")
