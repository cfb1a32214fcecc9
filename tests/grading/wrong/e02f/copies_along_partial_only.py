# exercise: copies
# says: not along `partial` alone | pp makes


def copies(layout, mesh):
    count = 2 if "pp" in layout.partial else 1
    for axis in mesh.axes:
        if axis != "pp" and axis in layout.partial:
            count *= mesh[axis]
    return count
