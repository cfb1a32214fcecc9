# right: one factory makes both Functions, with setup_context; gate and up are one joined linear; embed looks up only the tokens that are here and writes them into zeros
import torch
from torch.nn.functional import linear, silu


def conjugates(there, back):
    def function(ahead, behind):
        class Operator(torch.autograd.Function):
            @staticmethod
            def forward(x):
                return ahead(x.clone())

            @staticmethod
            def setup_context(ctx, inputs, output):
                pass

            @staticmethod
            def backward(ctx, dy):
                return behind(dy.clone())

        return Operator.apply

    return function(there, back), function(back, there)


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    both = linear(enter(x), torch.cat([w.gate, w.up]))
    gate, up = both.chunk(2, dim=-1)
    out = leave(linear(silu(gate) * up, w.down))
    return out + w.bias


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    places = tokens - tp.rank * len(weight)
    here = (places >= 0) & (places < len(weight))
    out = weight.new_zeros(*tokens.shape, weight.shape[1])
    out[here] = weight[places[here]]
    return tp.reduce(out)
