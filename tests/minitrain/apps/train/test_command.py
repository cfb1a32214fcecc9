from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from minitrain.__main__ import app
from minitrain.apps.train import run, watches, wiring
from minitrain.apps.train import text as train_text
from minitrain.errors import InputError
from minitrain.monitoring.json_lines import read_lines
from minitrain.optimizers.groups import clip_by_global_norm
from minitrain.reliability.checkpoint.folder import begin, newest_checkpoint
from minitrain.reliability.events import EventLog
from minitrain.training.loop import Peers

SMALL = ["--preset", "0.5M", "--batch", "4", "--length", "64", "--dtype", "float32"]
ROOT = Path(__file__).parents[4]


def train(*arguments: str) -> str:
    """Runs the command in this process; what a person did wrong comes as InputError."""
    result = CliRunner().invoke(app, ["train", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def final_bits(run: Path) -> dict[str, bytes]:
    folder = newest_checkpoint(run)
    tensors = {
        **load_file(folder / "model.safetensors"),
        **load_file(folder / "optimizer.safetensors"),
    }
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def log(run: Path) -> list[dict]:
    """A row a step; held_out is None where there was no evaluation."""
    samples = read_lines(run / "metrics.jsonl")
    return [{"held_out": None, **sample} for sample in samples if "loss" in sample]


def lines(run: Path) -> list[tuple[str, ...]]:
    """Its log without what the clock says: the same in every run of the same command."""
    kept = ("step", "tokens", "loss", "lr", "grad_norm", "held_out")
    return [tuple(row[name] for name in kept) for row in log(run)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "SAMPLE_TOKENS", 8)  # else half of a short run's time
    return tmp_path


@pytest.fixture
def text(folder) -> Path:
    path = folder / "pangrams.txt"
    lines = [f"{i} quick foxes jump over {i + 1} lazy dogs, and nobody minds." for i in range(400)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_the_corpus_its_floor_and_the_same_bits_for_the_same_command(monkeypatch):
    monkeypatch.setattr(train_text, "HELD_OUT_BYTES", 20_000)
    output = train(*SMALL, "--steps", 4)
    run, again = Path("runs/0.5M-corpus"), Path("runs/0.5M-corpus-2")
    assert re.search(r"floor +\d\.\d+ nats per token", output)
    assert re.search(r"held out +\d\.\d+, \d+\.\d% above the floor of \d\.\d+", output)
    assert re.search(r"[\d,]+ tokens/s, MFU \d+%", output)
    assert "sample" in output and str(run) in output
    rows = log(run)
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4]
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"])
    assert any(row["held_out"] is not None for row in rows)
    names = {path.name for path in newest_checkpoint(run).iterdir()}
    assert {"model.safetensors", "optimizer.safetensors", "tokenizer.json", "run.json"} <= names
    train(*SMALL, "--steps", 4)
    assert final_bits(run) == final_bits(again)


def test_microbatches_and_recomputation_give_the_same_training(text):
    for name, *more in (("one", "--accumulate", 1), ("by4", "--accumulate", 4)):
        output = train(*SMALL, "--steps", 3, "--data", text, *more, "--out", name)
    assert "floor   not known" in output and "above the floor" not in output
    train(*SMALL, "--steps", 3, "--data", text, "--recompute", "full", "--out", "full")
    assert final_bits(Path("full")) == final_bits(Path("one"))
    losses = [[float(row["loss"]) for row in log(Path(name))] for name in ("one", "by4")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    stored = json.loads(Path("full/run.json").read_text())
    assert stored["recompute"] == "full" and stored["data"] == str(text)


def test_tokens_and_minutes_end_a_run(text):
    train(*SMALL, "--tokens", 1000, "--data", text, "--out", "tokens")
    assert abs(int(log(Path("tokens"))[-1]["tokens"]) - 1000) < 4 * 64
    train(*SMALL, "--minutes", 0.02, "--data", text, "--out", "minutes")
    rows = log(Path("minutes"))
    assert float(rows[0]["lr"]) == 0.0 and float(rows[-1]["seconds"]) < 1.2


# --- stop and go on ---


def has_logged(run: Path, step: int) -> bool:
    return (run / "metrics.jsonl").is_file() and len(log(run)) >= step


def process(arguments: list[str], *before: str, group: bool = False) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", *before, "minitrain", "train", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=group,
    )  # fmt: skip


def wait_for(step: int, run: Path, process: subprocess.Popen) -> None:
    while process.poll() is None and not has_logged(run, step):
        time.sleep(0.02)


def stopped_here(arguments: list[str], step: int) -> tuple[int, str]:
    """The command, which gets Ctrl-C once it has logged `step` steps."""
    run, over = Path(arguments[arguments.index("--out") + 1]), threading.Event()

    def interrupt() -> None:
        while not over.is_set() and not has_logged(run, step):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that comes too late stops nothing
    try:
        watcher.start()
        result = CliRunner().invoke(app, ["train", *arguments])
        over.set()
        watcher.join()
    finally:
        signal.signal(signal.SIGINT, before)
    return result.exit_code, result.output


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_ctrl_c_saves_and_the_resumed_run_is_bitwise_the_uninterrupted_one(text):
    """Each rank's generators, too, whatever was drawn before in this process or by its parent."""
    common = [*SMALL, "--steps", "12", "--data", str(text), "--ranks", "2", "--out"]
    code, output = stopped_here([*common, "stopped"], step=3)
    assert code == 130, output
    assert "python -m minitrain train --out stopped --resume" in output
    assert 3 <= len(log(Path("stopped"))) < 12
    train("--out", "stopped", "--resume")
    np.random.rand(), random.random(), torch.rand(())
    train(*common, "whole")
    assert final_bits(Path("stopped")) == final_bits(Path("whole"))
    assert lines(Path("stopped")) == lines(Path("whole"))
    one, two = (newest_checkpoint(Path(name)) for name in ("stopped", "whole"))
    for rank in (0, 1):
        for file in (f"rank-{rank:03d}.json", f"rank-{rank:03d}.safetensors"):
            assert (one / file).read_bytes() == (two / file).read_bytes(), file
    states = [json.loads((one / f"rank-{rank:03d}.json").read_text()) for rank in (0, 1)]
    assert states[0]["numpy"] != states[1]["numpy"] and states[0]["python"] != states[1]["python"]


STOP_AFTER_TWO_STEPS = """
import os, signal, sys
from minitrain.apps.train import run
from minitrain.__main__ import main
saver = run.Saver.__call__
def stopping(self, record):
    if record.step == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    return saver(self, record)
run.Saver.__call__ = stopping
sys.argv[1:] = sys.argv[2:]
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_kill_9_before_the_first_checkpoint_is_no_dead_end(text):
    common = [*SMALL, "--steps", "8", "--data", str(text), "--out"]
    script = [sys.executable, "-c", STOP_AFTER_TWO_STEPS, "-", "train", *common, "run"]
    killed = subprocess.Popen(script, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert os.WIFSTOPPED(os.waitpid(killed.pid, os.WUNTRACED)[1])
    with pytest.raises(InputError, match="another process is training in run: wait for its end"):
        train(*common, "run")
    killed.kill()
    killed.wait()
    assert not list(Path("run").glob("step-*"))
    (Path("run") / ".step-00000001.saving").mkdir()
    shutil.copytree("run", "copy")
    assert "run holds a run without a checkpoint: it begins anew" in train(*common, "run")
    assert "copy holds a run without a checkpoint: it begins anew" in train(
        "--out", "copy", "--resume"
    )
    train(*common, "whole")
    for name in ("run", "copy"):
        assert final_bits(Path(name)) == final_bits(Path("whole"))
        assert lines(Path(name)) == lines(Path("whole"))
        assert not list(Path(name).glob(".step-*"))


DIE_IN_THE_FOURTH_SAVE = """
import os, sys
from minitrain.apps.train import run, wiring
from minitrain.__main__ import main
renamed = []
def rename(*paths):
    renamed.append(paths)
    if len(renamed) == 5:  # the third save has removed an old checkpoint
        os.kill(os.getpid(), 9)
    os.replace(*paths)
run.SAVE_SECONDS, os.rename = 0.0, rename
sys.argv[1:] = sys.argv[2:]
main()
"""


def test_a_kill_loses_the_steps_since_the_last_checkpoint(text):
    """At the end of the fourth save, before its folder has its name."""
    common = [*SMALL, "--steps", "9", "--data", str(text), "--out"]
    script = [sys.executable, "-c", DIE_IN_THE_FOURTH_SAVE, "-", "train", *common, "killed"]
    assert subprocess.run(script, capture_output=True).returncode == -signal.SIGKILL
    assert list(Path("killed").glob(".step-*"))
    step = int(newest_checkpoint(Path("killed")).name.removeprefix("step-"))
    assert step == 3 < len(log(Path("killed")))
    assert f"resumed at step {step}" in train("--out", "killed", "--resume")
    train(*common, "whole")
    assert final_bits(Path("killed")) == final_bits(Path("whole"))
    assert lines(Path("killed")) == lines(Path("whole"))
    assert not list(Path("killed").glob(".step-*"))


def test_a_full_disk_is_told_and_the_training_goes_on(text, monkeypatch):
    """The third save finds no room; what the fourth is asked first is what became of the third."""
    common = [*SMALL, "--steps", "9", "--data", str(text), "--out"]
    begun = []

    def full(folder, step):
        begun.append(step)
        if len(begun) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        begin(folder, step)

    with monkeypatch.context() as patch:
        patch.setattr(run, "SAVE_SECONDS", 0.0)
        patch.setattr("minitrain.reliability.checkpoint.save.begin", full)
        result = CliRunner().invoke(app, ["train", *common, "full"])
    assert result.exit_code == 0, result.output
    assert "step 3 was not saved in full (No space left on device)" in result.output
    assert newest_checkpoint(Path("full")).name == "step-00000009"
    events = EventLog(Path("full") / "events.jsonl").read()
    assert [event["event"] for event in events] == ["not saved"]
    train(*common, "whole")
    assert final_bits(Path("full")) == final_bits(Path("whole"))


def test_a_step_out_of_line_is_left_out_and_in_the_log(text, monkeypatch):
    """The 30th batch's gradients are made a thousand times as large."""
    seen = []

    def spiking(parameters, limit):
        seen.append(1)
        for p in parameters:
            p.grad.mul_(1000.0 if len(seen) == 30 else 1.0)
        return clip_by_global_norm(parameters, limit)

    monkeypatch.setattr(wiring, "ALONE", Peers(clip=spiking))
    train(*SMALL, "--steps", "32", "--data", str(text), "--skip-spikes", "--out", "run")
    events = EventLog(Path("run") / "events.jsonl").read()
    assert [(event["event"], event["step"]) for event in events] == [("skipped", 29)]
    assert len(log(Path("run"))) == 32 and len(seen) == 33
    with pytest.raises(InputError, match="--skip-spikes compares whole models, and a mesh"):
        train(*SMALL, "--steps", "2", "--skip-spikes", "--tp", "2", "--out", "mesh")


def launched_rank(parent: psutil.Process) -> psutil.Process:
    """One of the processes that `launch` has started: each leads a session of its own."""
    return next(p for p in parent.children(recursive=True) if os.getsid(p.pid) == p.pid)


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_sigterm_to_one_rank_saves_and_ends_all(text):
    common = [*SMALL, "--steps", "60", "--data", str(text), "--ranks", "2", "--out"]
    asked = process([*common, "stopped"])
    wait_for(3, Path("stopped"), asked)
    os.kill(launched_rank(psutil.Process(asked.pid)).pid, signal.SIGTERM)
    output, _ = asked.communicate(timeout=120)
    assert asked.returncode and "stopping after this step, to save" in output, output
    assert "go on with: python -m minitrain train --out stopped --resume" in output
    assert 3 <= len(log(Path("stopped"))) < 60
    assert newest_checkpoint(Path("stopped")).name == f"step-{len(log(Path('stopped'))):08d}"
    train("--out", "stopped", "--resume")
    train(*common, "whole")
    assert final_bits(Path("stopped")) == final_bits(Path("whole"))
    assert lines(Path("stopped")) == lines(Path("whole"))


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_sigterm_to_the_whole_group_saves_and_ends_all(text):
    """As `timeout` and systemd send it: the server that ranks are forked from is told as well."""
    common = [*SMALL, "--steps", "60", "--data", str(text), "--ranks", "2", "--out", "stopped"]
    asked = process(common, group=True)
    wait_for(3, Path("stopped"), asked)
    os.killpg(asked.pid, signal.SIGTERM)
    output, _ = asked.communicate(timeout=120)
    assert asked.returncode == 128 + signal.SIGINT, output
    assert "go on with: python -m minitrain train --out stopped --resume" in output
    assert newest_checkpoint(Path("stopped")).name == f"step-{len(log(Path('stopped'))):08d}"


# --- what a person can do wrong ---


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--preset", "1.M"], "did you mean '1M'"),
        (["--preset", "llama3-405b", "--steps", "1"], "GiB with adamw.* such as 100M"),
        (["--data", "sotuu"], "did you mean 'sotu'"),
        (["--domain", "vilage"], "did you mean 'village'"),
        (["--ranks", "0"], "--ranks is '0': give a whole number from 1 to 10,000"),
        (["--ranks", "1000", "--batch", "1000"], "1000 ranks are more than this machine can hold"),
        (["--batch", "6", "--accumulate", "4"], "use --batch 8"),
        (["--steps", "3", "--minutes", "1"], "--minutes and --steps each say when to stop"),
        (["--length", "99999"], "--length 99999 is more than 1M can read: use 2048"),
        (["--device", "tpu", "--steps", "1"], "--device is 'tpu': give cpu, cuda"),
        (["--device", "xpu", "--steps", "1"], "--device xpu cannot be used here"),
        (["--pp", "2", "--schedule", "1f1bb"], "did you mean '1f1b'"),
        (["--resume"], "no run under runs/ to resume"),
        (["--resume", "--out", "nowhere"], "nowhere holds no run to resume"),
    ],
)
def test_each_wrong_option_has_its_answer(arguments, answer, folder):
    with pytest.raises(InputError, match=answer):
        train(*arguments)
    assert list(folder.iterdir()) == []  # nothing was begun


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (b"", "is empty"),
        (b"\x00\x01\x02" * 100, "is binary"),
        (b"a short text", "rows of 64 tokens, and a step takes 4"),
    ],
)
def test_a_text_that_cannot_be_trained_on(content, answer, folder):
    (folder / "bad.txt").write_bytes(content)
    with pytest.raises(InputError, match=answer):
        train(*SMALL, "--steps", 1, "--data", "bad.txt")
    assert [path.name for path in folder.iterdir()] == ["bad.txt"]


