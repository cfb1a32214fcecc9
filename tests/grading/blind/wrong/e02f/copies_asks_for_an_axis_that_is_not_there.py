# exercise: copies
# says: a mesh may lack axes
# divides by the size of every axis in the layout, and fails where the mesh has no such axis, as
# a mesh without pp ("A mesh may lack axes")

import torch


def copies(layout, mesh) -> int:
    count = torch.Size(mesh.shape).numel()
    for axis in layout.split:
        count //= mesh[axis]
    if "pp" in layout.partial:
        count = 2 * (count // mesh["pp"])
    return count
