# right: generator saved and put back by hand, a regular expression as policy, the peak folded from the last segment to the first, key tiles from the last to the first with einsum and wider sums
import re

import torch
from minitrain.model.attention.mask import Mask

ROWS = 128
COLUMNS = 128


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.save_for_backward(*inputs)
        ctx.again, ctx.dice = function, torch.random.get_rng_state()
        return ctx.again(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        leaves = []
        for saved in ctx.saved_tensors:
            leaf = saved.detach()
            if saved.requires_grad:
                leaf.requires_grad_()
            leaves.append(leaf)
        found = torch.random.get_rng_state()
        torch.random.set_rng_state(ctx.dice)
        try:
            with torch.enable_grad():
                result = ctx.again(*leaves)
            result.backward(gradient)
        finally:
            torch.random.set_rng_state(found)
        return (None, *[leaf.grad for leaf in leaves])


WANTED = re.compile(r"(add)?mm|_scaled_dot_product_.*")


def keep(op: torch._ops.OpOverload) -> bool:
    return WANTED.fullmatch(op.overloadpacket.__name__) is not None


def plan_peak(plan, layers) -> float:
    # what the segments from here on need: at their own backward, or under a later one
    need = 0
    for start, stop, mode in reversed(plan):
        whole = sum(layers[i].saved_bytes for i in range(start, stop))
        leaves = layers[start].input_bytes if mode == "full" else whole
        need = max(whole, leaves + need)
    return need


def tiled_forward(q, k, v, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.promote_types(q.dtype, torch.float32)
    out, lse = torch.empty_like(q), q.new_empty(q.shape[:3])
    for first in range(0, q.shape[2], ROWS):
        rows = slice(first, min(first + ROWS, q.shape[2]))
        queries = q[:, :, rows].to(wide) * q.shape[3] ** -0.5
        total = torch.zeros_like(queries)
        mass = queries.new_zeros(queries.shape[:3])
        top = torch.full_like(mass, -torch.inf)
        reach = mask.keys(rows, k.shape[2])
        for left in reversed(range(reach.start, reach.stop, COLUMNS)):
            columns = slice(left, min(left + COLUMNS, reach.stop))
            keys, values = k[:, :, columns].to(wide), v[:, :, columns].to(wide)
            scores = torch.einsum("bhic,bhjc->bhij", queries, keys)
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = torch.where(readable, scores, -torch.inf)
            new = torch.maximum(top, scores.max(dim=-1).values)
            base = torch.where(new == -torch.inf, 0.0, new)  # nothing readable so far
            weights = torch.exp(scores - base.unsqueeze(-1))
            shrink = torch.exp(top - base)
            mass = shrink * mass + weights.sum(dim=-1)
            added = torch.einsum("bhij,bhjc->bhic", weights, values)
            total = shrink.unsqueeze(-1) * total + added
            top = new
        out[:, :, rows].copy_(total / mass.unsqueeze(-1))
        lse[:, :, rows].copy_(top + torch.log(mass))
    return out, lse
