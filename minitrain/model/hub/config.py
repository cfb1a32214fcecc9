"""A hub checkpoint's config.json <-> a ModelConfig.

The families share one architecture and differ in optional features: Mistral has a sliding window,
Qwen2 biases on q, k and v, Mixtral experts in place of the MLP (the router's training losses are
not read). A configuration that needs more than this package computes raises an error instead of
being approximated: the weights would load, but into a different model. So every key is one of four
kinds: read, neutral, idle, or unknown, which a warning names: `transformers` ignores keys that a
family does not have, so the model computes the same here as there.
"""

from __future__ import annotations

import json
import warnings
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

# Our name -> the hub's. These are required ...
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "ffn_size": "intermediate_size",
}
# ... and these default to each family's own value.
DEFAULTS = {
    "llama": {"max_position_embeddings": 2048, "num_key_value_heads": None},
    "mistral": {
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "num_key_value_heads": 8,
    },
    "qwen2": {
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
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

READ = {
    "model_type",
    *SIZES.values(),
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "layer_types",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "use_sliding_window",
}  # by every family; DEFAULTS lists the additional ones

# Features this package does not compute, with the values that disable them: the first is the
# usual one. A key that a family reads is not in its list.
NEUTRAL = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "partial_rotary_factor": (1.0, None),
    "rotary_pct": (1.0, None),
    "rope_interleaved": (False, None),
    "quantization_config": (None, {}),
    "compression_config": (None, {}),
    "per_layer_config": (None, {}),
    "pruned_heads": (None, {}),
    "is_causal": (True, None),
    "use_bidirectional_attention": (False, None),
    "alibi": (False, None),
    "sliding_window": (None, 0),
    "attention_chunk_size": (None, 0),
    "no_rope_layers": (None, []),
    "clip_qkv": (None,),
    **dict.fromkeys(("use_qk_norm", "qk_norm", "qk_layernorm"), (False, None)),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), (None, 0)),
    **dict.fromkeys(("query_pre_attn_scalar", "attention_multiplier"), (None,)),
    **dict.fromkeys(("logits_scaling", "logit_scale"), (1.0, None)),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "scale_emb"), (1.0, None)),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), (0, None)),
    **dict.fromkeys(("num_experts_per_tok", "n_shared_experts", "num_shared_experts"), (0, None)),
    **dict.fromkeys(("shared_expert_intermediate_size", "moe_intermediate_size"), (0, None)),
    "norm_topk_prob": (True, None),
    "routed_scaling_factor": (1.0, None),
}

# No effect on what a model computes from tokens: the file's history, a call's return format, memory
# and speed options, initialization and training losses, classifiers' labels, and sampling, which
# generation_config.json and the request decide.
IDLE = set(
    """
    transformers_version torch_dtype dtype use_bfloat16 name_or_path tokenizer_class prefix
    use_cache return_dict output_hidden_states output_attentions output_scores
    return_dict_in_generate torchscript tf_legacy_loss pretraining_tp chunk_size_feed_forward
    attn_implementation experts_implementation initializer_range output_router_logits
    router_aux_loss_coef num_labels id2label label2id problem_type finetuning_task
    task_specific_params pad_token_id sep_token_id unk_token_id decoder_start_token_id
    forced_bos_token_id forced_eos_token_id max_length min_length do_sample early_stopping
    num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p
    repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size
    bad_words_ids num_return_sequences remove_invalid_values exponential_decay_length_penalty
    suppress_tokens begin_suppress_tokens
    """.split()  # noqa: SIM905
)

ONE_EXPERT = "Mixtral's router weighs an only expert with 1, and ours with its probability"
SCALING = {  # our field -> the hub's
    "factor": "factor",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "original_length": "original_max_position_embeddings",
}
ROPE_KEYS = {"default": (), "linear": ("factor",), "llama3": (*SCALING.values(),)}


def read_config(path: Path) -> ModelConfig:
    """config.json -> the model's shape; InputError if the model cannot be built."""
    return config_of(read_json(path), path)


def config_of(raw: Mapping, path: Path) -> ModelConfig:
    """`read_config` from the parsed values; `path` is for error messages."""
    family = raw.get("model_type")
    if family not in ARCHITECTURES:
        raise InputError(
            f"{path} describes a model of type {family!r}; those that can be read are "
            f"{', '.join(ARCHITECTURES)}"
        )
    _check_keys(family, raw, path)
    missing = [name for name in SIZES.values() if name not in raw]
    if missing:
        raise InputError(f"{path} does not give {', '.join(missing)}: download it again")
    try:
        return _model_config(family, DEFAULTS[family] | raw)
    except (InputError, TypeError) as error:
        raise InputError(f"{path} describes a model that cannot be built: {error}") from error


