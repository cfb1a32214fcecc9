"""Adapters, a file each: all begin as nothing, or as good as nothing."""
