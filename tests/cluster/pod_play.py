"""One pod on a fake kubelet, from bound to gone. See fakelet.py for the annotations that script it."""

from __future__ import annotations

import base64
import json
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from scheduler.adapters.kube.api import MERGE, STRATEGIC, Api, Refused
from scheduler.errors import Unavailable
from tests.cluster.containers import Process, argv, environment, expand, main_of
from tests.cluster.fake_store import stamp

Raw = Mapping[str, Any]
_TASK_RESULTS = "/apis/argoproj.io/v1alpha1/namespaces/{}/workflowtaskresults"
_SCRIPTED = frozenset({"run-for", "exit-code", "reason", "term-exit-code", "term-after", "ignore-term"})
NOTHING: Mapping[str, str] = MappingProxyType({})
_STEP_S = 0.5  # how often a pod looks up although nothing told it to


class PodGone(Exception):
    """The object is not there any more, or is another one: stop playing it."""


class Kubelet(Protocol):
    """What a pod needs of its kubelet."""

    api: Api
    stopping: threading.Event
    gone_delay_s: float

    def is_lost(self, node: str) -> bool: ...
    def admit(self, play: PodPlay) -> str: ...
    def folder_of(self, play: PodPlay) -> Path: ...
    def release_devices(self, play: PodPlay) -> None: ...
    def forget(self, play: PodPlay) -> None: ...


