"""Texts and models that are downloaded: the catalogue, the download, the files checked byte for
byte.
"""
