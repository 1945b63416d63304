"""The server of an exported ensemble: requests share passes, and each gets its own rows."""

import asyncio
import importlib.util
import json
import pathlib
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_parts import classification
from small_runs import make_blobs

from ensemble import networks
from ensemble.data import dataset_from_arrays
from ensemble.data.tables import read_table
from ensemble.export import MODEL_READER, export
from ensemble.fitted import Fitted
from ensemble.predictor import Ensemble
from ensemble.priors import parse_prior

SERVER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "serve.py"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(server, predictor, inputs), of a folder with what an export writes and the server."""
    folder = tmp_path_factory.mktemp("served")
    data = make_blobs()
    network = networks.create("small_runs:Tiny", 3)
    task = classification(dataset_from_arrays(data), network, parse_prior("none"))
    keys = jax.random.split(jax.random.key(0), 3)
    variables = jax.vmap(network.init, in_axes=(0, None))(keys, jnp.zeros((1, 6)))
    fitted = Fitted(jax.tree.map(np.asarray, variables), np.arange(3))
    predictor = Ensemble([(task, fitted)], range(3), 1)
    (folder / "model.bin").write_bytes(export(predictor))
    for file in (MODEL_READER, SERVER):
        (folder / file.name).write_bytes(file.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        spec = importlib.util.spec_from_file_location("serve", folder / SERVER.name)
        server = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(server)
        sys.modules.pop("read_model")
    return server, predictor, data["inputs"]


async def post(server, *parts):
    """The status and the content that the parts of a body get, by the protocol of ASGI."""
    received = [
        {"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in parts
    ]
    sent = []

    async def receive():
        return received.pop(0)

    async def send(message):
        sent.append(message)

    await server.app({"type": "http"}, receive, send)
    start, body = sent
    assert start["headers"] == [(b"content-type", b"application/json")]
    return start["status"], json.loads(body["body"])


def body_of(rows):
    return json.dumps(np.asarray(rows).tolist()).encode()


@pytest.mark.check
def test_requests_share_passes_and_get_their_own_rows(served, monkeypatch):
    server, predictor, inputs = served
    passes = []
    model = server.model

    class Counted:
        dtype = model.dtype
        check = staticmethod(model.check)

        def __call__(self, rows):
            passes.append(len(rows))
            return model(rows)

    monkeypatch.setattr(server, "model", Counted())
    sizes = [1, 5, 2, 40, 3] * 4

    async def ask_all():
        requests = [post(server, body_of(inputs[n : n + n])) for n in sizes]
        return await asyncio.gather(*requests)

    answers = asyncio.run(ask_all())
    assert sum(passes) == sum(sizes)
    assert len(passes) <= 3
    for size, (status, answer) in zip(sizes, answers, strict=True):
        assert status == 200
        expected = predictor(inputs[size : size + size])
        np.testing.assert_allclose(answer["probs"], expected.probs, atol=2e-5)
        total = expected.total_uncertainty
        np.testing.assert_allclose(answer["total_uncertainty"], total, atol=2e-5)


@pytest.mark.check
def test_a_body_may_come_in_parts(served):
    server, _, inputs = served
    body = body_of(inputs[:3])
    whole, parts = (asyncio.run(post(server, *one)) for one in ([body], [body[:7], body[7:]]))
    assert whole == parts


@pytest.mark.check
@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"[]", "the model takes [N, 6], N > 0"),
        (b"[[1, 2]]", "inputs of shape (1, 2): the model takes [N, 6], N > 0"),
        (b"[[1, 2, 3, 4, 5, null]]", "send finite numbers"),
        (b"[[1, 2, 3, 4, 5, NaN]]", "send finite numbers"),
        (b'[["a", 2, 3, 4, 5, 6]]', "could not convert string to float"),
        (b"{}", "float"),
        (b"[[1], [2, 3]]", "inhomogeneous"),
        (b"rows", "Expecting value"),
    ],
)
def test_what_cannot_be_answered_is_one_line_and_no_other_s_error(served, body, line):
    server, _, inputs = served

    async def ask_both():
        return await asyncio.gather(post(server, body), post(server, body_of(inputs[:2])))

    (status, answer), (other, _) = asyncio.run(ask_both())
    assert (status, other) == (400, 200)
    assert line in answer["error"]
    assert "\n" not in answer["error"]


@pytest.mark.check
def test_a_failure_reaches_all_that_wait_and_the_next_is_answered(served, monkeypatch):
    server, _, inputs = served

    class Broken:
        dtype = server.model.dtype
        check = staticmethod(server.model.check)

        def __call__(self, rows):
            raise ValueError("broken")

    async def ask_both():
        requests = [post(server, body_of(inputs[:2])) for _ in range(2)]
        return await asyncio.gather(*requests, return_exceptions=True)

    with monkeypatch.context() as patch:
        patch.setattr(server, "model", Broken())
        assert [str(error) for error in asyncio.run(ask_both())] == ["broken"] * 2
    assert [status for status, _ in asyncio.run(ask_both())] == [200, 200]


def test_the_line_of_the_page_takes_raw_columns():
    page = (SERVER.parents[1] / "docs" / "prediction.md").read_text()
    (line,) = re.findall(r"^rows = model\.check\(.*$", page, re.MULTILINE)
    assert len(re.findall(r"^ +rows = model\.check\(.*$", SERVER.read_text(), re.MULTILINE)) == 1
    (body,) = re.findall(r'`(\{"size".*?\})`', page)
    size = {"name": "size", "kind": "number", "flag": False, "median": 0, "periods": []}
    town = {"name": "town", "kind": "category", "categories": ["here", "there"], "rare": []}
    table = {
        "columns": [size | {"shift": 80, "scale": 10}, town],
        "missing": ["-1"],
        "decimal": ".",
    }
    model = types.SimpleNamespace(check=lambda rows: rows)
    found = {"encode": read_table.encode, "json": json, "body": body}
    found |= {"table": table, "model": model}
    exec(line, found)
    np.testing.assert_array_equal(found["rows"], [[1, 1, 0]])
