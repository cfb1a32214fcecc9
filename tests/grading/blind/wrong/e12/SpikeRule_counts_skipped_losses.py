# exercise: SpikeRule
# says: neither ends the warm-up nor makes keep larger
# n counts every loss that was seen, not those that were taken: a NaN shortens the warm-up, and
# skipped ones give k a wrong n.

import math


class SpikeRule:
    def __init__(self, alpha=0.97, z=6.0, warmup=25, patience=3):
        self.alpha, self.z, self.warmup, self.patience = alpha, z, warmup, patience
        self.n, self.row, self.mean, self.variance = 0, 0, 0.0, 0.0

    def __call__(self, loss):
        self.n += 1
        d = loss - self.mean
        spread = max(math.sqrt(self.variance), 0.001 * abs(self.mean))
        if not math.isfinite(loss) or (self.n > self.warmup and d > self.z * spread):
            self.row += 1
            if self.row == self.patience:
                self.row = 0
                return "back"
            return "skip"
        self.row = 0
        k = min(self.alpha, 1 - 1 / self.n)
        self.mean += (1 - k) * d
        self.variance = k * (self.variance + (1 - k) * d * d)
        return "take"
