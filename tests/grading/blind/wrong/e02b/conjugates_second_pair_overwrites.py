# exercise: conjugates
# says: each needs its own `there` and `back`
# both Functions live outside and are told what to do by class attributes, so a second pair
# changes the first ("two functions of one tensor, each the other's backward"; Operators makes
# two pairs)

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
    First.there, First.back = there, back
    return First.apply, Second.apply
