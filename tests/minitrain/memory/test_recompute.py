"""Forgetting and repeating changes no bit of a gradient, and happens exactly once."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from minitrain.errors import InputError
from minitrain.measure.flops import counted_flops
from minitrain.measure.memory import MemoryLedger
from minitrain.memory.recompute import Ambient, Checkpoint, checkpoint, checkpoint_naive
from minitrain.memory.selective import save_matmuls
from minitrain.parallel.ddp import DDP, make_buckets
from minitrain.ranks.launch import launch

WIDTH = 6
WAYS = {
    "naive": checkpoint_naive,
    "real": checkpoint,
    "to the end": Checkpoint(stop_early=False),
    "selective": Checkpoint(save_matmuls),
    "selective to the end": Checkpoint(save_matmuls, stop_early=False),
    "torch": partial(torch_checkpoint, use_reentrant=False),
}
REAL = {name: WAYS[name] for name in WAYS if name not in ("naive", "torch")}


class Layer(nn.Module):
    """Random, counting, with an operation in place: what a repetition can get wrong."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        h = F.dropout(F.gelu(self.up(x)) * 2, 0.3)
        return x + F.dropout(self.down(h.mul_(0.5)), 0.2)


class Net(nn.Module):
    def __init__(self, run=None, layers: int = 3):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.run = run or (lambda layer, x: layer(x))
        self.double()

    def forward(self, x):
        for layer in self.layers:
            x = self.run(layer, x)
        return x


def batch(rows: int = 5, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, WIDTH, dtype=torch.float64, generator=torch.manual_seed(seed))


def gradients(net: nn.Module, steps: int = 1) -> list[torch.Tensor]:
    """Of every parameter and of the input, after `steps` microbatches."""
    torch.manual_seed(7)
    x = batch().requires_grad_()
    for _ in range(steps):
        net(x).square().sum().backward()
    return [x.grad, *(p.grad for p in net.parameters())]


def same(got: list[torch.Tensor], want: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(got, want))


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_bit_equal_with_dropout_and_accumulation(way):
    net = Net(WAYS[way])
    assert same(gradients(net, steps=2), gradients(Net(), steps=2))
    state_after = torch.get_rng_state()
    gradients(Net(), steps=2)
    assert torch.equal(torch.get_rng_state(), state_after), "the generator goes on undisturbed"


def test_without_replayed_random_numbers_gradients_differ(monkeypatch):
    monkeypatch.setattr(Ambient, "restored", lambda self: nullcontext())
    for way in ("naive", "real", "selective"):
        assert not same(gradients(Net(WAYS[way])), gradients(Net())), way


# ---- inputs and outputs of any kind ----


def anything(pair, *, scale, factor: float, labels=None, skip=None):
    """Tensors in a tuple, keyword inputs, one without gradient, integers; two outputs in a dict."""
    (a, b), mixed = pair, F.dropout(scale, 0.5)
    first = (a.tanh() * mixed).exp() + b[labels]
    return {"first": first, "both": (first.sin(), b.cos() * factor, None)}


def test_keywords_tuples_integers_and_several_outputs():
    def run(way):
        generator = torch.Generator().manual_seed(3)
        a, b, scale = (torch.rand(4, 3, generator=generator).requires_grad_() for _ in range(3))
        constant = torch.rand(4, 3, generator=generator)
        labels = torch.tensor([2, 0, 1, 1])
        torch.manual_seed(0)
        out = way(anything, (a * 2, b), scale=scale, factor=1.5, labels=labels)
        loss = out["first"].sum() + (out["both"][0] * constant).sum() + out["both"][1].sum()
        return torch.autograd.grad(loss, [a, b, scale])

    want = run(lambda f, *inputs, **named: f(*inputs, **named))
    for name, way in REAL.items():
        assert same(run(way), want), name


def test_parameters_get_gradients_though_no_input_requires_one():
    """The reentrant form has no graph then, and trains nothing: the classic trap."""
    for way, expected in ((checkpoint, True), (checkpoint_naive, False)):
        layer = Net().layers[0]
        out = way(layer, batch())
        assert out.requires_grad == expected
        if expected:
            out.sum().backward()
            assert layer.up.weight.grad is not None


@pytest.mark.parametrize("way", REAL)
def test_nested_checkpoints(way):
    run = WAYS[way]

    class Nested(Net):
        def forward(self, x):
            return run(lambda y: run(super(Nested, self).forward, y), x)

    assert same(gradients(Nested(run)), gradients(Net()))


@pytest.mark.parametrize("way", REAL)
def test_backward_twice_through_a_retained_graph(way):
    net, x = Net(WAYS[way]), batch()
    torch.manual_seed(7)
    loss = net(x).square().sum()
    once = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
    assert same(torch.autograd.grad(loss, list(net.parameters())), once)


