"""The objects of the fake API server and the rules that the real one keeps, without HTTP.

Objects are never changed in place: what `get` and `items` return may be kept, and must not be edited.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from tests.cluster import patches, pod_rules

Raw = Mapping[str, Any]
STRATEGIC = "application/strategic-merge-patch+json"
NO_OPTIONS: Raw = MappingProxyType({})
TERMINAL = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One resource."""

    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    status: bool = True  # it has a status subresource
    custom: bool = False  # a CRD: no strategic merge patch

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


KINDS = {
    "pods": Kind(kind="Pod"),
    "nodes": Kind(kind="Node", namespaced=False),
    "namespaces": Kind(kind="Namespace", namespaced=False),
    "events": Kind(kind="Event", status=False),
    "configmaps": Kind(kind="ConfigMap", status=False),
    "secrets": Kind(kind="Secret", status=False),
    "services": Kind(kind="Service"),
    "serviceaccounts": Kind(kind="ServiceAccount", status=False),
    "deployments": Kind(kind="Deployment", group="apps"),
    "replicasets": Kind(kind="ReplicaSet", group="apps"),
    "statefulsets": Kind(kind="StatefulSet", group="apps"),
    "horizontalpodautoscalers": Kind(kind="HorizontalPodAutoscaler", group="autoscaling", version="v2"),
    "priorityclasses": Kind(kind="PriorityClass", group="scheduling.k8s.io", namespaced=False, status=False),
    "poddisruptionbudgets": Kind(kind="PodDisruptionBudget", group="policy"),
    "leases": Kind(kind="Lease", group="coordination.k8s.io", status=False),
    "workflows": Kind(kind="Workflow", group="argoproj.io", version="v1alpha1", status=False, custom=True),
    "workflowtaskresults": Kind(
        kind="WorkflowTaskResult", group="argoproj.io", version="v1alpha1", status=False, custom=True
    ),
}
# Resources that a cluster may lack; FakeApi(crds=[..]) installs them.
OPTIONAL = {
    "leaderworkersets": Kind(kind="LeaderWorkerSet", group="leaderworkerset.x-k8s.io", custom=True),
    "scaledobjects": Kind(kind="ScaledObject", group="keda.sh", version="v1alpha1", custom=True),
}


@dataclass
class Problem(Exception):
    """A Status that is no success."""

    code: int
    reason: str
    message: str
    causes: list[dict[str, str]] = field(default_factory=list)

    def status(self) -> dict[str, Any]:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": {"causes": self.causes},
            "code": self.code,
        }


@dataclass(frozen=True, slots=True)
class Event:
    """A change; `old` is what was there before."""

    version: int
    resource: str
    type: str
    new: Raw
    old: Raw | None
    data: bytes  # `new` as JSON


Key = tuple[str, str, str]  # resource, namespace, name


def stamp(seconds_from_now: float = 0.0) -> str:
    """Now, as the API writes times."""
    return (datetime.now(UTC) + timedelta(seconds=seconds_from_now)).strftime("%Y-%m-%dT%H:%M:%SZ")


