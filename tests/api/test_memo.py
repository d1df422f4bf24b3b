"""What is worked out is asked once."""

from __future__ import annotations

from placer.io.memo import Memo, once


def test_a_memo_asks_once_for_each_key() -> None:
    asked: list[int] = []

    def square(number: int) -> int:
        asked.append(number)
        return number * number

    squares = Memo(square)
    assert [squares[3], squares[4], squares[3]] == [9, 16, 9]
    assert asked == [3, 4]


def test_a_key_stands_for_all_arguments_with_its_result() -> None:
    known: dict[int, str] = {}
    assert once(known, 0, str.upper, "a") == "A"
    assert once(known, 0, str.upper, "b") == "A"
    assert once(known, 1, str.replace, "ab", "a", "c") == "cb"
