"""Compares trained models on images that none of them has seen, and names the best.

python evaluate_digits.py --data file:///tmp/digits --models '["file:///tmp/a", "file:///tmp/b"]' --out file:///tmp/best
"""

from __future__ import annotations

import argparse
import csv
import io
import json

import numpy as np
from prepare_digits import unpacked
from storage import Folder, folder
from train_digits import accuracy, load


def weights_of(model: str) -> dict[str, np.ndarray] | None:
    """None if the model is not there: its task may have failed."""
    try:
        return unpacked(folder(model).read("weights.npz"))
    except FileNotFoundError:
        return None


def write(out: Folder, table: list[tuple[str, float]]) -> None:
    rows = io.StringIO(newline="")
    csv.writer(rows).writerows([("model", "accuracy"), *table])
    out.write("accuracies.csv", rows.getvalue().encode())
    model, reached = table[0]
    out.write("best.json", f"{json.dumps({'model': model, 'accuracy': reached}, indent=2)}\n".encode())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True, help="folder that prepare_digits.py wrote, or digits.csv.gz")
    options.add_argument("--models", required=True, help="JSON list of folders")
    options.add_argument("--out", required=True, help="folder for accuracies.csv and best.json")
    args = options.parse_args()

    data = load(args.data)
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
