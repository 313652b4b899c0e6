"""What a kubelet makes of a container's spec: argv, environment, a real process in a group of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

Raw = Mapping[str, Any]
Look = Callable[[str, str], Mapping[str, str]]  # ("secrets" or "configmaps", name) -> its entries, decoded

_FIELD = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
# What an image would bring along.
PROGRAMS = {"python": sys.executable, "python3": sys.executable}
_KEPT = ("PATH", "HOME", "LANG", "PYTHONPATH", "TMPDIR", "COVERAGE_PROCESS_START")


def main_of(spec: Raw) -> Raw:
    """The container that decides: Argo's `main`, else the first."""
    containers = spec["containers"]
    found: Raw = next((one for one in containers if one["name"] == "main"), containers[0])
    return found


def argv(container: Raw) -> list[str]:
    """The program's own words, without the argoexec that Argo puts before them."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if "emissary" in words[:2] and "--" in words:
        words = words[words.index("--") + 1 :]
    return [PROGRAMS.get(words[0], words[0]), *words[1:]] if words else []


def environment(pod: Raw, container: Raw, ip: str, devices: tuple[int, ...], look: Look) -> dict[str, str]:
    """As a kubelet resolves it: downward API, Secrets, ConfigMaps, and $(NAME) of variables that come before."""
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}
    env |= {"HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"]}
    if devices:
        env["NVIDIA_VISIBLE_DEVICES"] = env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, devices))
    for source in container.get("envFrom") or ():
        for key, plural in (("secretRef", "secrets"), ("configMapRef", "configmaps")):
            if key in source:
                entries = look(plural, source[key]["name"])
                env |= {f"{source.get('prefix', '')}{name}": value for name, value in entries.items()}
    for one in container.get("env") or ():
        if "valueFrom" in one:
            env[one["name"]] = _from(pod, one["valueFrom"], ip, look)
        else:
            env[one["name"]] = expand(one.get("value") or "", env)
    return env


def expand(text: str, env: Mapping[str, str]) -> str:
    """$(NAME) of what is known; the rest stays as it is; $$ is a dollar."""
    return _REFERENCE.sub(lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0]), text)


def _from(pod: Raw, source: Raw, ip: str, look: Look) -> str:
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"], ip)
    for key, plural in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
        if key in source:
            entries = look(plural, source[key]["name"])
            if source[key]["key"] not in entries and not source[key].get("optional"):
                raise KeyError(f"couldn't find key {source[key]['key']} in {plural} {source[key]['name']}")
            return entries.get(source[key]["key"], "")
    return ""


def _field(pod: Raw, path: str, ip: str) -> str:
    found = _FIELD.fullmatch(path)
    if found:
        return str((pod["metadata"].get(found[1]) or {}).get(found[2], ""))
    fixed = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        "status.podIP": ip,
        "status.podIPs": ip,
        "status.hostIP": "127.0.0.1",
    }
    return str(fixed[path])


class Process:
    """One container's program, with its output in a file. `ended` is called once, from another thread."""

    def __init__(
        self, words: list[str], env: Mapping[str, str], folder: Path, output: Path, ended: Callable[[], None]
    ) -> None:
        self._file: BinaryIO = output.open("ab")
        try:
            self._popen = subprocess.Popen(
                words,
                env=dict(env),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=self._file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError:
            self._file.close()
            raise
        self.code: int | None = None
        self.over = threading.Event()
        self._ended = ended
        threading.Thread(target=self._wait, daemon=True, name=f"wait-{self._popen.pid}").start()

    def _wait(self) -> None:
        code = self._popen.wait()
        self._file.close()
        # A container ends with its first process: what that left behind goes with it.
        self.signal(signal.SIGKILL)
        self.code = 128 - code if code < 0 else code
        self.over.set()
        self._ended()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def signal(self, number: int) -> None:
        """To the whole group, as the emissary does."""
        try:
            os.killpg(self._popen.pid, number)
        except (ProcessLookupError, PermissionError):
            return
