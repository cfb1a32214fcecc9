"""Sockets and headers that the pages of `serve` and `watch` share."""

from __future__ import annotations

import socket

from minitrain.errors import InputError

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


def listen(host: str, port: int) -> socket.socket:
    """Listens before the slow model load, so that a port in use is reported at once."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except OSError as error:
        raise InputError(
            f"--port {port} at {host} cannot be used ({error.strerror}): give another, or 0 for "
            "any that is free"
        ) from None
    return listening
