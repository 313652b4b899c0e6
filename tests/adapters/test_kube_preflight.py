"""What is said of a cluster before jobs run on it; the cluster is a table of answers over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from kubernetes import client

from scheduler.adapters.kube.api import Api
from scheduler.adapters.kube.names import POLICY, PRIORITY_CLASS
from scheduler.adapters.kube.preflight import IN_JOBS, faults, unseen

SETTINGS = "/api/v1/namespaces/{}/configmaps/workflow-controller-configmap"
PRIORITY = f"/apis/scheduling.k8s.io/v1/priorityclasses/{PRIORITY_CLASS}"
BINDING = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/{POLICY}"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
PODS = "/api/v1/namespaces/gpujobs/pods"


class Cluster(ThreadingHTTPServer):
    """Answers by path; what the table does not name is refused (403), as RBAC does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.denied: set[tuple[str, str]] = set()  # right, namespace
        self.answers: dict[str, int | dict[str, Any]] = {
            "/apis": {"groups": [{"name": "apps"}, {"name": "argoproj.io"}]},
            "/apis/argoproj.io/v1alpha1": {"resources": [{"name": "workflows"}]},
            "/api/v1/namespaces/gpujobs": {"metadata": {"name": "gpujobs"}},
            PRIORITY: {"value": -1000, "preemptionPolicy": "Never"},
            BINDING: {"spec": {"validationActions": ["Deny"]}},
        }

    def allowed(self, asked: dict[str, str]) -> bool:
        resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
        return (f"{asked['verb']} {resource}", asked["namespace"]) not in self.denied


class _Handler(BaseHTTPRequestHandler):
    server: Cluster

    def do_GET(self) -> None:
        answer = self.server.answers.get(self.path.partition("?")[0], 403)
        self._say(answer if isinstance(answer, int) else 200, {} if isinstance(answer, int) else answer)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert self.path == REVIEWS
        self._say(201, {"status": {"allowed": self.server.allowed(body["spec"]["resourceAttributes"])}})

    def _say(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    thread = Thread(target=cluster.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield cluster
    cluster.shutdown()
    thread.join()
    cluster.server_close()


@pytest.fixture
def api(cluster: Cluster) -> Api:
    return Api(client.Configuration(host=f"http://127.0.0.1:{cluster.server_port}"))


def said(api: Api) -> tuple[str, ...]:
    return faults(api, "gpujobs", serving=["serving"], managed=["serving"])


def test_nothing_is_said_of_a_cluster_as_it_should_be(api: Api) -> None:
    assert said(api) == ()


@pytest.mark.parametrize(
    ("path", "answer", "sentence"),
    [
        ("/apis/argoproj.io/v1alpha1", 404, "install Argo Workflows"),
        ("/apis/argoproj.io/v1alpha1", {"resources": [{"name": "workflowtemplates"}]}, "install Argo Workflows"),
        ("/apis", {"groups": [{"name": "apps"}]}, "install Argo Workflows"),
        ("/api/v1/namespaces/gpujobs", 404, 'There is no namespace "gpujobs", [cluster] namespace'),
        ("/api/v1/namespaces/gpujobs", 403, 'The namespace "gpujobs" cannot be seen'),
        (PRIORITY, 404, "There is no PriorityClass gpujob-batch"),
        (PRIORITY, 403, "The PriorityClass gpujob-batch cannot be seen"),
        (PRIORITY, {"value": 0, "preemptionPolicy": "Never"}, "has value 0 and preemptionPolicy Never"),
        (PRIORITY, {"value": -1000}, "preemptionPolicy PreemptLowerPriority; it must be -1000 and Never"),
        (BINDING, 404, "is not bound, so a pod without our gate would run at once"),
        (BINDING, 403, "The admission policy gpujob-gated-pods cannot be seen"),
        (BINDING, {"spec": {"validationActions": ["Audit"]}}, "is bound without Deny"),
    ],
)
def test_what_is_missing_is_said_with_a_way_out(
    cluster: Cluster, api: Api, path: str, answer: int | dict[str, Any], sentence: str
) -> None:
    cluster.answers[path] = answer
    (told,) = said(api)
    assert sentence in told


def test_faults_are_said_all_at_once(cluster: Cluster, api: Api) -> None:
    cluster.answers |= {PRIORITY: 404, BINDING: 404, "/api/v1/namespaces/gpujobs": 404}
    assert len(said(api)) == 3


@pytest.mark.parametrize(
    ("right", "namespace", "sentence"),
    [
        *((f"{verb} {resource}", "gpujobs", f"We may not {verb} {resource} in the") for _, resource, verb in IN_JOBS),
        ("watch pods", "", "We may not watch pods in all namespaces"),
        ("watch deployments", "serving", 'We may not watch deployments in the namespace "serving"'),
        ("patch deployments/scale", "serving", 'We may not patch deployments/scale in the namespace "serving"'),
    ],
)
def test_each_missing_right_is_named(cluster: Cluster, api: Api, right: str, namespace: str, sentence: str) -> None:
    cluster.denied.add((right, namespace))
    (told,) = said(api)
    assert sentence in told


def test_rights_of_manage_are_asked_for_only_where_it_is_meant(cluster: Cluster, api: Api) -> None:
    cluster.denied.add(("patch deployments/scale", "serving"))
    assert faults(api, "gpujobs", serving=["serving"]) == ()


@pytest.mark.parametrize("place", ["gpujobs", "argo"])
@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"parallelism": "10"}, "parallelism = 10"),
        ({"namespaceParallelism": "4"}, "namespaceParallelism = 4"),
        ({"config": "executor:\n  x: 1\nparallelism: 20  # of the team\n"}, "parallelism = 20"),
    ],
)
def test_argo_r14_parallelism_of_the_controller_is_warned_of(
    cluster: Cluster, api: Api, place: str, data: dict[str, str], key: str
) -> None:
    cluster.answers[SETTINGS.format(place)] = {"data": data}
    (told,) = said(api)
    assert f"Argo's controller has {key} (workflow-controller-configmap in {place})" in told
    assert unseen(api, "gpujobs") == ()


