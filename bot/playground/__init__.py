"""A local Slack: the same protocol, refusals and look, for people and for tests, on this computer alone."""

from __future__ import annotations

from bot.playground.faults import Fault as Fault
from bot.playground.faults import FaultKind as FaultKind
from bot.playground.people import APP_TOKEN as APP_TOKEN
from bot.playground.people import BOT_TOKEN as BOT_TOKEN
from bot.playground.people import C_GPU as C_GPU
from bot.playground.people import C_NLP as C_NLP
from bot.playground.people import S_APPROVERS as S_APPROVERS
from bot.playground.people import U_ANA as U_ANA
from bot.playground.people import U_BO as U_BO
from bot.playground.people import U_CY as U_CY
from bot.playground.people import U_GPUJOB as U_GPUJOB
from bot.playground.server import Playground as Playground
