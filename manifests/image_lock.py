"""The part of requirements.lock that an image needs: `python manifests/image_lock.py bot postgres > bot.lock`.

Each word is an extra of pyproject.toml, which stands for the product with that extra, or the name of a package.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

_BLOCK = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==.*?(?=^[A-Za-z0-9]|\Z)", re.MULTILINE | re.DOTALL)
_VIA = re.compile(r"^    #(?: via|  ) +(?P<name>[A-Za-z0-9._-]+)", re.MULTILINE)


def image_lock(project: str, lock: str, words: Iterable[str]) -> str:
    """The blocks of the lock that the words need, and what these need, with their hashes."""
    told = tomllib.loads(project)["project"]
    extras = told["optional-dependencies"]
    wanted: set[str] = set()
    for word in words:
        asked = [*told["dependencies"], *extras[word]] if word in extras else [word]
        wanted |= {_normal(re.split(r"[ <>=!~;\[]", one, maxsplit=1)[0]) for one in asked}
    blocks = [(_normal(found["name"]), found[0]) for found in _BLOCK.finditer(lock)]
    missing = wanted - {name for name, _ in blocks}
    if missing:
        raise SystemExit(f"requirements.lock lacks {', '.join(sorted(missing))}: run `make lock`")
    while True:
        # uv writes under each package which others asked for it.
        more = {name for name, block in blocks if wanted & {_normal(via) for via in _VIA.findall(block)}}
        if more <= wanted:
            return "".join(block for name, block in blocks if name in wanted)
        wanted |= more


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.stdout.write(
        image_lock(
            Path("pyproject.toml").read_text(encoding="utf-8"),
            Path("requirements.lock").read_text(encoding="utf-8"),
            sys.argv[1:],
        )
    )
