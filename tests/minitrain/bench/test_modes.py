"""All modes of the engine, and the engines beside it, tell one workload the same tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minitrain.bench import modes
from minitrain.bench.inference import trained
from minitrain.bench.modes import drafts_of, every_mode, name_of
from minitrain.bench.serving import BLOCK, Served, Workload
from minitrain.data.assets.fetch import is_cached
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer, build

OURS = {
    "one after the other",
    "batched",
    "prefixes shared",
    "preempted",
    "chunks of random sizes",
    "preempted, chunks of random sizes",
    "tensor-parallel on 2 ranks",
    "prefill and decode apart, on 2 ranks",
}
OTHERS = {"transformers, one by one", "transformers, batches of 8"}


def check(model: Transformer, work: Workload, block: int) -> None:
    drafts = drafts_of(model, [1])
    rows = {row.mode: row for row in every_mode(model, work, drafts, block)}
    speculative = {f"speculative: {name}" for name in drafts}
    assert set(rows) - {"vLLM"} == OURS | OTHERS | speculative
    assert len({row.hash for row in rows.values()}) == 1, rows
    for mode, row in rows.items():
        assert (row.preemptions >= 20) == ("preempted" in mode), row
    assert rows["prefixes shared"].reused > 0 == rows["batched"].reused
    assert all(rows[mode].kept > 0 for mode in speculative)
    assert rows["speculative: itself in int8"].kept > sum(work.new) // 3
    assert rows["speculative: itself in int8"].steps < rows["batched"].steps


def test_every_mode_has_one_hash():
    model = build(ModelConfig(300, 32, 2, 4, 2, 48, max_length=256), seed=1)
    check(model, Workload.mixed(16, 300, shared=16, longest=24, most_new=48), block=4)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.skipif(not is_cached("stories15M"), reason="python -m minitrain assets stories15M")
def test_every_mode_has_one_hash_on_the_benchs_own_workload():
    check(trained(), Workload.mixed(32, 32_000, shared=48), BLOCK)


def test_one_other_token_is_another_hash():
    answers = [[3, 1, 4], [1, 5]]
    assert name_of(answers) == name_of([(3, 1, 4), (1, 5)]) != name_of([[3, 1, 4], [1, 6]])
    assert name_of(answers) != name_of([[3, 1, 4, 1], [5]])


def test_vllm_has_a_row_where_it_is(monkeypatch):
    class Pretended:
        def __init__(self, model):
            pass

        def __call__(self, work):
            return Served([[1, 2]], 0.1, [])

    monkeypatch.setattr(modes, "vllm_version", lambda: "9.8.7")
    monkeypatch.setattr(modes, "Vllm", Pretended)
    assert "vLLM" not in modes.others(build(ModelConfig(61, 16, 1, 1, 1, 16)))  # heads of 16
    model = build(ModelConfig(61, 64, 1, 2, 2, 16, max_length=64))
    first = next(row for row in every_mode(model, Workload(((5, 6),), (2,))) if row.mode == "vLLM")
    assert first == replace(first, hash=name_of([[1, 2]]), steps=0)
