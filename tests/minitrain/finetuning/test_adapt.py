from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minitrain.errors import InputError
from minitrain.finetuning.adapters.lora import merged_linear
from minitrain.finetuning.layer import adapted_layers
from minitrain.finetuning.merging import disabled, merge, merge_and_unload, unload, unmerge
from minitrain.finetuning.methods import METHODS, LoRAMethod
from minitrain.finetuning.model import (
    adapt,
    adaptation_of,
    adapter_groups,
    find_layers,
    trainable_parameters,
)
from minitrain.finetuning.peft_files import load_adapter, save_adapter
from minitrain.memory.segments import recompute
from minitrain.model.attention.grouped_query import attention_naive
from minitrain.model.attention.mask import Mask
from minitrain.model.attention.tiled import tiled_attention
from minitrain.model.hub.load import hub_name, load_pretrained, save_pretrained
from minitrain.model.transformer import build, exchange_attention
from minitrain.optimizers.adamw import AdamW
from minitrain.quantization.formats.names import named
from minitrain.quantization.model import dequantize_model, quantize_model
from minitrain.training.loop import TrainConfig, _set_rate
from minitrain.training.state import TrainState

from ..model.peers import SMALL, random_peer, random_tokens
from .peft_peers import shaken

ADAPTERS = [name for name in METHODS if name != "full"]
MERGED = ["lora", "rslora", "lora+", "dora", "pissa", "ia3", "bitfit", "norm"]
BESIDE = ["houlsby", "parallel", "prefix", "p-tuning-v2", "prompt"]
NOT_NOTHING = ["prefix", "p-tuning-v2", "prompt"]  # learned tokens are read from the start


def fresh(dtype=torch.float64, config=SMALL):
    return build(config, dtype=dtype, seed=1)


def tokens(batch=2, length=9):
    torch.manual_seed(5)
    return random_tokens(SMALL, batch, length)


def backward(model):
    logits = model(tokens())
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens()[:, 1:].flatten())
    loss.backward()
    return loss


@pytest.mark.parametrize("method", ADAPTERS)
def test_only_the_adapter_has_gradients_and_state(method):
    model = fresh()
    before = {id(p): p.clone() for p in model.parameters()}
    adapt(model, method)
    backward(model)
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == (id(parameter) not in before), name
    optimizer = AdamW(adapter_groups(model, 1e-2))
    optimizer.step()
    trained, total = trainable_parameters(model)
    assert trained == sum(p.numel() for p in optimizer.state)
    assert total == trained + sum(p.numel() for p in before.values())
    for parameter in model.parameters():
        if id(parameter) in before:
            assert torch.equal(parameter, before[id(parameter)])


@pytest.mark.parametrize("method", ADAPTERS)
def test_it_begins_as_nothing_and_disabled_it_is_nothing(method):
    bare, model = fresh(), adapt(fresh(), method)
    want = bare(tokens())
    # PiSSA's two products cancel to the bit only where a product of equal numbers has equal bits
    is_nothing = (model(tokens()) - want).abs().max() < 1e-12
    assert is_nothing == (method not in NOT_NOTHING)
    shaken(model)
    assert (model(tokens()) - want).abs().max() > 1e-3
    with disabled(model):
        assert torch.equal(model(tokens()), want)
        with disabled(model):
            pass
        assert torch.equal(model(tokens()), want)
    assert (model(tokens()) - want).abs().max() > 1e-3
    assert model(tokens()).shape == want.shape
    assert torch.equal(unload(model)(tokens()), want)
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in bare.named_parameters()]


@pytest.mark.parametrize("method", MERGED)
def test_merged_equals_unmerged(method):
    for dtype, error in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        model = shaken(adapt(fresh(dtype, replace(SMALL, qkv_bias=True)), method))
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.data.normal_()
        want = model(tokens())
        merge(model)
        torch.testing.assert_close(model(tokens()), want, rtol=0, atol=error)
        assert not torch.equal(model(tokens()), want) or method in ("norm",)
        with disabled(model):
            bare = model(tokens())
        unmerge(model)
        assert torch.equal(model(tokens()), want)
        plain = merge_and_unload(model)
        assert adaptation_of(plain) is None and not adapted_layers(plain)
        torch.testing.assert_close(plain(tokens()), want, rtol=0, atol=error)
        assert (bare - want).abs().max() > 1e-3


