# right: the target's logit is fetched before the maximum; tokens flat as (B*T, D) after enter; the lookup by F.embedding with clamp and where; heads split by view and transpose
import torch
from minitrain.model.norm import rms_norm
from torch.nn import functional as F


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    stream = enter(x)
    flat = stream.flatten(0, 1)  # of the tokens after enter
    inside = torch.mul(flat.mm(w.up.t()), F.silu(flat.mm(w.gate.t())))
    part = inside.mm(w.down.t()).unflatten(0, stream.shape[:2])
    return leave(part) + w.bias


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    x = enter(x)
    B, T, _ = x.shape

    def heads_of(matrix):
        return F.linear(x, matrix).view(B, T, -1, w.head_size).transpose(1, 2)

    out = F.scaled_dot_product_attention(
        heads_of(w.q), heads_of(w.k), heads_of(w.v), is_causal=True
    )
    return leave(F.linear(out.transpose(1, 2).reshape(B, T, -1), w.o))


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    scale, shift = tp.copy(w.norm), tp.copy(w.bias)
    biased = x + shift
    tokens = tp.all_gather(rms_norm(x, scale, 1e-6))
    features = F.silu(F.linear(tokens, w.gate)).mul(F.linear(tokens, w.up))
    return biased + tp.reduce_scatter(F.linear(features, w.down))


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    rows = weight.shape[0]
    begin, end = tp.rank * rows, (tp.rank + 1) * rows
    own = torch.ge(tokens, begin) & torch.lt(tokens, end)
    found = F.embedding((tokens - begin).clamp(0, rows - 1), weight)
    return tp.reduce(torch.where(own.unsqueeze(-1), found, torch.zeros_like(found)))


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    columns = logits.shape[1]
    begin = tp.rank * columns
    here = ((targets >= begin) & (targets < begin + columns)).nonzero()[:, 0]
    found = logits[here, targets[here] - begin]
    aim = tp.reduce(logits.new_zeros(len(targets)).index_add(0, here, found))
    top = tp.max(logits.amax(1))
    spread = tp.reduce((logits - top[:, None]).exp().sum(1)).log()
    return (spread - (aim - top)).mean()