class FakeStore:
    """Safe for threads: one lock around everything."""

    def __init__(self, kinds: Mapping[str, Kind], seed: int = 0) -> None:
        self.kinds = kinds
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.version = 100
        self.compacted = 0  # watches from versions below are Gone
        self.log: list[Event] = []
        self._objects: dict[Key, Raw] = {}
        self._listeners: list[Callable[[Event], None]] = []
        self._names = itertools.count(1)
        self.random = random.Random(seed)
        for name in ("default", "kube-system", "kube-node-lease", "gpujobs", "serving"):
            self.create("namespaces", {"metadata": {"name": name}})

    # reading

    def get(self, resource: str, namespace: str, name: str) -> Raw:
        with self.lock:
            found = self._objects.get((resource, namespace, name))
            if found is None:
                raise Problem(404, "NotFound", f'{self._long(resource)} "{name}" not found')
            return found

    def find(self, resource: str, namespace: str, name: str) -> Raw | None:
        with self.lock:
            return self._objects.get((resource, namespace, name))

    def items(self, resource: str, namespace: str | None = None) -> list[Raw]:
        """In the order of names, as etcd has them."""
        with self.lock:
            keys = sorted(k for k in self._objects if k[0] == resource and namespace in (None, "", k[1]))
            return [self._objects[key] for key in keys]

    # writing

    def create(self, resource: str, body: Raw, namespace: str = "", dry: bool = False) -> Raw:
        kind, new = self.kinds[resource], copy.deepcopy(dict(body))
        meta = new.setdefault("metadata", {})
        with self.lock:
            if kind.namespaced:
                meta["namespace"] = namespace or meta.get("namespace") or "default"
                if self.find("namespaces", "", meta["namespace"]) is None:
                    raise Problem(404, "NotFound", f'namespaces "{meta["namespace"]}" not found')
            if "name" not in meta and "generateName" in meta:
                meta["name"] = f"{meta['generateName']}{self.random.getrandbits(25):05x}"[-253:]
            if not meta.get("name"):
                raise Problem(422, "Invalid", "metadata.name: Required value: name or generateName is required")
            key = (resource, meta.get("namespace", ""), meta["name"])
            if key in self._objects:
                raise Problem(409, "AlreadyExists", f'{self._long(resource)} "{meta["name"]}" already exists')
            new |= {"apiVersion": kind.api_version, "kind": kind.kind}
            meta |= {"uid": str(uuid.UUID(int=self.random.getrandbits(128))), "creationTimestamp": stamp()}
            for fixed in ("deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"):
                meta.pop(fixed, None)
            if resource == "pods":
                classes = {one["metadata"]["name"]: one for one in self.items("priorityclasses")}
                _refuse_if(pod_rules.born(new, classes, stamp()), "Pod", meta["name"])
            elif kind.status:
                new.pop("status", None)
            return new if dry else self._put(key, new)

    def patch(
        self,
        resource: str,
        namespace: str,
        name: str,
        body: Raw,
        content: str = STRATEGIC,
        sub: str = "",
        dry: bool = False,
    ) -> Raw:
        """Raises Problem 409 for a stale version, 422 for another uid and for what pods do not allow."""
        kind = self.kinds[resource]
        if content == STRATEGIC and kind.custom:
            raise Problem(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {content}")
        with self.lock:
            old = self.get(resource, namespace, name)
            new = (patches.strategic if content == STRATEGIC else patches.merged)(old, body)
            return self.replace(resource, namespace, name, new, sub, dry)

    def replace(self, resource: str, namespace: str, name: str, body: Raw, sub: str = "", dry: bool = False) -> Raw:
        """Stores a whole object over the one that is there, by the rules of an update."""
        kind = self.kinds[resource]
        with self.lock:
            old = self.get(resource, namespace, name)
            new = copy.deepcopy(dict(body))
            meta, was = new["metadata"], old["metadata"]
            if meta.get("uid", was["uid"]) != was["uid"]:
                why = f"metadata.uid: Invalid value: {json.dumps(meta['uid'])}: field is immutable"
                _refuse_if([why], kind.kind, name)
            if meta.get("resourceVersion", was["resourceVersion"]) != was["resourceVersion"]:
                raise Problem(
                    409,
                    "Conflict",
                    f'Operation cannot be fulfilled on {self._long(resource)} "{name}": '
                    "the object has been modified; please apply your changes to the latest version and try again",
                )
            for fixed in ("uid", "name", "namespace", "creationTimestamp", "deletionTimestamp", "resourceVersion"):
                if fixed in was:
                    meta[fixed] = was[fixed]
                else:
                    meta.pop(fixed, None)
            if sub == "status":
                new = {**new, "spec": old.get("spec", {})}
            elif kind.status:
                new["status"] = old.get("status", {})
                if resource == "pods":
                    _refuse_if(pod_rules.refused_change(old, new), "Pod", name)
            if dry:
                return new
            if (
                "deletionTimestamp" in meta
                and not meta.get("finalizers")
                and not meta.get("deletionGracePeriodSeconds")
            ):
                return self._remove((resource, was.get("namespace", ""), name), new)
            return old if new == old else self._put((resource, was.get("namespace", ""), name), new)

    def edit(self, resource: str, namespace: str, name: str, change: Callable[[dict[str, Any]], object]) -> Raw | None:
        """`change` edits a copy in place, past all rules. None: there is no such object."""
        with self.lock:
            old = self.find(resource, namespace, name)
            if old is None:
                return None
            new = copy.deepcopy(dict(old))
            change(new)
            key = (resource, old["metadata"].get("namespace", ""), name)
            meta = new["metadata"]
            if (
                "deletionTimestamp" in meta
                and not meta.get("finalizers")
                and not meta.get("deletionGracePeriodSeconds")
            ):
                return self._remove(key, new)
            return old if new == old else self._put(key, new)

    def delete(self, resource: str, namespace: str, name: str, options: Raw = NO_OPTIONS) -> Raw:
        """Graceful for bound pods that run; the second time it can only shorten."""
        with self.lock:
            old = self.get(resource, namespace, name)
            _preconditions(old, options, self._long(resource))
            key = (resource, old["metadata"].get("namespace", ""), name)
            grace = _grace(old, options) if resource == "pods" else 0
            new = copy.deepcopy(dict(old))
            meta = new["metadata"]
            was = meta.get("deletionGracePeriodSeconds")
            if "deletionTimestamp" in meta and was is not None:
                if grace >= was and (grace or meta.get("finalizers")):
                    return old
                grace = min(grace, was)
            if grace == 0 and not meta.get("finalizers"):
                return self._remove(key, new)
            meta |= {"deletionTimestamp": stamp(grace), "deletionGracePeriodSeconds": grace}
            return self._put(key, new)

    def evict(self, namespace: str, name: str, options: Raw = NO_OPTIONS) -> None:
        """Raises Problem 429 where a PodDisruptionBudget has nothing left, 500 where two match."""
        with self.lock:
            pod = self.get("pods", namespace, name)
            _preconditions(pod, options, "pods")
            phase = pod["status"].get("phase", "Pending")
            if phase == "Running" and "deletionTimestamp" not in pod["metadata"]:
                self._disrupt(pod)
            self.disrupt(namespace, name, "EvictionByEvictionAPI", "Eviction API: evicting")
            self.delete("pods", namespace, name, options)

    def disrupt(self, namespace: str, name: str, reason: str, message: str) -> None:
        """The condition that says who ends a pod."""
        self.edit(
            "pods",
            namespace,
            name,
            lambda pod: pod_rules.with_condition(pod, "DisruptionTarget", "True", reason, message, stamp()),
        )

    def bind(self, namespace: str, name: str, node: str) -> None:
        """What kube-scheduler does last."""
        with self.lock:
            pod = self.get("pods", namespace, name)
            if pod["spec"].get("nodeName") or pod["spec"].get("schedulingGates"):
                raise Problem(409, "Conflict", f"pod {name} is already assigned or has non-empty .spec.schedulingGates")

            def change(new: dict[str, Any]) -> None:
                new["spec"]["nodeName"] = node
                pod_rules.with_condition(new, "PodScheduled", "True", "", "", stamp())

            self.edit("pods", namespace, name, change)

    # events

    def listen(self, heard: Callable[[Event], None]) -> None:
        """`heard` is called under the lock, for every change, in order: it must be quick."""
        with self.lock:
            self._listeners.append(heard)

    def compact(self) -> None:
        """Watches from before now are Gone."""
        with self.lock:
            self.compacted = self.version
            self.log.clear()

    def _put(self, key: Key, new: dict[str, Any]) -> Raw:
        self.version += 1
        old = self._objects.get(key)
        new["metadata"]["resourceVersion"] = str(self.version)
        if key[0] in ("deployments", "statefulsets", "replicasets"):
            same = old is not None and old.get("spec") == new.get("spec")
            new["metadata"]["generation"] = (old or {}).get("metadata", {}).get("generation", 0) + (not same)
        self._objects[key] = new
        self._tell("MODIFIED" if old else "ADDED", key[0], new, old)
        return new

    def _remove(self, key: Key, new: dict[str, Any]) -> Raw:
        self.version += 1
        old = self._objects.pop(key)
        new["metadata"]["resourceVersion"] = str(self.version)
        self._tell("DELETED", key[0], new, old)
        return new

    def _tell(self, kind: str, resource: str, new: Raw, old: Raw | None) -> None:
        event = Event(self.version, resource, kind, new, old, json.dumps(new).encode())
        self.log.append(event)
        for heard in self._listeners:
            heard(event)
        self.changed.notify_all()

    def _disrupt(self, pod: Raw) -> None:
        labels = pod["metadata"].get("labels") or {}
        budgets = [
            one
            for one in self.items("poddisruptionbudgets", pod["metadata"]["namespace"])
            if (wanted := (one["spec"].get("selector") or {}).get("matchLabels"))
            and all(labels.get(key) == value for key, value in wanted.items())
        ]
        if len(budgets) > 1:
            raise Problem(
                500,
                "InternalError",
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            )
        for budget in budgets:
            left = (budget.get("status") or {}).get("disruptionsAllowed", 0)
            if left <= 0:
                cause = {"reason": "DisruptionBudget", "message": f"The disruption budget {budget['metadata']['name']}"}
                raise Problem(
                    429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.", [cause]
                )
            meta = budget["metadata"]
            self.edit("poddisruptionbudgets", meta["namespace"], meta["name"], _used_once)

    def _long(self, resource: str) -> str:
        group = self.kinds[resource].group
        return f"{resource}.{group}" if group else resource


def _grace(pod: Raw, options: Raw) -> int:
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in TERMINAL:
        return 0
    told = options.get("gracePeriodSeconds")
    grace = int(pod["spec"].get("terminationGracePeriodSeconds", 30) if told is None else told)
    return 1 if grace < 0 else grace


def _preconditions(old: Raw, options: Raw, resource: str) -> None:
    for field_name, value in (options.get("preconditions") or {}).items():
        is_now = old["metadata"].get({"uid": "uid", "resourceVersion": "resourceVersion"}[field_name])
        if value != is_now:
            raise Problem(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {resource} "{old["metadata"]["name"]}": Precondition '
                f"failed: {field_name.upper()} in precondition: {value}, {field_name.upper()} in object meta: {is_now}",
            )


def _refuse_if(faults: list[str], kind: str, name: str) -> None:
    if faults:
        if faults[0].startswith("no PriorityClass"):
            raise Problem(403, "Forbidden", f'pods "{name}" is forbidden: {faults[0]}')
        causes = [{"reason": "FieldValueInvalid", "message": one} for one in faults]
        raise Problem(422, "Invalid", f'{kind} "{name}" is invalid: {"; ".join(faults)}', causes)


def _used_once(budget: dict[str, Any]) -> None:
    budget["status"]["disruptionsAllowed"] -= 1
