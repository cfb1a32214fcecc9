"""A model that is adapted, cut over the ranks of tensor parallelism; and its adapter whole again.

    adapt(model, "dora")   on every rank alike
    tensor_parallel_adapted(model, group)
    save_adapter(whole_adapter(bare, model, group), folder)

    beside columns (q, k, v, gate, up, head)   lora, dora, pissa, ia3, bitfit   cut
    over rows (o, down)                        lora, dora, pissa, ia3's inputs  cut
                                               ia3's outputs, bitfit, houlsby   whole
    over sublayers, norms, the embedding       parallel, norm, prompt           whole
    before the keys and values                 prefix                           whole; a rank reads
                                                                                its own heads'
LoRA and those like it send R numbers a token and layer, DoRA over rows O a step, the others none.
What is whole is computed on every rank alike, and has the same gradient there. With the sequence
split that is a part, and so is a prefix's always: the layout says "tp", and the parts are summed.
"""

from __future__ import annotations

import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.finetuning.adapt import adapt, adaptation_of
from minitrain.finetuning.adapters.bias import BitFit
from minitrain.finetuning.adapters.bottleneck import Houlsby, Parallel
from minitrain.finetuning.adapters.embedding import LoRAEmbedding
from minitrain.finetuning.adapters.ia3 import IA3
from minitrain.finetuning.adapters.lora import LoRA
from minitrain.finetuning.layer import Adapted, Adapter, LinearLike, adapted_layers
from minitrain.finetuning.merging import unload
from minitrain.finetuning.methods import FullMethod, LoRAMethod, Method, PrefixMethod, PromptMethod
from minitrain.finetuning.prompts.looking import Shifted
from minitrain.finetuning.prompts.prefix import add_prefix
from minitrain.finetuning.tensor.features import ColumnBitFit, ColumnIA3
from minitrain.finetuning.tensor.lora import ColumnLoRA, RowLoRA, cut_like, kept_whole
from minitrain.model.transformer import Transformer
from minitrain.parallel.layout import lay_out, layout_of
from minitrain.parallel.tensor.layers import SharedRows, TensorAttention, tensor_parallel
from minitrain.parallel.tensor.linear import ColumnLinear, RowLinear
from minitrain.ranks.group import Group

NOTHING_SHARED = SharedRows((), ())
ROWS = ("o", "down")  # the others' outputs are split, and a layer after them would read a part


def tensor_parallel_adapted(
    model: Transformer, group: Group, sequence: bool = False
) -> Transformer:
    """`tensor_parallel` for a model that is adapted, alike on every rank.

    Changed in place and returned: layers and adapters are cut, and only adapters are trained.
    InputError, before anything is changed, for what cannot be cut.
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
            layer.beside = beside_column(adapter, layer, shared.get(layer, NOTHING_SHARED))
        else:
            model.set_submodule(path, Adapted(layer, over_layer(adapter, layer, sequence)))
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


def beside_column(adapter: Adapter, layer: ColumnLinear, shared: SharedRows) -> nn.Module:
    kinds = {LoRA: ColumnLoRA, IA3: ColumnIA3, BitFit: ColumnBitFit}
    make = next(cut for kind, cut in kinds.items() if isinstance(adapter, kind))
    return make(adapter, layer, shared)


def over_layer(adapter: Adapter, layer: nn.Module, sequence: bool) -> Adapter:
    """LoRA and what scales a row's inputs are cut; all others are as in one process."""
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
    """Adapts `bare`, a one-process model like the one that was cut, by what all ranks have learned.

    Collective; on every rank. What it returns can be saved, merged and run on its own.
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
    if method is None:
        raise InputError(
            "this model has no adapter: tensor_parallel(model, group) cuts it as it is"
        )
    if isinstance(method, FullMethod):
        raise InputError(
            "full fine-tuning has no adapter to be cut: tensor_parallel(model, group) cuts the "
            "model, whose weights all learn"
        )
    if isinstance(method, LoRAMethod) and method.dropout:
        raise InputError(
            f"dropout={method.dropout}: ranks that share a token would drop different features of "
            "it; use dropout=0 with tensor parallelism"
        )
    if isinstance(method, PromptMethod) and sequence:
        raise InputError(
            "a prompt stands before the text on one rank only where the sequence is split: use "
            "sequence=False, or a prefix"
        )
    for path, adapter in adapters.items():
        if isinstance(adapter, LoRAEmbedding):
            raise InputError(f"{path} is an embedding, whose adapter is not cut: leave it out")
        if isinstance(adapter, Houlsby) and path.rsplit(".", 1)[-1] not in ROWS:
            raise InputError(
                f"what {path} gives is split over the ranks, and an adapter after it reads all of "
                f"it: give targets={ROWS}, which end a sublayer"
            )
        if isinstance(adapter, Parallel) and isinstance(
            model.get_submodule(path).base_layer, LinearLike
        ):
            raise InputError(
                f"what {path} reads or gives is split over the ranks, and a parallel adapter does "
                "both whole: give sublayers, targets=('attention', 'mlp')"
            )
