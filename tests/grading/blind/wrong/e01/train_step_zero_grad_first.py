# exercise: train_step
# says: the next step would add to them (zero_grad)
# zero_grad at the start as in most training loops, so the gradients are left behind after the
# step

import torch
import torch.nn.functional as F


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    optimizer.zero_grad()
    n = sum((b.targets != -100).sum() for b in microbatches)
    for b in microbatches:
        logits = model(b.tokens, b.documents, b.positions)
        loss = F.cross_entropy(
            logits.flatten(0, 1), b.targets.flatten(), reduction="sum"
        )
        (loss / n).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
