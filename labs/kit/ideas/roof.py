"""The roofline: what a device can reach at most, by how often it uses each byte that it reads.

Below the ridge, peak over bandwidth, memory decides; above it arithmetic (Williams et al. 2009).
The device is an H100 SXM by its data sheet: 989 TFLOP/s in BF16, 3.35 TB/s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import INK, finish
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PEAK, BANDWIDTH = 989e12, 3.35e12  # FLOP/s, bytes/s
WIDTH = 4096  # of the square weight that rows are multiplied by
BYTES = 2  # of a BF16 number


def intensity(rows: int) -> float:
    """FLOPs a byte of (rows, WIDTH) @ (WIDTH, WIDTH), each matrix read or written once."""
    return 2 * rows * WIDTH**2 / (BYTES * (WIDTH**2 + 2 * rows * WIDTH))


def reachable(flops_a_byte: float) -> float:
    return min(PEAK, BANDWIDTH * flops_a_byte)


def counted(rows: int) -> str:
    return f"{rows:,} row{'' if rows == 1 else 's'}"


def draw_roofline(ax: Axes, rows: int) -> None:
    ridge, here = PEAK / BANDWIDTH, intensity(rows)
    xs = [0.5, ridge, 4000]
    ax.plot(xs, [reachable(x) / 1e12 for x in xs], color=BLUE)
    ax.plot([ridge, ridge], [1, PEAK / 1e12], "--", color="#666666", linewidth=1)
    ax.plot([here], [reachable(here) / 1e12], "o", color=ORANGE, markersize=9)
    style = {"textcoords": "offset points", "fontsize": 9, "color": INK}
    ax.annotate(counted(rows), (here, reachable(here) / 1e12), xytext=(8, -14), **style)
    ax.annotate("memory decides", (3, BANDWIDTH * 3 / 1e12), xytext=(-6, 12), ha="right", **style)
    ax.annotate("arithmetic decides", (700, PEAK / 1e12), xytext=(0, 9), **style)
    ax.annotate(f"ridge: {ridge:.0f} FLOPs a byte", (ridge, 1.6), xytext=(6, 0), **style)
    note = f"point: {counted(rows)} times a {WIDTH:,} x {WIDTH:,} weight, {here:,.1f} FLOPs "
    note += f"a byte\nH100: {PEAK / 1e12:.0f} TFLOP/s, {BANDWIDTH / 1e12:.2f} TB/s"
    ax.text(0.02, 0.985, note, transform=ax.transAxes, va="top", fontsize=9, color=INK)
    ax.set_ylim(1, 5000)
    finish(ax, f"intensity (FLOPs a byte, {BYTES} bytes a number)", "reachable (TFLOP/s)", log="xy")


def say_roofline(rows: int) -> str:
    here = intensity(rows)
    share = reachable(here) / PEAK
    return (
        f"{counted(rows)} of input: {100 * share:.2g}% of an H100's peak at most. A product of "
        f"them with a {WIDTH:,} x {WIDTH:,} weight has {here:,.1f} FLOPs a byte, at {BYTES} "
        f"bytes a number. A line rises with the intensity until the ridge at "
        f"{PEAK / BANDWIDTH:.0f} FLOPs a byte and is flat from there, at {PEAK / 1e12:.0f} "
        "TFLOP/s; the point is this product."
    )


roofline = Schematic(
    draw_roofline, say_roofline, (7.0, 4.4), {"rows": ([1, 8, 64, 256, 1024, 8192], 64)}
)
