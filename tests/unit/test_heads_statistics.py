"""Head statistics on a model whose heads are known by construction, and the masks made from them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import FalconConfig, FalconForSequenceClassification
from typer.testing import CliRunner

from tests.tiny import tiny_bert, tiny_config, tiny_tokenizer
from tokenlight import Explainer, Tokens
from tokenlight.capture import probe as probing
from tokenlight.capture.live import LiveModel
from tokenlight.capture.recording import record
from tokenlight.cli.heads import heads as heads_command
from tokenlight.data.target import Head
from tokenlight.errors import BadInput, DamagedFile, UnsupportedModel
from tokenlight.heads.mask import HeadMask, head_mask, read_heads, write_heads
from tokenlight.heads.sentence import ParsedSentence, Word
from tokenlight.heads.statistics import Reading, head_statistics, own_positional_heads

TOKENIZER = tiny_tokenizer()
SUBJECTS = ("cat", "dog", "we", "i")
FILLERS = ("the", "a", "very", "red", "blue", "green", "one", "two", "three")
VERBS = ("love", "hate", "sat")


def planted_model():
    """A BERT of one block and three heads of 48 numbers. Head 0 of a token at place p looks for the
    place p − 1; head 1 of a subject looks for a verb; head 2 looks at every token alike."""
    from transformers import BertForSequenceClassification

    width, places = 48, 40
    config = tiny_config(
        hidden_size=3 * width, num_attention_heads=3, num_hidden_layers=1, intermediate_size=8
    )
    model = BertForSequenceClassification(config).double()
    vocabulary = TOKENIZER.get_vocab()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        embeddings, block = model.bert.embeddings, model.bert.encoder.layer[0]
        embeddings.LayerNorm.weight.fill_(1.0)
        block.attention.output.LayerNorm.weight.fill_(1.0)
        block.output.LayerNorm.weight.fill_(1.0)
        # Numbers 0 to 39 name the place, 40 a subject, 41 a verb.
        for place in range(places):
            embeddings.position_embeddings.weight[place, place] = 1.0
        for word in SUBJECTS:
            embeddings.word_embeddings.weight[vocabulary[word], 40] = 1.0
        for word in VERBS:
            embeddings.word_embeddings.weight[vocabulary[word], 41] = 1.0
        query, key = block.attention.self.query.weight, block.attention.self.key.weight
        for place in range(places - 1):
            key[place, place] = 10.0
            query[place, place + 1] = 10.0
        query[width, 40] = 10.0
        key[width, 41] = 10.0
        model.classifier.weight.copy_(torch.linspace(-1, 1, 9 * width).view(3, -1))
    return model.eval()


def corpus():
    """A subject, one to six fillers, a verb: the head of nsubj at no fixed place."""
    generator = np.random.default_rng(0)
    found = []
    for number in range(60):
        between = 1 + number % 6
        before = int(generator.integers(0, 4))
        forms = [
            *generator.choice(FILLERS, before),
            str(generator.choice(SUBJECTS)),
            *generator.choice(FILLERS, between),
            str(generator.choice(VERBS)),
        ]
        words, at = [], 0
        for position, form in enumerate(forms):
            subject = position == before
            last = position == len(forms) - 1
            relation = "nsubj" if subject else "root" if last else "det"
            head = None if last else len(forms) - 1
            words.append(Word(str(form), (at, at + len(form)), head, relation))
            at += len(form) + 1
        found.append(ParsedSentence(" ".join(map(str, forms)), tuple(words)))
    return found


@pytest.fixture(scope="module")
def statistics():
    explainer = Explainer(planted_model(), TOKENIZER)
    return head_statistics(explainer.live, TOKENIZER, corpus(), batch_tokens=64)


def test_exactly_the_planted_heads_are_found(statistics):
    mask = statistics.mask()
    assert mask.syntactic == ((0, 1, 0),)
    assert mask.positional == ((1, 0, 0),)


def test_the_shares_are_those_of_the_construction(statistics):
    assert statistics.tested.tolist() == [60, 0, 0, 0]
    assert statistics.relation_shares[0].tolist() == [[0.0, 1.0, pytest.approx(0, abs=0.2)]]
    one_left = statistics.position_shares[0, 0, statistics.reach - 1]
    assert one_left == 1.0
    assert statistics.offset_shares("nsubj") == {
        -r: pytest.approx(1 / 6) for r in range(2, 8)
    }  # a subject stands two to seven words before its verb


def test_the_official_reading_counts_special_tokens_and_offset_zero():
    explainer = Explainer(planted_model(), TOKENIZER)
    reading = Reading.named("official", explainer.live, TOKENIZER)
    assert reading == Reading(
        align="official", include_zero_offset=True, exclude_special=False, explain_mask="sep"
    )
    found = head_statistics(explainer.live, TOKENIZER, corpus(), reading)
    ours = head_statistics(explainer.live, TOKENIZER, corpus())
    assert found.queries == ours.queries + 2 * 60
    # [CLS] has nothing to its left, so the share falls below one.
    assert 0.8 < found.position_shares[0, 0, found.reach - 1] < 1.0
    assert found.mask().syntactic == ((0, 1, 0),)


def test_the_official_reading_masks_no_separator_for_questions_or_where_there_is_none():
    live, asks = Explainer(planted_model(), TOKENIZER).live, SimpleNamespace(head=Head("span"))
    bare = SimpleNamespace(sep_token_id=None)
    assert Reading.named("official", asks, TOKENIZER).explain_mask == "none"
    assert Reading.named("official", live, bare).explain_mask == "none"
    assert Reading.named("offsets", live, TOKENIZER) == Reading()


def test_what_is_given_wins_over_the_official_reading():
    live = Explainer(planted_model(), TOKENIZER).live
    given = {"include_zero_offset": False, "exclude_special": None, "explain_mask": "none"}
    assert Reading.named("official", live, TOKENIZER, **given) == Reading(
        align="official", include_zero_offset=False, exclude_special=False, explain_mask="none"
    )


def test_thresholds_typed_by_hand_take_the_place_of_the_corpus_ones(statistics):
    assert statistics.mask([1.0, 1, 1, 1]).syntactic == ((0, 0, 0),)
    assert statistics.mask([0.99, 1, 1, 1]).syntactic == ((0, 1, 0),)
    content = statistics.to_dict([0.99, 0.5, 1, 1])
    assert [one["threshold"] for one in content["relations"].values()] == [0.99, 0.5, 1, 1]
    assert content["thresholds"]["syntactic_margin"] is None
    assert content["mask"]["syntactic"] == [[0, 1, 0]]


def test_batches_change_no_count(statistics):
    explainer = Explainer(planted_model(), TOKENIZER)
    single = head_statistics(explainer.live, TOKENIZER, corpus(), batch_tokens=1)
    np.testing.assert_array_equal(single.hits, statistics.hits)
    np.testing.assert_array_equal(single.positions, statistics.positions)


def test_a_model_that_padding_changes_reads_sentences_of_one_length_together(
    statistics, monkeypatch
):
    def unproof(live, _row, *, maps):
        assert maps
        live.padding_proof = False

    def recorded(live, rows, sites):
        assert len({len(row) for row in rows}) == 1
        return record(live, rows, sites)

    monkeypatch.setattr(LiveModel, "verify", unproof)
    monkeypatch.setattr("tokenlight.heads.statistics.record", recorded)
    found = head_statistics(Explainer(planted_model(), TOKENIZER).live, TOKENIZER, corpus())
    np.testing.assert_array_equal(found.positions, statistics.positions)


def test_a_model_whose_maps_are_another_models_is_refused():
    torch.manual_seed(0)
    config = FalconConfig(
        vocab_size=len(TOKENIZER), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        alibi=True, num_labels=2, pad_token_id=0,
    )  # fmt: skip
    live = Explainer(FalconForSequenceClassification(config).eval(), TOKENIZER).live
    with pytest.raises(UnsupportedModel, match="other logits when its attention maps are asked"):
        head_statistics(live, TOKENIZER, corpus()[:2])


def test_an_encoder_without_a_head_is_proved_by_numbers_that_are_not_zero(monkeypatch):
    probed = []
    probe = probing._probe
    monkeypatch.setattr(
        probing, "_probe", lambda *a, **k: probed.append(probe(*a, **k)) or probed[-1]
    )
    live = Explainer(planted_model().bert, TOKENIZER).live
    head_statistics(live, TOKENIZER, corpus()[:2])
    assert len(probed) == 6  # bare, padded, listened to; each of two texts
    assert all(bool((logits != 0).all()) for logits in probed)


def test_no_sentence_is_refused():
    with pytest.raises(BadInput, match="no sentence"):
        head_statistics(Explainer(planted_model(), TOKENIZER).live, TOKENIZER, [])


def test_a_heads_file_is_read_back_as_its_mask(statistics, tmp_path):
    path = write_heads(tmp_path / "heads.json", statistics.to_dict())
    assert head_mask(path) == statistics.mask()
    assert head_mask(str(path)) == statistics.mask()
    content = read_heads(path)
    assert content["relations"]["nsubj"]["heads"][0][1] == 1.0
    assert content["relations"]["nsubj"]["threshold"] == pytest.approx(1 / 6 + 0.1, abs=1e-6)
    assert content["positions"][0][0] == {"-1": 1.0}
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80  # a row of numbers on a line


def test_a_damaged_heads_file_is_refused(tmp_path):
    with pytest.raises(DamagedFile, match="tokenlight heads MODEL"):
        head_mask(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("heads")
    with pytest.raises(DamagedFile, match="is not a heads file"):
        head_mask(tmp_path / "text.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(DamagedFile, match="format 1"):
        head_mask(tmp_path / "other.json")
    with pytest.raises(BadInput, match="two tables.*None"):
        head_mask({"syntactic": [[1, 0]]})


def test_arrays_become_masks_and_odd_shapes_are_refused():
    assert head_mask(np.eye(2)).syntactic == ((1, 0), (0, 1))
    assert head_mask(torch.eye(2)) == head_mask([[1, 0], [0, 1]])
    with pytest.raises(BadInput, match=r"layers × heads; got \(3,\)"):
        head_mask([1, 0, 1])
    with pytest.raises(BadInput, match="two tables"):
        HeadMask(((1, 0),), ((1,),))


@pytest.mark.parametrize("value", [0.5, 1.5, float("nan"), float("inf")])
def test_a_fraction_of_a_head_is_refused(value):
    for given in (
        [[value, 1]],
        torch.tensor([[value, 1]]),
        {"syntactic": [[1]], "positional": [[value]]},
    ):
        with pytest.raises(BadInput, match="counts criteria.*Give whole numbers"):
            head_mask(given)


MASK = HeadMask(((2, 0, 0, 1), (0, 0, 0, 0)), ((1, 0, 1, 0), (0, 0, 0, 0)))


def test_parts_are_binary_unless_summed():
    syntactic, positional = MASK.parts()
    np.testing.assert_array_equal(syntactic, [[1, 0, 0, 1], [0, 0, 0, 0]])
    np.testing.assert_array_equal(positional, MASK.positional)
    np.testing.assert_array_equal(MASK.parts("syntactic", values="sum")[0], MASK.syntactic)
    (only,) = MASK.parts("positional")
    np.testing.assert_array_equal(only, MASK.positional)


@pytest.mark.parametrize("seed", range(5))
def test_a_random_mask_has_as_many_distinct_heads(seed):
    (found,) = MASK.parts("random", seed=seed)
    assert found.sum() == 3  # one head meets both criteria and counts once
    np.testing.assert_array_equal(found, MASK.parts("random", seed=seed)[0])


def test_random_masks_differ_by_seed():
    drawn = {MASK.parts("random", seed=seed)[0].tobytes() for seed in range(20)}
    assert len(drawn) > 5


@pytest.mark.parametrize(("rate", "heads"), [(0.0, 3), (0.4, 5), (1.0, 8)])
def test_corruption_lets_in_a_share_of_the_other_heads(rate, heads):
    (found,) = MASK.parts("corrupted", rate=rate, seed=1)
    assert found.sum() == heads
    assert found[MASK.chosen].all()


def test_positional_heads_of_one_text_depend_on_that_text_alone():
    maps = torch.zeros(2, 2, 5, 5)
    maps[:, 0, 1:, :-1] = torch.eye(4)  # head 0 looks one to the left
    maps[:, 0, 0, 0] = 1
    maps[0, 1] = torch.eye(5)  # head 1 looks at itself, which does not count
    maps[1, 1, :, 0] = 1
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    found = own_positional_heads([maps], real)
    assert found.shape == (1, 2, 2)
    assert found[0, 0].tolist() == [0.0, 0.0]  # four of five is not more than 0.8
    wide = torch.zeros(1, 1, 8, 8)
    wide[0, 0, 1:, :-1] = torch.eye(7)
    wide[0, 0, 0, 0] = 1
    assert own_positional_heads([wide], torch.ones(1, 8, dtype=torch.bool)).tolist() == [[[1.0]]]


# --- the method that reads masks ------------------------------------------------------------------

ROWS = Tokens.from_ids([[2, 9, 11, 13, 7, 22, 3]])


def test_mask_lrp_takes_a_file_a_mask_or_an_array(tmp_path):
    explainer = Explainer(tiny_bert())
    table = np.eye(3, 4, dtype=int)
    mask = head_mask(table)
    content = {"format": 1, "mask": mask.to_dict()}
    (tmp_path / "heads.json").write_text(json.dumps(content))
    given = [table, mask, str(tmp_path / "heads.json"), torch.tensor(table)]
    scores = [explainer.explain(ROWS, ("mask_lrp", {"heads": one})).scores for one in given]
    for other in scores[1:]:
        np.testing.assert_array_equal(other, scores[0])


def test_a_mask_for_another_model_is_refused():
    with pytest.raises(BadInput, match=r"2 layers × 4 heads, but this model has 3 × 4"):
        Explainer(tiny_bert()).explain(ROWS, ("mask_lrp", {"heads": np.ones((2, 4))}))


def test_without_heads_the_positional_ones_are_taken_and_it_says_so():
    found = Explainer(tiny_bert()).explain(ROWS, "mask_lrp")
    assert "no heads were given" in found.notes[0]
    assert "tokenlight heads MODEL" in found.notes[0]


@pytest.mark.parametrize("mask", ["random", "corrupted"])
def test_without_heads_there_is_nothing_to_draw_from(mask):
    with pytest.raises(BadInput, match=f"mask='{mask}' needs heads.*tokenlight heads MODEL"):
        Explainer(tiny_bert()).explain(ROWS, ("mask_lrp", {"mask": mask}))


@pytest.mark.parametrize("heads", [None, np.eye(3, 4)])
@pytest.mark.parametrize("rate", [-0.1, 5.0, float("nan")])
def test_a_corruption_that_is_no_share_is_refused(heads, rate):
    with pytest.raises(BadInput, match="corruption=.* of mask_lrp cannot be: give 0 to 1"):
        Explainer(tiny_bert()).explain(ROWS, ("mask_lrp", {"heads": heads, "corruption": rate}))


@pytest.mark.parametrize("options", [{"mask": "random"}, {"mask": "corrupted", "corruption": 0.5}])
def test_the_seed_of_explain_draws_the_mask(options):
    explainer = Explainer(tiny_bert())
    method = ("mask_lrp", {"heads": np.eye(3, 4), **options})
    found = [explainer.explain(ROWS, method, seed=seed) for seed in (0, 1, 2)]
    assert len({one.scores.tobytes() for one in found}) > 1
    assert [one.options.get("seed") for one in found] == [None, 1, 2]
    own = explainer.explain(ROWS, (method[0], method[1] | {"seed": 1}), seed=5)
    np.testing.assert_array_equal(own.scores, found[1].scores)


def test_a_seed_that_draws_nothing_is_not_recorded():
    found = Explainer(tiny_bert()).explain(ROWS, ("mask_lrp", {"heads": np.eye(3, 4)}), seed=7)
    assert set(found.options) == {"heads"}


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
    found = Explainer(tiny_bert()).explain(ROWS, ("mask_lrp", options))
    np.testing.assert_allclose(found.extras["conservation"], 1.0, atol=1e-6)


def test_conserving_by_magnitudes_loses_nothing_whatever_the_signs():
    mask = HeadMask(((1, 0, 0, 1),) * 3, ((0, 1, 1, 0),) * 3)
    options = {"preset": "paper", "heads": mask}
    found = Explainer(tiny_bert()).explain(ROWS, ("mask_lrp", options))
    np.testing.assert_allclose(found.extras["conservation"], 1.0, atol=1e-6)


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


@pytest.fixture
def folder(tmp_path):
    model = planted_model().float()
    model.save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    lines = []
    for sentence in corpus():
        lines.append(f"# text = {sentence.text}")
        for number, word in enumerate(sentence.words, start=1):
            head = 0 if word.head is None else word.head + 1
            lines.append(f"{number}\t{word.form}\t_\t_\t_\t_\t{head}\t{word.relation}\t_\t_")
        lines.append("")
    (tmp_path / "corpus.conllu").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def test_the_command_writes_masks_and_figures(folder):
    done = run(
        folder / "model", "--conllu", folder / "corpus.conllu", "-o", folder / "heads.json",
        "--html", folder / "heads.html",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "syntactic    1 heads  1.1" in done.output
    assert "positional   1 heads  1.0" in done.output
    assert "counted on 60 sentences, which tells little" in done.stderr
    assert done.stderr.count("wrote") == 2
    assert "heads.json" in done.stderr
    content = read_heads(folder / "heads.json")
    assert content["sources"] == ["corpus.conllu"]
    assert content["sentences"] == 60
    page = (folder / "heads.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "nsubj (60)" in page
    assert "both (0)" in page


def test_the_command_reads_as_the_official_code_does_and_explicit_options_win(folder):
    place = folder / "heads.json"
    arguments = (folder / "model", "--conllu", folder / "corpus.conllu", "-o", place)
    official = {"include_zero_offset": True, "exclude_special": False, "explain_mask": "sep"}
    assert run(*arguments, "--align", "official").exit_code == 0
    assert read_heads(place)["reading"].items() >= official.items()
    done = run(*arguments, "--align", "official", "--no-zero-offset", "--no-special",
               "--explain-mask", "none", "--synt-thres", "0.5, 0.6,1,1")  # fmt: skip
    assert done.exit_code == 0, done.output
    content = read_heads(place)
    assert content["reading"].items() >= {name: not value for name, value in official.items()
                                          if name != "explain_mask"}.items()  # fmt: skip
    assert content["reading"]["explain_mask"] == "none"
    assert [one["threshold"] for one in content["relations"].values()] == [0.5, 0.6, 1, 1]
    assert content["mask"]["syntactic"] == [[0, 1, 0]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--synt-thres", "0.5,0.5"], "is not four numbers; give one each for nsubj"),
        (["--synt-thres", "a,b,c,d"], "is not four numbers"),
        (["--synt-thres", "1,1,1,1", "--margin", "0.2"], "leave out one of the two"),
        (["--explain-mask", "all"], "'all' is not one of"),
    ],
)
def test_the_command_refuses_thresholds_and_masks_that_mean_nothing(folder, given, said):
    done = run(folder / "model", "--conllu", folder / "corpus.conllu", *given)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_an_encoder_without_a_head_is_read_all_the_same(folder):
    planted_model().float().bert.save_pretrained(folder / "encoder")
    TOKENIZER.save_pretrained(folder / "encoder")
    done = run(folder / "encoder", "--conllu", folder / "corpus.conllu", "--limit", 1)
    assert done.exit_code == 0, done.output
    assert "counted on 1 sentence, which" in done.stderr
    assert "wrote" not in done.stderr
    assert "positional   1 heads  1.0" in done.output


def test_the_command_refuses_in_words(folder):
    done = run(folder / "model", "--conllu", folder / "none.conllu")
    assert done.exit_code == 2
    assert "No such file" in done.output
    done = run(folder / "model", "--conllu", folder / "corpus.conllu", "--align", "words")
    assert done.exit_code == 2
    assert "'words' is not one of" in done.output


def test_the_same_page_is_drawn_twice(statistics):
    from tokenlight.plots.figures import heads_page

    assert heads_page(statistics.to_dict()) == heads_page(statistics.to_dict())
