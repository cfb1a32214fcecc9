"""The functions that lab e02d asks for compute what the course's own layer does."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from minitrain.model.config import ModelConfig
from minitrain.model.experts.dispatch import make_plan
from minitrain.model.experts.grouped import Experts
from minitrain.model.experts.moe import MoE, moe_naive
from minitrain.parallel.expert.plain import (
    balance_loss,
    exchange,
    mix,
    plan,
    route,
    update_bias,
)
from minitrain.ranks.launch import launch

CONFIG = ModelConfig(
    16, 8, 1, 2, 2, 12, experts=4, experts_per_token=2, expert_ffn_size=6, bias_rate=0.01
)
E, D, M = CONFIG.experts, CONFIG.hidden_size, 10


def whole() -> MoE:
    torch.manual_seed(0)
    return MoE(CONFIG).double()


def tokens() -> torch.Tensor:
    return torch.randn(M, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def by_hand(group):
    """One rank's tokens through its experts: output, gradients, its share of the loss, the bias."""
    moe, x = whole(), tokens().chunk(group.size)[group.rank]
    own = Experts(E // group.size, D, CONFIG.expert_ffn_size).double()
    for mine, all_of_them in zip(own.parameters(), moe.experts.parameters()):
        mine.data.copy_(all_of_them.data.chunk(group.size)[group.rank])
    router, bias = moe.router.weight, torch.zeros(E)
    p, experts, weights = route(x, router, bias, 2)
    order, counts = plan(experts, E, p.gather(1, experts).detach())
    y = mix(x, weights, order, counts, partial(exchange, group, own))
    share = balance_loss(group, p, experts)
    (y.square().sum() + share).backward()
    update_bias(group, bias, experts, 0.01)
    return {
        "y": y.detach(),
        "share": share.detach(),
        "router": router.grad,
        "down": own.down.grad,
        "bias": bias,
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_layer_loss_and_bias_are_those_of_the_courses_own(ranks):
    moe, x = whole(), tokens().unsqueeze(0)
    y = moe_naive(moe, x)
    routing = moe.router(x)
    logits = (x @ moe.router.weight.T).softmax(-1)
    share = routing.load.double() / routing.load.sum()
    loss = E * (share * logits.mean((0, 1))).sum()
    (y.square().sum() + loss).backward()
    moe.router.update_bias(routing.load)

    got = launch(by_hand, ranks=ranks)
    close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-7)
    close(torch.cat([r["y"] for r in got]), y[0].detach())
    close(sum(r["share"] for r in got), loss.detach())
    close(torch.cat([r["down"] for r in got]), moe.experts.down.grad)
    close(sum(r["router"] for r in got), moe.router.weight.grad)
    for r in got:
        close(r["bias"], moe.router.bias.float())


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.25])
def test_a_capacity_keeps_the_choices_that_the_courses_own_plan_keeps(factor):
    generator = torch.Generator().manual_seed(0)
    experts = torch.randn(M, E, generator=generator).topk(2).indices
    priority = torch.rand(M, 2, generator=generator)
    order, counts = plan(experts, E, priority, factor)
    want = make_plan(experts, E, -(-int(factor * 4 * M * 2) // (4 * E)), priority)
    assert torch.equal(order, want.order) and torch.equal(counts, want.counts)
