# exercise: Snapshot
# says: Python's generator is not
# keeps torch's and NumPy's generators and forgets Python's own (random).

from copy import deepcopy

import numpy as np
import torch


class Snapshot:
    PARTS = ("model", "optimizer", "schedule", "loader")

    def __init__(self, run):
        self.torch_state = torch.get_rng_state()
        self.numpy_state = np.random.get_state()
        self.parts = [deepcopy(getattr(run, part).state_dict()) for part in self.PARTS]

    def restore(self, run):
        for part, state in zip(self.PARTS, self.parts):
            getattr(run, part).load_state_dict(deepcopy(state))
        torch.set_rng_state(self.torch_state)
        np.random.set_state(self.numpy_state)
