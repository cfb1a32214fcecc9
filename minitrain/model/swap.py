"""Replaces layers of any model, and checks that its forward calls the new ones.

    found = linear_layers(model, keep=("head", "router"))
    swap_linears(model, lambda linear: FakeQuantLinear(linear, form), keep=("head", "router"))

A module registered under several names is replaced under all of them. Some modules never call a
layer, but read its weight and multiply by it themselves: a replacement there would have no effect.
torch's fused encoder layer does so in evaluation, unless a module in it has a hook; this is one
reason why each new layer has a hook that records its calls, the other is `check_calls`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import is_lazy

from minitrain.errors import InputError, unknown_name

HEAD, ROUTER = "head", "router"
KEEP = ("embed", HEAD, ROUTER)  # few FLOPs, and sensitive
MODES = {True: "train", False: "eval"}


def swap_linears(
    model: nn.Module,
    make: Callable[[nn.Linear], nn.Module],
    keep: Collection[str] = (),
    example: Any = None,
) -> int:
    """Replaces linear layers in place, except those that `keep` names -> their number.

    `example`: an input of the model, on which `check_calls` tests the new layers at once.
    InputError, with nothing changed, if a layer computes more than a linear one, or none is left.
    """
    found = linear_layers(model, keep)
    for path, linear in found.items():
        check_plain_linear(path, linear)
    if not found:
        raise InputError(
            f"{type(model).__name__} has no nn.Linear outside {', '.join(keep) or 'itself'}: give "
            "a model with linear layers (nn.Sequential(layer) for a bare one), or name fewer in "
            "keep"
        )
    exchange(model, {path: (linear, make(linear)) for path, linear in found.items()}, example)
    return len(found)


def linear_layers(model: nn.Module, keep: Collection[str] = ()) -> dict[str, nn.Linear]:
    """Path -> layer, except those with a name of `keep` in their path.

    "head" also matches names ending in it (`lm_head`) and layers that share an embedding's matrix,
    "router" also the `gate` beside a mixture's `experts`. InputError for names that match nothing.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    matrices = {id(m.weight) for m in modules.values() if isinstance(m, nn.Embedding)}
    for name in set(keep) - set(KEEP):
        if not any(_is_named(path, name, modules) for path in modules):
            parts = {part for path in modules for part in path.split(".") if part}
            raise unknown_name("layer to keep", name, parts)
    kept, found = set(), {}
    for path, module in modules.items():
        if path and isinstance(module, nn.Linear):
            tied = HEAD in keep and id(module._parameters.get("weight")) in matrices
            if tied or any(_is_named(path, name, modules) for name in keep):
                kept.add(module)
            elif module not in found.values():
                found[path] = module
    return {path: module for path, module in found.items() if module not in kept}


def _is_named(path: str, name: str, modules: Mapping[str, nn.Module]) -> bool:
    parent, _, last = path.rpartition(".")
    if name == ROUTER and last == "gate" and hasattr(modules[parent], "experts"):
        return True
    return f".{name}." in f".{path}." or (name in KEEP and f"_{name}." in f"{path}.")


def check_plain_linear(path: str, layer: nn.Module) -> None:
    """Raises InputError if a layer computes more than a product with its weight and a bias."""
    check_called(path, layer)
    if type(layer).forward is not nn.Linear.forward:
        reason = f"is a {type(layer).__name__} with a forward of its own, which would be lost"
    elif "weight" not in layer._parameters:
        reason = "computes its weight (weight_norm, pruning, …): make it a plain one first"
    elif any(is_lazy(parameter) for parameter in layer.parameters(recurse=False)):
        reason = "has no weight before its first input: run the model once"
    elif layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
        reason = "has hooks, which would be lost: register them after the exchange"
    else:
        return
    raise InputError(f"{path} {reason}; or leave it out, by its name in keep")


def check_called(path: str, layer: nn.Module) -> None:
    """Raises InputError for a layer known never to be called."""
    if isinstance(layer, NonDynamicallyQuantizableLinear):
        raise InputError(
            f"{path} is never called: nn.MultiheadAttention reads its weight, and a layer in its "
            "place would compute nothing; leave it out, by keep or by targets"
        )
    if type(layer).forward is nn.Module.forward:  # ParameterList, ModuleList
        raise InputError(
            f"{path} is a {type(layer).__name__}, which is never called: name the modules in it"
        )


