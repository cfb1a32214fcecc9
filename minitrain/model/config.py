"""The configuration of a Llama-family Transformer: checked, with presets for published models.

A configuration fixes every tensor's size, so parameters, FLOPs and bytes can be counted from it
without building anything (measure/parameters.py, flops.py and predicted_memory.py).

Papers: Llama 2, arXiv 2307.09288; Llama 3, 2407.21783; Mistral 7B, 2310.06825; Qwen2, 2407.10671;
Mixtral, 2401.04088. Labs: e01, e02d.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar

from minitrain.errors import InputError, check_whole, unknown_name


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's scaling of RoPE to `factor` times the original context length (see rope.py)."""

    factor: float = 8.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_length: int = 8192

    def __post_init__(self) -> None:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        if not 0 < low < high:
            raise InputError(
                f"RoPE scaling got frequency factors low {low} and high {high}; it needs "
                "0 < low < high: Llama 3.1 has 1 and 4"
            )
        if self.factor < 1:
            raise InputError(f"a RoPE scaling factor of {self.factor} shortens: use 1 or more")

    @classmethod
    def linear(cls, factor: float) -> RopeScaling:
        """Position interpolation: every frequency is divided by `factor`. No wave turns more than
        1/(2 pi) times per token, so these bounds leave none unscaled."""
        return cls(factor, low_frequency_factor=8192.0, high_frequency_factor=16384.0)


