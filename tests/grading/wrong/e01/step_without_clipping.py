# exercise: train_step
# says: nothing was clipped

import torch


def train_step(model, optimizer, microbatches, clip=1.0):
    total = sum((b.targets != -100).sum() for b in microbatches)
    for b in microbatches:
        logits = model(b.tokens, b.documents, b.positions).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, b.targets.flatten(), reduction="sum")
        (loss / total).backward()
    optimizer.step()
    optimizer.zero_grad()
