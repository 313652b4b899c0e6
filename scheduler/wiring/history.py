"""What `gpujob whatif` reads from: a Prometheus with the operator's keys, and the services of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from scheduler.adapters.vllm import Access, PrometheusHistory
from scheduler.errors import BadInput
from scheduler.settings import Settings
from scheduler.sim.whatif_services import KnownService, addresses_of
from scheduler.wiring import environment, pause

TOKEN_VARIABLE = "GPUJOB_PROMETHEUS_TOKEN"  # noqa: S105  the name of it


def history(
    settings: Settings, url: str, *, selector: str, token_file: Path | None, ca_file: Path | None
) -> PrometheusHistory:
    """The reader of a Prometheus' past.

    Raises:
        BadInput: the file of the token cannot be read.
    """
    access = Access(token=_token(token_file), ca_file="" if ca_file is None else str(ca_file))
    return PrometheusHistory(url, settings.metrics.prefix, pause, access, selector=selector)


def known_services(settings: Settings, gpus: Mapping[str, int], seqs: Mapping[str, int]) -> tuple[KnownService, ...]:
    """The `[[service]]` of the settings; numbers that were said on the command line come first."""
    services = (
        KnownService(
            name=one.name,
            namespace=one.namespace,
            workload=one.deployment,
            addresses=addresses_of(replica.url for replica in one.replica),
            gpus_per_replica=one.gpus_per_replica,
            max_num_seqs=one.max_num_seqs,
            min_replicas=one.min_replicas,
            max_replicas=one.max_replicas,
            managed=one.mode == "manage",
        )
        for one in settings.services
    )
    return tuple(
        replace(
            one,
            gpus_per_replica=gpus.get(one.name, one.gpus_per_replica),
            max_num_seqs=seqs.get(one.name, one.max_num_seqs),
        )
        for one in services
    )


def _token(path: Path | None) -> str:
    if path is None:
        return environment().get(TOKEN_VARIABLE, "")
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--token-file {path} cannot be read: {error}") from error
