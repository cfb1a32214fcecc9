"""(IA)³ and BitFit beside a column linear: a number a feature, cut as the features are.

    (IA)³    y_i = l_i ⊙ (W_i x)                    nothing is sent
    BitFit   y_i = W_i x + δ_i                      nothing
    (IA)³ of what a column reads                    y_i + W_i ((l - 1) ⊙ x), a matmul more: q, k and
                                                    v are computed of one x, and not of l ⊙ x

Over a row linear both are what they are in one process: δ and an output's l whole, and an input's l
cut as the features are that the rank reads. Key/value heads that several ranks hold: their numbers'
gradients are summed over the holders. Shapes: B batch  T tokens  I, O features  N ranks.
"""

from __future__ import annotations

from torch import Tensor, nn

from minitrain.finetuning.adapters.bias import BitFit
from minitrain.finetuning.adapters.ia3 import IA3
from minitrain.finetuning.tensor.lora import cut_like, kept_whole
from minitrain.parallel.tensor.layers import SharedRows, share
from minitrain.parallel.tensor.linear import ColumnLinear, column_linears


class ColumnBitFit(nn.Module):
    def __init__(self, bias: BitFit, layer: ColumnLinear, shared: SharedRows) -> None:
        super().__init__()
        self.delta, self.shared = cut_like(layer, bias.delta), shared  # (O/N,)

    def forward(self, layer: ColumnLinear, x: Tensor, y: Tensor) -> Tensor:
        """y (B, T, O/N) -> the same."""
        ((delta, _),) = share([(self.delta, None)], self.shared)
        return y + delta.to(y.dtype)


class ColumnIA3(nn.Module):
    def __init__(self, ia3: IA3, layer: ColumnLinear, shared: SharedRows) -> None:
        super().__init__()
        self.of_input, self.shared = ia3.of_input, shared
        self.ia3_l = (  # (1, I) or (O/N, 1)
            kept_whole(ia3.ia3_l, layer.sequence) if ia3.of_input else cut_like(layer, ia3.ia3_l)
        )

    def forward(self, layer: ColumnLinear, x: Tensor, y: Tensor) -> Tensor:
        """x (B, T, I), or (B, T/N, I) with `sequence`; y (B, T, O/N) -> the same."""
        if self.of_input:
            more = (x * (self.ia3_l.flatten() - 1)).to(x.dtype)
            pairs = [(layer.weight, None)]
            return y + column_linears(more, pairs, layer.group, layer.sequence)[0]
        ((factors, _),) = share([(self.ia3_l, None)], self.shared)
        return (y * factors.flatten()).to(y.dtype)
