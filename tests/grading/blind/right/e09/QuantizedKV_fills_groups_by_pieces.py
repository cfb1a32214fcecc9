# right: two columns, one for keys and one for values; each cuts what comes into pieces that fill its group
import torch

from minitrain.inference.plain.codes import from_codes, to_codes


class QuantizedKV:
    def __init__(self, bits: int = 8, group: int = 32):
        self.bits = bits
        self.group = group
        self.full = {"k": [], "v": []}
        self.newest = {"k": [], "v": []}  # copies of what came, less than a group

    def _add(self, name, x, dim):
        newest, start = self.newest[name], 0
        while start < x.shape[1]:
            room = self.group - sum(part.shape[1] for part in newest)
            piece = x[:, start : start + room]
            start += piece.shape[1]
            newest.append(piece.clone(memory_format=torch.contiguous_format))
            if piece.shape[1] == room:
                whole = torch.cat(newest, dim=1)
                self.full[name].append(to_codes(whole, dim, bits=self.bits))
                newest.clear()

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        self._add("k", k, 1)  # tokens share a channel's range
        self._add("v", v, 2)  # channels share a token's range

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        def all_of(name):
            done = [from_codes(*part) for part in self.full[name]]
            return torch.cat(done + self.newest[name], dim=1)

        return all_of("k"), all_of("v")
