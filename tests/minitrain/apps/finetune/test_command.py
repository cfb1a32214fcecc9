from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest.mock import patch

import peft
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from minitrain.apps.finetune.options import METHODS, FinetuneOptions
from minitrain.apps.finetune.text import make_texts, read_jsonl
from minitrain.apps.models import find_model
from minitrain.apps.train.run import Saver
from minitrain.data.corpus import make_corpus
from minitrain.data.tokenizer import END, train_tokenizer
from minitrain.errors import InputError
from minitrain.finetuning import methods
from minitrain.finetuning.peft_files import load_adapter
from minitrain.model.config import ModelConfig
from minitrain.model.hub.load import load_pretrained, save_pretrained
from minitrain.model.hub.text import TextFiles, fast_tokenizer
from minitrain.model.transformer import build
from minitrain.monitoring.json_lines import read_lines
from minitrain.reliability.checkpoint.folder import newest_checkpoint

from ..command_line import minitrain

VOCAB = 300
CONFIG = ModelConfig(VOCAB, 32, layers=2, heads=4, kv_heads=2, ffn_size=48, max_length=64)
LITTLE = ["--steps", "4", "--batch", "4", "--length", "48", "--device", "cpu"]
EXAMPLES = [
    {"prompt": f"Who has {number} pots?", "completion": f" Rosa has {number} pots."}
    for number in range(60)
]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    tokenizer = train_tokenizer(make_corpus(30_000).documents, VOCAB)
    files = fast_tokenizer(tokenizer.backend.to_str(), {"bos_token": END, "eos_token": END})
    text = TextFiles(files, tokenizer.end_token, (tokenizer.end_token,))
    save_pretrained(build(CONFIG, seed=1), folder, text=text)
    return folder


@pytest.fixture(autouse=True)
def workplace(tmp_path, base, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("minitrain.apps.finetune.text.CORPUS_BYTES", 40_000)
    monkeypatch.setattr("minitrain.apps.finetune.text.HELD_OUT_BYTES", 4_000)
    shutil.copytree(base, "base")
    lines = [json.dumps(example) for example in EXAMPLES]
    Path("data.jsonl").write_text("\n".join(lines) + "\n\n")
    Path("text.txt").write_text(make_corpus(20_000, domain="sea").documents[0] * 30)


def said(*words):
    result = minitrain(*map(str, words))
    if result.returncode:
        raise InputError(result.stderr.removeprefix("error: "))
    return result.stdout


def log(folder):
    samples = read_lines(Path(folder) / "metrics.jsonl")
    return [(row["step"], row["loss"], row["lr"]) for row in samples if "loss" in row]


@torch.no_grad()
def logits(model):
    torch.manual_seed(0)
    tokens = torch.randint(VOCAB, (2, 12))
    out = model(tokens)
    return getattr(out, "logits", out)


def test_from_a_folder_to_a_merged_model():
    given = ["--model", "base", "--data", "data.jsonl", *LITTLE, "--steps", 40, "--out", "run"]
    words = said("finetune", *given)
    (new,) = [line.split() for line in words.splitlines() if line.startswith("new ")]
    assert new[0] == "new" and float(new[1]) > 2 * float(new[2]), "it learns what is asked"
    assert "old" in words and "village" in words and "tok/s" in words and "iB" in words
    assert "are trained" in words and len(log("run")) == 40

    tuned = load_adapter(load_pretrained("base")[0], "run/adapter")
    theirs = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained("base"), "run/adapter"
    )
    torch.testing.assert_close(logits(tuned), logits(theirs.eval()), rtol=0, atol=1e-5)
    assert "merged" in said("merge", "run", "--out", "merged")
    for whole in (load_pretrained("merged")[0], AutoModelForCausalLM.from_pretrained("merged")):
        torch.testing.assert_close(logits(whole.eval()), logits(tuned), rtol=0, atol=1e-5)
    said("merge", "run/adapter", "--model", "base", "--out", "again")
    assert Path("again/tokenizer.json").read_bytes() == Path("base/tokenizer.json").read_bytes()


