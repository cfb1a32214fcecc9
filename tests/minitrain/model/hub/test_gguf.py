"""GGUF files, made here as llama.cpp's converter makes them: the model they came from, again."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from minitrain.data.assets.fetch import is_cached
from minitrain.data.tokenizer import END, train_tokenizer
from minitrain.errors import InputError
from minitrain.inference.sampling import generate
from minitrain.model.hub import gguf as gguf_file
from minitrain.model.hub.load import find_gguf, load_pretrained, save_pretrained
from minitrain.model.transformer import build
from minitrain.paths import cache_dir

from ..peers import SMALL, peer_config, random_tokens

BLOCKS = {"hidden_size": 64, "ffn_size": 96, "expert_ffn_size": 96}  # rows of whole blocks of 32
WIDE = replace(SMALL, vocab_size=300, **BLOCKS)
TEXT = ["17 quick foxes jump over 18 lazy dogs."] * 3
HUB_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "mlp.": "ffn_",
    "model.layers": "blk",
    "_proj": "",
}


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's convert_hf_to_gguf.py does to q and k."""
    shape = (heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape)


def converted(name: str) -> str:
    for theirs, new in HUB_NAMES.items():
        name = name.replace(theirs, new)
    return name


def write_gguf(path: Path, config, kind: Kind, **more) -> LlamaForCausalLM:
    """A random Llama's file, its matrices as `kind` -> the same Llama with the rounded weights."""
    torch.manual_seed(0)
    peer = LlamaForCausalLM(peer_config(config, "llama")).eval()
    writer = gguf.GGUFWriter(path, "llama")
    add_settings(writer, config)
    for key, value in more.items():
        kind_of = gguf.GGUFValueType.get_type(value)
        item = gguf.GGUFValueType.get_type(value[0]) if isinstance(value, list) else None
        writer.kv_data[0][key] = gguf.GGUFValue(value, kind_of, item)
    for name, parameter in peer.named_parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.05)
        own = kind if parameter.dim() == 2 else Kind.F32
        stored = gguf.quantize(parameter.detach().numpy(), own)
        parameter.data = torch.tensor(gguf.dequantize(stored, own))
        for part, heads in ((".q_proj", config.heads), (".k_proj", config.kv_heads)):
            stored = permuted(stored, heads) if part in name else stored
        writer.add_tensor(converted(name), stored, raw_dtype=own)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file()
    writer.close()
    return peer


def vocabulary(config) -> Tokenizer:
    """Byte pairs of SmolLM2's kind: a digit is a word of its own."""
    backend = train_tokenizer(TEXT, config.vocab_size).backend
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    return backend


def add_settings(writer: gguf.GGUFWriter, config) -> None:
    writer.add_block_count(config.layers)
    writer.add_context_length(config.max_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.ffn_size)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_size)
    writer.add_vocab_size(config.vocab_size)
    backend = vocabulary(config)
    tokens = [backend.id_to_token(i) or f"<unused{i}>" for i in range(config.vocab_size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    control = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control[token != END] for token in tokens])
    merges = json.loads(backend.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_1])
def test_computes_what_the_model_it_came_from_computes(tmp_path, kind, tied):
    path = tmp_path / "model.gguf"
    config = replace(WIDE, tied=tied)
    peer = write_gguf(path, config, kind)
    model, text = load_pretrained(path)
    assert model.config == replace(config, norm_eps=model.config.norm_eps)  # stored in float32
    assert model.config.norm_eps == pytest.approx(config.norm_eps)
    tokens = random_tokens(config, 2, 17)
    torch.testing.assert_close(model(tokens), peer(tokens).logits, rtol=0, atol=1e-5)
    assert (text.bos_id, text.eos_ids) == (0, (0,))


def test_a_folder_of_the_hub_is_loaded_without_the_reader_of_gguf(tmp_path, monkeypatch):
    save_pretrained(build(WIDE), tmp_path)
    monkeypatch.setitem(sys.modules, "minitrain.model.hub.gguf", None)  # an import would raise
    model, _ = load_pretrained(tmp_path)
    assert model.config.vocab_size == WIDE.vocab_size


def test_in_hugging_face_form_it_is_the_same_model_and_the_same_text(tmp_path):
    peer = write_gguf(tmp_path / "model.gguf", WIDE, Kind.Q8_0)
    model, text = load_pretrained(tmp_path)  # the folder of one such file
    save_pretrained(model, tmp_path / "hub", text=text)
    shutil.copy(tmp_path / "model.gguf", tmp_path / "hub")  # as some repositories have it beside
    assert find_gguf(tmp_path / "hub") is None
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "hub")
    tokens = random_tokens(WIDE, 1, 9)
    torch.testing.assert_close(again(tokens).logits, peer(tokens).logits, rtol=0, atol=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hub")
    for line in ("17 quick foxes", " jump  over\n1800 Größen"):
        assert tokenizer(line)["input_ids"] == vocabulary(WIDE).encode(line).ids
        assert tokenizer.decode(tokenizer(line)["input_ids"]) == line
    assert tokenizer.tokenize("17 lazy")[:2] == ["1", "7"]
    assert tokenizer(END + "a")["input_ids"][0] == tokenizer.eos_token_id == 0


def swapped(old: bytes, new: bytes):
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new, 1))


