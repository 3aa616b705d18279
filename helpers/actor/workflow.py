"""The actor: an eleven-step evidence workflow whose every step is a JSON merge patch.

Classification, planning, synthesis, revision and verification ask a language model through
``ask(prompt, max_tokens) -> str``; each has a deterministic fallback that is recorded as such.
The other steps are deterministic. The actor never sees the candidates or the target.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, field

from helpers.study.tasks import terms
from helpers.study.traces import STEPS, apply_patch

_QUESTION_TYPES = ("intervention", "risk", "mechanism", "diagnostic", "other")
# Without the first it searches with the question's own words, without the second only the final audit is made.
_COMPONENTS = ("planning", "reflection")
_ABSTAIN = "The retrieved evidence is insufficient to answer the question."
_ABSTAINS = re.compile(r"\b(insufficient|not enough|no evidence|cannot be (?:answered|determined)|unclear)\b", re.I)
_STRONG = re.compile(
    r"\b(proves?|proven|definitive(?:ly)?|always|never|certainly|undoubtedly|guarantees?|conclusive(?:ly)?|all patients"
    r"|in all cases|should be|must be|is recommended)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# Words that frame a claim and state nothing themselves.
_FRAMING = frozenset(
    "yes no not evidence show suggest indicate provided given source support claim study found s".split()
)
_TYPE_HINTS = {
    "diagnostic": r"diagnos|predict|detect|accura|screen|imaging|identif|marker|\btest",
    "mechanism": r"mechanis|express|mediat|receptor|\brats?\b|\bmice\b|cells?\b|through which|role",
    "intervention": r"treat|surg|therap|effective|program|repair|vaccin|drug|training|compare",
    "risk": r"risk|associat|mortality|incidence|more often|linked|related|affect",
}


@dataclass(frozen=True)
class Workflow:
    """The evidence workflow with its retriever, its model and its declared thresholds."""

    retriever: object  # has ``search(query, limit)``
    ask: Callable  # ``(prompt, max_tokens) -> str``; may raise, the step then falls back
    _: KW_ONLY
    relevance: float  # smallest relevance, in the retriever's unit, at which a document becomes an artifact
    support: float = 0.5  # share of a sentence's content words that its sources must contain (audit threshold)
    keywords: int = 9  # question words that a checked search query holds at least, as far as the question has them
    artifacts: int = 1  # documents acquired at most
    sentences: int = 3  # evidence sentences kept from them
    leave_out: Collection = ()  # components (see COMPONENTS) that this actor does without
    fixed: dict = field(default_factory=dict)  # step name to patch: set instead of computed; all else runs as usual
    meter: Callable = dict  # running totals of what the model has used, ``{name: number}``; a step's share is its cost

    def __post_init__(self):
        if unknown := set(self.leave_out) - set(_COMPONENTS):
            raise ValueError(f"leave_out {sorted(unknown)}; use {', '.join(_COMPONENTS)}.")

    def run(self, task):
        """One frozen trajectory row: x0, eleven steps, final_score and success."""
        state = {"question": task["question"], "artifacts": [], "evidence": [], "answer": ""}
        row = {"trajectory_id": f"traj-{task['task_id']}", "task_id": task["task_id"], "x0": state, "steps": []}
        memory = {"documents": {}}
        for action in STEPS:
            memory["calls"], used = 0, self.meter()
            patch, observation, mode = self._step(action, state, memory)
            state = apply_patch(state, patch)
            cost = {"calls": memory["calls"], **{k: n - used.get(k, 0) for k, n in self.meter().items()}}
            step = {"action": action, "patch": patch, "observation": observation, "mode": mode, "cost": cost}
            row["steps"].append(step)
        audit = memory["audit"]
        score = {"final_score": audit["final_score"], "success": audit["final_score"] == 1.0}
        return {**row, "relevance": round(memory["relevance"], 3), "audit": audit, **score}

    def _step(self, action, state, memory):
        """Patch, observation and mode of one step: computed, left out, or set from outside."""
        if action in self.fixed:
            patch = self.fixed[action]
            if action == "retrieve":
                memory["documents"] = {a["doc_id"]: {**a, "summary": a["text"]} for a in patch.get("artifacts", [])}
                memory["relevance"] = 0.0
            return patch, f"{action} was set from outside", "deterministic"
        if "planning" in self.leave_out and action in ("plan", "validate_plan"):
            query = _question_query(state["question"])
            return ({"plan": {"query": query}} if action == "plan" else {}), "this actor does not plan", "deterministic"
        if "reflection" in self.leave_out and action in ("audit", "revise"):
            return {}, "this actor does not reflect", "deterministic"
        return getattr(self, action)(state, memory)

    def _ask(self, memory, prompt, max_tokens, accept):
        """The model's first line if ``accept`` takes it, else None."""
        memory["calls"] += 1
        try:
            lines = self.ask(prompt, max_tokens).strip().splitlines()
        except (OSError, RuntimeError):
            return None
        return accept(lines[0].strip(" \"'*`")) if lines else None

    def _issues(self, state, memory):
        return audit_answer(state, memory["documents"], self.support)["issues"]

    def _written(self, state, memory, prompt):
        """An answer from the model, else the first quote, else an abstention; and the step's mode."""
        text = self._ask(memory, prompt, 56, _accept_answer)
        fallback = state["evidence"][0]["quote"] if state["evidence"] else _ABSTAIN
        return text or fallback, "llm" if text else "fallback"

    # The eleven steps: state and memory in; patch, observation and mode out.

    def classify(self, state, memory):
        prompt = (
            "Classify the biomedical question as one of: " + ", ".join(_QUESTION_TYPES) + ".\n"
            f"Question: {state['question']}\nAnswer with one word."
        )
        word = self._ask(memory, prompt, 6, lambda s: next((t for t in _QUESTION_TYPES if t in s.lower()), None))
        kind = word or _guess_type(state["question"])
        return {"question_type": kind}, f"classified as {kind}", "llm" if word else "fallback"

    def plan(self, state, memory):
        prompt = (
            "Write a PubMed search query for this question: four to eight keywords that name the population, "
            "the exposure or treatment, and the outcome. No operators, no explanation.\n"
            f"Question: {state['question']}\nKeywords:"
        )
        told = self._ask(memory, prompt, 32, _accept_query)
        query, mode = told or _question_query(state["question"]), "llm" if told else "fallback"
        return {"plan": {"query": query}}, f"planned a search with {len(query.split())} keywords", mode

    def validate_plan(self, state, memory):
        planned, wanted = (dict.fromkeys(terms(text)) for text in (state["plan"]["query"], state["question"]))
        missing = [t for t in wanted if t not in planned]
        added = missing[: max(0, self.keywords - len(planned.keys() & wanted.keys()))]
        if not added:
            return {"plan": {"checked": True}}, "plan accepted", "deterministic"
        query = " ".join([state["plan"]["query"], *added])
        return {"plan": {"query": query, "checked": True}}, f"added to the query: {', '.join(added)}", "deterministic"

    def retrieve(self, state, memory):
        found = self.retriever.search(state["plan"]["query"], 5)
        kept = [d for d in found if d["relevance"] >= self.relevance][: self.artifacts]
        memory["documents"] = {d["doc_id"]: d for d in kept}
        memory["relevance"] = found[0]["relevance"] if found else 0.0
        if not kept:
            return {}, f"{len(found)} hits, none relevant enough; no artifact acquired", "deterministic"
        return {"artifacts": [*map(as_artifact, kept)]}, f"{len(found)} hits, {len(kept)} acquired", "deterministic"

    def extract(self, state, memory):
        if not state["artifacts"]:
            return {}, "nothing to extract", "deterministic"
        evidence = _best_sentences(state["artifacts"], state["question"], self.sentences)
        released = [{k: v for k, v in a.items() if k != "text"} for a in state["artifacts"]]
        said = f"kept {len(evidence)} sentences, released the full text"
        return {"artifacts": released, "evidence": evidence}, said, "deterministic"

    def synthesize(self, state, memory):
        if not state["evidence"]:
            prompt = f"Answer the biomedical question in one sentence.\nQuestion: {state['question']}\nAnswer:"
        else:
            prompt = (
                "Answer the question in one or two sentences from the evidence only.\n"
                f"Evidence:\n{_evidence_text(state)}\nQuestion: {state['question']}\nAnswer:"
            )
        text, mode = self._written(state, memory, prompt)
        return {"answer": text, "citations": sources(state)}, f"drafted {len(sentences(text))} sentences", mode

    def audit(self, state, memory):
        if issues := self._issues(state, memory):
            return {"issues": issues}, f"audit found {len(issues)} issues", "deterministic"
        return {}, "audit found no issue", "deterministic"

    def revise(self, state, memory):
        if not state.get("issues"):
            return {}, "nothing to revise", "deterministic"
        held, nothing = "Use the words and figures of the evidence.", f"There is none, so write: {_ABSTAIN}"
        prompt = (
            f"Rewrite the answer in one or two sentences so that the evidence supports every statement. "
            f"{held if state['evidence'] else nothing}\n"
            f"{evidence_and_answer(state)}\nProblems: {'; '.join(state['issues'])}\nRewritten answer:"
        )
        text, mode = self._written(state, memory, prompt)
        cited = [] if _ABSTAINS.search(text) else sources(state)
        return {"issues": None, "answer": text, "citations": cited}, "rewrote the answer", mode

    def verify(self, state, memory):
        prompt = (
            "Is the answer supported by the evidence? Reply with one word: supported, partly, or unsupported.\n"
            f"{evidence_and_answer(state)}\nReply:"
        )
        word = self._ask(memory, prompt, 6, _accept_verdict)
        verdict = word or ("unsupported" if self._issues(state, memory) else "supported")
        return {"verification": verdict}, f"verification says {verdict}", "llm" if word else "fallback"

    def post_audit(self, state, memory):
        memory["audit"] = audit_answer(state, memory["documents"], self.support)
        if issues := memory["audit"]["issues"]:
            return {"issues": issues}, f"{len(issues)} issues remain", "deterministic"
        return {}, "no issue remains", "deterministic"

    def finalize(self, state, memory):
        status = "abstained" if _ABSTAINS.search(state["answer"]) else "answered"
        return {"status": status}, "closed the case", "deterministic"


