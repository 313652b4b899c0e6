"""One bad file a rule, in `bad/`; each row is a line, a key, the value as shown, and what the sentence must say."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.jobs import jobfile

BAD = Path(__file__).parent / "bad"

EXPECTED = {
    "not-yaml": [(3, "", '"command: [python, train.py"', "close it with ]")],
    "tabs": [(4, "", '"- name: sft"', "only spaces"), (5, "", '"gpus: 1"', "only spaces")],
    "indentation": [(5, "", '"epochs: 3"', "check the indentation")],
    "two-documents": [(4, "", "---", "a job file is one document")],
    "twice": [(5, "image", '"train:2"', "first on line 3")],
    "alias-bomb": [(8, "", "", "more than 20,000 values")],
    "not-a-job": [(1, "", "", "`gpujob: 1` first")],
    "version": [(1, "gpujob", "2", "must be 1")],
    "nothing-to-run": [(1, "command", "", "`command` for one step, or a list of `steps`")],
    "unknown-keys": [
        (3, "imagee", '"train:1"', "did you mean `image`?"),
        (6, "steps[0].gpu", "4", "did you mean `gpus`?"),
        (7, "steps[0].priority", '"high"', "move it to the top of the file"),
        (9, "needs", '["sft"]', "move it under `steps`"),
    ],
    "names": [
        (2, "name", '"Solar SFT"', "at most 40 characters, starting with a letter"),
        (3, "team", '"-nlp"', "starting with a letter"),
        (5, "steps[0].name", '"a-name-that-is-a-good-deal-longer-than-forty"', "at most 40"),
        (7, "steps[1].name", "", "is missing"),
    ],
    "unquoted-templates": [
        (6, "steps[0].command[2]", "{{ params.lr }}", "must be quoted"),
        (7, "steps[0].outputs.model", "{{ job.id }}", "must be quoted"),
    ],
    "params": [
        (4, "params.nothing", "null", "a string, a number or a boolean"),
        (5, "params.many", "[1, 2]", "a string that holds JSON"),
        (6, "params.endless", "Infinity", "a finite number"),
        (7, "params.no_number", "NaN", "a finite number"),
        (8, "params.dash-ed", '"dash-ed"', "letters, digits and _"),
        (9, "params.seed", "99999999999999999999", "64 bits"),
        (10, "params.base", '"{{ job.id }}"', "`command` and `outputs` only"),
    ],
    "secrets": [
        (4, "params.key", "(not shown)", "put it into a Kubernetes Secret"),
        (6, "secrets.HF_TOKEN", "(not shown)", "never the value: {HF_TOKEN: nlp-secrets/hf-token}"),
        (7, "secrets.GPUJOB_TOKEN", '"GPUJOB_TOKEN"', "must not start with GPUJOB_"),
        (8, "secrets.1ST", '"1ST"', "no name of an environment variable"),
    ],
    "times": [
        (3, "start_after", '"2026-12-01T20:00"', "has no time zone"),
        (4, "deadline", '"tomorrow"', "like 2026-12-01T20:00+09:00"),
        (5, "max_hours", "0", "hours above 0"),
        (6, "estimate_hours", '"12h"', "hours above 0"),
    ],
    "deadline-first": [(4, "deadline", "2026-12-02T23:00:00+00:00", "is not after start_after")],
    "checkpoint": [
        (4, "checkpoint.every", "30", "a duration with its unit"),
        (5, "checkpoint.save", '"a minute"', "a duration with its unit"),
        (6, "checkpoint.on_sigterm", '"maybe"', "true or false"),
        (7, "checkpoint.keep", "3", "known: every, on_sigterm, save"),
    ],
    "numbers": [
        (3, "retries", "21", "0 to 20"),
        (4, "priority", '"urgent"', "low, normal or high"),
        (7, "steps[0].gpus", '"two"', "a whole number of 0 to 1024"),
        (8, "steps[0].nodes", "0", "1 to 1024"),
        (9, "steps[0].parallel", "0", "1 or more"),
        (12, "steps[1].gpus", "-1", "0 to 1024"),
        (13, "steps[1].any", '"sometimes"', "true or false"),
    ],
    "commands": [
        (
            5,
            "steps[0].command",
            '"python train.py --lr {{ params.lr }}"',
            '["python", "train.py", "--lr", "{{params.lr}}"]',
        ),
        (7, "steps[1].command", "[]", "a list of words"),
        (9, "steps[2].command[1]", "null", "a list of words"),
        (11, "steps[3].command[0]", '""', "name the program"),
        (12, "steps[4].command", "", "is missing"),
    ],
    "needs": [
        (5, "steps[0].any", "true", "only with `needs`"),
        (8, "steps[1].needs[0]", '"preproces"', "did you mean `preprocess`?"),
        (8, "steps[1].needs[1]", '"sft"', "the step itself"),
        (8, "steps[1].needs[3]", '"preprocess"', "stands twice"),
        (11, "steps[2].needs", '"sft"', "[sft]"),
    ],
    "cycle": [(7, "steps[1].needs", '["first", "evaluate"]', "sft needs evaluate needs merge needs sft")],
    "same-names": [
        (3, "params.LR", "", "`lr`"),
        (8, "steps[1].name", '"sft-1"', "task 1 of the swept step sft"),
        (10, "steps[2].name", '"sft"', "also the name of steps[0]"),
    ],
    "sweeps": [
        (5, "steps[0].sweep.lr", "[]", "a grid, {lr: [1e-5, 2e-5]}"),
        (8, "steps[1].sweep.lr", "1e-05", "a grid"),
        (11, "steps[2].sweep", '"lr"', "or a list of maps"),
        (14, "steps[3].sweep[0].lr", "[1, 2]", "a string, a number or a boolean"),
    ],
    "huge-sweep": [(3, "sweep", "", "20,000 tasks, limit 10,000")],
    "elastic": [
        (5, "steps[0].gpus", "4", "beside `elastic`"),
        (9, "steps[1].elastic.gpus", "[4, 4]", "a number twice"),
        (12, "steps[2].elastic", "[8, 4]", "{gpus: [8, 4]}"),
        (16, "steps[3].nodes", "2", "a gang without GPUs"),
    ],
    "both-forms": [
        (3, "gpus", "4", "belongs into a step"),
        (4, "command", '["python", "train.py"]', "belongs into a step"),
    ],
    "templates": [
        (7, "steps[0].command[1]", "{{ params.learningrate }}", "did you mean `learning_rate`?"),
        (7, "steps[0].command[2]", "{{ outputs.dat }}", "did you mean `data`?"),
        (8, "steps[0].outputs.copy", "{{ outputs.data }}", "cannot name another output"),
        (8, "steps[0].outputs.odd", "nowhere/x", "s3:// or file://"),
        (11, "steps[1].command[1]", "{{ steps.prep.outputs.data }}", "add it: `needs: [prep]`"),
        (11, "steps[1].command[2]", "{{ checkpoint }}", "checkpoint: none"),
        (17, "steps[2].command[1]", "{{ steps.sft.outputs.model }}", "{{ steps.sft.outputs.model | json }}"),
        (18, "steps[2].command[2]", "{{ steps.sft.outputs.modl | json }}", "did you mean `model`?"),
        (19, "steps[2].command[3]", "{{ steps.sfd.outputs.model }}", "did you mean `sft`?"),
        (20, "steps[2].command[4]", "{{ params.learning_rate | upper }}", "only filter is `| json`"),
        (21, "steps[2].command[5]", "{{ job.__class__ }}", "no name that a template knows"),
        (22, "steps[2].command[6]", "{{ job.id", "no template"),
    ],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_bad_file_gets_all_its_errors_at_once_and_no_other(name):
    errors = jobfile.parse((BAD / f"{name}.yaml").read_text()).errors

    assert [(error.line, error.key, error.value) for error in errors] == [row[:3] for row in EXPECTED[name]]
    for error, (*_, words) in zip(errors, EXPECTED[name], strict=True):
        assert words in error.message


def test_every_bad_file_has_its_row():
    assert {path.stem for path in BAD.glob("*.yaml")} == EXPECTED.keys()


def test_errors_are_shown_one_a_line():
    parsed = jobfile.parse((BAD / "numbers.yaml").read_text())

    assert jobfile.shown(parsed.errors).splitlines()[2] == (
        'line 7, steps[0].gpus = "two": must be a whole number of 0 to 1024, like `gpus: 4`'
    )
    assert parsed.spec is None
