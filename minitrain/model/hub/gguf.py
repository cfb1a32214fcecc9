"""GGUF, llama.cpp's one file of a model: settings, vocabulary and (quantized) weights, read.

Weights come out as float32 whatever they are stored in: F32, F16, BF16, or blocks of 32 whole
numbers that share a scale (Q8_0) and an offset too (Q4_1). llama.cpp's RoPE turns neighbours, so
the rows of q and k are reordered on the way in, as for llama2.c.
Format: github.com/ggml-org/ggml, docs/gguf.md. Cost: 4 P bytes, and one matrix beside them.
"""

from __future__ import annotations

from pathlib import Path

import torch
from gguf import GGUFReader, ReaderTensor, TokenType, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
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
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
BEFORE_MERGES = {  # how a text is cut into words, by the name that llama.cpp has for it
    "gpt-2": BYTES,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
}
REMEDY = "take the model's safetensors, which load_pretrained reads"


def find_gguf(path: Path) -> Path | None:
    """`path` itself, or the only such file in a folder that is no checkpoint; else None."""
    if (path / "config.json").exists():
        return None
    found = [path] if path.is_file() else sorted(path.glob("*.gguf"))
    return found[0] if len(found) == 1 and found[0].suffix == ".gguf" else None


def load_gguf(
    path: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[Transformer, TextFiles]:
    """A Llama in a .gguf file -> model and text files; a vocabulary other than GPT-2's byte pairs
    stays behind."""
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
        return model, _text_files(settings)
    except Exception as error:  # the backend raises bare ones
        raise InputError(f"{path} has a broken vocabulary ({error}): download it again") from error


def gguf_name(name: str) -> str:
    """blocks.3.attention.q.weight -> blk.3.attn_q.weight"""
    part, layer = name.removesuffix(".weight"), ""
    if part.startswith("blocks."):
        _, number, part = part.split(".", 2)
        layer = f"blk.{number}."
    return f"{layer}{PARTS[part]}.weight"


def _config(path: str | Path, settings: dict, stored: dict) -> ModelConfig:
    family = settings.get("general.architecture")
    scaling = settings.get(f"{family}.rope.scaling.type", "none")
    if family != "llama" or f"{family}.expert_count" in settings or scaling != "none":
        raise InputError(
            f"{path} holds a model of type {family!r} with RoPE scaled as {scaling!r}, or with "
            f"experts; only a plain 'llama' can be read from GGUF: {REMEDY}"
        )
    try:
        own = {name.removeprefix("llama."): value for name, value in settings.items()}
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
        )
    except KeyError as error:
        raise InputError(f"{path} does not give {error}: download it again") from error


def _check_names(path: str | Path, model: Transformer, stored: dict) -> None:
    """Every weight is there, and none that the model has no place for (a RoPE's own factors)."""
    needed = {gguf_name(name) for name, _ in model.named_parameters()}
    if missing := sorted(needed - stored.keys()):
        raise InputError(f"{path} lacks {missing[0]} ({len(missing)} weights): download it again")
    if spare := sorted(stored.keys() - needed):
        raise InputError(f"{path} has weights with no place in a plain Llama, {spare[0]}: {REMEDY}")


def _weight(
    path: str | Path, name: str, shape: torch.Size, stored: ReaderTensor, config: ModelConfig
) -> Tensor:
    """One tensor in float32, in our order of rows."""
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


def _text_files(settings: dict) -> TextFiles:
    own = {name.removeprefix("tokenizer.ggml."): value for name, value in settings.items()}
    bos, eos = own.get("bos_token_id"), own.get("eos_token_id")
    eos_ids = () if eos is None else (eos,)
    if own.get("model") != "gpt2" or own.get("pre", "gpt-2") not in BEFORE_MERGES:
        return TextFiles({}, bos, eos_ids)
    ids = {"bos": bos, "eos": eos, "unk": own.get("unknown_token_id")}
    ids["pad"] = own.get("padding_token_id")
    special = {f"{use}_token": own["tokens"][id] for use, id in ids.items() if id is not None}
    if "tokenizer.chat_template" in settings:
        special["chat_template"] = settings["tokenizer.chat_template"]
    return TextFiles(fast_tokenizer(_byte_pairs(own).to_str(), special), bos, eos_ids)


def _byte_pairs(own: dict) -> Tokenizer:
    """GPT-2's kind of tokenizer, from the vocabulary, its merges and the kinds of its tokens."""
    vocabulary = {token: id for id, token in enumerate(own["tokens"])}
    merges = [tuple(pair.split(" ")) for pair in own["merges"]]
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = BEFORE_MERGES[own.get("pre", "gpt-2")]
    backend.decoder = decoders.ByteLevel()
    control = (t for t, kind in zip(own["tokens"], own["token_type"]) if kind == TokenType.CONTROL)
    backend.add_special_tokens([AddedToken(token, special=True) for token in control])
    return backend
