"""A hub checkpoint's config.json <-> a ModelConfig.

The families share one architecture and differ in what they may switch on: Mistral slides a window,
Qwen2 gives q, k and v biases, Mixtral has experts for an MLP (what its router is charged while it
trains stays behind). A configuration that asks for more than this package computes is refused
rather than read as something near it: the weights would load, and the model be another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from minitrain.errors import InputError
from minitrain.model.config import ModelConfig, RopeScaling

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "mixtral": "MixtralForCausalLM",
}

# Our name -> the hub's. These must be there ...
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "ffn_size": "intermediate_size",
}
# ... and these have each family's own default where they are not.
DEFAULTS = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "num_key_value_heads": 8,
    },
    "qwen2": {
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "num_key_value_heads": 32,
    },
    "mixtral": {
        "max_position_embeddings": 131072,
        "sliding_window": None,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
}

# What this package does not compute, and the only value with which it makes no difference.
NEUTRAL = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
}

ONE_EXPERT = "Mixtral's router weighs an only expert with 1, and ours with its probability"
SCALING = {  # our field -> the hub's
    "factor": "factor",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "original_length": "original_max_position_embeddings",
}


def read_config(path: Path) -> ModelConfig:
    """config.json -> the model's shape; InputError where it is no model of ours."""
    return config_of(read_json(path), path)


def config_of(raw: Mapping, path: Path) -> ModelConfig:
    """The same of its values; `path` is where the errors say they are from."""
    family = raw.get("model_type")
    if family not in ARCHITECTURES:
        raise InputError(
            f"{path} describes a model of type {family!r}; those that can be read are "
            f"{', '.join(ARCHITECTURES)}"
        )
    for name, neutral in NEUTRAL.items():
        if raw.get(name, neutral) != neutral:
            raise InputError(
                f"{path} has {name} = {raw[name]!r:.60}, which is not supported: "
                f"take a checkpoint with {name} = {neutral!r}"
            )
    missing = [name for name in SIZES.values() if name not in raw]
    if missing:
        raise InputError(f"{path} does not give {', '.join(missing)}: download it again")
    try:
        return _model_config(family, DEFAULTS[family] | raw)
    except (InputError, TypeError) as error:
        raise InputError(f"{path} describes a model that cannot be built: {error}") from error


def _model_config(family: str, raw: Mapping) -> ModelConfig:
    theta, scaling = _rope(raw)
    heads = raw["num_attention_heads"]
    return ModelConfig(
        **{ours: raw[hubs] for ours, hubs in SIZES.items()},
        kv_heads=raw.get("num_key_value_heads") or heads,
        max_length=raw["max_position_embeddings"],
        rope_theta=theta,
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        tied=raw.get("tie_word_embeddings", False),
        window=_window(family, raw),
        head_size=raw.get("head_dim"),
        qkv_bias=family == "qwen2",
        rope_scaling=scaling,
        **_experts(family, raw),
    )


def _experts(family: str, raw: Mapping) -> dict[str, int]:
    if family != "mixtral":
        return {}
    if raw["num_experts_per_tok"] < 2:
        raise InputError(f"{ONE_EXPERT}, and it has num_experts_per_tok = 1")
    return {"experts": raw["num_local_experts"], "experts_per_token": raw["num_experts_per_tok"]}


