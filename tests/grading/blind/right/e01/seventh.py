# a reader's own answers, from the notebook alone
import math

import torch
import torch.nn.functional as F


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * turns.cos + torch.cat((b, a), dim=-1) * turns.sin


def grouped_query_attention(q, k, v) -> torch.Tensor:
    length, size = q.shape[-2:]
    sharing = q.shape[1] // k.shape[1]
    keys = k.repeat_interleave(sharing, dim=1)
    values = v.repeat_interleave(sharing, dim=1)
    scores = q @ keys.transpose(-2, -1) / math.sqrt(size)
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
    return weights @ values


def parameter_count(config) -> int:
    D, C, H, K = config.hidden_size, config.head_size, config.heads, config.kv_heads
    layer = 2 * D * C * (H + K) + 3 * D * config.ffn_size + 2 * D
    embedding = config.vocab_size * D
    head = 0 if config.tied else embedding
    return embedding + config.layers * layer + D + head


def flops_per_token(config, length: int) -> int:
    D, C, H, K = config.hidden_size, config.head_size, config.heads, config.kv_heads
    in_a_layer = 2 * D * C * (H + K) + 3 * D * config.ffn_size
    weights = config.layers * in_a_layer + config.vocab_size * D
    attention = 4 * config.layers * H * C * length
    return 3 * (2 * weights + attention)


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    counted = sum(int((b.targets != -100).sum()) for b in microbatches)
    for b in microbatches:
        flat = model(b.tokens, b.documents, b.positions).flatten(0, 1)
        targets = b.targets.flatten()
        loss = F.cross_entropy(flat, targets, ignore_index=-100, reduction="sum")
        (loss / counted).backward()
        del flat, loss
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
