# right: conjugates by a factory that makes a Function; gate and up, and q, k and v, in one matmul; norm and bias in one message; owner by division in embed; the target's logit by comparing columns
import torch
from minitrain.model.norm import rms_norm
from torch.nn.functional import linear, scaled_dot_product_attention, silu


def conjugates(there, back):
    def function_of(onward, homeward):
        class Pair(torch.autograd.Function):
            @staticmethod
            def forward(ctx, tensor):
                return onward(tensor.detach().clone())

            @staticmethod
            def backward(ctx, gradient):
                return homeward(gradient.detach().clone())

        return Pair.apply

    return function_of(there, back), function_of(back, there)


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    both = linear(enter(x), torch.cat([w.gate, w.up]))
    gate, up = both.chunk(2, dim=-1)
    return w.bias + leave(linear(up * silu(gate), w.down))


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    three = linear(enter(x), torch.cat([w.q, w.k, w.v]))
    q, k, v = (
        part.unflatten(-1, (-1, w.head_size)).transpose(1, 2)
        for part in three.chunk(3, dim=-1)
    )
    heads = scaled_dot_product_attention(q, k, v, is_causal=True)
    return leave(linear(heads.transpose(1, 2).flatten(-2), w.o))


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    norm, bias = tp.copy(torch.stack([w.norm, w.bias])).unbind()
    n = tp.all_gather(rms_norm(x, norm, 1e-6))
    part = linear(silu(linear(n, w.gate)) * linear(n, w.up), w.down)
    return tp.reduce_scatter(part) + bias + x


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    rows = len(weight)
    mine = tokens.div(rows, rounding_mode="floor") == tp.rank
    found = weight[tokens.remainder(rows)]
    return tp.reduce(torch.where(mine[..., None], found, torch.zeros_like(found)))


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    own = logits.shape[-1]
    top = tp.max(logits.amax(dim=-1))
    columns = torch.arange(own, device=logits.device) + tp.rank * own
    other = columns != targets[:, None]  # (n, V/N)
    exps = (logits - top.unsqueeze(-1)).exp().sum(dim=-1)
    aims = logits.masked_fill(other, 0).sum(dim=-1)
    total, aim = tp.reduce(torch.stack([exps, aims])).unbind()
    return (top + total.log() - aim).mean()
