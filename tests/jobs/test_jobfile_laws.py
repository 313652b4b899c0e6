from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from scheduler.jobs import jobfile
from scheduler.jobs.job import JobId
from scheduler.jobs.jobfile import durations
from scheduler.jobs.spec import Checkpoint, JobSpec, Priority, spec_hash
from scheduler.jobs.templates import fill
from tests.jobs.building import a_spec, a_step
from tests.jobs.specs import specs, values

LINES = """gpujob: 1|name: solar|command: [a, b]|steps:|  - name: a|    command: [x]
|    needs: [a]|    sweep: {a: [1, 2]}
|sweep: [{a: 1}]|params: {a: 1e-5}|outputs: {a: '{{ task }}'}|checkpoint: none|secrets: {A: b/c}
|elastic: {gpus: [8, 4]}|deadline: 2026-12-01T20:00|start_after: 0001-01-01T00:00+14:00|%YAML 1.1|---|...""".replace(
    "\n", ""
).split("|")
BITS = [
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "{{",
    "}}",
    "{{ params.a }}",
    "'",
    '"',
    "\t",
    "\n",
    "  ",
    "&a ",
    "*a ",
    "!x ",
    "? ",
]
BITS += [
    "| ",
    "> ",
    "#",
    "~",
    ".nan",
    "1e999",
    "null",
    "<<: ",
    '"\\ud800"',
    '"\\U00110000"',
    "\0",
    "\ud800",
    "\ufeff",
    "\u2028",
]
FRAGMENTS = st.sampled_from([*(f"{line}\n" for line in LINES), *BITS])
KEYS = [
    "gpujob",
    "name",
    "steps",
    "params",
    "sweep",
    "command",
    "needs",
    "outputs",
    "checkpoint",
    "elastic",
    "gpus",
    "secrets",
]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


def read(text: str) -> JobSpec:
    parsed = jobfile.parse(text)
    assert parsed.spec is not None, jobfile.shown(parsed.errors)
    return parsed.spec


def holds_together(parsed: jobfile.Parsed, lines: int) -> bool:
    shown = jobfile.shown(parsed.errors)
    shown.encode()
    return (
        (parsed.spec is None) == bool(parsed.errors)
        and all(1 <= error.line <= lines and error.message for error in parsed.errors)
        and (not parsed.errors or len(shown.split("\n")) == len(parsed.errors))
    )


@given(st.text(max_size=60) | st.lists(FRAGMENTS, max_size=14).map("".join))
def test_no_text_makes_the_reader_raise(text):
    parsed = jobfile.parse(text)

    assert holds_together(parsed, len(text.splitlines()) + 1)
    if parsed.spec is not None:
        fill(parsed.spec, JobId(1), "s3://b")


@pytest.mark.parametrize("key", ["<", "<grid>", "<list>", "[key]", "", "{{", "None", "__root__"])
@pytest.mark.parametrize(
    "where", ["{}: 1", "gpujob: 1\nname: x\ncommand: [a]\nsteps: [{{{}: 1}}]", "params: {{{}: 1}}"]
)
def test_a_key_that_looks_like_our_own_marks_is_only_an_unknown_key(key: str, where: str):
    text = where.format(json.dumps(key))

    assert holds_together(jobfile.parse(text), len(text.splitlines()) + 1)
    assert jobfile.parse(text).errors


@given(st.dictionaries(st.sampled_from(KEYS), PLAIN))
def test_no_values_make_the_reader_raise(plain):
    assert holds_together(jobfile.parse(json.dumps(plain | {"gpujob": 1})), 1)


@given(
    st.text(max_size=60)
    | st.lists(FRAGMENTS | st.sampled_from(["gpus=1 ", "param.a=", "-- ", "— x", "“"]), max_size=9).map("".join)
)
def test_no_line_makes_the_reader_raise(text):
    assert holds_together(jobfile.one_line(text), 1)


@given(specs())
def test_what_is_written_is_read_as_the_same_spec(spec):
    again = read(jobfile.dump(spec))

    assert again == spec
    # Equal is not enough: 1, 1.0 and true are equal.
    assert repr(again) == repr(replace(spec, max_hours=again.max_hours, estimate_hours=again.estimate_hours))


@given(specs())
def test_what_is_written_is_yaml_for_others_too(spec):
    plain = YAML(typ="safe", pure=True).load(jobfile.dump(spec))

    assert [step["command"] for step in plain["steps"]] == [list(step.command) for step in spec.steps]
    assert repr(plain.get("params", {})) == repr(dict(spec.params))


