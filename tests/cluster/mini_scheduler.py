"""kube-scheduler in small: filters, binding, and preemption of lower priorities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.adapters.kube.objects import requested, whole
from tests.cluster import pod_rules
from tests.cluster.fake_store import TERMINAL, Raw, stamp
from tests.cluster.loop import Loop
from tests.cluster.selectors import labels_match

_HARD = ("NoSchedule", "NoExecute")


class MiniScheduler(Loop):
    """Binds what fits, the highest priority first."""

    watches = ("pods", "nodes")

    def turn(self) -> None:
        waiting = [one for one in self.store.items("pods") if _waits(one)]
        waiting.sort(key=lambda one: (-_priority(one), int(one["metadata"]["resourceVersion"])))
        for pod in waiting:
            self._try(pod)

    def _try(self, pod: Raw) -> None:
        nodes = self.store.items("nodes")
        possible = [one for one in nodes if not unfit(pod, one)]
        open_nodes = [one for one in possible if fits(pod, one, self._rivals(pod, one["metadata"]["name"]))]
        if open_nodes:
            nominated = pod["status"].get("nominatedNodeName")
            best = min(open_nodes, key=lambda one: (one["metadata"]["name"] != nominated, -_wishes(pod, one)))
            meta = pod["metadata"]
            self.store.bind(meta["namespace"], meta["name"], best["metadata"]["name"])
            return
        self._preempt(pod, possible)
        whys = sorted({unfit(pod, one) or "Insufficient resources" for one in nodes})
        self._say(pod, f"0/{len(nodes)} nodes are available: {', '.join(whys) or 'there are none'}.")

    def _rivals(self, pod: Raw, node: str) -> list[Raw]:
        """Who holds a node: the pods that are bound there, and those it is being emptied for."""
        return [
            one
            for one in self.store.items("pods")
            if one["metadata"]["uid"] != pod["metadata"]["uid"]
            and one["status"].get("phase") not in TERMINAL
            and (
                one["spec"].get("nodeName") == node
                or (one["status"].get("nominatedNodeName") == node and _priority(one) >= _priority(pod) and _waits(one))
            )
        ]

    def _say(self, pod: Raw, why: str) -> None:
        meta = pod["metadata"]

        def change(new: dict[str, Any]) -> None:
            pod_rules.with_condition(new, "PodScheduled", "False", "Unschedulable", why, stamp())

        self.store.edit("pods", meta["namespace"], meta["name"], change)

    def _preempt(self, pod: Raw, possible: Sequence[Raw]) -> None:
        if pod["spec"].get("preemptionPolicy") == "Never":
            return
        nominated = pod["status"].get("nominatedNodeName")
        if nominated and any(
            "deletionTimestamp" in one["metadata"] and _priority(one) < _priority(pod)
            for one in self._rivals(pod, nominated)
        ):
            return  # its victims are on their way out
        plans = [(one, victims) for one in possible if (victims := self._victims(pod, one)) is not None]
        if not plans:
            return
        node, victims = min(plans, key=lambda plan: (max(map(_priority, plan[1]), default=-(2**31)), len(plan[1])))
        meta, name = pod["metadata"], node["metadata"]["name"]
        self.store.edit(
            "pods", meta["namespace"], meta["name"], lambda new: new["status"].update(nominatedNodeName=name)
        )
        for one in victims:
            if "deletionTimestamp" not in one["metadata"]:
                where = one["metadata"]["namespace"], one["metadata"]["name"]
                why = "default-scheduler: preempting to accommodate a higher priority pod"
                self.store.disrupt(*where, "PreemptionByScheduler", why)
                self.store.delete("pods", *where)

    def _victims(self, pod: Raw, node: Raw) -> list[Raw] | None:
        """The fewest of the least important; None = not even all of them make room."""
        rivals = self._rivals(pod, node["metadata"]["name"])
        kept = [one for one in rivals if _priority(one) >= _priority(pod)]
        if not fits(pod, node, kept):
            return None
        victims = []
        lower = [one for one in rivals if _priority(one) < _priority(pod)]
        for one in sorted(lower, key=lambda one: (-_priority(one), one["metadata"]["creationTimestamp"])):
            if fits(pod, node, [*kept, one]):
                kept.append(one)
            else:
                victims.append(one)
        return victims


def unfit(pod: Raw, node: Raw) -> str:
    """Why a pod may not be on a node, whoever is there; "" = it may."""
    spec, labels = pod["spec"], node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    if not _required(spec, labels):
        return "node(s) didn't match Pod's node affinity/selector"
    if node["spec"].get("unschedulable"):
        return "node(s) were unschedulable"
    for taint in node["spec"].get("taints") or ():
        if taint["effect"] in _HARD and not any(_tolerates(one, taint) for one in spec.get("tolerations") or ()):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    ready = [one["status"] for one in node["status"].get("conditions") or () if one["type"] == "Ready"]
    return "" if ready == ["True"] else "node(s) had untolerated taint {node.kubernetes.io/not-ready: }"


def fits(pod: Raw, node: Raw, there: Sequence[Raw]) -> bool:
    """Whether the resources suffice beside the pods that are there."""
    allocatable = node["status"].get("allocatable") or {}
    for name, need in _asks(pod).items():
        taken = sum(_asks(one).get(name, 0.0) for one in there)
        if need and need + taken > amount(allocatable.get(name, 0)):
            return False
    return len(there) < amount(allocatable.get("pods", 110))


def amount(quantity: str | float) -> float:
    """A quantity: 8, "500m", "2Gi"."""
    text = str(quantity)
    for suffix, factor in (("m", 0.001), ("Ki", 2**10), ("Mi", 2**20), ("Gi", 2**30), ("Ti", 2**40), ("G", 1e9)):
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(whole(text))


def _asks(pod: Raw) -> Mapping[str, float]:
    plain = {"cpu": 0.0, "memory": 0.0}
    for container in pod["spec"]["containers"]:
        for name, quantity in ((container.get("resources") or {}).get("requests") or {}).items():
            if name in plain:
                plain[name] += amount(quantity)
    return {**plain, **{name: float(count) for name, count in requested(pod["spec"]).items()}}


def _waits(pod: Raw) -> bool:
    spec = pod["spec"]
    return (
        not spec.get("nodeName")
        and not spec.get("schedulingGates")
        and pod["status"].get("phase") not in TERMINAL
        and "deletionTimestamp" not in pod["metadata"]
    )


def _priority(pod: Raw) -> int:
    return int(pod["spec"].get("priority") or 0)


def _tolerates(toleration: Raw, taint: Raw) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def _required(spec: Raw, labels: Mapping[str, str]) -> bool:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    return terms is None or any(_matches(one, labels) for one in terms)


def _wishes(pod: Raw, node: Raw) -> int:
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    labels = node["metadata"].get("labels") or {}
    wishes = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    return sum(one["weight"] for one in wishes if _matches(one["preference"], labels))


def _matches(term: Raw, labels: Mapping[str, str]) -> bool:
    words = {"Exists": "{key}", "DoesNotExist": "!{key}", "In": "{key} in ({all})", "NotIn": "{key} notin ({all})"}
    return all(
        labels_match(words[one["operator"]].format(key=one["key"], all=",".join(one.get("values") or ())), labels)
        for one in term.get("matchExpressions") or ()
    )
