"""The manifests on a real API server: no warnings, no right too many, no GPU pod without our gate."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import urllib3
from kubernetes import client

from scheduler.adapters.argo.shape import Shape
from scheduler.adapters.argo.workflow import workflows
from scheduler.adapters.kube import names
from scheduler.adapters.kube.api import JSON, MERGE, STRATEGIC, Api, Refused
from scheduler.adapters.kube.objects import pod as trimmed
from scheduler.adapters.kube.preflight import faults, unseen
from tests.adapters.argo_jobs import HEAD, an_order
from tests.cluster.control_plane import ControlPlane
from tests.cluster.manifests import MANIFESTS, Raw, Right, one, right_of, rights

pytestmark = pytest.mark.cluster

JOBS, SERVING, OURS = "gpujobs", "serving", "gpujob"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PODS = f"/api/v1/namespaces/{JOBS}/pods"
WORKFLOWS = f"/apis/argoproj.io/v1alpha1/namespaces/{JOBS}/workflows"
APPS = f"/apis/apps/v1/namespaces/{SERVING}"
LWS = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{SERVING}/leaderworkersets"
HPA = f"/apis/autoscaling/v2/namespaces/{SERVING}/horizontalpodautoscalers"
KEDA = f"/apis/keda.sh/v1alpha1/namespaces/{SERVING}/scaledobjects"
WATCH = "?watch=true&timeoutSeconds=1"

EVERYWHERE = ("ClusterRole", "gpujob-scheduler")
IN_JOBS = ("Role", "gpujob-scheduler")
OBSERVE = ("ClusterRole", "gpujob-serving-observe")
MANAGE = ("ClusterRole", "gpujob-serving-manage")

# The call that needs a right, one for each. What they name does not exist: the server asks for the right first.
CALLS: dict[tuple[str, str], list[tuple[str, str, str]]] = {
    EVERYWHERE: [
        ("GET", "/api/v1/nodes", JSON),
        ("GET", f"/api/v1/nodes{WATCH}", JSON),
        ("GET", "/api/v1/pods", JSON),
        ("GET", f"/api/v1/pods{WATCH}", JSON),
        ("GET", f"/apis/scheduling.k8s.io/v1/priorityclasses/{names.PRIORITY_CLASS}", JSON),
        ("GET", f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/{names.POLICY}", JSON),
    ],
    IN_JOBS: [
        ("GET", f"/api/v1/namespaces/{JOBS}", JSON),
        ("PATCH", f"{PODS}/none", STRATEGIC),
        ("DELETE", f"{PODS}/none", JSON),
        ("PATCH", f"{PODS}/none/status", STRATEGIC),
        ("POST", f"{PODS}/none/eviction", JSON),
        ("GET", f"{PODS}/none/log?container=main", JSON),
        ("POST", f"{WORKFLOWS}?dryRun=All", JSON),
        ("GET", f"{WORKFLOWS}?labelSelector=a", JSON),
        ("PATCH", f"{WORKFLOWS}/none", MERGE),
    ],
    OBSERVE: [
        ("GET", f"{APPS}/deployments", JSON),
        ("GET", f"{APPS}/deployments{WATCH}", JSON),
        ("GET", f"{APPS}/statefulsets", JSON),
        ("GET", f"{APPS}/statefulsets{WATCH}", JSON),
        ("GET", LWS, JSON),
        ("GET", LWS + WATCH, JSON),
        ("GET", HPA, JSON),
        ("GET", HPA + WATCH, JSON),
        ("GET", KEDA, JSON),
        ("GET", KEDA + WATCH, JSON),
    ],
    MANAGE: [
        ("GET", f"{APPS}/deployments/none/scale", JSON),
        ("PATCH", f"{APPS}/deployments/none/scale", MERGE),
        ("GET", f"{APPS}/statefulsets/none/scale", JSON),
        ("PATCH", f"{APPS}/statefulsets/none/scale", MERGE),
        ("GET", f"{LWS}/none/scale", JSON),
        ("PATCH", f"{LWS}/none/scale", MERGE),
        ("PATCH", f"/api/v1/namespaces/{SERVING}/pods/none", MERGE),
    ],
}
# What we never do, and could not.
NEVER = [
    ("GET", f"/api/v1/namespaces/{OURS}/secrets", JSON),
    ("GET", f"/api/v1/namespaces/{JOBS}/secrets/gpujob-storage", JSON),
    ("GET", f"/api/v1/namespaces/{JOBS}/configmaps", JSON),
    ("POST", f"{PODS}?dryRun=All", JSON),
    ("POST", f"{PODS}/none/exec?command=true", JSON),
    ("DELETE", PODS, JSON),
    ("PATCH", "/api/v1/nodes/none", MERGE),
    ("DELETE", f"/api/v1/namespaces/{SERVING}/pods/none", JSON),
    ("POST", f"/api/v1/namespaces/{SERVING}/pods/none/eviction", JSON),
    ("PATCH", f"/api/v1/namespaces/{SERVING}/pods/none/status", MERGE),
    ("PATCH", f"{APPS}/deployments/none", MERGE),
    ("DELETE", f"{WORKFLOWS}/none", JSON),
    ("GET", "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical", JSON),
    ("GET", "/api/v1/namespaces/kube-system", JSON),
]


@dataclass(frozen=True, slots=True)
class Plane:
    """A control plane, as its administrator and as whom he likes."""

    program: Path  # kubectl
    kubeconfig: Path
    admin: Api
    configuration: client.Configuration

    def kubectl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, "--kubeconfig", self.kubeconfig, *words], capture_output=True, text=True, timeout=50
        )

    def status(self, call: tuple[str, str, str], *, token: str = "", user: str = "") -> int:
        """What a request answers: with a token, or as the administrator who plays that user. Bodies are empty."""
        method, path, content = call
        admins = map(self.configuration.get_api_key_with_prefix, ("BearerToken", "authorization"))
        headers = {"authorization": f"Bearer {token}" if token else next(filter(None, admins)), "content-type": content}
        if user:
            headers["impersonate-user"] = user
        with urllib3.PoolManager(ca_certs=self.configuration.ssl_ca_cert, retries=False) as http:
            reply = http.request(
                method,
                self.configuration.host + path,
                headers=headers,
                body=None if method == "GET" else b"{}",
                preload_content=False,
            )
            reply.close()
            return reply.status

    def put(self, path: str, body: Raw) -> None:
        """Made, or made as it is now."""
        name = body["metadata"]["name"]
        self.admin.patch(f"{path}/{name}", body, "application/apply-patch+yaml", fieldManager="tests", force="true")

    def bind(self, role: tuple[str, str], user: str, name: str = "", rules: list[Raw] | None = None) -> None:
        """Gives a user one of our roles, or a copy of it with other rules."""
        kind, original = role
        folder = RBAC if role == EVERYWHERE else f"{RBAC}/namespaces/{JOBS if kind == 'Role' else SERVING}"
        scope = "ClusterRoleBinding" if role == EVERYWHERE else "RoleBinding"
        if rules is not None:
            path = f"{folder}/roles" if kind == "Role" else f"{RBAC}/clusterroles"
            self.put(path, {"apiVersion": RBAC[6:], "kind": kind, "metadata": {"name": name}, "rules": rules})
        binding = {
            "apiVersion": RBAC[6:],
            "kind": scope,
            "metadata": {"name": f"{name or original}-{user}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name or original},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }
        self.put(f"{folder}/{scope.lower()}s", binding)


def until(seen: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """The server's own caches, and controllers, take a moment."""
    ends = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < ends, what
        threading.Event().wait(0.02)


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[Plane]:
    """With the dev overlay on it, applied for real, and the right to set replicas."""
    programs, kubeconfig = control_plane.programs, control_plane.kubeconfig("admin")
    plane = Plane(programs / "kubectl", kubeconfig, control_plane.api("admin"), control_plane.configuration("admin"))
    manage = str(MANIFESTS / "examples" / "serving-manage.yaml")
    for words in (("-k", str(MANIFESTS / "overlays" / "dev")), ("-f", manage)):
        applied = plane.kubectl("apply", *words)
        assert applied.returncode == 0, applied.stderr
    until(lambda: plane_refuses(plane, a_pod(GPU)) != "", "the policy never took hold")
    yield plane
    plane.kubectl("delete", "-f", manage)
    control_plane.sweep()


