"""Stores of offloaded tensors: CPU memory, or files that are always consistent.

A disk store has two files per key. A step writes the one not named in the manifest, and when all
keys are written one atomic rename of the manifest makes them valid together:

    step 7   manifest -> a.0 b.0     writing a.1 … b.1      killed: a.0 b.0, all of step 6
    commit   manifest -> a.1 b.1     (a rename)             killed: a.1 b.1, all of step 7

Every file's length and CRC-32 are in the manifest and checked when it is read. A killed process
loses nothing; for a power cut to lose only the last steps would take a flush to the disk.
Cost: twice the state on disk, once in traffic. Lab: e03.
"""

from __future__ import annotations

import ctypes
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.paths import write_atomically

MANIFEST = "manifest.json"


class Store(Protocol):
    """Keeps the bytes of lists of tensors; to read, pass tensors of the same sizes to fill."""

    def write(self, key: str, tensors: Sequence[Tensor]) -> None: ...
    def read(self, key: str, into: Sequence[Tensor]) -> None: ...
    def commit(self) -> None: ...


class MemoryStore:
    """CPU memory, page-locked for a GPU's tensors so that copies run at full speed."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Tensor]] = {}

    def write(self, key: str, tensors: Sequence[Tensor]) -> None:
        kept = self.kept.get(key, ())
        if [(t.shape, t.dtype) for t in kept] != [(t.shape, t.dtype) for t in tensors]:
            kept = [torch.empty_like(t, device="cpu", pin_memory=t.is_cuda) for t in tensors]
            self.kept[key] = kept
        for copy, tensor in zip(kept, tensors):
            copy.copy_(tensor, non_blocking=True)

    def read(self, key: str, into: Sequence[Tensor]) -> None:
        kept = self.kept[key]
        assert [(t.shape, t.dtype) for t in kept] == [(t.shape, t.dtype) for t in into], (
            f"{key} was written from tensors of other shapes or types"
        )
        for tensor, copy in zip(into, kept):
            tensor.copy_(copy, non_blocking=True)

    def commit(self) -> None:
        """Does nothing: memory does not outlive the process."""


class DiskStore:
    """A folder for one process only: give each of several ranks its own."""

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest = self.folder / MANIFEST
        self.committed = json.loads(manifest.read_text()) if manifest.exists() else {}
        self.written: dict[str, dict] = {}  # since the last commit

    def write(self, key: str, tensors: Sequence[Tensor]) -> None:
        valid = self.committed.get(key, {}).get("file")
        name = f"{key}.1" if valid == f"{key}.0" else f"{key}.0"
        crc, size = 0, 0
        try:
            with open(self.folder / name, "wb") as file:
                for tensor in tensors:
                    data = _bytes(tensor.cpu())
                    file.write(data)
                    crc, size = zlib.crc32(data, crc), size + len(data)
        except OSError as error:
            raise self._no_room(name, size, error) from error
        self.written[key] = {"file": name, "bytes": size, "crc32": crc}

    def read(self, key: str, into: Sequence[Tensor]) -> None:
        entry = self.written.get(key) or self.committed[key]
        crc, size = 0, 0
        with open(self.folder / entry["file"], "rb") as file:
            for tensor in into:
                on_cpu = tensor.device.type == "cpu"
                landing = tensor if on_cpu else torch.empty_like(tensor, device="cpu")
                data = _bytes(landing)
                size += file.readinto(data)
                crc = zlib.crc32(data, crc)
                if not on_cpu:
                    tensor.copy_(landing)
        if (size, crc) != (entry["bytes"], entry["crc32"]):
            raise InputError(
                f"{self.folder / entry['file']} is damaged: {size} bytes with CRC-32 {crc:08x}, "
                f"and {entry['bytes']} with {entry['crc32']:08x} were written; start again from a "
                "checkpoint, with an empty folder"
            )

    def commit(self) -> None:
        """Makes everything written since the last commit the state, atomically."""
        self.committed = {**self.committed, **self.written}
        self.written = {}
        try:
            write_atomically(self.folder / MANIFEST, json.dumps(self.committed))
        except OSError as error:
            raise self._no_room(MANIFEST, 0, error) from error

    def _no_room(self, name: str, size: int, error: OSError) -> InputError:
        return InputError(
            f"{self.folder / name} could not be written beyond {size:,} bytes ({error.strerror}): "
            "the state of the step before is whole there; free some space, or give another folder"
        )


def _bytes(tensor: Tensor) -> memoryview:
    """The tensor's own memory, for reading and writing."""
    assert tensor.is_contiguous(), "its bytes lie side by side"
    room = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    return memoryview(room).cast("B")  # numpy's view would prevent the storage from shrinking
