# exercise: copies
# says: however many stages


def copies(layout, mesh):
    count = 1
    for axis in mesh.axes:
        if axis not in layout.split:
            count *= mesh[axis]
    return count
