"""Reads the images of digits, normalises and splits them, and writes one file that training can load.

python prepare_digits.py --source data/digits.csv.gz --out file:///tmp/digits
"""

from __future__ import annotations

import argparse
import gzip
import io
from collections.abc import Mapping

import numpy as np
from storage import folder, read_file

PIXEL_MAX = 16.0
SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}


def packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """As one .npz file."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def unpacked(content: bytes) -> dict[str, np.ndarray]:
    """Raises ValueError, KeyError, OSError or zipfile.BadZipFile for what is no whole .npz file."""
    with np.load(io.BytesIO(content)) as arrays:
        return dict(arrays)


def prepared(source: str, seed: int) -> dict[str, np.ndarray]:
    """Pixels from 0 to 1 and digits, shuffled, in three parts: `train_pixels`, `train_digits`, ..."""
    table = np.loadtxt(io.BytesIO(gzip.decompress(read_file(source))), delimiter=",")
    table = table[np.random.default_rng(seed).permutation(len(table))]
    ends = np.cumsum([round(share * len(table)) for share in SHARES.values()])[:-1]
    parts = {}
    for name, rows in zip(SHARES, np.split(table, ends), strict=True):
        parts[f"{name}_pixels"] = rows[:, :-1] / PIXEL_MAX
        parts[f"{name}_digits"] = rows[:, -1].astype(np.int64)
    return parts


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--source", default="data/digits.csv.gz")
    options.add_argument("--out", required=True, help="folder for digits.npz")
    options.add_argument("--seed", type=int, default=0, help="of the split")
    args = options.parse_args()

    parts = prepared(args.source, args.seed)
    folder(args.out).write("digits.npz", packed(parts))
    print(", ".join(f"{name}: {len(parts[f'{name}_digits'])} images" for name in SHARES), flush=True)


if __name__ == "__main__":
    main()
