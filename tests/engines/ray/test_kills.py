"""Processes killed with SIGKILL at random moments: the run ends as if nothing had happened, to the last bit."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from coterie.engines.ray import Ray
from coterie.engines.ray.actors import ActorSlots
from coterie.engines.retry_and_quorum import Policy
from coterie.errors import CoterieError
from coterie.federation import PerRow, work
from coterie.methods.tree.penalised_tree import describe
from coterie.objectives.glm import GLM
from tests.contract.cases import quadratic
from tests.contract.test_laws import same
from tests.engines.ray.driver import run

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("pool")
kills = pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.soak) for s in range(1, 20))], ids=lambda s: f"seed {s}"
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A folder with rows of 12 clients, one of them in two files."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(12), 9)
    df = pd.DataFrame({"id": who, "group": who // 4, "x": rng.normal(size=108), "z": rng.normal(size=108)})
    df["y"] = (1.0 + df["group"]) * df["x"] + rng.normal(size=12)[who] + rng.normal(size=108)
    folder = tmp_path_factory.mktemp("kills") / "rows"
    folder.mkdir()
    for i, part in enumerate((df.iloc[:50], df.iloc[50:])):
        part.to_parquet(folder / f"part-{i}.parquet", index=False)
    return folder


def home(tmp_path, rows):
    (tmp_path / "rows").symlink_to(rows)
    return tmp_path


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture
def undisturbed(known, tmp_path_factory, rows):
    """All numbers of a run in which nothing happens."""
    if not known:
        known |= run(home(tmp_path_factory.mktemp("undisturbed"), rows))
    return known


@work
def double(site, x):
    site.state["x"] = 2.0 * x
    return {"x": site.state["x"]}


def test_a_deadline_leaves_out_a_slow_actor():
    problem = quadratic(8)
    with Ray(problem.objective, problem.clusters, ids=problem.ids) as fed:
        fed.ask(double, x=PerRow(np.ones(8)))  # which imports the work
        fed._retry.policy = Policy(deadline=1.0, retries=0)
        pid = ray.get(fed._slots.actors[1].run.remote(os.getpid))
        os.kill(pid, signal.SIGSTOP)
        try:
            replies = fed.ask(double, x=PerRow(np.ones(8)))
        finally:
            os.kill(pid, signal.SIGCONT)
        np.testing.assert_array_equal(replies.missing, fed.sites[1])


def test_counted_bytes_are_those_that_go_to_actors(monkeypatch):
    sent = {"down": 0, "up": 0}
    send = ActorSlots.send

    def counting(slots, messages, timeout):
        answers = send(slots, messages, timeout)
        sent["down"] += sum(map(len, messages.values()))
        sent["up"] += sum(map(len, answers.values()))
        return answers

    monkeypatch.setattr(ActorSlots, "send", counting)
    problem = quadratic(8)
    with Ray(problem.objective, problem.clusters, ids=problem.ids) as fed:
        fed.ask(double, x=PerRow(np.ones(8)))
        fed.total(double, x=PerRow(np.ones(8)))
        assert (fed.ledger.bytes_down, fed.ledger.bytes_up) == (sent["down"], sent["up"])
        assert sent["down"] > 2 * 64 and sent["up"] > 2 * 64


def test_each_actor_is_sent_the_rows_of_its_own_clients(monkeypatch):
    sent, put = [], ray.put
    monkeypatch.setattr(ray, "put", lambda data: sent.append(len(data)) or put(data))
    stops = np.array([10_000, 10_010, 20_000, 20_010])
    starts = np.array([0, *stops[:-1]])
    X, ones = np.ones((20_010, 1)), np.ones(20_010)
    objective = GLM(X, np.arange(20_010.0), 0.0 * ones, ones, starts, stops)
    with Ray(objective, sites=[[0], [1, 3], [2]]) as fed:
        moments = fed.ask(describe)
    assert 20 * 32 < sent[1] < 5000 and 320_000 < sent[0] < 330_000 and 319_000 < sent[2] < 330_000
    np.testing.assert_array_equal(moments["rows"], stops - starts)
    np.testing.assert_allclose(moments["y"], np.add.reduceat(np.arange(20_010.0), starts))


@kills
def test_actors_that_are_killed_change_nothing(seed, undisturbed, rows, tmp_path, monkeypatch):
    rng = np.random.default_rng(seed)
    moments = set(rng.integers(1, undisturbed["exchanges"], 2 if seed == 0 else 6).tolist())
    slots, killed = [], []
    opened = ActorSlots.open
    monkeypatch.setattr(ActorSlots, "open", lambda self, *args: (slots.append(self), opened(self, *args))[1])

    def kill(pid):
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    def watch(exchanged):
        if exchanged.number in moments:
            victim = slots[0].actors[int(rng.integers(2))]
            threading.Timer(rng.exponential(0.003), kill, [ray.get(victim.run.remote(os.getpid), timeout=30)]).start()

    same(run(home(tmp_path, rows), folder=tmp_path / "state", watch=watch), undisturbed)
    assert killed


def processes():
    """Numbers of the processes of actors on this machine, and of those that began them."""
    found = set()
    for at in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (at / "cmdline").read_bytes().startswith(b"ray::ActorSlot"):
                found.add((int(at.name), int((at / "stat").read_text().rpartition(")")[2].split()[1])))
    return found


def wait_for(happens, seconds=60):
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.1)


@contextmanager
def driving(address, folder, killed):
    """The driver of a run, which is ``killed`` at the end of the block, or waited for."""
    script, root = Path(__file__).with_name("driver.py"), Path(__file__).parents[3]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    driver = subprocess.Popen(
        [sys.executable, script, address, folder], stdout=subprocess.PIPE, text=True, env=environment, cwd=root
    )
    guard = threading.Timer(240, driver.kill)
    guard.start()
    try:
        yield driver
    finally:
        if killed is not None or sys.exc_info()[0] is not None:
            driver.kill()
        driver.stdout.close()
        assert driver.wait(60) == (0 if killed is None else -signal.SIGKILL)
        guard.cancel()


@kills
def test_a_driver_that_is_killed_goes_on_where_it_stood(seed, undisturbed, rows, tmp_path):
    rng = np.random.default_rng(seed)
    folder, last = home(tmp_path, rows), 0
    total = int(undisturbed["exchanges"])
    ends = sorted(rng.integers(1, total, 1 if seed == 0 else 3).tolist())
    before = processes()
    for end in [*ends, None]:
        with driving(ray.get_runtime_context().gcs_address, folder, end) as driver:
            for line in driver.stdout:
                last = int(line)
                if end is not None and last >= end:
                    threading.Event().wait(rng.exponential(0.003))
                    break
        wait_for(lambda: processes() <= before)  # no actor outlives its driver
    assert last == total
    with np.load(folder / "found.npz") as found:
        same(dict(found), undisturbed)


@pytest.mark.soak
def test_without_a_folder_an_actor_that_dies_ends_the_run_in_a_sentence():
    problem = quadratic(8)
    with Ray(problem.objective, problem.clusters, ids=problem.ids) as fed:
        fed.ask(double, x=PerRow(np.ones(8)))
        os.kill(ray.get(fed._slots.actors[0].run.remote(os.getpid)), signal.SIGKILL)
        with pytest.raises(CoterieError, match=r"site 0 .*begin with empty folders"):
            fed.ask(double, x=PerRow(np.ones(8)))


@pytest.mark.soak
def test_a_node_that_is_killed_changes_nothing(undisturbed, rows, tmp_path):
    from ray.cluster_utils import Cluster

    room = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
    head = {"num_cpus": 2, "_system_config": {"max_direct_call_object_size": 0}, **room}  # all objects lie at nodes
    cluster, folder, gone = Cluster(initialize_head=True, head_node_args=head), None, False
    try:
        node, folder = cluster.add_node(num_cpus=1, **room), home(tmp_path, rows)
        raylet = node.all_processes["raylet"][0].process.pid
        with driving(cluster.address, folder, None) as driver:
            for line in driver.stdout:
                if not gone and int(line) >= undisturbed["exchanges"] // 2:
                    assert [parent for _, parent in processes()].count(raylet) == 1
                    cluster.remove_node(node, allow_graceful=False)
                    gone = True
    finally:
        cluster.shutdown()
    assert gone
    with np.load(folder / "found.npz") as found:
        same(dict(found), undisturbed)


def kill_at_checkpoint(folder, command, how):
    driver = subprocess.Popen(command, **how)
    try:
        wait_for(lambda: driver.poll() is not None or any(folder.glob("**/checkpoint")), 240)
    finally:
        driver.kill()
    assert driver.wait(60) == -signal.SIGKILL


@pytest.mark.soak
def test_a_training_whose_driver_is_killed_goes_on(tmp_path):
    address, before = ray.get_runtime_context().gcs_address, processes()
    text = """
        data = {{ partition = "rotated", clients = 12, rows = 360 }}
        engine = {{ kind = "ray", address = "{}" }}
        method = {{ name = "ditto" }}
        run = {{ rounds = 30, checkpoint = "points", checkpoint_every = 2 }}
    """
    found = []
    for folder in (tmp_path / "killed", tmp_path / "undisturbed"):
        folder.mkdir()
        (folder / "call.toml").write_text(text.format(address), encoding="utf-8")
        command = [sys.executable, "-c", "import sys; from coterie.cli.main import main; main(sys.argv[1:])"]
        command += ["fit", folder / "call.toml", "--out", folder / "out"]
        how = {"env": os.environ | {"RAY_AUTH_MODE": "disabled"}, "cwd": folder}
        if folder.name == "killed":
            kill_at_checkpoint(folder, command, how)
            wait_for(lambda: processes() <= before)
            command.append("--resume")
        subprocess.run(command, **how, check=True, timeout=300)
        found.append({f.name: load_file(f) for f in sorted((folder / "out").rglob("*.safetensors"))})
    assert found[0]
    for name, arrays in found[1].items():
        same(found[0][name], arrays)
