"""Which attention heads do something a linguist has a name for: head statistics and head masks."""