def _question_query(question):
    """A search query without a model: the question's first eight content words."""
    return " ".join(list(dict.fromkeys(terms(question)))[:8])


def _guess_type(question):
    """Question type by keyword, for when the model's answer is unusable."""
    return next((kind for kind, hint in _TYPE_HINTS.items() if re.search(hint, question, re.I)), "other")


def _accept_query(text):
    """A model's search query without operators and punctuation; None unless two to twelve words remain."""
    words = re.findall(r"[A-Za-z0-9][A-Za-z0-9-]*", re.sub(r"\b(AND|OR|NOT)\b", " ", text))
    return " ".join(words[:12]) if len(words) >= 2 else None


def _accept_answer(text):
    """A model's answer of at least four words, cut after the last full sentence when it has one."""
    text = " ".join(text.split())
    whole = text[: text.rfind(".") + 1]
    return next((t for t in (whole, text) if len(t.split()) >= 4), None)


def _accept_verdict(text):
    """One of the three verdicts, or None."""
    words = re.findall(r"[a-z]+", text.lower())
    return next((w for w in words if w in ("supported", "partly", "unsupported")), None)


def sentences(text):
    """A text cut into sentences; decimal points and abbreviations such as 'vs.' do not end one."""
    return [s.strip() for s in re.split(r"(?<=[.!?])(?<!vs\.)(?<!e\.g\.)(?<!i\.e\.)\s+(?=[A-Z])", text) if s.strip()]


