from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from minitrain.errors import InputError
from minitrain.model.hub.load import load_pretrained, save_pretrained
from minitrain.model.hub.text import TextFiles
from minitrain.quantization.folder import load_quantized, save_quantized
from minitrain.quantization.formats.names import named
from minitrain.quantization.layers.fake import convert_qat, prepare_qat
from minitrain.quantization.layers.packed_kernels import accelerate
from minitrain.quantization.methods.method import METHODS, W8A8_METHODS
from minitrain.quantization.methods.rotation import rotate
from minitrain.quantization.model import quantize_model

from .toys import calibration, fresh, tokens

FORMATS = ["int8", "int4z-g32", "int3", "nf4-dq", "fp8", "mxfp4", "nvfp4"]
TEXT = TextFiles({"tokenizer.json": b"{}"}, 1, (2, 3))


def bits(tensor):
    return tensor.flatten().view(torch.uint8)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_loads_again_bit_for_bit(name, dtype, tmp_path):
    model = quantize_model(fresh(qkv_bias=True), named(name)).to(dtype)
    save_quantized(model, tmp_path / "out", TEXT)
    again, text = load_quantized(tmp_path / "out")
    assert text == TEXT and again.config == model.config
    state, loaded = model.state_dict(), again.state_dict()
    assert state.keys() == loaded.keys()
    for key, value in state.items():
        assert value.dtype == loaded[key].dtype
        assert torch.equal(bits(value), bits(loaded[key])), key
    assert torch.equal(again(tokens()), model(tokens()))


OTHERS = {
    "tied": lambda: quantize_model(fresh(tied=True), named("int4")),
    "windowed": lambda: quantize_model(fresh(kv_heads=2, window=8), named("int4")),
    "rotated": lambda: quantize_model(rotate(fresh(tied=True)), named("int8")),
    **{
        method: lambda method=method: quantize_model(
            fresh(vocab_size=320), named("int8"), METHODS[method], calibration()
        )
        for method in W8A8_METHODS
    },
}


@pytest.mark.parametrize("name", OTHERS)
def test_ties_windows_rotations_and_activations_of_8_bits_come_back(name, tmp_path):
    model = OTHERS[name]()
    save_quantized(model, tmp_path)
    again, _ = load_quantized(tmp_path)
    assert (again.head.weight is again.embed.weight) == model.config.tied
    assert torch.equal(again(tokens()), model(tokens()))
    settings = [vars(each.blocks[0].mlp.up).get("settings") for each in (again, model)]
    assert settings[0] == settings[1]


def test_the_files_bytes_are_the_models(tmp_path):
    model = fresh()
    save_pretrained(model, tmp_path / "float")
    quantize_model(model, named("int4"))
    save_quantized(model, tmp_path / "few")
    sizes = [(tmp_path / n / "model.safetensors").stat().st_size for n in ("float", "few")]
    held = sum(t.nbytes for t in model.state_dict().values())
    assert held < sizes[1] < held + 20_000 < sizes[0]  # 20 kB: the list of names


def test_others_refuse_the_folder(tmp_path):
    save_quantized(quantize_model(fresh(), named("int4")), tmp_path)
    with pytest.raises(InputError, match="of type 'minitrain-quantized'"):
        load_pretrained(tmp_path)
    transformers = pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="minitrain-quantized"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_what_cannot_be_saved_is_refused(tmp_path):
    with pytest.raises(InputError, match="save_pretrained"):
        save_quantized(fresh(), tmp_path)
    with pytest.raises(InputError, match="Int8PackedLinear"):
        save_quantized(accelerate(quantize_model(fresh(), named("int8"))), tmp_path)
    mixed = quantize_model(fresh(), {"blocks.0.mlp.up": named("int8")})
    prepare_qat(mixed, named("int8"))
    with pytest.raises(InputError, match="FakeQuantLinear"):
        save_quantized(mixed, tmp_path)
    save_quantized(convert_qat(mixed), tmp_path)


UP = "model.layers.0.mlp.up_proj.codes"
DAMAGE = {  # what becomes of the tensors, and what is said
    "missing": (lambda t: t.pop(UP), rf"do not fit together, {UP}"),
    "spare": (lambda t: t.update(more=torch.ones(1)), "do not fit together, more"),
    "short": (lambda t: t.update({UP: t[UP][:-1].clone()}), r"mlp.up.codes in .* is \(\d+,\)"),
    "float": (
        lambda t: t.update({"model.norm.weight": torch.ones(3)}),
        r"norm.weight in .* is \(3,\)",
    ),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_noticed(how, tmp_path):
    save_quantized(quantize_model(fresh(), named("int4")), tmp_path)
    change, answer = DAMAGE[how]
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=answer):
        load_quantized(tmp_path)


def test_other_formats_cut_files_and_float_models_are_named(tmp_path):
    save_quantized(quantize_model(fresh(), named("int4")), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["layers"]["blocks.0.mlp.up"]["format"] = "int3-g64"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"blocks.0.mlp.up.codes in .* config.json means"):
        load_quantized(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="damaged"):
        load_quantized(tmp_path)
    save_pretrained(fresh(), tmp_path / "float")
    with pytest.raises(InputError, match="load a float model with load_pretrained"):
        load_quantized(tmp_path / "float")
