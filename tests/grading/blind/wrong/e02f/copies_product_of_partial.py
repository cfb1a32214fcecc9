# exercise: copies
# says: not along `partial` alone
# Takes the axes of `partial` for those along which there are copies: a norm, not partial along
# tp, misses its copies there.

def copies(layout, mesh) -> int:
    count = 1
    for axis in mesh.axes:
        if axis in layout.partial:
            count *= min(2, mesh[axis]) if axis == "pp" else mesh[axis]
    return count
