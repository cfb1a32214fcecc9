"""Every key of a config.json: read, refused unless it is neutral, idle, or warned of."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from minitrain.errors import InputError
from minitrain.model.config import RopeScaling
from minitrain.model.hub.config import ARCHITECTURES, DEFAULTS, IDLE, NEUTRAL, READ, config_of
from minitrain.model.hub.load import load_pretrained
from minitrain.model.hub.text import read_text_files

from ..peers import SMALL, peer_config, random_peer, random_tokens

CONFIGS = {
    "llama": SMALL,
    "mistral": replace(SMALL, window=5),
    "qwen2": replace(SMALL, qkv_bias=True, window=4),
    "mixtral": replace(SMALL, experts=4),
}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 16
# A value that means another model or text than that of `raw_config`, for each key that is read.
OTHERS = {
    "model_type": "mamba",
    "vocab_size": 62,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 4,
    "intermediate_size": 44,
    "head_dim": 12,
    "max_position_embeddings": 99,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_theta": 77.0},
    "rope_scaling": {"type": "linear", "factor": 2.0},
    "tie_word_embeddings": True,
    "layer_types": ["linear_attention"] * 3,
    "sliding_window": 3,
    "max_window_layers": 1,
    "num_local_experts": 5,
    "num_experts_per_tok": 3,
    "bos_token_id": 7,
    "eos_token_id": [8, 9],
}
# What a configuration of transformers 4 says besides, when it writes all that it knows.
OLD = """
    torchscript use_bfloat16 tf_legacy_loss pruned_heads is_decoder cross_attention_hidden_size
    add_cross_attention tie_encoder_decoder finetuning_task task_specific_params torch_dtype
    tokenizer_class prefix sep_token_id decoder_start_token_id max_length min_length do_sample
    early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p
    repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size
    bad_words_ids num_return_sequences output_scores return_dict_in_generate forced_bos_token_id
    forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens
    begin_suppress_tokens rope_theta rope_scaling attention_bias mlp_bias pretraining_tp
