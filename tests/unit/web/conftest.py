"""A running server, and a client of it, for each module that tests the API."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.helpers.api_server import connect_client, make_allow_list
from tokenlight.web.models import AllowList


@pytest.fixture(scope="module")
def models() -> AllowList:
    """The models that the server offers; a module with others overrides this fixture."""
    return make_allow_list()


@pytest.fixture(scope="module")
def client(models: AllowList) -> Iterator[httpx.Client]:
    """A client of a server that runs as long as the tests of the module."""
    with connect_client(models) as running_client:
        yield running_client
