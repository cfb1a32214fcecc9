# right: halves flipped through an extra axis, one head at a time, FLOPs out of parameter_count, microbatches from the last to the first, gradients dropped by hand, cosine as a squared half angle
import math

import torch
from torch.nn import functional


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    other = x.unflatten(-1, (2, x.shape[-1] // 2)).flip(-2).flatten(-2)
    return other * turns.sin + x * turns.cos


def grouped_query_attention(q, k, v) -> torch.Tensor:
    heads, length, width = q.shape[1:]
    sharing = heads // k.shape[1]
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    results = []
    for head in range(heads):
        keys, values = k[:, head // sharing], v[:, head // sharing]
        scores = q[:, head] @ keys.transpose(1, 2) / math.sqrt(width)
        weights = torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1)
        results.append(weights @ values)
    return torch.stack(results, dim=1)


def parameter_count(config) -> int:
    width = config.hidden_size
    per_column = config.vocab_size * (1 if config.tied else 2) + 1
    for _ in range(config.layers):
        per_column += 2 * config.head_size * (config.heads + config.kv_heads)
        per_column += 3 * config.ffn_size + 2
    return width * per_column  # each tensor has one side (or its only one) of D


def flops_per_token(config, length: int) -> int:
    norms = (2 * config.layers + 1) * config.hidden_size
    table = config.vocab_size * config.hidden_size
    weights = parameter_count(config) - norms - (0 if config.tied else table)
    attention = 2 * config.layers * config.heads * config.head_size * length
    return 6 * (weights + attention)


def _summed_loss(model, b):
    logits = model(b.tokens, b.documents, b.positions)
    return functional.cross_entropy(
        logits.transpose(1, 2), b.targets, ignore_index=-100, reduction="sum"
    )


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    counted = torch.stack([(b.targets != -100).sum() for b in microbatches]).sum()
    for b in reversed(microbatches):
        _summed_loss(model, b).div(counted).backward()
    parameters = list(model.parameters())
    torch.nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()
    for p in parameters:
        p.grad = None


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    if step >= total:
        return floor
    if step >= warmup:
        quarter = 0.5 * math.pi * (step - warmup) / (total - warmup)
        return floor + (peak - floor) * math.cos(quarter) ** 2
    return (step + 1) * peak / warmup


def mfu(tokens_per_second: float, config, length: int, peak: float) -> float:
    achieved = flops_per_token(config, length) * tokens_per_second
    return achieved / peak