def _best_sentences(artifacts, question, limit):
    """The sentences of the artifacts that share most words with the question, in their own order."""
    wanted = set(terms(question))
    every = [(a["doc_id"], s) for a in artifacts for s in sentences(a["text"])]
    overlap = [len(wanted.intersection(terms(s))) + 0.5 * bool(_NUMBER.search(s)) for _, s in every]
    keep = sorted(sorted(range(len(every)), key=lambda i: -overlap[i])[:limit])
    return [{"doc_id": every[i][0], "quote": every[i][1]} for i in keep]


def _evidence_text(state):
    """Evidence sentences of a state with their source, one a line."""
    return "\n".join(f"[{e['doc_id']}] {e['quote']}" for e in state["evidence"])


def evidence_and_answer(state):
    """Evidence and answer of a state, as prompts show them."""
    return f"Evidence:\n{_evidence_text(state) or '(none)'}\nAnswer: {state['answer']}"


def sources(state):
    """Ids of the documents that a state's evidence comes from, sorted."""
    return sorted({e["doc_id"] for e in state["evidence"]})


def as_artifact(document):
    """A retrieved document as a state holds it."""
    return {**{name: document[name] for name in ("doc_id", "year", "design")}, "text": document["summary"]}


def audit_answer(state, documents, support):
    """Claim support, citation precision and overclaim of the answer, with the issues found.

    ``final_score`` is the mean of claim support, citation precision and (1 - overclaim), in [0, 1].
    A sentence that says the evidence is insufficient claims nothing, so abstaining is no fault, but an
    answer that cites nothing has citation precision 0: it is safe, and it does not answer.
    """
    answer, cited = state["answer"], state.get("citations") or []
    source = " ".join(documents[c]["summary"] for c in cited if c in documents)
    claims = (claim for claim in sentences(answer) if not _ABSTAINS.search(claim))
    supported = [_is_supported(claim, source, support) for claim in claims]
    issues = [f"claim {n} has no support in its sources" for n, ok in enumerate(supported, start=1) if not ok]
    precision = sum(c in documents for c in cited) / len(cited) if cited else 0.0
    issues += ["the answer cites nothing"] if supported and not cited else []
    issues += [f"{c} is cited but was not retrieved" for c in cited if c not in documents]
    strong = [m.group(0).lower() for m in _STRONG.finditer(answer) if m.group(0).lower() not in source.lower()]
    issues += [f"stronger than the evidence: {w}" for w in dict.fromkeys(strong)]
    claim_support, overclaim = sum(supported) / len(supported) if supported else 1.0, float(bool(strong))
    score = round((claim_support + precision + (1 - overclaim)) / 3, 6)
    return {"claim_support": claim_support, "citation_precision": precision, "overclaim": overclaim,
            "final_score": score, "issues": issues}  # fmt: skip


def _is_supported(claim, source, threshold):
    """Whether a claim's numbers all occur in the source, and enough of its content words do."""
    words = [t for t in terms(claim) if not t.isdigit() and t not in _FRAMING]
    known = set(terms(source))
    figures = set(_NUMBER.findall(claim)) - set(_NUMBER.findall(source))
    share = sum(w in known for w in words) / len(words) if words else 0.0
    return not figures and share >= threshold
