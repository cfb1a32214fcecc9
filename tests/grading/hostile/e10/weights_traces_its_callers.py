# exercise: weights
# says: looks into the frames

import sys


def weights(model):
    sys.settrace(lambda frame, event, argument: None)
    return 0
