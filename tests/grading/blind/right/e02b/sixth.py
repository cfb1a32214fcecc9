# a reader's own answers, from the notebook alone
import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention, silu

from minitrain.model.norm import rms_norm


def conjugates(there, back):
    """Two functions of one tensor, each the other's backward."""

    def own(tensor):
        # a copy that `there` and `back` may write into
        return tensor.clone(memory_format=torch.contiguous_format)

    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return there(own(x))

        @staticmethod
        def backward(ctx, dy):
            return back(own(dy))

    class Second(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return back(own(x))

        @staticmethod
        def backward(ctx, dy):
            return there(own(dy))

    return First.apply, Second.apply


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    """x (B, T, D) -> (B, T, D), each rank with its own features."""
    inside = enter(x)
    features = silu(inside @ w.gate.T) * (inside @ w.up.T)
    part = features @ w.down.T
    return leave(part) + w.bias


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    """x (B, T, D) -> (B, T, D), each rank with its own heads."""
    tokens = enter(x)

    def heads(matrix):
        return rearrange(tokens @ matrix.T, "b t (h c) -> b h t c", c=w.head_size)

    said = scaled_dot_product_attention(
        heads(w.q), heads(w.k), heads(w.v), is_causal=True
    )
    said = rearrange(said, "b h t c -> b t (h c)")
    return leave(said @ w.o.T)


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    """x (B, T/N, D) -> (B, T/N, D): x plus the MLP of its norm."""
    normed = rms_norm(x, tp.copy(w.norm), 1e-6)
    every = tp.all_gather(normed)
    hidden = silu(every @ w.gate.T) * (every @ w.up.T)
    mine = tp.reduce_scatter(hidden @ w.down.T)
    return x + mine + tp.copy(w.bias)


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    """tokens (B, T), weight (V/N, D) -> (B, T, D), whole on every rank."""
    places = tokens - tp.rank * len(weight)
    elsewhere = (places < 0) | (places >= len(weight))
    rows = weight[places.masked_fill(elsewhere, 0)]
    rows = rows.masked_fill(elsewhere[..., None], 0)
    return tp.reduce(rows)


def vocabulary_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    tp,
) -> torch.Tensor:
    """logits (n, V/N), targets (n,) -> the mean cross-entropy, everywhere."""
    words = logits.shape[-1]
    top = tp.max(logits.amax(dim=-1))
    total = (logits - top[:, None]).exp().sum(dim=-1)
    columns = targets - tp.rank * words
    absent = (columns < 0) | (columns >= words)
    aim = logits.gather(-1, columns.masked_fill(absent, 0)[:, None])[:, 0]
    aim = aim.masked_fill(absent, 0)
    total, aim = tp.reduce(torch.stack([total, aim])).unbind()
    return (top + total.log() - aim).mean()
