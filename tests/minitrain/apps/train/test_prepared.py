"""`data prepare`, and `train --data` of what it made: its tokens, its tokenizer, resumed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from unittest.mock import patch

import pytest

from minitrain.apps.train.options import new_options
from minitrain.apps.train.run import Saver
from minitrain.apps.train.text import read_rows
from minitrain.data.corpus import make_corpus
from minitrain.data.preparation.prepare import prepare
from minitrain.data.preparation.settings import Settings
from minitrain.data.text import load_text
from minitrain.data.tokenizer import Tokenizer
from minitrain.errors import InputError

from ..command_line import minitrain
from .test_command import SMALL, final_bits, lines, train
from .test_command import folder as folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("prepared")
    stories = make_corpus(60_000, seed=3).documents
    (root / "stories.jsonl").write_text("\n".join(json.dumps({"text": s}) for s in stories))
    plain = {"language": None, "filters": (), "near": None, "mask": False, "vocab_size": 300}
    prepare(Settings((str(root / "stories.jsonl"),), **plain), root / "tokens", progress=False)
    return root / "tokens"


def test_its_tokens_are_trained_on_and_the_rest_is_held_out(prepared):
    options = new_options({"data": str(prepared), "length": 64, "batch": 4, "steps": 3})
    assert options.vocab == 300, "of the folder, not the default"
    tokenizer, rows = read_rows(options, None)
    index = json.loads((prepared / "index.json").read_text())
    every = sum(shard["tokens"] for shard in index["shards"])
    asked = rows.training[:].valid.sum().item()
    assert asked == rows.tokens and asked + rows.held_out.valid.sum().item() == every
    assert 0.02 < rows.held_out.valid.sum().item() / every < 0.06
    text = tokenizer.decode(rows.held_out.targets[0].clamp_min(0).tolist())
    assert len(text.split()) > 10 and tokenizer.vocab_size == 300


def test_a_run_of_it_is_resumed_bit_for_bit_and_a_changed_folder_is_told(prepared, folder):
    common = [*SMALL, "--data", str(prepared), "--out"]

    def stop_at_two(saver, record):
        if record.step == 2:
            saver.run.job.stop_file.touch()

    with patch.object(Saver, "__call__", stop_at_two):
        output = train(*common, "run", "--steps", 4)
    assert re.search(r"tokens of 300, in rows of 64, 9\d% full", output)
    assert "resumed at step 2" in train("--out", "run", "--resume")
    vocabulary = Tokenizer.load(prepared / "tokenizer.json").vocab_size
    assert json.loads(Path("run/run.json").read_text())["vocab"] == vocabulary
    train(*common, "whole", "--steps", 4)
    assert lines(Path("run")) == lines(Path("whole"))
    assert final_bits(Path("run")) == final_bits(Path("whole"))
    index = prepared / "index.json"
    before = index.read_text()
    try:
        index.write_text(before.replace('"shards"', ' "shards"'))
        with pytest.raises(InputError, match="the text is not the one that run was trained on"):
            train("--out", "run", "--resume", "--steps", 6)
    finally:
        index.write_text(before)


def test_a_wrong_vocabulary_and_an_unfinished_folder_are_told(prepared, folder):
    with pytest.raises(InputError, match=r"--vocab 512 is not what .* which is 300"):
        train(*SMALL, "--data", prepared, "--vocab", 512, "--steps", 1)
    (folder / "begun" / "work").mkdir(parents=True)
    (folder / "begun" / "work" / "settings.json").write_text("{}")
    (folder / "begun" / "report.md").write_text("# no text to train on")
    with pytest.raises(InputError, match="run it again, and it goes on where it stopped"):
        train(*SMALL, "--data", "begun", "--steps", 1)
    with pytest.raises(InputError, match=r"holds tokens, no text.* train --data"):
        load_text(prepared)
    (folder / "site").mkdir()
    (folder / "site" / "index.json").write_text('{"pages": 1}')
    (folder / "site" / "page.txt").write_text("a page of text")
    assert load_text(folder / "site") == ["a page of text"], "another's index"


# --- as it is typed ---


def test_prepare_and_verify(tmp_path):
    texts = make_corpus(40_000, seed=3).documents
    lines = [json.dumps({"body": text}) for text in [*texts, texts[0]]]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    out = tmp_path / "out"
    words = f"--out {out} --field body --filters none --near 0 --vocab 300".split()
    done = minitrain("data", "prepare", str(tmp_path / "a.jsonl"), *words)
    assert done.returncode == 0, done.stderr
    assert "exact_duplicate" in done.stdout and f"{len(texts)}" in done.stdout
    assert "cleaning" in done.stderr, "a bar"
    settings = json.loads((out / "report.json").read_text())["settings"]
    assert settings["near"] is None and settings["filters"] == [] and settings["mask"]
    verified = minitrain("data", "verify", str(out))
    assert verified.returncode == 0 and f"of {len(texts)} documents in 1 shard" in verified.stdout
    again = minitrain("data", "prepare", str(tmp_path / "a.jsonl"), *words, "--quiet")
    assert again.returncode == 2 and "prepared already" in again.stderr


def test_what_cannot_be_is_one_sentence(tmp_path):
    for words, says in (
        (("prepare", "nowhere", "--out", str(tmp_path / "x")), "no file or folder nowhere"),
        (("prepare", "sotu", "--out", str(tmp_path / "x"), "--filters", "gofer"), "'gopher'"),
        (("prepare", "sotu", "--out", str(tmp_path / "x"), "--language", "xx"), "'xx'"),
        (("prepare", "--out", str(tmp_path / "x")), "Missing argument"),
        (("verify", str(tmp_path)), "holds no index.json"),
    ):
        done = minitrain("data", *words)
        assert done.returncode == 2 and says in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
