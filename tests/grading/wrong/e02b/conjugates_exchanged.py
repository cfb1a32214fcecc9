# exercise: conjugates
# says: the first one's forward is `there`

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
            return there(dy.clone())

    return Second.apply, First.apply
