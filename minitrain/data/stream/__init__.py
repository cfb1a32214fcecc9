"""Tokens on disk, read where they lie: files, rows of them, and the order in which rows come.

token_files     documents' tokens written in shards, with an index, and opened again
token_rows      rows to train on, cut from them without loading them: for `data.loader`
order           which row comes when: shuffled, mixed from several sources, from easy to hard
"""
