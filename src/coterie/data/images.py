"""Images of hospitals: shapes drawn by keys, the scanners that take them, and files of a user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics import keyed

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
U64 = npt.NDArray[np.uint64]

KINDS = (".png", ".npy")


@dataclass(frozen=True)
class Scanner:
    """How a hospital's machine sees tissue; brightness of what is seen is around 0 to 1.

    Attributes
    ----------
    contrast : float, default 1
        Factor of brightness around its middle, 0.5; below 0, bright is dark.
    brightness : float, default 0
        Added to it.
    blur : float, default 0
        Standard deviation of the point spread, in pixels.
    field : float, default 0
        How far the gain strays from 1 across the image, as the field of a coil does.
    noise : float, default 0.05
        Standard deviation of white noise.
    """

    contrast: float = 1.0
    brightness: float = 0.0
    blur: float = 0.0
    field: float = 0.0
    noise: float = 0.05

    def __post_init__(self) -> None:
        values = (self.contrast, self.brightness, self.blur, self.field, self.noise)
        if not np.isfinite(values).all() or min(values[2:]) < 0.0:
            raise CoterieError("A scanner's numbers must be finite, and blur, field and noise not negative.")

    def scan(self, truth: F64, ids: U64, seed: int) -> npt.NDArray[np.float32]:
        """What the machine shows of some slices.

        Parameters
        ----------
        truth : (n, h, w)
            Brightness of the tissue.
        ids : (n,) uint64
            Numbers of the slices, by which noise and field are drawn.
        seed : int

        Returns
        -------
        (n, h, w) float32
        """
        from scipy.ndimage import gaussian_filter

        n, h, w = truth.shape
        seen = 0.5 + self.contrast * (truth - 0.5) + self.brightness
        if self.blur > 0.0:
            seen = gaussian_filter(seen, (0.0, self.blur, self.blur), mode="nearest")
        turn = 2.0 * np.pi * keyed.uniform(seed, "field", ids, 0, 1)
        y, x = np.linspace(-1.0, 1.0, h)[:, None], np.linspace(-1.0, 1.0, w)[None, :]
        slope = np.cos(turn)[:, :, None] * x + np.sin(turn)[:, :, None] * y
        noise = keyed.normal(keyed.starts(seed, "noise", ids), 0, h * w).reshape(n, h, w)
        return (seen * (1.0 + self.field * slope) + self.noise * noise).astype(np.float32)


def ellipses(centre: F64, radii: F64, angle: F64, side: int) -> F64:
    """How far inside ellipses the pixels of square images are.

    Parameters
    ----------
    centre, radii : (n, 2)
        x and y, in pixels.
    angle : (n,)
        Radians, from x towards y.
    side : int
        Height and width.

    Returns
    -------
    (n, side, side)
        The share of each pixel that is inside, going from 0 to 1 over about a pixel.
    """
    at = np.arange(side) + 0.5
    x, y = at[None, None, :] - centre[:, 0, None, None], at[None, :, None] - centre[:, 1, None, None]
    c, s = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    u, v = (c * x + s * y) / radii[:, 0, None, None], (c * y - s * x) / radii[:, 1, None, None]
    edge = (1.0 - np.hypot(u, v)) * radii.min(axis=1)[:, None, None]
    return np.asarray(np.clip(edge + 0.5, 0.0, 1.0))


def standardised(X: Array) -> npt.NDArray[np.float32]:
    """Every image (n, ...) with mean 0 and standard deviation 1; images of one colour become 0."""
    axes = tuple(range(1, X.ndim))
    centred = X - X.mean(axis=axes, keepdims=True, dtype=np.float64)
    spread = centred.std(axis=axes, keepdims=True)
    return np.asarray(centred / np.where(spread > 1e-12, spread, 1.0), dtype=np.float32)


def read_image(path: Path) -> npt.NDArray[np.float32]:
    """One grey image (h, w) from a PNG (colours averaged, 0 to 1) or a NumPy file (numbers as they are).

    Raises
    ------
    CoterieError
        Where the file cannot be read, is no grey or coloured image, or has numbers that are not finite; for a PNG also
        where matplotlib, which reads it, is not installed.
    """
    try:
        pixels = np.load(path, allow_pickle=False) if path.suffix.lower() == ".npy" else _png(path)
    except (OSError, ValueError, EOFError, SyntaxError) as fault:
        raise CoterieError(f"{path} cannot be read as an image ({fault}): write it again as PNG or NPY.") from None
    if not isinstance(pixels, np.ndarray) or pixels.dtype.kind not in "biuf":
        raise CoterieError(f"{path} has no numbers: an image is an array (height, width) of them.")
    if pixels.ndim == 3 and pixels.shape[2] in (1, 3, 4):
        pixels = pixels[:, :, : min(pixels.shape[2], 3)].mean(axis=2)
    if pixels.ndim != 2 or not pixels.size:
        raise CoterieError(f"{path} has the shape {pixels.shape}: an image is (height, width), one slice a file.")
    if not np.isfinite(pixels).all():
        raise CoterieError(f"{path} has pixels that are not finite numbers: fill them first.")
    return pixels.astype(np.float32)


def _png(path: Path) -> Array:
    try:
        from matplotlib.image import imread
    except ImportError:
        raise CoterieError(
            f"Reading {path} needs matplotlib: pip install matplotlib, or save images as .npy."
        ) from None
    return np.asarray(imread(path, format="png"))


def files(folder: Path) -> dict[str, Path]:
    """The images of a folder by name without ending, sorted; a CoterieError for two of one name, or none at all."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in KINDS and not path.name.startswith("."):
            if path.stem in found:
                raise CoterieError(f"{found[path.stem]} and {path} have the same name: leave one of them out.")
            found[path.stem] = path
    if not found:
        raise CoterieError(f"{folder} has no images: files that end in .png or .npy are looked for.")
    return found
