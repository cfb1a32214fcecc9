from __future__ import annotations

import pytest
import torch

from minitrain.model.mlp import swiglu, swiglu_naive


def gradients(function, dtype):
    generator = torch.Generator().manual_seed(0)
    gate, up, dy = (torch.randn(3, 7, 16, generator=generator) * 4 for _ in range(3))
    gate, up = (z.to(dtype).requires_grad_() for z in (gate, up))
    y = function(gate, up)
    y.backward(dy.to(dtype))
    return y.detach(), gate.grad, up.grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_bits_of_the_naive_version(dtype):
    for got, want in zip(gradients(swiglu, dtype), gradients(swiglu_naive, dtype)):
        assert torch.equal(got, want)


def saved(function):
    numbers = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: numbers.append(t.numel()), lambda t: t):
        function(*torch.ones(2, 5, requires_grad=True).unbind())
    return sum(numbers)


def test_it_keeps_two_tensors_where_the_naive_version_keeps_three():
    assert saved(swiglu) == 2 * 5 and saved(swiglu_naive) == 3 * 5
