from __future__ import annotations

from itertools import chain

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from minitrain.errors import InputError
from minitrain.parallel.ddp import (
    DDP,
    all_reduce_gradients,
    all_reduce_gradients_bucketed,
    broadcast_parameters,
    make_buckets,
    trainable,
)
from minitrain.ranks.launch import launch

WIDTH, BATCH = 6, 12  # BATCH rows over all ranks: divisible by 1, 2, 3 and 4


class Net(nn.Module):
    """Everything that has gone wrong somewhere: tied, frozen, unused, buffered, used out of order."""

    def __init__(self, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.last = nn.Linear(WIDTH, WIDTH)  # registered first, used last
        self.scale = nn.Parameter(torch.randn(()))
        self.first = nn.Linear(WIDTH, WIDTH)
        self.tied = nn.Linear(WIDTH, WIDTH, bias=False)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.unused = nn.Linear(WIDTH, 2)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.double()

    def forward(self, x):
        self.count += 1
        x = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.tied(self.frozen(x)))) * self.scale


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(BATCH, WIDTH, dtype=torch.float64, generator=generator) for _ in range(2)
    )


def part(tensor: torch.Tensor, group) -> torch.Tensor:
    return tensor.chunk(group.size)[group.rank]


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def one_process(seeds=(0,)) -> dict[str, torch.Tensor]:
    model = Net()
    for seed in seeds:
        x, y = batch(seed)
        F.mse_loss(model(x), y).backward()
    return gradients(model)


def assert_same(got: dict, want: dict) -> None:
    """Every gradient; a parameter that nobody used has none in one process, and zeros on N ranks."""
    assert set(want) <= set(got)
    for name, gradient in got.items():
        expected = want.get(name, torch.zeros_like(gradient))
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12, msg=name)


def backward(model, group, seed=0):
    x, y = (part(t, group) for t in batch(seed))
    F.mse_loss(model(x), y).backward()


def naive(group):
    model = Net(seed=group.rank)
    broadcast_parameters(group, model)
    backward(model, group)
    all_reduce_gradients(group, model)
    return gradients(model)


def bucketed(group, bucket_bytes):
    model = Net(seed=group.rank)
    broadcast_parameters(group, model)
    backward(model, group)
    all_reduce_gradients_bucketed(group, model, bucket_bytes)
    return gradients(model)


def overlapped(group, bucket_bytes, overlap=True):
    model = Net(seed=group.rank)
    backward(DDP(model, group, bucket_bytes, overlap), group)
    return gradients(model)


def every_variant(group):
    sizes = (1, 8 * WIDTH * WIDTH, 500, 25 * 2**20)  # smaller than any parameter, …, all in one
    out = [naive(group), *(bucketed(group, size) for size in sizes)]
    out += [overlapped(group, size) for size in sizes]
    out += [overlapped(group, 500, overlap=False)]
    return out


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_every_version_equals_one_process_on_the_joined_batch(ranks):
    for results in launch(every_variant, ranks=ranks, timeout=60):
        for got in results:
            assert_same(got, one_process())


def accumulated(group):
    model = Net()
    ddp = DDP(model, group, bucket_bytes=500)
    sent = []
    with ddp.no_sync():
        for seed in (0, 1):
            backward(ddp, group, seed)
            sent.append(group.trace.count("all_reduce"))
    local = gradients(model)
    backward(ddp, group, 2)
    return sent, local, gradients(model), group.trace.count("all_reduce")


def test_no_sync_accumulates_and_sends_once():
    results = list(launch(accumulated, ranks=2, timeout=60))
    for sent, _, got, count in results:
        assert sent == [0, 0] and count == len(make_buckets(Net(), 500))
        assert_same(got, one_process(seeds=(0, 1, 2)))
    first, second = (local["first.weight"] for _, local, _, _ in results)
    assert not torch.allclose(first, second), "inside no_sync each rank has its own gradients"


def many_steps(group):
    return [three_steps(group, set_to_none) for set_to_none in (True, False)]


def three_steps(group, set_to_none):
    model = Net()
    ddp = DDP(model, group, bucket_bytes=500)
    optimizer = torch.optim.SGD(trainable(model), lr=0.1)
    for seed in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        backward(ddp, group, seed)
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_steps_follow_one_process():
    model = Net()
    optimizer = torch.optim.SGD(trainable(model), lr=0.1)
    for seed in range(3):
        x, y = batch(seed)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    for weights in chain(*launch(many_steps, ranks=2, timeout=60)):
        for name, p in model.named_parameters():
            torch.testing.assert_close(weights[name], p.detach(), rtol=1e-10, atol=1e-12)


