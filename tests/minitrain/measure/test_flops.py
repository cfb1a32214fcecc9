"""The closed form equals the FLOPs that are counted in the matmuls, exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from minitrain.measure.clock import threads
from minitrain.measure.flops import (
    counted_flops,
    flops_per_token,
    forward_flops_per_token,
    model_flops,
)
from minitrain.measure.parameters import matmul_parameters, parameter_count
from minitrain.model.config import ModelConfig, preset
from minitrain.model.transformer import Transformer

SHAPES = {
    "multi-head": ModelConfig(97, 32, layers=2, heads=4, kv_heads=4, ffn_size=56),
    "grouped": ModelConfig(64, 48, layers=3, heads=6, kv_heads=2, ffn_size=40),
    "tied, wide heads": ModelConfig(50, 32, 1, 4, 1, ffn_size=24, tied=True, head_size=12),
    "biased": ModelConfig(50, 32, layers=2, heads=4, kv_heads=2, ffn_size=24, qkv_bias=True),
    "experts": ModelConfig(
        50, 32, 2, 4, 2, 24, experts=6, expert_ffn_size=20, shared_experts=1, z_loss=0.1
    ),
    "experts, one at a time": ModelConfig(50, 32, 1, 4, 2, 24, experts=3, experts_per_token=1),
}


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny matmuls on a busy machine wait for each other's threads far longer than they compute."""
    with threads(1):
        yield


@pytest.mark.parametrize("enable_gqa", [False, True])
def test_fused_attention_is_counted_on_the_cpu(enable_gqa):
    batch, heads, length, size = 2, 4, 16, 8
    q = torch.randn(batch, heads, length, size, requires_grad=True)
    kv = torch.randn(batch, 2 if enable_gqa else heads, length, size, requires_grad=True)
    forward = 4 * batch * heads * length * length * size

    def attend() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, kv, kv, is_causal=True, enable_gqa=enable_gqa)

    assert counted_flops(attend) == forward
    assert counted_flops(lambda: attend().sum().backward()) == 3 * forward


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("batch, length", [(1, 1), (3, 7), (2, 16)])
def test_closed_form_equals_the_count_of_our_model(name, batch, length):
    config = SHAPES[name]
    model = Transformer(config)
    tokens = torch.randint(config.vocab_size, (batch, length))

    forward = counted_flops(lambda: model(tokens))
    assert forward == batch * length * forward_flops_per_token(config, length)
    step = counted_flops(lambda: model(tokens).sum().backward())
    assert step == model_flops(config, batch, length) == 3 * forward


def test_closed_form_equals_the_count_of_transformers_llama():
    transformers = pytest.importorskip("transformers")
    config = SHAPES["grouped"]
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            intermediate_size=config.ffn_size,
        )
    )
    tokens = torch.randint(config.vocab_size, (2, 16))
    counted = counted_flops(lambda: llama(tokens, use_cache=False).logits.sum().backward())
    # Its rotary table is made by a (B, h/2, 1) x (B, 1, T) matmul, outer products and no more.
    table = 2 * 1 * (config.head_size // 2) * 16
    assert counted - model_flops(config, 2, 16) in (0, table, 2 * table)


def test_six_n_is_the_limit_of_a_wide_model_and_short_text():
    config = preset("llama2-7b")
    assert flops_per_token(config, 1) == pytest.approx(6 * parameter_count(config), rel=0.03)
    # PaLM's appendix B: 6 N + 12 L H Q T
    attention = 12 * config.layers * config.heads * config.head_size * config.max_length
    assert flops_per_token(config, 4096) == 6 * matmul_parameters(config) + attention


def test_a_window_bounds_the_attention_that_is_counted():
    free = ModelConfig(64, 32, layers=2, heads=4, kv_heads=4, ffn_size=64)
    window = replace(free, window=8)
    assert flops_per_token(window, 4) == flops_per_token(free, 4)
    assert flops_per_token(window, 64) == flops_per_token(free, 8)


def test_matmuls_of_integers_are_counted():
    whole = torch.ones(32, 32, dtype=torch.int8)
    assert counted_flops(lambda: torch._int_mm(whole, whole)) == 2 * 32**3


@torch.no_grad()
def test_layers_that_a_kernel_fuses_cost_their_matmuls():
    """Such kernels run in evaluation, where there is no gradient."""
    x, attention = torch.randn(2, 6, 8), 2 * 2 * 2 * 2 * 6 * 6 * 4
    projections = 2 * 12 * 8 * 24 + 2 * 12 * 8 * 8
    mha = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    assert counted_flops(lambda: mha(x, x, x, need_weights=False)) == projections + attention
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    mlp = 2 * 2 * 12 * 8 * 16
    assert counted_flops(lambda: layer(x)) == projections + attention + mlp
    lstm = torch.nn.LSTM(8, 5, batch_first=True)
    assert counted_flops(lambda: lstm(x)) == 2 * 12 * (8 * 20 + 5 * 20)
    assert torch.backends.mha.get_fastpath_enabled()
