"""One model, one loop: optimizer, schedule, steps, checkpoints, samples."""
