"""Multi-head latent attention: one short vector a token is cached, for all heads together.

    c = norm(W_a x)                 the latent, R numbers; k = W_uk c and v = W_uv c in every head
    r = rotate(W_r x)               one key for positions, S numbers, shared by all heads

A latent cannot be rotated for the heads' keys, hence r beside it: a score is q·k + q_r·r. Decoding
need not expand the cache into keys and values at all. Since q·(W_uk c) = (W_uk^T q)·c, the query
goes to the latents instead, and W_uv follows after the sum ("absorbed"):

    expanded   4·R·C·H FLOPs for each *cached* token, once a step, and 2·H·(2·C + S) of scores
    absorbed   4·R·C·H for each *new* token, and 2·H·(2·R + S) for each cached one

So expand to train, where every token is new, and absorb to decode. Cache: R + S numbers a token and
layer (DeepSeek-V3: 576; its 128 heads would keep 32,768). Paper: DeepSeek-V2, arXiv 2405.04434,
section 2.1. Lab: e14.
Shapes: B batch  H heads  T new tokens  J cached tokens  C head size  R latent size  S rotary size.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from minitrain.model.architectures.mixer import Around, Mixer, heads_last
from minitrain.model.attention.mask import Mask
from minitrain.model.config import ModelConfig
from minitrain.model.norm import RMSNorm
from minitrain.model.rope import rotate, rotation


def latent_attention_expanded(
    q: Tensor, q_rotated: Tensor, latents: Tensor, keys: Tensor, up: Tensor, mask: Tensor | None
) -> Tensor:
    """q (B, H, T, C), q_rotated (B, H, T, S), latents (B, J, R), keys (B, J, S), up (H, 2·C, R),
    each head's W_uk above its W_uv, mask (..., T, J) True where a query may read ->
    (B, H, T, C)."""
    k, v = einsum(latents, up, "b j r, h c r -> b h j c").chunk(2, dim=-1)  # (B, H, J, C) each
    scores = q @ k.mT + q_rotated @ keys[:, None].mT  # (B, H, T, J)
    return weigh(scores, q, q_rotated, mask) @ v


def latent_attention_absorbed(
    q: Tensor, q_rotated: Tensor, latents: Tensor, keys: Tensor, up: Tensor, mask: Tensor | None
) -> Tensor:
    """The same, and no key or value of a head is ever made: all heads read the latents."""
    up_k, up_v = up.chunk(2, dim=1)  # (H, C, R) each
    absorbed = q @ up_k  # (B, H, T, R)
    scores = absorbed @ latents[:, None].mT + q_rotated @ keys[:, None].mT
    return weigh(scores, q, q_rotated, mask) @ latents[:, None] @ up_v.mT


def weigh(scores: Tensor, q: Tensor, q_rotated: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled as for heads of C + S numbers, masked, softmax."""
    scores = scores / (q.shape[-1] + q_rotated.shape[-1]) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1)


class LatentAttention(Mixer):
    """Queries too go through a latent if the configuration has a `query_latent_size`."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width, heads, latent = config.hidden_size, config.heads, config.query_latent_size
        queries = heads * (config.head_size + config.rotary_size)
        self.config, self.sizes = config, [config.head_size, config.rotary_size]
        self.rope = replace(config, head_size=config.rotary_size)
        self.q_down = nn.Linear(width, latent, bias=False) if latent else nn.Identity()
        self.q_norm = RMSNorm(latent, config.norm_eps) if latent else nn.Identity()
        self.q = nn.Linear(latent or width, queries, bias=False)
        self.down = nn.Linear(width, config.latent_size, bias=False)
        self.norm = RMSNorm(config.latent_size, config.norm_eps)
        self.key = nn.Linear(width, config.rotary_size, bias=False)
        self.up = nn.Linear(config.latent_size, 2 * heads * config.head_size, bias=False)
        self.o = nn.Linear(heads * config.head_size, width, bias=False)

    def read(
        self, x: Tensor, around: Around, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        turns = rotation(self.rope, around.positions, x.dtype)
        q = rearrange(
            self.q(self.q_norm(self.q_down(x))), "b t (h c) -> b t h c", c=sum(self.sizes)
        )
        q, q_rotated = q.split(self.sizes, dim=-1)
        q, q_rotated = (rearrange(z, "b t h c -> b h t c") for z in (q, rotate(q_rotated, turns)))
        latents, keys = self.norm(self.down(x)), rotate(self.key(x)[:, :, None], turns)[:, :, 0]
        if state is not None:
            latents, keys = (torch.cat(pair, dim=1) for pair in zip(state, (latents, keys)))
        up = rearrange(self.up.weight, "(h c) r -> h c r", h=self.config.heads)
        mask = readable(x, latents.shape[1], around, None)
        form = latent_attention_expanded if state is None else latent_attention_absorbed
        out = form(q, q_rotated, latents, keys, up, mask)
        return self.o(heads_last(out)), (latents, keys)


def readable(x: Tensor, cached: int, around: Around, window: int | None) -> Tensor | None:
    """x (B, T, D), the last T of `cached` tokens -> (B or 1, 1, T, cached) bool; None: all."""
    new = x.shape[1]
    mask = Mask(cached - new, window, around.documents, around.documents)
    return mask.tile(slice(0, new), slice(0, cached), x.device)
