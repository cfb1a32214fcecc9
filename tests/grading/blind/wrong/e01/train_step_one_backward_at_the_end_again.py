# exercise: train_step
# says: all their activations are in memory at once
# Adds up the losses of all microbatches and goes backward once, so all activations are alive
# together; "Backward comes after each microbatch: one's activations at a time are in memory".

import torch
import torch.nn.functional as F


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    counted = sum((b.targets != -100).sum() for b in microbatches)
    total = 0.0
    for b in microbatches:
        logits = model(b.tokens, b.documents, b.positions)
        total = total + F.cross_entropy(
            logits.flatten(0, 1), b.targets.flatten(), reduction="sum"
        )
    (total / counted).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
