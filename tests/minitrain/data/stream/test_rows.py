"""Every kind of rows is indexed as the tensor of it is: by numbers, slices, masks; nothing is rounded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minitrain.data.packing import pack, pack_stream
from minitrain.data.stream.held_out import RowsWithout
from minitrain.data.stream.mixture import JoinedRows, Mixture, tempered
from minitrain.data.stream.token_files import write_token_files
from minitrain.data.stream.token_rows import TokenRows
from minitrain.errors import InputError
from minitrain.inference.engine.request import as_tokens

DOCUMENTS = [[number, number + 1, number + 2] for number in range(1, 25)]
INF, NAN = float("inf"), float("nan")


@pytest.fixture(params=["packed", "files", "joined", "without"])
def rows(request, tmp_path):
    packed = pack_stream(DOCUMENTS, 8)
    if request.param == "packed":
        return packed
    write_token_files(tmp_path, DOCUMENTS, 64, shard_tokens=30)
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
    whole = pack_stream(DOCUMENTS, 8).tokens
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

NO_TOKENS = [[1.5], [1.0], ["7"], "123", [True], [None], [-1], [[1]], torch.tensor([0.5]), [2**40]]


@pytest.mark.parametrize("document", NO_TOKENS, ids=str)
def test_fractions_words_and_negative_numbers_are_no_tokens(tmp_path, document):
    for make in (pack, pack_stream):
        with pytest.raises(InputError, match=r"document 1 is .*token ids"):
            make([[1, 2], document], 4)
    with pytest.raises(InputError, match=r"document 1 is|reach from"):
        write_token_files(tmp_path, [[1, 2], document], 64)
    with pytest.raises(InputError, match="end token"):
        pack([[1]], 4, end_token=-1)


def test_token_ids_of_any_whole_kind(tmp_path):
    documents = [[1, 2], torch.tensor([3]), np.array([4, 5], np.uint16), range(6, 8), (), (9,)]
    expected = pack([list(map(int, document)) for document in documents], 4)
    assert torch.equal(pack(documents, 4).tokens, expected.tokens)
    index = write_token_files(tmp_path, documents, 64)
    assert index.tokens == 8 + 6


@pytest.mark.parametrize("prompt", ["123", [1.5], torch.tensor([1.0]), 5, [None], b"12"[:0].decode])
def test_a_prompt_is_whole_numbers(prompt):
    with pytest.raises(InputError, match="token numbers"):
        as_tokens(prompt)
    assert as_tokens(torch.tensor([1, 2])) == [1, 2] == as_tokens(np.array([1, 2], np.uint8))


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
