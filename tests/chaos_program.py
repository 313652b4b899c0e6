"""A program of the chaos story: counts to `--steps`, saves on SIGTERM, goes on from there, and writes down when it ran.

The diary is evidence from outside gpujob: two runs of one task at the same time, or steps done twice, show there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--diary", type=Path, required=True)
    parser.add_argument("--fail", type=int, default=0)
    parser.add_argument("--save-s", type=float, default=0.0, help="how long saving takes after SIGTERM")
    options = parser.parse_args()
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    saved = Path(os.environ["GPUJOB_CHECKPOINT"].removeprefix("file://")) / "step"
    saved.parent.mkdir(parents=True, exist_ok=True)
    first = step = int(saved.read_text()) if saved.exists() else 0
    _write(options.diary, "start", step)
    while step < options.steps and not stopping:
        time.sleep(0.05)
        step += 1
        if step % 10 == 0 or stopping:
            print(
                f"GPUJOB_PROGRESS {step / options.steps:.3f} step={step} saved_step={step} from_step={first}",
                flush=True,
            )
    if stopping:
        time.sleep(options.save_s)
    half = saved.with_name(f"step.{os.getpid()}")
    half.write_text(str(step))
    half.replace(saved)
    print(f"GPUJOB_PROGRESS {step / options.steps:.3f} step={step} saved_step={step} from_step={first}", flush=True)
    _write(options.diary, "end", step)
    if step < options.steps:
        return 143
    return options.fail


def _write(diary: Path, what: str, step: int) -> None:
    line = {"what": what, "run": os.environ["GPUJOB_RUN"], "task": os.environ["GPUJOB_TASK"], "step": step}
    line |= {"job": os.environ["GPUJOB_JOB"], "at": time.time(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
    with diary.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
