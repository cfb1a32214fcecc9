# exercise: clusters
# says: Join the *roots* of both
# joins the two pages of a pair, not their roots, so an earlier parent is overwritten and a
# group falls apart

def clusters(pairs, count: int) -> list:
    parent = list(range(count))
    for i, j in pairs:
        low, high = min(i, j), max(i, j)
        parent[high] = low
    first = []
    for i in range(count):
        while parent[i] != i:
            i = parent[i]
        first.append(i)
    return first
