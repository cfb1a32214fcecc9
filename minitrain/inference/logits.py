"""From logits to the next token, for many rows at once: penalties, cuts, and a draw.

`sampling.next_token_probabilities` is the naive version: one row, one cut after the other, each
with its own sort. Here the likeliest come first once, and all cuts are made on that order:

    ordered   5.1  4.9  2.0  0.3 …          top-k    place < k
    p         .52  .43  .02  .00 …          top-p    what is likelier sums to less than p
                                            min-p    p is at least min_p times the first one

top-p counts probabilities after top-k has cut (renormalised), as `transformers` and vLLM do, and
keeps the token that crosses p; the likeliest is always kept. Papers: Fan et al. 2018, top-k
(arXiv:1805.04833); Holtzman et al. 2020, top-p (1904.09751); Nguyen et al. 2024, min-p
(2407.01082); Keskar et al. 2019, the repetition penalty (1909.05858).
Shapes: B rows  V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from minitrain.inference.parameters import SamplingParameters


def penalised(
    logits: Tensor, prompt: Sequence[int], told: Sequence[int], parameters: SamplingParameters
) -> Tensor:
    """logits (V,) -> (V,), less likely what was said.

    Repetition divides a logit above 0 and multiplies one below, once for any token of prompt or
    answer; presence and frequency are subtracted, and look at the answer alone (OpenAI's).
    """
    logits = logits.clone()
    if parameters.repetition_penalty != 1:
        said = torch.tensor(sorted({*prompt, *told}), device=logits.device)
        penalty, values = parameters.repetition_penalty, logits[said]
        logits[said] = torch.where(values > 0, values / penalty, values * penalty)
    if told:
        counts = Counter(told)
        tokens = torch.tensor(list(counts), device=logits.device)
        times = torch.tensor(list(counts.values()), device=logits.device, dtype=logits.dtype)
        logits[tokens] -= parameters.presence_penalty + parameters.frequency_penalty * times
    return logits


def cut(
    logits: Tensor,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Tensor:
    """logits (B, V) -> (B, V), -inf where a token is cut off."""
    size = logits.shape[-1]
    if top_p is None and min_p is None and (top_k is None or top_k >= size):
        return logits
    if top_k is not None and top_k < size:
        ordered, order = logits.topk(top_k)  # (B, k)
    else:
        ordered, order = logits.sort(descending=True, stable=True)  # (B, V)
    p = ordered.softmax(dim=-1)
    dropped = torch.zeros_like(p, dtype=torch.bool)
    if top_p is not None and top_p < 1:
        dropped |= p.cumsum(dim=-1) - p >= top_p
    if min_p is not None:
        dropped |= p < min_p * p[:, :1]
    dropped[:, 0] = False
    kept = ordered.masked_fill(dropped, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter(-1, order, kept)


def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """logits (B, V), uniforms (B,) in [0, 1) -> tokens (B,), one number each.

    The first token at which the sum of probabilities passes the number: its chance is its
    probability, and one of probability 0 is never the first.
    """
    sums = logits.double().softmax(dim=-1).cumsum(dim=-1)  # (B, V)
    numbers = uniforms.double() * sums[:, -1]
    numbers = numbers.minimum(sums[:, -1].nextafter(sums.new_zeros(())))  # rounding may reach it
    return torch.searchsorted(sums, numbers[:, None], right=True)[:, 0]
