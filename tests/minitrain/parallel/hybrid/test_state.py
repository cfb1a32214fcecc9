"""Taken apart on a mesh and put together again, a model and its optimizer are what they were, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minitrain.errors import InputError
from minitrain.model.transformer import Transformer, build
from minitrain.optimizers.adamw import adamw
from minitrain.optimizers.groups import parameter_groups
from minitrain.parallel.hybrid import state
from minitrain.parallel.hybrid.model import MeshModel, MeshOptions, full_mesh
from minitrain.parallel.hybrid.sharded_state import ShardedState
from minitrain.parallel.hybrid.state import (
    held_by,
    mesh_layout,
    put_together,
    take_apart,
    whole_model,
)
from minitrain.ranks.launch import launch
from minitrain.reliability.checkpoint.contents import CheckpointRanks
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.training.state import TrainState

from ...training.toys import ToyLoader
from .mesh_toys import DENSE, MIXTURE
from .test_model import along

TIED = replace(DENSE, tied=True)
CASES = {
    4: [
        ({"dp": 2, "tp": 2}, DENSE, along()),
        ({"pp": 2, "tp": 2}, TIED, along(sequence=True)),
        ({"ep": 2, "pp": 2}, MIXTURE, along()),
        ({"cp": 2, "pp": 2}, TIED, along("dualpipe")),  # each rank holds both stages
        ({"pp": 2, "dp": 2}, replace(MIXTURE, layers=4), along("interleaved", 2)),
    ],
    3: [({"tp": 3}, DENSE, along()), ({"ep": 3}, MIXTURE, along())],  # ranks share key heads
}


def trained(config) -> tuple[Transformer, torch.optim.Optimizer]:
    """As if after two steps: every number of the model and of the optimizer is another."""
    model, generator = build(config), torch.Generator().manual_seed(3)
    optimizer = adamw(model, 0.01)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer += torch.arange(len(buffer)) * (1 + len(name))
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
            means = [torch.rand(p.shape, generator=generator) for _ in range(2)]
            state = dict(zip(("step", "exp_avg", "exp_avg_sq"), (torch.tensor(2.0), *means)))
            optimizer.state[p] = state
    return model, optimizer


def everything(model, optimizer) -> dict[str, torch.Tensor]:
    names = {p: name for name, p in model.named_parameters()}
    states = {
        f"{names[p]} {key}": value
        for p, state in optimizer.state.items()
        for key, value in state.items()
    }
    decays = {
        f"{names[p]} decay": torch.tensor(group["weight_decay"])
        for group in optimizer.param_groups
        for p in group["params"]
    }
    return {**model.state_dict(), **states, **decays}


def split(group, sizes, config, options: MeshOptions):
    """This rank's part of `trained`, its optimizer, and one made from the part alone."""
    model, optimizer = trained(config)
    names = {p: name for name, p in model.named_parameters()}
    parts = MeshModel(model, full_mesh(**sizes), group, options)
    return parts, take_apart(parts, names, optimizer)


def differences(group, cases, is_sharded=False) -> list[set[str]]:
    """For each case the names that came back otherwise, on rank 0."""
    found = []
    for sizes, config, options in cases:
        parts, own = split(group, sizes, config, options)
        if is_sharded:
            own = ShardedState(own, parts.axes)
        again, alone = put_together(parts, own), whole_model(parts)
        want = everything(*trained(config))
        assert (again is None) == (alone is None)
        if again is not None:
            same = again[0].state_dict()
            assert all(torch.equal(same[name], value) for name, value in alone.state_dict().items())
            got = everything(*again)
            assert got.keys() == want.keys()
            found.append({name for name in want if not torch.equal(got[name], want[name])})
    return found


@pytest.mark.parametrize("is_sharded", [False, True])
def test_what_is_taken_apart_comes_back_to_the_last_bit(is_sharded):
    for ranks, cases in CASES.items():
        found = launch(differences, cases, is_sharded, ranks=ranks)
        assert found[0] == [set()] * len(cases)
        assert found[1] == [], "rank 0 has the whole, and the others nothing"


