"""Data: near-duplicates against `datasketch`, batches against `torch.utils.data` and `datasets`,
packing against the naive method. All on text of random words; results are compared before timing.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from minitrain.bench.case import OURS, PEER, TORCH, Case, peer_module
from minitrain.data.loader import Loader
from minitrain.data.packing import pack
from minitrain.data.preparation.deduplication.near import choose_bands, near_duplicates
from minitrain.data.stream.token_files import TokenRows, write_token_files
from minitrain.measure.clock import Comparison, compare

THRESHOLD, WIDTH = 0.75, 5  # Jaccard similarity, words per shingle
VOCABULARY = 20_000
REASON = "the time is in Python's own work a row, which is more in ours: look at the absolute times"


def cases(
    repeats: int = 5, documents: int = 800, rows: int = 2_000, packed: int = 4_000
) -> list[Case]:
    datasketch = _datasketch()
    datasets = import_module("datasets")
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    return [
        Case(
            f"near duplicates of {documents} documents of 500 words",
            f"MinHash and MinHashLSH of datasketch {datasketch.__version__}",
            partial(_near, documents, repeats),
            REASON,
        ),
        Case(
            f"{rows} rows of 512 tokens from disk, shuffled",
            f"DataLoader of {TORCH} over a memory map",
            partial(_batches, torch_batches, rows, repeats),
            REASON + "; ours also finds each token's document and position",
        ),
        Case(
            f"{rows} rows of 512 tokens from disk, shuffled",
            f"streaming of datasets {datasets.__version__}",
            partial(_batches, datasets_batches, rows, repeats),
            REASON,
        ),
        Case(
            f"packing {packed} documents",
            f"best fit by a look at every row, {python}",
            partial(_packing, packed, repeats),
            REASON,
        ),
    ]


# --- near duplicates ---


def _near(count: int, repeats: int) -> Comparison:
    texts = drawn_texts(count, 500)
    texts[count // 2 :: 10] = texts[: len(texts[count // 2 :: 10])]  # planted copies
    steps = {
        OURS: lambda: near_duplicates(texts, THRESHOLD, WIDTH),
        PEER: lambda: datasketch_duplicates(texts),
    }
    assert steps[OURS]().tolist() == steps[PEER](), "both find what was planted, and nothing else"
    return compare(steps, repeats, warmup=0)


def datasketch_duplicates(texts: Sequence[str]) -> list[int]:
    """For each text its first match, by datasketch's own shingles, hashes and bands."""
    datasketch, split = _datasketch(), choose_bands(THRESHOLD)
    index = datasketch.MinHashLSH(num_perm=split.hashes, params=(split.bands, split.rows))
    firsts = []
    for number, text in enumerate(texts):
        words = text.split()
        shingles = {" ".join(words[i : i + WIDTH]).encode() for i in range(len(words) - WIDTH + 1)}
        signature = datasketch.MinHash(num_perm=split.hashes)
        signature.update_batch(list(shingles))
        firsts.append(min(index.query(signature), default=number))
        index.insert(number, signature)
    return firsts


def _datasketch() -> ModuleType:
    return peer_module("data", "datasketch")


def drawn_texts(count: int, words: int) -> list[str]:
    drawn = np.random.default_rng(0).integers(0, VOCABULARY, (count, words)).tolist()
    return [" ".join(f"w{word}" for word in document) for document in drawn]


# --- batches ---

LENGTH, BATCH = 512, 16
Reader = Callable[[], Iterator[torch.Tensor]]  # batches of tokens


def _batches(peer: Callable[[Path], Reader], rows: int, repeats: int) -> Comparison:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = np.random.default_rng(0).integers(1, VOCABULARY, rows * LENGTH).tolist()
        documents = [tokens[i : i + 300] for i in range(0, len(tokens), 300)]
        write_token_files(folder, documents, VOCABULARY)
        readers = {OURS: our_batches(folder), PEER: peer(folder)}
        steps = {who: partial(_count, reader) for who, reader in readers.items()}
        assert steps[OURS]() == steps[PEER](), "both read every row"
        return compare(steps, repeats, warmup=1)


def _count(reader: Reader) -> int:
    return sum(batch.shape[0] for batch in reader())


def our_batches(folder: Path) -> Reader:
    loader = Loader(TokenRows(folder, LENGTH), BATCH)
    return lambda: (batch.tokens for batch in loader)


class MappedRows(Dataset):
    """Reads rows like nanoGPT: inputs and targets, one token apart, across documents."""

    def __init__(self, folder: Path) -> None:
        self.tokens = np.load(folder / "tokens-00000.npy", mmap_mode="r")

    def __len__(self) -> int:
        return -(-len(self.tokens) // LENGTH)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(T,) both, int64; the last row overlaps the one before, so that it is full."""
        start = max(0, min(row * LENGTH, len(self.tokens) - LENGTH - 1))
        span = torch.from_numpy(self.tokens[start : start + LENGTH + 1].astype(np.int64))
        return span[:-1], span[1:]


def torch_batches(folder: Path) -> Reader:
    loader = DataLoader(MappedRows(folder), BATCH, shuffle=True)
    return lambda: (tokens for tokens, _ in loader)


def datasets_batches(folder: Path) -> Reader:
    """Rows of inputs and targets on disk, streamed through a buffer that shuffles."""
    datasets = import_module("datasets")
    rows = TokenRows(folder, LENGTH)[:]
    columns = {"tokens": rows.tokens.numpy(), "targets": rows.targets.numpy()}
    datasets.Dataset.from_dict(columns).save_to_disk(folder / "rows")
    stream = datasets.load_from_disk(folder / "rows").to_iterable_dataset(num_shards=4)
    shuffled = stream.shuffle(seed=0, buffer_size=1000).with_format("torch")
    return lambda: (batch["tokens"].long() for batch in shuffled.iter(BATCH))


# --- packing ---


def _packing(count: int, repeats: int) -> Comparison:
    sizes = np.random.default_rng(0).integers(1, LENGTH, count).tolist()
    documents = [[1] * size for size in sizes]
    assert len(pack(documents, LENGTH)) == naive_rows(sizes), "both fill as many rows"
    steps = {OURS: lambda: pack(documents, LENGTH), PEER: lambda: naive_rows(sizes)}
    return compare(steps, repeats, warmup=1)


def naive_rows(sizes: Sequence[int]) -> int:
    """Counts the rows of a naive `pack` that scans all of them for each document; packs nothing."""
    rooms: list[int] = []
    for size in sorted((size + 1 for size in sizes), reverse=True):
        fitting = [(room, row) for row, room in enumerate(rooms) if room >= size]
        if fitting:
            rooms[min(fitting)[1]] -= size
        else:
            rooms.append(LENGTH - size)
    return len(rooms)
