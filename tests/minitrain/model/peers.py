"""The same model in `transformers`, to compare with."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from minitrain.model.config import ModelConfig

SMALL = ModelConfig(61, 32, layers=3, heads=4, kv_heads=2, ffn_size=40, rope_theta=100.0)
CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
}


def peer_config(config: ModelConfig, family: str, **more) -> LlamaConfig:
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        scaling = config.rope_scaling
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_length,
        }
    if family == "mistral":
        more |= {"sliding_window": config.window}
    if family == "qwen2" and config.window is not None:
        more |= {"sliding_window": config.window, "max_window_layers": 0}
        more |= {"use_sliding_window": True}
    if family == "mixtral":
        more |= {"num_local_experts": config.experts, "sliding_window": config.window}
        more |= {"num_experts_per_tok": config.experts_per_token}
    return CLASSES[family][0](
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.expert_ffn_size if config.experts else config.ffn_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_size,
        max_position_embeddings=config.max_length,
        rms_norm_eps=config.norm_eps,
        tie_word_embeddings=config.tied,
        rope_parameters=rope,
        attn_implementation="sdpa",
        use_cache=False,
        **more,
    )


def random_peer(config: ModelConfig, family: str, **more) -> PreTrainedModel:
    """float64, with every parameter random: fresh norms of 1 and biases of 0 would hide a mix-up."""
    peer = CLASSES[family][1](peer_config(config, family, **more)).double()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return peer.eval()


def exact(peer: PreTrainedModel) -> PreTrainedModel:
    """Its norms and routers round to float32 even in a float64 model; here they do not."""
    if peer.config.model_type == "mixtral":
        peer.set_experts_implementation("eager")  # its grouped matmul knows no float64
    for module in list(peer.modules()):
        if type(module).__name__ == "MixtralTopKRouter":
            module.forward = partial(route, module)
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                norm = nn.RMSNorm(child.weight.shape, child.variance_epsilon)
                norm.weight = child.weight
                setattr(module, name, norm)
    return peer


def route(router: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Mixtral's router in the dtype of x (M, D) -> logits (M, E), weights and experts (M, K)."""
    logits = F.linear(x, router.weight)
    weights, experts = logits.softmax(dim=-1).topk(router.top_k, dim=-1)
    return logits, weights / weights.sum(dim=-1, keepdim=True), experts


def random_tokens(config: ModelConfig, batch: int, length: int) -> torch.Tensor:
    return torch.randint(config.vocab_size, (batch, length))
