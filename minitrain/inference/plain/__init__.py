"""Inference as lab e09 writes it, each idea in a few lines, and a loop that they all fit into.

sampler       a token for each of many requests
attention     a layer's attention over what a cache keeps
blocks        a pool of blocks, and the tables of texts that share them
schedule      who computes how many tokens in the next step
rounded       keys and values in few bits;  codes: one range, rounded;  digest: of a block
batch         static batches, to compare with
loop          requests served step by step by the parts above

No drafts, no tensor parallelism, no errors in words: `sampler`, `cache` and `engine` have the rest.
"""
