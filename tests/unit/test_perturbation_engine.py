"""The perturbation engine: order, duplicates, packing, memory, and what it leaves behind."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
)

from tests.planted import MASK, PAD, VOCABULARY, bag, row_of
from tests.state import same, snapshot
from tests.tiny import tiny_bert, tiny_bert_qa, tiny_tokenizer
from tokenlight.capture import perturbation
from tokenlight.capture.live import LiveModel
from tokenlight.capture.perturbation import Original, StandIns, Variant, stream_logits
from tokenlight.data.tokens import Tokens
from tokenlight.errors import BadInput, TextTooLong
from tokenlight.inputs.encode import encode

TOKENIZER = tiny_tokenizer()
STAND_INS = StandIns(PAD, MASK)


def rows(count, *, longest=20, seed=0, vocabulary=VOCABULARY):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, longest, count)
    return [Tokens.from_ids([generator.integers(5, vocabulary, n)]).rows[0] for n in lengths]


def bare(model, row):
    arguments = {"input_ids": torch.tensor([row.ids])}
    if row.token_types is not None:
        arguments["token_type_ids"] = torch.tensor([row.token_types])
    with torch.no_grad():
        return model(attention_mask=torch.tensor([row.attention]), **arguments)


def test_logits_are_those_of_the_bare_model_in_the_order_given():
    model = tiny_bert()
    given_rows = rows(60)
    found = list(stream_logits(LiveModel(model), given_rows, batch_tokens=100))
    for row, logits in zip(given_rows, found, strict=True):
        np.testing.assert_allclose(logits, bare(model, row).logits[0], atol=1e-10)


def test_logits_of_a_span_head_end_with_the_text():
    model = tiny_bert_qa()
    given_rows = rows(9)
    for row, logits in zip(given_rows, stream_logits(LiveModel(model), given_rows), strict=True):
        whole = bare(model, row)
        assert logits.shape == (len(row), 2)
        np.testing.assert_allclose(logits[:, 0], whole.start_logits[0], atol=1e-10)
        np.testing.assert_allclose(logits[:, 1], whole.end_logits[0], atol=1e-10)


def test_a_duplicate_runs_once():
    model = bag()
    live = LiveModel(model)
    list(stream_logits(live, rows(1)))  # the first use of a model checks it
    model.forwards.clear()
    given_rows = rows(10) * 5
    found = list(stream_logits(live, given_rows))
    assert sum(count for count, _ in model.forwards) == len({row.ids for row in given_rows})
    for i, logits in enumerate(found):
        np.testing.assert_array_equal(logits, found[i % 10])


def test_rows_that_differ_in_attention_or_segments_alone_are_no_duplicates():
    row = encode("good film", TOKENIZER, limit=None)
    hidden = row.masked([False, True, False, False])
    other = type(row)(**{**_fields(row), "token_types": (0, 1, 1, 1)})
    model = tiny_bert()
    found = list(stream_logits(LiveModel(model), [row, hidden, other]))
    for one, logits in zip((row, hidden, other), found, strict=True):
        np.testing.assert_allclose(logits, bare(model, one).logits[0], atol=1e-10)
    assert len({tuple(np.round(logits, 6)) for logits in found}) == 3


def test_a_row_without_segment_ids_does_not_take_them_from_its_neighbours():
    pair = encode(("good film", "the plot"), TOKENIZER, limit=None)
    plain = type(pair)(**{**_fields(pair), "token_types": None})
    model = tiny_bert()
    first, second = stream_logits(LiveModel(model), [pair, plain])
    np.testing.assert_allclose(first, bare(model, pair).logits[0], atol=1e-10)
    np.testing.assert_allclose(second, bare(model, plain).logits[0], atol=1e-10)


def _fields(row):
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def test_no_batch_exceeds_the_token_budget_and_none_is_longer_than_needed():
    model = bag()
    live = LiveModel(model)
    given_rows = rows(50)
    list(stream_logits(live, given_rows[:1]))
    model.forwards.clear()
    list(stream_logits(live, given_rows, batch_tokens=64))
    assert all(count * width <= 64 for count, width in model.forwards)
    spent = sum(count * width for count, width in model.forwards)
    assert spent < 1.3 * sum(len(row) for row in given_rows)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("you can't allocate memory: 9 GB")]
)
def test_out_of_memory_halves_the_batch_and_goes_on(error):
    model = bag()
    given_rows = rows(40)
    live = LiveModel(model)
    expected = list(stream_logits(live, given_rows))
    attempts = []

    def fail(_module, _arguments, keywords):
        ids = keywords["input_ids"]
        attempts.append(ids.shape[0])
        if ids.numel() > 60:
            raise error

    handle = model.register_forward_pre_hook(fail, with_kwargs=True)
    found = list(stream_logits(live, given_rows, batch_tokens=500))
    handle.remove()
    np.testing.assert_allclose(found, expected, atol=1e-12)
    failed = sum(1 for _ in itertools.takewhile(lambda n: n > 3, attempts))
    assert failed < 8, "the smaller budget is kept for the rest of the stream"


def test_out_of_memory_with_a_single_row_is_raised():
    model = bag()
    live = LiveModel(model)
    list(stream_logits(live, rows(1)))

    def fail(_module, _arguments):
        raise torch.OutOfMemoryError

    handle = model.register_forward_pre_hook(fail)
    with pytest.raises(torch.OutOfMemoryError):
        list(stream_logits(live, rows(8)))
    handle.remove()


def test_another_error_is_not_taken_for_lack_of_memory():
    model = bag()
    live = LiveModel(model)
    list(stream_logits(live, rows(1)))
    handle = model.register_forward_pre_hook(_fail)
    before = snapshot(model)
    with pytest.raises(RuntimeError, match="on purpose"):
        list(stream_logits(live, rows(8)))
    assert same(before, snapshot(model))
    handle.remove()


def _fail(_module, _arguments):
    raise RuntimeError("on purpose")


def test_a_stream_is_read_a_window_at_a_time(monkeypatch):
    monkeypatch.setitem(perturbation.WINDOW, "cpu", 8)
    taken = []

    def stream():
        for row in rows(100):
            taken.append(row)
            yield row

    answers = stream_logits(LiveModel(bag()), stream())
    next(answers)
    assert len(taken) == 8
    assert len(list(answers)) == 99


@pytest.mark.parametrize("ahead", [1, 3])
def test_windows_launched_ahead_come_back_in_order(monkeypatch, ahead):
    live = LiveModel(bag())
    given_rows = rows(50)
    expected = list(stream_logits(live, given_rows))
    monkeypatch.setitem(perturbation.WINDOW, "cpu", 7)
    monkeypatch.setitem(perturbation.AHEAD, "cpu", ahead)
    np.testing.assert_allclose(list(stream_logits(live, given_rows)), expected, atol=1e-12)
    assert list(stream_logits(live, [])) == []


@pytest.mark.gpu
def test_a_gpu_gives_the_answers_of_the_processor():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = tiny_bert()
    given_rows = rows(5000, longest=40, vocabulary=140)
    expected = list(stream_logits(LiveModel(model), given_rows))
    found = list(stream_logits(LiveModel(model.to("cuda")), given_rows))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_the_model_is_as_before():
    model = tiny_bert().train()
    list(stream_logits(LiveModel(model), rows(3)))  # transformers notes things on the first pass
    before = snapshot(model)
    list(stream_logits(LiveModel(model), rows(12)))
    assert same(before, snapshot(model))


@pytest.mark.parametrize("vocabulary", [40, 8])
def test_a_model_without_padding_id_is_read_right(vocabulary):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=vocabulary, n_embd=16, n_layer=2, n_head=2, n_positions=32,
                        bos_token_id=0, eos_token_id=0, num_labels=3)  # fmt: skip
    model = GPT2ForSequenceClassification(config).double().eval()
    assert model.config.pad_token_id is None
    generator = np.random.default_rng(1)
    given_rows = [
        Tokens.from_ids([generator.integers(0, vocabulary, n)]).rows[0] for n in (3, 9, 9, 5, 20)
    ]
    found = list(stream_logits(LiveModel(model), given_rows))
    for row, logits in zip(given_rows, found, strict=True):
        np.testing.assert_allclose(logits, bare(model, row).logits[0], atol=1e-10)
    assert model.config.pad_token_id is None


def test_a_row_the_model_cannot_read_is_refused_in_words():
    live = LiveModel(tiny_bert())
    with pytest.raises(TextTooLong, match="60 tokens but this model reads at most 48"):
        list(stream_logits(live, [Tokens.from_ids([[5] * 60]).rows[0]]))
    with pytest.raises(BadInput, match="run from 5 to 999, but this model knows 0 to 149"):
        list(stream_logits(live, [Tokens.from_ids([[5, 999]]).rows[0]]))


# --- changed texts ---------------------------------------------------------------------------------


def test_deletion_keeps_separators_and_segment_ids_of_a_pair():
    row = encode(("good film", "bad plot"), TOKENIZER, limit=None)
    original = Original(row, STAND_INS)
    assert [row.pieces[i] for i in original.rankable] == ["good", "film", "bad", "plot"]
    left = original.without([1, 4, 5])
    assert TOKENIZER.convert_ids_to_tokens(left.ids.tolist()) == ["[CLS]", "film", "[SEP]", "[SEP]"]
    assert left.token_types.tolist() == [0, 0, 0, 1]
    assert left.attention.tolist() == [1, 1, 1, 1]
    assert left.place_of(2) == 1
    assert left.place_of(4) is None


def test_replacing_keeps_places_and_attention_hiding_takes_attention_away():
    original = Original(row_of([7, 8, 9]), STAND_INS)
    padded, hidden = original.replaced([2]), original.hidden([2, 3])
    assert padded.ids.tolist() == [2, 7, PAD, 9, 3]
    assert padded.attention.tolist() == [1, 1, 1, 1, 1]
    assert hidden.ids.tolist() == [2, 7, MASK, MASK, 3]
    assert hidden.attention.tolist() == [1, 1, 0, 0, 1]
    assert original.unchanged().ids.tolist() == [2, 7, 8, 9, 3]


def test_an_emptied_text_becomes_one_padding_token():
    original = Original(row_of([7, 8], special=False), STAND_INS)
    empty = original.without([0, 1])
    assert empty.ids.tolist() == [PAD]
    assert empty.attention.tolist() == [1]
    assert empty.place_of(0) is None
    assert original.hidden([0, 1]).attention.tolist() == [1, 1]


def test_special_tokens_masked_for_the_explanation_are_seen_by_the_prediction():
    row = row_of([7, 8]).masked([True, False, True, True])
    assert Original(row, STAND_INS).unchanged().attention.tolist() == [1, 1, 0, 1]


def test_stand_ins_fall_back_to_unknown_and_end_tokens():
    class Bare:
        pad_token_id = mask_token_id = None
        unk_token_id, eos_token_id = 6, 7

    live = LiveModel(bag())
    assert StandIns.of(live, None) == StandIns(PAD, PAD)
    live.model.config.pad_token_id = None
    assert StandIns.of(live, Bare()) == StandIns(6, 6)
    with pytest.raises(BadInput, match="names no padding, unknown or end token"):
        StandIns.of(live, None)


@given(st.lists(st.integers(5, 39), min_size=1, max_size=12), st.data())
def test_what_is_left_is_what_was_not_taken(words, data):
    places = data.draw(st.sets(st.integers(1, len(words))))
    original = Original(row_of(words), STAND_INS)
    left = original.without(sorted(places))
    kept = [i for i in range(len(words) + 2) if i not in places]
    assert left.ids.tolist() == [original.row.ids[i] for i in kept]
    assert [left.place_of(i) for i in kept] == list(range(len(kept)))
    assert isinstance(left, Variant)


def test_faded_embeddings_are_those_of_the_draw_whatever_the_batch():
    model, live = tiny_bert(), LiveModel(tiny_bert())
    generator = np.random.default_rng(4)
    asked = []
    for seed, row in enumerate(rows(12)):
        original = Original(row, STAND_INS)
        asked += [original.unchanged(), original.faded(generator.random(len(row)), seed)]
    before = snapshot(live.model)
    found = list(stream_logits(live, asked, batch_tokens=60))
    assert same(before, snapshot(live.model))
    for variant, logits in zip(asked, found, strict=True):
        gone = torch.zeros(len(variant), 1, dtype=torch.bool)
        if variant.fading is not None:
            gone = torch.from_numpy(variant.fading.gone(model.config.hidden_size))

        def fade(_module, _given, output, gone=gone):
            return output.masked_fill(gone, 0.0)

        handle = model.bert.embeddings.register_forward_hook(fade)
        with torch.no_grad():
            ids = torch.from_numpy(variant.ids[None].astype(np.int64))
            wanted = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
        handle.remove()
        np.testing.assert_allclose(logits, wanted, atol=1e-10)


def test_what_is_kept_for_sure_changes_nothing_and_two_draws_differ():
    live = LiveModel(tiny_bert())
    original = Original(rows(1, longest=21)[0], STAND_INS)
    half = np.full(len(original), 0.5)
    asked = [
        original.unchanged(),
        original.faded(np.ones(len(original)), 3),
        *(original.faded(half, seed) for seed in (1, 2, 1)),
    ]
    plain, kept, one, other, again = stream_logits(live, asked)
    np.testing.assert_allclose(kept, plain, atol=1e-12)
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 1e-6


def test_a_decoder_that_reads_the_text_again_reads_it_faded_and_its_start_whole():
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        max_position_embeddings=32, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        decoder_start_token_id=2, num_labels=3,
    )  # fmt: skip
    model = BartForSequenceClassification(config).double().eval()
    row = Tokens.from_ids([[0, 7, 9, 11, 8, 2]]).rows[0]
    original = Original(row, StandIns(1, 4))
    kept = np.array([1, 0.5, 0.5, 0.5, 0.5, 1])
    faded = original.faded(kept, 5)
    (found,) = stream_logits(LiveModel(model), [faded])
    gone = torch.from_numpy(faded.fading.gone(16))
    later = torch.cat(
        (torch.zeros(1, 16, dtype=torch.bool), gone[:-1])
    )  # one place later, start first

    def fading(where):
        return lambda _module, _given, output: output.masked_fill(where, 0.0)

    parts = (model.model.encoder, gone), (model.model.decoder, later)
    handles = [m.layernorm_embedding.register_forward_hook(fading(where)) for m, where in parts]
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([row.ids])).logits[0]
    for handle in handles:
        handle.remove()
    np.testing.assert_allclose(found, wanted, atol=1e-10)