def test_a_written_file_is_as_a_person_would_write_it():
    spec = a_spec(
        a_step(
            "sft",
            sweep=({"lr": 1e-5, "seed": 1}, {"lr": 1e-5, "seed": 2}),
            command=("python", "sft.py", "--lr", "{{ params.lr }}"),
        ),
        checkpoint=None,
        deadline=datetime(2026, 12, 3, tzinfo=UTC),
    )

    assert jobfile.dump(spec) == (
        "gpujob: 1\n"
        "name: solar-sft\n"
        "checkpoint: none\n"
        "deadline: 2026-12-03T00:00:00+00:00\n"
        "steps:\n"
        "  - name: sft\n"
        "    gpus: 4\n"
        "    sweep: {lr: [1e-05], seed: [1, 2]}\n"
        '    command: [python, sft.py, "--lr", "{{ params.lr }}"]\n'
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 1800), ("60s", 60), ("12h", 43_200), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172_800), ("0.25s", 0.25)],
)
def test_durations_are_read_with_their_unit(text, seconds):
    assert durations.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "m", "30 m", "-1m", "1m1h", "30min", "1e3s", "\u0661m", "m30"])
def test_other_lengths_are_no_durations(text):
    assert durations.seconds(text) is None


@given(st.integers(0, 10**10))
def test_a_written_duration_is_read_as_the_same(milliseconds):
    assert durations.seconds(durations.written(milliseconds / 1000)) == milliseconds / 1000


@given(st.dictionaries(st.sampled_from("abc"), st.lists(values, min_size=1, max_size=3), min_size=1))
def test_the_last_key_of_a_grid_changes_fastest(grid):
    text = json.dumps({"gpujob": 1, "name": "a", "command": ["x"], "sweep": grid})

    sweep = read(text).steps[0].sweep

    assert sweep is not None
    sizes = [len(axis) for axis in grid.values()]
    for place, point in enumerate(sweep):
        rest = place
        for key, size in zip(reversed(grid), reversed(sizes), strict=True):
            rest, index = divmod(rest, size)
            assert point[key] == grid[key][index]
        assert rest == 0


@given(specs(), st.randoms(use_true_random=False))
def test_neither_the_order_of_keys_nor_the_format_changes_the_hash(spec, chance):
    def shuffled(plain):
        if isinstance(plain, dict):
            keys = list(plain)
            chance.shuffle(keys)
            return {key: shuffled(plain[key]) for key in keys}
        return [shuffled(item) for item in plain] if isinstance(plain, list) else plain

    plain = YAML(typ="safe", pure=True).load(jobfile.dump(spec))
    for step in plain["steps"]:
        step["sweep"] = [dict(point) for point in spec.steps[plain["steps"].index(step)].sweep or ()]
        if not step["sweep"]:
            del step["sweep"]

    assert spec_hash(read(json.dumps(shuffled(plain), default=str)), {}) == spec_hash(spec, {})


@given(specs(), values, values)
def test_any_change_of_a_parameter_changes_the_hash(spec, old, new):
    before, after = (replace(spec, params={**spec.params, "changed": value}) for value in (old, new))

    assert (spec_hash(before, {}) == spec_hash(after, {})) == (repr(old) == repr(new))


SPEC = a_spec(a_step("sft", image="train:1"), image="base:1", params={"lr": 1})


@pytest.mark.parametrize(
    "changed",
    [
        replace(SPEC, name="other"),
        replace(SPEC, team="nlp"),
        replace(SPEC, priority=Priority.HIGH),
        replace(SPEC, deadline=datetime(2026, 12, 3, tzinfo=UTC)),
        replace(SPEC, start_after=datetime(2026, 12, 3, tzinfo=UTC)),
        replace(SPEC, estimate_hours=3),
        replace(SPEC, image="unused:1"),
    ],
)
def test_what_does_not_change_the_run_does_not_change_the_hash(changed):
    assert spec_hash(changed, {}) == spec_hash(SPEC, {})


@pytest.mark.parametrize(
    "changed",
    [
        replace(SPEC, params={"lr": 2}),
        replace(SPEC, params={"lr": "1"}),
        replace(SPEC, params={}),
        replace(SPEC, secrets={"A": "b/c"}),
        replace(SPEC, checkpoint=None),
        replace(SPEC, checkpoint=Checkpoint(every_s=60)),
        replace(SPEC, steps=(a_step("sft", image="train:2"),)),
        replace(SPEC, steps=(a_step("sft", image="train:1", command=("python", "other.py")),)),
        replace(SPEC, steps=(a_step("sft", image="train:1", gpus=(8,)),)),
        replace(SPEC, steps=(a_step("sft", image="train:1", sweep=({"lr": 1},)),)),
    ],
)
def test_what_changes_the_run_changes_the_hash(changed):
    assert spec_hash(changed, {}) != spec_hash(SPEC, {})


def test_a_moved_tag_changes_the_hash_and_a_pinned_one_does_not():
    first, moved = ({"train:1": f"train@sha256:{digest}"} for digest in ("aa", "bb"))
    pinned = replace(SPEC, steps=(a_step("sft", image="train@sha256:aa"),))

    assert spec_hash(SPEC, first) != spec_hash(SPEC, moved)
    assert spec_hash(SPEC, first) == spec_hash(pinned, {})
    assert spec_hash(SPEC, first).startswith("sha256:")
