"""What is worked out is asked once."""

from __future__ import annotations

from placer.io.memo import of_last, once, remembered
from placer.io.same_objects import OfSameObjects


class Powers:
    """Powers of numbers, and which were asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    @remembered
    def of(self, number: int, *, exponent: int = 2) -> int:
        self.asked.append(number)
        return int(number**exponent)


def test_a_method_is_asked_once_for_equal_arguments_of_one_object() -> None:
    powers, others = Powers(), Powers()
    assert [powers.of(3), powers.of(4), powers.of(3), powers.of(3, exponent=3), powers.of(3, exponent=3)] == [
        9, 16, 9, 27, 27,
    ]  # fmt: skip
    assert powers.asked == [3, 4, 3]
    assert others.of(3) == 9
    assert others.asked == [3]


def test_a_key_stands_for_all_arguments_with_its_result() -> None:
    known: dict[int, str] = {}
    assert once(known, 0, str.upper, "a") == "A"
    assert once(known, 0, str.upper, "b") == "A"
    assert once(known, 1, str.replace, "ab", "a", "c") == "cb"


def test_results_of_the_same_objects_are_made_once_and_equal_objects_are_not_the_same() -> None:
    known, made, one, other = OfSameObjects[int](), list[int](), [1], [1]

    def make() -> int:
        made.append(len(made))
        return made[-1]

    assert [known.of((each,), "value", make) for each in (one, other, one, other)] == [0, 1, 0, 1]
    assert known.of((one,), "another", make) == 2


def test_of_the_last_object_alone_the_result_is_kept_and_an_equal_one_is_another() -> None:
    asked: list[list[int]] = []

    @of_last
    def total(numbers: list[int]) -> int:
        asked.append(numbers)
        return sum(numbers)

    one, other = [1, 2], [1, 2]
    assert [total(each) for each in (one, one, other, other, one)] == [3] * 5
    assert [id(each) for each in asked] == [id(one), id(other), id(one)]
