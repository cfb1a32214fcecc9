"""A module's parameters in one flat tensor, of which each of N ranks owns 1/N.

    full     | weight ........ | bias ... | weight ........ | bias ... | 0 |     (S,)
    shard    |      rank 0       |      rank 1       |      rank 2       |       (S/N,)

Shard boundaries ignore parameter boundaries: the last shard is padded with zeros, so that all are
of one size. Lab e03 starts from this unit; unit.py adds mixed precision, frozen parameters and
weight decay.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from minitrain.ranks.group import Group

Action = Callable[["FlatUnit"], object]


class FlatUnit:
    """`shard` is a view of this rank's part of `full`: writing to one writes to the other."""

    def __init__(self, module: nn.Module, group: Group) -> None:
        self.module, self.group = module, group
        self.parameters = list(module.parameters())  # tied ones once
        first, sizes = self.parameters[0], [p.numel() for p in self.parameters]
        self.length = -(-sum(sizes) // group.size)  # S/N, rounded up
        self.full = torch.zeros(self.length * group.size, dtype=first.dtype, device=first.device)
        for parameter, place in zip(self.parameters, self.full.split(self._with_padding(sizes))):
            parameter.data = place.copy_(parameter.data.flatten()).view_as(parameter)
        self.shard = nn.Parameter(self.full.chunk(group.size)[group.rank])

    def whole_gradient(self) -> Tensor:
        """(S,): a new tensor with this rank's gradients; zeros where there is none."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        flat = torch.zeros(self.full.numel(), dtype=parts[0].dtype, device=parts[0].device)
        sizes = [p.numel() for p in parts]
        for place, part in zip(flat.split(self._with_padding(sizes)), parts):
            place.copy_(part.flatten())
        return flat

    def when_complete(self, action: Action) -> None:
        """Calls `action(self)` once a backward has computed the last of its gradients."""
        missing = set(self.parameters)

        def arrived(parameter: nn.Parameter) -> None:
            missing.discard(parameter)
            if not missing:
                missing.update(self.parameters)
                action(self)

        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(arrived)

    def watch(self, before_forward: Action, after_forward: Action, before_backward: Action) -> None:
        """Calls each with this unit as its module runs; `before_backward` once the gradient of the
        output is known."""

        def left(module: nn.Module, inputs: tuple, output: Tensor) -> None:
            after_forward(self)
            if output.requires_grad:
                output.register_hook(lambda gradient: before_backward(self) and None)

        self.module.register_forward_pre_hook(lambda *_: before_forward(self) and None)
        self.module.register_forward_hook(left)

    def _with_padding(self, sizes: list[int]) -> list[int]:
        return [*sizes, self.full.numel() - sum(sizes)]
