"""The runtime of ranks: processes that are launched, talk through a group, and say what they wait
for.
"""