def save_parts(group, run, sizes, config, options):
    parts, own = split(group, sizes, config, options)
    state = TrainState(parts.modules, own, ToyLoader(), step=2)
    ranks = CheckpointRanks(group.rank, group.size, group.barrier, may_change=True)
    save_checkpoint(run, state, ranks=ranks, layout=mesh_layout(parts))


def load_parts(group, run, sizes, config, options) -> set[str] | None:
    """On another mesh, whose numbers were others before -> what differs from `trained`, on rank 0."""
    model = build(config, seed=9)
    fresh, names = adamw(model, 0.5), {p: name for name, p in model.named_parameters()}
    parts = MeshModel(model, full_mesh(**sizes), group, options)
    own = take_apart(parts, names, fresh)
    state = TrainState(parts.modules, own, ToyLoader())
    ranks = CheckpointRanks(group.rank, group.size, group.barrier, may_change=True)
    load_checkpoint(run, state, ranks, mesh_layout(parts))
    again = put_together(parts, own)
    if again is None:
        return None
    got, want = everything(*again), everything(*trained(config))
    assert got.keys() == want.keys()
    return {name for name in want if not torch.equal(got[name], want[name])}


def decays(group, sizes, config, options) -> dict[str, float]:
    """The decay of each parameter here; the parts alone are refused."""
    parts, optimizer = split(group, sizes, config, options)
    with pytest.raises(InputError, match=r"a mesh's part no longer shows .*take_apart"):
        parameter_groups(parts.modules, 0.1)
    found = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    named = {name: held.tensor for name, held in held_by(parts).items()}
    return {name: found[id(p)] for name, p in named.items() if id(p) in found}


RESHARDED = [  # saved on the first mesh, read on the second and in one process
    (4, {"dp": 2, "tp": 2}, 4, {"pp": 2, "tp": 2}, TIED),
    (
        3,
        {"tp": 3},
        4,
        {"tp": 2, "dp": 2},
        DENSE,
    ),  # three ranks share key heads and pad the vocabulary
    (4, {"ep": 2, "pp": 2}, 2, {"dp": 2}, MIXTURE),
]


@pytest.mark.parametrize("ranks, sizes, others, other_sizes, config", RESHARDED)
def test_every_ranks_part_is_read_on_another_mesh(
    tmp_path, ranks, sizes, others, other_sizes, config
):
    launch(save_parts, tmp_path, sizes, config, along(), ranks=ranks)
    writers = len(list(tmp_path.glob("step-00000002/model-*.safetensors")))
    assert writers == ranks // sizes.get("dp", 1), "of dp's copies one is written"
    found = launch(load_parts, tmp_path, other_sizes, config, along(), ranks=others)
    assert found[0] == set()
    model = build(config, seed=9)
    state = TrainState(model, adamw(model, 0.5), ToyLoader())
    load_checkpoint(tmp_path, state, CheckpointRanks(may_change=True))
    got, want = everything(model, state.optimizer), everything(*trained(config))
    assert {name for name in want if not torch.equal(got[name], want[name])} == set()


def test_the_same_parameters_decay_as_in_one_process():
    """The part alone does not tell: a tied head has no embedding beside it, and is a plain matrix."""
    whole = build(TIED)
    names = {p: name for name, p in whole.named_parameters()}
    want = {names[p]: g["weight_decay"] for g in parameter_groups(whole, 0.1) for p in g["params"]}
    for sizes in ({"pp": 2}, {"tp": 2}):
        for here in launch(decays, sizes, TIED, along(), ranks=2):
            assert here == {name: want[name] for name in here}


def every_copy_is_sent(group, cases) -> list[set[str]]:
    state.is_first_copy = lambda tensor, axes: True  # this rank is a process of its own
    return differences(group, cases)


def test_copies_that_are_all_sent_are_seen():
    found = launch(every_copy_is_sent, CASES[4][:1], ranks=4)[0][0]
    assert {"norm.weight", "embed.weight", "embed.weight exp_avg"} <= found
