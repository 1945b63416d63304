"""Texts that look like dates in another form than ISO 8601."""

import collections
import re
from collections.abc import Iterable

from ensemble.sources.tables.raw_columns import parses

_DAYS = (
    "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%Y.%m.%d",
    "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
    "%d-%b-%Y", "%d-%b-%y",
)  # fmt: skip
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p")
_SHAPE = re.compile(r"(\d{1,4}|[^\W\d]{3,9})[./ -](\d{1,2}|[^\W\d]{3,9}),?[./ -]\d{1,4}( \d.*)?")
_MOST = 200  # Different texts that are looked at.


def likely_forms(texts: Iterable[str]) -> list[str]:
    """The forms, as of `strptime`, in which most texts are dates; none where they are no dates.

    Args:
        texts: of a column, of which empty ones are missing.
    """
    different = [*dict.fromkeys(text for text in texts if text)][:_MOST]
    like_dates = [text for text in different if _SHAPE.fullmatch(text)]  # strptime is slow.
    if len(like_dates) <= len(different) / 2:
        return []
    counts = collections.Counter(
        form
        for form in (day + time for day in _DAYS for time in _TIMES)
        for text in like_dates
        if parses("date", text, form)
    )
    best = max(counts.values(), default=0)
    return [form for form in counts if counts[form] == best > len(different) / 2]
