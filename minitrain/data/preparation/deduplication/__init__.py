"""Deduplication: documents that are equal, nearly equal, or share a passage.

    exact      equal documents, by a hash of their normal form
    words      text to words, and to the hashes of all runs of w words (shingles)
    near       MinHash signatures, bands and the union of pairs: clusters of near duplicates
    passages   passages repeated within or across documents

Document-level methods map every document to the first of its cluster, which is kept.
Labs: e11.
"""
