# exercise: Checkpoint
# says: run by torch.utils.checkpoint

from torch.utils.checkpoint import CheckpointFunction


class Checkpoint(CheckpointFunction):
    @staticmethod
    def forward(ctx, function, *inputs):
        return CheckpointFunction.forward(ctx, function, True, *inputs)

    @staticmethod
    def backward(ctx, gradient):
        _, _, *gradients = CheckpointFunction.backward(ctx, gradient)
        return None, *gradients
