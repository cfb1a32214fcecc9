"""Mixtures of experts: the router, dispatch and combine, grouped experts, step bookkeeping."""
