import torch


def train_step(model, optimizer, microbatches, clip=1.0):
    """In another order, by log-probabilities, and returns what it lost."""
    total = torch.stack([(b.targets >= 0).sum() for b in microbatches]).sum()
    lost = []
    for b in reversed(microbatches):
        logits = model(b.tokens, documents=b.documents, positions=b.positions)
        counts = b.targets >= 0
        picked = logits.log_softmax(-1)[counts].gather(1, b.targets[counts][:, None])
        loss = -picked.sum() / total
        loss.backward()
        lost.append(loss)
    parameters = list(model.parameters())
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in parameters]))
    for p in parameters:
        p.grad *= torch.clamp(clip / (norm + 1e-6), max=1.0)
    optimizer.step()
    for p in parameters:
        p.grad = None
    return float(sum(lost))
