"""Predictions of classes show themselves as a table."""

import numpy as np

from ensemble.likelihoods.categorical import Categorical


def predicted(names=("cat", "dog", "<i>"), count=12):
    rng = np.random.default_rng(0)
    log_probs = np.log(rng.dirichlet([1.0] * len(names), (4, count)).astype(np.float32))
    return Categorical(names).prediction({"log_probs": log_probs}, None)


def test_text_has_the_class_its_probability_and_uncertainties():
    p = predicted()
    heading, titles, _, first, *_, last = repr(p).splitlines()
    assert heading == "12 predictions of 4 members"
    assert titles.split()[:3] == ["class", "prob", "runner-up"]
    row = first.split()
    assert row[0] == "0"
    assert row[1] == ("cat", "dog", "<i>")[p.label[0]]
    assert row[2] == f"{p.probs[0].max():.4f}"
    assert row[-1] == f"{p.epistemic[0]:.4f}"
    assert last == "and 2 more"
    assert str(p) == repr(p)


def test_a_notebook_has_the_same_with_names_escaped():
    page = predicted()._repr_html_()
    assert "<td>dog</td>" in page
    assert "&lt;i&gt;" in page
    assert "<i>" not in page


def test_labels_have_names():
    p = predicted()
    assert p.class_name.tolist() == [p.class_names[label] for label in p.label]


def test_without_names_classes_are_numbers():
    p = predicted()._replace(class_names=())
    assert p.class_name.tolist() == [str(label) for label in p.label]
    assert repr(p).splitlines()[3].split()[1] == str(p.label[0])
