"""Steps that take the time of a larger model on an emulated device.

The tokens are really computed, by a small model; the seconds come from a roofline on the emulated
clock: the larger of the matmul time at the device's rate, and the time to read all weights and each
sequence's keys and values once from its memory.

    seconds = max((2·W·tokens + 4·L·H·C·Σ read) / FLOP/s,
                  (bytes of W + 2·L·K·C·itemsize·Σ lengths) / B/s)

A prompt of a few hundred tokens is bound by the first term, decoding by the second, which is why
they are separated. Left out: kernel launches, the sampler, and host work between steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from minitrain.inference.engine.runner import Pass, Runner
from minitrain.inference.engine.scheduler import Plan
from minitrain.measure.parameters import active_parameter_count, parameter_count
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer
from minitrain.network.fabric import Fabric
from minitrain.network.logical_clock import LogicalClock

H100_MEMORY = 3.35e12  # bytes/s of HBM3, NVIDIA's data sheet of the H100 SXM
NOTHING = 1e-12  # share of this machine's own CPU time left on the clock


@dataclass(frozen=True)
class Emulation:
    """Emulates `config` in place of the running model, on devices of `fabric`."""

    config: ModelConfig
    fabric: Fabric
    memory_bandwidth: float = H100_MEMORY  # bytes/s
    itemsize: int = 2  # bytes of a weight, and of a number in the cache

    @property
    def kv_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        config = self.config
        return 2 * config.layers * config.kv_heads * config.head_size * self.itemsize

    def seconds(self, plan: Plan) -> float:
        config = self.config
        read = sum(w.count * w.start + w.count * (w.count + 1) // 2 for w in plan.work)
        attention = 4 * config.layers * config.heads * config.head_size * read
        flops = 2 * active_parameter_count(config) * plan.num_tokens + attention
        texts = sum(work.start + work.count for work in plan.work)
        memory = parameter_count(config) * self.itemsize + self.kv_bytes * texts
        return max(flops / self.fabric.device.flops, memory / self.memory_bandwidth)

    def fabric_for(self, model: Transformer, block_size: int) -> Fabric:
        """A fabric on which a small model's page costs as much to send as a large model's."""
        scale = self.kv_bytes * block_size / page_bytes(model, block_size)
        return replace(self.fabric, compute_scale=NOTHING, payload_scale=scale)


def page_bytes(model: Transformer, block_size: int) -> int:
    """Bytes of one page on the wire."""
    config, itemsize = model.config, model.embed.weight.itemsize
    return 2 * config.layers * config.kv_heads * config.head_size * block_size * itemsize


class PacedRunner:
    """A `Runner` whose steps take `emulation.seconds` on the clock."""

    def __init__(self, runner: Runner, emulation: Emulation, clock: LogicalClock) -> None:
        self.runner, self.emulation, self.clock = runner, emulation, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def run(self, plan: Plan) -> Pass:
        return self._paced(self.runner.run, plan)

    def run_apart(self, plan: Plan) -> tuple[Pass | None, dict[str, Exception]]:
        return self._paced(self.runner.run_apart, plan)

    def _paced(self, run: Callable[[Plan], Any], plan: Plan) -> Any:
        out = run(plan)
        self.clock.advance(self.emulation.seconds(plan))
        return out
