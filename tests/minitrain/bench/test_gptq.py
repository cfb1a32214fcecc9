"""GPTQ beside llm-compressor's: what is asked of it, and what is made of its answer. It itself is only
in the environment that `make bench-gptq` makes; here a script answers that rounds nothing."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from minitrain.apps.bench import chosen_cases
from minitrain.bench import elsewhere, gptq
from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
from minitrain.model.hub.load import hub_name
from minitrain.model.transformer import build
from minitrain.quantization.formats.names import named
from minitrain.quantization.methods.method import METHODS
from minitrain.quantization.model import quantize_model

SHAPE = ModelConfig(64, 32, 2, 2, 1, 48, max_length=64)
FORMATS = ("int3f-row", "int4f-g16-mse")
NOTHING_ROUNDED = """
import json, sys
from safetensors.torch import load_file, save_file

print("{}", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    tokens = load_file(asked["calibration"])["tokens"]
    with open(f"{sys.argv[3]}/../asked", "a") as file:
        file.write(json.dumps({**asked, "shape": list(tokens.shape)}) + "\\n")
    save_file(load_file(f"{sys.argv[3]}/model.safetensors"), asked["out"])
    print(json.dumps({"seconds": 2.5}), flush=True)
"""


@pytest.fixture
def there(tmp_path, monkeypatch):
    """An environment whose python rounds nothing; it is called `python -I WORKER FOLDER`."""
    monkeypatch.setattr(elsewhere, "environment", lambda name: tmp_path)
    (tmp_path / "lib/python3.11/site-packages/llmcompressor-9.8.7.dist-info").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / elsewhere.READY).touch()
    python = tmp_path / "bin/python"
    python.write_text(f"#!{sys.executable}\n{NOTHING_ROUNDED}")
    python.chmod(0o755)
    return tmp_path


def test_both_round_the_same_and_are_judged_by_the_same(there):
    cases = gptq.cases(2, SHAPE, FORMATS, (6, 4, 16))
    contest = cases[0].measure.func.__self__
    rows = [case.row() for case in cases]
    assert [row.unit for row in rows] == ["seconds", "perplexity"] * 2
    assert all(row.peer_name == "GPTQModifier of llm-compressor 9.8.7" for row in rows)
    asked = [
        json.loads(line) for line in (contest.peer.folder / "asked").read_text().split("\n") if line
    ]
    shown = [(a["bits"], a["group"], a["mse"], a["shape"]) for a in asked]
    assert shown == [(3, None, False, [6, 16])] * 2 + [(4, 16, True, [6, 16])] * 2
    assert all(row.peer == 2.5 for row in rows if row.unit == "seconds")
    judged = [contest.parted(repeat)[1] for repeat in range(2)]
    whole = sum(gptq.perplexity(contest.model, text) for text in judged) / 2  # the median of two
    assert all(row.peer == pytest.approx(whole) for row in rows if row.unit == "perplexity")
    assert rows[1].ours != pytest.approx(whole, rel=1e-4), "ours is rounded"
    assert rows[1].ours != rows[3].ours
    for calibration, text in map(contest.parted, range(2)):
        assert calibration.shape == (6, 16) and text.shape == (4, 16)
        both = torch.cat([calibration, text])
        assert torch.equal(both.sort(dim=0).values, contest.text.sort(dim=0).values)
    assert not torch.equal(*judged)


def test_text_is_the_models_own_and_the_same_each_time():
    model = build(SHAPE, seed=3)
    with torch.no_grad():
        model.head.weight[7:] = 0
        model.head.weight[:7] *= 12  # tokens that it tells, and hardly any others
    text = gptq.own_text(model, 5, 12)
    assert text.shape == (5, 12) and (text[:, 0] == gptq.BEGIN).all()
    assert torch.equal(text, gptq.own_text(model, 5, 12)) and len(text.unique(dim=0)) > 1
    assert (text < 7).float().mean() > 0.8


def test_without_it_there_are_no_cases_and_the_command_says_what_makes_them(tmp_path, monkeypatch):
    monkeypatch.setattr(elsewhere, "environment", lambda name: tmp_path)
    assert gptq.cases() == []
    with pytest.raises(InputError, match="make bench-gptq"):
        chosen_cases(["gptq"])


@pytest.mark.full
@pytest.mark.skipif(gptq.llm_compressor_version() is None, reason="make bench-gptq installs it")
@pytest.mark.parametrize("name", ["int3f-row", "int4f-row"])
def test_of_one_input_both_make_the_same_codes(name):
    contest = gptq.cases(1, SHAPE, (name,), (12, 4, 32))[0].measure.func.__self__
    calibration, judged = contest.parted(0)
    contest.theirs(name, calibration, judged)
    theirs = load_file(contest.peer.folder / "rounded.safetensors")
    ours = quantize_model(
        build(SHAPE), named(name), METHODS["gptq-act-order"], gptq.as_batches(calibration)
    )
    for part in "qkv":  # of the first block, before anything is rounded
        path = f"blocks.0.attention.{part}.weight"
        rounded = ours.get_submodule(path.removesuffix(".weight")).weight.dequantize()
        same = (rounded - theirs[hub_name(path)]).abs() < 1e-5
        assert same.float().mean() > 0.98, part
