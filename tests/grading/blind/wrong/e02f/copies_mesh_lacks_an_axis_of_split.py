# exercise: copies
# says: `mesh[axis]` only where `axis in mesh.axes`
# Divides the number of ranks by the sizes of all axes in `split`, and asks the mesh for axes
# that it may lack (a ValueError).

import math


def copies(layout, mesh) -> int:
    number = math.prod(mesh.shape)
    for axis in layout.split:
        number //= mesh[axis]
    if "pp" in layout.partial:
        number = number // mesh["pp"] * 2
    return number
