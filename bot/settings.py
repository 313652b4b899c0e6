"""The bot's own view of the settings file: who it is in Slack, where it posts, which database it shares."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from scheduler import configfile
from scheduler.errors import BadInput

SLACK_API = "https://slack.com/api/"


class Slack(configfile.Section):
    """Section `[slack]`."""

    bot_token: SecretStr = SecretStr("")
    app_token: SecretStr = SecretStr("")
    signing_secret: SecretStr = SecretStr("")  # of HTTP mode
    channel: str = ""  # id of the channel of jobs that name none; "" = they go to their owner's DM
    mode: Literal["socket", "http"] = "socket"
    base_url: str = SLACK_API
    posts_per_second: float = Field(default=1.0, gt=0, le=1000)  # messages to one channel; Slack allows about one


class BotSettings(BaseModel):
    """What the bot needs to run."""

    model_config = ConfigDict(frozen=True)

    slack: Slack
    database_url: str
    approvers: tuple[str, ...]
    currency: str
    per_gpu_hour: float
    timezone: str

    @property
    def zone(self) -> ZoneInfo:
        """Where dates are shown that cannot follow the reader."""
        return ZoneInfo(self.timezone)

    @property
    def approver_groups(self) -> tuple[str, ...]:
        """Slack user groups among the approvers."""
        return tuple(name for name in self.approvers if name.startswith("S") and name.isupper())


def read(path: Path | None, environment: Mapping[str, str]) -> BotSettings:
    """The settings, checked.

    Raises:
        BadInput: one sentence for each fault.
    """
    loaded = configfile.load(path, environment)
    slack = configfile.section(loaded, "slack", Slack)
    approval = configfile.section(loaded, "approval", configfile.Approval)
    money = configfile.section(loaded, "money", configfile.Money)
    calendar = configfile.section(loaded, "calendar", configfile.CalendarHours)
    faults = _faults(slack, calendar.timezone)
    if faults:
        raise BadInput(*faults)
    return BotSettings(
        slack=slack,
        database_url=configfile.database_url(loaded),
        approvers=approval.approvers,
        currency=money.currency,
        per_gpu_hour=money.per_gpu_hour,
        timezone=calendar.timezone,
    )


def _faults(slack: Slack, timezone: str) -> tuple[str, ...]:
    faults = []
    if slack.mode == "http":
        faults.append('[slack] mode = "http" is not offered yet; use mode = "socket", which needs no open port')
    for key, token in (("bot_token", slack.bot_token), ("app_token", slack.app_token)):
        if not token.get_secret_value():
            faults.append(f"[slack] {key} is missing; give it as {configfile.PREFIX}SLACK__{key.upper()}")
    if slack.channel and not slack.channel.startswith(("C", "G", "D")):
        faults.append(f"[slack] channel = {slack.channel!r} is a name; give the channel's id, such as C0123456789")
    try:
        ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError):
        faults.append(f"[calendar] timezone = {timezone!r} is no known time zone; write one like Asia/Seoul")
    return tuple(faults)
