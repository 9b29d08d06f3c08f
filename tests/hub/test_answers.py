"""Answers that are not the Hub's, a token that cannot be sent, a cache without room: one sentence each."""

import errno
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from selectivbench_hf.errors import HubFailure, InputError
from selectivbench_hf.hub import client as hub_client
from selectivbench_hf.hub import results_data


class Proxy(BaseHTTPRequestHandler):
    def do_GET(self):
        page = b"<html>Please log in to this network</html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_):
        pass


def test_a_login_page_is_no_hub(client):
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        out, err = client("alice")(["verify", "alice/data"], code=1, HF_ENDPOINT=endpoint)
        server.shutdown()
    assert out == "" and err.count("\n") == 1
    assert "cannot read alice/data: the answer is not one of the Hub's" in err and "login page" in err


@pytest.mark.parametrize(
    "error",
    [KeyError("id"), TypeError("x"), AttributeError("x"), RecursionError(), OSError("x"), RuntimeError("of hf_xet")],
)
def test_an_answer_of_another_form_is_a_failure_of_the_hub(error):
    with pytest.raises(HubFailure, match="cannot read a/b: "), hub_client.told("read", "a/b"):
        raise error


def test_sentences_of_our_own_pass():
    for error in (InputError("mine"), HubFailure("mine")):
        with pytest.raises(type(error), match="^mine$"), hub_client.told("read", "a/b"):
            raise error


def test_a_token_that_no_header_can_carry():
    with pytest.raises(InputError, match="the token .* characters"), hub_client.told("read", "a/b"):
        "hf_\u00e4".encode("ascii")


def test_a_full_disk_is_told_with_its_place(tmp_path, monkeypatch):
    with pytest.raises(OSError) as full, hub_client.told("download x of", "a/b"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "cache" in full.value.filename

    def copy(source, target):
        raise OSError(errno.ENOSPC, "No space left on device", source)

    monkeypatch.setattr(results_data.shutil, "copyfile", copy)
    with pytest.raises(OSError) as full:
        results_data._place(tmp_path / "source", tmp_path / "data" / "rows.parquet")
    assert full.value.filename == str(tmp_path / "data" / "rows.parquet")
