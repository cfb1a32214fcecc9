from __future__ import annotations

import json
import random
import subprocess
import sys
from functools import partial

import pytest

from minitrain.apps.plan import best
from minitrain.apps.plan.options import shape_of
from minitrain.apps.train import command as train_command
from minitrain.errors import InputError
from minitrain.measure.flops import flops_per_token
from minitrain.measure.parameters import parameter_count
from minitrain.model.config import PRESETS
from minitrain.planning.hardware import find_chip
from minitrain.planning.predict import count_runs, predict
from minitrain.planning.search import legal_runs

from ..command_line import minitrain

HEADER = "name,chip,gpus,layers,hidden,heads,vocab,seq,gated,global_batch,tp,pp,zero,recompute\n"
ROW = "small,A100-SXM-80GB,8,12,768,12,50304,1024,0,64,1,1,3,none\n"
KEYS = {"step_seconds", "tflops_per_gpu", "mfu", "hfu", "tokens_per_second", "memory_gib"}
run = partial(minitrain, "plan")


@pytest.fixture
def runs(tmp_path):
    file = tmp_path / "runs.csv"
    file.write_text(HEADER + ROW + ROW.replace("small", "again"))
    return file


def test_the_swing_of_a_job_and_its_cures():
    rows = {row["way"]: row for row in json.loads(run("swing", "--json").stdout)["rows"]}
    plain, half, groups = (
        rows[way] for way in ("as it is", "half work while waiting", "in two groups")
    )
    assert plain["swing_watts"] == pytest.approx(16_384 * 630, rel=1e-6)  # 70 to 700 W a chip
    assert half["swing_watts"] == pytest.approx(plain["swing_watts"] / 2)
    assert groups["mean_watts"] == pytest.approx(plain["mean_watts"])
    assert half["mean_watts"] > plain["mean_watts"]
    assert plain["hz"] == pytest.approx(0.1) and rows["full work while waiting"]["hz"] is None
    fast = json.loads(run("swing", "--compute", "0.02", "--wait", "0.01", "--json").stdout)["rows"]
    assert fast[0]["hz"] is None, "33 Hz is above what a grid looks at"
    assert "emulated" in run("swing").stdout


