"""Sampling: draw the next token from the model's distribution, append it, ask again.

Temperature divides the logits (0 = always the likeliest); top-k keeps the k likeliest tokens; top-p
the fewest whose probabilities reach p. This naive version runs the whole text again for each token:
n tokens after a prompt of t cost the forward pass of n (t + n/2) tokens; a cache makes it t + n.
Paper: Holtzman et al. 2020, top-p (arXiv:1904.09751). Shapes: T tokens so far, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.inference.forward import check_own
from minitrain.inference.logits import NO_NUMBERS, are_numbers
from minitrain.inference.parameters import SamplingParameters


def next_token_probabilities(
    logits: Tensor,  # (V,)
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """The distribution (V,) to draw from, in float32; a token that is cut off has exactly 0."""
    SamplingParameters(1, temperature, top_k, top_p)  # judges them
    logits = logits.float()
    if not are_numbers(logits):
        raise InputError(f"the model gave {NO_NUMBERS}")
    if temperature == 0:
        return torch.zeros_like(logits).index_fill_(0, logits.argmax(), 1.0)
    if top_k is not None and top_k < len(logits):
        kept = logits.topk(top_k)
        logits = torch.full_like(logits, -torch.inf).scatter(0, kept.indices, kept.values)
    probabilities = torch.softmax(logits / temperature, dim=-1)
    if top_p is not None and top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        before = ordered.cumsum(0) - ordered  # of the likelier ones; 0 for the first
        probabilities = probabilities.index_fill(0, order[before >= top_p], 0.0)
    return probabilities / probabilities.sum()


@torch.no_grad()
def generate(
    model: nn.Module,
    prompt: list[int],
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    end_token: int | None = None,
    generator: torch.Generator | None = None,
    max_length: int | None = None,
) -> list[int]:
    """The tokens after `prompt` (not empty), up to `end_token` (left out) or `max_new_tokens`.

    `max_length`: what the model can read; a longer text is read from its last `max_length` tokens.
    The same generator gives the same text; without one, torch's global generator is used.
    """
    if not prompt:
        raise InputError("the prompt is empty and one token is needed: begin with the end token")
    device = next(model.parameters()).device
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_new_tokens:
        window = tokens if max_length is None else tokens[-max_length:]
        logits = model(torch.tensor([window], device=device))  # (1, T, V)
        if not isinstance(logits, Tensor):
            check_own(model)
        probabilities = next_token_probabilities(logits[0, -1].cpu(), temperature, top_k, top_p)
        token = int(torch.multinomial(probabilities, 1, generator=generator))
        if token == end_token:
            break
        tokens.append(token)
    return tokens[len(prompt) :]
