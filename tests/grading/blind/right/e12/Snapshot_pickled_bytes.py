# right: keeps one bytes object, the pickle of all states; each restore unpickles fresh objects and sets the generators last.
import pickle
import random

import numpy as np
import torch


class Snapshot:
    def __init__(self, run):
        generators = (torch.get_rng_state(), np.random.get_state(), random.getstate())
        parts = [p.state_dict() for p in (run.model, run.optimizer, run.schedule, run.loader)]
        self.content = pickle.dumps((parts, generators))

    def restore(self, run):
        parts, (of_torch, of_numpy, of_python) = pickle.loads(self.content)
        for part, state in zip((run.model, run.optimizer, run.schedule, run.loader), parts):
            part.load_state_dict(state)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
