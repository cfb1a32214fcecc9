"""LoRA+: B learns faster than A, since in a wide layer A's entries must move less for a like step.

    groups of an optimizer     lr        A and all others that are trained
                               ratio·lr  B

Each group also says its `lr_scale`, by which a schedule multiplies the rate that it sets anew at
every step; else the first step of a warm-up would make one rate of two.
Paper: Hayou et al., arXiv 2402.12354, which takes a ratio of about 16.
"""

from __future__ import annotations

from torch import nn

from minitrain.errors import InputError
from minitrain.finetuning.adapt import adaptation_of
from minitrain.finetuning.methods import LoRAMethod
from minitrain.optimizers.groups import parameter_groups

FAST = ("lora_B", "lora_embedding_B")


def adapter_groups(model: nn.Module, lr: float, weight_decay: float = 0.0) -> list[dict]:
    """Parameter groups of what the model trains: `AdamW(adapter_groups(model, 1e-3))`.

    The ratio is the method's own `lr_ratio`, 1 but for "lora+". Weight decay is for matrices.
    """
    method = adaptation_of(model)
    if method is None:
        raise InputError("this model has no adapter: adapt(model, ...) or load_adapter(...) first")
    ratio = method.lr_ratio if isinstance(method, LoRAMethod) else 1.0
    if ratio == 1:
        return [{**group, "lr": lr} for group in parameter_groups(model, weight_decay)]
    fast = {id(p) for name, p in model.named_parameters() if name.endswith(FAST)}
    groups = []
    for group in parameter_groups(model, weight_decay):
        for scale, wanted in ((1.0, False), (ratio, True)):
            own = [p for p in group["params"] if (id(p) in fast) == wanted]
            if own:
                groups.append({**group, "params": own, "lr": lr * scale, "lr_scale": scale})
    return groups
