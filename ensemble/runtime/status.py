"""Status of members: why one moves, or why not."""

import enum


class Status(enum.IntEnum):
    """Why a member moves, or why not: the one mask, with its reasons."""

    ACTIVE = 0
    STOPPED_EARLY = 2
    NON_FINITE = 3
    STUCK = 4


FAILURES = {Status.NON_FINITE: "non-finite", Status.STUCK: "stuck"}
"""The statuses of members that are left out of every mean, and what they have become."""
