# exercise: ngram_draft
# says: a place that fewer than `most` tokens follow
# skips a place behind which fewer than `most` tokens follow and looks on for an earlier or
# shorter one

def ngram_draft(tokens: list, most: int, longest: int = 3) -> list:
    for n in range(longest, 0, -1):
        if len(tokens) <= n:
            continue
        tail = tokens[-n:]
        for start in range(len(tokens) - n - most, -1, -1):
            if tokens[start : start + n] == tail:
                return tokens[start + n : start + n + most]
    return []
