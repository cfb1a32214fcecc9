# exercise: train_step
# says: one factor for all keeps the step's direction

import torch


def train_step(model, optimizer, microbatches, clip=1.0):
    total = sum((b.targets != -100).sum() for b in microbatches)
    for b in microbatches:
        logits = model(b.tokens, b.documents, b.positions).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, b.targets.flatten(), reduction="sum")
        (loss / total).backward()
    for p in model.parameters():
        torch.nn.utils.clip_grad_norm_([p], clip)
    optimizer.step()
    optimizer.zero_grad()
