"""Images made by hand, without a registry: the pause of a pod, argoexec, and this Python with the example programs."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import certifi
import numpy as np
import obstore

PAUSE = "pause:test"
SERVING = "vllm:1"  # the same
ARGOEXEC = "argoexec:none"  # as the control plane of the tests names it
DIGITS = "digits:test"
EXAMPLES = Path(__file__).parents[2] / "examples"
_PLACE = "/work"
_UNUSED = re.compile(r"/(test|tests|idlelib|tkinter|ensurepip|lib2to3|site-packages|__pycache__|config-[^/]*)(/|$)")
_TESTS = re.compile(r"/(tests|__pycache__)/")
_FOLDERS = {"tmp": 0o1777, "var": 0o755, "var/run": 0o755, "etc": 0o755, "root": 0o700, "work": 0o1777}
_ETC = {
    "passwd": "root:x:0:0::/root:/bin/sh\nargo:x:8737:8737::/tmp:/bin/sh\nnobody:x:65534:65534::/tmp:/bin/sh\n",
    "group": "root:x:0:\nargo:x:8737:\nnogroup:x:65534:\n",
}

Fill = Callable[["Layer"], None]


class Layer:
    """Files of an image."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._bytes, mode="w")
        for folder, mode in _FOLDERS.items():
            held = tarfile.TarInfo(folder)
            held.type, held.mode = tarfile.DIRTYPE, mode
            self._tar.addfile(held)
        for name, text in _ETC.items():
            self.text(f"/etc/{name}", text)

    def text(self, path: str, text: str) -> None:
        held = tarfile.TarInfo(path.lstrip("/"))
        held.size, held.mode = len(text.encode()), 0o644
        self._tar.addfile(held, io.BytesIO(text.encode()))

    def file(self, source: Path, path: str = "") -> None:
        """The file itself, where a link leads."""
        held = self._tar.gettarinfo(str(source.resolve()), (path or str(source)).lstrip("/"))
        held.uid = held.gid = 0
        held.type, held.linkname = tarfile.REGTYPE, ""
        held.size = source.stat().st_size
        with source.open("rb") as content:
            self._tar.addfile(held, content)

    def tree(self, source: Path, path: str = "", *, unused: re.Pattern[str] | None = None) -> None:
        for file in sorted(source.rglob("*")):
            inside = f"/{file.relative_to(source)}"
            if file.is_file() and not (unused and unused.search(inside)):
                self.file(file, f"{path or source}{inside}")

    def done(self) -> bytes:
        self._tar.close()
        return self._bytes.getvalue()


def make_images(folder: Path, argoexec: Path, busybox: Path) -> tuple[Path, ...]:
    """Archives that `ctr images import` takes."""
    folder.mkdir(parents=True, exist_ok=True)
    return (
        _archive(folder, PAUSE, lambda layer: layer.file(busybox, "/bin/sleep"), {"Entrypoint": ["/bin/sleep", "1d"]}),
        _archive(folder, ARGOEXEC, lambda layer: layer.file(argoexec, "/bin/argoexec"), {"Entrypoint": ["argoexec"]}),
        _archive(folder, DIGITS, _python, {"WorkingDir": _PLACE}),
    )


def _archive(folder: Path, name: str, fill: Fill, config: Mapping[str, object]) -> Path:
    layer = Layer()
    fill(layer)
    content = layer.done()
    about = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": [f"PATH={Path(sys.base_prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin"], **config},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
    }
    written = json.dumps(about).encode()
    described = {
        "Config": "config.json",
        "RepoTags": [name, *([SERVING] if name == PAUSE else [])],
        "Layers": ["layer.tar"],
    }
    path = folder / f"{name.partition(':')[0]}.tar"
    with tarfile.open(path, "w") as archive:
        parts = {"layer.tar": content, "config.json": written, "manifest.json": json.dumps([described]).encode()}
        for part, data in parts.items():
            held = tarfile.TarInfo(part)
            held.size = len(data)
            archive.addfile(held, io.BytesIO(data))
    return path


def _python(layer: Layer) -> None:
    """The interpreter that runs the tests, at its own path, so that packages built for it run there too."""
    program = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    layer.file(program, str(Path(sys.base_prefix) / "bin" / "python"))
    layer.tree(library, unused=_UNUSED)
    programs = {program, *library.glob("lib-dynload/*.so")}
    for package in (np, obstore):
        home = Path(str(package.__file__)).parent
        for part in (home, home.with_name(f"{home.name}.libs")):
            layer.tree(part, f"{library}/site-packages/{part.name}", unused=_TESTS)
        programs.update(home.rglob("*.so"))
    for needed in sorted({library for program in programs for library in _needed(program)}):
        layer.file(needed)
    layer.file(Path(certifi.where()), "/etc/ssl/certs/ca-certificates.crt")
    layer.tree(EXAMPLES, _PLACE, unused=re.compile(r"/__pycache__/"))


def _needed(program: Path) -> Iterable[Path]:
    """The system's shared libraries, as its own loader finds them."""
    told = subprocess.run(["ldd", str(program)], capture_output=True, text=True).stdout
    for found in re.finditer(r"(/\S+) \(0x", told):
        if "site-packages" not in found[1]:  # those come with their package
            yield Path(found[1])
