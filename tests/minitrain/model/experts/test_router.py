"""The router: choices, weights, losses and bias, each by an oracle and against a wrong version."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from minitrain.model.config import ModelConfig
from minitrain.model.experts.router import Router, z_loss

CONFIG = ModelConfig(32, 16, 1, 2, 2, 24, experts=6, experts_per_token=2, bias_rate=0.01)
B, T, E, K = 3, 10, CONFIG.experts, CONFIG.experts_per_token


def router(config: ModelConfig = CONFIG) -> Router:
    torch.manual_seed(0)
    return Router(config).double()


def tokens(seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, T, CONFIG.hidden_size, dtype=torch.float64, generator=generator)


def probabilities(router: Router, x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x @ router.weight.T, dim=-1)


def test_the_k_most_probable_are_chosen_and_their_weights_sum_to_one():
    routing = router()(tokens())
    top = probabilities(router(), tokens()).topk(K)
    assert torch.equal(routing.experts, top.indices)
    torch.testing.assert_close(routing.weights, top.values / top.values.sum(-1, keepdim=True))
    torch.testing.assert_close(routing.weights.sum(-1), torch.ones(B, T).double())
    assert torch.equal(routing.load, routing.experts.flatten().bincount(minlength=E))
    assert routing.load.sum() == B * T * K


def router_gradient(weights_of, experts_per_token: int) -> torch.Tensor:
    made = router(replace(CONFIG, experts_per_token=experts_per_token))
    routing = made(tokens())
    slope = torch.randn(routing.weights.shape, generator=torch.Generator().manual_seed(2))
    (weights_of(routing) * slope).sum().backward()
    return made.weight.grad


def test_one_expert_a_token_is_weighed_by_its_probability_or_the_router_would_not_learn():
    assert router_gradient(lambda r: r.weights, 1).norm() > 0.1
    normalised = router_gradient(lambda r: r.weights / r.weights.sum(-1, keepdim=True), 1)
    assert normalised.abs().max() < 1e-12, "p / p: this is what must not be done"


def test_gradients_flow_through_the_gather():
    made, x = router(), tokens().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: made(x).weights, (x, made.weight))
    routing = made(tokens())
    assert routing.weights.requires_grad and not routing.probabilities.requires_grad


def test_logits_are_float32_in_a_model_of_bfloat16_and_under_autocast():
    made, x = router().bfloat16(), tokens().bfloat16()
    want = F.softmax(x.float() @ made.weight.float().T, dim=-1).topk(K)
    with torch.autocast("cpu", torch.bfloat16):
        routing = made(x)
    assert routing.weights.dtype == torch.float32
    assert torch.equal(routing.probabilities, want.values)


def test_sequence_balance_equals_deepseeks_formula_token_by_token():
    p, experts = probabilities(router(), tokens()), router()(tokens()).experts
    want = 0.0
    for b in range(B):
        for i in range(E):
            f = E / (K * T) * sum(i in experts[b, t].tolist() for t in range(T))
            want += f * p[b, :, i].mean()
    torch.testing.assert_close(router()(tokens()).losses[0] / (B * T), want / B)


def test_batch_balance_equals_transformers_which_counts_k_times_as_much():
    mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    logits = (tokens() @ router().weight.T).flatten(0, 1)
    theirs = mixtral.load_balancing_loss_func((logits,), num_experts=E, top_k=K)
    ours = router()(tokens()).losses[1].float() / (B * T)
    torch.testing.assert_close(ours, theirs / K, rtol=1e-5, atol=1e-6)


def test_z_loss_by_hand():
    logits = torch.tensor([[[0.0, 0.0], [1.0, 3.0]]])
    want = torch.tensor(2.0).log() ** 2 + (torch.e**1 + torch.tensor(torch.e**3)).log() ** 2
    torch.testing.assert_close(z_loss(logits), want)


def test_the_bias_chooses_and_does_not_weigh():
    made = router()
    made.bias_steps[4] = 1000
    routing = made(tokens())
    assert (routing.experts[..., 0] == 4).all()
    p = probabilities(made, tokens()).gather(-1, routing.experts)
    torch.testing.assert_close(routing.weights, p / p.sum(-1, keepdim=True))
    assert torch.equal(routing.probabilities, p)


def test_the_bias_steps_towards_an_even_load_and_gets_there():
    made, x = router(), tokens().repeat(8, 1, 1) + 0.3
    made.update_bias(torch.tensor([4, 2, 3, 3, 3, 3]))
    assert made.bias_steps.tolist() == [-1, 1, 0, 0, 0, 0]
    assert made.bias[1].item() == pytest.approx(CONFIG.bias_rate)
    before = made(x).load
    for _ in range(200):
        made.update_bias(made(x).load)
    after = made(x).load
    assert after.max() - after.min() < (before.max() - before.min()) / 3


def test_the_bias_stays_exact_in_bfloat16():
    made = router().bfloat16()
    for _ in range(1000):
        made.update_bias(torch.tensor([0, 2, 1, 1, 1, 1]))
    assert made.bias_steps[0] == 1000
