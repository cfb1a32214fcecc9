"""The checkpoint interval: a save costs δ seconds, a failure comes every M, recovery takes R
seconds.

    |—— τ ——|δ|—— τ ——|δ|—— τ' ✗                 lost: τ', which is about τ/2, and R

    lost share = δ/τ + τ/(2M) + R/M              to first order
    Young      τ = √(2 δ M)                      minimizes it                    CACM 17(9), 1974
    Daly       τ = √(2 δ M) (1 + x/3 + x²/9) - δ,   x = √(δ / 2M)               FGCS 22(3), 2006
    share      τ / (M e^(R/M) (e^((τ+δ)/M) - 1))    exact for exponential failures (Daly)

Young ignores failures during saves and restarts: his interval is longer by about 2δ/3. Lab: e12.
"""

from __future__ import annotations

import math

import numpy as np

from minitrain.errors import InputError


def young_interval(save_seconds: float, between: float) -> float:
    """Seconds of training between saves."""
    return math.sqrt(2 * save_seconds * between)


def daly_interval(save_seconds: float, between: float) -> float:
    """Daly's higher-order interval; M if a save takes 2 M or more."""
    if save_seconds >= 2 * between:
        return between
    x = math.sqrt(save_seconds / (2 * between))
    return math.sqrt(2 * save_seconds * between) * (1 + x / 3 + x**2 / 9) - save_seconds


def lost_share(
    save_seconds: float, restart_seconds: float, between: float, interval: float
) -> float:
    """Lost share of the time, to first order; may exceed 1."""
    saving = save_seconds / interval if interval else 0.0
    return saving + interval / (2 * between) + restart_seconds / between


def effective_share(
    save_seconds: float, restart_seconds: float, between: float, interval: float
) -> float:
    """The share of time spent on useful training, exact for exponential failures."""
    if interval <= 0 or between <= 0:
        raise InputError(f"an interval of {interval} s, failures every {between} s: give over 0")
    segment = math.expm1((interval + save_seconds) / between)
    return interval / (between * math.exp(restart_seconds / between) * segment)


def simulated_shares(
    gaps: np.ndarray, save_seconds: float, restart_seconds: float, intervals: np.ndarray
) -> np.ndarray:
    """The effective share (K,) for each of the `intervals`, simulated over the same failures,
    `gaps` (n,) seconds apart: after a restart a run saves after each τ; saved work counts."""
    left = np.maximum(gaps - restart_seconds, 0.0)
    whole = [np.floor(left / (interval + save_seconds)).sum() for interval in intervals]
    return intervals * np.array(whole) / gaps.sum()


def best_simulated_interval(gaps: np.ndarray, save_seconds: float, restart_seconds: float) -> float:
    """The interval with the highest simulated share: the maximum of a cubic in log τ, since the
    share is flat there (20% off the best costs 2% of the overhead) but its noise is not."""
    guess = young_interval(save_seconds, float(gaps.mean()))
    logs = np.linspace(math.log(guess / 1.6), math.log(guess * 1.6), 81)
    shares = simulated_shares(gaps, save_seconds, restart_seconds, np.exp(logs))
    middle = logs.mean()
    slope = np.polynomial.Polynomial.fit(logs - middle, shares, 3).deriv()
    tops = [r.real for r in slope.roots() if abs(r.imag) < 1e-9 and abs(r.real) < math.log(1.6)]
    if not tops:
        raise InputError(f"{len(gaps)} failures are too few to find the best interval: 1e6 will do")
    return math.exp(middle + min(tops, key=abs))
