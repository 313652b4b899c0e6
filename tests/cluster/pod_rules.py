"""What the API server does to a pod at birth, and which later changes of it are refused (ValidatePodUpdate)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Raw = Mapping[str, Any]

_FREE = frozenset({"schedulingGates", "nodeSelector", "affinity", "tolerations", "activeDeadlineSeconds"})


def born(pod: dict[str, Any], classes: Mapping[str, Raw], at: str) -> list[str]:
    """Fills in what admission and defaulting fill in. The result says why the pod is refused; empty = it is not."""
    spec = pod.setdefault("spec", {})
    if not spec.get("containers"):
        return ["spec.containers: Required value"]
    if spec.get("schedulingGates") and spec.get("nodeName"):
        return ["spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"]
    name = spec.get("priorityClassName")
    if name and name not in classes:
        return [f"no PriorityClass with name {name} was found"]
    chosen = classes.get(name, {}) if name else {}
    spec.setdefault("priority", chosen.get("value", 0))
    spec.setdefault("preemptionPolicy", chosen.get("preemptionPolicy", "PreemptLowerPriority"))
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("restartPolicy", "Always")
    for container in spec["containers"]:
        resources = container.setdefault("resources", {})
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    pod["status"] = {"phase": "Pending"}
    if spec.get("schedulingGates"):
        why = "Scheduling is blocked due to non-empty scheduling gates"
        pod["status"]["conditions"] = [condition("PodScheduled", "False", "SchedulingGated", why, at)]
    return []


def condition(kind: str, status: str, reason: str, message: str, at: str) -> dict[str, Any]:
    """A condition, as controllers write it."""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastProbeTime": None,
        "lastTransitionTime": at,
    }


def with_condition(pod: dict[str, Any], kind: str, status: str, reason: str, message: str, at: str) -> None:
    """Sets a condition of a copy; its time stays while its status does."""
    conditions = [*(pod["status"].get("conditions") or ())]
    old = next((one for one in conditions if one["type"] == kind), None)
    new = condition(kind, status, reason, message, at)
    if old is not None and old["status"] == status:
        new["lastTransitionTime"] = old.get("lastTransitionTime", at)
    pod["status"]["conditions"] = [*(one for one in conditions if one["type"] != kind), new]


def refused_change(old: Raw, new: Raw) -> list[str]:
    """Why a change of a pod (not of its status) is refused; empty = it is not."""
    was, now = old["spec"], new["spec"]
    gates_were = [one["name"] for one in was.get("schedulingGates") or ()]
    gates_are = [one["name"] for one in now.get("schedulingGates") or ()]
    faults = []
    if set(gates_are) - set(gates_were):
        faults.append("spec.schedulingGates: Forbidden: only deletion is allowed")
    if was.get("nodeSelector") != now.get("nodeSelector"):
        faults += _selector(was.get("nodeSelector") or {}, now.get("nodeSelector") or {}, bool(gates_were))
    if was.get("affinity") != now.get("affinity"):
        faults += _affinity(was.get("affinity") or {}, now.get("affinity") or {}, bool(gates_were))
    if any(one not in (now.get("tolerations") or ()) for one in was.get("tolerations") or ()):
        faults.append(
            "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"
        )
    faults += _deadline(was.get("activeDeadlineSeconds"), now.get("activeDeadlineSeconds"))
    if _rest(was) != _rest(now):
        faults.append("spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`, ..")
    return faults


def _selector(was: Mapping[str, str], now: Mapping[str, str], gated: bool) -> list[str]:
    if not gated:
        return ["spec.nodeSelector: Forbidden: pod updates may not change it"]
    if any(now.get(key) != value for key, value in was.items()):
        return ["spec.nodeSelector: Invalid value: only additions are allowed (no mutations or deletions)"]
    return []


def _affinity(was: Raw, now: Raw, gated: bool) -> list[str]:
    if {**was, "nodeAffinity": None} != {**now, "nodeAffinity": None} and (was or set(now) - {"nodeAffinity"}):
        return ["spec.affinity: Forbidden: pod updates may not change it"]
    return [] if gated and not was.get("nodeAffinity") else ["spec.affinity.nodeAffinity: Forbidden"]


def _deadline(was: int | None, now: int | None) -> list[str]:
    if was is not None and (now is None or now > was):
        return ["spec.activeDeadlineSeconds: Invalid value: must be less than or equal to previous value"]
    return []


def _rest(spec: Raw) -> Raw:
    kept = {key: value for key, value in spec.items() if key not in _FREE}
    for name in ("containers", "initContainers"):
        kept[name] = [{**one, "image": ""} for one in spec.get(name) or ()]
    return kept
