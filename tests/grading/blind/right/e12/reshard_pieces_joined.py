# right: walks along the line of elements, joins the pieces and pads
import torch


def reshard(read, elements, old, new, rank, dtype):
    file_size, rank_size = (elements + old - 1) // old, (elements + new - 1) // new
    at, end = rank * rank_size, min(elements, (rank + 1) * rank_size)
    pieces = []
    while at < end:
        file, within = divmod(at, file_size)
        count = min(end - at, file_size - within)
        pieces.append(read(file, within, within + count).to(dtype))
        at += count
    missing = rank_size - sum(len(piece) for piece in pieces)
    return torch.cat([*pieces, torch.zeros(missing, dtype=dtype)])
