"""The same text once: whole documents that are equal, nearly equal, or share a passage.

    exact       equal documents, by a hash of their normal form
    words       text to words, and to the hashes of all runs of w words (shingles)
    minhash     a document's K smallest hashes: how alike two are, read off K numbers
    bands       which pairs those bring together: the S-curve, and the split that fits a threshold
    near        MinHash signatures to clusters of near duplicates
    clusters    the union of pairs
    suffix_array, substring       passages that come again, in whatever documents

Each finds for every document the first of its cluster; the first is the one that is kept.
Shapes: N documents  S shingles  K hashes  E pairs; labs: e11.
"""
