# right: halves joined by cat, heads grouped by reshape (k and v never repeated), parameters from a list of shapes, the loss and the clipping by hand
import math

import torch


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    cos_a, cos_b = turns.cos.chunk(2, dim=-1)
    minus_sin, sin = turns.sin.chunk(2, dim=-1)
    return torch.cat((a * cos_a + b * minus_sin, b * cos_b + a * sin), dim=-1)


def grouped_query_attention(q, k, v) -> torch.Tensor:
    B, H, T, C = q.shape
    K = k.shape[1]
    grouped = q.reshape(B, K, H // K, T, C) / math.sqrt(C)
    scores = torch.matmul(grouped, k.unsqueeze(2).transpose(-1, -2))
    position = torch.arange(T, device=q.device)
    seen = position[:, None] >= position[None, :]
    weights = torch.where(seen, scores, -torch.inf).softmax(dim=-1)
    return torch.matmul(weights, v.unsqueeze(2)).reshape(B, H, T, C)


def _layer_matrices(config):
    D, F = config.hidden_size, config.ffn_size
    wide = config.heads * config.head_size
    narrow = config.kv_heads * config.head_size
    return [(D, wide), (wide, D), (D, narrow), (D, narrow), (D, F), (D, F), (F, D)]


def parameter_count(config) -> int:
    V, D = config.vocab_size, config.hidden_size
    one_layer = [*_layer_matrices(config), (D,), (D,)]
    outside = [(V, D), (D,)] if config.tied else [(V, D), (D,), (D, V)]
    return sum(math.prod(s) for s in outside + one_layer * config.layers)


def flops_per_token(config, length: int) -> int:
    forward = 2 * config.vocab_size * config.hidden_size
    for _ in range(config.layers):
        forward += sum(2 * rows * columns for rows, columns in _layer_matrices(config))
        forward += 2 * (2 * config.heads * config.head_size * length)
    backward = 2 * forward
    return forward + backward


def _summed_loss(model, b):
    rows, columns = b.targets.ne(-100).nonzero(as_tuple=True)
    log_p = model(b.tokens, b.documents, b.positions).log_softmax(dim=-1)
    return -log_p[rows, columns, b.targets[rows, columns]].sum()


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    counted = sum(int(b.targets.ne(-100).sum()) for b in microbatches)
    for b in microbatches:
        (_summed_loss(model, b) / counted).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.stack([g.norm() for g in gradients]).norm()
    scale = (clip / (norm + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g.mul_(scale)
    optimizer.step()
    optimizer.zero_grad()


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    if step < warmup:
        return peak * ((step + 1) / warmup)
    t = min((step - warmup) / (total - warmup), 1.0)
    return floor + (peak - floor) * (1 + math.cos(math.pi * t)) / 2


def mfu(tokens_per_second: float, config, length: int, peak: float) -> float:
    seconds_at_peak = flops_per_token(config, length) / peak
    return tokens_per_second * seconds_at_peak
