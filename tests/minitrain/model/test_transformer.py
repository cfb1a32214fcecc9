from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from minitrain.model.config import ModelConfig, RopeScaling, preset
from minitrain.model.hub.load import hub_name
from minitrain.model.norm import RMSNorm, rms_norm, rms_norm_naive
from minitrain.model.transformer import Transformer, build

from .peers import SMALL, exact, random_peer, random_tokens

EXACT = {"rtol": 0, "atol": 1e-10}
FAMILIES = {
    "llama": ("llama", SMALL),
    "llama, every head its own keys": ("llama", replace(SMALL, kv_heads=4, head_size=6)),
    "llama, one key head": ("llama", replace(SMALL, kv_heads=1, tied=True)),
    "llama 3.1": ("llama", replace(SMALL, rope_scaling=RopeScaling(original_length=20))),
    "mistral": ("mistral", replace(SMALL, window=5)),
    "qwen2": ("qwen2", replace(SMALL, qkv_bias=True, tied=True)),
    "qwen2, windowed": ("qwen2", replace(SMALL, qkv_bias=True, window=3)),
}


def twin(family: str, config: ModelConfig):
    """A random model of `transformers` and ours with the same weights, both float64."""
    peer = exact(random_peer(config, family))
    model, theirs = build(config, dtype=torch.float64), dict(peer.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(theirs[hub_name(name)])
    return peer, model


@pytest.mark.parametrize("family, config", FAMILIES.values(), ids=FAMILIES)
def test_logits_and_every_gradient_equal_transformers(family, config):
    torch.manual_seed(0)
    peer, model = twin(family, config)
    tokens = random_tokens(config, 2, 13)
    ours, theirs = model(tokens), peer(tokens).logits
    torch.testing.assert_close(ours, theirs, **EXACT)
    slope = torch.randn_like(ours)
    ours.backward(slope)
    theirs.backward(slope)
    gradients = {name: p.grad for name, p in peer.named_parameters()}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[hub_name(name)], **EXACT)


def test_packed_documents_equal_transformers_told_of_their_positions():
    torch.manual_seed(0)
    peer, model = twin("llama", SMALL)
    documents = torch.tensor([[0] * 4 + [1] * 3 + [2] * 4, [0] * 1 + [1] * 10])
    positions = torch.tensor([[*range(4), *range(3), *range(4)], [*range(1), *range(10)]])
    tokens = random_tokens(SMALL, 2, 11)
    want = peer(tokens, position_ids=positions).logits
    torch.testing.assert_close(model(tokens, documents), want, **EXACT)


@pytest.mark.parametrize("window", [None, 3])
def test_packed_documents_equal_each_document_alone(window):
    torch.manual_seed(0)
    model = build(replace(SMALL, window=window), dtype=torch.float64)
    parts = [random_tokens(SMALL, 1, length) for length in (1, 7, 4, 2)]
    documents = torch.cat([torch.full_like(part, i) for i, part in enumerate(parts)], dim=1)
    packed = model(torch.cat(parts, dim=1), documents)
    alone = torch.cat([model(part) for part in parts], dim=1)
    torch.testing.assert_close(packed, alone, **EXACT)
    assert not torch.allclose(model(torch.cat(parts, dim=1)), alone, atol=1e-3)


def test_positions_given_are_positions_used():
    torch.manual_seed(0)
    model = build(SMALL, dtype=torch.float64)
    tokens = random_tokens(SMALL, 2, 6)
    shifted = model(tokens, positions=torch.arange(6) + 50)
    torch.testing.assert_close(shifted, model(tokens), rtol=0, atol=1e-4)  # only distances count
    stretched = model(tokens, positions=2 * torch.arange(6).expand(2, 6))
    assert not torch.allclose(stretched, model(tokens), atol=1e-3)


def test_tied_weights_are_one_parameter_wherever_the_model_goes():
    config = replace(SMALL, tied=True)
    for model in (Transformer(config), build(config), build(config).double()):
        for twin_model in (model, copy.deepcopy(model)):
            assert twin_model.head.weight is twin_model.embed.weight
            assert len([n for n, _ in twin_model.named_parameters() if "head" in n]) == 0
    assert build(SMALL).head.weight is not build(SMALL).embed.weight


def test_a_seed_is_one_model_in_every_dtype():
    one, other = build(SMALL, seed=3), build(SMALL, dtype=torch.bfloat16, seed=3)
    for a, b in zip(one.parameters(), other.parameters()):
        assert b.dtype == torch.bfloat16 and torch.equal(a.bfloat16(), b)
    different = build(SMALL, seed=4)
    assert not torch.equal(one.embed.weight, different.embed.weight)


def test_initialisation_has_the_spread_it_says_and_predicts_nothing():
    model = build(preset("1M", qkv_bias=True))
    std = math.sqrt(2 / (5 * 128))
    block = model.blocks[0]
    for matrix in (model.embed, model.head, block.attention.q, block.mlp.gate):
        assert matrix.weight.std().item() == pytest.approx(std, rel=0.02)
    for matrix in (block.attention.o, block.mlp.down):
        assert matrix.weight.std().item() == pytest.approx(std / math.sqrt(8), rel=0.02)
    assert block.attention.q.bias.abs().max() == 0 and block.mlp_norm.weight.min() == 1
    tokens = random_tokens(model.config, 4, 65)
    with torch.no_grad():
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(512), rel=0.05)


def test_autocast_computes_in_bfloat16_and_trains():
    model, tokens = build(SMALL), random_tokens(SMALL, 2, 16)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens, torch.arange(16).div(5, rounding_mode="floor").expand(2, 16))
    assert logits.dtype == torch.bfloat16
    logits.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


# ---- norm ----


@pytest.mark.parametrize("shape", [(2, 3, 8), (5, 33), (1, 1, 1, 6)])
def test_it_is_torchs_own_forward_and_backward(shape):
    for norm in (rms_norm, rms_norm_naive):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(shape[-1], dtype=torch.float64, requires_grad=True)
        dy = torch.randn(shape, dtype=torch.float64)
        ours, theirs = norm(x, weight, 1e-5), F.rms_norm(x, shape[-1:], weight, 1e-5)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        want = torch.autograd.grad(theirs, (x, weight), dy)
        got = torch.autograd.grad(ours, (x, weight), dy)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_a_vector_of_zeros_and_one_too_large_to_square_in_half_precision():
    weight = torch.ones(4)
    assert torch.equal(rms_norm(torch.zeros(1, 4), weight, 1e-5), torch.zeros(1, 4))
    large = torch.full((1, 4), 300.0, dtype=torch.float16, requires_grad=True)  # 300² > 65504
    out = rms_norm(large, weight.half(), 1e-5)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out, torch.ones_like(out))
    out.sum().backward()
    assert large.grad.dtype == torch.float16 and large.grad.isfinite().all()
    x, weight = torch.randn(64, 32).bfloat16(), torch.randn(32).bfloat16()
    want = F.rms_norm(x.float(), (32,), weight.float(), 1e-5).bfloat16()
    assert torch.equal(rms_norm(x, weight, 1e-5), want), "normalised in float32"


def test_backward_keeps_the_input_and_one_number_a_token():
    saved = []

    def count(tensor):
        saved.append(tensor.numel())
        return tensor

    x = torch.randn(2, 3, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        RMSNorm(8, 1e-5)(x)
    assert sorted(saved) == [6, 8, 48]  # 1 / rms of each token, the weight, the input
