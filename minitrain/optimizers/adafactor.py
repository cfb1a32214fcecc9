"""Adafactor: Adam's second moment of a matrix, factored into one number per row and per column.

    R_i = mean over columns of g^2     C_j = mean over rows of g^2     v_ij ~ R_i C_j / mean(R)

Exact if g^2 has rank 1, else the best rank-1 estimate (least generalized divergence). No first
moment. The averages forget less and less, beta2 = 1 - t^-0.8; the step size is relative to the
weights (lr times their root mean square), and unusually long steps are clipped to the usual length.
Cost: 4 (R + C) bytes for a matrix of R C parameters. Paper: Shazeer & Stern 2018
(arXiv:1804.04235). Shapes: R rows  C columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.optimizers.adamw import OneByOne


class Adafactor(OneByOne):
    """`lr` is relative to the weights' size, and decays as 1/sqrt(t) once that is smaller."""

    def __init__(
        self,
        parameters,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        smallest_weight: float = 1e-3,  # minimum size, for weights that start at 0
        clip: float = 1.0,
        weight_decay: float = 0.0,
    ):
        defaults = {"lr": lr, "beta2_decay": beta2_decay, "weight_decay": weight_decay}
        super().__init__(parameters, {**defaults, "smallest_weight": smallest_weight, "clip": clip})

    def start(self, weight: Tensor, group: dict) -> dict:
        state = {"step": torch.tensor(0.0)}
        if weight.ndim < 2:
            return {**state, "square": weight.new_zeros(weight.shape)}
        rows, columns = weight.shape[:-1], weight.shape[:-2] + weight.shape[-1:]
        return {**state, "rows": weight.new_zeros(rows), "columns": weight.new_zeros(columns)}

    def move(self, weight: Tensor, grad: Tensor, group: dict, state: dict) -> None:
        state["step"] += 1
        step, lr = state["step"].item(), group["lr"]
        size = max(group["smallest_weight"], root_mean_square(weight))
        weight.mul_(1 - lr * group["weight_decay"])
        eps = torch.finfo(grad.dtype).eps
        square = second_moment(grad, state, step ** group["beta2_decay"], eps)
        update = square.clamp_(min=eps**2).rsqrt_().mul_(grad)
        unusual = max(1.0, root_mean_square(update) / group["clip"])
        weight.add_(update, alpha=-min(lr, step**-0.5) * size / unusual)


def second_moment(grad: Tensor, state: dict, new_part: float, eps: float) -> Tensor:
    """Adds this gradient to the averages with weight `new_part`; returns the estimate of g^2."""
    if grad.ndim < 2:
        return state["square"].lerp_(grad.square(), new_part).clone()
    rows, columns = state["rows"], state["columns"]
    rows.lerp_(grad.square().mean(dim=-1), new_part)  # (…, R)
    columns.lerp_(grad.square().mean(dim=-2), new_part)  # (…, C)
    return outer(rows / rows.mean(dim=-1, keepdim=True).clamp_(min=eps), columns)


def outer(rows: Tensor, columns: Tensor) -> Tensor:
    """(…, R), (…, C) -> (…, R, C)"""
    return rows.unsqueeze(-1) * columns.unsqueeze(-2)


def root_mean_square(x: Tensor) -> float:
    return (torch.linalg.vector_norm(x) / x.numel() ** 0.5).item()
