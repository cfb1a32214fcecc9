from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minitrain.precision.delayed_scaling import ACTIVATION, GRADIENT, WEIGHT, roll_histories
from minitrain.precision.low_bit_linear import DELAYED, QuantizedLinear, after_step


def layer() -> QuantizedLinear:
    torch.manual_seed(0)
    return QuantizedLinear(nn.Linear(8, 16, bias=False), DELAYED)


def pass_through(module: nn.Module, largest: float, gradient: float = 1.0) -> torch.Tensor:
    """Forward and backward of an x whose largest number is `largest`; gives what came out."""
    x = torch.full((4, 8), largest / 2)
    x[1, 2] = -largest
    y = module(x)
    y.backward(torch.full_like(y, gradient))
    return y.detach()


def test_the_largest_of_all_microbatches_counts():
    module = layer()
    for largest in (3.0, 50.0, 7.0):  # the last microbatch is not the largest
        pass_through(module, largest, gradient=largest / 100)
    after_step(module)
    newest = module.amax.past[0]
    assert newest[ACTIVATION] == 50.0 and newest[GRADIENT] == 0.5
    assert newest[WEIGHT] == module.weight.abs().max()
    assert module.amax.past[1:].count_nonzero() == 0


def test_the_scale_is_of_the_past_and_what_has_grown_is_clamped():
    module = layer()
    pass_through(module, 2.0)  # the first step has no past, and scales by what it sees
    after_step(module)
    grown = torch.full((4, 8), 4.0)
    torch.testing.assert_close(module(grown), module(torch.full((4, 8), 2.0)))
    pass_through(module, 4.0)
    after_step(module)
    assert not torch.allclose(module(grown), module(torch.full((4, 8), 2.0)))


def test_the_past_is_so_many_steps_long():
    module = layer()
    for step in range(DELAYED.history + 1):
        pass_through(module, 100.0 if step == 0 else 1.0)
        after_step(module)
        expected = 100.0 if step < DELAYED.history else 1.0
        assert module.amax.past[:, ACTIVATION].max() == expected


def test_only_what_ran_is_rolled():
    both = nn.ModuleList([layer(), layer()])
    for module in both:
        pass_through(module, 3.0)
    after_step(both)
    idle = both[1].amax.past.clone()
    for _ in range(DELAYED.history + 4):  # long enough to push an idle layer's past out
        pass_through(both[0], 5.0)
        after_step(both)
    assert torch.equal(both[1].amax.past, idle)
    with torch.no_grad():  # forward alone, in evaluation, is no run either
        both[1](torch.full((4, 8), 1e3))
    roll_histories(both)
    assert torch.equal(both[1].amax.past, idle)


def test_a_forward_without_backward_leaves_the_gradients_past():
    module = layer()
    pass_through(module, 3.0)
    after_step(module)
    module(torch.ones(4, 8))
    after_step(module)
    assert module.amax.past[:2, ACTIVATION].tolist() == [1.0, 3.0]
    assert module.amax.past[:2, GRADIENT].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("largest", [0.0, 1e-45, 1e-38])
def test_a_tiny_magnitude_gives_a_finite_scale(largest):
    module = layer()
    for _ in range(3):
        assert pass_through(module, largest, gradient=largest).isfinite().all()
        after_step(module)
    assert module.weight.grad.isfinite().all()


def test_the_history_is_in_the_state():
    module = layer()
    for largest in (9.0, 2.0):
        pass_through(module, largest)
        after_step(module)
    state = copy.deepcopy(module.state_dict())
    resumed = QuantizedLinear(nn.Linear(8, 16, bias=False), DELAYED)
    resumed.load_state_dict(state)
    assert torch.equal(pass_through(resumed, 2.5), pass_through(module, 2.5))


def one_rank(group):
    """Rank 1 has the outlier; and on rank 0 the second layer does not run."""
    both = nn.ModuleList([layer(), layer()])
    pass_through(both[0], 90.0 if group.rank == 1 else 1.0)
    if group.rank == 1:
        pass_through(both[1], 6.0)
    after_step(both, lambda tensor: group.all_reduce(tensor, op="max"))
    return [m.amax.past for m in both], group.trace.count("all_reduce")


def test_ranks_agree_on_the_largest_of_all_in_one_message():
    launch = pytest.importorskip("minitrain.ranks.launch").launch
    (first, messages), (second, _) = launch(one_rank, ranks=2)
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert first[0][0, ACTIVATION] == 90.0 and first[1][0, ACTIVATION] == 6.0
    assert messages == 1
