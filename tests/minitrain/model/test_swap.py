"""Layers of other people's modules, exchanged for adapted, prepared and FP8 ones: all of them compute
through the new layers, or one sentence says which do not."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minitrain.errors import InputError
from minitrain.finetuning.layer import Adapted, adapted_layers
from minitrain.finetuning.merging import merge_and_unload, unload
from minitrain.finetuning.model import adapt
from minitrain.model.swap import linear_layers
from minitrain.precision.low_bit_linear import CURRENT, QuantizedLinear
from minitrain.precision.low_bit_linear import convert as fp8
from minitrain.quantization.formats.names import named
from minitrain.quantization.layers.fake import FakeQuantLinear, convert_qat, prepare_qat
from minitrain.quantization.layers.linear import QuantLinear

FORM = named("int4-g16")


def lora(model, keep=(), example=None):
    targets = [path for path in linear_layers(model) if path.split(".")[-1] not in keep]
    adapt(model, "lora", targets=targets, rank=2, example=example)
    with torch.no_grad():
        for layer in adapted_layers(model).values():
            layer.adapter.lora_B.normal_()
    return model


CHANGES = {
    "lora": lora,
    "qat": lambda model, **more: prepare_qat(model, FORM, **more),
    "fp8": lambda model, **more: fp8(model, CURRENT, **more),
}
all_changes = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


def x(*shape):
    torch.manual_seed(3)
    return torch.randn(*shape)


class Reader(nn.Module):
    """Multiplies by the weight of `read`, and calls `called`."""

    def __init__(self):
        super().__init__()
        self.called, self.read = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return F.linear(self.called(x), self.read.weight, self.read.bias)


class InEval(nn.Module):
    """Calls its layer in training, and reads it in evaluation, as torch's fused layers do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        return self.inner(x) if self.training else F.linear(x, self.inner.weight)


@all_changes
def test_a_layer_that_is_read_and_not_called_is_named(change):
    for model, path in ((Reader(), "^read: "), (InEval(), "^inner: .*in eval mode")):
        before, learns = model(x(2, 16)), [p.requires_grad for p in model.parameters()]
        with pytest.raises(InputError, match=path):
            change(model, example=x(2, 16))
        assert torch.equal(model(x(2, 16)), before)
        assert [p.requires_grad for p in model.parameters()] == learns
        assert {type(m) for m in model.children()} == {nn.Linear}
        change(model)
        with pytest.warns(UserWarning, match=path):
            for mode in (True, False):
                model.train(mode)(x(2, 16))


@all_changes
def test_all_called_is_no_word_and_leaves_no_trace(change):
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 16))
    model.eval()[0].train()
    state, inputs = copy.deepcopy(model.state_dict()), x(4, 16)
    drawn = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        change(model, example=inputs)
        assert change is lora or torch.equal(torch.get_rng_state(), drawn)  # which draws B here
        twin = copy.deepcopy(change(nn.Sequential(nn.Linear(16, 16))))
        for mode in (True, False):
            twin.train(mode)(x(4, 16))
    assert not model.training and model[0].training and not model[3].training
    assert torch.equal(model[1].running_mean, state["1.running_mean"])
    assert model[1].num_batches_tracked == 0
    for example in ((x(4, 16),), {"input": x(4, 16)}):
        change(nn.Sequential(nn.Linear(16, 16)), example=example)


def test_the_fused_encoder_layer_computes_through_the_new_layers():
    """In evaluation without gradients torch's own kernel reads all weights, and calls none."""

    def encoder():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, dropout=0.0)
        return nn.TransformerEncoder(layer, 2).eval()

    inputs, padding = x(2, 5, 32), torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    for name, change in CHANGES.items():
        model = encoder()
        with torch.no_grad():
            before = model(inputs, src_key_padding_mask=padding)[~padding]
        with pytest.raises(InputError, match=r"layers\.0\.self_attn\.out_proj is never called"):
            change(model)
        change(model, keep=("out_proj",), example=inputs)
        train = model.train()(inputs, src_key_padding_mask=padding)[~padding]
        with torch.no_grad():
            evaluated = model.eval()(inputs, src_key_padding_mask=padding)[~padding]
        assert (train - before).abs().max() > 1e-3, name
        torch.testing.assert_close(evaluated, train, rtol=1e-5, atol=1e-5)
        if name == "qat":
            convert_qat(model)
        elif name == "lora":
            merge_and_unload(model)
        with torch.no_grad():
            again = model(inputs, src_key_padding_mask=padding)[~padding]
        torch.testing.assert_close(again, train, rtol=1e-5, atol=1e-5)


