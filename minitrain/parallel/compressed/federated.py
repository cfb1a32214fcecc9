"""Federated averaging over sites with unequal data, and a sum that hides its parts.

    round        sites train from the common θ on their own data; then θ <- sum n_i θ_i / sum n_i
    secure sum   sites i < j share a random mask: i adds it, j subtracts it. Each masked vector is
                 uniformly random to whoever sees it, and in the sum all masks cancel, exactly

With one step of SGD at each site the weighted mean is the step on all data joined. Masks cancel
only in modular arithmetic: values are whole multiples of 2^-bits, and int32 wraps around at 2^32. A
mask is used once, or the difference of two rounds is laid open; if a site is lost after masking,
the others reveal the masks they shared with it.
Cost: P numbers a round and site, in int32 as in float32; each mask is made from a seed.
Papers: McMahan et al. 2017 (arXiv:1602.05629); Bonawitz et al. 2017 (10.1145/3133956.3133982).
Lab: e02g_slow_networks. P parameters, N sites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.parallel.ddp import trainable
from minitrain.ranks.group import Group

INT32 = 2**31
Add = Callable[[Group, Tensor], Tensor]  # the sum over ranks


@torch.no_grad()
def federated_average_naive(group: Group, model: nn.Module) -> None:
    """The plain mean: a site with ten examples counts like one with a million."""
    for parameter in trainable(model):
        group.all_reduce(parameter.data, op="avg")


@torch.no_grad()
def federated_average(
    group: Group, model: nn.Module, examples: float, add: Add = Group.all_reduce
) -> None:
    """The mean weighted by each site's number of examples, of which one may have 0.

    Sums n_i θ_i and n_i in one message, by `add(group, message)`: with `secure_sum` no site learns
    another's.
    """
    parameters = trainable(model)
    own = torch.cat([p.detach().flatten() for p in parameters])
    total = add(group, torch.cat([own * examples, own.new_tensor([examples])]))
    if not total[-1] > 0:
        raise InputError(f"{float(total[-1]):g} examples at all sites: one needs some to average")
    mean = total[:-1] / total[-1]
    for p, part in zip(parameters, mean.split([p.numel() for p in parameters])):
        p.copy_(part.view_as(p))


def pair_mask(seed: int, count: int, turn: int) -> Tensor:
    """(count,) int32, uniform over all 2^32 values: the same for both sites of a pair, and another
    one each turn."""
    dice = torch.Generator().manual_seed((seed * 1_000_003 + turn) % 2**63)
    return torch.randint(-INT32, INT32, (count,), generator=dice).int()


def masked(codes: Tensor, site: int, seeds: Mapping[int, int], turn: int) -> Tensor:
    """Adds the masks shared with higher sites and subtracts the others'; int32 wraps around."""
    total = codes.clone()
    for other, seed in seeds.items():
        mask = pair_mask(seed, codes.numel(), turn)
        total = total + mask if site < other else total - mask
    return total


def unmasked(total: Tensor, lost: int, seeds: Mapping[int, int], turn: int) -> Tensor:
    """A sum without the lost site, freed of the masks that the others shared with it.

    seeds: those of the pairs (lost, other), as the others reveal them.
    """
    for other, seed in seeds.items():
        mask = pair_mask(seed, total.numel(), turn)
        total = total + mask if lost < other else total - mask
    return total


def encode(vector: Tensor, sites: int, bits: int) -> Tensor:
    """(P,) -> int32, rounded to 2^-bits; InputError where a sum over `sites` could overflow."""
    codes = (vector.double() * 2**bits).round()
    if not bool((codes.abs() * sites < INT32).all()):
        raise InputError(
            f"values up to {vector.abs().max():.4g} do not fit: with {bits} bits after the point, "
            f"a sum of {sites} has room for {INT32 / 2**bits / sites:g} each: use fewer bits"
        )
    return codes.to(torch.int32)


def secure_sum(
    group: Group, vector: Tensor, seeds: Mapping[int, int], turn: int, bits: int = 16
) -> Tensor:
    """The sum over ranks of values rounded to 2^-bits, as a new tensor; what is sent is masked.

    seeds: of this site with each other one, agreed on in private (Diffie-Hellman). turn: a number
    that is never used again with these seeds.
    """
    missing = sorted(set(range(group.size)) - {group.rank} - set(seeds))
    if missing:
        raise InputError(f"no seed is shared with site {missing[0]}: its mask would not cancel")
    hidden = masked(encode(vector, group.size, bits), group.rank, seeds, turn)
    return (group.all_reduce(hidden).double() / 2**bits).to(vector.dtype)