FAULTS = {
    "no GGUF": (lambda p: p.write_bytes(b"<!DOCTYPE html>" * 9), "cannot be read as GGUF"),
    "empty": (lambda p: p.write_bytes(b""), "cannot be read as GGUF"),
    "cut short": (lambda p: p.write_bytes(p.read_bytes()[:-3000]), "cannot be read as GGUF"),
    "another family": (swapped(b"llama", b"mamba"), "type 'mamba'; only a plain 'llama'"),
    "another name": (swapped(b"blk.2.attn_q", b"blk.7.attn_q"), "lacks blk.2.attn_q.weight"),
}


@pytest.mark.parametrize("break_it, words", FAULTS.values(), ids=FAULTS)
def test_a_broken_file_is_refused_in_one_sentence(tmp_path, break_it, words):
    path = tmp_path / "model.gguf"
    write_gguf(path, WIDE, Kind.F32)
    break_it(path)
    with pytest.raises(InputError, match=words) as error:
        load_pretrained(path)
    assert "\n" not in str(error.value)


LINEAR = {
    "by type and factor": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    "by its factor": {"llama.rope.scaling.factor": 4.0},
    "by its old name": {"llama.rope.scale_linear": 4.0},
}


@pytest.mark.parametrize("settings", LINEAR.values(), ids=LINEAR)
def test_a_linear_rope_is_scaled(settings, tmp_path):
    peer = write_gguf(tmp_path / "m.gguf", WIDE, Kind.F32, **settings)
    linear = {"rope_type": "linear", "factor": 4.0, "rope_theta": WIDE.rope_theta}
    config = peer_config(WIDE, "llama")
    config.rope_parameters = linear
    scaled = LlamaForCausalLM(config).eval()
    scaled.load_state_dict(peer.state_dict())
    tokens = random_tokens(WIDE, 2, 33)
    model, _ = load_pretrained(tmp_path / "m.gguf")
    torch.testing.assert_close(model(tokens), scaled(tokens).logits, rtol=0, atol=1e-5)
    assert (model(tokens) - peer(tokens).logits).abs().max() > 1e-2


NEUTRAL = {
    "llama.rope.scaling.type": "none",
    "llama.rope.scaling.factor": 1.0,
    "llama.rope.scaling.attn_factor": 1.0,
    "llama.rope.scaling.original_context_length": 64,
    "llama.rope.scaling.finetuned": True,
    "llama.attention.causal": True,
    "llama.attention.key_length": 8,
    "llama.attention.value_length": 8,
    "llama.rope.dimension_count": 8,
    "llama.attention.sliding_window": 0,
    "llama.expert_count": 0,
    "llama.vocab_size": 300,
    "llama.tensor_data_layout": "Meta AI original pth",
    "general.type": "model",
    "general.name": "mine",
    "split.count": 0,
    "quantize.imatrix.file": "x.dat",
    "tokenizer.ggml.add_space_prefix": True,
    "tokenizer.ggml.fim_pre_token_id": 3,
}
OTHERS = {
    "general.architecture": "mamba",
    "general.type": "adapter",
    "split.count": 2,
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.attn_factor": 2.0,
    "llama.rope.dimension_count": 4,
    "llama.attention.key_length": 4,
    "llama.attention.value_length": 4,
    "llama.attention.causal": False,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 4,
    "llama.attention.layer_norm_rms_epsilon": 0.0,
    "llama.block_count": 2,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.context_length": 0,
    "llama.rope.freq_base": 0.0,
    "tokenizer.ggml.tokens": ["a"] * 301,
}


def all_keys() -> set[str]:
    """All that the library knows for a language model, and those of old files."""
    groups = (gguf.Keys.General, gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.Rope)
    groups += (gguf.Keys.Split, gguf.Keys.Tokenizer, gguf.Keys.Adapter)
    names = [value for group in groups for key, value in vars(group).items() if key.isupper()]
    fields = {"arch": "llama", "id": 0, "dense": "d", "name": "x"}
    return {name.format(**fields) for name in names if "bid" not in name}


SIZES = {"embedding_length": 64, "attention.head_count": 8, "attention.key_length": 8}


@pytest.mark.parametrize("name", sorted(all_keys() | NEUTRAL.keys()))
def test_every_key_is_read_or_refused_or_warned_of_or_a_note_on_the_file(name):
    space, _, own = name.partition(".")
    if space == "tokenizer":  # what no Llama's vocabulary has is warned of
        odd = name.startswith("tokenizer.ggml.") and not gguf_file._is_known(name.split(".", 2)[2])
        assert odd == (name == "tokenizer.ggml.add_sep_token")
    elif space != "llama":
        assert space in ("general", "split", "quantize", "adapter")
    elif own in gguf_file.READ or own in gguf_file.IDLE:
        gguf_file._check_settings("x", {own: 3, **SIZES})
    else:
        with pytest.raises(InputError, match=f"x has {name} = 3, which is not computed"):
            gguf_file._check_settings("x", SIZES | {own: 3})
        gguf_file._check_settings("x", SIZES | {own: NEUTRAL.get(name, False)})


