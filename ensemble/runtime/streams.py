"""Streams of a member's key: what it is folded with before it is folded with a step."""

import enum


class Stream(enum.IntEnum):
    """One kind of random numbers of a member."""

    DROPOUT = 1
    AUGMENT = 2
    DESCENT = 3
    PASSES = 4
    DRAWS = 5
    SETTINGS = 6
