"""Linear layers with a quantized weight."""
