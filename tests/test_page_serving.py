"""`snip report`: the file that it writes, what it refuses, and the live page."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from cli_fixtures import Snip
from page_parts import HOSTILE, hostile_run, page_of
from processes import SEES_THIS_TREE, hear_signals

from snip.cli.repeating import command_of
from snip.data import load
from snip.page.book import Book
from snip.page.render import policy
from snip.page.server import PageServer
from snip.runs import RunConfig

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_the_command_writes_one_whole_page(snip: Snip, page_run: Path) -> None:
    code, out, _ = snip("report", page_run, "-o", "sub/page.html")
    assert (code, out) == (0, "sub/page.html\n")
    html = Path("sub/page.html").read_text()
    assert policy(live=False).replace("'", "&#39;") in html
    assert "connect-src &#39;none&#39;" in html
    assert "unsafe" not in html
    assert not re.search(r"(src|href)=\"(?!data:,|#)", html)
    assert str(page_run) not in html
    assert os.listdir("sub") == ["page.html"]
    assert snip("report", page_run, "-o", "sub/page.html")[0] == 0  # ours is replaced


def test_hostile_names_are_no_markup(page_run: Path, tmp_path: Path) -> None:
    """A browser shows it as well (test_page_browser_hostile.py), where there is one."""
    html = page_of(hostile_run(tmp_path / "evil", page_run))
    assert "window.hacked=1" in html
    assert not any(name in html for name in HOSTILE if "<" in name)


def test_what_cannot_be_read_is_told_where_the_page_is_made(snip: Snip, page_copy: Path) -> None:
    (page_copy / "result.json").write_text("{")
    code, out, error = snip("report", page_copy, "--no-score")
    assert (code, out) == (0, "report.html\n")
    assert f"warning: {page_copy / 'result.json'} is damaged" in error


def test_outputs_that_are_refused(snip: Snip, page_run: Path) -> None:
    Path("notes.html").write_text("<!doctype html>\nmine")
    Path("folder").mkdir()
    for name, sentence in (
        ("notes.html", "is no page that snip made: choose another name, or --force"),
        ("folder", "is a folder"),
        ("notes.html/page.html", "is inside a file"),
        ("/dev/null", "is no ordinary file"),
        ("/proc/page.html", "cannot write"),
    ):
        code, _, error = snip("report", page_run, "-o", name)
        assert code == 2
        assert sentence in error
    assert Path("notes.html").read_text().endswith("mine")
    assert snip("report", page_run, "-o", "notes.html", "--force", "--no-score")[0] == 0
    assert "Snip report" in Path("notes.html").read_text()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["nowhere"], "there is no run at nowhere"),
        ([], "RUNS"),
        (["RUN", "--watch", "-o", "x.html"], "leave out -o"),
        (["RUN", "--port", "80"], "is for --watch"),
        (["RUN", "--watch", "--port", "99999"], "port 99999 cannot be used"),
    ],
)
def test_mistakes(snip: Snip, page_run: Path, flags: list[str], sentence: str) -> None:
    code, _, error = snip("report", *(page_run if flag == "RUN" else flag for flag in flags))
    assert code == 2
    assert sentence in error
    assert os.listdir() == []


@pytest.fixture
def server(page_run: Path) -> Iterator[PageServer]:
    with PageServer(Book([page_run], command_of, load, score=False)) as made:
        Thread(target=made.serve_forever, daemon=True).start()
        try:
            yield made
        finally:
            made.shutdown()


def asked(server: PageServer, path: str, host: str | None = None, method: str = "GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read().decode()


def test_only_the_page_is_served_and_only_here(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    status, headers, text = asked(server, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert "Snip report" in text
    news = json.loads(asked(server, "/live.json")[2])
    assert news["curves"][0]["iterations"] == [10, 20, 30, 40]
    assert "The test error is" in news["parts"]["headline"]
    for path in ("/config.json", "/../config.json", "/favicon.ico", "/etc/passwd", "/x?/"):
        assert asked(server, path)[0] == 404
    for path, beginning in (("/?a", "<!doctype html>"), ("/live.json?a=/config.json", "{")):
        status, _, text = asked(server, path)
        assert (status, text[: len(beginning)]) == (200, beginning)
    assert asked(server, "/", method="HEAD")[2] == ""
    assert asked(server, "/", method="POST")[0] == 501


def test_a_foreign_host_is_refused(server: PageServer) -> None:
    port = server.server_port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port}.evil", ""):
        status, _, text = asked(server, "/", host)
        assert status == 403
        assert "Snip report" not in text
    assert asked(server, "/", f"localhost:{port}")[0] == 200


def test_a_run_that_goes_away_is_told(page_copy: Path) -> None:
    book = Book([page_copy], command_of, load, score=False)
    with PageServer(book) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert asked(server, "/")[0] == 200
        (page_copy / "config.json").rename(page_copy / "gone.json")
        status, _, text = asked(server, "/live.json")
        assert status == 503
        assert "there is no run in" in text
        server.shutdown()


def test_a_mistake_of_ours_is_answered_and_not_taken_for_the_end(page_run: Path) -> None:
    def broken(_config: RunConfig, _threads: int | None) -> str:
        raise ZeroDivisionError("by nothing")

    class Broken(Book):
        def live(self) -> str:
            return broken(RunConfig("lenet-300-100", 0.9), None)

    with PageServer(Broken([page_run], broken, load, score=False)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        status, _, text = asked(server, "/")  # one part of each run fails, and is told
        assert status == 200
        assert "this run cannot be shown: it holds what nobody foresaw (Zero" in text
        status, _, text = asked(server, "/live.json")
        assert (status, text) == (500, "The page cannot be made (ZeroDivisionError: by nothing).\n")
        server.shutdown()


def test_ctrl_c_ends_watching(page_run: Path) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-m", "snip", "report", "--watch", str(page_run), "--no-score"],
        env=os.environ | SEES_THIS_TREE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_signals,
    )
    address = watching.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
    port = int(address.split(":")[2].strip("/"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/")
    assert connection.getresponse().status == 200
    watching.send_signal(signal.SIGINT)
    _, error = watching.communicate(timeout=60)
    assert watching.returncode == 0
    assert "Traceback" not in error
    assert error.endswith("ended.\n")


def test_help_needs_no_torch() -> None:
    script = (
        "import sys; from snip.cli import main; main(['report', '--help']); "
        "print('torch' in sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | SEES_THIS_TREE,
        capture_output=True,
        text=True,
    ).stdout
    assert out.rstrip().endswith("False")
