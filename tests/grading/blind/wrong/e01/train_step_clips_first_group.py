# exercise: train_step
# says: one of the optimizer's two groups was clipped
# Clips only the optimizer's first parameter group (norms without weight decay are often in a
# second one); "clip by the global norm" is over all of the model's gradients.

import torch
import torch.nn.functional as F


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    counted = sum((b.targets != -100).sum() for b in microbatches)
    for b in microbatches:
        logits = model(b.tokens, b.documents, b.positions)
        loss = F.cross_entropy(logits.flatten(0, 1), b.targets.flatten(), reduction="sum")
        (loss / counted).backward()
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], clip)
    optimizer.step()
    optimizer.zero_grad()
