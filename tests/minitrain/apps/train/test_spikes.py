"""`train --skip-spikes`: a run that went back has saved it, and whoever resumes goes on from there."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from minitrain.apps.train import run
from minitrain.reliability.checkpoint.folder import (
    NotSaved,
    checkpoints,
    newest_checkpoint,
    step_of,
)
from minitrain.reliability.spikes import SpikeGuard

from .test_command import SMALL, folder, log, text, train

__all__ = ["folder", "text"]  # fixtures


class Killed(BaseException):
    pass


class Spiking(SpikeGuard):
    """The twelfth step's loss is out of line once; what is there right after is noted."""

    found: list = []  # noqa: RUF012
    kill = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.warmup, self.patience, self.back, self.spiked = 3, 1, 4, False

    def __call__(self, loss: float, grad_norm: float) -> bool:
        if self.state.step != 11 or self.spiked:
            return super().__call__(loss, grad_norm)
        self.spiked = True
        taken = super().__call__(1e9, grad_norm)
        self.found.append((self.state.step, list(map(step_of, checkpoints(Path("run"))))))
        if self.kill:
            raise Killed
        return taken


@pytest.fixture
def spiking(monkeypatch):
    monkeypatch.setattr(run, "SpikeGuard", Spiking)
    monkeypatch.setattr(run, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(Spiking, "found", [])


def test_the_way_back_is_saved_at_once_and_is_the_newest(text, spiking, monkeypatch):
    asked = [*SMALL, "--steps", "16", "--data", str(text), "--skip-spikes", "--out", "run"]
    train(*asked)
    assert Spiking.found == [(4, [4])], "and step 10 and 11 are gone"
    assert [row["step"] for row in log(Path("run"))] == [*range(1, 12), *range(5, 17)]
    whole = load_file(newest_checkpoint(Path("run")) / "model.safetensors")
    Path("run").rename("whole")

    monkeypatch.setattr(Spiking, "kill", True)
    with pytest.raises(Killed):
        train(*asked)
    monkeypatch.setattr(run, "SpikeGuard", SpikeGuard)
    train("--out", "run", "--resume")
    assert step_of(newest_checkpoint(Path("run"))) == 16
    again = load_file(newest_checkpoint(Path("run")) / "model.safetensors")
    assert all((again[name] == value).all() for name, value in whole.items()), "the same batches"


@pytest.mark.parametrize("often", [False, True])
def test_a_way_back_that_cannot_be_saved_is_no_end(text, spiking, monkeypatch, often):
    save, asked = run.Run.save, []

    def full(self):
        asked.append(self.state.step)
        if asked[-2:] == [11, 4] or (often and asked[-3:] == [11, 4, 4]):
            raise NotSaved("no room")
        return save(self)

    monkeypatch.setattr(run.Run, "save", full)
    train(*SMALL, "--steps", "16", "--data", str(text), "--skip-spikes", "--out", "run")
    assert Spiking.found == [(4, [] if often else [4])], "nothing later survives even so"
    assert step_of(newest_checkpoint(Path("run"))) == 16
