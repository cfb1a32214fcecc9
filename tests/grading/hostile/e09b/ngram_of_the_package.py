# exercise: ngram_draft
# says: No module named | cannot import | minitrain.inference


def ngram_draft(tokens, most, longest=3):
    from minitrain.inference.speculation.ngram import NGram

    return NGram(longest).lookup(tokens, most)
