from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minitrain.errors import InputError
from minitrain.network.fabric import Device, Fabric
from minitrain.network.links import Link, LinkModel
from minitrain.parallel.collectives.differentiable import all_gather, copy
from minitrain.parallel.layout import even_slice
from minitrain.parallel.tensor.linear import (
    ColumnLinear,
    RowLinear,
    column_linears,
    row_linear,
)
from minitrain.ranks.launch import launch

BATCH, LENGTH, WIDTH, FEATURES = 2, 12, 8, 24  # all but the batch divide by 1, 2, 3 and 4


def layers(dtype=torch.float64):
    """Two linears into features, and one back: with biases, and one frozen."""
    torch.manual_seed(0)
    first, second = (nn.Linear(WIDTH, FEATURES).to(dtype) for _ in range(2))
    third = nn.Linear(FEATURES, WIDTH).to(dtype)
    first.bias.requires_grad_(False)
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=dtype, requires_grad=True)
    return first, second, third, x


def one_process():
    first, second, third, x = layers()
    y = third(torch.tanh(first(x)) * second(x))
    (y * y.detach().cos()).sum().backward()
    parameters = [p for layer in (first, second, third) for p in layer.parameters()]
    return y.detach(), x.grad, [p.grad for p in parameters]


def run(group, columns, row, sequence):
    """The same on N ranks: this rank's slice of y and dx, and its slices of the gradients."""
    first, second, third, x = layers()
    part = even_slice("features", FEATURES, group, dim=0)
    made = [ColumnLinear(layer, group, part, sequence) for layer in (first, second)]
    made.append(RowLinear(third, group, replace(part, dim=1), sequence))
    mine = x.detach().chunk(group.size, dim=1)[group.rank] if sequence else x.detach()
    mine = mine.contiguous().requires_grad_()
    pairs = [(layer.weight, layer.bias) for layer in made[:2]]
    a, b = columns(mine, pairs, group, sequence)
    y = row(torch.tanh(a) * b, made[2].weight, made[2].bias, group, sequence)
    (y * y.detach().cos()).sum().backward()
    if sequence:
        group.all_reduce(made[2].bias.grad)
    return y.detach(), mine.grad, [p.grad for layer in made for p in layer.parameters()]


def compare(results, sequence):
    want_y, want_dx, want = one_process()
    for rank, (y, dx, gradients) in enumerate(results):
        for got, whole in ((y, want_y), (dx, want_dx)):
            piece = whole.chunk(len(results), dim=1)[rank] if sequence else whole
            torch.testing.assert_close(got, piece, rtol=1e-12, atol=1e-12)
        for index, (got, whole) in enumerate(zip(gradients, want)):
            if whole is None:
                assert got is None, "what is frozen gets no gradient"
                continue
            dim = {4: 1, 5: None}.get(index, 0)  # the row linear's matrix, and its bias
            piece = whole if dim is None else whole.chunk(len(results), dim)[rank]
            torch.testing.assert_close(got, piece, rtol=1e-12, atol=1e-12)


def whole_and_split_stream(group):
    return [run(group, column_linears, row_linear, sequence) for sequence in (False, True)]


@pytest.mark.parametrize("ranks", [1, 3])
def test_equal_one_process(ranks):
    for sequence, results in enumerate(zip(*launch(whole_and_split_stream, ranks=ranks))):
        compare(results, sequence=bool(sequence))


def bias_n_times(x, weight, bias, group, sequence):
    return row_linear(F.linear(x, weight, bias), torch.eye(WIDTH).double(), None, group, sequence)


def waits_for_no_sum(x, pairs, group, sequence):
    return tuple(F.linear(x, weight, bias) for weight, bias in pairs)


def wrong_versions(group):
    return [
        run(group, column_linears, bias_n_times, False),
        run(group, waits_for_no_sum, row_linear, False),
    ]


def test_wrong_versions_are_told_apart():
    for wrong in zip(*launch(wrong_versions, ranks=2)):
        with pytest.raises(AssertionError):
            compare(wrong, sequence=False)


def on_one_rank(group):
    """tp=1 against nn.Linear: the same bits, forward and backward, and nothing is sent."""
    first, _, third, x = layers(torch.float32)
    part = even_slice("features", FEATURES, group, dim=0)
    column, row = ColumnLinear(first, group, part), RowLinear(third, group, replace(part, dim=1))
    row(torch.tanh(column(x))).square().sum().backward()
    other = x.detach().clone().requires_grad_()
    third.bias.grad = None  # the row linear's bias is the linear's own
    third(torch.tanh(first(other))).square().sum().backward()
    pairs = [(x.grad, other.grad), (column.weight.grad, first.weight.grad)]
    pairs += [(row.weight.grad, third.weight.grad)]
    return all(torch.equal(*pair) for pair in pairs), group.trace.count()


def test_one_rank_is_bit_equal_to_linear():
    assert list(launch(on_one_rank, ranks=1)) == [(True, 0)]


def plain_columns(x, pairs, group, sequence=False):
    """As plain.py does it: into the layer by an operator, whose backward is waited for."""
    x = all_gather(x, group, dim=1) if sequence else copy(x, group)
    return tuple(F.linear(x, weight, bias) for weight, bias in pairs)


def hidden(group, columns, sequence):
    """Emulated seconds that backward's sum, of some seconds, travels while the rank computes."""
    width = 256
    x = torch.randn(1, width, width, requires_grad=True)
    pairs = [(torch.randn(width, width, requires_grad=True), None) for _ in range(3)]
    (a, b, c) = columns(x, pairs, group, sequence)
    loss = (a + b + c).sum()
    before = group.trace.hidden_seconds()
    loss.backward()
    return group.trace.hidden_seconds() - before


@pytest.mark.parametrize("sequence", [False, True])
def test_the_sum_travels_while_the_weights_gradients_are_computed(sequence):
    fabric = Fabric("slow", Device("this one"), LinkModel(Link(1.0, 0.0)), compute_scale=1.0)
    plain = min(launch(hidden, plain_columns, sequence, ranks=2, fabric=fabric))
    real = min(launch(hidden, column_linears, sequence, ranks=2, fabric=fabric))
    assert real > 10 * plain


def under_autocast(group):
    first, _, third, x = layers(torch.float32)
    part = even_slice("features", FEATURES, group, dim=0)
    column, row = ColumnLinear(first, group, part), RowLinear(third, group, replace(part, dim=1))
    with torch.autocast("cpu", torch.bfloat16):
        y, want = row(torch.tanh(column(x))), third(torch.tanh(first(x)))
    y.float().square().sum().backward()
    return y.dtype, (y.float() - want.float()).abs().max().item(), column.weight.grad.dtype


def test_autocast_reaches_our_own_functions():
    for dtype, error, gradient in launch(under_autocast, ranks=2):
        assert dtype == torch.bfloat16 and gradient == torch.float32 and error < 0.02


def refused(group):
    with pytest.raises(InputError, match=r"7 features .* 2 ranks: use 6 or 8, or 7 ranks"):
        even_slice("features", 7, group, dim=0)


def test_features_that_do_not_split_are_refused():
    launch(refused, ranks=2)
