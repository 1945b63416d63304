"""The keys of matrix factorisation, which learns who watches what, or rates what how."""

from ensemble import registry
from ensemble.keys import POSITIVE, Block, Key, described, one_of
from ensemble.tasks.supervised_keys import DATA, prior_conflicts

_MODELS = set(registry.TASKS["factorisation"].models)
_WATCHES = [name for name, one in registry.SOURCES.items() if _MODELS & set(one.models)]

_COLUMN = described("must be a column's name")
_RATINGS = {
    "ratings.user": Key("", "column of users; empty: user, user_id or userId", _COLUMN),
    "ratings.item": Key(
        "", "column of items; empty: item, item_id, movie, movie_id or movieId", _COLUMN
    ),
    "ratings.rating": Key("", "column of ratings; empty: rating, if there is one", _COLUMN),
    "ratings.weight": Key(
        "", "column of how often a row counts; empty: weight, if there is one", _COLUMN
    ),
    "ratings.time": Key("", "column of times; empty: time or timestamp, if there is one", _COLUMN),
    "ratings.titles": Key(
        "",
        "file with the titles of items, such as u.item, movies.dat or movies.csv; empty: none",
        described("must be a path, or empty"),
    ),
    "ratings.split": Key(
        "random",
        "what is held out: a tenth of each user's at random, the latest, or all of some users",
        one_of("random", "time", "user"),
    ),
}

BLOCK = Block(
    {
        **DATA,
        "num_factors": Key(8, "length of the embeddings of users and items", POSITIVE),
        **_RATINGS,
    },
    prior_conflicts,
    rules={
        "dataset": f"must be watches or ratings: {', '.join(_WATCHES)}",
        "likelihood": "must be categorical, for who watches what, or gaussian_shared, for ratings",
    },
)
