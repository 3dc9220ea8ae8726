"""Saved files that somebody meant to break: nothing in them runs, and they are read, or refused in one sentence.

Every form that is saved is changed in every kind of place, its checksums made right again, and read and used. An audit
hook of the interpreter sees every import, process, connection and file of that.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import coterie
from coterie import federation
from coterie.errors import LONGEST, CoterieError
from coterie.federation import PerRow, Ragged
from coterie.user_code import marks_work
from tests.property.fuzzing import other_array, places
from tests.property.saved_forms import FORMS, Form

MARK = str(Path(tempfile.gettempdir()) / "coterie-this-must-not-appear")
CODE = [
    "os:system", "subprocess:getoutput", "builtins:exec", "builtins:eval", "shutil:rmtree", "this:s", "antigravity:x",
    "pydoc:locate", "coterie.files:write", "coterie.cli.main:main", "coterie.objectives.deep.nets:torch.load",
    f"__import__('os').system('touch {MARK}')", f"open({MARK!r}, 'w')", f"y ~ open({MARK!r}, 'w')",
    f"y ~ C(x, __import__('os').system('touch {MARK}'))", "y ~ np.load('x', allow_pickle=True)", "{{ 7 * 7 }}",
    "<script>alert(1)</script>", f"!!python/object/apply:os.system ['touch {MARK}']", "../../../etc/passwd",
    "/etc/passwd", "dateutil//etc/passwd", "datetime64[ns, dateutil//etc/passwd]", "file:///etc/passwd", MARK,
    "cposix\nsystem\n(S'touch'\ntR.", "\N{RIGHT-TO-LEFT OVERRIDE}", "\0", "a" * 5000, "", "U999999999", "<U999999999",
    "object", "y ~ (a + b + c + d + e)**30", "y ~ bs(x, df=1000000000)", "y ~ poly(x, 10**9)", "y ~ x**9**9**9",
]  # fmt: skip
PICKLE = b"cposix\nsystem\n(S'id'\ntR."
ODD = [None, True, False, 0, -1, 1, 10**12, -(2**63), 2**63, 10**30, 1e300, -1e-300, float("nan"), float("inf"), [], {}]
DEEP = functools.reduce(lambda inner, _: [inner], range(50), "os:system")
TAGS = [
    {"$": "tuple", "value": 3},
    {"$": "timestamp", "value": ["2020-01-01", "dateutil//etc/passwd", "ns"]},
    DEEP,
    {"$": "os:system", "value": "id"},
    {"array": [1e300] * 9},
    {"kind": "texts", "array": "x", "dtype": "<U99999999"},
    {"path": "os:system", "args": {"command": "id"}},
    [[1]],
    ["os:system"],
    [10**12] * 3,
    {"__reduce__": "os:system"},
]


def other(rng: np.random.Generator, value: object, plain: bool) -> object:
    """What is put in the place of a value: often of its own kind."""
    if isinstance(value, np.ndarray) and rng.random() < 0.8:
        return other_array(rng, value)
    if isinstance(value, str) and rng.random() < 0.6:
        return CODE[rng.integers(len(CODE))]
    if type(value) in (int, float) and rng.random() < 0.6:
        return ODD[rng.integers(len(ODD))]
    others = [*CODE, *ODD, *ODD, *TAGS]
    if not plain:
        others += [PICKLE, PICKLE, np.frombuffer(PICKLE, np.uint8), np.array(CODE[:3]), np.zeros((0, 2**40)),
                   Ragged.of([b"", b"abc"]), PerRow(np.eye(2)), np.full((2, 3), np.nan)]  # fmt: skip
    return others[rng.integers(len(others))]


def changed(rng: np.random.Generator, tree: object, plain: bool) -> object:
    """A copy in which one thing, or two, are others, gone, or there under another name."""
    tree = copy.deepcopy(tree)
    for _ in range(1 if rng.random() < 0.8 else 2):
        found = list(places(tree))
        if not found:
            break
        *path, key = found[rng.integers(len(found))]
        holder = functools.reduce(lambda inner, step: inner[step], path, tree)
        kind = rng.integers(10)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[CODE[rng.integers(len(CODE))]] = holder.pop(key)
        else:
            holder[key] = other(rng, holder[key], plain)
    return tree


INSTALLED = tuple(str(Path(p).resolve()) for p in {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(),
                  Path(__file__).parents[2], "/usr/share/zoneinfo", "/usr/lib", "/proc", "/sys", "/dev"})  # fmt: skip
STARTS = ("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.", "socket.",
          "ctypes.dlopen", "pickle.find_class", "urllib.", "webbrowser.", "code.__new__", "marshal.load")  # fmt: skip
WRITES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.truncate",
    "os.chmod",
    "os.link",
    "os.symlink",
    "shutil.",
)
PACKAGES = {"coterie", "numpy", "pandas", "scipy", "torch", "sklearn", "formulaic", "numba", "narwhals", "jinja2",
            "pyarrow", "dp_accounting", "safetensors", "interface_meta", "wrapt", "llvmlite", "encodings"}  # fmt: skip


class Watch:
    """An audit hook, which cannot be taken away again: it sees what happens while a folder is watched."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.seen: list[str] = []
        sys.addaudithook(self)

    def __call__(self, event: str, args: tuple) -> None:
        if self.folder is None:
            return
        folder, self.folder = self.folder, None  # what is done here is not looked at
        try:
            if self.foreign(event, args, folder):
                self.seen.append(f"{event} {args!r:.200}")
        finally:
            self.folder = folder

    @staticmethod
    def foreign(event: str, args: tuple, folder: str) -> bool:
        if event == "import":
            return str(args[0]).split(".")[0] not in PACKAGES and str(args[0]) not in sys.stdlib_module_names
        if event.startswith(STARTS):
            return True
        here = (folder, f"{folder}{os.sep}")
        if event.startswith(WRITES):
            return not str(Path(os.fsdecode(args[0])).absolute()).startswith(here)
        if event != "open" or not isinstance(args[0], str | bytes | os.PathLike):
            return False
        path, flags = str(Path(os.fsdecode(args[0])).resolve()), args[2] if isinstance(args[2], int) else 0
        wrote = bool(flags & (os.O_WRONLY | os.O_RDWR)) or any(c in str(args[1] or "r") for c in "wax+")
        return not path.startswith(here) and (wrote or not path.startswith(INSTALLED)) and not path.endswith(".nbi.pyc")


