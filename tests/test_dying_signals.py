"""Real signals: the work is saved first, and the exit status is what shells expect."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import PATIENCE, start_run, wait_for_metrics
from training_parts import CONFIG, chancy_network, pruned_network, repeatable, same_weights

from snip.data import Dataset, load
from snip.training import Metrics, load_checkpoint, train
from snip.training.interrupts import ECHO_SECONDS, UNTOUCHED

if not hasattr(signal, "SIGHUP"):
    pytest.skip("no SIGHUP here", allow_module_level=True)

ENDING = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist").subset(2000, 500)


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    """A shell's background and a test runner may have set or silenced some of the signals."""
    before = {number: signal.signal(number, handler) for number, handler in UNTOUCHED.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_the_work_is_saved_first_and_resumes_to_the_same_bits(
    mnist: Dataset, tmp_path: Path, number: signal.Signals
) -> None:
    def send(metrics: Metrics) -> None:
        if metrics.iteration == 20:
            signal.raise_signal(number)

    whole_model, fresh = pruned_network(mnist), pruned_network(mnist)
    whole = train(whole_model, mnist, CONFIG)
    with pytest.raises(SystemExit) as ended:
        train(pruned_network(mnist), mnist, CONFIG, folder=tmp_path, on_metrics=send)
    assert ended.value.code == 128 + number
    assert all(signal.getsignal(n) is handler for n, handler in UNTOUCHED.items())
    assert load_checkpoint(tmp_path / "checkpoint.pt")["state"]["iteration"] == 20
    resumed = train(fresh, mnist, CONFIG, folder=tmp_path)
    assert repeatable(resumed.history) == repeatable(whole.history)
    assert same_weights(fresh, whole_model)


@pytest.mark.parametrize("first", ENDING)
@pytest.mark.parametrize("second", [signal.SIGINT, *ENDING])
def test_a_second_signal_ends_at_once(
    mnist: Dataset, tmp_path: Path, first: signal.Signals, second: signal.Signals
) -> None:
    def send(_: Metrics) -> None:
        signal.raise_signal(first)
        time.sleep(ECHO_SECONDS if first == second else 0)
        signal.raise_signal(second)

    kind = KeyboardInterrupt if second == signal.SIGINT else SystemExit
    with pytest.raises(kind) as ended:
        train(chancy_network(), mnist, CONFIG, folder=tmp_path, on_metrics=send)
    assert kind is KeyboardInterrupt or ended.value.code == 128 + second
    assert not (tmp_path / "checkpoint.pt").exists()


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_that_is_sent_twice_at_once_counts_once(
    mnist: Dataset, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`timeout` signals its child and then the group that the child is in."""
    # On a busy machine any time may pass between the two.
    monkeypatch.setattr("snip.training.interrupts.ECHO_SECONDS", math.inf)

    def send(_: Metrics) -> None:
        signal.raise_signal(number)
        signal.raise_signal(number)

    with pytest.raises(SystemExit):
        train(chancy_network(), mnist, CONFIG, folder=tmp_path, on_metrics=send)
    assert load_checkpoint(tmp_path / "checkpoint.pt")["state"]["iteration"] == 20


@pytest.mark.parametrize("number", ENDING)
def test_handlers_of_the_users_own_are_left_alone(mnist: Dataset, number: signal.Signals) -> None:
    seen: list[int] = []
    signal.signal(number, lambda n, _: seen.append(n))
    own = signal.getsignal(number)
    result = train(
        chancy_network(), mnist, CONFIG, on_metrics=lambda _: signal.raise_signal(number)
    )
    assert result.final.iteration == CONFIG.iterations
    assert seen == [number] * len(result.history)
    assert signal.getsignal(number) is own


def test_an_ignored_signal_stays_ignored(mnist: Dataset) -> None:
    """So that `nohup` works."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    result = train(
        chancy_network(), mnist, CONFIG, on_metrics=lambda _: signal.raise_signal(signal.SIGHUP)
    )
    assert result.final.iteration == CONFIG.iterations


def test_another_thread_sets_no_handlers(mnist: Dataset) -> None:
    seen: list[object] = []

    def look(_: Metrics) -> None:
        seen.extend(signal.getsignal(number) for number in UNTOUCHED)

    thread = threading.Thread(
        target=train, args=(chancy_network(), mnist, CONFIG), kwargs={"on_metrics": look}
    )
    thread.start()
    thread.join()
    assert seen == [*UNTOUCHED.values()] * 3


@pytest.mark.parametrize("number", ENDING)
def test_a_run_that_is_told_to_end_saves_and_says_how_to_go_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    running = start_run(tmp_path)
    try:
        wait_for_metrics(tmp_path, running)
        running.send_signal(number)
        _, said = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
    assert running.returncode == 128 + number, said
    assert "same command" in said
    assert "Traceback" not in said
    saved = load_checkpoint(tmp_path / "checkpoint.pt")["state"]  # long before the first is due
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(saved["history"]) == len(lines) >= 1
    assert not (tmp_path / "result.json").exists()
    assert not list(tmp_path.glob(".snip-tmp-*"))
