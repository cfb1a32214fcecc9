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

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.parallel.ddp import trainable
from minitrain.ranks.group import Group

INT32 = 2**31


@torch.no_grad()
def federated_average_naive(group: Group, model: nn.Module) -> None:
    """The plain mean: a site with ten examples counts like one with a million."""
    for parameter in trainable(model):
        group.all_reduce(parameter.data, op="avg")


@torch.no_grad()
def federated_average(
    group: Group, model: nn.Module, examples: float, secure: SecureSum | None = None
) -> None:
    """The mean weighted by each site's number of examples; with `secure`, no site sees another's.

    Sums n_i θ_i and n_i in one message; a site with 0 examples adds nothing.
    """
    parameters = trainable(model)
    own = torch.cat([p.detach().flatten() for p in parameters])
    message = torch.cat([own * examples, own.new_tensor([examples])])
    total = secure.sum(group, message) if secure else group.all_reduce(message)
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


class SecureSum:
    """Sums of vectors that no one can read before they are added up.

    seeds: of this site with each other one, agreed on in private (Diffie-Hellman); `bits` after the
    binary point. The sum of N values must stay below 2^31 / 2^bits.
    """

    def __init__(self, seeds: Mapping[int, int], bits: int = 16) -> None:
        if not 0 <= bits < 31:
            raise InputError(f"bits={bits}: an int32 has room for 0 to 30 after the binary point")
        self.seeds, self.bits, self.turn = dict(seeds), bits, 0

    def encode(self, vector: Tensor, sites: int) -> Tensor:
        """(P,) -> int32; InputError for values that could overflow in a sum of `sites`."""
        codes = (vector.double() * 2**self.bits).round()
        if not bool((codes.abs() * sites < INT32).all()):
            room = INT32 / 2**self.bits / sites
            raise InputError(
                f"values up to {vector.abs().max():.4g} do not fit: with {self.bits} bits after "
                f"the point, a sum of {sites} has room for {room:g} each: use fewer bits"
            )
        return codes.to(torch.int32)

    def decode(self, total: Tensor, like: Tensor) -> Tensor:
        return (total.double() / 2**self.bits).to(like.dtype)

    def sum(self, group: Group, vector: Tensor) -> Tensor:
        """The sum over ranks of values rounded to 2^-bits, as a new tensor."""
        missing = sorted(set(range(group.size)) - {group.rank} - set(self.seeds))
        if missing:
            raise InputError(f"no seed is shared with site {missing[0]}: its mask would not cancel")
        self.turn += 1
        hidden = masked(self.encode(vector, group.size), group.rank, self.seeds, self.turn)
        return self.decode(group.all_reduce(hidden), vector)
