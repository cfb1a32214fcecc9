# exercise: all_reduce_gradients
# differs: walks the parameters from last to first (one order on all ranks), pre-divides and sums
# instead of op="avg"
import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    trainable = filter(lambda p: p.requires_grad, model.parameters())
    for parameter in reversed(list(trainable)):
        if parameter.grad is None:
            parameter.grad = parameter.detach().new_zeros(parameter.shape)
        else:
            parameter.grad.div_(group.size)
        group.all_reduce(parameter.grad)
