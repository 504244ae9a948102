"""How many iterations are over, and how long the rest may take."""

from __future__ import annotations

import pytest

from sidecar.display.progress import Iterations, outermost


def iterated(*took_s: float, of: int | None = 10) -> tuple[Iterations, float]:
    """A loop whose iterations took so long, with the next one just begun."""
    loop, now = Iterations("loop"), 100.0
    for number, each_s in enumerate(took_s, 1):
        loop.begin(number, of, now)
        now += each_s
    loop.begin(len(took_s) + 1, of, now)
    return loop, now


def test_the_estimate_is_made_of_the_last_five() -> None:
    loop, now = iterated(1000, 10, 10, 10, 10, 20)
    assert loop.remaining_s(now) == 4 * 12
    assert loop.average_s == 1060 / 6


def test_the_estimate_shrinks_while_an_iteration_goes_on_but_never_below_the_rest() -> None:
    loop, now = iterated(10, 10, 10, 10, 10)
    assert loop.remaining_s(now + 4) == 46
    assert loop.remaining_s(now + 4000) == 40


def test_only_complete_iterations_count() -> None:
    loop, now = iterated(10, 10)
    assert (loop.number, loop.done) == (3, 2)
    loop.end(now + 10)
    loop.end(now + 20)
    assert (loop.done, loop.average_s) == (3, 10)


def test_after_a_resume_those_before_it_count_and_the_pause_is_no_iteration() -> None:
    loop, now = iterated(10, 10)
    loop.interrupt()
    loop.begin(4, 10, now + 5000)
    assert (loop.done, loop.average_s) == (3, 10)
    loop.begin(4, 10, now + 6000)  # once more, after a crash
    loop.begin(5, 10, now + 6010)
    assert (loop.done, loop.average_s) == (4, 10)


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("work", None),
        ("loop[3]/work", ("loop", 4)),
        ("included~2/outer[0]/inner[5]/work", ("outer", 1)),
        ("odd]name/work[x]", None),
    ],
)
def test_the_outermost_loop_is_known_from_a_steps_key(key: str, found: tuple[str, int] | None) -> None:
    assert outermost(key) == found
