# exercise: clusters
# says: go on to the root of each
# returns the parents as they are at the end, not the roots: a page whose root was joined to a
# lower one later keeps the old root

def clusters(pairs, count: int) -> list:
    parent = list(range(count))

    def find(i):
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for i, j in pairs:
        low, high = sorted((find(i), find(j)))
        parent[high] = low
    return parent
