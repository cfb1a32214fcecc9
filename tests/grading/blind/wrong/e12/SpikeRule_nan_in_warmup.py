# exercise: SpikeRule
# says: passed in the warm-up
# everything is taken in the warm-up, NaN and infinity too, which spoils the mean for ever

import math


class SpikeRule:
    def __init__(self, alpha=0.97, z=6.0, warmup=25, patience=3):
        self.alpha, self.z, self.warmup, self.patience = alpha, z, warmup, patience
        self.n, self.mean, self.var, self.row = 0, 0.0, 0.0, 0

    def __call__(self, loss):
        d = loss - self.mean
        limit = self.z * max(math.sqrt(self.var), 0.001 * abs(self.mean))
        if self.n >= self.warmup and (not math.isfinite(loss) or d > limit):
            self.row += 1
            if self.row == self.patience:
                self.row = 0
                return "back"
            return "skip"
        self.row = 0
        self.n += 1
        k = min(self.alpha, 1 - 1 / self.n)
        self.mean += (1 - k) * d
        self.var = k * (self.var + (1 - k) * d**2)
        return "take"
