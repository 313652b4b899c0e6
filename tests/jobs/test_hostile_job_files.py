"""Job files made to keep the scheduler busy: it reads them while everything else waits."""

from __future__ import annotations

import time

import pytest

from scheduler.jobs import jobfile

HEAD = "gpujob: 1\nname: x\n"
MOST_S = 2.5  # of processor time, on a slow machine; each took 3 to 20 s before there were limits


def numbers(count: int, form: str = "{}") -> str:
    return ",".join(form.format(number) for number in range(count))


def steps(count: int, form: str) -> str:
    return HEAD + "steps:\n" + "".join(f"  - {{name: s{place}, {form}}}\n" for place in range(count))


HOSTILE = {
    "many short words in braces": "{" + "a," * 125_000 + "a}",
    "many short words in brackets": HEAD + "command: [" + "a," * 125_000 + "a]",
    "one key again and again": HEAD + "a: 1\n" * 50_000,
    "many tags": HEAD + "x: [" + "!t 1," * 50_000 + "]",
    "lists as keys": HEAD + "x: {" + "[a]: 1," * 35_000 + "}",
    "one alias again and again": HEAD + "params: {a: &a 1}\nx: [" + "*a," * 80_000 + "]",
    "many words in many tasks": HEAD
    + "command: ["
    + "'{{ params.a }}'," * 300
    + f"]\nsweep: {{a: [{numbers(9990)}]}}\n",
    "many parameters in many tasks": (
        HEAD + f"command: [x]\nparams: {{{numbers(6000, 'a{}: 1')}}}\nsweep: {{a: [{numbers(6000)}]}}\n"
    ),
    "many parameters in many steps": steps(200, "command: [x]") + f"params: {{{numbers(6000, 'a{}: 1')}}}\n",
    "many words that are nearly right": steps(200, f"command: [x], needs: [{numbers(60, 'stepp-{}x')}]"),
    "many names that are nearly right": (
        HEAD + f"command: ['{'{{ params.almost }}' * 9000}']\nparams: {{{numbers(6000, 'almost_all_{}: 1')}}}\n"
    ),
    "one long argument in many tasks": (
        HEAD + "command: ['{{ params.a }}" + "y" * 100_000 + f"']\nsweep: {{a: [{numbers(9990)}]}}\n"
    ),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_refused_soon_and_with_a_sentence(text: str):
    began = time.process_time()

    parsed = jobfile.parse(text)

    assert time.process_time() - began < MOST_S
    assert parsed.spec is None
    assert 0 < len(jobfile.shown(parsed.errors)) < 100_000


def test_the_largest_sweep_is_still_read():
    parsed = jobfile.parse(HEAD + f"command: [x, '{{{{ params.a }}}}', --fast]\nsweep: {{a: [{numbers(10_000)}]}}\n")

    assert parsed.spec is not None


def test_a_long_list_of_maps_is_still_read():
    parsed = jobfile.parse(HEAD + "command: [x]\nsweep:\n" + "".join(f"  - {{a: {n}, b: 2}}\n" for n in range(4000)))

    assert parsed.errors == ()
