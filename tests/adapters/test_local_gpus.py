from __future__ import annotations

import pytest

from scheduler.adapters.local.gpus import count_gpus

# The form of `nvidia-smi -L`, as NVIDIA's MIG user guide prints it; identifiers are made up.
TWO = """GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-e6c2c1a4-1b3b-4b0e-8f69-2f0d6f7f1f55)
"""
DIVIDED = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.5gb      Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
"""


@pytest.mark.parametrize(
    ("text", "gpus"),
    [(TWO, 2), (DIVIDED, 1), ("", 0), ("No devices were found\n", 0)],
    ids=["two", "mig", "none", "no"],
)
def test_gpus_are_counted_as_the_driver_lists_them_and_parts_of_one_are_not(text: str, gpus: int):
    assert count_gpus(text) == gpus
