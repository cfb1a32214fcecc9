"""On every mesh of at most 8 ranks: loss, gradients, their norm and the next weights of one process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod

import pytest
import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.optimizers.adafactor import Adafactor
from minitrain.parallel.hybrid import model as hybrid
from minitrain.parallel.hybrid.model import AXES, MeshModel, MeshOptions, full_mesh
from minitrain.parallel.layout import layout_of
from minitrain.ranks.errors import RankError
from minitrain.ranks.launch import launch

from .mesh_toys import CLIP, DENSE, MIXTURE, RATE, Whole, batches, one_process

TWO = MeshOptions(microbatches=2)


@dataclass(frozen=True)
class Case:
    sizes: dict[str, int]
    options: MeshOptions = TWO
    tied: bool = False

    @property
    def ranks(self) -> int:
        return prod(self.sizes.values())

    @property
    def config(self) -> ModelConfig:
        config = MIXTURE if self.sizes["ep"] > 1 else DENSE
        layers = max(2, self.sizes["pp"] * self.options.chunks)
        return replace(config, layers=layers, tied=self.tied)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and tokens of a microbatch: a row or two a rank, and whole chunks of it."""
        tokens = 4 * self.sizes["cp"] * (self.sizes["tp"] if self.options.sequence else 1)
        return max(2, self.sizes["dp"] * self.sizes["ep"]), tokens

    def __str__(self) -> str:
        return " ".join(f"{axis}{n}" for axis, n in self.sizes.items() if n > 1) or "one rank"


def all_meshes() -> list[Case]:
    """Sizes that divide 24 heads, features and experts, and 8 ranks at most."""
    sizes = (dict(zip(AXES, n)) for n in product((1, 2, 3, 4, 6, 8), repeat=len(AXES)))
    return [Case(size) for size in sizes if prod(size.values()) <= 8]


def part_of(whole: Tensor, parameter: nn.Parameter, model: MeshModel) -> Tensor:
    """The part of a whole tensor that this rank should hold."""
    part = layout_of(parameter).slice
    return whole if part is None else part.of(whole)


def errors(group, case: Case, want: Whole) -> dict[str, float]:
    """The largest difference of anything on this rank, by what it is, in units of 1e-10."""
    torch.set_num_threads(1)
    whole = build(case.config, dtype=torch.float64)
    model = MeshModel(whole, full_mesh(**case.sizes), group, case.options)
    mine = [model.share(batch) for batch in batches(*case.shape)]
    optimizer = torch.optim.SGD(model.parameters, lr=RATE)
    rounds = 2 if group.size < 6 else 1  # as many as one likes
    evaluated = model.evaluate(mine * rounds)
    loss, _ = model.backward(mine)
    named = dict(model.modules.named_parameters())
    gradients = {name: p.grad.clone() for name, p in named.items()}
    norm = model.update(optimizer, CLIP)
    found = {"loss": abs(loss.item() - want.loss), "norm": abs(norm.item() - want.norm)}
    found["evaluation"] = abs(evaluated.item() - want.loss)
    for kind, whole, got in (
        ("gradient", want.gradients, gradients),
        ("weight", want.weights, {name: p.detach() for name, p in named.items()}),
    ):
        for name, parameter in named.items():
            plain = name.split(".", 1)[1]  # without the stage's number
            same = "embed.weight" if case.tied and plain == "head.weight" else plain
            expected = part_of(whole[same], parameter, model)
            found[f"{kind} of {plain}"] = (got[name] - expected).abs().max().item()
    return {what: error / 1e-10 for what, error in found.items()}


def worst(group, cases: list[tuple[Case, Whole]]) -> list[tuple[float, str]]:
    return [max((e, what) for what, e in errors(group, *case).items()) for case in cases]


def check(cases: list[Case], ranks: int) -> None:
    wanted = [(case, one_process(case.config, case.shape)) for case in cases]
    for case, *of_ranks in zip(cases, *launch(worst, wanted, ranks=ranks, timeout=240)):
        assert max(of_ranks)[0] < 1, f"{case}: {max(of_ranks)}"


MANY = [pytest.param(ranks, marks=pytest.mark.full) for ranks in (6, 8)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, *MANY])
def test_every_mesh_is_one_process(ranks):
    """Dense where experts are not split over ranks, a mixture of experts where they are."""
    check([case for case in all_meshes() if case.ranks == ranks], ranks)


def test_three_axes_of_two_are_one_process():
    cases = [case for case in all_meshes() if sorted(case.sizes.values()) == [1, 1, 2, 2, 2]]
    assert len(cases) == 10
    check(cases, 8)


def along(schedule: str = "1f1b", chunks: int = 1, **changes) -> MeshOptions:
    return replace(TWO, schedule=schedule, chunks=chunks, **changes)


def sizes_of(**sizes: int) -> dict[str, int]:
    return {axis: sizes.get(axis, 1) for axis in AXES}


VARIANTS = [
    Case(sizes_of(tp=2, cp=2), along(sequence=True)),
    Case(sizes_of(tp=2, ep=2), along(sequence=True)),
    Case(sizes_of(pp=2, tp=2), along(sequence=True), tied=True),
    Case(sizes_of(pp=2, tp=2), along("interleaved", 2)),
    Case(sizes_of(pp=2, ep=2), along("zero-bubble")),
    Case(sizes_of(pp=2, dp=2), along("gpipe"), tied=True),
    Case(sizes_of(pp=2, cp=2), along("dualpipe")),
    Case(sizes_of(dp=4), along(), tied=True),
]


def test_other_schedules_split_sequences_and_tied_tables_too():
    check(VARIANTS, 4)


# ---- plausible and wrong: each of these must be told from the right one ----


def counts_every_copy(layout, mesh):
    return 1


def sums_nothing(self):
    pass


MISTAKES = {
    "norm": (hybrid, "copies", counts_every_copy),  # replicated weights counted tp times
    "gradient": (hybrid.GradientSums, "__call__", sums_nothing),
}


def with_mistake(group, mistake: str, case: Case, want: Whole) -> set[str]:
    """The first word of each thing that is wrong then."""
    setattr(*MISTAKES[mistake])  # this rank is a process of its own, which ends after this
    return {what.split()[0] for what, error in errors(group, case, want).items() if error > 1}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(mistake):
    case = Case(sizes_of(dp=2, tp=2))
    for wrong in launch(with_mistake, mistake, case, one_process(case.config, case.shape), ranks=4):
        assert mistake in wrong and "loss" not in wrong, "the loss alone does not show it"


def test_an_axis_that_is_none_is_named():
    with pytest.raises(InputError, match="no axis is called 'zero'"):
        full_mesh(zero=2)


def factored(group, sizes) -> None:
    model = MeshModel(build(Case(sizes).config), full_mesh(**sizes), group)
    model.update(Adafactor(model.parameters))


@pytest.mark.parametrize("axis", ["tp", "ep"])
def test_a_rule_for_whole_matrices_is_refused_where_they_are_cut(axis):
    """The step would be another than one process's: it was, by 0.3% of the norm."""
    with pytest.raises(RankError, match="this optimizer needs whole matrices"):
        launch(factored, sizes_of(**{axis: 2}), ranks=2)
