# exercise: conjugates
# says: its backward wrote over the gradient it was given
# backward gives dy itself to the in-place function: the caller's gradient is overwritten
# (forward does clone).

import torch


def conjugates(there, back):
    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return there(x.clone())

        @staticmethod
        def backward(ctx, dy):
            return back(dy)

    class Second(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return back(x.clone())

        @staticmethod
        def backward(ctx, dy):
            return there(dy)

    return First.apply, Second.apply
