"""The methods, and what each may be told: checked when it is made, and written into its files.

    METHODS["rslora"](rank=16)  ->  LoRAMethod(rank=16, rslora=True)

`targets` are names of layers, or the ends of their paths: "q", "attention.q", "blocks.3.mlp.down".
The hub's names do as well: "q_proj".
Papers: adapters/ and prompts/, each file its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from minitrain.errors import InputError

ALL_LINEAR = ("q", "k", "v", "o", "gate", "up", "down")


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name}={value!r}: give a whole number, 1 or more")


def _check_targets(method: object) -> None:
    """ "q,v" and ["q", "v"] are ("q", "v") too."""
    targets = method.targets
    if isinstance(targets, str):
        targets = [part.strip() for part in targets.split(",")]
    if not targets or not all(isinstance(target, str) and target for target in targets):
        raise InputError(f"targets={method.targets!r}: give names of layers, such as ('q', 'v')")
    object.__setattr__(method, "targets", tuple(dict.fromkeys(targets)))


@dataclass(frozen=True)
class LoRAMethod:
    """LoRA and those that are LoRA with a difference. `lr_ratio`: by how much faster B learns than
    A (LoRA+; lora_plus.py)."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ALL_LINEAR
    dropout: float = 0.0
    rslora: bool = False
    dora: bool = False
    pissa: bool = False
    lr_ratio: float = 1.0

    def __post_init__(self) -> None:
        _check_targets(self)
        _check_whole("rank", self.rank)
        if not self.alpha > 0:
            raise InputError(f"alpha={self.alpha}: give a number above 0, such as {2 * self.rank}")
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


@dataclass(frozen=True)
class IA3Method:
    """`inputs`: those of `targets` whose input is scaled, and not what they give."""

    targets: tuple[str, ...] = ("k", "v", "down")
    inputs: tuple[str, ...] = ("down",)

    def __post_init__(self) -> None:
        _check_targets(self)
        inputs = self.inputs.split(",") if isinstance(self.inputs, str) else self.inputs
        object.__setattr__(self, "inputs", tuple(inputs))


@dataclass(frozen=True)
class BottleneckMethod:
    """`parallel`: beside sublayers (targets attention, mlp), else after their last matrices."""

    bottleneck: int = 16
    parallel: bool = False
    targets: tuple[str, ...] = ()
    scale: float = 4.0  # of parallel ones

    def __post_init__(self) -> None:
        if not self.targets:
            usual = ("mlp",) if self.parallel else ("o", "down")
            object.__setattr__(self, "targets", usual)
        _check_targets(self)
        _check_whole("bottleneck", self.bottleneck)


@dataclass(frozen=True)
class BitFitMethod:
    targets: tuple[str, ...] = ALL_LINEAR

    def __post_init__(self) -> None:
        _check_targets(self)


@dataclass(frozen=True)
class NormMethod:
    targets: tuple[str, ...] = ("attention_norm", "mlp_norm", "norm")

    def __post_init__(self) -> None:
        _check_targets(self)


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
