"""Collectives: their algorithms step by step, their differentiable pairs, and those that run while
others compute.
"""
