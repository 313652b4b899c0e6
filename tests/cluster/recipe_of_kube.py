"""Writes recipe/kube/go.mod for a version of Kubernetes: `python -m tests.cluster.recipe_of_kube v1.34.4`.

Kubernetes' own go.mod replaces its staging modules by folders of its repository; outside of that, each needs a
`replace` by the version that was published with it. go.sum is written by the first build.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.cluster.build import RECIPE

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")


def module(version: str, theirs: str) -> str:
    """Our go.mod, from the go.mod of Kubernetes."""
    staging = sorted(set(re.findall(r"(\S+) => \./staging/src/\S+", theirs)))
    go = re.search(r"^go (\S+)", theirs, re.MULTILINE)
    debug = re.search(r"^godebug [^\n(]*$", theirs, re.MULTILINE)  # the defaults that its own builds have
    assert staging
    assert go
    lines = ["module gpujob.io/cluster/kube", "", f"go {go[1]}", ""]
    lines += ["tool (", *(f"\tk8s.io/kubernetes/cmd/{name}" for name in PROGRAMS), ")", ""]
    lines += [debug[0], ""] if debug else []
    lines += [f"require k8s.io/kubernetes {version}", "", "replace ("]
    lines += [f"\t{name} => {name} v0{version.removeprefix('v1')}" for name in staging]
    return "\n".join([*lines, ")", ""])


def main() -> None:
    version = sys.argv[1]
    words = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{version}"]
    told = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    (RECIPE / "kube" / "go.mod").write_text(module(version, Path(told["GoMod"]).read_text()))


if __name__ == "__main__":
    main()
