"""A Workflow as the API server sends it: what Argo thinks of each task, and of each attempt that we lost sight of."""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from scheduler.adapters.argo.endings import End
from scheduler.adapters.kube.names import CANCELLED, DONE, JOB, SPEC
from scheduler.adapters.kube.objects import Raw, time
from scheduler.jobs.job import TaskName

_ENDED = frozenset({"Succeeded", "Failed", "Error"})
_FULFILLED = _ENDED | {"Skipped", "Omitted"}
_UNSEEN_CODE = "-1"
_RANKS = "1-"  # template of the further ranks of a gang: "1-train"
_CONTAINER = re.compile(r"^[a-z0-9-]+: (?=.*\(exit code )")  # Argo 4.0 says which container it was


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of a Workflow: an attempt (Pod), a task with all its attempts (Retry), or something around these."""

    id: str
    type: str
    phase: str
    task: TaskName
    message: str = ""
    exit_code: int | None = None
    ended_at: datetime | None = None
    children: tuple[str, ...] = ()

    @property
    def fulfilled(self) -> bool:
        """Argo is done with it."""
        return self.phase in _FULFILLED

    @property
    def end(self) -> End | None:
        """How an attempt ended, if Argo knows."""
        if self.phase not in _ENDED:
            return None
        code = 0 if self.phase == "Succeeded" else self.exit_code
        return End(code=code, message=_CONTAINER.sub("", self.message), at=self.ended_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSeen:
    """One Workflow at one time. `untold` says why its nodes cannot be read; "" = they are here."""

    name: str
    phase: str = ""
    message: str = ""
    spec_hash: str | None = None  # as we wrote it; None: not ours
    job: str = ""
    cancelled: bool = False  # by us
    stopping: bool = False  # by whomever: spec.shutdown is set
    leaving: bool = False  # it is being deleted
    done_before: tuple[TaskName, ...] = ()
    nodes: Mapping[str, Node] = field(default_factory=dict)
    untold: str = ""

    @property
    def ended(self) -> bool:
        """Argo makes no pods of it any more. Nodes may say otherwise for ever (argo #15472)."""
        return self.phase in _ENDED

    @property
    def takes_releases(self) -> bool:
        """Whether what is released now can still be followed by Argo."""
        return not (self.ended or self.stopping or self.leaving)

    def attempt(self, pod: str) -> Node | None:
        """The node of a pod, by the pod's name: both end in the same number."""
        number = pod.rpartition("-")[2]
        return next((node for id_, node in self.nodes.items() if id_.rpartition("-")[2] == number), None)

    def tasks(self) -> Mapping[TaskName, tuple[Node, ...]]:
        """Retry nodes by task; a gang has one for each rank."""
        found: dict[TaskName, tuple[Node, ...]] = {}
        for node in self.nodes.values():
            if node.type == "Retry":
                found[node.task] = (*found.get(node.task, ()), node)
        return found

    def succeeded(self) -> frozenset[TaskName]:
        """Tasks that Argo knows to be done, all ranks of them."""
        done = (task for task, nodes in self.tasks().items() if all(node.phase == "Succeeded" for node in nodes))
        return frozenset(done) | frozenset(self.done_before)

    def parent(self, attempt: str) -> Node | None:
        """The Retry node of an attempt's node."""
        return next((n for n in self.nodes.values() if n.type == "Retry" and attempt in n.children), None)

    def last_word(self, retry: Node) -> Node:
        """The newest attempt of a Retry node, whose own message only says that it gave up."""
        known = [self.nodes[child] for child in retry.children if child in self.nodes]
        return next((node for node in reversed(known) if node.message), retry)


def workflow(raw: Raw) -> WorkflowSeen:
    """A Workflow, read."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    annotations = meta.get("annotations") or {}
    nodes, untold = _nodes(meta["name"], status)
    return WorkflowSeen(
        name=meta["name"],
        phase=status.get("phase") or "",
        message=status.get("message") or "",
        spec_hash=annotations.get(SPEC),
        job=(meta.get("labels") or {}).get(JOB, ""),
        cancelled=CANCELLED in annotations,
        stopping=bool(spec.get("shutdown")),
        leaving="deletionTimestamp" in meta,
        done_before=tuple(TaskName(task) for task in annotations.get(DONE, "").split(",") if task),
        nodes={id_: _node(id_, one) for id_, one in nodes.items()},
        untold=untold,
    )


def _nodes(name: str, status: Raw) -> tuple[Mapping[str, Raw], str]:
    if status.get("offloadNodeStatusVersion"):
        return {}, (
            f"the status of Workflow {name} is kept in Argo's database (nodeStatusOffLoad), out of our sight; "
            "set persistence.nodeStatusOffLoad to false in Argo's workflow-controller-configmap"
        )
    packed = status.get("compressedNodes")
    if not packed:
        return status.get("nodes") or {}, ""
    try:
        return json.loads(gzip.decompress(base64.b64decode(packed))), ""
    except (binascii.Error, OSError, EOFError, ValueError) as error:
        return {}, (
            f"the status of Workflow {name} is packed in a way that gpujob cannot read ({error}); "
            "it reads gzip, so leave Argo's compression of the node status at that"
        )


def _node(id_: str, raw: Raw) -> Node:
    code = str((raw.get("outputs") or {}).get("exitCode") or _UNSEEN_CODE)
    return Node(
        id=id_,
        type=raw.get("type") or "",
        phase=raw.get("phase") or "",
        task=_task(raw),
        message=raw.get("message") or "",
        exit_code=None if code == _UNSEEN_CODE or not code.isdecimal() else int(code),
        ended_at=time(raw.get("finishedAt")),
        children=tuple(raw.get("children") or ()),
    )


def _task(raw: Mapping[str, Any]) -> TaskName:
    """Tasks that share a template have their name as its parameter; others have a template of their name."""
    given = {one["name"]: one.get("value") for one in (raw.get("inputs") or {}).get("parameters") or ()}
    return TaskName(given.get("task") or (raw.get("templateName") or "").removeprefix(_RANKS))
