"""What `compare` and `bisect` say of an instruction: the keys that scripts read."""

from __future__ import annotations

from tilesmith.compiler.backends.wrong_instruction import WrongInstruction


def test_its_object_has_the_keys_that_scripts_read() -> None:
    wrong = WrongInstruction(
        3, "add", "vector", 17, (3,), "k", ("node",), "a sum", "y", (1, 2), 0.5, 1.5
    )
    shown = wrong.to_json()
    assert (shown["found"], shown["wanted"]) == (0.5, 1.5) and "computed" not in shown
    assert shown["among"] == [3] and "0.5 where 1.5" in shown["sentence"]
