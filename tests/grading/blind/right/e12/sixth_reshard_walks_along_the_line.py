# exercise: reshard
# walks along the line from file to file with divmod and joins what it read, zeros last; files that
# have nothing in common are not looked at
import torch


def reshard(read, elements: int, old: int, new: int, rank: int, dtype) -> torch.Tensor:
    size, wanted = ((elements + n - 1) // n for n in (old, new))
    at, last = (min(edge * wanted, elements) for edge in (rank, rank + 1))
    missing = wanted - (last - at)
    pieces = []
    while at < last:
        file, start = divmod(at, size)
        count = min(size - start, last - at)
        pieces.append(read(file, start, start + count).to(dtype))
        at += count
    return torch.cat([*pieces, torch.zeros(missing, dtype=dtype)])
