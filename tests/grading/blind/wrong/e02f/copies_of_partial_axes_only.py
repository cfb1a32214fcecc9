# exercise: copies
# says: copies are along every axis that neither splits it nor is the pipeline
# Multiplies the sizes of the axes in `partial` only: an axis that is in neither set (tp for a
# norm) holds copies too, and is left out.

def copies(layout, mesh) -> int:
    number = 1
    for axis in mesh.axes:
        if axis in layout.split or axis not in layout.partial:
            continue
        number *= 2 if axis == "pp" else mesh[axis]
    return number
