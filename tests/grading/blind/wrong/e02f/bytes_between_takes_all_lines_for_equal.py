# exercise: bytes_between
# says: as if every line crossed
# counts only the line through rank 0 and multiplies by the number of lines, though one line can
# cross nodes and another not ("Bytes that leave their node, of all ranks and all axes")

import torch


def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    total, ranks = 0, torch.Size(mesh.shape).numel()
    for axis, nbytes in sent.items():
        line = mesh.ranks(axis, 0)
        pairs = zip(line, line[1:] + line[:1])
        leaving = sum(a // ranks_per_node != b // ranks_per_node for a, b in pairs)
        total += nbytes * leaving * (ranks // len(line))
    return total
