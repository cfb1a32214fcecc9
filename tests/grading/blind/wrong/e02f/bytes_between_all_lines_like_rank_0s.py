# exercise: bytes_between
# says: as if every line crossed
# Only the line of rank 0 is counted along each axis and multiplied by the number of lines, but
# lines lie differently on the nodes where sizes do not fit (dp=2, tp=3, 4 ranks a node); the
# text asks for the bytes "of all ranks".

import torch


def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    ranks, total = torch.Size(mesh.shape).numel(), 0
    for axis, nbytes in sent.items():
        line = mesh.ranks(axis, 0)
        leaving = sum(
            a // ranks_per_node != b // ranks_per_node
            for a, b in zip(line, line[1:] + line[:1])
        )
        total += nbytes * leaving * (ranks // len(line))
    return total
