# exercise: ngram_draft
# says: a find that overlaps the text's end
# looks only in front of the last n tokens: a find that overlaps them (5 5 5 5) is missed

def ngram_draft(tokens: list, most: int, longest: int = 3) -> list:
    for n in range(longest, 0, -1):
        if n >= len(tokens):
            continue
        tail, before = tokens[-n:], tokens[:-n]
        for start in range(len(before) - n, -1, -1):
            if before[start : start + n] == tail:
                return tokens[start + n : start + n + most]
    return []
