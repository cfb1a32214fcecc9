"""A peer in its own process and environment, since it pins a different torch.

    make bench-NAME      build/NAME       an environment, with the peer in it
    Elsewhere(…)         its python runs a script of this folder, fed one line of JSON at a time

The process is started once, at the first request, with as many threads as this one: its start-up is
not in its reported times. Between requests it is suspended: spinning threads would slow the other
contender.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from minitrain.errors import InputError
from minitrain.model.hub.load import save_pretrained
from minitrain.model.transformer import Transformer
from minitrain.paths import course_root

READY = ".ready"  # written by make as its last step
SHOWN = 2000  # characters of its last output before it exited


def environment(name: str) -> Path:
    return course_root() / "build" / name


def version_there(name: str, package: str) -> str | None:
    """The package's version in the environment; None where it is missing or incomplete."""
    if not (environment(name) / READY).exists():
        return None
    found = sorted(environment(name).glob(f"lib/python3*/site-packages/{package}-*.dist-info"))
    return found[-1].name.split("-")[1].removesuffix(".dist") if found else None


@dataclass
class Elsewhere:
    """Runs `script` with the model's folder and `arguments`; it answers each line with one line."""

    name: str  # of the environment
    script: str
    model: Transformer
    arguments: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)  # of its process' environment

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The answer; InputError, with its last output, if it exited instead."""
        self.process.send_signal(signal.SIGCONT)
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        answer = self._line(self.process)
        self.process.send_signal(signal.SIGSTOP)
        return answer

    @cached_property
    def folder(self) -> Path:
        """This peer's own folder: for the model, and for data too large for a line."""
        self._temporary = tempfile.TemporaryDirectory(prefix=f"minitrain-{self.name}-")
        return Path(self._temporary.name)

    @cached_property
    def process(self) -> subprocess.Popen[str]:
        """Starts the process and waits until it is ready."""
        save_pretrained(self.model, self.folder / "model")
        self.said = (self.folder / "said.txt").open("w+")
        python, script = (
            environment(self.name) / "bin/python",
            Path(__file__).with_name(self.script),
        )
        process = subprocess.Popen(  # -I: no file of this folder shadows a library
            [python, "-I", script, str(self.folder / "model"), *self.arguments],
            cwd=self.folder,  # it may write files here
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": str(torch.get_num_threads()),
                **self.settings,
            },
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
                f"{self.name} ended before it answered; make bench-{self.name} makes "
                f"{environment(self.name)} anew. It said: {self.said.read()[-SHOWN:]}"
            )
        return json.loads(line)
