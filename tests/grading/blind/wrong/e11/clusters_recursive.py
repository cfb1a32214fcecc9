# exercise: clusters
# says: follow parents in a loop
# the root is found by recursion, which fails on a long chain

def clusters(pairs, count: int) -> list:
    parent = list(range(count))

    def root(i):
        if parent[i] != i:
            parent[i] = root(parent[i])
        return parent[i]

    for i, j in pairs:
        i, j = root(i), root(j)
        parent[max(i, j)] = min(i, j)
    return [root(i) for i in range(count)]
