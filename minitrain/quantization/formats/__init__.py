"""How a weight matrix is written in few bits, and read again."""
