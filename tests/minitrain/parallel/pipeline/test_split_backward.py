"""B computes no weight's gradient, W nothing else, and together they are the whole backward."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from minitrain.parallel.pipeline.plain import share_of_loss
from minitrain.parallel.pipeline.schedules import make_schedule
from minitrain.parallel.pipeline.split_backward import SplitBackward, noting_uses
from minitrain.parallel.pipeline.stages import cut

from .pipeline_toys import microbatches, one_process, tiny


def half_and_half(tied=False):
    """FLOPs of forward, B and W of a whole model as one stage; its gradients before W and after."""
    schedule, batch = make_schedule("zero-bubble", 1, 1), microbatches(1)[0]
    (stage,) = cut(tiny(tied), schedule, 0)
    flops = []
    with FlopCounterMode(display=False) as counter:
        with noting_uses(stage) as uses:
            out = stage(None, batch)
        flops.append(counter.get_total_flops())
        split = SplitBackward(stage, uses)
        split.inputs(share_of_loss(batch.tokens_counted)(out, batch), None)
        flops.append(counter.get_total_flops())
        early = {n for n, p in stage.named_parameters() if p.grad is not None}
        split.weights()
        flops.append(counter.get_total_flops())
    forward, b, w = (after - before for before, after in zip([0, *flops], flops))
    return forward, b, w, early, {n: p.grad for n, p in stage.named_parameters()}


def test_b_computes_no_weight_gradient_and_w_nothing_else():
    """Each matmul of the forward has one in B and one in W: as many FLOPs (attention counts 0)."""
    forward, b, w, early, gradients = half_and_half()
    assert forward == b == w > 0 and early == set()
    assert set(gradients) == set(one_process(False, 1)[1])
    for name, want in one_process(False, 1)[1].items():
        torch.testing.assert_close(gradients[name], want, rtol=1e-10, atol=1e-12)


def test_a_parameter_used_twice_in_a_stage_has_its_gradient_with_b():
    *_, early, gradients = half_and_half(tied=True)
    assert early == {"embed.weight"}
    for name, want in one_process(True, 1)[1].items():
        torch.testing.assert_close(gradients[name], want, rtol=1e-10, atol=1e-12)


class Together(nn.Module):
    """Takes its two linears' matrices together, as tensor-parallel attention does."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.out, self.unused = nn.Linear(3, 1), nn.Linear(3, 3)

    def forward(self, x):
        return self.out(torch.tanh(x @ self.a.weight @ self.b.weight)).sum()


def test_parameters_used_outside_their_module_are_not_forgotten():
    module, x = Together(), torch.randn(2, 3, requires_grad=True)
    module(x).backward()
    want, dx = {n: p.grad for n, p in module.named_parameters()}, x.grad
    module.zero_grad()
    with noting_uses(module) as uses:
        root = module(x)
    split = SplitBackward(module, uses)
    torch.testing.assert_close(split.inputs(root, x), dx)
    split.weights()
    for name, p in module.named_parameters():
        assert (p.grad is None) == (want[name] is None), name
        assert p.grad is None or torch.allclose(p.grad, want[name]), name
