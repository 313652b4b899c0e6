"""Building the control plane: once for each version, and with a way out where it cannot be done. `go` is played."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import recipe_of_kube
from tests.cluster.build import ROOT

# It answers as Go does, writes each call down, and "builds" by copying itself.
GO = """#!/bin/sh
echo "$@" >> "{calls}"
case "$1" in
  env) echo "{version}" ;;
  build) shift; while [ "$1" != -o ]; do shift; done; {build} ;;
  list) echo "{module}" ;;
esac
"""


class Shop:
    """A computer with such a Go, or with none."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        self.programs = folder / "programs"
        self.programs.mkdir()

    def has_go(self, version: str = "go1.26.8", build: str = 'cp "$0" "$2"') -> None:
        go = self.programs / "go"
        go.write_text(GO.format(calls=self.calls, version=version, build=build, module=self.folder))
        go.chmod(0o755)

    def build(self, *names: str, **environment: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.cluster.build", *names, "--into", str(self.folder / "cache")],
            cwd=ROOT,
            env={"PATH": f"{self.programs}:/bin:/usr/bin" if names else str(self.programs), **environment},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout.strip(), done.stderr

    def builds(self) -> int:
        return sum(line.startswith("build ") for line in self.calls.read_text().splitlines())


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_without_go_it_says_which_one_is_needed_and_the_way_out(shop: Shop) -> None:
    code, _, said = shop.build()
    assert code == 1
    assert "install Go 1.26" in said
    assert "GPUJOB_CLUSTER_BIN" in said


def test_a_go_that_cannot_fetch_the_one_that_is_asked_for_is_named(shop: Shop) -> None:
    shop.has_go("go1.19.8")
    code, _, said = shop.build("etcd")
    assert code == 1
    assert "go1.19.8" in said


def test_what_is_built_already_is_left_alone_and_another_go_builds_anew(shop: Shop) -> None:
    shop.has_go()
    code, first, _ = shop.build("etcd", "kubectl")
    assert code == 0
    assert os.access(Path(first) / "etcd", os.X_OK)
    assert shop.builds() == 2
    assert shop.build("etcd", "kubectl")[1] == first
    assert shop.builds() == 2
    shop.has_go("go1.27.0")
    code, second, _ = shop.build("etcd")
    assert (code, second != first, shop.builds()) == (0, True, 3)


def test_a_build_that_fails_is_told_and_leaves_nothing_that_could_be_taken_for_a_program(shop: Shop) -> None:
    shop.has_go(build='echo half > "$2"; echo "undefined: Setpgid" >&2; exit 1')
    code, _, said = shop.build("etcd")
    assert code == 1
    assert "undefined: Setpgid" in said
    assert not list((shop.folder / "cache").glob("bin-*/etcd"))


def test_a_folder_that_was_built_elsewhere_is_taken_if_it_is_whole(shop: Shop) -> None:
    for name in ("etcd", "argo"):
        (shop.programs / name).touch()
    whole = shop.build("etcd", GPUJOB_CLUSTER_BIN=str(shop.programs))
    assert whole[:2] == (0, str(shop.programs))
    code, _, said = shop.build("etcd", "kubectl", GPUJOB_CLUSTER_BIN=str(shop.programs))
    assert code == 1
    assert "lacks kubectl" in said


def test_an_unknown_part_is_refused_with_the_list_of_all(shop: Shop) -> None:
    code, _, said = shop.build("kubelt")
    assert code == 2
    assert "kube-apiserver" in said


def test_the_recipe_replaces_each_staging_module_by_the_version_published_with_it() -> None:
    theirs = "go 1.25.0\n\ngodebug default=go1.25\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n"
    made = recipe_of_kube.module("v1.35.2", theirs)
    assert "\tk8s.io/api => k8s.io/api v0.35.2\n" in made
    assert "\ngo 1.25.0\n" in made
    assert "\ngodebug default=go1.25\n" in made
    assert "require k8s.io/kubernetes v1.35.2" in made
