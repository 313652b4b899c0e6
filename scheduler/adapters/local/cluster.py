"""Nodes and services, played by slots and processes of this computer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from scheduler.adapters.local import environment, files, health, ports, services
from scheduler.adapters.local.lease import Lease, Seat, Tenant
from scheduler.adapters.local.ledger import Reserved
from scheduler.adapters.local.services import LocalService, Wish
from scheduler.adapters.local.state import LocalState
from scheduler.errors import BadInput, Unavailable
from scheduler.fleet.pool import Hold, HolderKind, Node, Pool, Replica, ReplicaId, ReplicaPhase
from scheduler.fleet.services import Mode
from scheduler.jobs.reports import Phase
from scheduler.ports import Clock

KEPT_FOLDERS = 10  # of replicas that ended, for their logs


class LocalCluster:
    """The port `Cluster`. Acts only while `state` is locked; without the lock it can still tell.

    Raises:
        BadInput: a service that is only observed is said to have GPUs that do not exist, or that another has.
    """

    def __init__(
        self,
        state: LocalState,
        nodes: Mapping[str, int],
        services: Sequence[LocalService],
        clock: Clock,
        path_first: Path | None = None,
    ) -> None:
        self._state = state
        self._nodes = nodes
        self._services = {service.name: service for service in services}
        self._clock = clock
        self._path_first = path_first
        self._fixed = _reserve(services, nodes, clock())
        state.ledger.reserved = tuple(reserved for reserved, _ in self._fixed)

    def pool(self, now: datetime) -> Pool:
        """Who holds which GPUs; on the way, replicas whose GPUs came free are started, dead ones replaced."""
        with self._state.turn:
            self._follow(now)
            replicas = [replica for service in self._managed() for replica in self._replicas(service)]
            try:
                return Pool(
                    at=now,
                    nodes=tuple(Node(name=name, gpus=gpus) for name, gpus in self._nodes.items()),
                    holds=tuple(self._holds()),
                    replicas=(*replicas, *(replica for _, replica in self._fixed)),
                )
            except ValueError as error:
                raise Unavailable(f"the settings do not fit what runs: {error}") from error

    def scale(self, service: str, replicas: int, leave_first: Sequence[str], nodes: Sequence[str]) -> None:
        """Ask for so many replicas; those that are too many are drained."""
        with self._state.turn:
            self._state.must_act()
            known = self._services.get(service)
            if known is None or known.mode is not Mode.MANAGE:
                raise Unavailable(f'{service} is no service that gpujob scales; set mode = "manage" for it')
            now = self._clock()
            self._state.ledger.attend(now)
            folder = self._state.service(service)
            wishes = services.read_wishes(folder, service)
            have = len(wishes.replicas)
            if replicas > have:
                services.write_wishes(folder, wishes.more(nodes, replicas - have, now))
            elif replicas < have:
                started = frozenset(lease.holder for lease in self._leases(known))
                services.write_wishes(folder, wishes.fewer(have - replicas, leave_first, started))
            self._replace_dead(known, now)
            self._drain(known, now)
            self._start_pending(now)

    def _follow(self, now: datetime) -> None:
        if not self._state.locked:
            self._state.ledger.forget()
            return
        self._state.ledger.attend(now)
        for service in self._managed():
            self._replace_dead(service, now)
            self._drain(service, now)
        self._start_pending(now)
        self._notice_ready(now)

    def _replace_dead(self, service: LocalService, now: datetime) -> None:
        folder = self._state.service(service.name)
        wishes = services.read_wishes(folder, service.name)
        live = self._state.ledger.live()
        for wish in wishes.replicas:
            lease = None if folder / wish.id in live else self._state.ledger.find(folder / wish.id)
            if lease is not None and lease.ending is not None:
                wishes = wishes.after_death(wish.id, lease.since, now)
                services.write_wishes(folder, wishes)

    def _drain(self, service: LocalService, now: datetime) -> None:
        """Whoever runs and is not wished for any more leaves."""
        folder = self._state.service(service.name)
        wished = frozenset(wish.id for wish in services.read_wishes(folder, service.name).replicas)
        for lease in self._leases(service):
            if lease.holder not in wished and lease.stop is None:
                lease.ask_to_stop(now, service.drain_s)
        kept = frozenset(lease.folder for lease in self._leases(service)) | {folder / name for name in wished}
        ended = sorted((one for one in files.folders(folder) if one not in kept), key=_number)
        for old in ended[:-KEPT_FOLDERS]:
            shutil.rmtree(old, ignore_errors=True)

    def _start_pending(self, now: datetime) -> None:
        pending = [
            (wish, service)
            for service in self._managed()
            for wish in services.read_wishes(self._state.service(service.name), service.name).replicas
            if self._state.ledger.find(self._state.service(service.name) / wish.id) is None
        ]
        for wish, service in sorted(pending, key=lambda pair: pair[0].asked_at):
            if wish.not_before is not None and wish.not_before > now:
                continue
            node = self._room(service, wish)
            if node:
                self._start(service, wish, node, now)

    def _room(self, service: LocalService, wish: Wish) -> str:
        free = self._state.ledger.free(self._nodes)
        choices = (wish.node,) if wish.node else tuple(self._nodes)
        return next((node for node in choices if len(free.get(node, ())) >= service.gpus_per_replica), "")

    def _start(self, service: LocalService, wish: Wish, node: str, now: datetime) -> None:
        folder = self._state.service(service.name) / wish.id
        own = environment.make_folder(folder / "work")
        port = ports.free_port(self._state.ledger.ports())
        env = {**environment.base(self._path_first), **service.env, "GPUJOB_REPLICA": wish.id}
        tenant = Tenant(
            kind=HolderKind.REPLICA,
            holder=wish.id,
            seats=(Seat(node=node, gpus=service.gpus_per_replica, env=env),),
            command=tuple(_filled(word, port, wish.id, service.name) for word in service.command),
            cwd=Path(service.workdir) if service.workdir else own,
            port=port,
        )
        self._state.ledger.grant(folder, tenant, self._nodes, now)

    def _notice_ready(self, now: datetime) -> None:
        starting = [
            lease
            for service in self._managed()
            for lease in self._leases(service)
            if lease.phase in (Phase.STARTING, Phase.RUNNING) and not (lease.folder / "ready.json").exists()
        ]
        answers = health.answering([lease.port for lease in starting])
        for lease, answers_now in zip(starting, answers, strict=True):
            if answers_now:
                files.write_once(lease.folder / "ready.json", {"at": now.timestamp()})

    def _replicas(self, service: LocalService) -> Iterator[Replica]:
        folder = self._state.service(service.name)
        wishes = {wish.id: wish for wish in services.read_wishes(folder, service.name).replicas}
        leases = {lease.holder: lease for lease in self._leases(service)}
        for name in sorted(wishes.keys() | leases.keys(), key=lambda name: _number(folder / name)):
            wish, lease = wishes.get(name), leases.get(name)
            phase, since = _phase(wish, lease)
            yield Replica(
                id=ReplicaId(name),
                service=service.name,
                phase=phase,
                gpus=service.gpus_per_replica if lease is None else sum(lease.gpus.values()),
                since=since,
                asked_at=wish.asked_at if wish else None,
                node=next(iter(lease.slots)) if lease else "",
                url=f"http://127.0.0.1:{lease.port}/metrics" if lease else "",
            )

    def _holds(self) -> Iterator[Hold]:
        for reserved, replica in self._fixed:
            yield Hold(node=reserved.node, gpus=len(reserved.slots), kind=HolderKind.REPLICA, holder=replica.id)
        for lease in self._state.ledger.live().values():
            for node, gpus in lease.gpus.items():
                if gpus:
                    yield Hold(
                        node=node, gpus=gpus, kind=lease.kind, holder=lease.holder, ending=lease.stop is not None
                    )

    def _managed(self) -> Iterator[LocalService]:
        return (service for service in self._services.values() if service.mode is Mode.MANAGE)

    def _leases(self, service: LocalService) -> tuple[Lease, ...]:
        folder = self._state.service(service.name)
        return tuple(lease for lease in self._state.ledger.live().values() if lease.folder.parent == folder)


def _phase(wish: Wish | None, lease: Lease | None) -> tuple[ReplicaPhase, datetime]:
    if lease is None:
        assert wish is not None
        return ReplicaPhase.PENDING, wish.asked_at
    if lease.stop is not None:
        return ReplicaPhase.LEAVING, lease.stop.at
    if ready := files.read(lease.folder / "ready.json"):
        return ReplicaPhase.READY, services.at(ready["at"])
    return ReplicaPhase.STARTING, lease.since


def _reserve(
    services: Sequence[LocalService], nodes: Mapping[str, int], now: datetime
) -> tuple[tuple[Reserved, Replica], ...]:
    """Slots of observed replicas, which nobody else ever gets."""
    free = {node: list(range(gpus)) for node, gpus in nodes.items()}
    fixed = []
    for service in services:
        for number, replica in enumerate(service.replicas, start=1):
            name = f"{service.name}-{number}"
            there = free.get(replica.node, [])
            slots = replica.slots or tuple(there[: service.gpus_per_replica])
            if len(slots) != service.gpus_per_replica or not set(slots) <= set(there):
                raise BadInput(
                    f"{name} cannot have {service.gpus_per_replica} GPUs of {replica.node}: {len(there)} are left there"
                )
            free[replica.node] = [slot for slot in there if slot not in slots]
            seen = Replica(
                id=ReplicaId(name),
                service=service.name,
                phase=ReplicaPhase.READY,
                gpus=service.gpus_per_replica,
                since=now,
                node=replica.node,
                url=replica.url,
            )
            fixed.append((Reserved(node=replica.node, slots=slots, holder=name), seen))
    return tuple(fixed)


def _filled(word: str, port: int, name: str, service: str) -> str:
    return word.replace("{port}", str(port)).replace("{name}", name).replace("{service}", service)


def _number(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])
