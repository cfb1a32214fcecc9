# exercise: copies
# says: · ep
# Only the two axes of the pictures are looked at: ep and cp make copies too ("all other axes").
def copies(layout, mesh) -> int:
    count = 2 if "pp" in layout.partial else 1
    for axis in ("dp", "tp"):
        if axis in mesh.axes and axis not in layout.split:
            count *= mesh[axis]
    return count