def test_a_folder_that_holds_something_is_left_alone(text, folder):
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"mine is there already and is not empty.*--resume"):
        train(*SMALL, "--steps", 1, "--data", text, "--out", "mine")
    assert (folder / "mine" / "thesis.tex").read_text() == "years of work"


def test_resuming_refuses_what_would_make_another_run(text):
    train(*SMALL, "--steps", 2, "--data", text, "--out", "run")
    before = final_bits(Path("run"))
    resume = ["--out", "run", "--resume", "--steps", "4"]
    for option, value in (
        ("--preset", "1M"),
        ("--batch", "8"),
        ("--seed", "1"),
        ("--vocab", "300"),
    ):
        with pytest.raises(InputError, match=f"started with {option} .*leave {option} out"):
            train(*resume, option, value)
    text.write_text(text.read_text() + "One more line.\n" * 30)
    with pytest.raises(InputError, match="the text is not the one"):
        train(*resume)
    newest = newest_checkpoint(Path("run"))
    (newest / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="is damaged"):
        train(*resume)
    assert before and len(log(Path("run"))) == 2


# --- the same command again, other ranks, notices ---


def test_the_same_command_goes_on_and_another_is_refused(text):
    """As torchrun and schedulers give it; a run that is complete stays as it is, and is no error."""
    common = [*SMALL, "--data", str(text), "--out", "run", "--steps"]
    code, output = stopped_here([*common, "19"], step=4)
    assert code == 130, output
    for other in (["--lr", "0.001"], ["--vocab", "300"], ["--seed", "1"]):
        with pytest.raises(InputError, match="run is there already and is not empty"):
            train(*common, 19, *other)
    assert "resumed at step" in train(*common, 19)
    before = (Path("run") / "metrics.jsonl").read_bytes()
    assert "this run is complete (19 steps" in train(*common, 19)
    assert (Path("run") / "metrics.jsonl").read_bytes() == before
    train(*[*common[:-2], "whole", "--steps", 19])
    assert final_bits(Path("run")) == final_bits(Path("whole"))


