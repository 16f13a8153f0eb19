"""The page and its JSON API: ``tokenlight serve`` (the extra ``web``)."""
