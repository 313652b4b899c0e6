"""Kubelet and argoexec, built from the same modules as the control plane and kept beside its parts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.cluster.build import (
    ARGO,
    KUBERNETES,
    RECIPE,
    CannotBuild,
    build,
)

PLACE = "GPUJOB_NODE_BIN"  # a folder with kubelet and argoexec, built elsewhere
_ARGO = "github.com/argoproj/argo-workflows/v4"
_VERSION = "k8s.io/component-base/version"
_SIGNALS = Path("workflow/executor/osspecific")
_ENV = {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}


def node_programs() -> Path:
    """The folder with both.

    Raises:
        CannotBuild: Go is missing, or one does not build.
    """
    if os.environ.get(PLACE):
        return Path(os.environ[PLACE])
    folder = build()
    if not (folder / "kubelet").exists():
        flags = f"-s -w -X {_VERSION}.gitVersion={KUBERNETES} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=34"
        _go(RECIPE / "kube", folder / "kubelet", flags, "k8s.io/kubernetes/cmd/kubelet", "-mod=readonly")
    if not (folder / "argoexec").exists():
        _build_argoexec(folder)
    return folder


def _build_argoexec(folder: Path) -> None:
    # One of its files is a link, and zips of Go modules hold none: it is built from a copy with that file put back.
    recipe = folder / ".argoexec"
    shutil.rmtree(recipe, ignore_errors=True)
    shutil.copytree(RECIPE / "argo", recipe)
    listed = ["go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", _ARGO]
    source = Path(subprocess.run(listed, cwd=recipe, capture_output=True, text=True, check=True).stdout.strip())
    copy = recipe / "source"
    unused = shutil.ignore_patterns("docs", "ui", "test", "examples", "manifests", "community", "sdks")
    shutil.copytree(source, copy, ignore=unused, copy_function=shutil.copyfile)
    for held in (copy, *copy.rglob("*")):
        held.chmod(0o755 if held.is_dir() else 0o644)
    shutil.copyfile(copy / _SIGNALS / "signal_darwin.go", copy / _SIGNALS / "signal_linux.go")
    with (recipe / "go.mod").open("a") as module:
        module.write(f"\nreplace {_ARGO} => ./source\n")
    _go(recipe, folder / "argoexec", f"-s -w -X {_ARGO}.version={ARGO}", f"{_ARGO}/cmd/argoexec", "-mod=mod")
    shutil.rmtree(recipe)


def _go(folder: Path, into: Path, flags: str, package: str, mode: str) -> None:
    half = into.with_name(f".{into.name}.part")
    words = ["go", "build", "-trimpath", "-buildvcs=false", mode, "-ldflags", flags, "-o", str(half), package]
    done = subprocess.run(words, cwd=folder, env={**os.environ, **_ENV}, capture_output=True, text=True)
    if done.returncode:
        raise CannotBuild(f"{into.name} does not build from {folder}:\n{done.stderr[-3000:]}")
    half.replace(into)
