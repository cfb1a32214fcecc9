"""The probes of lab e04: what runs in the sandbox, beside a submission on mixed precision.

Nothing here knows what is expected: the verdicts, in test_e04_mixed_precision.py, are made from
what comes back. Objects of several cases are alive at once, and take their turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import torch

from .in_turn import in_turn


def parameters_of(gradients):
    """Parameters with these gradients, None for one that was not used."""
    found = []
    for gradient in gradients:
        like = torch.zeros(1) if gradient is None else torch.zeros_like(gradient)
        parameter = torch.nn.Parameter(like)
        parameter.grad = None if gradient is None else gradient.clone()
        found.append(parameter)
    return found


def unscaled(f, cases):
    """cases: (gradients, scale); what one rank alone gets back, with a scaler for each."""
    scalers = [f(scale=scale) for _, scale in cases]
    found = []
    for scaler, (gradients, _) in zip(scalers, cases):
        parameters = parameters_of(gradients)
        before = [p.grad for p in parameters]
        answer = scaler.unscale(iter(parameters))
        after = [p.grad for p in parameters]
        own = [new is old or new.data_ptr() == old.data_ptr() for new, old in zip(after, before)]
        one = {"finite": answer, "gradients": after, "in_place": own, "scale": float(scaler.scale)}
        found.append(one)
    return found


def agreed(group, f, steps):
    """steps[i][rank]: a list of gradients; each rank's answers."""
    scaler, answers = f(scale=8.0), []
    for ranks in steps:
        parameters = iter(parameters_of(ranks[group.rank]))
        answers.append(scaler.unscale(parameters, group.all_reduce))
    return answers


def scales_after(f, cases):
    """cases: (options, flags), all of one length. The scale after each update; the counter is the
    scaler's own affair."""
    scalers = [f(**options) for options, _ in cases]
    scales = [[] for _ in cases]
    for flags in zip(*(flags for _, flags in cases)):
        for scaler, found, finite in zip(scalers, scales, flags):
            scaler.update(finite)
            found.append(float(scaler.scale))
    return scales


def rules():
    return {
        "SGD with momentum": partial(torch.optim.SGD, momentum=0.9),
        "AdamW": partial(torch.optim.AdamW, weight_decay=0.1),
    }


def optimizer_of(rule, weights):
    """Two groups of other rates."""
    half = (len(weights) + 1) // 2
    groups = [{"params": weights[:half], "lr": 1e-2}, {"params": weights[half:], "lr": 1e-3}]
    return rules()[rule](groups, lr=1e-3)


def cool(optimizer):
    """As a schedule does before each step."""
    for group in optimizer.param_groups:
        group["lr"] *= 0.98


class MasteredRun:
    """Weights and their optimizer, in the hands of a submission."""

    def __init__(self, f, rule, starts, steps, is_set=False):
        """A weight without any gradient is frozen; is_set: the others are set to 0 on the way."""
        is_trained = [any(g is not None for g in column) for column in zip(*steps)]
        pairs = zip(starts, is_trained)
        self.weights = [torch.nn.Parameter(start.clone(), trains) for start, trains in pairs]
        self.optimizer = optimizer_of(rule, self.weights)
        self.wrapped = f(self.optimizer)
        self.are_gradients_kept, self.calls, self.steps, self.is_set = True, 0, 0, is_set
        self.optimizer.register_step_post_hook(self.count)

    def count(self, *_):
        self.steps += 1

    def step(self, gradients):
        self.calls += 1
        if self.is_set and self.calls == 12:
            for weight, gradient in zip(self.weights, gradients):
                if gradient is not None:
                    weight.detach().zero_()
        for weight, gradient in zip(self.weights, gradients):
            weight.grad = None if gradient is None else gradient.clone()
        cool(self.wrapped)
        self.wrapped.step()
        for weight, gradient in zip(self.weights, gradients):
            there = [g for g in (weight.grad, gradient) if g is not None]
            self.are_gradients_kept &= not there or (len(there) == 2 and torch.equal(*there))

    def result(self):
        state = [v for s in self.optimizer.state.values() for v in s.values()]
        moments = [v for v in state if isinstance(v, torch.Tensor) and v.numel() > 1]
        return {
            "weights": [weight.detach() for weight in self.weights],
            "masters": [[str(m.dtype), m.numel(), m.is_leaf] for m in self.wrapped.masters],
            "left": sum(m.grad is not None for m in self.wrapped.masters),
            "state": [str(v.dtype) for v in moments],
            "state_bytes": sum(v.nbytes for v in moments),
            "gradients": self.are_gradients_kept,
            "steps": self.steps,
        }


def mastered(f, cases):
    """cases: (rule, starts, steps, …), steps of one length: what is there after them."""
    runs = [MasteredRun(f, *case) for case in cases]
    for steps in zip(*(steps for _, _, steps, *_ in cases)):
        for run, gradients in zip(runs, steps):
            run.step(gradients)
    return [run.result() for run in runs]


def rounded(f, calls):
    """calls: (x, the name of a generator, its seed), or (x, None, None); and whether the global
    generator has moved in each."""
    generators, moved = {}, []

    def one(x, name, seed):
        before = torch.get_rng_state()
        if name is not None and name not in generators:
            generators[name] = torch.Generator().manual_seed(seed)
        result = f(x) if name is None else f(x, generators[name])
        moved.append(not torch.equal(before, torch.get_rng_state()))
        return result

    return {"calls": in_turn(one, calls), "moved": moved}


def in_formats(f, calls):
    """calls: (x, the numbers of a format, …)."""
    return in_turn(lambda x, form, *more: f(x, Form(*form), *more), calls)


def quantized(f, calls):
    """The same; every second matrix lies column by column in memory, as a transposed one does."""
    laid = [
        (x.t().contiguous().t() if number % 2 else x, *more)
        for number, (x, *more) in enumerate(calls)
    ]
    return in_formats(f, laid)


class HistoryRun:
    """Plays events on a history, one by one."""

    def __init__(self, f, length):
        self.history, self.told, self.noted = f(length, torch.device("cpu")), [], []

    def play(self, kind, *rest):
        if kind == "amax":
            role, now, *record = rest
            now = torch.tensor(now)
            told = self.history.amax(role, now, *record)
            self.told.append((told, float(told)))
            self.noted.append((now, float(now)))
        else:
            seen = self.history.take_seen()
            self.history.roll(torch.maximum(seen, torch.tensor(rest[0])) if rest else seen)

    def result(self):
        return {
            "told": [number for _, number in self.told],
            "kept": all(float(tensor) == number for tensor, number in [*self.told, *self.noted]),
            "past": self.history.past.clone(),
        }


def with_histories(f, cases):
    """cases: (length, events). What `amax` returned, whether it and its input stayed so, and
    `past` at the end."""
    runs = [HistoryRun(f, length) for length, _ in cases]
    for events in zip_longest(*(events for _, events in cases)):
        for run, event in zip(runs, events):
            if event is not None:
                run.play(*event)
    return [run.result() for run in runs]


@dataclass(frozen=True)
class Form:
    """A small float, by the three numbers that the lab gives."""

    mantissa_bits: int
    smallest_exponent: int
    largest: float