def test_bfloat16_comes_back_bit_for_bit():
    model = shaken(adapt(fresh(torch.bfloat16), "lora"))
    layer, want = model.blocks[0].attention.q, model(tokens())
    weight = layer.base_layer.weight.clone()
    merge(model)
    assert layer.merged_layer.weight.dtype == torch.bfloat16
    unmerge(model)
    assert torch.equal(layer.base_layer.weight, weight) and torch.equal(model(tokens()), want)
    assert layer.adapter.lora_A.dtype == torch.float32 and want.dtype == torch.bfloat16


def test_a_merged_layer_is_rounded_once_and_leaves_its_base_alone():
    """Twice, the difference before the sum too, is another matrix."""
    torch.manual_seed(0)
    base, delta = nn.Linear(40, 30).bfloat16(), 0.01 * torch.randn(30, 40)
    before = base.weight.detach().clone()
    merged = merged_linear(base, delta)
    assert torch.equal(merged.weight, (before.float() + delta).bfloat16())
    assert not torch.equal(merged.weight, before + delta.bfloat16())
    assert torch.equal(merged.bias, base.bias) and torch.equal(base.weight, before)
    assert not any(p.requires_grad for p in merged.parameters())


@pytest.mark.parametrize("method", BESIDE)
def test_what_no_layer_computes_is_not_merged(method):
    model = shaken(adapt(fresh(), method))
    want = model(tokens())
    with pytest.raises(InputError, match="cannot be merged"):
        merge(model)
    with pytest.raises(InputError, match="cannot be merged"):
        merge_and_unload(model)
    assert torch.equal(model(tokens()), want)


def test_doras_lengths_are_constant_to_backward_and_new_each_step():
    torch.manual_seed(0)
    base, x = nn.Linear(6, 5, dtype=torch.float64), torch.randn(7, 6, dtype=torch.float64)
    model = adapt(nn.Sequential(base), "dora", rank=2, targets="0")
    adapter = shaken(model)[0].adapter
    model(x).square().sum().backward()
    own = (adapter.lora_A, adapter.lora_B, adapter.magnitude)
    a, b, m = (p.detach().requires_grad_() for p in own)
    direction = base.weight + adapter.scaling * (b @ a)
    length = direction.norm(dim=1)
    for lengths, same in ((length.detach(), True), (length, False)):
        y = x @ (m[:, None] * direction / lengths[:, None]).T + base.bias
        grads = torch.autograd.grad(y.square().sum(), (a, b, m), retain_graph=True)
        close = [torch.allclose(g, o.grad, rtol=1e-9) for g, o in zip(grads, own)]
        assert close == [same, same, True]


def test_dropout_is_on_the_adapters_way_alone():
    model, text = shaken(adapt(fresh(), "lora", dropout=0.5)).train(), tokens()
    with disabled(model):
        assert torch.equal(model(text), fresh()(text))
    assert not torch.equal(model(text), model(text))
    model.eval()
    assert torch.equal(model(text), model(text))


@pytest.mark.parametrize("method", ["prefix", "p-tuning-v2", "prompt"])
def test_packed_documents_each_read_the_learned_tokens(method):
    """Two documents in a row compute what each computes alone."""
    model = shaken(adapt(fresh(), method, tokens=3))
    text = tokens(1, 9)
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])
    alone = torch.cat((model(text[:, :4]), model(text[:, 4:])), dim=1)
    torch.testing.assert_close(model(text, documents), alone, rtol=0, atol=1e-12)
    assert (model(text)[:, 4:] - alone[:, 4:]).abs().max() > 1e-3


