"""Small SVG charts, for the page and for notebooks: lines with their range, stacks, bars.

A whole page takes 2 ms, where matplotlib takes half a second; colours follow the reader's theme
(theme.css), and each chart describes itself in words (`aria-label`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from minitrain.apps.watch.history import Point
from minitrain.words import count_text

WIDTH, HEIGHT = 340, 150
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 8, 20  # margins
BLUE, ORANGE = "--a", "--b"
HUES = tuple(f"--{letter}" for letter in "abcdefghij")  # set by theme.css for both themes

Line = tuple[str, str, list[Point]]  # name, hue, points


class Frame:
    """Maps values to places on the picture. `log`: the vertical axis is logarithmic."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float], log: bool = False) -> None:
        self.log = log and min(ys) > 0
        self.left, self.right = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1
        low, high = min(ys), max(ys)
        if self.log:
            low, high = math.log10(low), math.log10(high)
        elif high > 0 and high - low < 0.02 * high:  # nearly constant: do not magnify noise
            low = 0.0
        room = 0.06 * (high - low) or max(abs(high) * 0.05, 1e-9)
        self.low, self.high = (low if low == 0 else low - room), high + room

    def x(self, value: float) -> float:
        share = (value - self.left) / (self.right - self.left)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        value = math.log10(max(value, 1e-300)) if self.log else value
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - max(0.0, min(1.0, share)) * (HEIGHT - TOP - BOTTOM)

    def ticks(self) -> list[float]:
        """Two to five: 1, 2 or 5 times a power of ten apart; or such values on a logarithmic
        axis."""
        if self.log:
            first, last = math.floor(self.low), math.ceil(self.high)
            found = [d * 10.0**e for e in range(first, last + 1) for d in (1, 2, 5)]
            found = [value for value in found if self.low <= math.log10(value) <= self.high]
            if len(found) > 1:
                return found[:: -(-len(found) // 4)]
        low, high = (10**self.low, 10**self.high) if self.log else (self.low, self.high)
        rough = (high - low) / 4
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * d for d in (1, 2, 5, 10) if unit * d >= rough * 0.999)
        first = math.ceil(low / step - 1e-9)
        return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]

    def heights(self) -> str:
        """Grid lines at round values."""
        marks = []
        for value in self.ticks():
            at, shown = self.y(value), escape(count_text(value))
            marks.append(
                f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>'
                f'<text x="{LEFT - 4}" y="{at + 3.5:.1f}" text-anchor="end">{shown}</text>'
            )
        return "".join(marks)

    def axes(self) -> str:
        """The grid, and the first and the last step."""
        marks = [self.heights()]
        ends = ((LEFT, self.left, "start"), (WIDTH - RIGHT, self.right, "end"))
        for at, value, anchor in ends:
            text = f"step {value:,.0f}" if anchor == "end" else f"{value:,.0f}"
            marks.append(f'<text x="{at}" y="{HEIGHT - 5}" text-anchor="{anchor}">{text}</text>')
        return "".join(marks)


def lines(series: Sequence[Line], words: str, level: float | None = None, log: bool = False) -> str:
    """Each line with the range of its values behind it; `level`: a dashed one across."""
    points = [point for _, _, each in series for point in each]
    heights = [value for point in points for value in (point.low, point.high)]
    frame = Frame([p.x for p in points], heights if level is None else [*heights, level], log)
    drawn = [frame.axes()]
    if level is not None:
        at = frame.y(level)
        drawn.append(f'<path class="level" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
    for _, hue, each in series:
        drawn.append(_line(frame, each, hue))
    return _picture("".join(drawn), words)


def _line(frame: Frame, points: list[Point], hue: str) -> str:
    if not points:
        return ""
    middle = [f"{frame.x(p.x):.1f} {frame.y(p.mean):.1f}" for p in points]
    band = dot = ""
    if any(p.high > p.low for p in points):
        there = [f"{frame.x(p.x):.1f} {frame.y(p.high):.1f}" for p in points]
        back = [f"{frame.x(p.x):.1f} {frame.y(p.low):.1f}" for p in reversed(points)]
        band = f'<path class="band" style="fill:var({hue})" d="M{"L".join([*there, *back])}Z"/>'
    if len(points) < 12:  # evaluations, and a run that has just begun
        dots = [f"M{place}h0" for place in middle]
        dot = f'<path class="dot" style="stroke:var({hue})" d="{"".join(dots)}"/>'
    return f'{band}<path class="line" style="stroke:var({hue})" d="M{"L".join(middle)}"/>{dot}'


def stack(series: Sequence[Line], words: str) -> str:
    """Areas on top of each other, of points at the same steps, from 0."""
    count = min(len(points) for _, _, points in series)
    xs = [point.x for point in series[0][2][-count:]]
    sums = [0.0] * count
    layers = []
    for _, hue, points in series:
        below = list(sums)
        sums = [low + point.mean for low, point in zip(below, points[-count:])]
        layers.append((hue, below, sums))
    frame = Frame(xs, [0.0, *sums])
    drawn = []
    for hue, below, above in layers:
        there = [f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in zip(xs, above)]
        back = [f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in zip(xs[::-1], below[::-1])]
        drawn.append(f'<path style="fill:var({hue})" d="M{"L".join([*there, *back])}Z"/>')
    return _picture("".join(drawn) + frame.axes(), words)


def bars(values: dict[int, float], words: str, level: float | None = None) -> str:
    """A bar for each rank, and a dashed line at `level`."""
    frame = Frame([0, len(values)], [0.0, *values.values(), level or 0.0])
    bottom, drawn = HEIGHT - BOTTOM, [frame.heights()]
    for place, (rank, value) in enumerate(values.items()):
        left, right = frame.x(place + 0.15), frame.x(place + 0.85)
        top = frame.y(value)
        hue = BLUE if level is None or value <= level else ORANGE
        drawn.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
            f'height="{bottom - top:.1f}" style="fill:var({hue})"/>'
        )
        if len(values) <= 16:
            middle = (left + right) / 2
            drawn.append(
                f'<text x="{middle:.1f}" y="{HEIGHT - 5}" text-anchor="middle">{rank}</text>'
            )
    if level is not None:
        drawn.append(f'<path class="level" d="M{LEFT} {frame.y(level):.1f}H{WIDTH - RIGHT}"/>')
    return _picture("".join(drawn), words)


def _picture(inside: str, words: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(words)}">'
        f"{inside}</svg>"
    )
