# exercise: copies
# says: the gradient was a part there until it was summed
# leaves the axes in `partial` out of the product too ("A parameter is copied along every axis
# that does not split it, partial there or not")

import torch


def copies(layout, mesh) -> int:
    count = 2 if "pp" in layout.partial else 1
    for axis in mesh.axes:
        if axis not in layout.split | layout.partial | {"pp"}:
            count *= mesh[axis]
    return count
