from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from minitrain.errors import InputError
from minitrain.model.config import RopeScaling
from minitrain.model.hub.load import load_pretrained, save_pretrained
from minitrain.model.hub.text import TextFiles
from minitrain.model.transformer import build

from ..peers import CLASSES, SMALL, exact, random_peer, random_tokens

EXACT = {"rtol": 0, "atol": 1e-10}
SCALED = RopeScaling(factor=4.0, original_length=16)
FAMILIES = {
    "llama": ("llama", SMALL),
    "llama 3.1": ("llama", replace(SMALL, rope_scaling=SCALED, head_size=12, tied=True)),
    "mistral": ("mistral", replace(SMALL, window=5)),
    "qwen2": ("qwen2", replace(SMALL, qkv_bias=True, tied=True)),
    "qwen2 with a window": ("qwen2", replace(SMALL, qkv_bias=True, window=4)),
    "mixtral": ("mixtral", replace(SMALL, experts=5, experts_per_token=3, window=4)),
}
each_family = pytest.mark.parametrize("family, config", FAMILIES.values(), ids=FAMILIES)
each_size = pytest.mark.parametrize("shard", [10**9, 30_000], ids=["one file", "sharded"])


@each_family
@each_size
def test_reads_what_transformers_writes(family, config, shard, tmp_path):
    torch.manual_seed(0)
    peer = random_peer(config, family, bos_token_id=3, eos_token_id=[4, 5])
    peer.save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == 30_000)
    model, text = load_pretrained(tmp_path)
    assert model.config == config
    assert (text.bos_id, text.eos_ids, text.tokenizer) == (3, (4, 5), {})
    tokens = random_tokens(config, 2, 11)
    torch.testing.assert_close(model(tokens), exact(peer)(tokens).logits, **EXACT)


