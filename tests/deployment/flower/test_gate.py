"""The gate of a coordinator: sites' calls pass, all others are refused and logged."""

import asyncio
import logging
import socket
import ssl
import threading
import time
from base64 import b64encode
from contextlib import contextmanager

import pytest

pytest.importorskip("flwr")

import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coterie.deployment import certificates
from coterie.deployment.flower import gate as module
from coterie.deployment.flower.gate import Gate, server

KEY = ec.generate_private_key(ec.SECP384R1())
PEM = KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)  # fmt: skip


def signed(key=KEY, pem=PEM, when="2026-01-01T00:00:00+00:00"):
    """Headers with which Flower's client signs a call."""
    signature = key.sign(when.encode(), ec.ECDSA(hashes.SHA256()))
    encoded = {"flwr-public-key": b64encode(pem).decode(), "flwr-signature": b64encode(signature).decode()}
    return encoded | {"flwr-timestamp": when}


def made(behind):
    """A gate of one site's key, before a SuperLink that a function plays."""
    gate = Gate.__new__(Gate)
    gate._keys, gate._read_keys = {PEM: KEY.public_key()}, lambda: None
    gate._client = httpx.AsyncClient(transport=httpx.MockTransport(behind), base_url="https://127.0.0.1:1")
    return gate


async def reply():
    yield b"ans"
    yield b"wer"


def called(path, method="POST", status=200, content=b"question", headers=None, **options):
    """What the gate answers, and what came through it."""
    seen = []

    async def behind(request):
        seen.append((request.url.path, await request.aread(), dict(request.headers)))
        if status is None:
            raise httpx.ConnectError("nobody there")
        return httpx.Response(status, content=reply(), headers={"content-type": "application/x-protobuf"})

    async def call():
        gate, sent = made(behind), signed() if headers is None else headers
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="https://fed.example.org") as outer:
            found = await outer.request(method, path, content=content, headers=sent, **options)
        await gate._client.aclose()
        return found

    return asyncio.run(call()), seen


def test_a_sites_call_passes_with_its_signature():
    answer, seen = called("/v1/fleet/pull-messages", content=bytes(100_000))
    assert answer.status_code == 200 and answer.content == b"answer"
    ((path, body, headers),) = seen
    assert path == "/v1/fleet/pull-messages" and body == bytes(100_000) and headers.keys() >= signed().keys()
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

        gate = made(behind)
        headers = [(k.encode(), v.encode()) for k, v in signed().items()]
        scope = {"type": "http", "method": "POST", "path": "/v1/fleet/push-messages", "headers": headers}
        with caplog.at_level(logging.WARNING):
            await gate(scope, receive, send)
        await gate._client.aclose()

    asyncio.run(call())
    assert not whole and not sent
    assert "its end never came" in caplog.text


def stranger():
    return ec.generate_private_key(ec.SECP384R1())


UNSIGNED = {
    "nothing": {},
    "another key": signed(other := stranger(), other.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )),
    "a site's key without its secret": signed(stranger(), PEM),
    "another time": signed() | {"flwr-timestamp": "2027-01-01T00:00:00+00:00"},
    "no base64": signed() | {"flwr-signature": "?"},
    "no key": signed() | {"flwr-public-key": ""},
}  # fmt: skip


@pytest.mark.parametrize("headers", UNSIGNED.values(), ids=UNSIGNED)
def test_who_has_not_signed_with_a_sites_key_is_refused_at_once(headers, caplog):
    with caplog.at_level(logging.WARNING):
        answer, seen = called("/v1/fleet/pull-messages", headers=headers)
    assert answer.status_code == 400 and seen == [] and answer.headers["connection"] == "close"
    assert "refused 127.0.0.1 POST '/v1/fleet/pull-messages': not signed with the key of a site" in caplog.text
    from flwr.supercore.error import FlowerError

    assert "does not know this site's key" in FlowerError.from_json(answer.text).message


def test_calls_are_signed_as_flower_does(tmp_path):
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    certificates.node_key(tmp_path / "a.key", tmp_path / "nodes" / "a.pub")
    key = serialization.load_ssh_private_key((tmp_path / "a.key").read_bytes(), None)
    headers = {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(key.public_key())),
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, b"now")),
        TIMESTAMP_HEADER: b"now",
    }
    public = module._public(tmp_path / "nodes")
    assert module._signed({name.encode(): value for name, value in headers.items()}, public)


@contextmanager
def opened(folder, monkeypatch, behind):
    """A gate at a real port; (port, TLS context of a caller)."""
    monkeypatch.setattr(module, "PATIENCE", 2.0)
    monkeypatch.setattr(module, "WAITING", 100)
    certificates.authority(folder, "test", 1.0)
    certificates.certificate(folder, folder / "server", "127.0.0.1", 1.0)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    gate = server(made(behind), "127.0.0.1", port, folder / "server")
    thread = threading.Thread(target=gate.run)
    thread.start()
    try:
        while not gate.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield port, ssl.create_default_context(cafile=folder / "ca.crt")
    finally:
        gate.should_exit = True
        thread.join(20.0)
        assert not thread.is_alive()


def closed(connection):
    """Whether the other side closes a connection within seconds."""
    connection.settimeout(20.0)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


HEAD = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\n"


def test_strangers_that_are_slow_many_or_huge_do_not_stop_the_sites(tmp_path, monkeypatch):
    came = []

    async def behind(request):
        came.append(len(await request.aread()))
        return httpx.Response(200, content=reply())

    with opened(tmp_path, monkeypatch, behind) as (port, context):

        def connected():
            return context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1")

        def site():
            with httpx.Client(verify=context, trust_env=False, timeout=20.0) as client:
                for _ in range(3):
                    url = f"https://127.0.0.1:{port}/v1/fleet/pull-messages"
                    assert client.post(url, content=bytes(300_000), headers=signed()).content == b"answer"

        site()
        bare = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]  # not even TLS
        idle = [connected() for _ in range(200)]
        site()
        slow, huge, endless = connected(), connected(), connected()
        slow.sendall(HEAD + b"X-A: b")
        huge.sendall(HEAD + b"Content-Length: 1000000000\r\n\r\n" + bytes(1000))
        endless.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n" + bytes(1000))
        site()
        assert closed(huge) and closed(endless)
        assert all(closed(connection) for connection in (slow, *idle))
        site()
        for connection in (*bare, *idle, slow, huge, endless):
            connection.close()
    assert came == [300_000] * 12


def test_a_sites_call_that_stops_half_way_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0.5)

    async def behind(request):
        await request.aread()
        return httpx.Response(200, content=reply())

    with opened(tmp_path, monkeypatch, behind) as (port, context):
        plain = socket.create_connection(("127.0.0.1", port))
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            lines = "".join(f"{name}: {value}\r\n" for name, value in signed().items())
            connection.sendall(HEAD + lines.encode() + b"Content-Length: 1000000000\r\n\r\n" + bytes(1000))
            assert closed(connection)
