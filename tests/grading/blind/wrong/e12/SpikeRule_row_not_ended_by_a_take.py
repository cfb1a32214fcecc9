# exercise: SpikeRule
# says: skipped steps are counted although good ones lie between
# a loss that is taken does not end the row: three spikes far apart go "back" as if they were in
# a row.

import math


class SpikeRule:
    def __init__(self, alpha=0.97, z=6.0, warmup=25, patience=3):
        self.alpha, self.z, self.warmup, self.patience = alpha, z, warmup, patience
        self.n, self.row, self.mean, self.variance = 0, 0, 0.0, 0.0

    def __call__(self, loss):
        d = loss - self.mean
        out = not math.isfinite(loss) or (
            self.n >= self.warmup
            and d > self.z * max(math.sqrt(self.variance), 0.001 * abs(self.mean))
        )
        if out:
            self.row += 1
            if self.row >= self.patience:
                self.row = 0
                return "back"
            return "skip"
        self.n += 1
        k = min(self.alpha, 1 - 1 / self.n)
        self.mean += (1 - k) * d
        self.variance = k * (self.variance + (1 - k) * d * d)
        return "take"
