"""Two nodes of Ray on this machine, with two CPUs each, on which labs/cluster/ray_train.py runs."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from .torchrun_nodes import AGAIN, FAULTS, ROOT

CLUSTER = ROOT / "labs" / "cluster"
AGENTS = ("dashboard-agent-grpc", "dashboard-agent-listen", "runtime-env-agent", "metrics-export")
DRIVER = f"""
import json, sys
import ray_train

plan = json.loads(sys.argv[1])

def rank(arguments):
    import faults

    faults.plant(plan)
    ray_train.rank(arguments)

if __name__ == "__main__":
    sys.exit(0 if ray_train.fit(sys.argv[2:], 4, False, rank, failures={AGAIN}) else 130)
"""


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class RayNodes:
    def __init__(self, folder: Path, plan: dict, arguments: list[str]) -> None:
        self.folder, self.stack = folder, ExitStack()
        self.nodes: dict[str, subprocess.Popen] = {}
        (folder / "driver.py").write_text(DRIVER)
        self.command = [sys.executable, "driver.py", json.dumps(plan), *arguments]
        path = os.pathsep.join(map(str, (ROOT, CLUSTER, FAULTS.parent)))
        ray = {"RAY_AUTH_MODE": "disabled"}  # it hears this machine alone
        ray["RAY_raylet_start_wait_time_s"] = "180"  # 30, were it not said
        ray["RAY_USAGE_STATS_ENABLED"] = "0"
        self.environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **ray}

    @staticmethod
    def missing() -> str:
        return "" if importlib.util.find_spec("ray") else "pip install 'minitrain[ray]'"

    def __enter__(self) -> RayNodes:
        short = tempfile.TemporaryDirectory(prefix="ray-")  # sockets take no long paths
        self.short = self.stack.enter_context(short)
        (port,) = free_ports(1)
        self.environment["RAY_ADDRESS"] = f"127.0.0.1:{port}"
        try:
            self._node("first", "--head", f"--port={port}", "--include-dashboard=false")
            self._node("second", f"--address=127.0.0.1:{port}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _node(self, name: str, *options: str) -> None:
        """Its ports are given: for those that its agents would choose it waits 15 s and no longer,
        which is not enough on a busy machine (Ray 2.60)."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options]
        command += ["--node-ip-address=127.0.0.1", "--num-cpus=2"]
        command += [f"--{agent}-port={port}" for agent, port in zip(AGENTS, free_ports(4))]
        command += [f"--temp-dir={self.short}"] if "--head" in options else []
        out = self.folder / f"{name}.txt"
        with out.open("w") as file:
            given = {**self.environment, "DRILL_NODE": name}
            given.pop("RAY_ADDRESS")
            self.nodes[name] = subprocess.Popen(command, env=given, stdout=file, stderr=file)
        deadline = time.monotonic() + 240
        while "Ray runtime started" not in out.read_text():
            assert self.nodes[name].poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.1)

    def __exit__(self, *_) -> None:
        driver = getattr(self, "driver", None)
        if driver is not None and driver.poll() is None:
            driver.kill()
            driver.wait()
        for node in reversed([*self.nodes.values()]):
            node.send_signal(signal.SIGTERM)
            node.wait(60)
        self.stack.close()

    def start(self) -> None:
        with (self.folder / "driver.txt").open("a") as out:
            self.driver = subprocess.Popen(
                self.command, cwd=self.folder, env=self.environment, stdout=out, stderr=out
            )

    def replace_node(self) -> None:
        self.nodes["second"].wait(120)
        self._node("third", f"--address={self.environment['RAY_ADDRESS']}")

    def terminate(self) -> None:
        self.driver.send_signal(signal.SIGTERM)
        assert self.driver.wait(300) == 130, self.said()

    def go_on(self) -> None:
        self.start()

    def wait(self) -> None:
        assert self.driver.wait(600) == 0, self.said()

    def check(self) -> None:
        assert self.driver.poll() is None, self.said()

    def said(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in self.folder.glob("*.txt")
            if path.name != "text.txt"
        )
