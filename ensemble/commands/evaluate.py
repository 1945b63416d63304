"""Scores a trained ensemble.

    ensemble evaluate --workdir=runs/digits

Works on any workdir, finished or in training, and changes nothing but its own folder, which gets
`report.html` to read and `report.json` with every number.
"""

import ensemble
from ensemble import cli
from ensemble.data.data_forms import read_npz
from ensemble.storage.paths import user_path


def main(call: cli.Call) -> None:
    """Evaluates the run, and prints the results."""
    values = call.flags
    out = user_path(values.out, "--out") if values.out else None  # Checked before the work.
    rules = [f"{name}={one}" for name in ("max_error", "coverage") for one in values[name].value]
    evaluation = ensemble.evaluate(
        values.workdir,
        out,
        values.extra_datasets,
        values.compare,
        data_dir=values.data_dir,
        data=read_npz(values.data) if values.data else None,
        allow_empty_sets=values.allow_empty_sets,
        num_devices=values.num_devices,
        abstain=rules or None,
        metrics=values.metrics,
        trust=values.trust,
    )
    folder = out or f"{values.workdir.rstrip('/')}/evaluation"
    files = f"{folder}/report.html, and every number in {folder}/report.json"
    cli.print_answer(f"\n{evaluation}\n\nReport: {files}")
