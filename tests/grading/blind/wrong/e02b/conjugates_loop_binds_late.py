# exercise: conjugates
# says: the first one's forward is `there`
# the classes are made in a loop and look `onward` and `behind` up when they run, so both do
# what the second should ("the first is `there`, with `back` as its backward")

import torch


def conjugates(there, back):
    applies = []
    for onward, behind in ((there, back), (back, there)):

        class One(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return onward(x.clone())

            @staticmethod
            def backward(ctx, dy):
                return behind(dy.clone())

        applies.append(One.apply)
    return tuple(applies)
