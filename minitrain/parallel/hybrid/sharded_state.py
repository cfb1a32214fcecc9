"""ZeRO stage 1 on a mesh: ranks that hold the same weights divide the optimizer's state.

    gradients   summed over dp, ep, cp as before       each rank has the whole sum of its part
    step        rank r updates elements r n … (r+1) n  of every parameter that R ranks hold alike
    weights     an all-gather over the same ranks      P more bytes of traffic than without

Held: AdamW's 8 bytes a parameter become 8/R. The sum stays an all-reduce (a reduce-scatter would
save P elements of traffic), since the norm on a mesh needs each part's rows in one place.
Paper: Rajbhandari et al. 2020, "ZeRO", section 5.1. Lab: e02f. Shapes: R ranks, n = ceil(size / R).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from minitrain.parallel.hybrid.model import AxisGroups, sharing_axes
from minitrain.parallel.zero.guards import elementwise_only
from minitrain.ranks.group import Group


class ShardedState(torch.optim.Optimizer):
    """Replaces `optimizer`, which updates this rank's part of the model, and takes its state over.

    `param_groups` and `state` are those of `inner`, the same rule over this rank's pieces.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, axes: AxisGroups) -> None:
        rule = type(optimizer)
        elementwise_only(rule)
        self.pieces: dict[nn.Parameter, nn.Parameter] = {}  # parameter -> (n,), a view of it
        self.owners: dict[nn.Parameter, Group] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.owners[parameter] = axes[sharing_axes(parameter)]
                self.pieces[parameter] = nn.Parameter(self._own(parameter, parameter.data))
        groups = [
            {**group, "params": [self.pieces[p] for p in group["params"]]}
            for group in optimizer.param_groups
        ]
        self.inner = rule(groups)
        for parameter, state in optimizer.state.items():
            self.inner.state[self.pieces[parameter]] = {
                kind: self._own(parameter, value).clone() if value.dim() else value
                for kind, value in state.items()
            }
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        assert closure is None, "gradients come from backward() here, not from a closure"
        for parameter, piece in self.pieces.items():
            piece.grad = None if parameter.grad is None else self._own(parameter, parameter.grad)
        self.inner.step()
        for parameter, piece in self.pieces.items():
            parameter.data.copy_(self._together(parameter, piece.data))
            piece.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.pieces:
            parameter.grad = None

    def whole(self) -> torch.optim.Optimizer:
        """Collective: the optimizer of this rank's part, as it would be without sharding."""
        parameter_of = {piece: parameter for parameter, piece in self.pieces.items()}
        groups = [
            {**group, "params": [parameter_of[piece] for piece in group["params"]]}
            for group in self.param_groups
        ]
        again = type(self.inner)(groups)
        for parameter, piece in self.pieces.items():
            again.state[parameter] = {
                kind: self._together(parameter, value) if value.dim() else value
                for kind, value in self.state.get(piece, {}).items()
            }
        return again

    def _own(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        """This rank's elements of a tensor like the parameter, a view; may be empty."""
        group = self.owners[parameter]
        each = -(-parameter.numel() // group.size)
        return tensor.view(-1)[group.rank * each : (group.rank + 1) * each]

    def _together(self, parameter: nn.Parameter, own: Tensor) -> Tensor:
        """All ranks' elements, in the parameter's shape."""
        group = self.owners[parameter]
        each = -(-parameter.numel() // group.size)
        padded = torch.cat([own, own.new_zeros(each - own.numel())])
        full = group.all_gather(own.new_empty(each * group.size), padded)
        return full[: parameter.numel()].view(parameter.shape)
