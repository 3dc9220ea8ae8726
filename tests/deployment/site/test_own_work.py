"""Work of one's own over sites of a federation: only modules that a site's owner allows are ever imported there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from coterie.deployment.coordinator.run import function, run
from coterie.deployment.coordinator.run_toml import RunConfig
from coterie.deployment.federation_toml import Config
from coterie.deployment.site import prepared_data
from coterie.deployment.site.receiver import SiteReceiver
from coterie.deployment.site.site_toml import Member
from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.federation import work
from tests.deployment.hospitals import begin, transport
from tests.deployment.sites import say
from tests.messages import names

ROOT = Path(__file__).resolve().parents[3]
SITES = ("east", "north", "west")
WORK = "from coterie.federation import work\n@work\ndef pull(site):\n    return {}\nprint('imported', __name__)\n"


def page(name: str) -> str:
    """The text of the file that docs/federation.md shows."""
    text = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
    return re.search(rf"<!-- file: {name} -->\n```\w+\n(.*?)```\n", text, flags=re.DOTALL)[1]


def factory() -> str:
    """The objective that docs/hospitals.md makes."""
    text = (ROOT / "docs" / "hospitals.md").read_text(encoding="utf-8")
    return next(block for block in re.findall(r"```python\n(.*?)```\n", text, flags=re.DOTALL) if "def make" in block)


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    """What is imported under these names goes in the end."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("mine", "models"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        del sys.modules[name]


def test_the_method_of_the_documentation_runs_over_sites(tmp_path):
    config = Config("toy", "nvflare", sites=SITES)
    coordinator, homes = tmp_path / "coordinator", [tmp_path / "sites" / name for name in SITES]
    for home in (coordinator, *homes):
        home.mkdir(parents=True)
        config.write(home)
        (home / "mine.py").write_text(page("mine.py"))
    for home in homes:
        (home / "models.py").write_text(factory())
        Member(home.name, allow=("models:make", "mine"), ask=("coterie.*", "mine:*")).write(home)
    assert len(page("mine.py").splitlines()) < 60
    task = {"factory": "models:make", "options": {"rows": 40}}
    program = {"program": "mine:program", "task": task, "options": {"rounds": 3, "lam": 0.5}, "seed": 4}
    home = begin(coordinator, "own", program)
    run(transport(homes), coordinator, "own")
    assert json.loads((home / "result" / "result.json").read_text()) == {"rounds": 3}
    names: dict = {}
    exec(factory(), names)  # noqa: S102
    made = [names["make"]("", site)[0] for site in SITES]
    sys.path.insert(0, str(coordinator))
    from mine import program as alone

    from coterie.objectives.softmax import Softmax

    X, y = (np.concatenate([getattr(o, part) for o in made]) for part in ("X", "y"))
    starts = 40 * np.arange(9)
    straight = alone(InProcess(Softmax.of(X, y, starts, starts + 40, classes=2), seed=4), rounds=3, lam=0.5)
    np.testing.assert_allclose(load_file(home / "result" / "arrays.safetensors")["x"], straight["x"], rtol=1e-12)


def test_a_class_is_no_program(tmp_path):
    (tmp_path / "mine.py").write_text(page("mine.py"))
    described = RunConfig("mine:Mine", {"factory": "models:make"})
    with pytest.raises(CoterieError, match=names("'mine:Mine' class program function")):
        function(tmp_path, described)


CASES = {
    "allowed as a module": (["ring"], "ring:pull", ""),
    "allowed by a function of it": (["ring:make"], "ring:pull", ""),
    "not allowed": (["models:make"], "ring:pull", "its owner puts 'ring' into the site's folder and adds it to allow"),
    "nothing allowed": ([], "ring:pull", "'ring:pull' is not known here: its owner puts 'ring'"),
    "a module inside an allowed one": (["ring"], "ring.inner:pull", "its owner puts 'ring.inner'"),
    "a package around an allowed one": (["package.ring"], "package:pull", "its owner puts 'package'"),
    "allowed, and not there": (["elsewhere"], "elsewhere:pull", "cannot be imported"),
    "no such work in it": (["ring"], "ring:pul", "'ring:pul' is not known here: 'ring' has none of this name"),
    "no name of a work": (["ring"], "", "The work '' is not known here"),
    "of the standard library": ([], "antigravity:pull", "its owner puts 'antigravity'"),
    "of this package": ([], "coterie.methods.local_training.client_work:verdicts", ""),
    "not of this package": ([], "coterie.methods.no_such:pull", "use one version of coterie at all sites"),
    "a name like this package's": ([], "coterie_of_others:pull", "its owner puts 'coterie_of_others'"),
}


