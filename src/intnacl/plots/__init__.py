"""All drawing of figures, in one style."""
