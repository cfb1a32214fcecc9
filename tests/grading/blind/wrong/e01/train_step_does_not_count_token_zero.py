# exercise: train_step
# says: right but for one factor
# Targets are counted with `> 0`, so targets that are token 0 are in the summed loss but not in
# the divisor; "Divide each *summed* loss by the counted targets of *all* microbatches", and
# only -100 does not count.

import torch


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    total = sum((b.targets > 0).sum() for b in microbatches)
    for b in microbatches:
        loss = torch.nn.functional.cross_entropy(
            model(b.tokens, b.documents, b.positions).flatten(0, 1),
            b.targets.flatten(),
            reduction="sum",
        )
        (loss / total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
