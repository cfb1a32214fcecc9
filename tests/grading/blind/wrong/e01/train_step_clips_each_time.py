# exercise: train_step
# says: clip once, after the last backward
# Clips what has added up after every microbatch, not once at the end; "Then once: clip by the
# global norm, step, zero".

import torch
import torch.nn.functional as F


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    counted = sum((b.targets != -100).sum() for b in microbatches)
    for b in microbatches:
        logits = model(b.tokens, b.documents, b.positions)
        loss = F.cross_entropy(logits.flatten(0, 1), b.targets.flatten(), reduction="sum")
        (loss / counted).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
