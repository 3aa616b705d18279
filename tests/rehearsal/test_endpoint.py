"""The loopback endpoint: what it answers, and that every fault is really on the wire."""

import http.client
import json
import math
import subprocess
import sys
import time

import pytest

from helpers.channels.stacks import StackError
from tests.rehearsal.endpoint import ENDING, FAULTS, Endpoint, chosen, first_token, main, prompt_id

JOINT = "Evidence: 7 of 40 walkers. Output exactly one option label."
BINARY = "Output exactly Yes or No."


def body(prompt=JOINT, **fields):
    return {
        "model": "tiny-1",
        "messages": [{"role": "user", "content": prompt}],
        "logprobs": True,
        "top_logprobs": 20,
        "max_tokens": 1,
        "temperature": 1.0,
        **fields,
    }


def post(endpoint, request, path="/v1/chat/completions", timeout=5):
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(request), {"Authorization": "Bearer planted-key-77"})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def top(text):
    return json.loads(text)["choices"][0]["logprobs"]["content"][0]["top_logprobs"]


def test_the_same_prompt_gets_the_same_answer_and_another_prompt_another():
    with Endpoint() as endpoint:
        first, again, other = (post(endpoint, body(p))[2] for p in (JOINT, JOINT, JOINT + " "))
    assert first == again and top(first) != top(other)


def test_joint_prompts_get_four_labels_and_binary_prompts_yes_and_no():
    assert {"A", "B", "C", "D"} <= {t for t, _ in first_token(body())}
    assert {"Yes", "No"} <= {t for t, _ in first_token(body(BINARY))} and "A" not in dict(first_token(body(BINARY)))


def test_all_alternatives_together_are_a_probability_distribution():
    assert math.fsum(math.exp(v) for _, v in first_token(body())) == pytest.approx(1, abs=1e-5)


def test_a_scaled_endpoint_halves_differences_at_temperature_two():
    cool, warm = (dict(first_token(body(temperature=t), scaled=True)) for t in (1.0, 2.0))
    assert warm["A"] - warm["The"] == pytest.approx((cool["A"] - cool["The"]) / 2, abs=1e-5)


@pytest.mark.parametrize(
    "shape, cached",
    [("openai", "prompt_tokens_details"), ("deepseek", "prompt_cache_hit_tokens"), ("llamacpp", "timings")],
)
def test_each_shape_has_its_own_usage_fields(shape, cached):
    with Endpoint(shape=shape) as endpoint:
        answer = json.loads(post(endpoint, body(JOINT * 20))[2])
    assert cached in answer["usage"] or cached in answer
    assert answer["usage"]["prompt_tokens"] == 3 + len(JOINT * 20) // 4


def test_without_logprobs_a_short_text_is_generated():
    request = {k: v for k, v in body(max_tokens=12).items() if "logprobs" not in k}
    with Endpoint() as endpoint:
        choice = json.loads(post(endpoint, request)[2])["choices"][0]
    assert choice["logprobs"] is None and 1 < len(choice["message"]["content"].split(" ")) <= 12
    assert choice["finish_reason"] == "length"


def test_health_and_counts_can_be_read():
    with Endpoint() as endpoint:
        post(endpoint, body())
        post(endpoint, body())
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port)
        connection.request("GET", "/health")
        assert json.loads(connection.getresponse().read()) == {"status": "ok"}
        connection.request("GET", "/counts")
        assert json.loads(connection.getresponse().read()) == {"requests": 2, "questions": 1, "answers": 2}
        connection.close()
    assert endpoint.asked[prompt_id(body())] == 2


@pytest.mark.parametrize(
    "fault, status, header",
    [
        ("rate-limit", 429, None),
        ("rate-limit-wait", 429, "Retry-After"),
        ("server-error", 500, None),
        ("unavailable", 503, None),
        ("bad-request", 400, None),
        ("unauthorized", 401, None),
        ("insufficient-quota", 429, None),
        ("unknown-model", 404, None),
    ],
)
def test_http_faults_carry_their_status_and_echo_the_key(fault, status, header):
    with Endpoint(faults=[fault]) as endpoint:
        found, headers, text = post(endpoint, body())
    assert found == status and b"planted-key-77" in text
    assert ("Retry-After" in headers) == (header is not None or fault == "unavailable")


@pytest.mark.parametrize("fault", ["reset", "early-reset"])
def test_a_reset_breaks_the_connection_in_mid_answer(fault):
    with Endpoint(faults=[fault]) as endpoint, pytest.raises((ConnectionError, http.client.HTTPException)):
        post(endpoint, body())


