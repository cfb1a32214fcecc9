import torch


def train_step(model, optimizer, microbatches, clip=1.0):
    """Weighs each microbatch's mean by its share of the tokens, and clips by hand."""
    counts = [int(batch.targets.ne(-100).sum()) for batch in microbatches]
    optimizer.zero_grad()
    for batch, count in zip(microbatches, counts):
        logits = model(batch.tokens, batch.documents, batch.positions)
        mean = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.targets)
        (mean * (count / sum(counts))).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    if norm > clip:
        for g in gradients:
            g.mul_(clip / norm)
    optimizer.step()
    model.zero_grad()
