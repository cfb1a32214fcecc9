"""The exceptions of grading: a failure with an instructive message, and its two special cases."""

from __future__ import annotations


class CheckFailed(AssertionError):
    """A check did not pass; the message is for the learner. `secretive`: without the expected
    value."""

    def __init__(self, message: str, secretive: str | None = None) -> None:
        super().__init__(message)
        self.secretive = message if secretive is None else secretive


class NotAttempted(CheckFailed):
    """The exercise is still the stub that the lab came with."""


class SubmissionFailed(CheckFailed):
    """The submission gave no result.

    kind: exception, deadlock, mismatch, timeout, memory, died, output, forbidden or tampered.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
