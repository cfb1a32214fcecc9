# exercise: conjugates
# one factory for both Functions, in the newer form (forward without ctx, setup_context), classes
# made by type()
import torch


def conjugates(there, back):
    def one_way(name, ahead, behind):
        def forward(x):
            return ahead(torch.empty_like(x).copy_(x))

        def setup_context(ctx, inputs, output):
            pass

        def backward(ctx, dy):
            return behind(torch.empty_like(dy).copy_(dy))

        members = {
            "forward": staticmethod(forward),
            "setup_context": staticmethod(setup_context),
            "backward": staticmethod(backward),
        }
        return type(name, (torch.autograd.Function,), members).apply

    return one_way("Ahead", there, back), one_way("Behind", back, there)
