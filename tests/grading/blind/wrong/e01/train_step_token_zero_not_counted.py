# exercise: train_step
# says: right but for one factor
# Counts targets with `> 0`, so targets that are token 0 are in the loss but not in the count;
# "or -100 where nothing counts": only -100 is left out.

import torch
import torch.nn.functional as F


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    counted = sum(int((b.targets > 0).sum()) for b in microbatches)
    for b in microbatches:
        logits = model(b.tokens, b.documents, b.positions)
        loss = F.cross_entropy(logits.flatten(0, 1), b.targets.flatten(), reduction="sum")
        (loss / counted).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
