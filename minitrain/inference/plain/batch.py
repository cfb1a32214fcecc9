"""Static batching: some texts begin together and end together, as long as the longest.

text 0   p p p p a a a a a a a          p a prompt's token   a an answer's
text 1   p p a a a . . . . . .          . a row that is computed for nobody
text 2   (waits until text 0 has ended)
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.model.transformer import Transformer


@torch.no_grad()
def generate_batch(
    model: Transformer, prompts: Sequence[list[int]], wanted: Sequence[int]
) -> tuple[list[list[int]], list[list[float]]]:
    """-> the likeliest answers, wanted[i] tokens for prompts[i], and when each token came."""
    lengths = [len(prompt) for prompt in prompts]
    longest = max(lengths)
    cache = DenseCache.of(model, len(prompts), longest + max(wanted))
    filled = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    hidden = read_on(model, filled, cache)[range(len(prompts)), [n - 1 for n in lengths]]
    cache.truncate(lengths)
    told: list[list[int]] = [[] for _ in prompts]
    times: list[list[float]] = [[] for _ in prompts]
    for step in range(max(wanted)):
        tokens = model.head(hidden).argmax(dim=-1)  # (B,)
        now = time.perf_counter()
        for row, token in enumerate(tokens.tolist()):
            if step < wanted[row]:
                told[row].append(token)
                times[row].append(now)
        if step + 1 < max(wanted):
            hidden = read_on(model, tokens[:, None], cache)[:, 0]
    return told, times
