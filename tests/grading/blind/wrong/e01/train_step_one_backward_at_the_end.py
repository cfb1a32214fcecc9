# exercise: train_step
# says: all their activations are in memory at once
# adds up the losses and calls backward once after the loop, so the activations of all
# microbatches are held together, but the text cuts "A batch too large for memory" into
# "microbatches whose gradients add up".

import torch


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    total = sum((b.targets != -100).sum() for b in microbatches)
    loss = 0.0
    for b in microbatches:
        logits = model(b.tokens, b.documents, b.positions)
        summed = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), b.targets.flatten(), reduction="sum"
        )
        loss = loss + summed / total
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