@pytest.mark.filterwarnings("error")
def test_neutral_settings_change_nothing(tmp_path):
    peer = write_gguf(tmp_path / "m.gguf", WIDE, Kind.F32, **NEUTRAL)
    model, _ = load_pretrained(tmp_path / "m.gguf")
    tokens = random_tokens(WIDE, 2, 9)
    torch.testing.assert_close(model(tokens), peer(tokens).logits, rtol=0, atol=1e-5)
    assert model.config.rope_scaling is None


@pytest.mark.parametrize("name", OTHERS)
def test_a_setting_that_is_not_computed_is_refused_by_its_name(name, tmp_path):
    write_gguf(tmp_path / "m.gguf", WIDE, Kind.F32, **{name: OTHERS[name]})
    with pytest.raises(InputError) as error:
        load_pretrained(tmp_path / "m.gguf")
    assert "\n" not in str(error.value)


def test_another_vocabulary_stays_behind_with_a_warning_and_the_model_is_read(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, WIDE, Kind.F32, **{"tokenizer.ggml.add_sep_token": True})
    with pytest.warns(UserWarning, match=r"sets tokenizer.ggml.add_sep_token: nothing"):
        load_pretrained(path)
    ends = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 0}
    write_gguf(path, WIDE, Kind.F32, **ends)
    assert load_pretrained(path)[1].eos_ids == (0, 5), "a turn's end is an end too"
    swapped(b"smollm", b"bloom!")(path)
    with pytest.warns(UserWarning, match=r"type 'bloom!' \(tokenizer.ggml.model and .pre\)"):
        assert load_pretrained(path)[1].tokenizer == {}


# Text --------------------------------------------------------------------------------------------


def read_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_str(load_pretrained(path)[1].tokenizer["tokenizer.json"].decode())


def test_a_users_token_is_one_token_in_any_text_and_stays_in_it(tmp_path):
    backend = vocabulary(WIDE)
    kinds = [gguf.TokenType.NORMAL] * WIDE.vocab_size
    tokens = [backend.id_to_token(i) or f"<unused{i}>" for i in range(WIDE.vocab_size)]
    tokens[-2:], kinds[-2:] = ["<think>", "<tool>"], [gguf.TokenType.USER_DEFINED] * 2
    path = tmp_path / "m.gguf"
    lists = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": list(map(int, kinds))}
    write_gguf(path, WIDE, Kind.F32, **lists)
    tokenizer = read_tokenizer(path)
    ids = tokenizer.encode("a<think> fox<tool>").ids
    assert ids.count(WIDE.vocab_size - 2) == 1 and ids[-1] == WIDE.vocab_size - 1
    assert tokenizer.decode(ids) == "a<think> fox<tool>"


@pytest.mark.parametrize("bos, eos", [(None, None), (False, True), (True, None), (True, True)])
def test_texts_begin_and_end_as_the_file_says(bos, eos, tmp_path):
    both = {"tokenizer.ggml.add_bos_token": bos, "tokenizer.ggml.add_eos_token": eos}
    more = {key: value for key, value in both.items() if value is not None}
    write_gguf(tmp_path / "m.gguf", WIDE, Kind.F32, **{"tokenizer.ggml.bos_token_id": 1}, **more)
    plain = vocabulary(WIDE).encode("17 quick foxes").ids
    want = [1] * bool(bos) + plain + [0] * bool(eos)
    assert read_tokenizer(tmp_path / "m.gguf").encode("17 quick foxes").ids == want
    _, text = load_pretrained(tmp_path / "m.gguf")
    for name, content in text.tokenizer.items():
        (tmp_path / name).write_bytes(content)
    again = AutoTokenizer.from_pretrained(tmp_path, model_type="llama")
    assert again("17 quick foxes")["input_ids"] == want


@pytest.mark.skipif(
    not is_cached("smollm2-135m-instruct"), reason="python -m minitrain assets fetches it"
)
def test_smollm2_answers(tmp_path):
    folder = cache_dir() / "assets" / "smollm2-135m-instruct"
    model, text = load_pretrained(folder)
    for name, content in text.tokenizer.items():
        (tmp_path / name).write_bytes(content)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, model_type="llama")
    question = [{"role": "user", "content": "What is the capital of France? In one word."}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True)["input_ids"]
    answer = generate(model, prompt, 12, temperature=0, end_token=text.eos_ids[0])
    assert "Paris" in tokenizer.decode(answer)
    assert find_gguf(folder).suffix == ".gguf"
