# exercise: chunk_sizes
# says: killed (SIGKILL)

import os
import signal


def chunk_sizes(elements, ranks):
    os.kill(os.getpid(), signal.SIGKILL)
