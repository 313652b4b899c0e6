"""kube-controller-manager in small: Deployments, StatefulSets, and the end of what lost its owner or its node."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any

from tests.cluster.fake_store import TERMINAL, Problem, Raw
from tests.cluster.loop import Loop

_COST = "controller.kubernetes.io/pod-deletion-cost"


class MiniControllers(Loop):
    """One turn of all controllers."""

    watches = ("deployments", "replicasets", "statefulsets", "pods", "nodes", "workflows", "workflowtaskresults")

    def turn(self) -> None:
        self._collect_garbage()
        self._collect_orphans()
        for one in self.store.items("deployments"):
            self._deployment(one)
        for kind, resource in (("ReplicaSet", "replicasets"), ("StatefulSet", "statefulsets")):
            for one in self.store.items(resource):
                self._set(one, resource, kind)

    def _collect_garbage(self) -> None:
        kinds = [name for name in self.store.kinds if name not in ("namespaces", "events")]
        uids = {one["metadata"]["uid"] for name in kinds for one in self.store.items(name)}
        for resource in ("replicasets", "pods", "workflowtaskresults"):
            if resource not in self.store.kinds:
                continue
            for one in self.store.items(resource):
                meta = one["metadata"]
                owners = [owner["uid"] for owner in meta.get("ownerReferences") or ()]
                if owners and not set(owners) & uids and "deletionTimestamp" not in meta:
                    self.store.delete(resource, meta["namespace"], meta["name"])

    def _collect_orphans(self) -> None:
        """Pods of a Node object that is gone."""
        nodes = {one["metadata"]["name"] for one in self.store.items("nodes")}
        for pod in self.store.items("pods"):
            meta, node = pod["metadata"], pod["spec"].get("nodeName")
            if not node or node in nodes:
                continue
            if pod["status"].get("phase") not in TERMINAL:
                self.store.disrupt(meta["namespace"], meta["name"], "DeletionByPodGC", "PodGC: node no longer exists")
                self.store.edit(
                    "pods", meta["namespace"], meta["name"], lambda new: new["status"].update(phase="Failed")
                )
            self.store.delete("pods", meta["namespace"], meta["name"], {"gracePeriodSeconds": 0})

    def _deployment(self, deployment: Raw) -> None:
        meta, spec = deployment["metadata"], deployment["spec"]
        name = f"{meta['name']}-{zlib.crc32(json.dumps(spec['template'], sort_keys=True).encode()):08x}"
        mine = [one for one in self.store.items("replicasets", meta["namespace"]) if _owned(one, meta["uid"])]
        want = spec.get("replicas", 1)
        if all(one["metadata"]["name"] != name for one in mine):
            kept = {"replicas": want, "selector": spec.get("selector") or {}, "template": spec["template"]}
            owner = _owner("apps/v1", "Deployment", deployment)
            body = {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": kept}
            self.store.create("replicasets", body, meta["namespace"])
        for one in mine:
            count = want if one["metadata"]["name"] == name else 0
            self.store.edit("replicasets", meta["namespace"], one["metadata"]["name"], _with_replicas(count))
        pods = [pod for one in mine for pod in self._pods(one)]
        self._told("deployments", deployment, pods)

    def _set(self, owner: Raw, resource: str, kind: str) -> None:
        pods = self._pods(owner)
        live = [one for one in pods if _alive(one)]
        want = owner["spec"].get("replicas", 1)
        meta, template = owner["metadata"], owner["spec"]["template"]
        for number in range(want - len(live)):
            given = dict(template.get("metadata") or {})
            named: dict[str, Any] = {"generateName": f"{meta['name']}-"}
            if kind == "StatefulSet":
                taken = {one["metadata"]["name"] for one in pods}
                free = [name for n in range(want) if (name := f"{meta['name']}-{n}") not in taken]
                if number >= len(free):
                    break  # the old one of that name has not gone yet
                named = {"name": free[number]}
            made = {**given, **named, "ownerReferences": [_owner("apps/v1", kind, owner)]}
            try:
                self.store.create("pods", {"metadata": made, "spec": template["spec"]}, meta["namespace"])
            except Problem as problem:
                self.errors.append(str(problem))
                break
        leaving = sorted(live, key=_stays)[: max(0, len(live) - want)]
        if kind == "StatefulSet":
            leaving = sorted(live, key=lambda one: one["metadata"]["name"])[want:]
        for one in leaving:
            self.store.delete("pods", meta["namespace"], one["metadata"]["name"])
        for one in pods:
            if one["status"].get("phase") in TERMINAL and "deletionTimestamp" not in one["metadata"]:
                self.store.delete("pods", meta["namespace"], one["metadata"]["name"])
        self._told(resource, owner, self._pods(owner))

    def _pods(self, owner: Raw) -> list[Raw]:
        meta = owner["metadata"]
        return [one for one in self.store.items("pods", meta["namespace"]) if _owned(one, meta["uid"])]

    def _told(self, resource: str, owner: Raw, pods: list[Raw]) -> None:
        live = [one for one in pods if _alive(one)]
        status = {
            "replicas": len(live),
            "readyReplicas": sum(map(_ready, live)),
            "availableReplicas": sum(map(_ready, live)),
            "observedGeneration": owner["metadata"].get("generation", 1),
        }
        meta = owner["metadata"]
        self.store.edit(resource, meta["namespace"], meta["name"], lambda new: new.update(status=status))


def _with_replicas(count: int) -> Callable[[dict[str, Any]], None]:
    return lambda new: new["spec"].update(replicas=count)


def _owner(version: str, kind: str, owner: Raw) -> Raw:
    meta = owner["metadata"]
    return {
        "apiVersion": version,
        "kind": kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _owned(item: Raw, uid: str) -> bool:
    return any(one["uid"] == uid for one in item["metadata"].get("ownerReferences") or ())


def _alive(pod: Raw) -> bool:
    return pod["status"].get("phase") not in TERMINAL and "deletionTimestamp" not in pod["metadata"]


def _ready(pod: Raw) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions") or ())


def _stays(pod: Raw) -> tuple[Any, ...]:
    """The smaller, the sooner it leaves when there are too many."""
    meta = pod["metadata"]
    cost = int((meta.get("annotations") or {}).get(_COST, 0))
    phases = {"Pending": 0, "Unknown": 1, "Running": 2}
    young_first = "".join(chr(0x10FFFF - ord(letter)) for letter in meta["creationTimestamp"])
    return bool(pod["spec"].get("nodeName")), phases.get(pod["status"]["phase"], 0), _ready(pod), cost, young_first
