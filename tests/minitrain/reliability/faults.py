"""`minitrain train` on a rank to which things happen, whoever has started it.

Under torchrun and Slurm `faults.py PLAN train …`, under Ray `plant(plan)` and the command; a
checkpoint after each step. PLAN is JSON:
    {"folder": where a trouble leaves a mark, so that it comes once,
     "troubles": [[name, rank, step], …], "save_seconds": of a save, "every": between two}
After that step the rank is killed, stopped by the system, hangs, has a bit flipped; in the step
after it, its gradient is nan or too large. "slow": each step until then takes it longer. "node": all
of the node goes whose environment says DRILL_NODE=second, whichever rank is named. "refuse": all
ranks leave the next step out, by no rule. `slowly` in the folder: steps of 0.3 s.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from minitrain.apps.train import run
from minitrain.apps.train.setup import Run
from minitrain.reliability.spikes import SpikeGuard

SLOW_SECONDS, TIMES = 0.3, 3  # at least, and of the step itself: on a busy machine all are slow
SPIKE = 1e3


def kill(saver) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(saver) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hang(saver) -> None:
    time.sleep(3600)


def flip(saver) -> None:
    """A bit of one weight, in this rank's memory alone."""
    next(saver.run.state.model.parameters()).data.view(torch.int32)[3, 2] ^= 1 << 12


def gradient_times(factor: float):
    def once(saver) -> None:
        for parameter in saver.run.state.model.parameters():
            handles = []

            def spoil(gradient, handles=handles):
                handles.pop().remove()
                return gradient * factor

            handles.append(parameter.register_hook(spoil))

    return once


def node(saver) -> None:
    """Whoever has started the ranks of this node, its agent or Ray's raylet, and all below it."""
    agent = psutil.Process(os.getppid())
    for process in (agent, *agent.children(recursive=True)):
        if process.pid != os.getpid():
            with suppress(psutil.NoSuchProcess):
                process.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(saver) -> None:
    def once(guard, loss, norm) -> bool:
        SpikeGuard.__call__ = asks
        return False

    asks, SpikeGuard.__call__ = SpikeGuard.__call__, once


FAULTS = {
    "kill": kill, "stop": stop, "hang": hang, "flip": flip, "node": node, "refuse": refuse,
    "nan": gradient_times(float("nan")), "spike": gradient_times(SPIKE),
}  # fmt: skip


def plant(plan: dict) -> None:
    folder, mine = Path(plan["folder"]), int(os.environ["RANK"])
    here = os.environ.get("DRILL_NODE", "first")
    save_when_due, save = run.Saver.__call__, Run.save
    run.SAVE_SECONDS = plan.get("every", 0.0)
    began = math.inf  # not a step that holds the start

    def is_here(name: str, rank: int) -> bool:
        return here == "second" if name == "node" else name == "refuse" or rank == mine

    def after_step(saver, record) -> None:
        nonlocal began
        save_when_due(saver, record)
        for name, rank, step in plan.get("troubles", ()):
            if name == "slow":
                if rank == mine and record.step <= step:
                    time.sleep(max(SLOW_SECONDS, TIMES * (time.monotonic() - began)))
            elif name == "node" and here == "second" and record.step == step - 1:
                (folder / f"was-second-{mine}").touch()
            elif record.step == step and is_here(name, rank):
                mark = folder / f"{name}-{step}{f'-{mine}' if name == 'refuse' else ''}"
                if not mark.exists():
                    mark.touch()
                    saver.run.saver.wait()
                    FAULTS[name](saver)
        if (folder / "slowly").exists():
            time.sleep(0.3)
        began = time.monotonic()

    def slow_save(self):
        time.sleep(plan.get("save_seconds", 0))
        return save(self)

    run.Saver.__call__, Run.save = after_step, slow_save


if __name__ == "__main__":
    from minitrain.__main__ import main

    plant(json.loads(sys.argv.pop(1)))
    main()
