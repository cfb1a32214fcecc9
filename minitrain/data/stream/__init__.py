"""Tokens on disk, memory-mapped: files, rows of them, and the order of the rows.

    token_files     documents' tokens in shards with an index; rows cut from them for `data.loader`
    held_out        documents kept out of training, to evaluate on
    order           the order of rows, as a function of seed and epoch: shuffled, easy to hard
    mixture         several sources, with weights, a temperature, annealing

Labs: e11; resuming: e12.
"""
