# right: the loss by log_softmax and nll_loss, clipping written out by hand, the schedule by cos squared
import math

import torch


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    ignored = -100
    targets = torch.cat([b.targets.flatten() for b in microbatches])
    share = 1.0 / int(targets.ne(ignored).sum())
    for b in microbatches:
        logs = model(b.tokens, b.documents, b.positions).log_softmax(dim=-1)
        loss = torch.nn.functional.nll_loss(
            logs.reshape(-1, logs.shape[-1]),
            b.targets.reshape(-1),
            ignore_index=ignored,
            reduction="sum",
        )
        loss.mul(share).backward()
        del logs, loss
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.stack([g.norm() for g in gradients]).norm()
    factor = torch.clamp(clip / (norm + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    optimizer.step()
    optimizer.zero_grad()


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    if step >= total:
        return float(floor)
    if step >= warmup:
        half_angle = math.pi / 2 * (step - warmup) / (total - warmup)
        share = math.cos(half_angle) ** 2
        return share * peak + (1 - share) * floor
    return peak * (step + 1) / warmup
