# exercise: copies
# says: until it was summed


def copies(layout, mesh):
    count = 2 if "pp" in layout.partial else 1
    for axis in mesh.axes:
        if axis != "pp" and axis not in layout.split | layout.partial:
            count *= mesh[axis]
    return count
