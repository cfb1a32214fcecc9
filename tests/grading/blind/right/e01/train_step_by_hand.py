# right: log_softmax and gather, backward of the plain sums, gradients divided by n at the end, clipped by hand
import torch


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    n = 0
    for batch in microbatches:
        counted = batch.targets >= 0
        n += int(counted.sum())
        logs = model(batch.tokens, batch.documents, batch.positions).log_softmax(-1)
        chosen = logs.gather(-1, batch.targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        (-(chosen * counted).sum()).backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    for g in grads:
        g.div_(n)
    norm = torch.cat([g.flatten() for g in grads]).norm()
    if norm > clip:
        for g in grads:
            g.mul_(clip / norm)
    optimizer.step()
    for p in model.parameters():
        p.grad = None
