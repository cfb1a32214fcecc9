"""State that waits elsewhere: the same bits, two chunks in memory, whole files whatever happens."""

from __future__ import annotations

import resource
import threading
import time
from functools import partial

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.measure.memory import MemoryLedger
from minitrain.memory.optimizer_offload import (
    Mover,
    Shelf,
    in_turn,
    state_of,
)
from minitrain.memory.stores import DiskStore, MemoryStore

WIDTH, LAYERS = 32, 6
CHUNK = 4 * WIDTH * WIDTH


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])


def train(model, optimizer, steps=4):
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randn(4, WIDTH)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class OffloadedOptimizer:
    """Steps `optimizer` chunk by chunk, its state in `store` before and after, as ZeRO's does."""

    def __init__(self, optimizer, store, chunk_bytes):
        self.inner, self.mover = optimizer, Mover(store)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        per_chunk = max(1, chunk_bytes // parameters[0].nbytes)
        self.chunks = [parameters[i : i + per_chunk] for i in range(0, len(parameters), per_chunk)]
        self.shelves = [Shelf(self.mover, f"state-{i}") for i in range(len(self.chunks))]

    def step(self):
        gradients = {p: p.grad for chunk in self.chunks for p in chunk}
        self.zero_grad()
        for index in in_turn(self.shelves, lambda i: state_of(self.inner, self.chunks[i])):
            for parameter in self.chunks[index]:
                parameter.grad = gradients[parameter]
            self.inner.step()
            for parameter in self.chunks[index]:
                parameter.grad = None

    def zero_grad(self):
        for parameter in (p for chunk in self.chunks for p in chunk):
            parameter.grad = None

    def state_dict(self):
        """The state comes back for it, and stays until the next step."""
        for shelf in self.shelves:
            shelf.get()
        return self.inner.state_dict()


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


@pytest.mark.parametrize("kind", [torch.optim.AdamW, partial(torch.optim.SGD, momentum=0.9)])
def test_bit_for_bit_the_same_and_two_chunks_in_memory(kind, tmp_path):
    want = train(model := model_of(), plain := kind(model.parameters(), lr=1e-2))
    stores = [MemoryStore(), DiskStore(tmp_path), SlowStore(1e8, 1e7)]
    for store in stores:
        model = model_of()
        optimizer = OffloadedOptimizer(kind(model.parameters(), lr=1e-2), store, CHUNK)
        assert len(optimizer.chunks) == LAYERS
        with MemoryLedger(model, optimizer.inner) as ledger:
            got = train(model, optimizer)
        assert torch.equal(got, want)
        whole = sum(
            t.nbytes
            for s in plain.state.values()
            for t in s.values()
            if t is not None and isinstance(t, torch.Tensor)
        )
        assert ledger.highest["optimizer"] <= whole * 3 / LAYERS, "a third in its first step"
        assert ledger.now["optimizer"] == 0
        again = optimizer.state_dict()["state"]
        for old, new in zip(plain.state_dict()["state"].values(), again.values()):
            assert all(
                torch.equal(torch.as_tensor(old[k]), torch.as_tensor(new[k]))
                for k in old
                if old[k] is not None
            )


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
    model = model_of()
    optimizer = OffloadedOptimizer(
        torch.optim.AdamW(model.parameters()), DiskStore(tmp_path), CHUNK
    )
    train(model, optimizer, 2)
    before = state_on(tmp_path)
    assert len(before) == LAYERS
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (CHUNK, hard))  # the kernel writes half of a file
    try:
        with pytest.raises(InputError, match="the step before is whole") as error:
            train(model, optimizer, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "could not be written" in str(error.value)
    after = state_on(tmp_path)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


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
