"""The queue's decisions, with a clock of the test's own."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tailrace_operator.queue import (
    FIRST_PAUSE_S,
    JITTER,
    LONGEST_PAUSE_S,
    SPACING_S,
    WORKERS,
    Done,
    Failed,
    Queue,
    Schedule,
    pause_s,
)


def schedule(workers: int = WORKERS) -> Schedule[str]:
    return Schedule(workers, stretch=lambda: 1.0)


def test_a_key_is_worked_on_once_however_often_it_was_added() -> None:
    queue = schedule()
    for _ in range(100):
        queue.add("a", 0)
    assert queue.pop(0) == "a"
    assert queue.pop(0) is None
    queue.finish("a", 1, Done())
    assert queue.pop(1e9) is None


def test_what_changes_during_the_work_is_looked_at_once_more() -> None:
    queue = schedule()
    queue.add("a", 0)
    assert queue.pop(0) == "a"
    queue.add("a", 0.1)
    queue.add("a", 0.2)
    assert queue.pop(0.3) is None, "one worker a key"
    queue.finish("a", 1, Done())
    assert queue.pop(1) is None, "spacing"
    assert queue.pop(1 + SPACING_S) == "a"
    queue.finish("a", 3, Done())
    assert queue.next_due() is None


def test_failures_back_off_up_to_five_minutes_and_success_forgets_them() -> None:
    queue, now, pauses = schedule(), 0.0, []
    queue.add("a", now)
    for _ in range(14):
        assert queue.pop(now) == "a"
        queue.finish("a", now, Failed())
        due = queue.next_due()
        assert due is not None
        pauses.append(due - now)
        now = due
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S
    assert pauses == sorted(pauses)
    assert queue.pop(now) == "a"
    queue.finish("a", now, Done())
    queue.add("a", now)
    assert queue.pop(now + SPACING_S) == "a"
    queue.finish("a", now, Failed())
    assert queue.next_due() == now + FIRST_PAUSE_S


def test_an_event_shortens_a_long_pause_but_makes_no_hot_loop() -> None:
    queue, now = schedule(), 0.0
    for _ in range(10):
        queue.add("a", now)
        now = queue.next_due() or now
        assert queue.pop(now) == "a"
        queue.finish("a", now, Failed())
    queue.add("a", now)
    assert queue.pop(now + 0.9) is None
    assert queue.pop(now + 1.0) == "a"


def test_no_more_keys_at_once_than_workers() -> None:
    queue = schedule(workers=3)
    for key in "abcde":
        queue.add(key, 0)
    assert [queue.pop(0) for _ in range(4)] == ["a", "b", "c", None]
    assert queue.next_due() is None
    queue.finish("b", 0, Done())
    assert queue.pop(0) == "d"


def test_again_after_a_while_and_the_earliest_wish_wins() -> None:
    queue = schedule()
    queue.add("a", 0)
    assert queue.pop(0) == "a"
    queue.finish("a", 0, Done(again_s=10))
    assert queue.next_due() == 10
    queue.add("a", 1, after_s=60)
    assert queue.next_due() == 10
    queue.add("a", 2)
    assert queue.pop(2) == "a"


def test_keys_that_are_done_leave_nothing_behind() -> None:
    queue = schedule()
    for key in range(1000):
        queue.add(str(key), 0)
        assert queue.pop(0) == str(key)
        queue.finish(str(key), 0, Done())
    queue.forget_idle(SPACING_S)
    assert not queue._states


@settings(deadline=None)
@given(st.integers(1, 10_000), st.floats(1 - JITTER, 1 + JITTER))
def test_a_pause_is_never_longer_than_the_longest(failures: int, stretch: float) -> None:
    assert 0 < pause_s(failures, stretch) <= LONGEST_PAUSE_S


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["add", "later", "done", "failed", "again"])), max_size=60))
def test_no_change_is_ever_lost(steps: list[tuple[str, str]]) -> None:
    """After any history, each key that was added since its last work began is worked on again."""
    queue, now, running = schedule(workers=2), 0.0, set[str]()
    owed = set[str]()
    for key, step in steps:
        now += 0.1
        if step == "add":
            queue.add(key, now)
            owed.add(key)
        elif step == "later":
            queue.add(key, now, 30)
            owed.add(key)
        elif key in running:
            running.discard(key)
            if step != "done":
                owed.add(key)
            queue.finish(key, now, {"done": Done(), "failed": Failed(), "again": Done(5)}[step])
        while (popped := queue.pop(now)) is not None:
            assert popped not in running
            running.add(popped)
            owed.discard(popped)
        assert len(running) <= 2
        queue.forget_idle(now)
    for key in running:
        queue.finish(key, now, Done())
    while (due := queue.next_due()) is not None:
        now = max(now, due)
        popped = queue.pop(now)
        assert popped is not None
        owed.discard(popped)
        queue.finish(popped, now, Done())
    assert not owed


async def test_the_queue_runs_works_again_after_a_failure_and_ends_when_cancelled() -> None:
    import asyncio

    seen: list[str] = []
    finished = asyncio.Event()

    async def work(key: str) -> Done:
        seen.append(key)
        if len(seen) == 1:
            raise RuntimeError("once")
        if seen.count("a") >= 2 and "b" in seen:
            finished.set()
        return Done()

    queue: Queue[str] = Queue(Schedule(stretch=lambda: 0.01))
    queue.add("a")
    task = asyncio.create_task(queue.run(work))
    await asyncio.sleep(0)
    queue.add("b")
    await asyncio.wait_for(finished.wait(), 30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert sorted(seen) == ["a", "a", "b"]