@pytest.mark.parametrize("way", REAL)
def test_autocast_is_as_it_was(way):
    """Backward runs outside of autocast; the repetition must run inside it."""

    def run(how):
        torch.manual_seed(0)
        net, x = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)), torch.randn(4, 8)
        with torch.autocast("cpu", torch.bfloat16):
            out = how(net, x)
        out.float().square().sum().backward()
        return [p.grad for p in net.parameters()]

    assert same(run(WAYS[way]), run(lambda net, x: net(x)))


def test_without_autocast_the_repetition_is_refused(monkeypatch):
    monkeypatch.setattr(Ambient, "restored", lambda self: nullcontext())
    net, x = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)), torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        out = checkpoint(net, x)
    with pytest.raises(InputError, match=r"saved .*float32.* where it saved bfloat16"):
        out.sum().backward()


def test_a_function_that_does_something_else_the_second_time_is_refused():
    calls = []

    def changing(x):
        calls.append(None)
        return (x.sum() if len(calls) % 2 else x.exp()).sin()

    def shrinking(x):
        calls.append(None)
        return x.exp().sin() if len(calls) % 2 else x.exp()

    def reordered(x):
        calls.append(None)
        return (
            (x @ x.T + x.exp().sum()).sin() if len(calls) % 2 else (x.exp().sum() + x @ x.T).cos()
        )

    for function, way in [
        (changing, checkpoint),
        (shrinking, Checkpoint(stop_early=False)),
        (reordered, Checkpoint(lambda op: True)),
    ]:
        out = way(function, batch().requires_grad_())
        with pytest.raises(InputError, match="something else when it was repeated"):
            out.sum().backward()


def test_an_input_changed_in_place_is_found_out():
    x = batch()
    layer = Net().layers[0]
    out = checkpoint(layer, x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# ---- bytes and FLOPs ----


@pytest.mark.parametrize("way", REAL)
def test_a_repetition_that_is_given_up_half_way_leaves_nothing_behind(way):
    """Only the last layer's gradient is asked for: what was found for the others is never taken."""
    net, x = Net(), batch(64).requires_grad_()
    gc.disable()
    try:
        with MemoryLedger(net) as ledger:
            x.mul(1)
            before = ledger.now_bytes
            out = WAYS[way](net, x)
            torch.autograd.grad(out.sum(), net.layers[-1].down.bias)
            assert ledger.now_bytes > before
            del out
            assert ledger.now_bytes == before
    finally:
        gc.enable()


def test_stopping_early_spares_the_last_matmul():
    mlp, x = nn.Sequential(nn.Linear(6, 18), nn.GELU(), nn.Linear(18, 6)), torch.randn(5, 6)
    x.requires_grad_()
    extra = {
        name: counted_flops(lambda way=way: way(mlp, x).sum().backward())
        - counted_flops(lambda: mlp(x).sum().backward())
        for name, way in WAYS.items()
    }
    forward = counted_flops(lambda: mlp(x))
    assert extra["naive"] == extra["to the end"] == forward
    assert extra["real"] == extra["torch"] == forward / 2
    assert extra["selective"] == extra["selective to the end"] == 0


def test_a_kept_result_that_changes_in_place_is_refused():
    """Every operation's result, and the layer multiplies one of them in place."""
    with pytest.raises(InputError, match="changed a result in place"):
        gradients(Net(Checkpoint(lambda op: True)))


# ---- data parallelism ----


class Shared(Net):
    """Its first layer is used twice, each time in a checkpoint of its own."""

    def forward(self, x):
        return self.run(self.layers[0], super().forward(x))


def on_ranks(group):
    out = {}
    for name, way in {"none": None, "naive": checkpoint_naive, **REAL}.items():
        ddp = DDP(Shared(way), group, bucket_bytes=700)
        before = group.trace.count("all_reduce")
        torch.manual_seed(7)
        x = batch(4).requires_grad_()
        with ddp.no_sync():
            ddp(x).square().sum().backward()
        ddp(x).square().sum().backward()
        sent = group.trace.count("all_reduce") - before
        out[name] = sent, [p.grad.clone() for p in ddp.parameters()]
    return out


def test_with_ddp_each_bucket_is_sent_once():
    for results in launch(on_ranks, ranks=2, timeout=60):
        buckets = len(make_buckets(Net(), 700))
        assert buckets > 1
        naive_sent, _ = results.pop("naive")
        assert naive_sent > buckets, "a backward within backward ends, and sends, on its own"
        for name, (sent, grads) in results.items():
            assert sent == buckets, name
            assert same(grads, results["none"][1]), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU's own generator")
def test_a_gpus_generator_is_replayed_too():
    def run(way):
        net = Net(way).cuda()
        torch.manual_seed(7)
        net(batch().cuda()).square().sum().backward()
        return [p.grad for p in net.parameters()]

    for name, way in REAL.items():
        assert same(run(way), run(None)), name
