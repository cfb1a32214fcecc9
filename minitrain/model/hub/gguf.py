"""Reads GGUF, llama.cpp's single-file model format: settings, vocabulary and (quantized) weights.

Weights are read as float32 from F32, F16, BF16, or blocks of 32 integers with a shared scale (Q8_0)
and also an offset (Q4_1). llama.cpp's RoPE rotates adjacent pairs, so the rows of q and k are
reordered on reading, as for llama2.c. A setting `llama.…` that is neither read here nor neutral
raises an error, one of `tokenizer.ggml.…` a warning; all others except general.architecture,
general.type and split.count are metadata, without effect.
Format: github.com/ggml-org/ggml, docs/gguf.md. Cost: 4 P bytes plus one matrix.
"""

from __future__ import annotations

import os
import warnings

import torch
from gguf import GGUFReader, ReaderTensor, TokenType, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor

from minitrain.errors import InputError
from minitrain.model.config import ModelConfig, RopeScaling
from minitrain.model.hub.text import TextFiles, fast_tokenizer
from minitrain.model.rope import interleaved_to_half_split
from minitrain.model.transformer import Transformer, empty

PARTS = {  # ours -> llama.cpp's
    "embed": "token_embd",
    "norm": "output_norm",
    "head": "output",
    "attention_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "attention.o": "attn_output",
    **{f"attention.{name}": f"attn_{name}" for name in "qkv"},
    **{f"mlp.{name}": f"ffn_{name}" for name in ("gate", "up", "down")},
}
READ = {  # of llama.…
    *("block_count", "context_length", "embedding_length", "feed_forward_length"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length"),
    *("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scale_linear"),
    *("rope.scaling.factor", "rope.scaling.type"),
}
NEUTRAL = {"attention.causal": True, "rope.scaling.attn_factor": 1.0}  # of other keys: empty values
# Without effect: rows are counted in token_embd, and only YaRN uses the original length.
IDLE = {"rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout"}
IDLE |= {"vocab_size"}
ENDS = ("eos", "eot", "eom")  # of a sequence, a turn, a message: llama.cpp stops at each
TEXT_READ = {"add_bos_token", "add_eos_token", "merges", "model", "pre", "token_type", "tokens"}
# Used by other kinds of vocabulary; an id (…_token_id) only says what a token is for.
TEXT_IDLE = {"add_space_prefix", "precompiled_charsmap", "remove_extra_whitespaces", "scores"}
TEXT_IDLE |= {"token_type_count"}
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
BEFORE_MERGES = {  # pre-tokenizers, by llama.cpp's names
    "gpt-2": BYTES,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
}
REMEDY = "take the model's safetensors, which load_pretrained reads"


def load_gguf(
    path: str | os.PathLike,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[Transformer, TextFiles]:
    """A Llama in a .gguf file -> model and text files; a vocabulary other than GPT-2's BPE is
    skipped, with a warning."""
    try:
        reader = GGUFReader(path)
        settings = {name: field.contents() for name, field in reader.fields.items()}
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise InputError(f"{path} cannot be read as GGUF ({error}): download it again") from error
    stored = {tensor.name: tensor for tensor in reader.tensors}
    config = _config(path, settings, stored)
    model = empty(config, device, dtype)
    _check_names(path, model, stored)
    for name, parameter in model.named_parameters():
        parameter.data.copy_(_weight(path, name, parameter.shape, stored[gguf_name(name)], config))
    try:
        return model, _text_files(path, settings, config.vocab_size)
    except InputError:
        raise
    except Exception as error:  # the backend raises bare exceptions
        raise InputError(f"{path} has a broken vocabulary ({error}): download it again") from error


def gguf_name(name: str) -> str:
    """blocks.3.attention.q.weight -> blk.3.attn_q.weight"""
    part, layer = name.removesuffix(".weight"), ""
    if part.startswith("blocks."):
        _, number, part = part.split(".", 2)
        layer = f"blk.{number}."
    return f"{layer}{PARTS[part]}.weight"


def _config(path: str | os.PathLike, settings: dict, stored: dict) -> ModelConfig:
    family, kind = settings.get("general.architecture"), settings.get("general.type", "model")
    if family != "llama" or kind != "model":
        raise InputError(
            f"{path} holds a {kind} of type {family!r}; only a plain 'llama' can be read from "
            f"GGUF: {REMEDY}"
        )
    if settings.get("split.count", 1) > 1:
        raise InputError(
            f"{path} is one of {settings['split.count']} files (split.count): join them with "
            "llama-gguf-split --merge"
        )
    own = {n.removeprefix("llama."): v for n, v in settings.items() if n.startswith("llama.")}
    try:
        _check_settings(path, own)
        heads = own["attention.head_count"]
        return ModelConfig(
            vocab_size=int(stored["token_embd.weight"].shape[-1]),
            hidden_size=own["embedding_length"],
            layers=own["block_count"],
            heads=heads,
            kv_heads=own.get("attention.head_count_kv", heads),
            ffn_size=own["feed_forward_length"],
            max_length=own["context_length"],
            rope_theta=own.get("rope.freq_base", 10000.0),
            norm_eps=own["attention.layer_norm_rms_epsilon"],
            tied="output.weight" not in stored,
            head_size=own.get("attention.key_length", own.get("rope.dimension_count")),
            rope_scaling=_scaling(own),
        )
    except KeyError as error:
        raise InputError(f"{path} does not give {error}: download it again") from error
    except InputError as error:
        raise InputError(f"{path} describes a model that cannot be built: {error}") from error


def _check_settings(path: str | os.PathLike, own: dict) -> None:
    """InputError naming a setting that is neither read nor neutral."""
    turned = own.get("rope.dimension_count", own["embedding_length"] // own["attention.head_count"])
    size = own.get("attention.key_length", turned)
    neutral = NEUTRAL | {"attention.value_length": size, "rope.dimension_count": size}
    for name, value in own.items():
        is_neutral = value == neutral[name] if name in neutral else not value
        if name not in READ and name not in IDLE and not is_neutral:
            raise InputError(
                f"{path} has llama.{name} = {value!r:.60}, which is not computed here: {REMEDY}"
            )


def _scaling(own: dict) -> RopeScaling | None:
    """A factor without a type is linear, as in llama.cpp."""
    kind = own.get("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise InputError(f"RoPE scaled as {kind!r} (rope.scaling.type) is not computed: {REMEDY}")
    factor = own.get("rope.scaling.factor", own.get("rope.scale_linear")) or 1.0
    return None if kind == "none" or factor == 1 else RopeScaling.linear(factor)


def _check_names(path: str | os.PathLike, model: Transformer, stored: dict) -> None:
    """Checks that no weight is missing or extra (such as RoPE factors of its own)."""
    needed = {gguf_name(name) for name, _ in model.named_parameters()}
    if missing := sorted(needed - stored.keys()):
        raise InputError(f"{path} lacks {missing[0]} ({len(missing)} weights): download it again")
    if spare := sorted(stored.keys() - needed):
        raise InputError(f"{path} has weights with no place in a plain Llama, {spare[0]}: {REMEDY}")


def _weight(
    path: str | os.PathLike, name: str, shape: torch.Size, stored: ReaderTensor, config: ModelConfig
) -> Tensor:
    """One tensor in float32, with rows in our order."""
    kind = stored.tensor_type.name
    try:
        weight = torch.tensor(dequantize(stored.data, stored.tensor_type))
    except NotImplementedError as error:
        raise InputError(
            f"{path} stores {stored.name} as {kind}, unknown here: {REMEDY}"
        ) from error
    if weight.shape != shape:
        have, need = list(weight.shape), list(shape)
        raise InputError(f"{path}: {stored.name} is {have}, not {need}: download it again")
    if name.endswith(".q.weight"):
        return interleaved_to_half_split(weight, config.heads)
    if name.endswith(".k.weight"):
        return interleaved_to_half_split(weight, config.kv_heads)
    return weight


def _text_files(path: str | os.PathLike, settings: dict, vocab_size: int) -> TextFiles:
    own = {name.removeprefix("tokenizer.ggml."): value for name, value in settings.items()}
    if len(own.get("tokens", ())) > vocab_size:
        raise InputError(
            f"{path} has {len(own['tokens'])} tokens (tokenizer.ggml.tokens) and {vocab_size} rows "
            f"of token_embd.weight: {REMEDY}"
        )
    bos, ends = own.get("bos_token_id"), [own.get(f"{end}_token_id") for end in ENDS]
    eos_ids = tuple(dict.fromkeys(id for id in ends if id is not None))
    if own.get("model") != "gpt2" or own.get("pre", "gpt-2") not in BEFORE_MERGES:
        if "tokens" in own:
            warnings.warn(
                f"{path} has a vocabulary of type {own.get('model')!r} for words of type "
                f"{own.get('pre')!r} (tokenizer.ggml.model and .pre), which is not read: the model "
                "comes without a tokenizer",
                stacklevel=3,
            )
        return TextFiles({}, bos, eos_ids)
    start = "tokenizer.ggml."
    found = {n.removeprefix(start): v for n, v in settings.items() if n.startswith(start)}
    if odd := [start + name for name, value in found.items() if value and not _is_known(name)]:
        warnings.warn(f"{path} sets {', '.join(odd)}: nothing here reads that", stacklevel=3)
    ids = {"bos": bos, "eos": own.get("eos_token_id"), "unk": own.get("unknown_token_id")}
    ids["pad"] = own.get("padding_token_id")
    special = {f"{use}_token": own["tokens"][id] for use, id in ids.items() if id is not None}
    if "tokenizer.chat_template" in settings:
        special["chat_template"] = settings["tokenizer.chat_template"]
    return TextFiles(fast_tokenizer(_byte_pairs(own, special).to_str(), special), bos, eos_ids)


def _is_known(name: str) -> bool:
    return name in TEXT_READ or name in TEXT_IDLE or name.endswith("_token_id")


def _byte_pairs(own: dict, special: dict[str, str]) -> Tokenizer:
    """A GPT-2-style tokenizer from the vocabulary, merges and token types: user-defined tokens
    are matched whole in any text, control tokens are not decoded."""
    vocabulary = {token: id for id, token in enumerate(own["tokens"])}
    merges = [tuple(pair.split(" ")) for pair in own["merges"]]
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = BEFORE_MERGES[own.get("pre", "gpt-2")]
    backend.decoder = decoders.ByteLevel()
    for token, kind in zip(own["tokens"], own["token_type"]):
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            backend.add_special_tokens([AddedToken(token, special=True)])
        elif kind == TokenType.USER_DEFINED:
            backend.add_tokens([AddedToken(token, special=False, normalized=False)])
    put = {end: special[f"{end}_token"] for end in ("bos", "eos") if own.get(f"add_{end}_token")}
    if put:
        around = [*filter(None, [put.get("bos")]), "$A", *filter(None, [put.get("eos")])]
        known = [(token, vocabulary[token]) for token in put.values()]
        backend.post_processor = processors.TemplateProcessing(around, special_tokens=known)
    return backend
