# exercise: train_step
# says: without them a token reads other documents
# gives the model only the tokens, so packed documents see each other and positions do not start
# anew, but the docstring says "`model(b.tokens, b.documents, b.positions)` gives logits".

import torch


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    total = sum((b.targets != -100).sum() for b in microbatches)
    for b in microbatches:
        logits = model(b.tokens)
        summed = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), b.targets.flatten(), reduction="sum"
        )
        (summed / total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
