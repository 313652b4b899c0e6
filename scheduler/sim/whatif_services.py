"""Which service a series belongs to, by its labels: one of the settings, or one that is found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

# Pods of a Deployment end in the hash of their ReplicaSet and five more characters, those of a StatefulSet in a number.
_OF_DEPLOYMENT = re.compile(r"(?P<workload>.+)-[bcdf0-9ghjklmnpqrstvwxz]{6,10}-[bcdfghjklmnpqrstvwxz0-9]{5}")
_OF_SET = re.compile(r"(?P<workload>.+)-[0-9]{1,4}")

ReplicaKey = tuple[str, str]  # namespace, and pod or address


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownService:
    """What is known of a service beside its series; None where nothing is."""

    name: str
    namespace: str = ""  # "" = any
    workload: str = ""  # Deployment, StatefulSet or LeaderWorkerSet; "" = found by its addresses
    addresses: frozenset[str] = frozenset()  # HOST:PORT of its replicas
    gpus_per_replica: int | None = None
    max_num_seqs: int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    managed: bool | None = None  # True: gpujob scales it; False: another autoscaler does


@dataclass(slots=True)
class Directory:
    """Whose series is it? Services of the settings come first; without any, each workload or model is one."""

    known: Sequence[KnownService] = ()
    gpus: Mapping[str, int] = field(default_factory=dict)  # of a replica, for services that are found
    seqs: Mapping[str, int] = field(default_factory=dict)  # max_num_seqs, likewise
    strangers: set[ReplicaKey] = field(default_factory=set)  # replicas of no service of the settings
    _names: dict[tuple[str, str], str] = field(default_factory=dict)  # (namespace, workload or model) -> name

    def whose(self, labels: Mapping[str, str]) -> str | None:
        """The name of its service; None: it is of none."""
        if not self.known:
            return self._found(labels)
        for service in self.known:
            if _is_of(service, labels):
                return service.name
        self.strangers.add(replica_key(labels))
        return None

    def of(self, name: str) -> KnownService:
        """What is known of a service."""
        found = KnownService(name=name, gpus_per_replica=self.gpus.get(name), max_num_seqs=self.seqs.get(name))
        return next((one for one in self.known if one.name == name), found)

    def _found(self, labels: Mapping[str, str]) -> str:
        namespace = labels.get("namespace", "")
        place = (namespace, workload_of(labels.get("pod", "")) or labels.get("model_name") or labels.get("job", "vllm"))
        if place not in self._names:
            taken = set(self._names.values())
            self._names[place] = place[1] if place[1] not in taken else f"{namespace}/{place[1]}"
        return self._names[place]


def replica_key(labels: Mapping[str, str]) -> ReplicaKey:
    """What tells replicas apart. Two scrape jobs that see the same pod give the same key."""
    return labels.get("namespace", ""), labels.get("pod") or labels.get("instance", "")


def workload_of(pod: str) -> str:
    """`chat-7b` of `chat-7b-6d4f9c8b7d-x2k4p` or `chat-7b-3`; "" if the name tells nothing."""
    match = _OF_DEPLOYMENT.fullmatch(pod) or _OF_SET.fullmatch(pod)
    return match["workload"] if match else ""


def addresses_of(urls: Iterable[str]) -> frozenset[str]:
    """HOST:PORT of each URL."""
    return frozenset(urlsplit(url).netloc for url in urls)


def _is_of(service: KnownService, labels: Mapping[str, str]) -> bool:
    if labels.get("instance") in service.addresses:
        return True
    if not service.workload or (service.namespace and labels.get("namespace", service.namespace) != service.namespace):
        return False
    pod = labels.get("pod", "")
    # A LeaderWorkerSet's pods are NAME-GROUP and NAME-GROUP-WORKER.
    return workload_of(pod) == service.workload or workload_of(workload_of(pod)) == service.workload