LEARN = """
import json, os, sys
from pathlib import Path
from coterie.deployment.site import prepared_data
from coterie.deployment.site import site_toml as config

folder, asked = json.loads(sys.argv[1])
for number, (allow, request) in enumerate(asked):
    if child := os.fork():  # each in a process that has imported no more than this
        os.waitpid(child, 0)
        continue
    with open(f"{folder}/{number}", "w") as sys.stdout:
        try:
            prepared_data.learn(Path(folder), config.Member("east", allow=tuple(allow)), prepared_data.works(request))
        except ValueError as e:
            print(e)
        print(sorted({"antigravity", "package", "ring"} & set(sys.modules)))
    os._exit(0)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What a site says to each case, and what it has imported, asked for the work and for a sum of it with noise."""
    folder = tmp_path_factory.mktemp("answers")
    (folder / "ring.py").write_text(WORK)
    asked = []
    for allow, name, _ in CASES.values():
        inner = {"work": "coterie.engines.privacy.gaussian_mechanism:clipped", "message": {"inner": name}}
        asked += [(allow, {"work": name, "message": {}}), (allow, inner)]
    subprocess.run([sys.executable, "-c", LEARN, json.dumps([str(folder), asked])], check=True, cwd="/")
    told = [(folder / str(number)).read_text() for number in range(len(asked))]
    return dict(zip(CASES, zip(told[::2], told[1::2], strict=True), strict=True))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("inside", [False, True], ids=["asked", "in a sum with noise"])
def test_a_request_imports_what_the_owner_allows_and_nothing_else(answers, case, inside):
    (allow, name, says), out = CASES[case], answers[case][inside]
    assert (says in out) if says else (out.count("\n") == 1 + name.startswith("ring"))
    may = name.partition(":")[0] in {a.partition(":")[0] for a in allow}
    assert out.endswith(f"{['ring'] if may and name.startswith('ring') else []}\n")


@pytest.mark.parametrize("raised", ["SystemExit('bye')", "ValueError('bye')", "SystemExit()"])
def test_a_module_that_ends_its_process_ends_no_site(tmp_path, raised):
    (tmp_path / "quits.py").write_text(f"raise {raised}\n")
    Config("toy", "nvflare", sites=SITES).write(tmp_path)
    Member("east", allow=("quits", "quits:make")).write(tmp_path)
    host, named = SiteReceiver(tmp_path), raised.partition("(")[0]
    make = {"kind": "factory", "name": "quits:make"}
    for request in ({"kind": "total", "work": "quits:x"}, {"kind": "open", "run": "r", "task": make, "seed": 0}):
        for _ in range(2):
            said = say(host, **request)["refused"]
            assert "cannot be imported (it raises " + named in said and said.endswith("): put its module right.")


def test_works_inside_of_sums_with_noise_are_named_however_deep():
    clipped, message = (
        "coterie.engines.privacy.gaussian_mechanism:clipped",
        {"inner": "mine:pull", "message": {"inner": "no"}},
    )
    assert prepared_data.works({"work": "mine:pull", "message": message}) == ["mine:pull"]
    assert prepared_data.works({"work": clipped, "message": message}) == [clipped, "mine:pull"]
    twice = {"inner": clipped, "message": message}
    assert prepared_data.works({"work": clipped, "message": twice}) == [clipped, clipped, "mine:pull"]
    assert prepared_data.works({"work": clipped, "message": {}}) == prepared_data.works({"work": clipped}) == [clipped]


def test_works_inside_of_calculations_in_step_are_named_however_deep():
    """Else an owner's rules, which let the tree read, would let any work read through it."""
    step, family = "coterie.methods.tree.in_step:all_of", "coterie.methods.tree.dispersion:in_family"
    rounds = "coterie.methods.local_training.rounds:move"
    assert prepared_data.works({"work": step, "message": {"call": rounds, "names": "a b"}}) == [step, rounds]
    inside = {"inner": step.removeprefix("coterie.methods."), "message": {"call": rounds, "names": "a"}}
    assert prepared_data.works({"work": family, "message": inside}) == [family, step, rounds]
    through = {"call": family, "names": "a b", "b:inner": rounds.removeprefix("coterie.methods."), "b:message": {}}
    named = prepared_data.works({"work": step, "message": through})
    assert named == [step, family, rounds]
    with pytest.raises(CoterieError, match=r"does not let .*rounds:move read a table"):
        for name in named:
            Member("east").need_sum(name)


def test_works_of_what_the_owner_s_own_code_imported_are_known(tmp_path):
    prepared_data.learn(tmp_path, Member("east"), prepared_data.works({"work": f"{__name__}:known"}))
    with pytest.raises(CoterieError, match=names("work 'None' not known here")):
        prepared_data.learn(tmp_path, Member("east"), prepared_data.works({}))


@work
def known(site):
    return {}
