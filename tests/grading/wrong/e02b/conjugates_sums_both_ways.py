# exercise: conjugates
# says: that is the sum over ranks: the second one's backward is `there`
# says: messages forward and

import torch


def conjugates(there, back):
    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return there(x.clone())

        @staticmethod
        def backward(ctx, dy):
            return back(dy.clone())

    class Second(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return back(x.clone())

        @staticmethod
        def backward(ctx, dy):
            return back(dy.clone())

    return First.apply, Second.apply
