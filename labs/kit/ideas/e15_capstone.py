"""Schematics of lab e15, the capstone."""

from __future__ import annotations

from matplotlib.axes import Axes

from minitrain.lab.capstone.pipelines import Pipeline, clock_of, made
from minitrain.lab.capstone.reference import lower_bound, schedule
from minitrain.lab.drawing.colors import BLUE, GREEN, INK, ORANGE, PINK
from minitrain.lab.drawing.shapes import bare, box, write
from minitrain.lab.ideas.schematic import schematic

RANKS = [1, 8, 64, 1024]
LAYERS, WIDTH, FFN, TOKENS, BILLIONS = 32, 4096, 14336, 8192, 8.03
KINDS = {"parameters": BLUE, "gradients": ORANGE, "Adam's state": GREEN, "activations": PINK}


def gigabytes(ranks: int, zero: int, adam_bits: int, recompute: str) -> list[float]:
    """Of an 8B model in FP32 weights and BF16 activations, by kind."""
    shared = [ranks if zero >= stage else 1 for stage in (3, 2, 1)]
    each = (4, 4, 8 if adam_bits == 32 else 2)
    states = [size * BILLIONS / n for size, n in zip(each, shared)]
    kept = WIDTH if recompute == "full" else 4 * WIDTH + 2.5 * WIDTH + 4 * FFN
    return [*states, 2 * kept * LAYERS * TOKENS / 1e9]


def alt_byte_stairs(**stack: object) -> str:
    values = gigabytes(**stack)
    parts = ", ".join(f"{kind} {value:.1f}" for kind, value in zip(KINDS, values))
    return f"""{sum(values):.0f} GB on each of {stack["ranks"]} ranks. An 8B model with 8,192 tokens
    a rank, ZeRO stage {stack["zero"]}, Adam in {stack["adam_bits"]} bits, recomputation
    {stack["recompute"]}; in GB: {parts}. The line is a GPU of 80 GB."""


@schematic(
    alt_byte_stairs, 9, 2.4, ranks=(RANKS, 8), zero=(0, 3, 1), adam_bits=([8, 32], 32),
    recompute=(["none", "full"], "none"),
)  # fmt: skip
def byte_stairs(ax: Axes, **stack: object) -> None:
    """The four kinds of bytes end to end, beside a GPU's memory."""
    bare(ax, 12, 2.2)
    at, scale = 0.2, 11.5 / 175
    for (kind, color), value in zip(KINDS.items(), gigabytes(**stack)):
        words = f"{kind}\n{value:.0f} GB" if value * scale > 1.3 else ""
        box(ax, at, 0.7, max(value * scale, 0.02), 0.9, color, words, 8)
        at += value * scale
    ax.plot([0.2 + 80 * scale] * 2, [0.5, 1.8], color=INK, linestyle="--")
    write(ax, 0.2 + 80 * scale, 2.0, "a GPU of 80 GB", 8.5)
    names = "    ".join(KINDS)
    write(ax, 0.2, 0.25, f"from left to right: {names}", 8.5, ha="left")


def case_of(ranks: int, microbatches: int, live: int) -> Pipeline:
    return Pipeline("", ((1.0, 1.0, 1.0),) * ranks, microbatches, live)


def reasons(p: int, m: int, live: int) -> str:
    """The three bounds of equal ranks, each at the rank where it is largest."""
    back = 2 * (p - 1) + 2 * m + max(0, m - live) + 1
    memory = max(m * (3 + 2 * (p - 1)) / live, p - 1 + 3 * m / live)
    return f"work {p - 1 + 3 * m} s, the way back {back} s, memory {memory:.0f} s"


def alt_pipeline_bound(**sizes: int) -> str:
    case = case_of(**sizes)
    p, m, live = sizes["ranks"], sizes["microbatches"], sizes["live"]
    ends = clock_of(case, made(case, schedule(case))).makespan
    return f"""No schedule of {p} ranks takes under {lower_bound(case):.0f} seconds. F, B and W of
    {m} microbatches take one second each, so that the last rank begins after {p - 1} and works for
    {3 * m}; at most {live} are alive at once. The three reasons: {reasons(p, m, live)}. A greedy
    schedule is drawn, and ends at {ends:.0f}."""


@schematic(
    alt_pipeline_bound, 9.5, 2.8, ranks=(2, 4, 4), microbatches=(2, 8, 6), live=(1, 6, 4)
)  # fmt: skip
def pipeline_bound(ax: Axes, **sizes: int) -> None:
    case = case_of(**sizes)
    clock, bound = clock_of(case, made(case, schedule(case))), lower_bound(case)
    bare(ax, max(clock.makespan + 2, 16), sizes["ranks"] + 1.5)
    colors = {"F": BLUE, "B": ORANGE, "W": GREEN}
    for rank, events in enumerate(clock.ranks):
        y = rank + 0.8
        write(ax, 0.9, y + 0.4, f"rank {rank}", 8.5, ha="right")
        for event in events:
            kind, i, _ = event.operation
            box(ax, 1 + event.start, y, 1, 0.8, colors[kind], f"{kind}{i}", 6)
    write(ax, 1, 0.35, reasons(**dict(zip(("p", "m", "live"), sizes.values()))), 8.5, ha="left")
    ax.plot([1 + bound] * 2, [0.6, sizes["ranks"] + 0.9], color=INK, linestyle="--")
    write(ax, 1 + bound, sizes["ranks"] + 1.2, f"the bound: {bound:.0f} s", 8.5, ha="right")


def alt_swap_or_wait(recovers: int) -> str:
    best, waits = min(240, recovers), "swaps" if recovers > 240 else "waits"
    yours = recovers if recovers <= 240 else 480
    return f"""Swap once waiting has cost as much as a swap: at most twice the best. The slow node
    would cost {recovers} seconds until it recovers, a swap costs 240: the clairvoyant {waits} and
    pays {best}, the rule pays {yours}, whoever never swaps {recovers}, always swaps 240."""


@schematic(alt_swap_or_wait, 8.5, 2.6, recovers=([60, 120, 240, 360, 720, 1440], 720))
def swap_or_wait(ax: Axes, recovers: int) -> None:
    rule = recovers if recovers <= 240 else 480
    paid = {"clairvoyant": min(240, recovers), "the rule": rule, "never": recovers, "always": 240}
    bare(ax, 12, 4.4)
    for place, (name, seconds) in enumerate(paid.items()):
        y = 0.3 + place
        write(ax, 1.7, y + 0.35, name, 9, ha="right")
        box(ax, 1.9, y, seconds / 160, 0.7, BLUE if place < 2 else ORANGE, "")
        write(ax, 2.0 + seconds / 160, y + 0.35, f"{seconds} s", 9, ha="left")
