# a reader's answer to `SpikeRule`, in which others made the mistakes of wrong/e12/SpikeRule_reader.diff

import math


class SpikeRule:
    def __init__(self, alpha=0.97, z=6.0, warmup=25, patience=3):
        self.alpha, self.z, self.warmup, self.patience = alpha, z, warmup, patience
        self.count, self.mean, self.variance, self.skipped = 0, 0.0, 0.0, 0

    def __call__(self, loss):
        far = loss - self.mean
        deviation = max(math.sqrt(self.variance), 1e-3 * abs(self.mean))
        is_spike = self.count >= self.warmup and far > self.z * deviation
        if is_spike or not math.isfinite(loss):
            self.skipped = (self.skipped + 1) % self.patience
            return "skip" if self.skipped else "back"
        self.skipped, self.count = 0, self.count + 1
        keep = min(self.alpha, 1 - 1 / self.count)
        self.mean += (1 - keep) * far
        self.variance = keep * (self.variance + (1 - keep) * far**2)
        return "take"
