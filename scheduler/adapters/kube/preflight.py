"""What an operator should know before jobs run: looked at once, with the rights that the scheduler has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from scheduler.adapters.kube.api import Api, Refused
from scheduler.adapters.kube.names import POLICY, PRIORITY, PRIORITY_CLASS
from scheduler.errors import Unavailable

ARGO = "argo"  # the namespace that Argo's own manifests install its controller into
_GROUPS = "/apis"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_MANIFESTS = "apply manifests/ again"
_PARALLELISM = ("parallelism", "namespaceParallelism")

Right = tuple[str, str, str]  # API group, resource with its subresource, verb

EVERYWHERE: tuple[Right, ...] = (
    ("", "nodes", "list"),
    ("", "nodes", "watch"),
    ("", "pods", "list"),
    ("", "pods", "watch"),
)
IN_JOBS: tuple[Right, ...] = (
    ("", "pods", "patch"),
    ("", "pods", "delete"),
    ("", "pods/status", "patch"),
    ("", "pods/eviction", "create"),
    ("", "pods/log", "get"),
    ("argoproj.io", "workflows", "create"),
    ("argoproj.io", "workflows", "list"),
    ("argoproj.io", "workflows", "patch"),
)
IN_SERVING: tuple[Right, ...] = (("apps", "deployments", "list"), ("apps", "deployments", "watch"))
IN_MANAGED: tuple[Right, ...] = (
    ("apps", "deployments/scale", "get"),
    ("apps", "deployments/scale", "patch"),
    ("", "pods", "patch"),
)


def faults(
    api: Api, namespace: str, serving: Collection[str] = (), managed: Collection[str] = (), argo: str = ARGO
) -> tuple[str, ...]:
    """One sentence for each thing that is missing or looks wrong; none = all is well.

    Args:
        api: as the scheduler.
        namespace: of the jobs.
        serving: namespaces with services.
        managed: those of them where we set replicas.
        argo: where Argo's controller runs, if not in the namespace of the jobs.
    """
    try:
        groups = frozenset(group["name"] for group in api.get(_GROUPS)["groups"])
    except (Unavailable, Refused) as error:
        return (f"The API server {api.host} cannot be used: {error}",)
    checks = (
        partial(_workflows, api, groups),
        partial(_namespace, api, namespace, groups),
        partial(_priority, api),
        partial(_policy, api),
        partial(_rights, api, namespace, serving, managed),
        partial(_parallelism, api, namespace, argo),
    )
    found: list[str] = []
    for check in checks:
        try:
            found.extend(check())
        except Unavailable as error:
            found.append(f"The API server stopped answering: {error}")
            break
    return tuple(found)


def unseen(api: Api, namespace: str, argo: str = ARGO) -> tuple[str, ...]:
    """What an operator has to look at himself, because we may not.

    Raises:
        Unavailable: the API server does not answer.
    """
    if any(isinstance(_seen(api, _settings_of_argo(place)), Mapping) for place in _places(namespace, argo)):
        return ()
    return (
        "Whether Argo's controller has parallelism set cannot be seen: we may not read its "
        "workflow-controller-configmap. Look there yourself; neither parallelism nor namespaceParallelism may be set.",
    )


def _workflows(api: Api, groups: Collection[str]) -> Iterator[str]:
    resources = []
    if "argoproj.io" in groups:
        told = _seen(api, "/apis/argoproj.io/v1alpha1")
        resources = [one["name"] for one in told["resources"]] if isinstance(told, Mapping) else []
    if "workflows" not in resources:
        yield "The cluster knows no Workflows (argoproj.io/v1alpha1): install Argo Workflows."


def _namespace(api: Api, namespace: str, groups: Collection[str]) -> Iterator[str]:
    told = _seen(api, f"/api/v1/namespaces/{namespace}")
    if told == 404:
        yield f'There is no namespace "{namespace}", [cluster] namespace: create it, or {_MANIFESTS}.'
    elif told == 403:
        yield f'The namespace "{namespace}" cannot be seen: {_MANIFESTS}.'
    if "kueue.x-k8s.io" not in groups:
        return
    labels = told["metadata"].get("labels") or {} if isinstance(told, Mapping) else {}
    if labels.get("kueue.x-k8s.io/managed-namespace") == "true":
        yield (
            f'Kueue manages the namespace "{namespace}" (label kueue.x-k8s.io/managed-namespace): its gates would '
            "hold pods beside ours; take the label off."
        )
        return
    pods = _seen(api, f"/api/v1/namespaces/{namespace}/pods", limit=500)
    held = [
        pod["metadata"]["name"]
        for pod in (pods["items"] if isinstance(pods, Mapping) else ())
        if any(gate["name"].startswith("kueue.x-k8s.io/") for gate in pod["spec"].get("schedulingGates") or ())
    ]
    if held:
        yield (
            f'Kueue holds pods of the namespace "{namespace}", such as {held[0]}: leave the namespace out of its '
            "managedJobsNamespaceSelector."
        )


def _priority(api: Api) -> Iterator[str]:
    told = _seen(api, f"/apis/scheduling.k8s.io/v1/priorityclasses/{PRIORITY_CLASS}")
    if told == 403:
        yield f"The PriorityClass {PRIORITY_CLASS} cannot be seen: {_MANIFESTS}."
    elif not isinstance(told, Mapping):
        yield f"There is no PriorityClass {PRIORITY_CLASS}, so no pod of a job can be made: {_MANIFESTS}."
    else:
        policy = told.get("preemptionPolicy", "PreemptLowerPriority")
        if (told["value"], policy) != (PRIORITY, "Never"):
            yield (
                f"The PriorityClass {PRIORITY_CLASS} has value {told['value']} and preemptionPolicy {policy}; it must "
                f"be {PRIORITY} and Never, or jobs push others out: delete it, and {_MANIFESTS}."
            )


def _policy(api: Api) -> Iterator[str]:
    told = _seen(api, f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/{POLICY}")
    if told == 403:
        yield f"The admission policy {POLICY} cannot be seen: {_MANIFESTS}."
    elif not isinstance(told, Mapping):
        yield f"The admission policy {POLICY} is not bound, so a pod without our gate would run at once: {_MANIFESTS}."
    elif "Deny" not in told["spec"].get("validationActions", ()):
        yield f"The admission policy {POLICY} is bound without Deny, so it refuses nothing: {_MANIFESTS}."


def _rights(api: Api, namespace: str, serving: Iterable[str], managed: Iterable[str]) -> Iterator[str]:
    wanted = [("", right) for right in EVERYWHERE]
    wanted += [(namespace, right) for right in IN_JOBS]
    wanted += [(place, right) for place in sorted(set(serving)) for right in IN_SERVING]
    wanted += [(place, right) for place in sorted(set(managed)) for right in IN_MANAGED]
    for place, (group, resource, verb) in wanted:
        if not _may(api, place, group, resource, verb):
            where = f'in the namespace "{place}"' if place else "in all namespaces"
            yield f"We may not {verb} {resource} {where}: bind the roles of manifests/ there."


def _may(api: Api, namespace: str, group: str, resource: str, verb: str) -> bool:
    plain, _, sub = resource.partition("/")
    asked = {"group": group, "resource": plain, "subresource": sub, "verb": verb, "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    return bool(api.create(_REVIEWS, review)["status"]["allowed"])


def _parallelism(api: Api, namespace: str, argo: str) -> Iterator[str]:
    """Gated pods count against it, so the queue would not see the rest (argo #12541, #14750)."""
    for place in _places(namespace, argo):
        told = _seen(api, _settings_of_argo(place))
        data = told.get("data") or {} if isinstance(told, Mapping) else {}
        for key in _PARALLELISM:
            limit = _limit(data, key)
            if limit:
                yield (
                    f"Argo's controller has {key} = {limit} (workflow-controller-configmap in {place}): waiting pods "
                    "count, and gpujob does not see the rest of the queue; take it out."
                )


def _places(namespace: str, argo: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((namespace, argo)))


def _settings_of_argo(place: str) -> str:
    return f"/api/v1/namespaces/{place}/configmaps/workflow-controller-configmap"


def _limit(data: Mapping[str, str], key: str) -> str:
    """Of the ConfigMap: a key of its own, or a line of `config`."""
    if data.get(key, "").strip():
        return data[key].strip()
    for line in data.get("config", "").splitlines():
        name, _, value = line.partition(":")
        if name == key and value.strip():
            return value.split("#")[0].strip()
    return ""


def _seen(api: Api, path: str, **query: str | int) -> Any:
    """The object, or the status of a refusal."""
    try:
        return api.get(path, **query)
    except Refused as error:
        return error.status
