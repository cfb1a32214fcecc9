"""Tokens on disk, read where they lie: files, rows of them, and the order in which rows come.

    token_files     documents' tokens in shards with an index; rows cut from them for `data.loader`
    held_out        documents that training does not ask for, to evaluate on
    order           which row comes when, as a function of seed and epoch: shuffled, easy to hard
    mixture         several sources, with weights, a temperature, annealing

Labs: e11; resuming: e12.
"""
