"""Who and what is in the workspace at the start."""

from __future__ import annotations

from dataclasses import dataclass, field

BOT_TOKEN = "xoxb-playground"  # noqa: S105 - opens nothing but this playground
APP_TOKEN = "xapp-playground"  # noqa: S105

TEAM = "T0PLAYGROUND"
TEAM_NAME = "GPU playground"
APP = "A0GPUJOB"
BOT = "B0GPUJOB"
COMMANDS = {
    "/gpujob": {  # what its box offers while someone types
        "submit": "open the form, or write the job in one line",
        "status": "[JOB] the card of a job: state, steps, why it waits",
        "list": "[mine|team|all] [waiting|running|done]",
        "pool": "idle GPUs, until when, and how sure",
        "cancel": "JOB end it, with a question first",
        "logs": "JOB [STEP] the last lines",
        "rerun": "JOB [from STEP] [param.KEY=VALUE ..]",
        "approve": "JOB",
        "deny": "JOB [reason]",
        "report": "[YYYY-MM] jobs, GPU-hours, money",
        "settings": "your own notices",
        "help": "[topic] what you may do",
    }
}

U_ANA = "U0ANA"
U_BO = "U0BO"
U_CY = "U0CY"
U_GPUJOB = "U0GPUJOB"
C_GPU = "C0GPU"
C_NLP = "C0NLP"
D_ANA_BO = "D0ANABO"  # the bot is not in it
S_APPROVERS = "S0APPROVERS"


@dataclass(slots=True, kw_only=True)
class User:
    """A person, or the bot."""

    id: str
    name: str
    real_name: str
    role: str = ""  # shown beside the name in the list of people
    tz: str = "Asia/Seoul"
    tz_offset: int = 32400  # seconds
    locale: str = "en-US"
    is_bot: bool = False
    deleted: bool = False


@dataclass(slots=True, kw_only=True)
class Channel:
    """A channel, or a direct message."""

    id: str
    name: str
    kind: str = "channel"  # channel | private | im
    members: set[str] = field(default_factory=set)
    archived: bool = False
    topic: str = ""


@dataclass(slots=True, kw_only=True)
class Group:
    """A user group."""

    id: str
    handle: str
    name: str
    users: list[str]


def users() -> dict[str, User]:
    """The people of a fresh workspace."""
    return {
        user.id: user
        for user in (
            User(id=U_ANA, name="ana", real_name="Ana", role="researcher"),
            User(id=U_BO, name="bo", real_name="Bo", role="approver"),
            User(id=U_CY, name="cy", real_name="Cy", role="platform", tz="Europe/Berlin", tz_offset=3600),
            User(id=U_GPUJOB, name="gpujob", real_name="gpujob", is_bot=True),
        )
    }


def channels() -> dict[str, Channel]:
    """The channels of a fresh workspace; every person has a direct message with the bot."""
    everyone = {U_ANA, U_BO, U_CY, U_GPUJOB}
    rooms = [
        Channel(id=C_GPU, name="gpu-jobs", members=set(everyone), topic="Idle GPUs, lent by night and handed back"),
        Channel(id=C_NLP, name="nlp", members=set(everyone), topic="Language models"),
        Channel(id=D_ANA_BO, name="ana, bo", kind="im", members={U_ANA, U_BO}),
    ]
    rooms += [
        Channel(id=direct_message(person), name="gpujob", kind="im", members={person, U_GPUJOB})
        for person in (U_ANA, U_BO, U_CY)
    ]
    return {room.id: room for room in rooms}


def groups() -> dict[str, Group]:
    """The user groups of a fresh workspace."""
    approvers = Group(id=S_APPROVERS, handle="gpu-approvers", name="GPU approvers", users=[U_BO])
    return {approvers.id: approvers}


def direct_message(user: str) -> str:
    """The id of the direct message between a person and the bot."""
    return "D" + user[1:]
