"""What an operator reads while a run goes on."""

from __future__ import annotations

from types import SimpleNamespace

from coterie.cli import fit_over_sites as sites
from coterie.deployment import logs


def test_the_operator_reads_why_a_run_goes_on_in_a_new_job(tmp_path, capsys):
    def run(folder, run_id, timeout):
        log = logs.RunLog(folder / "runs" / run_id)
        log.end("failed", "NVFlare ended the job.")
        log.end(logs.AGAIN, "Without the job: north.")

    sites.follow(SimpleNamespace(run=run), tmp_path, "r", 10.0)
    said = capsys.readouterr().out
    assert f"{logs.AGAIN}: Without the job: north." in said and "failed" not in said
