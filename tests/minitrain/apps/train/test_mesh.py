"""`train` on a mesh: the losses of one process, and a checkpoint for any mesh."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from minitrain.errors import InputError
from minitrain.reliability.checkpoint.folder import newest_checkpoint

from .test_command import SMALL, final_bits, log, process, train, wait_for
from .test_command import folder as folder
from .test_command import text as text

COMMON = [*SMALL, "--batch", "4", "--accumulate", "2"]


def curve(run: str, column: str = "loss") -> list[float]:
    return [float(row[column]) for row in log(Path(run)) if row[column]]


@pytest.fixture
def common(text) -> list[str]:
    return [*COMMON, "--data", str(text), "--steps", "3"]


def test_a_mesh_trains_what_one_process_trains_and_any_other_goes_on(common):
    """Loss, gradient norm and held-out loss; then the same bits resumed, and another mesh."""
    train(*common, "--out", "one")
    output = train(*common, "--dp", 2, "--tp", 2, "--pp", 2, "--out", "mesh")
    for column in ("loss", "grad_norm", "held_out", "tokens"):
        assert curve("mesh", column) == pytest.approx(curve("one", column), rel=1e-4), column
    assert re.search(r"sample +\S", output) and "1f1b over 2 microbatches, its bubble 33%" in output
    one, mesh = (newest_checkpoint(Path(run)) for run in ("one", "mesh"))
    for file in ("model.safetensors", "optimizer.safetensors"):
        want, got = load_file(one / file), load_file(mesh / file)
        assert want.keys() == got.keys()
        for name in want:
            assert got[name].sub(want[name]).abs().max() < 2e-4, name
    assert (mesh / "config.json").read_bytes() == (one / "config.json").read_bytes()
    train("--out", "mesh", "--resume", "--steps", 5, "--dp", 1, "--tp", 1, "--pp", 1, "--cp", 2)
    train("--out", "one", "--resume", "--steps", 5)
    assert curve("mesh") == pytest.approx(curve("one"), rel=3e-4)
    assert json.loads(Path("mesh/run.json").read_text())["cp"] == 2
    with pytest.raises(InputError, match=r"one was started without --tp, .*leave --tp out"):
        train("--out", "one", "--resume", "--steps", 9, "--tp", 2)


def test_experts_and_sequences_train_as_in_one_process(common):
    """Their biases, too, which no gradient moves, are in the checkpoint."""
    common = [*common, "--preset", "1M-moe-shared", "--length", "32"]
    train(*common, "--out", "one")
    train(*common, "--ep", 2, "--tp", 2, "--sequence", "--out", "mesh")
    assert curve("mesh") == pytest.approx(curve("one"), rel=1e-4)
    assert curve("mesh", "held_out") == pytest.approx(curve("one", "held_out"), rel=1e-3)
    want, got = (
        load_file(newest_checkpoint(Path(run)) / "model.safetensors") for run in ("one", "mesh")
    )
    biases = [name for name in want if name.endswith("bias_steps")]
    assert len(biases) == 4
    for name in biases:
        assert want[name].any() and (got[name] - want[name]).abs().max() <= 2, name


def test_bfloat16_recomputation_and_chunks(common):
    """Within bfloat16's noise: another order of sums, and a residual stream that is never rounded."""
    common = [*common, "--dtype", "bfloat16"]
    train(*common, "--out", "one")
    mesh = ["--cp", 2, "--pp", 2, "--schedule", "interleaved", "--recompute", "full"]
    output = train(*common, *mesh, "--out", "mesh")
    assert "bfloat16 on 4 x" in output and "interleaved over 2 microbatches" in output
    assert curve("mesh") == pytest.approx(curve("one"), rel=1e-2)


def rank_1_of(parent: psutil.Process) -> int:
    children = parent.children(recursive=True)
    return next(each.pid for each in children if each.environ().get("RANK") == "1")


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_under_torchrun_a_stopped_mesh_goes_on_bit_for_bit(text):
    """Stopped by a signal to one of its ranks; what goes on is started by the command itself."""
    common = [*COMMON, "--steps", "24", "--data", str(text), "--pp", "2", "--out"]
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
    asked = process([*common, "stopped"], *torchrun)
    wait_for(3, Path("stopped"), asked)
    os.kill(rank_1_of(psutil.Process(asked.pid)), signal.SIGTERM)
    output, _ = asked.communicate(timeout=120)
    assert asked.returncode and "stopping after this step, to save" in output, output
    assert output.count("--out stopped --resume") == 1, "one rank speaks"
    assert 3 <= len(log(Path("stopped"))) < 24
    train("--out", "stopped", "--resume")
    train(*common, "whole")
    assert curve("stopped") == curve("whole")
    assert final_bits(Path("stopped")) == final_bits(Path("whole"))


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--tp", "3"], "--tp 3 does not divide the model's 4 heads: use --tp 2"),
        (["--dp", "2", "--tp", "2", "--ranks", "8"], "mesh of 4 ranks, and there are 8: use 4"),
        (["--schedule", "gpipe"], "options of a mesh, which is missing: give --tp or --pp too"),
        (["--pp", "2", "--chunks", "2"], "or --schedule interleaved with 2 or more"),
        (["--dp", "3", "--batch", "8"], "use --batch 9, or --dp 2"),
    ],
)
def test_a_mesh_that_cannot_work_is_refused_before_anything_is_written(arguments, answer, folder):
    with pytest.raises(InputError, match=answer):
        train(*arguments)
    assert list(folder.iterdir()) == []
