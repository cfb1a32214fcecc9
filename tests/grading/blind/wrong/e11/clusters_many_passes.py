# exercise: clusters
# says: and come once
# carries the lowest label along the pairs until nothing changes: reads the pairs more than
# once, a generator is empty the second time

def clusters(pairs, count: int) -> list:
    first = list(range(count))
    changed = True
    while changed:
        changed = False
        for i, j in pairs:
            low = min(first[i], first[j])
            if first[i] != low or first[j] != low:
                first[i] = first[j] = low
                changed = True
    return first
