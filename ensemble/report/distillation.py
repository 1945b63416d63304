"""How results show a network that has learned what an ensemble predicts."""

from ensemble.errors import plural
from ensemble.metrics import METRICS
from ensemble.report.sections import Results, Section, grid
from ensemble.report.table import digits, shown

_METRICS = {name: one for kind in METRICS.values() for name, one in kind.items() if one.in_table}


def _contents(results: Results) -> list[str]:
    """The student compared with the ensemble that it has learned from."""
    found = results["distillation"]
    networks = plural(found["teacher"]["num_networks"], "network")
    labels = {
        "teacher": f"teacher, {networks}",
        "average_member": "its average member",
        "student": "student",
    }
    names = [name for name in found["teacher"].get("metrics", ()) if name in _METRICS]
    rows = []
    for key, label in labels.items():
        if one := found.get(key):
            scores = [shown(one["metrics"][name], _METRICS[name]) for name in names]
            rates = [one.get(name, 0) for name in ("num_parameters", "examples_per_second")]
            rows.append([label, *scores, *map("{:,.0f}".format, rates)])
    titles = [found.get("split", ""), *(_METRICS[name].title for name in names)]
    text = f"The student is {found['speedup']:.1f} times as fast as its teacher."
    less = found.get("nll_less_member")
    if less and (less["low"] or 0) > 0:
        text += f" A single member does better, by an NLL of {digits(less['value'])}."
    return ["", grid([*titles, "parameters", "examples/s"], rows), text]


SECTION = Section("distillation", _contents)
