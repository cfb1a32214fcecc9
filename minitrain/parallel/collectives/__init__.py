"""Collectives: step-by-step algorithms, differentiable pairs, and versions that overlap with
compute.
"""
