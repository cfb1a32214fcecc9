"""What is sent away comes back as it was, once, and before it is asked for."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from minitrain.errors import InputError
from minitrain.measure.clock import threads
from minitrain.measure.predicted_memory import predicted_activations
from minitrain.memory.activation_offload import Offload, offload_naive
from minitrain.memory.placement import sqrt_plan
from minitrain.memory.segments import recompute
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

SMALL = ModelConfig(11, 32, layers=5, heads=4, kv_heads=2, ffn_size=56)
TOKENS = torch.arange(2 * 16).view(2, 16) % 11


@pytest.fixture(autouse=True)
def one_thread():
    with threads(1):
        yield


def gradients(model, where, tokens=TOKENS) -> list[torch.Tensor]:
    model.zero_grad()
    with where:
        loss = model(tokens).square().mean()
    loss.backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("how", ["none", "selective", "full", 2, sqrt_plan(5)], ids=str)
def test_gradients_are_bit_equal(how):
    model = recompute(build(replace(SMALL, window=6)), how)
    want = gradients(model, nullcontext())
    for where in (offload_naive(), Offload(), Offload(least_bytes=0), Offload(0, ahead=0)):
        got = gradients(model, where)
        assert all(torch.equal(a, b) for a, b in zip(got, want))


@pytest.mark.parametrize("how", ["none", "selective", "full"])
def test_each_byte_crosses_once_each_way_and_weights_stay(how):
    """The closed form of what is saved, which counts each storage once and no weight."""
    model, where = recompute(build(SMALL), how), Offload(least_bytes=0)
    gradients(model, where)
    indices_and_loss = 8 * TOKENS.numel() * 2 + 4 * TOKENS.numel() * SMALL.vocab_size
    saved = predicted_activations(SMALL, 2, 16, recompute=how)
    assert where.sent_bytes == where.fetched_bytes
    assert where.sent_bytes == pytest.approx(saved, abs=indices_and_loss)


def test_small_tensors_stay():
    model, where = build(SMALL), Offload(least_bytes=2**40)
    gradients(model, where)
    assert where.sent_bytes == 0


def test_a_storage_that_changes_in_place_is_sent_again():
    """Each operation gets back what it saw: one copy for both would give one of them the other's."""
    x = torch.randn(8, requires_grad=True)
    with Offload(least_bytes=0) as where:
        y = x * 1
        first = y.sin()
        y.mul_(2)
        (first.sum() + y.sin().sum()).backward()
    torch.testing.assert_close(x.grad, x.cos() + 2 * (2 * x).cos())
    assert where.sent_bytes == 2 * x.nbytes


def test_an_address_used_again_is_another_storage():
    """Each product is freed as soon as its square is made, and the next one takes its place."""
    x = torch.ones(64, requires_grad=True)
    with Offload(least_bytes=0):
        squares = [(x * i).square().sum() for i in range(20)]
    for i, square in enumerate(squares):
        assert torch.autograd.grad(square, x)[0][0] == 2 * i * i


def test_it_comes_back_ahead_of_use():
    """When the last layer's tensor is asked for, the `ahead` before it are on their way."""
    x = torch.ones(4, requires_grad=True)
    where = Offload(least_bytes=0, ahead=2)
    with where:
        outs = [x]
        for _ in range(5):
            outs.append(outs[-1].exp())
    seen = []
    for out in outs[1:-1]:
        out.register_hook(lambda g: seen.append(where.fetched_bytes // x.nbytes))
    outs[-1].sum().backward()
    assert seen == [3, 4, 5, 5], "the first asks for one and finds two more already fetched"


def test_it_can_be_entered_every_step_and_nothing_piles_up():
    model, where = recompute(build(SMALL), "full"), Offload(least_bytes=0)
    for _ in range(3):
        gradients(model, where)
    with where:
        assert not where._sent and not where._known


def test_what_makes_no_sense_is_refused():
    with pytest.raises(InputError, match="neither can be negative"):
        Offload(ahead=-1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the link is a GPU's")
def test_on_a_gpu_activations_leave_it():
    model = recompute(build(replace(SMALL, hidden_size=256, head_size=64), "cuda"), "full")
    tokens = TOKENS.cuda().repeat(16, 8)
    want = gradients(model, nullcontext(), tokens)
    held = {}
    for name, where in {"kept": nullcontext(), "sent": Offload(0)}.items():
        before = torch.cuda.memory_allocated()
        with where:
            loss = model(tokens).square().mean()
        torch.cuda.synchronize()
        held[name] = torch.cuda.memory_allocated() - before
        model.zero_grad()
        loss.backward()
        assert all(torch.equal(p.grad, w) for p, w in zip(model.parameters(), want))
    assert held["sent"] < 0.5 * held["kept"]
