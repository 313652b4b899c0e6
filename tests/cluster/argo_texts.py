"""What Argo does with the texts of a Workflow: templates, `depends`, the retry expression, hashes, reasons of ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from scheduler.adapters.argo import retry

Raw = Mapping[str, Any]

_TEMPLATE = re.compile(r"\{\{\s*([^{}]+?)\s*\}\}")
_TERM = re.compile(r"([A-Za-z0-9][-A-Za-z0-9]*)(?:\.([A-Z][A-Za-z]+))?")
_RETRIED = re.compile(
    r"pod deleted$|pod failed: |Pod failed before .+ container starts due to |can.t find failed message for pod "
    r"|Pod was rejected|Allocate failed due to |The node was low on resource"
    r"|Pod was terminated in response to imminent node shutdown"
)


def fnv32a(text: str) -> int:
    """The hash at the end of node ids and of pod names."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def node_id(workflow: str, node_name: str) -> str:
    return workflow if node_name == workflow else f"{workflow}-{fnv32a(node_name)}"


def pod_name(workflow: str, template: str, node_name: str) -> str:
    """`POD_NAMES` v2; long names are cut so that the hash stays."""
    if node_name == workflow:
        return workflow
    return f"{f'{workflow}-{template}'[: 253 - 11]}-{fnv32a(node_name)}"


def filled(value: Any, names: Mapping[str, str]) -> Any:
    """Every {{name}} that is known; others stay, as in Argo."""

    def fill(text: str) -> str:
        return _TEMPLATE.sub(lambda m: names.get(m[1], m[0]), text)

    if isinstance(value, str):
        return fill(value)
    if isinstance(value, list):
        return [filled(one, names) for one in value]
    if isinstance(value, dict):
        return {fill(key): filled(one, names) for key, one in value.items()}
    return value


def item_text(index: int, item: Any) -> str:
    """How an item stands in its node's name."""
    if isinstance(item, dict):
        told = ",".join(f"{key}:{_word(item[key])}" for key in sorted(item))
        return f"({index}:{told})"
    return f"({index}:{_word(item)})"


def item_names(item: Any) -> dict[str, str]:
    if isinstance(item, dict):
        return {f"item.{key}": _word(value) for key, value in item.items()} | {"item": json.dumps(item)}
    return {"item": _word(item)}


def depends_on(text: str) -> list[str]:
    """Tasks that a `depends` names, in order."""
    return list(dict.fromkeys(found[1] for found in _TERM.finditer(text)))


def depends_true(text: str, is_so: Callable[[str, str], bool]) -> bool:
    """`is_so(task, "Succeeded")` for each term; a bare name means Succeeded, Skipped or Daemoned."""

    def term(found: re.Match[str]) -> str:
        states = [found[2]] if found[2] else ["Succeeded", "Skipped", "Daemoned"]
        return str(any(is_so(found[1], state) for state in states))

    words = _TERM.sub(term, text).replace("&&", " and ").replace("||", " or ").replace("!", " not ")
    assert re.fullmatch(r"(?:True|False|and|or|not|[\s()])*", words), words
    return bool(eval(words))


def another_attempt(expression: str, last: Mapping[str, str]) -> bool:
    """`retryStrategy.expression`; only the texts that were proven on the real controller are understood."""
    texts = {retry.expression(0): False, retry.expression(1): True}
    assert expression in texts, f"nobody has proven this expression: {expression}"
    message, code = last["message"], last["exitCode"]
    if message.startswith(("gpujob-final:", "Pod was active on the node longer than the specified deadline")):
        return False
    stopped = code in ("143", "75") or (code == "137" and "OOMKilled" not in message)
    failed = texts[expression] and last["status"] == "Failed" and code not in ("0", "-1")
    return stopped or bool(_RETRIED.match(message)) or failed


def ended(pod: Raw) -> tuple[str, str, str]:
    """(phase, message, exit code) of a node whose pod is terminal; the code "-1" = unknown."""
    status = pod["status"]
    states = {one["name"]: one["state"] for one in status.get("containerStatuses") or ()}
    main = states.get("main", {}).get("terminated")
    code = "-1" if main is None else str(main["exitCode"])
    if status["phase"] == "Succeeded":
        return "Succeeded", status.get("message", ""), code
    if status.get("message"):
        return "Failed", status["message"], code
    if main is None and any("waiting" in one for one in states.values()):
        why = next(one["waiting"]["reason"] for one in states.values() if "waiting" in one)
        return "Error", f"Pod failed before main container starts due to {why}: ", code
    for name, state in states.items():
        over = state.get("terminated")
        if over and over["exitCode"]:
            told = f"{name}: {over.get('reason') or 'Error'} (exit code {over['exitCode']})"
            return ("Failed" if name == "main" else "Error"), told, code
    meta = pod["metadata"]
    return "Failed", f"can't find failed message for pod {meta['name']} namespace {meta['namespace']}", code


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
