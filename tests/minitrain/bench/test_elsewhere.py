"""llm-compressor's GPTQ and vLLM, which have environments of their own that `make bench-gptq` and
`make bench-vllm` make: what is asked of them, and what is made of the answer. Here scripts answer."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from minitrain.apps.bench import chosen_cases
from minitrain.bench import elsewhere, gptq, inference, vllm
from minitrain.bench.serving import Workload
from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
from minitrain.model.hub.load import hub_name
from minitrain.model.transformer import build
from minitrain.quantization.formats.names import named
from minitrain.quantization.methods.method import METHODS
from minitrain.quantization.model import quantize_model

SHAPE = ModelConfig(64, 32, 2, 2, 1, 48, max_length=64)
SERVED = ModelConfig(300, 32, 2, 2, 1, 48, max_length=256)
FORMATS = ("int3f-row", "int4f-g16-mse")
ANSWERS = '{"answers": [[7, 8], [9]], "seconds": 2.0, "times": [[0.5, 0.75], [1.5]]}'
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
def pretend(tmp_path, monkeypatch):
    """An environment whose python does what a script says in place of the worker."""
    monkeypatch.setattr(elsewhere, "environment", lambda name: tmp_path)

    def there(package: str, script: str) -> None:
        (tmp_path / f"lib/python3.11/site-packages/{package}-9.8.7.dist-info").mkdir(parents=True)
        (tmp_path / "bin").mkdir()
        (tmp_path / elsewhere.READY).touch()
        python = tmp_path / "bin/python"
        python.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
        python.chmod(0o755)

    return there


# --- GPTQ ---


def test_both_round_the_same_and_are_judged_by_the_same(pretend):
    """It is called `python -I WORKER FOLDER`."""
    pretend("llmcompressor", NOTHING_ROUNDED)
    cases = gptq.cases(2, SHAPE, FORMATS, (6, 4, 16))
    contest = cases[0].measure.func.__self__
    rows = [case.row() for case in cases]
    assert [row.unit for row in rows] == ["seconds", "perplexity"] * 2
    assert all(row.peer_name == "GPTQModifier of llm-compressor 9.8.7" for row in rows)
    written = (contest.peer.folder / "asked").read_text().splitlines()
    asked = [json.loads(line) for line in written]
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
    batches, method = gptq.as_batches(calibration), METHODS["gptq-act-order"]
    ours = quantize_model(build(SHAPE), named(name), method, batches)
    for part in "qkv":  # of the first block, before anything is rounded
        path = f"blocks.0.attention.{part}.weight"
        rounded = ours.get_submodule(path.removesuffix(".weight")).weight.dequantize()
        same = (rounded - theirs[hub_name(path)]).abs() < 1e-5
        assert same.float().mean() > 0.98, part


# --- vLLM ---


def test_a_workload_goes_over_and_answers_come_back(pretend):
    ready = "print('{\"ready\": true}', flush=True)"
    pretend("vllm_cpu", f"{ready}\nfor line in sys.stdin: print('{ANSWERS}', flush=True)")
    peer = vllm.Vllm(build(SERVED))
    work = Workload(((5, 6), (5,)), (2, 1))
    for _ in range(2):  # one process for both
        served = peer(work)
        assert served.answers == [[7, 8], [9]] and served.seconds == 2.0
        assert served.latency.first_token[50] == 1.0
        assert served.latency.between_tokens[50] == 0.25
    process = peer.there.process
    assert process.args[1] == "-I" and process.args[-1] == "256"


def test_one_that_ends_is_told_in_its_own_words(pretend):
    pretend("vllm_cpu", "sys.exit('no such operator torchvision::nms')")
    with pytest.raises(InputError, match=r"make bench-vllm.*torchvision::nms"):
        vllm.Vllm(build(SERVED))(Workload(((5,),), (1,)))


def test_it_is_a_contender_only_where_it_is_there(pretend, tmp_path, monkeypatch):
    monkeypatch.setattr(elsewhere, "environment", lambda name: tmp_path / "nowhere")
    assert vllm.vllm_version() is None
    assert not any("vLLM" in case.peer_name for case in inference.cases(1, 4, SERVED))
    monkeypatch.setattr(elsewhere, "environment", lambda name: tmp_path)
    pretend("vllm_cpu", "")
    named = {case.peer_name for case in inference.cases(1, 4, SERVED) if "vLLM" in case.peer_name}
    assert named == {"vLLM 9.8.7, its build for CPUs"}
    (tmp_path / elsewhere.READY).unlink()  # pip was interrupted, or is at work still
    assert vllm.vllm_version() is None
