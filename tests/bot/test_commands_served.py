"""Commands, typed by people in the playground, served by the real bot."""

from __future__ import annotations

from tests.bot.conftest import Office

ONE_LINE = "submit image=train:1 gpus=2 name=sft -- python t.py"


async def test_a_one_liner_becomes_a_job_and_its_card(office: Office):
    await office.said("U0ANA", ONE_LINE, "job-1 (sft) is submitted")

    card = await office.card(1)
    assert "job-1 sft: waiting" in str(card["text"])
    assert office.scheduler.store.job(1).spec.steps[0].gpus == (2,)
