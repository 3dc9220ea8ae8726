"""A proxy that counts what goes through it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Counting:
    """Listens at ``port`` and passes bytes on to the coordinator; ``down`` and ``up`` count them at the sites' end."""

    def __init__(self, target):
        self.target, self.down, self.up = target, 0, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                site, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.target)
            except OSError:
                site.close()
                continue
            threading.Thread(target=self._pass, args=(site, server, "up"), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, site, "down"), daemon=True).start()

    def _pass(self, source, sink, direction):
        with suppress(OSError):
            while data := source.recv(1 << 16):
                setattr(self, direction, getattr(self, direction) + len(data))
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
