"""Packing: no token lost, none seen across documents, short documents whole, rows well filled."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data.packing import IGNORED, PADDING, Packed, pack, pack_stream
from minitrain.errors import InputError

DOCUMENTS = st.lists(st.lists(st.integers(1, 99), max_size=40), min_size=1, max_size=30)
PACKERS = [pack, pack_stream]


def runs(packed: Packed):
    """(document, inputs, targets, positions) of each stretch of one document in a row."""
    positions = packed.positions()
    for row in range(len(packed)):
        owners = packed.documents[row]
        edges = [0, *(1 + torch.nonzero(owners[1:] != owners[:-1]).flatten()).tolist(), len(owners)]
        for a, b in pairwise(edges):
            fields = (packed.tokens, packed.targets, positions)
            yield int(owners[a]), *(field[row, a:b].tolist() for field in fields)


@pytest.mark.parametrize("packer", PACKERS)
@given(documents=DOCUMENTS, length=st.integers(1, 24))
@settings(max_examples=150, deadline=None)
def test_every_token_is_an_input_once_and_a_target_once(packer, documents, length):
    """The pieces of each document, put together by their overlaps, give it with both its ends."""
    pieces = defaultdict(list)
    for document, inputs, targets, positions in runs(packer(documents, length)):
        assert positions == list(range(len(inputs)))
        if document == PADDING:
            assert set(targets) <= {IGNORED}
        else:
            assert targets[:-1] == inputs[1:], "a target is the next input of the same document"
            pieces[document].append((inputs, targets))
    assert sorted(pieces) == list(range(len(documents)))
    for index, document in enumerate(documents):
        starts = [piece for piece in pieces[index] if piece[0][0] == 0]
        assert len(starts) == 1, "one piece begins the document"
        whole, rest = [0, *document, 0], [piece for piece in pieces[index] if piece[0][0] != 0]
        assert sum(len(inputs) for inputs, _ in pieces[index]) == len(document) + 1
        assert starts[0][0] + starts[0][1][-1:] == whole[: len(starts[0][0]) + 1]
        for inputs, targets in rest:
            piece = inputs + targets[-1:]
            assert any(whole[i : i + len(piece)] == piece for i in range(len(whole)))
    targets = sorted(t for row in packer(documents, length).targets.tolist() for t in row)
    counted = [t for t in targets if t != IGNORED]
    assert counted == sorted(t for document in documents for t in (*document, 0))


@given(documents=DOCUMENTS, length=st.integers(1, 60))
@settings(max_examples=100, deadline=None)
def test_pack_keeps_whole_what_fits_and_wastes_little(documents, length):
    packed = pack(documents, length)
    times = defaultdict(int)
    for document, *_ in runs(packed):
        times[document] += 1
    sizes = [len(document) + 1 for document in documents]
    for index, size in enumerate(sizes):
        assert times[index] == -(-size // length)
    floor = -(-sum(sizes) // length)
    assert floor <= len(packed) <= 2 * floor, "no two rows of best fit could share one"
    stream = pack_stream(documents, length)
    assert stream.valid[:-1].all() and len(stream) == floor


def test_a_target_never_is_the_next_documents_first_token():
    packed = pack([[5, 6], [7, 8]], length=8, end_token=3)
    assert packed.tokens[0].tolist() == [3, 5, 6, 3, 7, 8, 3, 3]
    assert packed.targets[0].tolist() == [5, 6, 3, 7, 8, 3, IGNORED, IGNORED]
    assert packed.documents[0].tolist() == [0, 0, 0, 1, 1, 1, PADDING, PADDING]
    assert packed.positions()[0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert packed.fill == 0.75
    # rows of 10: 6+4, 5+3+2; first fit would do as well, next fit not
    assert pack([[1] * (size - 1) for size in (6, 5, 4, 3, 2)], length=10).fill == 1


@pytest.mark.parametrize("packer", PACKERS)
def test_nothing_to_pack_and_no_room_are_told(packer):
    with pytest.raises(InputError, match="no document"):
        packer([], 8)
    with pytest.raises(InputError, match="length is 0; it must be a whole number, 1 or more"):
        packer([[1]], 0)
    with pytest.raises(InputError, match=r"length is 2\.5; it must be a whole number"):
        packer([[1]], 2.5)
