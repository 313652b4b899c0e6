"""What Argo and the kubelet make of a Workflow: its pods as programs see them, and the order in which its DAG goes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.adapters.kube.names import RANK, TASK

_TAG = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_GO_PRINTS = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedPod:
    """One pod."""

    node: str  # DAG task
    item: int
    task: str
    rank: int
    labels: Mapping[str, str]
    command: tuple[str, ...]
    env: Mapping[str, str]
    patch: Mapping[str, Any]


def pods_of(body: Mapping[str, Any]) -> list[PlayedPod]:
    """All pods that a Workflow could make."""
    made = {template["name"]: template for template in body["spec"]["templates"]}
    return [
        _pod(task["name"], place, _replaced(made[task["template"]], "inputs.parameters", given))
        for task in made[body["spec"]["entrypoint"]]["dag"]["tasks"]
        for place, given in enumerate(_inputs(task))
    ]


def played(body: Mapping[str, Any], succeeds: Callable[[PlayedPod], bool]) -> Mapping[str, bool | None]:
    """How each task of the Workflow ends: True, False, or None if its DAG never tries it."""
    pods: dict[str, list[PlayedPod]] = {}
    for pod in pods_of(body):
        pods.setdefault(pod.node, []).append(pod)
    made = {template["name"]: template for template in body["spec"]["templates"]}
    left = {task["name"]: task for task in made[body["spec"]["entrypoint"]]["dag"]["tasks"]}
    results: dict[str, dict[str, bool]] = {}
    ended: dict[str, bool | None] = {}
    while left:
        name = next(name for name, task in left.items() if needed(task) <= results.keys())
        task = left.pop(name)
        if not _holds(task.get("depends", ""), results):
            results[name] = {"Omitted": True}
            ended |= {pod.task: None for pod in pods[name]}
            continue
        verdicts = [succeeds(pod) for pod in pods[name]]
        results[name] = {"Succeeded": all(verdicts), "Failed": not all(verdicts)}
        if "withItems" in task:
            results[name]["AnySucceeded"] = any(verdicts)
        for pod, verdict in zip(pods[name], verdicts, strict=True):
            ended[pod.task] = verdict and ended.get(pod.task, True) is True
    return ended


def needed(task: Mapping[str, Any]) -> set[str]:
    """The DAG tasks that `depends` names."""
    return {reference.partition(".")[0] for reference in re.findall(r"[\w-]+\.\w+", task.get("depends", ""))}


def _holds(depends: str, results: Mapping[str, Mapping[str, bool]]) -> bool:
    """The few signs of expr-lang that we write are Python's too, by other names."""
    if not depends:
        return True

    def value(match: re.Match[str]) -> str:
        node, _, result = match[0].partition(".")
        return str(results[node].get(result, False))

    return bool(eval(re.sub(r"[\w-]+\.\w+", value, depends).replace("&&", "and").replace("||", "or")))


def _inputs(task: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    arguments = task.get("arguments", {"parameters": []})
    for item in task.get("withItems", [{}]):
        # Argo takes the text of an item by cutting the quotes off its JSON.
        cut = {name: json.dumps(value, ensure_ascii=False)[1:-1] for name, value in item.items()}
        named = _replaced(arguments, "item", cut)
        yield {parameter["name"]: parameter["value"] for parameter in named["parameters"]}


def _replaced(value: Any, prefix: str, given: Mapping[str, str]) -> Any:
    """Argo's way: in the JSON of the whole, with texts quoted as Go quotes them."""

    def tag(match: re.Match[str]) -> str:
        name = match[1].strip()
        return _go_quoted(given[name.removeprefix(f"{prefix}.")])  # a KeyError: Argo would leave it, or refuse

    return json.loads(_TAG.sub(tag, json.dumps(value, ensure_ascii=False)))


def _go_quoted(text: str) -> str:
    return "".join(map(_go_character, text))


def _go_character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character in _GO_PRINTS:
        return _GO_PRINTS[character]
    if character < " " or character == "\x7f":
        return f"\\x{ord(character):02x}"
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


def _pod(node: str, item: int, template: Mapping[str, Any]) -> PlayedPod:
    labels, container = template["metadata"]["labels"], template["container"]
    return PlayedPod(
        node=node,
        item=item,
        task=labels[TASK],
        rank=int(labels.get(RANK, 0)),
        labels=labels,
        command=tuple(map(_expanded, container["command"])),
        env={one["name"]: _expanded(one["value"]) for one in container["env"] if "value" in one},
        patch=json.loads(template["podSpecPatch"]),
    )


def _expanded(text: str) -> str:
    """As the kubelet does it, with no variable known."""

    def meant(match: re.Match[str]) -> str:
        assert not match[0].startswith("$("), "the kubelet would look this variable up"
        return "$" if match[0] == "$$" else match[0]

    return re.sub(r"\$(\$|\([^)]*\)|.)", meant, text, flags=re.DOTALL)
