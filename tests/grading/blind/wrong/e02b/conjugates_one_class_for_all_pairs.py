# exercise: conjugates
# says: each needs its own `there` and `back`
# The two classes live outside and hold there/back as class attributes: a second pair overwrites
# the first.

import torch


class First(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return First.there(x.clone())

    @staticmethod
    def backward(ctx, dy):
        return First.back(dy.clone())


class Second(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return First.back(x.clone())

    @staticmethod
    def backward(ctx, dy):
        return First.there(dy.clone())


def conjugates(there, back):
    First.there = staticmethod(there)
    First.back = staticmethod(back)
    return First.apply, Second.apply
