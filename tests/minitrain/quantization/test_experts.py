"""Mixtures of experts in few bits: each expert as a model of its own would be, on its own tokens."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from minitrain.data.loader import Batch
from minitrain.errors import InputError
from minitrain.finetuning.model import adapt
from minitrain.model.experts.grouped import PARTS, put_together, take_apart
from minitrain.model.transformer import build
from minitrain.quantization.calibration import Calibration
from minitrain.quantization.folder import load_quantized, save_quantized
from minitrain.quantization.formats.names import named
from minitrain.quantization.layers.linear import QuantLinear
from minitrain.quantization.methods.method import METHODS, Method
from minitrain.quantization.model import layer_names, quantize_model

from .toys import CONFIG, calibration, tokens, train

MIXED = replace(CONFIG, experts=4, experts_per_token=2, expert_ffn_size=48)
SHARED = replace(MIXED, shared_experts=1)
TEXT = tokens(vocab=CONFIG.vocab_size)


@lru_cache
def _trained():
    return train(build(MIXED, seed=0), steps=60, lr=1e-2)


def trained():
    return deepcopy(_trained())


@pytest.mark.parametrize("config", [MIXED, SHARED, replace(MIXED, capacity=1.0)])
def test_apart_they_compute_what_they_did(config):
    whole = build(config, dtype=torch.float64, seed=1)
    split = take_apart(deepcopy(whole))
    for model in (whole, split):
        model(TEXT).square().mean().backward()
    torch.testing.assert_close(split(TEXT), whole(TEXT), rtol=0, atol=1e-12)
    for a, b in ((one.mlp, two.mlp) for one, two in zip(whole.blocks, split.blocks)):
        torch.testing.assert_close(b.router.weight.grad, a.router.weight.grad)
        for part in PARTS:
            gradients = torch.stack([expert[part].weight.grad.t() for expert in b.experts])
            torch.testing.assert_close(gradients, a.experts.get_parameter(part).grad)
    again = put_together(deepcopy(split))
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), whole.parameters()))
    assert torch.equal(again(TEXT), whole(TEXT))
    experts, row = split.blocks[-1].mlp.experts, torch.randn(1, config.hidden_size).double()
    assert experts(row[:0], torch.zeros(4, dtype=torch.int64)).shape == (0, config.hidden_size)
    assert experts(row, torch.tensor([0, 0, 1, 0])).shape == row.shape


def test_every_matrix_of_every_expert_is_rounded():
    model, form = build(SHARED, seed=1), named("int4-g32")
    want = deepcopy(model)
    for layer in want.modules():
        if isinstance(layer, torch.nn.Linear) and layer is not want.head:
            layer.weight.data = form.quantize(layer.weight).dequantize()
    for block in want.blocks:
        for weights in block.mlp.experts.parameters():
            for matrix in weights.data:  # (I, O)
                matrix.copy_(form.quantize(matrix.t().contiguous()).dequantize().t())
    names = layer_names(model)
    done: list[str] = []
    quantize_model(model, form, progress=done.append)
    assert done == names and not layer_names(model)
    assert sum(isinstance(m, QuantLinear) for m in model.modules()) == len(names)
    torch.testing.assert_close(model(TEXT), want(TEXT), rtol=0, atol=1e-5)


def test_an_expert_is_calibrated_on_the_tokens_that_are_routed_to_it():
    seen = {}

    def spy(weight, statistics, form):
        seen[len(seen)] = statistics
        return form.quantize(weight)

    model, form = trained(), named("int3-row")
    forwards = []
    model.blocks[0].register_forward_pre_hook(lambda *_: forwards.append(1))
    quantize_model(model, form, Method(round=spy), calibration())
    texts = calibration()
    assert len(forwards) == len(texts) * (4 + 1) + 1, "a forward a stage, whatever the experts"
    own = list(seen.values())[4:16]  # after q, k, v, o: gate and up of each expert, then down
    tokens_seen = sum(each.tokens for each in own[:8:2])
    assert tokens_seen == MIXED.experts_per_token * sum(b.tokens.numel() for b in texts)

    rough = trained()  # attention rounded, experts not yet: what the router then sends where
    quantize_model(rough, dict.fromkeys(layer_names(rough)[:4], form))
    block, x = rough.blocks[0], []
    block.mlp.register_forward_pre_hook(lambda _, inputs: x.append(inputs[0]))
    Calibration(rough, texts).advance(block)
    x = torch.cat(x)
    routing = block.mlp.router(x)
    for expert in range(MIXED.experts):
        rows = x[(routing.experts == expert).any(-1)]  # (r, D)
        want = rows.t() @ rows / len(rows)
        for each in own[2 * expert : 2 * expert + 2]:
            assert each.tokens == len(rows)
            torch.testing.assert_close(each.second_moment.float(), want, rtol=1e-3, atol=1e-4)


def without(model, expert):
    """A router that chooses this expert never."""
    for block in model.blocks:
        block.mlp.router.bias_rate = 1.0
        block.mlp.router.bias_steps[expert] = -10
    return model


def test_what_no_token_reaches_is_rounded_to_nearest_and_said():
    missed, form = [], named("int3-row")
    original = trained()
    untouched = without(trained(), 2)
    model = quantize_model(untouched, form, METHODS["gptq"], calibration(), missed=missed.append)
    assert missed == [f"blocks.{b}.mlp.experts.2.{part}" for b in range(2) for part in PARTS]
    for name in missed:
        block, part = name.split(".")[1], name.rsplit(".", 1)[-1]
        matrix = original.blocks[int(block)].mlp.experts.get_parameter(part)[2].t().contiguous()
        held = model.get_submodule(name).weight
        assert torch.equal(held.dequantize(), form.quantize(matrix).dequantize())


def test_a_mixture_loads_again_bit_for_bit(tmp_path):
    with pytest.raises(InputError, match="shared"):
        save_quantized(quantize_model(build(SHARED, seed=1), named("nf4-dq")), tmp_path / "no")
    model = quantize_model(build(MIXED, seed=1), named("nf4-dq"))
    save_quantized(model, tmp_path / "folder")
    again, _ = load_quantized(tmp_path / "folder")
    assert torch.equal(again(TEXT), model(TEXT))


def test_an_adapter_beside_experts_in_few_bits_has_the_gradients_of_dense_ones():
    """QLoRA of a mixture: over nf4-dq, and over the same weights in float."""
    held = quantize_model(build(MIXED, seed=1), named("nf4-dq"))
    dense = take_apart(build(MIXED, seed=1))
    for name in layer_names(dense):
        dense.get_submodule(name).weight.data = held.get_submodule(name).weight.dequantize()
    gradients = []
    for model in (held, dense):
        adapt(model, "lora", rank=2)
        with torch.no_grad():
            for n, p in model.named_parameters():
                if p.requires_grad:
                    p.copy_(torch.linspace(-0.1, 0.1, p.numel()).view_as(p) + 0.01 * len(n))
        model(TEXT).square().mean().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.requires_grad})
    assert any(".experts.3.down.adapter.lora_B" in name for name in gradients[0])
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], msg=name)


@pytest.mark.parametrize("method", ["awq", "smoothquant"])
def test_what_is_known_for_dense_blocks_alone_is_refused(method):
    model = trained()
    with pytest.raises(InputError, match="dense blocks alone"):
        quantize_model(model, named("int8-row"), METHODS[method], calibration())
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in trained().named_parameters()]


def test_rows_with_padding_do_not_say_which_they_are():
    batch = calibration()[0]
    padded = Batch(batch.tokens, batch.targets, batch.documents.clone(), batch.positions)
    padded.documents[:, 30:] = -1
    with pytest.raises(InputError, match="full rows"):
        quantize_model(trained(), named("int4-row"), METHODS["gptq"], [padded])
