"""Recommends items, such as movies, to a user, with how sure the posterior is.

    ensemble recommend --workdir=runs/movielens --user=u7
    ensemble recommend --workdir=runs/movielens --user=u7 --top=5 --json
    ensemble recommend --workdir=runs/movielens --user=u7 --item="Movie 3"

The probability is that of watching, its mean over draws, with the range between 5% and 95% of them.
Of a run that has learned ratings, the expected rating stands in its place. Of a user whom the data
do not have, nothing is known but the prior: the answer is the prior's, and says so.
"""

import json

from ensemble import cli
from ensemble.recommendation.recommend import recommend


def main(call: cli.Call) -> None:
    """Recommends what the command line asks for."""
    options = dict(call.flags)
    as_json = options.pop("json")
    result = recommend(**options)
    cli.print_answer(json.dumps(result.document(), allow_nan=False) if as_json else str(result))