class Branches(nn.Module):
    """Rank 0 takes the branches in one order, rank 1 in the other, and each leaves one out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4)).double()

    def forward(self, x, order):
        for i in order:
            x = torch.tanh(self.layers[i](x))
        return x


def orders_differ(group):
    model = Branches()
    order = ([0, 1, 2], [3, 1, 0])[group.rank]
    ddp = DDP(model, group, bucket_bytes=1)
    x, y = (part(t, group) for t in batch())
    F.mse_loss(ddp(x, order), y).backward()
    sizes = [op.payload_bytes for op in group.trace.select("all_reduce")]
    return gradients(model), sizes


def test_ranks_with_other_orders_and_other_unused_parameters_agree():
    (first, sizes0), (second, sizes1) = launch(orders_differ, ranks=2, timeout=30)
    assert sizes0 == sizes1 and len(sizes0) == 8
    model = Branches()
    x, y = batch()
    for rows, order in zip(zip(x.chunk(2), y.chunk(2)), ([0, 1, 2], [3, 1, 0])):
        (F.mse_loss(model(rows[0], order), rows[1]) / 2).backward()
    assert_same(first, gradients(model))
    assert all(torch.equal(first[name], second[name]) for name in first)


def nothing_used(group):
    model = Branches()
    ddp = DDP(model, group, bucket_bytes=300)
    x, _ = batch()
    out = ddp(x, [0, 1])
    if group.rank == 0:
        out.sum().backward()  # `finish` is called at its end …
    ddp.finish()  # … and here on the rank that had no backward
    return gradients(model)


def test_a_rank_without_a_backward_calls_finish():
    first, second = launch(nothing_used, ranks=2, timeout=30)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first["layers.0.weight"].abs().sum() > 0


def overlap_of(group, overlap):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    ended = []  # all-reduces on their way when the last layer's gradient is there, not yet taken
    for p in model[0].parameters():
        p.register_post_accumulate_grad_hook(
            lambda _: ended.append(group.trace.count("all_reduce"))
        )
    ddp = DDP(model, group, bucket_bytes=4 * 64 * 65, overlap=overlap)
    ddp(torch.randn(8, 64)).sum().backward()
    return ended[-1], group.trace.count("all_reduce"), group.trace.bytes_sent("all_reduce")


def test_buckets_leave_while_backward_computes():
    ranks, parameters = 2, 4 * 64 * 65
    for before_end, count, sent in launch(overlap_of, True, ranks=ranks, timeout=30):
        assert before_end == 3 and count == 4
        assert sent == 2 * (ranks - 1) * 4 * parameters // ranks
    assert [r[:2] for r in launch(overlap_of, False, ranks=ranks, timeout=30)] == [(0, 4)] * 2


def buffers_follow_rank_0(group):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with torch.no_grad():
        model[1].running_mean.fill_(group.rank + 1.0)
    ddp = DDP(model, group)
    started = model[1].running_mean.clone()
    with torch.no_grad():
        model[1].running_mean.fill_(group.rank + 5.0)
    ddp.module[1].eval()
    ddp(torch.randn(3, 4)).sum().backward()
    return started, model[1].running_mean.clone()


def test_buffers_are_those_of_rank_0():
    for started, later in launch(buffers_follow_rank_0, ranks=2, timeout=30):
        assert started.tolist() == [1.0] * 4 and later.tolist() == [5.0] * 4


def test_buckets_are_in_reverse_and_never_split_a_parameter():
    model = Net()
    for size in (1, 300, 10**6):
        buckets = make_buckets(model, size)
        order = [id(p) for bucket in buckets for p in bucket.parameters]
        assert order == [id(p) for p in reversed(trainable(model))]
        for bucket in buckets:
            assert len(bucket.parameters) == 1 or bucket.buffer.nbytes <= size
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())
    assert [bucket.buffer.dtype for bucket in make_buckets(mixed)] == [
        torch.bfloat16,
        torch.float32,
    ]
    with pytest.raises(InputError, match="1 or more"):
        make_buckets(model, 0)


# ---- plausible and wrong: each of these must be told from the right one ----


def averages_the_weights(group):
    """The hook is given the parameter: an all-reduce on its argument averages weights."""
    model = Net()

    def hook(p):
        group.all_reduce(p.data, op="avg")

    for p in trainable(model):
        p.register_post_accumulate_grad_hook(hook)
    backward(model, group)
    return gradients(model)


def never_divides(group):
    model = Net()
    backward(model, group)
    for p in trainable(model):
        if p.grad is not None:
            group.all_reduce(p.grad)
    return gradients(model)


def does_not_wait(group):
    """Reads the gradients before `finish`: what this rank has, not the average."""
    model = Net()
    ddp = DDP(model, group)
    ddp.synchronize = False
    backward(ddp, group)
    return gradients(model)


def wrong_versions(group):
    return [wrong(group) for wrong in (averages_the_weights, never_divides, does_not_wait)]


def test_wrong_versions_are_told_apart():
    for wrong in zip(*launch(wrong_versions, ranks=2, timeout=30)):
        with pytest.raises(AssertionError):
            for got in wrong:
                assert_same(got, one_process())


def _change_after_wrapping(group, change):
    model = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3))
    ddp = DDP(model, group)
    change(model)
    ddp(torch.ones(2, 3))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[0].requires_grad_(True),
        lambda model: setattr(model[1], "bias", nn.Parameter(torch.ones(3))),
        lambda model: model.append(nn.Linear(3, 3)),
    ],
)
def test_what_came_after_wrapping_is_not_left_out_of_the_average(change):
    with pytest.raises(InputError, match="replaced, added or unfrozen after wrapping"):
        launch(_change_after_wrapping, change, ranks=2, quiet=True)
