from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.measure.budget import OutOfMemory, memory_budget, parse_bytes

MEGABYTE = 250_000  # float32s


@pytest.mark.parametrize(
    ("size", "want"),
    [("200 MB", 200_000_000), ("1.5 GiB", 3 * 2**29), ("64kib", 2**16), ("7B", 7), (4096, 4096)],
)
def test_sizes_are_read(size, want):
    assert parse_bytes(size) == want


@pytest.mark.parametrize("size", ["200", "MB", "-1 MB", "0 MB", "1 MBit", "", 0, -5, True, None])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(InputError, match="200 MB"):
        parse_bytes(size)


def step(width=500, keep=None):
    model = nn.Linear(width, width, bias=False)  # 1 MB
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    if keep is not None:
        keep += [model, optimizer]


def test_a_step_fits_or_does_not_and_the_table_says_who_holds_what():
    step()  # what torch imports on the way is not the budget's
    kept = []
    with memory_budget("9 MB") as ledger:
        step(keep=kept)
        now = ledger.now
    assert [now[k] // 10**6 for k in ("parameters", "gradients", "optimizer")] == [1, 1, 2]
    with pytest.raises(OutOfMemory, match="most are optimizer: shard the state") as error:
        with memory_budget("3.5 MB"):
            step()
    assert isinstance(error.value, MemoryError)
    for word in ("parameters", "gradients", "temporaries", "budget"):
        assert word in str(error.value)


def test_freed_memory_is_not_counted_and_the_next_block_starts_anew():
    with memory_budget("3 MB"):
        for _ in range(5):
            torch.ones(2 * MEGABYTE)
        shrunk = torch.ones(2 * MEGABYTE)
        shrunk.untyped_storage().resize_(0)
        torch.ones(2 * MEGABYTE)
    with pytest.raises(OutOfMemory), memory_budget("3 MB"):
        torch.ones(MEGABYTE) + torch.ones(2 * MEGABYTE)[:MEGABYTE]
    torch.ones(4 * MEGABYTE)  # outside, nobody counts
