"""What people type wrongly, and what machines do to a command: always a sentence, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.cli.main import main

PROGRAM = Path(sys.executable).parent / "gpujob"
SETTINGS = """
[database]
url = "sqlite:///gpujob.sqlite3"
[[node]]
name = "node-1"
gpus = 4
"""
GOOD = "gpujob: 1\nname: hello\ncommand: [python, train.py]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gpujob.toml").write_text(SETTINGS)
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "damaged.sqlite3").write_bytes(os.urandom(3000))
    return tmp_path


def asked(folder: Path, words: str) -> list[str]:
    """The words, with `@name` for a file in the folder."""
    config = [] if "--config" in words else ["--config", str(folder / "gpujob.toml")]
    command, *rest = [str(folder / word[1:]) if word.startswith("@") else word for word in words.split()]
    return [command, *config, "--json", *rest]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("list --bogus", 2, "unrecognized arguments: --bogus"),
        ("lisst", 2, "invalid choice"),
        ("status", 2, "required: job"),
        ("status 1e3", 2, "is no job"),
        ("status 99999999999", 1, "There is no job-99999999999"),
        ("list --limit 99999999999999999999", 2, "is no number from 1 to 10,000"),
        ("list --limit -5", 2, "is no number from 1 to 10,000"),
        ("audit --limit x", 2, "is no number from 1 to 10,000"),
        ("list --owner \udcff", 2, "is no text"),
        ("cancel 1 --as \udcff", 2, "is no text"),
        ("check @nothing", 2, "does not exist"),
        ("check @binary", 2, "cannot be read as text"),
        ("check @.", 2, "cannot be read as text"),
        ("report --month 2026-13", 2, "YYYY-MM"),
        ("plan --keep @nowhere/snapshot.json", 2, "cannot be written"),
        ("plan --snapshot @binary", 2, "is no snapshot"),
        ("plan --snapshot @deep.json", 2, "is no snapshot"),
        ("list --config @.", 2, "cannot be read"),
        ("list --config @binary", 2, "is no TOML"),
        ("list --config @nothing", 2, "does not exist"),
    ],
)
def test_an_odd_command_is_answered_with_one_json_object(
    folder: Path, words: str, code: int, says: str, capsys: pytest.CaptureFixture[str]
):
    assert main(asked(folder, "migrate")) == 0
    capsys.readouterr()

    assert main(asked(folder, words)) == code

    (line,) = capsys.readouterr().out.splitlines()
    answer = json.loads(line)
    assert answer["ok"] is False
    assert says in " ".join(answer["errors"])


@pytest.mark.parametrize("command", ["list", "status 1", "migrate", "audit", "report", "cancel 1"])
def test_a_damaged_database_is_told_as_such(folder: Path, command: str, capsys: pytest.CaptureFixture[str]):
    (folder / "gpujob.toml").write_text(SETTINGS.replace("gpujob.sqlite3", "damaged.sqlite3"))

    assert main(asked(folder, command)) == 3

    assert "file is not a database" in capsys.readouterr().out


def test_the_doctor_names_the_tables_that_are_missing(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(asked(folder, "doctor")) == 1

    checks = json.loads(capsys.readouterr().out)["checks"]
    assert checks[0]["says"].startswith("has another schema (add_table ")


def in_a_shell(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", f"{line.replace('gpujob', str(PROGRAM), 1)}; echo code $? >&2"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("gpujob schema | true", 0, ""),
        ("gpujob schema > /dev/full", 3, "could not be written: No space left on device"),
        ("gpujob check $(printf 'ä💥')", 2, ""),
    ],
)
def test_an_output_that_takes_nothing_or_only_ascii_leads_to_no_traceback(
    folder: Path, line: str, code: int, says: str
):
    ended = in_a_shell(folder, line)

    assert "Traceback" not in ended.stderr
    assert says in ended.stderr
    assert f"code {code}" in ended.stderr
