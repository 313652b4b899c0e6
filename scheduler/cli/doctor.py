"""Everything outside, looked at once: what is broken, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scheduler.errors import Unavailable
from scheduler.fleet.pool import Pool, ReplicaId, ReplicaPhase
from scheduler.fleet.readings import Target
from scheduler.settings import Settings
from scheduler.store import migrations
from scheduler.wiring import House, check_bucket, check_metrics, clock, house


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing looked at."""

    what: str
    ok: bool
    says: str  # a sentence: what was seen, and if it is broken what to do


def examine(settings: Settings) -> tuple[Check, ...]:
    """All checks; none stops the others."""
    parts = house(settings)
    return (
        _database(settings),
        *(Check(what="cluster", ok=False, says=fault) for fault in parts.ground.faults()),
        *(Check(what="cluster", ok=True, says=sentence) for sentence in parts.ground.unseen()),
        *_fleet(parts),
        _storage(settings),
        _approvers(settings),
    )


def _database(settings: Settings) -> Check:
    try:
        faults = migrations.differences(settings.database_url)
        have = migrations.current(settings.database_url)
    except Unavailable as error:
        return Check(what="database", ok=False, says=f"does not answer: {error}")
    if faults:
        return Check(what="database", ok=False, says=f"has another schema ({faults[0]}): run `gpujob migrate`")
    return Check(what="database", ok=True, says=f"is at revision {have}")


def _fleet(parts: House) -> Iterator[Check]:
    now = clock()
    try:
        parts.ground.look()
        pool = parts.outside.cluster.pool(now)
    except Unavailable as error:
        yield Check(what="cluster", ok=False, says=f"does not answer: {error}")
        return
    yield from _nodes(pool, parts.settings)
    if not parts.settings.services:
        yield Check(what="services", ok=False, says="none is set; add a [[service]] for each vLLM deployment")
    answering: list[ReplicaId] = []
    ready = [replica for replica in pool.replicas if replica.phase is ReplicaPhase.READY]
    for series in parts.outside.metrics.series(ready, now):
        newest = series.samples[-1] if series.samples else None
        if newest is None or newest.target is not Target.UP:
            why = newest.error if newest else "no answer"
            yield Check(what=f"metrics of {series.replica}", ok=False, says=why)
        else:
            says = f"{newest.vllm_series} series of vLLM"
            yield Check(what=f"metrics of {series.replica}", ok=newest.vllm_series > 0, says=says)
            answering.append(series.replica)
    urls = [replica.url for replica in ready if replica.id in answering]
    for fault in check_metrics(parts.settings, urls):
        yield Check(what="names of series", ok=False, says=fault)


def _nodes(pool: Pool, settings: Settings) -> Iterator[Check]:
    gpus = sum(node.gpus for node in pool.nodes)
    says = f"{len(pool.nodes)} nodes with {gpus} GPUs"
    if not gpus and settings.cluster.kind == "kubernetes":
        says += f"; no node offers {settings.cluster.gpu_resource}, see [cluster] gpu_resource"
    elif not gpus:
        says += "; set [[node]] name and gpus, or run where nvidia-smi finds GPUs"
    yield Check(what="cluster", ok=gpus > 0, says=says)
    for alert in pool.alerts:
        yield Check(what="cluster", ok=False, says=alert)
    for service, why in pool.unknown_services.items():
        yield Check(what=f"service {service}", ok=False, says=why)
    for node in pool.nodes:
        if node.unknown:
            yield Check(what=f"node {node.name}", ok=False, says=node.unknown)


def _storage(settings: Settings) -> Check:
    root = settings.storage_root
    if root.startswith("s3://"):
        ok, says = check_bucket(settings)
        return Check(what="storage", ok=ok, says=says)
    folder = Path(root.removeprefix("file://"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".gpujob-doctor"
        probe.write_text("", encoding="utf-8")
        probe.unlink()
    except OSError as error:
        return Check(what="storage", ok=False, says=f"{root} cannot be written: {error.strerror}")
    return Check(what="storage", ok=True, says=f"{root} can be written")


def _approvers(settings: Settings) -> Check:
    if not settings.approval.approvers:
        return Check(what="approvers", ok=False, says="none: nobody can approve a job; set [approval] approvers")
    return Check(what="approvers", ok=True, says=", ".join(settings.approval.approvers))
