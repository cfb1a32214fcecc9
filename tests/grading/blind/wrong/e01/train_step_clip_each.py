# exercise: train_step
# says: after the last backward
# Clips after each microbatch's backward, inside the loop, and not once on the finished sum.

import torch
import torch.nn.functional as F


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    n = sum((b.targets != -100).sum() for b in microbatches)
    for b in microbatches:
        logits = model(b.tokens, b.documents, b.positions)
        loss = F.cross_entropy(
            logits.flatten(0, 1), b.targets.flatten(), ignore_index=-100, reduction="sum"
        )
        (loss / n).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
