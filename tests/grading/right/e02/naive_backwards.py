import torch


def all_reduce_gradients(group, model):
    """From the last parameter to the first, each average into a tensor of its own."""
    seen = set()
    for _, p in reversed(list(model.named_parameters(remove_duplicate=False))):
        if not p.requires_grad or p in seen:
            continue
        seen.add(p)
        total = torch.zeros_like(p) if p.grad is None else p.grad.clone()
        group.all_reduce(total)
        p.grad = total.div_(group.size)
