"""On every mesh of at most 8 ranks: loss, gradients, their norm and the next weights of one process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod

import pytest
import torch
from torch import Tensor

from minitrain.data.loader import Batch
from minitrain.model.config import ModelConfig
from minitrain.model.moe import set_step
from minitrain.model.transformer import build
from minitrain.parallel import mesh_model
from minitrain.parallel.launch import launch
from minitrain.parallel.layout import Layout, layout_of
from minitrain.parallel.mesh_gradients import GradientSums, copies, gradient_norm
from minitrain.parallel.mesh_model import AXES, MeshModel, MeshOptions, full_mesh
from minitrain.training.loop import token_weighted_loss
from minitrain.training.optimizers import clip_by_global_norm

EXPERTS, ROWS, LENGTH, VOCABULARY = 24, 24, 48, 11
CLIP, RATE = 0.5, 0.1
DENSE = ModelConfig(
    VOCABULARY, 8, layers=3, heads=24, kv_heads=4, ffn_size=24, head_size=2, qkv_bias=True
)
MIXTURE = replace(
    DENSE, layers=2, experts=EXPERTS, experts_per_token=2, expert_ffn_size=4, shared_experts=1,
    sequence_balance=0.1, z_loss=0.01, bias_rate=0.01,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    sizes: dict[str, int]
    options: MeshOptions = MeshOptions(microbatches=2)

    @property
    def ranks(self) -> int:
        return prod(self.sizes.values())

    def __str__(self) -> str:
        return " ".join(f"{axis}{n}" for axis, n in self.sizes.items() if n > 1) or "one rank"


def all_meshes() -> list[Case]:
    """Sizes that divide 24 rows, 24 experts and 24 heads, and whose double divides 48 tokens."""
    sizes = product((1, 2, 3, 4, 6, 8), repeat=len(AXES))
    return [Case(dict(zip(AXES, size))) for size in sizes if prod(size) <= 8]


def batches() -> list[Batch]:
    """Two microbatches with unequal numbers of targets, rows of several documents."""
    generator = torch.Generator().manual_seed(5)
    made = []
    for padding in (7, 0):
        tokens, targets = torch.randint(VOCABULARY, (2, ROWS, LENGTH), generator=generator)
        targets[::3, LENGTH - padding :] = -100
        documents = (torch.arange(LENGTH) * torch.arange(1, ROWS + 1)[:, None]) // (8 * ROWS)
        starts = documents != documents.roll(1, dims=1)
        starts[:, 0] = True
        place = torch.arange(LENGTH)
        positions = place - torch.where(starts, place, 0).cummax(dim=1).values
        made.append(Batch(tokens, targets, documents, positions))
    return made


@dataclass
class Whole:
    """What one process gets."""

    loss: float
    norm: float
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]  # after a step of clipped gradient descent


def one_process(config: ModelConfig) -> Whole:
    model, parts = build(config, dtype=torch.float64), batches()
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


def errors(group, config: ModelConfig, want: Whole, case: Case) -> dict[str, float]:
    """The largest difference of anything on this rank, by what it is, in units of 1e-10."""
    torch.set_num_threads(1)
    model = MeshModel(
        build(config, dtype=torch.float64), full_mesh(**case.sizes), group, case.options
    )
    mine = [model.share(batch) for batch in batches()]
    optimizer = torch.optim.SGD(model.parameters, lr=RATE)
    loss, _ = model.backward(mine)
    named = dict(model.modules.named_parameters())
    gradients = {name: p.grad.clone() for name, p in named.items()}
    norm = gradient_norm(model.parameters, model.lines)
    model.modules.zero_grad()
    step = model.step(optimizer, mine, CLIP)
    found = {
        "loss": abs(loss.item() - want.loss) + abs(step.loss - want.loss),
        "norm": abs(norm.item() - want.norm) + abs(step.grad_norm - want.norm),
    }
    for kind, whole, got in (
        ("gradient", want.gradients, gradients),
        ("weight", want.weights, {name: p.detach() for name, p in named.items()}),
    ):
        for name, parameter in named.items():
            name_in_model = name.split(".", 1)[1]  # without the stage's number
            expected = part_of(whole[name_in_model], parameter, model)
            found[f"{kind} of {name_in_model}"] = (got[name] - expected).abs().max().item()
    return {what: error / 1e-10 for what, error in found.items()}


def worst(group, config: ModelConfig, want: Whole, cases: list[Case]) -> list[tuple[float, str]]:
    return [max((e, what) for what, e in errors(group, config, want, c).items()) for c in cases]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8])
def test_every_mesh_is_one_process(ranks, capsys):
    """Dense where experts are not split over ranks, a mixture of experts where they are."""
    mixture = [case for case in all_meshes() if case.ranks == ranks and case.sizes["ep"] > 1]
    dense = [case for case in all_meshes() if case.ranks == ranks and case.sizes["ep"] == 1]
    with capsys.disabled():
        names = ", ".join(map(str, dense + mixture))
        print(f"\n{len(dense) + len(mixture)} meshes of {ranks}: {names}")
    for config, cases in ((DENSE, dense), (MIXTURE, mixture)):
        if cases:
            results = launch(worst, config, one_process(config), cases, ranks=ranks, timeout=240)
            for case, *of_ranks in zip(cases, *results):
                assert max(of_ranks)[0] < 1, f"{case}: {max(of_ranks)}"
