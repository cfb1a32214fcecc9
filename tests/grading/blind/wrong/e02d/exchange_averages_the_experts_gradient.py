# exercise: exchange
# says: what came by the all-to-all is the whole sum already
# the gradient that reaches the experts' weights is divided by the number of ranks; "An expert's
# gradient is then already the sum over the tokens of all ranks. Averaging it, as data
# parallelism would, is wrong by N."

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


class Scaled(torch.autograd.Function):
    """The same tensor, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx, tensor, factor):
        ctx.factor = factor
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


def exchange(group, experts, rows, counts) -> torch.Tensor:
    N = group.size
    leaving = counts.view(N, -1)
    arriving = group.all_to_all(torch.empty_like(leaving), leaving)
    sent, got = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, sent, got)
    own = torch.arange(leaving.shape[1]).repeat(N)
    order = own.repeat_interleave(arriving.flatten()).argsort(stable=True)
    # the mean over ranks for the weights; the rows' own gradient as it was
    answers = experts(Scaled.apply(arrived[order], N), arriving.sum(0))
    answers = Scaled.apply(answers, 1 / N)
    return all_to_all(answers[order.argsort()], group, got, sent)
