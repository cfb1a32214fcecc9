"""Sources of drafts: another model, the target in fewer bits or layers, its own text, heads upon
it.
"""
