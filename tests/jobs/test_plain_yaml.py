from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from scheduler.jobs import jobfile

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=12
)


@given(st.dictionaries(texts, values, min_size=1, max_size=4))
def test_a_written_value_is_read_as_what_it_was(value):
    assert YAML(typ="safe", pure=True).load(jobfile.yaml(value)) == value


@pytest.mark.parametrize(
    "text", ["on", "Yes", "n", "null", "~", "1e5", "1_000", "0x1f", "12:30", "2026-12-01", "=", "<<", ""]
)
def test_a_text_that_some_reader_of_yaml_takes_for_something_else_is_quoted(text):
    assert jobfile.yaml([text]) == f'- "{text}"\n'


def test_a_mapping_keeps_its_order_and_stands_in_blocks():
    written = jobfile.yaml({"b": [{"c": 1, "a": "two words"}], "a": [], "c": {}})

    assert written == "b:\n  - c: 1\n    a: two words\na: []\nc: {}\n"
