"""For the tests of ranks: the server started once, and scripts that leave a mark on their children."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from functools import partial
from pathlib import Path

import psutil
import pytest

from minitrain.ranks.launch import launch

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session", autouse=True)
def started():
    """The server that ranks are forked from, so that no test pays for its start."""
    launch(lambda group: None, ranks=1, timeout=250)


@pytest.fixture
def run_script(tmp_path):
    """`run_script(text, *args, **environment)` starts a `Script` in a folder of its own."""
    short = Path(tempfile.gettempdir(), uuid.uuid4().hex[:8])  # sockets take no long paths
    (tmp_path / "temp").mkdir()
    short.symlink_to(tmp_path / "temp")
    yield partial(Script, tmp_path, short)
    short.unlink()


class Script:
    """A script without a main guard, in a session and with a mark of its own."""

    def __init__(self, tmp_path, temp, text, *args, **environment):
        self.mark = uuid.uuid4().hex
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(temp),
            "MINITRAIN_TEST_MARK": self.mark,
            **environment,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(path), str(tmp_path), *args],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def finish(self, seconds=90):
        output, _ = self.process.communicate(timeout=seconds)
        return output

    def left(self):
        """Every process that carries the mark in its environment."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("MINITRAIN_TEST_MARK") == self.mark:
                    found.append(process)
            except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
                pass
        return found

    def left_after(self, seconds):
        """The processes left when `seconds` have passed; returns sooner where there are none."""
        end = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < end:
            time.sleep(0.1)
        told = [f"{process.pid}: {process.status()}, {process.cmdline()}" for process in left]
        for process in left:
            process.kill()
        return told
