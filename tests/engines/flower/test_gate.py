"""The gate of a coordinator: sites' calls pass, all others are refused and logged."""

import asyncio
import logging

import pytest

pytest.importorskip("flwr")

import httpx

from coterie.deployment.flower_gate import Gate


async def reply():
    yield b"ans"
    yield b"wer"


def called(path, method="POST", status=200, content=b"question", **options):
    """What the gate answers, and what came through it."""
    seen = []

    async def behind(request):
        seen.append((request.url.path, await request.aread(), dict(request.headers)))
        if status is None:
            raise httpx.ConnectError("nobody there")
        return httpx.Response(status, content=reply(), headers={"content-type": "application/x-protobuf"})

    async def call():
        gate = Gate.__new__(Gate)
        gate._client = httpx.AsyncClient(transport=httpx.MockTransport(behind), base_url="https://127.0.0.1:1")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="https://fed.example.org") as outer:
            found = await outer.request(method, path, content=content, **options)
        await gate._client.aclose()
        return found

    return asyncio.run(call()), seen


def test_a_sites_call_passes_with_its_signature():
    answer, seen = called("/v1/fleet/pull-messages", headers={"x-signature": "s"}, content=bytes(100_000))
    assert answer.status_code == 200 and answer.content == b"answer"
    ((path, body, headers),) = seen
    assert path == "/v1/fleet/pull-messages" and body == bytes(100_000) and headers["x-signature"] == "s"
    assert headers["host"] == "127.0.0.1:1"


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/v1/control/start-run", "POST"),
        ("/v1/control/register-node", "POST"),
        ("/v1/runtime/acquire-task", "POST"),
        ("/health", "GET"),
        ("/docs", "GET"),
        ("/v1/fleet/pull-messages", "GET"),
        ("/v1/fleet/../control/start-run", "POST"),
        ("/v1/fleet/%2e%2e/control/start-run", "POST"),
        ("/v1/fleet//v1/control/start-run", "POST"),
        ("/v1/fleet/pull-messages?x=1", "POST"),
        ("/v1/fleet/", "POST"),
    ],
)
def test_nothing_else_passes(path, method, caplog):
    with caplog.at_level(logging.WARNING):
        answer, seen = called(path, method)
    assert answer.status_code == 403 and seen == []
    assert "only sites are served here" in caplog.text


def test_a_refusal_from_behind_is_passed_on_and_logged(caplog):
    with caplog.at_level(logging.WARNING):
        answer, _ = called("/v1/fleet/activate-node", status=401)
    assert answer.status_code == 401 and answer.content == b"answer"
    assert "refused 127.0.0.1 POST '/v1/fleet/activate-node': 401 answer" in caplog.text


def test_while_the_coordinator_starts_sites_are_asked_to_try_again(caplog):
    with caplog.at_level(logging.WARNING):
        answer, _ = called("/v1/fleet/activate-node", status=None)
    assert answer.status_code == 503 and "nobody there" in caplog.text


def test_half_a_call_is_not_passed_on_as_a_whole(caplog):
    whole, sent = [], []

    async def behind(request):
        whole.append(await request.aread())
        return httpx.Response(200)

    async def call():
        events = iter([{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}])

        async def receive():
            return next(events)

        async def send(event):
            sent.append(event)

        gate = Gate.__new__(Gate)
        gate._client = httpx.AsyncClient(transport=httpx.MockTransport(behind), base_url="https://127.0.0.1:1")
        scope = {"type": "http", "method": "POST", "path": "/v1/fleet/push-messages", "headers": []}
        with caplog.at_level(logging.WARNING):
            await gate(scope, receive, send)
        await gate._client.aclose()

    asyncio.run(call())
    assert not whole and not sent
    assert "its end never came" in caplog.text
