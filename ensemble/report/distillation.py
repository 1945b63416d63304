"""How results show a network that has learned what an ensemble predicts."""

from ensemble.errors import plural
from ensemble.report.sections import Results, Section, grid
from ensemble.report.table import digits

_SHOWN = ("accuracy", "nll", "ece", "rmse", "crps")


def _contents(results: Results) -> list[str]:
    """The student compared with the ensemble that it has learned from."""
    found = results["distillation"]
    networks = plural(found["teacher"]["num_networks"], "network")
    labels = {
        "teacher": f"teacher, {networks}",
        "average_member": "its average member",
        "student": "student",
    }
    names = [name for name in _SHOWN if name in found["teacher"].get("metrics", ())]
    rows = []
    for key, label in labels.items():
        if one := found.get(key):
            rates = [one.get(name, 0) for name in ("num_parameters", "examples_per_second")]
            scores = [digits(one["metrics"][name]) for name in names]
            rows.append([label, *scores, *map("{:,.0f}".format, rates)])
    text = f"The student is {found['speedup']:.1f} times as fast as its teacher."
    titles = [found.get("split", ""), *names, "parameters", "examples/s"]
    return ["", grid(titles, rows), text]


SECTION = Section("distillation", _contents)
