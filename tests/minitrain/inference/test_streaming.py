"""Text that streams is the whole text's, in vocabularies of the kinds that models have."""

from __future__ import annotations

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from minitrain.data.tokenizer import byte_to_character
from minitrain.inference.streaming import TextStream

BLANK, SPECIAL = "\u2581", ["<s>", "</s>", "<|more|>"]
WORDS = ["a", "b", "o", "upon", "once", "time", "é", "好", "한", "�", "\u0301", "\u200d", "👩"]


def byte_level() -> Tokenizer:
    """As GPT-2's: tokens of several bytes may begin and end inside a character."""
    characters = byte_to_character()
    written = ["".join(characters[byte] for byte in f" {word}".encode()) for word in WORDS]
    across = [b"\xe5\xa5", b"\xbd\xed", b"\xed\x95", b"\x9c\xe5", b"\xbd\xe5", b"\xe5\xa5\xbd\xe5"]
    written += ["".join(characters[byte] for byte in data) for data in across]
    names = dict.fromkeys([*characters.values(), *written])
    tokenizer = Tokenizer(models.BPE({name: id for id, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return with_special(tokenizer)


def byte_fallback() -> Tokenizer:
    """As Llama 2's: characters that are no tokens are bytes, and a text loses its first space."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += [BLANK, 2 * BLANK, *WORDS, *(f"{BLANK}{word}" for word in WORDS)]
    vocabulary = {name: id for id, name in enumerate(names)}
    pairs = [(BLANK, word) for word in WORDS if len(word) == 1]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)]
    )
    steps = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return with_special(tokenizer)


def metaspace() -> Tokenizer:
    """As T5's: whole pieces, and no bytes."""
    names = ["<unk>", BLANK, *WORDS, *(f"{BLANK}{word}" for word in WORDS)]
    pieces = [(name, -float(len(names) - place)) for place, name in enumerate(names)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return with_special(tokenizer)


def wordpiece() -> Tokenizer:
    """As BERT's: a space before each word but the first."""
    names = ["[UNK]", ".", "'", *WORDS, *(f"##{word}" for word in WORDS)]
    tokenizer = Tokenizer(models.WordPiece({name: id for id, name in enumerate(names)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return with_special(tokenizer)


def with_special(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    return tokenizer


KINDS = {one.__name__: one() for one in (byte_level, byte_fallback, metaspace, wordpiece)}


def sequences(tokenizer: Tokenizer, count: int, seed: int = 0) -> list[list[int]]:
    """Text, bytes that are no text, and special tokens, in any order."""
    chance = random.Random(seed)
    size, special = tokenizer.get_vocab_size(), list(map(tokenizer.token_to_id, SPECIAL))
    texts = [
        "once upon a time",
        " 好好 한한",
        "👩\u200d👩",
        "e\u0301\n",
        "\n\n",
        "\n €",
        "��a",
        "   a",
    ]
    drawn = []
    for _ in range(count):
        tokens: list[int] = []
        for _ in range(chance.randint(1, 8)):
            kind = chance.random()
            if kind < 0.5:
                text = chance.choice(texts)
                tokens += tokenizer.encode(text, add_special_tokens=False).ids
            elif kind < 0.75:
                tokens += [chance.randrange(size) for _ in range(chance.randint(1, 5))]
            else:
                tokens += chance.choices(special, k=chance.randint(1, 6))
        drawn.append(tokens)
    return drawn


each_kind = pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)


def as_bytes(tokens: list[int]) -> str:
    """Every token is one byte of UTF-8."""
    return bytes(tokens).decode(errors="replace")


def pushed(decode, prompt: list[int], tokens: list[int], stop: tuple[str, ...] = ()) -> str:
    stream = TextStream(decode, prompt, stop)
    text = ""
    for token in tokens:
        text += stream.push(token)
        if stream.stopped:
            break
    return text + stream.finish()


@each_kind
@pytest.mark.parametrize("skip", [True, False], ids=["special left out", "special shown"])
def test_pieces_are_the_decoded_whole_in_any_cut(tokenizer, skip):
    def decode(tokens: list[int]) -> str:
        return tokenizer.decode(tokens, skip_special_tokens=skip)

    chance = random.Random(1)
    for tokens in sequences(tokenizer, 250):
        whole, cut = decode(tokens), chance.randint(0, len(tokens))
        assert pushed(decode, [], tokens) == whole
        prompt = decode(tokens[:cut])
        while not whole.startswith(prompt):  # it ends inside a character, which is then whole
            prompt = prompt[:-1]
        assert prompt + pushed(decode, tokens[:cut], tokens[cut:]) == whole


@each_kind
def test_a_stop_string_ends_the_text_with_the_first_token_that_makes_it(tokenizer):
    """It is looked for in all the text so far, but for an unfinished character at its end."""
    chance, stopped = random.Random(2), 0
    for tokens in sequences(tokenizer, 250, seed=3):
        whole = tokenizer.decode(tokens)
        start, length = chance.randint(0, len(whole)), chance.randint(1, 3)
        stop = whole[start : start + length].strip("\ufffd") or "b"
        texts = (tokenizer.decode(tokens[:count]) for count in range(len(tokens) + 1))
        made = [text for text in texts if stop in text.rstrip("\ufffd")]
        want = made[0].partition(stop)[0] if made else whole.partition(stop)[0]
        assert pushed(tokenizer.decode, [], tokens, (stop,)) == want
        stopped += bool(made)
    assert stopped > 150


def test_five_tokens_that_each_end_inside_a_character():
    """As GPT-2's do with Chinese and Korean: after four of them half a character was given up."""
    tokenizer = byte_level()
    names = ["å¥", "½í", "ķľå", "¥½å", "¥", "½"]
    tokens = [id for name in names for id in bytes_as_tokens(tokenizer, name)]
    assert tokenizer.decode(tokens) == "好한好好"
    assert pushed(tokenizer.decode, [], tokens) == "好한好好"


def bytes_as_tokens(tokenizer, name: str) -> list[int]:
    """One token where there is such a one, else a token a byte."""
    known = tokenizer.token_to_id(name)
    return [known] if known is not None else [tokenizer.token_to_id(one) for one in name]


@pytest.mark.parametrize(
    "names, text",
    [
        (["<s>", "<s>", "<s>", "</s>", "▁once", "▁a"], "once a"),
        (["▁once", "▁a", *["<|more|>"] * 9, "▁time"], "once a time"),
        (["▁a", "<0xFF>", "<0xE2>", "<0x82>", "<0xAC>", "▁a"], "a���� a"),
        (["▁a", "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>", "▁a"], "a���� a"),
        (["▁a", "<0x0A>", "<0xFF>", "b"], "a��b"),
        (["<0xE2>", "<s>", "<0x82>", "<0xAC>", "</s>"], "€"),
        (["▁", "▁", "▁once"], "  once"),
    ],
)
@pytest.mark.parametrize("cut", range(4))
def test_byte_tokens_and_first_spaces(names, text, cut):
    tokenizer = byte_fallback()
    tokens = [tokenizer.token_to_id(name) for name in names]
    assert tokenizer.decode(tokens) == text
    prompt = tokenizer.decode(tokens[:cut])
    while not text.startswith(prompt):
        prompt = prompt[:-1]
    assert prompt + pushed(tokenizer.decode, tokens[:cut], tokens[cut:]) == text


def test_a_line_end_that_is_a_byte_token_stops_at_once():
    """It is not certain before the next token, and still the answer is not a token longer."""
    tokenizer = byte_fallback()
    stream = TextStream(tokenizer.decode, [], ("\n",))
    assert stream.push(tokenizer.token_to_id("▁once")) == "once" and not stream.stopped
    assert stream.push(tokenizer.token_to_id("<0x0A>")) == "" and stream.stopped
    again = TextStream(tokenizer.decode, [tokenizer.token_to_id("<0x0A>")], ("\n",))
    assert again.push(tokenizer.token_to_id("a")) == "a" and not again.stopped


def test_a_long_text_is_decoded_a_few_tokens_at_a_time():
    tokenizer, lengths = byte_fallback(), []

    def decode(tokens: list[int]) -> str:
        lengths.append(len(tokens))
        return tokenizer.decode(tokens)

    tokens = tokenizer.encode("once upon a time 好 " * 50).ids
    twice = tokenizer.decode(tokens * 2)
    assert pushed(decode, tokens, tokens) == twice[len("once upon a time 好 " * 50) :]
    assert max(lengths) < 20


def test_the_end_shows_what_is_left():
    stream = TextStream(as_bytes, [], ("stop",))
    assert stream.push(ord("s")) == "" and stream.push(0xF0) == ""
    assert stream.finish() == "s\ufffd" and stream.finish() == ""
