"""Named streams are independent, repeatable and resumable; the global streams can be left as they were."""

import random

import numpy as np
import pytest
import torch

from uniarena.seeding import Streams, global_state, preserved_globals, seed_globals, set_global_state


def draw_globals() -> list[float]:
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.standard_normal()),  # noqa: NPY002
        float(torch.rand(())),
    ]


def test_same_seed_and_name_give_the_same_numbers() -> None:
    a, b = Streams(7), Streams(7)
    assert torch.equal(torch.rand(5, generator=a.torch("x")), torch.rand(5, generator=b.torch("x")))
    assert np.array_equal(a.numpy("x").random(5), b.numpy("x").random(5))
    assert a.seed_for("env") == b.seed_for("env") != a.seed_for("env/1")
    assert Streams(8).seed_for("env") != a.seed_for("env")


def test_seed_for_is_the_documented_hash() -> None:
    import hashlib

    digest = hashlib.sha256(b"3/env").digest()
    assert Streams(3).seed_for("env") == int.from_bytes(digest[:4], "big") % 2**31
    assert all(0 <= Streams(seed).seed_for("a") < 2**31 for seed in range(200))


def test_a_stream_does_not_depend_on_what_others_draw() -> None:
    alone, busy = Streams(1), Streams(1)
    torch.rand(100, generator=busy.torch("other"))
    busy.numpy("other").random(3)
    assert torch.equal(torch.rand(4, generator=alone.torch("x")), torch.rand(4, generator=busy.torch("x")))


def test_a_name_is_one_shared_generator() -> None:
    streams = Streams(0)
    assert streams.torch("a") is streams.torch("a", "cpu")
    assert streams.numpy("a") is streams.numpy("a")


@pytest.mark.parametrize("seed", [-1, 1.5, "3", None, True])
def test_bad_seed_is_refused(seed: object) -> None:
    with pytest.raises(ValueError, match="expected an integer from 0 up"):
        Streams(seed)  # type: ignore[arg-type]


def test_resumed_streams_continue_in_place() -> None:
    original = Streams(5)
    torch.rand(10, generator=original.torch("act"))
    original.numpy("env").random(10)
    saved = original.state_dict()
    expected = torch.rand(3, generator=original.torch("act")), original.numpy("env").random(3)

    resumed = Streams(5)
    held, held_numpy = resumed.torch("act"), resumed.numpy("env")
    torch.rand(1, generator=held)
    resumed.load_state_dict(saved)
    assert torch.equal(torch.rand(3, generator=held), expected[0])
    assert np.array_equal(held_numpy.random(3), expected[1])


def test_a_stream_first_used_after_the_save_starts_afresh_on_load() -> None:
    saved = Streams(5).state_dict()
    resumed = Streams(5)
    used, used_numpy = resumed.torch("late"), resumed.numpy("late")
    torch.rand(9, generator=used)
    used_numpy.random(9)
    resumed.load_state_dict(saved)
    assert torch.equal(torch.rand(3, generator=used), torch.rand(3, generator=Streams(5).torch("late")))
    assert np.array_equal(used_numpy.random(3), Streams(5).numpy("late").random(3))


def test_streams_not_asked_for_after_a_load_are_saved_again() -> None:
    original = Streams(5)
    torch.rand(10, generator=original.torch("act"))
    second, third = Streams(5), Streams(5)
    second.load_state_dict(original.state_dict())
    third.load_state_dict(second.state_dict())
    assert torch.equal(
        torch.rand(3, generator=third.torch("act")), torch.rand(3, generator=original.torch("act"))
    )


def test_loading_takes_over_the_saved_seed() -> None:
    resumed = Streams(1)
    resumed.load_state_dict(Streams(9).state_dict())
    assert resumed.seed_for("new") == Streams(9).seed_for("new")


def test_global_streams_round_trip() -> None:
    seed_globals(11)
    draw_globals()  # leaves a cached half of a Gaussian pair in two of them
    state = global_state()
    expected = [draw_globals() for _ in range(3)]
    seed_globals(0)
    set_global_state(state)
    assert [draw_globals() for _ in range(3)] == expected


def test_seeding_the_globals_repeats() -> None:
    seed_globals(2**40 + 3)
    first = draw_globals()
    seed_globals(2**40 + 3)
    assert draw_globals() == first


def test_preserved_globals_hides_draws_and_seeding() -> None:
    seed_globals(4)
    random.gauss(0, 1)
    state = global_state()
    expected = draw_globals()
    set_global_state(state)
    with preserved_globals():
        seed_globals(99)
        draw_globals()
    assert draw_globals() == expected


def test_preserved_globals_survives_an_exception() -> None:
    seed_globals(4)
    expected = draw_globals()
    seed_globals(4)
    with pytest.raises(RuntimeError), preserved_globals():
        draw_globals()
        raise RuntimeError
    assert draw_globals() == expected
