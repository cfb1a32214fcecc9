# a reader's own answers, from the notebook alone
import torch
from minitrain.model.attention.mask import Mask


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.function = function
        ctx.state = torch.get_rng_state()
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = []
        for x, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[1:]):
            inputs.append(x.detach().requires_grad_(needed))
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            out = ctx.function(*inputs)
        if out.requires_grad:
            torch.autograd.backward(out, gradient)
        return None, *(x.grad for x in inputs)


def keep(op: torch._ops.OpOverload) -> bool:
    name = op.overloadpacket.__name__
    fused = name.startswith("_scaled_dot_product_")
    return fused or name in ("mm", "addmm")


def plan_peak(plan, layers: list) -> float:
    held = peak = 0
    for segment in plan:
        inside = layers[segment.start : segment.stop]
        everything = sum(layer.saved_bytes for layer in inside)
        # its own backward: those before it still wait, those behind are gone
        peak = max(peak, held + everything)
        if segment.mode == "full":
            held += inside[0].input_bytes
        else:
            held += everything
    return peak


def unbeaten(partials: list[tuple]) -> list[tuple]:
    """Given: the cheapest first, each of which holds less than all before."""
    kept = []
    for cost, held, plan in sorted(partials, key=lambda partial: partial[:2]):
        if not kept or held < kept[-1][1]:
            kept.append((cost, held, plan))
    return kept


def optimal_plan(layers: list, budget_bytes: float):
    best = [[] for _ in range(len(layers) + 1)]
    best[0].append((0, 0, []))
    for start, first in enumerate(layers):
        for cost, held, plan in unbeaten(best[start]):
            if held + first.saved_bytes <= budget_bytes:
                kept = [*plan, Segment(start, start + 1, "none")]
                best[start + 1].append((cost, held + first.saved_bytes, kept))
            everything, again = 0, 0
            for stop in range(start + 1, len(layers) + 1):
                everything += layers[stop - 1].saved_bytes
                if held + everything > budget_bytes:
                    break
                again += layers[stop - 1].cost
                longer = [*plan, Segment(start, stop, "full")]
                waits = held + first.input_bytes
                best[stop].append((cost + again, waits, longer))
    if not best[-1]:
        raise ValueError(f"no plan fits into {budget_bytes} bytes")
    found = unbeaten(best[-1])[0][2]
    return found


def tiled_forward(q, k, v, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    B, H, L, C = q.shape
    out = q.new_empty(B, H, L, C)
    lse = q.new_empty(B, H, L)
    for rows in tiles(range(L), ROWS):
        queries = q[:, :, rows] / C**0.5
        r = queries.shape[2]
        total = q.new_zeros(B, H, r, C)
        mass = q.new_zeros(B, H, r)
        top = q.new_full((B, H, r), -torch.inf)
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            scores = queries @ k[:, :, columns].mT
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = scores.masked_fill(~readable, -torch.inf)
            new = torch.maximum(top, scores.amax(dim=-1))
            # a row that has read nothing yet: -inf minus -inf would be nan
            base = new.masked_fill(new == -torch.inf, 0)
            weights = (scores - base[..., None]).exp()
            shrink = (top - base).exp()
            mass = mass * shrink + weights.sum(-1)
            total = total * shrink[..., None] + weights @ v[:, :, columns]
            top = new
        out[:, :, rows] = total / mass[..., None]
        lse[:, :, rows] = top + mass.log()
    return out, lse


def tiled_backward(
    q, k, v, d_out, lse, delta, mask: Mask
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    L, C = q.shape[2:]
    dq, dk, dv = (z.new_zeros(z.shape) for z in (q, k, v))
    for rows in tiles(range(L), ROWS):
        queries = q[:, :, rows] / C**0.5
        d_rows = d_out[:, :, rows]
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            keys, values = k[:, :, columns], v[:, :, columns]
            weights = (queries @ keys.mT - lse[:, :, rows, None]).exp()
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                weights = weights.masked_fill(~readable, 0)
            d_weights = d_rows @ values.mT
            d_scores = weights * (d_weights - delta[:, :, rows, None])
            dv[:, :, columns] += weights.mT @ d_rows
            dk[:, :, columns] += d_scores.mT @ queries
            dq[:, :, rows] += d_scores @ keys
        dq[:, :, rows] /= C**0.5
    return dq, dk, dv
