"""The site: all that is public is documented, and every page, link and name on it leads somewhere."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from numpydoc.docscrape import ClassDoc
from typer.main import get_command

import coterie
from coterie.cli.main import app
from coterie.methods.registry import METHODS
from coterie.options import declared
from docs import generate, method_pages
from tests.docs.cli_page import commands

ROOT = Path(__file__).resolve().parents[2]
OURS = {name: getattr(coterie, name) for name in coterie.__all__ if name != "__version__"}


def sections(thing: type) -> set[str]:
    """What a docstring's sections name."""
    doc = ClassDoc(thing)
    return {part for row in doc["Attributes"] + doc["Parameters"] for part in row.name.split(", ")}


def undocumented(name: str, thing: object) -> list[str]:
    """A public name and those of its attributes and methods that say nothing of themselves."""
    lost = [] if inspect.getdoc(thing) else [name]
    if not inspect.isclass(thing):
        return lost
    said = sections(thing) | {row.name for row in declared(thing).values() if row.option.text}
    for other in re.findall(r"those of :class:`(\w+)`", inspect.getdoc(thing) or ""):
        said |= sections(OURS[other])
    ours = {key: cls for cls in reversed(thing.__mro__) for key in vars(cls) if cls.__module__.startswith("coterie.")}
    hints = [(key, str(hint)) for cls in thing.__mro__ for key, hint in inspect.get_annotations(cls).items()]
    fields = {key for key, hint in hints if not hint.startswith("ClassVar")}
    said |= {key for key, hint in hints if hint.startswith("ClassVar")}  # what the package says of the class
    for key in sorted({key for key in {*ours, *fields} if not key.startswith("_")} - said):
        found = inspect.getattr_static(thing, key, None)
        if type(found).__module__.startswith("sklearn."):
            continue
        if not callable(found) and not isinstance(found, (property, classmethod)) and not hasattr(found, "func"):
            lost.append(f"{name}.{key}")  # a plain value has no docstring of its own
        elif not inspect.getdoc(getattr(found, "func", getattr(found, "__func__", found))):
            lost.append(f"{name}.{key}")
    return lost


def test_every_public_name_is_documented() -> None:
    assert [lost for name, thing in OURS.items() for lost in undocumented(name, thing)] == []


def test_a_name_without_words_is_found() -> None:
    class Mute:
        """A class.

        Attributes
        ----------
        said : int
        """

        said = 1
        mute = 2

        def __init__(self):
            pass

        def silent(self):
            pass

    Mute.__module__ = "coterie.errors"
    assert undocumented("Mute", Mute) == ["Mute.mute", "Mute.silent"]


def test_every_public_name_has_a_page() -> None:
    assert sorted(name for names in generate.GROUPS.values() for name in names) == coterie.__all__


def test_every_command_and_option_says_what_it_is_for() -> None:
    found = dict(commands("coterie", get_command(app)))
    assert len(found) > 20
    assert [name for name, command in found.items() if not command.help] == []
    options = [(name, option) for name, command in found.items() for option in command.params]
    assert [(name, option.name) for name, option in options if not getattr(option, "help", "")] == []


def test_names_are_found_at_home() -> None:
    assert generate.public_name("coterie.results.fit_result.FitResult.predict") == "coterie.FitResult.predict"
    assert generate.public_name("coterie.results.inference.Inference.profile") == "coterie.FitResult.profile"
    assert generate.public_name("coterie.data.sort_keys.sort_keys") == "coterie.data.sort_keys.sort_keys"
    assert generate.public_name("coterie.data.sort_keys.nothing") is None


@pytest.mark.soak
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    asked = ["-W", "--keep-going", "-q", "-b", "html", ROOT / "docs", tmp_path / "site"]
    done = subprocess.run([sys.executable, "-m", "sphinx", *map(str, asked)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "generated" / "api_fit.html").exists()


def test_every_method_has_a_page_with_what_people_wrote() -> None:
    made = generate.pages()
    assert {*METHODS} ^ {*method_pages.NOTES} == set(), "docs/methods.toml"
    assert {m.relation for m in METHODS.values()} == {*method_pages.RELATIONS}
    for name, note in method_pages.NOTES.items():
        assert all(note[part] in made[f"method_{name}.md"] for part in ("objective", "promises", "loses"))


@pytest.mark.parametrize("relation", method_pages.RELATIONS)
def test_measured_figures_stand_on_the_page_that_is_linked(relation: str) -> None:
    measured = method_pages.RELATIONS[relation]["measured"]
    text, name = re.fullmatch(r"(.*)\(\[[^]]*\]\(\.\./(\w+\.md)#[\w-]+\)\)\.", measured).groups()
    figures = re.findall(r"\d*\.\d+", text)
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert len(figures) >= 3
    assert [figure for figure in figures if figure not in page] == []