def test_other_attention_kernels():
    naive = exchange_attention(fresh(), attention_naive, fresh().look_around.args[1])
    want = shaken(adapt(fresh(), "p-tuning-v2"))(tokens())
    found = shaken(adapt(naive, "p-tuning-v2"))(tokens())
    torch.testing.assert_close(found, want, rtol=0, atol=1e-12)
    with pytest.raises(InputError, match="exchange the attention first"):
        exchange_attention(naive, attention_naive, fresh().look_around.args[1])
    tiled = adapt(exchange_attention(fresh(), tiled_attention, Mask.of), "prefix")
    with pytest.raises(InputError, match="mask of numbers"):
        tiled(tokens())


@pytest.mark.parametrize("method", ["dora", "prefix", "parallel"])
@pytest.mark.parametrize("how", ["selective", "full"])
def test_recomputed_activations_have_the_same_gradients(method, how):
    gradients = []
    for model in (fresh(), recompute(fresh(), how)):
        backward(shaken(adapt(model, method)))
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    for a, b in zip(*gradients):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_the_default_is_what_a_model_of_experts_has():
    model = adapt(fresh(config=replace(SMALL, experts=4)), "lora")
    assert {path.split(".")[-1] for path in adapted_layers(model)} == {"q", "k", "v", "o"}
    backward(model)
    with pytest.raises(InputError, match="no layer is called 'down'"):
        adapt(fresh(config=replace(SMALL, experts=4)), "ia3")


def test_a_model_of_transformers_by_either_name(tmp_path):
    peer = random_peer(SMALL, "llama")
    shaken(adapt(peer, "lora", targets=("q", "v_proj")))
    save_adapter(peer, tmp_path)
    ours = load_adapter(fresh(), tmp_path)
    assert len(adapted_layers(ours)) == 2 * SMALL.layers
    for path, layer in adapted_layers(ours).items():
        theirs = adapted_layers(peer)[hub_name(path)]
        assert torch.equal(layer.adapter.delta(), theirs.adapter.delta())
    assert len(adapted_layers(adapt(fresh(), "lora", targets="q_proj"))) == SMALL.layers


def quantized():
    """NF4 with double quantization, as QLoRA holds its base."""
    return quantize_model(fresh(), named("nf4-dq"))


@pytest.mark.parametrize("method", ["lora", "dora", "pissa", "ia3", "bitfit", "houlsby"])
def test_over_quantized_layers(method):
    """QLoRA (Dettmers et al., arXiv 2305.14314): gradients through the dequantization, and a merge
    into plain floats, since quantizing the sum anew would change it."""
    bases = (quantized(), dequantize_model(quantized()))
    model, peer = (shaken(adapt(base, method).double()) for base in bases)
    own = {name: t for name, t in model.state_dict().items() if ".adapter." in name}
    assert set(own) == set(own) & set(peer.state_dict())
    peer.load_state_dict(own, strict=False)
    bare = quantized()(tokens())
    assert math.isclose(backward(model).item(), backward(peer).item(), rel_tol=1e-12)
    theirs = dict(peer.named_parameters())
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for name, parameter in trained:
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-9, atol=1e-12)
    assert trained and all(p.requires_grad for p in model.parameters() if p.grad is not None)
    with disabled(model):
        assert torch.equal(model(tokens()), bare)
    want = model.float()(tokens())
    if method != "houlsby":
        merge(model)
        torch.testing.assert_close(model(tokens()), want, rtol=0, atol=1e-5)
        assert isinstance(model.blocks[0].attention.v.merged_layer, nn.Linear)


def test_a_layer_that_does_not_say_its_matrix_can_still_be_added_to():
    model = fresh()
    for path, layer in find_layers(model, ("q",)):
        model.set_submodule(path, Opaque(layer))
    adapt(model, "lora", targets="q")
    model(tokens())
    with pytest.raises(InputError, match="dequantize"):
        merge(model)
    with pytest.raises(InputError, match="dequantize"):
        adapt(unload(model), "dora", targets="q")


