"""The text of a training run: documents, tokens, rows, and the held-out part.

The default corpus is made as large as the run's first limit needs, so that no document repeats; a
resumed run keeps it. Its exact entropy on the held-out documents is the loss floor; other corpora
have none.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

from minitrain.apps.train.options import TrainOptions, prepared_folder
from minitrain.data.corpus import make_corpus
from minitrain.data.packing import Packed, pack, pack_stream
from minitrain.data.packing import Rows as RowsToRead
from minitrain.data.stream.held_out import hold_out
from minitrain.data.stream.token_files import INDEX, TokenRows
from minitrain.data.text import read_documents
from minitrain.data.tokenizer import Tokenizer, train_tokenizer
from minitrain.errors import InputError

HELD_OUT_BYTES = 120_000
HELD_OUT_SEED = 1_000_000  # added to the run's seed: other stories in the same language
HELD_OUT_ROWS = 200  # of a text without a floor
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_BYTES = 1_000_000  # enough for so small a vocabulary


@dataclass(frozen=True)
class Text:
    """Documents to train on, documents held out, and the latter's entropy in nats if known."""

    documents: list[str]
    held_out: list[str]
    held_out_nats: float | None = None


@dataclass(frozen=True)
class Rows:
    """Rows of a text, or of tokens from `data prepare`."""

    training: RowsToRead
    tokens: int  # targets of an epoch
    held_out: Packed
    floor: float | None  # nats per token of the documents held out
    fingerprint: str  # of every training token: a resumed run must find the same


def read_rows(options: TrainOptions, tokenizer: Path | None) -> tuple[Tokenizer, Rows]:
    """The rows of --data; `tokenizer`: the file of a resumed run."""
    prepared = prepared_folder(options.data)
    if prepared is not None:
        return prepared_rows(prepared, options)
    text = read_text(options)
    fitted = Tokenizer.load(tokenizer) if tokenizer else fit_tokenizer(text, options.vocab)
    return fitted, make_rows(text, fitted, options)


def prepared_rows(folder: Path, options: TrainOptions) -> tuple[Tokenizer, Rows]:
    """Prepared token files with their own tokenizer; the index has the checksums of all shards."""
    tokenizer, files = Tokenizer.load(folder / TOKENIZER_FILE), TokenRows(folder, options.length)
    if tokenizer.vocab_size != files.index.vocab_size:
        raise InputError(
            f"{folder} has tokens of {files.index.vocab_size}, and its {TOKENIZER_FILE} "
            f"{tokenizer.vocab_size}: prepare anew"
        )
    held = hold_out(files, options.seed, most_rows=HELD_OUT_ROWS)
    check_rows(len(held.training), options)
    digest = hashlib.sha256((folder / INDEX).read_bytes()).hexdigest()
    return tokenizer, Rows(held.training, held.tokens, held.rows, None, digest)


def read_text(options: TrainOptions) -> Text:
    """The text that --data names: the corpus, an asset, or a file."""
    if options.data == "corpus":
        corpus = make_corpus(options.size_of_corpus, options.seed, options.domain)
        held_out = make_corpus(HELD_OUT_BYTES, HELD_OUT_SEED + options.seed, options.domain)
        return Text(corpus.documents, held_out.documents, float(held_out.nats.sum()))
    return split_off(read_documents(options.data), options.seed)


def split_off(documents: list[str], seed: int, part: float = 0.04) -> Text:
    """Holds out a part of the documents, drawn by `seed`; with fewer than 25, the end of the
    text."""
    count = int(len(documents) * part)
    if count >= 1:
        drawn = set(random.Random(seed).sample(range(len(documents)), count))
        kept = [text for index, text in enumerate(documents) if index not in drawn]
        return Text(kept, [documents[index] for index in sorted(drawn)])
    text = "\n\n".join(documents)
    cut = int(len(text) * (1 - part))
    return Text([text[:cut]], [text[cut:]])


def fit_tokenizer(text: Text, vocab_size: int) -> Tokenizer:
    """Byte-pair merges from a sample of the documents, the same for the same text."""
    sample, size = [], 0
    for document in random.Random(0).sample(text.documents, len(text.documents)):
        sample.append(document[:TOKENIZER_BYTES])
        size += len(sample[-1])
        if size >= TOKENIZER_BYTES:
            break
    return train_tokenizer(sample, vocab_size)


def make_rows(text: Text, tokenizer: Tokenizer, options: TrainOptions) -> Rows:
    """If all documents fit a row they are packed whole; else streamed and cut at row ends."""
    training = _pack(tokenizer.encode_batch(text.documents), tokenizer, options.length)
    held_out = _pack(tokenizer.encode_batch(text.held_out), tokenizer, options.length)
    check_rows(len(training), options)
    floor = None
    if text.held_out_nats is not None:
        floor = text.held_out_nats / int(held_out.valid.sum())
    else:
        held_out = held_out[:HELD_OUT_ROWS]
    digest = hashlib.sha256(training.tokens.numpy().tobytes() + training.targets.numpy().tobytes())
    tokens = int(training.valid.sum())
    return Rows(training, tokens, held_out, floor, digest.hexdigest())


def check_rows(count: int, options: TrainOptions) -> None:
    if count < options.batch:
        raise InputError(
            f"the text fills {count} rows of {options.length} tokens, and a step takes "
            f"{options.batch}: use --batch {max(1, count)}, a shorter --length or more text"
        )


def _pack(documents: list[list[int]], tokenizer: Tokenizer, length: int) -> Packed:
    fits = max(map(len, documents)) < length  # one position is for the end token
    return (pack if fits else pack_stream)(documents, length, tokenizer.end_token)
