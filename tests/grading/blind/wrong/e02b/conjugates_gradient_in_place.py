# exercise: conjugates
# says: its backward wrote over the gradient it was given
# backward hands the incoming gradient itself to an operation that works in place; "neither x
# nor the gradient is yours to change"

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
