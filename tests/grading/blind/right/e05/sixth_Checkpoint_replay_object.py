# exercise: Checkpoint
# differs: no fork_rng, but the generator's state put back in a finally; the whole repetition, its
# backward too, in a helper that is held by ctx; inputs that need no gradient are handed on as they
# are. keep by a regular expression, plan_peak by accumulate.
import re
import torch
from itertools import accumulate


class Replay:
    """A function, and where torch's generator stood before its first run."""

    def __init__(self, function):
        self.function, self.state = function, torch.random.get_rng_state()

    def __call__(self, *inputs):
        found = torch.random.get_rng_state()
        torch.random.set_rng_state(self.state)
        try:
            with torch.set_grad_enabled(True):
                return self.function(*inputs)
        finally:
            torch.random.set_rng_state(found)


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.replay = Replay(function)
        out = function(*inputs)
        ctx.save_for_backward(*inputs)
        return out

    @staticmethod
    def backward(ctx, gradient):
        _, *needed = ctx.needs_input_grad
        fresh = [x.detach() for x in ctx.saved_tensors]
        leaves = [x.requires_grad_() for x, need in zip(fresh, needed) if need]
        out = ctx.replay(*fresh)
        if out.requires_grad:
            out.backward(gradient)
        grads = iter([leaf.grad for leaf in leaves])
        return (None, *[next(grads) if need else None for need in needed])


def keep(op: torch._ops.OpOverload) -> bool:
    pattern = r"(add)?mm|_scaled_dot_product_.*"
    return re.fullmatch(pattern, op.overloadpacket.__name__) is not None


def plan_peak(plan, layers: list) -> float:
    own = [sum(x.saved_bytes for x in layers[a:b]) for a, b, _ in plan]
    left = [
        layers[segment.start].input_bytes if segment.mode == "full" else bytes_
        for segment, bytes_ in zip(plan, own)
    ]
    before = accumulate(left[:-1], initial=0)
    return max(map(sum, zip(before, own)))
