"""Where the load of each service will be in a minute or so, and how wrong that guess usually is; learned as it goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GRID_S = 10.0
# Steps back whose change of load is looked at: the last minute, then ever wider.
_LAGS = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15, 18, 24, 30, 36, 48, 60, 90])
_LEAST_LOAD = 0.3  # errors grow with the square root of the load, but not below this
_DAY = 86_400 / GRID_S
_FORGET = 1 - 1 / (3 * _DAY)  # of coefficients and of errors, a step
_NOISE = 360  # steps over which the size of errors is averaged
_RIDGE = 50.0  # steps' worth of "it stays as it is" before anything was seen
_REFIT = 60  # steps
_WARM = 360  # steps before the first fit

# Errors in units of their usual size, counted in bins: what is beyond the last one counts for it.
_EDGE = 12.0
_BIN = 0.1
_PRIOR = 2000.0  # errors' worth of a long-tailed guess before anything was seen


class LoadModel:
    """A linear forecast of each service's load on a grid of ten seconds, `steps` ahead.

    The next change is a weighted sum of the last changes; weights are least squares over the last days, errors count
    by their usual size, which grows with the square root of the load (counting noise of requests).
    """

    def __init__(self, services: int, steps: int) -> None:
        self._steps = steps
        self._past: Floats = np.full((services, int(_LAGS[-1]) + 1), np.nan)  # newest first
        self._made: deque[tuple[Floats, Floats, Floats, Floats]] = deque(maxlen=steps)
        size = len(_LAGS)
        self._moments = np.tile(np.eye(size) * _RIDGE * 1e-3, (services, 1, 1))
        self._products = np.zeros((services, size))
        self._weights: Floats = np.zeros((services, size))
        self._noise = np.full(services, 0.05)  # mean squared error, over the load
        self._errors = np.zeros((services, round(2 * _EDGE / _BIN)))
        self._tail = _survival(self._errors)
        self._seen = 0
        self.guess = np.full(services, np.nan)
        self.spread = np.full(services, np.nan)

    def learn(self, loads: Floats) -> None:
        """The loads one grid step after the last; nan where nothing is known."""
        self._past = np.concatenate((loads[:, None], self._past[:, :-1]), axis=1)
        if len(self._made) == self._steps:
            self._judge(self._made[0], loads)
        changes = loads[:, None] - self._past[:, _LAGS]
        np.nan_to_num(changes, copy=False)  # before there is history, nothing has changed
        self.guess = loads + (changes * self._weights).sum(axis=1)
        scale = np.sqrt(np.maximum(loads, _LEAST_LOAD))
        self.spread = np.sqrt(self._noise) * scale
        self._made.append((loads, changes, self.guess, self.spread))
        self._seen += 1
        if self._seen % _REFIT == 0 and self._seen >= _WARM:
            solved = np.linalg.solve(self._moments, self._products[:, :, None])
            self._weights = solved[:, :, 0].astype(np.float64)
            self._tail = _survival(self._errors)

    def _judge(self, made: tuple[Floats, Floats, Floats, Floats], loads: Floats) -> None:
        then, changes, guess, spread = made
        known = np.isfinite(loads) & np.isfinite(then)
        load = np.maximum(np.where(known, then, 1.0), _LEAST_LOAD)
        error = np.where(known, loads - guess, 0.0)
        counted = changes * (known / load)[:, None]
        self._moments *= _FORGET
        self._moments += counted[:, :, None] * changes[:, None, :]
        self._products *= _FORGET
        self._products += counted * np.where(known, loads - then, 0.0)[:, None]
        self._noise += np.where(known, error * error / load - self._noise, 0.0) / _NOISE
        rows = np.flatnonzero(known)
        bins = np.clip((error[rows] / spread[rows] + _EDGE) / _BIN, 0, self._errors.shape[1] - 1).astype(np.int64)
        self._errors *= _FORGET
        self._errors[rows, bins] += 1.0

    def chance_above(self, thresholds: Floats) -> Floats:
        """The chance that each service's load is then at or above its threshold (services x any number of them)."""
        z = (thresholds - self.guess[:, None]) / self.spread[:, None]
        bins = np.clip((np.nan_to_num(z) + _EDGE) / _BIN, 0, self._tail.shape[1] - 1).astype(np.int64)
        found: Floats = np.take_along_axis(self._tail, bins, axis=1)
        return found

    @property
    def days(self) -> float:
        """Of history."""
        return self._seen / _DAY


def _survival(errors: Floats) -> Floats:
    """By bin, the share of errors at or above it; where few were seen, a long tail is assumed."""
    centres = -_EDGE + (np.arange(errors.shape[1]) + 0.5) * _BIN
    assumed = np.where(centres > 0, 0.5 * np.exp(-centres), 1 - 0.5 * np.exp(centres))
    seen = errors[:, ::-1].cumsum(axis=1)[:, ::-1]
    total = errors.sum(axis=1, keepdims=True)
    share: Floats = (seen + _PRIOR * assumed) / (total + _PRIOR)
    return share


def grid(values: Sequence[float | None]) -> Floats:
    """As the model takes them."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