@pytest.fixture(scope="module")
def token(plane: Plane) -> str:
    """Of the scheduler's own account."""
    path = f"/api/v1/namespaces/{OURS}/serviceaccounts/gpujob-scheduler/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    made: str = plane.admin.create(path, body)["status"]["token"]
    return made


@pytest.mark.parametrize("overlay", ["dev", "prod"])
def test_an_overlay_is_taken_without_a_warning(plane: Plane, overlay: str) -> None:
    folder = str(MANIFESTS / "overlays" / overlay)
    told = plane.kubectl("apply", "--warnings-as-errors", "--dry-run=server", "-k", folder)
    assert (told.returncode, told.stderr) == (0, "")
    assert len(told.stdout.splitlines()) >= 25


def test_the_patch_of_argos_controller_fits_its_deployment(plane: Plane) -> None:
    container = {
        "name": "workflow-controller",
        "image": "argo",
        "args": ["--namespaced"],
        "env": [{"name": "A", "value": "b"}],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "workflow-controller", "namespace": SERVING},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "argo"}},
            "template": {"metadata": {"labels": {"app": "argo"}}, "spec": {"containers": [container]}},
        },
    }
    plane.put(f"{APPS}/deployments", deployment)
    file = str(MANIFESTS / "argo" / "workflow-controller.yaml")
    words = ("-n", SERVING, "patch", "deployment", "workflow-controller", "--patch-file", file)
    told = plane.kubectl(*words, "-o", "json")
    plane.admin.delete(f"{APPS}/deployments/workflow-controller")
    assert told.returncode == 0, told.stderr
    (patched,) = json.loads(told.stdout)["spec"]["template"]["spec"]["containers"]
    assert patched["args"] == ["--namespaced"]
    env = {variable["name"]: variable["value"] for variable in patched["env"]}
    assert env == {"A": "b", "DEFAULT_REQUEUE_TIME": "1s", "ARGO_QPS": "300", "ARGO_BURST": "600"}


