"""The Dockerfile, read: nothing here can build it."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.cluster.manifests import ROOT, documents

_FROM = re.compile(r"FROM (?P<base>\S+) AS (?P<name>\S+)")
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def stages() -> dict[str, tuple[str, list[str]]]:
    """Of each stage: what it starts from, and its instructions."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    found: dict[str, tuple[str, list[str]]] = {}
    for line in text.splitlines():
        if start := _FROM.fullmatch(line):
            found[start["name"]] = (start["base"], [])
        elif found and line.strip() and not line.startswith("#"):
            found[list(found)[-1]][1].append(line)
    return found


def whole(name: str) -> list[str]:
    """The instructions of a stage after those of the stages that it starts from."""
    base, lines = stages()[name]
    return [*(whole(base) if base in stages() else []), *lines]


def locked(*words: str) -> dict[str, str]:
    """The blocks that the script of the Dockerfile keeps, by package."""
    file = ROOT / "manifests" / "image_lock.py"
    names: dict[str, object] = {"__name__": "image_lock"}
    exec(compile(file.read_text(encoding="utf-8"), file, "exec"), names)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    kept: str = names["image_lock"](project, LOCK, words)  # type: ignore[operator]
    return {block.split("==")[0]: block for block in re.split(r"^(?=[a-z0-9])", kept, flags=re.MULTILINE) if block}


@pytest.mark.parametrize("target", ["scheduler", "bot"])
def test_an_image_runs_its_process_as_a_numeric_user_without_a_shell(target: str) -> None:
    lines = whole(target)
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert len(users) == 1
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", users[0])
    (entry,) = [line for line in lines if line.startswith("ENTRYPOINT ")]
    program = re.fullmatch(r'ENTRYPOINT \["([a-z-]+)"\]', entry)
    assert program
    assert program[1] in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    after = lines[[line.startswith("USER ") for line in lines].index(True) :]
    assert not [line for line in after if line.startswith("RUN ")]
    (deployment,) = documents(ROOT / "manifests" / "base" / f"{target}.yaml")
    pod = deployment["spec"]["template"]["spec"]
    assert users[0].split(":")[0] == str(pod["securityContext"]["runAsUser"])


def test_what_is_copied_is_there_and_reaches_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copies = [line.split()[1:-1] for _, lines in stages().values() for line in lines if line.startswith("COPY ")]
    plain = [source for words in copies if not words[0].startswith("--from=") for source in words]
    assert plain
    for source in plain:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, source
    for words in copies:
        if words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in stages()


def test_every_package_of_an_image_comes_from_the_lock_with_its_hash() -> None:
    installs = [line for _, lines in stages().values() for line in lines if "pip install" in line]
    assert installs
    for line in installs:
        for command in line.split("&&"):
            if "pip install" in command:
                assert "--require-hashes" in command or "--no-deps wheels/*.whl" in command
    for words in (("scheduler", "postgres"), ("bot", "postgres"), ("hatchling",)):
        assert all("--hash=sha256:" in block for block in locked(*words).values())


def test_an_image_has_what_its_process_needs_and_not_the_rest() -> None:
    bot, scheduler = set(locked("bot", "postgres")), set(locked("scheduler", "postgres"))
    assert {"slack-bolt", "aiohttp", "sqlmodel", "sqlalchemy", "pg8000", "scramp"} <= bot
    assert {"kubernetes", "urllib3", "hera-workflows", "apscheduler", "tzlocal", "alembic", "httpx"} <= scheduler
    assert "numpy" in scheduler - bot  # the forecast of loads
    assert not (bot | scheduler) & {"pytest", "mypy", "ruff", "matplotlib", "rich", "playwright", "hatchling"}
    assert not bot & {"kubernetes", "hera-workflows", "apscheduler"}
    assert not scheduler & {"slack-bolt", "slack-sdk"}


def test_a_word_that_the_lock_does_not_know_is_said() -> None:
    with pytest.raises(SystemExit, match=r"requirements\.lock lacks no-such-package"):
        locked("no-such-package")
