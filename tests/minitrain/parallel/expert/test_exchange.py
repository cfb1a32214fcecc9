"""Experts on N ranks equal experts on one, with every gradient; what travels, to the byte."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch

from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
from minitrain.model.experts.grouped import Experts
from minitrain.model.experts.moe import MoE, moe_naive, set_step, update_biases
from minitrain.model.transformer import build
from minitrain.parallel.expert.exchange import (
    balance_loss,
    exchange_naive,
    expert_parallel,
    mix,
    plan,
    route,
    update_bias,
)
from minitrain.parallel.layout import layout_of
from minitrain.ranks.launch import launch
from minitrain.training.loss import token_weighted_loss

CONFIG = ModelConfig(
    19, 8, 2, 2, 1, 16, experts=8, experts_per_token=2, expert_ffn_size=6, shared_experts=1,
    sequence_balance=0.5, z_loss=0.1, bias_rate=0.01,
)  # fmt: skip
ROWS, LENGTH, WIDTH, DOUBLE = 4, 5, CONFIG.hidden_size, 8
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def text() -> torch.Tensor:
    return torch.randint(19, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))


def whole_model():
    return build(CONFIG, dtype=torch.float64)


def backward(model, rows: torch.Tensor) -> torch.Tensor:
    """The share of the loss that these rows have in the whole text's."""
    set_step(model, ROWS * LENGTH)
    loss = token_weighted_loss(model(rows), rows, ROWS * LENGTH)
    loss.backward()
    return loss.detach()


def one_process():
    model = whole_model()
    loss = backward(model, text())
    update_biases(model)
    return model, loss


def place(group):
    """Every rank has other rows. Gradients, one rank's statistics, and the bytes of the step."""
    model = expert_parallel(whole_model(), group)
    before = len(group.trace.ops)
    loss = backward(model, text().chunk(group.size)[group.rank])
    ops = group.trace.ops[before:]
    for parameter in model.parameters():
        if "ep" in layout_of(parameter).partial:
            group.all_reduce(parameter.grad)
    local = copy.deepcopy([block.mlp.seen.load for block in model.blocks])
    update_biases(model, group.all_reduce)
    return {
        "loss": group.all_reduce(loss),
        "gradients": {name: p.grad for name, p in model.named_parameters()},
        "split": [n for n, p in model.named_parameters() if "ep" in layout_of(p).split],
        "loads": local,
        "biases": [block.mlp.router.bias_steps for block in model.blocks],
        "sent": [op.sent_bytes for op in ops if op.kind == "all_to_all"],
        "kinds": {op.kind for op in ops},
        "sequence": one_sequence_on_all_ranks(group),
        "experts": model.blocks[0].mlp.experts.gate.shape[0],
    }