@dataclass(frozen=True)
class ModelConfig:
    """A model's shape. `head_size` defaults to hidden_size / heads."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    ffn_size: int
    max_length: int = 2048  # intended context length; RoPE itself has no limit
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tied: bool = False  # the head is the embedding's own matrix
    window: int | None = None  # a token sees itself and the window - 1 tokens before it
    head_size: int | None = None
    qkv_bias: bool = False  # Qwen2
    rope_scaling: RopeScaling | None = None  # Llama 3.1
    experts: int = 0  # 0: one MLP for all tokens
    experts_per_token: int = 2
    expert_ffn_size: int | None = None  # defaults to ffn_size
    shared_experts: int = 0  # which every token passes through as well
    capacity: float | None = None  # multiple of an even load; None: tokens are never dropped
    sequence_balance: float = 0.0  # loss weights of the router, see experts/router.py
    batch_balance: float = 0.0
    z_loss: float = 0.0
    bias_rate: float = 0.0
    gated: ClassVar[bool] = True  # every MLP has a gate, and no layer of a mixture is dense
    dense_layers: ClassVar[int] = 0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "layers", "heads", "kv_heads", "ffn_size"):
            check_whole(name, getattr(self, name))
        check_whole("max_length", self.max_length)
        if self.window is not None:
            check_whole("window", self.window)
        if self.head_size is None:
            object.__setattr__(self, "head_size", _derived_head_size(self))
        check_whole("head_size", self.head_size)
        _check_heads(self)
        if self.expert_ffn_size is None:
            object.__setattr__(self, "expert_ffn_size", self.ffn_size)
        _check_experts(self)
        for name in ("rope_theta", "norm_eps"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value > 0:
                raise InputError(f"{name} is {value!r}; it must be a number above 0")


def _check_heads(config: ModelConfig) -> None:
    if config.heads % config.kv_heads:
        fitting = [str(k) for k in range(1, config.heads + 1) if config.heads % k == 0]
        raise InputError(
            f"{config.heads} heads cannot share {config.kv_heads} key/value heads evenly: "
            f"kv_heads may be {', '.join(fitting)}"
        )
    if config.head_size % 2:
        raise InputError(
            f"head_size is {config.head_size}, and RoPE turns pairs of numbers: it must be even, "
            f"{config.head_size + 1} for one"
        )


def _check_experts(config: ModelConfig) -> None:
    for name in ("experts_per_token", "expert_ffn_size"):
        check_whole(name, getattr(config, name))
    for name in ("experts", "shared_experts"):
        if getattr(config, name) != 0:
            check_whole(name, getattr(config, name))
    if 0 < config.experts < config.experts_per_token:
        raise InputError(
            f"a token cannot choose {config.experts_per_token} of {config.experts} experts: "
            f"experts_per_token may be 1 to {config.experts}"
        )
    if config.capacity is not None and not config.capacity > 0:
        raise InputError(
            f"capacity is {config.capacity}; it must be above 0, 1.25 for a quarter over an even "
            "load, or None to drop nothing"
        )
    for name in ("sequence_balance", "batch_balance", "z_loss", "bias_rate"):
        if not getattr(config, name) >= 0:
            raise InputError(f"{name} is {getattr(config, name)!r}; it must be 0 (off) or more")


def _derived_head_size(config: ModelConfig) -> int:
    width, heads = config.hidden_size, config.heads
    if width % heads:
        near = [str(n) for n in (width - width % heads, width - width % heads + heads) if n]
        raise InputError(
            f"hidden_size {width} does not divide into {heads} heads: "
            f"use {' or '.join(near)}, or give head_size"
        )
    return width // heads


def preset(name: str, **changes: object) -> ModelConfig:
    """A named shape, with any field changed: `preset("1M", vocab_size=1024)`."""
    if name not in PRESETS:
        raise unknown_name("model preset", name, PRESETS)
    base = PRESETS[name]
    known = [field.name for field in fields(base)]
    for field in changes:
        if field not in known:
            raise unknown_name("field of a model", field, known)
    # If the head size follows from heads and width, changing them changes it too.
    if base.head_size * base.heads == base.hidden_size:
        changes = {"head_size": None, **changes}
    if base.expert_ffn_size == base.ffn_size:
        changes = {"expert_ffn_size": None, **changes}
    return replace(base, **changes)


# The first seven are the course's own: 0.5M to 10M parameters with its corpus's vocabulary of 512,
# and heads, layers and MLPs divisible by 2 ranks and mostly by 4. The 1M-moe ones have the 1M's
# active parameters (and a router), as in Mixtral and DeepSeek. The others are as published.
# fmt: off
PRESETS: dict[str, ModelConfig] = {
    #                          V      D    L    H   K   F      length  theta
    "0.5M": ModelConfig(      512,    96,   4,   4,  2,   256),
    "1M": ModelConfig(        512,   128,   4,   4,  2,   448),
    "3M": ModelConfig(        512,   256,   4,   8,  4,   640),
    "10M": ModelConfig(       512,   384,   6,  12,  4,  1024),
    "30M": ModelConfig(      4096,   512,   8,   8,  4,  1600),
    "50M": ModelConfig(      4096,   640,   9,  10,  5,  1952),
    "100M": ModelConfig(    32000,   768,  12,  12,  4,  2048, tied=True),
    "stories15M": ModelConfig(
                            32000,   288,   6,   6,  6,   768,    256, tied=True),
    "smollm2-135m": ModelConfig(
                            49152,   576,  30,   9,  3,  1536,   8192, 1e5, tied=True),
    "llama2-7b": ModelConfig(
                            32000,  4096,  32,  32, 32, 11008,   4096),
    "llama2-13b": ModelConfig(
                            32000,  5120,  40,  40, 40, 13824,   4096),
    "llama2-70b": ModelConfig(
                            32000,  8192,  80,  64,  8, 28672,   4096),
    "llama3-8b": ModelConfig(
                           128256,  4096,  32,  32,  8, 14336,   8192, 5e5),
    "llama3-70b": ModelConfig(
                           128256,  8192,  80,  64,  8, 28672,   8192, 5e5),
    "llama3-405b": ModelConfig(
                           128256, 16384, 126, 128,  8, 53248, 131072, 5e5,
                           rope_scaling=RopeScaling()),
    "1M-moe": ModelConfig(    512,   128,   4,   4,  2,   448,
                           experts=8, expert_ffn_size=224,
                           sequence_balance=0.01, z_loss=1e-3),
    "1M-moe-shared": ModelConfig(
                              512,   128,   4,   4,  2,   448,
                           experts=16, experts_per_token=3, expert_ffn_size=112, shared_experts=1,
                           sequence_balance=1e-4, bias_rate=1e-3),
    "mixtral-8x7b": ModelConfig(
                            32000,  4096,  32,  32,  8, 14336,  32768, 1e6,
                           experts=8, batch_balance=0.02),
    "mistral-7b": ModelConfig(
                            32000,  4096,  32,  32,  8, 14336,  32768, window=4096),
    "qwen2-0.5b": ModelConfig(
                           151936,   896,  24,  14,  2,  4864,  32768, 1e6, 1e-6,
                           tied=True, qkv_bias=True),
    "qwen2-7b": ModelConfig(
                           152064,  3584,  28,  28,  4, 18944,  32768, 1e6, 1e-6,
                           qkv_bias=True),
}
# fmt: on
