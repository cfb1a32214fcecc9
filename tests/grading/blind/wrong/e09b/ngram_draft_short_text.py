# exercise: ngram_draft
# says: no more than `longest`
# gives up on a text that is not longer than `longest`, where shorter finds may stand

def ngram_draft(tokens: list, most: int, longest: int = 3) -> list:
    if len(tokens) <= longest:
        return []
    for n in range(longest, 0, -1):
        tail = tokens[-n:]
        for start in reversed(range(len(tokens) - n)):
            if tokens[start : start + n] == tail:
                return tokens[start + n : start + n + most]
    return []
