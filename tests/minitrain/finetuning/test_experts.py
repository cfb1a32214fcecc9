"""LoRA of a mixture's experts, beside PEFT's own `target_parameters` and a loop over experts."""

from __future__ import annotations

import copy
from dataclasses import replace

import peft
import pytest
import torch
import torch.nn.functional as F

from minitrain.errors import InputError
from minitrain.finetuning.layer import adapted_layers
from minitrain.finetuning.merging import disabled, merge, merge_and_unload, unload
from minitrain.finetuning.model import adapt, trainable_parameters
from minitrain.finetuning.peft_files import load_adapter, save_adapter
from minitrain.model.config import ModelConfig
from minitrain.model.experts.grouped import Experts
from minitrain.model.hub.load import load_pretrained, save_pretrained
from minitrain.model.transformer import build

from .peft_peers import shaken

CONFIG = ModelConfig(31, 16, 2, heads=4, kv_heads=2, ffn_size=24, experts=4, expert_ffn_size=12)
OPTIONS = {"rank": 3, "alpha": 6.0, "targets": ("q", "experts")}


def fresh(config=CONFIG):
    return build(config, dtype=torch.float64, seed=1)


def tokens():
    return torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(5))


def loss_of(model):
    logits = model(tokens())
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens()[:, 1:].flatten())


def test_it_begins_as_nothing_and_only_it_learns():
    model = adapt(fresh(), "lora", **OPTIONS)
    torch.testing.assert_close(model(tokens()), fresh()(tokens()), rtol=0, atol=1e-12)
    per_expert = 3 * 3 * (16 + 12)  # three matrices of rank 3
    assert trainable_parameters(model)[0] == 2 * (4 * per_expert + 3 * (16 + 16))
    loss_of(shaken(model)).backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == (".adapter." in name), name


def with_pefts(model):
    """The same numbers in PEFT's layers over a copy of the bare model: three wrappers in each
    other, A (R·E, I), B (O, R·E) with the experts side by side innermost."""
    theirs = fresh()
    for module in theirs.modules():
        if isinstance(module, Experts):
            module.is_transposed = True  # (E, I, O), as transformers marks it
    names = [f"mlp.experts.{part}" for part in ("gate", "up", "down")]
    config = peft.LoraConfig(r=3, lora_alpha=6.0, target_modules=["q"], target_parameters=names)
    theirs = peft.inject_adapter_in_model(config, theirs)
    ours = adapted_layers(model)
    with torch.no_grad():
        for block, layers in enumerate(theirs.blocks):
            wrapper = layers.mlp.experts
            adapter = ours[f"blocks.{block}.mlp.experts"].adapter
            while hasattr(wrapper, "parameter_name"):
                a, b = (adapter.get_parameter(f"{wrapper.parameter_name}_lora_{n}") for n in "AB")
                wrapper.lora_A["default"].weight.copy_(a.flatten(0, 1))
                wrapper.lora_B["default"].weight.copy_(b.permute(1, 2, 0).flatten(1))
                wrapper = wrapper.base_layer
            adapter, q = ours[f"blocks.{block}.attention.q"].adapter, layers.attention.q
            q.lora_A["default"].weight.copy_(adapter.lora_A)
            q.lora_B["default"].weight.copy_(adapter.lora_B)
    return theirs


def test_it_computes_what_peft_does_and_has_its_gradients():
    model = shaken(adapt(fresh(), "lora", **OPTIONS))
    theirs = with_pefts(model)
    losses = [loss_of(each) for each in (model, theirs)]
    torch.testing.assert_close(*losses, rtol=1e-12, atol=0)
    for loss in losses:
        loss.backward()
    wrapper = theirs.blocks[1].mlp.experts
    adapter = adapted_layers(model)["blocks.1.mlp.experts"].adapter
    seen = []
    while hasattr(wrapper, "parameter_name"):
        seen.append(wrapper.parameter_name)
        a, b = (adapter.get_parameter(f"{seen[-1]}_lora_{n}").grad for n in "AB")
        wanted = [f["default"].weight.grad for f in (wrapper.lora_A, wrapper.lora_B)]
        assert all(grad.abs().max() > 0 for grad in wanted)
        torch.testing.assert_close(a.flatten(0, 1), wanted[0], rtol=1e-9, atol=1e-14)
        torch.testing.assert_close(b.permute(1, 2, 0).flatten(1), wanted[1], rtol=1e-9, atol=1e-14)
        wrapper = wrapper.base_layer
    assert sorted(seen) == ["down", "gate", "up"]


def test_an_expert_that_nobody_chooses_does_not_learn():
    model = shaken(adapt(fresh(), "lora", targets="experts", rank=2))
    model(tokens()[:1, :1]).square().sum().backward()  # one token, which two of four answer
    for layer in adapted_layers(model).values():
        for parameter in layer.adapter.parameters():
            learns = parameter.grad.flatten(1).abs().amax(dim=1) > 0
            assert learns.sum() == 2, learns


def test_merged_disabled_unloaded_and_written(tmp_path):
    bare, model = fresh(), shaken(adapt(fresh(), "lora", **OPTIONS))
    logits = model(tokens())
    with disabled(model):
        assert torch.equal(model(tokens()), bare(tokens()))
    merge(model)
    torch.testing.assert_close(model(tokens()), logits, rtol=0, atol=1e-12)
    save_adapter(model, tmp_path / "adapter")
    again = load_adapter(fresh(), tmp_path / "adapter")
    torch.testing.assert_close(again(tokens()), logits, rtol=0, atol=1e-12)
    plain = merge_and_unload(copy.deepcopy(model))
    save_pretrained(plain, tmp_path / "plain")
    read = load_pretrained(tmp_path / "plain")[0].double()
    torch.testing.assert_close(read(tokens()), logits, rtol=0, atol=1e-5)
    assert torch.equal(unload(model)(tokens()), bare(tokens()))


@pytest.mark.parametrize("options", [{"dora": True}, {"pissa": True}, {"dropout": 0.1}])
def test_what_cannot_be_beside_experts_is_refused(options):
    with pytest.raises(InputError, match="only lora and rslora"):
        adapt(fresh(), "lora", targets="experts", **options)
    with pytest.raises(InputError, match="no linear layer"):
        adapt(fresh(), "ia3", targets="experts")
    with pytest.raises(InputError, match="no layer is called 'experts'"):
        adapt(fresh(replace(CONFIG, experts=0)), "lora", targets="experts")
