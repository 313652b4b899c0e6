"""Trains a small network on images of hand-written digits, and can be stopped at any time.

On SIGTERM it saves after the step it is in and ends with 143; started again, it goes on from its newest checkpoint.
Everything that chance decides is in the checkpoint, so a run that was stopped ends with the same weights, to the bit,
as one that was not.

    python train_digits.py --data data/digits.csv.gz --ckpt file:///tmp/digits/ckpt --out file:///tmp/digits/model
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
import zipfile
from dataclasses import dataclass

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one order of additions: the same weights on any number of cores

import numpy as np
from prepare_digits import packed, prepared, unpacked
from storage import Folder, folder

STOPPED = 143  # saved, and wants to go on later
CLASSES = 10
NOISE = 0.05  # of the pixels, drawn anew in each step
MOMENTUM = 0.9


@dataclass
class Training:
    """All that changes from step to step."""

    step: int
    loss: float  # moving average
    weights: dict[str, np.ndarray]
    velocity: dict[str, np.ndarray]
    chance: np.random.Generator


def begun(seed: int, pixels: int, hidden: int) -> Training:
    chance = np.random.default_rng(seed)
    weights = {
        "w1": chance.normal(0.0, np.sqrt(2.0 / pixels), (pixels, hidden)),
        "b1": np.zeros(hidden),
        "w2": chance.normal(0.0, np.sqrt(2.0 / hidden), (hidden, CLASSES)),
        "b2": np.zeros(CLASSES),
    }
    velocity = {name: np.zeros_like(values) for name, values in weights.items()}
    return Training(step=0, loss=float(np.log(CLASSES)), weights=weights, velocity=velocity, chance=chance)


def scores(weights: dict[str, np.ndarray], pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The hidden layer and the probability of each digit."""
    layer = np.maximum(pixels @ weights["w1"] + weights["b1"], 0.0)
    logits = layer @ weights["w2"] + weights["b2"]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return layer, powers / powers.sum(axis=1, keepdims=True)


def accuracy(weights: dict[str, np.ndarray], pixels: np.ndarray, digits: np.ndarray) -> float:
    return float((scores(weights, pixels)[1].argmax(axis=1) == digits).mean())


def learn(training: Training, data: dict[str, np.ndarray], lr: float, batch: int) -> None:
    """One step of stochastic gradient descent."""
    chosen = training.chance.integers(0, len(data["train_digits"]), batch)
    pixels = data["train_pixels"][chosen]
    pixels = pixels + training.chance.normal(0.0, NOISE, pixels.shape)
    digits = data["train_digits"][chosen]

    layer, likely = scores(training.weights, pixels)
    loss = float(-np.log(likely[np.arange(batch), digits] + 1e-12).mean())
    error = likely
    error[np.arange(batch), digits] -= 1.0
    error /= batch
    back = (error @ training.weights["w2"].T) * (layer > 0.0)
    slopes = {"w1": pixels.T @ back, "b1": back.sum(axis=0), "w2": layer.T @ error, "b2": error.sum(axis=0)}
    for name, slope in slopes.items():
        training.velocity[name] = MOMENTUM * training.velocity[name] - lr * slope
        training.weights[name] = training.weights[name] + training.velocity[name]
    training.loss = 0.95 * training.loss + 0.05 * loss
    training.step += 1


def saved_in(checkpoints: Folder) -> list[str]:
    """Names of checkpoints, oldest first."""
    return [name for name in checkpoints.names() if name.startswith("step-") and name.endswith(".npz")]


def save(training: Training, checkpoints: Folder) -> None:
    """Writes one checkpoint; it is there whole or not at all. The newest two are kept."""
    arrays = {f"weights_{name}": values for name, values in training.weights.items()}
    arrays |= {f"velocity_{name}": values for name, values in training.velocity.items()}
    state = json.dumps({"step": training.step, "loss": training.loss, "chance": training.chance.bit_generator.state})
    checkpoints.write(f"step-{training.step:09d}.npz", packed({"state": np.array(state), **arrays}))
    for old in saved_in(checkpoints)[:-2]:
        checkpoints.remove(old)


