"""Servers that tests run against, built from their Go modules once and kept in `.cluster/` (git ignores it)."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_KEPT = Path(__file__).parents[1] / ".cluster" / "programs"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoProgram:
    """One program of a Go module."""

    name: str
    package: str
    version: str

    def built(self) -> Path:
        """The program; where there is no Go, or it cannot be built, the test is skipped and says why."""
        program = _KEPT / f"{self.name}-{self.version}"
        if program.exists():
            return program
        go = shutil.which("go")
        if go is None:
            pytest.skip(f"needs Go, to build {self.package}")
        module = _KEPT / f"{self.name}-module"
        shutil.rmtree(module, ignore_errors=True)
        module.mkdir(parents=True)
        (module / "go.mod").write_text(f"module {self.name}\n\ngo 1.25\n")
        self._run(go, module, "get", f"{self.package}@{self.version}")
        unfinished = module / self.name
        self._run(go, module, "build", "-mod=mod", "-trimpath", "-ldflags=-s -w", "-o", str(unfinished), self.package)
        unfinished.rename(program)
        shutil.rmtree(module)
        return program

    def _run(self, go: str, folder: Path, *words: str) -> None:
        ended = subprocess.run([go, *words], cwd=folder, capture_output=True, text=True, env=None)
        if ended.returncode:
            pytest.skip(f"{self.package} cannot be built: {ended.stderr.strip().splitlines()[-1]}")


REGISTRY = GoProgram(name="registry", package="github.com/distribution/distribution/v3/cmd/registry", version="v3.1.2")
SEAWEEDFS = GoProgram(
    name="weed", package="github.com/seaweedfs/seaweedfs/weed", version="v0.0.0-20261109003541-7506e5f91cd6"
)


if __name__ == "__main__":  # so that no test waits for it
    for program in (REGISTRY, SEAWEEDFS):
        try:
            print(program.built())
        except pytest.skip.Exception as skipped:
            print(skipped)
