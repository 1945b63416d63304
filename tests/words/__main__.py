"""Renews `tests/words.json`: `python -m tests.words`."""

from . import GOLDEN, said, written

if __name__ == "__main__":
    GOLDEN.write_text(written(said()))
    print(f"{GOLDEN}: {len(said())} cases; read the difference by git diff")
