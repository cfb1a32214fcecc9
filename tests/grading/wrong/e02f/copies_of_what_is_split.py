# exercise: copies
# says: hold different elements


def copies(layout, mesh):
    count = 2 if "pp" in layout.partial else 1
    for axis in mesh.axes:
        if axis != "pp" and axis in layout.split:
            count *= mesh[axis]
    return count
