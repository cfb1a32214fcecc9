"""Which keys and values share a range: keys by the channel, values by the token.

Liu et al. 2024 (KIVI): some channels of keys are large in every token, none of the values' is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import INK, lighter
from minitrain.lab.drawing.shapes import PALE, bare, box, rectangle, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROUPS, GROUP, CHANNELS, NEW = 2, 4, 8, 3
LARGE = (2, 6)  # channels of the keys
SIDE = 0.38


def ranges(along: str) -> int:
    """How many ranges the rounded keys have, where what lies along this shares one."""
    return GROUPS * CHANNELS if along == "channel" else GROUPS * GROUP


def spoiled(along: str) -> int:
    """In how many of them a large channel takes the levels from others."""
    return 0 if along == "channel" else GROUPS * GROUP


def draw_kv_ranges(ax: Axes, keys: str) -> None:
    bare(ax, 13.4, 5.8)
    for left, title, along in (
        (1.0, f"keys by the {keys}", keys),
        (7.6, "values by the token", "token"),
    ):
        say(ax, left, 0.3, title, 10, ha="left", fontweight="bold")
        large = LARGE if title.startswith("keys") else ()
        for token in range(GROUPS * GROUP + NEW):
            y = 0.6 + SIDE * token + 0.12 * (token // GROUP)
            for channel in range(CHANNELS):
                hue = ORANGE if channel in large else lighter(BLUE, 0.55)
                hue = PALE if token >= GROUPS * GROUP and channel not in large else hue
                box(ax, left + SIDE * channel, y, SIDE - 0.05, SIDE - 0.05, hue)
        for group in range(GROUPS):
            top = 0.6 + (SIDE * GROUP + 0.12) * group
            count = CHANNELS if along == "channel" else GROUP
            for n in range(count):
                x = left + SIDE * n if along == "channel" else left
                y = top if along == "channel" else top + SIDE * n
                wide = SIDE if along == "channel" else SIDE * CHANNELS
                high = SIDE * GROUP if along == "channel" else SIDE
                shape = {"edgecolor": INK, "linewidth": 1.2}
                ax.add_patch(
                    rectangle(x - 0.02, y - 0.02, wide - 0.02, high - 0.02, "none", **shape)
                )
            say(ax, left + SIDE * CHANNELS + 0.15, top + 0.75, f"group {group}", 9, ha="left")
        y = 0.6 + SIDE * (GROUPS * GROUP + 1.5) + 0.24
        say(ax, left + SIDE * CHANNELS + 0.15, y, "newest: not\nrounded yet", 9, ha="left")
    legend = "rows: tokens    columns: channels    orange: large    frame: what shares a range"
    say(ax, 1.0, 5.5, legend, 9, ha="left")


def say_kv_ranges(keys: str) -> str:
    mixed = spoiled(keys)
    return (
        f"Keys by the {keys}: {ranges(keys)} ranges, {mixed or 'none'} of which "
        f"{'mix' if mixed else 'mixes'} large and small numbers. Rows are tokens, columns "
        "channels, a frame is what shares a range; orange channels are large in every token. The "
        f"newest {NEW} tokens fill no group yet and stay as they are."
    )


kv_ranges = Schematic(
    draw_kv_ranges, say_kv_ranges, (9.5, 4.1), {"keys": (["channel", "token"], "channel")}
)
