"""The live page as a web application: addresses, and what answers them.

Every page is made whole on the server and is complete without JavaScript; the script asks for the
same address again and puts what changed in place. A page that cannot be made says why in a
sentence: 404 where there is no such job or record, 503 while the database is gone, 422 where a job
has too many trials for a report, or none.
"""

import hashlib
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tilesmith.capabilities.dashboard.data.access import DatabaseAccess, Shared
from tilesmith.capabilities.dashboard.data.tally import Tallies
from tilesmith.capabilities.dashboard.guard import POLICY
from tilesmith.capabilities.dashboard.pages import schedule_pages
from tilesmith.capabilities.dashboard.pages.comparison import compare
from tilesmith.capabilities.dashboard.pages.job_pages import SECTIONS, STATES, JobsWatch
from tilesmith.capabilities.dashboard.pages.rendering import STATIC, render, static
from tilesmith.capabilities.dashboard.pages.trial_pages import AskedTrials, knobs, trials
from tilesmith.records import Database
from tilesmith.records.schema.engine import display_name, parse_url
from tilesmith.records.schema.faults import GoneError, UnavailableError
from tilesmith.search_space.results.measure import STATUSES
from tilesmith.search_space.support.errors import DatabaseError, TilesmithError

_SHARED_S = 1.0
_LARGEST = 2**63 - 1

BUSY_S, IDLE_S = 3, 15
"""Seconds between two looks of a page: while a job runs, and while none does."""

Answer = tuple[str, int]
"""A page and its status."""


class Missing(Exception):  # noqa: N818  (an answer, not a mistake)
    """There is nothing at that address; the sentence says what was asked for."""


