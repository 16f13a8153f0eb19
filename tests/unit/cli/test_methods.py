"""``tokenlight doctor``: which methods work on a model."""

import pytest


@pytest.fixture(scope="module")
def classifier(bert_folder):
    return str(bert_folder)


def test_doctor_tries_every_method(tokenlight, classifier):
    from tokenlight import registry

    code, output, _ = tokenlight("doctor", classifier)
    assert code == 0
    for fact in (
        "bert (BertForSequenceClassification)",
        "it is a classifier with the labels negative, neutral, positive",
    ):
        assert fact in output
    assert "max tokens  48" in output
    verdicts = {
        line.split()[1]: line.split()[0]
        for line in output.partition("\n\n")[2].splitlines()
        if line[:2] in ("ok", "no")
    }
    assert set(verdicts) == set(registry.list_names("methods"))
    assert verdicts["attcat"] == "ok"


def test_doctor_gives_the_reason_if_a_method_does_not_work(tokenlight, classifier, monkeypatch):
    from tokenlight.errors import UnsupportedModel
    from tokenlight.methods.rollout import AttentionRollout

    def refuse(*_):
        raise UnsupportedModel("rollout cannot do this, because of [red]that\x1b[31m.")

    monkeypatch.setattr(AttentionRollout, "__call__", refuse)
    code, output, _ = tokenlight("doctor", classifier)
    assert code == 0
    assert "rollout cannot do this, because of [red]that␛[31m." in " ".join(output.split())
