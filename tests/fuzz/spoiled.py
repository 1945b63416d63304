"""Content that somebody has damaged or forged, for fuzzing: JSON, npz archives, any bytes."""

import copy
import io
import json
import logging
import warnings
import zipfile

import numpy as np

TEXTS = [
    "", " ", "0", "-1", "1", "nan", "inf", "-inf", "1e999", "9" * 30, "9" * 400, "9" * 5000, "0x10",
    "1_000", "None", "null", "True", "{}", "[]", "(1,)", "1,2", "'", '"', "\\", "%s%n", "{0}", "$x",
    "../../etc/passwd", "/dev/zero", "~", "~nobody_at_all/x", "gs://b/c", "x://y", "a" * 5000,
    "<script>alert(1)</script>", "\x1b[2J", "a\nb", "\r", "é", "\U0001f600", "\u202e", "\udcff",
    "npz:", "folder:", "watches:9x", "normal(1", "normal(-1)", "*=laplace(1e999)",
]  # fmt: skip
VALUES = [
    *TEXTS, None, True, False, 0, -1, 1, 3, 2**31, 2**53, 2**63, 10**400, 0.5, -1e308, float("nan"),
    float("inf"), [], {}, [[]], [0], [-1, -1], {"": None}, {"a": {"b": 1}}, [[1, 2], [3]],
]  # fmt: skip


def mutate_document(rng, document):
    """A document with some entries changed."""
    document = copy.deepcopy(document)
    for _ in range(rng.randint(0, 3)):
        place = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = rng.choice(keys)
            if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.3:
                break
            place = place[key]
        match rng.randint(0, 4):
            case 0:
                del place[key]
            case 1 if isinstance(place, dict):
                place[rng.choice(TEXTS)] = place.pop(key)
            case _:
                place[key] = copy.deepcopy(rng.choice(VALUES))
        if not document:
            break
    return document


def mutate_json(rng, document):
    """A document with some entries changed, then its text with some characters changed."""
    text = json.dumps(mutate_document(rng, document))
    if rng.random() < 0.3:
        where = rng.randint(0, len(text))
        deep = ["[" * 5000, '{"a":' * 3000]
        inside = rng.choice(["NaN", "Infinity", "1e999", *deep, "\\ud800", "}"])
        text = text[:where] + inside + text[where + rng.randint(0, 3) :]
    content = text.encode()
    return mutate_bytes(rng, content) if rng.random() < 0.2 else content


def mutate_bytes(rng, content):
    """Bytes that are flipped, cut off, or put in."""
    content = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        where = rng.randrange(len(content) or 1)
        match rng.randint(0, 3):
            case 0:
                del content[where:]
            case 1:
                content[where:where] = rng.randbytes(rng.randint(1, 9))
            case _ if content:
                content[where % len(content)] ^= 1 << rng.randint(0, 7)
    return bytes(content)


def mutate_npz(rng, content):
    """An archive whose arrays or their headers are others, or whose bytes are."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, content)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    methods = [zipfile.ZIP_STORED] * 7 + [zipfile.ZIP_DEFLATED] * 2 + [zipfile.ZIP_BZIP2]
    method = rng.choice(methods)
    chosen = rng.choice(list(members))
    members[chosen] = mutate_member(rng, members[chosen])
    names = list(members)
    if rng.random() < 0.1:
        names.append(rng.choice(names))
    with zipfile.ZipFile(out, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of names twice.
        for name in names:
            archive.writestr(rng.choice(["", "../", "/"]) + name if rng.random() < 0.05 else name,
                             members[name])  # fmt: skip
    return out.getvalue()


def mutate_member(rng, content):
    """Other values, another array, or the same behind another header."""
    if rng.random() < 0.4:
        body = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            body[rng.randrange(128, len(body))] ^= 1 << rng.randint(0, 7)
        return bytes(body)
    if rng.random() < 0.5:
        kinds = ["<f4", ">f8", "<i8", "|O", "|V0", "<U3", "|S0", "<c16", "|b1", "<M8[s]"]
        descr = rng.choice(kinds)
        sizes = [-1, 0, 1, 2, 3, 20, 10**15, 2**62, 2**64]
        shape = tuple(rng.choice(sizes) for _ in range(rng.randint(0, 4)))
        header = f"{{'descr': '{descr}', 'fortran_order': {rng.choice([True, False])}, "
        header = (header + f"'shape': {shape}, }}").ljust(117) + "\n"
        return b"\x93NUMPY\x01\0v\0" + header.encode() + content[128:]
    array = rng.choice(
        [np.array([{}], object), np.full((4, 20, 3), np.nan), np.zeros((4, 20, 3)), np.array(7),
         np.full((4, 20, 3), -np.log(3)), np.full((4, 20, 3), 1e300), np.zeros((1, 1, 1)),
         np.arange(20) % 3, np.arange(4, dtype=np.uint64), np.array(["\ud800", "x"]), np.array(""),
         np.full((3000, 1, 2), -np.log(2), np.float32), np.ones((20, 0)), np.array([2**63 + 1] * 4)]
    )  # fmt: skip
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


class Said(logging.Handler):
    """What is logged since it was last cleared."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())