class Dashboard:
    """Pages over one database.

    Args:
        busy_s, idle_s: seconds between two looks of a page, while a job runs and while none does.
    """

    def __init__(self, location: str, busy_s: float = BUSY_S, idle_s: float = IDLE_S) -> None:
        self._busy_s, self._idle_s = busy_s, idle_s
        self.name = display_name(parse_url(location))
        self.access = DatabaseAccess(location)
        self._tallies = Tallies()
        self._code = schedule_pages.Code()
        self._answers: Shared[Answer] = Shared(_SHARED_S, 64)

    def application(self) -> Starlette:
        """What a web server runs; put a `Guard` around it."""
        pages: dict[str, Callable[[Request, Database], str]] = {
            "/": self._jobs,
            "/jobs/{number}": self._job,
            "/workers": self._workers,
            "/schedules": self._schedules,
            "/records/{number}": self._record,
            "/compare": self._compare,
        }
        return Starlette(
            routes=[
                *(Route(path, self._endpoint(page)) for path, page in pages.items()),
                Route("/jobs/{number}/report", self._report),
                Route("/static/{name}", _static),
                Route("/favicon.ico", _icon),
            ],
            middleware=[Middleware(GZipMiddleware, minimum_size=1000)],
            exception_handlers={404: self._nowhere, 500: self._broken},
        )

    # -- answering --------------------------------------------------------------------------------
    def _endpoint(self, page: Callable[[Request, Database], str]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            question = f"{request.url.path}?{request.url.query}"
            text, status = self._answers.get(question, lambda: self._answer(page, request))
            return _tagged(request, text, status)

        return answer

    def _answer(self, page: Callable[[Request, Database], str], request: Request) -> Answer:
        try:
            return self._made(page, request), 200
        except Missing as missing:
            return self._message("Not found", str(missing)), 404
        except (DatabaseError, UnavailableError, GoneError) as error:
            if self.access.awaited():
                return self._message("Waiting for the database", f"{error}."), 503
            return self._message("The database does not answer", f"{error}."), 503
        except TilesmithError as error:
            return self._message("This cannot be shown", f"{error}."), 422

    def _made(self, page: Callable[[Request, Database], str], request: Request) -> str:
        """The page; where it fails for rows that cannot be read, the page without them."""
        try:
            with self.access.database() as database:
                return page(request, database)
        except (Missing, UnavailableError, GoneError):
            raise
        except Exception:
            if not self.access.mend():
                raise
        with self.access.database() as database:
            return page(request, database)

    def _page(self, template: str, *, busy: bool, **values: Any) -> str:
        every = self._busy_s if busy else self._idle_s
        rows = {(row.table, row.number): row for row in reversed(self.access.left_out)}
        shared = {"database": self.name, "every": every, "left_out": [*rows.values()][::-1]}
        return render(template, **shared, **values)

    def _message(self, title: str, sentence: str) -> str:
        return self._page("message.html", busy=True, title=title, sentence=sentence)

    def _nowhere(self, request: Request, error: Exception) -> Response:
        return HTMLResponse(self._message("Not found", "There is no such page."), 404)

    def _broken(self, request: Request, error: Exception) -> Response:
        kind = type(error).__name__
        sentence = f"Internal error, please report it: {kind} at {request.url.path}."
        return HTMLResponse(self._message("This page failed", sentence), 500)

    def _watch(self, database: Database) -> JobsWatch:
        return JobsWatch(database, self._tallies, self.access.generation)

    # -- pages ------------------------------------------------------------------------------------
    def _jobs(self, request: Request, database: Database) -> str:
        text, state = _text(request, "q"), _choice(request, "state", ("", *STATES))
        lines, further = self._watch(database).jobs(text, state, _number(request, "before"))
        busy = any(line.runs for line in lines)
        asked = {"text": text, "state_asked": state, "states": STATES}
        return self._page("jobs.html", busy=busy, lines=lines, further=further, **asked)

    def _job(self, request: Request, database: Database) -> str:
        number = _numbered(request)
        watch = self._watch(database)
        job = watch.job(number)
        if job is None:
            raise Missing(f"There is no job {number} in this database.")
        section = _choice(request, "show", SECTIONS)
        values = watch.page(job, section, _text(request, "q"))
        workload = _text(request, "workload")
        if section == "trials":
            status = _choice(request, "status", ("", *STATUSES))
            asked = AskedTrials(workload, status, _number(request, "before"))
            values |= trials(database, job.id, asked)
        if section == "knobs":
            values |= knobs(watch, job, workload, _text(request, "knob"))
        busy = values["line"].runs or not values["complete"]
        return self._page("job.html", busy=busy, **values)

    def _workers(self, request: Request, database: Database) -> str:
        return self._page("workers.html", busy=True, workers=self._watch(database).workers())

    def _schedules(self, request: Request, database: Database) -> str:
        workload, operator, target = (_text(request, n) for n in ("workload", "operator", "target"))
        page = min(_number(request, "page") or 1, 1_000_000)
        asked = schedule_pages.ScheduleFilter(workload, operator, target, page)
        return self._page("schedules.html", busy=False, **schedule_pages.schedules(database, asked))

    def _record(self, request: Request, database: Database) -> str:
        number, name = _numbered(request), _choice(request, "code", ("", *schedule_pages.LISTINGS))
        try:
            values = schedule_pages.record(database, number)
        except DatabaseError as error:
            if "has no record" in str(error):
                raise Missing(f"There is no record {number} in this database.") from error
            raise
        code, reason = "", ""
        if name:
            code, reason = self._code.of(database, self.access.generation, number, name)
        values |= {"code": code, "reason": reason, "shown": name}
        return self._page("record.html", busy=False, **values)

    def _compare(self, request: Request, database: Database) -> str:
        values = compare(self._watch(database), _number(request, "a"), _number(request, "b"))
        return self._page("compare.html", busy=False, **values)

    def _report(self, request: Request) -> Response:
        """The report of `tilesmith report`: a page of its own, which brings its style along."""

        def make(request: Request, database: Database) -> str:
            number = _numbered(request)
            job = self._watch(database).job(number)
            if job is None:
                raise Missing(f"There is no job {number} in this database.")
            return schedule_pages.report_of(database, job)

        text, status = self._answers.get(str(request.url.path), lambda: self._answer(make, request))
        answer = HTMLResponse(text, status)
        if status == 200:
            style = text.partition("<style>")[2].partition("</style>")[0]
            answer.headers["Content-Security-Policy"] = POLICY.replace(
                "style-src 'self'", f"style-src '{_digest_of(style)}'"
            )
        return answer


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404)
    year = "public, max-age=31536000, immutable"  # addresses change with the content
    return Response(static(name), media_type=STATIC[name], headers={"Cache-Control": year})


def _icon(request: Request) -> Response:
    """What browsers ask for on pages that name no icon, such as reports."""
    return Response(static("icon.svg"), media_type=STATIC["icon.svg"])


def _tagged(request: Request, text: str, status: int) -> Response:
    """The page, or only that it is what the asker has."""
    tag = f'W/"{hashlib.sha256(text.encode()).hexdigest()[:24]}"'
    if status == 200 and request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return HTMLResponse(text, status, {"ETag": tag})


def _digest_of(style: str) -> str:
    """A style sheet as a policy names it (Content Security Policy Level 3, section 2.3.1)."""
    from base64 import b64encode

    return f"sha256-{b64encode(hashlib.sha256(style.encode()).digest()).decode()}"


# -- what is asked for: anything may come in an address -------------------------------------------
def _text(request: Request, name: str) -> str:
    return request.query_params.get(name, "").replace("\0", "").strip()[:300]


def _choice(request: Request, name: str, allowed: tuple[str, ...]) -> str:
    chosen = request.query_params.get(name, "")
    return chosen if chosen in allowed else allowed[0]


def _number(request: Request, name: str) -> int | None:
    return _whole(request.query_params.get(name, ""))


def _numbered(request: Request) -> int:
    number = _whole(request.path_params["number"])
    if number is None:
        raise Missing("Jobs and records have whole numbers.")
    return number


def _whole(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return None
    return number if 0 < (number := int(text)) <= _LARGEST else None
