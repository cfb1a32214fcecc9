# exercise: QuantizedKV
# says: however many come at once
# all groups that get full in one append share one range, instead of a range for each group

import torch
from minitrain.inference.plain.codes import from_codes, to_codes


class QuantizedKV:
    def __init__(self, bits: int = 8, group: int = 32):
        self.bits, self.group = bits, group
        self.full_k, self.full_v = [], []
        self.k = self.v = None

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        k = k.clone() if self.k is None else torch.cat([self.k, k], dim=1)
        v = v.clone() if self.v is None else torch.cat([self.v, v], dim=1)
        full = k.shape[1] // self.group * self.group
        if full:
            self.full_k.append(to_codes(k[:, :full], 1, bits=self.bits))
            self.full_v.append(to_codes(v[:, :full], 2, bits=self.bits))
            k, v = k[:, full:].clone(), v[:, full:].clone()
        self.k, self.v = k, v

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        k = [from_codes(*held) for held in self.full_k] + [self.k]
        v = [from_codes(*held) for held in self.full_v] + [self.v]
        return torch.cat(k, dim=1), torch.cat(v, dim=1)
