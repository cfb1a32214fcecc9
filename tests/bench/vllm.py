"""vLLM as a contender, in the environment that `make bench-vllm` makes."""

from __future__ import annotations

from minitrain.bench.elsewhere import Elsewhere, version_there
from minitrain.bench.serving import Served, Workload
from minitrain.inference.engine.request import Times
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer

# One process, and 1 GiB of keys and values.
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


def vllm_version() -> str | None:
    """The version of vLLM's build for CPUs, which is on Linux only; None where there is none."""
    return version_there("vllm", "vllm_cpu")


def takes(config: ModelConfig) -> bool:
    """Its attention on a CPU is made for heads of these sizes; others it refuses as it starts."""
    return config.head_size >= 32 and config.head_size % 16 == 0


class Vllm:
    """Serves a workload by `LLMEngine.step`, as fast as it can, float32 and greedy."""

    def __init__(self, model: Transformer) -> None:
        longest = (str(model.config.max_length),)
        self.there = Elsewhere("vllm", "vllm_worker.py", model, longest, SETTINGS)

    def __call__(self, work: Workload) -> Served:
        told = self.there.ask({"prompts": work.prompts, "new": work.new})
        times = [Times(0.0, at[0], at, at[-1]) for at in told["times"]]
        return Served(told["answers"], told["seconds"], times)
