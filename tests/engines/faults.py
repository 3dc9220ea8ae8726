"""The loopback engine where messages are lost or damaged, and sites die."""

from dataclasses import dataclass

from coterie.engines import local_engines
from coterie.engines.retry_and_quorum import Policy
from coterie.engines.site import Node
from coterie.numerics import keyed_random

MOMENTS = ("received", "ran", "saved")


@dataclass(frozen=True)
class Faults:
    """What goes wrong. A number is a probability for each attempt, keyed by (seed, exchange, site, attempt).

    A function ``(exchange, site) -> bool`` is asked at every attempt, so one that depends on its arguments alone makes
    the site miss the exchange. A site that crashes dies during the call and comes back from its folder; when is drawn:
    before the work, after it, or after its result was saved.
    """

    request: object = 0.0  # a message to a site is lost
    reply: object = 0.0  # a message back is lost
    damage: object = 0.0  # a byte of a message is changed
    crash: object = 0.0
    seed: int = 0

    def draw(self, what, exchange, site, attempt):
        """A keyed uniform number."""
        return float(keyed_random.uniform(self.seed, f"fault/{what}", [site], exchange * 4096 + attempt, 1)[0, 0])

    def happens(self, what, exchange, site, attempt):
        """Whether the fault ``what`` strikes this attempt."""
        rule = getattr(self, what)
        if callable(rule):
            return rule(exchange, site)
        return rule > 0 and self.draw(what, exchange, site, attempt) < rule


class CrashError(BaseException):
    """A site died: not an Exception, so that the site cannot report it."""


class Mortal(Node):
    """A site that dies on its way through an exchange, at the moment that is named ``dying``."""

    dying = ""

    def receive(self, data):
        """Answer one message."""
        self._reach("received")
        return super().receive(data)

    def _work(self, request, total):
        reply = super()._work(request, total)
        self._reach("ran")
        return reply

    def _save(self):
        super()._save()
        self._reach("saved")

    def _reach(self, moment):
        if moment == self.dying:
            raise CrashError


class Loopback(local_engines.Loopback):
    """With ``faults``; ``tap(direction, site, data)`` sees all that is sent, "down" or "up", lost messages included."""

    def __init__(self, *data, faults=None, retries=10, policy=None, tap=None, folder=None, **options):
        self._faults, self._tap = faults or Faults(), tap or (lambda *_: None)
        assert self._faults.crash == 0 or folder is not None, "sites that crash need a folder to come back from"
        super().__init__(*data, policy=policy or Policy(retries=retries), folder=folder, **options)

    def kill(self, site):
        """End a site at once; it does not answer until :meth:`revive`."""
        self._nodes[site] = None

    def revive(self, site):
        """Start a site again from its folder (without one, it has forgotten everything)."""
        self._nodes[site] = self._node(site)

    def deliver(self, site, data, attempt):
        """Carry bytes to a site and back through everything that may go wrong."""
        self.ledger.bytes_down += len(data)
        self._tap("down", site, data)
        node = self._nodes[site]
        if node is None or self._strikes("request", site, attempt):
            return None
        if self._strikes("damage", site, attempt):
            place = int(self._faults.draw("place", self.number, site, attempt) * len(data))
            data = data[:place] + bytes([data[place] ^ 85]) + data[place + 1 :]
        if self._strikes("crash", site, attempt):
            node.dying = MOMENTS[int(3 * self._faults.draw("moment", self.number, site, attempt))]
        try:
            answer = node.receive(data)
        except CrashError:
            self.revive(site)
            return None
        finally:
            if isinstance(node, Mortal):
                node.dying = ""
        self.ledger.bytes_up += len(answer)
        self._tap("up", site, answer)
        return None if self._strikes("reply", site, attempt) else answer

    def _strikes(self, what, site, attempt):
        return self._faults.happens(what, self.number, site, attempt)

    def _node(self, site):
        return super()._node(site, Mortal)
