"""The examples run, in small: their tables are printed, and what comes of them are scores."""

from __future__ import annotations

import nodules
import numpy as np
import pytest
import segmentation
from matplotlib.image import imsave
from simulated_hospitals import two_hospitals

MAIN = {"segmentation": segmentation.main, "nodules": nodules.main}


@pytest.mark.parametrize(
    ("name", "shape", "images"), [("segmentation", (1, 2), "10 6"), ("nodules", (1, 3, 2), "9 9 9")]
)
def test_an_example_prints_its_table(name, shape, images, capsys):
    found = MAIN[name](["--rounds", "2", "--seeds", "1", "--images", *images.split()])
    table = capsys.readouterr().out.splitlines()
    assert len(found) >= 4
    for method, values in found.items():
        assert values.shape == shape and ((values >= 0) & (values <= 1) | np.isnan(values)).all()
        assert any(line.startswith(method) for line in table)


def test_a_folder_of_one_s_own(tmp_path, capsys):
    partitioned = two_hospitals(5, test_fraction=0.0).train
    for client, a, b in zip(("east", "west"), partitioned.starts, partitioned.stops, strict=True):
        for part, values in (("images", partitioned.X), ("masks", partitioned.y)):
            (tmp_path / client / part).mkdir(parents=True)
            for k in range(a, b):
                pixels = values[k, 0].astype(float)
                imsave(tmp_path / client / part / f"{k}.png", (pixels - pixels.min()) / np.ptp(pixels), cmap="gray")
    segmentation.main(["--rounds", "1", "--seeds", "1", "--folder", str(tmp_path)])
    assert "east" in capsys.readouterr().out
