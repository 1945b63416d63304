"""The TPU launcher where Google, the network or the user come at a bad moment."""

import pytest
from test_launch_tpu_pod import OPTIONS, PLAIN, is_billed, lines
from tpu_stand_ins import Stage

pytestmark = pytest.mark.check


def google_plays(stage, play):
    """Has `gcloud` do something, in bash, before what it does."""
    gcloud = stage.path / "bin" / "gcloud"
    head, case, rest = gcloud.read_text().partition('case "$3 ')
    gcloud.write_text(f"{head}{play}\n{case}{rest}")


HICCUPS = """once() { [ "$STEP $WORKER" = "$1 $2" ] && mkdir "$STAGE/hiccup-$1" 2> /dev/null; }
case "$4 $command" in
  'ssh true') STEP=connect ;; scp*) STEP=copy_code ;; *uv*) STEP=set_up ;; *train.py*) STEP=train ;;
esac
if once connect 0; then echo 'Connection refused' >&2; exit 255; fi
if once copy_code 1; then fail 'UNAVAILABLE: HTTPError 503'; fi
if once set_up 0; then command="curl() { echo 'curl: no such host' >&2; false; }; $command"; fi
if once train 1; then fail 'INTERNAL: HTTPError 500'; fi"""


def test_what_fails_for_a_moment_before_the_run_is_tried_again(tmp_path):
    stage = Stage(tmp_path)
    google_plays(stage, HICCUPS)
    process = stage.launch(*OPTIONS, "--", *PLAIN)
    assert process.returncode == 0, process.stderr
    restarts = [line for line in lines(process) if "; restart " in line]
    expected = {"255 in connect": 0, "1 in copy_code": 1, "127 in set_up": 0, "1 in train": 1}
    for line, (end, worker) in zip(restarts, expected.items(), strict=True):
        assert line.startswith(f"worker {worker} ")
        assert f" {end} (log: " in line
    for reason in ("Connection refused", "HTTPError 503", "curl: no such host", "HTTPError 500"):
        assert f"{reason}\n" in process.stderr
    assert stage.verbs() == ["create"]
    assert stage.trained_with(1) == [PLAIN]


def google_answers(stage, *answers):
    """Has Google answer so when it is first asked for the request; then as it does otherwise."""
    (stage.path / "answers").write_text("".join(f"{answer}\n" for answer in answers))
    google_plays(
        stage,
        """if [ "$3 $4" = "queued-resources describe" ] && [ -s "$STAGE/answers" ]; then
  answer=$(head -n 1 "$STAGE/answers") && sed -i 1d "$STAGE/answers"
  case $answer in *:*) fail "$answer" ;; *) echo "$answer" && exit ;; esac
fi""",
    )


UNKNOWN = "UNAVAILABLE: HTTPError 503"
NOWHERE = "NOT_FOUND: no resource"


@pytest.mark.parametrize(
    ("answers", "created"),
    [
        ([UNKNOWN, UNKNOWN, NOWHERE], 1),
        ([NOWHERE, NOWHERE, UNKNOWN, NOWHERE], 1),  # Created, and not shown yet.
        ([NOWHERE, "WAITING_FOR_RESOURCES", NOWHERE, NOWHERE], 2),  # Somebody has deleted it.
    ],
)
def test_a_tpu_is_created_once(answers, created, tmp_path):
    stage = Stage(tmp_path)
    google_answers(stage, *answers)
    process = stage.launch(*OPTIONS, "--", *PLAIN)
    assert process.returncode == 0, process.stderr
    assert stage.verbs() == ["create"] * created
    restarts = [line for line in lines(process) if "; restart " in line]
    assert len(restarts) == created - 1
    assert all("taken away" in line for line in restarts)


@pytest.mark.parametrize(("times", "status"), [(1, 0), (2, 0), (3, 1)])
def test_a_tpu_that_google_fails_to_create_is_asked_for_again(times, status, tmp_path):
    stage = Stage(tmp_path)
    (stage.path / "failures").write_text("x\n" * times)
    google_plays(
        stage,
        f"""if [ "$4" = create ] && [ -s "$STAGE/failures" ]; then
  sed -i 1d "$STAGE/failures"; fail '{UNKNOWN}'
fi""",
    )
    process = stage.launch(*OPTIONS, "--", *PLAIN)
    assert process.returncode == status, process.stderr
    assert stage.verbs() == ["create"] * min(times + 1, 3)
    retries = [line for line in lines(process) if "Google fails for a moment" in line]
    assert len(retries) == min(times, 2)
    assert all(line.endswith(f": ERROR: (gcloud) {UNKNOWN}") for line in retries)
    if status:
        assert any("no TPU" in line and UNKNOWN in line for line in lines(process))
        # For all that is known, Google has taken one of the requests.
        assert is_billed(lines(process)[-2], "asked for")
