"""The progress line: plain lines where stderr is no terminal, one refreshed line where it is."""

import io

import pytest

from tests.callbacks.fake_trainer import Clock, FakeTrainer
from uniarena.trainer.callbacks.progress import Progress, _duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make(stream: io.StringIO, total: int = 1000, **fields: object) -> tuple[FakeTrainer, Progress, Clock]:
    callback, clock = Progress(stream=stream, **fields), Clock()
    callback.clock = clock
    return FakeTrainer(callback, total=total), callback, clock


def test_lines_tell_steps_speed_return_and_time_left() -> None:
    stream = io.StringIO()
    trainer, _, clock = make(stream, total=10_000)
    trainer.start()
    clock.now = 2.0
    trainer.iterate(return_mean=12.34)
    assert stream.getvalue() == "100/10,000 env steps (1%)  50 steps/s  return 12.3  ETA 3m18s\n"


def test_plain_lines_come_every_few_seconds_and_at_the_end() -> None:
    stream = io.StringIO()
    trainer, _, clock = make(stream)
    trainer.start()
    for _ in range(10):
        clock.now += 1.0
        trainer.iterate(eval__return_mean=200.0)
    trainer.end()
    lines = stream.getvalue().splitlines()
    assert [line.split("/")[0] for line in lines] == ["100", "600", "1,000"]
    assert lines[-1].endswith("evaluated 200.0  finished after 10s")


def test_speed_after_a_resume_counts_only_what_was_done_since() -> None:
    stream = io.StringIO()
    trainer, _, clock = make(stream)
    trainer.counters.env_steps = 800
    trainer.start(resumed=True)
    clock.now = 1.0
    trainer.iterate()
    assert "900/1,000 env steps (90%)  100 steps/s" in stream.getvalue()


def test_the_last_return_is_shown_while_no_episode_ends() -> None:
    stream = io.StringIO()
    trainer, _, clock = make(stream)
    trainer.start()
    trainer.iterate(return_mean=7.0)
    clock.now = 9.0
    trainer.iterate()
    assert "return 7.0" in stream.getvalue().splitlines()[-1]


def test_quiet_shows_nothing() -> None:
    stream = io.StringIO()
    trainer, *_ = make(stream, quiet=True)
    trainer.start().iterate()
    trainer.end()
    assert stream.getvalue() == ""


def test_a_terminal_gets_one_line_that_is_refreshed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    trainer, callback, clock = make(stream)
    trainer.start()
    for _ in range(3):
        clock.now += 1.0
        trainer.iterate(return_mean=1.0)
    trainer.end()
    assert callback._live is None
    text = stream.getvalue()
    assert "\x1b" in text and "300/1,000 env steps (30%)" in text


def test_a_failed_run_gives_the_terminal_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setenv("TERM", "xterm")
    before = sys.stderr
    trainer, callback, _ = make(Terminal())
    trainer.start()
    callback.on_exception(trainer, None)
    assert callback._live is None and sys.stderr is before


def test_standard_error_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = FakeTrainer(Progress()).start()
    trainer.iterate()
    captured = capsys.readouterr()
    assert "100/1,000" in captured.err and captured.out == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.6, "1m00s"), (3599, "59m59s"), (7325, "2h02m")]
)
def test_durations(seconds: float, text: str) -> None:
    assert _duration(seconds) == text
