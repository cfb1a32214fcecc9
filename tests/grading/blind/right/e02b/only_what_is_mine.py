# right: the second Function takes its halves from the first; MLP and attention with einsum, the sequence MLP through the parallel one and a namespace of its own; embed and loss look up only what this rank owns, the loss from shifted logits
from types import SimpleNamespace

import torch
from minitrain.model.norm import rms_norm
from torch.nn.functional import scaled_dot_product_attention, silu


def conjugates(there, back):
    class There(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            copy = torch.empty_like(x, memory_format=torch.contiguous_format)
            return there(copy.copy_(x))

        @staticmethod
        def backward(ctx, dy):
            copy = torch.empty_like(dy, memory_format=torch.contiguous_format)
            return back(copy.copy_(dy))

    class Back(torch.autograd.Function):
        forward = staticmethod(There.backward)
        backward = staticmethod(There.forward)

    return There.apply, Back.apply


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    whole = enter(x)
    gate = torch.einsum("btd,fd->btf", whole, w.gate)
    up = torch.einsum("btd,fd->btf", whole, w.up)
    part = torch.einsum("btf,df->btd", silu(gate) * up, w.down)
    return leave(part) + w.bias


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    whole = enter(x)

    def heads(matrix):  # (D/N, D) -> (B, heads, T, C)
        return torch.einsum(
            "btd,hcd->bhtc", whole, matrix.unflatten(0, (-1, w.head_size))
        )

    out = scaled_dot_product_attention(
        heads(w.q), heads(w.k), heads(w.v), is_causal=True
    )
    part = torch.einsum("bhtc,dhc->btd", out, w.o.unflatten(1, (-1, w.head_size)))
    return leave(part)


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    own = SimpleNamespace(gate=w.gate, up=w.up, down=w.down, bias=tp.copy(w.bias))
    n = rms_norm(x, tp.copy(w.norm), 1e-6)
    return x + parallel_mlp(n, own, tp.all_gather, tp.reduce_scatter)


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    first = tp.rank * len(weight)
    mine = (tokens >= first) & (tokens < first + len(weight))
    out = weight.new_zeros(*tokens.shape, weight.shape[1])
    return tp.reduce(out.index_put((mine,), weight[tokens[mine] - first]))


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    n, own = logits.shape
    shifted = logits - tp.max(logits.amax(dim=-1))[:, None]
    places = targets - tp.rank * own
    mine = ((places >= 0) & (places < own)).nonzero()[:, 0]
    aim = shifted.new_zeros(n).index_put((mine,), shifted[mine, places[mine]])
    total = tp.reduce(shifted.exp().sum(dim=-1))
    return total.log().sub(tp.reduce(aim)).mean()
