"""Every bench runs, small; the contract of the JSON; a loss is said in words with its reason."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import typer
from typer.testing import CliRunner

from minitrain.apps.bench import NAMES, bench, chosen_cases, measured_rows, report, verdict
from minitrain.apps.options import add
from minitrain.bench import (
    attention,
    checkpoint,
    collectives,
    data,
    ddp,
    disaggregated,
    experts,
    finetuning,
    goals,
    inference,
    launch,
    nf4,
    optimizers,
    pipeline,
    precision,
    quantization,
    speculation,
    tensor,
    weight_only,
    zero,
)
from minitrain.bench import recompute as recompute_bench
from minitrain.bench import training as training_bench
from minitrain.bench.case import OURS, PEER, Case, Row, as_json, in_turn
from minitrain.errors import InputError
from minitrain.measure.clock import Comparison, Timing, threads
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.quantization.formats.names import named
from minitrain.ranks.launch import launch as launch_ranks

KEYS = {"name", "ours", "peer", "ratio", "unit", "peer_name", "spread"}


def case(ours: float, peer: float) -> Case:
    seconds = {OURS: Timing((ours,) * 5), PEER: Timing((peer,) * 5)}
    return Case("a case", "peer 1.0", lambda: Comparison(seconds), "it is made up")


def check_contract(rows: list[Row]) -> None:
    loaded = json.loads(as_json(rows))
    assert set(loaded) == {"rows"} and len(loaded["rows"]) == len(rows)
    for row in loaded["rows"]:
        assert set(row) >= KEYS
        assert row["ours"] > 0 and row["peer"] > 0 and row["spread"] >= 0
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer"])
        assert row["unit"] in ("seconds", "bytes", "passes", "perplexity"), "a cost"
        assert any(c.isdigit() for c in row["peer_name"]), "the peer's version is named"
        assert (row["ratio"] > 1) == bool(row["reason"])


def test_a_win_and_a_loss():
    won, lost = case(1.0, 2.0).row(), case(3.0, 2.0).row()
    check_contract([won, lost])
    assert not won.lost and lost.lost
    words = verdict([won, lost])
    assert "We win 1 of 2" in words
    assert "We lose a case: 1.50 x the cost of peer 1.0." in words
    assert words.endswith("Why: it is made up.") and "within the spread" not in words
    assert "within the spread" in verdict([replace(lost, ratio=1.01, spread=0.1)])


def test_checkpoint_small():
    cases = checkpoint.cases(repeats=2, presets=("1M",))
    rows = measured_rows(cases)
    check_contract(rows)
    assert {row.name.split(" ")[1] for row in rows} == {"save", "load", "stall"}


def test_collectives_small():
    cases = collectives.cases(repeats=2, sizes=(4096,))
    assert [c.name.split()[0] for c in cases] == [
        "ring_all_reduce",
        "ring_reduce_scatter",
        "ring_all_gather",
    ]
    check_contract([c.row() for c in cases])


def test_data_small():
    rows = [case.row() for case in data.cases(repeats=1, documents=40, rows=40, packed=60)]
    check_contract(rows)
    assert len(rows) == 4


def test_inference_small():
    shape = ModelConfig(300, 32, 2, 2, 1, 48, max_length=256)
    rows = [c.row() for c in inference.cases(1, 4, shape, peers=("sequential", "static"))]
    check_contract(rows)
    names = [row.name for row in rows]
    assert sum(name.startswith("4 requests, mixed,") and "tokens" in name for name in names) == 2
    assert sum(name.startswith("first token") for name in names) == 4
    unused = next(row for row in rows if row.unit == "bytes")
    assert not unused.lost, "pages leave less unused than rows of a batch's longest"
    wanted = {row.name: row for row in rows if row.name.startswith("goal")}
    assert {name.partition(",")[0] for name in wanted} == {
        "goal: 4 times as fast",
        "goal: a third of the pause",
        "goal: KV memory for no token",
    }
    held = [wanted[f"goal: KV memory for no token, blocks of {size}"] for size in (16, 4)]
    assert held[0].lost and "half a block" in held[0].reason and not held[1].lost


def test_a_goal_is_a_share_of_what_the_peer_costs():
    found = goals.shortened(lambda: case(3.0, 10.0).measure(), 1 / 4)
    assert found.timings[OURS].median == 3.0 and found.timings[PEER].median == 2.5


def test_disaggregated_small():
    rows = [c.row() for c in disaggregated.emulated_cases(4)]
    check_contract(rows)
    assert len(rows) == 6 and all("emulated" in row.name and row.spread == 0 for row in rows)


def test_finetuning_small():
    shape = (("0.5M", 2, 8),)
    check_contract([c.row() for c in finetuning.cases(repeats=1, shapes=shape, rows=shape)])


def test_ddp_small():
    check_contract([c.row() for c in ddp.cases(repeats=1, shapes=(("0.5M", 1, 8),))])


def test_tensor_small():
    cases = tensor.cases(repeats=1, blocks=(("0.5M", 2, 64),), losses=((32, 512),))
    rows = [c.row() for c in cases]
    check_contract(rows)
    assert [row.unit for row in rows] == ["seconds", "bytes"] * 2
    assert rows[3].ours < rows[3].peer, "bytes are no noise"
    assert rows[1].ours < 1.1 * rows[1].peer, "but for a buffer that is still in flight at the peak"


def test_pipeline_small():
    rows = [c.row() for c in pipeline.cases(repeats=1, shape=("0.5M", 3, 1, 8))]
    check_contract(rows)
    assert [row.unit for row in rows] == ["seconds", "bytes"] * 2
    assert all(row.ratio <= 1 for row in rows if row.unit == "bytes"), "no more bytes than torch"


def test_attention_small():
    cases = attention.cases(repeats=1, lengths=(64, 600), device="cpu")
    rows = [c.row() for c in cases]
    check_contract(rows)
    assert [row.unit for row in rows] == ["seconds", "bytes"] * 4
    ratios = {row.name: row.ratio for row in rows}
    assert ratios["attention, peak bytes, 600 tokens, beside the naive one"] < 1


def test_recompute_small():
    with threads(1):
        cases = recompute_bench.cases(repeats=1, shapes=(("0.5M", 1, 16),), device="cpu")
        rows = [c.row() for c in cases]
    check_contract(rows)
    assert [row.unit for row in rows] == ["seconds", "bytes", "seconds", "bytes", "bytes"]
    assert all(row.ratio <= 1 for row in rows if row.unit == "bytes"), "we hold what torch does"


def test_zero_small():
    cases = zero.cases(repeats=1, shapes=(("0.5M", 1, 8),))
    assert [case.unit for case in cases] == ["seconds", "bytes"] * 3 + ["seconds"]
    check_contract([case.row() for case in (cases[0], cases[3], cases[4], cases[6])])


def test_experts_small():
    pytest.importorskip("transformers")
    with threads(1):
        rows = [c.row() for c in experts.cases(repeats=1, experts=(8,))]
    check_contract(rows)
    assert [row.unit for row in rows] == ["seconds", "bytes"] * 2
    assert not any(row.lost for row in rows if row.unit == "bytes")


def test_optimizers_and_precision_small():
    with threads(1):
        cases = optimizers.cases(repeats=2, presets=("0.5M",), device="cpu")
        cases += precision.cases(repeats=2, shapes=(("0.5M", 1, 8),), device="cpu")
        check_contract([c.row() for c in cases])


def test_quantization_small():
    rows = [c.row() for c in quantization.cases(repeats=2, width=256, tokens=(1, 64))]
    check_contract(rows)
    kernel = ["seconds", "seconds", "bytes"]
    assert [row.unit for row in rows] == [*kernel, *kernel, "seconds"]
    assert [row.ratio for row in rows if row.unit == "bytes"] == [
        pytest.approx(bits / 16, rel=0.01) for bits in (8 + 16 / 256, 4.5)
    ]
    assert "(roofline 0.5" in rows[0].name and rows[-1].reason


def test_nf4_small():
    pytest.importorskip("bitsandbytes")
    with threads(1):
        cases = nf4.cases(repeats=1, sizes=((64, 128),), shapes=(("1M", 1, 8),))
        check_contract([c.row() for c in cases])


def test_a_step_over_another_base_is_not_timed(monkeypatch):
    pytest.importorskip("bitsandbytes")
    monkeypatch.setattr(nf4, "FORMAT", named("fp4-b64-dq"))  # as many bits, other levels
    case = nf4.cases(repeats=1, shapes=(("1M", 1, 8),))[-1]
    with pytest.raises(AssertionError, match="the logits differ by"):
        case.row()


def test_weight_only_small():
    pytest.importorskip("torchao")
    check_contract([c.row() for c in weight_only.cases(repeats=1, width=256)])
    with pytest.raises(AssertionError, match="int4-g64 of ours is off"):
        weight_only.check_near(torch.zeros(4), torch.ones(4), 0.2, "int4-g64 of ours")


def test_training_small():
    pytest.importorskip("transformers")
    with threads(1):
        cases = training_bench.cases(repeats=2, shapes=(("0.5M", 1, 8),), device="cpu")
        check_contract([c.row() for c in cases])


@pytest.mark.parametrize("tied", [False, True])
def test_the_llama_beside_ours_has_the_same_weights(tied):
    pytest.importorskip("transformers")
    model = build(ModelConfig(50, 32, layers=2, heads=4, kv_heads=2, ffn_size=48, tied=tied))
    llama = training_bench.as_llama(model)
    tokens = torch.randint(50, (2, 9))
    torch.testing.assert_close(model(tokens), llama(tokens).logits, rtol=1e-4, atol=1e-5)
    llama.get_parameter("model.layers.1.mlp.up_proj.weight").data += 1
    assert not torch.allclose(model(tokens), llama(tokens).logits), "the weights are a copy"


def test_launch_beside_spawn_small():
    spawn = launch.cases(repeats=1, ranks=2)[1]
    assert spawn.peer_name.startswith("mp.spawn of torch")
    row = spawn.row()
    check_contract([row])
    assert not row.lost


def times_on_a_rank(group):
    calls = []
    contenders = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    return in_turn(group, contenders, repeats=2, warmup=1), calls, group.trace.count("barrier")


def test_contenders_take_turns_with_a_barrier_before_each():
    for seconds, calls, barriers in launch_ranks(times_on_a_rank, ranks=2):
        assert calls == ["b", "a", "a", "b", "b", "a"] and barriers == 6
        assert [len(times) for times in seconds.values()] == [2, 2]


def test_the_command_reports_and_writes(tmp_path, capsys):
    file = tmp_path / "rows.json"
    report(measured_rows([case(1.0, 2.0), case(3.0, 2.0)]), file)
    printed = capsys.readouterr().out
    assert "We lose a case" in printed and "peer 1.0" in printed and str(file.name) in printed
    assert [row["ratio"] for row in json.loads(file.read_text())["rows"]] == [0.5, 1.5]


def test_unknown_names_and_bad_options_are_refused_before_anything_runs(tmp_path):
    app = typer.Typer()
    add(app, bench)
    for options in (["lunch"], ["--repeats", "0"], ["--json", str(tmp_path / "no" / "x.json")]):
        result = CliRunner().invoke(app, options)
        assert isinstance(result.exception, InputError), options


def test_every_name_has_cases():
    for peer in ("transformers", "bitsandbytes", "torchao"):
        pytest.importorskip(peer)
    for name in set(NAMES) - {"gptq"}:  # whose peer has an environment of its own
        assert chosen_cases([name]), name


# --- messages of errors ---


def test_speculation_small():
    pytest.importorskip("transformers")
    with threads(1):
        cases = speculation.cases(repeats=1, tokens=12, model="0.5M", lessons=(9, 8, 2))
        rows = [case.row() for case in cases]
    check_contract(rows)
    assert [row.peer_name.split()[0] for row in rows] == [
        *["minitrain"] * 6,
        "assistant_model",
        *["prompt_lookup_num_tokens"] * 2,
        *["minitrain"] * 2,
    ]
    assert all("formula" in row.name for row in rows[:3])
