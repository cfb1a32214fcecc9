# exercise: train_step
# says: one factor for all keeps the step's direction
# clips each parameter's gradient by its own norm, which changes the direction of the step, but
# the text says "once: clip by the global norm".

import torch


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    total = sum((b.targets != -100).sum() for b in microbatches)
    for b in microbatches:
        logits = model(b.tokens, b.documents, b.positions)
        summed = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), b.targets.flatten(), reduction="sum"
        )
        (summed / total).backward()
    for parameter in model.parameters():
        torch.nn.utils.clip_grad_norm_([parameter], clip)
    optimizer.step()
    optimizer.zero_grad()
