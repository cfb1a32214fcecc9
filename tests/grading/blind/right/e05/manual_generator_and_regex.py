# right: Checkpoint puts the generator back by hand in try/finally and asks ctx.needs_input_grad; keep is one regular expression
import re

import torch


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.again, ctx.dice = function, torch.random.get_rng_state()
        ctx.save_for_backward(*inputs)
        with torch.no_grad():
            return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        leaves = []
        for tensor, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[1:]):
            leaf = tensor.detach()
            leaf.requires_grad = needed
            leaves.append(leaf)
        found = torch.random.get_rng_state()
        try:
            torch.random.set_rng_state(ctx.dice)
            with torch.set_grad_enabled(True):
                result = ctx.again(*leaves)
        finally:
            torch.random.set_rng_state(found)
        result.backward(gradient)
        return (None,) + tuple(leaf.grad for leaf in leaves)


KEPT = re.compile(r"(add)?mm|_scaled_dot_product_.*")


def keep(op: torch._ops.OpOverload) -> bool:
    return KEPT.fullmatch(op.overloadpacket.__name__) is not None
