# `pytest_plugin` is tested in sessions of its own.
pytest_plugins = ["pytester"]
