# right: conjugates by a class that holds a pair and builds its Functions; the MLP transposed, features first; attention with heads folded into the batch; the loss from one matrix of two columns
import torch
from einops import rearrange
from minitrain.model.norm import rms_norm
from torch.nn.functional import scaled_dot_product_attention, silu


class Pair:
    def __init__(self, there, back):
        self.ways = there, back

    def function(self, way):
        forth, home = self.ways[way], self.ways[1 - way]

        class Way(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return forth(x.new_empty(x.shape).copy_(x))

            @staticmethod
            def backward(ctx, dy):
                return home(dy.new_empty(dy.shape).copy_(dy))

        return Way.apply


def conjugates(there, back):
    pair = Pair(there, back)
    return pair.function(0), pair.function(1)


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    columns = enter(x).mT  # (B, D, T)
    made = silu(w.gate @ columns) * (w.up @ columns)  # (B, F/N, T)
    return leave((w.down @ made).mT.contiguous()) + w.bias


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    x = enter(x)
    fold = "b t (h c) -> (b h) 1 t c"
    q, k, v = [rearrange(x @ m.T, fold, c=w.head_size) for m in (w.q, w.k, w.v)]
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    out = rearrange(out, "(b h) 1 t c -> b t (h c)", b=x.shape[0])
    return leave(out @ w.o.T)


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    bias, norm = tp.copy(torch.cat([w.bias, w.norm])).chunk(2)
    n = tp.all_gather(rms_norm(x, norm, 1e-6))
    out = tp.reduce_scatter((silu(n @ w.gate.T) * (n @ w.up.T)) @ w.down.T)
    return out + bias + x


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    flat, rows = tokens.reshape(-1), len(weight)
    mine = (torch.div(flat, rows, rounding_mode="floor") == tp.rank).nonzero()[:, 0]
    found = weight.index_select(0, flat[mine] % rows)
    out = weight.new_zeros(len(flat), weight.shape[1]).index_copy(0, mine, found)
    return tp.reduce(out.view(*tokens.shape, weight.shape[1]))


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    rank, place = targets // logits.shape[1], targets % logits.shape[1]
    top = tp.max(logits.amax(dim=1))
    own = torch.take_along_dim(logits, place[:, None], dim=1)
    own = own.masked_fill((rank != tp.rank)[:, None], 0)
    parts = torch.exp(logits - top[:, None]).sum(1, keepdim=True)
    sums = tp.reduce(torch.cat([parts, own], dim=1))  # (n, 2)
    return (sums[:, 0].log() + top - sums[:, 1]).mean()
