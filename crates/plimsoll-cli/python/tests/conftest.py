# `pytest_plugin` is tested in separate pytest sessions.
pytest_plugins = ["pytester"]