def test_every_right_has_its_call() -> None:
    for role, calls in CALLS.items():
        needed = [right_of(method, path) for method, path, _ in calls]
        assert sorted(map(str, needed)) == sorted(map(str, rights(one(*role, "base"))))


ONES = [(role, call) for role, calls in CALLS.items() for call in calls]


@pytest.mark.parametrize(("role", "call"), ONES, ids="-".join)
def test_a_call_needs_its_right(plane: Plane, token: str, role: tuple[str, str], call: tuple[str, str, str]) -> None:
    right = right_of(call[0], call[1])
    assert right is not None
    user = f"without-{ONES.index((role, call))}"
    for other in CALLS:
        if other != role:
            plane.bind(other, user)
    plane.bind(role, user, user, without(one(*role, "base"), right))
    kept = next(other for other in CALLS[role] if other != call)
    until(lambda: plane.status(kept, user=user) != 403, "the copy of the role never took hold")
    assert plane.status(call, user=user) == 403
    assert plane.status(call, token=token) not in {401, 403}


def without(role: Raw, right: Right) -> list[Raw]:
    """The rules of a role less one right, one verb a rule."""
    return [
        {**rule, "apiGroups": [group], "resources": [resource], "verbs": [verb]}
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if (group, resource, verb) != right
    ]


@pytest.mark.parametrize("call", NEVER, ids=lambda call: "-".join(call[:2]))
def test_what_we_never_touch_is_refused(plane: Plane, token: str, call: tuple[str, str, str]) -> None:
    assert plane.status(call, token=token) == 403


def a_pod(limits: dict[str, Any], *, gate: str = "", priority: str = "", init: bool = False, **spec: Any) -> Raw:
    pod: Raw = {"containers": [{"name": "main", "image": "train", "resources": {} if init else {"limits": limits}}]}
    if init:
        pod["initContainers"] = [{"name": "first", "image": "train", "resources": {"limits": limits}}]
    if gate:
        pod["schedulingGates"] = [{"name": gate}]
    if priority:
        pod["priorityClassName"] = priority
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "bare-"}, "spec": {**pod, **spec}}


def plane_refuses(plane: Plane, pod: Raw, namespace: str = JOBS) -> str:
    """What it says; "" = it takes the pod."""
    try:
        plane.admin.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")
    except Refused as error:
        return error.message
    return ""


GPU = {"nvidia.com/gpu": 1}
CLAIM: dict[str, Any] = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}]}
GATED: dict[str, Any] = {"gate": names.GATE}
LOW: dict[str, Any] = {"priority": names.PRIORITY_CLASS}


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        (a_pod(GPU), names.GATE),
        (a_pod(GPU, **LOW), names.GATE),
        (a_pod(GPU, gate="gpujob.io/hodl", **LOW), names.GATE),
        (a_pod(GPU, **GATED), names.PRIORITY_CLASS),
        (a_pod(GPU, gate=names.GATE, priority="system-node-critical"), names.PRIORITY_CLASS),
        (a_pod({"nvidia.com/mig-1g.10gb": 2}), names.GATE),
        (a_pod({"nvidia.com/gpu.shared": 1}), names.GATE),
        (a_pod({"amd.com/gpu": 8}), names.GATE),
        (a_pod(GPU, init=True), names.GATE),
        (a_pod({}, **CLAIM), names.GATE),
    ],
)
def test_a_gpu_pod_without_gate_or_class_is_refused_with_a_way_out(plane: Plane, pod: Raw, said: str) -> None:
    message = plane_refuses(plane, pod)
    assert said in message
    assert "hand the work in with gpujob, or run it in another namespace" in message
    assert not plane_refuses(plane, {**pod, "spec": pod["spec"] | {"priorityClassName": ""}}, SERVING)


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(GPU, **GATED, **LOW),
        a_pod({"nvidia.com/mig-1g.10gb": 2}, **GATED, **LOW),
        a_pod({"cpu": "2", "memory": "1Gi"}),
        a_pod({"nvidia.com/gpu": 0}),
        a_pod({"example.com/fpga": 1}),
    ],
)
def test_a_pod_as_it_should_be_and_one_without_gpus_are_taken(plane: Plane, pod: Raw) -> None:
    assert plane_refuses(plane, pod) == ""


