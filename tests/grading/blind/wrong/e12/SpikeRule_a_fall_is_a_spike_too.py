# exercise: SpikeRule
# says: a loss far *below* the mean is no spike
# Takes the distance from the mean without its sign: a loss that falls far is skipped like one
# that jumps up.

import math


class SpikeRule:
    def __init__(self, alpha=0.97, z=6.0, warmup=25, patience=3):
        self.alpha, self.z, self.warmup, self.patience = alpha, z, warmup, patience
        self.mean, self.variance = 0.0, 0.0
        self.taken, self.row = 0, 0

    def __call__(self, loss: float) -> str:
        d = loss - self.mean
        bound = self.z * max(math.sqrt(self.variance), 0.001 * abs(self.mean))
        is_known = self.taken >= self.warmup
        if not math.isfinite(loss) or (is_known and abs(d) > bound):
            self.row += 1
            if self.row < self.patience:
                return "skip"
            self.row = 0
            return "back"
        self.row = 0
        self.taken += 1
        k = min(self.alpha, 1 - 1 / self.taken)
        self.mean += (1 - k) * d
        self.variance = k * (self.variance + (1 - k) * d * d)
        return "take"
