# exercise: conjugates
# says: `there` and `back` may work in place
# where x needs no gradient the operator is called directly on x, without a copy, so
# `group.all_reduce` changes the caller's x: "may work in place ...: neither x nor the gradient
# is yours to change" (and what is returned is not the `.apply` of each)

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

    def first(x):
        return First.apply(x) if x.requires_grad else there(x)

    def second(x):
        return Second.apply(x) if x.requires_grad else back(x)

    return first, second
