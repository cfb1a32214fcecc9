"""Texts and models that are downloaded: the catalogue, the download, and a check of every byte."""
