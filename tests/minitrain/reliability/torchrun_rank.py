"""A rank of the drills under torchrun: `minitrain train`, and what happens to it on the way.

`torchrun_rank.py PLAN train …`: a checkpoint after each step; PLAN is JSON:
    {"folder": where a trouble leaves a mark, so that it comes once,
     "troubles": [[name, rank, step], …], "save_seconds": of a save, "every": between two}
`slowly` in the folder: steps of 0.3 s.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from minitrain.__main__ import main
from minitrain.commands.train import run
from minitrain.commands.train.setup import Run

PLAN = json.loads(sys.argv.pop(1))
FOLDER = Path(PLAN["folder"])
RANK = int(os.environ["RANK"])


def kill(saver) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(saver) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def flip(saver) -> None:
    """A bit of one weight, in this rank's memory alone."""
    next(saver.run.state.model.parameters()).data.view(torch.int32)[3, 2] ^= 1 << 12


def after_step(saver, record) -> None:
    save_when_due(saver, record)
    for name, rank, step in PLAN.get("troubles", ()):
        mark = FOLDER / f"{name}-came"
        if (rank, step) == (RANK, record.step) and not mark.exists():
            mark.touch()
            saver.run.saver.wait()
            {"kill": kill, "stop": stop, "flip": flip}[name](saver)
    if (FOLDER / "slowly").exists():
        time.sleep(0.3)


def slow_save(self):
    time.sleep(PLAN.get("save_seconds", 0))
    return save(self)


save_when_due, run.Saver.__call__ = run.Saver.__call__, after_step
save, Run.save = Run.save, slow_save
run.SAVE_SECONDS = PLAN.get("every", 0.0)
main()
