from __future__ import annotations

import pytest
import torch

from minitrain.training.loop import Diverged, StepRecord
from minitrain.training.report import Reporter


def record(step: int, total: float = 10) -> StepRecord:
    return StepRecord(step, total, 100 * step, 0.5 * step, 2.0 / step, 0.01, 0.3, 5000.0)


@pytest.mark.parametrize("total", [10, 7, 3])
def test_evaluates_evenly_and_tells_every_step(capsys, total):
    asked, told = [], []
    reporter = Reporter(
        [told.append], lambda: asked.append(1) or 1.5, 1.25, lambda speed: speed / 1e4, 5
    )
    for step in range(1, total + 1):
        reporter(record(step, total))
    reporter.close()
    assert [sample["step"] for sample in told[:-1]] == list(range(1, total + 1))
    assert told[-1]["ended"] == "finished"
    evaluated = [sample for sample in told if "held_out" in sample]
    assert len(asked) == min(5, total) == len(evaluated)
    assert evaluated[-1] is told[-2] and told[-2]["held_out"] == 1.5
    assert told[-2]["above_floor"] == pytest.approx(0.2) and told[-2]["mfu"] == 0.5
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(asked)
    assert "held out 1.500, 20.0% above the floor · 5,000 tok/s · MFU 50%" in lines[-1]


@pytest.mark.parametrize("total", [3, 7, 10, 16, 100])
def test_a_resumed_run_evaluates_at_the_steps_of_an_uninterrupted_one(capsys, total):
    def run(first: int, last: int) -> list[int]:
        told = []
        done = (first - 1) / total
        reporter = Reporter([told.append], lambda: 1.0, speaks=False, done_part=done)
        for step in range(first, last + 1):
            reporter(record(step, total))
        return [sample["step"] for sample in told if "held_out" in sample]

    whole = run(1, total)
    for stopped in range(1, total):
        assert run(1, stopped) + run(stopped + 1, total) == whole, stopped
    assert capsys.readouterr().out == "", "a rank that does not speak evaluates, and prints nothing"


def test_the_last_loss_is_of_the_model_as_it_is_and_not_evaluated_twice():
    losses = iter([2.0, 1.5, 1.25])
    reporter = Reporter([], lambda: next(losses), evaluations=2)
    reporter(record(5)), reporter(record(6))
    assert reporter.held_out == 2.0 and reporter.latest() == 1.5, "a step came after"
    reporter(record(10))
    assert reporter.latest() == reporter.latest() == 1.25
    assert Reporter([], lambda: 3.0).latest() == 3.0


def test_what_is_measured_is_in_the_sample_and_what_cannot_be_is_left_out():
    told = []
    reporter = Reporter(
        [told.append],
        lambda: 1.0,
        utilisation=lambda speed: float("nan"),
        measure=lambda record: {"memory_bytes": 10 * torch.tensor(record.step)},
    )
    reporter(record(3, float("inf")))
    assert type(told[0]["memory_bytes"]) is int and told[0]["memory_bytes"] == 30
    assert not {"mfu", "total_steps", "floor", "held_out"} & told[0].keys()


def test_it_tells_how_the_run_ended_once():
    def ended(error=None, closed=None):
        told = []
        try:
            with Reporter([told.append], lambda: 1.0) as reporter:
                if closed:
                    reporter.close(closed)
                if error:
                    raise error
        except (ValueError, KeyboardInterrupt):
            pass
        return told

    assert [s["ended"] for s in ended()] == ["finished"]
    assert [s["ended"] for s in ended(closed="stopped")] == ["stopped"]
    assert [s["ended"] for s in ended(KeyboardInterrupt())] == ["failed"]
    last, end = ended(Diverged("…", 7, float("nan"), 3.0))
    assert (last["step"], last["grad_norm"], end["ended"]) == (7, 3.0, "diverged")
    assert last["loss"] != last["loss"]
