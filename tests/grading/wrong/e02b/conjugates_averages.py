# exercise: conjugates
# says: backward is the sum of what the ranks say

import torch


def conjugates(there, back):
    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return there(x.clone())

        @staticmethod
        def backward(ctx, dy):
            return back(dy.clone()) / 2

    class Second(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return back(x.clone())

        @staticmethod
        def backward(ctx, dy):
            return there(dy.clone())

    return First.apply, Second.apply
