"""All kinds of parallelism at once: a model on a mesh, its gradients, its state, its placement on
nodes.
"""
