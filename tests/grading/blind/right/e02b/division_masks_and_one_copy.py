# right: embed finds the owner by division; the loss compares targets with this rank's word numbers; attention makes q, k and v by one linear; sequence_mlp copies norm and bias as one stacked tensor
import torch
from minitrain.model.norm import rms_norm
from torch.nn.functional import linear, scaled_dot_product_attention, silu


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    qkv = linear(enter(x), torch.cat([w.q, w.k, w.v]))
    qkv = qkv.unflatten(-1, (3, -1, w.head_size))  # (B, T, 3, heads, C)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    return leave(linear(out.transpose(1, 2).flatten(2), w.o))


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    norm, bias = tp.copy(torch.stack([w.norm, w.bias])).unbind()
    n = tp.all_gather(rms_norm(x, norm, 1e-6))
    gate, up = linear(n, w.gate), linear(n, w.up)
    part = linear(silu(gate) * up, w.down)
    return tp.reduce_scatter(part) + bias + x


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    owner = tokens.div(len(weight), rounding_mode="floor")
    found = weight[tokens % len(weight)]  # on another rank's tokens: thrown away
    mine = (owner == tp.rank).unsqueeze(-1)
    return tp.reduce(torch.where(mine, found, torch.zeros_like(found)))


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    width = logits.shape[-1]
    words = tp.rank * width + torch.arange(width, device=logits.device)
    hit = targets[:, None] == words
    shifted = logits - tp.max(logits.amax(dim=-1))[:, None]
    total = tp.reduce(shifted.exp().sum(dim=-1))
    aim = tp.reduce(shifted.masked_fill(~hit, 0).sum(dim=-1))
    return (total.log() - aim).mean()
