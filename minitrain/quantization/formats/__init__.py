"""Weight matrices in few bits: their formats, encoded and decoded."""
