from __future__ import annotations

import struct
from dataclasses import replace

import pytest
import torch

from minitrain.data.assets.fetch import fetch
from minitrain.errors import InputError
from minitrain.model.config import ModelConfig, preset
from minitrain.model.hub.llama2c import KINDS, load_llama2c
from minitrain.model.hub.load import load_pretrained
from minitrain.model.hub.text import open_tokenizer
from minitrain.model.rope import rotate_interleaved
from minitrain.model.transformer import Transformer, build

SMALL = ModelConfig(300, 32, layers=2, heads=4, kv_heads=2, ffn_size=40, max_length=16)
WORDS = {b" ": -9.0, b"a": -9.0, b"b": -9.0, b"ab": -2.0, b" a": -1.0, b" ab": -3.0, b"ba": -0.5}
NEEDS_BYTES = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(bytes([i]) for i in range(256))]


def write_model(path, model: Transformer) -> None:
    """In llama2.c's own order; the weights are taken to be meant for interleaved RoPE."""
    config, weights = model.config, dict(model.named_parameters())
    vocab = config.vocab_size if config.tied else -config.vocab_size
    sizes = (config.hidden_size, config.ffn_size, config.layers, config.heads, config.kv_heads)
    names = [f"blocks.{i}.{kind}.weight" for kind in KINDS for i in range(config.layers)]
    parts = [weights[name].flatten() for name in ("embed.weight", *names, "norm.weight")]
    parts.append(torch.full((config.max_length * config.head_size,), 7.0))  # cos and sin, unused
    parts += [] if config.tied else [weights["head.weight"].flatten()]
    header = struct.pack("<7i", *sizes, vocab, config.max_length)
    path.write_bytes(header + torch.cat(parts).detach().numpy().tobytes())


def write_tokenizer(path) -> None:
    pieces = [(piece, 0.0) for piece in NEEDS_BYTES] + list(WORDS.items())
    pieces += [(b"word%d" % i, -50.0) for i in range(300 - len(pieces))]
    data = b"".join(struct.pack("<fi", score, len(piece)) + piece for piece, score in pieces)
    path.write_bytes(struct.pack("<i", 9) + data)


@pytest.fixture
def folder(tmp_path):
    write_model(tmp_path / "model.bin", build(SMALL))
    write_tokenizer(tmp_path / "tokenizer.bin")
    return tmp_path


@pytest.mark.parametrize("tied", [True, False])
def test_it_is_the_model_that_was_written(tied, folder, monkeypatch):
    config = replace(SMALL, tied=tied)
    written = build(config, seed=2)
    write_model(folder / "model.bin", written)
    model, _ = load_llama2c(folder / "model.bin")
    assert model.config == config
    tokens = torch.randint(300, (2, 9))
    ours = model(tokens)
    assert not torch.allclose(ours, written(tokens), atol=1e-3)  # half-split, it is another model
    monkeypatch.setattr("minitrain.model.attention.grouped_query.rotate", rotate_interleaved)
    torch.testing.assert_close(ours, written(tokens), rtol=0, atol=1e-5)


def test_text_there_and_back(folder):
    _, tokenizer = load_llama2c(folder)
    for text in ("", "ab", "a b  ab", "été 🙂\n", "\x00"):
        tokens = tokenizer.encode(text)
        assert tokens[0] == tokenizer.bos_id and tokenizer.decode(tokens) == text
    assert tokenizer.decode(tokenizer.encode("ab")[1:]) == " ab"  # goes on after other words
    assert tokenizer.vocab_size == 300


def test_the_best_scoring_union_comes_first(folder):
    _, tokenizer = load_llama2c(folder)

    def pieces(text):
        return [tokenizer.pieces[token] for token in tokenizer.encode(text)[1:]]

    assert pieces("ab") == [b" ab"]  # " a" first, then " ab"
    assert pieces("aba") == [b" a", b"ba"]  # "ba" scores best: from the left it would be " ab", "a"
    assert pieces("é") == [b" ", b"\xc3", b"\xa9"]


@pytest.mark.parametrize(
    "data, words",
    [
        (b"", "has 0 bytes, too few"),
        (b"GGUF" + bytes(200), "is not a model.bin in llama2.c's first format"),
        (struct.pack("<I27i", 0x616B3432, 1, *range(26)), "export.py --version 0"),
        (struct.pack("<7i", 32, 40, 2, 4, 2, 300, 16) + bytes(400), "has 428 bytes, and its he"),
    ],
)
def test_what_is_no_model_is_refused(data, words, folder):
    (folder / "model.bin").write_bytes(data)
    with pytest.raises(InputError, match=words):
        load_llama2c(folder)


def test_a_tokenizer_of_another_model_is_refused(folder):
    path = folder / "tokenizer.bin"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match="with 300 tokens"):
        load_llama2c(folder)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        load_llama2c(folder)


def test_stories15m_tells_a_story():
    try:
        folder = fetch("stories15M", progress=False)
    except InputError as error:
        pytest.skip(f"stories15M is not in the cache and cannot be fetched: {error}")
    model, tokenizer = load_llama2c(folder)
    assert model.config == preset("stories15M")
    tokens = tokenizer.encode("")
    with torch.no_grad():
        for _ in range(48):
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    # What llama2.c itself says at temperature 0 (its WebAssembly build, run with node).
    assert tokenizer.decode(tokens) == (
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
        "sunshine. One day, she saw a big, red ball in the sky. It was the sun! She thought it was"
    )


TEXTS = ["Once upon a time, there was a dog.", " two  blanks", "naïve café 你好\n", "", "ab abba"]


@pytest.mark.parametrize("text", TEXTS)
def test_its_files_read_and_write_the_same(text, folder):
    model, files = load_pretrained(folder)
    assert model.config == SMALL and (files.bos_id, files.eos_ids) == (1, (2, 1))
    tokenizer, backend = load_llama2c(folder)[1], open_tokenizer(files.tokenizer)
    tokens = backend.encode(text).ids
    assert tokens == tokenizer.encode(text)
    assert backend.decode(tokens[1:]) == tokenizer.decode(tokens)