@all_changes
def test_a_layer_under_two_names_is_changed_under_both(change):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(16, 16)
            self.again = nn.ModuleList([self.first])
            self.rest = nn.Linear(16, 16)

        def forward(self, x):
            return self.rest(self.again[0](self.first(x)))

    model = change(Twice(), example=x(2, 16))
    assert model.first is model.again[0] and type(model.first) is not nn.Linear
    if isinstance(model.first, Adapted):
        want = model(x(2, 16))
        twin = merge_and_unload(copy.deepcopy(model))
        assert twin.first is twin.again[0] and type(twin.first) is nn.Linear
        torch.testing.assert_close(twin(x(2, 16)), want, rtol=1e-4, atol=1e-4)
        unload(model)
        assert model.first is model.again[0] and type(model.first) is nn.Linear
    elif isinstance(model.first, FakeQuantLinear):
        want = model(x(2, 16))
        assert isinstance(convert_qat(model).again[0], QuantLinear)
        assert torch.equal(model(x(2, 16)), want)


@all_changes
def test_a_bare_layer_cannot_be_exchanged_in_place(change):
    with pytest.raises(InputError, match=r"nn\.Sequential\(layer\)|targets"):
        change(nn.Linear(16, 16))


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked():
    layer = nn.Linear(16, 16)
    layer.register_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize("change", ["qat", "fp8"])
@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Doubled(16, 16), "1 is a Doubled with a forward of its own"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)), "computes its weight"),
        (lambda: nn.LazyLinear(16), "before its first input"),
        (hooked, "has hooks"),
        (lambda: FakeQuantLinear(nn.Linear(16, 16), FORM), "1 is a FakeQuantLinear"),
        (lambda: QuantizedLinear(nn.Linear(16, 16), CURRENT), "1 is a QuantizedLinear"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_layer_that_would_lose_what_it_computes_is_refused(change, make, words):
    model = nn.Sequential(nn.Linear(16, 16), make())
    with pytest.raises(InputError, match=words):
        CHANGES[change](model)
    assert type(model[0]) is nn.Linear
    CHANGES[change](model, keep=("1",))
    assert type(model[0]) is not nn.Linear


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_lora_over_a_layer_with_a_forward_of_its_own_and_no_merge():
    for make in (Doubled, lambda *s: nn.utils.parametrizations.weight_norm(nn.Linear(*s))):
        torch.manual_seed(0)
        model = nn.Sequential(OrderedDict(layer=make(16, 16)))
        want = model(x(2, 16))
        lora(model, example=x(2, 16))
        adapter = model.layer.adapter
        added = x(2, 16) @ adapter.delta().T
        torch.testing.assert_close(model(x(2, 16)), want + added, rtol=1e-5, atol=1e-5)
        if make is Doubled:
            with pytest.raises(InputError, match="Doubled has a forward of its own"):
                merge_and_unload(model)
    with pytest.raises(InputError, match="before its first input"):
        adapt(nn.Sequential(nn.LazyLinear(16)), "lora", targets="0")


def test_heads_and_routers_stay_by_whatever_name():
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(16, 4)
            self.experts = nn.ModuleList([nn.Linear(16, 16)])

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = nn.Embedding(32, 16)
            self.mlp = nn.ModuleDict({"gate": nn.Linear(16, 16), "my_router": nn.Linear(16, 4)})
            self.moe, self.header = Mixture(), nn.Linear(16, 16)
            self.lm_head, self.decoder = nn.Linear(16, 32), nn.Linear(16, 32, bias=False)
            self.decoder.weight = self.embed_tokens.weight

    changed = {"mlp.gate", "moe.experts.0", "header"}
    assert set(linear_layers(Model(), keep=("head", "router"))) == changed
    assert set(linear_layers(Model(), ("head",))) == changed | {"moe.gate", "mlp.my_router"}
    fewer = changed - {"moe.experts.0"}
    assert set(linear_layers(Model(), ("head", "router", "moe.experts"))) == fewer
    with pytest.raises(InputError, match="no layer to keep is called 'haeder': did you mean 'he"):
        linear_layers(Model(), ("haeder",))


@all_changes
def test_a_changed_model_is_copied_pickled_and_loaded(change, tmp_path):
    model = change(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)))
    torch.save(model, tmp_path / "model.pt")
    back = torch.load(tmp_path / "model.pt", weights_only=False)
    twin = copy.deepcopy(model)
    twin.load_state_dict(model.state_dict())
    for other in (back, twin):
        assert torch.equal(other(x(2, 16)), model(x(2, 16)))
        other.eval()(x(2, 16))
