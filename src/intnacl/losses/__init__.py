"""The mathematics: pure functions of similarities, and one module that holds the settings. Torch alone."""
