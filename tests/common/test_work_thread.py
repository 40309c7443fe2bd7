"""The thread that writes: order, errors, and its end."""

from __future__ import annotations

import asyncio
import threading

from dledger.common.work_thread import WorkThread


async def test_work_is_done_in_order_and_reported_on_the_loop() -> None:
    """Beside the loop, one piece after the other; each report comes back to the loop."""
    thread, done, threads = WorkThread("t"), list[int](), set[str]()
    loop_thread = threading.current_thread()

    for number in range(50):

        def report(error: BaseException | None, number: int = number) -> None:
            assert error is None
            assert threading.current_thread() is loop_thread
            done.append(number)

        thread.run(lambda: threads.add(threading.current_thread().name), report)
    await thread.close()
    await asyncio.sleep(0)

    assert done == list(range(50))
    assert threads == {"t"}


async def test_what_work_raises_is_reported() -> None:
    """The thread goes on with what comes next."""
    thread, errors = WorkThread("t"), list[BaseException | None]()

    def fail() -> None:
        raise OSError("the disk is gone")

    thread.run(fail, errors.append)
    thread.run(lambda: None, errors.append)
    await thread.close()
    await asyncio.sleep(0)

    assert [str(error) for error in errors] == ["the disk is gone", "None"]
