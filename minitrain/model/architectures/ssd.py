"""Mamba-2: a state-space model is linear attention whose state fades.

    S_t = a_t S_(t-1) + k_t^T v_t          out_t = q_t S_t          a_t in [0, 1], one a head

The paper writes C, B, x for q, k, v, takes B times dt for k, and a_t = exp(dt_t·A) with A < 0. The
weight of token j in the output of i is (q_i·k_j)·a_(j+1)···a_i: a mask L of products of decays
instead of zeros and ones ("state-space duality"), and the three forms of linear attention again.

    L_ij = exp(sum of log a_k over j < k <= i)

That sum is a cumulative sum of *masked* terms, never a difference of two long ones: over 10,000
tokens such a difference loses all digits of what is near, and -inf - (-inf) is no number.
Cost: that of linear attention and one exp a pair of tokens in a chunk; state N·P a head, for any T.
Paper: Dao and Gu, arXiv 2405.21060. Lab: e14.
Shapes: B batch  H heads  T tokens  N state size  P head size  D width.
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
from minitrain.model.config import ModelConfig
from minitrain.model.norm import RMSNorm


def ssd_recurrent(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """q and k (B, H or 1, T, N), v (B, H, T, P), decay (B, H, T) log a, state (B, H, N, P) ->
    (B, H, T, P), the new state. Heads may share q and k."""
    state = no_state(k, v) if state is None else state
    out = []
    for t in range(q.shape[2]):
        a = decay[:, :, t, None, None].exp()  # (B, H, 1, 1)
        state = a * state + k[:, :, t, :, None] * v[:, :, t, None]  # (B, H, N, P)
        out.append(q[:, :, t, None] @ state)  # (B, H, 1, P)
    return torch.cat(out, dim=2), state


def ssd_parallel(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`ssd_recurrent` by one (T, T) matrix: scores times the decays between their two tokens."""
    state = no_state(k, v) if state is None else state
    between = segment_sum(decay).exp()  # (B, H, T, T)
    since = decay.cumsum(dim=-1).exp()[..., None]  # (B, H, T, 1): from the state to each token
    out = ((q @ k.mT) * between) @ v + since * (q @ state)
    to_end = between[:, :, -1, :, None]  # (B, H, T, 1)
    return out, since[:, :, -1:] * state + (k * to_end).mT @ v


def ssd_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    state: Tensor | None = None,
    size: int = 64,
) -> tuple[Tensor, Tensor]:
    """`ssd_recurrent` in chunks: parallel inside of each, one small step a chunk between them."""
    state = no_state(k, v) if state is None else state
    length = q.shape[2]
    q, k, v, decay = (split_chunks(z, size) for z in (q, k, v, decay))  # (B, H, T/n, n, ...)
    between = segment_sum(decay).exp()  # (B, H, T/n, n, n)
    since = decay.cumsum(dim=-1).exp()[..., None]  # (B, H, T/n, n, 1)
    written = (k * between[..., -1, :, None]).mT @ v  # (B, H, T/n, N, P): left at the chunk's end
    starts = []
    for chunk in range(v.shape[2]):
        starts.append(state)
        state = since[:, :, chunk, -1:] * state + written[:, :, chunk]
    out = ((q @ k.mT) * between) @ v + since * (q @ torch.stack(starts, dim=2))
    return out.flatten(2, 3)[:, :, :length], state


def segment_sum(decay: Tensor) -> Tensor:
    """decay (..., T) -> (..., T, T): the sum over j < k <= i at [i, j], -inf above the diagonal."""
    length = decay.shape[-1]
    ones = torch.ones(length, length, dtype=torch.bool, device=decay.device)
    terms = decay[..., None].expand(*decay.shape, length).masked_fill(~ones.tril(-1), 0.0)
    return terms.cumsum(dim=-2).masked_fill(~ones.tril(), -torch.inf)


class Mamba2(Mixer):
    """A gate z, and x, B and C through a short convolution; dt = softplus decides how much of the
    state to forget and of the token to write. B and C serve all heads; D·x passes by the state."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width, inner = config.hidden_size, config.heads * config.head_size
        self.sizes = [inner, config.state_size, config.state_size]
        self.heads, self.chunk = config.heads, config.chunk
        self.z = nn.Linear(width, inner, bias=False)
        self.xbc = nn.Linear(width, sum(self.sizes), bias=False)
        self.dt = nn.Linear(width, config.heads)  # with a bias
        self.convolution = ShortConvolution(sum(self.sizes))
        self.log_rate = nn.Parameter(torch.empty(config.heads))  # A = -exp(log_rate)
        self.skip = nn.Parameter(torch.empty(config.heads))  # D
        self.norm = RMSNorm(inner, config.norm_eps)
        self.o = nn.Linear(inner, width, bias=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Heads that forget within about 4 to 250 tokens."""
        self.skip.fill_(1.0)
        self.log_rate.copy_(torch.linspace(0.0, 1.0, len(self.log_rate)))
        dt = torch.logspace(-2.4, -1.0, len(self.log_rate))
        self.dt.bias.copy_(dt.expm1().log())  # softplus' inverse
        self.convolution.reset_parameters()

    def read(
        self, x: Tensor, around: Around, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        recent, memory = state or (None, None)
        xbc, recent = self.convolution.read(self.xbc(x), around, recent)
        v, k, q = F.silu(xbc).split(self.sizes, dim=-1)  # (B, T, H·P), (B, T, N), (B, T, N)
        dt = F.softplus(self.dt(x)).mT  # (B, H, T)
        decay = restarts(-self.log_rate.exp()[:, None] * dt, around)
        v = heads_first(v, self.heads)  # (B, H, T, P)
        given = q[:, None], k[:, None], v * dt[..., None], decay, memory
        out, memory = ssd_chunked(*given, size=min(self.chunk, x.shape[1]))
        out = heads_last(out + self.skip[:, None, None] * v)
        return self.o(self.norm(out * F.silu(self.z(x)))), (recent, memory)
