"""The public cases of the tracks, which need the tables of `data/`."""

from __future__ import annotations

from dataclasses import replace

from minitrain.lab.capstone.incidents import make_trace
from minitrain.lab.capstone.pipelines import Pipeline
from minitrain.lab.capstone.plans import Case
from minitrain.planning.hardware import Chip, find_chip
from minitrain.planning.run import Model, Plan

SMALL = Model(16, 2048, 32, 8, 8192, 128256)  # 1.2B
LLAMA = Model(32, 4096, 32, 8, 14336, 128256)  # 8B
LARGE = Model(64, 5120, 40, 8, 25600, 151936)  # 32B
MIXTURE = Model(16, 2048, 16, 16, 8192, 50304, experts=64, experts_per_token=8, moe_ffn=1024)


def chip(name: str, **changed: float) -> Chip:
    return replace(find_chip(name), **changed)


H100, A100 = "H100-SXM-80GB", "A100-SXM-80GB"
FAST = Plan(dp=32, zero=2)
SLOW = Plan(pp=8, vpp=4, dp=4, zero=1, schedule="interleaved")
PLANS = (
    Case("8B", LLAMA, chip(H100), 32, 8192, 64, FAST),
    Case("8B, network of 10 Gbit/s", LLAMA, chip(H100, network=1.25e9), 32, 8192, 64, SLOW),
    Case("8B, sequences of 65,536", LLAMA, chip(H100), 32, 65536, 8, Plan(cp=8, dp=4, zero=2)),
    Case("mixture", MIXTURE, chip(H100), 16, 4096, 64, Plan(dp=16, zero=2, micro_batch=4)),
    Case("1.2B on two A100", SMALL, chip(A100), 2, 4096, 16, Plan(dp=2, zero=1, micro_batch=4)),
    Case("32B", LARGE, chip(H100), 64, 4096, 128, Plan(tp=2, sp=True, dp=32, zero=2)),
)  # fmt: skip

EVEN = (1.0, 1.0, 1.0)
PIPELINES = (
    Pipeline("even", (EVEN,) * 4, 8, live=4),
    Pipeline("little memory", (EVEN,) * 4, 8, live=2),
    Pipeline("slow network", (EVEN,) * 4, 12, live=6, send=0.5),
    Pipeline("heavy head", (*[EVEN] * 3, (1.6, 1.7, 1.3)), 8, live=4),
)

TRACES = {
    "as promised": make_trace(1),
    "three times as many failures": make_trace(2, rate=3, save=30),
    "slow nodes, long saves": make_trace(3, rate=0.5, save=60, slow_every=6),
}
