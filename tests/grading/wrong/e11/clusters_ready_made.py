# exercise: clusters
# says: ready-made unions are not

import networkx


def clusters(pairs, count):
    graph = networkx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(pairs)
    first = list(range(count))
    for group in networkx.connected_components(graph):
        for page in group:
            first[page] = min(group)
    return first
