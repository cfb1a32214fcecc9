"""torch.distributed.checkpoint reads ours, and we read what it wrote, on other ranks too."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from minitrain.errors import InputError
from minitrain.parallel.zero.state import zero_layout
from minitrain.ranks.launch import launch
from minitrain.reliability.checkpoint.contents import CheckpointRanks
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.reliability.checkpoint.torch_files import load_torch_checkpoint
from minitrain.training.state import TrainState

from ...parallel.zero import zero_toys
from ...training.toys import ToyLoader, toy_state
from .test_save_and_load import bits, trained


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


@pytest.mark.parametrize("tied", [False, True])
def test_what_torch_wrote_from_one_process(tmp_path, tied):
    state = trained(toy_state(tied=tied), 3)
    model, optimizer = get_state_dict(state.model, state.optimizer)
    dcp.save({"model": model, "optim": optimizer}, checkpoint_id=tmp_path, no_dist=True)
    other = toy_state(seed=4, tied=tied)
    if tied:  # torch stores both names of one tensor; ours knows the first
        with pytest.raises(InputError, match=r"head\.weight is only there"):
            load_torch_checkpoint(tmp_path, other)
        return
    load_torch_checkpoint(tmp_path, other)
    assert {k: v for k, v in bits(other).items() if k.startswith(("model", "optim"))} == {
        k: v for k, v in bits(state).items() if k.startswith(("model", "optim"))
    }


def save_fsdp2(group, folder, as_safetensors):
    model = zero_toys.toy()
    mesh = DeviceMesh.from_group(group.process_group, "cpu")
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    weights, kept = get_state_dict(model, optimizer)
    if as_safetensors:
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        dcp.save(weights, storage_writer=writer)
    else:
        dcp.save({"model": weights, "optim": kept}, checkpoint_id=folder)
    return {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("as_safetensors", [False, True])
def test_what_fsdp2_wrote_on_two_ranks(tmp_path, as_safetensors):
    want = launch(save_fsdp2, tmp_path, as_safetensors, ranks=2)[0]
    model = zero_toys.toy()
    state = TrainState(model, torch.optim.AdamW(model.parameters()), ToyLoader())
    load_torch_checkpoint(tmp_path, state, model="" if as_safetensors else "model.")
    assert all(torch.equal(model.state_dict()[name], want[name]) for name in want)
    if not as_safetensors:
        means = [state.optimizer.state[p]["exp_avg"] for p in model.parameters()]
        assert all(torch.allclose(mean, torch.full_like(mean, 0.1)) for mean in means)


class Harm:
    def __reduce__(self):
        return eval, ("1 / 0",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(InputError, match=r"it names builtins\.eval"):
        load_torch_checkpoint(tmp_path, toy_state())
    with pytest.raises(InputError, match=r"neither \.metadata nor"):
        load_torch_checkpoint(tmp_path / "nowhere", toy_state())
