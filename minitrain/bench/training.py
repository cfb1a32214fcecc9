"""A training step of our model beside `transformers`' Llama of the same shape and weights.

Forward, loss, backward and AdamW (torch's fused one for both), in this process, in turn. Before it
is timed, both must give the same loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from minitrain.bench.case import OURS, PEER, Case
from minitrain.errors import InputError
from minitrain.measure.clock import Comparison, compare
from minitrain.model.config import ModelConfig, preset
from minitrain.model.transformer import Transformer, build
from minitrain.optimizers.adamw import adamw

SHAPES = (("1M", 16, 128), ("10M", 8, 128))  # preset, batch, length
REASON = (
    "both run the same matmuls, so what is left is noise (see the spread) or a pointwise operation "
    "that transformers fuses and we do not"
)


def cases(
    repeats: int = 15, shapes: Sequence[tuple[str, int, int]] = SHAPES, device: str | None = None
) -> list[Case]:
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return [
        Case(
            f"training step {name}, {batch} x {length}",
            _peer_name(),
            partial(_measured, preset(name), batch, length, repeats, device),
            REASON,
        )
        for name, batch, length in shapes
    ]


def _peer_name() -> str:
    return f"Llama of transformers {_transformers().__version__}"


def _transformers():
    try:
        import transformers
    except ImportError as error:
        raise InputError(
            "the training bench compares with transformers, which is not installed: "
            "pip install transformers, or name other benches"
        ) from error
    return transformers


def _measured(
    config: ModelConfig, batch: int, length: int, repeats: int, device: str
) -> Comparison:
    model = build(config, device=device)
    llama = as_llama(model)
    text = torch.randint(config.vocab_size, (batch, length + 1), device=device)
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()  # (B, T) both
    losses = {
        OURS: lambda: _our_loss(model, tokens, targets),
        PEER: lambda: llama(tokens, labels=targets, shift_labels=targets, use_cache=False).loss,
    }
    torch.testing.assert_close(losses[OURS](), losses[PEER](), rtol=1e-4, atol=1e-5)
    steps = {OURS: _step(model, losses[OURS]), PEER: _step(llama, losses[PEER])}
    return compare(steps, repeats, warmup=3)


def _our_loss(model: Transformer, tokens: Tensor, targets: Tensor) -> Tensor:
    logits = rearrange(model(tokens), "b t v -> (b t) v")
    return F.cross_entropy(logits, rearrange(targets, "b t -> (b t)"))


def _step(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = adamw(model, lr=1e-4)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def as_llama(model: Transformer) -> nn.Module:
    """transformers' Llama of the same shape, on the same device, with a copy of the weights."""
    transformers, config = _transformers(), model.config
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_size,
            intermediate_size=config.ffn_size,
            max_position_embeddings=config.max_length,
            rms_norm_eps=config.norm_eps,
            rope_theta=config.rope_theta,
            tie_word_embeddings=config.tied,
        )
    )
    parameters = dict(llama.named_parameters())
    for name, parameter in model.named_parameters():
        parameters[llama_name(name)].data = parameter.detach().clone()
    return llama.train()


def llama_name(name: str) -> str:
    """blocks.0.attention.q.weight -> model.layers.0.self_attn.q_proj.weight"""
    if name == "head.weight":
        return "lm_head.weight"
    renamed = name
    for ours, theirs in (
        ("embed.", "embed_tokens."),
        ("blocks.", "layers."),
        ("attention_norm", "input_layernorm"),
        ("mlp_norm", "post_attention_layernorm"),
        ("attention.", "self_attn."),
        *((f".{matrix}.weight", f".{matrix}_proj.weight") for matrix in "qkvo"),
        *((f".{matrix}.weight", f".{matrix}_proj.weight") for matrix in ("gate", "up", "down")),
    ):
        renamed = renamed.replace(ours, theirs)
    return f"model.{renamed}"
