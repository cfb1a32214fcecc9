"""`watch` and `alerts`, and what `train` is told to tell: real processes where they are servers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from minitrain.apps.watch.history import History
from minitrain.monitoring.alerts import RULES
from minitrain.monitoring.json_lines import read_lines

from ...monitoring.runs import sample, write
from ..command_line import minitrain

TEXT = "\n".join(f"{i} quick foxes jump over {i + 1} lazy dogs." for i in range(300))
SMALL = ["--preset", "0.5M", "--batch", "4", "--length", "64", "--dtype", "float32"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("minitrain.apps.train.run.SAMPLE_TOKENS", 4)
    Path("text.txt").write_text(TEXT)
    return tmp_path


def train(*more: str):
    return minitrain("train", *SMALL, "--data", "text.txt", "--out", "run", *more)


def test_the_rules_are_printed():
    printed = minitrain("alerts")
    assert printed.returncode == 0 and printed.stdout.count("- alert: ") == len(RULES)
    assert all(rule.name in printed.stdout for rule in RULES)


def test_what_cannot_be_served_is_a_sentence():
    write(Path("run"), [sample(1)])
    Path("empty").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for words, said in (
            (["empty"], "holds no metrics.jsonl"),
            (["nowhere"], "No such file"),
            (["run", "--port", str(taken.getsockname()[1])], "cannot be used"),
        ):
            done = minitrain("watch", *words)
            assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_a_run_is_served_until_it_is_told_to_end(folder):
    write(Path("run"), [sample(1)], ended="finished")
    command = [sys.executable, "-m", "minitrain", "watch", "run", "--port", "0"]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        url = re.search(r"http://\S+(?=;)", server.stdout.readline())[0]
        with urllib.request.urlopen(f"{url}/changes", timeout=30) as told:
            event = told.readline().decode()
        found = json.loads(event.removeprefix("data: "))
        assert found["run"] == "run" and found["state"] == "finished"
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(30) in (0, 130, -signal.SIGINT)


def test_a_run_tells_its_file_its_trace_and_what_it_lacks(folder, monkeypatch):
    done = train("--steps", "6", "--trace-step", "3")
    assert done.returncode == 0, done.stderr
    samples = list(read_lines(Path("run/metrics.jsonl")))
    assert [s.get("step") for s in samples] == [1, 2, 3, 4, 5, 6, None]
    assert samples[-1]["ended"] == "finished" and samples[0]["gpu_is_emulated"] == 1
    for each in samples[:-1]:
        assert sum(each["parts"].values()) == pytest.approx(each["step_seconds"], abs=2e-6)
    assert samples[5]["parts"]["evaluation"] > 0
    events = json.loads(Path("run/trace-step-3.json").read_text())["traceEvents"]
    assert {"forward", "backward", "optimizer"} <= {event["name"] for event in events}
    history = History(Path("run"))
    history.look()
    assert history.state == "finished" and history.alerts.fired == []
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    refused = minitrain("train", *SMALL, "--steps", "2", "--out", "no", "--log-to", "tensorboard")
    assert refused.returncode == 2 and "pip install tensorboard" in refused.stderr
    wrong = minitrain("train", *SMALL, "--steps", "2", "--out", "no", "--log-to", "tensorbord")
    assert "did you mean 'tensorboard'?" in wrong.stderr
    assert not Path("no").exists(), "refused before anything is written"


def test_each_rank_has_its_file(folder):
    done = train("--steps", "4", "--ranks", "2")
    assert done.returncode == 0, done.stderr
    first, second = (
        list(read_lines(Path("run") / name)) for name in ("metrics.jsonl", "metrics.rank-1.jsonl")
    )
    assert [s["loss"] for s in first[:-1]] == [s["loss"] for s in second[:-1]]
    assert all(s["sent_bytes"] > 0 and "communication" in s["parts"] for s in second[:-1])
    assert "mfu" in first[0] and "mfu" not in second[0], "rank 0 alone has measured the peak"


def test_a_run_that_diverges_leaves_its_last_step_and_an_alert(folder, monkeypatch):
    monkeypatch.setattr("minitrain.apps.train.setup.adamw", exploding)
    refused = train("--steps", "9")
    assert refused.returncode == 2 and "the run diverged" in refused.stderr
    history = History(Path("run"))
    history.look()
    assert history.state == "diverged"
    assert [alert.name for alert in history.alerts.firing] == ["LossNotFinite"]


def exploding(model, lr):
    from minitrain.optimizers.adamw import adamw

    optimizer = adamw(model, lr)
    optimizer.register_step_post_hook(
        lambda *_: [p.data.fill_(float("inf")) for p in model.parameters()]
    )
    return optimizer