class Opaque(nn.Module):
    """Computes as a linear layer, and has no matrix to show."""

    def __init__(self, linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.product = linear.forward

    def forward(self, x):
        return self.product(x)


def test_an_embedding_that_was_the_head_becomes_its_own(tmp_path):
    tied = replace(SMALL, tied=True)
    model = shaken(adapt(fresh(config=tied), "lora", targets="embed,q"))
    want = model(tokens())
    merge_and_unload(model)
    torch.testing.assert_close(model(tokens()), want, rtol=0, atol=1e-12)
    assert not model.config.tied
    save_pretrained(model, tmp_path)
    torch.testing.assert_close(load_pretrained(tmp_path)[0](tokens()), want, rtol=0, atol=1e-12)
    kept = merge_and_unload(shaken(adapt(fresh(config=tied), "lora", targets="q")))
    assert kept.config.tied and kept.head.weight is kept.embed.weight


def test_lora_plus_has_two_rates_and_keeps_them():
    model = adapt(fresh(), "lora+", rank=2, targets="q,embed")
    groups = adapter_groups(model, 1e-3)
    names = {id(p): name for name, p in model.named_parameters()}
    for group in groups:
        fast = {"_B" in names[id(p)] for p in group["params"]}
        assert fast == {group["lr"] == 16e-3}
    bare = len(list(fresh().parameters()))
    assert sum(len(group["params"]) for group in groups) == len(names) - bare
    state = TrainState(model, AdamW(groups), None, step=10)
    lr = _set_rate(state, TrainConfig(steps=20), 20)
    assert {group["lr"] for group in state.optimizer.param_groups} == {lr, 16 * lr}
    assert {group["lr"] for group in adapter_groups(adapt(fresh(), "lora"), 1e-3)} == {1e-3}


@pytest.mark.parametrize(
    "call, words",
    [
        ({"method": "lorra"}, "did you mean 'lora'"),
        ({"method": "lora", "rnk": 4}, "did you mean 'rank'"),
        ({"method": "lora", "rank": 0}, "rank is 0"),
        ({"method": "lora", "rank": 2.5}, "rank is 2.5"),
        ({"method": "lora", "alpha": 0}, "alpha=0"),
        ({"method": "lora", "dropout": 1.0}, "dropout=1.0"),
        ({"method": "lora", "targets": ("q", "qq")}, "no layer is called 'qq'"),
        ({"method": "lora", "targets": "attention_norm"}, "no linear layer"),
        ({"method": "dora", "pissa": True}, "one of them"),
        ({"method": "norm", "targets": "q"}, "no norm"),
        ({"method": "pissa", "rank": 33}, "singular values"),
        ({"method": "prompt", "tokens": 0}, "tokens is 0"),
        ({"method": "full", "rank": 3}, "no options"),
        ({"method": LoRAMethod(), "rank": 3}, "options already"),
    ],
)
def test_one_sentence_for_what_cannot_be_and_nothing_is_changed(call, words):
    model = fresh()
    with pytest.raises(InputError, match=words):
        adapt(model, **call)
    assert adaptation_of(model) is None and not adapted_layers(model)
    assert all(p.requires_grad for p in model.parameters())


def test_what_is_in_the_way_of_an_adapter(tmp_path):
    model, full = adapt(fresh(), "lora"), adapt(fresh(), "full")
    for use, words in (
        (lambda: adapt(model, "ia3"), "adapted already"),
        (lambda: save_pretrained(model, tmp_path / "new"), "merge_and_unload"),
        (lambda: merge(fresh()), "nothing to merge"),
        (lambda: adapter_groups(fresh(), 1e-3), "no adapter"),
        (lambda: unload(full), "full fine-tuning"),
        (lambda: disabled(full).__enter__(), "full fine-tuning"),
        (lambda: adapt(nn.Sequential(nn.Linear(4, 8)), "prefix"), "slots of minitrain's"),
    ):
        with pytest.raises(InputError, match=words):
            use()
    assert not (tmp_path / "new").exists()
