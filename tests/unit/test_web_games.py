"""The game shows what the model really says when tokens vanish."""

import numpy as np
import pytest
import torch

from tests.unit.served import TEXT, allow_list, asking, refused

LONG = " ".join(["the film is not bad , but"] * 6)


@pytest.fixture(scope="module")
def models():
    return allow_list()


@pytest.fixture(scope="module")
def client(models):
    with asking(models) as made:
        yield made


def explained(client, **asked):
    answer = client.post("/api/explain", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()["attributions"]


def played(client, **asked):
    answer = client.post("/api/perturb", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def said_by_the_bare_model(served, row, hidden):
    """One forward of the bare model with these tokens masked and unattended: the slow twin."""
    ids, attention = list(row["ids"]), list(row["attention"])
    for place in hidden:
        ids[place], attention[place] = served.explainer.tokenizer.mask_token_id, 0
    with torch.no_grad():
        return served.explainer.model(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.tensor([attention]),
            token_type_ids=torch.tensor([row["token_types"]]),
        )


@pytest.mark.parametrize("target", ["predicted", "negative"])
def test_every_point_is_what_the_bare_model_says(client, models, target):
    entries = explained(client, text=TEXT, method=["attcat", "gae"], target=target)
    answer = played(client, ids=[entry["id"] for entry in entries], random_orders=0)
    assert answer["labels"] == ["negative", "neutral", "positive"]
    for entry, game in zip(entries, answer["games"], strict=True):
        attribution = entry["attribution"]
        own = [i for i, special in enumerate(attribution["row"]["special"]) if not special]
        scores = np.array(attribution["scores"])
        assert game["order"] == sorted(own, key=lambda i: -scores[i])
        assert game["counts"] == list(range(len(own) + 1))
        index = attribution["target"]["terms"][0][0][0]
        for point, count in enumerate(game["counts"]):
            for side, hidden in (
                ("hide", game["order"][:count]),
                ("reveal", game["order"][count:]),
            ):
                out = said_by_the_bare_model(models.named("tiny"), attribution["row"], hidden)
                chances = out.logits[0].softmax(-1).numpy()
                np.testing.assert_allclose(game[side]["probabilities"][point], chances, atol=1e-9)
                assert game[side]["watched"][point] == pytest.approx(chances[index], abs=1e-9)


def test_the_game_of_an_answer_watches_the_answer(client, models):
    (entry,) = explained(client, question="who sat?", context="the cat sat on the mat.")
    game = played(client, ids=[entry["id"]], random_orders=2)["games"][0]
    row, target = entry["attribution"]["row"], entry["attribution"]["target"]
    (start, _), (end, _) = (place for place, _ in target["terms"])
    out = said_by_the_bare_model(models.named("answers"), row, game["order"][:2])
    wanted = out.start_logits[0].softmax(-1)[start] * out.end_logits[0].softmax(-1)[end]
    assert game["hide"]["watched"][2] == pytest.approx(float(wanted), abs=1e-9)
    assert game["hide"]["probabilities"][2] == [game["hide"]["watched"][2]]


def test_the_random_band_is_the_same_for_every_method_and_begins_where_the_game_does(client):
    entries = explained(client, text=TEXT, method=["attcat", "gae"], target="positive")
    games = played(client, ids=[e["id"] for e in entries], random_orders=6, seed=3)["games"]
    assert games[0]["random"] == games[1]["random"]
    band = games[0]["random"]
    assert band["orders"] == 6
    for side in ("hide", "reveal"):
        low, high = (np.array(band[side][part]) for part in ("low", "high"))
        assert (low <= high + 1e-12).all()
        assert (low[1:-1] < high[1:-1]).any()
        # Nothing hidden, or everything: there is no order any more.
        for end in (0, -1):
            assert low[end] == pytest.approx(high[end], abs=1e-9)
            assert low[end] == pytest.approx(games[0][side]["watched"][end], abs=1e-9)
    other = played(client, ids=[entries[0]["id"]], random_orders=6, seed=4)["games"][0]["random"]
    assert other["hide"]["mean"] != band["hide"]["mean"]


def test_what_was_played_is_not_asked_again(client, monkeypatch):
    from tokenlight.web import games

    (entry,) = explained(client, text="good film, bad plot")
    first = played(client, ids=[entry["id"]], random_orders=4)

    def no_more(*_, **__):
        raise AssertionError("the model was asked again")

    monkeypatch.setattr(games, "stream_logits", no_more)
    assert played(client, ids=[entry["id"]], random_orders=4) == first


def test_an_order_of_ones_own(client, models):
    asked = {"text": TEXT, "order": [4, 1], "random_orders": 0, "target": "neutral"}
    game = played(client, **asked)["games"][0]
    assert (game["id"], game["counts"], game["watched"]) == (None, [0, 1, 2], "neutral")
    (entry,) = explained(client, text=TEXT, target="neutral")
    row = entry["attribution"]["row"]
    hidden = said_by_the_bare_model(models.named("tiny"), row, [4, 1]).logits[0].softmax(-1)[1]
    assert game["hide"]["watched"][2] == pytest.approx(float(hidden), abs=1e-9)
    others = [i for i, special in enumerate(row["special"]) if not special and i != 4]
    shown = said_by_the_bare_model(models.named("tiny"), row, others).logits[0].softmax(-1)[1]
    assert game["reveal"]["watched"][1] == pytest.approx(float(shown), abs=1e-9)
    for order in ([0], [1, 1], [99]):
        answer = client.post("/api/perturb", json={"text": TEXT, "order": order})
        assert "each once" in refused(answer, 422, "bad_input")["message"]


def test_a_long_text_has_fewer_points_and_both_ends(client, monkeypatch):
    from tokenlight.web import games

    monkeypatch.setattr(games, "CURVE_TOKENS", 600)
    (entry,) = explained(client, text=LONG)
    game = played(client, ids=[entry["id"]], random_orders=0)["games"][0]
    assert 11 <= len(game["counts"]) <= 15
    assert (game["counts"][0], game["counts"][-1]) == (0, len(game["order"]))
    assert len(game["hide"]["watched"]) == len(game["counts"])


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"ids": []},
        {"ids": ["aaaaaaaa"], "order": [1], "text": "a"},
        {"ids": ["aaaaaaaa"], "text": "a"},
        {"text": "a"},
        {"order": [1]},
    ],
)
def test_ids_or_a_text_with_an_order(client, asked):
    refused(client.post("/api/perturb", json=asked), 422, "invalid")
