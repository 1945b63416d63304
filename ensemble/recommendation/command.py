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
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.special
from absl import flags

from ensemble import registry
from ensemble.commands import command_line
from ensemble.errors import UserError, shown
from ensemble.predictor import restore
from ensemble.priors import parse_prior
from ensemble.recommendation.movielens import (
    Names,
    RatingDataset,
    WatchDataset,
    given_interactions,
)
from ensemble.recommendation.ratings import FRAME
from ensemble.recommendation.recommend import Link, num_of, recommend, with_new
from ensemble.recommendation.watch_task import RATINGS, ratings_keys, restore_of_size
from ensemble.sharding import startup
from ensemble.source import Request
from ensemble.sources.catalogue import load
from ensemble.sources.tfds_records import data_dir_of_run
from ensemble.storage.workdir import Workdir

if TYPE_CHECKING:
    from ensemble.recommendation.recommend import Recommendation


def main(argv: Sequence[str]) -> None:
    """Recommends what the command line asks for."""
    values: Any = flags.FLAGS
    text = answer(
        values.workdir, values.user, values.top, values.json, values.data_dir, item=values.item
    )
    command_line.print_answer(text)


def answer(
    workdir: str,
    user_id: str,
    top: int = 20,
    as_json: bool = False,
    data_dir: str | None = None,
    *,
    item: str | None = None,
    data: Any = None,
) -> str:
    """Recommends, and says the result.

    Args:
        workdir: of a run that factorised watches or ratings, finished or with draws.
        user_id: as the data have it; of another one the answer is the prior's.
        top: how many items, positive.
        as_json: whether to return a JSON document instead of a table.
        data_dir: of TFDS sets; by default the run's, if they lie there.
        item: the id or the title of an item, to answer for it alone, seen or not.
        data: what the run was handed over instead of `config.dataset`.

    Raises:
        UserError: the workdir is no such run, or its data are others now.
    """
    startup.configure(None)

    restored = restore(Workdir(workdir))
    config, params = restored.config, restored.fitted.sets["params"]
    if registry.task_of(config) != "factorisation":
        raise UserError(
            f"{workdir} has learned {config['dataset']}, which is not who watched or rated what; "
            "give the workdir of a run with config.model='matrix_factorisation'"
        )
    dataset = _dataset(workdir, restored, data_dir, data)
    names, priors = dataset.names, parse_prior(config["prior"])
    num_users, num_movies = len(names.user_ids), len(names.titles)
    restore_of_size(config, restored.description, params, num_users, num_movies)
    user, movie = _find(names.user_ids, user_id), None if item is None else _find_item(names, item)
    notes = []
    if user == num_users:
        params = with_new(params, priors, "user", config["seed"])
    if movie == num_movies:
        params = with_new(params, priors, "movie", config["seed"])
        names = names._replace(titles=(*names.titles, item or ""), genres=(*names.genres, ""))
    from_prior = {"user": not dataset.is_known(0, user)}
    if movie is not None:
        from_prior["item"] = not dataset.is_known(1, movie)
    asked = {"user": user_id, "item": item or ""}
    notes += [
        f"Nothing was learned of {kind} {shown(asked[kind])}: the answer is the prior's."
        for kind, is_new in from_prior.items()
        if is_new
    ]
    of_ratings = config["likelihood"] == RATINGS
    link = _rating(restored.likelihood) if of_ratings else scipy.special.expit
    seen = np.zeros(len(names.titles), bool)
    if user < num_users:
        seen[:num_movies] = dataset.seen(user)
    movies = recommend(params, names, seen, user, top, link, movie)
    if as_json:
        return _document(user_id, movies, int(seen.sum()), num_of(params), from_prior, of_ratings)
    verb = "rated" if of_ratings else "watched"
    notes.append(f"User {shown(user_id)} has {verb} {seen.sum():,} items.")
    return "\n".join([*notes, "", format_table(movies, "rating" if of_ratings else "prob")])


def _dataset(
    workdir: str, restored: Any, data_dir: str | None, data: Any
) -> WatchDataset | RatingDataset:
    """What a run has learned, as it is now.

    Raises:
        UserError: it cannot be had, or is something else.
    """
    config, description = restored.config, restored.description
    name, keys = config["dataset"], ratings_keys(config)
    if data is None and description["name"] == FRAME:
        raise UserError(
            f"{workdir} has learned a data frame, which is not kept: from Python call "
            "ensemble.recommendation.command.answer(WORKDIR, USER, data=FRAME)"
        )
    data_dir = data_dir or data_dir_of_run(name, config["data_dir"])
    request = Request(data_dir, config["seed"], own=keys)
    dataset: Any = load(name, request) if data is None else given_interactions(data).source(request)
    if dataset.fingerprint != description["fingerprint"]:
        raise UserError(
            f"{workdir} has learned other data than {dataset.name} has now; restore the data"
        )
    return dataset


def _find(ids: Sequence[str], asked: str) -> int:
    """The number of a user or an item; behind the last one if there is no such."""
    return ids.index(asked) if asked in ids else len(ids)


def _find_item(names: Names, asked: str) -> int:
    """The number of an item by its id or its title; behind the last one if there is no such.

    Raises:
        UserError: several have this title.
    """
    found = _find(names.item_ids, asked)
    count = names.titles.count(asked)
    if found == len(names.item_ids) and count > 1:
        raise UserError(f"{count} items have the title {shown(asked)}: give --item the id of one")
    return found if found < len(names.item_ids) else _find(names.titles, asked)


def _rating(likelihood: Any) -> Link:
    """From the outputs of draws to ratings."""
    return lambda outputs: likelihood.shift + likelihood.scale * outputs


def _document(
    user_id: str,
    movies: "Sequence[Recommendation]",
    num_seen: int,
    num_draws: int,
    from_prior: Mapping[str, bool],
    of_ratings: bool,
) -> str:
    """The answer as a JSON document."""
    found = [movie._asdict() for movie in movies]
    if of_ratings:
        found = [
            {"rating" if key == "probability" else key: value for key, value in one.items()}
            for one in found
        ]
    document = {
        "user": user_id,
        "num_rated" if of_ratings else "num_watched": num_seen,
        "num_draws": num_draws,
        "from_prior": [kind for kind, is_new in from_prior.items() if is_new],
        "recommendations": found,
    }
    return json.dumps(document, allow_nan=False)


def format_table(movies: "Sequence[Recommendation]", of: str = "prob") -> str:
    """Returns an aligned table, an item per line, whose numbers are probabilities or ratings."""
    movies = [
        movie._replace(title=shown(movie.title), genre=shown(movie.genre)) for movie in movies
    ]
    width = max([5, *(len(movie.title) for movie in movies)])
    genre_width = max([5, *(len(movie.genre) for movie in movies)])
    header = f"{'title':<{width}}  {'genre':<{genre_width}}  {of:>6}  {'5%':>6}  {'95%':>6}  first"
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
