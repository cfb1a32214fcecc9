# exercise: copies
# says: pp makes no copies


def copies(layout, mesh):
    count = 2 if "pp" in layout.partial else 1
    for axis in mesh.axes:
        if axis not in layout.split - {"pp"} and "pp" not in layout.partial or axis == "dp":
            count *= mesh[axis]
    return count
