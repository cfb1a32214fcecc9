"""labs/LIBRARY.md: a Llama of transformers in each stage and under FSDP2, to the last bit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import torch

from minitrain.ranks.launch import launch

LIBRARY = Path(__file__).parents[4] / "labs" / "LIBRARY.md"


def scripts() -> list[str]:
    """Ours, and FSDP2's."""
    return re.findall(r"```python\n(.*?)```", LIBRARY.read_text(), flags=re.DOTALL)


def run(group, ours: str, fsdp2: str) -> dict:
    names: dict = {"__name__": "script"}
    exec(ours, names)
    exec(fsdp2, names)
    results = {stage: names["train"](stage) for stage in (1, 2, 3)}
    torch.manual_seed(0)
    results["FSDP2"] = names["train_fsdp2"](names["LlamaForCausalLM"](names["CONFIG"]))
    return results


def test_each_stage_equals_fsdp2_bit_for_bit():
    for results in launch(run, *scripts(), ranks=2, timeout=120):
        want_losses, want_weights = results.pop("FSDP2")
        assert min(norm for _, norm in want_losses) > 0.5, "every step is clipped"
        for stage, (losses, weights) in results.items():
            assert losses == want_losses, f"stage {stage}"
            assert set(weights) == set(want_weights)
            for name, weight in weights.items():
                assert torch.equal(weight, want_weights[name]), f"stage {stage}: {name}"


def test_the_script_runs_under_torchrun(tmp_path):
    script = tmp_path / "shard_llama.py"
    script.write_text(scripts()[0])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*command, str(script), "3"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(") == 2 * 10, "a loss and a norm a step, on both ranks"
