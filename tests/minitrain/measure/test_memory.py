"""The ledger counts every storage once, by holder; its formulas agree with what it measures."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from minitrain.errors import InputError
from minitrain.measure.budget import OutOfMemory, memory_budget, parse_bytes
from minitrain.measure.memory import CATEGORIES, MemoryLedger

FLOAT = 4


def mlp(width: int = 32, hidden: int = 128) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def held_after_forward(model: nn.Module, *inputs: torch.Tensor) -> int:
    with MemoryLedger(model) as ledger:
        out = model(*inputs)
        saved = ledger.now["activations"]
        del out
    return saved


def test_a_whole_step_of_adam_by_category():
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(16, 32)
    with MemoryLedger(model, optimizer) as ledger:
        model(x).sum().backward()
        optimizer.step()
    weights = FLOAT * count(model)
    steps = FLOAT * len(list(model.parameters()))  # AdamW keeps a step count a parameter
    for report in (ledger.now, ledger.peak):
        assert tuple(report) == CATEGORIES
        assert report["parameters"] == report["gradients"] == weights
        assert report["optimizer"] == 2 * weights + steps
    assert ledger.now["activations"] == 0, "backward has freed what it saved"
    assert ledger.peak_bytes >= ledger.now_bytes


@given(batch=st.integers(1, 9), width=st.integers(1, 40), hidden=st.integers(1, 90))
@settings(max_examples=15, deadline=None)
def test_activations_are_exactly_what_autograd_keeps(batch, width, hidden):
    """Linear keeps its input, GELU its input: x, h and gelu(h); no weight is among them."""
    saved = held_after_forward(mlp(width, hidden), torch.randn(batch, width))
    assert saved == FLOAT * batch * (width + 2 * hidden)


def test_a_tensor_saved_twice_or_as_a_view_counts_once():
    x = torch.randn(8, 8, requires_grad=True)
    model = nn.Identity()
    with MemoryLedger(model, device="cpu") as ledger:
        hidden = x * 2
        out = (hidden * hidden).sum() + (hidden.T @ hidden[:4].T).sum()
        assert ledger.now["activations"] == FLOAT * 64
        del out, hidden
        assert ledger.now["activations"] == 0


def test_buffers_and_frozen_parameters():
    model = nn.BatchNorm1d(10)
    model.weight.requires_grad_(False)
    with MemoryLedger(model) as ledger:
        model(torch.randn(4, 10)).sum().backward()
    assert ledger.now["parameters"] == 2 * 10 * FLOAT
    assert ledger.now["buffers"] == 2 * 10 * FLOAT + 8
    assert ledger.now["gradients"] == 10 * FLOAT


def test_peak_is_one_moment_and_reset_begins_anew():
    model = nn.Linear(4, 4)
    ledger = MemoryLedger(model)
    with ledger:
        big = torch.zeros(1000)
        del big
        small = torch.zeros(10)
    assert ledger.peak["temporaries"] == 4000
    assert ledger.now["temporaries"] == small.untyped_storage().nbytes()
    ledger.reset_peak()
    assert ledger.peak == ledger.now
    assert ledger.highest["temporaries"] == 40


def test_state_that_appears_during_the_peak_is_not_called_temporary():
    """In Adam's first step the state is new at the peak; it was made to be optimizer state."""
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    with MemoryLedger(model, optimizer) as first:
        model(torch.randn(1, 64)).sum().backward()
        optimizer.step()
    with MemoryLedger(model, optimizer) as second:
        optimizer.zero_grad()
        model(torch.randn(1, 64)).sum().backward()
        optimizer.step()
    assert first.peak["optimizer"] == second.peak["optimizer"] == 2 * 4 * 64 * 64 + 4


def test_bytes_on_meta_equal_bytes_on_cpu():
    def measure(device: str) -> dict[str, int]:
        with torch.device(device):
            model, x = mlp(), torch.randn(16, 32)
            optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        with MemoryLedger(model, optimizer) as ledger:
            model(x).square().sum().backward()
            optimizer.step()
        return ledger.highest

    meta, cpu = measure("meta"), measure("cpu")
    for category in ("parameters", "gradients", "optimizer", "activations"):
        assert meta[category] == cpu[category] > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compares with CUDA's own count")
def test_the_peak_agrees_with_cudas_own_count():
    model = mlp(512, 2048).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        model(torch.randn(4096, 512, device="cuda")).square().mean().backward()
        optimizer.step()

    step()  # the first one also makes cuBLAS's workspace, which no tensor holds
    with MemoryLedger(model, optimizer) as ledger:
        outside = torch.cuda.memory_allocated() - ledger.now_bytes
        torch.cuda.reset_peak_memory_stats()
        step()
    peak = torch.cuda.max_memory_allocated() - outside
    assert ledger.peak_bytes == pytest.approx(peak, rel=0.05)


# --- a budget ---


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
