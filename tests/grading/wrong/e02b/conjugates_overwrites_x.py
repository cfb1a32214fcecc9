# exercise: conjugates
# says: hand it x.clone()

import torch


def conjugates(there, back):
    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return there(x)

        @staticmethod
        def backward(ctx, dy):
            return back(dy.clone())

    class Second(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return back(x)

        @staticmethod
        def backward(ctx, dy):
            return there(dy.clone())

    return First.apply, Second.apply
