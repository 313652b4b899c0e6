"""The real control plane on 127.0.0.1: etcd, API server, scheduler, controllers and Argo, with our own manifests.

`python -m tests.cluster.control_plane` (make cluster) builds what is missing, starts it, and says how to reach it.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from kubernetes import client, config

from scheduler.adapters.kube.api import Api, Refused
from tests.cluster import manifests
from tests.cluster.build import CannotBuild, build
from tests.cluster.component import Component, free_port
from tests.cluster.keys import make_keys
from tests.cluster.plane import NAMESPACE, SERVING
from tests.cluster.waiting import until

Raw = Mapping[str, Any]

_SERVICE_ACCOUNTS = "system:serviceaccounts"
# name -> (user, groups, namespace of its kubeconfig). "gpujob" is the account that the manifests give the scheduler.
USERS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "admin": ("admin", ("system:masters",), NAMESPACE),
    "gpujob": (
        "system:serviceaccount:gpujob:gpujob-scheduler",
        (_SERVICE_ACCOUNTS, f"{_SERVICE_ACCOUNTS}:gpujob"),
        NAMESPACE,
    ),
    "argo": (
        f"system:serviceaccount:{NAMESPACE}:argo",
        (_SERVICE_ACCOUNTS, f"{_SERVICE_ACCOUNTS}:{NAMESPACE}"),
        NAMESPACE,
    ),
    "scheduler": ("system:kube-scheduler", (), "default"),
    "kcm": ("system:kube-controller-manager", (), "default"),
    "node": ("system:node:node-1", ("system:nodes",), "default"),
}
_CONTROLLERS = (
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "pod-garbage-collector-controller",
    "disruption-controller",
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "clusterrole-aggregation-controller",
    "ttl-after-finished-controller",
)
_WORKFLOWS = f"/apis/argoproj.io/v1alpha1/namespaces/{NAMESPACE}/workflows"
# As the manifests recommend it.
_ARGO_ENV = {"DEFAULT_REQUEUE_TIME": "1s", "LEADER_ELECTION_DISABLE": "true"}
_ARGO_FLAGS = ("--qps=300", "--burst=600")
_ARGO_UP = "Started workflow garbage collection"  # the last thing that it says at its start


class ControlPlane:
    """Everything on free ports, its data in a folder. Nodes and kubelets are not part of it: see Fakelet."""

    def __init__(
        self,
        folder: Path,
        *,
        programs: Path | None = None,
        crds: str = "minimal",
        finalizer: bool = False,
        argo_env: Mapping[str, str] = {},
    ) -> None:
        self.namespace, self.serving = NAMESPACE, SERVING
        self.folder, self.programs, self.crds = folder, programs or build(), crds
        self.keys = folder / "keys"
        self.tls: tuple[Path, Path] | None = (self.keys / "kubelet-server.crt", self.keys / "kubelet-server.key")
        self._tokens = {user: secrets.token_hex(16) for user in USERS}
        self._ports = {name: free_port() for name in ("etcd", "etcd-peer", "api", "scheduler", "kcm")}
        self._argo_env = {
            **_ARGO_ENV,
            **({"ARGO_POD_STATUS_CAPTURE_FINALIZER": "true"} if finalizer else {}),
            **argo_env,
        }
        self.parts = {part.name: part for part in self._components()}

    # life

    def start(self) -> Self:
        """Everything, ready; in about 8 s."""
        self.folder.mkdir(parents=True, exist_ok=True)
        make_keys(self.keys)
        self._write_tokens()
        for user in USERS:
            self.kubeconfig(user)
        for name in ("etcd", "kube-apiserver"):
            self.parts[name].start()
            self.parts[name].wait(120)
        for name in ("kube-scheduler", "kube-controller-manager"):
            self.parts[name].start()
        self._install()
        self.start_argo()
        for part in self.parts.values():
            part.wait()
        return self

    def stop(self) -> None:
        """Ends what this object started, and nothing else. The data stays in its folder."""
        for part in reversed(self.parts.values()):
            part.kill()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop_argo(self) -> None:
        """As by SIGKILL."""
        self.parts["workflow-controller"].kill()

    def start_argo(self) -> None:
        """Ready when this returns."""
        part = self.parts["workflow-controller"]
        part.log.unlink(missing_ok=True)  # what it says tells when it is ready
        part.start()
        part.wait()

    # ways in

    @property
    def port(self) -> int:
        """Of the API server."""
        return self._ports["api"]

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self._ports['api']}"

    def kubeconfig(self, user: str = "gpujob", server: str = "") -> Path:
        """`server` = another address, such as that of a proxy in between."""
        path = self.folder / f"{user}{'-' + server.rsplit(':', 1)[-1] if server else ''}.kubeconfig"
        authority = {"server": server or self.address, "certificate-authority": str(self.keys / "ca.crt")}
        told = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "cluster",
            "contexts": [
                {"name": "cluster", "context": {"cluster": "cluster", "user": user, "namespace": USERS[user][2]}}
            ],
            "clusters": [{"name": "cluster", "cluster": authority}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
        }
        path.write_text(json.dumps(told))
        path.chmod(0o600)
        return path

    def configuration(self, user: str = "gpujob") -> client.Configuration:
        made = client.Configuration()
        config.load_kube_config(str(self.kubeconfig(user)), client_configuration=made)
        return made

    def api(self, user: str = "gpujob") -> Api:
        return Api(self.configuration(user))

    def kubectl(self, *words: str, user: str = "admin", given: str | None = None) -> str:
        """What kubectl says. Raises CalledProcessError, with its complaint on stderr."""
        command = [self.programs / "kubectl", "--kubeconfig", self.folder / f"{user}.kubeconfig", *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(f"kubectl {' '.join(words)}: {done.stderr}")
        return done.stdout

    def apply(self, objects: Iterable[Raw]) -> None:
        """As somebody who may do everything."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given=json.dumps(listed))

    def sweep(self) -> None:
        """Takes away what a test may have left: Workflows, deployments, pods, nodes."""
        admin = self.api("admin")
        everything = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        admin.delete(_WORKFLOWS, everything)
        for namespace in (NAMESPACE, SERVING, "gpujob"):
            for kind in ("deployments", "statefulsets"):
                admin.delete(f"/apis/apps/v1/namespaces/{namespace}/{kind}", everything)
            admin.delete(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", everything)
            self._sweep_pods(admin, f"/api/v1/namespaces/{namespace}/pods")
        admin.delete("/api/v1/nodes", everything)

    def _sweep_pods(self, admin: Api, path: str) -> None:
        while pods := admin.get(path)["items"]:
            for pod in pods:
                if pod["metadata"].get("finalizers"):
                    self._let_go(admin, f"{path}/{pod['metadata']['name']}")
            admin.delete(path, {"gracePeriodSeconds": 0})
            time.sleep(0.1)

    def _let_go(self, admin: Api, key: str) -> None:
        try:
            admin.patch(key, {"metadata": {"finalizers": None}})
        except Refused as refused:
            if refused.status != 404:  # Argo may be quicker
                raise

    # parts

    def _components(self) -> Iterable[Component]:
        ports, keys = self._ports, self.keys
        etcd, peers = (f"http://127.0.0.1:{ports[name]}" for name in ("etcd", "etcd-peer"))
        yield self._component(
            "etcd",
            f"--name=e --data-dir={self.folder}/etcd --unsafe-no-fsync --log-level=warn --initial-cluster=e={peers}",
            f"--listen-client-urls={etcd} --advertise-client-urls={etcd}",
            f"--listen-peer-urls={peers} --initial-advertise-peer-urls={peers}",
            ready=f"{etcd}/health",
        )
        yield self._component(
            "kube-apiserver",
            f"--etcd-servers={etcd} --secure-port={ports['api']}",
            "--bind-address=127.0.0.1 --advertise-address=127.0.0.1",
            f"--tls-cert-file={keys}/apiserver.crt --tls-private-key-file={keys}/apiserver.key",
            f"--client-ca-file={keys}/ca.crt --token-auth-file={self.folder}/tokens.csv",
            "--service-account-issuer=https://kubernetes.default.svc --service-cluster-ip-range=10.0.0.0/24",
            f"--service-account-key-file={keys}/sa.pub --service-account-signing-key-file={keys}/sa.key",
            "--authorization-mode=Node,RBAC --allow-privileged --endpoint-reconciler-type=none --profiling=false",
            # It puts a taint on new nodes that only the node-lifecycle controller takes off, which does not run here.
            "--disable-admission-plugins=TaintNodesByCondition",
            f"--kubelet-client-certificate={keys}/kubelet-client.crt --kubelet-client-key={keys}/kubelet-client.key",
            f"--kubelet-certificate-authority={keys}/ca.crt --kubelet-preferred-address-types=InternalIP",
            ready=f"{self.address}/readyz",
        )
        for name, user in (("kube-scheduler", "scheduler"), ("kube-controller-manager", "kcm")):
            way = self.folder / f"{user}.kubeconfig"
            yield self._component(
                name,
                f"--kubeconfig={way} --authentication-kubeconfig={way} --authorization-kubeconfig={way}",
                f"--leader-elect=false --bind-address=127.0.0.1 --secure-port={ports[user]}",
                *(self._kcm_flags() if user == "kcm" else ()),
                ready=f"https://127.0.0.1:{ports[user]}/healthz",
            )
        yield self._argo()

    def _kcm_flags(self) -> tuple[str, ...]:
        return (
            f"--use-service-account-credentials --service-account-private-key-file={self.keys}/sa.key",
            f"--root-ca-file={self.keys}/ca.crt --controllers={','.join(_CONTROLLERS)}",
        )

    def _component(self, name: str, *flags: str, ready: str) -> Component:
        words = [str(self.programs / name), *" ".join(flags).split()]
        return Component(name, words, self.folder / f"{name}.log", lambda: self._answers(ready))

    def _argo(self) -> Component:
        log = self.folder / "workflow-controller.log"
        words = [
            str(self.programs / "workflow-controller"),
            f"--kubeconfig={self.folder / 'argo.kubeconfig'}",
            *("--namespaced", f"--managed-namespace={NAMESPACE}", f"--namespace={NAMESPACE}", *_ARGO_FLAGS),
            *("--configmap=workflow-controller-configmap", "--executor-image=argoexec:none", "--log-format=json"),
        ]
        # Its health port, 6060, is fixed: with two on one computer only the first one has it. So the log is asked.
        return Component(
            "workflow-controller", words, log, lambda: _ARGO_UP in log.read_text(errors="replace"), self._argo_env
        )

    def _answers(self, url: str) -> bool:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        known = url.startswith(self.address)
        asked = urllib.request.Request(
            url, headers={"authorization": f"Bearer {self._tokens['admin']}"} if known else {}
        )
        with urllib.request.urlopen(asked, timeout=5, context=context if url.startswith("https") else None) as answer:
            return bool(answer.status == 200)

    # what is installed

    def _write_tokens(self) -> None:
        lines = [
            f'{self._tokens[name]},{user},{name},"{",".join(groups)}"' for name, (user, groups, _) in USERS.items()
        ]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        (self.folder / "tokens.csv").chmod(0o600)

    def _install(self) -> None:
        files = sorted((self.programs / "argo" / self.crds).glob("*.yaml"))
        self.kubectl("apply", "--server-side", *(f"--filename={file}" for file in files))
        self._await_crds({_crd(file) for file in files})
        self.apply(_places())
        self.apply(ours())
        self.apply(self._for_argo())
        self._await_accounts()

    def _for_argo(self) -> Iterable[Raw]:
        (role,) = manifests.documents(self.programs / "argo" / "role.yaml")
        meta = {"name": "argo", "namespace": NAMESPACE}
        yield {**role, "metadata": {**role["metadata"], **meta}}
        yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
        yield {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "argo"},
            "subjects": [{"kind": "ServiceAccount", **meta}],
        }
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "workflow-controller-configmap", "namespace": NAMESPACE},
            "data": {"metricsConfig": "enabled: false\n", "telemetryConfig": "enabled: false\n"},
        }

    def _await_crds(self, names: set[str]) -> None:
        admin, path = self.api("admin"), "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        until(lambda: names <= {one["metadata"]["name"] for one in admin.get(path)["items"] if _established(one)}, 60.0)

    def _await_accounts(self) -> None:
        """Pods cannot be made before their namespace has its ServiceAccount `default`."""
        admin = self.api("admin")
        for namespace in (NAMESPACE, SERVING):
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
            until(lambda: any(one["metadata"]["name"] == "default" for one in admin.get(path)["items"]), 60.0)  # noqa: B023


