"""Serializes plain data and tensors without pickle: loading them cannot run code.

    b"MTW1" | u32 length of the tree | the tree, JSON | the tensors' bytes, concatenated

JSON's own types are stored as they are; everything else is a one-key object: {"tensor": [dtype,
shape, offset, bytes]}, {"tuple": […]}, {"dict": [[key, value], …]}, {"float": "nan"}, {"bytes":
[offset, bytes]}, {"dtype": "float32"}. So a submission can send a wrong value, and nothing else.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import torch
from torch import Tensor

MAGIC = b"MTW1"
MAX_TREE_BYTES = 32 * 2**20  # checked before parsing, which takes ten times as much
MAX_NODES = 1_000_000
MAX_DEPTH = 60
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


class PlainDataError(ValueError):
    """The data to send is not plain, or the received bytes are not in `pack`'s format."""


# Made once: a submission may have replaced the names that json looks up when called.
_IN_JSON = json.encoder.c_make_encoder(
    None,
    json.JSONEncoder().default,
    json.encoder.encode_basestring_ascii,
    None,
    ":",
    ",",
    False,
    False,
    True,
)


def pack(value: Any, in_json: Any = _IN_JSON) -> bytes:
    """Packs None, bools, numbers, strings, bytes, lists, tuples, dicts, tensors, arrays and
    dtypes."""
    blobs: list[bytes] = []
    tree = _encode(value, blobs, depth=0)
    head = "".join(in_json(tree, 0)).encode()
    return b"".join([MAGIC, struct.pack("<I", len(head)), head, *blobs])


def unpack(data: bytes) -> Any:
    """The value that was packed; PlainDataError for any other bytes."""
    try:
        if data[:4] != MAGIC:
            raise PlainDataError("not a message of the grader's")
        (length,) = struct.unpack("<I", data[4:8])
        if length > len(data) - 8:
            raise PlainDataError("a message that is cut short")
        if length > MAX_TREE_BYTES:
            raise PlainDataError("the message is too large")
        tree = json.loads(data[8 : 8 + length].decode())
        return _Decoder(memoryview(data)[8 + length :]).decode(tree, 0)
    except PlainDataError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, struct.error, RecursionError) as error:
        raise PlainDataError(f"a damaged message: {type(error).__name__}") from error


def _encode(value: Any, blobs: list[bytes], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise PlainDataError(f"the value is nested more than {MAX_DEPTH} deep")
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind is list:
        return [_encode(v, blobs, depth + 1) for v in value]
    if isinstance(value, tuple):  # torch.Size and namedtuples too
        return {"tuple": [_encode(v, blobs, depth + 1) for v in value]}
    if isinstance(value, dict):
        pairs = [
            [_encode(k, blobs, depth + 1), _encode(v, blobs, depth + 1)] for k, v in value.items()
        ]
        return {"dict": pairs}
    if isinstance(value, Tensor):
        return {"tensor": _encode_tensor(value, blobs)}
    return _encode_rare(value, blobs, depth)


def _encode_rare(value: Any, blobs: list[bytes], depth: int) -> Any:
    if isinstance(value, np.ndarray):
        return {"tensor": _encode_tensor(torch.from_numpy(np.ascontiguousarray(value)), blobs)}
    if isinstance(value, np.generic):
        return _encode(value.item(), blobs, depth + 1)
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": _append(bytes(value), blobs)}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, (bool, int, float, str, list)):  # a subclass: its plain value
        plain = next(t for t in (bool, int, float, str, list) if isinstance(value, t))
        return _encode(plain(value), blobs, depth + 1)
    raise PlainDataError(
        f"a {type(value).__name__} cannot be sent to the grader: "
        "only tensors, numbers, texts, and lists, tuples and dicts of them"
    )


def _encode_tensor(tensor: Tensor, blobs: list[bytes]) -> list[Any]:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES or tensor.layout != torch.strided or tensor.device.type == "meta":
        raise PlainDataError(
            f"a {tensor.layout} tensor of {name} on {tensor.device} cannot be sent"
        )
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    flat = plain.clone(memory_format=torch.contiguous_format).reshape(-1)  # stride 1, even of one
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return [name, list(tensor.shape), *_append(raw, blobs)]


def _append(raw: bytes, blobs: list[bytes]) -> list[int]:
    offset = sum(map(len, blobs))
    blobs.append(raw)
    return [offset, len(raw)]


class _Decoder:
    """Rebuilds a tree; every size is checked against the bytes present."""

    def __init__(self, blobs: memoryview) -> None:
        self.blobs = blobs
        self.nodes, self.left = 0, len(blobs)  # each received byte is used once

    def decode(self, tree: Any, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            raise PlainDataError("the message is too large")
        if isinstance(tree, list):
            return [self.decode(item, depth + 1) for item in tree]
        if not isinstance(tree, dict):
            return tree
        ((tag, inside),) = tree.items()
        return self.tagged(tag, inside, depth + 1)

    def tagged(self, tag: str, inside: Any, depth: int) -> Any:
        if tag == "tensor":
            return self.tensor(*inside)
        if tag == "tuple":
            return tuple(self.decode(item, depth) for item in inside)
        if tag == "dict":
            return {self.key(key, depth): self.decode(item, depth) for key, item in inside}
        if tag == "float":
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[inside]
        if tag == "bytes":
            return self.blob(*inside)
        if tag == "dtype":
            return DTYPES[inside]
        raise PlainDataError(f"no value is marked '{str(tag)[:20]}'")

    def key(self, tree: Any, depth: int) -> Any:
        key = self.decode(tree, depth)
        if isinstance(key, (int, float)) and abs(key) >= 2**61 - 1:  # hash collisions
            raise PlainDataError("a number too large to name anything")
        return key

    def tensor(self, name: str, shape: list[int], offset: int, length: int) -> Tensor:
        dtype = DTYPES[name]
        if len(shape) > MAX_DEPTH or any(type(n) is not int or not 0 <= n < 2**63 for n in shape):
            raise PlainDataError("a tensor of a negative size")
        elements = math.prod(shape)
        if elements * dtype.itemsize != length:
            raise PlainDataError("a tensor of another size than its shape says")
        if not elements:
            return torch.empty(shape, dtype=dtype)
        raw = torch.frombuffer(bytearray(self.blob(offset, length)), dtype=torch.uint8)
        if dtype == torch.bool:
            raw = raw.ne(0)  # other bytes than 0 and 1 are invalid bools
        return raw.view(dtype).reshape(shape)

    def blob(self, offset: int, length: int) -> bytes:
        if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
            raise PlainDataError("bytes at a place that cannot be")
        self.left -= length
        if offset + length > len(self.blobs) or self.left < 0:
            raise PlainDataError("bytes that are not all there")
        return bytes(self.blobs[offset : offset + length])