def test_another_number_of_ranks_goes_on_with_the_same_batches(text):
    """2 ranks, then 1, then 4: of one rank's losses, and no microbatch is larger than before."""
    common = [*SMALL, "--data", str(text), "--out"]
    for name, ranks in (("run", (2, 1, 4)), ("one", (1, 1, 1))):
        train(*common, name, "--ranks", ranks[0], "--steps", 3)
        train("--out", name, "--resume", "--steps", 6, "--ranks", ranks[1])
        stored = json.loads((Path(name) / "run.json").read_text())
        assert (stored["ranks"], stored["accumulate"]) == (1, ranks[0])
        train("--out", name, "--resume", "--steps", 9, "--ranks", ranks[2])
    losses = [[float(row["loss"]) for row in log(Path(name))] for name in ("run", "one")]
    assert losses[0] == pytest.approx(losses[1], rel=3e-4) and len(losses[0]) == 9
    with pytest.raises(InputError, match=r"--batch 4 does not divide into 3 ranks.* or --ranks 2"):
        train("--out", "run", "--resume", "--steps", 12, "--ranks", 3)


class Preempted(BaseHTTPRequestHandler):
    """TRUE once the run has logged three steps."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"TRUE" if has_logged(Path("run"), 3) else b"FALSE")

    def log_message(self, *_):
        pass


def test_a_clouds_notice_saves_and_ends_the_run(text, monkeypatch):
    monkeypatch.setattr(watches, "LOOK_SECONDS", 0.02)
    with ThreadingHTTPServer(("127.0.0.1", 0), Preempted) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            address = f"http://127.0.0.1:{server.server_port}/preempted"
            command = ["train", *SMALL, "--data", str(text), "--out", "run", "--steps", "4000"]
            result = CliRunner().invoke(app, [*command, "--notice", address])
        finally:
            server.shutdown()
    events = [event["event"] for event in EventLog(Path("run/events.jsonl")).read()]
    assert result.exit_code == 130 and events == ["notice", "stopped"]
    assert newest_checkpoint(Path("run")).name == f"step-{len(log(Path('run'))):08d}"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--notice", "azure"], "--notice is 'azure': give aws, google, or an http or file addr"),
        (["--notice", "http://"], "--notice is 'http://': give aws"),
        (["--audit"], "--audit and --hang-seconds are for several ranks: give --ranks 2"),
        (["--hang-seconds", "9"], "are for several ranks"),
        (["--audit", "--tp", "2"], "--audit compares whole models, and a mesh"),
    ],
)
def test_what_to_look_for_has_its_answers(arguments, answer, folder):
    with pytest.raises(InputError, match=answer):
        train(*SMALL, "--steps", 1, *arguments)
    assert list(folder.iterdir()) == []
