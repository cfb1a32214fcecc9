"""Seconds of a message or a collective between chips: inside a node, between nodes, or both.

A collective with W bytes on the wire (2(N-1)/N · S for an all-reduce of S) and step latency a:

    seconds = a + W/B + √(a W/B)        a = steps · α

The third term is chunking: a message is split so that its parts pipeline through the ring; many
small chunks pay α more often, a few large ones leave links idle; at the best size both cost
c·√(a W/B), with c = 2 if every hop waits and 0 if none does (Sanders et al. 2009). c = 1 fits
the sweeps of `data/collective_sweeps.csv`, over six decades of size, to a mean error of 9%; α and β
alone to 16%.

Between nodes NCCL works on two levels: inside each node, and between nodes, where each chip sends
its own share over its own network card.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from minitrain.network.links import Sweep, published_sweep, steps, wire_fraction
from minitrain.planning.hardware import Chip

CHUNKING = 1.0  # c


def chunked(latency: float, transfer: float) -> float:
    """a + W/B + c √(a W/B): a message whose chunks pipeline through the hops."""
    return latency + transfer + CHUNKING * math.sqrt(latency * transfer)


@dataclass(frozen=True)
class Wire:
    """α in seconds a step, bandwidth in bytes/s one way (inf and 0 give an ideal wire)."""

    alpha: float
    bandwidth: float

    def seconds(self, kind: str, nbytes: float, ranks: int) -> float:
        """`nbytes` is the full buffer S, as in `network.links`."""
        if ranks <= 1:
            return 0.0
        latency = steps(kind, ranks) * self.alpha
        transfer = wire_fraction(kind, ranks) * nbytes / self.bandwidth
        return chunked(latency, transfer)


@dataclass(frozen=True)
class Fabric:
    """A node's links and the network between nodes, `per_node` chips to a node."""

    inside: Wire
    between: Wire
    per_node: int
    tree_alpha: float  # latency of one hop of a tree between nodes

    def seconds(self, kind: str, nbytes: float, ranks: int, stride: int = 1) -> float:
        """Seconds among `ranks` chips that are `stride` apart (1: neighbours)."""
        if ranks <= 1 or not nbytes:
            return 0.0
        local = max(1, min(ranks, self.per_node // stride))
        nodes = math.ceil(ranks / local)
        if nodes == 1:
            return self.inside.seconds(kind, nbytes, ranks)
        if local == 1:
            return self.across(kind, nbytes, nodes)
        if kind == "all_to_all":  # all traffic leaving the node goes through the chip's own card
            inside = self.inside.seconds(kind, nbytes / nodes, local)
            return max(inside, self.between.seconds(kind, nbytes, nodes))
        return self.hierarchical(kind, nbytes, local, nodes)

    def hierarchical(self, kind: str, nbytes: float, local: int, nodes: int) -> float:
        """Both levels at once, pipelined: latencies add up, the slower level sets the pace."""
        parts = ("reduce_scatter", "all_gather") if kind == "all_reduce" else (kind,)
        inside = sum(self.inside.seconds(part, nbytes, local) for part in parts)
        across = self.across(kind, nbytes / local, nodes)
        first = sum(steps(part, local) * self.inside.alpha for part in parts)
        return max(inside, across + first)

    def across(self, kind: str, nbytes: float, nodes: int) -> float:
        """A ring between the nodes; an all-reduce uses a double tree if that is faster.

        The tree (Sanders et al. 2009) has 2 log2 N steps for the ring's 2(N-1), and sends 2 S.
        """
        ring = self.between.seconds(kind, nbytes, nodes)
        if kind != "all_reduce":
            return ring
        latency = 2 * math.ceil(math.log2(nodes)) * self.tree_alpha
        transfer = 2 * nbytes / self.between.bandwidth
        return min(ring, chunked(latency, transfer))

    def send(self, nbytes: float, stride: int) -> float:
        """One message to the chip `stride` away: the next pipeline rank."""
        wire = self.inside if stride < self.per_node else self.between
        return wire.alpha + nbytes / wire.bandwidth


IDEAL = Fabric(Wire(0.0, math.inf), Wire(0.0, math.inf), per_node=8, tree_alpha=0.0)


def fit_wire(sweep: Sweep) -> Wire:
    """α and bandwidth with the least mean relative error over the sweep's sizes."""

    def error(wire: Wire) -> float:
        return sum(sweep_errors(sweep, wire))

    best = Wire(3e-6, 2e11)
    factor = 2.0
    while factor > 1.001:
        near = [
            Wire(best.alpha * factor**i, best.bandwidth * factor**j)
            for i, j in product((-1, 0, 1), repeat=2)
        ]
        found = min(near, key=error)
        factor = factor if found != best else math.sqrt(factor)
        best = found
    return best


def sweep_errors(sweep: Sweep, wire: Wire) -> list[float]:
    """|predicted / measured - 1| of each size."""
    return [abs(wire.seconds(sweep.kind, s, sweep.ranks) / t - 1) for s, t in sweep.points]


# Share of a link's rate that rings reach at large sizes, for chips without a sweep of their own:
# ml-engineering finds 78% (A100) to 82% (H200, B200) inside a node, 73 to 74% between nodes.
INSIDE_SHARE, BETWEEN_SHARE = 0.80, 0.735
BETWEEN_ALPHA = 4.0e-6  # NCCL's own table (src/graph/tuning.cc): LL128 over a network, a step
SWEEPS = {"A100": "a100_8gpu_nvlink3", "H100": "h200_8gpu_nvls", "H200": "h200_8gpu_nvls"}
RING_H200 = 362e9  # reduce-scatter 362.9, all-gather 361.4 GB/s: NVLS helps only the all-reduce


@lru_cache
def inside_wire(chip: Chip) -> Wire:
    """The link inside a node: from the chip's own sweep if there is one, else a share of its
    specification."""
    sweep = SWEEPS.get(chip.name.split("-")[0])
    if sweep is None:
        return Wire(3e-6, INSIDE_SHARE * (chip.link or chip.network))
    wire = fit_wire(published_sweep(sweep))
    return wire if sweep.startswith("a100") else Wire(wire.alpha, RING_H200)


@lru_cache
def fabric_of(chip: Chip, per_node: int) -> Fabric:
    """The chip's own links inside a node, and its share of the node's network between them."""
    between = Wire(BETWEEN_ALPHA, BETWEEN_SHARE * (chip.network or chip.link))
    return Fabric(inside_wire(chip), between, per_node, tree_alpha=2 * BETWEEN_ALPHA)
