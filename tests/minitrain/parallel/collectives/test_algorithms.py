from __future__ import annotations

import math

import pytest
import torch

from minitrain.errors import InputError
from minitrain.parallel.collectives import algorithms
from minitrain.parallel.collectives.algorithms import (
    chunk_sizes,
    naive_broadcast,
    pairwise_all_to_all,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    tree_broadcast,
)
from minitrain.ranks.launch import launch

ALL_REDUCES = ("naive_all_reduce", "ring_all_reduce", "recursive_doubling_all_reduce")
SHAPES = [(), (0,), (1,), (7,), (12,), (3, 5), (2, 0, 4), (101,)]
OPS = ("sum", "avg", "max", "min")


def example(rank: int, shape: tuple[int, ...], dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + math.prod(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def oracle(shape, ranks: int, op: str) -> torch.Tensor:
    stacked = torch.stack([example(rank, shape) for rank in range(ranks)])
    return {
        "sum": stacked.sum(0),
        "avg": stacked.mean(0),
        "max": stacked.amax(0),
        "min": stacked.amin(0),
    }[op]


def every_all_reduce(group):
    """All cases in one launch: launching is what costs."""
    results = {}
    for name in ALL_REDUCES:
        for shape in SHAPES:
            for op in OPS:
                x = example(group.rank, shape).requires_grad_()
                before = x.detach().clone()
                y = getattr(algorithms, name)(group, x, op)
                assert torch.equal(x, before), "the input changed"
                assert y.numel() == 0 or y.data_ptr() != x.data_ptr(), "the result is the input"
                assert not y.requires_grad, "results are outside autograd"
                results[name, shape, op] = y
    return results


@pytest.mark.parametrize("ranks", [1, 4, 5])
def test_every_all_reduce_equals_the_reduction_of_the_stacked_inputs(ranks):
    for result in launch(every_all_reduce, ranks=ranks, timeout=60):
        for (name, shape, op), y in result.items():
            torch.testing.assert_close(
                y, oracle(shape, ranks, op), rtol=1e-12, atol=1e-12, msg=f"{name} {shape} {op}"
            )


def rings_and_trees(group):
    """Compared on the ranks with torch's own collectives over the same process group."""
    for elements in (0, 1, 5, 12, 37):
        x = example(group.rank, (elements,))
        full = group.all_reduce(x.clone())
        chunk = ring_reduce_scatter(group, x)
        torch.testing.assert_close(
            chunk, full.tensor_split(group.size)[group.rank], rtol=1e-12, atol=1e-12
        )
        sizes = chunk_sizes(elements, group.size)
        assert sizes == [len(c) for c in x.tensor_split(group.size)]
        gathered = ring_all_gather(group, chunk, sizes)
        assert torch.equal(gathered, ring_all_reduce(group, x)), (
            "all-reduce = reduce-scatter + all-gather"
        )
        even = ring_all_gather(group, x)
        assert torch.equal(
            even, group.all_gather(torch.empty(elements * group.size, dtype=x.dtype), x)
        )
        for root in range(group.size):
            for broadcast in (naive_broadcast, tree_broadcast):
                assert torch.equal(broadcast(group, x, root), example(root, (elements,)))
    return True


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_against_torch_distributed(ranks):
    assert all(launch(rings_and_trees, ranks=ranks, timeout=60))


def swapped(group):
    even = pairwise_all_to_all(
        group, [torch.full((2,), 10.0 * group.rank + j) for j in range(group.size)]
    )
    sent = [torch.full((group.rank + j, 2), 10.0 * group.rank + j) for j in range(group.size)]
    shapes = [(j + group.rank, 2) for j in range(group.size)]  # one of them is empty
    return even, pairwise_all_to_all(group, sent, shapes)


@pytest.mark.parametrize("ranks", [1, 3])
def test_all_to_all_even_and_uneven(ranks):
    for rank, (even, uneven) in enumerate(launch(swapped, ranks=ranks, timeout=30)):
        assert [chunk.tolist() for chunk in even] == [[10.0 * j + rank] * 2 for j in range(ranks)]
        for j, chunk in enumerate(uneven):
            assert torch.equal(chunk, torch.full((j + rank, 2), 10.0 * j + rank))


def traffic(group, elements):
    x = torch.ones(elements)
    sent = {}
    for name in ("ring_reduce_scatter", *ALL_REDUCES, "naive_broadcast", "tree_broadcast"):
        before = group.trace.bytes_sent(), group.trace.count("send")
        getattr(algorithms, name)(group, x)
        sent[name] = group.trace.bytes_sent() - before[0], group.trace.count("send") - before[1]
    return sent


def test_bytes_and_messages_are_those_of_the_docstring():
    ranks, elements = 4, 24
    size = 4 * elements
    sent = list(launch(traffic, elements, ranks=ranks, timeout=30))
    for rank in range(ranks):
        assert sent[rank]["ring_reduce_scatter"] == (size * (ranks - 1) // ranks, ranks - 1)
        assert sent[rank]["ring_all_reduce"] == (2 * size * (ranks - 1) // ranks, 2 * (ranks - 1))
        assert sent[rank]["recursive_doubling_all_reduce"] == (2 * size, 2)
    assert sent[0]["naive_broadcast"] == (3 * size, 3)
    assert sent[0]["tree_broadcast"] == (2 * size, 2)
    assert sum(s["tree_broadcast"][0] for s in sent) == 3 * size
    assert sent[0]["naive_all_reduce"] == (3 * size, 3)


def float32_sums(group):
    x = example(group.rank, (1000,), torch.float32) * 10.0 ** (group.rank * 3)
    return [getattr(algorithms, name)(group, x) for name in ALL_REDUCES]


def test_two_runs_and_all_ranks_agree_bit_for_bit():
    runs = [list(launch(float32_sums, ranks=4, timeout=30)) for _ in range(2)]
    for ring, *_rest in zip(*(result for run in runs for result in run)):
        assert all(torch.equal(ring, other) for other in _rest)


def mistakes(group):
    calls = {
        "mean": lambda: ring_all_reduce(group, torch.ones(3), "mean"),
        "avg of integers": lambda: ring_all_reduce(group, torch.ones(3, dtype=torch.int64), "avg"),
        "sizes": lambda: ring_all_gather(group, torch.ones(3), [3]),
        "chunks": lambda: pairwise_all_to_all(group, [torch.ones(3)]),
    }
    messages = {}
    for name, call in calls.items():
        with pytest.raises(InputError) as caught:
            call()
        messages[name] = str(caught.value)
    return messages


def test_mistakes_get_a_sentence():
    messages = launch(mistakes, ranks=2, timeout=30)[0]
    assert "sum" in messages["mean"] and ".float()" in messages["avg of integers"]
    assert "give 2 sizes" in messages["sizes"] and "give one each" in messages["chunks"]
