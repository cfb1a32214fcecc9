# exercise: conjugates
# says: its backward wrote over the gradient it was given
# backward takes `dy.contiguous()` for a copy, which it is only where dy is not contiguous (as
# after `.sum()`); any other dy is changed in place: "neither x nor the gradient is yours to
# change"

import torch


def conjugates(there, back):
    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return there(x.clone())

        @staticmethod
        def backward(ctx, dy):
            return back(dy.contiguous())

    class Second(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return back(x.clone())

        @staticmethod
        def backward(ctx, dy):
            return there(dy.contiguous())

    return First.apply, Second.apply
