"""Small vocabularies of the three kinds that models have, and token sequences that are hard to decode.

All have special tokens, which a decoder leaves out, and single bytes where their kind has them.
"""

from __future__ import annotations

import random

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from minitrain.data.tokenizer import byte_to_character

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
