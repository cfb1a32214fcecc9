"""KV caches: dense rows, pages, quantized, a ring. Each provides a `Reader`."""
