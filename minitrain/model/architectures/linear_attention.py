"""Linear attention: without the softmax, keys and values sum up to one matrix of fixed size.

Softmax attention weighs by exp(q·k), which needs every key. With a product of features instead,
phi(q)·phi(k), the sum over tokens no longer depends on the query:

    out_t = q_t S_t          S_t = S_(t-1) + k_t^T v_t          q and k after phi, as rows

    recurrent   token by token: what a decoder does       4·C·P FLOPs a token and head
    parallel    ((q k^T) ∘ lower) v: quadratic, no loop   2·T·(C + P)
    chunked     parallel in a chunk of n tokens, recurrent between chunks:
                2·n·(C + P) + 4·C·P: linear in T, and all of it matmuls

State: C·P numbers a head, for any T. A column of ones beside v keeps the sum of the weights, by
which kernel attention divides. Performer's random features make phi(q)·phi(k) = exp(q·k) on
average. Papers: Katharopoulos et al., arXiv 2006.16236; Choromanski et al., 2009.14794. Lab: e14.
Shapes: B batch  H heads  T tokens  C features  P size of a value.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.model.architectures.mixer import (
    Around,
    Mixer,
    heads_first,
    heads_last,
    no_state,
    restarts,
    split_chunks,
)
from minitrain.model.architectures.ssd import ssd_chunked
from minitrain.model.config import ModelConfig

Form = Callable[..., tuple[Tensor, Tensor]]


def linear_recurrent(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """q and k (B, H, T, C), v (B, H, T, P), state (B, H, C, P) -> (B, H, T, P), the new state."""
    state = no_state(k, v) if state is None else state
    out = []
    for t in range(q.shape[2]):
        state = state + k[:, :, t, :, None] * v[:, :, t, None]  # (B, H, C, P)
        out.append(q[:, :, t, None] @ state)  # (B, H, 1, P)
    return torch.cat(out, dim=2), state


def linear_parallel(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`linear_recurrent` by one masked (T, T) matrix of scores."""
    state = no_state(k, v) if state is None else state
    scores = (q @ k.mT).tril()  # (B, H, T, T)
    return scores @ v + q @ state, state + k.mT @ v


def linear_chunked(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor | None = None, size: int = 64
) -> tuple[Tensor, Tensor]:
    """`linear_recurrent` in chunks of `size` tokens, all chunks at once."""
    state = no_state(k, v) if state is None else state
    length = q.shape[2]
    q, k, v = (split_chunks(z, size) for z in (q, k, v))  # (B, H, T/n, n, ...)
    written = k.mT @ v  # (B, H, T/n, C, P): what each chunk adds to the state
    ends = written.cumsum(dim=2) + state[:, :, None]
    starts = ends - written
    out = (q @ k.mT).tril() @ v + q @ starts
    return out.flatten(2, 3)[:, :, :length], ends[:, :, -1]


def kernel_attention(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor | None = None, form: Form = linear_chunked
) -> tuple[Tensor, Tensor]:
    """Weights that sum to 1, as softmax's do: the state's last column is their sum. q, k >= 0."""
    out, state = form(q, k, with_ones(v), state)
    return out[..., :-1] / out[..., -1:], state


def with_ones(v: Tensor) -> Tensor:
    """v (..., P) -> (..., P + 1)."""
    return F.pad(v, (0, 1), value=1.0)


# ---- features ----


def elu_features(x: Tensor) -> Tensor:
    """elu(x) + 1, which is positive."""
    return F.elu(x) + 1


def random_features(x: Tensor, directions: Tensor) -> Tensor:
    """x (..., C), directions (M, C) -> (..., M), with mean phi(q)·phi(k) = exp(q·k).

    exp(w·x - |x|²/2) / sqrt(M) is positive; sines and cosines, which are unbiased too, give
    negative weights. For softmax(q k^T / sqrt(C)) give q and k divided by C^(1/4).
    """
    reach = x @ directions.T - x.square().sum(dim=-1, keepdim=True) / 2
    return reach.exp() / directions.shape[0] ** 0.5


def orthogonal_directions(
    count: int, size: int, generator: torch.Generator | None = None
) -> Tensor:
    """(count, size) float64: in blocks of `size`, orthogonal, with the lengths of Gaussian rows.

    Each row is Gaussian, so the mean stays; the variance falls, as no row repeats another.
    """
    blocks = []
    for _ in range(-(-count // size)):
        gaussian = torch.randn(2, size, size, generator=generator, dtype=torch.float64)
        rows, upper = torch.linalg.qr(gaussian[0])
        rows = rows * upper.diagonal().sign()  # or its signs would not be even
        blocks.append(rows * gaussian[1].norm(dim=1, keepdim=True))
    return torch.cat(blocks)[:count]


class LinearAttention(Mixer):
    """Attention's four projections, with elu features and no positions."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width, inner = config.hidden_size, config.heads * config.head_size
        self.heads, self.chunk = config.heads, config.chunk
        self.q, self.k, self.v = (nn.Linear(width, inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, width, bias=False)

    def read(self, x: Tensor, around: Around, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = (heads_first(z(x), self.heads) for z in (self.q, self.k, self.v))
        decay = restarts(x.new_zeros(x.shape[0], self.heads, x.shape[1]), around)

        def form(*given: Tensor) -> tuple[Tensor, Tensor]:
            q, k, v, state = given
            return ssd_chunked(q, k, v, decay, state, self.chunk)  # forgets at a document's start

        out, state = kernel_attention(elu_features(q), elu_features(k), v, state, form)
        return self.o(heads_last(out)), state