def ours() -> list[Raw]:
    """What an administrator applies of manifests/, without the two Deployments: here they are started by hand."""
    found = manifests.objects("base", "overlays/dev")
    return [one for one in found if one["kind"] not in {"Deployment", "Namespace", "PersistentVolumeClaim"}]


def _places() -> list[Raw]:
    """All namespaces; those of the manifests as they stand there."""
    named = [one for one in manifests.objects("base", "overlays/dev") if one["kind"] == "Namespace"]
    known = {one["metadata"]["name"] for one in named}
    return [
        *named,
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in {SERVING} - known),
    ]


def _established(crd: Raw) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or ()  # none at all for the first moment
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def _crd(file: Path) -> str:
    """argoproj.io_workflows.yaml -> workflows.argoproj.io"""
    group, _, plural = file.stem.partition("_")
    return f"{plural}.{group}"


def end_tidily() -> None:
    """SIGTERM unwinds this process, so that what it started is ended with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crds", choices=("minimal", "full"), default="minimal")
    parser.add_argument("--nodes", type=int, default=4, help="fake nodes of 8 GPUs, whose pods are processes; 0 = none")
    options = parser.parse_args()
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    folder = Path(tempfile.mkdtemp(prefix="gpujob-cluster-"))
    try:
        with ControlPlane(folder, crds=options.crds) as plane:
            _serve(plane, options.nodes, over)
    except CannotBuild as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _serve(plane: ControlPlane, nodes: int, over: threading.Event) -> None:
    from tests.cluster.fakelet import Fakelet  # noqa: PLC0415  (the plane itself does without)

    shapes = {f"gpu-{number}": 8 for number in range(nodes)}
    with Fakelet(plane.api("admin"), shapes, plane.folder / "kubelet", tls=plane.tls):
        print(f"The control plane is up at {plane.address}, with {nodes} nodes of 8 GPUs. Ctrl-C ends it.")
        for user in ("admin", "gpujob"):
            print(f"export KUBECONFIG={plane.folder / f'{user}.kubeconfig'}  # as {user}")
        print(f"kubectl: {plane.programs / 'kubectl'}", flush=True)
        over.wait()


if __name__ == "__main__":
    sys.exit(main())
