# exercise: place
# says: keeps its own size

from itertools import permutations


def place(sizes, sent, ranks_per_node):
    meshes = [Mesh(**dict(zip(sizes, order))) for order in permutations(sizes.values())]
    return min(meshes, key=lambda mesh: bytes_between(mesh, sent, ranks_per_node))
