"""Fine-tuning methods: the options of each, and the adapter it puts over a layer.

    METHODS["rslora"](rank=16)                   LoRAMethod(rank=16, rslora=True)
    method.add_to(model, generator)              adapters over its layers, all else frozen
    method.adapter_for(layer, path, generator)   the adapter for one of them

`targets` are names of layers, or the ends of their paths: "q", "attention.q", "blocks.3.mlp.down".
The hub's names work too: "q_proj"; "all-linear" means all linear layers but the head, of any
model. `modules_to_save`: names of modules whose copies are trained in full and saved with the
adapter. Options are checked when a method is made, and are written into its files. Formulas, costs
and papers: adapters/ and prompts.py.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from minitrain.errors import InputError, check_whole, unknown_name
from minitrain.finetuning.adapters.bottleneck import Houlsby, Parallel
from minitrain.finetuning.adapters.dora import DoRA
from minitrain.finetuning.adapters.features import IA3, BitFit
from minitrain.finetuning.adapters.lora import LoRA, LoRAEmbedding, LoRAExperts
from minitrain.finetuning.adapters.norm import TrainedModule, TunedNorm
from minitrain.finetuning.adapters.pissa import PiSSA
from minitrain.finetuning.layer import (
    ALL_LINEAR,
    Adapted,
    Adapter,
    features,
    find_layers,
    is_target,
)
from minitrain.finetuning.prompts import Prefix, add_prefix, add_prompt
from minitrain.model.experts.grouped import Experts
from minitrain.model.hub.load import hub_name
from minitrain.model.swap import check_called, exchange
from minitrain.model.transformer import Transformer


def _names(what: str, given: object) -> tuple[str, ...]:
    """ "q,v" and ["q", "v"] are ("q", "v") too."""
    names = [part.strip() for part in given.split(",")] if isinstance(given, str) else given
    if not all(isinstance(name, str) and name for name in names):
        raise InputError(f"{what}={given!r}: give names of layers, such as ('q', 'v')")
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class LayerMethod(ABC):
    """A method that puts an adapter over each of the layers that it names."""

    modules_to_save: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if not self.targets:
            raise InputError(f"targets={self.targets!r}: give names of layers, such as ('q', 'v')")
        for what in ("targets", "modules_to_save"):
            object.__setattr__(self, what, _names(what, getattr(self, what) or ()))

    @abstractmethod
    def adapter_for(self, layer: nn.Module, path: str, generator: torch.Generator) -> Adapter:
        """InputError where the method cannot adapt the layer."""

    def check(self, model: nn.Module, paths: list[str]) -> None:  # noqa: B027 - few have any
        """InputError for an option that matches none of the layers at these paths."""

    def add_to(self, model: nn.Module, generator: torch.Generator, example: Any = None) -> None:
        """Wraps the layers and freezes the rest; after an InputError nothing has changed."""
        found = find_layers(model, self.targets)
        whole = find_layers(model, self.modules_to_save) if self.modules_to_save else []
        if twice := {path for path, _ in found} & {path for path, _ in whole}:
            raise InputError(f"{min(twice)} is in targets and in modules_to_save: name it in one")
        self.check(model, [path for path, _ in found])
        for path, layer in (*found, *whole):
            check_called(path, layer)
            if any(is_lazy(parameter) for parameter in layer.parameters()):
                raise InputError(f"{path} has no weight before its first input: run the model once")
        adapters = {path: self.adapter_for(layer, path, generator) for path, layer in found}
        adapters |= {path: TrainedModule(layer) for path, layer in whole}
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        model.requires_grad_(False)
        layers = {path: (layer, Adapted(layer, adapters[path])) for path, layer in (*found, *whole)}
        try:
            exchange(model, layers, example)
        except Exception:
            for parameter in learning:
                parameter.requires_grad_(True)
            raise


def _check_linear(layer: nn.Module, path: str) -> None:
    if features(layer) is None:
        raise InputError(
            f"{path} is a {type(layer).__name__} and no linear layer: give targets with "
            "in_features and out_features, such as ('q', 'v')"
        )


@dataclass(frozen=True)
class LoRAMethod(LayerMethod):
    """LoRA and its variants. `lr_ratio`: the learning rate of B over that of A (LoRA+).
    `rank_pattern`, `alpha_pattern`: ranks and alphas of single layers, by a regular expression for
    the path or its end, as in PEFT; the first match wins."""

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
        check_whole("rank", self.rank)
        for pattern, rank in self.rank_pattern.items():
            check_whole(f"rank_pattern, {pattern}", rank)
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

    def at(self, path: str) -> LoRAMethod:
        """The method with a layer's own rank and alpha, by our path or the hub's."""
        own = {}
        for name in ("rank", "alpha"):
            for pattern, value in getattr(self, f"{name}_pattern").items():
                if name not in own and _fits(pattern, path):
                    own[name] = value
        return replace(self, **own, rank_pattern={}, alpha_pattern={}) if own else self

    def check(self, model: nn.Module, paths: list[str]) -> None:
        every = [path for path, _ in model.named_modules()]
        for pattern in {**self.rank_pattern, **self.alpha_pattern}:
            if not any(_fits(pattern, path) for path in every):
                kind = type(model).__name__
                raise InputError(f"the pattern {pattern!r} fits no layer of this {kind}")

    def adapter_for(self, layer: nn.Module, path: str, generator: torch.Generator) -> Adapter:
        own = self.at(path)
        if isinstance(layer, nn.Embedding):
            self._check_embedding(layer, path)
            return LoRAEmbedding(layer, own.rank, own.scaling, generator)
        if isinstance(layer, Experts):
            if self.dora or self.pissa or self.dropout:
                raise InputError(
                    f"{path} holds the matrices of all experts, beside which only lora and rslora "
                    "learn, without dropout: use one of them there"
                )
            return LoRAExperts(layer, own.rank, own.scaling, generator)
        _check_linear(layer, path)
        kind = DoRA if self.dora else PiSSA if self.pissa else LoRA
        return kind(layer, own.rank, own.scaling, self.dropout, generator)

    def _check_embedding(self, layer: nn.Embedding, path: str) -> None:
        if self.dora or self.pissa:
            raise InputError(f"{path} is an embedding: use lora or rslora there")
        if type(layer).forward is not nn.Embedding.forward and not hasattr(layer, "embed_scale"):
            raise InputError(
                f"{path} is a {type(layer).__name__}, which looks up in a way of its own: leave it "
                "out of targets, or name it in modules_to_save"
            )


def _fits(pattern: str, path: str) -> bool:
    """True if our path or the hub's matches, whole or after a dot, as in PEFT."""
    try:
        compiled = re.compile(rf"(.*\.)?({pattern})$")
    except re.error as error:
        raise InputError(f"the pattern {pattern!r} is no regular expression: {error}") from error
    return any(compiled.match(name) for name in (path, hub_name(path)))