@pytest.mark.parametrize("fault", ["time-out", "slow-drip"])
def test_an_endpoint_that_hangs_or_drips_does_not_finish(fault):
    with Endpoint(faults=[fault]) as endpoint:
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=0.4)
        connection.request("POST", "/v1/chat/completions", json.dumps(body()))
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            reply = connection.getresponse()
            while reply.read(1) and time.monotonic() < start + 0.4:
                pass
            raise TimeoutError
        connection.close()
    assert endpoint.most_at_once == 1


@pytest.mark.parametrize("fault", ["truncated-json", "invalid-json", "html", "empty-body"])
def test_unreadable_bodies_are_no_json(fault):
    with Endpoint(faults=[fault]) as endpoint, pytest.raises(ValueError):
        json.loads(post(endpoint, body())[2])


@pytest.mark.parametrize(
    "fault, expected",
    [("sentinel-9999", -9999.0), ("sentinel-100", -100.0), ("minus-infinity", -math.inf), ("tiny-positive", 3e-7)],
)
def test_a_sentinel_stands_at_the_best_label(fault, expected):
    best = first_token(body())[0][0]
    with Endpoint(faults=[fault]) as endpoint:
        found = {t["token"]: t["logprob"] for t in top(post(endpoint, body())[2])}
    assert found[best] == expected and sum(v == expected for v in found.values()) == 2  # "B" and " B"


@pytest.mark.parametrize("fault, token", [("lower-case", "b"), ("cyrillic", "\u0412"), ("prefixed", ">B")])
def test_look_alikes_of_a_label_come_instead_of_it(fault, token):
    with Endpoint(faults=[fault]) as endpoint:
        found = [t["token"] for t in top(post(endpoint, body())[2])]
    assert token in found and "B" not in found


def test_a_passing_fault_lets_the_question_through_after_the_first_tries():
    with Endpoint(faults=["unavailable"], first=2) as endpoint:
        assert [post(endpoint, body())[0] for _ in range(3)] == [503, 503, 200]
    assert endpoint.asked.total() == 3 and endpoint.answered.total() == 1


def test_the_share_of_questions_with_a_fault_is_chosen_by_hash():
    endpoint = Endpoint(faults=["bad-request", "html"], share=0.3)
    names = [endpoint.fault_of(f"question {n}") for n in range(400)]
    assert names == [endpoint.fault_of(f"question {n}") for n in range(400)]
    assert 80 < sum(n is not None for n in names) < 160 and {"bad-request", "html", None} == set(names)


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"time-out", "slow-drip", "reset", "early-reset"}))
@pytest.mark.parametrize("prompt", [JOINT, BINARY])
def test_every_fault_changes_what_is_sent(fault, prompt):
    with Endpoint() as good, Endpoint(faults=[fault]) as bad:
        healthy, spoiled = post(good, body(prompt)), post(bad, body(prompt))
    same = fault == "slow" or (fault == "cyrillic" and prompt == BINARY)  # Yes and No have no Cyrillic look-alike
    assert (healthy == spoiled) == same
    assert good.answered.total() == 1 and bad.answered.total() == 0


def test_an_unknown_fault_and_a_taken_port_are_refused_with_one_sentence():
    with pytest.raises(StackError, match="unknown fault 'rests'; there are: all, slow"):
        Endpoint(faults=["rests"])
    with Endpoint() as endpoint, pytest.raises(StackError, match=f"port {endpoint.port} on 127.0.0.1 cannot be used"):
        Endpoint(port=endpoint.port).__enter__()


def test_all_faults_leave_out_those_that_end_a_run():
    assert not set(chosen(["all"])) & set(ENDING) and len(chosen(["all"])) == len(FAULTS) - len(ENDING)


def test_it_can_be_started_by_hand():
    command = [
        sys.executable,
        "-m",
        "tests.rehearsal.endpoint",
        "--port",
        "0",
        "--latency-ms",
        "1",
        "--shape",
        "deepseek",
        "--faults",
        "html",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            port = int(line.split(":")[2].split("/")[0])
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/health")
            assert connection.getresponse().status == 200
            connection.close()
            assert "html" in process.stdout.readline()
        finally:
            process.terminate()


def test_a_request_that_is_no_chat_request_is_refused():
    with Endpoint() as endpoint:
        assert post(endpoint, ["not", "a", "body"])[0] == 400
        assert post(endpoint, body(), path="/v1/embeddings")[0] == 404


def test_a_port_that_cannot_be_is_one_sentence(capsys):
    assert main(["--port", "99999"]) == 1
    assert "port 99999 is none" in capsys.readouterr().err