def resumed(checkpoints: Folder, training: Training) -> bool:
    """Puts the newest checkpoint that can be read into `training`; False if there is none."""
    for name in reversed(saved_in(checkpoints)):
        try:
            saved = unpacked(checkpoints.read(name))
            state = json.loads(str(saved["state"]))
            weights = {key: saved[f"weights_{key}"] for key in training.weights}
            velocity = {key: saved[f"velocity_{key}"] for key in training.velocity}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            print(f"{name} cannot be read, trying the one before: {error}", file=sys.stderr, flush=True)
            continue
        training.step, training.loss = state["step"], state["loss"]
        training.weights, training.velocity = weights, velocity
        training.chance.bit_generator.state = state["chance"]
        return True
    return False


def finish(training: Training, data: dict[str, np.ndarray], out: Folder) -> None:
    """Writes weights.npz and metrics.json."""
    digest = hashlib.sha256()
    for name in sorted(training.weights):
        digest.update(training.weights[name].tobytes())
    metrics = {
        "accuracy": accuracy(training.weights, data["validation_pixels"], data["validation_digits"]),
        "loss": training.loss,
        "steps": training.step,
        "sha256": digest.hexdigest(),
    }
    out.write("weights.npz", packed(training.weights))
    out.write("metrics.json", f"{json.dumps(metrics, indent=2)}\n".encode())
    print(f"accuracy {metrics['accuracy']:.4f}, weights {metrics['sha256'][:16]}", flush=True)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="digits.csv.gz, or the folder that prepare_digits.py wrote")
    parser.add_argument("--ckpt", required=True, help="folder of the checkpoints")
    parser.add_argument("--out", required=True, help="folder for weights.npz and metrics.json")
    parser.add_argument("--epochs", type=float, default=30.0)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--save-every", type=int, default=100, help="steps between two checkpoints")
    parser.add_argument("--log-every", type=int, default=20, help="steps between two lines of progress")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to wait after each step")
    return parser.parse_args()


def load(source: str) -> dict[str, np.ndarray]:
    if source.endswith(".csv.gz"):
        return prepared(source, seed=0)
    return unpacked(folder(source).read("digits.npz"))


def train(training: Training, data: dict[str, np.ndarray], args: argparse.Namespace, stopping: list[bool]) -> bool:
    """Goes on until the last step, or saves and returns False once `stopping` is not empty."""
    checkpoints = folder(args.ckpt)
    steps = max(1, round(args.epochs * len(data["train_digits"]) / args.batch))
    from_step = training.step if resumed(checkpoints, training) else None
    saved_step = from_step

    def tell() -> None:
        known = {"saved_step": saved_step, "from_step": from_step, "loss": f"{training.loss:.4f}"}
        said = " ".join(f"{key}={value}" for key, value in known.items() if value is not None)
        print(f"GPUJOB_PROGRESS {training.step / steps:.4f} step={training.step} {said}", flush=True)

    tell()
    while training.step < steps:
        if stopping:
            save(training, checkpoints)
            saved_step = training.step
            tell()
            return False
        learn(training, data, args.lr, args.batch)
        if training.step % args.save_every == 0 or training.step == steps:
            save(training, checkpoints)
            saved_step = training.step
        if training.step % args.log_every == 0 or training.step == saved_step:
            tell()
        time.sleep(args.pace)
    return True


def main() -> None:
    stopping: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    args = options()
    data = load(args.data)
    training = begun(args.seed, data["train_pixels"].shape[1], args.hidden)
    if not train(training, data, args, stopping):
        raise SystemExit(STOPPED)
    finish(training, data, folder(args.out))


if __name__ == "__main__":
    main()
