"""Recommends movies to a user, with how sure the posterior is.

    ensemble recommend --workdir=runs/movielens --user=u7
    ensemble recommend --workdir=runs/movielens --user=u7 --top=5 --json

The probability is that of watching, its mean over draws, with the range between 5% and 95% of them;
the share is that of the draws which recommend the movie first.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from ensemble.commands import command_line
from ensemble.errors import UserError, shown
from ensemble.predictor import restore
from ensemble.recommendation.recommend import find_user, recommend
from ensemble.recommendation.watch_task import restore_of_size
from ensemble.sharding import startup
from ensemble.sources.catalogue import load_dataset, models_of
from ensemble.sources.tfds_records import data_dir_of_run
from ensemble.storage.workdir import Workdir

if TYPE_CHECKING:
    from ensemble.recommendation.recommend import Recommendation


def main(argv: Sequence[str]) -> None:
    """Recommends what the command line asks for."""
    values: Any = flags.FLAGS
    text = answer(values.workdir, values.user, values.top, values.json, values.data_dir)
    command_line.print_answer(text)


def answer(
    workdir: str, user_id: str, top: int = 20, as_json: bool = False, data_dir: str | None = None
) -> str:
    """Recommends, and says the result.

    Args:
        workdir: of a run that factorised watches, finished or with draws.
        user_id: as the data have it.
        top: how many movies, positive.
        as_json: whether to return a JSON document instead of a table.
        data_dir: of TFDS sets; by default the run's, if they lie there.

    Raises:
        UserError: the workdir is no such run, its data are others now, or the user is unknown.
    """
    startup.configure(None)

    restored = restore(Workdir(workdir))
    config = restored.config
    name = config["dataset"]
    if config["model"] not in models_of(name):
        raise UserError(
            f"{workdir} has learned {name}, which holds no watches; give the workdir of a "
            "run of configs/movielens_hmc.py"
        )
    data_dir = data_dir or data_dir_of_run(name, config["data_dir"])
    dataset: Any = load_dataset(name, data_dir, config["seed"])  # A `WatchDataset`.
    if dataset.fingerprint != restored.description["fingerprint"]:
        raise UserError(
            f"{workdir} has learned other data than {dataset.name} has now; restore the data"
        )
    params = restored.fitted.sets["params"]
    restore_of_size(config, restored.description, params, *dataset.observed.shape)
    user = find_user(dataset, user_id)
    movies = recommend(params, dataset, user, top)
    num_watched = int((dataset.watches.watched[user] == 1).sum())
    if as_json:
        document = {
            "user": user_id,
            "num_watched": num_watched,
            "num_draws": len(params["user_bias"]),
            "recommendations": [movie._asdict() for movie in movies],
        }
        return json.dumps(document, allow_nan=False)
    return f"User {user_id} has watched {num_watched:,} movies.\n\n{format_table(movies)}"


def format_table(movies: "Sequence[Recommendation]") -> str:
    """Returns an aligned table, a movie per line."""
    movies = [
        movie._replace(title=shown(movie.title), genre=shown(movie.genre)) for movie in movies
    ]
    width = max([5, *(len(movie.title) for movie in movies)])
    genre_width = max([5, *(len(movie.genre) for movie in movies)])
    header = (
        f"{'title':<{width}}  {'genre':<{genre_width}}  {'prob':>6}  {'5%':>6}  {'95%':>6}  first"
    )
    rows = [
        f"{movie.title:<{width}}  {movie.genre:<{genre_width}}  {movie.probability:6.3f}  "
        f"{movie.low:6.3f}  {movie.high:6.3f}  {movie.share:5.0%}"
        for movie in movies
    ]
    return "\n".join([header, "-" * len(header), *rows])


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it is a `UserError`."""
    # Defined here, for a program that imports this module may have flags of these names.
    flags.DEFINE_string("workdir", None, "The run that recommends.")
    flags.DEFINE_string("user", None, "Of the data, as they name their users.")
    flags.DEFINE_integer("top", 20, "How many movies.", lower_bound=1)
    flags.DEFINE_bool("json", False, "Print one JSON document.")
    flags.DEFINE_string("data_dir", None, "Of TFDS sets; by default the run's, if they lie there.")
    return command_line.parse(
        argv, example="--workdir=runs/movielens --user=u7", required=("workdir", "user")
    )


def run(program: str = "recommend.py") -> int:
    """Runs `main`, which messages call `program`; returns the exit status."""
    return command_line.run(main, parse_flags, program)
