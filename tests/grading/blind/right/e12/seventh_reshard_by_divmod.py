# exercise: reshard
# walks along the rank's own interval with divmod, from file to file, and joins the pieces; no loop
# over all files
import torch


def reshard(read, elements: int, old: int, new: int, rank: int, dtype) -> torch.Tensor:
    size = (elements + old - 1) // old
    wanted = (elements + new - 1) // new
    position = min(rank * wanted, elements)
    end = min((rank + 1) * wanted, elements)
    pieces, missing = [], wanted - (end - position)
    while position < end:
        file, offset = divmod(position, size)
        count = min(size - offset, end - position)
        pieces.append(read(file, offset, offset + count).to(dtype))
        position += count
    return torch.cat([*pieces, torch.zeros(missing, dtype=dtype)])
