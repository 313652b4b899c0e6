"""Objects of the API server as anybody may write them: what cannot be read stops everything, so all must be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from scheduler.adapters.kube import objects
from scheduler.adapters.kube.objects import Raw

_META = {
    "uid": "u",
    "name": "n",
    "namespace": "theirs",
    "resourceVersion": "5",
    "creationTimestamp": "2026-12-01T06:00:00Z",
}


def _with_limits(**limits: str) -> Raw:
    return {"metadata": _META, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}


@pytest.mark.parametrize(
    ("written", "count"),
    [
        ("8", 8),
        ("1k", 1000),
        ("2M", 2_000_000),
        ("3G", 3 * 10**9),
        ("1T", 10**12),
        ("1E", 10**18),
        ("12e6", 12_000_000),
        ("1E3", 1000),
        ("512Ki", 512 * 1024),
        ("93Mi", 93 * 2**20),
        ("1Gi", 2**30),
        ("2Ti", 2**41),
        ("7Ei", 7 * 2**60),
        ("8Ei", 2**63 - 1),
        ("8000m", 8),
        ("500u", 0),
        ("9n", 0),
        ("0.5", 0),
    ],
)
def test_every_quantity_that_kubernetes_writes_is_read(written: str, count: int):
    assert objects.whole(written) == count


def test_a_pod_with_memory_as_an_extended_resource_is_read():
    limits = {"sgx.intel.com/epc": "1Gi", "nvidia.com/gpu": "2"}

    assert objects.pod(_with_limits(**limits)).gpus == {"sgx.intel.com/epc": 2**30, "nvidia.com/gpu": 2}


@pytest.mark.parametrize("years", [300, 3_000, 10**9])
def test_a_pod_that_is_given_an_endless_grace_has_a_time_of_its_request(years: int):
    grace_s = years * 365 * 86_400
    told = {"deletionTimestamp": "2272-12-01T06:00:00Z", "deletionGracePeriodSeconds": grace_s}

    pod = objects.pod({"metadata": {**_META, **told}})

    assert pod.leaving_at is not None
    assert pod.grace_s is not None
    asked_at = pod.leaving_at - timedelta(seconds=pod.grace_s)
    assert datetime(1900, 1, 1, tzinfo=UTC) < asked_at < pod.leaving_at