def _check_keys(family: str, raw: Mapping, path: Path) -> None:
    """InputError for an unsupported setting, a warning for an unknown one."""
    read, unknown = READ | DEFAULTS[family].keys(), []
    neutral = {"architectures": ([ARCHITECTURES[family]], None, [])} | NEUTRAL
    for name, value in raw.items():
        if name in read or name in IDLE or name.startswith("_"):
            continue
        if name not in neutral:
            unknown += [name] if value else []
        elif value not in neutral[name]:
            raise InputError(
                f"{path} has {name} = {value!r:.60}, which is not supported: "
                f"take a checkpoint with {name} = {neutral[name][0]!r}"
            )
    if unknown:
        warnings.warn(
            f"{path} sets {', '.join(unknown)}: nothing here reads that, and the model computes as "
            "without it",
            stacklevel=2,
        )


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
    """theta and scaling. transformers 5 writes `rope_parameters`; earlier versions wrote
    `rope_theta` and `rope_scaling`, which take precedence if both are present."""
    where = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    rope = raw.get(where) or {}
    if not isinstance(rope, Mapping):
        raise InputError(f"its {where} is {rope!r}, not an object")
    given = {name: value for name, value in rope.items() if value is not None}
    theta = given.pop("rope_theta", raw.get("rope_theta") or 10000.0)
    kind = given.pop("type", "default")
    kind = given.pop("rope_type", kind)
    if kind not in ROPE_KEYS:
        raise InputError(
            f"its RoPE is scaled as {kind!r}; supported are {', '.join(map(repr, ROPE_KEYS))}: "
            "take the checkpoint from before its context was extended"
        )
    if given.get("partial_rotary_factor") == 1.0:
        del given["partial_rotary_factor"]
    if spare := sorted(given.keys() - ROPE_KEYS[kind]):
        raise InputError(
            f"its {where} has {spare[0]} = {given[spare[0]]!r:.60}, and RoPE of type {kind!r} has "
            "no such setting here: take a checkpoint without it"
        )
    if missing := [name for name in ROPE_KEYS[kind] if name not in given]:
        raise InputError(f"its RoPE scaling does not give {', '.join(missing)}")
    if kind != "llama3":
        factor = given.get("factor", 1.0)
        return theta, None if factor == 1 else RopeScaling.linear(factor)
    return theta, RopeScaling(**{ours: rope[hubs] for ours, hubs in SCALING.items()})


def _window(family: str, raw: Mapping) -> int | None:
    """One window for all layers, or none; windows that differ by layer are not supported."""
    layers, types = raw["num_hidden_layers"], raw.get("layer_types")
    window = raw.get("sliding_window")
    used = raw.get("use_sliding_window", window is not None)
    if family != "qwen2" and bool(used) != (window is not None):
        raise InputError(f"its use_sliding_window is {used} and its sliding_window {window}")
    if window is None or not used:
        windowed = 0
    elif family != "qwen2":
        windowed = layers
    elif types is not None:  # transformers 5 lists each layer's type
        windowed = list(types).count("sliding_attention")
    else:  # Qwen2's first layers may use full attention
        windowed = max(layers - raw["max_window_layers"], 0)
    if 0 < windowed < layers:
        raise InputError(f"a window slides over {windowed} of its {layers} layers, not over all")
    kind = "sliding_attention" if windowed else "full_attention"
    if types is not None and (odd := set(types) - {kind}):
        raise InputError(
            f"its layer_types has {min(odd)!r}, and its other settings mean {kind!r} in all layers"
        )
    return window if windowed else None


def plainest_family(config: ModelConfig) -> str:
    if config.experts:
        return "mixtral"
    if config.qkv_bias:
        return "qwen2"
    return "llama" if config.window is None else "mistral"


def hub_config(config: ModelConfig, family: str | None, dtype: str) -> dict[str, object]:
    """The config.json from which `transformers` builds the same model; InputError if no family
    matches. Family None: the simplest one that fits."""
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
    """InputError unless the mixture computes the same as Mixtral's."""
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
    """A JSON object; InputError if there is none."""
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
