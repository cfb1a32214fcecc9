"""torch.distributed.checkpoint reads ours, and a state takes over from its files."""

from __future__ import annotations

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from minitrain.parallel.zero.state import zero_layout
from minitrain.ranks.launch import launch
from minitrain.reliability.checkpoint.contents import CheckpointRanks
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.training.state import TrainState

from ...parallel.zero import zero_toys
from ...training.toys import ToyLoader


def save_zero(group, run):
    zero, optimizer = zero_toys.sharded(group, 3)
    zero_toys.train(group, zero, optimizer, 2)
    state = TrainState(zero, optimizer, ToyLoader(), step=2)
    ranks = CheckpointRanks(group.rank, group.size, group.barrier)
    save_checkpoint(run, state, ranks=ranks, layout=zero_layout(zero))


def test_torch_reads_what_ranks_of_zero_wrote(tmp_path):
    launch(save_zero, tmp_path, ranks=3)
    model = zero_toys.toy()
    optimizer = zero_toys.ADAMW(zero_toys.parameter_groups(model, 0.1))
    zero_toys.one_process(2, model=model, optimizer=optimizer)
    names = {p: name for name, p in model.named_parameters()}
    want = {name: p.detach() for p, name in names.items()}
    for p, kept in optimizer.state.items():
        want |= {f"state.{names[p]}.{kind}": value for kind, value in kept.items()}
    got = {name: torch.full_like(tensor, 7) for name, tensor in want.items()}
    reader = HuggingFaceStorageReader(str(tmp_path / "step-00000002"))
    dcp.load(got, storage_reader=reader, no_dist=True)
    for name in want:
        torch.testing.assert_close(got[name], want[name], msg=name)


def save_fsdp2(group, folder):
    model = zero_toys.toy()
    fully_shard(model, mesh=DeviceMesh.from_group(group.process_group, "cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": moments}, checkpoint_id=folder)
    return {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}


def test_a_state_takes_over_from_what_fsdp2_wrote_on_two_ranks(tmp_path):
    want = launch(save_fsdp2, tmp_path / "theirs", ranks=2)[0]
    model = zero_toys.toy()
    state = TrainState(model, torch.optim.AdamW(model.parameters()), ToyLoader())
    weights, moments = get_state_dict(state.model, state.optimizer)
    found = {"model": weights, "optim": moments}
    dcp.load(found, checkpoint_id=tmp_path / "theirs", no_dist=True)
    set_state_dict(model, state.optimizer, model_state_dict=weights, optim_state_dict=moments)
    save_checkpoint(tmp_path / "ours", state)
    other = zero_toys.toy()
    state = TrainState(other, torch.optim.AdamW(other.parameters()), ToyLoader())
    load_checkpoint(tmp_path / "ours", state)
    assert all(torch.equal(other.state_dict()[name], want[name]) for name in want)
    means = [state.optimizer.state[p]["exp_avg"] for p in other.parameters()]
    assert all(torch.allclose(mean, torch.full_like(mean, 0.1)) for mean in means)
