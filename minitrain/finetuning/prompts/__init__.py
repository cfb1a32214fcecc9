"""Learned tokens that nobody typed: before every layer's keys and values, or before the text."""
