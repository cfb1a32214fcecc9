# exercise: train_step
# says: the next step would add to them (zero_grad)
# zeroes the gradients before the loop and not after the step, so they are still there when it
# returns, but the text says "Then once: clip by the global norm, step, zero".

import torch


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    optimizer.zero_grad()
    total = sum((b.targets != -100).sum() for b in microbatches)
    for b in microbatches:
        logits = model(b.tokens, b.documents, b.positions)
        summed = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), b.targets.flatten(), reduction="sum"
        )
        (summed / total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
