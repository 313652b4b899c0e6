"""A control plane for tests: the fake one of this process, or the real one. Pods need a Fakelet on either."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Protocol, Self

from kubernetes import client

from scheduler.adapters.kube.api import Api
from scheduler.adapters.kube.names import PRIORITY_CLASS
from tests.cluster import manifests
from tests.cluster.fake_api import FakeApi
from tests.cluster.fake_store import Raw
from tests.cluster.mini_argo import MiniArgo
from tests.cluster.mini_controllers import MiniControllers
from tests.cluster.mini_scheduler import MiniScheduler

NAMESPACE = "gpujobs"
SERVING = "serving"
PRIORITY = -1000

# What the manifests allow our scheduler, and where.
_OUR_ROLES = (
    ("ClusterRole", "gpujob-scheduler", None),
    ("Role", "gpujob-scheduler", NAMESPACE),
    ("ClusterRole", "gpujob-serving-observe", SERVING),
    ("ClusterRole", "gpujob-serving-manage", SERVING),
)


class Plane(Protocol):
    """API server, scheduler, controllers, Argo. Users: admin, gpujob."""

    namespace: str
    serving: str
    tls: tuple[Path, Path] | None  # what the log server of a kubelet must show; None = plain HTTP

    def configuration(self, user: str = "gpujob") -> client.Configuration: ...

    def kubeconfig(self, user: str = "gpujob") -> Path: ...

    def api(self, user: str = "gpujob") -> Api: ...

    def stop_argo(self) -> None:
        """As by SIGKILL."""

    def start_argo(self) -> None: ...


class FakePlane:
    """The plane of `make test`, in this process and in milliseconds. `gpujob` may what the manifests allow it."""

    def __init__(self, folder: Path, *, blind: float = 0.5, finalizer: bool = False, seed: int = 0) -> None:
        self.namespace, self.serving = NAMESPACE, SERVING
        self.tls: tuple[Path, Path] | None = None
        self.folder = folder
        self.fake = FakeApi(seed=seed)
        self.argo = MiniArgo(self.fake, blind=blind, finalizer=finalizer, seed=seed)
        self.scheduler = MiniScheduler(self.fake)
        self.controllers = MiniControllers(self.fake)

    def start(self) -> Self:
        self.fake.start()
        body = {"metadata": {"name": PRIORITY_CLASS}, "value": PRIORITY, "preemptionPolicy": "Never"}
        self.fake.create("priorityclasses", body)
        for kind, name, namespace in _OUR_ROLES:
            self.fake.grant("gpujob", _rules(kind, name), namespace)
        for loop in self._loops:
            loop.start()
        return self

    def stop(self) -> None:
        for loop in self._loops:
            loop.kill()
        self.fake.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def configuration(self, user: str = "gpujob") -> client.Configuration:
        return self.fake.configuration(user)

    def kubeconfig(self, user: str = "gpujob") -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.fake.kubeconfig(self.folder, user, self.namespace)

    def api(self, user: str = "gpujob") -> Api:
        return self.fake.api(user)

    def stop_argo(self) -> None:
        self.argo.kill()

    def start_argo(self) -> None:
        self.argo.start()

    @property
    def bugs(self) -> list[str]:
        """Of the fake itself."""
        return [*map(repr, self.fake.errors), *(text for loop in self._loops for text in loop.errors)]

    @property
    def _loops(self) -> tuple[MiniArgo, MiniScheduler, MiniControllers]:
        return self.argo, self.scheduler, self.controllers


@functools.cache
def _rules(kind: str, name: str) -> tuple[Raw, ...]:
    return tuple(manifests.one(kind, name, "base")["rules"])
