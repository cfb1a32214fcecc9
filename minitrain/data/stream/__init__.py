"""Tokens on disk, read where they lie: files, rows of them, and the order in which rows come.

    token_files     documents' tokens written in shards, with an index, and opened again
    token_rows      rows to train on, cut from them without loading them: for `data.loader`
    held_out        documents that training does not ask for, to evaluate on
    rows            what a loader reads from
    order           which row comes when, as a function of seed and epoch
    mixture         of several sources, with weights, a temperature, annealing
    curriculum      from easy to hard

Labs: e11; resuming: e12.
"""
