# exercise: copies
# says: two stages hold a tied table, however many stages there are
# pp is a plain factor where it does not split: a tied table on a long pipeline is counted on
# every stage.

def copies(layout, mesh) -> int:
    count = 1
    for axis in mesh.axes:
        if axis not in layout.split:
            count *= mesh[axis]
    return count
