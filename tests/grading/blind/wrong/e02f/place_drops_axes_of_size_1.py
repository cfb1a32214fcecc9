# exercise: place
# says: cp is missing
# Axes of size 1 are left out to save orders, so the mesh that comes back lacks them and
# mesh["ep"] is an error; the docstring says "The `Mesh` of these sizes".

from itertools import permutations


def place(sizes: dict, sent: dict, ranks_per_node: int):
    long = {axis: size for axis, size in sizes.items() if size > 1}
    talk = {axis: nbytes for axis, nbytes in sent.items() if axis in long}
    meshes = [Mesh(**dict(order)) for order in permutations(long.items())]
    return min(meshes, key=lambda mesh: bytes_between(mesh, talk, ranks_per_node))