def test_argo_r14_no_parallelism_is_no_news(cluster: Cluster, api: Api) -> None:
    cluster.answers[SETTINGS.format("argo")] = {"data": {"config": "nodeEvents:\n  parallelism: none of ours\n"}}
    assert said(api) == ()
    assert unseen(api, "gpujobs") == ()


def test_argo_r14_what_cannot_be_seen_is_said_and_is_no_fault(api: Api) -> None:
    assert said(api) == ()
    (told,) = unseen(api, "gpujobs")
    assert "parallelism set cannot be seen" in told


def test_kueue_that_manages_the_namespace_is_warned_of(cluster: Cluster, api: Api) -> None:
    cluster.answers["/apis"] = {"groups": [{"name": "argoproj.io"}, {"name": "kueue.x-k8s.io"}]}
    assert said(api) == ()
    pod = {"metadata": {"name": "sft-0"}, "spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}}
    cluster.answers[PODS] = {"items": [{"metadata": {"name": "calm"}, "spec": {}}, pod]}
    (told,) = said(api)
    assert 'Kueue holds pods of the namespace "gpujobs", such as sft-0' in told
    labels = {"kueue.x-k8s.io/managed-namespace": "true"}
    cluster.answers["/api/v1/namespaces/gpujobs"] = {"metadata": {"name": "gpujobs", "labels": labels}}
    (told,) = said(api)
    assert "Kueue manages the namespace" in told


def test_a_server_that_does_not_answer_is_one_sentence(cluster: Cluster, api: Api) -> None:
    cluster.answers["/apis"] = 500
    (told,) = said(api)
    assert told.startswith("The API server http://127.0.0.1:")
    cluster.answers["/apis"] = {"groups": [{"name": "argoproj.io"}]}
    cluster.answers[PRIORITY] = 503
    (told,) = said(api)
    assert told.startswith("The API server stopped answering")