KINDS = ("rslora", "lora+", "pissa", "ia3", "houlsby", "bitfit", "prompt", "full")


@pytest.mark.parametrize("method", KINDS)
def test_each_kind_of_method_trains_and_is_saved_and_says_how_it_becomes_a_model(method):
    words = said("finetune", "--model", "base", "--data", "text.txt", "--method", method, *LITTLE)
    folder = Path(f"runs/base-{method}")
    assert len(log(folder)) == 4
    if method == "full":
        trained = load_pretrained(folder / "model")[0]
        assert not torch.equal(logits(trained), logits(load_pretrained("base")[0]))
        with pytest.raises(InputError, match=f"its model lies in {folder}/model"):
            find_model(str(folder))
        return
    tuned = load_adapter(load_pretrained("base")[0], folder / "adapter")
    assert not torch.equal(logits(tuned), logits(load_pretrained("base")[0]))
    for place in (folder, folder / "adapter"):
        with pytest.raises(InputError, match="holds an adapter") as told:
            find_model(str(place))
        assert f"minitrain merge {place} --out" in str(told.value)
    merged = minitrain("merge", str(folder), "--out", "merged")
    beside = method in ("houlsby", "prompt", "bitfit")
    assert merged.returncode == (2 if beside else 0), merged.stderr
    assert ("stays beside" in words) == beside and ("merge it with" in words) != beside
    assert method != "bitfit" or "biases, which this kind of model has not" in merged.stderr
    assert not Path("merged").exists() or not beside


def test_the_commands_methods_are_the_packages():
    assert set(METHODS) == set(methods.METHODS)


@pytest.mark.parametrize("method", ["dora", "pissa", "full"])
def test_it_goes_on_bit_for_bit(method, tmp_path):
    common = ["--data", "data.jsonl", "--method", method, *LITTLE, "--steps", "6"]
    common += ["--dropout", "0.2"] if method == "dora" else []
    said("finetune", "--model", "base", *common, "--out", "whole")

    def stop_at_three(saver, record):
        if record.step == 3:
            saver.run.job.stop_file.touch()

    with patch.object(Saver, "__call__", stop_at_three):
        stopped = minitrain("finetune", "--model", "base", *common, "--out", "parts")
    assert stopped.returncode == 130 and "stopped after step 3" in stopped.stdout
    assert "resumed at step 3" in said("finetune", "--out", "parts", "--resume")
    assert log("parts") == log("whole")
    one, two = (
        load_file(newest_checkpoint(Path(n)) / "model.safetensors") for n in ("whole", "parts")
    )
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    base = sum(t.numel() for t in load_file("base/model.safetensors").values())
    assert (sum(t.numel() for t in one.values()) < base) == (method != "full")
    assert json.loads(Path("whole/before.json").read_text()) == json.loads(
        Path("parts/before.json").read_text()
    )


CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}


def test_held_out_examples_are_not_learned():
    options = FinetuneOptions(data="data.jsonl", batch=1, length=40)
    texts = make_texts(options, load_pretrained("base")[1])
    rows = [{tuple(row.tolist()) for row in part.tokens} for part in (texts.training, texts.new)]
    assert len(texts.new) == 6 and not rows[0] & rows[1]


def test_a_name_on_the_hub(monkeypatch):
    asked = []

    def snapshot(name, allow_patterns):
        asked.append(name)
        if name == "some/where":
            return str(Path("base").absolute())
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert (find_model("some/where") / "config.json").is_file() and asked == ["some/where"]
    with pytest.raises(InputError, match="could not be fetched"):
        find_model("no/body")
    with pytest.raises(InputError, match="there is no model"):
        find_model("nobody")


