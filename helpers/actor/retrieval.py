"""Two retrievers behind one interface: BM25 over the library, and live PubMed by NCBI E-utilities.

``retriever.search(query, limit)`` returns documents, best first:
``{"doc_id", "year", "design", "summary", "relevance"}``; ``relevance`` is the retriever's own unit.
"""

import html
import http.client
import io
import os
import re
import urllib.error
import warnings
from xml.parsers.expat import ExpatError

import numpy as np
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

from helpers.asking.client import without_key
from helpers.study.tasks import terms

_TAG = re.compile(r"<[^<>]+>")
_NO_DESIGN = ("journal article", "research support", "english abstract")  # publication types that are no study design


class RetrievalError(RuntimeError):
    """A search failed for good. The message says what the service answered."""


class LibraryRetriever:
    """BM25 (Lucene variant, k1 = 1.5, b = 0.75) over the library's summaries."""

    def __init__(self, library):
        with warnings.catch_warnings():  # inside a notebook its progress bar asks for a package that nothing here needs
            warnings.simplefilter("ignore")
            import bm25s  # only the actor needs it, and notebooks that read frozen traces start faster without

        self.library = list(library)
        if not self.library:
            raise RetrievalError("the library has no entry; restore data/library.jsonl from the repository.")
        self.index = bm25s.BM25(method="lucene")
        self.index.index([terms(entry["summary"]) for entry in self.library], show_progress=False)

    def search(self, query, limit=5):
        """Best library entries for a query; relevance is the BM25 score, and ties keep the library's order."""
        tokens = [t for t in dict.fromkeys(terms(query)) if t in self.index.vocab_dict]
        if not tokens:
            return []
        scores = self.index.get_scores(tokens)
        best = np.argsort(-scores, kind="stable")[:limit]
        return [{**self.library[i], "relevance": float(scores[i])} for i in best if scores[i] > 0]


def _worth_another_try(error):
    """Whether a failed E-utilities call may go through later: 429, a server's fault, a lost connection."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code == 429 or error.code >= 500
    return isinstance(error, (OSError, http.client.HTTPException))


class PubMedRetriever:
    """NCBI E-utilities through Biopython: ESearch, then EFetch of the abstracts.

    The tool name, e-mail and optional key come from NCBI_TOOL, NCBI_EMAIL and NCBI_API_KEY. Biopython
    keeps NCBI's published rate (three requests a second, ten with a key). What ``worth_another_try`` names
    is asked ``tries`` times, ``pause_s`` seconds apart.
    """

    def __init__(self, tries=4, pause_s=5):
        from Bio import Entrez

        email = os.environ.get("NCBI_EMAIL")
        if not email:
            raise RetrievalError("NCBI asks for a contact: set NCBI_EMAIL to your e-mail address and run again.")
        Entrez.email, Entrez.tool = email, os.environ.get("NCBI_TOOL", "asv-lab-report")
        Entrez.api_key = os.environ.get("NCBI_API_KEY") or None
        Entrez.max_tries = 1  # Biopython asks again after a 429 or 500 at once, without a pause
        self.entrez = Entrez
        again = retry_if_exception(_worth_another_try)
        self.retrying = Retrying(retry=again, stop=stop_after_attempt(tries), wait=wait_fixed(pause_s), reraise=True)

    def _ask(self, call, arguments):
        with getattr(self.entrez, call)(db="pubmed", retmode="xml", **arguments) as handle:
            body = handle.read()  # all of it, so that a connection that broke off is told from broken XML
        # Escaped text keeps "P < 0.05" apart from mark-up; plain_text unescapes it.
        return self.entrez.read(io.BytesIO(body.encode() if isinstance(body, str) else body), escape=True)

    def _read(self, call, name, **arguments):
        """The list ``name`` of an E-utility's answer; RetrievalError in one sentence for every fault."""
        try:
            answer = self.retrying(self._ask, call, arguments)
            if isinstance(answer, dict) and name in answer:
                return answer[name]
            fault = f"the answer holds no {name}; run again later."
        except urllib.error.HTTPError as error:
            wrong = error.code in (400, 401, 403)
            advice = "check NCBI_API_KEY, NCBI_EMAIL and NCBI_TOOL" if wrong else "run again later"
            fault = f"HTTP {error.code}; {advice}."
        except (OSError, http.client.HTTPException) as error:
            fault = f"no answer ({type(error).__name__}); check the network."
        except RuntimeError as error:  # an ERROR element inside well-formed XML
            fault = f"the service reported: {without_key(str(error), self.entrez.api_key)[:200]}"
        except (ExpatError, ValueError) as error:
            fault = f"unreadable XML ({type(error).__name__}); run again."
        raise RetrievalError(f"E-utilities {call}: {fault}") from None

    def search(self, query, limit=5):
        """Best PubMed records for a query; relevance is 1/rank in PubMed's own order."""
        if not query.strip():
            return []
        ids = self._read("esearch", "IdList", term=query, retmax=limit, sort="relevance")
        records = self._read("efetch", "PubmedArticle", id=",".join(ids), rettype="abstract") if ids else []
        found = [_pubmed_document(record) for record in records]
        return [{**d, "relevance": 1 / rank} for rank, d in enumerate(found, start=1) if d["summary"]]


def plain_text(text):
    """Text without inline mark-up: PubMed titles and abstracts carry <i>, <sub> and entities."""
    return " ".join(html.unescape(_TAG.sub("", str(text))).split())


def _pubmed_document(record):
    """One parsed PubmedArticle as a document; the abstract is the summary."""
    citation = record["MedlineCitation"]
    article = citation["Article"]
    date = article.get("Journal", {}).get("JournalIssue", {}).get("PubDate", {})
    year = re.search(r"\d{4}", str(date.get("Year") or date.get("MedlineDate") or ""))
    kinds = [plain_text(k).lower() for k in article.get("PublicationTypeList", [])]
    abstract = " ".join(plain_text(part) for part in article.get("Abstract", {}).get("AbstractText", []))
    return {
        "doc_id": f"pmid:{citation['PMID']}",
        "year": int(year.group()) if year else None,
        "design": next((k for k in kinds if not k.startswith(_NO_DESIGN)), "journal article"),
        "title": plain_text(article.get("ArticleTitle", "")),
        "summary": abstract,
    }
