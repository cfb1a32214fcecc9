"""Emulated clusters: real tensors, with a logical clock on each rank.

`launch(fn, ranks=8, fabric="h100-nvlink")` runs the ranks on this machine, with real values, and
the clock gives the time the same run would have taken there:

    compute        the CPU seconds that the rank's thread used · compute_scale
    communication  alpha-beta links (`links.py`): NVLink inside a node, a network between nodes
    wait()         joins the two: compute resumes when the operation is done

    compute   |--backward 3--|--backward 2--|--backward 1--|·wait·|--optimizer--|
    link                     |---bucket 0---|---bucket 1----------|

It leaves out kernel launches, memory limits, other jobs on the network, and a GPU's behaviour with
small matrices. It is an emulation, and every figure from it says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from minitrain.errors import InputError, check_whole, unknown_name
from minitrain.measure.clock import matmul_peak
from minitrain.network.links import Link, LinkModel, fit, published_sweep


@dataclass(frozen=True)
class Device:
    """A compute device: its achievable dense matmul rate in FLOP/s (None: this machine's own)."""

    name: str
    flops: float | None = None


H100 = Device("H100 SXM, bf16", 794.5e12)  # best matmul that mamf-finder of ml-engineering measured
A100 = Device("A100 SXM, bf16", 271.2e12)


@dataclass(frozen=True)
class Fabric:
    """Devices, `ranks_per_node` to a node, with links inside and between the nodes.

    `compute_scale` turns a CPU second into device seconds; None: the measured rate of one thread of
    this machine over the device's. `payload_scale` lets a small tensor stand for a larger one: with
    1000, a 1M-parameter model's gradients cost what a 1B-parameter model's would.
    Communication costs no compute: the network card does the work.
    """

    name: str
    device: Device
    inside: LinkModel
    between: LinkModel | None = None
    ranks_per_node: int = 8
    compute_scale: float | None = None
    payload_scale: float = 1.0

    def __post_init__(self) -> None:
        check_whole("ranks_per_node", self.ranks_per_node)
        for name in ("compute_scale", "payload_scale"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InputError(f"{name} = {value}: a factor on time or bytes, give more than 0")

    def seconds(self, kind: str, nbytes: float, ranks: Sequence[int]) -> float:
        """Seconds for `nbytes` among these global ranks, from the arrival of the last one.

        Across nodes it runs in two levels, as NCCL does: inside each node, and between the nodes,
        where each rank's own network card carries nodes/N of the data. The levels are pipelined:
        their latencies add up, and the slower one limits the bandwidth.
        """
        nbytes = nbytes * self.payload_scale
        per_node = Counter(rank // self.ranks_per_node for rank in ranks)
        if len(per_node) == 1:
            return self.inside.seconds(kind, nbytes, len(ranks))
        between = self.between or self.inside
        local = max(per_node.values())
        if local == 1:
            return between.seconds(kind, nbytes, len(ranks))
        return self._two_levels(kind, nbytes, between, local, len(per_node))

    def _two_levels(
        self, kind: str, nbytes: float, between: LinkModel, local: int, nodes: int
    ) -> float:
        share = nbytes if kind == "broadcast" else nbytes / local
        if kind == "all_to_all":  # (nodes-1)/nodes of the data leaves the node, on one card
            share = nbytes
        # an all-reduce is a reduce-scatter inside, all-reduces between, and an all-gather inside
        parts = ("reduce_scatter", "all_gather") if kind == "all_reduce" else (kind,)
        latency_inside = sum(self.inside.seconds(part, 0, local) for part in parts)
        inside = sum(self.inside.seconds(part, nbytes, local) for part in parts) - latency_inside
        latency_across = between.seconds(kind, 0, nodes)
        across = between.seconds(kind, share, nodes) - latency_across
        return latency_inside + latency_across + max(inside, across)

    def resolved(self) -> Fabric:
        """The same with `compute_scale` as a number: measured here, once, if it was None."""
        if self.compute_scale is not None:
            return self
        if self.device.flops is None:
            return replace(self, compute_scale=1.0)
        rate = matmul_peak(torch.float32, "cpu", threads=1)
        return replace(self, compute_scale=rate / self.device.flops)

    def __repr__(self) -> str:
        scale = "" if self.compute_scale is None else f", 1 CPU s = {self.compute_scale:.3g} s"
        inside = self.inside.link("all_reduce")
        between = "" if self.between is None else f", {self.between.link('all_reduce')} between"
        return (
            f"Fabric({self.name}, emulated: {self.device.name}, {self.ranks_per_node} a node, "
            f"{inside} inside{between}{scale})"
        )


# 400 Gb/s a rank, of which NCCL gets 73.5% (ml-engineering, network: "inter-node wire over spec");
# latency: NCCL's own tuning table (src/graph/tuning.cc, ring, LL128, network: 4 µs a step).
INFINIBAND_NDR = Link(alpha=4.0e-6, beta=1 / (0.735 * 50e9))

# 25 Gb/s, of which TCP gets about 94% (headers of 1,500-byte frames); through the kernel's TCP
# stack a message takes 10 to 30 µs one way.
ETHERNET_25G = Link(alpha=30e-6, beta=1 / (0.94 * 25e9 / 8))


def h100_nvlink() -> Fabric:
    """8 H100 on NVLink 4: ring figures of the H200 (same links), and NVLS for the all-reduce."""
    nvls = fit(published_sweep("h200_8gpu_nvls"))
    ring = Link(nvls.alpha, beta=1 / 362e9)  # reduce-scatter 362.9, all-gather 361.4 GB/s measured
    peer = Link(nvls.alpha, beta=1 / 376e9)  # between two GPUs, measured
    return Fabric("h100-nvlink", H100, LinkModel(ring, {"all_reduce": nvls, "send": peer}))


def a100_nvlink() -> Fabric:
    """8 A100 on NVLink 3."""
    ring = fit(published_sweep("a100_8gpu_nvlink3"))
    peer = Link(ring.alpha, beta=1 / 274e9)
    return Fabric("a100-nvlink", A100, LinkModel(ring, {"send": peer}))


def h100_infiniband() -> Fabric:
    """Nodes of 8 H100 on NVLink, and one 400 Gb/s InfiniBand card for each GPU between them."""
    inside = h100_nvlink().inside
    return Fabric("h100-infiniband", H100, inside, between=LinkModel(INFINIBAND_NDR))


def ethernet_25g() -> Fabric:
    """One A100 per machine, 25 Gb/s Ethernet between the machines."""
    inside = a100_nvlink().inside
    return Fabric("ethernet-25g", A100, inside, LinkModel(ETHERNET_25G), ranks_per_node=1)


FABRICS = {
    "h100-nvlink": h100_nvlink,
    "a100-nvlink": a100_nvlink,
    "h100-infiniband": h100_infiniband,
    "ethernet-25g": ethernet_25g,
}


def find_fabric(fabric: str | Fabric) -> Fabric:
    """The fabric of this name (or itself), with its compute scale measured: ready for ranks."""
    if isinstance(fabric, Fabric):
        return fabric.resolved()
    if fabric not in FABRICS:
        raise unknown_name("fabric", fabric, FABRICS)
    return FABRICS[fabric]().resolved()
