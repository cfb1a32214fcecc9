"""Many devices: data parallelism, meshes and layouts; a room for each further technique."""
