"""The bot's settings, and the manifest of its app."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from bot import settings
from bot.app import main
from bot.manifest import MANIFEST
from scheduler.errors import BadInput

SECRETS = {"GPUJOB__SLACK__BOT_TOKEN": "xoxb-1", "GPUJOB__SLACK__APP_TOKEN": "xapp-1"}


def read(tmp_path: Path, text: str, **environment: str) -> settings.BotSettings:
    file = tmp_path / "gpujob.toml"
    file.write_text(text)
    return settings.read(file, {**SECRETS, **environment})


def test_what_the_bot_needs_is_read_and_secrets_do_not_print(tmp_path: Path):
    chosen = read(tmp_path, '[slack]\nchannel = "C1"\n[approval]\napprovers = ["U1", "S0APP", "ana"]\n')

    assert chosen.slack.channel == "C1"
    assert chosen.approver_groups == ("S0APP",)
    assert "xoxb-1" not in repr(chosen)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[slack]\nmode = "http"\n', 'use mode = "socket"'),
        ('[slack]\nchannel = "#gpu"\n', "give the channel's id"),
        ('[calendar]\ntimezone = "Seoul"\n', "no known time zone"),
        ('[slack]\nchanel = "C1"\n', "channel"),
        ("[slack]\nposts_per_second = 0\n", "posts_per_second"),
    ],
)
def test_a_wrong_setting_is_named_with_its_way_out(tmp_path: Path, text: str, words: str):
    with pytest.raises(BadInput) as raised:
        read(tmp_path, text)

    assert words in str(raised.value)


def test_missing_tokens_name_the_variable(tmp_path: Path):
    with pytest.raises(BadInput) as raised:
        read(tmp_path, "", GPUJOB__SLACK__BOT_TOKEN="")

    assert "GPUJOB__SLACK__BOT_TOKEN" in str(raised.value)


def test_the_manifest_asks_for_what_the_bot_calls(capsys: pytest.CaptureFixture[str]):
    assert main(["manifest"]) == 0

    manifest = YAML(typ="safe").load(capsys.readouterr().out)
    assert manifest == YAML(typ="safe").load(MANIFEST)
    assert manifest["features"]["slash_commands"][0]["command"] == "/gpujob"
    assert {"channels:history", "groups:history", "im:history", "chat:write", "usergroups:read", "im:write"} <= set(
        manifest["oauth_config"]["scopes"]["bot"]
    )
    assert manifest["settings"]["socket_mode_enabled"]
    assert manifest["settings"]["interactivity"]["is_enabled"]
    assert manifest["features"]["app_home"]["messages_tab_read_only_enabled"] is False


def test_a_wrong_file_ends_with_two(capsys: pytest.CaptureFixture[str]):
    assert main(["--config", "/nowhere/gpujob.toml", "serve"]) == 2
    assert "does not exist" in capsys.readouterr().out
