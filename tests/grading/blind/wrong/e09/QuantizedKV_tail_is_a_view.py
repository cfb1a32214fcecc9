# exercise: QuantizedKV
# says: A slice keeps all of its tensor alive
# the newest tokens are a slice of the big tensor: its whole memory stays alive

import torch
from minitrain.inference.plain.codes import from_codes, to_codes


class QuantizedKV:
    def __init__(self, bits: int = 8, group: int = 32):
        self.bits, self.group = bits, group
        self.keys, self.values = [], []
        self.k = self.v = None

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        if self.k is not None:
            k, v = torch.cat([self.k, k], 1), torch.cat([self.v, v], 1)
        g = self.group
        while k.shape[1] >= g:
            self.keys.append(to_codes(k[:, :g], 1, bits=self.bits))
            self.values.append(to_codes(v[:, :g], 2, bits=self.bits))
            k, v = k[:, g:], v[:, g:]
        self.k, self.v = k, v

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        k = torch.cat([from_codes(*c) for c in self.keys] + [self.k], 1)
        v = torch.cat([from_codes(*c) for c in self.values] + [self.v], 1)
        return k, v
