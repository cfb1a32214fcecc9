"""The emulated network: links with latency and bandwidth, fabrics, each rank's logical clock.

from minitrain.network import FABRICS, Fabric, Link
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "FABRICS": "fabric",
        "Fabric": "fabric",
        "Link": "links",
    },
)
