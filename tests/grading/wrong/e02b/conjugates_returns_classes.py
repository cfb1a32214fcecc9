# exercise: conjugates
# says: return First.apply and Second.apply

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

    return First, Second
