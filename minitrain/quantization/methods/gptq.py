"""GPTQ: rounds column by column; the remaining columns compensate each error.

Changing W (F, D) by ΔW moves the layer's outputs by ||X ΔW^T||² = tr(ΔW H ΔW^T), H = X^T X. With U
the upper Cholesky factor of H^-1, the best compensation for rounding column j is

    e = (w_j - ŵ_j) / U_jj        w_k <- w_k - e·U_jk   for all k > j

    columns  |r r r . . .|. . . . . .     within a block column by column,
             |-- block --|<- at once ->   beyond it once a block: a matmul, not D passes over W

The result does not depend on the block's size. A group's scales are fitted at its first column, on
weights with all corrections so far, so no block may cross a group's start. (The reference reads
them from a copy that the current block has not updated.) In formats that clip (`-mse`) an error of
column j is weighted by 1/U_jj²: its cost once all later columns have compensated.

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
    """Quantizes weight (F, D) to a grid, given the inputs' second moment (D, D) or a multiple of
    it.

    `damping`: its product with the diagonal's mean is added to the diagonal. `act_order`: columns
    with the largest inputs come first; scales are then fitted to the uncorrected weights. A column
    whose input was always 0 is rounded to nearest. InputError where the format has no levels that a
    column can be rounded to, or H does not fit this layer.
    """
    weight = checked(weight)
    has_columns(form, tuple(weight.shape))
    _check(weight, second_moment, block, damping)
    h = damped(second_moment, damping)
    order = h.diagonal().argsort(descending=True) if act_order else torch.arange(len(h))
    upper = inverse_factor(h[order][:, order])
    work = weight[:, order].double()
    width = form.tiling.columns(tuple(weight.shape))
    cost = upper.diagonal()[order.argsort()] ** -2  # (D,): of a column's error, after compensation
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
    """Blocks of at most `block` columns, none of which crosses a group's start."""
    starts = sorted({*range(0, width, group)} | {*range(0, width, block)})
    return list(zip(starts, [*starts[1:], width]))


def damped(second_moment: Tensor, damping: float) -> Tensor:
    """An invertible H: dead inputs get the diagonal's mean, and `damping` times it is added to
    all."""
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
    """column (F,) -> its codes and their dequantized values."""
    codes = form.grid.encode(column.float().unsqueeze(1), params)  # (F, 1)
    return codes.squeeze(1), form.grid.decode(codes, params).squeeze(1)


def _fit(form: GridFormat, weight: Tensor, cost: Tensor, start: int, width: int) -> Params:
    """weight (F, D), cost (D,): parameters of the columns from `start` on."""
    part = weight[:, start : start + width].float()
    costs = cost[start : start + width].expand_as(part)
    return form.fit(*map(form.tiling.cut, (part, costs)))


def _joined(fitted: list[Params]) -> Params:
    """Parameters (F, 1) of each span -> one per tile, (F·n, 1), in the tiles' order."""
    return {
        name: torch.stack([params[name] for params in fitted], dim=1).flatten(0, 1)
        for name in fitted[0]
    }


def has_columns(form: Format, shape: Shape) -> None:
    """InputError where a single column cannot be rounded in this format."""
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
