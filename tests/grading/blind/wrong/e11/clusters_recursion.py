# exercise: clusters
# says: follow parents in a loop
# the root is found by recursion: pairs (n-2, n-1), (n-3, n-2), ..., (0, 1) build a chain of n
# parents, and a last pair with page n - 1 in it, as (0, n-1), dies with RecursionError (n above
# 1,000)

def clusters(pairs, count: int) -> list:
    parent = list(range(count))

    def find(i):
        if parent[i] != i:
            parent[i] = find(parent[i])
        return parent[i]

    for i, j in pairs:
        i, j = find(i), find(j)
        parent[max(i, j)] = min(i, j)
    return [find(i) for i in range(count)]
