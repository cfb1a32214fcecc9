# exercise: copies
# says: that is all ranks


def copies(layout, mesh):
    count = 1
    for axis in mesh.axes:
        count *= mesh[axis]
    return count
