"""Head statistics on a model whose heads are known by construction, and the masks made from them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import FalconConfig, FalconForSequenceClassification
from typer.testing import CliRunner

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_config, tiny_tokenizer
from tokenlight import Explainer, Tokens
from tokenlight.attention_heads.mask import (
    HeadMask,
    make_head_mask,
    read_heads_file,
    write_heads_file,
)
from tokenlight.attention_heads.parsing import ParsedSentence, Word
from tokenlight.attention_heads.statistics import (
    StatisticsOptions,
    compute_head_statistics,
    find_positional_heads,
)
from tokenlight.cli.heads import heads as heads_command
from tokenlight.data.head import Head
from tokenlight.errors import BadInput, DamagedFile, UnsupportedModel
from tokenlight.model import probe as probing
from tokenlight.model.runner import ModelRunner
from tokenlight.trace.record import record

TOKENIZER = tiny_tokenizer()
SUBJECTS = ("cat", "dog", "we", "i")
FILLERS = ("the", "a", "very", "red", "blue", "green", "one", "two", "three")
VERBS = ("love", "hate", "sat")


def build_planted_model():
    """A BERT of one block and three heads of 48 numbers. Head 0 of a token at place p looks for the
    place p − 1; head 1 of a subject looks for a verb; head 2 looks at every token alike."""
    from transformers import BertForSequenceClassification

    width = 48
    positions = 40
    config = tiny_config(
        hidden_size=3 * width, num_attention_heads=3, num_hidden_layers=1, intermediate_size=8
    )
    model = BertForSequenceClassification(config).double()
    vocabulary = TOKENIZER.get_vocab()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        embeddings = model.bert.embeddings
        block = model.bert.encoder.layer[0]
        embeddings.LayerNorm.weight.fill_(1.0)
        block.attention.output.LayerNorm.weight.fill_(1.0)
        block.output.LayerNorm.weight.fill_(1.0)
        # Numbers 0 to 39 name the place, 40 a subject, 41 a verb.
        for position in range(positions):
            embeddings.position_embeddings.weight[position, position] = 1.0
        for word in SUBJECTS:
            embeddings.word_embeddings.weight[vocabulary[word], 40] = 1.0
        for word in VERBS:
            embeddings.word_embeddings.weight[vocabulary[word], 41] = 1.0
        query = block.attention.self.query.weight
        key = block.attention.self.key.weight
        for position in range(positions - 1):
            key[position, position] = 10.0
            query[position, position + 1] = 10.0
        query[width, 40] = 10.0
        key[width, 41] = 10.0
        model.classifier.weight.copy_(torch.linspace(-1, 1, 9 * width).view(3, -1))
    return model.eval()


def make_corpus():
    """A subject, one to six fillers, a verb: the head of nsubj at no fixed place."""
    generator = np.random.default_rng(0)
    result = []
    for number in range(60):
        between = 1 + number % 6
        before = int(generator.integers(0, 4))
        forms = [
            *generator.choice(FILLERS, before),
            str(generator.choice(SUBJECTS)),
            *generator.choice(FILLERS, between),
            str(generator.choice(VERBS)),
        ]
        words = []
        at = 0
        for position, form in enumerate(forms):
            subject = position == before
            last = position == len(forms) - 1
            relation = "nsubj" if subject else "root" if last else "det"
            head = None if last else len(forms) - 1
            words.append(Word(str(form), (at, at + len(form)), head, relation))
            at += len(form) + 1
        result.append(ParsedSentence(" ".join(map(str, forms)), tuple(words)))
    return result


@pytest.fixture(scope="module")
def statistics():
    explainer = Explainer(build_planted_model(), TOKENIZER)
    return compute_head_statistics(explainer.runner, TOKENIZER, make_corpus(), batch_tokens=64)


def test_exactly_the_planted_heads_are_found(statistics):
    mask = statistics.build_mask()
    assert mask.syntactic == ((0, 1, 0),)
    assert mask.positional == ((1, 0, 0),)


def test_the_shares_equal_the_constructed_ones(statistics):
    assert statistics.num_tested.tolist() == [60, 0, 0, 0]
    assert statistics.relation_shares[0].tolist() == [[0.0, 1.0, pytest.approx(0, abs=0.2)]]
    one_left = statistics.position_shares[0, 0, statistics.max_offset - 1]
    assert one_left == 1.0
    # A subject stands two to seven words before its verb.
    shares = {-distance: pytest.approx(1 / 6) for distance in range(2, 8)}
    assert statistics.compute_offset_shares("nsubj") == shares


def test_the_official_reading_counts_special_tokens_and_offset_zero():
    explainer = Explainer(build_planted_model(), TOKENIZER)
    reading = StatisticsOptions.from_alignment("official", explainer.runner, TOKENIZER)
    assert reading == StatisticsOptions(
        align="official", include_zero_offset=True, exclude_special=False, explain_mask="sep"
    )
    statistics = compute_head_statistics(explainer.runner, TOKENIZER, make_corpus(), reading)
    actual = compute_head_statistics(explainer.runner, TOKENIZER, make_corpus())
    assert statistics.num_queries == actual.num_queries + 2 * 60
    # [CLS] has nothing to its left, so the share falls below one.
    assert 0.8 < statistics.position_shares[0, 0, statistics.max_offset - 1] < 1.0
    assert statistics.build_mask().syntactic == ((0, 1, 0),)


def test_the_official_reading_masks_no_separator_for_questions_or_where_there_is_none():
    runner = Explainer(build_planted_model(), TOKENIZER).runner
    asks = SimpleNamespace(head=Head("question-answering"))
    bare = SimpleNamespace(sep_token_id=None)
    assert StatisticsOptions.from_alignment("official", asks, TOKENIZER).explain_mask == "none"
    assert StatisticsOptions.from_alignment("official", runner, bare).explain_mask == "none"
    assert StatisticsOptions.from_alignment("offsets", runner, TOKENIZER) == StatisticsOptions()


def test_explicit_options_take_precedence_over_the_official_alignment():
    runner = Explainer(build_planted_model(), TOKENIZER).runner
    overrides = {"include_zero_offset": False, "exclude_special": None, "explain_mask": "none"}
    assert StatisticsOptions.from_alignment(
        "official", runner, TOKENIZER, **overrides
    ) == StatisticsOptions(
        align="official", include_zero_offset=False, exclude_special=False, explain_mask="none"
    )


def test_thresholds_typed_by_hand_take_the_place_of_the_corpus_ones(statistics):
    assert statistics.build_mask([1.0, 1, 1, 1]).syntactic == ((0, 0, 0),)
    assert statistics.build_mask([0.99, 1, 1, 1]).syntactic == ((0, 1, 0),)
    content = statistics.to_dict([0.99, 0.5, 1, 1])
    assert [relation["threshold"] for relation in content["relations"].values()] == [
        0.99,
        0.5,
        1,
        1,
    ]
    assert content["thresholds"]["syntactic_margin"] is None
    assert content["mask"]["syntactic"] == [[0, 1, 0]]


def test_batches_change_no_count(statistics):
    explainer = Explainer(build_planted_model(), TOKENIZER)
    single = compute_head_statistics(explainer.runner, TOKENIZER, make_corpus(), batch_tokens=1)
    np.testing.assert_array_equal(single.hits, statistics.hits)
    np.testing.assert_array_equal(single.positions, statistics.positions)


def test_a_model_that_padding_changes_reads_sentences_of_one_length_together(
    statistics, monkeypatch
):
    def unproof(runner, _row, *, reads_attention):
        assert reads_attention
        runner.is_padding_invariant = False

    def recorded(runner, rows, sites):
        assert len({len(row) for row in rows}) == 1
        return record(runner, rows, sites)

    monkeypatch.setattr(ModelRunner, "verify", unproof)
    monkeypatch.setattr("tokenlight.attention_heads.statistics.record", recorded)
    statistics_value = compute_head_statistics(
        Explainer(build_planted_model(), TOKENIZER).runner, TOKENIZER, make_corpus()
    )
    np.testing.assert_array_equal(statistics_value.positions, statistics.positions)


def test_a_model_with_maps_of_another_model_is_refused():
    torch.manual_seed(0)
    config = FalconConfig(
        vocab_size=len(TOKENIZER), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        alibi=True, num_labels=2, pad_token_id=0,
    )  # fmt: skip
    runner = Explainer(FalconForSequenceClassification(config).eval(), TOKENIZER).runner
    with expect_error(UnsupportedModel, "attention-changes-logits"):
        compute_head_statistics(runner, TOKENIZER, make_corpus()[:2])


def test_an_encoder_without_a_head_is_probed_with_nonzero_outputs(monkeypatch):
    probed = []
    probe = probing._probe_logits
    monkeypatch.setattr(
        probing,
        "_probe_logits",
        lambda *args, **kwargs: probed.append(probe(*args, **kwargs)) or probed[-1],
    )
    runner = Explainer(build_planted_model().bert, TOKENIZER).runner
    compute_head_statistics(runner, TOKENIZER, make_corpus()[:2])
    assert len(probed) == 7  # bare twice, alone, padded twice, another text, listened to
    assert all(bool((logits != 0).all()) for logits in probed)


def test_no_sentence_is_refused():
    with expect_error(BadInput, "no-sentence"):
        compute_head_statistics(Explainer(build_planted_model(), TOKENIZER).runner, TOKENIZER, [])


def test_a_heads_file_is_read_back_as_its_mask(statistics, tmp_path):
    path = write_heads_file(tmp_path / "heads.json", statistics.to_dict())
    assert make_head_mask(path) == statistics.build_mask()
    assert make_head_mask(str(path)) == statistics.build_mask()
    content = read_heads_file(path)
    assert content["relations"]["nsubj"]["heads"][0][1] == 1.0
    assert content["relations"]["nsubj"]["threshold"] == pytest.approx(1 / 6 + 0.1, abs=1e-6)
    assert content["positions"][0][0] == {"-1": 1.0}
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80  # a row of numbers on a line


def test_a_damaged_heads_file_is_refused(tmp_path):
    with expect_error(DamagedFile, "heads-file-unreadable"):
        make_head_mask(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("heads")
    with expect_error(DamagedFile, "heads-file-unreadable"):
        make_head_mask(tmp_path / "text.json")
    (tmp_path / "other.json").write_text("{}")
    with expect_error(DamagedFile, "heads-file-format"):
        make_head_mask(tmp_path / "other.json")
    with expect_error(BadInput, "head-mask-shape"):
        make_head_mask({"syntactic": [[1, 0]]})


def test_arrays_become_masks_and_odd_shapes_are_refused():
    assert make_head_mask(np.eye(2)).syntactic == ((1, 0), (0, 1))
    assert make_head_mask(torch.eye(2)) == make_head_mask([[1, 0], [0, 1]])
    with expect_error(BadInput, "head-mask-shape"):
        make_head_mask([1, 0, 1])
    with expect_error(BadInput, "head-mask-shape"):
        HeadMask(((1, 0),), ((1,),))


@pytest.mark.parametrize("value", [0.5, 1.5, float("nan"), float("inf")])
def test_a_fraction_of_a_head_is_refused(value):
    for source in (
        [[value, 1]],
        torch.tensor([[value, 1]]),
        {"syntactic": [[1]], "positional": [[value]]},
    ):
        with expect_error(BadInput, "head-mask-shape"):
            make_head_mask(source)


MASK = HeadMask(((2, 0, 0, 1), (0, 0, 0, 0)), ((1, 0, 1, 0), (0, 0, 0, 0)))


def test_parts_are_binary_unless_summed():
    syntactic, positional = MASK.build_components()
    np.testing.assert_array_equal(syntactic, [[1, 0, 0, 1], [0, 0, 0, 0]])
    np.testing.assert_array_equal(positional, MASK.positional)
    np.testing.assert_array_equal(
        MASK.build_components("syntactic", values="sum")[0], MASK.syntactic
    )
    (only,) = MASK.build_components("positional")
    np.testing.assert_array_equal(only, MASK.positional)


@pytest.mark.parametrize("seed", range(5))
def test_a_random_mask_has_as_many_distinct_heads(seed):
    (result,) = MASK.build_components("random", seed=seed)
    assert result.sum() == 3  # one head meets both criteria and counts once
    np.testing.assert_array_equal(result, MASK.build_components("random", seed=seed)[0])


def test_random_masks_differ_by_seed():
    masks = {MASK.build_components("random", seed=seed)[0].tobytes() for seed in range(20)}
    assert len(masks) > 5


@pytest.mark.parametrize(("rate", "heads"), [(0.0, 3), (0.4, 5), (1.0, 8)])
def test_corruption_lets_in_a_share_of_the_other_heads(rate, heads):
    (results,) = MASK.build_components("corrupted", rate=rate, seed=1)
    assert results.sum() == heads
    assert results[MASK.selected_heads].all()


def test_positional_heads_of_one_text_depend_only_on_that_text():
    maps = torch.zeros(2, 2, 5, 5)
    maps[:, 0, 1:, :-1] = torch.eye(4)  # head 0 looks one to the left
    maps[:, 0, 0, 0] = 1
    maps[0, 1] = torch.eye(5)  # head 1 looks at itself, which does not count
    maps[1, 1, :, 0] = 1
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    results = find_positional_heads([maps], real)
    assert results.shape == (1, 2, 2)
    assert results[0, 0].tolist() == [0.0, 0.0]  # four of five is not more than 0.8
    wide = torch.zeros(1, 1, 8, 8)
    wide[0, 0, 1:, :-1] = torch.eye(7)
    wide[0, 0, 0, 0] = 1
    assert find_positional_heads([wide], torch.ones(1, 8, dtype=torch.bool)).tolist() == [[[1.0]]]


# --- the method that reads masks ------------------------------------------------------------------

ROWS = Tokens.from_ids([[2, 9, 11, 13, 7, 22, 3]])


def test_mask_lrp_takes_a_file_a_mask_or_an_array(tmp_path):
    explainer = Explainer(tiny_bert())
    table = np.eye(3, 4, dtype=int)
    mask = make_head_mask(table)
    content = {"format": 1, "mask": mask.to_dict()}
    (tmp_path / "heads.json").write_text(json.dumps(content))
    sources = [table, mask, str(tmp_path / "heads.json"), torch.tensor(table)]
    scores = [explainer.explain(ROWS, ("mask_lrp", {"heads": source})).scores for source in sources]
    for other in scores[1:]:
        np.testing.assert_array_equal(other, scores[0])


def test_a_mask_for_another_model_is_refused():
    with pytest.raises(BadInput, match=r"2 layers × 4 heads, but this model has 3 × 4"):
        Explainer(tiny_bert()).explain(ROWS, ("mask_lrp", {"heads": np.ones((2, 4))}))


def test_without_a_heads_file_positional_heads_are_used_with_a_note():
    attribution = Explainer(tiny_bert()).explain(ROWS, "mask_lrp")
    assert "no heads were given" in attribution.notes[0]
    assert "tokenlight heads MODEL" in attribution.notes[0]


@pytest.mark.parametrize("mask", ["random", "corrupted"])
def test_a_random_mask_needs_a_heads_file(mask):
    with pytest.raises(BadInput, match=f"mask='{mask}' needs heads.*tokenlight heads MODEL"):
        Explainer(tiny_bert()).explain(ROWS, ("mask_lrp", {"mask": mask}))


@pytest.mark.parametrize("heads", [None, np.eye(3, 4)])
@pytest.mark.parametrize("rate", [-0.1, 5.0, float("nan")])
def test_a_corruption_that_is_no_share_is_refused(heads, rate):
    with expect_error(BadInput, "option-out-of-range"):
        Explainer(tiny_bert()).explain(ROWS, ("mask_lrp", {"heads": heads, "corruption": rate}))


@pytest.mark.parametrize("options", [{"mask": "random"}, {"mask": "corrupted", "corruption": 0.5}])
def test_the_seed_of_explain_draws_the_mask(options):
    explainer = Explainer(tiny_bert())
    method = ("mask_lrp", {"heads": np.eye(3, 4), **options})
    attributions = [explainer.explain(ROWS, method, seed=seed) for seed in (0, 1, 2)]
    assert len({attribution.scores.tobytes() for attribution in attributions}) > 1
    assert [attribution.options.get("seed") for attribution in attributions] == [None, 1, 2]
    seeded = explainer.explain(ROWS, (method[0], method[1] | {"seed": 1}), seed=5)
    np.testing.assert_array_equal(seeded.scores, attributions[1].scores)


def test_a_seed_that_draws_nothing_is_not_recorded():
    attribution = Explainer(tiny_bert()).explain(
        ROWS, ("mask_lrp", {"heads": np.eye(3, 4)}), seed=7
    )
    assert set(attribution.options) == {"heads"}


def test_without_heads_syntactic_ones_are_refused_with_the_command():
    with pytest.raises(BadInput, match="tokenlight heads MODEL --conllu FILE"):
        Explainer(tiny_bert()).explain(ROWS, ("mask_lrp", {"mask": "syntactic"}))


def test_a_block_with_an_empty_mask_passes_only_its_residual_in_the_papers_reading():
    explainer = Explainer(tiny_bert())
    nothing = explainer.explain(ROWS, ("mask_lrp", {"preset": "paper", "heads": np.zeros((3, 4))}))
    np.testing.assert_array_equal(nothing.scores, np.zeros(7))  # J is the identity, s_r is zero


@pytest.mark.parametrize("conserve", ["abs", "paper"])
def test_conserving_masks_lose_nothing_where_parts_share_a_sign(conserve):
    """With one part the two formulas agree, and every layer keeps its relevance."""
    options = {"preset": "paper", "conserve": conserve, "heads": np.eye(3, 4)}
    attribution = Explainer(tiny_bert()).explain(ROWS, ("mask_lrp", options))
    np.testing.assert_allclose(attribution.extras["conservation"], 1.0, atol=1e-6)


def test_conserving_by_magnitudes_loses_nothing_whatever_the_signs():
    mask = HeadMask(((1, 0, 0, 1),) * 3, ((0, 1, 1, 0),) * 3)
    options = {"preset": "paper", "heads": mask}
    attribution = Explainer(tiny_bert()).explain(ROWS, ("mask_lrp", options))
    np.testing.assert_allclose(attribution.extras["conservation"], 1.0, atol=1e-6)


def test_ablations_choose_their_part_of_the_mask():
    explainer = Explainer(tiny_bert())
    mask = HeadMask(((1, 0, 0, 0),) * 3, ((0, 0, 1, 0),) * 3)

    def scores(**options):
        return explainer.explain(ROWS, ("mask_lrp", options)).scores

    np.testing.assert_array_equal(
        scores(heads=mask, mask="syntactic"), scores(heads=np.array(mask.syntactic))
    )
    np.testing.assert_array_equal(
        scores(heads=mask, mask="positional"), scores(heads=np.array(mask.positional))
    )
    everything = scores(heads=np.ones((3, 4)))
    np.testing.assert_array_equal(scores(heads=mask, mask="corrupted", corruption=1.0), everything)
    assert not np.array_equal(scores(heads=mask), everything)
    assert not np.array_equal(
        scores(heads=mask, mask="random", seed=1), scores(heads=mask, mask="random", seed=2)
    )


# --- the command and its figures ------------------------------------------------------------------


def run(*arguments):
    import typer

    app = typer.Typer()
    app.command()(heads_command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write_model_and_corpus(folder):
    """Write the planted model and its corpus in CoNLL-U format; return the folder."""
    model = build_planted_model().float()
    model.save_pretrained(folder / "model")
    TOKENIZER.save_pretrained(folder / "model")
    lines = []
    for sentence in make_corpus():
        lines.append(f"# text = {sentence.text}")
        for number, word in enumerate(sentence.words, start=1):
            head = 0 if word.head is None else word.head + 1
            lines.append(f"{number}\t{word.form}\t_\t_\t_\t_\t{head}\t{word.relation}\t_\t_")
        lines.append("")
    (folder / "corpus.conllu").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_model_and_corpus(tmp_path)


@pytest.fixture(scope="module")
def heads_command_run(tmp_path_factory):
    """Return the finished command and the folder with its outputs."""
    folder = write_model_and_corpus(tmp_path_factory.mktemp("heads"))
    completed = run(
        folder / "model", "--conllu", folder / "corpus.conllu", "-o", folder / "heads.json",
        "--html", folder / "heads.html",
    )  # fmt: skip
    return completed, folder


def test_the_command_prints_the_counts_and_names_its_files(heads_command_run):
    completed, _ = heads_command_run
    assert completed.exit_code == 0, completed.output
    assert "syntactic    1 heads  1.1" in completed.output
    assert "positional   1 heads  1.0" in completed.output
    assert "counted on 60 sentences, which is too few" in completed.stderr
    assert completed.stderr.count("wrote") == 2
    assert "heads.json" in completed.stderr


def test_the_command_writes_masks_with_their_sources(heads_command_run):
    _, folder = heads_command_run
    content = read_heads_file(folder / "heads.json")
    assert content["sources"] == ["corpus.conllu"]
    assert content["sentences"] == 60


def test_the_command_writes_a_page_of_figures(heads_command_run):
    _, folder = heads_command_run
    page = (folder / "heads.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "nsubj (60)" in page
    assert "both (0)" in page


def test_the_command_reads_as_the_official_code_does_and_explicit_options_win(folder):
    position = folder / "heads.json"
    arguments = (folder / "model", "--conllu", folder / "corpus.conllu", "-o", position)
    official = {"include_zero_offset": True, "exclude_special": False, "explain_mask": "sep"}
    assert run(*arguments, "--align", "official").exit_code == 0
    assert read_heads_file(position)["options"].items() >= official.items()
    completed = run(*arguments, "--align", "official", "--no-zero-offset", "--no-special",
               "--explain-mask", "none", "--syntactic-thresholds", "0.5, 0.6,1,1")  # fmt: skip
    assert completed.exit_code == 0, completed.output
    content = read_heads_file(position)
    assert content["options"].items() >= {name: not value for name, value in official.items()
                                          if name != "explain_mask"}.items()  # fmt: skip
    assert content["options"]["explain_mask"] == "none"
    assert [relation["threshold"] for relation in content["relations"].values()] == [0.5, 0.6, 1, 1]
    assert content["mask"]["syntactic"] == [[0, 1, 0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--syntactic-thresholds", "0.5,0.5"], "is not four numbers. Give one for each of nsubj"),
        (["--syntactic-thresholds", "a,b,c,d"], "is not four numbers"),
        (["--syntactic-thresholds", "1,1,1,1", "--margin", "0.2"], "Leave one of them out"),
        (["--explain-mask", "all"], "'all' is not one of"),
    ],
)
def test_the_command_refuses_thresholds_and_masks_that_mean_nothing(folder, arguments, message):
    completed = run(folder / "model", "--conllu", folder / "corpus.conllu", *arguments)
    assert completed.exit_code == 2
    assert message in " ".join(completed.output.split())


def test_the_command_reads_an_encoder_without_a_head(folder):
    build_planted_model().float().bert.save_pretrained(folder / "encoder")
    TOKENIZER.save_pretrained(folder / "encoder")
    completed = run(folder / "encoder", "--conllu", folder / "corpus.conllu", "--limit", 1)
    assert completed.exit_code == 0, completed.output
    assert "counted on 1 sentence, which" in completed.stderr
    assert "wrote" not in completed.stderr
    assert "positional   1 heads  1.0" in completed.output


def test_invalid_arguments_of_the_command_are_refused(folder):
    completed = run(folder / "model", "--conllu", folder / "none.conllu")
    assert completed.exit_code == 2
    assert "No such file" in completed.output
    completed = run(folder / "model", "--conllu", folder / "corpus.conllu", "--align", "words")
    assert completed.exit_code == 2
    assert "'words' is not one of" in completed.output


def test_drawing_a_page_twice_gives_the_same_page(statistics):
    from tokenlight.plots.figures import render_heads_page

    assert render_heads_page(statistics.to_dict()) == render_heads_page(statistics.to_dict())
