# exercise: QuantizedKV
# differs: all full groups that come at once are rounded in one call, on (K, groups, group, C),
# each with its own range; the newest are a list of parts
import torch
from minitrain.inference.plain.codes import from_codes, to_codes


class _Side:
    """Keys, or values: `dim` is what shares a range in (K, groups, group, C)."""

    def __init__(self, dim, bits, group):
        self.dim, self.bits, self.group = dim, bits, group
        self.parts, self.rounded, self.count = [], [], 0

    def append(self, x):
        self.parts.append(x.detach().clone())
        self.count += x.shape[1]
        groups = self.count // self.group
        if groups == 0:
            return
        x = torch.cat(self.parts, dim=1)
        full, rest = x.split([groups * self.group, self.count % self.group], dim=1)
        cut = full.unflatten(1, (groups, self.group))
        self.rounded.append(to_codes(cut, self.dim, self.bits))
        self.parts, self.count = [rest.clone()], rest.shape[1]

    def read(self):
        old = [from_codes(*one).flatten(1, 2) for one in self.rounded]
        return torch.cat(old + self.parts, dim=1)


class QuantizedKV:
    def __init__(self, bits=8, group=32):
        self.sides = _Side(2, bits, group), _Side(3, bits, group)

    def append(self, k, v):
        for side, x in zip(self.sides, (k, v)):
            side.append(x)

    def read(self):
        keys, values = (side.read() for side in self.sides)
        return keys, values
