"""Caches of keys and values: dense rows, pages, few bits, a ring. Each gives a `Reader`."""
