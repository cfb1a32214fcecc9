"""Gated DeltaNet: before a value is written, what the state holds under its key is taken away.

    S_t = a_t S_(t-1) + k_t^T b_t (v_t - k_t a_t S_(t-1))          out_t = q_t S_t

Linear attention only adds: a second value under the same key blurs the first. The delta rule is one
step of gradient descent on |k S - v|²/2 with rate b: with keys of length 1, b = 1 overwrites and
b = 0 leaves all as it is. The corrections u_t = b_t (v_t - ...) depend on one another, but
linearly: those of a chunk solve one unit-triangular system, (I + M) U = b (v - k S_0),

    M_ij = b_i (k_i·k_j) a_(j+1)···a_i for j < i

and U then takes the part of v in Mamba-2's chunk. Cost a token and head, in chunks of n:
2·n·(2·C + P) + 6·C·P FLOPs and n·(C + P) of the solve; state C·P, for any T.
Papers: Yang et al., arXiv 2406.06484 (DeltaNet), 2412.06464 (gated). Lab: e14.
Shapes: B batch  H heads  T tokens  C key size  P value size  D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.model.architectures.mixer import (
    Around,
    Mixer,
    ShortConvolution,
    heads_first,
    heads_last,
    no_state,
    restarts,
    split_chunks,
)
from minitrain.model.architectures.ssd import segment_sum
from minitrain.model.config import ModelConfig
from minitrain.model.norm import RMSNorm


def delta_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """q and k (B, H, T, C), v (B, H, T, P), decay (B, H, T) log a, beta (B, H, T), state
    (B, H, C, P) -> (B, H, T, P), the new state."""
    state = no_state(k, v) if state is None else state
    out = []
    for t in range(q.shape[2]):
        key, value = k[:, :, t, None], v[:, :, t, None]  # (B, H, 1, C), (B, H, 1, P)
        state = decay[:, :, t, None, None].exp() * state
        state = state + key.mT @ (beta[:, :, t, None, None] * (value - key @ state))
        out.append(q[:, :, t, None] @ state)  # (B, H, 1, P)
    return torch.cat(out, dim=2), state


def delta_parallel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`delta_recurrent` by one triangular system of all T corrections."""
    state = no_state(k, v) if state is None else state
    beta = beta[..., None]  # (B, H, T, 1)
    between = segment_sum(decay).exp()  # (B, H, T, T)
    since = decay.cumsum(dim=-1).exp()[..., None]  # (B, H, T, 1)
    system = beta * (k @ k.mT) * between  # its diagonal is read as ones
    u = solve(system, beta * (v - since * (k @ state)))  # (B, H, T, P)
    out = ((q @ k.mT) * between) @ u + since * (q @ state)
    to_end = between[:, :, -1, :, None]  # (B, H, T, 1)
    return out, since[:, :, -1:] * state + (k * to_end).mT @ u


def delta_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
    size: int = 64,
) -> tuple[Tensor, Tensor]:
    """`delta_recurrent` in chunks: all systems are solved at once, before any state is known, for
    U = solution of b v - (solution of b k) S_0."""
    state = no_state(k, v) if state is None else state
    length, value_size = q.shape[2], v.shape[-1]
    q, k, v, decay, beta = (split_chunks(z, size) for z in (q, k, v, decay, beta))
    beta = beta[..., None]  # (B, H, T/n, n, 1)
    between = segment_sum(decay).exp()  # (B, H, T/n, n, n)
    since = decay.cumsum(dim=-1).exp()[..., None]  # (B, H, T/n, n, 1)
    both = torch.cat((beta * v, beta * since * k), dim=-1)
    both = solve(beta * (k @ k.mT) * between, both)  # (B, H, T/n, n, P + C)
    values, keys = both.split([value_size, k.shape[-1]], dim=-1)
    scores, left = (q @ k.mT) * between, (k * between[..., -1, :, None]).mT
    out = []
    for chunk in range(v.shape[2]):
        u = values[:, :, chunk] - keys[:, :, chunk] @ state  # (B, H, n, P)
        read = since[:, :, chunk] * (q[:, :, chunk] @ state)
        out.append(scores[:, :, chunk] @ u + read)
        state = since[:, :, chunk, -1:] * state + left[:, :, chunk] @ u
    return torch.cat(out, dim=2)[:, :, :length], state


def solve(system: Tensor, right: Tensor) -> Tensor:
    """(I + M) x = right, M the part of `system` below the diagonal."""
    return torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)


class GatedDeltaNet(Mixer):
    """q, k and v through a short convolution, q and k of length 1; a and b from the token."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width, keys = config.hidden_size, config.heads * config.key_size
        values = config.heads * config.head_size
        self.sizes = [keys, keys, values]
        self.heads, self.chunk = config.heads, config.chunk
        self.qkv = nn.Linear(width, sum(self.sizes), bias=False)
        self.z = nn.Linear(width, values, bias=False)
        self.beta = nn.Linear(width, config.heads, bias=False)
        self.dt = nn.Linear(width, config.heads)  # with a bias
        self.convolution = ShortConvolution(sum(self.sizes))
        self.log_rate = nn.Parameter(torch.empty(config.heads))
        self.norm = RMSNorm(config.head_size, config.norm_eps)
        self.o = nn.Linear(values, width, bias=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Heads that forget within about 10 to 1,000 tokens, and write half of each value."""
        self.log_rate.zero_()
        self.dt.bias.copy_(torch.logspace(-3.0, -1.0, len(self.log_rate)).expm1().log())
        self.convolution.reset_parameters()

    def read(
        self, x: Tensor, around: Around, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        recent, memory = state or (None, None)
        qkv, recent = self.convolution.read(self.qkv(x), around, recent)
        q, k, v = (heads_first(z, self.heads) for z in F.silu(qkv).split(self.sizes, dim=-1))
        q, k = (z * (z.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for z in (q, k))
        q = q / q.shape[-1] ** 0.5
        decay = restarts(-self.log_rate.exp()[:, None] * F.softplus(self.dt(x)).mT, around)
        given = q, k, v, decay, self.beta(x).sigmoid().mT, memory  # (B, H, T) the last but one
        out, memory = delta_chunked(*given, size=min(self.chunk, x.shape[1]))
        out = self.norm(out) * F.silu(heads_first(self.z(x), self.heads))  # (B, H, T, P)
        return self.o(heads_last(out)), (recent, memory)
