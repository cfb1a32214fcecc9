"""Parameter groups and gradient clipping, needed by every optimizer.

Cost of clipping: one pass that reads P gradients and one that reads and writes them, 12 P bytes
moved in float32, P parameters. Papers: Pascanu et al., arXiv 1211.5063 (clipping); Loshchilov and
Hutter, 1711.05101 (weight decay). Lab: e01.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from minitrain.errors import InputError

UNDECAYED = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.RMSNorm)  # in any dimensions


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Two groups: the matrices decay; norms, biases and embedding tables do not.

    Decay pulls a weight to 0. That regularises a matrix; it would switch a norm's gain off, and it
    shrinks the embedding of every token missing from the batch. A head tied to the embedding table
    is the same tensor, and is treated as the table. Tables and norms are recognized by name, so
    that a model may be wrapped, and its parameters be pieces of its modules'.
    """
    if not 0 <= weight_decay < math.inf:
        raise InputError(f"weight_decay is {weight_decay}: give 0 or more, such as 0.1")
    if any(hasattr(p, "mesh_layout") for p in model.parameters()):
        raise InputError(
            "a mesh's part no longer shows what was an embedding: make the optimizer of the whole "
            "model, and cut it by parallel.hybrid.state.take_apart(parts, names, optimizer)"
        )
    names = {
        f"{name}.{own}".lstrip(".")
        for name, module in model.named_modules()
        if isinstance(module, UNDECAYED)
        for own in ("weight", "bias")
    }
    named = model.named_parameters(remove_duplicate=False)
    spared = {id(p) for name, p in named if name in names}
    trained = [p for p in model.parameters() if p.requires_grad]  # shared tensors appear once
    decayed = [p for p in trained if p.ndim >= 2 and id(p) not in spared]
    kept = [p for p in trained if p.ndim < 2 or id(p) in spared]
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def same_rule(optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of `model` with the rule and the settings of another, and no state yet."""
    own = optimizer.param_groups[0]
    return type(optimizer)([{**own, **g} for g in parameter_groups(model, own["weight_decay"])])


def with_gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Those that have a gradient; InputError for a sparse one, which nothing here can move."""
    found = [p for p in parameters if p.grad is not None]
    if any(p.grad.is_sparse for p in found):
        raise InputError("a gradient is sparse: leave sparse=True out, or use torch's SparseAdam")
    return found


def clip_by_global_norm(parameters: Iterable[nn.Parameter] | Tensor, limit: float) -> Tensor:
    """Scales all gradients by one factor, so that their joint norm is at most `limit`.

    Returns the norm before clipping. One factor for all keeps the direction of the step. Squares
    are summed in float32 at least: float16 cannot hold a norm above 65,504.
    """
    parameters = [parameters] if isinstance(parameters, Tensor) else parameters
    gradients = [p.grad for p in with_gradients(parameters)]
    if not gradients:
        return torch.zeros(())
    lengths = (
        torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32))
        for g in gradients
    )
    norms = torch.stack(list(lengths))
    norm = torch.linalg.vector_norm(norms)
    torch._foreach_mul_(gradients, clip_factor(norm, limit))
    return norm


def clip_factor(norm: Tensor, limit: float) -> Tensor:
    """The factor that shortens a vector of length `norm` to `limit`; 1 if it is shorter."""
    if not limit >= 0:
        raise InputError(f"gradients are clipped to {limit}: give 0 or more, such as 1.0")
    return (limit / (norm + 1e-6)).clamp(max=1.0)
