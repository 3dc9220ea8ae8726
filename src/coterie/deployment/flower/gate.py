"""The only door of a Flower coordinator: what sites need goes through, everything else is refused and logged.

A SuperLink of Flower 1.42 serves three interfaces at one port: sites ("fleet"), whose calls are signed with the site's
registered key, but also operators ("control") and programs ("runtime"), which ask for no key at all: whoever reached
the port could register a key of their own, or have their code run at every site. So the SuperLink listens on this
machine alone, and this door, with the coordinator's certificate, lets through nothing but calls to "fleet".

The SuperLink reads a whole call before it looks at the signature, so the door looks first: of whoever has not signed
with a registered key it reads the head of one call, for seconds, and no body.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import httpx
import uvicorn
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from uvicorn.protocols.http.h11_impl import H11Protocol

from coterie.deployment.flower.supervisor import UNSIGNED

FLEET = re.compile(r"/v1/fleet/[a-z-]+")
_DROPPED = {b"host", b"connection", b"transfer-encoding", b"keep-alive", b"upgrade"}  # of one connection alone
_KEY, _SIGNED, _SIGNATURE = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
_UNKNOWN = json.dumps(  # in the form of Flower's errors; 401 and 403 end its SuperNode without a word
    {
        "code": 400,
        "detail": "The coordinator does not know this site's key: if it was revoked, ask for another ('coterie "
        "federation request'); else copy the site's folder from it again.",
    }
).encode()
LARGEST = 1 << 31  # bytes of a call; Flower's messages are smaller
PATIENCE = 20.0  # seconds until the head of a connection's first call must be here
PAUSE = 60.0  # seconds between two parts of a site's call
WAITING = 200  # connections that have not called yet; a further one takes the place of the oldest
log = logging.getLogger(__name__)
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class _Gone(Exception):
    """Whoever called has gone before the end of the call: half of it must not be passed on as a whole."""


class Gate:
    """An ASGI app that passes calls on to the SuperLink at ``address``, checked against the authority ``ca``.

    Only calls that are signed with one of ``keys``, a folder of the sites' public keys as it is now, are passed on.
    """

    def __init__(self, address: str, ca: Path, keys: Path) -> None:
        self._folder, self._stamp, self._keys = keys, 0, dict[bytes, Any]()
        context = ssl.create_default_context(cafile=str(ca))
        self._client = httpx.AsyncClient(base_url=address, verify=context, timeout=60.0, trust_env=False)

    def _read_keys(self) -> None:
        """Read the folder again when a key was added, or taken away."""
        if (stamp := self._folder.stat().st_mtime_ns) != self._stamp:
            self._keys, self._stamp = _public(self._folder), stamp

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one call."""
        where = f"{(scope.get('client') or ('?',))[0]} {scope.get('method', scope['type'])} {scope.get('path', '')!r}"
        allowed = scope["type"] == "http" and scope["method"] == "POST" and FLEET.fullmatch(scope["path"])
        if not allowed or scope.get("query_string"):
            log.warning("refused %s: only sites are served here", where)
            if scope["type"] == "http":
                await _plain(send, 403, b"Only sites are served here.")
            return
        self._read_keys()
        if not _signed(dict(scope["headers"]), self._keys):
            log.warning("refused %s: %s", where, UNSIGNED)
            await _plain(send, 400, _UNKNOWN, "application/json")
            return
        headers = [(k, v) for k, v in scope["headers"] if k.lower() not in _DROPPED]
        request = self._client.build_request("POST", scope["path"], headers=headers, content=_body(receive))
        try:
            answer = await self._client.send(request, stream=True)
        except _Gone:
            log.warning("not passed on %s: its end never came", where)
            return
        except httpx.TransportError as problem:
            log.warning("not passed on %s: %s", where, problem or type(problem).__name__)
            await _plain(send, 503, b"The coordinator is not ready: try again.")
            return
        try:
            if answer.status_code >= 400:
                text = (await answer.aread()).decode(errors="replace")
                log.warning("refused %s: %d %s", where, answer.status_code, " ".join(text.split())[:300])
                await _plain(send, answer.status_code, text.encode(), answer.headers.get("content-type", "text/plain"))
                return
            passed = [(k, v) for k, v in answer.headers.raw if k.lower() not in _DROPPED]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": passed})
            async for part in answer.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answer.aclose()


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    """A request's body as it comes in, as long as it does and is not too large."""
    more, size = True, 0
    while more:
        try:
            event = await asyncio.wait_for(receive(), PAUSE)
        except TimeoutError:
            raise _Gone from None
        size += len(event.get("body", b""))
        if event["type"] == "http.disconnect" or size > LARGEST:
            raise _Gone
        more = event.get("more_body", False)
        yield event.get("body", b"")


def _public(folder: Path) -> dict[bytes, Any]:
    """The sites' public keys by the form in which calls name them."""
    keys = [load_ssh_public_key(path.read_bytes()) for path in sorted(folder.glob("*.pub"))]
    return {key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo): key for key in keys}


def _signed(headers: dict[bytes, bytes], keys: dict[bytes, Any]) -> bool:
    """Whether a call's time is signed with the key of a site; whose, and when, is for the SuperLink to check."""
    try:
        key = keys[b64decode(headers[_KEY], validate=True)]
        key.verify(b64decode(headers[_SIGNATURE], validate=True), headers[_SIGNED], ECDSA(SHA256()))
    except (KeyError, ValueError, InvalidSignature):
        return False
    return True


async def _plain(send: Send, status: int, body: bytes, kind: str = "text/plain") -> None:
    headers = [(b"content-type", kind.encode()), (b"connection", b"close")]  # what else was sent is not read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def server(gate: Gate, host: str, port: int, certificate: Path) -> Any:
    """The server of a gate at ``host:port`` with ``certificate``.crt and .key: call its ``run``."""
    _many_files()
    return uvicorn.Server(
        uvicorn.Config(
            gate, host=host, port=port, http=_Patient, lifespan="off", ws="none",
            ssl_certfile=str(certificate.with_suffix(".crt")), ssl_keyfile=str(certificate.with_suffix(".key")),
            access_log=False, log_config=None, server_header=False, proxy_headers=False, timeout_graceful_shutdown=2,
        )
    )  # fmt: skip


class _Patient(H11Protocol):
    """A connection that must call within :data:`PATIENCE` seconds; at most :data:`WAITING` have yet to."""

    waiting: ClassVar[dict[Any, asyncio.TimerHandle]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override, unused-ignore]
        """Begin to wait for a call."""
        super().connection_made(transport)
        self.waiting[self] = self.loop.call_later(PATIENCE, self.give_up)
        if len(self.waiting) > WAITING:
            next(iter(self.waiting)).give_up()

    def data_received(self, data: bytes) -> None:
        """Wait no more once the head of a call is here."""
        super().data_received(data)
        if self.cycle is not None:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Close the connection at once."""
        self._stop()
        self.transport.abort()

    def _stop(self) -> None:
        if (timer := self.waiting.pop(self, None)) is not None:
            timer.cancel()


def _many_files() -> None:
    """Let this process have as many connections as the system lets it, so that strangers' do not use them up."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
