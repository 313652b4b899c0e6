"""What is plugged into what: the only place that builds adapters, and the only one that reads the clock."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Protocol
from zoneinfo import ZoneInfo

from scheduler.adapters.kube import bucket
from scheduler.adapters.vllm import PrometheusMetrics, ScrapedMetrics, check_url
from scheduler.cycle import intake, notices
from scheduler.cycle.turn import Cycle, Outside, Terms
from scheduler.errors import BadInput, Unavailable
from scheduler.fleet.calendar import Calendar, Hours, parse_hours
from scheduler.fleet.scaling import check_service
from scheduler.fleet.services import Mode, Service
from scheduler.jobs.admission import Rules, TeamBudget
from scheduler.jobs.order import JobOrder
from scheduler.jobs.spec import JobSpec
from scheduler.ports import Cluster, Executor, Images, LogReader, Metrics
from scheduler.settings import Settings
from scheduler.store.mailbox import Mailbox
from scheduler.store.sql import SqlStore
from scheduler.wiring.local import local


def clock() -> datetime:
    """Now, aware UTC."""
    return datetime.now(UTC)


def pause(seconds: float) -> None:
    """For a person at a terminal who waits for an answer; nothing else waits on real time."""
    time.sleep(seconds)


class Ground(Protocol):
    """Where jobs run: the nodes, what runs there, and how to begin and end with them."""

    @property
    def cluster(self) -> Cluster:
        """Nodes and services."""
        ...

    @property
    def executor(self) -> Executor:
        """Runs jobs."""
        ...

    @property
    def logs(self) -> LogReader:
        """Output of runs."""
        ...

    @property
    def images(self) -> Images | None:
        """Which image a tag stands for; None: images are not used here."""
        ...

    def unfit(self, spec: JobSpec) -> tuple[str, ...]:
        """Why this job could never run here, a sentence each; of a spec that is good as such."""
        ...

    def faults(self) -> tuple[str, ...]:
        """What is wrong there, or looks so, a sentence each."""
        ...

    def unseen(self) -> tuple[str, ...]:
        """What may be wrong and cannot be looked at, a sentence each."""
        ...

    def counts(self) -> Mapping[str, int]:
        """What was counted there since the start, by the name that metrics give it."""
        ...

    def look(self) -> None:
        """From now on it can be looked at.

        Raises:
            Unavailable: it does not answer.
        """
        ...

    def take(self) -> None:
        """From now on it can be looked at, and this process acts there.

        Raises:
            Unavailable: it does not answer, or belongs to another scheduler.
        """
        ...

    def listen(self, hint: Callable[[], None]) -> None:
        """`hint` is called, from any thread, when a turn should come at once."""
        ...

    def leave(self) -> None:
        """This process acts there no longer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """All parts, plugged together."""

    settings: Settings
    store: SqlStore
    ground: Ground
    cycle: Cycle
    outside: Outside


def services(settings: Settings) -> tuple[Service, ...]:
    """The services, as the pure rooms know them.

    Raises:
        BadInput: a service and the policy contradict each other.
    """
    found = tuple(
        Service(
            name=row.name,
            gpus_per_replica=row.gpus_per_replica,
            max_num_seqs=row.max_num_seqs,
            min_replicas=row.min_replicas,
            max_replicas=row.max_replicas,
            mode=Mode(row.mode),
        )
        for row in settings.services
    )
    faults = [fault for service in found for fault in check_service(service, settings.policy)]
    if faults:
        raise BadInput(*faults)
    return found


def calendar(settings: Settings) -> Calendar:
    """The operator's hours.

    Raises:
        BadInput: an entry of `[calendar] windows` cannot be read.
    """
    hours: list[Hours] = []
    faults: list[str] = []
    for text in settings.calendar.windows:
        parsed = parse_hours(text)
        if isinstance(parsed, str):
            faults.append(f"[calendar] windows: {parsed}")
        else:
            hours.append(parsed)
    if faults:
        raise BadInput(*faults)
    return Calendar(timezone=settings.calendar.timezone, windows=tuple(hours))


