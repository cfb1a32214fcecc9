import torch


def operator(there, back):
    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return there(x.detach().clone())

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, dy):
            return back(dy + 0)

    return Operator.apply


def conjugates(there, back):
    """A factory, called once each way."""
    return operator(there, back), operator(back, there)
