"""The only door of a Flower coordinator: what sites need goes through, everything else is refused and logged.

A SuperLink of Flower 1.42 serves three interfaces at one port: sites ("fleet"), whose calls are signed with the site's
registered key, but also operators ("control") and programs ("runtime"), which ask for no key at all: whoever reached
the port could register a key of their own, or have their code run at every site. So the SuperLink listens on this
machine alone, and this door, with the coordinator's certificate, lets through nothing but calls to "fleet".
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

FLEET = re.compile(r"/v1/fleet/[a-z-]+")
_DROPPED = {b"host", b"connection", b"transfer-encoding", b"keep-alive", b"upgrade"}  # of one connection alone
log = logging.getLogger(__name__)
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class _Gone(Exception):
    """Whoever called has gone before the end of the call: half of it must not be passed on as a whole."""


class Gate:
    """An ASGI app that passes calls on to the SuperLink at ``address``, checked against the authority ``ca``."""

    def __init__(self, address: str, ca: Path) -> None:
        import httpx

        context = ssl.create_default_context(cafile=str(ca))
        self._client = httpx.AsyncClient(base_url=address, verify=context, timeout=60.0, trust_env=False)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one call."""
        import httpx

        where = f"{(scope.get('client') or ('?',))[0]} {scope.get('method', scope['type'])} {scope.get('path', '')!r}"
        allowed = scope["type"] == "http" and scope["method"] == "POST" and FLEET.fullmatch(scope["path"])
        if not allowed or scope.get("query_string"):
            log.warning("refused %s: only sites are served here", where)
            if scope["type"] == "http":
                await _plain(send, 403, b"Only sites are served here.")
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
    """A request's body as it comes in."""
    more = True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _Gone
        more = event.get("more_body", False)
        yield event.get("body", b"")


async def _plain(send: Send, status: int, body: bytes, kind: str = "text/plain") -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]})
    await send({"type": "http.response.body", "body": body})


def server(gate: Gate, host: str, port: int, certificate: Path) -> Any:
    """The server of a gate at ``host:port`` with ``certificate``.crt and .key: call its ``run``."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            gate,
            host=host,
            port=port,
            ssl_certfile=str(certificate.with_suffix(".crt")),
            ssl_keyfile=str(certificate.with_suffix(".key")),
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
    )
