"""Due once per multiple, whatever the chunks."""

from hypothesis import given
from hypothesis import strategies as st

from uniarena.trainer.callbacks.frequency import Every


def test_due_once_at_or_after_each_multiple() -> None:
    every = Every(100)
    assert [n for n in range(0, 451, 30) if every.due(n)] == [120, 210, 300, 420]


def test_none_is_never_due() -> None:
    assert not any(Every(None).due(n) for n in range(1000))


def test_a_chunk_longer_than_the_interval_is_due_once() -> None:
    every = Every(10)
    assert [every.due(n) for n in (35, 35, 70)] == [True, False, True]


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 60), st.integers(0, 30))
def test_resuming_anywhere_changes_nothing(chunks: list[int], steps: int, cut: int) -> None:
    points = [sum(chunks[: k + 1]) for k in range(len(chunks))]
    whole = Every(steps)
    expected = [whole.due(n) for n in points]
    first, second = Every(steps), Every(steps)
    found = [first.due(n) for n in points[:cut]]
    second.load_state_dict(first.state_dict())
    found += [second.would_be_due(n) and second.due(n) for n in points[cut:]]
    assert found == expected
    assert sum(expected) <= (points[-1] // steps if points else 0)


def test_an_interval_changed_on_resume_counts_from_where_the_run_stands() -> None:
    every = Every(100)
    every.due(250)
    changed = Every(30)
    changed.load_state_dict(every.state_dict())
    assert [n for n in range(250, 331, 10) if changed.due(n)] == [270, 300, 330]
