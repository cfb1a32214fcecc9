# exercise: ngram_draft
# says: it is the nearest to what is told now
# of equally long finds it takes the earliest place, not the latest

def ngram_draft(tokens, most, longest=3):
    n = len(tokens)
    for size in range(min(longest, n - 1), 0, -1):
        last = tokens[n - size :]
        for start in range(n - size):
            if tokens[start : start + size] == last:
                return tokens[start + size : start + size + most]
    return []
