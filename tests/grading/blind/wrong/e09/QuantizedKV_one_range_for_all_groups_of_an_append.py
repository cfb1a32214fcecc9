# exercise: QuantizedKV
# says: each group has its own, however many come at once
# all groups that one append completes are rounded as one, with one range by the channel: what
# is read depends on how the text came

import torch

from minitrain.inference.plain.codes import from_codes, to_codes


class QuantizedKV:
    def __init__(self, bits: int = 8, group: int = 32):
        self.bits, self.group = bits, group
        self.parts, self.k, self.v = [], None, None

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        self.k = k.clone() if self.k is None else torch.cat([self.k, k], 1)
        self.v = v.clone() if self.v is None else torch.cat([self.v, v], 1)
        full = self.k.shape[1] // self.group * self.group
        if full:
            self.parts.append(
                (
                    to_codes(self.k[:, :full], 1, self.bits),
                    to_codes(self.v[:, :full], 2, self.bits),
                )
            )
            self.k, self.v = self.k[:, full:].clone(), self.v[:, full:].clone()

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        keys = [from_codes(*k) for k, _ in self.parts] + [self.k]
        values = [from_codes(*v) for _, v in self.parts] + [self.v]
        return torch.cat(keys, 1), torch.cat(values, 1)