def test_argo_goes_on_when_the_policy_refuses_one_of_its_pods(plane: Plane) -> None:
    def template(name: str, **container: Any) -> Raw:
        return {"name": name, "container": {"image": "train", "command": ["train"], **container}}

    tasks = [{"name": name, "template": name} for name in ("typo", "plain")]
    body = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"generateName": "policy-", "namespace": JOBS},
        "spec": {
            "entrypoint": "all",
            "serviceAccountName": "gpujob-runner",
            "templates": [
                {"name": "all", "dag": {"failFast": False, "tasks": tasks}},
                template("typo", resources={"limits": {"nvidia.com/gpu": "1"}})
                | {"podSpecPatch": json.dumps({"schedulingGatez": [{"name": names.GATE}]})},
                template("plain"),
            ],
        },
    }
    made = plane.admin.create(WORKFLOWS, body)
    path = f"{WORKFLOWS}/{made['metadata']['name']}"

    def nodes() -> dict[str, Raw]:
        told = plane.admin.get(path).get("status") or {}
        return {node["displayName"]: node for node in (told.get("nodes") or {}).values()}

    try:
        until(lambda: nodes().get("typo", {}).get("phase") == "Error", "the refused pod's node never ended in Error")
        assert names.GATE in nodes()["typo"]["message"]
        selector = f"{names.WORKFLOW}={made['metadata']['name']}"
        until(lambda: len(plane.admin.get(PODS, labelSelector=selector)["items"]) == 1, "Argo made no other pod")
        assert nodes()["plain"]["phase"] in {"Pending", "Running"}
        assert plane.admin.get(path)["status"]["phase"] == "Running"
    finally:
        plane.admin.delete(path)


def test_the_policy_takes_every_pod_that_argo_makes_of_our_jobs(plane: Plane, token: str) -> None:
    steps = "steps:\n  - {name: prep, gpus: 0, command: [prep]}\n  - {name: sft, gpus: 8, nodes: 2, command: [sft]}\n"
    (part,) = workflows(an_order(HEAD + steps, job=4711), Shape(namespace=JOBS))
    as_scheduler(plane, token).create(WORKFLOWS, part.body, fieldValidation="Strict")
    selector = f"{names.WORKFLOW}={part.name}"
    try:
        until(lambda: len(plane.admin.get(PODS, labelSelector=selector)["items"]) == 3, "Argo made not all pods")
        pods = [trimmed(raw) for raw in plane.admin.get(PODS, labelSelector=selector)["items"]]
        assert sorted(sum(pod.gpus.values()) for pod in pods) == [0, 8, 8]
        assert all(pod.gates == (names.GATE,) and pod.priority == names.PRIORITY for pod in pods)
    finally:
        plane.admin.delete(f"{WORKFLOWS}/{part.name}")


def as_scheduler(plane: Plane, token: str) -> Api:
    configuration = client.Configuration(host=plane.configuration.host)
    configuration.ssl_ca_cert = plane.configuration.ssl_ca_cert
    configuration.api_key = {"authorization": token}
    configuration.api_key_prefix = {"authorization": "Bearer"}
    return Api(configuration)


def test_the_scheduler_finds_nothing_missing_with_the_rights_it_has(plane: Plane, token: str) -> None:
    api = as_scheduler(plane, token)
    assert faults(api, JOBS, [SERVING], [SERVING]) == ()
    (told,) = unseen(api, JOBS)
    assert "parallelism" in told
    bare = faults(api, SERVING)
    assert 'The namespace "serving" cannot be seen: apply manifests/ again.' in bare
    assert 'We may not create workflows in the namespace "serving": bind the roles of manifests/ there.' in bare


def test_argo_r14_the_parallelism_of_a_real_configmap_is_read(plane: Plane) -> None:
    path = f"/api/v1/namespaces/{JOBS}/configmaps/workflow-controller-configmap"
    before = plane.admin.get(path).get("data") or {}
    assert faults(plane.admin, JOBS) == ()
    plane.admin.patch(path, {"data": {"parallelism": "7"}})
    try:
        (told,) = faults(plane.admin, JOBS)
    finally:
        plane.admin.patch(path, {"data": {"parallelism": None}})
    assert "parallelism = 7" in told
    assert plane.admin.get(path).get("data") == before
