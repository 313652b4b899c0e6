"""Builds the real control plane from Go modules into .cluster/bin-HASH; what is built already is left alone.

`python -m tests.cluster.build [NAME ..]` builds all parts, or those named. The hash is of the recipe (versions and
checksums of every module) and of the version of Go, so another version never finds these.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECIPE = Path(__file__).resolve().parent / "recipe"
KUBERNETES, ETCD, ARGO = "v1.34.4", "v3.6.16", "v4.0.5"
GO = "1.26"
PLACE = "GPUJOB_CLUSTER_BIN"  # a folder with all parts, built elsewhere

_KUBE_VERSION = "k8s.io/component-base/version"
_ARGO_MODULE = "github.com/argoproj/argo-workflows/v4"
_KUBE_FLAGS = (
    f"-s -w -X {_KUBE_VERSION}.gitVersion={KUBERNETES} -X {_KUBE_VERSION}.gitMajor=1 -X {_KUBE_VERSION}.gitMinor=34 "
    f"-X {_KUBE_VERSION}.gitTreeState=clean -X {_KUBE_VERSION}.buildDate=1970-01-01T00:00:00Z"
)
_ARGO_FLAGS = (
    f"-s -w -X {_ARGO_MODULE}.version={ARGO} -X {_ARGO_MODULE}.gitTag={ARGO} -X {_ARGO_MODULE}.gitTreeState=clean"
)
_CRDS = Path("manifests/base/crds")
_ROLE = Path("manifests/namespace-install/workflow-controller-rbac/workflow-controller-role.yaml")


class CannotBuild(Exception):
    """Says what is missing, and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One program, and the module of the recipe that it is built in."""

    name: str
    recipe: str
    package: str
    flags: str = "-s -w"


PARTS: Mapping[str, Part] = {
    part.name: part
    for part in (
        Part(name="etcd", recipe="etcd", package="go.etcd.io/etcd/server/v3"),
        *(
            Part(name=name, recipe="kube", package=f"k8s.io/kubernetes/cmd/{name}", flags=_KUBE_FLAGS)
            for name in ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl")
        ),
        Part(
            name="workflow-controller",
            recipe="argo",
            package=f"{_ARGO_MODULE}/cmd/workflow-controller",
            flags=_ARGO_FLAGS,
        ),
    )
}


def build(names: Sequence[str] = (), cache: Path = ROOT / ".cluster") -> Path:
    """The folder with these programs (all of them by default) and, in argo/, the controller's Role and CRDs.

    Raises:
        CannotBuild: Go is missing or too old, or a part does not build.
    """
    if os.environ.get(PLACE):
        return _built_elsewhere(Path(os.environ[PLACE]), names or tuple(PARTS))
    folder = cache / f"bin-{_hash(_go())}"
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / ".lock"):
        for name in names or PARTS:
            if not (folder / name).exists():
                _build(PARTS[name], folder)
        if "workflow-controller" in (names or PARTS) and not (folder / "argo").exists():
            _take_argo(folder)
    return folder


def can_build() -> bool:
    """Whether `build` has what it needs."""
    return bool(os.environ.get(PLACE)) or shutil.which("go") is not None


def _built_elsewhere(folder: Path, names: Sequence[str]) -> Path:
    missing = [name for name in (*names, "argo") if not (folder / name).exists()]
    if missing:
        raise CannotBuild(f"{PLACE}={folder} lacks {', '.join(missing)}; unset it to build them with Go {GO}")
    return folder


def _go() -> str:
    """The version of Go, such as go1.26.8."""
    go = shutil.which("go")
    if go is None:
        raise CannotBuild(
            f"the control plane is built from source, and there is no Go here: install Go {GO} or newer and put it "
            f"on PATH, or name a folder with the programs built elsewhere in {PLACE}"
        )
    version = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    found = re.match(r"go1\.(\d+)", version)
    if found and int(found[1]) < 21:  # from 1.21 on, Go fetches the version that a module asks for by itself
        raise CannotBuild(f"{go} is {version}; etcd {ETCD} is built with Go {GO} or newer: install that one")
    return version


def _hash(version: str) -> str:
    told = hashlib.sha256(version.encode())
    for file in sorted(RECIPE.glob("*/go.*")):
        told.update(file.read_bytes())
    for part in PARTS.values():
        told.update(f"{part}".encode())
    return told.hexdigest()[:12]


def _build(part: Part, folder: Path) -> None:
    print(f"building {part.name} ..", file=sys.stderr, flush=True)
    began, half = time.monotonic(), folder / f".{part.name}.part"
    words = ["go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", part.flags, "-o", str(half)]
    done = subprocess.run(
        [*words, part.package],
        cwd=RECIPE / part.recipe,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise CannotBuild(f"{part.name} does not build from {RECIPE / part.recipe}:\n{done.stderr[-3000:]}")
    half.replace(folder / part.name)
    print(f"built {part.name} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _take_argo(folder: Path) -> None:
    """The controller's own Role and CRDs, as its module ships them."""
    words = ["go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", _ARGO_MODULE]
    env = {**os.environ, "GOFLAGS": "", "GOWORK": "off"}
    listed = subprocess.run(words, cwd=RECIPE / "argo", env=env, capture_output=True, text=True, check=True)
    source, half = Path(listed.stdout.strip()), folder / ".argo.part"
    shutil.rmtree(half, ignore_errors=True)
    for kind in ("minimal", "full"):
        (half / kind).mkdir(parents=True)
        for file in sorted((source / _CRDS / kind).glob("argoproj.io_*.yaml")):
            (half / kind / file.name).write_bytes(file.read_bytes())  # the module cache is read-only, these are not
    (half / "role.yaml").write_bytes((source / _ROLE).read_bytes())
    half.replace(folder / "argo")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Two builds at once take turns."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PARTS)}; none = all")
    parser.add_argument("--into", type=Path, default=ROOT / ".cluster", help="the folder of all builds")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in PARTS]
    if unknown:
        print(f"{', '.join(unknown)}: there are only {', '.join(PARTS)}", file=sys.stderr)
        return 2
    try:
        print(build(options.names, options.into))
    except CannotBuild as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
