from __future__ import annotations

import json
import math

import pandas
import pytest

from minitrain.monitoring.sinks.json_lines import (
    JsonLines,
    cut_log,
    metrics_file,
    metrics_files,
    parsed,
    read_lines,
    to_json,
)


def sample(step: int, **more) -> dict:
    return {"time": 10.0 + step, "step": step, "loss": 1 / step, **more}


def test_what_is_written_is_read_bit_for_bit_and_by_pandas(tmp_path):
    log = JsonLines(tmp_path / "metrics.jsonl")
    written = [sample(1), sample(3, parts={"forward": 0.1}), {"time": 14.5, "ended": "finished"}]
    for each in written:
        log(each)
    log.close()
    assert list(read_lines(log.path)) == written
    table = pandas.read_json(log.path, lines=True, precise_float=True)
    assert table["loss"].tolist()[:2] == [1.0, 1 / 3]


def test_numbers_that_json_does_not_have_travel_as_strings():
    text = to_json({"loss": math.nan, "grad_norm": math.inf, "parts": {"a": -math.inf}})
    strict = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert strict == {"loss": "NaN", "grad_norm": "Infinity", "parts": {"a": "-Infinity"}}
    back = parsed(text.encode())
    assert math.isnan(back["loss"]) and back["grad_norm"] == math.inf
    assert parsed(b'{"ended": "finished"}') == {"ended": "finished"}
    for broken in (b'{"step": 1', b"[1]", b"", b"3"):
        with pytest.raises(ValueError):
            parsed(broken)


def test_a_resumed_run_forgets_the_steps_that_come_again_and_half_a_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = JsonLines(path)
    for step in range(1, 5):
        log(sample(step))
    log({"time": 14.5, "ended": "stopped"})
    log(sample(5)), log(sample(6)), log({"time": 17.0, "ended": "failed"}), log.close()
    with path.open("a") as file:
        file.write('{"time": 18.0, "step": 7, "lo')
    resumed = JsonLines(path, done_steps=5)
    assert len(path.read_text().splitlines()) == 9, "until a step is made, nothing is touched"
    resumed(sample(6, loss=9.0)), resumed.close()
    found = list(read_lines(path))
    assert [each.get("step", each.get("ended")) for each in found] == [1, 2, 3, 4, "stopped", 5, 6]
    assert found[-1]["loss"] == 9.0
    cut_log(path, 0)
    assert path.read_text() == "" and list(read_lines(tmp_path / "none.jsonl")) == []


def test_each_rank_has_a_file_of_its_own(tmp_path):
    for rank in (0, 2, 11):
        metrics_file(tmp_path, rank).write_text("")
    (tmp_path / "metrics.rank-x.jsonl").write_text("")
    assert list(metrics_files(tmp_path)) == [0, 2, 11]
    assert metrics_files(tmp_path)[11].name == "metrics.rank-11.jsonl"
    assert metrics_files(tmp_path / "nowhere") == {}
