"""The model's head, its weight laid out once as oneDNN reads it fastest.

The head is the largest product of a decode step: V rows of weights, of which a small model has more
than all its layers. A step multiplies few rows by it, always the same weight, so it pays to lay the
weight out in blocks beforehand, which torch otherwise does, or does without, in every call
(PyTorch's own compiler does the same where it freezes a model). It costs the head's bytes again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minitrain.model.transformer import Transformer

FEW = 64  # rows that the blocks are chosen for: those of a decode step


class Head:
    """hidden (..., D) -> logits (..., V), as `model.head`: a plain linear layer in float32 on a CPU
    from the weight that is laid out, any other (adapted, quantized, cut over ranks) as it is."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self._of: tuple[int, int] | None = None  # where the weight lies, and its version
        self._blocks: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        head = self.model.head
        if not can_be_laid_out(head):
            return head(hidden)
        weight = head.weight
        if self._of != (weight.data_ptr(), weight._version):  # new, or trained in the meantime
            self._of = weight.data_ptr(), weight._version
            self._blocks = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), FEW)
        return torch.ops.mkldnn._linear_pointwise(hidden, self._blocks, head.bias, "none", [], "")


def can_be_laid_out(head: nn.Module) -> bool:
    """True if oneDNN takes the layer, in float32: the results then differ by summation
    order alone."""
    if type(head) is not nn.Linear or head.weight.dtype != torch.float32:
        return False
    if head._forward_hooks or head._forward_pre_hooks or head.weight.is_inference():
        return False
    return head.weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
