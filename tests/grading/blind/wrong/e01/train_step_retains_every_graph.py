# exercise: train_step
# says: let each backward free its graph (no retain_graph)
# Each backward keeps its graph and the losses are collected with it, so the activations of all
# microbatches are in memory at the end; "one's activations at a time are in memory".

import torch


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    total = sum((b.targets != -100).sum() for b in microbatches)
    losses = []
    for b in microbatches:
        logits = model(b.tokens, b.documents, b.positions)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), b.targets.flatten(), reduction="sum"
        )
        loss = loss / total
        loss.backward(retain_graph=True)
        losses.append(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
