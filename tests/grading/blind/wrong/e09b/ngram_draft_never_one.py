# exercise: ngram_draft
# says: none of one token: go down to one
# the loop over sizes ends at two: a single last token is never looked for

def ngram_draft(tokens, most, longest=3):
    n = len(tokens)
    for size in range(min(longest, n - 1), 1, -1):
        last = tokens[n - size :]
        for start in range(n - size - 1, -1, -1):
            if tokens[start : start + size] == last:
                return tokens[start + size : start + size + most]
    return []
