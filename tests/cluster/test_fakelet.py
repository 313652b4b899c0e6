"""The fake kubelet runs pods as a real one does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.adapters.kube.api import Refused
from tests.cluster.component import free_port
from tests.cluster.fake_api import FakeApi
from tests.cluster.fake_store import Event
from tests.cluster.fakelet import Fakelet
from tests.cluster.waiting import until

POLITE = (
    "import signal, sys, time\n"
    "def stop(*_):\n    print('saved', flush=True)\n    sys.exit(143)\n"
    "signal.signal(signal.SIGTERM, stop)\nprint('ready', flush=True)\ntime.sleep(60)\n"
)
DEAF = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(60)\n"
)


class Rig:
    def __init__(self, folder: Path) -> None:
        self.fake = FakeApi()
        self.fake.start()
        self.kubelet = Fakelet(self.fake.api("admin"), {"gpu-0": 8, "gpu-1": 8}, folder)
        self.kubelet.start()
        self.api = self.fake.api("gpujob")

    def close(self) -> None:
        self.kubelet.stop()
        self.fake.stop()

    def put(self, name: str, *command: str, node: str = "gpu-0", gpus: int = 1, **more: Any) -> Any:
        limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        container = {"name": "main", "image": "x", "command": list(command), "resources": {"limits": limits}}
        container |= more.pop("container", {})
        meta = {"name": name, "annotations": more.pop("annotations", {})}
        spec = {"containers": [container], "restartPolicy": "Never", **more}
        pod = self.fake.create("pods", {"metadata": meta, "spec": spec}, "gpujobs")
        self.fake.bind("gpujobs", name, node)
        return pod

    def pod(self, name: str) -> Any:
        return self.fake.find("pods", "gpujobs", name)

    def phase(self, name: str) -> str:
        found = self.pod(name)
        return found["status"]["phase"] if found else "gone"

    def code(self, name: str) -> int | None:
        states = self.pod(name)["status"].get("containerStatuses") or [{}]
        ended = states[0].get("state", {}).get("terminated")
        return ended["exitCode"] if ended else None

    def log(self, name: str) -> str:
        return self.api.text(f"/api/v1/namespaces/gpujobs/pods/{name}/log", container="main")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()
    assert not rig.fake.errors


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (3, "Failed")])
def test_the_phase_follows_the_programs_exit_code_and_its_log_is_served(rig: Rig, code: int, phase: str) -> None:
    rig.put("a", "python", "-c", f"print('hello'); print('there'); raise SystemExit({code})")
    until(lambda: rig.phase("a") == phase)
    assert rig.code("a") == code
    assert rig.log("a") == "hello\nthere\n"
    path = "/api/v1/namespaces/gpujobs/pods/a/log"
    assert rig.api.text(path, container="main", tailLines=1) == "there\n"


def test_a_deleted_pod_gets_its_sigterm_and_its_end_is_told_before_it_is_gone(rig: Rig) -> None:
    codes: list[int] = []

    def heard(event: Event) -> None:
        states = [one["state"] for one in event.new.get("status", {}).get("containerStatuses") or ()]
        codes.extend(one["terminated"]["exitCode"] for one in states if "terminated" in one)

    rig.fake.listen(heard)
    rig.put("a", "argoexec", "emissary", "--loglevel", "info", "--", "python", "-c", POLITE)
    until(lambda: rig.phase("a") == "Running" and "ready" in rig.log("a"))
    rig.fake.delete("pods", "gpujobs", "a")
    until(lambda: rig.phase("a") == "gone")
    assert codes[0] == 143
    assert (rig.kubelet.log_of("gpujobs", "a", "main") or b"").decode() == "ready\nsaved\n"


def test_a_program_that_ignores_sigterm_is_killed_when_its_grace_is_over(rig: Rig) -> None:
    rig.put("a", "python", "-c", DEAF, annotations={"sim/gone-delay": "9"})
    until(lambda: rig.phase("a") == "Running" and "ready" in rig.log("a"))
    rig.fake.delete("pods", "gpujobs", "a", {"gracePeriodSeconds": 1})
    until(lambda: rig.phase("a") == "Failed")
    assert rig.code("a") == 137
    assert rig.kubelet.held("gpu-0") == 0


def test_the_downward_api_and_secrets_reach_the_program(rig: Rig) -> None:
    rig.fake.create("secrets", {"metadata": {"name": "s"}, "data": {"k": "aHVzaA=="}}, "gpujobs")
    env: list[Any] = [
        {"name": "RUN", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['gpujob.io/run']"}}},
        {"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "BOTH", "value": "$(RUN)-$(NONE)"},
    ]
    program = "import os; print(*(os.environ[n] for n in ('RUN', 'UID', 'KEY', 'BOTH', 'NVIDIA_VISIBLE_DEVICES')))"
    pod = rig.put("a", "python", "-c", program, gpus=2, container={"env": env}, annotations={"gpujob.io/run": "a/1"})
    until(lambda: rig.phase("a") == "Succeeded")
    assert rig.log("a").split() == ["a/1", pod["metadata"]["uid"], "hush", "a/1-$(NONE)", "0,1"]
    assert rig.pod("a")["status"]["podIP"].startswith("127.")


def test_a_serving_pod_is_ready_once_its_probe_answers_on_its_own_address(rig: Rig) -> None:
    port = free_port()
    program = (
        "import http.server, os\n"
        f"http.server.HTTPServer((os.environ['IP'], {port}), http.server.SimpleHTTPRequestHandler).serve_forever()"
    )
    ip = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    probe = {"httpGet": {"path": "/", "port": "http"}}
    ports = [{"name": "http", "containerPort": port}]
    for name in ("a", "b"):
        rig.put(name, "python", "-c", program, container={"env": [ip], "readinessProbe": probe, "ports": ports})

    def ready(name: str) -> bool:
        return ("Ready", "True") in {(one["type"], one["status"]) for one in rig.pod(name)["status"]["conditions"]}

    until(lambda: ready("a") and ready("b"))


def test_a_gpu_in_two_hands_is_refused_and_never_forgotten(rig: Rig) -> None:
    rig.put("a", "sleep", "60", gpus=6)
    until(lambda: rig.phase("a") == "Running")
    rig.put("b", "sleep", "60", gpus=3)
    until(lambda: rig.phase("b") == "Failed")
    assert rig.pod("b")["status"]["reason"] == "UnexpectedAdmissionError"
    assert rig.kubelet.violations == ["gpu-0: b came for 3 GPUs while a held 6 of 8"]
    rig.put("c", "sleep", "60", gpus=2)
    until(lambda: rig.phase("c") == "Running")


@pytest.mark.parametrize(
    ("annotations", "phase", "reason"),
    [
        ({"sim/run-for": "0.05", "sim/exit-code": "137", "sim/reason": "OOMKilled"}, "Failed", "OOMKilled"),
        ({"sim/run-for": "0.05"}, "Succeeded", "Completed"),
    ],
)
def test_annotations_script_a_pod(rig: Rig, annotations: dict[str, str], phase: str, reason: str) -> None:
    rig.put("a", "sleep", "60", annotations=annotations)
    until(lambda: rig.phase("a") == phase)
    assert rig.pod("a")["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == reason


def test_nothing_is_heard_of_a_lost_node_until_it_is_found(rig: Rig) -> None:
    rig.put("a", "sleep", "60")
    until(lambda: rig.phase("a") == "Running")
    rig.kubelet.lose("gpu-0")
    rig.fake.delete("pods", "gpujobs", "a", {"gracePeriodSeconds": 1})
    rig.put("b", "true", node="gpu-1")
    until(lambda: rig.phase("b") == "Succeeded")
    assert (rig.phase("a"), rig.kubelet.process_of("a") is not None) == ("Running", True)
    rig.kubelet.find("gpu-0")
    until(lambda: rig.phase("a") == "gone")


def test_no_process_is_left_behind(rig: Rig) -> None:
    rig.put("a", "sh", "-c", "sleep 300 & sleep 300")
    until(lambda: rig.phase("a") == "Running")
    group = rig.kubelet.process_of("a")
    assert group is not None
    rig.kubelet.stop()

    def empty() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    until(empty)


def test_the_log_of_a_pod_that_has_no_node_is_refused(rig: Rig) -> None:
    rig.fake.create("pods", {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "main"}]}}, "gpujobs")
    with pytest.raises(Refused, match="does not have a host"):
        rig.log("a")
