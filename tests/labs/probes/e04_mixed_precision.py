"""The probes of lab e04: what runs in the sandbox, beside a submission on mixed precision.

Nothing here knows what is expected: the verdicts, in test_e04_mixed_precision.py, are made from
what comes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch


def parameters_of(gradients):
    """Parameters with these gradients, None for one that was not used."""
    found = []
    for gradient in gradients:
        like = torch.zeros(1) if gradient is None else torch.zeros_like(gradient)
        parameter = torch.nn.Parameter(like)
        parameter.grad = None if gradient is None else gradient.clone()
        found.append(parameter)
    return found


def unscaled(f, gradients, scale):
    """What one rank alone gets back."""
    parameters = parameters_of(gradients)
    before = [p.grad for p in parameters]
    answer = f(scale=scale).unscale(parameters)
    after = [p.grad for p in parameters]
    in_place = [new is old or new.data_ptr() == old.data_ptr() for new, old in zip(after, before)]
    return {"finite": answer, "gradients": after, "in_place": in_place}


def agreed(group, f, steps):
    """steps[i][rank]: a list of gradients; each rank's answers."""
    scaler = f(scale=8.0)
    return [scaler.unscale(parameters_of(ranks[group.rank]), group.all_reduce) for ranks in steps]


def scales_after(f, flags, options):
    """The scale after each update; the counter is the scaler's own affair."""
    scaler, scales = f(**options), []
    for finite in flags:
        scaler.update(finite)
        scales.append(float(scaler.scale))
    return scales


def rules():
    return {
        "SGD with momentum": partial(torch.optim.SGD, momentum=0.9),
        "AdamW": partial(torch.optim.AdamW, weight_decay=0.1),
    }


def mastered(f, rule, starts, steps):
    """Weights after steps with these gradients, and what is held then."""
    weights = [torch.nn.Parameter(start.clone()) for start in starts]
    groups = [{"params": weights[:1], "lr": 1e-2}, {"params": weights[1:], "lr": 1e-3}]
    optimizer = rules()[rule](groups, lr=1e-3)
    wrapped = f(optimizer)
    path = []
    for gradients in steps:
        for weight, gradient in zip(weights, gradients):
            weight.grad = None if gradient is None else gradient.clone()
        wrapped.step()
        path.append([weight.detach().clone() for weight in weights])
    state = [v for s in optimizer.state.values() for v in s.values()]
    wide = [v for v in state if isinstance(v, torch.Tensor) and v.numel() > 1]
    masters = list(wrapped.masters)
    return {
        "path": path,
        "dtypes": [str(weight.dtype) for weight in weights],
        "masters": [[str(m.dtype), m.numel(), m.grad is None] for m in masters],
        "state": [str(v.dtype) for v in wide],
        "state_bytes": sum(v.nbytes for v in wide),
    }


def rounded(f, x, seed):
    """One rounding, and whether it left the global generator alone."""
    before, bits = torch.get_rng_state(), x.view(torch.int32).clone()
    result = f(x, torch.Generator().manual_seed(seed))
    return {
        "result": result,
        "untouched": torch.equal(before, torch.get_rng_state()),
        "kept": torch.equal(bits, x.view(torch.int32)),
    }


def called(f, *arguments):
    return f(*arguments)


def called_for_each(f, cases):
    return [f(*arguments) for arguments in cases]


def with_history(f, length, events):
    """Plays events on a history; what `amax` returned, and `past` at the end."""
    history, told = f(length, torch.device("cpu")), []
    for kind, *rest in events:
        if kind == "amax":
            role, now, record = rest
            told.append(float(history.amax(role, torch.tensor(now), record)))
        else:
            seen = history.take_seen()
            history.roll(torch.maximum(seen, torch.tensor(rest[0])) if rest else seen)
    return {"told": told, "past": history.past.clone()}


@dataclass(frozen=True)
class Form:
    """A small float, by the three numbers that the lab gives."""

    mantissa_bits: int
    smallest_exponent: int
    largest: float
