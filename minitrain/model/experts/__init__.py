"""Mixtures of experts: the router, dispatch and combine, grouped experts, and what a step does
around them.
"""