@functools.cache
def watch() -> Watch:
    return Watch()


@pytest.fixture
def form(name: str, tmp_path: Path) -> Form:
    made = FORMS[name](tmp_path.resolve())
    with tempfile.TemporaryDirectory() as folder:  # what is imported when it is used is imported, and it can be used
        made.write(copy.deepcopy(made.tree), Path(folder))
        made.use(Path(folder))
    return made


def tried(made: Form, name: str, seed: int) -> str:
    """ "read", "refused", or what cannot be written so at all."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(prefix="coterie-tried-") as top:
        folder = Path(top).resolve() / "form"
        folder.mkdir()
        try:
            made.write(changed(rng, made.tree, plain=name.endswith((".toml", ".json", ".jsonl"))), folder)
        except (CoterieError, KeyError, TypeError, ValueError, OSError, AttributeError, RecursionError, OverflowError):
            return "unwritten"
        seen = watch()
        seen.seen.clear()
        seen.folder = str(folder.parent)
        try:
            with np.errstate(all="ignore"):
                made.use(folder)
            told = "read"
        except CoterieError as problem:
            told, text = "refused", str(problem)
        finally:
            seen.folder = None
        ours = [what for what in seen.seen if name != "site.toml" or not what.startswith("open ('/etc/passwd', 'r'")]
        assert not ours, f"{name}, seed {seed}: {ours}"
        assert told == "read" or (0 < len(text) <= LONGEST and text.strip()), f"{name}, seed {seed}: {text!r}"
    assert not Path(MARK).exists()
    return told


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("many", [12, pytest.param(600, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", FORMS)
def test_nothing_that_is_read_runs_and_what_does_not_fit_is_said_in_a_sentence(
    form: Form, name: str, many: int
) -> None:
    told = [tried(form, name, seed) for seed in range(many)]
    assert told.count("unwritten") < many // 2
    assert "refused" in told or name == "log.jsonl"  # of which a line that says nothing is passed over


def test_a_message_names_work_in_those_modules_of_the_package_alone_that_hold_any() -> None:
    source = Path(coterie.__file__).parent
    for file in source.rglob("*.py"):
        if "\n@work\ndef " in file.read_text():
            module = ".".join(("coterie", *file.relative_to(source).with_suffix("").parts))
            assert marks_work(module), module
    before = set(sys.modules)
    for name in (
        "coterie.deployment.flower.gate:x",
        "coterie.cli.use_saved_results:report",
        "coterie.methods.\0:x",
        f"coterie.methods.{'x' * 5000}:x",
        "coterie.methods./../deployment/flower/gate:x",
        "this:s",
    ):
        with pytest.raises(CoterieError, match="is not known here"):
            federation.find_work(name)
    assert set(sys.modules) == before
