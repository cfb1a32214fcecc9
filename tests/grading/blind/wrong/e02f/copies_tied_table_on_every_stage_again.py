# exercise: copies
# says: however many stages there are
# multiplies by all pipeline stages for the tied table; right for two stages only ("it is on the
# first and the last stage: two copies, however long the pipeline")

import torch


def copies(layout, mesh) -> int:
    count = 1
    for axis in mesh.axes:
        if axis not in layout.split:
            count *= mesh[axis]
    return count
