"""A run on four ranks of ZeRO goes on, bit for bit, on three, on one, in another stage, and without."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

from minitrain.errors import InputError
from minitrain.parallel.zero.state import zero_layout
from minitrain.ranks.launch import launch
from minitrain.reliability.checkpoint.background import BackgroundSaver
from minitrain.reliability.checkpoint.contents import CheckpointRanks
from minitrain.reliability.checkpoint.load import Stored, load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.training.state import TrainState

from ...training.toys import ToyLoader
from . import zero_toys as toys


def ranks_of(group) -> CheckpointRanks:
    return CheckpointRanks(group.rank, group.size, group.barrier, may_change=True)


def save(group, run, stage, in_background):
    zero, optimizer = toys.sharded(group, stage)
    state = TrainState(zero, optimizer, ToyLoader())
    saver = BackgroundSaver(run, optimizer, ranks_of(group), layout=zero_layout(zero))
    toys.train(group, zero, optimizer, 3)
    state.step = 3
    if in_background:
        saver.save(state)
    else:
        save_checkpoint(run, state, ranks=ranks_of(group), layout=zero_layout(zero))
    end = toys.train(group, zero, optimizer, 2, first=3)
    saver.wait()
    return end


def resume(group, run, stage):
    zero, optimizer = toys.sharded(group, stage)
    state = TrainState(zero, optimizer, ToyLoader())
    load_checkpoint(run, state, ranks_of(group), zero_layout(zero))
    assert state.step == 3 and optimizer.param_groups[0]["lr"] == 1e-2
    return toys.train(group, zero, optimizer, 2, first=3)


@pytest.mark.parametrize("stage, in_background", [(3, False), (1, True)])
def test_saved_by_four_ranks_and_resumed_by_others(tmp_path, stage, in_background):
    end = launch(save, tmp_path, stage, in_background, ranks=4)[0]
    model = toys.toy()
    optimizer = toys.ADAMW(toys.parameter_groups(model, 0.1))
    toys.one_process(3, model=model, optimizer=optimizer)
    want = toys.one_process(2, 3, model, optimizer)
    for ranks, other in ((4, stage), (3, 2), (1, 3)):
        for got in launch(resume, tmp_path, other, ranks=ranks):
            toys.assert_follows(got, want)
            if (ranks, other) == (4, stage):
                assert all(
                    torch.equal(got["weights"][n], end["weights"][n]) for n in end["weights"]
                )


def test_one_process_reads_what_ranks_wrote_each_element_once(tmp_path):
    launch(save, tmp_path, 3, False, ranks=4)
    model = toys.toy()
    optimizer = toys.ADAMW(toys.parameter_groups(model, 0.1))
    state = TrainState(model, optimizer, ToyLoader())
    load_checkpoint(tmp_path, state, CheckpointRanks(may_change=True))
    want = toys.toy()
    theirs = toys.ADAMW(toys.parameter_groups(want, 0.1))
    toys.one_process(3, model=want, optimizer=theirs)
    for (name, p), q in zip(model.named_parameters(), want.parameters()):
        torch.testing.assert_close(p, q, msg=name)
        for kind, value in theirs.state[q].items():
            torch.testing.assert_close(optimizer.state[p][kind], value, msg=f"{name} {kind}")
    with ExitStack() as stack:
        stored = Stored(tmp_path / "step-00000003", "model", stack)
        elements = sum(
            torch.Size(box.shape).numel() for boxes in stored.boxes.values() for box in boxes
        )
        assert elements == sum(p.numel() for p in model.parameters())


def test_a_rank_whose_file_is_gone_is_missed(tmp_path):
    launch(save, tmp_path, 3, False, ranks=4)
    folder = tmp_path / "step-00000003"
    manifest = (folder / "manifest.json").read_text()
    for path in [*folder.glob("model-002*"), *folder.glob("optimizer-002*")]:
        path.unlink()
        manifest = "\n".join(line for line in manifest.splitlines() if path.name not in line)
    (folder / "manifest.json").write_text(manifest)
    state = TrainState(toys.toy(), None, ToyLoader())
    state.optimizer = toys.ADAMW(toys.parameter_groups(state.model, 0.1))
    with pytest.raises(InputError, match=r"elements of .* that this rank needs|another shape"):
        load_checkpoint(tmp_path, state, CheckpointRanks(may_change=True))
