"""Two hospitals with other scanners segment the same organ: which layers to share, on slices made for it.

``python examples/segmentation.py`` takes about a minute and a half of one core. With ``--folder``, the hospitals are
the sub-folders of a folder of your own, each with ``images`` and ``masks`` (see docs/images.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from simulated_hospitals import two_hospitals

from coterie.data.images import read_folder, standardised
from coterie.data.partition import ClientRows, PartitionedRows
from coterie.engines.local_engines import InProcess
from coterie.methods.fedavg import FedAvg
from coterie.objectives.deep import Deep
from coterie.objectives.deep.losses import dice, dice_and_cross_entropy
from coterie.objectives.deep.nets import unet

METHODS = {
    "local: every hospital alone": ("*",),
    "pooled: one hospital with all rows": (),
    "FedAvg: one averaged model": (),
    "shared encoder, own decoder and head": ("decoder*", "head*"),
    "shared decoder and head, own encoder": ("encoder*",),
}


def objective(part: ClientRows, together: bool = False) -> Deep:
    """A small U-Net on a hospital's images, or on those of all hospitals as if they were one's."""
    starts, stops = (part.starts[:1], part.stops[-1:]) if together else (part.starts, part.stops)
    X = standardised(part.X)
    return Deep.of(unet, X, part.y, starts, stops, loss=dice_and_cross_entropy, score=dice, clip=1.0)


def scores(partitioned: PartitionedRows, name: str, rounds: int, seed: int) -> np.ndarray:
    """Mean Dice coefficient of every hospital's held-out images after training by one of the methods."""
    fed = InProcess(objective(partitioned.train, together=name.startswith("pooled")), seed=seed)
    method = FedAvg(eta=lambda t: 0.4 * (1.0 - t / rounds), B=8, personal=METHODS[name], seed=seed)
    *_, state = method.run(fed, [rounds])
    models, test = method.models(fed, state), objective(partitioned.test)
    return test.accuracy(np.broadcast_to(models, (len(test), test.dim)))


def main(arguments: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Print a table of Dice coefficients; return them (seeds, hospitals) by method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="a folder of your own instead of images that are made")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=2, help="first seed; the settings were chosen on seeds 0 and 1")
    parser.add_argument("--images", type=int, nargs="+", default=[100, 30], help="made for each hospital")
    given = parser.parse_args(arguments)
    found: dict[str, list[np.ndarray]] = {name: [] for name in METHODS}
    for seed in range(given.first, given.first + given.seeds):
        made = given.folder is None
        partitioned = (
            two_hospitals(given.images, seed=seed, test_fraction=0.8) if made else read_folder(given.folder, seed=seed)
        )
        for name in METHODS:
            found[name].append(scores(partitioned, name, given.rounds, seed))
    counts = ", ".join(str(n) for n in partitioned.train.stops - partitioned.train.starts)
    print(f"Dice of held-out images, mean of {given.seeds} seeds; {counts} images to train on at the hospitals")
    print(f"{'':40}" + "".join(f"{name:>12}" for name in partitioned.names))
    for name, values in found.items():
        print(f"{name:40}" + "".join(f"{value:12.3f}" for value in np.mean(values, axis=0)))
    return {name: np.stack(values) for name, values in found.items()}


if __name__ == "__main__":
    main()