@pytest.mark.parametrize(
    "words, answer",
    [
        ("--model base", "--data is missing"),
        ("--model base --data sea --method lorra", "did you mean 'lora'"),
        ("--model base --data sea --tokens 4", "no option of --method lora"),
        ("--model base --data sea --rank 17", "rank 17 is more than blocks.0.attention.k can have"),
        ("--model base --data sea --targets q,qq", "no layer is called 'qq'"),
        ("--model base --data sea --method full --dtype bfloat16", "lose updates"),
        ("--model base --data sea --length 65", "use 64 or less"),
        ("--model base --data data.jsonl --batch 5000", "use --batch"),
        ("--data sea", "--model is missing"),
        ("--resume", "needs the run's folder"),
        ("--resume --out base", "holds no fine-tuning run"),
        ("--model base --data sea --out base", "is not empty"),
        ("--model base --data broken.jsonl", "line 2 of broken.jsonl is no JSON"),
        ("--model base --data chat.jsonl", "no chat template"),
        ("--model base --data silent.jsonl", "line 1 of silent.jsonl has no chat"),
        ("--model base --data half.jsonl", "line 2 of half.jsonl has '\\ud83d', half of a surrog"),
        ("--model base --data both.jsonl", "line 1 of both.jsonl has text and messages"),
        ("--model base --data weighed.jsonl", "a message with another weight than 1"),
        ("--model base --data tools.jsonl", "line 1 of tools.jsonl has tools that are not a list"),
        ("--model base --data one.jsonl", "give two or more"),
        ("--model mute --data sea", "has no tokenizer.json"),
    ],
)
def test_one_sentence_for_what_cannot_be(words, answer):
    Path("broken.jsonl").write_text('{"text": "a"}\n{')
    Path("chat.jsonl").write_text(f"{json.dumps(CHAT)}\n" * 30)
    Path("silent.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi"}]}')
    Path("one.jsonl").write_text(json.dumps(EXAMPLES[0]))
    Path("half.jsonl").write_text('{"text": "a"}\n{"text": "\\ud83d"}')
    Path("both.jsonl").write_text(json.dumps({**CHAT, "text": "a"}))
    Path("tools.jsonl").write_text(json.dumps({**CHAT, "tools": "[]"}))
    weighed = [{"role": "assistant", "content": "a", "weight": 0}]
    Path("weighed.jsonl").write_text(json.dumps({"messages": weighed}))
    shutil.copytree("base", "mute", ignore=lambda *_: ["tokenizer.json"])
    length = [] if "--length" in words or "--resume" in words else ["--length", "48"]
    result = minitrain("finetune", *words.split(), *length, "--device", "cpu")
    assert result.returncode == 2 and answer in result.stderr, result.stderr
    assert len(result.stderr.splitlines()) == 1 and not Path("runs").exists()


def test_a_run_is_not_turned_into_another_and_merge_says_what_is_missing():
    said("finetune", "--model", "base", "--data", "data.jsonl", *LITTLE, "--out", "run")
    for words, answer in (
        (["--rank", "4"], "started with rank None"),
        (["--method", "ia3"], "started with method lora"),
        ([], "has made its 4 steps"),
    ):
        with pytest.raises(InputError, match=answer):
            said("finetune", "--out", "run", "--resume", *words)
    Path("data.jsonl").write_text("\n".join(json.dumps(e) for e in EXAMPLES[:40]))
    with pytest.raises(InputError, match="not the one"):
        said("finetune", "--out", "run", "--resume", "--steps", "5")
    with pytest.raises(InputError, match="holds no adapter"):
        said("merge", "base", "--out", "merged")
    with pytest.raises(InputError, match="not empty"):
        said("merge", "run", "--out", "base")
    config = Path("run/adapter/adapter_config.json")
    changed = json.loads(config.read_text()) | {"base_model_name_or_path": None}
    config.write_text(json.dumps(changed))
    with pytest.raises(InputError, match="give it with --model"):
        said("merge", "run", "--out", "merged")


def test_a_line_ends_at_its_newline_alone(tmp_path):
    """Not at U+2028, which other writers leave in a text; a byte order mark is no part of it."""
    path = tmp_path / "examples.jsonl"
    path.write_text('\ufeff{"text": "one\u2028two"}\r\n{"text": "three"}\n', encoding="utf-8")
    assert [each.completion for each in read_jsonl(path)] == ["one\u2028two", "three"]
