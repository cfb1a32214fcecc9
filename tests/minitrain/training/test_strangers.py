"""Models, loaders and batches of a stranger: evaluated as they should be, or refused in a sentence."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.precision.loss_scaling import LossScaler
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.training.loop import TrainConfig, evaluate, train, train_step
from minitrain.training.loss import IGNORED
from minitrain.training.state import TrainState

from .toys import Batch, Toy, random_batch, toy_state


def test_dropout_is_off_while_a_model_is_evaluated_and_each_module_is_as_before():
    model, batches = Toy(0, dropout=0.5), [random_batch(4)]
    model.norm.eval()
    state, expected = torch.get_rng_state(), evaluate(Toy(0), batches)
    torch.set_rng_state(state)
    assert evaluate(model, batches) == expected
    assert torch.equal(torch.get_rng_state(), state), "nor is a random number drawn"
    assert model.training and model.dropout.training and not model.norm.training
    model.eval()
    evaluate(model, batches)
    assert not model.training


def unasked() -> Batch:
    return Batch(torch.zeros(2, 3, dtype=torch.long), torch.full((2, 3), IGNORED))


def test_no_target_is_no_loss():
    state = toy_state()
    before = [p.clone() for p in state.model.parameters()]
    with pytest.raises(InputError, match="no target to evaluate on"):
        evaluate(state.model, [])
    with pytest.raises(InputError, match="no target to evaluate on"):
        evaluate(state.model, [unasked()])
    with pytest.raises(InputError, match="no target in this step"):
        train_step(state.model, state.optimizer, [unasked(), unasked()])
    assert all(torch.equal(a, b) for a, b in zip(before, state.model.parameters()))
    step = train_step(state.model, state.optimizer, [unasked(), random_batch(2)])
    assert step.loss > 0, "one microbatch without targets is none the worse"


@pytest.mark.timeout(20)
def test_a_loader_that_runs_dry_is_named():
    config = TrainConfig(steps=5)
    for loader in ([], (random_batch(2, seed=n) for n in range(3))):
        with pytest.raises(InputError, match="gives no batch"):
            train(Toy(), loader, config)
    assert len(train(Toy(), [random_batch(2)] * 2, config).losses) == 5


def test_a_scaler_is_not_forgotten(tmp_path):
    scaled, plain = toy_state(), toy_state()
    scaled.scaler = LossScaler(scale=8.0)
    save_checkpoint(tmp_path / "scaled", scaled)
    save_checkpoint(tmp_path / "plain", plain)
    with pytest.raises(InputError, match="has a loss scaler"):
        load_checkpoint(tmp_path / "scaled", plain)
    with pytest.raises(InputError, match="has no loss scaler"):
        load_checkpoint(tmp_path / "plain", scaled)
    scaled.scaler.scale = 4.0
    assert load_checkpoint(tmp_path / "scaled", scaled).scaler.scale == 8.0


def test_a_checkpoint_names_what_it_cannot_keep(tmp_path):
    def kept(model, optimizer=torch.optim.SGD, loader=None):
        loader = loader or toy_state().loader
        save_checkpoint(tmp_path, TrainState(model, optimizer(model.parameters()), loader))

    with pytest.raises(InputError, match="loader is a list without state_dict"):
        kept(nn.Linear(2, 2), loader=[1])
    with pytest.raises(InputError, match=r"w is torch\.complex64.*: convert it$"):
        model = nn.Module()
        model.w = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        kept(model)

    def listing(parameters):
        optimizer = torch.optim.LBFGS(parameters)
        optimizer.state[optimizer.param_groups[0]["params"][0]]["old_dirs"] = [torch.ones(6)]
        return optimizer

    with pytest.raises(InputError, match=r"optimizer's state or settings is more than numbers"):
        kept(nn.Linear(2, 2), listing)
