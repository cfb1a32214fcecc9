"""The cost of a message: the alpha-beta model of a link, and its fit to measured sweeps.

    seconds = steps · α + bytes on the busiest link · β        (Hockney 1994)

α is the latency of one step in seconds, β the seconds per byte (1/bandwidth). A collective of S
bytes on N ranks has the steps and bytes of its usual algorithm (ring, or tree for a broadcast).
`S` is always the full buffer: a reduce-scatter's input, an all-gather's output.

Published sweeps give *bus bandwidth*: busbw = bytes on the busiest link / seconds, which for an
all-reduce is 2(N-1)/N · S / seconds; algbw is S / seconds. Both in GB/s of 10^9 bytes.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from minitrain.errors import InputError, unknown_name
from minitrain.paths import data_dir

KINDS = ("send", "broadcast", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier")


def steps(kind: str, ranks: int) -> int:
    """Sequential messages on the critical path."""
    doublings = math.ceil(math.log2(ranks)) if ranks > 1 else 0
    ring = ranks - 1
    counts = {
        "send": 1,
        "recv": 1,
        "broadcast": doublings,
        "barrier": doublings,
        "all_reduce": 2 * ring,
        "reduce_scatter": ring,
        "all_gather": ring,
        "all_to_all": ring,
    }
    if kind not in counts:
        raise unknown_name("collective", kind, counts)
    return counts[kind]


def wire_fraction(kind: str, ranks: int) -> float:
    """Bytes on the busiest link, as a multiple of S. A long broadcast is pipelined: S, once."""
    share = (ranks - 1) / ranks
    fractions = {
        "send": 1.0,
        "recv": 1.0,
        "broadcast": 1.0,
        "barrier": 0.0,
        "all_reduce": 2 * share,
    }
    return fractions.get(kind, share)


@dataclass(frozen=True)
class Link:
    """α in seconds per step, β in seconds per byte."""

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.beta < 0:
            raise InputError(f"alpha {self.alpha} s, beta {self.beta} s/byte: both are 0 or more")

    def seconds(self, kind: str, nbytes: float, ranks: int) -> float:
        if ranks == 1:
            return 0.0
        return steps(kind, ranks) * self.alpha + wire_fraction(kind, ranks) * nbytes * self.beta

    def __repr__(self) -> str:
        bandwidth = f"{1e-9 / self.beta:.3g} GB/s" if self.beta else "no limit"
        return f"Link(α = {self.alpha * 1e6:.3g} µs, 1/β = {bandwidth})"


@dataclass(frozen=True)
class LinkModel:
    """A default link, and separate ones for kinds of operation that were measured apart."""

    default: Link
    kinds: Mapping[str, Link] = field(default_factory=dict)

    def link(self, kind: str) -> Link:
        return self.kinds.get("send" if kind == "recv" else kind, self.default)

    def seconds(self, kind: str, nbytes: float, ranks: int) -> float:
        """Seconds from the last rank's arrival to the end, for `nbytes` = S on `ranks` ranks."""
        return self.link(kind).seconds(kind, nbytes, ranks)


@dataclass(frozen=True)
class Sweep:
    """Measured seconds of one collective over many sizes."""

    kind: str
    ranks: int
    points: tuple[tuple[float, float], ...]  # (S in bytes, seconds)


def fit(sweep: Sweep) -> Link:
    """α and β by least squares on *relative* errors, so that small sizes count like large ones."""
    if len(sweep.points) < 2:
        raise InputError(f"a fit of alpha and beta needs 2 sizes or more, not {len(sweep.points)}")
    sizes, seconds = np.array(sweep.points).T
    design = np.stack(
        [
            np.full_like(sizes, steps(sweep.kind, sweep.ranks)),
            wire_fraction(sweep.kind, sweep.ranks) * sizes,
        ],
        axis=1,
    )  # (points, 2): the coefficients of α and β
    weighted = design / seconds[:, None]
    alpha, beta = np.linalg.lstsq(weighted, np.ones_like(seconds), rcond=None)[0]
    if alpha < 0:  # the sizes are too large to show a latency: β alone
        alpha, beta = 0.0, weighted[:, 1].sum() / (weighted[:, 1] ** 2).sum()
    elif beta < 0:  # too small to show a bandwidth: α alone
        alpha, beta = weighted[:, 0].sum() / (weighted[:, 0] ** 2).sum(), 0.0
    return Link(float(alpha), float(beta))


def from_bus_bandwidth(kind: str, ranks: int, rows: Sequence[tuple[float, float]]) -> Sweep:
    """A sweep from (S in bytes, busbw in 10^9 bytes/s): seconds = wire bytes / busbw."""
    factor = wire_fraction(kind, ranks)
    return Sweep(kind, ranks, tuple((s, factor * s / (busbw * 1e9)) for s, busbw in rows))


def published_sweep(name: str) -> Sweep:
    """A sweep of `data/collective_sweeps.csv` by the name of its cluster."""
    with (data_dir() / "collective_sweeps.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    rows = [row for row in table if row["cluster"] == name]
    if not rows:
        raise unknown_name("measured cluster", name, {row["cluster"] for row in table})
    sizes = [(float(row["payload_bytes"]), float(row["busbw_GBps"])) for row in rows]
    return from_bus_bandwidth(rows[0]["collective"], int(rows[0]["gpus"]), sizes)
