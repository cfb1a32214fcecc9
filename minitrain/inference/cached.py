"""One text with a cache: the prompt is read once, then each new token alone.

n tokens after a prompt of t cost the forward pass of t + n tokens; `sampling.generate`, which is
the naive version and has the same signature, that of n (t + n/2). What a token costs now is
reading all weights for it: the engine reads them once for many texts.
"""

from __future__ import annotations

import torch

from minitrain.errors import InputError
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.inference.forward import check_servable
from minitrain.inference.sampling import next_token_probabilities
from minitrain.model.transformer import Transformer


@torch.no_grad()
def generate_cached(
    model: Transformer,
    prompt: list[int],
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    end_token: int | None = None,
    generator: torch.Generator | None = None,
) -> list[int]:
    """The tokens after `prompt` (not empty), up to `end_token` (left out) or `max_new_tokens`."""
    if not prompt:
        raise InputError("the prompt is empty and one token is needed: begin with the end token")
    check_servable(model)
    device = model.embed.weight.device
    cache = DenseCache.of(model, rows=1, room=len(prompt) + max_new_tokens)
    told: list[int] = []
    unread = prompt
    while len(told) < max_new_tokens:
        hidden = read_on(model, torch.tensor([unread], device=device), cache)
        logits = model.head(hidden[0, -1])  # (V,)
        probabilities = next_token_probabilities(logits.cpu(), temperature, top_k, top_p)
        token = int(torch.multinomial(probabilities, 1, generator=generator))
        if token == end_token:
            break
        told.append(token)
        unread = [token]
    return told
