from __future__ import annotations

import random

import pytest

from minitrain.data.assets.fetch import fetch, is_cached
from minitrain.inference.streaming import TextStream
from minitrain.model.hub.llama2c import read_tokenizer


def as_bytes(tokens: list[int]) -> str:
    """Every token is one byte of UTF-8."""
    return bytes(tokens).decode(errors="replace")


def streamed(text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    stream = TextStream(as_bytes, [65, 66], stop)
    pieces = []
    for byte in text.encode():
        pieces.append(stream.push(byte))
        if stream.stopped:
            break
    return [*pieces, stream.finish()], stream.stopped


def test_half_a_character_is_never_shown():
    pieces, _ = streamed("aé😀b")
    assert pieces == ["a", "", "é", "", "", "", "😀", "b", ""]


def test_bytes_that_are_no_character_do_not_hold_the_stream_up():
    stream = TextStream(as_bytes, [])
    pieces = [stream.push(token) for token in [65, 0xFF, 0xFF, 0xFF, 0xFF, 66]]
    assert "".join([*pieces, stream.finish()]) == "A" + "\ufffd" * 4 + "B"


def test_the_end_shows_what_is_left():
    stream = TextStream(as_bytes, [], ("stop",))
    assert stream.push(ord("s")) == "" and stream.push(0xF0) == ""
    assert stream.finish() == "s\ufffd" and stream.finish() == ""


@pytest.mark.parametrize(
    "text, stop, told",
    [
        ("one two three", ("two",), "one "),
        ("one two three", ("four",), "one two three"),
        ("aab", ("ab",), "a"),
        ("aaab", ("aab",), "a"),
        ("one two", ("ne", "two"), "o"),
        ("one tw", ("two",), "one tw"),
        ("stop", ("stop",), ""),
        ("x\n\ny", ("\n\n",), "x"),
    ],
)
def test_stop_strings_and_what_is_behind_them_are_left_out(text, stop, told):
    pieces, stopped = streamed(text, stop)
    assert "".join(pieces) == told
    assert stopped == any(string in text for string in stop)


def test_random_texts_stop_where_the_whole_text_would_be_cut():
    chance = random.Random(0)
    for _ in range(300):
        text = "".join(chance.choices("abé", k=12))
        stops = tuple("".join(chance.choices("abé", k=chance.randint(1, 3))) for _ in range(2))
        pieces, stopped = streamed(text, stops)
        # the string that is complete first stops; of two at once, the one that began earlier
        ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
        assert stopped == bool(ends)
        assert "".join(pieces) == (text[: min(ends)[1]] if ends else text)


@pytest.mark.skipif(not is_cached("stories15M"), reason="python -m minitrain assets stories15M")
def test_a_real_tokenizers_words_keep_their_spaces():
    tokenizer = read_tokenizer(
        fetch("stories15M", progress=False) / "tokenizer.bin", vocab_size=32000
    )
    tokens = tokenizer.encode("Once upon a time, Zoë had 3 cats 😀 and more")
    for cut in (1, 3, 8):
        stream = TextStream(tokenizer.decode, tokens[:cut])
        told = "".join(stream.push(token) for token in tokens[cut:]) + stream.finish()
        assert tokenizer.decode(tokens[:cut]) + told == tokenizer.decode(tokens)
