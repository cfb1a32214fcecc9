# exercise: place
# says: return the Mesh itself

from itertools import permutations


def place(sizes, sent, ranks_per_node):
    meshes = [Mesh(**dict(order)) for order in permutations(sizes.items())]
    best = min(meshes, key=lambda mesh: bytes_between(mesh, sent, ranks_per_node))
    return best.axes
