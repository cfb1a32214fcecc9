from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from minitrain.apps.finetune.text import Encoder
from minitrain.apps.quantize import read_rows, split
from minitrain.data.assets.fetch import is_cached
from minitrain.data.packing import pack, pack_stream
from minitrain.data.tokenizer import END
from minitrain.finetuning.peft_files import load_adapter
from minitrain.model.config import ModelConfig
from minitrain.model.hub.load import load_pretrained, save_pretrained
from minitrain.model.hub.text import TextFiles
from minitrain.model.transformer import build
from minitrain.quantization.folder import load_quantized

from .command_line import documents, minitrain, save_small


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A model with its tokenizer, and a text."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("<|endoftext|>".join(documents()), encoding="utf-8")
    save_small("model")
    return tmp_path


def quantize(*words: str) -> str:
    result = minitrain("quantize", "--data", "text.txt", "--length", "32", *words)
    assert result.returncode in (0, 2), result.stderr
    return result.stdout if result.returncode == 0 else result.stderr


@pytest.mark.parametrize(
    ("form", "method"), [("int4", "gptq"), ("nf4-dq", "rtn"), ("int8", "smoothquant")]
)
def test_it_writes_a_folder_that_loads_again(folder, form, method):
    said = quantize("--model", "model", "--format", form, "--method", method, "--out", "few")
    before, _ = load_pretrained("model")
    model, text = load_quantized("few")
    assert text == load_pretrained("model")[1]
    tokens = torch.arange(20).view(1, 20)
    difference = (model(tokens) - before(tokens)).norm() / before(tokens).norm()
    assert 0 < difference < 0.3
    lines = {line.split()[0]: line for line in said.splitlines() if line.strip()}
    assert "->" in lines["perplexity"] and "kB" in lines["bytes"] and "generate --model few" in said


def test_its_folder_has_a_name_of_its_own_and_is_not_overwritten(folder):
    assert "runs/model-int4-g64-gptq holds int4-g64 by gptq" in quantize("--model", "model")
    assert "runs/model-int4-g64-gptq is there already" in quantize("--model", "model")
    again = quantize("--model", "runs/model-int4-g64-gptq")
    assert again.startswith("error: ") and "quantized already" in again


@pytest.mark.parametrize("form, method, experts", [("nf4-dq", "rtn", 0), ("int4", "gptq", 4)])
def test_a_quantized_model_is_fine_tuned_and_merged(folder, form, method, experts):
    """The folder is opened; what its layers hold is not rounded once more. Of experts, too."""
    sizes = {"experts": experts, "experts_per_token": 2, "expert_ffn_size": 48} if experts else {}
    save_small("dense", **sizes)
    quantize("--model", "dense", "--format", form, "--method", method, "--out", "few")
    words = "--data sea --rank 2 --steps 2 --batch 2 --length 32 --out run --device cpu"
    tuned = minitrain("finetune", "--model", "few", *words.split())
    assert tuned.returncode == 0, tuned.stderr
    few, tokens = load_quantized("few")[0], torch.arange(20)[None]
    adapted = load_adapter(load_quantized("few")[0], "run/adapter")
    assert 0 < (adapted(tokens) - few(tokens)).norm() / few(tokens).norm() < 0.5
    merged = minitrain("merge", "run", "--out", "merged")
    assert merged.returncode == 0 and "float32" in merged.stdout, merged.stderr
    peer = AutoModelForCausalLM.from_pretrained("merged").eval()
    torch.testing.assert_close(peer(tokens).logits, adapted(tokens), rtol=0, atol=1e-5)


@pytest.mark.skipif(not is_cached("stories15M"), reason="stories15M is not here: no download")
def test_a_model_of_the_courses_assets_by_its_name(folder):
    words = ["--model", "stories15M", "--data", "sea", "--format", "int8-row", "--method", "rtn"]
    said = quantize(*words, "--rows", "1", "--judged", "1")
    before, after = said.split("perplexity", 1)[1].split()[0:3:2]
    assert abs(float(after) / float(before) - 1) < 0.02 and "stories15M-int8-row-rtn" in said
    model, text = load_quantized("runs/stories15M-int8-row-rtn")
    assert model.config.vocab_size == 32000 and "tokenizer.json" in text.tokenizer


def test_the_stored_dtype_stays(folder):
    model, text = load_pretrained("model", dtype=torch.bfloat16)
    save_pretrained(model, "half", text=text)
    quantize("--model", "half", "--out", "few", "--method", "rtn")
    few, _ = load_quantized("few")
    assert few.embed.weight.dtype == torch.bfloat16
    assert torch.equal(few.embed.weight, model.embed.weight)


def test_of_examples_their_texts_calibrate_and_not_their_json(folder):
    """Prompts and completions go on from one another, a text after the other."""
    texts = Path("text.txt").read_text("utf-8").split(END)
    lines = [json.dumps({"prompt": t[:30], "completion": t[30:]}) for t in texts]
    Path("text.jsonl").write_text("\n".join(lines), encoding="utf-8")
    _, files = load_pretrained("model")
    encoder = Encoder(files)
    want = [encoder.encode(t[:30]) + encoder.encode(t[30:]) for t in texts]
    rows = read_rows("text.jsonl", files, 300, 32)
    assert torch.equal(rows.tokens, pack_stream(want, 32, encoder.end).tokens)
    said = minitrain("quantize", "--model", "model", "--data", "text.jsonl", "--length", "32")
    assert said.returncode == 0, said.stderr


def test_the_texts_that_judge_are_not_those_that_calibrate():
    packed = pack([[i] * 7 for i in range(1, 11)], 8)
    first, last = split(packed, 64, 64)
    seen = [set(batch.tokens[:, -1].tolist()) for batch in (first[0], last[0])]
    assert not seen[0] & seen[1] and len(seen[0]) == 8 and len(seen[1]) == 2
    assert [b[0].tokens.shape[0] for b in split(packed, 3, 1)] == [3, 1]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--model", "model", "--format", "int44"], "did you mean 'int4'"),
        (["--model", "model", "--method", "gtpq"], "did you mean 'gptq'"),
        (["--model", "model", "--format", "mxfp4"], "column by column"),
        (["--model", "model", "--format", "int4", "--method", "llm-int8"], "int8-row"),
        (["--model", "model", "--length", "60000"], "a longer text, or a smaller --length"),
        (["--model", "bare"], "no tokenizer.json"),
        (["--model", "small"], "the model's embedding has 64 rows"),
        (["--model", "text.txt"], "text.txt is not a folder"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(folder, words, answer):
    model, text = load_pretrained("model")
    save_pretrained(model, "bare")
    small = build(ModelConfig(64, 48, layers=1, heads=4, kv_heads=2, ffn_size=96))
    save_pretrained(small, "small", text=TextFiles(text.tokenizer, 0, (0,)))
    said = quantize(*words)
    assert said.startswith("error: ") and answer in said and said.count("\n") == 1
    assert not Path("runs").exists()
