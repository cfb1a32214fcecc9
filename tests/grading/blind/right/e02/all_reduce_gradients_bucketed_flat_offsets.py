# right: grouped first, then filled into a flat empty buffer by offsets, summed, divided, copied back in place.
import torch


def all_reduce_gradients_bucketed(group, model, bucket_bytes):
    groups = []
    left = -1
    for p in list(model.parameters())[::-1]:
        if p.requires_grad:
            need = p.numel() * p.element_size()
            if need > left:
                groups.append([])
                left = bucket_bytes
            groups[-1].append(p)
            left -= need
    for members in groups:
        first = members[0]
        flat = torch.zeros(
            sum(p.numel() for p in members), dtype=first.dtype, device=first.device
        )
        at = 0
        for p in members:
            if p.grad is not None:
                flat[at : at + p.numel()] = p.grad.reshape(-1)
            at += p.numel()
        group.all_reduce(flat)
        flat /= group.size
        at = 0
        for p in members:
            piece = flat[at : at + p.numel()].reshape(p.shape)
            if p.grad is None:
                p.grad = piece.clone()
            else:
                p.grad.copy_(piece)
            at += p.numel()
