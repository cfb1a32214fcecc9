# exercise: copies
# says: both hold a tied table


def copies(layout, mesh):
    count = 1
    for axis in mesh.axes:
        if axis != "pp" and axis not in layout.split:
            count *= mesh[axis]
    return count
