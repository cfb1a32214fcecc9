"""Token files are those of `pack_stream`, bit for bit; every kind of rows is indexed as its tensor."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data.packing import pack, pack_stream
from minitrain.data.stream.held_out import RowsWithout
from minitrain.data.stream.mixture import JoinedRows, Mixture, tempered
from minitrain.data.stream.token_files import (
    TokenRows,
    read_index,
    verify_token_files,
    write_shard,
    write_token_files,
)
from minitrain.errors import InputError

DOCUMENTS = st.lists(st.lists(st.integers(1, 99), max_size=12), min_size=1, max_size=12)


@given(DOCUMENTS, st.integers(1, 9), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_rows_are_those_of_pack_stream(tmp_path_factory, documents, length, shard_tokens):
    folder = tmp_path_factory.mktemp("tokens")
    index = write_token_files(folder, iter(documents), 100, 0, shard_tokens)
    rows, packed = TokenRows(folder, length), pack_stream(documents, length, 0)
    assert len(rows) == len(packed)
    assert index.tokens == sum(map(len, documents)) + len(documents)
    everything = rows[:]
    for name in ("tokens", "targets", "documents"):
        assert torch.equal(getattr(everything, name), getattr(packed, name)), name
        assert getattr(everything, name).dtype == torch.int32
    assert torch.equal(rows[torch.tensor([len(rows) - 1, 0])].tokens, packed[[-1, 0]].tokens)
    assert len(rows[[]]) == 0


def test_shards_hold_whole_documents_and_the_narrowest_type(tmp_path):
    documents = [[1] * 5, [2] * 20, [3], [], [4] * 3]
    index = write_token_files(tmp_path / "a", documents, 300, 7, shard_tokens=10)
    assert [(shard.tokens, shard.documents) for shard in index.shards] == [(6, 1), (21, 1), (7, 3)]
    assert np.load(tmp_path / "a" / "tokens-00000.npy").dtype == np.uint16
    assert np.load(tmp_path / "a" / "tokens-00002.npy").tolist() == [3, 7, 7, 4, 4, 4, 7]
    write_token_files(tmp_path / "b", [[65_536]], 65_537)
    assert np.load(tmp_path / "b" / "tokens-00000.npy").tolist() == [65_536, 0]
    assert read_index(tmp_path / "a") == index == verify_token_files(tmp_path / "a")


def test_a_shard_is_mapped_and_not_loaded_and_a_worker_opens_its_own(tmp_path):
    write_token_files(tmp_path, [[1, 2, 3]] * 100, 9)
    rows = TokenRows(tmp_path, 4)
    assert isinstance(rows.shards[0][0].base, np.memmap)
    sent = pickle.dumps(rows)
    assert len(sent) < 1000
    assert torch.equal(pickle.loads(sent)[:].tokens, rows[:].tokens)


def change(name: str, how) -> object:
    return lambda folder: (folder / name).write_bytes(how((folder / name).read_bytes()))


DAMAGE = {
    "cut short": change("tokens-00000.npy", lambda data: data[:-2]),
    "one bit": change("tokens-00000.npy", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    "another shard": lambda folder: write_shard(folder, 0, [[1]], 9, 0),
    "no index": lambda folder: (folder / "index.json").unlink(),
    "half an index": change("index.json", lambda data: data[:12]),
    "another format": change(
        "index.json", lambda data: json.dumps(json.loads(data) | {"format": "something"}).encode()
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_told(tmp_path, damage):
    write_token_files(tmp_path, [[1, 2, 3], [4]], 9)
    DAMAGE[damage](tmp_path)
    with pytest.raises(InputError, match="prepare"):
        verify_token_files(tmp_path)
    if damage != "one bit":
        with pytest.raises(InputError, match="prepare"):
            TokenRows(tmp_path, 4)


def test_wrong_arguments_are_told(tmp_path):
    with pytest.raises(InputError, match="vocabulary"):
        write_token_files(tmp_path / "a", [[9]], 9)
    with pytest.raises(InputError, match="end token 9"):
        write_token_files(tmp_path / "a", [[1]], 9, end_token=9)
    for wrong in ({"shard_tokens": 0}, {"shard_tokens": 1.5}, {"vocab_size": 9.0}):
        with pytest.raises(InputError, match="whole number, 1 or more"):
            write_token_files(tmp_path / "a", [[1]], **{"vocab_size": 9, **wrong})
    assert not (tmp_path / "a" / "index.json").exists(), "what failed is not complete"
    write_token_files(tmp_path / "b", [[1]], 9)
    with pytest.raises(InputError, match="another folder"):
        write_token_files(tmp_path / "b", [[1]], 9)
    with pytest.raises(InputError, match="length of 1"):
        TokenRows(tmp_path / "b", 0)
    with pytest.raises(IndexError):
        TokenRows(tmp_path / "b", 1)[[2]]
    write_token_files(tmp_path / "c", [], 9)
    with pytest.raises(InputError, match="no tokens"):
        TokenRows(tmp_path / "c", 1)


# Every kind of rows is indexed as the tensor of it is: by numbers, slices, masks; nothing is rounded


TRIPLES = [[number, number + 1, number + 2] for number in range(1, 25)]
INF, NAN = float("inf"), float("nan")


@pytest.fixture(params=["packed", "files", "joined", "without"])
def rows(request, tmp_path):
    packed = pack_stream(TRIPLES, 8)
    if request.param == "packed":
        return packed
    write_token_files(tmp_path, TRIPLES, 64, shard_tokens=30)
    files = TokenRows(tmp_path, 8)
    if request.param == "files":
        return files
    if request.param == "joined":
        return JoinedRows([packed[:5], packed[5:]])
    return RowsWithout(files, torch.empty(0, dtype=torch.int32), np.arange(len(files)))


MASK = torch.arange(12) % 3 == 0
AS_A_TENSOR = [
    MASK, MASK.numpy(), MASK.tolist(), torch.zeros(12, dtype=torch.bool),
    torch.tensor([3, 0, 3, -1]), [1], [], torch.tensor([], dtype=torch.int64),
    np.array([5, 2], np.uint8), range(2, 7), slice(None, None, 2), slice(-3, None), slice(9, 99),
]  # fmt: skip


@pytest.mark.parametrize("which", AS_A_TENSOR, ids=str)
def test_rows_come_as_from_a_tensor(rows, which):
    whole = pack_stream(TRIPLES, 8).tokens
    assert len(rows) == 12 == len(whole)
    where = which
    if isinstance(which, range) or (isinstance(which, list) and not which):
        where = torch.tensor(list(which), dtype=torch.int64)
    elif isinstance(which, np.ndarray):
        where = torch.from_numpy(which if which.dtype == bool else which.astype(np.int64))
    assert torch.equal(rows[which].tokens, whole[where])


@pytest.mark.parametrize("which", [MASK[:5], [1.5], torch.tensor([0.0, 1.0]), [[1, 2]], ["1"]])
def test_what_names_no_rows_is_refused(rows, which):
    with pytest.raises(InputError, match="rows are asked for by"):
        rows[which]
    with pytest.raises(IndexError):
        rows[[12]]


# --- token ids ---

NO_TOKENS = [[1.0], "123", [True], [None], [-1], [[1]], torch.tensor([0.5]), [2**40]]


@pytest.mark.parametrize("document", NO_TOKENS, ids=str)
def test_fractions_words_and_negative_numbers_are_no_tokens(tmp_path, document):
    for make in (pack, pack_stream):
        with pytest.raises(InputError, match=r"document 1 is .*token ids"):
            make([[1, 2], document], 4)
    with pytest.raises(InputError, match=r"document 1 is|reach up to"):
        write_token_files(tmp_path, [[1, 2], document], 64)
    with pytest.raises(InputError, match="end token"):
        pack([[1]], 4, end_token=-1)


def test_token_ids_of_any_whole_kind(tmp_path):
    documents = [[1, 2], torch.tensor([3]), np.array([4, 5], np.uint16), range(6, 8), (), (9,)]
    expected = pack([list(map(int, document)) for document in documents], 4)
    assert torch.equal(pack(documents, 4).tokens, expected.tokens)
    index = write_token_files(tmp_path, documents, 64)
    assert index.tokens == 8 + 6


# --- weights ---


@pytest.mark.parametrize("weights", [(INF, 1), (NAN, 1), (-1, 2), (0, 0), (1e308, 1e308), (1,), ()])
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(InputError, match="give one each, finite"):
        Mixture((4, 4), weights, 8)
    with pytest.raises(InputError, match="give one each, finite"):
        Mixture((4, 4), (1, 1), 8, last_weights=weights or (INF, 1))


@pytest.mark.parametrize("sizes", [(INF, 1), (NAN, 1), (1, NAN), (0, 1), (-1, 1), ()])
def test_sizes_that_are_none_are_refused(sizes):
    with pytest.raises(InputError, match="have to be over 0"):
        tempered(sizes)
    with pytest.raises(InputError, match="have to be over 0"):
        tempered((1, 2), NAN)
