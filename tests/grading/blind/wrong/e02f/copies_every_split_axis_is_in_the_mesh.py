# exercise: copies
# says: a mesh may lack axes
# It divides all ranks by the size of every axis in layout.split (and of pp), which is an error
# where the mesh does not have that axis; the text says "A mesh may lack axes".

import torch


def copies(layout, mesh) -> int:
    number = torch.Size(mesh.shape).numel()
    for axis in layout.split:
        number //= mesh[axis]
    if "pp" in layout.partial:  # the tied table: on two stages of all
        number = number // mesh["pp"] * 2
    return number
