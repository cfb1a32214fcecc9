"""The same text once: whole documents that are equal, nearly equal, or share a passage.

    exact      equal documents, by a hash of their normal form
    words      text to words, and to the hashes of all runs of w words (shingles)
    near       MinHash signatures, bands and the union of pairs: clusters of near duplicates
    passages   passages that come again, in whatever documents

Each finds for every document the first of its cluster; the first is the one that is kept.
Labs: e11.
"""
