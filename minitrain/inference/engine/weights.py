"""Notices when the model is no longer the one whose keys and values are in the cache.

After an optimizer step, `disabled(model)`, a merge or another checkpoint, what was read by the old
weights must not be found for a prompt, nor read on by an answer. Two looks:

    each step     modules, their switches and hooks, where each tensor lies, how often it changed
    a new request also a few numbers of each tensor: torch's fused AdamW, and whoever writes to
                  `parameter.data`, leave no other trace

Cost a step: 0.1 ms for the 77 modules of a model of six layers, and 0.1 ms more for a new request.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from minitrain.errors import InputError

SAMPLES = 16  # numbers of a tensor that are compared


class Weights:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._remember(*state_of(model))

    def changed(self, closely: bool) -> bool:
        """Since it last said so; `closely`: by the numbers too. InputError for active dropout."""
        seen, tensors = state_of(self.model)
        changed = seen != self.seen or (closely and self._numbers_differ())
        if changed:
            self._remember(seen, tensors)
        if not self.certain:
            check_certain(self.model)
            self.certain = True
        return changed

    def _remember(self, seen: list[object], tensors: list[Tensor]) -> None:
        """The samples are views, and hold the old weights: no other tensor can lie there before
        the next look."""
        self.seen, self.certain = seen, False
        self.samples: dict[object, list[Tensor]] = defaultdict(list)
        for tensor in tensors:
            if tensor.is_contiguous() and not tensor.is_meta:
                step = tensor.numel() // SAMPLES | 1  # odd: not always the same column
                view = tensor.detach().view(-1)[::step]
                self.samples[tensor.dtype, tensor.device].append(view)
        self.numbers = self._read()

    def _read(self) -> list[Tensor]:
        return [torch.cat(views).view(torch.uint8) for views in self.samples.values()]

    def _numbers_differ(self) -> bool:
        return not all(map(torch.equal, self.numbers, self._read()))


def state_of(model: nn.Module) -> tuple[list[object], list[Tensor]]:
    """The comparable state of the weights (nothing that would read their values), and
    the tensors."""
    modules, known = [model], {model}
    seen: list[object] = []
    tensors: list[Tensor] = []
    for module in modules:  # which grows meanwhile
        own = module.__dict__
        seen.append(module)
        seen += [value for value in own.values() if type(value) in (bool, float)]
        seen += own["_forward_hooks"]
        seen += own["_forward_pre_hooks"]
        held = [*own["_parameters"].values(), *own["_buffers"].values()]
        tensors += [tensor for tensor in held if tensor is not None]
        inside = [m for m in own["_modules"].values() if m is not None and m not in known]
        modules += inside
        known.update(inside)
    for tensor in tensors:
        seen.append(tensor.data_ptr())
        seen.append(0 if tensor.is_inference() else tensor._version)
    return seen, tensors


def check_certain(model: nn.Module) -> None:
    """InputError for a model that drops numbers at random, and gives a prompt no one answer."""
    for path, module in model.named_modules():
        name = "p" if isinstance(module, nn.modules.dropout._DropoutNd) else "dropout"
        p = getattr(module, name, 0)
        if module.training and isinstance(p, float) and p > 0:
            raise InputError(
                f"{path} is in training mode and drops {p:.0%} of its numbers at random: serve the "
                "model after model.eval()"
            )
