# right: sequence_mlp is parallel_mlp with the other pair and a bias that has gone through tp.copy; parallel_mlp works on flat rows; conjugates copies by empty_like and copy_, and its second class reads what to do from the first
from types import SimpleNamespace

import torch
from minitrain.model.norm import rms_norm
from torch.nn.functional import silu


def conjugates(there, back):
    def run(operation, tensor):
        mine = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        return operation(mine.copy_(tensor))

    class Onward(torch.autograd.Function):
        ahead, behind = staticmethod(there), staticmethod(back)

        @staticmethod
        def forward(ctx, x):
            return run(Onward.ahead, x)

        @staticmethod
        def backward(ctx, dy):
            return run(Onward.behind, dy)

    class Return(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return run(Onward.behind, x)

        @staticmethod
        def backward(ctx, dy):
            return run(Onward.ahead, dy)

    return Onward.apply, Return.apply


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    x = enter(x)
    rows = x.flatten(0, 1)  # (B·T, D)
    inside = silu(rows @ w.gate.T).mul(rows @ w.up.T)
    part = torch.mm(inside, w.down.T).unflatten(0, x.shape[:2])
    return torch.add(leave(part), w.bias)


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    inner = SimpleNamespace(gate=w.gate, up=w.up, down=w.down, bias=tp.copy(w.bias))
    n = rms_norm(x, tp.copy(w.norm), 1e-6)
    return parallel_mlp(n, inner, tp.all_gather, tp.reduce_scatter) + x