def one_sequence_on_all_ranks(group):
    """Sequences cut along their tokens: the router's gradient, with the sum over ranks and without."""
    x = torch.randn(2, 8, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    gradients = []
    for shared in (True, False):
        torch.manual_seed(0)
        moe = MoE(CONFIG).double()
        set_step(moe, 2 * 8)
        if shared:
            moe.router.sum_sequence = group.all_reduce
        moe(x.chunk(group.size, dim=1)[group.rank]).sum().backward()
        gradients.append(group.all_reduce(moe.router.weight.grad))
    return gradients


@pytest.fixture(scope="module", params=[1, 2, 4])
def ranks(request):
    return launch(place, ranks=request.param, timeout=120)


def test_loss_and_every_gradient_equal_one_process(ranks):
    model, loss = one_process()
    for rank, got in enumerate(ranks):
        torch.testing.assert_close(got["loss"], loss, **EXACT)
        assert_gradients(got["gradients"], model, rank, len(ranks))
        assert got["experts"] == CONFIG.experts // len(ranks)
        assert all(".experts." in name for name in got["split"]) and len(got["split"]) == 2 * 3


def assert_gradients(got: dict[str, torch.Tensor], model, rank: int, ranks: int) -> None:
    """An expert's whole gradient lies on the rank that has it; the others', summed, on each."""
    for name, parameter in model.named_parameters():
        want = parameter.grad
        if ".experts." in name:
            want = want.chunk(ranks)[rank]
        torch.testing.assert_close(got[name], want, **EXACT, msg=name)


def test_the_bias_is_made_of_the_counts_of_all_ranks(ranks):
    model, _ = one_process()
    for index, block in enumerate(model.blocks):
        loads = [got["loads"][index] for got in ranks]
        assert torch.equal(sum(loads), block.mlp.seen.load), "no choice lost, none counted twice"
        for got in ranks:
            assert torch.equal(got["biases"][index], block.mlp.router.bias_steps)
    if len(ranks) > 1:
        alone = [(load.double().mean() - load).sign().long() for load in ranks[0]["loads"]]
        wrong = [not torch.equal(a, b) for a, b in zip(alone, ranks[0]["biases"])]
        assert any(wrong), "made of one rank's own counts the biases would drift apart"


def rows_between_ranks(counts: torch.Tensor, rank: int) -> tuple[int, int]:
    """counts (N, E) of every rank's rows -> (leaving, arriving) of one rank."""
    there = torch.stack([held.sum(1) for held in counts.chunk(len(counts), dim=1)], dim=1)  # (N, N)
    there.fill_diagonal_(0)
    return int(there[rank].sum()), int(there[:, rank].sum())


def test_bytes_equal_the_closed_form(ranks):
    counts = [torch.stack([got["loads"][i] for got in ranks]) for i in range(CONFIG.layers)]
    for rank, got in enumerate(ranks):
        between = [rows_between_ranks(c, rank) for c in counts]
        rows = 2 * sum(map(sum, between)) * WIDTH * DOUBLE  # forward and backward
        held = CONFIG.experts // len(ranks)
        told = CONFIG.layers * held * (len(ranks) - 1) * 8  # int64 counts, forward
        assert sum(got["sent"]) == rows + told and got["kinds"] == {"all_to_all"}
        assert len(got["sent"]) == CONFIG.layers * (1 + 2 + 2)


def test_a_sequence_on_several_ranks_is_balanced_as_one(ranks):
    torch.manual_seed(0)
    moe = MoE(CONFIG).double()
    x = torch.randn(2, 8, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    moe(x).sum().backward()
    for got in ranks:
        right, wrong = got["sequence"]
        torch.testing.assert_close(right, moe.router.weight.grad, **EXACT)
        assert len(ranks) == 1 or not torch.allclose(wrong, right, rtol=1e-6), "counted by parts"


def too_many(group):
    with pytest.raises(InputError, match=r"8 experts .* over 3 ranks: use 6 or 9, or 2 or 4 ranks"):
        expert_parallel(whole_model(), group)
    with pytest.raises(InputError, match="no experts"):
        expert_parallel(torch.nn.Linear(1, 1), group)


def test_what_cannot_be_split_is_refused():
    launch(too_many, ranks=3, timeout=60)


# ---- the functions that lab e02d asks for ----


SMALL = ModelConfig(
    16, 8, 1, 2, 2, 12, experts=4, experts_per_token=2, expert_ffn_size=6, bias_rate=0.01
)


E, D, M = SMALL.experts, SMALL.hidden_size, 10


def small_layer() -> MoE:
    torch.manual_seed(0)
    return MoE(SMALL).double()


def rows_of_text() -> torch.Tensor:
    return torch.randn(M, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def by_hand(group):
    """One rank's tokens through its experts: output, gradients, its share of the loss, the bias."""
    moe, x = small_layer(), rows_of_text().chunk(group.size)[group.rank]
    own = Experts(E // group.size, D, SMALL.expert_ffn_size).double()
    for mine, all_of_them in zip(own.parameters(), moe.experts.parameters()):
        mine.data.copy_(all_of_them.data.chunk(group.size)[group.rank])
    router, bias = moe.router.weight, torch.zeros(E)
    p, experts, weights = route(x, router, bias, 2)
    order, counts = plan(experts, E, p.gather(1, experts).detach())
    y = mix(x, weights, order, counts, partial(exchange_naive, group, own))
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


def test_layer_loss_and_bias_are_those_of_the_courses_own():
    moe, x = small_layer(), rows_of_text().unsqueeze(0)
    y = moe_naive(moe, x)
    routing = moe.router(x)
    logits = (x @ moe.router.weight.T).softmax(-1)
    share = routing.load.double() / routing.load.sum()
    loss = E * (share * logits.mean((0, 1))).sum()
    (y.square().sum() + loss).backward()
    moe.router.update_bias(routing.load)

    got = launch(by_hand, ranks=2)
    close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-7)
    close(torch.cat([r["y"] for r in got]), y[0].detach())
    close(sum(r["share"] for r in got), loss.detach())
    close(torch.cat([r["down"] for r in got]), moe.experts.down.grad)
    close(sum(r["router"] for r in got), moe.router.weight.grad)
    for r in got:
        close(r["bias"], moe.router.bias.float())
