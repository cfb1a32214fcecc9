# right: attention loops over the query heads, rotate computes the two halves apart, the schedule caps its progress, train_step calls a function of its own for each microbatch
import math

import torch
from torch.nn.functional import cross_entropy


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    first = a * turns.cos[..., :half] + b * turns.sin[..., :half]
    second = b * turns.cos[..., half:] + a * turns.sin[..., half:]
    return torch.cat([first, second], dim=-1)


def grouped_query_attention(q, k, v) -> torch.Tensor:
    heads, length, width = q.shape[1:]
    share = heads // k.shape[1]
    visible = torch.ones(length, length, device=q.device).tril().bool()
    out = []
    for h in range(heads):
        keys, values = k[:, h // share], v[:, h // share]
        scores = torch.bmm(q[:, h], keys.transpose(1, 2)) / math.sqrt(width)
        weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=2)
        out.append(torch.bmm(weights, values))
    return torch.stack(out, dim=1)


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    counted = 0
    for batch in microbatches:
        counted += batch.targets.numel() - int((batch.targets == -100).sum())

    def backward(batch):
        logits = model(batch.tokens, batch.documents, batch.positions)
        # (B, V, T) against (B, T)
        loss = cross_entropy(logits.transpose(1, 2), batch.targets, reduction="sum")
        torch.autograd.backward(loss / counted)

    for batch in microbatches:
        backward(batch)
    torch.nn.utils.clip_grad_norm_(list(model.parameters()), max_norm=clip, foreach=False)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    rising = (step + 1) / warmup
    if rising <= 1:
        return rising * peak
    t = min(1.0, (step - warmup) / (total - warmup))
    if t == 1.0:
        return float(floor)
    return floor + 0.5 * (peak - floor) * (1 + math.cos(t * math.pi))
