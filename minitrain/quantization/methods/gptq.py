"""GPTQ: round one column after the other; the columns still to come make up for each error.

Changing W (F, D) by ΔW moves the layer's outputs by ||X ΔW^T||² = tr(ΔW H ΔW^T), H = X^T X. With U
the upper Cholesky factor of H^-1, rounding column j is best answered by

    e = (w_j - ŵ_j) / U_jj        w_k <- w_k - e·U_jk   for all k > j

    columns  |r r r . . .|. . . . . .     within a block column by column,
             |-- block --|<- at once ->   beyond it once a block: a matmul, not D passes over W

The result does not depend on the block's size. The scales of a group are fitted when its first
column comes, on weights that hold every correction so far: so no block may run over a group's
start. (The reference reads them from a copy that the current block has not updated.) In formats
that clip (`-mse`) an error of column j counts 1/U_jj²: what it costs when all later ones have
answered.

Cost: F·D² FLOPs and a Cholesky factor of D³/3. Paper: Frantar et al. 2023 (arXiv:2210.17323);
act-order, largest diagonal first: its README. Shapes: D width in  F width out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.quantization.formats.grids import Params
from minitrain.quantization.formats.tiling import Shape
from minitrain.quantization.formats.weight import Format, GridFormat, QuantizedWeight, checked


@torch.no_grad()
def gptq(
    weight: Tensor,
    second_moment: Tensor,
    form: Format,
    block: int = 128,
    damping: float = 0.01,
    act_order: bool = False,
) -> QuantizedWeight:
    """weight (F, D) on a grid, by the inputs' second moment (D, D) or any multiple of it.

    `damping`: times the mean of the diagonal, added to it. `act_order`: the columns that are
    multiplied by the most come first; scales are then those of the weights before any correction.
    A column whose input was always 0 is rounded to nearest. InputError where the format has no
    levels that a column can be rounded to, or H is not that of this layer.
    """
    weight = checked(weight)
    has_columns(form, tuple(weight.shape))
    _check(weight, second_moment, block, damping)
    h = damped(second_moment, damping)
    order = h.diagonal().argsort(descending=True) if act_order else torch.arange(len(h))
    upper = inverse_factor(h[order][:, order])
    work = weight[:, order].double()
    width = form.tiling.columns(tuple(weight.shape))
    cost = upper.diagonal()[order.argsort()] ** -2  # (D,): of a column's error, once it is made up
    cost = (cost / cost.mean()).float()
    fitted = [_fit(form, weight, cost, start, width) for start in range(0, len(h), width)]
    codes = torch.empty_like(weight, dtype=torch.uint8)
    for start, stop in spans(len(h), block, len(h) if act_order else width):
        if start % width == 0 and not act_order:
            fitted[start // width] = _fit(form, work, cost, start, width)
        errors = torch.empty_like(work[:, start:stop])
        for j in range(start, stop):
            place = int(order[j])
            params = fitted[place // width]
            codes[:, place], rounded = _round(form, work[:, j], params)
            errors[:, j - start] = error = (work[:, j] - rounded) / upper[j, j]
            work[:, j + 1 : stop] -= torch.outer(error, upper[j, j + 1 : stop])
        work[:, stop:] -= errors @ upper[start:stop, stop:]
    return form.hold(codes, _joined(fitted))


def spans(width: int, block: int, group: int) -> list[tuple[int, int]]:
    """Blocks of at most `block` columns, none of which runs over a group's start."""
    starts = sorted({*range(0, width, group)} | {*range(0, width, block)})
    return list(zip(starts, [*starts[1:], width]))


def damped(second_moment: Tensor, damping: float) -> Tensor:
    """H that can be inverted: dead inputs get the diagonal's mean, and all `damping` times it."""
    h = second_moment.double().clone()
    diagonal = h.diagonal()
    live = diagonal > 0
    mean = diagonal[live].mean() if live.any() else diagonal.new_ones(())
    diagonal[~live] = mean
    diagonal += damping * mean
    return h


def inverse_factor(h: Tensor) -> Tensor:
    """U with U^T U = H^-1, upper triangular."""
    factor, wrong = torch.linalg.cholesky_ex(h)
    if wrong:
        raise InputError(
            f"the second moment of {len(h)} inputs cannot be inverted: calibrate on more tokens "
            "than that, or use a larger damping than 0.01"
        )
    return torch.linalg.cholesky(torch.cholesky_inverse(factor), upper=True)


def _round(form: GridFormat, column: Tensor, params: Params) -> tuple[Tensor, Tensor]:
    """column (F,) -> its codes, and what they stand for."""
    codes = form.grid.encode(column.float().unsqueeze(1), params)  # (F, 1)
    return codes.squeeze(1), form.grid.decode(codes, params).squeeze(1)


def _fit(form: GridFormat, weight: Tensor, cost: Tensor, start: int, width: int) -> Params:
    """weight (F, D), cost (D,): of the columns from `start` on."""
    part = weight[:, start : start + width].float()
    costs = cost[start : start + width].expand_as(part)
    return form.fit(*map(form.tiling.cut, (part, costs)))


def _joined(fitted: list[Params]) -> Params:
    """Each span's (F, 1) -> one for each tile, (F·n, 1), in the tiles' order."""
    return {
        name: torch.stack([params[name] for params in fitted], dim=1).flatten(0, 1)
        for name in fitted[0]
    }


def has_columns(form: Format, shape: Shape) -> None:
    """InputError where the format has no levels that a single column can be rounded to."""
    if not isinstance(form, GridFormat):
        raise InputError(
            f"GPTQ rounds column by column to fixed levels, and {form.name} fits its scales to "
            "whole blocks: take an integer format, nf4 or fp4, or round to nearest (rtn)"
        )
    form.tiling.columns(shape)


def _check(weight: Tensor, moment: Tensor, block: int, damping: float) -> None:
    width = weight.shape[1]
    if tuple(moment.shape) != (width, width):
        raise InputError(
            f"the second moment is {tuple(moment.shape)} and the weight {tuple(weight.shape)}: it "
            f"must be ({width}, {width}), of this layer's own inputs"
        )
    if not moment.isfinite().all():
        raise InputError(
            f"the second moment of {width} inputs has NaN or infinite numbers: the calibration "
            "overflows; compute in bfloat16 or float32"
        )
    if block < 1 or not damping >= 0:
        raise InputError(f"block={block}, damping={damping}: try block=128 and damping=0.01")