@each_family
@each_size
def test_transformers_reads_what_it_writes(family, config, shard, tmp_path):
    model = build(config, dtype=torch.float64, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    save_pretrained(model, tmp_path, family, TextFiles(bos_id=7, eos_ids=(8,)), shard_bytes=shard)
    peer = CLASSES[family][1].from_pretrained(tmp_path, dtype=torch.float64)
    assert peer.dtype == torch.float64
    assert (peer.config.bos_token_id, peer.generation_config.eos_token_id) == (7, 8)
    tokens = random_tokens(config, 2, 11)
    torch.testing.assert_close(model(tokens), exact(peer)(tokens).logits, **EXACT)


@each_family
def test_there_and_back_is_bitwise_the_same(family, config, tmp_path):
    text = TextFiles({"tokenizer.json": b"{}"}, bos_id=None, eos_ids=(1, 2))
    model = build(config, dtype=torch.bfloat16)
    save_pretrained(model, tmp_path / "out", family, text)
    back, found = load_pretrained(tmp_path / "out")
    assert back.config == config and found.eos_ids == (1, 2) and found.bos_id is None
    assert found.tokenizer == {"tokenizer.json": b"{}"}
    for (name, a), b in zip(model.named_parameters(), back.parameters()):
        assert b.dtype == torch.bfloat16 and torch.equal(a, b), name


def test_a_smaller_checkpoint_leaves_nothing_of_the_larger_before_it(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    save_pretrained(build(SMALL), tmp_path, shard_bytes=20_000)
    save_pretrained(build(SMALL, seed=5), tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"notes.txt", "config.json", "generation_config.json", "model.safetensors"}
    want = build(SMALL, seed=5).embed.weight
    assert torch.equal(load_pretrained(tmp_path)[0].embed.weight, want)


def test_config_of_transformers_4_is_read(tmp_path):
    """rope_theta and rope_scaling at the top, as Llama 3.1's own config.json has them."""
    config = replace(SMALL, rope_scaling=SCALED)
    save_pretrained(build(config), tmp_path)
    settings(rope_parameters=None)(tmp_path)
    tensors(model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(4))(tmp_path)
    model, _ = load_pretrained(tmp_path, dtype=torch.float64)
    assert model.config == config and model.embed.weight.dtype == torch.float64


# What a person can get wrong -----------------------------------------------------------------


def settings(**changes):
    """A fault: other values in config.json; None removes a key."""

    def edit(folder):
        path = folder / "config.json"
        raw = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({name: v for name, v in raw.items() if v is not None}))

    return edit


def written(name, content: bytes):
    return lambda folder: (folder / name).write_bytes(content)


def tensors(**changes):
    """A fault: other tensors in the file; None removes one. `__` stands for a dot."""

    def edit(folder):
        path = folder / FILE
        stored = load_file(path) | {name.replace("__", "."): v for name, v in changes.items()}
        save_file({name: v for name, v in stored.items() if v is not None}, path)

    return edit


def truncated(folder):
    path = folder / FILE
    path.write_bytes(path.read_bytes()[:-100])


def index(**content):
    def edit(folder):
        (folder / FILE).rename(folder / "part.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))

    return edit


NORM, FILE = "model.norm.weight", "model.safetensors"
FAULTS = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json cannot be read"),
    "config is not JSON": (written("config.json", b"\xff\xfe\x00"), "is not JSON"),
    "unknown family": (settings(model_type="mamba"), "type 'mamba'; those that can be read are"),
    "size missing": (settings(hidden_size=None), "does not give hidden_size"),
    "size impossible": (settings(num_key_value_heads=3), "cannot be built: 4 heads cannot share 3"),
    "no numbers": (settings(rope_parameters={"rope_type": "llama3"}), "does not give factor, low"),
    "no weights": (lambda f: (f / FILE).unlink(), "holds no weights; it needs"),
    "pickle": (lambda f: (f / FILE).rename(f / "pytorch_model.bin"), "only pytorch_model.bin, a"),
    "cut short": (truncated, "model.safetensors is damaged"),
    "shard missing": (index(weight_map={NORM: "lost.safetensors"}), "lost.safetensors is missing"),
    "index without a map": (index(), "has no weight_map"),
    "index that leads out": (index(weight_map={NORM: "../x.safetensors"}), "no weight_map of file"),
    "a weight missing": (
        tensors(model__norm__weight=None),
        "lacks weights .* asks for: model.norm",
    ),
    "another size": (settings(intermediate_size=44), r"weight is \[40, 32\], .* and 6 more"),
    "fewer layers": (settings(num_hidden_layers=2), "no place in a model like it: model.layers.2"),
    "a weight too many": (
        tensors(model__layers__0__self_attn__q_norm__weight=torch.ones(8)),
        "no place in a model like it: model.layers.0.self_attn.q_norm.weight",
    ),
    "integers": (
        tensors(model__layers__1__mlp__gate_proj__weight=torch.ones(40, 32, dtype=torch.int8)),
        "is quantized, take the original: model.layers.1.mlp.gate_proj.weight is I8",
    ),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    save_pretrained(build(SMALL), folder)
    return folder


@pytest.mark.parametrize("break_it, words", FAULTS.values(), ids=FAULTS)
def test_a_broken_checkpoint_is_refused_in_one_sentence(break_it, words, good, tmp_path):
    folder = tmp_path / "checkpoint"
    shutil.copytree(good, folder)
    load_pretrained(folder)
    break_it(folder)
    with pytest.raises(InputError, match=words) as error:
        load_pretrained(folder)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="is not a folder: give one that holds"):
        load_pretrained(good / "config.json")


@pytest.mark.parametrize(
    "change, family, words",
    [
        ({}, "gpt2", "no family 'gpt2': llama, mistral, qwen2, mixtral can be written"),
        ({"qkv_bias": True}, "llama", "has q, k and v biases, unlike llama: save as qwen2"),
        ({}, "qwen2", "lacks q, k and v biases, unlike qwen2: save as llama or mistral"),
        ({}, "mixtral", "has no experts, unlike mixtral: save as llama or mistral"),
        ({"experts": 4}, "llama", "has 4 experts, unlike llama: save as mixtral"),
        ({"experts": 4, "experts_per_token": 1}, None, "an only expert with 1, .* cannot be saved"),
        ({"experts": 4, "shared_experts": 1}, None, "has shared experts.* and no family of llama"),
    ],
)
def test_a_family_that_cannot_hold_the_model_is_refused(change, family, words, tmp_path):
    with pytest.raises(InputError, match=words):
        save_pretrained(build(replace(SMALL, **change)), tmp_path / "out", family)
    assert not (tmp_path / "out").exists()


def test_a_save_that_fails_leaves_the_old_checkpoint_whole(tmp_path):
    save_pretrained(build(SMALL), tmp_path)
    lost = TextFiles({"no-folder/tokenizer.json": b"{}"})
    with pytest.raises(InputError, match="cannot be written"):
        save_pretrained(build(SMALL, seed=9), tmp_path, text=lost)
    model, _ = load_pretrained(tmp_path)
    assert torch.equal(model.embed.weight, build(SMALL).embed.weight)
    assert not list(tmp_path.glob(".new-*"))
    with pytest.raises(InputError, match="cannot be written"):
        save_pretrained(build(SMALL), tmp_path / "config.json")
