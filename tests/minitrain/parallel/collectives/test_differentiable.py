from __future__ import annotations

import pytest
import torch

from minitrain.errors import InputError
from minitrain.parallel.collectives import differentiable
from minitrain.parallel.collectives.overlapped import start_all_gather, start_reduce_scatter_mean
from minitrain.ranks.launch import launch

SHAPE = (2, 6, 3)  # 6 divides by 1, 2 and 3: the dims are counted from both ends


def numbers(seed, shape=SHAPE):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def of_rank(tensors, rank, what, dim):
    """Rank `rank`'s share of `tensors`, one a rank: a whole is the first one, or their sum."""
    if what == "part":
        return tensors[rank]
    return tensors[0].chunk(len(tensors), dim)[rank] if what == "split" else tensors[0]


# For each operator: what its argument and its result are, over the ranks.
OPERATORS = {
    "copy": ("whole", "whole, used in N ways"),
    "reduce": ("part", "whole"),
    "scatter": ("whole", "split"),
    "gather": ("split", "whole"),
    "reduce_scatter": ("part", "split"),
    "all_gather": ("split", "whole, used in N ways"),
}


def applied(operators, name, x, group, dim):
    return (
        operators[name](x, group) if name in ("copy", "reduce") else operators[name](x, group, dim)
    )


def run(group, operators, dims):
    """For each operator: its result and its gradient, and whether it left both arguments alone."""
    out = {}
    for dim in dims:
        for name, (argument, result) in OPERATORS.items():
            parts = [numbers(r) for r in range(group.size)]
            x = of_rank(parts, group.rank, argument, dim).clone().requires_grad_()
            before = x.detach().clone()
            y = applied(operators, name, x, group, dim)
            weights = [numbers(100 + r) for r in range(group.size)]
            kind = "part" if "N ways" in result else result
            dy = of_rank(weights, group.rank, kind, dim).contiguous()
            given = dy.clone()
            value = y.detach().clone()
            y.backward(dy)
            alone = torch.equal(before, x.detach()) and torch.equal(given, dy)
            out[name, dim] = value, x.grad, alone
    return out


def expected(name, rank, ranks, dim):
    """One process: the value, and the gradient of the ranks' weighted sum of all results."""
    argument, result = OPERATORS[name]
    parts = [numbers(r) for r in range(ranks)]
    weights = [numbers(100 + r) for r in range(ranks)]
    whole = sum(parts) if argument == "part" else parts[0]
    value = of_rank([whole] * ranks, rank, "split" if result == "split" else "whole", dim)
    gradient = sum(weights) if "N ways" in result else weights[0]
    return value, of_rank([gradient] * ranks, rank, argument, dim)


def compare(results, ranks):
    for rank, result in enumerate(results):
        for (name, dim), (value, gradient, alone) in result.items():
            want = expected(name, rank, ranks, dim)
            torch.testing.assert_close((value, gradient), want, rtol=1e-12, atol=1e-12, msg=name)
            assert alone, f"{name} changed its argument"


@pytest.mark.parametrize("ranks", [1, 3])
def test_values_and_gradients(ranks):
    operators = {name: getattr(differentiable, name) for name in OPERATORS}
    compare(launch(run, operators, (1, -2), ranks=ranks), ranks)


def swapped(group):
    """Wrong: Megatron's f and g exchanged, gather for all_gather, a reduce in place."""

    class InPlace(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return group.all_reduce(x.detach())

        @staticmethod
        def backward(ctx, dy):
            return dy

    right = {name: getattr(differentiable, name) for name in OPERATORS}
    wrong = {
        "reduce": lambda x, group: InPlace.apply(x),
        "copy": lambda x, group: x * 1,  # no all-reduce in backward
        "all_gather": differentiable.gather,
        "gather": differentiable.all_gather,
    }
    return {name: run(group, {**right, name: wrong[name]}, (1,)) for name in wrong}


def test_wrong_operators_are_told_apart():
    results = launch(swapped, ranks=2)
    for name in results[0]:
        with pytest.raises(AssertionError, match=name):
            compare([result[name] for result in results], ranks=2)


def refused_and_twice(group):
    with pytest.raises(InputError, match="use 6 or 8"):
        differentiable.scatter(numbers(0, (2, 7)), group, 1)
    with pytest.raises(InputError, match=r"use 2$"):
        differentiable.reduce_scatter(numbers(0, (2, 1)), group, -1)
    x = numbers(0).requires_grad_()
    y = differentiable.copy(x, group).pow(3).sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    first.sum().backward()
    return first.detach(), x.grad


def test_bad_lengths_are_refused_and_a_second_backward_is_right():
    x = numbers(0)
    for first, second in launch(refused_and_twice, ranks=2):  # of 2x³, summed over the ranks
        torch.testing.assert_close((first, second), (6 * x**2, 12 * x))


# ---- overlapped ----


def both(group):
    out = []
    for length, dtype in ((1, torch.float64), (5, torch.float64), (1000, torch.bfloat16)):
        generator = torch.Generator().manual_seed(length)
        whole = torch.randn(group.size, length * group.size, generator=generator).to(dtype)
        mine = whole[group.rank].clone()
        gathered = torch.zeros_like(mine)
        gathered.chunk(group.size)[group.rank].copy_(whole[0].chunk(group.size)[group.rank])
        waits = [start_reduce_scatter_mean(group, mine), start_all_gather(group, gathered)]
        before = len(group.trace.ops)
        part = waits[0]()
        waits[1]()
        assert len(group.trace.ops) == before, "all was under way before the first wait"
        assert torch.equal(part, mine.chunk(group.size)[group.rank]), "in place"
        want = whole.double().mean(0).to(dtype).chunk(group.size)[group.rank]
        out.append((part, want, gathered, whole[0]))
    return out, group.trace.bytes_sent()


def test_averages_and_gathers_with_a_rings_bytes():
    for ranks in (1, 2, 3):
        for rows, sent in launch(both, ranks=ranks):
            for part, want, gathered, whole in rows:
                torch.testing.assert_close(part, want, rtol=1e-12, atol=1e-12)
                assert torch.equal(gathered, whole)
            assert sent == 2 * (ranks - 1) * (8 * 1 + 8 * 5 + 2 * 1000)
