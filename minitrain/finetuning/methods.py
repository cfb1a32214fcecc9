"""The methods, and what each may be told: checked when it is made, and written into its files.

    METHODS["rslora"](rank=16)  ->  LoRAMethod(rank=16, rslora=True)

`targets` are names of layers, or the ends of their paths: "q", "attention.q", "blocks.3.mlp.down".
The hub's names do as well: "q_proj"; "all-linear" are all linear layers but the head, of any model.
`modules_to_save`: names of modules of which copies learn whole and are saved with the adapter.
Papers: adapters/ and prompts/, each file its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from minitrain.errors import InputError

ALL_LINEAR = ("q", "k", "v", "o", "gate", "up", "down")
EVERY_LINEAR = "all-linear"  # as PEFT calls all linear layers but the head, of any model


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name}={value!r}: give a whole number, 1 or more")


def _names(what: str, given: object) -> tuple[str, ...]:
    """ "q,v" and ["q", "v"] are ("q", "v") too."""
    names = [part.strip() for part in given.split(",")] if isinstance(given, str) else given
    if not all(isinstance(name, str) and name for name in names):
        raise InputError(f"{what}={given!r}: give names of layers, such as ('q', 'v')")
    return tuple(dict.fromkeys(names))


def fits(pattern: str, path: str) -> bool:
    """As PEFT compares them."""
    return re.match(rf"(.*\.)?({pattern})$", path) is not None


@dataclass(frozen=True)
class LayerMethod:
    """A method that changes layers by their names."""

    modules_to_save: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if not self.targets:
            raise InputError(f"targets={self.targets!r}: give names of layers, such as ('q', 'v')")
        for what in ("targets", "modules_to_save"):
            object.__setattr__(self, what, _names(what, getattr(self, what) or ()))


@dataclass(frozen=True)
class LoRAMethod(LayerMethod):
    """LoRA and those that are LoRA with a difference. `lr_ratio`: by how much faster B learns than
    A (LoRA+; lora_plus.py). `rank_pattern`, `alpha_pattern`: ranks and alphas of single layers, by
    a regular expression for the path or its end, as in PEFT; the first that fits counts."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ALL_LINEAR
    dropout: float = 0.0
    rslora: bool = False
    dora: bool = False
    pissa: bool = False
    lr_ratio: float = 1.0
    rank_pattern: Mapping[str, int] = field(default_factory=dict, hash=False)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_whole("rank", self.rank)
        for pattern, rank in self.rank_pattern.items():
            _check_whole(f"rank_pattern, {pattern}", rank)
        for alpha in (self.alpha, *self.alpha_pattern.values()):
            if not alpha > 0:
                raise InputError(f"alpha={alpha}: give a number above 0, such as {2 * self.rank}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout={self.dropout}: it is a probability, give 0 to 0.99")
        if not self.lr_ratio > 0:
            raise InputError(f"lr_ratio={self.lr_ratio}: give a number above 0, such as 16")
        if self.dora and self.pissa:
            raise InputError("dora and pissa each set out from the weight: use one of them")

    @property
    def scaling(self) -> float:
        """s of y = W x + s·B (A x)."""
        return self.alpha / (self.rank**0.5 if self.rslora else self.rank)

    def at(self, *paths: str) -> LoRAMethod:
        """The method with a layer's own rank and alpha, by any of the layer's paths."""
        own = {}
        for name in ("rank", "alpha"):
            for pattern, value in getattr(self, f"{name}_pattern").items():
                if name not in own and any(fits(pattern, path) for path in paths):
                    own[name] = value
        if not own:
            return self
        return replace(self, **own, rank_pattern={}, alpha_pattern={})


@dataclass(frozen=True)
class IA3Method(LayerMethod):
    """`inputs`: those of `targets` whose input is scaled, and not what they give."""

    targets: tuple[str, ...] = ("k", "v", "down")
    inputs: tuple[str, ...] = ("down",)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "inputs", _names("inputs", self.inputs))


@dataclass(frozen=True)
class BottleneckMethod(LayerMethod):
    """`parallel`: beside sublayers (targets attention, mlp), else after their last matrices."""

    bottleneck: int = 16
    parallel: bool = False
    targets: tuple[str, ...] = ()
    scale: float = 4.0  # of parallel ones

    def __post_init__(self) -> None:
        if not self.targets:
            usual = ("mlp",) if self.parallel else ("o", "down")
            object.__setattr__(self, "targets", usual)
        super().__post_init__()
        _check_whole("bottleneck", self.bottleneck)


@dataclass(frozen=True)
class BitFitMethod(LayerMethod):
    targets: tuple[str, ...] = ALL_LINEAR


@dataclass(frozen=True)
class NormMethod(LayerMethod):
    targets: tuple[str, ...] = ("attention_norm", "mlp_norm", "norm")


@dataclass(frozen=True)
class PrefixMethod:
    """`width`: of the MLP that makes the prefix while it is trained; None: the prefix itself is."""

    tokens: int = 16
    width: int | None = None

    def __post_init__(self) -> None:
        _check_whole("tokens", self.tokens)
        if self.width is not None:
            _check_whole("width", self.width)


@dataclass(frozen=True)
class PromptMethod:
    tokens: int = 16

    def __post_init__(self) -> None:
        _check_whole("tokens", self.tokens)


@dataclass(frozen=True)
class FullMethod:
    """Every weight learns."""


Method = (
    LoRAMethod
    | IA3Method
    | BottleneckMethod
    | BitFitMethod
    | NormMethod
    | PrefixMethod
    | PromptMethod
    | FullMethod
)

METHODS: dict[str, Callable[..., Method]] = {
    "lora": LoRAMethod,
    "rslora": partial(LoRAMethod, rslora=True),
    "lora+": partial(LoRAMethod, lr_ratio=16.0),
    "dora": partial(LoRAMethod, dora=True),
    "pissa": partial(LoRAMethod, pissa=True),
    "ia3": IA3Method,
    "houlsby": BottleneckMethod,
    "parallel": partial(BottleneckMethod, parallel=True),
    "bitfit": BitFitMethod,
    "norm": NormMethod,
    "prefix": partial(PrefixMethod, width=64),
    "p-tuning-v2": PrefixMethod,
    "prompt": PromptMethod,
    "full": FullMethod,
}
