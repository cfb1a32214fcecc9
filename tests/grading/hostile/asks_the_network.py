# exercise: chunk_sizes
# says: opens a network socket

import urllib.request


def chunk_sizes(elements, ranks):
    return urllib.request.urlopen("http://1.1.1.1/", timeout=1).read()
