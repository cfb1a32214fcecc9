"""Token files: rows cut from them are those of `pack_stream`, bit for bit; damage is told."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data.packing import pack_stream
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


def cut_short(folder: Path) -> None:
    file = folder / "tokens-00000.npy"
    file.write_bytes(file.read_bytes()[:-2])


def one_bit(folder: Path) -> None:
    data = bytearray((folder / "tokens-00000.npy").read_bytes())
    data[-1] ^= 1
    (folder / "tokens-00000.npy").write_bytes(data)


def other_shard(folder: Path) -> None:
    write_shard(folder, 0, [[1]], 9, 0)


def no_index(folder: Path) -> None:
    (folder / "index.json").unlink()


def other_format(folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(index | {"format": "something"}))


def half_an_index(folder: Path) -> None:
    (folder / "index.json").write_text('{"format": ')


@pytest.mark.parametrize(
    ("damage", "opens"),
    [
        (cut_short, False),
        (one_bit, True),
        (other_shard, False),
        (no_index, False),
        (other_format, False),
        (half_an_index, False),
    ],
)
def test_damage_is_told(tmp_path, damage, opens):
    write_token_files(tmp_path, [[1, 2, 3], [4]], 9)
    damage(tmp_path)
    with pytest.raises(InputError, match="prepare"):
        verify_token_files(tmp_path)
    if not opens:
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
