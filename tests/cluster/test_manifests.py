"""What the manifests say, read without a cluster."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bot import settings as bot_settings
from scheduler import configfile
from scheduler import settings as scheduler_settings
from scheduler.adapters.argo.shape import Shape
from scheduler.adapters.argo.workflow import workflows
from scheduler.adapters.kube import names
from scheduler.cli.main import parser
from tests.adapters.argo_jobs import HEAD, an_order
from tests.cluster.manifests import MANIFESTS, ROOT, Raw, documents, objects, one, right_of, rights, unused

OVERLAYS = ("dev", "prod")
TOKENS = {"GPUJOB__SLACK__BOT_TOKEN": "xoxb-playground", "GPUJOB__SLACK__APP_TOKEN": "xapp-playground"}
PROD = {**TOKENS, "GPUJOB__DATABASE__URL": "postgresql+pg8000://gpujob@database/gpujob"}
ROLES = {
    "gpujob-scheduler, all namespaces": ("ClusterRole", "gpujob-scheduler"),
    "gpujob-scheduler, namespace of the jobs": ("Role", "gpujob-scheduler"),
    "gpujob-serving-observe, namespaces of services": ("ClusterRole", "gpujob-serving-observe"),
    "gpujob-serving-manage, namespaces of services": ("ClusterRole", "gpujob-serving-manage"),
    "gpujob-runner, namespace of the jobs": ("Role", "gpujob-runner"),
}


GANG = "steps:\n  - {name: pretrain, gpus: 8, nodes: 3, command: [torchrun, pretrain.py]}\n"


def pod_of(deployment: Raw) -> Raw:
    pod: Raw = deployment["spec"]["template"]["spec"]
    return pod


DEPLOYMENTS = [o for o in objects("base") if o["kind"] == "Deployment"]


def test_every_object_says_what_it_is_and_where() -> None:
    everything = objects("base", "overlays/dev", "overlays/prod", "examples")
    anywhere = re.compile("Cluster|Namespace$|PriorityClass|Validating")
    assert len(everything) > 25
    for o in everything:
        assert o["apiVersion"]
        assert re.fullmatch(r"[a-z0-9-]+", o["metadata"]["name"])
        assert bool(o["metadata"].get("namespace")) != bool(anywhere.search(o["kind"])), o["metadata"]["name"]


@pytest.mark.parametrize("folder", ["base", "overlays/dev", "overlays/prod", "argo"])
def test_kustomize_is_told_of_every_file(folder: str) -> None:
    (told,) = documents(MANIFESTS / folder / "kustomization.yaml")
    named = {Path(name) for name in told.get("resources", ()) if name.endswith(".yaml")}
    named |= {Path(patch["path"]) for patch in told.get("patches", ()) if "path" in patch}
    assert named == {Path(file.name) for file in (MANIFESTS / folder).glob("*.yaml")} - {Path("kustomization.yaml")}


def test_the_names_are_those_that_the_scheduler_writes() -> None:
    priority = one("PriorityClass", names.PRIORITY_CLASS, "base")
    assert (priority["value"], priority["preemptionPolicy"]) == (names.PRIORITY, "Never")
    service = one("Service", names.GANG_SERVICE, "base")["spec"]
    assert service["selector"] == {names.GANG: "true"}
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert [port["port"] for port in service["ports"]] == [names.GANG_PORT]
    policy = one("ValidatingAdmissionPolicy", names.POLICY, "base")["spec"]
    said = {variable["name"]: variable["expression"] for variable in policy["variables"]}
    assert f"'{names.GATE}'" in said["gated"]
    assert f"'{names.PRIORITY_CLASS}'" in said["low"]
    assert names.GATE in policy["validations"][0]["message"]
    assert names.PRIORITY_CLASS in policy["validations"][1]["message"]
    binding = one("ValidatingAdmissionPolicyBinding", names.POLICY, "base")["spec"]
    assert (binding["policyName"], binding["validationActions"]) == (names.POLICY, ["Deny"])
    (gangs,) = one("NetworkPolicy", "gangs-only", "base")["spec"]["ingress"]
    assert gangs["from"] == [{"podSelector": {"matchLabels": {names.GANG: "true"}}}]


def test_every_pod_of_a_gang_is_selected_by_its_service() -> None:
    selector = one("Service", names.GANG_SERVICE, "base")["spec"]["selector"]
    (part,) = workflows(an_order(HEAD + GANG), Shape(namespace="gpujobs"))
    pods = [template for template in part.body["spec"]["templates"] if "container" in template]
    assert len(pods) == 2  # rank 0, and one for all others
    for template in pods:
        assert selector.items() <= template["metadata"]["labels"].items()
        assert json.loads(template["podSpecPatch"])["subdomain"] == names.GANG_SERVICE


def test_the_accounts_and_namespaces_are_those_of_the_settings() -> None:
    section = scheduler_settings.ClusterSection(kind="kubernetes")
    assert one("Namespace", section.namespace, "base")
    runner = one("ServiceAccount", section.service_account, "base")
    assert runner["metadata"]["namespace"] == section.namespace == Shape(namespace=section.namespace).namespace
    assert Shape(namespace="gpujobs").service_account == section.service_account
    binding = one("ValidatingAdmissionPolicyBinding", names.POLICY, "base")["spec"]["matchResources"]
    assert binding["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": section.namespace}


@pytest.mark.parametrize(("overlay", "environment"), [("dev", TOKENS), ("prod", PROD)])
def test_both_processes_can_read_the_settings_of_an_overlay(overlay: str, environment: dict[str, str]) -> None:
    file = MANIFESTS / "overlays" / overlay / "gpujob.toml"
    told = scheduler_settings.read(configfile.load(file, environment))
    assert told.cluster.kind == "kubernetes"
    assert bot_settings.read(file, environment).database_url == told.database_url
    serving = {o["metadata"]["namespace"] for o in objects(f"overlays/{overlay}") if o["kind"] == "RoleBinding"}
    assert {service.namespace for service in told.services} == serving
    # Another process of the same cluster must find the same database.
    assert told.database_url.startswith(("sqlite:////var/lib/gpujob/", "postgresql+pg8000://"))


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda o: o["metadata"]["name"])
def test_a_process_runs_alone_without_root_and_is_probed(deployment: Raw) -> None:
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    pod = pod_of(deployment)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] >= 1000
    (container,) = pod["containers"]
    limits = container["securityContext"]
    assert limits == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "requests" in container["resources"]
    assert "memory" in container["resources"]["limits"]
    (port,) = container["ports"]
    assert container["args"] == ["serve", "--health-port", str(port["containerPort"])]
    asked = {probe: container[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {get["port"] for get in asked.values()} == {port["name"]}
    assert [get["path"] for get in asked.values()] == ["/healthz", "/healthz", "/readyz"]
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/tmp"}


def test_the_scheduler_understands_how_its_container_starts_it() -> None:
    (container,) = pod_of(one("Deployment", "gpujob-scheduler", "base"))["containers"]
    options = parser().parse_args([*container["args"], "--config", container["env"][0]["value"]])
    assert (options.health_port, str(options.config)) == (8080, "/etc/gpujob/gpujob.toml")


def test_the_bot_has_no_token_of_the_cluster_and_no_rights_in_it() -> None:
    assert one("ServiceAccount", "gpujob-bot", "base")["automountServiceAccountToken"] is False
    bindings = [o for o in objects("base", *(f"overlays/{name}" for name in OVERLAYS)) if o["kind"].endswith("Binding")]
    named = {subject["name"] for binding in bindings for subject in binding.get("subjects", ())}
    assert named == {"gpujob-scheduler", "gpujob-runner"}


def test_no_secret_stands_in_the_manifests() -> None:
    assert not [
        o for o in objects("base", "overlays/dev", "overlays/prod", "argo", "examples") if o["kind"] == "Secret"
    ]
    for file in MANIFESTS.rglob("*"):
        assert not file.is_file() or not re.search(r"xox[bap]-\d|xapp-\d", file.read_text(encoding="utf-8"))


def table_of_rights() -> Iterator[tuple[str, frozenset[tuple[str, str, str]], str]]:
    """Rows of docs/kubernetes.md: the role, the rights, what they are for."""
    text = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\| `(gpujob-[a-z-]+, [a-z ]+)` \| `([^`]*)` \| ([a-z ]+) \| (.+) \|$", text, re.MULTILINE):
        where, resource, verbs, why = row
        group, _, plain = resource.rpartition(".io/") if ".io/" in resource else ("", "", resource)
        group = f"{group}.io" if group else ""
        for known in ("apps/", "autoscaling/", "keda.sh/"):
            if plain.startswith(known):
                group, plain = known.rstrip("/"), plain.removeprefix(known)
        yield where, frozenset((group, plain, verb) for verb in verbs.split()), why


@pytest.mark.parametrize("where", ROLES)
def test_the_docs_name_every_right_and_its_reason(where: str) -> None:
    told = [(given, why) for role, given, why in table_of_rights() if role == where]
    assert told
    assert frozenset().union(*(given for given, _ in told)) == rights(one(*ROLES[where], "base"))
    assert all(len(why) >= len("the same") for _, why in told)


def test_no_role_has_a_wildcard_or_reaches_what_we_never_touch() -> None:
    given = {right for role in ROLES.values() for right in rights(one(*role, "base"))}
    assert not [right for right in given if "*" in "".join(right)]
    touched = {resource for _, resource, _ in given}
    assert not touched & {"secrets", "configmaps", "pods/exec", "serviceaccounts/token", "events", "leases"}
    assert not [
        right for right in given if right[2] in {"update", "deletecollection", "escalate", "bind", "impersonate"}
    ]
    assert not [r for r in given if r[1] == "nodes" and r[2] not in {"list", "watch"}]


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("GET", "/api/v1/pods?limit=500", ("", "pods", "list")),
        ("GET", "/api/v1/pods?watch=true&resourceVersion=7", ("", "pods", "watch")),
        ("GET", "/api/v1/namespaces/gpujobs", ("", "namespaces", "get")),
        ("PATCH", "/api/v1/namespaces/gpujobs/pods/a", ("", "pods", "patch")),
        ("PATCH", "/api/v1/namespaces/gpujobs/pods/a/status?dryRun=All", ("", "pods/status", "patch")),
        ("POST", "/api/v1/namespaces/gpujobs/pods/a/eviction", ("", "pods/eviction", "create")),
        ("GET", "/api/v1/namespaces/gpujobs/pods/a/log?container=main", ("", "pods/log", "get")),
        ("DELETE", "/apis/argoproj.io/v1alpha1/namespaces/gpujobs/workflows/a", ("argoproj.io", "workflows", "delete")),
        ("GET", "/apis/apps/v1/namespaces/serving/deployments", ("apps", "deployments", "list")),
        ("PATCH", "/apis/apps/v1/namespaces/serving/deployments/a/scale", ("apps", "deployments/scale", "patch")),
        ("GET", "/apis/argoproj.io/v1alpha1", None),
        ("GET", "/readyz", None),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", None),
    ],
)
def test_a_request_names_the_right_that_it_needs(method: str, path: str, right: tuple[str, str, str] | None) -> None:
    assert right_of(method, path) == right


def test_a_right_that_no_request_needs_is_found() -> None:
    role = one("Role", "gpujob-runner", "base")
    path = "/apis/argoproj.io/v1alpha1/namespaces/gpujobs/workflowtaskresults"
    assert unused([role], [("POST", path)]) == {("argoproj.io", "workflowtaskresults", "patch")}
    assert not unused([role], [("POST", path), ("PATCH", f"{path}/a")])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kustomize_builds_an_overlay(overlay: str, tmp_path: Path) -> None:
    built = subprocess.run(
        ["kubectl", "kustomize", MANIFESTS / "overlays" / overlay], capture_output=True, text=True, check=True
    )
    assert not built.stderr
    (tmp_path / "built.yaml").write_text(built.stdout, encoding="utf-8")
    made = list(documents(tmp_path / "built.yaml"))
    (settings,) = (o["metadata"]["name"] for o in made if o["kind"] == "ConfigMap")
    deployments = [pod_of(o) for o in made if o["kind"] == "Deployment"]
    assert len(deployments) == 2
    for pod in deployments:
        mounted = {volume["name"]: volume for volume in pod["volumes"]}
        # Its name ends with a hash of what it says: new settings start new pods.
        assert mounted["settings"]["configMap"]["name"] == settings
        (container,) = pod["containers"]
        assert re.fullmatch(r"registry\.example\.com/gpujob/(scheduler|bot):\S+", container["image"])
        secrets = {e["valueFrom"]["secretKeyRef"]["name"] for e in container["env"] if "valueFrom" in e}
        assert ("gpujob-database" in secrets) == (overlay == "prod")
        assert ("state" in mounted) == (overlay == "dev")
