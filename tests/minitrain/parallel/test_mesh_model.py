"""On every mesh of at most 8 ranks: loss, gradients, their norm and the next weights of one process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod

import pytest
import torch
from torch import Tensor

from minitrain.data.loader import Batch
from minitrain.model.config import ModelConfig
from minitrain.model.moe import set_step
from minitrain.model.transformer import build
from minitrain.parallel.launch import launch
from minitrain.parallel.layout import layout_of
from minitrain.parallel.mesh_model import AXES, MeshModel, MeshOptions, full_mesh
from minitrain.training.loop import token_weighted_loss
from minitrain.training.optimizers import clip_by_global_norm

EXPERTS, VOCABULARY = 24, 11
CLIP, RATE = 0.5, 0.1
TWO = MeshOptions(microbatches=2)
DENSE = ModelConfig(
    VOCABULARY, 8, layers=2, heads=24, kv_heads=4, ffn_size=24, head_size=2, qkv_bias=True
)
MIXTURE = replace(
    DENSE, experts=EXPERTS, experts_per_token=2, expert_ffn_size=4, shared_experts=1,
    sequence_balance=0.1, z_loss=0.01, bias_rate=0.01,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    sizes: dict[str, int]
    options: MeshOptions = TWO

    @property
    def ranks(self) -> int:
        return prod(self.sizes.values())

    @property
    def config(self) -> ModelConfig:
        config = MIXTURE if self.sizes["ep"] > 1 else DENSE
        return replace(config, layers=max(2, self.sizes["pp"] * self.options.chunks))

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


def batches(rows: int, length: int) -> list[Batch]:
    """Two microbatches with unequal numbers of targets, rows of several documents."""
    generator = torch.Generator().manual_seed(5)
    made = []
    for padding in (length // 4, 0):
        tokens, targets = torch.randint(VOCABULARY, (2, rows, length), generator=generator)
        targets[::2, length - padding :] = -100
        second = 1 + torch.arange(rows)[:, None] % (length - 1)  # where a row's second one begins
        place = torch.arange(length)
        documents = (place >= second).long()
        made.append(Batch(tokens, targets, documents, place - second * documents))
    return made


@dataclass
class Whole:
    """What one process gets."""

    loss: float
    norm: float
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]  # after a step of clipped gradient descent


@cache
def one_process(config: ModelConfig, shape: tuple[int, int]) -> Whole:
    model, parts = build(config, dtype=torch.float64), batches(*shape)
    tokens = sum(part.tokens_counted for part in parts)
    set_step(model, sum(part.targets.numel() for part in parts))
    shares = []
    for part in parts:
        logits = model(part.tokens, part.documents, part.positions)
        shares.append(token_weighted_loss(logits, part.targets, tokens))
        shares[-1].backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    norm = clip_by_global_norm(list(model.parameters()), CLIP)
    with torch.no_grad():
        weights = {name: p - RATE * p.grad for name, p in model.named_parameters()}
    return Whole(sum(share.item() for share in shares), norm.item(), gradients, weights)


def part_of(whole: Tensor, parameter: torch.nn.Parameter, model: MeshModel) -> Tensor:
    """What this rank should hold of a whole tensor."""
    if "ep" in layout_of(parameter).split:
        whole = whole.chunk(model.lines.mesh["ep"])[model.lines.here["ep"]]
    cut = getattr(parameter, "slice", None)
    return whole if cut is None else cut.of(whole)


def errors(group, case: Case, want: Whole) -> dict[str, float]:
    """The largest difference of anything on this rank, by what it is, in units of 1e-10."""
    torch.set_num_threads(1)
    whole = build(case.config, dtype=torch.float64)
    model = MeshModel(whole, full_mesh(**case.sizes), group, case.options)
    mine = [model.share(batch) for batch in batches(*case.shape)]
    optimizer = torch.optim.SGD(model.parameters, lr=RATE)
    loss, _ = model.backward(mine)
    named = dict(model.modules.named_parameters())
    gradients = {name: p.grad.clone() for name, p in named.items()}
    norm = model.update(optimizer, CLIP)
    found = {"loss": abs(loss.item() - want.loss), "norm": abs(norm.item() - want.norm)}
    for kind, whole, got in (
        ("gradient", want.gradients, gradients),
        ("weight", want.weights, {name: p.detach() for name, p in named.items()}),
    ):
        for name, parameter in named.items():
            name_in_model = name.split(".", 1)[1]  # without the stage's number
            expected = part_of(whole[name_in_model], parameter, model)
            found[f"{kind} of {name_in_model}"] = (got[name] - expected).abs().max().item()
    return {what: error / 1e-10 for what, error in found.items()}


def worst(group, cases: list[tuple[Case, Whole]]) -> list[tuple[float, str]]:
    return [max((e, what) for what, e in errors(group, *case).items()) for case in cases]


def check(cases: list[Case], ranks: int) -> None:
    wanted = [(case, one_process(case.config, case.shape)) for case in cases]
    for case, *of_ranks in zip(cases, *launch(worst, wanted, ranks=ranks, timeout=240)):
        assert max(of_ranks)[0] < 1, f"{case}: {max(of_ranks)}"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8])
def test_every_mesh_is_one_process(ranks, capsys):
    """Dense where experts are not split over ranks, a mixture of experts where they are."""
    cases = [case for case in all_meshes() if case.ranks == ranks]
    with capsys.disabled():
        print(f"\n{len(cases)} meshes of {ranks}: {', '.join(map(str, cases))}")
    check(cases, ranks)