def _rope(raw: Mapping) -> tuple[float, RopeScaling | None]:
    """transformers 5 writes `rope_parameters`; before, it was `rope_theta` and `rope_scaling`."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise InputError(f"its RoPE parameters are {rope!r}, not an object")
    theta = rope.get("rope_theta", raw.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3") or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise InputError(
            f"its RoPE is scaled as {kind!r}; supported are none and 'llama3': "
            "take the checkpoint from before its context was extended"
        )
    if kind == "default":
        return theta, None
    missing = [name for name in SCALING.values() if name not in rope]
    if missing:
        raise InputError(f"its RoPE scaling does not give {', '.join(missing)}")
    return theta, RopeScaling(**{ours: rope[hubs] for ours, hubs in SCALING.items()})


def _window(family: str, raw: Mapping) -> int | None:
    """One window for all layers, or none for any: a mixture cannot be read."""
    layers, types = raw["num_hidden_layers"], raw.get("layer_types")
    if family == "llama" or raw["sliding_window"] is None:
        windowed = 0
    elif types is not None:  # transformers 5 lists each layer's
        windowed = list(types).count("sliding_attention")
    elif family in ("mistral", "mixtral"):
        windowed = layers
    else:  # Qwen2's first layers may stay full
        full = raw.get("max_window_layers", 28) if raw.get("use_sliding_window") else layers
        windowed = max(layers - full, 0)
    if 0 < windowed < layers:
        raise InputError(f"a window slides over {windowed} of its {layers} layers, not over all")
    return raw["sliding_window"] if windowed else None


def plainest_family(config: ModelConfig) -> str:
    if config.experts:
        return "mixtral"
    if config.qkv_bias:
        return "qwen2"
    return "llama" if config.window is None else "mistral"


def hub_config(config: ModelConfig, family: str | None, dtype: str) -> dict[str, object]:
    """What config.json must say for `transformers` to build the same model; InputError where no
    family is like it. Family None: the plainest that is."""
    family = family or plainest_family(config)
    _check_family(config, family)
    rope = {"rope_theta": config.rope_theta, "rope_type": "default"}
    if config.rope_scaling is not None:
        ours = asdict(config.rope_scaling)
        rope |= {"rope_type": "llama3"} | {hubs: ours[name] for name, hubs in SCALING.items()}
    raw = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        **{hubs: getattr(config, ours) for ours, hubs in SIZES.items()},
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "max_position_embeddings": config.max_length,
        "rope_parameters": rope,
        "rope_theta": config.rope_theta,  # for transformers 4, as is rope_scaling below
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied,
        "hidden_act": "silu",
        "torch_dtype": dtype,
    }
    if config.rope_scaling is not None:
        raw["rope_scaling"] = rope
    if family != "llama":
        raw["sliding_window"] = config.window
    if family == "mixtral":
        raw |= {
            "intermediate_size": config.expert_ffn_size,
            "num_local_experts": config.experts,
            "num_experts_per_tok": config.experts_per_token,
        }
    if family == "qwen2":
        raw |= {"use_sliding_window": config.window is not None, "max_window_layers": 0}
    return raw


def _check_family(config: ModelConfig, family: str) -> None:
    if family not in ARCHITECTURES:
        raise InputError(f"no family {family!r}: {', '.join(ARCHITECTURES)} can be written")
    if config.qkv_bias != (family == "qwen2"):
        having = "has" if config.qkv_bias else "lacks"
        other = "qwen2" if config.qkv_bias else "llama or mistral"
        raise InputError(f"this model {having} q, k and v biases, unlike {family}: save as {other}")
    if config.experts and family != "mixtral":
        raise InputError(
            f"this model has {config.experts} experts, unlike {family}: save as mixtral"
        )
    if family == "mixtral":
        _check_experts(config)
    if config.window is not None and family == "llama":
        raise InputError("this model has a sliding window, unlike llama: save as mistral")


def _check_experts(config: ModelConfig) -> None:
    """InputError unless its mixture computes what Mixtral's does."""
    if not config.experts:
        raise InputError("this model has no experts, unlike mixtral: save as llama or mistral")
    if config.experts_per_token < 2:
        raise InputError(f"{ONE_EXPERT}: this model cannot be saved as one")
    more = {
        "shared experts": config.shared_experts,
        "a capacity of its experts": config.capacity,
        "biases in its router": config.bias_rate,
    }
    if having := [what for what, value in more.items() if value]:
        raise InputError(
            f"this model has {' and '.join(having)}, and no family of "
            f"{', '.join(ARCHITECTURES)} does: it can be opened by `minitrain` alone"
        )


def read_json(path: Path) -> dict:
    """A JSON object; InputError where there is none."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): a checkpoint needs it"
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): download it again") from error
    if not isinstance(raw, dict):
        raise InputError(
            f"{path} holds a JSON {type(raw).__name__}, not an object: download it again"
        )
    return raw
