# right: Checkpoint holds a closure that repeats (it holds the state, not the inputs); keep compares packets, not names; plan_peak plays forward and backward on a stack; optimal_plan pulls from earlier cuts; the tiles are written with in-place steps on their own buffers
import torch

from minitrain.model.attention.mask import Mask

ROWS = 128  # of a tile
COLUMNS = 128


def tiles(places, size):
    """range(0, 300), 128 -> slices 0:128, 128:256, 256:300"""
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


from typing import NamedTuple


class Segment(NamedTuple):
    """Layers start … stop - 1: "none" keeps all they save, "full" an input."""

    start: int
    stop: int
    mode: str  # "none" or "full"


def unbeaten(partials: list[tuple]) -> list[tuple]:
    """Given: the cheapest first, each of which holds less than all before it."""
    kept = []
    for cost, held, plan in sorted(partials, key=lambda partial: partial[:2]):
        if not kept or held < kept[-1][1]:
            kept.append((cost, held, plan))
    return kept


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        state = torch.get_rng_state()

        def repeat(*leaves):
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.set_rng_state(state)
                return function(*leaves)

        ctx.repeat = repeat
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        leaves = tuple(
            saved.detach().requires_grad_(saved.requires_grad)
            for saved in ctx.saved_tensors
        )
        torch.autograd.backward([ctx.repeat(*leaves)], [gradient])
        return None, *[leaf.grad for leaf in leaves]


def keep(op: torch._ops.OpOverload) -> bool:
    packet = op.overloadpacket
    if packet in (torch.ops.aten.mm, torch.ops.aten.addmm):
        return True
    prefix = "_scaled_dot_product_"
    return packet.__name__[: len(prefix)] == prefix


def plan_peak(plan: list[Segment], layers: list) -> float:
    saved = lambda part: sum(each.saved_bytes for each in layers[part.start : part.stop])
    stack = []
    for part in plan:  # forward
        keeps = part.mode == "none"
        stack.append(saved(part) if keeps else layers[part.start].input_bytes)
    peak = 0
    for part in reversed(plan):  # backward
        stack.pop()
        peak = max(peak, sum(stack) + saved(part))
    return peak


def optimal_plan(layers: list, budget_bytes: float) -> list[Segment]:
    fronts = [[(0, 0, [])]]
    for stop in range(1, len(layers) + 1):
        found = []
        for start in reversed(range(stop)):
            inside = layers[start:stop]
            saved = sum(layer.saved_bytes for layer in inside)
            if saved > budget_bytes:
                break  # a longer one saves even more
            again = sum(layer.cost for layer in inside)
            for cost, held, plan in fronts[start]:
                if held + saved > budget_bytes:
                    continue
                full = [*plan, Segment(start, stop, "full")]
                found.append((cost + again, held + inside[0].input_bytes, full))
                if len(inside) == 1:
                    none = [*plan, Segment(start, stop, "none")]
                    found.append((cost, held + saved, none))
        fronts.append(unbeaten(found))
    if not fronts[-1]:
        raise ValueError("nothing fits")
    return fronts[-1][0][2]


def tiled_forward(q, k, v, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = torch.zeros_like(v), torch.zeros_like(q[..., 0])
    for rows in tiles(slice(0, q.shape[2]), ROWS):
        queries = q[:, :, rows].div(q.shape[-1] ** 0.5)
        total = torch.zeros_like(v[:, :, rows])
        mass = torch.zeros_like(lse[:, :, rows]).unsqueeze(-1)  # (B, H, i, 1)
        top = torch.full_like(mass, float("-inf"))
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            weights = queries @ k[:, :, columns].transpose(-2, -1)
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                weights.masked_fill_(~readable, float("-inf"))
            new = torch.maximum(top, weights.amax(-1, keepdim=True))
            weights.sub_(new).exp_()
            shrink = torch.exp(top - new)
            mass.mul_(shrink).add_(weights.sum(-1, keepdim=True))
            total.mul_(shrink).add_(weights @ v[:, :, columns])
            top = new
        out[:, :, rows] = total.div_(mass)
        lse[:, :, rows] = mass.log_().add_(top).squeeze(-1)
    return out, lse


def tiled_backward(q, k, v, d_out, lse, delta, mask: Mask) -> tuple[torch.Tensor, ...]:
    dq, dk, dv = map(torch.zeros_like, (q, k, v))
    root = q.shape[-1] ** 0.5
    for rows in [*tiles(slice(0, q.shape[2]), ROWS)][::-1]:  # the last rows first
        queries, given = q[:, :, rows] / root, d_out[:, :, rows]
        own = torch.zeros_like(queries)  # this tile's dQ
        for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
            weights = torch.exp(queries @ k[:, :, columns].mT - lse[:, :, rows, None])
            readable = mask.tile(rows, columns, q.device)
            if readable is not None:
                weights.masked_fill_(~readable, 0)
            dv[:, :, columns].add_(weights.mT @ given)
            d_scores = given @ v[:, :, columns].mT
            d_scores.sub_(delta[:, :, rows, None]).mul_(weights)
            own.add_(d_scores @ k[:, :, columns])
            dk[:, :, columns].add_(d_scores.mT @ queries)
        dq[:, :, rows] = own / root
    return dq, dk, dv
