"""The example of four hospitals, its commands in this process: make federation-demo runs them over real servers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from coterie.deployment import folders
from coterie.deployment.coordinator import run
from coterie.deployment.site.preview import LocalTransport
from coterie.deployment.site.receiver import SiteReceiver
from tests.cli.harness import coterie
from tests.cli.test_federation import Engine

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "hospitals.py"


class Hospitals(Engine):
    """Their hosts, in this process."""

    def run(self, folder, run_id, timeout):
        homes = sorted((folder.parent / "sites").iterdir())
        run.run(LocalTransport({home.name: SiteReceiver(home).receive for home in homes}), folder, run_id)


def test_every_command_of_the_example_works(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("hospitals_example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    engine = Hospitals()
    monkeypatch.setattr(folders, "engine", lambda name: engine)
    typed = []

    def command(*parts):
        ran = coterie(*parts)
        assert ran.code == 0, (parts, ran.out, ran.err)
        typed.append(parts[0] if parts[0] == "fit" else parts[1])
        return 0.0

    monkeypatch.setattr(example, "command", command)
    monkeypatch.setattr("sys.argv", ["hospitals.py", "--folder", str(tmp_path), "--steps", "0"])
    assert example.main() == 0
    assert {"schema", "init", "check", "preview", "fit", "status", "log", "stop"} <= set(typed)
    assert "Log odds of disease at each hospital" in capsys.readouterr().out


def test_what_a_command_prints_is_shown_by_its_ends(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("hospitals_example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    (tmp_path / "coterie").write_text('#!/bin/sh\nfor i in $(seq "$1"); do echo "line $i"; done\n')
    (tmp_path / "coterie").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    for n in (0, 3, 10, 15, 20):
        example.command(n)
        assert capsys.readouterr().out.splitlines()[2:] == [f"line {i}" for i in range(1, n + 1)]
    example.command(25)
    assert capsys.readouterr().out.splitlines()[11:14] == ["line 10", "... 5 more lines ...", "line 16"]
