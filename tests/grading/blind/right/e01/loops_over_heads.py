# right: attention as a loop over key/value heads with an added mask, rotate half by half, train_step by microbatches from the last to the first, counts in one expression.
import math

import torch


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    out = torch.zeros_like(x * turns.cos)
    half = x.shape[-1] // 2
    first, second = slice(None, half), slice(half, None)
    for here, there in ((first, second), (second, first)):
        out[..., here] = x[..., here] * turns.cos[..., here] + x[..., there] * turns.sin[..., here]
    return out


def grouped_query_attention(q, k, v) -> torch.Tensor:
    T, C = q.shape[-2:]
    mask = q.new_full((T, T), -torch.inf).triu(1)
    parts = []
    for queries, head in zip(q.chunk(k.shape[1], dim=1), range(k.shape[1])):
        scores = queries @ k[:, head : head + 1].transpose(2, 3) / math.sqrt(C)
        parts.append(torch.softmax(scores + mask, dim=-1) @ v[:, head : head + 1])
    return torch.cat(parts, dim=1)


def parameter_count(config) -> int:
    D, L, C = config.hidden_size, config.layers, config.head_size
    widths = 2 * (config.heads + config.kv_heads) * C + 3 * config.ffn_size + 2
    return D * (L * widths + 1 + config.vocab_size * (2 - bool(config.tied)))


def flops_per_token(config, length: int) -> int:
    D, L, C = config.hidden_size, config.layers, config.head_size
    widths = 2 * (config.heads + config.kv_heads) * C + 3 * config.ffn_size
    forward = 2 * D * (L * widths + config.vocab_size)
    forward += 2 * (2 * L * config.heads * C * length)  # scores, then values
    backward = 2 * forward
    return forward + backward


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    total = torch.cat([b.targets.flatten() for b in microbatches]).ne(-100).sum()
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=-100, reduction="sum")
    for b in reversed(microbatches):
        logits = model(b.tokens, b.documents, b.positions)
        loss_of(logits.transpose(1, 2), b.targets).div(total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    if step < min(warmup, total):
        return peak / warmup * (step + 1)
    t = 1.0 if step >= total else (step - warmup) / (total - warmup)
    share = 0.5 + 0.5 * math.cos(math.pi * t)
    return peak * share + floor * (1 - share)


def mfu(tokens_per_second: float, config, length: int, peak: float) -> float:
    achieved = flops_per_token(config, length) * tokens_per_second
    return achieved / peak
