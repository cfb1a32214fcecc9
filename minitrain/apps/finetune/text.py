"""Token rows for a fine-tuning run: new text to train on, new and old text held out.

Prompts are masked: their targets are -100. In a chat the loss covers the assistant's turns, with
the tokens that end them in the model's own template; in {"text": …}, a text file, a folder, or a
domain of the corpus, it covers all tokens. Each example is encoded as one string, as at inference,
and a token counts if any of its characters does.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tokenizers import processors

from minitrain.apps.chat import ChatTemplate
from minitrain.apps.finetune.jsonl import ASSISTANT, Chat, Example, Text, read_jsonl
from minitrain.apps.finetune.options import FinetuneOptions
from minitrain.data.corpus import DOMAINS, make_corpus
from minitrain.data.packing import IGNORED, Packed, pack, pack_stream
from minitrain.data.text import read_documents
from minitrain.errors import InputError
from minitrain.model.hub.text import TextFiles, encode, open_tokenizer

HELD_OUT = 0.1  # of the examples, at least one
MOST_HELD_OUT_ROWS = 64
HELD_OUT_BYTES = 60_000
CORPUS_BYTES = 1_000_000  # whatever the steps, so that more steps read the same text


@dataclass(frozen=True)
class Texts:
    training: Packed
    new: Packed  # of the new text, held out
    old: Packed
    fingerprint: str  # of every training token: a resumed run must find the same


class Encoder:
    """The model's own tokenizer, with the tokens that begin and end a sequence."""

    def __init__(self, files: TextFiles) -> None:
        self.backend = open_tokenizer(files.tokenizer)
        self.chat = ChatTemplate.of(files.tokenizer)
        any_text = self.backend.encode("a")
        own = any_text.sequence_ids  # None for the tokens put around every sequence
        self.first = any_text.ids[: own.index(0)] if 0 in own else []
        self.backend.post_processor = processors.ByteLevel(trim_offsets=False)  # spaces count
        if files.eos_ids:
            self.end = files.eos_ids[0]
        elif files.bos_id is not None:
            self.end = files.bos_id
        else:
            raise InputError("the model's config.json names no eos_token_id: add it there")

    def encode(self, text: str) -> list[int]:
        return encode(self.backend, text, add_special_tokens=False)

    def encoded(self, example: Example | Chat) -> tuple[list[int], list[int]]:
        """Tokens, and for each whether it counts in the loss."""
        if isinstance(example, Chat):
            first, pieces = [], self.pieces(example)  # the template writes the first tokens
        else:
            first, pieces = self.first, [example.prompt, example.completion]
        characters = b"".join(bytes([place % 2]) * len(piece) for place, piece in enumerate(pieces))
        text = self.backend.encode("".join(pieces), add_special_tokens=False)
        learned = [int(1 in characters[begin:end]) for begin, end in text.offsets]
        return [*first, *text.ids], [0] * len(first) + learned

    def pieces(self, chat: Chat) -> list[str]:
        """The rendered conversation, split so that every second piece counts in the loss."""
        if self.chat is None:
            raise InputError(
                'the text has chats, {"messages": …}, and this model has no chat template: use a '
                'model that was trained to chat, or lines {"prompt": …, "completion": …}'
            )
        marked = self.chat.pieces(chat.messages, chat.given)
        return self.turns(chat) if marked is None else marked

    def turns(self, chat: Chat) -> list[str]:
        """The conversation, cut before and after each of the assistant's turns."""
        render = partial(self.chat.render, given=chat.given)
        whole, pieces, end = render(chat.messages, answer=False), [], 0
        for place, message in enumerate(chat.messages):
            if message["role"] == ASSISTANT:
                asked = render(chat.messages[:place])
                said = render(chat.messages[: place + 1], answer=False)
                if not (said.startswith(asked) and whole.startswith(said)):
                    raise InputError(
                        "the model's chat template writes a turn differently once others follow: "
                        'give each turn as a line of its own, {"prompt": …, "completion": …}'
                    )
                pieces += [whole[end : len(asked)], whole[len(asked) : len(said)]]
                end = len(said)
        return [*pieces, whole[end:]]


def make_texts(options: FinetuneOptions, files: TextFiles) -> Texts:
    encoder = Encoder(files)
    learned, held_out = read_examples(options.data, options)
    _, old = read_examples(options.old_text, options)
    training = rows_of(learned, encoder, options.length)
    if len(training) < options.batch:
        raise InputError(
            f"the text fills {len(training)} rows of {options.length} tokens, and a step takes "
            f"{options.batch}: use --batch {max(1, len(training))}, a shorter --length or more text"
        )
    digest = hashlib.sha256(training.tokens.numpy().tobytes() + training.targets.numpy().tobytes())
    short = [
        rows_of(examples, encoder, options.length)[:MOST_HELD_OUT_ROWS]
        for examples in (held_out, old)
    ]
    return Texts(training, *short, digest.hexdigest())


def read_examples(name: str, options: FinetuneOptions) -> tuple[list[Text], list[Text]]:
    """Examples to learn, and examples held out."""
    if name in DOMAINS:
        texts = [
            make_corpus(CORPUS_BYTES, options.seed, name).documents,
            make_corpus(HELD_OUT_BYTES, options.seed + 1_000_000, name).documents,
        ]
        return tuple([Example("", text) for text in part] for part in texts)
    path = Path(name)
    if path.suffix == ".jsonl":
        return split_off(read_jsonl(path), options.seed)
    return split_off([Example("", text) for text in read_documents(name)], options.seed)


def split_off(examples: list[Text], seed: int) -> tuple[list[Text], list[Text]]:
    """Holds out a part drawn by `seed`; for a single text, its end."""
    if len(examples) == 1:
        text = getattr(examples[0], "completion", "")
        cut = int(len(text) * (1 - HELD_OUT))
        if isinstance(examples[0], Chat) or examples[0].prompt or cut in (0, len(text)):
            raise InputError("one example cannot be learned and held out too: give two or more")
        return [Example("", text[:cut])], [Example("", text[cut:])]
    count = max(1, int(len(examples) * HELD_OUT))
    drawn = set(random.Random(seed).sample(range(len(examples)), count))
    kept = [example for index, example in enumerate(examples) if index not in drawn]
    return kept, [examples[index] for index in sorted(drawn)]


def rows_of(examples: list[Text], encoder: Encoder, length: int) -> Packed:
    """Packed rows, whose targets are masked by equally packed flags.

    Packing puts the end token before each document, which inference does not; it is kept only for
    fully learned text, and a prompt replaces it.
    """
    encoded = [encoder.encoded(example) for example in examples]
    read = [learned[:1] == [0] for _, learned in encoded]
    tokens, flags = ([each[i][r:] for each, r in zip(encoded, read)] for i in (0, 1))
    fits = max(map(len, tokens)) < length  # one position is for the end token
    laid = pack if fits else pack_stream
    packed, learned = laid(tokens, length, encoder.end), laid(flags, length, 1)
    owners, begins = np.unique(packed.documents, return_index=True)
    for owner, begin in zip(owners, begins):
        if owner >= 0 and read[owner]:
            packed.tokens.view(-1)[begin] = encoded[owner][0][0]
    targets = torch.where(learned.targets == 1, packed.targets, IGNORED)
    rows = Packed(packed.tokens, targets, packed.documents)
    return rows[rows.valid.any(dim=1)]  # a row with only a prompt has no targets
