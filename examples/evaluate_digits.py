"""Compares trained models on images that none of them has seen, and names the best.

python evaluate_digits.py --data file:///tmp/digits --models '["file:///tmp/a", "file:///tmp/b"]' --out file:///tmp/best
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import numpy as np
from prepare_digits import folder
from train_digits import accuracy, load


def weights_of(model: str) -> dict[str, np.ndarray] | None:
    """None if the model is not there: its task may have failed."""
    path = folder(model) / "weights.npz"
    if not path.exists():
        return None
    with np.load(path) as weights:
        return dict(weights)


def write(out: Path, table: list[tuple[str, float]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "accuracies.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("model", "accuracy"), *table])
    model, reached = table[0]
    (out / "best.json").write_text(json.dumps({"model": model, "accuracy": reached}, indent=2) + "\n")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True, help="folder that prepare_digits.py wrote, or digits.csv.gz")
    options.add_argument("--models", required=True, help="JSON list of folders")
    options.add_argument("--out", required=True, help="folder for accuracies.csv and best.json")
    args = options.parse_args()

    data = load(folder(args.data))
    models = json.loads(args.models)
    table = []
    for count, model in enumerate(models, start=1):
        weights = weights_of(model)
        if weights is not None:
            table.append((model, accuracy(weights, data["test_pixels"], data["test_digits"])))
        print(f"GPUJOB_PROGRESS {count / len(models):.4f} model={count}", flush=True)
    if not table:
        raise SystemExit("none of the models is there")
    table.sort(key=lambda row: -row[1])
    write(folder(args.out), table)
    print(f"best: {table[0][0]}, accuracy {table[0][1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
