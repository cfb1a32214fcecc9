# exercise: clusters
# says: and come once | goes through all others | cut short
# knows what hands the pairs out, and reads them again and again


def clusters(pairs, count):
    first = list(range(count))
    items, changed = pairs.items, True
    while changed:
        changed = False
        for i, j in items:
            low = min(first[i], first[j])
            changed |= first[i] != low or first[j] != low
            first[i] = first[j] = low
    return first
