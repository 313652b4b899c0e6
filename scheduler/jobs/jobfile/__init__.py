"""The job file: text to a spec and back, its errors all at once, and its JSON Schema."""

from scheduler.jobs.faults import FileError as FileError
from scheduler.jobs.faults import shown as shown
from scheduler.jobs.jobfile.document import plain_value as plain_value
from scheduler.jobs.jobfile.model import schema as schema
from scheduler.jobs.jobfile.one_line import one_line as one_line
from scheduler.jobs.jobfile.plain import yaml as yaml
from scheduler.jobs.jobfile.reading import Parsed as Parsed
from scheduler.jobs.jobfile.reading import parse as parse
from scheduler.jobs.jobfile.writing import dump as dump
