"""GPUs of this computer, as the driver's own tool names them."""

from __future__ import annotations

import re
import subprocess

from scheduler.errors import Unavailable

_GPU = re.compile(r"^GPU \d+: ", re.MULTILINE)  # the parts of a divided GPU are indented: "  MIG 1g.10gb Device 0: .."


def count_gpus(text: str) -> int:
    """GPUs in the output of `nvidia-smi -L`."""
    return len(_GPU.findall(text))


def detect_gpus() -> int:
    """GPUs of this computer; 0 if it has none, or no driver.

    Raises:
        Unavailable: the driver's tool is there and does not work.
    """
    try:
        answer = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)  # noqa: S607 - where it lies differs
    except FileNotFoundError:
        return 0
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"nvidia-smi -L does not answer: {error}") from error
    if answer.returncode != 0 and "No devices were found" not in answer.stdout + answer.stderr:
        raise Unavailable(f"nvidia-smi -L failed: {(answer.stdout + answer.stderr).strip()}")
    return count_gpus(answer.stdout)
