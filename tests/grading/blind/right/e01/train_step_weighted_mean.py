# right: mean loss times n_b / n; an empty microbatch's loss is nan, its gradient exactly 0
import torch
import torch.nn.functional as F


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    counts = [int((b.targets != -100).sum()) for b in microbatches]
    total = sum(counts)
    for b, n in zip(microbatches, counts):
        logits = model(b.tokens, b.documents, b.positions)
        loss = F.cross_entropy(logits.flatten(0, 1), b.targets.flatten())
        (loss * n / total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
