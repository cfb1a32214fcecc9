from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from minitrain.errors import InputError
from minitrain.memory.paged_optimizer import PageTable, paged
from minitrain.optimizers.adafactor import Adafactor
from minitrain.optimizers.adam8bit import Adam8bit
from minitrain.optimizers.adamw import AdamW, NaiveAdamW
from minitrain.optimizers.lion import Lion
from minitrain.optimizers.sgd import SGD

KINDS = [NaiveAdamW, Adam8bit, Lion, Adafactor, SGD]
PAGE = 1024
MANY = 10**9


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64, bias=False))


def step(net, optimizer, count=1):
    for seed in range(count):
        torch.manual_seed(seed)
        optimizer.zero_grad()
        net(torch.randn(4, 64)).square().sum().backward()
        optimizer.step()


def paged_bytes(optimizer):
    sizes = [v.nbytes for state in optimizer.state.values() for v in state.values()]
    return sum(-(-size // PAGE) * PAGE for size in sizes if size >= PAGE)


@pytest.mark.parametrize("kind", KINDS)
def test_it_steps_bit_for_bit_as_the_optimizer_that_it_is(kind):
    nets, table = [model(), model()], PageTable(4 * PAGE, PAGE)
    plain, ours = (
        kind(nets[0].parameters(), lr=1e-2),
        paged(kind, nets[1].parameters(), table, lr=1e-2),
    )
    for net, optimizer in zip(nets, (plain, ours)):
        step(net, optimizer, 3)
    assert all(torch.equal(a, b) for a, b in zip(*(net.parameters() for net in nets)))
    assert ours.state_dict()["state"].keys() == plain.state_dict()["state"].keys()
    assert table.pages * PAGE == paged_bytes(plain)


def test_a_long_text_pushes_state_out_and_the_next_step_brings_it_back_once():
    net = model()
    table = PageTable(MANY, PAGE)
    optimizer = paged(NaiveAdamW, net.parameters(), table)
    step(net, optimizer)
    fits = PageTable(table.pages * PAGE, PAGE)
    net = model()
    optimizer = paged(NaiveAdamW, net.parameters(), fits)
    step(net, optimizer)
    with fits.pressure(10 * PAGE - 1):
        assert len(fits.resident) == fits.pages - 10 and fits.bytes_out == 10 * PAGE
    assert fits.faults == 0
    step(net, optimizer)
    assert fits.faults == 10
    before = fits.faults
    step(net, optimizer)
    assert fits.faults == before, "and then all is there again"


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=60))
@settings(max_examples=60, deadline=None)
def test_the_table_is_lru_by_the_book(frames, touches):
    sizes = [1, 5, 10, 11, 25]  # bytes; pages of 10
    table = PageTable(frames * 10, 10)
    memory, known, faults, read, written = [], set(), 0, 0, 0
    for key, write in touches:
        table.touch(key, sizes[key], write)
        for part in range(-(-sizes[key] // 10)):
            page = (key, part)
            was = next((entry for entry in memory if entry[0] == page), None)
            if was is None and page in known:
                faults, read = faults + 1, read + 10
            dirty = write or bool(was and was[1])
            memory = [entry for entry in memory if entry[0] != page]
            while len(memory) > frames - 1:
                written += 10 * memory.pop(0)[1]
            memory.append((page, dirty))
            known.add(page)
    assert (table.faults, table.bytes_in, table.bytes_out) == (faults, read, written)
    assert len(table.resident) == len(memory) <= frames
    assert list(table.resident.values()) == [dirty for _, dirty in memory]


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match="hold no page"):
        PageTable(10, 100)
    table = PageTable(100, 10)
    with pytest.raises(InputError, match="even with all state paged out"):
        with table.pressure(100):
            pass
    for kind in (AdamW, torch.optim.AdamW):
        with pytest.raises(InputError, match="NaiveAdamW"):
            paged(kind, model().parameters(), table)
