"""Many LoRAs over one model at once: `rows` computes them, `pool` holds them in pages."""
