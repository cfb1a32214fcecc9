"""Byte-level BPE: what goes in comes out, and the same texts give the same tokenizer."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data.corpus import make_corpus
from minitrain.data.tokenizer import Tokenizer, train_tokenizer
from minitrain.errors import InputError

TOKENIZER = train_tokenizer(make_corpus(100_000).documents, vocab_size=400)


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.binary())
@settings(max_examples=200, deadline=None)
def test_any_bytes_come_back(data):
    assert TOKENIZER.decode_bytes(TOKENIZER.encode_bytes(data)) == data


def test_bytes_that_are_not_utf8_come_back_from_text_too():
    text = b"caf\xe9 \xff".decode("utf-8", "surrogateescape")
    assert TOKENIZER.decode_bytes(TOKENIZER.encode(text)) == b"caf\xe9 \xff"
    several = [text, "a", *make_corpus(5_000, seed=3).documents]
    assert TOKENIZER.encode_batch(iter(several)) == [TOKENIZER.encode(each) for each in several]


def test_lone_surrogates_come_back_and_teach_nothing():
    for text in ("\ud800", "x\udfffy", "😀\udc00"):
        data = text.encode("utf-8", "surrogatepass")
        assert TOKENIZER.decode_bytes(TOKENIZER.encode(text)) == data
    plain = train_tokenizer(["ab ab"] * 9, 260)
    assert train_tokenizer(["ab\ud800 ab"] * 9, 260).backend.to_str() == plain.backend.to_str()


def test_words_of_the_corpus_become_single_tokens():
    ids = TOKENIZER.encode(" the kitchen")
    assert len(ids) < len(" the kitchen") / 3
    assert max(ids) < TOKENIZER.vocab_size == 400


def test_the_end_token_is_never_made_from_text():
    assert TOKENIZER.end_token == 0
    for copy in (TOKENIZER, pickle.loads(pickle.dumps(TOKENIZER))):
        ids = copy.encode("a<|end|>b")
        assert copy.end_token not in ids
        assert copy.decode([*ids, copy.end_token]) == "a<|end|>b"


def test_training_is_deterministic_across_processes():
    code = (
        "from minitrain.data.corpus import make_corpus\n"
        "from minitrain.data.tokenizer import train_tokenizer\n"
        "print(train_tokenizer(make_corpus(100_000).documents, 400).backend.to_str(), end='')"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout == TOKENIZER.backend.to_str()


def test_saved_and_loaded_it_is_the_same(tmp_path):
    path = TOKENIZER.save(tmp_path / "new" / "tokenizer.json")
    loaded = Tokenizer.load(path)
    assert loaded.backend.to_str() == TOKENIZER.backend.to_str()
    assert loaded.encode("Mia<|end|>") == TOKENIZER.encode("Mia<|end|>")


@pytest.mark.parametrize("content", ["", "{}", '{"model": 3}', "not json", "\0\0"])
def test_a_broken_file_is_told(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InputError, match="is not a tokenizer file"):
        Tokenizer.load(path)


def test_what_is_missing_or_too_small_is_told(tmp_path):
    with pytest.raises(InputError, match="there is no tokenizer"):
        Tokenizer.load(tmp_path / "none.json")
    with pytest.raises(InputError, match="at least 257"):
        train_tokenizer(["a"], vocab_size=256)
    path = TOKENIZER.save(tmp_path / "tokenizer.json")
    path.write_text(path.read_text().replace("<|end|>", "<|other|>"))
    with pytest.raises(InputError, match="no <\\|end\\|> token"):
        Tokenizer.load(path)
    for token in (-1, 400):
        with pytest.raises(InputError, match="not in this vocabulary"):
            TOKENIZER.decode([token])


def test_one_text_is_not_taken_for_a_list_of_its_characters():
    tokenizer = train_tokenizer(["one text"])
    for asked in (lambda: train_tokenizer("one text"), lambda: tokenizer.encode_batch("one text")):
        with pytest.raises(InputError, match="give a list of them"):
            asked()
    for ids in ([1.5], "12", [None]):
        with pytest.raises(TypeError):
            tokenizer.decode(ids)
