# exercise: ngram_draft
# says: and for fewer only where those are nowhere
# takes the latest place at which anything matches, and its longest match there: a later short
# find beats a longer one

def ngram_draft(tokens: list, most: int, longest: int = 3) -> list:
    for end in range(len(tokens) - 1, 0, -1):
        for n in range(min(longest, end), 0, -1):
            if tokens[end - n : end] == tokens[-n:]:
                return tokens[end : end + most]
    return []
