"""Adapters, one per file; each starts as the identity, or nearly so."""
