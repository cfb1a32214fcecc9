from __future__ import annotations

import csv

import pytest

from minitrain.training.loop import StepRecord
from minitrain.training.report import COLUMNS, Reporter, above_floor, cut_log, describe_loss


def record(step: int, total: float = 10) -> StepRecord:
    return StepRecord(step, total, 100 * step, 0.5 * step, 2.0 / step, 0.01, 0.3, 5000.0)


def rows(path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_distance_to_the_floor():
    assert above_floor(1.1, 1.0) == pytest.approx(0.1)
    assert above_floor(0.9, 1.0) == pytest.approx(-0.1)  # below: a sign that something leaks
    assert describe_loss(1.305, 1.21) == "1.305, 7.9% above the floor"
    assert describe_loss(1.305, None) == "1.305"


@pytest.mark.parametrize("total", [10, 7, 3])
def test_evaluates_evenly_and_logs_every_step(tmp_path, capsys, total):
    asked = []
    reporter = Reporter(
        tmp_path / "log.csv", lambda: asked.append(1) or 1.5, 1.25, lambda speed: speed / 1e4, 5
    )
    for step in range(1, total + 1):
        reporter(record(step, total))
    reporter.close()
    found = rows(tmp_path / "log.csv")
    assert tuple(found[0]) == COLUMNS
    assert [int(row["step"]) for row in found] == list(range(1, total + 1))
    assert len(asked) == min(5, total) == sum(row["held_out"] == "1.5" for row in found)
    assert found[-1]["held_out"] == "1.5"
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(asked)
    assert "held out 1.500, 20.0% above the floor · 5,000 tok/s · MFU 50%" in lines[-1]


def test_a_rank_that_does_not_speak_evaluates_and_writes_nothing(tmp_path, capsys):
    asked = []
    reporter = Reporter(tmp_path / "log.csv", lambda: asked.append(1) or 1.5, speaks=False)
    for step in range(1, 9):
        reporter(record(step, 8))
    assert len(asked) == 8 and not (tmp_path / "log.csv").exists()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("total", [3, 7, 10, 16, 100])
def test_a_resumed_run_evaluates_at_the_steps_of_an_uninterrupted_one(tmp_path, total):
    def run(log, first: int, last: int) -> None:
        done = first - 1
        reporter = Reporter(log, lambda: 1.0, done_steps=done, done_part=done / total)
        for step in range(first, last + 1):
            reporter(record(step, total))

    run(tmp_path / "whole.csv", 1, total)
    for stopped in range(1, total):
        log = tmp_path / f"{stopped}.csv"
        run(log, 1, stopped)
        run(log, stopped + 1, total)
        assert log.read_text() == (tmp_path / "whole.csv").read_text(), stopped


def test_the_last_loss_is_of_the_model_as_it_is_and_not_evaluated_twice(tmp_path):
    losses = iter([2.0, 1.5, 1.25])
    reporter = Reporter(tmp_path / "log.csv", lambda: next(losses), evaluations=2)
    reporter(record(5)), reporter(record(6))
    assert reporter.held_out == 2.0 and reporter.latest() == 1.5, "a step came after"
    reporter(record(10))
    assert reporter.latest() == reporter.latest() == 1.25
    assert Reporter(tmp_path / "log.csv", lambda: 3.0).latest() == 3.0


def test_a_resumed_log_forgets_the_steps_that_come_again(tmp_path):
    log = tmp_path / "log.csv"
    reporter = Reporter(log, lambda: 1.0)
    for step in range(1, 7):
        reporter(record(step))
    resumed = Reporter(log, lambda: 1.0, done_steps=4, done_part=0.4)
    resumed(record(5))
    assert [row["step"] for row in rows(log)] == ["1", "2", "3", "4", "5"]
    cut_log(log, 0)
    assert log.read_text(encoding="utf-8").splitlines() == [",".join(COLUMNS)]
