"""adapter_config.json: PEFT's settings of an adapter, and our equivalent method.

    peft_type       LORA (use_rslora, use_dora)  IA3  LN_TUNING  PREFIX_TUNING  PROMPT_TUNING
    and our own     HOULSBY  PARALLEL  BITFIT      which PEFT does not have

A setting that this package does not implement is refused by name: an adapter loaded with half of
its settings computes something else, and appears to work. So is an unknown setting, since newer
versions of PEFT add new ways to compute, unless it is off.
Source: huggingface/peft, `src/peft/config.py` and each tuner's `config.py`.
"""

from __future__ import annotations

from typing import Any

from minitrain.errors import InputError
from minitrain.finetuning.methods import (
    BitFitMethod,
    BottleneckMethod,
    FullMethod,
    IA3Method,
    LoRAMethod,
    Method,
    NormMethod,
    PrefixMethod,
    PromptMethod,
    SoftMethod,
)
from minitrain.model.hub.load import hub_name

NEUTRAL = (None, False, {}, [], "none")  # of a setting that changes nothing
READ = {  # beside peft_type
    *("r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "init_lora_weights"),
    *("rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out"),
    *("feedforward_modules", "num_virtual_tokens", "bottleneck", "scale"),
}
IDLE = {  # without effect on what is computed
    *("peft_type", "peft_version", "auto_mapping", "task_type", "inference_mode"),
    *("base_model_name_or_path", "revision"),  # the base model: from the caller or `merge`
    *("target_modules", "exclude_modules"),  # the tensors' names show it
    *("layers_to_transform", "layers_pattern"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config"),  # of init_lora_weights
    *("init_ia3_weights", "init_weights", "prompt_tuning_init", "prompt_tuning_init_text"),
    *("tokenizer_name_or_path", "tokenizer_kwargs", "qalora_group_size", "ensure_weight_tying"),
    *("megatron_config", "megatron_core", "runtime_config"),
    *("token_dim", "num_layers", "num_attention_heads", "num_transformer_submodules"),  # sizes
    *("encoder_hidden_size", "prefix_projection"),  # of the MLP, which is not saved
}
REMEDY = "merge it with PEFT (merge_and_unload), and read the merged model"
ON_THE_BASE = (True, False, None, "gaussian", "orthogonal", "eva")  # W is unchanged


def to_peft(method: Method, targets: list[str], inputs: list[str]) -> dict[str, Any]:
    """`targets` are PEFT's names of layers, `inputs` of those whose input (IA)³ scales. PiSSA is
    written as a LoRA of rank 2R."""
    if isinstance(method, LoRAMethod):
        rank = 2 * method.rank if method.pissa else method.rank
        return {
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": method.scaling * rank if method.pissa else method.alpha,
            "lora_dropout": method.dropout,
            "use_rslora": method.rslora and not method.pissa,
            "use_dora": method.dora,
            "target_modules": targets,
        }
    if isinstance(method, IA3Method):
        return {"peft_type": "IA3", "target_modules": targets, "feedforward_modules": inputs}
    if isinstance(method, BottleneckMethod):
        kind = "PARALLEL" if method.parallel else "HOULSBY"
        settings = {"bottleneck": method.bottleneck, "scale": method.scale}
        return {"peft_type": kind, "target_modules": targets, **settings}
    if isinstance(method, SoftMethod):
        kind = "PREFIX_TUNING" if isinstance(method, PrefixMethod) else "PROMPT_TUNING"
        return {"peft_type": kind, "num_virtual_tokens": method.tokens}
    if isinstance(method, FullMethod):
        raise InputError(
            "full fine-tuning has no adapter to save: use save_pretrained(model, folder)"
        )
    kind = "LN_TUNING" if isinstance(method, NormMethod) else "BITFIT"
    return {"peft_type": kind, "target_modules": targets}


def from_peft(
    raw: dict[str, Any], targets: tuple[str, ...], where: str, whole: tuple[str, ...] = ()
) -> Method:
    """Our method for a file's settings, over our layers `targets` and, in addition, whole modules;
    InputError where there is none."""
    for name, value in raw.items():
        if name not in READ and name not in IDLE and value not in NEUTRAL:
            raise InputError(
                f"{where} sets {name} to {value!r:.60}, which is not done here: {REMEDY}"
            )
    kind = raw.get("peft_type")
    if kind == "LORA":
        return _lora(raw, targets, where, whole)
    if kind == "IA3":
        inputs = raw.get("feedforward_modules") or ()
        if isinstance(inputs, str):
            raise InputError(f"{where} names feedforward_modules by a pattern: use a list of names")
        ends = tuple(f".{name}" for name in inputs)
        own = [t for t in targets if any(f".{n}".endswith(ends) for n in (t, hub_name(t)))]
        return IA3Method(targets, tuple(own), modules_to_save=whole)
    if kind in ("HOULSBY", "PARALLEL"):
        settings = raw["bottleneck"], kind == "PARALLEL", targets, raw["scale"]
        return BottleneckMethod(*settings, modules_to_save=whole)
    if kind in ("LN_TUNING", "BITFIT"):
        make = NormMethod if kind == "LN_TUNING" else BitFitMethod
        return make(targets, modules_to_save=whole)
    if kind in ("PREFIX_TUNING", "PROMPT_TUNING"):
        make = PrefixMethod if kind == "PREFIX_TUNING" else PromptMethod
        return make(raw.get("num_virtual_tokens"))
    raise InputError(
        f"{where} is of type {kind}, which is not read here: LORA, IA3, LN_TUNING, PREFIX_TUNING "
        "and PROMPT_TUNING are"
    )


def _lora(
    raw: dict[str, Any], targets: tuple[str, ...], where: str, whole: tuple[str, ...]
) -> LoRAMethod:
    start = raw.get("init_lora_weights", True)
    if start not in ON_THE_BASE:
        raise InputError(
            f"{where} was begun by {start!r}, which changes the model under it, and so fits only "
            "the changed one: save it with PEFT's path_initial_model_for_weight_conversion"
        )
    return LoRAMethod(
        rank=raw.get("r", 8),
        alpha=raw.get("lora_alpha", 8),
        targets=targets,
        dropout=raw.get("lora_dropout", 0.0),
        rslora=raw.get("use_rslora", False),
        dora=raw.get("use_dora", False),
        rank_pattern=raw.get("rank_pattern") or {},
        alpha_pattern=raw.get("alpha_pattern") or {},
        modules_to_save=whole,
    )