def test_predict_as_json_and_as_a_table(runs):
    done = run("predict", str(runs), "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows] == ["small", "again"]
    assert set(rows[0]) >= KEYS
    assert sum(rows[0]["memory_parts_gib"].values()) == pytest.approx(rows[0]["memory_gib"])
    assert sum(rows[0]["step_parts_seconds"].values()) == pytest.approx(rows[0]["step_seconds"])
    shown = run("predict", str(runs)).stdout
    assert "again" in shown and "GiB" in shown


def test_an_impossible_row_is_one_sentence_and_exit_2(runs):
    runs.write_text(HEADER + ROW + ROW.replace(",8,", ",9,").replace(",1,1,3", ",2,1,3"))
    done = run("predict", str(runs), "--json")
    assert done.returncode == 2 and done.stdout == ""
    assert "line 3 (small): gpus is 9, not a multiple" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "text,words",
    [
        ("", "is empty"),
        (HEADER, "no rows"),
        ("name,layers,hidden\nx,1,2\n", "lacks the column chip"),
        (HEADER.replace("tp", "tensor") + ROW, "no column .* 'tensor'"),
        (HEADER + ROW.strip() + ",extra\n", "more cells than columns"),
        (HEADER.replace("zero", "tp") + ROW, "has the column tp twice"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, text, words):
    file = tmp_path / "runs.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        count_runs(file)


def test_a_long_file_streams(tmp_path):
    """The estimates come one by one, and no row is held."""
    file = tmp_path / "runs.csv"
    file.write_text(HEADER + "".join(ROW.replace("small", f"run {i}") for i in range(300)))
    assert count_runs(file) == 300
    estimates = predict(file)
    assert next(estimates)["name"] == "run 0"
    assert sum(1 for _ in estimates) == 299


def test_a_plan_for_a_preset_and_a_price_of_ones_own():
    sizes = ["--model", "llama3-8b", "--gpus", "16", "--seq", "4096", "--tokens", "1e12"]
    answer = json.loads(run(*sizes, "--json").stdout)
    assert len(answer["plans"]) == 5 and answer["plans"][0]["why"] == "the fastest"
    cost = answer["plans"][0]["cost"]
    assert cost["usd"]["low"] < cost["usd"]["high"] and cost["kwh"] > 0
    done = run("--gpus", "8", "--price", "2-4", "--rank", "cost")
    assert done.returncode == 0, done.stderr
    assert "minitrain train --preset llama3-8b --ranks" in done.stdout
    assert "█" in done.stdout and "--price" in done.stdout and "chip-hours" in done.stdout


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_the_printed_command_is_one_that_train_runs(model, monkeypatch):
    """Of 50 legal plans, drawn: its options are accepted, and place every rank and sequence."""
    asked = []
    monkeypatch.setattr(train_command, "run", lambda job: asked.append(job.options) or ("", False))
    shape, chip = shape_of(model), find_chip("H100-SXM-80GB")
    plans = list(legal_runs(shape, chip, 32, 8192, 64, "bf16", 8))
    commands = {best.train_command(model, run): run for run in random.Random(3).sample(plans, 50)}
    commands.pop(None, None)
    assert len(commands) > 10
    for line, drawn in commands.items():
        done = minitrain(
            "train", *line.split("minitrain train ")[1].split(), "--out", "no-such-run"
        )
        assert done.returncode == 0, (line, done.stderr)
        options, plan = asked[-1], drawn.plan
        assert options.ranks == 32 and options.microbatch == plan.micro_batch, line
        assert (options.zero, options.recompute) == (plan.zero, plan.recompute), line


def test_the_front_as_json_as_a_picture_and_as_a_table(tmp_path):
    picture = tmp_path / "front.png"
    chips = "A100-SXM-80GB,H100-SXM-80GB"
    options = ["--model", "llama3-8b", "--chips", chips, "--gpus", "16,64", "--deadline", "300"]
    done = run("front", *options, "--picture", str(picture), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    days, usd = ([row[key] for row in answer["front"]] for key in ("days", "usd"))
    assert days == sorted(days) and usd == sorted(usd, reverse=True) and len(days) >= 2
    best = answer["by_deadline"]["300"]
    assert best["days"] <= 300 and best["date"] and best["usd_low"] <= best["usd"]
    assert picture.read_bytes()[:4] == b"\x89PNG"
    shown = run("front", "--model", "llama3-8b", "--chips", "H100-SXM-80GB", "--gpus", "64").stdout
    assert "none of" in shown and "in 365 days" in shown and "2026-03" in shown


def test_own_or_rent(tmp_path):
    picture = tmp_path / "own.png"
    done = run("own", "--picture", str(picture))
    assert done.returncode == 0, done.stderr
    assert "own or rent" in done.stdout and "2024-08 to 2026-05" in done.stdout
    assert max(map(len, done.stdout.splitlines()[:14])) <= 80
    assert picture.read_bytes()[:4] == b"\x89PNG"
    rows = json.loads(run("own", "--rent", "3", "--purchase", "40000", "--json").stdout)["rows"]
    assert rows[0]["rent_usd_per_hour"] == 3 and 0.4 < rows[0]["break_even_busy"] < 0.7


@pytest.mark.parametrize(
    "arguments,words",
    [
        (["--model", "llama9"], "no model preset is called 'llama9'"),
        (["--price", "cheap"], "--price is 'cheap'"),
        (["--model", "llama3-405b", "--gpus", "8"], "does not fit"),
        (["predict", "none.csv"], "RUNS is 'none.csv' (No such file"),
        (["front", "--chips", "H100"], "no chip is called 'H100'"),
        (["front", "--picture", "front.gif"], "named .png, .pdf or .svg"),
        (["front", "--model", "llama3-405b", "--gpus", "8"], "fits none of"),
        (["own", "--chip", "L40S"], "--purchase 40000"),
        (["own", "--rent", "4-2"], "the lower end first"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments, words):
    done = run(*arguments)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1


def test_who_only_asks_does_not_wait_for_torch():
    code = "import sys; from minitrain.__main__ import app\n"
    code += "app(standalone_mode=False); print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "plan", "--gpus", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "chip-hours" in done.stdout and done.stdout.endswith("\nFalse\n"), done.stderr


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_same_model_on_paper(name):
    """Tied heads, biases, windows and head sizes, all that counts parameters and FLOPs."""
    config, shape = PRESETS[name], shape_of(name)
    assert parameter_count(shape) == parameter_count(config)
    assert flops_per_token(shape, 8192) == flops_per_token(config, 8192)
