"""Split backward for zero-bubble schedules: B, the input's gradient; later W, the weights'.

    loss.backward()   |dy·W₂ᵀ|x₂ᵀ·dy|dy·W₁ᵀ|x₁ᵀ·dy|        layer by layer, both
    B, and then W     |dy·W₂ᵀ|dy·W₁ᵀ|  …  |x₂ᵀ·dy|x₁ᵀ·dy|  the same matmuls in another order

B asks autograd for the gradients of the stage's input and of each layer's *output*, which computes
no weight gradient on the way. W goes from each of these outputs one step back, to that layer's own
parameters. A parameter that is not used exactly once, by its own module, gets its gradient with B:
an embedding tied to a head in the same stage, or matrices of several linears that another module
multiplies together.

Cost: the FLOPs of a whole backward; from B to W each layer keeps its output gradient beside its
saved tensors. With recomputation, W recomputes a block for each of its layers: prefer a schedule
that does not split. Paper: Qi et al. 2024, arXiv 2401.10241. Lab: e02c_pipeline_parallel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge


class Use(NamedTuple):
    """A module's own parameters, and its output's node in the graph, without the data."""

    parameters: list[nn.Parameter]
    output: GradientEdge


@contextmanager
def noting_uses(module: nn.Module) -> Iterator[list[Use]]:
    """Records in the list each use of a module inside `module` that has parameters of its own."""
    uses: list[Use] = []

    def note(layer: nn.Module, _: object, out: object) -> None:
        own = [p for p in layer.parameters(recurse=False) if p.requires_grad]
        if own and isinstance(out, Tensor) and out.requires_grad:
            uses.append(Use(own, get_gradient_edge(out)))

    handles = [layer.register_forward_hook(note) for layer in module.modules()]
    try:
        yield uses
    finally:
        for handle in handles:
            handle.remove()


class SplitBackward:
    """One forward of `module` whose backward runs in two halves; `uses` were recorded in it."""

    def __init__(self, module: nn.Module, uses: list[Use]) -> None:
        times = Counter(p for use in uses for p in use.parameters)
        self.later = [use for use in uses if all(times[p] == 1 for p in use.parameters)]
        deferred = {p for use in self.later for p in use.parameters}
        self.at_once = [p for p in module.parameters() if p.requires_grad and p not in deferred]
        self.gradients: list[Tensor | None] = []  # of the outputs of `later`

    def inputs(self, root: Tensor, x: Tensor | None) -> Tensor | None:
        """B: from the scalar `root` to the gradient of the input x, if there is one."""
        wanted = [*([] if x is None else [x]), *self.at_once, *(use.output for use in self.later)]
        found = list(torch.autograd.grad(root, wanted, retain_graph=True, allow_unused=True))
        dx = None if x is None else found.pop(0)
        accumulate(self.at_once, found[: len(self.at_once)])
        self.gradients = found[len(self.at_once) :]
        return dx

    def weights(self) -> None:
        """W: adds to `.grad` of every parameter that B skipped."""
        for (parameters, output), dy in zip(self.later, self.gradients):
            if dy is not None:
                accumulate(
                    parameters, torch.autograd.grad(output, parameters, dy, allow_unused=True)
                )


@torch.no_grad()
def accumulate(parameters: list[nn.Parameter], gradients: list[Tensor | None]) -> None:
    for parameter, gradient in zip(parameters, gradients):
        if gradient is None:
            continue
        if parameter.grad is None:
            parameter.grad = gradient.detach()
        else:
            parameter.grad += gradient