""".split()  # noqa: SIM905
each_family = pytest.mark.parametrize("family", CONFIGS)


def raw_config(family: str, **more) -> dict:
    raw = json.loads(peer_config(CONFIGS[family], family, **more).to_json_string(use_diff=False))
    raw["architectures"] = [ARCHITECTURES[family]]
    raw.pop("layer_types", None)
    return raw


def is_read(family: str, key: str) -> bool:
    return key in READ or key in DEFAULTS[family]


@each_family
def test_every_key_is_read_or_refused_or_idle_or_warned_of(family, tmp_path):
    path = tmp_path / "config.json"
    raw = raw_config(family)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = config_of(raw, path)
    assert config == CONFIGS[family]
    for key in sorted({*raw, *OLD, *READ, *DEFAULTS[family], *NEUTRAL, *IDLE}):
        if is_read(family, key):
            check_read(family, raw, key, tmp_path)
        elif key in NEUTRAL or key == "architectures":
            with pytest.raises(InputError, match=f" {key} = "):
                config_of({**raw, key: 0.625}, path)
            assert config_of(raw | {key: NEUTRAL.get(key, (None,))[0]}, path) == config
        elif key in IDLE or key.startswith("_"):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert config_of({**raw, key: 0.625}, path) == config
        else:
            with pytest.warns(UserWarning, match=f"sets {key}: nothing here reads that"):
                assert config_of({**raw, key: 0.625}, path) == config


def check_read(family, raw, key, folder):
    """Another value gives another model or another text, or is refused."""
    other = OTHERS.get(key)
    if key == "rope_theta":
        raw, other = raw | {"rope_parameters": None}, 77.0
    if key == "use_sliding_window":
        other = not raw.get(key, raw.get("sliding_window") is not None)
    if key == "max_window_layers" and family != "qwen2":
        return
    try:
        changed = config_of(raw | {key: other}, folder / "config.json")
    except InputError:
        return
    (folder / "config.json").write_text(json.dumps(raw))
    before = read_text_files(folder)
    (folder / "config.json").write_text(json.dumps(raw | {key: other}))
    assert (changed, read_text_files(folder)) != (CONFIGS[family], before), key


@each_family
def test_unknown_keys_are_named_in_one_warning(family, tmp_path):
    odd = {"unsloth_fixed": True, "my_scale": 3.0, "nothing": None, "off": False, "_private": 1}
    with pytest.warns(UserWarning) as said:
        assert config_of(raw_config(family) | odd, tmp_path) == CONFIGS[family]
    assert len(said) == 1 and "sets unsloth_fixed, my_scale: nothing" in str(said[0].message)


# The same as transformers -----------------------------------------------------------------------


def checkpoint(folder, family="llama", config=None, change=None, weights=None):
    torch.manual_seed(0)
    random_peer(config or CONFIGS[family], family).float().save_pretrained(folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, **(change or {})}))
    if weights:
        stored = load_file(folder / "model.safetensors")
        weights(stored)
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return folder


def same_as_transformers(folder):
    """Whether the logits are; `transformers` reads the folder itself."""
    tokens = random_tokens(SMALL, 2, 40)
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()(tokens).logits
    model, _ = load_pretrained(folder)
    torch.testing.assert_close(model(tokens), theirs, rtol=0, atol=1e-4)
    return model


THETA = {"rope_type": "default", "rope_theta": 500.0}
ALIKE = {
    "rope_scaling before rope_parameters": {"rope_scaling": LLAMA3},
    "rope_scaling, and theta beside it": {"rope_scaling": LLAMA3, "rope_theta": 50.0},
    "rope_scaling of no effect": {"rope_scaling": {"type": "default"}},
    "no rope_scaling": {"rope_scaling": None, "rope_parameters": {**LLAMA3, "rope_theta": 50.0}},
    "theta in rope_parameters": {"rope_theta": 50.0, "rope_parameters": THETA},
    "theta of the class": {"rope_parameters": {"rope_type": "default"}},
    "no RoPE at all": {"rope_parameters": None},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 100.0},
    "linear of transformers 5": {
        "rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 100.0}
    },
    "head_dim from the width": {"head_dim": None},
    "swish is silu": {"hidden_act": "swish"},
}


@pytest.mark.parametrize("change", ALIKE.values(), ids=ALIKE)
def test_settings_mean_what_they_mean_to_transformers(change, tmp_path):
    same_as_transformers(checkpoint(tmp_path, change=change))


SLIDING = ["sliding_attention"] * 3
WINDOWS = {
    "mistral's default": ("mistral", {"sliding_window": 4096}),
    "mistral's layers by their types": ("mistral", {"layer_types": SLIDING}),
    "qwen2, used": ("qwen2", {}),
    "qwen2, used from the first layer on": ("qwen2", {"layer_types": None}),
    "qwen2, not used": ("qwen2", {"use_sliding_window": False, "layer_types": None}),
}


@pytest.mark.parametrize("family, change", WINDOWS.values(), ids=WINDOWS)
def test_windows_are_those_of_transformers(family, change, tmp_path):
    same_as_transformers(checkpoint(tmp_path, family, change=change))


def rope(**parameters):
    return {"rope_parameters": parameters}


CONTRADICTIONS = {
    "a window that is not used": ("mistral", {"use_sliding_window": False}, "use_sliding_window"),
    "types": ("qwen2", {"use_sliding_window": False, "layer_types": SLIDING}, "layer_types has 's"),
    "over some layers": ("qwen2", {"max_window_layers": 1}, "slides over 2 of its 3 layers"),
    "chunks": ("qwen2", {"layer_types": ["chunked_attention"] * 3}, "'chunked_attention'"),
    "RoPE by layer": ("qwen2", rope(full_attention=LLAMA3), "rope_parameters has full_attention ="),
    "a factor for nothing": ("llama", rope(**THETA, factor=4.0), "factor = 4.0, and RoPE of type"),
    "attention louder": ("llama", rope(**LLAMA3, attention_factor=2.0), "attention_factor = 2.0"),
    **{
        kind: ("llama", {"rope_scaling": {"type": kind, "factor": 2.0}}, f"scaled as '{kind}'")
        for kind in ("dynamic", "yarn")
    },
    "another class": (
        "llama",
        {"architectures": ["LlamaForTokens"]},
        "take a checkpoint with arch",
    ),
}


@pytest.mark.parametrize("family, change, words", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_what_is_not_computed_is_refused_by_its_name(family, change, words, tmp_path):
    with pytest.raises(InputError, match=words) as error:
        config_of(raw_config(family) | change, tmp_path / "config.json")
    assert "\n" not in str(error.value)


# Weights beside the configuration ---------------------------------------------------------------

TIED = replace(SMALL, tied=True)
HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"


def test_a_head_of_its_own_counts_although_the_config_ties_it(tmp_path):
    other = torch.randn(SMALL.vocab_size, SMALL.hidden_size)
    folder = checkpoint(tmp_path, config=TIED, weights=lambda w: w.update({HEAD: other}))
    model = same_as_transformers(folder)
    assert model.config == SMALL and torch.equal(model.head.weight, other)
    checkpoint(tmp_path, config=TIED, weights=lambda w: w.update({HEAD: w[EMBED].clone()}))
    model = same_as_transformers(tmp_path)
    assert model.config == TIED and model.head.weight is model.embed.weight, "a copy stays tied"


def test_a_head_of_another_size_or_without_an_embedding_is_refused(tmp_path):
    checkpoint(tmp_path, config=TIED, weights=lambda w: w.update({HEAD: torch.randn(70, 32)}))
    with pytest.raises(InputError, match=r"lm_head.weight is \[70, 32\], not \[61, 32\]"):
        load_pretrained(tmp_path)
    checkpoint(tmp_path, config=TIED, weights=lambda w: w.update({HEAD: w.pop(EMBED)}))
    with pytest.raises(InputError, match=r"lacks weights .* model.embed_tokens.weight"):
        load_pretrained(tmp_path)


@pytest.mark.parametrize(
    "kinds, whole",
    [
        ((torch.bfloat16, torch.bfloat16), torch.bfloat16),
        ((torch.bfloat16, torch.float32), torch.float32),
        ((torch.bfloat16, torch.float16), torch.float32),
        ((torch.float32, torch.float64), torch.float64),
    ],
)
def test_weights_of_two_dtypes_are_read_without_rounding(kinds, whole, tmp_path):
    def cast(weights):
        for name, tensor in weights.items():
            weights[name] = tensor.to(kinds["norm" in name])

    checkpoint(tmp_path, weights=cast)
    model, _ = load_pretrained(tmp_path)
    assert {p.dtype for p in model.parameters()} == {whole}
    stored = load_file(tmp_path / "model.safetensors")
    assert torch.equal(model.norm.weight, stored["model.norm.weight"].to(whole))
    assert torch.equal(model.embed.weight, stored[EMBED].to(whole))


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    checkpoint(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    save_file(stored, tmp_path / "a.safetensors")
    save_file({EMBED: stored[EMBED] + 1}, tmp_path / "b.safetensors")
    index = dict.fromkeys(stored, "a.safetensors") | {HEAD: "b.safetensors"}
    file = tmp_path / "model.safetensors.index.json"
    file.write_text(json.dumps({"weight_map": index}))
    with pytest.raises(InputError, match=r"b.safetensors holds model.embed_tokens.weight, which"):
        load_pretrained(tmp_path)


def test_linear_scaling_crosses_to_transformers_and_back(tmp_path):
    from minitrain.model.hub.load import save_pretrained

    rope = {"type": "linear", "factor": 4.0}
    model, _ = load_pretrained(checkpoint(tmp_path / "in", change={"rope_scaling": rope}))
    assert model.config.rope_scaling == RopeScaling.linear(4.0)
    save_pretrained(model, tmp_path / "out")
    assert same_as_transformers(tmp_path / "out").config == model.config
