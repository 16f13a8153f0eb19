"""The stream of perturbed inputs: order, duplicates, packing, memory, and what it leaves behind."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
)
from transformers.models.bert.modeling_bert import BertIntermediate

from tests.helpers.expect import expect_error
from tests.helpers.model_state import assert_unchanged, take_snapshot
from tests.helpers.planted_model import MASK, PAD, VOCABULARY, make_bag_model
from tests.helpers.tiny import tiny_bert, tiny_bert_qa, tiny_tokenizer
from tokenlight.data.tokens import Tokens
from tokenlight.errors import BadInput, TextTooLong
from tokenlight.inputs.encode import encode_text
from tokenlight.model.runner import ModelRunner
from tokenlight.perturb import logits_stream
from tokenlight.perturb.logits_stream import stream_logits
from tokenlight.perturb.variants import Perturber, ReplacementIds

TOKENIZER = tiny_tokenizer()
REPLACEMENTS = ReplacementIds(PAD, MASK)


def make_rows(count, *, longest=20, seed=0, vocabulary=VOCABULARY):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, longest, count)
    return [Tokens.from_ids([generator.integers(5, vocabulary, n)]).rows[0] for n in lengths]


def run_bare_model(model, row):
    arguments = {"input_ids": torch.tensor([row.ids])}
    if row.token_type_ids is not None:
        arguments["token_type_ids"] = torch.tensor([row.token_type_ids])
    with torch.no_grad():
        return model(attention_mask=torch.tensor([row.attention_mask]), **arguments)


def test_logits_equal_the_bare_models_in_the_order_given():
    model = tiny_bert()
    input_rows = make_rows(60)
    all_logits = list(stream_logits(ModelRunner(model), input_rows, batch_tokens=100))
    for row, logits in zip(input_rows, all_logits, strict=True):
        np.testing.assert_allclose(logits, run_bare_model(model, row).logits[0], atol=1e-10)


def test_logits_of_a_span_head_end_with_the_text():
    model = tiny_bert_qa()
    input_rows = make_rows(9)
    for row, logits in zip(input_rows, stream_logits(ModelRunner(model), input_rows), strict=True):
        outputs = run_bare_model(model, row)
        assert logits.shape == (len(row), 2)
        np.testing.assert_allclose(logits[:, 0], outputs.start_logits[0], atol=1e-10)
        np.testing.assert_allclose(logits[:, 1], outputs.end_logits[0], atol=1e-10)


def test_a_duplicate_runs_once():
    model = make_bag_model()
    runner = ModelRunner(model)
    list(stream_logits(runner, make_rows(1)))  # the first use of a model checks it
    model.forwards.clear()
    input_rows = make_rows(10) * 5
    all_logits = list(stream_logits(runner, input_rows))
    assert sum(count for count, _ in model.forwards) == len({row.ids for row in input_rows})
    for i, logits in enumerate(all_logits):
        np.testing.assert_array_equal(logits, all_logits[i % 10])


def test_rows_that_differ_only_in_attention_or_segments_are_no_duplicates():
    row = encode_text("good film", TOKENIZER, max_tokens=None)
    masked = row.mask_positions([False, True, False, False])
    other_segments = type(row)(**{**_list_fields(row), "token_type_ids": (0, 1, 1, 1)})
    model = tiny_bert()
    all_logits = list(stream_logits(ModelRunner(model), [row, masked, other_segments]))
    for variant, logits in zip((row, masked, other_segments), all_logits, strict=True):
        np.testing.assert_allclose(logits, run_bare_model(model, variant).logits[0], atol=1e-10)
    assert len({tuple(np.round(logits, 6)) for logits in all_logits}) == 3


def test_a_row_without_segment_ids_does_not_take_them_from_its_neighbors():
    pair = encode_text(("good film", "the plot"), TOKENIZER, max_tokens=None)
    plain = type(pair)(**{**_list_fields(pair), "token_type_ids": None})
    model = tiny_bert()
    first, second = stream_logits(ModelRunner(model), [pair, plain])
    np.testing.assert_allclose(first, run_bare_model(model, pair).logits[0], atol=1e-10)
    np.testing.assert_allclose(second, run_bare_model(model, plain).logits[0], atol=1e-10)


def _list_fields(row):
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def test_no_batch_exceeds_the_token_budget_and_none_is_longer_than_needed():
    model = make_bag_model()
    runner = ModelRunner(model)
    input_rows = make_rows(50)
    list(stream_logits(runner, input_rows[:1]))
    model.forwards.clear()
    list(stream_logits(runner, input_rows, batch_tokens=64))
    assert all(count * width <= 64 for count, width in model.forwards)
    spent = sum(count * width for count, width in model.forwards)
    assert spent < 1.3 * sum(len(row) for row in input_rows)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("you can't allocate memory: 9 GB")]
)
def test_out_of_memory_halves_the_batch_and_continues(error):
    model = make_bag_model()
    input_rows = make_rows(40)
    runner = ModelRunner(model)
    expected = list(stream_logits(runner, input_rows))
    attempts = []

    def fail(_module, _arguments, keywords):
        ids = keywords["input_ids"]
        attempts.append(ids.shape[0])
        if ids.numel() > 60:
            raise error

    handle = model.register_forward_pre_hook(fail, with_kwargs=True)
    all_logits = list(stream_logits(runner, input_rows, batch_tokens=500))
    handle.remove()
    np.testing.assert_allclose(all_logits, expected, atol=1e-12)
    failed = sum(1 for _ in itertools.takewhile(lambda n: n > 3, attempts))
    assert failed < 8, "the smaller budget is kept for the rest of the stream"


def test_out_of_memory_with_a_single_row_is_raised():
    model = make_bag_model()
    runner = ModelRunner(model)
    list(stream_logits(runner, make_rows(1)))

    def fail(_module, _arguments):
        raise torch.OutOfMemoryError

    handle = model.register_forward_pre_hook(fail)
    with pytest.raises(torch.OutOfMemoryError):
        list(stream_logits(runner, make_rows(8)))
    handle.remove()


def test_another_error_is_not_taken_for_lack_of_memory():
    model = make_bag_model()
    runner = ModelRunner(model)
    list(stream_logits(runner, make_rows(1)))
    handle = model.register_forward_pre_hook(_fail)
    before = take_snapshot(model)
    with pytest.raises(RuntimeError, match="on purpose"):
        list(stream_logits(runner, make_rows(8)))
    assert_unchanged(before, take_snapshot(model))
    handle.remove()


def _fail(_module, _arguments):
    raise RuntimeError("on purpose")


def test_a_stream_is_read_a_window_at_a_time(monkeypatch):
    monkeypatch.setitem(logits_stream.CHUNK_SIZES, "cpu", 8)
    rows_read = []

    def stream():
        for row in make_rows(100):
            rows_read.append(row)
            yield row

    all_logits = stream_logits(ModelRunner(make_bag_model()), stream())
    next(all_logits)
    assert len(rows_read) == 8
    assert len(list(all_logits)) == 99


@pytest.mark.parametrize("num_windows", [1, 3])
def test_chunks_launched_ahead_come_back_in_order(monkeypatch, num_windows):
    runner = ModelRunner(make_bag_model())
    input_rows = make_rows(50)
    expected = list(stream_logits(runner, input_rows))
    monkeypatch.setitem(logits_stream.CHUNK_SIZES, "cpu", 7)
    monkeypatch.setitem(logits_stream.PREFETCHED_CHUNKS, "cpu", num_windows)
    np.testing.assert_allclose(list(stream_logits(runner, input_rows)), expected, atol=1e-12)
    assert list(stream_logits(runner, [])) == []


@pytest.mark.gpu
def test_a_gpu_gives_the_answers_of_the_processor():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = tiny_bert()
    input_rows = make_rows(5000, longest=40, vocabulary=140)
    expected = list(stream_logits(ModelRunner(model), input_rows))
    all_logits = list(stream_logits(ModelRunner(model.to("cuda")), input_rows))
    np.testing.assert_allclose(all_logits, expected, atol=1e-9)


def test_the_model_is_left_unchanged():
    model = tiny_bert().train()
    # transformers notes things on the first pass.
    list(stream_logits(ModelRunner(model), make_rows(3)))
    before = take_snapshot(model)
    list(stream_logits(ModelRunner(model), make_rows(12)))
    assert_unchanged(before, take_snapshot(model))


@pytest.mark.parametrize("vocabulary", [40, 8])
def test_a_model_without_padding_id_gives_the_same_logits(vocabulary):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=vocabulary, n_embd=16, n_layer=2, n_head=2, n_positions=32,
                        bos_token_id=0, eos_token_id=0, num_labels=3)  # fmt: skip
    model = GPT2ForSequenceClassification(config).double().eval()
    assert model.config.pad_token_id is None
    generator = np.random.default_rng(1)
    input_rows = [
        Tokens.from_ids([generator.integers(0, vocabulary, n)]).rows[0] for n in (3, 9, 9, 5, 20)
    ]
    all_logits = list(stream_logits(ModelRunner(model), input_rows))
    for row, logits in zip(input_rows, all_logits, strict=True):
        np.testing.assert_allclose(logits, run_bare_model(model, row).logits[0], atol=1e-10)
    assert model.config.pad_token_id is None


def test_a_row_the_model_cannot_read_is_refused():
    runner = ModelRunner(tiny_bert())
    with expect_error(
        TextTooLong, "variant-too-long", mentions="60 tokens, but this model reads at most 48"
    ):
        list(stream_logits(runner, [Tokens.from_ids([[5] * 60]).rows[0]]))
    with expect_error(
        BadInput,
        "id-outside-vocabulary",
        mentions="run from 5 to 999, but this model knows 0 to 149",
    ):
        list(stream_logits(runner, [Tokens.from_ids([[5, 999]]).rows[0]]))


# --- variants with faded embeddings ----------------------------------------------------------------


def test_faded_embeddings_follow_the_draw_in_any_batch():
    model = tiny_bert()
    runner = ModelRunner(tiny_bert())
    generator = np.random.default_rng(4)
    variants = []
    for seed, row in enumerate(make_rows(12)):
        original = Perturber(row, REPLACEMENTS)
        variants += [
            original.make_unperturbed(),
            original.drop_embeddings(generator.random(len(row)), seed),
        ]
    before = take_snapshot(runner.model)
    all_logits = list(stream_logits(runner, variants, batch_tokens=60))
    assert_unchanged(before, take_snapshot(runner.model))
    for variant, logits in zip(variants, all_logits, strict=True):
        is_zeroed = torch.zeros(len(variant), 1, dtype=torch.bool)
        if variant.embedding_dropout is not None:
            is_zeroed = torch.from_numpy(
                variant.embedding_dropout.draw_zeros(model.config.hidden_size)
            )

        def fade_embeddings(_module, _arguments, output, is_zeroed=is_zeroed):
            return output.masked_fill(is_zeroed, 0.0)

        handle = model.bert.embeddings.register_forward_hook(fade_embeddings)
        with torch.no_grad():
            ids = torch.from_numpy(variant.ids[None].astype(np.int64))
            expected = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
        handle.remove()
        np.testing.assert_allclose(logits, expected, atol=1e-10)


def test_embeddings_kept_with_probability_one_stay_and_two_draws_differ():
    runner = ModelRunner(tiny_bert())
    original = Perturber(make_rows(1, longest=21)[0], REPLACEMENTS)
    half = np.full(len(original), 0.5)
    variants = [
        original.make_unperturbed(),
        original.drop_embeddings(np.ones(len(original)), 3),
        *(original.drop_embeddings(half, seed) for seed in (1, 2, 1)),
    ]
    plain, undropped, first_draw, second_draw, repeated_draw = stream_logits(runner, variants)
    np.testing.assert_allclose(undropped, plain, atol=1e-12)
    np.testing.assert_array_equal(first_draw, repeated_draw)
    assert np.abs(first_draw - second_draw).max() > 1e-6


def test_a_decoder_reads_the_faded_text_with_its_start_token_unchanged():
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        max_position_embeddings=32, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        decoder_start_token_id=2, num_labels=3,
    )  # fmt: skip
    model = BartForSequenceClassification(config).double().eval()
    row = Tokens.from_ids([[0, 7, 9, 11, 8, 2]]).rows[0]
    original = Perturber(row, ReplacementIds(1, 4))
    keep_probabilities = np.array([1, 0.5, 0.5, 0.5, 0.5, 1])
    faded = original.drop_embeddings(keep_probabilities, 5)
    (logits,) = stream_logits(ModelRunner(model), [faded])
    is_zeroed = torch.from_numpy(faded.embedding_dropout.draw_zeros(16))
    # The decoder reads the text one position later, after its start token.
    is_zeroed_in_decoder = torch.cat((torch.zeros(1, 16, dtype=torch.bool), is_zeroed[:-1]))

    def make_fade_hook(is_faded):
        return lambda _module, _arguments, output: output.masked_fill(is_faded, 0.0)

    parts = (model.model.encoder, is_zeroed), (model.model.decoder, is_zeroed_in_decoder)
    handles = [
        m.layernorm_embedding.register_forward_hook(make_fade_hook(is_faded))
        for m, is_faded in parts
    ]
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([row.ids])).logits[0]
    for handle in handles:
        handle.remove()
    np.testing.assert_allclose(logits, expected, atol=1e-10)


@pytest.fixture
def feed_forward_lengths(monkeypatch):
    """Record how many tokens each feed-forward part of BERT computes, block by block."""
    lengths = []
    compute = BertIntermediate.forward

    def recorded_forward(module, hidden_states):
        lengths.append(hidden_states.shape[1])
        return compute(module, hidden_states)

    monkeypatch.setattr(BertIntermediate, "forward", recorded_forward)
    return lengths


def stream_one_row(model, row):
    (logits,) = stream_logits(ModelRunner(model), [row])
    np.testing.assert_allclose(logits, run_bare_model(model, row).logits[0], atol=1e-10)


def test_the_last_block_of_a_classifier_computes_only_the_token_that_its_head_reads(
    feed_forward_lengths,
):
    model = tiny_bert()
    (row,) = Tokens.from_ids([range(5, 14)]).rows
    stream_one_row(model, row)  # the first use probes the model
    feed_forward_lengths.clear()
    list(stream_logits(ModelRunner(model), [row]))
    assert feed_forward_lengths == [9] * (model.config.num_hidden_layers - 1) + [1]


class MeanPooler(torch.nn.Module):
    def forward(self, hidden_states):
        return hidden_states.mean(dim=1)


class FourthTokenPooler(torch.nn.Module):
    def forward(self, hidden_states):
        return hidden_states[:, 3]


def test_a_head_that_reads_more_than_the_first_token_gets_all_of_them(feed_forward_lengths):
    model = tiny_bert()
    model.bert.pooler = MeanPooler()
    (row,) = Tokens.from_ids([range(5, 14)]).rows
    stream_one_row(model, row)
    feed_forward_lengths.clear()
    list(stream_logits(ModelRunner(model), [row]))
    assert feed_forward_lengths == [9] * model.config.num_hidden_layers


def test_a_head_that_fails_with_one_token_gets_all_of_them():
    model = tiny_bert()
    model.bert.pooler = FourthTokenPooler()
    (row,) = Tokens.from_ids([range(5, 14)]).rows
    stream_one_row(model, row)


def test_a_head_that_is_replaced_later_gets_the_tokens_that_it_reads():
    model = tiny_bert()
    (row,) = Tokens.from_ids([range(5, 14)]).rows
    stream_one_row(model, row)
    model.bert.pooler = MeanPooler()
    stream_one_row(model, row)


def test_a_forward_that_is_replaced_later_gets_the_tokens_that_it_reads(monkeypatch):
    model = tiny_bert()
    (row,) = Tokens.from_ids([range(5, 14)]).rows
    stream_one_row(model, row)
    model.bert.pooler.forward = lambda hidden_states: hidden_states.mean(dim=1)
    stream_one_row(model, row)
    del model.bert.pooler.forward
    pooler_class = type(model.bert.pooler)
    monkeypatch.setattr(pooler_class, "forward", lambda _pooler, states: states.mean(dim=1))
    stream_one_row(model, row)


def _get_last_block(model):
    return model.bert.encoder.layer[-1]


def _get_encoder(model):
    return model.bert.encoder


@pytest.mark.parametrize("get_hooked", [_get_last_block, _get_encoder], ids=["block", "encoder"])
def test_a_hook_of_the_caller_sees_all_tokens(get_hooked):
    model = tiny_bert()
    (row,) = Tokens.from_ids([range(5, 14)]).rows
    stream_one_row(model, row)
    lengths = []

    def note_length(_module, _args, output):
        hidden_states = output if isinstance(output, torch.Tensor) else output[0]
        lengths.append(hidden_states.shape[1])

    get_hooked(model).register_forward_hook(note_length)
    list(stream_logits(ModelRunner(model), [row]))
    assert set(lengths) == {9}
