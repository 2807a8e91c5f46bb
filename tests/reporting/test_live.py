"""The live page: its few paths, to this machine only, for as long as it is asked to."""

import http.client
import json
import shutil
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from vje.errors import UserError
from vje.reporting.live import LiveServer
from vje.runs import RunFolder


@pytest.fixture
def live(reported):
    server = LiveServer(reported).start()
    yield server
    server.stop()


def ask(live, path="/", method="GET", host=None):
    request = urllib.request.Request(live.address + path, method=method, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def test_page_and_data(live, reported):
    status, text = ask(live)
    assert status == 200 and "Waiting for the first steps." in text and "<b>" not in text.split("<script>")[0]
    live.progress = {"epoch": 3, "epochs": 9, "done": 0.3, "images_per_second": 7.0, "left": "1s"}
    status, text = ask(live, "/data.json")
    found = json.loads(text)
    assert found["progress"]["epoch"] == 3 and len(found["warnings"]) == 1
    assert next(p for p in found["panels"] if p["title"] == "Loss")["lines"][0]["y"][0] == 5
    record = {"epoch": 21, "step": 21, "loss": 0.125}
    before = reported.metrics_file.read_bytes()
    reported.append(reported.metrics_file, record)
    try:
        panels = json.loads(ask(live, "/data.json")[1])["panels"]
        assert next(p for p in panels if p["title"] == "Loss")["lines"][0]["y"][-1] == 0.125
    finally:
        reported.metrics_file.write_bytes(before)


def test_the_map_that_was_shown_last(reported, make_atlas):
    server = LiveServer(reported, no_map="It comes <later>.").start()
    try:
        assert "It comes &lt;later&gt;." in ask(server)[1] and ask(server, "/map.json")[0] == 404
        assert json.loads(ask(server, "/data.json")[1])["map"]["number"] == 0
        for number, atlas in enumerate((make_atlas(40), make_atlas(30, labelled=False)), 1):
            server.show(atlas, 10 * number, number == 2)
            expected = {"number": number, "epoch": 10 * number, "settled": number == 2}
            assert json.loads(ask(server, "/data.json")[1])["map"] == expected
            found = json.loads(ask(server, "/map.json")[1])
            section = found.pop("section")
            assert found.pop("number") == number
            assert found == json.loads(json.dumps(atlas.as_data())) and f"{found['count']} images" in section
        assert "sheets" not in ask(server)[1].split('id="data">')[1].split("</script>")[0]  # the page fetches it
    finally:
        server.stop()


@pytest.mark.parametrize("path", ["/config.json", "/metrics.jsonl", "/../config.json", "/%2e%2e/config.json", "/x"])
def test_other_paths_are_not_there(live, path):
    assert ask(live, path)[0] == 404


def test_only_reading_and_only_from_here(live):
    assert ask(live, method="POST")[0] == 501 and ask(live, method="DELETE")[0] == 501
    assert ask(live, host="example.org")[0] == 403  # a name that someone else points here
    assert ask(live, "/data.json", host="localhost:99")[0] == 200


def test_it_listens_on_the_loopback_alone(live):
    assert live._server.socket.getsockname()[0] == "127.0.0.1"
    port = live._server.server_address[1]
    with socket.socket() as other:  # another address of the same machine, which would be taken if all were
        other.bind(("127.0.0.2", port))


def data_in(text):
    """What the page's scripts would read."""
    return json.loads(text.split('id="data">')[1].split("</script>")[0])


def test_the_end_is_served_to_pages_that_are_open(live, make_atlas):
    live.show(make_atlas(30), 20, True)
    assert json.loads(ask(live, "/data.json")[1])["ended"] is None
    began = time.monotonic()
    ending = threading.Thread(target=live.finish, args=(3,))
    ending.start()
    while (ended := json.loads(ask(live, "/data.json")[1])["ended"]) is None:
        assert time.monotonic() < began + 3
    assert ended["status"] == "stopped, 20 epochs done" and f"vje train --resume {live.folder.path}" in ended["words"]
    assert "in training" not in ask(live)[1].split("<script>")[0]  # a page that is opened this late knows it too
    ending.join(30)
    assert 3 <= time.monotonic() - began < 20


def test_a_run_that_failed_says_why(reported, tmp_path):
    folder = RunFolder(Path(shutil.copytree(reported.path, tmp_path / "run")))
    folder.write("failed", {"step": 7, "message": "the loss at step 7 is <NaN>"})
    server = LiveServer(folder).start()
    try:
        server.finish(0)
        found = json.loads(ask(server, "/data.json")[1])["ended"]
        assert found == {"status": "diverged at step 7, 20 epochs done", "words": "the loss at step 7 is <NaN>"}
        assert "<NaN>" not in ask(server)[1].split("<script>")[0]
    finally:
        server.stop()


def test_a_run_that_is_finished_says_what_comes_next(reported, tmp_path):
    folder = RunFolder(Path(shutil.copytree(reported.path, tmp_path / "<b> run")))
    folder.model_file.touch()
    server = LiveServer(folder)
    try:
        text = server.answer("/").body.decode().split("<script>")[0]
        assert "VJE, resnet8 on &lt;/script&gt;" in text and '<span id="live-status">in training</span>' in text
        assert data_in(server.answer("/").body.decode())["name"] == "<b> run"  # for the title, when it ends
        assert "<title>&lt;b&gt; run: in training</title>" in text and "connect-src &#x27;self&#x27;" in text
        server.finish(0)
        epochs = folder.read("config")["optimizer"]["epochs"]
        words = f"Finished after epoch {epochs}. vje report '{folder.path}' makes a page to keep."
        assert server.state()["ended"] == {"status": "finished", "words": words}
        assert '<span id="live-status">finished</span>' in server.answer("/").body.decode()
    finally:
        server.stop()


def test_the_live_page_calls_numbers_as_the_report_does(reported):
    server = LiveServer(reported)
    titles = [panel["title"] for panel in server.state()["panels"]]
    server.stop()
    assert {"KL (nats)", "Posterior variance", "Effective rank of z"} <= set(titles)


@pytest.mark.parametrize("path", ["/", "/data.json"])
def test_nobody_waits_where_no_page_is_open(live, monkeypatch, path):
    waits = []
    monkeypatch.setattr("vje.reporting.live.sleep", waits.append)
    ask(live, "/favicon.ico")
    live.finish(60)
    assert not live.watched and waits == []
    ask(live, path)
    live.finish(60)
    assert live.watched and waits == [60]
    monkeypatch.setattr("vje.reporting.live.RECENT", 0.0)  # it was closed a while ago
    live.finish(60)
    assert not live.watched and waits == [60]


def test_it_stops_while_a_browser_holds_on(reported):
    server = LiveServer(reported).start()
    port = server._server.server_address[1]
    idle = http.client.HTTPConnection("127.0.0.1", port)
    idle.connect()
    server.stop()
    assert not any(thread.name == "vje-watch" for thread in threading.enumerate())
    LiveServer(reported, port).stop()  # the port is free again
    idle.close()


def test_a_port_that_is_taken(live, reported):
    with pytest.raises(UserError, match="cannot be used"):
        LiveServer(reported, live._server.server_address[1])