@dataclass(frozen=True)
class IA3Method(LayerMethod):
    """`inputs`: those of `targets` whose input is scaled instead of their output."""

    targets: tuple[str, ...] = ("k", "v", "down")
    inputs: tuple[str, ...] = ("down",)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "inputs", _names("inputs", self.inputs))

    def check(self, model: nn.Module, paths: list[str]) -> None:
        for name in self.inputs if self.inputs != IA3Method.inputs else ():
            if not any(is_target(path, name) for path in paths):
                raise unknown_name("target with scaled inputs", name, self.targets)

    def adapter_for(self, layer: nn.Module, path: str, generator: torch.Generator) -> Adapter:
        _check_linear(layer, path)
        return IA3(layer, of_input=any(is_target(path, name) for name in self.inputs))


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
        check_whole("bottleneck", self.bottleneck)

    def adapter_for(self, layer: nn.Module, path: str, generator: torch.Generator) -> Adapter:
        if not self.parallel:
            _check_linear(layer, path)
            return Houlsby(layer, features(layer)[0], self.bottleneck, generator)
        inside = next(filter(None, map(features, layer.modules())), None)
        if inside is None:
            raise InputError(f"{path} has no linear layer: give targets such as ('mlp',)")
        return Parallel(layer, inside[1], self.bottleneck, generator, scale=self.scale)


@dataclass(frozen=True)
class BitFitMethod(LayerMethod):
    targets: tuple[str, ...] = ALL_LINEAR

    def adapter_for(self, layer: nn.Module, path: str, generator: torch.Generator) -> Adapter:
        _check_linear(layer, path)
        return BitFit(layer)


@dataclass(frozen=True)
class NormMethod(LayerMethod):
    targets: tuple[str, ...] = ("attention_norm", "mlp_norm", "norm")

    def adapter_for(self, layer: nn.Module, path: str, generator: torch.Generator) -> Adapter:
        if features(layer) or not list(layer.parameters(recurse=False)):
            raise InputError(f"{path} is no norm with weights: give targets such as ('mlp_norm',)")
        return TunedNorm(layer)


@dataclass(frozen=True)
class SoftMethod(ABC):
    """Learned tokens before the sequence, in the slots of a `Transformer`."""

    tokens: int = 16

    def __post_init__(self) -> None:
        check_whole("tokens", self.tokens)

    def add_to(self, model: nn.Module, generator: torch.Generator, example: Any = None) -> None:
        if not isinstance(model, Transformer):
            raise InputError(
                f"{type(self).__name__} uses slots of minitrain's Transformer, and this is a "
                f"{type(model).__name__}: read it with load_pretrained, or use lora"
            )
        model.requires_grad_(False)
        self.put_before(model, generator)

    @abstractmethod
    def put_before(self, model: Transformer, generator: torch.Generator) -> None:
        """Trainable vectors in the model's slot for them."""


@dataclass(frozen=True)
class PrefixMethod(SoftMethod):
    """`width`: of the MLP that makes the prefix during training; None: the prefix is trained
    directly."""

    width: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width is not None:
            check_whole("width", self.width)

    def put_before(self, model: Transformer, generator: torch.Generator) -> None:
        add_prefix(model, Prefix(model, self.tokens, self.width, generator))


@dataclass(frozen=True)
class PromptMethod(SoftMethod):
    def put_before(self, model: Transformer, generator: torch.Generator) -> None:
        add_prompt(model, self.tokens, generator)


@dataclass(frozen=True)
class FullMethod:
    """Trains every weight."""

    def add_to(self, model: nn.Module, generator: torch.Generator, example: Any = None) -> None:
        model.requires_grad_(True)


Method = LayerMethod | SoftMethod | FullMethod

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
