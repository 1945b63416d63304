"""How results show a network that has learned what an ensemble predicts."""

from ensemble.errors import plural
from ensemble.report.sections import Results, Section


def _contents(results: Results) -> list[str]:
    """The speed of the student and of the ensemble that it has learned from."""
    found = results["distillation"]
    networks = plural(found["teacher"]["num_networks"], "network")
    speed = f"{found['speedup']:.1f} times as fast as its teacher, {networks}"
    return ["", f"The student is {speed}. To compare scores: ensemble evaluate --compare=TEACHER"]


SECTION = Section("distillation", _contents)
