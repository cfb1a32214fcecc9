"""The layer: against transformers' Mixtral and a dense loop; its losses and counts, however cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from minitrain.errors import InputError
from minitrain.model.config import ModelConfig, preset
from minitrain.model.experts.moe import MoE, attach, moe_naive, set_step, update_biases
from minitrain.model.hub.config import hub_config
from minitrain.model.transformer import build
from minitrain.training.loop import Peers, train_step

EXACT = {"rtol": 0, "atol": 1e-12}
SHAPE = ModelConfig(32, 16, 2, 2, 2, 24, experts=6, experts_per_token=2, expert_ffn_size=12)
LOSSES = replace(SHAPE, sequence_balance=0.1, z_loss=0.01)


def layer(config: ModelConfig) -> MoE:
    torch.manual_seed(0)
    return MoE(config).double()


def tokens(sequences: int = 4, length: int = 9) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(sequences, length, 16, dtype=torch.float64, generator=generator)


def gradients(moe: MoE) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in moe.named_parameters()}


def assert_same(got: dict, want: dict, **tolerance) -> None:
    assert set(got) == set(want)
    for name in want:
        torch.testing.assert_close(got[name], want[name], **(tolerance or EXACT), msg=name)


# ---- what it computes ----


def mixtral_block(config: ModelConfig, moe: MoE):
    modeling = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    shape = modeling.MixtralConfig(
        hidden_size=config.hidden_size,
        intermediate_size=config.expert_ffn_size,
        num_local_experts=config.experts,
        num_experts_per_tok=config.experts_per_token,
        experts_implementation="eager",
    )
    block = modeling.MixtralSparseMoeBlock(shape).double()
    experts = moe.experts
    with torch.no_grad():
        block.gate.weight.copy_(moe.router.weight)
        block.experts.gate_up_proj.copy_(torch.cat([experts.gate.mT, experts.up.mT], dim=1))
        block.experts.down_proj.copy_(experts.down.mT)
    return block


@pytest.mark.parametrize("per_token", [2, 3])
def test_output_and_every_gradient_equal_mixtrals(per_token):
    config = replace(SHAPE, experts_per_token=per_token)
    moe = layer(config)
    block = mixtral_block(config, moe)
    x, slope = tokens(), torch.randn(4, 9, 16, dtype=torch.float64)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, want = moe(mine), block(theirs)
    # Its router rounds the probabilities to float32.
    torch.testing.assert_close(y, want, rtol=1e-6, atol=1e-6)
    y.backward(slope)
    want.backward(slope)
    gate, up = block.experts.gate_up_proj.grad.chunk(2, dim=1)
    their = {
        "router.weight": block.gate.weight.grad,
        "experts.gate": gate.mT,
        "experts.up": up.mT,
        "experts.down": block.experts.down_proj.grad.mT,
    }
    assert_same(gradients(moe), their, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change", [{}, {"experts_per_token": 1}, {"shared_experts": 2}])
def test_output_and_every_gradient_equal_the_dense_loops(change):
    moe, x = layer(replace(SHAPE, **change)), tokens().requires_grad_()
    inputs, slope = [x, *moe.parameters()], torch.randn(4, 9, 16, dtype=torch.float64)
    y, want = moe(x), moe_naive(moe, x)
    torch.testing.assert_close(y, want, **EXACT)
    mine, theirs = (torch.autograd.grad(out, inputs, slope) for out in (y, want))
    torch.testing.assert_close(mine, theirs, **EXACT)


def test_a_capacity_drops_what_is_over_it_and_counts_that():
    moe, x = layer(replace(SHAPE, capacity=1.0)), tokens()
    y = moe(x)
    fits = 4 * 9 * 2 // 6
    assert moe.last.dropped == (moe.last.load - fits).clamp(min=0).sum() > 0
    assert moe.last.load.sum() == 4 * 9 * 2, "the load is what was asked for"
    assert not torch.allclose(y, moe_naive(moe, x))
    moe.capacity = 6.0  # the worst that can be
    torch.testing.assert_close(moe(x), moe_naive(moe, x), **EXACT)
    assert moe.last.dropped == 0


# ---- auxiliary losses ----


def in_parts(config: ModelConfig, cuts: int, told: bool = True) -> dict[str, torch.Tensor]:
    """Gradients of the summed squares over all tokens, in `cuts` microbatches."""
    moe, x = layer(config), tokens()
    set_step(moe, x[..., 0].numel() if told else None)
    for part in x.chunk(cuts):
        (moe(part).square().sum() / x.numel()).backward()
    return gradients(moe)


def by_hand(config: ModelConfig) -> dict[str, torch.Tensor]:
    """The same of one plain sum of the loss and its auxiliary terms."""
    moe, x = layer(config), tokens()
    moe.loss_weights = (0.0, 0.0, 0.0)  # nothing attached
    sequence, batch, z = moe.router(x).losses / x[..., 0].numel()
    auxiliary = config.sequence_balance * sequence + config.batch_balance * batch
    auxiliary = auxiliary + config.z_loss * z
    (moe(x).square().mean() + auxiliary).backward()
    return gradients(moe)


@pytest.mark.parametrize("cuts", [1, 2, 4])
def test_attached_losses_give_the_gradient_of_the_whole_loss_however_the_batch_is_cut(cuts):
    assert_same(in_parts(LOSSES, cuts), by_hand(LOSSES))


def test_attach_changes_nothing_and_runs_its_hook_once():
    x, loss = torch.randn(3, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    calls = []
    y = attach(x, loss, 0.5, lambda: calls.append(1))
    assert torch.equal(x, y)
    for _ in range(2):  # as a pipeline does that splits its backward
        gx, gl = torch.autograd.grad(y.sum(), [x, loss], retain_graph=True)
    assert gx.tolist() == [1, 1, 1] and gl == 0.5 and calls == [1]


# ---- counts, and the bias that is made of them ----


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_counts_nothing_twice_and_evaluation_nothing_at_all(reentrant):
    moe, x = layer(LOSSES), tokens().requires_grad_()
    forwards = []
    moe.register_forward_pre_hook(lambda *_: forwards.append(1))
    checkpoint(moe, x, use_reentrant=reentrant).sum().backward()
    assert len(forwards) == 2, "a count made in forward would be made twice"
    assert torch.equal(moe.seen.load, moe.last.load)
    recomputed, want = gradients(moe), layer(LOSSES)
    want(x).sum().backward()
    assert_same(recomputed, gradients(want))
    with torch.no_grad():
        moe(x)
    assert torch.equal(moe.seen.load, moe.last.load)
    set_step(moe, 1)
    assert moe.seen is None


def test_the_bias_is_made_once_a_step_from_all_counts_of_all_layers():
    model = build(replace(SHAPE, bias_rate=0.01))
    update_biases(model)
    assert all(not block.mlp.router.bias_steps.any() for block in model.blocks)
    for _ in range(2):
        model(torch.randint(32, (2, 8))).sum().backward()
    update_biases(model)
    for block in model.blocks:
        load = block.mlp.seen.load
        assert load.sum() == 2 * 2 * 8 * 2
        assert torch.equal(block.mlp.router.bias_steps, (load.double().mean() - load).sign().long())
    asked = []
    update_biases(build(SHAPE), asked.append)
    assert not asked, "where there is no bias nothing is sent"


# ---- in the model and the loop ----


class Microbatch:
    documents = positions = None

    def __init__(self, tokens: torch.Tensor):
        self.tokens = self.targets = tokens


def step(cuts: int, ranks: int = 1) -> dict[str, torch.Tensor]:
    config = replace(LOSSES, bias_rate=0.01, shared_experts=1)
    model = build(config, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    text = torch.randint(32, (4, 9), generator=torch.Generator().manual_seed(3))
    # Ranks that all have the same: N times the tokens, and the average of N equal gradients.
    peers = Peers(ranks, lambda tensor: tensor.mul_(ranks))
    microbatches = [Microbatch(part) for part in text.chunk(cuts)]
    train_step(model, optimizer, microbatches, clip=1e9, peers=peers)
    return model.state_dict()


def test_a_step_is_the_same_however_it_is_cut():
    want = step(1)
    assert any(value.any() for name, value in want.items() if "bias_steps" in name)
    assert_same(step(2), want)
    assert_same(step(4, ranks=2), want)


def test_a_model_of_experts_is_built_cast_and_saved_as_any_other():
    model = build(preset("1M-moe-shared"), dtype=torch.bfloat16)
    assert model.blocks[0].mlp.router.bias_steps.dtype == torch.int64
    assert not model.blocks[0].mlp.router.bias_steps.any()
    assert "blocks.0.mlp.router.bias_steps" in model.state_dict()
    with pytest.raises(InputError, match="16 experts, unlike llama"):
        hub_config(model.config, "llama", "bfloat16")
    with torch.autocast("cpu", torch.bfloat16):
        logits = build(preset("1M-moe"))(torch.randint(512, (1, 8)))
    assert logits.dtype == torch.bfloat16
    logits.float().sum().backward()
