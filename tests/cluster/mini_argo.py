"""The Argo controller in small, with what was measured of it on a real control plane.

DAGs with `depends` and `withItems`, retries behind a gate, the race between "pod deleted" and the exit code, the free
replacement of pods that never ran, `shutdown`, `suspend`, the status finalizer. Outputs, steps and hooks it has not.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Mapping
from typing import Any

from tests.cluster import patches
from tests.cluster.argo_texts import (
    another_attempt,
    depends_on,
    depends_true,
    ended,
    filled,
    item_names,
    item_text,
    node_id,
    pod_name,
)
from tests.cluster.fake_store import TERMINAL, FakeStore, Problem, Raw, stamp
from tests.cluster.loop import Loop

_LABEL = "workflows.argoproj.io/workflow"
_COMPLETED = "workflows.argoproj.io/completed"
_PHASE = "workflows.argoproj.io/phase"
_REPORTED = "workflows.argoproj.io/report-outputs-completed"
_FINALIZER = "workflows.argoproj.io/status"
_OVER = frozenset({"Succeeded", "Failed", "Error", "Skipped", "Omitted"})
_BAD = frozenset({"Failed", "Error"})
_STATES = {"Succeeded": "Succeeded", "Failed": "Failed", "Errored": "Error", "Skipped": "Skipped", "Omitted": "Omitted"}


class MiniArgo(Loop):
    """`blind` is how often the end of a deleted pod is missed: always with Argo's timing, never with the finalizer."""

    watches = ("workflows", "pods", "workflowtaskresults")

    def __init__(
        self,
        store: FakeStore,
        *,
        blind: float = 0.5,
        finalizer: bool = False,
        requeue_s: float = 0.02,
        backoff_scale: float = 0.02,
        seed: int = 0,
    ) -> None:
        super().__init__(store)
        self.blind, self.finalizer, self.requeue_s, self.backoff_scale = blind, finalizer, requeue_s, backoff_scale
        self.random = random.Random(seed)
        self._sees: dict[str, bool] = {}  # uid of a pod that is deleted -> whether its end will be seen
        self._missing: dict[str, float] = {}  # node id, or uid of a pod that is stuck -> when that was noticed

    def forget(self) -> None:
        self._sees.clear()
        self._missing.clear()

    def turn(self) -> None:
        for workflow in self.store.items("workflows"):
            if (workflow["metadata"].get("labels") or {}).get(_COMPLETED) != "true":
                self._operate(workflow)
        for pod in self.store.items("pods"):
            self._finalize(pod)

    def _operate(self, workflow: Raw) -> None:
        meta = workflow["metadata"]
        run = _Run(self, json.loads(json.dumps(workflow)))
        run.go()
        new = run.workflow

        def change(there: dict[str, Any]) -> None:
            there["status"] = new["status"]
            there["metadata"]["labels"] = new["metadata"]["labels"]

        self.store.edit("workflows", meta["namespace"], meta["name"], change)
        if new["status"]["phase"] in _OVER:
            self._clean(new)

    def _clean(self, workflow: Raw) -> None:
        gc = workflow["spec"].get("podGC") or {}
        if gc.get("strategy") and gc.get("deleteDelayDuration", "0s") in ("0s", ""):
            for pod in self.pods_of(workflow):
                if pod["status"]["phase"] in TERMINAL:
                    self.store.delete("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])

    def pods_of(self, workflow: Raw) -> list[Raw]:
        meta = workflow["metadata"]
        return [
            one
            for one in self.store.items("pods", meta["namespace"])
            if (one["metadata"].get("labels") or {}).get(_LABEL) == meta["name"]
        ]

    def sees_the_end_of(self, pod: Raw) -> bool:
        """Chosen once a pod: whether Argo looks between its terminal status and its object's end."""
        meta = pod["metadata"]
        if "deletionTimestamp" not in meta or _FINALIZER in (meta.get("finalizers") or ()):
            return True
        return self._sees.setdefault(meta["uid"], self.random.random() >= self.blind)

    def overdue(self, key: str) -> bool:
        """Whether something was noticed a requeue ago."""
        since = self._missing.setdefault(key, time.monotonic())
        left = since + self.requeue_s - time.monotonic()
        if left > 0:
            self.later(left)
            return False
        return True

    def noticed_no_more(self, key: str) -> None:
        self._missing.pop(key, None)

    def _finalize(self, pod: Raw) -> None:
        """Once a pod's end is in its Workflow, or that is gone, the finalizer comes off."""
        meta = pod["metadata"]
        if _FINALIZER not in (meta.get("finalizers") or ()):
            return
        workflow = self.store.find("workflows", meta["namespace"], meta["labels"][_LABEL])
        nodes = ((workflow or {}).get("status") or {}).get("nodes") or {}
        node = nodes.get(meta["annotations"]["workflows.argoproj.io/node-id"], {"phase": "Error"})
        if node["phase"] in _OVER:
            off = {"metadata": {"$deleteFromPrimitiveList/finalizers": [_FINALIZER]}}
            self.store.patch("pods", meta["namespace"], meta["name"], off)


class _Run:
    """One look at one Workflow."""

    def __init__(self, argo: MiniArgo, workflow: dict[str, Any]) -> None:
        self.argo, self.workflow = argo, workflow
        self.name, self.namespace = workflow["metadata"]["name"], workflow["metadata"]["namespace"]
        self.templates = {one["name"]: one for one in workflow["spec"]["templates"]}
        self.status: dict[str, Any] = workflow.setdefault("status", {})
        self.nodes: dict[str, Any] = self.status.setdefault("nodes", {})
        self.pods = {one["metadata"]["name"]: one for one in argo.pods_of(workflow)}
        self.shutdown = workflow["spec"].get("shutdown", "")
        self.suspended = bool(workflow["spec"].get("suspend"))

    def go(self) -> None:
        self.status.setdefault("startedAt", stamp())
        self.status["phase"] = "Running"
        if self.suspended:
            self._look_at_pods()
        elif self.shutdown:
            self._shut_down()
        else:
            phase = self._dag()
            if phase in _OVER:
                self._end(phase, "")
        if self.suspended and self.shutdown:
            self._delete_pending()
        labels = self.workflow["metadata"].setdefault("labels", {})
        labels[_PHASE] = self.status["phase"]
        if self.status["phase"] in _OVER:
            labels[_COMPLETED] = "true"

    def _end(self, phase: str, message: str) -> None:
        self.status |= {"phase": phase, "finishedAt": stamp(), **({"message": message} if message else {})}

    def _shut_down(self) -> None:
        """Gated and waiting pods go; running ones are told through exec, which does nothing here (#14544)."""
        why = f"workflow shutdown with strategy:  {self.shutdown}"
        self._delete_pending()
        for node in self.nodes.values():
            if node["type"] == "Pod" and node["phase"] not in _OVER:
                self._fulfil(node, "Failed", why)
        if not any(pod["status"].get("phase") == "Running" for pod in self.pods.values()):
            self._end("Failed", f"Stopped with strategy '{self.shutdown}'")

    def _delete_pending(self) -> None:
        for pod in self.pods.values():
            if pod["status"].get("phase", "Pending") == "Pending" and "deletionTimestamp" not in pod["metadata"]:
                self.argo.store.delete("pods", self.namespace, pod["metadata"]["name"])

    def _look_at_pods(self) -> None:
        for node in self.nodes.values():
            if node["type"] == "Pod" and node["phase"] not in _OVER:
                self._assess(node, may_create=False)

    # the DAG

    def _dag(self) -> str:
        entry = self.templates[self.workflow["spec"]["entrypoint"]]
        root = self._node(self.name, "DAG", entry["name"], phase="Running")
        if "dag" not in entry:
            return self._leaf(self.name, entry, {}, "")
        tasks = {one["name"]: one for one in entry["dag"]["tasks"]}
        found: dict[str, tuple[str, list[str]]] = {}  # task -> its phase, and those of its items
        for name in _in_order(tasks):
            found[name] = self._task(tasks[name], root["id"], found)
        if any(phase not in _OVER for phase, _ in found.values()):
            return "Running"
        needed = {one for task in tasks.values() for one in depends_on(task.get("depends", ""))}
        phase = "Failed" if any(_spoils(name, tasks, found) for name in tasks if name not in needed) else "Succeeded"
        self._fulfil(root, phase, "")
        return phase

    def _task(self, task: Raw, boundary: str, found: Mapping[str, tuple[str, list[str]]]) -> tuple[str, list[str]]:
        node_name, depends = f"{self.name}.{task['name']}", task.get("depends", "")
        needs = [found[one] for one in depends_on(depends)]
        if any(phase not in _OVER for phase, _ in needs):
            return "", []
        if depends and not depends_true(depends, lambda name, state: _is_so(found[name], state)):
            why = "omitted: depends condition not met"
            self._node(node_name, "Skipped", task["template"], phase="Omitted", boundary=boundary, message=why)
            return "Omitted", []
        template = self.templates[task["template"]]
        given = {one["name"]: one.get("value", "") for one in (task.get("arguments") or {}).get("parameters") or ()}
        items = task.get("withItems")
        if items is None:
            phase = self._leaf(node_name, template, given, boundary)
            return phase, []
        group = self._node(node_name, "TaskGroup", task["template"], phase="Running", boundary=boundary)
        phases = [
            self._leaf(f"{node_name}{item_text(n, item)}", template, filled(given, item_names(item)), boundary)
            for n, item in enumerate(items)
        ]
        if all(phase in _OVER for phase in phases):
            self._fulfil(group, "Failed" if _BAD & set(phases) else "Succeeded", "")
        return group["phase"], phases

    def _leaf(self, name: str, template: Raw, given: Mapping[str, Any], boundary: str) -> str:
        """A pod template: its Retry node, and the attempts below it."""
        strategy = template.get("retryStrategy")
        if strategy is None:
            return self._attempt(name, template, given, boundary, 0)
        node = self._node(name, "Retry", template["name"], boundary=boundary, phase="Running", given=given)
        if node["phase"] in _OVER:
            return str(node["phase"])
        attempts = [self.nodes[one] for one in node["children"]]
        number = len(attempts)
        last = attempts[-1] if attempts else None
        if last is not None:
            phase = self._attempt(last["name"], template, given, boundary, number - 1)
            if phase not in _OVER or self._unreported(last):
                return "Running"
            verdict = "another" if phase in _BAD and self._again(strategy, last, number) else phase
            if verdict == "wait":
                return "Running"
            if verdict != "another":
                message = "" if phase == "Succeeded" else "retryStrategy.expression evaluated to false"
                self._fulfil(node, phase, message)
                return phase
            if not self._backed_off(strategy, last):
                return "Running"
        child = f"{name}({number})"
        node["children"].append(node_id(self.name, child))
        self._attempt(child, template, given, boundary, number)
        return "Running"

    def _unreported(self, attempt: Raw) -> bool:
        """argoexec's `wait` died hard: nothing goes on until somebody deletes the pod."""
        result = self.argo.store.find("workflowtaskresults", self.namespace, attempt["id"])
        labels = (result or {"metadata": {}})["metadata"].get("labels") or {}
        there = pod_name(self.name, attempt["templateName"], attempt["name"]) in self.pods
        return there and labels.get(_REPORTED) == "false"

    def _again(self, strategy: Raw, last: Raw, attempts: int) -> bool:
        if attempts > int(strategy.get("limit", 2**31)):
            return False
        told = {
            "exitCode": (last.get("outputs") or {}).get("exitCode", "-1"),
            "status": last["phase"],
            "message": last.get("message", ""),
        }
        return another_attempt(strategy["expression"], told)

    def _backed_off(self, strategy: Raw, last: Raw) -> bool:
        backoff = float((strategy.get("backoff") or {}).get("duration", "0").removesuffix("s") or 0)
        pause = backoff * self.argo.backoff_scale
        since = self.argo._missing.setdefault(f"backoff {last['id']}", time.monotonic())
        left = since + pause - time.monotonic()
        if left > 0:
            self.argo.later(left)
        return left <= 0

    # one attempt

    def _attempt(self, name: str, template: Raw, given: Mapping[str, Any], boundary: str, number: int) -> str:
        node = self._node(name, "Pod", template["name"], boundary=boundary, given=given)
        if node["phase"] not in _OVER:
            self._assess(node, may_create=True, number=number)
        return str(node["phase"])

    def _assess(self, node: dict[str, Any], may_create: bool, number: int = 0) -> None:
        pod = self.pods.get(pod_name(self.name, node["templateName"], node["name"]))
        if pod is None:
            self._without_pod(node, may_create, number)
            return
        self.argo.noticed_no_more(node["id"])
        phase = pod["status"].get("phase", "Pending")
        if phase in TERMINAL:
            if self.argo.sees_the_end_of(pod):
                outcome, message, code = ended(pod)
                node["outputs"] = {"exitCode": code} if code != "-1" else {}
                self._fulfil(node, outcome, message)
            return
        self.argo.sees_the_end_of(pod)
        node["phase"] = phase
        held = "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName")
        # Only a finalizer keeps a pod that was deleted before it was bound.
        if held and self.argo.overdue(pod["metadata"]["uid"]):
            why = f"can't find failed message for pod {pod['metadata']['name']} namespace {self.namespace}"
            self._fulfil(node, "Failed", why)

    def _without_pod(self, node: dict[str, Any], may_create: bool, number: int) -> None:
        if node["phase"] == "Running":
            self._fulfil(node, "Error", "pod deleted")
        elif may_create and (not node.get("made") or self.argo.overdue(node["id"])):
            self._create(node, number)

    def _create(self, node: dict[str, Any], number: int) -> None:
        node["made"] = True
        try:
            body = self._pod(node, number)
        except ValueError as error:
            self._fulfil(node, "Error", f"Error applying PodSpecPatch: {error}")
            return
        try:
            made = self.argo.store.create("pods", body, self.namespace)
        except Problem as problem:
            if problem.code != 409:
                self._fulfil(node, "Error", problem.message)
            return
        self.argo.noticed_no_more(node["id"])
        self.pods[made["metadata"]["name"]] = made

    def _pod(self, node: Raw, number: int) -> dict[str, Any]:
        spec = self.workflow["spec"]
        given = {one["name"]: one["value"] for one in (node.get("inputs") or {}).get("parameters") or ()}
        name = pod_name(self.name, node["templateName"], node["name"])
        names = {
            **{f"inputs.parameters.{key}": value for key, value in given.items()},
            "workflow.name": self.name,
            "workflow.namespace": self.namespace,
            "pod.name": name,
            "retries": str(number),
        }
        template = filled(self.templates[node["templateName"]], names)
        main = dict(template["container"])
        command = ["/var/run/argo/argoexec", "emissary", "--loglevel", "info", "--", *(main.get("command") or ())]
        containers = [{"name": "wait", "image": "argoexec:mini"}, {**main, "name": "main", "command": command}]
        pod_spec: dict[str, Any] = {
            "restartPolicy": "Never",
            "serviceAccountName": spec.get("serviceAccountName", "default"),
            "initContainers": [{"name": "init", "image": "argoexec:mini", "command": ["argoexec", "init"]}],
            "containers": containers,
        }
        for key in ("nodeSelector", "tolerations", "affinity", "priorityClassName", "activeDeadlineSeconds", "volumes"):
            if template.get(key):
                pod_spec[key] = template[key]
        if template.get("securityContext"):
            pod_spec["securityContext"] = template["securityContext"]
        for patch in filter(None, (spec.get("podSpecPatch"), template.get("podSpecPatch"))):
            pod_spec = patches.strategic(pod_spec, json.loads(patch))
        given_meta = template.get("metadata") or {}
        owner = self.workflow["metadata"]
        meta: dict[str, Any] = {
            "name": name,
            "labels": {**(given_meta.get("labels") or {}), _LABEL: self.name, _COMPLETED: "false"},
            "annotations": {
                **(given_meta.get("annotations") or {}),
                "workflows.argoproj.io/node-id": node["id"],
                "workflows.argoproj.io/node-name": node["name"],
            },
            "ownerReferences": [
                {
                    "apiVersion": "argoproj.io/v1alpha1",
                    "kind": "Workflow",
                    "name": self.name,
                    "uid": owner["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        }
        if self.argo.finalizer:
            meta["finalizers"] = [_FINALIZER]
        return {"metadata": meta, "spec": pod_spec}

    # nodes

    def _node(
        self,
        name: str,
        kind: str,
        template: str,
        *,
        phase: str = "Pending",
        boundary: str = "",
        message: str = "",
        given: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The node of this name, made if there is none."""
        key = node_id(self.name, name)
        if key not in self.nodes:
            node: dict[str, Any] = {
                "id": key,
                "name": name,
                "displayName": name.removeprefix(f"{self.name}."),
                "type": kind,
                "templateName": template,
                "phase": phase,
                "startedAt": stamp(),
                "message": message,
                "children": [],
            }
            if boundary:
                node["boundaryID"] = boundary
            if given:
                node["inputs"] = {"parameters": [{"name": one, "value": value} for one, value in given.items()]}
            if phase in _OVER:
                node["finishedAt"] = stamp()
            self.nodes[key] = node
        found: dict[str, Any] = self.nodes[key]
        return found

    def _fulfil(self, node: dict[str, Any], phase: str, message: str) -> None:
        if node["phase"] not in _OVER:
            node |= {"phase": phase, "message": message, "finishedAt": stamp()}


def _is_so(found: tuple[str, list[str]], state: str) -> bool:
    phase, items = found
    if state == "AnySucceeded":
        return "Succeeded" in items
    if state == "AllFailed":
        return bool(items) and set(items) <= _BAD
    return phase == _STATES.get(state)


def _in_order(tasks: Mapping[str, Raw]) -> Iterable[str]:
    """What a task depends on comes before it."""
    done: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in done:
            for need in depends_on(tasks[name].get("depends", "")):
                visit(need)
            done[name] = None

    for name in tasks:
        visit(name)
    return done


def _spoils(name: str, tasks: Mapping[str, Raw], found: Mapping[str, tuple[str, list[str]]]) -> bool:
    """Whether the end of a last task, or of what it waited for in vain, fails the Workflow."""
    phase = found[name][0]
    if phase == "Omitted":
        return any(_spoils(one, tasks, found) for one in depends_on(tasks[name].get("depends", "")))
    return phase in _BAD
