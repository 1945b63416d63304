"""Recommends items, such as movies, to a user, with how sure the posterior is.

    ensemble recommend --workdir=runs/movielens --user=u7
    ensemble recommend --workdir=runs/movielens --user=u7 --top=5 --json
    ensemble recommend --workdir=runs/movielens --user=u7 --item="Movie 3"

The probability is that of watching, its mean over draws, with the range between 5% and 95% of them;
the share is that of the draws which recommend the item first. Of a run that has learned ratings,
the expected rating stands in its place. Of a user or an item that the data do not have, nothing is
known but the prior: the answer is the prior's, and says so.
"""

import json
from collections.abc import Sequence
from typing import Any

from absl import flags

from ensemble.commands import command_line
from ensemble.recommendation.answer import recommend


def main(argv: Sequence[str]) -> None:
    """Recommends what the command line asks for."""
    values: Any = flags.FLAGS
    found = recommend(
        values.workdir,
        values.user,
        top=values.top,
        item=values.item,
        data_dir=values.data_dir,
    )
    is_json = values.json
    text = json.dumps(found.document(), allow_nan=False) if is_json else str(found)
    command_line.print_answer(text)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it is a `UserError`."""
    # Defined here, for a program that imports this module may have flags of these names.
    flags.DEFINE_string("workdir", None, "The run that recommends.")
    flags.DEFINE_string("user", None, "Of the data, as they name their users.")
    flags.DEFINE_string("item", None, "Id or title of an item, to answer for it alone.")
    flags.DEFINE_integer("top", 20, "How many items.", lower_bound=1)
    flags.DEFINE_bool("json", False, "Print one JSON document.")
    flags.DEFINE_string("data_dir", None, "Of TFDS sets; by default the run's, if they lie there.")
    return command_line.parse(
        argv, example="--workdir=runs/movielens --user=u7", required=("workdir", "user")
    )


def run(program: str = "recommend.py") -> int:
    """Runs `main`, which messages call `program`; returns the exit status."""
    return command_line.run(main, parse_flags, program)
