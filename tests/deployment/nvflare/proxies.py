"""Clients of a job in this process, called as NVFlare's proxies are: through its own serialisation, in threads."""

from __future__ import annotations

import threading
import time

from nvflare.fuel.utils import fobs

from coterie.deployment.nvflare.transport import CollabTransport


def travelled(value):
    """A value as it arrives at the other side."""
    return fobs.loads(fobs.dumps({"value": value}))["value"]


class Client:
    """One site; ``fault(number of the call)`` says what goes wrong: "lost", "late", "error", "dead" or nothing."""

    def __init__(self, name, receive, fault=lambda call: ""):
        self.name, self.receive, self.fault = name, receive, fault
        self.calls, self.probes, self.lives = 0, 0, True
        self._lock = threading.Lock()

    def __call__(self, timeout):
        return Call(self, timeout)


class Call:
    def __init__(self, client, timeout):
        self.client, self.timeout = client, timeout

    def alive(self):
        self.client.probes += 1
        return self._wait() if not self.client.lives else True

    def receive(self, data):
        client = self.client
        with client._lock:
            client.calls += 1
            fault = client.fault(client.calls)
            client.lives = fault != "dead"
            if fault == "error":
                raise RuntimeError("the call failed")
            if fault in ("lost", "dead"):
                return self._wait()
            reply = travelled(client.receive(travelled(data)))
            if fault == "late":
                time.sleep(2.0 * self.timeout)
            return reply

    def _wait(self):
        time.sleep(self.timeout)
        raise TimeoutError(f"no reply in {self.timeout} s")


def transport(receivers, faults=None, **options):
    """A transport to receivers that are here, and its clients by name."""
    clients = {n: Client(n, r, (faults or {}).get(n, lambda call: "")) for n, r in receivers.items()}
    return CollabTransport(clients.values(), **options), clients
