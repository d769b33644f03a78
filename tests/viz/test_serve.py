"""The page is served on localhost only, with a token; as a file it needs no other resource."""
from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.golden.running import ROOT, environment, interruptible, run
from tinsmith import Tensor, viz
from tinsmith.viz.page import HOST, Server


def get(server: Server, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_only_with_the_token_and_our_host() -> None:
    with Server("<p>secret</p>") as server:
        good = f"/?token={server.token}"
        assert get(server, good) == (200, "<p>secret</p>")
        assert server.url.endswith(good) and len(server.token) >= 32
        for path in ("/", "/?token=", f"/?token={server.token[:-1]}", "/?token=%ff"):
            status, text = get(server, path)
            assert status == 403 and "secret" not in text
        assert get(server, good, Host="evil.example:80")[0] == 403
        assert get(server, f"/other{good[1:]}")[0] == 404
        assert server._http.server_address[0] == "127.0.0.1"


def test_nothing_answers_after_the_end() -> None:
    with Server("x") as server:
        pass
    with pytest.raises(OSError):
        get(server, "/")


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"{tag} {name}" for name, value in attrs
                       if name in ("src", "href", "srcset", "action") and not (value or "").startswith("data:")]


def test_one_page_that_fetches_nothing(four: Path, tmp_path: Path) -> None:
    done = run(["-m", "tinsmith", "viz", str(four), "--html", "out.html"], tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("out.html: ")
    text = (tmp_path / "out.html").read_text("utf-8")
    links = Links()
    links.feed(text)
    assert links.found == [] and "BSD 3-Clause License" in text and text.count("Copyright") >= 2
    scripts = text.split("<script>")[1:]
    assert len(scripts) > 5 and all(script.count("</script") == 1 and "<!--" not in script for script in scripts)
    assert "<!--" not in text.split("<script>")[0].replace("<!-- the libraries", "")


def test_what_a_program_holds_cannot_end_the_script(tmp_path: Path) -> None:
    document = Tensor([1.0]).exp().viz(run=False)
    document.close()
    changed = {**document.document, "program": "</script><script>alert(1)</script>"}
    assert "</script><script>alert" not in viz.page.page(changed)


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent as a signal")
@pytest.mark.parametrize("command", [["program.py"], ["-m", "tinsmith", "viz", "program.trace.json"]])
def test_served_until_ctrl_c(command: list[str], four: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("from tinsmith import Tensor\nprint((Tensor([1, 2]) + 1).tolist())\n")
    (tmp_path / "program.trace.json").write_bytes(four.read_bytes())
    settings = {"VIZ": "1"} if command == ["program.py"] else {}
    with interruptible():
        process = subprocess.Popen([sys.executable, "-u", *command], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
                                   env=environment(ROOT / ".none", CACHELEVEL="0", **settings))
    assert process.stdout is not None
    try:
        line = next(text for text in process.stdout if "127.0.0.1" in text)
        found = re.search(r"http://127\.0\.0\.1:(\d+)(/\?token=[\w-]+) ", line)
        assert found is not None, line
        connection = http.client.HTTPConnection(HOST, int(found[1]), timeout=10)
        connection.request("GET", found[2])
        assert "<!doctype html>" in connection.getresponse().read().decode()
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.stdout.close()
