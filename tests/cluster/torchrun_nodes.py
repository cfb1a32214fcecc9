"""Two nodes of torchrun: two agents on this machine, with two ranks each."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "tests" / "minitrain" / "reliability" / "faults.py"
AGAIN = 8  # restarts


class TorchrunNodes:
    def __init__(self, folder: Path, plan: dict, arguments: list[str]) -> None:
        self.folder, self.plan, self.arguments = folder, plan, arguments
        self.agents: dict[str, subprocess.Popen] = {}

    @staticmethod
    def missing() -> str:
        return ""

    def __enter__(self) -> TorchrunNodes:
        return self

    def __exit__(self, *_) -> None:
        for agent in self.agents.values():
            with suppress(psutil.NoSuchProcess):
                above = psutil.Process(agent.pid)
                for process in (above, *above.children(recursive=True)):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
            agent.wait()

    def start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._agent("first")
        self._agent("second")

    def _agent(self, name: str) -> None:
        conf = "keep_alive_interval=1,keep_alive_max_attempt=6,last_call_timeout=3"
        conf += f",is_host={int(name == 'first')}"
        run = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        run += ["--nproc-per-node", "2", "--max-restarts", f"{AGAIN}", "--shutdown-timeout", "20"]
        run += ["--rdzv-backend", "c10d", "--rdzv-id", "drill", "--rdzv-conf", conf]
        run += ["--rdzv-endpoint", f"localhost:{self.port}", str(FAULTS), json.dumps(self.plan)]
        given = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DRILL_NODE": name}
        given["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        with (self.folder / f"{name}.txt").open("a") as out:
            self.agents[name] = subprocess.Popen(
                [*run, "train", *self.arguments],
                env={**os.environ, **given}, cwd=self.folder, stdout=out, stderr=out,
            )  # fmt: skip

    def replace_node(self) -> None:
        self.agents["second"].wait(60)
        self._agent("third")

    def terminate(self) -> None:
        running = [agent for agent in self.agents.values() if agent.poll() is None]
        for agent in running:
            agent.send_signal(signal.SIGTERM)
        assert [agent.wait(90) for agent in running] == [1, 1], "torchrun's own exit code"
        self.agents.clear()

    def go_on(self) -> None:
        self.start()

    def wait(self) -> None:
        assert [agent.wait(300) for agent in self.agents.values()] == [0, 0], self.said()

    def check(self) -> None:
        assert self.agents["first"].poll() is None, self.said()

    def said(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in self.folder.glob("*.txt")
            if path.name != "text.txt"
        )
