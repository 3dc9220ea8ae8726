"""What a message costs on the wire: payloads, Flower's own count, and all bytes that a relay between them sees."""

import socket
import threading
from contextlib import contextmanager

import pytest

pytest.importorskip("flwr")

from coterie.deployment.flower import operator_commands as flower
from coterie.deployment.processes import free_port
from tests.deployment.flower.deployed import deployed

pytestmark = pytest.mark.soak


class Relay:
    """Passes TCP connections on to a port of this machine and counts the bytes each way."""

    def __init__(self, port):
        self.port, self.down, self.up = free_port(), 0, 0
        self._to = port
        self._server = socket.create_server(("127.0.0.1", self.port))
        self._open, self._threads = [], []
        self._spawn(self._accept)

    def _spawn(self, target, *args):
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            self._open += [near, far]
            self._spawn(self._pass, near, far, "up")
            self._spawn(self._pass, far, near, "down")

    def _pass(self, source, target, way):
        try:
            while data := source.recv(1 << 16):
                setattr(self, way, getattr(self, way) + len(data))
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            end.close()

    def close(self):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for end in self._open:
            end.close()
        for thread in self._threads:
            thread.join(10.0)


@contextmanager
def relayed(here, name):
    """Site ``name`` reaches the coordinator through a relay."""
    relay = Relay(here.config.port)
    from dataclasses import replace

    replace(here.config, port=relay.port).write(here.site(name))
    try:
        yield relay
    finally:
        relay.close()


def test_the_ledger_against_flowers_count_and_a_relay(tmp_path):
    with deployed(tmp_path, sites=("a",)) as here, relayed(here, "a") as relay:
        here.start()
        here.run("small", steps=1)
        before = relay.down, relay.up
        told, traffic = {}, {}
        for name, padding in (("bare", 0), ("thick", 2_000_000)):
            told[name] = here.run(name, steps=1, padding=padding)
            after = relay.down, relay.up
            wire = after[0] - before[0], after[1] - before[1]
            before = after
            job = flower.status(here.coordinator)["jobs"]
            job = max(job, key=lambda j: j["running-at"])
            traffic[name] = job["network-traffic"]
            n = told[name]["exchanges"] + 1  # and who is there
            payload = told[name]["bytes_down"], told[name]["bytes_up"]
            flwr = traffic[name]["outbound-bytes"], traffic[name]["inbound-bytes"]
            print(name, "messages", n, "payload", payload, "flower", flwr, "relay", wire)
            for i in range(2):
                # Flower counts objects and messages; the relay sees TLS, headers, heartbeats and polls too.
                assert payload[i] < wire[i]
                assert flwr[i] - payload[i] < 3000 * n
                assert wire[i] - payload[i] < 60_000 + 12_000 * n + 0.01 * payload[i]
        assert told["thick"]["bytes_down"] - told["bare"]["bytes_down"] > 2_000_000
