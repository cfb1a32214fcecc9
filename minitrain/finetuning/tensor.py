"""Adapters under tensor parallelism: each is sharded like its layer, or replicated with it.

    adapt(model, "dora")   on every rank alike
    tensor_parallel_adapted(model, group)
    save_adapter(whole_adapter(bare, model, group), folder)

    beside columns (q, k, v, gate, up, head)   lora, dora, pissa, ia3, bitfit   cut
    over rows (o, down)                        lora, dora, pissa, ia3's inputs  cut
                                               ia3's outputs, bitfit, houlsby   whole
    over sublayers, norms, the embedding       parallel, norm, prompt           whole
    before the keys and values                 prefix                           whole; a rank reads
                                                                                its own heads'
LoRA sends R numbers a token and layer:

    column   y_i = W_i x + s·B_i u,  u = A x           A whole on every rank, B cut by rows as W is
             backward: du is summed over the ranks     (of R numbers a token, where dx has D)
    row      y = Σ W_i x_i + s·B u,  u = Σ A_i x_i     A cut by columns as W is, B whole
             forward: u is summed

    PiSSA    its first factors are cut as A and B are; u has 2R numbers, in one message
    DoRA     a column has whole rows of W + s·B·A; of a row each rank has a part of every length:
             ‖V‖² is summed, O numbers a step
    (IA)³    y_i = l_i ⊙ (W_i x) and BitFit y_i = W_i x + δ_i send nothing; (IA)³ of what a column
             reads is y_i + W_i ((l - 1) ⊙ x), a matmul more: q, k and v are computed of one x

Replicated parameters are computed identically on every rank, with the same gradient. With the
sequence split, u is gathered before a column's B and reduce-scattered after a row's A; a replicated
parameter then sees T/N tokens and has a partial gradient, as a prefix always does: the layout says
"tp", and the parts are summed. For key/value heads held by several ranks, the gradients of B's
rows, l and δ are summed over the holders, as W's would be.
Papers: Shoeybi et al., arXiv 1909.08053; Sheng et al., S-LoRA, 2311.03285, section 6.
Shapes: B batch  T tokens  I, O features in and out  R rank  N ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.finetuning.adapters.bottleneck import Houlsby, Parallel
from minitrain.finetuning.adapters.dora import DoRA
from minitrain.finetuning.adapters.features import IA3, BitFit
from minitrain.finetuning.adapters.lora import LoRA, LoRAEmbedding
from minitrain.finetuning.adapters.pissa import PiSSA
from minitrain.finetuning.layer import Adapted, Adapter, adapted_layers, features
from minitrain.finetuning.merging import unload
from minitrain.finetuning.methods import FullMethod, LoRAMethod, Method, PrefixMethod, PromptMethod
from minitrain.finetuning.model import adapt, adaptation_of
from minitrain.finetuning.prompts import Shifted, add_prefix
from minitrain.model.transformer import Transformer
from minitrain.parallel.collectives.differentiable import (
    all_gather,
    copy,
    reduce,
    reduce_scatter,
    summed,
)
from minitrain.parallel.layout import lay_out, layout_of, take_slice
from minitrain.parallel.tensor.layers import SharedRows, TensorAttention, share, tensor_parallel
from minitrain.parallel.tensor.linear import ColumnLinear, CutLinear, RowLinear, column_linears
from minitrain.ranks.group import Group

NOTHING_SHARED = SharedRows((), ())
ROWS = ("o", "down")  # others have split outputs; a layer after them would read a part


def tensor_parallel_adapted(
    model: Transformer, group: Group, sequence: bool = False
) -> Transformer:
    """`tensor_parallel` for a model that was adapted identically on every rank.

    Changed in place and returned: layers and adapters are sharded, and only adapters are trained.
    InputError, before anything is changed, for a layer or method that cannot be sharded.
    """
    method = adaptation_of(model)
    adapters = {path: layer.adapter for path, layer in adapted_layers(model).items()}
    _check(model, method, adapters, sequence)
    prefix = getattr(model, "soft_prompt", None)
    tensor_parallel(unload(model), group, sequence)
    shared = {
        layer: attention.shared
        for attention in model.modules()
        if isinstance(attention, TensorAttention)
        for layer in (attention.k, attention.v)
    }
    for path, adapter in adapters.items():
        layer = model.get_submodule(path)
        if isinstance(layer, ColumnLinear):
            layer.beside = _beside_column(adapter, layer, shared.get(layer, NOTHING_SHARED))
        else:
            model.set_submodule(path, Adapted(layer, _over_layer(adapter, layer, sequence)))
    if isinstance(method, PromptMethod):
        model.look_around = Shifted(model.look_around, method.tokens, True, switch=model.embed)
    if isinstance(method, PrefixMethod):
        heads = model.blocks[0].attention.heads
        read = heads.reads if not heads.is_grouped else range(len(heads.keys))
        add_prefix(model, prefix, [heads.keys[place] for place in read])
        for parameter in prefix.parameters():
            lay_out(parameter, partial="tp")
    model.adaptation, model.adapter_is_cut = method, True
    return model


def _beside_column(adapter: Adapter, layer: ColumnLinear, shared: SharedRows) -> nn.Module:
    kinds = {LoRA: ColumnLoRA, IA3: ColumnIA3, BitFit: ColumnBitFit}
    make = next(cut for kind, cut in kinds.items() if isinstance(adapter, kind))
    return make(adapter, layer, shared)


def _over_layer(adapter: Adapter, layer: nn.Module, sequence: bool) -> Adapter:
    """LoRA and (IA)³ on a row's inputs are sharded; all others are as in one process."""
    if isinstance(layer, RowLinear) and isinstance(adapter, LoRA):
        return RowLoRA(adapter, layer)
    if isinstance(layer, RowLinear) and isinstance(adapter, IA3) and adapter.of_input:
        adapter.ia3_l = cut_like(layer, adapter.ia3_l)
        return adapter
    for parameter in adapter.parameters():
        kept_whole(parameter, sequence)
    return adapter


