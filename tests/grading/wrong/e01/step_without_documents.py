# exercise: train_step
# says: did not get documents and positions

import torch
import torch.nn.functional as F


def train_step(model, optimizer, microbatches, clip=1.0):
    total = sum((b.targets != -100).sum() for b in microbatches)
    for b in microbatches:
        loss = F.cross_entropy(model(b.tokens).flatten(0, 1), b.targets.flatten(), reduction="sum")
        (loss / total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
