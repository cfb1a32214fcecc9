# exercise: QuantizedKV
# says: the caller has written over the k and v of an append
# what is appended to an empty tail is kept as it is, without a copy: a slice keeps all of the
# caller's memory alive, and changes with it

import torch

from minitrain.inference.plain.codes import from_codes, to_codes


class QuantizedKV:
    def __init__(self, bits: int = 8, group: int = 32):
        self.bits, self.group = bits, group
        self.key_parts, self.value_parts = [], []
        self.k = self.v = None

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        if self.k is not None and self.k.shape[1]:
            k, v = torch.cat([self.k, k], 1), torch.cat([self.v, v], 1)
        g = self.group
        cut = k.shape[1] // g * g
        for s in range(0, cut, g):
            self.key_parts.append(to_codes(k[:, s : s + g], 1, self.bits))
            self.value_parts.append(to_codes(v[:, s : s + g], 2, self.bits))
        if cut:
            k, v = k[:, cut:].clone(), v[:, cut:].clone()
        self.k, self.v = k, v

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        keys = [from_codes(*part) for part in self.key_parts] + [self.k]
        values = [from_codes(*part) for part in self.value_parts] + [self.v]
        return torch.cat(keys, 1), torch.cat(values, 1)
