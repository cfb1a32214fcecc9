# a reader's own answers, from the notebook alone
import math

import torch
from torch.nn import functional as F


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    swapped = torch.cat((b, a), dim=-1)
    return x * turns.cos + swapped * turns.sin


def grouped_query_attention(q, k, v) -> torch.Tensor:
    H, T, C = q.shape[1:]
    shared_by = H // k.shape[1]
    k = k.repeat_interleave(shared_by, dim=1)
    v = v.repeat_interleave(shared_by, dim=1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(C)
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
    return weights @ v


def parameter_count(config) -> int:
    V, D = config.vocab_size, config.hidden_size
    attention = 2 * D * config.head_size * (config.heads + config.kv_heads)
    layer = attention + 3 * D * config.ffn_size + 2 * D
    around = V * D if config.tied else 2 * V * D
    return config.layers * layer + around + D


def flops_per_token(config, length: int) -> int:
    D, H, C = config.hidden_size, config.heads, config.head_size
    matrices = 2 * D * C * (H + config.kv_heads) + 3 * D * config.ffn_size
    weights = config.layers * matrices + config.vocab_size * D
    attention = 4 * config.layers * H * C * length
    return 3 * (2 * weights + attention)


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    counted = sum(int((b.targets != -100).sum()) for b in microbatches)
    for b in microbatches:
        loss = F.cross_entropy(
            model(b.tokens, b.documents, b.positions).flatten(0, 1),
            b.targets.flatten(),
            ignore_index=-100,
            reduction="sum",
        )
        (loss / counted).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    if step >= total:
        return floor
    t = (step - warmup) / (total - warmup)
    return floor + (peak - floor) * (1 + math.cos(math.pi * t)) / 2


def mfu(tokens_per_second: float, config, length: int, peak: float) -> float:
    return tokens_per_second * flops_per_token(config, length) / peak
