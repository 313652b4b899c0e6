from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from scheduler.jobs import jobfile
from tests.jobs.specs import specs

VALIDATOR = Draft202012Validator(jobfile.schema())
BAD = Path(__file__).parent / "bad"
# What a schema cannot say: rules between keys, templates, and what is wrong before the file is a value.
BETWEEN_KEYS = {
    "same-names", "cycle", "templates", "deadline-first", "huge-sweep", "params", "commands", "needs", "elastic",
}  # fmt: skip
NO_VALUE = {"not-yaml", "tabs", "indentation", "two-documents", "twice", "alias-bomb", "unquoted-templates"}


def loaded(text: str) -> object:
    return YAML(typ="safe", pure=True).load(text)


def test_the_schema_is_one():
    Draft202012Validator.check_schema(jobfile.schema())


@given(specs())
def test_every_job_that_can_be_written_is_valid(spec):
    text = "\n".join(line for line in jobfile.dump(spec).splitlines() if not line.startswith(("start_", "deadline")))

    assert [error.message for error in VALIDATOR.iter_errors(loaded(text))] == []


@pytest.mark.parametrize(
    "name", sorted({path.stem for path in BAD.glob("*.yaml")} - BETWEEN_KEYS - NO_VALUE - {"times"})
)
def test_typical_errors_are_errors_of_the_schema_too(name):
    assert not VALIDATOR.is_valid(loaded((BAD / f"{name}.yaml").read_text()))


@pytest.mark.parametrize(
    ("time", "valid"), [("2026-12-01T20:00+09:00", True), ("2026-12-01T20:00:00Z", True), ("2026-12-01T20:00", False)]
)
def test_a_time_without_zone_is_an_error_of_the_schema(time, valid):
    assert VALIDATOR.is_valid({"gpujob": 1, "name": "a", "command": ["x"], "deadline": time}) is valid


def test_both_forms_are_described_and_their_mixture_is_not():
    short = {"gpujob": 1, "name": "a", "command": ["x", 1e-5, True]}
    long = {"gpujob": 1, "name": "a", "steps": [{"name": "s", "command": ["x"]}]}

    assert VALIDATOR.is_valid(short)
    assert VALIDATOR.is_valid(long)
    assert not VALIDATOR.is_valid(short | long)
    assert not VALIDATOR.is_valid({"gpujob": 1, "name": "a"})


def test_every_key_has_a_description_and_every_mapping_is_closed():
    schema = jobfile.schema()
    models = [schema, *schema["$defs"].values()]

    for model in models:
        assert model["additionalProperties"] is False
        assert [key for key, about in model["properties"].items() if not about.get("description")] == []
