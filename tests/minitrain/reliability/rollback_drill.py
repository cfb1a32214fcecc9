"""A rollback that is killed before its n-th operation on a file; a script of its own, so that a child is
a fork of a process that has torch imported and has computed nothing yet.

    python rollback_drill.py FOLDER sync|background   -> a line of JSON: of each kill what resuming finds

Steps 5, 10, 12 and 15 are saved (and kept), the weights are the step's number, and the guard goes back
from 15 to its copy of step 10, whose weights it saves as 10 again, with the loader where it is now.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import torch

from minitrain.reliability.checkpoint.background import BackgroundSaver
from minitrain.reliability.checkpoint.folder import Keep, checkpoints, step_of
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.reliability.spikes import SpikeGuard

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.minitrain.training.toys import toy_state

ALL = Keep(last=9)
BY_DESCRIPTOR = ("os.remove", "os.rmdir")  # in rmtree, whose arguments are names alone
FILE_EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")


def killed_before(number: int, run: Path) -> None:
    """SIGKILL's effect: from here on nothing of this process runs."""
    seen = 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal seen
        if event in FILE_EVENTS and (str(run) in str(arguments) or event in BY_DESCRIPTOR):
            seen += 1
            if seen == number:
                os._exit(9)

    sys.addaudithook(hook)


def scenario(run: Path, kind: str, number: int) -> None:
    """Saves the four steps if `number` is 0; else goes back, and is killed."""
    state = toy_state()
    state.run = "drill"
    weight = state.model.head.weight
    saver = BackgroundSaver(run, state.optimizer, keep=ALL)

    def save() -> None:
        if kind == "sync":
            save_checkpoint(run, state, keep=ALL)
        else:
            saver.save(state)
            saver.wait()

    guard = SpikeGuard(state, warmup=5, back=5, patience=1, z=5.0, went_back=save)
    for step in range(16):
        state.step, state.loader.place = step, step
        with torch.no_grad():
            weight.fill_(float(step))
        assert guard(2.0 + 0.01 * (step % 3), 1.0)
        if step in (5, 10, 12, 15) and not number:
            save()
    if not number:
        return
    killed_before(number, run)
    assert not guard(50.0, 1.0) and state.step == 10


def main() -> None:
    torch.set_num_threads(1)
    folder, kind, found = Path(sys.argv[1]), sys.argv[2], []
    for number in range(200):
        run = folder / f"kill-{number}"
        if number:
            shutil.copytree(folder / "kill-0", run)
        pid = os.fork()
        if pid == 0:
            scenario(run, kind, number)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not number:
            continue
        other = toy_state(seed=3)
        steps = [step_of(path) for path in checkpoints(run)]
        load_checkpoint(run, other)
        weights = sorted(set(other.model.head.weight.flatten().tolist()))
        other.step += 1
        save_checkpoint(run, other, keep=ALL)  # it goes on, and clears away what was left
        left = [path.name for path in run.iterdir() if path.name.startswith(".")]
        found.append([other.step - 1, weights, other.loader.place, steps, left])
        if os.waitstatus_to_exitcode(status) == 0:
            print(json.dumps(found))
            return
        assert os.waitstatus_to_exitcode(status) == 9


if __name__ == "__main__":
    main()
