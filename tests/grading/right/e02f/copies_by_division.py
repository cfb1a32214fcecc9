import math


def copies(layout, mesh):
    sizes = {axis: mesh[axis] for axis in mesh.axes}
    if "pp" in layout.partial:
        sizes["pp"] = 2
    return math.prod(sizes.values()) // math.prod(sizes.get(axis, 1) for axis in layout.split)
