# exercise: place
# says: the mesh has every axis of `sizes`
# Tries the orders of the axes in `sent`, not of those in `sizes`: an axis along which nothing
# is sent is missing from the mesh.

from itertools import permutations


def place(sizes: dict, sent: dict, ranks_per_node: int):
    meshes = [Mesh(**{axis: sizes[axis] for axis in order}) for order in permutations(sent)]
    return min(meshes, key=lambda mesh: bytes_between(mesh, sent, ranks_per_node))
