# exercise: ngram_draft
# says: a find that overlaps the text's end
# looks only in the text before the last n tokens: a place that overlaps them is not found

def ngram_draft(tokens: list, most: int, longest: int = 3) -> list:
    for n in range(min(longest, len(tokens) - 1), 0, -1):
        tail, before = tokens[-n:], tokens[:-n]
        for start in range(len(before) - n, -1, -1):
            if before[start : start + n] == tail:
                return tokens[start + n : start + n + most]
    return []
