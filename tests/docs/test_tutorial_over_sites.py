"""The tutorial of a federation is run as it stands, over real servers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hospitals import free_port

from tests.docs.test_snippets import ROOT, blocks, commands, run_python

PAGE = ROOT / "docs" / "tutorial_federation.md"


def run(arguments: list[str], folder: Path, port: str) -> None:
    words = [port if word == "8002" else word for word in arguments]
    done = subprocess.run(
        [Path(sys.executable).with_name("coterie"), *words], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"


@pytest.mark.soak
def test_its_commands_and_python_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvflare")
    monkeypatch.chdir(tmp_path)
    port, namespace = str(free_port()), {"__name__": "__main__"}
    found = [block for block in blocks(PAGE.read_text(encoding="utf-8")) if block.no_run]
    stops = [words for block in found for words in commands(block) if words[:2] == ["federation", "stop"]]
    try:
        for block in found:
            if block.language == "python":
                run_python(PAGE, block, namespace)
            for words in commands(block):
                run(words, tmp_path, port)
        stops = []
    finally:
        for words in stops:
            subprocess.run(
                [Path(sys.executable).with_name("coterie"), *words], cwd=tmp_path, env=os.environ, timeout=60
            )
    assert (tmp_path / "mine.html").exists()
