from __future__ import annotations

import pytest
import torch

from minitrain.errors import InputError
from minitrain.model.config import ModelConfig, preset
from minitrain.model.transformer import build
from minitrain.planning.finetuning_memory import (
    FULL,
    LORA,
    NF4_DOUBLE,
    QLORA,
    Tuning,
    adapter_parameters,
    block_matrices,
    tuning_memory,
)
from minitrain.planning.step.memory import StateBytes
from minitrain.quantization.formats.names import named
from minitrain.quantization.model import held_bytes, layer_names, quantize_model

LLAMA_65B = ModelConfig(32000, 8192, 80, 64, 64, 22016)
SIZES = ("llama2-7b", "llama2-13b", "llama2-70b", "llama3-405b")


def test_counts_are_those_of_a_model_that_is_there():
    config = ModelConfig(100, 64, layers=3, heads=4, kv_heads=2, ffn_size=128, qkv_bias=True)
    model = build(config)
    linears = [model.get_submodule(name) for name in layer_names(model)]
    assert block_matrices(config) == sum(linear.weight.numel() for linear in linears)
    sizes = sum(5 * (linear.in_features + linear.out_features) for linear in linears)
    assert adapter_parameters(config, 5) == sizes


def test_the_base_is_as_many_bytes_as_a_quantized_model_holds():
    config = ModelConfig(100, 256, layers=2, heads=4, kv_heads=2, ffn_size=512)
    model = quantize_model(build(config), named("nf4-dq")).bfloat16()
    predicted = tuning_memory(config, QLORA).base
    assert held_bytes(model) == pytest.approx(predicted, rel=2e-3)  # a mean a matrix
    layer = named("nf4-dq").quantize(torch.randn(512, 512))
    assert layer.bits_per_weight == pytest.approx(NF4_DOUBLE, abs=1e-3)


def test_the_papers_65b():
    """QLoRA, abstract and section 1: from over 780 GB in 16 bits to under 48 GB; double
    quantization saves 3 GB of it (section 3). Their 780 has Adam in 16 + 8 bytes a parameter."""
    without_copy = StateBytes(gradients=2, optimizer=8)
    states = tuning_memory(LLAMA_65B, FULL, per=without_copy)
    assert 780e9 < states.base + states.gradients + states.optimizer < 800e9
    assert tuning_memory(LLAMA_65B, Tuning(64, NF4_DOUBLE), length=512).total < 48 * 2**30
    saved = tuning_memory(LLAMA_65B, Tuning(64, 4.5)).base - tuning_memory(LLAMA_65B, QLORA).base
    assert saved == pytest.approx(3.0e9, rel=0.02)


@pytest.mark.parametrize("name", SIZES)
def test_full_takes_16_bytes_a_parameter_and_the_others_their_base(name):
    config = preset(name)
    full, lora, qlora = (tuning_memory(config, tuning) for tuning in (FULL, LORA, QLORA))
    parameters = full.base / 2
    assert full.total - full.activations == 16 * parameters
    assert lora.base == full.base and lora.gradients + lora.optimizer == 14 * lora.adapter / 2
    assert lora.adapter < 0.02 * lora.base
    assert 0.25 < qlora.base / lora.base < 0.37
    assert full.activations == lora.activations == qlora.activations
    assert full.total > 6 * lora.total > 12 * qlora.total or name == "llama2-7b"


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match="give a rank"):
        Tuning(base_bits=4)
    with pytest.raises(InputError, match="rank of 1 or more"):
        Tuning(rank=0)
    with pytest.raises(InputError, match="over 0 to 64 bits"):
        Tuning(rank=8, base_bits=float("nan"))
    with pytest.raises(InputError, match="dense model"):
        tuning_memory(preset("mixtral-8x7b"), LORA)
