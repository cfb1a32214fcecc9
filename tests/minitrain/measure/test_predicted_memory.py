"""The closed form of a step's memory agrees with the ledger: 3% for state, 5% for activations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minitrain.errors import InputError
from minitrain.measure.clock import threads
from minitrain.measure.memory import MemoryLedger
from minitrain.measure.predicted_memory import predict_memory
from minitrain.memory.segments import recompute
from minitrain.model.config import ModelConfig, preset
from minitrain.model.transformer import build
from minitrain.optimizers.adamw import adamw
from minitrain.training.loss import token_weighted_loss

SMALL = ModelConfig(101, 48, layers=2, heads=6, kv_heads=2, ffn_size=80)
CASES = {
    "preset 0.5M": (preset("0.5M"), 4, 64, torch.float32, False),
    "preset 1M": (preset("1M"), 8, 128, torch.float32, False),
    "preset 1M, packed": (preset("1M"), 4, 128, torch.float32, True),
    "preset 3M, one token": (preset("3M"), 1, 1, torch.float32, False),
    "preset 10M": (preset("10M"), 2, 48, torch.float32, False),
    "wide vocabulary": (replace(SMALL, vocab_size=3000), 2, 40, torch.float32, False),
    "tied": (replace(SMALL, tied=True), 3, 17, torch.float32, False),
    "biased": (replace(SMALL, qkv_bias=True), 3, 32, torch.float32, True),
    "sliding window": (replace(SMALL, window=8), 2, 100, torch.float32, False),
    "bfloat16": (preset("1M"), 4, 64, torch.bfloat16, False),
    "wide heads, bfloat16": (replace(SMALL, head_size=32), 2, 64, torch.bfloat16, True),
    "experts": (preset("1M-moe"), 4, 64, torch.float32, False),
    "shared experts, bfloat16": (preset("1M-moe-shared"), 4, 64, torch.bfloat16, False),
    "long": (SMALL, 1, 700, torch.float32, False),
}


def measured(config, batch, length, dtype, packed, mode="none") -> dict[str, int]:
    model = recompute(build(config, dtype=dtype), mode)
    optimizer = adamw(model, lr=1e-3)
    tokens, targets = torch.randint(config.vocab_size, (2, batch, length)).unbind()
    documents = torch.arange(length).div(20, rounding_mode="floor").expand(batch, length)
    with MemoryLedger(model, optimizer) as ledger:
        logits = model(tokens, documents if packed else None)
        token_weighted_loss(logits, targets.clone(), batch * length).backward()
        optimizer.step()
    return ledger.highest


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny matmuls on a busy machine wait for each other's threads far longer than they compute."""
    with threads(1):
        yield


@pytest.mark.parametrize("name", CASES)
def test_prediction_against_the_ledger(name):
    predicted, seen = predict_memory(*CASES[name]), measured(*CASES[name])
    for category, tolerance in [
        ("parameters", 0.03),
        ("gradients", 0.03),
        ("optimizer", 0.03),
        ("activations", 0.05),
    ]:
        assert predicted[category] == pytest.approx(seen[category], rel=tolerance), category


@pytest.mark.parametrize("mode", ["selective", "full"])
@pytest.mark.parametrize("name", ["preset 1M, packed", "biased", "wide heads, bfloat16", "long"])
def test_recomputed_activations_against_the_ledger(name, mode):
    config, batch, length, dtype, packed = CASES[name]
    seen = measured(config, batch, length, dtype, packed, mode)["activations"]
    predicted = predict_memory(*CASES[name], recompute=mode)["activations"]
    assert predicted == pytest.approx(seen, rel=0.05)
    assert predicted < 0.8 * predict_memory(*CASES[name])["activations"]
    with pytest.raises(InputError, match="none, selective or full"):
        predict_memory(*CASES[name], recompute="some")


def test_published_sizes():
    """16 bytes a parameter in float32 with Adam: 108 GB for Llama 2 7B, more than one H100."""
    memory = predict_memory(preset("llama2-7b"), 1, 1)
    state = memory["parameters"] + memory["gradients"] + memory["optimizer"]
    assert state == 16 * 6_738_415_616
    plain = predict_memory(preset("llama2-7b"), 1, 1, states_per_parameter=0)
    assert plain["optimizer"] == 0
