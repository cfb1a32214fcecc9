from __future__ import annotations

from pathlib import Path

import pytest
import torch

from minitrain.data.assets.fetch import fetch, is_cached
from minitrain.inference.sampling import generate as generate_naive
from minitrain.model.hub.load import load_pretrained
from minitrain.quantization.folder import save_quantized
from minitrain.quantization.formats.names import named
from minitrain.quantization.layers.linear import QuantLinear

from .command_line import minitrain, save_small


@pytest.fixture
def model(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_small("model", max_length=64)
    return tmp_path / "model"


def generate(*words: str) -> str:
    result = minitrain("generate", "--model", "model", "--new-tokens", "9", *words)
    assert result.returncode == 0, result.stderr
    assert "tokens in" in result.stderr
    return result.stdout


def test_it_tells_what_the_naive_version_tells(model):
    from tokenizers import Tokenizer

    net, text = load_pretrained(model)
    tokenizer = Tokenizer.from_str(text.tokenizer["tokenizer.json"].decode())
    prompt = tokenizer.encode("Once upon").ids
    told = generate_naive(net, prompt, 9, temperature=0, end_token=text.eos_ids[0])
    found = generate("--temperature", "0", "--prompt", "Once upon")
    assert found == "Once upon" + tokenizer.decode(prompt + told)[len("Once upon") :] + "\n"


def test_a_seed_tells_the_same_and_samples_differ(model):
    words = ("--prompt", "The", "--temperature", "2")
    assert generate(*words) == generate(*words, "--seed", "0") != generate(*words, "--seed", "1")
    three = generate(*words, "--samples", "3").strip().split("\n\n")
    assert three[0] + "\n" == generate(*words)
    assert three[1] + "\n" == generate(*words, "--seed", "1") and len(set(three)) == 3
    both = generate("--temperature", "0", "--prompt", "The", "--prompt", "A big")
    alone = [generate("--temperature", "0", "--prompt", prompt) for prompt in ("The", "A big")]
    assert both == "\n".join(alone), "several prompts are answered in their order"


def test_it_begins_a_text_of_its_own_and_stops(model):
    whole = generate("--temperature", "0")
    stop = whole.strip()[3:5]
    assert generate("--temperature", "0", "--stop", stop) == whole[: whole.index(stop)] + "\n"


def test_a_quantized_folder_is_opened_too(model):
    net, text = load_pretrained(model)
    form = named("int8")
    for block in net.blocks:
        block.mlp.up = QuantLinear(form.quantize(block.mlp.up.weight))
    save_quantized(net, "few", text)
    result = minitrain("generate", "--model", "few", "--new-tokens", "5", "--prompt", "The")
    assert result.returncode == 0 and result.stdout.startswith("The")


@pytest.mark.parametrize(
    "words, message",
    [
        (("--prompt", "a", "--new-tokens", "100"), "longer than the 64"),
        (("--model", "modle"), "there is no model 'modle' here"),
        (("--top-p", "1.5"), "--top-p is '1.5'"),
    ],
)
def test_what_cannot_work_is_one_sentence(model, words, message):
    result = minitrain("generate", "--model", "model", *words)
    assert result.returncode == 2 and message in result.stderr, result.stderr


@pytest.mark.skipif(not is_cached("stories15M"), reason="python -m minitrain assets stories15M")
def test_stories15m_tells_its_story():
    threads = torch.get_num_threads()
    result = minitrain(
        *("generate", "--model", str(fetch("stories15M", progress=False)), "--temperature", "0"),
        *("--prompt", "Once upon a time", "--new-tokens", "18"),
    )
    assert result.stdout == (
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
        "sun\n"
    )
    assert torch.get_num_threads() == threads
