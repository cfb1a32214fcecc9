"""torch's optimizers, schedulers and clipping on a sharded model: right, or one sentence."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from minitrain.errors import InputError
from minitrain.optimizers.adafactor import Adafactor
from minitrain.optimizers.groups import parameter_groups
from minitrain.parallel.zero.optimizer import ZeroOptimizer
from minitrain.parallel.zero.sharded import Zero
from minitrain.ranks.launch import launch

from . import zero_toys as toys


def wrapped(group, stage):
    return toys.wrap(toys.toy(), group, stage)


def torchs_own(group):
    """Three steps under each stage; 4 ranks have none of most parameters."""
    out = {}
    for stage in (1, 2, 3):
        zero = wrapped(group, stage)
        optimizer = toys.ADAMW(parameter_groups(zero, 0.1))
        out[stage] = toys.train(group, zero, optimizer, 3)
        model = zero.module
        if stage < 3:  # whole at once, and not only in the wrapper's next forward
            for name, p in model.named_parameters():
                torch.testing.assert_close(p.detach(), out[stage]["weights"][name])
    return out


def test_a_torch_optimizer_on_the_wrappers_parameters_follows_one_process():
    want = toys.one_process(3)
    for results in launch(torchs_own, ranks=4, timeout=60):
        for got in results.values():
            toys.assert_follows(got, want)


def gradients_after_zero_grad(group):
    """Gradients of a second backward, as if the first had not been."""
    out = {}
    for stage in (1, 2, 3):
        for set_to_none in (True, False):
            zero = wrapped(group, stage)
            halves = list(zero.parameters())[::2], list(zero.parameters())[1::2]
            optimizers = [torch.optim.SGD(half, lr=0.0) for half in halves]
            for _ in range(2):
                for optimizer in optimizers:
                    optimizer.zero_grad(set_to_none)
                toys.loss_of(zero, toys.text(0, group.rank, group.size)).backward()
            out[stage, set_to_none] = toys.pieces_of_gradients(zero)
            optimizers[0].zero_grad()  # the other half adds up
            toys.loss_of(zero, toys.text(0, group.rank, group.size)).backward()
            out[stage, set_to_none, "half"] = toys.pieces_of_gradients(zero)
    return out


def test_zero_grad_of_a_torch_optimizer_forgets_what_is_its_own():
    want = toys.one_process(1)["gradients"]
    for found in launch(gradients_after_zero_grad, ranks=2, timeout=60):
        for key, pieces in found.items():
            for i, name in enumerate(want):
                start, part = pieces[name]
                expected = want[name].flatten()[start : start + len(part)]
                factor = 2 if "half" in key and i % 2 else 1
                torch.testing.assert_close(part, factor * expected, msg=f"{key}: {name}")


def refused(group):
    for stage in (1, 2, 3):
        model = toys.toy()
        before = toys.ADAMW(model.parameters())
        zero = toys.wrap(model, group, stage)
        toys.loss_of(zero, toys.text(0, group.rank, group.size)).backward()
        for optimizer in (before, toys.ADAMW(model.parameters())):
            with pytest.raises(InputError, match=r"zero\.parameters\(\)"):
                optimizer.step()
        for kind in (torch.optim.Adafactor, torch.optim.Muon, torch.optim.LBFGS, Adafactor):
            matrices = [p for p in zero.parameters() if p.ndim == 2]
            with pytest.raises(InputError, match="whole matrices"):
                kind(matrices).step()
        with pytest.raises(InputError, match=r"zero\.clip_grad_norm_"):
            nn.utils.clip_grad_norm_(zero.parameters(), 1.0)
        with pytest.raises(InputError, match="before you wrap"):
            zero.to(torch.float16)
        other = nn.Linear(2, 2)
        other(torch.ones(2)).sum().backward()
        torch.optim.Adafactor(other.parameters()).step()  # none of ours
    zero = wrapped(group, 2)
    with pytest.raises(InputError, match="before you wrap"):
        zero.module.to(torch.float16)
    for p in zero.module.parameters():
        p.data = p.data.half()
    with pytest.raises(InputError, match="moved or cast after"):
        toys.loss_of(zero, toys.text(0, group.rank, group.size))
    zero = wrapped(group, 2)
    zero.module.late = nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"late\.weight was added after wrapping"):
        list(zero.parameters())
    with pytest.raises(InputError, match="bucket_bytes=0"):
        Zero(nn.Linear(2, 2), group, bucket_bytes=0)


def test_what_would_train_wrongly_is_refused():
    launch(refused, ranks=2, timeout=60)


def resumed(group):
    """Our optimizer's own state_dict, a group that is added later, and torch's schedulers."""
    zero = wrapped(group, 2)
    make = partial(ZeroOptimizer, zero, make=toys.ADAMW)
    first, *rest = zero.module.parameters()
    optimizer = make([{"params": rest}])
    optimizer.add_param_group({"params": [first], "lr": 0.5})
    toys.train(group, zero, optimizer, 2)
    assert optimizer.inner.param_groups[1]["lr"] == 0.5
    again = make([{"params": rest}, {"params": [first]}])
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups is again.inner.param_groups and again.state is again.inner.state
    assert again.param_groups[1]["lr"] == 0.5
    for weight in zero.parameters():
        assert torch.equal(again.state[weight]["exp_avg"], optimizer.state[weight]["exp_avg"])
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    schedule.step()
    assert [g["lr"] for g in optimizer.inner.param_groups] == [5e-3, 0.25]


def test_our_optimizer_keeps_torchs_conventions():
    launch(resumed, ranks=2, timeout=60)


def narrow(group):
    """bfloat16 on the wire, and torch's optimizer still gets float32 gradients, the norm included."""
    zero = toys.wrap(toys.toy().float(), group, 3, compute_dtype=torch.bfloat16)
    optimizer = toys.ADAMW(zero.parameters())
    before = [p.detach().clone() for p in zero.parameters()]
    toys.loss_of(zero, toys.text(0, group.rank, group.size)).float().backward()
    assert all(p.grad.dtype == torch.float32 for p in zero.parameters())
    assert zero.clip_grad_norm_(1.0) > 0
    optimizer.step()
    assert all(not torch.equal(p, q) for p, q in zip(zero.parameters(), before) if p.numel())


def test_gradients_that_travel_in_bfloat16():
    launch(narrow, ranks=2)
