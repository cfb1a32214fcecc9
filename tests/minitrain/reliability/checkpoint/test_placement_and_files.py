"""Boxes cover each element once; files are safetensors, and their checksums zlib's."""

from __future__ import annotations

import math
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from minitrain.errors import InputError
from minitrain.reliability.checkpoint.files import checksums, write_file, write_tensors
from minitrain.reliability.checkpoint.folder import Keep
from minitrain.reliability.checkpoint.placement import boxes_of_range, range_place

SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


@settings(deadline=None)
@given(SHAPES, st.data())
def test_the_boxes_of_a_range_are_its_elements_in_order_and_few(shape, data):
    size = math.prod(shape)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    whole = torch.arange(size).view(shape)
    boxes = list(boxes_of_range(start, stop, shape))
    parts = [
        whole[tuple(slice(o, o + n) for o, n in zip(offsets, lengths))].reshape(-1)
        for offsets, lengths in boxes
    ]
    found = torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)
    assert found.tolist() == list(range(start, stop))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)
    place = range_place("x", shape, start, (stop - start,))
    flat = torch.arange(start, stop)
    for box, part in zip(place.held, parts):
        assert box.find(flat).shape == box.shape
        assert box.find(flat).reshape(-1).tolist() == part.tolist()


def test_a_file_of_tensors_is_what_safetensors_reads(tmp_path):
    torch.manual_seed(0)
    kinds = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8]
    tensors = {str(kind): (100 * torch.randn(3, 5)).to(kind) for kind in kinds}
    tensors |= {"number": torch.tensor(3.0), "empty": torch.empty(0, 4), "flag": torch.ones(3) > 0}
    tensors["strided"] = torch.randn(6, 4).t()
    tensors["f8"] = torch.randn(7).to(torch.float8_e4m3fn)
    path = tmp_path / "a.safetensors"
    checksum = write_tensors(path, [(n, t, (0,) * t.dim()) for n, t in tensors.items()])
    stored = load_file(path)
    assert stored.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert stored[name].dtype == tensor.dtype and stored[name].shape == tensor.shape
        assert torch.equal(stored[name].view(torch.uint8) if name == "f8" else stored[name],
                           tensor.view(torch.uint8) if name == "f8" else tensor)  # fmt: skip
    data = path.read_bytes()
    assert (
        checksum
        == f"{len(data)}-{zlib.crc32(data):08x}"
        == checksums(tmp_path, [path.name])[path.name]
    )
    with safe_open(str(path), framework="pt") as file:
        assert file.metadata() == {"format": "pt"}, "no boxes: a plain file, as transformers wants"


def test_what_stays():
    steps = range(10, 101, 10)
    assert Keep(2).doomed(steps) == list(range(10, 90, 10))
    assert Keep(1, every=40).doomed(steps) == [10, 20, 30, 50, 60, 70, 90]
    with pytest.raises(InputError, match="keep at least the newest"):
        Keep(0)


def test_checksums_of_files_over_many_blocks_and_of_none(tmp_path):
    for size in (0, 1, 2**22, 3 * 2**22 + 5):
        data = torch.randint(256, (size,), dtype=torch.uint8).numpy().tobytes()
        assert write_file(tmp_path / "b", data) == f"{size}-{zlib.crc32(data):08x}"
        assert checksums(tmp_path, ["b"])["b"] == f"{size}-{zlib.crc32(data):08x}"
