"""Prompt tokens that a prefix-caching server evaluates, beside the size of the token trie of all prompts."""

import asyncio
import itertools
import json
import os
import tempfile
import urllib.request
from dataclasses import replace

from helpers.asking import embedded
from helpers.asking.client import client_for
from helpers.asking.recordings import Recordings
from helpers.asking.run import Acquisition, missing_cells
from helpers.channels import sections
from helpers.channels.plan import add_keys, load_study
from helpers.channels.stacks import load_stacks
from tests.benchmarks import Figure


def trie_size(prompts):
    """Number of nodes of the trie of token sequences: what is left when every shared prefix counts once.

    In sorted order the trie grows by what a sequence does not share with the one before.
    """
    ordered = sorted(map(tuple, prompts))
    return sum(len(b) - _shared(a, b) for a, b in itertools.pairwise([(), *ordered]))


def _shared(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _post(url, key, body):
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def prompt_tokens(messages, base_url, key):
    """Tokens of a prompt as the server makes them: its chat template, then its tokenizer."""
    root = base_url.removesuffix("/v1")
    prompt = _post(f"{root}/apply-template", key, {"messages": messages})["prompt"]
    return _post(f"{root}/tokenize", key, {"content": prompt, "add_special": True, "parse_special": True})["tokens"]


def frozen(study, kind="generated-128", count=1):
    """Names of the first trajectories of which every state has its frozen view."""
    whole = [n for n in study.trajectories if all(study.view(n, s, kind) is not None for s in sections._ALL_STATES)]
    return whole[:count]


async def _asked(cells, stack, url, key, folder):
    """The recordings of ``cells``, asked of a server that runs already."""
    here = replace(stack, kind="api", base_url=url, key_variable=embedded._KEY_VARIABLE)
    store = Recordings(folder, stack.name)
    async with client_for(here) as client:
        await Acquisition(store, here, client, progress=False).run(cells)
    return store.table(["key", "prompt_tokens", "cached_tokens"]).to_pandas()


def ratio(name, plan, study, stack):
    """Figures of one plan: tokens evaluated, trie size and their ratio, through a fresh server."""
    plan = add_keys(plan, study, {stack.name: stack})
    with tempfile.TemporaryDirectory() as folder, embedded.running(stack) as (url, key):
        cells = missing_cells(plan, study, stack, Recordings(folder, stack.name))
        tokens = [prompt_tokens(body["messages"], url, key) for _, body in cells]
        os.environ[embedded._KEY_VARIABLE] = key
        try:
            found = asyncio.run(_asked(cells, stack, url, key, folder))
        finally:
            del os.environ[embedded._KEY_VARIABLE]
    counted = sorted(found["prompt_tokens"])
    assert counted == sorted(map(len, tokens)), "the server counts other prompts than it tokenises"
    evaluated = int((found["prompt_tokens"] - found["cached_tokens"]).sum())
    return [
        Figure(f"{name}: prompt tokens of {len(cells)} requests", sum(map(len, tokens)), "tokens"),
        Figure(f"{name}: size of their token trie", trie_size(tokens), "tokens"),
        Figure(f"{name}: tokens evaluated ÷ trie", evaluated / trie_size(tokens), "ratio", "<= 1.1"),
    ]


def ratios(count=1, stack_name="smollm2-135m"):
    """The global replay and the bridge's binary readout of ``count`` trajectories of the shipped study."""
    study = load_study("data/tasks.jsonl", "data/trajectories.jsonl", "data/views.jsonl")
    stack = load_stacks()[stack_name]
    ids = frozen(study, count=count)
    binary = sections.bridge(ids, stack.name, stack.name)
    binary = binary[binary["readout"] == "binary"].drop_duplicates()
    return [*ratio("global replay", sections.global_replay(ids, stack.name), study, stack),
            *ratio("binary readout", binary, study, stack)]  # fmt: skip
