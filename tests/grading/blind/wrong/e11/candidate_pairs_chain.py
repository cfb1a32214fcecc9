# exercise: candidate_pairs
# says: Pair each with the *first* of its bucket
# pairs each page with the page before it in the bucket, not with the bucket's first

def candidate_pairs(signatures, bands, rows):
    pairs = set()
    for k in range(bands):
        last = {}
        for i, row in enumerate(signatures):
            if (row == 2**32 - 1).all():
                continue
            key = row[k * rows : (k + 1) * rows].tobytes()
            if key in last:
                pairs.add((last[key], i))
            last[key] = i
    return list(pairs)
