"""LoRA under tensor parallelism: each adapter is cut as its layer is, and sends R numbers a token.

    column   y_i = W_i x + s·B_i u,  u = A x           A whole on every rank, B cut by rows as W is
             backward: du is summed over the ranks     (of R numbers a token, where dx has D)
    row      y = Σ W_i x_i + s·B u,  u = Σ A_i x_i     A cut by columns as W is, B whole
             forward: u is summed

What is whole has the same gradient on every rank, and nothing of it has to be sent. With the
sequence split, u is gathered before a column's B and reduce-scattered after a row's A; what is
whole then sees T/N tokens and its gradient is a part, which its layout says ("tp"). Key/value heads
that several ranks hold: their rows of B are summed over the holders, as W's would be.

    PiSSA    its first factors are cut as A and B are; u has 2R numbers, in one message
    DoRA     a column has whole rows of W + s·B·A; of a row each rank has a part of every length:
             ‖V‖² is summed, O numbers a step

Papers: Shoeybi et al., arXiv 1909.08053; Sheng et al., S-LoRA, 2311.03285, section 6.
Shapes: B batch  T tokens  I, O features in and out  R rank  N ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.finetuning.adapters.dora import DoRA
from minitrain.finetuning.adapters.lora import LoRA
from minitrain.finetuning.adapters.pissa import PiSSA
from minitrain.finetuning.layer import Adapter
from minitrain.parallel.collectives.differentiable import (
    all_gather,
    copy,
    reduce,
    reduce_scatter,
    summed,
)
from minitrain.parallel.layout import lay_out, layout_of, take_slice
from minitrain.parallel.tensor.layers import SharedRows, share
from minitrain.parallel.tensor.linear import ColumnLinear, CutLinear, RowLinear


def cut_like(layer: CutLinear, parameter: nn.Parameter) -> nn.Parameter:
    """The rows of a column's parameter (O, …), or the columns of a row's (…, I), of this rank."""
    return take_slice(parameter, layout_of(layer.weight).slice, "tp")


def kept_whole(parameter: nn.Parameter, sequence: bool) -> nn.Parameter:
    """A copy on each rank; with the sequence split each sees T/N tokens."""
    if sequence:
        lay_out(parameter, partial="tp")
    return parameter


class CutLoRA(Adapter):
    """The base of the column and row cuts: the factors, and how their product is added."""

    def __init__(self, lora: LoRA, layer: CutLinear, cut: str) -> None:
        """`cut`: lora_A or lora_B, and what goes with it."""
        super().__init__()
        self.group, self.sequence, self.scaling = layer.group, layer.sequence, lora.scaling
        for name in ("lora_A", "lora_B"):
            setattr(self, name, self._place(getattr(lora, name), layer, name == cut))
        self.magnitude: nn.Parameter | None = None
        if isinstance(lora, DoRA):
            self.magnitude = self._place(lora.magnitude, layer, cut == "lora_B")
        self.has_first = isinstance(lora, PiSSA)
        if self.has_first:
            part = layout_of(layer.weight).slice
            a, b = lora.first_A, lora.first_B
            self.register_buffer("first_A", part.of(a) if cut == "lora_A" else a)
            self.register_buffer("first_B", part.of(b) if cut == "lora_B" else b)

    def _place(self, parameter: nn.Parameter, layer: CutLinear, cut: bool) -> nn.Parameter:
        return cut_like(layer, parameter) if cut else kept_whole(parameter, self.sequence)

    def factors(self) -> tuple[Tensor, Tensor]:
        """A and B as this rank has them; of PiSSA [A; A0] and [B, -B0]."""
        if not self.has_first:
            return self.lora_A, self.lora_B
        a = torch.cat((self.lora_A, self.first_A))
        return a, torch.cat((self.lora_B, -self.first_B), dim=1)

    def added(
        self, layer: CutLinear, y: Tensor, low_rank: Tensor, magnitude: Tensor | None
    ) -> Tensor:
        """The sum of layer and adapter, y and low_rank (B, T, O)."""
        if magnitude is None:
            return y + low_rank.to(y.dtype)
        factor = magnitude / self.row_lengths(layer)  # (O,)
        straight = y if layer.bias is None else y - layer.bias
        return y + ((factor - 1) * straight + factor * low_rank).to(y.dtype)

    @torch.no_grad()
    def row_lengths(self, layer: CutLinear) -> Tensor:
        """‖W + s·B·A‖ of each row that is here, (O,); a row of padding has none, and gets 1."""
        turned = layer.weight + self.scaling * (self.lora_B @ self.lora_A)
        squares = self.whole_squares(turned.square().sum(dim=1))
        return torch.where(squares > 0, squares.sqrt(), 1.0)

    def whole_squares(self, squares: Tensor) -> Tensor:
        return squares


class ColumnLoRA(CutLoRA):
    """Beside a ColumnLinear."""

    def __init__(self, lora: LoRA, layer: ColumnLinear, shared: SharedRows) -> None:
        super().__init__(lora, layer, cut="lora_B")
        self.shared = shared

    def forward(self, layer: ColumnLinear, x: Tensor, y: Tensor) -> Tensor:
        """x (B, T, I), or (B, T/N, I) with `sequence`; y (B, T, O/N) -> the same."""
        a, b = self.factors()
        u = F.linear(x.to(a.dtype), a) * self.scaling
        u = all_gather(u, self.group, dim=1) if self.sequence else copy(u, self.group)  # (B, T, R)
        ((b, magnitude),) = share([(b, self.magnitude)], self.shared)
        return self.added(layer, y, F.linear(u, b), magnitude)


class RowLoRA(CutLoRA):
    """Over a RowLinear."""

    def __init__(self, lora: LoRA, layer: RowLinear) -> None:
        super().__init__(lora, layer, cut="lora_A")

    def forward(self, base: RowLinear, x: Tensor) -> Tensor:
        """x (B, T, I/N) -> (B, T, O), or (B, T/N, O) with `sequence`."""
        a, b = self.factors()
        u = F.linear(x.to(a.dtype), a) * self.scaling  # (B, T, R), a part
        u = reduce_scatter(u, self.group, dim=1) if self.sequence else reduce(u, self.group)
        return self.added(base, base(x), F.linear(u, b), self.magnitude)

    def whole_squares(self, squares: Tensor) -> Tensor:
        return summed(self.group, squares)
