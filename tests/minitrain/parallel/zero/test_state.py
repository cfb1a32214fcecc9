"""A run on four ranks of ZeRO goes on, bit for bit, on three, on one, in another stage, and without."""

from __future__ import annotations

import copy
import shutil
from contextlib import ExitStack

import pytest
import torch

from minitrain.errors import InputError
from minitrain.parallel.zero.state import (
    full_optimizer_state,
    full_state_dict,
    load_full_optimizer_state,
    zero_layout,
)
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


@pytest.fixture(scope="module")
def by_four(tmp_path_factory):
    """A run that four ranks of stage 3 have saved after step 3, and how theirs went on."""
    run = tmp_path_factory.mktemp("run")
    return run, launch(save, run, 3, False, ranks=4)[0]


@pytest.fixture(scope="module")
def trained():
    """A model and its optimizer after three steps of one process."""
    model = toys.toy()
    optimizer = toys.ADAMW(toys.parameter_groups(model, 0.1))
    toys.one_process(3, model=model, optimizer=optimizer)
    return model, optimizer


def test_saved_by_four_ranks_and_resumed_by_others(tmp_path, by_four, trained):
    (run, end), want = by_four, toys.one_process(2, 3, *copy.deepcopy(trained))
    launch(save, tmp_path, 1, True, ranks=2)
    for saved, ranks, stage in ((run, 4, 3), (run, 3, 2), (run, 1, 3), (tmp_path, 3, 1)):
        for got in launch(resume, saved, stage, ranks=ranks):
            toys.assert_follows(got, want)
            if ranks == 4:
                assert all(torch.equal(got["weights"][n], w) for n, w in end["weights"].items())


def there_and_back(group, stage, model, optimizer) -> dict[str, dict]:
    """A trained optimizer's state, given to ZeRO's pieces and gathered again."""
    names = {p: name for name, p in model.named_parameters()}
    states = {names[p]: state for p, state in optimizer.state.items()}
    zero, own = toys.sharded(group, stage)
    load_full_optimizer_state(zero, own, states)
    held = sum(v.numel() for s in own.state.values() for v in s.values() if v.dim())
    whole = sum(v.numel() for s in states.values() for v in s.values() if v.dim())
    assert held <= whole / group.size + 100, "a rank holds its share"
    return full_optimizer_state(zero, own, root=0)


@pytest.mark.parametrize("stage", [1, 3])
def test_the_optimizers_whole_state_is_cut_and_gathered_to_the_last_bit(trained, stage):
    model, optimizer = trained
    got, *others = launch(there_and_back, stage, model, optimizer, ranks=3)
    assert others == [{}, {}]
    for name, parameter in model.named_parameters():
        for kind, value in optimizer.state[parameter].items():
            assert torch.equal(got[name][kind], value), (name, kind)


def test_one_process_reads_what_ranks_wrote_each_element_once(by_four, trained):
    run, (want, theirs) = by_four[0], trained
    model = toys.toy()
    optimizer = toys.ADAMW(toys.parameter_groups(model, 0.1))
    state = TrainState(model, optimizer, ToyLoader())
    load_checkpoint(run, state, CheckpointRanks(may_change=True))
    for (name, p), q in zip(model.named_parameters(), want.parameters()):
        torch.testing.assert_close(p, q, msg=name)
        for kind, value in theirs.state[q].items():
            torch.testing.assert_close(optimizer.state[p][kind], value, msg=f"{name} {kind}")
    with ExitStack() as stack:
        stored = Stored(run / "step-00000003", "model", stack)
        elements = sum(
            torch.Size(box.shape).numel() for boxes in stored.boxes.values() for box in boxes
        )
        assert elements == sum(p.numel() for p in model.parameters())


def test_a_rank_whose_file_is_gone_is_missed(tmp_path, by_four):
    folder = shutil.copytree(by_four[0], tmp_path / "run") / "step-00000003"
    manifest = (folder / "manifest.json").read_text()
    for path in [*folder.glob("model-002*"), *folder.glob("optimizer-002*")]:
        path.unlink()
        manifest = "\n".join(line for line in manifest.splitlines() if path.name not in line)
    (folder / "manifest.json").write_text(manifest)
    state = TrainState(toys.toy(), None, ToyLoader())
    state.optimizer = toys.ADAMW(toys.parameter_groups(state.model, 0.1))
    with pytest.raises(InputError, match=r"elements of .* that this rank needs|another shape"):
        load_checkpoint(folder, state, CheckpointRanks(may_change=True))


def frozen_part(group, run, stage, again) -> dict[str, torch.Tensor]:
    """All parameters in torch's optimizer, as LIBRARY.md has it, and one of them frozen."""
    model = toys.toy()
    next(model.parameters()).requires_grad_(False)
    zero = toys.wrap(model, group, stage)
    state = TrainState(zero, torch.optim.AdamW(zero.parameters()), ToyLoader())
    layout = zero_layout(zero)
    if again:
        load_checkpoint(run, state, ranks_of(group), layout)
    else:
        with zero.gathered() as whole, torch.no_grad():
            next(whole.parameters()).add_(1)
        save_checkpoint(run, state, ranks=ranks_of(group), layout=layout)
    return full_state_dict(zero)


@pytest.mark.parametrize("before, after", [(1, 3), (3, 2)])
def test_a_frozen_parameter_in_the_optimizer_is_kept_between_stages(tmp_path, before, after):
    want = launch(frozen_part, tmp_path, before, False, ranks=2)[0]
    got = launch(frozen_part, tmp_path, after, True, ranks=2)[1]
    assert all(torch.equal(got[name], tensor) for name, tensor in want.items())
