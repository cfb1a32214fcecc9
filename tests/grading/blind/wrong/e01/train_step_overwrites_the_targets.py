# exercise: train_step
# says: the batches after the call
# replaces -100 by 0 in the caller's own targets to mask by hand, so a second step on the same
# microbatches counts the padding as token 0, but targets are "-100 where nothing counts".

import torch


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    total = sum((b.targets != -100).sum() for b in microbatches)
    for b in microbatches:
        counts = b.targets != -100
        b.targets[~counts] = 0
        logits = model(b.tokens, b.documents, b.positions)
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), b.targets.flatten(), reduction="none"
        )
        ((losses * counts.flatten()).sum() / total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