@torch.no_grad()
def whole_adapter(bare: Transformer, model: Transformer, group: Group) -> Transformer:
    """Adapts `bare`, a one-process copy of the sharded model, with all ranks' trained parts.

    Collective; on every rank. The returned model can be saved, merged and run on its own.
    """
    adapt(bare, adaptation_of(model))
    here = dict(model.named_parameters())
    for name, parameter in bare.named_parameters():
        if not parameter.requires_grad:
            continue
        beside = name.replace(".adapter.", ".beside.")
        part = here[beside if beside in here else name]
        place = layout_of(part).slice
        whole = part if place is None else group.all_reduce(place.in_whole(part.detach()))
        parameter.copy_(whole)
    return bare


def _check(
    model: Transformer, method: Method | None, adapters: dict[str, Adapter], sequence: bool
) -> None:
    if method is None or isinstance(method, FullMethod):
        raise InputError(
            "this model has no adapter to cut (full fine-tuning has none either): "
            "tensor_parallel(model, group) cuts it as it is"
        )
    if isinstance(method, LoRAMethod) and method.dropout:
        raise InputError(
            f"dropout={method.dropout}: ranks that share a token would drop different features of "
            "it; use dropout=0 with tensor parallelism"
        )
    if isinstance(method, PromptMethod) and sequence:
        raise InputError(
            "a prompt stands before the sequence on one rank only where the sequence is split: use "
            "sequence=False, or a prefix"
        )
    for path, adapter in adapters.items():
        if isinstance(adapter, LoRAEmbedding):
            raise InputError(f"{path} is an embedding, whose adapter is not cut: leave it out")
        if isinstance(adapter, Houlsby) and path.rsplit(".", 1)[-1] not in ROWS:
            raise InputError(
                f"the output of {path} is split over the ranks, and an adapter after it reads all "
                f"of it: give targets={ROWS}, which end a sublayer"
            )
        if isinstance(adapter, Parallel) and features(model.get_submodule(path).base_layer):
            raise InputError(
                f"{path} has its input or output split over the ranks, and a parallel adapter has "
                "both whole: give sublayers, targets=('attention', 'mlp')"
            )


# ---- the adapters of one rank ----


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
        """`cut`: the sharded factor, lora_A or lora_B; first factors and magnitude follow it."""
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
        """This rank's A and B; for PiSSA [A; A0] and [B, -B0]."""
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
        """‖W + s·B·A‖ of each local row, (O,); a padding row gets 1."""
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


class ColumnBitFit(nn.Module):
    def __init__(self, bias: BitFit, layer: ColumnLinear, shared: SharedRows) -> None:
        super().__init__()
        self.delta, self.shared = cut_like(layer, bias.delta), shared  # (O/N,)

    def forward(self, layer: ColumnLinear, x: Tensor, y: Tensor) -> Tensor:
        """y (B, T, O/N) -> the same."""
        ((delta, _),) = share([(self.delta, None)], self.shared)
        return y + delta.to(y.dtype)
