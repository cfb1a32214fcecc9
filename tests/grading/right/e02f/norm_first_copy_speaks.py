import torch

from minitrain.parallel.layout import layout_of


def gradient_norm(parameters, lines):
    """Each element is added by the first of the ranks that hold it, along one axis after another."""
    squares = [torch.zeros((), dtype=torch.float64)]
    for p in parameters:
        split = layout_of(p).split
        if p.grad is not None and all(
            lines.here[a] == 0 for a in lines.mesh.axes if a not in split
        ):
            squares.append(p.grad.double().norm() ** 2)
    square = torch.stack(squares).sum()
    for axis in lines.mesh.axes:
        square = lines[axis].all_reduce(square)
    return square**0.5
