# exercise: copies
# says: a mesh may lack axes
# divides all ranks by the size of every axis in split, and fails where split names one that the
# mesh does not have (split "tp" on Mesh(dp=2)); the text says "A mesh may lack axes".

import torch


def copies(layout, mesh):
    number = torch.Size(mesh.shape).numel()
    if "pp" in mesh.axes:
        number //= mesh["pp"]
    for axis in layout.split:
        if axis != "pp":
            number //= mesh[axis]
    return 2 * number if "pp" in layout.partial else number
