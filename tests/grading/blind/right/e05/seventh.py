# a reader's own answers, from the notebook alone
import math

import torch

from minitrain.model.attention.mask import Mask


class Checkpoint(torch.autograd.Function):
    """`Checkpoint.apply(function, *inputs)` gives `function(*inputs)`, one
    tensor, and keeps the inputs only."""

    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.function = function
        ctx.state = torch.get_rng_state()  # before anything is drawn
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        """One gradient for each input of forward: None for the function."""
        inputs = []
        for x, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[1:]):
            inputs.append(x.detach().requires_grad_(needed))
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            out = ctx.function(*inputs)
        torch.autograd.backward(out, gradient)
        return None, *(x.grad for x in inputs)


def keep(op: torch._ops.OpOverload) -> bool:
    """Whether to keep an operation's result."""
    name = op.overloadpacket.__name__
    weights = name in ("mm", "addmm")
    fused = name.startswith("_scaled_dot_product_")
    return weights or fused


def plan_peak(plan: list, layers: list) -> float:
    """The most bytes held at once."""
    peak = held = 0
    for start, stop, mode in plan:
        everything = sum(layer.saved_bytes for layer in layers[start:stop])
        peak = max(peak, held + everything)
        if mode == "full":
            held += layers[start].input_bytes
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


def optimal_plan(layers: list, budget_bytes: float) -> list:
    """The plan whose repeated layers' `cost` is least, of those that fit."""
    best = [[] for _ in range(len(layers) + 1)]
    best[0].append((0, 0, []))
    for start in range(len(layers)):
        for cost, held, plan in unbeaten(best[start]):
            own, again = 0, 0
            for stop in range(start + 1, len(layers) + 1):
                last = layers[stop - 1]
                own += last.saved_bytes
                again += last.cost
                if held + own > budget_bytes:
                    break
                if stop == start + 1:
                    kept = [*plan, Segment(start, stop, "none")]
                    best[stop].append((cost, held + own, kept))
                repeated = [*plan, Segment(start, stop, "full")]
                left = held + layers[start].input_bytes
                best[stop].append((cost + again, left, repeated))
    if not best[-1]:
        raise ValueError(f"no plan fits into {budget_bytes} bytes")
    return unbeaten(best[-1])[0][2]


def tiled_forward(q, k, v, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention by tiles -> out and the log-sum-exp of each row."""
    length, root = q.shape[2], math.sqrt(q.shape[3])
    out = torch.empty_like(q)
    lse = q.new_empty(q.shape[:3])
    for rows in tiles(range(length), ROWS):
        queries = q[:, :, rows] / root
        total = torch.zeros_like(queries)  # (B, H, r, C)
        mass = queries.new_zeros(queries.shape[:3])
        top = torch.full_like(mass, -math.inf)
        for columns in tiles(mask.keys(rows, length), COLUMNS):
            scores = queries @ k[:, :, columns].mT
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                scores = scores.masked_fill(~readable, -math.inf)
            new = torch.maximum(top, scores.amax(dim=-1))
            # a row that has read nothing yet: -inf minus -inf would be nan
            finite = new.masked_fill(new == -math.inf, 0.0)
            weights = (scores - finite[..., None]).exp()
            shrink = (top - finite).exp()
            mass = mass * shrink + weights.sum(dim=-1)
            total = total * shrink[..., None] + weights @ v[:, :, columns]
            top = new
        out[:, :, rows] = total / mass[..., None]
        lse[:, :, rows] = top + mass.log()
    return out, lse


def tiled_backward(
    q, k, v, d_out, lse, delta, mask: Mask
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk, dv by tiles."""
    n, scale = q.shape[2], 1 / math.sqrt(q.shape[3])
    dq, dk, dv = (torch.zeros_like(z) for z in (q, k, v))
    for rows in tiles(range(n), ROWS):
        q_rows, do_rows = q[:, :, rows], d_out[:, :, rows]
        for columns in tiles(mask.keys(rows, n), COLUMNS):
            k_tile, v_tile = k[:, :, columns], v[:, :, columns]
            s = q_rows @ k_tile.mT * scale
            may_read = mask.tile(rows, columns, q.device)
            if may_read is not None:
                s = s.masked_fill(~may_read, -math.inf)
            p = torch.exp(s - lse[:, :, rows, None])
            dv[:, :, columns] += p.mT @ do_rows
            dp = do_rows @ v_tile.mT
            ds = p * (dp - delta[:, :, rows, None])
            dq[:, :, rows] += ds @ k_tile * scale
            dk[:, :, columns] += ds.mT @ q_rows * scale
    return dq, dk, dv
