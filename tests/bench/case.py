"""Benchmarks each technique against its peer: the same work, alternating.

A `Case` measures both contenders in one process tree, A B B A …, and gives a `Row`. Every unit is a
cost, so a ratio over 1 means that ours loses; the row's `reason` is then printed with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType

import torch

from minitrain.measure.clock import Comparison, Timing, compare
from minitrain.optional import optional
from minitrain.ranks.group import Group
from minitrain.ranks.launch import launch as launch_ranks

OURS, PEER = "ours", "peer"
TORCH = f"torch {torch.__version__}"

Shapes = Sequence[tuple[str, int, int]]  # preset, batch (per rank, if there are ranks), length
Steps = dict[str, Callable[[], object]]  # of both contenders
Costs = dict[str, list[float]]  # of both contenders on one rank: seconds or bytes per repeat


@dataclass(frozen=True)
class Row:
    """One comparison. `spread` is the interquartile range of the ratio over its median."""

    name: str
    ours: float
    peer: float
    ratio: float
    unit: str
    peer_name: str
    spread: float
    reason: str = ""  # why ours loses, if it does

    @property
    def lost(self) -> bool:
        return self.ratio > 1


def as_json(rows: Iterable[Row]) -> str:
    """{"rows": [{"name", "ours", "peer", "ratio", "unit", "peer_name", "spread", "reason"}]}"""
    return json.dumps({"rows": [asdict(row) for row in rows]}, indent=2) + "\n"


@dataclass(frozen=True)
class Case:
    """A named measurement to be run; `reason` is reported if ours loses."""

    name: str
    peer_name: str
    measure: Callable[[], Comparison]
    reason: str
    unit: str = "seconds"

    def row(self) -> Row:
        comparison = self.measure()
        ratio = comparison.ratio(OURS, PEER)
        return Row(
            name=self.name,
            ours=comparison.timings[OURS].median,
            peer=comparison.timings[PEER].median,
            ratio=ratio,
            unit=self.unit,
            peer_name=self.peer_name,
            spread=comparison.ratio_spread(OURS, PEER),
            reason=self.reason if ratio > 1 else "",
        )


def in_turn(group: Group, steps: Steps, repeats: int, warmup: int = 3) -> Costs:
    """On each rank: the seconds of every repeat of every contender, a barrier before each."""
    comparison = compare(steps, repeats, warmup, before=group.barrier)
    return {name: list(timing.seconds) for name, timing in comparison.timings.items()}


def on_ranks(function: Callable[..., Costs], *args: object, ranks: int = 2) -> Comparison:
    """`function(group, *args)` gives `in_turn`'s times on each rank; a repeat takes as long as its
    slowest rank. Bytes are likewise the maximum over ranks."""
    results = launch_ranks(function, *args, ranks=ranks, timeout=300)
    repeats = {who: zip(*(costs[who] for costs in results)) for who in results[0]}
    return Comparison({who: Timing(tuple(map(max, each))) for who, each in repeats.items()})


def once(costs: dict[str, int]) -> Comparison:
    """Measures bytes once: they are the same in every repeat."""
    return Comparison({name: Timing((cost,)) for name, cost in costs.items()})


def peer_module(bench: str, module: str) -> ModuleType:
    """The library that a bench compares against; InputError where it is missing."""
    install = module.partition(".")[0]
    return optional(f"the {bench} bench", module, install, ", or name other benches")
