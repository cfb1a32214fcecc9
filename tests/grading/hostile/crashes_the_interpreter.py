# exercise: chunk_sizes
# says: killed (SIG

import faulthandler


def chunk_sizes(elements, ranks):
    faulthandler._sigsegv()