def rules(settings: Settings) -> Rules:
    """Who may do what without asking, and who is asked."""
    return Rules(
        approve_over_gpu_hours=settings.approval.rules.over_gpu_hours,
        approve_high_priority=settings.approval.rules.high_priority,
        own_jobs=settings.approval.rules.own_jobs,
        approvers=settings.approval.approvers,
        teams={
            team.name: TeamBudget(running_gpus=team.running_gpus, month_gpu_hours=team.month_gpu_hours)
            for team in settings.teams
        },
    )


def metrics(settings: Settings) -> Metrics:
    """The reader of vLLM's metrics."""
    section = settings.metrics
    keep_s = max(settings.policy.idle_window_s, settings.policy.stall_s, settings.policy.busy_window_s)
    if section.kind == "prometheus":
        return PrometheusMetrics(section.url, section.prefix, section.interval_s, keep_s + section.interval_s)
    return ScrapedMetrics(
        prefix=section.prefix, interval_s=section.interval_s, keep_s=keep_s + section.interval_s, clock=clock
    )


def check_bucket(settings: Settings) -> tuple[bool, str]:
    """Whether the bucket of the storage is there, as far as can be seen without its keys; and a sentence."""
    storage = settings.storage
    return bucket.looked_at(settings.storage_root, storage.endpoint, storage.region)


def check_metrics(settings: Settings, urls: Iterable[str]) -> tuple[str, ...]:
    """What is wrong with the names of vLLM's series: in Prometheus, or at each of the URLs; one sentence a fault."""
    section = settings.metrics
    if section.kind != "prometheus":
        return tuple(fault for url in urls for fault in _asked(partial(check_url, url, section.prefix)))
    reader = PrometheusMetrics(section.url, section.prefix, section.interval_s, section.interval_s)
    return _asked(reader.check_names)


def _asked(check: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    try:
        return check()
    except Unavailable as error:
        return (str(error),)


def house(settings: Settings, *, observe_only: bool = False) -> House:
    """Everything that `serve` and the operator's commands need.

    Raises:
        BadInput: the settings cannot be used.
    """
    store = SqlStore(settings.database_url)
    ground = _ground(settings)
    outside = Outside(
        metrics=metrics(settings),
        cluster=ground.cluster,
        executor=ground.executor,
        logs=ground.logs,
        store=store,
        leadership=store,
        images=ground.images,
    )
    terms = Terms(
        owner=f"{socket.gethostname()}:{settings.state_folder}",
        services=services(settings),
        calendar=calendar(settings),
        policy=settings.policy,
        house=intake.House(
            rules=rules(settings),
            terms=notices.Terms(
                currency=settings.money.currency,
                per_gpu_hour=settings.money.per_gpu_hour,
                storage_root=settings.storage_root,
            ),
            local=settings.cluster.kind == "local",
            timezone=ZoneInfo(settings.calendar.timezone),
            unfit=ground.unfit,
        ),
        team_gpus={team.name: team.running_gpus for team in settings.teams if team.running_gpus is not None},
        observe_only=observe_only,
    )
    return House(settings=settings, store=store, ground=ground, cycle=Cycle(outside, terms), outside=outside)


def _ground(settings: Settings) -> Ground:
    if settings.cluster.kind == "local":
        return local(settings, clock)
    # The clients of Kubernetes and Argo cost half a second and 60 MB; a command on a local cluster does without.
    from scheduler.wiring import kubernetes  # noqa: PLC0415

    return kubernetes.kubernetes(settings, clock)


def render(order: JobOrder, settings: Settings) -> str:
    """The Workflows that a job would be on Kubernetes, as YAML.

    Raises:
        BadInput: Argo cannot run this job.
    """
    from scheduler.wiring import kubernetes  # noqa: PLC0415 - as in _ground

    return kubernetes.render(order, settings)


def mailbox(settings: Settings) -> Mailbox:
    """The door that the bot uses too, for commands of the command line."""
    return Mailbox(settings.database_url)


def environment() -> dict[str, str]:
    """Of this process."""
    return dict(os.environ)