def exchange(
    model: nn.Module, layers: Mapping[str, tuple[nn.Module, nn.Module]], example: Any = None
) -> None:
    """`layers`: path -> (old, new); `check_calls` then watches the new ones."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # nested tensors only work with torch's own layers
    for old, new in layers.values():
        new.train(old.training)
    replace_modules(model, dict(layers.values()))
    try:
        check_calls(model, {path: new for path, (_, new) in layers.items()}, example)
    except Exception:
        replace_modules(model, {new: old for old, new in layers.values()})
        raise


def replace_modules(model: nn.Module, new_by_old: Mapping[nn.Module, nn.Module]) -> None:
    """Replaces modules under all of their names in the model."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child in new_by_old:
                setattr(parent, name, new_by_old[child])


# ---- checking that the new layers are called ----


def check_calls(model: nn.Module, layers: Mapping[str, nn.Module], example: Any = None) -> None:
    """Checks which layers a forward of the model calls, in train and in eval mode.

    With an `example` (a tensor, a tuple or a mapping of arguments) at once: InputError for layers
    not called. Without, at the first forward in each mode, with a warning: an input may not use
    some layers. Experts are exempt, since they only run on tokens routed to them.
    """
    calls = Calls(model, layers)
    if example is not None:
        calls.try_out(model, example)


class Calls:
    """Hooks on a model, and on the layers that it should call."""

    def __init__(self, model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
        self.layers = {p: layer for p, layer in layers.items() if "experts" not in p.split(".")}
        self.called: set[nn.Module] = set()
        self.modes = set(MODES)  # not seen yet
        self.hooks = [layer.register_forward_pre_hook(self.note) for layer in layers.values()]
        self.hook = model.register_forward_hook(self.look)

    def note(self, layer: nn.Module, args: tuple) -> None:
        """Stays registered: it keeps torch's fused encoder layer from bypassing the new layers."""
        if self.modes and not torch.compiler.is_compiling():
            self.called.add(layer)

    def look(self, model: nn.Module, args: tuple, output: Any) -> None:
        if torch.compiler.is_compiling() or model.training not in self.modes:
            return
        if missed := self.take(model):
            warnings.warn(missed, stacklevel=2)
        if not self.modes:
            self.hook.remove()

    def take(self, model: nn.Module) -> str:
        """A warning about layers not called since the last check; empty if all were."""
        here = set(model.modules())
        missed = [p for p, m in self.layers.items() if m in here and m not in self.called]
        self.called.clear()
        self.modes.discard(model.training)
        if not missed:
            return ""
        some = ", ".join(missed[:3]) + (f" and {len(missed) - 3} more" if missed[3:] else "")
        return (
            f"{some}: exchanged, and not called by this {type(model).__name__} in "
            f"{MODES[model.training]} mode, so that nothing has changed there; where something "
            "reads the layer's weight instead, leave it out, by keep or by targets"
        )

    @torch.no_grad()
    def try_out(self, model: nn.Module, example: Any) -> None:
        """Runs the example in both modes; restores buffers, modes and random state."""
        self.hook.remove()
        modes = {module: module.training for module in model.modules()}
        buffers = {buffer: buffer.clone() for buffer in model.buffers()}
        with torch.random.fork_rng():
            try:
                missed = [self._in_mode(model, example, mode) for mode in MODES]
            finally:
                for module, training in modes.items():
                    module.training = training
                for buffer, before in buffers.items():
                    buffer.copy_(before)
        if error := next(filter(None, missed), None):
            for hook in self.hooks:
                hook.remove()
            raise InputError(error)

    def _in_mode(self, model: nn.Module, example: Any, training: bool) -> str:
        model.train(training)
        self.called.clear()
        if isinstance(example, Mapping):
            model(**example)
        else:
            model(*(example if isinstance(example, tuple) else (example,)))
        return self.take(model)
