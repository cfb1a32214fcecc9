"""Keys and values in few bits: keys by the channel, values by the token, the newest ones whole.

Paper: Liu et al., KIVI, arXiv 2402.02750. Shapes: K key/value heads  T tokens  C head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.inference.plain.codes import Codes, from_codes, to_codes


class QuantizedKV:
    """One text's keys and values in one layer; `group` tokens are rounded together, once."""

    def __init__(self, bits: int = 8, group: int = 32) -> None:
        self.bits, self.group = bits, group
        self.keys: list[Codes] = []
        self.values: list[Codes] = []
        self.new: tuple[Tensor, Tensor] | None = None

    def append(self, k: Tensor, v: Tensor) -> None:
        """k and v (K, T, C): T tokens more."""
        if self.new is not None:
            k, v = torch.cat((self.new[0], k), dim=1), torch.cat((self.new[1], v), dim=1)
        while k.shape[1] >= self.group:
            self.keys.append(to_codes(k[:, : self.group], 1, self.bits))
            self.values.append(to_codes(v[:, : self.group], 2, self.bits))
            k, v = k[:, self.group :], v[:, self.group :]
        self.new = k.clone(), v.clone()

    def read(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens, (K, n, C) each."""
        keys, values = ([from_codes(*one) for one in kept] for kept in (self.keys, self.values))
        return torch.cat((*keys, self.new[0]), dim=1), torch.cat((*values, self.new[1]), dim=1)
