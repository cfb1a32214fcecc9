"""Under torchrun a rank that is killed starts again with all others, and the run is the same to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from minitrain.reliability.checkpoint.folder import newest_checkpoint

ROOT = Path(__file__).parents[3]
SCRIPT = """
import os, sys
from minitrain.commands.train import run
from minitrain.__main__ import main
run.SAVE_SECONDS = 0.0
ends_at, began = int(sys.argv.pop(1)), run.Saver.__call__
def save_and_die(saver, record):
    began(saver, record)
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    if first and record.step == ends_at and os.environ["RANK"] == "1":
        os.kill(os.getpid(), 9)
run.Saver.__call__ = save_and_die
main()
"""


@pytest.mark.full
@pytest.mark.skipif(os.name == "nt", reason="torchrun's agent wants POSIX")
def test_a_killed_rank_under_torchrun(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and then it ran. " * 3000)

    def torchrun(out: Path, dies_at: int) -> str:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *(
                "--max-restarts",
                "3",
                "--master-port",
                "0",
                "--standalone",
                str(script),
                str(dies_at),
            ),
            *("train", "--preset", "0.5M", "--batch", "4", "--length", "64", "--dtype", "float32"),
            *("--steps", "8", "--data", str(text), "--out", str(out)),
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout + done.stderr

    assert "resumed at step" in torchrun(tmp_path / "killed", 5)
    torchrun(tmp_path / "whole", 0)
    killed, whole = (
        load_file(newest_checkpoint(tmp_path / name) / "model.safetensors")
        for name in ("killed", "whole")
    )
    assert all(killed[name].equal(whole[name]) for name in whole)
