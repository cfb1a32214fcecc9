"""LoRA under tensor parallelism: each adapter is cut as its layer is, and sends R numbers a token.

    column   y_i = W_i x + s·B_i u,  u = A x           A whole on every rank, B cut by rows as W is
             backward: du is summed over the ranks     (of R numbers a token, where dx has D)
    row      y = Σ W_i x_i + s·B u,  u = Σ A_i x_i     A cut by columns as W is, B whole
             forward: u is summed

What is whole has the same gradient on every rank, and nothing of it has to be sent. With the
sequence split, u is gathered before a column's B and reduce-scattered after a row's A; what is
whole then sees T/N tokens and its gradient is a part, which its layout says ("tp"). Key/value heads
that several ranks hold: their rows of B are summed over the holders, as W's would be.

    adapt(model, "lora")   on every rank alike
    tensor_parallel_adapted(model, group)
    save_adapter(whole_adapter(bare, model, group), folder)

Papers: Shoeybi et al., arXiv 1909.08053; Sheng et al., S-LoRA, 2311.03285, section 6.
Shapes: B batch  T tokens  I, O features in and out  R rank  N ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.finetuning.adapt import adapt, adaptation_of
from minitrain.finetuning.adapters.lora import LoRA
from minitrain.finetuning.layer import adapted_layers
from minitrain.finetuning.merging import unload
from minitrain.finetuning.methods import LoRAMethod
from minitrain.model.transformer import Transformer
from minitrain.parallel.collectives.differentiable import all_gather, copy, reduce, reduce_scatter
from minitrain.parallel.layout import lay_out, layout_of, take_slice
from minitrain.parallel.tensor.heads import SharedRows, share
from minitrain.parallel.tensor.layers import TensorAttention, tensor_parallel
from minitrain.parallel.tensor.linear import ColumnLinear, CutLinear, RowLinear
from minitrain.ranks.group import Group

NOTHING_SHARED = SharedRows((), ())


class CutLoRA(nn.Module):
    """What all kinds share: the factors, and which of them is cut."""

    def __init__(self, lora: LoRA, layer: CutLinear, cut: str) -> None:
        super().__init__()
        self.group, self.sequence, self.scaling = layer.group, layer.sequence, lora.scaling
        self.lora_A, self.lora_B = lora.lora_A, lora.lora_B
        part = layout_of(layer.weight).slice
        setattr(self, cut, take_slice(getattr(lora, cut), part, "tp"))
        if self.sequence:
            whole = self.lora_A if cut == "lora_B" else self.lora_B
            lay_out(whole, partial="tp")


class ColumnLoRA(CutLoRA):
    """Beside a ColumnLinear."""

    def __init__(self, lora: LoRA, layer: ColumnLinear, shared: SharedRows) -> None:
        super().__init__(lora, layer, cut="lora_B")
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, I), or (B, T/N, I) with `sequence` -> (B, T, O/N)."""
        u = F.linear(x.to(self.lora_A.dtype), self.lora_A) * self.scaling
        u = all_gather(u, self.group, dim=1) if self.sequence else copy(u, self.group)  # (B, T, R)
        ((b, _),) = share([(self.lora_B, None)], self.shared)
        return F.linear(u, b).to(x.dtype)


class RowLoRA(CutLoRA):
    """Beside a RowLinear."""

    def __init__(self, lora: LoRA, layer: RowLinear) -> None:
        super().__init__(lora, layer, cut="lora_A")

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, I/N) -> (B, T, O), or (B, T/N, O) with `sequence`."""
        u = F.linear(x.to(self.lora_A.dtype), self.lora_A) * self.scaling  # (B, T, R), a part
        u = reduce_scatter(u, self.group, dim=1) if self.sequence else reduce(u, self.group)
        return F.linear(u, self.lora_B).to(x.dtype)


def tensor_parallel_adapted(
    model: Transformer, group: Group, sequence: bool = False
) -> Transformer:
    """`tensor_parallel` for a model that is adapted by LoRA, rsLoRA or LoRA+, alike on every rank.

    Changed in place and returned: layers and adapters are cut, and only adapters are trained.
    """
    method = adaptation_of(model)
    _check(method)
    adapters = {path: layer.adapter for path, layer in adapted_layers(model).items()}
    if odd := [path for path, adapter in adapters.items() if not isinstance(adapter, LoRA)]:
        raise InputError(f"{odd[0]} is an embedding, whose adapter is not cut: leave it out")
    tensor_parallel(unload(model), group, sequence)
    shared = {
        layer: attention.shared
        for attention in model.modules()
        if isinstance(attention, TensorAttention)
        for layer in (attention.k, attention.v)
    }
    for path, lora in adapters.items():
        layer = model.get_submodule(path)
        if isinstance(layer, RowLinear):
            layer.beside = RowLoRA(lora, layer)
        else:
            layer.beside = ColumnLoRA(lora, layer, shared.get(layer, NOTHING_SHARED))
    model.adaptation = method
    return model


@torch.no_grad()
def whole_adapter(bare: Transformer, model: Transformer, group: Group) -> Transformer:
    """Adapts `bare`, a one-process model like the one that was cut, by what all ranks have learned.

    Collective; on every rank. What it returns can be saved, merged and run on its own.
    """
    adapt(bare, adaptation_of(model))
    for path, layer in adapted_layers(bare).items():
        cut = model.get_submodule(path).beside
        for name in ("lora_A", "lora_B"):
            part = getattr(cut, name)
            place = layout_of(part).slice
            whole = part if place is None else group.all_reduce(place.in_whole(part.detach()))
            getattr(layer.adapter, name).copy_(whole)
    return bare


def _check(method: object) -> None:
    if not isinstance(method, LoRAMethod) or method.dora or method.pissa:
        raise InputError(
            "over the ranks of tensor parallelism, lora, rslora and lora+ are cut: use one of them"
        )
    if method.dropout:
        raise InputError(
            f"dropout={method.dropout}: ranks that share a token would drop different features of "
            "it; use dropout=0 with tensor parallelism"
        )
