"""Functions called as tasks of a cluster: what training shares out, joined in the order asked.

Arguments and answers are plain data: numbers, texts, lists, dictionaries and arrays. Whether a task
ran once or, after its worker died, again, makes no difference: what is called has no effect.
"""

from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from tilesmith.search_space.support.errors import JobError

_RETRIES = 3
"""Times that a task is done again whose worker died."""


def called(function: Callable[..., Any], asked: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What a function, one of a module's own, answers to each tuple of arguments.

    Raises:
        JobError: a task failed, or its workers died again and again.
    """
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(function)
    references = [task.remote(*arguments) for arguments in asked]
    try:
        answers: list[Any] = ray.get(references)
    except RayTaskError as error:
        reason = str(error.cause).partition("\n")[0]
        raise JobError(f"a worker failed in '{function.__name__}': {reason}") from error
    except RayError as error:
        reason = str(error).partition("\n")[0]
        raise JobError(f"'{function.__name__}' found no worker that lived: {reason}") from error
    return answers
