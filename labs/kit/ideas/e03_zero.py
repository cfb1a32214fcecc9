"""Schematics of lab e03, zero."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from minitrain.lab.drawing.colors import BLUE, GREEN, ORANGE, PINK, lighter
from minitrain.lab.drawing.shapes import bare, box, hatched, write
from minitrain.lab.ideas.schematic import schematic

KINDS = (  # name, bytes per parameter, the first stage that shards it, colour
    ("parameter, BF16", 2, 3, BLUE),
    ("gradient, BF16", 2, 2, ORANGE),
    ("master copy, FP32", 4, 1, GREEN),
    ("first moment, FP32", 4, 1, PINK),
    ("second moment, FP32", 4, 1, lighter(PINK, 0.45)),
)


def held(stage: int, ranks: int) -> list[float]:
    """Bytes per parameter of each kind on one rank."""
    return [size / ranks if stage >= first else size for _, size, first, _ in KINDS]


def alt_zero_stages(ranks: int) -> str:
    totals = [sum(held(stage, ranks)) for stage in range(4)]
    shown = ", ".join(f"ZeRO-{stage} {total:.4g}" for stage, total in enumerate(totals) if stage)
    where = f"each of {ranks} ranks" if ranks > 1 else "one rank"
    return f"""Bytes a parameter on {where}: DDP 16, {shown}. Bars of the parameter (2), its
    gradient (2), the master copy (4) and two moments (4 each): stage 1 cuts the last three over the
    ranks, stage 2 the gradient too, stage 3 all of it."""


@schematic(alt_zero_stages, 9.5, 3.4, ranks=([1, 2, 4, 8, 16, 64], 4))
def zero_stages(ax: Axes, ranks: int) -> None:
    """Bytes per parameter on a rank, by stage: sharded parts shrink with the number of ranks.

    Mixed precision with Adam: BF16 parameter and gradient, FP32 master copy and two moments, 16
    bytes in all (Rajbhandari et al. 2020, section 3.1).
    """
    left, scale, high = 2.1, 0.56, 0.8
    formulas = ("16", "4 + 12/N", "2 + 14/N", "16/N")
    bare(ax, left + 16 * scale + 2.6, high * 4 + 0.75)
    x = left
    write(ax, left - 0.15, 0.28, f"N = {ranks}", ha="right")
    for (name, *_), size in zip(KINDS, held(0, ranks)):
        write(ax, x + size * scale / 2, 0.28, name.replace(", ", "\n"), 8.5)
        x += size * scale
    for stage in range(4):
        y, x = 0.65 + high * stage, left
        label = "DDP" if stage == 0 else f"ZeRO-{stage}"
        write(ax, left - 0.15, y + 0.3, f"{label}: {formulas[stage]}", ha="right")
        for (_, _, _, color), size in zip(KINDS, held(stage, ranks)):
            if size >= 0.5:
                words = f"{size:g}".lstrip("0")
                box(ax, x + 0.01, y, size * scale - 0.02, 0.6, color, words, 8.5)
            else:  # too narrow for rounded corners
                sliver = Rectangle((x, y), 0.85 * size * scale, 0.6, facecolor=color, linewidth=0)
                ax.add_patch(sliver)
            x += size * scale
        total = sum(held(stage, ranks))
        write(ax, x + 0.12, y + 0.3, f"{total:.4g} bytes", ha="left", fontweight="bold")


UNITS, FORWARD, BACKWARD, MESSAGE = 3, 1.0, 2.0, 0.8
ON_DEMAND, AHEAD = "on demand", "one unit ahead"
NAMED = 2  # the unit whose four moments are named
LEFT, SCALE, HIGH = 1.5, 0.72, 0.52
RANK, MEMORY = 0.8, 1.5  # where the lanes begin; the network's is first
Span = tuple[float, float, str]


class Pass:
    """One forward and backward: network traffic, computation, and memory."""

    def __init__(self, order: str) -> None:
        self.network: list[Span] = []
        self.rank: list[Span] = []
        self.memory: dict[int, list[Span]] = {unit: [] for unit in range(1, UNITS + 1)}
        self.asked: dict[int, tuple[float, float]] = {}  # unit: time requested, time available
        self.moments: dict[tuple[str, int], tuple[float, float]] = {}  # before and after
        self.now = 0.0
        for unit in self.memory:
            self.compute("forward", unit, unit + 1 if order == AHEAD else 0)
        for unit in reversed(self.memory):
            self.compute("backward", unit, unit - 1 if order == AHEAD else 0)

    def send(self, kind: str, unit: int) -> float:
        """Queues a message; returns the time of its arrival."""
        start = max(self.now, self.network[-1][1] if self.network else 0.0)
        self.network.append((start, start + MESSAGE, f"{kind}\n{unit}"))
        return start + MESSAGE

    def gather(self, unit: int) -> None:
        if unit in self.memory and unit not in self.asked:
            self.asked[unit] = self.now, self.send("gather", unit)

    def compute(self, word: str, unit: int, neighbour: int) -> None:
        before = self.now
        self.gather(unit)
        asked, there = self.asked[unit]
        self.now = max(self.now, there)
        self.gather(neighbour)
        length = FORWARD if word == "forward" else BACKWARD
        self.rank.append((self.now, self.now + length, f"{word}\n{unit}"))
        self.now += length
        self.moments[word, unit] = before, self.now
        if word == "backward":
            self.now = self.send("reduce", unit)
        del self.asked[unit]
        self.memory[unit] += [(asked, there, "arrives"), (there, self.now, "full")]

    def waits(self) -> float:
        """The time that the rank spends waiting."""
        return self.now - sum(end - start for start, end, _ in self.rank)


def at(time: float) -> float:
    return LEFT + time * SCALE


def draw_memory(ax: Axes, unit: int, spans: list[Span]) -> None:
    y = MEMORY + 0.58 * (unit - 1)
    write(ax, LEFT - 0.12, y + 0.2, f"memory, unit {unit}", 8.5, ha="right")
    for start, end, words in spans:
        wide = (end - start) * SCALE - 0.02
        shade = lighter(BLUE, 0.85 if words == "arrives" else 0.6)
        box(ax, at(start), y, wide, 0.4, shade, words, 7)


def name_moments(ax: Axes, shown: Pass) -> None:
    """Labels the four events of one unit, on dotted lines."""
    for word in ("forward", "backward"):
        start, end = shown.moments[word, NAMED]
        for when, name, y in ((start, f"before_{word}", 3.75), (end, f"after_{word}", 4.25)):
            ax.plot([at(when)] * 2, [RANK, y - 0.15], color="#666666", linestyle=":", linewidth=1)
            write(ax, at(when), y, name, 8)


def alt_unit_lifetimes(prefetch: str) -> str:
    shown = Pass(prefetch)
    whole = "one unit is" if prefetch == ON_DEMAND else "two units are"
    return f"""Gathered {prefetch}: the rank waits {shown.waits():.1f} of {shown.now:.1f}, a forward
    being 1. Three units go forward and backward; each is gathered before both, and freed after
    both. Where the rank waits it is hatched. At most {whole} in memory. Dotted: the four moments at
    which something happens to unit {NAMED}."""


@schematic(alt_unit_lifetimes, 9.5, 3.7, prefetch=([ON_DEMAND, AHEAD], AHEAD))
def unit_lifetimes(ax: Axes, prefetch: str) -> None:
    """The memory of a ZeRO-3 unit over time: gathered before it computes, freed after it, twice a
    step.

    Three units, forward and then backward, on one rank. In units of one forward: a backward takes
    2, a gather or a reduce-scatter 0.8. The network carries one message at a time; reduce-scatter
    is blocking, as in lab e03.
    """
    shown, longest = Pass(prefetch), Pass(ON_DEMAND).now
    bare(ax, at(longest) + 0.2, 4.55)
    for name, y in (("network", 0.1), ("rank", RANK)):
        write(ax, LEFT - 0.12, y + HIGH / 2, name, 8.5, ha="right")
    hatched(ax, LEFT, RANK, shown.now * SCALE, HIGH)
    for start, end, words in shown.network:
        color = ORANGE if words.startswith("gather") else GREEN
        box(ax, at(start), 0.1, (end - start) * SCALE - 0.03, HIGH, color, words, 7)
    for start, end, words in shown.rank:
        box(ax, at(start), RANK, (end - start) * SCALE - 0.03, HIGH, BLUE, words, 7)
    for unit, spans in shown.memory.items():
        draw_memory(ax, unit, spans)
    name_moments(ax, shown)
    held = f"at most {1 if prefetch == ON_DEMAND else 2} of {UNITS}\nunits in memory"
    words = f"hatched: the rank waits\n\ndotted: the four moments\nof unit {NAMED}\n\n{held}"
    write(ax, at(longest) - 0.1, 3.75, words, 8, ha="right")
