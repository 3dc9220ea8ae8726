"""Who is refused, where that is logged, and that runs of the others go on. Sites outside are real SuperNodes."""

import shutil
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

pytest.importorskip("flwr")

from coterie.deployment import certificates
from coterie.deployment.flower import operator_commands as flower
from coterie.deployment.flower.supervisor import environment, program
from coterie.deployment.processes import free_port
from coterie.errors import CoterieError
from tests.deployment.flower.deployed import deployed

pytestmark = pytest.mark.soak


def until(happens, seconds=60.0):
    end = time.monotonic() + seconds
    while not happens() and time.monotonic() < end:
        time.sleep(0.5)
    assert happens()


@contextmanager
def copied(here, name, change):
    """A site made from the folder of site a, with something changed."""
    folder = here.root / "outside" / name
    shutil.copytree(here.site("a"), folder)
    change(folder / "flower")
    process = flower.start_site(folder)
    try:
        yield folder / "flower"
    finally:
        flower.stop(folder)
        process.wait(30.0)


@contextmanager
def bare(here, name, *options):
    """A SuperNode started by hand."""
    folder = here.root / "outside" / name
    (folder / "flower").mkdir(parents=True)
    command = [program("flower-supernode"), "--superlink", f"127.0.0.1:{here.config.port}"]
    command += ["--port", str(free_port()), "--isolation", "process", *options]
    with (folder / "flower" / "supernode.txt").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment(folder), start_new_session=True)
    try:
        yield folder / "flower"
    finally:
        process.terminate()
        try:
            process.wait(15.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def other_ca(files):
    certificates.authority(files / "other", "other", 365.0)
    shutil.copy(files / "other" / "ca.crt", files / "ca.crt")


def other_key(files):
    certificates.node_key(files / "node.key", files / "node.pub")


def test_strangers_are_refused_and_the_run_is_unharmed(tmp_path):
    with ExitStack() as stack:
        here = stack.enter_context(deployed(tmp_path))
        here.start()
        ca = str(here.site("a") / "flower" / "ca.crt")
        wrong_ca = stack.enter_context(copied(here, "wrong-ca", other_ca))
        unregistered = stack.enter_context(copied(here, "unregistered", other_key))
        plain = stack.enter_context(bare(here, "plain", "--insecure"))
        keyless = stack.enter_context(bare(here, "keyless", "--root-certificates", ca))
        for folder in (wrong_ca, unregistered, plain, keyless):
            until(lambda folder=folder: (folder / "supernode.txt").exists())
        here.run("among-strangers", steps=3, timeout=300.0)
        here.need_result("among-strangers", 3)
        says = {f.parent.name: (f / "supernode.txt").read_text() for f in (wrong_ca, unregistered, plain, keyless)}
        gate = here.log("coordinator", "flower", "log.txt")
        print({name: text[-600:] for name, text in says.items()}, gate[-3000:])
        assert "CERTIFICATE_VERIFY_FAILED" in says["wrong-ca"] or "certificate verify failed" in says["wrong-ca"]
        assert "No SuperNode found" in says["unregistered"] or "code" in says["unregistered"]
        assert "refused 127.0.0.1 POST '/v1/fleet/activate-node'" in gate
        assert "refused 127.0.0.1 POST '/v1/fleet/register-node'" in gate
        assert set(flower.status(here.coordinator)["sites"].values()) == {"online"}


def test_nobody_can_give_orders_through_the_gate(tmp_path):
    with deployed(tmp_path) as here:
        here.start()
        home = tmp_path / "outside" / "flower" / "home"
        home.mkdir(parents=True)
        ca = here.site("a") / "flower" / "ca.crt"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "x"\n[superlink.x]\naddress = "127.0.0.1:{here.config.port}"\n'
            f'root-certificates = "{ca}"\n'
        )
        certificates.node_key(tmp_path / "mine.key", tmp_path / "mine.pub")
        for order in (["supernode", "register", str(tmp_path / "mine.pub")], ["supernode", "list"], ["list"]):
            done = subprocess.run(
                [program("flwr"), *order, "--format", "json"],
                env=environment(tmp_path / "outside"),
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert '"success": true' not in done.stdout
        gate = here.log("coordinator", "flower", "log.txt")
        assert gate.count("only sites are served here") >= 3


def test_a_certificate_that_has_ended_is_refused_by_the_sites(tmp_path, monkeypatch):
    with deployed(tmp_path) as here:
        files = here.coordinator / "flower"
        certificates.certificate(tmp_path / "authority", files / "server", "127.0.0.1", days=-1.0)
        with pytest.raises(CoterieError, match="ended on"):
            flower.start_coordinator(here.coordinator)
        here.processes.append(flower.start_site(here.site("a")))
        # The gate alone, as the SuperLink's own tools refuse the certificate too.
        from coterie.deployment.flower.gate import Gate, server

        gate = server(
            Gate("https://127.0.0.1:1", files / "ca.crt", files / "nodes"),
            *("127.0.0.1", here.config.port, files / "server"),
        )
        thread = threading.Thread(target=gate.run)
        thread.start()
        try:
            until(lambda: "expired" in here.log("sites", "a", "flower", "supernode.txt"))
        finally:
            gate.should_exit = True
            thread.join(30.0)