class PodPlay(threading.Thread):
    """Plays one uid. `holds` is how many GPUs it holds now."""

    def __init__(self, kubelet: Kubelet, pod: Raw, ip: str) -> None:
        super().__init__(daemon=True, name=f"pod-{pod['metadata']['name']}")
        self.kubelet, self.pod, self.ip = kubelet, pod, ip
        self.uid, self.node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        self.devices: tuple[int, ...] = ()
        self.process: Process | None = None
        self._changed = threading.Condition()
        self._is_gone = False
        self._kill_at: float | None = None
        self._begun_at = ""
        self._result_made = False
        self.see(pod)

    # told by the watch

    def see(self, pod: Raw) -> None:
        with self._changed:
            self.pod = pod
            if pod["metadata"].get("deletionTimestamp"):
                # A kubelet counts the grace from when it sees the deletion; a second one can only shorten it.
                grace = pod["metadata"].get("deletionGracePeriodSeconds")
                at = time.monotonic() + (30 if grace is None else grace)
                self._kill_at = at if self._kill_at is None else min(at, self._kill_at)
            self._changed.notify_all()

    def gone(self) -> None:
        with self._changed:
            self._is_gone = True
            self._changed.notify_all()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # what the annotations say

    def told(self, key: str, default: str = "") -> str:
        return str((self.pod["metadata"].get("annotations") or {}).get(f"sim/{key}", default))

    def seconds(self, key: str, default: float) -> float:
        return float(self.told(key) or default)

    @property
    def scripted(self) -> bool:
        mode = self.told("mode")
        if mode:
            return mode == "script"
        has = any(self.told(key) for key in _SCRIPTED)
        return has or not argv(main_of(self.pod["spec"]))

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/pods/{self.pod['metadata']['name']}"

    # the life of the pod

    def run(self) -> None:
        try:
            self._live()
        except PodGone:
            pass
        finally:
            self._let_go()
            self.kubelet.forget(self)

    def _live(self) -> None:
        if self.pod["status"].get("phase") in ("Succeeded", "Failed"):
            self._remove_when_asked()
            return
        refusal = self.told("reject") or self.kubelet.admit(self)
        if refusal:
            reason, _, message = refusal.partition(": ")
            self._report(phase="Failed", reason=reason, message=message, startTime=stamp())
            self._remove_when_asked()
            return
        if not self._prepare():
            return
        problem = self._begin()
        if problem:
            self._finish(128, "StartError", pod={"message": problem})
            self._remove_when_asked()
            return
        self._report(
            phase="Running",
            podIP=self.ip,
            podIPs=[{"ip": self.ip}],
            hostIP="127.0.0.1",
            conditions=_conditions(ready=self._probe() is None),
            initContainerStatuses=self._statuses("initContainers", lambda _: self._ended(0)),
            containerStatuses=self._statuses("containers", lambda _: {"running": {"startedAt": self._begun_at}}),
        )
        self._run_main()

    def _prepare(self) -> bool:
        """Images and init containers; False = it was deleted before main ran, and is gone."""
        kind = "PodInitializing" if self.pod["spec"].get("initContainers") else "ContainerCreating"
        init = {"waiting": {"reason": "PodInitializing"}}
        self._report(
            phase="Pending",
            startTime=stamp(),
            conditions=_conditions(ready=False, initialized=False),
            initContainerStatuses=self._statuses("initContainers", lambda _: init),
            containerStatuses=self._statuses("containers", lambda _: {"waiting": {"reason": kind}}),
        )
        stuck = self.told("stuck")
        if stuck:
            self._wait(self.seconds("start-delay", 0.02), heed_term=False)
            self._get_stuck(stuck)
        if self._wait(None if stuck else self.seconds("start-delay", 0.02)) == "term":
            self._end_pending(initialized=bool(stuck) and not stuck.startswith("init:"))
            return False
        return True

    def _get_stuck(self, reason: str) -> None:
        held = {"waiting": {"reason": reason.removeprefix("init:"), "message": "played"}}
        if reason.startswith("init:"):
            self._report(initContainerStatuses=self._statuses("initContainers", lambda _: held))
            return
        self._begun_at = stamp()
        self._task_result(complete=False)
        runs = {"running": {"startedAt": self._begun_at}}
        self._report(
            conditions=_conditions(ready=False),
            initContainerStatuses=self._statuses("initContainers", lambda _: self._ended(0)),
            containerStatuses=self._statuses("containers", lambda n: held if n == self._main else runs),
        )

    def _end_pending(self, initialized: bool) -> None:
        """A kubelet makes a pod that never ran Failed; once init is done, main "ended" with 137."""
        if self.told("pending-delete") == "vanish" or self.told("vanish") == "true":
            self._remove()
            return
        status: dict[str, Any] = {"phase": "Failed"}
        if initialized:
            unknown = {
                "terminated": {
                    "exitCode": 137,
                    "reason": "ContainerStatusUnknown",
                    "startedAt": None,
                    "finishedAt": None,
                    "message": "The container could not be located when the pod was terminated",
                }
            }
            self._task_result(complete=True)
            status["containerStatuses"] = self._statuses(
                "containers", lambda n: unknown if n == self._main else self._ended(0)
            )
        self._report(**status)
        self._leave()

    def _begin(self) -> str:
        """Starts main. The result says why it cannot be started."""
        self._begun_at = stamp()
        self._task_result(complete=False)
        if self.scripted:
            return ""
        container = main_of(self.pod["spec"])
        folder = self.kubelet.folder_of(self)
        try:
            env = environment(self.pod, container, self.ip, self.devices, self._entries)
            words = [expand(word, env) for word in argv(container)]
            where = Path(container.get("workingDir") or folder)
            where = where if where.is_dir() else folder
            self.process = Process(words, env, where, folder / f"{self._main}.log", self.wake)
        except (OSError, KeyError) as error:
            return f"failed to start container: {error}"
        return ""

    def _run_main(self) -> None:
        limit = self.pod["spec"].get("activeDeadlineSeconds")
        probe = self._probe()
        if probe:
            threading.Thread(target=self._probe_until_ready, args=(probe,), daemon=True).start()
        own = self.seconds("run-for", 0.0) if self.scripted and self.told("run-for") else None
        over = limit is not None and (own is None or limit < own)
        cause = self._wait(float(limit) if over and limit is not None else own)
        if cause == "term":
            self._terminate()
            return
        if cause == "exit":
            assert self.process is not None
            assert self.process.code is not None
            self._finish(self.process.code)
        elif over:
            self._deadline()
        else:
            self._finish(int(self.told("exit-code", "0")), self.told("reason"))
        self._remove_when_asked()

    def _deadline(self) -> None:
        """The kubelet's own limit: the pod's message wins over exit codes."""
        code = self._stop_main(time.monotonic() + float(self.pod["spec"].get("terminationGracePeriodSeconds", 30)))
        why = "Pod was active on the node longer than the specified deadline"
        self._finish(code, "Error", pod={"phase": "Failed", "reason": "DeadlineExceeded", "message": why})

    def _terminate(self) -> None:
        """SIGTERM, the grace, SIGKILL, the terminal status, the object's end."""
        if self.told("vanish") == "true":
            self._wait(self.seconds("term-after", 0.0), heed_term=False)
            self._remove()
            return
        code = self._stop_main(None)
        self._finish(code, outputs=False)
        self._leave()

    def _stop_main(self, kill_at: float | None) -> int:
        """The exit code; `kill_at` None = when the grace of the deletion is over."""
        if self.process is None:
            needs = float("inf") if self.told("ignore-term") == "true" else self.seconds("term-after", 0.05)
            end = time.monotonic() + needs
            while time.monotonic() < end:
                if self._over(kill_at):
                    return 137
                self._wait(min(0.1, max(0.001, end - time.monotonic())), heed_term=False)
            return int(self.told("term-exit-code", "143"))
        self.process.signal(signal.SIGTERM)
        while self.process.code is None:
            if self._over(kill_at):
                self.process.signal(signal.SIGKILL)
            self._wait(0.1, heed_term=False)
        return self.process.code

    def _over(self, kill_at: float | None) -> bool:
        at = self._kill_at if kill_at is None else kill_at
        return at is not None and time.monotonic() >= at

    def _finish(self, code: int, reason: str = "", outputs: bool = True, pod: Mapping[str, str] = NOTHING) -> None:
        """Outputs first, then the terminal status; the devices are free before anybody can read of it."""
        others = int(self.told("wait-exit-code", "0"))
        states = {self._main: self._ended(code, reason)}
        lag = self.seconds("wait-lag", 0.0)
        if lag and outputs:
            runs = {"running": {"startedAt": self._begun_at}}
            self._report(containerStatuses=self._statuses("containers", lambda n: states.get(n) or runs))
            self._wait(lag, heed_term=False)
        given = json.loads(self.told("outputs", "null")) if outputs else None
        self._task_result(complete=True, outputs=given)
        bad = code or (others and len(self.pod["spec"]["containers"]) > 1)
        self._let_go()
        self._report(
            **{"phase": "Failed" if bad else "Succeeded", **pod},
            conditions=_conditions(ready=False),
            containerStatuses=self._statuses("containers", lambda n: states.get(n) or self._ended(others)),
        )

    def _leave(self) -> None:
        self._let_go()
        self._wait(self.seconds("gone-delay", self.kubelet.gone_delay_s), heed_term=False, heed_exit=False)
        self._remove()

    def _remove_when_asked(self) -> None:
        while self._wait(heed_exit=False) != "term":
            continue
        self._remove()

    def _remove(self) -> None:
        """What a kubelet does last."""
        self._let_go()
        self._call("DELETE", self.path, {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}})

    def _let_go(self) -> None:
        """The devices are free once the program is dead, not before."""
        if self.process is not None:
            self.process.signal(signal.SIGKILL)
            self.process.over.wait(5.0)
        self.kubelet.release_devices(self)

    # waiting

    def _wait(self, seconds: float | None = None, heed_term: bool = True, heed_exit: bool = True) -> str:
        """'time' after so many seconds, 'term' once the pod is deleted, 'exit' once main ended. Raises PodGone.

        While the node is lost time stands still: nothing of it is heard.
        """
        end = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while True:
                if self._is_gone or self.kubelet.stopping.is_set():
                    raise PodGone
                left = _STEP_S if end is None else end - time.monotonic()
                if not self.kubelet.is_lost(self.node):
                    if heed_term and self._kill_at is not None:
                        return "term"
                    if heed_exit and self.process is not None and self.process.code is not None:
                        return "exit"
                    if end is not None and left <= 0:
                        return "time"
                self._changed.wait(min(_STEP_S, max(0.01, left)))

    # what is written

    def _call(self, method: str, path: str, body: Raw, content: str = "application/json") -> Any:
        """Tries on while the API server is away, as a kubelet does."""
        while not self.kubelet.stopping.is_set():
            try:
                return self.kubelet.api.call(method, path, body, content)
            except Refused as error:
                if error.status in (404, 409, 422):
                    raise PodGone from error
                raise
            except Unavailable:
                self.kubelet.stopping.wait(0.2)
        raise PodGone

    def _report(self, **status: Any) -> None:
        while self.kubelet.is_lost(self.node):
            self._wait(0.1, heed_term=False)
        body = {"metadata": {"uid": self.uid}, "status": status}
        self._call("PATCH", f"{self.path}/status", body, STRATEGIC)

    @property
    def _main(self) -> str:
        return str(main_of(self.pod["spec"])["name"])

    def _statuses(self, key: str, state_of: Callable[[str], Raw]) -> list[Raw]:
        result: list[Raw] = []
        for one in self.pod["spec"].get(key) or ():
            state = state_of(one["name"])
            runs = "running" in state
            result.append(
                {
                    "name": one["name"],
                    "image": one.get("image", ""),
                    "imageID": "",
                    "restartCount": 0,
                    "lastState": {},
                    "containerID": "" if "waiting" in state else f"fake://{self.uid}/{one['name']}",
                    "ready": runs,
                    "started": runs,
                    "state": state,
                }
            )
        return result

    def _ended(self, code: int, reason: str = "") -> Raw:
        told = {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "startedAt": self._begun_at or stamp(),
            "finishedAt": stamp(),
        }
        return {"terminated": told}

    def _entries(self, plural: str, name: str) -> Mapping[str, str]:
        path = f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/{plural}/{name}"
        try:
            found = self.kubelet.api.get(path)
        except Refused as error:
            raise KeyError(f"{plural} {name} not found") from error
        data = found.get("data") or {}
        if plural == "configmaps":
            return dict(data)
        decoded = {key: base64.b64decode(value).decode() for key, value in data.items()}
        return decoded | (found.get("stringData") or {})

    # readiness

    def _probe(self) -> Raw | None:
        found: Raw | None = (main_of(self.pod["spec"]).get("readinessProbe") or {}).get("httpGet")
        return None if self.scripted else found

    def _probe_until_ready(self, probe: Raw) -> None:
        ports = {one.get("name"): one["containerPort"] for one in main_of(self.pod["spec"]).get("ports") or ()}
        port = ports.get(probe["port"], probe["port"])
        url = f"http://{probe.get('host') or self.ip}:{port}{probe.get('path', '/')}"
        while self.is_alive() and not self.kubelet.stopping.is_set() and self._kill_at is None and not self._is_gone:
            try:
                with urllib.request.urlopen(url, timeout=1):
                    self._report(conditions=_conditions(ready=True))
                    return
            except urllib.error.HTTPError as error:
                error.close()
            except (OSError, urllib.error.URLError):
                pass
            except PodGone:
                return
            self.kubelet.stopping.wait(0.1)

    # what argoexec's wait container does

    def _task_result(self, complete: bool, outputs: Any = None) -> None:
        meta = self.pod["metadata"]
        node = (meta.get("annotations") or {}).get("workflows.argoproj.io/node-id")
        owner = next((one for one in meta.get("ownerReferences") or () if one["kind"] == "Workflow"), None)
        mode = self.told("task-result", "on")
        if not node or owner is None or mode == "off" or (complete and mode == "never-complete"):
            return
        labels = {"workflows.argoproj.io/report-outputs-completed": "true" if complete else "false"}
        path = _TASK_RESULTS.format(meta["namespace"])
        told: dict[str, Any] = {"outputs": outputs} if outputs else {}
        if not self._result_made:
            reference = {key: owner[key] for key in ("apiVersion", "kind", "name", "uid")}
            named = {"name": node, "labels": labels | {"workflows.argoproj.io/workflow": owner["name"]}}
            body = {
                "apiVersion": "argoproj.io/v1alpha1",
                "kind": "WorkflowTaskResult",
                "metadata": named | {"ownerReferences": [reference]},
            }
            self._result_made = True
            try:
                self._call("POST", path, body | told)
                return
            except PodGone:
                pass  # there already: the same node ran before, in a pod that was made again
        try:
            self._call("PATCH", f"{path}/{node}", {"metadata": {"labels": labels}} | told, MERGE)
        except PodGone:
            return  # its Workflow is gone, and so is the result


def _conditions(ready: bool, initialized: bool = True) -> list[Raw]:
    flags = {
        "PodReadyToStartContainers": initialized,
        "Initialized": initialized,
        "Ready": ready,
        "ContainersReady": ready,
    }
    return [{"type": kind, "status": str(is_so), "lastTransitionTime": stamp()} for kind, is_so in flags.items()]
