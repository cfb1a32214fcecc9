"""What crosses the wall: plain data comes back as it went, and anything else is refused."""

from __future__ import annotations

import json
import math
import pickle
import struct
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.lab.grading.difference import difference
from minitrain.lab.sandbox import plain_data

KEYS = st.integers(-(2**61) + 2, 2**61 - 2)  # beyond them many numbers have one hash
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False)
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | KEYS, inner) | st.tuples(inner),
    max_leaves=20,
)


@given(PLAIN)
@settings(max_examples=60, deadline=None)
def test_plain_values_come_back_as_they_went(value):
    assert plain_data.unpack(plain_data.pack(value)) == value


def test_what_would_cost_more_than_it_weighs_is_refused():
    """Tensors that share their bytes, and keys of one hash."""
    packed, start = plain_data.pack([torch.ones(8)]), len(plain_data.MAGIC) + 4
    (length,) = struct.unpack("<I", packed[start - 4 : start])
    tree, blobs = json.loads(packed[start : start + length]), packed[start + length :]
    for times in (1, 2):
        head = json.dumps([*tree * times]).encode()
        sent = plain_data.MAGIC + struct.pack("<I", len(head)) + head + blobs
        if times == 1:
            assert torch.equal(plain_data.unpack(sent)[0], torch.ones(8))
        else:
            with pytest.raises(plain_data.PlainDataError, match="not all there"):
                plain_data.unpack(sent)
    for key in (2**61 - 1, -(2**62), 2.0**70):
        with pytest.raises(plain_data.PlainDataError, match="too large to name"):
            plain_data.unpack(plain_data.pack({key: 1}))


@pytest.mark.parametrize("dtype", plain_data.DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
def test_tensors_of_every_dtype_come_back_bit_for_bit(dtype, shape):
    tensor = torch.randint(0, 2, shape).to(dtype)
    back = plain_data.unpack(plain_data.pack(tensor))
    assert back.dtype == dtype and back.shape == tensor.shape
    assert torch.equal(back.to(torch.complex128), tensor.to(torch.complex128))


def test_a_view_sends_its_own_elements_only():
    column = torch.arange(1_000_000.0).view(1000, 1000)[:, 3]
    packed = plain_data.pack({"part": column, "parameter": torch.nn.Parameter(torch.ones(2))})
    assert len(packed) < 6_000
    assert torch.equal(plain_data.unpack(packed)["part"], column)


def test_one_element_may_have_any_stride():
    one = torch.ones(1, 3, 1).transpose(1, 2)[..., :1]
    assert torch.equal(plain_data.unpack(plain_data.pack(one)), one)


def test_not_a_number_and_infinity():
    back = plain_data.unpack(
        plain_data.pack([math.nan, math.inf, -math.inf, np.float32(0.5), torch.bfloat16])
    )
    assert math.isnan(back[0]) and back[1:] == [math.inf, -math.inf, 0.5, torch.bfloat16]


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


@pytest.mark.parametrize(
    "value",
    [Bomb(), [Bomb()], {"x": {1, 2}}, print, torch.nn.Linear(1, 1), torch.empty(2, device="meta")],
)
def test_objects_are_refused_by_name(value):
    with pytest.raises(plain_data.PlainDataError, match="cannot be sent"):
        plain_data.pack(value)


def test_a_value_that_is_nested_without_end_is_refused():
    value: list = []
    value.append(value)
    with pytest.raises(plain_data.PlainDataError, match="nested"):
        plain_data.pack(value)


def forged(tree: object, blobs: bytes = b"") -> bytes:
    head = json.dumps(tree).encode()
    return plain_data.MAGIC + struct.pack("<I", len(head)) + head + blobs


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"MTW1",
        b"MTW1\xff\xff\xff\xff[]",
        pickle.dumps(Bomb()),
        forged({"tensor": ["float32", [4], 0, 16]}),
        forged({"tensor": ["float32", [-4], 0, 16]}, bytes(16)),
        forged({"tensor": ["float32", [4], -16, 16]}, bytes(16)),
        forged({"tensor": ["float32", [2**40, 2**40], 0, 16]}, bytes(16)),
        forged({"tensor": ["object", [4], 0, 16]}, bytes(16)),
        forged({"tensor": ["float32", [4.0], 0, 16]}, bytes(16)),
        forged({"tensor": "float32"}),
        forged({"bytes": [0, 10**9]}),
        forged({"call": ["os.system", "true"]}),
        forged({"dict": [[[1], 2]]}),
        forged({"float": "1e999"}),
        forged({"tuple": 3}),
        forged({"a": 1, "b": 2}),
        plain_data.MAGIC + struct.pack("<I", 200_000) + b"[" * 200_000,
    ],
)
def test_a_forged_message_is_refused(data):
    with pytest.raises(plain_data.PlainDataError):
        plain_data.unpack(data)


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_no_bytes_do_anything_else(data):
    with suppress(plain_data.PlainDataError):
        plain_data.unpack(plain_data.MAGIC + data)


def test_a_bool_that_is_neither_is_true():
    value = plain_data.unpack(forged({"tensor": ["bool", [2], 0, 2]}, b"\x00\x07"))
    assert difference(value, torch.tensor([False, True])) is None
