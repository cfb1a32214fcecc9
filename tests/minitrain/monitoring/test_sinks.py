from __future__ import annotations

import json
import math
import sys
import urllib.request

import pandas
import pytest
from prometheus_client.parser import text_string_to_metric_families

from minitrain.errors import InputError
from minitrain.monitoring.json_lines import (
    JsonLines,
    cut_log,
    parsed,
    read_lines,
    to_json,
)
from minitrain.monitoring.loggers import Prometheus, TensorBoard, Thinned, Wandb
from minitrain.monitoring.metrics import METRICS, exposed_name

SAMPLE = {
    "time": 5.0, "step": 7, "tokens": 700, "loss": 1.25, "mfu": 0.5, "gpu_xid": 0, "skipped": 2,
    "parts": {"forward": 0.25, "backward": 0.5}, "unknown": 3,
}  # fmt: skip


def scraped(port: int) -> dict[str, dict[tuple, float]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return {
        sample.name: {tuple(sorted(s.labels.items())): s.value for s in family.samples}
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_the_newest_of_each_name():
    endpoint = Prometheus("run 1", 3, 0)
    try:
        endpoint({**SAMPLE, "held_out": 1.5})
        endpoint({**SAMPLE, "step": 8, "loss": math.nan})
        found = scraped(endpoint.port)
    finally:
        endpoint.close()
    labels = (("rank", "3"), ("run", "run 1"))
    assert found["minitrain_step_total"] == {labels: 8}
    assert math.isnan(found["minitrain_loss"][labels])
    assert found["minitrain_held_out"] == {labels: 1.5}, "told before, and still so"
    assert found["minitrain_part_seconds"] == {
        (("part", "forward"), *labels): 0.25,
        (("part", "backward"), *labels): 0.5,
    }
    names = {exposed_name(name) for name in SAMPLE if name in METRICS} | {"minitrain_held_out"}
    assert found.keys() == names | {"minitrain_part_seconds"}


def test_a_taken_port_is_one_sentence():
    endpoint = Prometheus("run", 0, 0)
    try:
        with pytest.raises(InputError, match=f"--metrics-port {endpoint.port} cannot be used"):
            Prometheus("run", 1, endpoint.port)
        with pytest.raises(InputError, match="--metrics-port 65536 cannot be used on rank 1"):
            Prometheus("run", 1, 65536)
    finally:
        endpoint.close()


def test_a_sample_a_second_and_nothing_of_the_others_is_lost():
    told = []
    thin = Thinned(told.append)
    for step in range(1, 31):
        more = {"gpu_power_watts": 70.0} if step == 5 else {}
        more |= {"held_out": 1.0} if step == 17 else {}
        thin({"time": 100 + step / 10, "step": step, **more})
    thin({"time": 103.1, "ended": "finished"})
    assert [sample["step"] for sample in told] == [1, 11, 17, 27, 30]
    assert told[1]["gpu_power_watts"] == 70.0, "of step 5"
    assert "held_out" in told[2] and "held_out" not in told[3] and told[4]["ended"] == "finished"


@pytest.mark.parametrize("sink, module", [(TensorBoard, "tensorboard"), (Wandb, "wandb")])
def test_an_optional_package_that_is_missing_is_one_sentence(sink, module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=f"--log-to {module} needs {module}, .*: pip install"):
        sink(tmp_path)


def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard", reason="an optional package: pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path)
    for step in range(1, 6):
        board({**SAMPLE, "step": step, "time": 100.0 + step, "loss": 1 / step})
    board.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    losses = events.Scalars("loss")
    assert [event.step for event in losses] == [1, 2, 3, 4, 5]
    assert [event.value for event in losses] == pytest.approx([1 / s for s in range(1, 6)])
    assert events.Scalars("parts/backward")[0].value == 0.5
    assert events.Scalars("loss")[0].wall_time == 101.0


def test_wandb_writes_a_run_without_a_network(tmp_path):
    pytest.importorskip("wandb", reason="an optional package: pip install wandb")
    run = Wandb(tmp_path)
    for step in range(1, 4):
        run({**SAMPLE, "step": step})
    run.close()
    (written,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"parts/backward" in written.read_bytes()


# --- metrics.jsonl ---


def line(step: int, **more) -> dict:
    return {"time": 10.0 + step, "step": step, "loss": 1 / step, **more}


def test_what_is_written_is_read_bit_for_bit_and_by_pandas(tmp_path):
    log = JsonLines(tmp_path / "metrics.jsonl")
    written = [line(1), line(3, parts={"forward": 0.1}), {"time": 14.5, "ended": "finished"}]
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
        log(line(step))
    log({"time": 14.5, "ended": "stopped"})
    log(line(5)), log(line(6)), log({"time": 17.0, "ended": "failed"}), log.close()
    with path.open("a") as file:
        file.write('{"time": 18.0, "step": 7, "lo')
    resumed = JsonLines(path, done_steps=5)
    assert len(path.read_text().splitlines()) == 9, "until a step is made, nothing is touched"
    resumed(line(6, loss=9.0)), resumed.close()
    found = list(read_lines(path))
    assert [each.get("step", each.get("ended")) for each in found] == [1, 2, 3, 4, "stopped", 5, 6]
    assert found[-1]["loss"] == 9.0
    cut_log(path, 0)
    assert path.read_text() == "" and list(read_lines(tmp_path / "none.jsonl")) == []
