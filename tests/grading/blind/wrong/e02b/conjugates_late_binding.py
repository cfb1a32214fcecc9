# exercise: conjugates
# says: the first one's forward is `there`
# both classes are made in a loop and read the loop's variables when they run, so both do the
# LAST pair (back forward, there backward)

import torch


def conjugates(there, back):
    applies = []
    for ahead, behind in ((there, back), (back, there)):

        class Pair(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return ahead(x.clone())

            @staticmethod
            def backward(ctx, dy):
                return behind(dy.clone())

        applies.append(Pair.apply)
    return tuple(applies)
