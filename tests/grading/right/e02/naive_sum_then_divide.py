import torch


@torch.no_grad()
def all_reduce_gradients(group, model):
    """Named parameters, a sum, and the division at the end, all under way at the same time."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    grads = {
        n: p.grad if p.grad is not None else p.new_zeros(p.shape) for n, p in trainable.items()
    }
    works = [group.all_reduce(grads[name], async_op=True) for name in trainable]
    for work in works:
        work.wait()
    for name, p in trainable.items():
        p.grad = grads[name] / group.size
