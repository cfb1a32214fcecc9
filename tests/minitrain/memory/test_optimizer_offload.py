"""State that waits elsewhere: the same bits, two chunks in memory, whole files whatever happens."""

from __future__ import annotations

import resource
import threading
import time

import pytest
import torch

from minitrain.errors import InputError
from minitrain.memory.optimizer_offload import (
    Mover,
    Shelf,
    in_turn,
)
from minitrain.memory.stores import DiskStore, MemoryStore

WIDTH = 1000


class SlowStore(MemoryStore):
    """A link of known bandwidth, bytes a second each way."""

    def __init__(self, read, write):
        super().__init__()
        self.read_speed, self.write_speed = read, write

    def write(self, key, tensors):
        time.sleep(sum(t.nbytes for t in tensors) / self.write_speed)
        super().write(key, tensors)

    def read(self, key, into):
        time.sleep(sum(t.nbytes for t in into) / self.read_speed)
        super().read(key, into)


def test_a_read_finds_what_was_written_just_before():
    """The race: a tensor is put away, fetched at once, changed, and put away again."""
    shelf = Shelf(Mover(SlowStore(1e6, 1e5)), "x")
    tensor = torch.zeros(1000)
    for turn in range(5):
        shelf.get()
        assert tensor.eq(turn).all()
        tensor.add_(1)
        shelf.put([tensor])
        shelf.fetch()
    shelf.get()
    shelf.put([tensor])
    shelf.settle()
    assert tensor.untyped_storage().nbytes() == 0


class GatedStore(MemoryStore):
    """Reads nothing before `gate` is set, and notes when it has."""

    def __init__(self):
        super().__init__()
        self.gate, self.seen = threading.Event(), []

    def read(self, key, into):
        assert self.gate.wait(10)
        super().read(key, into)
        self.seen.append("read")


def test_a_fetch_does_not_wait_and_a_get_does():
    """Until `get` the tensor is another thread's: nobody may look at it."""
    store = GatedStore()
    shelf, tensor = Shelf(Mover(store), "x"), torch.full((1000,), 5.0)
    shelf.put([tensor])
    shelf.fetch()
    store.seen.append("fetch")
    store.gate.set()
    shelf.get()
    assert store.seen == ["fetch", "read"] and tensor.eq(5).all()


# ---- files that are whole, whatever happens ----


def state_on(folder):
    """What a new process finds there."""
    store, found = DiskStore(folder), {}
    for key, entry in store.committed.items():
        found[key] = torch.empty(entry["bytes"], dtype=torch.uint8)
        store.read(key, [found[key]])
    return found


def test_a_full_disk_stops_with_one_error_and_leaves_the_last_state(tmp_path):
    shelves = [Shelf(Mover(DiskStore(tmp_path)), "state-0")]
    tensor = torch.zeros(WIDTH)

    def step():
        for _ in in_turn(shelves, lambda index: [tensor]):
            tensor.add_(1)

    step(), step()
    before = state_on(tmp_path)
    assert before["state-0"].view(torch.float32).eq(2).all()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * WIDTH, hard))  # the kernel writes half of a file
    try:
        with pytest.raises(InputError, match=r"could not be written.* the step before is whole"):
            step()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    after = state_on(tmp_path)
    assert before.keys() == after.keys() and torch.equal(before["state-0"], after["state-0"])


def test_a_step_that_was_killed_half_way_is_not_seen(tmp_path):
    store = DiskStore(tmp_path)
    for value in (1, 2, 3):
        for key in ("a", "b"):
            store.write(key, [torch.full((10,), float(value))])
            if value == 3:
                break  # killed here: a is written, b is not
        else:
            store.commit()
    read = torch.empty(10)
    for key in ("a", "b"):
        DiskStore(tmp_path).read(key, [read])
        assert read.eq(2).all()


@pytest.mark.parametrize("harm", ["cut", "changed"])
def test_a_damaged_file_is_found_when_it_is_read(tmp_path, harm):
    store = DiskStore(tmp_path)
    store.write("a", [torch.arange(10.0)])
    store.commit()
    path = tmp_path / store.committed["a"]["file"]
    data = path.read_bytes()
    path.write_bytes(data[:-8] if harm == "cut" else data[:-1] + b"?")
    with pytest.raises(InputError, match="is damaged"):
        store.read("a", [torch.empty(10)])
