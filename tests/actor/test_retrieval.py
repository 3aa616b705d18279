"""Retrievers: BM25 by its formula, PubMed over real HTTP on 127.0.0.1 with answers that NCBI once gave."""

import http.server
import math
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from helpers.actor.retrieval import LibraryRetriever, PubMedRetriever, RetrievalError, plain_text
from helpers.study.tasks import terms

ENTREZ = Path(__file__).resolve().parents[3] / "shared" / "data" / "ncbi_entrez"
KEY = "planted-ncbi-key-7f3a9c"

LIBRARY = [
    {"doc_id": "pmid:11", "year": 1999, "design": "cohort", "summary": "Zinc lozenges and the common cold in adults."},
    {
        "doc_id": "pmid:12",
        "year": 2004,
        "design": "trial",
        "summary": "Zinc lozenges shortened a cold; zinc tasted bad.",
    },
    {"doc_id": "pmid:13", "year": 2011, "design": "trial", "summary": "Honey eased night cough in small children."},
    {"doc_id": "pmid:14", "year": 2013, "design": "review", "summary": "Honey eased night cough in small children."},
    {
        "doc_id": "pmid:15",
        "year": 2016,
        "design": "survey",
        "summary": "Sleep diaries of night nurses over six months.",
    },
]


# -- BM25 ------------------------------------------------------------------------------------------


def test_terms_drop_stop_words_and_the_plural_s_and_keep_hyphens():
    assert terms("Do zinc LOZENGES help the cold-sore patients of 3 classes?") == [
        "zinc", "lozenge", "help", "cold-sore", "patient", "3", "classe",
    ]  # fmt: skip
    assert terms("glass bus") == ["glass", "bus"]


def bm25(query, documents, k1=1.5, b=0.75):
    """Lucene's BM25 by its definition, one score a document."""
    texts = [terms(d["summary"]) for d in documents]
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for text in texts:
        score = 0.0
        for word in terms(query):
            having = sum(word in t for t in texts)
            idf = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
            tf = text.count(word)
            score += idf * tf / (tf + k1 * (1 - b + b * len(text) / mean))
        scores.append(score)
    return scores


def test_relevance_is_the_lucene_bm25_score_by_its_definition():
    query = "zinc lozenges for a cold at night"
    slow = dict(zip([d["doc_id"] for d in LIBRARY], bm25(query, LIBRARY), strict=True))
    found = LibraryRetriever(LIBRARY).search(query)
    assert {d["doc_id"]: d["relevance"] for d in found} == pytest.approx({i: s for i, s in slow.items() if s}, rel=1e-5)


def test_documents_come_best_first_with_all_their_fields():
    found = LibraryRetriever(LIBRARY).search("zinc for a cold", limit=2)
    assert [d["doc_id"] for d in found] == ["pmid:12", "pmid:11"]
    assert found[0]["relevance"] > found[1]["relevance"] > 0
    assert {k: found[0][k] for k in LIBRARY[1]} == LIBRARY[1]


def test_ties_keep_the_order_of_the_library_also_where_the_limit_cuts():
    copies = [{**LIBRARY[2], "doc_id": f"pmid:{n}"} for n in range(40, 70)]
    retriever = LibraryRetriever([*copies, *LIBRARY])
    assert [d["doc_id"] for d in retriever.search("honey cough", limit=7)] == [f"pmid:{n}" for n in range(40, 47)]


def test_the_same_query_gives_the_same_ranking_from_a_second_index():
    query = "night cough in children or nurses"
    first = LibraryRetriever(LIBRARY)
    assert first.search(query) == first.search(query) == LibraryRetriever(LIBRARY).search(query)


@pytest.mark.parametrize("query", ["", "  ?! ", "the of and", "xylophone quark"])
def test_a_query_without_a_known_content_word_finds_nothing(query):
    assert LibraryRetriever(LIBRARY).search(query) == []


def test_unknown_words_change_nothing_beside_known_ones():
    retriever = LibraryRetriever(LIBRARY)
    assert retriever.search("honey xylophone") == retriever.search("honey")


def test_a_repeated_word_counts_once():
    retriever = LibraryRetriever(LIBRARY)
    assert retriever.search("zinc zinc zinc honey") == retriever.search("zinc honey")


def test_documents_that_share_no_word_are_left_out_even_below_the_limit():
    assert len(LibraryRetriever(LIBRARY).search("honey", limit=50)) == 2


def test_an_empty_library_is_refused_in_one_sentence():
    with pytest.raises(RetrievalError, match=r"^the library has no entry; restore .*\.$"):
        LibraryRetriever([])


# -- PubMed over loopback --------------------------------------------------------------------------


