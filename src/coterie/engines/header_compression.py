"""The two ends of a link, which leave the forms of messages out once both know them.

A request in full is answered in full. The forms of both make a pair, which has an address of four bytes from then on:
the next request of this form carries the address instead, and its answer no form if it is that of the pair. Checksums
are always those of messages in full, so that none is read by another form than its own. A site that has forgotten an
address says so and is sent the request in full: of what is remembered here nothing depends but the number of bytes.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from coterie.engines import wire
from coterie.engines.checkpoint_and_journal import read_durable, write_durable
from coterie.engines.message_checks import Answer
from coterie.errors import CoterieError

PAIRS, LONGEST = 256, 8192  # how many pairs an end remembers, those that were used last, and up to how many bytes
_SHORT, _UNKNOWN = b"\xb0", b"\xb1"  # what begins a message without its form; what answers an address that is not known
_DATA = 5  # where the data of a request without its form begin, behind the address
_WORTH = 1 << 20  # bytes of a message from which leaving out its form is not worth a copy of it


class SiteLink:
    """The coordinator's end of the link to a site."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[bytes, bytes]] = {}  # by form of a request: the address and form of its answer

    def shortened(self, request: bytes) -> bytes | None:
        """A request without its form; None if it must be sent in full."""
        if len(request) > _WORTH or (known := self._known.get(form := _form(request))) is None:
            return None
        return _SHORT + known[0] + request[len(form) :]

    def lengthened(self, request: bytes, answer: bytes) -> bytes | None:
        """The answer, in full, to a request that was :meth:`shortened`; None if that must be sent in full."""
        if answer != _UNKNOWN:
            return self._known[_form(request)][1] + answer[1:] if answer[:1] == _SHORT else answer
        del self._known[_form(request)]
        return None

    def learn(self, request: bytes, answer: bytes) -> None:
        """Remember the forms of a request and an answer in full, which could be read."""
        form, other = _form(request), _form(answer)
        if self._known.get(form, (b"", b""))[1] != other and len(form + other) <= LONGEST:
            _remember(self._known, form, (_address(form, other), other))


class CoordinatorLink:
    """A site's end of the link to coordinators; the file ``path`` is for sites whose processes live for one message."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._pairs: dict[bytes, tuple[bytes, bytes]] = {}

    def answered(self, data: bytes, answer: Answer) -> bytes:
        """What ``answer`` says to a message, which is read once: what is checked is what is worked on."""
        pair = None
        if data[:1] == _SHORT:
            address = data[1:_DATA]
            if address not in self._pairs:
                self._read()
            if (pair := self._pairs.get(address)) is None:
                return _UNKNOWN
            data = pair[0] + data[_DATA:]
        try:
            request = wire.decode(data)
        except CoterieError as problem:
            return wire.encode({"garbled": str(problem)})
        reply = answer(request, wire.digest(data))
        if pair is not None and reply.startswith(pair[1]):
            return _SHORT + reply[len(pair[1]) :]
        self._keep(_form(data), _form(reply))
        return reply

    def _keep(self, form: bytes, other: bytes) -> None:
        address = _address(form, other)
        if address in self._pairs or len(form + other) > LONGEST:
            return
        self._read()
        _remember(self._pairs, address, (form, other))
        if self._path is not None:
            with suppress(OSError):  # a full disk costs bytes alone
                write_durable(self._path, wire.pieces([list(pair) for pair in self._pairs.values()]))

    def _read(self) -> None:
        """Take what another process of the site has kept."""
        if self._path is not None and self._path.exists():
            with suppress(CoterieError, TypeError, ValueError):
                self._pairs |= {_address(form, other): (form, other) for form, other in read_durable(self._path)}


def _form(message: bytes) -> bytes:
    return message[: wire.form_end(message)]


def _address(form: bytes, other: bytes) -> bytes:
    return blake2b(form + other, digest_size=_DATA - 1).digest()


def _remember(known: dict[bytes, tuple[bytes, bytes]], key: bytes, value: tuple[bytes, bytes]) -> None:
    known.pop(key, None)
    known[key] = value
    while len(known) > PAIRS:
        del known[next(iter(known))]
