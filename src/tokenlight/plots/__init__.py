"""Pictures of Attributions: HTML, terminal, figures. Nothing here knows a model."""
