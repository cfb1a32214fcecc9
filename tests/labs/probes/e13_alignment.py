"""The probes of lab e13: what runs in the sandbox, beside a submission on alignment.

Nothing here knows what is expected: the verdicts, in test_e13_alignment.py, are made from
what comes back.
"""

from __future__ import annotations

import torch

from minitrain.alignment.exact import WordChain, train_table

from .in_turn import in_turn


def called(f, calls):
    """f on each tuple of arguments, in turn."""
    return in_turn(lambda *given: listed(f(*given)), calls)


def listed(out):
    """A tuple as a list; a namedtuple too."""
    return list(out) if isinstance(out, tuple) else out


def with_gradient(f, calls, which):
    """Calls, each with the gradient of its summed result by argument number `which`."""
    found = []
    for call in calls:
        given = [x.clone() if isinstance(x, torch.Tensor) else x for x in call]
        given[which].requires_grad_()
        out = f(*given)
        (gradient,) = torch.autograd.grad(out.sum(), given[which])
        found.append([out.detach(), gradient])
    return found


def estimator(kind, factor):
    """One of k1, k2, k3 or others, times a number; which it is the submission cannot see."""

    def estimate(logp, ref_logp):
        d = ref_logp - logp
        forms = {"k1": -d, "k2": 0.5 * d**2, "k3": torch.expm1(d) - d, "cube": d**3}
        return factor * forms[kind]

    return estimate


def expected_of(f, calls):
    """calls: (kind, factor, logits, ref_logits)."""

    def called_with(kind, factor, *logits):
        out = listed(f(estimator(kind, factor), *logits))
        return [*out, any(x.requires_grad for x in logits)] if isinstance(out, list) else out

    return in_turn(called_with, calls)


def trained(f, chains, steps, batch, lr):
    """The logits of each chain's table after training by the loss, and what the loss returned."""
    found = []
    for reference, rewards, length, beta, seed in chains:
        kinds = set()

        def loss(*given, kinds=kinds):
            out = f(*given)
            is_tensor = isinstance(out, torch.Tensor)
            kinds.add(f"{tuple(out.shape)}" if is_tensor else type(out).__name__)
            return out

        chain = WordChain(reference, rewards, length)
        policy = train_table(chain, loss, beta, steps, batch, lr, seed=seed)
        found.append({"logits": policy.logits.detach().clone(), "kinds": sorted(kinds)})
    return found