class Eutils(http.server.BaseHTTPRequestHandler):
    """Answers each call with the next entry of its script and keeps what it was asked."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        address = urllib.parse.urlsplit(self.path)
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        call = Path(address.path).stem
        asked = dict(urllib.parse.parse_qsl(address.query or sent))
        self.server.asked.append((call, asked))
        waiting = self.server.script.get(call, [])
        status, body, kind = waiting.pop(0) if waiting else (404, b"not in the script", "text/html")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) + 100 * (status == 299)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_):
        pass


class Loopback(urllib.request.BaseHandler):
    """Sends every https request to one port of 127.0.0.1, by plain HTTP, whatever host it names."""

    handler_order = 100  # before the standard https handler, so that nothing leaves this machine

    def __init__(self, port):
        self.port = port
        self.hosts = []

    def https_open(self, request):
        self.hosts.append(request.host)
        address = f"http://127.0.0.1:{self.port}{request.selector}"
        return self.parent.open(urllib.request.Request(address, data=request.data), timeout=10)


@pytest.fixture
def eutils(monkeypatch):
    """A loopback E-utilities server; ``script`` holds the answers, ``asked`` what came in."""
    monkeypatch.setenv("NCBI_EMAIL", "reader@example.org")
    monkeypatch.setenv("NCBI_TOOL", "test-of-the-report")
    monkeypatch.setenv("NCBI_API_KEY", KEY)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Eutils)
    server.script, server.asked = {}, []
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    server.loopback = Loopback(server.server_port)
    urllib.request.install_opener(urllib.request.build_opener(urllib.request.ProxyHandler({}), server.loopback))
    yield server
    urllib.request.install_opener(None)
    server.shutdown()
    server.server_close()


def xml(name, status=200):
    """A scripted answer with the bytes that NCBI gave."""
    if not ENTREZ.is_dir():
        pytest.skip(f"recorded NCBI answers are not at {ENTREZ}; they are not part of the project")
    return status, (ENTREZ / f"{name}.xml").read_bytes(), "text/xml"


def fault(status, text="busy"):
    return status, text.encode(), "text/html"


def search(query="aspirin and telomeres", *, tries=3, **options):
    return PubMedRetriever(tries=tries, pause_s=0.01).search(query, **options)


def test_a_good_search_gives_documents_with_year_design_title_and_plain_summary(eutils):
    eutils.script = {"esearch": [xml("esearch1")], "efetch": [xml("pubmed4")]}
    (found,) = search()
    assert (found["doc_id"], found["year"], found["design"]) == ("pmid:27797938", 2017, "observational study")
    assert found["title"] == (
        "Leucocyte telomere length, genetic variants at the TERT gene region and risk of pancreatic cancer."
    )
    assert found["summary"].startswith("Telomere shortening occurs as an early event")
    assert found["relevance"] == 1.0
    assert eutils.loopback.hosts == ["eutils.ncbi.nlm.nih.gov"] * 2


def test_the_calls_carry_the_query_the_ids_in_pubmed_order_and_who_asks(eutils):
    eutils.script = {"esearch": [xml("esearch3")], "efetch": [xml("pubmed2")]}
    search("zinc & colds", limit=6)
    (first, asked), (second, fetched) = eutils.asked
    assert (first, second) == ("esearch", "efetch")
    assert (asked["term"], asked["retmax"], asked["sort"], asked["db"]) == ("zinc & colds", "6", "relevance", "pubmed")
    assert fetched["id"] == "11121077,11121076,11121075,11121074,11121073,11121072"
    for call in (asked, fetched):
        assert (call["email"], call["tool"], call["api_key"]) == ("reader@example.org", "test-of-the-report", KEY)


def test_without_a_key_none_is_sent_and_the_tool_has_a_name_of_its_own(eutils, monkeypatch):
    monkeypatch.delenv("NCBI_API_KEY")
    monkeypatch.delenv("NCBI_TOOL")
    eutils.script = {"esearch": [xml("esearch8")]}
    search()
    assert "api_key" not in eutils.asked[0][1]
    assert eutils.asked[0][1]["tool"] == "asv-lab-report"


def test_a_missing_email_is_one_clear_sentence(monkeypatch):
    monkeypatch.delenv("NCBI_EMAIL", raising=False)
    with pytest.raises(RetrievalError, match=r"^NCBI asks for a contact: set NCBI_EMAIL .* and run again\.$"):
        PubMedRetriever()


def test_several_records_are_ranked_in_pubmed_order_and_one_without_abstract_is_left_out(eutils):
    eutils.script = {"esearch": [xml("esearch1")] * 2, "efetch": [xml("pubmed2"), xml("pubmed1")]}
    both = search()
    assert [(d["doc_id"], d["relevance"]) for d in both] == [("pmid:11748933", 1.0), ("pmid:11700088", 0.5)]
    assert [(d["doc_id"], d["relevance"]) for d in search()] == [("pmid:9997", 0.5)]


def test_who_paid_for_a_study_is_not_taken_for_its_design(eutils):
    eutils.script = {"esearch": [xml("esearch1")], "efetch": [xml("pubmed2")]}
    assert [d["design"] for d in search()] == ["journal article", "journal article"]


def test_zero_hits_are_an_empty_list_and_nothing_is_fetched(eutils):
    eutils.script = {"esearch": [xml("esearch8")]}
    assert search() == []
    assert [call for call, _ in eutils.asked] == ["esearch"]


def test_an_empty_query_is_not_sent(eutils):
    assert search("  ") == []
    assert eutils.asked == []


def test_inline_tags_and_entities_are_gone_and_comparisons_stay(eutils):
    eutils.script = {"esearch": [xml("esearch1")], "efetch": [xml("pubmed6")]}
    (found,) = search()
    assert found["title"].startswith('A "Blood Relationship" Between the Overlooked Minimum Lactate')
    assert "27% lower than MLSS (P < 0.001; ES: 3.54). LEmin+1mM was not different" in found["summary"]
    assert "<i>" not in found["summary"] and "&lt;" not in found["summary"]


def test_text_between_a_less_than_and_a_greater_than_sign_is_not_taken_for_a_tag(eutils):
    status, body, kind = xml("pubmed6")
    edited = body.replace(b"ES: 3.54)", b"ES &gt; 3.54)")
    assert edited != body
    eutils.script = {"esearch": [xml("esearch1")], "efetch": [(status, edited, kind)]}
    assert "(P < 0.001; ES > 3.54)" in search()[0]["summary"]


@pytest.mark.parametrize(
    ("name", "says"),
    [("esummary8", "Neither query_key nor id specified"), ("epost2", "Invalid db name specified: nothing")],
)
def test_an_error_inside_well_formed_xml_is_told_and_not_taken_for_zero_hits(eutils, name, says):
    eutils.script = {"esearch": [xml(name)]}
    with pytest.raises(RetrievalError, match=f"esearch: the service reported: {says}"):
        search()
    assert len(eutils.asked) == 1


@pytest.mark.parametrize("kept", [0.3, 0.95])
def test_xml_that_breaks_off_is_refused(eutils, kept):
    status, body, kind = xml("pubmed2")
    eutils.script = {"esearch": [xml("esearch1")], "efetch": [(status, body[: int(kept * len(body))], kind)]}
    with pytest.raises(RetrievalError, match=r"efetch: unreadable XML \(CorruptedXMLError\); run again\."):
        search()


@pytest.mark.parametrize("kind", ["text/xml", "text/plain"])
def test_a_page_instead_of_xml_is_refused(eutils, kind):
    eutils.script = {"esearch": [(200, b"<html><body>maintenance<br></body></html>", kind)]}
    with pytest.raises(RetrievalError, match=r"esearch: unreadable XML"):
        search()


@pytest.mark.parametrize("name", ["esummary1", "einfo1"])
def test_well_formed_xml_of_another_service_is_refused(eutils, name):
    eutils.script = {"esearch": [xml(name)]}
    with pytest.raises(RetrievalError, match=r"esearch: the answer holds no IdList; run again later\."):
        search()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_or_faulty_service_is_asked_again(eutils, status):
    eutils.script = {
        "esearch": [fault(status), xml("esearch1")],
        "efetch": [fault(status), fault(status), xml("pubmed7")],
    }
    assert [d["doc_id"] for d in search()] == ["pmid:29963580"]
    assert [call for call, _ in eutils.asked] == ["esearch"] * 2 + ["efetch"] * 3


def test_an_answer_cut_off_by_the_connection_is_asked_again(eutils):
    _, body, kind = xml("pubmed2")
    eutils.script = {"esearch": [xml("esearch1")], "efetch": [(299, body[:4000], kind), xml("pubmed2")]}
    assert len(search()) == 2


def test_the_last_try_ends_with_one_sentence_that_names_the_call_and_the_code(eutils):
    eutils.script = {"esearch": [fault(503)] * 9}
    with pytest.raises(RetrievalError, match=r"^E-utilities esearch: HTTP 503; run again later\.$"):
        search(tries=2)
    assert len(eutils.asked) == 2


def test_a_refused_request_is_not_asked_again_and_says_what_to_check(eutils):
    eutils.script = {"esearch": [fault(400), xml("esearch1")]}
    with pytest.raises(RetrievalError, match=r"HTTP 400; check NCBI_API_KEY, NCBI_EMAIL and NCBI_TOOL\.$"):
        search()
    assert len(eutils.asked) == 1


def test_no_connection_at_all_says_to_check_the_network(eutils):
    eutils.shutdown()
    eutils.server_close()
    with pytest.raises(RetrievalError, match=r"esearch: no answer \(URLError\); check the network\.$"):
        search(tries=2)


@pytest.mark.parametrize("answer", ["status", "error element", "garbage"])
def test_the_key_never_shows_in_an_error(eutils, answer):
    told = f"API key {KEY} is over its limit"
    bodies = {
        "status": fault(403, told),
        "garbage": (200, told.encode(), "text/xml"),
        "error element": (200, xml("epost2")[1].replace(b"Invalid db name", told.encode()), "text/xml"),
    }
    eutils.script = {"esearch": [bodies[answer]]}
    with pytest.raises(RetrievalError) as caught:
        search()
    assert eutils.asked[0][1]["api_key"] == KEY
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_plain_text_strips_nested_marks_and_joins_white_space():
    assert plain_text("CO<sub>2</sub> at\n 5&lt;b&gt;<i>x<b>y</b></i> &amp; more") == "CO2 at 5<b>xy & more"
