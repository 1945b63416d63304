"""Scores a trained ensemble.

    ensemble evaluate --workdir=runs/digits

Works on any workdir, finished or in training, and changes nothing but its own folder, which gets
`report.html` to read and `report.json` with every number.
"""

import ensemble
from ensemble import cli
from ensemble.data.data_forms import read_npz
from ensemble.storage.files import user_path


def main(call: cli.Call) -> None:
    """Evaluates the run, and prints the results."""
    options = dict(call.flags)
    if options["out"]:
        options["out"] = user_path(options["out"], "--out")  # Checked before the work.
    if options["data"]:
        options["data"] = read_npz(options["data"])
    given = {name: options.pop(name) for name in ("max_error", "coverage")}
    rules = [f"{name}={one}" for name, texts in given.items() if texts for one in texts.split(",")]
    datasets = options.pop("extra_datasets")
    evaluation = ensemble.evaluate(**options, datasets=datasets, abstain=rules)
    folder = options["out"] or f"{options['workdir'].rstrip('/')}/evaluation"
    files = f"{folder}/report.html, and every number in {folder}/report.json"
    cli.print_answer(f"\n{evaluation}\n\nReport: {files}")
