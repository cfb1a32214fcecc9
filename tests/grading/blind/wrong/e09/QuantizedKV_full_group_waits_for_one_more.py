# exercise: QuantizedKV
# says: until one more token came
# a group is rounded only when a token more than `group` is there (> in place of >=), not as
# soon as it is full

import torch

from minitrain.inference.plain.codes import from_codes, to_codes


class QuantizedKV:
    def __init__(self, bits: int = 8, group: int = 32):
        self.bits, self.group = bits, group
        self.key_parts, self.value_parts = [], []
        self.k = self.v = None

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        self.k = k.clone() if self.k is None else torch.cat([self.k, k], 1)
        self.v = v.clone() if self.v is None else torch.cat([self.v, v], 1)
        g = self.group
        while self.k.shape[1] > g:
            self.key_parts.append(to_codes(self.k[:, :g], 1, self.bits))
            self.value_parts.append(to_codes(self.v[:, :g], 2, self.bits))
            self.k, self.v = self.k[:, g:].clone(), self.v[:, g:].clone()

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        keys = [from_codes(*part) for part in self.key_parts] + [self.k]
        values = [from_codes(*part) for part in self.value_parts] + [self.v]
        return torch.cat(keys, 1), torch.cat(values, 1)
