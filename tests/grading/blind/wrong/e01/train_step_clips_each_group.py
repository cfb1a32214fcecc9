# exercise: train_step
# says: each of the optimizer's groups was clipped by its own norm
# clips each of the optimizer's groups by itself, so the step's direction changes
import torch


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    total = sum((b.targets != -100).sum() for b in microbatches)
    for b in microbatches:
        logits = model(b.tokens, b.documents, b.positions)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), b.targets.flatten(), reduction="sum"
        )
        (loss / total).backward()
    for group in optimizer.param_groups:
        torch.nn.utils.clip_grad_norm_(group["params"], clip)
    optimizer.step()
    optimizer.zero_grad()
