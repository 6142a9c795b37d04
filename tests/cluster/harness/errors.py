# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations


class HarnessError(Exception):
    """The cluster under the tests can't do what was asked; the message says what to do."""


class MissingError(HarnessError):
    """Something the machine must have isn't there: each line of the message names one thing."""


class TimedOutError(HarnessError):
    """A condition didn't come true in time; the message says which, and what was seen last."""
