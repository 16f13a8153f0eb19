"""What a model changes of itself in a pass is restored after it."""

import copy

import pytest
import torch
import transformers

from tests.helpers.encoder_decoder_models import (
    CONTINUATION,
    SOURCE,
    make_seq2seq_model,
    make_seq2seq_tokenizer,
)
from tests.helpers.families import SEQ2SEQ, SMALL, build_model_from_config
from tests.helpers.model_state import find_changes, state_tree
from tests.helpers.tolerance import FLOAT32, assert_close
from tokenlight import Continuation, Explainer, Tokens
from tokenlight.errors import UnsupportedModel
from tokenlight.hooks.instrument import instrumented
from tokenlight.model.batch_inputs import ModelInputs
from tokenlight.model.runner import ModelRunner
from tokenlight.trace.record import record
from tokenlight.trace.sites import Site

BLOCKS = {"attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 1}
BORDER = 14


def make_row(length):
    ids = torch.randint(5, 120, (1, length), generator=torch.Generator().manual_seed(length))
    ids[0, -1] = 2
    (row,) = Tokens.from_ids(ids)
    return row


def build_big_bird():
    return build_model_from_config("BigBird", {**SMALL, **BLOCKS})


class StatefulLayer(torch.nn.Module):
    """A layer that keeps state in every way in which a module can."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.calls = 0
        self.shapes = []
        self.by_length = {}
        self.register_buffer("last", torch.zeros(1), persistent=False)

    def forward(self, vectors):
        self.calls += 1
        self.shapes.append(vectors.shape)
        self.by_length[vectors.shape[0]] = vectors
        self.newest = vectors
        self.register_buffer("last", vectors.sum(), persistent=False)
        self.register_buffer("added", vectors.mean(), persistent=False)
        self.layer = torch.nn.Sequential(self.layer)
        return self.layer(vectors)


def build_stateful_bert():
    model = build_model_from_config("Bert", SMALL)
    model.classifier = StatefulLayer(model.classifier)
    return model


def test_state_of_a_pass_is_removed_after_it():
    model = build_stateful_bert()
    before = state_tree(model)
    Explainer(model).explain([make_row(5), make_row(9)], ["grad_x_input", "gae"])
    assert find_changes(before, state_tree(model)) == []
    assert list(model.classifier._buffers) == ["last"]


def test_state_of_a_failed_pass_is_removed():
    model = build_stateful_bert()
    before = state_tree(model)

    def fail(*_):
        raise ValueError("no more")

    handle = model.classifier.register_forward_hook(fail)
    with pytest.raises(UnsupportedModel, match="no more"):
        Explainer(model).explain(make_row(5), "grad_x_input")
    handle.remove()
    assert find_changes(before, state_tree(model)) == []


def test_values_of_a_config_are_restored():
    model = build_model_from_config("Bert", SMALL)
    with instrumented(model, attention="unchanged", gradients=False):
        model.config.problem_type = "regression"
        model.config.note = 1
    assert model.config.problem_type is None
    assert not hasattr(model.config, "note")


def test_block_sparse_attention_is_restored_after_a_short_text():
    model = build_big_bird()
    fresh = copy.deepcopy(model)
    explainer = Explainer(model)
    explainer.explain(make_row(7), "grad_x_input")
    attribution = explainer.explain(make_row(40), "grad_x_input")
    with torch.no_grad():
        bare = fresh(torch.tensor([make_row(40).ids])).logits[0]
        fresh.base_model.set_attention_type("original_full")
        full = fresh(torch.tensor([make_row(40).ids])).logits[0]
    assert float((bare - full).abs().max()) > 1e-2  # else nothing would be tested
    assert_close(attribution.logits, bare.numpy(), FLOAT32)


def test_a_source_longer_than_the_threshold_is_read_block_sparse():
    arguments = {**SEQ2SEQ, **BLOCKS}
    model = build_model_from_config("BigBirdPegasus", arguments, "ForConditionalGeneration")
    runner = ModelRunner(model)
    before = state_tree(model)
    for length in (7, 40, 7):
        ids = make_row(length).ids
        inputs = {
            "input_ids": torch.tensor([ids]),
            "decoder_input_ids": torch.tensor([[2, 7, 9]]),
        }
        token_mask = torch.ones(1, length + 3, dtype=torch.bool)
        arguments = {**inputs, "read_positions": torch.tensor([2])}
        model_inputs = ModelInputs(arguments, token_mask, pad_id=None, has_padding=False)
        _, logits = runner.run(model_inputs)
        with torch.no_grad():
            bare = copy.deepcopy(model)(**inputs).logits[:, -1]
        assert_close(logits.numpy(), bare.numpy(), FLOAT32)
    assert find_changes(before, state_tree(model)) == []


def test_attention_that_is_replaced_draws_no_random_numbers_of_the_user():
    explainer = Explainer(build_big_bird())
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    explainer.explain(make_row(7), "grad_x_input")
    assert torch.equal(torch.rand(3), expected)


def test_attention_is_replaced_once():
    model = build_big_bird()
    explainer = Explainer(model)
    replacements = []
    attention_class = type(model.base_model.encoder.layer[0].attention)
    original = attention_class.set_attention_type
    explainer.explain(make_row(7), "grad_x_input")
    attention_class.set_attention_type = lambda *args, **kwargs: replacements.append(
        original(*args, **kwargs)
    )
    try:
        explainer.explain([make_row(8), make_row(40), make_row(6)], "grad_x_input")
    finally:
        attention_class.set_attention_type = original
    assert replacements == []


@pytest.mark.parametrize("length", [BORDER - 2, 40])
def test_recomputed_blocks_equal_the_blocks_of_the_pass(length):
    explainer = Explainer(build_big_bird())
    row = make_row(length)
    explainer.runner.verify(row, reads_attention=False)
    sites = frozenset({Site.EMBEDDINGS, Site.EMBEDDING_GRADIENT})
    target = explainer.runner.head.resolve(1, None, row)
    gradients = []
    for recompute in ("nothing", "maps and blocks"):
        recording = record(explainer.runner, [row], sites, recompute=recompute)
        tape = recording.make_tape(target, release_graph=True)
        gradients.append(tape.embedding_gradient)
    assert_close(gradients[1].numpy(), gradients[0].numpy(), FLOAT32)


def test_a_router_forgets_the_capacity_of_the_first_text():
    model = make_seq2seq_model("nllb-moe", torch.float32, moe_eval_capacity_token_fraction=-1.0)
    before = state_tree(model)
    Explainer(model, make_seq2seq_tokenizer()).explain(
        SOURCE, "grad_x_input", Continuation(CONTINUATION)
    )
    assert find_changes(before, state_tree(model)) == []


def test_weights_that_a_model_writes_once_are_not_written_twice():
    """RWKV divides the weights of its later layers in place, and notes that it has."""
    config = transformers.RwkvConfig(
        vocab_size=24, hidden_size=16, num_hidden_layers=4, attention_hidden_size=16,
        intermediate_size=24, rescale_every=2, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    model = transformers.RwkvForCausalLM(config).eval()
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        bare = copy.deepcopy(model)(ids).logits
        for _ in range(3):
            with instrumented(model, attention="unchanged", gradients=False):
                logits = model(ids).logits
            assert torch.equal(logits, bare)
