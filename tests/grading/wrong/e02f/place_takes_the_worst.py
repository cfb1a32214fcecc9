# exercise: place
# says: no order sends more

from itertools import permutations


def place(sizes, sent, ranks_per_node):
    meshes = [Mesh(**dict(order)) for order in permutations(sizes.items())]
    return max(meshes, key=lambda mesh: bytes_between(mesh, sent, ranks_per_node))
