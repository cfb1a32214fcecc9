# exercise: train_step
# says: each goes through the model once, by itself

import torch


def train_step(model, optimizer, microbatches, clip=1.0):
    """All microbatches joined, where their lengths are the same; others one by one."""
    total = sum((b.targets != -100).sum() for b in microbatches)
    for length in {b.tokens.shape[1] for b in microbatches}:
        alike = [b for b in microbatches if b.tokens.shape[1] == length]
        names = ("tokens", "documents", "positions")
        joined = [torch.cat([getattr(b, name) for b in alike]) for name in names]
        targets = torch.cat([b.targets for b in alike])
        loss = torch.nn.functional.cross_entropy(
            model(*joined).flatten(0, 1), targets.flatten(), reduction="sum"
        )
        (loss / total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
